// Compares tensors that are about to be put with arrays of the cluster, by digests of their tiles.
#ifndef SHARDMESH_CLIENT_REMOTE_CONTENT_MATCH_H_
#define SHARDMESH_CLIENT_REMOTE_CONTENT_MATCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tensor/array_descriptor.h"
#include "tensor/tensor_elements.h"

namespace shardmesh::client {

// An array that may have the elements of a tensor.
struct ContentCandidate {
  ArrayDescriptor array;
  std::vector<uint32_t> tile_crc32c;  // of each distinct tile: see Tiling::ReplicaGroup
  bool has_name = false;              // whether a name points to it
};

// The claim that an array has the elements of a tensor, or of some of its tiles. The coordinator
// makes the workers verify it.
struct ContentClaim {
  std::string array_id;
  std::vector<std::string> tile_sha256;  // of each claimed tile, 32 bytes each
  // The numbers of the claimed tiles, rising (Tiling::ReplicaGroup). Empty: all distinct tiles.
  std::vector<int64_t> equal_tiles = {};
};

struct MatchOptions {
  // The mesh whose arrays are preferred, first those with names: one of them may lie as the put
  // asks, and need no copy.
  std::string mesh = {};
  int threads = 1;
  // Polled, on any thread. True ends the comparison: it claims no more.
  std::function<bool()> is_over = [] { return false; };
};

// Limit for the layouts of candidates that are compared with one tensor.
inline constexpr size_t kMaxLayouts = 4;
// A candidate of which none of the first tiles is equal is not compared further.
inline constexpr int64_t kFirstTiles = 2;

// Returns a claim for each tensor that has the checksums of a candidate of its type and shape, or
// else about the candidate with which it shares most. Of tensors that share no tile, and if the
// elements cannot be made, returns nullopt. Compares the first tiles of a candidate before its
// others, and computes the SHA-256 only of tiles whose checksums are equal. Each thread takes 1 MiB
// of memory.
std::vector<std::optional<ContentClaim>> MatchContent(absl::Span<const TensorElements> tensors,
                                                      absl::Span<const ContentCandidate> candidates,
                                                      const MatchOptions& options);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_CONTENT_MATCH_H_
