// Digests against published vectors, and as the numbers that Python makes of them.
#include "sharding/digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/escaping.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using test::IsOkAndHolds;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Compatibility kExact = Compatibility::kExact;

TEST(DigestTest, GivesThePublishedVectors) {
  EXPECT_EQ(absl::BytesToHexString(Sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(absl::BytesToHexString(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_TRUE(EqualInConstantTime("ab", "ab"));
  EXPECT_FALSE(EqualInConstantTime("ab", "abc"));
}

TEST(DigestTest, BytesInPiecesHaveTheDigestOfTheWhole) {
  const std::string bytes(1000, 'x');
  for (const size_t piece : {size_t{1}, size_t{63}, size_t{64}, size_t{999}, size_t{1000}}) {
    Sha256Stream stream;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      stream.Add(std::string_view(bytes).substr(at, piece));
    }
    EXPECT_EQ(stream.Finish(), Sha256(bytes)) << piece;
  }
  EXPECT_EQ(Sha256Stream().Finish(), Sha256(""));
}

TEST(SafeHashIntTest, ReadsTheDigestAsOneNumber) {
  const std::string text = "hello world";
  EXPECT_THAT(SafeHashInt(text),
              IsOkAndHolds(std::string("125893641179230474042701625388361764291")));
  EXPECT_THAT(SafeHashInt(text, "sha1", kExact),
              IsOkAndHolds(std::string("243667368468580896692010249115860146898325751533")));
  EXPECT_THAT(SafeHashInt(text, "blake2s", kExact),
              IsOkAndHolds(std::string("7007387254526179695484250576857271583595"
                                       "8350167886049979662504299322163673867")));
}

TEST(SafeHashIntTest, KnowsOpenSslsOtherDigestsByDefaultAlone) {
  const std::string sha512_256 =
      "4871873588061832668694248197857581227284388998093156995645767833090771906583";
  for (const char* const name : {"sha512_256", "SHA512-256"}) {
    EXPECT_THAT(SafeHashInt("hello world", name), IsOkAndHolds(sha512_256)) << name;
    const auto exact = SafeHashInt("hello world", name, kExact);
    EXPECT_THAT(exact, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField)) << name;
    EXPECT_EQ(PythonTypeOf(exact.status()), "ValueError") << name;
  }
  EXPECT_THAT(SafeHashInt("hello world", "md5_sha1"),
              IsOkAndHolds(std::string("183993762712994521463189383506540022158107804"
                                       "419652254132533992705836390321939865421549")));
}

TEST(SafeHashIntTest, SaysWhichNamesThereAre) {
  const auto message = [](std::string_view name, Compatibility compatibility) {
    return std::string(SafeHashInt("x", name, compatibility).status().message());
  };
  EXPECT_THAT(
      message("sha25", Compatibility::kDefault),
      AllOf(HasSubstr("'sha25' is no digest algorithm; there are blake2b, "),
            HasSubstr(", and OpenSSL's others by its own names; did you mean \"sha256\"?")));
  EXPECT_THAT(message("sha25", kExact),
              AllOf(HasSubstr("sha3_512; did you mean \"sha256\"?"), Not(HasSubstr("OpenSSL"))));
  EXPECT_THAT(message("SHA512-256", kExact),
              HasSubstr("is a name of OpenSSL's, which is known by default and not under EXACT; "
                        "there are blake2b, "));
  EXPECT_THAT(message("NULL", kExact), HasSubstr("'NULL' is no digest algorithm"));
}

TEST(SafeHashIntTest, RefusesWhatIsNoAlgorithmWithTheOriginalsClass) {
  struct Case {
    std::string name;
    std::string python_type;
  };
  const Case cases[] = {
      {"nope", "ValueError"},
      {"", "ValueError"},
      {"md5 ", "ValueError"},
      {"NULL", "ValueError"},
      {"crc32", "ValueError"},
      {std::string(10'000, 'x'), "ValueError"},
      {std::string("md5\0", 4), "ValueError"},
      {"shake_128", "Exception"},
      {"shake_256", "Exception"},
      {"scrypt", "Exception"},
      {"new", "Exception"},
      {"__doc__", "Exception"},
      {"algorithms_available", "Exception"},
  };
  for (const Case& each : cases) {
    for (const Compatibility compatibility : {Compatibility::kDefault, kExact}) {
      const auto result = SafeHashInt("x", each.name, compatibility);
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField))
          << each.name;
      EXPECT_EQ(PythonTypeOf(result.status()), each.python_type) << each.name;
    }
  }
  EXPECT_EQ(PythonTypeOf(SafeHashInt("x", "SHAKE128").status()), "Exception");
  EXPECT_THAT(SafeHashInt("x", "sha265").status().ToString(),
              testing::HasSubstr("did you mean \"sha256\"?"));
}

}  // namespace
}  // namespace shardmesh
