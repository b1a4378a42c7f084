// A tensor that is transposed and converted to another element type while it is read.
#ifndef SHARDMESH_TENSOR_CHECKPOINT_CONVERTED_TENSOR_H_
#define SHARDMESH_TENSOR_CHECKPOINT_CONVERTED_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"
#include "tensor/source_conversion.h"
#include "tensor/tensor_elements.h"
#include "tensor/view.h"

namespace shardmesh {

// How a tensor is changed on its way.
struct Conversion {
  // Dimension i of the result is dimension permutation[i] of the source. Empty: as in the source.
  std::vector<size_t> permutation = {};
  // Element type of the result; nullopt: that of the source.
  std::optional<Dtype> dtype = std::nullopt;
  // The dimension of the result of which each index has a scale of its own. Set exactly if floats
  // become I8.
  std::optional<size_t> channel = std::nullopt;
};

// The largest number of scales of a tensor that has no elements. Its extents need no bytes in a
// file: a header could ask for any amount of memory.
inline constexpr int64_t kMaxEmptyChannels = int64_t{1} << 20;

// SHAPE_MISMATCH if a tensor of `shape` has no elements, and dimension `channel` more than
// kMaxEmptyChannels indices. Requires channel < rank.
absl::Status CheckChannels(absl::Span<const int64_t> shape, size_t channel);

// Scales for the conversion of `source` to I8, one for each index of dimension `channel` of the
// source. A scale is the largest magnitude of the index's elements, as F32, divided by 127. It is 1
// if all these elements are 0, and at least 2^-149, the smallest positive F32. Reads all elements.
// INVALID_ARGUMENT (UNSUPPORTED_DTYPE): some element is NaN, or is infinite as F32; the message has
// the index. Errors of CheckChannels. Requires a type from which CanConvert converts, and channel <
// rank.
absl::StatusOr<std::vector<float>> ChannelScales(const TensorView& source, size_t channel);

// The result of a Conversion, made piece by piece: Fill reads only the source elements of its
// piece, and takes less than 16 KiB of memory. Thread-safe.
class ConvertedTensor final : public TileProducer {
 public:
  // The memory of `source` must outlive the object. `scales`: those of ChannelScales, if a channel
  // is given. INVALID_ARGUMENT: SHAPE_MISMATCH for a permutation of another rank, one that names a
  // dimension twice, or a channel beyond the rank; UNSUPPORTED_DTYPE for types between which
  // CanConvert converts not, and for elements of less than a byte that are transposed.
  static absl::StatusOr<std::shared_ptr<const ConvertedTensor>> Create(
      const TensorView& source, const Conversion& conversion, std::vector<float> scales = {});

  Dtype dtype() const override { return dtype_; }
  const Shape& shape() const override { return shape_; }
  absl::Status Fill(const Tile& tile, int64_t offset_bytes, absl::Span<char> out) const override;

 private:
  struct Box;
  class Writer;

  ConvertedTensor(TensorView source, Dtype dtype) : source_(std::move(source)), dtype_(dtype) {}

  const TensorView source_;
  const Dtype dtype_;
  Shape shape_;
  std::vector<int64_t> strides_;  // by dimension of the result, in elements of the source
  std::optional<size_t> channel_;
  std::vector<float> scales_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_CHECKPOINT_CONVERTED_TENSOR_H_
