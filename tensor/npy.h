// NumPy's .npy files, for exchanging tensors with a user's own programs.
#ifndef SHARDMESH_TENSOR_NPY_H_
#define SHARDMESH_TENSOR_NPY_H_

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "process/file.h"
#include "sharding/shape.h"
#include "tensor/dtype.h"
#include "tensor/source_file.h"
#include "tensor/view.h"

namespace shardmesh {

// The contents of a .npy header.
struct NpyHeader {
  Dtype dtype = Dtype::kF32;
  Shape shape;
  // Offset of the data in the file.
  int64_t data_offset_bytes = 0;
  // Whether the first index varies fastest: the data then equals the row-major data of the
  // transposed tensor. False if at most one dimension has more than one element, since Fortran
  // order and row-major order are then the same.
  bool fortran_order = false;
};

// Parses and checks the header of a file of file_size_bytes; `bytes` is the file, or at least its
// header. `source` names the file in errors. Accepts versions 1, 2 and 3, with little-endian data.
//
// NumPy has no bfloat16: programs that use it store two raw bytes for each element ("<V2"). This
// function reads that type as BF16. It refuses big-endian data, Python objects, structures and
// texts with INVALID_ARGUMENT (UNSUPPORTED_DTYPE or BAD_FILE). The message contains the NumPy call
// that converts the data.
absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view source, absl::Span<const char> bytes,
                                         int64_t file_size_bytes);

// A .npy file, mapped or in memory. If the file is in Fortran order, the object has a reordered
// copy in memory. Immutable, and safe to share between threads; the view is valid as long as the
// object.
class NpyFile {
 public:
  // Errors of ParseNpyHeader, or of the file system. RESOURCE_EXHAUSTED (MEMORY_LIMIT) if the
  // host has no memory for the reordered copy. Failpoint: npy.reorder.
  static absl::StatusOr<NpyFile> Open(const std::string& path);
  // Takes the bytes of a .npy file, such as those of standard input. `source` names them in errors.
  // Errors of Open, except those of the file system.
  static absl::StatusOr<NpyFile> Read(std::string_view source, std::vector<char> bytes);

  TensorView View() const;
  const NpyHeader& header() const { return header_; }
  // Returns the file's state when it was opened; nullopt after Read. The path is that of Open; the
  // head is the header.
  const std::optional<SourceFile>& state() const { return state_; }

 private:
  using Content = std::variant<MappedFile, std::vector<char>>;

  // Checks the header and, if the file is in Fortran order, makes the reordered copy.
  static absl::StatusOr<NpyFile> Create(std::string_view source, Content content);

  NpyFile(NpyHeader header, Content content)
      : header_(std::move(header)), content_(std::move(content)) {}

  static absl::Span<const char> BytesOf(const Content& content);

  NpyHeader header_;
  std::optional<SourceFile> state_;
  Content content_;
  std::vector<char> turned_;  // the elements in C order; empty unless the file has Fortran order
};

// Writes a whole tensor: version 1, data at a multiple of 64 bytes. BF16 is written as "<V2"; in
// Python, read it with numpy.load(f).view(ml_dtypes.bfloat16). Refuses floating-point types of 8
// bits and fewer (UNSUPPORTED_DTYPE): save such tensors as safetensors.
absl::Status WriteNpy(const std::string& path, const TensorView& tensor);

// Like WriteNpy above, but writes to a stream such as standard output. Returns DATA_LOSS if the
// stream accepts no more bytes.
absl::Status WriteNpy(std::ostream& out, const TensorView& tensor);

// Returns the header that WriteNpy writes, including padding.
absl::StatusOr<std::string> EncodeNpyHeader(Dtype dtype, absl::Span<const int64_t> shape);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_NPY_H_
