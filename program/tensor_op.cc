// Names of tensor ops, and the types of their results.
#include "program/tensor_op.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "program/collective_check.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

struct MapFunctionRow {
  MapFunction function;
  std::string_view name;
  size_t inputs;
  bool has_integers;
};

// In the order of the enum.
constexpr std::array kMapFunctionRows = {
    MapFunctionRow{MapFunction::kAdd, "add", 2, true},
    MapFunctionRow{MapFunction::kSubtract, "subtract", 2, true},
    MapFunctionRow{MapFunction::kMultiply, "multiply", 2, true},
    MapFunctionRow{MapFunction::kDivide, "divide", 2, false},
    MapFunctionRow{MapFunction::kMinimum, "minimum", 2, true},
    MapFunctionRow{MapFunction::kMaximum, "maximum", 2, true},
    MapFunctionRow{MapFunction::kNegate, "negate", 1, true},
    MapFunctionRow{MapFunction::kAbs, "abs", 1, true},
    MapFunctionRow{MapFunction::kExp, "exp", 1, false},
    MapFunctionRow{MapFunction::kLog, "log", 1, false},
    MapFunctionRow{MapFunction::kSqrt, "sqrt", 1, false},
    MapFunctionRow{MapFunction::kRsqrt, "rsqrt", 1, false},
    MapFunctionRow{MapFunction::kTanh, "tanh", 1, false},
    MapFunctionRow{MapFunction::kSigmoid, "sigmoid", 1, false},
    MapFunctionRow{MapFunction::kRelu, "relu", 1, false},
    MapFunctionRow{MapFunction::kGelu, "gelu", 1, false},
    MapFunctionRow{MapFunction::kGeluTanh, "gelu-tanh", 1, false},
    MapFunctionRow{MapFunction::kSilu, "silu", 1, false},
};

constexpr std::array<MapFunction, kMapFunctionRows.size()> MapFunctionsOf() {
  std::array<MapFunction, kMapFunctionRows.size()> functions = {};
  for (size_t i = 0; i < kMapFunctionRows.size(); ++i) functions[i] = kMapFunctionRows[i].function;
  return functions;
}
constexpr auto kMapFunctions = MapFunctionsOf();

const MapFunctionRow& RowOf(MapFunction function) {
  return kMapFunctionRows[static_cast<size_t>(function)];
}

// The lists of element types that ops have.
constexpr std::array kShortFloats = {Dtype::kF32, Dtype::kBF16, Dtype::kF16};
constexpr std::array kFloats = {Dtype::kF64, Dtype::kF32, Dtype::kBF16, Dtype::kF16};
constexpr std::array kNumbers = {Dtype::kF64, Dtype::kF32, Dtype::kBF16, Dtype::kF16,
                                 Dtype::kI8,  Dtype::kI16, Dtype::kI32,  Dtype::kI64};
constexpr std::array kConvertedTo = {Dtype::kF64, Dtype::kF32, Dtype::kBF16, Dtype::kF16,
                                     Dtype::kI8,  Dtype::kI16, Dtype::kI32,  Dtype::kI64,
                                     Dtype::kU8,  Dtype::kU16, Dtype::kU32,  Dtype::kU64};
constexpr std::array kConvertedFrom = {
    Dtype::kBool, Dtype::kF64, Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kI8, Dtype::kI16,
    Dtype::kI32,  Dtype::kI64, Dtype::kU8,  Dtype::kU16,  Dtype::kU32, Dtype::kU64};
constexpr std::array kMasks = {Dtype::kBool, Dtype::kI32};
constexpr std::array kIndices = {Dtype::kI32};

absl::Status BadField(std::string_view field, std::string_view message) {
  return InvalidArgument(Reason::kBadField, message, {{fact::kField, field}});
}

absl::Status CheckDtype(std::string_view input, const TensorType& type,
                        absl::Span<const Dtype> allowed) {
  if (std::find(allowed.begin(), allowed.end(), type.dtype) != allowed.end()) {
    return absl::OkStatus();
  }
  const auto append = [](std::string* out, Dtype dtype) { StrAppend(out, DtypeName(dtype)); };
  return InvalidArgument(
      Reason::kUnsupportedDtype,
      StrCat("`", input, "` has type ", DtypeName(type.dtype), "; it must be ",
             allowed.size() == 1 ? "" : "one of ", StrJoin(allowed, ", ", append), "; convert it"),
      {{fact::kDtype, DtypeName(type.dtype)}});
}

