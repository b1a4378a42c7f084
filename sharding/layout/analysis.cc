// Adds up the tensors of a layout, and the bytes of each device for tensors with uneven parts.
#include "sharding/layout/analysis.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/numeric/int128.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr size_t Index(int64_t i) { return static_cast<size_t>(i); }

absl::Status OverLimit(std::string_view what, int64_t limit = std::numeric_limits<int64_t>::max()) {
  return WithReason(absl::ResourceExhaustedError(ToAbsl(what)), Reason::kLimitExceeded,
                    {{fact::kLimit, limit}});
}

absl::Status NoMesh() {
  return WithPythonType(
      WithReason(absl::FailedPreconditionError("a layout is analyzed on a mesh, and there is none"),
                 Reason::kNoMesh),
      "AssertionError");
}

absl::StatusOr<int64_t> Sum(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    return OverLimit("a sum over the tensors of the layout does not fit 63 bits");
  }
  return sum;
}

absl::StatusOr<int64_t> Product(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    return OverLimit("the bytes that all devices hold of the layout do not fit 63 bits");
  }
  return product;
}

// Numbers the combinations of coordinates along some axes, and maps devices to these numbers.
class Combinations {
 public:
  Combinations(const Mesh& mesh, std::vector<int64_t> axes) : mesh_(mesh), axes_(std::move(axes)) {}

  // Returns the number of combinations; `limit` + 1 if there are more than `limit`.
  int64_t CountUpTo(int64_t limit) const {
    int64_t count = 1;
    for (const int64_t axis : axes_) {
      count *= mesh_.axes()[Index(axis)].size;
      if (count > limit) {
        return limit + 1;
      }
    }
    return count;
  }
  DeviceId DeviceAt(int64_t combination) const {
    DeviceId device = 0;
    for (size_t i = axes_.size(); i-- > 0;) {
      const int64_t size = mesh_.axes()[Index(axes_[i])].size;
      device += combination % size * mesh_.stride(axes_[i]);
      combination /= size;
    }
    return device;
  }
  int64_t At(DeviceId device) const {
    int64_t combination = 0;
    for (const int64_t axis : axes_) {
      combination = combination * mesh_.axes()[Index(axis)].size + mesh_.CoordinateOf(device, axis);
    }
    return combination;
  }
  const std::vector<int64_t>& axes() const { return axes_; }

 private:
  const Mesh& mesh_;
  std::vector<int64_t> axes_;
};

