// Packed weights: the budget that they live on, and when the store holds them.
#include "worker/step/weight_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "process/crc32c.h"
#include "process/failpoint.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using test::IsOk;

// A layout without padding, so that packed weights take as much memory as plain ones.
constexpr int64_t kN = 128;
constexpr int64_t kK = 64;
constexpr int64_t kTileBytes = kN * kK * 4;

class WeightCacheTest : public ::testing::Test {
 protected:
  WeightCacheTest() { Open(0); }

  // Begins anew, with a pool that keeps so many bytes in idle buffers.
  void Open(int64_t max_idle_bytes) {
    cache_.reset();
    store_.reset();
    auto store = ShardStore::Open({BufferPool::Create(&budget_, max_idle_bytes), ""});
    EXPECT_THAT(store, IsOk());
    store_ = *std::move(store);
    cache_ = std::make_unique<WeightCache>(&kernel_, &budget_, store_.get());
  }

  static MatmulSpec Spec() {
    return {.m = 8,
            .n = kN,
            .k = kK,
            .lhs_dtype = Dtype::kF32,
            .rhs_dtype = Dtype::kF32,
            .out_dtype = Dtype::kF32,
            .transpose_rhs = true};
  }
  static const Tile& Whole() {
    static const auto* const tile = new Tile(Tile::Whole({kN, kK}));
    return *tile;
  }
  static std::string Bytes() {
    std::string bytes(kTileBytes, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i % 50);
    return bytes;
  }
  void Add(const std::string& array_id, bool commit = true) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto staged, store_->Stage({.array_id = array_id,
                                                                     .dtype = Dtype::kF32,
                                                                     .array_shape = {kN, kK},
                                                                     .tile = Whole(),
                                                                     .array_descriptor = "",
                                                                     .transfer_id = "put"},
                                                                    false));
    const std::string bytes = Bytes();
    ASSERT_THAT(staged->Append(0, bytes, Crc32c(bytes)), IsOk());
    ASSERT_THAT(staged->Finish(Crc32c(bytes)), IsOk());
    if (commit) {
      ASSERT_THAT(store_->Commit({array_id}), IsOk());
    }
  }
  // The plain bytes, as a step gets them.
  OwnedBytes Plain(const std::string& array_id) {
    const StoredTilePtr tile = *store_->FindStaged(array_id, Whole());
    return {tile->bytes(), tile};
  }
  PackedTilePtr FindTransposed(const std::string& array_id, const OwnedBytes& plain) {
    MatmulSpec spec = Spec();
    std::swap(spec.n, spec.k);
    spec.transpose_rhs = false;
    return *cache_->Find(
        {.array_id = array_id, .tile = Whole(), .bytes = plain, .is_only_packed = true}, spec);
  }
  PackedTilePtr Find(const std::string& array_id, const OwnedBytes& plain,
                     bool is_only_packed = true) {
    return *cache_->Find(
        {.array_id = array_id, .tile = Whole(), .bytes = plain, .is_only_packed = is_only_packed},
        Spec());
  }
  std::shared_ptr<const TileForm> FormOf(const std::string& array_id) {
    return (*store_->FindHeld(array_id, Whole()))->form();
  }
  void ExpectBytes(const std::string& array_id) {
    EXPECT_TRUE(Plain(array_id).bytes == absl::MakeConstSpan(Bytes()));
  }

  MatmulKernel kernel_{{.threads = 1}};
  MemoryBudget budget_{4 * kTileBytes};
  std::unique_ptr<ShardStore> store_;
  std::unique_ptr<WeightCache> cache_;
};

