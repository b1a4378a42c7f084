// SaveOrders: the files of an earlier checkpoint, and what stays after the loss of the coordinator.
#include "worker/save/save_orders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "process/crc32c.h"
#include "process/failpoint.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/checkpoint_manifest.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/store/reversed_tile.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

class SaveOrdersTest : public testing::Test {
 protected:
  SaveOrdersTest()
      : root_(StrCat(testing::TempDir(), "/save_orders_",
                     testing::UnitTest::GetInstance()->current_test_info()->name())),
        folder_(root_ + "/run") {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    leader_ = MakeWorker();
    joined_ = MakeWorker();
  }
  ~SaveOrdersTest() override {
    leader_.reset();
    joined_.reset();
    std::filesystem::remove_all(root_);
  }

  std::unique_ptr<SaveOrders> MakeWorker(ShardStore* store = nullptr) const {
    return std::make_unique<SaveOrders>(store, *WriteRoots::Create({root_}));
  }
  internal::v1::SaveOrder Order() const {
    internal::v1::SaveOrder order;
    order.set_save_id("save");
    order.set_folder(folder_);
    return order;
  }
  static absl::Status Run(SaveOrders& worker, internal::v1::SaveOrder order,
                          internal::v1::SaveAnswer* result = nullptr) {
    absl::Status status;
    absl::Notification answered;
    worker.Take(std::move(order), {.answer =
                                       [&](const internal::v1::SaveAnswer& answer) {
                                         status = rpc::Decode(answer.error());
                                         if (result != nullptr) *result = answer;
                                         answered.Notify();
                                       },
                                   .progress = [](const internal::v1::SaveProgress&) {}});
    answered.WaitForNotification();
    return status;
  }
  // Begins a save of one file with both workers.
  void Begin() {
    internal::v1::SaveOrder open = Order();
    open.mutable_open()->set_probe("probe");
    open.mutable_open()->set_min_kept_bytes(1);
    ASSERT_THAT(Run(*leader_, open), IsOk());
    internal::v1::SaveOrder check = Order();
    check.mutable_check()->set_probe("probe");
    ASSERT_THAT(Run(*joined_, check), IsOk());
    internal::v1::SaveOrder text = Order();
    text.mutable_text()->set_name(std::string(kCheckpointManifest));
    text.mutable_text()->set_text("{}");
    ASSERT_THAT(Run(*leader_, text), IsOk());
    internal::v1::SaveOrder make = Order();
    internal::v1::SavedFile* const file = make.mutable_make()->add_files();
    file->set_name("model.safetensors");
    file->set_size_bytes(8);
    ASSERT_THAT(Run(*leader_, make), IsOk());
  }
  // Lets an order to write tiles meet an error of the disk.
  void FailDisk(SaveOrders& worker) const {
    internal::v1::SaveOrder tiles = Order();
    tiles.mutable_tiles()->set_sync(true);
    ASSERT_THAT(ArmFailpoints("save.tiles=eio"), IsOk());
    ASSERT_THAT(Run(worker, tiles), StatusIs(absl::StatusCode::kDataLoss));
  }
  // Loses the coordinator, and waits until the worker has ended its saves.
  static void LoseCoordinator(std::unique_ptr<SaveOrders>& worker) {
    worker->EndAll();
    worker.reset();
  }
  bool HasStaging() const {
    return std::filesystem::exists(StrCat(folder_, "/", kSaveStaging)) ||
           std::filesystem::exists(StrCat(folder_, "/", kSaveLock));
  }

  const std::string root_;
  const std::string folder_;
  std::unique_ptr<SaveOrders> leader_;
  std::unique_ptr<SaveOrders> joined_;
};

TEST_F(SaveOrdersTest, ALostCoordinatorLeavesTheFilesToTheNextSave) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  LoseCoordinator(leader_);
  LoseCoordinator(joined_);
  EXPECT_TRUE(HasStaging());
}

TEST_F(SaveOrdersTest, ListsTheFilesOfABoundedNumberOfTensors) {
  constexpr int kTensors = 100'000;  // of each of two files
  std::string manifest = R"({"format":1,"files":[)";
  for (const char* const file : {"a", "b"}) {
    StrAppend(&manifest, *file == 'a' ? "" : ",", R"({"name":")", file,
              R"(","size_bytes":8,"header_bytes":8,"header_crc32c":1})");
  }
  StrAppend(&manifest, R"(],"tensors":[)");
  for (const char* const file : {"a", "b"}) {
    for (int i = 0; i < kTensors; ++i) {
      StrAppend(&manifest, *file == 'a' && i == 0 ? "" : ",", R"({"name":")", file, i,
                R"(","file":")", file,
                R"(","offset_bytes":8,"size_bytes":0,"dtype":"U8","shape":[0],"tiles":[]})");
    }
  }
  StrAppend(&manifest, "]}");
  const std::string step = StrCat(folder_, "/", StepFolderName(1));
  std::filesystem::create_directories(step);
  std::ofstream(StrCat(step, "/", kCheckpointManifest)) << manifest;
  std::ofstream(StrCat(step, "/", kCheckpointMarker)) << CheckpointMarkerText(manifest);
  internal::v1::SaveOrder earlier = Order();
  earlier.set_step(2);
  earlier.mutable_earlier();
  internal::v1::SaveAnswer answer;
  ASSERT_THAT(Run(*leader_, earlier, &answer), IsOk());
  ASSERT_EQ(answer.earlier_size(), 1);
  EXPECT_EQ(answer.earlier(0).array_digests_size(), kTensors);
  EXPECT_EQ(answer.earlier(0).content_digests_size(), kTensors);
}

