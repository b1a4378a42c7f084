// A function of elements, on blocks that fit into the nearest cache.
#ifndef SHARDMESH_WORKER_TENSOR_OP_ELEMENT_FUNCTION_H_
#define SHARDMESH_WORKER_TENSOR_OP_ELEMENT_FUNCTION_H_

#include <cstdint>
#include <optional>

#include "program/tensor_op.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"
#include "worker/tensor_op/map_loops.h"

namespace shardmesh::worker {

// Returns the size in bytes of an element of a type with whole bytes.
int64_t ElementBytes(Dtype dtype);

// A MapOp or a ConvertOp for inputs of one type. Immutable, hence safe to share between threads.
class ElementFunction {
 public:
  // Both require an op and a type of its inputs that ResultTypeOf accepts.
  ElementFunction(const MapOp& op, Dtype dtype);
  ElementFunction(const ConvertOp& op, Dtype dtype);

  // The type of the result.
  Dtype result() const { return result_; }
  // The time for an element on a slow CPU, in units of 20 ns: 1, or 64 for gelu of F64.
  int64_t cost() const { return cost_; }

  // Computes `count` elements, at most kFloatBlock. Reads `right` only for functions of two inputs.
  // Memory is aligned to its elements. `out` may be `left` or `right`, and overlaps them in no
  // other way. The bits of an element depend on nothing but the elements that it is computed from.
  void Apply(const char* left, const char* right, int64_t count, char* out) const;

 private:
  enum class Kind { kCopy, kConvert, kUnary, kPair };

  void ApplyUnary(const char* in, int64_t count, char* out) const;
  void ApplyPair(const char* left, const char* right, int64_t count, char* out) const;

  Kind kind_;
  Dtype input_;
  Dtype result_;
  int64_t cost_ = 1;
  std::optional<Activation> activation_ = std::nullopt;  // instead of unary_
  MapFn unary_ = nullptr;                                // of F32 if the inputs have 16 bits
  CombineFn pair_ = nullptr;                             // of F32 if the inputs have 16 bits
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_TENSOR_OP_ELEMENT_FUNCTION_H_
