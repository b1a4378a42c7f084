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
#include "sharding/spec.h"

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

// Returns `status` with another message: its code, its reason and its facts stay.
absl::Status WithMessage(const absl::Status& status, std::string_view message);

// Returns `status`, the error of a command about the array `name`. If there is no such array, but
// the names of others begin so, the message names the option --tree.
absl::Status AdviseTree(MeshClient* client, const absl::Status& status, const std::string& name);

// Returns a wrong-use error if the spec that a user wrote for `option` has an axis that the mesh
// lacks; the message suggests the nearest axis. Without this check, such an axis is dropped, and
// the tensors are replicated. `lenient` is the option, such as `--exact`, with which the command
// drops the axis; empty: there is none.
absl::Status CheckAxesOfSpec(std::string_view option, const PartitionSpec& spec, const Mesh& mesh,
                             std::string_view lenient = "");
// Does the same for a mesh of the cluster. `mesh`: a name in the catalog; empty: the default one.
// OK if the mesh cannot be fetched.
absl::Status CheckAxesOfSpec(MeshClient* client, std::string_view option, const std::string& mesh,
                             const PartitionSpec& spec, std::string_view lenient = "");

// Returns `answer`, the JSON answer of a command that can change something. With `validate_only`,
// adds "validate_only": true, which says that the command only made checks.
Json MarkIfValidated(Json answer, bool validate_only);

// Returns the selected mesh; fetches a mesh that is given by name. Errors of GetEntry.
absl::StatusOr<Mesh> FetchMesh(MeshClient* client, const MeshSelector& selector);
// Returns the mesh that the question selects, if some corrections are about axes that this mesh
// lacks. With the mesh, the texts of these corrections can list the mesh's axes. Returns nullopt if
// there are no such corrections, or if the mesh cannot be fetched.
std::optional<Mesh> MeshOfCorrections(MeshClient* client, const MeshSelector& selector,
                                      absl::Span<const Correction> corrections);

// The option --exact.
struct ExactOption {
  bool exact = false;

  Compatibility compatibility() const {
    return exact ? Compatibility::kExact : Compatibility::kDefault;
  }
};
void AddExactOption(CLI::App* app, ExactOption* option);

// The text of --mode. SelectMode parses this text after all options have been read, because --exact
// decides which modes are valid.
struct ModeOption {
  std::optional<std::string> text = std::nullopt;
};
void AddModeOption(CLI::App* app, ModeOption* option, std::string_view help_prefix = "");
// Parses the text of --mode; nullopt if --mode was not given. Errors are wrong-use errors.
absl::StatusOr<std::optional<Mode>> SelectMode(const ModeOption& option,
                                               Compatibility compatibility);

// Returns the mode in which axes are resolved: with a preset, the preset's mode; else `mode`; else
// training. Nullopt if the preset is unknown, or if the mode needs a shape and `shape` is missing.
std::optional<RuntimeMode> ModeOf(const std::optional<Mode>& mode, std::string_view preset,
                                  const std::optional<Shape>& shape);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_SHARED_OPTIONS_H_
