// Options that several commands share: the mesh, the mode, and the form of answers.
#ifndef SHARDMESH_CLIENT_CLI_SHARED_OPTIONS_H_
#define SHARDMESH_CLIENT_CLI_SHARED_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cli/output_form.h"
#include "client/mesh_client.h"
#include "client/types/layout_questions.h"
#include "sharding/compatibility.h"
#include "sharding/correction.h"
#include "sharding/mesh.h"
#include "sharding/mode.h"
#include "sharding/shape.h"

namespace shardmesh::client {

inline constexpr char kMeshOptionHelp[] =
    "a mesh: axes as dp=4,tp=8, YAML file, or name in the catalog (default: default)";

// The values of --mesh and --devices.
struct MeshOption {
  std::string text;
  std::optional<int64_t> devices = std::nullopt;

  bool empty() const { return text.empty(); }
};
// Adds --mesh and --devices. `option` outlives the app. `help` is the help of --mesh.
void AddMeshOptions(CLI::App* app, MeshOption* option, std::string_view help = kMeshOptionHelp);
// Like SelectMesh of grammar.h. --devices together with the name of a mesh is wrong use.
absl::StatusOr<MeshSelector> SelectMesh(const MeshOption& option,
                                        Compatibility compatibility = Compatibility::kDefault);
// Returns `status`, the error of a question about a mesh. If a size of -1 needs the number of
// devices, the message also names the option --devices.
absl::Status NameDevicesOption(const absl::Status& status);

// Returns the JSON answer of a command that changes something. Adds "validate_only": true if the
// command only checked.
Json MarkIfValidated(Json answer, bool validate_only);

// Returns the selected mesh; fetches a mesh that is given by name. Errors of GetEntry.
absl::StatusOr<Mesh> FetchMesh(MeshClient* client, const MeshSelector& selector);
// Returns the question's mesh if some corrections are about axes that the mesh lacks, so that their
// texts can list its axes. Returns nullopt otherwise, or if the mesh cannot be fetched.
std::optional<Mesh> MeshOfCorrections(MeshClient* client, const MeshSelector& selector,
                                      absl::Span<const Correction> corrections);

// --exact.
struct ExactOption {
  bool exact = false;

  Compatibility compatibility() const {
    return exact ? Compatibility::kExact : Compatibility::kDefault;
  }
};
void AddExactOption(CLI::App* app, ExactOption* option);

// The text of --mode. SelectMode parses it after all options, because the valid modes depend on
// --exact.
struct ModeOption {
  std::optional<std::string> text = std::nullopt;
};
void AddModeOption(CLI::App* app, ModeOption* option, std::string_view help_prefix = "");
// Parses the mode; nullopt if --mode was not given. Errors are wrong use.
absl::StatusOr<std::optional<Mode>> SelectMode(const ModeOption& option,
                                               Compatibility compatibility);

// Returns the mode in which axes are resolved: the preset's own mode, or `mode`, or training.
// Nullopt if the preset is unknown or the mode needs a missing shape.
std::optional<RuntimeMode> ModeOf(const std::optional<Mode>& mode, std::string_view preset,
                                  const std::optional<Shape>& shape);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_SHARED_OPTIONS_H_
