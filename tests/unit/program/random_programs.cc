// Makes random products and random graphs. Compiled with optimisation and without sanitizers.
#include "tests/unit/program/random_programs.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "client/inspect/bounded_tensor.h"
#include "gtest/gtest.h"
#include "program/graph/graph_builder.h"
#include "program/product_layout.h"
#include "program/tensor_op.h"
#include "program/value_layout.h"
#include "sharding/shape.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"
#include "tests/unit/program/dense.h"
#include "tests/unit/program/plan_simulation.h"

namespace shardmesh {
namespace {

using ::shardmesh::client::IsFloat;

constexpr std::array kShortFloats = {Dtype::kF32, Dtype::kBF16, Dtype::kF16};

bool IsShortFloat(Dtype dtype) {
  return std::find(kShortFloats.begin(), kShortFloats.end(), dtype) != kShortFloats.end();
}

// Returns a number from 0 to below `limit`.
int64_t Below(int64_t limit, std::mt19937& random) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
}
bool OneOf(int64_t cases, std::mt19937& random) { return Below(cases, random) == 0; }
template <typename Choices>
auto AnyOf(const Choices& choices, std::mt19937& random) {
  return choices[static_cast<size_t>(Below(std::ssize(choices), random))];
}

// Returns whole numbers from `least` to `most`.
Literal RandomIntegers(Dtype dtype, const Shape& shape, int64_t least, int64_t most,
                       std::mt19937& random) {
  Dense dense{.shape = shape, .elements = {}};
  for (int64_t i = 0; i < Count(shape); ++i) {
    dense.elements.push_back(static_cast<double>(least + Below(most - least + 1, random)));
  }
  return LiteralOf(dtype, dense);
}

// Returns numbers between -2 and 2, rounded to the type.
Literal RandomNumbers(Dtype dtype, const Shape& shape, std::mt19937& random) {
  Dense dense{.shape = shape, .elements = {}};
  for (int64_t i = 0; i < Count(shape); ++i) {
    dense.elements.push_back(static_cast<double>(random()) * 0x1p-30 - 2);
  }
  return LiteralOf(dtype, dense);
}

// Makes some axes that the value does not use unreduced.
void AddUnreduced(const Mesh& mesh, std::mt19937& random, ValueDescriptor* value) {
  ValueLayout layout = LayoutOf(mesh, *value);
  for (const MeshAxis& axis : mesh.axes()) {
    const bool is_used = std::any_of(layout.dims.begin(), layout.dims.end(),
                                     [&](const Axes& axes) { return Contains(axes, axis.name); });
    if (!is_used && axis.size > 1 && OneOf(6, random)) layout.unreduced.push_back(axis.name);
  }
  value->spec = ToSpec(layout);
}

// Lays a tensor over the axes, in even, uneven or empty parts.
ValueDescriptor RandomLayout(const Mesh& mesh, const Shape& shape, Dtype dtype,
                             std::mt19937& random) {
  ValueDescriptor value = {.dtype = dtype, .shape = shape, .spec = {}};
  if (shape.empty()) return value;
  value = Count(shape) == 0 || OneOf(3, random) ? RandomValueWithEmptyParts(mesh, shape, random)
                                                : RandomValue(mesh, shape, random);
  value.dtype = dtype;
  return value;
}

// Makes one product.
class ProductMaker {
 public:
  ProductMaker(const Mesh& mesh, std::mt19937& random) : random_(random) { made_.mesh = mesh; }

  RandomProgram Make() {
    dtype_ = AnyOf(kShortFloats, random_);
    made_.is_exact = OneOf(2, random_);
    m_ = Extent();
    k_ = Extent();
    n_ = Extent();
    Shape result;
    if (OneOf(3, random_)) {
      result = AddLinear();
    } else {
      result = AddMatmul();
    }
    const auto made = static_cast<ValueIndex>(made_.operands.size());
    made_.program.operand_count = made;
    made_.program.outputs = {made};
    if (OneOf(2, random_)) {
      const ValueDescriptor wanted = RandomLayout(made_.mesh, result, dtype_, random_);
      made_.program.ops.emplace_back(
          ReshardOp{.input = made, .spec = wanted.spec, .part_starts = StartsOf(wanted)});
      made_.program.outputs = {made + 1};
    }
    return std::move(made_);
  }

