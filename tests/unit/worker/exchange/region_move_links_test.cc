// Moves over real streams and over shared memory, with windows that hold only a few of their
// pieces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "program/move_plan.h"
#include "program/step_plan.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/collective/collective_data.h"
#include "tests/unit/worker/exchange/linked_workers.h"
#include "worker/collective/region_move.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::LinkedWorkers;
using ::shardmesh::test::TransportName;
using ::testing::Each;

// A matrix of bytes that becomes columns of four ranks, from rows.
class LinkedMoveTest : public testing::TestWithParam<Transport> {
 protected:
  static constexpr int64_t kRanks = 4;
  static constexpr int64_t kExtent = 2048;

  static PartitionSpec Along(size_t dim) {
    std::vector<SpecEntry> entries(2);
    entries[dim] = SpecEntry::Axis("x");
    return PartitionSpec(std::move(entries));
  }
  static char At(int64_t row, int64_t column) {
    return static_cast<char>((row * 131 + column * 17) % 251);
  }

  // Runs the move on one rank, and checks the new tile.
  absl::Status Run(LinkedWorkers& workers, DeviceId rank, int64_t step, const ReshardPlan& plan,
                   int64_t window_bytes) {
    SHARDMESH_ASSIGN_OR_RETURN(
        const auto link,
        workers.links(rank).OpenLink("default", step, 1, absl::Now() + absl::Seconds(20)));
    const DeviceGroup group = GroupOf(kRanks, rank);
    CollectiveCall call = CallOf(link.get(), group);
    call.step = step;
    call.op = 0;
    call.check = [&] { return link->Check(); };
    const auto pool = workers.worker(rank).pool();
    call.scratch = [&](int64_t size_bytes) -> absl::StatusOr<OwnedMutableBytes> {
      SHARDMESH_ASSIGN_OR_RETURN(Buffer buffer, pool->Allocate(size_bytes, "a piece"));
      auto shared = std::make_shared<Buffer>(std::move(buffer));
      return OwnedMutableBytes{shared->mutable_bytes(), shared};
    };
    const Tile held = plan.from().TileOf(rank);
    std::string rows;
    for (int64_t row = held.ranges[0].start; row < held.ranges[0].stop; ++row) {
      for (int64_t column = 0; column < kExtent; ++column) rows.push_back(At(row, column));
    }
    const OwnedBytes from = workers.Own(rank, rows);
    const Tile wanted = plan.to().TileOf(rank);
    std::string to(static_cast<size_t>(wanted.element_count()), ' ');
    SHARDMESH_RETURN_IF_ERROR(link->Begin(0, MoveSignature(plan, "bytes")));
    SHARDMESH_RETURN_IF_ERROR(RunRegionMove(call, {.plan = &plan,
                                                   .dtype = Dtype::kU8,
                                                   .from = from,
                                                   .to = absl::MakeSpan(to),
                                                   .piece_bytes = 4096,
                                                   .window_bytes = window_bytes}));
    size_t i = 0;
    for (int64_t row = 0; row < kExtent; ++row) {
      for (int64_t column = wanted.ranges[1].start; column < wanted.ranges[1].stop; ++column) {
        if (to[i++] != At(row, column)) return absl::InternalError("an element differs");
      }
    }
    return absl::OkStatus();
  }
};

INSTANTIATE_TEST_SUITE_P(All, LinkedMoveTest, testing::Values(Transport::kStream, Transport::kShm),
                         TransportName);

TEST_P(LinkedMoveTest, ASmallWindowHoldsNoRankUpForLong) {
  LinkedWorkers workers("x=4", int64_t{4} << 20, GetParam());
  ASSERT_TRUE(workers.Connect(1));
  const ValueDescriptor rows = {.dtype = Dtype::kU8, .shape = {kExtent, kExtent}, .spec = Along(0)};
  ValueDescriptor columns = rows;
  columns.spec = Along(1);
  const ReshardPlan plan = *MovePlan(workers.mesh(), rows, columns);
  // A region has 64 pieces of 4 KiB, and one round has 3 of them.
  int64_t step = 0;
  for (const int64_t window_bytes : {3 * 4096, 7 * 4096, 1 << 26}) {
    // In one of the runs a rank comes late.
    for (const DeviceId late : {DeviceId{-1}, DeviceId{2}}) {
      ++step;
      std::vector<absl::Status> outcomes(kRanks);
      std::vector<std::thread> threads;
      for (DeviceId rank = 0; rank < kRanks; ++rank) {
        threads.emplace_back([&, rank, step = step] {
          if (rank == late) absl::SleepFor(absl::Milliseconds(50));
          outcomes[static_cast<size_t>(rank)] = Run(workers, rank, step, plan, window_bytes);
        });
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_THAT(outcomes, Each(IsOk())) << "a window of " << window_bytes << " bytes";
    }
  }
}

}  // namespace
}  // namespace shardmesh::worker
