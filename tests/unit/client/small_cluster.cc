// Services with the contract's simplest correct behaviour, on gRPC's blocking interface.
#include "tests/unit/client/small_cluster.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "process/crc32c.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/view.h"

namespace shardmesh::client::test {
namespace {

// Far longer than anything here takes.
constexpr absl::Duration kGenerous = absl::Seconds(30);
// Pieces of answers are small, so that tiles of tests have several.
constexpr size_t kPieceBytes = 1000;
constexpr const char* kCopyOperation = "copy";

std::unique_ptr<grpc::Server> Serve(const std::vector<grpc::Service*>& services,
                                    std::string* address) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  for (grpc::Service* service : services) {
    builder.RegisterService(service);
  }
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  *address = StrCat("127.0.0.1:", port);
  return server;
}

// The trace context of a call; empty for none.
std::string TraceOf(const grpc::ServerContext& context) {
  const auto found = context.client_metadata().find("traceparent");
  return found == context.client_metadata().end()
             ? ""
             : std::string(found->second.data(), found->second.size());
}

absl::Status BadToken() {
  return WithReason(absl::PermissionDeniedError("not the token of this array"), Reason::kBadToken);
}

absl::Status NoArray(const v1::ArraySelector& wanted) {
  return WithReason(
      absl::NotFoundError(wanted.has_array_id()
                              ? StrCat("no array has the id '", wanted.array_id(), "'")
                              : StrCat("no array is named '", wanted.name(), "'")),
      Reason::kNotFound);
}

bool IsWithin(const Tile& inner, const Tile& outer) {
  if (inner.ranges.size() != outer.ranges.size()) return false;
  for (size_t i = 0; i < inner.ranges.size(); ++i) {
    if (inner.ranges[i].start < outer.ranges[i].start) return false;
    if (inner.ranges[i].stop > outer.ranges[i].stop) return false;
  }
  return true;
}

// Cuts the part `wanted` out of the bytes of the tile `held`, whatever its element type: as a
// tensor of bytes, whose last dimension is as much longer as an element is longer than a byte.
// Tiles of shorter elements must be so large that their padding is less than a bit an element.
absl::StatusOr<std::string> CutBytes(const std::string& bytes, const Tile& held,
                                     const Tile& wanted) {
  if (held == wanted) return bytes;
  Shape shape = held.shape();
  Tile part = wanted;
  int64_t elements = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    elements *= shape[i];
    part.ranges[i].start -= held.ranges[i].start;
    part.ranges[i].stop -= held.ranges[i].start;
  }
  const int64_t bits = static_cast<int64_t>(bytes.size()) * 8 / elements;
  if (bits < 8) {
    const Dtype dtype = bits == 4 ? Dtype::kF4 : Dtype::kF6E2M3;
    SHARDMESH_ASSIGN_OR_RETURN(const TensorView view, TensorView::Create(dtype, shape, bytes));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t size, PackedSizeBytes(dtype, part.element_count()));
    std::string cut(static_cast<size_t>(size), '\0');
    SHARDMESH_RETURN_IF_ERROR(CopyTileBytes(view, part, 0, absl::MakeSpan(cut)));
    return cut;
  }
  shape.back() = shape.back() * bits / 8;
  part.ranges.back().start = part.ranges.back().start * bits / 8;
  part.ranges.back().stop = part.ranges.back().stop * bits / 8;
  SHARDMESH_ASSIGN_OR_RETURN(const TensorView view, TensorView::Create(Dtype::kU8, shape, bytes));
  SHARDMESH_ASSIGN_OR_RETURN(const TileRegion region, TileRegion::Create(Dtype::kU8, shape, part));
  std::string cut(static_cast<size_t>(region.size_bytes()), '\0');
  SHARDMESH_RETURN_IF_ERROR(CopyTileBytes(view, part, 0, absl::MakeSpan(cut)));
  return cut;
}

}  // namespace

std::string PutToken(const std::string& array_id) { return "put " + array_id; }
std::string GetToken(const std::string& array_id) { return "get " + array_id; }

SmallWorker::SmallWorker() { server_ = Serve({this}, &address_); }

SmallWorker::~SmallWorker() { Stop(); }

void SmallWorker::Stop() {
  if (!stopping_.HasBeenNotified()) {
    stopping_.Notify();
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }
}

void SmallWorker::FailPutsAfter(int64_t bytes, absl::Status error) {
  absl::MutexLock lock(&mutex_);
  put_failure_.emplace(bytes, std::move(error));
  fails_one_put_ = false;
}

void SmallWorker::FailNextPutAfter(int64_t bytes, absl::Status error) {
  FailPutsAfter(bytes, std::move(error));
  absl::MutexLock lock(&mutex_);
  fails_one_put_ = true;
}

void SmallWorker::StallPuts() {
  absl::MutexLock lock(&mutex_);
  stalls_puts_ = true;
}

void SmallWorker::CorruptGets() {
  absl::MutexLock lock(&mutex_);
  corrupts_gets_ = true;
}

void SmallWorker::BreakGets(int64_t tile) {
  absl::MutexLock lock(&mutex_);
  broken_tile_ = tile;
}

void SmallWorker::StallGets() {
  absl::MutexLock lock(&mutex_);
  stalls_gets_ = true;
}

void SmallWorker::ResumeGets() {
  absl::MutexLock lock(&mutex_);
  stalls_gets_ = false;
}

