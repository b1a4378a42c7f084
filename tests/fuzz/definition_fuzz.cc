// Fuzzes definitions as they arrive: what is accepted, sent again, is received as the same.
#include <string>
#include <string_view>

#include "rpc/spec_codec.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/quiet_protobuf.h"

namespace shardmesh::fuzz {
namespace {

template <typename Message>
void CheckMessage(const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) {
    return;
  }
  const auto defined = rpc::Decode(message);
  if (!defined.ok()) {
    Require(defined.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  Message sent;
  rpc::Encode(*defined, &sent);
  const auto received = rpc::Decode(sent);
  Require(received.ok());
  Message again;
  rpc::Encode(*received, &again);
  Require(again.SerializeAsString() == sent.SerializeAsString());
}

}  // namespace

void Check(std::string_view input) {
  const std::string bytes(input);
  CheckMessage<v1::MeshDefinition>(bytes);
  CheckMessage<v1::PartitionAxis>(bytes);
  CheckMessage<v1::RuleSet>(bytes);
}

}  // namespace shardmesh::fuzz
