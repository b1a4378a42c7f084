// Drives the GetTiles streams of several holders by one completion queue.
#include "worker/fill/peer_reader.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "absl/time/clock.h"
#include "process/failpoint.h"
#include "process/steady_deadline.h"
#include "rpc/call.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/connect.h"
#include "rpc/contract.h"
#include "rpc/stream/message_bytes.h"
#include "rpc/stream/tile_receiver.h"
#include "shardmesh/v1/tile_service.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

constexpr const char* kGetTilesMethod = "/shardmesh.v1.TileService/GetTiles";
// How often a thread that waits for messages asks whether it should go on.
constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
// A stream that seems silent while others are busy gets this much time, and this many events of the
// others, to show that its messages only had to wait for this thread.
constexpr absl::Duration kBusyGrace = absl::Seconds(1);
constexpr int kBusyEvents = 64;

// Returns a hash (FNV-1a) that is the same in all processes. The names of a cluster's workers
// mostly differ in their last characters, and so do the lowest bits of their hashes.
uint64_t StableHash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char each : text) {
    hash = (hash ^ static_cast<unsigned char>(each)) * 0x100000001b3;
  }
  return hash;
}

// Whether an error says that the holder itself cannot be reached, and not that it lacks a tile.
bool IsOfHolder(const absl::Status& error) {
  return absl::IsUnavailable(error) || absl::IsDeadlineExceeded(error);
}

}  // namespace