std::optional<std::string> SmallWorker::TileOf(const std::string& array_id, int32_t rank) const {
  absl::MutexLock lock(&mutex_);
  for (const Stored& tile : tiles_) {
    if (tile.header.array_id() == array_id && tile.header.rank() == rank) {
      return tile.bytes;
    }
  }
  return std::nullopt;
}

int64_t SmallWorker::gets() const {
  absl::MutexLock lock(&mutex_);
  return gets_;
}

int64_t SmallWorker::sent_tiles() const {
  absl::MutexLock lock(&mutex_);
  return sent_tiles_;
}

std::set<std::string> SmallWorker::traces() const {
  absl::MutexLock lock(&mutex_);
  return traces_;
}

bool SmallWorker::AwaitStalledPut() {
  return put_is_stalled_.WaitForNotificationWithTimeout(kGenerous);
}

absl::Status SmallWorker::Take(const v1::PutTilesRequest& request, Stored* open) {
  if (request.has_header()) {
    open->header = request.header();
    open->bytes.clear();
    return open->header.token() == PutToken(open->header.array_id()) ? absl::OkStatus()
                                                                     : BadToken();
  }
  const v1::TilePiece& piece = request.piece();
  if (piece.offset_bytes() != static_cast<int64_t>(open->bytes.size())) {
    return absl::InvalidArgumentError("a piece is out of order");
  }
  open->bytes += piece.data();
  if (piece.crc32c() != Crc32c(piece.data())) {
    return WithReason(absl::DataLossError("a piece is corrupted"), Reason::kChecksumMismatch);
  }
  if (piece.has_tile_crc32c()) {
    if (piece.tile_crc32c() != Crc32c(open->bytes) ||
        open->header.size_bytes() != static_cast<int64_t>(open->bytes.size())) {
      return WithReason(absl::DataLossError("a tile is corrupted"), Reason::kChecksumMismatch);
    }
    absl::MutexLock lock(&mutex_);
    tiles_.push_back(*open);
  }
  return absl::OkStatus();
}

grpc::Status SmallWorker::PutTiles(grpc::ServerContext* context,
                                   grpc::ServerReader<v1::PutTilesRequest>* reader,
                                   v1::PutTilesResponse* response) {
  {
    absl::MutexLock lock(&mutex_);
    traces_.insert(TraceOf(*context));
  }
  v1::PutTilesRequest request;
  Stored open;
  int64_t taken_bytes = 0;
  while (reader->Read(&request)) {
    taken_bytes += static_cast<int64_t>(request.piece().data().size());
    bool stalls = false;
    {
      absl::MutexLock lock(&mutex_);
      if (put_failure_.has_value() && taken_bytes >= put_failure_->first) {
        const grpc::Status failure = rpc::ToGrpc(put_failure_->second);
        if (fails_one_put_) put_failure_.reset();
        return failure;
      }
      stalls = stalls_puts_;
    }
    if (stalls) {
      if (!put_is_stalled_.HasBeenNotified()) {
        put_is_stalled_.Notify();
      }
      stopping_.WaitForNotificationWithTimeout(kGenerous);
      return grpc::Status::CANCELLED;
    }
    if (absl::Status status = Take(request, &open); !status.ok()) {
      return rpc::ToGrpc(status);
    }
    response->set_tiles(response->tiles() + (request.has_header() ? 1 : 0));
  }
  response->set_size_bytes(taken_bytes);
  response->set_durability(v1::DURABILITY_MEMORY);
  return grpc::Status::OK;
}

absl::StatusOr<std::string> SmallWorker::Cut(const v1::TileSelector& selector) const {
  SHARDMESH_ASSIGN_OR_RETURN(const Tile wanted, rpc::Decode(selector.tile()));
  for (const Stored& stored : tiles_) {
    if (stored.header.array_id() != selector.array_id()) continue;
    SHARDMESH_ASSIGN_OR_RETURN(const Tile held, rpc::Decode(stored.header.tile()));
    if (IsWithin(wanted, held)) return CutBytes(stored.bytes, held, wanted);
  }
  return absl::NotFoundError("no such tile");
}

grpc::Status SmallWorker::GetTiles(grpc::ServerContext* context, const v1::GetTilesRequest* request,
                                   grpc::ServerWriter<v1::GetTilesResponse>* writer) {
  absl::MutexLock lock(&mutex_);
  ++gets_;
  traces_.insert(TraceOf(*context));
  for (int index = 0; index < request->tiles_size(); ++index) {
    const v1::TileSelector& selector = request->tiles(index);
    if (selector.token() != GetToken(selector.array_id())) {
      return rpc::ToGrpc(BadToken());
    }
    const absl::StatusOr<std::string> bytes = Cut(selector);
    if (!bytes.ok()) return rpc::ToGrpc(bytes.status());
    v1::GetTilesResponse response;
    response.mutable_opening()->set_array_id(selector.array_id());
    *response.mutable_opening()->mutable_tile() = selector.tile();
    response.mutable_opening()->set_size_bytes(static_cast<int64_t>(bytes->size()));
    writer->Write(response);
    for (size_t offset = 0; offset < bytes->size(); offset += kPieceBytes) {
      v1::TilePiece& piece = *response.mutable_piece();
      piece.set_offset_bytes(static_cast<int64_t>(offset));
      piece.set_data(bytes->substr(offset, kPieceBytes));
      piece.set_crc32c(Crc32c(piece.data()));
      if (offset + kPieceBytes >= bytes->size()) {
        piece.set_tile_crc32c(Crc32c(*bytes));
      }
      if (corrupts_gets_) {
        piece.mutable_data()->front() ^= 1;
      }
      writer->Write(response);
      if (broken_tile_ == index) {
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the worker goes");
      }
      const auto may_go_on = [this] {
        mutex_.AssertReaderHeld();
        return !stalls_gets_;
      };
      while (!mutex_.AwaitWithTimeout(absl::Condition(&may_go_on), absl::Milliseconds(10))) {
        if (context->IsCancelled() || stopping_.HasBeenNotified()) return grpc::Status::CANCELLED;
      }
    }
    ++sent_tiles_;
  }
  return grpc::Status::OK;
}

