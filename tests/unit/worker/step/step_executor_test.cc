// StepExecutor: whole steps over real links and stores, one executor a rank, in one process.
#include "worker/step/step_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "program/collective_choice.h"
#include "program/fuse/fuse_exchanges.h"
#include "program/plan_forecast.h"
#include "program/step_plan.h"
#include "rpc/codec/plan_codec.h"
#include "sharding/device_group.h"
#include "status/reason.h"
#include "tensor/view.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/collective/random_layouts.h"
#include "tests/unit/worker/step/executor_fixture.h"

namespace shardmesh::worker {
namespace {

using ::testing::HasSubstr;

TEST_P(StepExecutorTest, StepsHaveTheirTimeThoughTheWallClockWasSteppedForward) {
  ahead_ = absl::Hours(-1);  // the present is over an hour later than the clock shows
  StartMesh("x=2");
  OrderAllReduceOf(Tensor::Random({1000, 1000}, 5));
  RunOnAll();
  for (DeviceId device = 0; device < 2; ++device) {
    const StepResult result = Await(device);
    EXPECT_EQ(result.outcome, StepOutcome::kDone) << result.status;
  }
}

TEST_P(StepExecutorTest, AStepWithoutRoomTriesAgainOnceMemoryWasFreed) {
  StartMesh("x=2");
  OrderAllReduceOf(Tensor::Random({100, 1000}, 5));
  // Takes most of the memory on rank 0.
  BufferPool& pool = *rank(0).pool;
  const int64_t left_bytes = pool.budget().limit_bytes() - pool.budget().used_bytes();
  auto cached = std::make_unique<Buffer>(*pool.Allocate(left_bytes - 300'000, "a cached tile"));
  int64_t asked_bytes = 0;
  rank(0).free_memory = [&](int64_t size_bytes) {
    asked_bytes = size_bytes;
    cached.reset();
    return true;
  };
  RunOnAll();
  EXPECT_EQ(Await(0).outcome, StepOutcome::kDone) << Await(0).status;
  EXPECT_EQ(Await(1).outcome, StepOutcome::kDone) << Await(1).status;
  EXPECT_EQ(asked_bytes, 400'000);
}

// The peak that a plan predicts has no room for the scores of attention.
TEST_P(StepExecutorTest, AttentionTakesNoMemoryBesideItsResult) {
  StartMesh("x=1");
  for (const char* name : {"query", "keys", "values"}) {
    Put(name, Tensor::Random({1, 64, 2, 16}, 5), SpecOf({"", "", "", ""}));
  }
  Order(1, {.operand_count = 3,
            .ops = {TensorOp(AttentionOp{.query = 0, .keys = 1, .values = 2})},
            .outputs = {3}});
  order_.return_literals = false;
  // Leaves room for the result, but not for the scores: 64 queries of a head, and 256 rows.
  constexpr int64_t kScoreBytes = 64 * 256 * 4;
  BufferPool& pool = *rank(0).pool;
  const int64_t left_bytes = pool.budget().limit_bytes() - pool.budget().used_bytes();
  const Buffer taken = *pool.Allocate(left_bytes - kScoreBytes, "other arrays");
  rank(0).free_memory = [](int64_t size_bytes) {
    ADD_FAILURE() << size_bytes << " bytes were asked for";
    return false;
  };
  RunOnAll();
  EXPECT_EQ(Await(0).outcome, StepOutcome::kDone) << Await(0).status;
}

TEST_P(StepExecutorTest, AStepWithoutRoomTakesBackWhatPeersHaveRead) {
  StartMesh("x=2");
  constexpr int64_t kHalf = int64_t{2} << 20;
  Put("in", Tensor::Random({1024, 1024}, 5), SpecOf({"", ""}));
  Put("token", Tensor::Random({1, 1}, 5), SpecOf({"", ""}));
  // Each scatter copies both halves of the operand to send them. Rank 0 gets the token after its
  // peer has read the first half, and sends nothing in between.
  CollectiveOp scatter{.input = 0, .kind = CollectiveKind::kReduceScatter, .axes = {"x"}};
  scatter.dimension = 1;
  const CollectiveOp token{
      .input = 1, .kind = CollectiveKind::kBroadcast, .axes = {"x"}, .root = 1};
  Order(1, {.operand_count = 2, .ops = {scatter, token, scatter}, .outputs = {2, 4}});
  order_.return_literals = false;
  // Leaves room for both results and the copies of one scatter.
  BufferPool& pool = *rank(0).pool;
  const int64_t left_bytes = pool.budget().limit_bytes() - pool.budget().used_bytes();
  const Buffer taken = *pool.Allocate(left_bytes - 4 * kHalf - kHalf / 2, "other arrays");
  RunOnAll();
  EXPECT_EQ(Await(0).outcome, StepOutcome::kDone) << Await(0).status;
  EXPECT_EQ(Await(1).outcome, StepOutcome::kDone) << Await(1).status;
}

TEST_P(StepExecutorTest, StepsEndInTimeThoughTheWallClockWasSteppedBack) {
  ahead_ = absl::Hours(1);
  StartMesh("x=2");
  OrderAllReduceOf(Tensor::Random({1000, 1000}, 5));
  order_.timeout = absl::Milliseconds(100);
  Run(0, order_);  // rank 1 never does
  EXPECT_THAT(Await(0).status, test::StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_P(StepExecutorTest, NothingIsCopiedButWhatIsReceivedIntoPlaceAndPartsThatLieApart) {
  StartMesh("x=2");
  struct Case {
    CollectiveOp op;
    PartitionSpec operand;
    StepObserver::CollectiveBytes bytes;  // of rank 0
  };
  // Of a tensor of 4 MiB: more than a frame, and a whole number of rows in each piece or not.
  const Shape shape = {1000, 1048};
  const int64_t all = 1000 * 1048 * 4;
  using Kind = CollectiveKind;
  using Algorithm = CollectiveAlgorithm;
  const std::vector<Case> cases = {
      {{.kind = Kind::kAllReduce, .axes = {"x"}, .algorithm = Algorithm::kDirect},
       SpecOf({"", ""}),
       {.sent = all}},
      {{.kind = Kind::kAllReduce, .axes = {"x"}, .algorithm = Algorithm::kPairwise},
       SpecOf({"", ""}),
       {.sent = all, .copied_received = all / 2}},
      {{.kind = Kind::kReduceScatter, .axes = {"x"}, .dimension = 0},
       SpecOf({"", ""}),
       {.sent = all / 2}},
      {{.kind = Kind::kReduceScatter, .axes = {"x"}, .dimension = 1},
       SpecOf({"", ""}),
       {.sent = all / 2, .copied_to_send = all}},
      {{.kind = Kind::kAllGather, .axes = {"x"}, .dimension = 0},
       SpecOf({"x", ""}),
       {.sent = all / 2, .copied_received = all / 2}},
  };
  int64_t sequence = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(StrCat("case ", sequence));
    operands_.clear();
    order_.operands.clear();
    Put(StrCat("in-", ++sequence), Tensor::Random(shape, 5), c.operand);
    Order(sequence, {.operand_count = 1, .ops = {c.op}, .outputs = {1}});
    order_.return_literals = false;
    RunOnAll();
    for (DeviceId device = 0; device < 2; ++device) {
      const StepResult result = Await(device, static_cast<size_t>(sequence));
      ASSERT_EQ(result.outcome, StepOutcome::kDone) << result.status;
      ASSERT_TRUE(rank(device).executor->Commit(sequence).ok());
    }
    const StepObserver::CollectiveBytes& bytes = rank(0).last_bytes;
    EXPECT_EQ(bytes.sent, c.bytes.sent);
    EXPECT_EQ(bytes.copied_to_send, c.bytes.copied_to_send);
    EXPECT_EQ(bytes.copied_received, c.bytes.copied_received);
  }
}

// input [m, k] times weight [n, k], transposed, in doubles.
std::vector<double> Multiply(const std::vector<double>& input, const Tensor& weight, int64_t m) {
  const int64_t n = weight.shape[0];
  const int64_t k = weight.shape[1];
  std::vector<double> out(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t x = 0; x < k; ++x) {
        sum += input[static_cast<size_t>(i * k + x)] *
               static_cast<double>(weight.elements[static_cast<size_t>(j * k + x)]);
      }
      out[static_cast<size_t>(i * n + j)] = sum;
    }
  }
  return out;
}

TEST_P(StepExecutorTest, AnyLayoutBecomesAnyOtherForTheBytesOfTheForecast) {
  struct Layout {
    PartitionSpec spec;
    std::vector<CutPoints> cut_points;
  };
  const std::vector<Layout> layouts = {
      {SpecOf({"x", ""}), {}},
      {SpecOf({"", "y"}), {}},
      {SpecOf({"y", "x"}), {}},
      {SpecOf({"", ""}), {}},
      {SpecOf({"x", "y"}), {{0, 1, 20}, {0, 11, 12}}},
      {SpecOf({"", "x"}), {{}, {0, 5, 12}}},
      {PartitionSpec({SpecEntry::Axes({"y", "x"}), SpecEntry::None()}), {{0, 1, 2, 9, 20}, {}}},
  };
  StartMesh("x=2,y=2");
  const Tensor tensor = Tensor::Random({20, 12}, 3);
  int64_t sequence = 0;
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) {
      SCOPED_TRACE(
          StrCat("case ", sequence, ": ", from.spec.ToString(), " to ", to.spec.ToString()));
      operands_.clear();
      order_.operands.clear();
      results_.clear();
      ++sequence;
      Put(StrCat("in-", sequence), tensor, from.spec, from.cut_points);
      ReshardOp op = {.input = 0, .spec = to.spec};
      for (const CutPoints& points : to.cut_points) {
        op.part_starts.emplace_back();
        if (!points.empty()) op.part_starts.back().assign(points.begin() + 1, points.end() - 1);
      }
      Order(sequence, {.operand_count = 1, .ops = {op}, .outputs = {1}});
      RunOnAll();
      EXPECT_EQ(Assemble().elements, tensor.elements);
      for (DeviceId device = 0; device < mesh().size(); ++device) {
        EXPECT_EQ(Await(device).sent_bytes, ForecastBytes(device)) << "rank " << device;
      }
    }
  }
}

// Returns a layout of an F32 tensor of this shape, whose parts may be empty.
RandomLayout RandomLayoutOf(const Shape& shape, const Mesh& mesh, LayoutDice& dice) {
  return dice.Layout(mesh, {.dtype = Dtype::kF32, .shape = shape, .bytes = "", .unit = 1});
}

TEST_P(StepExecutorTest, LayoutsWithEmptyPartsBecomeEachOther) {
  struct Case {
    Shape shape;
    RandomLayout from;
    RandomLayout to;
  };
  StartMesh("x=2,y=2");
  // The element goes nowhere: rank 0 has it before and after, and ranks with x = 1 slice nothing.
  std::vector<Case> cases = {
      {{1, 1},
       {.spec = SpecOf({"", "x"}), .cut_points = {{}, {0, 1, 1}}, .has_empty_part = true},
       {.spec = SpecOf({"x", ""}), .cut_points = {{0, 1, 1}, {}}, .has_empty_part = true}}};
  LayoutDice dice(17);
  for (int i = 0; i < 60; ++i) {
    const auto extent = [&dice] { return 1 + static_cast<int64_t>(dice.Below(4)); };
    const Shape shape = {extent(), extent()};
    cases.push_back(
        {shape, RandomLayoutOf(shape, mesh(), dice), RandomLayoutOf(shape, mesh(), dice)});
  }
  int64_t sequence = 0;
  int with_empty_parts = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(StrCat("case ", sequence, ": ", ShapeToString(c.shape), " ", c.from.ToString(),
                        " to ", c.to.ToString()));
    operands_.clear();
    order_.operands.clear();
    results_.clear();
    ++sequence;
    with_empty_parts += c.from.has_empty_part || c.to.has_empty_part ? 1 : 0;
    const Tensor tensor = Tensor::Random(c.shape, static_cast<int>(sequence));
    Put(StrCat("in-", sequence), tensor, c.from.spec, c.from.cut_points);
    ReshardOp op = {.input = 0, .spec = c.to.spec};
    for (const CutPoints& points : c.to.cut_points) {
      op.part_starts.emplace_back();
      if (!points.empty()) op.part_starts.back().assign(points.begin() + 1, points.end() - 1);
    }
    Order(sequence, {.operand_count = 1, .ops = {op}, .outputs = {1}});
    RunOnAll();
    ASSERT_EQ(Assemble().elements, tensor.elements);
  }
  EXPECT_GT(with_empty_parts, 10);
}

TEST_P(StepExecutorTest, AMoveCopiesOnlyWhatLiesApart) {
  StartMesh("x=2");
  const Shape shape = {1000, 1048};
  const int64_t half = 1000 * 1048 * 4 / 2;
  const Tensor tensor = Tensor::Random(shape, 5);
  // Rows to columns: half of each tile goes, in 500 runs.
  Put("rows", tensor, SpecOf({"x", ""}));
  Order(1, {.operand_count = 1,
            .ops = {ReshardOp{.input = 0, .spec = SpecOf({"", "x"})}},
            .outputs = {1}});
  order_.return_literals = false;
  RunOnAll();
  for (DeviceId device = 0; device < 2; ++device) {
    ASSERT_EQ(Await(device).outcome, StepOutcome::kDone) << Await(device).status;
    ASSERT_TRUE(rank(device).executor->Commit(1).ok());
  }
  EXPECT_EQ(rank(0).last_bytes.sent, half / 2);
  EXPECT_EQ(rank(0).last_bytes.copied_to_send, half / 2);
  EXPECT_EQ(rank(0).last_bytes.copied_received, half / 2);
  // Rows to other rows: 100 rows go from rank 1 to rank 0, as one run.
  operands_.clear();
  order_.operands.clear();
  Put("again", tensor, SpecOf({"x", ""}));
  Order(2, {.operand_count = 1,
            .ops = {ReshardOp{.input = 0, .spec = SpecOf({"x", ""}), .part_starts = {{600}}}},
            .outputs = {1}});
  order_.return_literals = false;
  RunOnAll();
  for (DeviceId device = 0; device < 2; ++device) {
    const StepResult result = Await(device, 2);
    ASSERT_EQ(result.outcome, StepOutcome::kDone) << result.status;
  }
  EXPECT_EQ(rank(1).last_bytes.sent, 100 * 1048 * 4);
  EXPECT_EQ(rank(1).last_bytes.copied_to_send, 0);
  EXPECT_EQ(rank(0).last_bytes.sent, 0);
  EXPECT_EQ(rank(0).last_bytes.copied_received, 100 * 1048 * 4);
}

TEST_P(StepExecutorTest, AMoveWaitsForARankThatBeginsLateAndBlamesOneThatNeverDoes) {
  StartMesh("x=2");
  const Tensor tensor = Tensor::Random({3000, 3000}, 5);
  Put("rows", tensor, SpecOf({"x", ""}));
  const Program program = {.operand_count = 1,
                           .ops = {ReshardOp{.input = 0, .spec = SpecOf({"", "x"})}},
                           .outputs = {1}};
  Order(1, program);
  order_.return_literals = false;
  Run(0, order_);
  absl::SleepFor(absl::Milliseconds(100));
  Run(1, order_);
  for (DeviceId device = 0; device < 2; ++device) {
    ASSERT_EQ(Await(device).outcome, StepOutcome::kDone) << Await(device).status;
  }
  for (DeviceId device = 0; device < 2; ++device) {
    EXPECT_TRUE(rank(device).executor->Commit(1).ok());
  }
  Order(2, program);
  order_.return_literals = false;
  order_.timeout = absl::Milliseconds(200);
  Run(0, order_);
  const StepResult stuck = Await(0, 2);
  EXPECT_THAT(stuck.status, test::StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(stuck.blamed_identity, "worker-1");
  EXPECT_THAT(std::string(stuck.status.message()), HasSubstr("move regions"));
  rank(1).executor->Abort(2, absl::CancelledError("rank 0 gave up"));
}

// A target for which all exchanges are slow, and products take about as long if the rate fits.
PlanTarget Overlapping(PlanTarget target, double flops_per_second, bool may_overlap = true) {
  target.links.seconds_per_byte = 1e-3;
  target.kernels.flops_per_second = flops_per_second;
  target.kernels.may_overlap = may_overlap;
  return target;
}

TEST_P(StepExecutorTest, FusedExchangesHaveTheBitsOfThePlainPlan) {
  StartMesh("x=4");
  if (!rank(0).kernel.KeepsBitsOfRows(Dtype::kF32)) {
    GTEST_SKIP() << "this CPU's kernels give other bits to other numbers of rows";
  }
  struct Case {
    int64_t rows;
    int64_t width;
    int64_t hidden;
    CutPoints cuts;
    double flops_per_second;
    bool is_scattered;  // a reduce-scatter has no empty parts
  };
  // The second one has messages of several frames, of which rows are multiplied as they arrive.
  const std::vector<Case> cases = {{41, 64, 256, {0, 20, 30, 35, 41}, 2e4, true},
                                   {1400, 1024, 2048, {}, 2e6, true},
                                   {3, 64, 64, {0, 3, 3, 3, 3}, 2e4, false}};
  int64_t sequence = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(StrCat(c.rows, " rows"));
    const int64_t id = sequence;
    operands_.clear();
    order_.operands.clear();
    std::vector<CutPoints> input_cuts;
    if (!c.cuts.empty()) input_cuts = {c.cuts, {}};
    Put(StrCat("input-", id), Tensor::Random({c.rows, c.width}, 1), SpecOf({"x", ""}), input_cuts);
    Put(StrCat("up-", id), Tensor::Random({c.hidden, c.width}, 2), SpecOf({"x", ""}));
    Put(StrCat("down-", id), Tensor::Random({32, c.hidden}, 3), SpecOf({"", "x"}));
    Put(StrCat("bias-", id), Tensor::Random({c.hidden}, 4), SpecOf({"x"}));
    ReshardOp by_rows = {.input = 5, .spec = SpecOf({"x", ""})};
    if (!c.cuts.empty()) by_rows.part_starts = {{c.cuts.begin() + 1, c.cuts.end() - 1}};
    const Program program = {
        .operand_count = 4,
        .ops = {LinearOp{.input = 0, .weight = 1, .bias = 3, .activation = Activation::kGelu},
                LinearOp{.input = 4, .weight = 2}, by_rows},
        .outputs = {6}};
    std::vector<float> plain;
    for (const bool may_overlap : {false, true}) {
      SCOPED_TRACE(may_overlap ? "fused" : "plain");
      {
        absl::MutexLock lock(&mutex_);
        results_.clear();
      }
      const PlanTarget slow = Overlapping(target(), c.flops_per_second, /*may_overlap=*/false);
      auto plan = PlanProgram(program, operands_, slow);
      ASSERT_TRUE(plan.ok()) << plan.status();
      // Both plans have the same layouts, though the planner might choose others for one of them.
      if (may_overlap) *plan = FuseExchanges(*std::move(plan), slow.links, slow.kernels);
      ASSERT_EQ(OverlapsExchanges(*plan), may_overlap);
      if (may_overlap) {
        EXPECT_TRUE(std::holds_alternative<GatherMatmul>(plan->instructions[0].kind));
      }
      if (may_overlap && c.is_scattered) {
        ASSERT_EQ(plan->instructions.size(), 2U);
        EXPECT_TRUE(std::holds_alternative<MatmulScatter>(plan->instructions[1].kind));
      }
      OrderPlan(++sequence, *plan);
      order_.max_trace_spans = kMaxRankSpans;
      RunOnAll();
      const Tensor out = Assemble();
      for (DeviceId device = 0; device < mesh().size(); ++device) {
        const StepResult result = Await(device);
        EXPECT_EQ(result.sent_bytes, ForecastBytes(device)) << "rank " << device;
        EXPECT_GE(result.collective_time, absl::ZeroDuration());
        ASSERT_TRUE(result.trace.has_value());
        absl::Duration kernels;
        for (const TraceSpan& span : result.trace->spans) {
          if (span.kind == TraceSpanKind::kKernel) kernels += span.elapsed;
        }
        EXPECT_EQ(kernels, result.kernel_time) << "of each product, fused or not";
      }
      if (!may_overlap) {
        plain = out.elements;
      } else {
        ASSERT_EQ(out.elements.size(), plain.size());
        EXPECT_EQ(std::memcmp(out.elements.data(), plain.data(), plain.size() * sizeof(float)), 0);
      }
    }
  }
}

TEST_P(StepExecutorTest, FusedColumnsAndBatchesHaveTheBitsOfThePlainPlan) {
  StartMesh("x=4");
  if (!rank(0).kernel.KeepsBitsOfParts(Dtype::kF32)) {
    GTEST_SKIP() << "this CPU's kernels give other bits to other numbers of columns";
  }
  const auto exchange = [](CollectiveKind kind, ValueIndex input, int64_t dimension) {
    return CollectiveOp{.input = input,
                        .kind = kind,
                        .axes = {"x"},
                        .dimension = dimension,
                        .algorithm = CollectiveAlgorithm::kPairwise};
  };
  const auto gather = [&](ValueIndex input, int64_t dimension) {
    return exchange(CollectiveKind::kAllGather, input, dimension);
  };
  const auto scatter = [&](int64_t dimension) {
    return exchange(CollectiveKind::kReduceScatter, 2, dimension);
  };
  const MatmulOp multiply = {.lhs = 0, .rhs = 1};
  struct Case {
    Shape lhs, rhs;
    PartitionSpec lhs_spec, rhs_spec;
    std::vector<ProgramOp> ops;
    std::vector<CutPoints> rhs_cuts = {};
  };
  const PartitionSpec whole = SpecOf({"", ""});
  const PartitionSpec whole_batch = SpecOf({"", "", ""});
  const std::vector<Case> cases = {
      // The second one has messages of several frames.
      {{41, 64},
       {512, 64},
       whole,
       SpecOf({"x", ""}),
       {gather(1, 0), LinearOp{.input = 0, .weight = 2}},
       {{0, 200, 200, 201, 512}, {}}},
      {{120, 1024},
       {1024, 2048},
       whole,
       SpecOf({"", "x"}),
       {gather(1, 1), MatmulOp{.lhs = 0, .rhs = 2}}},
      {{8, 33, 32},
       {8, 32, 64},
       SpecOf({"x", "", ""}),
       whole_batch,
       {gather(0, 0), MatmulOp{.lhs = 2, .rhs = 1}}},
      {{3, 36, 32},
       {32, 64},
       SpecOf({"", "x", ""}),
       whole,
       {gather(0, 1), MatmulOp{.lhs = 2, .rhs = 1}}},
      {{32, 64}, {64, 256}, whole, whole, {multiply, scatter(1)}},
      {{8, 16, 32}, {8, 32, 16}, whole_batch, whole_batch, {multiply, scatter(0)}},
  };
  int64_t sequence = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(StrCat("case ", &c - cases.data()));
    const int64_t id = sequence;
    operands_.clear();
    order_.operands.clear();
    Put(StrCat("lhs-", id), Tensor::Random(c.lhs, 1), c.lhs_spec);
    Put(StrCat("rhs-", id), Tensor::Random(c.rhs, 2), c.rhs_spec, c.rhs_cuts);
    const Program program = {.operand_count = 2, .ops = c.ops, .outputs = {3}};
    PlanTarget slow = Overlapping(target(), 2e4, /*may_overlap=*/false);
    const auto plan = PlanProgram(program, operands_, slow);
    ASSERT_TRUE(plan.ok()) << plan.status();
    slow.kernels.may_overlap_parts = true;
    const Plan fused = FuseExchanges(*plan, slow.links, slow.kernels);
    ASSERT_TRUE(OverlapsParts(fused));
    std::vector<float> plain;
    for (const Plan* const each : {&*plan, &fused}) {
      SCOPED_TRACE(each == &fused ? "fused" : "plain");
      {
        absl::MutexLock lock(&mutex_);
        results_.clear();
      }
      OrderPlan(++sequence, *each);
      RunOnAll();
      const Tensor out = Assemble();
      for (DeviceId device = 0; device < mesh().size(); ++device) {
        EXPECT_EQ(Await(device).sent_bytes, ForecastBytes(device)) << "rank " << device;
      }
      if (each != &fused) {
        plain = out.elements;
      } else {
        ASSERT_EQ(out.elements.size(), plain.size());
        EXPECT_EQ(std::memcmp(out.elements.data(), plain.data(), plain.size() * sizeof(float)), 0);
      }
    }
  }
}

