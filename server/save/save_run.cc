// Sends the orders of a save and waits for their answers, on the save's own thread.
#include "server/save/save_run.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "process/log.h"
#include "process/random_bytes.h"
#include "process/steady_deadline.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "sharding/digest.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/checkpoint_manifest.h"

namespace shardmesh::server {
namespace {

constexpr size_t kProbeBytes = 32;
// Limits of one order; the stream to a worker keeps only a few MiB of messages.
constexpr int64_t kTextBytes = int64_t{1} << 20;
constexpr size_t kFilesInOrder = 2'000;
constexpr int64_t kRegionBytes = int64_t{256} << 10;  // of encoded regions
// The largest number of bytes that one order writes, so that a cancellation and a report of the
// checksums do not wait for a whole checkpoint.
constexpr int64_t kWriteBytes = int64_t{1} << 30;
// The largest number of workers that an error names.
constexpr size_t kMostNamed = 8;

// Whether a disk failed to take or to deliver bytes. After a failed sync, the host's page cache may
// have bytes that the disk lacks: the next save would find them intact there, and its own sync
// would report no error.
bool IsDiskError(const absl::Status& status) {
  return absl::IsDataLoss(status) && ReasonOf(status) == Reason::kUnspecified;
}

void Encode(const FileInPlan& from, internal::v1::SavedFile* to) {
  to->set_name(from.name);
  to->set_size_bytes(from.size_bytes);
  to->set_content_key(from.content_key);
  to->set_header_sha256(Sha256(from.header));
}

// Encodes a region, with its file as an index into `files`: adds the file if it is new.
int64_t EncodeRegion(const SavePlan& plan, const RegionToWrite& region,
                     std::map<size_t, uint32_t>* file_of,
                     google::protobuf::RepeatedPtrField<std::string>* files,
                     internal::v1::SavedRegion* to) {
  const TensorPlace& place = plan.places[region.tensor];
  const auto [file, is_new] = file_of->emplace(place.file, static_cast<uint32_t>(file_of->size()));
  if (is_new) *files->Add() = plan.files[place.file].name;
  const TensorToSave& tensor = plan.tensors[region.tensor];
  const HeldPart& part = tensor.parts[region.part];
  const ArrayPtr& held = part.array == nullptr ? tensor.array : part.array;
  to->set_array_id(held->definition.descriptor.array_id);
  rpc::Encode(part.tile, to->mutable_tile());
  to->set_begin_bytes(region.begin_bytes);
  to->set_end_bytes(region.end_bytes);
  to->set_file(file->second);
  to->set_offset_bytes(place.offset_bytes);
  return static_cast<int64_t>(to->ByteSizeLong()) + 64;
}

}  // namespace

struct SaveRun::Order {
  internal::v1::SaveOrder message;
  int64_t bytes = 0;  // that the order writes
};

struct SaveRun::TileLane {
  const std::vector<RegionToWrite>* regions = nullptr;
  size_t next = 0;  // the next region to order
  bool has_begun = false;
  int64_t pieces = 0;  // regions of the last order
  int64_t bytes = 0;   // that the last order writes
};

struct SaveRun::CompareLane {
  const std::vector<RegionToWrite>* regions = nullptr;
  size_t next = 0;                // the next region to order
  std::vector<size_t> sent = {};  // regions of the last order
  // The regions that are equal, in their order, and the checksums of all their pieces.
  std::vector<std::pair<size_t, uint32_t>> equal = {};
  std::vector<uint32_t> pieces = {};

