// Streams tiles over gRPC's generic stub. A tile's bytes are sent as slices of the tensor's memory,
// without a copy where possible.
#include "client/remote/worker_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/remote/wire_enums.h"
#include "process/steady_deadline.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/connect.h"
#include "rpc/stream/message_bytes.h"
#include "rpc/stream/tile_piece.h"
#include "rpc/stream/tile_receiver.h"
#include "rpc/stream/tile_sender.h"
#include "rpc/tls/dial.h"
#include "shardmesh/v1/tile_service.grpc.pb.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

constexpr const char* kPutTiles = "/shardmesh.v1.TileService/PutTiles";
constexpr const char* kGetTiles = "/shardmesh.v1.TileService/GetTiles";
// Time limit for a connection. The coordinator has reported the worker as present, so the client
// waits for a busy worker. The host of a worker that has ended refuses the connection at once.
constexpr absl::Duration kConnectTimeout = absl::Seconds(10);
// How long one of several addresses may take to accept a connection before the next address is
// tried. An address whose packets are lost never answers. If no other address answers, such an
// address is tried again with kConnectTimeout.
constexpr absl::Duration kDialTime = absl::Milliseconds(500);

// The memory of the slices of one stream: the tensors' own memory, and blocks for tiles that are
// not contiguous and had to be copied. Counts the slices that gRPC still holds, and reuses blocks.
// Thread-safe.
class PieceMemory final : public rpc::PieceLender,
                          public std::enable_shared_from_this<PieceMemory> {
 public:
  grpc::Slice Borrow(absl::Span<const char> bytes) override {
    return rpc::LendSlice(bytes, std::make_shared<Loan>(shared_from_this(), nullptr));
  }
  grpc::Slice Make(size_t size_bytes, absl::FunctionRef<void(char*)> fill) override {
    std::unique_ptr<char[]> block = TakeBlock();
    fill(block.get());
    const absl::Span<const char> bytes(block.get(), size_bytes);
    return rpc::LendSlice(bytes, std::make_shared<Loan>(shared_from_this(), std::move(block)));
  }

  // Whether gRPC has released every slice.
  bool is_returned() {
    absl::MutexLock lock(&mutex_);
    return AllReturned();
  }
  void AwaitReturned() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &PieceMemory::AllReturned));
  }

 private:
  // The owner of one slice; destroyed when gRPC releases the slice.
  class Loan {
   public:
    Loan(std::shared_ptr<PieceMemory> memory, std::unique_ptr<char[]> block)
        : memory_(std::move(memory)), block_(std::move(block)) {
      absl::MutexLock lock(&memory_->mutex_);
      ++memory_->lent_;
    }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    ~Loan() {
      absl::MutexLock lock(&memory_->mutex_);
      --memory_->lent_;
      if (block_ != nullptr) {
        memory_->idle_.push_back(std::move(block_));
      }
    }

   private:
    const std::shared_ptr<PieceMemory> memory_;
    std::unique_ptr<char[]> block_;
  };

  // Returns a block of kMaxTilePieceBytes, reused if possible.
  std::unique_ptr<char[]> TakeBlock() {
    absl::MutexLock lock(&mutex_);
    if (idle_.empty()) {
      return std::unique_ptr<char[]>(new char[rpc::kMaxTilePieceBytes]);
    }
    std::unique_ptr<char[]> block = std::move(idle_.back());
    idle_.pop_back();
    return block;
  }
  bool AllReturned() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lent_ == 0; }

  absl::Mutex mutex_;
  int64_t lent_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<char[]>> idle_ ABSL_GUARDED_BY(mutex_);
};

template <typename Message>
absl::Status Parse(grpc::ByteBuffer* bytes, Message* message) {
  if (!rpc::ParseMessage(bytes, message).ok()) {
    return absl::InternalError("the worker's answer is no message of its service");
  }
  return absl::OkStatus();
}

