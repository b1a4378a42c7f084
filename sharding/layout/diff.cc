// Compares placements by the parts at the positions of a mesh, without enumerating the positions.
#include "sharding/layout/diff.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "sharding/axis_value.h"
#include "sharding/tile.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// One digit of a device's position in the mesh: position / stride % size. The number of the
// device's part in a dimension is the sum of digit * weight.
struct Digit {
  int64_t stride = 1;
  int64_t size = 1;
  int64_t weight = 1;

  friend bool operator==(const Digit&, const Digit&) = default;
};

// Returns the digits that map each position to its part of a dimension, in order of rising stride.
// Merges adjacent digits that together act as one digit. Two equal maps therefore have equal
// digits.
std::vector<Digit> PartDigits(const SpecEntry& entry, const Mesh& mesh) {
  std::vector<Digit> digits;
  int64_t weight = 1;
  const absl::Span<const AxisName> axes = entry.axes();
  for (auto name = axes.rbegin(); name != axes.rend(); ++name) {
    const auto axis = mesh.FindAxis(**name).value();
    const int64_t size = mesh.axes()[static_cast<size_t>(axis)].size;
    if (size > 1) {
      digits.push_back({mesh.stride(axis), size, weight});
    }
    weight *= size;
  }
  std::sort(digits.begin(), digits.end(),
            [](const Digit& a, const Digit& b) { return a.stride < b.stride; });
  std::vector<Digit> joined;
  for (const Digit& digit : digits) {
    if (!joined.empty() && joined.back().stride * joined.back().size == digit.stride &&
        joined.back().weight * joined.back().size == digit.weight) {
      joined.back().size *= digit.size;
    } else {
      joined.push_back(digit);
    }
  }
  return joined;
}

// A tensor of layout A or of layout B, with its tiling and sizes.
struct Placed {
  const PlacedTensor* tensor = nullptr;
  Tiling tiling;
  int64_t bytes = 0;             // bytes of the whole tensor
  int64_t bytes_per_device = 0;  // bytes of one tile
};

absl::Status TooManyBytes(std::string_view what) {
  return InvalidArgument(Reason::kLimitExceeded, StrCat(what, " has more bytes than 64 bits count"),
                         {{fact::kLimit, std::numeric_limits<int64_t>::max()}}, "OverflowError");
}

absl::StatusOr<int64_t> BytesOf(absl::Span<const int64_t> shape, const PlacedTensor& tensor) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(shape));
  const absl::int128 bytes = (absl::int128(elements) * tensor.bits_per_element + 7) / 8;
  if (bytes > std::numeric_limits<int64_t>::max()) {
    return TooManyBytes("the tensor");
  }
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<Placed> Place(const PlacedTensor& tensor, const Mesh& mesh) {
  if (tensor.bits_per_element < 0) {
    return InvalidArgument(Reason::kBadField,
                           StrCat("an element has ", tensor.bits_per_element, " bits"),
                           {{fact::kValue, tensor.bits_per_element}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(Tiling tiling, Tiling::Create(mesh, tensor.spec, tensor.shape));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, BytesOf(tensor.shape, tensor));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t tile_bytes, BytesOf(tiling.ShardShape(), tensor));
  return Placed{&tensor, std::move(tiling), bytes, tile_bytes};
}

// All tensors of one layout, in the order of the layout, with an index by name.
class PlacedTree {
 public:
  // `label` names the layout in errors.
  static absl::StatusOr<PlacedTree> Create(const Layout& layout, std::string_view label) {
    PlacedTree tree;
    for (const PlacedTensor& tensor : layout.tensors) {
      absl::StatusOr<Placed> placed = Place(tensor, *layout.mesh);
      if (!placed.ok()) {
        return WithContext(placed.status(),
                           StrCat("layout ", label, ", tensor ", PythonRepr(tensor.name)));
      }
      if (!tree.by_name_.emplace(tensor.name, tree.tensors_.size()).second) {
        return InvalidArgument(
            Reason::kBadField,
            StrCat("layout ", label, " has the tensor ", PythonRepr(tensor.name), " twice"),
            {{fact::kValue, tensor.name}});
      }
      if (__builtin_add_overflow(tree.bytes_, placed->bytes, &tree.bytes_)) {
        return TooManyBytes(StrCat("layout ", label));
      }
      tree.bytes_per_device_ += placed->bytes_per_device;  // at most bytes_: no overflow
      tree.tensors_.push_back(*std::move(placed));
    }
    return tree;
  }

  absl::Span<const Placed> tensors() const { return tensors_; }
  int64_t bytes() const { return bytes_; }
  int64_t bytes_per_device() const { return bytes_per_device_; }
  const Placed* Find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &tensors_[found->second];
  }

 private:
  PlacedTree() = default;

  std::vector<Placed> tensors_;
  absl::flat_hash_map<std::string_view, size_t> by_name_;
  int64_t bytes_ = 0;
  int64_t bytes_per_device_ = 0;
};

