// Checks of tiles, and the choice of the kernel.
#include "worker/tensor_op/tensor_ops.h"

#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/tensor_op/op_kernels.h"

namespace shardmesh::worker {
namespace {

// Whether the op names indices or extents of whole tensors, which the types of tiles do not have.
bool NamesWholeTensors(const TensorOp& op) {
  return std::holds_alternative<ReshapeOp>(op) || std::holds_alternative<SliceOp>(op) ||
         std::holds_alternative<ConstantOp>(op);
}

// Whether the op reduces an empty tile. The whole tensor may have elements, so the result is the
// neutral element.
bool ReducesNothing(const TensorOp& op, absl::Span<const OpInput> inputs) {
  return std::holds_alternative<ReduceOp>(op) && inputs[0].bytes.empty();
}

absl::Status CheckTypes(const TensorOp& op, absl::Span<const OpInput> inputs,
                        const OpOutput& output) {
  std::vector<TensorType> types;
  types.reserve(inputs.size());
  for (const OpInput& input : inputs) types.push_back({.dtype = input.dtype, .shape = input.shape});
  SHARDMESH_ASSIGN_OR_RETURN(const TensorType result, ResultTypeOf(op, types));
  if (result.dtype != output.dtype) {
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat("the result of ", TensorOpName(op), " is ", DtypeName(result.dtype), ", not ",
               DtypeName(output.dtype)),
        {{fact::kDtype, DtypeName(output.dtype)}, {fact::kOp, TensorOpName(op)}});
  }
  return result.shape == output.shape
             ? absl::OkStatus()
             : TileMisfit(TensorOpName(op), "the result", output.shape, result.shape);
}

}  // namespace

absl::Status CheckTile(std::string_view op, std::string_view name, Dtype dtype, const Shape& shape,
                       const Tile& tile, size_t size_bytes) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(shape));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t need, PackedSizeBytes(dtype, elements));
  if (static_cast<int64_t>(size_bytes) != need) {
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat(name, " of ", op, " has ", size_bytes, " bytes; ", DtypeName(dtype), " of shape ",
               ShapeToString(shape), " needs ", need),
        {{fact::kHave, size_bytes}, {fact::kNeed, need}, {fact::kOp, op}});
  }
  const Shape of_tile = tile.shape();
  return of_tile == shape ? absl::OkStatus() : TileMisfit(op, name, of_tile, shape);
}

absl::Status TileMisfit(std::string_view op, std::string_view tile, const Shape& have,
                        const Shape& need) {
  return InvalidArgument(
      Reason::kShapeMismatch,
      StrCat(tile, " of ", op, " is a tile of shape ", ShapeToString(have), "; it must be ",
             ShapeToString(need)),
      {{fact::kHave, ShapeToString(have)}, {fact::kNeed, ShapeToString(need)}, {fact::kOp, op}});
}

int64_t ElementsOf(absl::Span<const int64_t> shape) {
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  return elements;
}

absl::Status RunTensorOp(const TensorOp& op, absl::Span<const OpInput> inputs,
                         const OpOutput& output, const OpContext& context) {
  const std::string_view name = TensorOpName(op);
  const size_t count = InputsOf(op).size();
  if (inputs.size() != count) {
    return InvalidArgument(Reason::kBadField,
                           StrCat(name, " has ", count, " inputs, not ", inputs.size()),
                           {{fact::kField, "inputs"}});
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const OpInput& input = inputs[i];
    SHARDMESH_RETURN_IF_ERROR(CheckTile(name, StrCat("input ", i), input.dtype, input.shape,
                                        input.tile, input.bytes.size()));
  }
  SHARDMESH_RETURN_IF_ERROR(
      CheckTile(name, "the result", output.dtype, output.shape, output.tile, output.bytes.size()));
  if (!NamesWholeTensors(op) && !ReducesNothing(op, inputs)) {
    SHARDMESH_RETURN_IF_ERROR(CheckTypes(op, inputs, output));
  }
  return std::visit([&](const auto& kind) { return RunKernel(kind, inputs, output, context); }, op);
}

}  // namespace shardmesh::worker
