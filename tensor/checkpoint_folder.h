// Folders of saved checkpoints: the names in them, and which checkpoint a reader takes.
#ifndef SHARDMESH_TENSOR_CHECKPOINT_FOLDER_H_
#define SHARDMESH_TENSOR_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "process/file.h"
#include "process/steady_deadline.h"

namespace shardmesh {

// The files of a saved checkpoint beside its safetensors files. The marker is written last: a
// folder with a manifest and without a marker has an unfinished checkpoint.
inline constexpr std::string_view kCheckpointManifest = "shardmesh.manifest.json";
inline constexpr std::string_view kCheckpointMarker = "shardmesh.complete";
// Names that every safetensors reader knows.
inline constexpr std::string_view kCheckpointIndex = "model.safetensors.index.json";
inline constexpr std::string_view kSingleCheckpointFile = "model.safetensors";
// The folder in which a running save keeps its files, and the file that it locks.
inline constexpr std::string_view kSaveStaging = ".shardmesh-save";
inline constexpr std::string_view kSaveLock = ".shardmesh-save.lock";
// The folder in kSaveStaging that has the files of a checkpoint while a save replaces it. That of a
// step has `-` and the name of the step's folder after it.
inline constexpr std::string_view kSaveAside = ".aside";

// The largest number of a step.
inline constexpr int64_t kMaxCheckpointStep = 99'999'999;
// Returns the name of a step's folder: `step-00000007` for step 7. Requires 0 <= step <=
// kMaxCheckpointStep.
std::string StepFolderName(int64_t step);
// Returns the step whose folder has this name; nullopt for any other name.
std::optional<int64_t> StepOfFolder(std::string_view name);

// The longest time that a reader waits for a save that replaces a checkpoint: it renames each file
// twice, and syncs. A save that died meanwhile leaves its files aside, and costs each reader this
// time.
inline constexpr absl::Duration kMaxReplaceTime = absl::Seconds(5);
// Returns the time that takes the place of kMaxReplaceTime for the readers of this process:
// kMaxReplaceTime, unless it was set. Thread-safe.
absl::Duration MaxReplaceTime();
// Sets MaxReplaceTime, for tests: a busy machine may stop the thread of a save for longer than
// kMaxReplaceTime. Applies to the waits that begin later. Thread-safe.
void SetMaxReplaceTime(absl::Duration time);
// Returns the deadline of a reader that begins now: MaxReplaceTime from now.
SteadyDeadline ReplaceDeadline();

// Returns the folder that has the checkpoint to read in `folder`: the step's folder if `step` is
// set; else `folder` itself if it has a complete checkpoint; else the folder of the highest step
// whose checkpoint is complete. NOT_FOUND names the steps that there are. INVALID_ARGUMENT
// (BAD_FILE): the only checkpoint there is unfinished: a save ended before it had moved all files.
// Errors as FileError if a folder cannot be read. While a save replaces a checkpoint that may be
// the one to read, waits until the save has done so, at most until the deadline. An error is
// returned sooner only if no save was replacing such a checkpoint before, during and after the
// search. `keep_going` is called about every 5 ms while the function waits, and before each further
// search; its error ends the search and becomes its result. It may be null.
absl::StatusOr<std::string> FindCheckpointFolder(
    const std::string& folder, std::optional<int64_t> step = {},
    const SteadyDeadline& deadline = ReplaceDeadline(),
    const std::function<absl::Status()>& keep_going = {});

// Returns the steps below the folder that have a complete checkpoint, by rising number. Errors as
// FileError.
absl::StatusOr<std::vector<int64_t>> CompleteSteps(const std::string& folder);

// Whether a save has taken the marker of the folder's checkpoint away to replace the checkpoint,
// and has not written the new one.
bool IsBeingReplaced(const std::string& folder);
// Whether a save has set the folder's checkpoint aside to replace it. Still true for a moment after
// the marker of the new checkpoint is there.
bool HasCheckpointAside(const std::string& folder);
// Waits until the folder is not being replaced, at most until the deadline. Calls `keep_going` at
// least once, and about every 5 ms while it waits. Returns its error; otherwise OK. It may be null.
absl::Status AwaitReplaced(const std::string& folder, const SteadyDeadline& deadline,
                           const std::function<absl::Status()>& keep_going = {});
// Whether the folder has the marker of a complete checkpoint at this moment.
bool HasMarker(const std::string& folder);

// Holds the folder at a path and the checkpoint in it, for a reader that opens several files in it
// by the path: a save may exchange the folder of a step for another one, or replace the files one
// by one. If IsSteady then returns false, the reader begins anew, until both its time and
// kMaxFolderAttempts attempts are used up.
// Immutable, and safe to share between threads.
class HeldFolder {
 public:
  // Takes two descriptors. There need be no folder and no marker.
  explicit HeldFolder(const std::string& folder);
  HeldFolder(const HeldFolder&) = delete;
  HeldFolder& operator=(const HeldFolder&) = delete;

