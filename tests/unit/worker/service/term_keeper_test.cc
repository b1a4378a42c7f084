// Which of several coordinators a worker follows, also after a restart.
#include "worker/service/term_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "process/failpoint.h"
#include "rpc/transfer_token.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::CarriesFacts;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TermKeeperTest : public testing::Test {
 protected:
  TermKeeperTest() {
    folder_ = testing::TempDir() + "/term_keeper_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }

  void Open() {
    keeper_.reset();
    auto opened = TermKeeper::Open(folder_);
    ASSERT_THAT(opened, IsOk());
    keeper_ = *std::move(opened);
  }
  void Write(const std::string& text) const { std::ofstream(folder_ + "/term") << text; }
  std::string OnDisk() const { return test::ReadFile(folder_ + "/term"); }
  // A term as the coordinator with this key begins it.
  static KnownTerm Begun(int64_t number, char key) {
    return {.number = number, .token_key_digest = rpc::TokenKeyDigest(std::string(32, key))};
  }
  absl::Status Follow(int64_t number, char key) {
    return keeper_->Follow(Begun(number, key), "ipv4:10.0.0.1:7");
  }

  std::string folder_;
  std::unique_ptr<TermKeeper> keeper_;
};

TEST_F(TermKeeperTest, KnowsNoTermAtFirst) {
  Open();
  EXPECT_EQ(keeper_->known(), KnownTerm());
  EXPECT_THAT(keeper_->Keep(), IsOk());
  EXPECT_EQ(OnDisk(), "") << "there is nothing to keep";
}

TEST_F(TermKeeperTest, FollowsAHigherTermAndNoLowerOne) {
  Open();
  EXPECT_THAT(Follow(3, 'a'), IsOk());
  const absl::Status lower = Follow(2, 'b');
  EXPECT_THAT(lower, StatusIs(absl::StatusCode::kAborted, Reason::kStaleTerm));
  EXPECT_THAT(lower, CarriesFacts(Reason::kStaleTerm, {{fact::kHave, 2}, {fact::kNeed, 3}}));
  EXPECT_EQ(keeper_->known(), Begun(3, 'a'));
  EXPECT_THAT(Follow(5, 'b'), IsOk());
  EXPECT_EQ(keeper_->known(), Begun(5, 'b'));
}

TEST_F(TermKeeperTest, FollowsTheFirstOfTwoCoordinatorsOfOneTerm) {
  Open();
  EXPECT_THAT(Follow(3, 'a'), IsOk());
  EXPECT_THAT(Follow(3, 'a'), IsOk()) << "it attaches again";
  const absl::Status second = Follow(3, 'b');
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kAborted, Reason::kStaleTerm));
  EXPECT_THAT(
      std::string(second.message()),
      AllOf(HasSubstr("two coordinators have begun term 3"), HasSubstr("ipv4:10.0.0.1:7"),
            HasSubstr(Begun(3, 'a').token_key_digest), HasSubstr(Begun(3, 'b').token_key_digest)));
  EXPECT_EQ(keeper_->known(), Begun(3, 'a'));
  EXPECT_THAT(Follow(4, 'b'), IsOk());
  EXPECT_THAT(Follow(3, 'a'), StatusIs(absl::StatusCode::kAborted, Reason::kStaleTerm));
}

TEST_F(TermKeeperTest, RemembersAcrossRestarts) {
  Open();
  EXPECT_THAT(Follow(3, 'a'), IsOk());
  EXPECT_THAT(keeper_->Keep(), IsOk());
  EXPECT_EQ(OnDisk(), "3 " + Begun(3, 'a').token_key_digest);
  Open();
  EXPECT_EQ(keeper_->known(), Begun(3, 'a'));
  EXPECT_THAT(Follow(3, 'b'), StatusIs(absl::StatusCode::kAborted, Reason::kStaleTerm));
}

TEST_F(TermKeeperTest, KeepsNothingWithoutAFolder) {
  auto opened = TermKeeper::Open("");
  ASSERT_THAT(opened, IsOk());
  EXPECT_THAT((*opened)->Follow(Begun(3, 'a'), "peer"), IsOk());
  EXPECT_THAT((*opened)->Keep(), IsOk());
  EXPECT_EQ((*opened)->known(), Begun(3, 'a'));
}

TEST_F(TermKeeperTest, ReadsTheFileOfAnOlderVersion) {
  Write("3\n");
  Open();
  EXPECT_EQ(keeper_->known(), KnownTerm{.number = 3});
  EXPECT_THAT(Follow(2, 'b'), StatusIs(absl::StatusCode::kAborted, Reason::kStaleTerm));
  EXPECT_THAT(Follow(3, 'b'), IsOk()) << "the first that it hears of in this term";
  EXPECT_THAT(keeper_->Keep(), IsOk());
  EXPECT_EQ(OnDisk(), "3 " + Begun(3, 'b').token_key_digest);
}

TEST_F(TermKeeperTest, RefusesADamagedFile) {
  for (const char* text : {"", "x", "-1", "3 abc", "3 0123456789abcdef0123456789abcdef0",
                           "3 0123456789abcdef0123456789abcdeg"}) {
    Write(text);
    EXPECT_THAT(TermKeeper::Open(folder_), StatusIs(absl::StatusCode::kDataLoss, Reason::kBadFile))
        << text;
  }
}

TEST_F(TermKeeperTest, AFullDiskIsNoErrorAndLoggedOnce) {
  Write("1");
  Open();
  EXPECT_THAT(Follow(3, 'a'), IsOk());
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    ASSERT_THAT(ArmFailpoints("link.write_term=enospc"), IsOk());
    EXPECT_THAT(keeper_->Keep(), IsOk());
    EXPECT_EQ(OnDisk(), "1");
  }
  const std::string log = testing::internal::GetCapturedStderr();
  const size_t first = log.find("could not be stored yet");
  EXPECT_NE(first, std::string::npos);
  EXPECT_EQ(log.find("could not be stored yet", first + 1), std::string::npos);
  EXPECT_THAT(keeper_->Keep(), IsOk());
  EXPECT_EQ(OnDisk(), "3 " + Begun(3, 'a').token_key_digest);
}

TEST_F(TermKeeperTest, AnotherErrorOfTheDiskIsAnError) {
  Open();
  EXPECT_THAT(Follow(3, 'a'), IsOk());
  ASSERT_THAT(ArmFailpoints("link.write_term=eio"), IsOk());
  EXPECT_FALSE(keeper_->Keep().ok());
  EXPECT_THAT(keeper_->Keep(), IsOk());
}

}  // namespace
}  // namespace shardmesh::worker
