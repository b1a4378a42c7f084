// Sets the log handlers of gRPC and protobuf, once.
#include "rpc/library_logs.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <string>

#include "process/log.h"

namespace shardmesh::rpc {

void TakeLibraryLogs() {
  static const bool once = [] {
    gpr_set_log_function([](gpr_log_func_args* line) {
      LogDebug("grpc", {{"message", line->message}});
    });
    google::protobuf::SetLogHandler(
        [](google::protobuf::LogLevel level, const char*, int, const std::string& message) {
          // Protobuf ends the process after a fatal message, so log it as an error.
          level == google::protobuf::LOGLEVEL_FATAL ? LogError("protobuf", {{"message", message}})
                                                    : LogDebug("protobuf", {{"message", message}});
        });
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace shardmesh::rpc
