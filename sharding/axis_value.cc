// Texts and factories of axis values.
#include "sharding/axis_value.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "sharding/str_cat.h"

namespace shardmesh {

AxisValue AxisValue::Name(std::string name) {
  AxisValue value(Kind::kName);
  value.name_ = std::move(name);
  return value;
}

AxisValue AxisValue::Tuple(std::vector<AxisValue> entries) {
  AxisValue value(Kind::kTuple);
  value.entries_ = std::move(entries);
  return value;
}

AxisValue AxisValue::List(std::vector<AxisValue> entries) {
  AxisValue value(Kind::kList);
  value.entries_ = std::move(entries);
  return value;
}

AxisValue AxisValue::TupleOf(absl::Span<const std::string_view> names) {
  std::vector<AxisValue> entries;
  entries.reserve(names.size());
  for (std::string_view name : names) {
    entries.push_back(Name(std::string(name)));
  }
  return Tuple(std::move(entries));
}

std::string AxisValue::ToString() const {
  const auto join = [this] {
    return StrJoin(entries_, ", ", [](std::string* out, const AxisValue& entry) {
      StrAppend(out, entry.ToString());
    });
  };
  switch (kind_) {
    case Kind::kNotGiven:
      return "NOT_GIVEN";
    case Kind::kNone:
      return "None";
    case Kind::kUnconstrained:
      return "UNCONSTRAINED";
    case Kind::kName:
      return PythonRepr(name_);
    case Kind::kTuple:
      return StrCat("(", join(), entries_.size() == 1 ? ",)" : ")");
    case Kind::kList:
      return StrCat("[", join(), "]");
  }
  return "";
}

std::string PythonRepr(std::string_view text) {
  // Python prefers single quotes and changes to double ones only to save escapes.
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppendFormat(&out, "\\x%02x", byte);
    } else {
      out += c;
    }
  }
  out += quote;
  return out;
}

}  // namespace shardmesh
