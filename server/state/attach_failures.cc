// Counts failed attempts to attach, and forgets old attempts.
#include "server/state/attach_failures.h"

#include "rpc/codec/status.h"

namespace shardmesh::server {
namespace {

// Returns the status with a shortened message that begins with the invalid field. Payloads are
// removed, because they may be long too.
absl::Status Shortened(const absl::Status& status) {
  static_assert(rpc::kMaxStatusMessageBytes <= AttachFailures::kMaxErrorBytes);
  return {status.code(), rpc::WireMessage(status)};
}

}  // namespace

void AttachFailures::Note(std::string_view identity, const absl::Status& status, absl::Time now) {
  while (!by_time_.empty() && now - by_time_.begin()->first.first >= kKeptFor) {
    Remove(by_time_.begin()->second);
  }
  auto entry = by_identity_.find(identity);
  if (entry == by_identity_.end()) {
    if (by_identity_.size() >= kMaxKept) Remove(by_time_.begin()->second);
    entry = by_identity_.emplace(std::string(identity), Failures()).first;
  } else {
    by_time_.erase({entry->second.last_time, entry->first});
  }
  ++entry->second.count;
  entry->second.last = Shortened(status);
  entry->second.last_time = now;
  by_time_.emplace(std::pair(now, entry->first), entry);
}

void AttachFailures::Forget(std::string_view identity) {
  if (const auto entry = by_identity_.find(identity); entry != by_identity_.end()) Remove(entry);
}

AttachFailures::Failures AttachFailures::Of(std::string_view identity, absl::Time now) const {
  const auto entry = by_identity_.find(identity);
  if (entry == by_identity_.end() || now - entry->second.last_time >= kKeptFor) return {};
  return entry->second;
}

void AttachFailures::Remove(ByIdentity::iterator entry) {
  by_time_.erase({entry->second.last_time, entry->first});
  by_identity_.erase(entry);
}

}  // namespace shardmesh::server