TEST_F(WeightCacheTest, APackedWeightTakesTheMemoryOfThePlainOne) {
  Add("a");
  const int64_t plain_bytes = store_->used_bytes();
  const PackedTilePtr packed = Find("a", Plain("a"));
  ASSERT_NE(packed, nullptr);
  EXPECT_EQ(Find("a", Plain("a")), packed) << "packed once";
  EXPECT_EQ(budget_.used_bytes(), plain_bytes + packed->memory_bytes());
  EXPECT_TRUE(cache_->PutInStore());
  EXPECT_EQ(FormOf("a"), packed);
  EXPECT_EQ(budget_.used_bytes(), packed->memory_bytes());
  EXPECT_LE(static_cast<double>(budget_.used_bytes()), 1.1 * kTileBytes);
  ExpectBytes("a");
  EXPECT_EQ(budget_.used_bytes(), packed->memory_bytes());
  EXPECT_FALSE(cache_->PutInStore()) << "there is nothing left to put";
}

// The next step has begun before the last one puts the packed form.
TEST_F(WeightCacheTest, PlainBytesThatAStepHoldsMeanwhileLeaveNoIdleMemory) {
  Open(4 * kTileBytes);
  Add("a");
  OwnedBytes plain = Plain("a");
  const PackedTilePtr packed = Find("a", plain);
  ASSERT_NE(packed, nullptr);
  EXPECT_TRUE(cache_->PutInStore());
  EXPECT_GT(budget_.used_bytes(), packed->memory_bytes());
  plain = {};
  EXPECT_EQ(budget_.used_bytes(), packed->memory_bytes());
}

TEST_F(WeightCacheTest, AReleasedArrayLeavesNothing) {
  Add("a");
  Add("b");
  ASSERT_NE(Find("a", Plain("a")), nullptr);
  EXPECT_TRUE(cache_->PutInStore());
  ASSERT_NE(Find("b", Plain("b")), nullptr);
  cache_->Forget({"a", "b"});
  ASSERT_THAT(store_->Release({"a", "b"}), IsOk());
  EXPECT_EQ(budget_.used_bytes(), 0);
  EXPECT_FALSE(cache_->PutInStore());
}

TEST_F(WeightCacheTest, AWeightThatIsUsedOtherwiseTooStaysPlain) {
  Add("a");
  const int64_t plain_bytes = store_->used_bytes();
  const PackedTilePtr packed = Find("a", Plain("a"), /*is_only_packed=*/false);
  ASSERT_NE(packed, nullptr);
  EXPECT_FALSE(cache_->PutInStore());
  EXPECT_EQ(FormOf("a"), nullptr);
  EXPECT_EQ(Find("a", Plain("a")), packed) << "a step that would take it packed alone";
  EXPECT_FALSE(cache_->PutInStore());
  EXPECT_EQ(budget_.used_bytes(), plain_bytes + packed->memory_bytes());
}

TEST_F(WeightCacheTest, AWeightThatIsUsedOtherwiseLaterIsPlainFromThenOn) {
  Add("a");
  const int64_t plain_bytes = store_->used_bytes();
  const PackedTilePtr packed = Find("a", Plain("a"));
  ASSERT_TRUE(cache_->PutInStore());
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr plain,
                                   cache_->TakePlain("a", Whole(), packed));
    EXPECT_TRUE(plain->bytes() == absl::MakeConstSpan(Bytes()));
  }
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(FormOf("a"), nullptr);
    EXPECT_EQ(Find("a", Plain("a")), packed) << "it is not packed again";
    cache_->ForgetGone();
    EXPECT_FALSE(cache_->PutInStore());
    EXPECT_EQ(budget_.used_bytes(), plain_bytes + packed->memory_bytes());
  }
}

TEST_F(WeightCacheTest, AWeightThatIsTakenPlainWhileItIsPutStaysPacked) {
  Add("a");
  const PackedTilePtr packed = Find("a", Plain("a"));
  ASSERT_NE(packed, nullptr);
  ASSERT_THAT(ArmFailpoints("weights.put=delay"), IsOk());
  std::thread other_step([&] {
    while (FormOf("a") == nullptr) std::this_thread::yield();
    EXPECT_THAT(cache_->TakePlain("a", Whole(), packed), IsOk());
  });
  EXPECT_TRUE(cache_->PutInStore());
  other_step.join();
  EXPECT_THAT(ArmFailpoints(""), IsOk());
  EXPECT_EQ(FormOf("a"), nullptr);
  EXPECT_EQ(Find("a", Plain("a")), packed) << "it is not packed again";
  EXPECT_FALSE(cache_->PutInStore());
}

