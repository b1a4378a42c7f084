// The places from which a lost tile can be read again, and the order that makes a worker read it.
#ifndef SHARDMESH_SERVER_REPAIR_REPAIR_SOURCES_H_
#define SHARDMESH_SERVER_REPAIR_REPAIR_SOURCES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/state/array_registry.h"
#include "server/steps/fill_transport.h"
#include "server/steps/mesh_endpoints.h"

namespace shardmesh::server {

// One place with the bytes of a tile: another worker with the same tile, or a file with the whole
// tensor.
struct RepairSource {
  std::optional<RankEndpoint> holder = {};  // set: another worker
  // The array that the holder has the tile of; null: the array that is repaired.
  ArrayPtr twin = nullptr;
  ArraySource file = {};  // set otherwise
  // For people, and different for each source of a tile: `the replica on rank 2 (worker-2)`.
  std::string title = {};
};

// The maximum number of workers among the sources of a tile.
inline constexpr size_t kMaxRepairHolders = 8;

// The array with the same tiles: the companion of an array, or for a companion the array that it
// copies (ArrayRegistry::FindTwin). `array` is null if there is none.
struct RepairTwin {
  ArrayPtr array = nullptr;
  std::vector<RankEndpoint> live = {};  // the live workers of its mesh, by rank
};

// Returns the sources of the rank's tile in the order in which a repair tries them: first workers
// with the same tile of the twin, then those with the same tile of the array, then the file from
// which the array was loaded, then the newest checkpoint that has the array. A companion has the
// file and the checkpoint of the array that it copies. A tile of elements of less than a byte that
// begins or ends within a byte of the tensor comes from no file. `live`: the live workers of the
// array's mesh, by rank. A worker that lacks its own tile of the array is no source. Partial sums
// have no sources: only the rank's own worker had its summand.
absl::StatusOr<std::vector<RepairSource>> RepairSourcesOf(const Array& array, int64_t rank,
                                                          absl::Span<const RankEndpoint> live,
                                                          const RepairTwin& twin = {});

// An order to read a tile again.
struct RepairOrder {
  std::string transfer_id = {};
  int64_t term = 0;
  // Signs the token with which the worker fetches from another; see rpc/transfer_token.h.
  std::string token_key = {};
  absl::Time expire_time = {};  // of the token
  const Array* array = nullptr;
  int64_t rank = 0;
  const RepairSource* source = nullptr;
  absl::Span<const std::string> workers = {};  // of the array's mesh, by rank
  // The same of the mesh of `source->twin`, if the source has one.
  absl::Span<const std::string> twin_workers = {};
};

// Sends the order to the worker of the rank. Errors: those of FillTransport::SendFill.
absl::Status SendRepair(const RepairOrder& order, FillTransport* transport);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_REPAIR_REPAIR_SOURCES_H_
