// Decodes the orders of a save, runs them on the save's thread, and encodes the answers.
#include "worker/save/save_orders.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "process/failpoint.h"
#include "process/log.h"
#include "process/steady_deadline.h"
#include "process/thread_pool.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_manifest.h"
#include "worker/save/region_comparer.h"
#include "worker/save/region_writer.h"
#include "worker/save/save_pace.h"

namespace shardmesh::worker {
namespace {

constexpr absl::Duration kProgressInterval = absl::Milliseconds(200);
// Of the threads that write: beside a thread of a step on the same core they get about a tenth of
// the time, so that steps go on at their pace.
constexpr int kNice = 10;
// The most checksums of pieces in an answer about files that were read whole: those of 256 GiB, in
// 1 MiB of the message.
constexpr size_t kMaxPieces = size_t{1} << 18;

// The most tensors of an earlier checkpoint in an answer, which then has 2.3 MiB.
constexpr size_t kMaxEarlierTensors = 150'000;

// Lowers the priority of the calling thread alone, as Linux does for the id 0.
void LowerPriority() { setpriority(PRIO_PROCESS, 0, kNice); }

absl::Status Cancelled() {
  return WithReason(absl::CancelledError("the save was cancelled"), Reason::kCancelled);
}

// Whether a disk failed to take or to deliver bytes.
bool IsDiskError(const absl::Status& status) {
  return absl::IsDataLoss(status) && ReasonOf(status) == Reason::kUnspecified;
}

SaveTarget TargetOf(const internal::v1::SaveOrder& order) {
  SaveTarget target{.folder = order.folder()};
  if (order.has_step()) target.step = order.step();
  target.min_kept_bytes = order.open().min_kept_bytes();  // 0 in other orders
  return target;
}

std::vector<FileToSave> FilesOf(
    const google::protobuf::RepeatedPtrField<internal::v1::SavedFile>& from) {
  std::vector<FileToSave> files;
  for (const internal::v1::SavedFile& file : from) {
    files.push_back({.name = file.name(),
                     .size_bytes = file.size_bytes(),
                     .content_key = file.content_key(),
                     .header_sha256 = file.header_sha256()});
  }
  return files;
}

void Encode(const FoundTiles& from, internal::v1::FoundTiles* to) {
  std::string bits((from.is_intact.size() + 7) / 8, '\0');
  for (size_t i = 0; i < from.is_intact.size(); ++i) {
    if (from.is_intact[i]) bits[i / 8] = static_cast<char>(bits[i / 8] | (1 << (i % 8)));
  }
  to->set_file(from.file);
  to->set_is_intact(std::move(bits));
}

// Leaves out the files beyond kMaxPieces. Readers of these files then compare whole tiles.
void Encode(const std::vector<FilePieces>& from, internal::v1::SaveAnswer* to) {
  size_t count = 0;
  for (const FilePieces& each : from) {
    count += each.piece_crc32c.size();
    if (count > kMaxPieces) return;
    internal::v1::FilePieces& added = *to->add_pieces();
    added.set_file(each.file);
    added.mutable_piece_crc32c()->Add(each.piece_crc32c.begin(), each.piece_crc32c.end());
  }
}

// Leaves out the files beyond kMaxEarlierTensors. Their tensors then count as changed.
void Encode(const std::vector<ManifestFile>& from, internal::v1::SaveAnswer* to) {
  size_t count = 0;
  for (const ManifestFile& file : from) {
    count += file.tensors.size();
    if (count > kMaxEarlierTensors) return;
    internal::v1::EarlierFile& added = *to->add_earlier();
    for (const ManifestTensor& tensor : file.tensors) {
      const TensorDigests digests = DigestsOf(tensor);
      added.add_array_digests(digests.array);
      added.add_content_digests(digests.content);
    }
  }
}

}  // namespace

struct SaveOrders::Save {
  std::atomic<bool> is_cancelled = false;
  std::atomic<bool> is_ended = false;
  std::unique_ptr<SaveFolder> folder;  // used only on the thread
  bool has_disk_error = false;         // used only on the thread
  std::unique_ptr<ThreadPool> thread;  // last: its thread uses the members above

