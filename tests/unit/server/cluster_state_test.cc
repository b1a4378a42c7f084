// Definitions: versions, repeated requests, durability, snapshots and watches.
#include "server/cluster_state.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/local_store.h"
#include "server/sqlite_store.h"
#include "sharding/reason.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using test::StatusIs;
using ::testing::HasSubstr;

std::string MeshValue(int64_t size) {
  v1::EntryValue value;
  v1::MeshAxis* axis = value.mutable_mesh()->mutable_mesh()->add_axes();
  axis->set_name("tp");
  axis->set_size(size);
  return value.SerializeAsString();
}

// A tree of tensors `w0`, `w1`, ... of some elements each.
std::string TreeValue(int tensors, int64_t elements = 8) {
  v1::EntryValue value;
  v1::TreeTensors* const columns = value.mutable_tree()->mutable_tensors();
  for (int i = 0; i < tensors; ++i) {
    const std::string name = "w" + std::to_string(i);
    columns->mutable_names()->append(name);
    columns->add_name_sizes(static_cast<uint32_t>(name.size()));
    columns->add_ranks(1);
    columns->add_sizes(elements);
    columns->add_dtypes(v1::DTYPE_F4);
  }
  return value.SerializeAsString();
}

using Answer = absl::StatusOr<std::shared_ptr<const Definition>>;

class ClusterStateTest : public testing::Test {
 protected:
  ClusterStateTest() { Open(CreateMemoryStore()); }

  void Open(std::unique_ptr<Store> store) {
    publisher_.reset();
    requests_.reset();
    store_ = std::move(store);
    requests_ = *RequestMemory::Open(store_.get(), &clock_);
    publisher_ = *StatePublisher::Open(store_.get(), &clock_, requests_.get());
  }

  Answer Create(std::string name, int64_t size, std::string request_id = "") {
    return Wait([&](StatePublisher::Callback done) {
      publisher_->Create({.request_id = std::move(request_id), .name = std::move(name)},
                         MeshValue(size), std::move(done));
    });
  }
  Answer CreateTree(std::string name, std::string value, std::string request_id = "") {
    return Wait([&](StatePublisher::Callback done) {
      publisher_->Create({.request_id = std::move(request_id), .name = std::move(name)},
                         std::move(value), std::move(done));
    });
  }
  Answer Update(std::string name, int64_t size, int64_t expected_version = 0) {
    return Wait([&](StatePublisher::Callback done) {
      publisher_->Update(
          {.request_id = "", .name = std::move(name), .expected_version = expected_version},
          MeshValue(size), std::move(done));
    });
  }
  Answer Delete(std::string name) {
    return Wait([&](StatePublisher::Callback done) {
      publisher_->Delete({.request_id = "", .name = std::move(name)}, DefinitionKind::kMesh,
                         std::move(done));
    });
  }

  template <typename Call>
  static Answer Wait(Call call) {
    Answer answer;
    absl::Notification done;
    call([&](Answer given) {
      answer = std::move(given);
      done.Notify();
    });
    done.WaitForNotification();
    return answer;
  }

  test::FakeClock clock_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<RequestMemory> requests_;
  std::unique_ptr<StatePublisher> publisher_;
};

TEST_F(ClusterStateTest, PublishesEachChangeUnderANewVersion) {
  const std::shared_ptr<const ClusterState> before = publisher_->shared_state();
  ASSERT_TRUE(Create("m", 4).ok());
  EXPECT_EQ((*Update("m", 8))->version, 2);
  EXPECT_EQ((*publisher_->state().FindMesh("m"))->mesh.size(), 8);
  EXPECT_FALSE(before->FindMesh("m").ok()) << "an older snapshot changed";
  ASSERT_TRUE(Delete("m").ok());
  EXPECT_FALSE(publisher_->state().FindMesh("m").ok());
}

TEST_F(ClusterStateTest, NamesTheNearestNameThatThereIs) {
  ASSERT_TRUE(Create("training", 4).ok());
  const auto missing = publisher_->state().FindMesh("trainig");
  EXPECT_THAT(missing, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("training"));
}

