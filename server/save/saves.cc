// Takes the snapshot of names of each save, and runs the save on a thread.
#include "server/save/saves.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "process/log.h"
#include "process/random_bytes.h"
#include "process/thread_pool.h"
#include "rpc/codec/status.h"
#include "server/save/lost_worker.h"
#include "server/state/array_selection.h"
#include "server/state/request_index.h"
#include "server/steps/run_room.h"
#include "sharding/digest.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/source_file.h"

namespace shardmesh::server {
namespace {

// How often a snapshot is taken anew because an array was released before it was pinned.
constexpr int kMaxSnapshots = 10;
constexpr size_t kMaxFolderBytes = 4096;

// Whether a part of the path is a name that saves use for files of their own.
bool HasReservedPart(std::string_view path) {
  while (!path.empty()) {
    const std::string_view part = path.substr(0, path.find('/'));
    if (part == kSaveStaging || part == kSaveLock) return true;
    path.remove_prefix(std::min(path.size(), part.size() + 1));
  }
  return false;
}

absl::Status CheckRequest(const SaveRequest& request) {
  const SaveDestination& to = request.destination;
  if (request.prefix.size() > ArrayRegistry::kMaxNameBytes) {
    return rpc::BadField("prefix",
                         StrCat("has ", request.prefix.size(), " bytes; a name has at most ",
                                ArrayRegistry::kMaxNameBytes));
  }
  if (to.folder.empty() || to.folder.front() != '/' || to.folder.size() > kMaxFolderBytes) {
    return rpc::BadField(
        "folder", StrCat("\"", to.folder.substr(0, kMaxFolderBytes),
                         "\" is not an absolute path of at most ", kMaxFolderBytes, " bytes"));
  }
  if (HasReservedPart(to.folder)) {
    return rpc::BadField(
        "folder", StrCat("\"", to.folder, "\" has a part named ", kSaveStaging, " or ", kSaveLock,
                         ", which saves use and remove; name another folder"));
  }
  if (to.step.has_value() && (*to.step < 0 || *to.step > kMaxCheckpointStep)) {
    return rpc::BadField("step", StrCat("is ", *to.step, ", not 0 to ", kMaxCheckpointStep));
  }
  if (to.keep < 0 || (to.keep > 0 && !to.step.has_value())) {
    return rpc::BadField(
        "keep", to.keep < 0
                    ? StrCat("is ", to.keep, "; give the number of steps to keep")
                    : StrCat("needs a step: only the checkpoints of steps are ", "removed"));
  }
  if (request.max_file_bytes != 0 && request.max_file_bytes < kMinFileBytes) {
    return rpc::BadField("max_file_bytes", StrCat("is ", request.max_file_bytes,
                                                  ", less than the least, ", kMinFileBytes));
  }
  if (request.single_file && request.max_file_bytes != 0) {
    return rpc::BadField("max_file_bytes", "is set together with single_file; leave one out");
  }
  return absl::OkStatus();
}

BegunSave Summary(const SavePlan& plan, const SaveDescription& description) {
  return {.operation_id = "",
          .tensors = static_cast<int64_t>(plan.tensors.size()),
          .files = static_cast<int64_t>(plan.files.size()),
          .size_bytes = plan.size_bytes,
          .revision = description.revision};
}

}  // namespace

Saves::~Saves() {
  Stop(absl::CancelledError("the coordinator is stopping"));
  std::map<std::string, std::unique_ptr<Running>> running;
  {
    absl::MutexLock lock(&mutex_);
    running.swap(running_);
  }
  for (const auto& [id, each] : running) each->thread.join();
}

void Saves::Stop(const absl::Status& reason) {
  absl::MutexLock lock(&mutex_);
  if (stopped_.ok()) stopped_ = reason;
  // A checkpoint that is being published is complete soon.
  for (const auto& [id, each] : running_) each->run->Cancel(reason).IgnoreError();
  for (SaveRun* const each : validations_) each->Cancel(reason).IgnoreError();
}

absl::Status Saves::Snapshot(const std::string& prefix, bool pins,
                             std::vector<ArrayRegistry::NamedArray>* names) const {
  absl::Status pinned;
  for (int attempt = 0; attempt < kMaxSnapshots; ++attempt) {
    // One call reads all names under one lock, so at one revision.
    *names = parts_.registry->ListNames(prefix, "", kMaxTensors + 1);
    if (static_cast<int64_t>(names->size()) > kMaxTensors) {
      return WithReason(absl::ResourceExhaustedError(
                            StrCat("more than ", kMaxTensors, " names begin with \"", prefix,
                                   "\"; save them in parts, by longer prefixes")),
                        Reason::kLimitExceeded, {{fact::kLimit, kMaxTensors}});
    }
    if (names->empty()) {
      return WithReason(
          absl::NotFoundError(
              prefix.empty() ? std::string("there is no named array to save")
                             : StrCat("no array has a name that begins with \"", prefix, "\"")),
          Reason::kNotFound, {{fact::kKind, "array"}, {fact::kName, prefix}});
    }
    if (!pins) return absl::OkStatus();
    std::vector<std::string> done;
    pinned = absl::OkStatus();
    for (const ArrayRegistry::NamedArray& each : *names) {
      pinned = parts_.registry->Pin(each.name.array_id);
      if (!pinned.ok()) break;
      done.push_back(each.name.array_id);
    }
    if (pinned.ok()) return absl::OkStatus();
    parts_.registry->Unpin(done);  // an array was replaced meanwhile: take a newer snapshot
  }
  return absl::AbortedError(StrCat("the names change too fast: ", ToStd(pinned.message())));
}

absl::StatusOr<SavePlan> Saves::Plan(const SaveRequest& request, SaveDescription* description,
                                     std::optional<SaveLayout>* layout,
                                     std::vector<std::string>* pinned) const {
  SHARDMESH_RETURN_IF_ERROR(CheckRequest(request));
  std::vector<ArrayRegistry::NamedArray> names;
  SHARDMESH_RETURN_IF_ERROR(Snapshot(request.prefix, pinned != nullptr, &names));
  if (pinned != nullptr) {
    for (const ArrayRegistry::NamedArray& each : names) pinned->push_back(each.name.array_id);
  }
  *description = {.cluster_id = parts_.cluster_id,
                  .prefix = request.prefix,
                  .revision = 0,
                  .step = request.destination.step};
  const std::shared_ptr<const MembershipView> view = parts_.membership->view();
  std::vector<TensorToSave> tensors;
  int64_t tiles = 0;
  for (const ArrayRegistry::NamedArray& each : names) {
    description->revision = std::max(description->revision, each.name.version);
    const ArrayDescriptor& array = each.array->definition.descriptor;
    const std::string& name = each.name.name;
    TensorToSave tensor{.name = request.strip_prefix ? name.substr(request.prefix.size()) : name,
                        .array = each.array,
                        .parts = {}};
    if (tensor.name.empty()) {
      return rpc::BadField(
          "prefix", StrCat("is the whole name \"", name,
                           "\", so nothing is left for the name in the checkpoint; do not strip it "
                           "(strip_prefix, or --strip-prefix)"));
    }
    if (const auto axes = array.spec.unreduced(); !axes.empty()) {
      return rpc::BadField(
          "prefix", StrCat("\"", name, "\" holds partial sums along ", StrJoin(axes, ", "),
                           "; save by a prefix that leaves it out, or reduce it first: `shardmesh "
                           "collective all-reduce ",
                           name, " --axes ", StrJoin(axes, ","), " --as NAME`"));
    }
    if (each.array->definition.is_state) {
      return rpc::BadField(
          "prefix", StrCat("\"", name,
                           "\" is state that steps update, whose tiles may be of different steps; "
                           "save by a prefix that leaves it out, or copy it first with a program"));
    }
    const SelectedArray selected{.array = each.array,
                                 .name = each.name,
                                 .companion = CompanionOf(*parts_.registry, *each.array)};
    SHARDMESH_ASSIGN_OR_RETURN(
        const std::vector<HeldTile> held,
        FindHoldersInBoth(selected, Tile::Whole(array.shape), *view, *parts_.recovery));
    tiles += std::ssize(held);
    if (tiles > parts_.max_tiles) {
      return WithReason(
          absl::ResourceExhaustedError(
              StrCat("the arrays whose names begin with \"", request.prefix, "\" have more than ",
                     parts_.max_tiles, " tiles; save them in parts, by longer prefixes")),
          Reason::kLimitExceeded, {{fact::kLimit, parts_.max_tiles}});
    }
    for (const HeldTile& each_tile : held) {
      const OwnedTile& tile = each_tile.tile;
      const Array& holder = *each_tile.array;
      const MeshRanks* const ranks = view->FindMesh(holder.definition.descriptor.mesh_id);
      HeldPart part{.tile = tile.tile, .array = each_tile.array, .identities = {}};
      for (const DeviceId device : tile.devices) {
        const auto rank = static_cast<size_t>(device);
        if (ranks == nullptr || rank >= ranks->identities.size()) continue;
        const std::string& identity = ranks->identities[rank];
        if (std::find(part.identities.begin(), part.identities.end(), identity) ==
            part.identities.end()) {
          part.identities.push_back(identity);
        }
        if (rank < holder.tile_crc32c.size()) part.crc32c = holder.tile_crc32c[rank];
      }
      if (part.identities.empty()) {
        return Degraded(selected, {tile.devices.begin(), tile.devices.end()}, *view,
                        *parts_.recovery);
      }
      tensor.parts.push_back(std::move(part));
    }
    tensors.push_back(std::move(tensor));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const SaveLayout wanted, LayoutOf(request, tensors));
  SHARDMESH_ASSIGN_OR_RETURN(SavePlan plan, PlanSave(std::move(tensors), wanted));
  if (request.destination.step.has_value() && !request.single_file) *layout = wanted;
  if (plan.regions.empty()) SHARDMESH_RETURN_IF_ERROR(AddLeader(*view, &plan));
  return plan;
}

absl::StatusOr<SaveLayout> Saves::LayoutOf(const SaveRequest& request,
                                           absl::Span<const TensorToSave> tensors) const {
  SaveLayout layout{.max_file_bytes = request.max_file_bytes,
                    .single_file = request.single_file,
                    .cluster_id = parts_.cluster_id,
                    .max_kept_bytes = request.max_file_bytes};
  if (request.max_file_bytes != 0) return layout;
  layout.max_file_bytes = kDefaultFileBytes;
  layout.max_kept_bytes = kDefaultFileBytes;
  if (!request.destination.step.has_value()) return layout;
  int64_t size_bytes = 0;
  for (const TensorToSave& tensor : tensors) {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t of_tensor,
                               tensor.array->definition.descriptor.SizeBytes());
    size_bytes += of_tensor;
  }
  layout.max_file_bytes = StepFileBytes(size_bytes);
  layout.max_kept_bytes = std::max(kDefaultFileBytes, layout.max_file_bytes);
  return layout;
}

