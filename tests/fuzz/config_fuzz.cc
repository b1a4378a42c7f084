// Fuzzes the YAML files that users write: no exception comes out, and what a file defines can be
// sent and is received as the same.
#include "rpc/config.h"

#include <string_view>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/quiet_protobuf.h"
#include "tests/fuzz/wire_round_trip.h"

namespace shardmesh::fuzz {

void Check(std::string_view input) {
  RequireRoundTrip<v1::RuleSet>(rpc::ParseRules(input, "rules.yaml"));
  RequireRoundTrip<v1::PartitionAxis>(rpc::ParseProfile(input, "profile.yaml"));
  RequireRoundTrip<v1::MeshDefinition>(rpc::ParseMesh(input, "mesh.yaml", 8));
  const absl::StatusOr<TensorMap> map = rpc::ParseTensorMap(input, "map.yaml");
  Require(map.ok() || map.status().code() == absl::StatusCode::kInvalidArgument);
  // A pattern is applied without a crash, whatever it and the replacement are.
  for (size_t i = 0; map.ok() && i < map->rules.size() && i < 8; ++i) {
    map->rules[i].replacement.Apply("layer.0.weight").IgnoreError();
  }
}

}  // namespace shardmesh::fuzz
