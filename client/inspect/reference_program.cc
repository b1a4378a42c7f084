// Reference values of programs: one op after the other, whole tensors.
#include "client/inspect/reference_program.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <utility>
#include <variant>

#include "client/inspect/reference_ops.h"
#include "program/graph/symbolic_program.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

absl::Status CheckInputs(const ProgramOp& op, size_t values) {
  for (const ValueIndex input : InputsOfOp(op)) {
    if (input < values) continue;
    return InvalidArgument(Reason::kBadField,
                           StrCat("reads value ", input, ", but there are only ", values,
                                  " values before it; use one of these"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ProductDims> DimsOf(const ReferenceProduct& product,
                                   absl::Span<const TensorType> types) {
  return ProductDimsOf(types[product.lhs].shape, product.transpose_lhs, types[product.rhs].shape,
                       product.transpose_rhs);
}

// Returns the type of an op's result. `types` are those of the values before it.
absl::StatusOr<TensorType> TypeOf(const ProgramOp& op, absl::Span<const TensorType> types) {
  SHARDMESH_RETURN_IF_ERROR(CheckInputs(op, types.size()));
  if (const auto product = ProductOf(op); product.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(const ProductDims dims, DimsOf(*product, types));
    TensorType type{types[product->lhs].dtype, OutputShapeOf(dims)};
    if (product->scales.has_value()) {
      SHARDMESH_RETURN_IF_ERROR(CheckScales(types[*product->scales], type.shape.back()));
    }
    return type;
  }
  if (const auto* const reshard = std::get_if<ReshardOp>(&op)) return types[reshard->input];
  if (const auto* const tensor_op = std::get_if<TensorOp>(&op)) {
    std::vector<TensorType> inputs;
    for (const ValueIndex input : InputsOf(*tensor_op)) inputs.push_back(types[input]);
    return ResultTypeOf(*tensor_op, inputs);
  }
  return WithReason(
      absl::UnimplementedError(
          "a collective among other ops is not verified: its result depends on the layout that the "
          "planner gives its operand; run it as a step of its own, or leave out the verification"),
      Reason::kNotAvailable);
}

// Returns the number of multiplications and additions of an op; 0 for those with few. Doubles,
// because the product of extents may be large.
double WorkOf(const ProgramOp& op, absl::Span<const TensorType> types) {
  if (const auto product = ProductOf(op); product.has_value()) {
    double work = 1;
    const auto dims = DimsOf(*product, types);
    if (!dims.ok()) return 0;  // not reached: TypesOfValues has checked the shapes
    for (const ProductDim& dim : *dims) work *= static_cast<double>(dim.extent);
    return work;
  }
  const auto* const tensor_op = std::get_if<TensorOp>(&op);
  if (tensor_op == nullptr) return 0;
  std::vector<TensorType> inputs;
  for (const ValueIndex input : InputsOf(*tensor_op)) inputs.push_back(types[input]);
  return static_cast<double>(ReferenceWork(*tensor_op, inputs));
}

std::vector<size_t> StridesOf(const Shape& shape) {
  std::vector<size_t> strides(shape.size(), 1);
  for (size_t dim = shape.size(); dim-- > 1;) {
    strides[dim - 1] = strides[dim] * static_cast<size_t>(shape[dim]);
  }
  return strides;
}

// The matrices of one operand of a product, as rows along the contracted dimension, which lies
// last. Row `row` is that of the result's coordinates in the operand's other dimensions.
class ContractedRows {
 public:
  // Copies the elements if the contracted dimension does not lie last.
  ContractedRows(BoundedTensorPtr tensor, const ProductDims& dims, ProductSide side)
      : tensor_(std::move(tensor)), length_(static_cast<size_t>(dims.back().extent)) {
    const size_t contracted = *dims.back().On(side);
    const Shape& shape = tensor_->shape;
    if (contracted + 1 != shape.size()) Rearrange(contracted);
    // The strides of rows, by dimension of the tensor.
    size_t stride = 1;
    std::vector<size_t> strides(shape.size(), 0);
    for (size_t dim = shape.size(); dim-- > 0;) {
      if (dim == contracted) continue;
      strides[dim] = stride;
      stride *= static_cast<size_t>(shape[dim]);
    }
    for (size_t dim = 0; dim + 1 < dims.size(); ++dim) {
      const std::optional<size_t> own = dims[dim].On(side);
      strides_.push_back(own.has_value() ? strides[*own] : 0);
    }
  }

  ContractedVector At(absl::Span<const size_t> coordinates) const {
    size_t row = 0;
    for (size_t dim = 0; dim < coordinates.size(); ++dim) row += coordinates[dim] * strides_[dim];
    const auto part = [&](const std::vector<double>& all) {
      return all.empty() ? absl::Span<const double>()
                         : absl::MakeConstSpan(all).subspan(row * length_, length_);
    };
    return {part(tensor_->values), part(tensor_->bounds)};
  }

 private:
  // Makes the dimension the last one.
  void Rearrange(size_t dimension) {
    const BoundedTensor& from = *tensor_;
    auto to = std::make_shared<BoundedTensor>();
    to->dtype = from.dtype;
    to->shape = from.shape;
    to->values.resize(from.values.size());
    to->bounds.resize(from.bounds.size());
    const size_t inner = StridesOf(from.shape)[dimension];
    for (size_t i = 0; i < from.size(); ++i) {
      const size_t outer = i / inner / length_;
      const size_t place = (outer * inner + i % inner) * length_ + i / inner % length_;
      to->values[place] = from.values[i];
      if (!to->bounds.empty()) to->bounds[place] = from.bounds[i];
    }
    tensor_ = std::move(to);
  }

  BoundedTensorPtr tensor_;
  const size_t length_;
  std::vector<size_t> strides_;  // by dimension of the result
};

absl::StatusOr<BoundedTensor> ProductValue(const ReferenceProduct& product, const TensorType& type,
                                           absl::Span<const TensorType> types,
                                           absl::Span<const BoundedTensorPtr> values) {
  SHARDMESH_ASSIGN_OR_RETURN(const ProductDims dims, DimsOf(product, types));
  const ContractedRows lhs(values[product.lhs], dims, ProductSide::kLhs);
  const ContractedRows rhs(values[product.rhs], dims, ProductSide::kRhs);
  const BoundedTensor* const bias =
      product.bias.has_value() ? values[*product.bias].get() : nullptr;
  const BoundedTensor* const scales =
      product.scales.has_value() ? values[*product.scales].get() : nullptr;
  ProductEnd end = {.scale = product.scale, .activation = product.activation, .dtype = type.dtype};
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t count, ElementCount(type.shape));
  BoundedTensor result{.dtype = type.dtype, .shape = type.shape};
  result.values.resize(static_cast<size_t>(count));
  result.bounds.resize(static_cast<size_t>(count));
  std::vector<size_t> coordinates(type.shape.size());
  for (size_t i = 0; i < result.size(); ++i) {
    size_t rest = i;
    for (size_t dim = coordinates.size(); dim-- > 0;) {
      coordinates[dim] = rest % static_cast<size_t>(type.shape[dim]);
      rest /= static_cast<size_t>(type.shape[dim]);
    }
    const size_t column = coordinates.back();
    BoundedNumber added;
    if (bias != nullptr) added = {bias->values[column], bias->bound(column)};
    if (scales != nullptr) end.factor = {scales->values[column], scales->bound(column)};
    const BoundedNumber element =
        ProductElement(lhs.At(coordinates), rhs.At(coordinates), added, end);
    result.values[i] = element.value;
    result.bounds[i] = element.bound;
  }
  return result;
}

}  // namespace

std::optional<ReferenceProduct> ProductOf(const ProgramOp& op) {
  if (const auto* const linear = std::get_if<LinearOp>(&op)) {
    return ReferenceProduct{.lhs = linear->input,
                            .rhs = linear->weight,
                            .bias = linear->bias,
                            .scales = linear->scales,
                            .transpose_rhs = linear->weight_layout == WeightLayout::kOutIn,
                            .scale = static_cast<double>(linear->scale),
                            .activation = linear->activation};
  }
  if (const auto* const matmul = std::get_if<MatmulOp>(&op)) {
    return ReferenceProduct{.lhs = matmul->lhs,
                            .rhs = matmul->rhs,
                            .transpose_lhs = matmul->transpose_lhs,
                            .transpose_rhs = matmul->transpose_rhs};
  }
  return std::nullopt;
}

absl::StatusOr<Program> ProgramOfTypes(const Program& program,
                                       absl::Span<const TensorType> operands) {
  if (!program.symbol.has_value()) return program;
  SHARDMESH_RETURN_IF_ERROR(CheckSymbolicProgram(program));
  SHARDMESH_ASSIGN_OR_RETURN(
      const int64_t length, LengthOf(program, [operands](ValueIndex operand) {
        return operand < operands.size() ? &operands[operand].shape : nullptr;
      }));
  return ProgramAt(program, length);
}

absl::StatusOr<std::vector<TensorType>> TypesOfValues(const Program& program,
                                                      absl::Span<const TensorType> operands) {
  std::vector<TensorType> types(operands.begin(), operands.end());
  for (size_t i = 0; i < program.ops.size(); ++i) {
    absl::StatusOr<TensorType> type = TypeOf(program.ops[i], types);
    if (!type.ok()) {
      return WithContext(type.status(), StrCat("op ", i, " (", ProgramOpName(program.ops[i]), ")"));
    }
    types.push_back(*std::move(type));
  }
  return types;
}

absl::Status CheckReferenceSize(const Program& program, absl::Span<const TensorType> types) {
  double elements = 0;
  for (const TensorType& type : types) {
    double count = 1;
    for (const int64_t extent : type.shape) count *= static_cast<double>(extent);
    elements += count;
  }
  SHARDMESH_RETURN_IF_ERROR(
      CheckReferenceLimit(elements, kMaxReferenceElements, "elements in all values"));
  double work = 0;
  for (const ProgramOp& op : program.ops) work += WorkOf(op, types);
  return CheckReferenceLimit(work, kMaxReferenceWork, "multiplications in its products");
}

absl::Status CheckReferenceLimit(double have, int64_t limit, std::string_view what) {
  if (have <= static_cast<double>(limit)) return absl::OkStatus();
  return InvalidArgument(
      Reason::kLimitExceeded,
      StrCat("the program has ", static_cast<int64_t>(std::min(have, 9e18)), " ", what,
             "; programs of at most ", limit,
             " are verified: give smaller operands, or leave out the verification"),
      {{fact::kHave, static_cast<int64_t>(std::min(have, 9e18))}, {fact::kLimit, limit}});
}

absl::StatusOr<std::vector<BoundedTensorPtr>> ReferenceValues(
    const Program& program, absl::Span<const TensorType> types,
    std::vector<BoundedTensorPtr> operands, double tolerance) {
  std::vector<BoundedTensorPtr> values = std::move(operands);
  const auto add = [&](BoundedTensor result) {
    if (std::isfinite(tolerance)) LimitBounds(tolerance, &result);
    values.push_back(std::make_shared<const BoundedTensor>(std::move(result)));
  };
  for (const ProgramOp& op : program.ops) {
    const TensorType& type = types[values.size()];
    if (const auto product = ProductOf(op); product.has_value()) {
      SHARDMESH_ASSIGN_OR_RETURN(BoundedTensor result, ProductValue(*product, type, types, values));
      add(std::move(result));
    } else if (const auto* const reshard = std::get_if<ReshardOp>(&op)) {
      values.push_back(values[reshard->input]);
    } else if (const auto* const tensor_op = std::get_if<TensorOp>(&op)) {
      std::vector<BoundedTensorPtr> inputs;
      for (const ValueIndex input : InputsOf(*tensor_op)) inputs.push_back(values[input]);
      SHARDMESH_ASSIGN_OR_RETURN(BoundedTensor result, ReferenceResult(*tensor_op, type, inputs));
      add(std::move(result));
    }
  }
  return values;
}

}  // namespace shardmesh::client
