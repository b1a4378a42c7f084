// A cache of answers to repeated questions: all processes of a job ask the same when they start.
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

// An answer as sent, and the corrections made for it.
struct KnownAnswer {
  grpc::Slice bytes;
  CorrectionTally corrections;
};

// Caches answers that depend only on the request and the definitions. Equal bytes of a request to
// the same method, at the same revision of the definitions, get the same answer. Answers of other
// revisions are dropped. Thread-safe.
class AnswerCache {
 public:
  // Requests and answers that together are longer are not kept.
  static constexpr size_t kMaxEntryBytes = 16 << 10;

  // Keeps at most about `max_bytes` of requests and answers; evicts the least recently used first.
  explicit AnswerCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Nullopt if it is not known.
  std::optional<KnownAnswer> Find(int method, std::string_view request, int64_t revision);

  // Keeps the answer if the question was asked before, or seems to have been. A question asked only
  // once then costs neither memory nor time.
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

  // Drops answers of other revisions. Returns whether `revision` is the newest known.
  bool Turn(int64_t revision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves dropped answers to `forgotten`, to be destroyed without the lock.
  void Add(const Question& question, const KnownAnswer& answer, Answers* forgotten)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t max_bytes_;
  absl::Mutex mutex_;
  int64_t revision_ ABSL_GUARDED_BY(mutex_) = 0;
  // Two generations: entries used since the younger one began, and older ones. An answer found in
  // the older generation moves to the younger. When the younger has half of the bytes, it becomes
  // the older one.
  Answers young_ ABSL_GUARDED_BY(mutex_);
  Answers old_ ABSL_GUARDED_BY(mutex_);
  size_t young_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Hashes of recent questions, each at the index that it determines.
  std::array<size_t, 4096> asked_ ABSL_GUARDED_BY(mutex_) = {};
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESOLVE_ANSWER_CACHE_H_
