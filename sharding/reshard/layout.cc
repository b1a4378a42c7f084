// Converts tilings and meshes to numbered parts and to digits of positions.
#include "sharding/reshard/layout.h"

#include "sharding/spec.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::reshard_internal {
namespace {

// Returns whether each device's number is its position.
bool IsNumberedByPosition(const Mesh& mesh) {
  MeshOptions options;
  options.allow_degenerate = true;
  const absl::StatusOr<Mesh> plain =
      Mesh::Create(std::vector<MeshAxis>(mesh.axes().begin(), mesh.axes().end()), options);
  return plain.ok() && *plain == mesh;
}

Cut CutOf(const Tiling& tiling, int64_t dim) {
  Cut cut;
  cut.extent = tiling.shape()[Index(dim)];
  cut.parts = tiling.PartCount(dim);
  if (tiling.has_equal_tiles()) {
    return cut;
  }
  const int64_t first = tiling.PartRange(dim, 0).size();
  bool equal = true;
  for (int64_t part = 0; part < cut.parts; ++part) {
    equal = equal && tiling.PartRange(dim, part).size() == first;
  }
  if (equal) {
    return cut;
  }
  for (int64_t part = 0; part < cut.parts; ++part) {
    cut.points.push_back(tiling.PartRange(dim, part).start);
  }
  cut.points.push_back(cut.extent);
  std::vector<int64_t> filled = {0};
  for (int64_t part = 0; part < cut.parts; ++part) {
    filled.push_back(filled.back() + (cut.Range(part).size() > 0 ? 1 : 0));
  }
  if (filled.back() < cut.parts) {
    cut.filled = std::move(filled);
  }
  return cut;
}

}  // namespace

absl::Status OverLimit(std::string_view what, Facts facts) {
  return WithReason(absl::ResourceExhaustedError(ToAbsl(what)), Reason::kLimitExceeded, facts);
}

int64_t SetWeights(std::vector<Digit>& digits) {
  int64_t count = 1;
  for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit) {
    digit->weight = count;
    count *= digit->size;
  }
  return count;
}

int64_t ValueOf(const std::vector<Digit>& digits, int64_t position) {
  int64_t value = 0;
  for (const Digit& digit : digits) {
    value += digit.CoordinateOf(position) * digit.weight;
  }
  return value;
}

int64_t PositionAt(const std::vector<Digit>& digits, int64_t value) {
  int64_t position = 0;
  for (const Digit& digit : digits) {
    position += value / digit.weight % digit.size * digit.stride;
  }
  return position;
}

int64_t Overlap(const IndexRange& a, const IndexRange& b) {
  return std::max<int64_t>(0, std::min(a.stop, b.stop) - std::max(a.start, b.start));
}

Digit DigitOf(const Mesh& mesh, std::string_view axis) {
  const int64_t index = *mesh.FindAxis(axis);
  return {mesh.stride(index), mesh.axes()[Index(index)].size, 1};
}

Side SideOf(const Tiling& tiling) {
  Side side;
  side.mesh = tiling.mesh();
  for (int64_t dim = 0; dim < tiling.rank(); ++dim) {
    Dimension dimension;
    for (const AxisName& name : tiling.spec().entry(dim).axes()) {
      const Digit digit = DigitOf(side.mesh, *name);
      if (digit.size > 1) {
        dimension.digits.push_back(digit);
      }
    }
    SetWeights(dimension.digits);
    dimension.cut = CutOf(tiling, dim);
    side.dimensions.push_back(std::move(dimension));
  }
  return side;
}

Dimension PartialSums(const Mesh& mesh, std::optional<std::string_view> axis, int64_t count) {
  Dimension dimension;
  dimension.cut.extent = count;
  if (axis.has_value()) {
    dimension.digits.push_back(DigitOf(mesh, *axis));
    dimension.cut.parts = count;
  }
  return dimension;
}

bool UsesStride(const Side& side, int64_t stride) {
  for (const Dimension& dimension : side.dimensions) {
    for (const Digit& digit : dimension.digits) {
      if (digit.stride == stride) {
        return true;
      }
    }
  }
  return false;
}

void FindReplicas(Side& side) {
  for (int64_t axis = 0; axis < side.mesh.axis_count(); ++axis) {
    const Digit digit = {side.mesh.stride(axis), side.mesh.axes()[Index(axis)].size, 1};
    // The stride identifies an axis: no two axes of more than one device have the same stride.
    if (digit.size > 1 && !UsesStride(side, digit.stride)) {
      side.replicas.push_back(digit);
    }
  }
  side.replica_count = SetWeights(side.replicas);
}

bool PositionsMatch(const Mesh& a, const Mesh& b) {
  const bool a_plain = IsNumberedByPosition(a);
  const bool b_plain = IsNumberedByPosition(b);
  if (a_plain || b_plain) {
    return a_plain && b_plain;
  }
  if (a.size() != b.size()) {
    return false;
  }
  for (DeviceId device = 0; device < a.size(); ++device) {
    if (a.GlobalIdOf(device) != b.GlobalIdOf(device)) {
      return false;
    }
  }
  return true;
}

std::vector<int64_t> CommonBoundaries(const Mesh& a, const Mesh& b, int64_t limit) {
  std::vector<int64_t> boundaries = {1, limit};
  for (const Mesh* mesh : {&a, &b}) {
    for (int64_t axis = 0; axis < mesh->axis_count(); ++axis) {
      for (const int64_t boundary :
           {mesh->stride(axis), mesh->stride(axis) * mesh->axes()[Index(axis)].size}) {
        if (boundary < limit) {
          boundaries.push_back(boundary);
        }
      }
    }
  }
  std::sort(boundaries.begin(), boundaries.end());
  boundaries.erase(std::unique(boundaries.begin(), boundaries.end()), boundaries.end());
  for (size_t i = 1; i < boundaries.size(); ++i) {
    if (boundaries[i] % boundaries[i - 1] != 0) {
      return {};
    }
  }
  return boundaries;
}

SharedDigits ShareDigits(const Dimension& dimension, const std::vector<int64_t>& boundaries) {
  SharedDigits shared;
  const int64_t limit = boundaries.back();
  for (const Digit& digit : dimension.digits) {
    const int64_t end = digit.stride * digit.size;
    shared.complete = shared.complete && end <= limit;
    for (size_t k = boundaries.size() - 1; k-- > 0;) {
      if (boundaries[k] >= digit.stride && boundaries[k] < end) {
        shared.digits.push_back({k, digit.weight * (boundaries[k] / digit.stride)});
      }
    }
  }
  return shared;
}

}  // namespace shardmesh::reshard_internal
