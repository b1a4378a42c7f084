// The steps that one worker takes part in: expected and open ones, those that peers began before
// it, and who is to blame for those that failed.
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

// Steps are registered in the order of their numbers, as Mailbox::ExpectStep judges:
//
//   to come --Hold, BlamedIn, AbortByPeer--> held --Register--> registered --Open--> open
//      \------------------------Register----------------------/      \------Close------/--> over
//      \--a higher step is registered--> over
//
// Not synchronised: the owner (PeerLinks) holds its mutex around each call. Calls nobody.
class StepTable {
 public:
  // Most steps that are held: all that the coordinator can have under way. Each costs a map's node;
  // messages that came for them are bounded by the streams' credit.
  static constexpr size_t kMaxHeldSteps = rpc::kMaxLiveWork;

  // This worker is to take part in a step. It keeps the blame of a held one.
  void Register(int64_t sequence, int64_t epoch);
  // The step is open among `members`. Registers a step that is not.
  void Open(int64_t sequence, int64_t epoch, std::vector<std::string> members);
  // The step is over. No effect on one that is not registered.
  void Close(int64_t sequence) { steps_.erase(sequence); }

  // Holds a step that peers began and this worker does not expect yet. OK for every other step.
  // RESOURCE_EXHAUSTED (LIMIT_EXCEEDED): kMaxHeldSteps are held.
  absl::Status Hold(int64_t sequence);

  // Whether nothing waits for messages of the step in that epoch: it is over, or of another epoch.
  bool IsOver(int64_t sequence, int64_t epoch) const;
  // Whether the step is registered, in another epoch.
  bool IsStale(int64_t sequence, int64_t epoch) const;
  // Whether the worker may take part in the step: unless the step is open without it.
  bool TakesPart(int64_t sequence, std::string_view identity) const;

  // This worker aborts a step and blames a worker, if nobody is blamed yet. False for a step that
  // is over or was aborted before; `has_failed` says so of a step that is not registered.
  bool Abort(int64_t sequence, bool has_failed, std::string_view blamed);
  // A peer aborted a step, and told all its members. False for a step that is over, or that cannot
  // be held.
  bool AbortByPeer(int64_t sequence, std::string_view blamed);
  // A worker is gone: it is to blame for its open steps that nobody is blamed for yet.
  void BlameForAll(std::string_view identity);

  // The worker to blame for the failure of a step; empty if none is known.
  std::string BlamedFor(int64_t sequence) const;
  // The same, to be set. Holds a step that is not registered, beyond kMaxHeldSteps too. Valid until
  // the next call that is not const.
  std::string& BlamedIn(int64_t sequence);

 private:
  struct Step {
    int64_t epoch = 0;
    std::vector<std::string> members = {};  // none before it is open
    bool aborted = false;
    std::string blamed = {};
  };

  std::map<int64_t, Step> steps_;              // registered and open
  std::map<int64_t, std::string> held_steps_;  // who is to blame, if they failed
  int64_t last_registered_ = -1;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_STEP_TABLE_H_
