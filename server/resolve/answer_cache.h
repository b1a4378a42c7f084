// A cache of answers to repeated questions: at its start, a job's processes all ask the same
// questions.
#ifndef SHARDMESH_SERVER_RESOLVE_ANSWER_CACHE_H_
#define SHARDMESH_SERVER_RESOLVE_ANSWER_CACHE_H_

#include <grpcpp/support/slice.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/synchronization/mutex.h"
#include "server/resolve/resolve_answers.h"
#include "status/str_cat.h"

namespace shardmesh::server {

// The bytes of an answer as the client gets them, and the corrections that the answer reports.
struct KnownAnswer {
  grpc::Slice bytes;
  CorrectionTally corrections;
};

// Caches answers that depend only on the request and the definitions. Two requests with the same
// bytes, to the same method and at the same revision of the definitions, get the same answer.
// Answers of earlier revisions are dropped. Thread-safe.
//
// Every question passes through this cache, so it must be cheaper than an LruCache. It keeps two
// generations of answers (see young_). A hit in the younger generation only reads: no list is
// relinked under the lock. A lookup takes a view of the request as its key. Eviction removes a
// whole generation, which costs one move of a map.
class AnswerCache {
 public:
  // Maximum size, in bytes, of a request and its answer together. Longer pairs are not cached.
  static constexpr size_t kMaxEntryBytes = 16 << 10;

  // Keeps at most about `max_bytes` of requests and answers; evicts the least recently used first.
  explicit AnswerCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Returns the cached answer; nullopt if there is none.
  std::optional<KnownAnswer> Find(int method, std::string_view request, int64_t revision);

  // Caches the answer if the same question was probably asked before, which the cache judges by the
  // hash of the question. A question that is asked only once therefore takes no memory in the
  // cache.
  void Keep(int method, std::string_view request, int64_t revision, const KnownAnswer& answer);

 private:
  using Question = std::pair<int, std::string_view>;  // method and request
  struct Hash {
    using is_transparent = void;
    size_t operator()(const Question& question) const {
      return absl::HashOf(question.first, ToAbsl(question.second));
    }
    size_t operator()(const std::pair<int, std::string>& question) const {
      return (*this)(Question(question));
    }
  };
  struct Same {
    using is_transparent = void;
    bool operator()(const Question& a, const Question& b) const { return a == b; }
  };
  using Answers = absl::flat_hash_map<std::pair<int, std::string>, KnownAnswer, Hash, Same>;

  // Drops all cached answers if `revision` is newer than the revision of these answers. Returns
  // whether `revision` is the newest known one.
  bool Turn(int64_t revision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds an answer to the younger generation. Moves evicted answers to `forgotten`; the caller
  // destroys them without the lock.
  void Add(const Question& question, const KnownAnswer& answer, Answers* forgotten)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t max_bytes_;
  absl::Mutex mutex_;
  int64_t revision_ ABSL_GUARDED_BY(mutex_) = 0;
  // The younger generation has the answers that were used since it began; the older generation has
  // the other answers. A hit in the older generation moves the answer to the younger generation.
  // When the younger generation reaches half of max_bytes_, it replaces the older one, and a new
  // younger generation begins.
  Answers young_ ABSL_GUARDED_BY(mutex_);
  Answers old_ ABSL_GUARDED_BY(mutex_);
  size_t young_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Hashes of recent questions, each at the index (hash % size). A newer hash replaces an older
  // hash at the same index.
  std::array<size_t, 4096> asked_ ABSL_GUARDED_BY(mutex_) = {};
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESOLVE_ANSWER_CACHE_H_
