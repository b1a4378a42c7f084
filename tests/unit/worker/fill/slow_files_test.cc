// Slow disks under the manifests and the heads of files that tiles are filled from: a thread that
// waits for another one ends with its transfer, and other files are not held up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/fill/source_files.h"
#include "worker/fill/checked_file.h"
#include "worker/fill/saved_sums.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::GoOn;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

absl::Status TransferOver() { return absl::CancelledError("the transfer has ended"); }

// Stops a thread before its first read, as a slow disk would.
class SlowDisk {
 public:
  KeepGoing keep_going() {
    return [this] {
      // The first question comes before the thread has its turn.
      if (++asked_ == 2) {
        is_reading_.Notify();
        go_on_.WaitForNotification();
      }
      return absl::OkStatus();
    };
  }
  void AwaitRead() { is_reading_.WaitForNotification(); }
  void GoOn() { go_on_.Notify(); }

 private:
  std::atomic<int> asked_ = 0;
  absl::Notification is_reading_;
  absl::Notification go_on_;
};

class SlowFilesTest : public ::testing::Test {
 protected:
  // Writes the manifest and the marker of a folder, as a save does.
  void MakeCheckpoint(const std::string& name, size_t spaces = 0) {
    std::filesystem::create_directory(StrCat(folder_.path(), "/", name));
    const std::string manifest =
        R"({"files":[{"name":"w.safetensors","size_bytes":3}]})" + std::string(spaces, ' ');
    folder_.Write(StrCat(name, "/", kCheckpointManifest), manifest);
    folder_.Write(StrCat(name, "/", kCheckpointMarker), CheckpointMarkerText(manifest));
  }
  absl::Status Prepare(const std::string& name, const KeepGoing& keep_going) {
    return sums_.Prepare(StrCat(folder_.path(), "/", name, "/w.safetensors"), keep_going);
  }

  test::SourceFolder folder_;
  SavedSums sums_{&folder_.roots()};
};

TEST_F(SlowFilesTest, AWaitForAManifestEndsWithTheTransfer) {
  MakeCheckpoint("slow");
  MakeCheckpoint("other");
  SlowDisk disk;
  std::thread reader([&] { EXPECT_THAT(Prepare("slow", disk.keep_going()), IsOk()); });
  disk.AwaitRead();
  std::atomic<int> asked = 0;
  EXPECT_THAT(Prepare("slow", [&] { return ++asked > 2 ? TransferOver() : GoOn(); }),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(Prepare("other", GoOn), IsOk());
  disk.GoOn();
  reader.join();
  EXPECT_THAT(Prepare("slow", GoOn), IsOk());
}

TEST_F(SlowFilesTest, ALargeManifestIsReadNoFurtherThanTheTransferLasts) {
  MakeCheckpoint("large", size_t{4} << 20);
  // The turn, the marker, and two pieces of the manifest.
  int asked = 0;
  EXPECT_THAT(Prepare("large", [&] { return ++asked > 4 ? TransferOver() : GoOn(); }),
              StatusIs(absl::StatusCode::kCancelled));
  asked = 0;
  EXPECT_THAT(Prepare("large",
                      [&] {
                        ++asked;
                        return GoOn();
                      }),
              IsOk());
  EXPECT_GT(asked, 4) << "the end of a transfer is no result of the folder";
}

TEST_F(SlowFilesTest, AWaitForAFileThatAnotherThreadOpensEndsWithTheTransfer) {
  const SourceFile source = folder_.Write("slow.safetensors", "bytes", /*head_bytes=*/4);
  CheckedFiles files(&folder_.roots());
  SlowDisk disk;
  std::thread reader([&] { EXPECT_THAT(files.Get(source, disk.keep_going()), IsOk()); });
  disk.AwaitRead();
  std::atomic<int> asked = 0;
  EXPECT_THAT(files.Get(source, [&] { return ++asked > 2 ? TransferOver() : GoOn(); }),
              StatusIs(absl::StatusCode::kCancelled));
  // More files than stay open push it out of the open ones, without waiting for it.
  for (size_t i = 0; i < CheckedFiles::kMaxOpen; ++i) {
    EXPECT_THAT(files.Get(folder_.Write(StrCat(i, ".safetensors"), "bytes"), GoOn), IsOk());
  }
  disk.GoOn();
  reader.join();
}

}  // namespace
}  // namespace shardmesh::worker
