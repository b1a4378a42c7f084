// Two generations of answers in maps by method and request.
#include "server/answer_cache.h"

#include <utility>

namespace shardmesh::server {
namespace {

// Each entry's share of the map, about.
constexpr size_t kOverheadBytes = 128;

std::string KeyOf(int method, std::string_view request) {
  std::string key;
  key.reserve(request.size() + 2);
  key.push_back(static_cast<char>(method & 0xff));
  key.push_back(static_cast<char>(method >> 8));
  key.append(request);
  return key;
}

}  // namespace

std::shared_ptr<const KnownAnswer> AnswerCache::Find(int method, std::string_view request,
                                                     int64_t revision) {
  if (request.size() > kMaxEntryBytes) {
    return nullptr;
  }
  std::string key = KeyOf(method, request);
  absl::MutexLock lock(&mutex_);
  if (!Turn(revision)) {
    return nullptr;
  }
  if (const auto found = young_.find(key); found != young_.end()) {
    return found->second;
  }
  const auto found = old_.find(key);
  if (found == old_.end()) {
    return nullptr;
  }
  std::shared_ptr<const KnownAnswer> answer = std::move(found->second);
  old_.erase(found);
  Add(std::move(key), answer);
  return answer;
}

void AnswerCache::Keep(int method, std::string_view request, int64_t revision, KnownAnswer answer) {
  if (request.size() + answer.bytes.size() > kMaxEntryBytes) {
    return;
  }
  std::string key = KeyOf(method, request);
  auto known = std::make_shared<const KnownAnswer>(std::move(answer));
  absl::MutexLock lock(&mutex_);
  if (Turn(revision) && !young_.contains(key)) {
    Add(std::move(key), std::move(known));
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

void AnswerCache::Add(std::string key, std::shared_ptr<const KnownAnswer> answer) {
  const size_t bytes = key.size() + answer->bytes.size() + kOverheadBytes;
  if (young_bytes_ + bytes > max_bytes_ / 2) {
    old_ = std::exchange(young_, {});
    young_bytes_ = 0;
  }
  young_bytes_ += bytes;
  young_.emplace(std::move(key), std::move(answer));
}

}  // namespace shardmesh::server