// One streaming call with byte buffers, driven by the thread that makes the call. The thread starts
// and awaits operations one after the other: at most one write or read is in progress.
class ByteStream {
 public:
  ByteStream(const std::shared_ptr<grpc::Channel>& channel, const char* method,
             Cancellation* cancellation, const rpc::CallOptions& options)
      : cancellation_(cancellation), registration_(cancellation, [this] { context_.TryCancel(); }) {
    rpc::Apply(options, &context_);
    stream_ = grpc::GenericStub(channel).PrepareCall(&context_, method, &queue_);
    stream_->StartCall(nullptr);
    is_open_ = Await();
  }
  ~ByteStream() {
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  // Waits until gRPC has accepted the previous message, and then starts to send `message`. Returns
  // false if the stream is broken.
  bool Write(const grpc::ByteBuffer& message, bool more_follows) {
    if (!Flush()) {
      return false;
    }
    stream_->Write(message,
                   more_follows ? grpc::WriteOptions().set_buffer_hint() : grpc::WriteOptions(),
                   nullptr);
    is_writing_ = true;
    return true;
  }
  // Waits until gRPC has accepted the previous message. Returns false if the stream is broken.
  bool Flush() {
    if (std::exchange(is_writing_, false)) {
      is_open_ = Await() && is_open_;
    }
    return is_open_;
  }
  bool WritesDone() {
    if (!Flush()) {
      return false;
    }
    stream_->WritesDone(nullptr);
    return Await();
  }

  void StartRead(grpc::ByteBuffer* message) { stream_->Read(message, nullptr); }
  bool FinishRead() { return Await(); }
  bool Read(grpc::ByteBuffer* message) {
    StartRead(message);
    return FinishRead();
  }

  void Cancel() { context_.TryCancel(); }
  // After Finish, polls the completion queue, which drives the connection, until `is_done` returns
  // true or `timeout` has passed.
  template <typename Done>
  void DriveUntil(const Done& is_done, absl::Duration timeout) {
    void* tag;
    bool ok;
    for (const auto limit = SteadyDeadline::After(timeout); !is_done() && !limit.is_over();) {
      queue_.AsyncNext(&tag, &ok, absl::ToChronoTime(absl::Now() + absl::Milliseconds(5)));
    }
  }
  // Waits for the call's final status and returns that status. Call it once, when no read is in
  // progress.
  absl::Status Finish() {
    Flush();
    grpc::Status status;
    stream_->Finish(&status, nullptr);
    Await();
    return cancellation_->is_cancelled() ? rpc::FromGrpc(status) : rpc::OutcomeOf(status);
  }

 private:
  bool Await() {
    void* tag;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  bool is_open_ = false;
  bool is_writing_ = false;
  Cancellation* const cancellation_;
  Cancellation::Registration registration_;  // declared last: uses the context
};

// How PutTiles hands tiles over.
struct HandoverRun {
  TileHandover* handover = nullptr;  // null: all tiles are streamed
  TileHandover::Limits limits = {};
  int64_t bytes = 0;  // handed over so far
};

// The error of a put that must hand over a tile whose copy took too long.
absl::Status TooSlow(const absl::Status& refusal) {
  return WithReason(absl::FailedPreconditionError(
                        StrCat("a tile cannot be handed over as memory: ", ToStd(refusal.message()),
                               "; stream it: `--handover auto` does so where reading is slow")),
                    Reason::kNotAvailable, {{fact::kField, "handover"}});
}

// Sends one tile: header, then pieces, if it is not handed over. Returns false if the stream is
// broken.
absl::StatusOr<bool> SendTile(const OutgoingTile& tile, PieceMemory& memory,
                              const std::function<void(int64_t)>& on_sent, ByteStream& stream,
                              HandoverRun& run) {
  SHARDMESH_ASSIGN_OR_RETURN(const TileBits bits,
                             TileBits::Create(tile.tensor.dtype(), tile.tensor.shape(), tile.tile));
  const int64_t size_bytes = bits.size_bytes();
  v1::PutTilesRequest opening;
  v1::TileHeader& header = *opening.mutable_header();
  header.set_token(std::string(tile.token));
  header.set_array_id(std::string(tile.array_id));
  rpc::Encode(tile.tile, header.mutable_tile());
  header.set_size_bytes(size_bytes);
  header.set_rank(tile.rank);
  if (run.handover != nullptr && IsToHandOver(tile, size_bytes)) {
    absl::StatusOr<std::optional<TileHandover::Handed>> handed =
        run.handover->HandOver(tile.tensor, tile.tile, bits, run.limits);
    // The stream's own status says why the put has ended.
    if (absl::IsCancelled(handed.status()) && run.limits.is_over()) return false;
    SHARDMESH_RETURN_IF_ERROR(handed.status());
    if (handed->has_value()) {
      header.mutable_sealed_memory()->set_id((*handed)->id);
      header.mutable_sealed_memory()->set_crc32c((*handed)->crc32c);
      run.bytes += size_bytes;
      // Sent at once, so that the worker checks this tile while the next one is copied.
      return stream.Write(rpc::SerializeMessage(opening), /*more_follows=*/false) && stream.Flush();
    }
    if (tile.handover == Handover::kOn && absl::IsDeadlineExceeded(run.handover->refusal())) {
      return TooSlow(run.handover->refusal());
    }
  }
  if (!stream.Write(rpc::SerializeMessage(opening), /*more_follows=*/true)) {
    return false;
  }
  const TensorView* const view = tile.tensor.view();
  const std::optional<TileRegion> region = bits.InBytes();
  rpc::TileSender sender =
      view != nullptr && region.has_value()
          ? rpc::TileSender(view->bytes(), *region)
          : rpc::TileSender(size_bytes, [&tile, view](int64_t offset, absl::Span<char> out) {
              return view != nullptr ? CopyTileBytes(*view, tile.tile, offset, out)
                                     : tile.tensor.producer()->Fill(tile.tile, offset, out);
            });
  while (std::optional<rpc::TileSender::Piece> piece = sender.Next(memory)) {
    if (!stream.Write(piece->message, /*more_follows=*/false)) {
      return false;
    }
    on_sent(piece->size_bytes);
  }
  SHARDMESH_RETURN_IF_ERROR(sender.status());
  return true;
}

}  // namespace

class WorkerClient::Impl {
 public:
  Impl(std::shared_ptr<grpc::Channel> channel, std::string address)
      : address_(std::move(address)), channel_(std::move(channel)) {}

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // Closes the connection; every later call fails.
  void Close() { channel_.reset(); }
  absl::Status CheckOpen() const {
    return channel_ != nullptr
               ? absl::OkStatus()
               : absl::UnavailableError(StrCat("the connection to ", address_, " is closed"));
  }
  absl::Status Locate(absl::Status status) const {
    return absl::IsUnavailable(status) && ReasonOf(status) == Reason::kUnspecified
               ? WithContext(std::move(status), StrCat("worker at ", address_))
               : status;
  }