  int64_t PiecesOf(size_t region) const {
    return CountSavedPieces((*regions)[region].size_bytes());
  }
};

struct SaveRun::Event {
  std::string identity;
  bool is_end = false;
  absl::StatusOr<internal::v1::SaveAnswer> answer;
};

struct SaveRun::Refusal {
  std::string identity;
  absl::Status status;
};

struct SaveRun::FolderLane {
  size_t next = 0;  // the next file to ask about
  bool has_begun = false;
  internal::v1::SaveFolderFacts facts;  // need_bytes: of all files so far
};

struct SaveRun::Shared {
  absl::Mutex mutex;
  int64_t written_bytes ABSL_GUARDED_BY(mutex) = 0;  // as the workers have reported
  std::deque<Event> events ABSL_GUARDED_BY(mutex);
  std::set<std::string> waiting ABSL_GUARDED_BY(mutex);  // workers with an order of RunLanes
  std::set<std::string> taking_part;                     // constant
  absl::Status cancelled ABSL_GUARDED_BY(mutex);
  bool is_publishing ABSL_GUARDED_BY(mutex) = false;
};

SaveRun::SaveRun(Options options)
    : plan_(std::move(options.plan)),
      options_(std::move(options)),
      shared_(std::make_shared<Shared>()) {
  for (const auto& [identity, regions] : plan_.regions) identities_.push_back(identity);
  shared_->taking_part.insert(identities_.begin(), identities_.end());
  probe_ = RandomBytes(kProbeBytes);
}

OperationWorkers SaveRun::Workers() const {
  absl::MutexLock lock(&shared_->mutex);
  return {.waiting_for = shared_->waiting, .taking_part = shared_->taking_part};
}

absl::Status SaveRun::Cancel(const absl::Status& reason) {
  absl::MutexLock lock(&shared_->mutex);
  if (shared_->is_publishing) {
    return absl::FailedPreconditionError(
        "the checkpoint is complete and being published; the save can no longer be cancelled");
  }
  if (shared_->cancelled.ok()) shared_->cancelled = reason;
  return absl::OkStatus();
}

absl::Status SaveRun::OfWorker(const absl::Status& status, const std::string& identity) {
  if (status.ok() || absl::IsCancelled(status)) return status;
  if (ReasonOf(status) == Reason::kWorkerLost) {
    return WithReason(
        absl::UnavailableError(StrCat("worker \"", identity, "\" was lost during the save")),
        Reason::kWorkerLost, {{fact::kIdentity, identity}});
  }
  return WithContext(status, StrCat("worker \"", identity, "\""));
}

absl::Status SaveRun::WithAdvice(const absl::Status& status) const {
  const std::string identity = FactOf(status, fact::kIdentity).value_or("");
  if (ReasonOf(status) != Reason::kWorkerLost || identity.empty()) return status;
  const std::string advice = options_.advise_on_lost
                                 ? options_.advise_on_lost(plan_, identity)
                                 : std::string("save again when the worker is back");
  return WithReason(absl::UnavailableError(StrCat(ToStd(status.message()), "; ", advice)),
                    Reason::kWorkerLost, {{fact::kIdentity, identity}});
}

SaveRun::Order SaveRun::NewOrder() const {
  Order order;
  order.message.set_save_id(options_.save_id);
  order.message.set_folder(options_.destination.folder);
  if (options_.destination.step.has_value()) order.message.set_step(*options_.destination.step);
  return order;
}

std::function<std::optional<SaveRun::Order>()> SaveRun::LaneOf(std::deque<Order> orders) {
  return [orders = std::move(orders)]() mutable -> std::optional<Order> {
    if (orders.empty()) return std::nullopt;
    Order order = std::move(orders.front());
    orders.pop_front();
    return order;
  };
}

void SaveRun::Send(const std::string& identity, Order order) {
  const bool is_end = order.message.has_end();
  if (std::find(opened_.begin(), opened_.end(), identity) == opened_.end()) {
    opened_.push_back(identity);
  }
  // Reports of one order come one after the other, and the answer comes last.
  const auto reported = std::make_shared<int64_t>(0);
  SaveProgressed progressed;
  if (order.message.has_tiles()) {
    progressed = [shared = shared_, progress = options_.progress, reported](int64_t done) {
      if (done <= *reported) return;
      if (progress) progress(0, done - *reported);
      absl::MutexLock lock(&shared->mutex);
      shared->written_bytes += done - std::exchange(*reported, done);
    };
  }
  options_.access->OrderSave(
      identity, order.message, std::move(progressed),
      [shared = shared_, identity, is_end, reported, bytes = order.bytes,
       progress = options_.progress](absl::StatusOr<internal::v1::SaveAnswer> answer) {
        const bool is_done = answer.ok() && !answer->has_error();
        if (is_done && progress && bytes > *reported) progress(0, bytes - *reported);
        absl::MutexLock lock(&shared->mutex);
        if (is_done && bytes > *reported) shared->written_bytes += bytes - *reported;
        shared->events.push_back(
            {.identity = identity, .is_end = is_end, .answer = std::move(answer)});
      });
}

absl::Status SaveRun::RunLanes(Lanes lanes, absl::Duration timeout, OnError on_error,
                               const std::function<void(const Event&)>& answered) {
  const bool is_end = on_error == OnError::kIgnore;
  {
    absl::MutexLock lock(&shared_->mutex);
    shared_->waiting.clear();
  }
  std::set<std::string> waiting;  // each worker has one order at a time
  const auto send_next = [&](const std::string& identity) {
    std::optional<Order> order = lanes.at(identity)();
    if (!order.has_value()) return;
    waiting.insert(identity);
    {
      absl::MutexLock lock(&shared_->mutex);
      shared_->waiting.insert(identity);
    }
    Send(identity, *std::move(order));
  };
  std::vector<std::string> identities;
  for (const auto& [identity, lane] : lanes) identities.push_back(identity);
  for (const std::string& identity : identities) send_next(identity);
  const SteadyDeadline deadline = SteadyDeadline::After(timeout);
  while (!waiting.empty()) {
    Event event;
    {
      absl::MutexLock lock(&shared_->mutex);
      const auto is_due = [this, is_end]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex) {
        return !shared_->events.empty() || (!is_end && !shared_->cancelled.ok());
      };
      if (!shared_->mutex.AwaitWithDeadline(absl::Condition(&is_due), deadline.wall())) {
        return WithReason(
            absl::DeadlineExceededError(
                StrCat("worker ", StrJoinFirst(kMostNamed, waiting, ", "),
                       " did not answer within ", absl::FormatDuration(timeout),
                       "; its disk may hang, or its build may be too old to save checkpoints")),
            Reason::kDeadline, {{fact::kIdentity, StrJoin(waiting, ",")}});
      }
      if (!is_end && !shared_->cancelled.ok()) return shared_->cancelled;
      event = std::move(shared_->events.front());
      shared_->events.pop_front();
      if (event.is_end == is_end) shared_->waiting.erase(event.identity);
    }
    if (event.is_end != is_end) continue;  // a late answer to an order before the end
    waiting.erase(event.identity);
    absl::Status status = event.answer.status();
    if (status.ok()) status = rpc::Decode(event.answer->error());
    if (!status.ok()) event.answer = OfWorker(status, event.identity);
    answered(event);
    if (event.answer.ok()) {
      send_next(event.identity);
    } else if (on_error == OnError::kStop) {
      return event.answer.status();
    }
  }
  return absl::OkStatus();
}

