// ContentCheck: which claims the answers of the workers make true.
#include "server/content/content_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "status/str_cat.h"
#include "tests/unit/server/content/keeping_digests.h"
#include "tests/unit/server/steps/ready_cluster.h"

namespace shardmesh::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string DigestNamed(char name) { return std::string(32, name); }

class ContentCheckTest : public ReadyCluster {
 protected:
  ~ContentCheckTest() override {
    check_.reset();
    claims_.clear();
    sequencer_.reset();
  }

  // Adds an array of F32 on the mesh x=2, and the claim that its tiles have these digests.
  std::string Claim(std::vector<std::string> tile_sha256, Shape shape = {8},
                    const PartitionSpec& spec = PartitionSpec({SpecEntry::Axis("x")})) {
    ArrayDescriptor array = Descriptor();
    array.shape = std::move(shape);
    array.spec = spec;
    const std::string id = AddArray(array, StrCat("w", claims_.size()));
    claims_.push_back({.item = claims_.size(),
                       .array = PinnedArray::Pin(registry_.get(), *registry_->FindArray(id)),
                       .tile_sha256 = std::move(tile_sha256)});
    return id;
  }
  void Start() {
    check_ = ContentCheck::Start(&digests_, endpoints_, &clock_, claims_,
                                 [this](std::vector<bool> is_true) {
                                   ++ends_;
                                   is_true_ = std::move(is_true);
                                 });
  }

  KeepingDigests digests_;
  std::vector<ClaimedArray> claims_;
  std::shared_ptr<ContentCheck> check_;
  int ends_ = 0;
  std::vector<bool> is_true_;
};

TEST_F(ContentCheckTest, AClaimIsTrueIfAllWorkersHaveItsDigests) {
  const std::string id = Claim({DigestNamed('a'), DigestNamed('b')});
  Claim({DigestNamed('c'), DigestNamed('d')});
  Start();
  const std::vector<KeepingDigests::Question> asked = digests_.waiting();
  ASSERT_THAT(asked, SizeIs(2)) << "one for each worker, with the tiles of both arrays";
  EXPECT_EQ(asked[0].identity, "w0");
  ASSERT_THAT(asked[0].tiles, SizeIs(2));
  EXPECT_EQ(asked[0].tiles[0].array_id, id);
  EXPECT_EQ(asked[0].tiles[0].tile, (Tile{{{0, 4}}}));
  EXPECT_EQ(asked[1].tiles[1].tile, (Tile{{{4, 8}}}));
  EXPECT_TRUE(digests_.Answer("w1", {{DigestNamed('b'), DigestNamed('x')}}));
  EXPECT_EQ(ends_, 0);
  EXPECT_TRUE(digests_.Answer("w0", {{DigestNamed('a'), DigestNamed('c')}}));
  EXPECT_EQ(ends_, 1);
  EXPECT_THAT(is_true_, ElementsAre(true, false));
  clock_.Advance(absl::Hours(1));
  check_->Cancel();
  EXPECT_EQ(ends_, 1);
}

TEST_F(ContentCheckTest, OnlyClaimedTilesAreAskedForAndCompared) {
  Claim({DigestNamed('a'), ""});
  Claim({"", DigestNamed('d')});
  Start();
  const std::vector<KeepingDigests::Question> asked = digests_.waiting();
  ASSERT_THAT(asked, SizeIs(2));
  for (const KeepingDigests::Question& each : asked) EXPECT_THAT(each.tiles, SizeIs(1));
  EXPECT_TRUE(digests_.Answer("w0", {{DigestNamed('a')}}));
  EXPECT_TRUE(digests_.Answer("w1", {{DigestNamed('x')}}));
  EXPECT_EQ(ends_, 1);
  EXPECT_THAT(is_true_, ElementsAre(true, false));
}

TEST_F(ContentCheckTest, EachReplicaIsCompared) {
  Claim({DigestNamed('a')}, {8}, PartitionSpec());
  Start();
  EXPECT_TRUE(digests_.Answer("w0", {{DigestNamed('a')}}));
  EXPECT_EQ(ends_, 0);
  EXPECT_TRUE(digests_.Answer("w1", {{DigestNamed('b')}}));
  EXPECT_THAT(is_true_, ElementsAre(false));
}

TEST_F(ContentCheckTest, AWorkerWithoutTheTileOrWithTooFewAnswersHasNotTheContent) {
  Claim({DigestNamed('a'), DigestNamed('b')});
  Start();
  EXPECT_TRUE(digests_.Answer("w0", {{""}}));
  EXPECT_TRUE(digests_.Answer("w1", {{DigestNamed('b')}}));
  EXPECT_THAT(is_true_, ElementsAre(false));
  Start();
  EXPECT_TRUE(digests_.Answer("w0", {DigestTransport::Digests()}));
  EXPECT_TRUE(digests_.Answer("w1", {{DigestNamed('b')}}));
  EXPECT_EQ(ends_, 2);
  EXPECT_THAT(is_true_, ElementsAre(false));
}