TEST_P(StepExecutorTest, RowsInSharedMemoryAreMultipliedWhereTheyAre) {
  StartMesh("x=2");
  Put("input", Tensor::Random({700, 1024}, 1), SpecOf({"x", ""}));
  Put("weight", Tensor::Random({2048, 1024}, 2), SpecOf({"x", ""}));
  const auto plan =
      PlanProgram({.operand_count = 2, .ops = {LinearOp{.input = 0, .weight = 1}}, .outputs = {2}},
                  operands_, Overlapping(target(), 2e6));
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(OverlapsExchanges(*plan));
  OrderPlan(1, *plan);
  order_.return_literals = false;
  RunOnAll();
  for (DeviceId device = 0; device < 2; ++device) {
    ASSERT_EQ(Await(device).outcome, StepOutcome::kDone) << Await(device).status;
    absl::MutexLock lock(&rank(device).mutex);
    const StepObserver::CollectiveBytes& bytes = rank(device).last_bytes;
    EXPECT_EQ(bytes.sent, 350 * 1024 * 4);
    EXPECT_EQ(bytes.copied_to_send, 0);
    // Frames are collected to groups of rows, unless a frame has the whole group.
    EXPECT_LE(bytes.copied_received, GetParam() == Transport::kShm ? 0 : 350 * 1024 * 4);
  }
}

