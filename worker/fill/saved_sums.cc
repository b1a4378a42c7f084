// Reads manifests below the read roots, and finds the checksums of tiles in them.
#include "worker/fill/saved_sums.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "process/file.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "status/detail.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/dtype.h"
#include "tensor/source_file.h"
#include "worker/fill/saved_tile.h"

namespace shardmesh::worker {
namespace {

// The most bytes that are read before `keep_going` is called again.
constexpr size_t kTextPieceBytes = size_t{1} << 20;

absl::StatusOr<std::string> ReadText(const ReadRoots& roots, const std::string& path,
                                     const KeepGoing& keep_going) {
  SHARDMESH_ASSIGN_OR_RETURN(RootedFile rooted, roots.OpenFile(path));
  const InputFile file{.descriptor = std::move(rooted.descriptor),
                       .size_bytes = rooted.state.size_bytes};
  if (file.size_bytes > kMaxCheckpointManifestBytes) {
    return absl::OutOfRangeError(StrCat(path, " has ", file.size_bytes, " bytes; at most ",
                                        kMaxCheckpointManifestBytes, " are read"));
  }
  std::string text(static_cast<size_t>(file.size_bytes), '\0');
  for (size_t at = 0; at < text.size(); at += kTextPieceBytes) {
    SHARDMESH_RETURN_IF_ERROR(keep_going());
    SHARDMESH_RETURN_IF_ERROR(ReadExactly(file, path, static_cast<int64_t>(at),
                                          absl::MakeSpan(text).subspan(at, kTextPieceBytes)));
  }
  return text;
}

// Returns nullopt if there is no such file.
absl::StatusOr<std::optional<std::string>> ReadTextIfThere(const ReadRoots& roots,
                                                           const std::string& path,
                                                           const KeepGoing& keep_going) {
  absl::StatusOr<std::string> text = ReadText(roots, path, keep_going);
  if (absl::IsNotFound(text.status())) return std::nullopt;
  SHARDMESH_RETURN_IF_ERROR(text.status());
  return *std::move(text);
}

// Returns another descriptor of the open file.
absl::StatusOr<InputFile> SameFile(const RootedFile& file, std::string_view path) {
  const int descriptor = fcntl(file.descriptor.get(), F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) return FileError("open", path, errno);
  return InputFile{.descriptor = FileDescriptor(descriptor), .size_bytes = file.state.size_bytes};
}

// Reads the header and all tensors of which the range of the file has a byte, and compares them.
absl::Status CompareTensorsIn(const RootedFile& file, const std::string& path,
                              const ManifestFile& listed, int64_t begin_bytes, int64_t end_bytes,
                              const KeepGoing& keep_going) {
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile input, SameFile(file, path));
  return CheckChecksums(input, path, listed, keep_going, [&](const ManifestTensor& tensor) {
    return tensor.offset_bytes < end_bytes && tensor.offset_bytes + tensor.size_bytes > begin_bytes;
  });
}

// Returns the folder and the name of a file at an absolute path.
std::pair<std::string, std::string> Split(const std::string& path) {
  const size_t slash = path.rfind('/');
  return {path.substr(0, slash), path.substr(slash + 1)};
}

}  // namespace

absl::StatusOr<SavedSums::Files> SavedSums::ReadFiles(const std::string& folder,
                                                      const KeepGoing& keep_going) const {
  const std::string marker_path = StrCat(folder, "/", kCheckpointMarker);
  const std::string path = StrCat(folder, "/", kCheckpointManifest);
  for (int attempt = 1;; ++attempt) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::optional<std::string> marker,
                               ReadTextIfThere(*roots_, marker_path, keep_going));
    SHARDMESH_ASSIGN_OR_RETURN(const std::optional<std::string> manifest,
                               ReadTextIfThere(*roots_, path, keep_going));
    if (!marker.has_value() && !manifest.has_value()) return Files();
    // Without a marker, the save has not ended, or another one takes its place right now. The
    // checksums are those of the files in the folder all the same.
    const absl::Status whole =
        marker.has_value() ? CheckMarker(folder, manifest.value_or(""), *marker) : absl::OkStatus();
    if (whole.ok()) return ParseManifest(path, manifest.value_or(""));
    // A save may have replaced the checkpoint between the two reads.
    if (attempt == kMaxFolderAttempts) return whole;
  }
}

absl::StatusOr<SavedSums::SharedFiles> SavedSums::FilesOf(const std::string& path,
                                                          const KeepGoing& keep_going) {
  Folder* folder = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    folder = &folders_[path];
  }
  SHARDMESH_RETURN_IF_ERROR(folder->turn.Take(keep_going));
  const absl::Cleanup end = [folder] { folder->turn.End(); };
  if (!folder->is_read) {
    absl::StatusOr<Files> files = ReadFiles(path, keep_going);
    // An error of `keep_going` says nothing about the folder.
    if (!files.ok()) SHARDMESH_RETURN_IF_ERROR(keep_going());
    // A folder without a manifest may be one whose checkpoint is being replaced.
    folder->is_read = !files.ok() || !files->empty();
    folder->files =
        files.ok() ? absl::StatusOr<SharedFiles>(std::make_shared<const Files>(*std::move(files)))
                   : files.status();
  }
  return folder->files;
}