absl::Status SaveRun::AskLeader(Order order, Event* answer, absl::Duration timeout) {
  std::deque<Order> orders;
  orders.push_back(std::move(order));
  Lanes lanes;
  lanes.emplace(leader_, LaneOf(std::move(orders)));
  return RunLanes(std::move(lanes), timeout, OnError::kStop,
                  [answer](const Event& event) { *answer = event; });
}

absl::Status SaveRun::OpenFolder(SaveResult* result) {
  Order order = NewOrder();
  order.message.mutable_open()->set_overwrite(options_.destination.overwrite);
  order.message.mutable_open()->set_probe(probe_);
  order.message.mutable_open()->set_min_kept_bytes(options_.min_kept_bytes);
  Event answer;
  SHARDMESH_RETURN_IF_ERROR(
      AsFolderError(AskLeader(std::move(order), &answer, options_.open_timeout)));
  result->took_over = answer.answer->took_over();
  return absl::OkStatus();
}

absl::Status SaveRun::PlanByEarlier(absl::Duration timeout) {
  if (!options_.layout.has_value()) return absl::OkStatus();
  Order order = NewOrder();
  order.message.mutable_earlier();
  Event answer;
  const absl::Status listed = AskLeader(std::move(order), &answer, timeout);
  if (absl::IsUnimplemented(listed)) return absl::OkStatus();  // a worker of an older build
  SHARDMESH_RETURN_IF_ERROR(AsFolderError(listed));
  std::vector<EarlierTensors> earlier;
  for (const internal::v1::EarlierFile& from : answer.answer->earlier()) {
    EarlierTensors& file = earlier.emplace_back();
    for (int i = 0; i < std::min(from.array_digests_size(), from.content_digests_size()); ++i) {
      file.push_back({.array = from.array_digests(i), .content = from.content_digests(i)});
    }
  }
  if (earlier.empty()) return absl::OkStatus();
  SHARDMESH_ASSIGN_OR_RETURN(plan_, PlanSave(std::move(plan_.tensors), *options_.layout, earlier));
  plan_.regions.try_emplace(leader_);  // it makes the files, with or without tiles to write
  identities_.clear();
  for (const auto& [identity, regions] : plan_.regions) identities_.push_back(identity);
  return absl::OkStatus();
}

absl::Status SaveRun::AsFolderError(const absl::Status& status) const {
  if (!absl::IsPermissionDenied(status)) return status;
  return InvalidArgument(
      Reason::kBadField,
      StrCat(ToStd(status.message()), "; name a folder that the workers may write into"),
      {{fact::kField, "folder"}, {fact::kValue, options_.destination.folder}});
}

