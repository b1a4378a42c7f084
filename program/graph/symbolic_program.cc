// Checks of symbolic dimensions, and the programs of one length.
#include "program/graph/symbolic_program.h"

#include <algorithm>
#include <set>
#include <type_traits>
#include <utility>
#include <variant>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// The lengths of LengthsToCheck without the last one.
constexpr int64_t kFirstLengths = 5;

absl::Status BadSymbol(std::string_view field, std::string_view message) {
  return InvalidArgument(Reason::kBadField, message, {{fact::kField, field}});
}

// Calls `visit` with each list of symbolic numbers of the op and the number of entries of the list
// whose entries they replace. Stops at the first error.
template <typename Visit>
absl::Status ForEachNumbers(const ProgramOp& op, Visit visit) {
  const auto* const tensor = std::get_if<TensorOp>(&op);
  if (tensor == nullptr) return absl::OkStatus();
  if (const auto* const reshape = std::get_if<ReshapeOp>(tensor); reshape != nullptr) {
    return visit("symbolic_shape", reshape->symbolic_shape, reshape->shape.size());
  }
  if (const auto* const slice = std::get_if<SliceOp>(tensor); slice != nullptr) {
    SHARDMESH_RETURN_IF_ERROR(
        visit("symbolic_starts", slice->symbolic_starts, slice->starts.size()));
    return visit("symbolic_limits", slice->symbolic_limits, slice->limits.size());
  }
  return absl::OkStatus();
}

absl::Status CheckExtents(const Program& program) {
  std::set<std::pair<ValueIndex, int64_t>> seen;
  for (size_t i = 0; i < program.symbolic_extents.size(); ++i) {
    const SymbolicExtent& each = program.symbolic_extents[i];
    const std::string field = StrCat("symbolic_extents[", i, "]");
    if (each.operand >= program.operand_count) {
      return BadSymbol(field,
                       StrCat("symbolic extent ", i, " is of value ", each.operand,
                              ", which is no operand; operands are below ", program.operand_count));
    }
    SHARDMESH_RETURN_IF_ERROR(
        WithContext(CheckSymbolicNumbers({&each.extent, 1}, static_cast<size_t>(kMaxRank)), field));
    if (each.extent.factor < 1) {
      return BadSymbol(field, StrCat("the factor of an extent of operand ", each.operand, " is ",
                                     each.extent.factor, "; it must be at least 1"));
    }
    if (!seen.emplace(each.operand, each.extent.index).second) {
      return BadSymbol(field, StrCat("dimension ", each.extent.index, " of operand ", each.operand,
                                     " has two symbolic extents"));
    }
  }
  return absl::OkStatus();
}

absl::Status Mismatch(std::string_view message, int64_t have, std::string_view need) {
  return InvalidArgument(Reason::kShapeMismatch, message,
                         {{fact::kHave, have}, {fact::kNeed, need}});
}

}  // namespace

absl::Status CheckSymbolicDimension(const SymbolicDimension& symbol) {
  if (symbol.name.empty() || symbol.name.size() > kMaxSymbolNameBytes) {
    return BadSymbol("symbol.name",
                     StrCat("the name of the symbolic dimension has ", symbol.name.size(),
                            " bytes; it must have 1 to ", kMaxSymbolNameBytes));
  }
  if (symbol.multiple < 1) {
    return BadSymbol("symbol.multiple", StrCat("the multiple of ", symbol.name, " is ",
                                               symbol.multiple, "; it must be at least 1"));
  }
  if (symbol.min < 0 || symbol.max < symbol.min || symbol.max > kMaxLength) {
    return BadSymbol("symbol.max",
                     StrCat("the range of ", symbol.name, " is ", symbol.min, " to ", symbol.max,
                            "; it must begin at 0 or above, and end at its begin or above, and at ",
                            kMaxLength, " or below"));
  }
  for (const int64_t end : {symbol.min, symbol.max}) {
    if (end % symbol.multiple == 0) continue;
    return BadSymbol("symbol.multiple",
                     StrCat("the range of ", symbol.name, " is ", symbol.min, " to ", symbol.max,
                            "; both ends must be multiples of ", symbol.multiple));
  }
  return absl::OkStatus();
}

