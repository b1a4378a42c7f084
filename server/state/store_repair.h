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

// A restored state skips this many terms and revisions: more than can have been used since the
// snapshot. If the terms and revisions of the previous state are unknown, it skips as many again
// for that state. It also does so for each state that was replaced before. Workers therefore accept
// its coordinator, and no version of a name repeats. Each start of the coordinator uses one term:
// with a restart every five minutes the skipped terms last eight weeks. kMaxTerm allows 511
// restores.
inline constexpr int64_t kSkippedTerms = 16'384;
inline constexpr int64_t kSkippedRevisions = int64_t{1} << 32;

struct Restored {
  bool was_done_before = false;  // the snapshot was restored before; nothing was changed
  int64_t term = 0;              // of the snapshot; the restored state skips at least kSkippedTerms
  Revision revision = 0;         // of the snapshot
  std::string replaced;          // new path of the previous state; empty: there was none
  absl::Status unread;           // error when reading the previous state; OK: no error
  // Keys that differ between the previous state and the snapshot, except `cluster`, `restored` and
  // the keys of stored answers. Each list has at most kListedKeys keys.
  std::vector<std::string> lost;     // in the previous state, not in the snapshot
  std::vector<std::string> back;     // in the snapshot, not in the previous state
  std::vector<std::string> changed;  // in both, with different values
  int64_t lost_count = 0;
  int64_t back_count = 0;
  int64_t changed_count = 0;
};
inline constexpr size_t kListedKeys = 20;

// Makes the snapshot in `file` the state of the data folder. Moves the previous state aside in the
// folder, and does not delete it. The state records the digest of its snapshot, and the same
// snapshot is not restored again. A `--restore` flag that stays set therefore does no harm. A file
// kRestoreAgain in the folder requests another restore; RestoreSnapshot removes that file.
//
// The file may be the database of another folder, or a database that was moved away. The commits in
// its log (`FILE-wal`) are restored with it.
//
// FAILED_PRECONDITION, in one of these cases:
// - A process has locked the folder, or the folder of the file.
// - The file is no snapshot, or its term is too high to skip more terms.
// - The snapshot is of another cluster than the state to be replaced.
// - The file, or the state to be replaced, has a newer schema (SCHEMA_MISMATCH).
// - The folder has no state, but its subfolder `coordinator` has one: it is the data folder of
//   `shardmesh up`. Nothing is written.
// - The current state cannot tell which snapshot it was made from, and there is no kRestoreAgain:
//   restoring the same snapshot again would undo all changes acknowledged since.
//
// DATA_LOSS: the snapshot is damaged. NOT_FOUND: there is no such file. INTERNAL: the disk failed
// to read the current state, and there is no kRestoreAgain. After an error the state is unchanged.
// The schema of the state is not upgraded either, so the build that wrote the state can still use
// it.
inline constexpr std::string_view kRestoreAgain = "restore-again";
absl::StatusOr<Restored> RestoreSnapshot(const std::string& folder, const std::string& file);

// A range of row ids, both included, whose pages cannot be read. The rows in the range are unknown.
struct LostRows {
  int64_t first = 0;
  int64_t last = 0;
  std::string why;
};

// The newest readable record of a key for which a lost page may have held a newer record. This
// record looks current, but may have been replaced or deleted.
struct FormerRecord {
  std::string key;  // of a definition, or of a manifest whose names may have moved
  Revision revision = 0;
  int64_t version = 0;  // of a definition
};
// A salvage adds this number to the versions of the definitions among the former records. No
// definition has so many versions, so no version repeats.
inline constexpr int64_t kSkippedVersions = 1'000'000'000;

// A mesh that has arrays, but whose record of its ranks' workers is lost.
struct LostRanks {
  std::string mesh_id;
  Mesh mesh;  // as recorded in the arrays
  int64_t arrays = 0;
};
// By mesh: the workers that get the lost ranks, in the order of ranks. An empty list means that the
// first workers that attach get the ranks.
using GivenRanks = std::map<std::string, std::vector<std::string>>;

