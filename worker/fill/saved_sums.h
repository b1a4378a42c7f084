// Compares tiles that were read from a saved checkpoint with the checksums of its manifest.
#ifndef SHARDMESH_WORKER_FILL_SAVED_SUMS_H_
#define SHARDMESH_WORKER_FILL_SAVED_SUMS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "process/roots/read_root.h"
#include "tensor/checkpoint_manifest.h"
#include "worker/fill/checked_file.h"
#include "worker/store/tile_file.h"

namespace shardmesh::worker {

// The manifests beside the source files of one transfer. Each is read once, at its first use.
// Thread-safe.
class SavedSums {
 public:
  // `roots` outlives the object.
  explicit SavedSums(const ReadRoots* roots) : roots_(roots) {}
  SavedSums(const SavedSums&) = delete;
  SavedSums& operator=(const SavedSums&) = delete;

  // Compares the CRC-32C of a tile that was read from `file`, which was opened at `path`. The
  // tile's tensor begins at `offset_bytes`. Returns OK if there is nothing to compare with: no save
  // wrote the folder, or it wrote another tensor there, or other tiles.
  // - DATA_LOSS (CHECKSUM_MISMATCH): the file has other bytes than the save wrote.
  // - FAILED_PRECONDITION (FILE_CHANGED): the checksums differ, and another file has taken the
  //   place of `file`, so that the manifest need not be that of `file`.
  // Calls `keep_going` while it reads a manifest, or waits for a thread that does; its error ends
  // the comparison, and is returned.
  absl::Status Check(const RootedFile& file, const std::string& path, int64_t offset_bytes,
                     const TileDescription& description, uint32_t crc32c,
                     const KeepGoing& keep_going);

 private:
  using Files = std::vector<ManifestFile>;

  // Used by the thread that has the turn, which reads the manifest.
  struct Folder {
    FillTurn turn;
    std::shared_ptr<const Files> files;  // null: not read yet
  };

  // Return the files that the manifest in the folder lists; none if no save wrote the folder. Only
  // errors of `keep_going`.
  absl::StatusOr<std::shared_ptr<const Files>> FilesOf(const std::string& path,
                                                       const KeepGoing& keep_going);
  absl::StatusOr<Files> ReadFiles(const std::string& folder, const KeepGoing& keep_going) const;
  absl::Status CheckInPlace(const RootedFile& file, const std::string& path) const;

  const ReadRoots* const roots_;
  absl::Mutex mutex_;                                              // held only for short times
  std::map<std::string, Folder> folders_ ABSL_GUARDED_BY(mutex_);  // by path; none is removed
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_FILL_SAVED_SUMS_H_
