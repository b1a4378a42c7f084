// Messages of the attach stream, field by field where the worker decides.
#include "worker/service/attach_message_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "process/crc32c.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/time_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "rpc/contract.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/service/attach_fakes.h"
#include "worker/store/shard_store.h"
#include "worker/store/state_tile.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::SizeIs;

TEST(AttachMessageCodecTest, AHelloHasTheProtocolsOfTheBuild) {
  MeasuredKernels kernels = {.f32_flops_per_second = 5e9};
  kernels.costs[ProductKind::kI8Bf16][3] = 1e-9;
  kernels.costs[KernelCost::kSoftmaxElement] = 2e-9;
  const internal::v1::Hello hello =
      Encode(WorkerHello{.self = {.identity = "w1", .incarnation = 7, .boot_id = "boot"},
                         .cluster_id = "cluster",
                         .data_identity = "w0",
                         .endpoints = {"a:1", "b:2"},
                         .nonce = "nonce",
                         .memory_bytes = 4096,
                         .threads = 2,
                         .kernels = kernels,
                         .durable = true,
                         .cache_bytes = 1024,
                         .pid = 12,
                         .term = 3})
          .hello();
  EXPECT_EQ(hello.cluster_id(), "cluster");
  EXPECT_EQ(hello.identity(), "w1");
  EXPECT_EQ(hello.incarnation(), 7u);
  EXPECT_EQ(hello.boot_id(), "boot");
  EXPECT_EQ(hello.data_identity(), "w0");
  EXPECT_EQ(hello.protocol().min(), rpc::kOldestProtocol);
  EXPECT_EQ(hello.protocol().max(), rpc::kNewestProtocol);
  EXPECT_FALSE(hello.build().version().empty());
  ASSERT_THAT(hello.endpoints(), SizeIs(2));
  EXPECT_EQ(hello.endpoints(1).address(), "b:2");
  EXPECT_FALSE(hello.has_exchange_port()) << "peers use the endpoints";
  EXPECT_EQ(hello.nonce(), "nonce");
  EXPECT_EQ(hello.capacity().memory_bytes(), 4096);
  EXPECT_EQ(hello.capacity().threads(), 2);
  EXPECT_EQ(hello.capacity().f32_flops_per_second(), 5e9);
  ASSERT_THAT(hello.capacity().kernel_costs(), SizeIs(2)) << "those that were measured";
  EXPECT_EQ(hello.capacity().kernel_costs(0).kind(),
            internal::v1::KernelCost::KIND_PRODUCT_I8_BF16);
  EXPECT_EQ(hello.capacity().kernel_costs(0).rows(), 32);
  EXPECT_EQ(hello.capacity().kernel_costs(0).seconds(), 1e-9);
  EXPECT_EQ(hello.capacity().kernel_costs(1).kind(),
            internal::v1::KernelCost::KIND_SOFTMAX_ELEMENT);
  EXPECT_EQ(hello.capacity().kernel_costs(1).seconds(), 2e-9);
  EXPECT_TRUE(hello.capacity().durable());
  EXPECT_EQ(hello.capacity().cache_bytes(), 1024);
  EXPECT_EQ(hello.pid(), 12);
  EXPECT_EQ(hello.term(), 3);
  EXPECT_EQ(Encode(WorkerHello{.exchange_port = 9}).hello().exchange_port(), 9);
  const auto overlaps = [](bool overlaps_exchanges) {
    const internal::v1::AttachRequest request =
        Encode(WorkerHello{.overlaps_exchanges = overlaps_exchanges});
    const auto& features = request.hello().features();
    return std::count(features.begin(), features.end(), "overlapped_exchanges");
  };
  EXPECT_EQ(overlaps(true), 1);
  EXPECT_EQ(overlaps(false), 0);
  const internal::v1::AttachRequest parts = Encode(WorkerHello{.overlaps_parts = true});
  EXPECT_EQ(std::count(parts.hello().features().begin(), parts.hello().features().end(),
                       "overlapped_parts"),
            1);
}

