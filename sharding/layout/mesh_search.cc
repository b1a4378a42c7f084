// Enumerates every ordered factorization of the number of devices, and adds up the cost of all
// groups of tensors on each.
#include "sharding/layout/mesh_search.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/numeric/int128.h"
#include "sharding/layout/analysis.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// Number of groups between two cancellation checks. So many groups take well under a millisecond.
constexpr size_t kGroupsPerCancellationCheck = 4096;

constexpr size_t Index(int64_t i) { return static_cast<size_t>(i); }

struct CriterionRow {
  MeshCriterion criterion;
  std::string_view name;
};
constexpr CriterionRow kCriteria[] = {
    {MeshCriterion::kFit, "fit"},
    {MeshCriterion::kDeviceBytes, "device_bytes"},
    {MeshCriterion::kWastedBytes, "wasted_bytes"},
    {MeshCriterion::kCorrections, "corrections"},
};

absl::Status CheckOptions(const MeshSearchOptions& options) {
  if (options.device_count < 1 || options.axes.empty()) {
    return InvalidArgument(
        Reason::kInvalidMesh,
        StrCat("a search needs an axis and a device, and was given ", options.axes.size(),
               " axes and ", options.device_count, " devices"),
        {{fact::kValue, options.device_count}});
  }
  if (options.device_count > kMaxMeshDevices ||
      static_cast<int64_t>(options.axes.size()) > kMaxMeshAxes) {
    return InvalidArgument(
        Reason::kLimitExceeded,
        StrCat("a mesh has at most ", kMaxMeshDevices, " devices and ", kMaxMeshAxes,
               " axes; the search is for ", options.device_count, " and ", options.axes.size()),
        {{fact::kHave, options.device_count}, {fact::kLimit, kMaxMeshDevices}});
  }
  absl::flat_hash_set<std::string_view> names;
  for (const SearchAxis& axis : options.axes) {
    if (axis.name.empty() || axis.name.size() > kMaxAxisNameBytes) {
      return InvalidArgument(
          Reason::kInvalidMesh,
          StrCat("an axis name has 1 to ", kMaxAxisNameBytes, " bytes, not ", axis.name.size()),
          {{fact::kAxis, axis.name}});
    }
    if (!names.insert(axis.name).second) {
      return InvalidArgument(Reason::kDuplicateAxis,
                             StrCat("the axis ", PythonRepr(axis.name), " is given twice"),
                             {{fact::kAxis, axis.name}});
    }
    if (axis.min_size < 1 || (axis.max_size.has_value() && *axis.max_size < axis.min_size)) {
      return InvalidArgument(
          Reason::kInvalidMesh,
          StrCat("the axis ", PythonRepr(axis.name), " is to have ", axis.min_size, " to ",
                 axis.max_size.value_or(options.device_count),
                 " devices; give a range that has a size of at least 1"),
          {{fact::kAxis, axis.name}, {fact::kValue, axis.min_size}});
    }
  }
  return absl::OkStatus();
}

// The ways to divide the devices over the axes.
class Factorizations {
 public:
  explicit Factorizations(const MeshSearchOptions& options)
      : axes_(options.axes), device_count_(options.device_count) {
    for (int64_t divisor = 1; divisor * divisor <= device_count_; ++divisor) {
      if (device_count_ % divisor == 0) {
        divisors_.push_back(divisor);
        if (divisor * divisor != device_count_) {
          divisors_.push_back(device_count_ / divisor);
        }
      }
    }
    std::sort(divisors_.begin(), divisors_.end());
    // counts_[axis][i] is the number of ways to write divisors_[i] as a product of sizes of the
    // axes from `axis` on. Fill it from the last axis to the first.
    counts_.assign(axes_.size() + 1, std::vector<int64_t>(divisors_.size(), 0));
    counts_.back()[0] = 1;
    for (size_t axis = axes_.size(); axis-- > 0;) {
      for (size_t i = 0; i < divisors_.size(); ++i) {
        for (size_t j = 0; j <= i; ++j) {
          if (divisors_[i] % divisors_[j] == 0 && Allows(axis, divisors_[j])) {
            const int64_t rest = counts_[axis + 1][IndexOf(divisors_[i] / divisors_[j])];
            if (__builtin_add_overflow(counts_[axis][i], rest, &counts_[axis][i])) {
              counts_[axis][i] = std::numeric_limits<int64_t>::max();
            }
          }
        }
      }
    }
  }

