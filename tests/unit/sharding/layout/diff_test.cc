// Tests of sharding/layout/diff.h: what counts as a difference, totals, and the budget.
#include "sharding/layout/diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "sharding/tile.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using ::shardmesh::test::kInvalid;

Mesh SomeMesh(std::string_view text) { return Mesh::Parse(text).value(); }

PartitionSpec Spec(const std::vector<std::string>& axes) {
  std::vector<SpecEntry> entries;
  for (const std::string& axis : axes) {
    entries.push_back(axis.empty() ? SpecEntry::None() : SpecEntry::Axis(axis));
  }
  return PartitionSpec(std::move(entries));
}

TEST(LayoutDiffTest, ListsWhatDiffersAndCountsBytes) {
  const Mesh mesh = SomeMesh("dp=2,tp=4");
  const std::vector<PlacedTensor> a = {{"same", {8, 8}, 32, Spec({"dp"})},
                                       {"other", {8, 8}, 32, Spec({"dp", "tp"})},
                                       {"gone", {8}, 16, Spec({})}};
  const std::vector<PlacedTensor> b = {{"new", {4}, 8, Spec({"tp"})},
                                       {"other", {8, 8}, 32, Spec({"dp"})},
                                       {"same", {8, 8}, 32, Spec({"dp"})}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const LayoutDiff diff, DiffLayouts({&mesh, a}, {&mesh, b}));
  EXPECT_EQ(diff.unchanged_count, 1);
  EXPECT_EQ(diff.bytes_per_device_a, 128 + 32 + 16);
  EXPECT_EQ(diff.bytes_per_device_b, 128 + 128 + 1);
  EXPECT_EQ(diff.total_bytes_a, 256 + 256 + 16);
  EXPECT_EQ(diff.total_bytes_b, 256 + 256 + 4);
  EXPECT_EQ(diff.only_in_a, 1);
  EXPECT_EQ(diff.only_in_b, 1);
  ASSERT_THAT(diff.changed, SizeIs(3));
  EXPECT_EQ(diff.changed[0],
            (TensorDiff{"other", Spec({"dp", "tp"}), Spec({"dp"}), 32, 128, true, true}));
  EXPECT_EQ(diff.changed[1], (TensorDiff{"gone", Spec({}), std::nullopt, 16, 0, false, true}));
  EXPECT_EQ(diff.changed[2], (TensorDiff{"new", std::nullopt, Spec({"tp"}), 0, 1, false, true}));
}

TEST(LayoutDiffTest, TellsSpecsFromTiles) {
  const Mesh mesh = SomeMesh("dp=2,tp=4,one=1");
  const Mesh renamed = SomeMesh("x=2,y=2,z=2");
  const Mesh larger = SomeMesh("more=3,dp=2,tp=4");
  struct Case {
    const Mesh* other;
    PartitionSpec a;
    PartitionSpec b;
    bool spec_differs;
    bool tiles_differ;
  };
  const PartitionSpec two({SpecEntry::Axes({"dp", "tp"})});
  const Case kCases[] = {
      {&mesh, Spec({}), Spec({""}), true, false},
      {&mesh, Spec({"dp"}), PartitionSpec({SpecEntry::Axes({"one", "dp"})}), true, false},
      {&mesh, two, PartitionSpec({SpecEntry::Axes({"tp", "dp"})}), true, true},
      {&renamed, two, PartitionSpec({SpecEntry::Axes({"x", "y", "z"})}), true, false},
      {&renamed, two, PartitionSpec({SpecEntry::Axes({"x", "z", "y"})}), true, true},
      {&renamed, Spec({"tp"}), PartitionSpec({SpecEntry::Axes({"y", "z"})}), true, false},
      {&larger, Spec({"tp"}), Spec({"tp"}), false, false},
      {&larger, Spec({}), Spec({}), false, false},
      {&larger, Spec({"dp"}), Spec({"", "dp"}), true, true},
  };
  for (const Case& c : kCases) {
    const std::vector<PlacedTensor> a = {{"w", {24, 24}, 8, c.a}};
    const std::vector<PlacedTensor> b = {{"w", {24, 24}, 8, c.b}};
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const LayoutDiff diff, DiffLayouts({&mesh, a}, {c.other, b}));
    const bool differs = c.spec_differs || c.tiles_differ;
    ASSERT_THAT(diff.changed, SizeIs(differs ? 1 : 0)) << c.a.ToString() << c.b.ToString();
    if (differs) {
      EXPECT_EQ(diff.changed[0].spec_differs, c.spec_differs) << c.b.ToString();
      EXPECT_EQ(diff.changed[0].tiles_differ, c.tiles_differ) << c.b.ToString();
    }
  }
}

