// NumPy's .npy files, for exchanging tensors with a user's own programs.
#ifndef SHARDMESH_TENSOR_NPY_H_
#define SHARDMESH_TENSOR_NPY_H_

#include <cstdint>
#include <iosfwd>
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
#include "tensor/view.h"

namespace shardmesh {

// The contents of a .npy header.
struct NpyHeader {
  Dtype dtype = Dtype::kF32;
  Shape shape;
  // Offset of the data in the file.
  int64_t data_offset_bytes = 0;
  // Whether the first dimension varies fastest and at least two have more than one element. The
  // data is then that of the transposed tensor.
  bool fortran_order = false;
};

// Checks the start of a file of file_size_bytes; `bytes` is the file, or at least its header.
// `source` names the file in errors. Versions 1, 2 and 3, little-endian.
//
// NumPy has no bfloat16: programs that use it store two raw bytes for each element ("<V2"), which
// is read as BF16. Big-endian data, Python objects, structures and texts are refused:
// INVALID_ARGUMENT (UNSUPPORTED_DTYPE or BAD_FILE). The message contains the NumPy call that
// converts them.
absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view source, absl::Span<const char> bytes,
                                         int64_t file_size_bytes);

// A mapped .npy file. For one in Fortran order, a reordered copy of its elements in memory.
// Immutable, and safe to share between threads; the view is valid as long as the object.
class NpyFile {
 public:
  // Errors of ParseNpyHeader, or of the file system. RESOURCE_EXHAUSTED if the host has no memory
  // for the reordered copy.
  static absl::StatusOr<NpyFile> Open(const std::string& path);

  TensorView View() const;

 private:
  NpyFile(NpyHeader header, MappedFile file) : header_(std::move(header)), file_(std::move(file)) {}

  NpyHeader header_;
  MappedFile file_;
  std::vector<char> turned_;  // the elements in C order, of a file in Fortran order
};

// Writes a whole tensor: version 1, data at a multiple of 64 bytes. BF16 is written as "<V2"; read
// it with numpy.load(f).view(ml_dtypes.bfloat16). The 8-bit and smaller floats are refused
// (UNSUPPORTED_DTYPE): save them as safetensors.
absl::Status WriteNpy(const std::string& path, const TensorView& tensor);

// As above, to a stream such as standard output. DATA_LOSS if the stream accepts no more bytes.
absl::Status WriteNpy(std::ostream& out, const TensorView& tensor);

// Returns the header that WriteNpy writes, including padding.
absl::StatusOr<std::string> EncodeNpyHeader(Dtype dtype, absl::Span<const int64_t> shape);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_NPY_H_