absl::Status Saves::AddLeader(const MembershipView& view, SavePlan* plan) const {
  for (const TensorToSave& tensor : plan->tensors) {
    const MeshRanks* const ranks = view.FindMesh(tensor.array->definition.descriptor.mesh_id);
    if (ranks == nullptr) continue;
    for (const std::string& identity : ranks->identities) {
      if (!view.IsAlive(identity)) continue;
      plan->regions.try_emplace(identity);
      return absl::OkStatus();
    }
  }
  const TensorToSave& first = plan->tensors.front();
  std::vector<int64_t> ranks(static_cast<size_t>(first.array->definition.descriptor.mesh.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return Degraded(
      {.array = first.array, .name = {.name = first.name, .array_id = "", .version = 0}}, ranks,
      view, *parts_.recovery);
}

Saves::AdviceFunction Saves::AdviseOnLost(const SaveRequest& request) const {
  return [parts = parts_, stripped = request.strip_prefix ? request.prefix : std::string()](
             const SavePlan& plan, const std::string& identity) {
    return AdviceOnLostWorker(plan, stripped, identity, *parts.registry, *parts.membership->view(),
                              *parts.recovery, parts.has_repairs);
  };
}

bool Saves::IsOneHost(const SavePlan& plan) const {
  const std::shared_ptr<const MembershipView> view = parts_.membership->view();
  std::set<std::string> hosts;
  std::set<std::string_view> identities;
  for (const auto& [identity, regions] : plan.regions) identities.insert(identity);
  for (const TensorToSave& tensor : plan.tensors) {
    for (const HeldPart& part : tensor.parts) {
      identities.insert(part.identities.begin(), part.identities.end());
    }
  }
  for (const std::string_view identity : identities) {
    const WorkerStatus* const worker = view->FindWorker(std::string(identity));
    hosts.insert(worker == nullptr ? "" : worker->info.host);
  }
  return hosts.size() == 1 && !hosts.begin()->empty();
}

OperationWorkers SaveCheck::Workers() const {
  std::shared_ptr<SaveRun> run;
  {
    absl::MutexLock lock(&mutex_);
    run = run_;
  }
  return run == nullptr ? OperationWorkers() : run->Workers();
}

void SaveCheck::Cancel(const absl::Status& reason) {
  std::shared_ptr<SaveRun> run;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = reason;
    run = run_;
  }
  // Fails only while a checkpoint is published.
  if (run != nullptr) run->Cancel(reason).IgnoreError();
}

absl::StatusOr<BegunSave> Saves::Check(const SaveRequest& request, SaveCheck* check) {
  if (check != nullptr) {
    absl::MutexLock lock(&check->mutex_);
    SHARDMESH_RETURN_IF_ERROR(check->cancelled_);
  }
  SaveDescription description;
  std::optional<SaveLayout> layout;
  SHARDMESH_ASSIGN_OR_RETURN(SavePlan plan, Plan(request, &description, &layout, nullptr));
  BegunSave checked = Summary(plan, description);
  const bool is_one_host = IsOneHost(plan);
  const auto run =
      std::make_shared<SaveRun>(SaveRun::Options{.save_id = RandomId(),
                                                 .plan = std::move(plan),
                                                 .layout = std::move(layout),
                                                 .destination = request.destination,
                                                 .description = std::move(description),
                                                 .one_host = is_one_host,
                                                 .access = parts_.access,
                                                 .total = nullptr,
                                                 .progress = nullptr,
                                                 .advise_on_lost = AdviseOnLost(request)});
  if (check != nullptr) {
    absl::MutexLock lock(&check->mutex_);
    SHARDMESH_RETURN_IF_ERROR(check->cancelled_);
    check->run_ = run;
  }
  const absl::Cleanup forget = [check] {
    if (check == nullptr) return;
    absl::MutexLock lock(&check->mutex_);
    check->run_ = nullptr;
  };
  {
    absl::MutexLock lock(&mutex_);
    SHARDMESH_RETURN_IF_ERROR(stopped_);
    validations_.insert(run.get());
  }
  const absl::Status valid = run->Validate();
  {
    absl::MutexLock lock(&mutex_);
    validations_.erase(run.get());
  }
  SHARDMESH_RETURN_IF_ERROR(valid);
  checked.files = std::ssize(run->plan().files);
  return checked;
}

absl::StatusOr<BegunSave> Saves::Begin(const SaveRequest& request) {
  absl::MutexLock begin_lock(&begin_mutex_);
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<BegunSave> known, FindKnown(request));
  if (known.has_value()) return *known;
  SHARDMESH_RETURN_IF_ERROR(MakeRoom());
  SHARDMESH_ASSIGN_OR_RETURN(const Session session, parts_.sessions->Get(request.session_id));
  auto running = std::make_unique<Running>();
  absl::Cleanup unpin = [&] { parts_.registry->Unpin(running->pinned); };
  SaveDescription description;
  std::optional<SaveLayout> layout;
  SHARDMESH_ASSIGN_OR_RETURN(SavePlan plan, Plan(request, &description, &layout, &running->pinned));
  BegunSave begun = Summary(plan, description);
  for (const TensorToSave& tensor : plan.tensors) running->tiles += std::ssize(tensor.parts);
  SHARDMESH_RETURN_IF_ERROR(CheckRoomForTiles(running->tiles));
  // The run reports only after its thread has started, and by then the id is set.
  const auto id = std::make_shared<std::string>();
  const bool is_one_host = IsOneHost(plan);
  running->run = std::make_shared<SaveRun>(SaveRun::Options{
      .save_id = RandomId(),
      .plan = std::move(plan),
      .layout = std::move(layout),
      .destination = request.destination,
      .description = std::move(description),
      .one_host = is_one_host,
      .access = parts_.access,
      .total = [operations = parts_.operations, id](
                   int64_t pieces, int64_t bytes) { operations->SetTotal(*id, pieces, bytes); },
      .progress = [operations = parts_.operations, id](
                      int64_t pieces, int64_t bytes) { operations->Add(*id, pieces, bytes); },
      .advise_on_lost = AdviseOnLost(request),
      .min_kept_bytes = parts_.min_kept_bytes});
  const SaveDestination& to = request.destination;
  SHARDMESH_ASSIGN_OR_RETURN(
      *id, parts_.operations->Begin(
               OperationKind::kSave,
               StrCat("save of ", begun.tensors, " tensors to ", to.folder,
                      to.step.has_value() ? StrCat(", step ", *to.step) : ""),
               request.session_id, session.number,
               [run = running->run](const absl::Status& reason) { return run->Cancel(reason); },
               request.is_detached));
  parts_.operations->SetWorkers(*id, [run = running->run] { return run->Workers(); });
  begun.operation_id = *id;
  begun.is_detached = request.is_detached;
  absl::StatusOr<std::thread> thread =
      StartThread([this, id = *id, raw = running.get()] { Execute(id, raw); });
  if (!thread.ok()) {
    parts_.operations->End(*id, thread.status());
    return std::move(thread).status();
  }
  std::move(unpin).Cancel();
  running->thread = *std::move(thread);
  absl::MutexLock lock(&mutex_);
  // A run that was cancelled before it began ends at once.
  if (!stopped_.ok()) running->run->Cancel(stopped_).IgnoreError();
  running_.emplace(*id, std::move(running));
  if (!request.request_key.empty() &&
      requests_.insert_or_assign(request.request_key, Remembered{request, begun}).second) {
    request_order_.push_back(request.request_key);
    if (request_order_.size() > kMaxResults) {
      requests_.erase(request_order_.front());
      request_order_.pop_front();
    }
  }
  return begun;
}

