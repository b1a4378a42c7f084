// Elementwise arithmetic: wrapping, NaNs, rounding, and memory at odd addresses.
#include "worker/kernel/reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "status/detail.h"
#include "status/fact_keys.h"
#include "tensor/float_convert.h"
#include "tests/testing/status_matchers.h"
#include "worker/step/combiners.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;

// Runs the function on memory one byte off any alignment, the result going to the left operand.
template <typename T>
std::vector<T> Combine(Reduction reduction, Dtype dtype, const std::vector<T>& left,
                       const std::vector<T>& right) {
  const size_t size = left.size() * sizeof(T);
  std::vector<char> left_bytes(size + 1), right_bytes(size + 1);
  std::memcpy(left_bytes.data() + 1, left.data(), size);
  std::memcpy(right_bytes.data() + 1, right.data(), size);
  const CombineFn combine = *CombineFunction(reduction, dtype);
  combine(left_bytes.data() + 1, right_bytes.data() + 1, static_cast<int64_t>(left.size()),
          left_bytes.data() + 1);
  std::vector<T> out(left.size());
  std::memcpy(out.data(), left_bytes.data() + 1, size);
  return out;
}

template <typename T>
void ExpectWraps(Dtype dtype) {
  const T high = std::numeric_limits<T>::max();
  const T low = std::numeric_limits<T>::min();
  EXPECT_THAT(Combine<T>(Reduction::kSum, dtype, {high, 3}, {1, 4}), ElementsAre(low, 7));
  EXPECT_THAT(Combine<T>(Reduction::kProduct, dtype, {high, 3}, {2, 4}),
              ElementsAre(static_cast<T>(-2), 12));
  EXPECT_THAT(Combine<T>(Reduction::kMin, dtype, {high, 3}, {low, 4}), ElementsAre(low, 3));
  EXPECT_THAT(Combine<T>(Reduction::kMax, dtype, {high, 3}, {low, 4}), ElementsAre(high, 4));
}

TEST(ReduceTest, IntegersWrap) {
  ExpectWraps<int8_t>(Dtype::kI8);
  ExpectWraps<uint8_t>(Dtype::kU8);
  ExpectWraps<int32_t>(Dtype::kI32);
  ExpectWraps<int64_t>(Dtype::kI64);
}

float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(ReduceTest, TheLeftNanStandsAndBecomesQuietWhereverItLies) {
  for (const size_t count : {1u, 3u, 4u, 16u, 61u}) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kProduct}) {
      const std::vector<float> left(count, FloatOf(0x7f800001)), right(count, FloatOf(0xffc00002));
      for (const float value : Combine(reduction, Dtype::kF32, left, right)) {
        EXPECT_EQ(std::bit_cast<uint32_t>(value), 0x7fc00001u);
      }
      for (const float value : Combine(reduction, Dtype::kF32, {1.0f}, right)) {
        EXPECT_EQ(std::bit_cast<uint32_t>(value), 0xffc00002u);
      }
      const double nan = std::bit_cast<double>(uint64_t{0x7ff0000000000007});
      EXPECT_EQ(
          std::bit_cast<uint64_t>(Combine<double>(reduction, Dtype::kF64, {nan}, {-nan}).front()),
          0x7ff8000000000007u);
    }
    for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
      const std::vector<float> nans(count, FloatOf(0x7fc00001)), ones(count, 1.0f);
      for (const float value : Combine(reduction, Dtype::kF32, nans, ones)) {
        EXPECT_EQ(std::bit_cast<uint32_t>(value), 0x7fc00001u);
      }
      for (const float value : Combine(reduction, Dtype::kF32, ones, nans)) {
        EXPECT_EQ(std::bit_cast<uint32_t>(value), 0x7fc00001u);
      }
    }
  }
}

TEST(ReduceTest, OfEqualZerosTheLeftOneStands) {
  EXPECT_TRUE(std::signbit(Combine<float>(Reduction::kMin, Dtype::kF32, {-0.0f}, {0.0f})[0]));
  EXPECT_FALSE(std::signbit(Combine<float>(Reduction::kMin, Dtype::kF32, {0.0f}, {-0.0f})[0]));
  EXPECT_TRUE(std::signbit(Combine<float>(Reduction::kMax, Dtype::kF32, {-0.0f}, {0.0f})[0]));
}

TEST(ReduceTest, RefusesTypesWithoutArithmetic) {
  const auto kRefused = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype);
  EXPECT_THAT(PartialDtype(Dtype::kBool), kRefused);
  EXPECT_THAT(PartialDtype(Dtype::kF8E4M3Fn), kRefused);
  EXPECT_THAT(CombineFunction(Reduction::kSum, Dtype::kBF16), kRefused);
  EXPECT_THAT(ConvertFunction(Dtype::kF32, Dtype::kI8), kRefused);
  EXPECT_THAT(ScaleFunction(Dtype::kI32), kRefused);
  EXPECT_EQ(FactOf(ScaleFunction(Dtype::kI32).status(), fact::kDtype), "I32");
}

TEST(CombinersTest, RefuseTypesThatDoNotGoTogether) {
  const auto kRefused = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype);
  EXPECT_THAT(CombinerFor(Reduction::kSum, Dtype::kC64, Dtype::kC64, 2), kRefused);
  EXPECT_THAT(CombinerFor(Reduction::kSum, Dtype::kF32, Dtype::kF64, 2), kRefused);
  EXPECT_THAT(CombinerFor(Reduction::kSum, Dtype::kBF16, Dtype::kF16, 2), kRefused);
  EXPECT_THAT(CombinerFor(Reduction::kMean, Dtype::kI32, Dtype::kI32, 2), kRefused);
}

TEST(CombinersTest, AMeanIsTheSumTimesTheInverseRoundedOnce) {
  const Combiner same = *CombinerFor(Reduction::kMean, Dtype::kF32, Dtype::kF32, 3);
  const float sum = 10.0f;
  float mean = 0;
  same.finish(reinterpret_cast<const char*>(&sum), 1, reinterpret_cast<char*>(&mean));
  EXPECT_EQ(mean, 10.0f * (1.0f / 3));

  const Combiner rounded = *CombinerFor(Reduction::kMean, Dtype::kF16, Dtype::kF16, 3);
  uint16_t half = 0;
  rounded.finish(reinterpret_cast<const char*>(&sum), 1, reinterpret_cast<char*>(&half));
  EXPECT_EQ(half, F32ToF16(10.0f * (1.0f / 3)));
}

}  // namespace
}  // namespace shardmesh::worker
