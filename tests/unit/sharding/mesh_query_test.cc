// Sizes, indices, sub-meshes and groups along some axes of a mesh.
#include "sharding/mesh_query.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "sharding/tile.h"
#include "status/reason.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using test::IsOk;
using test::IsOkAndHolds;
using test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Names = std::vector<std::string>;

using test::kInvalid;

Mesh MakeMesh(std::string_view text, std::vector<int64_t> global_ids = {}) {
  MeshOptions options;
  options.global_ids = std::move(global_ids);
  absl::StatusOr<Mesh> mesh = Mesh::Parse(text, std::move(options));
  EXPECT_TRUE(mesh.ok()) << mesh.status();
  return mesh.ok() ? *mesh : Mesh();
}

TEST(ContextMeshTest, IsTheInnermostOne) {
  const Mesh outer = MakeMesh("dp=2");
  const Mesh inner = MakeMesh("tp=4");
  EXPECT_THAT(ContextMesh({outer, inner}), IsOkAndHolds(inner));
  EXPECT_THAT(ContextMesh({outer}), IsOkAndHolds(outer));
  EXPECT_THAT(ContextMesh({}, /*required=*/false), IsOkAndHolds(Mesh()));
  EXPECT_THAT(ContextMesh({outer, Mesh()}, /*required=*/false), IsOkAndHolds(Mesh()));
}

TEST(ContextMeshTest, RefusesTheEmptyOneWhereAMeshIsRequired) {
  for (const std::vector<Mesh>& entered : {std::vector<Mesh>{}, {MakeMesh("dp=2"), Mesh()}}) {
    const absl::StatusOr<Mesh> mesh = ContextMesh(entered);
    EXPECT_THAT(mesh, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoMesh));
    EXPECT_EQ(PythonTypeOf(mesh.status()), "AssertionError");
  }
}

TEST(MeshQueryTest, TellsNames) {
  const Mesh mesh = MakeMesh("dp=2,tp=4");
  EXPECT_THAT(MeshAxisNames(mesh), ElementsAre("dp", "tp"));
  EXPECT_TRUE(HasAxes(mesh, Names{"tp", "dp", "tp"}));
  EXPECT_FALSE(HasAxes(mesh, Names{"tp", ""}));
  EXPECT_TRUE(HasAxes(Mesh(), Names{}));
  EXPECT_FALSE(HasAxes(Mesh(), Names{"tp"}));
}

TEST(MeshQueryTest, TellsTheNamesInSpecsOnceEachAndSorted) {
  const PartitionSpec a({SpecEntry::Axes({"tp", "dp"}), SpecEntry::Unconstrained()});
  const PartitionSpec b({SpecEntry::Axes({"a", std::nullopt}), SpecEntry::Axis("tp")}, {"sp"});
  EXPECT_THAT(AxisNamesOf({a, b, PartitionSpec()}), ElementsAre("a", "dp", "tp"));
  EXPECT_THAT(AxisNamesOf({}), IsEmpty());
}

TEST(MeshQueryTest, MultipliesSizesAsOftenAsAxesAreNamed) {
  const Mesh mesh = MakeMesh("dp=2,tp=4");
  EXPECT_THAT(AxesSize(mesh, Names{"tp", "dp"}), IsOkAndHolds(8));
  EXPECT_THAT(AxesSize(mesh, Names{"tp", "tp"}), IsOkAndHolds(16));
  EXPECT_THAT(AxesSize(mesh, Names{}), IsOkAndHolds(1));
  EXPECT_THAT(MappedAxesSize(Mesh(), Names{}), IsOkAndHolds(1));
}

TEST(MeshQueryTest, RefusesAnAbsentAxisWithTheClassOfEachFunction) {
  const Mesh mesh = MakeMesh("dp=2,tp=4");
  const absl::StatusOr<int64_t> size = AxesSize(mesh, Names{"dp", "to"});
  EXPECT_THAT(size, StatusIs(kInvalid, Reason::kAxisNotInMesh));
  EXPECT_EQ(PythonTypeOf(size.status()), "KeyError");
  EXPECT_THAT(size.status().ToString(), HasSubstr("did you mean \"tp\"?"));
  for (const absl::Status& status :
       {MappedAxesSize(mesh, Names{"to"}).status(), SubmeshIndex(mesh, Names{"to"}, 0).status(),
        MappedAxesSize(Mesh(), Names{"dp"}).status()}) {
    EXPECT_THAT(status, StatusIs(kInvalid, Reason::kAxisNotInMesh));
    EXPECT_EQ(PythonTypeOf(status), "NameError");
  }
}

