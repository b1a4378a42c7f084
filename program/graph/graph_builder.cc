// Builds programs by calls.
#include "program/graph/graph_builder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "program/graph/symbolic_program.h"
#include "status/detail.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/float_convert.h"

namespace shardmesh {
namespace {

template <typename T>
std::string BytesOfNumbers(absl::Span<const T> numbers) {
  return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
}

template <typename T>
std::string BytesOfNumber(T number) {
  return BytesOfNumbers(absl::Span<const T>(&number, 1));
}

template <typename T>
std::optional<std::string> BytesOfInteger(double value) {
  // Both bounds are powers of two, or 0, and hence exact.
  const double lowest = static_cast<double>(std::numeric_limits<T>::min());
  const double above = std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (!(value >= lowest && value < above) || std::trunc(value) != value) return std::nullopt;
  return BytesOfNumber(static_cast<T>(value));
}

// Returns the bytes of one element; nullopt if the type has no such value, or is no type of
// numbers of whole bytes.
std::optional<std::string> BytesOfElement(Dtype dtype, double value) {
  switch (dtype) {
    case Dtype::kF64:
      return BytesOfNumber(value);
    case Dtype::kF32:
      return BytesOfNumber(F64ToF32(value));
    case Dtype::kBF16:
      return BytesOfNumber(F64ToBF16(value));
    case Dtype::kF16:
      return BytesOfNumber(F64ToF16(value));
    case Dtype::kI8:
      return BytesOfInteger<int8_t>(value);
    case Dtype::kU8:
      return BytesOfInteger<uint8_t>(value);
    case Dtype::kI16:
      return BytesOfInteger<int16_t>(value);
    case Dtype::kU16:
      return BytesOfInteger<uint16_t>(value);
    case Dtype::kI32:
      return BytesOfInteger<int32_t>(value);
    case Dtype::kU32:
      return BytesOfInteger<uint32_t>(value);
    case Dtype::kI64:
      return BytesOfInteger<int64_t>(value);
    case Dtype::kU64:
      return BytesOfInteger<uint64_t>(value);
    default:
      return std::nullopt;
  }
}

// Returns the shape with its one extent of -1 computed; nullopt if that is not possible.
std::optional<Shape> WithComputedExtent(const Shape& input, Shape shape) {
  const auto unknown = std::find(shape.begin(), shape.end(), -1);
  if (unknown == shape.end()) return shape;
  if (std::count(shape.begin(), shape.end(), -1) > 1) return std::nullopt;
  *unknown = 1;
  const absl::StatusOr<int64_t> elements = ElementCount(input);
  const absl::StatusOr<int64_t> others = ElementCount(shape);
  if (!elements.ok() || !others.ok() || *others == 0 || *elements % *others != 0) {
    return std::nullopt;
  }
  *unknown = *elements / *others;
  return shape;
}

void AddInput(const std::optional<GraphValue>& input, std::vector<GraphValue>* inputs) {
  if (input.has_value()) inputs->push_back(*input);
}

// Returns a field of an op for an optional input: its number is set later.
std::optional<ValueIndex> FieldOf(const std::optional<GraphValue>& input) {
  return input.has_value() ? std::optional<ValueIndex>(0) : std::nullopt;
}

}  // namespace

void GraphBuilder::Fail(const absl::Status& error) {
  if (!status_.ok()) return;
  status_ = scope_.empty() ? error : WithContext(error, scope_);
}

void GraphBuilder::Refuse(Reason reason, std::string_view message, Facts facts) {
  Fail(InvalidArgument(reason, message, facts));
}

GraphValue GraphBuilder::FailOp(const absl::Status& error, std::string_view op_name,
                                absl::Span<const GraphValue> inputs) {
  const std::string read = StrJoin(
      inputs, ", ", [&](std::string* out, GraphValue value) { StrAppend(out, Describe(value)); });
  Fail(WithFactsOf(InvalidArgument(ReasonOf(error), StrCat("op ", op_count(), " (", op_name,
                                                           "): ", ToStd(error.message()),
                                                           read.empty() ? "" : "; inputs: ", read)),
                   error));
  return {};
}

bool GraphBuilder::CheckValues(absl::Span<const GraphValue> values, std::string_view op_name) {
  if (!status_.ok()) return false;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].owner_ == this) continue;
    Refuse(Reason::kBadField,
           StrCat("op ", op_count(), " (", op_name, "): input ", i,
                  values[i].owner_ == nullptr
                      ? " is no tensor: the value was never set"
                      : " belongs to another builder; build one graph with one builder"));
    return false;
  }
  return true;
}

