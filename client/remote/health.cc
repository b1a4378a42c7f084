// Makes one call to the service grpc.health.v1.Health.
#include "client/remote/health.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <memory>

#include "absl/time/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "process/host_port.h"
#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "rpc/connect.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {

absl::StatusOr<bool> IsServing(const std::string& address, const std::string& service,
                               const rpc::Credentials& credentials, absl::Time deadline) {
  // Servers listen on unix sockets in plaintext, even if their network port uses TLS.
  const rpc::ChannelOptions options{
      .credentials = IsUnixAddress(address) ? rpc::Credentials::Insecure() : credentials,
      .peer = rpc::ExpectedPeer::AnyServer()};
  SHARDMESH_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                             rpc::CreateChannel(address, options));
  const absl::Duration left = deadline - absl::Now();
  SHARDMESH_RETURN_IF_ERROR(rpc::WaitForConnected(
      *channel, address,
      rpc::ConnectOptions{.timeout = std::min(rpc::kConnectTimeout, left), .limit = left},
      options));
  grpc::ClientContext context;
  rpc::Apply({.deadline = deadline, .traceparent = {}}, &context);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  const absl::Status status = rpc::FromGrpc(
      grpc::health::v1::Health::NewStub(channel)->Check(&context, request, &response));
  if (absl::IsNotFound(status)) {
    return WithReason(
        absl::NotFoundError(StrCat("the process at ", address, " has no service \"", service,
                                   "\"; ask for live, ready, or a service's full name such as "
                                   "shardmesh.v1.ResolveService of a coordinator or "
                                   "shardmesh.v1.TileService of a worker")),
        Reason::kNotFound, {{fact::kKind, "service"}, {fact::kName, service}});
  }
  if (!status.ok()) return WithContext(status, StrCat("health of ", address));
  return response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
}

}  // namespace shardmesh::client