  void End(bool keep) {
    if (folder != nullptr && keep && !has_disk_error) folder->Leave();
    folder.reset();
    is_ended = true;
  }
  // The coordinator, which orders that nothing is kept after such an error, may be lost.
  void Spoil() {
    has_disk_error = true;
    if (folder != nullptr) folder->Spoil();
  }
  absl::Status CheckOpen() const {
    if (is_cancelled) return Cancelled();
    return folder != nullptr ? absl::OkStatus()
                             : absl::FailedPreconditionError("the save has no open folder");
  }
};

namespace {

// A tile of the store, and the place of a region of it.
struct StoredRegion {
  StoredTilePtr tile;
  RegionPlace place;
};

// `last` keeps the tile of the last region: regions of one tile follow each other, and the store
// may have to unpack the tile.
absl::StatusOr<StoredRegion> FindRegion(ShardStore* store, const internal::v1::SavedRegion& region,
                                        int files, StoredTilePtr* last) {
  if (region.file() >= static_cast<uint32_t>(files)) {
    return absl::InternalError(StrCat("an order has no file ", region.file()));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Tile tile, rpc::Decode(region.tile()));
  if (*last != nullptr && ((*last)->description().array_id != region.array_id() ||
                           (*last)->description().tile != tile)) {
    *last = nullptr;
  }
  const absl::StatusOr<StoredTilePtr> stored = store->FindStaged(region.array_id(), tile);
  if (!stored.ok() && !absl::IsNotFound(stored.status())) return stored.status();
  if (!stored.ok()) {
    return absl::UnavailableError(
        StrCat("tile ", tile.ToString(), " of array ", region.array_id(),
               " is no longer there: ", ToStd(stored.status().message())));
  }
  *last = *stored;
  const TileDescription& about = (*stored)->description();
  return StoredRegion{.tile = *stored,
                      .place = {.dtype = about.dtype,
                                .tensor_shape = about.array_shape,
                                .tile = tile,
                                .begin_bytes = region.begin_bytes(),
                                .end_bytes = region.end_bytes(),
                                .offset_bytes = region.offset_bytes()}};
}

// Compares the regions of an order with the links of the staging folder. A file that cannot be read
// counts as one with other bytes.
absl::Status CompareTiles(ShardStore* store, SaveFolder& folder,
                          const std::atomic<bool>& is_cancelled,
                          const internal::v1::CompareSaveTiles& tiles,
                          internal::v1::SaveAnswer* answer) {
  const auto keep_going = [&is_cancelled] { return is_cancelled ? Cancelled() : absl::OkStatus(); };
  std::vector<bool> differs(static_cast<size_t>(tiles.files_size()));
  absl::StatusOr<InputFile> file = absl::NotFoundError("no file is open");
  std::optional<uint32_t> opened;
  StoredTilePtr last;
  for (int i = 0; i < tiles.regions_size(); ++i) {
    const internal::v1::SavedRegion& region = tiles.regions(i);
    SHARDMESH_ASSIGN_OR_RETURN(const StoredRegion found,
                               FindRegion(store, region, tiles.files_size(), &last));
    const std::string& name = tiles.files(static_cast<int>(region.file()));
    if (opened != region.file()) {
      file = folder.OpenLink(name);
      opened = region.file();
    }
    absl::StatusOr<std::optional<uint32_t>> crc32c = std::optional<uint32_t>();
    std::vector<uint32_t> piece_crc32c;
    if (!differs[region.file()]) {
      crc32c = file.ok() ? CompareRegion(*file, name, found.tile->bytes(), found.place, keep_going,
                                         &piece_crc32c)
                         : file.status();
    }
    SHARDMESH_RETURN_IF_ERROR(keep_going());
    if (!crc32c.ok()) {
      LogWarning("a file of an earlier checkpoint cannot be compared, and is written anew",
                 {{"file", name}, {"error", crc32c.status()}});
    }
    const bool is_equal = crc32c.ok() && crc32c->has_value();
    answer->add_crc32c(is_equal ? **crc32c : 0);
    if (is_equal) {
      answer->mutable_piece_crc32c()->Add(piece_crc32c.begin(), piece_crc32c.end());
    } else {
      answer->add_differing(static_cast<uint32_t>(i));
      differs[region.file()] = true;
    }
  }
  return absl::OkStatus();
}

// Writes the regions of an order one after the other.
absl::Status WriteTiles(ShardStore* store, const SavePace::Options& pauses, SaveFolder* folder,
                        const std::atomic<bool>& is_cancelled, const internal::v1::SaveOrder& order,
                        const SaveOrders::Reply& reply, internal::v1::SaveAnswer* answer) {
  const internal::v1::WriteSaveTiles& tiles = order.tiles();
  int64_t done_bytes = 0;
  SavePace pace(pauses, is_cancelled);
  const FileDescriptor* file = nullptr;  // of the current region
  SteadyDeadline next_report = SteadyDeadline::After(kProgressInterval);
  const auto progress = [&](int64_t bytes) {
    if (is_cancelled) return false;
    done_bytes += bytes;
    if (next_report.is_over()) {
      next_report = SteadyDeadline::After(kProgressInterval);
      internal::v1::SaveProgress report;
      report.set_order_id(order.order_id());
      report.set_done_bytes(done_bytes);
      reply.progress(std::move(report));
    }
    if (pace.steps_run()) {
      // Else the kernel would write all that the cache took at once, at the end, and without
      // pauses.
      sync_file_range(file->get(), 0, 0, SYNC_FILE_RANGE_WRITE);
    }
    pace.Pause();
    return !is_cancelled;
  };
  std::vector<uint32_t> piece_crc32c;
  StoredTilePtr last;
  for (const internal::v1::SavedRegion& region : tiles.regions()) {
    SHARDMESH_ASSIGN_OR_RETURN(const StoredRegion found,
                               FindRegion(store, region, tiles.files_size(), &last));
    const std::string& name = tiles.files(static_cast<int>(region.file()));
    SHARDMESH_ASSIGN_OR_RETURN(file, folder->Open(name));
    SHARDMESH_ASSIGN_OR_RETURN(
        const uint32_t crc32c,
        WriteRegion(*file, name, found.tile->bytes(), found.place,
                    {.locks_work = tiles.one_host(), .progress = progress}, &piece_crc32c));
    answer->add_crc32c(crc32c);
    if (is_cancelled) return Cancelled();
  }
  answer->mutable_piece_crc32c()->Add(piece_crc32c.begin(), piece_crc32c.end());
  return tiles.sync() ? folder->Sync() : absl::OkStatus();
}

}  // namespace

SaveOrders::SaveOrders(ShardStore* store, WriteRoots roots, SavePace::Options pauses)
    : store_(store), roots_(std::move(roots)), pauses_(std::move(pauses)) {}

SaveOrders::~SaveOrders() {
  EndAll();
  absl::MutexLock lock(&mutex_);
  saves_.clear();  // waits for the threads, which do not take the lock
}

void SaveOrders::Take(internal::v1::SaveOrder order, Reply reply) {
  // Destroyed after the lock is released: joins threads that have no work left.
  std::vector<std::unique_ptr<Save>> ended;
  absl::Status refused;
  {
    absl::MutexLock lock(&mutex_);
    for (auto save = saves_.begin(); save != saves_.end();) {
      const auto current = save++;
      if (current->second->is_ended && current->first != order.save_id()) {
        ended.push_back(std::move(current->second));
        saves_.erase(current);
      }
    }
    const absl::StatusOr<Save*> save = FindOrBegin(order.save_id());
    if (save.ok()) {
      if (order.has_end()) (*save)->is_cancelled = true;
      (*save)->thread->Push([this, save = *save, order = std::move(order),
                             reply = std::move(reply)] { Execute(save, order, reply); });
      return;
    }
    refused = save.status();
  }
  Answer(order, internal::v1::SaveAnswer(), refused, reply);
}

absl::StatusOr<SaveOrders::Save*> SaveOrders::FindOrBegin(const std::string& save_id) {
  if (const auto found = saves_.find(save_id); found != saves_.end()) return found->second.get();
  auto save = std::make_unique<Save>();
  SHARDMESH_ASSIGN_OR_RETURN(save->thread, ThreadPool::Start(1));
  save->thread->Push(LowerPriority);
  return saves_.emplace(save_id, std::move(save)).first->second.get();
}

void SaveOrders::EndAll() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, entry] : saves_) {
    Save* const save = entry.get();
    save->is_cancelled = true;
    // The coordinator may be back soon, and the save begun again.
    save->thread->Push([save] { save->End(/*keep=*/true); });
  }
}

