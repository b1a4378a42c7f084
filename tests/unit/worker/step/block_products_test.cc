// Products whose parts arrive or leave meanwhile: the bits of the exchange and the product one
// after the other.
#include "worker/step/block_products.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "process/clock.h"
#include "program/product_layout.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "status/str_cat.h"
#include "tensor/buffer.h"
#include "tensor/copy.h"
#include "tensor/float_convert.h"
#include "tensor/view.h"
#include "tests/testing/in_process_link.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/collective/collective_data.h"
#include "worker/collective/pairwise.h"
#include "worker/collective/row_gather.h"
#include "worker/step/combiners.h"
#include "worker/step/tile_products.h"

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

int64_t Sum(const std::vector<int64_t>& extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{0});
}

// One random product, and the parts of the places in one of its tensors.
struct Case {
  int64_t ranks = 2;
  TileProduct tiles = {};
  ProductSide side = ProductSide::kLhs;
  int64_t dimension = 0;
  std::vector<int64_t> extents = {};
  MatmulSpec whole = {};  // m, n and k are those of LoopsOf
  bool is_packed = false;
  int64_t piece_bytes = 1 << 20;

  SplitProduct Split() const { return SplitOf(tiles, side, dimension, extents); }
  ProductLoops Loops() const { return LoopsOf(tiles); }

  std::string ToString() const {
    return StrCat(ranks, " ranks, ", ShapeToString(tiles.lhs), tiles.transpose_lhs ? "^T" : "",
                  " * ", ShapeToString(tiles.rhs), tiles.transpose_rhs ? "^T" : "", " = ",
                  ShapeToString(tiles.out), ", side ", static_cast<int>(side), ", dimension ",
                  dimension, " in ", StrJoin(extents, "+"), ", ", DtypeName(whole.lhs_dtype),
                  " to ", DtypeName(whole.out_dtype), is_packed ? ", packed" : "",
                  ", in pieces of ", piece_bytes);
  }
};

// A product of rows [rows, k] by a matrix [k, n], with parts of these rows.
Case CaseOfRows(std::vector<int64_t> rows, int64_t n, int64_t k,
                ProductSide side = ProductSide::kLhs, int64_t piece_bytes = 1 << 20) {
  const int64_t m = Sum(rows);
  return {.ranks = std::ssize(rows),
          .tiles = {.lhs = {m, k}, .rhs = {k, n}, .out = {m, n}},
          .side = side,
          .extents = std::move(rows),
          .whole = {.m = m, .n = n, .k = k},
          .piece_bytes = piece_bytes};
}

// Products by packed weights whose sums are so long that oneDNN adds them in another order than the
// loops for few rows: of few rows, of more in parts of few, and of several matrices of few rows.
std::vector<Case> LongSumsByPackedWeights(ProductSide side) {
  constexpr int64_t kLong = 1500;
  std::vector<Case> cases = {CaseOfRows({5, 4}, 40, kLong, side),
                             CaseOfRows({10, 20, 3}, 40, kLong, side)};
  Case& batches = cases.emplace_back(CaseOfRows({5, 4}, 40, kLong, side));
  batches.tiles.lhs = {3, kLong, 9};
  batches.tiles.out = {3, 9, 40};
  batches.tiles.transpose_lhs = batches.whole.transpose_lhs = true;
  batches.dimension = side == ProductSide::kLhs ? 2 : 1;
  for (Case& c : cases) c.is_packed = true;
  return cases;
}