bool TilesDiffer(const Placed& a, const Placed& b) {
  if (a.tensor->shape != b.tensor->shape) {
    return true;
  }
  for (int64_t dim = 0; dim < a.tiling.rank(); ++dim) {
    // All parts of an empty dimension are equal.
    if (a.tensor->shape[static_cast<size_t>(dim)] > 0 &&
        (a.tiling.PartCount(dim) != b.tiling.PartCount(dim) ||
         PartDigits(a.tensor->spec.entry(dim), a.tiling.mesh()) !=
             PartDigits(b.tensor->spec.entry(dim), b.tiling.mesh()))) {
      return true;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<LayoutDiff> DiffLayouts(const Layout& a, const Layout& b,
                                       const LayoutBudget& budget) {
  SHARDMESH_ASSIGN_OR_RETURN(const PlacedTree tree_a, PlacedTree::Create(a, "A"));
  SHARDMESH_ASSIGN_OR_RETURN(const PlacedTree tree_b, PlacedTree::Create(b, "B"));
  LayoutDiff diff;
  diff.bytes_per_device_a = tree_a.bytes_per_device();
  diff.bytes_per_device_b = tree_b.bytes_per_device();
  diff.total_bytes_a = tree_a.bytes();
  diff.total_bytes_b = tree_b.bytes();
  for (const Placed& placed : tree_a.tensors()) {
    TensorDiff tensor{.name = placed.tensor->name,
                      .spec_a = placed.tensor->spec,
                      .bytes_per_device_a = placed.bytes_per_device};
    const Placed* other = tree_b.Find(tensor.name);
    if (other == nullptr) {
      ++diff.only_in_a;
      tensor.tiles_differ = true;
    } else {
      tensor.spec_b = other->tensor->spec;
      tensor.bytes_per_device_b = other->bytes_per_device;
      tensor.spec_differs = tensor.spec_a != tensor.spec_b;
      tensor.tiles_differ = TilesDiffer(placed, *other);
      if (!tensor.spec_differs && !tensor.tiles_differ &&
          tensor.bytes_per_device_a == tensor.bytes_per_device_b) {
        ++diff.unchanged_count;
        continue;
      }
    }
    diff.changed.push_back(std::move(tensor));
  }
  for (const Placed& placed : tree_b.tensors()) {
    if (tree_a.Find(placed.tensor->name) == nullptr) {
      ++diff.only_in_b;
      diff.changed.push_back({.name = placed.tensor->name,
                              .spec_b = placed.tensor->spec,
                              .bytes_per_device_b = placed.bytes_per_device,
                              .tiles_differ = true});
    }
  }
  if (std::optional<std::string> over =
          OverBudget(diff.bytes_per_device_a, diff.bytes_per_device_b, budget);
      over.has_value()) {
    diff.within_budget = false;
    diff.budget_text = *std::move(over);
  }
  return diff;
}

std::optional<std::string> OverBudget(int64_t before, int64_t after, const LayoutBudget& budget) {
  if (budget.max_bytes_per_device.has_value() && after > *budget.max_bytes_per_device) {
    return StrCat("a device holds ", after, " bytes; the budget allows ",
                  *budget.max_bytes_per_device);
  }
  if (after <= before) {
    return std::nullopt;
  }
  const int64_t increase = after - before;
  if (budget.max_increase_bytes.has_value() && increase > *budget.max_increase_bytes) {
    return StrCat("a device holds ", after, " bytes instead of ", before, ", ", increase,
                  " more; the budget allows ", *budget.max_increase_bytes, " more");
  }
  // Compare in negated form, so that a ratio of NaN allows no increase.
  if (budget.max_increase_ratio.has_value() &&
      !(static_cast<double>(increase) <=
        *budget.max_increase_ratio * static_cast<double>(before))) {
    return StrCat("a device holds ", after, " bytes instead of ", before, ", ", increase,
                  " more; the budget allows ", *budget.max_increase_ratio * 100, "% more");
  }
  return std::nullopt;
}

}  // namespace shardmesh
