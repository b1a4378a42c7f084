// CatalogClient: the stored definitions of a cluster: meshes, rules, profiles and trees.
#ifndef SHARDMESH_CLIENT_CATALOG_H_
#define SHARDMESH_CLIENT_CATALOG_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/types/array.h"
#include "client/types/call_options.h"
#include "client/types/catalog_entries.h"

namespace shardmesh::client {

class ClientCore;

// The stored definitions of a cluster. A version counts the changes of one name; a revision counts
// the changes of the whole store.
//
// Example:
//   auto entry = client->catalog().GetEntry(EntryKind::kMesh, "pod");
//
// Errors, retries and time limits are those of MeshClient, which owns this object. Thread-safe.
class CatalogClient {
 public:
  // `core` outlives this object.
  explicit CatalogClient(ClientCore* core) : core_(core) {}
  CatalogClient(const CatalogClient&) = delete;
  CatalogClient& operator=(const CatalogClient&) = delete;

  // The calls below create, read and change definitions. `expected_version`: the version to replace
  // or delete; nullopt: any version. ABORTED (VERSION_MISMATCH) if the definition's current version
  // is not `expected_version`. ALREADY_EXISTS: CreateEntry got a name that is taken. Only GetEntry
  // returns trees with their tensors. GetEntry accepts NAME and `NAME@VERSION`, like the selectors
  // of questions. For a version that is not kept, GetEntry returns NOT_FOUND; the message lists the
  // kept versions. With `validate_only`, CreateEntry and UpdateEntry make all checks and no change.
  // With `validate_only`, they return the resulting entry, with revision 0. The uid in that entry
  // is empty if no entry has the name yet.
  absl::StatusOr<Entry> CreateEntry(const std::string& name, const EntryValue& value,
                                    bool validate_only = false, const CallOptions& options = {});
  absl::StatusOr<Entry> GetEntry(EntryKind kind, const std::string& name,
                                 const CallOptions& options = {});
  // The versions of the entry that the coordinator keeps, newest first.
  absl::StatusOr<std::vector<EntryVersion>> ListEntryVersions(EntryKind kind,
                                                              const std::string& name,
                                                              const CallOptions& options = {});
  // The entries whose names begin with `prefix`, sorted by name.
  absl::StatusOr<std::vector<Entry>> ListEntries(EntryKind kind, const std::string& prefix = "",
                                                 const CallOptions& options = {});
  absl::StatusOr<Entry> UpdateEntry(const std::string& name, const EntryValue& value,
                                    std::optional<int64_t> expected_version = std::nullopt,
                                    bool validate_only = false, const CallOptions& options = {});
  // Deletes an entry. Returns the store's revision after the change; 0 with `validate_only`.
  absl::StatusOr<int64_t> DeleteEntry(EntryKind kind, const std::string& name,
                                      std::optional<int64_t> expected_version = std::nullopt,
                                      bool validate_only = false, const CallOptions& options = {});
  // Reports changes of entries of `kinds` (empty: all kinds). Begins with the changes of
  // `start_revision`; if that is nullopt, with the first change after the start of the call.
  // Returns OK once `on_changes` returns false or `until` is reached. Changes of the wall clock do
  // not move the end of the watch. DEADLINE_EXCEEDED: the options' timeout ended before `until`. If
  // the options have no timeout, only `until` limits the watch. OUT_OF_RANGE (COMPACTED): the
  // coordinator no longer keeps all changes since `start_revision`.
  absl::Status Watch(absl::Span<const EntryKind> kinds, std::optional<int64_t> start_revision,
                     absl::Time until, const std::function<bool(const CatalogChanges&)>& on_changes,
                     const CallOptions& options = {});

 private:
  ClientCore* const core_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CATALOG_H_
