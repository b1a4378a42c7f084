// Answers to questions that come again: the processes of a job all ask the same when they start.
#ifndef SHARDMESH_SERVER_ANSWER_CACHE_H_
#define SHARDMESH_SERVER_ANSWER_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "server/resolve_answers.h"

namespace shardmesh::server {

// An answer as it is sent, and what was corrected in making it.
struct KnownAnswer {
  std::string bytes;
  CorrectionTally corrections;
};

// Answers of calls that look at nothing but the request and the definitions: for equal bytes of a
// request, asked of the same method at the same revision of the definitions, the answer is the
// same. Answers of other revisions are forgotten. Thread-safe.
class AnswerCache {
 public:
  // Requests and answers that together are longer are not kept.
  static constexpr size_t kMaxEntryBytes = 16 << 10;

  // Keeps at most about `max_bytes` of requests and answers; those not asked for go first.
  explicit AnswerCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Null if it is not known.
  std::shared_ptr<const KnownAnswer> Find(int method, std::string_view request, int64_t revision);

  void Keep(int method, std::string_view request, int64_t revision, KnownAnswer answer);

 private:
  using Answers = absl::flat_hash_map<std::string, std::shared_ptr<const KnownAnswer>>;

  // Forgets what is of another revision. Returns whether `revision` is the newest known.
  bool Turn(int64_t revision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Add(std::string key, std::shared_ptr<const KnownAnswer> answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t max_bytes_;
  absl::Mutex mutex_;
  int64_t revision_ ABSL_GUARDED_BY(mutex_) = 0;
  // Two generations: what was asked for since the younger one began, and before. An answer that is
  // found in the older one moves to the younger; when that has half of the bytes, it becomes the
  // older one.
  Answers young_ ABSL_GUARDED_BY(mutex_);
  Answers old_ ABSL_GUARDED_BY(mutex_);
  size_t young_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ANSWER_CACHE_H_
