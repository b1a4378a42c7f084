// Saves that replace a checkpoint file by file, as workers do with `save --overwrite`.
#ifndef SHARDMESH_TESTS_TESTING_REPLACING_SAVES_H_
#define SHARDMESH_TESTS_TESTING_REPLACING_SAVES_H_

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/checkpoint_manifest.h"

namespace shardmesh::test {

// A checkpoint as a save writes it: its manifest, and the bytes of its other files by name.
struct SavedFiles {
  std::string manifest;
  std::map<std::string, std::string> files;
};

// Replaces the checkpoint in `folder`, or in the folder `step_name` below it, by another one. First
// takes the marker away and the manifest last; then brings the manifest first and the marker last.
inline void ReplaceCheckpoint(const std::string& folder, const std::string& step_name,
                              const SavedFiles& next) {
  namespace fs = std::filesystem;
  const fs::path place = fs::path(folder) / step_name;
  const fs::path staging = fs::path(folder) / kSaveStaging;
  const fs::path aside =
      staging / (step_name.empty() ? std::string(kSaveAside) : StrCat(kSaveAside, "-", step_name));
  fs::create_directories(place);
  fs::create_directories(staging);
  const auto write = [&staging](std::string_view name, const std::string& bytes) {
    std::ofstream(staging / name, std::ios::binary) << bytes;
  };
  write(kCheckpointManifest, next.manifest);
  write(kCheckpointMarker, CheckpointMarkerText(next.manifest));
  for (const auto& [name, bytes] : next.files) write(name, bytes);
  fs::create_directory(aside);
  std::vector<fs::path> old = {fs::path(kCheckpointMarker)};
  for (const fs::directory_entry& entry : fs::directory_iterator(place)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name != kCheckpointMarker && name != kCheckpointManifest) {
      old.emplace_back(name);
    }
  }
  old.emplace_back(kCheckpointManifest);
  for (const fs::path& name : old) {
    if (fs::exists(place / name)) fs::rename(place / name, aside / name);
  }
  fs::rename(staging / kCheckpointManifest, place / kCheckpointManifest);
  for (const auto& [name, bytes] : next.files) fs::rename(staging / name, place / name);
  fs::rename(staging / kCheckpointMarker, place / kCheckpointMarker);
  fs::remove_all(staging);
}

// Sets MaxReplaceTime for the readers of this process, and sets it back at its end.
class ScopedMaxReplaceTime {
 public:
  explicit ScopedMaxReplaceTime(absl::Duration time) : before_(MaxReplaceTime()) {
    SetMaxReplaceTime(time);
  }
  ~ScopedMaxReplaceTime() { SetMaxReplaceTime(before_); }
  ScopedMaxReplaceTime(const ScopedMaxReplaceTime&) = delete;
  ScopedMaxReplaceTime& operator=(const ScopedMaxReplaceTime&) = delete;

 private:
  const absl::Duration before_;
};

// Makes saves that replace a checkpoint again and again, on its own thread. At most kBurst of them
// begin between two calls of Continue. One more may be under way at the first of the two calls, so
// that a read meets at most kBurst + 1 saves. A reader that begins anew after each of them needs
// fewer than kMaxFolderAttempts attempts. On a busy machine, the thread may stand still for seconds
// in the middle of a save: readers of this process wait for kPatience meanwhile, instead of
// kMaxReplaceTime.
class ReplacingSaves {
 public:
  static constexpr int kBurst = 3;
  static constexpr absl::Duration kPatience = absl::Seconds(60);

  // Calls `save` with 0, 1, 2 and so on.
  explicit ReplacingSaves(std::function<void(size_t number)> save)
      : save_(std::move(save)), thread_([this] { Run(); }) {}
  // Replaces the checkpoint by these in turn: see ReplaceCheckpoint.
  ReplacingSaves(const std::string& folder, const std::string& step_name,
                 const std::vector<SavedFiles>& in_turn)
      : ReplacingSaves([=](size_t number) {
          ReplaceCheckpoint(folder, step_name, in_turn[number % in_turn.size()]);
        }) {}
  ~ReplacingSaves() {
    {
      absl::MutexLock lock(&mutex_);
      is_over_ = true;
    }
    thread_.join();
  }
  ReplacingSaves(const ReplacingSaves&) = delete;
  ReplacingSaves& operator=(const ReplacingSaves&) = delete;

  // Lets the thread make further saves. For the reader, at the end of each read.
  void Continue() {
    absl::MutexLock lock(&mutex_);
    made_ = 0;
  }

 private:
  void Run() {
    const auto may_go_on = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return is_over_ || made_ < kBurst;
    };
    for (size_t number = 0;; ++number) {
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(&may_go_on));
        if (is_over_) return;
        ++made_;
      }
      save_(number);
    }
  }

  const ScopedMaxReplaceTime patience_{kPatience};
  const std::function<void(size_t number)> save_;
  absl::Mutex mutex_;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  int made_ ABSL_GUARDED_BY(mutex_) = 0;  // since the last Continue
  std::thread thread_;                    // declared last: it uses the members above
};

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_REPLACING_SAVES_H_
