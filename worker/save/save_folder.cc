// Works only through descriptors of open folders, so that no rename or link of another process
// leads a save elsewhere.
#include "worker/save/save_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "process/failpoint.h"
#include "process/folders/folder_entries.h"
#include "process/lock_file.h"
#include "process/log.h"
#include "status/byte_text.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "worker/save/folder_manifest.h"
#include "worker/save/verified_links.h"

namespace shardmesh::worker {
namespace {

constexpr mode_t kFileMode = 0666;    // before the umask
constexpr mode_t kFolderMode = 0777;  // before the umask
constexpr size_t kMaxOpenFiles = 64;
// A folder in the staging folder that takes the place of a step's folder, or has been there.
constexpr std::string_view kNext = ".next";
// How often a lock file may be replaced between its opening and its locking.
constexpr int kMaxLockAttempts = 16;
// A validation of another save holds a shared lock for so long at most.
constexpr absl::Duration kValidationTime = absl::Milliseconds(100);

bool HasEntry(const FileDescriptor& folder, std::string_view name) {
  struct stat about = {};
  return fstatat(folder.get(), std::string(name).c_str(), &about, AT_SYMLINK_NOFOLLOW) == 0;
}

absl::Status SyncDescriptor(const FileDescriptor& file, std::string_view path) {
  return SHARDMESH_FAILS("save.sync") || fsync(file.get()) != 0 ? FileError("sync", path, errno)
                                                                : absl::OkStatus();
}

// Removes an entry; OK if there is none.
absl::Status Unlink(const FileDescriptor& folder, std::string_view path, std::string_view name,
                    int flags = 0) {
  if (SHARDMESH_FAILS("save.unlink") ||
      (unlinkat(folder.get(), std::string(name).c_str(), flags) != 0 && errno != ENOENT)) {
    return FileError("remove", StrCat(path, "/", name), errno);
  }
  return absl::OkStatus();
}

// Moves an entry to another folder, under the same name, and replaces nothing. Returns 0 or the
// error number.
int MoveNew(const FileDescriptor& from, const std::string& name, const FileDescriptor& to) {
  int error = EINVAL;
  if (!SHARDMESH_FAILS("save.noreplace")) {
    if (renameat2(from.get(), name.c_str(), to.get(), name.c_str(), RENAME_NOREPLACE) == 0) {
      return 0;
    }
    error = errno;
  }
  if (error != EINVAL && error != ENOSYS) return error;
  // The file system has only the plain call, as NFS and some of FUSE. The lock excludes other
  // saves, so only somebody who writes just now could be overwritten.
  struct stat about = {};
  if (fstatat(to.get(), name.c_str(), &about, AT_SYMLINK_NOFOLLOW) == 0) return EEXIST;
  if (errno != ENOENT) return errno;
  return renameat(from.get(), name.c_str(), to.get(), name.c_str()) == 0 ? 0 : errno;
}

// Returns the names of a checkpoint's files in the order in which they are taken away: the marker
// first, the manifest last. What is left after a crash shows as unfinished.
std::vector<std::string> NamesOf(const std::vector<ManifestFile>& files) {
  std::vector<std::string> names = {std::string(kCheckpointMarker), std::string(kCheckpointIndex)};
  for (const ManifestFile& file : files) names.push_back(file.name);
  names.emplace_back(kCheckpointManifest);
  return names;
}

bool IsComplete(const FileDescriptor& folder) {
  return HasEntry(folder, kCheckpointMarker) && HasEntry(folder, kCheckpointManifest);
}

// Removes the files of a checkpoint that a save wrote, complete or not. After an error with the
// marker gone, the next save into the folder removes the rest.
absl::Status RemoveCheckpoint(const FileDescriptor& folder, std::string_view path) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<std::vector<ManifestFile>> files,
                             ReadManifest(folder, path));
  if (!files.has_value()) return absl::OkStatus();
  for (const std::string& name : NamesOf(*files)) {
    SHARDMESH_RETURN_IF_ERROR(Unlink(folder, path, name));
    if (name == kCheckpointMarker) SHARDMESH_RETURN_IF_ERROR(SyncDescriptor(folder, path));
  }
  return absl::OkStatus();
}

// Removes the folder kNext, whatever is in it: its files are those of a checkpoint that was
// replaced, or of one that was never complete.
absl::Status RemoveNext(const FileDescriptor& staging, std::string_view folder) {
  const std::string name(kNext);
  const absl::StatusOr<FileDescriptor> next =
      OpenBeneath(staging, folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (absl::IsNotFound(next.status())) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(next.status());
  const std::string path = StrCat(folder, "/", kSaveStaging, "/", name);
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(*next, path));
  for (const std::string& each : names) SHARDMESH_RETURN_IF_ERROR(Unlink(*next, path, each));
  return Unlink(staging, folder, name, AT_REMOVEDIR);
}

absl::Status Exists(std::string_view kind, std::string_view name, std::string message) {
  return WithReason(absl::AlreadyExistsError(std::move(message)), Reason::kAlreadyExists,
                    {{fact::kKind, kind}, {fact::kName, name}});
}

absl::Status IsBusy(std::string_view folder, std::string_view holder) {
  return Exists("save", folder,
                StrCat("another save writes into ", folder, ": that of worker process ", holder,
                       "; wait until it has ended, or cancel it"));
}

absl::Status IsOccupied(std::string_view path, bool is_step) {
  return Exists("checkpoint", path,
                StrCat(path, " has a complete checkpoint: the same command with --overwrite ",
                       "replaces it; ",
                       is_step ? "another number for --step, or another folder, keeps it"
                               : "another folder keeps it"));
}

absl::Status IsForeign(std::string_view path, std::string_view name) {
  return Exists("checkpoint", path,
                StrCat(path, "/", name,
                       " is a file that shardmesh did not save; move it away, or save into another "
                       "folder"));
}

absl::Status StillLink(std::string_view path) {
  return WithReason(
      absl::FailedPreconditionError(
          StrCat(path,
                 " is still the file of an earlier checkpoint on this host: its file system "
                 "shows a new file too late; save again, or mount it without caches of folders")),
      Reason::kFileChanged, {{fact::kFile, path}});
}

// Returns the free bytes of the folder's disk; nullopt if the file system does not say.
std::optional<int64_t> FreeBytes(const FileDescriptor& folder) {
  struct statvfs about = {};
  if (fstatvfs(folder.get(), &about) != 0) return std::nullopt;
  return static_cast<int64_t>(about.f_bavail) * static_cast<int64_t>(about.f_frsize);
}

