// The library's answers about profiles and hashes.
#include <cstdint>

#include "sharding/digest.h"
#include "sharding/profile_hash.h"
#include "status/status_macros.h"
#include "tests/conformance/profile_subject.h"

namespace shardmesh::conformance {
namespace {

class ProfileLibrary final : public ProfileSubject {
 public:
  absl::StatusOr<ProfileDescription> Describe(absl::Span<const FieldValue> fields) const override {
    SHARDMESH_ASSIGN_OR_RETURN(const PartitionAxis profile, PartitionAxis::Create(fields));
    ProfileDescription description;
    for (int64_t i = 0; i < kAxisFieldCount; ++i) {
      const auto field = static_cast<AxisField>(i);
      description.fields.push_back({std::string(AxisFieldName(field)), profile.field(field)});
    }
    description.text = profile.ToString();
    SHARDMESH_ASSIGN_OR_RETURN(description.hash, HashProfile(profile));
    return description;
  }

  absl::StatusOr<ProfileTables> Tables() const override {
    ProfileTables tables;
    for (const SemanticName& name : BuiltInSemanticNames()) {
      std::optional<std::string> field;
      if (name.field.has_value()) {
        field = std::string(AxisFieldName(*name.field));
        if (const std::optional<AxisField> variant = GenerationVariant(*name.field)) {
          tables.generation.emplace_back(*field, AxisFieldName(*variant));
        }
      }
      tables.semantic.emplace_back(name.name, std::move(field));
    }
    for (const std::string_view name : AxisFieldNames()) tables.fields.emplace_back(name);
    return tables;
  }

  absl::StatusOr<PythonHash> Hash(absl::Span<const PythonValue> attributes) const override {
    return HashFn(attributes);
  }

  absl::StatusOr<std::string> SafeHashInt(std::string_view text,
                                          std::string_view algorithm) const override {
    return shardmesh::SafeHashInt(text, algorithm, Compatibility::kExact);
  }
};

}  // namespace

std::shared_ptr<const ProfileSubject> LibraryProfiles() {
  return std::make_shared<ProfileLibrary>();
}

}  // namespace shardmesh::conformance
