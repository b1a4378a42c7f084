// Puts models onto a cluster, and finds them there.
#include "client/models/loaded_model.h"

#include <memory>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "client/models/time_limit.h"
#include "sharding/mesh_definition.h"
#include "sharding/pattern/replacement.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint/tensor_map.h"
#include "tensor/checkpoint/tensor_source.h"
#include "tensor/view.h"

namespace shardmesh::client {
namespace {

constexpr absl::Duration kMaxStepTime = absl::Minutes(5);  // see ExecuteRequest.timeout
constexpr char kConfigFile[] = "config.json";

absl::StatusOr<Mesh> MeshNamed(MeshClient* client, const std::string& name,
                               const CallOptions& options) {
  SHARDMESH_ASSIGN_OR_RETURN(
      const Entry entry,
      client->catalog().GetEntry(EntryKind::kMesh, name.empty() ? "default" : name, options));
  return std::get<MeshDefinition>(entry.value).mesh;
}

// Returns the tensors of a TensorSource or of a MappedCheckpoint.
template <typename Checkpoint>
std::vector<StoredTensor> StoredTensorsOf(const Checkpoint& checkpoint) {
  std::vector<StoredTensor> tensors;
  for (const auto& tensor : checkpoint.tensors()) {
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  return tensors;
}

// Splits the merged weights of the checkpoint, if it has any, and makes the configuration that of
// the parts.
absl::Status SplitMergedWeights(const std::string& folder, ModelConfig& config,
                                TensorSource& source) {
  const std::vector<MergedWeight> merged = MergedWeightsOf(config);
  if (merged.empty()) return absl::OkStatus();
  std::vector<ModelWeight> wholes;
  for (const MergedWeight& weight : merged) wholes.push_back(weight.whole);
  SHARDMESH_ASSIGN_OR_RETURN(const WeightTypes types,
                             CheckModelWeights(folder, wholes, StoredTensorsOf(source)));
  for (const MergedWeight& weight : merged) {
    SHARDMESH_RETURN_IF_ERROR(source.SplitRows(weight.whole.name, weight.parts));
    if (!types.quantised.contains(weight.whole.name)) continue;
    std::vector<RowPart> scales = weight.parts;
    for (RowPart& part : scales) part.name = ScaleNameOf(part.name);
    SHARDMESH_RETURN_IF_ERROR(source.SplitRows(ScaleNameOf(weight.whole.name), scales));
  }
  std::get<LlamaConfig>(config).is_merged = false;
  return absl::OkStatus();
}

// Returns a map that makes the linear weights I8. Its one pattern has the last parts of the
// weights' names, such as q_proj, and so may match other tensors, which are not put.
absl::StatusOr<TensorMap> QuantisingMap(const std::vector<ModelWeight>& weights) {
  constexpr std::string_view kSuffix = ".weight";
  std::set<std::string_view> layers;
  for (const ModelWeight& weight : weights) {
    if (!weight.is_linear) continue;
    std::string_view layer = weight.name;
    layer.remove_suffix(kSuffix.size());
    layers.insert(layer.substr(layer.rfind('.') + 1));
  }
  SHARDMESH_ASSIGN_OR_RETURN(
      PatternReplacement replacement,
      PatternReplacement::Create(StrCat("(?:^|\\.)(?:", StrJoin(layers, "|"), ")\\.weight$"),
                                 "\\g<0>"));
  TensorMap map{.source = "the rule for weights of I8", .rules = {}};
  map.rules.push_back({.replacement = std::move(replacement),
                       .place = "the rule for weights of I8",
                       .dtype = Dtype::kI8,
                       .channel = 0});
  return map;
}

// Returns the tensors of the checkpoint that are weights, named and laid out for the model.
absl::StatusOr<std::vector<PutTensor>> TensorsToPut(const MappedCheckpoint& checkpoint,
                                                    const std::vector<ModelWeight>& weights,
                                                    const std::string& name) {
  std::map<std::string, const ModelWeight*, std::less<>> by_name;
  for (const ModelWeight& weight : weights) by_name[weight.name] = &weight;
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<PutTensor> all, PutTensorsOf(checkpoint));
  std::vector<PutTensor> tensors;
  for (PutTensor& tensor : all) {
    const auto found = by_name.find(tensor.name);
    if (found == by_name.end()) continue;
    tensor.spec = found->second->spec;
    tensor.name = StrCat(name, "/", tensor.name);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

absl::Status OtherKind(const LoadedModel& model, std::string_view have, std::string_view advice) {
  return InvalidArgument(Reason::kBadField,
                         StrCat("the model \"", model.name, "\" is a ", have, ", which ", advice),
                         {{fact::kField, "model"}, {fact::kValue, model.name}});
}

// Returns the array of this name; nullptr if there is none.
const Array* FindArray(const std::vector<Array>& arrays, std::string_view name) {
  for (const Array& array : arrays) {
    if (array.name == name) return &array;
  }
  return nullptr;
}

absl::StatusOr<ModelConfig> StoredConfig(MeshClient* client, const std::string& name,
                                         const CallOptions& options) {
  const std::string config_name = StrCat(name, "/", kConfigFile);
  const absl::StatusOr<GatheredTensor> gathered =
      client->arrays().Gather(ArraySelector::ByName(config_name), nullptr, options);
  if (ReasonOf(gathered.status()) == Reason::kNotFound) {
    return WithReason(
        absl::NotFoundError(
            StrCat("the cluster has no model \"", name, "\", and there is no folder of this ",
                   "name; give the folder of a model, or a name under which one was loaded")),
        Reason::kNotFound, {{fact::kKind, "model"}, {fact::kName, name}});
  }
  SHARDMESH_RETURN_IF_ERROR(gathered.status());
  const absl::Span<const char> bytes = gathered->view().bytes();
  return ParseModelConfig(config_name, std::string_view(bytes.data(), bytes.size()));
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(MeshClient* client, const std::string& folder,
                                      const std::string& name, const LoadModelOptions& load_options,
                                      const CallOptions& options) {
  const TimeLimit limit(options);
  LoadedModel model;
  model.name = name;
  SHARDMESH_ASSIGN_OR_RETURN(model.config, ReadModelConfig(StrCat(folder, "/", kConfigFile)));
  SHARDMESH_ASSIGN_OR_RETURN(TensorSource opened, TensorSource::Open(folder));
  SHARDMESH_RETURN_IF_ERROR(SplitMergedWeights(folder, model.config, opened));
  const auto source = std::make_shared<const TensorSource>(std::move(opened));
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, MeshNamed(client, load_options.mesh, limit.Next()));
  model.axis = ModelAxis::Of(mesh, load_options.axis);
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<ModelWeight> weights, WeightsOf(model.config, model.axis));
  SHARDMESH_ASSIGN_OR_RETURN(model.types,
                             CheckModelWeights(folder, weights, StoredTensorsOf(*source)));
  TensorMap map;
  if (load_options.quantises) {
    SHARDMESH_ASSIGN_OR_RETURN(map, QuantisingMap(weights));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const MappedCheckpoint checkpoint,
                             MappedCheckpoint::Create(source, {.map = &map}));
  SHARDMESH_ASSIGN_OR_RETURN(model.types,
                             CheckModelWeights(folder, weights, StoredTensorsOf(checkpoint)));
  AddScales(model.types, weights);
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<PutTensor> tensors,
                             TensorsToPut(checkpoint, weights, name));
  const std::string config_text = FormatModelConfig(model.config);
  SHARDMESH_ASSIGN_OR_RETURN(
      const TensorView config_view,
      TensorView::Create(Dtype::kU8, {static_cast<int64_t>(config_text.size())},
                         absl::MakeConstSpan(config_text.data(), config_text.size())));
  tensors.push_back(PutTensor{
      .name = StrCat(name, "/", kConfigFile), .view = config_view, .spec = PartitionSpec()});
  PutOptions put_options;
  put_options.mesh = load_options.mesh;
  put_options.checkpoint = source->checkpoint_path();
  put_options.progress = load_options.progress;
  put_options.on_begun = load_options.on_begun;
  SHARDMESH_ASSIGN_OR_RETURN(const PutResult put,
                             client->arrays().PutTensors(tensors, put_options, limit.Next()));
  for (size_t i = 0; i + 1 < tensors.size(); ++i) {
    const ArrayDescriptor& array = put.arrays[i].descriptor;
    model.mesh_id = array.mesh_id;
    model.weights.emplace(tensors[i].name.substr(name.size() + 1),
                          ArraySelector::ById(array.array_id));
    model.size_bytes += array.SizeBytes().value_or(0);
  }
  model.reused_bytes = put.reused_bytes;
  return model;
}

absl::StatusOr<LoadedModel> FindModel(MeshClient* client, const std::string& name,
                                      std::string_view axis, const CallOptions& options) {
  const TimeLimit limit(options);
  LoadedModel model;
  model.name = name;
  SHARDMESH_ASSIGN_OR_RETURN(model.config, StoredConfig(client, name, limit.Next()));
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Array> arrays,
                             client->arrays().ListArrays(StrCat(name, "/"), false, limit.Next()));
  const Array* const config = FindArray(arrays, StrCat(name, "/", kConfigFile));
  if (config != nullptr) model.axis = ModelAxis::Of(config->descriptor.mesh, axis);
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<ModelWeight> weights, WeightsOf(model.config, model.axis));
  std::vector<StoredTensor> tensors;
  for (const Array& array : arrays) {
    tensors.push_back(
        {array.name.substr(name.size() + 1), array.descriptor.dtype, array.descriptor.shape});
  }
  SHARDMESH_ASSIGN_OR_RETURN(
      model.types, CheckModelWeights(StrCat("the model \"", name, "\""), weights, tensors));
  AddScales(model.types, weights);
  for (const ModelWeight& weight : weights) {
    const Array* const array = FindArray(arrays, StrCat(name, "/", weight.name));
    if (array == nullptr) continue;  // not reached: CheckModelWeights has found it
    model.mesh_id = array->descriptor.mesh_id;
    model.weights.emplace(weight.name, ArraySelector::ById(array->descriptor.array_id));
    model.size_bytes += array->size_bytes;
  }
  return model;
}

