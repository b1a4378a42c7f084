// The tiles that a worker holds, in memory and on disk.
//
// A data folder holds:
//
// clang-format off
//   LOCK               locked by the process that has the folder open; has the process's id
//   cluster_id         the cluster that the tiles belong to
//   identity           the worker that the tiles belong to
//   staged/ARRAY/      a file for each durable tile that is Staged
//   arrays/ARRAY/      a file for each durable tile that is Committed; a commit renames the folder
//   quarantine/ARRAY/  tiles in quarantine, and a file `about` with the reason
//   unloaded/ARRAY     for each array whose tiles are out of memory (Unload): its successor's id
//   trash/             folders to be removed
//   corrupt/           files that could not be read back
// clang-format on
#include "worker/store/shard_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/container/btree_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "process/crc32c.h"
#include "process/failpoint.h"
#include "process/lock_file.h"
#include "process/log.h"
#include "process/steady_deadline.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

namespace fs = std::filesystem;

constexpr char kLockFile[] = "LOCK";
constexpr char kClusterIdFile[] = "cluster_id";
constexpr char kIdentityFile[] = "identity";
constexpr char kStagedFolder[] = "staged";
constexpr char kArraysFolder[] = "arrays";
constexpr char kQuarantineFolder[] = "quarantine";
constexpr char kAboutFile[] = "about";
constexpr char kTrashFolder[] = "trash";
constexpr char kCorruptFolder[] = "corrupt";
constexpr char kUnloadedFolder[] = "unloaded";
// If a folder has this file, it is the data folder of a coordinator, not of a worker.
constexpr char kCoordinatorFile[] = "state.db";
constexpr int64_t kMaxOwnerBytes = 256;
constexpr int64_t kMaxAboutBytes = 4096;
// Bytes that Unload and Recover read at a time to verify a file.
constexpr int64_t kVerifyPieceBytes = int64_t{1} << 20;
// How often Unload looks whether readers still use memory.
constexpr absl::Duration kReaderPollInterval = absl::Milliseconds(5);
// How long an unload waits for the memory of its last reader to be counted as free.
constexpr absl::Duration kReturnWait = absl::Seconds(2);
// Limit for the bytes of the quarantine on disk, unless the operator sets another limit.
constexpr int64_t kMaxQuarantineBytes = int64_t{64} << 30;
// By default, the quarantine takes at most the file system's size divided by this number.
constexpr int64_t kQuarantinePart = 4;
// If more folders than this number have changed, one sync of the whole file system replaces a sync
// of each folder.
constexpr size_t kMaxSyncedFolders = 16;

std::string Path(const std::string& folder, std::string_view name) {
  return StrCat(folder, "/", name);
}

// Returns the path of the file that says that the array is unloaded.
std::string MarkerPath(const std::string& data_dir, const std::string& array_id) {
  return Path(Path(data_dir, kUnloadedFolder), array_id);
}

std::string TileName(const TileDescription& description) {
  return StrCat("tile ", description.tile.ToString(), " of array ", description.array_id);
}

// Creates a folder whose parent folder must exist. An operator may have moved or unmounted the
// parent folder. If this function created a new parent folder, no later start would find the
// content of the new folder.
absl::Status MakeFolder(const std::string& path) {
  if (SHARDMESH_FAILS("tiles.make_folder")) return FileError("make folder", path, errno);
  if (mkdir(path.c_str(), 0777) == 0 || errno == EEXIST) {
    return absl::OkStatus();
  }
  if (errno == ENOENT) {
    return absl::FailedPreconditionError(
        StrCat("cannot make folder ", path, ": the data folder was moved or removed under this ",
               "worker; stop it, put the folder back, and start it again"));
  }
  return FileError("make folder", path, errno);
}

absl::Status MakeDataFolder(const std::string& path) {
  if (SHARDMESH_FAILS("tiles.make_folder")) return FileError("make folder", path, errno);
  return MakeFolders(path);
}

// Returns the names of a folder's entries, sorted.
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path) {
  if (SHARDMESH_FAILS("tiles.list_folder")) return FileError("list folder", path, errno);
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
  SHARDMESH_ASSIGN_OR_RETURN(FileLock lock, TakeLock(path));
  if (!lock.held.valid()) {
    return absl::FailedPreconditionError(StrCat("data folder ", folder, " is in use by process ",
                                                lock.holder,
                                                ", another worker; end that process, or give this "
                                                "worker a folder of its own"));
  }
  return std::move(lock.held);
}

// Reads a small text file, such as the file with the cluster id. Returns empty text if the file is
// missing. DATA_LOSS if the file is empty or has more than `max_bytes`.
absl::StatusOr<std::string> ReadText(const std::string& path, int64_t max_bytes) {
  absl::StatusOr<InputFile> file = OpenInputFile(path);
  if (absl::IsNotFound(file.status())) {
    return std::string();
  }
  SHARDMESH_RETURN_IF_ERROR(file.status());
  if (file->size_bytes == 0 || file->size_bytes > max_bytes) {
    return WithReason(
        absl::DataLossError(StrCat(path, " is damaged: it has ", file->size_bytes, " bytes")),
        Reason::kBadFile, {{fact::kFile, path}});
  }
  std::string text(static_cast<size_t>(file->size_bytes), '\0');
  SHARDMESH_RETURN_IF_ERROR(ReadExactly(*file, path, 0, absl::MakeSpan(text)));
  return text;
}

// Reads a file that names the cluster or the worker to which a folder belongs. Returns empty text
// if the file is missing. DATA_LOSS if the text has a character that `may_be_there` rejects.
absl::StatusOr<std::string> ReadOwner(const std::string& path, bool (*may_be_there)(char)) {
  SHARDMESH_ASSIGN_OR_RETURN(std::string text, ReadText(path, kMaxOwnerBytes));
  if (!std::all_of(text.begin(), text.end(), may_be_there)) {
    return WithReason(
        absl::DataLossError(StrCat(
            path, " is damaged: it says \"", absl::CEscape(text),
            "\"; no tile was touched: write its old content back, and start the worker again")),
        Reason::kBadFile, {{fact::kFile, path}});
  }
  return text;
}

absl::Status WriteText(const std::string& path, std::string_view text) {
  SHARDMESH_ASSIGN_OR_RETURN(AtomicFileWriter file, AtomicFileWriter::Create(path));
  SHARDMESH_RETURN_IF_ERROR(file.Append(text));
  return file.Finish();
}

// Replaces the file in one step (by a rename), as WriteText does, but does not sync the file.
absl::Status WriteTextUnsynced(const std::string& path, std::string_view text) {
  const std::string temporary = StrCat(path, kTemporarySuffix);
  FileDescriptor file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.valid()) {
    return FileError("open", temporary, errno);
  }
  // If write() stores only a part of such a small text, the disk is full. In this case write() sets
  // no errno.
  errno = ENOSPC;
  if (SHARDMESH_FAILS("tiles.write_about") ||
      write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    const int error = errno;
    unlink(temporary.c_str());
    return FileError("write", temporary, error);
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return FileError("rename", temporary, errno);
  }
  return absl::OkStatus();
}

const char* FolderOf(TileState state) {
  return state == TileState::kCommitted ? kArraysFolder : kStagedFolder;
}

// Returns the content of the file `about`. Its lines are: the time at which the array came to
// quarantine, whether the array is committed, whether it lives, and the reason for the quarantine.
// The reason may have several lines.
std::string EncodeAbout(const QuarantinedArray& array) {
  return StrCat(absl::ToUnixMillis(array.since), "\n", array.committed ? 1 : 0, "\n",
                array.array_lives ? 1 : 0, "\n", array.reason);
}

bool DecodeAbout(const std::string& text, QuarantinedArray* array) {
  const std::vector<std::string> lines = absl::StrSplit(text, absl::MaxSplits('\n', 3));
  int64_t since = 0;
  if (lines.size() != 4 || !absl::SimpleAtoi(lines[0], &since)) {
    return false;
  }
  array->since = absl::FromUnixMillis(since);
  array->committed = lines[1] == "1";
  array->array_lives = lines[2] == "1";
  array->reason = lines[3];
  return true;
}

// Returns how many bytes of the pool a buffer of this size takes.
int64_t PoolBytes(int64_t size_bytes) {
  constexpr int64_t kPageBytes = 4096;
  const int64_t unit = size_bytes < kPageBytes ? int64_t{Buffer::kAlignment} : kPageBytes;
  return (size_bytes + unit - 1) / unit * unit;
}

// Returns about how many bytes a tile file takes on disk: its header and its elements in whole
// blocks, and a block for its folder. `size_bytes`: size of the elements.
int64_t DiskBytes(const TileFileHeader& header, int64_t size_bytes) {
  constexpr int64_t kBlockBytes = 4096;
  const int64_t file_bytes = TileFileHeaderBytes(header) + size_bytes;
  return (file_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes + kBlockBytes;
}

// Returns the limit for the quarantine on disk if the operator sets none.
int64_t DefaultQuarantineBytes(const std::string& data_dir) {
  std::error_code error;
  const fs::space_info space = fs::space(data_dir, error);
  if (error) {
    return kMaxQuarantineBytes;
  }
  return static_cast<int64_t>(
      std::min<uintmax_t>(kMaxQuarantineBytes, space.capacity / uintmax_t{kQuarantinePart}));
}

void RemoveCorrupt(const std::string& path, int64_t size_bytes, const char* why) {
  std::error_code ignored;  // the next start tries again
  fs::remove_all(path, ignored);
  LogWarning("removed a file that could not be read back",
             {{"path", path}, {"size_bytes", size_bytes}, {"why", why}});
}

// Returns the ids without duplicates. A call may name an array twice, and the second mention has no
// effect.
absl::btree_set<std::string> Distinct(absl::Span<const std::string> array_ids) {
  return {array_ids.begin(), array_ids.end()};
}

absl::Status ArrayAborted(const TileDescription& description) {
  return absl::AbortedError(
      StrCat(TileName(description), ": its transfer was aborted while the tile was on its way"));
}

absl::Status NotInQuarantine(const std::string& array_id) {
  return WithReason(
      absl::NotFoundError(StrCat("array ", array_id, " is not in this worker's quarantine")),
      Reason::kNotFound, {{fact::kKind, "array"}, {fact::kName, array_id}});
}

absl::Status BeingRestored(const std::string& array_id) {
  return absl::AbortedError(
      StrCat("array ", array_id, " is being restored at this moment; look again when that ended"));
}

// Returns the CRC-32C of the bytes that the tile has now.
uint32_t ContentCrc32c(const StoredTile& tile) {
  uint32_t crc32c = 0;
  std::vector<char> scratch;
  for (int64_t at = 0; at < tile.size_bytes(); at += kVerifyPieceBytes) {
    crc32c = ExtendCrc32c(crc32c, tile.Piece(at, kVerifyPieceBytes, &scratch));
  }
  return crc32c;
}

absl::Status ChecksumMismatch(const std::string& what, uint32_t found, uint32_t expected) {
  return WithReason(
      absl::DataLossError(absl::StrFormat(
          "%s arrived with CRC-32C %08x instead of %08x; send it again", what, found, expected)),
      Reason::kChecksumMismatch,
      {{fact::kHave, absl::StrFormat("%08x", found)},
       {fact::kNeed, absl::StrFormat("%08x", expected)}});
}

}  // namespace

StoredTile::StoredTile(TileDescription description, std::shared_ptr<Buffer> buffer, uint32_t crc32c,
                       bool durable)
    : description_(std::make_shared<const TileDescription>(std::move(description))),
      buffer_(std::move(buffer)),
      form_(nullptr),
      size_bytes_(static_cast<int64_t>(buffer_->size())),
      crc32c_(crc32c),
      durable_(durable) {}

StoredTile::StoredTile(TileDescription description, std::shared_ptr<Buffer> buffer,
                       int64_t state_step)
    : description_(std::make_shared<const TileDescription>(std::move(description))),
      buffer_(std::move(buffer)),
      form_(nullptr),
      size_bytes_(static_cast<int64_t>(buffer_->size())),
      crc32c_(0),
      durable_(false),
      state_step_(state_step) {}

StoredTile::StoredTile(MappedTileFile file)
    : description_(std::make_shared<const TileDescription>(file.header().description)),
      buffer_(nullptr),
      form_(nullptr),
      size_bytes_(static_cast<int64_t>(file.bytes().size())),
      crc32c_(file.header().crc32c),
      durable_(true),
      file_(std::move(file)) {}

StoredTile::StoredTile(const StoredTilePtr& plain, std::shared_ptr<const TileForm> form)
    : description_(plain->description_),
      buffer_(nullptr),
      form_(std::move(form)),
      size_bytes_(plain->size_bytes_),
      crc32c_(plain->crc32c_),
      durable_(plain->durable_),
      unpacked_(plain) {}

