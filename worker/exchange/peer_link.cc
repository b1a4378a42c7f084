// PeerLink: checks incoming frames and passes them to the owner. Chooses the next outgoing frame by
// urgency and credit.
#include "worker/exchange/peer_link.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "process/failpoint.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

absl::Status Refuse(std::string_view message) {
  return WithReason(absl::InvalidArgumentError(ToAbsl(message)), Reason::kBadField);
}

}  // namespace

struct PeerLink::Charge {
  Charge(std::weak_ptr<PeerLink> charged_link, int64_t charged_bytes)
      : link(std::move(charged_link)), cost_bytes(charged_bytes) {}
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  ~Charge() {
    if (const std::shared_ptr<PeerLink> open = link.lock(); open != nullptr) {
      open->Return(cost_bytes);
    }
  }

  const std::weak_ptr<PeerLink> link;
  const int64_t cost_bytes;
};

PeerLink::PeerLink(Owner* owner, const Clock* clock, std::optional<rpc::FrameHello> greeting)
    : owner_(owner), clock_(clock), greeting_(std::move(greeting)), heard_(clock->Now()) {
  if (greeting_.has_value()) peer_ = greeting_->peer_identity;
}

void PeerLink::Attach(std::shared_ptr<ExchangeStream> stream) {
  absl::MutexLock lock(&mutex_);
  stream_ = std::move(stream);
}

void PeerLink::KeepReservation(MemoryBudget::Reservation reservation) {
  absl::MutexLock lock(&mutex_);
  reservation_ = std::move(reservation);
}

std::string PeerLink::peer() const {
  absl::MutexLock lock(&mutex_);
  return peer_;
}

bool PeerLink::is_up() const {
  absl::MutexLock lock(&mutex_);
  return state_ == State::kUp;
}

absl::Status PeerLink::CheckPeer(const rpc::Credentials& own, const std::string& identity) const {
  std::shared_ptr<ExchangeStream> stream;
  {
    absl::MutexLock lock(&mutex_);
    stream = stream_;
  }
  return stream == nullptr ? absl::UnavailableError("the stream is closed")
                           : stream->CheckPeer(own, identity);
}

bool PeerLink::is_behind() const {
  absl::MutexLock lock(&mutex_);
  return !can_write_ && !(control_.empty() && urgent_.empty() && short_.empty() && long_.empty());
}

std::vector<int64_t> PeerLink::recent_steps() const {
  absl::MutexLock lock(&mutex_);
  return {recent_steps_.begin(), recent_steps_.end()};
}

// --- Outgoing.

absl::Status PeerLink::Send(const rpc::FrameTag& tag, int64_t epoch, OwnedBytes message,
                            std::string signature) {
  SHARDMESH_FAILPOINT("exchange.send");
  {
    absl::MutexLock lock(&mutex_);
    if (state_ != State::kUp) {
      return WithReason(absl::UnavailableError(StrCat("there is no stream to ", peer_)),
                        Reason::kWorkerLost, {{fact::kIdentity, peer_}});
    }
    Outgoing outgoing{.tag = tag,
                      .epoch = epoch,
                      .message = std::move(message),
                      .signature = std::move(signature),
                      .credit_bytes = initial_credit_bytes_};
    const auto [it, is_new] = outgoing_.try_emplace(KeyOf(tag), std::move(outgoing));
    if (!is_new) {
      return absl::InvalidArgumentError(StrCat("a message to ", peer_, " is under way (step ",
                                               tag.sequence, ", op ", tag.op, ", round ", tag.round,
                                               "); each tag is for one message"));
    }
    QueueOf(it->second).push_back(it->first);
    if (const auto demand = early_demands_.find(it->first); demand != early_demands_.end()) {
      it->second.urgent_bytes = demand->second;
      urgent_.push_back(it->first);
      early_demands_.erase(demand);
    }
    RememberStepLocked(tag.sequence);
  }
  WriteNext();
  return absl::OkStatus();
}

void PeerLink::RememberStep(int64_t sequence) {
  absl::MutexLock lock(&mutex_);
  RememberStepLocked(sequence);
}

