// Texts as Python prints them, and eformer's hash of these texts.
#include "sharding/python_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdlib>

#include "absl/numeric/int128.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "sharding/axis_value.h"
#include "sharding/digest.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// Python's hash of an integer is its remainder modulo this prime.
constexpr uint64_t kHashModulus = (uint64_t{1} << 61) - 1;

// Returns Python's hash() of an object whose __hash__ returned this number. Requires a number that
// is not negative.
int64_t ReduceHash(std::string_view decimal) {
  if (int64_t small = 0; absl::SimpleAtoi(ToAbsl(decimal), &small)) return small;
  uint64_t remainder = 0;
  for (const char digit : decimal) {
    const absl::uint128 longer = absl::uint128(remainder) * 10 + static_cast<uint64_t>(digit - '0');
    remainder = absl::Uint128Low64(longer % kHashModulus);
  }
  return static_cast<int64_t>(remainder);
}

}  // namespace

PythonValue PythonValue::Bool(bool value) {
  PythonValue result;
  result.kind_ = Kind::kBool;
  result.text_ = value ? "True" : "False";
  return result;
}

PythonValue PythonValue::Int(int64_t value) {
  PythonValue result;
  result.kind_ = Kind::kInt;
  result.text_ = StrCat(value);
  return result;
}

absl::StatusOr<PythonValue> PythonValue::BigInt(std::string_view digits) {
  std::string_view magnitude = digits;
  const bool negative = !magnitude.empty() && magnitude.front() == '-';
  if (negative) magnitude.remove_prefix(1);
  if (magnitude.empty() || !std::all_of(magnitude.begin(), magnitude.end(), absl::ascii_isdigit)) {
    return InvalidArgument(Reason::kBadField,
                           StrCat(PythonRepr(digits), " is no integer; write decimal digits"),
                           {{fact::kValue, digits}});
  }
  magnitude.remove_prefix(std::min(magnitude.find_first_not_of('0'), magnitude.size() - 1));
  PythonValue result;
  result.kind_ = Kind::kInt;
  result.text_ = StrCat(negative && magnitude != "0" ? "-" : "", magnitude);
  return result;
}

PythonValue PythonValue::Float(double value) {
  PythonValue result;
  result.kind_ = Kind::kFloat;
  result.text_ = PythonFloatRepr(value);
  return result;
}

PythonValue PythonValue::String(std::string text) {
  PythonValue result;
  result.kind_ = Kind::kString;
  result.text_ = std::move(text);
  return result;
}

PythonValue PythonValue::List(std::vector<PythonValue> entries) {
  PythonValue result;
  result.kind_ = Kind::kList;
  result.entries_ = std::move(entries);
  return result;
}

PythonValue PythonValue::Tuple(std::vector<PythonValue> entries) {
  PythonValue result;
  result.kind_ = Kind::kTuple;
  result.entries_ = std::move(entries);
  return result;
}

PythonValue PythonValue::Dict(std::vector<DictItem> items) {
  PythonValue result;
  result.kind_ = Kind::kDict;
  result.entries_.reserve(2 * items.size());
  for (auto& [key, value] : items) {
    result.entries_.push_back(std::move(key));
    result.entries_.push_back(std::move(value));
  }
  return result;
}

std::string PythonValue::Str() const { return kind_ == Kind::kString ? text_ : Repr(); }

std::string PythonValue::Repr() const {
  const auto join = [this] {
    return StrJoin(entries_, ", ", [](std::string* out, const PythonValue& entry) {
      StrAppend(out, entry.Repr());
    });
  };
  switch (kind_) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return text_;
    case Kind::kString:
      return PythonRepr(text_);
    case Kind::kList:
      return StrCat("[", join(), "]");
    case Kind::kTuple:
      return StrCat("(", join(), entries_.size() == 1 ? ",)" : ")");
    case Kind::kDict: {
      std::string out = "{";
      for (size_t i = 0; i < entries_.size(); i += 2) {
        StrAppend(&out, i == 0 ? "" : ", ", entries_[i].Repr(), ": ", entries_[i + 1].Repr());
      }
      return out + "}";
    }
  }
  return "";
}

std::string PythonFloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  // Print the fewest digits that identify the value, as d.ddde±xx. The buffer has room for 17
  // digits, sign, point and exponent.
  std::array<char, 32> buffer;
  const std::to_chars_result end = std::to_chars(buffer.data(), buffer.data() + buffer.size(),
                                                 value, std::chars_format::scientific);
  std::string_view text(buffer.data(), static_cast<size_t>(end.ptr - buffer.data()));
  const std::string_view sign = text.front() == '-' ? "-" : "";
  text.remove_prefix(sign.size());
  const size_t e = text.find('e');
  std::string digits(1, text.front());
  if (e > 1) digits += text.substr(2, e - 2);
  int exponent = 0;
  const size_t exponent_start = e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(text.data() + exponent_start, text.data() + text.size(), exponent);

  const auto count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    return StrCat(sign, digits.substr(0, 1), count > 1 ? "." : "", digits.substr(1),
                  exponent < 0 ? "e-" : "e+", std::abs(exponent) < 10 ? "0" : "",
                  std::abs(exponent));
  }
  if (exponent < 0) {
    return StrCat(sign, "0.", std::string(static_cast<size_t>(-exponent - 1), '0'), digits);
  }
  if (count <= exponent + 1) {
    return StrCat(sign, digits, std::string(static_cast<size_t>(exponent + 1 - count), '0'), ".0");
  }
  const auto whole = static_cast<size_t>(exponent) + 1;
  return StrCat(sign, digits.substr(0, whole), ".", digits.substr(whole));
}

absl::StatusOr<PythonHash> HashFn(absl::Span<const PythonValue> attributes) {
  PythonHash hash;
  for (const PythonValue& attribute : attributes) {
    switch (attribute.kind()) {
      case PythonValue::Kind::kBool:
      case PythonValue::Kind::kInt:
      case PythonValue::Kind::kFloat:
      case PythonValue::Kind::kList:
      case PythonValue::Kind::kDict:
        hash.text += attribute.Str();
        break;
      case PythonValue::Kind::kNone:
      case PythonValue::Kind::kString:
      case PythonValue::Kind::kTuple:
        break;
    }
  }
  SHARDMESH_ASSIGN_OR_RETURN(hash.digest, SafeHashInt(hash.text, "md5"));
  hash.value = ReduceHash(hash.digest);
  return hash;
}

}  // namespace shardmesh
