// Asks an endpoint by one call of Identify, over a channel of its own.
#include "server/service/endpoint_probe.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "shardmesh/v1/tile_service.grpc.pb.h"

namespace shardmesh::server {
namespace {

// One call of Identify. Lives until the answer has come and nobody can cancel the call any more.
struct Probe {
  std::unique_ptr<v1::TileService::Stub> stub;
  grpc::ClientContext context;
  v1::IdentifyRequest request;
  v1::IdentifyResponse response;
  absl::AnyInvocable<void(absl::StatusOr<EndpointAnswer>) &&> answered;

  void Answer(const absl::Status& status) {
    // Moves the callback out of this object, which ends a cycle: the callback owns the check, and
    // the check owns this object.
    auto done = std::move(answered);
    if (!status.ok()) return std::move(done)(status);
    std::move(done)(EndpointAnswer{.identity = response.identity(),
                                   .incarnation = response.incarnation(),
                                   .nonce = response.nonce()});
  }
};

}  // namespace

AskEndpoint ProbeEndpoints(rpc::Credentials credentials) {
  return [credentials = std::move(credentials)](
             const std::string& address, const std::string& identity, absl::Duration timeout,
             absl::AnyInvocable<void(absl::StatusOr<EndpointAnswer>) &&> answered)
             -> std::function<void()> {
    const auto probe = std::make_shared<Probe>();
    probe->answered = std::move(answered);
    const std::function<void()> cancel = [probe] { probe->context.TryCancel(); };
    const auto channel = rpc::CreateChannel(
        address, {.credentials = credentials,
                  .peer = rpc::ExpectedPeer::Worker(identity),
                  // A shared channel may be in backoff or use an outdated address.
                  .own_connection = true});
    if (!channel.ok()) {
      probe->Answer(channel.status());
      return cancel;
    }
    probe->stub = v1::TileService::NewStub(*channel);
    rpc::Apply(rpc::CallOptions::Within(timeout), &probe->context);
    probe->stub->async()->Identify(
        &probe->context, &probe->request, &probe->response,
        [probe](const grpc::Status& status) { probe->Answer(rpc::FromGrpc(status)); });
    return cancel;
  };
}

}  // namespace shardmesh::server
