// Steps that update arrays: in place, in memory of their own, and undone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "process/crc32c.h"
#include "process/failpoint.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/step/executor_fixture.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::testing::HasSubstr;

constexpr int64_t kSequences = 2;
constexpr int64_t kCacheRows = 6;
constexpr int64_t kHeads = 4;
constexpr int64_t kFeatures = 3;

// A cache of keys on two ranks, which have two heads each, and steps that write rows of it.
class StateStepTest : public StepExecutorTest {
 protected:
  void Prepare() {
    StartMesh("x=2");
    cache_ = Tensor::Random({kSequences, kCacheRows, kHeads, kFeatures}, 1);
    Put("cache", cache_, SpecOf({"", "", "x", ""}));
  }

  // Adds new rows and their positions as the next two operands.
  void AddRows(const Tensor& rows, const std::vector<int32_t>& positions) {
    operands_.push_back(
        {.dtype = Dtype::kF32, .shape = rows.shape, .spec = SpecOf({"", "", "", ""})});
    order_.operands.push_back(
        {.value = Literal{Dtype::kF32, rows.shape,
                          std::string(rows.bytes().data(), rows.bytes().size())}});
    const Shape shape = {static_cast<int64_t>(positions.size())};
    operands_.push_back({.dtype = Dtype::kI32, .shape = shape, .spec = SpecOf({""})});
    order_.operands.push_back(
        {.value = Literal{Dtype::kI32, shape,
                          std::string(reinterpret_cast<const char*>(positions.data()),
                                      positions.size() * sizeof(int32_t))}});
  }
  static Tensor NewRows(int64_t count, int seed) {
    return Tensor::Random({kSequences, count, kHeads, kFeatures}, seed);
  }