TEST_P(StepExecutorTest, AFusedExchangeBlamesARankThatNeverBegins) {
  StartMesh("x=2");
  Put("input", Tensor::Random({64, 32}, 1), SpecOf({"x", ""}));
  Put("weight", Tensor::Random({128, 32}, 2), SpecOf({"x", ""}));
  const auto plan =
      PlanProgram({.operand_count = 2, .ops = {LinearOp{.input = 0, .weight = 1}}, .outputs = {2}},
                  operands_, Overlapping(target(), 2e4));
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(OverlapsExchanges(*plan));
  OrderPlan(1, *plan);
  order_.timeout = absl::Milliseconds(200);
  Run(0, order_);
  const StepResult stuck = Await(0);
  EXPECT_THAT(stuck.status, test::StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(stuck.blamed_identity, "worker-1");
  EXPECT_THAT(std::string(stuck.status.message()), HasSubstr("multiplied as it arrives"));
  rank(1).executor->Abort(1, absl::CancelledError("rank 0 gave up"));
}

TEST_P(StepExecutorTest, UnevenOperandsMultiplyAndKeepTheirCuts) {
  StartMesh("x=2,y=2");
  const Tensor input = Tensor::Random({9, 10}, 1);
  const Tensor weight = Tensor::Random({7, 10}, 2);
  Tensor bias = Tensor::Random({7}, 4);
  std::vector<double> expected =
      Multiply({input.elements.begin(), input.elements.end()}, weight, 9);
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = std::max(expected[i] + static_cast<double>(bias.elements[i % 7]), 0.0);
  }
  // Partial sums over uneven parts, and then operands whose cuts do not agree.
  struct Case {
    PartitionSpec weight;
    std::vector<CutPoints> weight_cuts;
    std::vector<CutPoints> result_cuts;
  };
  const std::vector<Case> cases = {
      {SpecOf({"", "y"}), {{}, {0, 3, 10}}, {{0, 4, 9}, {}}},
      {SpecOf({"y", ""}), {{0, 2, 7}, {}}, {{0, 4, 9}, {0, 2, 7}}},
      {SpecOf({"", "x"}), {{}, {0, 9, 10}}, {{0, 4, 9}, {}}},
  };
  int64_t sequence = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(StrCat("case ", sequence));
    operands_.clear();
    order_.operands.clear();
    results_.clear();
    ++sequence;
    Put(StrCat("input-", sequence), input, SpecOf({"x", "y"}), {{0, 4, 9}, {0, 3, 10}});
    Put(StrCat("weight-", sequence), weight, c.weight, c.weight_cuts);
    Put(StrCat("bias-", sequence), bias, SpecOf({"x"}), {{0, 1, 7}});
    Order(sequence,
          {.operand_count = 3,
           .ops = {LinearOp{.input = 0, .weight = 1, .bias = 2, .activation = Activation::kRelu}},
           .outputs = {3}});
    RunOnAll();
    const Tensor out = Assemble();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(static_cast<double>(out.elements[i]), expected[i], 1e-4) << "element " << i;
    }
    EXPECT_EQ(order_.outputs[0].array.cut_points, c.result_cuts);
    for (DeviceId device = 0; device < mesh().size(); ++device) {
      EXPECT_EQ(Await(device).sent_bytes, ForecastBytes(device)) << "rank " << device;
    }
  }
}

TEST_P(StepExecutorTest, WeightsOfI8MultiplyWithTheirScalesWhereverTheyLie) {
  StartMesh("x=2,y=2");
  const Tensor input = Tensor::Random({9, 10}, 3);
  const Tensor bias = Tensor::Random({7}, 4);
  const Tensor scales = Tensor::Random({7}, 5);
  std::vector<int8_t> weight;
  for (int i = 0; i < 70; ++i) weight.push_back(static_cast<int8_t>(i * 37 % 255 - 127));
  const absl::Span<const char> weight_bytes(reinterpret_cast<const char*>(weight.data()),
                                            weight.size());
  std::vector<double> expected;
  for (size_t i = 0; i < 9; ++i) {
    for (size_t j = 0; j < 7; ++j) {
      double sum = 0;
      for (size_t k = 0; k < 10; ++k) {
        sum += static_cast<double>(input.elements[i * 10 + k]) * weight[j * 10 + k];
      }
      expected.push_back(sum * static_cast<double>(scales.elements[j]) +
                         static_cast<double>(bias.elements[j]));
    }
  }
  int64_t sequence = 0;
  // The contracted dimension in parts, the output features in uneven parts, and neither.
  for (const auto& [spec, cuts] :
       {std::pair(SpecOf({"", "y"}), std::vector<CutPoints>()),
        std::pair(SpecOf({"y", ""}), std::vector<CutPoints>{{0, 2, 7}, {}}),
        std::pair(SpecOf({"", ""}), std::vector<CutPoints>())}) {
    operands_.clear();
    order_.operands.clear();
    const std::string name = StrCat("weight-", sequence);
    Put(StrCat("input-", sequence), input, SpecOf({"", ""}));
    PutBytes(name, {.dtype = Dtype::kI8, .shape = {7, 10}, .spec = spec, .cut_points = cuts},
             weight_bytes);
    Put(StrCat("bias-", sequence), bias, SpecOf({""}));
    Put(StrCat("scales-", sequence), scales, SpecOf({"x"}), {{0, 1, 7}});
    // The first run packs the weight, and the second one may find it packed in the store.
    for (int run = 0; run < 2; ++run) {
      SCOPED_TRACE(StrCat(spec.ToString(), ", run ", run));
      results_.clear();
      Order(++sequence, {.operand_count = 4,
                         .ops = {LinearOp{.input = 0, .weight = 1, .bias = 2, .scales = 3}},
                         .outputs = {4}});
      RunOnAll();
      const Tensor out = Assemble();
      ASSERT_EQ(out.shape, (Shape{9, 7}));
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(static_cast<double>(out.elements[i]), expected[i], 1e-3) << "element " << i;
      }
    }
  }
}

TEST_P(StepExecutorTest, OperandsWithEmptyPartsMultiply) {
  struct Case {
    Shape lhs;  // transposed
    Shape rhs;
    RandomLayout lhs_layout;
    RandomLayout rhs_layout;
  };
  StartMesh("x=2,y=2");
  // Two rows over four ranks: two ranks have none.
  std::vector<Case> cases = {
      {{2, 4},
       {2, 4},
       {.spec = PartitionSpec({SpecEntry::Axes({"y", "x"}), SpecEntry::None()}),
        .cut_points = {{0, 1, 2, 2, 2}, {}},
        .has_empty_part = true},
       {.spec = SpecOf({"x", ""}), .cut_points = {}, .has_empty_part = false}}};
  LayoutDice dice(19);
  for (int i = 0; i < 60; ++i) {
    const auto extent = [&dice] { return 1 + static_cast<int64_t>(dice.Below(4)); };
    const int64_t k = extent();
    const Shape lhs = {k, extent()};
    const Shape rhs = {k, extent()};
    cases.push_back(
        {lhs, rhs, RandomLayoutOf(lhs, mesh(), dice), RandomLayoutOf(rhs, mesh(), dice)});
  }
  int64_t sequence = 0;
  int with_empty_parts = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(StrCat("case ", sequence, ": ", ShapeToString(c.lhs), " ", c.lhs_layout.ToString(),
                        " times ", ShapeToString(c.rhs), " ", c.rhs_layout.ToString()));
    operands_.clear();
    order_.operands.clear();
    results_.clear();
    ++sequence;
    with_empty_parts += c.lhs_layout.has_empty_part || c.rhs_layout.has_empty_part ? 1 : 0;
    const Tensor lhs = Tensor::Random(c.lhs, static_cast<int>(sequence));
    const Tensor rhs = Tensor::Random(c.rhs, static_cast<int>(sequence) + 1);
    Put(StrCat("lhs-", sequence), lhs, c.lhs_layout.spec, c.lhs_layout.cut_points);
    Put(StrCat("rhs-", sequence), rhs, c.rhs_layout.spec, c.rhs_layout.cut_points);
    Order(sequence, {.operand_count = 2,
                     .ops = {MatmulOp{.lhs = 0, .rhs = 1, .transpose_lhs = true}},
                     .outputs = {2}});
    RunOnAll();
    const Tensor out = Assemble();
    ASSERT_EQ(out.shape, (Shape{c.lhs[1], c.rhs[1]}));
    for (int64_t i = 0; i < c.lhs[1]; ++i) {
      for (int64_t j = 0; j < c.rhs[1]; ++j) {
        double sum = 0;
        for (int64_t x = 0; x < c.lhs[0]; ++x) {
          sum += static_cast<double>(lhs.elements[static_cast<size_t>(x * c.lhs[1] + i)]) *
                 static_cast<double>(rhs.elements[static_cast<size_t>(x * c.rhs[1] + j)]);
        }
        ASSERT_NEAR(static_cast<double>(out.elements[static_cast<size_t>(i * c.rhs[1] + j)]), sum,
                    1e-4)
            << "element " << i << ", " << j;
      }
    }
  }
  EXPECT_GT(with_empty_parts, 10);
}

// Returns lhs * rhs for batches of matrices, in doubles. `lhs` is [batch, m, k] or [batch, k, m];
// `rhs` likewise, and may have a batch of 1.
std::vector<double> MultiplyBatches(const Tensor& lhs, bool transpose_lhs, const Tensor& rhs,
                                    bool transpose_rhs) {
  const int64_t m = lhs.shape[transpose_lhs ? 2 : 1];
  const int64_t k = lhs.shape[transpose_lhs ? 1 : 2];
  const int64_t n = rhs.shape[transpose_rhs ? 1 : 2];
  std::vector<double> out;
  for (int64_t b = 0; b < lhs.shape[0]; ++b) {
    const int64_t rhs_b = rhs.shape[0] == 1 ? 0 : b;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t x = 0; x < k; ++x) {
          const int64_t left = transpose_lhs ? x * m + i : i * k + x;
          const int64_t right = transpose_rhs ? j * k + x : x * n + j;
          sum += static_cast<double>(lhs.elements[static_cast<size_t>(b * m * k + left)]) *
                 static_cast<double>(rhs.elements[static_cast<size_t>(rhs_b * k * n + right)]);
        }
        out.push_back(sum);
      }
    }
  }
  return out;
}

TEST_P(StepExecutorTest, EveryCandidateOfAProductOfBatchesMultiplies) {
  struct Case {
    Shape lhs;
    Shape rhs;
    bool transpose_lhs;
    bool transpose_rhs;
    PartitionSpec lhs_spec;
    PartitionSpec rhs_spec;
    std::vector<CutPoints> rhs_cuts;
    std::optional<PartitionSpec> result;
  };
  const std::vector<Case> cases = {
      {{4, 6, 8}, {4, 8, 10}, false, false, SpecOf({"x", "y", ""}), SpecOf({"", "x", ""}), {}, {}},
      {{4, 8, 6},
       {1, 10, 8},
       true,
       true,
       SpecOf({"", "x", ""}),
       SpecOf({"", "y", "x"}),
       {{}, {0, 3, 10}, {0, 1, 8}},
       {}},
      {{2, 6, 8},
       {2, 8, 4},
       false,
       false,
       SpecOf({"", "", "x"}),
       SpecOf({"", "x", "y"}),
       {},
       SpecOf({"", "x", "y"})},
      {{2, 8, 6},
       {2, 8, 4},
       true,
       false,
       SpecOf({"", "", ""}),
       SpecOf({"x", "", ""}),
       {},
       SpecOf({"y", "", "x"})},
  };
  StartMesh("x=2,y=2");
  int64_t sequence = 0;
  for (const Case& c : cases) {
    const Tensor lhs = Tensor::Random(c.lhs, 1);
    const Tensor rhs = Tensor::Random(c.rhs, 2);
    const std::vector<double> expected =
        MultiplyBatches(lhs, c.transpose_lhs, rhs, c.transpose_rhs);
    Program program = {.operand_count = 2,
                       .ops = {MatmulOp{.lhs = 0,
                                        .rhs = 1,
                                        .transpose_lhs = c.transpose_lhs,
                                        .transpose_rhs = c.transpose_rhs}},
                       .outputs = {2}};
    if (c.result.has_value()) {
      program.ops.push_back(ReshardOp{.input = 2, .spec = *c.result});
      program.outputs = {3};
    }
    operands_.clear();
    order_.operands.clear();
    Put(StrCat("lhs-", sequence), lhs, c.lhs_spec);
    Put(StrCat("rhs-", sequence), rhs, c.rhs_spec, c.rhs_cuts);
    const auto candidates = PlanCandidates(program, operands_, target(), 100);
    ASSERT_TRUE(candidates.ok()) << candidates.status();
    EXPECT_GT(candidates->size(), 2u);
    for (const PlanCandidate& candidate : *candidates) {
      SCOPED_TRACE(StrCat("case of step ", sequence, ", ", candidate.roles));
      results_.clear();
      OrderPlan(++sequence, candidate.plan);
      RunOnAll();
      const Tensor out = Assemble();
      ASSERT_EQ(out.elements.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(static_cast<double>(out.elements[i]), expected[i], 1e-4) << "element " << i;
      }
      for (DeviceId device = 0; device < mesh().size(); ++device) {
        EXPECT_EQ(Await(device).sent_bytes, ForecastBytes(device)) << "rank " << device;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StepExecutorTest,
                         testing::Values(Transport::kStream, Transport::kShm), TransportName);

TEST_P(StepExecutorTest, AnEmptyBatchOfLargeMatricesMultiplies) {
  StartMesh("x=1");
  constexpr int64_t kRows = int64_t{1} << 32;
  constexpr int64_t kColumns = int64_t{1} << 31;
  Put("lhs", Tensor::Random({0, kRows, kColumns}, 1), PartitionSpec());
  Put("rhs", Tensor::Random({0, kColumns, 4}, 2), PartitionSpec());
  Order(1, {.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}});
  Run(0, order_);
  const StepResult result = Await(0);
  EXPECT_EQ(result.outcome, StepOutcome::kDone) << result.status;
}

TEST_P(StepExecutorTest, ABatchOfSmallProductsEndsAtItsDeadline) {
  StartMesh("x=1");
  constexpr int64_t kProducts = int64_t{1} << 20;
  Put("lhs", Tensor::Random({kProducts, 1, 1}, 1), PartitionSpec());
  Put("rhs", Tensor::Random({kProducts, 1, 1}, 2), PartitionSpec());
  Order(1, {.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}});
  order_.return_literals = false;
  order_.timeout = absl::Milliseconds(60);
  Run(0, order_);
  const StepResult result = Await(0);
  EXPECT_THAT(result.status,
              test::StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
}

TEST_P(StepExecutorTest, FeedForwardColumnThenRowParallelEqualsPlainLoops) {
  StartMesh("fsdp=2,tp=2");
  const Tensor input = Tensor::Random({8, 32}, 1);
  const Tensor up = Tensor::Random({64, 32}, 2);
  const Tensor down = Tensor::Random({32, 64}, 3);
  const Tensor bias = Tensor::Random({32}, 4);
  Put("input", input, SpecOf({"fsdp", ""}));
  Put("up", up, SpecOf({"tp", ""}));
  Put("down", down, SpecOf({"", "tp"}));
  Put("bias", bias, SpecOf({""}));
  Order(1, {.operand_count = 4,
            .ops = {LinearOp{.input = 0, .weight = 1, .activation = Activation::kRelu},
                    LinearOp{.input = 4, .weight = 2, .bias = 3}},
            .outputs = {5}});
  RunOnAll();
  const Tensor out = Assemble();

  std::vector<double> hidden =
      Multiply({input.elements.begin(), input.elements.end()}, up, input.shape[0]);
  for (double& x : hidden) x = std::max(x, 0.0);
  const std::vector<double> expected = Multiply(hidden, down, input.shape[0]);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(out.elements[i]),
                expected[i] + static_cast<double>(bias.elements[i % 32]), 1e-3)
        << "element " << i;
  }
  std::vector<FlightRecord> flights = rank(0).recorder.Last();
  EXPECT_GT(flights.size(), 1u) << "work of the rank alone is recorded too";
  std::erase_if(flights, [](const FlightRecord& record) { return record.peers.empty(); });
  ASSERT_EQ(flights.size(), 1u);
  EXPECT_THAT(flights[0].what, HasSubstr("all-reduce over tp"));
  EXPECT_TRUE(flights[0].outcome.ok());
  EXPECT_GT(Await(0).sent_bytes, 0);
  EXPECT_EQ(Await(0).sent_bytes, ForecastBytes(0));
}

