// Offline repair of a coordinator's data folder: restoring a snapshot, and finding unreadable
// records.
#ifndef SHARDMESH_SERVER_STATE_STORE_REPAIR_H_
#define SHARDMESH_SERVER_STATE_STORE_REPAIR_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/store_file.h"
#include "sharding/mesh.h"

namespace shardmesh::server {

// Terms and revisions that a restored state skips: more than can have passed since the snapshot.
// Workers therefore follow its coordinator, and no version of a name repeats. Each start of the
// coordinator uses a term: with a restart every five minutes they last eight weeks. kMaxTerm allows
// 511 restores.
inline constexpr int64_t kSkippedTerms = 16'384;
inline constexpr int64_t kSkippedRevisions = int64_t{1} << 32;

struct Restored {
  bool was_done_before = false;  // nothing was changed
  int64_t term = 0;              // of the snapshot; the coordinator begins after the skipped ones
  Revision revision = 0;         // of the snapshot
  std::string replaced;          // new path of the previous state; empty: there was none
  absl::Status unread;           // error of reading the previous state; OK: none
  // Keys of the two states, without remembered answers: at most kListedKeys of each.
  std::vector<std::string> lost;     // in the state before, not in the snapshot
  std::vector<std::string> back;     // in the snapshot, not in the state before
  std::vector<std::string> changed;  // in both, with other values
  int64_t lost_count = 0;
  int64_t back_count = 0;
  int64_t changed_count = 0;
};
inline constexpr size_t kListedKeys = 20;

// Makes the snapshot in `file` the state of the data folder. The previous state is set aside in the
// folder, not deleted. The file that was restored last is not restored again, so a flag that stays
// set does no harm: the state records its file. A file kRestoreAgain in the folder requests another
// restore, and is removed.
//
// The file may be the database of another folder, or one that was moved away. The commits in its
// log (`FILE-wal`) are restored with it.
//
// FAILED_PRECONDITION, in one of these cases:
// - A process holds the folder, or that of the file.
// - The file is no snapshot, or its term is too high to continue.
// - The file, or the state to be replaced, has a newer schema (SCHEMA_MISMATCH).
// - The current state cannot tell which snapshot it was made from, and there is no kRestoreAgain:
//   restoring the same snapshot again would undo all changes acknowledged since.
//
// DATA_LOSS: the snapshot is damaged. NOT_FOUND: no file. INTERNAL: the disk does not deliver the
// current state, and there is no kRestoreAgain. After an error the state is unchanged and not
// upgraded to our schema: the build that wrote it can continue with it.
inline constexpr std::string_view kRestoreAgain = "restore-again";
absl::StatusOr<Restored> RestoreSnapshot(const std::string& folder, const std::string& file);

// Row ids, both included, between which pages cannot be read: the rows there are unknown.
struct LostRows {
  int64_t first = 0;
  int64_t last = 0;
  std::string why;
};

// The newest readable record of its key. A lost page may have had a newer one: this may be replaced
// or deleted data that looks current.
struct FormerRecord {
  std::string key;  // a definition's; or a manifest's, whose names may have been moved since
  Revision revision = 0;
  int64_t version = 0;  // of a definition
};
// Added by a salvage to the versions of such definitions, so that no version repeats: more than can
// exist.
inline constexpr int64_t kSkippedVersions = 1'000'000'000;

// A mesh with arrays whose record of the workers of its ranks is lost.
struct LostRanks {
  std::string mesh_id;
  Mesh mesh;  // as the arrays have it
  int64_t arrays = 0;
};
// The workers of such meshes, by rank. Empty: the first workers that attach get the ranks.
using GivenRanks = std::map<std::string, std::vector<std::string>>;

// The result of checking a data folder.
struct StoreCheck {
  int64_t schema_version = 0;
  int64_t records = 0;  // readable ones
  Revision compacted = 0;
  Revision newest = 0;
  absl::Status log;     // DATA_LOSS: acknowledged commits are after damage in it
  absl::Status pages;   // DATA_LOSS: inconsistent, or the first page is unreadable
  absl::Status bounds;  // DATA_LOSS: the checksum does not fit
  std::vector<UnreadableRecord> unreadable;
  std::vector<LostRows> lost;  // of damaged pages
  std::vector<FormerRecord> former;
  std::vector<LostRanks> lost_ranks;  // without given workers
  // In a state that is not new, the record `cluster` is missing or unreadable: no coordinator
  // starts with it.
  bool lacks_cluster = false;
  std::string taken_cluster_id;  // the cluster id in that record, if it was taken from a snapshot
  // After setting aside: where the damaged database was moved, if a new one had to be written.
  std::string replaced;

  // Nothing was ever written to it.
  bool is_empty() const { return schema_version == 0; }
  // All written data can be read.
  bool is_sound() const {
    return !is_empty() && log.ok() && pages.ok() && bounds.ok() && unreadable.empty();
  }
};

// Reads all readable records of the database in a data folder. Without `set_aside` no file of the
// folder changes, is created or is removed; only a copy lies there meanwhile if the log or the
// first page is damaged.
//
// With `set_aside`:
// - It first finishes an interrupted replacement, as each start does.
// - It moves the unreadable records to the table `set_aside` and mends the bounds. If pages are
//   damaged, it writes a new database of the readable records. The folder opens afterwards, without
//   the unreadable records.
// - It rewrites the record of a manifest whose chunks are all there.
// - The state records from then on that its arrays without a name may have had one
//   (RestoredRecord), so that their tiles are not deleted.
// - A sound state keeps its schema: the build that wrote it can continue with it.
//
// Commits after a damage of the log (WalFile) are taken into the new database. Where a damaged
// frame does not follow from its checksums, records may be lost without a trace, the newest term
// too. Revisions, terms and versions then skip as many as after damaged pages or a restore.
//
// Where pages are lost, the definitions of StoreCheck::former are written once more, at the newest
// revision, with kSkippedVersions added to their versions. Their history is removed.
//
// With `set_aside`, a missing record `cluster` is taken from the snapshot in `cluster_of`, if that
// is not empty; the term is then after the skipped ones.
//
// Where ranks are lost, the next start would assign other workers to them, and the tiles there
// would no longer count. `ranks` must therefore name the workers of each such mesh.
//
// Nothing is set aside after one of these errors:
// - FAILED_PRECONDITION: a process holds the folder; or the folder or the snapshot is another
//   program's or a newer schema's; or ranks are lost that `ranks` does not give.
// - INVALID_ARGUMENT: `ranks` does not fit such a mesh.
// - INTERNAL: the disk did not deliver existing data, which is no damage.
//
// NOT_FOUND: there is no database. DATA_LOSS: the state is lost (CheckHasState), or no record of it
// can be read.
absl::StatusOr<StoreCheck> CheckDataFolder(const std::string& folder, bool set_aside,
                                           const std::string& cluster_of = "",
                                           const GivenRanks& ranks = {});

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_STORE_REPAIR_H_