// Returns, in rising order, the axes of the dimensions with unequal parts.
std::vector<int64_t> UnevenAxes(const Tiling& tiling) {
  std::vector<int64_t> axes;
  for (int64_t dim = 0; !tiling.has_equal_tiles() && dim < tiling.rank(); ++dim) {
    const int64_t parts = tiling.PartCount(dim);
    bool equal = true;
    for (int64_t part = 1; equal && part < parts; ++part) {
      equal = tiling.PartRange(dim, part).size() == tiling.PartRange(dim, 0).size();
    }
    if (equal) {
      continue;
    }
    for (const AxisName& name : tiling.spec().entry(dim).axes()) {
      axes.push_back(*tiling.mesh().FindAxis(*name));
    }
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

// Adds `usage` to `list`, unless its key is 0. Keeps the first `limit` entries by falling `key`,
// then by name.
template <typename Key>
void KeepLargest(std::vector<TensorUsage>& list, const TensorUsage& usage, size_t limit,
                 const Key& key) {
  if (key(usage) == 0) {
    return;
  }
  const auto before = [&key](const TensorUsage& a, const TensorUsage& b) {
    return key(a) != key(b) ? key(a) > key(b) : a.name < b.name;
  };
  if (list.size() == limit && !before(usage, list.back())) {
    return;
  }
  list.insert(std::upper_bound(list.begin(), list.end(), usage, before), usage);
  if (list.size() > limit) {
    list.pop_back();
  }
}

}  // namespace

absl::StatusOr<int64_t> TileBytes(int64_t elements, int64_t bits_per_element) {
  const absl::int128 bits = absl::int128(elements) * bits_per_element;
  const absl::int128 bytes = (bits + 7) / 8;
  if (elements < 0 || bits_per_element < 1 || bytes > std::numeric_limits<int64_t>::max()) {
    return InvalidArgument(Reason::kInvalidShape,
                           StrCat(elements, " elements of ", bits_per_element,
                                  " bits each are not a size that 63 bits can count in bytes"),
                           {{fact::kValue, elements}});
  }
  return static_cast<int64_t>(bytes);
}

struct LayoutAnalysis::State {
  explicit State(const Mesh& on) : mesh(on) {}

  Mesh mesh;
  LayoutReport report;            // sums, and all lists except `specs`
  int64_t even_device_bytes = 0;  // bytes that each device holds of tensors with equal parts
  absl::flat_hash_map<std::string, SpecUsage> specs;
  // For tensors with uneven parts. Key: the axes of the uneven dimensions. Value: the bytes on a
  // device, for each combination of coordinates along these axes.
  std::map<std::vector<int64_t>, std::vector<int64_t>> uneven;
  int64_t uneven_sums = 0;  // number of sums in `uneven`
};

LayoutAnalysis::LayoutAnalysis(std::unique_ptr<State> state) : state_(std::move(state)) {}
LayoutAnalysis::LayoutAnalysis(LayoutAnalysis&&) noexcept = default;
LayoutAnalysis& LayoutAnalysis::operator=(LayoutAnalysis&&) noexcept = default;
LayoutAnalysis::~LayoutAnalysis() = default;

absl::StatusOr<LayoutAnalysis> LayoutAnalysis::Create(const Mesh& mesh) {
  if (mesh.empty()) {
    return NoMesh();
  }
  return LayoutAnalysis(std::make_unique<State>(mesh));
}

absl::Status LayoutAnalysis::Add(std::string_view name, absl::Span<const int64_t> shape,
                                 int64_t bits_per_element, const PartitionSpec& spec) {
  const absl::StatusOr<Tiling> tiling =
      Tiling::Create(state_->mesh, spec, Shape(shape.begin(), shape.end()));
  if (!tiling.ok()) {
    return WithContext(tiling.status(), name);
  }
  return Add(name, *tiling, bits_per_element);
}

absl::Status LayoutAnalysis::Add(std::string_view name, const Tiling& tiling,
                                 int64_t bits_per_element) {
  if (!(tiling.mesh() == state_->mesh)) {
    return InvalidArgument(
        Reason::kMeshMismatch,
        StrCat(name, " lies on the mesh ", tiling.mesh().ToString(), "; this is an analysis of ",
               state_->mesh.ToString()),
        {{fact::kHave, tiling.mesh().ToString()}, {fact::kNeed, state_->mesh.ToString()}});
  }
  const auto bytes_of = [&](int64_t elements) -> absl::StatusOr<int64_t> {
    absl::StatusOr<int64_t> bytes = TileBytes(elements, bits_per_element);
    if (!bytes.ok()) {
      return WithContext(bytes.status(), name);
    }
    return bytes;
  };
  TensorUsage usage;
  usage.name = std::string(name);
  usage.shape = tiling.shape();
  usage.spec = tiling.spec();
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t parameters, ElementCount(usage.shape));
  SHARDMESH_ASSIGN_OR_RETURN(usage.bytes, bytes_of(parameters));

  // Compute the bytes that each device holds. If all parts are equal: one number (`even`). If parts
  // are uneven: one number for each combination of coordinates along their axes (`uneven`).
  const Combinations combinations(state_->mesh, UnevenAxes(tiling));
  std::vector<int64_t> uneven;
  int64_t even = 0;
  if (combinations.axes().empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(even, bytes_of(tiling.TileOf(0).element_count()));
    usage.device_bytes = even;
    SHARDMESH_ASSIGN_OR_RETURN(usage.held_bytes, Product(even, state_->mesh.size()));
  } else {
    const int64_t count = combinations.CountUpTo(kMaxUnevenSums);
    const bool is_new = state_->uneven.find(combinations.axes()) == state_->uneven.end();
    if (count > kMaxUnevenSums - (is_new ? state_->uneven_sums : 0)) {
      return OverLimit(StrCat(name, " has uneven parts along axes with too many combinations: more",
                              " than ", kMaxUnevenSums, " sums in all"),
                       kMaxUnevenSums);
    }
    uneven.reserve(Index(count));
    for (int64_t combination = 0; combination < count; ++combination) {
      SHARDMESH_ASSIGN_OR_RETURN(
          const int64_t bytes,
          bytes_of(tiling.TileOf(combinations.DeviceAt(combination)).element_count()));
      uneven.push_back(bytes);
      usage.device_bytes = std::max(usage.device_bytes, bytes);
      SHARDMESH_ASSIGN_OR_RETURN(usage.held_bytes, Sum(usage.held_bytes, bytes));
    }
    SHARDMESH_ASSIGN_OR_RETURN(usage.held_bytes,
                               Product(usage.held_bytes, state_->mesh.size() / count));
  }
  // The difference is not negative: the tiles cover the tensor, and the bytes of each tile are
  // rounded up.
  usage.wasted_bytes = usage.held_bytes - usage.bytes;

  // Check these three sums for overflow before any change. Every other sum is at most as large as
  // one of them.
  LayoutReport& report = state_->report;
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t all_parameters, Sum(report.parameters, parameters));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t all_bytes, Sum(report.bytes, usage.bytes));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t all_held, Sum(report.held_bytes, usage.held_bytes));
  ++report.tensors;
  report.parameters = all_parameters;
  report.bytes = all_bytes;
  report.held_bytes = all_held;
  report.wasted_bytes += usage.wasted_bytes;
  if (!tiling.FullyReplicated()) {
    report.sharded_parameters += parameters;
    report.sharded_bytes += usage.bytes;
  }
  state_->even_device_bytes += even;
  if (!uneven.empty()) {
    std::vector<int64_t>& sums = state_->uneven[combinations.axes()];
    if (sums.empty()) {
      sums.resize(uneven.size(), 0);
      state_->uneven_sums += static_cast<int64_t>(uneven.size());
    }
    std::transform(sums.begin(), sums.end(), uneven.begin(), sums.begin(), std::plus<>());
  }
  SpecUsage& spec = state_->specs[usage.spec.ToString()];
  spec.spec = usage.spec;
  ++spec.tensors;
  spec.parameters += parameters;
  spec.bytes += usage.bytes;
  KeepLargest(report.worst, usage, Index(kListed),
              [](const TensorUsage& tensor) { return tensor.wasted_bytes; });
  KeepLargest(report.largest, usage, Index(kListed),
              [](const TensorUsage& tensor) { return tensor.device_bytes; });
  return absl::OkStatus();
}

