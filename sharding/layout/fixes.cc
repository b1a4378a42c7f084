// Searches for the fitting requests that are nearest to a corrected request.
#include "sharding/layout/fixes.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "sharding/axis_value.h"
#include "sharding/usual_axes.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr int64_t kSaturated = std::numeric_limits<int64_t>::max();

// An axis of an entry, if the mesh has it, with its size.
struct KnownAxis {
  std::string name;
  int64_t size = 1;
};

// Returns `name` if the mesh has this axis or if `name` is a usual axis. For any other name,
// returns the most similar axis of the mesh, which the text of the correction also suggests; empty
// if no axis is similar.
std::string IntendedAxis(const std::string& name, const Mesh& mesh) {
  const bool is_usual =
      std::find(std::begin(kUsualAxes), std::end(kUsualAxes), name) != std::end(kUsualAxes);
  return is_usual || mesh.FindAxis(name).has_value() ? name : mesh.NearestAxis(name);
}

enum class Spelling { kAsWritten, kIntended };

std::vector<KnownAxis> KnownAxes(const SpecEntry& entry, const Mesh& mesh,
                                 Spelling spelling = Spelling::kAsWritten) {
  std::vector<KnownAxis> known;
  for (const AxisName& written : entry.axes()) {
    if (!written.has_value()) {
      continue;
    }
    const std::string name =
        spelling == Spelling::kIntended ? IntendedAxis(*written, mesh) : *written;
    if (const std::optional<int64_t> axis = mesh.FindAxis(name); axis.has_value()) {
      known.push_back({name, mesh.axes()[static_cast<size_t>(*axis)].size});
    }
  }
  return known;
}

int64_t Product(absl::Span<const KnownAxis> axes) {
  int64_t product = 1;
  for (const KnownAxis& axis : axes) {
    product = product > kSaturated / axis.size ? kSaturated : product * axis.size;
  }
  return product;
}

SpecEntry EntryOf(absl::Span<const std::string> axes) {
  return SpecEntry::Axes(std::vector<AxisName>(axes.begin(), axes.end()));
}

// Returns the axes, major to minor: `'fsdp', 'tp'`.
std::string AxesText(absl::Span<const std::string> axes) {
  return StrJoin(axes, ", ",
                 [](std::string* out, const std::string& axis) { out->append(PythonRepr(axis)); });
}

// Finds the subset of some axes with the largest product that divides an extent. Of subsets with
// equal products, takes the one with the most axes; of these, the one with the earliest axes.
class LargestSubset {
 public:
  // Requires distinct axes. The search tries up to 2^axes subsets, at most 2^kMaxMeshAxes.
  LargestSubset(absl::Span<const KnownAxis> axes, int64_t extent) : axes_(axes), extent_(extent) {
    Extend(0, 1, {});
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const size_t axis : best_) {
      names.push_back(axes_[axis].name);
    }
    return names;
  }

 private:
  // Searches the subsets whose axes before axis `next` are exactly `chosen`. Tries the subsets with
  // an axis before those without the axis, so that subsets of earlier axes win ties.
  void Extend(size_t next, int64_t product, std::vector<size_t> chosen) {
    if (next == axes_.size()) {
      if (product > best_product_ || (product == best_product_ && chosen.size() > best_.size())) {
        best_product_ = product;
        best_ = std::move(chosen);
      }
      return;
    }
    // If a product does not divide the extent, no multiple of the product does: skip all of them.
    const int64_t with = product * axes_[next].size;
    if (extent_ % with == 0) {
      std::vector<size_t> more = chosen;
      more.push_back(next);
      Extend(next + 1, with, std::move(more));
    }
    Extend(next + 1, product, std::move(chosen));
  }

  const absl::Span<const KnownAxis> axes_;
  const int64_t extent_;
  int64_t best_product_ = 0;
  std::vector<size_t> best_;
};

// An entry that may move to another dimension. The request has the entry at dimension `from`.
struct MovableEntry {
  SpecEntry entry;
  int64_t from = 0;
  int64_t parts = 1;
};

// Assigns entries to dimensions such that each entry's parts divide its dimension. Finds the
// assignment that moves the fewest entries; of several such assignments, the one with the least
// total distance. Find returns nullopt if no assignment exists.
class LeastOrder {
 public:
  LeastOrder(absl::Span<const MovableEntry> entries, absl::Span<const int64_t> shape)
      : entries_(entries), shape_(shape) {}