 private:
  int64_t Extent() {
    constexpr std::array<int64_t, 7> kExtents = {1, 2, 3, 4, 6, 8, 12};
    return OneOf(40, random_) ? 0 : AnyOf(kExtents, random_);
  }
  // Small integers: their products and sums are exact in BF16.
  ValueIndex AddOperand(const Shape& shape) {
    AddOperand(shape, made_.is_exact ? RandomIntegers(dtype_, shape, -2, 2, random_)
                                     : RandomNumbers(dtype_, shape, random_));
    return static_cast<ValueIndex>(made_.operands.size() - 1);
  }
  void AddOperand(const Shape& shape, Literal content) {
    made_.operands.push_back(RandomLayout(made_.mesh, shape, content.dtype, random_));
    AddUnreduced(made_.mesh, random_, &made_.operands.back());
    made_.contents.push_back(std::move(content));
  }

  Shape AddMatmul() {
    MatmulOp op = {
        .lhs = 0, .rhs = 1, .transpose_lhs = OneOf(2, random_), .transpose_rhs = OneOf(2, random_)};
    Shape batch;
    for (int64_t i = Below(3, random_); i > 0; --i) {
      batch.push_back(OneOf(40, random_) ? 0 : 1 + Below(4, random_));
    }
    // An operand may lack the first batch dimensions, or be broadcast along one.
    const auto with_batch = [&](const Shape& matrix) {
      Shape shape(batch.begin() + Below(std::ssize(batch) + 1, random_), batch.end());
      for (int64_t& each : shape) {
        if (OneOf(4, random_)) each = 1;
      }
      shape.insert(shape.end(), matrix.begin(), matrix.end());
      return shape;
    };
    const Shape lhs = with_batch(op.transpose_lhs ? Shape{k_, m_} : Shape{m_, k_});
    const Shape rhs = with_batch(op.transpose_rhs ? Shape{n_, k_} : Shape{k_, n_});
    AddOperand(lhs);
    AddOperand(rhs);
    made_.program.ops.emplace_back(op);
    return OutputShapeOf(*ProductDimsOf(lhs, op.transpose_lhs, rhs, op.transpose_rhs));
  }

  Shape AddLinear() {
    LinearOp op = {.input = 0, .weight = 1};
    op.weight_layout = OneOf(2, random_) ? WeightLayout::kOutIn : WeightLayout::kInOut;
    constexpr std::array kActivations = {Activation::kNone, Activation::kRelu, Activation::kGelu,
                                         Activation::kGeluTanh, Activation::kSilu};
    op.activation = AnyOf(kActivations, random_);
    if (made_.is_exact && op.activation != Activation::kRelu) op.activation = Activation::kNone;
    op.scale = OneOf(2, random_) ? 1 : 2;
    Shape result;
    for (int64_t i = Below(3, random_); i > 0; --i) result.push_back(1 + Below(4, random_));
    result.push_back(k_);
    AddOperand(result);
    result.back() = n_;
    const Shape weight = op.weight_layout == WeightLayout::kOutIn ? Shape{n_, k_} : Shape{k_, n_};
    const bool has_scales = OneOf(3, random_);
    if (has_scales) {
      AddOperand(weight, RandomIntegers(Dtype::kI8, weight, -2, 2, random_));
    } else {
      AddOperand(weight);
    }
    if (OneOf(2, random_)) op.bias = AddOperand({n_});
    if (has_scales) {
      op.scales = static_cast<ValueIndex>(made_.operands.size());
      AddOperand({n_}, made_.is_exact ? RandomIntegers(Dtype::kF32, {n_}, 1, 2, random_)
                                      : RandomNumbers(Dtype::kF32, {n_}, random_));
    }
    made_.program.ops.emplace_back(op);
    return result;
  }