// The spans of this kind, of all instructions.
int64_t CountSpans(const RankTrace& trace, TraceSpanKind kind) {
  return std::count_if(trace.spans.begin(), trace.spans.end(),
                       [&](const TraceSpan& span) { return span.kind == kind; });
}

TEST_P(StepExecutorTest, ATracedStepTellsWhatEachRankDidAndAnotherOneNothing) {
  StartMesh("x=2");
  Put("input", Tensor::Random({64, 128}, 1), SpecOf({"", "x"}));
  Put("weight", Tensor::Random({128, 32}, 2), SpecOf({"x", ""}));
  const Program product = {
      .operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}};
  Order(1, product);
  order_.max_trace_spans = kMaxRankSpans;
  const absl::Time before = absl::Now();
  RunOnAll();
  for (DeviceId device = 0; device < 2; ++device) {
    SCOPED_TRACE(StrCat("rank ", device));
    const StepResult result = Await(device);
    ASSERT_EQ(result.outcome, StepOutcome::kDone) << result.status;
    ASSERT_TRUE(result.trace.has_value());
    const RankTrace& trace = *result.trace;
    EXPECT_EQ(trace.rank, device);
    EXPECT_GE(trace.started, before - absl::Milliseconds(1));
    EXPECT_LE(trace.started, absl::Now());
    EXPECT_EQ(CountSpans(trace, TraceSpanKind::kInstruction),
              static_cast<int64_t>(rank(device).recorder.Last().size()));
    EXPECT_GE(CountSpans(trace, TraceSpanKind::kKernel), 1);
    EXPECT_GE(CountSpans(trace, TraceSpanKind::kSend), 1);
    int64_t sent_bytes = 0;
    int64_t instruction_bytes = 0;
    for (const TraceSpan& span : trace.spans) {
      EXPECT_GE(span.start, absl::ZeroDuration());
      EXPECT_GE(span.elapsed, absl::ZeroDuration());
      if (span.kind == TraceSpanKind::kKernel) {
        EXPECT_GT(span.flops, 0);
      }
      if (span.kind == TraceSpanKind::kSend) {
        sent_bytes += span.bytes;
        EXPECT_EQ(span.peer, 1 - device);
      }
      if (span.kind == TraceSpanKind::kInstruction) instruction_bytes += span.bytes;
    }
    EXPECT_EQ(sent_bytes, result.sent_bytes);
    EXPECT_EQ(instruction_bytes, result.sent_bytes);
    ASSERT_TRUE(rank(device).executor->Commit(1).ok());
  }
  Order(2, product);
  order_.max_trace_spans = 0;
  RunOnAll();
  for (DeviceId device = 0; device < 2; ++device) {
    EXPECT_FALSE(Await(device, 2).trace.has_value());
  }
}

TEST_P(StepExecutorTest, CollectivesAlongAnyDimensionEqualTheirDefinition) {
  struct Case {
    std::string name;
    CollectiveOp op;
    PartitionSpec spec;
    std::function<float(const Tensor&, size_t)> expected;
  };
  const auto same = [](const Tensor& in, size_t i) { return in.elements[i]; };
  const auto times = [](float factor) {
    return [factor](const Tensor& in, size_t i) { return factor * in.elements[i]; };
  };
  const std::vector<Case> cases = {
      {"all-gather of rows",
       {.kind = CollectiveKind::kAllGather, .axes = {"x"}, .dimension = 0},
       SpecOf({"x", ""}),
       same},
      {"all-gather of columns",
       {.kind = CollectiveKind::kAllGather, .axes = {"y"}, .dimension = 1},
       SpecOf({"x", "y"}),
       same},
      {"all-reduce of replicas",
       {.kind = CollectiveKind::kAllReduce, .axes = {"x", "y"}},
       SpecOf({"", ""}),
       times(4)},
      {"all-reduce, mean",
       {.kind = CollectiveKind::kAllReduce, .axes = {"x"}, .reduction = Reduction::kMean},
       SpecOf({"", "y"}),
       same},
      {"reduce-scatter of columns",
       {.kind = CollectiveKind::kReduceScatter, .axes = {"y"}, .dimension = 1},
       SpecOf({"x", ""}),
       times(2)},
      {"reduce-scatter of rows",
       {.kind = CollectiveKind::kReduceScatter, .axes = {"x", "y"}, .dimension = 0},
       SpecOf({"", ""}),
       times(4)},
  };
  StartMesh("x=2,y=2");
  int64_t sequence = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    for (const Shape& shape : {Shape{8, 12}, Shape{4, 0}}) {
      const Tensor input = Tensor::Random(shape, 5);
      operands_.clear();
      order_.operands.clear();
      results_.clear();
      ++sequence;
      Put(StrCat("in-", sequence), input, c.spec);
      Order(sequence, {.operand_count = 1, .ops = {c.op}, .outputs = {1}});
      RunOnAll();
      const Tensor out = Assemble();
      ASSERT_EQ(out.elements.size(), input.elements.size());
      for (size_t i = 0; i < out.elements.size(); ++i) {
        EXPECT_FLOAT_EQ(out.elements[i], c.expected(input, i)) << "element " << i;
      }
    }
  }
}

// Every collective, as its definition in program/program.h reads, on the tiles of all devices.
class CollectiveStepTest : public StepExecutorTest {
 protected:
  using Tiles = std::vector<std::string>;  // bytes by device

  // Puts an array of which each device has the tile given, whatever replicas have.
  void PutTiles(const std::string& id, const ValueDescriptor& value, const Tiles& tiles) {
    const Tiling tiling = *Tiling::Create(mesh(), value.spec, value.shape, value.cut_points);
    for (DeviceId device = 0; device < mesh().size(); ++device) {
      auto staged = *rank(device).store->Stage({.array_id = id,
                                                .dtype = value.dtype,
                                                .array_shape = value.shape,
                                                .tile = tiling.TileOf(device),
                                                .array_descriptor = "",
                                                .transfer_id = "put"},
                                               false);
      const std::string& tile = tiles[static_cast<size_t>(device)];
      ASSERT_EQ(staged->mutable_bytes().size(), tile.size());
      std::copy(tile.begin(), tile.end(), staged->mutable_bytes().begin());
      ASSERT_TRUE(staged->Finish(std::nullopt).ok());
      ASSERT_TRUE(rank(device).store->Commit({id}).ok());
    }
    operands_ = {value};
    order_.operands = {{.value = id}};
  }

  // Different on every device; sums of floats depend on their order.
  Tiles SomeTiles(const ValueDescriptor& value, bool exact) const {
    const Tiling tiling = *Tiling::Create(mesh(), value.spec, value.shape, value.cut_points);
    Tiles tiles;
    std::mt19937 random(7);
    for (DeviceId device = 0; device < mesh().size(); ++device) {
      const int64_t count = tiling.TileOf(device).element_count();
      std::string tile;
      if (value.dtype == Dtype::kF32) {
        for (int64_t i = 0; i < count; ++i) {
          const float x = exact ? static_cast<float>(random() % 1000)
                                : std::ldexp(static_cast<float>(random() % 9999) - 5000.0F,
                                             static_cast<int>(random() % 30));
          tile.append(reinterpret_cast<const char*>(&x), sizeof(x));
        }
      } else {
        tile.resize(static_cast<size_t>(*PackedSizeBytes(value.dtype, count)));
        for (char& byte : tile) byte = static_cast<char>(random());
      }
      tiles.push_back(std::move(tile));
    }
    return tiles;
  }

  // T(lo, n) of element `i` of F32 or I32 tiles.
  template <typename T>
  static T TreeSum(const Tiles& tiles, size_t lo, size_t n, size_t i) {
    if (n == 1) {
      T x;
      std::memcpy(&x, tiles[lo].data() + i * sizeof(T), sizeof(T));
      return x;
    }
    size_t k = 1;
    while (2 * k < n) k *= 2;
    return static_cast<T>(TreeSum<T>(tiles, lo, k, i) + TreeSum<T>(tiles, lo + k, n - k, i));
  }
  template <typename T>
  static std::string SumOf(const Tiles& tiles) {
    std::string sum(tiles[0].size(), '\0');
    for (size_t i = 0; i < sum.size() / sizeof(T); ++i) {
      const T x = TreeSum<T>(tiles, 0, tiles.size(), i);
      std::memcpy(sum.data() + i * sizeof(T), &x, sizeof(T));
    }
    return sum;
  }

