// Checks, parses and prints meshes, and computes coordinates.
#include "sharding/mesh.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "sharding/axis_value.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

absl::Status InvalidMesh(std::string_view message, Facts facts = {}) {
  return InvalidArgument(Reason::kInvalidMesh, message, facts);
}

absl::Status SizeMismatch(std::string_view message, int64_t have, int64_t need) {
  return InvalidArgument(Reason::kMeshSizeMismatch, message,
                         {{fact::kHave, have}, {fact::kNeed, need}});
}

std::string AxesToString(absl::Span<const MeshAxis> axes) {
  return StrJoin(axes, ",", [](std::string* out, const MeshAxis& axis) {
    StrAppend(out, axis.name, "=", axis.size);
    if (axis.type != AxisType::kAuto) {
      StrAppend(out, ":", AxisTypeName(axis.type));
    }
  });
}

std::vector<std::string_view> AxisNames(absl::Span<const MeshAxis> axes) {
  std::vector<std::string_view> names;
  for (const MeshAxis& axis : axes) {
    names.push_back(axis.name);
  }
  return names;
}

absl::Status CheckNames(absl::Span<const MeshAxis> axes) {
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].name.empty()) {
      return InvalidMesh(StrCat("axis ", i, " of the mesh has no name"));
    }
    for (size_t j = 0; j < i; ++j) {
      if (axes[j].name == axes[i].name) {
        return InvalidArgument(Reason::kDuplicateAxis,
                               StrCat("the mesh ", AxesToString(axes), " names the axis ",
                                      PythonRepr(axes[i].name), " twice; rename one"),
                               {{fact::kAxis, axes[i].name}});
      }
    }
  }
  return absl::OkStatus();
}

// Merges axes of one name into one axis. The merged axis has the first position and the last size
// and type, as in a Python dict built from the pairs.
void MergeRepeatedNames(std::vector<MeshAxis>& axes) {
  std::vector<MeshAxis> merged;
  for (MeshAxis& axis : axes) {
    const auto first = std::find_if(merged.begin(), merged.end(), [&axis](const MeshAxis& seen) {
      return seen.name == axis.name;
    });
    if (first != merged.end()) {
      first->size = axis.size;
      first->type = axis.type;
    } else {
      merged.push_back(std::move(axis));
    }
  }
  axes = std::move(merged);
}

// Returns the product of the sizes of all axes except the axis at index `skipped` (-1: no
// exception).
absl::StatusOr<int64_t> ProductOfSizes(absl::Span<const MeshAxis> axes, int64_t skipped) {
  if (std::any_of(axes.begin(), axes.end(), [](const MeshAxis& axis) { return axis.size == 0; })) {
    return 0;
  }
  int64_t product = 1;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (static_cast<int64_t>(i) == skipped) {
      continue;
    }
    // The product in the condition cannot overflow: both factors are at most 2^31 there.
    if (axes[i].size > kMaxMeshDevices || product * axes[i].size > kMaxMeshDevices) {
      return InvalidArgument(
          Reason::kLimitExceeded,
          StrCat("the mesh ", AxesToString(axes), " has more than ", kMaxMeshDevices, " devices"),
          {{fact::kLimit, kMaxMeshDevices}});
    }
    product *= axes[i].size;
  }
  return product;
}

// Replaces a size of -1, checks all other sizes, and returns the number of devices.
absl::StatusOr<int64_t> SettleSizes(std::vector<MeshAxis>& axes, const MeshOptions& options) {
  const int64_t least = options.allow_degenerate ? 0 : 1;
  int64_t inferred = -1;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].size == -1) {
      if (inferred >= 0) {
        return InvalidMesh(StrCat("the mesh ", AxesToString(axes),
                                  " leaves two sizes to be inferred; give one of them"),
                           {{fact::kAxis, axes[i].name}, {fact::kValue, axes[i].size}});
      }
      inferred = static_cast<int64_t>(i);
    } else if (axes[i].size < least) {
      return InvalidMesh(
          StrCat("axis ", PythonRepr(axes[i].name), " of the mesh has size ", axes[i].size,
                 "; sizes are ", least, " or more, or -1 to be inferred"),
          {{fact::kAxis, axes[i].name}, {fact::kValue, axes[i].size}});
    }
  }
  SHARDMESH_ASSIGN_OR_RETURN(int64_t product, ProductOfSizes(axes, inferred));
  if (inferred >= 0) {
    if (!options.device_count.has_value()) {
      return InvalidMesh(
          StrCat("the mesh ", AxesToString(axes),
                 " leaves a size to be inferred, but the number of devices is "
                 "not known here; give every size"),
          {{fact::kAxis, axes[static_cast<size_t>(inferred)].name}, {fact::kValue, -1}});
    }
    const int64_t count = *options.device_count;
    if (product == 0 || count < product || count % product != 0 || count > kMaxMeshDevices) {
      return SizeMismatch(
          StrCat("the given sizes of the mesh ", AxesToString(axes), " multiply to ", product,
                 ", which does not divide ", count, " devices"),
          count, product);
    }
    axes[static_cast<size_t>(inferred)].size = count / product;
    return count;
  }
  if (options.device_count.has_value() && product != *options.device_count) {
    return SizeMismatch(StrCat("the mesh ", AxesToString(axes), " needs ", product,
                               " devices and there are ", *options.device_count),
                        *options.device_count, product);
  }
  return product;
}

