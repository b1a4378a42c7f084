// Products whose rows arrive or leave meanwhile: the bits of the exchange and the product one after
// the other.
#include "worker/step/row_products.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "process/clock.h"
#include "status/str_cat.h"
#include "tensor/buffer.h"
#include "tensor/float_convert.h"
#include "tests/testing/in_process_link.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/collective/collective_data.h"
#include "worker/collective/pairwise.h"
#include "worker/collective/row_gather.h"
#include "worker/step/combiners.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::Fault;
using ::shardmesh::test::FaultyLink;
using ::shardmesh::test::InProcessRanks;
using ::shardmesh::test::IsOk;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Elements whose sums depend on the order of additions.
Bytes RandomElements(Dtype dtype, int64_t count, std::mt19937& random) {
  const Bytes bytes = MakeBytes(count * BitsPerElement(dtype) / 8);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < count; ++i) {
    const float value = normal(random);
    const uint16_t rounded = F32ToBF16(value);
    if (dtype == Dtype::kF32) std::memcpy(bytes->data() + i * 4, &value, 4);
    if (dtype == Dtype::kBF16) std::memcpy(bytes->data() + i * 2, &rounded, 2);
  }
  return bytes;
}

int64_t Sum(const std::vector<int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

// One random product, and the rows of each place.
struct Case {
  int64_t ranks = 2;
  std::vector<int64_t> rows = {};
  MatmulSpec whole = {};
  bool is_packed = false;
  int64_t piece_bytes = 1 << 20;

  std::string ToString() const {
    return StrCat(ranks, " ranks, rows ", StrJoin(rows, "+"), ", n=", whole.n, ", k=", whole.k,
                  ", ", DtypeName(whole.lhs_dtype), " to ", DtypeName(whole.out_dtype),
                  is_packed ? ", packed" : "", ", in pieces of ", piece_bytes);
  }
};

Case RandomCase(std::mt19937& random, bool is_scatter) {
  const auto extent = [&](int64_t most) { return static_cast<int64_t>(random() % (most + 1)); };
  Case result = {.ranks = 2 + extent(2)};
  for (int64_t place = 0; place < result.ranks; ++place) {
    const bool is_empty = random() % 5 == 0;
    result.rows.push_back(is_empty ? 0 : 1 + extent(random() % 4 == 0 ? 600 : 20));
  }
  const bool is_bf16 = random() % 2 == 0;
  const Dtype dtype = is_bf16 ? Dtype::kBF16 : Dtype::kF32;
  result.whole = {
      .m = Sum(result.rows),
      .n = 1 + extent(70),
      .k = random() % 8 == 0 ? 0 : 1 + extent(200),
      .lhs_dtype = dtype,
      .rhs_dtype = dtype,
      .bias_dtype = dtype,
      .out_dtype = is_scatter ? Dtype::kF32 : dtype,
      .transpose_rhs = random() % 2 == 0,
      .has_bias = !is_scatter && random() % 2 == 0,
      .scale = random() % 3 == 0 ? 0.5F : 1.0F,
      .activation = is_scatter || random() % 2 == 0 ? Activation::kNone : Activation::kGelu};
  result.is_packed = result.whole.k > 0 && random() % 2 == 0;
  constexpr int64_t kPieceBytes[] = {1 << 20, 1000, 37};
  result.piece_bytes = kPieceBytes[random() % 3];
  return result;
}

// A product whose rows are gathered, or scattered, in several groups.
Case LongCase(bool is_scatter) {
  return {.ranks = 3,
          .rows = {600, 300, 0},
          .whole = {.m = 900, .n = is_scatter ? 3000 : 20, .k = is_scatter ? 7 : 5000},
          .piece_bytes = 100'000};
}

// A kernel with what it needs, for all ranks.
class RowProductsTest : public testing::Test {
 protected:
  static constexpr int64_t kBudgetBytes = int64_t{64} << 20;

  RowProducts ProductsOf(const Case& the_case, const Bytes& rhs, const Bytes& bias,
                         std::function<absl::Status()> abort_check = nullptr) {
    if (!abort_check) abort_check = [] { return absl::OkStatus(); };
    return RowProducts({.kernel = &kernel_,
                        .turns = &turns_,
                        .weights = nullptr,
                        .clock = &clock_,
                        .abort_check = std::move(abort_check)},
                       {.whole = the_case.whole,
                        .rhs = Owned(rhs),
                        .bias = *bias,
                        .packed = the_case.is_packed ? PackedOf(the_case, rhs) : nullptr,
                        .weight = std::nullopt});
  }

  PackedTilePtr PackedOf(const Case& the_case, const Bytes& rhs) {
    auto packed = *kernel_.Pack(the_case.whole, *rhs);
    const int64_t size_bytes = packed->size_bytes();
    return std::make_shared<const PackedTile>(std::move(packed),
                                              *budget_.Reserve(size_bytes, "packed weights"));
  }

  // The product of all rows at once.
  Bytes WholeProduct(const Case& the_case, const Bytes& lhs, const Bytes& rhs, const Bytes& bias) {
    const Bytes out = MakeBytes(the_case.whole.m * the_case.whole.n *
                                BitsPerElement(the_case.whole.out_dtype) / 8);
    std::shared_ptr<const PackedWeights> packed;
    if (the_case.is_packed) packed = *kernel_.Pack(the_case.whole, *rhs);
    EXPECT_THAT(kernel_.Run(the_case.whole, {.lhs = *lhs,
                                             .rhs = *rhs,
                                             .bias = *bias,
                                             .out = absl::MakeSpan(*out),
                                             .packed = packed.get()}),
                IsOk());
    return out;
  }

  bool KeepsBits() const {
    return kernel_.KeepsBitsOfRows(Dtype::kF32) && kernel_.KeepsBitsOfRows(Dtype::kBF16);
  }

  RealClock clock_;
  MatmulKernel kernel_{{.threads = 2}};
  KernelTurns turns_;
  MemoryBudget budget_{kBudgetBytes};
  std::mt19937 random_{11};
};

Bytes PartOfRows(const Bytes& whole, const std::vector<int64_t>& rows, size_t place) {
  const int64_t all = std::max<int64_t>(Sum(rows), 1);
  const int64_t row_bytes = static_cast<int64_t>(whole->size()) / all;
  const auto begin =
      whole->begin() + row_bytes * std::accumulate(rows.begin(),
                                                   rows.begin() + static_cast<int64_t>(place),
                                                   int64_t{0});
  return std::make_shared<std::vector<char>>(begin, begin + row_bytes * rows[place]);
}

TEST_F(RowProductsTest, RowsThatAreGatheredHaveTheBitsOfOneProduct) {
  if (!KeepsBits()) GTEST_SKIP() << "this CPU's kernels give other bits to other numbers of rows";
  for (int round = 0; round < 30; ++round) {
    const Case c = round == 0 ? LongCase(false) : RandomCase(random_, /*is_scatter=*/false);
    SCOPED_TRACE(c.ToString());
    const Bytes lhs = RandomElements(c.whole.lhs_dtype, c.whole.m * c.whole.k, random_);
    const Bytes rhs = RandomElements(c.whole.rhs_dtype, c.whole.k * c.whole.n, random_);
    const Bytes bias =
        RandomElements(c.whole.bias_dtype, c.whole.has_bias ? c.whole.n : 0, random_);
    const Bytes expected = WholeProduct(c, lhs, rhs, bias);
    InProcessRanks world(c.ranks, c.piece_bytes);
    ASSERT_THAT(world.OpenStep(1), IsOk());
    std::vector<Bytes> results(static_cast<size_t>(c.ranks));
    const auto outcomes = world.RunOnAll([&](DeviceId rank) {
      const auto index = static_cast<size_t>(rank);
      const DeviceGroup group = GroupOf(c.ranks, rank);
      RowProducts products = ProductsOf(c, rhs, bias);
      results[index] = MakeBytes(static_cast<int64_t>(expected->size()));
      const absl::Status done =
          GatherAndMultiply(CallOf(world.link(rank), group), products, c.rows,
                            Owned(PartOfRows(lhs, c.rows, index)), absl::MakeSpan(*results[index]));
      EXPECT_EQ(products.flops(), done.ok() ? 2 * c.whole.m * c.whole.n * c.whole.k : -1);
      return done;
    });
    EXPECT_THAT(outcomes, Each(IsOk()));
    for (const Bytes& result : results) ASSERT_TRUE(*result == *expected);
  }
}

TEST_F(RowProductsTest, RowsThatAreScatteredHaveTheBitsOfOneProduct) {
  if (!KeepsBits()) GTEST_SKIP() << "this CPU's kernels give other bits to other numbers of rows";
  for (int round = 0; round < 30; ++round) {
    const Case c = round == 0 ? LongCase(true) : RandomCase(random_, /*is_scatter=*/true);
    SCOPED_TRACE(c.ToString());
    const Dtype result_dtype = c.whole.lhs_dtype;
    std::vector<Bytes> lhs, rhs, products_of;
    const Bytes no_bias = MakeBytes(0);
    for (int64_t rank = 0; rank < c.ranks; ++rank) {
      lhs.push_back(RandomElements(c.whole.lhs_dtype, c.whole.m * c.whole.k, random_));
      rhs.push_back(RandomElements(c.whole.rhs_dtype, c.whole.k * c.whole.n, random_));
      products_of.push_back(WholeProduct(c, lhs.back(), rhs.back(), no_bias));
    }
    const Combiner combiner = *CombinerFor(Reduction::kSum, Dtype::kF32, result_dtype, c.ranks);
    std::vector<Bytes> plain(static_cast<size_t>(c.ranks));
    std::vector<Bytes> fused(static_cast<size_t>(c.ranks));
    for (const bool is_fused : {false, true}) {
      InProcessRanks world(c.ranks, c.piece_bytes);
      ASSERT_THAT(world.OpenStep(1), IsOk());
      const auto outcomes = world.RunOnAll([&](DeviceId rank) {
        const auto index = static_cast<size_t>(rank);
        const DeviceGroup group = GroupOf(c.ranks, rank);
        const CollectiveCall call = CallOf(world.link(rank), group);
        Bytes& out = (is_fused ? fused : plain)[index];
        out = MakeBytes(c.rows[index] * c.whole.n * BitsPerElement(result_dtype) / 8);
        if (is_fused) {
          RowProducts products = ProductsOf(c, rhs[index], no_bias);
          return MultiplyAndScatter(call, combiner, products, c.rows, *lhs[index],
                                    absl::MakeSpan(*out));
        }
        std::vector<OwnedBytes> parts;
        for (size_t place = 0; place < c.rows.size(); ++place) {
          parts.push_back(Owned(PartOfRows(products_of[index], c.rows, place)));
        }
        return PairwiseReduceScatter(call, combiner, parts, absl::MakeSpan(*out));
      });
      EXPECT_THAT(outcomes, Each(IsOk()));
    }
    for (size_t rank = 0; rank < fused.size(); ++rank) {
      ASSERT_TRUE(*fused[rank] == *plain[rank]) << "rank " << rank;
    }
  }
}

// The kernel takes no such sizes, and a row has more bytes than 63 bits can count.
TEST_F(RowProductsTest, NoRowsMayBeOfAnySize) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  const Case c = {.ranks = 2, .rows = {0, 0}, .whole = {.m = 0, .n = most, .k = most}};
  const Bytes nothing = MakeBytes(0);
  const Combiner combiner = *CombinerFor(Reduction::kSum, Dtype::kF32, Dtype::kF32, 2);
  InProcessRanks world(2);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  const auto outcomes = world.RunOnAll([&](DeviceId rank) -> absl::Status {
    const DeviceGroup group = GroupOf(2, rank);
    const CollectiveCall call = CallOf(world.link(rank), group);
    RowProducts products = ProductsOf(c, nothing, nothing);
    SHARDMESH_RETURN_IF_ERROR(
        GatherAndMultiply(call, products, c.rows, Owned(nothing), absl::MakeSpan(*nothing)));
    return MultiplyAndScatter(call, combiner, products, c.rows, *nothing, absl::MakeSpan(*nothing));
  });
  EXPECT_THAT(outcomes, Each(IsOk()));
}

TEST_F(RowProductsTest, ASilentPeerIsNamedAfterTheRowsOfTheOthersWereMultiplied) {
  const Case c = {.ranks = 3, .rows = {4, 5, 6}, .whole = {.m = 15, .n = 8, .k = 16}};
  const Bytes lhs = RandomElements(Dtype::kF32, 15 * 16, random_);
  const Bytes rhs = RandomElements(Dtype::kF32, 16 * 8, random_);
  const Bytes no_bias = MakeBytes(0);
  InProcessRanks world(3);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  FaultyLink faulty(world.link(1), [](DeviceId peer, const Tag&) {
    return peer == 0 ? Fault::kDrop : Fault::kNone;
  });
  const auto outcomes = world.RunOnAll([&](DeviceId rank) {
    const DeviceGroup group = GroupOf(3, rank);
    CollectiveCall call = CallOf(rank == 1 ? &faulty : world.link(rank), group);
    if (rank == 0) call.deadline = absl::Now() + absl::Milliseconds(200);
    std::vector<DeviceId> heard;
    call.received = [&](DeviceId peer) { heard.push_back(peer); };
    RowProducts products = ProductsOf(c, rhs, no_bias);
    const Bytes out = MakeBytes(15 * 8 * 4);
    const absl::Status done = GatherAndMultiply(
        call, products, c.rows, Owned(PartOfRows(lhs, c.rows, static_cast<size_t>(rank))),
        absl::MakeSpan(*out));
    if (rank == 0) {
      EXPECT_LT(products.flops(), 2 * 15 * 8 * 16) << "the rows of rank 1 are missing";
    } else {
      EXPECT_EQ(heard.size(), 2U);
    }
    return done;
  });
  EXPECT_EQ(outcomes[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(outcomes[0].message()), HasSubstr("rank 1"));
  EXPECT_THAT(outcomes[1], IsOk());
  EXPECT_THAT(outcomes[2], IsOk());
}

TEST_F(RowProductsTest, AnAbortEndsItBetweenTwoPlaces) {
  const Case c = {.ranks = 2, .rows = {4, 4}, .whole = {.m = 8, .n = 8, .k = 16}};
  const Bytes lhs = RandomElements(Dtype::kF32, 8 * 16, random_);
  const Bytes rhs = RandomElements(Dtype::kF32, 16 * 8, random_);
  const Bytes no_bias = MakeBytes(0);
  const Combiner combiner = *CombinerFor(Reduction::kSum, Dtype::kF32, Dtype::kF32, 2);
  InProcessRanks world(2);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  const DeviceGroup group = GroupOf(2, 0);
  // Another kernel has the turn, so that the rows wait, and the abort check runs.
  KernelTurns::Turn other(&turns_, [] { return absl::OkStatus(); });
  ASSERT_THAT(other.Take(), IsOk());
  int checks = 0;
  RowProducts products = ProductsOf(c, rhs, no_bias, [&] {
    ++checks;
    return absl::AbortedError("the step was aborted");
  });
  const Bytes out = MakeBytes(4 * 8 * 4);
  const absl::Status done = MultiplyAndScatter(CallOf(world.link(0), group), combiner, products,
                                               c.rows, *lhs, absl::MakeSpan(*out));
  EXPECT_EQ(done.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(checks, 1);
  other.GiveBack();
  KernelTurns::Turn next(&turns_, [] { return absl::OkStatus(); });
  EXPECT_THAT(next.Take(), IsOk()) << "the aborted product has given its turn back";
}

TEST_F(RowProductsTest, NoTurnIsHeldWhileItWaitsForAPeer) {
  const Case c = {.ranks = 2, .rows = {4, 4}, .whole = {.m = 8, .n = 8, .k = 16}};
  const Bytes lhs = RandomElements(Dtype::kF32, 8 * 16, random_);
  const Bytes rhs = RandomElements(Dtype::kF32, 16 * 8, random_);
  const Bytes no_bias = MakeBytes(0);
  InProcessRanks world(2);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  FaultyLink late(world.link(1), [](DeviceId, const Tag&) { return Fault::kDelay; });
  const auto outcomes = world.RunOnAll([&](DeviceId rank) -> absl::Status {
    const DeviceGroup group = GroupOf(2, rank);
    const CollectiveCall call = CallOf(rank == 1 ? &late : world.link(rank), group);
    if (rank == 1) {
      // Takes the turn while rank 0 waits for the rows, which leave only after that.
      KernelTurns::Turn turn(&turns_, [] { return absl::OkStatus(); });
      SHARDMESH_RETURN_IF_ERROR(turn.Take());
      turn.GiveBack();
    }
    RowProducts products = ProductsOf(c, rhs, no_bias);
    const Bytes out = MakeBytes(8 * 8 * 4);
    std::thread releaser;
    if (rank == 1) {
      releaser = std::thread(
          [&] { EXPECT_THAT(late.Release(1, absl::Now() + absl::Seconds(60)), IsOk()); });
    }
    const absl::Status done = GatherAndMultiply(
        call, products, c.rows, Owned(PartOfRows(lhs, c.rows, static_cast<size_t>(rank))),
        absl::MakeSpan(*out));
    if (releaser.joinable()) releaser.join();
    return done;
  });
  EXPECT_THAT(outcomes, Each(IsOk()));
}

// --- GatherRows

TEST(RowGatherTest, PassesOnWholeRowsInOrderAndInPlaceWhereTheyArriveInOnePiece) {
  for (const int64_t piece_bytes : {int64_t{1} << 20, int64_t{7}}) {
    SCOPED_TRACE(StrCat("pieces of ", piece_bytes));
    constexpr int64_t kRowBytes = 12;
    const std::vector<int64_t> rows = {5, 0, 11};
    InProcessRanks world(3, piece_bytes);
    ASSERT_THAT(world.OpenStep(1), IsOk());
    std::vector<Bytes> parts;
    for (size_t place = 0; place < rows.size(); ++place) {
      parts.push_back(OperandOf(Dtype::kU8, rows[place] * kRowBytes, static_cast<int>(place)));
    }
    const auto outcomes = world.RunOnAll([&](DeviceId rank) {
      const DeviceGroup group = GroupOf(3, rank);
      CollectiveCall call = CallOf(world.link(rank), group);
      CopiedBytes copied;
      call.copied = &copied;
      std::vector<std::vector<char>> got(3);
      bool is_in_place = true;
      const absl::Status done =
          GatherRows(call,
                     {.mine = Owned(parts[static_cast<size_t>(rank)]),
                      .rows = rows,
                      .row_bytes = kRowBytes,
                      .rows_at_once = 4,
                      .alignment_bytes = 4},
                     [&](int64_t place, int64_t first_row, absl::Span<const char> bytes) {
                       std::vector<char>& to = got[static_cast<size_t>(place)];
                       EXPECT_EQ(static_cast<int64_t>(to.size()), first_row * kRowBytes);
                       EXPECT_EQ(static_cast<int64_t>(bytes.size()) % kRowBytes, 0);
                       EXPECT_FALSE(bytes.empty());
                       const Bytes& part = parts[static_cast<size_t>(place)];
                       is_in_place &= bytes.data() == part->data() + first_row * kRowBytes;
                       to.insert(to.end(), bytes.begin(), bytes.end());
                       return absl::OkStatus();
                     });
      for (size_t place = 0; place < rows.size(); ++place) {
        EXPECT_TRUE(got[place] == *parts[place]) << "place " << place;
      }
      const int64_t theirs = (16 - rows[static_cast<size_t>(rank)]) * kRowBytes;
      EXPECT_EQ(is_in_place, piece_bytes > 7);
      EXPECT_EQ(copied.received, piece_bytes > 7 ? 0 : theirs);
      return done;
    });
    EXPECT_THAT(outcomes, Each(IsOk()));
  }
}

TEST(RowGatherTest, EndsWithTheFirstErrorAndRefusesSizesThatDoNotFit) {
  InProcessRanks world(2);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  const DeviceGroup group = GroupOf(2, 0);
  const Bytes mine = MakeBytes(8);
  const std::vector<int64_t> rows = {2, 1};
  int calls = 0;
  const auto fail = [&](int64_t, int64_t, absl::Span<const char>) {
    ++calls;
    return absl::AbortedError("no more");
  };
  EXPECT_EQ(GatherRows(CallOf(world.link(0), group),
                       {.mine = Owned(mine), .rows = rows, .row_bytes = 4}, fail)
                .code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(GatherRows(CallOf(world.link(0), group),
                       {.mine = Owned(mine), .rows = rows, .row_bytes = 8}, fail)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace shardmesh::worker
