// Attaches to the coordinator, stays attached, and handles its messages.
#include "worker/service/coordinator_link.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"
#include "process/failpoint.h"
#include "process/file.h"
#include "process/log.h"
#include "process/thread_pool.h"
#include "process/version.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/flight_codec.h"
#include "rpc/codec/link_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "rpc/connector.h"
#include "rpc/contract.h"
#include "rpc/stream/outbox.h"
#include "rpc/tls/dial.h"
#include "rpc/transfer_token.h"
#include "shardmesh/internal/v1/attach_service.grpc.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/service/membership_book.h"

namespace shardmesh::worker {
namespace {

// Reports that wait for a coordinator that does not read: an inventory of millions of tiles fits,
// and a coordinator that is further behind is as good as lost.
constexpr int64_t kOutboxBytes = int64_t{256} << 20;
// Most orders that wait for this worker; further ones stay in the coordinator's outbox.
constexpr size_t kMaxInbox = 64;
constexpr int64_t kInventoryPageTiles = 256;
// Bytes of encoded tiles in a message. Each message is a sign of life for a coordinator that drops
// silent workers after some seconds. The coordinator may hold one message of every worker at once,
// when all attach after its restart.
constexpr int64_t kInventoryMessageBytes = int64_t{128} << 10;
// Overhead of a short text field in a message.
constexpr int64_t kFieldBytes = 2;
// Interval between log warnings about the same wait; each try in between logs at level debug.
constexpr absl::Duration kLogInterval = absl::Seconds(30);
// An instruction that runs this long is reported at once.
constexpr absl::Duration kSlowAfter = absl::Milliseconds(100);
// Limits of the records of instructions in one heartbeat: their number and their bytes.
constexpr size_t kMaxRecords = 64;
constexpr int64_t kMaxRecordBytes = int64_t{32} << 10;
// This many dropped arrays are confirmed at once; fewer wait for the next heartbeat.
constexpr size_t kMaxUnconfirmed = 1024;
constexpr size_t kMaxDroppedIds = 4096;
// An answer about the quarantine ends after the array that exceeds this limit.
constexpr size_t kMaxAnswerBytes = size_t{1} << 20;
// How long connecting may take before a new attempt, which is logged; also the limit for a slow
// server's answer.
constexpr absl::Duration kConnectTimeout = absl::Seconds(10);
// A silent connection counts as broken after the sum of both times, as the coordinator counts a
// silent worker as lost.
constexpr absl::Duration kKeepaliveInterval = absl::Seconds(2);
constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(3);
constexpr char kTermFile[] = "term";
// A number, optionally a blank and a digest, and the end of the line.
constexpr int64_t kMaxTermFileBytes = 64;

absl::Status CoordinatorGone() {
  return WithReason(absl::UnavailableError("this worker lost its coordinator"),
                    Reason::kStepAborted);
}

// The newest known term, and the coordinator that began it. Each start of a coordinator makes a new
// token key and begins a new term. Two keys of one term therefore mean two coordinators.
struct KnownTerm {
  int64_t number = 0;
  std::string token_key_digest = {};  // empty: unknown

  friend bool operator==(const KnownTerm&, const KnownTerm&) = default;
};

// The term is 0 where none was kept yet. The file has the number, followed by the digest of the
// key; files of older versions lack the digest.
absl::StatusOr<KnownTerm> ReadTerm(const std::string& path) {
  absl::StatusOr<InputFile> file = OpenInputFile(path);
  if (absl::IsNotFound(file.status())) {
    return KnownTerm();
  }
  SHARDMESH_RETURN_IF_ERROR(file.status());
  std::string text(static_cast<size_t>(std::min(file->size_bytes, kMaxTermFileBytes)), '\0');
  SHARDMESH_RETURN_IF_ERROR(ReadExactly(*file, path, 0, absl::MakeSpan(text)));
  absl::StripTrailingAsciiWhitespace(&text);
  KnownTerm term;
  const size_t blank = text.find(' ');
  const bool has_number = absl::SimpleAtoi(text.substr(0, blank), &term.number) && term.number >= 0;
  if (blank != std::string::npos) term.token_key_digest = text.substr(blank + 1);
  if (!has_number || (blank != std::string::npos &&
                      (term.token_key_digest.size() != rpc::TokenKeyDigest("").size() ||
                       !std::all_of(term.token_key_digest.begin(), term.token_key_digest.end(),
                                    absl::ascii_isxdigit)))) {
    return WithReason(absl::DataLossError(StrCat(path,
                                                 " is damaged: it holds no term of a coordinator; "
                                                 "remove it if no older coordinator runs")),
                      Reason::kBadFile, {{fact::kFile, path}});
  }
  return term;
}

absl::Status WriteTerm(const std::string& path, const KnownTerm& term) {
  SHARDMESH_FAILPOINT("link.write_term");
  SHARDMESH_ASSIGN_OR_RETURN(AtomicFileWriter file, AtomicFileWriter::Create(path));
  SHARDMESH_RETURN_IF_ERROR(file.Append(StrCat(term.number, " ", term.token_key_digest)));
  return file.Finish();
}

// Attach, the client's side:
//
// clang-format off
//   write(...) through the outbox; while (message = read()) inbox.push(message)
// clang-format on
//
// One thread takes messages from the inbox, and ends with the stream.
class AttachStream final
    : public grpc::ClientBidiReactor<internal::v1::AttachRequest, internal::v1::AttachResponse>,
      public std::enable_shared_from_this<AttachStream> {
 public:
  explicit AttachStream(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(internal::v1::AttachService::NewStub(channel)),
        outbox_(kOutboxBytes, [this](const internal::v1::AttachRequest* m) { StartWrite(m); }) {}

  void Start() {
    self_ = shared_from_this();
    stub_->async()->Attach(&context_, this);
    AddHold();  // for the outbox; its close releases the hold
    AddHold();  // for the inbox; its end releases the hold
    StartRead(&read_);
    StartCall();
  }

  // Sends a message. A message that finds no room ends the stream: the coordinator does not read.
  void Send(internal::v1::AttachRequest request) {
    const auto size_bytes = static_cast<int64_t>(request.ByteSizeLong());
    auto message = std::make_shared<const internal::v1::AttachRequest>(std::move(request));
    if (absl::IsResourceExhausted(outbox_.Push(std::move(message), size_bytes))) {
      Cancel();
    }
  }
  // Half-closes the stream when all is written.
  void CloseAfterWrites() {
    outbox_.Close(Outbox::kFlush, [this] {
      StartWritesDone();
      RemoveHold();
    });
  }
  void Cancel() { context_.TryCancel(); }
  // Returns the coordinator's address; known once a message came.
  std::string peer() const { return context_.peer(); }

  // Waits for the next message; nullopt once the stream is over and all messages were taken.
  std::optional<internal::v1::AttachResponse> Next() {
    bool resume = false;
    std::optional<internal::v1::AttachResponse> message;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &AttachStream::HasNextOrIsOver));
      if (inbox_.empty()) {
        return std::nullopt;
      }
      message = std::move(inbox_.front());
      inbox_.pop_front();
      resume = std::exchange(paused_, false);
    }
    if (resume) {
      StartRead(&read_);
    }
    return message;
  }
  // Waits for the stream's end.
  absl::Status Wait() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&over_));
    return status_;
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      outbox_.Close(Outbox::kDrop, [this] { RemoveHold(); });
      RemoveHold();
      return;
    }
    {
      absl::MutexLock lock(&mutex_);
      inbox_.push_back(std::move(read_));
      paused_ = inbox_.size() >= kMaxInbox;
      if (paused_) {
        return;
      }
    }
    read_.Clear();
    StartRead(&read_);
  }
  void OnWriteDone(bool ok) override { outbox_.OnWriteDone(ok); }
  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<AttachStream> self = std::move(self_);
    absl::MutexLock lock(&mutex_);
    status_ = rpc::FromGrpc(status);
    over_ = true;
  }

 private:
  using Outbox = rpc::Outbox<internal::v1::AttachRequest>;

  bool HasNextOrIsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return over_ || !inbox_.empty();
  }

  const std::unique_ptr<internal::v1::AttachService::Stub>
      stub_;  // of a connection only for this stream
  grpc::ClientContext context_;
  Outbox outbox_;
  internal::v1::AttachResponse read_;   // of the pending read
  std::shared_ptr<AttachStream> self_;  // until OnDone

  absl::Mutex mutex_;
  std::deque<internal::v1::AttachResponse> inbox_ ABSL_GUARDED_BY(mutex_);
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;  // no read is under way: the inbox is full
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

