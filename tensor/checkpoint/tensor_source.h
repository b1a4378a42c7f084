// A model's tensors in files of any form that can be loaded.
#ifndef SHARDMESH_TENSOR_CHECKPOINT_TENSOR_SOURCE_H_
#define SHARDMESH_TENSOR_CHECKPOINT_TENSOR_SOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "process/file.h"
#include "sharding/shape.h"
#include "tensor/dtype.h"
#include "tensor/safetensors.h"
#include "tensor/saved_checksums.h"
#include "tensor/source_file.h"
#include "tensor/view.h"

namespace shardmesh {

// A tensor of a source.
struct SourceTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  Shape shape;
  // The bytes as they are in the file. If `is_reversed`, the first index varies fastest ("Fortran
  // order"): the view then has the dimensions of `shape` in reverse order.
  TensorView view;
  bool is_reversed = false;
  // The file as it was opened, and the offset in it of the bytes of the view. Workers that read the
  // file themselves need both.
  std::shared_ptr<const SourceFile> file;
  int64_t offset_bytes = 0;
};

// A tensor that is some rows, which follow each other, of another one. A row is all elements of one
// index of the first dimension.
struct RowPart {
  std::string name;
  int64_t rows = 0;

  friend bool operator==(const RowPart&, const RowPart&) = default;
};

// The tensors of one checkpoint, mapped read-only. Immutable but for SplitRows, and safe to share
// between threads. Views are valid as long as the source object.
class TensorSource {
 public:
  // `path` is one of these, recognised by its content:
  // clang-format off
  //   a safetensors file or index, or a folder of them   as Checkpoint::Open
  //   a .npz file                                        one tensor for each member NAME.npy
  //   a folder of .npy files                             one tensor for each NAME.npy
  // clang-format on
  // `step` and `keep_going`: as Checkpoint::Open. Reads headers only. Errors of Checkpoint::Open,
  // ParseZip and ParseNpyHeader. INVALID_ARGUMENT (BAD_FILE) for compressed members of a .npz file,
  // members that are no .npy files, a step of a file, and a folder that has .npy files and also
  // safetensors files or complete steps, of which `step` names none. Messages name file and member.
  static absl::StatusOr<TensorSource> Open(const std::string& path,
                                           std::optional<int64_t> step = {},
                                           const std::function<absl::Status()>& keep_going = {});

  // Safetensors are in the order of Checkpoint::tensors, members in that of the .npz file, files of
  // a folder by name. Names are unique.
  const std::vector<SourceTensor>& tensors() const { return tensors_; }
  // Replaces the tensor `name` by its parts, which have all its rows: first those of the first
  // part, and so on. NOT_FOUND: there is no such tensor. INVALID_ARGUMENT: SHAPE_MISMATCH if the
  // parts have other rows together; BAD_FILE if the rows are not one after the other in the file,
  // or if another tensor has the name of a part. Not thread-safe.
  absl::Status SplitRows(std::string_view name, absl::Span<const RowPart> parts);

  // Returns the sum of the sizes of all tensors.
  int64_t size_bytes() const { return size_bytes_; }
  const std::string& path() const { return path_; }
  // The checkpoint in `path`: `path` itself, or the folder of a step below it.
  const std::string& checkpoint_path() const {
    return checkpoint_.has_value() ? checkpoint_->path() : path_;
  }
  // Whether a file is no longer the one that was opened, or a save has replaced or removed the
  // checkpoint: see Checkpoint::WasReplaced.
  bool WasReplaced() const;

  // Compares the data of a .npz file with its checksums; reads all data. DATA_LOSS
  // (CHECKSUM_MISMATCH) names the file and the member. OK for other forms: see SavedPartOf.
  absl::Status CheckIntegrity() const;
  // Returns the bytes of one of tensors(), for CheckSavedChecksums; nullopt for a file of a form
  // that no save writes.
  std::optional<SavedPart> SavedPartOf(const SourceTensor& tensor) const;

 private:
  // A member of a .npz file, with its checksum.
  struct CheckedMember {
    std::string name;
    absl::Span<const char> bytes;
    uint32_t crc32 = 0;
  };

  explicit TensorSource(std::string path) : path_(std::move(path)) {}

  absl::Status AddCheckpoint(std::optional<int64_t> step,
                             const std::function<absl::Status()>& keep_going);
  absl::Status AddNpz(const InputFile& input, MappedFile file);
  absl::Status AddNpyFolder(const std::vector<std::string>& files);
  // Adds the tensor of the .npy bytes at `offset_bytes` of `file`. `source` names the bytes in
  // errors.
  absl::Status AddNpy(const std::string& source, std::string name,
                      std::shared_ptr<const SourceFile> file, int64_t offset_bytes,
                      absl::Span<const char> bytes);
  void Add(SourceTensor tensor);

  std::string path_;
  std::optional<Checkpoint> checkpoint_;
  std::vector<std::unique_ptr<MappedFile>> files_;
  std::vector<CheckedMember> members_;
  std::vector<SourceTensor> tensors_;
  int64_t size_bytes_ = 0;
};

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_CHECKPOINT_TENSOR_SOURCE_H_