  std::mt19937& random_;
  RandomProgram made_;
  Dtype dtype_ = Dtype::kF32;
  int64_t m_ = 0;
  int64_t k_ = 0;
  int64_t n_ = 0;
};

// Makes one graph. An op reads values of the pool, which are operands and results of ops before it.
class GraphMaker {
 public:
  GraphMaker(const Mesh& mesh, const RandomGraphOptions& options, std::mt19937& random)
      : mesh_(mesh), options_(options), random_(random) {}

  RandomProgram Make() {
    for (int i = 0; i < 2; ++i) pool_.push_back(Numbers(AnyType(), AnyShape()));
    const int64_t ops = 1 + Below(options_.most_ops, random_);
    while (std::ssize(results_) < ops && graph_.status().ok()) AddOp();
    if (OneOf(3, random_)) AddState();
    AddOutputs();
    const absl::StatusOr<Graph> graph = graph_.Build();
    RandomProgram made{.mesh = mesh_};
    EXPECT_TRUE(graph.ok()) << graph.status();
    if (!graph.ok()) return made;
    made.program = graph->program;
    for (const GraphOperand& operand : graph->operands) {
      const Operand& own = operands_.at(operand.name);
      made.operands.push_back(own.value);
      made.contents.push_back(own.content);
    }
    return made;
  }

 private:
  struct Operand {
    ValueDescriptor value;
    Literal content;
  };
  using Maker = std::optional<GraphValue> (GraphMaker::*)();

  void AddOp() {
    constexpr std::array<Maker, 20> kMakers = {
        &GraphMaker::MapOne,    &GraphMaker::MapTwo,     &GraphMaker::MapByNumber,
        &GraphMaker::Convert,   &GraphMaker::Norm,       &GraphMaker::Softmax,
        &GraphMaker::Reduce,    &GraphMaker::Rotary,     &GraphMaker::Embedding,
        &GraphMaker::Attention, &GraphMaker::TopK,       &GraphMaker::Reshape,
        &GraphMaker::Transpose, &GraphMaker::Slice,      &GraphMaker::Concatenate,
        &GraphMaker::Reshard,   &GraphMaker::UpdateRows, &GraphMaker::Linear,
        &GraphMaker::Matmul,    &GraphMaker::Gather};
    const std::optional<GraphValue> result = (this->*AnyOf(kMakers, random_))();
    if (!result.has_value()) return;  // no value of the pool fits
    // Most ops read the latest result.
    pool_.push_back(*result);
    results_.push_back(*result);
  }

  void AddState() {
    const Dtype dtype = AnyType();
    const Shape shape = {1 + Below(3, random_), 1 + Below(6, random_), 1 + Below(6, random_)};
    const Literal content = NumbersOf(dtype, shape);
    const GraphValue state = graph_.State("state", dtype, shape);
    ValueDescriptor value = RandomLayout(mesh_, shape, dtype, random_);
    operands_["state"] = {std::move(value), content};
    const bool reads_it_before = OneOf(2, random_);
    if (reads_it_before) results_.push_back(graph_.Sum(state, {1}));
    GraphValue updated = OneOf(4, random_)
                             ? graph_.Add(state, Numbers(dtype, {shape[1], 1}))
                             : graph_.UpdateRows(state, Numbers(dtype, {shape[0], 2, shape[2]}),
                                                 Integers({2}, -1, shape[1]));
    if (OneOf(3, random_)) {
      updated = graph_.UpdateRows(updated, Numbers(dtype, {shape[0], 1, shape[2]}),
                                  Integers({shape[0], 1}, 0, shape[1] - 1));
    }
    if (OneOf(2, random_)) results_.push_back(graph_.Transpose(updated, {2, 0, 1}));
    graph_.Update(state, updated);
  }

