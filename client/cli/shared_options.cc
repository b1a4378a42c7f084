// Options that several commands share.
#include "client/cli/shared_options.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/cord.h"
#include "client/cli/command_line.h"
#include "client/cli/grammar.h"
#include "sharding/presets.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {

void AddMeshOptions(CLI::App* app, MeshOption* option, std::string_view help) {
  app->add_option("--mesh", option->text, std::string(help));
  app->add_option("--devices", option->devices,
                  "how many devices there are; a size of -1 in --mesh is inferred");
}

absl::StatusOr<MeshSelector> SelectMesh(const MeshOption& option, Compatibility compatibility) {
  if (option.devices.has_value() && !LooksLikeAxes(option.text) && !LooksLikePath(option.text)) {
    return WrongUse(
        "--devices goes with a --mesh that is written out, such as --mesh dp=-1,tp=8, or a file");
  }
  absl::StatusOr<MeshSelector> mesh = SelectMesh(option.text, option.devices, compatibility);
  if (!mesh.ok()) {
    return NameDevicesOption(mesh.status());
  }
  return mesh;
}

absl::Status NameDevicesOption(const absl::Status& status) {
  if (!ToStd(status.message()).ends_with("is not known here; give every size")) {
    return status;
  }
  return WithMessage(status, StrCat(ToStd(status.message()), ", or --devices N"));
}

absl::Status WithMessage(const absl::Status& status, std::string_view message) {
  absl::Status changed(status.code(), ToAbsl(message));
  status.ForEachPayload([&changed](absl::string_view type, const absl::Cord& payload) {
    changed.SetPayload(type, payload);
  });
  return changed;
}

absl::Status AdviseTree(MeshClient* client, const absl::Status& status, const std::string& name) {
  if (!absl::IsNotFound(status) || name.empty()) return status;
  const std::string kind = FactOf(status, fact::kKind).value_or("");
  if (!kind.empty() && kind != "array" && kind != "name") return status;  // such as a mesh
  const absl::StatusOr<std::vector<Array>> arrays = client->arrays().ListArrays(name);
  if (!arrays.ok() || arrays->empty()) return status;
  return WithMessage(
      status,
      StrCat("no array is named \"", name, "\", but ",
             arrays->size() == 1 ? "the name of 1 array begins so"
                                 : StrCat("the names of ", arrays->size(), " arrays begin so"),
             ": --tree ", name, " takes ", arrays->size() == 1 ? "it" : "them"));
}

absl::Status CheckAxesOfSpec(std::string_view option, const PartitionSpec& spec, const Mesh& mesh,
                             std::string_view lenient) {
  for (const SpecEntry& entry : spec.entries()) {
    if (entry.is_unconstrained()) continue;
    for (const AxisName& axis : entry.axes()) {
      if (!axis.has_value() || mesh.HasAxis(*axis)) continue;
      std::string message =
          StrCat(option, ": the mesh ", mesh.ToString(), " has no axis \"", *axis, "\"",
                 axis->find_first_of(":;|/") != std::string::npos
                     ? "; a comma stands between the axes of two dimensions: fsdp,tp"
                     : mesh.DidYouMeanAxis(*axis));
      if (!lenient.empty()) {
        StrAppend(&message, message.ends_with('?') ? " With " : "; with ", lenient,
                  " such an axis is dropped");
      }
      return WrongUse(message);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAxesOfSpec(MeshClient* client, std::string_view option, const std::string& mesh,
                             const PartitionSpec& spec, std::string_view lenient) {
  const absl::StatusOr<Mesh> known = FetchMesh(client, mesh.empty() ? "default" : mesh);
  if (!known.ok()) return absl::OkStatus();  // the command itself says why
  return CheckAxesOfSpec(option, spec, *known, lenient);
}

Json MarkIfValidated(Json answer, bool validate_only) {
  if (validate_only) answer["validate_only"] = true;
  return answer;
}

absl::StatusOr<Mesh> FetchMesh(MeshClient* client, const MeshSelector& selector) {
  if (const Mesh* mesh = std::get_if<Mesh>(&selector)) {
    return *mesh;
  }
  const std::string* name = std::get_if<std::string>(&selector);
  SHARDMESH_ASSIGN_OR_RETURN(
      const Entry entry,
      client->catalog().GetEntry(EntryKind::kMesh, name == nullptr ? "default" : *name));
  return std::get<MeshDefinition>(entry.value).mesh;
}

std::optional<Mesh> MeshOfCorrections(MeshClient* client, const MeshSelector& selector,
                                      absl::Span<const Correction> corrections) {
  const bool lacks_axes =
      std::any_of(corrections.begin(), corrections.end(),
                  [](const Correction& correction) { return !correction.absent_axes.empty(); });
  if (!lacks_axes) {
    return std::nullopt;
  }
  absl::StatusOr<Mesh> mesh = FetchMesh(client, selector);
  return mesh.ok() ? std::optional<Mesh>(*std::move(mesh)) : std::nullopt;
}

void AddExactOption(CLI::App* app, ExactOption* option) {
  app->add_flag("--exact", option->exact, "answer as the Python originals do to the letter");
}

void AddModeOption(CLI::App* app, ModeOption* option, std::string_view help_prefix) {
  app->add_option("--mode", option->text,
                  StrCat(help_prefix,
                         "train, prefill, autoregressive, insert, or the dimension whose extent "
                         "decides the mode"));
}

absl::StatusOr<std::optional<Mode>> SelectMode(const ModeOption& option,
                                               Compatibility compatibility) {
  if (!option.text.has_value()) {
    return std::optional<Mode>();
  }
  absl::StatusOr<Mode> mode = ParseMode(*option.text, compatibility);
  if (!mode.ok()) {
    return WrongUse(StrCat("--mode: ", ToStd(mode.status().message())));
  }
  return std::optional<Mode>(*mode);
}

std::optional<RuntimeMode> ModeOf(const std::optional<Mode>& mode, std::string_view preset,
                                  const std::optional<Shape>& shape) {
  Mode read = mode.value_or(RuntimeMode::kTrain);
  if (!preset.empty()) {
    const absl::StatusOr<const Preset*> known = FindPreset(preset);
    if (!known.ok()) {
      return std::nullopt;
    }
    read = (*known)->dynamic_axes.mode;
  }
  const absl::StatusOr<RuntimeMode> resolved =
      read.Resolve(shape.has_value() ? std::optional(absl::MakeConstSpan(*shape)) : std::nullopt);
  return resolved.ok() ? std::optional(*resolved) : std::nullopt;
}

}  // namespace shardmesh::client
