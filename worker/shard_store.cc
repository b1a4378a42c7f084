// The tiles that a worker holds, in memory and on disk.
//
// A data folder holds:
//   LOCK             locked by the store that has it open
//   cluster_id       the cluster that the tiles belong to
//   staged/ARRAY/    a file for each durable tile that is Staged
//   arrays/ARRAY/    the same for Committed ones: an array commits by one rename of its folder
//   trash/           folders on their way out
//   corrupt/         files that could not be read back
#include "worker/shard_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/container/btree_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"
#include "tensor/crc32c.h"

namespace shardmesh::worker {
namespace {

namespace fs = std::filesystem;

constexpr char kLockFile[] = "LOCK";
constexpr char kClusterIdFile[] = "cluster_id";
constexpr char kStagedFolder[] = "staged";
constexpr char kArraysFolder[] = "arrays";
constexpr char kTrashFolder[] = "trash";
constexpr char kCorruptFolder[] = "corrupt";
constexpr int64_t kMaxClusterIdBytes = 256;

std::string Path(const std::string& folder, std::string_view name) {
  return StrCat(folder, "/", name);
}

std::string TileName(const TileDescription& description) {
  return StrCat("tile ", description.tile.ToString(), " of array ", description.array_id);
}

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  return error ? FileError("make folder", path, error.value()) : absl::OkStatus();
}

// Names in a folder, sorted.
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) {
    return FileError("list folder", path, error.value());
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<FileDescriptor> LockFolder(const std::string& folder) {
  const std::string path = Path(folder, kLockFile);
  FileDescriptor lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!lock.valid()) {
    return FileError("open", path, errno);
  }
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return absl::FailedPreconditionError(
          StrCat("data folder ", folder,
                 " is in use by another worker; stop it or give this one a folder of its own"));
    }
    return FileError("lock", path, errno);
  }
  return lock;
}

// Empty if the folder was not yet tied to a cluster.
absl::StatusOr<std::string> ReadClusterId(const std::string& path) {
  absl::StatusOr<InputFile> file = OpenInputFile(path);
  if (absl::IsNotFound(file.status())) {
    return std::string();
  }
  SHARDMESH_RETURN_IF_ERROR(file.status());
  if (file->size_bytes == 0 || file->size_bytes > kMaxClusterIdBytes) {
    return WithReason(
        absl::DataLossError(StrCat(path, " is damaged: it has ", file->size_bytes, " bytes")),
        Reason::kBadFile);
  }
  std::string id(static_cast<size_t>(file->size_bytes), '\0');
  SHARDMESH_RETURN_IF_ERROR(ReadExactly(*file, path, 0, absl::MakeSpan(id)));
  return id;
}

absl::Status WriteClusterId(const std::string& path, std::string_view id) {
  SHARDMESH_ASSIGN_OR_RETURN(AtomicFileWriter file, AtomicFileWriter::Create(path));
  SHARDMESH_RETURN_IF_ERROR(file.Append(id));
  return file.Finish();
}

// A call may name an array twice; it means it once.
absl::btree_set<std::string> Distinct(absl::Span<const std::string> array_ids) {
  return {array_ids.begin(), array_ids.end()};
}

absl::Status ArrayAborted(const TileDescription& description) {
  return absl::AbortedError(
      StrCat(TileName(description), ": its transfer was aborted while the tile was on its way"));
}

absl::Status ChecksumMismatch(const std::string& what, uint32_t found, uint32_t expected) {
  return WithReason(
      absl::DataLossError(absl::StrFormat(
          "%s arrived with CRC-32C %08x instead of %08x; send it again", what, found, expected)),
      Reason::kChecksumMismatch);
}

}  // namespace

StoredTile::StoredTile(TileDescription description, std::shared_ptr<Buffer> buffer, uint32_t crc32c,
                       bool durable)
    : description_(std::move(description)),
      buffer_(std::move(buffer)),
      crc32c_(crc32c),
      durable_(durable) {}

TensorView StoredTile::view() const {
  // The buffer was made for the description, so that this cannot fail.
  return *TensorView::Create(description_.dtype, description_.tile.shape(), bytes());
}

StagedTile::StagedTile(ShardStore* store, TileDescription description,
                       std::shared_ptr<Buffer> buffer, bool durable)
    : store_(store),
      description_(std::move(description)),
      size_bytes_(static_cast<int64_t>(buffer->size())),
      durable_(durable),
      buffer_(std::move(buffer)) {}

