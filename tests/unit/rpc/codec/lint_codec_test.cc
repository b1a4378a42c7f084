// Findings across the wire, and findings that are none.
#include "rpc/codec/lint_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;

using ::shardmesh::test::kInvalid;

TEST(LintCodecTest, FindingsOfEveryKindCrossTheWire) {
  for (int64_t kind = 0; kind < kFindingKindCount; ++kind) {
    const Finding finding{.kind = static_cast<Finding::Kind>(kind),
                          .rules = {3, 1},
                          .tensor = "kernel",
                          .modes = {RuntimeMode::kTrain, RuntimeMode::kInsert},
                          .mesh = "default",
                          .reason = Reason::kNotDivisible,
                          .count = 7,
                          .trees = {{.tree = 0, .tensors = 4}, {.tree = 2, .tensors = 3}},
                          .text = "why"};
    v1::LintFinding wire;
    Encode(finding, &wire);
    EXPECT_EQ(v1::LintFinding::Kind_Name(wire.kind()),
              "KIND_" + std::string(FindingKindName(finding.kind)));
    EXPECT_THAT(Decode(wire), IsOkAndHolds(finding));
  }
  v1::LintFinding wire;
  Encode(Finding(), &wire);
  EXPECT_THAT(Decode(wire), IsOkAndHolds(Finding()));
}

TEST(LintCodecTest, RefusesKindsAndModesThatAreNone) {
  EXPECT_THAT(Decode(v1::LintFinding()), StatusIs(kInvalid, Reason::kBadField));
  v1::LintFinding wire;
  wire.set_kind(static_cast<v1::LintFinding::Kind>(99));
  EXPECT_THAT(Decode(wire), StatusIs(kInvalid, Reason::kBadField));
  Encode(Finding(), &wire);
  wire.add_modes("none such");
  EXPECT_THAT(Decode(wire), StatusIs(kInvalid, Reason::kUnknownMode));
  wire.clear_modes();
  wire.add_trees(1);
  EXPECT_THAT(Decode(wire), StatusIs(kInvalid, Reason::kBadField)) << "of how many tensors?";
}

}  // namespace
}  // namespace shardmesh::rpc
