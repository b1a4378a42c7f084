// Decodes the questions about profiles and hashes, asks, and encodes the answers.
#include "tests/conformance/profile_subject.h"

#include <cstdint>

#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/testing/golden.h"

namespace shardmesh::conformance {
namespace {

using ::shardmesh::test::DecodeAxisValue;

std::vector<FieldValue> DecodeFields(const Json& overrides) {
  std::vector<FieldValue> fields;
  for (const auto& [field, value] : overrides.items()) {
    fields.push_back({field, DecodeAxisValue(value)});
  }
  return fields;
}

// Here, other than in resolved axes, tuples and lists are told apart.
Json EncodeField(const AxisValue& value) {
  if (!value.is_tuple() && !value.is_list()) return test::EncodeAxisValue(value);
  Json entries = Json::array();
  for (const AxisValue& entry : value.entries()) entries.push_back(EncodeField(entry));
  return value.is_tuple() ? entries : Json{{"__list__", entries}};
}

absl::StatusOr<PythonValue> DecodePythonValue(const Json& value);

absl::StatusOr<std::vector<PythonValue>> DecodePythonValues(const Json& values) {
  std::vector<PythonValue> decoded;
  for (const Json& value : values.get_ref<const Json::array_t&>()) {
    SHARDMESH_ASSIGN_OR_RETURN(PythonValue entry, DecodePythonValue(value));
    decoded.push_back(std::move(entry));
  }
  return decoded;
}

// The members of an object in Python's order, if the reader kept it.
std::vector<std::pair<std::string, Json>> MembersOf(const Json& object) {
  std::vector<std::pair<std::string, Json>> members;
  if (object.contains("__dict__")) {
    for (const Json& member : object.at("__dict__")) {
      members.emplace_back(member.at(0), member.at(1));
    }
  } else {
    for (const auto& [key, value] : object.get_ref<const Json::object_t&>()) {
      members.emplace_back(key, value);
    }
  }
  return members;
}

absl::StatusOr<PythonValue> DecodePythonObject(const Json& object) {
  if (object.contains("__int__")) {
    return PythonValue::BigInt(object.at("__int__").get<std::string>());
  }
  const std::vector<std::pair<std::string, Json>> members = MembersOf(object);
  if (members.size() == 1 && (members[0].first == "__tuple__" || members[0].first == "__list__")) {
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<PythonValue> entries,
                               DecodePythonValues(members[0].second));
    return members[0].first == "__tuple__" ? PythonValue::Tuple(std::move(entries))
                                           : PythonValue::List(std::move(entries));
  }
  std::vector<PythonValue::DictItem> items;
  for (const auto& [key, member] : members) {
    SHARDMESH_ASSIGN_OR_RETURN(PythonValue value, DecodePythonValue(member));
    items.emplace_back(PythonValue::String(key), std::move(value));
  }
  return PythonValue::Dict(std::move(items));
}

absl::StatusOr<PythonValue> DecodePythonValue(const Json& value) {
  switch (value.type()) {
    case Json::value_t::boolean:
      return PythonValue::Bool(value.get<bool>());
    case Json::value_t::number_integer:
      return PythonValue::Int(value.get<int64_t>());
    case Json::value_t::number_unsigned:
      return PythonValue::BigInt(StrCat(value.get<uint64_t>()));
    case Json::value_t::number_float:
      return PythonValue::Float(value.get<double>());
    case Json::value_t::string:
      return PythonValue::String(value.get<std::string>());
    case Json::value_t::array: {
      SHARDMESH_ASSIGN_OR_RETURN(std::vector<PythonValue> entries, DecodePythonValues(value));
      return PythonValue::List(std::move(entries));
    }
    case Json::value_t::object:
      return DecodePythonObject(value);
    default:
      return PythonValue();
  }
}

}  // namespace

void AddProfileQuestions(std::shared_ptr<const ProfileSubject> subject, Questions* questions) {
  (*questions)["partition_axis"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const ProfileDescription profile,
                               subject->Describe(DecodeFields(input.at("overrides"))));
    Json fields = Json::object();
    for (const FieldValue& field : profile.fields) {
      fields[field.field] = EncodeField(field.value);
    }
    return Json{{"fields", std::move(fields)},
                {"hash", profile.hash.digest},
                {"py_hash", StrCat(profile.hash.value)},
                {"hash_text", profile.hash.text}};
  };
  (*questions)["partition_axis_repr"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const ProfileDescription profile,
                               subject->Describe(DecodeFields(input.at("overrides"))));
    return profile.text;
  };
  (*questions)["semantic_map"] = [subject](const Json&) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const ProfileTables tables, subject->Tables());
    Json semantic = Json::array();
    for (const auto& [name, field] : tables.semantic) {
      semantic.push_back({name, field.has_value() ? Json(*field) : Json()});
    }
    Json generation = Json::array();
    for (const auto& [field, variant] : tables.generation) generation.push_back({field, variant});
    return Json{{"semantic", semantic}, {"generation", generation}, {"fields", tables.fields}};
  };
  (*questions)["hash_fn"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    std::vector<PythonValue> attributes;
    for (const auto& [name, value] : MembersOf(input.at("attributes"))) {
      SHARDMESH_ASSIGN_OR_RETURN(PythonValue attribute, DecodePythonValue(value));
      attributes.push_back(std::move(attribute));
    }
    SHARDMESH_ASSIGN_OR_RETURN(const PythonHash hash, subject->Hash(attributes));
    return Json{{"hash", hash.digest}, {"text", hash.text}};
  };
  // The text of another object than a string is what str() makes of it.
  (*questions)["get_safe_hash_int"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const PythonValue value, DecodePythonValue(input.at("text")));
    const std::string algorithm = input.value("algorithm", "md5");
    SHARDMESH_ASSIGN_OR_RETURN(std::string hash, subject->SafeHashInt(value.Str(), algorithm));
    return hash;
  };

  // A manager is a profile in a Python object. The only attribute of that object is the profile,
  // which its hash does not count.
  (*questions)["partition_manager_hash"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_RETURN_IF_ERROR(subject->Describe(DecodeFields(input.at("overrides"))).status());
    SHARDMESH_ASSIGN_OR_RETURN(const PythonHash hash, subject->Hash({}));
    return hash.digest;
  };
  // Python alone can put something else than a profile there.
  (*questions)["partition_manager"] = [](const Json& input) -> absl::StatusOr<Json> {
    return InvalidArgument(Reason::kInvalidAxisValue,
                           StrCat("a partition manager holds a profile, not ",
                                  input.at("paxis_python_type").get<std::string>()),
                           "TypeError");
  };
  // str() and repr() of that object, which show the class of the profile and none of its values.
  (*questions)["partition_manager_repr"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const ProfileDescription profile,
                               subject->Describe(DecodeFields(input.at("overrides"))));
    const std::string type = profile.text.substr(0, profile.text.find('('));
    const std::string text = StrCat("PartitionManager(\n  paxis : ", type, "(...)\n)");
    return Json::array({text, text});
  };
}

}  // namespace shardmesh::conformance
