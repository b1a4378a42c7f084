// Reads callers and deadlines from gRPC's contexts.
#include "rpc/caller.h"

#include <grpc/grpc_security_constants.h>
#include <grpc/support/time.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/server_context.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "status/str_cat.h"

namespace shardmesh::rpc {

std::string HostOfPeer(const std::string& peer) {
  if (peer.starts_with("unix")) {
    return "unix";
  }
  const size_t scheme = peer.find(':');
  const size_t port = peer.rfind(':');
  if (scheme == std::string::npos || port == scheme) {
    return peer;
  }
  std::string host = peer.substr(scheme + 1, port - scheme - 1);
  // gRPC escapes the brackets of IPv6 addresses.
  if (host.starts_with("%5B") && host.ends_with("%5D")) {
    host = host.substr(3, host.size() - 6);
  } else if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  }
  return host;
}

Caller CallerOf(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth != nullptr && auth->IsPeerAuthenticated()) {
    for (const char* property : {GRPC_PEER_URI_PROPERTY_NAME, GRPC_X509_SUBJECT_PROPERTY_NAME,
                                 GRPC_X509_CN_PROPERTY_NAME}) {
      const std::vector<grpc::string_ref> values = auth->FindPropertyValues(property);
      if (!values.empty() && !values.front().empty()) {
        return {.name = std::string(values.front().data(), values.front().size()),
                .is_proven = true};
      }
    }
  }
  return {.name = StrCat("host:", HostOfPeer(context.peer())), .is_proven = false};
}

absl::Duration TimeLeft(const grpc::ServerContextBase& context) {
  const gpr_timespec deadline = context.raw_deadline();
  if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) {
    return absl::InfiniteDuration();
  }
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  return absl::Seconds(left.tv_sec) + absl::Nanoseconds(left.tv_nsec);
}

absl::Duration TimeToWait(const grpc::ServerContextBase& context) {
  const absl::Duration left = TimeLeft(context);
  return std::max(left - kTimeToTell, left / 2);
}

}  // namespace shardmesh::rpc