absl::Status CheckSameDtype(std::string_view input, const TensorType& type, std::string_view as,
                            const TensorType& wanted) {
  if (type.dtype == wanted.dtype) return absl::OkStatus();
  return InvalidArgument(Reason::kUnsupportedDtype,
                         StrCat("`", input, "` has type ", DtypeName(type.dtype), "; it must be ",
                                DtypeName(wanted.dtype), " as `", as, "` is; convert one of them"),
                         {{fact::kDtype, DtypeName(type.dtype)}});
}

// Refuses types whose elements do not fill whole bytes.
absl::Status CheckWholeBytes(std::string_view input, const TensorType& type) {
  if (BitsPerElement(type.dtype) % 8 == 0) return absl::OkStatus();
  return InvalidArgument(Reason::kUnsupportedDtype,
                         StrCat("`", input, "` has type ", DtypeName(type.dtype),
                                "; elements must fill whole bytes; convert the array before the "
                                "step"),
                         {{fact::kDtype, DtypeName(type.dtype)}});
}

// `need` says in words which shape fits.
absl::Status WrongShape(std::string_view input, const Shape& have, std::string_view need) {
  return InvalidArgument(
      Reason::kShapeMismatch,
      StrCat("`", input, "` has shape ", ShapeToString(have), "; it must be ", need),
      {{fact::kHave, ShapeToString(have)}, {fact::kNeed, need}});
}

absl::Status CheckRank(std::string_view input, const TensorType& type, size_t rank,
                       std::string_view need) {
  return type.shape.size() == rank ? absl::OkStatus() : WrongShape(input, type.shape, need);
}

// Checks a tensor that must be [sequence] or [batch, sequence], for the first two dimensions of
// `of`.
absl::Status CheckPositions(const TensorType& positions, const Shape& of) {
  SHARDMESH_RETURN_IF_ERROR(CheckDtype("positions", positions, kIndices));
  const Shape row = {of[1]};
  const Shape rows = {of[0], of[1]};
  if (positions.shape == row || positions.shape == rows) return absl::OkStatus();
  return WrongShape("positions", positions.shape,
                    StrCat(ShapeToString(row), " or ", ShapeToString(rows)));
}

// Returns the shape to which both shapes are broadcast; nullopt if there is none.
std::optional<Shape> BroadcastShape(const Shape& a, const Shape& b) {
  Shape shape = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  const size_t shift = shape.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    int64_t& extent = shape[shift + i];
    if (extent == 1) {
      extent = shorter[i];
    } else if (shorter[i] != 1 && shorter[i] != extent) {
      return std::nullopt;
    }
  }
  return shape;
}

absl::Status CheckDimensionNumber(std::string_view field, int64_t dimension, const Shape& shape) {
  if (dimension >= 0 && static_cast<size_t>(dimension) < shape.size()) return absl::OkStatus();
  return BadField(field, StrCat("dimension ", dimension, " is out of range; the input has ",
                                shape.size(), " dimensions"));
}

// Refuses numbers for which no length was chosen.
absl::Status CheckNotSymbolic(std::string_view field, const std::vector<SymbolicNumber>& numbers) {
  if (numbers.empty()) return absl::OkStatus();
  return BadField(field, StrCat("`", field,
                                "` depends on a length, and the program has no symbolic dimension, "
                                "or no length was chosen for it"));
}

// Computes the type of an op's result; has one function for each op. `inputs` are the types of the
// op's inputs.
struct ResultTyper {
  absl::Span<const TensorType> inputs;

