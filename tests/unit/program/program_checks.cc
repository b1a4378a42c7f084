// Runs plans of random programs on simulated devices, and counts their messages. Compiled with
// optimisation and without sanitizers.
#include "tests/unit/program/program_checks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <variant>

#include "client/inspect/reference_program.h"
#include "gtest/gtest.h"
#include "program/collective_check.h"
#include "program/collective_traffic.h"
#include "program/fuse/fuse_exchanges.h"
#include "program/memory_plan.h"
#include "program/move_plan.h"
#include "program/plan_check.h"
#include "program/plan_forecast.h"
#include "sharding/device_group.h"
#include "sharding/reshard/plan.h"
#include "status/str_cat.h"
#include "tensor/view.h"
#include "tests/unit/program/dense.h"
#include "tests/unit/program/dense_ops.h"
#include "tests/unit/program/plan_examples.h"
#include "tests/unit/program/plan_simulation.h"

namespace shardmesh {
namespace {

// The bytes from a sender to a receiver.
using BytesByLink = std::map<std::pair<DeviceId, DeviceId>, int64_t>;

// Adds the messages of a collective, group by group.
void AddMessages(const Plan& plan, const Exchange& exchange, BytesByLink* bytes) {
  const GroupCollective& op = *exchange.op;
  const Tiling operand = *TilingOf(plan, *exchange.operand);
  const Tiling result = *TilingOf(plan, *exchange.result);
  for (DeviceId device = 0; device < plan.mesh.size(); ++device) {
    const DeviceGroup group = *DeviceGroup::Create(plan.mesh, op.axes, device);
    if (group.place() != 0) continue;  // another device's group
    GroupTiles tiles = {.operand_dtype = exchange.operand->dtype,
                        .result_dtype = exchange.result->dtype,
                        .elements = {}};
    for (const DeviceId member : group.devices()) {
      tiles.elements.push_back(operand.TileOf(member).element_count());
      if (!SplitsTiles(op.kind)) continue;
      const auto dim = static_cast<size_t>(SplitDimension(op));
      tiles.split_extents.push_back(result.TileOf(member).ranges[dim].size());
    }
    PlaceTraffic traffic(group.size());
    AddCollectiveTraffic(op, tiles, &traffic);
    for (int64_t sender = 0; sender < group.size(); ++sender) {
      for (int64_t receiver = 0; receiver < group.size(); ++receiver) {
        const int64_t sent = traffic.BytesBetween(sender, receiver);
        if (sent > 0) (*bytes)[{group.device_at(sender), group.device_at(receiver)}] += sent;
      }
    }
  }
}

// Adds the regions that each device receives.
void AddMessages(const Plan& plan, const MoveRegions& move, const ValueDescriptor& to,
                 BytesByLink* bytes) {
  const ReshardPlan regions = *MovePlan(plan.mesh, plan.values[move.input], to);
  for (DeviceId device = 0; device < plan.mesh.size(); ++device) {
    const std::vector<FetchRegion> received = *regions.RegionsOf(device);
    for (const FetchRegion& region : received) {
      const int64_t sent = region.tile.element_count() * BitsPerElement(to.dtype) / 8;
      if (sent > 0) (*bytes)[{region.source, device}] += sent;
    }
  }
}

BytesByLink MessagesOf(const Plan& plan) {
  BytesByLink bytes;
  for (const Instruction& instruction : plan.instructions) {
    if (const auto exchange = ExchangeOf(plan, instruction); exchange.has_value()) {
      AddMessages(plan, *exchange, &bytes);
    } else if (const auto* const move = std::get_if<MoveRegions>(&instruction.kind)) {
      AddMessages(plan, *move, plan.values[instruction.output], &bytes);
    }
  }
  return bytes;
}

// Runs `run` for each case with a generator of its own, up to the first failure.
template <typename Run>
void ForEachCase(const test::RandomCases& cases, Run run) {
  for (int64_t i = 0; i < cases.count; ++i) {
    const auto seed = static_cast<uint32_t>(cases.first_seed + i);
    std::mt19937 random(seed);
    SCOPED_TRACE(StrCat("SHARDMESH_RANDOM_SEED=", seed));
    run(random);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace

ProgramCheck::ProgramCheck(const RandomProgram& program) : program_(program) {
  std::vector<TensorType> types;
  std::vector<client::BoundedTensorPtr> operands;
  for (const Literal& content : program.contents) {
    types.push_back({.dtype = content.dtype, .shape = content.shape});
    const TensorView view = *TensorView::Create(content.dtype, content.shape, content.bytes);
    operands.push_back(std::make_shared<const client::BoundedTensor>(*client::ExactTensor(view)));
  }
  // The reference has no collectives. Those of random programs are all-gathers, which change no
  // elements.
  Program plain = program.program;
  for (ProgramOp& op : plain.ops) {
    if (const auto* const gather = std::get_if<CollectiveOp>(&op)) {
      EXPECT_EQ(gather->kind, CollectiveKind::kAllGather);
      op = ReshardOp{.input = gather->input, .spec = {}};
    }
  }
  const auto all = client::TypesOfValues(plain, types);
  EXPECT_TRUE(all.ok()) << all.status();
  if (!all.ok()) return;
  auto values = client::ReferenceValues(plain, *all, std::move(operands));
  EXPECT_TRUE(values.ok()) << values.status();
  if (values.ok()) reference_ = *std::move(values);
}

void ProgramCheck::ExpectComputes(const Plan& plan) {
  ASSERT_FALSE(reference_.empty());
  ASSERT_TRUE(CheckPlan(plan).ok()) << CheckPlan(plan);
  Simulation simulation(plan, {.rounds = true, .shares_memory = true});
  for (size_t i = 0; i < program_.contents.size(); ++i) {
    simulation.SetOperand(static_cast<ValueIndex>(i), DenseOf(program_.contents[i]));
  }
  simulation.Run();
  if (testing::Test::HasFailure()) return;
  ASSERT_EQ(plan.outputs.size(), program_.program.outputs.size());
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    ExpectValue(simulation, plan.outputs[i], program_.program.outputs[i], StrCat("output ", i));
  }
  ASSERT_EQ(plan.updates.size(), program_.program.updates.size());
  for (size_t i = 0; i < plan.updates.size(); ++i) {
    EXPECT_EQ(plan.updates[i].operand, program_.program.updates[i].operand);
    ExpectValue(simulation, plan.updates[i].value, program_.program.updates[i].value,
                StrCat("update ", i));
  }
}

void ProgramCheck::ExpectValue(const Simulation& simulation, ValueIndex have, ValueIndex want,
                               std::string_view what) {
  const std::optional<Dense> made = simulation.Assembled(have);
  ASSERT_TRUE(made.has_value()) << "devices differ in " << what;
  const client::BoundedTensor& expected = *reference_[want];
  ASSERT_EQ(made->shape, expected.shape) << what;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!program_.is_exact && !std::isfinite(expected.bound(i))) {
      ++undetermined_;
      continue;
    }
    ++compared_;
    const double bound = program_.is_exact ? 0 : expected.bound(i);
    // Fails for NaNs.
    ASSERT_TRUE(std::abs(made->elements[i] - expected.values[i]) <= bound)
        << what << ": element " << i << " of " << ShapeToString(made->shape) << " is "
        << made->elements[i] << ", not " << expected.values[i] << "; the bound is " << bound;
  }
}

void ExpectForecast(const Plan& plan, const PlanTarget& target) {
  const PlanForecast forecast = ForecastOf(plan, target.links, target.kernels);
  const BytesByLink messages = MessagesOf(plan);
  ASSERT_TRUE(forecast.link_traffic.has_value());
  int64_t sent = 0;
  for (const auto& [link, bytes] : messages) sent += bytes;
  EXPECT_EQ(forecast.link_traffic->sent_bytes, sent);
  EXPECT_EQ(forecast.link_traffic->link_count, std::ssize(messages));
  for (const LinkTraffic& link : forecast.link_traffic->busiest) {
    const auto found = messages.find({link.sender, link.receiver});
    ASSERT_NE(found, messages.end()) << link.sender << " to " << link.receiver;
    EXPECT_EQ(link.sent_bytes, found->second) << link.sender << " to " << link.receiver;
  }
  if (sent > 0) {
    EXPECT_GT(plan.cost.sent_bytes, 0);
  }
  const StepForecast of_step = StepForecastOf(plan, target.links, target.kernels);
  EXPECT_EQ(of_step.kernel_seconds, forecast.kernel_seconds);
  EXPECT_EQ(of_step.exchange_seconds, forecast.exchange_seconds);

  EXPECT_EQ(forecast.peak_bytes, plan.cost.memory_bytes);
  EXPECT_EQ(forecast.peak_bytes, PeakBytesOf(plan));
  EXPECT_LE(LeastBytesOf(plan), forecast.peak_bytes);

  EXPECT_TRUE(std::isfinite(forecast.kernel_seconds) && forecast.kernel_seconds >= 0)
      << forecast.kernel_seconds;
  EXPECT_TRUE(std::isfinite(forecast.exchange_seconds)) << forecast.exchange_seconds;
  EXPECT_GE(forecast.exchange_seconds, sent > 0 ? target.links.latency_seconds : 0);
  const bool has_elements =
      std::any_of(plan.outputs.begin(), plan.outputs.end(),
                  [&](ValueIndex output) { return Count(plan.values[output].shape) > 0; });
  EXPECT_TRUE(forecast.kernel_seconds + forecast.exchange_seconds > 0 || !has_elements);
}

PlanTarget RandomTarget(const Mesh& mesh, std::mt19937& random) {
  PlanTarget target = {.mesh_id = "m", .mesh_revision = 1, .mesh = mesh};
  constexpr std::array kFactors = {1.0, 1e-3, 1e3};
  target.kernels.flops_per_second *= kFactors[random() % kFactors.size()];
  target.links.seconds_per_byte *= kFactors[random() % kFactors.size()];
  target.links.latency_seconds *= kFactors[random() % kFactors.size()];
  target.kernels.may_overlap = random() % 2 == 0;
  return target;
}

void ExpectRandomProducts(const test::RandomCases& cases) {
  ForEachCase(cases, [](std::mt19937& random) {
    // Most meshes are small, since planning for large ones takes longer.
    const Mesh mesh = RandomMesh(random() % 16 == 0 ? 64 : 8, random);
    const RandomProgram product = RandomProduct(mesh, random);
    SCOPED_TRACE(product.ToString());
    const PlanTarget target = RandomTarget(mesh, random);
    const auto plan = PlanProgram(product.program, product.operands, target);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ExpectForecast(*plan, target);
    ProgramCheck(product).ExpectComputes(*plan);
  });
}

void ExpectRandomGraphs(const test::RandomCases& cases) {
  int64_t compared = 0;
  int64_t undetermined = 0;
  ForEachCase(cases, [&](std::mt19937& random) {
    const bool is_large = random() % 16 == 0;
    const Mesh mesh = RandomMesh(is_large ? 24 : 8, random);
    const RandomProgram graph = RandomGraph(mesh, {.most_ops = is_large ? 24 : 8}, random);
    SCOPED_TRACE(graph.ToString());
    const PlanTarget target = RandomTarget(mesh, random);
    const auto plan = PlanProgram(graph.program, graph.operands, target);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ExpectForecast(*plan, target);
    ProgramCheck check(graph);
    check.ExpectComputes(*plan);
    compared += check.compared();
    undetermined += check.undetermined();
  });
  std::cout << compared << " elements were compared; of " << undetermined
            << " others, no bound is known\n";
  EXPECT_LE(undetermined, compared / 4) << "most errors have bounds";
}

}  // namespace shardmesh
