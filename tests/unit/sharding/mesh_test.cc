// Tests of sharding/mesh.h.
#include "sharding/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;

using ::shardmesh::test::kInvalid;

TEST(ParseMeshAxesTest, ReadsBothNotations) {
  const auto axes = ElementsAre(MeshAxis{"dp", 2}, MeshAxis{"tp", -1});
  EXPECT_THAT(ParseMeshAxes("dp=2,tp=-1"), IsOkAndHolds(axes));
  EXPECT_THAT(ParseMeshAxes("dp:2,tp:-1"), IsOkAndHolds(axes));
  EXPECT_THAT(ParseMeshAxes(" dp = 2 , tp = -1 "), IsOkAndHolds(axes));
}

TEST(ParseMeshAxesTest, ReadsTypesInBothNotations) {
  const auto axes =
      ElementsAre(MeshAxis{"dp", 2, AxisType::kExplicit}, MeshAxis{"tp", -1, AxisType::kAuto},
                  MeshAxis{"sp", 4, AxisType::kManual}, MeshAxis{"ep", 1});
  EXPECT_THAT(ParseMeshAxes("dp=2:explicit,tp=-1:auto,sp=4:manual,ep=1"), IsOkAndHolds(axes));
  EXPECT_THAT(ParseMeshAxes("dp:2:explicit,tp:-1:auto,sp:4:manual,ep:1"), IsOkAndHolds(axes));
  EXPECT_THAT(ParseMeshAxes(" dp = 2 : explicit , tp=-1, sp = 4: manual,ep=1"), IsOkAndHolds(axes));
}

TEST(ParseMeshAxesTest, RefusesTypesThatAreNone) {
  for (const std::string_view text :
       {"dp=2:", "dp=2:Explicit", "dp=2:none", "dp=2:auto:auto", "dp=:auto", "dp:explicit",
        "=2:auto", "dp=2=auto", "dp=2:auto=2"}) {
    EXPECT_THAT(ParseMeshAxes(text), StatusIs(kInvalid, Reason::kInvalidMesh)) << text;
  }
}

TEST(ParseMeshAxesTest, RefusesPiecesThatAreNoAxis) {
  for (const std::string_view text : {"", "dp", "dp=", "=2", "dp=2,", "dp=2,,tp=4", "dp=two",
                                      "dp=2.5", "dp=2 tp=4", "dp=99999999999999999999"}) {
    EXPECT_THAT(ParseMeshAxes(text), StatusIs(kInvalid, Reason::kInvalidMesh)) << text;
  }
}

TEST(MeshTest, NumbersDevicesRowMajor) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Parse("dp=2,fsdp=3,tp=4"));
  EXPECT_EQ(mesh.size(), 24);
  EXPECT_EQ(mesh.axis_count(), 3);
  EXPECT_EQ(mesh.ToString(), "dp=2,fsdp=3,tp=4");
  EXPECT_THAT(mesh.CoordinatesOf(17), ElementsAre(1, 1, 1));
  for (DeviceId device = 0; device < mesh.size(); ++device) {
    EXPECT_EQ(mesh.DeviceAt(mesh.CoordinatesOf(device)), device);
  }
  EXPECT_EQ(mesh.FindAxis("fsdp"), 1);
  EXPECT_EQ(mesh.FindAxis("sp"), std::nullopt);
}

TEST(MeshTest, InfersOneSizeFromTheDevices) {
  MeshOptions options;
  options.device_count = 12;
  EXPECT_THAT(Mesh::Parse("dp=-1,tp=4", options), IsOkAndHolds(*Mesh::Parse("dp=3,tp=4")));
  EXPECT_THAT(Mesh::Parse("dp=3,tp=4", options), IsOk());
  EXPECT_THAT(Mesh::Parse("dp=-1,tp=5", options), StatusIs(kInvalid, Reason::kMeshSizeMismatch));
  EXPECT_THAT(Mesh::Parse("dp=2,tp=4", options), StatusIs(kInvalid, Reason::kMeshSizeMismatch));
  EXPECT_THAT(Mesh::Parse("dp=-1,tp=-1", options), StatusIs(kInvalid, Reason::kInvalidMesh));
  EXPECT_THAT(Mesh::Parse("dp=-1,tp=4"), StatusIs(kInvalid, Reason::kInvalidMesh));
  options.device_count = 0;
  EXPECT_THAT(Mesh::Parse("dp=-1", options), StatusIs(kInvalid, Reason::kMeshSizeMismatch));
}

TEST(MeshTest, RefusesWhatIsNoMesh) {
  struct Case {
    std::vector<MeshAxis> axes;
    Reason reason;
  };
  const std::vector<Case> cases = {
      {{}, Reason::kInvalidMesh},
      {{{"", 2}}, Reason::kInvalidMesh},
      {{{"dp", 0}}, Reason::kInvalidMesh},
      {{{"dp", -2}}, Reason::kInvalidMesh},
      {{{"dp", 2}, {"dp", 2}}, Reason::kDuplicateAxis},
      {{{std::string(256, 'x'), 2}}, Reason::kLimitExceeded},
      {std::vector<MeshAxis>(17, {"dp", 1}), Reason::kLimitExceeded},
      {{{"dp", (int64_t{1} << 31) + 1}}, Reason::kLimitExceeded},
      {{{"a", int64_t{1} << 31}, {"b", 2}}, Reason::kLimitExceeded},
      {{{"a", std::numeric_limits<int64_t>::max()}, {"b", 2}}, Reason::kLimitExceeded},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(Mesh::Create(c.axes), StatusIs(kInvalid, c.reason));
  }
}