grpc::Status SmallWorker::Identify(grpc::ServerContext* context, const v1::IdentifyRequest* request,
                                   v1::IdentifyResponse* response) {
  response->set_identity(address_);
  response->set_incarnation(7);
  return grpc::Status::OK;
}

class SmallCoordinator::Sessions final : public v1::SessionService::Service {
 public:
  explicit Sessions(SmallCoordinator* owner) : owner_(*owner) {}

  grpc::Status OpenSession(grpc::ServerContext* context, const v1::OpenSessionRequest* request,
                           v1::OpenSessionResponse* response) override {
    owner_.Pass(HeldCall::kOpenSession);
    absl::MutexLock lock(&owner_.mutex_);
    response->set_session_id(StrCat("session-", ++owner_.opened_));
    *response->mutable_ttl() = request->ttl();
    owner_.sessions_.insert(response->session_id());
    return grpc::Status::OK;
  }
  grpc::Status RenewSession(grpc::ServerContext* context, const v1::RenewSessionRequest* request,
                            v1::RenewSessionResponse* response) override {
    if (grpc::Status status = owner_.CheckSession(request->session_id()); !status.ok()) {
      return status;
    }
    absl::MutexLock lock(&owner_.mutex_);
    ++owner_.renewals_;
    if (request->held_array_ids_size() > 0) ++owner_.take_over_calls_;
    if (request->held_array_ids_size() > 0 && owner_.fails_take_overs_) {
      return rpc::ToGrpc(WithReason(absl::ResourceExhaustedError("too many awaited arrays"),
                                    Reason::kLimitExceeded));
    }
    for (int i = 0; i < request->held_array_ids_size(); ++i) {
      const std::string& array_id = request->held_array_ids(i);
      if (i >= owner_.most_taken_.value_or(request->held_array_ids_size()) ||
          owner_.never_taken_.contains(array_id)) {
        response->add_refused_array_ids(array_id);
        continue;
      }
      owner_.pinned_.insert(array_id);
      owner_.taken_.insert(array_id);
    }
    rpc::Encode(absl::Milliseconds(60), response->mutable_ttl());
    return grpc::Status::OK;
  }
  grpc::Status CloseSession(grpc::ServerContext* context, const v1::CloseSessionRequest* request,
                            v1::CloseSessionResponse* response) override {
    absl::MutexLock lock(&owner_.mutex_);
    owner_.sessions_.erase(request->session_id());
    return grpc::Status::OK;
  }

 private:
  SmallCoordinator& owner_;
};

class SmallCoordinator::Cluster final : public v1::ClusterService::Service {
 public:
  explicit Cluster(SmallCoordinator* owner) : owner_(*owner) {}

  grpc::Status GetVersion(grpc::ServerContext* context, const v1::GetVersionRequest* request,
                          v1::GetVersionResponse* response) override {
    absl::MutexLock lock(&owner_.mutex_);
    ++owner_.version_calls_;
    if (owner_.version_errors_left_ > 0) {
      --owner_.version_errors_left_;
      return rpc::ToGrpc(owner_.version_error_);
    }
    response->mutable_build()->set_version("0.1.0");
    response->set_cluster_id("small");
    return grpc::Status::OK;
  }
  grpc::Status DropCache(grpc::ServerContext* context, const v1::DropCacheRequest* request,
                         v1::DropCacheResponse* response) override {
    response->set_arrays(3);
    response->set_bytes(96);
    return grpc::Status::OK;
  }
  grpc::Status ForgetWorker(grpc::ServerContext* context, const v1::ForgetWorkerRequest* request,
                            v1::ForgetWorkerResponse* response) override {
    absl::MutexLock lock(&owner_.mutex_);
    if (owner_.workers_known_.erase(request->identity()) == 0) {
      return rpc::ToGrpc(WithReason(absl::NotFoundError("no such worker"), Reason::kNotFound));
    }
    return rpc::ToGrpc(std::exchange(owner_.forget_answer_, absl::OkStatus()));
  }
  grpc::Status WatchCluster(grpc::ServerContext* context, const v1::WatchClusterRequest* request,
                            grpc::ServerWriter<v1::WatchClusterResponse>* writer) override {
    std::vector<v1::WatchClusterResponse> changes(1);
    changes.front().mutable_started()->set_epoch(1);
    {
      absl::MutexLock lock(&owner_.mutex_);
      changes.insert(changes.end(), owner_.changes_.begin(), owner_.changes_.end());
    }
    for (const v1::WatchClusterResponse& change : changes) writer->Write(change);
    owner_.AwaitEnd(*context);
    return grpc::Status::OK;
  }

 private:
  SmallCoordinator& owner_;
};

// Nothing changes.
class SmallCoordinator::Catalog final : public v1::CatalogService::Service {
 public:
  explicit Catalog(SmallCoordinator* owner) : owner_(*owner) {}

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::WatchResponse>* writer) override {
    owner_.AwaitEnd(*context);
    return grpc::Status::OK;
  }

 private:
  SmallCoordinator& owner_;
};