  void AddOutputs() {
    graph_.Output("y", results_.back());
    results_.pop_back();
    for (int i = 0; i < 2 && !results_.empty(); ++i) {
      if (!OneOf(2, random_)) continue;
      const auto at = results_.begin() + Below(std::ssize(results_), random_);
      graph_.Output(StrCat("y", i), *at);
      results_.erase(at);
    }
  }

  // --- Values.

  Dtype AnyType() {
    constexpr std::array kTypes = {Dtype::kF32, Dtype::kF32, Dtype::kF32, Dtype::kBF16,
                                   Dtype::kF16, Dtype::kF64, Dtype::kI32};
    return AnyOf(kTypes, random_);
  }
  Shape AnyShape() {
    constexpr std::array<int64_t, 6> kExtents = {1, 2, 3, 4, 6, 8};
    Shape shape;
    for (int64_t i = 1 + Below(4, random_); i > 0; --i) {
      const int64_t extent = AnyOf(kExtents, random_);
      if (Count(shape) * extent <= kMostElements) shape.push_back(extent);
    }
    return shape;
  }

  GraphValue NewOperand(const Literal& content) {
    const std::string name = StrCat("x", operands_.size());
    ValueDescriptor value = RandomLayout(mesh_, content.shape, content.dtype, random_);
    if (options_.has_partial_sums && IsFloat(content.dtype)) {
      AddUnreduced(mesh_, random_, &value);
    }
    operands_[name] = {std::move(value), content};
    return graph_.Parameter(name, content.dtype, content.shape);
  }
  Literal NumbersOf(Dtype dtype, const Shape& shape) {
    return IsFloat(dtype) ? RandomNumbers(dtype, shape, random_)
                          : RandomIntegers(dtype, shape, -3, 9, random_);
  }
  // An operand, or a constant of the program.
  GraphValue Numbers(Dtype dtype, const Shape& shape) {
    const Literal content = NumbersOf(dtype, shape);
    if (Count(shape) < 16 && OneOf(8, random_)) return graph_.Constant(content);
    return NewOperand(content);
  }
  GraphValue Integers(const Shape& shape, int64_t least, int64_t most) {
    return NewOperand(RandomIntegers(Dtype::kI32, shape, least, most, random_));
  }
  GraphValue Mask(const Shape& shape) {
    const Dtype dtype = OneOf(2, random_) ? Dtype::kBool : Dtype::kI32;
    return NewOperand(RandomIntegers(dtype, shape, 0, 1, random_));
  }

  const Shape& ShapeOf(GraphValue value) const { return graph_.ShapeOf(value); }
  Dtype TypeOf(GraphValue value) const { return graph_.DtypeOf(value); }

  // Returns a value for which `fits` holds: the latest one, or any other.
  template <typename Fits>
  std::optional<GraphValue> Any(Fits fits) {
    std::vector<GraphValue> fitting;
    for (const GraphValue value : pool_) {
      if (fits(value)) fitting.push_back(value);
    }
    if (fitting.empty()) return std::nullopt;
    return OneOf(2, random_) ? fitting.back() : AnyOf(fitting, random_);
  }
  std::optional<GraphValue> AnyOfRank(size_t least) {
    return Any([&](GraphValue value) { return ShapeOf(value).size() >= least; });
  }
  std::optional<GraphValue> AnyShortFloat(size_t least_rank) {
    return Any([&](GraphValue value) {
      return IsShortFloat(TypeOf(value)) && ShapeOf(value).size() >= least_rank;
    });
  }
  int64_t AnyDimension(GraphValue value) { return Below(std::ssize(ShapeOf(value)), random_); }

  // --- Ops.

  GraphValue Positive(GraphValue value) { return graph_.Add(graph_.Abs(value), 0.5); }