TEST_F(SaveOrdersTest, WritesATileThatTheStoreHoldsInAnotherForm) {
  MemoryBudget budget(1 << 20);
  const auto store = *ShardStore::Open({BufferPool::Create(&budget, 0), ""});
  const std::string bytes = "ABCDEFGH";
  const Tile tile = Tile::Whole({8});
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto staged, store->Stage({.array_id = "a",
                                                                    .dtype = Dtype::kU8,
                                                                    .array_shape = {8},
                                                                    .tile = tile,
                                                                    .array_descriptor = "",
                                                                    .transfer_id = "put"},
                                                                   false));
    ASSERT_THAT(staged->Append(0, bytes, Crc32c(bytes)), IsOk());
    ASSERT_THAT(staged->Finish(Crc32c(bytes)), IsOk());
  }
  ASSERT_THAT(store->Commit({"a"}), IsOk());
  const auto form = std::make_shared<test::ReversedTile>(bytes, *budget.Reserve(8, "a form"));
  ASSERT_THAT(store->HoldAs("a", tile, form), IsOk());
  const int64_t reads = form->reads();
  leader_ = MakeWorker(store.get());
  ASSERT_NO_FATAL_FAILURE(Begin());
  internal::v1::SaveOrder order = Order();
  order.mutable_tiles()->add_files("model.safetensors");
  order.mutable_tiles()->set_sync(true);
  for (const int64_t begin_bytes : {0, 4}) {
    internal::v1::SavedRegion* const region = order.mutable_tiles()->add_regions();
    region->set_array_id("a");
    rpc::Encode(tile, region->mutable_tile());
    region->set_begin_bytes(begin_bytes);
    region->set_end_bytes(begin_bytes + 4);
  }
  ASSERT_THAT(Run(*leader_, order), IsOk());
  EXPECT_EQ(test::ReadFile(StrCat(folder_, "/", kSaveStaging, "/model.safetensors")), bytes);
  EXPECT_EQ(form->reads(), reads + 1) << "unpacked once for both regions";
  {
    const auto others = budget.Reserve(budget.limit_bytes() - budget.used_bytes(), "others");
    EXPECT_THAT(Run(*leader_, order),
                StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  }
  leader_.reset();  // uses the store
}

TEST_F(SaveOrdersTest, AnErrorOfTheLeadersDiskLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(FailDisk(*leader_));
  LoseCoordinator(leader_);
  LoseCoordinator(joined_);
  EXPECT_FALSE(HasStaging());
}

TEST_F(SaveOrdersTest, AnErrorOfAnotherWorkersDiskLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(FailDisk(*joined_));
  EXPECT_FALSE(
      std::filesystem::exists(StrCat(folder_, "/", kSaveStaging, "/", kCheckpointManifest)))
      << "the leader may end in any way";
  LoseCoordinator(joined_);
  LoseCoordinator(leader_);
  EXPECT_FALSE(HasStaging());
}

TEST_F(SaveOrdersTest, AnErrorThatComesAfterTheLeaderHasLeftLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  LoseCoordinator(leader_);
  ASSERT_TRUE(HasStaging());
  ASSERT_NO_FATAL_FAILURE(FailDisk(*joined_));
  LoseCoordinator(joined_);
  EXPECT_FALSE(HasStaging());
}

TEST_F(SaveOrdersTest, AnErrorThatComesDuringTheNextSaveLeavesThatSaveAlone) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  LoseCoordinator(leader_);
  leader_ = MakeWorker();
  internal::v1::SaveOrder open = Order();
  open.mutable_open()->set_probe("another");
  open.mutable_open()->set_min_kept_bytes(1);
  ASSERT_THAT(Run(*leader_, open), IsOk());
  internal::v1::SaveOrder text = Order();
  text.mutable_text()->set_name(std::string(kCheckpointManifest));
  text.mutable_text()->set_text("{}");
  ASSERT_THAT(Run(*leader_, text), IsOk());
  ASSERT_NO_FATAL_FAILURE(FailDisk(*joined_));
  LoseCoordinator(joined_);
  EXPECT_TRUE(
      std::filesystem::exists(StrCat(folder_, "/", kSaveStaging, "/", kCheckpointManifest)));
}

}  // namespace
}  // namespace shardmesh::worker
