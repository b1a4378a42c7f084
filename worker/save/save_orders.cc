// Decodes the orders of a save, runs them on the save's thread, and encodes the answers.
#include "worker/save/save_orders.h"

#include <sys/resource.h>

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "process/failpoint.h"
#include "process/steady_deadline.h"
#include "process/thread_pool.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/save/region_writer.h"

namespace shardmesh::worker {
namespace {

constexpr absl::Duration kProgressInterval = absl::Milliseconds(200);
// Of the threads that write: beside a thread of a step on the same core they get about a tenth of
// the time, so that steps go on at their pace.
constexpr int kNice = 10;
// The most checksums of pieces in an answer about files that were read whole: those of 256 GiB, in
// 1 MiB of the message.
constexpr size_t kMaxPieces = size_t{1} << 18;

// Lowers the priority of the calling thread alone, as Linux does for the id 0.
void LowerPriority() { setpriority(PRIO_PROCESS, 0, kNice); }

absl::Status Cancelled() {
  return WithReason(absl::CancelledError("the save was cancelled"), Reason::kCancelled);
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
    files.push_back(
        {.name = file.name(), .size_bytes = file.size_bytes(), .content_key = file.content_key()});
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

}  // namespace

struct SaveOrders::Save {
  std::atomic<bool> is_cancelled = false;
  std::atomic<bool> is_ended = false;
  std::unique_ptr<SaveFolder> folder;  // used only on the thread
  ThreadPool thread{1};                // last: its thread uses the members above

  void End(bool keep) {
    if (folder != nullptr && keep) folder->Leave();
    folder.reset();
    is_ended = true;
  }
  absl::Status CheckOpen() const {
    if (is_cancelled) return Cancelled();
    return folder != nullptr ? absl::OkStatus()
                             : absl::FailedPreconditionError("the save has no open folder");
  }
};

namespace {

// Writes the regions of an order one after the other.
absl::Status WriteTiles(ShardStore* store, SaveFolder* folder,
                        const std::atomic<bool>& is_cancelled, const internal::v1::SaveOrder& order,
                        const SaveOrders::Reply& reply, internal::v1::SaveAnswer* answer) {
  const internal::v1::WriteSaveTiles& tiles = order.tiles();
  int64_t done_bytes = 0;
  SteadyDeadline next_report = SteadyDeadline::After(kProgressInterval);
  const auto progress = [&](int64_t bytes) {
    done_bytes += bytes;
    if (next_report.is_over()) {
      next_report = SteadyDeadline::After(kProgressInterval);
      internal::v1::SaveProgress report;
      report.set_order_id(order.order_id());
      report.set_done_bytes(done_bytes);
      reply.progress(std::move(report));
    }
    return !is_cancelled;
  };
  std::vector<uint32_t> piece_crc32c;
  for (const internal::v1::SavedRegion& region : tiles.regions()) {
    if (region.file() >= static_cast<uint32_t>(tiles.files_size())) {
      return absl::InternalError(StrCat("an order has no file ", region.file()));
    }
    const std::string& name = tiles.files(static_cast<int>(region.file()));
    SHARDMESH_ASSIGN_OR_RETURN(const Tile tile, rpc::Decode(region.tile()));
    const absl::StatusOr<StoredTilePtr> stored = store->FindStaged(region.array_id(), tile);
    if (!stored.ok()) {
      return absl::UnavailableError(
          StrCat("tile ", tile.ToString(), " of array ", region.array_id(),
                 " is no longer there: ", ToStd(stored.status().message())));
    }
    SHARDMESH_ASSIGN_OR_RETURN(const FileDescriptor* const file, folder->Open(name));
    const TileDescription& about = (*stored)->description();
    SHARDMESH_ASSIGN_OR_RETURN(
        const uint32_t crc32c,
        WriteRegion(*file, name, (*stored)->bytes(),
                    {.dtype = about.dtype,
                     .tensor_shape = about.array_shape,
                     .tile = tile,
                     .begin_bytes = region.begin_bytes(),
                     .end_bytes = region.end_bytes(),
                     .offset_bytes = region.offset_bytes()},
                    {.locks_work = tiles.one_host(), .progress = progress}, &piece_crc32c));
    answer->add_crc32c(crc32c);
    if (is_cancelled) return Cancelled();
  }
  answer->mutable_piece_crc32c()->Add(piece_crc32c.begin(), piece_crc32c.end());
  return tiles.sync() ? folder->Sync() : absl::OkStatus();
}

}  // namespace

SaveOrders::SaveOrders(ShardStore* store, WriteRoots roots)
    : store_(store), roots_(std::move(roots)) {}

SaveOrders::~SaveOrders() {
  EndAll();
  absl::MutexLock lock(&mutex_);
  saves_.clear();  // waits for the threads, which do not take the lock
}

void SaveOrders::Take(internal::v1::SaveOrder order, Reply reply) {
  // Destroyed after the lock is released: joins threads that have no work left.
  std::vector<std::unique_ptr<Save>> ended;
  absl::MutexLock lock(&mutex_);
  for (auto save = saves_.begin(); save != saves_.end();) {
    const auto current = save++;
    if (current->second->is_ended && current->first != order.save_id()) {
      ended.push_back(std::move(current->second));
      saves_.erase(current);
    }
  }
  std::unique_ptr<Save>& entry = saves_[order.save_id()];
  if (entry == nullptr) {
    entry = std::make_unique<Save>();
    entry->thread.Push(LowerPriority);
  }
  Save* const save = entry.get();
  if (order.has_end()) save->is_cancelled = true;
  save->thread.Push([store = store_, roots = &roots_, save, order = std::move(order),
                     reply = std::move(reply)] { Execute(store, *roots, save, order, reply); });
}

void SaveOrders::EndAll() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, entry] : saves_) {
    Save* const save = entry.get();
    save->is_cancelled = true;
    // The coordinator may be back soon, and the save begun again.
    save->thread.Push([save] { save->End(/*keep=*/true); });
  }
}