  std::optional<GraphValue> MapOne() {
    const auto x = Any([](GraphValue) { return true; });
    constexpr std::array kOfIntegers = {MapFunction::kNegate, MapFunction::kAbs};
    if (!IsFloat(TypeOf(*x))) return graph_.Map(AnyOf(kOfIntegers, random_), *x);
    const MapFunction function = AnyOf(AllMapFunctions(), random_);
    switch (function) {
      case MapFunction::kLog:
      case MapFunction::kSqrt:
      case MapFunction::kRsqrt:
        return graph_.Map(function, Positive(*x));
      case MapFunction::kExp:
        return graph_.Exp(graph_.Tanh(*x));
      default:
        if (InputCountOf(function) == 2) return std::nullopt;
        return graph_.Map(function, *x);
    }
  }

  MapFunction FunctionOfTwo(bool of_floats) {
    constexpr std::array kFunctions = {MapFunction::kAdd,      MapFunction::kSubtract,
                                       MapFunction::kMultiply, MapFunction::kMinimum,
                                       MapFunction::kMaximum,  MapFunction::kDivide};
    return kFunctions[static_cast<size_t>(
        Below(std::ssize(kFunctions) - (of_floats ? 0 : 1), random_))];
  }

  std::optional<GraphValue> MapTwo() {
    const auto x = Any([](GraphValue) { return true; });
    const MapFunction function = FunctionOfTwo(IsFloat(TypeOf(*x)));
    auto y = Any([&](GraphValue value) {
      return TypeOf(value) == TypeOf(*x) && ShapeOf(value) == ShapeOf(*x);
    });
    if (OneOf(2, random_)) {
      // Lacks the first dimensions, and is broadcast along some of the others.
      const Shape& shape = ShapeOf(*x);
      Shape other(shape.begin() + Below(std::ssize(shape) + 1, random_), shape.end());
      for (int64_t& extent : other) {
        if (OneOf(3, random_)) extent = 1;
      }
      y = Numbers(TypeOf(*x), other);
    }
    if (function == MapFunction::kDivide) y = Positive(*y);
    return OneOf(2, random_) || function == MapFunction::kDivide ? graph_.Map(function, *x, *y)
                                                                 : graph_.Map(function, *y, *x);
  }

  std::optional<GraphValue> MapByNumber() {
    const auto x = Any([](GraphValue) { return true; });
    return graph_.Map(FunctionOfTwo(IsFloat(TypeOf(*x))), *x, OneOf(2, random_) ? 2.0 : -1.0);
  }

  std::optional<GraphValue> Convert() {
    const Dtype dtype = AnyType();
    const auto x = Any([&](GraphValue value) { return TypeOf(value) != dtype; });
    if (!x.has_value()) return std::nullopt;
    return graph_.Convert(*x, dtype);
  }

  std::optional<GraphValue> Norm() {
    const auto x = AnyShortFloat(1);
    if (!x.has_value()) return std::nullopt;
    constexpr std::array kKinds = {NormKind::kRms, NormKind::kLayer, NormKind::kL2};
    NormArgs args = {.epsilon = 0.01F};
    const Shape features = {ShapeOf(*x).back()};
    if (OneOf(2, random_)) args.weight = Numbers(TypeOf(*x), features);
    if (OneOf(2, random_)) args.bias = Numbers(Dtype::kF32, features);
    return graph_.Norm(AnyOf(kKinds, random_), *x, args);
  }

  std::optional<GraphValue> Softmax() {
    const auto x = AnyShortFloat(1);
    if (!x.has_value()) return std::nullopt;
    SoftmaxArgs args = {.scale = 0.5F};
    if (OneOf(2, random_)) {
      const Shape& shape = ShapeOf(*x);
      args.mask = Mask(Shape(shape.begin() + Below(std::ssize(shape), random_), shape.end()));
    }
    return graph_.Softmax(*x, args);
  }

