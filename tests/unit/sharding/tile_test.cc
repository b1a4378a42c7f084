// Tests of sharding/tile.h: covering, owners, and uneven cuts.
#include "sharding/tile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using ::shardmesh::test::kInvalid;

Mesh MeshOf(std::string_view text) { return *Mesh::Parse(text); }

PartitionSpec Spec(std::vector<SpecEntry> entries) { return PartitionSpec(std::move(entries)); }

// Expects each element of the tensor in exactly one tile of every replica id, and in as many pieces
// of OwnersOf(everything) as say so.
void ExpectCoversExactlyOnce(const Tiling& tiling) {
  std::map<int64_t, int64_t> elements_of_replica;
  std::map<int64_t, std::vector<Tile>> tiles_of_replica;
  for (DeviceId device = 0; device < tiling.mesh().size(); ++device) {
    const Tile tile = tiling.TileOf(device);
    const int64_t replica = tiling.ReplicaIdOf(device);
    ASSERT_LT(replica, tiling.replica_count());
    for (const Tile& other : tiles_of_replica[replica]) {
      ASSERT_FALSE(Intersect(tile, other).has_value() && !tile.empty())
          << tile.ToString() << " " << other.ToString();
    }
    tiles_of_replica[replica].push_back(tile);
    elements_of_replica[replica] += tile.element_count();
  }
  // Disjoint boxes within the tensor that add up to its size cover it.
  ASSERT_EQ(static_cast<int64_t>(elements_of_replica.size()), tiling.replica_count());
  for (const auto& [replica, elements] : elements_of_replica) {
    ASSERT_EQ(elements, Tile::Whole(tiling.shape()).element_count()) << "replica " << replica;
    ASSERT_EQ(static_cast<int64_t>(tiles_of_replica[replica].size()), tiling.DistinctTileCount());
  }
  // The owners of everything are those same tiles.
  const std::vector<OwnedTile> owned = tiling.OwnersOf(Tile::Whole(tiling.shape()));
  for (const OwnedTile& piece : owned) {
    for (size_t replica = 0; replica < piece.devices.size(); ++replica) {
      ASSERT_EQ(tiling.TileOf(piece.devices[replica]), piece.tile);
      ASSERT_EQ(tiling.ReplicaIdOf(piece.devices[replica]), static_cast<int64_t>(replica));
    }
  }
  int64_t filled = 0;
  for (int64_t tile = 0; tile < tiling.DistinctTileCount(); ++tile) {
    filled += tiling.ReplicaGroup(tile).tile.empty() ? 0 : 1;
  }
  ASSERT_EQ(static_cast<int64_t>(owned.size()), filled);
  // Random ranges have the owners that each device's tile tells.
  std::mt19937 random(static_cast<uint32_t>(filled));
  for (int round = 0; round < 4; ++round) {
    Tile range;
    for (const int64_t extent : tiling.shape()) {
      const auto start = static_cast<int64_t>(random() % static_cast<uint64_t>(extent + 1));
      range.ranges.push_back(
          {start,
           start + static_cast<int64_t>(random() % static_cast<uint64_t>(extent - start + 1))});
    }
    std::set<std::pair<std::string, DeviceId>> expected;
    for (DeviceId device = 0; device < tiling.mesh().size(); ++device) {
      const std::optional<Tile> common = Intersect(tiling.TileOf(device), range);
      if (common.has_value() && !common->empty()) expected.emplace(common->ToString(), device);
    }
    std::set<std::pair<std::string, DeviceId>> found;
    for (const OwnedTile& piece : tiling.OwnersOf(range)) {
      for (const DeviceId device : piece.devices) {
        ASSERT_TRUE(found.emplace(piece.tile.ToString(), device).second);
      }
    }
    ASSERT_EQ(found, expected) << range.ToString();
  }
}

