// What is accepted, sent, is received as the same.
#ifndef SHARDMESH_TESTS_FUZZ_WIRE_ROUND_TRIP_H_
#define SHARDMESH_TESTS_FUZZ_WIRE_ROUND_TRIP_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rpc/codec/spec_codec.h"
#include "tests/fuzz/fuzz.h"

namespace shardmesh::fuzz {

// A refusal has to be the input's fault; what was accepted has to survive the wire, as a Message.
template <typename Message, typename Defined>
void RequireRoundTrip(const absl::StatusOr<Defined>& defined) {
  if (!defined.ok()) {
    Require(defined.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  Message sent;
  rpc::Encode(*defined, &sent);
  const absl::StatusOr<Defined> received = rpc::Decode(sent);
  Require(received.ok());
  Message again;
  rpc::Encode(*received, &again);
  Require(again.SerializeAsString() == sent.SerializeAsString());
}

}  // namespace shardmesh::fuzz

#endif  // SHARDMESH_TESTS_FUZZ_WIRE_ROUND_TRIP_H_