StagedTile::~StagedTile() {
  if (!finished_) {
    store_->Forget(description_);
  }
}

absl::Status StagedTile::Append(int64_t offset_bytes, absl::Span<const char> piece,
                                uint32_t piece_crc32c) {
  SHARDMESH_RETURN_IF_ERROR(CheckNext(offset_bytes, static_cast<int64_t>(piece.size())));
  if (const uint32_t found = Crc32c(piece); found != piece_crc32c) {
    return ChecksumMismatch(StrCat(TileName(description_), ": the piece at byte ", offset_bytes),
                            found, piece_crc32c);
  }
  return AppendParts(offset_bytes, {piece}, piece_crc32c);
}

absl::Status StagedTile::AppendParts(int64_t offset_bytes,
                                     absl::Span<const absl::Span<const char>> parts,
                                     uint32_t piece_crc32c) {
  int64_t piece_bytes = 0;
  for (const absl::Span<const char> part : parts) {
    piece_bytes += static_cast<int64_t>(part.size());
  }
  SHARDMESH_RETURN_IF_ERROR(CheckNext(offset_bytes, piece_bytes));
  char* to = buffer_->data() + offset_bytes;
  for (const absl::Span<const char> part : parts) {
    to = std::copy(part.begin(), part.end(), to);
  }
  received_crc32c_ = ConcatCrc32c(received_crc32c_, piece_crc32c, piece_bytes);
  received_bytes_ += piece_bytes;
  return absl::OkStatus();
}

absl::Status StagedTile::CheckNext(int64_t offset_bytes, int64_t piece_bytes) const {
  if (offset_bytes != received_bytes_) {
    return InvalidArgument(Reason::kBadTile,
                           StrCat(TileName(description_), ": a piece starts at byte ", offset_bytes,
                                  ", but the next byte is ", received_bytes_));
  }
  if (piece_bytes > size_bytes_ - received_bytes_) {
    return InvalidArgument(Reason::kBadTile, StrCat(TileName(description_), ": a piece of ",
                                                    piece_bytes, " bytes at byte ", offset_bytes,
                                                    " goes beyond its ", size_bytes_, " bytes"));
  }
  return store_->CheckReceiving(description_);
}

absl::Span<char> StagedTile::mutable_bytes() {
  in_place_ = true;
  return buffer_->mutable_bytes();
}

absl::StatusOr<StoredTilePtr> StagedTile::Finish(std::optional<uint32_t> crc32c) {
  absl::StatusOr<StoredTilePtr> stored = FinishOnce(crc32c);
  if (!stored.ok()) {
    store_->Forget(description_);
  }
  finished_ = true;
  return stored;
}

absl::StatusOr<StoredTilePtr> StagedTile::FinishOnce(std::optional<uint32_t> crc32c) {
  if (!in_place_ && received_bytes_ != size_bytes_) {
    return WithReason(
        absl::FailedPreconditionError(StrCat(TileName(description_), " has only ", received_bytes_,
                                             " of its ", size_bytes_, " bytes")),
        Reason::kBadTile);
  }
  const uint32_t found = in_place_ ? Crc32c(buffer_->bytes()) : received_crc32c_;
  if (crc32c.has_value() && found != *crc32c) {
    return ChecksumMismatch(TileName(description_), found, *crc32c);
  }
  SHARDMESH_RETURN_IF_ERROR(store_->CheckReceiving(description_));
  auto stored = std::make_shared<const StoredTile>(description_, buffer_, found, durable_);
  absl::Status status = durable_ ? store_->WriteStagedFile(*stored) : absl::OkStatus();
  if (status.ok()) {
    status = store_->Publish(stored);
  } else if (absl::Status receiving = store_->CheckReceiving(description_); !receiving.ok()) {
    status = std::move(receiving);  // the abort took the folder away under the writer
  }
  if (!status.ok()) {
    if (durable_) {
      store_->RemoveStagedFile(description_);
    }
    return status;
  }
  return stored;
}

bool ShardStore::TileOrder::operator()(const Tile& a, const Tile& b) const {
  return std::lexicographical_compare(a.ranges.begin(), a.ranges.end(), b.ranges.begin(),
                                      b.ranges.end(), [](const IndexRange& x, const IndexRange& y) {
                                        return std::pair(x.start, x.stop) <
                                               std::pair(y.start, y.stop);
                                      });
}

