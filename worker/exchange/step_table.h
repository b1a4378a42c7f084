// The steps of one worker: expected and open steps, steps that peers began first, and the workers
// at fault for failed steps. The epoch of a step is the version of the membership for which the
// coordinator ordered the step.
#ifndef SHARDMESH_WORKER_EXCHANGE_STEP_TABLE_H_
#define SHARDMESH_WORKER_EXCHANGE_STEP_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "rpc/live_work.h"

namespace shardmesh::worker {

// Steps are registered in the order of their numbers, as in Mailbox::ExpectStep:
//
//   to come --Hold, BlamedIn, AbortByPeer--> held --Register--> registered --Open--> open
//      \------------------------Register----------------------/      \------Close------/--> over
//      \--a higher step is registered--> over
//
// Not synchronised: the owner (PeerLinks) holds ExchangeState's mutex around each call. Calls no
// other objects.
class StepTable {
 public:
  // The maximum number of held steps: as many as the coordinator can have in progress at once. Each
  // held step costs one map node here. The streams' credit limits the messages that are held for
  // the step.
  static constexpr size_t kMaxHeldSteps = rpc::kMaxLiveWork;

  // Records that this worker will take part in a step. If the step was held, keeps the record of
  // its worker at fault. Held steps with lower numbers are over.
  void Register(int64_t sequence, int64_t epoch);
  // Records that the step is open among `members`. Registers the step if it is not registered.
  void Open(int64_t sequence, int64_t epoch, std::vector<std::string> members);
  // Records that the step is over. No effect if it is not registered.
  void Close(int64_t sequence) { steps_.erase(sequence); }

  // Holds a step that peers began and that this worker does not expect yet. Returns OK, without
  // effect, for other steps. RESOURCE_EXHAUSTED (LIMIT_EXCEEDED): kMaxHeldSteps steps are held
  // already.
  absl::Status Hold(int64_t sequence);

  // Returns whether messages of the step in that epoch are useless: the step is over, or is
  // registered in another epoch.
  bool IsOver(int64_t sequence, int64_t epoch) const;
  // Returns whether the step is registered in an epoch other than `epoch`.
  bool IsStale(int64_t sequence, int64_t epoch) const;
  // Returns false if the step is open and the worker is not among its members, otherwise true.
  bool TakesPart(int64_t sequence, std::string_view identity) const;

  // Records that this worker aborts a step. If the step is registered and blames no worker yet,
  // `blamed` becomes the worker at fault. Returns false if the step is over or was aborted before.
  // For a step that is not registered, `has_failed` says whether it was aborted before.
  bool Abort(int64_t sequence, bool has_failed, std::string_view blamed);
  // Records that a peer aborted a step, and that `blamed` is at fault, unless the step blames a
  // worker already. The peer has informed all members, so this worker need not inform them. Returns
  // false if the step is over, or if Hold fails for the step.
  bool AbortByPeer(int64_t sequence, std::string_view blamed);
  // Records that a worker is lost. The lost worker becomes the worker at fault for each open step
  // in which it takes part and that blames no worker yet.
  void BlameForAll(std::string_view identity);

  // Returns the worker at fault for the failure of a step; empty if none is known.
  std::string BlamedFor(int64_t sequence) const;
  // Returns a reference to the name of the worker at fault, through which the caller can set it.
  // Holds a step that is not registered, even beyond kMaxHeldSteps. The reference is valid until
  // the next non-const call.
  std::string& BlamedIn(int64_t sequence);

 private:
  struct Step {
    int64_t epoch = 0;
    std::vector<std::string> members = {};  // empty until the step is open
    bool aborted = false;
    std::string blamed = {};
  };

  std::map<int64_t, Step> steps_;  // registered or open steps
  // Steps not registered yet, with the worker at fault if they failed.
  std::map<int64_t, std::string> held_steps_;
  int64_t last_registered_ = -1;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_STEP_TABLE_H_
