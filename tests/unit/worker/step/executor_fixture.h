// Executors of all ranks of a mesh in one process, over real links and stores.
#ifndef SHARDMESH_TESTS_UNIT_WORKER_STEP_EXECUTOR_FIXTURE_H_
#define SHARDMESH_TESTS_UNIT_WORKER_STEP_EXECUTOR_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "program/plan_forecast.h"
#include "program/step_plan.h"
#include "rpc/codec/plan_codec.h"
#include "sharding/digest.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tensor/view.h"
#include "tests/testing/stepped_clock.h"
#include "tests/unit/worker/exchange/linked_workers.h"
#include "worker/step/step_executor.h"

namespace shardmesh::worker {

using ::shardmesh::test::LinkedWorkers;
using ::shardmesh::test::TransportName;

inline constexpr int64_t kMemory = int64_t{256} << 20;

inline PartitionSpec SpecOf(std::vector<std::string> axes) {
  std::vector<SpecEntry> entries;
  for (std::string& axis : axes) {
    entries.push_back(axis.empty() ? SpecEntry::None() : SpecEntry::Axis(std::move(axis)));
  }
  return PartitionSpec(std::move(entries));
}

// A float tensor as a test writes it down.
struct Tensor {
  Shape shape;
  std::vector<float> elements;

  static Tensor Random(Shape shape, int seed) {
    Tensor tensor{std::move(shape), {}};
    const int64_t count = std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1},
                                          std::multiplies<int64_t>());
    for (int64_t i = 0; i < count; ++i) {
      tensor.elements.push_back(static_cast<float>((i * 7919 + seed * 31) % 200 - 100) / 100.0F);
    }
    return tensor;
  }
  absl::Span<const char> bytes() const {
    return {reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(float)};
  }
};

// An executor with all that it needs, for one rank.
struct Rank {
  Rank(const std::string& identity, PeerLinks* links, std::shared_ptr<BufferPool> the_pool,
       Clock* clock)
      : budget(kMemory), pool(std::move(the_pool)), kernel({.threads = 1}) {
    store = *ShardStore::Open({.pool = pool, .data_dir = ""});
    executor = StepExecutor::Start({.identity = identity,
                                    .links = links,
                                    .store = store.get(),
                                    .pool = pool,
                                    .free_memory =
                                        [this](const absl::Status& refused, int64_t size_bytes) {
                                          EXPECT_FALSE(IsHostShortage(refused)) << refused;
                                          return free_memory && free_memory(size_bytes);
                                        },
                                    .kernel = &kernel,
                                    .weight_budget = &budget,
                                    .recorder = &recorder,
                                    .clock = clock,
                                    .observer = {.step = nullptr,
                                                 .kernel = nullptr,
                                                 .collective =
                                                     [this](CollectiveKind, CollectiveAlgorithm,
                                                            const auto& bytes, absl::Duration) {
                                                       absl::MutexLock lock(&mutex);
                                                       last_bytes = bytes;
                                                     },
                                                 .move =
                                                     [this](const auto& bytes, absl::Duration) {
                                                       absl::MutexLock lock(&mutex);
                                                       last_bytes = bytes;
                                                     }}});
  }

  MemoryBudget budget;
  std::shared_ptr<BufferPool> pool;
  MatmulKernel kernel;
  FlightRecorder recorder;
  absl::Mutex mutex;
  StepObserver::CollectiveBytes last_bytes;             // of the only step that runs
  std::function<bool(int64_t size_bytes)> free_memory;  // constant while a step runs
  std::unique_ptr<ShardStore> store;
  std::unique_ptr<StepExecutor> executor;
};

