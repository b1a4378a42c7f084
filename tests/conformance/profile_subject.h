// Questions about profiles and hashes, and whoever answers them.
#ifndef SHARDMESH_TESTS_CONFORMANCE_PROFILE_SUBJECT_H_
#define SHARDMESH_TESTS_CONFORMANCE_PROFILE_SUBJECT_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/mesh_client.h"
#include "sharding/partition_axis.h"
#include "sharding/python_value.h"
#include "tests/conformance/question.h"

namespace shardmesh::conformance {

// All that is told of one profile.
struct ProfileDescription {
  std::vector<FieldValue> fields;  // every one, resolved, in order
  std::string text;                // as Python's repr
  PythonHash hash;
};

// The tables that profiles are resolved by.
struct ProfileTables {
  // Name of a semantic axis and of its field; nullopt for the one that reads none.
  std::vector<std::pair<std::string, std::optional<std::string>>> semantic;
  // Name of a field and of the one that replaces it in generation modes, for the semantic axes'
  // fields in their order.
  std::vector<std::pair<std::string, std::string>> generation;
  std::vector<std::string> fields;
};

class ProfileSubject {
 public:
  virtual ~ProfileSubject() = default;
  virtual absl::StatusOr<ProfileDescription> Describe(
      absl::Span<const FieldValue> fields) const = 0;
  virtual absl::StatusOr<ProfileTables> Tables() const = 0;
  // Of an object with these attributes.
  virtual absl::StatusOr<PythonHash> Hash(absl::Span<const PythonValue> attributes) const = 0;
  virtual absl::StatusOr<std::string> SafeHashInt(std::string_view text,
                                                  std::string_view algorithm) const = 0;
};

std::shared_ptr<const ProfileSubject> LibraryProfiles();
// `client` outlives the subject.
std::shared_ptr<const ProfileSubject> WireProfiles(client::MeshClient& client);

// partition_axis, partition_axis_repr, semantic_map, hash_fn, partition_manager_hash,
// get_safe_hash_int, partition_manager, partition_manager_repr.
void AddProfileQuestions(std::shared_ptr<const ProfileSubject> subject, Questions* questions);

}  // namespace shardmesh::conformance

#endif  // SHARDMESH_TESTS_CONFORMANCE_PROFILE_SUBJECT_H_