// The result of checking a data folder.
struct StoreCheck {
  int64_t schema_version = 0;
  int64_t records = 0;  // number of readable records
  Revision compacted = 0;
  Revision newest = 0;
  absl::Status log;     // DATA_LOSS: acknowledged commits follow the damaged place in the log
  absl::Status pages;   // DATA_LOSS: pages are inconsistent, or the first page is unreadable
  absl::Status bounds;  // DATA_LOSS: the checksum of the bounds does not match
  std::vector<UnreadableRecord> unreadable;
  std::vector<LostRows> lost;  // rows on damaged pages
  std::vector<FormerRecord> former;
  // Meshes whose record of their ranks' workers is lost, without those that got workers from
  // `ranks`.
  std::vector<LostRanks> lost_ranks;
  // The state is not new, but its record `cluster` is missing or unreadable. No coordinator starts
  // with such a state.
  bool lacks_cluster = false;
  // The cluster id that was taken from the snapshot `cluster_of`; empty if none was taken.
  std::string taken_cluster_id;
  // With `set_aside`: new path of the damaged database, if a new database had to be written.
  std::string replaced;

  // Returns whether nothing was ever written to the database.
  bool is_empty() const { return schema_version == 0; }
  // Returns whether all written data can be read.
  bool is_sound() const {
    return !is_empty() && log.ok() && pages.ok() && bounds.ok() && unreadable.empty();
  }
};

// Reads all readable records of the database in a data folder. Without `set_aside`, it leaves the
// folder as it was. If the log or the first page is damaged, or a transaction was interrupted, it
// makes a temporary copy of the database in the folder.
//
// With `set_aside`:
// - It first finishes an interrupted replacement of the database, as each start of a coordinator
//   does.
// - It moves the unreadable records to the table `set_aside` and repairs the bounds. If pages are
//   damaged, it writes a new database of the readable records. A coordinator can then open the
//   folder, without the unreadable records.
// - It rewrites a lost record of a manifest (a commit too large for one transaction) if all chunks
//   of the manifest exist.
// - It marks the state: arrays without a name may have had one (RestoredRecord). Tiles of such
//   arrays are then not deleted.
// - It keeps the schema of a sound state, so that the build that wrote the state can still use it.
//
// The new database includes commits after a damaged frame of the log (WalFile). If the content of
// that frame cannot be derived from checksums, records may be lost without a trace, even the record
// of the newest term. In that case, revisions, terms and versions skip as many numbers as after
// damaged pages or a restore.
//
// If pages are lost, it writes the definitions in StoreCheck::former again, at new revisions, with
// kSkippedVersions added to their versions. It removes the history of these definitions.
//
// With `set_aside`, it takes a missing record `cluster` from the snapshot in the file `cluster_of`,
// unless that argument is empty. The term in the new record is above the skipped terms.
//
// If the record of a mesh's workers is lost, the next start would assign the ranks of the mesh to
// other workers. The tiles on the former workers would no longer count. `ranks` must therefore name
// the workers of each such mesh.
//
// After one of these errors, nothing was set aside:
// - FAILED_PRECONDITION: a process has locked the folder. Or the database or the snapshot belongs
//   to another program, or has a newer schema. Or `ranks` has no entry for a mesh with lost ranks.
// - INVALID_ARGUMENT: `ranks` does not match a mesh with lost ranks. Or `ranks` needs more records
//   than one commit can write. Or `cluster_of` is given although the record `cluster` can be read.
// - INTERNAL: the disk failed to read existing data. This does not mean that the data is damaged.
//
// NOT_FOUND: there is no database. DATA_LOSS: the state is lost (CheckHasState); no record of the
// database can be read; or pages are damaged in a database whose schema has no checksums.
absl::StatusOr<StoreCheck> CheckDataFolder(const std::string& folder, bool set_aside,
                                           const std::string& cluster_of = "",
                                           const GivenRanks& ranks = {});

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_STORE_REPAIR_H_