void PeerLink::RememberStepLocked(int64_t sequence) {
  recent_steps_.insert(sequence);
  if (recent_steps_.size() > kRememberedSteps) recent_steps_.erase(recent_steps_.begin());
}

void PeerLink::SendAbort(int64_t sequence, const rpc::FrameAbort& abort) {
  {
    absl::MutexLock lock(&mutex_);
    DropStepLocked(sequence);
    if (state_ != State::kUp) return;
    Queue({.kind = rpc::FrameKind::kAbort, .tag = {.sequence = sequence}, .abort = abort});
  }
  WriteNext();
}

void PeerLink::Grant(const rpc::FrameTag& tag, int64_t size_bytes, int64_t lot_bytes) {
  {
    absl::MutexLock lock(&mutex_);
    if (state_ != State::kUp) return;
    int64_t& owed = owed_credit_[KeyOf(tag)];
    owed += size_bytes;
    if (owed < lot_bytes) return;
    Queue({.kind = rpc::FrameKind::kCredit, .tag = tag, .credit_bytes = owed});
    owed_credit_.erase(KeyOf(tag));
  }
  WriteNext();
}

void PeerLink::Demand(const rpc::FrameTag& tag, int64_t left_bytes) {
  {
    absl::MutexLock lock(&mutex_);
    if (state_ != State::kUp || allowed_bytes_ > 0) return;
    // allowed_bytes_ <= 0: the peer has used all credit of the stream, and the frames that cost
    // this credit have arrived. The awaited bytes were not in these frames, so the peer has not
    // sent them.
    int64_t& demanded = demanded_[KeyOf(tag)];
    if (demanded >= std::min(left_bytes, kUrgentBytes / 2)) return;
    const int64_t size_bytes = kUrgentBytes - demanded;
    demanded += size_bytes;
    Queue({.kind = rpc::FrameKind::kCredit,
           .tag = tag,
           .credit_bytes = size_bytes,
           .is_urgent = true});
  }
  WriteNext();
}

void PeerLink::Return(int64_t cost_bytes) {
  const int64_t lot_bytes = lot_bytes_.load(std::memory_order_relaxed);
  if (freed_bytes_.fetch_add(cost_bytes, std::memory_order_relaxed) + cost_bytes < lot_bytes) {
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    const int64_t freed_bytes = freed_bytes_.exchange(0, std::memory_order_relaxed);
    if (state_ != State::kUp || freed_bytes == 0) return;
    SetAllowedLocked(allowed_bytes_ + freed_bytes);
    Queue({.kind = rpc::FrameKind::kCredit, .link_credit_bytes = freed_bytes});
  }
  WriteNext();
}

void PeerLink::SetAllowedLocked(int64_t allowed_bytes) {
  const int change = (allowed_bytes <= 0 ? 1 : 0) - (allowed_bytes_ <= 0 ? 1 : 0);
  allowed_bytes_ = allowed_bytes;
  if (change != 0)
    owner_->credit_state().exhausted_links.fetch_add(change, std::memory_order_seq_cst);
}

void PeerLink::DropStep(int64_t sequence) {
  absl::MutexLock lock(&mutex_);
  DropStepLocked(sequence);
}

void PeerLink::DropStepLocked(int64_t sequence) {
  const TagKey begin{sequence, 0, 0};
  const TagKey end{sequence + 1, 0, 0};
  outgoing_.erase(outgoing_.lower_bound(begin), outgoing_.lower_bound(end));
  early_demands_.erase(early_demands_.lower_bound(begin), early_demands_.lower_bound(end));
  EndNotesLocked(sequence);
}

void PeerLink::EndStep(int64_t sequence) {
  absl::MutexLock lock(&mutex_);
  EndNotesLocked(sequence);
}

