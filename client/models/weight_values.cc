// Declares weights in a graph.
#include "client/models/weight_values.h"

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::client {

WeightValues::WeightValues(const ModelConfig& config, const WeightTypes& types, GraphBuilder* graph)
    : graph_(graph) {
  // The weights' layout does not matter here, and an axis of size 1 fits every configuration.
  const absl::StatusOr<std::vector<ModelWeight>> weights = WeightsOf(config, ModelAxis());
  if (!weights.ok()) return;
  for (const ModelWeight& weight : *weights) {
    const bool is_quantised = types.quantised.contains(weight.name);
    values_[weight.name] =
        graph_->Parameter(weight.name, is_quantised ? Dtype::kI8 : types.dtype, weight.shape);
    if (!is_quantised) continue;
    const std::string scales = ScaleNameOf(weight.name);
    values_[scales] = graph_->Parameter(scales, Dtype::kF32, {weight.shape.front()});
  }
}

GraphValue WeightValues::Get(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? GraphValue() : found->second;
}

GraphValue WeightValues::Linear(GraphValue x, std::string_view name, Activation activation) const {
  const auto optional = [this](const std::string& key) -> std::optional<GraphValue> {
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  };
  const std::string weight = StrCat(name, ".weight");
  return graph_->Linear(x, Get(weight),
                        {.bias = optional(StrCat(name, ".bias")),
                         .scales = optional(ScaleNameOf(weight)),
                         .activation = activation});
}

}  // namespace shardmesh::client
