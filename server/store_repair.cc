// Restoring, checking, salvaging.
#include "server/store_repair.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "server/catalogue_record.h"
#include "sharding/digest.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

namespace shardmesh::server {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kClusterKey = "cluster";
constexpr std::string_view kRequestPrefix = "request/";
constexpr int64_t kFirstRow = std::numeric_limits<int64_t>::min();

absl::Status StoreError(absl::StatusCode code, std::string_view message) {
  return WithReason(absl::Status(code, ToAbsl(message)), Reason::kStoreFailed);
}

absl::Status FileError(std::string_view doing, const std::string& path, std::error_code error) {
  const bool is_full = error == std::errc::no_space_on_device;
  return WithReason(
      absl::Status(is_full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
                   StrCat("cannot ", doing, " ", path, ": ", error.message())),
      is_full ? Reason::kStoreFull : Reason::kStoreFailed);
}

// What is said of a folder without a database.
std::string NoDatabase(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return StrCat("there is no folder ", folder);
  // `shardmesh up --data-dir` has a folder for each process below its own.
  const std::string below = (fs::path(folder) / "coordinator").string();
  return fs::exists(DatabasePath(below), error)
             ? StrCat("there is no database ", DatabasePath(folder),
                      "; the coordinator of this cluster keeps its state in ", below)
             : StrCat("there is no database ", DatabasePath(folder),
                      "; give the --data-dir of a coordinator");
}

// What keys stand for in a state.
std::map<std::string, std::string> CurrentOf(const RevisionIndex& index) {
  std::map<std::string, std::string> current;
  const absl::StatusOr<KeyValues> all = index.List("", {});
  if (!all.ok()) return current;
  for (const KeyValue& item : all->items) {
    if (item.key != kClusterKey && item.key != kRestoredKey &&
        item.key.compare(0, kRequestPrefix.size(), kRequestPrefix) != 0) {
      current[item.key] = item.value;
    }
  }
  return current;
}

void Note(const std::string& key, std::vector<std::string>* keys, int64_t* count) {
  ++*count;
  if (keys->size() < kListedKeys) keys->push_back(key);
}

void CompareStates(const RevisionIndex& before, const RevisionIndex& after, Restored* restored) {
  const auto old_keys = CurrentOf(before);
  const auto new_keys = CurrentOf(after);
  for (const auto& [key, value] : old_keys) {
    const auto found = new_keys.find(key);
    if (found == new_keys.end()) {
      Note(key, &restored->lost, &restored->lost_count);
    } else if (found->second != value) {
      Note(key, &restored->changed, &restored->changed_count);
    }
  }
  for (const auto& [key, value] : new_keys) {
    if (old_keys.count(key) == 0) Note(key, &restored->back, &restored->back_count);
  }
}

// Opens the database of a folder for reading all of it; one of an older schema is brought to ours.
absl::StatusOr<StoredState> ReadDatabase(const std::string& path) {
  Database database(path);
  SHARDMESH_RETURN_IF_ERROR(database.Open());
  SHARDMESH_RETURN_IF_ERROR(database.Execute("PRAGMA locking_mode = EXCLUSIVE"));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t version, SchemaVersionOf(database));
  if (version == 0) {
    return StoreError(absl::StatusCode::kFailedPrecondition,
                      StrCat(path, " is empty, not a snapshot"));
  }
  SHARDMESH_RETURN_IF_ERROR(database.CheckPages());
  SHARDMESH_RETURN_IF_ERROR(PrepareSchema(database));
  return ReadState(database);
}

absl::StatusOr<ClusterRecord> ClusterOf(const RevisionIndex& index) {
  SHARDMESH_ASSIGN_OR_RETURN(const KeyValue stored, index.Get(kClusterKey, 0));
  return DecodeCluster(stored.key, stored.value);
}

absl::StatusOr<std::string> DigestOfFile(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    return StoreError(absl::StatusCode::kNotFound, StrCat("cannot read the snapshot ", file));
  }
  const std::string content{std::istreambuf_iterator<char>(in), {}};
  return absl::BytesToHexString(ToAbsl(Sha256(content)));
}