absl::StatusOr<HeldArrays> HoldModel(MeshClient* client, const LoadedModel& model,
                                     const CallOptions& options) {
  std::vector<std::string> ids;
  for (const auto& [name, operand] : model.weights) {
    if (const auto* const array = std::get_if<ArraySelector>(&operand.value)) {
      ids.push_back(array->array_id);
    }
  }
  absl::StatusOr<HeldArrays> held = client->arrays().Hold(ids, options);
  if (!held.ok()) {
    return WithContext(held.status(), StrCat("the weights of the model \"", model.name, "\""));
  }
  return held;
}

CallOptions StepOptions(const CallOptions& options) {
  CallOptions limited = options;
  if (!limited.timeout.has_value()) limited.timeout = kMaxStepTime;
  return limited;
}

absl::StatusOr<LlamaConfig> LlamaConfigOf(const LoadedModel& model) {
  const auto* const config = std::get_if<LlamaConfig>(&model.config);
  if (config != nullptr) return *config;
  return OtherKind(model, "BERT-like encoder", "embeds sentences; use `embed`");
}

absl::StatusOr<BertConfig> BertConfigOf(const LoadedModel& model) {
  const auto* const config = std::get_if<BertConfig>(&model.config);
  if (config != nullptr) return *config;
  return OtherKind(model, "Llama-shaped decoder", "generates tokens; use `generate`");
}

}  // namespace shardmesh::client
