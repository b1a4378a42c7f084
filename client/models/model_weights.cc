// The weights of transformers and their layouts.
#include "client/models/model_weights.h"

#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint/tensor_map.h"

namespace shardmesh::client {
namespace {

// Makes the weights of a model one after the other.
class WeightList {
 public:
  explicit WeightList(const ModelAxis& axis) : axis_(axis) {}

  // A vector or a matrix that every device has.
  void AddWhole(std::string name, Shape shape) {
    weights_.push_back({std::move(name), std::move(shape), PartitionSpec()});
  }
  // A linear layer whose output features are partitioned: NAME.weight, and perhaps NAME.bias.
  void AddByRows(std::string_view name, const Shape& shape, bool has_bias) {
    weights_.push_back({StrCat(name, ".weight"), shape, SpecAlong(0), true});
    if (has_bias) weights_.push_back({StrCat(name, ".bias"), {shape[0]}, SpecAlong(0)});
  }
  // One whose input features are partitioned.
  void AddByColumns(std::string_view name, const Shape& shape, bool has_bias) {
    weights_.push_back({StrCat(name, ".weight"), shape, SpecAlong(1), true});
    if (has_bias) AddWhole(StrCat(name, ".bias"), {shape[0]});
  }
  // A row for each token.
  void AddTable(std::string name, Shape shape, bool is_linear = false) {
    const bool is_divisible = shape.front() % axis_.size == 0;
    PartitionSpec spec = is_divisible ? SpecAlong(0) : PartitionSpec();
    weights_.push_back({std::move(name), std::move(shape), std::move(spec), is_linear});
  }

  std::vector<ModelWeight> Take() { return std::move(weights_); }

 private:
  PartitionSpec SpecAlong(size_t dimension) const {
    if (axis_.size == 1) return PartitionSpec();
    std::vector<SpecEntry> entries(dimension);
    entries.push_back(SpecEntry::Axis(axis_.name));
    return PartitionSpec(std::move(entries));
  }

