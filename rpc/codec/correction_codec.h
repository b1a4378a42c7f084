// The corrections, with their fixes, in an error under CORRECTION_POLICY_STRICT.
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

// Attaches corrections as shardmesh.v1.CorrectionFailure, and the facts of the first correction.
// Fix::correction is an index into `corrections`. The messages of the corrections name `mesh`. An
// OK status stays unchanged.
absl::Status WithCorrections(absl::Status status, absl::Span<const Correction> corrections,
                             absl::Span<const Fix> fixes, const Mesh& mesh);

// The corrections that WithCorrections attached. WithCorrections omits the last corrections if the
// error has no room for all.
struct CorrectionFailure {
  std::vector<Correction> corrections;
  std::vector<Fix> fixes;
  int64_t omitted = 0;  // number of further corrections
};

// Returns the corrections of an error; empty if it has none, or if they are malformed.
CorrectionFailure CorrectionsOf(const absl::Status& status);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_CORRECTION_CODEC_H_
