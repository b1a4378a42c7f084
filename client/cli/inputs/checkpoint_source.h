// The checkpoint that a command loads or plans, with the options that map its tensors.
#ifndef SHARDMESH_CLIENT_CLI_INPUTS_CHECKPOINT_SOURCE_H_
#define SHARDMESH_CLIENT_CLI_INPUTS_CHECKPOINT_SOURCE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/command_line.h"
#include "client/types/layout_questions.h"
#include "tensor/checkpoint/tensor_map.h"
#include "tensor/dtype.h"

namespace shardmesh::client {

// The values of --map and --dtype.
struct MapFlags {
  std::string map;
  std::optional<Dtype> dtype;

  bool is_given() const { return !map.empty() || dtype.has_value(); }
};

// Adds --map and --dtype.
void AddMapOptions(CLI::App* command, MapFlags* flags);

// Opens a checkpoint of any form (see TensorSource::Open), and maps its tensors; reads only
// headers. `keep_going`: as TensorSource::Open. Errors of TensorSource::Open, rpc::LoadTensorMap
// and MappedCheckpoint::Create.
absl::StatusOr<MappedCheckpoint> OpenMapped(const std::string& path, const MapFlags& flags = {},
                                            std::optional<int64_t> step = {},
                                            const std::function<absl::Status()>& keep_going = {});

// Returns why only a client can read some of the tensors, such as `only the client makes I8 with
// scales`; an empty text if workers can read all of them.
std::string WhyClientReads(const MappedCheckpoint& checkpoint);

// Returns the step of the checkpoint that was opened, by the name of its folder.
std::optional<int64_t> StepOf(const MappedCheckpoint& checkpoint);
// Returns which checkpoint of the folder was taken, and why; an empty text if the path has only
// one.
std::string ChoiceInFolder(const MappedCheckpoint& checkpoint);

// The tensors as they are loaded, in the order of the checkpoint.
std::vector<TreeTensor> TensorsOf(const MappedCheckpoint& checkpoint);

// Prints how many tensors were renamed, transposed, converted and skipped, and which rules of the
// map decided on none.
void PrintMapping(const MappedCheckpoint& checkpoint);
// The same as JSON, with each tensor that was changed.
Json MappingJson(const MappedCheckpoint& checkpoint);

// Help of arguments that name checkpoints.
inline constexpr char kCheckpointHelp[] =
    "safetensors file, index, .npz file, or folder of safetensors or .npy files";

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_INPUTS_CHECKPOINT_SOURCE_H_
