// Transfer tokens: round trips, and the error for each token that is refused.
#include "rpc/transfer_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "rpc/codec/array_codec.h"
#include "sharding/digest.h"
#include "shardmesh/internal/v1/transfer_token.pb.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "tests/testing/row_array.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::CarriesFacts;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::RowArray;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TransferTokenTest : public ::testing::Test {
 protected:
  static auto IsUnauthenticated() {
    return StatusIs(absl::StatusCode::kUnauthenticated, Reason::kBadToken);
  }
  static auto IsDenied() {
    return StatusIs(absl::StatusCode::kPermissionDenied, Reason::kBadToken);
  }

  absl::StatusOr<VerifiedToken> Verify(const std::string& token) const {
    return VerifyToken(token, key_, TransferDirection::kPut, now_);
  }
  // A token with a valid signature over any bytes.
  std::string Signed(const std::string& claims) const {
    internal::v1::TransferToken token;
    token.set_claims(claims);
    token.set_signature(HmacSha256(key_, claims));
    return token.SerializeAsString();
  }
  // The claims as the wire has them.
  internal::v1::TransferClaims WireClaims() const {
    internal::v1::TransferToken token;
    EXPECT_TRUE(token.ParseFromString(SignToken(claims_, key_)));
    internal::v1::TransferClaims claims;
    EXPECT_TRUE(claims.ParseFromString(token.claims()));
    return claims;
  }

  const std::string key_ = std::string(kTokenKeyBytes, 'k');
  const absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);
  const TransferClaims claims_ = {.direction = TransferDirection::kPut,
                                  .transfer_id = "t1",
                                  .session_id = "s1",
                                  .array_descriptor = ArrayDescriptorBytes(RowArray("a1")),
                                  .term = 4,
                                  .expire_time = now_ + absl::Seconds(60)};
};

TEST_F(TransferTokenTest, ClaimsComeBackAsTheyWereSigned) {
  TransferClaims get = claims_;
  get.direction = TransferDirection::kGet;
  get.transfer_id = "";
  TransferClaims largest = claims_;
  largest.term = std::numeric_limits<int64_t>::max();
  largest.expire_time += absl::Nanoseconds(999'999'999);
  largest.session_id = std::string(1000, 's');
  TransferClaims first = claims_;
  first.term = 0;
  first.session_id = "";
  first.expire_time = now_ + absl::Nanoseconds(1);
  for (const TransferClaims& claims : {claims_, get, largest, first}) {
    EXPECT_THAT(VerifyToken(SignToken(claims, key_), key_, claims.direction, now_),
                IsOkAndHolds(VerifiedToken{.claims = claims, .array = RowArray("a1")}));
  }
}

TEST_F(TransferTokenTest, TheDescriptorComesBackAsTheBytesThatWereSigned) {
  TransferClaims claims = claims_;
  // A field with number 100 and value 42. An encoder writes unknown fields last: at the front it
  // shows whether the descriptor was encoded again.
  claims.array_descriptor = "\xa0\x06\x2a" + claims.array_descriptor;
  EXPECT_THAT(Verify(SignToken(claims, key_)),
              IsOkAndHolds(VerifiedToken{.claims = claims, .array = RowArray("a1")}));
}

TEST_F(TransferTokenTest, ClaimsOfANewerBuildAreTaken) {
  EXPECT_THAT(Verify(Signed(WireClaims().SerializeAsString() + "\xa0\x06\x2a")),
              IsOkAndHolds(VerifiedToken{.claims = claims_, .array = RowArray("a1")}));
}

TEST_F(TransferTokenTest, ASignedTokenWithAMalformedDescriptorIsRefusedAndSaysWhy) {
  ArrayDescriptor off_mesh = RowArray("a1");
  off_mesh.mesh = Mesh();
  ArrayDescriptor uneven = RowArray("a1");
  uneven.shape = {5};
  const struct {
    std::string descriptor;
    const char* why;
  } cases[] = {{"\xff", "the 1 bytes are no v1.ArrayDescriptor"},
               {"", "array_id is empty"},
               {ArrayDescriptorBytes(off_mesh), "this one names no axes"},
               {ArrayDescriptorBytes(uneven), "do not divide"}};
  for (const auto& each : cases) {
    TransferClaims claims = claims_;
    claims.array_descriptor = each.descriptor;
    const absl::Status status = Verify(SignToken(claims, key_)).status();
    EXPECT_THAT(status, IsUnauthenticated());
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("the array descriptor of the transfer token is malformed"),
                      HasSubstr(each.why)));
  }
}

TEST_F(TransferTokenTest, AnyChangedByteIsRefused) {
  const std::string token = SignToken(claims_, key_);
  for (size_t i = 0; i < token.size(); ++i) {
    for (const int flip : {1, 0x80, 0xff}) {
      std::string forged = token;
      forged[i] = static_cast<char>(forged[i] ^ flip);
      EXPECT_THAT(Verify(forged), IsUnauthenticated());
    }
  }
}

TEST_F(TransferTokenTest, AnyOtherLengthIsRefused) {
  const std::string token = SignToken(claims_, key_);
  for (size_t size = 0; size < token.size(); ++size) {
    EXPECT_THAT(Verify(token.substr(0, size)), IsUnauthenticated()) << size;
  }
  for (const size_t size : {size_t{0}, size_t{31}, size_t{33}}) {
    internal::v1::TransferToken resized;
    ASSERT_TRUE(resized.ParseFromString(token));
    resized.mutable_signature()->resize(size);
    EXPECT_THAT(Verify(resized.SerializeAsString()), IsUnauthenticated()) << size;
  }
}