TEST_F(ClusterStateTest, RefusesWhatDoesNotFitWhatIsThere) {
  ASSERT_TRUE(Create("m", 4).ok());
  EXPECT_THAT(Create("m", 4), StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_THAT(Update("m", 8, /*expected_version=*/7),
              StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_THAT(Update("n", 8), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(Create("no spaces", 4), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(ClusterStateTest, GivesARepeatedRequestTheFirstAnswer) {
  const Answer first = Create("m", 4, "request-1");
  ASSERT_TRUE(first.ok());
  const Answer again = Create("m", 4, "request-1");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->revision, (*first)->revision);
  EXPECT_THAT(Create("m", 8, "request-1"),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kRequestIdReused));
}

TEST_F(ClusterStateTest, FindsItsDefinitionsAgainAfterARestart) {
  const std::string folder = testing::TempDir() + "/cluster_state_restart";
  Open(*OpenSqliteStore({.folder = folder, .quota_bytes = 1 << 30, .local = {}}));
  const Answer created = Create("kept", 4);
  ASSERT_TRUE(created.ok() || absl::IsAlreadyExists(created.status())) << created.status();
  publisher_.reset();
  requests_.reset();
  store_.reset();
  Open(*OpenSqliteStore({.folder = folder, .quota_bytes = 1 << 30, .local = {}}));
  EXPECT_EQ((*publisher_->state().FindMesh("kept"))->mesh.size(), 4);
}

TEST_F(ClusterStateTest, FindsItsTreesAgainAfterARestart) {
  const std::string folder = testing::TempDir() + "/cluster_state_trees";
  Open(*OpenSqliteStore({.folder = folder, .quota_bytes = 1 << 30, .local = {}}));
  // As large as a tree may be: its record must fit a transaction beside what is remembered.
  std::string value = TreeValue(100'000);
  const Answer created = CreateTree("kept", value, "request-1");
  ASSERT_TRUE(created.ok()) << created.status();
  publisher_.reset();
  requests_.reset();
  store_.reset();
  Open(*OpenSqliteStore({.folder = folder, .quota_bytes = 1 << 30, .local = {}}));
  const absl::StatusOr<const StoredTree*> tree = publisher_->state().FindTree("kept");
  ASSERT_TRUE(tree.ok()) << tree.status();
  ASSERT_EQ((*tree)->tensors().size(), 100'000u);
  EXPECT_EQ((*tree)->tensors()[99'999].name, "w99999");
  EXPECT_EQ((*tree)->tensors()[99'999].dtype, Dtype::kF4);

  const Answer again = CreateTree("kept", value, "request-1");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->version, 1);
  EXPECT_EQ((*again)->revision, (*created)->revision);
  EXPECT_EQ((*again)->wire_value, value);
  EXPECT_EQ(std::get<std::shared_ptr<const StoredTree>>((*again)->value)->tensors().size(),
            100'000u);
}

TEST_F(ClusterStateTest, GivesARepeatedDeletionItsRevision) {
  ASSERT_TRUE(CreateTree("t", TreeValue(2)).ok());
  const auto remove = [&] {
    return Wait([&](StatePublisher::Callback done) {
      publisher_->Delete({.request_id = "request-2", .name = "t"}, DefinitionKind::kTree,
                         std::move(done));
    });
  };
  const Answer first = remove();
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(publisher_->state().FindTree("t").ok());
  const Answer again = remove();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->revision, (*first)->revision);
}

TEST_F(ClusterStateTest, TellsAWatcherOfEachChangeOnce) {
  absl::Mutex mutex;
  std::vector<std::string> seen;
  const auto watch = publisher_->Watch(
      store_->revision() + 1, [&](const std::vector<StatePublisher::Event>& events) {
        absl::MutexLock lock(&mutex);
        for (const StatePublisher::Event& event : events) {
          seen.push_back(event.name + (event.definition == nullptr ? " deleted" : ""));
        }
      });
  ASSERT_TRUE(watch.ok());
  ASSERT_TRUE(Create("a", 1).ok());
  ASSERT_TRUE(Create("b", 1).ok());
  ASSERT_TRUE(Delete("a").ok());
  absl::MutexLock lock(&mutex);
  const auto all_seen = [&] { return seen.size() == 3; };
  ASSERT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&all_seen), absl::Seconds(10)));
  EXPECT_THAT(seen, testing::ElementsAre("a", "b", "a deleted"));
}

}  // namespace
}  // namespace shardmesh::server