TEST_F(WeightCacheTest, SeveralPackedFormsStayBesideThePlainOne) {
  Add("a");
  Add("b");  // entries of another array, which is the next one
  ASSERT_NE(Find("a", Plain("a")), nullptr);
  ASSERT_NE(FindTransposed("a", Plain("a")), nullptr);
  EXPECT_FALSE(cache_->PutInStore());
  EXPECT_EQ(FormOf("a"), nullptr);
  cache_->Forget({"a"});
  ASSERT_NE(FindTransposed("b", Plain("b")), nullptr);
  EXPECT_TRUE(cache_->PutInStore());
  EXPECT_NE(FormOf("b"), nullptr);
}

TEST_F(WeightCacheTest, APackedFormForAnotherProductDoesNotTakeThePlaceOfThePlainOneEither) {
  Add("a");
  const PackedTilePtr packed = Find("a", Plain("a"));
  ASSERT_TRUE(cache_->PutInStore());
  ASSERT_THAT(cache_->TakePlain("a", Whole(), packed), IsOk());
  ASSERT_NE(FindTransposed("a", Plain("a")), nullptr);
  EXPECT_FALSE(cache_->PutInStore());
  EXPECT_EQ(FormOf("a"), nullptr);
}

TEST_F(WeightCacheTest, AnUncommittedWeightIsPutLater) {
  Add("a", /*commit=*/false);
  ASSERT_NE(Find("a", Plain("a")), nullptr);
  EXPECT_FALSE(cache_->PutInStore());
  ASSERT_THAT(store_->Commit({"a"}), IsOk());
  EXPECT_TRUE(cache_->PutInStore());
  ExpectBytes("a");
}

TEST_F(WeightCacheTest, AStepThatReadsThePlainBytesDoesNotHoldUpThePackedOnes) {
  Add("a");
  const int64_t plain_bytes = store_->used_bytes();
  OwnedBytes reader = Plain("a");
  const PackedTilePtr packed = Find("a", reader);
  EXPECT_TRUE(cache_->PutInStore());
  EXPECT_EQ(FormOf("a"), packed);
  EXPECT_EQ(budget_.used_bytes(), plain_bytes + packed->memory_bytes());
  reader = {};
  EXPECT_EQ(budget_.used_bytes(), packed->memory_bytes());
}

TEST_F(WeightCacheTest, AStepThatFetchedThePlainBytesTakesWhatIsPackedSince) {
  Add("a");
  const OwnedBytes plain = Plain("a");
  const PackedTilePtr packed = Find("a", plain);
  ASSERT_TRUE(cache_->PutInStore());
  EXPECT_EQ(Find("a", plain), packed);
}

TEST_F(WeightCacheTest, ADamagedWeightStaysAsItIs) {
  Add("a");
  OwnedBytes plain = Plain("a");
  const_cast<char*>(plain.bytes.data())[100] ^= 4;  // as a fault of the memory would
  ASSERT_NE(Find("a", plain), nullptr);
  EXPECT_FALSE(cache_->PutInStore());
  EXPECT_EQ(FormOf("a"), nullptr) << "the scrubber finds it";
  EXPECT_FALSE(cache_->PutInStore());
}

