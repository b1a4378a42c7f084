// NumPy's .npy files, for tensors that go to or come from a user's own programs.
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

// What a .npy header says.
struct NpyHeader {
  Dtype dtype = Dtype::kF32;
  Shape shape;
  // Where the data begins in the file.
  int64_t data_offset_bytes = 0;
  // The first dimension varies fastest, and at least two have more than one element: the data is
  // that of the transposed tensor.
  bool fortran_order = false;
};

// Checks the start of a file of file_size_bytes; `bytes` is the file, or at least its header.
// `source` names the file in errors. Versions 1, 2 and 3, little-endian.
//
// NumPy has no bfloat16: programs that use it store two raw bytes an element ("<V2"), which is read
// as BF16. Big-endian data and Python objects, structures and texts are refused with the NumPy call
// that converts them: INVALID_ARGUMENT (UNSUPPORTED_DTYPE or BAD_FILE).
absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view source, absl::Span<const char> bytes,
                                         int64_t file_size_bytes);

// A mapped .npy file; of one in Fortran order, its elements turned round into memory. Immutable,
// hence safe to share between threads; the view lives as long as it.
class NpyFile {
 public:
  // Errors of ParseNpyHeader, or of the file system. RESOURCE_EXHAUSTED if the host has no memory
  // to turn the elements round.
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

// The same to a stream, such as standard output. DATA_LOSS if that takes no more.
absl::Status WriteNpy(std::ostream& out, const TensorView& tensor);

// The header that WriteNpy writes, padding included.
absl::StatusOr<std::string> EncodeNpyHeader(Dtype dtype, absl::Span<const int64_t> shape);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_NPY_H_
