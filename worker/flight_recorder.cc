// FlightRecorder: a ring of records.
#include "worker/flight_recorder.h"

#include <algorithm>
#include <utility>

namespace shardmesh::worker {

FlightRecorder::Ticket FlightRecorder::Begin(int64_t step, int64_t op, std::string what,
                                             absl::Span<const DeviceId> peers, absl::Time now) {
  FlightRecord record;
  record.step = step;
  record.op = op;
  record.what = std::move(what);
  record.started = now;
  record.peers.reserve(peers.size());
  for (const DeviceId peer : peers) record.peers.push_back({.rank = peer});

  absl::MutexLock lock(&mutex_);
  const Ticket ticket = next_++;
  if (ring_.size() < kCapacity) {
    ring_.push_back(std::move(record));
  } else {
    std::swap(ring_[static_cast<size_t>(ticket) % kCapacity], record);
  }
  return ticket;
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

FlightRecord* FlightRecorder::Find(Ticket ticket) {
  if (ticket < 0 || ticket >= next_ || next_ - ticket > static_cast<Ticket>(kCapacity)) {
    return nullptr;
  }
  return &ring_[static_cast<size_t>(ticket) % kCapacity];
}

}  // namespace shardmesh::worker