  std::optional<std::vector<int64_t>> Find() {
    if (entries_.size() > shape_.size()) {
      return std::nullopt;
    }
    cost_.assign(size_t{1} << shape_.size(), kUnknown);
    if (CostFrom(0) == kImpossible) {
      return std::nullopt;
    }
    std::vector<int64_t> dims;
    uint32_t taken = 0;
    for (size_t i = 0; i < entries_.size(); ++i) {
      dims.push_back(BestDim(taken));
      taken |= uint32_t{1} << dims.back();
    }
    return dims;
  }

 private:
  static constexpr int64_t kUnknown = -1;
  static constexpr int64_t kImpossible = int64_t{1} << 60;
  // Cost of each moved entry, in addition to its distance. It exceeds every possible sum of
  // distances.
  static constexpr int64_t kMove = int64_t{1} << 20;

  // Returns the cost of placing the entry at `dim`; kImpossible if the entry's parts do not divide
  // the dimension.
  int64_t StepCost(const MovableEntry& entry, int64_t dim) const {
    if (shape_[static_cast<size_t>(dim)] % entry.parts != 0) {
      return kImpossible;
    }
    const int64_t distance = std::min<int64_t>(std::abs(entry.from - dim), kMove / 32);
    return distance == 0 ? 0 : kMove + distance;
  }

  // Returns the best dimension for the first unplaced entry. The bits of `taken` are the dimensions
  // that the entries before it use.
  int64_t BestDim(uint32_t taken) {
    const MovableEntry& entry = entries_[static_cast<size_t>(std::popcount(taken))];
    const int64_t cost = CostFrom(taken);
    const auto is_best = [&](int64_t dim) {
      const uint32_t bit = uint32_t{1} << dim;
      return (taken & bit) == 0 && StepCost(entry, dim) != kImpossible &&
             StepCost(entry, dim) + CostFrom(taken | bit) == cost;
    };
    const auto rank = static_cast<int64_t>(shape_.size());
    if (entry.from < rank && is_best(entry.from)) {
      return entry.from;
    }
    int64_t dim = 0;
    while (!is_best(dim)) {
      ++dim;
    }
    return dim;
  }

  // Returns the least cost of placing the remaining entries in the dimensions that `taken` lacks.
  int64_t CostFrom(uint32_t taken) {
    const auto placed = static_cast<size_t>(std::popcount(taken));
    if (placed == entries_.size()) {
      return 0;
    }
    int64_t& cost = cost_[taken];
    if (cost != kUnknown) {
      return cost;
    }
    int64_t least = kImpossible;
    for (size_t dim = 0; dim < shape_.size(); ++dim) {
      const uint32_t bit = uint32_t{1} << dim;
      if ((taken & bit) != 0) {
        continue;
      }
      const int64_t step = StepCost(entries_[placed], static_cast<int64_t>(dim));
      if (step != kImpossible) {
        least = std::min(least, step + CostFrom(taken | bit));
      }
    }
    return cost_[taken] = std::min(least, kImpossible);
  }

  const absl::Span<const MovableEntry> entries_;
  const absl::Span<const int64_t> shape_;
  std::vector<int64_t> cost_;  // results of CostFrom, indexed by `taken`
};

// Returns whether another order of entries can make this correction unnecessary.
bool CanMove(const Correction& correction) {
  return correction.reason == Reason::kNotDivisible || correction.reason == Reason::kRankTruncated;
}

class Suggester {
 public:
  Suggester(const PartitionSpec& requested, absl::Span<const int64_t> shape, const Mesh& mesh,
            const CorrectionResult& result)
      : requested_(requested), shape_(shape), mesh_(mesh), result_(result) {}

  std::vector<Fix> Suggest();

 private:
  int64_t rank() const { return static_cast<int64_t>(shape_.size()); }

  // Returns the effective spec with `entry` at `dim`.
  PartitionSpec With(int64_t dim, SpecEntry entry) const;
  // Returns `entry` as a MovableEntry; nullopt if it has no axes, or an axis that the mesh lacks.
  std::optional<MovableEntry> Movable(const SpecEntry& entry, int64_t from) const;

