// Shapes, scales and layouts of linear layers.
#include "sharding/layout/parallel_linear.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/numeric/int128.h"
#include "sharding/axis_value.h"
#include "sharding/mesh_query.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr std::string_view kFanIn = "fan_in";
constexpr std::string_view kFanOut = "fan_out";

absl::Status BadFeatures(std::string_view message, std::string_view python_type, Facts facts = {}) {
  return InvalidArgument(Reason::kInvalidShape, message, facts, python_type);
}

// Refuses zero and negative features, with the exception classes that the Python original's
// arithmetic raises.
absl::Status CheckFeatures(int64_t in, int64_t out) {
  if (in == 0 || out == 0) {
    return BadFeatures(StrCat("a layer of ", in, " features in and ", out,
                              " out has no weights; give at least one of each"),
                       "ZeroDivisionError", {{fact::kValue, StrCat(in, ",", out)}});
  }
  if (in < 0 || out < 0) {
    return BadFeatures(StrCat("a layer of ", in, " features in and ", out,
                              " out is not possible; both numbers must be positive"),
                       "TypeError", {{fact::kValue, StrCat(in, ",", out)}});
  }
  return absl::OkStatus();
}

// The total number of output features, and the number of parts that add up to this total.
struct OutFeatures {
  int64_t sum = 0;
  int64_t parts = 1;
  bool is_sequence = false;
};

absl::StatusOr<OutFeatures> SumOut(const ParallelLinearOptions& options,
                                   Compatibility compatibility) {
  if (const auto* const one = std::get_if<int64_t>(&options.out_features); one != nullptr) {
    return OutFeatures{.sum = *one};
  }
  const auto& parts = std::get<std::vector<int64_t>>(options.out_features);
  const bool exact = compatibility == Compatibility::kExact;
  if (parts.empty()) {
    return BadFeatures("out_features has no parts; give at least one number", "TypeError");
  }
  if (exact && parts.size() == 1) {
    return BadFeatures(
        "the original takes out_features as one number or as several, but not as "
        "a sequence of one; give the number",
        "TypeError");
  }
  absl::int128 sum = 0;
  for (const int64_t part : parts) {
    if (!exact && part < 0) {
      return BadFeatures(StrCat("out_features has the part ", part, "; parts must not be negative"),
                         "TypeError", {{fact::kValue, part}});
    }
    sum += part;
  }
  const auto narrow = static_cast<int64_t>(sum);
  if (narrow != sum) {
    return BadFeatures("the parts of out_features add up to more than 64 bits hold", "ValueError");
  }
  return OutFeatures{
      .sum = narrow, .parts = static_cast<int64_t>(parts.size()), .is_sequence = true};
}

// Returns whether the layer's scale has this name.
bool IsScale(const ParallelLinearOptions& options, std::string_view name) {
  const auto* const given = std::get_if<std::string>(&options.scale);
  return given != nullptr && *given == name;
}

// Returns `entry` without the axes in `taken`, and adds the remaining axes to `taken`. Of several
// unconstrained entries, only the first stays; `left_open` is true once there was one.
SpecEntry TakeAxes(const SpecEntry& entry, std::set<AxisName>& taken, bool& left_open) {
  if (entry.is_unconstrained()) {
    return std::exchange(left_open, true) ? SpecEntry::None() : entry;
  }
  std::vector<AxisName> axes;
  for (const AxisName& axis : entry.axes()) {
    if (!taken.contains(axis)) axes.push_back(axis);
  }
  taken.insert(entry.axes().begin(), entry.axes().end());
  // An entry without axes is Python's None. The original also drops a repeated None, because an
  // axis list can contain None.
  if (entry.is_none()) taken.insert(std::nullopt);
  return SpecEntry::Axes(std::move(axes));
}

}  // namespace

absl::StatusOr<std::optional<PartitionSpec>> GetSharding(const ArrayLayout& array) {
  switch (array.kind) {
    case ArrayLayout::Kind::kNone:
      return std::nullopt;
    case ArrayLayout::Kind::kSingleDevice:
      return InvalidArgument(Reason::kInvalidSpec,
                             "the array lies on a single device and on no mesh, so that it has no "
                             "spec; place it on a mesh",
                             "AttributeError");
    case ArrayLayout::Kind::kNamed:
      break;
  }
  return array.spec;
}

