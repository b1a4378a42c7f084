// Verifies and links through one descriptor, so that the linked file is the one that was read.
#include "worker/save/verified_links.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/types/span.h"
#include "process/log.h"
#include "sharding/digest.h"
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

// Links the open file itself, whatever its name refers to by now.
bool LinkOpened(const InputFile& file, const FileDescriptor& to, const std::string& name) {
  const std::string opened = StrCat("/proc/self/fd/", file.descriptor.get());
  return linkat(AT_FDCWD, opened.c_str(), to.get(), name.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

// Returns the SHA-256 of the first bytes of the file.
absl::StatusOr<std::string> HeadSha256(const InputFile& file, std::string_view path,
                                       int64_t size_bytes) {
  constexpr int64_t kStepBytes = int64_t{1} << 20;
  Sha256Stream digest;
  std::string buffer;
  for (int64_t at = 0; at < size_bytes; at += kStepBytes) {
    buffer.resize(static_cast<size_t>(std::min(kStepBytes, size_bytes - at)));
    SHARDMESH_RETURN_IF_ERROR(ReadExactly(file, path, at, absl::MakeSpan(buffer)));
    digest.Add(buffer);
  }
  return digest.Finish();
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

const std::string* VerifiedLinks::FindAlike(const ManifestFile& file) const {
  const auto found = std::find_if(files_.begin(), files_.end(), [&file](const auto& each) {
    return HaveEqualChecksums(each.second, file);
  });
  return found == files_.end() ? nullptr : &found->first;
}

bool VerifiedLinks::LinkAlike(const std::string& from, std::string_view header_sha256,
                              const FileDescriptor& to, const std::string& name) const {
  const auto listed = files_.find(from);
  if (listed == files_.end()) return false;
  const std::string path = StrCat(path_, "/", from);
  const absl::StatusOr<InputFile> file = OpenToRead(folder_, path_, from);
  const absl::StatusOr<std::string> sha256 =
      !file.ok() ? file.status()
      : file->size_bytes != listed->second.size_bytes
          ? absl::StatusOr<std::string>(absl::DataLossError(StrCat(path, " has another size")))
          : HeadSha256(*file, path, listed->second.header_bytes);
  if (sha256.ok() && *sha256 == header_sha256) return LinkOpened(*file, to, name);
  LogWarning(
      "a file of an earlier checkpoint is not linked, but written anew",
      {{"file", path},
       {"error", sha256.ok() ? absl::DataLossError("its header has changed") : sha256.status()}});
  return false;
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
  return LinkOpened(*file, to, name);
}

}  // namespace shardmesh::worker
