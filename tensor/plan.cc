// Chooses layouts for the values of a program and spells out what each device does.
#include "tensor/plan.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "sharding/device_group.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

namespace shardmesh {
namespace {

using Axes = std::vector<std::string>;

// A spec in the form in which layouts are compared: one list of axes per dimension, axes of size 1
// left out, since they place nothing.
struct Layout {
  std::vector<Axes> dims;
  Axes unreduced = {};

  friend bool operator==(const Layout&, const Layout&) = default;
};

bool Contains(const Axes& axes, std::string_view name) {
  return std::find(axes.begin(), axes.end(), name) != axes.end();
}

PartitionSpec ToSpec(const Layout& layout) {
  std::vector<SpecEntry> entries;
  entries.reserve(layout.dims.size());
  for (const Axes& axes : layout.dims) {
    entries.push_back(SpecEntry::Axes(std::vector<AxisName>(axes.begin(), axes.end())));
  }
  return PartitionSpec(std::move(entries), {layout.unreduced.begin(), layout.unreduced.end()});
}

bool IsFloat(Dtype dtype) {
  return dtype == Dtype::kF16 || dtype == Dtype::kBF16 || dtype == Dtype::kF32 ||
         dtype == Dtype::kF64;
}

bool HasArithmetic(Dtype dtype) {
  return IsFloat(dtype) || dtype == Dtype::kI8 || dtype == Dtype::kU8 || dtype == Dtype::kI32 ||
         dtype == Dtype::kI64;
}

// The type in which sums of products travel.
Dtype PartialSumType(Dtype dtype) {
  return dtype == Dtype::kF16 || dtype == Dtype::kBF16 ? Dtype::kF32 : dtype;
}

// A product of two values, whichever op asks for it.
struct Product {
  ValueIndex lhs = 0;
  ValueIndex rhs = 0;
  std::optional<ValueIndex> bias = std::nullopt;
  bool transpose_lhs = false;
  bool transpose_rhs = false;
  float scale = 1;
  Activation activation = Activation::kNone;
};

// Grows a plan by one op after the other. Copyable, so that alternatives can be tried.
class PlanBuilder {
 public:
  PlanBuilder(const PlanTarget& target, absl::Span<const ValueDescriptor> operands) {
    plan_.mesh_id = target.mesh_id;
    plan_.mesh_revision = target.mesh_revision;
    plan_.mesh = target.mesh;
    plan_.operand_count = static_cast<uint32_t>(operands.size());
    plan_.values.assign(operands.begin(), operands.end());
  }

  // The op that messages and labels speak of from now on.
  void Name(std::string_view op) { op_ = op; }

  const ValueDescriptor& value(ValueIndex index) const { return plan_.values[index]; }
  PlanCost cost() const { return plan_.cost; }

  // Each returns the plan's value that holds the op's result, never one of the operands.
  absl::StatusOr<ValueIndex> AddProduct(const Product& product);
  absl::StatusOr<ValueIndex> AddCollective(const CollectiveOp& op, ValueIndex input);
  absl::StatusOr<ValueIndex> AddReshard(const PartitionSpec& spec, ValueIndex input);

  Plan Finish(std::vector<ValueIndex> outputs) && {
    plan_.outputs = std::move(outputs);
    return std::move(plan_);
  }

  absl::Status Error(Reason reason, std::string_view message) const {
    return InvalidArgument(reason, StrCat(op_, ": ", message));
  }

 private:
  Layout LayoutOf(ValueIndex index) const;
  int64_t AxesSize(const Axes& axes) const;
  int64_t TileBytes(const ValueDescriptor& value) const;
  int64_t TileElements(const ValueDescriptor& value) const;

  template <typename Kind>
  ValueIndex Emit(Kind kind, ValueDescriptor output, std::string_view what);

  ValueIndex AllReduce(ValueIndex input, const Axes& axes, Reduction reduction);
  ValueIndex AllGather(ValueIndex input, const Axes& axes, int64_t dimension);
  // The value with all its partial sums added up.
  ValueIndex Reduced(ValueIndex input);
  // The value laid out as `target`, which has no unreduced axes.
  ValueIndex LaidOut(ValueIndex input, const Layout& target);
  ValueIndex Copy(ValueIndex input);

