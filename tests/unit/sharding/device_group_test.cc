// Tests of sharding/device_group.h.
#include "sharding/device_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

using ::shardmesh::test::kInvalid;

TEST(DeviceGroupTest, RunsAlongItsAxes) {
  const Mesh mesh = *Mesh::Parse("dp=2,tp=4");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto tp, DeviceGroup::Create(mesh, {"tp"}, 5));
  EXPECT_THAT(tp.devices(), ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(tp.place(), 1);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto dp, DeviceGroup::Create(mesh, {"dp"}, 5));
  EXPECT_THAT(dp.devices(), ElementsAre(1, 5));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto none, DeviceGroup::Create(mesh, {}, 5));
  EXPECT_THAT(none.devices(), ElementsAre(5));
  EXPECT_EQ(none.place(), 0);
}

TEST(DeviceGroupTest, TakesItsOrderFromTheAxes) {
  const Mesh mesh = *Mesh::Parse("dp=2,tp=3");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto group, DeviceGroup::Create(mesh, {"tp", "dp"}, 4));
  EXPECT_THAT(group.devices(), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_EQ(group.place(), 3);
}

TEST(DeviceGroupTest, IsTheSameForAllItsMembers) {
  const Mesh mesh = *Mesh::Parse("a=2,b=3,c=2,d=1");
  for (const std::vector<std::string>& axes : std::vector<std::vector<std::string>>{
           {}, {"a"}, {"c", "a"}, {"b", "d"}, {"d", "c", "b", "a"}}) {
    for (DeviceId device = 0; device < mesh.size(); ++device) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto group, DeviceGroup::Create(mesh, axes, device));
      ASSERT_EQ(group.device_at(group.place()), device);
      for (const DeviceId member : group.devices()) {
        SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto other, DeviceGroup::Create(mesh, axes, member));
        ASSERT_THAT(other.devices(), ElementsAreArray(group.devices()));
      }
    }
  }
}

TEST(DeviceGroupTest, RefusesAxesThatAreNotThereOrTwice) {
  const Mesh mesh = *Mesh::Parse("dp=2,tp=4");
  EXPECT_THAT(DeviceGroup::Create(mesh, {"sp"}, 0), StatusIs(kInvalid, Reason::kAxisNotInMesh));
  EXPECT_THAT(DeviceGroup::Create(mesh, {"tp", "tp"}, 0),
              StatusIs(kInvalid, Reason::kDuplicateAxis));
}

}  // namespace
}  // namespace shardmesh
