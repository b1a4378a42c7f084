// The methods of SessionService: open, renew, close and list sessions, which are leases.
#include "server/service/session_service.h"

#include <grpcpp/grpcpp.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rpc/caller.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "server/calls/cluster_pages.h"
#include "server/resolve/resolve_answers.h"
#include "server/service/unary_answer.h"
#include "server/state/request_index.h"
#include "server/state/session_pins.h"
#include "sharding/digest.h"
#include "shardmesh/v1/session_service.grpc.pb.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr size_t kMaxClientNameBytes = 255;
// The largest number of arrays that one renewal takes over.
constexpr int kMaxTakenOver = 10'000;
// A page of sessions ends once it has this many bytes.
constexpr int64_t kListBytes = int64_t{1} << 20;

constexpr RequestMessages kMessages = {
    .reused = "request_id \"$0\" was used for another session; draw a new one",
    .python_type = "ValueError"};

void EncodeSession(const SessionInfo& from, v1::OpenSessionInfo* to) {
  to->set_number(from.number);
  to->set_id_prefix(from.id_prefix);
  to->set_caller(from.caller);
  to->set_client_name(from.client);
  rpc::Encode(from.opened, to->mutable_open_time());
  rpc::Encode(from.renewed, to->mutable_renew_time());
  rpc::Encode(from.expires, to->mutable_expire_time());
  to->set_pinned_arrays(from.pinned_arrays);
  to->set_transfers(from.transfers);
  to->set_steps(from.steps);
}

class SessionService final : public v1::SessionService::CallbackService {
 public:
  SessionService(SessionTable* sessions, ArrayRegistry* registry)
      : sessions_(sessions), registry_(registry) {}

  grpc::ServerUnaryReactor* OpenSession(grpc::CallbackServerContext* context,
                                        const v1::OpenSessionRequest* request,
                                        v1::OpenSessionResponse* response) override {
    return FinishUnary(context, Open(rpc::CallerOf(*context), *request, response));
  }
  grpc::ServerUnaryReactor* RenewSession(grpc::CallbackServerContext* context,
                                         const v1::RenewSessionRequest* request,
                                         v1::RenewSessionResponse* response) override {
    return FinishUnary(context, Renew(rpc::CallerOf(*context), *request, response));
  }
  grpc::ServerUnaryReactor* CloseSession(grpc::CallbackServerContext* context,
                                         const v1::CloseSessionRequest* request,
                                         v1::CloseSessionResponse*) override {
    absl::Status closed = sessions_->Check(request->session_id(), rpc::CallerOf(*context));
    if (closed.ok()) {
      closed = sessions_->Close(request->session_id());
    }
    return FinishUnary(context, absl::IsNotFound(closed) ? absl::OkStatus() : closed);
  }
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const v1::ListSessionsRequest* request,
                                         v1::ListSessionsResponse* response) override {
    return FinishUnary(context, List(*request, response));
  }

 private:
  absl::Status Renew(const rpc::Caller& caller, const v1::RenewSessionRequest& request,
                     v1::RenewSessionResponse* response) {
    SHARDMESH_RETURN_IF_ERROR(sessions_->Check(request.session_id(), caller));
    SHARDMESH_RETURN_IF_ERROR(
        CheckCount(request.held_array_ids_size(), kMaxTakenOver, "arrays", "held_array_ids"));
    for (const std::string& array_id : request.held_array_ids()) {
      SHARDMESH_RETURN_IF_ERROR(rpc::CheckArrayId(array_id, "held_array_ids"));
    }
    SHARDMESH_ASSIGN_OR_RETURN(const Session session, sessions_->Renew(request.session_id()));
    const std::vector<std::string> held(request.held_array_ids().begin(),
                                        request.held_array_ids().end());
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> refused,
                               TakeOverForSession(*registry_, *sessions_, session.id, held));
    response->mutable_refused_array_ids()->Add(refused.begin(), refused.end());
    rpc::Encode(session.ttl, response->mutable_ttl());
    return absl::OkStatus();
  }

  absl::Status List(const v1::ListSessionsRequest& request, v1::ListSessionsResponse* response) {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t page_size,
                               rpc::CheckPageSize(request.page_size(), "page_size"));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t after, NumberOfPageToken(request.page_token()));
    PageBudget budget(page_size, kListBytes);
    for (const SessionInfo& session : sessions_->List(after, page_size + 1)) {
      if (budget.is_spent()) {
        response->set_next_page_token(StrCat(response->sessions().rbegin()->number()));
        break;
      }
      v1::OpenSessionInfo* const added = response->add_sessions();
      EncodeSession(session, added);
      budget.Spend(*added);
    }
    return absl::OkStatus();
  }

  absl::Status Open(const rpc::Caller& caller, const v1::OpenSessionRequest& request,
                    v1::OpenSessionResponse* response) {
    SHARDMESH_RETURN_IF_ERROR(rpc::CheckRequestId(request.request_id(), "request_id"));
    if (request.client_name().size() > kMaxClientNameBytes) {
      return rpc::BadField("client_name", StrCat("has ", request.client_name().size(),
                                                 " bytes; at most ", kMaxClientNameBytes));
    }
    absl::Duration ttl = kDefaultSessionTtl;
    if (request.has_ttl()) {
      const absl::StatusOr<absl::Duration> given = rpc::Decode(request.ttl());
      if (!given.ok()) return rpc::WithField(given.status(), "ttl");
      ttl = *given;
    }
    // A repeated request gets the session of the first request, as long as that session lives.
    // Sessions end with the process, so the record of requests need not outlive the process.
    const std::string key = RequestKey(caller.name, "OpenSession", request.request_id());
    const std::string fingerprint = Sha256(request.SerializeAsString());
    absl::MutexLock lock(&mutex_);
    const auto lives = [this](const std::string& id) { return sessions_->Get(id).ok(); };
    // Each call examines a few remembered sessions, so that ended sessions are forgotten in time.
    opened_.ForgetEnded(absl::InfinitePast(), 0, absl::InfiniteFuture(), lives);
    if (const auto* const found = opened_.Find(key); found != nullptr && !lives(found->answer)) {
      opened_.Forget(key);
    }
    SHARDMESH_ASSIGN_OR_RETURN(const auto* const opened, opened_.Begin("", key, fingerprint));
    if (opened != nullptr) {
      SHARDMESH_ASSIGN_OR_RETURN(const Session renewed, sessions_->Renew(opened->answer));
      return Encode(renewed, response);
    }
    const absl::StatusOr<Session> session = sessions_->Open(caller, request.client_name(), ttl);
    if (!session.ok()) {
      opened_.Forget(key);
      return session.status();
    }
    opened_.Finish(key, session->id, absl::InfiniteFuture(), 0);
    return Encode(*session, response);
  }

  static absl::Status Encode(const Session& session, v1::OpenSessionResponse* response) {
    response->set_session_id(session.id);
    rpc::Encode(session.ttl, response->mutable_ttl());
    return absl::OkStatus();
  }

  SessionTable* const sessions_;
  ArrayRegistry* const registry_;
  absl::Mutex mutex_;
  RequestIndex<std::string> opened_ ABSL_GUARDED_BY(mutex_){kMessages};  // ids of sessions
};

}  // namespace

std::unique_ptr<grpc::Service> MakeSessionService(SessionTable* sessions, ArrayRegistry* registry) {
  return std::make_unique<SessionService>(sessions, registry);
}

}  // namespace shardmesh::server