// One GetTiles call. Its operations follow one another: start, write of the request, reads, end.
class PeerReader::Stream {
 public:
  // `indexes`: the regions of the request, in order. `crc32c`: gets the checksum of each region
  // that has come whole, by its index.
  Stream(const std::shared_ptr<grpc::Channel>& channel, absl::Span<const WantedRegion> regions,
         std::vector<size_t> indexes, const PeerReader::Sink& sink, absl::Span<uint32_t> crc32c,
         absl::Duration idle_limit, grpc::CompletionQueue* queue)
      : indexes_(std::move(indexes)),
        idle_limit_(idle_limit),
        idle_(SteadyDeadline::After(idle_limit)),
        sink_([this, regions, crc32c, &sink](size_t part, int64_t offset,
                                             absl::Span<const char> bytes) {
          const size_t index = indexes_[part];
          const absl::Status taken = sink(index, offset, bytes);
          if (!taken.ok()) {
            is_sink_error_ = true;
            return taken;
          }
          received_bytes_ += static_cast<int64_t>(bytes.size());
          if (offset + static_cast<int64_t>(bytes.size()) == regions[index].size_bytes) {
            done_ = part + 1;
            crc32c[index] = receiver_.crc32c();
          }
          return absl::OkStatus();
        }),
        receiver_(MakeParts(regions), sink_) {
    v1::GetTilesRequest request;
    for (const size_t index : indexes_) {
      v1::TileSelector& selector = *request.add_tiles();
      selector.set_array_id(regions[index].array_id);
      rpc::Encode(regions[index].region, selector.mutable_tile());
      selector.set_token(std::string(regions[index].token));
    }
    request_ = rpc::SerializeMessage(request);
    stream_ = grpc::GenericStub(channel).PrepareCall(&context_, kGetTilesMethod, queue);
    stream_->StartCall(this);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Handles the end of the operation in progress, and starts the next one. Returns false when the
  // call has ended.
  bool Proceed(bool ok) {
    idle_ = SteadyDeadline::After(idle_limit_);
    grace_.reset();
    switch (state_) {
      case State::kStarting:
        if (!ok) return End();
        state_ = State::kWriting;
        stream_->WriteLast(request_, grpc::WriteOptions(), this);
        return true;
      case State::kWriting:
        if (!ok) return End();
        state_ = State::kReading;
        stream_->Read(&next_, this);
        return true;
      case State::kReading: {
        if (!ok) return End();
        grpc::ByteBuffer message;
        message.Swap(&next_);
        // The next message may come while this one is parsed.
        stream_->Read(&next_, this);
        if (error_.ok()) {
          error_ = receiver_.Receive(&message);
          if (!error_.ok()) context_.TryCancel();
        }
        return true;
      }
      case State::kEnding:
        break;
    }
    if (error_.ok()) {
      error_ = status_.ok() ? receiver_.Close() : rpc::OutcomeOf(status_);
    }
    return false;
  }

  void Cancel() { context_.TryCancel(); }
  // Cancels the call if nothing has come for the idle limit. `is_busy`: this thread handles events
  // of other streams, so those of this one may have to wait. Call it after each of them.
  void CancelIfIdle(bool is_busy) {
    if (!idle_.is_over() || !error_.ok()) return;
    if (is_busy) {
      if (!grace_.has_value()) {
        grace_ = SteadyDeadline::After(kBusyGrace);
        events_left_ = kBusyEvents;
      }
      if (--events_left_ > 0 || !grace_->is_over()) return;
    }
    error_ = WithReason(absl::DeadlineExceededError(
                            StrCat("it has sent nothing for ", absl::FormatDuration(idle_limit_))),
                        Reason::kDeadline, {{fact::kLimit, absl::ToDoubleSeconds(idle_limit_)}});
    context_.TryCancel();
  }

  // After the end of the call: its error, and whether the sink has refused the bytes.
  const absl::Status& error() const { return error_; }
  bool is_sink_error() const { return is_sink_error_; }
  // The regions that have not come whole.
  absl::Span<const size_t> missing() const { return absl::MakeSpan(indexes_).subspan(done_); }
  int64_t received_bytes() const { return received_bytes_; }

 private:
  enum class State { kStarting, kWriting, kReading, kEnding };

  absl::Span<const rpc::RequestedPart> MakeParts(absl::Span<const WantedRegion> regions) {
    parts_.reserve(indexes_.size());
    for (const size_t index : indexes_) {
      parts_.push_back({.array_id = regions[index].array_id,
                        .tile = regions[index].region,
                        .size_bytes = regions[index].size_bytes});
    }
    return parts_;
  }
  bool End() {
    state_ = State::kEnding;
    stream_->Finish(&status_, this);
    return true;
  }

  const std::vector<size_t> indexes_;
  const absl::Duration idle_limit_;
  SteadyDeadline idle_;
  std::optional<SteadyDeadline> grace_;  // set: it seems silent while others are busy
  int events_left_ = 0;                  // of the others, before it counts as silent
  std::vector<rpc::RequestedPart> parts_;
  const rpc::PartSink sink_;
  rpc::TileReceiver receiver_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  State state_ = State::kStarting;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer next_;
  grpc::Status status_;
  absl::Status error_;
  bool is_sink_error_ = false;
  size_t done_ = 0;
  int64_t received_bytes_ = 0;
};

PeerReader::PeerReader(Options options)
    : options_(std::move(options)), max_streams_(options_.max_streams) {}
PeerReader::~PeerReader() = default;

absl::StatusOr<std::shared_ptr<grpc::Channel>> PeerReader::Connect(const FillSource& holder,
                                                                   const KeepGoing& keep_going) {
  const rpc::ChannelOptions options{.credentials = options_.credentials,
                                    .peer = rpc::ExpectedPeer::Worker(holder.identity),
                                    .max_message_bytes = rpc::kMaxDataMessageBytes};
  const rpc::ConnectOptions wait{.is_cancelled = [&] { return !keep_going().ok(); }};
  absl::Status failure = absl::UnavailableError("it has no address");
  for (const std::string& address : holder.endpoints) {
    SHARDMESH_RETURN_IF_ERROR(keep_going());
    // The port of a worker that ended may be another worker's, so the identity counts too.
    const std::string key = StrCat(holder.identity, " ", address);
    const auto kept = channels_.find(key);
    std::shared_ptr<grpc::Channel> channel;
    if (kept != channels_.end()) {
      channel = kept->second;
    } else {
      auto created = rpc::CreateChannel(address, options);
      if (!created.ok()) {
        failure = std::move(created).status();
        continue;
      }
      channel = *std::move(created);
    }
    failure = rpc::WaitForConnected(*channel, address, wait, options);
    if (failure.ok()) {
      if (kept == channels_.end()) {
        if (channels_.size() >= kMaxConnections) channels_.clear();
        channels_[key] = channel;
      }
      return channel;
    }
    if (kept != channels_.end()) channels_.erase(kept);
  }
  return failure;
}

// The streams that are in progress at one time.
class PeerReader::Round {
 public:
  Round(PeerReader* reader, absl::Span<const WantedRegion> regions, const Sink& sink,
        const KeepGoing& keep_going)
      : reader_(reader), regions_(regions), sink_(sink), keep_going_(keep_going) {}

