// Makes axis values and prints them.
#include "sharding/axis_value.h"

#include <utility>

#include "status/python_repr.h"
#include "status/str_cat.h"

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

}  // namespace shardmesh
