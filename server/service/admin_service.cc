// Serves snapshots of the coordinator's state, and cancels operations of any session.
#include "server/service/admin_service.h"

#include <sys/stat.h>

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/time/time.h"
#include "process/crc32c.h"
#include "process/file.h"
#include "process/log.h"
#include "rpc/caller.h"
#include "rpc/codec/status.h"
#include "server/calls/all_operations.h"
#include "server/resolve/background.h"
#include "server/service/unary_answer.h"
#include "server/store/sqlite_store.h"
#include "shardmesh/v1/admin_service.grpc.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;
constexpr absl::Duration kRetryDelay = absl::Seconds(5);
// Time limit for a caller to receive one piece. A slower stream is cut, because no other caller can
// get a snapshot while this one is sent.
constexpr absl::Duration kPieceTime = absl::Seconds(30);

// State that all calls share. Only one snapshot is made at a time.
struct SnapshotDesk {
  Clock* const clock;
  Store* const store;
  const std::string folder;
  std::atomic<bool> is_busy = false;
  std::atomic<int64_t> count = 0;
  // The thread of `background` reads the pieces of the file, because a reaction (gRPC callback)
  // must not access the disk.
  Background background{1};
};

// Snapshot, as synchronous code:
//   copy = store.Backup(); write(header); for (piece of copy) write(piece)
// FinishOnce is not needed: one thread at a time owns the call, and only that thread ends it.
class SnapshotReactor final : public grpc::ServerWriteReactor<v1::SnapshotResponse> {
 public:
  SnapshotReactor(StreamSet<SnapshotReactor>* streams, SnapshotDesk* desk,
                  grpc::CallbackServerContext* context)
      : streams_(streams),
        desk_(desk),
        context_(context),
        alarm_(desk->clock, [this] { CutOffIfSlow(); }) {
    streams_->Add(this);
  }

  void Start() {
    if (desk_->is_busy.exchange(true)) {
      return EndWith(rpc::ToGrpc(WithRetryDelay(
          WithReason(absl::ResourceExhaustedError(
                         "another snapshot is being made; they are made one at a time"),
                     Reason::kOverloaded, {{fact::kLimit, 1}}),
          kRetryDelay)));
    }
    is_ours_ = true;
    // Creates the folder again if somebody has removed it since the start. In that case the
    // snapshot may be the last copy of the state.
    mkdir(desk_->folder.c_str(), 0700);
    path_ = StrCat(desk_->folder, "/", kSnapshotPrefix, ++desk_->count, ".db");
    // From now on, one thread after the other owns the call: of the store, of the background, or of
    // gRPC.
    desk_->store->Backup(path_, [this](const absl::StatusOr<Revision>& revision) {
      if (!revision.ok()) return EndWith(rpc::ToGrpc(revision.status()));
      revision_ = *revision;
      Continue();
    });
  }

  void End() { is_ended_ = true; }
  void OnWriteDone(bool ok) override {
    taken_at_ = absl::InfiniteFuture();
    ok ? Continue() : EndWith(grpc::Status::CANCELLED);
  }
  void OnDone() override {
    ReleaseSnapshot();
    streams_->Remove(this);
    delete this;
  }

 private:
  void ReleaseSnapshot() {
    file_.reset();
    if (std::exchange(is_ours_, false)) desk_->is_busy = false;
  }
  // Releases the snapshot before the answer, because the caller may request another one at once.
  void EndWith(const grpc::Status& status) {
    ReleaseSnapshot();
    Finish(status);
  }

  void Continue() {
    const bool taken = desk_->background.Run(rpc::CallerOf(*context_).name, [this] {
      if (const absl::Status next = Next(); !next.ok()) EndWith(rpc::ToGrpc(next));
    });
    if (!taken) EndWith(rpc::ToGrpc(TooManyWait()));
  }