std::optional<SaveRun::Order> SaveRun::NextFiles(FolderLane* lane) const {
  const std::vector<FileInPlan>& files = plan_.files;
  if (lane->has_begun && lane->next == files.size()) return std::nullopt;
  lane->has_begun = true;
  Order order = NewOrder();
  internal::v1::ValidateSaveFolder& validate = *order.message.mutable_validate();
  validate.set_overwrite(options_.destination.overwrite);
  validate.set_needed_bytes(lane->facts.need_bytes());
  const size_t end = std::min(files.size(), lane->next + kFilesInOrder);
  for (; lane->next < end; ++lane->next) Encode(files[lane->next], validate.add_files());
  return order;
}

absl::Status SaveRun::ValidateFolders() {
  std::map<std::string, FolderLane> folders;  // by worker
  for (const std::string& identity : identities_) folders[identity] = {};
  std::vector<Refusal> refusals;
  const auto answered = [&](const Event& event) {
    if (!event.answer.ok()) {
      refusals.push_back({event.identity, event.answer.status()});
      return;
    }
    internal::v1::SaveFolderFacts& facts = folders.at(event.identity).facts;
    const int64_t need_bytes = facts.need_bytes() + event.answer->folder().need_bytes();
    facts = event.answer->folder();
    facts.set_need_bytes(need_bytes);
  };
  // The leader first, as in a save, whose errors about the checkpoint are those of the leader.
  for (const bool is_leader : {true, false}) {
    Lanes lanes;
    for (auto& [identity, lane] : folders) {
      if ((identity == leader_) != is_leader) continue;
      lanes.emplace(identity, [this, folder = &lane] { return NextFiles(folder); });
    }
    const absl::Status status = RunLanes(std::move(lanes), options_.open_timeout,
                                         is_leader ? OnError::kStop : OnError::kGoOn, answered);
    SHARDMESH_RETURN_IF_ERROR(is_leader ? AsFolderError(status) : status);
  }
  const internal::v1::SaveFolderFacts& of_leader = folders.at(leader_).facts;
  for (const auto& [identity, lane] : folders) {
    const bool is_same = lane.facts.is_there() == of_leader.is_there() &&
                         (!options_.one_host || lane.facts.inode() == of_leader.inode());
    const bool has_answered =
        std::none_of(refusals.begin(), refusals.end(),
                     [&id = identity](const Refusal& each) { return each.identity == id; });
    if (is_same || !has_answered) continue;
    refusals.push_back(
        {identity, WithContext(absl::NotFoundError(
                                   StrCat(options_.destination.folder, " is another folder there")),
                               StrCat("worker \"", identity, "\""))});
  }
  return refusals.empty() ? absl::OkStatus() : CannotWrite(std::move(refusals));
}

absl::Status SaveRun::Validate() {
  if (identities_.empty()) {
    return absl::InternalError("the plan of a save names no worker");
  }
  leader_ = identities_.front();
  absl::Status status = PlanByEarlier(options_.open_timeout);
  if (status.ok()) {
    status = ValidateFolders();
  } else if (absl::IsInvalidArgument(status) || absl::IsPermissionDenied(status)) {
    // Other workers may have wrong write roots too. The plan is unchanged, so that all of them are
    // asked, and one error names them.
    const absl::Status of_all = ValidateFolders();
    if (!of_all.ok()) status = of_all;
  }
  // Nobody waits for a cancelled check, and the workers have created nothing.
  bool is_cancelled = false;
  {
    absl::MutexLock lock(&shared_->mutex);
    is_cancelled = !shared_->cancelled.ok();
  }
  EndAll(/*keep=*/false, is_cancelled ? absl::ZeroDuration() : options_.end_timeout);
  return WithAdvice(status);
}

absl::Status SaveRun::CheckFolders() {
  std::vector<Refusal> refusals;
  Lanes lanes;
  for (const std::string& identity : identities_) {
    if (identity == leader_) continue;
    Order order = NewOrder();
    order.message.mutable_check()->set_probe(probe_);
    std::deque<Order> orders;
    orders.push_back(std::move(order));
    lanes.emplace(identity, LaneOf(std::move(orders)));
  }
  // All workers answer, so that the error can name each that does not see the folder.
  SHARDMESH_RETURN_IF_ERROR(RunLanes(
      std::move(lanes), options_.open_timeout, OnError::kGoOn, [&refusals](const Event& event) {
        if (!event.answer.ok()) refusals.push_back({event.identity, event.answer.status()});
      }));
  return refusals.empty() ? absl::OkStatus() : CannotWrite(std::move(refusals));
}