std::optional<int64_t> GraphBuilder::DimensionOf(GraphValue input, int64_t dimension,
                                                 std::string_view op_name) {
  if (!CheckValues({&input, 1}, op_name)) return std::nullopt;
  const auto rank = static_cast<int64_t>(ShapeOf(input).size());
  if (dimension >= -rank && dimension < rank) return dimension < 0 ? dimension + rank : dimension;
  FailOp(
      InvalidArgument(Reason::kInvalidDimension,
                      StrCat("the input has ", rank, " dimensions, and no dimension ", dimension),
                      {{fact::kDimension, dimension}, {fact::kLimit, rank}}),
      op_name, {&input, 1});
  return std::nullopt;
}

std::string GraphBuilder::Describe(GraphValue value) const {
  const Node& node = NodeOf(value);
  std::string text;
  if (node.op.has_value()) {
    const auto is_op = [](const Node& other) { return other.op.has_value(); };
    const auto end = nodes_.begin() + static_cast<std::ptrdiff_t>(value.node_);
    text = StrCat("op ", std::count_if(nodes_.begin(), end, is_op), " (", ProgramOpName(*node.op),
                  ")");
  } else {
    text = StrCat("\"", node.name, "\"");
  }
  return StrCat(text, " ", DtypeName(node.type.dtype), " ", ShapeText(node, value.node_));
}

const Shape& GraphBuilder::ShapeAtLength(size_t node, size_t length) const {
  const Node& at = nodes_[node];
  return at.shapes.empty() ? at.type.shape : at.shapes[length];
}

Shape GraphBuilder::ShapeAtLength(const GraphShape& shape, size_t length) const {
  Shape at_length;
  for (const GraphExtent extent : shape.extents()) {
    at_length.push_back(extent.is_symbolic() ? extent.factor() * lengths_[length] + extent.offset()
                                             : extent.offset());
  }
  return at_length;
}

std::vector<SymbolicNumber> GraphBuilder::SymbolicExtentsOf(const GraphShape& shape) {
  std::vector<SymbolicNumber> numbers;
  for (size_t i = 0; i < shape.extents().size(); ++i) {
    const GraphExtent extent = shape.extents()[i];
    if (!extent.is_symbolic()) continue;
    numbers.push_back(
        {.index = static_cast<int64_t>(i), .factor = extent.factor(), .offset = extent.offset()});
  }
  if (!numbers.empty() && !symbol_.has_value()) {
    Refuse(Reason::kBadField,
           "an extent is symbolic, and the graph has no symbolic dimension; "
           "call Symbol of this builder first");
  } else if (const absl::Status error = CheckSymbolicNumbers(numbers, shape.extents().size());
             !error.ok()) {
    Fail(error);
  }
  return numbers;
}

std::optional<GraphExtent> GraphBuilder::FittedExtent(size_t node, size_t dimension) const {
  if (nodes_[node].shapes.empty()) return GraphExtent(nodes_[node].type.shape[dimension]);
  std::vector<int64_t> values;
  for (const Shape& shape : nodes_[node].shapes) values.push_back(shape[dimension]);
  const std::optional<SymbolicNumber> number = NumberThatHas(0, lengths_, values);
  if (!number.has_value()) return std::nullopt;
  return GraphExtent(number->factor, number->offset);
}

std::string GraphBuilder::ShapeText(const Node& node, size_t index) const {
  if (node.shapes.empty()) return ShapeToString(node.type.shape);
  std::vector<SymbolicNumber> numbers;
  for (size_t i = 0; i < node.type.shape.size(); ++i) {
    const std::optional<GraphExtent> extent = FittedExtent(index, i);
    // Such an extent is shown as it is at the maximum.
    if (!extent.has_value() || !extent->is_symbolic()) continue;
    numbers.push_back(
        {.index = static_cast<int64_t>(i), .factor = extent->factor(), .offset = extent->offset()});
  }
  return SymbolicShapeText(node.type.shape, numbers, symbol_->name);
}

