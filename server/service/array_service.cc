// Arrays on the wire. Blocks nowhere: commits answer from the store's thread, and rules that take
// long are compiled in the background.
#include "server/service/array_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "process/random_id.h"
#include "rpc/caller.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "rpc/stream/message_bytes.h"
#include "rpc/stream/outbox.h"
#include "rpc/transfer_token.h"
#include "server/resolve/background.h"
#include "server/resolve/resolve_answers.h"
#include "server/resolve/tree_resolver.h"
#include "server/service/array_view_codec.h"
#include "server/service/caller_count.h"
#include "server/service/service_mixins.h"
#include "server/state/session_pins.h"
#include "server/steps/put_memory.h"
#include "sharding/digest.h"
#include "shardmesh/v1/array_service.grpc.pb.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// How long streams may be opened with a token to read an array, at most; those that are open go on.
// A client that needs longer begins again.
constexpr absl::Duration kGetTimeout = absl::Minutes(5);
// What of an answer is sent in one message.
constexpr int64_t kPieceBytes = int64_t{512} << 10;
// Of a page of arrays, so that it stays below a message's limit with the last one.
constexpr int64_t kListBytes = int64_t{2} << 20;
constexpr int kMaxReleased = 10'000;
// The answer to a put's commit names its arrays, in one message and in one transaction.
constexpr int64_t kMaxPutTensors = 40'000;
// Without a deadline of its own a commit waits so long for missing tiles.
constexpr absl::Duration kCommitTimeout = absl::Minutes(5);

// The contract's expected_version: 0 any, -1 none, else that one. The registry's: nullopt, 0,
// that.
std::optional<int64_t> DecodeExpectedVersion(int64_t version) {
  if (version == 0) {
    return std::nullopt;
  }
  return std::max<int64_t>(version, 0);
}

void Encode(const RankEndpoint& from, v1::DeviceEndpoint* to) {
  to->set_rank(static_cast<int32_t>(from.rank));
  to->set_identity(from.identity);
  to->set_incarnation(from.incarnation);
  for (const std::string& address : from.endpoints) {
    to->add_endpoints()->set_address(address);
  }
}

// A put as its client describes it, and the answer that it gets.
class PutPlan {
 public:
  explicit PutPlan(const CoordinatorParts& context) : context_(context) {}

  // Whether taking it is too much for a reaction.
  static bool TakesLong(const v1::BeginPutHeader& header) {
    return CompilesLong(header.rule_set());
  }

  // CANCELLED soon after `is_cancelled` says so.
  absl::Status TakeHeader(const v1::BeginPutHeader& header, const rpc::Caller& caller,
                          const std::function<bool()>& is_cancelled) {
    SHARDMESH_RETURN_IF_ERROR(rpc::CheckRequestId(header.request_id(), "header.request_id"));
    SHARDMESH_RETURN_IF_ERROR(context_.sessions->Check(header.session_id(), caller));
    fingerprint_ = Sha256(header.SerializeAsString());
    if (header.source().has_path()) {
      return WithReason(absl::UnimplementedError("workers do not read files by themselves in this "
                                                 "build; stream the tensors instead"),
                        Reason::kNotAvailable);
    }
    if (header.release_first()) {
      return WithReason(absl::UnimplementedError("release_first is not done by this build; delete "
                                                 "the names first"),
                        Reason::kNotAvailable);
    }
    if (header.mesh().has_inline_()) {
      return rpc::BadField("header.mesh", "is given inline; arrays lie on meshes of the catalog");
    }
    mesh_id_ = header.mesh().name().empty() ? "default" : header.mesh().name();
    if (NamesVersion(mesh_id_)) {
      return rpc::BadField("header.mesh", StrCat(PythonRepr(mesh_id_),
                                                 " names a version; arrays lie on a mesh as it is "
                                                 "now, write ",
                                                 mesh_id_.substr(0, mesh_id_.find('@'))));
    }
    const std::shared_ptr<const Definitions> shared_state =
        context_.definition_store->shared_state();
    const Definitions& state = *shared_state;
    SHARDMESH_ASSIGN_OR_RETURN(const auto definition, state.Find(DefinitionKind::kMesh, mesh_id_));
    mesh_ = std::get<rpc::MeshDefinition>(definition->value).mesh;
    mesh_revision_ = definition->revision;
    SHARDMESH_RETURN_IF_ERROR(context_.hub->CheckReady(mesh_id_));

    TreeQuestion question;
    question.mesh = mesh_;
    auto strict = rpc::DecodeIsStrict(header.policy());
    if (!strict.ok()) {
      return rpc::WithField(strict.status(), "header.policy");
    }
    question.strict = strict_ = *strict;
    auto rules = SelectRules(state, header.rule_set(), Compatibility::kDefault, is_cancelled);
    if (!rules.ok()) {
      return rpc::WithField(rules.status(), "header.rule_set");
    }
    question.rules = *std::move(rules);
    SHARDMESH_ASSIGN_OR_RETURN(resolver_, TreeResolver::Create(std::move(question)));
    hold_ = header.hold();
    session_id_ = header.session_id();
    request_id_ = header.request_id();
    return absl::OkStatus();
  }