  // Orders two updates of rows, one after the other, and the sum of the cache over its rows.
  void OrderTwoUpdates(int64_t sequence) {
    first_ = NewRows(2, static_cast<int>(10 * sequence));
    second_ = NewRows(1, static_cast<int>(10 * sequence + 1));
    operands_.resize(1);
    order_.operands.resize(1);
    AddRows(first_, {4, 1});
    AddRows(second_, {1});
    Order(sequence, {.operand_count = 5,
                     .ops = {UpdateRowsOp{.input = 0, .update = 1, .positions = 2},
                             UpdateRowsOp{.input = 5, .update = 3, .positions = 4},
                             ReduceOp{.input = 6, .dimensions = {1}}},
                     .outputs = {7},
                     .updates = {{0, 6}}});
    order_.return_literals = false;
  }
  // Returns `cache` with new rows at the positions of all sequences.
  static Tensor Updated(Tensor cache, const Tensor& rows, const std::vector<int32_t>& positions) {
    constexpr int64_t kRowSize = kHeads * kFeatures;
    const auto count = static_cast<int64_t>(positions.size());
    for (int64_t sequence = 0; sequence < kSequences; ++sequence) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t to = (sequence * kCacheRows + positions[static_cast<size_t>(i)]) * kRowSize;
        const int64_t from = (sequence * count + i) * kRowSize;
        for (int64_t e = 0; e < kRowSize; ++e) {
          cache.elements[static_cast<size_t>(to + e)] =
              rows.elements[static_cast<size_t>(from + e)];
        }
      }
    }
    return cache;
  }
  Tensor AfterTwoUpdates(const Tensor& before) const {
    return Updated(Updated(before, first_, {4, 1}), second_, {1});
  }

  static Tensor Negated(Tensor tensor) {
    for (float& x : tensor.elements) x = -x;
    return tensor;
  }
  static Tensor Absolute(Tensor tensor) {
    for (float& x : tensor.elements) x = std::abs(x);
    return tensor;
  }

  Tile TileOf(const Tensor& tensor, DeviceId device) const {
    return Tiling::Create(mesh(), SpecOf({"", "", "x", ""}), tensor.shape)->TileOf(device);
  }
  // The bytes of the device's tile of a tensor that lies as the cache.
  std::string TileBytes(const Tensor& tensor, DeviceId device) const {
    const Tile tile = TileOf(tensor, device);
    const TensorView whole = *TensorView::Create(Dtype::kF32, tensor.shape, tensor.bytes());
    std::string bytes(static_cast<size_t>(tile.element_count()) * sizeof(float), ' ');
    EXPECT_THAT(CopyTileBytes(whole, tile, 0, absl::MakeSpan(bytes)), IsOk());
    return bytes;
  }
  StoredTilePtr Stored(DeviceId device, const std::string& id = "cache") {
    auto found = rank(device).store->Find(id, TileOf(cache_, device));
    EXPECT_THAT(found, IsOk());
    return found.ok() ? *found : nullptr;
  }
  void ExpectContent(const Tensor& expected, const std::string& id = "cache") {
    for (DeviceId device = 0; device < mesh().size(); ++device) {
      const StoredTilePtr tile = Stored(device, id);
      ASSERT_NE(tile, nullptr);
      const std::string bytes = TileBytes(expected, device);
      EXPECT_EQ(std::string(tile->bytes().data(), tile->bytes().size()), bytes)
          << "rank " << device;
      EXPECT_EQ(tile->crc32c(), Crc32c(bytes));
    }
  }
  void ExpectDone(size_t count = 1) {
    for (DeviceId device = 0; device < mesh().size(); ++device) {
      const StepResult result = Await(device, count);
      ASSERT_EQ(result.outcome, StepOutcome::kDone) << result.status;
    }
  }
  void CommitAll() {
    for (DeviceId device = 0; device < mesh().size(); ++device) {
      EXPECT_THAT(rank(device).executor->Commit(order_.sequence), IsOk());
    }
  }
  void AbortAll() {
    for (DeviceId device = 0; device < mesh().size(); ++device) {
      rank(device).executor->Abort(order_.sequence, absl::CancelledError("nobody wants it"));
    }
  }

  // A layer whose sums go over x, besides new rows of the cache. The layer's result is added to
  // "hidden", which gets memory of its own for it.
  void PrepareLayer() {
    Prepare();
    Put("hidden", Tensor::Random({4, 8}, 2), SpecOf({"", "x"}));
    Put("weight", Tensor::Random({8, 8}, 3), SpecOf({"", "x"}));
    AddRows(NewRows(2, 4), {4, 1});
  }
  void OrderLayer(int64_t sequence) {
    Order(sequence,
          {.operand_count = 5,
           .ops = {UpdateRowsOp{.input = 0, .update = 3, .positions = 4},
                   LinearOp{.input = 1, .weight = 2, .activation = Activation::kRelu},
                   MapOp{MapFunction::kAdd, {6, 1}}, ReduceOp{.input = 5, .dimensions = {1}}},
           .outputs = {6, 8},
           .updates = {{0, 5}, {1, 7}}});
    order_.return_literals = false;
  }

  // The array, the state and the bytes of each tile that a rank's store holds.
  using Content = std::vector<std::tuple<std::string, TileState, std::string>>;
  Content ContentOf(DeviceId device) {
    ShardStore& store = *rank(device).store;
    Content content;
    const ShardStore::InventoryPage page = store.ListInventory("", 1'000);
    for (const ShardStore::HeldTile& held : page.tiles) {
      const TileDescription& tile = held.tile->description();
      const auto found = store.FindStaged(tile.array_id, tile.tile);
      EXPECT_THAT(found, IsOk()) << tile.array_id;
      if (!found.ok()) continue;
      content.emplace_back(tile.array_id, held.state,
                           std::string((*found)->bytes().data(), (*found)->bytes().size()));
    }
    return content;
  }
  std::vector<Content> AllContent() { return {ContentOf(0), ContentOf(1)}; }

  Tensor cache_;
  Tensor first_;
  Tensor second_;
};

INSTANTIATE_TEST_SUITE_P(All, StateStepTest, testing::Values(Transport::kStream, Transport::kShm),
                         TransportName);

TEST_P(StateStepTest, RowsAreWrittenInPlaceByEachStepInARow) {
  Prepare();
  std::vector<const char*> memory;
  for (DeviceId device = 0; device < 2; ++device) {
    memory.push_back(Stored(device)->bytes().data());
  }
  for (int64_t sequence = 1; sequence <= 3; ++sequence) {
    OrderTwoUpdates(sequence);
    const Tensor expected = AfterTwoUpdates(cache_);
    RunOnAll();
    ExpectDone(static_cast<size_t>(sequence));
    CommitAll();
    ExpectContent(expected);
    for (DeviceId device = 0; device < 2; ++device) {
      EXPECT_EQ(Stored(device)->bytes().data(), memory[static_cast<size_t>(device)]);
      EXPECT_EQ(Stored(device)->state_step(), sequence);
    }
    cache_ = expected;
  }
}

