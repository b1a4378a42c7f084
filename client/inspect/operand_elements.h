// Elements of operands and results, as the client gets them from the workers.
#ifndef SHARDMESH_CLIENT_INSPECT_OPERAND_ELEMENTS_H_
#define SHARDMESH_CLIENT_INSPECT_OPERAND_ELEMENTS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/inspect/bounded_tensor.h"
#include "client/inspect/reference_collective.h"
#include "client/mesh_client.h"
#include "client/types/call_options.h"
#include "client/types/step.h"
#include "program/step_plan.h"
#include "sharding/mesh.h"
#include "sharding/tile.h"

namespace shardmesh::client {

// An operand that is known: an array by its id, or a literal, and its description.
struct KnownOperand {
  Operand operand;
  ValueDescriptor described;
  std::optional<Mesh> mesh = std::nullopt;  // of an array
};

// Finds the array of an operand. Errors are those of ArrayClient::DescribeArray.
absl::StatusOr<KnownOperand> FindOperandOf(MeshClient* client, const Operand& operand,
                                           const CallOptions& options);
// Returns the operand that is this array.
KnownOperand KnownArray(const ArrayDescriptor& array);

// Returns the partial sums of the operand, or of a part of it, by PartialSumOf; a single tensor if
// it has none. Errors are those of ArrayClient::GatherPartialSum, and of ExactTensor.
absl::StatusOr<std::vector<BoundedTensorPtr>> PartialSumsOf(MeshClient* client,
                                                            const KnownOperand& known,
                                                            const CallOptions& options,
                                                            const std::optional<Tile>& part = {});

// Returns the operand's value, as a step that reads it has it; of partial sums, SumOf. Errors are
// those of PartialSumsOf.
absl::StatusOr<BoundedTensorPtr> ElementsOf(MeshClient* client, const KnownOperand& known,
                                            const CallOptions& options,
                                            const std::optional<Tile>& part = {});

// Returns the value of a result; of partial sums, RoundedSumOf. Errors are those of PartialSumsOf.
absl::StatusOr<BoundedTensorPtr> ResultElementsOf(MeshClient* client, const ArrayDescriptor& result,
                                                  const CallOptions& options,
                                                  const std::optional<Tile>& part = {});

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_INSPECT_OPERAND_ELEMENTS_H_
