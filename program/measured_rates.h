// The speeds that workers measure: of the links between them, and of their kernels.
#ifndef SHARDMESH_PROGRAM_MEASURED_RATES_H_
#define SHARDMESH_PROGRAM_MEASURED_RATES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace shardmesh {

// The speed of the link between two workers, measured by one of them.
struct MeasuredLink {
  std::string peer = {};  // identity of the other worker
  uint64_t peer_incarnation = 0;
  bool shares_memory = false;  // if false, data goes over the stream between the two workers
  // Half the time of a round trip in which each worker sends 8 bytes and waits for the peer's 8
  // bytes.
  absl::Duration latency = absl::ZeroDuration();
  // The rate in each direction while both workers send a large message and copy the message that
  // they receive. Finite, above 0.
  double bytes_per_second = 1;
  absl::Time measured = absl::InfinitePast();

  friend bool operator==(const MeasuredLink&, const MeasuredLink&) = default;
};

// The costs of a worker's kernels. Each is the time of one unit, on all threads of the worker
// together. KernelCost.Kind in attach_service.proto has the same order, after the products.
enum class KernelCost : uint8_t {
  kPlainByte,          // of a right matrix that is not packed before
  kProductStart,       // to start one product of matrices
  kReadByte,           // read from memory, not from a cache
  kStreamedByte,       // read or written by a loop over elements
  kTransposedElement,  // of a transposition of the last two dimensions
  kAttentionFlop,      // of the two products in attention
  kFunctionElement,    // of functions such as exp and silu
  kGeluElement,
  kNormElement,
  kSoftmaxElement,
  kReducedElement,  // of the input of a sum
  kHalfElement,     // to read and write it as BF16 and not as F32, in a norm
};
inline constexpr size_t kKernelCosts = static_cast<size_t>(KernelCost::kHalfElement) + 1;

// The types of a product by packed weights. KernelCost.Kind begins with these.
enum class ProductKind : uint8_t {
  kF32,
  kBf16,
  kF16,
  kI8,      // weights of I8, inputs of F32 or F16
  kI8Bf16,  // weights of I8, inputs of BF16
};
inline constexpr size_t kProductKinds = static_cast<size_t>(ProductKind::kI8Bf16) + 1;

// The numbers of rows for which workers measure products, rising. Kernels compute rows in blocks,
// and read weights in another way where there are few rows: the time does not rise evenly.
inline constexpr std::array<int64_t, 5> kProductRows = {1, 4, 16, 32, 128};
// The time of a product for each element of its weights, by kProductRows. 0: not measured.
using ProductCosts = std::array<double, kProductRows.size()>;

struct KernelCosts {
  std::array<double, kKernelCosts> seconds = {};          // by KernelCost; 0: not measured
  std::array<ProductCosts, kProductKinds> products = {};  // by ProductKind

  double Of(KernelCost cost) const { return seconds[static_cast<size_t>(cost)]; }
  double& operator[](KernelCost cost) { return seconds[static_cast<size_t>(cost)]; }
  const ProductCosts& Of(ProductKind kind) const { return products[static_cast<size_t>(kind)]; }
  ProductCosts& operator[](ProductKind kind) { return products[static_cast<size_t>(kind)]; }

  friend bool operator==(const KernelCosts&, const KernelCosts&) = default;
};

// The speed of a worker's kernels, as it measured them at its start.
struct MeasuredKernels {
  double f32_flops_per_second = 0;  // of products of F32; 0: not measured
  KernelCosts costs = {};

  friend bool operator==(const MeasuredKernels&, const MeasuredKernels&) = default;
};

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_MEASURED_RATES_H_