  // Returns the number of factorizations; saturates at int64_t's maximum.
  int64_t count() const { return counts_.front().back(); }

  // Calls visit(sizes) for each factorization, in falling lexicographic order of the sizes. Stops
  // at the first error of `visit`, and returns it.
  template <typename Visit>
  absl::Status ForEach(const Visit& visit) const {
    std::vector<int64_t> sizes(axes_.size(), 1);
    return Descend(0, device_count_, sizes, visit);
  }

 private:
  bool Allows(size_t axis, int64_t size) const {
    return size >= axes_[axis].min_size &&
           (!axes_[axis].max_size.has_value() || size <= *axes_[axis].max_size);
  }
  size_t IndexOf(int64_t divisor) const {
    return Index(std::lower_bound(divisors_.begin(), divisors_.end(), divisor) - divisors_.begin());
  }

  template <typename Visit>
  absl::Status Descend(size_t axis, int64_t rest, std::vector<int64_t>& sizes,
                       const Visit& visit) const {
    if (axis == axes_.size()) {
      return visit(sizes);
    }
    for (size_t i = IndexOf(rest) + 1; i-- > 0;) {
      const int64_t size = divisors_[i];
      if (rest % size == 0 && Allows(axis, size) && counts_[axis + 1][IndexOf(rest / size)] > 0) {
        sizes[axis] = size;
        SHARDMESH_RETURN_IF_ERROR(Descend(axis + 1, rest / size, sizes, visit));
      }
    }
    return absl::OkStatus();
  }

  const std::vector<SearchAxis>& axes_;
  int64_t device_count_;
  std::vector<int64_t> divisors_;
  std::vector<std::vector<int64_t>> counts_;  // indexed by axis, then by divisor
};

using AxisSet = uint32_t;  // bit i is set if axis i is in the set
static_assert(kMaxMeshAxes <= 32);

// A group of tensors, with all facts that do not depend on the candidate mesh. An axis is given by
// its index in MeshSearchOptions::axes.
struct PreparedGroup {
  struct Dimension {
    int64_t extent = 1;
    absl::InlinedVector<int64_t, 2> axes;  // empty if no mesh can partition the dimension
    AxisSet set = 0;
    bool repeats = false;  // whether an axis occurs twice in `axes`
  };
  absl::InlinedVector<Dimension, 4> dimensions;
  AxisSet unreduced = 0;
  bool is_corrected = false;    // whether every mesh needs a correction of the spec
  bool is_unplaceable = false;  // whether no mesh can place the tensors
  int64_t bits_per_element = 0;
  int64_t count = 0;
  int64_t elements = 0;
  int64_t bytes = 0;  // of one tensor
};

absl::Status CheckCount(int64_t count) {
  if (count < 1 || count > kMaxGroupCount) {
    return InvalidArgument(Reason::kLimitExceeded,
                           StrCat("a group has 1 to ", kMaxGroupCount, " tensors, not ", count),
                           {{fact::kHave, count}, {fact::kLimit, kMaxGroupCount}});
  }
  return absl::OkStatus();
}