absl::StatusOr<std::optional<BegunSave>> Saves::FindKnown(const SaveRequest& request) const {
  absl::MutexLock lock(&mutex_);
  SHARDMESH_RETURN_IF_ERROR(stopped_);
  const auto known = requests_.find(request.request_key);
  if (known == requests_.end() ||
      !parts_.operations->Progress(known->second.begun.operation_id).ok()) {
    return std::nullopt;
  }
  if (known->second.request == request) return known->second.begun;
  return InvalidArgument(Reason::kRequestIdReused,
                         "this request_id was used for another save; draw a new one",
                         {{fact::kValue, RequestIdOf(request.request_key)}});
}

absl::Status Saves::MakeRoom() {
  return MakeRoomForRun(
      &mutex_, &running_, [](const Running& running) { return running.is_over.load(); },
      kMaxRunning, "saves");
}

Saves::Saves(Parts parts) : parts_(std::move(parts)), places_(parts_.registry, parts_.store) {
  places_.Load();
}

// Tells registry and store where the checkpoint has each array. The modify times of the files are
// not known here: the digest of the header, which names the tensors, takes their place.
void Saves::RememberPlaces(const SavePlan& plan, const std::string& path) {
  std::vector<std::shared_ptr<const SourceFile>> files;
  files.reserve(plan.files.size());
  for (const FileInPlan& file : plan.files) {
    files.push_back(std::make_shared<const SourceFile>(
        SourceFile{.path = StrCat(path, "/", file.name),
                   .size_bytes = file.size_bytes,
                   .modify_time = absl::InfinitePast(),
                   .head_sha256 = Sha256(file.header),
                   .head_bytes = static_cast<int64_t>(file.header.size())}));
  }
  std::vector<SavedPlace> places;
  places.reserve(plan.tensors.size());
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    places.push_back({.array_id = plan.tensors[i].array->definition.descriptor.array_id,
                      .source = {.file = files[plan.places[i].file],
                                 .offset_bytes = plan.places[i].offset_bytes}});
  }
  places_.Remember(places);
}

