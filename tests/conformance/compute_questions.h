// Questions about the results of products and linear layers.
#ifndef SHARDMESH_TESTS_CONFORMANCE_COMPUTE_QUESTIONS_H_
#define SHARDMESH_TESTS_CONFORMANCE_COMPUTE_QUESTIONS_H_

#include "tests/conformance/question.h"

namespace shardmesh::conformance {

// Adds matmul and linear_forward. The library lowers and plans each case, and the devices of the
// plan's mesh are simulated in this process. A linear layer is run whole on one device, and in
// every tensor-parallel layout over two devices whose sizes divide; all results must be equal.
void AddComputeQuestions(Questions* questions);

}  // namespace shardmesh::conformance

#endif  // SHARDMESH_TESTS_CONFORMANCE_COMPUTE_QUESTIONS_H_
