// Checks the results of a step against a recomputation in F64.
#ifndef SHARDMESH_CLIENT_INSPECT_VERIFY_STEP_H_
#define SHARDMESH_CLIENT_INSPECT_VERIFY_STEP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/inspect/bounded_tensor.h"
#include "client/inspect/operand_elements.h"
#include "client/inspect/reference_collective.h"
#include "client/inspect/reference_program.h"
#include "client/mesh_client.h"
#include "client/types/call_options.h"
#include "client/types/step.h"
#include "program/program.h"
#include "program/tensor_op.h"
#include "sharding/mesh.h"

namespace shardmesh::client {

struct VerifyOptions {
  // The elements of a product that are recomputed, at least 1. They are those of some rows and some
  // columns; the first and the last of both are among them.
  int64_t samples = 64;
  uint64_t seed = 1;  // of the choice of rows and columns
  // As ExecuteCall::mesh_id: the mesh of a step without arrays among its operands; empty: default.
  std::string mesh_id = {};
};

// The comparison of one result with its recomputation.
struct VerifiedResult {
  std::string what = {};     // such as `output 0` or `the new elements of operand 2`
  int64_t checked = 0;       // elements that were compared
  int64_t undetermined = 0;  // elements for whose error no bound is known; not compared
  int64_t outside = 0;       // compared elements whose error exceeds its bound
  double largest_error = 0;  // of the compared elements, unless one is infinite or a NaN
  double bound = 0;          // of the error of that element
  // The first element whose error exceeds its bound.
  struct Element {
    std::vector<int64_t> index;
    double element = 0;   // as the workers have computed it
    double expected = 0;  // recomputed, and not rounded to the type of the result
    double bound = 0;
  };
  std::optional<Element> first_outside = std::nullopt;
};

// Verifies one step. A program of one product, perhaps with reshards of its result, is recomputed
// at sampled elements: the client gets only the rows and columns that they need. Other programs are
// recomputed as a whole, and all elements are compared. The bound of each error is that of a
// running error analysis; reference_ops.h says of which. A program of one collective, perhaps with
// reshards of its result, is recomputed on the tiles of all devices.
//
// Operands may be partial sums. A result that holds partial sums is compared as their sum, which
// may differ by the roundings of each; that of a collective, each partial sum by itself.
//
// Example:
//   auto verifier = StepVerifier::Create(client, program, operands);
//   auto result = client->compute().Execute(
//       {.work = program, .operands = verifier->operands()});
//   auto verified = verifier->Verify(*result);
//   if (verified.ok()) status = CheckVerified(*verified);
//
// Not thread-safe. The client must outlive the object.
class StepVerifier {
 public:
  // Call it before the step. Unless the program is one product, gets the elements of the operands,
  // as state is before the step: no other step may update it until this one has ended.
  //
  // If the program has a symbolic dimension, verifies that of the operands' length. Also errors of
  // ProgramOfTypes.
  // INVALID_ARGUMENT (LIMIT_EXCEEDED): the program is too large; see CheckReferenceSize.
  // UNIMPLEMENTED (NOT_AVAILABLE): the program has a collective among other ops, or an element type
  // that is not verified. Also errors of ArrayClient::DescribeArray and ArrayClient::Gather.
  static absl::StatusOr<StepVerifier> Create(MeshClient* client, const Program& program,
                                             absl::Span<const Operand> operands,
                                             const VerifyOptions& verify_options = {},
                                             const CallOptions& options = {});

  // The same for a step of a layer: its program is that of ProgramOfLayer. Also errors of
  // ProgramOfLayer. The operands are those of LinearLayerCall::operands.
  static absl::StatusOr<StepVerifier> CreateForLayer(MeshClient* client,
                                                     const LinearLayerCall& call,
                                                     const VerifyOptions& verify_options = {},
                                                     const CallOptions& options = {});

  // The operands of the step, with the arrays by their ids: a name may mean another array soon.
  const std::vector<Operand>& operands() const { return operands_; }

  // Compares the results of the step, which exist still, and what it has made of state. Errors are
  // those of ArrayClient::Gather, and DATA_LOSS if the step has another number of results, or one
  // has another type or shape than it should have; not that elements are wrong.
  absl::StatusOr<std::vector<VerifiedResult>> Verify(const StepResult& result,
                                                     const CallOptions& options = {}) const;

 private:
  StepVerifier() = default;

  // Sets operands_, known_, and the first of types_.
  absl::Status Find(absl::Span<const Operand> operands, const CallOptions& options);
  // Returns the mesh of the operands; without arrays among them, that of the options.
  absl::StatusOr<Mesh> MeshOfStep(const CallOptions& options) const;
  // Gets what is needed before the step.
  absl::Status Prepare(const Program& program, const CallOptions& options);
  absl::Status PrepareCollective(const CollectiveOp& op, const CallOptions& options);
  absl::StatusOr<VerifiedResult> VerifyProduct(const StepResult& result,
                                               const CallOptions& options) const;
  absl::StatusOr<std::vector<VerifiedResult>> VerifyCollective(const StepResult& result,
                                                               const CallOptions& options) const;

  MeshClient* client_ = nullptr;
  Program program_;
  VerifyOptions verify_options_;
  std::vector<Operand> operands_;
  std::vector<KnownOperand> known_;          // the same operands
  std::vector<TensorType> types_;            // of all values
  std::optional<ReferenceProduct> product_;  // if the program is one product
  std::optional<CollectiveOp> collective_;   // if the program is one collective
  LaidOutTensor input_;                      // of the collective
  std::vector<BoundedTensorPtr> elements_;   // of the operands, otherwise
};

// Returns OK if no compared element is beyond its bound. Otherwise DATA_LOSS; names the first such
// element, what the workers have computed, what was expected, and the bound. UNIMPLEMENTED
// (NOT_AVAILABLE): there are elements, and no bound is known for any of them.
absl::Status CheckVerified(absl::Span<const VerifiedResult> results);

// Compares all elements of a result with what was expected. Both have one shape. The bound of an
// error is the sum of the bounds of both.
VerifiedResult CompareElements(std::string what, const BoundedTensor& elements,
                               const BoundedTensor& expected);

// Returns `count` different numbers of [0, total), or all if there are not more, in rising order.
// The first and the last number are among them if count is at least 2. Exposed for tests.
std::vector<int64_t> SampleIndices(int64_t total, int64_t count, uint64_t seed);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_INSPECT_VERIFY_STEP_H_
