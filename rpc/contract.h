// Constants of the wire contract that both ends of a call need.
#ifndef SHARDMESH_RPC_CONTRACT_H_
#define SHARDMESH_RPC_CONTRACT_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shardmesh::rpc {

// The versions of the protocol between coordinator, workers and clients that this build speaks: the
// newest one and the one before it, so that a cluster is upgraded one process after the other.
inline constexpr int32_t kNewestProtocol = 1;
inline constexpr int32_t kOldestProtocol = std::max(1, kNewestProtocol - 1);

// The newest version that this build has in common with a peer that speaks `min` to `max`.
constexpr std::optional<int32_t> CommonProtocol(int32_t min, int32_t max) {
  const int32_t newest = std::min(max, kNewestProtocol);
  if (newest < min || newest < kOldestProtocol) return std::nullopt;
  return newest;
}

// An ability of this build's coordinator that another build may lack. GetVersion lists the names.
struct Feature {
  std::string_view name;
  // The method or field that has it: a full name of protobuf.
  std::string_view element;
};
inline constexpr Feature kFeatures[] = {
    {.name = "array_slices", .element = "shardmesh.v1.BeginGetRequest.slice"},
    {.name = "output_specs", .element = "shardmesh.v1.OutputLayout.output_spec"},
    {.name = "puts_by_axes", .element = "shardmesh.v1.PutTensor.axes"},
    {.name = "snapshots", .element = "shardmesh.v1.AdminService.Snapshot"},
    {.name = "unnamed_arrays", .element = "shardmesh.v1.ListArraysRequest.include_unnamed"},
    {.name = "validate_only", .element = "shardmesh.v1.BeginPutHeader.validate_only"},
};

// Most tiles that one GetTiles call asks for.
inline constexpr int kMaxTilesPerGet = 10'000;

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CONTRACT_H_