// Of which snapshot the state of a folder was made; empty if of none, or if it cannot be read.
std::string RestoredFrom(const std::string& folder) {
  if (!fs::exists(DatabasePath(folder))) return "";
  Database database(DatabasePath(folder));
  if (!database.Open().ok() || !database.Execute("PRAGMA locking_mode = EXCLUSIVE").ok()) return "";
  const absl::StatusOr<int64_t> version = SchemaVersionOf(database);
  if (!version.ok() || *version < kFirstChecked) return "";
  const auto newest = database.Prepare(
      "SELECT position, value, crc FROM event WHERE key = ?1 ORDER BY position DESC LIMIT 1");
  if (!newest.ok()) return "";
  newest->BindText(1, kRestoredKey);
  const absl::StatusOr<bool> row = database.Step(*newest);
  if (!row.ok() || !*row || newest->IsNull(1)) return "";
  const std::string value(newest->Bytes(1));
  if (newest->Number(2) != RecordChecksum(newest->Number(0), kRestoredKey, &value)) return "";
  const absl::StatusOr<RestoredRecord> restored = DecodeRestored(kRestoredKey, value);
  return restored.ok() ? restored->digest : "";
}

// Removes a database and all that SQLite may have left beside it: the log of another file must not
// be taken for this one's.
absl::Status RemoveDatabase(const std::string& path) {
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
    std::error_code error;
    fs::remove(path + suffix, error);
    if (error) return FileError("remove", path + suffix, error);
  }
  return absl::OkStatus();
}

// Lets the database begin behind all that was ever told from it, and say of which snapshot it is.
// All of it is in its one file then, on the disk.
absl::Status Skip(const std::string& path, const ClusterRecord& cluster, Revision newest,
                  const std::string& digest) {
  Database database(path);
  SHARDMESH_RETURN_IF_ERROR(database.Open());
  SHARDMESH_RETURN_IF_ERROR(database.Execute("PRAGMA locking_mode = EXCLUSIVE"));
  SHARDMESH_RETURN_IF_ERROR(database.Execute("PRAGMA synchronous = FULL"));
  {
    // A snapshot has a log, which closing the database copies without a word of what went wrong.
    SHARDMESH_ASSIGN_OR_RETURN(const auto mode, database.Prepare("PRAGMA journal_mode = DELETE"));
    SHARDMESH_ASSIGN_OR_RETURN(const bool row, database.Step(mode));
    if (!row || mode.Bytes(0) != "delete") {
      return StoreError(absl::StatusCode::kInternal,
                        StrCat("cannot write the log of ", path, " into it"));
    }
  }
  newest += kSkippedRevisions;
  const std::pair<std::string_view, std::string> records[] = {
      {kClusterKey, EncodeCluster(cluster)},
      {kRestoredKey, EncodeRestored({.digest = digest, .may_lack_names = true})}};
  SHARDMESH_ASSIGN_OR_RETURN(const auto erase,
                             database.Prepare("DELETE FROM event WHERE key = ?1"));
  SHARDMESH_ASSIGN_OR_RETURN(const auto insert, database.Prepare(kInsertRecord));
  return database.InTransaction([&]() -> absl::Status {
    for (int32_t place = 0; const auto& [key, record] : records) {
      const int64_t row_id = RowId({.revision = newest, .place = place++});
      erase.BindText(1, key);
      SHARDMESH_RETURN_IF_ERROR(database.Run(erase));
      SHARDMESH_RETURN_IF_ERROR(InsertRecord(database, insert, row_id, key, &record));
    }
    // Whoever watches from before lists anew: what happened since the snapshot is not there.
    return WriteBounds(database, {.compacted = newest, .newest = newest});
  });
}

// Rows that can be read, and what cannot, also of a database whose pages are damaged.
struct Salvaged {
  std::vector<StoredRow> rows;
  std::vector<UnreadableRecord> unreadable;
};

Salvaged Salvage(Database& database) {
  Salvaged salvaged;
  int64_t from = kFirstRow;
  // Behind a page that cannot be read, rows are looked for further and further away.
  for (int64_t skip = 1;;) {
    int64_t last = from - (from == kFirstRow ? 0 : 1);
    bool any = false;
    const absl::Status read = ForEachRow(database, from, [&](StoredRow row) {
      last = row.row_id;
      any = true;
      if (row.why.empty()) {
        salvaged.rows.push_back(std::move(row));
      } else {
        salvaged.unreadable.push_back(
            {row.row_id, std::move(row.key), std::move(row.why), row.lost_key_crc});
      }
    });
    if (read.ok()) return salvaged;
    if (any || salvaged.unreadable.empty()) {
      salvaged.unreadable.push_back(
          {last, "", StrCat("the page behind it cannot be read: ", ToStd(read.message()))});
    }
    skip = any ? 1 : skip * 2;
    if (skip > (int64_t{1} << 60)) return salvaged;
    from = (last == kFirstRow ? 0 : last) + skip;
  }
}