TEST_P(StateStepTest, TheResultsAreThoseOfTheNewRows) {
  Prepare();
  OrderTwoUpdates(1);
  order_.return_literals = true;
  const Tensor expected = AfterTwoUpdates(cache_);
  RunOnAll();
  const Tensor sum = Assemble();
  for (int64_t i = 0; i < kSequences * kHeads * kFeatures; ++i) {
    const int64_t sequence = i / (kHeads * kFeatures);
    const int64_t element = i % (kHeads * kFeatures);
    double want = 0;
    for (int64_t row = 0; row < kCacheRows; ++row) {
      want += static_cast<double>(expected.elements[static_cast<size_t>(
          (sequence * kCacheRows + row) * kHeads * kFeatures + element)]);
    }
    EXPECT_NEAR(static_cast<double>(sum.elements[static_cast<size_t>(i)]), want, 1e-5) << i;
  }
  ExpectContent(expected);
}

TEST_P(StateStepTest, ReadersKeepTheBytesThatTheyHold) {
  Prepare();
  const StoredTilePtr reader = Stored(1);
  const std::string before = TileBytes(cache_, 1);
  OrderTwoUpdates(1);
  RunOnAll();
  ExpectDone();
  EXPECT_EQ(std::string(reader->bytes().data(), reader->bytes().size()), before);
  CommitAll();
  EXPECT_EQ(std::string(reader->bytes().data(), reader->bytes().size()), before);
  EXPECT_NE(Stored(1)->bytes().data(), reader->bytes().data());
  ExpectContent(AfterTwoUpdates(cache_));
}

TEST_P(StateStepTest, AnAbortAfterTheRunRestoresTheBytes) {
  Prepare();
  OrderTwoUpdates(1);
  RunOnAll();
  ExpectDone();
  // Rank 0 writes in place, and gives the tile to nobody until the end.
  EXPECT_EQ(rank(0).store->Find("cache", TileOf(cache_, 0)).status().code(),
            absl::StatusCode::kUnavailable);
  AbortAll();
  ExpectContent(cache_);
  OrderTwoUpdates(2);
  RunOnAll();
  ExpectDone(2);
  CommitAll();
  ExpectContent(AfterTwoUpdates(cache_));
}

TEST_P(StateStepTest, AStepThatNobodyCommitsIsUndoneWithTheRest) {
  Prepare();
  OrderTwoUpdates(1);
  RunOnAll();
  ExpectDone();
  for (DeviceId device = 0; device < 2; ++device) rank(device).executor->KeepStaged();
  ExpectContent(cache_);
}

TEST_P(StateStepTest, AFailureAtAnyInstructionRestoresTheBytes) {
  Prepare();
  OrderTwoUpdates(1);
  const auto plan = rpc::ParsePlanBytes(order_.plan_bytes);
  ASSERT_THAT(plan, IsOk());
  std::vector<std::string> faults;
  for (size_t i = 1; i <= 2 * plan->instructions.size(); ++i) {  // of both ranks
    faults.push_back(StrCat("step.instruction=eio:", i));
  }
  for (const char* const fault : {"step.stage_outputs", "step.stage_updates"}) {
    faults.push_back(StrCat(fault, "=eio:1"));
    faults.push_back(StrCat(fault, "=eio:2"));
  }
  int64_t sequence = 0;
  for (const std::string& fault : faults) {
    SCOPED_TRACE(fault);
    OrderTwoUpdates(++sequence);
    ASSERT_THAT(ArmFailpoints(fault), IsOk());
    RunOnAll();
    int failed = 0;
    for (DeviceId device = 0; device < 2; ++device) {
      failed += Await(device, static_cast<size_t>(sequence)).outcome == StepOutcome::kFailed;
    }
    EXPECT_GE(failed, 1);
    AbortAll();
    ExpectContent(cache_);
  }
  OrderTwoUpdates(++sequence);
  RunOnAll();
  ExpectDone(static_cast<size_t>(sequence));
  CommitAll();
  ExpectContent(AfterTwoUpdates(cache_));
}