absl::Status CheckGlobalIds(absl::Span<const int64_t> ids, int64_t size) {
  if (static_cast<int64_t>(ids.size()) != size) {
    return SizeMismatch(StrCat("the mesh has ", size, " positions and ", ids.size(),
                               " device ids; give one id per position"),
                        static_cast<int64_t>(ids.size()), size);
  }
  absl::flat_hash_map<int64_t, DeviceId> seen;
  for (int64_t device = 0; device < size; ++device) {
    const int64_t id = ids[static_cast<size_t>(device)];
    if (id < 0) {
      return InvalidMesh(StrCat("device id ", id, " at position ", device, " is negative"),
                         {{fact::kValue, id}});
    }
    const auto [it, inserted] = seen.emplace(id, device);
    if (!inserted) {
      return InvalidMesh(StrCat("device id ", id, " stands at positions ", it->second, " and ",
                                device, "; each device has one position"),
                         {{fact::kValue, id}});
    }
  }
  return absl::OkStatus();
}

constexpr std::string_view kAxisTypeNames[] = {"auto", "explicit", "manual"};

}  // namespace

std::string_view AxisTypeName(AxisType type) { return kAxisTypeNames[static_cast<size_t>(type)]; }

std::optional<AxisType> AxisTypeFromName(std::string_view name) {
  for (size_t i = 0; i < std::size(kAxisTypeNames); ++i) {
    if (kAxisTypeNames[i] == name) {
      return static_cast<AxisType>(i);
    }
  }
  return std::nullopt;
}

Mesh::Mesh() {
  static const auto& kEmpty = *new std::shared_ptr<const Rep>(std::make_shared<const Rep>());
  rep_ = kEmpty;
}

absl::StatusOr<Mesh> Mesh::Create(std::vector<MeshAxis> axes, MeshOptions options) {
  if (static_cast<int64_t>(axes.size()) > kMaxMeshAxes) {
    return InvalidArgument(
        Reason::kLimitExceeded,
        StrCat("a mesh of ", axes.size(), " axes is over the limit of ", kMaxMeshAxes),
        {{fact::kHave, axes.size()}, {fact::kLimit, kMaxMeshAxes}});
  }
  for (const MeshAxis& axis : axes) {
    if (axis.name.size() > kMaxAxisNameBytes) {
      return InvalidArgument(Reason::kLimitExceeded,
                             StrCat("an axis name of ", axis.name.size(),
                                    " bytes is over the limit of ", kMaxAxisNameBytes),
                             {{fact::kHave, axis.name.size()}, {fact::kLimit, kMaxAxisNameBytes}});
    }
  }
  if (options.allow_degenerate) {
    MergeRepeatedNames(axes);
  } else {
    SHARDMESH_RETURN_IF_ERROR(CheckNames(axes));
  }
  if (axes.empty()) {
    if (options.allow_degenerate) {
      return Mesh();
    }
    return InvalidMesh("a mesh needs at least one axis, such as dp=1");
  }
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t size, SettleSizes(axes, options));

  auto rep = std::make_shared<Rep>();
  rep->size = size;
  rep->axes = std::move(axes);
  // Leave the strides 0 if an axis has size 0: the mesh has no devices, and the product of its
  // other sizes may overflow.
  rep->strides.resize(rep->axes.size(), 0);
  int64_t stride = 1;
  for (size_t i = rep->axes.size(); size > 0 && i-- > 0;) {
    rep->strides[i] = stride;
    stride *= rep->axes[i].size;
  }
  if (!options.global_ids.empty()) {
    SHARDMESH_RETURN_IF_ERROR(CheckGlobalIds(options.global_ids, size));
    bool is_identity = true;
    for (int64_t device = 0; device < size; ++device) {
      is_identity = is_identity && options.global_ids[static_cast<size_t>(device)] == device;
    }
    if (!is_identity) {
      rep->global_ids = std::move(options.global_ids);
      for (int64_t device = 0; device < size; ++device) {
        rep->device_of_global_id.emplace(rep->global_ids[static_cast<size_t>(device)], device);
      }
    }
  }
  return Mesh(std::move(rep));
}