class SmallCoordinator::Compute final : public v1::ComputeService::Service {
 public:
  explicit Compute(SmallCoordinator* owner) : owner_(*owner) {}

  // Answers as a coordinator of an older build, which predicts nothing.
  grpc::Status Execute(grpc::ServerContext* context, const v1::ExecuteRequest* request,
                       v1::ExecuteResponse* response) override {
    if (const absl::Status error = Find(*request); !error.ok()) return rpc::ToGrpc(error);
    response->set_sequence(1);
    response->mutable_timings()->set_sent_bytes(12);
    return Run();
  }
  // The hash of a program is its first output, written 32 times. Knows all programs that it was
  // asked to compile or to execute, until ForgetPlans.
  grpc::Status Compile(grpc::ServerContext* context, const v1::CompileRequest* request,
                       v1::CompileResponse* response) override {
    absl::MutexLock lock(&owner_.mutex_);
    response->set_plan_hash(Know(request->program()));
    if (request->program().has_symbol()) {
      response->set_length(request->program().symbol().max());
      response->mutable_shortest()->set_length(request->program().symbol().min());
    }
    return grpc::Status::OK;
  }
  // Ends a step before it reads the next one.
  grpc::Status ExecuteStream(grpc::ServerContext* context,
                             grpc::ServerReaderWriter<v1::ExecuteStreamResponse,
                                                      v1::ExecuteStreamRequest>* stream) override {
    v1::ExecuteStreamRequest request;
    bool has_failed = false;
    for (int64_t number = 1; stream->Read(&request); ++number) {
      v1::ExecuteStreamResponse response;
      response.set_number(number);
      absl::Status error =
          has_failed ? absl::AbortedError("an earlier step has failed") : Find(request.step());
      has_failed = has_failed || !error.ok();
      if (error.ok()) {
        response.mutable_response()->set_sequence(number);
      } else {
        rpc::Encode(error, response.mutable_error());
      }
      if (!stream->Write(response)) break;
    }
    return grpc::Status::OK;
  }
  grpc::Status Matmul(grpc::ServerContext* context, const v1::MatmulRequest* request,
                      v1::MatmulResponse* response) override {
    return Run();
  }
  grpc::Status Collective(grpc::ServerContext* context, const v1::CollectiveRequest* request,
                          v1::CollectiveResponse* response) override {
    return Run();
  }

 private:
  std::string Know(const v1::Program& program) ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_.mutex_) {
    ++owner_.programs_sent_;
    const char first = program.outputs_size() == 0 ? '\0' : static_cast<char>(program.outputs(0));
    std::string hash(32, first);
    owner_.known_plans_.insert(hash);
    return hash;
  }

  // Counts programs and hashes. NOT_FOUND: plans were forgotten, and that of the hash is not known.
  absl::Status Find(const v1::ExecuteRequest& request) {
    absl::MutexLock lock(&owner_.mutex_);
    if (request.has_program()) {
      Know(request.program());
      return absl::OkStatus();
    }
    if (!owner_.forgets_plans_ || owner_.known_plans_.contains(request.plan_hash())) {
      return absl::OkStatus();
    }
    return WithReason(absl::NotFoundError("no plan of that hash is remembered"), Reason::kNotFound,
                      {{fact::kKind, "plan"}});
  }

  grpc::Status Run() {
    owner_.Pass(HeldCall::kStep);
    absl::MutexLock lock(&owner_.mutex_);
    return rpc::ToGrpc(owner_.step_error_);
  }

  SmallCoordinator& owner_;
};

class SmallCoordinator::Resolve final : public v1::ResolveService::Service {
 public:
  explicit Resolve(SmallCoordinator* owner) : owner_(*owner) {}

  grpc::Status BatchResolveSpecs(grpc::ServerContext* context,
                                 const v1::BatchResolveSpecsRequest* request,
                                 v1::BatchResolveSpecsResponse* response) override {
    absl::MutexLock lock(&owner_.mutex_);
    *response = owner_.batch_answer_;
    return grpc::Status::OK;
  }

 private:
  SmallCoordinator& owner_;
};

// Every tensor of a tree gets P('tp').
class SmallCoordinator::Layouts final : public v1::LayoutService::Service {
 public:
  grpc::Status ResolveTree(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::ResolveTreeResponse, v1::ResolveTreeRequest>* stream) override {
    v1::ResolveTreeRequest request;
    v1::ResolveTreeResponse response;
    rpc::Encode(PartitionSpec({SpecEntry::Axis("tp")}), response.add_specs()->mutable_requested());
    int64_t tensors = 0;
    while (stream->Read(&request)) {
      for (int i = 0; i < request.tensors().name_sizes_size(); ++i) {
        response.mutable_placements()->add_spec_indexes(0);
        response.mutable_placements()->add_rules(static_cast<uint32_t>(tensors++ % 7));
      }
      stream->Write(response);
      response.Clear();
    }
    response.mutable_report()->set_tensors(tensors);
    response.set_revision(5);
    stream->Write(response);
    return grpc::Status::OK;
  }
};

class SmallCoordinator::Operations final : public v1::OperationService::Service {
 public:
  explicit Operations(SmallCoordinator* owner) : owner_(*owner) {}