TEST_P(StateStepTest, AFailureAtAnyInstructionOfALayerLeavesTheStoreAsItWas) {
  PrepareLayer();
  OrderLayer(1);
  RunOnAll();
  ExpectDone();
  CommitAll();
  const std::vector<Content> before = AllContent();
  ASSERT_EQ(before[0].size(), 5U) << "three operands and two results";
  const auto plan = rpc::ParsePlanBytes(order_.plan_bytes);
  ASSERT_THAT(plan, IsOk());
  ASSERT_GE(plan->instructions.size(), 6U);
  std::vector<std::string> faults;
  for (size_t i = 1; i <= 2 * plan->instructions.size(); ++i) {  // of both ranks
    faults.push_back(StrCat("step.instruction=eio:", i));
  }
  for (const char* const fault :
       {"step.fetch_operands", "step.stage_outputs", "step.stage_updates"}) {
    faults.push_back(StrCat(fault, "=eio:1"));
    faults.push_back(StrCat(fault, "=eio:2"));
  }
  int64_t sequence = 1;
  for (const std::string& fault : faults) {
    SCOPED_TRACE(fault);
    OrderLayer(++sequence);
    ASSERT_THAT(ArmFailpoints(fault), IsOk());
    RunOnAll();
    int failed = 0;
    for (DeviceId device = 0; device < 2; ++device) {
      failed += Await(device, static_cast<size_t>(sequence)).outcome == StepOutcome::kFailed;
    }
    EXPECT_GE(failed, 1);
    AbortAll();
    ASSERT_EQ(AllContent(), before);
  }
  OrderLayer(++sequence);
  RunOnAll();
  ExpectDone(static_cast<size_t>(sequence));
  CommitAll();
  EXPECT_EQ(ContentOf(0).size(), 7U);
}

TEST_P(StateStepTest, AnAbortDuringAnExchangeLeavesTheStoreAsItWas) {
  PrepareLayer();
  OrderLayer(1);
  const std::vector<Content> before = AllContent();
  // Rank 0 has written its rows, and waits for the sums of rank 1, which never begins.
  Run(0, order_);
  ASSERT_TRUE(test::Eventually([&] {
    const std::optional<FlightRecord> running = rank(0).recorder.Running(1);
    return running.has_value() && running->what.find("over x") != std::string::npos;
  }));
  AbortAll();
  EXPECT_EQ(Await(0).status.code(), absl::StatusCode::kCancelled) << Await(0).status;
  EXPECT_EQ(AllContent(), before);
  OrderLayer(2);
  RunOnAll();
  for (DeviceId device = 0; device < 2; ++device) {
    const StepResult result = Await(device, device == 0 ? 2 : 1);
    ASSERT_EQ(result.outcome, StepOutcome::kDone) << result.status;
  }
  CommitAll();
  EXPECT_NE(AllContent(), before);
}

TEST_P(StateStepTest, ACacheThatIsReadAfterItsUpdateIsReplaced) {
  Prepare();
  const Tensor rows = NewRows(1, 7);
  AddRows(rows, {3});
  // The difference of new and old cache reads the old one last.
  Order(1, {.operand_count = 3,
            .ops = {UpdateRowsOp{.input = 0, .update = 1, .positions = 2},
                    MapOp{MapFunction::kSubtract, {3, 0}}},
            .outputs = {4},
            .updates = {{0, 3}}});
  const Tensor expected = Updated(cache_, rows, {3});
  RunOnAll();
  const Tensor difference = Assemble();
  for (size_t i = 0; i < difference.elements.size(); ++i) {
    EXPECT_EQ(difference.elements[i], expected.elements[i] - cache_.elements[i]) << i;
  }
  ExpectContent(expected);
}

TEST_P(StateStepTest, AnyResultMayBecomeTheContent) {
  Prepare();
  const Tensor other = Tensor::Random(cache_.shape, 5);
  Put("other", other, SpecOf({"", "", "x", ""}));
  // They change places, twice.
  for (int64_t sequence = 1; sequence <= 2; ++sequence) {
    SCOPED_TRACE(sequence);
    Order(sequence, {.operand_count = 2,
                     .ops = {MapOp{MapFunction::kNegate, {0}}, MapOp{MapFunction::kAbs, {1}},
                             MapOp{MapFunction::kNegate, {3}}},
                     .outputs = {4},
                     .updates = {{0, 3}, {1, 2}}});
    order_.return_literals = false;
    RunOnAll();
    ExpectDone(static_cast<size_t>(sequence));
    CommitAll();
    ExpectContent(sequence == 1 ? Absolute(other) : Absolute(cache_));
    ExpectContent(sequence == 1 ? Negated(cache_) : Negated(Absolute(other)), "other");
  }
}

