// Verifies and links through one descriptor, so that the linked file is the one that was read.
#include "worker/save/verified_links.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "process/log.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "worker/save/folder_manifest.h"

namespace shardmesh::worker {
namespace {

absl::StatusOr<std::vector<ManifestFile>> ReadFiles(const FileDescriptor& folder,
                                                    std::string_view path) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string marker, ReadText(folder, path, kCheckpointMarker));
  SHARDMESH_ASSIGN_OR_RETURN(const std::string manifest,
                             ReadText(folder, path, kCheckpointManifest));
  SHARDMESH_RETURN_IF_ERROR(CheckMarker(path, manifest, marker));
  return ParseManifest(StrCat(path, "/", kCheckpointManifest), manifest);
}

}  // namespace

VerifiedLinks::VerifiedLinks(FileDescriptor folder, std::string path)
    : folder_(std::move(folder)), path_(std::move(path)) {
  absl::StatusOr<std::vector<ManifestFile>> files = ReadFiles(folder_, path_);
  if (!files.ok()) {
    LogWarning("a damaged checkpoint is not used for links: all files are written",
               {{"folder", path_}, {"error", files.status()}});
    return;
  }
  for (ManifestFile& file : *files) {
    if (!file.has_checksums) continue;
    std::string name = file.name;
    if (!file.content_key.empty()) by_key_.emplace(file.content_key, name);
    files_.emplace(std::move(name), std::move(file));
  }
}

const std::string* VerifiedLinks::Find(std::string_view content_key, int64_t size_bytes) const {
  const auto found = by_key_.find(content_key);
  if (found == by_key_.end()) return nullptr;
  return files_.find(found->second)->second.size_bytes == size_bytes ? &found->second : nullptr;
}

absl::StatusOr<bool> VerifiedLinks::Link(const std::string& from, const FileDescriptor& to,
                                         const std::string& name,
                                         const std::function<absl::Status()>& keep_going,
                                         std::vector<uint32_t>* piece_crc32c) const {
  const auto listed = files_.find(from);
  if (listed == files_.end()) return false;
  absl::Status stopped;
  const auto still_wanted = [&]() -> absl::Status {
    if (keep_going) stopped = keep_going();
    return stopped;
  };
  const std::string path = StrCat(path_, "/", from);
  const absl::StatusOr<InputFile> file = OpenToRead(folder_, path_, from);
  const absl::Status intact = file.ok() ? CheckChecksums(*file, path, listed->second, still_wanted,
                                                         /*is_wanted=*/nullptr, piece_crc32c)
                                        : file.status();
  SHARDMESH_RETURN_IF_ERROR(stopped);
  if (!intact.ok()) {
    LogWarning("a file of an earlier checkpoint is not linked, but written anew",
               {{"file", path}, {"error", intact}});
    return false;
  }
  // This path leads to the open file itself, whatever its name refers to by now.
  const std::string opened = StrCat("/proc/self/fd/", file->descriptor.get());
  return linkat(AT_FDCWD, opened.c_str(), to.get(), name.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

}  // namespace shardmesh::worker