  std::optional<GraphValue> Reduce() {
    const auto x = AnyOfRank(1);
    if (!x.has_value()) return std::nullopt;
    constexpr std::array kReductions = {Reduction::kSum, Reduction::kSum, Reduction::kProduct,
                                        Reduction::kMin, Reduction::kMax, Reduction::kMean};
    Reduction reduction = AnyOf(kReductions, random_);
    if (reduction == Reduction::kMean && !IsFloat(TypeOf(*x))) reduction = Reduction::kSum;
    std::vector<int64_t> dimensions = {AnyDimension(*x)};
    const int64_t other = AnyDimension(*x);
    if (other != dimensions[0]) dimensions.push_back(other);
    return graph_.Reduce(*x, reduction, std::move(dimensions), OneOf(2, random_));
  }

  std::optional<GraphValue> Rotary() {
    auto x = Any([&](GraphValue value) {
      return IsShortFloat(TypeOf(value)) && ShapeOf(value).size() == 4 &&
             ShapeOf(value)[3] % 2 == 0;
    });
    if (!x.has_value()) {
      x = Numbers(AnyOf(kShortFloats, random_),
                  {1 + Below(3, random_), 1 + Below(4, random_), 1 + Below(4, random_), 4});
    }
    const Shape shape = ShapeOf(*x);
    const Shape positions = OneOf(2, random_) ? Shape{shape[1]} : Shape{shape[0], shape[1]};
    return graph_.Rotary(*x, Integers(positions, 0, 20), Numbers(Dtype::kF32, {shape[3] / 2}),
                         OneOf(2, random_));
  }

  std::optional<GraphValue> Embedding() {
    auto table =
        Any([&](GraphValue value) { return IsFloat(TypeOf(value)) && ShapeOf(value).size() == 2; });
    if (!table.has_value()) table = Numbers(AnyOf(kShortFloats, random_), {7, 4});
    const int64_t rows = ShapeOf(*table)[0];
    const Shape ids = OneOf(2, random_) ? Shape{5} : Shape{2, 3};
    return graph_.Embedding(*table, Integers(ids, -1, rows));
  }

  std::optional<GraphValue> Attention() {
    auto query = Any([&](GraphValue value) {
      return IsShortFloat(TypeOf(value)) && ShapeOf(value).size() == 4;
    });
    if (!query.has_value()) {
      query = Numbers(AnyOf(kShortFloats, random_),
                      {1 + Below(3, random_), 1 + Below(4, random_), 2 + 2 * Below(3, random_), 4});
    }
    const Dtype dtype = TypeOf(*query);
    const Shape shape = ShapeOf(*query);
    int64_t key_heads = shape[2];
    if (key_heads % 2 == 0 && OneOf(2, random_)) key_heads /= 2;
    const int64_t rows = 1 + Below(6, random_);
    AttentionArgs args = {.scale = 0.25F};
    if (OneOf(2, random_)) {
      args.positions =
          Integers(OneOf(2, random_) ? Shape{shape[1]} : Shape{shape[0], shape[1]}, -1, rows - 1);
    }
    if (OneOf(2, random_)) args.mask = Mask({shape[0], rows});
    return graph_.Attention(*query, Numbers(dtype, {shape[0], rows, key_heads, shape[3]}),
                            Numbers(dtype, {shape[0], rows, key_heads, 1 + Below(6, random_)}),
                            args);
  }

  std::optional<GraphValue> TopK() {
    const auto x = AnyOfRank(1);
    if (!x.has_value()) return std::nullopt;
    const int64_t count = 1 + Below(ShapeOf(*x).back(), random_);
    switch (Below(3, random_)) {
      case 0:
        return graph_.TopK(*x, count);
      case 1:
        return graph_.TopKIndices(*x, count);
      default:
        return graph_.Argmax(*x);
    }
  }

