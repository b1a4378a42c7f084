// FlightRecorder: a ring of records.
#include "worker/flight_recorder.h"

#include <algorithm>
#include <utility>

namespace shardmesh::worker {

FlightRecorder::Ticket FlightRecorder::Begin(FlightRecord record,
                                             absl::Span<const DeviceId> peers) {
  record.peers.reserve(peers.size());
  for (const DeviceId peer : peers) record.peers.push_back({.rank = peer});

  absl::MutexLock lock(&mutex_);
  const Ticket ticket = next_++;
  record.number = ticket;
  if (ring_.size() < kCapacity) {
    ring_.push_back(std::move(record));
  } else {
    std::swap(ring_[static_cast<size_t>(ticket) % kCapacity], record);
  }
  return ticket;
}

void FlightRecorder::WaitsFor(Ticket ticket, DeviceId peer) {
  absl::MutexLock lock(&mutex_);
  if (FlightRecord* record = Find(ticket); record != nullptr) record->waits_for = peer;
}

void FlightRecorder::DataCame(Ticket ticket, DeviceId peer, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  FlightRecord* record = Find(ticket);
  if (record == nullptr) return;
  for (FlightRecord::Peer& waited_for : record->peers) {
    if (waited_for.rank == peer) waited_for.data_came = now;
  }
}

void FlightRecorder::End(Ticket ticket, absl::Status outcome, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  FlightRecord* record = Find(ticket);
  if (record == nullptr) return;
  if (outcome.ok()) record->waits_for.reset();
  record->outcome = std::move(outcome);
  record->ended = now;
}

std::vector<FlightRecord> FlightRecorder::Last(size_t count) const {
  absl::MutexLock lock(&mutex_);
  count = std::min(count, ring_.size());
  std::vector<FlightRecord> last;
  last.reserve(count);
  for (size_t ticket = static_cast<size_t>(next_) - count; ticket < static_cast<size_t>(next_);
       ++ticket) {
    last.push_back(ring_[ticket % kCapacity]);
  }
  return last;
}

std::optional<FlightRecord> FlightRecorder::Running() const {
  absl::MutexLock lock(&mutex_);
  // Instructions of a rank follow one another: only the last can run.
  if (next_ == 0 || !At(next_ - 1).is_running()) return std::nullopt;
  return At(next_ - 1);
}

FlightRecorder::Tail FlightRecorder::EndedSince(Ticket first, size_t max_records) const {
  absl::MutexLock lock(&mutex_);
  Tail tail;
  const Ticket kept = std::max(first, next_ - static_cast<Ticket>(ring_.size()));
  tail.next = kept;
  while (tail.next < next_ && !At(tail.next).is_running()) ++tail.next;
  const Ticket begin = std::max(kept, tail.next - static_cast<Ticket>(max_records));
  for (Ticket ticket = begin; ticket < tail.next; ++ticket) tail.records.push_back(At(ticket));
  return tail;
}

FlightRecord* FlightRecorder::Find(Ticket ticket) {
  if (ticket < 0 || ticket >= next_ || next_ - ticket > static_cast<Ticket>(kCapacity)) {
    return nullptr;
  }
  return &ring_[static_cast<size_t>(ticket) % kCapacity];
}

}  // namespace shardmesh::worker
