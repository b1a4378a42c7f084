// Keeps answers in two maps, a younger and an older generation, by method and request.
#include "server/resolve/answer_cache.h"

#include <utility>

namespace shardmesh::server {
namespace {

// Approximate memory of the map for each entry, beyond request and answer.
constexpr size_t kOverheadBytes = 128;

}  // namespace

std::optional<KnownAnswer> AnswerCache::Find(int method, std::string_view request,
                                             int64_t revision) {
  const Question question(method, request);
  Answers forgotten;
  absl::MutexLock lock(&mutex_);
  if (!Turn(revision)) {
    return std::nullopt;
  }
  if (const auto found = young_.find(question); found != young_.end()) {
    return found->second;
  }
  const auto found = old_.find(question);
  if (found == old_.end()) {
    return std::nullopt;
  }
  const KnownAnswer answer = found->second;
  old_.erase(found);
  Add(question, answer, &forgotten);
  return answer;
}

void AnswerCache::Keep(int method, std::string_view request, int64_t revision,
                       const KnownAnswer& answer) {
  if (request.size() + answer.bytes.size() > kMaxEntryBytes) {
    return;
  }
  const Question question(method, request);
  const size_t hash = Hash()(question);
  Answers forgotten;
  absl::MutexLock lock(&mutex_);
  if (std::exchange(asked_[hash % asked_.size()], hash) == hash && Turn(revision) &&
      !young_.contains(question)) {
    Add(question, answer, &forgotten);
  }
}

bool AnswerCache::Turn(int64_t revision) {
  if (revision > revision_) {
    revision_ = revision;
    young_.clear();
    old_.clear();
    young_bytes_ = 0;
  }
  return revision == revision_;
}

void AnswerCache::Add(const Question& question, const KnownAnswer& answer, Answers* forgotten) {
  const size_t bytes = question.second.size() + answer.bytes.size() + kOverheadBytes;
  if (young_bytes_ + bytes > max_bytes_ / 2) {
    *forgotten = std::exchange(old_, std::exchange(young_, {}));
    young_bytes_ = 0;
  }
  young_bytes_ += bytes;
  young_.emplace(question, answer);
}

}  // namespace shardmesh::server
