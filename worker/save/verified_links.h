// Links files of an earlier checkpoint, after all their bytes were compared with its checksums.
#ifndef SHARDMESH_WORKER_SAVE_VERIFIED_LINKS_H_
#define SHARDMESH_WORKER_SAVE_VERIFIED_LINKS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "process/file.h"
#include "tensor/checkpoint_manifest.h"

namespace shardmesh::worker {

// The files of a complete checkpoint that may be linked. A file that was changed in place keeps its
// name and its size, and its modify time can be set back: only the bytes show it.
//
// Not thread-safe.
class VerifiedLinks {
 public:
  // No files.
  VerifiedLinks() = default;
  // Reads marker and manifest of the open folder. If one of them is missing or damaged, there are
  // no files, and the log says so. `path` is for errors and the log.
  VerifiedLinks(FileDescriptor folder, std::string path);

  bool empty() const { return files_.empty(); }

  // The files, by name.
  const std::map<std::string, ManifestFile, std::less<>>& files() const { return files_; }

  // Returns the name of the file with this content key and size; null if there is none.
  const std::string* Find(std::string_view content_key, int64_t size_bytes) const;

  // Returns the name of a file whose checksums equal those of `file` (HaveEqualChecksums); null if
  // there is none.
  const std::string* FindAlike(const ManifestFile& file) const;

  // Links the file `from` of the folder as `name` in `to` if its header has the SHA-256. The other
  // bytes are not compared. Returns false if the header has another one, or if the file cannot be
  // read or linked: the file must then be written.
  bool LinkAlike(const std::string& from, std::string_view header_sha256, const FileDescriptor& to,
                 const std::string& name) const;

  // Reads the file `from` of the folder, and links it as `name` in `to` if it has the bytes that
  // the manifest lists. Returns false, and logs why, if it has not, or if the file system has no
  // links: the file must then be written. `keep_going` and `piece_crc32c`: as CheckChecksums; only
  // the error of `keep_going` is returned.
  absl::StatusOr<bool> Link(const std::string& from, const FileDescriptor& to,
                            const std::string& name,
                            const std::function<absl::Status()>& keep_going,
                            std::vector<uint32_t>* piece_crc32c = nullptr) const;

 private:
  FileDescriptor folder_;
  std::string path_;
  std::map<std::string, ManifestFile, std::less<>> files_;  // by name
  std::map<std::string, std::string, std::less<>> by_key_;  // names, by content key
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SAVE_VERIFIED_LINKS_H_