ShardStore::ShardStore(Options options, FileDescriptor lock)
    : pool_(std::move(options.pool)),
      data_dir_(std::move(options.data_dir)),
      lock_(std::move(lock)) {}

absl::StatusOr<std::unique_ptr<ShardStore>> ShardStore::Open(Options options) {
  FileDescriptor lock;
  if (!options.data_dir.empty()) {
    SHARDMESH_RETURN_IF_ERROR(MakeFolder(options.data_dir));
    SHARDMESH_ASSIGN_OR_RETURN(lock, LockFolder(options.data_dir));
  }
  std::unique_ptr<ShardStore> store(new ShardStore(std::move(options), std::move(lock)));
  if (store->has_data_dir()) {
    SHARDMESH_RETURN_IF_ERROR(store->Recover());
  }
  return store;
}

absl::Status ShardStore::Recover() {
  for (const char* folder : {kStagedFolder, kArraysFolder, kTrashFolder, kCorruptFolder}) {
    SHARDMESH_RETURN_IF_ERROR(MakeFolder(Path(data_dir_, folder)));
  }
  SHARDMESH_RETURN_IF_ERROR(SyncFolder(data_dir_));
  const std::string trash = Path(data_dir_, kTrashFolder);
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> discarded, ListFolder(trash));
  for (const std::string& name : discarded) {
    std::error_code ignored;  // tried again at the next start
    fs::remove_all(Path(trash, name), ignored);
  }
  SHARDMESH_ASSIGN_OR_RETURN(std::string id, ReadClusterId(Path(data_dir_, kClusterIdFile)));
  {
    absl::MutexLock lock(&mutex_);
    cluster_id_ = std::move(id);
  }
  // Committed first: where a crash left an array in both, the staged copy is the one to go.
  SHARDMESH_RETURN_IF_ERROR(RecoverArrays(Path(data_dir_, kArraysFolder), TileState::kCommitted));
  return RecoverArrays(Path(data_dir_, kStagedFolder), TileState::kStaged);
}

absl::Status ShardStore::RecoverArrays(const std::string& folder, TileState state) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> array_ids, ListFolder(folder));
  for (const std::string& array_id : array_ids) {
    RecoverArray(Path(folder, array_id), state);
  }
  return absl::OkStatus();
}

void ShardStore::RecoverArray(const std::string& folder, TileState state) {
  const absl::StatusOr<std::vector<std::string>> names = ListFolder(folder);
  if (!names.ok()) {
    recovery_report_.problems.push_back({folder, "", names.status()});
    return;
  }
  for (const std::string& name : *names) {
    const std::string path = Path(folder, name);
    std::error_code ignored;
    if (absl::EndsWith(name, ToAbsl(kTemporarySuffix))) {
      fs::remove(path, ignored);
      continue;
    }
    absl::Status status = RecoverTile(path, state);
    if (status.ok()) {
      continue;
    }
    RecoveryProblem problem{path, "", std::move(status)};
    if (absl::IsDataLoss(problem.status) || absl::IsFailedPrecondition(problem.status)) {
      const std::string base = Path(Path(data_dir_, kCorruptFolder),
                                    StrCat(fs::path(folder).filename().string(), ".", name));
      std::string target = base;
      for (int i = 1; fs::exists(target, ignored); ++i) {
        target = StrCat(base, ".", i);
      }
      std::error_code error;
      fs::rename(path, target, error);
      if (!error) {
        problem.moved_to = std::move(target);
      }
    }
    recovery_report_.problems.push_back(std::move(problem));
  }
  rmdir(folder.c_str());  // succeeds only where nothing is left in it
}