  // The error with which the folder or the marker could not be opened, as FileError; OK if there is
  // none of that name. After an error, the other functions say nothing about the checkpoint.
  const absl::Status& status() const { return status_; }
  // Whether the path still leads to the same folder with the same marker, or still to none. False
  // also if a save has set the marker aside meanwhile and then put it back.
  bool IsInPlace() const;
  // Whether all that was read in the folder since this object was made is of one checkpoint, or of
  // a folder that no save replaces. Trusts a missing marker only if nothing was aside when this
  // object was made, and nothing is aside now: the marker may have been there in between.
  bool IsSteady() const;

 private:
  // The state of a file, to tell it from another one that takes its place. The change time is also
  // set by hard links to the file and by changes of its mode or owner: Checkpoint::WasReplaced may
  // then be true without a save. The time is as coarse as the clock of the file system: a marker
  // that was away for a few milliseconds may have the same state as before.
  struct Mark {
    uint64_t number = 0;     // the inode; 0: there is no file
    int64_t changed_ns = 0;  // the change time, which a rename sets
    friend bool operator==(const Mark&, const Mark&) = default;
  };
  static Mark MarkAt(const std::string& folder);

  const std::string path_;
  absl::Status status_;        // not changed after construction
  const bool is_aside_first_;  // before the look at the marker
  // The folder stays open: the number of a folder that is gone may be that of the next one.
  const FileDescriptor folder_;
  const FileDescriptor marker_;
  const uint64_t number_;
  const Mark mark_;       // of the marker
  const bool was_aside_;  // before or after the look at the marker
};
inline constexpr int kMaxFolderAttempts = 10;

// Calls `find`, which looks for something in the folder, until it returns true, or until it has
// returned false and HeldFolder::IsSteady held from before until after the call: a save that
// replaces the checkpoint hides nothing. Before each further call, waits for the save. Returns
// whether `find` returned true; false also if no call met a steady folder within MaxReplaceTime and
// kMaxFolderAttempts calls, and if the folder cannot be held (HeldFolder::status). `keep_going`: as
// FindCheckpointFolder; its error is the only one that the function returns.
absl::StatusOr<bool> FindSteadily(const std::string& folder, const std::function<bool()>& find,
                                  const std::function<absl::Status()>& keep_going = {});

// Returns the folder of the file at the path; `.` for a name without a folder.
std::string FolderOfFile(const std::string& path);

// Returns INVALID_ARGUMENT (BAD_FILE) if the folder has a manifest and no marker, or a marker that
// does not name the digest of its manifest. OK for a folder that has neither. Takes the folder as
// it is at this moment: use it together with FindSteadily or HeldFolder.
absl::Status CheckCheckpointComplete(const std::string& folder);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_CHECKPOINT_FOLDER_H_
