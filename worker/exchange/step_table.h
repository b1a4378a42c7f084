// The steps of one worker: expected and open ones, those that peers began first, and the workers at
// fault for failed steps.
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
// Not synchronised: the owner (PeerLinks) holds its mutex around each call. Makes no calls.
class StepTable {
 public:
  // Most held steps: all that the coordinator can have in progress. Each costs a map's node; the
  // streams' credit limits the messages that came for them.
  static constexpr size_t kMaxHeldSteps = rpc::kMaxLiveWork;

  // This worker will take part in a step. Keeps the worker at fault of a held step.
  void Register(int64_t sequence, int64_t epoch);
  // The step is open among `members`. Registers it if necessary.
  void Open(int64_t sequence, int64_t epoch, std::vector<std::string> members);
  // The step is over. No effect if it is not registered.
  void Close(int64_t sequence) { steps_.erase(sequence); }

  // Holds a step that peers began and that this worker does not expect yet. OK for other steps.
  // RESOURCE_EXHAUSTED (LIMIT_EXCEEDED): kMaxHeldSteps are held.
  absl::Status Hold(int64_t sequence);

  // Whether messages of the step in that epoch are useless: it is over, or has another epoch.
  bool IsOver(int64_t sequence, int64_t epoch) const;
  // Whether the step is registered, in another epoch.
  bool IsStale(int64_t sequence, int64_t epoch) const;
  // Whether the worker may take part in the step: false if the step is open without it.
  bool TakesPart(int64_t sequence, std::string_view identity) const;

  // This worker aborts a step and blames a worker, unless one is blamed already. False if it is
  // over or was aborted before; for a step that is not registered, `has_failed` says that it was.
  bool Abort(int64_t sequence, bool has_failed, std::string_view blamed);
  // A peer aborted a step, and informed all its members. False for a step that is over, or that
  // cannot be held.
  bool AbortByPeer(int64_t sequence, std::string_view blamed);
  // A worker is lost: it is at fault for those of its open steps that blame no worker yet.
  void BlameForAll(std::string_view identity);

  // The worker at fault for the failure of a step; empty if none is known.
  std::string BlamedFor(int64_t sequence) const;
  // The same, as a reference for changes. Holds a step that is not registered, even beyond
  // kMaxHeldSteps. Valid until the next non-const call.
  std::string& BlamedIn(int64_t sequence);

 private:
  struct Step {
    int64_t epoch = 0;
    std::vector<std::string> members = {};  // empty before it is open
    bool aborted = false;
    std::string blamed = {};
  };

  std::map<int64_t, Step> steps_;              // registered and open
  std::map<int64_t, std::string> held_steps_;  // the worker at fault, if the step failed
  int64_t last_registered_ = -1;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_STEP_TABLE_H_