absl::StatusOr<PreparedGroup> Prepare(const TensorGroup& group,
                                      const std::vector<SearchAxis>& axes) {
  PreparedGroup prepared;
  SHARDMESH_RETURN_IF_ERROR(CheckCount(group.count));
  SHARDMESH_ASSIGN_OR_RETURN(prepared.elements, ElementCount(group.shape));
  SHARDMESH_ASSIGN_OR_RETURN(prepared.bytes, TileBytes(prepared.elements, group.bits_per_element));
  prepared.bits_per_element = group.bits_per_element;
  prepared.count = group.count;
  const auto find = [&axes](const AxisName& name) -> std::optional<int64_t> {
    for (size_t i = 0; name.has_value() && i < axes.size(); ++i) {
      if (axes[i].name == *name) {
        return static_cast<int64_t>(i);
      }
    }
    return std::nullopt;
  };
  const auto rank = static_cast<int64_t>(group.shape.size());
  for (int64_t dim = 0; dim < std::max(rank, group.spec.size()); ++dim) {
    const SpecEntry& entry = group.spec.entry(dim);
    if (dim >= rank) {
      prepared.is_corrected = prepared.is_corrected || !entry.is_none();
      continue;
    }
    PreparedGroup::Dimension dimension;
    dimension.extent = group.shape[Index(dim)];
    bool known = !entry.is_unconstrained();
    for (const AxisName& name : entry.axes()) {
      const std::optional<int64_t> axis = find(name);
      known = known && axis.has_value();
      if (known) {
        const AxisSet bit = AxisSet{1} << *axis;
        dimension.repeats = dimension.repeats || (dimension.set & bit) != 0;
        dimension.set |= bit;
        dimension.axes.push_back(*axis);
      }
    }
    if (!known) {
      prepared.is_corrected = true;
      dimension.axes.clear();
      dimension.set = 0;
    }
    prepared.dimensions.push_back(std::move(dimension));
  }
  for (const std::string& name : group.spec.unreduced()) {
    const std::optional<int64_t> axis = find(name);
    prepared.is_unplaceable = prepared.is_unplaceable || !axis.has_value();
    if (axis.has_value()) {
      prepared.unreduced |= AxisSet{1} << *axis;
    }
  }
  return prepared;
}

absl::Status OverLimit() {
  return WithReason(absl::ResourceExhaustedError(
                        "a sum over the tensors and devices of a candidate does not fit 63 bits"),
                    Reason::kLimitExceeded, {{fact::kLimit, std::numeric_limits<int64_t>::max()}});
}

bool IsTimeToStop(size_t group, const MeshSearchOptions& options) {
  return group % kGroupsPerCancellationCheck == kGroupsPerCancellationCheck - 1 &&
         options.is_cancelled != nullptr && options.is_cancelled();
}

absl::Status Cancelled(std::string_view when) {
  return WithReason(absl::CancelledError(StrCat("the search was cancelled ", when)),
                    Reason::kCancelled);
}

class MeshScorer {
 public:
  MeshScorer(std::vector<PreparedGroup> groups, const MeshSearchOptions& options)
      : groups_(std::move(groups)), options_(options) {}

