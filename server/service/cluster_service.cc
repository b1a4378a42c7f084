// The methods of ClusterService. Each passes its call to the object that answers it.
#include "server/service/cluster_service.h"

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rpc/caller.h"
#include "rpc/codec/status.h"
#include "rpc/contract.h"
#include "server/calls/worker_calls.h"
#include "server/diagnosis/late_call.h"
#include "server/quarantine/quarantine_calls.h"
#include "server/resolve/background.h"
#include "server/service/background_reactor.h"
#include "server/service/unary_answer.h"
#include "server/watch/cluster_watch.h"
#include "shardmesh/v1/cluster_service.grpc.pb.h"

namespace shardmesh::server {
namespace {

// A call about quarantines (tiles that workers put aside). The call ends early when its client
// cancels it, and shortly before its deadline, with the name of the worker that it waits for. A
// restore whose workers take tiles back goes on.
class QuarantineReactor final : public grpc::ServerUnaryReactor {
 public:
  // `what` names the call in errors.
  QuarantineReactor(Clock* clock, const StepWatch* watch, std::string what)
      : late_call_(
            clock, watch, std::move(what), [stop = stop_] { return Awaited(*stop); },
            [this](const absl::Status& late) { GiveUp(late); }) {}

  // Call it before the call begins.
  void Start(absl::Time give_up) { late_call_.Start(give_up); }
  const QuarantineStopPtr& stop() const { return stop_; }
  QuarantineDone Done() {
    return [this](const absl::Status& status) {
      absl::Status late;
      {
        absl::MutexLock lock(&mutex_);
        late = late_;
      }
      Finish(rpc::ToGrpc(absl::IsCancelled(status) && !late.ok() ? late : status));
    };
  }

  void OnCancel() override { stop_->Cancel(); }
  void OnDone() override { delete this; }

 private:
  static OperationWorkers Awaited(const QuarantineStop& stop) {
    OperationWorkers workers;
    if (std::string identity = stop.awaited(); !identity.empty()) {
      workers.waiting_for.insert(std::move(identity));
    }
    return workers;
  }
  void GiveUp(const absl::Status& late) {
    const QuarantineStopPtr stop = stop_;  // the end of the call destroys this object
    {
      absl::MutexLock lock(&mutex_);
      late_ = late;
    }
    stop->Cancel();
  }

  const QuarantineStopPtr stop_ = std::make_shared<QuarantineStop>();
  absl::Mutex mutex_;
  absl::Status late_ ABSL_GUARDED_BY(mutex_);  // why the call has given up
  LateCall late_call_;                         // last: its destructor waits for GiveUp
};

class ClusterService final : public v1::ClusterService::CallbackService {
 public:
  ClusterService(const CoordinatorParts& context, ClusterServiceOptions options,
                 ClusterChanges* changes, const WatchLimits& limits)
      : context_(context),
        options_(std::move(options)),
        calls_(context_, options_),
        worker_calls_(context_.clock, options_.membership, options_.definition_store,
                      context_.registry, options_.recovery, options_.live),
        watches_(changes, limits, [this](v1::WatchStarted* to) { calls_.DescribeStart(to); }) {}