  std::optional<GraphValue> Reshape() {
    const auto x = AnyOfRank(1);
    if (!x.has_value()) return std::nullopt;
    Shape shape = ShapeOf(*x);
    const auto dim = static_cast<size_t>(AnyDimension(*x));
    const auto at = shape.begin() + static_cast<std::ptrdiff_t>(dim);
    if (dim + 1 < shape.size() && OneOf(2, random_)) {  // join two dimensions
      shape[dim] *= shape[dim + 1];
      shape.erase(at + 1);
    } else if (shape[dim] % 2 == 0) {  // split one
      shape[dim] /= 2;
      shape.insert(at + (OneOf(2, random_) ? 0 : 1), 2);
    } else if (OneOf(2, random_)) {
      shape = {Count(shape)};
    } else {
      shape.insert(at, 1);
    }
    if (shape.size() > 5) shape = {Count(shape)};
    return graph_.Reshape(*x, shape);
  }

  std::optional<GraphValue> Transpose() {
    const auto x = AnyOfRank(2);
    if (!x.has_value()) return std::nullopt;
    std::vector<int64_t> permutation;
    for (int64_t i = 0; i < std::ssize(ShapeOf(*x)); ++i) permutation.push_back(i);
    std::shuffle(permutation.begin(), permutation.end(), random_);
    return graph_.Transpose(*x, std::move(permutation));
  }

  std::optional<GraphValue> Slice() {
    const auto x = AnyOfRank(1);
    if (!x.has_value()) return std::nullopt;
    const int64_t dim = AnyDimension(*x);
    const int64_t extent = ShapeOf(*x)[static_cast<size_t>(dim)];
    const int64_t start = Below(extent, random_);
    const int64_t limit = start + 1 + Below(extent - start, random_);
    return graph_.Slice(*x, dim, start, limit, 1 + Below(3, random_));
  }

  std::optional<GraphValue> Concatenate() {
    const auto x = AnyOfRank(1);
    if (!x.has_value()) return std::nullopt;
    const int64_t dim = AnyDimension(*x);
    Shape shape = ShapeOf(*x);
    shape[static_cast<size_t>(dim)] = 1 + Below(3, random_);
    const GraphValue other = Numbers(TypeOf(*x), shape);
    if (OneOf(3, random_)) return graph_.Concatenate({*x, other, *x}, dim);
    return graph_.Concatenate({*x, other}, dim);
  }

  std::optional<GraphValue> UpdateRows() {
    const auto x = AnyOfRank(2);
    if (!x.has_value()) return std::nullopt;
    Shape shape = ShapeOf(*x);
    const int64_t rows = shape[1];
    shape[1] = 1 + Below(3, random_);
    const Shape positions = OneOf(2, random_) ? Shape{shape[1]} : Shape{shape[0], shape[1]};
    return graph_.UpdateRows(*x, Numbers(TypeOf(*x), shape), Integers(positions, -1, rows));
  }

  std::optional<GraphValue> Reshard() {
    const auto x = AnyOfRank(1);
    if (!x.has_value()) return std::nullopt;
    const ValueDescriptor wanted = RandomLayout(mesh_, ShapeOf(*x), TypeOf(*x), random_);
    return graph_.Op(ReshardOp{.spec = wanted.spec, .part_starts = StartsOf(wanted)}, {*x});
  }

  // Lays a value out, and joins the parts of one dimension along all or the last of its axes.
  std::optional<GraphValue> Gather() {
    const auto x = AnyOfRank(1);
    if (!x.has_value() || !options_.has_collectives) return std::nullopt;
    const ValueDescriptor wanted = RandomLayout(mesh_, ShapeOf(*x), TypeOf(*x), random_);
    const ValueLayout layout = LayoutOf(mesh_, wanted);
    const int64_t dim = AnyDimension(*x);
    Axes axes = layout.dims[static_cast<size_t>(dim)];
    if (axes.empty()) return std::nullopt;
    axes.erase(axes.begin(), axes.begin() + Below(std::ssize(axes), random_));
    const GraphValue parts =
        graph_.Op(ReshardOp{.spec = wanted.spec, .part_starts = StartsOf(wanted)}, {*x});
    return graph_.AllGather(parts, std::move(axes), dim);
  }