using AttachStreamPtr = std::shared_ptr<AttachStream>;

// Leaves the outputs in `from` if it fails.
absl::StatusOr<StepOrder> Decode(internal::v1::RunStep& from) {
  StepOrder order;
  order.sequence = from.sequence();
  order.epoch = from.epoch();
  order.term = from.term();
  order.plan_hash = from.plan_hash();
  order.plan_bytes = std::move(*from.mutable_plan());
  order.return_literals = from.return_literals();
  if (from.has_timeout()) {
    SHARDMESH_ASSIGN_OR_RETURN(order.timeout, rpc::Decode(from.timeout()));
  }
  for (internal::v1::StepOperand& operand : *from.mutable_operands()) {
    StepOperand& added = order.operands.emplace_back();
    added.donate = operand.donate();
    if (operand.has_literal()) {
      SHARDMESH_ASSIGN_OR_RETURN(added.value, rpc::Decode(std::move(*operand.mutable_literal())));
    } else {
      added.value = operand.array_id();
    }
  }
  for (const std::string& output : from.outputs()) {
    SHARDMESH_ASSIGN_OR_RETURN(ArrayDescriptor array, rpc::ParseArrayDescriptorBytes(output));
    order.outputs.push_back({.array = std::move(array), .encoded = {}});
  }
  for (size_t i = 0; i < order.outputs.size(); ++i) {
    order.outputs[i].encoded = std::move(*from.mutable_outputs(static_cast<int>(i)));
  }
  return order;
}

// Returns the mesh of a step's results; empty if it has none.
std::string MeshIdOf(const StepOrder& order) {
  return order.outputs.empty() ? "" : order.outputs[0].array.mesh_id;
}

// The same for a step that cannot be decoded; also empty if its first result cannot be parsed.
std::string MeshIdOf(const internal::v1::RunStep& step) {
  v1::ArrayDescriptor first;
  return step.outputs_size() > 0 && first.ParseFromString(step.outputs(0)) ? first.mesh_id() : "";
}

internal::v1::StepReport::Outcome Encode(StepOutcome outcome) {
  switch (outcome) {
    case StepOutcome::kDone:
      return internal::v1::StepReport::OUTCOME_DONE;
    case StepOutcome::kFailed:
      return internal::v1::StepReport::OUTCOME_FAILED;
    case StepOutcome::kNeedPlan:
      return internal::v1::StepReport::OUTCOME_NEED_PLAN;
  }
  return internal::v1::StepReport::OUTCOME_FAILED;
}

internal::v1::AttachRequest Encode(StepResult result) {
  internal::v1::AttachRequest request;
  internal::v1::StepReport* report = request.mutable_step_report();
  report->set_sequence(result.sequence);
  report->set_epoch(result.epoch);
  report->set_term(result.term);
  report->set_rank(static_cast<int32_t>(result.rank));
  report->set_outcome(Encode(result.outcome));
  for (StepResult::Output& output : result.outputs) {
    internal::v1::StagedOutput* added = report->add_outputs();
    added->set_array_id(output.array_id);
    added->set_crc32c(output.crc32c);
    added->set_size_bytes(output.size_bytes);
    added->set_data(std::move(output.data));
  }
  if (result.outcome == StepOutcome::kFailed) {
    rpc::Encode(result.status, report->mutable_error());
    report->set_blamed_identity(result.blamed_identity);
  }
  rpc::Encode(result.kernel_time, report->mutable_kernel_time());
  rpc::Encode(result.collective_time, report->mutable_collective_time());
  report->set_sent_bytes(result.sent_bytes);
  return request;
}

