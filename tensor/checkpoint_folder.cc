// Folders of saved checkpoints: the names in them, and which checkpoint a reader takes.
#include "tensor/checkpoint_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>

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

bool HasFile(const std::filesystem::path& folder, std::string_view name) {
  std::error_code ignored;
  return std::filesystem::exists(folder / name, ignored);
}

// Returns the inode of an open folder; 0 if it is not open.
uint64_t NumberOf(const FileDescriptor& folder) {
  struct stat about = {};
  return folder.valid() && fstat(folder.get(), &about) == 0 ? about.st_ino : 0;
}

FileDescriptor OpenPath(const std::filesystem::path& path, int flags) {
  return FileDescriptor(open(path.c_str(), O_PATH | O_CLOEXEC | flags));
}

// Returns the inode that the path leads to; 0 if there is none.
uint64_t NumberAt(const std::filesystem::path& path) {
  struct stat about = {};
  return stat(path.c_str(), &about) == 0 ? about.st_ino : 0;
}

// Returns the folder without a `/` at the end.
std::filesystem::path PlaceOf(const std::string& folder) {
  const std::filesystem::path place = folder;
  return place.has_filename() ? place : place.parent_path();
}

// Whether a step of the folder is being replaced: the given one, or any.
bool HasStepAside(const std::filesystem::path& folder, std::optional<int64_t> step) {
  const std::string prefix = StrCat(kSaveAside, "-");
  std::error_code error;
  std::filesystem::directory_iterator entry(folder / kSaveStaging, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const std::string of_step = name.substr(prefix.size());
    const std::optional<int64_t> found = StepOfFolder(of_step);
    if (!found.has_value() || (step.has_value() && found != step)) continue;
    if (!HasFile(folder / of_step, kCheckpointMarker)) return true;
  }
  return false;
}

// Returns when `is_done` does, or after kMaxReplaceTime. Calls it at least once.
void AwaitUntil(const std::function<bool()>& is_done) {
  const SteadyDeadline deadline = SteadyDeadline::After(kMaxReplaceTime);
  while (!is_done() && !deadline.is_over()) absl::SleepFor(kReplacePause);
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

// Compares the marker of a checkpoint with its manifest, as they are at this moment.
absl::Status CheckMarkerOnce(const std::string& folder) {
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

// Compares the marker of a checkpoint with its manifest.
absl::Status CheckMarkerOf(const std::string& folder) {
  for (int attempt = 1;; ++attempt) {
    const HeldFolder held(folder);
    absl::Status checked = CheckMarkerOnce(folder);
    if (held.IsInPlace() || attempt == kMaxFolderAttempts) return checked;
  }
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
      folder_(OpenPath(folder, O_DIRECTORY)),
      marker_(OpenPath(std::filesystem::path(folder) / kCheckpointMarker, 0)),
      number_(NumberOf(folder_)),
      marker_number_(NumberOf(marker_)) {}

bool HeldFolder::IsInPlace() const {
  return NumberAt(path_) == number_ &&
         NumberAt(std::filesystem::path(path_) / kCheckpointMarker) == marker_number_;
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

void AwaitReplaced(const std::string& folder) {
  AwaitUntil([&folder] { return !IsBeingReplaced(folder); });
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

// FindCheckpointFolder, as the folder is at this moment.
absl::StatusOr<std::string> FindFolderOnce(const std::string& folder, std::optional<int64_t> step) {
  absl::Status own_complete;
  if (!step.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(const bool has_own, HasCheckpoint(folder));
    if (has_own) own_complete = CheckCheckpointComplete(folder);
    if (has_own && own_complete.ok()) return folder;
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, CompleteSteps(folder));
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
  }
  return WithReason(
      absl::NotFoundError(step.has_value()
                              ? StrCat("folder ", folder, " has no checkpoint of step ", *step, has)
                              : StrCat("folder ", folder, " has no .safetensors file, no ",
                                       kCheckpointIndex, " and no complete checkpoint of a step")),
      Reason::kNotFound, {{fact::kKind, "checkpoint"}, {fact::kName, folder}});
}

}  // namespace

absl::StatusOr<std::string> FindCheckpointFolder(const std::string& folder,
                                                 std::optional<int64_t> step) {
  const std::string place =
      step.has_value() ? (std::filesystem::path(folder) / StepFolderName(*step)).string() : folder;
  absl::StatusOr<std::string> found;
  int attempts = 0;
  AwaitUntil([&] {
    const HeldFolder held(place);
    found = FindFolderOnce(folder, step);
    // A search that met a save halfway says nothing about the checkpoints before and after.
    if (HasStepAside(folder, step) || IsBeingReplaced(place)) return false;
    return held.IsInPlace() || ++attempts == kMaxFolderAttempts;
  });
  return found;
}

}  // namespace shardmesh
