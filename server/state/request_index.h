// Requests by idempotency key, and their answers: the mechanism of every memory of requests.
#ifndef SHARDMESH_SERVER_STATE_REQUEST_INDEX_H_
#define SHARDMESH_SERVER_STATE_REQUEST_INDEX_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "status/str_cat.h"

namespace shardmesh::server {

// Returns the key of a request: ids are scoped by caller (an identity, a host, a session) and
// method. Empty for an empty id.
std::string RequestKey(std::string_view caller, std::string_view method,
                       std::string_view request_id);
// The request id of a key, as the client gave it.
std::string_view RequestIdOf(std::string_view key);

// Texts of the errors of one memory. `$0` stands for the request id.
struct RequestMessages {
  std::string_view reused = "";       // the id was used for another request
  std::string_view running = "";      // the first request has no answer yet
  std::string_view python_type = "";  // of `reused`: see WithPythonType
};

// INVALID_ARGUMENT (REQUEST_ID_REUSED).
absl::Status RequestIdReused(const RequestMessages& messages, std::string_view key);
// ABORTED, with a retry delay.
absl::Status RequestStillRuns(const RequestMessages& messages, std::string_view key);

// Index of requests. The order of calls for a request:
//
// clang-format off
//   Begin -> Finish, or Forget if it failed.
// clang-format on
//
// An answer stays until its memory forgets it: the index orders answers by their time of expiry, of
// all callers and of each, and counts them and their bytes. Each memory has its own limits. Of two
// answers that expire at one time, the one that was finished first is the older.
//
// Four memories stand on it. RequestMemory adds the store. StepMemory drops answers before it
// forgets their requests. PutMemory and SessionService have answers that stand for an object: they
// stay as long as that lives.
//
// Not thread-safe. Pointers to a request are valid until it is forgotten. Calls take constant or
// logarithmic time, unless they say otherwise.
template <typename Answer>
class RequestIndex {
 public:
  struct Request {
    std::string_view caller;
    std::string fingerprint;
    Answer answer{};
    absl::Time expires;  // of an answer; a change takes no effect after Finish
  };
  struct Usage {
    int64_t answers = 0;  // also those that were dropped
    int64_t bytes = 0;
  };

  explicit RequestIndex(const RequestMessages& messages) : messages_(messages) {}
  RequestIndex(const RequestIndex&) = delete;
  RequestIndex& operator=(const RequestIndex&) = delete;

  // Null: the request is the first with this key, and runs from now on. Otherwise the first one
  // with its answer. `fingerprint` tells requests apart: a digest of all that they contain. The
  // answer will count against `caller`. Errors: those of RequestIdReused and RequestStillRuns.
  absl::StatusOr<Request*> Begin(std::string_view caller, std::string_view key,
                                 std::string_view fingerprint) {
    const auto [found, is_new] = entries_.try_emplace(std::string(key));
    Entry& entry = found->second;
    if (is_new) {
      entry.caller = callers_.try_emplace(std::string(caller)).first;
      ++entry.caller->second.requests;
      entry.request.caller = entry.caller->first;
      entry.request.fingerprint = std::string(fingerprint);
      return nullptr;
    }
    if (entry.request.fingerprint != fingerprint) return RequestIdReused(messages_, key);
    if (entry.state == State::kRunning) return RequestStillRuns(messages_, key);
    return &entry.request;
  }

  // Keeps the answer. Null, without effect: no request with this key runs.
  Request* Finish(std::string_view key, Answer answer, absl::Time expires, int64_t bytes) {
    const auto found = entries_.find(ToAbsl(key));
    if (found == entries_.end() || found->second.state != State::kRunning) return nullptr;
    Entry& entry = found->second;
    entry.state = State::kAnswered;
    entry.request.answer = std::move(answer);
    entry.request.expires = expires;
    entry.bytes = bytes;
    entry.caller->second.bytes += bytes;
    bytes_ += bytes;
    Place(&*found, expires);
    return &entry.request;
  }

  // Null: no request with this key has an answer.
  Request* Find(std::string_view key) { return FindIf(key, false); }
  const Request* Find(std::string_view key) const {
    return const_cast<RequestIndex*>(this)->Find(key);
  }
  // Null: no request with this key runs.
  Request* FindRunning(std::string_view key) { return FindIf(key, true); }

  // Forgets the request, running or answered: the next one with this key is the first again.
  void Forget(std::string_view key) {
    if (const auto found = entries_.find(ToAbsl(key)); found != entries_.end()) Erase(&*found);
  }

