// The weights of a model as operands of a graph.
#ifndef SHARDMESH_CLIENT_MODELS_WEIGHT_VALUES_H_
#define SHARDMESH_CLIENT_MODELS_WEIGHT_VALUES_H_

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "client/models/model_config.h"
#include "client/models/model_weights.h"
#include "program/graph/graph_builder.h"
#include "tensor/elementwise.h"

namespace shardmesh::client {

// Declares the weights of WeightsOf, and the scales of those that are I8, as parameters of a graph,
// under their names. Not thread-safe.
class WeightValues {
 public:
  // `graph` must outlive this object.
  WeightValues(const ModelConfig& config, const WeightTypes& types, GraphBuilder* graph);

  // Returns the weight of this name; a value that is no tensor if the model has no such weight.
  GraphValue Get(std::string_view name) const;

  // Returns activation(x * NAME.weight + NAME.bias), without the bias if the model has none, and
  // with the scales of the weight if it is I8.
  GraphValue Linear(GraphValue x, std::string_view name,
                    Activation activation = Activation::kNone) const;

 private:
  GraphBuilder* const graph_;
  std::map<std::string, GraphValue, std::less<>> values_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_MODELS_WEIGHT_VALUES_H_
