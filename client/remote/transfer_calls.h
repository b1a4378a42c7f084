// Calls to the coordinator that begin, commit and abort puts, and that begin and release gets. Each
// transfer belongs to a session.
#ifndef SHARDMESH_CLIENT_REMOTE_TRANSFER_CALLS_H_
#define SHARDMESH_CLIENT_REMOTE_TRANSFER_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/remote/content_match.h"
#include "client/remote/coordinator_connection.h"
#include "client/remote/transfer.h"
#include "client/types/array.h"

namespace shardmesh::client {

// A put that the coordinator has begun, with the destinations of its tiles.
struct BegunPut {
  struct Assignment {
    ArrayDescriptor array;
    std::string token;
    std::vector<Correction> corrections;
    bool is_reused = false;   // an array has the elements already: nobody sends the tensor
    int64_t moved_bytes = 0;  // bytes that workers send to one another to copy that array
    // If an array has the elements of some tiles: the ranks whose tiles this client sends, rising.
    // The workers copy all others.
    std::vector<int64_t> sent_ranks = {};
  };
  std::string transfer_id;
  std::vector<TransferDevice> devices;
  std::vector<Assignment> assignments;  // in the order of the tensors
  absl::Time expire_time = absl::InfiniteFuture();
  // Owns the open call of BeginPut. If that call ends before the commit, for example because this
  // process ends, the coordinator aborts the transfer at once.
  std::shared_ptr<void> hold;
};

// A committed put.
struct CommittedPut {
  std::vector<std::string> array_ids;
  int64_t revision = 0;
  Durability durability = Durability::kUnknown;
  absl::Duration transfer_time = absl::ZeroDuration();
};

// A get that the coordinator has begun, with the sources of its tiles.
struct BegunGet {
  Array array;
  std::vector<TransferDevice> devices;
  std::string token;
  bool pinned = false;  // this call pinned the array; the session did not pin the array before
  std::optional<SecondCopy> second_copy = {};  // the pin keeps it too
};

// The answer of FindContent for some tensors of a put.
struct FoundContent {
  absl::flat_hash_set<size_t> by_origin;  // the numbers of tensors that need no claim
  std::vector<ContentCandidate> candidates;
};

// `session_id` is the id of the session to which the transfer belongs. All calls of this file are
// retried: see CoordinatorConnection.
// `from_files`: the workers read the tensors that have sources, and the client sends the others. If
// false, the client sends all. INVALID_ARGUMENT, with the field `source` of a tensor: a coordinator
// of an older build takes no put of both kinds of tensors. `claims`: of the arrays that have the
// elements already, by tensor; empty: none.
absl::StatusOr<BegunPut> BeginPut(const CoordinatorConnection& connection,
                                  const std::string& session_id,
                                  absl::Span<const PutTensor> tensors,
                                  const PutOptions& put_options, bool from_files,
                                  absl::Span<const std::optional<ContentClaim>> claims,
                                  const CallLimit& limit);
// Asks for arrays that may have the elements of the tensors with these numbers, which rise. Call it
// before BeginPut. UNIMPLEMENTED: the coordinator runs an older build.
absl::StatusOr<FoundContent> FindContent(const CoordinatorConnection& connection,
                                         absl::Span<const PutTensor> tensors,
                                         absl::Span<const size_t> numbers, const CallLimit& limit);
absl::StatusOr<CommittedPut> CommitTransfer(const CoordinatorConnection& connection,
                                            const std::string& session_id,
                                            const std::string& transfer_id, const CallLimit& limit);
// Whether this error of CommitTransfer says that the coordinator does not know the transfer. It
// remembers the answers of commits, so the put was not committed: it ended with the coordinator's
// former process. An array without a name may have been committed, but only the former process
// knew.
bool IsOfUnknownTransfer(const absl::Status& error);
// `reason` is the error because of which the client gives the transfer up; CANCELLED: its caller
// gave it up. The transfer's operation ends with the error.
absl::Status AbortTransfer(const CoordinatorConnection& connection, const std::string& session_id,
                           const std::string& transfer_id, const absl::Status& reason,
                           const CallLimit& limit);
// Begins a get. The coordinator pins the array when it answers, and the client needs the answer to
// know which array to release. At the deadline or cancellation of `limit`, an attempt in progress
// therefore waits up to a second longer for its answer. BeginGet may thus succeed after the
// deadline or the cancellation: the caller must check both.
absl::StatusOr<BegunGet> BeginGet(const CoordinatorConnection& connection,
                                  const std::string& session_id, const ArraySelector& array,
                                  const std::optional<Tile>& part, const CallLimit& limit);
// Releases arrays that the session pins. Returns how many of these arrays the session had pinned.
absl::StatusOr<int64_t> ReleaseArrays(const CoordinatorConnection& connection,
                                      const std::string& session_id,
                                      absl::Span<const std::string> array_ids,
                                      const CallLimit& limit);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_TRANSFER_CALLS_H_
