// A program with the ops of a decoder's step, for tests of plans.
#ifndef SHARDMESH_TESTS_UNIT_PROGRAM_TRANSFORMER_PROGRAM_H_
#define SHARDMESH_TESTS_UNIT_PROGRAM_TRANSFORMER_PROGRAM_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "program/program.h"
#include "program/step_plan.h"
#include "tests/unit/program/plan_examples.h"

namespace shardmesh {

struct TransformerSizes {
  int64_t layers = 2;
  int64_t batch = 4;
  int64_t sequence = 3;
  int64_t features = 32;
  int64_t heads = 8;
  int64_t key_heads = 4;
  int64_t head_features = 8;
  int64_t hidden = 64;
  int64_t rows = 16;  // of the caches
  int64_t vocabulary = 40;
  bool has_sharded_projections = true;  // if false, each device has all of wq, wk and wv
};

struct TransformerProgram {
  Program program;
  std::vector<ValueDescriptor> operands;
};

// The weights are partitioned over tp as usual: columns of the projections and of gate and up, rows
// of the output and down projections, heads of the caches, rows of the embedding. The batch is
// partitioned over dp.
class TransformerBuilder {
 public:
  explicit TransformerBuilder(const TransformerSizes& sizes) : sizes_(sizes) {}

  TransformerProgram Build() && {
    const int64_t query = sizes_.heads * sizes_.head_features;
    const int64_t key = sizes_.key_heads * sizes_.head_features;
    const std::vector<std::string> projected = sizes_.has_sharded_projections
                                                   ? std::vector<std::string>{"tp"}
                                                   : std::vector<std::string>();
    const ValueIndex ids =
        Operand(Value({sizes_.batch, sizes_.sequence}, Spec({{"dp"}}), Dtype::kI32));
    const ValueIndex positions = Operand(Value({sizes_.sequence}, PartitionSpec(), Dtype::kI32));
    const ValueIndex frequencies = Operand(Value({sizes_.head_features / 2}, PartitionSpec()));
    const ValueIndex table = Operand(Value({sizes_.vocabulary, sizes_.features}, Spec({{"tp"}})));
    const ValueIndex last_norm = Operand(Value({sizes_.features}, PartitionSpec()));
    const ValueIndex head = Operand(Value({sizes_.vocabulary, sizes_.features}, Spec({{"tp"}})));
    std::vector<Layer> layers(static_cast<size_t>(sizes_.layers));
    const PartitionSpec cache = Spec({{"dp"}, {}, {"tp"}});
    for (Layer& layer : layers) {
      layer.norm = Operand(Value({sizes_.features}, PartitionSpec()));
      layer.query = Operand(Value({query, sizes_.features}, Spec({projected})));
      layer.key = Operand(Value({key, sizes_.features}, Spec({projected})));
      layer.value = Operand(Value({key, sizes_.features}, Spec({projected})));
      layer.output = Operand(Value({sizes_.features, query}, Spec({{}, {"tp"}})));
      layer.gate = Operand(Value({sizes_.hidden, sizes_.features}, Spec({{"tp"}})));
      layer.up = Operand(Value({sizes_.hidden, sizes_.features}, Spec({{"tp"}})));
      layer.down = Operand(Value({sizes_.features, sizes_.hidden}, Spec({{}, {"tp"}})));
      const Shape rows = {sizes_.batch, sizes_.rows, sizes_.key_heads, sizes_.head_features};
      layer.keys = Operand(Value(rows, cache));
      layer.values = Operand(Value(rows, cache));
    }
    made_.program.operand_count = static_cast<uint32_t>(made_.operands.size());
    const auto heads = [&](ValueIndex input, int64_t count) {
      return Op(TensorOp(ReshapeOp{
          .input = input, .shape = {sizes_.batch, sizes_.sequence, count, sizes_.head_features}}));
    };
    const auto rotary = [&](ValueIndex input) {
      return Op(
          TensorOp(RotaryOp{.input = input, .positions = positions, .frequencies = frequencies}));
    };
    const auto norm = [&](ValueIndex input, ValueIndex weight) {
      return Op(TensorOp(NormOp{.input = input, .weight = weight}));
    };
    const auto map = [&](MapFunction function, ValueIndex a, ValueIndex b) {
      return Op(TensorOp(MapOp{.function = function, .inputs = {a, b}}));
    };
    const auto linear = [&](ValueIndex input, ValueIndex weight,
                            Activation activation = Activation::kNone) {
      return Op(LinearOp{.input = input, .weight = weight, .activation = activation});
    };
    ValueIndex x = Op(TensorOp(EmbeddingOp{.table = table, .ids = ids}));
    for (const Layer& layer : layers) {
      ValueIndex normed = norm(x, layer.norm);
      const ValueIndex q = rotary(heads(linear(normed, layer.query), sizes_.heads));
      const ValueIndex k = rotary(heads(linear(normed, layer.key), sizes_.key_heads));
      const ValueIndex v = heads(linear(normed, layer.value), sizes_.key_heads);
      const ValueIndex keys =
          Op(TensorOp(UpdateRowsOp{.input = layer.keys, .update = k, .positions = positions}));
      const ValueIndex values =
          Op(TensorOp(UpdateRowsOp{.input = layer.values, .update = v, .positions = positions}));
      const ValueIndex attended = Op(TensorOp(
          AttentionOp{.query = q, .keys = keys, .values = values, .positions = positions}));
      const ValueIndex joined = Op(
          TensorOp(ReshapeOp{.input = attended, .shape = {sizes_.batch, sizes_.sequence, query}}));
      x = map(MapFunction::kAdd, x, linear(joined, layer.output));
      normed = norm(x, layer.norm);
      const ValueIndex gate = linear(normed, layer.gate, Activation::kSilu);
      const ValueIndex mixed = map(MapFunction::kMultiply, gate, linear(normed, layer.up));
      x = map(MapFunction::kAdd, x, linear(mixed, layer.down));
      made_.program.updates.push_back({.operand = layer.keys, .value = keys});
      made_.program.updates.push_back({.operand = layer.values, .value = values});
    }
    const ValueIndex logits = linear(norm(x, last_norm), head);
    made_.program.outputs = {Op(TensorOp(TopKOp{.input = logits, .drops_dimension = true}))};
    return std::move(made_);
  }

 private:
  struct Layer {
    ValueIndex norm = 0;
    ValueIndex query = 0;
    ValueIndex key = 0;
    ValueIndex value = 0;
    ValueIndex output = 0;
    ValueIndex gate = 0;
    ValueIndex up = 0;
    ValueIndex down = 0;
    ValueIndex keys = 0;
    ValueIndex values = 0;
  };

  ValueIndex Operand(ValueDescriptor value) {
    made_.operands.push_back(std::move(value));
    return static_cast<ValueIndex>(made_.operands.size() - 1);
  }
  ValueIndex Op(ProgramOp op) {
    made_.program.ops.push_back(std::move(op));
    return made_.program.operand_count + static_cast<ValueIndex>(made_.program.ops.size() - 1);
  }

  const TransformerSizes sizes_;
  TransformerProgram made_;
};

inline TransformerProgram Transformer(const TransformerSizes& sizes) {
  return TransformerBuilder(sizes).Build();
}

}  // namespace shardmesh

#endif  // SHARDMESH_TESTS_UNIT_PROGRAM_TRANSFORMER_PROGRAM_H_
