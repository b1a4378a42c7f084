// Programs with a symbolic dimension: their checks, and the programs of one length.
#ifndef SHARDMESH_PROGRAM_GRAPH_SYMBOLIC_PROGRAM_H_
#define SHARDMESH_PROGRAM_GRAPH_SYMBOLIC_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "program/program.h"
#include "program/tensor_op.h"
#include "sharding/shape.h"

namespace shardmesh {

// Errors of the checks are INVALID_ARGUMENT (BAD_FIELD) and say what is wrong with the value.
//
// Checks name, range and multiple.
absl::Status CheckSymbolicDimension(const SymbolicDimension& symbol);
// Checks the indices and the sizes of factors and offsets. `size` is the number of entries of the
// list whose entries the numbers replace; each entry at most once.
absl::Status CheckSymbolicNumbers(absl::Span<const SymbolicNumber> numbers, size_t size);
// The same for all symbolic numbers of an op.
absl::Status CheckSymbolicNumbersOf(const ProgramOp& op);
// Checks the symbolic dimension, extents and numbers of a program. If it has a symbolic dimension,
// an operand must have it. Without one, no extent and no number may be symbolic. The dimensions of
// operands are checked by LengthOf, since a program does not know their shapes.
absl::Status CheckSymbolicProgram(const Program& program);

// Returns OK if a run may have this length. SHAPE_MISMATCH states length and range.
absl::Status CheckLength(const SymbolicDimension& symbol, int64_t length);

// Returns lengths at which shapes are checked, in rising order: the first five, and the last one.
// The last entry is `symbol.max`.
//
// Shapes that fit at these lengths fit at all others. Each extent is factor * length + offset:
//   - ranges of slices and counts are inequalities of such extents, which hold between two lengths
//     at which they hold;
//   - two equal extents are equal at two lengths, and then at all. Broadcasting also accepts an
//     extent of 1, so one of three equalities must hold. Each holds at one length, or at all: four
//     lengths decide;
//   - the number of elements is a product of extents. Two products of at most four symbolic extents
//     that are equal at five lengths are equal at all. A divisor that divides a product of at most
//     four at five successive lengths divides it at all.
// A product of more symbolic extents, and an extent of -1 beside symbolic ones, may not fit at a
// length in between. A run of that length is then refused.
std::vector<int64_t> LengthsToCheck(const SymbolicDimension& symbol);

// All following functions require what CheckSymbolicProgram checks.

constexpr int64_t ValueAt(const SymbolicNumber& number, int64_t length) {
  return number.factor * length + number.offset;
}
// Returns the shape with the entries that `numbers` replace. Requires that it has these entries.
Shape ShapeAt(Shape shape, absl::Span<const SymbolicNumber> numbers, int64_t length);
// Returns whether the op has symbolic numbers.
bool IsSymbolic(const ProgramOp& op);
// Returns the op without symbolic numbers.
ProgramOp OpAt(ProgramOp op, int64_t length);
// Returns the program without symbolic dimension, extents and numbers.
Program ProgramAt(Program program, int64_t length);
// Returns the symbolic extents of one operand.
std::vector<SymbolicNumber> ExtentsOf(const Program& program, ValueIndex operand);

// Returns the length that follows from the shapes of the operands. `shape_of` returns the shape of
// an operand, or null if it is not known. Requires a symbolic dimension.
//
// INVALID_ARGUMENT (SHAPE_MISMATCH): an operand lacks a dimension; an extent gives no whole length;
// two extents give two lengths (the message has both); the length is out of range; no shape is
// known. `name_of` returns the name of an operand for messages.
absl::StatusOr<int64_t> LengthOf(const Program& program,
                                 const std::function<const Shape*(ValueIndex)>& shape_of,
                                 const std::function<std::string(ValueIndex)>& name_of);
// Names the operands by their numbers: `operand 2`.
absl::StatusOr<int64_t> LengthOf(const Program& program,
                                 const std::function<const Shape*(ValueIndex)>& shape_of);

// Returns the number that has these values at these lengths, with the factor 0 if all are equal;
// nullopt if there is none. Both lists have the same size, at least 1.
std::optional<SymbolicNumber> NumberThatHas(int64_t index, absl::Span<const int64_t> lengths,
                                            absl::Span<const int64_t> values);

// Returns text such as `seq`, `2*seq + 1`, `seq - 1`.
std::string SymbolicNumberText(const SymbolicNumber& number, std::string_view name);
// Returns text such as `(seq, 64)`.
std::string SymbolicShapeText(const Shape& shape, absl::Span<const SymbolicNumber> numbers,
                              std::string_view name);
// Returns text such as `seq from 1 to 512` or `seq from 16 to 512, a multiple of 16`.
std::string SymbolicDimensionText(const SymbolicDimension& symbol);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_GRAPH_SYMBOLIC_PROGRAM_H_