  absl::StatusOr<TensorType> operator()(const MapOp& op) const {
    const MapFunctionRow& row = RowOf(op.function);
    if (op.inputs.size() != row.inputs) {
      return BadField("inputs", StrCat("the function has ", row.inputs, " inputs; ",
                                       op.inputs.size(), " are given"));
    }
    const absl::Span<const Dtype> allowed =
        row.has_integers ? absl::MakeConstSpan(kNumbers) : absl::MakeConstSpan(kFloats);
    SHARDMESH_RETURN_IF_ERROR(
        CheckDtype(row.inputs == 1 ? "input" : "inputs[0]", inputs[0], allowed));
    if (row.inputs == 1) return inputs[0];
    SHARDMESH_RETURN_IF_ERROR(CheckSameDtype("inputs[1]", inputs[1], "inputs[0]", inputs[0]));
    const std::optional<Shape> shape = BroadcastShape(inputs[0].shape, inputs[1].shape);
    if (!shape.has_value()) {
      return InvalidArgument(
          Reason::kShapeMismatch,
          StrCat("shapes ", ShapeToString(inputs[0].shape), " and ", ShapeToString(inputs[1].shape),
                 " cannot be broadcast: from the last dimension on, extents must agree, or one "
                 "must be 1"),
          {{fact::kHave, ShapeToString(inputs[1].shape)}});
    }
    return TensorType{.dtype = inputs[0].dtype, .shape = *shape};
  }

  absl::StatusOr<TensorType> operator()(const ConvertOp& op) const {
    SHARDMESH_RETURN_IF_ERROR(CheckDtype("input", inputs[0], kConvertedFrom));
    if (std::find(kConvertedTo.begin(), kConvertedTo.end(), op.dtype) == kConvertedTo.end()) {
      return InvalidArgument(Reason::kUnsupportedDtype,
                             StrCat("cannot convert to ", DtypeName(op.dtype),
                                    "; only to floats of 16 or more bits "
                                    "and to integers"),
                             {{fact::kDtype, DtypeName(op.dtype)}});
    }
    return TensorType{.dtype = op.dtype, .shape = inputs[0].shape};
  }

  absl::StatusOr<TensorType> operator()(const NormOp& op) const {
    const TensorType& input = inputs[0];
    SHARDMESH_RETURN_IF_ERROR(CheckDtype("input", input, kShortFloats));
    if (input.shape.empty()) return WrongShape("input", input.shape, "(..., features)");
    if (!(op.epsilon >= 0)) {
      return BadField("epsilon", StrCat("epsilon is ", op.epsilon, "; it must be at least 0"));
    }
    size_t next = 1;
    const auto check = [&](std::string_view name) -> absl::Status {
      const TensorType& factor = inputs[next++];
      const Shape features = {input.shape.back()};
      if (factor.shape != features) {
        return WrongShape(name, factor.shape, ShapeToString(features));
      }
      return factor.dtype == Dtype::kF32 ? absl::OkStatus()
                                         : CheckSameDtype(name, factor, "input", input);
    };
    if (op.weight.has_value()) SHARDMESH_RETURN_IF_ERROR(check("weight"));
    if (op.bias.has_value()) SHARDMESH_RETURN_IF_ERROR(check("bias"));
    return input;
  }

  absl::StatusOr<TensorType> operator()(const SoftmaxOp& op) const {
    SHARDMESH_RETURN_IF_ERROR(CheckDtype("input", inputs[0], kShortFloats));
    const Shape& shape = inputs[0].shape;
    if (shape.empty()) return WrongShape("input", shape, "(..., elements)");
    if (op.mask.has_value()) {
      SHARDMESH_RETURN_IF_ERROR(CheckDtype("mask", inputs[1], kMasks));
      if (BroadcastShape(inputs[1].shape, shape) != shape) {
        return WrongShape("mask", inputs[1].shape,
                          StrCat("a shape that is broadcast to ", ShapeToString(shape)));
      }
    }
    return inputs[0];
  }

