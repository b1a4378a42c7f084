// Questions about profiles and hashes and their answers, as types of the client library.
#ifndef SHARDMESH_CLIENT_TYPES_PROFILE_QUESTIONS_H_
#define SHARDMESH_CLIENT_TYPES_PROFILE_QUESTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "sharding/axis_value.h"
#include "sharding/compatibility.h"
#include "sharding/partition_axis.h"
#include "sharding/python_value.h"

namespace shardmesh::client {

// A profile as the user wrote it. The coordinator, and not the client, resolves the profile. See
// PartitionAxis::Create.
struct ProfileFields {
  std::vector<FieldValue> fields;
  std::vector<SemanticAxis> semantic_axes = {};
};

// Asks for the resolved form of a profile.
struct ProfileQuestion {
  // The profile, by name in the catalog or by value. The default is the profile without given
  // fields.
  std::variant<std::monostate, std::string, PartitionAxis, ProfileFields> profile = {};
};

// A semantic name with its mesh axes.
struct ResolvedName {
  std::string name;
  // The profile's field that gives the axes. Nullopt for a user-defined axis, and for the one
  // built-in name that reads no field.
  std::optional<AxisField> field;
  // The field that gives the axes in generation modes, unless that field's value is none. Nullopt
  // if there is no such field.
  std::optional<AxisField> generation_field;
  AxisValue value;
  AxisValue generation_value;
};

struct ProfileAnswer {
  PartitionAxis profile;
  std::string text;  // the profile as Python's repr() shows it
  // A digest of all fields and user-defined axes, as 64 hexadecimal digits; see Fingerprint.
  std::string fingerprint;
  // The built-in names, and after them the names of user-defined axes.
  std::vector<ResolvedName> semantic_names;
  int64_t revision = 0;
};

// Asks for the hash of a text, of an object's attributes, or of a profile. For attributes and for a
// profile, the answer has the hash that the Python original computes for the object. See
// HashProfile.
struct HashQuestion {
  // A text of at most 1 MiB, an object's attributes, or a profile.
  std::variant<std::string, std::vector<PythonValue>, ProfileQuestion> subject;
  // The algorithm for a text; see SafeHashInt. Nullopt means md5.
  std::optional<std::string> algorithm = std::nullopt;
  Compatibility compatibility = Compatibility::kDefault;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_PROFILE_QUESTIONS_H_