absl::Status ShardStore::RecoverTile(const std::string& path, TileState state) {
  SHARDMESH_ASSIGN_OR_RETURN(TileFileContents contents, ReadTileFile(path, *pool_));
  TileDescription& description = contents.header.description;
  const fs::path expected = fs::path(description.array_id) / TileFileName(description.tile);
  const fs::path actual = fs::path(path).parent_path().filename() / fs::path(path).filename();
  if (actual != expected) {
    return WithReason(
        absl::DataLossError(StrCat("tile file ", path, " holds ", TileName(description),
                                   ", which belongs in ", expected.string())),
        Reason::kBadFile);
  }
  absl::MutexLock lock(&mutex_);
  if (cluster_id_.empty()) {
    SHARDMESH_RETURN_IF_ERROR(
        WriteClusterId(Path(data_dir_, kClusterIdFile), contents.header.cluster_id));
    cluster_id_ = contents.header.cluster_id;
  }
  if (contents.header.cluster_id != cluster_id_) {
    return WithReason(absl::FailedPreconditionError(
                          StrCat("tile file ", path, " belongs to cluster ",
                                 contents.header.cluster_id, ", the folder to ", cluster_id_)),
                      Reason::kClusterMismatch);
  }
  ArrayEntry& array = arrays_[description.array_id];
  if (!array.tiles.empty() && array.tiles.begin()->second.state != state) {
    return WithReason(
        absl::DataLossError(StrCat("tile file ", path, " is staged, but its array is committed")),
        Reason::kBadFile);
  }
  const Tile tile = description.tile;
  const int64_t size_bytes = static_cast<int64_t>(contents.bytes.size());
  array.tiles[tile] = {
      state, std::make_shared<const StoredTile>(std::move(description),
                                                std::make_shared<Buffer>(std::move(contents.bytes)),
                                                contents.header.crc32c, /*durable=*/true)};
  ++(state == TileState::kCommitted ? recovery_report_.committed_tiles
                                    : recovery_report_.staged_tiles);
  recovery_report_.size_bytes += size_bytes;
  return absl::OkStatus();
}

std::string ShardStore::cluster_id() const {
  absl::MutexLock lock(&mutex_);
  return cluster_id_;
}