  absl::StatusOr<TensorType> operator()(const ReduceOp& op) const {
    const TensorType& input = inputs[0];
    const bool is_mean = op.reduction == Reduction::kMean;
    SHARDMESH_RETURN_IF_ERROR(CheckDtype(
        "input", input, is_mean ? absl::MakeConstSpan(kFloats) : absl::MakeConstSpan(kNumbers)));
    if (op.dimensions.empty()) return BadField("dimensions", "at least one dimension is reduced");
    for (const int64_t dimension : op.dimensions) {
      SHARDMESH_RETURN_IF_ERROR(CheckDimensionNumber("dimensions", dimension, input.shape));
    }
    if (std::adjacent_find(op.dimensions.begin(), op.dimensions.end(), std::greater_equal<>()) !=
        op.dimensions.end()) {
      return BadField("dimensions",
                      StrCat("the dimensions ", StrJoin(op.dimensions, ", "), " must rise"));
    }
    TensorType result = {.dtype = input.dtype, .shape = {}};
    for (size_t dim = 0; dim < input.shape.size(); ++dim) {
      const bool is_reduced =
          std::binary_search(op.dimensions.begin(), op.dimensions.end(), static_cast<int64_t>(dim));
      const bool has_neutral_element =
          op.reduction == Reduction::kSum || op.reduction == Reduction::kProduct;
      if (is_reduced && input.shape[dim] == 0 && !has_neutral_element) {
        return WrongShape("input", input.shape,
                          StrCat("of at least one element in dimension ", dim));
      }
      if (!is_reduced) {
        result.shape.push_back(input.shape[dim]);
      } else if (op.keeps_dimensions) {
        result.shape.push_back(1);
      }
    }
    return result;
  }

  absl::StatusOr<TensorType> operator()(const RotaryOp& /*op*/) const {
    const TensorType& input = inputs[0];
    SHARDMESH_RETURN_IF_ERROR(CheckDtype("input", input, kShortFloats));
    SHARDMESH_RETURN_IF_ERROR(CheckRank("input", input, 4, "(batch, sequence, heads, features)"));
    if (input.shape[3] % 2 != 0) {
      return WrongShape("input", input.shape, "(batch, sequence, heads, an even number)");
    }
    SHARDMESH_RETURN_IF_ERROR(CheckPositions(inputs[1], input.shape));
    static constexpr std::array kFrequencies = {Dtype::kF32};
    SHARDMESH_RETURN_IF_ERROR(CheckDtype("frequencies", inputs[2], kFrequencies));
    const Shape pairs = {input.shape[3] / 2};
    if (inputs[2].shape != pairs) {
      return WrongShape("frequencies", inputs[2].shape, ShapeToString(pairs));
    }
    return input;
  }

  absl::StatusOr<TensorType> operator()(const EmbeddingOp& /*op*/) const {
    const TensorType& table = inputs[0];
    if (!HasArithmetic(table.dtype)) {
      return InvalidArgument(Reason::kUnsupportedDtype,
                             StrCat("`table` has type ", DtypeName(table.dtype),
                                    ", which has no sums; convert it to F32, BF16 or F16"),
                             {{fact::kDtype, DtypeName(table.dtype)}});
    }
    SHARDMESH_RETURN_IF_ERROR(CheckRank("table", table, 2, "(rows, features)"));
    SHARDMESH_RETURN_IF_ERROR(CheckDtype("ids", inputs[1], kIndices));
    TensorType result = {.dtype = table.dtype, .shape = inputs[1].shape};
    result.shape.push_back(table.shape[1]);
    return result;
  }

  absl::StatusOr<TensorType> operator()(const AttentionOp& op) const {
    const TensorType& query = inputs[0];
    const TensorType& keys = inputs[1];
    const TensorType& values = inputs[2];
    SHARDMESH_RETURN_IF_ERROR(CheckDtype("query", query, kShortFloats));
    SHARDMESH_RETURN_IF_ERROR(CheckSameDtype("keys", keys, "query", query));
    SHARDMESH_RETURN_IF_ERROR(CheckSameDtype("values", values, "query", query));
    SHARDMESH_RETURN_IF_ERROR(CheckRank("query", query, 4, "(batch, queries, heads, features)"));
    const int64_t batch = query.shape[0];
    const int64_t features = query.shape[3];
    if (keys.shape.size() != 4 || keys.shape[0] != batch || keys.shape[3] != features) {
      return WrongShape("keys", keys.shape,
                        StrCat("(", batch, ", rows, key heads, ", features, ") to fit `query` of ",
                               ShapeToString(query.shape)));
    }
    const int64_t heads = query.shape[2];
    const int64_t key_heads = keys.shape[2];
    if (key_heads == 0 ? heads != 0 : heads % key_heads != 0) {
      return WrongShape(
          "keys", keys.shape,
          StrCat("of a number of heads that divides the ", heads, " heads of `query`"));
    }
    const Shape& of_values = values.shape;
    if (of_values.size() != 4 || of_values[0] != batch || of_values[1] != keys.shape[1] ||
        of_values[2] != key_heads) {
      return WrongShape("values", of_values,
                        StrCat("(", batch, ", ", keys.shape[1], ", ", key_heads,
                               ", value features) to fit `keys`"));
    }
    size_t next = 3;
    if (op.positions.has_value()) {
      SHARDMESH_RETURN_IF_ERROR(CheckPositions(inputs[next++], query.shape));
    }
    if (op.mask.has_value()) {
      SHARDMESH_RETURN_IF_ERROR(CheckDtype("mask", inputs[next], kMasks));
      const Shape rows = {batch, keys.shape[1]};
      if (inputs[next].shape != rows) {
        return WrongShape("mask", inputs[next].shape, ShapeToString(rows));
      }
    }
    return TensorType{.dtype = query.dtype, .shape = {batch, query.shape[1], heads, of_values[3]}};
  }