internal::v1::HeldTile Encode(const ShardStore::HeldTile& from) {
  internal::v1::HeldTile to;
  const TileDescription& description = from.tile->description();
  to.set_array_id(description.array_id);
  to.set_array_descriptor(description.array_descriptor);
  rpc::Encode(description.tile, to.mutable_tile());
  to.set_crc32c(from.tile->crc32c());
  to.set_durability(from.tile->durable() ? v1::DURABILITY_DISK : v1::DURABILITY_MEMORY);
  to.set_committed(from.state == TileState::kCommitted);
  if (!to.committed()) {
    to.set_transfer_id(description.transfer_id);
  }
  return to;
}

// Encodes the last records that fit.
void Encode(const std::vector<FlightRecord>& from, internal::v1::Heartbeat* to) {
  std::vector<v1::FlightRecord> encoded;
  int64_t size_bytes = 0;
  for (auto record = from.rbegin(); record != from.rend(); ++record) {
    v1::FlightRecord& added = encoded.emplace_back();
    rpc::Encode(*record, &added);
    size_bytes += static_cast<int64_t>(added.ByteSizeLong());
    if (size_bytes > kMaxRecordBytes) {
      encoded.pop_back();
      break;
    }
  }
  for (auto record = encoded.rbegin(); record != encoded.rend(); ++record) {
    *to->add_records() = std::move(*record);
  }
}

// `identity`: this worker's.
v1::QuarantinedArray Encode(const QuarantinedArray& from, const std::string& identity) {
  v1::QuarantinedArray to;
  to.set_identity(identity);
  if (from.tiles.empty() ||
      !to.mutable_array()->ParseFromString(from.tiles.front().description.array_descriptor)) {
    to.mutable_array()->Clear();
  }
  to.mutable_array()->set_array_id(from.array_id);
  for (const QuarantinedTile& tile : from.tiles) {
    v1::QuarantinedTile* added = to.add_tiles();
    rpc::Encode(tile.description.tile, added->mutable_tile());
    added->set_crc32c(tile.crc32c);
    added->set_size_bytes(tile.size_bytes);
  }
  to.set_reason(from.reason);
  rpc::Encode(from.since, to.mutable_quarantine_time());
  to.set_committed(from.committed);
  to.set_durability(from.on_disk ? v1::DURABILITY_DISK : v1::DURABILITY_MEMORY);
  to.set_array_lives(from.array_lives);
  return to;
}

// Returns whether waiting cannot cure the error.
bool IsFinal(const absl::Status& status) {
  const Reason reason = ReasonOf(status);
  return reason == Reason::kClusterMismatch || reason == Reason::kIdentityMismatch ||
         reason == Reason::kProtocolMismatch || absl::IsInvalidArgument(status) ||
         absl::IsPermissionDenied(status);
}

// For each running step: the step, and its instruction or -1.
using RunningInstructions = std::vector<std::pair<int64_t, int64_t>>;

class AttachLoop final : public CoordinatorLink {
 public:
  AttachLoop(Options options, KnownTerm term, std::unique_ptr<rpc::Connector> connector)
      : options_(std::move(options)),
        connector_(std::move(connector)),
        kept_term_(term),
        term_(std::move(term)),
        heartbeat_(options_.clock, [this] { Beat(); }) {}