void SaveOrders::Execute(ShardStore* store, const WriteRoots& roots, Save* save,
                         const internal::v1::SaveOrder& order, const Reply& reply) {
  internal::v1::SaveAnswer answer;
  answer.set_order_id(order.order_id());
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
            save->folder, SaveFolder::Lead(roots, TargetOf(order), order.open().overwrite(),
                                           order.open().probe(), &took_over));
        answer.set_took_over(took_over);
        return absl::OkStatus();
      }
      case internal::v1::SaveOrder::kValidate: {
        SHARDMESH_FAILPOINT("save.validate");
        const internal::v1::ValidateSaveFolder& validate = order.validate();
        SHARDMESH_ASSIGN_OR_RETURN(
            const FolderFacts facts,
            SaveFolder::Validate(roots, TargetOf(order), validate.overwrite(),
                                 FilesOf(validate.files()), validate.needed_bytes()));
        answer.mutable_folder()->set_is_there(facts.is_there);
        answer.mutable_folder()->set_inode(facts.inode);
        answer.mutable_folder()->set_need_bytes(facts.need_bytes);
        return absl::OkStatus();
      }
      case internal::v1::SaveOrder::kCheck: {
        SHARDMESH_FAILPOINT("save.check");
        SHARDMESH_ASSIGN_OR_RETURN(save->folder,
                                   SaveFolder::Join(roots, TargetOf(order), order.check().probe()));
        return absl::OkStatus();
      }
      case internal::v1::SaveOrder::kMake: {
        SHARDMESH_FAILPOINT("save.make");
        SHARDMESH_RETURN_IF_ERROR(save->CheckOpen());
        std::vector<FoundTiles> found;
        std::vector<FilePieces> pieces;
        SHARDMESH_ASSIGN_OR_RETURN(
            const std::vector<uint32_t> linked,
            save->folder->MakeFiles(
                FilesOf(order.make().files()),
                [save] { return save->is_cancelled ? Cancelled() : absl::OkStatus(); }, &found,
                &pieces));
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
        return WriteTiles(store, save->folder.get(), save->is_cancelled, order, reply, &answer);
      case internal::v1::SaveOrder::kPublish: {
        SHARDMESH_FAILPOINT("save.publish");
        SHARDMESH_RETURN_IF_ERROR(save->CheckOpen());
        const std::vector<std::string> files(order.publish().files().begin(),
                                             order.publish().files().end());
        SHARDMESH_ASSIGN_OR_RETURN(
            const std::vector<int64_t> removed,
            save->folder->Publish(files, order.publish().marker(), order.publish().keep()));
        answer.mutable_removed_steps()->Add(removed.begin(), removed.end());
        return absl::OkStatus();
      }
      default:
        return absl::UnimplementedError(
            "this worker does not know an order of the save; update the worker");
    }
  };
  rpc::Encode(execute(), answer.mutable_error());
  if (!answer.error().ByteSizeLong()) answer.clear_error();
  reply.answer(std::move(answer));
}

}  // namespace shardmesh::worker
