// Tests of status/reason.h.
#include "status/reason.h"

#include <gtest/gtest.h>

#include <set>

namespace shardmesh {
namespace {

TEST(ReasonTest, HasADistinctNameForEachValue) {
  std::set<std::string> names;
  for (int value = 0; value <= static_cast<int>(Reason::kDeadline); ++value) {
    const auto reason = static_cast<Reason>(value);
    EXPECT_EQ(ReasonFromName(ReasonName(reason)), reason) << value;
    names.insert(std::string(ReasonName(reason)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(Reason::kDeadline) + 1);
  EXPECT_EQ(ReasonName(Reason::kNotDivisible), "NOT_DIVISIBLE");
  EXPECT_EQ(ReasonFromName("NO_SUCH"), std::nullopt);
}

TEST(ReasonTest, RidesOnAStatus) {
  const absl::Status plain = absl::InternalError("x");
  EXPECT_EQ(ReasonOf(plain), Reason::kUnspecified);
  EXPECT_EQ(PythonTypeOf(plain), "");
  const absl::Status status =
      InvalidArgument(Reason::kDuplicateAxis, "axis twice", "DuplicateSpecError");
  EXPECT_EQ(status.message(), "axis twice");
  EXPECT_EQ(ReasonOf(status), Reason::kDuplicateAxis);
  EXPECT_EQ(PythonTypeOf(status), "DuplicateSpecError");
  EXPECT_EQ(ReasonOf(WithReason(status, Reason::kNoMesh)), Reason::kNoMesh);
  EXPECT_TRUE(WithReason(absl::OkStatus(), Reason::kNoMesh).ok());
}

TEST(ReasonTest, StaysWhenAnErrorIsGivenAContext) {
  const absl::Status status =
      WithContext(InvalidArgument(Reason::kInvalidSpec, "odd", "TypeError"), "dimension 1");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "dimension 1: odd");
  EXPECT_EQ(ReasonOf(status), Reason::kInvalidSpec);
  EXPECT_EQ(PythonTypeOf(status), "TypeError");
  EXPECT_TRUE(WithContext(absl::OkStatus(), "x").ok());
}

}  // namespace
}  // namespace shardmesh