absl::Status SaveRun::CannotWrite(std::vector<Refusal> refusals) const {
  std::sort(refusals.begin(), refusals.end(),
            [](const Refusal& a, const Refusal& b) { return a.identity < b.identity; });
  for (const Refusal& refusal : refusals) {
    // Neither says anything about the folder. A worker without a thread or a descriptor gives no
    // reason.
    const Reason reason = ReasonOf(refusal.status);
    if (reason == Reason::kWorkerLost ||
        (reason == Reason::kUnspecified && absl::IsResourceExhausted(refusal.status))) {
      return refusal.status;
    }
  }
  std::string text;
  for (size_t i = 0; i < refusals.size() && i < kMostNamed; ++i) {
    StrAppend(&text, i > 0 ? "; " : "", ToStd(refusals[i].status.message()));
  }
  if (refusals.size() > kMostNamed) {
    StrAppend(&text, "; and ", refusals.size() - kMostNamed, " more");
  }
  const std::string& folder = options_.destination.folder;
  return InvalidArgument(
      Reason::kBadField,
      StrCat(refusals.size(), " of ", identities_.size(), " workers cannot write into ", folder,
             ", which worker \"", leader_,
             "\" has opened; name a folder of a file system that all workers share, under a "
             "--write-root of each: ",
             text),
      {{fact::kField, "folder"}, {fact::kValue, folder}});
}

absl::Status SaveRun::TakeFound(size_t file, std::string_view is_intact, SaveResult* result) {
  const SavePlan& plan = plan_;
  size_t next = 0;
  for (const size_t tensor : plan.files[file].tensors) {
    const std::vector<HeldPart>& parts = plan.tensors[tensor].parts;
    for (size_t part = 0; part < parts.size(); ++part, ++next) {
      if (next / 8 >= is_intact.size()) {
        return absl::InternalError(
            StrCat("worker \"", leader_, "\" reported too few tiles of ", plan.files[file].name));
      }
      if ((static_cast<unsigned char>(is_intact[next / 8]) >> (next % 8) & 1) == 0) continue;
      present_.found.emplace(tensor, part);
      result->found_bytes += plan.tensors[tensor]
                                 .array->definition.descriptor.TileSizeBytes(parts[part].tile)
                                 .value_or(0);
    }
  }
  return absl::OkStatus();
}

absl::Status SaveRun::MakeFiles(SaveResult* result) {
  const std::vector<FileInPlan>& files = plan_.files;
  for (size_t first = 0; first < files.size(); first += kFilesInOrder) {
    Order order = NewOrder();
    for (size_t i = first; i < std::min(files.size(), first + kFilesInOrder); ++i) {
      Encode(files[i], order.message.mutable_make()->add_files());
    }
    Event answer;
    SHARDMESH_RETURN_IF_ERROR(AskLeader(std::move(order), &answer));
    for (const uint32_t linked : answer.answer->linked()) present_.linked.insert(first + linked);
    for (const uint32_t alike : answer.answer->alike()) alike_.insert(first + alike);
    for (const internal::v1::FoundTiles& found : answer.answer->found()) {
      SHARDMESH_RETURN_IF_ERROR(TakeFound(first + found.file(), found.is_intact(), result));
    }
    for (const internal::v1::FilePieces& each : answer.answer->pieces()) {
      AddFilePieces(plan_, first + each.file(), each.piece_crc32c(), &pieces_);
    }
  }
  return absl::OkStatus();
}

std::optional<SaveRun::Order> SaveRun::NextCompare(CompareLane* lane,
                                                   const std::set<size_t>& differing) const {
  const SavePlan& plan = plan_;
  Order order = NewOrder();
  internal::v1::CompareSaveTiles& tiles = *order.message.mutable_compare();
  lane->sent.clear();
  std::map<size_t, uint32_t> file_of;
  int64_t encoded_bytes = 0;
  int64_t compared_bytes = 0;
  for (; lane->next < lane->regions->size(); ++lane->next) {
    const RegionToWrite& region = (*lane->regions)[lane->next];
    const size_t file = plan.places[region.tensor].file;
    if (!alike_.contains(file) || differing.contains(file)) continue;
    if (encoded_bytes >= kRegionBytes || compared_bytes >= kWriteBytes) break;
    encoded_bytes +=
        EncodeRegion(plan, region, &file_of, tiles.mutable_files(), tiles.add_regions());
    compared_bytes += region.size_bytes();
    lane->sent.push_back(lane->next);
  }
  if (lane->sent.empty()) return std::nullopt;
  return order;
}

