// A server interceptor that mends one status, and leaves all else alone.
#include "rpc/unparsed_requests.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/server_interceptor.h>

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "rpc/message_bytes.h"
#include "rpc/status.h"
#include "sharding/str_cat.h"

namespace shardmesh::rpc {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerRpcInfo;

class StatusInterceptor final : public Interceptor {
 public:
  explicit StatusInterceptor(const grpc::Status* unparsed) : unparsed_(unparsed) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED &&
          status.error_message().empty()) {
        methods->ModifySendStatus(*unparsed_);
      }
    }
    methods->Proceed();
  }

 private:
  const grpc::Status* const unparsed_;
};

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(absl::Span<const std::string> service_names) {
    const auto* pool = google::protobuf::DescriptorPool::generated_pool();
    for (const std::string& name : service_names) {
      const auto* service = pool->FindServiceByName(name);
      for (int i = 0; service != nullptr && i < service->method_count(); ++i) {
        const auto& method = *service->method(i);
        if (!method.client_streaming()) {
          unparsed_.emplace(StrCat("/", name, "/", method.name()),
                            ToGrpc(UnparsedMessage(*method.input_type())));
        }
      }
    }
  }

  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    const auto found = unparsed_.find(info->method());
    // gRPC skips a null interceptor.
    return found == unparsed_.end() ? nullptr : new StatusInterceptor(&found->second);
  }

 private:
  // By path; constant once built. Statuses stay where they are.
  absl::flat_hash_map<std::string, grpc::Status> unparsed_;
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> UnparsedRequestInterceptors(
    absl::Span<const std::string> service_names) {
  return std::make_unique<Factory>(service_names);
}

}  // namespace shardmesh::rpc