 private:
  const std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
};

bool IsToHandOver(const OutgoingTile& tile, int64_t size_bytes) {
  return tile.handover != Handover::kOff && TileHandover::Fits(size_bytes);
}

WorkerClient::WorkerClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WorkerClient::~WorkerClient() = default;

absl::StatusOr<std::unique_ptr<WorkerClient>> WorkerClient::Connect(
    const std::string& identity, absl::Span<const std::string> addresses,
    const rpc::Credentials& credentials, absl::Time deadline, Cancellation* cancellation,
    const std::function<void()>& on_attempt) {
  const rpc::ChannelOptions options{.credentials = credentials,
                                    .peer = rpc::ExpectedPeer::Worker(identity),
                                    .max_message_bytes = rpc::kMaxDataMessageBytes,
                                    .own_connection = true};
  const auto time = SteadyDeadline::At(deadline);
  const auto is_cancelled = [cancellation] {
    return cancellation != nullptr && cancellation->is_cancelled();
  };
  const absl::Status cancelled = absl::CancelledError("the transfer was cancelled");
  std::vector<std::string> failures;
  absl::Status failure = absl::UnavailableError("the worker has no address");
  const auto connect = [&](const std::string& address) -> std::unique_ptr<WorkerClient> {
    if (on_attempt) on_attempt();
    auto channel = rpc::CreateChannel(address, options);
    const absl::Status connected =
        channel.ok() ? rpc::WaitForConnected(
                           **channel, address,
                           rpc::ConnectOptions{.timeout = std::min(kConnectTimeout, time.left()),
                                               .is_cancelled = is_cancelled},
                           options)
                     : channel.status();
    if (connected.ok()) {
      return std::unique_ptr<WorkerClient>(
          new WorkerClient(std::make_unique<Impl>(*std::move(channel), address)));
    }
    failures.emplace_back(ToStd(connected.message()));
    failure = failures.size() == 1 ? connected : absl::UnavailableError(StrJoin(failures, "; "));
    return nullptr;
  };
  std::vector<const std::string*> silent;  // addresses that did not answer, or refused to connect
  for (const std::string& address : addresses) {
    if (is_cancelled()) return cancelled;
    if (addresses.size() > 1) {
      if (on_attempt) on_attempt();
      const absl::Status dialled =
          rpc::Dial(address, absl::Now() + std::min(kDialTime, time.left())).status();
      if (!dialled.ok() && !absl::IsUnimplemented(dialled)) {
        silent.push_back(&address);
        continue;
      }
    }
    if (auto client = connect(address); client != nullptr) {
      return client;
    }
  }
  for (const std::string* const address : silent) {
    if (is_cancelled()) return cancelled;
    if (auto client = connect(*address); client != nullptr) {
      return client;
    }
  }
  return is_cancelled() ? cancelled : failure;
}

absl::StatusOr<WorkerIdentity> WorkerClient::Identify(const rpc::CallOptions& options,
                                                      Cancellation* cancellation) {
  SHARDMESH_RETURN_IF_ERROR(impl_->CheckOpen());
  grpc::ClientContext context;
  std::optional<Cancellation::Registration> registration;
  if (cancellation != nullptr) {
    registration.emplace(cancellation, [&context] { context.TryCancel(); });
  }
  rpc::Apply(options, &context);
  v1::IdentifyResponse response;
  const grpc::Status status =
      v1::TileService::NewStub(impl_->channel())->Identify(&context, {}, &response);
  if (cancellation != nullptr && cancellation->is_cancelled()) {
    return absl::CancelledError("the transfer was cancelled");
  }
  SHARDMESH_RETURN_IF_ERROR(impl_->Locate(rpc::OutcomeOf(status)));
  return WorkerIdentity{response.identity(), response.incarnation(), response.cluster_id(),
                        response.handover_socket()};
}

absl::StatusOr<PutTilesAnswer> WorkerClient::PutTiles(absl::Span<const OutgoingTile> tiles,
                                                      const std::function<void(int64_t)>& on_sent,
                                                      Cancellation* cancellation,
                                                      const rpc::CallOptions& options,
                                                      TileHandover* handover) {
  SHARDMESH_RETURN_IF_ERROR(impl_->CheckOpen());
  const auto memory = std::make_shared<PieceMemory>();
  absl::Status status;
  PutTilesAnswer answer;
  {
    ByteStream stream(impl_->channel(), kPutTiles, cancellation, options);
    // An error that this client found, such as a tile that does not fit its tensor.
    absl::Status local;
    bool is_open = true;
    const auto deadline = SteadyDeadline::At(options.deadline);
    HandoverRun run{
        .handover = handover,
        .limits = {.is_over = [&] { return cancellation->is_cancelled() || deadline.is_over(); },
                   .on_bytes = on_sent}};
    for (size_t i = 0; i < tiles.size() && is_open; ++i) {
      absl::StatusOr<bool> sent = SendTile(tiles[i], *memory, on_sent, stream, run);
      if (!sent.ok()) {
        local = std::move(sent).status();
        stream.Cancel();
      }
      is_open = sent.ok() && *sent;
    }
    grpc::ByteBuffer bytes;
    const bool has_answer = is_open && stream.WritesDone() && stream.Read(&bytes);
    status = stream.Finish();
    if (!local.ok()) {
      status = std::move(local);
    } else if (status.ok()) {
      v1::PutTilesResponse response;
      status = has_answer ? Parse(&bytes, &response)
                          : absl::InternalError("the worker ended the stream without an answer");
      answer = {response.tiles(), response.size_bytes(), run.bytes,
                DurabilityOf(response.durability())};
    }
    // After a break of the stream, gRPC may still hold slices. Wait for their release, because the
    // caller may free the tensors.
    stream.DriveUntil([&memory] { return memory->is_returned(); }, absl::Seconds(1));
  }
  if (!memory->is_returned()) {
    // Closing the connection releases the slices, at the latest when keepalive pings get no answer.
    impl_->Close();
    memory->AwaitReturned();
  }
  if (!status.ok()) {
    return impl_->Locate(std::move(status));
  }
  return answer;
}

absl::Status WorkerClient::GetTiles(absl::Span<const FetchedTile> tiles, const TileSink& sink,
                                    Cancellation* cancellation, const rpc::CallOptions& options) {
  SHARDMESH_RETURN_IF_ERROR(impl_->CheckOpen());
  v1::GetTilesRequest request;
  std::vector<rpc::RequestedPart> parts;
  for (const FetchedTile& tile : tiles) {
    parts.push_back({.array_id = tile.array_id, .tile = tile.tile, .size_bytes = tile.size_bytes});
    v1::TileSelector& selector = *request.add_tiles();
    selector.set_array_id(std::string(tile.array_id));
    rpc::Encode(tile.tile, selector.mutable_tile());
    selector.set_token(std::string(tile.token));
  }
  ByteStream stream(impl_->channel(), kGetTiles, cancellation, options);
  absl::Status local;  // an error that this client found in the answer
  rpc::TileReceiver receiver(parts, sink);
  if (stream.Write(rpc::SerializeMessage(request), /*more_follows=*/false) && stream.WritesDone()) {
    // Start the next read before parsing a message: the next message can then arrive while this one
    // is parsed.
    grpc::ByteBuffer message;
    bool is_there = stream.Read(&message);
    while (is_there) {
      grpc::ByteBuffer next;
      stream.StartRead(&next);
      if (local.ok()) {
        local = receiver.Receive(&message);
        if (!local.ok()) {
          stream.Cancel();
        }
      }
      is_there = stream.FinishRead();
      message.Swap(&next);
    }
  }
  absl::Status status = stream.Finish();
  if (!local.ok()) {
    return local;
  }
  if (!status.ok()) {
    return impl_->Locate(std::move(status));
  }
  return receiver.Close();
}

}  // namespace shardmesh::client
