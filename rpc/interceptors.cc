// Makes one server interceptor for each call. It acts only at the end of the call.
#include "rpc/interceptors.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/server_interceptor.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "rpc/codec/status.h"
#include "rpc/stream/message_bytes.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerRpcInfo;

constexpr int kCodes = static_cast<int>(grpc::StatusCode::UNAUTHENTICATED) + 1;

// The facts about a method that an interceptor needs; computed once.
struct Method {
  // For methods with one request: the errors for a malformed request and for a handler that threw
  // an exception.
  std::optional<grpc::Status> unparsed;
  grpc::Status threw;
  std::vector<Counter> handled;      // indexed by status code; empty without metrics
  std::optional<Histogram> seconds;  // set for unary methods, if there are metrics
};

class CallInterceptor final : public Interceptor {
 public:
  explicit CallInterceptor(const Method* method) : method_(method) {
    if (method->seconds.has_value()) {
      start_ = std::chrono::steady_clock::now();
    }
  }

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE)) {
      parsed_ = methods->GetRecvMessage() != nullptr;
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      Observe(Mend(methods));
    }
    methods->Proceed();
  }

 private:
  // Repairs the call's status if necessary. Returns the code that is sent.
  grpc::StatusCode Mend(InterceptorBatchMethods* methods) const {
    const grpc::Status status = methods->GetSendStatus();
    const bool is_unparsed = method_->unparsed.has_value() &&
                             status.error_code() == grpc::StatusCode::UNIMPLEMENTED &&
                             status.error_message().empty();
    if (!is_unparsed) {
      return status.error_code();
    }
    // gRPC sends the same status for a handler that threw an exception as for a request that it
    // could not parse.
    const grpc::Status& mended = parsed_ ? method_->threw : *method_->unparsed;
    methods->ModifySendStatus(mended);
    return mended.error_code();
  }

  void Observe(grpc::StatusCode sent) const {
    const auto code = static_cast<size_t>(sent);
    if (code < method_->handled.size()) {
      method_->handled[code].Add();
    }
    if (method_->seconds.has_value()) {
      method_->seconds->Observe(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
    }
  }

  const Method* const method_;
  bool parsed_ = false;                          // whether the request was parsed
  std::chrono::steady_clock::time_point start_;  // start of a call whose duration is measured
};

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  Factory(Metrics* metrics, absl::Span<const std::string> service_names) {
    const auto* pool = google::protobuf::DescriptorPool::generated_pool();
    for (const std::string& name : service_names) {
      const auto* service = pool->FindServiceByName(name);
      for (int i = 0; service != nullptr && i < service->method_count(); ++i) {
        Add(metrics, *service->method(i));
      }
    }
  }

  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    const auto found = methods_.find(info->method());
    // gRPC accepts null: no interceptor for this call.
    return found == methods_.end() ? nullptr : new CallInterceptor(&found->second);
  }

 private:
  void Add(Metrics* metrics, const google::protobuf::MethodDescriptor& descriptor) {
    const std::string service(descriptor.service()->name());
    const std::string label = StrCat(service, "/", descriptor.name());
    Method& method =
        methods_[StrCat("/", descriptor.service()->full_name(), "/", descriptor.name())];
    if (!descriptor.client_streaming()) {
      method.unparsed = ToGrpc(UnparsedMessage(*descriptor.input_type()));
      method.threw = ToGrpc(WithReason(
          absl::ResourceExhaustedError(StrCat(
              "the server could not answer ", label,
              ": most likely it ran out of memory; ask for less, or give the server more memory")),
          Reason::kMemoryLimit));
    }
    if (metrics == nullptr) {
      return;
    }
    for (int code = 0; code < kCodes; ++code) {
      method.handled.push_back(metrics->AddCounter(
          "shardmesh_rpc_handled_total", "Calls answered, by method and status code.",
          {{"method", label},
           {"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}}));
    }
    if (!descriptor.client_streaming() && !descriptor.server_streaming()) {
      method.seconds = metrics->AddHistogram(
          "shardmesh_rpc_duration_seconds",
          "Time from a unary call's arrival until its status was sent, by method.",
          {{"method", label}});
    }
  }

  // Methods by path. Constant after construction, so interceptors can keep pointers to methods.
  absl::flat_hash_map<std::string, Method> methods_;
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> CallInterceptors(
    Metrics* metrics, absl::Span<const std::string> service_names) {
  return std::make_unique<Factory>(metrics, service_names);
}

}  // namespace shardmesh::rpc