  absl::Status CheckProduct(const Product& product) const;
  ValueIndex AddProduct(const Product& product, bool keep_rhs);

  Plan plan_;
  std::string op_;
};

Layout PlanBuilder::LayoutOf(ValueIndex index) const {
  const ValueDescriptor& described = value(index);
  Layout layout;
  layout.dims.resize(described.shape.size());
  for (size_t dim = 0; dim < layout.dims.size(); ++dim) {
    for (const AxisName& axis : described.spec.entry(static_cast<int64_t>(dim)).axes()) {
      const std::optional<int64_t> index_in_mesh = plan_.mesh.FindAxis(*axis);
      if (plan_.mesh.axes()[static_cast<size_t>(*index_in_mesh)].size > 1) {
        layout.dims[dim].push_back(*axis);
      }
    }
  }
  for (const std::string& axis : described.spec.unreduced()) {
    if (AxesSize({axis}) > 1) {
      layout.unreduced.push_back(axis);
    }
  }
  return layout;
}

int64_t PlanBuilder::AxesSize(const Axes& axes) const {
  int64_t size = 1;
  for (const std::string& axis : axes) {
    size *= plan_.mesh.axes()[static_cast<size_t>(*plan_.mesh.FindAxis(axis))].size;
  }
  return size;
}

int64_t PlanBuilder::TileElements(const ValueDescriptor& described) const {
  int64_t elements = 1;
  for (size_t dim = 0; dim < described.shape.size(); ++dim) {
    Axes axes;
    for (const AxisName& axis : described.spec.entry(static_cast<int64_t>(dim)).axes()) {
      axes.push_back(*axis);
    }
    elements *= described.shape[dim] / AxesSize(axes);
  }
  return elements;
}

int64_t PlanBuilder::TileBytes(const ValueDescriptor& described) const {
  return TileElements(described) * BitsPerElement(described.dtype) / 8;
}

template <typename Kind>
ValueIndex PlanBuilder::Emit(Kind kind, ValueDescriptor output, std::string_view what) {
  const auto index = static_cast<ValueIndex>(plan_.values.size());
  plan_.cost.memory_bytes += TileBytes(output);
  plan_.values.push_back(std::move(output));
  plan_.instructions.push_back(
      Instruction{.output = index, .kind = std::move(kind), .label = StrCat(op_, ": ", what)});
  return index;
}

ValueIndex PlanBuilder::AllReduce(ValueIndex input, const Axes& axes, Reduction reduction) {
  Layout layout = LayoutOf(input);
  std::erase_if(layout.unreduced, [&](const std::string& axis) { return Contains(axes, axis); });
  ValueDescriptor output = value(input);
  output.spec = ToSpec(layout);
  const int64_t ranks = AxesSize(axes);
  plan_.cost.sent_bytes += 2 * TileBytes(output) * (ranks - 1) / ranks;
  plan_.cost.flops += TileElements(output) * (ranks - 1) / ranks;
  return Emit(GroupCollective{.input = input,
                              .kind = CollectiveKind::kAllReduce,
                              .axes = {axes.begin(), axes.end()},
                              .reduction = reduction},
              std::move(output), StrCat("all-reduce over ", StrJoin(axes, ",")));
}

ValueIndex PlanBuilder::AllGather(ValueIndex input, const Axes& axes, int64_t dimension) {
  Layout layout = LayoutOf(input);
  Axes& gathered = layout.dims[static_cast<size_t>(dimension)];
  gathered.resize(gathered.size() - axes.size());
  ValueDescriptor output = value(input);
  output.spec = ToSpec(layout);
  plan_.cost.sent_bytes += TileBytes(value(input)) * (AxesSize(axes) - 1);
  return Emit(GroupCollective{.input = input,
                              .kind = CollectiveKind::kAllGather,
                              .axes = {axes.begin(), axes.end()},
                              .dimension = dimension},
              std::move(output),
              StrCat("all-gather of dimension ", dimension, " over ", StrJoin(axes, ",")));
}

ValueIndex PlanBuilder::Reduced(ValueIndex input) {
  const Axes unreduced = LayoutOf(input).unreduced;
  return unreduced.empty() ? input : AllReduce(input, unreduced, Reduction::kSum);
}

ValueIndex PlanBuilder::LaidOut(ValueIndex input, const Layout& target) {
  ValueIndex current = Reduced(input);
  for (size_t dim = 0; dim < target.dims.size(); ++dim) {
    const Axes have = LayoutOf(current).dims[dim];
    const Axes& want = target.dims[dim];
    const auto differs = std::mismatch(have.begin(), have.end(), want.begin(), want.end()).first;
    if (differs != have.end()) {
      current = AllGather(current, Axes(differs, have.end()), static_cast<int64_t>(dim));
    }
  }
  if (LayoutOf(current) == target) {
    return current;
  }
  ValueDescriptor output = value(current);
  output.spec = ToSpec(target);
  return Emit(LocalSlice{.input = current}, output, StrCat("slice to ", output.spec.ToString()));
}

ValueIndex PlanBuilder::Copy(ValueIndex input) {
  return Emit(LocalSlice{.input = input}, value(input), "copy");
}

absl::Status PlanBuilder::CheckProduct(const Product& product) const {
  const ValueDescriptor& lhs = value(product.lhs);
  const ValueDescriptor& rhs = value(product.rhs);
  if (lhs.shape.empty()) {
    return Error(Reason::kShapeMismatch,
                 "the left operand is a scalar; it needs a dimension to contract");
  }
  if (product.transpose_lhs && lhs.shape.size() != 2) {
    return Error(Reason::kShapeMismatch,
                 StrCat("the left operand has shape ", ShapeToString(lhs.shape),
                        "; only a matrix can be transposed"));
  }
  if (rhs.shape.size() != 2) {
    return Error(Reason::kShapeMismatch, StrCat("the right operand (weight) has shape ",
                                                ShapeToString(rhs.shape), "; it must be a matrix"));
  }
  const int64_t lhs_contracted = product.transpose_lhs ? lhs.shape[0] : lhs.shape.back();
  const int64_t rhs_contracted = rhs.shape[product.transpose_rhs ? 1 : 0];
  if (lhs_contracted != rhs_contracted) {
    return Error(
        Reason::kShapeMismatch,
        StrCat("shapes ", ShapeToString(lhs.shape), product.transpose_lhs ? " (transposed)" : "",
               " and ", ShapeToString(rhs.shape), product.transpose_rhs ? " (transposed)" : "",
               " do not multiply: ", lhs_contracted, " is contracted with ", rhs_contracted));
  }
  const bool supported = lhs.dtype == Dtype::kF32 || lhs.dtype == Dtype::kBF16;
  if (!supported || lhs.dtype != rhs.dtype) {
    return Error(Reason::kUnsupportedDtype,
                 StrCat("cannot multiply ", DtypeName(lhs.dtype), " by ", DtypeName(rhs.dtype),
                        "; both must be F32 or both BF16"));
  }
  if (product.bias.has_value()) {
    const ValueDescriptor& bias = value(*product.bias);
    const int64_t columns = rhs.shape[product.transpose_rhs ? 0 : 1];
    if (bias.shape != Shape{columns}) {
      return Error(Reason::kShapeMismatch, StrCat("the bias has shape ", ShapeToString(bias.shape),
                                                  "; it must be (", columns, ",)"));
    }
    if (bias.dtype != lhs.dtype) {
      return Error(Reason::kUnsupportedDtype,
                   StrCat("the bias is ", DtypeName(bias.dtype), "; it must be ",
                          DtypeName(lhs.dtype), " as the operands are"));
    }
  }
  return absl::OkStatus();
}

ValueIndex PlanBuilder::AddProduct(const Product& product, bool keep_rhs) {
  const ValueIndex lhs_value = Reduced(product.lhs);
  const ValueIndex rhs_value = Reduced(product.rhs);
  Layout lhs = LayoutOf(lhs_value);
  Layout rhs = LayoutOf(rhs_value);
  const size_t lhs_k = product.transpose_lhs ? 0 : lhs.dims.size() - 1;
  const size_t rhs_k = product.transpose_rhs ? 1 : 0;
  const size_t rhs_n = 1 - rhs_k;

  // The operand that moves takes over the contracted dimension's axes, and keeps of its others as
  // many as the operand at rest does not use.
  Layout& moving = keep_rhs ? lhs : rhs;
  const Layout& resting = keep_rhs ? rhs : lhs;
  moving.dims[keep_rhs ? lhs_k : rhs_k] = resting.dims[keep_rhs ? rhs_k : lhs_k];
  for (size_t dim = 0; dim < moving.dims.size(); ++dim) {
    if (dim == (keep_rhs ? lhs_k : rhs_k)) {
      continue;
    }
    Axes& axes = moving.dims[dim];
    axes.erase(std::find_if(axes.begin(), axes.end(),
                            [&](const std::string& axis) {
                              return std::any_of(
                                  resting.dims.begin(), resting.dims.end(),
                                  [&](const Axes& used) { return Contains(used, axis); });
                            }),
               axes.end());
  }
  const ValueIndex lhs_ready = LaidOut(lhs_value, lhs);
  const ValueIndex rhs_ready = LaidOut(rhs_value, rhs);

  Layout result;
  ValueDescriptor output;
  for (size_t dim = 0; dim < lhs.dims.size(); ++dim) {
    if (dim != lhs_k) {
      result.dims.push_back(lhs.dims[dim]);
      output.shape.push_back(value(lhs_ready).shape[dim]);
    }
  }
  result.dims.push_back(rhs.dims[rhs_n]);
  output.shape.push_back(value(rhs_ready).shape[rhs_n]);
  const Axes partial_axes = lhs.dims[lhs_k];
  const bool partial = !partial_axes.empty();
  const Dtype dtype = value(lhs_ready).dtype;

  std::optional<ValueIndex> bias = product.bias;
  if (bias.has_value()) {
    bias = LaidOut(*bias, Layout{.dims = {result.dims.back()}});
  }

  LocalMatmul matmul{.lhs = lhs_ready,
                     .rhs = rhs_ready,
                     .transpose_lhs = product.transpose_lhs,
                     .transpose_rhs = product.transpose_rhs,
                     .scale = product.scale};
  if (!partial) {
    matmul.bias = bias;
    matmul.activation = product.activation;
  }
  result.unreduced = partial_axes;
  output.dtype = partial ? PartialSumType(dtype) : dtype;
  output.spec = ToSpec(result);
  const int64_t contracted = value(lhs_ready).shape[lhs_k] / AxesSize(partial_axes);
  plan_.cost.flops += 2 * contracted * TileElements(output);
  ValueIndex sum = Emit(matmul, output, "multiply");
  if (!partial) {
    return sum;
  }
  sum = AllReduce(sum, partial_axes, Reduction::kSum);
  if (!bias.has_value() && product.activation == Activation::kNone && output.dtype == dtype) {
    return sum;
  }
  ValueDescriptor finished = value(sum);
  finished.dtype = dtype;
  return Emit(LocalEpilogue{.input = sum, .bias = bias, .activation = product.activation},
              std::move(finished), "bias and activation");
}

absl::StatusOr<ValueIndex> PlanBuilder::AddProduct(const Product& product) {
  SHARDMESH_RETURN_IF_ERROR(CheckProduct(product));
  PlanBuilder keep_lhs = *this;
  const ValueIndex with_lhs_kept = keep_lhs.AddProduct(product, /*keep_rhs=*/false);
  const ValueIndex with_rhs_kept = AddProduct(product, /*keep_rhs=*/true);
  if (keep_lhs.cost().sent_bytes < cost().sent_bytes) {
    *this = std::move(keep_lhs);
    return with_lhs_kept;
  }
  return with_rhs_kept;
}

absl::StatusOr<ValueIndex> PlanBuilder::AddCollective(const CollectiveOp& op, ValueIndex input) {
  const ValueDescriptor described = value(input);
  const auto rank = static_cast<int64_t>(described.shape.size());
  Axes axes;
  for (const std::string& axis : op.axes) {
    if (!plan_.mesh.HasAxis(axis)) {
      return Error(Reason::kAxisNotInMesh,
                   StrCat("axis '", axis, "' is not in the mesh ", plan_.mesh.ToString()));
    }
    if (std::count(op.axes.begin(), op.axes.end(), axis) > 1) {
      return Error(Reason::kDuplicateAxis, StrCat("axis '", axis, "' is given twice"));
    }
    if (AxesSize({axis}) > 1) {
      axes.push_back(axis);
    }
  }
  if (op.axes.empty()) {
    return Error(Reason::kMissingArgument, "no mesh axes are given; name those to exchange along");
  }
  const bool reduces = op.kind != CollectiveKind::kAllGather;
  if (op.kind != CollectiveKind::kAllReduce && (op.dimension < 0 || op.dimension >= rank)) {
    return Error(Reason::kInvalidDimension,
                 StrCat("dimension ", op.dimension, " is not one of the ", rank, " dimensions"));
  }
  if (reduces && !HasArithmetic(described.dtype)) {
    return Error(Reason::kUnsupportedDtype,
                 StrCat(DtypeName(described.dtype), " has no arithmetic; it cannot be reduced"));
  }
  if (reduces && op.reduction == Reduction::kMean && !IsFloat(described.dtype)) {
    return Error(Reason::kUnsupportedDtype,
                 StrCat("the mean of ", DtypeName(described.dtype), " is not defined; use a sum"));
  }
  Layout layout = LayoutOf(input);

  if (op.kind == CollectiveKind::kAllGather) {
    const Axes& have = layout.dims[static_cast<size_t>(op.dimension)];
    if (have.size() < axes.size() || !std::equal(axes.rbegin(), axes.rend(), have.rbegin())) {
      return Error(Reason::kInvalidSpec,
                   StrCat("dimension ", op.dimension, " of ", described.spec.ToString(),
                          " is not partitioned over ", StrJoin(axes, ","),
                          " as its minor axes; there is nothing to gather"));
    }
    return axes.empty() ? Copy(input) : AllGather(input, axes, op.dimension);
  }

  // Tiles are reduced as they are: a dimension that the group partitions shrinks by it.
  ValueDescriptor output = described;
  for (size_t dim = 0; dim < layout.dims.size(); ++dim) {
    Axes reduced;
    for (const std::string& axis : layout.dims[dim]) {
      if (Contains(axes, axis)) {
        reduced.push_back(axis);
      }
    }
    output.shape[dim] /= AxesSize(reduced);
    std::erase_if(layout.dims[dim], [&](const std::string& axis) { return Contains(axes, axis); });
  }
  std::erase_if(layout.unreduced, [&](const std::string& axis) { return Contains(axes, axis); });
  if (axes.empty()) {
    return Copy(input);
  }
  const int64_t ranks = AxesSize(axes);
  if (op.kind == CollectiveKind::kReduceScatter) {
    Axes& scattered = layout.dims[static_cast<size_t>(op.dimension)];
    const int64_t extent = output.shape[static_cast<size_t>(op.dimension)] / AxesSize(scattered);
    if (extent % ranks != 0) {
      return Error(Reason::kNotDivisible,
                   StrCat("dimension ", op.dimension, " of a tile has ", extent, " elements; ",
                          StrJoin(axes, ","), "=", ranks, " does not divide it"));
    }
    scattered.insert(scattered.end(), axes.begin(), axes.end());
  }
  output.spec = ToSpec(layout);
  const int64_t tile_bytes = TileBytes(described);
  const int64_t passes = op.kind == CollectiveKind::kAllReduce ? 2 : 1;
  plan_.cost.sent_bytes += passes * tile_bytes * (ranks - 1) / ranks;
  plan_.cost.flops += TileElements(described) * (ranks - 1) / ranks;
  const std::string_view what =
      op.kind == CollectiveKind::kAllReduce ? "all-reduce" : "reduce-scatter";
  return Emit(GroupCollective{.input = input,
                              .kind = op.kind,
                              .axes = {axes.begin(), axes.end()},
                              .dimension = op.dimension,
                              .reduction = op.reduction},
              std::move(output), StrCat(what, " over ", StrJoin(axes, ",")));
}

absl::StatusOr<ValueIndex> PlanBuilder::AddReshard(const PartitionSpec& spec, ValueIndex input) {
  ValueDescriptor wanted = value(input);
  wanted.spec = spec;
  if (!spec.unreduced().empty()) {
    return Error(Reason::kInvalidSpec,
                 StrCat("cannot lay out as ", spec.ToString(), ": partial sums cannot be made"));
  }
  if (const auto tiling = Tiling::Create(plan_.mesh, spec, wanted.shape); !tiling.ok()) {
    return Error(ReasonOf(tiling.status()), ToStd(tiling.status().message()));
  }
  // A value that is only described, to have its layout read.
  plan_.values.push_back(wanted);
  const Layout target = LayoutOf(static_cast<ValueIndex>(plan_.values.size() - 1));
  plan_.values.pop_back();
  const ValueIndex result = LaidOut(input, target);
  return result == input ? Copy(input) : result;
}

// Passes each op of a program to the builder, in terms of the plan's values.
class ProgramPlanner {
 public:
  ProgramPlanner(const Program& program, absl::Span<const ValueDescriptor> operands,
                 const PlanTarget& target)
      : program_(program), builder_(target, operands) {
    for (ValueIndex i = 0; i < operands.size(); ++i) {
      values_.push_back(i);
    }
  }