StoredTile::StoredTile(const StoredTile& held, std::shared_ptr<Buffer> buffer)
    : description_(held.description_),
      buffer_(std::move(buffer)),
      form_(nullptr),
      size_bytes_(held.size_bytes_),
      crc32c_(held.crc32c_),
      durable_(held.durable_) {}

TensorView StoredTile::view() const {
  // Create cannot fail, because the buffer was made for the description.
  return *TensorView::Create(description_->dtype, description_->tile.shape(), bytes());
}

absl::Span<const char> StoredTile::Piece(int64_t offset_bytes, int64_t size_bytes,
                                         std::vector<char>* scratch) const {
  const auto size = static_cast<size_t>(std::min(size_bytes, size_bytes_ - offset_bytes));
  if (form_ == nullptr) return bytes().subspan(static_cast<size_t>(offset_bytes), size);
  scratch->resize(size);
  form_->Read(offset_bytes, absl::MakeSpan(*scratch));
  return *scratch;
}

void StoredTile::AddMemory(std::vector<std::weak_ptr<const void>>* memory) const {
  if (form_ == nullptr) return memory->push_back(buffer_);
  memory->push_back(form_);
  absl::MutexLock lock(&unpacked_mutex_);
  memory->push_back(unpacked_);
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
  absl::Status written = buffer_->Write(static_cast<size_t>(offset_bytes), parts);
  if (!written.ok()) return WithContext(written, TileName(description_));
  received_crc32c_ = ConcatCrc32c(received_crc32c_, piece_crc32c, piece_bytes);
  received_bytes_ += piece_bytes;
  return absl::OkStatus();
}

absl::Status StagedTile::CheckNext(int64_t offset_bytes, int64_t piece_bytes) const {
  if (offset_bytes != received_bytes_) {
    return InvalidArgument(Reason::kBadTile,
                           StrCat(TileName(description_), ": a piece starts at byte ", offset_bytes,
                                  ", but the next byte is ", received_bytes_),
                           {{fact::kArray, description_.array_id},
                            {fact::kHave, offset_bytes},
                            {fact::kNeed, received_bytes_}});
  }
  if (piece_bytes > size_bytes_ - received_bytes_) {
    return InvalidArgument(
        Reason::kBadTile,
        StrCat(TileName(description_), ": a piece of ", piece_bytes, " bytes at byte ",
               offset_bytes, " goes beyond its ", size_bytes_, " bytes"),
        {{fact::kArray, description_.array_id},
         {fact::kHave, offset_bytes + piece_bytes},
         {fact::kNeed, size_bytes_}});
  }
  return store_->CheckReceiving(description_);
}

absl::Status StagedTile::FaultIn() {
  return WithContext(buffer_->FaultIn(), TileName(description_));
}