std::optional<GraphExtent> GraphBuilder::RequiredExtent(GraphValue value, size_t dimension,
                                                        std::string_view op_name) {
  const std::optional<GraphExtent> extent = FittedExtent(value.node_, dimension);
  if (extent.has_value()) return extent;
  FailOp(InvalidArgument(Reason::kInvalidDimension,
                         StrCat("dimension ", dimension, " of the input is no factor times ",
                                symbol_->name, " plus an offset"),
                         {{fact::kDimension, dimension}}),
         op_name, {&value, 1});
  return std::nullopt;
}

GraphExtent GraphBuilder::ExtentOf(GraphValue value, int64_t dimension) {
  const std::optional<int64_t> found = DimensionOf(value, dimension, "extent");
  if (!found.has_value()) return 1;
  return RequiredExtent(value, static_cast<size_t>(*found), "extent").value_or(GraphExtent(1));
}

GraphExtent GraphBuilder::Symbol(std::string_view name, int64_t min, int64_t max,
                                 int64_t multiple) {
  const GraphExtent length(/*factor=*/1, /*offset=*/0);
  if (!status_.ok()) return length;
  SymbolicDimension symbol = {
      .name = std::string(name), .min = min, .max = max, .multiple = multiple};
  if (symbol_.has_value()) {
    Refuse(Reason::kBadField, StrCat("the graph has the symbolic dimension ", symbol_->name,
                                     " already; it may have one"));
  } else if (const absl::Status error = CheckSymbolicDimension(symbol); !error.ok()) {
    Fail(error);
  } else {
    lengths_ = LengthsToCheck(symbol);
    symbol_ = std::move(symbol);
  }
  return length;
}

GraphValue GraphBuilder::AddNode(Node node) {
  nodes_.push_back(std::move(node));
  return GraphValue(this, nodes_.size() - 1);
}

GraphValue GraphBuilder::Operand(std::string_view name, Dtype dtype, const GraphShape& shape,
                                 bool is_state) {
  if (!status_.ok()) return {};
  Node node = {.type = {.dtype = dtype, .shape = {}},
               .extents = SymbolicExtentsOf(shape),
               .name = std::string(name),
               .is_state = is_state};
  if (!status_.ok()) return {};
  const std::string_view kind = is_state ? "state" : "parameter";
  absl::Status bad_shape;
  for (size_t i = 0; i < length_count(); ++i) {
    node.type.shape = ShapeAtLength(shape, i);
    if (!node.extents.empty()) node.shapes.push_back(node.type.shape);
    bad_shape.Update(CheckShape(node.type.shape));
  }
  if (node.shapes.size() == 1) node.shapes.clear();  // there is one length
  const bool has_low_factor =
      std::any_of(node.extents.begin(), node.extents.end(),
                  [](const SymbolicNumber& extent) { return extent.factor < 1; });
  if (const absl::Status error = CheckGraphName("operand", name); !error.ok()) {
    Fail(error);
  } else if (operands_.contains(name)) {
    Refuse(Reason::kBadField, StrCat(kind, " \"", name, "\" is declared twice"));
  } else if (!bad_shape.ok()) {
    Fail(WithContext(bad_shape, StrCat(kind, " \"", name, "\"")));
  } else if (has_low_factor) {
    Refuse(Reason::kBadField,
           StrCat(kind, " \"", name, "\" has a symbolic extent with a factor below 1"));
  } else if (operands_.size() == kMaxProgramSize) {
    Refuse(Reason::kLimitExceeded,
           StrCat(kind, " \"", name, "\" is one too many: a program has at most ", kMaxProgramSize,
                  " operands"),
           {{fact::kLimit, kMaxProgramSize}});
  }
  if (!status_.ok()) return {};
  operands_.emplace(std::string(name), nodes_.size());
  return AddNode(std::move(node));
}

GraphValue GraphBuilder::Parameter(std::string_view name, Dtype dtype, const GraphShape& shape) {
  return Operand(name, dtype, shape, /*is_state=*/false);
}

GraphValue GraphBuilder::State(std::string_view name, Dtype dtype, const GraphShape& shape) {
  return Operand(name, dtype, shape, /*is_state=*/true);
}

