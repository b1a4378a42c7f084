// Counts the operations and bytes of local instructions.
#include "program/kernel_time.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <variant>
#include <vector>

#include "program/product_layout.h"
#include "program/tensor_op.h"
#include "program/value_layout.h"
#include "sharding/shape.h"

namespace shardmesh {
namespace {

// Returns the time in which a device reads or writes the tiles of a value.
double BytesSeconds(const Plan& plan, const ValueDescriptor& value, const KernelRates& rates) {
  return rates.seconds_per_byte * static_cast<double>(TileBytes(plan.mesh, value));
}

double BytesSeconds(const Plan& plan, ValueIndex value, const KernelRates& rates) {
  return BytesSeconds(plan, plan.values[value], rates);
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
  const double flops = 2 * static_cast<double>(lhs[lhs.size() - (matmul.transpose_lhs ? 2 : 1)]) *
                       static_cast<double>(TileElements(plan.mesh, product.out));
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
  double lhs_reads = 1;
  double rhs_reads = 1;
  double out_writes = 1;
  if (is_columns) {
    lhs_reads = parts;
    if (!is_out) out_writes += 2;
    if (is_out && !matmul.transpose_rhs) rhs_reads += 2;
  } else if (!keeps_matrices) {
    rhs_reads = parts;
  }
  const double bytes = lhs_reads * BytesSeconds(plan, product.lhs, rates) +
                       rhs_reads * BytesSeconds(plan, product.rhs, rates) +
                       out_writes * BytesSeconds(plan, product.out, rates);
  int64_t products = ProductsOf(rhs, out, matmul.transpose_lhs);
  if (!is_columns && is_one_rhs && !matmul.transpose_lhs) {
    // The rows of a place follow one another only behind the dimensions before.
    for (int64_t dim = 0; dim < product.dimension; ++dim) {
      products = ProductOf(products, split[static_cast<size_t>(dim)]);
    }
  }
  return std::max(flops / rates.flops_per_second, bytes) +
         rates.seconds_per_product * static_cast<double>(products) * (keeps_matrices ? 1 : parts);
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

double KernelSeconds(const Plan& plan, const Instruction& instruction, const KernelRates& rates) {
  const ValueIndex output = instruction.output;
  struct Visitor {
    const Plan& plan;
    const KernelRates& rates;
    ValueIndex output;

    double operator()(const LocalMatmul& matmul) const {
      const Shape lhs = TileShape(plan.mesh, plan.values[matmul.lhs]);
      const double contracted =
          static_cast<double>(lhs[lhs.size() - (matmul.transpose_lhs ? 2 : 1)]);
      const double flops =
          2 * contracted * static_cast<double>(TileElements(plan.mesh, plan.values[output]));
      const double bytes = BytesSeconds(plan, matmul.lhs, rates) +
                           BytesSeconds(plan, matmul.rhs, rates) +
                           BytesSeconds(plan, output, rates);
      return std::max(flops / rates.flops_per_second, bytes) +
             rates.seconds_per_product * static_cast<double>(ProductsOf(plan, matmul, output));
    }
    double operator()(const LocalEpilogue& epilogue) const {
      return BytesSeconds(plan, epilogue.input, rates) + BytesSeconds(plan, output, rates);
    }
    double operator()(const LocalSlice& /*slice*/) const {
      return 2 * BytesSeconds(plan, output, rates);
    }
    double operator()(const LocalCompute& compute) const {
      const bool copies_rows = std::holds_alternative<EmbeddingOp>(compute.op) ||
                               std::holds_alternative<SliceOp>(compute.op);
      if (copies_rows) return 2 * BytesSeconds(plan, output, rates);
      if (const auto* const update = std::get_if<UpdateRowsOp>(&compute.op)) {
        return 2 * BytesSeconds(plan, update->update, rates);
      }
      double bytes = BytesSeconds(plan, output, rates);
      for (const ValueIndex input : InputsOf(compute.op)) {
        bytes += BytesSeconds(plan, input, rates);
      }
      const double flops = static_cast<double>(FlopsOf(plan, compute, output));
      return std::max(flops / rates.flops_per_second, bytes);
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
  };
  return std::visit(Visitor{.plan = plan, .rates = rates, .output = output}, instruction.kind);
}

bool AreAlike(const KernelRates& a, const KernelRates& b) {
  constexpr double kFactor = 1.5;
  const auto are_alike = [](double x, double y) {
    return std::max(x, y) < kFactor * std::min(x, y);
  };
  return a.may_overlap == b.may_overlap && a.may_overlap_parts == b.may_overlap_parts &&
         are_alike(a.flops_per_second, b.flops_per_second) &&
         are_alike(a.seconds_per_byte, b.seconds_per_byte) &&
         are_alike(a.seconds_per_product, b.seconds_per_product);
}

}  // namespace shardmesh