class StepExecutorTest : public testing::TestWithParam<Transport> {
 protected:
  void StartMesh(const std::string& mesh) {
    workers_ = std::make_unique<LinkedWorkers>(mesh, int64_t{4} << 20, GetParam());
    ASSERT_TRUE(workers_->Connect(1));
    for (DeviceId rank = 0; rank < workers_->size(); ++rank) {
      ranks_.push_back(std::make_unique<Rank>(StrCat("worker-", rank), &workers_->links(rank),
                                              workers_->worker(rank).pool(), &StartClock()));
    }
  }
  void TearDown() override {
    for (auto& rank : ranks_) {
      if (rank != nullptr) rank->executor.reset();
    }
    ranks_.clear();  // their memory is of the workers' pools
    workers_.reset();
  }

  const Mesh& mesh() const { return workers_->mesh(); }
  Rank& rank(DeviceId rank) { return *ranks_[static_cast<size_t>(rank)]; }

  ArrayDescriptor Describe(const std::string& id, const ValueDescriptor& value) const {
    return {.array_id = id,
            .dtype = value.dtype,
            .shape = value.shape,
            .spec = value.spec,
            .mesh_id = "default",
            .mesh_revision = 1,
            .mesh = mesh(),
            .cut_points = value.cut_points};
  }

  // Puts an array on all ranks.
  // `late`: a device that the coordinator has not yet told that the array is committed.
  void Put(const std::string& id, const Tensor& tensor, const PartitionSpec& spec,
           const std::vector<CutPoints>& cut_points = {}, DeviceId late = -1) {
    PutBytes(id,
             {.dtype = Dtype::kF32, .shape = tensor.shape, .spec = spec, .cut_points = cut_points},
             tensor.bytes(), late);
  }
  void PutBytes(const std::string& id, const ValueDescriptor& array, absl::Span<const char> bytes,
                DeviceId late = -1) {
    const Tiling tiling = *Tiling::Create(mesh(), array.spec, array.shape, array.cut_points);
    const TensorView whole = *TensorView::Create(array.dtype, array.shape, bytes);
    for (DeviceId device = 0; device < mesh().size(); ++device) {
      const Tile tile = tiling.TileOf(device);
      auto staged = *rank(device).store->Stage({.array_id = id,
                                                .dtype = array.dtype,
                                                .array_shape = array.shape,
                                                .tile = tile,
                                                .array_descriptor = "",
                                                .transfer_id = "put"},
                                               false);
      ASSERT_TRUE(CopyTileBytes(whole, tile, 0, staged->mutable_bytes()).ok());
      ASSERT_TRUE(staged->Finish(std::nullopt).ok());
      if (device == late) continue;
      ASSERT_TRUE(rank(device).store->Commit({id}).ok());
    }
    operands_.push_back(array);
    order_.operands.push_back({.value = id});
  }

  // Plans a program for what was put, as the order of all ranks.
  void Order(int64_t sequence, const Program& program) {
    auto plan = PlanProgram(program, operands_, target());
    ASSERT_TRUE(plan.ok()) << plan.status();
    OrderPlan(sequence, *plan);
  }
  PlanTarget target() const {
    return {.mesh_id = "default",
            .mesh_revision = 1,
            .mesh = mesh(),
            .kernels = {.may_fuse_ops = may_fuse_ops_}};
  }
  void OrderPlan(int64_t sequence, const Plan& plan) {
    const auto links = ForecastOf(plan, {}).link_traffic;
    ASSERT_TRUE(links.has_value());
    ASSERT_EQ(static_cast<int64_t>(links->busiest.size()), links->link_count);
    links_ = links->busiest;
    order_.sequence = sequence;
    order_.epoch = 1;
    order_.term = 1;
    order_.plan_bytes = rpc::PlanBytes(plan);
    order_.plan_hash = Sha256(order_.plan_bytes);
    order_.timeout = absl::Seconds(30);
    order_.return_literals = true;
    order_.outputs.clear();
    for (size_t i = 0; i < plan.outputs.size(); ++i) {
      order_.outputs.push_back(
          {Describe(StrCat("out-", sequence, "-", i), plan.values[plan.outputs[i]]), "encoded"});
    }
  }
  // Orders the sum of `tensor`, which lies whole on each rank, over the axis x. Its result is an
  // array.
  void OrderAllReduceOf(const Tensor& tensor) {
    Put("in", tensor, SpecOf({"", ""}));
    Order(1, {.operand_count = 1,
              .ops = {CollectiveOp{.input = 0, .kind = CollectiveKind::kAllReduce, .axes = {"x"}}},
              .outputs = {1}});
    order_.return_literals = false;
  }

