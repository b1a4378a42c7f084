// One server, one thread for the time, and a stream for each worker.
#include "tests/testing/hollow_workers.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/random/random.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "process/version.h"
#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "rpc/server_lifecycle.h"
#include "rpc/stream/outbox.h"
#include "shardmesh/internal/v1/attach_service.grpc.pb.h"
#include "shardmesh/v1/tile_service.grpc.pb.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::test {
namespace {

constexpr int64_t kMaxCount = 60'000;
constexpr int64_t kOutboxBytes = int64_t{16} << 20;
// Interval at which the timer thread checks for due actions.
constexpr absl::Duration kTick = absl::Milliseconds(20);

std::string NonceOf(int64_t index) { return absl::StrFormat("hollow-nonce-%06d", index); }

class Hollow;

// One attach of one worker. The stream's callbacks use the Hollow, which outlives it.
class Stream final
    : public grpc::ClientBidiReactor<internal::v1::AttachRequest, internal::v1::AttachResponse> {
 public:
  Stream(Hollow* hollow, int64_t index)
      : hollow_(hollow),
        index_(index),
        outbox_(kOutboxBytes, [this](const internal::v1::AttachRequest* m) { StartWrite(m); }) {}

  void Start(internal::v1::AttachService::Stub& stub, internal::v1::AttachRequest hello) {
    stub.async()->Attach(&context_, this);
    AddHold();  // for the outbox; its close releases the hold
    StartRead(&read_);
    StartCall();
    Send(std::move(hello));
  }
  void Send(internal::v1::AttachRequest request) {
    const auto size_bytes = static_cast<int64_t>(request.ByteSizeLong());
    outbox_
        .Push(std::make_shared<const internal::v1::AttachRequest>(std::move(request)), size_bytes)
        .IgnoreError();
  }
  void Cancel() {
    context_.TryCancel();
    ReadOn();
  }
  void StopReading() {
    absl::MutexLock lock(&mutex_);
    reads_ = false;
  }
  void ReadOn() {
    {
      absl::MutexLock lock(&mutex_);
      reads_ = true;
      if (!std::exchange(is_waiting_, false)) return;
    }
    StartRead(&read_);
  }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override { outbox_.OnWriteDone(ok); }
  void OnDone(const grpc::Status& status) override;

 private:
  Hollow* const hollow_;
  const int64_t index_;
  grpc::ClientContext context_;
  rpc::Outbox<internal::v1::AttachRequest> outbox_;
  internal::v1::AttachResponse read_;
  absl::Mutex mutex_;
  bool reads_ ABSL_GUARDED_BY(mutex_) = true;
  bool is_waiting_ ABSL_GUARDED_BY(mutex_) = false;  // no read is pending
};

class Hollow final : public HollowWorkers, public v1::TileService::CallbackService {
 public:
  explicit Hollow(const Options& options) : options_(options) {
    slots_.resize(static_cast<size_t>(options.count));
  }
  ~Hollow() override {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      for (Stream* stream : streams_) stream->Cancel();
      const auto all_ended = [this]()
                                 ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return streams_.empty(); };
      mutex_.Await(absl::Condition(&all_ended));
    }
    if (thread_.joinable()) thread_.join();
    if (server_ != nullptr) server_->Drain(absl::Now());
  }

  absl::Status Serve() {
    rpc::ServerOptions server;
    server.address = "0.0.0.0:0";
    server.insecure = true;
    SHARDMESH_ASSIGN_OR_RETURN(
        server_,
        rpc::ServerLifecycle::Start(server, {{v1::TileService::service_full_name(), this}}));
    for (Slot& slot : slots_) {
      SHARDMESH_ASSIGN_OR_RETURN(
          const std::shared_ptr<grpc::Channel> channel,
          rpc::CreateChannel(options_.coordinator, {.own_connection = true}));
      slot.stub = internal::v1::AttachService::NewStub(channel);
    }
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  // TileService: the called address identifies the worker.
  grpc::ServerUnaryReactor* Identify(grpc::CallbackServerContext* context,
                                     const v1::IdentifyRequest*,
                                     v1::IdentifyResponse* response) override {
    const grpc::string_ref authority = context->ExperimentalGetAuthority();
    const std::vector<std::string> parts = absl::StrSplit(
        absl::string_view(authority.data(), authority.size()), absl::ByAnyChar(".:"));
    int64_t high = 0;
    int64_t low = 0;
    auto* reactor = context->DefaultReactor();
    if (parts.size() != 5 || !absl::SimpleAtoi(parts[2], &high) ||
        !absl::SimpleAtoi(parts[3], &low) || high * 256 + low >= options_.count) {
      reactor->Finish(grpc::Status(grpc::StatusCode::NOT_FOUND, "no worker has this address"));
      return reactor;
    }
    const int64_t index = high * 256 + low;
    response->set_identity(IdentityOf(index));
    response->set_nonce(NonceOf(index));
    {
      absl::MutexLock lock(&mutex_);
      ++identifies_;
      response->set_incarnation(slots_[static_cast<size_t>(index)].incarnation);
      if (options_.identify_delay > absl::ZeroDuration() && !stopping_) {
        late_.push_back({absl::Now() + options_.identify_delay, reactor});
        return reactor;
      }
    }
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  std::string IdentityOf(int64_t index) const override {
    return absl::StrFormat("%s%06d", options_.identity_prefix, index);
  }

  uint64_t IncarnationOf(int64_t index) const override {
    absl::MutexLock lock(&mutex_);
    return slots_[static_cast<size_t>(index)].incarnation;
  }
  void Send(int64_t index, const internal::v1::AttachRequest& message) override {
    absl::MutexLock lock(&mutex_);
    const Slot& slot = slots_[static_cast<size_t>(index)];
    if (slot.stream != nullptr) slot.stream->Send(message);
  }

  Totals totals() const override {
    absl::MutexLock lock(&mutex_);
    return TotalsLocked();
  }
  bool Await(const std::function<bool(const Totals&)>& holds, absl::Duration timeout) override {
    const auto is_so = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return holds(TotalsLocked()); };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&is_so), timeout);
  }

  void AttachAgain(int64_t index) override {
    absl::MutexLock lock(&mutex_);
    Slot& slot = slots_[static_cast<size_t>(index)];
    slot.stream = nullptr;
    slot.pages_left = 0;
    slot.next_beat = absl::InfiniteFuture();
    SetEpoch(&slot, -1);
    slot.next_attach = absl::UnixEpoch();
  }
  void Leave(int64_t index) override {
    absl::MutexLock lock(&mutex_);
    Slot& slot = slots_[static_cast<size_t>(index)];
    slot.next_attach = absl::InfiniteFuture();
    slot.incarnation = 0;
    if (slot.stream != nullptr) slot.stream->Cancel();
  }
  void Return(int64_t index) override {
    absl::MutexLock lock(&mutex_);
    slots_[static_cast<size_t>(index)].next_attach = absl::InfinitePast();
  }
  void FallSilent(int64_t index) override {
    absl::MutexLock lock(&mutex_);
    slots_[static_cast<size_t>(index)].next_beat = absl::InfiniteFuture();
  }
  void StopReading(int64_t index) override {
    absl::MutexLock lock(&mutex_);
    const Slot& slot = slots_[static_cast<size_t>(index)];
    if (slot.stream != nullptr) slot.stream->StopReading();
  }
  void ReadOn(int64_t index) override {
    absl::MutexLock lock(&mutex_);
    const Slot& slot = slots_[static_cast<size_t>(index)];
    if (slot.stream != nullptr) slot.stream->ReadOn();
  }

  // From the streams.
  void Taken(Stream* stream, int64_t index, const internal::v1::AttachResponse& message) {
    if (options_.heard) options_.heard(index, message);
    std::deque<internal::v1::AttachRequest> answers;
    {
      absl::MutexLock lock(&mutex_);
      Slot& slot = slots_[static_cast<size_t>(index)];
      if (slot.stream != stream) return;  // another took its place
      if (message.has_welcome()) {
        const auto interval = rpc::Decode(message.welcome().heartbeat_interval());
        slot.interval = interval.ok() ? *interval : absl::Seconds(1);
        ++welcomes_;
        most_bringing_ = std::max(most_bringing_, ++bringing_);
        slot.pages_left = options_.inventory_pages;
        slot.next_page = absl::Now() + options_.page_interval;
        if (options_.page_interval == absl::ZeroDuration() && MaySendPages()) {
          while (slot.pages_left > 0) answers.push_back(NextPage(&slot));
        }
      } else if (message.has_drop_arrays()) {
        ++drops_;
      } else if (message.has_membership()) {
        ++pages_;
        bytes_ += static_cast<int64_t>(message.ByteSizeLong());
        if (message.membership().snapshot()) slot.is_in_snapshot = false;
        if (slot.epoch < 0) {
          const std::string own = IdentityOf(index);
          for (const internal::v1::LiveWorker& worker : message.membership().workers()) {
            slot.is_in_snapshot = slot.is_in_snapshot || worker.identity() == own;
          }
        }
        if (message.membership().last()) {
          if (slot.epoch < 0 && !slot.is_in_snapshot) ++stale_snapshots_;
          SetEpoch(&slot, message.membership().epoch());
          answers.emplace_back().mutable_peers()->set_epoch(message.membership().epoch());
        }
      }
    }
    for (internal::v1::AttachRequest& answer : answers) stream->Send(std::move(answer));
  }
  void Ended(Stream* stream, int64_t index, const grpc::Status& status) {
    absl::MutexLock lock(&mutex_);
    streams_.erase(stream);
    last_end_ = rpc::FromGrpc(status).ToString();
    Slot& slot = slots_[static_cast<size_t>(index)];
    if (slot.stream != stream) return;
    slot.stream = nullptr;
    if (std::exchange(slot.pages_left, 0) > 0) --bringing_;
    if (status.error_code() == grpc::StatusCode::CANCELLED && !stopping_) ++cancelled_;
    slot.next_beat = absl::InfiniteFuture();
    SetEpoch(&slot, -1);
    if (slot.next_attach != absl::InfiniteFuture() && slot.next_attach != absl::InfinitePast()) {
      slot.next_attach = absl::Now() + options_.attach_delay;
    }
  }

 private:
  struct Slot {
    std::unique_ptr<internal::v1::AttachService::Stub> stub;  // constant after Serve
    uint64_t incarnation = 0;                                 // 0: draw another
    Stream* stream = nullptr;                                 // deletes itself
    int64_t epoch = -1;                                       // of its membership; -1: no member
    absl::Duration interval = absl::Seconds(1);
    absl::Time next_beat = absl::InfiniteFuture();
    int64_t pages_left = 0;                         // of its inventory
    absl::Time next_page = {};                      // while pages are left
    bool is_in_snapshot = false;                    // it stands in its snapshot
    absl::Time next_attach = absl::InfinitePast();  // while there is no stream
  };

  Totals TotalsLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return {.members = members_,
            .lowest_epoch = epochs_.empty() ? 0 : epochs_.begin()->first,
            .membership_pages = pages_,
            .membership_bytes = bytes_,
            .attaches = attaches_,
            .identifies = identifies_,
            .drops = drops_,
            .stale_snapshots = stale_snapshots_,
            .welcomes = welcomes_,
            .inventories = inventories_,
            .most_bringing = most_bringing_,
            .cancelled = cancelled_,
            .last_end = last_end_};
  }
  bool MaySendPages() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return welcomes_ >= options_.pages_after_welcomes;
  }
  internal::v1::AttachRequest NextPage(Slot* slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    internal::v1::AttachRequest request;
    internal::v1::InventoryPage* const inventory = request.mutable_inventory();
    if (options_.page_bytes > 0) {
      // A field that no version knows.
      inventory->GetReflection()->MutableUnknownFields(inventory)->AddLengthDelimited(
          1'000, std::string(static_cast<size_t>(options_.page_bytes), 'x'));
    }
    const absl::Time now = absl::Now();
    slot->next_page = now + options_.page_interval;
    if (--slot->pages_left == 0) {
      --bringing_;
      ++inventories_;
      for (int64_t i = 0; i < options_.inventory_tiles; ++i) inventory->add_tiles();
      if (options_.add_to_inventory) {
        options_.add_to_inventory(slot - slots_.data(), inventory);
      }
      inventory->set_last(options_.ends_inventory);
      // Spread over the interval, as heartbeats of independently started processes are.
      slot->next_beat = now + slot->interval * absl::Uniform(random_, 0.1, 1.0);
    }
    return request;
  }
  void SetEpoch(Slot* slot, int64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (slot->epoch >= 0) {
      --members_;
      if (--epochs_[slot->epoch] == 0) epochs_.erase(slot->epoch);
    }
    slot->epoch = epoch;
    if (epoch >= 0) {
      ++members_;
      ++epochs_[epoch];
    }
  }

  internal::v1::AttachRequest HelloOf(int64_t index, const Slot& slot) const {
    internal::v1::AttachRequest request;
    internal::v1::Hello* hello = request.mutable_hello();
    hello->set_identity(IdentityOf(index));
    hello->set_incarnation(slot.incarnation);
    hello->mutable_build()->set_version(std::string(BuildVersion()));
    hello->mutable_protocol()->set_min(1);
    hello->mutable_protocol()->set_max(1);
    hello->add_endpoints()->set_address(
        StrCat("127.1.", index / 256, ".", index % 256, ":", server_->port()));
    hello->set_nonce(NonceOf(index));
    hello->mutable_capacity()->set_memory_bytes(int64_t{1} << 30);
    hello->mutable_capacity()->set_threads(1);
    hello->set_pid(1);
    hello->set_boot_id("hollow");
    for (const std::string& feature : options_.features) hello->add_features(feature);
    return request;
  }

  void Run() {
    for (;;) {
      {
        absl::MutexLock lock(&mutex_);
        const absl::Time now = absl::Now();
        while (!late_.empty() && (stopping_ || late_.front().first <= now)) {
          late_.front().second->Finish(grpc::Status::OK);
          late_.pop_front();
        }
        if (stopping_) return;
        for (size_t i = 0; i < slots_.size(); ++i) {
          Slot& slot = slots_[i];
          if (slot.stream != nullptr && slot.next_beat <= now) {
            slot.next_beat = now + slot.interval;
            internal::v1::AttachRequest beat;
            beat.mutable_heartbeat()->set_epoch(std::max<int64_t>(slot.epoch, 0));
            rpc::Encode(now, beat.mutable_heartbeat()->mutable_send_time());
            // Not gone yet: it is taken out of the slot before it is deleted, under this lock.
            slot.stream->Send(std::move(beat));
          } else if (slot.stream != nullptr && slot.pages_left > 0 && slot.next_page <= now &&
                     MaySendPages()) {
            slot.stream->Send(NextPage(&slot));
          } else if (slot.stream == nullptr && slot.next_attach <= now) {
            const auto index = static_cast<int64_t>(i);
            while (slot.incarnation == 0) slot.incarnation = absl::Uniform<uint64_t>(random_);
            slot.next_attach = absl::UnixEpoch();  // from here on after each end
            slot.stream = new Stream(this, index);
            streams_.insert(slot.stream);
            ++attaches_;
            slot.stream->Start(*slot.stub, HelloOf(index, slot));
          }
        }
      }
      absl::SleepFor(kTick);
    }
  }

  const Options options_;
  std::unique_ptr<rpc::ServerLifecycle> server_;

  mutable absl::Mutex mutex_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, int64_t> epochs_ ABSL_GUARDED_BY(mutex_);  // members by epoch
  int64_t members_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t pages_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t attaches_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t identifies_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t drops_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t stale_snapshots_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t welcomes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t inventories_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bringing_ ABSL_GUARDED_BY(mutex_) = 0;  // that have pages left
  int64_t most_bringing_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t cancelled_ ABSL_GUARDED_BY(mutex_) = 0;
  // Calls back that wait for their answer, and until when.
  std::deque<std::pair<absl::Time, grpc::ServerUnaryReactor*>> late_ ABSL_GUARDED_BY(mutex_);
  std::set<Stream*> streams_ ABSL_GUARDED_BY(mutex_);
  std::string last_end_ ABSL_GUARDED_BY(mutex_);
  absl::BitGen random_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

void Stream::OnReadDone(bool ok) {
  if (!ok) {
    outbox_.Close(rpc::Outbox<internal::v1::AttachRequest>::kDrop, [this] { RemoveHold(); });
    return;
  }
  hollow_->Taken(this, index_, read_);
  read_.Clear();
  {
    absl::MutexLock lock(&mutex_);
    is_waiting_ = !reads_;
    if (is_waiting_) return;
  }
  StartRead(&read_);
}

void Stream::OnDone(const grpc::Status& status) {
  hollow_->Ended(this, index_, status);
  delete this;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HollowWorkers>> HollowWorkers::Start(const Options& options) {
  if (options.count < 1 || options.count > kMaxCount) {
    return absl::InvalidArgumentError(
        StrCat("there can be 1 to ", kMaxCount, " hollow workers, not ", options.count));
  }
  auto hollow = std::make_unique<Hollow>(options);
  SHARDMESH_RETURN_IF_ERROR(hollow->Serve());
  return hollow;
}

}  // namespace shardmesh::test
