// Reads through descriptors and not through the mapping, so that a file that is cut meanwhile is an
// error and no fault.
#include "tensor/saved_checksums.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
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

namespace shardmesh {
namespace {

// One thread checks about 3 GB/s, and the disk serves all of them.
constexpr size_t kMaxThreads = 4;

absl::StatusOr<std::vector<ManifestFile>> ReadFilesOf(const std::string& folder) {
  const std::string path = StrCat(folder, "/", kCheckpointManifest);
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path));
  std::string text(static_cast<size_t>(file.size_bytes), '\0');
  SHARDMESH_RETURN_IF_ERROR(ReadExactly(file, path, 0, absl::MakeSpan(text)));
  return ParseManifest(path, text);
}

// A file, and the ranges of its bytes that are compared.
struct OpenedFile {
  std::shared_ptr<const SourceFile> file;
  std::map<int64_t, int64_t> ranges;  // their ends by their begins; they may overlap
  int64_t longest_bytes = 0;          // of these

  void Add(int64_t begin, int64_t size_bytes) {
    int64_t& end = ranges[begin];
    end = std::max(end, begin + size_bytes);
    longest_bytes = std::max(longest_bytes, size_bytes);
  }
  bool HasPartOf(const ManifestTensor& tensor) const {
    for (auto range = ranges.upper_bound(tensor.offset_bytes - longest_bytes);
         range != ranges.end() && range->first < tensor.offset_bytes + tensor.size_bytes; ++range) {
      if (range->second > tensor.offset_bytes) return true;
    }
    return false;
  }
};

absl::Status IsGone(const SourceFile& file) {
  return FileChanged(file.path, "number", "none, for the file is gone", StrCat(file.inode));
}

// The error for a file whose path leads to another file or to none.
absl::Status IsReplaced(const SourceFile& file) {
  struct stat about = {};
  if (stat(file.path.c_str(), &about) != 0 || about.st_ino == file.inode) return IsGone(file);
  return FileChanged(file.path, "number", StrCat(about.st_ino), StrCat(file.inode));
}

absl::Status CheckFile(const OpenedFile& opened, const ManifestFile& listed,
                       const std::function<absl::Status()>& keep_going) {
  const std::string& path = opened.file->path;
  const absl::StatusOr<InputFile> found = OpenInputFile(path);
  if (absl::IsNotFound(found.status())) return IsGone(*opened.file);
  SHARDMESH_RETURN_IF_ERROR(found.status());
  const InputFile& file = *found;
  struct stat about = {};
  if (fstat(file.descriptor.get(), &about) != 0) return FileError("examine", path, errno);
  // A save may have replaced the file: the manifest and this file need not be those of the mapping.
  if (about.st_ino != opened.file->inode) {
    return FileChanged(path, "number", StrCat(about.st_ino), StrCat(opened.file->inode));
  }
  return CheckChecksums(file, path, listed, keep_going, [&opened](const ManifestTensor& tensor) {
    return opened.HasPartOf(tensor);
  });
}

// Returns the files that the manifest in the folder lists; none if no save has written the folder.
absl::StatusOr<std::vector<ManifestFile>> SavedFilesOf(
    const std::string& folder, const std::function<absl::Status()>& keep_going) {
  absl::StatusOr<std::vector<ManifestFile>> files;
  // The manifest that comes after a save shows that the file is of another checkpoint. Files that a
  // save has left halfway have no checksums.
  const auto read = [&] {
    std::error_code ignored;
    const bool is_saved =
        std::filesystem::exists(std::filesystem::path(folder) / kCheckpointMarker, ignored) &&
        CheckCheckpointComplete(folder).ok();
    files = is_saved ? ReadFilesOf(folder) : std::vector<ManifestFile>();
    return is_saved && files.ok();
  };
  SHARDMESH_RETURN_IF_ERROR(FindSteadily(folder, read, keep_going).status());
  return files;
}

}  // namespace

absl::Status CheckSavedChecksums(absl::Span<const SavedPart> parts,
                                 const std::function<absl::Status()>& keep_going) {
  std::map<std::pair<std::string_view, uint64_t>, OpenedFile> opened;
  for (const SavedPart& part : parts) {
    OpenedFile& file = opened[{part.file->path, part.file->inode}];
    file.file = part.file;
    file.Add(part.offset_bytes, part.size_bytes);
  }
  std::map<std::string, std::vector<ManifestFile>> saved;  // by folder
  std::vector<std::pair<const OpenedFile*, const ManifestFile*>> compared;
  for (const auto& [key, file] : opened) {
    const std::filesystem::path path = file.file->path;
    const std::string folder = FolderOfFile(file.file->path);
    const auto [files, is_new] = saved.try_emplace(folder);
    if (is_new) {
      SHARDMESH_ASSIGN_OR_RETURN(files->second, SavedFilesOf(folder, keep_going));
    }
    const std::string name = path.filename().string();
    const auto listed = std::find_if(files->second.begin(), files->second.end(),
                                     [&name](const ManifestFile& f) { return f.name == name; });
    if (listed == files->second.end()) {
      // The checkpoint that took the place of the opened one has files of other names. Or a save
      // died midway: then nothing says which bytes the file had.
      const bool is_of_save = !files->second.empty() || HasCheckpointAside(folder);
      if (is_of_save && WasReplaced(*file.file)) return IsReplaced(*file.file);
      continue;
    }
    if (!listed->has_checksums) continue;
    compared.emplace_back(&file, &*listed);
  }
  if (compared.empty()) return absl::OkStatus();
  absl::Mutex mutex;
  absl::Status checked;  // guarded by mutex
  const auto go_on = [&]() -> absl::Status {
    {
      absl::MutexLock lock(&mutex);
      if (!checked.ok()) return checked;
    }
    return keep_going ? keep_going() : absl::OkStatus();
  };
  RunOnThreads(compared.size(), kMaxThreads, [&](size_t i) {
    const auto& [file, listed] = compared[i];
    absl::Status status = go_on();
    if (status.ok()) status = CheckFile(*file, *listed, go_on);
    absl::MutexLock lock(&mutex);
    // The first error; the others are only stopped by it.
    if (checked.ok()) checked = std::move(status);
  });
  absl::MutexLock lock(&mutex);
  return checked;
}

}  // namespace shardmesh