  ~AttachLoop() override {
    AttachStreamPtr stream;
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      stream = stream_;
    }
    connector_->Cancel();
    if (stream != nullptr) {
      stream->Cancel();
    }
    if (thread_.joinable()) {
      thread_.join();
    }
    options_.store->AwaitFiles();  // the files' thread confirms dropped arrays to this object
  }

  void Start() override {
    thread_ = std::thread([this] { Run(); });
  }

  void ReportTile(const TileReport& report) override {
    internal::v1::AttachRequest request;
    internal::v1::TileStaged* staged = request.mutable_tile_staged();
    staged->set_transfer_id(report.transfer_id);
    staged->set_array_id(report.array_id);
    staged->set_rank(static_cast<int32_t>(report.rank));
    staged->set_crc32c(report.crc32c);
    staged->set_size_bytes(report.size_bytes);
    staged->set_durability(report.durable ? v1::DURABILITY_DISK : v1::DURABILITY_MEMORY);
    rpc::Encode(report.transfer_time, staged->mutable_transfer_time());
    staged->set_term(report.term);
    if (const AttachStreamPtr stream = AttachedStream(); stream != nullptr) {
      stream->Send(std::move(request));
    }
  }

  void ReportPeers(int64_t epoch, const std::vector<std::string>& unreached) override {
    absl::MutexLock lock(&mutex_);
    peers_epoch_ = epoch;
    unreached_ = unreached;
    SendPeers();
  }

  void Leave(const std::string& reason, absl::Time deadline) override {
    AttachStreamPtr stream;
    bool is_attached = false;
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      stream = stream_;
      is_attached = attached_;
    }
    connector_->Cancel();
    if (stream != nullptr && !is_attached) {
      stream->Cancel();  // the coordinator does not count on this worker yet
    } else if (stream != nullptr) {
      internal::v1::AttachRequest request;
      request.mutable_leaving()->set_reason(reason);
      stream->Send(std::move(request));
      {
        // The coordinator ends the stream when nothing needs this worker any more.
        absl::MutexLock lock(&mutex_);
        mutex_.AwaitWithDeadline(absl::Condition(this, &AttachLoop::HasNoStream), deadline);
      }
      stream->CloseAfterWrites();
    }
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithDeadline(absl::Condition(this, &AttachLoop::HasNoStream),
                                  std::max(deadline, absl::Now() + kCloseTimeout))) {
      stream->Cancel();
    }
  }

  State state() const override {
    absl::MutexLock lock(&mutex_);
    return {.attached = attached_, .ready = ready_, .epoch = epoch_, .term = term_.number};
  }

 private:
  // A live coordinator ends a half-closed stream at once.
  static constexpr absl::Duration kCloseTimeout = absl::Milliseconds(500);

  bool HasNoStream() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stream_ == nullptr; }
  AttachStreamPtr AttachedStream() const {
    absl::MutexLock lock(&mutex_);
    return attached_ ? stream_ : nullptr;
  }

  // On the link's thread.
  void Run();
  // Returns the error that ended an attempt, or the cause of a failed connection where it is found.
  absl::Status Explained(absl::Status ended) const;
  absl::Status AttachOnce(rpc::Backoff& backoff);
  void Detached();
  void LogWait(const absl::Status& status, absl::Duration delay);
  internal::v1::AttachRequest MakeHello() const;
  absl::Status Take(internal::v1::AttachResponse message, rpc::Backoff& backoff);
  absl::Status TakeWelcome(const internal::v1::Welcome& welcome);
  // Returns STALE_TERM if the coordinator that began this term must not be followed.
  absl::Status CheckTerm(const KnownTerm& begun) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes the newest term to disk if it changed. On a full disk the next try comes with the
  // coordinator's next clock message, some seconds later.
  absl::Status KeepTerm();
  absl::Status TakeCoordinatorTime(const google::protobuf::Timestamp& time);
  void SendInventory();
  absl::Status TakeVerdict(const internal::v1::InventoryVerdict& verdict);
  absl::Status TakeMembership(const internal::v1::Membership& membership);
  void TakeRunStep(internal::v1::RunStep step);
  absl::Status TakeEndStep(const internal::v1::EndStep& end);
  absl::Status TakeEndTransfer(const internal::v1::EndTransfer& end);
  absl::Status TakeDetach(const internal::v1::Detach& detach);
  template <typename Ids>
  void Drop(const Ids& array_ids);
  void TakeQuarantineOrder(internal::v1::QuarantineOrder order);
  internal::v1::QuarantineAnswer CarryOut(const internal::v1::QuarantineOrder& order);
  // Reports restored arrays to the coordinator. Does so only after the verdict of this attach: its
  // inventory may have lacked them.
  void SendRestored() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Confirms dropped arrays to the coordinator if the time for it has come.
  void Dropped(const std::vector<std::string>& array_ids) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendDropped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Beat();
  void SendPeers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const std::unique_ptr<rpc::Connector> connector_;

  // Used only by the link's thread.
  MembershipBook book_;                         // of this attach
  std::shared_ptr<const MembershipView> view_;  // the last one
  Attachment attachment_;                       // the last one
  bool was_connected_ = false;                  // of the last attempt
  bool detached_for_good_ = false;
  KnownTerm kept_term_;  // on disk
  bool is_term_late_ = false;
  std::string logged_wait_;
  absl::Time log_time_ = absl::InfinitePast();

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  AttachStreamPtr stream_ ABSL_GUARDED_BY(mutex_);
  bool attached_ ABSL_GUARDED_BY(mutex_) = false;  // welcome
  bool judged_ ABSL_GUARDED_BY(mutex_) = false;    // the whole verdict of this attach
  bool member_ ABSL_GUARDED_BY(mutex_) = false;    // membership of this attach
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  KnownTerm term_ ABSL_GUARDED_BY(mutex_);
  int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peers_epoch_ ABSL_GUARDED_BY(mutex_) = -1;
  std::vector<std::string> unreached_ ABSL_GUARDED_BY(mutex_);
  absl::Duration heartbeat_interval_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(1);
  absl::Time next_beat_ ABSL_GUARDED_BY(mutex_);
  // From the last heartbeat: the running steps and instructions, and the records sent.
  RunningInstructions told_ ABSL_GUARDED_BY(mutex_);
  FlightRecorder::Ticket next_record_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t told_links_ ABSL_GUARDED_BY(mutex_) = 0;            // revision
  std::vector<std::string> dropped_ ABSL_GUARDED_BY(mutex_);   // not yet confirmed
  std::vector<std::string> restored_ ABSL_GUARDED_BY(mutex_);  // not yet reported

  std::thread thread_;
  Alarm heartbeat_;
  ThreadPool orders_{1};  // what waits for the disk; last: its thread uses the above
};

void AttachLoop::Run() {
  rpc::Backoff backoff(options_.retry);
  for (;;) {
    absl::Status ended = AttachOnce(backoff);
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) {
        return;
      }
    }
    // An established connection needs no diagnosis. The diagnosis resolves the name, which may
    // block for seconds where name servers are silent.
    if (!was_connected_) ended = Explained(std::move(ended));
    if (detached_for_good_ || IsFinal(ended)) {
      LogError("the coordinator refuses this worker",
               {{"coordinator", options_.coordinator}, {"error", ended}});
      return options_.failed(ended);
    }
    const absl::Duration delay = backoff.NextDelay(ended);
    LogWait(ended, delay);
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), delay)) {
      return;
    }
  }
}

absl::Status AttachLoop::Explained(absl::Status ended) const {
  if (!absl::IsUnavailable(ended) || ReasonOf(ended) != Reason::kUnspecified) {
    return ended;
  }
  const std::string found = rpc::DiagnoseConnection(options_.coordinator, options_.credentials,
                                                    rpc::ExpectedPeer::Coordinator());
  return found.empty()
             ? ended
             : absl::UnavailableError(StrCat("cannot reach ", options_.coordinator, ": ", found));
}

absl::Status AttachLoop::AttachOnce(rpc::Backoff& backoff) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                             connector_->Connect(kConnectTimeout));
  was_connected_ = channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
  auto stream = std::make_shared<AttachStream>(channel);
  internal::v1::AttachRequest hello = MakeHello();
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) {
      return absl::CancelledError("the worker stops");
    }
    stream_ = stream;
    stream->Start();
  }
  stream->Send(std::move(hello));
  absl::Status status;
  while (std::optional<internal::v1::AttachResponse> message = stream->Next()) {
    if (status.ok()) {
      status = Take(*std::move(message), backoff);
      if (!status.ok()) {
        stream->Cancel();
      }
    }
  }
  const absl::Status ended = stream->Wait();
  const bool was_attached = AttachedStream() != nullptr;
  Detached();
  if (!status.ok()) {
    return status;
  }
  if (was_attached && absl::IsInvalidArgument(ended)) {
    // The error does not concern the hello: a new attach may help.
    return absl::UnavailableError(ended.message());
  }
  return ended.ok() ? absl::UnavailableError("the coordinator ended the stream") : ended;
}

void AttachLoop::Detached() {
  bool was_attached = false;
  {
    absl::MutexLock lock(&mutex_);
    was_attached = std::exchange(attached_, false);
    judged_ = false;
    member_ = false;
    UpdateReady();
  }
  if (was_attached) {
    options_.gate->Suspend();
    // The commit message of a staged output may be lost: the next verdict decides.
    options_.executor->AbortUnfinished(CoordinatorGone());
  }
  absl::MutexLock lock(&mutex_);
  stream_ = nullptr;
}