  ~Round() {
    for (auto& [stream, holder] : streams_) stream->Cancel();
    void* tag = nullptr;
    bool ok = false;
    while (!streams_.empty() && queue_.Next(&tag, &ok)) Proceed(tag, ok);
    queue_.Shutdown();
    while (queue_.Next(&tag, &ok)) {
    }
  }

  // Reads all regions, each from the holder next in turn.
  Outcome Run() {
    tried_.assign(regions_.size(), 0);
    crc32c_.assign(regions_.size(), 0);
    for (size_t i = 0; i < regions_.size(); ++i) Assign(i);
    ChooseFirst();
    while (outcome_.status.ok() && (StartStreams(), !streams_.empty()) && outcome_.status.ok()) {
      if (absl::Status going = keep_going_(); !going.ok()) {
        outcome_.status = std::move(going);
        break;
      }
      void* tag = nullptr;
      bool ok = false;
      const auto next =
          queue_.AsyncNext(&tag, &ok, absl::ToChronoTime(absl::Now() + kPollInterval));
      if (next == grpc::CompletionQueue::GOT_EVENT) {
        Proceed(tag, ok);
      }
      // Without an event, no stream has anything to handle, so a silent one is silent by itself.
      const bool is_busy = next == grpc::CompletionQueue::GOT_EVENT;
      for (auto& [stream, holder] : streams_) stream->CancelIfIdle(is_busy);
    }
    return outcome_;
  }

  // Adds the holders that were lost or silent.
  void AddLost(std::set<std::string, std::less<>>* lost) const {
    for (const auto& [holder, error] : failed_) {
      if (IsOfHolder(error)) lost->insert(holder);
    }
  }

  void AddReceived(Outcome* outcome) {
    outcome->received_bytes = received_bytes_;
    // Streams in progress still write to it.
    if (streams_.empty()) outcome->crc32c = std::move(crc32c_);
  }

 private:
  // Returns the present holder of a region. Those that were lost before come after the others.
  const FillSource& HolderOf(size_t index) const {
    const std::vector<const FillSource*>& holders = regions_[index].holders;
    if (reader_->lost_.empty()) return *holders[tried_[index]];
    size_t place = 0;
    for (const bool was_lost : {false, true}) {
      for (const FillSource* const holder : holders) {
        if (reader_->lost_.contains(holder->identity) != was_lost) continue;
        if (place++ == tried_[index]) return *holder;
      }
    }
    return *holders.back();  // not reached: a present holder is one of them
  }

  void Assign(size_t index) { due_[HolderOf(index).identity].push_back(index); }

  // Lets the turns begin with a holder that depends on this worker.
  void ChooseFirst() {
    if (due_.empty()) return;
    const size_t first = StableHash(reader_->options_.identity) % due_.size();
    last_holder_ =
        std::next(due_.begin(), static_cast<ptrdiff_t>((first + due_.size() - 1) % due_.size()))
            ->first;
  }

  // Moves a region to its next holder that has not failed. Ends the round if there is none.
  void Reassign(size_t index, const absl::Status& error, const std::string& holder) {
    const WantedRegion& region = regions_[index];
    while (++tried_[index] < region.holders.size()) {
      if (!failed_.contains(HolderOf(index).identity)) return Assign(index);
    }
    if (!outcome_.status.ok()) return;
    outcome_.failed = index;
    absl::Status last = error;
    if (absl::IsUnavailable(error) && ReasonOf(error) == Reason::kUnspecified) {
      last = WithReason(error, Reason::kWorkerLost, {{fact::kIdentity, holder}});
    } else if (ReasonOf(error) == Reason::kDeadline) {
      last = WithFacts(error, {{fact::kIdentity, holder}});
    }
    const std::string of_many = region.holders.size() > 1
                                    ? StrCat(", the last of ", region.holders.size(), " holders")
                                    : "";
    outcome_.status =
        WithContext(last, StrCat("cannot read ", region.region.ToString(), " of array ",
                                 region.array_id, " from worker \"", holder, "\"", of_many));
  }