  bool has_header() const { return resolver_ != nullptr; }
  bool hold() const { return hold_; }
  // Under which PutMemory knows the request, and a digest of all that was taken.
  std::string key() const { return RequestKey(session_id_, "BeginPut", request_id_); }
  const std::string& fingerprint() const { return fingerprint_; }

  absl::Status TakeTensor(const v1::PutTensor& tensor) {
    fingerprint_ = Sha256(StrCat(fingerprint_, tensor.SerializeAsString()));
    PutItem item;
    ArrayDescriptor& array = item.definition.descriptor;
    item.name = tensor.name();
    if (!item.name.empty()) {
      SHARDMESH_RETURN_IF_ERROR(rpc::CheckArrayName(item.name, "name"));
      if (!names_.insert(item.name).second) {
        return rpc::BadField("name", "is listed twice");
      }
    }
    if (tensor.expected_version() < -1) {
      return rpc::BadField("expected_version", "is below -1");
    }
    item.expected_version = DecodeExpectedVersion(tensor.expected_version());
    array.array_id = RandomId();
    auto dtype = rpc::Decode(tensor.dtype());
    if (!dtype.ok()) {
      return rpc::WithField(dtype.status(), "dtype");
    }
    array.dtype = *dtype;
    auto shape = rpc::DecodeShape(tensor.shape());
    if (!shape.ok()) {
      return rpc::WithField(shape.status(), "shape");
    }
    array.shape = *std::move(shape);
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(array.shape));
    SHARDMESH_RETURN_IF_ERROR(PackedSizeBytes(array.dtype, elements).status());
    array.mesh_id = mesh_id_;
    array.mesh_revision = mesh_revision_;
    array.mesh = mesh_;
    auto cut_points = rpc::DecodeCutPoints(tensor.cut_points(), array.shape);
    if (!cut_points.ok()) {
      return rpc::WithField(cut_points.status(), "cut_points");
    }
    array.cut_points = *std::move(cut_points);
    SHARDMESH_RETURN_IF_ERROR(Place(tensor, &item.definition));
    items_.push_back(std::move(item));
    return absl::OkStatus();
  }

  // Begins the transfer. The plan has no tensors any more afterwards.
  absl::StatusOr<BegunPutPtr> Begin() {
    if (items_.empty()) {
      return rpc::BadField("tensors", "is empty; a put needs at least one tensor");
    }
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<RankEndpoint> endpoints,
                               context_.hub->Endpoints(mesh_id_));
    if (static_cast<int64_t>(endpoints.size()) != mesh_.size()) {
      SHARDMESH_RETURN_IF_ERROR(context_.hub->CheckReady(mesh_id_));
      return MeshChanged();
    }
    SHARDMESH_ASSIGN_OR_RETURN(const auto mesh, context_.definition_store->shared_state()->Find(
                                                    DefinitionKind::kMesh, mesh_id_));
    if (mesh->revision != mesh_revision_) {
      return MeshChanged();
    }
    SHARDMESH_RETURN_IF_ERROR(CheckMemory(endpoints));
    std::vector<std::string> identities;
    for (const RankEndpoint& endpoint : endpoints) {
      identities.push_back(endpoint.identity);
    }
    auto put = std::make_shared<BegunPut>();
    put->session_id = session_id_;
    put->devices = std::move(endpoints);
    put->items = std::move(items_);
    put->corrections = std::move(corrections_);
    // The transfer keeps what a repeated request needs, as long as it lives.
    SHARDMESH_ASSIGN_OR_RETURN(
        put->transfer_id,
        context_.transfers->Begin(session_id_, mesh_id_, identities,
                                  std::shared_ptr<const std::vector<PutItem>>(put, &put->items)));
    put->expire_time = context_.clock->Now() + Transfers::kTimeout;
    return put;
  }

 private:
  absl::Status MeshChanged() const {
    return rpc::WithRetryDelay(
        WithReason(absl::FailedPreconditionError(
                       StrCat("the mesh \"", mesh_id_, "\" changed meanwhile; put again")),
                   Reason::kMeshIncomplete),
        absl::Milliseconds(100));
  }

  // Gives the array its spec: the tensor's own, or the rules'.
  absl::Status Place(const v1::PutTensor& tensor, ArrayDefinition* definition) {
    ArrayDescriptor* array = &definition->descriptor;
    if (tensor.has_spec()) {
      auto spec = rpc::Decode(tensor.spec());
      if (!spec.ok()) {
        return rpc::WithField(spec.status(), "spec");
      }
      if (!array->cut_points.empty()) {
        array->spec = *std::move(spec);  // must fit as it is; correction knows equal parts alone
        corrections_.emplace_back();
        return array->Tiling().status();
      }
      SHARDMESH_ASSIGN_OR_RETURN(CorrectionResult corrected, Correct(*spec, array->shape, mesh_));
      if (strict_ && !corrected.corrections.empty()) {
        const Correction& first = corrected.corrections.front();
        return InvalidArgument(first.reason, first.ToString(mesh_));
      }
      if (!corrected.corrections.empty()) {
        definition->requested_spec = *std::move(spec);
      }
      array->spec = std::move(corrected.effective);
      corrections_.push_back(std::move(corrected.corrections));
      return absl::OkStatus();
    }
    if (tensor.name().empty()) {
      return rpc::BadField("spec", "is not set, and a tensor without a name matches no rule");
    }
    const TreeTensor named{.name = tensor.name(), .shape = array->shape, .dtype = array->dtype};
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<TreePlacement> placements,
                               resolver_->Add({named}));
    const TreeSpec& spec = resolver_->specs()[placements.front().spec_index];
    if (!spec.corrections.empty()) {
      definition->requested_spec = spec.requested;
    }
    array->spec = spec.effective;
    corrections_.push_back(spec.corrections);
    return absl::OkStatus();
  }

  // A put that cannot fit is refused before a byte of it moves.
  absl::Status CheckMemory(const std::vector<RankEndpoint>& endpoints) const {
    int64_t need_bytes = 0;
    for (const PutItem& item : items_) {
      const ArrayDescriptor& descriptor = item.definition.descriptor;
      SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, descriptor.Tiling());
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(tiling.ShardShape()));
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, PackedSizeBytes(descriptor.dtype, elements));
      if (__builtin_add_overflow(need_bytes, bytes, &need_bytes)) {
        need_bytes = std::numeric_limits<int64_t>::max();
      }
    }
    const std::shared_ptr<const MembershipView> view = context_.membership->view();
    for (const RankEndpoint& endpoint : endpoints) {
      const WorkerStatus* worker = view->FindWorker(endpoint.identity);
      const int64_t have_bytes = worker->info.capacity_bytes - worker->used_bytes();
      if (need_bytes > have_bytes) {
        const Transfers::Live live = context_.transfers->LivePuts();
        const std::string others =
            live.puts == 0 ? std::string("release arrays,")
                           : StrCat("wait for ", live.puts, live.puts == 1 ? " put" : " puts",
                                    " under way, which stage about ", live.bytes_per_rank,
                                    " bytes on each rank, release arrays,");
        return WithReason(
            absl::ResourceExhaustedError(StrCat(
                "rank ", endpoint.rank, " (worker \"", endpoint.identity, "\") has ", have_bytes,
                " of ", worker->info.capacity_bytes, " bytes left, and the put needs ", need_bytes,
                " there; ", others, " or start workers with more --memory")),
            Reason::kMemoryLimit);
      }
    }
    return absl::OkStatus();
  }

  const CoordinatorParts& context_;
  std::string session_id_;
  std::string request_id_;
  std::string fingerprint_;
  std::string mesh_id_;
  Revision mesh_revision_ = 0;
  Mesh mesh_;
  bool strict_ = false;
  bool hold_ = false;
  std::unique_ptr<TreeResolver> resolver_;
  absl::flat_hash_set<std::string> names_;
  std::vector<PutItem> items_;
  std::vector<std::vector<Correction>> corrections_;  // by item
};

