// KeepingDigests: keeps the questions for digests that workers would get.
#ifndef SHARDMESH_TESTS_UNIT_SERVER_CONTENT_KEEPING_DIGESTS_H_
#define SHARDMESH_TESTS_UNIT_SERVER_CONTENT_KEEPING_DIGESTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/content/digest_transport.h"

namespace shardmesh::server {

// Thread-safe.
class KeepingDigests final : public DigestTransport {
 public:
  struct Question {
    std::string identity;
    std::vector<WantedDigest> tiles;
  };

  int64_t DigestTiles(const std::string& identity, const std::vector<WantedDigest>& tiles,
                      TilesDigested digested) override {
    std::optional<absl::Status> error;
    int64_t number = 0;
    {
      absl::MutexLock lock(&mutex_);
      if (const auto found = refused_.find(identity); found != refused_.end()) {
        error = found->second;
      } else {
        number = ++last_;
        asked_.emplace(number, Waiting{{identity, tiles}, std::move(digested)});
      }
    }
    if (error.has_value()) std::move(digested)(*error);
    return number;
  }
  void ForgetDigests(int64_t number) override {
    decltype(asked_)::node_type forgotten;  // destroyed without the lock
    absl::MutexLock lock(&mutex_);
    forgotten = asked_.extract(number);
  }

  // From now on refuses the questions to this worker at once.
  void Refuse(const std::string& identity, const absl::Status& error) {
    absl::MutexLock lock(&mutex_);
    refused_[identity] = error;
  }
  // The questions that wait, the oldest first.
  std::vector<Question> waiting() const {
    absl::MutexLock lock(&mutex_);
    std::vector<Question> questions;
    for (const auto& [number, waiting] : asked_) questions.push_back(waiting.question);
    return questions;
  }
  // Answers the oldest question to this worker. False: there is none.
  bool Answer(const std::string& identity, const absl::StatusOr<Digests>& digests) {
    TilesDigested digested;
    {
      absl::MutexLock lock(&mutex_);
      auto found = asked_.begin();
      while (found != asked_.end() && found->second.question.identity != identity) ++found;
      if (found == asked_.end()) return false;
      digested = std::move(found->second.digested);
      asked_.erase(found);
    }
    std::move(digested)(digests);
    return true;
  }

 private:
  struct Waiting {
    Question question;
    TilesDigested digested;
  };
  mutable absl::Mutex mutex_;
  int64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, Waiting> asked_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, absl::Status> refused_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_TESTS_UNIT_SERVER_CONTENT_KEEPING_DIGESTS_H_
