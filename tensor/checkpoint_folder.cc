// Folders of saved checkpoints: the names in them, and which checkpoint a reader takes.
#include "tensor/checkpoint_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <list>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "absl/time/clock.h"
#include "process/folders/folder_entries.h"
#include "process/steady_deadline.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_manifest.h"

namespace shardmesh {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr size_t kStepDigits = 8;
// The largest number of steps that an error lists.
constexpr size_t kMostNamed = 8;
// Between two looks at a checkpoint that a save replaces.
constexpr absl::Duration kReplacePause = absl::Milliseconds(5);

// Returns the place of MaxReplaceTime, in nanoseconds.
std::atomic<int64_t>& MaxReplaceNs() {
  static std::atomic<int64_t> time_ns = absl::ToInt64Nanoseconds(kMaxReplaceTime);
  return time_ns;
}

bool HasFile(const std::filesystem::path& folder, std::string_view name) {
  std::error_code ignored;
  return std::filesystem::exists(folder / name, ignored);
}

// Waits while a save replaces a checkpoint, at most until the deadline: see AwaitReplaced.
absl::Status AwaitWhile(const std::function<bool()>& is_being_replaced,
                        const SteadyDeadline& deadline,
                        const std::function<absl::Status()>& keep_going) {
  for (;;) {
    if (keep_going) SHARDMESH_RETURN_IF_ERROR(keep_going());
    if (!is_being_replaced() || deadline.is_over()) return absl::OkStatus();
    absl::SleepFor(kReplacePause);
  }
}

// Returns the inode of an open folder; 0 if it is not open.
uint64_t NumberOf(const FileDescriptor& folder) {
  struct stat about = {};
  return folder.valid() && fstat(folder.get(), &about) == 0 ? about.st_ino : 0;
}

// Opens the folder, or a file in it. Returns a descriptor that is not valid if there is none, or if
// another error occurs, which sets `*status`. The status names the folder: users may not know the
// file.
FileDescriptor OpenPath(const std::string& folder, std::string_view name, int flags,
                        absl::Status* status) {
  const std::filesystem::path path = std::filesystem::path(folder) / name;
  FileDescriptor opened(open(path.c_str(), O_PATH | O_CLOEXEC | flags));
  if (!opened.valid() && errno != ENOENT && errno != ENOTDIR) {
    *status = FileError("look into", folder, errno);
  }
  return opened;
}

// Returns the inode that the path leads to; 0 if there is none.
uint64_t NumberAt(const std::filesystem::path& path) {
  struct stat about = {};
  return stat(path.c_str(), &about) == 0 ? about.st_ino : 0;
}

// Returns the folder without a `/` at the end. A link, such as `latest`, leads to the place: the
// save names what is aside after the step's own folder.
std::filesystem::path PlaceOf(const std::string& folder) {
  std::error_code error;
  std::filesystem::path place = std::filesystem::canonical(folder, error);
  if (error) place = folder;
  return place.has_filename() ? place : place.parent_path();
}

// Returns the names of the folders of steps that have a checkpoint aside, in no order.
std::set<std::string> StepsAside(const std::filesystem::path& folder) {
  const std::string prefix = StrCat(kSaveAside, "-");
  std::set<std::string> steps;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder / kSaveStaging, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    std::string of_step = name.substr(prefix.size());
    if (StepOfFolder(of_step).has_value()) steps.insert(std::move(of_step));
  }
  return steps;
}

// Whether the folder has a safetensors file of any name: other writers name theirs as they like.
absl::StatusOr<bool> HasTensors(const std::string& folder) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(folder));
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return std::filesystem::path(name).extension() == ".safetensors";
  });
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path));
  if (file.size_bytes > kMaxCheckpointManifestBytes) {
    return InvalidArgument(Reason::kBadFile,
                           StrCat(path, " has ", file.size_bytes, " bytes, more than ",
                                  kMaxCheckpointManifestBytes, "; it is no file of a save"),
                           {{fact::kFile, path}});
  }
  std::string text(static_cast<size_t>(file.size_bytes), '\0');
  SHARDMESH_RETURN_IF_ERROR(ReadExactly(file, path, 0, absl::MakeSpan(text)));
  return text;
}