TEST(AttachMessageCodecTest, ATileOfStateHasItsStepInPlaceOfAChecksum) {
  MemoryBudget budget(1 << 16);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store,
                                 ShardStore::Open({BufferPool::Create(&budget, 0), ""}));
  const TileDescription tile = {"kv", Dtype::kU8, {4}, {{{0, 4}}}, "descriptor", "transfer"};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto staged, store->Stage(tile, /*durable=*/false));
  const std::string bytes = "abcd";
  ASSERT_THAT(staged->Append(0, bytes, Crc32c(bytes)), IsOk());
  ASSERT_THAT(staged->Finish(std::nullopt), IsOk());
  ASSERT_THAT(store->Commit({"kv"}), IsOk());
  internal::v1::HeldTile held = Encode(store->ListInventory("", 10).tiles.front());
  EXPECT_EQ(held.crc32c(), Crc32c(bytes));
  EXPECT_EQ(held.state_step(), 0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StateTilePtr update, store->BeginUpdate("kv", tile.tile, 7));
  ASSERT_THAT(update->Commit(), IsOk());
  held = Encode(store->ListInventory("", 10).tiles.front());
  EXPECT_EQ(held.crc32c(), 0u);
  EXPECT_EQ(held.state_step(), 7);
  EXPECT_TRUE(held.committed());
}

TEST(AttachMessageCodecTest, AStagedTileSaysWhereItLies) {
  TileReport report{.transfer_id = "t",
                    .array_id = "a",
                    .rank = 5,
                    .crc32c = 8,
                    .size_bytes = 16,
                    .durable = true,
                    .transfer_time = absl::Milliseconds(3),
                    .term = 4};
  const internal::v1::TileStaged staged = Encode(report).tile_staged();
  EXPECT_EQ(staged.transfer_id(), "t");
  EXPECT_EQ(staged.array_id(), "a");
  EXPECT_EQ(staged.rank(), 5);
  EXPECT_EQ(staged.crc32c(), 8u);
  EXPECT_EQ(staged.size_bytes(), 16);
  EXPECT_EQ(staged.durability(), v1::DURABILITY_DISK);
  EXPECT_THAT(rpc::Decode(staged.transfer_time()), IsOkAndHolds(absl::Milliseconds(3)));
  EXPECT_EQ(staged.term(), 4);
  report.durable = false;
  EXPECT_EQ(Encode(report).tile_staged().durability(), v1::DURABILITY_MEMORY);
}

