// The protocol with which two workers measure how fast the link between them is. One worker leads
// the probe, the other worker answers.
//
// clang-format off
//   answering end:  offer ------------------------->   the longest message for which it has memory
//   leading end:          <------------------ trial    a number of exchanges, and their size
//   both ends:      one exchange of 8 bytes; when it has ended, the leading end starts its clock
//                   the exchanges of the trial, one after the other
//                   ... further trials; a trial without exchanges ends the probe
// clang-format on
//
// In an exchange, each end sends a message, waits for the other end's message and copies it into a
// buffer. Ranks do the same in a round of a collective. All messages of a probe have tags of one
// op. Each end uses each tag for at most one message.
//
// The leading end asks for three kinds of trials: 5 trials of each kind, or fewer if the trials of
// this kind have taken 30 ms. A trial of the first kind has 20 exchanges of 8 bytes. A trial of the
// second kind has 4 exchanges of 64 KiB. From the time of these exchanges, the leading end computes
// the message size for which an exchange takes about 2 ms. A trial of the third kind has 4
// exchanges of this size, but at least 64 KiB and at most the buffer size of either end. Only the
// fastest trial of each kind counts, because other load may have slowed down the other trials.
#ifndef SHARDMESH_WORKER_EXCHANGE_LINK_PROBE_H_
#define SHARDMESH_WORKER_EXCHANGE_LINK_PROBE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tensor/buffer.h"
#include "worker/collective/link.h"

namespace shardmesh::worker {

// The step number in the tags of probe messages. No real step has this number.
inline constexpr int64_t kProbeStep = 0;
// The round of the message with which the leading end asks the other end to answer. All other
// messages of a probe have lower rounds.
inline constexpr int64_t kProbeCallRound = Tag::kMaxRound;

// Send and receive buffers for one end of a probe.
class ProbeMemory {
 public:
  // Allocates two buffers of at most 4 MiB each, which together take at most a sixteenth of the
  // pool's free budget. RESOURCE_EXHAUSTED if this limit allows less than 64 KiB for each buffer.
  static absl::StatusOr<ProbeMemory> Allocate(BufferPool& pool);

  int64_t size_bytes() const { return static_cast<int64_t>(sent_->size()); }
  // Returns the first `size_bytes` bytes of the send buffer; every call returns the same memory.
  OwnedBytes ToSend(int64_t size_bytes) const {
    return {sent_->bytes().subspan(0, static_cast<size_t>(size_bytes)), sent_};
  }
  char* received() { return received_.data(); }

 private:
  ProbeMemory(std::shared_ptr<const Buffer> sent, Buffer received)
      : sent_(std::move(sent)), received_(std::move(received)) {}

  // Shared, because the link keeps the send buffer until the peer has read the last message.
  std::shared_ptr<const Buffer> sent_;
  Buffer received_;
};

// The latency and the bandwidth of a link: see MeasuredLink.
struct ProbeFigures {
  absl::Duration latency;
  double bytes_per_second = 0;
};

// Leads a probe with the rank `peer` of the link. The probe's messages use op `op` of step
// kProbeStep: 0 <= op <= Tag::kMaxOp, the same at both ends. The answering end must send its offer
// by `answer_by`, and complete the rest of the probe within a second after the offer.
//
// - RESOURCE_EXHAUSTED: the peer has no memory for a probe.
// - INVALID_ARGUMENT: the peer's messages break the protocol.
// - Errors of Link::Send and Link::Receive.
absl::StatusOr<ProbeFigures> LeadProbe(Link& link, DeviceId peer, int64_t op, ProbeMemory& memory,
                                       absl::Time answer_by);

// Answers one probe, until `deadline`. `memory` is null if this end has no memory for a probe; in
// this case the offer tells the leading end that there is no memory.
absl::Status AnswerProbe(Link& link, DeviceId peer, int64_t op, ProbeMemory* memory,
                         absl::Time deadline);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_LINK_PROBE_H_