absl::Status ShardStore::SetClusterId(std::string_view cluster_id) {
  if (cluster_id.empty() || static_cast<int64_t>(cluster_id.size()) > kMaxClusterIdBytes) {
    return InvalidArgument(Reason::kBadField, StrCat("a cluster id has 1 to ", kMaxClusterIdBytes,
                                                     " bytes, not ", cluster_id.size()));
  }
  absl::MutexLock transition(&transition_mutex_);
  const std::string current = this->cluster_id();
  if (current == cluster_id) {
    return absl::OkStatus();
  }
  if (!current.empty()) {
    return WithReason(
        absl::FailedPreconditionError(StrCat("the worker holds tiles of cluster ", current,
                                             " and cannot join cluster ", cluster_id,
                                             "; start it with an empty data folder")),
        Reason::kClusterMismatch);
  }
  if (has_data_dir()) {
    SHARDMESH_RETURN_IF_ERROR(WriteClusterId(Path(data_dir_, kClusterIdFile), cluster_id));
  }
  absl::MutexLock lock(&mutex_);
  cluster_id_ = std::string(cluster_id);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StagedTile>> ShardStore::Stage(TileDescription description,
                                                              bool durable,
                                                              std::shared_ptr<Buffer> memory) {
  SHARDMESH_RETURN_IF_ERROR(CheckTileDescription(description));
  if (durable && !has_data_dir()) {
    return absl::FailedPreconditionError(
        StrCat(TileName(description),
               " is to be durable, but this worker keeps no files; start it with --data-dir"));
  }
  {
    absl::MutexLock lock(&mutex_);
    if (durable && cluster_id_.empty()) {
      return absl::FailedPreconditionError(
          StrCat(TileName(description), " cannot be stored before the worker joins a cluster"));
    }
    const auto array = arrays_.find(description.array_id);
    if (array != arrays_.end()) {
      if (array->second.changing) {
        return absl::AbortedError(StrCat("array ", description.array_id,
                                         " is being committed or aborted at this moment"));
      }
      for (const auto& [tile, entry] : array->second.tiles) {
        if (entry.state == TileState::kAborted) {
          return absl::AbortedError(
              StrCat("array ", description.array_id, " was aborted; its tiles are being dropped"));
        }
        if (entry.state == TileState::kCommitted) {
          return WithReason(absl::AlreadyExistsError(StrCat("array ", description.array_id,
                                                            " is committed and cannot change")),
                            Reason::kAlreadyExists);
        }
      }
      if (array->second.tiles.contains(description.tile)) {
        return WithReason(absl::AlreadyExistsError(
                              StrCat(TileName(description), " is here already or on its way")),
                          Reason::kAlreadyExists);
      }
    }
    arrays_[description.array_id].tiles[description.tile] = {TileState::kReceiving, nullptr};
  }
  if (memory == nullptr) {
    absl::StatusOr<Buffer> buffer =
        pool_->Allocate(TileSizeBytes(description), TileName(description));
    if (!buffer.ok()) {
      Forget(description);
      return std::move(buffer).status();
    }
    memory = std::make_shared<Buffer>(*std::move(buffer));
  }
  return std::unique_ptr<StagedTile>(
      new StagedTile(this, std::move(description), std::move(memory), durable));
}

std::shared_ptr<Buffer> ShardStore::TakeMemory(std::string_view array_id, const Tile& tile) {
  StoredTilePtr stored;  // freed under no lock
  absl::MutexLock lock(&mutex_);
  const auto array = arrays_.find(ToAbsl(array_id));
  if (array == arrays_.end() || array->second.changing) {
    return nullptr;
  }
  auto& tiles = array->second.tiles;
  const auto found = tiles.find(tile);
  // Others get at either by the entry alone, hence under the lock.
  if (found == tiles.end() || found->second.state != TileState::kCommitted ||
      found->second.stored->durable() || found->second.stored.use_count() != 1 ||
      found->second.stored->buffer_.use_count() != 1) {
    return nullptr;
  }
  stored = std::move(found->second.stored);
  tiles.erase(found);
  if (tiles.empty()) {
    arrays_.erase(array);
  }
  return stored->buffer_;
}

absl::Status ShardStore::Commit(absl::Span<const std::string> array_ids) {
  const absl::btree_set<std::string> distinct_ids = Distinct(array_ids);
  absl::MutexLock transition(&transition_mutex_);
  std::vector<std::string> staged_ids;
  std::vector<std::string> ids_with_files;
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& array_id : distinct_ids) {
      const auto array = arrays_.find(array_id);
      if (array == arrays_.end()) {
        return WithReason(
            absl::NotFoundError(StrCat("array ", array_id, " has no tile here to commit")),
            Reason::kNotFound);
      }
      bool staged = false;
      bool has_files = false;
      for (const auto& [tile, entry] : array->second.tiles) {
        if (entry.state == TileState::kAborted) {
          return absl::AbortedError(StrCat("array ", array_id, " was aborted"));
        }
        if (entry.state == TileState::kReceiving) {
          return absl::FailedPreconditionError(
              StrCat("tile ", tile.ToString(), " of array ", array_id, " is still on its way"));
        }
        staged = staged || entry.state == TileState::kStaged;
        has_files = has_files || entry.stored->durable();
      }
      if (staged) {
        staged_ids.push_back(array_id);
        if (has_files) {
          ids_with_files.push_back(array_id);
        }
      }
    }
    for (const std::string& array_id : staged_ids) {
      arrays_[array_id].changing = true;
    }
  }
  absl::Status status;
  size_t moved = 0;
  while (status.ok() && moved < ids_with_files.size()) {
    status = CommitFiles(ids_with_files[moved]);
    moved += status.ok() ? 1 : 0;
  }
  if (moved > 0) {
    status.Update(SyncFolder(Path(data_dir_, kArraysFolder)));
    status.Update(SyncFolder(Path(data_dir_, kStagedFolder)));
  }
  absl::MutexLock lock(&mutex_);
  for (const std::string& array_id : staged_ids) {
    ArrayEntry& array = arrays_[array_id];
    array.changing = false;
    const auto unmoved = ids_with_files.begin() + static_cast<std::ptrdiff_t>(moved);
    if (std::find(unmoved, ids_with_files.end(), array_id) != ids_with_files.end()) {
      continue;
    }
    for (auto& [tile, entry] : array.tiles) {
      entry.state = TileState::kCommitted;
    }
  }
  return status;
}

absl::Status ShardStore::Abort(absl::Span<const std::string> array_ids) {
  const absl::btree_set<std::string> distinct_ids = Distinct(array_ids);
  absl::MutexLock transition(&transition_mutex_);
  std::vector<StoredTilePtr> dropped;  // freed under no lock
  std::vector<std::string> ids_with_files;
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& array_id : distinct_ids) {
      const auto array = arrays_.find(array_id);
      if (array != arrays_.end() &&
          array->second.tiles.begin()->second.state == TileState::kCommitted) {
        return absl::FailedPreconditionError(
            StrCat("array ", array_id, " is committed and cannot be aborted; release it"));
      }
    }
    for (const std::string& array_id : distinct_ids) {
      const auto array = arrays_.find(array_id);
      if (array == arrays_.end()) {
        continue;
      }
      auto& tiles = array->second.tiles;
      for (auto tile = tiles.begin(); tile != tiles.end();) {
        TileEntry& entry = tile->second;
        if (entry.state == TileState::kStaged) {
          array->second.changing = array->second.changing || entry.stored->durable();
          dropped.push_back(std::move(entry.stored));
          tile = tiles.erase(tile);
        } else {
          entry.state = TileState::kAborted;
          ++tile;
        }
      }
      if (array->second.changing) {
        ids_with_files.push_back(array_id);
      } else if (tiles.empty()) {
        arrays_.erase(array);
      }
    }
  }
  absl::Status status;
  for (const std::string& array_id : ids_with_files) {
    status.Update(DiscardFiles(kStagedFolder, array_id));
  }
  absl::MutexLock lock(&mutex_);
  for (const std::string& array_id : ids_with_files) {
    const auto array = arrays_.find(array_id);
    array->second.changing = false;
    if (array->second.tiles.empty()) {
      arrays_.erase(array);
    }
  }
  return status;
}

