// Random programs with operands in random layouts, and the elements of these.
#ifndef SHARDMESH_TESTS_UNIT_PROGRAM_RANDOM_PROGRAMS_H_
#define SHARDMESH_TESTS_UNIT_PROGRAM_RANDOM_PROGRAMS_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "program/program.h"
#include "program/step_plan.h"
#include "sharding/mesh.h"
#include "tensor/literal.h"

namespace shardmesh {

struct RandomProgram {
  Mesh mesh;
  Program program = {};
  std::vector<ValueDescriptor> operands = {};
  std::vector<Literal> contents = {};  // the whole tensors of the operands
  // All results are integers that their types have exactly, whatever the order of sums.
  bool is_exact = false;

  // Returns the mesh, the operands and the names of the ops.
  std::string ToString() const;
};

// Returns a mesh of one to three axes of one to four devices, of at most `most` devices together.
Mesh RandomMesh(int64_t most, std::mt19937& random);

// Returns a program of one matmul or linear layer, perhaps with a layout for its result. Extents
// are at most 12, and some are 0. Operands are in any layout, with unreduced axes, uneven and empty
// parts. Either operand may be transposed, have batch dimensions and be broadcast. Elements are of
// F32, BF16 or F16; a weight may be of I8 with scales.
RandomProgram RandomProduct(const Mesh& mesh, std::mt19937& random);

struct RandomGraphOptions {
  // Whether axes may be unreduced in operands.
  bool has_partial_sums = true;
  // Whether there may be collectives. They are all-gathers, which change no elements.
  bool has_collectives = true;
  int64_t most_ops = 8;
};

// Returns a graph of some ops, of all other kinds, that read each other's results. It has one to
// three outputs. Some graphs update state.
RandomProgram RandomGraph(const Mesh& mesh, const RandomGraphOptions& options,
                          std::mt19937& random);

}  // namespace shardmesh

#endif  // SHARDMESH_TESTS_UNIT_PROGRAM_RANDOM_PROGRAMS_H_