  static Tile Part(const Shape& shape, int64_t dimension, size_t place, size_t parts) {
    Tile tile = Tile::Whole(shape);
    const auto dim = static_cast<size_t>(dimension);
    const int64_t extent = shape[dim] / static_cast<int64_t>(parts);
    const auto begin = static_cast<int64_t>(place) * extent;
    tile.ranges[dim] = {begin, begin + extent};
    return tile;
  }
  static std::string Cut(Dtype dtype, const Shape& shape, const std::string& bytes,
                         const Tile& part) {
    const TensorView whole = *TensorView::Create(dtype, shape, bytes);
    std::string cut(static_cast<size_t>(*PackedSizeBytes(dtype, part.element_count())), '\0');
    EXPECT_TRUE(CopyTileBytes(whole, part, 0, absl::MakeSpan(cut)).ok());
    return cut;
  }
  static std::string Join(Dtype dtype, Shape shape, const Tiles& parts, int64_t dimension) {
    shape[static_cast<size_t>(dimension)] *= static_cast<int64_t>(parts.size());
    std::string joined;
    for (const std::string& part : parts) joined += part;
    std::string pasted(joined.size(), '\0');
    const auto view = *MutableTensorView::Create(dtype, shape, absl::MakeSpan(pasted));
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_TRUE(PasteTileBytes(parts[i], Part(shape, dimension, i, parts.size()), 0, view).ok());
    }
    return pasted;
  }

  // What `device` has afterwards.
  std::string Expected(const CollectiveOp& op, const ValueDescriptor& value, const Tiles& tiles,
                       DeviceId device) const {
    using Kind = CollectiveKind;
    const DeviceGroup group = *DeviceGroup::Create(mesh(), op.axes, device);
    const auto place = static_cast<size_t>(group.place());
    const Shape shape = Tiling::Create(mesh(), value.spec, value.shape)->ShardShape();
    Tiles members;
    for (const DeviceId member : group.devices()) {
      members.push_back(tiles[static_cast<size_t>(member)]);
    }
    const bool is_root = group.place() == op.root;
    const std::string& of_root = members[static_cast<size_t>(op.root)];
    const auto part = [&](const std::string& tile, int64_t dimension) {
      return Cut(value.dtype, shape, tile, Part(shape, dimension, place, members.size()));
    };
    const auto sum = [&] {
      return value.dtype == Dtype::kF32 ? SumOf<float>(members) : SumOf<uint32_t>(members);
    };
    const auto at_root = [&](std::string bytes) {
      return is_root ? bytes : std::string(bytes.size(), '\0');
    };
    switch (op.kind) {
      case Kind::kAllReduce:
        return sum();
      case Kind::kReduceScatter:
        return part(sum(), op.dimension);
      case Kind::kReduce:
        return at_root(sum());
      case Kind::kAllGather:
        return Join(value.dtype, shape, members, op.dimension);
      case Kind::kGather:
        return at_root(Join(value.dtype, shape, members, op.dimension));
      case Kind::kAllToAll: {
        Shape part_shape = shape;
        part_shape[static_cast<size_t>(op.split_dimension)] /= static_cast<int64_t>(members.size());
        for (std::string& tile : members) tile = part(tile, op.split_dimension);
        return Join(value.dtype, part_shape, members, op.dimension);
      }
      case Kind::kBroadcast:
        return of_root;
      case Kind::kScatter:
        return part(of_root, op.dimension);
      case Kind::kPermute:
        for (const PermutePair& pair : op.permutation) {
          if (pair.target == group.place()) return members[static_cast<size_t>(pair.source)];
        }
        return std::string(members[place].size(), '\0');
      case Kind::kBarrier:
        return members[place];
    }
    return "";
  }

  void ExpectAsDefined(const CollectiveOp& op, const ValueDescriptor& value, bool exact) {
    SCOPED_TRACE(StrCat(CollectiveKindName(op.kind), " by ", CollectiveAlgorithmName(op.algorithm),
                        " over ", StrJoin(op.axes, ","), " of ", DtypeName(value.dtype), " ",
                        ShapeToString(value.shape), " at ", value.spec.ToString(), ", root ",
                        op.root));
    const Tiles tiles = SomeTiles(value, exact);
    ++sequence_;
    {
      absl::MutexLock lock(&mutex_);
      results_.clear();
    }
    PutTiles(StrCat("in-", sequence_), value, tiles);
    Order(sequence_, {.operand_count = 1, .ops = {op}, .outputs = {1}});
    order_.return_literals = false;
    RunOnAll();
    const ArrayDescriptor& out = order_.outputs[0].array;
    for (DeviceId device = 0; device < mesh().size(); ++device) {
      const StepResult result = Await(device);
      ASSERT_EQ(result.outcome, StepOutcome::kDone) << result.status;
      EXPECT_EQ(result.sent_bytes, ForecastBytes(device)) << "from device " << device;
      ASSERT_TRUE(rank(device).executor->Commit(order_.sequence).ok());
      const StoredTilePtr tile =
          *rank(device).store->Find(out.array_id, out.Tiling()->TileOf(device));
      EXPECT_TRUE(std::string(tile->bytes().data(), tile->bytes().size()) ==
                  Expected(op, value, tiles, device))
          << "on device " << device;
      ASSERT_TRUE(rank(device).store->Release({StrCat("in-", sequence_), out.array_id}).ok());
    }
  }

  // Every kind by every algorithm over these axes, on tiles of which dimension 0 is partitioned
  // over `outer` and the axes, and on empty ones. Extents of `shape` are divided by everything.
  void ExpectAllAsDefined(const std::vector<std::string>& axes, const std::string& outer,
                          const Shape& shape, Dtype dtype) {
    int64_t ranks = 1;
    for (const std::string& axis : axes) {
      ranks *= mesh().axes()[static_cast<size_t>(*mesh().FindAxis(axis))].size;
    }
    std::vector<AxisName> first;
    if (!outer.empty()) first.push_back(outer);
    first.insert(first.end(), axes.begin(), axes.end());
    const PartitionSpec spec({SpecEntry::Axes(first)});
    const bool has_sums = dtype == Dtype::kF32 || dtype == Dtype::kI32;
    for (const CollectiveKind kind : AllCollectiveKinds()) {
      if (IsReduction(kind) && !has_sums) continue;
      for (const CollectiveAlgorithm algorithm : AlgorithmsOf(kind)) {
        CollectiveOp op = {.kind = kind, .axes = axes, .algorithm = algorithm};
        if (kind == CollectiveKind::kAllToAll) op.split_dimension = 1;
        if (kind == CollectiveKind::kPermute) {
          op.permutation = {{.source = ranks - 1, .target = 0}};
          if (ranks > 2) op.permutation.push_back({.source = 0, .target = 2});
        }
        const bool has_root = kind == CollectiveKind::kBroadcast ||
                              kind == CollectiveKind::kReduce || kind == CollectiveKind::kGather ||
                              kind == CollectiveKind::kScatter;
        const bool sums_by_ring = algorithm == CollectiveAlgorithm::kRing && IsReduction(kind);
        if (sums_by_ring) op.order = CollectiveOrder::kFastest;
        for (op.root = 0; op.root < (has_root ? ranks : 1); ++op.root) {
          ExpectAsDefined(op, {dtype, shape, spec}, sums_by_ring);
        }
        op.root = 0;
        ExpectAsDefined(op, {dtype, {shape[0], 0, 2}, spec}, sums_by_ring);
        ExpectAsDefined(op, {dtype, {0, shape[1]}, spec}, sums_by_ring);
        if (kind == CollectiveKind::kScatter || kind == CollectiveKind::kReduceScatter) {
          op.dimension = 1;  // whose parts do not lie in one piece
          ExpectAsDefined(op, {dtype, shape, spec}, sums_by_ring);
        }
        if (kind == CollectiveKind::kAllGather || kind == CollectiveKind::kGather ||
            kind == CollectiveKind::kAllToAll) {
          op.dimension = 1;
          op.split_dimension = kind == CollectiveKind::kAllToAll ? 2 : 0;
          ExpectAsDefined(op,
                          {dtype,
                           {2, shape[0], shape[1]},
                           PartitionSpec({SpecEntry::None(), SpecEntry::Axes(first)})},
                          sums_by_ring);
        }
      }
    }
  }

 private:
  int64_t sequence_ = 0;
};

INSTANTIATE_TEST_SUITE_P(All, CollectiveStepTest,
                         testing::Values(Transport::kStream, Transport::kShm), TransportName);

TEST_P(CollectiveStepTest, EveryKindByEveryAlgorithmAlongEachAxisOfAMeshAndBoth) {
  StartMesh("x=2,y=2");
  ExpectAllAsDefined({"x"}, "y", {16, 12}, Dtype::kF32);
  ExpectAllAsDefined({"y"}, "", {16, 12}, Dtype::kI32);
  ExpectAllAsDefined({"y", "x"}, "", {16, 12}, Dtype::kF32);
}

TEST_P(CollectiveStepTest, EveryKindByEveryAlgorithmOnThreeRanks) {
  StartMesh("x=3");
  ExpectAllAsDefined({"x"}, "", {18, 15}, Dtype::kF32);
  ExpectAllAsDefined({"x"}, "", {18, 15}, Dtype::kBool);
  ExpectAllAsDefined({"x"}, "", {9, 9}, Dtype::kC64);
}

TEST_P(CollectiveStepTest, EveryKindByEveryAlgorithmOnOneRank) {
  StartMesh("x=1");
  ExpectAllAsDefined({"x"}, "", {2, 3}, Dtype::kF32);
}

TEST_P(CollectiveStepTest, LargeTilesGoInChunks) {
  StartMesh("x=3");
  const ValueDescriptor value = {Dtype::kF32, {3, 100'003, 3}, SpecOf({"x"})};
  for (const CollectiveAlgorithm algorithm : AlgorithmsOf(CollectiveKind::kAllReduce)) {
    const bool by_ring = algorithm == CollectiveAlgorithm::kRing;
    ExpectAsDefined({.kind = CollectiveKind::kAllReduce,
                     .axes = {"x"},
                     .algorithm = algorithm,
                     .order = by_ring ? CollectiveOrder::kFastest : CollectiveOrder::kReproducible},
                    value, by_ring);
  }
  for (const CollectiveAlgorithm algorithm : AlgorithmsOf(CollectiveKind::kBroadcast)) {
    ExpectAsDefined(
        {.kind = CollectiveKind::kBroadcast, .axes = {"x"}, .root = 1, .algorithm = algorithm},
        value, false);
  }
}

TEST_P(CollectiveStepTest, ElementsThatShareBytesMoveWhereNoneIsCut) {
  StartMesh("x=2");
  for (const CollectiveKind kind :
       {CollectiveKind::kAllGather, CollectiveKind::kBroadcast, CollectiveKind::kPermute,
        CollectiveKind::kGather, CollectiveKind::kScatter, CollectiveKind::kAllToAll}) {
    CollectiveOp op = {.kind = kind, .axes = {"x"}, .algorithm = CollectiveAlgorithm::kPairwise};
    if (kind == CollectiveKind::kPermute) op.permutation = {{0, 1}};
    if (kind == CollectiveKind::kAllToAll) op.split_dimension = 1;
    ExpectAsDefined(op, {Dtype::kF4, {4, 8}, SpecOf({"x"})}, false);
  }
}

// Of unequal tiles: what comes of whole rows of numbers.
class UnequalTilesTest : public CollectiveStepTest {
 protected:
  static constexpr int64_t kColumns = 7;

  // Row r of an array of `rows` rows, r * kColumns and on, or `factor` times that.
  static std::vector<float> Rows(int64_t rows, float factor = 1) {
    std::vector<float> elements;
    for (int64_t i = 0; i < rows * kColumns; ++i) {
      elements.push_back(factor * static_cast<float>(i));
    }
    return elements;
  }
  // Puts tiles of Rows(value.shape[0]), replicas of device d with d+1 times that.
  void PutRows(const std::string& id, const ValueDescriptor& value, bool replicas_differ) {
    const Tiling tiling = *Tiling::Create(mesh(), value.spec, value.shape, value.cut_points);
    Tiles tiles;
    for (DeviceId device = 0; device < mesh().size(); ++device) {
      const std::vector<float> rows =
          Rows(value.shape[0], replicas_differ ? static_cast<float>(device + 1) : 1);
      tiles.push_back(Cut(Dtype::kF32, value.shape, AsBytes(rows), tiling.TileOf(device)));
    }
    PutTiles(id, value, tiles);
  }
  static std::string AsBytes(const std::vector<float>& elements) {
    return {reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(float)};
  }

  // Runs `op` on Rows; each device is to have its tile of the same rows, times `factor(device)`.
  void ExpectRows(const CollectiveOp& op, const ValueDescriptor& value, bool replicas_differ,
                  const std::function<float(DeviceId)>& factor) {
    SCOPED_TRACE(StrCat(CollectiveKindName(op.kind), " by ", CollectiveAlgorithmName(op.algorithm),
                        " of ", value.spec.ToString()));
    const int64_t sequence = ++step_;
    {
      absl::MutexLock lock(&mutex_);
      results_.clear();
    }
    PutRows(StrCat("rows-", sequence), value, replicas_differ);
    Order(sequence, {.operand_count = 1, .ops = {op}, .outputs = {1}});
    order_.return_literals = false;
    RunOnAll();
    const ArrayDescriptor& out = order_.outputs[0].array;
    const Tiling tiling = *out.Tiling();
    for (DeviceId device = 0; device < mesh().size(); ++device) {
      const StepResult result = Await(device);
      ASSERT_EQ(result.outcome, StepOutcome::kDone) << result.status;
      EXPECT_EQ(result.sent_bytes, ForecastBytes(device)) << "from device " << device;
      ASSERT_TRUE(rank(device).executor->Commit(sequence).ok());
      const Tile tile = tiling.TileOf(device);
      const StoredTilePtr stored = *rank(device).store->Find(out.array_id, tile);
      EXPECT_TRUE(std::string(stored->bytes().data(), stored->bytes().size()) ==
                  Cut(Dtype::kF32, out.shape, AsBytes(Rows(out.shape[0], factor(device))), tile))
          << "on device " << device << ", " << tile.ToString();
    }
  }

 private:
  int64_t step_ = 0;
};

INSTANTIATE_TEST_SUITE_P(All, UnequalTilesTest,
                         testing::Values(Transport::kStream, Transport::kShm), TransportName);

TEST_P(UnequalTilesTest, AreJoinedSplitAndExchanged) {
  StartMesh("x=2,y=3");
  const auto once = [](DeviceId) { return 1.0F; };
  const PartitionSpec rows({SpecEntry::Axes({"x", "y"})});
  // Of each x: 1, 2 and 7 rows, and 5, 1 and 4.
  const ValueDescriptor cut = {Dtype::kF32, {20, kColumns}, rows, {{0, 1, 3, 10, 15, 16, 20}, {}}};
  for (const CollectiveAlgorithm algorithm : AlgorithmsOf(CollectiveKind::kAllGather)) {
    ExpectRows({.kind = CollectiveKind::kAllGather, .axes = {"y"}, .algorithm = algorithm}, cut,
               false, once);
    ExpectRows({.kind = CollectiveKind::kAllGather, .axes = {"x", "y"}, .algorithm = algorithm},
               cut, false, once);
  }
  ExpectRows({.kind = CollectiveKind::kGather, .axes = {"y"}, .root = 2}, cut, false,
             [](DeviceId device) { return device % 3 == 2 ? 1.0F : 0.0F; });
  ExpectRows({.kind = CollectiveKind::kAllToAll,
              .axes = {"y"},
              .dimension = 0,
              .split_dimension = 1,
              .counts = {4, 1, 2}},
             cut, false, once);
  ExpectRows({.kind = CollectiveKind::kBarrier, .axes = {"y"}}, cut, false, once);

  // Device d has d+1 times the rows; those of the groups along y are 3x+1 to 3x+3 times.
  const ValueDescriptor replicated = {
      Dtype::kF32, {20, kColumns}, PartitionSpec({SpecEntry::Axis("x")})};
  for (const int64_t dimension : {0, 1}) {
    const std::vector<int64_t> counts =
        dimension == 0 ? std::vector<int64_t>{8, 1, 1} : std::vector<int64_t>{1, 4, 2};
    ExpectRows({.kind = CollectiveKind::kScatter,
                .axes = {"y"},
                .dimension = dimension,
                .root = 1,
                .counts = counts},
               replicated, true,
               [](DeviceId device) { return static_cast<float>(device / 3 * 3 + 2); });
    for (const CollectiveAlgorithm algorithm : AlgorithmsOf(CollectiveKind::kReduceScatter)) {
      ExpectRows({.kind = CollectiveKind::kReduceScatter,
                  .axes = {"y"},
                  .dimension = dimension,
                  .counts = counts,
                  .algorithm = algorithm,
                  .order = CollectiveOrder::kFastest},
                 replicated, true,
                 [](DeviceId device) { return static_cast<float>(device / 3 * 9 + 6); });
    }
  }
}

TEST_P(StepExecutorTest, OneRankTakesALiteralAndSlicesNothing) {
  StartMesh("x=1");
  const Tensor weight = Tensor::Random({4, 3}, 1);
  const Tensor input = Tensor::Random({2, 3}, 2);
  Put("weight", weight, SpecOf({"", ""}));
  operands_.push_back({.dtype = Dtype::kF32, .shape = input.shape, .spec = SpecOf({"", ""})});
  order_.operands.push_back(
      {.value = Literal{Dtype::kF32, input.shape,
                        std::string(input.bytes().data(), input.bytes().size())}});
  Order(1, {.operand_count = 2, .ops = {LinearOp{.input = 1, .weight = 0}}, .outputs = {2}});
  RunOnAll();
  const Tensor out = Assemble();
  const std::vector<double> expected =
      Multiply({input.elements.begin(), input.elements.end()}, weight, 2);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(out.elements[i]), expected[i], 1e-5);
  }
}

