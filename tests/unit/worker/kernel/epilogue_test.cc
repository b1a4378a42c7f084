// Epilogues: threads, types, memory in place, and aborts.
#include "worker/kernel/epilogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tensor/float_convert.h"
#include "tests/testing/status_matchers.h"
#include "worker/kernel/activation_loops.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

std::vector<float> EpilogueValues(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(random()) * 0x1p-29f - 4;
  return values;
}

template <typename T>
absl::Span<const char> EpilogueBytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <typename T>
absl::Span<char> EpilogueMemory(std::vector<T>& values) {
  return {reinterpret_cast<char*>(values.data()), values.size() * sizeof(T)};
}

TEST(EpilogueThreadsTest, NeitherThreadsNorPiecesChangeBits) {
  // Some pieces begin in the middle of a row.
  constexpr int64_t kRows = 517, kColumns = 1031;
  const std::vector<float> in = EpilogueValues(kRows * kColumns, 1),
                           bias = EpilogueValues(kColumns, 2);
  for (const bool has_bias : {false, true}) {
    const EpilogueSpec spec{.rows = kRows,
                            .columns = kColumns,
                            .in_dtype = Dtype::kF32,
                            .bias_dtype = Dtype::kF32,
                            .out_dtype = Dtype::kF32,
                            .has_bias = has_bias,
                            .activation = Activation::kGelu};
    std::vector<float> expected = in;
    for (int64_t row = 0; row < kRows; ++row) {
      ActivationLoop(spec.activation)(has_bias ? bias.data() : nullptr,
                                      expected.data() + row * kColumns, kColumns);
    }
    for (const int threads : {0, 1, 3, 8}) {
      std::vector<float> out(in.size());
      ASSERT_THAT(ApplyEpilogue(spec, EpilogueBytes(in),
                                has_bias ? EpilogueBytes(bias) : absl::Span<const char>(),
                                EpilogueMemory(out), threads),
                  IsOk());
      EXPECT_EQ(std::memcmp(out.data(), expected.data(), EpilogueBytes(out).size()), 0)
          << threads << " threads";
    }
  }
}

TEST(EpilogueThreadsTest, ASmallTypeIsComputedInF32AndRoundedOnce) {
  constexpr int64_t kRows = 3, kColumns = 1500;
  const std::vector<float> values = EpilogueValues(kRows * kColumns, 3),
                           offsets = EpilogueValues(kColumns, 4);
  std::vector<uint16_t> in(values.size()), bias(offsets.size());
  ConvertF32ToF16(values, absl::MakeSpan(in));
  ConvertF32ToBF16(offsets, absl::MakeSpan(bias));
  std::vector<uint16_t> expected(in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    float value = F16ToF32(in[i]);
    const float offset = BF16ToF32(bias[i % bias.size()]);
    ActivationLoop(Activation::kSilu)(&offset, &value, 1);
    expected[i] = F32ToF16(value);
  }
  // The result replaces the input.
  ASSERT_THAT(ApplyEpilogue({.rows = kRows,
                             .columns = kColumns,
                             .in_dtype = Dtype::kF16,
                             .bias_dtype = Dtype::kBF16,
                             .out_dtype = Dtype::kF16,
                             .has_bias = true,
                             .activation = Activation::kSilu},
                            EpilogueBytes(in), EpilogueBytes(bias), EpilogueMemory(in), 2),
              IsOk());
  EXPECT_EQ(in, expected);
}

TEST(EpilogueThreadsTest, ALargeOneEndsWithItsAbort) {
  constexpr int64_t kColumns = 5'000'000;
  std::vector<uint16_t> values(kColumns);
  const EpilogueSpec spec{.rows = 1,
                          .columns = kColumns,
                          .in_dtype = Dtype::kBF16,
                          .out_dtype = Dtype::kBF16,
                          .activation = Activation::kRelu};
  int calls = 0;
  EXPECT_THAT(ApplyEpilogue(spec, EpilogueBytes(values), {}, EpilogueMemory(values), 1,
                            [&] {
                              ++calls;
                              return absl::AbortedError("the step was aborted");
                            }),
              StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(calls, 1);
}

TEST(EpilogueThreadsTest, NothingIsComputedForNoElements) {
  for (const int64_t rows : {0, 2}) {
    EXPECT_THAT(ApplyEpilogue({.rows = rows, .columns = rows == 0 ? 5 : 0}, {}, {}, {}), IsOk());
  }
}

}  // namespace
}  // namespace shardmesh::worker
