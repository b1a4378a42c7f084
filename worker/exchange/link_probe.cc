// Both ends of a link probe, a measurement of latency and bandwidth between two workers.
#include "worker/exchange/link_probe.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "status/byte_text.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

using Steady = std::chrono::steady_clock;

constexpr int64_t kMaxBytes = int64_t{4} << 20;
constexpr int64_t kMinBytes = int64_t{64} << 10;
constexpr int64_t kShortBytes = 8;
// The two buffers of a probe together take at most 1 / kPartOfBudget of the free memory budget.
constexpr int64_t kPartOfBudget = 16;

constexpr int kTrials = 5;
// Once the trials of one kind have taken this long, no further trial of this kind begins.
constexpr std::chrono::milliseconds kTrialsTime{30};
// Exchanges in one short trial. A trial needs several exchanges, because the two ends do not start
// at the same moment: the peer may be one exchange ahead. The average over several exchanges
// reduces this error.
constexpr int64_t kShortExchanges = 20;
constexpr int64_t kLongExchanges = 4;
constexpr int64_t kMaxExchanges = 64;
// Wanted duration of one exchange of the longest messages. On a slow link, an exchange of kMinBytes
// may take longer.
constexpr double kLongSeconds = 2e-3;
// Time limit of the leading end, counted from the arrival of the answering end's offer.
constexpr absl::Duration kProbeLimit = absl::Seconds(1);

// A number of exchanges of one message size.
struct Trial {
  int64_t exchanges = 0;
  int64_t size_bytes = 0;
};

// One end of the probe protocol. Say sends this end's next message, Hear receives the other end's
// next message. Exchange performs one exchange, and Run performs all exchanges of a trial.
class Conversation {
 public:
  Conversation(Link& link, DeviceId peer, int64_t op) : link_(link), peer_(peer), op_(op) {}

  void set_deadline(absl::Time deadline) { deadline_ = deadline; }

  // Sends numbers in the host's byte order. All hosts of a cluster have the same byte order,
  // because tiles are sent in the host's byte order too.
  template <size_t kCount>
  absl::Status Say(const std::array<int64_t, kCount>& numbers) {
    auto owner = std::make_shared<const std::array<int64_t, kCount>>(numbers);
    const absl::Span<const char> bytes(reinterpret_cast<const char*>(owner->data()),
                                       sizeof(numbers));
    SHARDMESH_ASSIGN_OR_RETURN(const Tag tag, NextTag());
    return link_.Send(peer_, tag, {bytes, std::move(owner)});
  }
  template <size_t kCount>
  absl::StatusOr<std::array<int64_t, kCount>> Hear() {
    std::array<int64_t, kCount> numbers;
    SHARDMESH_ASSIGN_OR_RETURN(const Tag tag, NextTag());
    SHARDMESH_RETURN_IF_ERROR(
        Receive(tag, sizeof(numbers), reinterpret_cast<char*>(numbers.data())));
    return numbers;
  }

  absl::Status Exchange(ProbeMemory& memory, int64_t size_bytes) {
    SHARDMESH_ASSIGN_OR_RETURN(const Tag tag, NextTag());
    SHARDMESH_RETURN_IF_ERROR(link_.Send(peer_, tag, memory.ToSend(size_bytes)));
    return Receive(tag, size_bytes, memory.received());
  }
  // Returns the average time of one exchange in the trial, in seconds.
  absl::StatusOr<double> Run(ProbeMemory& memory, const Trial& trial) {
    SHARDMESH_RETURN_IF_ERROR(Exchange(memory, kShortBytes));
    const Steady::time_point begin = Steady::now();
    for (int64_t i = 0; i < trial.exchanges; ++i) {
      SHARDMESH_RETURN_IF_ERROR(Exchange(memory, trial.size_bytes));
    }
    return std::chrono::duration<double>(Steady::now() - begin).count() /
           static_cast<double>(trial.exchanges);
  }

 private:
  absl::StatusOr<Tag> NextTag() { return Tag::Create(kProbeStep, op_, round_++); }

  absl::Status Receive(const Tag& tag, int64_t size_bytes, char* to) {
    for (int64_t received_bytes = 0; received_bytes < size_bytes;) {
      SHARDMESH_ASSIGN_OR_RETURN(const OwnedBytes piece,
                                 link_.Receive(peer_, tag, size_bytes, deadline_));
      const auto left_bytes = static_cast<size_t>(size_bytes - received_bytes);
      std::memcpy(to + received_bytes, piece.bytes.data(),
                  std::min(piece.bytes.size(), left_bytes));
      received_bytes += static_cast<int64_t>(piece.bytes.size());
    }
    return absl::OkStatus();
  }

  Link& link_;
  const DeviceId peer_;
  const int64_t op_;
  int64_t round_ = 0;
  absl::Time deadline_ = absl::InfiniteFuture();
};

absl::Status NoSense(std::string_view what) {
  return WithReason(absl::InvalidArgumentError(StrCat("a probe with ", what)), Reason::kBadField);
}