  absl::StatusOr<TensorType> operator()(const TopKOp& op) const {
    const TensorType& input = inputs[0];
    SHARDMESH_RETURN_IF_ERROR(CheckDtype("input", input, kNumbers));
    if (input.shape.empty()) return WrongShape("input", input.shape, "(..., elements)");
    if (op.count < 1) {
      return BadField("count", StrCat("count is ", op.count, "; it must be at least 1"));
    }
    if (op.count > input.shape.back()) {
      return WrongShape(
          "input", input.shape,
          StrCat("of at least ", op.count, " elements in the last dimension (count)"));
    }
    if (op.gives_indices && input.shape.back() > std::numeric_limits<int32_t>::max()) {
      return WrongShape("input", input.shape, "of fewer than 2^31 elements in the last dimension");
    }
    if (op.drops_dimension && op.count != 1) {
      return BadField("drop_dimension", StrCat("the dimension of the ", op.count,
                                               " largest elements cannot be dropped; only that of "
                                               "one"));
    }
    TensorType result = {.dtype = op.gives_indices ? Dtype::kI32 : input.dtype,
                         .shape = input.shape};
    if (op.drops_dimension) {
      result.shape.pop_back();
    } else {
      result.shape.back() = op.count;
    }
    return result;
  }

  absl::StatusOr<TensorType> operator()(const ReshapeOp& op) const {
    SHARDMESH_RETURN_IF_ERROR(CheckNotSymbolic("symbolic_shape", op.symbolic_shape));
    SHARDMESH_RETURN_IF_ERROR(CheckWholeBytes("input", inputs[0]));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t have, ElementCount(inputs[0].shape));
    const absl::StatusOr<int64_t> need = ElementCount(op.shape);
    if (!need.ok()) return BadField("shape", ToStd(need.status().message()));
    if (have != *need) {
      return WrongShape("input", inputs[0].shape,
                        StrCat("of ", *need, " elements as ", ShapeToString(op.shape), " is"));
    }
    return TensorType{.dtype = inputs[0].dtype, .shape = op.shape};
  }

  absl::StatusOr<TensorType> operator()(const TransposeOp& op) const {
    SHARDMESH_RETURN_IF_ERROR(CheckWholeBytes("input", inputs[0]));
    std::vector<int64_t> wanted(inputs[0].shape.size());
    std::iota(wanted.begin(), wanted.end(), int64_t{0});
    if (!std::is_permutation(op.permutation.begin(), op.permutation.end(), wanted.begin(),
                             wanted.end())) {
      return BadField("permutation",
                      StrCat("(", StrJoin(op.permutation, ", "), ") is no permutation of the ",
                             wanted.size(), " dimensions of the input"));
    }
    TensorType result = inputs[0];
    for (size_t i = 0; i < wanted.size(); ++i) {
      result.shape[i] = inputs[0].shape[static_cast<size_t>(op.permutation[i])];
    }
    return result;
  }

  absl::StatusOr<TensorType> operator()(const SliceOp& op) const {
    SHARDMESH_RETURN_IF_ERROR(CheckNotSymbolic("symbolic_starts", op.symbolic_starts));
    SHARDMESH_RETURN_IF_ERROR(CheckNotSymbolic("symbolic_limits", op.symbolic_limits));
    SHARDMESH_RETURN_IF_ERROR(CheckWholeBytes("input", inputs[0]));
    TensorType result = inputs[0];
    const size_t rank = result.shape.size();
    const auto check_size = [&](std::string_view field, size_t size) {
      return size == rank ? absl::OkStatus()
                          : BadField(field, StrCat(field, " has ", size, " numbers; the input has ",
                                                   rank, " dimensions"));
    };
    SHARDMESH_RETURN_IF_ERROR(check_size("starts", op.starts.size()));
    SHARDMESH_RETURN_IF_ERROR(check_size("limits", op.limits.size()));
    if (!op.steps.empty()) SHARDMESH_RETURN_IF_ERROR(check_size("steps", op.steps.size()));
    for (size_t dim = 0; dim < rank; ++dim) {
      const int64_t step = op.steps.empty() ? 1 : op.steps[dim];
      if (step < 1) {
        return BadField("steps", StrCat("the step of dimension ", dim, " is ", step,
                                        "; it must be at least 1"));
      }
      const int64_t start = op.starts[dim];
      const int64_t limit = op.limits[dim];
      if (start < 0 || limit < start || limit > result.shape[dim]) {
        return BadField("limits", StrCat("the indices of dimension ", dim, " are [", start, ", ",
                                         limit, "); they must be in [0, ", result.shape[dim],
                                         "), and the limit not below the start"));
      }
      const int64_t extent = limit - start;
      result.shape[dim] = extent / step + (extent % step == 0 ? 0 : 1);
    }
    return result;
  }

  absl::StatusOr<TensorType> operator()(const ConcatenateOp& op) const {
    if (inputs.empty()) return BadField("inputs", "at least one input is joined");
    TensorType result = inputs[0];
    SHARDMESH_RETURN_IF_ERROR(CheckWholeBytes("inputs[0]", result));
    SHARDMESH_RETURN_IF_ERROR(CheckDimensionNumber("dimension", op.dimension, result.shape));
    const auto joined = static_cast<size_t>(op.dimension);
    for (size_t i = 1; i < inputs.size(); ++i) {
      const std::string name = StrCat("inputs[", i, "]");
      SHARDMESH_RETURN_IF_ERROR(CheckSameDtype(name, inputs[i], "inputs[0]", inputs[0]));
      Shape wanted = inputs[0].shape;
      if (inputs[i].shape.size() == wanted.size()) wanted[joined] = inputs[i].shape[joined];
      if (inputs[i].shape != wanted) {
        return WrongShape(name, inputs[i].shape,
                          StrCat(ShapeToString(inputs[0].shape),
                                 " as inputs[0] is, except in "
                                 "dimension ",
                                 joined));
      }
      if (__builtin_add_overflow(result.shape[joined], inputs[i].shape[joined],
                                 &result.shape[joined])) {
        return WrongShape(name, inputs[i].shape, "shorter: the sum of extents exceeds 64 bits");
      }
    }
    return result;
  }

  absl::StatusOr<TensorType> operator()(const UpdateRowsOp& /*op*/) const {
    const TensorType& input = inputs[0];
    const TensorType& update = inputs[1];
    SHARDMESH_RETURN_IF_ERROR(CheckWholeBytes("input", input));
    SHARDMESH_RETURN_IF_ERROR(CheckSameDtype("update", update, "input", input));
    if (input.shape.size() < 2) return WrongShape("input", input.shape, "(batch, rows, ...)");
    Shape wanted = input.shape;
    if (update.shape.size() == wanted.size()) wanted[1] = update.shape[1];
    if (update.shape != wanted) {
      return WrongShape("update", update.shape,
                        StrCat(ShapeToString(input.shape),
                               " as `input` is, except in dimension 1 (the sequence)"));
    }
    SHARDMESH_RETURN_IF_ERROR(CheckPositions(inputs[2], update.shape));
    return input;
  }

  absl::StatusOr<TensorType> operator()(const ConstantOp& op) const {
    const Literal& value = op.value;
    SHARDMESH_RETURN_IF_ERROR(CheckShape(value.shape));
    const TensorType type = {.dtype = value.dtype, .shape = value.shape};
    SHARDMESH_RETURN_IF_ERROR(CheckWholeBytes("value", type));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(value.shape));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, PackedSizeBytes(value.dtype, elements));
    if (bytes > kMaxConstantBytes) {
      return InvalidArgument(Reason::kLimitExceeded,
                             StrCat("the constant has ", bytes, " bytes; at most ",
                                    kMaxConstantBytes, " are allowed; pass it as an operand"),
                             {{fact::kLimit, kMaxConstantBytes}});
    }
    if (static_cast<int64_t>(value.bytes.size()) != bytes) {
      return BadField("value", StrCat("the constant has ", value.bytes.size(), " bytes; ",
                                      DtypeName(value.dtype), " of shape ",
                                      ShapeToString(value.shape), " has ", bytes));
    }
    return type;
  }
};

