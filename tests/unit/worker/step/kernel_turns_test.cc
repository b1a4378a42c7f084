// Turns of kernels: who waits gets its turn, whatever became of those before it.
#include "worker/step/kernel_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <thread>

#include "absl/time/clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

absl::Status Never() { return absl::OkStatus(); }

TEST(KernelTurnsTest, AnAbortCheckThatFailsOrThrowsLeavesNoPlaceInTheQueue) {
  KernelTurns turns;
  KernelTurns::Turn first(&turns, Never);
  ASSERT_THAT(first.Take(), IsOk());
  {
    KernelTurns::Turn aborted(&turns, [] { return absl::AbortedError("no more"); });
    EXPECT_THAT(aborted.Take(), StatusIs(absl::StatusCode::kAborted));
  }
  {
    KernelTurns::Turn thrown(&turns, []() -> absl::Status { throw std::bad_alloc(); });
    EXPECT_THROW(thrown.Take().IgnoreError(), std::bad_alloc);
  }
  first.GiveBack();
  KernelTurns::Turn next(&turns, Never);
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  KernelTurns::Turn waiting(&turns, [deadline] {
    return absl::Now() < deadline ? absl::OkStatus() : absl::DeadlineExceededError("no turn");
  });
  ASSERT_THAT(waiting.Take(), IsOk());
  std::thread giver([&] { waiting.GiveBack(); });
  EXPECT_THAT(next.Take(), IsOk());
  giver.join();
}

}  // namespace
}  // namespace shardmesh::worker
