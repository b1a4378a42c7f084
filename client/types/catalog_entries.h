// Named, versioned definitions of the cluster, as a client sees them.
#ifndef SHARDMESH_CLIENT_TYPES_CATALOG_ENTRIES_H_
#define SHARDMESH_CLIENT_TYPES_CATALOG_ENTRIES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "client/types/layout_questions.h"
#include "sharding/mesh_definition.h"
#include "sharding/partition_axis.h"
#include "sharding/rules/logical_rules.h"
#include "sharding/rules/rule_set_definition.h"

namespace shardmesh::client {

enum class EntryKind { kMesh, kProfile, kRuleSet, kLogicalRules, kTree };

// The tensors of a model: at most 100,000 tensors, whose names and shapes take at most 1 MiB
// together. Questions about trees can refer to a stored tree by its name.
struct StoredTree {
  // The tensors, with distinct names. Only GetEntry fills this member; lists, watches and the
  // answers to changes leave it empty.
  std::vector<TreeTensor> tensors = {};
  // Totals that the coordinator computes. CreateEntry and UpdateEntry ignore the given values.
  int64_t tensor_count = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;  // of the tensors that have a dtype
};

// The alternatives have the order of EntryKind, so that an alternative's index equals its kind.
using EntryValue =
    std::variant<MeshDefinition, PartitionAxis, RuleSetDefinition, LogicalRules, StoredTree>;

inline EntryKind KindOf(const EntryValue& value) { return static_cast<EntryKind>(value.index()); }

struct Entry {
  std::string name;
  EntryValue value;
  int64_t version = 0;   // each update increments it; a name gets no version twice
  int64_t revision = 0;  // revision of the store at the last change
  std::string uid;       // unique id, made when the entry is created; updates keep it
  // For a mesh: the identities of its workers by rank; empty until workers are assigned. An update
  // of the entry keeps these workers if the new definition names no workers and has the same number
  // of ranks.
  std::vector<std::string> workers;
  absl::Time update_time = absl::InfinitePast();
};

// A version of an entry, without its value.
struct EntryVersion {
  int64_t version = 0;
  int64_t revision = 0;  // revision of the store when this version was created
  absl::Time update_time = absl::InfinitePast();
  int64_t size_bytes = 0;  // size of the value on the wire
};

struct EntryChange {
  EntryKind kind = EntryKind::kMesh;
  std::string name;
  // The entry after the change; nullopt if the change deleted the entry.
  std::optional<Entry> entry;
};

// All changes of one revision.
struct CatalogChanges {
  int64_t revision = 0;
  // Empty in the first report of a watch: that report only states the revision at which the watch
  // starts.
  std::vector<EntryChange> changes;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_CATALOG_ENTRIES_H_