  absl::StatusOr<MeshCandidate> Evaluate(const std::vector<int64_t>& sizes) const {
    MeshCandidate candidate;
    candidate.sizes = sizes;
    AxisSet large = 0;  // the axes of more than one device
    for (size_t axis = 0; axis < sizes.size(); ++axis) {
      large |= sizes[axis] > 1 ? AxisSet{1} << axis : 0;
    }
    absl::int128 device_bytes = 0;
    absl::int128 wasted_bytes = 0;
    absl::int128 sharded_bytes = 0;
    absl::int128 corrected = 0;
    absl::int128 unplaceable = 0;
    for (size_t i = 0; i < groups_.size(); ++i) {
      if (IsTimeToStop(i, options_)) {
        return absl::CancelledError("");
      }
      const PreparedGroup& group = groups_[i];
      bool is_corrected = group.is_corrected;
      bool is_unplaceable = group.is_unplaceable;
      AxisSet used = group.unreduced;
      int64_t parts = 1;
      for (const PreparedGroup::Dimension& dimension : group.dimensions) {
        if (dimension.axes.empty()) {
          continue;
        }
        int64_t product = 1;
        bool divides = true;
        if (dimension.extent > 0) {  // every product of axes divides an extent of 0
          for (const int64_t axis : dimension.axes) {
            // With a repeated axis, the product may exceed int64_t.
            divides = divides && !__builtin_mul_overflow(product, sizes[Index(axis)], &product);
          }
          divides = divides && dimension.extent % product == 0;
        }
        if (!divides) {
          is_corrected = true;
          continue;
        }
        is_unplaceable = is_unplaceable || dimension.repeats || (used & dimension.set) != 0;
        used |= dimension.set;
        parts *= is_unplaceable ? 1 : product;
      }
      int64_t tile_bytes = group.bytes;
      if (!is_unplaceable && parts > 1) {
        // The cast is safe, because the bytes of the whole tensor fit int64_t.
        tile_bytes = static_cast<int64_t>(
            (absl::int128(group.elements / parts) * group.bits_per_element + 7) / 8);
      }
      const absl::int128 held = absl::int128(tile_bytes) * options_.device_count;
      device_bytes += absl::int128(tile_bytes) * group.count;
      wasted_bytes += (held - group.bytes) * group.count;
      // Check after each group: a group adds less than 2^125, so the 128-bit sums cannot overflow.
      if (std::max(device_bytes, wasted_bytes) > std::numeric_limits<int64_t>::max()) {
        return OverLimit();
      }
      if (!is_unplaceable && (used & large) != 0) {
        sharded_bytes += absl::int128(group.bytes) * group.count;
      }
      corrected += is_corrected ? group.count : 0;
      unplaceable += is_unplaceable ? group.count : 0;
    }
    const auto to_int64 = [](const absl::int128& value) -> absl::StatusOr<int64_t> {
      if (value > std::numeric_limits<int64_t>::max()) {
        return OverLimit();
      }
      return static_cast<int64_t>(value);
    };
    SHARDMESH_ASSIGN_OR_RETURN(candidate.device_bytes, to_int64(device_bytes));
    SHARDMESH_ASSIGN_OR_RETURN(candidate.wasted_bytes, to_int64(wasted_bytes));
    SHARDMESH_ASSIGN_OR_RETURN(candidate.sharded_bytes, to_int64(sharded_bytes));
    SHARDMESH_ASSIGN_OR_RETURN(candidate.corrected_tensors, to_int64(corrected));
    SHARDMESH_ASSIGN_OR_RETURN(candidate.unplaceable_tensors, to_int64(unplaceable));
    candidate.fits = candidate.unplaceable_tensors == 0 &&
                     candidate.device_bytes <=
                         options_.device_memory_bytes.value_or(std::numeric_limits<int64_t>::max());
    return candidate;
  }

  bool IsBetter(const MeshCandidate& a, const MeshCandidate& b) const {
    for (const MeshCriterion criterion : options_.ranking) {
      const int64_t cost_a = CostOf(a, criterion);
      const int64_t cost_b = CostOf(b, criterion);
      if (cost_a != cost_b) {
        return cost_a < cost_b;
      }
    }
    return a.sizes > b.sizes;
  }

 private:
  static int64_t CostOf(const MeshCandidate& candidate, MeshCriterion criterion) {
    switch (criterion) {
      case MeshCriterion::kFit:
        return candidate.fits ? 0 : 1;
      case MeshCriterion::kDeviceBytes:
        return candidate.device_bytes;
      case MeshCriterion::kWastedBytes:
        return candidate.wasted_bytes;
      case MeshCriterion::kCorrections:
        return candidate.corrected_tensors;
    }
    return 0;
  }

  std::vector<PreparedGroup> groups_;
  const MeshSearchOptions& options_;
};

}  // namespace

std::string_view MeshCriterionName(MeshCriterion criterion) {
  for (const CriterionRow& row : kCriteria) {
    if (row.criterion == criterion) {
      return row.name;
    }
  }
  return "";
}

std::optional<MeshCriterion> MeshCriterionFromName(std::string_view name) {
  for (const CriterionRow& row : kCriteria) {
    if (row.name == name) {
      return row.criterion;
    }
  }
  return std::nullopt;
}