struct OpNamer {
  std::string_view operator()(const MapOp& op) const { return MapFunctionName(op.function); }
  std::string_view operator()(const ConvertOp& /*op*/) const { return "convert"; }
  std::string_view operator()(const NormOp& op) const {
    switch (op.kind) {
      case NormKind::kRms:
        return "rms-norm";
      case NormKind::kLayer:
        return "layer-norm";
      case NormKind::kL2:
        return "l2-norm";
    }
    return "norm";
  }
  std::string_view operator()(const SoftmaxOp& /*op*/) const { return "softmax"; }
  std::string_view operator()(const ReduceOp& op) const {
    switch (op.reduction) {
      case Reduction::kSum:
        return "sum";
      case Reduction::kProduct:
        return "product";
      case Reduction::kMin:
        return "min";
      case Reduction::kMax:
        return "max";
      case Reduction::kMean:
        return "mean";
    }
    return "reduce";
  }
  std::string_view operator()(const RotaryOp& /*op*/) const { return "rotary"; }
  std::string_view operator()(const EmbeddingOp& /*op*/) const { return "embedding"; }
  std::string_view operator()(const AttentionOp& /*op*/) const { return "attention"; }
  std::string_view operator()(const TopKOp& /*op*/) const { return "top-k"; }
  std::string_view operator()(const ReshapeOp& /*op*/) const { return "reshape"; }
  std::string_view operator()(const TransposeOp& /*op*/) const { return "transpose"; }
  std::string_view operator()(const SliceOp& /*op*/) const { return "slice"; }
  std::string_view operator()(const ConcatenateOp& /*op*/) const { return "concatenate"; }
  std::string_view operator()(const UpdateRowsOp& /*op*/) const { return "update-rows"; }
  std::string_view operator()(const ConstantOp& /*op*/) const { return "constant"; }
};

}  // namespace