TEST(TilingPropertyTest, TilesCoverTheTensorOncePerReplica) {
  const std::vector<Mesh> meshes = {MeshOf("dp=1"), MeshOf("tp=6"), MeshOf("dp=2,tp=4"),
                                    MeshOf("dp=2,fsdp=3,tp=2"), MeshOf("a=2,b=1,c=3,d=2")};
  std::mt19937 random(7);
  const auto below = [&random](size_t n) { return static_cast<size_t>(random() % n); };
  for (int round = 0; round < 3000; ++round) {
    const Mesh& mesh = meshes[below(meshes.size())];
    // Deal a random part of the axes, in random order, to the dimensions.
    std::vector<std::vector<AxisName>> axes(1 + below(3));
    std::vector<MeshAxis> deck(mesh.axes().begin(), mesh.axes().end());
    std::shuffle(deck.begin(), deck.end(), random);
    std::vector<int64_t> parts(axes.size(), 1);
    for (const MeshAxis& axis : deck) {
      if (below(4) != 0) {
        const size_t dim = below(axes.size());
        axes[dim].emplace_back(axis.name);
        parts[dim] *= axis.size;
      }
    }
    std::vector<SpecEntry> entries;
    Shape shape;
    std::vector<CutPoints> cut_points(axes.size());
    for (size_t dim = 0; dim < axes.size(); ++dim) {
      entries.push_back(SpecEntry::Axes(axes[dim]));
      if (const size_t kind = below(4); kind == 0) {  // uneven parts
        CutPoints& points = cut_points[dim];
        points.push_back(0);
        for (int64_t part = 0; part < parts[dim]; ++part) {
          points.push_back(points.back() + 1 + static_cast<int64_t>(below(4)));
        }
        shape.push_back(points.back());
      } else if (kind == 1) {  // some of which are empty
        CutPoints& points = cut_points[dim];
        shape.push_back(1 + static_cast<int64_t>(below(7)));
        points = {0, shape.back()};
        for (int64_t part = 1; part < parts[dim]; ++part) {
          points.push_back(static_cast<int64_t>(below(static_cast<size_t>(shape.back()) + 1)));
        }
        std::sort(points.begin(), points.end());
      } else {
        shape.push_back(parts[dim] * static_cast<int64_t>(below(4)));
      }
    }
    const auto tiling = Tiling::Create(mesh, Spec(std::move(entries)), shape, cut_points);
    ASSERT_THAT(tiling, IsOk());
    ASSERT_NO_FATAL_FAILURE(ExpectCoversExactlyOnce(*tiling));
  }
}

TEST(TilingPropertyTest, EquivalentSpecsAreThoseThatPlaceAlike) {
  const Mesh mesh = MeshOf("a=2,b=1,c=2,d=3");
  const std::vector<PartitionSpec> specs = [] {
    const std::vector<SpecEntry> entries = {
        SpecEntry::None(),           SpecEntry::Unconstrained(),  SpecEntry::Axis("a"),
        SpecEntry::Axis("b"),        SpecEntry::Axis("c"),        SpecEntry::Axes({"a", "c"}),
        SpecEntry::Axes({"c", "a"}), SpecEntry::Axes({"a", "b"}), SpecEntry::Axes({"b", "d"})};
    std::vector<PartitionSpec> made = {PartitionSpec()};
    for (const SpecEntry& first : entries) {
      made.push_back(Spec({first}));
      for (const SpecEntry& second : entries) {
        if (CheckDistinctAxes(Spec({first, second})).ok()) {
          made.push_back(Spec({first, second}));
        }
      }
    }
    return made;
  }();
  for (const PartitionSpec& x : specs) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Tiling of_x, Tiling::Create(mesh, x, {12, 12}));
    for (const PartitionSpec& y : specs) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const Tiling of_y, Tiling::Create(mesh, y, {12, 12}));
      bool alike = true;
      for (DeviceId device = 0; device < mesh.size(); ++device) {
        alike = alike && of_x.TileOf(device) == of_y.TileOf(device);
      }
      ASSERT_EQ(Equivalent(x, y, mesh, 2), alike) << x.ToString() << " " << y.ToString();
    }
  }
}