absl::Status StagedTile::Write(int64_t offset_bytes, absl::Span<const char> bytes) {
  in_place_ = true;
  absl::Status written =
      buffer_->Write(static_cast<size_t>(offset_bytes), absl::MakeConstSpan(&bytes, 1));
  return written.ok() ? written : WithContext(written, TileName(description_));
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

absl::StatusOr<StoredTilePtr> StagedTile::FinishInPlace(uint32_t crc32c) {
  in_place_ = true;
  in_place_crc32c_ = crc32c;
  return Finish(crc32c);
}

absl::StatusOr<StoredTilePtr> StagedTile::FinishFilled(uint32_t crc32c) {
  in_place_ = true;
  return Finish(crc32c);
}

absl::StatusOr<StoredTilePtr> StagedTile::FinishOnce(std::optional<uint32_t> crc32c) {
  SHARDMESH_FAILPOINT("tiles.finish");
  if (!in_place_ && received_bytes_ != size_bytes_) {
    return WithReason(
        absl::FailedPreconditionError(StrCat(TileName(description_), " has only ", received_bytes_,
                                             " of its ", size_bytes_, " bytes")),
        Reason::kBadTile,
        {{fact::kArray, description_.array_id},
         {fact::kHave, received_bytes_},
         {fact::kNeed, size_bytes_}});
  }
  const uint32_t found = in_place_crc32c_.has_value() ? *in_place_crc32c_
                         : in_place_                  ? Crc32c(buffer_->bytes())
                                                      : received_crc32c_;
  if (crc32c.has_value() && found != *crc32c) {
    return ChecksumMismatch(TileName(description_), found, *crc32c);
  }
  SHARDMESH_RETURN_IF_ERROR(store_->CheckReceiving(description_));
  auto stored = std::make_shared<const StoredTile>(description_, buffer_, found, durable_);
  absl::Status status = absl::OkStatus();
  if (durable_) {
    status = store_->MakeRoom(
        *stored, [&] { return store_->WriteStagedFile(*stored); },
        [&] { return store_->CheckReceiving(description_).ok(); });
  }
  if (status.ok()) {
    status = store_->Publish(stored);
  } else if (absl::Status receiving = store_->CheckReceiving(description_); !receiving.ok()) {
    // The array was aborted during the write, and the abort removed the folder. Report the abort,
    // not the error of the write.
    status = std::move(receiving);
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
      lock_(std::move(lock)),
      quarantine_limits_(options.quarantine),
      free_disk_(std::move(options.free_disk)) {}

absl::StatusOr<std::unique_ptr<ShardStore>> ShardStore::Open(Options options) {
  FileDescriptor lock;
  if (!options.data_dir.empty()) {
    std::error_code ignored;
    if (fs::exists(Path(options.data_dir, kCoordinatorFile), ignored)) {
      return absl::FailedPreconditionError(StrCat(
          options.data_dir, " is the data folder of a coordinator, whose state is in ",
          Path(options.data_dir, kCoordinatorFile), "; give this worker a folder of its own"));
    }
    SHARDMESH_RETURN_IF_ERROR(MakeDataFolder(options.data_dir));
    SHARDMESH_ASSIGN_OR_RETURN(lock, LockFolder(options.data_dir));
    if (options.quarantine.disk_bytes < 0) {
      options.quarantine.disk_bytes = DefaultQuarantineBytes(options.data_dir);
    }
  }
  std::unique_ptr<ShardStore> store(new ShardStore(std::move(options), std::move(lock)));
  if (store->has_data_dir()) {
    SHARDMESH_RETURN_IF_ERROR(store->Recover());
    store->SettleUnloaded();
  }
  store->pool_->budget().AddReclaim(store.get(), [store = store.get()](int64_t size_bytes) {
    return store->GiveUpMemory(size_bytes);
  });
  return store;
}

ShardStore::~ShardStore() {
  is_closing_.store(true);
  pool_->budget().RemoveReclaim(this);
}

absl::Status ShardStore::Recover() {
  SHARDMESH_FAILPOINT("tiles.recover");
  for (const char* folder :
       {kStagedFolder, kArraysFolder, kQuarantineFolder, kTrashFolder, kCorruptFolder}) {
    SHARDMESH_RETURN_IF_ERROR(MakeFolder(Path(data_dir_, folder)));
  }
  SHARDMESH_RETURN_IF_ERROR(SyncFolder(data_dir_));
  const std::string trash = Path(data_dir_, kTrashFolder);
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> discarded, ListFolder(trash));
  for (const std::string& name : discarded) {
    std::error_code ignored;  // the next start tries again
    fs::remove_all(Path(trash, name), ignored);
  }
  SHARDMESH_ASSIGN_OR_RETURN(std::string id, ReadOwner(Path(data_dir_, kClusterIdFile),
                                                       [](char c) { return c > ' ' && c < 127; }));
  SHARDMESH_ASSIGN_OR_RETURN(std::string identity,
                             ReadOwner(Path(data_dir_, kIdentityFile), [](char c) {
                               return static_cast<unsigned char>(c) >= ' ' && c != 127;
                             }));
  {
    absl::MutexLock lock(&mutex_);
    cluster_id_ = std::move(id);
    data_identity_ = std::move(identity);
  }
  SHARDMESH_RETURN_IF_ERROR(RecoverQuarantine());
  RecoverUnloaded();
  // Read committed arrays first. If a crash left an array in both folders, SetAside then moves its
  // staged copy to `corrupt`.
  SHARDMESH_RETURN_IF_ERROR(RecoverArrays(Path(data_dir_, kArraysFolder), TileState::kCommitted));
  SHARDMESH_RETURN_IF_ERROR(RecoverArrays(Path(data_dir_, kStagedFolder), TileState::kStaged));
  BoundCorrupt();
  return absl::OkStatus();
}

absl::Status ShardStore::RecoverArrays(const std::string& folder, TileState state) {
  SHARDMESH_FAILPOINT("tiles.recover_arrays");
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> array_ids, ListFolder(folder));
  for (const std::string& array_id : array_ids) {
    SHARDMESH_RETURN_IF_ERROR(RecoverArray(Path(folder, array_id), state));
  }
  return absl::OkStatus();
}

absl::Status ShardStore::RecoverArray(const std::string& folder, TileState state) {
  const absl::StatusOr<std::vector<std::string>> names = ListFolder(folder);
  if (!names.ok()) {
    recovery_report_.problems.push_back({folder, "", names.status()});
    return absl::OkStatus();
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
    // The tile file is sound, but its cluster id differs from that in the folder's file
    // `cluster_id`. An operator must decide which of the two files is wrong.
    if (ReasonOf(status) == Reason::kClusterMismatch) {
      return status;
    }
    SetAside(path, std::move(status));
  }
  rmdir(folder.c_str());  // succeeds only if the folder is empty
  return absl::OkStatus();
}

bool ShardStore::SetAside(const std::string& path, absl::Status why) {
  RecoveryProblem problem{path, "", std::move(why)};
  // Move a file only if it was read and has wrong content, because its content stays wrong. If the
  // disk failed to deliver a file, or memory was short, the next start may be able to read it.
  const Reason reason = ReasonOf(problem.status);
  if (reason == Reason::kBadFile || reason == Reason::kChecksumMismatch) {
    const fs::path from = path;
    const std::string base =
        Path(Path(data_dir_, kCorruptFolder),
             StrCat(from.parent_path().filename().string(), ".", from.filename().string()));
    std::string target = base;
    std::error_code error;
    for (int i = 1; fs::exists(target, error); ++i) {
      target = StrCat(base, ".", i);
    }
    fs::rename(from, target, error);
    if (!error) {
      problem.moved_to = std::move(target);
    }
  }
  const bool is_moved = !problem.moved_to.empty();
  recovery_report_.problems.push_back(std::move(problem));
  return is_moved;
}

void ShardStore::BoundCorrupt() {
  const std::string folder = Path(data_dir_, kCorruptFolder);
  const absl::StatusOr<std::vector<std::string>> names = ListFolder(folder);
  if (!names.ok()) {
    return;
  }
  int64_t limit_bytes = quarantine_limits_.disk_bytes;
  {
    absl::MutexLock lock(&mutex_);
    limit_bytes = std::max<int64_t>(0, limit_bytes - quarantine_totals_.disk_bytes);
  }
  // Keep the files that this start moved to `corrupt`, so an operator can inspect them at least
  // until the next start.
  absl::btree_set<std::string> moved_now;
  for (const RecoveryProblem& problem : recovery_report_.problems) {
    moved_now.insert(problem.moved_to);
  }
  struct Corrupt {
    absl::Time since;  // ctime of the file: its last change was the move to this folder
    std::string path;
    int64_t size_bytes;
  };
  std::vector<Corrupt> all;
  int64_t total_bytes = 0;
  for (const std::string& name : *names) {
    const std::string path = Path(folder, name);
    struct stat facts;
    if (stat(path.c_str(), &facts) == 0) {
      all.push_back({absl::TimeFromTimespec(facts.st_ctim), path, facts.st_size});
      total_bytes += facts.st_size;
    }
  }
  std::sort(all.begin(), all.end(),
            [](const Corrupt& a, const Corrupt& b) { return a.since < b.since; });
  for (const Corrupt& each : all) {
    if (total_bytes <= limit_bytes) {
      break;
    }
    if (moved_now.contains(each.path)) {
      continue;
    }
    RemoveCorrupt(each.path, each.size_bytes, "there is more than --quarantine-disk holds");
    total_bytes -= each.size_bytes;
  }
}

void ShardStore::ExpireCorrupt() {
  const std::string folder = Path(data_dir_, kCorruptFolder);
  const absl::StatusOr<std::vector<std::string>> names = ListFolder(folder);
  if (!names.ok()) {
    return;
  }
  for (const std::string& name : *names) {
    struct stat facts = {};
    const std::string path = Path(folder, name);
    stat(path.c_str(), &facts);
    RemoveCorrupt(path, facts.st_size, "it is older than --quarantine-age");
  }
}

absl::Status ShardStore::RecoverTile(const std::string& path, TileState state) {
  bool is_unloaded = false;
  if (state == TileState::kCommitted) {
    const std::string array_id = fs::path(path).parent_path().filename().string();
    absl::MutexLock lock(&mutex_);
    is_unloaded = unloaded_.contains(array_id);
  }
  StoredTilePtr stored;
  std::string cluster_id;
  if (is_unloaded) {
    // Read into memory, the tile could take the room of the array that is to replace it.
    const auto go_on = [](int64_t) { return absl::OkStatus(); };
    SHARDMESH_ASSIGN_OR_RETURN(MappedTileFile file, MapTileFile(path, kVerifyPieceBytes, go_on));
    cluster_id = file.header().cluster_id;
    stored = std::make_shared<const StoredTile>(std::move(file));
  } else {
    SHARDMESH_ASSIGN_OR_RETURN(TileFileContents contents, ReadTileFile(path, *pool_));
    cluster_id = std::move(contents.header.cluster_id);
    stored = std::make_shared<const StoredTile>(std::move(contents.header.description),
                                                std::make_shared<Buffer>(std::move(contents.bytes)),
                                                contents.header.crc32c, /*durable=*/true);
  }
  const TileDescription& description = stored->description();
  const fs::path expected = fs::path(description.array_id) / TileFileName(description.tile);
  const fs::path actual = fs::path(path).parent_path().filename() / fs::path(path).filename();
  if (actual != expected) {
    return WithReason(
        absl::DataLossError(StrCat("tile file ", path, " holds ", TileName(description),
                                   ", which belongs in ", expected.string())),
        Reason::kBadFile, {{fact::kFile, path}});
  }
  absl::MutexLock lock(&mutex_);
  if (cluster_id_.empty()) {
    const std::string id_path = Path(data_dir_, kClusterIdFile);
    if (const absl::Status written = WriteText(id_path, cluster_id); !written.ok()) {
      // Return this error without its reason. SetAside would take the reason BAD_FILE, which is
      // about the file `cluster_id`, for damage of the tile file.
      return absl::Status(written.code(), written.message());
    }
    cluster_id_ = cluster_id;
  }
  if (cluster_id != cluster_id_) {
    return WithReason(
        absl::FailedPreconditionError(StrCat(
            "tile file ", path, " is sound and of cluster ", cluster_id, ", but ",
            Path(data_dir_, kClusterIdFile), " says ", cluster_id_,
            "; no sound tile was moved: if the tiles of this folder are of cluster ", cluster_id,
            ", remove that file: the next start writes it again from the tiles; otherwise "
            "move the tile file out of the folder")),
        Reason::kClusterMismatch, {{fact::kHave, cluster_id}, {fact::kNeed, cluster_id_}});
  }
  ArrayEntry& array = arrays_[description.array_id];
  if (!array.tiles.empty() && array.tiles.begin()->second.state != state) {
    return WithReason(
        absl::DataLossError(StrCat("tile file ", path, " is staged, but its array is committed")),
        Reason::kBadFile, {{fact::kFile, path}});
  }
  const Tile tile = description.tile;
  const int64_t size_bytes = stored->size_bytes();
  array.tiles[tile] = {state, std::move(stored)};
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
  SHARDMESH_FAILPOINT("tiles.set_cluster");
  if (cluster_id.empty() || static_cast<int64_t>(cluster_id.size()) > kMaxOwnerBytes) {
    return InvalidArgument(
        Reason::kBadField,
        StrCat("a cluster id has 1 to ", kMaxOwnerBytes, " bytes, not ", cluster_id.size()),
        {{fact::kField, "cluster_id"}, {fact::kValue, cluster_id}});
  }
  absl::MutexLock owner(&owner_mutex_);
  const std::string current = this->cluster_id();
  if (current == cluster_id) {
    return absl::OkStatus();
  }
  if (!current.empty()) {
    return WithReason(
        absl::FailedPreconditionError(StrCat("the worker holds tiles of cluster ", current,
                                             " and cannot join cluster ", cluster_id,
                                             "; start it with an empty data folder")),
        Reason::kClusterMismatch, {{fact::kHave, current}, {fact::kNeed, cluster_id}});
  }
  if (has_data_dir()) {
    SHARDMESH_RETURN_IF_ERROR(WriteText(Path(data_dir_, kClusterIdFile), cluster_id));
  }
  absl::MutexLock lock(&mutex_);
  cluster_id_ = std::string(cluster_id);
  return absl::OkStatus();
}

std::string ShardStore::data_identity() const {
  absl::MutexLock lock(&mutex_);
  return data_identity_;
}

absl::Status ShardStore::SetIdentity(std::string_view identity) {
  if (identity.empty() || static_cast<int64_t>(identity.size()) > kMaxOwnerBytes) {
    return InvalidArgument(
        Reason::kBadField,
        StrCat("an identity has 1 to ", kMaxOwnerBytes, " bytes, not ", identity.size()),
        {{fact::kField, "identity"}, {fact::kValue, identity}});
  }
  absl::MutexLock owner(&owner_mutex_);
  const std::string current = data_identity();
  if (!has_data_dir() || current == identity) {
    return absl::OkStatus();
  }
  if (!current.empty()) {
    return WithReason(
        absl::FailedPreconditionError(StrCat(
            "data folder ", data_dir_, " holds tiles of worker \"", current, "\", this is \"",
            identity, "\"; start it with its own folder, or with --identity ", current)),
        Reason::kIdentityMismatch,
        {{fact::kHave, current}, {fact::kNeed, identity}, {fact::kFile, data_dir_}});
  }
  SHARDMESH_RETURN_IF_ERROR(WriteText(Path(data_dir_, kIdentityFile), identity));
  absl::MutexLock lock(&mutex_);
  data_identity_ = std::string(identity);
  return absl::OkStatus();
}

absl::Status ShardStore::BeginReceiving(const TileDescription& description, bool durable) {
  SHARDMESH_FAILPOINT("tiles.stage");
  SHARDMESH_RETURN_IF_ERROR(CheckTileDescription(description));
  if (durable && !has_data_dir()) {
    return absl::FailedPreconditionError(
        StrCat(TileName(description),
               " is to be durable, but this worker keeps no files; start it with --data-dir"));
  }
  absl::MutexLock lock(&mutex_);
  if (durable && cluster_id_.empty()) {
    return absl::FailedPreconditionError(
        StrCat(TileName(description), " cannot be stored before the worker joins a cluster"));
  }
  const auto array = arrays_.find(description.array_id);
  if (busy_.contains(description.array_id)) {
    return absl::AbortedError(
        StrCat("array ", description.array_id, " is being committed or dropped at this moment"));
  }
  if (array != arrays_.end()) {
    for (const auto& [tile, entry] : array->second.tiles) {
      if (entry.state == TileState::kAborted) {
        return absl::AbortedError(
            StrCat("array ", description.array_id, " was aborted; its tiles are being dropped"));
      }
      if (entry.state == TileState::kCommitted) {
        return WithReason(absl::AlreadyExistsError(StrCat("array ", description.array_id,
                                                          " is committed and cannot change")),
                          Reason::kAlreadyExists,
                          {{fact::kKind, "array"}, {fact::kName, description.array_id}});
      }
    }
    if (array->second.tiles.contains(description.tile)) {
      return WithReason(
          absl::AlreadyExistsError(StrCat(TileName(description), " is here already or on its way")),
          Reason::kAlreadyExists, {{fact::kKind, "tile"}, {fact::kName, TileName(description)}});
    }
  }
  arrays_[description.array_id].tiles[description.tile] = {TileState::kReceiving, nullptr};
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StagedTile>> ShardStore::Stage(TileDescription description,
                                                              bool durable,
                                                              std::shared_ptr<Buffer> memory) {
  SHARDMESH_RETURN_IF_ERROR(BeginReceiving(description, durable));
  if (memory == nullptr) {
    absl::StatusOr<Buffer> buffer =
        pool_->Allocate(TileSizeBytes(description), TileName(description));
    return StageOver(std::move(description), durable, std::move(buffer));
  }
  return std::unique_ptr<StagedTile>(
      new StagedTile(this, std::move(description), std::move(memory), durable));
}

absl::StatusOr<std::unique_ptr<StagedTile>> ShardStore::StageUnfilled(TileDescription description,
                                                                      bool durable) {
  SHARDMESH_RETURN_IF_ERROR(BeginReceiving(description, durable));
  absl::StatusOr<Buffer> buffer =
      pool_->AllocateUnfilled(TileSizeBytes(description), TileName(description));
  return StageOver(std::move(description), durable, std::move(buffer));
}

absl::StatusOr<std::unique_ptr<StagedTile>> ShardStore::StageSealed(TileDescription description,
                                                                    bool durable,
                                                                    FileDescriptor memory) {
  SHARDMESH_RETURN_IF_ERROR(BeginReceiving(description, durable));
  absl::StatusOr<Buffer> buffer =
      pool_->Adopt(std::move(memory), TileSizeBytes(description), TileName(description));
  return StageOver(std::move(description), durable, std::move(buffer));
}

absl::StatusOr<std::unique_ptr<StagedTile>> ShardStore::StageOver(TileDescription description,
                                                                  bool durable,
                                                                  absl::StatusOr<Buffer> buffer) {
  if (!buffer.ok()) {
    Forget(description);
    return std::move(buffer).status();
  }
  return std::unique_ptr<StagedTile>(new StagedTile(
      this, std::move(description), std::make_shared<Buffer>(*std::move(buffer)), durable));
}

std::shared_ptr<Buffer> ShardStore::TakeMemory(std::string_view array_id, const Tile& tile) {
  StoredTilePtr stored;  // declared before the lock, so it is destroyed after the unlock
  absl::MutexLock lock(&mutex_);
  const auto array = arrays_.find(ToAbsl(array_id));
  if (array == arrays_.end()) {
    return nullptr;
  }
  auto& tiles = array->second.tiles;
  const auto found = tiles.find(tile);
  // If both use counts are 1, they stay 1 here. Other threads copy the two pointers only from this
  // entry, which the lock guards.
  if (found == tiles.end() || found->second.state != TileState::kCommitted ||
      found->second.stored->durable() || found->second.stored.use_count() != 1 ||
      found->second.stored->buffer_.use_count() != 1 ||
      found->second.stored->buffer_->is_read_only()) {
    return nullptr;
  }
  stored = std::move(found->second.stored);
  tiles.erase(found);
  EraseIfEmpty(array);
  return stored->buffer_;
}

absl::Status ShardStore::Commit(absl::Span<const std::string> array_ids) {
  const absl::btree_set<std::string> distinct_ids = Distinct(array_ids);
  // Each attach commits again what is committed.
  if (HasStaged(distinct_ids)) SHARDMESH_FAILPOINT("tiles.commit");
  std::vector<std::string> ids_with_files;
  absl::MutexLock lock(&mutex_);
  for (const std::string& array_id : distinct_ids) {
    const auto array = arrays_.find(array_id);
    if (array == arrays_.end()) {
      return WithReason(
          absl::NotFoundError(StrCat("array ", array_id, " has no tile here to commit")),
          Reason::kNotFound, {{fact::kKind, "array"}, {fact::kName, array_id}});
    }
    for (const auto& [tile, entry] : array->second.tiles) {
      if (entry.state == TileState::kAborted) {
        return absl::AbortedError(StrCat("array ", array_id, " was aborted"));
      }
      if (entry.state == TileState::kReceiving) {
        return absl::FailedPreconditionError(
            StrCat("tile ", tile.ToString(), " of array ", array_id, " is still on its way"));
      }
    }
  }
  for (const std::string& array_id : distinct_ids) {
    bool has_files = false;
    for (auto& [tile, entry] : arrays_.find(array_id)->second.tiles) {
      has_files |= entry.state == TileState::kStaged && entry.stored->durable();
      entry.state = TileState::kCommitted;
    }
    if (has_files) {
      ids_with_files.push_back(array_id);
    }
  }
  if (!ids_with_files.empty()) {
    PushFiles({.array_ids = ids_with_files,
               .work =
                   [this, ids_with_files](FileEffects* effects) {
                     absl::Status status;
                     for (const std::string& array_id : ids_with_files) {
                       status.Update(CommitFiles(array_id, effects));
                     }
                     return status;
                   },
               .done = nullptr});
  }
  return absl::OkStatus();
}

bool ShardStore::TakeOut(ArrayMap::iterator array, std::vector<StoredTilePtr>* dropped,
                         TileState* state) {
  bool has_files = false;
  auto& tiles = array->second.tiles;
  for (auto tile = tiles.begin(); tile != tiles.end();) {
    TileEntry& entry = tile->second;
    if (entry.stored == nullptr) {
      entry.state = TileState::kAborted;
      ++tile;
      continue;
    }
    *state = entry.state;
    has_files |= entry.stored->durable();
    dropped->push_back(std::move(entry.stored));
    tile = tiles.erase(tile);
  }
  EraseIfEmpty(array);
  return has_files;
}

void ShardStore::EraseIfEmpty(ArrayMap::iterator array) {
  if (!array->second.tiles.empty()) return;
  // The file in `unloaded` stays until the array's files are gone: see RemoveMarkers.
  if (unloaded_.erase(array->first) > 0) stale_markers_.insert(array->first);
  arrays_.erase(array);
}

void ShardStore::RemoveFiles(std::vector<ArrayFolders> folders, Done done) {
  std::vector<std::string> all;
  for (const ArrayFolders& each : folders) {
    all.insert(all.end(), each.array_ids.begin(), each.array_ids.end());
  }
  if (all.empty()) {
    return;
  }
  PushFiles({.array_ids = std::move(all),
             .work =
                 [this, folders = std::move(folders)](FileEffects* effects) {
                   absl::Status status;
                   for (const ArrayFolders& each : folders) {
                     for (const std::string& array_id : each.array_ids) {
                       status.Update(DiscardFiles(each.folder, array_id, effects));
                     }
                   }
                   return status;
                 },
             .done = std::move(done)});
}

absl::Status ShardStore::Abort(absl::Span<const std::string> array_ids) {
  SHARDMESH_FAILPOINT("tiles.abort");
  return TakeOutAll(array_ids, /*committed=*/false);
}

absl::Status ShardStore::Release(absl::Span<const std::string> array_ids) {
  SHARDMESH_FAILPOINT("tiles.release");
  return TakeOutAll(array_ids, /*committed=*/true);
}

absl::Status ShardStore::TakeOutAll(absl::Span<const std::string> array_ids, bool committed) {
  absl::Span<const std::string> ended_ids;  // none if the call is refused
  const absl::Cleanup queue_reloads = [&] { QueueReloadsAfter(ended_ids); };
  // Declared before the lock, so they are destroyed after the unlock.
  std::vector<StoredTilePtr> dropped;
  std::vector<std::string> ids_with_files;
  absl::MutexLock lock(&mutex_);
  for (const std::string& array_id : array_ids) {
    const auto array = arrays_.find(array_id);
    if (array == arrays_.end()) continue;
    const bool is_committed = array->second.tiles.begin()->second.state == TileState::kCommitted;
    if (is_committed == committed) continue;
    return absl::FailedPreconditionError(
        StrCat("array ", array_id,
               is_committed ? " is committed and cannot be aborted; release it"
                            : " is not committed; abort it instead"));
  }
  ended_ids = array_ids;
  for (const std::string& array_id : array_ids) {
    const auto array = arrays_.find(array_id);
    TileState state = TileState::kStaged;
    if (array != arrays_.end() && TakeOut(array, &dropped, &state)) {
      ids_with_files.push_back(array_id);
    }
  }
  std::vector<ArrayFolders> folders = {{kStagedFolder, ids_with_files}};
  if (committed) folders.push_back({kArraysFolder, std::move(ids_with_files)});
  RemoveFiles(std::move(folders), nullptr);
  return absl::OkStatus();
}

void ShardStore::Drop(absl::Span<const std::string> array_ids, Done done) {
  const absl::Cleanup queue_reloads = [&] { QueueReloadsAfter(array_ids); };
  // Declared before the lock, so they are destroyed after the unlock.
  std::vector<StoredTilePtr> dropped;
  std::vector<QuarantinedArray> dropped_aside;
  std::vector<std::string> staged_ids;
  std::vector<std::string> committed_ids;
  std::vector<std::string> quarantined_ids;
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& array_id : array_ids) {
      const auto array = arrays_.find(array_id);
      TileState state = TileState::kStaged;
      const bool was_here = array != arrays_.end();
      const bool was_committed =
          !was_here || array->second.tiles.begin()->second.state == TileState::kCommitted;
      if (was_here && TakeOut(array, &dropped, &state)) {
        // The folder of a committed array is still among the staged ones if it could not be moved.
        staged_ids.push_back(array_id);
        if (state == TileState::kCommitted) committed_ids.push_back(array_id);
      } else if (const auto busy = busy_.find(array_id); busy != busy_.end()) {
        // An earlier call dropped the array, and its files are still being removed. `done` must
        // wait for them.
        staged_ids.push_back(array_id);
      }
      // Drop the array's quarantined tiles too, with one exception. If the tiles dropped above were
      // never committed, the registry may have given up only the put that made them. Committed
      // tiles of the array then stay in quarantine.
      if (const auto aside = quarantine_.find(array_id);
          aside != quarantine_.end() && (was_committed || !aside->second.committed)) {
        if (aside->second.on_disk) {
          quarantined_ids.push_back(array_id);
          // Files that could not be moved to the quarantine are where they were before.
          if (!was_here) {
            staged_ids.push_back(array_id);
            committed_ids.push_back(array_id);
          }
        }
        dropped_aside.push_back(TakeOutOfQuarantine(aside));
      }
    }
    if (!staged_ids.empty() || !committed_ids.empty() || !quarantined_ids.empty()) {
      return RemoveFiles({{kStagedFolder, std::move(staged_ids)},
                          {kArraysFolder, std::move(committed_ids)},
                          {kQuarantineFolder, std::move(quarantined_ids)}},
                         std::move(done));
    }
  }
  std::move(done)(absl::OkStatus());
}