absl::Status SaveRun::TakeCompared(const Event& event, CompareLane* lane,
                                   std::set<size_t>* differing) const {
  const SavePlan& plan = plan_;
  const auto file_of = [&](size_t region) {
    return plan.places[(*lane->regions)[region].tensor].file;
  };
  if (absl::IsUnimplemented(event.answer.status())) {  // a worker of an older build
    for (size_t region = 0; region < lane->regions->size(); ++region) {
      if (alike_.contains(file_of(region))) differing->insert(file_of(region));
    }
    return absl::OkStatus();
  }
  SHARDMESH_RETURN_IF_ERROR(event.answer.status());
  const internal::v1::SaveAnswer& answer = *event.answer;
  if (answer.crc32c_size() != std::ssize(lane->sent)) {
    return absl::InternalError(StrCat("worker \"", event.identity, "\" compared ",
                                      answer.crc32c_size(), " of ", lane->sent.size(),
                                      " regions of a save"));
  }
  const std::set<uint32_t> unequal(answer.differing().begin(), answer.differing().end());
  auto piece = answer.piece_crc32c().begin();
  for (size_t i = 0; i < lane->sent.size(); ++i) {
    const size_t region = lane->sent[i];
    if (unequal.contains(static_cast<uint32_t>(i))) {
      differing->insert(file_of(region));
      continue;
    }
    const int64_t count = lane->PiecesOf(region);
    if (count > answer.piece_crc32c().end() - piece) {
      return absl::InternalError(
          StrCat("worker \"", event.identity, "\" reported too few checksums of a save"));
    }
    lane->equal.emplace_back(region, answer.crc32c(static_cast<int>(i)));
    lane->pieces.insert(lane->pieces.end(), piece, piece + count);
    piece += count;
  }
  return absl::OkStatus();
}

absl::Status SaveRun::CompareAlike() {
  if (alike_.empty()) return absl::OkStatus();
  const SavePlan& plan = plan_;
  std::set<size_t> differing;
  std::map<std::string, CompareLane> compare_lanes;  // by worker
  absl::Status failed;
  Lanes lanes;
  for (const auto& [identity, regions] : plan.regions) {
    CompareLane* const lane = &compare_lanes[identity];
    lane->regions = &regions;
    lanes.emplace(identity, [this, lane, &differing, &failed]() -> std::optional<Order> {
      return failed.ok() ? NextCompare(lane, differing) : std::nullopt;
    });
  }
  // An older build ends the comparisons of one worker, and not the save.
  SHARDMESH_RETURN_IF_ERROR(
      RunLanes(std::move(lanes), absl::InfiniteDuration(), OnError::kGoOn, [&](const Event& event) {
        failed.Update(TakeCompared(event, &compare_lanes.at(event.identity), &differing));
      }));
  SHARDMESH_RETURN_IF_ERROR(failed);
  std::set<size_t> equal;
  std::set_difference(alike_.begin(), alike_.end(), differing.begin(), differing.end(),
                      std::inserter(equal, equal.end()));
  // As for written regions: the checksums are of the bytes in the workers' memory.
  const PresentBytes others = AllBut(plan, equal);
  std::map<std::string, std::vector<uint32_t>> crc32c;
  std::map<std::string, std::vector<uint32_t>> piece_crc32c;
  for (const auto& [identity, lane] : compare_lanes) {
    std::vector<uint32_t>& of_regions = crc32c[identity];
    std::vector<uint32_t>& of_pieces = piece_crc32c[identity];
    auto piece = lane.pieces.begin();
    for (const auto& [region, sum] : lane.equal) {
      const auto end = piece + lane.PiecesOf(region);
      if (!others.Has(plan, (*lane.regions)[region])) {
        of_regions.push_back(sum);
        of_pieces.insert(of_pieces.end(), piece, end);
      }
      piece = end;
    }
  }
  SHARDMESH_RETURN_IF_ERROR(CheckWritten(plan, others, crc32c));
  AddWrittenPieces(plan, others, piece_crc32c, &pieces_);
  present_.linked.insert(equal.begin(), equal.end());
  return ReplaceLinks(differing);
}

absl::Status SaveRun::ReplaceLinks(const std::set<size_t>& files) {
  std::deque<Order> orders;
  for (const size_t file : files) {
    if (orders.empty() ||
        orders.back().message.replace().files_size() >= static_cast<int>(kFilesInOrder)) {
      orders.push_back(NewOrder());
    }
    Encode(plan_.files[file], orders.back().message.mutable_replace()->add_files());
  }
  Lanes lanes;
  lanes.emplace(leader_, LaneOf(std::move(orders)));
  return RunLanes(std::move(lanes), absl::InfiniteDuration(), OnError::kStop, [](const Event&) {});
}

