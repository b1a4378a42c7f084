// The plan of a save: which tensor goes to which file, and which worker writes which part of it.
#ifndef SHARDMESH_SERVER_SAVE_SAVE_PLAN_H_
#define SHARDMESH_SERVER_SAVE_SAVE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/state/array_registry.h"
#include "sharding/tile.h"
#include "tensor/checkpoint_manifest.h"

namespace shardmesh::server {

// A tile of an array, and the workers that hold it.
struct HeldPart {
  Tile tile;
  // The array whose tile these workers have: the array to save, or its companion, which has the
  // same tiles. Null: the array to save.
  ArrayPtr array = nullptr;
  std::vector<std::string> identities;  // not empty, each once
  uint32_t crc32c = 0;
};

// An array to save.
struct TensorToSave {
  std::string name;  // in the checkpoint
  ArrayPtr array;
  std::vector<HeldPart> parts;  // cover the array; none if it has no element
};

struct SaveLayout {
  int64_t max_file_bytes = 0;  // of the tensors in one file; a larger tensor has a file of its own
  bool single_file = false;
  std::string cluster_id;
  // A file of several tensors stays as it was in the earlier checkpoint only if they have at most
  // this many bytes. 0 means max_file_bytes.
  int64_t max_kept_bytes = 0;
};

// A file of an earlier checkpoint: the digests of its tensors.
using EarlierTensors = std::vector<TensorDigests>;

// A part of a tile that one worker writes: bytes [begin_bytes, end_bytes) of the row-major tile.
struct RegionToWrite {
  size_t tensor = 0;  // index into SavePlan::tensors
  size_t part = 0;    // index into TensorToSave::parts
  int64_t begin_bytes = 0;
  int64_t end_bytes = 0;

  int64_t size_bytes() const { return end_bytes - begin_bytes; }
};

// Part of a tensor's place.
struct TensorPlace {
  size_t file = 0;
  int64_t offset_bytes = 0;  // of the whole tensor in the file
  int64_t size_bytes = 0;
};

struct FileInPlan {
  std::string name;
  std::string header;  // the first bytes of the file
  int64_t size_bytes = 0;
  std::vector<size_t> tensors;  // indexes into SavePlan::tensors, in their order in the file
  // 64 hexadecimal digits. Files with equal keys have equal bytes: the key is the hash of the
  // header and of the ids of the arrays, and an array never changes. Files with other keys may have
  // equal bytes too: the leader finds these by the checksums of the tiles, and workers compare
  // them.
  std::string content_key;
};

struct SavePlan {
  std::vector<TensorToSave> tensors;  // by name
  std::vector<TensorPlace> places;    // of each tensor
  std::vector<FileInPlan> files;
  // By identity of the worker that writes them, in the order of the files.
  std::map<std::string, std::vector<RegionToWrite>> regions;
  int64_t size_bytes = 0;  // of all tensors
};

// A tile from this size on is cut among the workers that hold it, so that all of them write.
inline constexpr int64_t kMinSplitBytes = int64_t{2} << 20;

// Unchanged tensors that leave a file of the earlier checkpoint get a file of their own from this
// size on, of all of them together. Fewer bytes are written again sooner than a file is opened.
inline constexpr int64_t kMinApartBytes = int64_t{256} << 10;
// So many files of about the same small size become one, so that files do not get more and more.
inline constexpr size_t kMergedFiles = 8;

// Returns the default of SaveLayout::max_file_bytes for the checkpoint of a step: a sixteenth of
// the tensors, from 16 to 256 MiB, and more where there would be over 4,096 files.
int64_t StepFileBytes(int64_t size_bytes);

// Plans the files and who writes what. One file is named `model.safetensors`, several
// `model-00001-of-00002.safetensors` and so on, by the name of their first tensor. A tile with
// several holders is cut among them, or goes to the holder that has least to write.
//
// `earlier`: the files of a checkpoint that the new one may link. A file whose tensors are all
// unchanged stays as it is. The other unchanged tensors fill files in the order of their names, and
// so do the changed tensors, in files of their own. Those that change with each step, such as
// weights in training, so part from those that do not. kMergedFiles unchanged files of less than
// half of max_file_bytes, whose sizes are within a factor of four, are merged. With `single_file`,
// `earlier` is ignored.
//
// INVALID_ARGUMENT: two tensors have one name, or a header is too large for the format.
// Requires at least one tensor.
absl::StatusOr<SavePlan> PlanSave(std::vector<TensorToSave> tensors, const SaveLayout& layout,
                                  absl::Span<const EarlierTensors> earlier = {});

// Describes a save in its manifest.
struct SaveDescription {
  std::string cluster_id;
  std::string prefix;
  int64_t revision = 0;
  std::optional<int64_t> step;
};

// Returns model.safetensors.index.json: metadata.total_size and weight_map. Empty if the plan has
// only one file, which needs no index.
std::string IndexText(const SavePlan& plan);

// The CRC-32C of each piece (kSavedPieceBytes) of tiles, by the tensor and its part.
using PieceChecksums = std::map<std::pair<size_t, size_t>, std::vector<uint32_t>>;

// Returns the manifest: the files with their content keys and the checksums of their headers, and
// of each tensor the array, its layout and the checksums of its tiles, and of the pieces that
// `pieces` has.
std::string ManifestText(const SavePlan& plan, const SaveDescription& description,
                         const PieceChecksums& pieces = {});

// The bytes that the files of a save have before the workers write.
struct PresentBytes {
  std::set<size_t> linked;                    // whole files
  std::set<std::pair<size_t, size_t>> found;  // tiles, as the tensor and its part

  bool Has(const SavePlan& plan, const RegionToWrite& region) const {
    return linked.contains(plan.places[region.tensor].file) ||
           found.contains({region.tensor, region.part});
  }
};

// Returns the bytes that are present if only the files `files` have regions to write, or to
// compare.
PresentBytes AllBut(const SavePlan& plan, const std::set<size_t>& files);

// Checks the checksums of written regions against those of the tiles. `crc32c`: of each region of
// plan.regions that is not present, by worker. DATA_LOSS (CHECKSUM_MISMATCH) names the tensor, the
// tile and the workers.
absl::Status CheckWritten(const SavePlan& plan, const PresentBytes& present,
                          const std::map<std::string, std::vector<uint32_t>>& crc32c);

// Adds the checksums that the leader found in a file that it read whole, those of all tiles of the
// file. Leaves out tiles of one piece, and tiles whose checksum these are not.
void AddFilePieces(const SavePlan& plan, size_t file, absl::Span<const uint32_t> piece_crc32c,
                   PieceChecksums* pieces);

// Adds the checksums that workers computed while they wrote: of each piece of each region of
// plan.regions that is not present, by worker. Leaves out tiles as AddFilePieces does, and those of
// workers that reported fewer.
void AddWrittenPieces(const SavePlan& plan, const PresentBytes& present,
                      const std::map<std::string, std::vector<uint32_t>>& piece_crc32c,
                      PieceChecksums* pieces);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SAVE_SAVE_PLAN_H_