  void Fail(const std::string& holder, const absl::Status& error,
            absl::Span<const size_t> missing) {
    failed_.insert({holder, error});
    for (const size_t index : missing) Reassign(index, error, holder);
  }

  using Due = std::map<std::string, std::vector<size_t>>;

  // Returns the holder whose turn it is, of those that have regions to send and no stream.
  Due::iterator NextDue() {
    const auto is_free = [this](const auto& due) { return !busy_.contains(due.first); };
    const auto after = due_.upper_bound(last_holder_);
    const auto next = std::find_if(after, due_.end(), is_free);
    if (next != due_.end()) return next;
    const auto first = std::find_if(due_.begin(), after, is_free);
    return first == after ? due_.end() : first;
  }

  // Starts streams, as many as may be open, for holders that have regions to send and no stream.
  void StartStreams() {
    while (outcome_.status.ok() && streams_.size() < reader_->max_streams_) {
      const auto next = NextDue();
      if (next == due_.end()) return;
      const std::string holder = next->first;
      last_holder_ = holder;
      std::vector<size_t> indexes = std::move(next->second);
      due_.erase(next);
      if (const auto failed = failed_.find(holder); failed != failed_.end()) {
        const absl::Status error = failed->second;
        for (const size_t index : indexes) Reassign(index, error, holder);
        continue;
      }
      if (indexes.size() > static_cast<size_t>(rpc::kMaxTilesPerGet)) {
        std::vector<size_t>& later = due_[holder];
        later.assign(indexes.begin() + rpc::kMaxTilesPerGet, indexes.end());
        indexes.resize(static_cast<size_t>(rpc::kMaxTilesPerGet));
      }
      const FillSource& source = HolderOf(indexes[0]);
      auto channel = Connect(source);
      if (!channel.ok()) {
        if (absl::Status going = keep_going_(); !going.ok()) {
          outcome_.status = std::move(going);
          return;
        }
        Fail(holder, channel.status(), indexes);
        continue;
      }
      busy_.insert({holder, true});
      auto stream =
          std::make_unique<Stream>(*channel, regions_, std::move(indexes), sink_,
                                   absl::MakeSpan(crc32c_), reader_->options_.idle_limit, &queue_);
      streams_.emplace(std::move(stream), holder);
    }
  }

  absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const FillSource& source) {
    SHARDMESH_FAILPOINT("fill.connect");
    return reader_->Connect(source, keep_going_);
  }

  void Proceed(void* tag, bool ok) {
    auto* const stream = static_cast<Stream*>(tag);
    if (stream->Proceed(ok)) return;
    const auto found = std::find_if(streams_.begin(), streams_.end(), [stream](const auto& each) {
      return each.first.get() == stream;
    });
    received_bytes_ += stream->received_bytes();
    const std::string holder = found->second;
    busy_.erase(holder);
    if (stream->is_sink_error()) {
      if (outcome_.status.ok()) {
        outcome_.failed = stream->missing().empty() ? 0 : stream->missing()[0];
        outcome_.status = stream->error();
      }
    } else if (!stream->error().ok()) {
      Fail(holder, stream->error(), stream->missing());
    }
    streams_.erase(found);
  }

  PeerReader* const reader_;
  const absl::Span<const WantedRegion> regions_;
  const Sink& sink_;
  const KeepGoing& keep_going_;
  grpc::CompletionQueue queue_;
  Outcome outcome_;
  int64_t received_bytes_ = 0;
  std::vector<size_t> tried_;  // for each region, the index of its present holder
  std::vector<uint32_t> crc32c_;
  Due due_;                                     // regions without a stream, by holder
  std::string last_holder_;                     // the last one that had its turn
  std::map<std::string, absl::Status> failed_;  // holders that failed in this call
  std::map<std::string, bool> busy_;            // holders that have a stream
  std::map<std::unique_ptr<Stream>, std::string> streams_;
};

PeerReader::Outcome PeerReader::Read(absl::Span<const WantedRegion> regions, const Sink& sink,
                                     const KeepGoing& keep_going) {
  Outcome outcome;
  {
    Round round(this, regions, sink, keep_going);
    outcome = round.Run();
    round.AddReceived(&outcome);
    round.AddLost(&lost_);
  }
  return outcome;
}

}  // namespace shardmesh::worker