  absl::StatusOr<Plan> Run() && {
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const ProgramOp& op = program_.ops[i];
      static constexpr std::string_view kNames[] = {"linear", "matmul", "collective", "reshard"};
      builder_.Name(StrCat("op ", i, " (", kNames[op.index()], ")"));
      SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex result,
                                 std::visit([&](const auto& each) { return Add(each); }, op));
      values_.push_back(result);
    }
    std::vector<ValueIndex> outputs;
    builder_.Name("outputs");
    for (const ValueIndex output : program_.outputs) {
      SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex planned, ValueOf(output));
      if (output < program_.operand_count) {
        return builder_.Error(Reason::kBadField, StrCat("value ", output, " is an operand"));
      }
      if (std::find(outputs.begin(), outputs.end(), planned) != outputs.end()) {
        return builder_.Error(Reason::kBadField, StrCat("value ", output, " is given twice"));
      }
      outputs.push_back(planned);
    }
    return std::move(builder_).Finish(std::move(outputs));
  }

 private:
  absl::StatusOr<ValueIndex> ValueOf(ValueIndex index) const {
    if (index >= values_.size()) {
      return builder_.Error(Reason::kBadField, StrCat("value ", index, " is not there yet; ",
                                                      values_.size(), " values precede"));
    }
    return values_[index];
  }

  absl::StatusOr<ValueIndex> Add(const LinearOp& op) {
    Product product{.transpose_rhs = op.weight_layout == WeightLayout::kOutIn,
                    .scale = op.scale,
                    .activation = op.activation};
    SHARDMESH_ASSIGN_OR_RETURN(product.lhs, ValueOf(op.input));
    SHARDMESH_ASSIGN_OR_RETURN(product.rhs, ValueOf(op.weight));
    if (op.bias.has_value()) {
      SHARDMESH_ASSIGN_OR_RETURN(product.bias, ValueOf(*op.bias));
    }
    return builder_.AddProduct(product);
  }
  absl::StatusOr<ValueIndex> Add(const MatmulOp& op) {
    Product product{.transpose_lhs = op.transpose_lhs, .transpose_rhs = op.transpose_rhs};
    SHARDMESH_ASSIGN_OR_RETURN(product.lhs, ValueOf(op.lhs));
    SHARDMESH_ASSIGN_OR_RETURN(product.rhs, ValueOf(op.rhs));
    if (const Shape& lhs = builder_.value(product.lhs).shape; lhs.size() != 2) {
      return builder_.Error(
          Reason::kShapeMismatch,
          StrCat("the left operand has shape ", ShapeToString(lhs), "; it must be a matrix"));
    }
    return builder_.AddProduct(product);
  }
  absl::StatusOr<ValueIndex> Add(const CollectiveOp& op) {
    SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex input, ValueOf(op.input));
    return builder_.AddCollective(op, input);
  }
  absl::StatusOr<ValueIndex> Add(const ReshardOp& op) {
    SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex input, ValueOf(op.input));
    return builder_.AddReshard(op.spec, input);
  }

  const Program& program_;
  PlanBuilder builder_;
  std::vector<ValueIndex> values_;  // plan value of each program value
};