TEST_F(WeightCacheTest, ConvertedWeightsStayBesideThePlainOnes) {
  MatmulKernel converts({.threads = 1, .converts_all = true});
  WeightCache cache(&converts, &budget_, store_.get());
  // As BF16, the tile has twice as many columns. As F32, it takes twice its memory.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto staged, store_->Stage({.array_id = "a",
                                                                   .dtype = Dtype::kBF16,
                                                                   .array_shape = {kN, kK},
                                                                   .tile = Whole(),
                                                                   .array_descriptor = "",
                                                                   .transfer_id = "put"},
                                                                  false));
  const std::string bytes = Bytes().substr(0, kTileBytes / 2);
  ASSERT_THAT(staged->Append(0, bytes, Crc32c(bytes)), IsOk());
  ASSERT_THAT(staged->Finish(Crc32c(bytes)), IsOk());
  ASSERT_THAT(store_->Commit({"a"}), IsOk());
  const int64_t plain_bytes = store_->used_bytes();
  MatmulSpec spec = Spec();
  spec.lhs_dtype = spec.rhs_dtype = Dtype::kBF16;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PackedTilePtr packed,
      cache.Find({.array_id = "a", .tile = Whole(), .bytes = Plain("a"), .is_only_packed = true},
                 spec));
  ASSERT_NE(packed, nullptr);
  EXPECT_FALSE(cache.PutInStore());
  EXPECT_EQ(FormOf("a"), nullptr);
  EXPECT_EQ(budget_.used_bytes(), plain_bytes + packed->memory_bytes());
}

TEST_F(WeightCacheTest, AWeightThatFoundNoRoomIsTriedAgain) {
  Add("a");
  {
    auto others = budget_.Reserve(budget_.limit_bytes() - budget_.used_bytes(), "others");
    ASSERT_THAT(others, IsOk());
    EXPECT_EQ(Find("a", Plain("a")), nullptr);
    EXPECT_FALSE(cache_->PutInStore());
  }
  EXPECT_NE(Find("a", Plain("a")), nullptr);
}

TEST_F(WeightCacheTest, NobodyGivesMemoryUpForAPackedWeight) {
  Add("a");
  auto others = budget_.Reserve(budget_.limit_bytes() - budget_.used_bytes(), "others");
  ASSERT_THAT(others, IsOk());
  int asked = 0;
  budget_.AddReclaim(this, [&](int64_t) {
    ++asked;
    *others = {};
    return true;
  });
  EXPECT_EQ(Find("a", Plain("a")), nullptr);
  EXPECT_EQ(asked, 0);
  EXPECT_THAT(budget_.Reserve(1, "a tile"), IsOk());
  EXPECT_EQ(asked, 1);
  budget_.RemoveReclaim(this);
}

TEST_F(WeightCacheTest, LetsGoOfATileThatNobodyKeeps) {
  Add("a");
  OwnedBytes plain = Plain("a");
  cache_->Forget({"a"});  // the array is dropped while a step still uses it
  ASSERT_THAT(store_->Release({"a"}), IsOk());
  ASSERT_NE(Find("a", plain), nullptr);
  EXPECT_FALSE(cache_->PutInStore()) << "the store no longer has it";
  cache_->ForgetGone();
  EXPECT_GT(budget_.used_bytes(), kTileBytes);
  plain = {};
  cache_->ForgetGone();
  EXPECT_EQ(budget_.used_bytes(), 0);
}

TEST_F(WeightCacheTest, StepsOnManyThreadsPutAWeightOnce) {
  Add("a");
  std::vector<std::thread> steps;
  for (int step = 0; step < 4; ++step) {
    steps.emplace_back([&] {
      const StoredTilePtr held = *store_->FindHeld("a", Whole());
      if (held->form() == nullptr) {
        EXPECT_NE(Find("a", {held->bytes(), held}), nullptr);
      }
      cache_->PutInStore();
    });
  }
  for (std::thread& step : steps) step.join();
  cache_->ForgetGone();
  cache_->PutInStore();
  EXPECT_NE(FormOf("a"), nullptr);
  cache_->ForgetGone();
  EXPECT_LE(static_cast<double>(budget_.used_bytes()), 1.1 * kTileBytes);
  ExpectBytes("a");
}

}  // namespace
}  // namespace shardmesh::worker