void AttachLoop::LogWait(const absl::Status& status, absl::Duration delay) {
  const absl::Time now = options_.clock->Now();
  std::string text = status.ToString(absl::StatusToStringMode::kWithNoExtraData);
  if (const Reason reason = ReasonOf(status); reason != Reason::kUnspecified) {
    StrAppend(&text, " (", ReasonName(reason), ")");
  }
  const bool is_told = text == logged_wait_ && now - log_time_ < kLogInterval;
  (is_told ? LogDebug : LogWarning)(
      "cannot attach, will retry",
      {{"coordinator", options_.coordinator}, {"error", text}, {"retry_in", FormatRounded(delay)}});
  if (!is_told) {
    logged_wait_ = std::move(text);
    log_time_ = now;
  }
}

internal::v1::AttachRequest AttachLoop::MakeHello() const {
  internal::v1::AttachRequest request;
  internal::v1::Hello* hello = request.mutable_hello();
  hello->set_cluster_id(options_.store->cluster_id());
  hello->set_identity(options_.self.identity);
  hello->set_data_identity(options_.store->data_identity());
  hello->set_incarnation(options_.self.incarnation);
  hello->mutable_build()->set_version(std::string(BuildVersion()));
  hello->mutable_protocol()->set_min(rpc::kOldestProtocol);
  hello->mutable_protocol()->set_max(rpc::kNewestProtocol);
  for (const std::string& endpoint : options_.endpoints) {
    hello->add_endpoints()->set_address(endpoint);
  }
  if (const auto port = options_.exchange_port; port.has_value()) hello->set_exchange_port(*port);
  hello->set_nonce(options_.nonce);
  hello->mutable_capacity()->set_memory_bytes(options_.store->limit_bytes());
  hello->mutable_capacity()->set_threads(options_.threads);
  hello->mutable_capacity()->set_durable(options_.store->has_data_dir());
  hello->set_pid(getpid());
  hello->set_boot_id(options_.self.boot_id);
  absl::MutexLock lock(&mutex_);
  hello->set_term(term_.number);
  return request;
}

absl::Status AttachLoop::Take(internal::v1::AttachResponse message, rpc::Backoff& backoff) {
  using Message = internal::v1::AttachResponse;
  if (message.message_case() != Message::kWelcome && AttachedStream() == nullptr) {
    return absl::InternalError("the coordinator's first message is no welcome");
  }
  switch (message.message_case()) {
    case Message::kWelcome:
      return TakeWelcome(message.welcome());
    case Message::kInventoryVerdict:
      return TakeVerdict(message.inventory_verdict());
    case Message::kMembership:
      backoff.Reset();
      return TakeMembership(message.membership());
    case Message::kRunStep:
      TakeRunStep(std::move(*message.mutable_run_step()));
      return absl::OkStatus();
    case Message::kEndStep:
      return TakeEndStep(message.end_step());
    case Message::kEndTransfer:
      return TakeEndTransfer(message.end_transfer());
    case Message::kDropArrays:
      Drop(message.drop_arrays().array_ids());
      return absl::OkStatus();
    case Message::kQuarantineOrder:
      TakeQuarantineOrder(std::move(*message.mutable_quarantine_order()));
      return absl::OkStatus();
    case Message::kDetach:
      return TakeDetach(message.detach());
    case Message::kClock:
      SHARDMESH_RETURN_IF_ERROR(KeepTerm());
      return TakeCoordinatorTime(message.clock().time());
    case Message::MESSAGE_NOT_SET:
      break;  // of a newer coordinator: ignore it
  }
  return absl::OkStatus();
}

absl::Status AttachLoop::TakeWelcome(const internal::v1::Welcome& welcome) {
  SHARDMESH_FAILPOINT("link.welcome");
  SHARDMESH_ASSIGN_OR_RETURN(const absl::Duration interval,
                             rpc::Decode(welcome.heartbeat_interval()));
  if (!rpc::CommonProtocol(welcome.protocol(), welcome.protocol()).has_value()) {
    return WithReason(absl::FailedPreconditionError(StrCat(
                          "the coordinator speaks protocol ", welcome.protocol(), ", this worker ",
                          rpc::kOldestProtocol, " to ", rpc::kNewestProtocol)),
                      Reason::kProtocolMismatch,
                      {{fact::kHave, welcome.protocol()}, {fact::kNeed, rpc::kNewestProtocol}});
  }
  const KnownTerm begun = {.number = welcome.term(),
                           .token_key_digest = rpc::TokenKeyDigest(welcome.token_key())};
  {
    absl::MutexLock lock(&mutex_);
    SHARDMESH_RETURN_IF_ERROR(CheckTerm(begun));
    term_ = begun;
  }
  SHARDMESH_RETURN_IF_ERROR(options_.store->SetClusterId(welcome.cluster_id()));
  SHARDMESH_RETURN_IF_ERROR(options_.store->SetIdentity(options_.self.identity));
  SHARDMESH_RETURN_IF_ERROR(KeepTerm());
  options_.links->SetClusterId(welcome.cluster_id());
  if (welcome.has_coordinator_time()) {
    SHARDMESH_RETURN_IF_ERROR(TakeCoordinatorTime(welcome.coordinator_time()));
  }
  book_ = {};
  attachment_ = {.term = welcome.term(), .token_key = welcome.token_key()};
  {
    absl::MutexLock lock(&mutex_);
    attached_ = true;
    heartbeat_interval_ = std::max(interval, absl::Milliseconds(10));
    // This coordinator may know nothing of this worker.
    next_record_ = 0;
    told_links_ = 0;
    told_ = {};
    next_beat_ = options_.clock->Now() + heartbeat_interval_;
    heartbeat_.SetNoLaterThan(next_beat_);
  }
  logged_wait_.clear();
  LogInfo("attached", {{"coordinator", options_.coordinator}, {"term", welcome.term()}});
  SendInventory();
  return absl::OkStatus();
}