// `free_bytes`: of the disk, before the save took any.
absl::Status NoSpace(std::string_view path, std::optional<int64_t> free_bytes, int64_t need_bytes) {
  const int64_t have_bytes = free_bytes.value_or(0);
  const auto [have, need] = FormatBytesApart(have_bytes, need_bytes);
  return WithReason(
      absl::ResourceExhaustedError(StrCat(
          "the disk of ", path, " has no room for the ", need, " of the checkpoint; it had ", have,
          " left", have_bytes < need_bytes ? "" : ", but a quota is used up, or others took them",
          "; free some, or save elsewhere")),
      Reason::kStoreFull,
      {{fact::kHave, have_bytes}, {fact::kNeed, need_bytes}, {fact::kFile, path}});
}

}  // namespace

SaveFolder::~SaveFolder() { Abandon(); }

std::string SaveFolder::TargetPath() const {
  return target_.step.has_value() ? StrCat(target_.folder, "/", StepFolderName(*target_.step))
                                  : target_.folder;
}

absl::Status SaveFolder::Lock() {
  for (int attempt = 0; attempt < kMaxLockAttempts; ++attempt) {
    SHARDMESH_ASSIGN_OR_RETURN(const FileDescriptor opened,
                               OpenBeneath(folder_, target_.folder, std::string(kSaveLock),
                                           O_RDWR | O_CREAT | O_NOFOLLOW, kFileMode));
    // This path leads to the open file itself, whatever its name refers to by now.
    SHARDMESH_ASSIGN_OR_RETURN(FileLock lock, TakeLock(StrCat("/proc/self/fd/", opened.get()),
                                                       {.timeout = kValidationTime}));
    if (!lock.held.valid()) return IsBusy(target_.folder, lock.holder);
    // The holder of the lock removes the file before it releases the lock.
    struct stat mine = {};
    struct stat named = {};
    if (fstat(lock.held.get(), &mine) == 0 &&
        fstatat(folder_.get(), std::string(kSaveLock).c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
        mine.st_ino == named.st_ino && mine.st_dev == named.st_dev) {
      lock_ = std::move(lock.held);
      return absl::OkStatus();
    }
  }
  return Exists("save", target_.folder,
                StrCat("other saves begin and end in ", target_.folder, "; save again"));
}

absl::StatusOr<FileDescriptor> SaveFolder::OpenTarget() const {
  if (!target_.step.has_value()) {
    return OpenBeneath(folder_, target_.folder, ".", O_RDONLY | O_DIRECTORY);
  }
  return OpenBeneath(folder_, target_.folder, StepFolderName(*target_.step),
                     O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
}

absl::StatusOr<FileDescriptor> SaveFolder::MakeTarget() const {
  if (target_.step.has_value() &&
      mkdirat(folder_.get(), StepFolderName(*target_.step).c_str(), kFolderMode) != 0 &&
      errno != EEXIST) {
    return FileError("create the folder", TargetPath(), errno);
  }
  return OpenTarget();
}

absl::Status SaveFolder::CheckTarget(bool overwrite) const {
  const absl::StatusOr<FileDescriptor> folder = OpenTarget();
  if (absl::IsNotFound(folder.status())) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(folder.status());
  const std::string path = TargetPath();
  const bool is_own = HasEntry(*folder, kCheckpointManifest);
  if (!is_own &&
      (HasEntry(*folder, kSingleCheckpointFile) || HasEntry(*folder, kCheckpointIndex))) {
    return Exists("checkpoint", path,
                  StrCat(path,
                         " has a checkpoint that shardmesh did not save; save into another "
                         "folder, or move that checkpoint away"));
  }
  return IsComplete(*folder) && !overwrite ? IsOccupied(path, target_.step.has_value())
                                           : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SaveFolder>> SaveFolder::Lead(const WriteRoots& roots,
                                                             const SaveTarget& target,
                                                             bool overwrite, std::string_view probe,
                                                             bool* took_over) {
  auto save = std::unique_ptr<SaveFolder>(new SaveFolder(target));
  SHARDMESH_ASSIGN_OR_RETURN(RootedFolder opened, roots.OpenFolder(target.folder, /*create=*/true));
  save->folder_ = std::move(opened.descriptor);
  save->new_levels_ = opened.new_levels;
  SHARDMESH_RETURN_IF_ERROR(save->Lock());
  save->is_leader_ = true;
  SHARDMESH_RETURN_IF_ERROR(save->RestoreAll());
  if (const absl::Status kept = save->KeepLeftovers(); !kept.ok()) {
    LogWarning("files of a save that ended early are not used: all files are written",
               {{"folder", target.folder}, {"error", kept}});
  }
  SHARDMESH_RETURN_IF_ERROR(save->CheckTarget(overwrite));
  // Publish removes what a save that died while it published has left beside the staging folder.
  const absl::StatusOr<FileDescriptor> present = save->OpenTarget();
  *took_over = HasEntry(save->folder_, kSaveStaging) ||
               (present.ok() && HasEntry(*present, kCheckpointManifest) && !IsComplete(*present));
  if (*took_over) {
    LogWarning(save->has_kept_ ? "files of a save that ended early are continued or removed"
                               : "files of a save that did not end are removed",
               {{"folder", target.folder}});
    // A file that stayed might be a link to one of an earlier checkpoint.
    SHARDMESH_RETURN_IF_ERROR(save->RemoveStaging());
  }
  if (mkdirat(save->folder_.get(), std::string(kSaveStaging).c_str(), kFolderMode) != 0 &&
      !(save->has_kept_ && errno == EEXIST)) {
    return FileError("create the folder", StrCat(target.folder, "/", kSaveStaging), errno);
  }
  SHARDMESH_ASSIGN_OR_RETURN(save->staging_,
                             OpenBeneath(save->folder_, target.folder, std::string(kSaveStaging),
                                         O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  SHARDMESH_RETURN_IF_ERROR(save->WriteText(std::string(kProbe), 0, probe));
  SHARDMESH_RETURN_IF_ERROR(save->Sync());
  return save;
}

absl::Status SaveFolder::KeepLeftovers() {
  if (target_.min_kept_bytes <= 0) return absl::OkStatus();
  const std::string path = TargetPath();
  const std::string name(kSaveStaging);
  const absl::StatusOr<FileDescriptor> target = OpenTarget();
  // A save that died while it published has moved some files, the manifest first.
  std::optional<std::vector<ManifestFile>> moved;
  if (target.ok() && !IsComplete(*target)) {
    SHARDMESH_ASSIGN_OR_RETURN(moved, ReadManifest(*target, path));
  }
  const int64_t in_place_bytes = moved.has_value() ? kept::TakeableBytes(*moved, *target) : 0;
  has_kept_ = in_place_bytes >= target_.min_kept_bytes;
  const absl::StatusOr<FileDescriptor> staging =
      OpenBeneath(folder_, target_.folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (absl::IsNotFound(staging.status())) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(staging.status());
  // A manifest that cannot be read only means that its files are written.
  absl::StatusOr<std::optional<std::vector<ManifestFile>>> own =
      ReadManifest(*staging, target_.folder);
  if (own.ok() && !own->has_value()) *own = moved;
  if (own.ok() && own->has_value()) {
    SHARDMESH_RETURN_IF_ERROR(kept::Take(**own, *staging, target_.folder, *staging));
  }
  // A save that died before it exchanged folders.
  const std::string next_path = StrCat(target_.folder, "/", name, "/", kNext);
  const absl::StatusOr<FileDescriptor> next = OpenBeneath(
      *staging, target_.folder, std::string(kNext), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (next.ok()) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::optional<std::vector<ManifestFile>> in_next,
                               ReadManifest(*next, next_path));
    if (in_next.has_value()) {
      SHARDMESH_RETURN_IF_ERROR(kept::Take(*in_next, *staging, target_.folder, *staging));
      SHARDMESH_RETURN_IF_ERROR(kept::Take(*in_next, *next, next_path, *staging));
    }
  }
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t kept_bytes, kept::SizeBytes(*staging, target_.folder));
  has_kept_ = in_place_bytes + kept_bytes >= target_.min_kept_bytes;
  return SyncDescriptor(*staging, target_.folder);
}

absl::Status SaveFolder::TakeFromTarget(const std::set<std::string, std::less<>>& keys) {
  const std::string path = TargetPath();
  const absl::StatusOr<FileDescriptor> target = OpenTarget();
  if (!target.ok() || IsComplete(*target)) return absl::OkStatus();
  SHARDMESH_ASSIGN_OR_RETURN(std::optional<std::vector<ManifestFile>> files,
                             ReadManifest(*target, path));
  if (!files.has_value()) return absl::OkStatus();
  std::erase_if(*files,
                [&keys](const ManifestFile& file) { return !keys.contains(file.content_key); });
  taken_ = *std::move(files);  // also if an error leaves some where they are
  SHARDMESH_RETURN_IF_ERROR(kept::Take(taken_, *target, path, staging_));
  return SyncDescriptor(staging_, target_.folder);
}

void SaveFolder::GiveBackToTarget() {
  if (taken_.empty()) return;
  const std::string path = TargetPath();
  const absl::StatusOr<FileDescriptor> target = OpenTarget();
  for (const ManifestFile& file : std::exchange(taken_, {})) {
    struct stat about = {};
    if (target.ok() &&
        fstatat(target->get(), file.name.c_str(), &about, AT_SYMLINK_NOFOLLOW) == 0) {
      continue;  // it was not taken
    }
    const absl::Status back =
        target.ok() ? kept::GiveBack(file, *target, path, staging_) : target.status();
    if (!back.ok()) {
      LogWarning("a file of an incomplete checkpoint stays in the staging folder",
                 {{"file", file.name}, {"folder", path}, {"error", back}});
    }
  }
}

absl::StatusOr<std::unique_ptr<SaveFolder>> SaveFolder::Join(const WriteRoots& roots,
                                                             const SaveTarget& target,
                                                             std::string_view probe) {
  auto save = std::unique_ptr<SaveFolder>(new SaveFolder(target));
  SHARDMESH_ASSIGN_OR_RETURN(RootedFolder opened,
                             roots.OpenFolder(target.folder, /*create=*/false));
  save->folder_ = std::move(opened.descriptor);
  SHARDMESH_ASSIGN_OR_RETURN(save->staging_,
                             OpenBeneath(save->folder_, target.folder, std::string(kSaveStaging),
                                         O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  save->probe_ = std::string(probe);
  SHARDMESH_ASSIGN_OR_RETURN(const bool has_probe, save->HasProbe());
  if (!has_probe) return absl::NotFoundError(StrCat(target.folder, " is another folder there"));
  if (faccessat(save->staging_.get(), ".", W_OK | X_OK, AT_EACCESS) != 0) {
    return FileError("write into", target.folder, errno);
  }
  return save;
}

absl::StatusOr<bool> SaveFolder::HasProbe() const {
  SHARDMESH_ASSIGN_OR_RETURN(const FileDescriptor file,
                             OpenRegular(staging_, target_.folder, std::string(kProbe), O_RDONLY));
  std::string found(probe_.size() + 1, '\0');
  const ssize_t count = pread(file.get(), found.data(), found.size(), 0);
  if (count < 0) return FileError("read", target_.folder, errno);
  return std::string_view(found.data(), static_cast<size_t>(count)) == probe_;
}

absl::Status SaveFolder::CheckLock() const {
  const absl::StatusOr<FileDescriptor> opened =
      OpenRegular(folder_, target_.folder, std::string(kSaveLock), O_RDONLY);
  if (absl::IsNotFound(opened.status())) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(opened.status());
  SHARDMESH_ASSIGN_OR_RETURN(const FileLock lock,
                             TakeSharedLock(StrCat("/proc/self/fd/", opened->get())));
  return lock.held.valid() ? absl::OkStatus() : IsBusy(target_.folder, lock.holder);
}

absl::Status SaveFolder::ValidateTarget(bool overwrite, absl::Span<const FileToSave> files) const {
  SHARDMESH_RETURN_IF_ERROR(CheckTarget(overwrite));
  const std::string path = TargetPath();
  // A checkpoint that a dead save was replacing is put back by the next save.
  const absl::StatusOr<FileDescriptor> aside =
      OpenBeneath(folder_, target_.folder, StrCat(kSaveStaging, "/", AsideName()),
                  O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!overwrite && aside.ok() && HasEntry(*aside, kCheckpointMarker)) {
    return IsOccupied(path, target_.step.has_value());
  }
  const absl::StatusOr<FileDescriptor> target = OpenTarget();
  if (absl::IsNotFound(target.status())) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(target.status());
  if (faccessat(target->get(), ".", W_OK | X_OK, AT_EACCESS) != 0) {
    return FileError("write into", path, errno);
  }
  std::vector<std::string> names = {std::string(kCheckpointManifest),
                                    std::string(kCheckpointMarker)};
  for (const FileToSave& file : files) names.push_back(file.name);
  return CheckNames(*target, names);
}

int64_t SaveFolder::LeftoverBytes() const {
  const absl::StatusOr<FileDescriptor> staging = OpenBeneath(
      folder_, target_.folder, std::string(kSaveStaging), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!staging.ok()) return 0;
  constexpr int64_t kBlockBytes = 512;  // of st_blocks
  int64_t size_bytes = 0;
  for (const std::string& name :
       ListFolder(*staging, target_.folder).value_or(std::vector<std::string>())) {
    struct stat about = {};
    if (fstatat(staging->get(), name.c_str(), &about, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(about.st_mode) && about.st_nlink == 1) {
      size_bytes += static_cast<int64_t>(about.st_blocks) * kBlockBytes;
    }
  }
  return size_bytes;
}

absl::StatusOr<FolderFacts> SaveFolder::Validate(const WriteRoots& roots, const SaveTarget& target,
                                                 bool overwrite, absl::Span<const FileToSave> files,
                                                 int64_t needed_bytes) {
  SaveFolder save(target);
  SHARDMESH_ASSIGN_OR_RETURN(RootedFolder nearest, roots.OpenNearest(target.folder));
  save.folder_ = std::move(nearest.descriptor);
  struct stat about = {};
  if (fstat(save.folder_.get(), &about) != 0) return FileError("examine", target.folder, errno);
  FolderFacts facts{.is_there = nearest.new_levels == 0, .inode = about.st_ino};
  if (faccessat(save.folder_.get(), ".", W_OK | X_OK, AT_EACCESS) != 0) {
    return facts.is_there ? FileError("open", StrCat(target.folder, "/", kSaveLock), errno)
                          : FileError("create the folder", target.folder, errno);
  }
  std::optional<int64_t> free_bytes = FreeBytes(save.folder_);
  VerifiedLinks base;
  if (facts.is_there) {
    SHARDMESH_RETURN_IF_ERROR(save.CheckLock());
    SHARDMESH_RETURN_IF_ERROR(save.ValidateTarget(overwrite, files));
    SHARDMESH_ASSIGN_OR_RETURN(base, save.OpenBase());
    if (free_bytes.has_value()) *free_bytes += save.LeftoverBytes();
  }
  for (const FileToSave& file : files) {
    if (base.Find(file.content_key, file.size_bytes) == nullptr) {
      facts.need_bytes += file.size_bytes;
    }
  }
  const int64_t need_bytes = needed_bytes + facts.need_bytes;
  if (free_bytes.value_or(need_bytes) < need_bytes) {
    return NoSpace(target.folder, free_bytes, need_bytes);
  }
  return facts;
}

absl::StatusOr<const FileDescriptor*> SaveFolder::Open(const std::string& name) {
  for (auto file = files_.begin(); file != files_.end(); ++file) {
    if (file->first != name) continue;
    files_.splice(files_.begin(), files_, file);
    return &files_.front().second;
  }
  if (files_.size() >= kMaxOpenFiles) {
    const auto& [last_name, last] = files_.back();
    if (SHARDMESH_FAILS("save.sync") || fdatasync(last.get()) != 0) {
      return FileError("sync", StrCat(target_.folder, "/", last_name), errno);
    }
    files_.pop_back();
  }
  SHARDMESH_ASSIGN_OR_RETURN(FileDescriptor file, OpenRegular(staging_, target_.folder, name,
                                                              O_RDWR | (is_leader_ ? O_CREAT : 0),
                                                              is_leader_ ? kFileMode : 0));
  struct stat about = {};
  if (fstat(file.get(), &about) != 0) {
    return FileError("examine", StrCat(target_.folder, "/", kSaveStaging, "/", name), errno);
  }
  // Its other name may be that of a file of an earlier checkpoint.
  if (about.st_nlink > 1) {
    return IsForeign(StrCat(target_.folder, "/", kSaveStaging), name);
  }
  // The file that has taken the place of a link. Some file systems, such as NFS, show the link to
  // other hosts for some time longer.
  if (links_.contains(about.st_ino)) return StillLink(StrCat(target_.folder, "/", name));
  files_.emplace_front(name, std::move(file));
  return &files_.front().second;
}

absl::StatusOr<InputFile> SaveFolder::OpenLink(const std::string& name) {
  const std::string path = StrCat(target_.folder, "/", kSaveStaging);
  SHARDMESH_ASSIGN_OR_RETURN(InputFile file, OpenToRead(staging_, path, name));
  struct stat about = {};
  if (fstat(file.descriptor.get(), &about) != 0) {
    return FileError("examine", StrCat(path, "/", name), errno);
  }
  links_.insert(about.st_ino);
  return file;
}

absl::Status SaveFolder::Sync() {
  for (const auto& [name, file] : files_) {
    if (SHARDMESH_FAILS("save.sync") || fdatasync(file.get()) != 0) {
      return FileError("sync", StrCat(target_.folder, "/", name), errno);
    }
  }
  files_.clear();
  return absl::OkStatus();
}

absl::Status SaveFolder::WriteText(const std::string& name, int64_t offset_bytes,
                                   std::string_view text) {
  if (!IsCheckpointFileName(name)) {
    return InvalidArgument(Reason::kBadField, StrCat("\"", name, "\" is not the name of a file"),
                           {{fact::kField, "text.name"}, {fact::kValue, name}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(const FileDescriptor* const file, Open(name));
  while (!text.empty()) {
    const ssize_t count = pwrite(file->get(), text.data(), text.size(), offset_bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError("write", StrCat(target_.folder, "/", name), errno);
    text.remove_prefix(static_cast<size_t>(count));
    offset_bytes += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> SaveFolder::CompleteSteps() const {
  std::vector<int64_t> steps;
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                             ListFolder(folder_, target_.folder));
  for (const std::string& name : names) {
    const std::optional<int64_t> step = StepOfFolder(name);
    if (!step.has_value()) continue;
    const absl::StatusOr<FileDescriptor> folder =
        OpenBeneath(folder_, target_.folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (folder.ok() && IsComplete(*folder)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

absl::Status SaveFolder::CheckNames(const FileDescriptor& target,
                                    absl::Span<const std::string> names) const {
  const std::string path = TargetPath();
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<std::vector<ManifestFile>> listed,
                             ReadManifest(target, path));
  std::set<std::string, std::less<>> own;
  if (listed.has_value()) {
    const std::vector<std::string> of_checkpoint = NamesOf(*listed);
    own.insert(of_checkpoint.begin(), of_checkpoint.end());
  }
  for (const std::string& name : names) {
    if (!own.contains(name) && HasEntry(target, name)) return IsForeign(path, name);
  }
  return absl::OkStatus();
}

absl::StatusOr<VerifiedLinks> SaveFolder::OpenBase() const {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, CompleteSteps());
  const bool is_step = target_.step.has_value() && !steps.empty();
  const std::string step_name = is_step ? StepFolderName(steps.back()) : "";
  absl::StatusOr<FileDescriptor> opened =
      is_step ? OpenBeneath(folder_, target_.folder, step_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW)
              : OpenTarget();
  if (!opened.ok() || !IsComplete(*opened)) return VerifiedLinks();
  return VerifiedLinks(*std::move(opened),
                       is_step ? StrCat(target_.folder, "/", step_name) : TargetPath());
}

absl::StatusOr<std::vector<ManifestFile>> SaveFolder::EarlierFiles(const WriteRoots& roots,
                                                                   const SaveTarget& target) {
  SaveFolder save(target);
  SHARDMESH_ASSIGN_OR_RETURN(RootedFolder nearest, roots.OpenNearest(target.folder));
  std::vector<ManifestFile> files;
  if (nearest.new_levels > 0) return files;
  save.folder_ = std::move(nearest.descriptor);
  SHARDMESH_ASSIGN_OR_RETURN(const VerifiedLinks base, save.OpenBase());
  for (const auto& [name, file] : base.files()) files.push_back(file);
  return files;
}

absl::StatusOr<std::vector<uint32_t>> SaveFolder::MakeFiles(
    absl::Span<const FileToSave> files, const std::function<absl::Status()>& keep_going,
    std::vector<FoundTiles>* found, std::vector<FilePieces>* pieces, std::vector<uint32_t>* alike) {
  absl::StatusOr<std::vector<uint32_t>> linked =
      LinkAndReserve(files, keep_going, found, pieces, alike);
  if (linked.ok()) {
    has_made_ = true;
    return linked;
  }
  // The next save may have room for them.
  for (const auto& [name, content_key] : std::exchange(reused_, {})) {
    if (const absl::Status back = kept::PutBack(staging_, target_.folder, name, content_key);
        !back.ok()) {
      LogWarning("a file of a save that ended early is lost",
                 {{"file", name}, {"folder", target_.folder}, {"error", back}});
    }
  }
  GiveBackToTarget();
  return linked;
}

absl::StatusOr<std::map<std::string, ManifestFile>> SaveFolder::ReadOwnManifest(bool is_wanted) {
  std::map<std::string, ManifestFile> by_name;
  if (!has_kept_ && !is_wanted) return by_name;
  if (has_kept_) {
    // On the disk before a file has a name by which this manifest says what the file has.
    SHARDMESH_RETURN_IF_ERROR(Sync());
    SHARDMESH_RETURN_IF_ERROR(SyncDescriptor(staging_, target_.folder));
  }
  SHARDMESH_ASSIGN_OR_RETURN(std::optional<std::vector<ManifestFile>> manifest,
                             ReadManifest(staging_, target_.folder));
  std::set<std::string, std::less<>> keys;
  if (manifest.has_value()) {
    for (ManifestFile& file : *manifest) {
      keys.insert(file.content_key);
      by_name.emplace(file.name, std::move(file));
    }
  }
  if (!has_kept_) return by_name;
  SHARDMESH_RETURN_IF_ERROR(TakeFromTarget(keys));
  // Frees their bytes for the files of this save.
  SHARDMESH_RETURN_IF_ERROR(kept::RemoveOthers(staging_, target_.folder, keys));
  return by_name;
}

absl::StatusOr<std::vector<uint32_t>> SaveFolder::LinkAndReserve(
    absl::Span<const FileToSave> files, const std::function<absl::Status()>& keep_going,
    std::vector<FoundTiles>* found, std::vector<FilePieces>* pieces, std::vector<uint32_t>* alike) {
  const auto add_pieces = [pieces](size_t file, std::vector<uint32_t> piece_crc32c) {
    if (pieces == nullptr) return;
    pieces->push_back(
        {.file = static_cast<uint32_t>(file), .piece_crc32c = std::move(piece_crc32c)});
  };
  // The checkpoint to which files may be linked: the newest step, or the one to be replaced.
  SHARDMESH_ASSIGN_OR_RETURN(const VerifiedLinks base, OpenBase());
  if (const absl::StatusOr<FileDescriptor> target = OpenTarget(); target.ok()) {
    std::vector<std::string> names;
    for (const FileToSave& file : files) names.push_back(file.name);
    // Before anything is written; Publish checks again.
    SHARDMESH_RETURN_IF_ERROR(CheckNames(*target, names));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto own,
                             ReadOwnManifest(/*is_wanted=*/alike != nullptr && !base.empty()));
  std::vector<uint32_t> linked;
  std::vector<bool> is_link(files.size());
  int64_t total_bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const FileToSave& file = files[i];
    if (!IsCheckpointFileName(file.name) || file.size_bytes < 0) {
      return InvalidArgument(Reason::kBadField,
                             StrCat("\"", file.name, "\" is not the name of a file"),
                             {{fact::kField, "make.files"}, {fact::kValue, file.name}});
    }
    const std::string* const same = base.Find(file.content_key, file.size_bytes);
    if (same != nullptr) {
      // A link that fails is no error: the workers then write the file.
      std::vector<uint32_t> piece_crc32c;
      SHARDMESH_ASSIGN_OR_RETURN(const bool is_linked,
                                 base.Link(*same, staging_, file.name, keep_going, &piece_crc32c));
      if (is_linked) {
        add_pieces(i, std::move(piece_crc32c));
        linked.push_back(static_cast<uint32_t>(i));
        is_link[i] = true;
        continue;
      }
    }
    const auto listed = own.find(file.name);
    const bool is_listed = listed != own.end() && listed->second.content_key == file.content_key &&
                           listed->second.size_bytes == file.size_bytes;
    if (found != nullptr && has_kept_ && is_listed) {
      std::vector<uint32_t> piece_crc32c;
      SHARDMESH_ASSIGN_OR_RETURN(
          std::vector<bool> intact,
          kept::Reuse(staging_, target_.folder, listed->second, keep_going, &piece_crc32c));
      if (!intact.empty()) {
        add_pieces(i, std::move(piece_crc32c));
        reused_.emplace_back(file.name, file.content_key);
        found->push_back({.file = static_cast<uint32_t>(i), .is_intact = std::move(intact)});
        continue;  // its bytes are reserved, or it has holes
      }
    }
    // A file of the same key that could not be linked is damaged.
    if (alike != nullptr && same == nullptr && is_listed && !file.header_sha256.empty()) {
      const std::string* const from = base.FindAlike(listed->second);
      if (from != nullptr && base.LinkAlike(*from, file.header_sha256, staging_, file.name)) {
        alike->push_back(static_cast<uint32_t>(i));
        is_link[i] = true;
        continue;
      }
    }
    total_bytes += file.size_bytes;
  }
  const std::optional<int64_t> free_bytes =
      FreeBytes(staging_);  // before the files take their bytes
  for (size_t i = 0; i < files.size(); ++i) {
    if (!is_link[i]) SHARDMESH_RETURN_IF_ERROR(Reserve(files[i], free_bytes, total_bytes));
  }
  return linked;
}

absl::Status SaveFolder::Reserve(const FileToSave& file, std::optional<int64_t> free_bytes,
                                 int64_t total_bytes) {
  SHARDMESH_ASSIGN_OR_RETURN(const FileDescriptor* const made, Open(file.name));
  if (file.size_bytes == 0) return absl::OkStatus();
  made_bytes_ += file.size_bytes;
  int error = 0;
  do {
    error = SHARDMESH_FAILS("save.reserve") || fallocate(made->get(), 0, 0, file.size_bytes) != 0
                ? errno
                : 0;
  } while (error == EINTR);
  if (error == EOPNOTSUPP) {  // such as NFS 3: compare with the free space instead
    if (free_bytes.value_or(total_bytes) < total_bytes) {
      return NoSpace(target_.folder, free_bytes, total_bytes);
    }
    error = ftruncate(made->get(), file.size_bytes) != 0 ? errno : 0;
  }
  if (error == ENOSPC || error == EDQUOT) return NoSpace(target_.folder, free_bytes, total_bytes);
  if (error != 0) {
    return FileError("reserve the bytes of", StrCat(target_.folder, "/", file.name), error);
  }
  return absl::OkStatus();
}

absl::Status SaveFolder::ReplaceLinks(absl::Span<const FileToSave> files) {
  int64_t total_bytes = 0;
  for (const FileToSave& file : files) {
    if (!IsCheckpointFileName(file.name) || file.size_bytes < 0) {
      return InvalidArgument(Reason::kBadField,
                             StrCat("\"", file.name, "\" is not the name of a file"),
                             {{fact::kField, "replace.files"}, {fact::kValue, file.name}});
    }
    total_bytes += file.size_bytes;
  }
  const std::optional<int64_t> free_bytes = FreeBytes(staging_);
  for (const FileToSave& file : files) {
    SHARDMESH_RETURN_IF_ERROR(
        Unlink(staging_, StrCat(target_.folder, "/", kSaveStaging), file.name));
    SHARDMESH_RETURN_IF_ERROR(Reserve(file, free_bytes, total_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> SaveFolder::Publish(absl::Span<const std::string> files,
                                                         std::string_view marker, int keep,
                                                         std::vector<int64_t>* kept) {
  // All that can fail is done before the checkpoint that is replaced leaves its place.
  SHARDMESH_RETURN_IF_ERROR(WriteText(std::string(kCheckpointMarker), 0, marker));
  SHARDMESH_RETURN_IF_ERROR(Sync());
  SHARDMESH_RETURN_IF_ERROR(SyncDescriptor(staging_, target_.folder));
  SHARDMESH_ASSIGN_OR_RETURN(const FileDescriptor target, MakeTarget());
  std::vector<std::string> names(files.begin(), files.end());
  names.emplace_back(kCheckpointMarker);
  absl::Status moved = CheckNames(target, names);
  std::vector<std::string> moved_names;
  bool is_exchanged = false;
  if (moved.ok()) {
    const absl::StatusOr<bool> exchanged = Exchange(target, names);
    moved = exchanged.status();
    is_exchanged = exchanged.ok() && *exchanged;
  }
  if (is_exchanged) return EndPublish(keep, kept);
  if (moved.ok()) moved = SetAside(target);
  if (moved.ok()) moved = MoveIn(target, names, &moved_names);
  if (!moved.ok()) {
    TakeBack(target, moved_names);
    return moved;
  }
  return EndPublish(keep, kept);
}

std::vector<int64_t> SaveFolder::EndPublish(int keep, std::vector<int64_t>* kept) {
  is_published_ = true;
  has_kept_ = false;
  RemoveAside();
  TryRemoveStaging();
  std::vector<int64_t> removed;
  // The checkpoint is complete: an error here only leaves more than was asked for.
  if (const absl::Status collected = Collect(keep, &removed); !collected.ok()) {
    LogWarning("old checkpoints were not removed",
               {{"folder", target_.folder}, {"error", collected}});
  }
  if (kept == nullptr || !target_.step.has_value()) return removed;
  if (absl::StatusOr<std::vector<int64_t>> steps = CompleteSteps(); steps.ok()) {
    *kept = *std::move(steps);
    if (kept->size() > kMostKeptSteps) {
      kept->erase(kept->begin(), kept->end() - static_cast<std::ptrdiff_t>(kMostKeptSteps));
    }
  } else {
    LogWarning("the complete steps of a folder cannot be listed",
               {{"folder", target_.folder}, {"error", steps.status()}});
  }
  return removed;
}

absl::StatusOr<bool> SaveFolder::IsOnlyCheckpoint(const FileDescriptor& target) const {
  const std::string path = TargetPath();
  if (!target_.step.has_value() || !IsComplete(target)) return false;
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<std::vector<ManifestFile>> files,
                             ReadManifest(target, path));
  if (!files.has_value()) return false;
  const std::vector<std::string> own = NamesOf(*files);
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(target, path));
  return std::all_of(names.begin(), names.end(), [&own](const std::string& name) {
    return std::find(own.begin(), own.end(), name) != own.end();
  });
}

absl::StatusOr<bool> SaveFolder::Exchange(const FileDescriptor& target,
                                          absl::Span<const std::string> names) {
  SHARDMESH_ASSIGN_OR_RETURN(const bool is_only, IsOnlyCheckpoint(target));
  struct stat about = {};
  if (!is_only || fstat(target.get(), &about) != 0) return false;
  const std::string name(kNext);
  const std::string path = StrCat(target_.folder, "/", kSaveStaging, "/", name);
  if (mkdirat(staging_.get(), name.c_str(), kFolderMode) != 0) {
    return FileError("create the folder", path, errno);
  }
  SHARDMESH_ASSIGN_OR_RETURN(
      const FileDescriptor next,
      OpenBeneath(staging_, target_.folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  // Readers of the old folder can read the new one. Owner and access lists are not copied.
  static_cast<void>(fchmod(next.get(), about.st_mode & 07777));
  std::vector<std::string> moved_names;
  absl::Status moved;
  for (const std::string& each : names) {
    const int error = !IsCheckpointFileName(each)    ? EINVAL
                      : SHARDMESH_FAILS("save.move") ? errno
                                                     : MoveNew(staging_, each, next);
    if (error != 0) {
      moved = FileError("move", StrCat(path, "/", each), error);
      break;
    }
    moved_names.push_back(each);
  }
  if (moved.ok()) moved = SyncDescriptor(next, path);
  if (moved.ok()) moved = SyncDescriptor(staging_, target_.folder);
  int error = EINVAL;
  if (moved.ok() && !SHARDMESH_FAILS("save.exchange")) {
    const std::string step_name = StepFolderName(*target_.step);
    error = renameat2(staging_.get(), name.c_str(), folder_.get(), step_name.c_str(),
                      RENAME_EXCHANGE) == 0
                ? 0
                : errno;
  }
  if (moved.ok() && error == 0) {
    // Readers see the new checkpoint already, so that an error is not undone.
    if (const absl::Status synced = SyncDescriptor(folder_, target_.folder); !synced.ok()) {
      LogWarning("a checkpoint that took the place of another may be lost in a crash of the host",
                 {{"folder", TargetPath()}, {"error", synced}});
    }
    return true;
  }
  // File systems that cannot exchange, mount points: the files go back, for the other way.
  for (const std::string& each : moved_names) {
    if (const int back = MoveNew(next, each, staging_); back != 0) {
      moved.Update(FileError("move", StrCat(path, "/", each), back));
    }
  }
  moved.Update(RemoveNext(staging_, target_.folder));
  SHARDMESH_RETURN_IF_ERROR(moved);
  return false;
}

std::string SaveFolder::AsideName() const {
  return target_.step.has_value() ? StrCat(kSaveAside, "-", StepFolderName(*target_.step))
                                  : std::string(kSaveAside);
}

absl::Status SaveFolder::SetAside(const FileDescriptor& target) {
  const std::string path = TargetPath();
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<std::vector<ManifestFile>> files,
                             ReadManifest(target, path));
  if (!files.has_value()) return absl::OkStatus();
  if (!IsComplete(target)) return RemoveCheckpoint(target, path);
  const std::string aside_name = AsideName();
  const std::string aside_path = StrCat(target_.folder, "/", kSaveStaging, "/", aside_name);
  if (mkdirat(staging_.get(), aside_name.c_str(), kFolderMode) != 0) {
    return FileError("create the folder", aside_path, errno);
  }
  SHARDMESH_ASSIGN_OR_RETURN(
      const FileDescriptor aside,
      OpenBeneath(staging_, target_.folder, aside_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  for (const std::string& name : NamesOf(*files)) {
    const int error = SHARDMESH_FAILS("save.aside") ? errno : MoveNew(target, name, aside);
    if (error != 0 && error != ENOENT) {
      return FileError("set aside", StrCat(path, "/", name), error);
    }
    if (name == kCheckpointMarker) SHARDMESH_RETURN_IF_ERROR(SyncDescriptor(target, path));
  }
  SHARDMESH_RETURN_IF_ERROR(SyncDescriptor(aside, aside_path));
  SHARDMESH_RETURN_IF_ERROR(SyncDescriptor(staging_, target_.folder));
  return SyncDescriptor(target, path);
}

absl::Status SaveFolder::MoveIn(const FileDescriptor& target, absl::Span<const std::string> names,
                                std::vector<std::string>* moved_names) {
  const std::string path = TargetPath();
  for (const std::string& name : names) {
    if (name == kCheckpointMarker) {
      SHARDMESH_RETURN_IF_ERROR(SyncDescriptor(target, path));
      SHARDMESH_FAILPOINT("save.marker");
    }
    const int error = !IsCheckpointFileName(name)    ? EINVAL
                      : SHARDMESH_FAILS("save.move") ? errno
                                                     : MoveNew(staging_, name, target);
    if (error == EEXIST) return IsForeign(path, name);
    if (error != 0) return FileError("move", StrCat(path, "/", name), error);
    moved_names->push_back(name);
  }
  SHARDMESH_RETURN_IF_ERROR(SyncDescriptor(target, path));
  return SyncDescriptor(folder_, target_.folder);
}

void SaveFolder::TakeBack(const FileDescriptor& target, absl::Span<const std::string> moved_names) {
  const std::string path = TargetPath();
  absl::Status taken;
  // The marker, which was moved last, goes first.
  for (size_t i = moved_names.size(); i-- > 0 && taken.ok();) {
    const std::string& name = moved_names[i];
    // The next save may use the files.
    if (target_.min_kept_bytes > 0 && name != kCheckpointMarker &&
        MoveNew(target, name, staging_) == 0) {
      continue;
    }
    taken = Unlink(target, path, name);
  }
  if (taken.ok() && HasEntry(staging_, AsideName())) taken = Restore(AsideName());
  if (!taken.ok()) {
    LogWarning("a save that failed has left files; the next save into the folder removes them",
               {{"folder", path}, {"error", taken}});
  }
  // Fails if there was a folder with other files.
  if (target_.step.has_value()) {
    unlinkat(folder_.get(), StepFolderName(*target_.step).c_str(), AT_REMOVEDIR);
  }
}

absl::Status SaveFolder::RestoreAll() {
  absl::StatusOr<FileDescriptor> staging = OpenBeneath(
      folder_, target_.folder, std::string(kSaveStaging), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (absl::IsNotFound(staging.status())) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(staging.status());
  staging_ = *std::move(staging);
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                             ListFolder(staging_, target_.folder));
  for (const std::string& name : names) {
    if (!name.starts_with(kSaveAside)) continue;
    if (const absl::Status restored = Restore(name); !restored.ok()) {
      return WithContext(
          restored, StrCat("a checkpoint that a lost save was replacing is in ", target_.folder,
                           "/", kSaveStaging, "/", name, " and cannot be put back"));
    }
  }
  staging_.Close();
  return absl::OkStatus();
}

absl::Status SaveFolder::KeepMoved(const FileDescriptor& target, std::string_view path) const {
  if (target_.min_kept_bytes <= 0) return absl::OkStatus();
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<std::vector<ManifestFile>> files,
                             ReadManifest(target, path));
  if (!files.has_value()) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(kept::Take(*files, staging_, target_.folder, staging_));
  return kept::Take(*files, target, path, staging_);
}

absl::Status SaveFolder::Restore(const std::string& aside_name) {
  SHARDMESH_ASSIGN_OR_RETURN(
      const FileDescriptor aside,
      OpenBeneath(staging_, target_.folder, aside_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  std::string step_name;
  if (aside_name != kSaveAside) step_name = aside_name.substr(kSaveAside.size() + 1);
  const std::string path = StrCat(target_.folder, step_name.empty() ? "" : "/", step_name);
  if (!step_name.empty() && mkdirat(folder_.get(), step_name.c_str(), kFolderMode) != 0 &&
      errno != EEXIST) {
    return FileError("create the folder", path, errno);
  }
  SHARDMESH_ASSIGN_OR_RETURN(
      const FileDescriptor target,
      OpenBeneath(folder_, target_.folder, step_name.empty() ? "." : step_name,
                  O_RDONLY | O_DIRECTORY | (step_name.empty() ? 0 : O_NOFOLLOW)));
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<std::string> names, ListFolder(aside, path));
  if (!IsComplete(target)) {
    // The manifest is set aside last: if it is aside, that of the target is the new checkpoint's.
    if (HasEntry(aside, kCheckpointManifest)) {
      if (const absl::Status kept = KeepMoved(target, path); !kept.ok()) {
        LogWarning("files of a save that ended early are not used: they are written again",
                   {{"folder", path}, {"error", kept}});
      }
      SHARDMESH_RETURN_IF_ERROR(RemoveCheckpoint(target, path));
    }
    // The manifest and the marker come last.
    const auto rank = [](const std::string& name) {
      return name == kCheckpointMarker ? 2 : name == kCheckpointManifest ? 1 : 0;
    };
    std::stable_sort(names.begin(), names.end(),
                     [&](const std::string& a, const std::string& b) { return rank(a) < rank(b); });
    for (const std::string& name : names) {
      if (name == kCheckpointMarker) SHARDMESH_RETURN_IF_ERROR(SyncDescriptor(target, path));
      const int error = SHARDMESH_FAILS("save.restore") ? errno : MoveNew(aside, name, target);
      if (error != 0) return FileError("put back", StrCat(path, "/", name), error);
    }
    SHARDMESH_RETURN_IF_ERROR(SyncDescriptor(target, path));
    names.clear();
  }
  // The new checkpoint is complete, or all files are back.
  for (const std::string& name : names) SHARDMESH_RETURN_IF_ERROR(Unlink(aside, path, name));
  return Unlink(staging_, target_.folder, aside_name, AT_REMOVEDIR);
}

absl::Status SaveFolder::Collect(int keep, std::vector<int64_t>* removed) {
  if (keep <= 0 || !target_.step.has_value()) return absl::OkStatus();
  SHARDMESH_FAILPOINT("save.collect");
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<int64_t> steps, CompleteSteps());
  std::erase_if(steps, [this](int64_t step) { return step > *target_.step; });
  absl::Status collected;
  for (size_t i = 0; i + static_cast<size_t>(keep) < steps.size(); ++i) {
    const std::string name = StepFolderName(steps[i]);
    const absl::StatusOr<FileDescriptor> folder =
        OpenBeneath(folder_, target_.folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!folder.ok()) {
      collected.Update(folder.status());
      continue;
    }
    collected.Update(RemoveCheckpoint(*folder, StrCat(target_.folder, "/", name)));
    // An error may have left the checkpoint as it was.
    if (!HasEntry(*folder, kCheckpointMarker)) removed->push_back(steps[i]);
    // Fails, and leaves the folder, if somebody has added files.
    unlinkat(folder_.get(), name.c_str(), AT_REMOVEDIR);
  }
  return collected;
}

void SaveFolder::RemoveAside() {
  if (!HasEntry(staging_, AsideName())) return;
  if (const absl::Status removed = Restore(AsideName()); !removed.ok()) {
    LogWarning("the files of a replaced checkpoint were not removed; the next save removes them",
               {{"folder", target_.folder}, {"error", removed}});
  }
}

absl::Status SaveFolder::RemoveStaging() {
  files_.clear();
  const std::string name(kSaveStaging);
  const absl::StatusOr<FileDescriptor> staging =
      OpenBeneath(folder_, target_.folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (absl::IsNotFound(staging.status())) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(staging.status());
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> entries,
                             ListFolder(*staging, target_.folder));
  absl::Status removed;
  bool has_more = false;
  for (const std::string& entry : entries) {
    // Files that are set aside stay until they are put back.
    if (entry.starts_with(kSaveAside)) continue;
    if (entry == kNext) {
      removed.Update(RemoveNext(*staging, target_.folder));
      continue;
    }
    const bool stays = has_kept_ && kept::IsName(entry);
    has_more = has_more || stays;
    if (!stays) {
      removed.Update(Unlink(*staging, StrCat(target_.folder, "/", kSaveStaging), entry));
    }
  }
  SHARDMESH_RETURN_IF_ERROR(removed);
  return has_more ? absl::OkStatus() : Unlink(folder_, target_.folder, name, AT_REMOVEDIR);
}

void SaveFolder::TryRemoveStaging() {
  if (const absl::Status removed = RemoveStaging(); !removed.ok()) {
    LogWarning("the staging folder of a save was not removed; the next save removes it",
               {{"folder", target_.folder}, {"error", removed}});
  }
}

void SaveFolder::Spoil() {
  if (is_published_) return;
  has_kept_ = false;
  if (is_leader_ || HasProbe().value_or(false)) {
    if (const absl::Status removed = Unlink(staging_, target_.folder, kCheckpointManifest);
        !removed.ok()) {
      LogWarning("files of a save whose disk failed may be used by the next save",
                 {{"folder", target_.folder}, {"error", removed}});
    }
    return;
  }
  // The leader has left. If another save has the lock, it has taken the files already.
  if (Lock().ok()) is_leader_ = true;  // Abandon removes the staging folder
}

void SaveFolder::Leave() {
  if (is_leader_ && has_made_ && !is_published_ && target_.min_kept_bytes > 0 &&
      made_bytes_ >= target_.min_kept_bytes && HasEntry(staging_, kCheckpointManifest)) {
    keeps_staging_ = true;
    Unlink(staging_, target_.folder, kProbe).IgnoreError();
  }
  Abandon();
}

void SaveFolder::Abandon() {
  files_.clear();
  if (std::exchange(is_leader_, false)) {
    if (!is_published_ && !keeps_staging_) TryRemoveStaging();
    // Before the lock is released, so that the next holder locks a file that has this name.
    unlinkat(folder_.get(), std::string(kSaveLock).c_str(), 0);
    lock_.Close();
  }
  staging_.Close();
  if (is_published_) return;
  std::filesystem::path folder = std::filesystem::path(target_.folder).lexically_normal();
  if (folder.filename().empty()) folder = folder.parent_path();
  for (; new_levels_ > 0; --new_levels_, folder = folder.parent_path()) {
    rmdir(folder.c_str());  // fails if somebody has added files
  }
}

}  // namespace shardmesh::worker
