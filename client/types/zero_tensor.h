// A tensor whose elements are all zero, without memory for them.
#ifndef SHARDMESH_CLIENT_TYPES_ZERO_TENSOR_H_
#define SHARDMESH_CLIENT_TYPES_ZERO_TENSOR_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"
#include "tensor/tensor_elements.h"

namespace shardmesh {

// Thread-safe.
class ZeroTensor final : public TileProducer {
 public:
  ZeroTensor(Dtype dtype, Shape shape) : dtype_(dtype), shape_(std::move(shape)) {}

  Dtype dtype() const override { return dtype_; }
  const Shape& shape() const override { return shape_; }
  absl::Status Fill(const Tile& tile, int64_t offset_bytes, absl::Span<char> out) const override {
    bool is_within = tile.ranges.size() == shape_.size() && offset_bytes >= 0;
    for (size_t i = 0; is_within && i < shape_.size(); ++i) {
      is_within = tile.ranges[i].start >= 0 && tile.ranges[i].stop <= shape_[i];
    }
    if (!is_within) {
      return InvalidArgument(Reason::kBadTile,
                             StrCat("tile ", tile.ToString(), " is not within a tensor of shape ",
                                    ShapeToString(shape_)));
    }
    std::fill(out.begin(), out.end(), '\0');
    return absl::OkStatus();
  }

 private:
  const Dtype dtype_;
  const Shape shape_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_CLIENT_TYPES_ZERO_TENSOR_H_
