// Questions about linear layers and their answers, as types of the client library.
#ifndef SHARDMESH_CLIENT_TYPES_LAYER_QUESTIONS_H_
#define SHARDMESH_CLIENT_TYPES_LAYER_QUESTIONS_H_

#include <optional>
#include <string>

#include "client/types/layout_questions.h"
#include "sharding/compatibility.h"
#include "sharding/layout/parallel_linear.h"
#include "tensor/dtype.h"

namespace shardmesh::client {

// Asks for the spec of a layer's or matmul's result, given the layouts of the operands.
struct OutputSpecQuestion {
  enum class Kind {
    kMatmul,   // the result of lhs @ rhs; see GetMatmulOutputSharding
    kLinear,   // the output of a tensor-parallel layer; see GetOutputPartitionSpec
    kOperand,  // the spec of lhs itself; see GetSharding
  };
  Kind kind = Kind::kMatmul;
  ArrayLayout lhs = {};
  ArrayLayout rhs = {};          // unused by kOperand
  std::string axis_name = "tp";  // the mesh axis of the layer; only for kLinear
};

// Asks whether a tensor-parallel layer's settings are valid. See CheckTensorParallelConfig.
struct TensorParallelQuestion {
  // Nullopt means the mesh of the layer's context, `context_mesh`.
  std::optional<MeshSelector> mesh = std::nullopt;
  std::string axis_name = "tp";
  // The layer's method of multiplication. Nullopt: the settings are returned unchecked.
  std::optional<std::string> matmul_method = std::nullopt;
  bool reduce_output = false;
  bool reduce_scatter_output = false;
  // The mesh of the layer's context; nullopt if the context has none.
  std::optional<MeshSelector> context_mesh = std::nullopt;
  Compatibility compatibility = Compatibility::kDefault;
};

// Asks for a linear layer's parameters. See MakeParallelLinear and ParameterDtype.
struct LinearLayerQuestion {
  ParallelLinearOptions options;
  Dtype dtype = Dtype::kF32;
  Compatibility compatibility = Compatibility::kDefault;
};

struct LinearLayer {
  ParallelLinear facts;
  Dtype dtype = Dtype::kF32;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_LAYER_QUESTIONS_H_
