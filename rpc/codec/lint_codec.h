// Converts findings about rules between messages and the types of sharding/.
#ifndef SHARDMESH_RPC_CODEC_LINT_CODEC_H_
#define SHARDMESH_RPC_CODEC_LINT_CODEC_H_

#include "absl/status/statusor.h"
#include "sharding/rules/rule_lint.h"
#include "shardmesh/v1/rule_service.pb.h"

namespace shardmesh::rpc {

v1::LintFinding::Kind Encode(Finding::Kind kind);
void Encode(const Finding& from, v1::LintFinding* to);

// Errors are INVALID_ARGUMENT (BAD_FIELD) and name the field: a kind that is unset or unknown to
// this build, or a mode with an unknown name.
absl::StatusOr<Finding::Kind> Decode(v1::LintFinding::Kind from);
absl::StatusOr<Finding> Decode(const v1::LintFinding& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_LINT_CODEC_H_
