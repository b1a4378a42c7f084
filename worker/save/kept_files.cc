// Trusts no file that is left over: only its content key names it, and only its bytes count.
#include "worker/save/kept_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "process/failpoint.h"
#include "process/folders/folder_entries.h"
#include "process/log.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/save/folder_manifest.h"

namespace shardmesh::worker::kept {
namespace {

constexpr std::string_view kPrefix = ".kept-";
constexpr size_t kMaxKeyBytes = 200;  // so that the name is no longer than names may be

bool IsKey(std::string_view key) { return key.size() <= kMaxKeyBytes && IsCheckpointFileName(key); }

std::string NameOf(std::string_view key) { return StrCat(kPrefix, key); }

absl::Status Rename(const FileDescriptor& from, std::string_view path, const std::string& name,
                    const FileDescriptor& to, const std::string& new_name) {
  if (SHARDMESH_FAILS("save.keep") ||
      renameat(from.get(), name.c_str(), to.get(), new_name.c_str()) != 0) {
    return FileError("rename", StrCat(path, "/", name), errno);
  }
  return absl::OkStatus();
}

absl::Status Remove(const FileDescriptor& staging, std::string_view path, const std::string& name) {
  if (unlinkat(staging.get(), name.c_str(), 0) != 0 && errno != ENOENT) {
    return FileError("remove", StrCat(path, "/", name), errno);
  }
  return absl::OkStatus();
}

// A file with another link may be one of an earlier checkpoint, which nobody may change.
bool IsOwnFile(const struct stat& about, int64_t size_bytes) {
  return S_ISREG(about.st_mode) && about.st_nlink == 1 && about.st_size == size_bytes;
}

bool CanTake(const ManifestFile& file, const FileDescriptor& folder) {
  struct stat about = {};
  return IsKey(file.content_key) && file.has_checksums &&
         fstatat(folder.get(), file.name.c_str(), &about, AT_SYMLINK_NOFOLLOW) == 0 &&
         IsOwnFile(about, file.size_bytes);
}

// Returns the tiles that are intact; none if the file is not as it must be.
std::vector<bool> IntactTilesOf(const FileDescriptor& staging, std::string_view path,
                                const std::string& name, const ManifestFile& listed,
                                const std::function<absl::Status()>& keep_going,
                                std::vector<uint32_t>* piece_crc32c) {
  const absl::StatusOr<InputFile> file = OpenToRead(staging, path, name);
  struct stat about = {};
  absl::Status status = file.status();
  if (status.ok() &&
      (fstat(file->descriptor.get(), &about) != 0 || !IsOwnFile(about, listed.size_bytes))) {
    status = absl::FailedPreconditionError("it is not as the save left it");
  }
  absl::StatusOr<std::vector<bool>> intact =
      status.ok()
          ? FindIntactTiles(*file, StrCat(path, "/", name), listed, keep_going, piece_crc32c)
          : status;
  if (intact.ok()) return *std::move(intact);
  LogWarning("a file of a save that ended early is written anew",
             {{"file", listed.name}, {"error", intact.status()}});
  return {};
}

}  // namespace

bool IsName(std::string_view name) { return name.starts_with(kPrefix); }

absl::Status Take(const std::vector<ManifestFile>& manifest, const FileDescriptor& folder,
                  std::string_view path, const FileDescriptor& staging) {
  for (const ManifestFile& file : manifest) {
    if (!CanTake(file, folder)) continue;
    SHARDMESH_RETURN_IF_ERROR(Rename(folder, path, file.name, staging, NameOf(file.content_key)));
  }
  return absl::OkStatus();
}

int64_t TakeableBytes(const std::vector<ManifestFile>& manifest, const FileDescriptor& folder) {
  int64_t size_bytes = 0;
  for (const ManifestFile& file : manifest) {
    if (CanTake(file, folder)) size_bytes += file.size_bytes;
  }
  return size_bytes;
}

absl::Status GiveBack(const ManifestFile& file, const FileDescriptor& folder, std::string_view path,
                      const FileDescriptor& staging) {
  const std::string kept_name = NameOf(file.content_key);
  struct stat about = {};
  if (fstatat(staging.get(), kept_name.c_str(), &about, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno == ENOENT ? absl::OkStatus() : FileError("examine", kept_name, errno);
  }
  return Rename(staging, path, kept_name, folder, file.name);
}

absl::StatusOr<int64_t> SizeBytes(const FileDescriptor& staging, std::string_view path) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(staging, path));
  int64_t size_bytes = 0;
  for (const std::string& name : names) {
    struct stat about = {};
    if (IsName(name) && fstatat(staging.get(), name.c_str(), &about, AT_SYMLINK_NOFOLLOW) == 0) {
      size_bytes += about.st_size;
    }
  }
  return size_bytes;
}

absl::Status RemoveOthers(const FileDescriptor& staging, std::string_view path,
                          const std::set<std::string, std::less<>>& keys) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(staging, path));
  for (const std::string& name : names) {
    if (!IsName(name) || keys.contains(std::string_view(name).substr(kPrefix.size()))) continue;
    SHARDMESH_RETURN_IF_ERROR(Remove(staging, path, name));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<bool>> Reuse(const FileDescriptor& staging, std::string_view path,
                                        const ManifestFile& listed,
                                        const std::function<absl::Status()>& keep_going,
                                        std::vector<uint32_t>* piece_crc32c) {
  const std::string name = NameOf(listed.content_key);
  struct stat about = {};
  if (!IsKey(listed.content_key) ||
      fstatat(staging.get(), name.c_str(), &about, AT_SYMLINK_NOFOLLOW) != 0) {
    return std::vector<bool>();
  }
  absl::Status stopped;
  const auto still_wanted = [&]() -> absl::Status {
    if (keep_going) stopped = keep_going();
    return stopped;
  };
  std::vector<bool> intact = IntactTilesOf(staging, path, name, listed, still_wanted, piece_crc32c);
  SHARDMESH_RETURN_IF_ERROR(stopped);
  if (std::find(intact.begin(), intact.end(), true) == intact.end()) {
    SHARDMESH_RETURN_IF_ERROR(Remove(staging, path, name));
    return std::vector<bool>();
  }
  SHARDMESH_RETURN_IF_ERROR(Rename(staging, path, name, staging, listed.name));
  return intact;
}

absl::Status PutBack(const FileDescriptor& staging, std::string_view path, const std::string& name,
                     const std::string& content_key) {
  return Rename(staging, path, name, staging, NameOf(content_key));
}

}  // namespace shardmesh::worker::kept