// The messages of an answer to BeginPut, made one by one: tokens are signed as they are sent.
class PutAnswer {
 public:
  PutAnswer(const CoordinatorParts& context, BegunPutPtr put)
      : context_(context), put_(std::move(put)) {}

  bool is_at_end() const { return next_ == put_->items.size(); }

  // The next message; the first one if there was none.
  v1::BeginPutResponse Next() {
    rpc::TransferClaims claims{.direction = rpc::TransferDirection::kPut,
                               .transfer_id = put_->transfer_id,
                               .session_id = put_->session_id,
                               .array = {},
                               .term = context_.term,
                               .expire_time = put_->expire_time};
    v1::BeginPutResponse message;
    if (next_ == 0) {
      message.set_transfer_id(put_->transfer_id);
      message.set_term(context_.term);
      rpc::Encode(put_->expire_time, message.mutable_expire_time());
      for (const RankEndpoint& endpoint : put_->devices) {
        Encode(endpoint, message.add_devices());
      }
    }
    for (int64_t size_bytes = 0; !is_at_end() && size_bytes <= kPieceBytes; ++next_) {
      claims.array = put_->items[next_].definition.descriptor;
      v1::PutAssignment* assignment = message.add_assignments();
      rpc::Encode(claims.array, assignment->mutable_array_descriptor());
      assignment->set_token(rpc::SignToken(claims, context_.token_key));
      for (const Correction& correction : put_->corrections[next_]) {
        rpc::Encode(correction, assignment->add_corrections());
      }
      size_bytes += static_cast<int64_t>(assignment->ByteSizeLong());
    }
    return message;
  }