absl::Status Saves::CheckRoomForTiles(int64_t tiles) const {
  int64_t others = 0;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, each] : running_) {
      if (!each->is_over) others += each->tiles;
    }
  }
  if (tiles <= parts_.max_tiles - others) return absl::OkStatus();
  return WithRetryDelay(
      WithReason(absl::ResourceExhaustedError(
                     StrCat("the save has ", tiles, " tiles, and the running saves have ", others,
                            " of at most ", parts_.max_tiles, "; wait until one has ended")),
                 Reason::kOverloaded,
                 {{fact::kHave, others + tiles}, {fact::kLimit, parts_.max_tiles}}),
      absl::Seconds(1));
}

void Saves::Execute(const std::string& id, Running* running) {
  const absl::StatusOr<SaveResult> result = running->run->Run();
  if (result.ok()) RememberPlaces(running->run->plan(), result->path);
  parts_.registry->Unpin(running->pinned);
  if (result.ok()) {
    LogInfo("saved a checkpoint", {{"path", result->path},
                                   {"tensors", result->tensors},
                                   {"written_bytes", result->written_bytes},
                                   {"found_bytes", result->found_bytes},
                                   {"linked_files", result->linked_files}});
    absl::MutexLock lock(&mutex_);
    results_.emplace(id, *result);
    result_order_.push_back(id);
    if (result_order_.size() > kMaxResults) {
      results_.erase(result_order_.front());
      result_order_.pop_front();
    }
  } else {
    LogWarning("a save failed", {{"error", result.status()}});
  }
  running->is_over = true;
  parts_.operations->End(id, result.status());
}

