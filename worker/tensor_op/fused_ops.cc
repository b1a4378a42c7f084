// Checks the tiles and the types of fused ops, and chooses the functions of their elements.
#include "worker/tensor_op/fused_ops.h"

#include <cstddef>
#include <variant>
#include <vector>

#include "program/tensor_op.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/tensor_op/element_steps.h"
#include "worker/tensor_op/op_kernels.h"

namespace shardmesh::worker {
namespace {

absl::Status BadOps(std::string_view what) {
  return InvalidArgument(Reason::kBadField, what, {{fact::kField, "ops"}});
}

// Adds the step of the op to `steps`, and the type of its result to `types`, which has the types of
// the inputs and of the results so far.
absl::Status AddStep(const TensorOp& op, const OpOutput& output, std::vector<TensorType>* types,
                     std::vector<ElementStep>* steps) {
  const std::vector<ValueIndex> read = InputsOf(op);
  std::vector<TensorType> read_types;
  for (const ValueIndex number : read) {
    if (number >= types->size()) return BadOps("reads a value before it is made");
    read_types.push_back((*types)[number]);
  }
  SHARDMESH_ASSIGN_OR_RETURN(TensorType result, ResultTypeOf(op, read_types));
  if (result.shape != output.shape) {
    return TileMisfit(TensorOpName(op), "the result", result.shape, output.shape);
  }
  if (const auto* const map = std::get_if<MapOp>(&op); map != nullptr) {
    steps->push_back({.function = ElementFunction(*map, read_types[0].dtype),
                      .left = read.front(),
                      .right = read.back()});
  } else if (const auto* const convert = std::get_if<ConvertOp>(&op); convert != nullptr) {
    steps->push_back({.function = ElementFunction(*convert, read_types[0].dtype),
                      .left = read.front(),
                      .right = read.front()});
  } else {
    return BadOps("is no function of elements");
  }
  types->push_back(std::move(result));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunFusedOps(const FusedCompute& fused, absl::Span<const OpInput> inputs,
                         const OpOutput& output, const OpContext& context) {
  if (inputs.size() != fused.inputs.size() || fused.ops.empty()) {
    return BadOps(StrCat("fused ops have ", fused.inputs.size(), " inputs, not ", inputs.size(),
                         "; there are ", fused.ops.size(), " ops"));
  }
  std::vector<TensorType> types;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const OpInput& input = inputs[i];
    SHARDMESH_RETURN_IF_ERROR(CheckTile("fused ops", StrCat("input ", i), input.dtype, input.shape,
                                        input.tile, input.bytes.size()));
    types.push_back({.dtype = input.dtype, .shape = input.shape});
  }
  SHARDMESH_RETURN_IF_ERROR(CheckTile("fused ops", "the result", output.dtype, output.shape,
                                      output.tile, output.bytes.size()));
  std::vector<ElementStep> steps;
  for (const FusedOp& op : fused.ops) {
    if (absl::Status added = AddStep(op.op, output, &types, &steps); !added.ok()) {
      return WithContext(added, op.label);
    }
  }
  if (types.back().dtype != output.dtype) {
    return WithContext(InvalidArgument(Reason::kUnsupportedDtype,
                                       StrCat("the result is ", DtypeName(types.back().dtype),
                                              ", not ", DtypeName(output.dtype)),
                                       {{fact::kDtype, DtypeName(output.dtype)}}),
                       fused.ops.back().label);
  }
  return RunElementSteps(steps, inputs, output, context);
}

}  // namespace shardmesh::worker