 private:
  const CoordinatorParts& context_;
  const BegunPutPtr put_;
  size_t next_ = 0;  // of its items
};

// A put whose tensors do not come is ended: after so long without a message, and in all.
constexpr absl::Duration kIdleLimit = absl::Seconds(30);
constexpr absl::Duration kTakeLimit = absl::Minutes(5);

// BeginPut, written straight:
//   plan.TakeHeader(read()), on a thread of the background if that takes long
//   while (tensors = read()) plan.TakeTensor(each)
//   put = memory.Find(plan), or plan.Begin()
//   while (!answer.is_at_end()) write(answer.Next())
//   if (plan.hold()) wait for the transfer's end; abort it if the client goes before its commit
//   finish
class BeginPutReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // All outlive it.
  BeginPutReactor(const CoordinatorParts& context, PutMemory* begun,
                  const grpc::CallbackServerContext* call, Background* background,
                  CallerCount* streams)
      : context_(context),
        begun_(begun),
        call_(call),
        caller_(rpc::CallerOf(*call)),
        background_(background),
        place_(streams->Take(caller_.name)),
        take_by_(context.clock->Now() + kTakeLimit),
        plan_(context),
        idle_(std::make_unique<rpc::Alarm>(context.clock, [this] { EndIfIdle(); })) {
    if (!place_.has_value()) {
      Finish(rpc::ToGrpc(rpc::WithRetryDelay(
          WithReason(absl::ResourceExhaustedError(
                         StrCat(caller_.name, " has ", streams->max_per_caller(),
                                " BeginPut streams open, the most that a caller may have; end one "
                                "first")),
                     Reason::kLimitExceeded),
          absl::Seconds(1))));
      return;
    }
    Read();
  }

  void OnReadDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      if (is_over_) {
        return;
      }
      is_reading_ = false;
    }
    if (ok) {
      if (const absl::Status parsed = rpc::ParseMessage(&read_, &request_); !parsed.ok()) {
        return Finish(rpc::ToGrpc(parsed));
      }
      if (plan_.has_header() || !PutPlan::TakesLong(request_.header())) {
        return TakeAndGoOn();
      }
      return background_->Run(caller_.name, [this] { TakeAndGoOn(); })
                 ? void()
                 : Finish(rpc::ToGrpc(TooManyWait()));
    }
    if (call_->IsCancelled()) {
      return Finish(rpc::ToGrpc(absl::CancelledError("the client left before it had sent all")));
    }
    if (!plan_.has_header()) {
      return Finish(
          rpc::ToGrpc(rpc::BadField("header", "is missing; it must be the first message")));
    }
    key_ = plan_.key();
    absl::StatusOr<BegunPutPtr> put = begun_->Find(key_, plan_.fingerprint());
    if (put.ok() && *put == nullptr) {
      put = plan_.Begin();
      begun_->Began(key_, put.ok() ? *put : nullptr);
    }
    if (!put.ok()) {
      return Finish(rpc::ToGrpc(put.status()));
    }
    transfer_id_ = (*put)->transfer_id;
    answer_.emplace(context_, *std::move(put));
    Write();
  }
  void OnWriteDone(bool ok) override {
    if (!ok) {
      // Unless a repeated request has the answer, nobody knows of the transfer.
      if (begun_->NotDelivered(key_)) {
        context_.transfers
            ->Abort(transfer_id_, absl::CancelledError("the client left before it had the answer"))
            .IgnoreError();
      }
      return Finish(grpc::Status::CANCELLED);
    }
    if (!answer_->is_at_end()) {
      return Write();
    }
    // A call that holds may outlive its transfer, and is not to keep what that one had.
    answer_.reset();
    begun_->Delivered(key_, plan_.hold());
    place_.reset();
    plan_.hold() ? HoldTransfer() : Finish(grpc::Status::OK);
  }
  void OnCancel() override {
    {
      absl::MutexLock lock(&mutex_);
      is_cancelled_ = true;
      if (!std::exchange(is_held_, false)) return;
    }
    ReleasePut();
  }
  void OnDone() override {
    idle_.reset();
    delete this;
  }

 private:
  // From here on the transfer's end finishes the call.
  void HoldTransfer() {
    bool is_cancelled = false;
    {
      absl::MutexLock lock(&mutex_);
      is_cancelled = is_cancelled_;
      is_held_ = !is_cancelled;
    }
    if (is_cancelled) {
      ReleasePut();
    }
    context_.transfers->OnEnd(transfer_id_, [this] {
      bool is_held = false;
      {
        absl::MutexLock lock(&mutex_);
        is_held = std::exchange(is_held_, false);
      }
      if (is_held) {
        begun_->Ended(key_);
      }
      Finish(grpc::Status::OK);
    });
  }
  // The client has gone from a call that held. Where another call has the transfer too, or its
  // commit was asked for, it goes on, and this call ends with it. A client that lost its connection
  // asks for the commit again, over another one.
  void ReleasePut() {
    if (context_.transfers->IsCommitAskedFor(transfer_id_)) return begun_->Ended(key_);
    if (!begun_->Release(key_)) return;
    // The commit may be asked for just now.
    context_.transfers->Abandon(
        transfer_id_,
        WithReason(absl::CancelledError("the connection over which the client began the put broke "
                                        "before its commit was asked for; put again"),
                   Reason::kCancelled));
  }

  void Read() {
    absl::Time due;
    {
      absl::MutexLock lock(&mutex_);
      is_reading_ = true;
      due = due_ = std::min(context_.clock->Now() + kIdleLimit, take_by_);
    }
    idle_->SetNoLaterThan(due);
    StartRead(&read_);
  }

  void EndIfIdle() {
    {
      absl::MutexLock lock(&mutex_);
      if (!is_reading_) {
        return;  // the next Read sets the alarm
      }
      if (context_.clock->Now() < due_) {
        return idle_->SetNoLaterThan(due_);
      }
      is_over_ = true;
    }
    Finish(rpc::ToGrpc(WithReason(
        absl::DeadlineExceededError(
            StrCat("the put's tensors did not all come: at most ", absl::FormatDuration(kIdleLimit),
                   " may pass without a message, and ", absl::FormatDuration(kTakeLimit),
                   " until the client has sent all of them; put again")),
        Reason::kDeadline)));
  }

  void Write() {
    write_ = rpc::SerializeMessage(answer_->Next());
    StartWrite(&write_);
  }

  void TakeAndGoOn() {
    const absl::Status taken = Take();
    taken.ok() ? Read() : Finish(rpc::ToGrpc(taken));
  }

  absl::Status Take() {
    if (request_.has_header() == plan_.has_header()) {
      return rpc::BadField("header", "must be in the first message, and only there");
    }
    if (request_.has_header()) {
      SHARDMESH_RETURN_IF_ERROR(
          plan_.TakeHeader(request_.header(), caller_, [this] { return call_->IsCancelled(); }));
    }
    for (int i = 0; i < request_.tensors_size(); ++i) {
      const v1::PutTensor& tensor = request_.tensors(i);
      if (++tensors_ > kMaxPutTensors) {
        return WithReason(
            absl::ResourceExhaustedError(StrCat("a put has at most ", kMaxPutTensors, " tensors")),
            Reason::kLimitExceeded);
      }
      if (const absl::Status taken = plan_.TakeTensor(tensor); !taken.ok()) {
        return rpc::WithField(WithContext(taken, StrCat("tensor ", PythonRepr(tensor.name()))),
                              "tensors", static_cast<size_t>(i));
      }
    }
    return absl::OkStatus();
  }

  const CoordinatorParts& context_;
  PutMemory* const begun_;
  const grpc::CallbackServerContext* const call_;
  const rpc::Caller caller_;
  Background* const background_;
  std::optional<CallerCount::Place> place_;  // until the answer is sent
  const absl::Time take_by_;

  absl::Mutex mutex_;
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;  // EndIfIdle has ended it
  bool is_held_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time due_ ABSL_GUARDED_BY(mutex_);  // while is_reading_

  // Touched by one reaction at a time.
  grpc::ByteBuffer read_;
  v1::BeginPutRequest request_;
  PutPlan plan_;
  int64_t tensors_ = 0;
  std::string key_;
  std::string transfer_id_;
  std::optional<PutAnswer> answer_;  // until it is sent
  grpc::ByteBuffer write_;

  std::unique_ptr<rpc::Alarm> idle_;  // its destructor waits for EndIfIdle
};

