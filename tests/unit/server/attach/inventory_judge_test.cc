// The ranks by which inventories are judged while meshes change.
#include "server/attach/inventory_judge.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "process/random_bytes.h"
#include "rpc/codec/spec_codec.h"
#include "sharding/mesh_definition.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/worker_streams_fixture.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class InventoryJudgeTest : public WorkerStreamsFixture {
 protected:
  uint64_t Attach(const std::string& identity) {
    const auto attachment = members_.Attach({.identity = identity,
                                             .incarnation = 1,
                                             .build_version = "1",
                                             .endpoints = {"10.0.0.1:1"},
                                             .host = "host"});
    EXPECT_THAT(attachment, IsOk());
    return attachment.value_or(0);
  }
  void WriteMesh(const std::string& name, std::vector<std::string> workers) {
    v1::EntryValue value;
    rpc::Encode(MeshDefinition{.mesh = mesh_, .workers = std::move(workers)}, value.mutable_mesh());
    absl::Notification done;
    definition_store_->Create({.request_id = "", .name = name}, value.SerializeAsString(),
                              [&](const auto& written) {
                                EXPECT_THAT(written, IsOk());
                                done.Notify();
                              });
    done.WaitForNotification();
  }
  // The rank's tile of an array that the registry does not know.
  InventoryTile TileOf(int64_t rank) const {
    const ArrayDescriptor descriptor{.array_id = RandomId(),
                                     .dtype = Dtype::kF32,
                                     .shape = {8},
                                     .spec = PartitionSpec({SpecEntry::Axis("x")}),
                                     .mesh_id = "m",
                                     .mesh_revision = 1,
                                     .mesh = mesh_,
                                     .cut_points = {}};
    return {.array_id = descriptor.array_id,
            .tile = descriptor.Tiling()->TileOf(rank),
            .descriptor = descriptor};
  }

  const Mesh mesh_ = *Mesh::Parse("x=2");
};

TEST_F(InventoryJudgeTest, ARankThatTheMembershipHasYetToMoveIsLeftUndecided) {
  const uint64_t a = Attach("a");
  const uint64_t b = Attach("b");
  Attach("c");
  ASSERT_THAT(members_.AddMesh("m", 2, {"a", "b"}), IsOk());
  WriteMesh("m", {"a", "c"});  // the membership hears of a change after the catalog
  const JudgedInventory of_b = streams_->judge().JudgeWhole("b", b, {TileOf(1)}, {});
  EXPECT_THAT(of_b.undecided, ElementsAre("m"));
  EXPECT_THAT(of_b.verdict.quarantine, IsEmpty());
  EXPECT_EQ(registry_->CountUnnamed(), 0);
  EXPECT_THAT(streams_->judge().JudgeRestored("b", b, {TileOf(1)}, {"m"}).undecided,
              ElementsAre("m"));

  const JudgedInventory of_a = streams_->judge().JudgeWhole("a", a, {TileOf(0)}, {});
  EXPECT_THAT(of_a.undecided, IsEmpty());
  EXPECT_EQ(registry_->CountUnnamed(), 1) << "its rank stays, so its tile counts";
}

TEST_F(InventoryJudgeTest, RanksOfAMeshOfAnotherSizeAreNotThoseOfTheCatalog) {
  const uint64_t a = Attach("a");
  ASSERT_THAT(members_.AddMesh("m", 1, {"a"}), IsOk());
  WriteMesh("m", {});
  const JudgedInventory judged = streams_->judge().JudgeWhole("a", a, {TileOf(0)}, {});
  EXPECT_THAT(judged.undecided, ElementsAre("m"));
  EXPECT_EQ(registry_->CountUnnamed(), 0);
}

}  // namespace
}  // namespace shardmesh::server