absl::Status NoMemory(std::string_view whose, Facts facts) {
  return WithReason(
      absl::ResourceExhaustedError(StrCat(whose,
                                          " has no memory to spare for a probe of its links; "
                                          "it takes a sixteenth of what is free, at least ",
                                          FormatBytes(2 * kMinBytes))),
      Reason::kMemoryLimit, facts);
}

}  // namespace

absl::StatusOr<ProbeMemory> ProbeMemory::Allocate(BufferPool& pool) {
  const int64_t free_bytes = pool.budget().limit_bytes() - pool.budget().used_bytes();
  const int64_t size_bytes =
      std::min(kMaxBytes, free_bytes / kPartOfBudget / 2 / kMinBytes * kMinBytes);
  if (size_bytes < kMinBytes) {
    return NoMemory("this worker",
                    {{fact::kHave, free_bytes / kPartOfBudget}, {fact::kNeed, 2 * kMinBytes}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(Buffer sent, pool.Allocate(size_bytes, "a probe of a link"));
  SHARDMESH_ASSIGN_OR_RETURN(Buffer received, pool.Allocate(size_bytes, "a probe of a link"));
  // The send buffer may hold old data, which the peer must not see.
  std::memset(sent.data(), 0, sent.size());
  return ProbeMemory(std::make_shared<const Buffer>(std::move(sent)), std::move(received));
}

absl::StatusOr<ProbeFigures> LeadProbe(Link& link, DeviceId peer, int64_t op, ProbeMemory& memory,
                                       absl::Time answer_by) {
  Conversation talk(link, peer, op);
  talk.set_deadline(answer_by);
  SHARDMESH_ASSIGN_OR_RETURN(const auto offer, talk.Hear<1>());
  if (offer[0] == 0) {
    return NoMemory(StrCat("rank ", peer), {{fact::kRank, peer}, {fact::kNeed, 2 * kMinBytes}});
  }
  if (offer[0] < kMinBytes || offer[0] > kMaxBytes) {
    return NoSense(StrCat("messages of at most ", offer[0], " bytes"));
  }
  talk.set_deadline(absl::Now() + kProbeLimit);

  const auto run = [&](const Trial& trial) -> absl::StatusOr<double> {
    SHARDMESH_RETURN_IF_ERROR(talk.Say<2>({trial.exchanges, trial.size_bytes}));
    return talk.Run(memory, trial);
  };
  // Runs a trial several times and returns the shortest time of an exchange, in seconds.
  const auto run_several = [&](const Trial& trial) -> absl::StatusOr<double> {
    const Steady::time_point begin = Steady::now();
    SHARDMESH_ASSIGN_OR_RETURN(double best, run(trial));
    for (int i = 1; i < kTrials && Steady::now() - begin < kTrialsTime; ++i) {
      SHARDMESH_ASSIGN_OR_RETURN(const double seconds, run(trial));
      best = std::min(best, seconds);
    }
    return best;
  };
  SHARDMESH_ASSIGN_OR_RETURN(const double short_seconds, run_several({.exchanges = kShortExchanges,
                                                                      .size_bytes = kShortBytes}));
  Trial longer{.exchanges = kLongExchanges, .size_bytes = kMinBytes};
  SHARDMESH_ASSIGN_OR_RETURN(const double first_seconds, run_several(longer));
  const double most_bytes = static_cast<double>(std::min(offer[0], memory.size_bytes()));
  longer.size_bytes =
      static_cast<int64_t>(std::clamp(static_cast<double>(kMinBytes) * kLongSeconds / first_seconds,
                                      static_cast<double>(kMinBytes), most_bytes));
  SHARDMESH_ASSIGN_OR_RETURN(const double seconds, run_several(longer));
  SHARDMESH_RETURN_IF_ERROR(talk.Say<2>({0, 0}));
  // The time of an exchange consists of a fixed cost and a cost for its bytes. Subtract the fixed
  // cost, the latency, to get the bandwidth.
  return ProbeFigures{.latency = absl::Seconds(short_seconds),
                      .bytes_per_second = static_cast<double>(longer.size_bytes) /
                                          (seconds - std::min(short_seconds, seconds / 2))};
}

absl::Status AnswerProbe(Link& link, DeviceId peer, int64_t op, ProbeMemory* memory,
                         absl::Time deadline) {
  Conversation talk(link, peer, op);
  talk.set_deadline(deadline);
  SHARDMESH_RETURN_IF_ERROR(talk.Say<1>({memory == nullptr ? 0 : memory->size_bytes()}));
  while (memory != nullptr) {
    SHARDMESH_ASSIGN_OR_RETURN(const auto said, talk.Hear<2>());
    const Trial trial{.exchanges = said[0], .size_bytes = said[1]};
    if (trial.exchanges == 0) break;
    if (trial.exchanges < 0 || trial.exchanges > kMaxExchanges || trial.size_bytes < 1 ||
        trial.size_bytes > memory->size_bytes()) {
      return NoSense(StrCat(trial.exchanges, " exchanges of ", trial.size_bytes, " bytes"));
    }
    SHARDMESH_RETURN_IF_ERROR(talk.Run(*memory, trial).status());
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::worker
