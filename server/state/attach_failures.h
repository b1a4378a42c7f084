// Failed attempts of workers to attach, for status and doctor.
#ifndef SHARDMESH_SERVER_STATE_ATTACH_FAILURES_H_
#define SHARDMESH_SERVER_STATE_ATTACH_FAILURES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace shardmesh::server {

// Failed attempts by identity, bounded: at most kMaxKept workers, each for at most kKeptFor after
// its last attempt. If there is no room, the worker with the oldest last attempt is removed. The
// caller checks identities (CheckIdentity). Errors are cut to kMaxErrorBytes. Not thread-safe.
class AttachFailures {
 public:
  static constexpr size_t kMaxKept = 4'096;
  static constexpr size_t kMaxErrorBytes = 1'024;
  static constexpr absl::Duration kKeptFor = absl::Hours(1);

  // The failed attempts since the worker was last attached.
  struct Failures {
    int64_t count = 0;
    absl::Status last;
    absl::Time last_time;
  };

  // Records a failed attempt. `now` must not decrease between calls.
  void Note(std::string_view identity, const absl::Status& status, absl::Time now);
  // Removes the worker's failures, because it has attached.
  void Forget(std::string_view identity);
  // Returns a worker's failures; none for an unknown worker.
  Failures Of(std::string_view identity, absl::Time now) const;
  size_t size() const { return by_identity_.size(); }

 private:
  using ByIdentity = std::map<std::string, Failures, std::less<>>;
  void Remove(ByIdentity::iterator entry);

  ByIdentity by_identity_;
  // The entries of by_identity_, by the time and the identity of each worker's last attempt.
  std::map<std::pair<absl::Time, std::string>, ByIdentity::iterator> by_time_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_ATTACH_FAILURES_H_