  grpc::ServerUnaryReactor* GetVersion(grpc::CallbackServerContext* context,
                                       const v1::GetVersionRequest*,
                                       v1::GetVersionResponse* response) override {
    response->mutable_build()->set_version(options_.build_version);
    response->mutable_protocol()->set_min(rpc::kOldestProtocol);
    response->mutable_protocol()->set_max(rpc::kNewestProtocol);
    for (const rpc::Feature& feature : rpc::kFeatures) {
      response->add_features(std::string(feature.name));
    }
    response->set_cluster_id(options_.cluster_id);
    return FinishUnary(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override {
    return FinishUnary(context, calls_.GetStatus(*request, response));
  }

  grpc::ServerUnaryReactor* ListFlightRecords(grpc::CallbackServerContext* context,
                                              const v1::ListFlightRecordsRequest* request,
                                              v1::ListFlightRecordsResponse* response) override {
    return FinishUnary(context, calls_.ListFlightRecords(*request, response));
  }

  grpc::ServerUnaryReactor* ListLinks(grpc::CallbackServerContext* context,
                                      const v1::ListLinksRequest* request,
                                      v1::ListLinksResponse* response) override {
    return FinishUnary(context, calls_.ListLinks(*request, response));
  }

  grpc::ServerWriteReactor<v1::WatchClusterResponse>* WatchCluster(
      grpc::CallbackServerContext* context, const v1::WatchClusterRequest* request) override {
    return watches_.Open(context, *request);
  }

  grpc::ServerUnaryReactor* DrainWorker(grpc::CallbackServerContext* context,
                                        const v1::DrainWorkerRequest* request,
                                        v1::DrainWorkerResponse* response) override {
    // Counts the tiles of the worker among all arrays of its meshes.
    return new BackgroundReactor(
        *context,
        [this, request, response](const std::function<bool()>&) {
          return worker_calls_.DrainWorker(*request, response);
        },
        &background_);
  }

  grpc::ServerUnaryReactor* ForgetWorker(grpc::CallbackServerContext* context,
                                         const v1::ForgetWorkerRequest* request,
                                         v1::ForgetWorkerResponse*) override {
    return FinishUnary(context, worker_calls_.ForgetWorker(*request));
  }

  grpc::ServerUnaryReactor* DropCache(grpc::CallbackServerContext* context,
                                      const v1::DropCacheRequest*,
                                      v1::DropCacheResponse* response) override {
    // Lists all cached arrays.
    return new BackgroundReactor(
        *context,
        [this, response](const std::function<bool()>&) {
          const CacheTotals dropped = context_.cache->DropAll();
          response->set_arrays(dropped.arrays);
          response->set_bytes(dropped.bytes);
          return absl::OkStatus();
        },
        &background_);
  }

  grpc::ServerUnaryReactor* ReplaceWorker(grpc::CallbackServerContext* context,
                                          const v1::ReplaceWorkerRequest* request,
                                          v1::ReplaceWorkerResponse* response) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    worker_calls_.ReplaceWorker(request, response, [reactor](const absl::Status& status) {
      reactor->Finish(rpc::ToGrpc(status));
    });
    return reactor;
  }

  void EndWatches() { watches_.EndAll(); }

  grpc::ServerUnaryReactor* ListQuarantine(grpc::CallbackServerContext* context,
                                           const v1::ListQuarantineRequest* request,
                                           v1::ListQuarantineResponse* response) override {
    auto* const reactor = NewQuarantineReactor(*context, "the list of tiles in quarantine");
    server::ListQuarantine(context_, options_.hub, request, response, reactor->stop(),
                           reactor->Done());
    return reactor;
  }

  grpc::ServerUnaryReactor* RestoreQuarantined(grpc::CallbackServerContext* context,
                                               const v1::RestoreQuarantinedRequest* request,
                                               v1::RestoreQuarantinedResponse* response) override {
    auto* const reactor = NewQuarantineReactor(*context, "the restore");
    server::RestoreQuarantined(context_, options_.hub, request, response, reactor->stop(),
                               reactor->Done());
    return reactor;
  }

  grpc::ServerUnaryReactor* DropQuarantined(grpc::CallbackServerContext* context,
                                            const v1::DropQuarantinedRequest* request,
                                            v1::DropQuarantinedResponse* response) override {
    auto* const reactor = NewQuarantineReactor(*context, "the drop of tiles in quarantine");
    server::DropQuarantined(context_, options_.hub, request, response, reactor->stop(),
                            reactor->Done());
    return reactor;
  }

  grpc::ServerUnaryReactor* Diagnose(grpc::CallbackServerContext* context,
                                     const v1::DiagnoseRequest* request,
                                     v1::DiagnoseResponse* response) override {
    return FinishUnary(context, calls_.Diagnose(*request, response));
  }

 private:
  QuarantineReactor* NewQuarantineReactor(const grpc::ServerContextBase& call,
                                          std::string what) const {
    auto* const reactor =
        new QuarantineReactor(context_.clock, options_.step_watch, std::move(what));
    reactor->Start(context_.clock->Now() + rpc::TimeToWait(call));
    return reactor;
  }

  const CoordinatorParts context_;
  const ClusterServiceOptions options_;
  const ClusterCalls calls_;
  const WorkerCalls worker_calls_;
  ClusterWatches watches_;
  Background background_{1};  // last: its thread uses the members above
};

}  // namespace

StreamingService MakeClusterService(const CoordinatorParts& context, ClusterServiceOptions options,
                                    ClusterChanges* changes, const WatchLimits& limits) {
  auto service = std::make_unique<ClusterService>(context, std::move(options), changes, limits);
  ClusterService* const raw = service.get();
  return {.service = std::move(service), .end_streams = [raw] { raw->EndWatches(); }};
}

}  // namespace shardmesh::server
