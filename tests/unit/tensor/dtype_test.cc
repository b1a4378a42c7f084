// Element types: names, sizes, NumPy codes.
#include "tensor/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;

TEST(DtypeTest, EveryNameLeadsBackToItsType) {
  for (const Dtype dtype : AllDtypes()) {
    EXPECT_THAT(ParseDtype(DtypeName(dtype)), IsOkAndHolds(dtype));
  }
}

TEST(DtypeTest, NamesTheKnownTypesWhenRefusingAnUnknownOne) {
  const auto dtype = ParseDtype("f32");
  EXPECT_THAT(dtype, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnknownDtype));
  EXPECT_THAT(std::string(dtype.status().message()), testing::HasSubstr("BF16"));
  EXPECT_THAT(std::string(dtype.status().message()), testing::HasSubstr("did you mean \"F32\"?"));
}

TEST(DtypeTest, SubByteElementsArePacked) {
  EXPECT_THAT(PackedSizeBytes(Dtype::kF4, 6), IsOkAndHolds(3));
  EXPECT_THAT(PackedSizeBytes(Dtype::kF6E2M3, 4), IsOkAndHolds(3));
  EXPECT_THAT(PackedSizeBytes(Dtype::kF4, 3), IsOkAndHolds(2));
  EXPECT_THAT(PackedSizeBytes(Dtype::kF6E3M2, 1), IsOkAndHolds(1));
  EXPECT_THAT(WholeSizeBytes(Dtype::kF4, 6), IsOkAndHolds(3));
  EXPECT_THAT(WholeSizeBytes(Dtype::kF4, 3), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(WholeSizeBytes(Dtype::kF6E2M3, 6), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(DtypeTest, RefusesSizesThatOverflow) {
  EXPECT_THAT(PackedSizeBytes(Dtype::kF64, std::numeric_limits<int64_t>::max() / 8),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidShape));
  EXPECT_THAT(PackedSizeBytes(Dtype::kF32, -1), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace shardmesh
