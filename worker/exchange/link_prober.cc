// LinkProber: schedules the probes and collects their results.
#include "worker/exchange/link_prober.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "absl/time/clock.h"
#include "process/log.h"
#include "status/status_macros.h"
#include "worker/exchange/link_probe.h"

namespace shardmesh::worker {
namespace {

// Shortest pauses between the probes of a link. The prober lengthens each pause by a random time of
// at most half the pause.
constexpr std::array<absl::Duration, 3> kPauses = {absl::Milliseconds(500), absl::Seconds(2),
                                                   absl::Seconds(4)};
// How long the leading end waits for an offer. A busy peer answers other workers first, each in
// much less than a tenth of a second.
constexpr absl::Duration kAnswerLimit = absl::Seconds(4);
// Time limit of the answering end for one probe. It is not longer than kRetryDelay, so the
// answering end gives up before the leading end repeats the probe.
constexpr absl::Duration kCallLimit = absl::Seconds(2);
constexpr absl::Duration kRetryDelay = absl::Seconds(2);
constexpr int kMaxFailures = 5;

}  // namespace

LinkProber::LinkProber(Options options)
    : options_(std::move(options)),
      leading_([this] { LeadAll(); }),
      answering_([this] { AnswerAll(); }) {}

LinkProber::~LinkProber() { Join(); }

void LinkProber::Join() {
  Stop();
  if (leading_.joinable()) leading_.join();
  if (answering_.joinable()) answering_.join();
}

void LinkProber::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
  changed_.SignalAll();
}

void LinkProber::Connected(const Connection& connection) {
  absl::MutexLock lock(&mutex_);
  Target& target = targets_[connection.peer];
  if (target.best.has_value()) ++revision_;
  target = {.connection = connection};
  changed_.SignalAll();
}

void LinkProber::Disconnected(const std::string& peer) {
  absl::MutexLock lock(&mutex_);
  const auto found = targets_.find(peer);
  if (found == targets_.end()) return;
  if (found->second.best.has_value()) ++revision_;
  targets_.erase(found);
}

void LinkProber::Called(const Connection& connection, int64_t op) {
  absl::MutexLock lock(&mutex_);
  // A peer waits only for the answer to its last request for a probe. Drop its earlier requests.
  std::erase_if(calls_, [&](const Call& call) { return call.connection.peer == connection.peer; });
  calls_.push_back({.connection = connection, .op = op});
  changed_.SignalAll();
}

MeasuredLinks LinkProber::measured() const {
  absl::MutexLock lock(&mutex_);
  MeasuredLinks measured{.revision = revision_};
  for (const auto& [peer, target] : targets_) {
    if (target.best.has_value()) measured.links.push_back(*target.best);
  }
  return measured;
}

void LinkProber::LeadAll() {
  while (true) {
    Connection connection;
    int64_t op = 0;
    {
      absl::MutexLock lock(&mutex_);
      while (true) {
        if (stopped_) return;
        const auto next = std::min_element(
            targets_.begin(), targets_.end(),
            [](const auto& a, const auto& b) { return a.second.due < b.second.due; });
        const absl::Time due = next == targets_.end() ? absl::InfiniteFuture() : next->second.due;
        if (due <= absl::Now()) {
          connection = next->second.connection;
          op = next->second.next_op++;
          break;
        }
        changed_.WaitWithDeadline(&mutex_, due);
      }
    }
    Note(connection, Lead(connection, op));
  }
}

void LinkProber::AnswerAll() {
  while (true) {
    Call call;
    {
      absl::MutexLock lock(&mutex_);
      while (calls_.empty() && !stopped_) changed_.Wait(&mutex_);
      if (stopped_) return;
      call = std::move(calls_.front());
      calls_.pop_front();
    }
    // Do not log UNAVAILABLE: the connection ended, and PeerStreams logs the end.
    if (const absl::Status answered = Answer(call.connection, call.op);
        !answered.ok() && !absl::IsUnavailable(answered)) {
      LogInfo(
          "probe of a link not answered to its end",
          {{"identity", options_.identity}, {"peer", call.connection.peer}, {"error", answered}});
    }
  }
}

absl::StatusOr<MeasuredLink> LinkProber::Lead(const Connection& connection, int64_t op) const {
  SHARDMESH_ASSIGN_OR_RETURN(ProbeMemory memory, ProbeMemory::Allocate(*options_.pool));
  const absl::Time answer_by = absl::Now() + kAnswerLimit;
  SHARDMESH_ASSIGN_OR_RETURN(const End end,
                             options_.open(connection, op, /*leads=*/true, answer_by));
  SHARDMESH_ASSIGN_OR_RETURN(const ProbeFigures figures,
                             LeadProbe(*end.link, end.peer, op, memory, answer_by));
  return MeasuredLink{.peer = connection.peer,
                      .peer_incarnation = connection.peer_incarnation,
                      .shares_memory = end.shares_memory,
                      .latency = figures.latency,
                      .bytes_per_second = figures.bytes_per_second,
                      .measured = absl::Now()};
}

absl::Status LinkProber::Answer(const Connection& connection, int64_t op) const {
  const absl::Time deadline = absl::Now() + kCallLimit;
  SHARDMESH_ASSIGN_OR_RETURN(const End end,
                             options_.open(connection, op, /*leads=*/false, deadline));
  absl::StatusOr<ProbeMemory> memory = ProbeMemory::Allocate(*options_.pool);
  SHARDMESH_RETURN_IF_ERROR(
      AnswerProbe(*end.link, end.peer, op, memory.ok() ? &*memory : nullptr, deadline));
  return memory.status();
}

void LinkProber::Note(const Connection& connection, absl::StatusOr<MeasuredLink> measured) {
  absl::MutexLock lock(&mutex_);
  const auto found = targets_.find(connection.peer);
  if (found == targets_.end() || found->second.connection.number != connection.number) return;
  Target& target = found->second;
  const absl::Time now = absl::Now();
  if (!measured.ok()) {
    ++target.failures;
    target.due = target.failures < kMaxFailures ? now + kRetryDelay : absl::InfiniteFuture();
    LogWarning("link not measured", {{"identity", options_.identity},
                                     {"peer", connection.peer},
                                     {"again", target.failures < kMaxFailures},
                                     {"error", measured.status()}});
    return;
  }
  if (target.best.has_value()) {
    measured->latency = std::min(measured->latency, target.best->latency);
    measured->bytes_per_second =
        std::max(measured->bytes_per_second, target.best->bytes_per_second);
  }
  target.failures = 0;
  target.due =
      target.probes < std::ssize(kPauses)
          ? now + kPauses[static_cast<size_t>(target.probes)] * absl::Uniform(random_, 1.0, 1.5)
          : absl::InfiniteFuture();
  ++target.probes;
  target.best = *std::move(measured);
  ++revision_;
  if (target.due == absl::InfiniteFuture()) {
    LogInfo("link measured", {{"identity", options_.identity},
                              {"peer", connection.peer},
                              {"shares_memory", target.best->shares_memory},
                              {"latency", target.best->latency},
                              {"bytes_per_second", target.best->bytes_per_second}});
  }
}

}  // namespace shardmesh::worker