absl::StatusOr<LayoutReport> LayoutAnalysis::Report() const {
  LayoutReport report = state_->report;
  const Mesh& mesh = state_->mesh;
  report.least_device_bytes = state_->even_device_bytes;
  report.most_device_bytes = state_->even_device_bytes;

  // Put axes into one group if they occur together in a key of `uneven`, directly or through other
  // keys. Enumerate the combinations of each group. Groups are independent: the least (and the
  // most) bytes of a device are the sum over the groups.
  std::vector<int64_t> group(Index(mesh.axis_count()));
  std::iota(group.begin(), group.end(), int64_t{0});
  for (const auto& [axes, sums] : state_->uneven) {
    for (const int64_t axis : axes) {
      const int64_t old_group = group[Index(axis)];
      std::replace(group.begin(), group.end(), old_group, group[Index(axes.front())]);
    }
  }
  for (int64_t leader = 0; leader < mesh.axis_count(); ++leader) {
    std::vector<int64_t> axes;
    for (int64_t axis = 0; axis < mesh.axis_count(); ++axis) {
      if (group[Index(axis)] == leader) {
        axes.push_back(axis);
      }
    }
    std::vector<std::pair<Combinations, const std::vector<int64_t>*>> tables;
    for (const auto& [table_axes, sums] : state_->uneven) {
      if (group[Index(table_axes.front())] == leader) {
        tables.emplace_back(Combinations(mesh, table_axes), &sums);
      }
    }
    if (tables.empty()) {
      continue;
    }
    const Combinations combinations(mesh, axes);
    const int64_t count = combinations.CountUpTo(kMaxUnevenSums);
    if (count > kMaxUnevenSums) {
      return OverLimit(StrCat("uneven parts tie together axes with more than ", kMaxUnevenSums,
                              " combinations"));
    }
    std::optional<std::pair<int64_t, DeviceId>> least;
    std::optional<std::pair<int64_t, DeviceId>> most;
    for (int64_t combination = 0; combination < count; ++combination) {
      const DeviceId device = combinations.DeviceAt(combination);
      int64_t bytes = 0;
      for (const auto& [table, sums] : tables) {
        bytes += (*sums)[Index(table.At(device))];
      }
      if (!least.has_value() || bytes < least->first) {
        least = {bytes, device};
      }
      if (!most.has_value() || bytes > most->first) {
        most = {bytes, device};
      }
    }
    report.least_device_bytes += least->first;
    report.least_loaded_device += least->second;
    report.most_device_bytes += most->first;
    report.most_loaded_device += most->second;
  }
  report.mean_device_bytes =
      static_cast<double>(report.held_bytes) / static_cast<double>(mesh.size());
  if (report.most_device_bytes > 0) {
    report.balance_score = static_cast<double>(report.least_device_bytes) /
                           static_cast<double>(report.most_device_bytes);
  }

  std::vector<std::pair<std::string_view, const SpecUsage*>> specs;
  for (const auto& [text, usage] : state_->specs) {
    specs.emplace_back(text, &usage);
  }
  std::sort(specs.begin(), specs.end(), [](const auto& a, const auto& b) {
    return a.second->bytes != b.second->bytes ? a.second->bytes > b.second->bytes
                                              : a.first < b.first;
  });
  for (const auto& [text, usage] : specs) {
    report.specs.push_back(*usage);
  }
  return report;
}