  // Reports once, and again when transfers fail.
  grpc::Status WatchOperation(grpc::ServerContext* context,
                              const v1::WatchOperationRequest* request,
                              grpc::ServerWriter<v1::WatchOperationResponse>* writer) override {
    v1::WatchOperationResponse response;
    response.mutable_operation()->set_operation_id(request->operation_id());
    response.mutable_operation()->set_state(v1::OPERATION_STATE_RUNNING);
    response.mutable_operation()->mutable_start_time();
    writer->Write(response);
    owner_.Trace(*context);
    absl::MutexLock lock(&owner_.mutex_);
    if (request->operation_id() == kCopyOperation) {
      owner_.arrays_[owner_.copied_].mutable_replicas()->set_complete(2);
    }
    if (!owner_.watch_error_.ok()) return rpc::ToGrpc(owner_.watch_error_);
    const auto has_ended = [this, context] {
      return !owner_.transfer_error_.ok() || owner_.stopping_ || context->IsCancelled();
    };
    for (const absl::Time limit = absl::Now() + kGenerous; !has_ended() && absl::Now() < limit;) {
      owner_.mutex_.AwaitWithTimeout(absl::Condition(&has_ended), absl::Milliseconds(20));
      if (owner_.watches_report_on_) writer->Write(response);
    }
    if (!owner_.transfer_error_.ok()) {
      response.mutable_operation()->set_state(v1::OPERATION_STATE_FAILED);
      rpc::Encode(owner_.transfer_error_, response.mutable_operation()->mutable_error());
      writer->Write(response);
    }
    return grpc::Status::OK;
  }

  grpc::Status ReportGet(grpc::ServerContext*, grpc::ServerReader<v1::ReportGetRequest>* reader,
                         v1::ReportGetResponse* response) override {
    size_t number = 0;
    absl::Status error;
    {
      absl::MutexLock lock(&owner_.mutex_);
      number = owner_.get_reports_.size();
      owner_.get_reports_.emplace_back();
      if (!owner_.report_errors_.empty()) {
        error = std::move(owner_.report_errors_.front());
        owner_.report_errors_.pop_front();
      }
    }
    for (v1::ReportGetRequest request; reader->Read(&request);) {
      absl::MutexLock lock(&owner_.mutex_);
      owner_.get_reports_[number].push_back(request);
      const bool is_due = request.has_result() || !owner_.are_reports_ended_at_result_;
      if (!error.ok() && is_due) return rpc::ToGrpc(error);
    }
    response->set_operation_id(StrCat("get-", number));
    return grpc::Status::OK;
  }

 private:
  SmallCoordinator& owner_;
};

SmallCoordinator::SmallCoordinator(Mesh mesh, std::vector<SmallWorker*> workers)
    : mesh_(std::move(mesh)), workers_(std::move(workers)) {
  others_.push_back(std::make_unique<Sessions>(this));
  others_.push_back(std::make_unique<Cluster>(this));
  others_.push_back(std::make_unique<Catalog>(this));
  others_.push_back(std::make_unique<Compute>(this));
  others_.push_back(std::make_unique<Layouts>());
  others_.push_back(std::make_unique<Operations>(this));
  others_.push_back(std::make_unique<Resolve>(this));
  std::vector<grpc::Service*> services = {this};
  for (const std::unique_ptr<grpc::Service>& service : others_) {
    services.push_back(service.get());
  }
  server_ = Serve(services, &address_);
}

SmallCoordinator::~SmallCoordinator() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

std::vector<TransferDevice> SmallCoordinator::devices() const {
  std::vector<TransferDevice> devices;
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    devices.push_back({.rank = static_cast<int32_t>(rank),
                       .identity = StrCat("w-", rank),
                       .incarnation = 1,
                       .addresses = {workers_[rank]->address()}});
  }
  return devices;
}

void SmallCoordinator::FailTransfers(absl::Status error) {
  absl::MutexLock lock(&mutex_);
  transfer_error_ = std::move(error);
}

void SmallCoordinator::EndNextReports(std::vector<absl::Status> errors, bool at_result) {
  absl::MutexLock lock(&mutex_);
  are_reports_ended_at_result_ = at_result;
  report_errors_.assign(errors.begin(), errors.end());
}

std::vector<std::vector<v1::ReportGetRequest>> SmallCoordinator::get_reports() const {
  absl::MutexLock lock(&mutex_);
  return get_reports_;
}

void SmallCoordinator::FailNextCommits(std::vector<absl::Status> errors) {
  absl::MutexLock lock(&mutex_);
  commit_errors_.assign(errors.begin(), errors.end());
}

void SmallCoordinator::LoseAnswersToCommits(absl::Status error) {
  absl::MutexLock lock(&mutex_);
  commit_answer_ = std::move(error);
}

void SmallCoordinator::RefuseAborts(absl::Status error) {
  absl::MutexLock lock(&mutex_);
  abort_error_ = std::move(error);
}

void SmallCoordinator::ForgetPlans() {
  absl::MutexLock lock(&mutex_);
  known_plans_.clear();
  forgets_plans_ = true;
}

int64_t SmallCoordinator::programs_sent() const {
  absl::MutexLock lock(&mutex_);
  return programs_sent_;
}

void SmallCoordinator::FailSteps(absl::Status error) {
  absl::MutexLock lock(&mutex_);
  step_error_ = std::move(error);
}

void SmallCoordinator::FailNextGetVersion(absl::Status error) {
  FailGetVersions(std::move(error), 1);
}

void SmallCoordinator::FailGetVersions(absl::Status error, int count) {
  absl::MutexLock lock(&mutex_);
  version_error_ = std::move(error);
  version_errors_left_ = count;
}