// One instruction of a plan from elsewhere, judged by the shapes of tiles.
class InstructionChecker {
 public:
  InstructionChecker(const Plan& plan, absl::Span<const Tiling> tilings)
      : plan_(plan), tilings_(tilings) {}

  absl::Status Check(const Instruction& instruction) const {
    return std::visit([&](const auto& kind) { return CheckKind(kind, instruction.output); },
                      instruction.kind);
  }

 private:
  Shape TileShape(ValueIndex index) const { return tilings_[index].ShardShape(); }
  Dtype DtypeOf(ValueIndex index) const { return plan_.values[index].dtype; }

  absl::Status CheckKind(const LocalMatmul& matmul, ValueIndex output) const {
    const Shape lhs = TileShape(matmul.lhs);
    const Shape rhs = TileShape(matmul.rhs);
    const Shape out = TileShape(output);
    if (lhs.empty() || rhs.size() != 2 || (matmul.transpose_lhs && lhs.size() != 2)) {
      return Misfit("operands are not matrices");
    }
    Shape expected(lhs.begin(), lhs.end() - 1);
    if (matmul.transpose_lhs) {
      expected = {lhs[1]};
    }
    expected.push_back(rhs[matmul.transpose_rhs ? 0 : 1]);
    const int64_t lhs_k = matmul.transpose_lhs ? lhs[0] : lhs.back();
    if (lhs_k != rhs[matmul.transpose_rhs ? 1 : 0] || out != expected) {
      return Misfit("tiles do not multiply");
    }
    if (DtypeOf(matmul.lhs) != DtypeOf(matmul.rhs)) {
      return Misfit("element types differ");
    }
    return CheckBias(matmul.bias, out);
  }
  absl::Status CheckKind(const LocalEpilogue& epilogue, ValueIndex output) const {
    const Shape out = TileShape(output);
    if (TileShape(epilogue.input) != out) {
      return Misfit("tiles of input and output differ");
    }
    return CheckBias(epilogue.bias, out);
  }
  absl::Status CheckKind(const LocalSlice& slice, ValueIndex output) const {
    if (plan_.values[slice.input].shape != plan_.values[output].shape ||
        DtypeOf(slice.input) != DtypeOf(output)) {
      return Misfit("input and output are not the same tensor");
    }
    return absl::OkStatus();
  }
  absl::Status CheckKind(const GroupCollective& collective, ValueIndex output) const {
    SHARDMESH_ASSIGN_OR_RETURN(const DeviceGroup group,
                               DeviceGroup::Create(plan_.mesh, collective.axes, 0));
    const Shape out = TileShape(output);
    Shape expected = TileShape(collective.input);
    if (collective.kind != CollectiveKind::kAllReduce) {
      if (collective.dimension < 0 ||
          collective.dimension >= static_cast<int64_t>(expected.size())) {
        return Misfit(StrCat("there is no dimension ", collective.dimension));
      }
      int64_t& extent = expected[static_cast<size_t>(collective.dimension)];
      if (collective.kind == CollectiveKind::kAllGather) {
        if (__builtin_mul_overflow(extent, group.size(), &extent)) {
          return Misfit("the gathered dimension is beyond 64 bits");
        }
      } else if (extent % group.size() != 0) {
        return Misfit("the group does not divide the dimension");
      } else {
        extent /= group.size();
      }
    }
    if (out != expected || DtypeOf(collective.input) != DtypeOf(output)) {
      return Misfit("tiles of input and output do not fit the exchange");
    }
    if (collective.kind != CollectiveKind::kAllGather && !HasArithmetic(DtypeOf(output))) {
      return Misfit("the element type has no arithmetic");
    }
    return absl::OkStatus();
  }
  absl::Status CheckBias(std::optional<ValueIndex> bias, const Shape& out) const {
    if (bias.has_value() && (out.empty() || TileShape(*bias) != Shape{out.back()})) {
      return Misfit("the bias does not fit the last dimension");
    }
    return absl::OkStatus();
  }
  static absl::Status Misfit(std::string_view what) {
    return InvalidArgument(Reason::kShapeMismatch, what);
  }