// BeginPut's requests come as bytes: see rpc/stream/message_bytes.h.
#define SHARDMESH_MESSAGES(Method) v1::ArrayService::WithCallbackMethod_##Method
using ArrayServiceBase =
    WithMethods<v1::ArrayService::Service, v1::ArrayService::WithRawCallbackMethod_BeginPut,
                SHARDMESH_MESSAGES(CommitTransfer), SHARDMESH_MESSAGES(AbortTransfer),
                SHARDMESH_MESSAGES(BeginGet), SHARDMESH_MESSAGES(DescribeArray),
                SHARDMESH_MESSAGES(ListArrays), SHARDMESH_MESSAGES(MoveName),
                SHARDMESH_MESSAGES(DeleteName), SHARDMESH_MESSAGES(ReleaseArrays)>::Type;
#undef SHARDMESH_MESSAGES

class ArrayService final : public ArrayServiceBase {
 public:
  explicit ArrayService(const CoordinatorParts& context)
      : context_(context),
        begun_puts_(context.clock),
        put_streams_(context.max_put_streams_per_caller) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* BeginPut(
      grpc::CallbackServerContext* context) override {
    return new BeginPutReactor(context_, &begun_puts_, context, &background_, &put_streams_);
  }

  grpc::ServerUnaryReactor* CommitTransfer(grpc::CallbackServerContext* context,
                                           const v1::CommitTransferRequest* request,
                                           v1::CommitTransferResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (const absl::Status checked = rpc::CheckRequestId(request->request_id(), "request_id");
        !checked.ok()) {
      reactor->Finish(rpc::ToGrpc(checked));
      return reactor;
    }
    if (const absl::Status owned = CheckOwner(*context, *request); !owned.ok()) {
      reactor->Finish(rpc::ToGrpc(owned));
      return reactor;
    }
    // A little before the client's own deadline, so that it hears who was missing.
    const absl::Time give_up =
        context_.clock->Now() +
        std::min(rpc::TimeLeft(*context) - absl::Milliseconds(100), kCommitTimeout);
    const absl::StatusOr<TransferProgress> progress =
        context_.transfers->Progress(request->transfer_id());
    const absl::Time started = progress.ok() ? progress->started : context_.clock->Now();
    context_.transfers->Commit(
        request->transfer_id(),
        RequestKey(request->session_id(), "CommitTransfer", request->request_id()), give_up,
        [reactor, response, started,
         clock = context_.clock](absl::StatusOr<TransferResult> result) {
          if (result.ok()) {
            for (const std::string& array_id : result->array_ids) {
              response->add_array_ids(array_id);
            }
            response->set_revision(result->revision);
            response->set_durability(Encode(result->durability));
            rpc::Encode(clock->Now() - started, response->mutable_transfer_time());
          }
          reactor->Finish(rpc::ToGrpc(result.status()));
        });
    return reactor;
  }

