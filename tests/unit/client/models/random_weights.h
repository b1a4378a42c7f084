// Random weights of small models for tests, as tensors of plain computations.
#ifndef SHARDMESH_TESTS_UNIT_CLIENT_MODELS_RANDOM_WEIGHTS_H_
#define SHARDMESH_TESTS_UNIT_CLIENT_MODELS_RANDOM_WEIGHTS_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <random>

#include "client/models/model_config.h"
#include "client/models/model_weights.h"
#include "tests/testing/plain_graph.h"
#include "tests/testing/plain_transformer.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::test {

inline PlainTensors RandomWeights(const client::ModelConfig& config) {
  PlainTensors tensors;
  std::mt19937 random(7);
  const auto weights = client::WeightsOf(config, client::ModelAxis());
  EXPECT_THAT(weights, IsOk());
  for (const client::ModelWeight& weight : *weights) {
    PlainTensor& tensor = tensors[weight.name];
    tensor.shape.assign(weight.shape.begin(), weight.shape.end());
    const bool is_vector = tensor.shape.size() == 1;
    const bool is_norm = is_vector && weight.name.ends_with("weight");
    std::normal_distribution<float> values(
        is_norm ? 1.0F : 0.0F,
        is_vector ? 0.1F : 1 / std::sqrt(static_cast<float>(tensor.shape.back())));
    size_t size = 1;
    for (const int64_t extent : tensor.shape) size *= static_cast<size_t>(extent);
    for (size_t i = 0; i < size; ++i) tensor.values.push_back(values(random));
  }
  return tensors;
}

// The same as operands of a graph.
inline PlainValues OperandsOf(const PlainTensors& tensors) {
  PlainValues operands;
  for (const auto& [name, tensor] : tensors) {
    operands[name] = {Shape(tensor.shape.begin(), tensor.shape.end()),
                      std::vector<double>(tensor.values.begin(), tensor.values.end())};
  }
  return operands;
}

// Makes the linear weights I8: `weights` get the values that the integers and scales mean, and
// `operands` get these integers and scales.
inline client::WeightTypes Quantise(const client::ModelConfig& config, PlainTensors& weights,
                                    PlainValues& operands) {
  client::WeightTypes types;
  const auto list = client::WeightsOf(config, client::ModelAxis());
  EXPECT_THAT(list, IsOk());
  for (const client::ModelWeight& weight : *list) {
    if (!weight.is_linear) continue;
    types.quantised.insert(weight.name);
    PlainTensor& tensor = weights.at(weight.name);
    PlainValue& integers = operands[weight.name];
    PlainValue& scales = operands[client::ScaleNameOf(weight.name)];
    integers.shape = weight.shape;
    scales.shape = {weight.shape[0]};
    const auto columns = static_cast<size_t>(weight.shape[1]);
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      if (i % columns == 0) {
        scales.elements.push_back(0.01 + 0.001 * static_cast<double>(i / columns % 7));
      }
      const double scale = scales.elements.back();
      integers.elements.push_back(std::round(static_cast<double>(tensor.values[i]) / scale));
      tensor.values[i] = static_cast<float>(integers.elements.back() * scale);
    }
  }
  return types;
}

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_UNIT_CLIENT_MODELS_RANDOM_WEIGHTS_H_