absl::Status SavedSums::Prepare(const std::string& path, const KeepGoing& keep_going) {
  return FilesOf(Split(path).first, keep_going).status();
}

absl::Status SavedSums::CheckInPlace(const RootedFile& file, const std::string& path) const {
  SHARDMESH_ASSIGN_OR_RETURN(const RootedFile now, roots_->OpenFile(path));
  if (now.state.device == file.state.device && now.state.inode == file.state.inode) {
    return absl::OkStatus();
  }
  return FileChanged(path, "number", StrCat(now.state.inode), StrCat(file.state.inode));
}

absl::Status SavedSums::CompareHeader(const RootedFile& file, const std::string& path,
                                      const ManifestFile& listed, const KeepGoing& keep_going) {
  {
    absl::MutexLock lock(&mutex_);
    if (intact_headers_.contains({path, file.state.inode})) return absl::OkStatus();
  }
  // This also finds out whether the checksums cover the whole file.
  SHARDMESH_RETURN_IF_ERROR(CompareTensorsIn(file, path, listed, 0, 0, keep_going));
  absl::MutexLock lock(&mutex_);
  intact_headers_.insert({path, file.state.inode});
  return absl::OkStatus();
}

absl::Status SavedSums::Compare(const RootedFile& file, const std::string& path,
                                const ManifestFile& listed, const SourceRegion& source,
                                const ReadTile* read, FileTileReader& reader,
                                const KeepGoing& keep_going) {
  SHARDMESH_RETURN_IF_ERROR(CompareHeader(file, path, listed, keep_going));
  if (source.tile.element_count() == 0) return absl::OkStatus();
  const auto compare_tensors = [&]() -> absl::Status {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(source.shape));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, PackedSizeBytes(source.dtype, elements));
    return CompareTensorsIn(file, path, listed, source.offset_bytes,
                            source.offset_bytes + size_bytes, keep_going);
  };
  auto tensor = std::lower_bound(
      listed.tensors.begin(), listed.tensors.end(), source.offset_bytes,
      [](const ManifestTensor& each, int64_t offset) { return each.offset_bytes < offset; });
  // Tensors without elements lie where the next tensor begins.
  while (tensor != listed.tensors.end() && tensor->offset_bytes == source.offset_bytes &&
         tensor->size_bytes == 0) {
    ++tensor;
  }
  // The array is another view of the bytes than the saved tensor.
  if (tensor == listed.tensors.end() || tensor->offset_bytes != source.offset_bytes ||
      tensor->dtype != source.dtype || tensor->shape != source.shape) {
    return compare_tensors();
  }
  for (const ManifestTile& saved : tensor->tiles) {
    if (read != nullptr && saved.tile == source.tile) {
      if (saved.crc32c == read->crc32c) continue;
      return OtherTileBytes(path, tensor->name, saved.tile, read->crc32c, saved.crc32c);
    }
    if (!Intersect(saved.tile, source.tile).has_value()) continue;
    const absl::StatusOr<SavedTileCheck> check =
        SavedTileCheck::Create(*tensor, saved, source.tile);
    if (!check.ok()) return compare_tensors();
    SHARDMESH_RETURN_IF_ERROR(
        check->Run(file, path, read == nullptr ? std::nullopt : std::optional(read->bytes), reader,
                   keep_going));
  }
  return absl::OkStatus();
}

template <typename CompareListed>
absl::Status SavedSums::CheckBy(const RootedFile& file, const std::string& path,
                                const KeepGoing& keep_going, CompareListed compare) {
  const auto [folder, name] = Split(path);
  SHARDMESH_ASSIGN_OR_RETURN(const SharedFiles files, FilesOf(folder, keep_going));
  const auto listed = std::find_if(files->begin(), files->end(),
                                   [&name = name](const auto& each) { return each.name == name; });
  if (listed == files->end() || !listed->has_checksums) return absl::OkStatus();
  absl::Status compared = compare(*listed);
  if (ReasonOf(compared) != Reason::kChecksumMismatch) return compared;
  SHARDMESH_RETURN_IF_ERROR(CheckUnchanged(file, path));
  SHARDMESH_RETURN_IF_ERROR(CheckInPlace(file, path));
  return compared;
}

absl::Status SavedSums::Check(const RootedFile& file, const std::string& path, const ReadTile& tile,
                              FileTileReader& reader, const KeepGoing& keep_going) {
  const SourceRegion source{.dtype = tile.description.dtype,
                            .shape = tile.description.array_shape,
                            .tile = tile.description.tile,
                            .offset_bytes = tile.offset_bytes};
  return CheckBy(file, path, keep_going, [&](const ManifestFile& listed) {
    return Compare(file, path, listed, source, &tile, reader, keep_going);
  });
}

absl::Status SavedSums::CheckSource(const RootedFile& file, const std::string& path,
                                    const SourceRegion& source, FileTileReader& reader,
                                    const KeepGoing& keep_going) {
  return CheckBy(file, path, keep_going, [&](const ManifestFile& listed) {
    return Compare(file, path, listed, source, /*read=*/nullptr, reader, keep_going);
  });
}

}  // namespace shardmesh::worker
