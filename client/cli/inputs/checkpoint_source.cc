// Opens and maps checkpoints for commands, and says what the map did.
#include "client/cli/inputs/checkpoint_source.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "client/cli/grammar.h"
#include "client/cli/inputs/file_kind.h"
#include "client/cli/output_form.h"
#include "client/cli/shared_options.h"
#include "client/cli/table.h"
#include "rpc/config.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"

namespace shardmesh::client {
namespace {

// Returns the type that another program calls so, for a hint; an empty text if there is none.
std::string_view FloatTypeLike(std::string_view text) {
  const std::string lower = absl::AsciiStrToLower(ToAbsl(text));
  if (lower == "fp16" || lower == "half" || lower == "f16") return "F16";
  if (lower == "bf16" || lower == "bfp16" || lower == "bfloat") return "BF16";
  if (lower == "fp32" || lower == "float" || lower == "single" || lower == "f32") return "F32";
  return "";
}

absl::StatusOr<Dtype> ParseFloatType(std::string_view text) {
  const absl::StatusOr<Dtype> parsed = ParseElementType(text);
  if (!parsed.ok()) {
    const std::string_view like = FloatTypeLike(text);
    return WrongUse(StrCat("\"", text, "\" is none of F32, F16 and BF16",
                           like.empty() ? "" : StrCat("; did you mean ", like, "?")));
  }
  const Dtype dtype = *parsed;
  if (dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16) {
    return dtype;
  }
  return WrongUse(StrCat(DtypeName(dtype), " is none of F32, F16 and BF16",
                         dtype == Dtype::kI8
                             ? "; for I8, which needs channels, write dtype and channel in a map"
                             : ""));
}

struct MappingCounts {
  int64_t renamed = 0;
  int64_t transposed = 0;
  int64_t converted = 0;
  std::map<std::pair<Dtype, Dtype>, int64_t> conversions;
};

MappingCounts CountsOf(const MappedCheckpoint& checkpoint) {
  MappingCounts counts;
  for (const MappedTensor& tensor : checkpoint.tensors()) {
    if (tensor.is_scale) continue;
    counts.renamed += tensor.is_renamed ? 1 : 0;
    counts.transposed += tensor.is_transposed ? 1 : 0;
    if (tensor.is_converted) {
      ++counts.converted;
      ++counts.conversions[{checkpoint.SourceOf(tensor).dtype, tensor.dtype}];
    }
  }
  return counts;
}

}  // namespace

void AddMapOptions(CLI::App* command, MapFlags* flags) {
  command->add_option("--map", flags->map,
                      "YAML file of patterns that rename, transpose, convert or skip tensors");
  AddParsedOption(command, "--dtype", &flags->dtype, ParseFloatType,
                  "convert F64, F32, F16 and BF16 tensors to this type: F32, F16 or BF16");
}

absl::StatusOr<MappedCheckpoint> OpenMapped(const std::string& path, const MapFlags& flags,
                                            std::optional<int64_t> step,
                                            const std::function<absl::Status()>& keep_going) {
  absl::StatusOr<TensorSource> source = TensorSource::Open(path, step, keep_going);
  if (!source.ok()) return ExplainCheckpoint(source.status(), path);
  MapOptions options{.float_dtype = flags.dtype};
  TensorMap map;
  if (!flags.map.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(map, rpc::LoadTensorMap(flags.map));
    options.map = &map;
  }
  return MappedCheckpoint::Create(std::make_shared<const TensorSource>(*std::move(source)),
                                  options);
}

std::string WhyClientReads(const MappedCheckpoint& checkpoint) {
  const std::vector<MappedTensor>& tensors = checkpoint.tensors();
  const auto found = std::find_if(tensors.begin(), tensors.end(), [](const MappedTensor& tensor) {
    return !MappedCheckpoint::IsElementwise(tensor);
  });
  if (found == tensors.end()) return "";
  return StrCat("only the client makes I8 with scales (dtype: I8 in a --map), such as \"",
                found->name, "\"");
}

std::optional<int64_t> StepOf(const MappedCheckpoint& checkpoint) {
  return StepOfFolder(
      std::filesystem::path(checkpoint.source().checkpoint_path()).filename().string());
}

std::string ChoiceInFolder(const MappedCheckpoint& checkpoint) {
  const std::string& folder = checkpoint.source().path();
  const std::string& taken = checkpoint.source().checkpoint_path();
  const absl::StatusOr<std::vector<int64_t>> steps = CompleteSteps(folder);
  if (!steps.ok() || steps->empty()) return "";
  const int64_t latest = steps->back();
  if (taken == folder) {
    return StrCat("Took the checkpoint in ", folder, " itself; --step ", latest,
                  " takes the latest of the complete steps below it");
  }
  std::string text = StrCat("Took ", taken);
  if (StepOf(checkpoint) == latest) StrAppend(&text, ", the latest complete step");
  // A checkpoint that a save just replaces is not unfinished.
  const HeldFolder held(folder);
  if (!CheckCheckpointComplete(folder).ok() && held.IsSteady()) {
    StrAppend(&text, "; the checkpoint in ", folder, " itself is unfinished");
  }
  return text;
}

std::vector<TreeTensor> TensorsOf(const MappedCheckpoint& checkpoint) {
  std::vector<TreeTensor> tensors;
  tensors.reserve(checkpoint.tensors().size());
  for (const MappedTensor& tensor : checkpoint.tensors()) {
    tensors.push_back({.name = tensor.name, .shape = tensor.shape, .dtype = tensor.dtype});
  }
  return tensors;
}

void PrintMapping(const MappedCheckpoint& checkpoint) {
  const MappingCounts counts = CountsOf(checkpoint);
  std::vector<std::string> kinds;
  for (const auto& [types, count] : counts.conversions) {
    kinds.push_back(StrCat(count, " ", DtypeName(types.first), " to ", DtypeName(types.second)));
  }
  std::cout << "Of " << FormatCount(checkpoint.source().tensors().size(), "tensor") << ": "
            << counts.renamed << " renamed, " << counts.transposed << " transposed, "
            << counts.converted << " converted"
            << (kinds.empty() ? "" : StrCat(" (", StrJoin(kinds, ", "), ")")) << ", "
            << checkpoint.skipped().size() << " skipped\n";
  for (const std::string& place : checkpoint.unused_rules()) {
    std::cout << place << ": this rule decided on no tensor\n";
  }
}

Json MappingJson(const MappedCheckpoint& checkpoint) {
  const MappingCounts counts = CountsOf(checkpoint);
  Json changes = Json::array();
  for (const MappedTensor& tensor : checkpoint.tensors()) {
    if (!(tensor.is_renamed || tensor.is_transposed || tensor.is_converted)) continue;
    const SourceTensor& source = checkpoint.SourceOf(tensor);
    changes.push_back({{"name", tensor.name},
                       {"source", source.name},
                       {"source_shape", ShapeJson(source.shape)},
                       {"source_dtype", std::string(DtypeName(source.dtype))},
                       {"transposed", tensor.is_transposed},
                       {"is_scale", tensor.is_scale}});
  }
  return {{"renamed", counts.renamed},
          {"transposed", counts.transposed},
          {"converted", counts.converted},
          {"skipped", checkpoint.skipped()},
          {"unused_rules", checkpoint.unused_rules()},
          {"changes", std::move(changes)}};
}

}  // namespace shardmesh::client