TEST_F(TransferTokenTest, TokensThatAreNotAuthenticAreToldApart) {
  internal::v1::TransferClaims no_direction = WireClaims();
  no_direction.clear_direction();
  internal::v1::TransferClaims unknown_direction = WireClaims();
  unknown_direction.set_direction(static_cast<internal::v1::TransferDirection>(3));
  internal::v1::TransferClaims bad_time = WireClaims();
  bad_time.mutable_expire_time()->set_nanos(-1);
  const std::string foreign = SignToken(claims_, std::string(kTokenKeyBytes, 'x'));
  const struct {
    std::string token;
    const char* said;
  } cases[] = {
      {"", "the transfer token is missing"},
      {"\xff", "the transfer token is malformed"},
      {"\n\x01", "the transfer token is malformed"},  // claims of one byte that is not there
      {foreign, "was not signed by this cluster's coordinator"},
      {Signed("\xff"), "the transfer token is malformed"},
      {Signed(""), "the transfer token is malformed"},  // no direction
      {Signed(no_direction.SerializeAsString()), "the transfer token is malformed"},
      {Signed(unknown_direction.SerializeAsString()), "the transfer token is malformed"},
      {Signed(bad_time.SerializeAsString()), "the transfer token is malformed"},
  };
  for (const auto& each : cases) {
    const auto verified = Verify(each.token);
    EXPECT_THAT(verified, IsUnauthenticated());
    EXPECT_THAT(verified, CarriesFacts(Reason::kBadToken, {}))
        << "its content is not to be trusted";
    EXPECT_THAT(std::string(verified.status().message()),
                AllOf(HasSubstr(each.said), HasSubstr("; begin a transfer to get a token"),
                      Not(HasSubstr(key_))));
  }
}

TEST_F(TransferTokenTest, ATokenEndsAtItsTime) {
  const std::string token = SignToken(claims_, key_);
  const auto at = [&](absl::Duration after_end) {
    return VerifyToken(token, key_, TransferDirection::kPut, claims_.expire_time + after_end);
  };
  EXPECT_THAT(at(-absl::Nanoseconds(1)), IsOk());
  EXPECT_THAT(at(absl::ZeroDuration()), IsDenied());
  const auto late = at(absl::Seconds(2) + absl::Microseconds(1700));
  EXPECT_THAT(late, IsDenied());
  EXPECT_THAT(late, CarriesFacts(Reason::kBadToken, {{fact::kArray, "a1"}}));
  EXPECT_THAT(std::string(late.status().message()),
              HasSubstr("the transfer token expired 2.001s ago; begin the transfer anew"));
}

TEST_F(TransferTokenTest, ATokenWithoutAnEndHasExpired) {
  internal::v1::TransferClaims endless = WireClaims();
  endless.clear_expire_time();
  EXPECT_THAT(Verify(Signed(endless.SerializeAsString())), IsDenied());
  TransferClaims claims = claims_;
  claims.expire_time = absl::InfinitePast();  // the default
  EXPECT_THAT(Verify(SignToken(claims, key_)), IsDenied());
}

TEST_F(TransferTokenTest, AnEndBeyondTheWiresRangeIsTheLatest) {
  TransferClaims claims = claims_;
  claims.expire_time = absl::InfiniteFuture();
  const auto verified = Verify(SignToken(claims, key_));
  ASSERT_THAT(verified, IsOk());
  EXPECT_EQ(absl::FormatTime("%Y", verified->claims.expire_time, absl::UTCTimeZone()), "9999");
}

TEST_F(TransferTokenTest, ATokenForTheOtherDirectionSaysSoEvenIfItHasExpired) {
  TransferClaims get = claims_;
  get.direction = TransferDirection::kGet;
  const struct {
    TransferClaims claims;
    TransferDirection wanted;
    const char* said;
  } cases[] = {
      {claims_, TransferDirection::kGet, "the transfer token is for a put, not for a get"},
      {get, TransferDirection::kPut, "the transfer token is for a get, not for a put"},
  };
  for (const auto& each : cases) {
    for (const absl::Time now : {now_, claims_.expire_time + absl::Hours(1)}) {
      const auto verified = VerifyToken(SignToken(each.claims, key_), key_, each.wanted, now);
      EXPECT_THAT(verified, IsDenied());
      EXPECT_THAT(verified, CarriesFacts(Reason::kBadToken, {{fact::kArray, "a1"}}));
      EXPECT_EQ(std::string(verified.status().message()), each.said);
    }
  }
}

TEST(TokenKeyDigestTest, IsTheFrontOfTheKeysHash) {
  // The SHA-256 of nothing begins so.
  EXPECT_EQ(TokenKeyDigest(""), "e3b0c44298fc1c149afbf4c8996fb924");
  std::set<std::string> digests;
  for (const char c : {'a', 'b', '\0'}) {
    const std::string digest = TokenKeyDigest(std::string(kTokenKeyBytes, c));
    EXPECT_EQ(digest.size(), 32u);
    EXPECT_EQ(digest.find_first_not_of("0123456789abcdef"), std::string::npos) << digest;
    digests.insert(digest);
  }
  EXPECT_EQ(digests.size(), 3u);
}

}  // namespace
}  // namespace shardmesh::rpc
