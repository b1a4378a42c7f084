// CatalogClient: the stored definitions of a cluster: meshes, rules, profiles and trees.
#ifndef SHARDMESH_CLIENT_CATALOG_H_
#define SHARDMESH_CLIENT_CATALOG_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/types/array.h"
#include "client/types/call_options.h"
#include "client/types/catalog.h"

namespace shardmesh::client {

class ClientCore;

// The stored definitions of a cluster. A version counts the changes of one name; a revision counts
// those of the whole store.
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

  // Definitions. `expected_version`: kAnyVersion, or the version that is replaced or deleted
  // (ABORTED, VERSION_MISMATCH, if it is another). CreateEntry: ALREADY_EXISTS for a taken name.
  // Trees come with their tensors from GetEntry alone, which takes `NAME@VERSION` too, as the
  // selectors of questions do; NOT_FOUND says which versions are kept. `validate_only` makes all
  // checks and no change. The entry returned is then the one that the change would leave, with
  // revision 0; one that is to be created has an empty uid.
  absl::StatusOr<Entry> CreateEntry(const std::string& name, const EntryValue& value,
                                    bool validate_only = false, const CallOptions& options = {});
  absl::StatusOr<Entry> GetEntry(EntryKind kind, const std::string& name,
                                 const CallOptions& options = {});
  // Those that are kept, the newest first.
  absl::StatusOr<std::vector<EntryVersion>> ListEntryVersions(EntryKind kind,
                                                              const std::string& name,
                                                              const CallOptions& options = {});
  // Those whose name begins with `prefix`, by name.
  absl::StatusOr<std::vector<Entry>> ListEntries(EntryKind kind, const std::string& prefix = "",
                                                 const CallOptions& options = {});
  absl::StatusOr<Entry> UpdateEntry(const std::string& name, const EntryValue& value,
                                    int64_t expected_version = kAnyVersion,
                                    bool validate_only = false, const CallOptions& options = {});
  // Returns the store's revision after it; 0 with `validate_only`.
  absl::StatusOr<int64_t> DeleteEntry(EntryKind kind, const std::string& name,
                                      int64_t expected_version = kAnyVersion,
                                      bool validate_only = false, const CallOptions& options = {});
  // Reports the changes of entries of `kinds` (none: of all kinds) from `start_revision` on (0:
  // from now on) until `on_changes` returns false or `until` comes; both end the watch with OK.
  // DEADLINE_EXCEEDED if the options' timeout ends before `until`; without one no other limit
  // applies. Steps of the wall clock change nothing. OUT_OF_RANGE (COMPACTED): the revision is not
  // kept.
  absl::Status Watch(absl::Span<const EntryKind> kinds, int64_t start_revision, absl::Time until,
                     const std::function<bool(const CatalogChanges&)>& on_changes,
                     const CallOptions& options = {});

 private:
  ClientCore* const core_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CATALOG_H_