TEST(MeshQueryTest, RefusesAProductBeyond64Bits) {
  const Mesh mesh = MakeMesh("dp=2147483648");
  const Names twice = {"dp", "dp"};
  const Names thrice = {"dp", "dp", "dp"};
  EXPECT_THAT(AxesSize(mesh, twice), IsOkAndHolds(int64_t{1} << 62));
  EXPECT_THAT(AxesSize(mesh, thrice), StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_THAT(SubmeshIndex(mesh, thrice, 0), StatusIs(kInvalid, Reason::kLimitExceeded));
}

TEST(SubmeshIndexTest, CountsTheFirstAxisAsMajor) {
  const Mesh mesh = MakeMesh("sp=4,tp=2");
  EXPECT_THAT(SubmeshIndex(mesh, Names{"tp", "sp"}, 3), IsOkAndHolds(5));
  EXPECT_THAT(SubmeshIndex(mesh, Names{"sp", "tp"}, 3), IsOkAndHolds(3));
  EXPECT_THAT(SubmeshIndex(mesh, Names{"sp", "sp"}, 7), IsOkAndHolds(15));
  EXPECT_THAT(SubmeshIndex(mesh, Names{}, 7), IsOkAndHolds(0));
  EXPECT_THAT(SubmeshIndex(Mesh(), Names{}, 0), IsOkAndHolds(0));
}

TEST(SubmeshIndexTest, AnswersForManyDevicesInTheirOrder) {
  const Mesh mesh = MakeMesh("sp=4,tp=2");
  EXPECT_THAT(SubmeshIndices(mesh, Names{"tp", "sp"}, std::vector<DeviceId>{3, 0, 3}),
              IsOkAndHolds(std::vector<int64_t>{5, 0, 5}));
  EXPECT_THAT(SubmeshIndices(mesh, Names{"tp"}, {}), IsOkAndHolds(std::vector<int64_t>{}));
  EXPECT_THAT(SubmeshIndices(mesh, Names{"pp"}, {}), StatusIs(kInvalid, Reason::kAxisNotInMesh));
}

TEST(SubmeshOfTest, HasTheDevicesThroughOneDevice) {
  const Mesh mesh = MakeMesh("dp=2,tp=4");
  EXPECT_THAT(SubmeshOf(mesh, Names{"tp"}, 5), IsOkAndHolds(MakeMesh("tp=4", {4, 5, 6, 7})));
  EXPECT_THAT(SubmeshOf(mesh, Names{"dp"}, 5), IsOkAndHolds(MakeMesh("dp=2", {1, 5})));
  EXPECT_THAT(SubmeshOf(mesh, Names{"dp", "tp"}, 5), IsOkAndHolds(mesh));
  EXPECT_THAT(SubmeshOf(mesh, Names{"tp", "dp"}, 5),
              IsOkAndHolds(MakeMesh("tp=4,dp=2", {0, 4, 1, 5, 2, 6, 3, 7})));
}

TEST(SubmeshOfTest, KeepsTheGlobalIdsOfTheMesh) {
  const Mesh mesh = MakeMesh("dp=2,tp=2", {30, 20, 10, 40});
  EXPECT_THAT(SubmeshOf(mesh, Names{"dp"}, 1), IsOkAndHolds(MakeMesh("dp=2", {20, 40})));
}

TEST(SubmeshOfTest, LooksAtNoOtherDeviceOfAHugeMesh) {
  const Mesh mesh = MakeMesh("dp=1048576,tp=8,sp=256");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh sub, SubmeshOf(mesh, Names{"tp"}, mesh.size() - 1));
  EXPECT_EQ(sub.ToString(), "tp=8");
  EXPECT_EQ(sub.GlobalIdOf(7), mesh.size() - 1);
  EXPECT_EQ(sub.GlobalIdOf(0), mesh.size() - 1 - 7 * 256);
}

TEST(SubmeshOfTest, RefusesAxesThatNameNoMesh) {
  const Mesh mesh = MakeMesh("dp=2,tp=4");
  EXPECT_THAT(SubmeshOf(mesh, Names{"xx"}, 0), StatusIs(kInvalid, Reason::kAxisNotInMesh));
  EXPECT_THAT(SubmeshOf(mesh, Names{"tp", "tp"}, 0), StatusIs(kInvalid, Reason::kDuplicateAxis));
  EXPECT_THAT(SubmeshOf(mesh, Names{}, 0), StatusIs(kInvalid, Reason::kInvalidMesh));
}