  const Plan& plan_;
  absl::Span<const Tiling> tilings_;
};

}  // namespace

std::vector<ValueIndex> InputsOf(const Instruction& instruction) {
  struct Visitor {
    std::vector<ValueIndex> operator()(const LocalMatmul& matmul) const {
      std::vector<ValueIndex> inputs = {matmul.lhs, matmul.rhs};
      if (matmul.bias.has_value()) {
        inputs.push_back(*matmul.bias);
      }
      return inputs;
    }
    std::vector<ValueIndex> operator()(const LocalEpilogue& epilogue) const {
      std::vector<ValueIndex> inputs = {epilogue.input};
      if (epilogue.bias.has_value()) {
        inputs.push_back(*epilogue.bias);
      }
      return inputs;
    }
    std::vector<ValueIndex> operator()(const LocalSlice& slice) const { return {slice.input}; }
    std::vector<ValueIndex> operator()(const GroupCollective& collective) const {
      return {collective.input};
    }
  };
  return std::visit(Visitor{}, instruction.kind);
}

absl::StatusOr<Plan> PlanProgram(const Program& program, absl::Span<const ValueDescriptor> operands,
                                 const PlanTarget& target) {
  if (program.operand_count != operands.size()) {
    return InvalidArgument(Reason::kBadField, StrCat("the program takes ", program.operand_count,
                                                     " operands; ", operands.size(), " are given"));
  }
  if (operands.size() > kMaxProgramSize || program.ops.size() > kMaxProgramSize ||
      program.outputs.size() > kMaxProgramSize) {
    return InvalidArgument(Reason::kLimitExceeded, StrCat("a program has at most ", kMaxProgramSize,
                                                          " operands, ops and outputs each"));
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    if (const auto tiling = Tiling::Create(target.mesh, operands[i].spec, operands[i].shape);
        !tiling.ok()) {
      return WithContext(tiling.status(), StrCat("operand ", i));
    }
  }
  return ProgramPlanner(program, operands, target).Run();
}

