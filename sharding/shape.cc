// Checks and prints shapes.
#include "sharding/shape.h"

#include <limits>

#include "absl/numeric/int128.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {

absl::StatusOr<int64_t> ElementCount(absl::Span<const int64_t> shape) {
  if (static_cast<int64_t>(shape.size()) > kMaxRank) {
    return InvalidArgument(
        Reason::kInvalidShape,
        StrCat("a shape of ", shape.size(), " dimensions is over the limit of ", kMaxRank),
        {{fact::kValue, ShapeToString(shape)}, {fact::kLimit, kMaxRank}});
  }
  // A later extent of 0 makes any count 0, so check the product only at the end. Stop multiplying
  // once it exceeds the limit, because 16 factors below 2^63 do not fit 128 bits.
  constexpr absl::uint128 kLimit = std::numeric_limits<int64_t>::max();
  absl::uint128 count = 1;
  bool has_zero = false;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] < 0) {
      return InvalidArgument(Reason::kInvalidShape,
                             StrCat("dimension ", dim, " of the shape ", ShapeToString(shape),
                                    " is negative; extents are 0 or more"),
                             {{fact::kDimension, dim}, {fact::kValue, shape[dim]}});
    }
    has_zero = has_zero || shape[dim] == 0;
    if (count <= kLimit) {
      count *= static_cast<absl::uint128>(shape[dim]);
    }
  }
  if (has_zero) {
    return 0;
  }
  if (count > kLimit) {
    return InvalidArgument(
        Reason::kInvalidShape,
        StrCat("the shape ", ShapeToString(shape), " has more than 2^63 - 1 elements"),
        {{fact::kValue, ShapeToString(shape)}});
  }
  return static_cast<int64_t>(count);
}

absl::Status CheckShape(absl::Span<const int64_t> shape) { return ElementCount(shape).status(); }

std::string ShapeToString(absl::Span<const int64_t> shape) {
  return StrCat("(", StrJoin(shape, ", "), shape.size() == 1 ? ",)" : ")");
}

}  // namespace shardmesh
