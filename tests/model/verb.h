// Verbs: puts by meaning, loads, reshards, saves, copies, repairs, resizes and replacements of
// workers, each done by one client from its beginning to its answer.
#ifndef SHARDMESH_TESTS_MODEL_VERB_H_
#define SHARDMESH_TESTS_MODEL_VERB_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/model/contract_caller.h"
#include "tests/model/tensors.h"

namespace shardmesh::model {

// The worker that kReplace replaces, and the one that takes its ranks.
inline constexpr char kReplacedWorker[] = "worker-1";
inline constexpr char kReplacingWorker[] = "worker-2";
// The memory of each worker for kUnload: its tile of the array fits 1.75 times. A worker keeps 4
// MiB back for what its peer sends, which AwaitNothingLeft knows as a power of two.
inline constexpr char kShortMemory[] = "32MiB";

enum class Verb {
  kPut,          // of two tensors, by semantic axes and by rules, under names that exist
  kHandOver,     // the same, but tiles of 1 MiB and more are handed over as sealed memory
  kLoad,         // as kPut, but the workers read the tensors from a file
  kReuse,        // a load of a file that was loaded before, in a layout that the workers make from
                 // their own tiles
  kReshardStep,  // an array in memory, on its own mesh
  kReshardDisk,  // an array on disk, on its own mesh
  kReshardMesh,  // an array to another mesh
  kReshardTree,  // all arrays, to another mesh, each old one released at once
  kUnload,       // a reshard of an array on disk that fits into memory only once
  kSave,         // the next step, which takes the place of the last one
  kOverwrite,    // a checkpoint again, with other bytes
  kReplicate,    // a put of arrays that want two replicas, and their copies
  kRepair,       // the wait until the tiles that a worker has lost are back from the other replicas
  kRepairFile,   // the same, from the file from which the array was loaded
  kRepairSaved,  // the same, from a checkpoint that was saved
  kReplace,      // the ranks of a lost worker to another one, and the repair of the tiles there
  kResize,       // the mesh "default" to another shape of the same workers
  kGrow,         // the mesh "default" to a shape with one worker more
  kShrink,       // the mesh "default" to a shape without its last worker
};

// Returns whether the verb begins with a worker that comes back without its tiles.
bool IsRepair(Verb verb);

// Gives the ranks of one worker to another. Repeats the call for a while if the coordinator counts
// the first one as attached, or the second one as lost, as it does for a moment after their ends
// and starts.
absl::Status ReplaceWorker(const Caller& coordinator, const std::string& identity,
                           const std::string& replacement);

// By name, for the command line.
const std::vector<std::pair<std::string, Verb>>& AllVerbs();

// A verb on names of its own, with contents that depend only on the seed: two processes that have
// the same seed do the same. Not thread-safe.
class VerbClient {
 public:
  // `ttl`: of the session. `files`: see Cluster::files.
  VerbClient(Verb verb, uint64_t seed, const std::string& address, const std::string& files,
             absl::Duration ttl);

  // Puts the old arrays, and saves the old checkpoint. Everything is on disk afterwards.
  absl::Status Prepare();
  // For kReshardStep: makes the array in memory, which a restart of a worker loses.
  absl::Status PrepareInMemory();
  // Does the verb. `is_again`: an earlier attempt may have succeeded without an answer.
  absl::Status Do(bool is_again);

  // Checks that each name leads to a whole array of old or new bytes, the names of one put all to
  // old or all to new ones, and that the checkpoint is the old or the new one. `is_done`: all is
  // new. Waits until `deadline` for workers that return.
  absl::Status Verify(bool is_done, absl::Time deadline);
  // Reads each name once. INTERNAL: the bytes are neither old nor new; other errors: not readable.
  absl::Status Read();
  // Returns whether all that the verb works on may be gone with a worker.
  bool is_in_memory() const { return verb_ == Verb::kReshardStep; }

  // Deletes the names, the files and the session.
  absl::Status CleanUp();

 private:
  struct Name {
    Content old_content;
    Content new_content;
  };

  absl::StatusOr<std::string> Session();
  std::string NewRequestId();
  // Puts all names. `by_workers`: they read the tensors.
  absl::Status Put(bool is_new, bool by_workers);
  // The file of kReuse and kRepairFile, which processes with the same seed share.
  std::string source_path() const { return files_ + "/source-v" + std::to_string(seed_) + ".bin"; }
  // Writes that file if it is not there, and waits until its change time is certain.
  absl::StatusOr<SourceOnDisk> SharedSource(const std::vector<Content>& contents) const;
  absl::Status Reshard();
  // Does what Reshard does, and repeats it while a gauge of memory may be old by a heartbeat.
  absl::Status ReshardInShortMemory();
  // Returns whether the verb is a resize. Its mesh goes to target_shape().
  bool is_resize() const;
  const char* target_shape() const;
  absl::Status Resize(const std::string& shape);
  // Waits until `is_ready` is true of each array. Returns the error of `is_ready`.
  absl::Status AwaitArrays(const std::function<absl::StatusOr<bool>(const v1::Array&)>& is_ready);
  // Waits until each array wants and has two replicas.
  absl::Status AwaitReplicas();
  // Waits until no array lacks a tile.
  absl::Status AwaitTiles();
  // Waits until the coordinator's record of the last save is on its disk.
  absl::Status AwaitRecordOfSave();
  absl::Status VerifyShape(const std::string& shape) const;
  absl::Status Save(int64_t step, bool overwrite, int32_t keep);
  absl::StatusOr<std::string> ReadName(const std::string& name);
  SavedTensors Wanted(bool is_new) const;
  absl::Status VerifySaves(bool is_done) const;
  std::string prefix() const { return "v" + std::to_string(seed_) + "/"; }
  std::string folder() const { return files_ + "/saved-v" + std::to_string(seed_); }

  const Verb verb_;
  const uint64_t seed_;
  const std::string files_;
  const absl::Duration ttl_;
  const Caller coordinator_;
  std::string session_;
  const std::string unique_;  // of request ids
  int64_t requests_ = 0;
  std::map<std::string, Name> names_;
};

}  // namespace shardmesh::model

#endif  // SHARDMESH_TESTS_MODEL_VERB_H_
