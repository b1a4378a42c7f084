// Reads folders with readdir(3), which tells an error from the end by errno only.
#include "process/folders/folder_entries.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "process/failpoint.h"

namespace shardmesh {
namespace {

// Takes `opened`, which is -1 with errno set if the folder could not be opened.
absl::StatusOr<std::vector<std::string>> ReadNames(int opened, std::string_view path) {
  DIR* const listing = opened < 0 ? nullptr : fdopendir(opened);
  if (listing == nullptr) {
    const int error = errno;
    if (opened >= 0) close(opened);
    return FileError("open the folder", path, error);
  }
  std::vector<std::string> names;
  int error = 0;
  for (;;) {
    errno = 0;
    const dirent* const entry = SHARDMESH_FAILS("folder.read")
                                    ? nullptr
                                    : readdir(listing);  // NOLINT(concurrency-mt-unsafe)
    error = errno;
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  closedir(listing);
  if (error != 0) return FileError("list the folder", path, error);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path) {
  return ReadNames(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), path);
}

absl::StatusOr<std::vector<std::string>> ListFolder(const FileDescriptor& folder,
                                                    std::string_view path) {
  return ReadNames(openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), path);
}

}  // namespace shardmesh