int64_t ShardStore::Quarantine(absl::Span<const Unknown> tiles, absl::Time now) {
  std::vector<std::string> ended_ids;
  const absl::Cleanup queue_reloads = [&] { QueueReloadsAfter(ended_ids); };
  // Declared before the lock, so they are destroyed after the unlock.
  std::vector<QuarantinedArray> dropped;
  std::vector<StoredTilePtr> taken;
  std::vector<MovedAside> moved;
  int64_t count = 0;
  absl::MutexLock lock(&mutex_);
  for (const Unknown& unknown : tiles) {
    if (!PutAside(unknown, now, &taken, &moved)) continue;
    ++count;
    if (ended_ids.empty() || ended_ids.back() != unknown.array_id) {
      ended_ids.push_back(unknown.array_id);
    }
  }
  if (!moved.empty()) {
    std::vector<std::string> array_ids;
    for (const MovedAside& each : moved) {
      array_ids.push_back(each.array.array_id);
    }
    PushFiles({.array_ids = std::move(array_ids),
               .work = [this, moved = std::move(moved)](
                           FileEffects* effects) { return QuarantineFiles(moved, effects); },
               .done = nullptr});
  }
  EnforceQuarantine(now, &dropped);
  return count;
}

bool ShardStore::PutAside(const Unknown& unknown, absl::Time now,
                          std::vector<StoredTilePtr>* dropped, std::vector<MovedAside>* moved) {
  const auto array = arrays_.find(unknown.array_id);
  if (array == arrays_.end()) {
    return false;
  }
  const auto found = array->second.tiles.find(unknown.tile);
  if (found == array->second.tiles.end() || found->second.stored == nullptr) {
    return false;
  }
  const StoredTilePtr& stored = dropped->emplace_back(std::move(found->second.stored));
  const TileState state = found->second.state;
  const bool is_exclusive = found->second.is_exclusive;
  array->second.tiles.erase(found);
  EraseIfEmpty(array);
  // A step may have written a part of the bytes of a tile that it updates.
  if (!stored->durable() && (state != TileState::kCommitted || is_exclusive)) {
    LogWarning("dropped an uncommitted tile that was only in memory",
               {{"array", unknown.array_id},
                {"tile", unknown.tile.ToString()},
                {"reason", unknown.reason}});
    return true;
  }
  QuarantinedArray& entry = quarantine_[unknown.array_id];
  if (entry.tiles.empty()) {
    entry.array_id = unknown.array_id;
    entry.reason = unknown.reason;
    entry.since = now;
    entry.committed = state == TileState::kCommitted;
    entry.on_disk = stored->durable();
    entry.array_lives = unknown.array_lives;
  } else {
    CountOut(entry);
    entry.array_lives |= unknown.array_lives;
  }
  entry.tiles.push_back({.description = stored->description(),
                         .crc32c = stored->crc32c(),
                         .size_bytes = stored->size_bytes(),
                         .stored = nullptr});
  QuarantinedTile& tile = entry.tiles.back();
  if (entry.on_disk) {
    entry.tiles_bytes += tile.size_bytes;
  } else if (!unknown.is_damaged) {
    tile.stored = stored;
    entry.tiles_bytes += tile.size_bytes;
    entry.memory_bytes +=
        stored->form() == nullptr ? PoolBytes(tile.size_bytes) : stored->form()->memory_bytes();
  }
  CountIn(entry);
  if (stored->durable()) {
    // The caller lists the tiles of one array one after the other. The files of these tiles
    // therefore go into one MovedAside, with one reason.
    const char* const folder = FolderOf(state);
    if (moved->empty() || moved->back().array.array_id != unknown.array_id ||
        moved->back().folder != folder) {
      moved->push_back({.folder = folder, .array = {}, .file_names = {}});
    }
    moved->back().array = WithoutTiles(entry);
    moved->back().file_names.push_back(TileFileName(unknown.tile));
  }
  return true;
}

QuarantinedArray ShardStore::WithoutTiles(const QuarantinedArray& array) {
  return {.array_id = array.array_id,
          .reason = array.reason,
          .since = array.since,
          .committed = array.committed,
          .on_disk = array.on_disk,
          .array_lives = array.array_lives,
          .tiles = {}};
}

void ShardStore::SetLive(absl::Span<const std::string> array_ids, bool live, absl::Time now) {
  std::vector<MovedAside> marked;
  std::vector<std::string> marked_ids;
  absl::MutexLock lock(&mutex_);
  for (const std::string& array_id : array_ids) {
    const auto found = quarantine_.find(array_id);
    if (found == quarantine_.end() || found->second.array_lives == live) continue;
    // Do not change the entry before the restore has ended. The coordinator's next verdict decides
    // about the array.
    if (!live && restoring_.contains(array_id)) continue;
    CountOut(found->second);
    found->second.array_lives = live;
    if (!live) found->second.since = now;
    CountIn(found->second);
    if (!found->second.on_disk) continue;
    marked.push_back(
        {.folder = kArraysFolder, .array = WithoutTiles(found->second), .file_names = {}});
    marked_ids.push_back(array_id);
  }
  if (marked.empty()) return;
  PushFiles({.array_ids = std::move(marked_ids),
             .work = [this, marked = std::move(marked)](
                         FileEffects* effects) { return QuarantineFiles(marked, effects); },
             .done = nullptr});
}

bool ShardStore::IsDroppable(const QuarantinedArray& array) const {
  return !array.array_lives && !restoring_.contains(array.array_id);
}

void ShardStore::CountIn(const QuarantinedArray& array) {
  ++quarantine_totals_.arrays;
  (array.on_disk ? quarantine_totals_.disk_bytes : quarantine_totals_.memory_bytes) +=
      array.size_bytes();
  if (IsDroppable(array)) {
    (array.on_disk ? droppable_on_disk_ : droppable_in_memory_)
        .emplace(array.committed, array.since, array.array_id);
    (array.on_disk ? quarantine_totals_.droppable_disk_bytes
                   : quarantine_totals_.droppable_tiles_bytes) += array.size_bytes();
    quarantine_totals_.droppable_memory_bytes += array.memory_bytes;
  }
}

void ShardStore::CountOut(const QuarantinedArray& array) {
  --quarantine_totals_.arrays;
  (array.on_disk ? quarantine_totals_.disk_bytes : quarantine_totals_.memory_bytes) -=
      array.size_bytes();
  if (IsDroppable(array)) {
    (array.on_disk ? droppable_on_disk_ : droppable_in_memory_)
        .erase({array.committed, array.since, array.array_id});
    (array.on_disk ? quarantine_totals_.droppable_disk_bytes
                   : quarantine_totals_.droppable_tiles_bytes) -= array.size_bytes();
    quarantine_totals_.droppable_memory_bytes -= array.memory_bytes;
  }
}

QuarantinedArray ShardStore::TakeOutOfQuarantine(QuarantineMap::iterator entry) {
  CountOut(entry->second);
  QuarantinedArray array = std::move(entry->second);
  quarantine_.erase(entry);
  return array;
}

void ShardStore::DropFromQuarantine(QuarantineMap::iterator entry, std::string_view why,
                                    std::vector<QuarantinedArray>* dropped) {
  const QuarantinedArray& array = dropped->emplace_back(TakeOutOfQuarantine(entry));
  LogWarning("dropped an array from the quarantine",
             {{"array", array.array_id},
              {"why", why},
              {"size_bytes", array.size_bytes()},
              {"on_disk", array.on_disk},
              {"since", absl::FormatTime(array.since, absl::UTCTimeZone())},
              {"reason", array.reason}});
  if (array.on_disk) {
    PushFiles({.array_ids = {array.array_id},
               .work = [this, id = array.array_id, names = QuarantinedNames(array)](
                           FileEffects* effects) { return DiscardQuarantined(id, names, effects); },
               .done = nullptr});
  }
}