class AllReduceStepTest : public StepExecutorTest {
 protected:
  void Prepare(int64_t sequence) {
    StartMesh("x=3");
    Put("in", Tensor::Random({6, 5}, 1), SpecOf({"", ""}));
    Order(sequence, {.operand_count = 1,
                     .ops = {CollectiveOp{.kind = CollectiveKind::kAllReduce, .axes = {"x"}}},
                     .outputs = {1}});
  }
};

INSTANTIATE_TEST_SUITE_P(All, AllReduceStepTest,
                         testing::Values(Transport::kStream, Transport::kShm), TransportName);

TEST_P(AllReduceStepTest, AnOperandMayBeStagedWhereTheCommitHasNotComeYet) {
  StartMesh("x=3");
  Put("in", Tensor::Random({6, 5}, 1), SpecOf({"", ""}), {}, /*late=*/1);
  Order(4, {.operand_count = 1,
            .ops = {CollectiveOp{.kind = CollectiveKind::kAllReduce, .axes = {"x"}}},
            .outputs = {1}});
  RunOnAll();
  for (DeviceId device = 0; device < 3; ++device) {
    EXPECT_EQ(Await(device).outcome, StepOutcome::kDone);
  }
}

TEST_P(AllReduceStepTest, FailureOfOneRankEndsTheStepOnAllAndIsNamed) {
  Prepare(4);
  ASSERT_TRUE(rank(1).store->Release({"in"}).ok());
  RunOnAll();
  for (DeviceId device = 0; device < 3; ++device) {
    const StepResult result = Await(device);
    EXPECT_EQ(result.outcome, StepOutcome::kFailed);
    EXPECT_EQ(result.status.code(), absl::StatusCode::kNotFound) << result.status;
    EXPECT_THAT(std::string(result.status.message()),
                testing::AllOf(HasSubstr("(worker-1), step 4"), HasSubstr("operand 0")));
    if (device != 1) {
      EXPECT_EQ(result.blamed_identity, "worker-1");
    }
    EXPECT_FALSE(rank(device).store->FindAll("out-4-0").ok());
    EXPECT_EQ(ReasonOf(rank(device).executor->Commit(4)), Reason::kNotFound);
  }
}

TEST_P(AllReduceStepTest, RanksThatReduceOtherwiseFailInsteadOfMixingTheirBytes) {
  Prepare(4);
  Run(0, order_);
  Run(1, order_);
  // As many bytes, by the same algorithm.
  Order(4, {.operand_count = 1,
            .ops = {CollectiveOp{
                .kind = CollectiveKind::kAllReduce, .axes = {"x"}, .reduction = Reduction::kMax}},
            .outputs = {1}});
  Run(2, order_);
  for (DeviceId device = 0; device < 3; ++device) {
    const StepResult result = Await(device);
    EXPECT_EQ(result.outcome, StepOutcome::kFailed);
    EXPECT_EQ(ReasonOf(result.status), Reason::kCollectiveMismatch) << result.status;
    EXPECT_THAT(
        std::string(result.status.message()),
        testing::AllOf(HasSubstr("all-reduce (sum) of F32[6,5] to F32[6,5] over x, 3 ranks"),
                       HasSubstr("all-reduce (max) of F32[6,5]"), HasSubstr("rank 2")));
  }
}

TEST_P(AllReduceStepTest, LossOfARankEndsTheStepOnTheOthers) {
  Prepare(1);
  Run(0, order_);
  Run(1, order_);
  ranks_[2]->executor.reset();
  workers_->Kill(2);
  for (DeviceId device = 0; device < 2; ++device) {
    const StepResult result = Await(device);
    EXPECT_EQ(result.outcome, StepOutcome::kFailed);
    EXPECT_EQ(ReasonOf(result.status), Reason::kWorkerLost) << result.status;
    EXPECT_THAT(std::string(result.status.message()),
                testing::AllOf(HasSubstr("worker-2"), HasSubstr("step 1")));
  }
}

TEST_P(AllReduceStepTest, UnknownPlanIsAskedForAndHoldsTheStepsPlace) {
  Prepare(1);
  StepOrder without_bytes = order_;
  without_bytes.plan_bytes.clear();
  for (DeviceId device = 0; device < 3; ++device) Run(device, without_bytes);
  for (DeviceId device = 0; device < 3; ++device) {
    EXPECT_EQ(Await(device).outcome, StepOutcome::kNeedPlan);
  }
  RunOnAll();
  for (DeviceId device = 0; device < 3; ++device) {
    EXPECT_EQ(Await(device, 2).outcome, StepOutcome::kDone) << Await(device, 2).status;
  }
  // From now on it is known.
  without_bytes.sequence = 2;
  without_bytes.outputs[0].array.array_id = "out-2-0";
  for (DeviceId device = 0; device < 3; ++device) Run(device, without_bytes);
  for (DeviceId device = 0; device < 3; ++device) {
    EXPECT_EQ(Await(device, 3).outcome, StepOutcome::kDone) << Await(device, 3).status;
  }
}

TEST_P(AllReduceStepTest, StepThatAPeerNeverBeginsEndsAtItsDeadline) {
  Prepare(1);
  order_.timeout = absl::Seconds(2);  // the exchange has begun by then, on a busy machine too
  Run(0, order_);
  const StepResult result = Await(0);
  EXPECT_EQ(result.outcome, StepOutcome::kFailed);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kDeadlineExceeded) << result.status;
  EXPECT_THAT(std::string(result.status.message()),
              testing::AllOf(HasSubstr("rank 0 (worker-0), step 1"), HasSubstr("all-reduce")));
}

TEST_P(AllReduceStepTest, ProgressTellsWhoIsWaitedForAndTheDeadlineBlamesIt) {
  Prepare(1);
  order_.timeout = absl::Seconds(1);
  Run(0, order_);
  Run(1, order_);
  for (DeviceId device = 0; device < 2; ++device) {
    const auto waits_for = [&]() -> std::optional<DeviceId> {
      const auto progress = rank(device).executor->progress();
      if (progress.empty() || !progress[0].instruction.has_value()) return std::nullopt;
      EXPECT_EQ(progress[0].step, 1);
      EXPECT_EQ(progress[0].instruction->mesh_id, "default");
      EXPECT_EQ(progress[0].instruction->rank, device);
      return progress[0].instruction->waits_for;
    };
    const auto has_ended = [&] {
      const std::vector<FlightRecord> last = rank(device).recorder.Last(1);
      return !last.empty() && !last[0].is_running();
    };
    bool is_seen = false;
    while (!is_seen && !has_ended()) {
      is_seen = waits_for() == 2;
      std::this_thread::yield();
    }
    EXPECT_TRUE(is_seen);
  }
  for (DeviceId device = 0; device < 2; ++device) {
    const StepResult result = Await(device);
    EXPECT_EQ(result.status.code(), absl::StatusCode::kDeadlineExceeded) << result.status;
    EXPECT_EQ(result.blamed_identity, "worker-2");
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("rank 2 (worker-2)"));
    EXPECT_THAT(rank(device).executor->progress(), testing::IsEmpty());
    EXPECT_EQ(rank(device).recorder.Last(1)[0].waits_for, 2);
  }
}

TEST_P(AllReduceStepTest, AbortEndsARunningAWaitingAndAStagedStep) {
  Prepare(1);
  StepOrder second = order_;
  second.sequence = 2;
  second.outputs[0].array.array_id = "out-2-0";
  Run(0, order_);  // its peers never begin it
  Run(0, second);
  rank(0).executor->Abort(2, absl::CancelledError("nobody wants it"));
  const StepResult waiting = Await(0);
  EXPECT_EQ(waiting.sequence, 2);
  EXPECT_EQ(waiting.status.code(), absl::StatusCode::kCancelled);
  rank(0).executor->Abort(1, absl::CancelledError("nobody wants it"));
  EXPECT_EQ(Await(0, 2).status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Await(0, 2).sequence, 1);

  order_.sequence = 3;
  order_.outputs[0].array.array_id = "out-3-0";
  RunOnAll();
  EXPECT_EQ(Await(0, 3).outcome, StepOutcome::kDone) << Await(0, 3).status;
  rank(0).executor->Abort(3, absl::CancelledError("another rank failed"));
  EXPECT_FALSE(rank(0).store->FindStaged("out-3-0", Tile::Whole(Shape{6, 5})).ok());
}

TEST_P(AllReduceStepTest, WhatIsStagedOutlivesTheEndOfWhatIsNot) {
  Prepare(1);
  RunOnAll();
  for (DeviceId device = 0; device < 3; ++device) {
    ASSERT_EQ(Await(device).outcome, StepOutcome::kDone) << Await(device).status;
  }
  StepOrder second = order_;
  second.sequence = 2;
  second.outputs[0].array.array_id = "out-2-0";
  StepOrder third = second;
  third.sequence = 3;
  third.outputs[0].array.array_id = "out-3-0";
  Run(0, second);  // its peers never begin it
  Run(0, third);
  rank(0).executor->AbortUnfinished(absl::UnavailableError("the coordinator is gone"));
  for (const size_t count : {2, 3}) {
    EXPECT_EQ(Await(0, count).status.code(), absl::StatusCode::kUnavailable);
  }
  const Tile whole = Tile::Whole(Shape{6, 5});
  EXPECT_TRUE(rank(0).store->FindStaged("out-1-0", whole).ok());
  EXPECT_TRUE(rank(0).executor->Commit(1).ok());
  EXPECT_TRUE(rank(0).store->FindAll("out-1-0").ok());
  // What the store was told of by another way is not the executor's to end any more.
  rank(1).executor->KeepStaged();
  EXPECT_EQ(ReasonOf(rank(1).executor->Commit(1)), Reason::kNotFound);
  rank(1).executor->Abort(1, absl::CancelledError("too late"));
  EXPECT_TRUE(rank(1).store->FindStaged("out-1-0", whole).ok());
}