void PeerLink::EndNotesLocked(int64_t sequence) {
  const TagKey begin{sequence, 0, 0};
  const TagKey end{sequence + 1, 0, 0};
  owed_credit_.erase(owed_credit_.lower_bound(begin), owed_credit_.lower_bound(end));
  const auto first = demanded_.lower_bound(begin);
  const auto last = demanded_.lower_bound(end);
  for (auto demand = first; demand != last; ++demand) {
    if (demand->second > 0) ended_demands_[demand->first] = demand->second;
  }
  demanded_.erase(first, last);
  while (ended_demands_.size() > kMaxEndedDemands) ended_demands_.erase(ended_demands_.begin());
}

int64_t* PeerLink::UrgentBytesLocked(const TagKey& key, int64_t payload_bytes) {
  for (auto* demands : {&demanded_, &ended_demands_}) {
    const auto found = demands->find(key);
    if (found != demands->end() && payload_bytes <= found->second) return &found->second;
  }
  return nullptr;
}

size_t PeerLink::notes() const {
  absl::MutexLock lock(&mutex_);
  return owed_credit_.size() + demanded_.size() + urgent_.size();
}

size_t PeerLink::ended_notes() const {
  absl::MutexLock lock(&mutex_);
  return ended_demands_.size();
}

void PeerLink::Tick(absl::Duration ping_interval, absl::Duration silence_limit) {
  std::shared_ptr<ExchangeStream> silent;
  absl::Duration silence;
  {
    absl::MutexLock lock(&mutex_);
    if (state_ == State::kClosed) return;
    const absl::Time now = clock_->Now();
    silence = now - heard_;
    if (silence >= silence_limit) {
      silent = stream_;
    } else if (state_ == State::kUp && silence >= ping_interval && now - pinged_ >= ping_interval) {
      pinged_ = now;
      Queue({.kind = rpc::FrameKind::kPing, .ping = ++pings_});
    }
  }
  if (silent != nullptr) {
    silent->Close(
        WithReason(absl::UnavailableError(StrCat("nothing was heard for ", FormatRounded(silence))),
                   Reason::kWorkerLost, {{fact::kIdentity, peer_}}));
    return;
  }
  WriteNext();
}

void PeerLink::Close(const absl::Status& status) {
  std::shared_ptr<ExchangeStream> stream;
  {
    absl::MutexLock lock(&mutex_);
    stream = stream_;
  }
  if (stream != nullptr) stream->Close(status);
}

void PeerLink::Queue(rpc::FrameHeader header) { control_.push_back(std::move(header)); }

std::deque<PeerLink::TagKey>& PeerLink::QueueOf(const Outgoing& outgoing) {
  const auto size_bytes = static_cast<int64_t>(outgoing.message.bytes.size());
  return size_bytes <= kShortMessageBytes ? short_ : long_;
}

std::optional<PeerLink::NextFrame> PeerLink::Next() {
  if (!can_write_) return std::nullopt;
  if (!control_.empty()) {
    NextFrame next{.header = std::move(control_.front())};
    control_.pop_front();
    can_write_ = false;
    return next;
  }
  while (!urgent_.empty()) {
    const TagKey key = urgent_.front();
    urgent_.pop_front();
    const auto found = outgoing_.find(key);
    if (found == outgoing_.end()) continue;  // the message was sent, or its step was aborted
    Outgoing& outgoing = found->second;
    const auto message_bytes = static_cast<int64_t>(outgoing.message.bytes.size());
    const int64_t size_bytes = std::min({message_bytes - outgoing.sent_bytes, outgoing.credit_bytes,
                                         outgoing.urgent_bytes, kDataFrameBytes});
    if (size_bytes == 0) continue;  // TakeCreditLocked queues the tag again when credit comes
    NextFrame next = Cut(outgoing, size_bytes, /*is_urgent=*/true);
    if (outgoing.sent_bytes == message_bytes) {
      outgoing_.erase(found);
    } else if (outgoing.credit_bytes > 0 && outgoing.urgent_bytes > 0) {
      urgent_.push_back(key);
    }
    return next;
  }
  while (!short_.empty() || !long_.empty()) {
    std::deque<TagKey>& queue = short_.empty() ? long_ : short_;
    const auto found = outgoing_.find(queue.front());
    if (found == outgoing_.end() || found->second.credit_bytes == 0) {
      // The message was completely sent, its step was aborted, or its tag has no credit. In the
      // last case, TakeCreditLocked queues the tag again when credit comes.
      queue.pop_front();
      continue;
    }
    if (link_credit_bytes_ <= 0) {
      if (!std::exchange(waits_for_credit_, true)) {
        owner_->credit_state().waits.fetch_add(1, std::memory_order_relaxed);
      }
      return std::nullopt;  // wait for credit of the stream, or for a demand
    }
    queue.pop_front();
    Outgoing& outgoing = found->second;
    const auto message_bytes = static_cast<int64_t>(outgoing.message.bytes.size());
    NextFrame next =
        Cut(outgoing,
            std::min({message_bytes - outgoing.sent_bytes, outgoing.credit_bytes, kDataFrameBytes}),
            /*is_urgent=*/false);
    if (outgoing.sent_bytes == message_bytes) {
      outgoing_.erase(found);
    } else if (outgoing.credit_bytes > 0) {
      queue.push_back(found->first);
    }
    return next;
  }
  return std::nullopt;
}