// Compares the marker of a checkpoint with its manifest.
absl::Status CheckMarkerOf(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / kCheckpointManifest).string();
  const absl::StatusOr<std::string> manifest = ReadText(path);
  if (absl::IsNotFound(manifest.status())) {
    return InvalidArgument(
        Reason::kBadFile,
        StrCat(path, " is missing, and ", kCheckpointMarker,
               " says that a save wrote it: somebody removed files of the checkpoint; restore "
               "them, or load another checkpoint"),
        {{fact::kFile, path}});
  }
  SHARDMESH_RETURN_IF_ERROR(manifest.status());
  SHARDMESH_ASSIGN_OR_RETURN(
      const std::string marker,
      ReadText((std::filesystem::path(folder) / kCheckpointMarker).string()));
  return CheckMarker(folder, *manifest, marker);
}

// Whether there is a folder with a checkpoint, complete or not.
absl::StatusOr<bool> HasCheckpoint(const std::string& folder) {
  if (HasFile(folder, kCheckpointIndex) || HasFile(folder, kCheckpointManifest)) return true;
  absl::StatusOr<bool> has_tensors = HasTensors(folder);
  if (absl::IsNotFound(has_tensors.status())) return false;
  return has_tensors;
}

}  // namespace

HeldFolder::HeldFolder(const std::string& folder)
    : path_(folder),
      is_aside_first_(HasCheckpointAside(folder)),
      folder_(OpenPath(folder, "", O_DIRECTORY, &status_)),
      marker_(OpenPath(folder, kCheckpointMarker, 0, &status_)),
      number_(NumberOf(folder_)),
      mark_(MarkAt(folder)),
      was_aside_(is_aside_first_ || HasCheckpointAside(folder)) {}

HeldFolder::Mark HeldFolder::MarkAt(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / kCheckpointMarker).string();
  struct stat about = {};
  if (stat(path.c_str(), &about) != 0) return Mark();
  return Mark{.number = about.st_ino,
              .changed_ns = absl::ToUnixNanos(absl::TimeFromTimespec(about.st_ctim))};
}

bool HeldFolder::IsInPlace() const {
  return NumberAt(path_) == number_ && MarkAt(path_) == mark_ && NumberOf(marker_) == mark_.number;
}

bool HeldFolder::IsSteady() const {
  if (mark_.number != 0) return IsInPlace();
  return !was_aside_ && !HasCheckpointAside(path_) && IsInPlace() && !HasCheckpointAside(path_);
}

bool HasCheckpointAside(const std::string& folder) {
  const std::filesystem::path place = PlaceOf(folder);
  return HasFile(place / kSaveStaging, kSaveAside) ||
         HasFile(place.parent_path() / kSaveStaging,
                 StrCat(kSaveAside, "-", place.filename().string()));
}

bool IsBeingReplaced(const std::string& folder) {
  return HasCheckpointAside(folder) && !HasFile(PlaceOf(folder), kCheckpointMarker);
}

absl::Duration MaxReplaceTime() { return absl::Nanoseconds(MaxReplaceNs().load()); }

void SetMaxReplaceTime(absl::Duration time) { MaxReplaceNs() = absl::ToInt64Nanoseconds(time); }

SteadyDeadline ReplaceDeadline() { return SteadyDeadline::After(MaxReplaceTime()); }

absl::Status AwaitReplaced(const std::string& folder, const SteadyDeadline& deadline,
                           const std::function<absl::Status()>& keep_going) {
  return AwaitWhile([&folder] { return IsBeingReplaced(folder); }, deadline, keep_going);
}

bool HasMarker(const std::string& folder) { return HasFile(folder, kCheckpointMarker); }

