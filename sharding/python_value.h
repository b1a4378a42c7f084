// Values as Python holds and prints them, and the hash that eformer makes of that text.
#ifndef SHARDMESH_SHARDING_PYTHON_VALUE_H_
#define SHARDMESH_SHARDING_PYTHON_VALUE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace shardmesh {

// One value of the kinds below. `1`, `1.0` and `True` are three values: Python prints them
// differently.
//
// Whoever decodes values from outside bounds their depth and count. Immutable but for assignment;
// safe to read from several threads.
class PythonValue {
 public:
  enum class Kind { kNone, kBool, kInt, kFloat, kString, kList, kTuple, kDict };
  using DictItem = std::pair<PythonValue, PythonValue>;

  // None.
  PythonValue() = default;
  static PythonValue Bool(bool value);
  static PythonValue Int(int64_t value);
  // An integer of any size from its decimal digits, `-` before them allowed. INVALID_ARGUMENT
  // (BAD_FIELD) for other text.
  static absl::StatusOr<PythonValue> BigInt(std::string_view digits);
  static PythonValue Float(double value);
  // UTF-8.
  static PythonValue String(std::string text);
  static PythonValue List(std::vector<PythonValue> entries);
  static PythonValue Tuple(std::vector<PythonValue> entries);
  // In the order of insertion, which is the order of the text.
  static PythonValue Dict(std::vector<DictItem> items);

  Kind kind() const { return kind_; }
  // kString: the text; kBool, kInt, kFloat: as Python prints it; empty for the others.
  const std::string& text() const { return text_; }
  // kList, kTuple: the entries; kDict: key, value, key, value, ...; empty for the others. Valid as
  // long as this value is unchanged.
  absl::Span<const PythonValue> entries() const { return entries_; }

  // As str() writes it: a string is itself, any other value its repr.
  std::string Str() const;
  // As repr() writes it: `None`, `True`, `-7`, `1e+22`, `-0.0`, `nan`, `"it's"`, `[1, 'x']`,
  // `('tp',)`, `{'a': [1.0]}`.
  std::string Repr() const;

 private:
  Kind kind_ = Kind::kNone;
  std::string text_;                  // kInt, kFloat: as printed; kString: the bytes; kBool
  std::vector<PythonValue> entries_;  // kList, kTuple; kDict: key, value, key, value, ...
};

// `value` as Python's repr writes a float: the fewest digits that read back as the same number.
std::string PythonFloatRepr(double value);

// What eformer's hash_fn makes of an object.
struct PythonHash {
  std::string text;    // what is hashed
  std::string digest;  // its MD5 as a number, in decimal
  int64_t value = 0;   // what hash() returns: the number, modulo 2^61-1 where it is over 64 bits

  friend bool operator==(const PythonHash&, const PythonHash&) = default;
};

// Hashes the texts of the attributes, one after the other without anything between them, in the
// object's own order. Only bool, int, float, list and dict count; None, strings and tuples are left
// out. The only error is SafeHashInt's where this host's OpenSSL is configured to have no MD5.
absl::StatusOr<PythonHash> HashFn(absl::Span<const PythonValue> attributes);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PYTHON_VALUE_H_
