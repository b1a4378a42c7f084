// Questions about profiles and hashes and their answers, in the client's form.
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

// A profile in its original form, which the coordinator resolves. See PartitionAxis::Create.
struct ProfileFields {
  std::vector<FieldValue> fields;
  std::vector<SemanticAxis> semantic_axes = {};
};

// Asks for the resolved form of a profile.
struct ProfileQuestion {
  // By name in the catalog, or by value; the default is the profile without given fields.
  std::variant<std::monostate, std::string, PartitionAxis, ProfileFields> profile = {};
};

// A semantic name with its mesh axes.
struct ResolvedName {
  std::string name;
  // Nullopt for a user-defined axis, and for the name that reads no field.
  std::optional<AxisField> field;
  // The field that replaces `field` in generation modes unless it is none; nullopt if no such field
  // exists.
  std::optional<AxisField> generation_field;
  AxisValue value;
  AxisValue generation_value;
};

struct ProfileAnswer {
  PartitionAxis profile;
  std::string text;  // as Python's repr
  // 64 hexadecimal digits over every field and every user-defined axis; see Fingerprint.
  std::string fingerprint;
  // The built-in names, then the user-defined ones.
  std::vector<ResolvedName> semantic_names;
  int64_t revision = 0;
};

// Asks for the hash of a text, or for the original's of an object with these attributes or of a
// profile; see HashProfile.
struct HashQuestion {
  // At most 1 MiB of text.
  std::variant<std::string, std::vector<PythonValue>, ProfileQuestion> subject;
  // For a text; see SafeHashInt. Nullopt: md5.
  std::optional<std::string> algorithm = std::nullopt;
  Compatibility compatibility = Compatibility::kDefault;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_PROFILE_QUESTIONS_H_