absl::Status AttachLoop::KeepTerm() {
  KnownTerm term;
  {
    absl::MutexLock lock(&mutex_);
    term = term_;
  }
  if (options_.data_dir.empty() || term == kept_term_) {
    return absl::OkStatus();
  }
  const absl::Status written = WriteTerm(StrCat(options_.data_dir, "/", kTermFile), term);
  if (written.ok()) {
    kept_term_ = term;
    is_term_late_ = false;
    return absl::OkStatus();
  }
  // The worker also serves on a full disk: otherwise nobody could delete the data that fills it.
  if (!absl::IsResourceExhausted(written)) {
    return written;
  }
  if (!std::exchange(is_term_late_, true)) {
    LogWarning(
        "the coordinator's term could not be stored yet, make room on the disk: until it is "
        "stored, this worker may follow an older coordinator after a restart",
        {{"term", term.number}, {"error", written}});
  }
  return absl::OkStatus();
}

absl::Status AttachLoop::CheckTerm(const KnownTerm& begun) const {
  if (begun.number < term_.number) {
    return WithReason(
        absl::AbortedError(StrCat("the coordinator is of term ", begun.number,
                                  ", this worker has heard of ", term_.number,
                                  ": a newer coordinator leads, or this one runs on an older copy "
                                  "of its data folder; put such a copy back with --restore")),
        Reason::kStaleTerm, {{fact::kHave, begun.number}, {fact::kNeed, term_.number}});
  }
  if (begun.number > term_.number || term_.token_key_digest.empty() ||
      term_.token_key_digest == begun.token_key_digest) {
    return absl::OkStatus();
  }
  return WithReason(
      absl::AbortedError(StrCat(
          "two coordinators have begun term ", begun.number, ": this one at ", stream_->peer(),
          " (its log says token_key_digest=", begun.token_key_digest,
          "), and the one that this worker followed (token_key_digest=", term_.token_key_digest,
          "). They run on copies of one data folder, or an older copy was put back. Stop the one "
          "that is not to lead; if this one is to lead, start it again: it then begins a higher "
          "term, which workers follow")),
      Reason::kStaleTerm, {{fact::kHave, begun.number}});
}

absl::Status AttachLoop::TakeCoordinatorTime(const google::protobuf::Timestamp& time) {
  SHARDMESH_ASSIGN_OR_RETURN(const absl::Time now, rpc::Decode(time));
  options_.gate->SetCoordinatorTime(now);
  return absl::OkStatus();
}

void AttachLoop::SendInventory() {
  const AttachStreamPtr stream = AttachedStream();
  // The coordinator treats tiles missing in the inventory as dropped: their files must be gone
  // first.
  options_.store->AwaitFiles();
  internal::v1::AttachRequest request;
  int64_t size_bytes = 0;
  const auto send = [&](bool last) {
    request.mutable_inventory()->set_last(last);
    stream->Send(std::exchange(request, {}));
    size_bytes = 0;
  };
  std::string first_array_id;
  do {
    const ShardStore::InventoryPage page =
        options_.store->ListInventory(first_array_id, kInventoryPageTiles);
    for (const ShardStore::HeldTile& tile : page.tiles) {
      internal::v1::HeldTile encoded = Encode(tile);
      size_bytes += static_cast<int64_t>(encoded.ByteSizeLong());
      *request.mutable_inventory()->add_tiles() = std::move(encoded);
      if (size_bytes >= kInventoryMessageBytes) {
        send(/*last=*/false);
      }
    }
    first_array_id = page.next_array_id;
  } while (!first_array_id.empty());
  std::string last_aside;
  for (;;) {
    const std::vector<QuarantinedArray> aside =
        options_.store->ListQuarantine({}, last_aside, kInventoryPageTiles);
    if (aside.empty()) break;
    for (const QuarantinedArray& array : aside) {
      request.mutable_inventory()->add_quarantined_array_ids(array.array_id);
      size_bytes += std::ssize(array.array_id) + kFieldBytes;
      if (size_bytes >= kInventoryMessageBytes) {
        send(/*last=*/false);
      }
    }
    last_aside = aside.back().array_id;
  }
  send(/*last=*/true);
}

absl::Status AttachLoop::TakeVerdict(const internal::v1::InventoryVerdict& verdict) {
  SHARDMESH_FAILPOINT("link.verdict");
  for (const std::string& array_id : verdict.commit_array_ids()) {
    // One array at a time: a missing array, which the coordinator knows from the inventory, must
    // not prevent the commit of the others.
    if (const absl::Status committed = options_.store->Commit({array_id});
        !committed.ok() && !absl::IsNotFound(committed)) {
      return committed;
    }
  }
  const std::vector<std::string> live(verdict.live_array_ids().begin(),
                                      verdict.live_array_ids().end());
  options_.store->SetLive(live, true, options_.clock->Now());
  const std::vector<std::string> unknown_ids(verdict.unknown_array_ids().begin(),
                                             verdict.unknown_array_ids().end());
  options_.store->SetLive(unknown_ids, false, options_.clock->Now());
  std::vector<ShardStore::Unknown> unknown;
  for (const internal::v1::QuarantineTile& each : verdict.quarantine_tiles()) {
    SHARDMESH_ASSIGN_OR_RETURN(Tile tile, rpc::Decode(each.tile()));
    unknown.push_back({.array_id = each.array_id(),
                       .tile = std::move(tile),
                       .reason = each.reason(),
                       .array_lives = each.array_lives()});
  }
  const int64_t quarantined = options_.store->Quarantine(unknown, options_.clock->Now());
  if (quarantined > 0) {
    const internal::v1::QuarantineTile& first = verdict.quarantine_tiles(0);
    LogWarning(
        "moved tiles into quarantine; `shardmesh admin quarantine list` shows them",
        {{"tiles", quarantined}, {"first_array", first.array_id()}, {"reason", first.reason()}});
  }
  if (verdict.drop_array_ids_size() > 0) {
    LogInfo("dropping arrays that were released while this worker was away",
            {{"arrays", verdict.drop_array_ids_size()}, {"first", verdict.drop_array_ids(0)}});
  }
  Drop(verdict.drop_array_ids());
  if (verdict.last()) {
    options_.executor->KeepStaged();
    {
      absl::MutexLock lock(&mutex_);
      judged_ = true;
      SendRestored();
      next_beat_ = options_.clock->Now();  // the inventory is complete now, and metrics should show
                                           // it at once
    }
    Beat();
  }
  return absl::OkStatus();
}

