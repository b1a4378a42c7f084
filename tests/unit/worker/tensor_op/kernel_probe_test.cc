// Tests of worker/tensor_op/kernel_probe.h.
#include "worker/tensor_op/kernel_probe.h"

#include <gtest/gtest.h>

#include <cstddef>

namespace shardmesh::worker {
namespace {

TEST(KernelProbeTest, MeasuresOnceForEachNumberOfThreads) {
  MatmulKernel kernel({.threads = 1});
  const MeasuredKernels measured = MeasureKernels(&kernel);
  EXPECT_GT(measured.f32_flops_per_second, 1e7);
  EXPECT_LT(measured.f32_flops_per_second, 1e14);
  // A slow host may not measure all of them in time.
  for (const double seconds : measured.costs.seconds) {
    EXPECT_GE(seconds, 0);
    EXPECT_LT(seconds, 1e-2);
  }
  const ProductCosts& products = measured.costs.Of(ProductKind::kF32);
  EXPECT_GT(products[0], 0);
  for (size_t i = 1; i < products.size(); ++i) EXPECT_GE(products[i], products[i - 1]);
  MatmulKernel same({.threads = 1});
  EXPECT_EQ(MeasureKernels(&same), measured);
  EXPECT_EQ(same.compilations(), 0);
}

}  // namespace
}  // namespace shardmesh::worker
