// The sources of single tensors for commands: .npy files, standard input, tensors of checkpoints.
#ifndef SHARDMESH_CLIENT_CLI_INPUTS_SINGLE_TENSOR_H_
#define SHARDMESH_CLIENT_CLI_INPUTS_SINGLE_TENSOR_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/types/array.h"
#include "tensor/npy.h"
#include "tensor/safetensors.h"
#include "tensor/saved_checksums.h"
#include "tensor/view.h"

namespace shardmesh::client {

// The checkpoints that were opened for several tensors, by path.
using OpenCheckpoints = std::map<std::string, std::shared_ptr<const Checkpoint>>;

// A tensor that was opened or read. Owns the memory or the mapping of its elements. Movable.
class SingleTensor {
 public:
  // Opens a tensor. `text` is one of:
  //   -                   a .npy file on standard input
  //   CHECKPOINT:TENSOR   a tensor of a safetensors file, an index or a model folder
  //   FILE                a .npy file, or a checkpoint with a single tensor
  // If `tensor` is not empty, `text` names a checkpoint, and `tensor` its tensor.
  //
  // Takes a checkpoint that is in `opened` and was not replaced, and adds one that it opens:
  // tensors of one checkpoint then share its files. `opened` may be null. `keep_going`: as
  // Checkpoint::Open; it is also called while the function waits for a save to find a file.
  //
  // Errors are those of NpyFile::Open and Checkpoint::Open. NOT_FOUND: the checkpoint has no such
  // tensor; the message names the nearest one. INVALID_ARGUMENT (MISSING_ARGUMENT): the checkpoint
  // has several tensors, and none is named. RESOURCE_EXHAUSTED: standard input does not fit the
  // memory of this host.
  static absl::StatusOr<SingleTensor> Open(const std::string& text, const std::string& tensor = "",
                                           OpenCheckpoints* opened = nullptr,
                                           const std::function<absl::Status()>& keep_going = {});

  // The tensor's elements, valid as long as this object.
  TensorView view() const;
  // Whether its file is no longer the one that was opened: see Checkpoint::WasReplaced. False for
  // standard input.
  bool WasReplaced() const;
  // Where the tensor is in its file, if workers can read it there. Nullopt: it came from standard
  // input, or the file has no real path any more.
  std::optional<FileSource> source() const;
  // Its bytes in the file of a checkpoint as it was opened; nullopt for a .npy file.
  std::optional<SavedPart> saved() const;

 private:
  struct TensorOfCheckpoint {
    std::shared_ptr<const Checkpoint> checkpoint;
    const Checkpoint::Entry* entry;  // within the checkpoint
  };

  static absl::StatusOr<SingleTensor> OfCheckpoint(const std::string& path,
                                                   const std::string& tensor,
                                                   OpenCheckpoints* opened,
                                                   const std::function<absl::Status()>& keep_going);

  explicit SingleTensor(std::variant<NpyFile, TensorOfCheckpoint> source)
      : source_(std::move(source)) {}

  std::variant<NpyFile, TensorOfCheckpoint> source_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_INPUTS_SINGLE_TENSOR_H_