absl::StatusOr<ExactAnalysis> AnalyzeAsOriginal(absl::Span<const AnalyzedTensor> tensors,
                                                const Mesh& mesh) {
  if (mesh.empty()) {
    return NoMesh();
  }
  ExactAnalysis analysis;
  const auto add = [](PythonCount& count, const AnalyzedTensor& tensor) -> absl::Status {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(tensor.shape));
    SHARDMESH_ASSIGN_OR_RETURN(count.value, Sum(count.value, elements));
    count.is_float = count.is_float || tensor.shape.empty();
    return absl::OkStatus();
  };
  for (const AnalyzedTensor& tensor : tensors) {
    SHARDMESH_RETURN_IF_ERROR(add(analysis.total_parameters, tensor));
    if (!tensor.spec.empty()) {
      SHARDMESH_RETURN_IF_ERROR(add(analysis.sharded_parameters, tensor));
    }
    for (const SpecEntry& entry : tensor.spec.entries()) {
      const bool is_axis = entry.axes().size() == 1 && mesh.HasAxis(*entry.axes().front());
      if (!entry.is_none() && !is_axis) {
        return InvalidArgument(Reason::kAxisNotInMesh,
                               StrCat("the spec of ", tensor.name, " has ", entry.ToString(),
                                      ", which is not one axis of the mesh ", mesh.ToString()),
                               {{fact::kAxis, entry.AxisNames()}, {fact::kMesh, mesh.ToString()}},
                               "KeyError");
      }
    }
  }
  return analysis;
}

}  // namespace shardmesh