absl::StatusOr<std::optional<PartitionSpec>> GetOutputPartitionSpec(const ArrayLayout& lhs,
                                                                    const ArrayLayout& rhs,
                                                                    std::string_view axis_name) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<PartitionSpec> lhs_spec, GetSharding(lhs));
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<PartitionSpec> rhs_spec, GetSharding(rhs));
  if (!lhs_spec.has_value() || !rhs_spec.has_value()) return std::nullopt;
  if (lhs.rank < 0 || lhs.rank > kMaxRank) {
    return InvalidArgument(
        Reason::kInvalidShape,
        StrCat("no array has the rank ", lhs.rank, "; 0 to ", kMaxRank, " are possible"),
        {{fact::kValue, lhs.rank}, {fact::kLimit, kMaxRank}});
  }
  if (lhs.rank == 2) {
    if (rhs_spec->size() < 2) {
      return InvalidArgument(Reason::kInvalidSpec,
                             StrCat("the right side's spec ", rhs_spec->ToString(),
                                    " has fewer than two entries to swap; fill it up with None"),
                             {{fact::kValue, rhs_spec->ToString()}}, "IndexError");
    }
    return PartitionSpec({rhs_spec->entry(1), rhs_spec->entry(0)});
  }
  std::vector<SpecEntry> entries(static_cast<size_t>(std::max<int64_t>(lhs.rank - 1, 0)));
  SHARDMESH_ASSIGN_OR_RETURN(SpecEntry last,
                             SpecEntry::Create(AxisValue::Name(std::string(axis_name))));
  entries.push_back(std::move(last));
  return PartitionSpec(std::move(entries));
}

PartitionSpec GetMatmulOutputSharding(const std::optional<PartitionSpec>& lhs,
                                      const std::optional<PartitionSpec>& rhs) {
  if (!lhs.has_value() || !rhs.has_value()) return PartitionSpec();
  std::vector<SpecEntry> entries;
  std::set<AxisName> taken;
  bool left_open = false;
  for (int64_t dim = 0; dim + 1 < lhs->size(); ++dim) {
    entries.push_back(TakeAxes(lhs->entry(dim), taken, left_open));
  }
  if (!rhs->empty()) entries.push_back(TakeAxes(rhs->entries().back(), taken, left_open));
  entries.resize(std::max(entries.size(), static_cast<size_t>(lhs->size())));
  return PartitionSpec(std::move(entries));
}

absl::StatusOr<TensorParallelConfig> CheckTensorParallelConfig(TensorParallelConfig config,
                                                               const Mesh& context) {
  if (!config.matmul_method.has_value()) return config;
  if (!config.mesh.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(config.mesh, ContextMesh(absl::MakeConstSpan(&context, 1)));
  }
  if (!config.mesh->HasAxis(config.axis_name)) {
    return InvalidArgument(
        Reason::kAxisNotInMesh,
        StrCat("axis_name ", PythonRepr(config.axis_name), " is no axis of the mesh ",
               config.mesh->ToString(), config.mesh->DidYouMeanAxis(config.axis_name)),
        {{fact::kAxis, config.axis_name},
         {fact::kMesh, config.mesh->ToString()},
         {fact::kNearest, config.mesh->NearestAxis(config.axis_name)}});
  }
  return config;
}

absl::StatusOr<ParallelLinear> MakeParallelLinear(const ParallelLinearOptions& options,
                                                  Compatibility compatibility) {
  const bool exact = compatibility == Compatibility::kExact;
  const int64_t in = options.in_features;
  ParallelLinear layer;
  layer.direction = options.direction;
  // The checks follow the order in which the original finds errors.
  if (in == 0 && IsScale(options, kFanIn)) return CheckFeatures(in, 1);
  if (exact && IsScale(options, kFanOut) &&
      std::holds_alternative<std::vector<int64_t>>(options.out_features)) {
    return BadFeatures(
        "the original computes fan_out of one number alone; give the scale as a "
        "factor, or out_features as one number",
        "TypeError");
  }
  SHARDMESH_ASSIGN_OR_RETURN(const OutFeatures out, SumOut(options, compatibility));
  SHARDMESH_RETURN_IF_ERROR(CheckFeatures(in, out.sum));
  layer.tp_merged = out.parts;
  layer.kernel_shape = {in, out.sum};
  SHARDMESH_RETURN_IF_ERROR(CheckShape(layer.kernel_shape));
  if (options.use_bias) {
    if (exact && out.is_sequence) {
      return BadFeatures(
          "the original makes no bias for out_features in parts; leave the bias "
          "out, or give one number",
          "TypeError");
    }
    layer.bias_shape = Shape{out.sum};
  }
  if (IsScale(options, kFanIn)) {
    layer.scale_factor = std::pow(static_cast<double>(in), -0.5);
  } else if (IsScale(options, kFanOut)) {
    layer.scale_factor = std::pow(static_cast<double>(out.sum), -0.5);
  } else if (const auto* const name = std::get_if<std::string>(&options.scale); name != nullptr) {
    return InvalidArgument(Reason::kBadField,
                           StrCat("scale ", PythonRepr(*name), " is neither a factor nor ", kFanIn,
                                  " nor ", kFanOut, DidYouMean(*name, {kFanIn, kFanOut})),
                           {{fact::kValue, *name},
                            {fact::kNearest, NearestName(*name, {kFanIn, kFanOut}).value_or("")}},
                           "TypeError");
  } else {
    layer.scale_factor = std::get<double>(options.scale);
  }
  return layer;
}

}  // namespace shardmesh
