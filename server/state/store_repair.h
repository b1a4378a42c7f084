// What is done to a coordinator's data folder while no coordinator runs: putting a snapshot back,
// and looking for records that cannot be read.
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

// How many terms and revisions a restored state skips: more than there can have been since the
// snapshot, so that workers follow its coordinator and no version of a name comes twice. A term is
// a start of the coordinator: one that is started again every five minutes takes eight weeks for
// so many. kMaxTerm allows 511 restores.
inline constexpr int64_t kSkippedTerms = 16'384;
inline constexpr int64_t kSkippedRevisions = int64_t{1} << 32;

struct Restored {
  bool was_done_before = false;  // nothing was changed
  int64_t term = 0;              // of the snapshot; the coordinator begins behind the skipped ones
  Revision revision = 0;         // of the snapshot
  std::string replaced;          // where the state before it is now; empty: there was none
  absl::Status unread;  // why the state before it could not be read; OK: it was, or is none
  // Keys of the two states, without remembered answers: at most kListedKeys of each.
  std::vector<std::string> lost;     // in the state before, not in the snapshot
  std::vector<std::string> back;     // in the snapshot, not in the state before
  std::vector<std::string> changed;  // in both, with other values
  int64_t lost_count = 0;
  int64_t back_count = 0;
  int64_t changed_count = 0;
};
inline constexpr size_t kListedKeys = 20;

// Puts the snapshot in `file` into the data folder, as its state. The state before is set aside in
// the folder, not deleted. A file that was restored last is not restored again, so that a flag that
// stays where it is does no harm: the state itself says of which file it was made. A file
// kRestoreAgain in the folder asks for it once more, and is removed.
//
// The file may be the database of another folder, or one that was moved away. The commits in its
// log (`FILE-wal`) are restored with it.
//
// FAILED_PRECONDITION: a process holds the folder, or that of the file; or the file is no snapshot;
// or it, or the state that it would replace, is of a newer schema (SCHEMA_MISMATCH); or its term is
// too high to go on from; or the state that is there cannot tell of which snapshot it was made, and
// there is no kRestoreAgain: restoring the same one again would undo all that was acknowledged
// since.
// DATA_LOSS: the snapshot is damaged. NOT_FOUND: no file. INTERNAL: the disk does not give the
// state that is there, and there is no kRestoreAgain. The state was not changed then, nor brought
// to our schema: the build that wrote it can go on with it.
inline constexpr std::string_view kRestoreAgain = "restore-again";
absl::StatusOr<Restored> RestoreSnapshot(const std::string& folder, const std::string& file);

// Row ids, both included, between which pages cannot be read: what was there is not known.
struct LostRows {
  int64_t first = 0;
  int64_t last = 0;
  std::string why;
};

// What is the newest of its key that can be read, though a newer record of it may have been on a
// page that is lost: it may pass for current what was replaced or deleted.
struct FormerRecord {
  std::string key;  // a definition's; or a manifest's, whose names may have been moved since
  Revision revision = 0;
  int64_t version = 0;  // of a definition
};
// What a salvage adds to the versions of such definitions, so that no version comes twice. More
// than there can be.
inline constexpr int64_t kSkippedVersions = 1'000'000'000;

// A mesh on which arrays lie, while the record of which workers serve its ranks is lost.
struct LostRanks {
  std::string mesh_id;
  Mesh mesh;  // as the arrays have it
  int64_t arrays = 0;
};
// The workers of such meshes, by rank; none: the first workers that attach get the ranks.
using GivenRanks = std::map<std::string, std::vector<std::string>>;

// What a look at a data folder found.
struct StoreCheck {
  int64_t schema_version = 0;
  int64_t records = 0;  // that can be read
  Revision compacted = 0;
  Revision newest = 0;
  absl::Status log;     // DATA_LOSS: commits that were acknowledged are behind a damage in it
  absl::Status pages;   // DATA_LOSS: they do not fit together, or the first one was not readable
  absl::Status bounds;  // DATA_LOSS: they are not as they were written
  std::vector<UnreadableRecord> unreadable;
  std::vector<LostRows> lost;  // of damaged pages
  std::vector<FormerRecord> former;
  std::vector<LostRanks> lost_ranks;  // that were not given
  // The record `cluster` is not there, or not readable, in a state that is not new: no coordinator
  // starts with it.
  bool lacks_cluster = false;
  std::string taken_cluster_id;  // what that record says now, if it was taken from a snapshot
  // After setting aside: where the damaged database was moved, if a new one had to be written.
  std::string replaced;

  // Nothing was ever written into it.
  bool is_empty() const { return schema_version == 0; }
  // All that was written can be read.
  bool is_sound() const {
    return !is_empty() && log.ok() && pages.ok() && bounds.ok() && unreadable.empty();
  }
};

// Reads all that can be read of the database in a data folder. Without `set_aside` no file of the
// folder changes, is made or is removed; for a damaged log or first page a copy lies there
// meanwhile.
//
// With `set_aside` a replacement that was interrupted is finished first, as each start does. Then
// it moves the unreadable records to the table `set_aside`, mends the bounds, and writes a new
// database of the readable records if pages are damaged; the folder opens afterwards, without them.
// The record of a manifest whose chunks are all there is written anew. The state says from then on
// that its arrays without a name may have had one (RestoredRecord), so that nobody deletes their
// tiles. A sound state keeps its schema: the build that wrote it can go on with it.
//
// Commits behind a damage of the log (WalFile) are taken into the new database. Where a damaged
// frame does not follow from its checksums, records may be lost without a trace, the newest term
// too: revisions, terms and versions then skip as many as after damaged pages or a restore.
//
// Where pages are lost, the definitions of StoreCheck::former are written once more, at the newest
// revision, with kSkippedVersions added to their versions; their history goes.
//
// With `set_aside` the record `cluster`, if the state lacks it, is taken from the snapshot in
// `cluster_of`, if that is not empty; the term is then behind the skipped ones.
//
// Where ranks are lost, others than before would get them at the next start, and the tiles there
// would not count any more: `ranks` must say for each such mesh which workers serve it.
//
// FAILED_PRECONDITION: a process holds the folder; or it, or the snapshot, is another program's or
// a newer schema's; or ranks are lost that are not given. INVALID_ARGUMENT: ranks are given that
// fit no such mesh. Nothing is set aside then. NOT_FOUND: there is no database. DATA_LOSS: the
// state is lost (CheckHasState), or no record of it can be read. INTERNAL: the disk did not give
// what is there, which is no damage: nothing is set aside then.
absl::StatusOr<StoreCheck> CheckDataFolder(const std::string& folder, bool set_aside,
                                           const std::string& cluster_of = "",
                                           const GivenRanks& ranks = {});

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_STORE_REPAIR_H_
