// Index of requests by idempotency key, with their answers. All memories of requests are built on
// this index.
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

// Returns the key of a request: the id, scoped by caller (an identity, a host or a session) and
// method. Empty for an empty id.
std::string RequestKey(std::string_view caller, std::string_view method,
                       std::string_view request_id);
// Returns the request id in a key, as the client sent it.
std::string_view RequestIdOf(std::string_view key);

// Error messages of one memory of requests. `$0` stands for the request id.
struct RequestMessages {
  std::string_view reused = "";       // the id was used for another request
  std::string_view running = "";      // the first request has no answer yet
  std::string_view python_type = "";  // Python type for `reused`: see WithPythonType
};

// Returns INVALID_ARGUMENT (REQUEST_ID_REUSED).
absl::Status RequestIdReused(const RequestMessages& messages, std::string_view key);
// Returns ABORTED, with a retry delay.
absl::Status RequestStillRuns(const RequestMessages& messages, std::string_view key);

// Index of requests. The order of calls for a request:
//
// clang-format off
//   Begin -> Finish, or Forget if the request failed.
// clang-format on
//
// An answer stays until the memory that owns the index forgets it. The index orders answers by
// expiry, over all callers and per caller, and counts the answers and their bytes. Each memory sets
// its own limits. If two answers expire at the same time, the answer that was finished first counts
// as older.
//
// Four memories use this index. RequestMemory also stores answers in the store. StepMemory drops
// answers before it forgets their requests. In PutMemory and SessionService, each answer stands for
// an object, and stays as long as that object lives.
//
// Not thread-safe. A pointer to a request is valid until the request is forgotten. Calls take
// constant or logarithmic time, unless stated otherwise.
template <typename Answer>
class RequestIndex {
 public:
  struct Request {
    std::string_view caller;
    std::string fingerprint;
    Answer answer{};
    absl::Time expires;  // expiry of the answer; changing it after Finish has no effect
  };
  struct Usage {
    int64_t answers = 0;  // including dropped ones
    int64_t bytes = 0;
  };

  explicit RequestIndex(const RequestMessages& messages) : messages_(messages) {}
  RequestIndex(const RequestIndex&) = delete;
  RequestIndex& operator=(const RequestIndex&) = delete;

  // Returns null if the request is the first with this key; the request then counts as running. If
  // the first request has finished, returns that request, with its answer. `fingerprint` is a
  // digest of the whole request, and detects a different request with the same key. The answer will
  // count against `caller`. Errors: those of RequestIdReused and RequestStillRuns.
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

  // Keeps the answer to the running request with this key, and returns the request. Returns null
  // and does nothing if no request with this key is running.
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

  // Returns the answered request with this key; null if there is none.
  Request* Find(std::string_view key) { return FindIf(key, false); }
  const Request* Find(std::string_view key) const {
    return const_cast<RequestIndex*>(this)->Find(key);
  }
  // Returns the running request with this key; null if there is none.
  Request* FindRunning(std::string_view key) { return FindIf(key, true); }

  // Forgets the request, running or answered. The next request with this key counts as the first.
  void Forget(std::string_view key) {
    if (const auto found = entries_.find(ToAbsl(key)); found != entries_.end()) Erase(&*found);
  }

  // Forget the oldest answered request, of all callers or of one caller. Return the key of the
  // forgotten request. Require that there is such a request.
  std::string ForgetOldest() { return Erase(by_age_.begin()->second); }
  std::string ForgetOldestOf(std::string_view caller) {
    const OfCaller& of_caller = callers_.find(caller)->second;
    return Erase(
        (of_caller.dropped.empty() ? of_caller.answered : of_caller.dropped).begin()->second);
  }
  // Drops the caller's oldest answer: its value becomes Answer(), and the request stays. Returns
  // false if the caller has no answer.
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
  // Examines up to kLooks of the oldest answers: those that have expired by `now`, and unexpired
  // answers while there are more than `max_requests` requests. If `lives(answer)` is true, the
  // answer becomes the newest and stays until `expires`. If `lives(answer)` is false, the answer's
  // request is forgotten. Call ForgetEnded before each Begin: it examines more answers than the
  // Begin can add, so each answer is examined in time.
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

  // Number of requests, running or answered.
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  // Number of answered requests.
  int64_t answers() const { return static_cast<int64_t>(by_age_.size()); }
  // Bytes of all answers that are not dropped, as passed to Finish.
  int64_t bytes() const { return bytes_; }
  // The expiry of the oldest answer; InfiniteFuture if there is no answer.
  absl::Time next_expiry() const {
    return by_age_.empty() ? absl::InfiniteFuture() : by_age_.begin()->first.first;
  }
  Usage UsageOf(std::string_view caller) const {
    const auto found = callers_.find(caller);
    if (found == callers_.end()) return {};
    return {.answers = std::ssize(found->second.answered) + std::ssize(found->second.dropped),
            .bytes = found->second.bytes};
  }
  // Returns the caller with the most bytes. Requires that there are requests. Takes time linear in
  // the number of callers.
  std::string_view HeaviestCaller() const {
    return std::max_element(
               callers_.begin(), callers_.end(),
               [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; })
        ->first;
  }

 private:
  static constexpr int kLooks = 4;

  enum class State { kRunning, kAnswered, kDropped };
  using Age = std::pair<absl::Time, int64_t>;  // expiry, and serial number of the answer
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
  Callers callers_;  // callers that have requests
  Order by_age_;     // answers of all callers
  int64_t last_number_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_REQUEST_INDEX_H_