absl::Status GraphBuilder::SetType(const ProgramOp& op, absl::Span<const GraphValue> inputs,
                                   Node* node) const {
  const auto depends = [&](GraphValue input) { return !NodeOf(input).shapes.empty(); };
  const bool is_symbolic =
      symbol_.has_value() && (IsSymbolic(op) || std::any_of(inputs.begin(), inputs.end(), depends));
  for (size_t i = 0; i < (is_symbolic ? lengths_.size() : 1); ++i) {
    std::vector<TensorType> types;
    for (const GraphValue input : inputs) {
      types.push_back({DtypeOf(input), ShapeAtLength(input.node_, i)});
    }
    absl::StatusOr<TensorType> type =
        ProgramOpResultType(is_symbolic ? OpAt(op, lengths_[i]) : op, types);
    if (!type.ok() && is_symbolic) {
      return WithContext(type.status(), StrCat("at ", symbol_->name, " ", lengths_[i]));
    }
    SHARDMESH_RETURN_IF_ERROR(type.status());
    node->type = *std::move(type);
    if (is_symbolic) node->shapes.push_back(node->type.shape);
  }
  const auto is_longest = [&](const Shape& shape) { return shape == node->type.shape; };
  if (std::all_of(node->shapes.begin(), node->shapes.end(), is_longest)) node->shapes.clear();
  return absl::OkStatus();
}

GraphValue GraphBuilder::Op(ProgramOp op, absl::Span<const GraphValue> inputs) {
  const std::string_view name = ProgramOpName(op);
  if (!CheckValues(inputs, name)) return {};
  if (op_count() == kMaxProgramSize) {
    return FailOp(InvalidArgument(Reason::kLimitExceeded,
                                  StrCat("a program has at most ", kMaxProgramSize,
                                         " ops; split the graph into several programs"),
                                  {{fact::kLimit, kMaxProgramSize}}),
                  name, inputs);
  }
  if (const size_t wanted = InputsOfOp(op).size(); wanted != inputs.size()) {
    return FailOp(InvalidArgument(Reason::kBadField, StrCat("the op reads ", wanted, " values; ",
                                                            inputs.size(), " are given")),
                  name, inputs);
  }
  std::vector<ValueIndex> numbers;
  Node node;
  for (const GraphValue input : inputs) {
    numbers.push_back(static_cast<ValueIndex>(input.node_));
    node.is_exact = node.is_exact && NodeOf(input).is_exact;
  }
  absl::Status error = CheckSymbolicNumbersOf(op);
  if (error.ok()) error = SetType(op, inputs, &node);
  if (!error.ok()) return FailOp(error, name, inputs);
  node.is_exact = node.is_exact && !ResultShapeNeedsMesh(op);
  node.op = WithProgramOpInputs(std::move(op), numbers);
  return AddNode(std::move(node));
}

GraphValue GraphBuilder::Constant(Literal value) {
  return Op(TensorOp(ConstantOp{.value = std::move(value)}), {});
}

GraphValue GraphBuilder::Scalar(Dtype dtype, double value) {
  if (!status_.ok()) return {};
  std::optional<std::string> bytes = BytesOfElement(dtype, value);
  if (!bytes.has_value()) {
    return FailOp(
        InvalidArgument(Reason::kUnsupportedDtype,
                        StrCat("the number ", value, " is no ", DtypeName(dtype),
                               "; integer types take whole numbers within their range, and types "
                               "other than F64, F32, BF16, F16 and integers take none"),
                        {{fact::kDtype, DtypeName(dtype)}}),
        "constant", {});
  }
  return Constant({.dtype = dtype, .shape = {}, .bytes = *std::move(bytes)});
}

GraphValue GraphBuilder::Vector(absl::Span<const float> values) {
  return Constant({.dtype = Dtype::kF32,
                   .shape = {static_cast<int64_t>(values.size())},
                   .bytes = BytesOfNumbers(values)});
}

GraphValue GraphBuilder::Vector(absl::Span<const int32_t> values) {
  return Constant({.dtype = Dtype::kI32,
                   .shape = {static_cast<int64_t>(values.size())},
                   .bytes = BytesOfNumbers(values)});
}

