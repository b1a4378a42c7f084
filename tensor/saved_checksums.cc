// Reads through descriptors and not through the mapping, so that a file that is cut meanwhile is an
// error and no fault.
#include "tensor/saved_checksums.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "process/file.h"
#include "process/thread_pool.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/checkpoint_manifest.h"
#include "tensor/source_file.h"

namespace shardmesh {
namespace {

// One thread checks about 3 GB/s, and the disk serves all of them.
constexpr int kMaxThreads = 4;

absl::StatusOr<std::vector<ManifestFile>> ReadFilesOf(const std::string& folder) {
  const std::string path = StrCat(folder, "/", kCheckpointManifest);
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path));
  std::string text(static_cast<size_t>(file.size_bytes), '\0');
  SHARDMESH_RETURN_IF_ERROR(ReadExactly(file, path, 0, absl::MakeSpan(text)));
  return ParseManifest(path, text);
}

absl::Status CheckFile(const SafetensorsFile& opened, const ManifestFile& listed,
                       const std::function<absl::Status()>& keep_going) {
  const std::string& path = opened.path();
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path));
  struct stat about = {};
  if (fstat(file.descriptor.get(), &about) != 0) return FileError("examine", path, errno);
  // A save may have replaced the file: the manifest and this file need not be those of the mapping.
  if (about.st_ino != opened.state().inode) {
    return FileChanged(path, "number", StrCat(about.st_ino), StrCat(opened.state().inode));
  }
  return CheckChecksums(file, path, listed, keep_going);
}

}  // namespace

absl::Status CheckSavedChecksums(const Checkpoint& checkpoint) {
  std::error_code ignored;
  std::filesystem::path folder = checkpoint.path();
  if (!std::filesystem::is_directory(folder, ignored)) folder = folder.parent_path();
  if (folder.empty()) folder = ".";
  if (!std::filesystem::exists(folder / kCheckpointMarker, ignored) ||
      !CheckCheckpointComplete(folder.string()).ok()) {
    return absl::OkStatus();
  }
  std::set<const SafetensorsFile*> opened;
  for (const Checkpoint::Entry& entry : checkpoint.tensors()) opened.insert(entry.file);
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<ManifestFile> files, ReadFilesOf(folder.string()));
  absl::Mutex mutex;
  absl::Status checked;  // guarded by mutex
  const auto keep_going = [&]() -> absl::Status {
    absl::MutexLock lock(&mutex);
    return checked;
  };
  {
    ThreadPool pool(std::clamp(static_cast<int>(opened.size()), 1, kMaxThreads));
    for (const SafetensorsFile* const each : opened) {
      const std::string name = std::filesystem::path(each->path()).filename().string();
      const auto listed = std::find_if(files.begin(), files.end(),
                                       [&name](const ManifestFile& f) { return f.name == name; });
      if (listed == files.end() || !listed->has_checksums) continue;
      pool.Push([&, each, listed = &*listed] {
        const absl::Status status = CheckFile(*each, *listed, keep_going);
        absl::MutexLock lock(&mutex);
        // The first error; the others are only stopped by it.
        if (checked.ok()) checked = status;
      });
    }
  }
  absl::MutexLock lock(&mutex);
  return checked;
}

}  // namespace shardmesh