absl::Status ShardStore::Release(absl::Span<const std::string> array_ids) {
  const absl::btree_set<std::string> distinct_ids = Distinct(array_ids);
  absl::MutexLock transition(&transition_mutex_);
  std::vector<ArrayEntry> dropped;  // freed under no lock
  std::vector<std::string> ids_with_files;
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& array_id : distinct_ids) {
      const auto array = arrays_.find(array_id);
      if (array != arrays_.end() &&
          array->second.tiles.begin()->second.state != TileState::kCommitted) {
        return absl::FailedPreconditionError(
            StrCat("array ", array_id, " is not committed; abort it instead"));
      }
    }
    for (const std::string& array_id : distinct_ids) {
      const auto array = arrays_.find(array_id);
      if (array == arrays_.end()) {
        continue;
      }
      for (const auto& [tile, entry] : array->second.tiles) {
        if (entry.stored->durable()) {
          ids_with_files.push_back(array_id);
          break;
        }
      }
      dropped.push_back(std::move(array->second));
      arrays_.erase(array);
    }
  }
  absl::Status status;
  for (const std::string& array_id : ids_with_files) {
    status.Update(DiscardFiles(kArraysFolder, array_id));
  }
  return status;
}

absl::StatusOr<StoredTilePtr> ShardStore::Find(std::string_view array_id, const Tile& tile) const {
  return FindIn(array_id, tile, /*staged_too=*/false);
}

absl::StatusOr<StoredTilePtr> ShardStore::FindStaged(std::string_view array_id,
                                                     const Tile& tile) const {
  return FindIn(array_id, tile, /*staged_too=*/true);
}

absl::StatusOr<StoredTilePtr> ShardStore::FindIn(std::string_view array_id, const Tile& tile,
                                                 bool staged_too) const {
  {
    absl::MutexLock lock(&mutex_);
    const auto array = arrays_.find(ToAbsl(array_id));
    if (array != arrays_.end()) {
      const auto found = array->second.tiles.find(tile);
      if (found != array->second.tiles.end() &&
          (found->second.state == TileState::kCommitted ||
           (staged_too && found->second.state == TileState::kStaged))) {
        return found->second.stored;
      }
    }
  }
  return WithReason(absl::NotFoundError(StrCat("this worker holds no tile ", tile.ToString(),
                                               " of array ", array_id)),
                    Reason::kNotFound);
}

absl::StatusOr<std::vector<StoredTilePtr>> ShardStore::FindAll(std::string_view array_id) const {
  return FindAllIn(array_id, /*staged_too=*/false);
}

absl::StatusOr<std::vector<StoredTilePtr>> ShardStore::FindAllStaged(
    std::string_view array_id) const {
  return FindAllIn(array_id, /*staged_too=*/true);
}

absl::StatusOr<std::vector<StoredTilePtr>> ShardStore::FindAllIn(std::string_view array_id,
                                                                 bool staged_too) const {
  std::vector<StoredTilePtr> stored;
  {
    absl::MutexLock lock(&mutex_);
    const auto array = arrays_.find(ToAbsl(array_id));
    if (array != arrays_.end()) {
      for (const auto& [tile, entry] : array->second.tiles) {
        if (entry.state == TileState::kCommitted ||
            (staged_too && entry.state == TileState::kStaged)) {
          stored.push_back(entry.stored);
        }
      }
    }
  }
  if (stored.empty()) {
    return WithReason(absl::NotFoundError(StrCat("this worker holds no tile of array ", array_id)),
                      Reason::kNotFound);
  }
  return stored;
}

