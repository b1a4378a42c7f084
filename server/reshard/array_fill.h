// Orders the workers of a transfer to fill its tiles from another array.
#ifndef SHARDMESH_SERVER_RESHARD_ARRAY_FILL_H_
#define SHARDMESH_SERVER_RESHARD_ARRAY_FILL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/state/array_registry.h"
#include "server/steps/fill_transport.h"
#include "server/steps/mesh_endpoints.h"
#include "tensor/array_descriptor.h"

namespace shardmesh::server {

// A transfer of one array, whose tiles come from a committed array of equal shape and element type.
struct ArrayFill {
  std::string transfer_id = {};
  std::string session_id = {};
  int64_t term = 0;
  // Signs the tokens with which workers fetch from one another; see rpc/transfer_token.h.
  std::string token_key = {};
  absl::Time expire_time = {};  // of the tokens
  const ArrayDescriptor* source = nullptr;
  const ArrayDescriptor* target = nullptr;
  std::vector<RankEndpoint> sources = {};        // live workers of the source's mesh, by rank
  std::vector<std::string> source_workers = {};  // of each rank of the source's mesh
  std::vector<std::string> target_workers = {};  // of each rank of the target's mesh
  // The companion of the source, and its workers from which come the tiles that none of `sources`
  // has: SourcesOfMissing. Null: the source has no companion.
  ArrayPtr second = nullptr;
  std::vector<RankEndpoint> second_sources = {};
  // Committed arrays that the workers take out of memory first: FillTiles.unloaded_array_ids.
  std::vector<std::string> unloaded_array_ids = {};
  int64_t move_memory_bytes = 0;  // FillTiles.move_memory_bytes
};

// Returns the error of the first worker that does not fill tiles itself: see
// FillTransport::CheckCanFill.
absl::Status CheckCanFill(const FillTransport& transport, absl::Span<const std::string> workers);

// Returns those workers of `second`, by rank, whose tiles no worker of `sources` has. `sources`:
// the live workers with tiles of the array, by rank. `second`: those with tiles of its companion,
// whose ranks have the tiles of the same ranks of the array. Empty if `sources` have all tiles.
absl::StatusOr<std::vector<RankEndpoint>> SourcesOfMissing(const ArrayDescriptor& array,
                                                           absl::Span<const RankEndpoint> sources,
                                                           absl::Span<const RankEndpoint> second);

// Sends each worker of the target's mesh the order to fill its tile. Errors: those of
// FillTransport::SendFill.
absl::Status SendArrayFill(const ArrayFill& fill, FillTransport* transport);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESHARD_ARRAY_FILL_H_
