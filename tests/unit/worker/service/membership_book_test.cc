// What the coordinator's pages of who is alive add up to.
#include "worker/service/membership_book.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class MembershipBookTest : public testing::Test {
 protected:
  static internal::v1::Membership Page(int64_t epoch, bool last = true) {
    internal::v1::Membership page;
    if (last) {
      page.set_epoch(epoch);
      page.set_term(3);
    }
    page.set_last(last);
    return page;
  }
  static void AddWorker(internal::v1::Membership* page, const std::string& identity,
                        uint64_t incarnation = 1) {
    internal::v1::LiveWorker* worker = page->add_workers();
    worker->set_identity(identity);
    worker->set_incarnation(incarnation);
    worker->add_endpoints()->set_address(identity + ":1");
  }
  static void AddMesh(internal::v1::Membership* page, const std::string& mesh_id, int64_t size,
                      const std::vector<std::string>& identities, int32_t first_rank = 0) {
    internal::v1::MeshMembership* mesh = page->add_meshes();
    mesh->set_mesh_id(mesh_id);
    mesh->set_mesh_revision(2);
    v1::MeshAxis* axis = mesh->mutable_mesh()->add_axes();
    axis->set_name("x");
    axis->set_size(size);
    mesh->set_first_rank(first_rank);
    for (const std::string& identity : identities) mesh->add_identities(identity);
  }
  MembershipView Last(const internal::v1::Membership& page) {
    auto view = book_.Take(page);
    EXPECT_TRUE(view.ok()) << view.status();
    EXPECT_TRUE(view.ok() && view->has_value());
    return view.ok() && view->has_value() ? **view : MembershipView();
  }
  static std::vector<std::string> Devices(const MembershipView& view, const std::string& mesh_id) {
    std::vector<std::string> devices;
    const MeshMembers* const mesh = view.Find(mesh_id);
    if (mesh == nullptr) return devices;
    for (const MeshDevice& device : mesh->devices) {
      devices.push_back(std::to_string(device.rank) + " " + device.identity + " " +
                        std::to_string(device.incarnation) + " " + device.endpoints.front());
    }
    return devices;
  }

  MembershipBook book_;
};

TEST_F(MembershipBookTest, ActsOnPagesWhenTheLastIsThere) {
  internal::v1::Membership first = Page(0, /*last=*/false);
  first.set_snapshot(true);
  AddWorker(&first, "a");
  AddMesh(&first, "m", 3, {"a", "b"});
  const auto none = book_.Take(first);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->has_value());

  internal::v1::Membership second = Page(7);
  AddWorker(&second, "c", 5);
  AddMesh(&second, "m", 3, {"c"}, /*first_rank=*/2);
  const MembershipView view = Last(second);
  EXPECT_EQ(view.epoch, 7);
  EXPECT_EQ(view.term, 3);
  EXPECT_THAT(Devices(view, "m"), ElementsAre("0 a 1 a:1", "2 c 5 c:1"));
  EXPECT_FALSE(view.Find("m")->complete());
}

TEST_F(MembershipBookTest, AppliesChangesToWhatCameBefore) {
  internal::v1::Membership snapshot = Page(1);
  snapshot.set_snapshot(true);
  AddWorker(&snapshot, "a");
  AddWorker(&snapshot, "b");
  AddMesh(&snapshot, "m", 2, {"a", "b"});
  AddMesh(&snapshot, "n", 1, {"a"});
  EXPECT_THAT(Devices(Last(snapshot), "m"), SizeIs(2));

  internal::v1::Membership change = Page(2);
  change.add_lost_workers("b");
  EXPECT_THAT(Devices(Last(change), "m"), ElementsAre("0 a 1 a:1"));

  change = Page(3);
  AddWorker(&change, "b", 9);
  change.add_removed_mesh_ids("n");
  change.add_removed_mesh_ids("never known");
  internal::v1::MeshMembership* revised = change.add_meshes();
  revised->set_mesh_id("m");
  revised->set_mesh_revision(8);
  const MembershipView view = Last(change);
  EXPECT_THAT(Devices(view, "m"), ElementsAre("0 a 1 a:1", "1 b 9 b:1"));
  EXPECT_EQ(view.Find("m")->revision, 8);
  EXPECT_EQ(view.Find("n"), nullptr);

  snapshot = Page(4);
  snapshot.set_snapshot(true);
  EXPECT_THAT(Last(snapshot).meshes, IsEmpty()) << "what was known before is forgotten";
}

TEST_F(MembershipBookTest, RefusesPagesThatDoNotAddUp) {
  EXPECT_THAT(book_.Take(Page(1)), StatusIs(absl::StatusCode::kInternal)) << "no snapshot";

  internal::v1::Membership half = Page(1);
  half.set_snapshot(true);
  AddMesh(&half, "m", 2, {"a"});
  EXPECT_THAT(book_.Take(half), StatusIs(absl::StatusCode::kInternal)) << "one of two ranks";

  internal::v1::Membership gap = Page(1);
  gap.set_snapshot(true);
  AddMesh(&gap, "m", 3, {"a"});
  AddMesh(&gap, "m", 3, {"c"}, /*first_rank=*/2);
  EXPECT_THAT(book_.Take(gap), StatusIs(absl::StatusCode::kInternal)) << "rank 1 is missing";

  internal::v1::Membership revision = Page(1);
  revision.set_snapshot(true);
  revision.add_meshes()->set_mesh_id("m");
  EXPECT_THAT(book_.Take(revision), StatusIs(absl::StatusCode::kInternal)) << "of no known mesh";
}

}  // namespace
}  // namespace shardmesh::worker