void SaveOrders::Answer(const internal::v1::SaveOrder& order, internal::v1::SaveAnswer answer,
                        const absl::Status& status, const Reply& reply) {
  answer.set_order_id(order.order_id());
  rpc::Encode(status, answer.mutable_error());
  if (!answer.error().ByteSizeLong()) answer.clear_error();
  reply.answer(std::move(answer));
}

void SaveOrders::Execute(Save* save, const internal::v1::SaveOrder& order,
                         const Reply& reply) const {
  internal::v1::SaveAnswer answer;
  const auto execute = [&]() -> absl::Status {
    if (order.has_end()) {
      save->End(order.end().keep());
      return absl::OkStatus();
    }
    if (save->is_cancelled) return Cancelled();
    switch (order.action_case()) {
      case internal::v1::SaveOrder::kOpen: {
        SHARDMESH_FAILPOINT("save.open");
        bool took_over = false;
        SHARDMESH_ASSIGN_OR_RETURN(
            save->folder, SaveFolder::Lead(roots_, TargetOf(order), order.open().overwrite(),
                                           order.open().probe(), &took_over));
        answer.set_took_over(took_over);
        return absl::OkStatus();
      }
      case internal::v1::SaveOrder::kValidate: {
        SHARDMESH_FAILPOINT("save.validate");
        const internal::v1::ValidateSaveFolder& validate = order.validate();
        SHARDMESH_ASSIGN_OR_RETURN(
            const FolderFacts facts,
            SaveFolder::Validate(roots_, TargetOf(order), validate.overwrite(),
                                 FilesOf(validate.files()), validate.needed_bytes()));
        answer.mutable_folder()->set_is_there(facts.is_there);
        answer.mutable_folder()->set_inode(facts.inode);
        answer.mutable_folder()->set_need_bytes(facts.need_bytes);
        return absl::OkStatus();
      }
      case internal::v1::SaveOrder::kCheck: {
        SHARDMESH_FAILPOINT("save.check");
        SHARDMESH_ASSIGN_OR_RETURN(
            save->folder, SaveFolder::Join(roots_, TargetOf(order), order.check().probe()));
        return absl::OkStatus();
      }
      case internal::v1::SaveOrder::kEarlier: {
        SHARDMESH_ASSIGN_OR_RETURN(const std::vector<ManifestFile> files,
                                   SaveFolder::EarlierFiles(roots_, TargetOf(order)));
        Encode(files, &answer);
        return absl::OkStatus();
      }
      case internal::v1::SaveOrder::kMake: {
        SHARDMESH_FAILPOINT("save.make");
        SHARDMESH_RETURN_IF_ERROR(save->CheckOpen());
        std::vector<FoundTiles> found;
        std::vector<FilePieces> pieces;
        std::vector<uint32_t> alike;
        SHARDMESH_ASSIGN_OR_RETURN(
            const std::vector<uint32_t> linked,
            save->folder->MakeFiles(
                FilesOf(order.make().files()),
                [save] { return save->is_cancelled ? Cancelled() : absl::OkStatus(); }, &found,
                &pieces, &alike));
        answer.mutable_alike()->Add(alike.begin(), alike.end());
        answer.mutable_linked()->Add(linked.begin(), linked.end());
        for (const FoundTiles& each : found) Encode(each, answer.add_found());
        Encode(pieces, &answer);
        return absl::OkStatus();
      }
      case internal::v1::SaveOrder::kText:
        SHARDMESH_RETURN_IF_ERROR(save->CheckOpen());
        return save->folder->WriteText(order.text().name(), order.text().offset_bytes(),
                                       order.text().text());
      case internal::v1::SaveOrder::kTiles:
        SHARDMESH_FAILPOINT("save.tiles");
        SHARDMESH_RETURN_IF_ERROR(save->CheckOpen());
        return WriteTiles(store_, pauses_, save->folder.get(), save->is_cancelled, order, reply,
                          &answer);
      case internal::v1::SaveOrder::kCompare:
        SHARDMESH_FAILPOINT("save.compare");
        SHARDMESH_RETURN_IF_ERROR(save->CheckOpen());
        return CompareTiles(store_, *save->folder, save->is_cancelled, order.compare(), &answer);
      case internal::v1::SaveOrder::kReplace:
        SHARDMESH_RETURN_IF_ERROR(save->CheckOpen());
        return save->folder->ReplaceLinks(FilesOf(order.replace().files()));
      case internal::v1::SaveOrder::kPublish: {
        SHARDMESH_FAILPOINT("save.publish");
        SHARDMESH_RETURN_IF_ERROR(save->CheckOpen());
        const std::vector<std::string> files(order.publish().files().begin(),
                                             order.publish().files().end());
        std::vector<int64_t> kept;
        SHARDMESH_ASSIGN_OR_RETURN(
            const std::vector<int64_t> removed,
            save->folder->Publish(files, order.publish().marker(), order.publish().keep(), &kept));
        answer.mutable_removed_steps()->Add(removed.begin(), removed.end());
        answer.mutable_kept_steps()->Add(kept.begin(), kept.end());
        return absl::OkStatus();
      }
      default:
        return absl::UnimplementedError(
            "this worker does not know an order of the save; update the worker");
    }
  };
  const absl::Status executed = execute();
  if (IsDiskError(executed)) save->Spoil();
  Answer(order, std::move(answer), executed, reply);
}

}  // namespace shardmesh::worker
