// Tests of sharding/layout/resize_advice.h: the advice fits the causes, and only these.
#include "sharding/layout/resize_advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardmesh {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(AdviceOnResizeTest, HasASentenceForEachCauseOnce) {
  const auto equal = UnevenCuts::kEqualOnly;
  EXPECT_THAT(AdviceOnResize({Reason::kNotDivisible, Reason::kNotDivisible}, equal),
              ElementsAre(AllOf(
                  HasSubstr("--uneven ceil"),
                  HasSubstr("reshard these arrays to another spec first: `shardmesh reshard NAME "
                            "--to SPEC`"))));
  EXPECT_THAT(AdviceOnResize({Reason::kAxisNotInMesh}, equal),
              ElementsAre(HasSubstr("Keep the axes that specs name, with size 1")));
  EXPECT_THAT(AdviceOnResize({Reason::kInvalidCutPoints}, equal),
              ElementsAre(HasSubstr("by a rule such as --uneven ceil")));
  EXPECT_THAT(AdviceOnResize({Reason::kInvalidCutPoints}, UnevenCuts::kByWeights),
              ElementsAre("Choose another rule or other weights"))
      << "a rule was given already";
  EXPECT_THAT(AdviceOnResize({Reason::kAxisNotInMesh, Reason::kNotDivisible}, equal),
              ElementsAre(HasSubstr("--uneven ceil"), HasSubstr("Keep the axes")));
}

TEST(AdviceOnResizeTest, LeavesToTheErrorWhatItSaysItself) {
  EXPECT_THAT(AdviceOnResize({Reason::kMeshInUse, Reason::kArrayDegraded, Reason::kRecovering,
                              Reason::kInvalidSpec},
                             UnevenCuts::kEqualOnly),
              IsEmpty());
}

}  // namespace
}  // namespace shardmesh
