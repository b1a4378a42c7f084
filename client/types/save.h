// Saving arrays as a checkpoint: options and results.
#ifndef SHARDMESH_CLIENT_TYPES_SAVE_H_
#define SHARDMESH_CLIENT_TYPES_SAVE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/types/array.h"

namespace shardmesh::client {

struct SaveOptions {
  // Number of the step, 0 to 99,999,999: the checkpoint is in `step-NNNNNNNN` below the folder.
  // Nullopt: in the folder itself.
  std::optional<int64_t> step = std::nullopt;
  // Only with `step`: removes complete checkpoints of lower steps, so that this many remain with
  // the new one; 0 keeps all. Steps above `step` are neither counted nor removed.
  int keep = 0;
  // Largest size of the tensors in a file, at least 1 MiB. 0: 5,000,000,000, or with `step` a
  // sixteenth of all tensors, from 16 to 256 MiB.
  int64_t max_file_bytes = 0;
  bool single_file = false;    // one file model.safetensors of any size
  bool overwrite = false;      // replaces a complete checkpoint that a save wrote
  bool strip_prefix = false;   // removes the prefix from the names in the checkpoint
  bool validate_only = false;  // plans the save, asks the workers, and writes nothing
  bool detached = false;       // the save goes on when this client ends
  // Called with the written bytes and all bytes to write, at most ten times a second.
  ProgressCallback progress = nullptr;
  // Called when the save has begun. ClusterClient::CancelOperation accepts this id.
  std::function<void(const std::string& operation_id)> on_begun = nullptr;
};

// A save that has begun, or one that was only planned.
struct BegunSave {
  // For ArrayClient::WaitSave, and for the calls of ClusterClient about operations. Empty with
  // `validate_only`.
  std::string operation_id;
  int64_t tensors = 0;
  // With `step`, exact only with `validate_only`: see BeginSaveResponse in save_service.proto.
  int64_t files = 0;
  int64_t size_bytes = 0;  // of all tensors
  int64_t revision = 0;    // the highest version of the saved names
};

struct SavedCheckpoint {
  std::string path;  // of the checkpoint's folder; empty with `validate_only`
  int64_t tensors = 0;
  int64_t files = 0;
  int64_t size_bytes = 0;
  // Bytes that the workers wrote. Less than size_bytes if files are linked to unchanged files of an
  // earlier checkpoint.
  int64_t written_bytes = 0;
  // Bytes that a save that ended early had written into the folder, and that were not written
  // again.
  int64_t found_bytes = 0;
  int64_t linked_files = 0;
  bool took_over = false;  // the folder had files of a save that did not end
  std::vector<int64_t> removed_steps;
  // With `step`: the steps that have complete checkpoints in the folder after the save, in rising
  // order; of more than 1,000, the highest. `keep` neither counts nor removes steps above the saved
  // one. Empty if the build of a worker does not tell.
  std::vector<int64_t> kept_steps;
  int64_t revision = 0;  // the highest version of the saved names
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_SAVE_H_