PeerLink::NextFrame PeerLink::Cut(Outgoing& outgoing, int64_t size_bytes, bool is_urgent) {
  NextFrame next{
      .header = {.kind = rpc::FrameKind::kData,
                 .epoch = outgoing.epoch,
                 .tag = outgoing.tag,
                 .offset_bytes = outgoing.sent_bytes,
                 .message_bytes = static_cast<int64_t>(outgoing.message.bytes.size()),
                 .is_urgent = is_urgent,
                 .signature = std::exchange(outgoing.signature, {})},
      .payload = {outgoing.message.bytes.subspan(static_cast<size_t>(outgoing.sent_bytes),
                                                 static_cast<size_t>(size_bytes)),
                  outgoing.message.owner}};
  outgoing.sent_bytes += size_bytes;
  outgoing.credit_bytes -= size_bytes;
  if (is_urgent) {
    outgoing.urgent_bytes -= size_bytes;
  } else {
    link_credit_bytes_ -= CostOf(size_bytes, next.header.signature);
  }
  can_write_ = false;
  return next;
}

void PeerLink::WriteNext() {
  std::optional<NextFrame> next;
  std::shared_ptr<ExchangeStream> stream;
  {
    absl::MutexLock lock(&mutex_);
    if (stream_ == nullptr) return;
    next = Next();
    if (!next.has_value()) return;
    stream = stream_;
  }
  const absl::Span<const char> payload = next->payload.bytes;
  const absl::StatusOr<grpc::ByteBuffer> frame =
      rpc::WriteFrame(next->header, absl::MakeConstSpan(&payload, payload.empty() ? 0 : 1),
                      next->payload.owner, checksum_.load(std::memory_order_relaxed));
  if (!frame.ok()) {
    stream->Close(frame.status());
    return;
  }
  stream->Write(*frame);
}

void PeerLink::OnWritten() {
  {
    absl::MutexLock lock(&mutex_);
    can_write_ = true;
  }
  WriteNext();
}

// --- Incoming.

void PeerLink::OnOpen() {
  {
    absl::MutexLock lock(&mutex_);
    can_write_ = true;
    if (greeting_.has_value()) Queue({.kind = rpc::FrameKind::kHello, .hello = greeting_});
  }
  WriteNext();
}

void PeerLink::OnFrame(const grpc::ByteBuffer& bytes) {
  const absl::StatusOr<rpc::Frame> frame =
      rpc::ReadFrame(bytes, checksum_.load(std::memory_order_relaxed));
  const absl::Status status = frame.ok() ? Take(*frame) : frame.status();
  if (status.ok()) return;
  owner_->OnRefused(status);
  Close(status);
}

absl::Status PeerLink::Take(const rpc::Frame& frame) {
  SHARDMESH_FAILPOINT("exchange.take");
  State state;
  {
    absl::MutexLock lock(&mutex_);
    heard_ = clock_->Now();
    state = state_;
  }
  if (state == State::kGreeting) return TakeHello(frame.header);
  switch (frame.header.kind) {
    case rpc::FrameKind::kHello:
      return Refuse("a second hello");
    case rpc::FrameKind::kData:
      return TakeData(frame);
    case rpc::FrameKind::kAbort:
      owner_->OnAbort(*this, frame.header.tag.sequence, *frame.header.abort);
      return absl::OkStatus();
    case rpc::FrameKind::kCredit:
    case rpc::FrameKind::kPing:
      return TakeControl(frame.header);
  }
  return absl::OkStatus();
}