TEST(MeshTest, AcceptsDegenerateMeshesOnRequest) {
  MeshOptions options;
  options.allow_degenerate = true;
  EXPECT_THAT(Mesh::Create({}, options), IsOkAndHolds(Mesh()));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh unnamed, Mesh::Parse("=2,tp=3", options));
  EXPECT_THAT(unnamed.axes(), ElementsAre(MeshAxis{"", 2}, MeshAxis{"tp", 3}));
  EXPECT_THAT(Mesh::Parse(unnamed.ToString(), options), IsOkAndHolds(unnamed));
  EXPECT_THAT(Mesh::Parse("=2"), StatusIs(kInvalid, Reason::kInvalidMesh));
  for (const char* const text : {"", "=", "2", "=x", "tp=2,"}) {
    EXPECT_THAT(Mesh::Parse(text, options), StatusIs(kInvalid, Reason::kInvalidMesh)) << text;
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh zero, Mesh::Create({{"dp", 2}, {"tp", 0}}, options));
  EXPECT_TRUE(zero.empty());
  EXPECT_EQ(zero.axis_count(), 2);
  const int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(Mesh::Create({{"a", huge}, {"b", huge}, {"c", 0}, {"d", huge}}, options), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh repeated,
                                 Mesh::Create({{"dp", 2}, {"tp", 3}, {"dp", 4}}, options));
  EXPECT_THAT(repeated.axes(), ElementsAre(MeshAxis{"dp", 4}, MeshAxis{"tp", 3}));
  EXPECT_EQ(repeated.size(), 12);
  EXPECT_THAT(Mesh::Create({{"dp", 2}, {"dp", 4, AxisType::kManual}}, options),
              IsOkAndHolds(*Mesh::Parse("dp=4:manual")));
}

TEST(MeshTest, KeepsAxisTypesAndShowsThoseThatAreNotAuto) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh mixed,
                                 Mesh::Create({{"a", 2, AxisType::kExplicit}, {"b", 3}}));
  EXPECT_EQ(mixed.axes()[0].type, AxisType::kExplicit);
  EXPECT_EQ(mixed.ToString(), "a=2:explicit,b=3");
  EXPECT_THAT(Mesh::Parse(mixed.ToString()), IsOkAndHolds(mixed));
  EXPECT_EQ(Mesh::Parse("a=2:auto,b=3:auto")->ToString(), "a=2,b=3");
  // As in JAX, and whatever the types, no axis moves.
  EXPECT_FALSE(mixed == *Mesh::Parse("a=2,b=3"));
  EXPECT_EQ(mixed.CoordinatesOf(4), Mesh::Parse("a=2,b=3")->CoordinatesOf(4));

  EXPECT_FALSE(mixed.AllAxesAre(AxisType::kExplicit));
  EXPECT_FALSE(mixed.AllAxesAre(AxisType::kAuto));
  EXPECT_TRUE(Mesh::Parse("a=2,b=3")->AllAxesAre(AxisType::kAuto));
  EXPECT_TRUE(Mesh::Parse("a=2:manual")->AllAxesAre(AxisType::kManual));
  EXPECT_FALSE(Mesh().AllAxesAre(AxisType::kAuto));
}

TEST(AxisTypeTest, NamesReadBack) {
  for (const AxisType type : {AxisType::kAuto, AxisType::kExplicit, AxisType::kManual}) {
    EXPECT_EQ(AxisTypeFromName(AxisTypeName(type)), type);
  }
  EXPECT_EQ(AxisTypeFromName("AUTO"), std::nullopt);
}

TEST(MeshTest, IsEmptyByDefault) {
  EXPECT_TRUE(Mesh().empty());
  EXPECT_EQ(Mesh().size(), 0);
  EXPECT_EQ(Mesh().ToString(), "(empty)");
}

TEST(MeshTest, KnowsItsDevicesByTheirGlobalIds) {
  MeshOptions options;
  options.global_ids = {7, 3, 5, 1};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Parse("dp=2,tp=2", options));
  EXPECT_EQ(mesh.GlobalIdOf(2), 5);
  EXPECT_EQ(mesh.DeviceOfGlobalId(1), 3);
  EXPECT_EQ(mesh.DeviceOfGlobalId(0), std::nullopt);

  const Mesh plain = *Mesh::Parse("dp=2,tp=2");
  EXPECT_EQ(plain.GlobalIdOf(2), 2);
  EXPECT_EQ(plain.DeviceOfGlobalId(3), 3);
  EXPECT_EQ(plain.DeviceOfGlobalId(4), std::nullopt);
  EXPECT_FALSE(mesh == plain);
  options.global_ids = {0, 1, 2, 3};
  EXPECT_EQ(*Mesh::Parse("dp=2,tp=2", options), plain);
}

TEST(MeshTest, RefusesGlobalIdsThatDoNotNameEachDeviceOnce) {
  MeshOptions options;
  options.global_ids = {0, 1, 2};
  EXPECT_THAT(Mesh::Parse("dp=2,tp=2", options), StatusIs(kInvalid, Reason::kMeshSizeMismatch));
  options.global_ids = {0, 1, 2, 1};
  EXPECT_THAT(Mesh::Parse("dp=2,tp=2", options), StatusIs(kInvalid, Reason::kInvalidMesh));
  options.global_ids = {0, 1, 2, -1};
  EXPECT_THAT(Mesh::Parse("dp=2,tp=2", options), StatusIs(kInvalid, Reason::kInvalidMesh));
}

}  // namespace
}  // namespace shardmesh
