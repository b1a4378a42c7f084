// FlightLog: keeps records from heartbeats, within bounds.
#include "server/diagnosis/flight_log.h"

#include <algorithm>
#include <utility>

namespace shardmesh::server {
namespace {

int64_t SizeOf(const FlightRecord& record) {
  return static_cast<int64_t>(sizeof(record) + record.what.size() + record.mesh_id.size() +
                              record.outcome.message().size() +
                              record.peers.size() * sizeof(FlightRecord::Peer));
}

// Converts the record's times from the worker's clock to the coordinator's.
void Shift(absl::Duration by, FlightRecord* record) {
  record->started += by;
  record->ended += by;
  for (FlightRecord::Peer& peer : record->peers) peer.data_came += by;
}

}  // namespace

FlightLog::Worker& FlightLog::Of(std::string_view identity, uint64_t incarnation) {
  const auto found = workers_.try_emplace(std::string(identity)).first;
  if (found->second.incarnation != incarnation) found->second = {.incarnation = incarnation};
  return found->second;
}

void FlightLog::Attached(std::string_view identity, uint64_t incarnation) {
  absl::MutexLock lock(&mutex_);
  Of(identity, incarnation);
  std::erase(lost_, identity);
}

void FlightLog::Lost(std::string_view identity) {
  absl::MutexLock lock(&mutex_);
  if (workers_.find(identity) == workers_.end()) return;
  std::erase(lost_, identity);
  lost_.emplace_back(identity);
  if (lost_.size() > kMaxLost) {
    workers_.erase(lost_.front());
    lost_.pop_front();
  }
}

void FlightLog::Heard(std::string_view identity, uint64_t incarnation, Heartbeat heartbeat,
                      absl::Time now) {
  const absl::Duration shift = now - heartbeat.sent;
  absl::MutexLock lock(&mutex_);
  Worker& worker = Of(identity, incarnation);
  for (FlightRecord& record : heartbeat.records) {
    if (record.number < worker.next_number) continue;
    Shift(shift, &record);
    worker.next_number = record.number + 1;
    worker.record_bytes += SizeOf(record);
    worker.records.push_back(std::move(record));
  }
  while (worker.records.size() > kMaxRecords || worker.record_bytes > kMaxRecordBytes) {
    worker.record_bytes -= SizeOf(worker.records.front());
    worker.records.pop_front();
  }
  worker.progress = std::move(heartbeat.progress);
  for (StepProgress& running : worker.progress) {
    running.started += shift;
    if (running.instruction.has_value()) Shift(shift, &*running.instruction);
  }
}

void FlightLog::PeersReported(std::string_view identity, std::vector<std::string> unreached) {
  absl::MutexLock lock(&mutex_);
  const auto found = workers_.find(identity);
  if (found != workers_.end()) found->second.unreached = std::move(unreached);
}

std::optional<WorkerFlight> FlightLog::Find(std::string_view identity, int64_t step,
                                            size_t max_records) const {
  absl::MutexLock lock(&mutex_);
  const auto found = workers_.find(identity);
  if (found == workers_.end()) return std::nullopt;
  const Worker& worker = found->second;
  WorkerFlight flight{
      .identity = found->first, .incarnation = worker.incarnation, .unreached = worker.unreached};
  if (!worker.progress.empty()) {
    const auto asked_for =
        std::find_if(worker.progress.begin(), worker.progress.end(),
                     [step](const StepProgress& running) { return running.step == step; });
    flight.progress = asked_for == worker.progress.end() ? worker.progress.front() : *asked_for;
  }
  for (auto record = worker.records.rbegin();
       record != worker.records.rend() && flight.records.size() < max_records; ++record) {
    if (step == 0 || record->step == step) flight.records.push_back(*record);
  }
  std::reverse(flight.records.begin(), flight.records.end());
  flight.omitted = flight.records.empty() ? worker.next_number : flight.records.front().number;
  return flight;
}

std::vector<std::string> FlightLog::Identities() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> identities;
  for (const auto& [identity, worker] : workers_) identities.push_back(identity);
  return identities;
}

void FlightLog::StepFailed(FailedStep step) {
  absl::MutexLock lock(&mutex_);
  failed_.push_front(std::move(step));
  if (failed_.size() > kMaxFailed) failed_.pop_back();
}

std::vector<FailedStep> FlightLog::Failed() const {
  absl::MutexLock lock(&mutex_);
  return {failed_.begin(), failed_.end()};
}

}  // namespace shardmesh::server