absl::Status PeerLink::TakeHello(const rpc::FrameHeader& header) {
  SHARDMESH_FAILPOINT("exchange.hello");
  if (header.kind != rpc::FrameKind::kHello) return Refuse("a frame before the hello");
  if (header.hello->initial_credit_bytes <= 0 || header.hello->link_credit_bytes <= 0) {
    return Refuse("a hello without initial credit");
  }
  SHARDMESH_ASSIGN_OR_RETURN(rpc::FrameHello answer, owner_->CheckHello(*this, *header.hello));
  {
    absl::MutexLock lock(&mutex_);
    peer_ = header.hello->identity;
    initial_credit_bytes_ = header.hello->initial_credit_bytes;
    link_credit_bytes_ = header.hello->link_credit_bytes;
    allowed_bytes_ =
        greeting_.has_value() ? greeting_->link_credit_bytes : answer.link_credit_bytes;
    lot_bytes_.store(std::max<int64_t>(1, allowed_bytes_ / 4), std::memory_order_relaxed);
    checksum_.store(owner_->ChecksumFor(*header.hello), std::memory_order_relaxed);
    state_ = State::kUp;
    if (!greeting_.has_value()) {
      Queue({.kind = rpc::FrameKind::kHello, .hello = std::move(answer)});
    }
  }
  owner_->OnUp(shared_from_this());
  WriteNext();
  return absl::OkStatus();
}

absl::Status PeerLink::TakeData(const rpc::Frame& frame) {
  const rpc::FrameHeader& header = frame.header;
  const int64_t payload_bytes = frame.payload_bytes();
  std::shared_ptr<const void> charge;
  bool is_exhausted = false;
  {
    absl::MutexLock lock(&mutex_);
    if (state_ != State::kUp) return absl::OkStatus();
    const TagKey key = KeyOf(header.tag);
    int64_t* const urgent_bytes =
        header.is_urgent ? UrgentBytesLocked(key, payload_bytes) : nullptr;
    if (header.is_urgent ? urgent_bytes == nullptr : allowed_bytes_ <= 0) {
      return WithReason(
          absl::ResourceExhaustedError(StrCat(
              header.is_urgent ? "an urgent frame of " : "a frame of ", payload_bytes,
              " bytes from ", peer_, " is beyond the credit ",
              header.is_urgent ? StrCat("of its message (step ", header.tag.sequence, ", op ",
                                        header.tag.op, ", round ", header.tag.round, ")")
                               : StrCat("of the stream: ", allowed_bytes_,
                                        " bytes are left of what it was given"))),
          Reason::kLimitExceeded, {{fact::kHave, payload_bytes}});
    }
    if (urgent_bytes != nullptr) *urgent_bytes -= payload_bytes;
    if (header.offset_bytes + payload_bytes == header.message_bytes) {
      // The peer has sent the whole message, so the peer needs no demand and no credit.
      demanded_.erase(key);
      ended_demands_.erase(key);
      owed_credit_.erase(key);
    }
    if (!header.is_urgent) {
      const int64_t cost_bytes = CostOf(payload_bytes, header.signature);
      SetAllowedLocked(allowed_bytes_ - cost_bytes);
      is_exhausted = allowed_bytes_ <= 0;
      charge = std::make_shared<const Charge>(weak_from_this(), cost_bytes);
    }
  }
  SHARDMESH_RETURN_IF_ERROR(owner_->OnData(*this, frame, charge));
  if (is_exhausted) owner_->OnExhausted(*this);
  return absl::OkStatus();
}

