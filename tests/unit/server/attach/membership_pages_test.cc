// What workers are told of who is alive: that the changes add up, and what one of them costs.
#include "server/attach/membership_pages.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "process/cpu_time.h"
#include "server/store/local_store.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "status/str_cat.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

std::string IdentityOf(int64_t i) {
  const std::string digits = std::to_string(i);
  return StrCat("worker-", std::string(6 - digits.size(), '0'), digits);
}

// What a worker makes of the pages that it gets.
struct Known {
  int64_t epoch = -1;
  int64_t bytes = 0;
  int64_t longest = 0;
  int64_t pages = 0;
  std::map<std::string, uint64_t> workers;                 // incarnations
  std::map<std::string, std::vector<std::string>> meshes;  // identities
  std::map<std::string, int64_t> revisions;

  void Take(const std::vector<MembershipPages::Page>& taken) {
    for (size_t i = 0; i < taken.size(); ++i) {
      bytes += std::ssize(*taken[i]);
      longest = std::max(longest, static_cast<int64_t>(taken[i]->size()));
      ++pages;
      internal::v1::AttachResponse response;
      ASSERT_TRUE(response.ParseFromString(*taken[i]));
      const internal::v1::Membership& page = response.membership();
      if (page.snapshot()) {
        workers.clear();
        meshes.clear();
        revisions.clear();
      }
      for (const std::string& mesh_id : page.removed_mesh_ids()) {
        meshes.erase(mesh_id);
        revisions.erase(mesh_id);
      }
      for (const std::string& identity : page.lost_workers()) workers.erase(identity);
      for (const internal::v1::LiveWorker& worker : page.workers()) {
        workers[worker.identity()] = worker.incarnation();
      }
      for (const internal::v1::MeshMembership& mesh : page.meshes()) {
        revisions[mesh.mesh_id()] = mesh.mesh_revision();
        if (!mesh.has_mesh()) continue;
        std::vector<std::string>& identities = meshes[mesh.mesh_id()];
        if (mesh.first_rank() == 0) identities.clear();
        ASSERT_THAT(identities, SizeIs(mesh.first_rank()));
        identities.insert(identities.end(), mesh.identities().begin(), mesh.identities().end());
      }
      ASSERT_EQ(page.last(), i + 1 == taken.size());
      if (page.last()) epoch = page.epoch();
    }
  }
};

class MembershipPagesTest : public testing::Test {
 protected:
  MembershipPagesTest() {
    requests_ = *RequestMemory::Open(store_.get(), &clock_);
    definition_store_ = *DefinitionStore::Open(store_.get(), &clock_, requests_.get());
  }

  void Attach(const std::string& identity, uint64_t incarnation = 1) {
    auto attachment = members_.Attach({.identity = identity,
                                       .incarnation = incarnation,
                                       .build_version = "1",
                                       .endpoints = {"10.0.0.1:7070", "worker.shardmesh.svc:7070"},
                                       .exchange_port = 7071,
                                       .host = "host"});
    ASSERT_THAT(attachment, IsOk());
    attachments_[identity] = *attachment;
  }
  void Lose(const std::string& identity) { members_.Detach(attachments_[identity], "killed"); }

  // A mesh of the catalog and of the membership.
  void Define(const std::string& name, std::vector<std::string> identities) {
    v1::EntryValue value;
    v1::MeshAxis* axis = value.mutable_mesh()->mutable_mesh()->add_axes();
    axis->set_name("x");
    axis->set_size(static_cast<int64_t>(identities.size()));
    Write(name, value);
    ASSERT_THAT(members_.AddMesh(name, axis->size(), std::move(identities)), IsOk());
  }
  // Another definition of the same mesh.
  void Redefine(const std::string& name, int64_t size, const std::string& axis_name) {
    v1::EntryValue value;
    v1::MeshAxis* axis = value.mutable_mesh()->mutable_mesh()->add_axes();
    axis->set_name(axis_name);
    axis->set_size(size);
    Write(name, value, /*is_new=*/false);
  }

  bool Update() { return pages_.Update(members_.view(), definition_store_->shared_state()); }

  test::FakeClock clock_;
  std::unique_ptr<Store> store_ = CreateMemoryStore({.history = DefinitionHistory()});
  std::unique_ptr<RequestMemory> requests_;
  std::unique_ptr<DefinitionStore> definition_store_;
  Membership members_{&clock_};
  std::map<std::string, uint64_t> attachments_;
  MembershipPages pages_{3};

 private:
  void Write(const std::string& name, const v1::EntryValue& value, bool is_new = true) {
    absl::Notification done;
    const auto callback = [&](absl::StatusOr<std::shared_ptr<const Definition>> written) {
      EXPECT_THAT(written, IsOk());
      done.Notify();
    };
    if (is_new) {
      definition_store_->Create({.request_id = "", .name = name}, value.SerializeAsString(),
                                callback);
    } else {
      definition_store_->Update({.request_id = "", .name = name}, value.SerializeAsString(),
                                callback);
    }
    done.WaitForNotification();
  }
};

