// Delivers frames of streams and messages in shared memory to mailboxes.
#include "worker/exchange/message_intake.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"
#include "process/log.h"
#include "status/status_macros.h"
#include "worker/exchange/link_probe.h"

namespace shardmesh::worker {
namespace {

// Owner of the memory of one piece of a frame. Its destruction frees the piece's slice. When all
// pieces of the frame are freed, the sender gets the frame's credit back.
struct Received {
  grpc::Slice slice;
  std::shared_ptr<const void> charge;
};

}  // namespace

rpc::FrameTag FrameTagOf(const Tag& tag) {
  return {.sequence = tag.step(),
          .op = static_cast<uint32_t>(tag.op()),
          .round = static_cast<uint32_t>(tag.round())};
}

Mailbox::Options MessageIntake::MailboxOptions() {
  return {.tag_limit_bytes = links_.tag_limit_bytes,
          .credit = [this](const std::string& worker, const Tag& tag,
                           int64_t size_bytes) { Grant(worker, tag, size_bytes); },
          .poll = options_.poll,
          .exhausted = &credit_state_.exhausted_links,
          .starved = [this](const std::string& worker, const Tag& tag,
                            int64_t left_bytes) { Demand(worker, tag, left_bytes); },
          .awaited = &awaited_};
}

absl::Status MessageIntake::TakeFrame(PeerLink& link, const rpc::Frame& frame,
                                      const std::shared_ptr<const void>& charge) {
  const rpc::FrameHeader& header = frame.header;
  SHARDMESH_ASSIGN_OR_RETURN(const Tag tag,
                             Tag::Create(header.tag.sequence, header.tag.op, header.tag.round));
  const std::string peer = link.peer();
  std::shared_ptr<Mailbox> mailbox;
  {
    absl::MutexLock lock(&state_.mutex);
    const Peer* const sender = state_.peers.Find(peer);
    const bool is_current = sender != nullptr && sender->up && sender->link.get() == &link;
    if (is_current && tag.step() == kProbeStep && tag.round() == kProbeCallRound &&
        options_.probe_called(*sender, tag.op())) {
      return absl::OkStatus();
    }
    if (is_current) {
      SHARDMESH_ASSIGN_OR_RETURN(mailbox, MailboxFor(*sender, tag, header.epoch));
    }
    if (mailbox == nullptr) {
      CountDropped(tag.step(), header.epoch);
      return absl::OkStatus();
    }
    state_.counters.received_bytes += frame.payload_bytes();
  }
  int64_t offset_bytes = header.offset_bytes;
  std::string signature = header.signature;
  for (const grpc::Slice& slice : frame.payload) {
    auto owner = std::make_shared<const Received>(Received{slice, charge});
    const absl::Span<const char> bytes(reinterpret_cast<const char*>(owner->slice.begin()),
                                       owner->slice.size());
    SHARDMESH_RETURN_IF_ERROR(mailbox->Deliver(peer, tag,
                                               {.offset_bytes = offset_bytes,
                                                .message_bytes = header.message_bytes,
                                                .content = {bytes, std::move(owner)},
                                                .signature = std::exchange(signature, {})}));
    offset_bytes += static_cast<int64_t>(bytes.size());
  }
  return absl::OkStatus();
}

void MessageIntake::DemandAwaited(PeerLink& link) {
  const std::string worker = link.peer();
  std::shared_ptr<Mailbox> probe;
  {
    absl::MutexLock lock(&state_.mutex);
    const Peer* const peer = state_.peers.Find(worker);
    if (peer == nullptr || peer->link.get() != &link) return;
    probe = peer->probe.lock();
  }
  for (const Mailbox* mailbox :
       {static_cast<const Mailbox*>(&mailbox_), static_cast<const Mailbox*>(probe.get())}) {
    if (mailbox == nullptr) continue;
    for (const Mailbox::Wait& wait : mailbox->WaitsFor(worker)) {
      link.Demand(FrameTagOf(wait.tag), wait.left_bytes);
    }
  }
  // Receivers that poll shared memory may sleep in the mailbox. Wake them up, so that each of them
  // demands its own message, which the peer may send over the stream.
  mailbox_.WakeSleepers();
  if (probe != nullptr) probe->WakeSleepers();
}

absl::Status MessageIntake::TakeShared(const std::string& identity, const ShmChannel* channel,
                                       ShmChannel::Arrived arrived) {
  SHARDMESH_ASSIGN_OR_RETURN(const Tag tag, Tag::Create(arrived.step, arrived.op, arrived.round));
  const auto size_bytes = static_cast<int64_t>(arrived.message.bytes.size());
  std::shared_ptr<Mailbox> mailbox;
  {
    absl::MutexLock lock(&state_.mutex);
    const Peer* const sender = state_.peers.Find(identity);
    if (sender != nullptr && sender->channel.get() == channel) {
      SHARDMESH_ASSIGN_OR_RETURN(mailbox, MailboxFor(*sender, tag, arrived.epoch));
    }
    if (mailbox == nullptr) {
      CountDropped(tag.step(), arrived.epoch);
      return absl::OkStatus();
    }
    state_.counters.received_bytes += size_bytes;
  }
  return mailbox->Deliver(identity, tag,
                          {.message_bytes = size_bytes,
                           .content = std::move(arrived.message),
                           .signature = std::move(arrived.signature),
                           .is_lent = true});
}

void MessageIntake::DrainShared(const std::string& identity, ShmChannel& channel) {
  ShmChannel::Arrived arrived;
  for (size_t notes = 0; notes < kRingSlots; ++notes) {
    const absl::StatusOr<bool> came = channel.TryReceive(0, &arrived);
    absl::Status status = came.status();
    if (status.ok() && *came) status = TakeShared(identity, &channel, std::move(arrived));
    if (!status.ok()) Refuse(identity, &channel, status);
    if (!status.ok() || !*came) return;
  }
}

void MessageIntake::Refuse(const std::string& identity, const ShmChannel* channel,
                           const absl::Status& why) {
  std::shared_ptr<PeerLink> link;
  {
    absl::MutexLock lock(&state_.mutex);
    const Peer* const peer = state_.peers.Find(identity);
    if (peer == nullptr || peer->channel.get() != channel) return;
    link = peer->link;
    CountRefused(why);
  }
  LogWarning("shared memory refused",
             {{"identity", links_.self.identity}, {"peer", identity}, {"error", why}});
  if (link != nullptr) link->Close(why);
}

void MessageIntake::CountRefused(const absl::Status& why) {
  if (absl::IsDataLoss(why)) {
    ++state_.counters.corrupt_frames;
  } else if (absl::IsFailedPrecondition(why) || absl::IsUnavailable(why) ||
             absl::IsPermissionDenied(why)) {
    ++state_.counters.refused_hellos;
  } else {
    ++state_.counters.malformed_frames;
  }
}

void MessageIntake::Demand(const std::string& worker, const Tag& tag, int64_t left_bytes) {
  const std::shared_ptr<PeerLink> link = LinkTo(worker);
  if (link != nullptr) link->Demand(FrameTagOf(tag), left_bytes);
}

PeerLinks::Counters MessageIntake::counters() const {
  absl::MutexLock lock(&state_.mutex);
  PeerLinks::Counters counters = state_.counters;
  counters.shared_bytes = shared_bytes_.load(std::memory_order_relaxed);
  counters.sent_bytes = counters.shared_bytes + streamed_bytes_.load(std::memory_order_relaxed);
  counters.received_bytes += received_bytes_.load(std::memory_order_relaxed);
  counters.held_bytes = mailbox_.held_bytes();
  counters.credit_waits = credit_state_.waits.load(std::memory_order_relaxed);
  return counters;
}

void MessageIntake::Grant(const std::string& worker, const Tag& tag, int64_t size_bytes) {
  const std::shared_ptr<PeerLink> link = LinkTo(worker);
  if (link == nullptr) return;
  // A sender that has no credit left under a tag has tag_limit_bytes in transit. This worker
  // returns credit in lots of a quarter of this limit. The first lot therefore returns long before
  // the receiver has taken all bytes in transit.
  link->Grant(FrameTagOf(tag), size_bytes, std::max<int64_t>(1, links_.tag_limit_bytes / 4));
}

std::shared_ptr<PeerLink> MessageIntake::LinkTo(const std::string& worker) const {
  absl::MutexLock lock(&state_.mutex);
  return state_.peers.LinkTo(worker);
}

absl::StatusOr<std::shared_ptr<Mailbox>> MessageIntake::MailboxFor(const Peer& sender,
                                                                   const Tag& tag, int64_t epoch) {
  if (tag.step() == kProbeStep) return sender.probe.lock();
  if (state_.steps.IsOver(tag.step(), epoch)) return nullptr;
  SHARDMESH_RETURN_IF_ERROR(state_.steps.Hold(tag.step()));
  // The pointer owns nothing: this MessageIntake owns the mailbox and outlives the pointer.
  return std::shared_ptr<Mailbox>(std::shared_ptr<void>(), &mailbox_);
}

void MessageIntake::CountDropped(int64_t sequence, int64_t epoch) {
  ++(state_.steps.IsStale(sequence, epoch) ? state_.counters.stale_frames
                                           : state_.counters.dropped_frames);
}

}  // namespace shardmesh::worker