TEST(AttachMessageCodecTest, OnlyAFailedStepHasAnErrorAndSomebodyToBlame) {
  StepResult result;
  result.sequence = 5;
  result.rank = 1;
  result.outputs.push_back({.array_id = "out", .crc32c = 8, .size_bytes = 4, .data = "data"});
  result.status = absl::UnavailableError("rank 2 is gone");
  result.blamed_identity = "w2";
  result.queue_time = absl::Milliseconds(6);
  const internal::v1::StepReport done = Encode(result).step_report();
  EXPECT_EQ(done.outcome(), internal::v1::StepReport::OUTCOME_DONE);
  EXPECT_EQ(done.outputs(0).data(), "data");
  EXPECT_THAT(rpc::Decode(done.queue_time()), IsOkAndHolds(absl::Milliseconds(6)));
  EXPECT_FALSE(done.has_error());
  EXPECT_EQ(done.blamed_identity(), "");
  EXPECT_FALSE(done.has_trace());
  result.trace = RankTrace{.rank = 1, .spans = {{.op = 4}}};
  EXPECT_EQ(Encode(result).step_report().trace().spans(0).instruction(), 4u);
  result.outcome = StepOutcome::kFailed;
  const internal::v1::StepReport failed = Encode(result).step_report();
  EXPECT_EQ(failed.outcome(), internal::v1::StepReport::OUTCOME_FAILED);
  EXPECT_THAT(rpc::Decode(failed.error()), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(failed.blamed_identity(), "w2");
  result.outcome = StepOutcome::kNeedPlan;
  EXPECT_EQ(Encode(result).step_report().outcome(), internal::v1::StepReport::OUTCOME_NEED_PLAN);
}

TEST(AttachMessageCodecTest, AHeartbeatHasTheLastRecordsThatFit) {
  std::vector<FlightRecord> records;
  for (int64_t number = 0; number < 400; ++number) {
    FlightRecord& record = records.emplace_back();
    record.number = number;
    record.what = std::string(200, 'x');
  }
  internal::v1::Heartbeat heartbeat;
  EncodeRecords(records, &heartbeat);
  const int count = heartbeat.records_size();
  ASSERT_GT(count, 10);
  ASSERT_LT(count, 400);
  for (int i = 0; i < count; ++i) EXPECT_EQ(heartbeat.records(i).number(), 400 - count + i);
  const auto size_bytes = static_cast<int64_t>(heartbeat.ByteSizeLong());
  EXPECT_LE(size_bytes, kMaxHeartbeatRecordBytes + 4 * count) << "with a tag and a length of each";
  EXPECT_GT(size_bytes, kMaxHeartbeatRecordBytes - 1024);
}

TEST(AttachMessageCodecTest, AQuarantinedArrayHasItsDescriptorIfThatCanBeRead) {
  QuarantinedArray array;
  array.array_id = "a";
  array.reason = "why";
  array.since = absl::UnixEpoch();
  QuarantinedTile& tile = array.tiles.emplace_back();
  tile.description.tile = {{{0, 4}}};
  tile.description.array_descriptor = rpc::ArrayDescriptorBytes(FourOnMesh("a"));
  tile.size_bytes = 16;
  v1::QuarantinedArray encoded = Encode(array, "w1");
  EXPECT_EQ(encoded.identity(), "w1");
  EXPECT_EQ(encoded.array().array_id(), "a");
  EXPECT_EQ(encoded.array().mesh_id(), "m");
  ASSERT_THAT(encoded.tiles(), SizeIs(1));
  EXPECT_EQ(encoded.tiles(0).size_bytes(), 16);
  EXPECT_EQ(encoded.durability(), v1::DURABILITY_MEMORY);
  array.on_disk = true;
  tile.description.array_descriptor = "\xff";
  encoded = Encode(array, "w1");
  EXPECT_EQ(encoded.array().array_id(), "a");
  EXPECT_EQ(encoded.array().mesh_id(), "");
  EXPECT_EQ(encoded.durability(), v1::DURABILITY_DISK);
}

TEST(AttachMessageCodecTest, DecodesAStepAndMovesItsBytes) {
  internal::v1::RunStep step;
  step.set_sequence(5);
  step.set_epoch(2);
  step.set_term(3);
  step.set_plan_hash("hash");
  step.set_plan("plan");
  step.set_return_literals(true);
  step.set_max_trace_spans(12);
  step.add_operands()->set_array_id("a");
  step.mutable_operands(0)->set_donate(true);
  const std::string descriptor = rpc::ArrayDescriptorBytes(FourOnMesh("out"));
  step.add_outputs(descriptor);
  rpc::Encode(absl::Seconds(4), step.mutable_timeout());
  const absl::StatusOr<StepOrder> order = Decode(step);
  ASSERT_THAT(order, IsOk());
  EXPECT_EQ(order->sequence, 5);
  EXPECT_EQ(order->epoch, 2);
  EXPECT_EQ(order->term, 3);
  EXPECT_EQ(order->plan_hash, "hash");
  EXPECT_EQ(order->plan_bytes, "plan");
  EXPECT_TRUE(order->return_literals);
  EXPECT_EQ(order->max_trace_spans, 12);
  EXPECT_EQ(order->timeout, absl::Seconds(4));
  ASSERT_THAT(order->operands, SizeIs(1));
  EXPECT_TRUE(order->operands[0].donate);
  EXPECT_EQ(std::get<std::string>(order->operands[0].value), "a");
  ASSERT_THAT(order->outputs, SizeIs(1));
  EXPECT_EQ(order->outputs[0].array, FourOnMesh("out"));
  EXPECT_EQ(order->outputs[0].encoded, descriptor);
  EXPECT_EQ(MeshIdOf(*order), "m");
}

TEST(AttachMessageCodecTest, AStepWithoutALimitNeverEnds) {
  internal::v1::RunStep step;
  const absl::StatusOr<StepOrder> order = Decode(step);
  ASSERT_THAT(order, IsOk());
  EXPECT_EQ(order->timeout, absl::InfiniteDuration());
  EXPECT_EQ(MeshIdOf(*order), "");
}

TEST(AttachMessageCodecTest, AStepThatCannotBeReadStillSaysItsMesh) {
  v1::ArrayDescriptor misfit;
  rpc::Encode(FourOnMesh("out"), &misfit);
  misfit.clear_mesh();
  internal::v1::RunStep step;
  step.add_outputs(misfit.SerializeAsString());
  EXPECT_THAT(Decode(step), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(step.outputs(), ElementsAre(misfit.SerializeAsString()));
  EXPECT_EQ(MeshIdOf(step), "m");
  step.set_outputs(0, "\xff");
  EXPECT_THAT(Decode(step), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(MeshIdOf(step), "");
  step.clear_outputs();
  EXPECT_EQ(MeshIdOf(step), "");
}

}  // namespace
}  // namespace shardmesh::worker