absl::StatusOr<Mesh> Mesh::Parse(std::string_view text, MeshOptions options) {
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<MeshAxis> axes,
                             ParseMeshAxes(text, options.allow_degenerate));
  return Create(std::move(axes), std::move(options));
}

std::optional<int64_t> Mesh::FindAxis(std::string_view name) const {
  for (size_t i = 0; i < rep_->axes.size(); ++i) {
    if (rep_->axes[i].name == name) {
      return static_cast<int64_t>(i);
    }
  }
  return std::nullopt;
}

std::string Mesh::DidYouMeanAxis(std::string_view name) const {
  return DidYouMean(name, AxisNames(axes()));
}

std::string Mesh::NearestAxis(std::string_view name) const {
  return std::string(NearestName(name, AxisNames(axes())).value_or(""));
}

bool Mesh::AllAxesAre(AxisType type) const {
  return !axes().empty() && std::all_of(axes().begin(), axes().end(),
                                        [type](const MeshAxis& axis) { return axis.type == type; });
}

MeshCoordinates Mesh::CoordinatesOf(DeviceId device) const {
  MeshCoordinates coordinates;
  for (int64_t axis = 0; axis < axis_count(); ++axis) {
    coordinates.push_back(CoordinateOf(device, axis));
  }
  return coordinates;
}

DeviceId Mesh::DeviceAt(absl::Span<const int64_t> coordinates) const {
  DeviceId device = 0;
  for (size_t i = 0; i < coordinates.size(); ++i) {
    device += coordinates[i] * rep_->strides[i];
  }
  return device;
}

int64_t Mesh::GlobalIdOf(DeviceId device) const {
  return rep_->global_ids.empty() ? device : rep_->global_ids[static_cast<size_t>(device)];
}

std::optional<DeviceId> Mesh::DeviceOfGlobalId(int64_t global_id) const {
  if (rep_->global_ids.empty()) {
    if (global_id < 0 || global_id >= size()) {
      return std::nullopt;
    }
    return global_id;
  }
  const auto it = rep_->device_of_global_id.find(global_id);
  if (it == rep_->device_of_global_id.end()) {
    return std::nullopt;
  }
  return it->second;
}

std::string Mesh::ToString() const { return axes().empty() ? "(empty)" : AxesToString(axes()); }

bool operator==(const Mesh& a, const Mesh& b) {
  return a.rep_ == b.rep_ ||
         (a.rep_->axes == b.rep_->axes && a.rep_->global_ids == b.rep_->global_ids);
}

absl::StatusOr<std::vector<MeshAxis>> ParseMeshAxes(std::string_view text, bool allow_empty_names) {
  std::vector<MeshAxis> axes;
  for (const absl::string_view piece : absl::StrSplit(ToAbsl(text), ',')) {
    const auto not_an_axis = [&](std::string_view what_to_do) {
      return InvalidMesh(StrCat(PythonRepr(ToStd(piece)), " in the mesh ", PythonRepr(text),
                                " is not an axis; ", what_to_do),
                         {{fact::kValue, ToStd(piece)}});
    };
    const size_t separator = piece.find_first_of("=:");
    MeshAxis axis;
    absl::string_view size;
    if (separator != absl::string_view::npos) {
      axis.name = std::string(absl::StripAsciiWhitespace(piece.substr(0, separator)));
      size = piece.substr(separator + 1);
    }
    if (const size_t colon = size.find(':'); colon != absl::string_view::npos) {
      const auto type = AxisTypeFromName(ToStd(absl::StripAsciiWhitespace(size.substr(colon + 1))));
      if (!type.has_value()) {
        return not_an_axis("its type is auto, explicit or manual, as in dp=2:explicit");
      }
      axis.type = *type;
      size = size.substr(0, colon);
    }
    size = absl::StripAsciiWhitespace(size);
    const bool is_named = !axis.name.empty() || allow_empty_names;
    if (is_named && !size.empty() &&
        size.find_first_not_of("0123456789") == absl::string_view::npos &&
        !absl::SimpleAtoi(size, &axis.size)) {
      return not_an_axis(StrCat("its size is over the limit of ", kMaxMeshDevices, " devices"));
    }
    if (!is_named || !absl::SimpleAtoi(size, &axis.size)) {
      return not_an_axis("write NAME=SIZE, as in dp=2,tp=4");
    }
    axes.push_back(std::move(axis));
  }
  return axes;
}

}  // namespace shardmesh
