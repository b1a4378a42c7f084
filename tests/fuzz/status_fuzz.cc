// Fuzzes the details of failed calls: what is left of them after the wire is not lost on a second
// passage, and is never too long for a call's trailers.
#include "rpc/codec/status.h"
#include "status/detail.h"

#include <grpcpp/support/status.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "status/reason.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/quiet_protobuf.h"

namespace shardmesh::fuzz {

// The first byte is the code, the rest the details.
void Check(std::string_view input) {
  const int code = input.empty() ? 0 : static_cast<uint8_t>(input.front()) % 17;
  const std::string details(input.substr(std::min<size_t>(1, input.size())));
  const grpc::Status wire(static_cast<grpc::StatusCode>(code), details.substr(0, 2000), details);
  const grpc::Status sent = rpc::ToGrpc(rpc::FromGrpc(wire));
  Require(sent.error_code() == code);
  Require(sent.error_message().size() + sent.error_details().size() < 8192);

  const absl::Status first = rpc::FromGrpc(sent);
  const absl::Status second = rpc::FromGrpc(rpc::ToGrpc(first));
  Require(first.code() == second.code() && first.message() == second.message());
  Require(ReasonOf(first) == ReasonOf(second) && PythonTypeOf(first) == PythonTypeOf(second));
  Require(rpc::FieldViolationsOf(first) == rpc::FieldViolationsOf(second));
  Require(RetryDelayOf(first) == RetryDelayOf(second));
}

}  // namespace shardmesh::fuzz