TEST(DeviceGroupsTest, NumbersGroupsByTheirLeastMember) {
  const Mesh mesh = MakeMesh("dp=2,tp=4");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const DeviceGroups groups, DeviceGroups::Create(mesh, {"dp"}));
  EXPECT_EQ(groups.count(), 4);
  EXPECT_EQ(groups.group_size(), 2);
  EXPECT_THAT(groups.GroupAt(1).devices(), ElementsAre(1, 5));
  EXPECT_EQ(groups.GroupOf(5), 1);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const DeviceGroups alone, DeviceGroups::Create(mesh, {}));
  EXPECT_EQ(alone.count(), 8);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const DeviceGroups none, DeviceGroups::Create(Mesh(), {}));
  EXPECT_EQ(none.count(), 0);
}

TEST(DeviceGroupsTest, RefusesAxesAsAGroupDoes) {
  const Mesh mesh = MakeMesh("dp=2,tp=4");
  EXPECT_THAT(DeviceGroups::Create(mesh, {"xx"}), StatusIs(kInvalid, Reason::kAxisNotInMesh));
  EXPECT_THAT(DeviceGroups::Create(mesh, {"tp", "tp"}), StatusIs(kInvalid, Reason::kDuplicateAxis));
}

TEST(DeviceGroupsTest, AnswersForOneGroupOfAHugeMesh) {
  const Mesh mesh = MakeMesh("dp=1048576,tp=8,sp=256");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const DeviceGroups groups, DeviceGroups::Create(mesh, {"tp"}));
  EXPECT_EQ(groups.count(), int64_t{1} << 28);
  EXPECT_EQ(groups.GroupOf(groups.GroupAt(groups.count() - 1).device_at(7)), groups.count() - 1);
}

TEST(DeviceGroupsTest, HoldEveryDeviceOnce) {
  std::mt19937 random(11);
  const auto pick = [&random](int n) {
    return static_cast<int>(random() % static_cast<unsigned>(n));
  };
  for (int round = 0; round < 200; ++round) {
    std::vector<MeshAxis> axes;
    for (const char* const name : {"a", "b", "c", "d"}) axes.push_back({name, 1 + pick(4)});
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create(axes));
    Names names = {"a", "b", "c", "d"};
    std::shuffle(names.begin(), names.end(), random);
    names.resize(static_cast<size_t>(pick(5)));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const DeviceGroups groups, DeviceGroups::Create(mesh, names));
    std::set<DeviceId> seen;
    DeviceId previous_least = -1;
    for (int64_t i = 0; i < groups.count(); ++i) {
      const DeviceGroup group = groups.GroupAt(i);
      ASSERT_EQ(group.size(), groups.group_size());
      const DeviceId least = *std::min_element(group.devices().begin(), group.devices().end());
      ASSERT_LT(previous_least, least);
      previous_least = least;
      for (int64_t place = 0; place < group.size(); ++place) {
        const DeviceId device = group.device_at(place);
        ASSERT_TRUE(seen.insert(device).second);
        ASSERT_EQ(groups.GroupOf(device), i);
        ASSERT_THAT(SubmeshIndex(mesh, names, device), IsOkAndHolds(place));
      }
    }
    ASSERT_EQ(static_cast<int64_t>(seen.size()), mesh.size());
  }
}

TEST(ReplicaAxesTest, GroupsTheDevicesThatHoldOneTile) {
  const Mesh mesh = MakeMesh("dp=2,sp=2,tp=2,one=1");
  for (const PartitionSpec& spec :
       {PartitionSpec(), PartitionSpec({SpecEntry::Axis("tp")}),
        PartitionSpec({SpecEntry::Axes({"tp", "dp"}), SpecEntry::None()}, {"sp"}),
        PartitionSpec({SpecEntry::Axis("dp"), SpecEntry::Axes({"tp", "one", "sp"})})}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Tiling tiling, Tiling::Create(mesh, spec, {8, 8}));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const DeviceGroups groups,
                                   DeviceGroups::Create(mesh, ReplicaAxes(mesh, spec)));
    EXPECT_EQ(groups.group_size(), tiling.replica_count());
    std::map<std::string, int64_t> group_of_tile;
    for (DeviceId device = 0; device < mesh.size(); ++device) {
      const auto [it, inserted] =
          group_of_tile.emplace(tiling.TileOf(device).ToString(), groups.GroupOf(device));
      EXPECT_EQ(it->second, groups.GroupOf(device)) << spec.ToString();
    }
    EXPECT_EQ(static_cast<int64_t>(group_of_tile.size()), groups.count());
  }
}

}  // namespace
}  // namespace shardmesh
