// The elements of a tensor that is to be sent: memory, or a producer that makes them piece by
// piece.
#ifndef SHARDMESH_TENSOR_TENSOR_ELEMENTS_H_
#define SHARDMESH_TENSOR_TENSOR_ELEMENTS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace shardmesh {

// Makes the elements of a tensor when they are needed, a piece of a tile at a time. A tensor that
// is converted or transposed on its way never lies in memory as a whole. Thread-safe.
class TileProducer {
 public:
  virtual ~TileProducer() = default;

  virtual Dtype dtype() const = 0;
  virtual const Shape& shape() const = 0;

  // Fills `out` with bytes [offset_bytes, offset_bytes + out.size()) of the row-major `tile`. Each
  // call gives the same bytes. `offset_bytes` and the size of `out` are multiples of the size of an
  // element. INVALID_ARGUMENT (BAD_TILE) if the tile is not within shape(), or the range not within
  // the tile; else the producer's own errors, which end the transfer.
  virtual absl::Status Fill(const Tile& tile, int64_t offset_bytes, absl::Span<char> out) const = 0;
};

// The elements of one tensor. Converts from a view, whose memory must outlive this object, and from
// a producer, which this object keeps alive. Copying copies no element.
class TensorElements {
 public:
  TensorElements(TensorView view) : elements_(std::move(view)) {}  // NOLINT: converts
  // Requires a producer that is not null.
  TensorElements(std::shared_ptr<const TileProducer> producer)  // NOLINT: converts
      : elements_(std::move(producer)) {}

  Dtype dtype() const { return view() != nullptr ? view()->dtype() : producer()->dtype(); }
  const Shape& shape() const { return view() != nullptr ? view()->shape() : producer()->shape(); }

  // Returns the elements in memory; null if a producer makes them.
  const TensorView* view() const { return std::get_if<TensorView>(&elements_); }
  // Returns the producer; null if the elements are in memory.
  const TileProducer* producer() const {
    const auto* const producer = std::get_if<std::shared_ptr<const TileProducer>>(&elements_);
    return producer == nullptr ? nullptr : producer->get();
  }

 private:
  std::variant<TensorView, std::shared_ptr<const TileProducer>> elements_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_TENSOR_ELEMENTS_H_