absl::Status WriteSalvaged(const std::string& path, const Salvaged& salvaged,
                           const StoredBounds& bounds) {
  Database database(path);
  SHARDMESH_RETURN_IF_ERROR(database.Open());
  SHARDMESH_RETURN_IF_ERROR(PrepareSchema(database));
  SHARDMESH_ASSIGN_OR_RETURN(const auto insert, database.Prepare(kInsertRecord));
  return database.InTransaction([&]() -> absl::Status {
    std::map<std::string, int64_t> lost;  // the newest row of a key that cannot be read
    for (const UnreadableRecord& record : salvaged.unreadable) {
      if (!record.lost_key_crc.has_value()) lost[record.key] = record.row_id;
    }
    for (const StoredRow& row : salvaged.rows) {
      // Older values of such a key must not pass for what is current.
      if (const auto found = lost.find(row.key);
          found != lost.end() && row.row_id < found->second) {
        continue;
      }
      SHARDMESH_RETURN_IF_ERROR(
          InsertRecord(database, insert, row.row_id, row.key, row.value.get()));
    }
    return WriteBounds(database, bounds);
  });
}

}  // namespace

absl::StatusOr<Restored> RestoreSnapshot(const std::string& folder, const std::string& file) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string digest, DigestOfFile(file));
  SHARDMESH_RETURN_IF_ERROR(MakeDataFolder(folder));
  SHARDMESH_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::Take(folder));
  SHARDMESH_RETURN_IF_ERROR(FinishReplacement(folder));
  Restored restored;
  const std::string again = StrCat(folder, "/", kRestoreAgain);
  if (!fs::exists(again) && RestoredFrom(folder) == digest) {
    restored.was_done_before = true;
    return restored;
  }

  const std::string copy = folder + "/restoring";
  std::error_code error;
  SHARDMESH_RETURN_IF_ERROR(RemoveDatabase(copy));
  fs::copy_file(file, copy, error);
  if (error) return FileError("copy the snapshot to", copy, error);
  SHARDMESH_ASSIGN_OR_RETURN(const StoredState snapshot, ReadDatabase(copy));
  if (!snapshot.unreadable.empty()) {
    return StoreError(
        absl::StatusCode::kDataLoss,
        StrCat("the snapshot ", file, " is damaged: ", snapshot.unreadable.size(),
               " records cannot be read, the first is \"", snapshot.unreadable.front().key, "\""));
  }
  SHARDMESH_ASSIGN_OR_RETURN(ClusterRecord cluster, ClusterOf(snapshot.index));
  restored.term = cluster.term;
  restored.revision = snapshot.index.newest();
  Revision newest = snapshot.index.newest();
  // The state before may be what is damaged: then only the snapshot tells.
  if (fs::exists(DatabasePath(folder))) {
    const absl::StatusOr<StoredState> before = ReadDatabase(DatabasePath(folder));
    // One of a newer schema is not damaged: what it holds would be lost.
    if (ReasonOf(before.status()) == Reason::kSchemaMismatch) return before.status();
    if (before.ok()) {
      if (const auto replaced = ClusterOf(before->index); replaced.ok()) {
        if (replaced->cluster_id != cluster.cluster_id) {
          return StoreError(absl::StatusCode::kFailedPrecondition,
                            StrCat("the snapshot ", file, " is of cluster ", cluster.cluster_id,
                                   ", the data folder ", folder, " of cluster ",
                                   replaced->cluster_id, "; use another data folder"));
        }
        cluster.term = std::max(cluster.term, replaced->term);
      }
      newest = std::max(newest, before->index.newest());
      CompareStates(before->index, snapshot.index, &restored);
    }
  }
  cluster.term += kSkippedTerms;
  SHARDMESH_RETURN_IF_ERROR(CheckTerm(cluster.term));
  SHARDMESH_RETURN_IF_ERROR(Skip(copy, cluster, newest, digest));
  SHARDMESH_ASSIGN_OR_RETURN(restored.replaced, ReplaceDatabase(folder, copy, "replaced.db"));
  fs::remove(again, error);
  if (error) return FileError("remove", again, error);
  SHARDMESH_RETURN_IF_ERROR(SyncFolder(folder));
  return restored;
}