TEST_F(ContentCheckTest, AWorkerThatIsLostOrOlderOrAMeshWithoutWorkersMakesClaimsFalse) {
  Claim({DigestNamed('a'), DigestNamed('b')});
  digests_.Refuse("w1", absl::FailedPreconditionError("an older build"));
  Start();
  EXPECT_TRUE(digests_.Answer("w0", {{DigestNamed('a')}}));
  EXPECT_EQ(ends_, 1);
  EXPECT_THAT(is_true_, ElementsAre(false));
  digests_.Refuse("w0", absl::UnavailableError("it is not attached"));
  Start();
  EXPECT_EQ(ends_, 2) << "within Start";
  EXPECT_THAT(is_true_, ElementsAre(false));
  endpoints_.endpoints.pop_back();
  Start();
  EXPECT_EQ(ends_, 3);
  EXPECT_THAT(is_true_, ElementsAre(false));
  claims_.clear();
  Start();
  EXPECT_EQ(ends_, 4);
  EXPECT_THAT(is_true_, IsEmpty());
}

TEST_F(ContentCheckTest, AQuestionHasABoundedNumberOfBytesAndTilesAndAWorkerFewQuestions) {
  // Tiles of 40 MiB: each question has one of them.
  const Shape large = {2, int64_t{10} << 20};
  for (int i = 0; i < 3; ++i) Claim({DigestNamed('a'), DigestNamed('b')}, large);
  Start();
  EXPECT_THAT(digests_.waiting(), SizeIs(2 * ContentCheck::kOrders));
  for (const KeepingDigests::Question& each : digests_.waiting())
    EXPECT_THAT(each.tiles, SizeIs(1));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(digests_.Answer("w0", {{DigestNamed('a')}}));
    EXPECT_TRUE(digests_.Answer("w1", {{DigestNamed('b')}}));
  }
  EXPECT_THAT(is_true_, ElementsAre(true, true, true));

  claims_.clear();
  for (size_t i = 0; i <= ContentCheck::kMaxTiles; ++i) Claim({DigestNamed('a'), DigestNamed('b')});
  Start();
  ASSERT_THAT(digests_.waiting(), SizeIs(4));
  EXPECT_THAT(digests_.waiting()[0].tiles, SizeIs(ContentCheck::kMaxTiles));
  EXPECT_THAT(digests_.waiting()[1].tiles, SizeIs(1));
  check_->Cancel();
}

TEST_F(ContentCheckTest, NobodyIsAskedForTheRestOfAClaimThatIsFalse) {
  const Shape large = {2, int64_t{10} << 20};
  for (int i = 0; i < 3; ++i) Claim({DigestNamed('a'), DigestNamed('b')}, large);
  Start();
  // The third array's tile is asked for only at w1, where the answers are right.
  EXPECT_TRUE(digests_.Answer("w1", {{DigestNamed('b')}}));
  EXPECT_TRUE(digests_.Answer("w1", {{DigestNamed('b')}}));
  EXPECT_TRUE(digests_.Answer("w1", {{DigestNamed('x')}}));
  EXPECT_TRUE(digests_.Answer("w0", {{DigestNamed('a')}}));
  EXPECT_EQ(ends_, 0);
  EXPECT_TRUE(digests_.Answer("w0", {{DigestNamed('a')}}));
  EXPECT_EQ(ends_, 1);
  EXPECT_THAT(is_true_, ElementsAre(true, true, false));
}

TEST_F(ContentCheckTest, WorkersThatDoNotAnswerEndTheCheckInTime) {
  Claim({DigestNamed('a'), DigestNamed('b')});
  Start();
  clock_.Advance(ContentCheck::kIdleLimit - absl::Seconds(1));
  EXPECT_TRUE(digests_.Answer("w0", {{DigestNamed('a')}}));
  clock_.Advance(ContentCheck::kIdleLimit - absl::Seconds(1));
  EXPECT_EQ(ends_, 0) << "an answer came meanwhile";
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(ends_, 1);
  EXPECT_THAT(is_true_, ElementsAre(false));
  EXPECT_THAT(digests_.waiting(), IsEmpty()) << "its question is forgotten";
}

TEST_F(ContentCheckTest, ACheckOfAPutWithLittleTimeEndsSooner) {
  Claim({DigestNamed('a'), DigestNamed('b')});
  const absl::Duration limit = absl::Seconds(2);
  check_ = ContentCheck::Start(
      &digests_, endpoints_, &clock_, claims_, [this](const std::vector<bool>&) { ++ends_; },
      limit);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(digests_.Answer("w0", {{DigestNamed('a')}}));
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(ends_, 0);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(ends_, 1);
}

TEST_F(ContentCheckTest, ACancelledCheckEndsAtOnce) {
  Claim({DigestNamed('a'), DigestNamed('b')});
  Start();
  check_->Cancel();
  EXPECT_EQ(ends_, 1);
  EXPECT_THAT(is_true_, ElementsAre(false));
  EXPECT_THAT(digests_.waiting(), IsEmpty());
  check_->Cancel();
  EXPECT_EQ(ends_, 1);
}

}  // namespace
}  // namespace shardmesh::server
