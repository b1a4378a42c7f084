// The corrections that an error under CORRECTION_POLICY_STRICT carries, with their fixes.
#ifndef SHARDMESH_RPC_CODEC_CORRECTION_CODEC_H_
#define SHARDMESH_RPC_CODEC_CORRECTION_CODEC_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sharding/correction.h"
#include "sharding/layout/fixes.h"
#include "sharding/mesh.h"

namespace shardmesh::rpc {

// Attaches corrections as shardmesh.v1.CorrectionFailure, and the facts of the first one.
// Fix::correction is an index into `corrections`. `mesh` is named in their messages. An OK status
// stays as it is.
absl::Status WithCorrections(absl::Status status, absl::Span<const Correction> corrections,
                             absl::Span<const Fix> fixes, const Mesh& mesh);

// The corrections that WithCorrections attached, as far as the error had room.
struct CorrectionFailure {
  std::vector<Correction> corrections;
  std::vector<Fix> fixes;
  int64_t omitted = 0;  // number of further corrections
};

// The corrections of an error; empty where it has none, or where they are malformed.
CorrectionFailure CorrectionsOf(const absl::Status& status);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_CORRECTION_CODEC_H_