  void SuggestSubset(const Correction& correction, Fix fix);
  void SuggestPadding(const Correction& correction, Fix fix);
  // Suggests an order of `entries` as a fix for the correction of the entry at `moved_from`.
  // Returns false if no order exists, or if Keep refuses it.
  bool SuggestOrder(std::vector<MovableEntry> entries, int64_t moved_from, Fix fix);
  // Adds the fix to the result if its request is new and needs no correction. Returns whether it
  // added the fix.
  bool Keep(Fix fix, const PartitionSpec& spec, Shape shape);

  const PartitionSpec& requested_;
  const absl::Span<const int64_t> shape_;
  const Mesh& mesh_;
  const CorrectionResult& result_;
  std::vector<Fix> fixes_;
};

PartitionSpec Suggester::With(int64_t dim, SpecEntry entry) const {
  std::vector<SpecEntry> entries;
  for (int64_t i = 0; i < rank(); ++i) {
    entries.push_back(i == dim ? entry : result_.effective.entry(i));
  }
  const absl::Span<const std::string> unreduced = result_.effective.unreduced();
  return PartitionSpec(std::move(entries), {unreduced.begin(), unreduced.end()});
}

bool Suggester::Keep(Fix fix, const PartitionSpec& spec, Shape shape) {
  const absl::StatusOr<CorrectionResult> corrected = Correct(spec, shape, mesh_);
  if (!corrected.ok() || !corrected->corrections.empty() || !CheckShape(shape).ok()) {
    return false;
  }
  fix.spec = corrected->effective;
  fix.shape = std::move(shape);
  if (std::any_of(fixes_.begin(), fixes_.end(), [&fix](const Fix& known) {
        return known.spec == fix.spec && known.shape == fix.shape;
      })) {
    return false;
  }
  fixes_.push_back(std::move(fix));
  return true;
}

void Suggester::SuggestSubset(const Correction& correction, Fix fix) {
  fix.kind = Fix::Kind::kAxesSubset;
  if (fix.dim < rank()) {
    std::vector<KnownAxis> candidates;
    for (KnownAxis& axis : KnownAxes(correction.requested, mesh_, Spelling::kIntended)) {
      const auto is_same = [&axis](const auto& other) { return other == axis.name; };
      const std::vector<std::string> used = result_.effective.AxisNames();
      const absl::Span<const std::string> unreduced = result_.effective.unreduced();
      if (std::none_of(used.begin(), used.end(), is_same) &&
          std::none_of(unreduced.begin(), unreduced.end(), is_same) &&
          std::none_of(candidates.begin(), candidates.end(),
                       [&is_same](const KnownAxis& other) { return is_same(other.name); })) {
        candidates.push_back(std::move(axis));
      }
    }
    fix.axes = LargestSubset(candidates, shape_[static_cast<size_t>(fix.dim)]).names();
  }
  fix.text = fix.dim >= rank() ? StrCat("leave out entry ", fix.dim, " of the spec")
             : fix.axes.empty()
                 ? StrCat("ask for no axis along dimension ", fix.dim)
                 : StrCat("ask for ", AxesText(fix.axes), " along dimension ", fix.dim);
  const PartitionSpec spec = With(fix.dim, EntryOf(fix.axes));
  Keep(std::move(fix), spec, Shape(shape_.begin(), shape_.end()));
}

void Suggester::SuggestPadding(const Correction& correction, Fix fix) {
  const std::vector<KnownAxis> known = KnownAxes(correction.requested, mesh_);
  const int64_t parts = Product(known);
  const int64_t extent = shape_[static_cast<size_t>(fix.dim)];
  if (extent % parts == 0) {
    return;
  }
  const absl::int128 padded = (absl::int128(extent) / parts + 1) * parts;
  if (padded > kSaturated) {
    return;
  }
  fix.kind = Fix::Kind::kPaddedSize;
  fix.size = static_cast<int64_t>(padded);
  std::vector<std::string> names;
  for (const KnownAxis& axis : known) {
    names.push_back(axis.name);
  }
  fix.text = StrCat("pad dimension ", fix.dim, " from ", extent, " to ", fix.size);
  if (correction.reason == Reason::kAxisNotInMesh) {
    StrAppend(&fix.text, " and ask for ", AxesText(names), " along it");
  }
  Shape shape(shape_.begin(), shape_.end());
  shape[static_cast<size_t>(fix.dim)] = fix.size;
  const PartitionSpec spec = With(fix.dim, EntryOf(names));
  Keep(std::move(fix), spec, std::move(shape));
}