int64_t Saves::Wait(const std::string& operation_id, WaitCallback callback) {
  const absl::StatusOr<OperationProgress> known = parts_.operations->Progress(operation_id);
  if (!known.ok() || known->kind != OperationKind::kSave) {
    std::move(callback)(known.ok() ? NoOperation(operation_id) : known.status());
    return 0;
  }
  return parts_.operations->OnEnd(
      operation_id, [this, operation_id, callback = std::move(callback)]() mutable {
        absl::StatusOr<SaveResult> result = NoOperation(operation_id);
        if (const auto ended = parts_.operations->Progress(operation_id);
            ended.ok() && !ended->status.ok()) {
          result = ended->status;
        } else {
          absl::MutexLock lock(&mutex_);
          const auto found = results_.find(operation_id);
          if (found != results_.end()) result = found->second;
        }
        std::move(callback)(std::move(result));
      });
}

OperationWorkers Saves::WorkersOf(const std::string& operation_id) const {
  std::shared_ptr<SaveRun> run;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = running_.find(operation_id);
    if (found == running_.end()) return {};
    run = found->second->run;
  }
  return run->Workers();
}

void Saves::StopWaiting(const std::string& operation_id, int64_t number) {
  parts_.operations->DropOnEnd(operation_id, number);
}

}  // namespace shardmesh::server