TEST_F(MembershipPagesTest, ChangesAddUpToWhatASnapshotSays) {
  Define("ab", {"a", "b"});
  Define("bc", {"b", "c"});
  Attach("a");
  Attach("b");
  EXPECT_TRUE(Update());
  Known known;
  known.Take(pages_.SnapshotFor("b"));
  EXPECT_THAT(known.workers, UnorderedElementsAre(Pair("a", 1), Pair("b", 1)));
  EXPECT_THAT(known.meshes, UnorderedElementsAre(Pair("ab", ElementsAre("a", "b")),
                                                 Pair("bc", ElementsAre("b", "c"))));
  EXPECT_EQ(known.epoch, 2);

  Lose("a");
  Attach("c");
  Attach("a", 2);
  EXPECT_TRUE(Update());
  known.Take(pages_.ChangeFor("b"));
  EXPECT_THAT(known.workers, UnorderedElementsAre(Pair("a", 2), Pair("b", 1), Pair("c", 1)));
  EXPECT_EQ(known.epoch, 5);

  ASSERT_THAT(members_.RemoveMesh("ab"), IsOk());
  Define("all", {"c", "b", "a"});
  EXPECT_TRUE(Update());
  known.Take(pages_.ChangeFor("b"));
  Known fresh;
  fresh.Take(pages_.SnapshotFor("b"));
  EXPECT_EQ(known.workers, fresh.workers);
  EXPECT_EQ(known.meshes, fresh.meshes);
  EXPECT_THAT(known.meshes, UnorderedElementsAre(Pair("bc", ElementsAre("b", "c")),
                                                 Pair("all", ElementsAre("c", "b", "a"))));
  EXPECT_FALSE(Update()) << "nothing has changed since";
}

TEST_F(MembershipPagesTest, TellsAMeshToThoseWhoServeItAlone) {
  Define("ab", {"a", "b"});
  Attach("a");
  Attach("b");
  Attach("c");
  Update();
  Known known;
  known.Take(pages_.SnapshotFor("c"));
  EXPECT_THAT(known.meshes, IsEmpty());
  EXPECT_THAT(known.workers, SizeIs(3));
}

TEST_F(MembershipPagesTest, TellsANewRevisionWithoutTheRanks) {
  Define("ab", {"a", "b"});
  Attach("a");
  Update();
  Known known;
  known.Take(pages_.SnapshotFor("a"));
  const int64_t revision = known.revisions["ab"];
  Redefine("ab", 2, "x");
  EXPECT_TRUE(Update());
  internal::v1::AttachResponse response;
  ASSERT_TRUE(response.ParseFromString(*pages_.ChangeFor("a").front()));
  EXPECT_FALSE(response.membership().meshes(0).has_mesh());
  known.Take(pages_.ChangeFor("a"));
  EXPECT_GT(known.revisions["ab"], revision);
  EXPECT_THAT(known.meshes["ab"], SizeIs(2));
}

TEST_F(MembershipPagesTest, AMeshOfAnotherSizeIsToldWithItsNewRanks) {
  Define("ab", {"a", "b"});
  Attach("a");
  Attach("b");
  Update();
  Known known;
  known.Take(pages_.SnapshotFor("a"));
  Redefine("ab", 3, "x");
  EXPECT_FALSE(Update()) << "the definition is there before the ranks are";
  ASSERT_THAT(members_.RemoveMesh("ab"), IsOk());
  ASSERT_THAT(members_.AddMesh("ab", 3, {"a", "b", "c"}), IsOk());
  EXPECT_TRUE(Update());
  known.Take(pages_.ChangeFor("a"));
  EXPECT_THAT(known.meshes["ab"], ElementsAre("a", "b", "c"));
}

TEST_F(MembershipPagesTest, ManySmallMeshesComeInPagesAndTheirWorkersOnce) {
  const std::vector<std::string> identities = {"worker-000000", "worker-000001"};
  for (const std::string& identity : identities) Attach(identity);
  for (int i = 0; i < 1'100; ++i) Define(StrCat("mesh-", i), identities);
  Update();
  Known known;
  known.Take(pages_.SnapshotFor(identities[0]));
  EXPECT_THAT(known.meshes, SizeIs(1'100));
  EXPECT_LE(known.longest, MembershipPages::kPageBytes);
  EXPECT_LT(known.bytes, 150'000) << "endpoints stand once, not once a mesh";
}

TEST_F(MembershipPagesTest, AMeshWithLongNamesIsCutIntoPages) {
  std::vector<std::string> identities;
  for (int i = 0; i < 6'000; ++i) {
    identities.push_back(StrCat(IdentityOf(i), std::string(240, 'x')));
    Attach(identities.back());
  }
  Define("wide", identities);
  Update();
  Known known;
  known.Take(pages_.SnapshotFor(identities[17]));
  EXPECT_EQ(known.meshes["wide"], identities);
  EXPECT_THAT(known.workers, SizeIs(6'000));
  EXPECT_GT(known.pages, 4);
  EXPECT_LE(known.longest, MembershipPages::kPageBytes + 1'000);
}

TEST_F(MembershipPagesTest, OneChangeOfManyWorkersIsCheap) {
  constexpr int64_t kWorkers = 4'096;
  std::vector<std::string> identities;
  for (int64_t i = 0; i < kWorkers; ++i) {
    identities.push_back(IdentityOf(i));
    Attach(identities.back());
  }
  Define("default", identities);
  Update();
  Lose(identities[17]);
  const double started = ThreadCpuSeconds();
  ASSERT_TRUE(Update());
  int64_t bytes = 0;
  std::set<const std::string*> encoded;
  for (const std::string& identity : identities) {
    for (const MembershipPages::Page& page : pages_.ChangeFor(identity)) {
      bytes += std::ssize(*page);
      encoded.insert(page.get());
    }
  }
  const double seconds = ThreadCpuSeconds() - started;
  EXPECT_THAT(encoded, SizeIs(1)) << "encoded once, and shared by all streams";
  EXPECT_LT(bytes, 10'000'000);
  EXPECT_LT(seconds, 0.05);
  RecordProperty("bytes", std::to_string(bytes));
  RecordProperty("cpu_us", std::to_string(seconds * 1e6));
}

}  // namespace
}  // namespace shardmesh::server