absl::Span<const MapFunction> AllMapFunctions() { return kMapFunctions; }

std::string_view MapFunctionName(MapFunction function) { return RowOf(function).name; }

size_t InputCountOf(MapFunction function) { return RowOf(function).inputs; }

std::string_view TensorOpName(const TensorOp& op) { return std::visit(OpNamer(), op); }

std::vector<ValueIndex> InputsOf(const TensorOp& op) {
  std::vector<ValueIndex> inputs;
  internal::ForEachInput(op, [&](ValueIndex value) { inputs.push_back(value); });
  return inputs;
}

absl::StatusOr<TensorType> ResultTypeOf(const TensorOp& op, absl::Span<const TensorType> inputs) {
  SHARDMESH_ASSIGN_OR_RETURN(TensorType result, std::visit(ResultTyper{.inputs = inputs}, op));
  // Inputs without elements can have a result of too many elements or dimensions.
  SHARDMESH_RETURN_IF_ERROR(CheckShape(result.shape));
  return result;
}

bool MayOverwriteInput(const TensorOp& op, size_t input) {
  if (std::holds_alternative<MapOp>(op)) return true;
  return input == 0 &&
         (std::holds_alternative<ConvertOp>(op) || std::holds_alternative<NormOp>(op) ||
          std::holds_alternative<SoftmaxOp>(op) || std::holds_alternative<RotaryOp>(op) ||
          std::holds_alternative<ReshapeOp>(op) || std::holds_alternative<UpdateRowsOp>(op));
}

}  // namespace shardmesh