TEST_P(AllReduceStepTest, AStepThatWaitsForARankDoesNotHoldUpThoseAfterIt) {
  Prepare(1);
  const auto nth = [this](int64_t sequence) {
    StepOrder order = order_;
    order.sequence = sequence;
    order.outputs[0].array.array_id = StrCat("out-", sequence, "-0");
    return order;
  };
  // Rank 2 is late for it; no step after it has an operand that it writes.
  Run(0, nth(1));
  Run(1, nth(1));
  constexpr int64_t kSteps = 20;
  for (int64_t sequence = 2; sequence < 2 + kSteps; ++sequence) {
    for (DeviceId device = 0; device < 2; ++device) Run(device, nth(sequence));
    // Rank 2 is ordered the first one too, but has not got its plan for it.
    if (sequence == 2) {
      StepOrder unknown = nth(1);
      unknown.plan_bytes.clear();
      Run(2, unknown);
      EXPECT_EQ(Await(2).outcome, StepOutcome::kNeedPlan);
    }
    Run(2, nth(sequence));
    const auto count = static_cast<size_t>(sequence - 1);
    for (DeviceId device = 0; device < 3; ++device) {
      const StepResult result = Await(device, device == 2 ? count + 1 : count);
      EXPECT_EQ(result.outcome, StepOutcome::kDone) << result.status;
      EXPECT_EQ(result.sequence, sequence);
    }
  }
  EXPECT_EQ(rank(0).executor->progress().size(), 1u);
  Run(2, nth(1));
  for (DeviceId device = 0; device < 3; ++device) {
    const StepResult result = Await(device, kSteps + (device == 2 ? 2 : 1));
    EXPECT_EQ(result.outcome, StepOutcome::kDone) << result.status;
    EXPECT_EQ(result.sequence, 1);
  }
}

// Each rank waits for another in more steps than it has threads for, and each lacks the plan of the
// step that the others are in.
TEST_P(AllReduceStepTest, MoreStepsThanThreadsEndInWhateverOrderTheirPlansCome) {
  Prepare(1);
  constexpr int64_t kSteps = 24;
  const auto nth = [this](int64_t sequence) {
    StepOrder order = order_;
    order.sequence = sequence;
    order.outputs[0].array.array_id = StrCat("out-", sequence, "-0");
    return order;
  };
  const auto lacks_plan = [](DeviceId device, int64_t sequence) { return sequence % 3 == device; };
  for (DeviceId device = 0; device < 3; ++device) {
    for (int64_t sequence = 1; sequence <= kSteps; ++sequence) {
      StepOrder order = nth(sequence);
      if (lacks_plan(device, sequence)) {
        // Another plan of the same contents, so that it is not known for the steps before.
        order.plan_bytes.clear();
        order.plan_hash = Sha256(StrCat("plan of step ", sequence));
      }
      Run(device, order);
    }
  }
  for (DeviceId device = 0; device < 3; ++device) {
    for (int64_t sequence = kSteps; sequence > 0; --sequence) {
      if (lacks_plan(device, sequence)) Run(device, nth(sequence));
    }
  }
  for (DeviceId device = 0; device < 3; ++device) {
    int64_t done = 0;
    // One report for each plan that was asked for, and one for each step.
    for (size_t count = 1; count <= kSteps + kSteps / 3; ++count) {
      const StepResult result = Await(device, count);
      if (result.outcome == StepOutcome::kNeedPlan) continue;
      EXPECT_EQ(result.outcome, StepOutcome::kDone) << result.status;
      ++done;
    }
    EXPECT_EQ(done, kSteps);
  }
}

TEST_P(AllReduceStepTest, OrdersOfAnOlderTermOrOutOfOrderAreRefused) {
  Prepare(7);
  RunOnAll();
  for (DeviceId device = 0; device < 3; ++device) {
    ASSERT_EQ(Await(device).outcome, StepOutcome::kDone) << Await(device).status;
  }
  Run(0, order_);
  EXPECT_EQ(Await(0, 2).status.code(), absl::StatusCode::kFailedPrecondition);
  order_.sequence = 8;
  order_.term = 0;
  Run(0, order_);
  EXPECT_EQ(ReasonOf(Await(0, 3).status), Reason::kStaleTerm);
}

TEST_P(AllReduceStepTest, DonatedOperandIsReleasedWhenTheStepCommits) {
  Prepare(1);
  order_.operands[0].donate = true;
  RunOnAll();
  for (DeviceId device = 0; device < 3; ++device) {
    ASSERT_EQ(Await(device).outcome, StepOutcome::kDone) << Await(device).status;
    EXPECT_TRUE(rank(device).store->FindAll("in").ok());
    EXPECT_TRUE(rank(device).executor->Commit(1).ok());
    EXPECT_FALSE(rank(device).store->FindAll("in").ok());
    EXPECT_TRUE(rank(device).store->FindAll("out-1-0").ok());
  }
}

// An all-reduce by pairwise of an operand that is donated.
class DonatedOperandTest : public StepExecutorTest {
 protected:
  void Prepare() {
    StartMesh("x=3");
    tensor_ = Tensor::Random({600, 500}, 1);
    Put("in", tensor_, SpecOf({"", ""}));
    Order(1, {.operand_count = 1,
              .ops = {CollectiveOp{.kind = CollectiveKind::kAllReduce,
                                   .axes = {"x"},
                                   .algorithm = CollectiveAlgorithm::kPairwise}},
              .outputs = {1}});
    order_.return_literals = false;
    order_.operands[0].donate = true;
    tile_ = Tile::Whole(tensor_.shape);
  }
  void ExpectSum(DeviceId device) {
    ASSERT_EQ(Await(device).outcome, StepOutcome::kDone) << Await(device).status;
    ASSERT_TRUE(rank(device).executor->Commit(1).ok());
    const StoredTilePtr sum = *rank(device).store->Find("out-1-0", tile_);
    const auto* elements = reinterpret_cast<const float*>(sum->bytes().data());
    for (size_t i = 0; i < tensor_.elements.size(); ++i) {
      const float x = tensor_.elements[i];
      ASSERT_EQ(elements[i], (x + x) + x) << i;
    }
    EXPECT_FALSE(rank(device).store->FindAll("in").ok());
  }

  Tensor tensor_;
  Tile tile_;
};

INSTANTIATE_TEST_SUITE_P(All, DonatedOperandTest,
                         testing::Values(Transport::kStream, Transport::kShm), TransportName);

TEST_P(DonatedOperandTest, IsWhereTheResultIsMade) {
  Prepare();
  std::map<DeviceId, const char*> memory;
  for (DeviceId device = 0; device < 3; ++device) {
    memory[device] = (*rank(device).store->Find("in", tile_))->bytes().data();
  }
  RunOnAll();
  for (DeviceId device = 0; device < 3; ++device) {
    ExpectSum(device);
    EXPECT_EQ((*rank(device).store->Find("out-1-0", tile_))->bytes().data(), memory[device]);
  }
}

TEST_P(DonatedOperandTest, MayBeTheResultOfTheStepBefore) {
  Prepare();
  const char* const memory = (*rank(1).store->Find("in", tile_))->bytes().data();
  for (int64_t sequence = 1; sequence <= 5; ++sequence) {
    const std::string result = StrCat("out-", sequence, "-0");
    order_.sequence = sequence;
    order_.outputs[0].array.array_id = result;
    RunOnAll();
    for (DeviceId device = 0; device < 3; ++device) {
      const StepResult done = Await(device, static_cast<size_t>(sequence));
      ASSERT_EQ(done.outcome, StepOutcome::kDone) << done.status;
    }
    for (DeviceId device = 0; device < 3; ++device) {
      ASSERT_TRUE(rank(device).executor->Commit(sequence).ok());
    }
    order_.operands[0] = {.value = result, .donate = true};
  }
  // What went over a stream may still be held on to for a moment.
  if (GetParam() == Transport::kShm) {
    EXPECT_EQ((*rank(1).store->Find("out-5-0", tile_))->bytes().data(), memory);
  }
}

TEST_P(DonatedOperandTest, IsLeftToWhoeverReadsIt) {
  Prepare();
  const StoredTilePtr reader = *rank(1).store->Find("in", tile_);
  RunOnAll();
  for (DeviceId device = 0; device < 3; ++device) ExpectSum(device);
  EXPECT_NE((*rank(1).store->Find("out-1-0", tile_))->bytes().data(), reader->bytes().data());
  EXPECT_EQ(std::memcmp(reader->bytes().data(), tensor_.bytes().data(), tensor_.bytes().size()), 0);
}

TEST_P(DonatedOperandTest, IsGoneAfterAStepThatFailedWhereItWasBegunUpon) {
  Prepare();
  Run(0, order_);
  Run(1, order_);
  StepOrder other = order_;
  other.operands[0] = {.value = "unknown"};
  Run(2, other);
  for (DeviceId device = 0; device < 3; ++device) {
    EXPECT_EQ(Await(device).outcome, StepOutcome::kFailed);
    EXPECT_FALSE(rank(device).store->FindAll("out-1-0").ok());
  }
  EXPECT_TRUE(rank(2).store->FindAll("in").ok());
  EXPECT_TRUE(rank(0).store->Release({"in"}).ok());
}

// Runs a program of two layers and a change of layout again and again.
class RepeatedStepTest : public StepExecutorTest {
 protected:
  // Starts the executors anew: they know no plan.
  void Restart() {
    TearDown();
    clock_.reset();
    StartMesh("x=2,y=2");
  }

  // Puts operands, runs the program with them as step `sequence`, and returns its result.
  Tensor RunWith(int64_t sequence, int seed) {
    operands_.clear();
    order_.operands.clear();
    {
      absl::MutexLock lock(&mutex_);
      results_.clear();
    }
    Put(StrCat("input-", sequence), Tensor::Random({24, 32}, seed), SpecOf({"x", ""}));
    Put(StrCat("up-", sequence), Tensor::Random({64, 32}, seed + 1), SpecOf({"y", ""}));
    Put(StrCat("down-", sequence), Tensor::Random({32, 64}, seed + 2), SpecOf({"", "y"}));
    Put(StrCat("bias-", sequence), Tensor::Random({32}, seed + 3), SpecOf({""}));
    Order(sequence,
          {.operand_count = 4,
           .ops = {LinearOp{.input = 0, .weight = 1, .activation = Activation::kSilu},
                   LinearOp{.input = 4, .weight = 2, .bias = 3},
                   LinearOp{.input = 5, .weight = 1, .activation = Activation::kGelu},
                   LinearOp{.input = 6, .weight = 2, .bias = 3, .activation = Activation::kRelu},
                   ReshardOp{.input = 7, .spec = SpecOf({"", "x"})}},
           .outputs = {8, 5}});
    RunOnAll();
    return Assemble();
  }
};

INSTANTIATE_TEST_SUITE_P(All, RepeatedStepTest,
                         testing::Values(Transport::kStream, Transport::kShm), TransportName);

TEST_P(RepeatedStepTest, ARunOfAKnownPlanHasTheBitsOfAFreshOne) {
  Restart();
  const std::vector<float> first = RunWith(1, 10).elements;
  const std::string plan_hash = order_.plan_hash;
  EXPECT_EQ(RunWith(2, 10).elements, first) << "again";
  const std::vector<float> changed = RunWith(3, 50).elements;
  EXPECT_NE(changed, first);
  EXPECT_EQ(RunWith(4, 10).elements, first) << "after a run with other operands";
  EXPECT_EQ(order_.plan_hash, plan_hash);
  Restart();
  EXPECT_EQ(RunWith(1, 50).elements, changed) << "by executors that do not know the plan yet";
}

// Runs steps that multiply by an array "weight".
class PackedWeightTest : public StepExecutorTest {
 protected:
  static constexpr int64_t kRows = 512;
  static constexpr int64_t kColumns = 256;
  static constexpr int64_t kWeightBytes = kRows * kColumns * 4;

  void Prepare() {
    StartMesh("x=1");
    Keep("weight", weight_);
    Keep("rows", Tensor::Random({8, kRows}, 1));
    Keep("columns", Tensor::Random({8, kColumns}, 2));
  }
  void Keep(const std::string& id, const Tensor& tensor) {
    Put(id, tensor, PartitionSpec());
    described_[id] = operands_.back();
  }
  // Memory of tiles and of packed weights.
  int64_t used_bytes() { return rank(0).store->used_bytes() + rank(0).budget.used_bytes(); }
  // Runs one op of two arrays, and returns its result, which is released.
  std::vector<float> RunOp(const ProgramOp& op, const std::string& left, const std::string& right,
                           bool donate = false) {
    operands_ = {described_.at(left), described_.at(right)};
    order_.operands = {{.value = left}, {.value = right, .donate = donate}};
    {
      absl::MutexLock lock(&mutex_);
      results_.clear();
    }
    Order(++sequence_, {.operand_count = 2, .ops = {op}, .outputs = {2}});
    RunOnAll();
    std::vector<float> result = Assemble().elements;
    EXPECT_TRUE(rank(0).store->Release({order_.outputs[0].array.array_id}).ok());
    return result;
  }
  // x * weight^T, which takes the weight packed.
  std::vector<float> RunLayer(bool donate = false) {
    return RunOp(LinearOp{.input = 0, .weight = 1}, "columns", "weight", donate);
  }
  std::shared_ptr<const TileForm> Form() {
    const auto held = rank(0).store->FindHeld("weight", Tile::Whole(weight_.shape));
    return held.ok() ? (*held)->form() : nullptr;
  }
  // The executor packs while a step runs, and puts the packed weight into the store after it.
  void AwaitPacked() {
    ASSERT_TRUE(test::Eventually([&] { return Form() != nullptr; }));
  }
  void ExpectPlainBytes() {
    const auto tile = rank(0).store->Find("weight", Tile::Whole(weight_.shape));
    ASSERT_TRUE(tile.ok()) << tile.status();
    EXPECT_TRUE((*tile)->bytes() == weight_.bytes());
  }

