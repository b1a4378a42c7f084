// Sends a message through shared memory if a channel to the peer takes the message, otherwise over
// the stream.
#include "worker/exchange/step_link.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "rpc/stream/frame.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/exchange/peer_link.h"
#include "worker/shm/shm_channel.h"

namespace shardmesh::worker {
namespace {

// Returns the FNV-1a hash of the text, or 1 if that hash is 0.
uint64_t HashOf(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash == 0 ? 1 : hash;
}

// Returns the number of ranks that share memory, including this one.
int64_t SharingRanks(const std::vector<PeerWay>& ways) {
  return std::count_if(ways.begin(), ways.end(),
                       [](const PeerWay& way) { return way.channel != nullptr; }) +
         1;
}

// Releases the messages in shared memory that the peers have read.
void Reap(const std::vector<PeerWay>& ways) {
  for (const PeerWay& way : ways) {
    if (way.channel != nullptr) way.channel->Reap();
  }
}

}  // namespace

// Gives SharedReceive access to the step's link, for messages of one peer.
class StepLinkImpl::FromPeer final : public SharedReceive::Owner {
 public:
  FromPeer(StepLinkImpl* step, const PeerWay* way) : step_(*step), way_(*way) {}

  void CountReceived(int64_t size_bytes) override { intake().CountReceived(size_bytes); }
  absl::Status TakeOther(ShmChannel::Arrived arrived) override {
    if (arrived.signature_hash != 0 && arrived.signature.empty()) {
      absl::MutexLock lock(&step_.mutex_);
      arrived.signature = step_.signature_;
    }
    return intake().TakeShared(way_.identity, way_.channel.get(), std::move(arrived));
  }
  void Refuse(const absl::Status& why) override {
    intake().Refuse(way_.identity, way_.channel.get(), why);
  }
  bool has_exhausted_streams() const override {
    return intake().credit_state().exhausted_links.load(std::memory_order_seq_cst) > 0;
  }
  void Demand(const Tag& tag, int64_t message_bytes) override {
    intake().Demand(way_.identity, tag, message_bytes);
  }

 private:
  MessageIntake& intake() const { return *step_.parts_.intake; }