GraphValue GraphBuilder::Linear(GraphValue input, GraphValue weight, const LinearArgs& args) {
  std::vector<GraphValue> inputs = {input, weight};
  AddInput(args.bias, &inputs);
  AddInput(args.scales, &inputs);
  return Op(LinearOp{.bias = FieldOf(args.bias),
                     .weight_layout = args.weight_layout,
                     .activation = args.activation,
                     .scale = args.scale,
                     .scales = FieldOf(args.scales)},
            inputs);
}

GraphValue GraphBuilder::Matmul(GraphValue lhs, GraphValue rhs, const MatmulArgs& args) {
  return Op(MatmulOp{.transpose_lhs = args.transpose_lhs, .transpose_rhs = args.transpose_rhs},
            {lhs, rhs});
}

GraphValue GraphBuilder::Map(MapFunction function, GraphValue input) {
  return Op(TensorOp(MapOp{.function = function, .inputs = {0}}), {input});
}

GraphValue GraphBuilder::Map(MapFunction function, GraphValue lhs, GraphValue rhs) {
  return Op(TensorOp(MapOp{.function = function, .inputs = {0, 0}}), {lhs, rhs});
}

GraphValue GraphBuilder::Map(MapFunction function, GraphValue lhs, double rhs) {
  if (!CheckValues({&lhs, 1}, MapFunctionName(function))) return {};
  return Map(function, lhs, Scalar(DtypeOf(lhs), rhs));
}

GraphValue GraphBuilder::Map(MapFunction function, double lhs, GraphValue rhs) {
  if (!CheckValues({&rhs, 1}, MapFunctionName(function))) return {};
  return Map(function, Scalar(DtypeOf(rhs), lhs), rhs);
}

GraphValue GraphBuilder::Convert(GraphValue input, Dtype dtype) {
  if (!CheckValues({&input, 1}, "convert")) return {};
  if (DtypeOf(input) == dtype) return input;
  return Op(TensorOp(ConvertOp{.dtype = dtype}), {input});
}

GraphValue GraphBuilder::Norm(NormKind kind, GraphValue input, const NormArgs& args) {
  std::vector<GraphValue> inputs = {input};
  AddInput(args.weight, &inputs);
  AddInput(args.bias, &inputs);
  return Op(TensorOp(NormOp{.kind = kind,
                            .weight = FieldOf(args.weight),
                            .bias = FieldOf(args.bias),
                            .epsilon = args.epsilon}),
            inputs);
}

GraphValue GraphBuilder::Softmax(GraphValue input, const SoftmaxArgs& args) {
  std::vector<GraphValue> inputs = {input};
  AddInput(args.mask, &inputs);
  return Op(TensorOp(SoftmaxOp{.mask = FieldOf(args.mask), .scale = args.scale}), inputs);
}

GraphValue GraphBuilder::TopK(GraphValue input, int64_t count) {
  return Op(TensorOp(TopKOp{.count = count, .gives_indices = false}), {input});
}

GraphValue GraphBuilder::TopKIndices(GraphValue input, int64_t count) {
  return Op(TensorOp(TopKOp{.count = count}), {input});
}

GraphValue GraphBuilder::Argmax(GraphValue input) {
  return Op(TensorOp(TopKOp{.drops_dimension = true}), {input});
}

GraphValue GraphBuilder::Reduce(GraphValue input, Reduction reduction,
                                std::vector<int64_t> dimensions, bool keeps_dimensions) {
  for (int64_t& dimension : dimensions) {
    const std::optional<int64_t> found = DimensionOf(input, dimension, "reduce");
    if (!found.has_value()) return {};
    dimension = *found;
  }
  std::sort(dimensions.begin(), dimensions.end());
  return Op(TensorOp(ReduceOp{.reduction = reduction,
                              .dimensions = std::move(dimensions),
                              .keeps_dimensions = keeps_dimensions}),
            {input});
}

GraphValue GraphBuilder::Rotary(GraphValue input, GraphValue positions, GraphValue frequencies,
                                bool is_interleaved) {
  return Op(TensorOp(RotaryOp{.is_interleaved = is_interleaved}), {input, positions, frequencies});
}

GraphValue GraphBuilder::Embedding(GraphValue table, GraphValue ids) {
  return Op(TensorOp(EmbeddingOp{}), {table, ids});
}

