// The weights of transformers and their layouts.
#include "client/models/model_weights.h"

#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

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
  // A matrix, or the bias of one, whose rows are partitioned.
  void AddByRows(std::string name, Shape shape) {
    weights_.push_back({std::move(name), std::move(shape), SpecAlong(0)});
  }
  void AddByColumns(std::string name, Shape shape) {
    weights_.push_back({std::move(name), std::move(shape), SpecAlong(1)});
  }
  // A table of tokens.
  void AddTable(std::string name, Shape shape) {
    const bool is_divisible = shape.front() % axis_.size == 0;
    PartitionSpec spec = is_divisible ? SpecAlong(0) : PartitionSpec();
    weights_.push_back({std::move(name), std::move(shape), std::move(spec)});
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
  WeightList list(axis);
  list.AddTable("model.embed_tokens.weight", {config.vocabulary_size, hidden});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = StrCat("model.layers.", layer, ".");
    list.AddWhole(prefix + "input_layernorm.weight", {hidden});
    list.AddByRows(prefix + "self_attn.q_proj.weight", {queries, hidden});
    list.AddByRows(prefix + "self_attn.k_proj.weight", {keys, hidden});
    list.AddByRows(prefix + "self_attn.v_proj.weight", {keys, hidden});
    list.AddByColumns(prefix + "self_attn.o_proj.weight", {hidden, queries});
    list.AddWhole(prefix + "post_attention_layernorm.weight", {hidden});
    list.AddByRows(prefix + "mlp.gate_proj.weight", {config.intermediate_size, hidden});
    list.AddByRows(prefix + "mlp.up_proj.weight", {config.intermediate_size, hidden});
    list.AddByColumns(prefix + "mlp.down_proj.weight", {hidden, config.intermediate_size});
  }
  list.AddWhole("model.norm.weight", {hidden});
  if (!config.ties_embeddings) {
    list.AddTable("lm_head.weight", {config.vocabulary_size, hidden});
  }
  return list.Take();
}

void AddBertLayer(const BertConfig& config, int64_t layer, WeightList& list) {
  const int64_t hidden = config.hidden_size;
  const std::string prefix = StrCat("encoder.layer.", layer, ".");
  for (const char* name : {"query", "key", "value"}) {
    list.AddByRows(StrCat(prefix, "attention.self.", name, ".weight"), {hidden, hidden});
    list.AddByRows(StrCat(prefix, "attention.self.", name, ".bias"), {hidden});
  }
  list.AddByColumns(prefix + "attention.output.dense.weight", {hidden, hidden});
  list.AddWhole(prefix + "attention.output.dense.bias", {hidden});
  list.AddWhole(prefix + "attention.output.LayerNorm.weight", {hidden});
  list.AddWhole(prefix + "attention.output.LayerNorm.bias", {hidden});
  list.AddByRows(prefix + "intermediate.dense.weight", {config.intermediate_size, hidden});
  list.AddByRows(prefix + "intermediate.dense.bias", {config.intermediate_size});
  list.AddByColumns(prefix + "output.dense.weight", {hidden, config.intermediate_size});
  list.AddWhole(prefix + "output.dense.bias", {hidden});
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

absl::StatusOr<Dtype> CheckModelWeights(std::string_view source,
                                        absl::Span<const ModelWeight> weights,
                                        absl::Span<const StoredTensor> tensors) {
  std::map<std::string_view, const StoredTensor*> by_name;
  for (const StoredTensor& tensor : tensors) by_name[tensor.name] = &tensor;
  const StoredTensor* first_matrix = nullptr;
  for (const ModelWeight& weight : weights) {
    const auto found = by_name.find(weight.name);
    if (found == by_name.end()) return Missing(source, weight, tensors);
    const StoredTensor& tensor = *found->second;
    const std::string which = StrCat(source, ": the tensor \"", tensor.name, "\"");
    if (tensor.shape != weight.shape) {
      return InvalidArgument(
          Reason::kShapeMismatch,
          StrCat(which, " has the shape ", ShapeToString(tensor.shape),
                 ", and config.json requires ", ShapeToString(weight.shape)),
          {{fact::kHave, ShapeToString(tensor.shape)}, {fact::kNeed, ShapeToString(weight.shape)}});
    }
    if (tensor.dtype != Dtype::kF32 && tensor.dtype != Dtype::kBF16 &&
        tensor.dtype != Dtype::kF16) {
      return InvalidArgument(Reason::kUnsupportedDtype,
                             StrCat(which, " is ", DtypeName(tensor.dtype),
                                    "; weights are F32, BF16 or F16: convert it with load --dtype "
                                    "and save"),
                             {{fact::kDtype, DtypeName(tensor.dtype)}});
    }
    if (first_matrix == nullptr && tensor.shape.size() == 2) first_matrix = &tensor;
    if (first_matrix != nullptr && tensor.dtype != first_matrix->dtype) {
      return InvalidArgument(
          Reason::kUnsupportedDtype,
          StrCat(which, " is ", DtypeName(tensor.dtype), ", and \"", first_matrix->name, "\" is ",
                 DtypeName(first_matrix->dtype),
                 "; all weights of a model have one type: convert it with load --dtype and save"),
          {{fact::kDtype, DtypeName(tensor.dtype)}});
    }
  }
  return first_matrix == nullptr ? Dtype::kF32 : first_matrix->dtype;
}

}  // namespace shardmesh::client
