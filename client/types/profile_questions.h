// Questions about profiles and hashes and their answers, as a client asks and gets them.
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

// A profile as it was written, which the coordinator resolves. See PartitionAxis::Create.
struct ProfileFields {
  std::vector<FieldValue> fields;
  std::vector<SemanticAxis> semantic_axes = {};
};

// What does this profile resolve to?
struct ProfileQuestion {
  // By name in the catalog, or by value; none means the profile in which no field is given.
  std::variant<std::monostate, std::string, PartitionAxis, ProfileFields> profile = {};
};

// A semantic name, and the mesh axes that it stands for.
struct ResolvedName {
  std::string name;
  // Nullopt for an axis of the profile's own, and for the name that reads no field.
  std::optional<AxisField> field;
  // What replaces the field in generation modes unless it is none; nullopt if there is no such
  // field.
  std::optional<AxisField> generation_field;
  AxisValue value;
  AxisValue generation_value;
};

struct ProfileAnswer {
  PartitionAxis profile;
  std::string text;  // as Python's repr
  // 64 hexadecimal digits over every field and every axis of the profile's own; see Fingerprint.
  std::string fingerprint;
  // The original's; see HashProfile.
  PythonHash hash;
  // The built-in names, then the profile's own.
  std::vector<ResolvedName> semantic_names;
  int64_t revision = 0;
};

// What is the hash of this text, or of an object of these attributes?
struct HashQuestion {
  // At most 1 MiB of text.
  std::variant<std::string, std::vector<PythonValue>> subject;
  // For a text; see SafeHashInt. Nullopt: md5.
  std::optional<std::string> algorithm = std::nullopt;
  Compatibility compatibility = Compatibility::kDefault;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_PROFILE_QUESTIONS_H_
