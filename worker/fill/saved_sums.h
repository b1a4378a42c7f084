// Compares tiles that were read from a saved checkpoint with the checksums of its manifest.
#ifndef SHARDMESH_WORKER_FILL_SAVED_SUMS_H_
#define SHARDMESH_WORKER_FILL_SAVED_SUMS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "process/roots/read_root.h"
#include "tensor/checkpoint_manifest.h"
#include "worker/fill/checked_file.h"
#include "worker/fill/converted_tile.h"
#include "worker/fill/file_tile.h"
#include "worker/store/tile_file.h"

namespace shardmesh::worker {

// A tile that was read from a file. The objects outlive it.
struct ReadTile {
  const TileDescription& description;
  int64_t offset_bytes = 0;  // of the tensor in the file
  absl::Span<const char> bytes;
  uint32_t crc32c = 0;  // of `bytes`
};

// The manifests beside the source files of one transfer. Each is read once, at its first use; a
// folder without one is looked at again. The header of each file is compared once.
// Thread-safe.
class SavedSums {
 public:
  // `roots` outlives the object.
  explicit SavedSums(const ReadRoots* roots) : roots_(roots) {}
  SavedSums(const SavedSums&) = delete;
  SavedSums& operator=(const SavedSums&) = delete;

  // Reads the manifest in the folder of the file at `path`, if it has one. Call it before the file
  // is opened: a save that takes the checkpoint away afterwards then takes no checksums with it.
  // INVALID_ARGUMENT (BAD_FILE): the manifest or the marker of the folder is damaged. Calls
  // `keep_going` while it reads, or waits for a thread that does; its error ends the wait.
  absl::Status Prepare(const std::string& path, const KeepGoing& keep_going);

  // Compares a tile that was read from `file`, which was opened at `path`, with all checksums of
  // the manifest that cover one of its bytes, whatever the tiles of the save. Compares the header
  // of the file too. `reader` reads what the checksums cover beyond the tile. Returns OK without a
  // comparison only if no save wrote the folder or the file, or if the manifest has no checksums,
  // as builds before wrote it.
  // - DATA_LOSS (CHECKSUM_MISMATCH): the file has other bytes than the save wrote.
  // - FAILED_PRECONDITION (FILE_CHANGED): the checksums differ, and the file has changed since it
  //   was opened, or another file has taken its place, so that the manifest need not be that of
  //   `file`.
  // - Errors of Prepare, of `keep_going`, and of FileTileReader::ReadPart.
  absl::Status Check(const RootedFile& file, const std::string& path, const ReadTile& tile,
                     FileTileReader& reader, const KeepGoing& keep_going);

  // Compares like Check, for a tile that was made from these elements and no longer has their
  // bytes. `reader` reads them from the file once more, together with what else their checksums
  // cover. Errors as Check.
  absl::Status CheckSource(const RootedFile& file, const std::string& path,
                           const SourceRegion& source, FileTileReader& reader,
                           const KeepGoing& keep_going);

 private:
  using Files = std::vector<ManifestFile>;
  using SharedFiles = std::shared_ptr<const Files>;

  // Used by the thread that has the turn, which reads the manifest.
  struct Folder {
    FillTurn turn;
    bool is_read = false;
    absl::StatusOr<SharedFiles> files = SharedFiles();
  };

  // Returns the files that the manifest in the folder lists; none if no save wrote the folder.
  absl::StatusOr<SharedFiles> FilesOf(const std::string& path, const KeepGoing& keep_going);
  absl::StatusOr<Files> ReadFiles(const std::string& folder, const KeepGoing& keep_going) const;
  // `read`: the bytes of `source`, as they were read; null: they were not kept.
  absl::Status Compare(const RootedFile& file, const std::string& path, const ManifestFile& listed,
                       const SourceRegion& source, const ReadTile* read, FileTileReader& reader,
                       const KeepGoing& keep_going);
  absl::Status CompareHeader(const RootedFile& file, const std::string& path,
                             const ManifestFile& listed, const KeepGoing& keep_going);
  // Compares the file by `compare(listed)` with what the manifest lists about it, if it lists it.
  template <typename CompareListed>
  absl::Status CheckBy(const RootedFile& file, const std::string& path, const KeepGoing& keep_going,
                       CompareListed compare);
  absl::Status CheckInPlace(const RootedFile& file, const std::string& path) const;

  const ReadRoots* const roots_;
  absl::Mutex mutex_;                                              // held only for short times
  std::map<std::string, Folder> folders_ ABSL_GUARDED_BY(mutex_);  // by path; none is removed
  // Paths and inodes of files whose headers are as the manifest says.
  std::set<std::pair<std::string, uint64_t>> intact_headers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_FILL_SAVED_SUMS_H_
