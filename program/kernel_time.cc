// Counts the operations and bytes of local instructions.
#include "program/kernel_time.h"

#include <algorithm>
#include <variant>
#include <vector>

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

// Returns the time of a product that a device computes in as many products of rows as a group along
// `axes` has places.
double FusedProductSeconds(const Plan& plan, const LocalMatmul& matmul, const ValueDescriptor& lhs,
                           const ValueDescriptor& out, const Axes& axes, const KernelRates& rates) {
  const auto parts = static_cast<double>(AxesSize(plan.mesh, axes));
  const double flops = 2 * static_cast<double>(TileShape(plan.mesh, lhs).back()) *
                       static_cast<double>(TileElements(plan.mesh, out));
  const double bytes = BytesSeconds(plan, lhs, rates) + BytesSeconds(plan, out, rates) +
                       parts * BytesSeconds(plan, matmul.rhs, rates);
  return std::max(flops / rates.flops_per_second, bytes) + parts * rates.seconds_per_product;
}

}  // namespace

int64_t ProductsOf(const Plan& plan, const LocalMatmul& matmul, ValueIndex output) {
  const Shape rhs = TileShape(plan.mesh, plan.values[matmul.rhs]);
  const Shape out = TileShape(plan.mesh, plan.values[output]);
  const bool is_batch =
      std::any_of(rhs.begin(), rhs.end() - 2, [](int64_t extent) { return extent != 1; });
  if (!is_batch && !matmul.transpose_lhs) return 1;
  int64_t products = 1;
  for (size_t dim = 0; dim + 2 < out.size(); ++dim) products = ProductOf(products, out[dim]);
  return products;
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
      return FusedProductSeconds(plan, fused.matmul, fused.gathered, plan.values[output],
                                 fused.gather.axes, rates);
    }
    double operator()(const MatmulScatter& fused) const {
      return FusedProductSeconds(plan, fused.matmul, plan.values[fused.matmul.lhs], fused.product,
                                 fused.scatter.axes, rates);
    }
    double operator()(const FusedCompute& fused) const {
      double bytes = BytesSeconds(plan, output, rates);
      for (const ValueIndex input : fused.inputs) bytes += BytesSeconds(plan, input, rates);
      return bytes;
    }
  };
  return std::visit(Visitor{.plan = plan, .rates = rates, .output = output}, instruction.kind);
}

bool AreAlike(const KernelRates& a, const KernelRates& b) {
  constexpr double kFactor = 1.5;
  const auto are_alike = [](double x, double y) {
    return std::max(x, y) < kFactor * std::min(x, y);
  };
  return a.may_overlap == b.may_overlap && a.may_fuse_ops == b.may_fuse_ops &&
         are_alike(a.flops_per_second, b.flops_per_second) &&
         are_alike(a.seconds_per_byte, b.seconds_per_byte) &&
         are_alike(a.seconds_per_product, b.seconds_per_product);
}

}  // namespace shardmesh
