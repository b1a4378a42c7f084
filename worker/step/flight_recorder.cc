// FlightRecorder: keeps ended instructions in a ring of records.
#include "worker/step/flight_recorder.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace shardmesh::worker {

FlightRecorder::Ticket FlightRecorder::Begin(FlightRecord record,
                                             absl::Span<const DeviceId> peers) {
  record.peers.reserve(peers.size());
  for (const DeviceId peer : peers) record.peers.push_back({.rank = peer});

  absl::MutexLock lock(&mutex_);
  const Ticket ticket = next_ticket_++;
  running_.emplace(ticket, std::move(record));
  if (running_.size() > kCapacity) running_.erase(running_.begin());
  return ticket;
}

void FlightRecorder::WaitsFor(Ticket ticket, DeviceId peer) {
  absl::MutexLock lock(&mutex_);
  const auto record = running_.find(ticket);
  if (record != running_.end()) record->second.waits_for = peer;
}

void FlightRecorder::DataCame(Ticket ticket, DeviceId peer, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const auto record = running_.find(ticket);
  if (record == running_.end()) return;
  for (FlightRecord::Peer& waited_for : record->second.peers) {
    if (waited_for.rank == peer) waited_for.data_came = now;
  }
}

void FlightRecorder::Received(Ticket ticket, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const auto record = running_.find(ticket);
  if (record != running_.end()) record->second.received_bytes += bytes;
}

void FlightRecorder::End(Ticket ticket, absl::Status outcome, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const auto found = running_.find(ticket);
  if (found == running_.end()) return;
  FlightRecord record = std::move(found->second);
  running_.erase(found);
  if (outcome.ok()) record.waits_for.reset();
  record.outcome = std::move(outcome);
  record.ended = now;
  record.number = ended_++;
  if (ring_.size() < kCapacity) {
    ring_.push_back(std::move(record));
  } else {
    std::swap(ring_[static_cast<size_t>(record.number) % kCapacity], record);
  }
}

std::vector<FlightRecord> FlightRecorder::Last(size_t count) const {
  absl::MutexLock lock(&mutex_);
  std::vector<FlightRecord> last;
  const size_t running = std::min(count, running_.size());
  const size_t ended = std::min(count - running, ring_.size());
  last.reserve(ended + running);
  for (size_t number = static_cast<size_t>(ended_) - ended; number < static_cast<size_t>(ended_);
       ++number) {
    last.push_back(ring_[number % kCapacity]);
  }
  for (auto it = std::prev(running_.end(), static_cast<ptrdiff_t>(running)); it != running_.end();
       ++it) {
    last.push_back(it->second);
  }
  return last;
}

std::optional<FlightRecord> FlightRecorder::Running(int64_t step) const {
  absl::MutexLock lock(&mutex_);
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    if (it->second.step == step) return it->second;
  }
  return std::nullopt;
}

FlightRecorder::Tail FlightRecorder::EndedSince(int64_t first, size_t max_records) const {
  absl::MutexLock lock(&mutex_);
  const int64_t kept = std::max(first, ended_ - static_cast<int64_t>(ring_.size()));
  Tail tail;
  tail.next = std::max(kept, ended_);
  for (int64_t number = std::max(kept, ended_ - static_cast<int64_t>(max_records)); number < ended_;
       ++number) {
    tail.records.push_back(ring_[static_cast<size_t>(number) % kCapacity]);
  }
  return tail;
}

}  // namespace shardmesh::worker