  grpc::ServerUnaryReactor* AbortTransfer(grpc::CallbackServerContext* context,
                                          const v1::AbortTransferRequest* request,
                                          v1::AbortTransferResponse*) override {
    if (const absl::Status owned = CheckOwner(*context, *request); !owned.ok()) {
      return Answer(context, owned);
    }
    return Answer(
        context, context_.transfers->Abort(
                     request->transfer_id(),
                     WithReason(absl::CancelledError(
                                    StrCat("the client aborted the transfer: ", request->reason())),
                                Reason::kCancelled)));
  }

  grpc::ServerUnaryReactor* BeginGet(grpc::CallbackServerContext* context,
                                     const v1::BeginGetRequest* request,
                                     v1::BeginGetResponse* response) override {
    const absl::Status checked =
        context_.sessions->Check(request->session_id(), rpc::CallerOf(*context));
    return Answer(context, checked.ok() ? Get(*request, response) : checked);
  }

  grpc::ServerUnaryReactor* DescribeArray(grpc::CallbackServerContext* context,
                                          const v1::DescribeArrayRequest* request,
                                          v1::DescribeArrayResponse* response) override {
    const absl::StatusOr<SelectedArray> selected = Select(*context_.registry, request->array());
    if (selected.ok()) {
      Encode(*selected->array, &selected->name, response->mutable_array());
    }
    return Answer(context, selected.status());
  }