  // The bytes that a rank sends in the ordered step by the forecast of its links.
  int64_t ForecastBytes(DeviceId sender) const {
    int64_t bytes = 0;
    for (const LinkTraffic& link : links_) {
      if (link.sender == sender) bytes += link.sent_bytes;
    }
    return bytes;
  }

  void Run(DeviceId device, const StepOrder& order) {
    rank(device).executor->Run(order, [this, device](StepResult result) {
      absl::MutexLock lock(&mutex_);
      results_[device].push_back(std::move(result));
    });
  }
  void RunOnAll() {
    for (DeviceId device = 0; device < mesh().size(); ++device) Run(device, order_);
  }
  // The `count`th result of a rank.
  StepResult Await(DeviceId device, size_t count = 1) {
    absl::MutexLock lock(&mutex_);
    const auto reported = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return results_[device].size() >= count;
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&reported), absl::Seconds(60))) {
      ADD_FAILURE() << "rank " << device << " reports nothing";
      return {.outcome = StepOutcome::kFailed};
    }
    return results_[device][count - 1];
  }

  // Waits for all ranks, commits, and puts output `index` together from their tiles.
  Tensor Assemble(size_t index = 0) {
    const ArrayDescriptor& array = order_.outputs[index].array;
    const Tiling tiling = *array.Tiling();
    Tensor whole = Tensor::Random(array.shape, 0);
    std::fill(whole.elements.begin(), whole.elements.end(), NAN);
    const MutableTensorView view = *MutableTensorView::Create(
        array.dtype, array.shape,
        {reinterpret_cast<char*>(whole.elements.data()), whole.bytes().size()});
    for (DeviceId device = 0; device < mesh().size(); ++device) {
      const StepResult result = Await(device);
      EXPECT_EQ(result.outcome, StepOutcome::kDone) << result.status;
      if (result.outcome != StepOutcome::kDone) return whole;
      EXPECT_EQ(result.rank, device);
      EXPECT_TRUE(rank(device).executor->Commit(order_.sequence).ok());
      const StoredTilePtr tile = *rank(device).store->Find(array.array_id, tiling.TileOf(device));
      EXPECT_EQ(tile->crc32c(), result.outputs[index].crc32c);
      EXPECT_EQ(tile->description().array_descriptor, "encoded");
      if (tiling.ReplicaIdOf(device) == 0) {
        EXPECT_EQ(result.outputs[index].data,
                  std::string(tile->bytes().data(), tile->bytes().size()));
      } else {
        EXPECT_TRUE(result.outputs[index].data.empty());
      }
      EXPECT_TRUE(PasteTileBytes(tile->bytes(), tiling.TileOf(device), 0, view).ok());
    }
    return whole;
  }

  // Returns the clock of the executors. That of the links may differ.
  Clock& StartClock() {
    if (clock_ == nullptr) {
      clock_ = std::make_unique<test::SteppedClock>(&workers_->clock(), ahead_);
    }
    return *clock_;
  }

  bool may_fuse_ops_ = false;  // whether Order fuses functions of elements
  absl::Duration ahead_;
  std::unique_ptr<LinkedWorkers> workers_;
  std::unique_ptr<test::SteppedClock> clock_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<ValueDescriptor> operands_;
  StepOrder order_;
  std::vector<LinkTraffic> links_;  // all of the ordered plan
  absl::Mutex mutex_;
  std::map<DeviceId, std::vector<StepResult>> results_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_TESTS_UNIT_WORKER_STEP_EXECUTOR_FIXTURE_H_