  const Tensor weight_ = Tensor::Random({kRows, kColumns}, 3);
  std::map<std::string, ValueDescriptor> described_;
  int64_t sequence_ = 0;
};

INSTANTIATE_TEST_SUITE_P(All, PackedWeightTest, testing::Values(Transport::kStream), TransportName);

TEST_P(PackedWeightTest, TakesTheMemoryOfThePlainOne) {
  Prepare();
  const int64_t plain_bytes = used_bytes();
  const std::vector<float> first = RunLayer();
  const Tensor columns = Tensor::Random({8, kColumns}, 2);
  const std::vector<double> expected =
      Multiply({columns.elements.begin(), columns.elements.end()}, weight_, 8);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(first[i]), expected[i], 1e-3) << i;
  }
  ASSERT_NO_FATAL_FAILURE(AwaitPacked());
  ASSERT_TRUE(test::Eventually([&] {
    return static_cast<double>(used_bytes()) <=
           static_cast<double>(plain_bytes) + 0.1 * static_cast<double>(kWeightBytes);
  })) << used_bytes()
      << " bytes after " << plain_bytes;
  EXPECT_EQ(RunLayer(), first) << "straight from the packed weight";
  EXPECT_NE(Form(), nullptr) << "it was not unpacked for good";
  ExpectPlainBytes();
}

TEST_P(PackedWeightTest, IsPlainAgainForAnotherUseAndStaysSo) {
  Prepare();
  const std::vector<float> layer = RunLayer();
  ASSERT_NO_FATAL_FAILURE(AwaitPacked());
  // x * weight
  const std::vector<float> product = RunOp(MatmulOp{.lhs = 0, .rhs = 1}, "rows", "weight");
  const Tensor rows = Tensor::Random({8, kRows}, 1);
  for (size_t i = 0; i < product.size(); ++i) {
    double sum = 0;
    for (size_t k = 0; k < kRows; ++k) {
      sum += static_cast<double>(rows.elements[i / kColumns * kRows + k]) *
             static_cast<double>(weight_.elements[k * kColumns + i % kColumns]);
    }
    ASSERT_NEAR(static_cast<double>(product[i]), sum, 1e-3) << i;
  }
  EXPECT_EQ(Form(), nullptr);
  EXPECT_EQ(RunLayer(), layer);
  EXPECT_EQ(RunOp(MatmulOp{.lhs = 0, .rhs = 1}, "rows", "weight"), product);
  ExpectPlainBytes();
}

TEST_P(PackedWeightTest, LeavesNothingWhenItIsDonated) {
  Prepare();
  const std::vector<float> layer = RunLayer();
  ASSERT_NO_FATAL_FAILURE(AwaitPacked());
  EXPECT_EQ(RunLayer(/*donate=*/true), layer);
  EXPECT_FALSE(rank(0).store->FindHeld("weight", Tile::Whole(weight_.shape)).ok());
  EXPECT_TRUE(test::Eventually([&] { return rank(0).budget.used_bytes() == 0; }));
}

TEST_P(PackedWeightTest, IsTakenWhereThereIsNoMemoryForThePlainOne) {
  Prepare();
  const std::vector<float> layer = RunLayer();
  ASSERT_NO_FATAL_FAILURE(AwaitPacked());
  BufferPool& pool = *rank(0).pool;
  // The plain bytes are freed once the executor's thread no longer uses them.
  ASSERT_TRUE(test::Eventually([&] { return rank(0).store->used_bytes() < kWeightBytes; }));
  const int64_t left_bytes = pool.budget().limit_bytes() - pool.budget().used_bytes();
  const auto others = pool.budget().Reserve(left_bytes - kWeightBytes / 2, "other arrays");
  ASSERT_TRUE(others.ok()) << others.status();
  EXPECT_EQ(RunLayer(), layer);
  order_.operands = {{.value = "rows"}, {.value = "weight"}};
  operands_ = {described_.at("rows"), described_.at("weight")};
  Order(++sequence_, {.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}});
  Run(0, order_);
  EXPECT_EQ(ReasonOf(Await(0, 2).status), Reason::kMemoryLimit) << "it has to unpack the weight";
  EXPECT_NE(Form(), nullptr);
}

TEST_P(StepExecutorTest, AKnownPlanOfBatchesMultipliesTheOperandsOfEachRun) {
  StartMesh("x=2,y=2");
  // Like attention without its softmax: queries by keys, and the result by values.
  const Program program = {
      .operand_count = 3,
      .ops = {MatmulOp{.lhs = 0, .rhs = 1, .transpose_rhs = true}, MatmulOp{.lhs = 3, .rhs = 2}},
      .outputs = {4}};
  std::string plan_hash;
  std::vector<float> last;
  for (const int64_t sequence : {1, 2, 3}) {
    SCOPED_TRACE(StrCat("run ", sequence));
    const auto seed = static_cast<int>(10 * sequence);
    const Tensor queries = Tensor::Random({4, 6, 8}, seed);
    const Tensor keys = Tensor::Random({4, 10, 8}, seed + 1);
    const Tensor values = Tensor::Random({1, 10, 12}, seed + 2);
    operands_.clear();
    order_.operands.clear();
    {
      absl::MutexLock lock(&mutex_);
      results_.clear();
    }
    Put(StrCat("queries-", sequence), queries, SpecOf({"x", "", "y"}));
    Put(StrCat("keys-", sequence), keys, SpecOf({"x", "", "y"}));
    Put(StrCat("values-", sequence), values, SpecOf({"", "", "y"}));
    const Plan plan = *PlanProgram(program, operands_, target());
    ASSERT_TRUE(MultipliesBatches(plan));
    // One quarter of the result, and the scores of the first product.
    EXPECT_GT(plan.cost.memory_bytes, 4 * 6 * 12 * 4 / 4);
    OrderPlan(sequence, plan);
    if (sequence > 1) {
      EXPECT_EQ(order_.plan_hash, plan_hash);
    }
    plan_hash = order_.plan_hash;
    RunOnAll();
    const std::vector<double> scores =
        MultiplyBatches(queries, /*transpose_lhs=*/false, keys, /*transpose_rhs=*/true);
    const std::vector<double> expected = MultiplyBatches(
        {.shape = {4, 6, 10}, .elements = {scores.begin(), scores.end()}}, false, values, false);
    const Tensor out = Assemble();
    ASSERT_EQ(out.elements.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(out.elements[i]), expected[i], 1e-3) << "element " << i;
    }
    EXPECT_NE(out.elements, last);
    last = out.elements;
  }
}

TEST_P(StepExecutorTest, AStepWhoseIntermediateValuesAreEmptyHasNoBlock) {
  StartMesh("x=2");
  Put("in", {.shape = {0, 4}, .elements = {}}, SpecOf({"", ""}));
  const CollectiveOp sum{.input = 0, .kind = CollectiveKind::kAllReduce, .axes = {"x"}};
  CollectiveOp sum_of_sum = sum;
  sum_of_sum.input = 1;
  Order(1, {.operand_count = 1, .ops = {sum, sum_of_sum}, .outputs = {2}});
  RunOnAll();
  EXPECT_TRUE(Assemble().elements.empty());
}

TEST_P(StepExecutorTest, AStepAsksForTheBlockOfItsIntermediateValuesAtOnce) {
  StartMesh("x=1");
  constexpr int64_t kTile = 256 * 256 * 4;
  Put("input", Tensor::Random({256, 256}, 1), SpecOf({"", ""}));
  Put("weight", Tensor::Random({256, 256}, 2), SpecOf({"", ""}));
  Program program{.operand_count = 2, .ops = {}, .outputs = {9}};
  for (ValueIndex input : {0, 2, 3, 4, 5, 6, 7, 8}) {
    program.ops.push_back(LinearOp{.input = input, .weight = 1});
  }
  Order(1, program);
  order_.return_literals = false;
  BufferPool& pool = *rank(0).pool;
  const int64_t left_bytes = pool.budget().limit_bytes() - pool.budget().used_bytes();
  // Leaves room for the block, but for its last page. The result fits once the rest is freed.
  auto cached =
      std::make_unique<Buffer>(*pool.Allocate(left_bytes - 2 * kTile + 4096, "a cached tile"));
  std::vector<int64_t> asked_bytes;
  rank(0).free_memory = [&](int64_t size_bytes) {
    asked_bytes.push_back(size_bytes);
    cached.reset();
    return true;
  };
  RunOnAll();
  EXPECT_EQ(Await(0).outcome, StepOutcome::kDone) << Await(0).status;
  EXPECT_THAT(asked_bytes, testing::ElementsAre(2 * kTile))
      << "an operand and a result at a time, of eight";
}

// Two large values, then a small one that two large results are made of.
class LateResultsTest : public StepExecutorTest {
 protected:
  static constexpr int64_t kLarge = 512 * 512 * 4;
  void Prepare() {
    StartMesh("x=1");
    Put("input", Tensor::Random({512, 512}, 1), SpecOf({"", ""}));
    Put("narrow", Tensor::Random({16, 512}, 2), SpecOf({"", ""}));
    Put("wide", Tensor::Random({512, 16}, 3), SpecOf({"", ""}));
    Order(1, {.operand_count = 3,
              .ops = {LinearOp{.input = 0, .weight = 0}, LinearOp{.input = 3, .weight = 0},
                      LinearOp{.input = 4, .weight = 1}, LinearOp{.input = 5, .weight = 2},
                      LinearOp{.input = 5, .weight = 2}},
              .outputs = {6, 7}});
    order_.return_literals = false;
  }
  // Takes all memory except left_bytes.
  Buffer TakeAllBut(int64_t left_bytes) {
    BufferPool& pool = *rank(0).pool;
    const int64_t free_bytes = pool.budget().limit_bytes() - pool.budget().used_bytes();
    return *pool.Allocate(free_bytes - left_bytes, "other arrays");
  }
};

INSTANTIATE_TEST_SUITE_P(All, LateResultsTest, testing::Values(Transport::kStream, Transport::kShm),
                         TransportName);

TEST_P(LateResultsTest, FitWhereTheBlockWouldLeaveThemNoRoom) {
  Prepare();
  const Buffer taken = TakeAllBut(2 * kLarge + kLarge / 2);
  RunOnAll();
  EXPECT_EQ(Await(0).outcome, StepOutcome::kDone) << Await(0).status;
}

TEST_P(LateResultsTest, AStepThatFitsInNoWayIsRefusedByTheLimit) {
  Prepare();
  const Buffer taken = TakeAllBut(kLarge + kLarge / 2);
  RunOnAll();
  EXPECT_THAT(Await(0).status,
              test::StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
}

// A chain of collectives of 1 MiB, which peers read from this rank's memory where they can.
class CollectiveChainTest : public StepExecutorTest {
 protected:
  static Program Chain() {
    Program program{.operand_count = 1, .ops = {}, .outputs = {12}};
    const auto add = [&program](CollectiveOp op) {
      op.input = static_cast<ValueIndex>(program.ops.size());
      op.axes = {"x"};
      program.ops.push_back(std::move(op));
    };
    using Kind = CollectiveKind;
    using Algorithm = CollectiveAlgorithm;
    for (int round = 0; round < 2; ++round) {
      add({.kind = Kind::kAllReduce, .algorithm = Algorithm::kPairwise});
      add({.kind = Kind::kAllReduce, .algorithm = Algorithm::kDirect});
      add({.kind = Kind::kBroadcast, .root = 1});
      add({.kind = Kind::kReduceScatter});
      add({.kind = Kind::kAllGather});
      add({.kind = Kind::kAllReduce, .algorithm = Algorithm::kPairwise});
    }
    return program;
  }
};

INSTANTIATE_TEST_SUITE_P(All, CollectiveChainTest,
                         testing::Values(Transport::kStream, Transport::kShm), TransportName);

TEST_P(CollectiveChainTest, ValuesThatPeersStillReadAreNotOverwritten) {
  StartMesh("x=3");
  Tensor tensor = Tensor::Random({768, 342}, 1);
  for (float& x : tensor.elements) x = std::round(x * 100);  // so that sums are exact
  Put("in", tensor, SpecOf({"", ""}));
  Order(1, Chain());
  order_.return_literals = false;
  // Several steps of the same plan run at the same time, and their ranks do not keep pace.
  constexpr int64_t kSteps = 6;
  for (int64_t sequence = 1; sequence <= kSteps; ++sequence) {
    order_.sequence = sequence;
    order_.outputs[0].array.array_id = StrCat("out-", sequence);
    RunOnAll();
  }
  for (DeviceId device = 0; device < 3; ++device) {
    ASSERT_EQ(Await(device, kSteps).outcome, StepOutcome::kDone) << Await(device, kSteps).status;
    for (int64_t sequence = 1; sequence <= kSteps; ++sequence) {
      ASSERT_TRUE(rank(device).executor->Commit(sequence).ok());
      const StoredTilePtr out =
          *rank(device).store->Find(StrCat("out-", sequence), Tile::Whole(tensor.shape));
      const auto* const elements = reinterpret_cast<const float*>(out->bytes().data());
      for (size_t i = 0; i < tensor.elements.size(); ++i) {
        ASSERT_EQ(elements[i], tensor.elements[i] * 6561.0F)  // 3 to the number of sums
            << "rank " << device << ", step " << sequence << ", element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace shardmesh::worker