  StepLinkImpl& step_;
  const PeerWay& way_;
};

StepLinkImpl::StepLinkImpl(Parts parts, int64_t sequence, int64_t epoch, DeviceId rank,
                           std::vector<PeerWay> ways)
    : parts_(std::move(parts)),
      mailbox_(*parts_.mailbox),
      sequence_(sequence),
      epoch_(epoch),
      rank_(rank),
      ways_(std::move(ways)),
      told_(std::make_unique<Told[]>(ways_.size())),
      shared_receive_(&mailbox_, SharingRanks(ways_)) {
  Reap(ways_);  // releases messages of earlier steps
}

StepLinkImpl::~StepLinkImpl() {
  parts_.close(sequence_);
  Reap(ways_);
}

absl::Status StepLinkImpl::Begin(int64_t op, std::string signature) {
  if (signature.empty() || static_cast<int64_t>(signature.size()) > rpc::kMaxSignatureBytes) {
    return absl::InvalidArgumentError(StrCat("a signature of ", signature.size(), " bytes (op ", op,
                                             "); it has 1 to ", rpc::kMaxSignatureBytes));
  }
  SHARDMESH_RETURN_IF_ERROR(mailbox_.Begin(sequence_, op, rank_, signature));
  absl::MutexLock lock(&mutex_);
  signature_hash_.store(HashOf(signature), std::memory_order_relaxed);
  signature_ = std::move(signature);
  op_.store(op, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status StepLinkImpl::Send(DeviceId peer, const Tag& tag, OwnedBytes message) {
  if (message.bytes.empty() || peer == rank_ || peer < 0 ||
      peer >= static_cast<DeviceId>(ways_.size())) {
    return absl::InvalidArgumentError(StrCat("rank ", rank_, " cannot send ", message.bytes.size(),
                                             " bytes to rank ", peer, " (", tag.ToString(), ")"));
  }
  SHARDMESH_RETURN_IF_ERROR(CheckFailure());
  const auto size_bytes = static_cast<int64_t>(message.bytes.size());
  const auto index = static_cast<size_t>(peer);
  const PeerWay& way = ways_[index];
  Told& told = told_[index];
  std::string signature;
  uint64_t signature_hash = 0;
  if (tag.op() == op_.load(std::memory_order_acquire) &&
      told.op.load(std::memory_order_relaxed) != tag.op() &&
      told.op.exchange(tag.op(), std::memory_order_relaxed) != tag.op()) {
    absl::MutexLock lock(&mutex_);
    signature = signature_;
    signature_hash = signature_hash_.load(std::memory_order_relaxed);
  }
  bool is_shared = false;
  if (way.channel != nullptr) {
    if (!told.is_remembered.load(std::memory_order_relaxed)) {
      told.is_remembered.store(true, std::memory_order_relaxed);
      way.link->RememberStep(sequence_);
    }
    is_shared = way.channel->TrySend(tag, epoch_, signature, signature_hash, message);
  }
  if (!is_shared) {
    if (absl::Status sent =
            way.link->Send(FrameTagOf(tag), epoch_, std::move(message), std::move(signature));
        !sent.ok()) {
      return WithContext(sent, StrCat("rank ", peer, ", ", tag.ToString()));
    }
    // gRPC may have finished the write of an earlier frame. PollOnce runs the completion of that
    // write, which starts the next write.
    if (way.link->is_behind()) parts_.poller->PollOnce();
  }
  sent_bytes_.fetch_add(size_bytes, std::memory_order_relaxed);
  parts_.intake->CountSent(size_bytes, is_shared);
  return absl::OkStatus();
}

absl::StatusOr<OwnedBytes> StepLinkImpl::Receive(DeviceId peer, const Tag& tag,
                                                 int64_t message_bytes, absl::Time deadline) {
  if (peer >= 0 && peer < static_cast<DeviceId>(ways_.size())) {
    const PeerWay& way = ways_[static_cast<size_t>(peer)];
    if (way.channel != nullptr) {
      FromPeer owner(this, &way);
      return shared_receive_.Receive(
          *way.channel,
          {.peer = peer,
           .tag = tag,
           .epoch = epoch_,
           .message_bytes = message_bytes,
           .signature_hash = signature_hash_.load(std::memory_order_relaxed)},
          checked_changes_, owner, deadline);
    }
  }
  return mailbox_.Receive(peer, tag, message_bytes, deadline);
}

absl::StatusOr<std::optional<OwnedBytes>> StepLinkImpl::TryReceive(DeviceId peer, const Tag& tag,
                                                                   int64_t message_bytes) {
  if (peer >= 0 && peer < static_cast<DeviceId>(ways_.size())) {
    const PeerWay& way = ways_[static_cast<size_t>(peer)];
    if (way.channel != nullptr) {
      FromPeer owner(this, &way);
      return shared_receive_.TryReceive(
          *way.channel,
          {.peer = peer,
           .tag = tag,
           .epoch = epoch_,
           .message_bytes = message_bytes,
           .signature_hash = signature_hash_.load(std::memory_order_relaxed)},
          owner);
    }
  }
  parts_.poller->PollOnce();  // takes frames that have arrived
  return mailbox_.TryReceive(peer, tag, message_bytes);
}

void StepLinkImpl::Reclaim() {
  Reap(ways_);
  parts_.poller->PollOnce();  // completes writes of frames, which hold messages
}

absl::Status StepLinkImpl::Check() const {
  SHARDMESH_RETURN_IF_ERROR(CheckFailure());
  for (size_t rank = 0; rank < ways_.size(); ++rank) {
    const PeerWay& way = ways_[rank];
    if (way.channel == nullptr || !way.channel->peer_closed()) continue;
    return WorkerLost(StrCat("rank ", rank, " (", way.identity,
                             ") took back the memory that it shared, step ", sequence_),
                      way.identity);
  }
  return absl::OkStatus();
}

absl::Status StepLinkImpl::CheckFailure() const {
  const uint32_t changes = mailbox_.changes();
  if (changes == checked_changes_.load(std::memory_order_relaxed)) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(mailbox_.FailureOf(sequence_));
  checked_changes_.store(changes, std::memory_order_relaxed);
  return absl::OkStatus();
}

}  // namespace shardmesh::worker
