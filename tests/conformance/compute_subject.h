// Questions about the results of products and linear layers, and the interface that answers them.
#ifndef SHARDMESH_TESTS_CONFORMANCE_COMPUTE_SUBJECT_H_
#define SHARDMESH_TESTS_CONFORMANCE_COMPUTE_SUBJECT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/mesh_client.h"
#include "program/graph/layer_program.h"
#include "program/program.h"
#include "program/step_plan.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "tests/conformance/question.h"

namespace shardmesh::conformance {

class ComputeSubject {
 public:
  virtual ~ComputeSubject() = default;

  struct Tensor {
    ValueDescriptor value;  // its type, shape and layout
    std::vector<double> elements;
  };
  struct Result {
    Shape shape;
    std::vector<double> elements;
    Tiling tiling;
  };
  // Runs a program of one output on a mesh. The elements of the operands are exact in their types.
  // Those of the result may be more exact than its type.
  virtual absl::StatusOr<Result> Run(const Program& program, absl::Span<const Tensor> operands,
                                     const Mesh& mesh) const = 0;
  // Runs a layer of one output; `operands` as ProgramOfLayer takes them. Unless overridden, runs
  // the program of ProgramOfLayer.
  virtual absl::StatusOr<Result> RunLinear(const LayerCall& layer,
                                           absl::Span<const Tensor> operands,
                                           const Mesh& mesh) const;
};

// Plans each program, and simulates the devices of the mesh in this process.
std::shared_ptr<const ComputeSubject> LibraryCompute();
// Runs each program, and each layer by the request for it, on workers of the client's cluster. A
// mesh of n devices has the first n of `workers`, which are identities. `client` outlives the
// subject, which is not thread-safe.
std::shared_ptr<const ComputeSubject> WireCompute(client::MeshClient& client,
                                                  std::vector<std::string> workers);

// Adds matmul and linear_forward. A linear layer is run whole on one device, and in every
// tensor-parallel layout over two devices whose sizes divide; all results must be equal.
void AddComputeQuestions(std::shared_ptr<const ComputeSubject> subject, Questions* questions);

}  // namespace shardmesh::conformance

#endif  // SHARDMESH_TESTS_CONFORMANCE_COMPUTE_SUBJECT_H_