TEST(TilingTest, SplitsMajorAxisFirst) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const Tiling tiling,
      Tiling::Create(MeshOf("a=2,b=3"), Spec({SpecEntry::Axes({"b", "a"})}), {12}));
  // Device 4 is at a=1, b=1: part 1 * 2 + 1.
  EXPECT_EQ(tiling.TileOf(4), (Tile{{{6, 8}}}));
}

TEST(TilingTest, FindsTheOwnersOfARange) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const Tiling tiling,
      Tiling::Create(MeshOf("dp=2,tp=2"), Spec({SpecEntry::None(), SpecEntry::Axis("tp")}),
                     {4, 8}));
  const std::vector<OwnedTile> owned = tiling.OwnersOf(Tile{{{1, 3}, {2, 6}}});
  ASSERT_EQ(owned.size(), 2u);
  EXPECT_EQ(owned[0].tile, (Tile{{{1, 3}, {2, 4}}}));
  EXPECT_THAT(owned[0].devices, ElementsAre(0, 2));
  EXPECT_EQ(owned[1].tile, (Tile{{{1, 3}, {4, 6}}}));
  EXPECT_THAT(owned[1].devices, ElementsAre(1, 3));
  EXPECT_THAT(tiling.OwnersOf(Tile{{{1, 1}, {2, 6}}}), IsEmpty());
}

TEST(TilingTest, GivesAScalarToEveryDevice) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Tiling tiling,
                                 Tiling::Create(MeshOf("dp=3"), PartitionSpec(), {}));
  EXPECT_EQ(tiling.TileOf(2), Tile{});
  EXPECT_EQ(tiling.ReplicaIdOf(2), 2);
  const std::vector<OwnedTile> owned = tiling.OwnersOf(Tile{});
  ASSERT_EQ(owned.size(), 1u);
  EXPECT_THAT(owned[0].devices, ElementsAre(0, 1, 2));
}

TEST(TilingTest, CutsWhereItIsTold) {
  const PartitionSpec spec = Spec({SpecEntry::Axis("tp")});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Tiling tiling,
                                 Tiling::Create(MeshOf("tp=3"), spec, {10}, {{0, 5, 7, 10}}));
  EXPECT_EQ(tiling.TileOf(0), (Tile{{{0, 5}}}));
  EXPECT_EQ(tiling.TileOf(2), (Tile{{{7, 10}}}));
  EXPECT_FALSE(tiling.has_equal_tiles());
  EXPECT_EQ(tiling.ShardShape(), Shape({5}));
  ASSERT_EQ(tiling.OwnersOf(Tile{{{6, 8}}}).size(), 2u);
  EXPECT_THAT(tiling.OwnersOf(Tile{{{6, 8}}})[0].devices, ElementsAre(1));

  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Tiling equal,
                                 Tiling::Create(MeshOf("tp=3"), spec, {9}, {{0, 3, 6, 9}}));
  EXPECT_TRUE(equal.has_equal_tiles());
}

TEST(TilingTest, LeavesTilesEmptyWhereCutPointsStay) {
  const PartitionSpec spec = Spec({SpecEntry::Axis("tp")});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const Tiling tiling, Tiling::Create(MeshOf("tp=5"), spec, {10}, {{0, 0, 6, 6, 10, 10}}));
  EXPECT_EQ(tiling.TileOf(0), (Tile{{{0, 0}}}));
  EXPECT_EQ(tiling.TileOf(2), (Tile{{{6, 6}}}));
  EXPECT_EQ(tiling.TileOf(4), (Tile{{{10, 10}}}));
  EXPECT_EQ(tiling.ShardShape(), Shape({6}));
  EXPECT_EQ(tiling.DistinctTileCount(), 5);
  EXPECT_THAT(tiling.cut_points(0), ElementsAre(0, 0, 6, 6, 10, 10));
  const std::vector<OwnedTile> owned = tiling.OwnersOf(Tile{{{0, 10}}});
  ASSERT_EQ(owned.size(), 2u);
  EXPECT_THAT(owned[0].devices, ElementsAre(1));
  EXPECT_THAT(owned[1].devices, ElementsAre(3));
}