  // Makes and writes the next message, or ends the call.
  absl::Status Next() {
    if (is_ended_) {
      return WithRetryDelay(
          WithReason(absl::UnavailableError("the coordinator is stopping"), Reason::kNotServing),
          kRetryDelay);
    }
    if (!file_.has_value()) {
      SHARDMESH_RETURN_IF_ERROR(Open());
      response_.mutable_header()->set_revision(revision_);
      response_.mutable_header()->set_size_bytes(file_->size_bytes);
    } else if (offset_ == file_->size_bytes) {
      EndWith(grpc::Status::OK);
      return absl::OkStatus();
    } else {
      SHARDMESH_RETURN_IF_ERROR(ReadPiece());
    }
    const absl::Time until = desk_->clock->Now() + kPieceTime;
    taken_at_ = until;
    alarm_.SetNoLaterThan(until);
    StartWrite(&response_);
    return absl::OkStatus();
  }

  absl::Status Open() {
    absl::StatusOr<InputFile> file = OpenInputFile(path_);
    // Removes the file's name now. The system deletes the file itself when file_ is closed.
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
    if (!file.ok()) return absl::InternalError(file.status().message());
    file_ = *std::move(file);
    LogInfo("a snapshot is sent", {{"revision", revision_}, {"bytes", file_->size_bytes}});
    return absl::OkStatus();
  }

  absl::Status ReadPiece() {
    const int64_t size = std::min(kPieceBytes, file_->size_bytes - offset_);
    v1::SnapshotPiece* const piece = response_.mutable_piece();
    std::string* const payload = piece->mutable_payload();
    payload->resize(static_cast<size_t>(size));
    const absl::Status read = ReadExactly(*file_, path_, offset_, absl::MakeSpan(*payload));
    if (!read.ok()) return absl::InternalError(read.message());
    piece->set_offset_bytes(offset_);
    piece->set_crc32c(Crc32c(*payload));
    whole_ = ExtendCrc32c(whole_, *payload);
    offset_ += size;
    if (offset_ == file_->size_bytes) piece->set_whole_crc32c(whole_);
    return absl::OkStatus();
  }

  void CutOffIfSlow() {
    const absl::Time until = taken_at_;
    if (desk_->clock->Now() < until) return alarm_.SetNoLaterThan(until);
    LogWarning("a snapshot is given up: the client does not read it", {{"revision", revision_}});
    context_->TryCancel();
  }

  StreamSet<SnapshotReactor>* const streams_;
  SnapshotDesk* const desk_;
  grpc::CallbackServerContext* const context_;
  bool is_ours_ = false;  // this call has set desk_->is_busy
  std::atomic<bool> is_ended_ = false;
  std::string path_;
  Revision revision_ = 0;
  std::optional<InputFile> file_;
  int64_t offset_ = 0;
  uint32_t whole_ = 0;
  v1::SnapshotResponse response_;
  std::atomic<absl::Time> taken_at_ = absl::InfiniteFuture();  // when the current write times out
  Alarm alarm_;                                                // last
};

class AdminService final : public v1::AdminService::CallbackService {
 public:
  AdminService(const CoordinatorParts& parts, Store* store, std::string folder)
      : operations_(parts.transfers, parts.operations, parts.sessions),
        desk_{.clock = parts.clock, .store = store, .folder = std::move(folder)} {}

  grpc::ServerWriteReactor<v1::SnapshotResponse>* Snapshot(grpc::CallbackServerContext* context,
                                                           const v1::SnapshotRequest*) override {
    auto* const reactor = new SnapshotReactor(&streams_, &desk_, context);
    reactor->Start();
    return reactor;
  }

  grpc::ServerUnaryReactor* ForceCancelOperation(
      grpc::CallbackServerContext* context, const v1::ForceCancelOperationRequest* request,
      v1::ForceCancelOperationResponse* response) override {
    return FinishUnary(
        context, operations_.ForceCancelOperation(request->operation_id(), rpc::CallerOf(*context),
                                                  response->mutable_operation()));
  }

  void EndStreams() { streams_.EndAll(); }

 private:
  const AllOperations operations_;
  StreamSet<SnapshotReactor> streams_;
  SnapshotDesk desk_;
};

}  // namespace

StreamingService MakeAdminService(const CoordinatorParts& parts, Store* store, std::string folder) {
  auto service = std::make_unique<AdminService>(parts, store, std::move(folder));
  AdminService* const raw = service.get();
  return {.service = std::move(service), .end_streams = [raw] { raw->EndStreams(); }};
}

}  // namespace shardmesh::server