GraphValue GraphBuilder::Attention(GraphValue query, GraphValue keys, GraphValue values,
                                   const AttentionArgs& args) {
  std::vector<GraphValue> inputs = {query, keys, values};
  AddInput(args.positions, &inputs);
  AddInput(args.mask, &inputs);
  return Op(
      TensorOp(AttentionOp{
          .positions = FieldOf(args.positions), .mask = FieldOf(args.mask), .scale = args.scale}),
      inputs);
}

GraphValue GraphBuilder::UpdateRows(GraphValue input, GraphValue update, GraphValue positions) {
  return Op(TensorOp(UpdateRowsOp{}), {input, update, positions});
}

GraphValue GraphBuilder::Reshape(GraphValue input, const GraphShape& shape) {
  if (!CheckValues({&input, 1}, "reshape")) return {};
  SymbolicExtentsOf(shape);
  if (!status_.ok()) return {};
  std::vector<Shape> shapes;  // at each length
  for (size_t i = 0; i < length_count(); ++i) {
    const Shape wanted = ShapeAtLength(shape, i);
    std::optional<Shape> computed = WithComputedExtent(ShapeAtLength(input.node_, i), wanted);
    if (!computed.has_value()) {
      const std::string at =
          symbol_.has_value() ? StrCat("at ", symbol_->name, " ", lengths_[i], ": ") : "";
      return FailOp(InvalidArgument(Reason::kShapeMismatch,
                                    StrCat(at, "cannot compute the extent of -1 in the shape ",
                                           ShapeToString(wanted),
                                           "; at most one extent may be -1, and the "
                                           "others must divide the number of elements"),
                                    {{fact::kNeed, ShapeToString(wanted)}}),
                    "reshape", {&input, 1});
    }
    shapes.push_back(*std::move(computed));
  }
  ReshapeOp op{.shape = shapes.back()};
  for (size_t dim = 0; dim < op.shape.size() && symbol_.has_value(); ++dim) {
    std::vector<int64_t> values;
    for (const Shape& each : shapes) values.push_back(each[dim]);
    const auto number = NumberThatHas(static_cast<int64_t>(dim), lengths_, values);
    if (!number.has_value()) {
      return FailOp(
          InvalidArgument(Reason::kShapeMismatch,
                          StrCat("the extent of -1 would be ", StrJoin(values, ", "), " for ",
                                 symbol_->name, " ", StrJoin(lengths_, ", "),
                                 "; it must be a factor times ", symbol_->name, " plus an offset")),
          "reshape", {&input, 1});
    }
    if (number->factor != 0) op.symbolic_shape.push_back(*number);
  }
  return Op(TensorOp(std::move(op)), {input});
}

GraphValue GraphBuilder::Transpose(GraphValue input, std::vector<int64_t> permutation) {
  for (int64_t& dimension : permutation) {
    const std::optional<int64_t> found = DimensionOf(input, dimension, "transpose");
    if (!found.has_value()) return {};
    dimension = *found;
  }
  return Op(TensorOp(TransposeOp{.permutation = std::move(permutation)}), {input});
}

GraphValue GraphBuilder::Slice(GraphValue input, int64_t dimension, GraphExtent start,
                               GraphExtent limit, int64_t step) {
  const std::optional<int64_t> found = DimensionOf(input, dimension, "slice");
  if (!found.has_value()) return {};
  SymbolicExtentsOf({start, limit});
  const Shape& shape = ShapeOf(input);
  const auto dim = static_cast<size_t>(*found);
  SliceOp op{.starts = std::vector<int64_t>(shape.size(), 0),
             .limits = std::vector<int64_t>(shape.begin(), shape.end())};
  const auto set = [&](size_t place, GraphExtent extent, std::vector<int64_t>* numbers,
                       std::vector<SymbolicNumber>* symbolic) {
    (*numbers)[place] = ShapeAtLength({extent}, length_count() - 1).front();
    if (!extent.is_symbolic()) return;
    symbolic->push_back({.index = static_cast<int64_t>(place),
                         .factor = extent.factor(),
                         .offset = extent.offset()});
  };
  const auto from_front = [](GraphExtent extent, GraphExtent end) {
    return !extent.is_symbolic() && extent.offset() < 0 ? extent + end : extent;
  };
  for (size_t i = 0; i < shape.size() && status_.ok(); ++i) {
    const std::optional<GraphExtent> end = RequiredExtent(input, i, "slice");
    if (!end.has_value()) return {};
    set(i, i == dim ? from_front(limit, *end) : *end, &op.limits, &op.symbolic_limits);
    if (i == dim) set(i, from_front(start, *end), &op.starts, &op.symbolic_starts);
  }
  if (!status_.ok()) return {};
  if (step != 1) {
    op.steps.assign(shape.size(), 1);
    op.steps[dim] = step;
  }
  return Op(TensorOp(std::move(op)), {input});
}