TEST(TilingTest, HasOnePartWhereThereIsNothingToCut) {
  const PartitionSpec spec = Spec({SpecEntry::Axis("tp")});
  EXPECT_THAT(Tiling::Create(MeshOf("tp=2"), spec, {0}, {{0, 0}}), IsOk());
  EXPECT_THAT(Tiling::Create(MeshOf("tp=2"), spec, {0}, {{0, 0, 0}}),
              StatusIs(kInvalid, Reason::kInvalidCutPoints));
}

TEST(TilingTest, RefusesCutPointsThatDoNotCut) {
  const PartitionSpec spec = Spec({SpecEntry::Axis("tp")});
  EXPECT_EQ(Tiling::Create(MeshOf("tp=3"), spec, {10}, {{0, 5, 10}}).status().message(),
            "cut points of dimension 0: they make 2 parts, and the spec cuts the dimension into 3 "
            "parts");
  for (const CutPoints& points : std::vector<CutPoints>{
           {0, 10}, {0, 5, 10}, {0, 7, 5, 10}, {1, 5, 7, 10}, {0, 5, 7, 11}, {0, 11, 10, 10}}) {
    EXPECT_THAT(Tiling::Create(MeshOf("tp=3"), spec, {10}, {points}),
                StatusIs(kInvalid, Reason::kInvalidCutPoints));
  }
  EXPECT_THAT(Tiling::Create(MeshOf("tp=3"), spec, {10}, {{0, 5, 7, 10}, {}}),
              StatusIs(kInvalid, Reason::kInvalidCutPoints));
}

TEST(TilingTest, ChecksInTheOrderOfItsContract) {
  const Mesh mesh = MeshOf("dp=2,tp=4");
  const SpecEntry dp = SpecEntry::Axis("dp");
  const SpecEntry tp = SpecEntry::Axis("tp");
  const SpecEntry xx = SpecEntry::Axis("xx");
  struct Case {
    PartitionSpec spec;
    Shape shape;
    Reason reason;
  };
  const std::vector<Case> cases = {
      {Spec({xx, xx}), {3}, Reason::kDuplicateAxis},
      {Spec({xx, dp}), {3}, Reason::kAxisNotInMesh},
      {Spec({SpecEntry::Axes({"dp", std::nullopt})}), {4}, Reason::kAxisNotInMesh},
      {PartitionSpec({}, {"xx"}), {4}, Reason::kAxisNotInMesh},
      {PartitionSpec({dp}, {"dp"}), {4}, Reason::kDuplicateAxis},
      {Spec({SpecEntry::None()}), {}, Reason::kRankMismatch},
      {Spec({dp, tp}), {3}, Reason::kRankMismatch},
      {Spec({dp, tp}), {3, 3}, Reason::kNotDivisible},
      {Spec({dp}), {-2}, Reason::kInvalidShape},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(Tiling::Create(mesh, c.spec, c.shape), StatusIs(kInvalid, c.reason))
        << c.spec.ToString();
  }
  EXPECT_THAT(Tiling::Create(Mesh(), PartitionSpec(), {}),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoMesh));
}

TEST(TilingTest, NamesTheLowestDimensionThatItsAxesDoNotDivide) {
  const auto tiling = Tiling::Create(MeshOf("dp=2,tp=4"),
                                     Spec({SpecEntry::Axis("dp"), SpecEntry::Axis("tp")}), {3, 3});
  EXPECT_THAT(std::string(tiling.status().message()),
              ::testing::HasSubstr("dimension 0 of the shape (3, 3) is 3"));
}

