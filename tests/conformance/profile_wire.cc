// A coordinator's answers about profiles and hashes.
#include "status/status_macros.h"
#include "tests/conformance/profile_subject.h"

namespace shardmesh::conformance {
namespace {

class Profiles final : public ProfileSubject {
 public:
  explicit Profiles(client::MeshClient& client) : client_(client) {}

  absl::StatusOr<ProfileDescription> Describe(absl::Span<const FieldValue> fields) const override {
    const client::ProfileQuestion question{
        .profile = client::ProfileFields{.fields = {fields.begin(), fields.end()}}};
    SHARDMESH_ASSIGN_OR_RETURN(const client::ProfileAnswer answer,
                               client_.layouts().DescribeProfile(question));
    ProfileDescription description;
    for (size_t i = 0; i < AxisFieldNames().size(); ++i) {
      description.fields.push_back(
          {std::string(AxisFieldNames()[i]), answer.profile.field(static_cast<AxisField>(i))});
    }
    description.text = answer.text;
    SHARDMESH_ASSIGN_OR_RETURN(description.hash,
                               client_.layouts().ComputeHash({.subject = question}));
    return description;
  }

  absl::StatusOr<ProfileTables> Tables() const override {
    SHARDMESH_ASSIGN_OR_RETURN(const client::ProfileAnswer answer,
                               client_.layouts().DescribeProfile({}));
    ProfileTables tables;
    for (const client::ResolvedName& name : answer.semantic_names) {
      std::optional<std::string> field;
      if (name.field.has_value()) {
        field = std::string(AxisFieldName(*name.field));
        if (name.generation_field.has_value()) {
          tables.generation.emplace_back(*field, AxisFieldName(*name.generation_field));
        }
      }
      tables.semantic.emplace_back(name.name, std::move(field));
    }
    for (const std::string_view name : AxisFieldNames()) tables.fields.emplace_back(name);
    return tables;
  }

  absl::StatusOr<PythonHash> Hash(absl::Span<const PythonValue> attributes) const override {
    return client_.layouts().ComputeHash(
        {.subject = std::vector<PythonValue>(attributes.begin(), attributes.end()),
         .compatibility = Compatibility::kExact});
  }

  absl::StatusOr<std::string> SafeHashInt(std::string_view text,
                                          std::string_view algorithm) const override {
    SHARDMESH_ASSIGN_OR_RETURN(
        PythonHash hash, client_.layouts().ComputeHash({.subject = std::string(text),
                                                        .algorithm = std::string(algorithm),
                                                        .compatibility = Compatibility::kExact}));
    return std::move(hash.digest);
  }

 private:
  client::MeshClient& client_;
};

}  // namespace

std::shared_ptr<const ProfileSubject> WireProfiles(client::MeshClient& client) {
  return std::make_shared<Profiles>(client);
}

}  // namespace shardmesh::conformance
