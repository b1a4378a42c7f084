// How fast a link is: the conversation in which two workers find out.
//
//   answering:  offer ------------------------->   how long a message it has memory for
//   leading:          <------------------ trial    so many exchanges of so many bytes
//   both:       an exchange of 8 bytes, from whose end on the leading one takes the time; then
//               those of the trial, one after the other
//               ... further trials; the last one is of no exchange, and is the end
//
// In an exchange each sends a message and waits for the other's, which it copies into a buffer, as
// ranks do in a round of a collective. All messages go under tags of one op, which are used up.
//
// First come trials of 20 exchanges of 8 bytes, until there were 5 or 30 ms are over; then as many
// of 4 exchanges of 64 KiB, to see how long messages take about 2 ms; then as many of those, of at
// most 4 MiB. The best of each kind counts: the others were disturbed.
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

// The step whose tags probes use; no real step has this number.
inline constexpr int64_t kProbeStep = 0;
// The round of the message by which the leading end has the other one answer; after all others.
inline constexpr int64_t kProbeCallRound = Tag::kMaxRound;

// What one end of a probe sends from and receives into.
class ProbeMemory {
 public:
  // Two buffers of at most 4 MiB, together no more than a sixteenth of what the pool's budget has
  // left. RESOURCE_EXHAUSTED where that is less than 64 KiB each.
  static absl::StatusOr<ProbeMemory> Allocate(BufferPool& pool);

  int64_t size_bytes() const { return static_cast<int64_t>(sent_->size()); }
  // The first bytes of what is sent; the same bytes each time.
  OwnedBytes ToSend(int64_t size_bytes) const {
    return {sent_->bytes().subspan(0, static_cast<size_t>(size_bytes)), sent_};
  }
  char* received() { return received_.data(); }

 private:
  ProbeMemory(std::shared_ptr<const Buffer> sent, Buffer received)
      : sent_(std::move(sent)), received_(std::move(received)) {}

  std::shared_ptr<const Buffer> sent_;  // until the peer has read the last message
  Buffer received_;
};

// What is said of these in rpc::MeasuredLink.
struct ProbeFigures {
  absl::Duration latency;
  double bytes_per_second = 0;
};

// Leads a probe with the rank `peer` of the link, as op `op` of step kProbeStep: 0 <= op <=
// Tag::kMaxOp, the same at both ends. The answering end has until `answer_by` for its offer, and
// the rest until a second later.
//
// Errors are those of the link; RESOURCE_EXHAUSTED if the peer has no memory to offer,
// INVALID_ARGUMENT if what it says makes no sense.
absl::StatusOr<ProbeFigures> LeadProbe(Link& link, DeviceId peer, int64_t op, ProbeMemory& memory,
                                       absl::Time answer_by);

// Answers one, until `deadline`. `memory` is null where there is none, of which the peer is told.
absl::Status AnswerProbe(Link& link, DeviceId peer, int64_t op, ProbeMemory* memory,
                         absl::Time deadline);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_LINK_PROBE_H_