absl::Status SaveRun::WriteTexts(
    const std::vector<std::pair<std::string, std::string_view>>& texts) {
  Lanes lanes;
  lanes.emplace(
      leader_, [this, &texts, next = size_t{0}, at = int64_t{0}]() mutable -> std::optional<Order> {
        while (next < texts.size() && at >= static_cast<int64_t>(texts[next].second.size())) {
          ++next;
          at = 0;
        }
        if (next == texts.size()) return std::nullopt;
        const auto& [name, text] = texts[next];
        Order order = NewOrder();
        order.message.mutable_text()->set_name(name);
        order.message.mutable_text()->set_offset_bytes(at);
        order.message.mutable_text()->set_text(
            std::string(text.substr(static_cast<size_t>(at), static_cast<size_t>(kTextBytes))));
        at += kTextBytes;
        return order;
      });
  return RunLanes(std::move(lanes), absl::InfiniteDuration(), OnError::kStop, [](const Event&) {});
}

SaveRun::Order SaveRun::NextTiles(TileLane* lane) const {
  const SavePlan& plan = plan_;
  Order order = NewOrder();
  internal::v1::WriteSaveTiles& tiles = *order.message.mutable_tiles();
  tiles.set_one_host(options_.one_host);
  lane->has_begun = true;
  lane->pieces = 0;
  std::map<size_t, uint32_t> file_of;
  int64_t encoded_bytes = 0;
  for (; lane->next < lane->regions->size(); ++lane->next) {
    const RegionToWrite& region = (*lane->regions)[lane->next];
    if (present_.Has(plan, region)) continue;
    if (encoded_bytes >= kRegionBytes || order.bytes >= kWriteBytes) break;
    encoded_bytes +=
        EncodeRegion(plan, region, &file_of, tiles.mutable_files(), tiles.add_regions());
    lane->pieces += 1;
    order.bytes += region.size_bytes();
  }
  tiles.set_sync(lane->next == lane->regions->size());
  lane->bytes = order.bytes;
  return order;
}

absl::Status SaveRun::WriteTiles(SaveResult* result) {
  const SavePlan& plan = plan_;
  Lanes lanes;
  std::map<std::string, TileLane> tile_lanes;  // by worker
  int64_t total_pieces = 0;
  int64_t total_bytes = 0;
  for (const auto& [identity, regions] : plan.regions) {
    for (const RegionToWrite& region : regions) {
      if (present_.Has(plan, region)) continue;
      total_pieces += 1;
      total_bytes += region.size_bytes();
    }
    TileLane* const lane = &tile_lanes[identity];
    lane->regions = &regions;
    // A worker without regions gets an order too: it syncs the folder.
    lanes.emplace(identity, [this, lane]() -> std::optional<Order> {
      if (lane->has_begun && lane->next == lane->regions->size()) return std::nullopt;
      return NextTiles(lane);
    });
  }
  if (options_.total) options_.total(total_pieces, total_bytes);
  std::map<std::string, std::vector<uint32_t>> crc32c;
  std::map<std::string, std::vector<uint32_t>> piece_crc32c;
  SHARDMESH_RETURN_IF_ERROR(
      RunLanes(std::move(lanes), absl::InfiniteDuration(), OnError::kStop, [&](const Event& event) {
        if (!event.answer.ok()) return;
        const TileLane& lane = tile_lanes.at(event.identity);
        std::vector<uint32_t>& sums = crc32c[event.identity];
        sums.insert(sums.end(), event.answer->crc32c().begin(), event.answer->crc32c().end());
        std::vector<uint32_t>& of_pieces = piece_crc32c[event.identity];
        of_pieces.insert(of_pieces.end(), event.answer->piece_crc32c().begin(),
                         event.answer->piece_crc32c().end());
        result->written_bytes += lane.bytes;
        if (options_.progress) options_.progress(lane.pieces, 0);
      }));
  SHARDMESH_RETURN_IF_ERROR(CheckWritten(plan, present_, crc32c));
  AddWrittenPieces(plan, present_, piece_crc32c, &pieces_);
  return absl::OkStatus();
}

