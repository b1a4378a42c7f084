// StepTable: a step whose number is at most last_registered_ is registered or over. A step with a
// higher number may be held.
#include "worker/exchange/step_table.h"

#include <algorithm>
#include <utility>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::worker {

void StepTable::Register(int64_t sequence, int64_t epoch) {
  last_registered_ = sequence;
  Step& step = steps_[sequence];
  step.epoch = epoch;
  if (const auto held = held_steps_.find(sequence); held != held_steps_.end()) {
    step.blamed = std::move(held->second);
  }
  held_steps_.erase(held_steps_.begin(), held_steps_.upper_bound(sequence));
}

void StepTable::Open(int64_t sequence, int64_t epoch, std::vector<std::string> members) {
  if (!steps_.contains(sequence)) Register(sequence, epoch);
  steps_[sequence].members = std::move(members);
}

absl::Status StepTable::Hold(int64_t sequence) {
  if (sequence <= last_registered_ || held_steps_.contains(sequence)) return absl::OkStatus();
  if (held_steps_.size() >= kMaxHeldSteps) {
    return WithReason(absl::ResourceExhaustedError(
                          StrCat("step ", sequence, " is one too many: ", held_steps_.size(),
                                 " steps wait for this worker to begin them")),
                      Reason::kLimitExceeded,
                      {{fact::kHave, held_steps_.size()}, {fact::kLimit, kMaxHeldSteps}});
  }
  held_steps_.try_emplace(sequence);
  return absl::OkStatus();
}

bool StepTable::IsOver(int64_t sequence, int64_t epoch) const {
  if (sequence > last_registered_) return false;
  const auto step = steps_.find(sequence);
  return step == steps_.end() || step->second.epoch != epoch;
}

bool StepTable::IsStale(int64_t sequence, int64_t epoch) const {
  const auto step = steps_.find(sequence);
  return step != steps_.end() && step->second.epoch != epoch;
}

bool StepTable::TakesPart(int64_t sequence, std::string_view identity) const {
  const auto step = steps_.find(sequence);
  if (step == steps_.end() || step->second.members.empty()) return true;
  const std::vector<std::string>& members = step->second.members;
  return std::find(members.begin(), members.end(), identity) != members.end();
}

bool StepTable::Abort(int64_t sequence, bool has_failed, std::string_view blamed) {
  const auto step = steps_.find(sequence);
  if (step == steps_.end()) return sequence > last_registered_ && !has_failed;
  if (std::exchange(step->second.aborted, true)) return false;
  if (step->second.blamed.empty()) step->second.blamed = std::string(blamed);
  return true;
}

bool StepTable::AbortByPeer(int64_t sequence, std::string_view blamed) {
  const auto step = steps_.find(sequence);
  if (step == steps_.end() && (sequence <= last_registered_ || !Hold(sequence).ok())) return false;
  if (step != steps_.end()) step->second.aborted = true;
  std::string& known = BlamedIn(sequence);
  if (known.empty()) known = std::string(blamed);
  return true;
}

void StepTable::BlameForAll(std::string_view identity) {
  for (auto& [sequence, step] : steps_) {
    if (step.blamed.empty() &&
        std::find(step.members.begin(), step.members.end(), identity) != step.members.end()) {
      step.blamed = std::string(identity);
    }
  }
}

std::string StepTable::BlamedFor(int64_t sequence) const {
  if (const auto step = steps_.find(sequence); step != steps_.end()) return step->second.blamed;
  const auto held = held_steps_.find(sequence);
  return held == held_steps_.end() ? "" : held->second;
}

std::string& StepTable::BlamedIn(int64_t sequence) {
  const auto step = steps_.find(sequence);
  return step == steps_.end() ? held_steps_[sequence] : step->second.blamed;
}

}  // namespace shardmesh::worker