int SmallCoordinator::version_calls() const {
  absl::MutexLock lock(&mutex_);
  return version_calls_;
}

void SmallCoordinator::FailNextPuts(std::vector<absl::Status> errors) {
  absl::MutexLock lock(&mutex_);
  put_errors_.assign(errors.begin(), errors.end());
}

void SmallCoordinator::GetElements(Elements elements) {
  absl::MutexLock lock(&mutex_);
  elements_ = elements;
}

void SmallCoordinator::InEachPut(std::function<void()> run) {
  absl::MutexLock lock(&mutex_);
  in_put_ = std::move(run);
}

void SmallCoordinator::ForgetSessions() {
  absl::MutexLock lock(&mutex_);
  sessions_.clear();
  pinned_.clear();
}

void SmallCoordinator::LimitTakeOvers(std::optional<int> arrays) {
  absl::MutexLock lock(&mutex_);
  most_taken_ = arrays;
}

void SmallCoordinator::FailTakeOvers() {
  absl::MutexLock lock(&mutex_);
  fails_take_overs_ = true;
}

void SmallCoordinator::RefuseToTake(std::set<std::string> array_ids) {
  absl::MutexLock lock(&mutex_);
  never_taken_ = std::move(array_ids);
}

void SmallCoordinator::RefuseReleases(absl::Status error) {
  absl::MutexLock lock(&mutex_);
  release_error_ = std::move(error);
}

std::set<std::string> SmallCoordinator::taken_arrays() const {
  absl::MutexLock lock(&mutex_);
  return taken_;
}

int64_t SmallCoordinator::take_over_calls() const {
  absl::MutexLock lock(&mutex_);
  return take_over_calls_;
}

void SmallCoordinator::Hold(HeldCall call) {
  absl::MutexLock lock(&mutex_);
  held_.insert(call);
}

void SmallCoordinator::LetGo(HeldCall call) {
  absl::MutexLock lock(&mutex_);
  held_.erase(call);
}

bool SmallCoordinator::AwaitHeld(HeldCall call) {
  absl::MutexLock lock(&mutex_);
  const auto is_held = [this, call] { return waiting_.contains(call); };
  return mutex_.AwaitWithTimeout(absl::Condition(&is_held), kGenerous);
}

void SmallCoordinator::OfferSecondCopy(v1::SecondCopy copy) {
  absl::MutexLock lock(&mutex_);
  second_copy_ = std::move(copy);
}

void SmallCoordinator::BeforeNextGet(std::function<void()> run) {
  absl::MutexLock lock(&mutex_);
  before_get_ = std::move(run);
}

void SmallCoordinator::CopyWhileWatched(const std::string& name, bool reports_on) {
  absl::MutexLock lock(&mutex_);
  copied_ = name;
  watches_report_on_ = reports_on;
  v1::ArrayReplicas& replicas = *arrays_[name].mutable_replicas();
  replicas.set_wanted(2);
  replicas.set_complete(1);
  replicas.set_operation_id(kCopyOperation);
}

void SmallCoordinator::MoveName(const std::string& name, const std::string& to) {
  absl::MutexLock lock(&mutex_);
  v1::Array array = arrays_[to];
  array.set_name(name);
  array.set_name_version(arrays_[name].name_version() + 1);
  arrays_[name] = std::move(array);
}

void SmallCoordinator::ReportChanges(std::vector<v1::WatchClusterResponse> changes) {
  absl::MutexLock lock(&mutex_);
  changes_ = std::move(changes);
}

void SmallCoordinator::LoseNextAnswerToForget(absl::Status error) {
  absl::MutexLock lock(&mutex_);
  forget_answer_ = std::move(error);
}

void SmallCoordinator::AnswerBatchesWith(v1::BatchResolveSpecsResponse response) {
  absl::MutexLock lock(&mutex_);
  batch_answer_ = std::move(response);
}

int64_t SmallCoordinator::answered_gets() const {
  absl::MutexLock lock(&mutex_);
  return answered_gets_;
}

bool SmallCoordinator::AwaitAnsweredGets(int64_t count) {
  absl::MutexLock lock(&mutex_);
  const auto are_enough = [this, count] { return answered_gets_ >= count; };
  return mutex_.AwaitWithTimeout(absl::Condition(&are_enough), kGenerous);
}

std::set<std::string> SmallCoordinator::released_arrays() const {
  absl::MutexLock lock(&mutex_);
  return released_;
}

std::set<std::string> SmallCoordinator::pinned_arrays() const {
  absl::MutexLock lock(&mutex_);
  return pinned_;
}

std::set<std::string> SmallCoordinator::traces() const {
  absl::MutexLock lock(&mutex_);
  return traces_;
}

void SmallCoordinator::Pass(HeldCall call) {
  absl::MutexLock lock(&mutex_);
  const auto waiting = waiting_.insert(call);
  const auto may_pass = [this, call] { return !held_.contains(call) || stopping_; };
  mutex_.AwaitWithTimeout(absl::Condition(&may_pass), kGenerous);
  waiting_.erase(waiting);
}

void SmallCoordinator::Trace(const grpc::ServerContext& context) {
  absl::MutexLock lock(&mutex_);
  traces_.insert(TraceOf(context));
}