std::optional<MovableEntry> Suggester::Movable(const SpecEntry& entry, int64_t from) const {
  const std::vector<KnownAxis> known = KnownAxes(entry, mesh_);
  if (entry.is_none() || entry.is_unconstrained() || known.size() != entry.axes().size()) {
    return std::nullopt;
  }
  return MovableEntry{entry, from, Product(known)};
}

bool Suggester::SuggestOrder(std::vector<MovableEntry> entries, int64_t moved_from, Fix fix) {
  const std::optional<std::vector<int64_t>> dims = LeastOrder(entries, shape_).Find();
  if (!dims.has_value()) {
    return false;
  }
  std::vector<SpecEntry> ordered(shape_.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    ordered[static_cast<size_t>((*dims)[i])] = entries[i].entry;
    if (entries[i].from == moved_from) {
      fix.dim = (*dims)[i];
    }
  }
  const absl::Span<const std::string> unreduced = result_.effective.unreduced();
  const PartitionSpec spec(std::move(ordered), {unreduced.begin(), unreduced.end()});
  fix.kind = Fix::Kind::kAxisOrder;
  fix.text = StrCat("move the axes: ask for ", DescribeAxes(spec));
  return Keep(std::move(fix), spec, Shape(shape_.begin(), shape_.end()));
}

std::vector<Fix> Suggester::Suggest() {
  // All requested entries that have axes and whose axes are all in the mesh, corrected or not.
  std::vector<MovableEntry> all;
  for (int64_t dim = 0; dim < requested_.size(); ++dim) {
    if (std::optional<MovableEntry> entry = Movable(requested_.entry(dim), dim);
        entry.has_value()) {
      all.push_back(*std::move(entry));
    }
  }
  std::vector<MovableEntry> served;
  for (int64_t dim = 0; dim < result_.effective.size(); ++dim) {
    if (std::optional<MovableEntry> entry = Movable(result_.effective.entry(dim), dim);
        entry.has_value()) {
      served.push_back(*std::move(entry));
    }
  }
  bool all_ordered = false;
  bool all_tried = false;
  for (size_t i = 0; i < result_.corrections.size(); ++i) {
    const Correction& correction = result_.corrections[i];
    if (correction.dim < 0) {
      continue;
    }
    Fix fix;
    fix.correction = static_cast<int64_t>(i);
    fix.dim = correction.dim;
    SuggestSubset(correction, fix);
    if (correction.dim < rank() && (correction.reason == Reason::kNotDivisible ||
                                    correction.reason == Reason::kAxisNotInMesh)) {
      SuggestPadding(correction, fix);
    }
    if (!CanMove(correction)) {
      continue;
    }
    std::optional<MovableEntry> moved = Movable(correction.requested, correction.dim);
    if (!moved.has_value()) {
      continue;  // the entry was cut off, and the mesh also lacks an axis of it
    }
    if (!all_tried) {
      all_tried = true;
      all_ordered = SuggestOrder(all, correction.dim, fix);
    }
    if (!all_ordered) {
      std::vector<MovableEntry> entries = served;
      entries.push_back(*std::move(moved));
      std::sort(entries.begin(), entries.end(),
                [](const MovableEntry& a, const MovableEntry& b) { return a.from < b.from; });
      SuggestOrder(std::move(entries), correction.dim, fix);
    }
  }
  return std::move(fixes_);
}

}  // namespace

std::string DescribeAxes(const PartitionSpec& spec) {
  std::vector<std::string> dimensions;
  for (int64_t dim = 0; dim < spec.size(); ++dim) {
    std::vector<std::string> axes;
    for (const AxisName& axis : spec.entry(dim).axes()) {
      if (axis.has_value()) axes.push_back(*axis);
    }
    if (!axes.empty()) dimensions.push_back(StrCat(AxesText(axes), " along dimension ", dim));
  }
  return dimensions.empty() ? "no axis" : StrJoin(dimensions, " and ");
}

std::vector<Fix> SuggestFixes(const PartitionSpec& requested, absl::Span<const int64_t> shape,
                              const Mesh& mesh, const CorrectionResult& result) {
  if (mesh.empty()) {
    return {};
  }
  return Suggester(requested, shape, mesh, result).Suggest();
}

}  // namespace shardmesh
