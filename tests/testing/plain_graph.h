// Graphs computed plainly: one op after the other, whole tensors, loops in double. Tests compare
// graphs of models with plain computations by it.
#ifndef SHARDMESH_TESTS_TESTING_PLAIN_GRAPH_H_
#define SHARDMESH_TESTS_TESTING_PLAIN_GRAPH_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "program/graph/graph.h"
#include "sharding/shape.h"

namespace shardmesh::test {

// A tensor of any element type, row-major.
struct PlainValue {
  Shape shape;
  std::vector<double> elements;

  double& at(size_t i) { return elements[i]; }
  double at(size_t i) const { return elements[i]; }
};

// Tensors by the names of a graph's operands or outputs.
using PlainValues = std::map<std::string, PlainValue>;

// Runs the graph once. `operands` has all its operands; those that are state are changed. Returns
// the outputs. Throws std::runtime_error for an op that no model has: products but LinearOp,
// collectives, reshards, softmax, transpose, concatenate, and functions but add and multiply.
PlainValues RunPlainly(const Graph& graph, PlainValues& operands);

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_PLAIN_GRAPH_H_
