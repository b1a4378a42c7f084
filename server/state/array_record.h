// Converts arrays, names, manifests and answers to bytes for the store, and back.
#ifndef SHARDMESH_SERVER_STATE_ARRAY_RECORD_H_
#define SHARDMESH_SERVER_STATE_ARRAY_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/state/array_registry.h"

namespace shardmesh::server {

// All Encode functions of this file return serialised messages of the package shardmesh.store.v1.
// All Decode functions return DATA_LOSS (STORE_FAILED), which names `key`, if the bytes are
// malformed or describe an impossible value.

struct ClusterRecord {
  std::string cluster_id;
  int64_t term = 0;
};
// The highest term. Epochs and step numbers are derived from the term, and would overflow with a
// higher term.
inline constexpr int64_t kMaxTerm = (int64_t{1} << 23) - 2;
// FAILED_PRECONDITION (STORE_FAILED): the term is above kMaxTerm.
absl::Status CheckTerm(int64_t term);
std::string EncodeCluster(const ClusterRecord& cluster);
absl::StatusOr<ClusterRecord> DecodeCluster(std::string_view key, const std::string& bytes);

// Key of the RestoredRecord. The record exists only in a state that was restored from a snapshot,
// or that has lost records.
inline constexpr std::string_view kRestoredKey = "restored";
// The digest of a state with lost records: the snapshot's digest, if any, was lost with them.
inline constexpr std::string_view kUnknownSnapshot = "unknown";
struct RestoredRecord {
  std::string digest;           // of the snapshot, or kUnknownSnapshot
  bool may_lack_names = false;  // a lost record may have held the name of an array
};
std::string EncodeRestored(const RestoredRecord& restored);
absl::StatusOr<RestoredRecord> DecodeRestored(std::string_view key, const std::string& bytes);

// A decoded array is degraded, with all ranks missing, until workers report its tiles.
// `is_cached`: the array has no name, and is kept as a cache; see ArrayRegistry.
std::string EncodeArray(const Array& array, bool is_cached = false);
absl::StatusOr<Array> DecodeArray(std::string_view key, const std::string& bytes,
                                  bool* is_cached = nullptr);

// The record of a name holds the id of its array; an empty id means that the name is deleted.
std::string EncodeName(std::string_view array_id);
absl::StatusOr<std::string> DecodeName(std::string_view key, const std::string& bytes);

struct ManifestEntry {
  std::string name;
  ArrayPtr array;
  // The name's version; set if the manifest was rewritten. 0: the name's version is the store
  // revision of the manifest's record.
  int64_t version = 0;
};
// Splits the entries into chunks of at most kMaxChunkBytes. A larger entry gets a chunk of its own.
inline constexpr size_t kMaxChunkBytes = 1 << 20;
std::vector<std::string> EncodeManifestChunks(const std::vector<ManifestEntry>& entries);
absl::StatusOr<std::vector<ManifestEntry>> DecodeManifestChunk(std::string_view key,
                                                               const std::string& bytes);
std::string EncodeManifest(int64_t chunks);
absl::StatusOr<int64_t> DecodeManifest(std::string_view key, const std::string& bytes);

// Arrays that were released, all on one mesh.
struct ReleasedRecord {
  std::string mesh_id;
  int64_t ranks = 0;
  std::vector<std::string> array_ids;
};
std::string EncodeReleased(const ReleasedRecord& released);
absl::StatusOr<ReleasedRecord> DecodeReleased(std::string_view key, const std::string& bytes);

// Prefixes of the keys of definitions. In the store, only keys of definitions keep former values.
inline constexpr std::string_view kDefinitionPrefixes[] = {"mesh/", "profile/", "rule_set/",
                                                           "logical_rules/", "tree/"};
// The fields of a definition's record that are read without decoding the definition. They are the
// same for all kinds of definitions.
struct DefinitionOutline {
  int64_t version = 0;
  bool has_ranks = false;  // for a mesh: the definition names the workers of its ranks
};
absl::StatusOr<DefinitionOutline> DecodeDefinitionOutline(std::string_view key,
                                                          const std::string& bytes);
// Returns the record `bytes` with its version changed to `version`.
absl::StatusOr<std::string> WithDefinitionVersion(std::string_view key, const std::string& bytes,
                                                  int64_t version);

// The records that assign workers to the ranks of a mesh: the record of the ranks, and if needed a
// definition of the mesh. `before` is the present record of the definition, null if it is lost. A
// new definition is made from `mesh` if `before` is null or has no axes. INVALID_ARGUMENT: the
// number of workers is not the number of ranks, two workers have the same identity, or an identity
// is invalid.
struct RanksRecords {
  std::string ranks;
  // The new record of the definition, with version `version`; nullopt: keep the present record.
  std::optional<std::string> definition = std::nullopt;
};
absl::StatusOr<RanksRecords> WithRanks(std::string_view key, const std::string* before,
                                       const Mesh& mesh, const std::vector<std::string>& workers,
                                       int64_t version, absl::Time now);

// An array in a saved checkpoint. The modify time of the file is not known.
struct SavedPlace {
  std::string array_id;
  ArraySource source;
};
// A record of some places; `places` is their number.
struct SavedPlacesRecord {
  size_t places = 0;
  std::string bytes;
};
// Splits the places into records of at most `max_bytes`, in their order. A larger place gets a
// record of its own.
std::vector<SavedPlacesRecord> EncodeSavedPlaces(absl::Span<const SavedPlace> places,
                                                 size_t max_bytes = kMaxChunkBytes);
absl::StatusOr<std::vector<SavedPlace>> DecodeSavedPlaces(std::string_view key,
                                                          const std::string& bytes);

// The record that an array is state: see ArrayRegistry::MakeState.
struct StateRecord {
  std::string array_id;
  int64_t step = 0;  // its content is at least of this step
};
std::string EncodeState(const StateRecord& state);
absl::StatusOr<StateRecord> DecodeState(std::string_view key, const std::string& bytes);

struct RequestRecord {
  std::string fingerprint;
  std::string answer;
  absl::Time expires;
};
std::string EncodeRequest(const RequestRecord& request);
absl::StatusOr<RequestRecord> DecodeRequest(std::string_view key, const std::string& bytes);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_ARRAY_RECORD_H_