absl::Status CheckSymbolicNumbers(absl::Span<const SymbolicNumber> numbers, size_t size) {
  std::set<int64_t> seen;
  for (const SymbolicNumber& number : numbers) {
    if (number.index < 0 || number.index >= static_cast<int64_t>(size)) {
      return BadSymbol(
          "index", StrCat("a symbolic number replaces entry ", number.index, "; there are ", size));
    }
    if (!seen.insert(number.index).second) {
      return BadSymbol("index", StrCat("two symbolic numbers replace entry ", number.index));
    }
    if (number.factor == 0 || number.factor > kMaxSymbolicFactor ||
        number.factor < -kMaxSymbolicFactor) {
      return BadSymbol(
          "factor", StrCat("the factor of the length is ", number.factor, "; it must be from 1 to ",
                           kMaxSymbolicFactor, " or the negative of that"));
    }
    if (number.offset > kMaxLength || number.offset < -kMaxLength) {
      return BadSymbol("offset", StrCat("the offset to the length is ", number.offset,
                                        "; it must be at most ", kMaxLength, " in magnitude"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSymbolicNumbersOf(const ProgramOp& op) {
  return ForEachNumbers(
      op, [](std::string_view field, const std::vector<SymbolicNumber>& numbers, size_t size) {
        return WithContext(CheckSymbolicNumbers(numbers, size), field);
      });
}

absl::Status CheckSymbolicProgram(const Program& program) {
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (!IsSymbolic(program.ops[i])) continue;
    const std::string op = StrCat("op ", i, " (", ProgramOpName(program.ops[i]), ")");
    if (!program.symbol.has_value()) {
      return BadSymbol("ops", StrCat(op,
                                     " depends on a length, and the program has no symbolic "
                                     "dimension"));
    }
    SHARDMESH_RETURN_IF_ERROR(WithContext(CheckSymbolicNumbersOf(program.ops[i]), op));
  }
  if (!program.symbol.has_value()) {
    if (program.symbolic_extents.empty()) return absl::OkStatus();
    return BadSymbol("symbolic_extents",
                     "operands have symbolic extents, and the program has no symbolic dimension");
  }
  SHARDMESH_RETURN_IF_ERROR(CheckSymbolicDimension(*program.symbol));
  if (program.symbolic_extents.empty()) {
    return BadSymbol("symbolic_extents",
                     StrCat("no operand has the symbolic dimension ", program.symbol->name,
                            "; the length of a run could not be known"));
  }
  return CheckExtents(program);
}

absl::Status CheckLength(const SymbolicDimension& symbol, int64_t length) {
  if (length >= symbol.min && length <= symbol.max && length % symbol.multiple == 0) {
    return absl::OkStatus();
  }
  return Mismatch(
      StrCat(symbol.name, " is ", length, "; the program is for ", SymbolicDimensionText(symbol)),
      length, SymbolicDimensionText(symbol));
}

std::vector<int64_t> LengthsToCheck(const SymbolicDimension& symbol) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < kFirstLengths; ++i) {
    // Does not overflow: neither number exceeds kMaxLength.
    const int64_t length = symbol.min + i * std::min(symbol.multiple, kMaxLength);
    if (length >= symbol.max) break;
    lengths.push_back(length);
  }
  lengths.push_back(symbol.max);
  return lengths;
}

Shape ShapeAt(Shape shape, absl::Span<const SymbolicNumber> numbers, int64_t length) {
  for (const SymbolicNumber& number : numbers) {
    shape[static_cast<size_t>(number.index)] = ValueAt(number, length);
  }
  return shape;
}

bool IsSymbolic(const ProgramOp& op) {
  bool is_symbolic = false;
  ForEachNumbers(op, [&](std::string_view /*field*/, const std::vector<SymbolicNumber>& numbers,
                         size_t /*size*/) {
    is_symbolic = is_symbolic || !numbers.empty();
    return absl::OkStatus();
  }).IgnoreError();
  return is_symbolic;
}

ProgramOp OpAt(ProgramOp op, int64_t length) {
  auto* const tensor = std::get_if<TensorOp>(&op);
  if (tensor == nullptr) return op;
  if (auto* const reshape = std::get_if<ReshapeOp>(tensor); reshape != nullptr) {
    reshape->shape = ShapeAt(std::move(reshape->shape), reshape->symbolic_shape, length);
    reshape->symbolic_shape.clear();
  } else if (auto* const slice = std::get_if<SliceOp>(tensor); slice != nullptr) {
    for (const SymbolicNumber& number : slice->symbolic_starts) {
      slice->starts[static_cast<size_t>(number.index)] = ValueAt(number, length);
    }
    for (const SymbolicNumber& number : slice->symbolic_limits) {
      slice->limits[static_cast<size_t>(number.index)] = ValueAt(number, length);
    }
    slice->symbolic_starts.clear();
    slice->symbolic_limits.clear();
  }
  return op;
}

Program ProgramAt(Program program, int64_t length) {
  for (ProgramOp& op : program.ops) {
    if (IsSymbolic(op)) op = OpAt(std::move(op), length);
  }
  program.symbol = std::nullopt;
  program.symbolic_extents.clear();
  return program;
}

std::vector<SymbolicNumber> ExtentsOf(const Program& program, ValueIndex operand) {
  std::vector<SymbolicNumber> extents;
  for (const SymbolicExtent& each : program.symbolic_extents) {
    if (each.operand == operand) extents.push_back(each.extent);
  }
  return extents;
}

absl::StatusOr<int64_t> LengthOf(const Program& program,
                                 const std::function<const Shape*(ValueIndex)>& shape_of,
                                 const std::function<std::string(ValueIndex)>& name_of) {
  const SymbolicDimension& symbol = *program.symbol;
  std::optional<int64_t> length;
  std::string first;  // the extent that gave the length
  for (const auto& [operand, extent] : program.symbolic_extents) {
    const Shape* const shape = shape_of(operand);
    if (shape == nullptr) continue;
    const std::string text = SymbolicNumberText(extent, symbol.name);
    if (extent.index >= static_cast<int64_t>(shape->size())) {
      return InvalidArgument(Reason::kShapeMismatch,
                             StrCat(name_of(operand), " has shape ", ShapeToString(*shape),
                                    "; its dimension ", extent.index, " must be ", text),
                             {{fact::kDimension, extent.index}});
    }
    const int64_t have = (*shape)[static_cast<size_t>(extent.index)];
    const std::string place = StrCat("dimension ", extent.index, " of ", name_of(operand));
    int64_t rest = 0;
    if (__builtin_sub_overflow(have, extent.offset, &rest) || rest % extent.factor != 0) {
      return Mismatch(StrCat(place, " is ", have, "; it must be ", text), have, text);
    }
    const int64_t found = rest / extent.factor;
    if (length.has_value() && found != *length) {
      return Mismatch(StrCat(place, " is ", have, ", so ", symbol.name, " would be ", found,
                             "; by ", first, " it is ", *length, "; give operands of one length"),
                      found, StrCat(*length));
    }
    if (length.has_value()) continue;
    if (const absl::Status error = CheckLength(symbol, found); !error.ok()) {
      return Mismatch(StrCat(place, " is ", have, ", so ", ToStd(error.message())), found,
                      SymbolicDimensionText(symbol));
    }
    length = found;
    first = place;
  }
  if (length.has_value()) return *length;
  return InvalidArgument(Reason::kShapeMismatch, StrCat("no operand is known that gives ",
                                                        symbol.name, ", the program's dimension"));
}

absl::StatusOr<int64_t> LengthOf(const Program& program,
                                 const std::function<const Shape*(ValueIndex)>& shape_of) {
  return LengthOf(program, shape_of,
                  [](ValueIndex operand) { return StrCat("operand ", operand); });
}

std::optional<SymbolicNumber> NumberThatHas(int64_t index, absl::Span<const int64_t> lengths,
                                            absl::Span<const int64_t> values) {
  SymbolicNumber number = {.index = index, .factor = 0, .offset = values.front()};
  if (lengths.size() > 1) {
    const int64_t run = lengths[1] - lengths[0];
    const int64_t rise = values[1] - values[0];
    if (rise % run != 0 || rise / run > kMaxSymbolicFactor || rise / run < -kMaxSymbolicFactor) {
      return std::nullopt;
    }
    number.factor = rise / run;
    if (__builtin_sub_overflow(values[0], number.factor * lengths[0], &number.offset)) {
      return std::nullopt;
    }
    const bool is_in_range = number.offset >= -kMaxLength && number.offset <= kMaxLength;
    if (number.factor != 0 && !is_in_range) return std::nullopt;
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (ValueAt(number, lengths[i]) != values[i]) return std::nullopt;
  }
  return number;
}

std::string SymbolicNumberText(const SymbolicNumber& number, std::string_view name) {
  std::string text = number.factor == 1    ? std::string(name)
                     : number.factor == -1 ? StrCat("-", name)
                                           : StrCat(number.factor, "*", name);
  if (number.offset > 0) StrAppend(&text, " + ", number.offset);
  if (number.offset < 0) StrAppend(&text, " - ", -number.offset);
  return text;
}

std::string SymbolicShapeText(const Shape& shape, absl::Span<const SymbolicNumber> numbers,
                              std::string_view name) {
  std::vector<std::string> extents;
  for (const int64_t extent : shape) extents.push_back(StrCat(extent));
  for (const SymbolicNumber& number : numbers) {
    extents[static_cast<size_t>(number.index)] = SymbolicNumberText(number, name);
  }
  return StrCat("(", StrJoin(extents, ", "), extents.size() == 1 ? ",)" : ")");
}

std::string SymbolicDimensionText(const SymbolicDimension& symbol) {
  std::string text = StrCat(symbol.name, " from ", symbol.min, " to ", symbol.max);
  if (symbol.multiple > 1) StrAppend(&text, ", a multiple of ", symbol.multiple);
  return text;
}

}  // namespace shardmesh
