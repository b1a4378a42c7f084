// Files of a save that ended early, which the next save of the same arrays continues.
#ifndef SHARDMESH_WORKER_SAVE_KEPT_FILES_H_
#define SHARDMESH_WORKER_SAVE_KEPT_FILES_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "process/file.h"
#include "tensor/checkpoint_manifest.h"

namespace shardmesh::worker {

// The tiles of a kept file that need not be written again.
struct FoundTiles {
  uint32_t file = 0;  // index of the file in the order to make files
  // Of each tile, in the order of the manifest: tensors by rising offset, and the tiles of each.
  std::vector<bool> is_intact;
};

// While nobody has said what the next save writes, a kept file has a name that tells its content:
// `.kept-KEY` in the staging folder, by its content key. So no crash can confuse two files.
//
// The functions work on the open staging folder; `path` is for errors, which are as FileError.
// Files with other hard links are never kept: they are those of an earlier checkpoint.
// Not thread-safe.
namespace kept {

bool IsName(std::string_view name);
// Moves each file that the manifest lists from `folder`, which may be `staging` itself, to its kept
// name, if it has the listed size. Other files stay where they are.
absl::Status Take(const std::vector<ManifestFile>& manifest, const FileDescriptor& folder,
                  std::string_view path, const FileDescriptor& staging);
// Returns the bytes of the files that Take would move.
int64_t TakeableBytes(const std::vector<ManifestFile>& manifest, const FileDescriptor& folder);
// Undoes the move of Take for one file. OK if there is no kept file of its key any more. The folder
// must not have a file of this name.
absl::Status GiveBack(const ManifestFile& file, const FileDescriptor& folder, std::string_view path,
                      const FileDescriptor& staging);
// Returns the bytes of all kept files.
absl::StatusOr<int64_t> SizeBytes(const FileDescriptor& staging, std::string_view path);
// Removes the kept files whose content keys are not in `keys`.
absl::Status RemoveOthers(const FileDescriptor& staging, std::string_view path,
                          const std::set<std::string, std::less<>>& keys);

// Reads the kept file with the content key of `listed`, and compares its tiles with their
// checksums. If some are intact, renames the file to the name that the manifest gives it, and
// returns which. Otherwise removes it, and returns no tiles. No tiles also if there is no such
// file. `keep_going` and `piece_crc32c`: as FindIntactTiles; only the error of `keep_going` is
// returned.
absl::StatusOr<std::vector<bool>> Reuse(const FileDescriptor& staging, std::string_view path,
                                        const ManifestFile& listed,
                                        const std::function<absl::Status()>& keep_going,
                                        std::vector<uint32_t>* piece_crc32c = nullptr);
// Undoes the rename of Reuse.
absl::Status PutBack(const FileDescriptor& staging, std::string_view path, const std::string& name,
                     const std::string& content_key);

}  // namespace kept
}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SAVE_KEPT_FILES_H_
