// Named presets: the semantic axes, with a mode, of the usual tensors of a transformer.
#ifndef SHARDMESH_SHARDING_PRESETS_H_
#define SHARDMESH_SHARDING_PRESETS_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/axis_value.h"
#include "sharding/mode.h"

namespace shardmesh {

// The semantic axes of a tensor's dimensions, and its mode: fixed, or determined by a dimension.
struct DynamicAxes {
  std::vector<AxisValue> axes;
  Mode mode = RuntimeMode::kTrain;

  friend bool operator==(const DynamicAxes&, const DynamicAxes&) = default;
};

struct Preset {
  std::string_view name;
  DynamicAxes dynamic_axes;
};

// Returns all presets; they live as long as the program.
absl::Span<const Preset> Presets();

// Returns the preset of this name, such as "AttnQSharding". INVALID_ARGUMENT (UNKNOWN_PRESET;
// Python: AttributeError) names the nearest preset, or all presets if none is similar.
absl::StatusOr<const Preset*> FindPreset(std::string_view name);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PRESETS_H_