ShardStore::InventoryPage ShardStore::ListInventory(std::string_view first_array_id,
                                                    int64_t max_tiles) const {
  InventoryPage page;
  absl::MutexLock lock(&mutex_);
  for (auto array = arrays_.lower_bound(ToAbsl(first_array_id)); array != arrays_.end(); ++array) {
    if (static_cast<int64_t>(page.tiles.size()) >= max_tiles) {
      page.next_array_id = array->first;
      break;
    }
    for (const auto& [tile, entry] : array->second.tiles) {
      if (entry.state == TileState::kStaged || entry.state == TileState::kCommitted) {
        page.tiles.push_back({entry.stored, entry.state});
      }
    }
  }
  return page;
}

int64_t ShardStore::used_bytes() const {
  const int64_t idle_bytes = pool_->idle_bytes();
  return std::max<int64_t>(0, pool_->budget().used_bytes() - idle_bytes);
}

int64_t ShardStore::limit_bytes() const { return pool_->budget().limit_bytes(); }

absl::Status ShardStore::CheckReceiving(const TileDescription& description) const {
  absl::MutexLock lock(&mutex_);
  const TileEntry& entry = arrays_.find(description.array_id)->second.tiles.at(description.tile);
  return entry.state == TileState::kReceiving ? absl::OkStatus() : ArrayAborted(description);
}

absl::Status ShardStore::Publish(StoredTilePtr tile) {
  const TileDescription& description = tile->description();
  absl::MutexLock lock(&mutex_);
  TileEntry& entry = arrays_.find(description.array_id)->second.tiles.at(description.tile);
  if (entry.state != TileState::kReceiving) {
    return ArrayAborted(description);
  }
  entry = {TileState::kStaged, std::move(tile)};
  return absl::OkStatus();
}

void ShardStore::Forget(const TileDescription& description) {
  absl::MutexLock lock(&mutex_);
  const auto array = arrays_.find(description.array_id);
  array->second.tiles.erase(description.tile);
  // An abort that is removing the array's files erases the entry itself.
  if (array->second.tiles.empty() && !array->second.changing) {
    arrays_.erase(array);
  }
}

absl::Status ShardStore::WriteStagedFile(const StoredTile& tile) {
  const TileDescription& description = tile.description();
  const std::string staged = Path(data_dir_, kStagedFolder);
  const std::string folder = Path(staged, description.array_id);
  SHARDMESH_RETURN_IF_ERROR(MakeFolder(folder));
  SHARDMESH_RETURN_IF_ERROR(SyncFolder(staged));
  return WriteTileFile(Path(folder, TileFileName(description.tile)),
                       {description, cluster_id(), tile.crc32c()}, tile.bytes());
}

void ShardStore::RemoveStagedFile(const TileDescription& description) {
  const std::string folder = Path(Path(data_dir_, kStagedFolder), description.array_id);
  unlink(Path(folder, TileFileName(description.tile)).c_str());
  if (!CheckReceiving(description).ok()) {
    rmdir(folder.c_str());  // the array is aborted: whoever leaves last removes its folder
  }
}

absl::Status ShardStore::DiscardFiles(const std::string& folder, const std::string& array_id) {
  const std::string from = Path(Path(data_dir_, folder), array_id);
  std::string to;
  std::error_code ignored;
  do {
    to = Path(Path(data_dir_, kTrashFolder), StrCat(array_id, ".", next_discard_++));
  } while (fs::exists(to, ignored));
  if (rename(from.c_str(), to.c_str()) != 0) {
    return errno == ENOENT ? absl::OkStatus() : FileError("discard", from, errno);
  }
  SHARDMESH_RETURN_IF_ERROR(SyncFolder(Path(data_dir_, folder)));
  fs::remove_all(to, ignored);  // what is left goes at the next start
  return absl::OkStatus();
}

absl::Status ShardStore::CommitFiles(const std::string& array_id) {
  // Files that could not be read back for want of memory may still be there: the new ones replace
  // them.
  SHARDMESH_RETURN_IF_ERROR(DiscardFiles(kArraysFolder, array_id));
  const std::string from = Path(Path(data_dir_, kStagedFolder), array_id);
  const std::string to = Path(Path(data_dir_, kArraysFolder), array_id);
  if (rename(from.c_str(), to.c_str()) != 0) {
    return FileError("commit", from, errno);
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::worker
