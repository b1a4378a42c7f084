// Reads manifests below the read roots, and finds the checksums of tiles in them.
#include "worker/fill/saved_sums.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/types/span.h"
#include "process/file.h"
#include "process/log.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/source_file.h"

namespace shardmesh::worker {
namespace {

// The most bytes that are read before `keep_going` is called again.
constexpr size_t kTextPieceBytes = size_t{1} << 20;

absl::StatusOr<std::string> ReadText(const ReadRoots& roots, const std::string& path,
                                     int64_t max_bytes, const KeepGoing& keep_going) {
  SHARDMESH_ASSIGN_OR_RETURN(RootedFile rooted, roots.OpenFile(path));
  const InputFile file{.descriptor = std::move(rooted.descriptor),
                       .size_bytes = rooted.state.size_bytes};
  if (file.size_bytes > max_bytes) {
    return absl::OutOfRangeError(
        StrCat(path, " has ", file.size_bytes, " bytes; at most ", max_bytes, " are read"));
  }
  std::string text(static_cast<size_t>(file.size_bytes), '\0');
  for (size_t at = 0; at < text.size(); at += kTextPieceBytes) {
    SHARDMESH_RETURN_IF_ERROR(keep_going());
    SHARDMESH_RETURN_IF_ERROR(ReadExactly(file, path, static_cast<int64_t>(at),
                                          absl::MakeSpan(text).subspan(at, kTextPieceBytes)));
  }
  return text;
}

// Returns the folder and the name of a file at an absolute path.
std::pair<std::string, std::string> Split(const std::string& path) {
  const size_t slash = path.rfind('/');
  return {path.substr(0, slash), path.substr(slash + 1)};
}

}  // namespace

absl::StatusOr<SavedSums::Files> SavedSums::ReadFiles(const std::string& folder,
                                                      const KeepGoing& keep_going) const {
  const absl::StatusOr<std::string> marker = ReadText(
      *roots_, StrCat(folder, "/", kCheckpointMarker), kMaxCheckpointManifestBytes, keep_going);
  SHARDMESH_RETURN_IF_ERROR(keep_going());
  if (!marker.ok()) return Files();
  const std::string path = StrCat(folder, "/", kCheckpointManifest);
  const auto read = [&]() -> absl::StatusOr<Files> {
    SHARDMESH_ASSIGN_OR_RETURN(const std::string manifest,
                               ReadText(*roots_, path, kMaxCheckpointManifestBytes, keep_going));
    SHARDMESH_RETURN_IF_ERROR(CheckMarker(folder, manifest, *marker));
    return ParseManifest(path, manifest);
  };
  absl::StatusOr<Files> files = read();
  if (files.ok()) return files;
  SHARDMESH_RETURN_IF_ERROR(keep_going());
  LogWarning("tiles of a saved checkpoint are not compared with its checksums",
             {{"folder", folder}, {"error", files.status()}});
  return Files();
}

absl::StatusOr<std::shared_ptr<const SavedSums::Files>> SavedSums::FilesOf(
    const std::string& path, const KeepGoing& keep_going) {
  Folder* folder = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    folder = &folders_[path];
  }
  SHARDMESH_RETURN_IF_ERROR(folder->turn.Take(keep_going));
  const absl::Cleanup end = [folder] { folder->turn.End(); };
  if (folder->files == nullptr) {
    SHARDMESH_ASSIGN_OR_RETURN(Files files, ReadFiles(path, keep_going));
    folder->files = std::make_shared<const Files>(std::move(files));
  }
  return folder->files;
}

absl::Status SavedSums::CheckInPlace(const RootedFile& file, const std::string& path) const {
  SHARDMESH_ASSIGN_OR_RETURN(const RootedFile now, roots_->OpenFile(path));
  if (now.state.device == file.state.device && now.state.inode == file.state.inode) {
    return absl::OkStatus();
  }
  return FileChanged(path, "number", StrCat(now.state.inode), StrCat(file.state.inode));
}

absl::Status SavedSums::Check(const RootedFile& file, const std::string& path, int64_t offset_bytes,
                              const TileDescription& description, uint32_t crc32c,
                              const KeepGoing& keep_going) {
  const auto [folder, name] = Split(path);
  SHARDMESH_ASSIGN_OR_RETURN(const std::shared_ptr<const Files> files, FilesOf(folder, keep_going));
  const auto listed = std::find_if(files->begin(), files->end(),
                                   [&name = name](const auto& each) { return each.name == name; });
  if (listed == files->end() || !listed->has_checksums) return absl::OkStatus();
  auto tensor = std::lower_bound(
      listed->tensors.begin(), listed->tensors.end(), offset_bytes,
      [](const ManifestTensor& each, int64_t offset) { return each.offset_bytes < offset; });
  for (; tensor != listed->tensors.end() && tensor->offset_bytes == offset_bytes; ++tensor) {
    if (tensor->dtype != description.dtype || tensor->shape != description.array_shape) continue;
    for (const ManifestTile& saved : tensor->tiles) {
      if (saved.tile != description.tile || saved.crc32c == crc32c) continue;
      SHARDMESH_RETURN_IF_ERROR(CheckInPlace(file, path));
      return OtherTileBytes(path, tensor->name, saved.tile, crc32c, saved.crc32c);
    }
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::worker