absl::StatusOr<bool> FindSteadily(const std::string& folder, const std::function<bool()>& find,
                                  const std::function<absl::Status()>& keep_going) {
  const SteadyDeadline deadline = ReplaceDeadline();
  for (int attempt = 1;; ++attempt) {
    const HeldFolder held(folder);
    if (find()) return true;
    if (!held.status().ok() || held.IsSteady()) return false;
    if (deadline.is_over() && attempt >= kMaxFolderAttempts) return false;
    absl::SleepFor(kReplacePause);
    SHARDMESH_RETURN_IF_ERROR(AwaitReplaced(folder, deadline, keep_going));
  }
}

std::string FolderOfFile(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

absl::StatusOr<std::vector<int64_t>> CompleteSteps(const std::string& folder) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(folder));
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    const std::optional<int64_t> step = StepOfFolder(name);
    if (step.has_value() && HasFile(std::filesystem::path(folder) / name, kCheckpointMarker)) {
      steps.push_back(*step);
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string StepFolderName(int64_t step) {
  const std::string digits = StrCat(step);
  return StrCat(kStepPrefix, std::string(kStepDigits - std::min(kStepDigits, digits.size()), '0'),
                digits);
}

std::optional<int64_t> StepOfFolder(std::string_view name) {
  if (name.size() != kStepPrefix.size() + kStepDigits || name.substr(0, 5) != kStepPrefix) {
    return std::nullopt;
  }
  int64_t step = 0;
  for (const char digit : name.substr(kStepPrefix.size())) {
    if (digit < '0' || digit > '9') return std::nullopt;
    step = step * 10 + (digit - '0');
  }
  return step;
}

absl::Status CheckCheckpointComplete(const std::string& folder) {
  if (HasFile(folder, kCheckpointMarker)) return CheckMarkerOf(folder);
  if (!HasFile(folder, kCheckpointManifest)) return absl::OkStatus();
  return InvalidArgument(
      Reason::kBadFile,
      StrCat("folder ", folder, " has an unfinished checkpoint: it has no file ", kCheckpointMarker,
             ", because a save ended before it had moved all files; save again, or load another "
             "checkpoint"),
      {{fact::kFile, folder}});
}

namespace {

// FindCheckpointFolder, as the folder is at this moment. Sets `*seen` to the complete steps if the
// result depends on which there are.
absl::StatusOr<std::string> FindFolderOnce(const std::string& folder, std::optional<int64_t> step,
                                           std::optional<std::vector<int64_t>>* seen) {
  absl::Status own_complete;
  if (!step.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(const bool has_own, HasCheckpoint(folder));
    if (has_own) own_complete = CheckCheckpointComplete(folder);
    if (has_own && own_complete.ok()) return folder;
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, CompleteSteps(folder));
  if (!step.has_value()) *seen = steps;
  // A save into the folder itself that did not end does not hide complete steps.
  if (steps.empty()) SHARDMESH_RETURN_IF_ERROR(own_complete);
  if (!step.has_value() && !steps.empty()) step = steps.back();
  if (step.has_value()) {
    const std::string found = (std::filesystem::path(folder) / StepFolderName(*step)).string();
    SHARDMESH_ASSIGN_OR_RETURN(const bool has_step, HasCheckpoint(found));
    if (has_step) {
      SHARDMESH_RETURN_IF_ERROR(CheckCheckpointComplete(found));
      return found;
    }
  }
  std::string has;
  if (!steps.empty()) {
    const size_t first = steps.size() > kMostNamed ? steps.size() - kMostNamed : 0;
    has = StrCat("; it has the ", first > 0 ? "latest " : "", "complete steps ",
                 StrJoin(std::vector<int64_t>(steps.begin() + static_cast<std::ptrdiff_t>(first),
                                              steps.end()),
                         ", "));
  } else if (step.has_value() && HasCheckpoint(folder).value_or(false) &&
             CheckCheckpointComplete(folder).ok()) {
    has = "; it has a complete checkpoint without steps: leave out the step (--step)";
  }
  return WithReason(
      absl::NotFoundError(step.has_value()
                              ? StrCat("folder ", folder, " has no checkpoint of step ", *step, has)
                              : StrCat("folder ", folder, " has no .safetensors file, no ",
                                       kCheckpointIndex, " and no complete checkpoint of a step")),
      Reason::kNotFound, {{fact::kKind, "checkpoint"}, {fact::kName, folder}});
}

// The folders in which the checkpoint to read may be, as they were before a search.
class HeldPlaces {
 public:
  HeldPlaces(const std::string& folder, std::optional<int64_t> step)
      : folder_(folder), step_(step) {
    if (step.has_value()) {
      Hold(StepFolderName(*step));
      return;
    }
    held_.emplace_back(folder);
    steps_ = StepsAside(folder);
    for (const std::string& name : steps_) Hold(name);
  }

  // The error of a folder that cannot be held; OK if there is none.
  absl::Status status() const {
    for (const HeldFolder& each : held_) SHARDMESH_RETURN_IF_ERROR(each.status());
    return absl::OkStatus();
  }
  // Whether the search met no save that replaces one of the checkpoints.
  bool AreSteady() const {
    return std::all_of(held_.begin(), held_.end(),
                       [](const HeldFolder& each) { return each.IsSteady(); }) &&
           (step_.has_value() || HasNoNewSteps());
  }
  // Whether a save has taken the marker of one of the checkpoints away.
  bool IsOneBeingReplaced() const {
    if (step_.has_value()) return IsBeingReplaced(PathOf(StepFolderName(*step_)));
    const std::set<std::string> steps = StepsAside(folder_);
    return IsBeingReplaced(folder_) ||
           std::any_of(steps.begin(), steps.end(),
                       [this](const std::string& name) { return IsBeingReplaced(PathOf(name)); });
  }

 private:
  std::string PathOf(const std::string& name) const {
    return (std::filesystem::path(folder_) / name).string();
  }
  void Hold(const std::string& name) { held_.emplace_back(PathOf(name)); }
  // Whether all steps that have a checkpoint aside had one before.
  bool HasNoNewSteps() const {
    const std::set<std::string> steps = StepsAside(folder_);
    return std::includes(steps_.begin(), steps_.end(), steps.begin(), steps.end());
  }

  const std::string folder_;
  const std::optional<int64_t> step_;
  std::set<std::string> steps_;  // that had a checkpoint aside
  std::list<HeldFolder> held_;   // a HeldFolder does not move
};

bool HasSteps(const std::string& folder, const std::vector<int64_t>& steps) {
  const absl::StatusOr<std::vector<int64_t>> now = CompleteSteps(folder);
  return now.ok() && *now == steps;
}

}  // namespace

absl::StatusOr<std::string> FindCheckpointFolder(const std::string& folder,
                                                 std::optional<int64_t> step,
                                                 const SteadyDeadline& deadline,
                                                 const std::function<absl::Status()>& keep_going) {
  for (int attempt = 1;; ++attempt) {
    const HeldPlaces held(folder, step);
    SHARDMESH_RETURN_IF_ERROR(held.status());
    std::optional<std::vector<int64_t>> seen;
    absl::StatusOr<std::string> found = FindFolderOnce(folder, step, &seen);
    // A search that met a save halfway says nothing about the checkpoints before and after. A save
    // of another step may have removed the one that was found.
    if (held.AreSteady() && (!seen.has_value() || HasSteps(folder, *seen))) return found;
    if (deadline.is_over() && (attempt >= kMaxFolderAttempts || held.IsOneBeingReplaced())) {
      return found;
    }
    SHARDMESH_RETURN_IF_ERROR(
        AwaitWhile([&held] { return held.IsOneBeingReplaced(); }, deadline, keep_going));
  }
}

}  // namespace shardmesh
