// Python values with their printed forms, and eformer's hash of the printed text.
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

// One value of the kinds below. `1`, `1.0` and `True` are three values, because Python prints them
// differently.
//
// A decoder of untrusted values bounds their depth and count. Immutable except for assignment; safe
// to read from several threads.
class PythonValue {
 public:
  enum class Kind { kNone, kBool, kInt, kFloat, kString, kList, kTuple, kDict };
  using DictItem = std::pair<PythonValue, PythonValue>;

  // Makes Python's None.
  PythonValue() = default;
  static PythonValue Bool(bool value);
  static PythonValue Int(int64_t value);
  // Makes an integer of any size from its decimal digits, with an optional `-`. INVALID_ARGUMENT
  // (BAD_FIELD) for other text.
  static absl::StatusOr<PythonValue> BigInt(std::string_view digits);
  static PythonValue Float(double value);
  // Requires UTF-8.
  static PythonValue String(std::string text);
  static PythonValue List(std::vector<PythonValue> entries);
  static PythonValue Tuple(std::vector<PythonValue> entries);
  // Takes the items in the order of insertion, which is the printed order.
  static PythonValue Dict(std::vector<DictItem> items);

  Kind kind() const { return kind_; }
  // Returns the text of a string, or a bool, an int or a float as Python prints it. Returns an
  // empty text for a value of any other kind.
  const std::string& text() const { return text_; }
  // Returns the entries of a list or tuple; for a dict: key, value, key, value, ... Returns an
  // empty span for a value of any other kind. Valid while this value is unchanged.
  absl::Span<const PythonValue> entries() const { return entries_; }

  // Returns the text of str(): for a string, the string itself; for any other value, its repr.
  std::string Str() const;
  // Returns the text of repr(): `None`, `True`, `-7`, `1e+22`, `-0.0`, `nan`, `"it's"`, `[1, 'x']`,
  // `('tp',)`, `{'a': [1.0]}`.
  std::string Repr() const;

 private:
  Kind kind_ = Kind::kNone;
  std::string text_;                  // kBool, kInt, kFloat: as printed; kString: the bytes
  std::vector<PythonValue> entries_;  // kList, kTuple; kDict: key, value, key, value, ...
};

// Returns `value` as Python's repr writes a float: the fewest digits that parse to the same number.
std::string PythonFloatRepr(double value);

// The result of eformer's hash_fn for an object.
struct PythonHash {
  std::string text;    // the hashed text
  std::string digest;  // the MD5 of `text` as a decimal number
  int64_t value = 0;   // result of hash(): `digest`, modulo 2^61-1 if it exceeds 64 bits

  friend bool operator==(const PythonHash&, const PythonHash&) = default;
};

// Hashes the concatenated texts of an object's attributes, in the order given. Includes only bool,
// int, float, list and dict; skips None, strings and tuples. The only error is that of SafeHashInt,
// on a host whose OpenSSL is configured without MD5.
absl::StatusOr<PythonHash> HashFn(absl::Span<const PythonValue> attributes);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PYTHON_VALUE_H_