  grpc::ServerUnaryReactor* ListArrays(grpc::CallbackServerContext* context,
                                       const v1::ListArraysRequest* request,
                                       v1::ListArraysResponse* response) override {
    const absl::StatusOr<int64_t> page_size = rpc::CheckPageSize(request->page_size(), "page_size");
    if (!page_size.ok()) {
      return Answer(context, page_size.status());
    }
    response->set_revision(context_.definition_store->settled_revision());
    // A page's token is the last name on it.
    const std::vector<ArrayRegistry::NamedArray> named =
        context_.registry->ListNames(request->prefix(), request->page_token(), *page_size + 1);
    int64_t size_bytes = 0;
    for (const ArrayRegistry::NamedArray& each : named) {
      if (response->arrays_size() == *page_size || size_bytes >= kListBytes) {
        response->set_next_page_token(response->arrays(response->arrays_size() - 1).name());
        break;
      }
      v1::Array* const added = response->add_arrays();
      Encode(*each.array, &each.name, added);
      size_bytes += static_cast<int64_t>(added->ByteSizeLong());
    }
    return Answer(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* MoveName(grpc::CallbackServerContext* context,
                                     const v1::MoveNameRequest* request,
                                     v1::MoveNameResponse* response) override {
    absl::Status checked = rpc::CheckArrayName(request->name(), "name");
    if (checked.ok()) {
      checked = rpc::CheckArrayId(request->array_id(), "array_id");
    }
    return Move(context, checked, "MoveName", request->request_id(),
                {.name = request->name(),
                 .array_id = request->array_id(),
                 .expected_version = DecodeExpectedVersion(request->expected_version())},
                [response](Revision revision) {
                  response->set_version(revision);
                  response->set_revision(revision);
                });
  }

  grpc::ServerUnaryReactor* DeleteName(grpc::CallbackServerContext* context,
                                       const v1::DeleteNameRequest* request,
                                       v1::DeleteNameResponse* response) override {
    return Move(context, rpc::CheckArrayName(request->name(), "name"), "DeleteName",
                request->request_id(),
                {.name = request->name(),
                 .array_id = "",
                 .expected_version = DecodeExpectedVersion(request->expected_version())},
                [response](Revision revision) { response->set_revision(revision); });
  }

  grpc::ServerUnaryReactor* ReleaseArrays(grpc::CallbackServerContext* context,
                                          const v1::ReleaseArraysRequest* request,
                                          v1::ReleaseArraysResponse* response) override {
    const absl::Status checked =
        context_.sessions->Check(request->session_id(), rpc::CallerOf(*context));
    return Answer(context, checked.ok() ? Release(*request, response) : checked);
  }

 private:
  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                          const absl::Status& status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpc(status));
    return reactor;
  }

  // Whether the caller may end the transfer of a request. A session that is gone has none, but it
  // may repeat the request that committed one.
  template <typename Request>
  absl::Status CheckOwner(const grpc::CallbackServerContext& context,
                          const Request& request) const {
    const absl::Status session =
        context_.sessions->Check(request.session_id(), rpc::CallerOf(context));
    if (!session.ok() && !absl::IsNotFound(session)) {
      return session;
    }
    return context_.transfers->CheckOwner(request.transfer_id(), request.session_id());
  }