TEST(LayoutDiffTest, TilesDifferWhereSomePositionHoldsAnotherTile) {
  std::mt19937 random(20260110);
  const auto below = [&random](size_t bound) {
    return std::uniform_int_distribution<size_t>(0, bound - 1)(random);
  };
  const Mesh kMeshes[] = {SomeMesh("a=2,b=3,c=2"), SomeMesh("a=4,b=3"), SomeMesh("a=3,b=2,c=2"),
                          SomeMesh("a=2,b=2,c=3"), SomeMesh("a=6,b=2"), SomeMesh("a=12")};
  int64_t same = 0;
  for (int round = 0; round < 5'000; ++round) {
    const Mesh& mesh_a = kMeshes[below(6)];
    const Mesh& mesh_b = kMeshes[below(6)];
    const auto spec_for = [&](const Mesh& mesh) {
      std::vector<MeshAxis> axes(mesh.axes().begin(), mesh.axes().end());
      std::shuffle(axes.begin(), axes.end(), random);
      std::vector<AxisName> entries[2];
      for (const MeshAxis& axis : axes) {
        if (const size_t dim = below(3); dim < 2) {
          entries[dim].push_back(axis.name);
        }
      }
      return PartitionSpec({SpecEntry::Axes(entries[0]), SpecEntry::Axes(entries[1])});
    };
    const std::vector<PlacedTensor> a = {{"w", {12, 24}, 8, spec_for(mesh_a)}};
    const std::vector<PlacedTensor> b = {{"w", {12, 24}, 8, spec_for(mesh_b)}};
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const LayoutDiff diff, DiffLayouts({&mesh_a, a}, {&mesh_b, b}));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Tiling tiling_a,
                                   Tiling::Create(mesh_a, a[0].spec, a[0].shape));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Tiling tiling_b,
                                   Tiling::Create(mesh_b, b[0].spec, b[0].shape));
    bool differ = false;
    for (DeviceId device = 0; device < mesh_a.size(); ++device) {
      differ = differ || tiling_a.TileOf(device) != tiling_b.TileOf(device);
    }
    EXPECT_EQ(!diff.changed.empty() && diff.changed[0].tiles_differ, differ)
        << mesh_a.ToString() << " " << a[0].spec.ToString() << " " << mesh_b.ToString() << " "
        << b[0].spec.ToString();
    same += differ ? 0 : 1;
  }
  EXPECT_GT(same, 100);
}

TEST(LayoutDiffTest, KeepsABudget) {
  const Mesh mesh = SomeMesh("dp=2");
  const std::vector<PlacedTensor> small = {{"w", {100}, 8, Spec({"dp"})}};
  const std::vector<PlacedTensor> large = {{"w", {100}, 8, Spec({})}};
  const std::vector<PlacedTensor> none;
  struct Case {
    absl::Span<const PlacedTensor> a;
    absl::Span<const PlacedTensor> b;
    LayoutBudget budget;
    bool within;
  };
  const Case kCases[] = {
      {small, large, {}, true},
      {small, large, {50, {}, {}}, true},
      {small, large, {49, {}, {}}, false},
      {small, large, {{}, 1.0, {}}, true},
      {small, large, {{}, 0.99, {}}, false},
      {small, large, {50, 0.99, {}}, false},
      {large, small, {0, 0.0, {}}, true},
      {none, small, {{}, 1000.0, {}}, false},
      {small, large, {{}, {}, 100}, true},
      {small, large, {{}, {}, 99}, false},
      {large, small, {0, 0.0, 49}, false},
  };
  for (const Case& c : kCases) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const LayoutDiff diff,
                                   DiffLayouts({&mesh, c.a}, {&mesh, c.b}, c.budget));
    EXPECT_EQ(diff.within_budget, c.within);
    EXPECT_EQ(diff.budget_text.empty(), c.within);
  }
}

TEST(LayoutDiffTest, CountsElementsOfLessThanAByte) {
  const Mesh mesh = SomeMesh("dp=2");
  const std::vector<PlacedTensor> a = {{"four_bits", {6}, 4, Spec({})}, {"no_bytes", {6}, 0, {}}};
  const std::vector<PlacedTensor> b = {{"four_bits", {6}, 4, Spec({"dp"})},
                                       {"no_bytes", {6}, 0, {}}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const LayoutDiff diff, DiffLayouts({&mesh, a}, {&mesh, b}));
  EXPECT_EQ(diff.bytes_per_device_a, 3);
  EXPECT_EQ(diff.bytes_per_device_b, 2) << "three elements, the second byte filled up";
  EXPECT_EQ(diff.unchanged_count, 1);
}

TEST(LayoutDiffTest, RefusesWhatIsNoPlacement) {
  const Mesh mesh = SomeMesh("dp=2");
  const auto status = [&mesh](std::vector<PlacedTensor> tensors) {
    return DiffLayouts({&mesh, {}}, {&mesh, tensors}).status();
  };
  const absl::Status indivisible = status({{"w", {3}, 8, Spec({"dp"})}});
  EXPECT_THAT(indivisible, StatusIs(kInvalid, Reason::kNotDivisible));
  EXPECT_THAT(indivisible.ToString(), HasSubstr("layout B, tensor 'w'"));
  EXPECT_THAT(status({{"w", {2}, 8, {}}, {"w", {2}, 8, {}}}),
              StatusIs(kInvalid, Reason::kBadField));
  EXPECT_THAT(status({{"w", {2}, -1, {}}}), StatusIs(kInvalid, Reason::kBadField));
  EXPECT_THAT(status({{"w", {int64_t{1} << 61}, 64, {}}}),
              StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_THAT(status({{"v", {int64_t{1} << 60}, 56, {}}, {"w", {int64_t{1} << 60}, 56, {}}}),
              StatusIs(kInvalid, Reason::kLimitExceeded));
}

}  // namespace
}  // namespace shardmesh
