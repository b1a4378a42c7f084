// A coordinator without workers, and a stub to ask it about layouts.
#ifndef SHARDMESH_TESTS_UNIT_SERVER_RESOLVE_SERVICE_FIXTURE_H_
#define SHARDMESH_TESTS_UNIT_SERVER_RESOLVE_SERVICE_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "server/coordinator_server.h"
#include "sharding/mesh.h"
#include "shardmesh/v1/resolve_service.grpc.pb.h"

namespace shardmesh::server {

// Its mesh "default" is fsdp=2,tp=2.
class ResolveServiceTest : public testing::Test {
 protected:
  using Stub = v1::ResolveService::Stub;

  ResolveServiceTest() {
    CoordinatorOptions options;
    options.listen_address = "127.0.0.1:0";
    options.http_address = "127.0.0.1:0";
    options.mesh = *Mesh::Parse("fsdp=2,tp=2");
    server_ = *CoordinatorServer::Start(std::move(options));
    channel_ = *rpc::CreateChannel(server_->address());
    stub_ = v1::ResolveService::NewStub(channel_);
  }
  ~ResolveServiceTest() override { Drain(absl::Now() + absl::Seconds(5)); }

  // Ends the coordinator, which waits for its calls until then.
  void Drain(absl::Time deadline) { server_->Drain(deadline); }

  // Asks, with `*response` emptied before; the status as the client library sees it.
  template <typename Request, typename Response>
  absl::Status Ask(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                   const Request& request, Response* response) {
    response->Clear();
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
    return rpc::FromGrpc((stub_.get()->*method)(&context, request, response));
  }

  // For calls that stream, and for other services.
  Stub& stub() { return *stub_; }
  const std::shared_ptr<grpc::Channel>& channel() { return channel_; }

  // The path of the field that an error is about; empty if there is none.
  static std::string FieldOf(const absl::Status& status) {
    const auto violations = rpc::FieldViolationsOf(status);
    return violations.empty() ? std::string() : violations.front().field;
  }

 private:
  std::unique_ptr<CoordinatorServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Stub> stub_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_TESTS_UNIT_SERVER_RESOLVE_SERVICE_FIXTURE_H_