Case RandomCase(std::mt19937& random, bool is_scatter) {
  const auto upto = [&](int64_t most) { return static_cast<int64_t>(random()) % (most + 1); };
  Case c = {.ranks = 2 + upto(2)};
  for (int64_t place = 0; place < c.ranks; ++place) {
    c.extents.push_back(random() % 5 == 0 ? 0 : 1 + upto(9));
  }
  const bool is_long = random() % 4 == 0;
  if (is_long) c.extents[0] += 300;
  const int64_t divided = Sum(c.extents);
  TileProduct& tiles = c.tiles;
  tiles.transpose_lhs = random() % 4 == 0;
  tiles.transpose_rhs = random() % 2 == 0;
  int64_t m = 1 + upto(20);
  int64_t n = random() % 6 == 0 ? 1 : 1 + upto(70);
  const int64_t k = random() % 8 == 0 ? 0 : 1 + upto(150);
  const auto batches = static_cast<size_t>(upto(is_long ? 1 : 2));
  const bool is_matrix = random() % 2 == 0;  // the right operand
  Shape lhs_batch, rhs_batch;
  for (size_t dim = 0; dim < batches; ++dim) {
    const int64_t extent = 1 + upto(3);
    lhs_batch.push_back(random() % 4 == 0 ? 1 : extent);
    rhs_batch.push_back(random() % 4 == 0 ? 1 : extent);
  }
  if (is_matrix) rhs_batch.clear();
  // The dimension that is divided: rows, columns, or a batch dimension of the tensor.
  c.side = is_scatter          ? ProductSide::kOut
           : random() % 2 == 0 ? ProductSide::kLhs
                               : ProductSide::kRhs;
  const bool may_be_batch = batches > 0 && (c.side != ProductSide::kRhs || !is_matrix);
  const bool is_batch = may_be_batch && !is_long && random() % 2 == 0;
  const bool is_rows =
      !is_batch && (c.side == ProductSide::kLhs || (is_scatter && random() % 2 == 0));
  const auto batch_dim = static_cast<size_t>(random() % std::max<size_t>(batches, 1));
  if (is_batch) {
    Shape& own = c.side == ProductSide::kRhs ? rhs_batch : lhs_batch;
    Shape& other = c.side == ProductSide::kRhs ? lhs_batch : rhs_batch;
    own[batch_dim] = divided;
    if (!other.empty() && other[batch_dim] != 1) other[batch_dim] = divided;
    c.dimension = static_cast<int64_t>(batch_dim);
  } else if (is_rows) {
    m = divided;
  } else {
    n = divided;
  }
  tiles.lhs = lhs_batch;
  tiles.rhs = rhs_batch;
  tiles.lhs.insert(tiles.lhs.end(), {tiles.transpose_lhs ? k : m, tiles.transpose_lhs ? m : k});
  tiles.rhs.insert(tiles.rhs.end(), {tiles.transpose_rhs ? n : k, tiles.transpose_rhs ? k : n});
  tiles.out = lhs_batch;
  for (size_t dim = 0; dim < rhs_batch.size(); ++dim) {
    if (tiles.out[dim] == 1) tiles.out[dim] = rhs_batch[dim];
  }
  tiles.out.insert(tiles.out.end(), {m, n});
  const auto batch_rank = static_cast<int64_t>(batches);
  if (!is_batch && c.side == ProductSide::kLhs) {
    c.dimension = batch_rank + (tiles.transpose_lhs ? 1 : 0);
  } else if (!is_batch && c.side == ProductSide::kRhs) {
    c.dimension = std::ssize(rhs_batch) + (tiles.transpose_rhs ? 0 : 1);
  } else if (!is_batch) {
    c.dimension = batch_rank + (is_rows ? 0 : 1);
  }
  const Dtype dtype = random() % 2 == 0 ? Dtype::kBF16 : Dtype::kF32;
  const ProductLoops loops = c.Loops();
  c.whole = {.m = loops.m,
             .n = loops.n,
             .k = loops.k,
             .lhs_dtype = dtype,
             .rhs_dtype = dtype,
             .bias_dtype = dtype,
             .out_dtype = is_scatter ? Dtype::kF32 : dtype,
             .transpose_lhs = tiles.transpose_lhs,
             .transpose_rhs = tiles.transpose_rhs,
             .has_bias = !is_scatter && random() % 2 == 0,
             .scale = random() % 3 == 0 ? 0.5F : 1.0F,
             .activation = is_scatter || random() % 2 == 0 ? Activation::kNone : Activation::kGelu};
  c.is_packed =
      k > 0 && n > 0 && loops.is_one_rhs && c.side != ProductSide::kRhs && random() % 2 == 0;
  constexpr int64_t kPieceBytes[] = {1 << 20, 1000, 37};
  c.piece_bytes = kPieceBytes[random() % 3];
  return c;
}

