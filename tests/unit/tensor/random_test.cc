// Random values: reproducible, independent of how they are cut up, and normal.
#include "tensor/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tensor/float_convert.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

absl::Span<char> BytesOf(absl::Span<float> values) {
  return {reinterpret_cast<char*>(values.data()), values.size() * sizeof(float)};
}

TEST(FillNormalTest, PiecesGiveTheSameAsTheWhole) {
  std::vector<float> whole(1000);
  std::vector<float> pieces(1000);
  ASSERT_THAT(FillNormal(Dtype::kF32, 7, 0.5, 0, BytesOf(absl::MakeSpan(whole))), IsOk());
  for (const int64_t begin : {600, 0, 250}) {
    const size_t size = begin == 0 ? 250 : begin == 250 ? 350 : 400;
    const auto piece = absl::MakeSpan(pieces).subspan(static_cast<size_t>(begin), size);
    ASSERT_THAT(FillNormal(Dtype::kF32, 7, 0.5, begin, BytesOf(piece)), IsOk());
  }
  EXPECT_EQ(pieces, whole);
  std::vector<uint16_t> halves(1000);
  ASSERT_THAT(FillNormal(Dtype::kBF16, 7, 0.5, 0,
                         {reinterpret_cast<char*>(halves.data()), halves.size() * 2}),
              IsOk());
  EXPECT_EQ(halves[123], F32ToBF16(whole[123]));
}

TEST(FillNormalTest, HasTheMomentsOfANormalDistribution) {
  std::vector<float> values(1 << 20);
  ASSERT_THAT(FillNormal(Dtype::kF32, 1, 2.0, 0, BytesOf(absl::MakeSpan(values))), IsOk());
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  int64_t within_one = 0;
  for (const float value : values) {
    const double z = value / 2.0;
    sum += z;
    squares += z * z;
    fourth += z * z * z * z;
    within_one += std::abs(z) < 1;
  }
  const double n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0, 0.005);
  EXPECT_NEAR(squares / n, 1, 0.01);
  EXPECT_NEAR(fourth / n, 3, 0.06);
  EXPECT_NEAR(static_cast<double>(within_one) / n, 0.6827, 0.003);
}

TEST(FillNormalTest, AnotherSeedGivesOtherValues) {
  std::vector<float> a(64);
  std::vector<float> b(64);
  ASSERT_THAT(FillNormal(Dtype::kF32, 1, 1, 0, BytesOf(absl::MakeSpan(a))), IsOk());
  ASSERT_THAT(FillNormal(Dtype::kF32, 2, 1, 0, BytesOf(absl::MakeSpan(b))), IsOk());
  EXPECT_NE(a, b);
}

TEST(FillNormalTest, RefusesTypesThatAreNotFloating) {
  std::vector<float> values(4);
  EXPECT_THAT(FillNormal(Dtype::kI32, 1, 1, 0, BytesOf(absl::MakeSpan(values))),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype));
}

}  // namespace
}  // namespace shardmesh