  absl::Status Get(const v1::BeginGetRequest& request, v1::BeginGetResponse* response) {
    SHARDMESH_ASSIGN_OR_RETURN(const SelectedArray selected,
                               Select(*context_.registry, request.array()));
    const ArrayDescriptor& descriptor = selected.array->definition.descriptor;
    SHARDMESH_RETURN_IF_ERROR(CheckReadable(selected));
    SHARDMESH_ASSIGN_OR_RETURN(const bool pinned,
                               PinForSession(*context_.registry, *context_.sessions,
                                             request.session_id(), descriptor.array_id));
    response->set_pinned(pinned);
    Encode(*selected.array, &selected.name, response->mutable_array());
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<RankEndpoint> endpoints,
                               context_.hub->Endpoints(descriptor.mesh_id));
    const std::vector<int64_t>& missing = selected.array->missing_ranks;
    for (const RankEndpoint& endpoint : endpoints) {
      if (std::find(missing.begin(), missing.end(), endpoint.rank) == missing.end()) {
        Encode(endpoint, response->add_devices());
      }
    }
    // A renewal does not reach tokens that are out: none outlives the lease that it was made in.
    SHARDMESH_ASSIGN_OR_RETURN(const Session session, context_.sessions->Get(request.session_id()));
    const rpc::TransferClaims claims{
        .direction = rpc::TransferDirection::kGet,
        .transfer_id = "",
        .session_id = request.session_id(),
        .array = descriptor,
        .term = context_.term,
        .expire_time = std::min(context_.clock->Now() + kGetTimeout, session.expires)};
    response->set_token(rpc::SignToken(claims, context_.token_key));
    rpc::Encode(claims.expire_time, response->mutable_expire_time());
    return absl::OkStatus();
  }

  // Whether every distinct tile has a holder.
  absl::Status CheckReadable(const SelectedArray& selected) const {
    const Array& array = *selected.array;
    if (array.missing_ranks.empty()) {
      return absl::OkStatus();
    }
    const ArrayDescriptor& descriptor = array.definition.descriptor;
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, descriptor.Tiling());
    for (const OwnedTile& tile : tiling.OwnersOf(Tile::Whole(descriptor.shape))) {
      const bool held = std::any_of(tile.devices.begin(), tile.devices.end(), [&](DeviceId device) {
        return std::find(array.missing_ranks.begin(), array.missing_ranks.end(), device) ==
               array.missing_ranks.end();
      });
      if (!held) {
        return Degraded(selected, *context_.membership->view(), *context_.recovery);
      }
    }
    return absl::OkStatus();
  }

  template <typename OnMoved>
  grpc::ServerUnaryReactor* Move(grpc::CallbackServerContext* context, absl::Status checked,
                                 std::string_view method, const std::string& request_id,
                                 NameMove move, OnMoved on_moved) {
    if (checked.ok()) {
      checked = rpc::CheckRequestId(request_id, "request_id");
    }
    if (!checked.ok()) {
      return Answer(context, checked);
    }
    const std::string key = RequestKey(rpc::CallerOf(*context).name, method, request_id);
    const auto remembered = context_.registry->requests().Begin(
        key, Sha256(StrCat("move ", move.name, "\n", move.array_id, "\n",
                           move.expected_version.value_or(-1))));
    if (!remembered.ok()) {
      return Answer(context, remembered.status());
    }
    if (remembered->has_value()) {
      on_moved((*remembered)->revision);
      return Answer(context, absl::OkStatus());
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    CommitRequest commit;
    commit.moves.push_back(std::move(move));
    commit.request_id = key;
    context_.registry->Commit(std::move(commit),
                              [reactor, on_moved](absl::StatusOr<CommitResult> result) {
                                if (result.ok()) {
                                  on_moved(result->revision);
                                }
                                reactor->Finish(rpc::ToGrpc(result.status()));
                              });
    return reactor;
  }

  absl::Status Release(const v1::ReleaseArraysRequest& request,
                       v1::ReleaseArraysResponse* response) {
    if (request.array_ids_size() > kMaxReleased) {
      return rpc::WithField(InvalidArgument(Reason::kLimitExceeded,
                                            StrCat(request.array_ids_size(),
                                                   " arrays are over the limit of ", kMaxReleased)),
                            "array_ids");
    }
    response->set_released(static_cast<int32_t>(UnpinForSession(
        *context_.registry, *context_.sessions, request.session_id(),
        std::vector<std::string>(request.array_ids().begin(), request.array_ids().end()))));
    return absl::OkStatus();
  }

  const CoordinatorParts context_;
  PutMemory begun_puts_;
  CallerCount put_streams_;
  Background background_{2};  // last: its tasks use the above
};

}  // namespace

std::unique_ptr<grpc::Service> MakeArrayService(const CoordinatorParts& context) {
  return std::make_unique<ArrayService>(context);
}

}  // namespace shardmesh::server
