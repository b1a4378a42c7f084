// The functions that computations apply to elements, by name.
#ifndef SHARDMESH_TENSOR_ELEMENTWISE_H_
#define SHARDMESH_TENSOR_ELEMENTWISE_H_

#include <cstdint>

namespace shardmesh {

// A function that is applied to each element of a matrix product, after the bias is added.
enum class Activation : uint8_t {
  kNone,
  kRelu,      // max(x, 0)
  kGelu,      // x/2 (1 + erf(x / sqrt 2)), exact
  kGeluTanh,  // approximation of kGelu by tanh
  kSilu,      // x / (1 + exp(-x))
};

// A function that combines the elements of all ranks into one element.
enum class Reduction : uint8_t {
  kSum,  // integers wrap
  kProduct,
  kMin,
  kMax,
  kMean,  // the sum times 1/n; not for integers
};

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_ELEMENTWISE_H_
