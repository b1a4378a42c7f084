// A coordinator without workers, and stubs to ask it about layouts.
#ifndef SHARDMESH_TESTS_UNIT_SERVER_RESOLVE_SERVICE_FIXTURE_H_
#define SHARDMESH_TESTS_UNIT_SERVER_RESOLVE_SERVICE_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "server/coordinator_server.h"
#include "sharding/mesh.h"
#include "shardmesh/compat/v1/compat_service.grpc.pb.h"
#include "shardmesh/v1/layout_service.grpc.pb.h"
#include "shardmesh/v1/mesh_service.grpc.pb.h"
#include "shardmesh/v1/reshard_service.grpc.pb.h"
#include "shardmesh/v1/resolve_service.grpc.pb.h"
#include "shardmesh/v1/rule_service.grpc.pb.h"

namespace shardmesh::server {

// The coordinator's mesh "default" is fsdp=2,tp=2.
class ResolveServiceTest : public testing::Test {
 protected:
  ResolveServiceTest() {
    CoordinatorOptions options;
    options.listen_address = "127.0.0.1:0";
    options.http_address = "127.0.0.1:0";
    options.mesh = *Mesh::Parse("fsdp=2,tp=2");
    server_ = *CoordinatorServer::Start(std::move(options));
    channel_ = *rpc::CreateChannel(server_->address());
    stubs_ = {v1::ResolveService::NewStub(channel_), v1::LayoutService::NewStub(channel_),
              v1::RuleService::NewStub(channel_),    v1::MeshService::NewStub(channel_),
              v1::ReshardService::NewStub(channel_), compat::v1::CompatService::NewStub(channel_)};
  }
  ~ResolveServiceTest() override { Drain(absl::Now() + absl::Seconds(5)); }

  // Ends the coordinator, which waits until `deadline` for its calls in progress.
  void Drain(absl::Time deadline) { server_->Drain(deadline); }

  // Clears `*response` and makes the call. Returns the status that the client library would see.
  template <typename Stub, typename Request, typename Response>
  absl::Status Ask(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                   const Request& request, Response* response) {
    response->Clear();
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
    return rpc::FromGrpc((stub<Stub>().*method)(&context, request, response));
  }

  // The stub for direct use, for example for streaming calls.
  template <typename Stub>
  Stub& stub() {
    return *std::get<std::unique_ptr<Stub>>(stubs_);
  }
  const std::shared_ptr<grpc::Channel>& channel() { return channel_; }

  // The path of the field that an error is about; empty if there is none.
  static std::string FieldOf(const absl::Status& status) {
    const auto violations = rpc::FieldViolationsOf(status);
    return violations.empty() ? std::string() : violations.front().field;
  }

 private:
  std::unique_ptr<CoordinatorServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::tuple<std::unique_ptr<v1::ResolveService::Stub>, std::unique_ptr<v1::LayoutService::Stub>,
             std::unique_ptr<v1::RuleService::Stub>, std::unique_ptr<v1::MeshService::Stub>,
             std::unique_ptr<v1::ReshardService::Stub>,
             std::unique_ptr<compat::v1::CompatService::Stub>>
      stubs_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_TESTS_UNIT_SERVER_RESOLVE_SERVICE_FIXTURE_H_
