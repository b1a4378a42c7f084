// Resizes of meshes: options and results.
#ifndef SHARDMESH_CLIENT_TYPES_RESIZE_H_
#define SHARDMESH_CLIENT_TYPES_RESIZE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/types/array.h"
#include "sharding/uneven.h"

namespace shardmesh::client {

struct ResizeOptions {
  // The rule that cuts the dimensions which the new shape does not divide. With kEqualOnly, an
  // array with such a dimension is refused.
  UnevenCuts uneven = UnevenCuts::kEqualOnly;
  std::vector<int64_t> weights = {};  // only with kByWeights: one for each device of the new shape
  // Plans and checks, but changes nothing. Refused arrays and too little memory are no errors then.
  bool validate_only = false;
  // Called with the bytes of the tiles that were made, and of all tiles to make. May be null.
  ProgressCallback progress = nullptr;
  // Called with the id of the operation before anything moves, and again for each retry.
  // ClusterClient::CancelOperation accepts this id. May be null.
  std::function<void(const std::string& operation_id)> on_begun = nullptr;
};

// The part of one worker of the new shape.
struct ResizeRank {
  int32_t rank = 0;
  std::string identity;
  int64_t moved_bytes = 0;  // received from other workers
  int64_t have_bytes = 0;   // left for tiles
  int64_t need_bytes = 0;   // the most that is needed at one time
};

// An array that cannot move to the new shape.
struct ResizeRefusal {
  std::string name;  // empty: it has none
  std::string array_id;
  absl::Status error;
};

struct ResizeResult {
  // Empty with `validate_only`, and if the mesh had the shape already.
  std::string operation_id;
  int64_t array_count = 0;
  int64_t moved_bytes = 0;                   // bytes that workers receive from other workers
  std::vector<ResizeRank> ranks = {};        // the first 4,096
  std::vector<ResizeRefusal> refusals = {};  // with `validate_only`: the first 1,000
  int64_t refusal_count = 0;                 // of all refused arrays
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_RESIZE_H_