  std::optional<GraphValue> Linear() {
    const auto x = AnyShortFloat(1);
    if (!x.has_value()) return std::nullopt;
    const int64_t in = ShapeOf(*x).back();
    const int64_t out = 1 + Below(8, random_);
    LinearArgs args;
    constexpr std::array kActivations = {Activation::kNone, Activation::kGelu, Activation::kSilu};
    args.activation = AnyOf(kActivations, random_);
    if (OneOf(2, random_)) args.bias = Numbers(TypeOf(*x), {out});
    if (OneOf(2, random_)) {
      return graph_.Linear(*x, Numbers(TypeOf(*x), {out, in}), args);
    }
    args.weight_layout = WeightLayout::kInOut;
    if (OneOf(2, random_)) return graph_.Linear(*x, Numbers(TypeOf(*x), {in, out}), args);
    args.scales = Numbers(Dtype::kF32, {out});
    return graph_.Linear(*x, NewOperand(RandomIntegers(Dtype::kI8, {in, out}, -100, 100, random_)),
                         args);
  }

  std::optional<GraphValue> Matmul() {
    const auto x = AnyShortFloat(2);
    if (!x.has_value()) return std::nullopt;
    Shape shape = ShapeOf(*x);
    MatmulArgs args = {.transpose_lhs = OneOf(2, random_), .transpose_rhs = OneOf(2, random_)};
    const int64_t k = args.transpose_lhs ? shape[shape.size() - 2] : shape.back();
    const int64_t n = 1 + Below(8, random_);
    if (OneOf(2, random_)) {
      shape.clear();
    } else {
      shape.erase(shape.end() - 2, shape.end());
    }
    shape.push_back(args.transpose_rhs ? n : k);
    shape.push_back(args.transpose_rhs ? k : n);
    return graph_.Matmul(*x, Numbers(TypeOf(*x), shape), args);
  }

  static constexpr int64_t kMostElements = 200;  // of an operand that starts a graph

  const Mesh& mesh_;
  const RandomGraphOptions options_;
  std::mt19937& random_;
  GraphBuilder graph_;
  std::map<std::string, Operand> operands_;  // by name
  std::vector<GraphValue> pool_;
  std::vector<GraphValue> results_;  // of ops
};

}  // namespace

std::string RandomProgram::ToString() const {
  std::string text = mesh.ToString();
  for (const ValueDescriptor& operand : operands) {
    StrAppend(&text, "; ", DtypeName(operand.dtype), " ", ShapeToString(operand.shape), " ",
              operand.spec.ToString());
  }
  for (const ProgramOp& op : program.ops) {
    StrAppend(&text, ", ", ProgramOpName(op), "(");
    for (const ValueIndex input : InputsOfOp(op)) StrAppend(&text, " ", input);
    StrAppend(&text, " )");
  }
  return text;
}

Mesh RandomMesh(int64_t most, std::mt19937& random) {
  std::string text;
  int64_t devices = 1;
  for (int64_t axis = 0, axes = 1 + Below(3, random); axis < axes; ++axis) {
    int64_t size = 1 + Below(4, random);
    if (devices * size > most) size = 1;
    devices *= size;
    StrAppend(&text, axis == 0 ? "" : ",", std::string(1, static_cast<char>('a' + axis)), "=",
              size);
  }
  return *Mesh::Parse(text);
}

RandomProgram RandomProduct(const Mesh& mesh, std::mt19937& random) {
  return ProductMaker(mesh, random).Make();
}

RandomProgram RandomGraph(const Mesh& mesh, const RandomGraphOptions& options,
                          std::mt19937& random) {
  return GraphMaker(mesh, options, random).Make();
}

}  // namespace shardmesh
