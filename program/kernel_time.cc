// Counts the operations, elements and bytes of local instructions.
#include "program/kernel_time.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <variant>

#include "program/product_layout.h"
#include "program/tensor_op.h"
#include "program/value_layout.h"
#include "sharding/shape.h"

namespace shardmesh {
namespace {

// Returns the measured cost; `otherwise` if it was not measured.
double CostOr(const KernelRates& rates, KernelCost cost, double otherwise) {
  const double seconds = rates.costs.Of(cost);
  return seconds > 0 ? seconds : otherwise;
}

double ReadByteOf(const KernelRates& rates) {
  return CostOr(rates, KernelCost::kReadByte, rates.seconds_per_byte);
}

double StreamedByteOf(const KernelRates& rates) {
  return CostOr(rates, KernelCost::kStreamedByte, rates.seconds_per_byte);
}

double ProductStartOf(const KernelRates& rates) {
  return CostOr(rates, KernelCost::kProductStart, rates.seconds_per_product);
}

double AttentionFlopOf(const KernelRates& rates) {
  return CostOr(rates, KernelCost::kAttentionFlop, 1 / rates.flops_per_second);
}

ProductKind KindOf(Dtype lhs, Dtype rhs) {
  switch (rhs) {
    case Dtype::kBF16:
      return ProductKind::kBf16;
    case Dtype::kF16:
      return ProductKind::kF16;
    case Dtype::kI8:
      return lhs == Dtype::kBF16 ? ProductKind::kI8Bf16 : ProductKind::kI8;
    default:
      return ProductKind::kF32;
  }
}

// Returns the time of a product for each element of its weights. Interpolates between the measured
// numbers of rows. If some were not measured, each row takes the time of one of F32.
double SecondsOfWeight(ProductKind kind, double rows, const KernelRates& rates) {
  const ProductCosts& costs = rates.costs.Of(kind);
  if (*std::min_element(costs.begin(), costs.end()) <= 0) return 2 * rows / rates.flops_per_second;
  if (rows <= kProductRows[0]) return costs[0];
  // The first measured number that is not less; the last one also serves all larger numbers.
  size_t upper = 1;
  while (upper + 1 < kProductRows.size() && rows > kProductRows[upper]) ++upper;
  const auto from = static_cast<double>(kProductRows[upper - 1]);
  const auto to = static_cast<double>(kProductRows[upper]);
  const double slope = std::max((costs[upper] - costs[upper - 1]) / (to - from), 0.0);
  return costs[upper - 1] + (rows - from) * slope;
}

double BytesOfTile(const Plan& plan, const ValueDescriptor& value) {
  return static_cast<double>(TileBytes(plan.mesh, value));
}

double BytesOfTile(const Plan& plan, ValueIndex value) {
  return BytesOfTile(plan, plan.values[value]);
}

double ElementsOfTile(const Plan& plan, const ValueDescriptor& value) {
  return static_cast<double>(TileElements(plan.mesh, value));
}

// Returns the time of an element of the activation, beside that to read and write it.
double ElementSecondsOf(Activation activation, const KernelRates& rates) {
  switch (activation) {
    case Activation::kNone:
    case Activation::kRelu:
      return 0;
    case Activation::kGelu:
      return rates.costs.Of(KernelCost::kGeluElement);
    default:
      return rates.costs.Of(KernelCost::kFunctionElement);
  }
}

double ElementSecondsOf(MapFunction function, const KernelRates& rates) {
  switch (function) {
    case MapFunction::kGelu:
      return rates.costs.Of(KernelCost::kGeluElement);
    case MapFunction::kExp:
    case MapFunction::kLog:
    case MapFunction::kTanh:
    case MapFunction::kSigmoid:
    case MapFunction::kGeluTanh:
    case MapFunction::kSilu:
      return rates.costs.Of(KernelCost::kFunctionElement);
    default:
      return 0;
  }
}

// Returns whether the op transposes elements. If the last dimension stays the last one, it copies
// rows instead.
bool MovesLastDimension(const TensorOp& op) {
  const auto* const transpose = std::get_if<TransposeOp>(&op);
  return transpose != nullptr && !transpose->permutation.empty() &&
         transpose->permutation.back() != std::ssize(transpose->permutation) - 1;
}

// Returns whether each step has to pack the right operand of a product: all but weights, which the
// workers keep packed.
bool IsPackedEachTime(const Plan& plan, const LocalMatmul& matmul) {
  const Shape rhs = TileShape(plan.mesh, plan.values[matmul.rhs]);
  const bool is_matrix =
      std::all_of(rhs.begin(), rhs.end() - 2, [](int64_t extent) { return extent == 1; });
  return matmul.rhs >= plan.operand_count || !is_matrix;
}

// Returns the number of products that a device computes, by the shapes of its tiles.
int64_t ProductsOf(const Shape& rhs, const Shape& out, bool transpose_lhs) {
  const bool is_batch =
      std::any_of(rhs.begin(), rhs.end() - 2, [](int64_t extent) { return extent != 1; });
  if (!is_batch && !transpose_lhs) return 1;
  int64_t products = 1;
  for (size_t dim = 0; dim + 2 < out.size(); ++dim) products = ProductOf(products, out[dim]);
  return products;
}

// The tiles of a product, which a device computes as `products` products of matrices.
struct DeviceProduct {
  const LocalMatmul& matmul;
  const ValueDescriptor& lhs;
  const ValueDescriptor& rhs;
  const ValueDescriptor& out;
  double products = 1;
  // How often the products read and write the tiles.
  double lhs_reads = 1;
  double rhs_reads = 1;
  double out_writes = 1;
  double columns_apart = 1;  // into how many products the columns are divided
  bool gathers_rhs = false;  // so that it cannot be kept packed
};

double ProductSeconds(const Plan& plan, const DeviceProduct& product, const KernelRates& rates) {
  const LocalMatmul& matmul = product.matmul;
  const Shape lhs_tile = TileShape(plan.mesh, product.lhs);
  const Shape rhs_tile = TileShape(plan.mesh, product.rhs);
  const auto contracted =
      static_cast<double>(lhs_tile[lhs_tile.size() - (matmul.transpose_lhs ? 2 : 1)]);
  const auto columns =
      static_cast<double>(rhs_tile[rhs_tile.size() - (matmul.transpose_rhs ? 2 : 1)]) /
      product.columns_apart;
  const double elements = ElementsOfTile(plan, product.out);
  const double starts = ProductStartOf(rates) * product.products;
  if (elements == 0) return starts;
  const double rows = elements / (columns * product.products);  // of each product
  const double compute = product.products * contracted * columns *
                         SecondsOfWeight(KindOf(product.lhs.dtype, product.rhs.dtype), rows, rates);
  const double bytes = product.lhs_reads * BytesOfTile(plan, product.lhs) +
                       product.rhs_reads * BytesOfTile(plan, product.rhs) +
                       product.out_writes * BytesOfTile(plan, product.out);
  double seconds = std::max(compute, bytes * ReadByteOf(rates)) + starts;
  if (product.gathers_rhs || IsPackedEachTime(plan, matmul)) {
    seconds +=
        product.rhs_reads * BytesOfTile(plan, product.rhs) * rates.costs.Of(KernelCost::kPlainByte);
  }
  seconds += elements * ElementSecondsOf(matmul.activation, rates);
  return seconds;
}

// A product that a device computes part by part, for or from each place of a group along `axes`.
struct ProductInParts {
  const LocalMatmul& matmul;
  const ValueDescriptor& lhs;
  const ValueDescriptor& rhs;
  const ValueDescriptor& out;
  ProductSide side;   // the tensor that has the parts
  int64_t dimension;  // of this tensor
  const Axes& axes;
};

double FusedProductSeconds(const Plan& plan, const ProductInParts& product,
                           const KernelRates& rates) {
  const LocalMatmul& matmul = product.matmul;
  const auto parts = static_cast<double>(AxesSize(plan.mesh, product.axes));
  const Shape lhs = TileShape(plan.mesh, product.lhs);
  const Shape rhs = TileShape(plan.mesh, product.rhs);
  const Shape out = TileShape(plan.mesh, product.out);
  const bool is_out = product.side == ProductSide::kOut;
  const Shape& split = is_out ? out : product.side == ProductSide::kLhs ? lhs : rhs;
  const int64_t from_end = std::ssize(split) - product.dimension;
  // A transposed right operand has its columns before K.
  const bool is_columns = product.side == ProductSide::kRhs
                              ? from_end == (matmul.transpose_rhs ? 2 : 1)
                              : is_out && from_end == 1;
  const bool is_one_rhs =
      std::all_of(rhs.begin(), rhs.end() - 2, [](int64_t extent) { return extent == 1; });
  const bool keeps_matrices = from_end > 2 && !(is_one_rhs && !matmul.transpose_lhs);
  DeviceProduct whole = {
      .matmul = matmul, .lhs = product.lhs, .rhs = product.rhs, .out = product.out};
  if (is_columns) {
    whole.lhs_reads = parts;
    if (!is_out) whole.out_writes += 2;
    if (is_out && !matmul.transpose_rhs) whole.rhs_reads += 2;
  } else if (!keeps_matrices) {
    whole.rhs_reads = parts;
  }
  int64_t products = ProductsOf(rhs, out, matmul.transpose_lhs);
  if (!is_columns && is_one_rhs && !matmul.transpose_lhs) {
    // The rows of a place follow one another only behind the dimensions before.
    for (int64_t dim = 0; dim < product.dimension; ++dim) {
      products = ProductOf(products, split[static_cast<size_t>(dim)]);
    }
  }
  whole.products = static_cast<double>(products) * (keeps_matrices ? 1 : parts);
  if (is_columns) whole.columns_apart = parts;
  whole.gathers_rhs = product.side == ProductSide::kRhs;
  return ProductSeconds(plan, whole, rates);
}

double AttentionSeconds(const Plan& plan, const AttentionOp& op, double bytes, ValueIndex output,
                        const KernelRates& rates) {
  const Shape query = TileShape(plan.mesh, plan.values[op.query]);
  const Shape keys = TileShape(plan.mesh, plan.values[op.keys]);
  const Shape out = TileShape(plan.mesh, plan.values[output]);
  // A kernel computes blocks of rows, and some rows that a query does not see.
  constexpr int64_t kUnseenRows = 32;
  int64_t computed = SeenPairs(query[1], keys[1], op.positions.has_value());
  AddTo(computed, ProductOf(query[1], kUnseenRows));
  const auto pairs = static_cast<double>(std::min(computed, ProductOf(query[1], keys[1])));
  const double heads = static_cast<double>(query[0]) * static_cast<double>(query[2]);
  const double features = static_cast<double>(query[3]) + static_cast<double>(out[3]);
  return std::max(2 * heads * pairs * features * AttentionFlopOf(rates), bytes * ReadByteOf(rates));
}

// Returns the time of an op that reads its inputs and writes its output.
double ComputeSeconds(const Plan& plan, const TensorOp& op, ValueIndex output,
                      const KernelRates& rates) {
  double bytes = BytesOfTile(plan, output);
  for (const ValueIndex input : InputsOf(op)) bytes += BytesOfTile(plan, input);
  if (const auto* const attention = std::get_if<AttentionOp>(&op); attention != nullptr) {
    return AttentionSeconds(plan, *attention, bytes, output, rates);
  }
  const auto seconds_of = [&](KernelCost cost, ValueIndex value) {
    return ElementsOfTile(plan, plan.values[value]) * rates.costs.Of(cost);
  };
  double elements = 0;
  if (MovesLastDimension(op)) elements = seconds_of(KernelCost::kTransposedElement, output);
  if (const auto* const map = std::get_if<MapOp>(&op); map != nullptr) {
    elements = ElementsOfTile(plan, plan.values[output]) * ElementSecondsOf(map->function, rates);
  }
  if (std::holds_alternative<NormOp>(op) || std::holds_alternative<RotaryOp>(op)) {
    elements = seconds_of(KernelCost::kNormElement, output);
    if (plan.values[output].dtype != Dtype::kF32) {
      elements += seconds_of(KernelCost::kHalfElement, output);
    }
  }
  if (std::holds_alternative<SoftmaxOp>(op)) {
    // The kernel reads all elements of a row before it computes: the two times add up.
    return bytes * StreamedByteOf(rates) + seconds_of(KernelCost::kSoftmaxElement, output);
  }
  if (const auto* const reduce = std::get_if<ReduceOp>(&op); reduce != nullptr) {
    elements = seconds_of(KernelCost::kReducedElement, reduce->input);
  }
  return std::max(bytes * StreamedByteOf(rates), elements);
}

}  // namespace

int64_t ProductsOf(const Plan& plan, const LocalMatmul& matmul, ValueIndex output) {
  return ProductsOf(TileShape(plan.mesh, plan.values[matmul.rhs]),
                    TileShape(plan.mesh, plan.values[output]), matmul.transpose_lhs);
}

int64_t FlopsOf(const Plan& plan, const LocalCompute& compute, ValueIndex output) {
  const auto* const attention = std::get_if<AttentionOp>(&compute.op);
  if (attention == nullptr) return 0;
  const Shape query = TileShape(plan.mesh, plan.values[attention->query]);
  const Shape keys = TileShape(plan.mesh, plan.values[attention->keys]);
  // Each of the two products has one multiplication and one addition for each pair of a query and
  // a row, and each feature.
  int64_t features = query[3];
  AddTo(features, TileShape(plan.mesh, plan.values[output])[3]);
  const int64_t queries = ProductOf(query[0], ProductOf(query[1], query[2]));
  return ProductOf(2, ProductOf(ProductOf(queries, keys[1]), features));
}

int64_t SeenPairs(int64_t queries, int64_t rows, bool has_positions) {
  if (!has_positions) return ProductOf(queries, rows);
  if (queries == 0 || rows == 0) return 0;
  // Query i sees min(i + 1, rows) rows.
  const int64_t rising = std::min(queries, rows);
  int64_t pairs =
      rising % 2 == 0 ? ProductOf(rising / 2, rising + 1) : ProductOf(rising, rising / 2 + 1);
  AddTo(pairs, ProductOf(queries - rising, rows));
  return std::max(pairs, rows);
}

double KernelSeconds(const Plan& plan, const Instruction& instruction, const KernelRates& rates) {
  const ValueIndex output = instruction.output;
  struct Visitor {
    const Plan& plan;
    const KernelRates& rates;
    ValueIndex output;

    double operator()(const LocalMatmul& matmul) const {
      return ProductSeconds(plan,
                            {.matmul = matmul,
                             .lhs = plan.values[matmul.lhs],
                             .rhs = plan.values[matmul.rhs],
                             .out = plan.values[output],
                             .products = static_cast<double>(ProductsOf(plan, matmul, output))},
                            rates);
    }
    double operator()(const LocalEpilogue& epilogue) const {
      const double bytes = BytesOfTile(plan, epilogue.input) + BytesOfTile(plan, output);
      const double elements =
          ElementsOfTile(plan, plan.values[output]) * ElementSecondsOf(epilogue.activation, rates);
      return std::max(bytes * StreamedByteOf(rates), elements);
    }
    double operator()(const LocalSlice& /*slice*/) const { return CopySeconds(output); }
    double operator()(const LocalCompute& compute) const {
      const bool copies_rows = std::holds_alternative<EmbeddingOp>(compute.op) ||
                               std::holds_alternative<SliceOp>(compute.op);
      if (copies_rows) return CopySeconds(output);
      if (const auto* const update = std::get_if<UpdateRowsOp>(&compute.op)) {
        return CopySeconds(update->update);
      }
      return ComputeSeconds(plan, compute.op, output, rates);
    }
    double operator()(const GroupCollective& /*collective*/) const { return 0; }
    double operator()(const MoveRegions& /*move*/) const { return 0; }
    double operator()(const GatherMatmul& fused) const {
      const LocalMatmul& matmul = fused.matmul;
      return FusedProductSeconds(
          plan,
          {.matmul = matmul,
           .lhs = fused.gathers_rhs ? plan.values[matmul.lhs] : fused.gathered,
           .rhs = fused.gathers_rhs ? fused.gathered : plan.values[matmul.rhs],
           .out = plan.values[output],
           .side = fused.gathers_rhs ? ProductSide::kRhs : ProductSide::kLhs,
           .dimension = fused.gather.dimension,
           .axes = fused.gather.axes},
          rates);
    }
    double operator()(const MatmulScatter& fused) const {
      const LocalMatmul& matmul = fused.matmul;
      return FusedProductSeconds(plan,
                                 {.matmul = matmul,
                                  .lhs = plan.values[matmul.lhs],
                                  .rhs = plan.values[matmul.rhs],
                                  .out = fused.product,
                                  .side = ProductSide::kOut,
                                  .dimension = fused.scatter.dimension,
                                  .axes = fused.scatter.axes},
                                 rates);
    }
    double operator()(const FusedCompute& fused) const {
      const double count = ElementsOfTile(plan, plan.values[output]);
      double bytes = BytesOfTile(plan, output);
      for (const ValueIndex input : fused.inputs) bytes += BytesOfTile(plan, input);
      double elements = 0;
      for (const FusedOp& each : fused.ops) {
        const auto* const map = std::get_if<MapOp>(&each.op);
        if (map != nullptr) elements += count * ElementSecondsOf(map->function, rates);
      }
      return std::max(bytes * StreamedByteOf(rates), elements);
    }

    double CopySeconds(ValueIndex copied) const {
      return 2 * BytesOfTile(plan, copied) * StreamedByteOf(rates);
    }
  };
  return std::visit(Visitor{.plan = plan, .rates = rates, .output = output}, instruction.kind);
}

bool AreAlike(const KernelRates& a, const KernelRates& b) {
  constexpr double kFactor = 1.5;
  const auto are_alike = [](double x, double y) {
    return x == y || std::max(x, y) < kFactor * std::min(x, y);
  };
  constexpr std::array kKinds = {ProductKind::kF32, ProductKind::kBf16, ProductKind::kF16,
                                 ProductKind::kI8, ProductKind::kI8Bf16};
  static_assert(kKinds.size() == kProductKinds);
  const bool products_are_alike = std::all_of(kKinds.begin(), kKinds.end(), [&](ProductKind kind) {
    return std::all_of(kProductRows.begin(), kProductRows.end(), [&](int64_t number) {
      const auto rows = static_cast<double>(number);
      return are_alike(SecondsOfWeight(kind, rows, a), SecondsOfWeight(kind, rows, b));
    });
  });
  // Differences of two measurements may be small, and then vary: they count with what they are
  // added to.
  const auto other_costs = [](const KernelRates& rates) {
    const auto of = [&rates](KernelCost cost) { return rates.costs.Of(cost); };
    return std::array{ReadByteOf(rates),
                      ReadByteOf(rates) + of(KernelCost::kPlainByte),
                      StreamedByteOf(rates),
                      ProductStartOf(rates),
                      AttentionFlopOf(rates),
                      of(KernelCost::kTransposedElement),
                      of(KernelCost::kFunctionElement),
                      of(KernelCost::kGeluElement),
                      of(KernelCost::kNormElement),
                      of(KernelCost::kNormElement) + of(KernelCost::kHalfElement),
                      of(KernelCost::kSoftmaxElement),
                      of(KernelCost::kReducedElement)};
  };
  const auto of_a = other_costs(a);
  const auto of_b = other_costs(b);
  return a.may_overlap == b.may_overlap && a.may_overlap_parts == b.may_overlap_parts &&
         a.may_fuse_ops == b.may_fuse_ops && products_are_alike &&
         std::equal(of_a.begin(), of_a.end(), of_b.begin(), are_alike);
}

}  // namespace shardmesh