void SmallCoordinator::AwaitEnd(const grpc::ServerContext& context) {
  absl::MutexLock lock(&mutex_);
  const auto has_ended = [this, &context] { return stopping_ || context.IsCancelled(); };
  for (const absl::Time limit = absl::Now() + kGenerous; !has_ended() && absl::Now() < limit;) {
    mutex_.AwaitWithTimeout(absl::Condition(&has_ended), absl::Milliseconds(20));
  }
}

int64_t SmallCoordinator::opened_sessions() const {
  absl::MutexLock lock(&mutex_);
  return opened_;
}

int64_t SmallCoordinator::open_sessions() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(sessions_.size());
}

int64_t SmallCoordinator::aborted_transfers() const {
  absl::MutexLock lock(&mutex_);
  return aborts_;
}

absl::Status SmallCoordinator::last_abort() const {
  absl::MutexLock lock(&mutex_);
  return last_abort_;
}

std::vector<std::string> SmallCoordinator::put_checkpoints() const {
  absl::MutexLock lock(&mutex_);
  return put_checkpoints_;
}

std::vector<std::string> SmallCoordinator::put_request_ids() const {
  absl::MutexLock lock(&mutex_);
  return put_request_ids_;
}

bool SmallCoordinator::AwaitRenewals(int64_t count) {
  absl::MutexLock lock(&mutex_);
  const auto are_enough = [this, count] { return renewals_ >= count; };
  return mutex_.AwaitWithTimeout(absl::Condition(&are_enough), kGenerous);
}

grpc::Status SmallCoordinator::CheckSession(const std::string& session_id) const {
  absl::MutexLock lock(&mutex_);
  return sessions_.contains(session_id)
             ? grpc::Status::OK
             : rpc::ToGrpc(
                   WithReason(absl::NotFoundError("no such session"), Reason::kSessionGone));
}

grpc::Status SmallCoordinator::BeginPut(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::BeginPutResponse, v1::BeginPutRequest>* stream) {
  Trace(*context);
  v1::BeginPutRequest request;
  v1::BeginPutResponse response;
  stream->Read(&request);
  if (grpc::Status status = CheckSession(request.header().session_id()); !status.ok()) {
    return status;
  }
  {
    absl::MutexLock lock(&mutex_);
    put_request_ids_.push_back(request.header().request_id());
    put_checkpoints_.push_back(request.header().checkpoint());
    if (in_put_) in_put_();
    if (!put_errors_.empty()) {
      const absl::Status error = std::move(put_errors_.front());
      put_errors_.pop_front();
      return rpc::ToGrpc(error);
    }
  }
  const bool is_check = request.header().validate_only();
  if (!is_check) response.set_transfer_id("transfer");
  response.mutable_expire_time();
  for (const TransferDevice& device : devices()) {
    v1::DeviceEndpoint& endpoint = *response.add_devices();
    endpoint.set_rank(device.rank);
    endpoint.set_identity(device.identity);
    endpoint.add_endpoints()->set_address(device.addresses[0]);
  }
  absl::MutexLock lock(&mutex_);
  staged_.clear();
  while (stream->Read(&request)) {
    for (const v1::PutTensor& tensor : request.tensors().tensors()) {
      v1::PutAssignment& assignment = *response.add_assignments();
      v1::ArrayDescriptor& array = *assignment.mutable_array_descriptor();
      array.set_array_id(StrCat("array-", next_array_++));
      array.set_dtype(tensor.dtype());
      *array.mutable_shape() = tensor.shape();
      *array.mutable_spec() = tensor.spec();
      array.set_mesh_id("default");
      rpc::Encode(mesh_, array.mutable_mesh());
      if (tensor.has_content()) claims_.push_back(tensor.content());
      if (is_check) continue;
      const bool has_source = tensor.has_source() || tensor.has_converted_source();
      if (elements_ == Elements::kSent || elements_ == Elements::kPartlyReused ||
          (elements_ == Elements::kRead && !has_source)) {
        assignment.set_token(PutToken(array.array_id()));
      }
      if (elements_ == Elements::kReused) assignment.mutable_reused();
      if (elements_ == Elements::kPartlyReused) assignment.mutable_reused()->add_sent_ranks(0);
      v1::Array& staged = staged_.emplace_back();
      *staged.mutable_array_descriptor() = array;
      staged.set_name(tensor.name());
      staged.set_name_version(1);
      staged.set_state(v1::ARRAY_STATE_AVAILABLE);
      staged.mutable_create_time();
    }
    stream->Write(response);
    response.Clear();
  }
  if (!response.transfer_id().empty()) {  // There were no tensors.
    stream->Write(response);
  }
  return grpc::Status::OK;
}

void SmallCoordinator::FailWatches(absl::Status error) {
  absl::MutexLock lock(&mutex_);
  watch_error_ = std::move(error);
}

void SmallCoordinator::AnswerContentWith(v1::FindContentResponse response) {
  absl::MutexLock lock(&mutex_);
  content_answer_ = std::move(response);
}

int64_t SmallCoordinator::content_questions() const {
  absl::MutexLock lock(&mutex_);
  return content_questions_;
}

std::vector<v1::TensorContent> SmallCoordinator::claims() const {
  absl::MutexLock lock(&mutex_);
  return claims_;
}

grpc::Status SmallCoordinator::FindContent(grpc::ServerContext* context,
                                           const v1::FindContentRequest* request,
                                           v1::FindContentResponse* response) {
  Trace(*context);
  absl::MutexLock lock(&mutex_);
  if (!content_answer_.has_value()) return {grpc::StatusCode::UNIMPLEMENTED, ""};
  content_questions_ += request->tensors_size();
  *response = *content_answer_;
  return grpc::Status::OK;
}

