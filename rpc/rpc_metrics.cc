// A server interceptor that looks at nothing but the end of each call.
#include "rpc/rpc_metrics.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/server_interceptor.h>

#include <array>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "sharding/str_cat.h"

namespace shardmesh::rpc {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerRpcInfo;

constexpr int kCodes = static_cast<int>(grpc::StatusCode::UNAUTHENTICATED) + 1;

// The series of one method.
struct MethodMetrics {
  std::vector<Counter> handled;      // by code
  std::optional<Histogram> seconds;  // unary methods
};

class CallInterceptor final : public Interceptor {
 public:
  explicit CallInterceptor(const MethodMetrics* method)
      : method_(method), start_(std::chrono::steady_clock::now()) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const int code = methods->GetSendStatus().error_code();
      if (code >= 0 && code < kCodes) {
        method_->handled[static_cast<size_t>(code)].Add();
      }
      if (method_->seconds.has_value()) {
        method_->seconds->Observe(
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
      }
    }
    methods->Proceed();
  }

 private:
  const MethodMetrics* const method_;
  const std::chrono::steady_clock::time_point start_;
};

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  Factory(Metrics& metrics, absl::Span<const std::string> service_names) {
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
    // gRPC skips a null interceptor.
    return found == methods_.end() ? nullptr : new CallInterceptor(&found->second);
  }

 private:
  void Add(Metrics& metrics, const google::protobuf::MethodDescriptor& method) {
    const std::string path = StrCat("/", method.service()->full_name(), "/", method.name());
    const std::string label = StrCat(method.service()->name(), "/", method.name());
    MethodMetrics& series = methods_[path];
    for (int code = 0; code < kCodes; ++code) {
      series.handled.push_back(metrics.AddCounter(
          "shardmesh_rpc_handled_total", "Calls answered, by method and status code.",
          {{"method", label},
           {"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}}));
    }
    if (!method.client_streaming() && !method.server_streaming()) {
      series.seconds = metrics.AddHistogram(
          "shardmesh_rpc_duration_seconds",
          "Time from a unary call's arrival until its status was sent, by method.",
          {{"method", label}});
    }
  }

  absl::flat_hash_map<std::string, MethodMetrics> methods_;  // by path; constant once built
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> RpcMetricsInterceptors(
    Metrics& metrics, absl::Span<const std::string> service_names) {
  return std::make_unique<Factory>(metrics, service_names);
}

}  // namespace shardmesh::rpc
