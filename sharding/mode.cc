// Names of modes, and the mode that follows from a shape.
#include "sharding/mode.h"

#include <array>

#include "absl/status/status.h"
#include "sharding/shape.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// Names by the enum's value.
constexpr std::array<std::string_view, 4> kNames = {"__train__", "__prefill__",
                                                    "__autoregressive__", "__insert__"};

}  // namespace

std::string_view RuntimeModeName(RuntimeMode mode) { return kNames[static_cast<size_t>(mode)]; }

absl::StatusOr<Mode> Mode::Parse(std::string_view name, Compatibility compatibility) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return Mode(static_cast<RuntimeMode>(i));
  }
  if (compatibility == Compatibility::kExact) return Mode(RuntimeMode::kTrain);
  const std::string framed = name.starts_with('_') ? std::string(name) : StrCat("__", name, "__");
  return InvalidArgument(
      Reason::kUnknownMode,
      StrCat("unknown mode \"", name, "\"; the modes are ", StrJoin(kNames, ", "),
             DidYouMean(framed, kNames)),
      {{fact::kName, name}, {fact::kNearest, NearestName(framed, kNames).value_or("")}});
}

absl::StatusOr<RuntimeMode> Mode::Resolve(std::optional<absl::Span<const int64_t>> shape) const {
  if (const auto* mode = std::get_if<RuntimeMode>(&value_)) return *mode;
  const int64_t dim = std::get<int64_t>(value_);
  if (!shape.has_value()) {
    return InvalidArgument(
        Reason::kMissingArgument,
        StrCat("the mode depends on dimension ", dim,
               ", but no shape is given; give the tensor's shape or name a mode"),
        {{fact::kField, "shape"}});
  }
  const auto rank = static_cast<int64_t>(shape->size());
  if (dim < -rank || dim >= rank) {
    return InvalidArgument(
        Reason::kInvalidDimension,
        StrCat("the mode depends on dimension ", dim, ", which a tensor of shape ",
               ShapeToString(*shape), " does not have; name another dimension, or a mode"),
        {{fact::kDimension, dim}, {fact::kLimit, rank}}, "IndexError");
  }
  const int64_t extent = (*shape)[static_cast<size_t>(dim < 0 ? dim + rank : dim)];
  return extent == 1 ? RuntimeMode::kAutoregressive : RuntimeMode::kTrain;
}

std::optional<int64_t> Mode::dimension() const {
  const auto* dim = std::get_if<int64_t>(&value_);
  return dim == nullptr ? std::nullopt : std::optional<int64_t>(*dim);
}

std::string Mode::ToString() const {
  if (const auto* mode = std::get_if<RuntimeMode>(&value_)) {
    return std::string(RuntimeModeName(*mode));
  }
  return StrCat("dimension ", std::get<int64_t>(value_));
}

}  // namespace shardmesh