int64_t ElementsOf(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// Returns the part of a place in the tensor that is divided.
Bytes PartOf(const Case& c, const Bytes& whole, const Shape& shape, Dtype dtype, size_t place) {
  Tile tile = Tile::Whole(shape);
  const int64_t first = std::accumulate(
      c.extents.begin(), c.extents.begin() + static_cast<int64_t>(place), int64_t{0});
  tile.ranges[static_cast<size_t>(c.dimension)] = {first, first + c.extents[place]};
  const Bytes part = MakeBytes(tile.element_count() * BitsPerElement(dtype) / 8);
  EXPECT_THAT(
      CopyTileBytes(*TensorView::Create(dtype, shape, *whole), tile, 0, absl::MakeSpan(*part)),
      IsOk());
  return part;
}

// The tensors of a product on one rank.
struct Tensors {
  Bytes lhs;
  Bytes rhs;
  Bytes bias;
};

// A kernel with what it needs, for all ranks.
class BlockProductsTest : public testing::Test {
 protected:
  static constexpr int64_t kBudgetBytes = int64_t{64} << 20;

  Tensors RandomTensors(const Case& c) {
    return {.lhs = RandomElements(c.whole.lhs_dtype, ElementsOf(c.tiles.lhs), random_),
            .rhs = RandomElements(c.whole.rhs_dtype, ElementsOf(c.tiles.rhs), random_),
            .bias = RandomElements(c.whole.bias_dtype, c.whole.has_bias ? c.whole.n : 0, random_)};
  }

  // The operand that is gathered is left out.
  BlockProducts ProductsOf(const Case& c, const Tensors& tensors,
                           std::function<absl::Status()> abort_check = nullptr) {
    if (!abort_check) abort_check = [] { return absl::OkStatus(); };
    PackedTilePtr packed;
    if (c.is_packed) packed = PackedOf(c, tensors.rhs);
    const bool has_plain_rhs = c.side != ProductSide::kRhs && packed == nullptr;
    return BlockProducts(
        {.kernel = &kernel_,
         .turns = &turns_,
         .weights = nullptr,
         .clock = &clock_,
         .abort_check = std::move(abort_check)},
        {.whole = c.whole,
         .lhs = c.side == ProductSide::kLhs ? absl::Span<const char>() : *tensors.lhs,
         .rhs = has_plain_rhs ? Owned(tensors.rhs) : OwnedBytes(),
         .is_one_rhs = c.Loops().is_one_rhs,
         .bias = *tensors.bias,
         .packed = packed,
         .weight = std::nullopt});
  }

  PackedTilePtr PackedOf(const Case& c, const Bytes& rhs) {
    auto packed = *kernel_.Pack(c.whole, *rhs);
    const int64_t size_bytes = packed->size_bytes();
    return std::make_shared<const PackedTile>(std::move(packed),
                                              *budget_.Reserve(size_bytes, "packed weights"));
  }

  // The product of the whole tile, as a LocalMatmul computes it.
  Bytes WholeProduct(const Case& c, const Tensors& tensors) {
    const int64_t out_bytes = BitsPerElement(c.whole.out_dtype) / 8;
    const int64_t in_bytes = BitsPerElement(c.whole.lhs_dtype) / 8;
    const Bytes out = MakeBytes(ElementsOf(c.tiles.out) * out_bytes);
    const ProductLoops loops = c.Loops();
    std::shared_ptr<const PackedWeights> packed;
    if (c.is_packed) packed = *kernel_.Pack(c.whole, *tensors.rhs);
    const auto matrix = [](auto bytes, int64_t number, int64_t size_bytes) {
      return bytes.subspan(static_cast<size_t>(number * size_bytes),
                           static_cast<size_t>(size_bytes));
    };
    EXPECT_THAT(ForEachProduct(loops,
                               [&](int64_t l, int64_t r, int64_t o) {
                                 return kernel_.Run(
                                     c.whole, {.lhs = matrix(absl::MakeConstSpan(*tensors.lhs), l,
                                                             loops.m * loops.k * in_bytes),
                                               .rhs = matrix(absl::MakeConstSpan(*tensors.rhs), r,
                                                             loops.k * loops.n * in_bytes),
                                               .bias = *tensors.bias,
                                               .out = matrix(absl::MakeSpan(*out), o,
                                                             loops.m * loops.n * out_bytes),
                                               .packed = packed.get()});
                               }),
                IsOk());
    return out;
  }

  // Returns this rank's part of the operand that is gathered.
  static Bytes MineOf(const Case& c, const Tensors& tensors, DeviceId rank) {
    const bool is_lhs = c.side == ProductSide::kLhs;
    return PartOf(c, is_lhs ? tensors.lhs : tensors.rhs, is_lhs ? c.tiles.lhs : c.tiles.rhs,
                  c.whole.lhs_dtype, static_cast<size_t>(rank));
  }

  bool KeepsBits() const {
    return kernel_.KeepsBitsOfParts(Dtype::kF32) && kernel_.KeepsBitsOfParts(Dtype::kBF16);
  }

  void ExpectGatheredAsWhole(const Case& c);
  void ExpectScatteredAsWhole(const Case& c);

  RealClock clock_;
  MatmulKernel kernel_{{.threads = 2}};
  KernelTurns turns_;
  MemoryBudget budget_{kBudgetBytes};
  std::mt19937 random_{11};
};

void BlockProductsTest::ExpectGatheredAsWhole(const Case& c) {
  SCOPED_TRACE(c.ToString());
  const Tensors tensors = RandomTensors(c);
  const Bytes expected = WholeProduct(c, tensors);
  const SplitProduct split = c.Split();
  InProcessRanks world(c.ranks, c.piece_bytes);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  std::vector<Bytes> results(static_cast<size_t>(c.ranks));
  const auto outcomes = world.RunOnAll([&](DeviceId rank) {
    const DeviceGroup group = GroupOf(c.ranks, rank);
    BlockProducts products = ProductsOf(c, tensors);
    Bytes& result = results[static_cast<size_t>(rank)];
    result = MakeBytes(static_cast<int64_t>(expected->size()));
    const absl::Status done =
        GatherAndMultiply(CallOf(world.link(rank), group), products, split,
                          Owned(MineOf(c, tensors, rank)), absl::MakeSpan(*result));
    EXPECT_EQ(products.flops(), 2 * ElementsOf(c.tiles.out) * c.whole.k);
    return done;
  });
  EXPECT_THAT(outcomes, Each(IsOk()));
  for (const Bytes& result : results) ASSERT_TRUE(*result == *expected);
}

void BlockProductsTest::ExpectScatteredAsWhole(const Case& c) {
  SCOPED_TRACE(c.ToString());
  const Dtype result_dtype = c.whole.lhs_dtype;
  std::vector<Tensors> tensors;
  std::vector<Bytes> products_of;
  for (int64_t rank = 0; rank < c.ranks; ++rank) {
    tensors.push_back(RandomTensors(c));
    products_of.push_back(WholeProduct(c, tensors.back()));
  }
  const SplitProduct split = c.Split();
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
      std::vector<OwnedBytes> parts;
      for (size_t place = 0; place < c.extents.size(); ++place) {
        parts.push_back(Owned(PartOf(c, products_of[index], c.tiles.out, Dtype::kF32, place)));
      }
      Bytes& out = (is_fused ? fused : plain)[index];
      out = MakeBytes(SizeOf(parts[index]) / 4 * BitsPerElement(result_dtype) / 8);
      if (is_fused) {
        BlockProducts products = ProductsOf(c, tensors[index]);
        return MultiplyAndScatter(call, combiner, products, split, absl::MakeSpan(*out));
      }
      return PairwiseReduceScatter(call, combiner, parts, absl::MakeSpan(*out));
    });
    EXPECT_THAT(outcomes, Each(IsOk()));
  }
  for (size_t rank = 0; rank < fused.size(); ++rank) {
    ASSERT_TRUE(*fused[rank] == *plain[rank]) << "rank " << rank;
  }
}

