// The table of presets.
#include "sharding/presets.h"

#include <string>
#include <utility>

#include "sharding/semantic_axis.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

AxisValue Axis(std::string_view name) { return AxisValue::Name(std::string(name)); }

// Returns a dimension that is partitioned along several axes.
AxisValue Composite(std::initializer_list<std::string_view> names) {
  std::vector<AxisValue> entries;
  entries.reserve(names.size());
  for (const std::string_view name : names) entries.push_back(Axis(name));
  return AxisValue::List(std::move(entries));
}

std::vector<Preset> MakePresets() {
  using namespace semantic;  // NOLINT: the table reads best with bare names.
  const Mode by_length = Mode::OfDimension(1);
  const Mode train = RuntimeMode::kTrain;
  const AxisValue empty = Axis(kEmpty);
  const AxisValue dp = Axis(kDataParallel);
  const AxisValue fsdp = Axis(kFullyShardedDataParallel);
  const AxisValue tp = Axis(kTensorParallel);
  const AxisValue sp = Axis(kSequenceParallel);
  const AxisValue ep = Axis(kExpertParallel);
  const AxisValue fsdp_sp = Composite({kFullyShardedDataParallel, kSequenceParallel});
  const AxisValue fsdp_sp_ep =
      Composite({kFullyShardedDataParallel, kSequenceParallel, kExpertParallel});
  const AxisValue tp_fsdp = Composite({kTensorParallel, kFullyShardedDataParallel});
  return {
      {"HiddenStateSharding", {{Axis(kBatch), Axis(kQueryLength), Axis(kEmbed)}, by_length}},
      {"AttnQSharding",
       {{Axis(kBatch), Axis(kQueryLength), Axis(kHead), Axis(kHeadDim)}, by_length}},
      {"AttnKVSharding",
       {{Axis(kBatch), Axis(kKvLength), Axis(kKvHead), Axis(kKvHeadDim)}, by_length}},
      {"RowWise", {{tp, fsdp_sp}, train}},
      {"SRowWise", {{tp}, train}},
      {"ColumnWise", {{fsdp_sp, tp}, train}},
      {"SColumnWise", {{fsdp_sp}, train}},
      {"Replicated", {{empty}, train}},
      {"ExpertColumnWise", {{ep, fsdp, tp}, train}},
      {"ExpertRowWise", {{ep, tp, fsdp}, train}},
      {"ExpertColumnWiseAlt", {{ep, fsdp_sp, tp}, train}},
      {"ExpertRowWiseAlt", {{ep, tp, fsdp_sp}, train}},
      {"UnifiedExpertColumnWise", {{fsdp_sp_ep, empty, tp}, train}},
      {"UnifiedExpertRowWise", {{fsdp_sp_ep, tp, empty}, train}},
      {"ExpertActivations", {{dp, sp, ep, tp}, train}},
      {"ExpertActivationsAlt", {{dp, sp, tp_fsdp}, train}},
  };
}

}  // namespace

absl::Span<const Preset> Presets() {
  static const std::vector<Preset>& presets = *new std::vector<Preset>(MakePresets());
  return presets;
}

absl::StatusOr<const Preset*> FindPreset(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Preset& preset : Presets()) {
    if (preset.name == name) return &preset;
    names.push_back(preset.name);
  }
  const std::string nearest = DidYouMean(name, names);
  return InvalidArgument(
      Reason::kUnknownPreset,
      StrCat("unknown preset \"", name, "\"",
             nearest.empty() ? StrCat("; there are ", StrJoin(names, ", ")) : nearest),
      {{fact::kName, name}, {fact::kNearest, NearestName(name, names).value_or("")}},
      "AttributeError");
}

}  // namespace shardmesh