  const ModelAxis axis_;
  std::vector<ModelWeight> weights_;
};

absl::Status CheckDivides(const ModelAxis& axis, std::string_view key, int64_t size) {
  if (size % axis.size == 0) return absl::OkStatus();
  std::vector<int64_t> divisors;
  for (int64_t divisor = 1; divisor < axis.size; ++divisor) {
    if (size % divisor == 0) divisors.push_back(divisor);
  }
  return InvalidArgument(
      Reason::kNotDivisible,
      StrCat(key, " is ", size, ", not divisible by the ", axis.size, " devices of the mesh axis ",
             axis.name, "; use a mesh on which this axis has ", StrJoin(divisors, " or ")),
      {{fact::kHave, size}, {fact::kNeed, axis.size}, {fact::kAxis, axis.name}});
}

absl::StatusOr<std::vector<ModelWeight>> LlamaWeights(const LlamaConfig& config,
                                                      const ModelAxis& axis) {
  SHARDMESH_RETURN_IF_ERROR(CheckDivides(axis, "num_attention_heads", config.heads));
  SHARDMESH_RETURN_IF_ERROR(CheckDivides(axis, "num_key_value_heads", config.key_heads));
  SHARDMESH_RETURN_IF_ERROR(CheckDivides(axis, "intermediate_size", config.intermediate_size));
  const int64_t hidden = config.hidden_size;
  const int64_t queries = config.heads * config.head_size;
  const int64_t keys = config.key_heads * config.head_size;
  const int64_t inner = config.intermediate_size;
  WeightList list(axis);
  list.AddTable("model.embed_tokens.weight", {config.vocabulary_size, hidden});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = StrCat("model.layers.", layer, ".");
    list.AddWhole(prefix + "input_layernorm.weight", {hidden});
    list.AddByRows(prefix + "self_attn.q_proj", {queries, hidden}, config.has_input_biases);
    list.AddByRows(prefix + "self_attn.k_proj", {keys, hidden}, config.has_input_biases);
    list.AddByRows(prefix + "self_attn.v_proj", {keys, hidden}, config.has_input_biases);
    list.AddByColumns(prefix + "self_attn.o_proj", {hidden, queries}, config.has_output_bias);
    list.AddWhole(prefix + "post_attention_layernorm.weight", {hidden});
    list.AddByRows(prefix + "mlp.gate_proj", {inner, hidden}, config.has_mlp_biases);
    list.AddByRows(prefix + "mlp.up_proj", {inner, hidden}, config.has_mlp_biases);
    list.AddByColumns(prefix + "mlp.down_proj", {hidden, inner}, config.has_mlp_biases);
  }
  list.AddWhole("model.norm.weight", {hidden});
  if (!config.ties_embeddings) {
    list.AddTable("lm_head.weight", {config.vocabulary_size, hidden}, /*is_linear=*/true);
  }
  return list.Take();
}

void AddBertLayer(const BertConfig& config, int64_t layer, WeightList& list) {
  const int64_t hidden = config.hidden_size;
  const std::string prefix = StrCat("encoder.layer.", layer, ".");
  for (const char* name : {"query", "key", "value"}) {
    list.AddByRows(StrCat(prefix, "attention.self.", name), {hidden, hidden}, true);
  }
  list.AddByColumns(prefix + "attention.output.dense", {hidden, hidden}, true);
  list.AddWhole(prefix + "attention.output.LayerNorm.weight", {hidden});
  list.AddWhole(prefix + "attention.output.LayerNorm.bias", {hidden});
  list.AddByRows(prefix + "intermediate.dense", {config.intermediate_size, hidden}, true);
  list.AddByColumns(prefix + "output.dense", {hidden, config.intermediate_size}, true);
  list.AddWhole(prefix + "output.LayerNorm.weight", {hidden});
  list.AddWhole(prefix + "output.LayerNorm.bias", {hidden});
}

absl::StatusOr<std::vector<ModelWeight>> BertWeights(const BertConfig& config,
                                                     const ModelAxis& axis) {
  SHARDMESH_RETURN_IF_ERROR(CheckDivides(axis, "num_attention_heads", config.heads));
  SHARDMESH_RETURN_IF_ERROR(CheckDivides(axis, "intermediate_size", config.intermediate_size));
  const int64_t hidden = config.hidden_size;
  WeightList list(axis);
  list.AddTable("embeddings.word_embeddings.weight", {config.vocabulary_size, hidden});
  list.AddWhole("embeddings.position_embeddings.weight", {config.max_positions, hidden});
  list.AddWhole("embeddings.token_type_embeddings.weight", {config.token_types, hidden});
  list.AddWhole("embeddings.LayerNorm.weight", {hidden});
  list.AddWhole("embeddings.LayerNorm.bias", {hidden});
  for (int64_t layer = 0; layer < config.layers; ++layer) AddBertLayer(config, layer, list);
  return list.Take();
}

absl::Status Missing(std::string_view source, const ModelWeight& weight,
                     absl::Span<const StoredTensor> tensors) {
  std::vector<std::string_view> names;
  for (const StoredTensor& tensor : tensors) names.push_back(tensor.name);
  const std::optional<std::string_view> nearest = NearestName(weight.name, names);
  return InvalidArgument(
      Reason::kBadFile,
      StrCat(source, " lacks the tensor \"", weight.name, "\", ", ShapeToString(weight.shape),
             ", which config.json requires",
             nearest.has_value() ? StrCat("; it has \"", *nearest, "\"") : std::string()),
      {{fact::kFile, source}, {fact::kTensor, weight.name}});
}

// Returns the scales that a weight of I8 has.
ModelWeight ScalesOf(const ModelWeight& weight) {
  PartitionSpec spec;
  if (weight.spec.size() > 0) spec = PartitionSpec({weight.spec.entry(0)});
  return {
      .name = ScaleNameOf(weight.name), .shape = {weight.shape.front()}, .spec = std::move(spec)};
}

// Checks weights one after the other, and collects their types.
class TensorCheck {
 public:
  TensorCheck(std::string_view source, absl::Span<const StoredTensor> tensors)
      : source_(source), tensors_(tensors) {
    for (const StoredTensor& tensor : tensors) by_name_[tensor.name] = &tensor;
  }

  absl::Status Check(const ModelWeight& weight) {
    SHARDMESH_ASSIGN_OR_RETURN(const StoredTensor* const tensor, Find(weight));
    if (tensor->dtype == Dtype::kI8 && weight.is_linear) return CheckQuantised(weight);
    if (tensor->dtype != Dtype::kF32 && tensor->dtype != Dtype::kBF16 &&
        tensor->dtype != Dtype::kF16) {
      return WrongType(*tensor, StrCat("; ",
                                       weight.is_linear ? "this weight must be F32, BF16, F16 or I8"
                                                        : "weights are F32, BF16 or F16",
                                       ": convert it with load --dtype and save"));
    }
    if (first_matrix_ == nullptr && tensor->shape.size() == 2) first_matrix_ = tensor;
    if (first_matrix_ != nullptr && tensor->dtype != first_matrix_->dtype) {
      return WrongType(*tensor, StrCat(", and \"", first_matrix_->name, "\" is ",
                                       DtypeName(first_matrix_->dtype),
                                       "; all weights of a model that are not I8 have one type: "
                                       "convert it with load --dtype and save"));
    }
    return absl::OkStatus();
  }

  WeightTypes Take() && {
    if (first_matrix_ != nullptr) types_.dtype = first_matrix_->dtype;
    return std::move(types_);
  }