void ShardStore::EnforceQuarantine(absl::Time now, std::vector<QuarantinedArray>* dropped) {
  // An entry's time in quarantine counts at the earliest from this process's first call of
  // Quarantine or ExpireQuarantine. The wall clock of an earlier process may have been wrong, and a
  // deletion cannot be undone.
  if (!first_now_.has_value()) {
    first_now_ = now;
  }
  for (DropOrder* order : {&droppable_on_disk_, &droppable_in_memory_}) {
    for (const bool committed : {false, true}) {
      for (;;) {
        const auto first = order->lower_bound({committed, absl::InfinitePast(), ""});
        if (first == order->end() || std::get<0>(*first) != committed ||
            now - std::max(std::get<1>(*first), *first_now_) <= quarantine_limits_.age) {
          break;
        }
        DropFromQuarantine(quarantine_.find(std::get<2>(*first)),
                           "it is older than --quarantine-age", dropped);
      }
    }
  }
  while (has_data_dir() &&
         quarantine_totals_.droppable_disk_bytes > quarantine_limits_.disk_bytes) {
    DropFromQuarantine(quarantine_.find(std::get<2>(*droppable_on_disk_.begin())),
                       "the quarantine is larger than --quarantine-disk", dropped);
  }
  while (quarantine_totals_.droppable_tiles_bytes > quarantine_limits_.memory_bytes) {
    DropFromQuarantine(quarantine_.find(std::get<2>(*droppable_in_memory_.begin())),
                       "the quarantine is larger than --quarantine-memory", dropped);
  }
}

bool ShardStore::DropQuarantinedMemory(int64_t need_bytes) {
  // Declared before the lock, so they are destroyed after the unlock.
  std::vector<QuarantinedArray> dropped;
  need_bytes = PoolBytes(need_bytes);
  int64_t free_bytes = limit_bytes() - used_bytes();
  absl::MutexLock lock(&mutex_);
  // If the budget has enough room, the allocation failed because the host refused the memory.
  // Dropping tiles would not help in this case.
  if (free_bytes >= need_bytes ||
      free_bytes + quarantine_totals_.droppable_memory_bytes < need_bytes) {
    return false;
  }
  while (free_bytes < need_bytes && !droppable_in_memory_.empty()) {
    DropFromQuarantine(quarantine_.find(std::get<2>(*droppable_in_memory_.begin())),
                       "its memory was needed", &dropped);
    free_bytes += dropped.back().memory_bytes;
  }
  return !dropped.empty();
}

bool ShardStore::GiveUpMemory(int64_t need_bytes) {
  const bool was_dropped = DropQuarantinedMemory(need_bytes);
  // The caller may need memory that is no buffer of the pool. Idle buffers must therefore go back
  // to the budget too.
  const bool was_idle = pool_->idle_bytes() > 0;
  pool_->Trim();
  return was_dropped || was_idle;
}

absl::Status ShardStore::MakeRoom(const StoredTile& tile, absl::FunctionRef<absl::Status()> write,
                                  absl::FunctionRef<bool()> is_wanted) {
  for (;;) {
    const int64_t removals = removals_done_.load();
    const absl::Status written = write();
    // Dropping files helps only if the disk is full. Other shortages, such as a shortage of
    // descriptors, have other causes.
    if (ReasonOf(written) != Reason::kStoreFull || !is_wanted()) return written;
    // Files that were dropped earlier may have left the disk only now.
    AwaitRemovals();
    if (removals_done_.load() != removals) continue;
    const int64_t need_bytes =
        DiskBytes({tile.description(), cluster_id(), tile.crc32c()}, tile.size_bytes());
    if (DropQuarantinedFiles(need_bytes) || FreeDisk(need_bytes)) continue;
    // Another tile that needs room may have dropped the last files.
    AwaitRemovals();
    if (removals_done_.load() == removals) return written;
  }
}

bool ShardStore::FreeDisk(int64_t need_bytes) {
  if (!free_disk_) return false;
  const int64_t asked = disk_requests_.load();
  {
    absl::MutexLock lock(&free_disk_mutex_);
    // If another thread asked while this one waited for the lock, its answer counts for both. Many
    // threads on a full disk therefore do not wait for the coordinator one after the other.
    if (disk_requests_.load() == asked) {
      disk_requests_.fetch_add(1);
      was_disk_freed_ = free_disk_(need_bytes);
    }
    if (!was_disk_freed_) return false;
  }
  AwaitRemovals();
  return true;
}

bool ShardStore::DropQuarantinedFiles(int64_t need_bytes) {
  {
    std::vector<QuarantinedArray> dropped;
    int64_t freed_bytes = 0;
    absl::MutexLock lock(&mutex_);
    while (freed_bytes < need_bytes && !droppable_on_disk_.empty()) {
      DropFromQuarantine(quarantine_.find(std::get<2>(*droppable_on_disk_.begin())),
                         "the disk is full", &dropped);
      for (const QuarantinedTile& tile : dropped.back().tiles) {
        freed_bytes += DiskBytes({tile.description, cluster_id_, tile.crc32c}, tile.size_bytes);
      }
    }
    if (dropped.empty()) {
      return false;
    }
  }
  AwaitRemovals();
  return true;
}

void ShardStore::ExpireQuarantine(absl::Time now) {
  // Declared before the lock, so they are destroyed after the unlock.
  std::vector<QuarantinedArray> dropped;
  absl::MutexLock lock(&mutex_);
  EnforceQuarantine(now, &dropped);
  // Files are moved into `corrupt` only when a process starts. All files in `corrupt` have
  // therefore been there at least since the time first_now_.
  if (has_data_dir() && now - *first_now_ > quarantine_limits_.age &&
      !std::exchange(corrupt_expired_, true)) {
    PushFiles({.array_ids = {},
               .work =
                   [this](FileEffects*) {
                     ExpireCorrupt();
                     return absl::OkStatus();
                   },
               .done = nullptr});
  }
}

QuarantineTotals ShardStore::quarantine_totals() const {
  absl::MutexLock lock(&mutex_);
  return quarantine_totals_;
}

std::vector<QuarantinedArray> ShardStore::ListQuarantine(absl::Span<const std::string> array_ids,
                                                         std::string_view start_after,
                                                         int64_t max_arrays) const {
  std::vector<QuarantinedArray> page;
  const absl::btree_set<std::string> chosen = Distinct(array_ids);
  absl::MutexLock lock(&mutex_);
  for (auto entry = quarantine_.upper_bound(ToAbsl(start_after));
       entry != quarantine_.end() && static_cast<int64_t>(page.size()) < max_arrays; ++entry) {
    if (chosen.empty() || chosen.contains(entry->first)) {
      page.push_back(entry->second);
    }
  }
  return page;
}

absl::StatusOr<ShardStore::QuarantineMap::iterator> ShardStore::FindQuarantined(
    const std::string& array_id) {
  const auto found = quarantine_.find(array_id);
  if (found == quarantine_.end()) return NotInQuarantine(array_id);
  if (restoring_.contains(array_id)) return BeingRestored(array_id);
  return found;
}

absl::StatusOr<QuarantinedArray> ShardStore::RestoreQuarantined(const std::string& array_id) {
  SHARDMESH_PASSES("tiles.restore_quarantined");
  QuarantinedArray array;
  {
    absl::MutexLock lock(&mutex_);
    SHARDMESH_ASSIGN_OR_RETURN(const QuarantineMap::iterator found, FindQuarantined(array_id));
    SHARDMESH_RETURN_IF_ERROR(CheckRestorable(found->second));
    CountOut(found->second);
    restoring_.insert(array_id);
    CountIn(found->second);
    ++busy_[array_id];
    array = found->second;
  }
  absl::StatusOr<QuarantinedArray> restored = Restore(array);
  absl::MutexLock lock(&mutex_);
  const auto found = quarantine_.find(array_id);
  if (found != quarantine_.end()) {
    CountOut(found->second);
  }
  restoring_.erase(array_id);
  if (found != quarantine_.end()) {
    CountIn(found->second);
  }
  EndBusy(array_id);
  return restored;
}

