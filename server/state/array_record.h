// Arrays, names, manifests and answers as bytes of the store, and back.
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
#include "server/state/array_registry.h"

namespace shardmesh::server {

// The bytes are messages of shardmesh.store.v1. Decode returns DATA_LOSS (STORE_FAILED) with `key`
// if they are malformed, or describe something impossible.

struct ClusterRecord {
  std::string cluster_id;
  int64_t term = 0;
};
// Epochs and step numbers are derived from the term: beyond this term they would overflow.
inline constexpr int64_t kMaxTerm = (int64_t{1} << 23) - 2;
// FAILED_PRECONDITION (STORE_FAILED): the term is higher.
absl::Status CheckTerm(int64_t term);
std::string EncodeCluster(const ClusterRecord& cluster);
absl::StatusOr<ClusterRecord> DecodeCluster(std::string_view key, const std::string& bytes);

// Key of the record for a state that was restored, or has lost records.
inline constexpr std::string_view kRestoredKey = "restored";
// The digest of a state with lost records: the snapshot's digest, if any, was lost with them.
inline constexpr std::string_view kUnknownSnapshot = "unknown";
struct RestoredRecord {
  std::string digest;           // of the snapshot, or kUnknownSnapshot
  bool may_lack_names = false;  // arrays without a name may have or have had one
};
std::string EncodeRestored(const RestoredRecord& restored);
absl::StatusOr<RestoredRecord> DecodeRestored(std::string_view key, const std::string& bytes);

// A decoded array is degraded, with every rank missing: workers report its tiles later.
std::string EncodeArray(const Array& array);
absl::StatusOr<Array> DecodeArray(std::string_view key, const std::string& bytes);

// The array's id; empty: the name is deleted.
std::string EncodeName(std::string_view array_id);
absl::StatusOr<std::string> DecodeName(std::string_view key, const std::string& bytes);

struct ManifestEntry {
  std::string name;
  ArrayPtr array;
  int64_t version = 0;  // of the name; 0: the revision of the manifest's record
};
// Splits the entries into chunks of at most kMaxChunkBytes (but an entry is never split).
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

// Prefixes of the keys of definitions. Only these keys keep their former values.
inline constexpr std::string_view kDefinitionPrefixes[] = {"mesh/", "profile/", "rule_set/",
                                                           "logical_rules/", "tree/"};
// The content of a definition's record except the definition itself, of any kind.
struct DefinitionOutline {
  int64_t version = 0;
  bool has_ranks = false;  // of a mesh: it names its workers
};
absl::StatusOr<DefinitionOutline> DecodeDefinitionOutline(std::string_view key,
                                                          const std::string& bytes);
// The same definition as another version.
absl::StatusOr<std::string> WithDefinitionVersion(std::string_view key, const std::string& bytes,
                                                  int64_t version);

// The records of a mesh whose ranks get these workers: that of the ranks, and a definition of
// `mesh` if the one before is lost (null) or has no axes. INVALID_ARGUMENT: there are not as many
// workers as ranks, two are equal, or one is no valid identity.
struct RanksRecords {
  std::string ranks;
  // The record of the definition with this version; nullopt: it stays as it is.
  std::optional<std::string> definition = std::nullopt;
};
absl::StatusOr<RanksRecords> WithRanks(std::string_view key, const std::string* before,
                                       const Mesh& mesh, const std::vector<std::string>& workers,
                                       int64_t version, absl::Time now);

struct RequestRecord {
  std::string fingerprint;
  std::string answer;
  absl::Time expires;
};
std::string EncodeRequest(const RequestRecord& request);
absl::StatusOr<RequestRecord> DecodeRequest(std::string_view key, const std::string& bytes);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_ARRAY_RECORD_H_