absl::Status TensorGroups::Add(const PartitionSpec& spec, absl::Span<const int64_t> shape,
                               int64_t bits_per_element, int64_t count) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(shape));
  SHARDMESH_RETURN_IF_ERROR(TileBytes(elements, bits_per_element).status());
  SHARDMESH_RETURN_IF_ERROR(CheckCount(count));
  std::string key = StrCat(spec.ToString(), ShapeToString(shape), bits_per_element);
  const auto [at, is_new] = index_.try_emplace(std::move(key), groups_.size());
  if (is_new) {
    groups_.push_back({spec, Shape(shape.begin(), shape.end()), bits_per_element, count});
    return absl::OkStatus();
  }
  TensorGroup& group = groups_[at->second];
  SHARDMESH_RETURN_IF_ERROR(CheckCount(group.count + count));
  group.count += count;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> CountMeshes(const MeshSearchOptions& options) {
  SHARDMESH_RETURN_IF_ERROR(CheckOptions(options));
  return Factorizations(options).count();
}

absl::StatusOr<MeshSearchResult> SearchMeshes(absl::Span<const TensorGroup> groups,
                                              const MeshSearchOptions& options) {
  SHARDMESH_RETURN_IF_ERROR(CheckOptions(options));
  if (options.keep < 1 || options.keep > kMaxKeptCandidates) {
    return InvalidArgument(
        Reason::kLimitExceeded,
        StrCat("a search keeps 1 to ", kMaxKeptCandidates, " candidates, not ", options.keep),
        {{fact::kHave, options.keep}, {fact::kLimit, kMaxKeptCandidates}});
  }
  const Factorizations factorizations(options);
  if (factorizations.count() == 0) {
    return InvalidArgument(Reason::kInvalidMesh,
                           StrCat(options.device_count, " devices cannot be divided over the axes",
                                  " within their bounds; widen one"),
                           {{fact::kValue, options.device_count}});
  }
  if (factorizations.count() > kMaxMeshCandidates) {
    return InvalidArgument(
        Reason::kLimitExceeded,
        StrCat("there are ", factorizations.count(), " meshes to try, more than ",
               kMaxMeshCandidates, "; bound or drop an axis"),
        {{fact::kHave, factorizations.count()}, {fact::kLimit, kMaxMeshCandidates}});
  }
  std::vector<PreparedGroup> prepared;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (IsTimeToStop(i, options)) {
      return Cancelled("before its first mesh");
    }
    absl::StatusOr<PreparedGroup> group = Prepare(groups[i], options.axes);
    if (!group.ok()) {
      return WithContext(group.status(), StrCat("group ", i));
    }
    prepared.push_back(*std::move(group));
  }
  const MeshScorer judge(std::move(prepared), options);
  const auto is_better = [&judge](const MeshCandidate& a, const MeshCandidate& b) {
    return judge.IsBetter(a, b);
  };
  MeshSearchResult result;
  std::vector<MeshCandidate>& best = result.best;  // a heap with the worst candidate in front
  SHARDMESH_RETURN_IF_ERROR(
      factorizations.ForEach([&](const std::vector<int64_t>& sizes) -> absl::Status {
        absl::StatusOr<MeshCandidate> evaluated = absl::CancelledError("");
        if (options.is_cancelled == nullptr || !options.is_cancelled()) {
          evaluated = judge.Evaluate(sizes);
        }
        if (absl::IsCancelled(evaluated.status())) {
          return Cancelled(
              StrCat("after ", result.evaluated, " of ", factorizations.count(), " meshes"));
        }
        SHARDMESH_ASSIGN_OR_RETURN(MeshCandidate candidate, std::move(evaluated));
        ++result.evaluated;
        result.fitting += candidate.fits ? 1 : 0;
        if (static_cast<int64_t>(best.size()) == options.keep) {
          if (!is_better(candidate, best.front())) {
            return absl::OkStatus();
          }
          std::pop_heap(best.begin(), best.end(), is_better);
          best.pop_back();
        }
        best.push_back(std::move(candidate));
        std::push_heap(best.begin(), best.end(), is_better);
        return absl::OkStatus();
      }));
  std::sort_heap(best.begin(), best.end(), is_better);
  return result;
}

}  // namespace shardmesh