absl::Status AttachLoop::TakeMembership(const internal::v1::Membership& membership) {
  SHARDMESH_FAILPOINT("link.membership");
  SHARDMESH_ASSIGN_OR_RETURN(std::optional<MembershipView> view, book_.Take(membership));
  if (!view.has_value()) {
    return absl::OkStatus();
  }
  view_ = std::make_shared<const MembershipView>(*std::move(view));
  options_.gate->Serve(attachment_, view_);
  options_.links->SetMembership(*view_);
  absl::MutexLock lock(&mutex_);
  member_ = true;
  epoch_ = view_->epoch;
  SendPeers();  // the links mentioned its epoch before it was known here
  return absl::OkStatus();
}

void AttachLoop::TakeRunStep(internal::v1::RunStep step) {
  const AttachStreamPtr stream = AttachedStream();
  absl::StatusOr<StepOrder> order = Decode(step);
  // The rank in the step's mesh; none where the plan is unknown or unreadable.
  std::optional<DeviceId> rank;
  if (view_ != nullptr) {
    const std::string mesh_id = order.ok() ? MeshIdOf(*order) : MeshIdOf(step);
    if (const MeshMembers* mesh = view_->Find(mesh_id); mesh != nullptr) {
      rank = mesh->RankOf(options_.self.identity);
    }
  }
  if (!order.ok()) {
    StepResult refused;
    refused.sequence = step.sequence();
    refused.epoch = step.epoch();
    refused.term = step.term();
    refused.rank = rank.value_or(0);
    refused.outcome = StepOutcome::kFailed;
    refused.status = WithContext(order.status(), StrCat("step ", refused.sequence));
    return stream->Send(Encode(std::move(refused)));
  }
  {
    absl::MutexLock lock(&mutex_);
    heartbeat_.SetNoLaterThan(options_.clock->Now() + kSlowAfter);
  }
  options_.executor->Run(*std::move(order), [stream, rank](StepResult result) {
    result.rank = rank.value_or(result.rank);
    stream->Send(Encode(std::move(result)));
  });
}

absl::Status AttachLoop::TakeEndStep(const internal::v1::EndStep& end) {
  SHARDMESH_FAILPOINT("link.end_step");
  absl::Status ended;
  if (end.commit()) {
    ended = options_.executor->Commit(end.sequence());
    if (absl::IsNotFound(ended)) {
      // The step ended with the stream; the verdict on the inventory has settled it.
      LogWarning("commit of a step that this worker has left", {{"step", end.sequence()}});
      ended = absl::OkStatus();
    }
  } else {
    const absl::Status error = rpc::Decode(end.error());
    options_.executor->Abort(
        end.sequence(), error.ok() ? absl::AbortedError("the coordinator ended the step") : error);
  }
  return WithContext(ended, StrCat("cannot commit step ", end.sequence()));
}

absl::Status AttachLoop::TakeEndTransfer(const internal::v1::EndTransfer& end) {
  SHARDMESH_FAILPOINT("link.end_transfer");
  return WithContext(options_.gate->EndTransfer(end.transfer_id(), end.commit()),
                     StrCat("cannot end transfer ", end.transfer_id()));
}

absl::Status AttachLoop::TakeDetach(const internal::v1::Detach& detach) {
  absl::Status reason = rpc::Decode(detach.reason());
  if (reason.ok()) {
    reason = absl::UnavailableError("it gives no reason");
  }
  reason = WithContext(reason, "the coordinator detached this worker");
  detached_for_good_ = !detach.has_retry_time();
  if (detached_for_good_) {
    return reason;
  }
  SHARDMESH_ASSIGN_OR_RETURN(const absl::Time retry_time, rpc::Decode(detach.retry_time()));
  return WithRetryDelay(std::move(reason),
                        std::max(retry_time - absl::Now(), absl::ZeroDuration()));
}

template <typename Ids>
void AttachLoop::Drop(const Ids& array_ids) {
  SHARDMESH_PASSES("link.drop");
  std::vector<std::string> ids(array_ids.begin(), array_ids.end());
  if (ids.empty()) {
    return;
  }
  options_.executor->Forget(ids);
  const absl::Span<const std::string> dropped = ids;
  options_.store->Drop(dropped,
                       [this, ids = std::vector<std::string>(ids)](const absl::Status& status) {
                         // Files that could not be removed are not confirmed: the next verdict
                         // drops them again.
                         if (status.ok()) Dropped(ids);
                       });
}

void AttachLoop::Dropped(const std::vector<std::string>& array_ids) {
  absl::MutexLock lock(&mutex_);
  dropped_.insert(dropped_.end(), array_ids.begin(), array_ids.end());
  if (dropped_.size() >= kMaxUnconfirmed) {
    SendDropped();
  }
}

void AttachLoop::SendDropped() {
  if (!attached_) {
    dropped_.clear();  // the next inventory covers them
  }
  for (size_t first = 0; first < dropped_.size(); first += kMaxDroppedIds) {
    internal::v1::AttachRequest request;
    for (size_t i = first; i < std::min(dropped_.size(), first + kMaxDroppedIds); ++i) {
      request.mutable_tiles_dropped()->add_array_ids(std::move(dropped_[i]));
    }
    stream_->Send(std::move(request));
  }
  dropped_.clear();
}

void AttachLoop::TakeQuarantineOrder(internal::v1::QuarantineOrder order) {
  orders_.Push([this, stream = AttachedStream(), order = std::move(order)] {
    internal::v1::AttachRequest request;
    *request.mutable_quarantine_answer() = CarryOut(order);
    stream->Send(std::move(request));
  });
}

void AttachLoop::SendRestored() {
  if (!judged_) {
    return;
  }
  for (const std::string& array_id : std::exchange(restored_, {})) {
    const absl::StatusOr<std::vector<StoredTilePtr>> tiles = options_.store->FindAll(array_id);
    if (!tiles.ok()) {
      continue;  // it is gone again
    }
    internal::v1::AttachRequest request;
    for (const StoredTilePtr& tile : *tiles) {
      *request.mutable_inventory()->add_tiles() = Encode({tile, TileState::kCommitted});
    }
    request.mutable_inventory()->set_last(true);
    stream_->Send(std::move(request));
  }
}