absl::StatusOr<StoreCheck> CheckDataFolder(const std::string& folder, bool set_aside) {
  const std::string path = DatabasePath(folder);
  const auto missing = [&] { return StoreError(absl::StatusCode::kNotFound, NoDatabase(folder)); };
  std::error_code error;
  if (!fs::exists(folder, error)) return missing();
  SHARDMESH_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::Take(folder));
  SHARDMESH_RETURN_IF_ERROR(FinishReplacement(folder));
  if (!fs::exists(path, error)) return missing();
  StoreCheck check;
  auto database = std::make_unique<Database>(path);
  SHARDMESH_RETURN_IF_ERROR(database->Open());
  SHARDMESH_RETURN_IF_ERROR(database->Execute("PRAGMA locking_mode = EXCLUSIVE"));
  SHARDMESH_ASSIGN_OR_RETURN(check.schema_version, SchemaVersionOf(*database));
  check.pages = database->CheckPages();
  // Without checksums there is nothing that could tell a record that is not as it was.
  if (check.schema_version < kFirstChecked ||
      (check.schema_version < kSchemaVersion && check.pages.ok())) {
    SHARDMESH_RETURN_IF_ERROR(check.pages);
    SHARDMESH_RETURN_IF_ERROR(PrepareSchema(*database));
  }
  const absl::StatusOr<StoredBounds> read = ReadBounds(*database);
  check.bounds = read.status();
  Salvaged salvaged = Salvage(*database);
  KeyFinder finder(&salvaged.unreadable);
  for (const StoredRow& row : salvaged.rows) finder.Find(row.key);
  check.records = static_cast<int64_t>(salvaged.rows.size());
  check.unreadable = salvaged.unreadable;
  StoredBounds bounds = read.value_or(StoredBounds());
  for (const StoredRow& row : salvaged.rows) {
    bounds.newest = std::max(bounds.newest, PositionOf(row.row_id).revision);
  }
  for (const UnreadableRecord& record : salvaged.unreadable) {
    bounds.newest = NewestWith(bounds.newest, record.row_id);
  }
  // What was compacted is not known any more: then nothing before now can be watched.
  if (!read.ok()) bounds.compacted = bounds.newest;
  check.compacted = bounds.compacted;
  check.newest = bounds.newest;
  if (!set_aside || check.is_sound()) return check;

  if (check.pages.ok()) {
    SHARDMESH_ASSIGN_OR_RETURN(
        const auto move,
        database->Prepare(
            "INSERT INTO set_aside SELECT position, CAST(key AS BLOB), value, crc, ?2 "
            "FROM event WHERE position = ?1 OR (key = ?3 AND position < ?1)"));
    SHARDMESH_ASSIGN_OR_RETURN(
        const auto erase,
        database->Prepare("DELETE FROM event WHERE position = ?1 OR (key = ?2 AND position < ?1)"));
    const absl::Status moved = database->InTransaction([&]() -> absl::Status {
      for (const UnreadableRecord& record : check.unreadable) {
        move.BindNumber(1, record.row_id);
        move.BindText(2, record.why);
        // Older values of its key must not pass for what is current.
        const std::string_view key = record.lost_key_crc.has_value() ? "" : record.key;
        move.BindText(3, key);
        SHARDMESH_RETURN_IF_ERROR(database->Run(move));
        erase.BindNumber(1, record.row_id);
        erase.BindText(2, key);
        SHARDMESH_RETURN_IF_ERROR(database->Run(erase));
      }
      return WriteBounds(*database, bounds);
    });
    SHARDMESH_RETURN_IF_ERROR(moved);
    return check;
  }
  const std::string salvage = folder + "/salvaged";
  SHARDMESH_RETURN_IF_ERROR(RemoveDatabase(salvage));
  SHARDMESH_RETURN_IF_ERROR(WriteSalvaged(salvage, salvaged, bounds));
  database.reset();
  SHARDMESH_ASSIGN_OR_RETURN(check.replaced, ReplaceDatabase(folder, salvage, "damaged.db"));
  return check;
}

}  // namespace shardmesh::server
