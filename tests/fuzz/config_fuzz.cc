// Fuzzes the YAML files that users write: no exception comes out, and what a file defines can be
// sent and is received as the same.
#include "rpc/config.h"

#include <string_view>

#include "rpc/spec_codec.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/quiet_protobuf.h"

namespace shardmesh::fuzz {
namespace {

// The message that stands for `defined`, which can be decoded if the file was right to be accepted.
template <typename Message, typename Defined>
void CheckDefinition(const absl::StatusOr<Defined>& defined) {
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

}  // namespace

void Check(std::string_view input) {
  CheckDefinition<v1::RuleSet>(rpc::ParseRules(input, "rules.yaml"));
  CheckDefinition<v1::PartitionAxis>(rpc::ParseProfile(input, "profile.yaml"));
  CheckDefinition<v1::MeshDefinition>(rpc::ParseMesh(input, "mesh.yaml", 8));
}

}  // namespace shardmesh::fuzz