GraphValue GraphBuilder::Concatenate(absl::Span<const GraphValue> inputs, int64_t dimension) {
  if (!CheckValues(inputs, "concatenate")) return {};
  if (inputs.empty()) {
    return FailOp(InvalidArgument(Reason::kBadField, "there are no inputs; give at least one"),
                  "concatenate", inputs);
  }
  const std::optional<int64_t> found = DimensionOf(inputs.front(), dimension, "concatenate");
  if (!found.has_value()) return {};
  return Op(TensorOp(ConcatenateOp{.inputs = std::vector<ValueIndex>(inputs.size(), 0),
                                   .dimension = *found}),
            inputs);
}

GraphValue GraphBuilder::Concatenate(std::initializer_list<GraphValue> inputs, int64_t dimension) {
  return Concatenate(absl::Span<const GraphValue>(inputs.begin(), inputs.size()), dimension);
}

GraphValue GraphBuilder::Reshard(GraphValue input, PartitionSpec spec) {
  return Op(ReshardOp{.spec = std::move(spec)}, {input});
}

GraphValue GraphBuilder::Collective(GraphValue input, CollectiveOp op,
                                    const std::optional<Shape>& shape) {
  const GraphValue result = Op(std::move(op), {input});
  if (!shape.has_value() || !status_.ok()) return result;
  if (const absl::Status error = CheckShape(*shape); !error.ok()) {
    Fail(WithContext(error, Describe(result)));
    return {};
  }
  if (!NodeOf(input).shapes.empty()) {
    return FailOp(InvalidArgument(Reason::kBadField,
                                  "a shape is given for the result, and the input's depends on the "
                                  "length; leave the shape out"),
                  "collective", {&input, 1});
  }
  nodes_[result.node_].type.shape = *shape;
  nodes_[result.node_].is_exact = NodeOf(input).is_exact;
  return result;
}

GraphValue GraphBuilder::AllReduce(GraphValue input, std::vector<std::string> axes,
                                   Reduction reduction) {
  return Collective(
      input, {.kind = CollectiveKind::kAllReduce, .axes = std::move(axes), .reduction = reduction});
}

GraphValue GraphBuilder::AllGather(GraphValue input, std::vector<std::string> axes,
                                   int64_t dimension) {
  const std::optional<int64_t> found = DimensionOf(input, dimension, "all-gather");
  if (!found.has_value()) return {};
  return Collective(
      input, {.kind = CollectiveKind::kAllGather, .axes = std::move(axes), .dimension = *found});
}

GraphValue GraphBuilder::ReduceScatter(GraphValue input, std::vector<std::string> axes,
                                       int64_t dimension, Reduction reduction) {
  const std::optional<int64_t> found = DimensionOf(input, dimension, "reduce-scatter");
  if (!found.has_value()) return {};
  return Collective(input, {.kind = CollectiveKind::kReduceScatter,
                            .axes = std::move(axes),
                            .dimension = *found,
                            .reduction = reduction});
}