absl::Status CheckPlan(const Plan& plan) {
  if (plan.values.size() != plan.operand_count + plan.instructions.size()) {
    return InvalidArgument(Reason::kBadField, "a plan has one value per operand and instruction");
  }
  std::vector<Tiling> tilings;
  tilings.reserve(plan.values.size());
  for (size_t i = 0; i < plan.values.size(); ++i) {
    auto tiling = Tiling::Create(plan.mesh, plan.values[i].spec, plan.values[i].shape);
    if (!tiling.ok()) {
      return WithContext(tiling.status(), StrCat("value ", i));
    }
    tilings.push_back(*std::move(tiling));
  }
  const InstructionChecker checker(plan, tilings);
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    const Instruction& instruction = plan.instructions[i];
    const std::string where = StrCat("instruction ", i);
    if (instruction.output != plan.operand_count + i) {
      return InvalidArgument(Reason::kBadField, StrCat(where, " makes value ", instruction.output));
    }
    for (const ValueIndex input : InputsOf(instruction)) {
      if (input >= instruction.output) {
        return InvalidArgument(Reason::kBadField,
                               StrCat(where, " reads value ", input, " before it is made"));
      }
    }
    if (const absl::Status status = checker.Check(instruction); !status.ok()) {
      return WithContext(status, where);
    }
  }
  for (const ValueIndex output : plan.outputs) {
    if (output < plan.operand_count || output >= plan.values.size()) {
      return InvalidArgument(Reason::kBadField,
                             StrCat("output ", output, " is not the result of an instruction"));
    }
  }
  return absl::OkStatus();
}

}  // namespace shardmesh