TEST(TilingTest, CountsDevicesAlongUnreducedAxesAsHolders) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const Tiling tiling,
      Tiling::Create(MeshOf("dp=2,tp=2"), PartitionSpec({SpecEntry::Axis("dp")}, {"tp"}), {4}));
  EXPECT_EQ(tiling.replica_count(), 2);
  EXPECT_FALSE(tiling.FullyReplicated());
  EXPECT_EQ(tiling.TileOf(0), tiling.TileOf(1));
}

TEST(TilingTest, AnswersForOneDeviceOfAHugeMesh) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const Tiling tiling, Tiling::Create(MeshOf("a=65536,b=32768"),
                                          Spec({SpecEntry::Axes({"a", "b"})}), {int64_t{1} << 40}));
  const DeviceId last = (int64_t{1} << 31) - 1;
  EXPECT_EQ(tiling.TileOf(last).ranges[0].stop, int64_t{1} << 40);
  EXPECT_THAT(tiling.OwnersOf(Tile{{{512, 513}}})[0].devices, ElementsAre(1));
}

TEST(TileTest, CountsNoElementsWhateverTheOtherExtents) {
  const Tile tile = Tile::Whole({int64_t{1} << 62, 10, 0, 18});
  EXPECT_EQ(tile.element_count(), 0);
  EXPECT_TRUE(tile.empty());
}

TEST(TileTest, WritesItsRanges) {
  EXPECT_EQ((Tile{{{4, 8}, {0, 3}}}).ToString(), "[4,8)x[0,3)");
  EXPECT_EQ(Tile{}.ToString(), "()");
  EXPECT_EQ((Tile{{{4, 8}, {0, 3}}}).shape(), Shape({4, 3}));
}

TEST(TileTest, IntersectsWhereBothHaveIndices) {
  const Tile a{{{0, 4}, {2, 6}}};
  EXPECT_EQ(Intersect(a, Tile{{{3, 9}, {0, 4}}}), (Tile{{{3, 4}, {2, 4}}}));
  EXPECT_EQ(Intersect(a, Tile{{{4, 9}, {0, 4}}}), std::nullopt);
  EXPECT_EQ(Intersect(Tile{}, Tile{}), Tile{});
}

TEST(TilingTest, ListsEachReplicaGroupByTheNumberOfItsTile) {
  const Mesh mesh = MeshOf("dp=2,fsdp=3,tp=2");
  const Tiling tiling = *Tiling::Create(
      mesh, Spec({SpecEntry::Axis("tp"), SpecEntry::Axis("fsdp")}), {4, 9}, {{0, 1, 4}, {}});
  std::map<DeviceId, int64_t> seen;
  for (int64_t tile = 0; tile < tiling.DistinctTileCount(); ++tile) {
    const OwnedTile group = tiling.ReplicaGroup(tile);
    EXPECT_EQ(group.devices.size(), 2u);
    for (size_t replica = 0; replica < group.devices.size(); ++replica) {
      const DeviceId device = group.devices[replica];
      EXPECT_EQ(tiling.TileOf(device), group.tile);
      EXPECT_EQ(tiling.TileNumberOf(device), tile);
      EXPECT_EQ(tiling.ReplicaIdOf(device), static_cast<int64_t>(replica));
      EXPECT_TRUE(seen.emplace(device, tile).second);
    }
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), mesh.size());
}

TEST(TilingTest, NumbersTheOneTileOfScalarsAndOfTensorsWithoutElements) {
  for (const Shape& shape : {Shape{}, Shape{0, 4}}) {
    const Tiling tiling = *Tiling::Create(
        MeshOf("dp=2,tp=2"),
        shape.empty() ? Spec({}) : Spec({SpecEntry::Axis("dp"), SpecEntry::None()}), shape);
    EXPECT_EQ(tiling.DistinctTileCount(), 1);
    EXPECT_THAT(tiling.ReplicaGroup(0).devices, ElementsAre(0, 1, 2, 3));
    EXPECT_EQ(tiling.TileNumberOf(3), 0);
  }
}

}  // namespace
}  // namespace shardmesh