  // Forgets the oldest request that has an answer, of all or of one caller. Returns its key. There
  // is one.
  std::string ForgetOldest() { return Erase(by_age_.begin()->second); }
  std::string ForgetOldestOf(std::string_view caller) {
    const OfCaller& of_caller = callers_.find(caller)->second;
    return Erase(
        (of_caller.dropped.empty() ? of_caller.answered : of_caller.dropped).begin()->second);
  }
  // Drops the caller's oldest answer: it becomes Answer(), and the request stays. False: the caller
  // has none.
  bool DropOldestOf(std::string_view caller) {
    const auto found = callers_.find(caller);
    if (found == callers_.end() || found->second.answered.empty()) return false;
    OfCaller& of_caller = found->second;
    Entry& entry = of_caller.answered.begin()->second->second;
    of_caller.dropped.insert(of_caller.answered.extract(of_caller.answered.begin()));
    entry.state = State::kDropped;
    entry.request.answer = Answer();
    of_caller.bytes -= entry.bytes;
    bytes_ -= std::exchange(entry.bytes, 0);
    return true;
  }
  // Looks at a few of the oldest answers that have expired by `now`, or while there are more than
  // `max_requests`. Those of which `lives(answer)` is true become the newest and stay until
  // `expires`. Forgets the others. Call it before each Begin: it then looks at more answers than
  // come, and so at all of them in time.
  template <typename Lives>
  void ForgetEnded(absl::Time now, int64_t max_requests, absl::Time expires, const Lives& lives) {
    for (int i = 0; i < kLooks && !by_age_.empty(); ++i) {
      if (size() <= max_requests && next_expiry() > now) return;
      Node* const oldest = by_age_.begin()->second;
      if (!lives(std::as_const(oldest->second.request.answer))) {
        Erase(oldest);
        continue;
      }
      Displace(oldest->second);
      Place(oldest, expires);
    }
  }

  // Requests, running or answered.
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  // Answered ones.
  int64_t answers() const { return static_cast<int64_t>(by_age_.size()); }
  // Bytes of the answers that are not dropped, as given to Finish.
  int64_t bytes() const { return bytes_; }
  // InfiniteFuture if there is no answer.
  absl::Time next_expiry() const {
    return by_age_.empty() ? absl::InfiniteFuture() : by_age_.begin()->first.first;
  }
  Usage UsageOf(std::string_view caller) const {
    const auto found = callers_.find(caller);
    if (found == callers_.end()) return {};
    return {.answers = std::ssize(found->second.answered) + std::ssize(found->second.dropped),
            .bytes = found->second.bytes};
  }
  // The caller with the most bytes. There are requests. Takes time linear in the callers.
  std::string_view HeaviestCaller() const {
    return std::max_element(
               callers_.begin(), callers_.end(),
               [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; })
        ->first;
  }

 private:
  static constexpr int kLooks = 4;

  enum class State { kRunning, kAnswered, kDropped };
  using Age = std::pair<absl::Time, int64_t>;  // expiry, and the number of the answer
  struct Entry;
  using Node = std::pair<const std::string, Entry>;  // by key
  using Order = std::map<Age, Node*>;
  struct OfCaller {
    int64_t requests = 0;  // in any state
    int64_t bytes = 0;
    Order answered;
    Order dropped;
  };
  using Callers = std::map<std::string, OfCaller, std::less<>>;
  struct Entry {
    Request request;
    State state = State::kRunning;
    int64_t bytes = 0;
    Age age;  // once answered
    typename Callers::iterator caller;
  };

  Request* FindIf(std::string_view key, bool is_running) {
    const auto found = entries_.find(ToAbsl(key));
    if (found == entries_.end()) return nullptr;
    return (found->second.state == State::kRunning) == is_running ? &found->second.request
                                                                  : nullptr;
  }

  Order& OrderOf(Entry& entry) {
    OfCaller& caller = entry.caller->second;
    return entry.state == State::kDropped ? caller.dropped : caller.answered;
  }
  void Place(Node* node, absl::Time expires) {
    Entry& entry = node->second;
    entry.request.expires = expires;
    entry.age = {expires, ++last_number_};
    by_age_.emplace(entry.age, node);
    OrderOf(entry).emplace(entry.age, node);
  }
  void Displace(Entry& entry) {
    by_age_.erase(entry.age);
    OrderOf(entry).erase(entry.age);
  }
  std::string Erase(Node* node) {
    Entry& entry = node->second;
    if (entry.state != State::kRunning) Displace(entry);
    OfCaller& caller = entry.caller->second;
    caller.bytes -= entry.bytes;
    bytes_ -= entry.bytes;
    if (--caller.requests == 0) callers_.erase(entry.caller);
    std::string key = node->first;
    entries_.erase(key);
    return key;
  }

  const RequestMessages messages_;
  absl::node_hash_map<std::string, Entry> entries_;
  Callers callers_;  // with requests
  Order by_age_;     // of all callers
  int64_t last_number_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_REQUEST_INDEX_H_
