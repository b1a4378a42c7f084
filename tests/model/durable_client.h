// DurableClient: loads, moves and deletes while processes are killed, and then knows which data
// must exist.
#ifndef SHARDMESH_TESTS_MODEL_DURABLE_CLIENT_H_
#define SHARDMESH_TESTS_MODEL_DURABLE_CLIENT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/model/contract_caller.h"
#include "tests/model/dice.h"
#include "tests/model/tensors.h"

namespace shardmesh::model {

// Its names and definitions are not shared. It repeats a call without an answer, with its request
// id, until it has one or `patience` is over. The outcome is then unknown until Verify has looked.
// Not thread-safe.
class DurableClient {
 public:
  // `files`: the folder of files that the workers read and write (Cluster::files).
  DurableClient(int number, const std::string& address, const std::string& files)
      : number_(number), files_(files), coordinator_(address) {}

  // One put, load, reshard, save, move, delete, product or definition. Not OK: an answer that no
  // fault explains.
  absl::Status Step(Dice& dice);
  // The same steps in a fixed order, each at least once.
  absl::Status Script();

  // Checks that all acknowledged data exists, with its bytes, and no other data: arrays, slices of
  // them, second replicas, checkpoints. Waits until `deadline` for arrays whose workers are still
  // returning, and some time longer for second replicas.
  absl::Status Verify(absl::Time deadline);

  int64_t acknowledged() const { return acknowledged_; }
  int64_t without_answer() const { return without_answer_; }
  // How long calls without an answer are repeated.
  void set_patience(absl::Duration patience) { patience_ = patience; }

 private:
  struct Named {
    std::string array_id;
    Content content;
    // Otherwise a worker that is killed takes its tiles along, as the answer said.
    bool on_disk = true;
    // How many replicas it wants; nullopt: it is not known whether one or two.
    std::optional<int64_t> replicas = 1;
  };
  // Possible targets of a name; nullopt: it may be missing.
  using Possible = std::vector<std::optional<Named>>;

  // The client sends the tensors, or the workers read them.
  enum class Reader { kClient, kWorkers };

  // `replicas`: see BeginPutHeader.replicas.
  absl::Status Put(Dice& dice, int64_t count, bool large, int32_t replicas,
                   Reader reader = Reader::kClient);
  // Returns how many replicas a put without a wish of its own gives to the array of this name;
  // nullopt: it is not known.
  std::optional<int64_t> WishOf(const std::string& name) const;
  // Moves one array, or all, to another layout or mesh.
  absl::Status Reshard(Dice& dice);
  // Saves all arrays as the next step.
  absl::Status Save(Dice& dice);
  absl::Status VerifySaves();
  // Each array wants as many replicas as it must, and those that want two soon have two.
  absl::Status VerifyReplicas(absl::Time deadline);
  // Reads a part of an array, of which the whole has been compared.
  absl::Status VerifySlice(const std::string& name, const Content& content);
  absl::Status Move(Dice& dice);
  absl::Status Delete(Dice& dice);
  absl::Status Multiply(Dice& dice);
  absl::Status Define(Dice& dice);

  // Repeats until there is an answer. UNAVAILABLE: there was none.
  absl::Status Persist(std::string_view method, const Message& request, Message* answer);
  absl::Status OpenSession();
  std::string NewRequestId(Dice& dice);
  std::string AnyName(Dice& dice) const;
  // A name that is certain to be there; empty: none is.
  std::string AnyCertainName(Dice& dice) const;
  void SetName(const std::string& name, std::optional<Named> named, bool is_certain);
  // The name may point to arrays of the same contents under any id.
  static void AllowOtherIds(Possible* possible);
  std::string SaveFolder() const;

  const int number_;
  const std::string files_;
  const Caller coordinator_;
  absl::Duration patience_ = absl::Seconds(30);
  std::string session_;
  int64_t requests_ = 0;
  int64_t acknowledged_ = 0;
  int64_t without_answer_ = 0;
  std::map<std::string, Possible> names_;
  // The checkpoints that a step may have; nullopt: none. Steps that are removed are not in it.
  std::map<int64_t, std::vector<std::optional<SavedTensors>>> saves_;
  int64_t next_step_ = 0;
  bool has_checkpoint_ = false;  // some checkpoint must be there
  // Texts of the values that a definition may have.
  std::map<std::string, std::vector<std::optional<std::string>>> entries_;
};

}  // namespace shardmesh::model

#endif  // SHARDMESH_TESTS_MODEL_DURABLE_CLIENT_H_