absl::Status SaveRun::Publish(const std::string& first_manifest, SaveResult* result) {
  // The checksums of pieces are known only now. The text only grows, so nothing of the first one is
  // left. If the leader dies in between, the next save writes its files anew.
  const std::string manifest = ManifestText(plan_, options_.description, pieces_);
  if (manifest != first_manifest) {
    SHARDMESH_RETURN_IF_ERROR(WriteTexts({{std::string(kCheckpointManifest), manifest}}));
  }
  const std::string index = IndexText(plan_);
  if (!index.empty()) {
    SHARDMESH_RETURN_IF_ERROR(WriteTexts({{std::string(kCheckpointIndex), index}}));
  }
  {
    absl::MutexLock lock(&shared_->mutex);
    if (!shared_->cancelled.ok()) return shared_->cancelled;
    shared_->is_publishing = true;
  }
  Order order = NewOrder();
  internal::v1::PublishSave& publish = *order.message.mutable_publish();
  publish.add_files(std::string(kCheckpointManifest));
  for (const FileInPlan& file : plan_.files) publish.add_files(file.name);
  if (!index.empty()) publish.add_files(std::string(kCheckpointIndex));
  publish.set_marker(CheckpointMarkerText(manifest));
  publish.set_keep(options_.destination.keep);
  Event answer;
  SHARDMESH_RETURN_IF_ERROR(AskLeader(std::move(order), &answer));
  result->removed_steps.assign(answer.answer->removed_steps().begin(),
                               answer.answer->removed_steps().end());
  result->kept_steps.assign(answer.answer->kept_steps().begin(), answer.answer->kept_steps().end());
  return absl::OkStatus();
}

void SaveRun::EndAll(bool keep, absl::Duration timeout) {
  {
    absl::MutexLock lock(&shared_->mutex);
    shared_->events.clear();
  }
  Lanes lanes;
  for (const std::string& identity : opened_) {
    Order order = NewOrder();
    order.message.mutable_end()->set_keep(keep);
    std::deque<Order> orders;
    orders.push_back(std::move(order));
    lanes.emplace(identity, LaneOf(std::move(orders)));
  }
  const absl::Status ended =
      RunLanes(std::move(lanes), timeout, OnError::kIgnore, [](const Event&) {});
  if (!ended.ok() && timeout > absl::ZeroDuration()) {
    LogWarning("workers have not ended a save yet",
               {{"folder", options_.destination.folder}, {"error", ended}});
  }
}

absl::Status SaveRun::RunPhases(SaveResult* result) {
  SHARDMESH_RETURN_IF_ERROR(OpenFolder(result));
  SHARDMESH_RETURN_IF_ERROR(PlanByEarlier(absl::InfiniteDuration()));
  result->files = std::ssize(plan_.files);
  SHARDMESH_RETURN_IF_ERROR(CheckFolders());
  // The manifest is there before the files: after an early end, it says what they are.
  const std::string manifest = ManifestText(plan_, options_.description);
  SHARDMESH_RETURN_IF_ERROR(WriteTexts({{std::string(kCheckpointManifest), manifest}}));
  SHARDMESH_RETURN_IF_ERROR(MakeFiles(result));
  SHARDMESH_RETURN_IF_ERROR(CompareAlike());
  std::vector<std::pair<std::string, std::string_view>> headers;
  for (size_t i = 0; i < plan_.files.size(); ++i) {
    const FileInPlan& file = plan_.files[i];
    if (!present_.linked.contains(i)) headers.emplace_back(file.name, file.header);
  }
  SHARDMESH_RETURN_IF_ERROR(WriteTexts(headers));
  SHARDMESH_RETURN_IF_ERROR(WriteTiles(result));
  return Publish(manifest, result);
}

absl::StatusOr<SaveResult> SaveRun::Run() {
  SaveResult result{.path = options_.destination.folder,
                    .tensors = std::ssize(plan_.tensors),
                    .files = std::ssize(plan_.files),
                    .size_bytes = plan_.size_bytes,
                    .revision = options_.description.revision};
  if (options_.destination.step.has_value()) {
    StrAppend(&result.path, "/", StepFolderName(*options_.destination.step));
  }
  if (identities_.empty()) {
    return absl::InternalError("the plan of a save names no worker");
  }
  leader_ = identities_.front();
  const absl::Status status = RunPhases(&result);
  int64_t written_bytes = 0;
  {
    absl::MutexLock lock(&shared_->mutex);
    written_bytes = shared_->written_bytes;
  }
  const bool is_much = written_bytes + result.found_bytes >= options_.min_kept_bytes;
  EndAll(/*keep=*/!status.ok() && is_much && !IsDiskError(status), options_.end_timeout);
  SHARDMESH_RETURN_IF_ERROR(WithAdvice(status));
  result.linked_files = static_cast<int64_t>(present_.linked.size());
  return result;
}

}  // namespace shardmesh::server
