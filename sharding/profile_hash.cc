// The canonical text of a profile, and the object that eformer would hash.
#include "sharding/profile_hash.h"

#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "sharding/axis_value.h"
#include "sharding/digest.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

void AppendName(std::string_view name, std::string& out) {
  StrAppend(&out, name.size(), ":", name);
}

void AppendValue(const AxisValue& value, std::string& out) {
  switch (value.kind()) {
    case AxisValue::Kind::kNotGiven:
      // A resolved field always has a value, so kNotGiven occurs only within a tuple or list.
      out += '?';
      return;
    case AxisValue::Kind::kNone:
      out += '_';
      return;
    case AxisValue::Kind::kUnconstrained:
      out += '*';
      return;
    case AxisValue::Kind::kName:
      AppendName(value.name(), out);
      return;
    case AxisValue::Kind::kTuple:
    case AxisValue::Kind::kList:
      StrAppend(&out, value.is_tuple() ? "(" : "[", value.entries().size(), ":");
      for (const AxisValue& entry : value.entries()) AppendValue(entry, out);
      return;
  }
}

// Returns the value as the attribute of eformer's object has it. eformer's hash ignores some kinds
// of values; such a value may become any other ignored value.
PythonValue AsPython(const AxisValue& value) {
  switch (value.kind()) {
    case AxisValue::Kind::kName:
      return PythonValue::String(value.name());
    case AxisValue::Kind::kTuple:
    case AxisValue::Kind::kList: {
      std::vector<PythonValue> entries;
      for (const AxisValue& entry : value.entries()) entries.push_back(AsPython(entry));
      return value.is_tuple() ? PythonValue::Tuple(std::move(entries))
                              : PythonValue::List(std::move(entries));
    }
    case AxisValue::Kind::kNotGiven:
    case AxisValue::Kind::kNone:
    case AxisValue::Kind::kUnconstrained:
      break;
  }
  return PythonValue();
}

}  // namespace

std::string Fingerprint(const PartitionAxis& profile) {
  std::string text = "shardmesh profile 1\n";
  for (int64_t i = 0; i < kAxisFieldCount; ++i) {
    const auto field = static_cast<AxisField>(i);
    AppendName(AxisFieldName(field), text);
    AppendValue(profile.field(field), text);
  }
  for (const SemanticAxis& axis : profile.semantic_axes()) {
    AppendName(axis.name, text);
    AppendValue(axis.value, text);
    if (axis.generation_value.has_value()) {
      AppendValue(*axis.generation_value, text);
    } else {
      text += '-';
    }
  }
  return absl::BytesToHexString(ToAbsl(Sha256(text)));
}

absl::StatusOr<PythonHash> HashProfile(const PartitionAxis& profile) {
  std::vector<PythonValue> attributes;
  for (int64_t i = 0; i < kAxisFieldCount; ++i) {
    attributes.push_back(AsPython(profile.field(static_cast<AxisField>(i))));
  }
  return HashFn(attributes);
}

}  // namespace shardmesh
