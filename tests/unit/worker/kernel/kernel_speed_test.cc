// Tests of worker/kernel/kernel_speed.h.
#include "worker/kernel/kernel_speed.h"

#include <gtest/gtest.h>

namespace shardmesh::worker {
namespace {

TEST(KernelSpeedTest, IsThatOfAHostThatMultiplies) {
  MatmulKernel kernel({.threads = 1});
  const double speed = MeasureF32Speed(&kernel);
  EXPECT_GT(speed, 1e7);
  EXPECT_LT(speed, 1e14);
  EXPECT_EQ(kernel.compilations(), 1);
}

}  // namespace
}  // namespace shardmesh::worker