TEST_P(StateStepTest, AnArrayThatIsReadAsAnotherOperandKeepsItsElementsForIt) {
  Prepare();
  const Tensor rows = NewRows(1, 7);
  AddRows(rows, {0});
  operands_.push_back(operands_[0]);
  order_.operands.push_back(order_.operands[0]);
  Order(1, {.operand_count = 4,
            .ops = {UpdateRowsOp{.input = 0, .update = 1, .positions = 2},
                    MapOp{MapFunction::kNegate, {3}}},
            .outputs = {5},
            .updates = {{0, 4}}});
  RunOnAll();
  EXPECT_EQ(Assemble().elements, Negated(cache_).elements);
  ExpectContent(Updated(cache_, rows, {0}));
}

TEST_P(StateStepTest, AnUpdateWithoutElementsAndOneWithoutRowsChangeNothing) {
  Prepare();
  const Tensor empty = {{kSequences, 0, kHeads, kFeatures}, {}};
  Put("empty", empty, SpecOf({"", "", "x", ""}));
  AddRows(empty, {});
  Order(1, {.operand_count = 4,
            .ops = {UpdateRowsOp{.input = 0, .update = 2, .positions = 3},
                    UpdateRowsOp{.input = 1, .update = 2, .positions = 3}},
            .outputs = {},
            .updates = {{0, 4}, {1, 5}}});
  RunOnAll();
  ExpectDone();
  CommitAll();
  ExpectContent(cache_);
}

TEST_P(StateStepTest, StateThatCannotBeUpdatedIsRefused) {
  Prepare();
  OrderTwoUpdates(1);
  const StepOrder good = order_;
  const auto refusal = [&](int64_t sequence, const StepOperand& operand) {
    StepOrder order = good;
    order.sequence = sequence;
    order.operands[0] = operand;
    for (DeviceId device = 0; device < 2; ++device) StepExecutorTest::Run(device, order);
    for (DeviceId device = 1; device >= 0; --device) {
      EXPECT_EQ(Await(device, static_cast<size_t>(sequence)).outcome, StepOutcome::kFailed);
    }
    return std::string(Await(0, static_cast<size_t>(sequence)).status.message());
  };
  EXPECT_THAT(
      refusal(1, {.value = Literal{Dtype::kF32, cache_.shape,
                                   std::string(cache_.bytes().data(), cache_.bytes().size())}}),
      HasSubstr("operand 0 is a literal"));
  EXPECT_THAT(refusal(2, {.value = "cache", .donate = true}), HasSubstr("operand 0 is donated"));
  EXPECT_THAT(refusal(3, {.value = "unknown"}), HasSubstr("operand 0"));
  ExpectContent(cache_);
}

TEST_P(StateStepTest, ProductsReadTheNewContentOfAWeightThatWasPacked) {
  StartMesh("x=1");
  const Tensor weight = Tensor::Random({4, 3}, 1);
  const Tensor input = Tensor::Random({2, 3}, 2);
  Put("weight", weight, SpecOf({"", ""}));
  Put("input", input, SpecOf({"", ""}));
  const auto multiply = [&](int64_t sequence) {
    Order(sequence,
          {.operand_count = 2, .ops = {LinearOp{.input = 1, .weight = 0}}, .outputs = {2}});
    {
      absl::MutexLock lock(&mutex_);
      results_.clear();
    }
    RunOnAll();
    return Assemble();
  };
  const Tensor before = multiply(1);
  Order(2, {.operand_count = 2,
            .ops = {MapOp{MapFunction::kNegate, {0}}},
            .outputs = {},
            .updates = {{0, 2}}});
  RunOnAll();
  ASSERT_EQ(Await(0, 2).outcome, StepOutcome::kDone) << Await(0, 2).status;
  CommitAll();
  const Tensor after = multiply(3);
  for (size_t i = 0; i < after.elements.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(after.elements[i]), -static_cast<double>(before.elements[i]),
                1e-5);
  }
}

}  // namespace
}  // namespace shardmesh::worker