internal::v1::QuarantineAnswer AttachLoop::CarryOut(const internal::v1::QuarantineOrder& order) {
  internal::v1::QuarantineAnswer answer;
  answer.set_order_id(order.order_id());
  const std::vector<std::string> ids(order.array_ids().begin(), order.array_ids().end());
  if (order.action() == internal::v1::QuarantineOrder::ACTION_LIST) {
    const auto most = static_cast<size_t>(std::clamp(order.max_arrays(), 1, 1000));
    const std::vector<QuarantinedArray> found =
        options_.store->ListQuarantine(ids, order.start_after(), static_cast<int64_t>(most) + 1);
    answer.set_has_more(found.size() > most);
    for (size_t i = 0; i < std::min(most, found.size()); ++i) {
      *answer.add_arrays() = Encode(found[i], options_.self.identity);
      if (answer.ByteSizeLong() > kMaxAnswerBytes && i + 1 < found.size()) {
        answer.set_has_more(true);
        break;
      }
    }
    return answer;
  }
  for (const std::string& id : ids) {
    const bool restores = order.action() == internal::v1::QuarantineOrder::ACTION_RESTORE;
    const absl::StatusOr<QuarantinedArray> done =
        restores ? options_.store->RestoreQuarantined(id) : options_.store->DropQuarantined(id);
    if (done.ok()) {
      LogInfo(restores ? "restored an array from the quarantine, as the coordinator asked"
                       : "dropped an array from the quarantine, as the coordinator asked",
              {{"array", id}, {"size_bytes", done->size_bytes()}});
      *answer.add_arrays() = Encode(*done, options_.self.identity);
      if (restores) {
        // Sent separately from the answer, whose caller may no longer wait.
        absl::MutexLock lock(&mutex_);
        restored_.push_back(id);
        SendRestored();
      }
    } else if (!absl::IsNotFound(done.status())) {
      rpc::Encode(done.status(), answer.mutable_error());
      break;
    }
  }
  return answer;
}

void AttachLoop::Beat() {
  const std::vector<StepProgress> progress = options_.executor->progress();
  const int64_t used_bytes = options_.store->used_bytes();
  absl::MutexLock lock(&mutex_);
  if (!attached_) {
    return;  // the next welcome sets the alarm
  }
  const absl::Time now = options_.clock->Now();
  absl::Time slow_at = absl::InfiniteFuture();
  RunningInstructions running;
  for (const StepProgress& step : progress) {
    const std::optional<FlightRecord>& instruction = step.instruction;
    running.emplace_back(step.step, instruction.has_value() ? instruction->op : -1);
    // A slow instruction is reported only once.
    if (std::find(told_.begin(), told_.end(), running.back()) != told_.end()) continue;
    slow_at = std::min(
        slow_at, (instruction.has_value() ? instruction->started : step.started) + kSlowAfter);
  }
  if (now < next_beat_ && now < slow_at) {
    const absl::Time look_again = std::min(slow_at, now + kSlowAfter);
    return heartbeat_.SetNoLaterThan(progress.empty() ? next_beat_
                                                      : std::min(next_beat_, look_again));
  }
  SendDropped();
  // Before the verdict the worker does not know which arrays live.
  if (judged_) options_.store->ExpireQuarantine(now);
  const QuarantineTotals quarantine = options_.store->quarantine_totals();
  internal::v1::AttachRequest request;
  internal::v1::Heartbeat* heartbeat = request.mutable_heartbeat();
  // New tiles may replace quarantined tiles in memory, unless their arrays live.
  heartbeat->set_used_bytes(std::max<int64_t>(0, used_bytes - quarantine.droppable_memory_bytes));
  heartbeat->set_quarantined_arrays(quarantine.arrays);
  heartbeat->set_quarantined_bytes(quarantine.disk_bytes + quarantine.memory_bytes);
  heartbeat->set_epoch(epoch_);
  rpc::Encode(now, heartbeat->mutable_send_time());
  for (const StepProgress& step : progress) rpc::Encode(step, heartbeat->add_progress());
  if (options_.recorder != nullptr) {
    const FlightRecorder::Tail tail = options_.recorder->EndedSince(next_record_, kMaxRecords);
    Encode(tail.records, heartbeat);
    next_record_ = tail.next;
  }
  if (const MeasuredLinks measured = options_.links->measured_links();
      measured.revision != told_links_) {
    internal::v1::MeasuredLinks* links = heartbeat->mutable_links();  // also if none are left
    for (const MeasuredLink& link : measured.links) rpc::Encode(link, links->add_links());
    told_links_ = measured.revision;
  }
  stream_->Send(std::move(request));
  told_ = running;
  next_beat_ = now + heartbeat_interval_;
  // While a step runs, its next instruction may be slow as well.
  heartbeat_.SetNoLaterThan(progress.empty() ? next_beat_ : std::min(next_beat_, now + kSlowAfter));
}

void AttachLoop::SendPeers() {
  UpdateReady();
  if (!member_ || peers_epoch_ != epoch_) {
    return;
  }
  internal::v1::AttachRequest request;
  request.mutable_peers()->set_epoch(peers_epoch_);
  for (const std::string& identity : unreached_) {
    request.mutable_peers()->add_unreached(identity);
  }
  stream_->Send(std::move(request));
}

void AttachLoop::UpdateReady() {
  const bool ready = member_ && peers_epoch_ == epoch_ && unreached_.empty();
  if (ready != ready_) {
    ready_ = ready;
    options_.ready_changed(ready);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorLink>> CoordinatorLink::Create(Options options) {
  KnownTerm term;
  if (!options.data_dir.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(term, ReadTerm(StrCat(options.data_dir, "/", kTermFile)));
  }
  SHARDMESH_ASSIGN_OR_RETURN(
      std::unique_ptr<rpc::Connector> connector,
      rpc::Connector::Create(options.coordinator, {.credentials = options.credentials,
                                                   .keepalive_interval = kKeepaliveInterval,
                                                   .keepalive_timeout = kKeepaliveTimeout}));
  return std::make_unique<AttachLoop>(std::move(options), std::move(term), std::move(connector));
}

}  // namespace shardmesh::worker