absl::Status ShardStore::CheckRestorable(const QuarantinedArray& array) const {
  const auto held = arrays_.find(array.array_id);
  if (held == arrays_.end()) {
    return absl::OkStatus();
  }
  for (const auto& [tile, entry] : held->second.tiles) {
    const bool is_same = std::any_of(
        array.tiles.begin(), array.tiles.end(),
        [&, &tile = tile](const QuarantinedTile& each) { return each.description.tile == tile; });
    if (is_same || entry.state != TileState::kCommitted) {
      return WithReason(
          absl::AlreadyExistsError(
              StrCat("array ", array.array_id,
                     " is in use on this worker and also in its quarantine; drop one of the two")),
          Reason::kAlreadyExists, {{fact::kKind, "array"}, {fact::kName, array.array_id}});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<QuarantinedArray> ShardStore::Restore(const QuarantinedArray& array) {
  AwaitFiles();  // wait for queued moves of files into the quarantine
  const std::string from = Path(Path(data_dir_, kQuarantineFolder), array.array_id);
  const std::string to = Path(Path(data_dir_, kArraysFolder), array.array_id);
  std::vector<StoredTilePtr> stored;
  for (const QuarantinedTile& tile : array.tiles) {
    if (tile.stored != nullptr) {
      // Its memory may be the reason why it is in quarantine.
      if (const uint32_t found = ContentCrc32c(*tile.stored); found != tile.stored->crc32c()) {
        return ChecksumMismatch(TileName(tile.description), found, tile.stored->crc32c());
      }
      stored.push_back(tile.stored);
      continue;
    }
    if (!array.on_disk) {
      return WithReason(
          absl::DataLossError(StrCat(TileName(tile.description),
                                     " cannot be restored: its bytes were damaged in memory, and "
                                     "it has no file; load the array again, or wait for its "
                                     "repair")),
          Reason::kChecksumMismatch, {{fact::kNeed, absl::StrFormat("%08x", tile.crc32c)}});
    }
    const std::string name = TileFileName(tile.description.tile);
    const std::string path = Path(from, name);
    absl::StatusOr<TileFileContents> contents = ReadTileFile(path, *pool_);
    if (absl::IsNotFound(contents.status())) {
      // The file is where it was if it could not be moved, for example because the disk was full.
      contents = ReadTileFile(Path(to, name), *pool_);
      if (contents.ok() && !(contents->header.description == tile.description &&
                             contents->header.crc32c == tile.crc32c)) {
        contents = absl::NotFoundError("it is the file of another tile");
      }
    }
    if (absl::IsNotFound(contents.status())) {
      return WithReason(
          absl::DataLossError(StrCat(TileName(tile.description), " cannot be restored: its file ",
                                     path, " is missing")),
          Reason::kBadFile, {{fact::kFile, path}});
    }
    SHARDMESH_RETURN_IF_ERROR(contents.status());
    stored.push_back(std::make_shared<const StoredTile>(
        std::move(contents->header.description),
        std::make_shared<Buffer>(std::move(contents->bytes)), contents->header.crc32c,
        /*durable=*/true));
  }
  absl::Status status;
  absl::Notification done;
  {
    absl::MutexLock lock(&mutex_);
    PushFiles({.array_ids = {array.array_id},
               .work =
                   [&](FileEffects* effects) {
                     status = PutBack(array, std::move(stored), effects);
                     return absl::OkStatus();
                   },
               .done = [&](const absl::Status&) { done.Notify(); }});
  }
  done.WaitForNotification();
  SHARDMESH_RETURN_IF_ERROR(status);
  return array;
}

absl::Status ShardStore::PutBack(const QuarantinedArray& array, std::vector<StoredTilePtr> stored,
                                 FileEffects* effects) {
  const std::string from = Path(Path(data_dir_, kQuarantineFolder), array.array_id);
  const std::string to = Path(Path(data_dir_, kArraysFolder), array.array_id);
  const std::string arrays = Path(data_dir_, kArraysFolder);
  std::vector<std::string> moved;
  absl::Status status = array.on_disk ? MakeFolder(to) : absl::OkStatus();
  for (const QuarantinedTile& tile : array.tiles) {
    if (!array.on_disk || !status.ok()) {
      break;
    }
    const std::string name = TileFileName(tile.description.tile);
    if (SHARDMESH_FAILS("tiles.rename_restored") ||
        rename(Path(from, name).c_str(), Path(to, name).c_str()) != 0) {
      const int error = errno;
      // Restore has read the file in its place.
      if (error == ENOENT && access(Path(to, name).c_str(), F_OK) == 0) continue;
      status = FileError("restore", Path(from, name), error);
      break;
    }
    moved.push_back(name);
  }
  // Sync the folders before the tiles become Committed. Without this sync, a crash could leave the
  // tiles in quarantine although clients have seen them as Committed.
  for (const std::string& folder : {to, arrays}) {
    if (array.on_disk && status.ok()) {
      status = SyncFolder(folder);
    }
  }
  if (array.on_disk) {
    effects->changed_folders.insert({from, to, arrays});
  }
  QuarantinedArray restored;  // declared before the lock, so it is destroyed after the unlock
  if (status.ok()) {
    absl::MutexLock lock(&mutex_);
    const auto found = quarantine_.find(array.array_id);
    const bool is_same =
        found != quarantine_.end() && found->second.since == array.since &&
        std::equal(found->second.tiles.begin(), found->second.tiles.end(), array.tiles.begin(),
                   array.tiles.end(), [](const QuarantinedTile& a, const QuarantinedTile& b) {
                     return a.description.tile == b.description.tile && a.crc32c == b.crc32c;
                   });
    status = is_same ? CheckRestorable(found->second)
                     : absl::AbortedError(StrCat("array ", array.array_id,
                                                 " was released, or more of it came into "
                                                 "quarantine, while it was being restored; look at "
                                                 "the quarantine again"));
    if (status.ok()) {
      auto& tiles = arrays_[array.array_id].tiles;
      for (StoredTilePtr& each : stored) {
        const Tile tile = each->description().tile;
        tiles[tile] = {TileState::kCommitted, std::move(each)};
      }
      restored = TakeOutOfQuarantine(found);
    }
  }
  if (!array.on_disk) {
    return status;
  }
  if (status.ok()) {
    // Remove the file `about` and the folder, unless a tile that could not be read is still in the
    // folder.
    const absl::StatusOr<std::vector<std::string>> left = ListFolder(from);
    if (left.ok() && std::all_of(left->begin(), left->end(),
                                 [](const std::string& name) { return name == kAboutFile; })) {
      unlink(Path(from, kAboutFile).c_str());
      rmdir(from.c_str());
    }
    effects->changed_folders.insert(Path(data_dir_, kQuarantineFolder));
    return status;
  }
  for (const std::string& name : moved) {
    if (rename(Path(to, name).c_str(), Path(from, name).c_str()) != 0) {
      LogError("a file could not be moved back into the quarantine",
               {{"path", Path(to, name)}, {"error", FileError("move", Path(to, name), errno)}});
    }
  }
  rmdir(to.c_str());  // succeeds only if the folder is empty
  return status;
}

absl::StatusOr<QuarantinedArray> ShardStore::DropQuarantined(const std::string& array_id) {
  QuarantinedArray dropped;
  absl::Status status;
  absl::Notification done;
  {
    absl::MutexLock lock(&mutex_);
    SHARDMESH_ASSIGN_OR_RETURN(const QuarantineMap::iterator found, FindQuarantined(array_id));
    dropped = TakeOutOfQuarantine(found);
    if (!dropped.on_disk) {
      return dropped;
    }
    PushFiles(
        {.array_ids = {array_id},
         .work = [this, array_id, names = QuarantinedNames(dropped)](
                     FileEffects* effects) { return DiscardQuarantined(array_id, names, effects); },
         .done =
             [&](const absl::Status& ended) {
               status = ended;
               done.Notify();
             }});
  }
  done.WaitForNotification();
  SHARDMESH_RETURN_IF_ERROR(status);
  return dropped;
}

void ShardStore::AwaitFiles() {
  absl::Notification done;
  {
    absl::MutexLock lock(&mutex_);
    PushFiles({.array_ids = {},
               .work = [](FileEffects*) { return absl::OkStatus(); },
               .done = [&](const absl::Status&) { done.Notify(); }});
  }
  done.WaitForNotification();
}

void ShardStore::AwaitRemovals() {
  AwaitFiles();
  absl::Notification done;
  removals_.Push([&] { done.Notify(); });
  done.WaitForNotification();
}

void ShardStore::AwaitReloads() {
  absl::Notification done;
  reloads_.Push([&] { done.Notify(); });
  done.WaitForNotification();
}

void ShardStore::EndBusy(const std::string& array_id) {
  if (const auto busy = busy_.find(array_id); --busy->second == 0) {
    busy_.erase(busy);
  }
}

void ShardStore::PushFiles(FileJob job) {
  for (const std::string& array_id : job.array_ids) {
    ++busy_[array_id];
  }
  jobs_.push_back(std::move(job));
  if (!std::exchange(files_run_, true)) {
    files_.Push([this] { RunFiles(); });
  }
}

void ShardStore::RunFiles() {
  for (;;) {
    std::vector<FileJob> jobs;
    {
      absl::MutexLock lock(&mutex_);
      if (jobs_.empty()) {
        files_run_ = false;
        return;
      }
      jobs = std::exchange(jobs_, {});
    }
    FileEffects effects;
    std::vector<absl::Status> ended;
    for (FileJob& job : jobs) {
      ended.push_back(std::move(job.work)(&effects));
    }
    absl::Status synced;
    if (effects.changed_folders.size() > kMaxSyncedFolders) {
      synced = SyncAll();
      effects.changed_folders.clear();
    }
    for (const std::string& folder : effects.changed_folders) {
      // If a later job of this batch moved the folder away, the folder has no entries to sync.
      if (const absl::Status status = SyncFolder(folder); !absl::IsNotFound(status)) {
        synced.Update(status);
      }
    }
    // After a crash, a marker without the array does no harm, but an array that lost its marker
    // could take the room of its successor.
    if (synced.ok()) RemoveMarkers(effects.gone_ids);
    for (std::string& path : effects.to_remove) {
      removals_.Push([this, path = std::move(path)] {
        std::error_code ignored;  // the next start removes the rest of the trash
        fs::remove_all(path, ignored);
        removals_done_.fetch_add(1);
      });
    }
    {
      absl::MutexLock lock(&mutex_);
      for (const FileJob& job : jobs) {
        for (const std::string& array_id : job.array_ids) {
          EndBusy(array_id);
        }
      }
    }
    for (size_t i = 0; i < jobs.size(); ++i) {
      ended[i].Update(synced);
      if (!ended[i].ok()) {
        LogError("files of tiles could not be moved; the next start finds them where they are",
                 {{"arrays", jobs[i].array_ids.size()},
                  {"first", jobs[i].array_ids.empty() ? "" : jobs[i].array_ids.front()},
                  {"error", ended[i]}});
      }
      if (jobs[i].done) {
        std::move(jobs[i].done)(ended[i]);
      }
    }
  }
}

absl::Status ShardStore::HoldAs(std::string_view array_id, const Tile& tile,
                                std::shared_ptr<const TileForm> form) {
  SHARDMESH_ASSIGN_OR_RETURN(const StoredTilePtr plain,
                             FindIn(array_id, tile, /*staged_too=*/false));
  if (plain->form() != nullptr || plain->is_unloaded() || plain->is_state()) {
    return absl::FailedPreconditionError(StrCat(
        TileName(plain->description()), plain->is_unloaded() ? " is not in memory"
                                        : plain->is_state()  ? " is state, which changes"
                                                             : " is held in another form already"));
  }
  const auto held = std::make_shared<const StoredTile>(plain, std::move(form));
  if (const uint32_t found = ContentCrc32c(*held); found != plain->crc32c()) {
    return WithReason(
        absl::DataLossError(absl::StrFormat(
            "%s in another form gives bytes with CRC-32C %08x instead of %08x; the store keeps the "
            "bytes that it has",
            TileName(plain->description()), found, plain->crc32c())),
        Reason::kChecksumMismatch,
        {{fact::kHave, absl::StrFormat("%08x", found)},
         {fact::kNeed, absl::StrFormat("%08x", plain->crc32c())}});
  }
  absl::MutexLock lock(&mutex_);
  if (const TileEntry* const entry = EntryOf(array_id, tile);
      entry != nullptr && entry->update != 0) {
    return absl::FailedPreconditionError(
        StrCat(TileName(plain->description()), " is being updated"));
  }
  SHARDMESH_RETURN_IF_ERROR(Exchange(plain, held));
  // A step that runs may hold the plain bytes for a while. Weights are large, and nothing of their
  // size is made soon: as an idle buffer the memory would stay taken.
  if (plain->buffer_ != nullptr) pool_->FreeOnReturn(*plain->buffer_);
  return absl::OkStatus();
}

absl::StatusOr<StoredTilePtr> ShardStore::HoldPlain(std::string_view array_id, const Tile& tile) {
  SHARDMESH_ASSIGN_OR_RETURN(const StoredTilePtr held, FindIn(array_id, tile, /*staged_too=*/true));
  SHARDMESH_ASSIGN_OR_RETURN(const StoredTilePtr plain, Unpacked(held));
  if (plain == held) return plain;
  StoredTilePtr own = OwnObjectFor(*plain);
  absl::MutexLock lock(&mutex_);
  Exchange(held, own).IgnoreError();  // it may have left the store
  return own;
}

StoredTilePtr ShardStore::OwnObjectFor(const StoredTile& unpacked) {
  return std::make_shared<const StoredTile>(unpacked, unpacked.buffer_);
}

absl::StatusOr<StoredTilePtr> ShardStore::Unpacked(const StoredTilePtr& held) const {
  if (held->form() == nullptr) return held;
  absl::MutexLock lock(&held->unpacked_mutex_);
  StoredTilePtr unpacked = held->unpacked_.lock();
  if (unpacked != nullptr) return unpacked;
  SHARDMESH_ASSIGN_OR_RETURN(
      Buffer memory,
      pool_->Allocate(held->size_bytes(), StrCat(TileName(held->description()), ", unpacked")));
  held->form()->Read(0, memory.mutable_bytes());
  unpacked = std::make_shared<const StoredTile>(*held, std::make_shared<Buffer>(std::move(memory)));
  held->unpacked_ = unpacked;
  return unpacked;
}

absl::StatusOr<std::vector<StoredTilePtr>> ShardStore::AllUnpacked(
    absl::StatusOr<std::vector<StoredTilePtr>> held) const {
  if (!held.ok()) return held;
  for (StoredTilePtr& tile : *held) {
    SHARDMESH_ASSIGN_OR_RETURN(tile, Unpacked(tile));
  }
  return held;
}

absl::StatusOr<StoredTilePtr> ShardStore::Find(std::string_view array_id, const Tile& tile) const {
  SHARDMESH_ASSIGN_OR_RETURN(const StoredTilePtr held,
                             FindIn(array_id, tile, /*staged_too=*/false));
  return Unpacked(held);
}

absl::StatusOr<StoredTilePtr> ShardStore::FindStaged(std::string_view array_id,
                                                     const Tile& tile) const {
  SHARDMESH_ASSIGN_OR_RETURN(const StoredTilePtr held, FindHeld(array_id, tile));
  return Unpacked(held);
}

absl::StatusOr<StoredTilePtr> ShardStore::FindHeld(std::string_view array_id,
                                                   const Tile& tile) const {
  return FindIn(array_id, tile, /*staged_too=*/true);
}

absl::StatusOr<StoredTilePtr> ShardStore::FindIn(std::string_view array_id, const Tile& tile,
                                                 bool staged_too) const {
  {
    absl::MutexLock lock(&mutex_);
    if (!AwaitReadable(array_id, &tile)) return BeingUpdated(array_id, tile);
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
                    Reason::kNotFound, {{fact::kKind, "array"}, {fact::kName, array_id}});
}

absl::StatusOr<std::vector<StoredTilePtr>> ShardStore::FindAll(std::string_view array_id) const {
  return AllUnpacked(FindAllHeld(array_id, /*staged_too=*/false));
}

absl::StatusOr<std::vector<StoredTilePtr>> ShardStore::FindAllStaged(
    std::string_view array_id) const {
  return AllUnpacked(FindAllHeld(array_id, /*staged_too=*/true));
}

absl::StatusOr<std::vector<StoredTilePtr>> ShardStore::FindAllHeld(std::string_view array_id,
                                                                   bool staged_too) const {
  std::vector<StoredTilePtr> stored;
  {
    absl::MutexLock lock(&mutex_);
    const bool is_readable = AwaitReadable(array_id, nullptr);
    const auto array = arrays_.find(ToAbsl(array_id));
    if (array != arrays_.end()) {
      if (!is_readable) return BeingUpdated(array_id, array->second.tiles.begin()->first);
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
                      Reason::kNotFound, {{fact::kKind, "array"}, {fact::kName, array_id}});
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

absl::Status ShardStore::CheckFile(const TileDescription& description, uint32_t crc32c,
                                   int64_t piece_bytes,
                                   const std::function<absl::Status(int64_t bytes)>& read) {
  const std::string path = Path(Path(Path(data_dir_, kArraysFolder), description.array_id),
                                TileFileName(description.tile));
  const TileFileHeader expected{description, cluster_id(), crc32c};
  absl::Status checked = CheckTileFile(path, expected, piece_bytes, read);
  if (absl::IsNotFound(checked)) {
    // The store's thread may not have moved the file there yet.
    AwaitFiles();
    checked = CheckTileFile(path, expected, piece_bytes, read);
  }
  return checked;
}

absl::Status ShardStore::CheckCommitted(const StoredTilePtr& tile) const {
  const TileDescription& description = tile->description();
  if (const auto array = arrays_.find(description.array_id); array != arrays_.end()) {
    const auto found = array->second.tiles.find(description.tile);
    if (found != array->second.tiles.end() && found->second.state == TileState::kCommitted &&
        found->second.stored->description_ == tile->description_) {
      return absl::OkStatus();
    }
  }
  return WithReason(absl::NotFoundError(StrCat(TileName(description), " was dropped or put aside")),
                    Reason::kNotFound,
                    {{fact::kKind, "array"}, {fact::kName, description.array_id}});
}

absl::Status ShardStore::RewriteFile(const StoredTilePtr& tile) {
  const TileDescription& description = tile->description();
  {
    absl::MutexLock lock(&mutex_);
    SHARDMESH_RETURN_IF_ERROR(CheckCommitted(tile));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const StoredTilePtr unpacked, Unpacked(tile));
  // Other changes of files go on while the file is written. The next start removes it if this
  // process ends first.
  const std::string written = Path(Path(data_dir_, kTrashFolder),
                                   StrCat(description.array_id, ".rewritten-", next_rewrite_++));
  const auto check_committed = [&] {
    absl::MutexLock lock(&mutex_);
    return CheckCommitted(tile);
  };
  absl::Status made = MakeRoom(
      *tile,
      [&] {
        return WriteTileFile(written, {description, cluster_id(), tile->crc32c()},
                             unpacked->bytes());
      },
      [&] { return check_committed().ok(); });
  StoredTilePtr new_tile;  // replaces an unloaded tile, whose mapping is that of the old file
  if (tile->is_unloaded()) {
    // The kernel copies the mapped bytes. If the disk does not deliver them, the write fails with
    // EFAULT. A read of the bytes here would end the process.
    if (absl::IsInvalidArgument(made) && ReasonOf(made) != Reason::kBadFile) {
      made = WithReason(absl::DataLossError(StrCat(
                            TileName(description),
                            ": its mapped file cannot be read any more: ", ToStd(made.message()))),
                        Reason::kBadFile, {{fact::kFile, written}});
    }
    if (made.ok()) {
      absl::StatusOr<MappedTileFile> file =
          MapTileFile(written, kVerifyPieceBytes, [&](int64_t) { return check_committed(); });
      made = file.status();
      if (file.ok()) new_tile = std::make_shared<const StoredTile>(*std::move(file));
    }
  }
  if (!made.ok()) {
    unlink(written.c_str());
    SHARDMESH_RETURN_IF_ERROR(check_committed());
    return made;
  }
  absl::Status ended;
  absl::Notification done;
  {
    absl::MutexLock lock(&mutex_);
    ended = CheckCommitted(tile);
    if (ended.ok()) {
      // A drop or a quarantine of the tile that comes after this job also finds the new file.
      PushFiles({.array_ids = {description.array_id},
                 .work =
                     [&](FileEffects* effects) {
                       ended = MoveToCommitted(written, description, effects);
                       return absl::OkStatus();
                     },
                 .done =
                     [&](const absl::Status& synced) {
                       ended.Update(synced);
                       done.Notify();
                     }});
    } else {
      done.Notify();
    }
  }
  done.WaitForNotification();
  if (!ended.ok()) {
    unlink(written.c_str());
  } else if (new_tile != nullptr) {
    absl::MutexLock lock(&mutex_);
    Exchange(tile, std::move(new_tile)).IgnoreError();  // it may have come back into memory
  }
  return ended;
}

absl::Status ShardStore::MoveToCommitted(const std::string& from,
                                         const TileDescription& description,
                                         FileEffects* effects) const {
  const std::string arrays = Path(data_dir_, kArraysFolder);
  const std::string folder = Path(arrays, description.array_id);
  const std::string to = Path(folder, TileFileName(description.tile));
  SHARDMESH_RETURN_IF_ERROR(MakeFolder(folder));
  if (SHARDMESH_FAILS("tiles.rename_rewritten") || rename(from.c_str(), to.c_str()) != 0) {
    return FileError("rename", from, errno);
  }
  effects->changed_folders.insert({folder, arrays});
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ShardStore::Unload(absl::Span<const std::string> array_ids,
                                           const std::string& successor_id,
                                           absl::Duration wait_limit,
                                           const std::function<absl::Status()>& keep_going) {
  SHARDMESH_FAILPOINT("tiles.unload");
  const int64_t used_before_bytes = used_bytes();
  int64_t freed_bytes = 0;
  std::vector<std::weak_ptr<const void>> in_use;
  for (const std::string& array_id : array_ids) {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes,
                               UnloadArray(array_id, successor_id, keep_going, &in_use));
    freed_bytes += bytes;
  }
  const auto is_free = [&] {
    {
      absl::MutexLock lock(&mutex_);
      // A reload that has begun holds memory until it sees that it is no longer wanted.
      if (std::find(array_ids.begin(), array_ids.end(), reloading_id_) != array_ids.end()) {
        return false;
      }
    }
    return std::all_of(in_use.begin(), in_use.end(),
                       [](const std::weak_ptr<const void>& memory) { return memory.expired(); });
  };
  const SteadyDeadline deadline = SteadyDeadline::After(wait_limit);
  while (!is_free() && !deadline.is_over()) {
    SHARDMESH_RETURN_IF_ERROR(keep_going());
    absl::SleepFor(kReaderPollInterval);
  }
  // The pool counts memory as free a moment after its last reader has dropped it.
  const SteadyDeadline returned =
      SteadyDeadline::After(deadline.is_over() ? absl::ZeroDuration() : kReturnWait);
  while (used_bytes() > used_before_bytes - freed_bytes && !returned.is_over()) {
    absl::SleepFor(kReaderPollInterval);
  }
  return freed_bytes;
}

absl::StatusOr<int64_t> ShardStore::UnloadArray(const std::string& array_id,
                                                const std::string& successor_id,
                                                const std::function<absl::Status()>& keep_going,
                                                std::vector<std::weak_ptr<const void>>* in_use) {
  std::vector<StoredTilePtr> tiles;
  {
    absl::MutexLock lock(&mutex_);
    const auto array = arrays_.find(array_id);
    if (array == arrays_.end()) return 0;
    bool is_any_unloaded = false;
    for (const auto& [tile, entry] : array->second.tiles) {
      if (entry.state != TileState::kCommitted || !entry.stored->durable()) continue;
      is_any_unloaded |= entry.stored->is_unloaded();
      if (!entry.stored->is_unloaded()) tiles.push_back(entry.stored);
    }
    if (tiles.empty() && !is_any_unloaded) return 0;
    // A task that reads the array back sees this and stops.
    UnloadedArray& entry = unloaded_[array_id];
    entry.successor_id = successor_id;
    entry.is_wanted_back = false;
    entry.is_reported = false;
    stale_markers_.erase(array_id);
  }
  // Written first: after a crash, the tiles must not take the room of the successor's.
  SHARDMESH_RETURN_IF_ERROR(MakeFolder(Path(data_dir_, kUnloadedFolder)));
  SHARDMESH_RETURN_IF_ERROR(SyncFolder(data_dir_));
  SHARDMESH_RETURN_IF_ERROR(WriteText(MarkerPath(data_dir_, array_id), successor_id));
  const std::string folder = Path(Path(data_dir_, kArraysFolder), array_id);
  const auto read = [&](int64_t) { return keep_going(); };
  int64_t freed_bytes = 0;
  for (StoredTilePtr& tile : tiles) {
    const TileDescription& description = tile->description();
    const std::string path = Path(folder, TileFileName(description.tile));
    absl::StatusOr<MappedTileFile> file = MapTileFile(path, kVerifyPieceBytes, read);
    if (absl::IsNotFound(file.status())) {
      // The store's thread may not have moved the file there yet.
      AwaitFiles();
      file = MapTileFile(path, kVerifyPieceBytes, read);
    }
    SHARDMESH_RETURN_IF_ERROR(file.status());
    if (!(file->header().description == description) || file->header().cluster_id != cluster_id() ||
        file->header().crc32c != tile->crc32c()) {
      return WithReason(absl::DataLossError(StrCat("tile file ", path, " holds another tile than ",
                                                   TileName(description))),
                        Reason::kBadFile, {{fact::kFile, path}});
    }
    auto from_file = std::make_shared<const StoredTile>(*std::move(file));
    tile->AddMemory(in_use);
    const int64_t tile_bytes =
        tile->form() == nullptr ? PoolBytes(tile->size_bytes()) : tile->form()->memory_bytes();
    {
      absl::MutexLock lock(&mutex_);
      // A tile that was dropped meanwhile needs no memory either.
      if (Exchange(tile, std::move(from_file)).ok()) freed_bytes += tile_bytes;
    }
    tile = nullptr;
  }
  return freed_bytes;
}

void ShardStore::EndUnload(const std::string& successor_id) { QueueReloadsAfter({successor_id}); }

void ShardStore::QueueReloadsAfter(absl::Span<const std::string> ended_ids) {
  absl::MutexLock lock(&mutex_);
  if (unloaded_.empty()) return;
  for (const std::string& array_id : ended_ids) {
    const auto array = arrays_.find(array_id);
    if (array != arrays_.end() &&
        array->second.tiles.begin()->second.state == TileState::kCommitted) {
      continue;
    }
    QueueReloads(array_id);
  }
}

int64_t ShardStore::unloaded_bytes() const {
  int64_t bytes = 0;
  absl::MutexLock lock(&mutex_);
  for (const auto& [array_id, unloaded] : unloaded_) {
    const auto array = arrays_.find(array_id);
    if (array == arrays_.end()) continue;
    for (const auto& [tile, entry] : array->second.tiles) {
      if (entry.stored == nullptr || !entry.stored->is_unloaded()) continue;
      bytes += entry.stored->size_bytes();
    }
  }
  return bytes;
}

absl::Status ShardStore::Exchange(const StoredTilePtr& old_tile, StoredTilePtr new_tile) {
  SHARDMESH_RETURN_IF_ERROR(CheckCommitted(old_tile));
  const TileDescription& description = old_tile->description();
  arrays_.find(description.array_id)->second.tiles.at(description.tile).stored =
      std::move(new_tile);
  return absl::OkStatus();
}

void ShardStore::ForgetUnloaded(const std::string& array_id) {
  if (unloaded_.erase(array_id) == 0) return;
  // If the file stays, the next start removes it.
  unlink(MarkerPath(data_dir_, array_id).c_str());
}

void ShardStore::RemoveMarkers(const std::vector<std::string>& gone_ids) {
  absl::MutexLock lock(&mutex_);
  for (const std::string& array_id : gone_ids) {
    // Under the lock, because the array may be restored and unloaded again.
    if (stale_markers_.erase(array_id) > 0) unlink(MarkerPath(data_dir_, array_id).c_str());
  }
}

void ShardStore::QueueReloads(const std::string& ended_id) {
  for (auto& [array_id, unloaded] : unloaded_) {
    unloaded.is_wanted_back |= unloaded.successor_id == ended_id;
    if (!unloaded.is_wanted_back || std::exchange(unloaded.is_queued, true)) continue;
    reloads_.Push([this, id = array_id] { Reload(id); });
  }
}

void ShardStore::Reload(const std::string& array_id) {
  // Declared first, so that it runs after the memory of an unfinished tile is free.
  const absl::Cleanup end_reload = [this] {
    absl::MutexLock lock(&mutex_);
    reloading_id_.clear();
  };
  std::vector<StoredTilePtr> tiles;
  const auto is_wanted = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = unloaded_.find(array_id);
    return found != unloaded_.end() && found->second.is_wanted_back && !is_closing_.load();
  };
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = unloaded_.find(array_id); found != unloaded_.end()) {
      found->second.is_queued = false;
    }
    const auto array = arrays_.find(array_id);
    if (!is_wanted() || array == arrays_.end()) return;
    reloading_id_ = array_id;
    for (const auto& [tile, entry] : array->second.tiles) {
      if (entry.stored != nullptr && entry.stored->is_unloaded()) tiles.push_back(entry.stored);
    }
  }
  for (const StoredTilePtr& tile : tiles) {
    const TileDescription& description = tile->description();
    // The old array can be read without memory, so that no quarantined tile is dropped for it.
    absl::StatusOr<Buffer> memory = pool_->TryAllocate(tile->size_bytes(), TileName(description));
    absl::Status status = memory.status();
    if (status.ok()) {
      SHARDMESH_PASSES("tiles.reload");
      uint32_t crc32c = 0;
      for (size_t at = 0; at < tile->bytes().size();) {
        const absl::Span<const char> piece =
            tile->bytes().subspan(at, static_cast<size_t>(kVerifyPieceBytes));
        {
          absl::MutexLock lock(&mutex_);
          if (!is_wanted()) return;
        }
        std::copy(piece.begin(), piece.end(), memory->data() + at);
        crc32c = ExtendCrc32c(crc32c, memory->bytes().subspan(at, piece.size()));
        at += piece.size();
      }
      if (crc32c != tile->crc32c()) {
        status = ChecksumMismatch(TileName(description), crc32c, tile->crc32c());
      }
    }
    if (!status.ok()) {
      absl::MutexLock lock(&mutex_);
      if (is_wanted() && !std::exchange(unloaded_.at(array_id).is_reported, true)) {
        LogWarning("an array stays out of memory, and its readers read its files",
                   {{"array", array_id}, {"error", status}});
      }
      return;
    }
    auto loaded = std::make_shared<const StoredTile>(
        description, std::make_shared<Buffer>(*std::move(memory)), tile->crc32c(),
        /*durable=*/true);
    absl::MutexLock lock(&mutex_);
    if (!is_wanted()) return;
    if (!Exchange(tile, std::move(loaded)).ok()) {
      // The tile has left the store, or RewriteFile has replaced it: begin again.
      if (!std::exchange(unloaded_.at(array_id).is_queued, true)) {
        reloads_.Push([this, array_id] { Reload(array_id); });
      }
      return;
    }
  }
  absl::MutexLock lock(&mutex_);
  if (is_wanted()) ForgetUnloaded(array_id);
}

void ShardStore::RecoverUnloaded() {
  const std::string folder = Path(data_dir_, kUnloadedFolder);
  if (access(folder.c_str(), F_OK) != 0) return;
  const absl::StatusOr<std::vector<std::string>> names = ListFolder(folder);
  if (!names.ok()) {
    recovery_report_.problems.push_back({folder, "", names.status()});
    return;
  }
  for (const std::string& name : *names) {
    const std::string path = Path(folder, name);
    if (absl::EndsWith(name, ToAbsl(kTemporarySuffix))) {
      unlink(path.c_str());
      continue;
    }
    // Without a successor, the array is read back if there is room for it.
    absl::StatusOr<std::string> successor_id = ReadText(path, kMaxOwnerBytes);
    absl::MutexLock lock(&mutex_);
    unloaded_[name].successor_id = successor_id.ok() ? *std::move(successor_id) : "";
  }
}

void ShardStore::SettleUnloaded() {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> array_ids;
  for (const auto& [array_id, unloaded] : unloaded_) array_ids.push_back(array_id);
  for (const std::string& array_id : array_ids) {
    const auto array = arrays_.find(array_id);
    if (array == arrays_.end() ||
        array->second.tiles.begin()->second.state != TileState::kCommitted) {
      // Files that could not be read stay where they are, and the next start must map them too.
      if (access(Path(Path(data_dir_, kArraysFolder), array_id).c_str(), F_OK) == 0) {
        unloaded_.erase(array_id);
        stale_markers_.insert(array_id);
      } else {
        ForgetUnloaded(array_id);
      }
      continue;
    }
    const std::string successor_id = unloaded_.at(array_id).successor_id;
    if (!arrays_.contains(successor_id)) QueueReloads(successor_id);
  }
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
  SHARDMESH_PASSES("tiles.publish");
  const TileDescription& description = tile->description();
  absl::MutexLock lock(&mutex_);
  TileEntry& entry = arrays_.find(description.array_id)->second.tiles.at(description.tile);
  if (entry.state != TileState::kReceiving) {
    return ArrayAborted(description);
  }
  entry.state = TileState::kStaged;
  entry.stored = std::move(tile);
  return absl::OkStatus();
}

void ShardStore::Forget(const TileDescription& description) {
  absl::MutexLock lock(&mutex_);
  const auto array = arrays_.find(description.array_id);
  array->second.tiles.erase(description.tile);
  if (array->second.tiles.empty()) {
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
    // The array was aborted. Only its last writer finds the folder empty, so rmdir succeeds.
    rmdir(folder.c_str());
  }
}

absl::Status ShardStore::DiscardFiles(const char* folder, const std::string& array_id,
                                      FileEffects* effects) {
  const std::string from = Path(Path(data_dir_, folder), array_id);
  std::string to;
  std::error_code ignored;
  do {
    to = Path(Path(data_dir_, kTrashFolder), StrCat(array_id, ".", next_discard_++));
  } while (fs::exists(to, ignored));
  if (SHARDMESH_FAILS("tiles.rename_discarded") || rename(from.c_str(), to.c_str()) != 0) {
    return errno == ENOENT ? absl::OkStatus() : FileError("discard", from, errno);
  }
  const std::string below = Path(from, "");
  const auto first = unmoved_.lower_bound(below);
  auto end = first;
  while (end != unmoved_.end() && absl::StartsWith(*end, below)) ++end;
  unmoved_.erase(first, end);
  effects->changed_folders.insert(Path(data_dir_, folder));
  effects->to_remove.push_back(std::move(to));
  if (std::string_view(folder) == kArraysFolder) effects->gone_ids.push_back(array_id);
  return absl::OkStatus();
}

std::vector<std::string> ShardStore::QuarantinedNames(const QuarantinedArray& array) const {
  const auto here = arrays_.find(array.array_id);
  std::vector<std::string> names;
  for (const QuarantinedTile& each : array.tiles) {
    const Tile& tile = each.description.tile;
    if (here == arrays_.end() || !here->second.tiles.contains(tile)) {
      names.push_back(TileFileName(tile));
    }
  }
  return names;
}

absl::Status ShardStore::DiscardQuarantined(const std::string& array_id,
                                            const std::vector<std::string>& file_names,
                                            FileEffects* effects) {
  absl::Status status = DiscardFiles(kQuarantineFolder, array_id, effects);
  for (const char* folder : {kArraysFolder, kStagedFolder}) {
    const std::string from = Path(Path(data_dir_, folder), array_id);
    bool was_removed = false;
    for (const std::string& name : file_names) {
      const std::string path = Path(from, name);
      if (unmoved_.erase(path) == 0) continue;
      was_removed |= unlink(path.c_str()) == 0;
    }
    if (!was_removed) continue;
    rmdir(from.c_str());  // succeeds only if the folder is empty
    effects->changed_folders.insert({from, Path(data_dir_, folder)});
  }
  return status;
}

bool ShardStore::HasStaged(const absl::btree_set<std::string>& array_ids) const {
  absl::MutexLock lock(&mutex_);
  return std::any_of(array_ids.begin(), array_ids.end(), [this](const std::string& id) {
    mutex_.AssertHeld();
    const auto array = arrays_.find(id);
    return array != arrays_.end() &&
           std::any_of(array->second.tiles.begin(), array->second.tiles.end(),
                       [](const auto& each) { return each.second.state == TileState::kStaged; });
  });
}

absl::Status ShardStore::CommitFiles(const std::string& array_id, FileEffects* effects) {
  // An earlier start may have left files of this array that it could not read for lack of memory.
  // The new files replace these old files.
  SHARDMESH_RETURN_IF_ERROR(DiscardFiles(kArraysFolder, array_id, effects));
  const std::string from = Path(Path(data_dir_, kStagedFolder), array_id);
  const std::string to = Path(Path(data_dir_, kArraysFolder), array_id);
  if (SHARDMESH_FAILS("tiles.rename_committed") || rename(from.c_str(), to.c_str()) != 0) {
    return FileError("commit", from, errno);
  }
  effects->changed_folders.insert({Path(data_dir_, kArraysFolder), Path(data_dir_, kStagedFolder)});
  return absl::OkStatus();
}

absl::Status ShardStore::QuarantineFiles(absl::Span<const MovedAside> moved, FileEffects* effects) {
  const std::string quarantine = Path(data_dir_, kQuarantineFolder);
  const bool sync_together = moved.size() > kMaxSyncedFolders;
  // No file has moved yet. Those that move leave the set again.
  for (const MovedAside& each : moved) {
    const std::string from = Path(Path(data_dir_, each.folder), each.array.array_id);
    for (const std::string& name : each.file_names) unmoved_.insert(Path(from, name));
  }
  // Write `about` (the reason, and whether the array lives) to disk before the tiles are moved.
  absl::Status status;
  std::vector<const MovedAside*> told;
  for (const MovedAside& each : moved) {
    const std::string to = Path(quarantine, each.array.array_id);
    absl::Status written = MakeFolder(to);
    if (written.ok()) {
      written = (sync_together ? WriteTextUnsynced : WriteText)(Path(to, kAboutFile),
                                                                EncodeAbout(each.array));
    }
    if (written.ok()) {
      told.push_back(&each);
    }
    status.Update(written);
  }
  if (sync_together) {
    SHARDMESH_RETURN_IF_ERROR(SyncAll());
  }
  for (const MovedAside* each : told) {
    const std::string from = Path(Path(data_dir_, each->folder), each->array.array_id);
    const std::string staged = Path(Path(data_dir_, kStagedFolder), each->array.array_id);
    const std::string to = Path(quarantine, each->array.array_id);
    for (const std::string& name : each->file_names) {
      const auto move_from = [&](const std::string& folder) {
        return !SHARDMESH_FAILS("tiles.rename_quarantined") &&
               rename(Path(folder, name).c_str(), Path(to, name).c_str()) == 0;
      };
      bool has_moved = move_from(from);
      const int error = errno;
      // The folder of a committed array is still among the staged ones if it could not be moved.
      if (!has_moved && error == ENOENT) has_moved = move_from(staged);
      if (has_moved) {
        unmoved_.erase(Path(from, name));
      } else {
        status.Update(FileError("quarantine", Path(from, name), error));
      }
    }
    for (const std::string& folder : {from, staged}) {
      // Succeeds only if the folder is empty.
      if (rmdir(folder.c_str()) == 0 && folder == from &&
          std::string_view(each->folder) == kArraysFolder) {
        effects->gone_ids.push_back(each->array.array_id);
      }
    }
    effects->changed_folders.insert(
        {to, quarantine, Path(data_dir_, each->folder), Path(data_dir_, kStagedFolder)});
  }
  return status;
}

absl::Status ShardStore::SyncAll() {
  if (SHARDMESH_FAILS("tiles.sync_all") || syncfs(lock_.get()) != 0) {
    return FileError("sync the file system of", data_dir_, errno);
  }
  return absl::OkStatus();
}

absl::Status ShardStore::RecoverQuarantine() {
  const std::string folder = Path(data_dir_, kQuarantineFolder);
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> array_ids, ListFolder(folder));
  for (const std::string& array_id : array_ids) {
    RecoverQuarantined(array_id);
  }
  return absl::OkStatus();
}

void ShardStore::RecoverQuarantined(const std::string& array_id) {
  const std::string path = Path(Path(data_dir_, kQuarantineFolder), array_id);
  const absl::StatusOr<std::vector<std::string>> names = ListFolder(path);
  if (!names.ok()) {
    recovery_report_.problems.push_back({path, "", names.status()});
    return;
  }
  QuarantinedArray array{.array_id = array_id, .reason = "", .since = absl::Now(), .tiles = {}};
  array.on_disk = true;
  const absl::StatusOr<std::string> about = ReadText(Path(path, kAboutFile), kMaxAboutBytes);
  if (!about.ok() || !DecodeAbout(*about, &array)) {
    array.reason = "the file with the reason cannot be read";
    array.array_lives = true;  // no file says whether the array lives, so keep it
  }
  bool is_all_read = true;
  for (const std::string& name : *names) {
    if (name == kAboutFile) {
      continue;
    }
    if (absl::EndsWith(name, ToAbsl(kTemporarySuffix))) {
      unlink(Path(path, name).c_str());
      continue;
    }
    absl::StatusOr<TileFileHeader> header = ReadTileFileHeader(Path(path, name));
    if (header.ok() && header->description.array_id != array_id) {
      header = WithReason(absl::DataLossError(StrCat("tile file ", Path(path, name), " holds ",
                                                     TileName(header->description))),
                          Reason::kBadFile, {{fact::kFile, Path(path, name)}});
    }
    if (!header.ok()) {
      is_all_read &= SetAside(Path(path, name), header.status());
      continue;
    }
    const int64_t size_bytes = TileSizeBytes(header->description);
    array.tiles_bytes += size_bytes;
    array.tiles.push_back({.description = header->description,
                           .crc32c = header->crc32c,
                           .size_bytes = size_bytes,
                           .stored = nullptr});
    ++recovery_report_.quarantined_tiles;
  }
  if (array.tiles.empty() && !is_all_read) {
    return;  // a later start may read the tile, and then needs `about`
  }
  if (array.tiles.empty()) {
    unlink(Path(path, kAboutFile).c_str());
    rmdir(path.c_str());  // succeeds only if the folder is empty
    return;
  }
  absl::MutexLock lock(&mutex_);
  CountIn(array);
  quarantine_.emplace(array_id, std::move(array));
}

}  // namespace shardmesh::worker
