// Checks the results of steps that run one after the other against a recomputation in F64.
#ifndef SHARDMESH_CLIENT_INSPECT_VERIFY_SERIES_H_
#define SHARDMESH_CLIENT_INSPECT_VERIFY_SERIES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/inspect/bounded_tensor.h"
#include "client/inspect/operand_elements.h"
#include "client/inspect/verify_step.h"
#include "client/mesh_client.h"
#include "client/types/call_options.h"
#include "client/types/step.h"
#include "client/types/step_observer.h"
#include "program/program.h"
#include "tensor/dtype.h"

namespace shardmesh::client {

// Verifies steps that run in order, such as those of a StepStream. Each is recomputed as a whole,
// and all elements of its results are compared.
//
// Arrays that no step of the series updates are got once. State is got before the first step that
// reads it. After a step, its state is what the recomputation has made of it, with the bounds of
// its errors. Once no step is open, the state on the workers is compared with that, and then taken
// in its place: the errors of steps add up only while several are open. So steps that run back to
// back are verified by their results, and by the state that the last of them has left.
//
// Bounds hold for the worst case, and grow by an order of magnitude with each layer of a model:
// after some layers, they say nothing. `uses_tolerance`: an element of a floating-point value of
// the program may then differ from the recomputation by at most its bound or ToleranceOf, whichever
// is less. That is no proof: an element within the tolerance may be wrong, and one beyond it may be
// due to rounding.
//
// Example: a stream with at most four steps open.
//   SeriesVerifier verifier(client);
//   status = verifier.Begin(program, call.operands);  // then (*stream)->Send(call)
//   ...
//   auto verified = verifier.End(*step->result);  // of the first open step
//   if (verified.ok()) status = CheckVerified(*verified);
//
// No other step may update the state meanwhile, and names of operands must not move. If a step
// fails, the object is of no use any more. Not thread-safe. The client must outlive the object.
class SeriesVerifier {
 public:
  explicit SeriesVerifier(MeshClient* client, bool uses_tolerance = false)
      : client_(client), uses_tolerance_(uses_tolerance) {}

  // Recomputes the next step. Call it before the step is sent. If the program has a symbolic
  // dimension, recomputes that of the operands' length. Also errors of ProgramOfTypes.
  //
  // INVALID_ARGUMENT (LIMIT_EXCEEDED): the program is too large; see CheckReferenceSize.
  // UNIMPLEMENTED (NOT_AVAILABLE): the program has a collective, or an element type that is not
  // verified. Also errors of ArrayClient::DescribeArray and ArrayClient::Gather.
  absl::Status Begin(const Program& program, absl::Span<const Operand> operands,
                     const CallOptions& options = {});

  // Compares the results of the first open step, which has committed, and the state if no other
  // step is open. The comparisons of results come first. FAILED_PRECONDITION: no step is open.
  // INVALID_ARGUMENT (BAD_FIELD): the step has another number of results, or one of another
  // type or shape. Also errors of ArrayClient::Gather; that elements are wrong is none.
  absl::StatusOr<std::vector<VerifiedResult>> End(const StepResult& result,
                                                  const CallOptions& options = {});

  // The number of steps that have begun and not ended.
  size_t open_steps() const { return open_.size(); }

 private:
  // The elements of an array as a step has them, and how they are got.
  struct Held {
    KnownOperand known;
    BoundedTensorPtr elements;
    bool is_moved = false;  // a step has updated it since its elements were got
  };

  // Returns the place of the operand's array in held_; gets its elements if it is not there.
  absl::StatusOr<std::string> Hold(const Operand& operand, const CallOptions& options);
  absl::StatusOr<std::vector<VerifiedResult>> VerifyState(const CallOptions& options);

  MeshClient* const client_;
  const bool uses_tolerance_;
  double tolerance_ = 0;                            // that of the least precise operand so far
  std::map<std::string, Held> held_;                // by id of the array
  std::map<std::string, std::string> ids_;          // of arrays that are given by name
  std::deque<std::vector<BoundedTensorPtr>> open_;  // expected results, by step
};

// Returns how far an element of a model's step may be from a recomputation in F64, relative to the
// largest element of its tensor, if weights, state and inputs have at least the precision of this
// floating-point type: 0.001 for F64 and F32, 0.01 for F16, 0.1 for BF16.
double ToleranceOf(Dtype dtype);

// Verifies all steps that it sees, with the tolerance. Fails with CheckVerified at the first step
// with a wrong element.
class VerifyingObserver final : public StepObserver {
 public:
  explicit VerifyingObserver(MeshClient* client) : verifier_(client, /*uses_tolerance=*/true) {}

  absl::Status BeforeStep(const Program& program, absl::Span<const Operand> operands,
                          const CallOptions& options) override {
    return verifier_.Begin(program, operands, options);
  }
  absl::Status AfterStep(const StepResult& result, const CallOptions& options) override;

  int64_t steps() const { return steps_; }
  // The comparisons of all steps, added up: those of each result, and those of all state.
  const std::vector<VerifiedResult>& verified() const { return verified_; }

 private:
  SeriesVerifier verifier_;
  int64_t steps_ = 0;
  std::vector<VerifiedResult> verified_;
};

// Adds a comparison to `total`: its counts, and its error if that is larger. Exposed for tests.
void AddVerified(const VerifiedResult& step, VerifiedResult* total);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_INSPECT_VERIFY_SERIES_H_