void GraphBuilder::Update(GraphValue state, GraphValue value) {
  if (!CheckValues({state, value}, "update")) return;
  const Node& operand = NodeOf(state);
  const Node& result = NodeOf(value);
  const auto refuse = [&](std::string_view problem) {
    Refuse(Reason::kBadField,
           StrCat("cannot update ", Describe(state), " to ", Describe(value), ": ", problem));
  };
  if (!operand.is_state) return refuse("it was not declared with State");
  if (!result.op.has_value()) return refuse("the new value must be the result of an op");
  if (updates_.contains(state.node_)) return refuse("the state has an update already");
  const bool is_used = std::any_of(updates_.begin(), updates_.end(),
                                   [&](const auto& each) { return each.second == value.node_; });
  if (is_used) return refuse("another state gets this value already");
  if (result.is_exact && (result.type != operand.type || result.shapes != operand.shapes)) {
    return Refuse(Reason::kShapeMismatch,
                  StrCat("cannot update ", Describe(state), " to ", Describe(value),
                         ": a state keeps its type and shape"),
                  {{fact::kHave, ShapeToString(result.type.shape)},
                   {fact::kNeed, ShapeToString(operand.type.shape)}});
  }
  updates_.emplace(state.node_, value.node_);
}

void GraphBuilder::Output(std::string_view name, GraphValue value) {
  if (!CheckValues({&value, 1}, StrCat("output \"", name, "\""))) return;
  if (const absl::Status error = CheckGraphName("output", name); !error.ok()) return Fail(error);
  const auto refuse = [&](std::string_view problem) {
    Refuse(Reason::kBadField, StrCat("output \"", name, "\": ", problem));
  };
  if (!NodeOf(value).op.has_value()) {
    return refuse(StrCat(Describe(value), " is an operand; an output is the result of an op"));
  }
  for (const auto& [other, node] : outputs_) {
    if (other == name) return refuse("there is an output of this name already");
    if (node == value.node_) {
      return refuse(StrCat(Describe(value), " is the output \"", other, "\" already"));
    }
  }
  if (outputs_.size() == kMaxProgramSize) {
    return Refuse(Reason::kLimitExceeded,
                  StrCat("output \"", name, "\" is one too many: a program has at most ",
                         kMaxProgramSize, " outputs"),
                  {{fact::kLimit, kMaxProgramSize}});
  }
  outputs_.emplace_back(std::string(name), value.node_);
}

const TensorType& GraphBuilder::TypeOf(GraphValue value) const {
  static const TensorType* const kNoTensor = new TensorType();
  return value.owner_ == this ? NodeOf(value).type : *kNoTensor;
}

absl::StatusOr<Graph> GraphBuilder::Build() const {
  SHARDMESH_RETURN_IF_ERROR(status_);
  if (outputs_.empty() && updates_.empty()) {
    return InvalidArgument(Reason::kBadField,
                           "the graph has neither outputs nor updates; call Output or Update");
  }
  const auto has_symbol = [](const Node& node) { return !node.extents.empty(); };
  if (symbol_.has_value() && std::none_of(nodes_.begin(), nodes_.end(), has_symbol)) {
    return InvalidArgument(Reason::kBadField,
                           StrCat("no operand has the symbolic dimension ", symbol_->name));
  }
  Graph graph;
  Program& program = graph.program;
  program.symbol = symbol_;
  program.operand_count = static_cast<uint32_t>(operands_.size());
  std::vector<ValueIndex> numbers(nodes_.size());
  ValueIndex next_op = program.operand_count;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.op.has_value()) {
      std::vector<ValueIndex> inputs = InputsOfOp(*node.op);
      for (ValueIndex& input : inputs) input = numbers[input];
      program.ops.push_back(WithProgramOpInputs(*node.op, inputs));
      numbers[i] = next_op++;
      continue;
    }
    if (node.is_state && !updates_.contains(i)) {
      return InvalidArgument(Reason::kBadField, StrCat("state \"", node.name,
                                                       "\" is not updated; call Update, or declare "
                                                       "it with Parameter"));
    }
    numbers[i] = static_cast<ValueIndex>(graph.operands.size());
    for (const SymbolicNumber& extent : node.extents) {
      program.symbolic_extents.push_back({.operand = numbers[i], .extent = extent});
    }
    graph.operands.push_back({.name = node.name, .type = node.type});
  }
  for (const auto& [name, node] : outputs_) {
    program.outputs.push_back(numbers[node]);
    graph.outputs.push_back({.name = name, .type = std::nullopt});
    if (nodes_[node].is_exact) graph.outputs.back().type = nodes_[node].type;
  }
  for (const auto& [state, value] : updates_) {
    program.updates.push_back({.operand = numbers[state], .value = numbers[value]});
  }
  return graph;
}

}  // namespace shardmesh
