// The newest coordinator term that this worker knows, in memory and on disk. A term is the number
// of a coordinator's start.
#ifndef SHARDMESH_WORKER_SERVICE_TERM_KEEPER_H_
#define SHARDMESH_WORKER_SERVICE_TERM_KEEPER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace shardmesh::worker {

// The newest known term, and the coordinator that began it. Each start of a coordinator makes a new
// key for transfer tokens (token key) and begins a new term. Two different keys of one term
// therefore mean two coordinators.
struct KnownTerm {
  int64_t number = 0;
  std::string token_key_digest = {};  // empty: unknown

  friend bool operator==(const KnownTerm&, const KnownTerm&) = default;
};

// Decides which coordinator the worker follows, and keeps the decision over restarts. The file
// `term` in the data folder has the term's number, a blank and the digest of the token key. Files
// of older versions lack the digest.
//
// Only one thread may call Follow and Keep. The other methods are thread-safe.
class TermKeeper {
 public:
  // Reads the file; the term is 0 if there is no file yet. If `data_dir` is empty, the term is kept
  // only in memory. DATA_LOSS (BAD_FILE) for a damaged file; otherwise errors of the file system.
  static absl::StatusOr<std::unique_ptr<TermKeeper>> Open(const std::string& data_dir);
  TermKeeper(const TermKeeper&) = delete;
  TermKeeper& operator=(const TermKeeper&) = delete;

  KnownTerm known() const;

  // Makes `begun` the known term; `peer` is the address of the coordinator that began it. ABORTED
  // (STALE_TERM) if the worker must not follow this coordinator, because the worker knows a newer
  // term or another coordinator of the same term.
  absl::Status Follow(const KnownTerm& begun, std::string_view peer);

  // Writes the known term to disk if the disk does not have this term yet. If the disk is full,
  // logs this once and returns OK; the caller must call Keep again later. Otherwise errors of the
  // file system.
  absl::Status Keep();

 private:
  TermKeeper(std::string path, KnownTerm kept);

  absl::Status CheckTerm(const KnownTerm& begun, std::string_view peer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;  // empty: the term is kept only in memory

  // Used only by the thread that calls Follow and Keep.
  KnownTerm kept_;        // the term on disk
  bool is_late_ = false;  // the last Keep found the disk full

  mutable absl::Mutex mutex_;
  KnownTerm known_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_TERM_KEEPER_H_
