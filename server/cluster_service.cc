// Version and status on the wire.
#include "server/cluster_service.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <utility>

#include "rpc/spec_codec.h"
#include "rpc/status.h"
#include "rpc/time_codec.h"
#include "shardmesh/v1/cluster_service.grpc.pb.h"

namespace shardmesh::server {
namespace {

constexpr int kProtocolVersion = 1;
constexpr int64_t kPage = 1'000;

v1::WorkerState StateOf(const WorkerStatus& worker, bool is_ready) {
  switch (worker.state) {
    case WorkerState::kAttached:
      return is_ready ? v1::WORKER_STATE_READY : v1::WORKER_STATE_JOINING;
    case WorkerState::kDraining:
      return v1::WORKER_STATE_DRAINING;
    case WorkerState::kLost:
      return v1::WORKER_STATE_LOST;
  }
  return v1::WORKER_STATE_UNSPECIFIED;
}

class ClusterService final : public v1::ClusterService::CallbackService {
 public:
  ClusterService(const ArrayContext& context, ClusterServiceOptions options)
      : context_(context), options_(std::move(options)) {}

  grpc::ServerUnaryReactor* GetVersion(grpc::CallbackServerContext* context,
                                       const v1::GetVersionRequest*,
                                       v1::GetVersionResponse* response) override {
    response->mutable_build()->set_version(options_.build_version);
    response->mutable_protocol()->set_min(kProtocolVersion);
    response->mutable_protocol()->set_max(kProtocolVersion);
    response->set_cluster_id(options_.cluster_id);
    return Answer(context);
  }

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest*,
                                      v1::GetStatusResponse* response) override {
    const std::shared_ptr<const MembershipView> view = context_.membership->view();
    const ClusterState& state = context_.publisher->state();
    response->set_cluster_id(options_.cluster_id);
    response->set_epoch(view->epoch);
    response->set_term(context_.term);
    response->set_revision(state.revision());
    response->set_state(options_.is_draining() ? v1::COORDINATOR_STATE_DRAINING
                                               : v1::COORDINATOR_STATE_SERVING);
    response->set_pid(getpid());
    for (const auto& [name, definition] : state.all(DefinitionKind::kMesh)) {
      Describe(*definition, *view, response->add_meshes());
    }
    for (const auto& [identity, worker] : view->workers) {
      Describe(worker, response->add_workers());
    }
    response->set_arrays(CountArrays());
    response->set_sessions(static_cast<int64_t>(context_.sessions->List().size()));
    return Answer(context);
  }

 private:
  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  void Describe(const Definition& definition, const MembershipView& view,
                v1::MeshStatus* to) const {
    to->set_mesh_id(definition.name);
    to->set_revision(definition.revision);
    const Mesh& mesh = std::get<rpc::MeshDefinition>(definition.value).mesh;
    rpc::Encode(mesh, to->mutable_mesh());
    const MeshRanks* ranks = view.FindMesh(definition.name);
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      v1::RankStatus* status = to->add_ranks();
      status->set_rank(static_cast<int32_t>(rank));
      if (ranks != nullptr && rank < static_cast<int64_t>(ranks->identities.size())) {
        status->set_identity(ranks->identities[static_cast<size_t>(rank)]);
      }
    }
    to->set_complete(context_.hub->CheckReady(definition.name).ok());
  }

  void Describe(const WorkerStatus& worker, v1::WorkerStatus* to) const {
    to->set_identity(worker.info.identity);
    to->set_incarnation(worker.info.incarnation);
    to->set_state(StateOf(worker, context_.hub->IsReady(worker.info.identity)));
    for (const std::string& address : worker.info.endpoints) {
      to->add_endpoints()->set_address(address);
    }
    to->set_pid(worker.info.pid);
    to->set_capacity_bytes(worker.info.capacity_bytes);
    to->set_used_bytes(worker.used_bytes);
    rpc::Encode(context_.clock->Now() - worker.last_heartbeat, to->mutable_heartbeat_age());
    to->set_lost_reason(worker.lost_because);
    to->mutable_build()->set_version(worker.info.build_version);
  }

  int64_t CountArrays() const {
    int64_t count = 0;
    std::string after;
    while (true) {
      const std::vector<ArrayPtr> arrays = context_.catalogue->ListArrays(after, kPage);
      count += static_cast<int64_t>(arrays.size());
      if (static_cast<int64_t>(arrays.size()) < kPage) {
        return count;
      }
      after = arrays.back()->definition.descriptor.array_id;
    }
  }

  const ArrayContext context_;
  const ClusterServiceOptions options_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeClusterService(const ArrayContext& context,
                                                  ClusterServiceOptions options) {
  return std::make_unique<ClusterService>(context, std::move(options));
}

}  // namespace shardmesh::server