TEST_F(BlockProductsTest, PartsThatAreGatheredHaveTheBitsOfOneProduct) {
  if (!KeepsBits()) GTEST_SKIP() << "this CPU's kernels give other bits to other sizes";
  // Rows that are gathered in several groups.
  ExpectGatheredAsWhole(CaseOfRows({600, 300, 0}, 20, 5000, ProductSide::kLhs, 100'000));
  // One column, as two matrices that arrive in pieces, and many batches.
  for (Case c : {Case{.ranks = 2,
                .tiles = {.lhs = {700, 90}, .rhs = {90, 1}, .out = {700, 1}},
                .side = ProductSide::kRhs,
                .dimension = 1,
                .extents = {0, 1},
                .whole = {.m = 700, .n = 1, .k = 90}},
                 Case{.ranks = 2,
                 .tiles = {.lhs = {60, 2, 3}, .rhs = {60, 3, 2}, .out = {60, 2, 2}},
                 .side = ProductSide::kRhs,
                 .dimension = 0,
                 .extents = {13, 47},
                 .whole = {.m = 2, .n = 2, .k = 3},
                 .piece_bytes = 100}}) {
    ExpectGatheredAsWhole(c);
  }
  for (Case c : LongSumsByPackedWeights(ProductSide::kLhs)) ExpectGatheredAsWhole(c);
  for (int round = 0; round < 25; ++round) {
    ExpectGatheredAsWhole(RandomCase(random_, /*is_scatter=*/false));
  }
}

TEST_F(BlockProductsTest, PartsThatAreScatteredHaveTheBitsOfOneProduct) {
  if (!KeepsBits()) GTEST_SKIP() << "this CPU's kernels give other bits to other sizes";
  ExpectScatteredAsWhole(CaseOfRows({600, 300, 0}, 3000, 7, ProductSide::kOut, 100'000));
  for (Case c : LongSumsByPackedWeights(ProductSide::kOut)) ExpectScatteredAsWhole(c);
  Case columns = CaseOfRows({20}, 40, 1500, ProductSide::kOut);
  columns.ranks = 2;
  columns.dimension = 1;
  columns.extents = {30, 10};
  columns.is_packed = true;
  ExpectScatteredAsWhole(columns);
  for (int round = 0; round < 25; ++round) {
    ExpectScatteredAsWhole(RandomCase(random_, /*is_scatter=*/true));
  }
}

// The kernel takes no such sizes, and a row has more bytes than 63 bits can count.
TEST_F(BlockProductsTest, NoRowsMayBeOfAnySize) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  const Case c = CaseOfRows({0, 0}, most, most);
  const Case scattered = CaseOfRows({0, 0}, most, most, ProductSide::kOut);
  const Bytes nothing = MakeBytes(0);
  const Tensors tensors = {.lhs = nothing, .rhs = nothing, .bias = nothing};
  const Combiner combiner = *CombinerFor(Reduction::kSum, Dtype::kF32, Dtype::kF32, 2);
  InProcessRanks world(2);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  const auto outcomes = world.RunOnAll([&](DeviceId rank) -> absl::Status {
    const DeviceGroup group = GroupOf(2, rank);
    const CollectiveCall call = CallOf(world.link(rank), group);
    BlockProducts products = ProductsOf(c, tensors);
    SHARDMESH_RETURN_IF_ERROR(
        GatherAndMultiply(call, products, c.Split(), Owned(nothing), absl::MakeSpan(*nothing)));
    BlockProducts scatter = ProductsOf(scattered, tensors);
    return MultiplyAndScatter(call, combiner, scatter, scattered.Split(), absl::MakeSpan(*nothing));
  });
  EXPECT_THAT(outcomes, Each(IsOk()));
}

TEST_F(BlockProductsTest, ASilentPeerIsNamedAfterTheRowsOfTheOthersWereMultiplied) {
  const Case c = CaseOfRows({4, 5, 6}, 8, 16);
  const Tensors tensors = RandomTensors(c);
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
    BlockProducts products = ProductsOf(c, tensors);
    const Bytes out = MakeBytes(15 * 8 * 4);
    const absl::Status done = GatherAndMultiply(
        call, products, c.Split(), Owned(MineOf(c, tensors, rank)), absl::MakeSpan(*out));
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

TEST_F(BlockProductsTest, AnAbortEndsItBetweenTwoPlaces) {
  const Case c = CaseOfRows({4, 4}, 8, 16, ProductSide::kOut);
  const Tensors tensors = RandomTensors(c);
  const Combiner combiner = *CombinerFor(Reduction::kSum, Dtype::kF32, Dtype::kF32, 2);
  InProcessRanks world(2);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  const DeviceGroup group = GroupOf(2, 0);
  // Another kernel has the turn, so that the rows wait, and the abort check runs.
  KernelTurns::Turn other(&turns_, [] { return absl::OkStatus(); });
  ASSERT_THAT(other.Take(), IsOk());
  int checks = 0;
  BlockProducts products = ProductsOf(c, tensors, [&] {
    ++checks;
    return absl::AbortedError("the step was aborted");
  });
  const Bytes out = MakeBytes(4 * 8 * 4);
  const absl::Status done = MultiplyAndScatter(CallOf(world.link(0), group), combiner, products,
                                               c.Split(), absl::MakeSpan(*out));
  EXPECT_EQ(done.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(checks, 1);
  other.GiveBack();
  KernelTurns::Turn next(&turns_, [] { return absl::OkStatus(); });
  EXPECT_THAT(next.Take(), IsOk()) << "the aborted product has given its turn back";
}

TEST_F(BlockProductsTest, NoTurnIsHeldWhileItWaitsForAPeer) {
  const Case c = CaseOfRows({4, 4}, 8, 16);
  const Tensors tensors = RandomTensors(c);
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
    BlockProducts products = ProductsOf(c, tensors);
    const Bytes out = MakeBytes(8 * 8 * 4);
    std::thread releaser;
    if (rank == 1) {
      releaser = std::thread(
          [&] { EXPECT_THAT(late.Release(1, absl::Now() + absl::Seconds(60)), IsOk()); });
    }
    const absl::Status done = GatherAndMultiply(
        call, products, c.Split(), Owned(MineOf(c, tensors, rank)), absl::MakeSpan(*out));
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
    const std::vector<int64_t> row_bytes(3, kRowBytes);
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
                      .row_bytes = row_bytes,
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
  const std::vector<int64_t> fours = {4, 4};
  const std::vector<int64_t> eights = {8, 4};
  int calls = 0;
  const auto fail = [&](int64_t, int64_t, absl::Span<const char>) {
    ++calls;
    return absl::AbortedError("no more");
  };
  EXPECT_EQ(GatherRows(CallOf(world.link(0), group),
                       {.mine = Owned(mine), .rows = rows, .row_bytes = fours}, fail)
                .code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(GatherRows(CallOf(world.link(0), group),
                       {.mine = Owned(mine), .rows = rows, .row_bytes = eights}, fail)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(RowGatherTest, WorksOnItsOwnRowsOnlyWhileNoOthersAreThere) {
  InProcessRanks world(2);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  // The rows of a place may have a size of their own.
  const std::vector<int64_t> rows = {2, 1};
  const std::vector<int64_t> row_bytes = {4, 6};
  const std::vector<Bytes> parts = {OperandOf(Dtype::kU8, 8, 0), OperandOf(Dtype::kU8, 6, 1)};
  const auto outcomes = world.RunOnAll([&](DeviceId rank) {
    const DeviceGroup group = GroupOf(2, rank);
    int left = 5;
    RowGather gather = {
        .mine = Owned(parts[static_cast<size_t>(rank)]), .rows = rows, .row_bytes = row_bytes};
    gather.work_on_mine = [&left] { return left-- > 0; };
    std::vector<char> got;
    const absl::Status done = GatherRows(CallOf(world.link(rank), group), gather,
                                         [&](int64_t place, int64_t, absl::Span<const char> bytes) {
                                           EXPECT_NE(place, group.place());
                                           got.insert(got.end(), bytes.begin(), bytes.end());
                                           return absl::OkStatus();
                                         });
    EXPECT_TRUE(got == *parts[static_cast<size_t>(1 - rank)]);
    EXPECT_LT(left, 0) << "all of the work is done";
    return done;
  });
  EXPECT_THAT(outcomes, Each(IsOk()));
}

}  // namespace
}  // namespace shardmesh::worker