absl::Status PeerLink::TakeControl(const rpc::FrameHeader& header) {
  {
    absl::MutexLock lock(&mutex_);
    if (header.kind == rpc::FrameKind::kCredit) {
      SHARDMESH_RETURN_IF_ERROR(TakeCreditLocked(header));
    } else if (header.ping > 0) {
      if (control_.size() >= kMaxControlFrames) {
        return WithReason(
            absl::ResourceExhaustedError(StrCat(control_.size(), " control frames wait for ", peer_,
                                                "; it asks for more and does not read them")),
            Reason::kLimitExceeded,
            {{fact::kHave, control_.size()}, {fact::kLimit, kMaxControlFrames}});
      }
      Queue({.kind = rpc::FrameKind::kPing, .ping = -header.ping});
    }
  }
  WriteNext();
  return absl::OkStatus();
}

absl::Status PeerLink::TakeCreditLocked(const rpc::FrameHeader& header) {
  if (header.link_credit_bytes > 0) {
    // An honest peer never gives more credit than the limit in its hello. This check prevents an
    // overflow of the sum.
    if (header.link_credit_bytes > std::numeric_limits<int64_t>::max() / 2 ||
        link_credit_bytes_ > std::numeric_limits<int64_t>::max() / 2) {
      return Refuse("credit beyond all bounds");
    }
    link_credit_bytes_ += header.link_credit_bytes;
    waits_for_credit_ = false;
  }
  if (header.credit_bytes == 0) return absl::OkStatus();
  const TagKey key = KeyOf(header.tag);
  const auto found = outgoing_.find(key);
  if (header.is_urgent) {
    if (found != outgoing_.end()) {
      Outgoing& outgoing = found->second;
      const auto left_bytes =
          static_cast<int64_t>(outgoing.message.bytes.size()) - outgoing.sent_bytes;
      // If the message still has urgent bytes, its tag is in urgent_ already, or the next credit
      // for the tag puts it there.
      if (outgoing.urgent_bytes == 0) urgent_.push_back(key);
      outgoing.urgent_bytes =
          std::min(left_bytes, outgoing.urgent_bytes + std::min(header.credit_bytes, left_bytes));
    } else {
      // A demand for a message that this worker sent by another transport stays in early_demands_.
      // If there are too many demands, drop a demand of the lowest step.
      if (early_demands_.size() >= kMaxEarlyDemands) early_demands_.erase(early_demands_.begin());
      early_demands_[key] = std::min(header.credit_bytes, kUrgentBytes);
    }
    return absl::OkStatus();
  }
  // If no message with this tag is outgoing, the message was completely sent, or its step was
  // aborted. Ignore the credit.
  if (found == outgoing_.end()) return absl::OkStatus();
  Outgoing& outgoing = found->second;
  const auto left_bytes = static_cast<int64_t>(outgoing.message.bytes.size()) - outgoing.sent_bytes;
  if (outgoing.credit_bytes == 0) {
    QueueOf(outgoing).push_back(key);
    if (outgoing.urgent_bytes > 0) urgent_.push_back(key);
  }
  // Credit for more bytes than the unsent bytes counts as credit for the unsent bytes.
  outgoing.credit_bytes =
      std::min(left_bytes, outgoing.credit_bytes + std::min(header.credit_bytes, left_bytes));
  return absl::OkStatus();
}

void PeerLink::OnClosed(const absl::Status& status) {
  SHARDMESH_PASSES("exchange.closed");
  bool was_up = false;
  std::map<TagKey, Outgoing> dropped;
  std::shared_ptr<ExchangeStream> stream;
  {
    absl::MutexLock lock(&mutex_);
    was_up = state_ == State::kUp;
    state_ = State::kClosed;
    can_write_ = false;
    stream = std::move(stream_);
    dropped.swap(outgoing_);
    control_.clear();
    short_.clear();
    long_.clear();
    urgent_.clear();
    owed_credit_.clear();
    early_demands_.clear();
    demanded_.clear();
    ended_demands_.clear();
    if (was_up) SetAllowedLocked(1);  // a closed stream does not count as exhausted
    reservation_ = MemoryBudget::Reservation();
  }
  owner_->OnDown(shared_from_this(), was_up, status);
}

}  // namespace shardmesh::worker
