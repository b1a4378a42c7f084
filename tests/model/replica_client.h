// ReplicaClient: puts, loads, moves, reshards and resizes of arrays, many of which want two
// replicas, and what must be left of them when a worker is lost with its tiles.
#ifndef SHARDMESH_TESTS_MODEL_REPLICA_CLIENT_H_
#define SHARDMESH_TESTS_MODEL_REPLICA_CLIENT_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "shardmesh/v1/array.pb.h"
#include "tests/model/contract_caller.h"
#include "tests/model/dice.h"
#include "tests/model/tensors.h"

namespace shardmesh::model {

// The only client of a cluster of three workers that keep their tiles in memory. Its calls must
// succeed: no process is killed while it makes them. Thus the model knows every name exactly. Not
// thread-safe.
class ReplicaClient {
 public:
  // `files`: see Cluster::files.
  ReplicaClient(const std::string& address, const std::string& files)
      : files_(files), coordinator_(address) {}

  // One put, load, move of a name, deletion, reshard or resize. Not OK: it fails, or its answer is
  // not the model's.
  absl::Status Change(Dice& dice);
  // Waits until all arrays that want two replicas have both. Checks that each array wants as many
  // as the model says, that no other names exist, and that all bytes are the model's.
  absl::Status AwaitReplicas();

  // Remembers which arrays have two complete replicas, and so must survive the loss of one worker.
  absl::Status PrepareForLoss();
  // Call it while one worker is gone, and the coordinator is there. Checks that the arrays that
  // must survive can be read.
  absl::Status VerifyDuringLoss();
  // Call it when a worker has lost its tiles and all workers are ready. Checks that the arrays that
  // must survive get both replicas again, with the model's bytes. Any other array has these bytes,
  // or is lost; the names of lost arrays are deleted.
  absl::Status VerifyAfterLoss();

  // Deletes all names and closes the session. Checks that no tile is left on a worker, and that no
  // auxiliary mesh is left some seconds later.
  absl::Status CleanUp();

  std::string Summary() const;

 private:
  struct Name {
    Content content;
    int64_t replicas = 1;       // that its array wants
    bool must_survive = false;  // see PrepareForLoss
  };

  absl::Status Put(Dice& dice);
  absl::Status Move(Dice& dice);
  absl::Status Delete(const std::string& name);
  absl::Status Reshard(Dice& dice);
  absl::Status Resize(Dice& dice);

  absl::StatusOr<std::string> Session();
  std::string NewRequestId() { return "replicas-" + std::to_string(++requests_); }
  static std::string AnyName(Dice& dice);
  std::string AnyUsedName(Dice& dice) const;  // empty: there is none
  // Repeats the call while processes are still coming back.
  absl::Status Persist(std::string_view method, const Message& request, Message* answer) const;
  absl::Status PersistStream(std::string_view method, const std::vector<std::string>& requests,
                             std::vector<std::string>* answers) const;
  absl::Status Release(const std::string& array_id);
  // Returns all arrays with names, by name. Not OK: they have other names than in the model.
  absl::StatusOr<std::map<std::string, v1::Array>> List() const;
  absl::StatusOr<std::string> Read(const std::string& name);
  absl::Status AwaitNoAuxiliaryMesh() const;

  const std::string files_;
  const Caller coordinator_;
  std::string session_;
  int64_t requests_ = 0;
  std::map<std::string, Name> names_;
  int64_t changes_ = 0;
  int64_t survived_ = 0;
  int64_t lost_ = 0;
};

}  // namespace shardmesh::model

#endif  // SHARDMESH_TESTS_MODEL_REPLICA_CLIENT_H_