 private:
  // Returns the tensor of a weight, which has the weight's shape.
  absl::StatusOr<const StoredTensor*> Find(const ModelWeight& weight) const {
    const auto found = by_name_.find(weight.name);
    if (found == by_name_.end()) return Missing(source_, weight, tensors_);
    const StoredTensor& tensor = *found->second;
    if (tensor.shape == weight.shape) return &tensor;
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat(Which(tensor), " has the shape ", ShapeToString(tensor.shape),
               ", and config.json requires ", ShapeToString(weight.shape)),
        {{fact::kHave, ShapeToString(tensor.shape)}, {fact::kNeed, ShapeToString(weight.shape)}});
  }
  // Checks the scales of a weight of I8.
  absl::Status CheckQuantised(const ModelWeight& weight) {
    const ModelWeight scales = ScalesOf(weight);
    if (!by_name_.contains(scales.name)) {
      return InvalidArgument(
          Reason::kBadFile,
          StrCat(source_, ": the tensor \"", weight.name, "\" is I8, and its scales, the tensor \"",
                 scales.name, "\", F32 ", ShapeToString(scales.shape),
                 ", are missing: quantise it with load --map and dtype: I8"),
          {{fact::kFile, source_}, {fact::kTensor, scales.name}});
    }
    SHARDMESH_ASSIGN_OR_RETURN(const StoredTensor* const found, Find(scales));
    if (found->dtype != Dtype::kF32) return WrongType(*found, "; scales must be F32");
    types_.quantised.insert(weight.name);
    return absl::OkStatus();
  }
  absl::Status WrongType(const StoredTensor& tensor, std::string_view advice) const {
    return InvalidArgument(Reason::kUnsupportedDtype,
                           StrCat(Which(tensor), " is ", DtypeName(tensor.dtype), advice),
                           {{fact::kDtype, DtypeName(tensor.dtype)}});
  }
  std::string Which(const StoredTensor& tensor) const {
    return StrCat(source_, ": the tensor \"", tensor.name, "\"");
  }

  const std::string source_;
  const absl::Span<const StoredTensor> tensors_;
  std::map<std::string_view, const StoredTensor*> by_name_;
  const StoredTensor* first_matrix_ = nullptr;  // that is not I8
  WeightTypes types_;
};

}  // namespace

ModelAxis ModelAxis::Of(const Mesh& mesh, std::string_view name) {
  ModelAxis result{.name = std::string(name)};
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.name == name) result.size = axis.size;
  }
  return result;
}

absl::StatusOr<std::vector<ModelWeight>> WeightsOf(const ModelConfig& config,
                                                   const ModelAxis& axis) {
  if (const auto* llama = std::get_if<LlamaConfig>(&config)) return LlamaWeights(*llama, axis);
  return BertWeights(std::get<BertConfig>(config), axis);
}

std::vector<MergedWeight> MergedWeightsOf(const ModelConfig& config) {
  std::vector<MergedWeight> merged;
  const auto* const llama = std::get_if<LlamaConfig>(&config);
  if (llama == nullptr || !llama->is_merged) return merged;
  const auto add = [&](const std::string& whole, std::vector<RowPart> parts) {
    int64_t rows = 0;
    for (const RowPart& part : parts) rows += part.rows;
    merged.push_back({.whole = {.name = whole,
                                .shape = {rows, llama->hidden_size},
                                .spec = PartitionSpec(),
                                .is_linear = true},
                      .parts = std::move(parts)});
  };
  const int64_t queries = llama->heads * llama->head_size;
  const int64_t keys = llama->key_heads * llama->head_size;
  for (int64_t layer = 0; layer < llama->layers; ++layer) {
    const std::string prefix = StrCat("model.layers.", layer, ".");
    add(prefix + "self_attn.qkv_proj.weight", {{prefix + "self_attn.q_proj.weight", queries},
                                               {prefix + "self_attn.k_proj.weight", keys},
                                               {prefix + "self_attn.v_proj.weight", keys}});
    add(prefix + "mlp.gate_up_proj.weight",
        {{prefix + "mlp.gate_proj.weight", llama->intermediate_size},
         {prefix + "mlp.up_proj.weight", llama->intermediate_size}});
  }
  return merged;
}

std::string ScaleNameOf(std::string_view weight) { return StrCat(weight, kScaleSuffix); }

void AddScales(const WeightTypes& types, std::vector<ModelWeight>& weights) {
  const size_t count = weights.size();
  for (size_t i = 0; i < count; ++i) {
    const ModelWeight& weight = weights[i];
    if (!types.quantised.contains(weight.name)) continue;
    ModelWeight scales = ScalesOf(weight);
    weights.push_back(std::move(scales));
  }
}

absl::StatusOr<WeightTypes> CheckModelWeights(std::string_view source,
                                              absl::Span<const ModelWeight> weights,
                                              absl::Span<const StoredTensor> tensors) {
  TensorCheck check(source, tensors);
  for (const ModelWeight& weight : weights) SHARDMESH_RETURN_IF_ERROR(check.Check(weight));
  return std::move(check).Take();
}

}  // namespace shardmesh::client
