// Computes cut points of parts of unequal sizes.
#include "sharding/uneven.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include "absl/numeric/int128.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// The coordinate of a device along one axis as a digit of the number of a part.
struct AxisDigit {
  int64_t stride;
  int64_t size;
};

// Returns the digits of a dimension's parts, major to minor.
std::vector<AxisDigit> DigitsOf(const Mesh& mesh, const SpecEntry& entry) {
  std::vector<AxisDigit> digits;
  for (const AxisName& name : entry.axes()) {
    const int64_t axis = *mesh.FindAxis(*name);
    digits.push_back({mesh.stride(axis), mesh.axes()[static_cast<size_t>(axis)].size});
  }
  return digits;
}

// Returns the number of the part that lies on a device.
size_t PartOfDevice(size_t device, absl::Span<const AxisDigit> digits) {
  int64_t part = 0;
  for (const AxisDigit& digit : digits) {
    part = part * digit.size + static_cast<int64_t>(device) / digit.stride % digit.size;
  }
  return static_cast<size_t>(part);
}

// Returns the weight of each part: the least weight of the devices that hold the part.
std::vector<int64_t> WeightsOfParts(absl::Span<const int64_t> weights,
                                    absl::Span<const AxisDigit> digits, int64_t parts) {
  std::vector<int64_t> least(static_cast<size_t>(parts), std::numeric_limits<int64_t>::max());
  for (size_t device = 0; device < weights.size(); ++device) {
    int64_t& weight = least[PartOfDevice(device, digits)];
    weight = std::min(weight, weights[device]);
  }
  return least;
}

// Returns the devices of the part with the fewest devices of weight 0; of several such parts, of
// the first.
std::vector<size_t> DevicesOfNearestPart(absl::Span<const int64_t> weights,
                                         absl::Span<const AxisDigit> digits, int64_t parts) {
  std::vector<int64_t> zeros(static_cast<size_t>(parts));
  for (size_t device = 0; device < weights.size(); ++device) {
    if (weights[device] == 0) ++zeros[PartOfDevice(device, digits)];
  }
  const auto nearest = static_cast<size_t>(
      std::distance(zeros.begin(), std::min_element(zeros.begin(), zeros.end())));
  std::vector<size_t> devices;
  for (size_t device = 0; device < weights.size(); ++device) {
    if (PartOfDevice(device, digits) == nearest) devices.push_back(device);
  }
  return devices;
}

// Maximum number of devices that an error names.
constexpr size_t kMostNamedDevices = 8;

absl::Status BadWeights(std::string_view message, absl::Span<const int64_t> weights) {
  return InvalidArgument(
      Reason::kInvalidCutPoints, message,
      {{fact::kValue, StrJoin(weights.first(std::min<size_t>(64, weights.size())), ",")}});
}

}  // namespace

CutPoints CeilChunks(int64_t extent, int64_t parts) {
  const int64_t size = extent / parts + (extent % parts == 0 ? 0 : 1);
  CutPoints points;
  points.reserve(static_cast<size_t>(parts) + 1);
  points.push_back(0);
  for (int64_t part = 0; part < parts; ++part) {
    points.push_back(points.back() + std::min(size, extent - points.back()));
  }
  return points;
}

CutPoints WeightedCuts(int64_t extent, absl::Span<const int64_t> weights) {
  const absl::int128 sum = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  std::vector<int64_t> sizes;
  std::vector<int64_t> remainders;
  int64_t left = extent;
  for (const int64_t weight : weights) {
    const absl::int128 share = absl::int128(extent) * weight;
    sizes.push_back(static_cast<int64_t>(share / sum));
    remainders.push_back(static_cast<int64_t>(share % sum));
    left -= sizes.back();
  }
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&remainders](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  // Fewer indices are left than there are remainders above 0, since these add up to left * sum.
  for (size_t i = 0; i < static_cast<size_t>(left); ++i) {
    ++sizes[order[i]];
  }
  CutPoints points = {0};
  for (const int64_t size : sizes) {
    points.push_back(points.back() + size);
  }
  return points;
}

absl::Status CheckWeights(absl::Span<const int64_t> weights, int64_t count) {
  if (static_cast<int64_t>(weights.size()) != count) {
    return InvalidArgument(
        Reason::kInvalidCutPoints,
        StrCat("there are ", weights.size(), " weights, and the mesh has ", count,
               " devices; give one weight for each device, in the order of the ranks"),
        {{fact::kHave, weights.size()}, {fact::kNeed, count}});
  }
  int64_t sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] < 0) {
      return BadWeights(StrCat("the weight of device ", i, " is ", weights[i],
                               "; weights are 0 (an empty tile) or more"),
                        weights);
    }
    if (__builtin_add_overflow(sum, weights[i], &sum)) {
      return BadWeights(
          "the weights add up to more than 63 bits; give smaller ones, since only their ratios "
          "count",
          weights);
    }
  }
  if (sum == 0) {
    return BadWeights(
        "all weights are 0, and no device would hold anything; give at least one a weight above 0",
        weights);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CutPoints>> CutByRule(UnevenCuts rule, absl::Span<const int64_t> weights,
                                                 const Mesh& mesh, const PartitionSpec& spec,
                                                 absl::Span<const int64_t> shape) {
  std::vector<CutPoints> cuts;
  if (rule == UnevenCuts::kEqualOnly) {
    return cuts;
  }
  if (rule != UnevenCuts::kCeilChunks) {
    SHARDMESH_RETURN_IF_ERROR(CheckWeights(weights, mesh.size()));
  }
  cuts.resize(shape.size());
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    const SpecEntry& entry = spec.entry(static_cast<int64_t>(dim));
    const std::vector<AxisDigit> digits = DigitsOf(mesh, entry);
    int64_t parts = 1;
    for (const AxisDigit& digit : digits) {
      parts *= digit.size;  // at most the number of devices
    }
    const int64_t extent = shape[dim];
    const bool divides = extent % parts == 0;
    if (parts == 1 || extent == 0 || (rule == UnevenCuts::kCeilChunks && divides)) {
      continue;
    }
    if (parts > kMaxUnevenParts) {
      return InvalidArgument(Reason::kLimitExceeded,
                             StrCat("dimension ", dim, " has ", parts, " parts; at most ",
                                    kMaxUnevenParts, " unequal parts are made by a rule"),
                             {{fact::kHave, parts}, {fact::kLimit, kMaxUnevenParts}});
    }
    if (rule == UnevenCuts::kCeilChunks) {
      cuts[dim] = CeilChunks(extent, parts);
      continue;
    }
    const std::vector<int64_t> of_parts = WeightsOfParts(weights, digits, parts);
    if (std::all_of(of_parts.begin(), of_parts.end(), [](int64_t weight) { return weight == 0; })) {
      return InvalidArgument(
          Reason::kInvalidCutPoints,
          StrCat(
              "each part of dimension ", dim, " over ", entry.ToString(), " of the mesh ",
              mesh.ToString(),
              " lies on some device of weight 0, and no device would hold anything: a part has "
              "the least weight of its devices; give all devices of a part weights above 0, "
              "such as devices ",
              StrJoinFirst(kMostNamedDevices, DevicesOfNearestPart(weights, digits, parts), ", "),
              ", or cut the dimension over other axes"),
          {{fact::kDimension, dim}, {fact::kValue, entry.ToString()}});
    }
    cuts[dim] = WeightedCuts(extent, of_parts);
  }
  return WithoutEqualParts(std::move(cuts));
}

}  // namespace shardmesh