grpc::Status SmallCoordinator::CommitTransfer(grpc::ServerContext* context,
                                              const v1::CommitTransferRequest* request,
                                              v1::CommitTransferResponse* response) {
  Trace(*context);
  Pass(HeldCall::kCommit);
  absl::MutexLock lock(&mutex_);
  if (!transfer_error_.ok()) {
    return rpc::ToGrpc(transfer_error_);
  }
  if (!commit_errors_.empty()) {
    const absl::Status error = std::move(commit_errors_.front());
    commit_errors_.pop_front();
    return rpc::ToGrpc(error);
  }
  for (v1::Array& array : staged_) {
    response->add_array_ids(array.array_descriptor().array_id());
    arrays_[array.name()] = std::move(array);
  }
  staged_.clear();
  if (!commit_answer_.ok()) {
    return rpc::ToGrpc(commit_answer_);
  }
  response->set_revision(42);
  response->set_durability(v1::DURABILITY_MEMORY);
  response->mutable_transfer_time();
  return grpc::Status::OK;
}

grpc::Status SmallCoordinator::AbortTransfer(grpc::ServerContext* context,
                                             const v1::AbortTransferRequest* request,
                                             v1::AbortTransferResponse* response) {
  Trace(*context);
  absl::MutexLock lock(&mutex_);
  if (!abort_error_.ok()) {
    return rpc::ToGrpc(abort_error_);
  }
  ++aborts_;
  last_abort_ = rpc::Decode(request->error());
  staged_.clear();
  return grpc::Status::OK;
}

grpc::Status SmallCoordinator::ReleaseArrays(grpc::ServerContext* context,
                                             const v1::ReleaseArraysRequest* request,
                                             v1::ReleaseArraysResponse* response) {
  if (grpc::Status status = CheckSession(request->session_id()); !status.ok()) {
    return status;
  }
  Trace(*context);
  absl::MutexLock lock(&mutex_);
  if (!release_error_.ok()) return rpc::ToGrpc(release_error_);
  for (const std::string& array_id : request->array_ids()) {
    released_.insert(array_id);
    response->set_released(response->released() + static_cast<int32_t>(pinned_.erase(array_id)));
  }
  return grpc::Status::OK;
}

std::map<std::string, v1::Array>::iterator SmallCoordinator::Find(const v1::ArraySelector& wanted) {
  if (!wanted.has_array_id()) return arrays_.find(wanted.name());
  return std::find_if(arrays_.begin(), arrays_.end(), [&wanted](const auto& each) {
    return each.second.array_descriptor().array_id() == wanted.array_id();
  });
}

grpc::Status SmallCoordinator::DescribeArray(grpc::ServerContext* context,
                                             const v1::DescribeArrayRequest* request,
                                             v1::DescribeArrayResponse* response) {
  Trace(*context);
  absl::MutexLock lock(&mutex_);
  const auto found = Find(request->array());
  if (found == arrays_.end()) return rpc::ToGrpc(NoArray(request->array()));
  *response->mutable_array() = found->second;
  return grpc::Status::OK;
}

grpc::Status SmallCoordinator::BeginGet(grpc::ServerContext* context,
                                        const v1::BeginGetRequest* request,
                                        v1::BeginGetResponse* response) {
  if (grpc::Status status = CheckSession(request->session_id()); !status.ok()) {
    return status;
  }
  Trace(*context);
  Pass(HeldCall::kBeginGet);
  std::function<void()> before;
  {
    absl::MutexLock lock(&mutex_);
    before = std::exchange(before_get_, nullptr);
  }
  if (before) before();
  absl::MutexLock lock(&mutex_);
  const auto found = Find(request->array());
  if (found == arrays_.end()) return rpc::ToGrpc(NoArray(request->array()));
  if (request->has_slice()) {
    const absl::StatusOr<ArrayDescriptor> array = rpc::Decode(found->second.array_descriptor());
    const absl::StatusOr<Tile> slice = rpc::Decode(request->slice());
    for (size_t dim = 0; array.ok() && slice.ok() && dim < array->shape.size(); ++dim) {
      if (slice->ranges[dim].stop > array->shape[dim]) {
        return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "beyond the array");
      }
    }
  }
  *response->mutable_array() = found->second;
  response->set_pinned(pinned_.insert(found->second.array_descriptor().array_id()).second);
  ++answered_gets_;
  for (const TransferDevice& device : devices()) {
    v1::DeviceEndpoint& endpoint = *response->add_devices();
    endpoint.set_rank(device.rank);
    endpoint.set_identity(device.identity);
    endpoint.add_endpoints()->set_address(device.addresses[0]);
  }
  response->set_token(GetToken(found->second.array_descriptor().array_id()));
  if (second_copy_.has_value() && request->accept_second_copy()) {
    *response->mutable_second_copy() = *second_copy_;
  }
  return grpc::Status::OK;
}

// Pages of one array each.
grpc::Status SmallCoordinator::ListArrays(grpc::ServerContext* context,
                                          const v1::ListArraysRequest* request,
                                          v1::ListArraysResponse* response) {
  absl::MutexLock lock(&mutex_);
  const auto first = arrays_.upper_bound(request->page_token());
  if (first != arrays_.end()) {
    *response->add_arrays() = first->second;
    if (std::next(first) != arrays_.end()) {
      response->set_next_page_token(first->first);
    }
  }
  return grpc::Status::OK;
}

}  // namespace shardmesh::client::test
