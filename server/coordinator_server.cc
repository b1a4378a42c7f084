// Builds the coordinator from its parts: first the store, then registry and sequencer, then the
// services.
#include "server/coordinator_server.h"

#include <grpcpp/impl/service_type.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "process/clock.h"
#include "process/failpoint.h"
#include "process/log.h"
#include "process/random_bytes.h"
#include "process/steady_deadline.h"
#include "process/version.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/metrics/certificate_metrics.h"
#include "rpc/metrics/metrics.h"
#include "rpc/metrics/metrics_endpoint.h"
#include "rpc/server_lifecycle.h"
#include "rpc/transfer_token.h"
#include "rpc/transport_args.h"
#include "server/attach/worker_streams.h"
#include "server/calls/worker_calls.h"
#include "server/coordinator_metrics.h"
#include "server/diagnosis/flight_log.h"
#include "server/diagnosis/step_watch.h"
#include "server/repair/lost_ranks.h"
#include "server/repair/repairs.h"
#include "server/repair/replicas.h"
#include "server/save/saves.h"
#include "server/service/admin_service.h"
#include "server/service/array_service.h"
#include "server/service/attach_service.h"
#include "server/service/catalog_service.h"
#include "server/service/cluster_service.h"
#include "server/service/compute_service.h"
#include "server/service/endpoint_probe.h"
#include "server/service/operation_service.h"
#include "server/service/question_services.h"
#include "server/service/save_service.h"
#include "server/service/session_service.h"
#include "server/service/step_parts.h"
#include "server/state/array_record.h"
#include "server/state/array_registry.h"
#include "server/state/cluster_changes.h"
#include "server/state/definitions.h"
#include "server/state/link_table.h"
#include "server/state/operation_table.h"
#include "server/state/recovery.h"
#include "server/state/session.h"
#include "server/steps/planner.h"
#include "server/steps/sequencer.h"
#include "server/steps/transfers.h"
#include "server/store/local_store.h"
#include "server/store/sqlite_store.h"
#include "server/watch/mesh_gate.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr std::string_view kDefaultMesh = "default";
// Maximum time, at the end of a drain, that is reserved for telling clients the outcome of aborted
// steps and transfers.
constexpr absl::Duration kTimeToTell = absl::Seconds(1);
// If the store refused to write a mesh's ranks, the coordinator tries again after this time.
constexpr absl::Duration kWriteAgainAfter = absl::Seconds(1);
// Gap between the epochs (versions of the membership) of two runs of the coordinator. The
// membership never changes that often in one run.
constexpr int64_t kEpochsPerTerm = int64_t{1} << 32;
// Gap between the step numbers of two runs of the coordinator.
constexpr int64_t kSequencesPerTerm = int64_t{1} << 40;
static_assert(kMaxTerm < std::numeric_limits<int64_t>::max() / kSequencesPerTerm);

// Bytes that gRPC may hold of one worker's inventory: its receive window and its buffers.
constexpr int64_t kArrivalBytes = rpc::kLookaheadBytes + (int64_t{1} << 20);
constexpr int64_t kMostInventories = 256;

// Returns a mesh as DefinitionStore takes it.
std::string EncodeMesh(const MeshDefinition& mesh) {
  v1::EntryValue value;
  rpc::Encode(mesh, value.mutable_mesh());
  return value.SerializeAsString();
}

// Returns how many workers may send their inventories at once. Half of rpc_memory_bytes stays free
// for other calls.
int64_t MaxInventories(const CoordinatorLimits& limits) {
  return std::clamp<int64_t>(limits.rpc_memory_bytes / 2 / kArrivalBytes, 1, kMostInventories);
}

class Server final : public CoordinatorServer {
 public:
  explicit Server(CoordinatorOptions options)
      : options_(std::move(options)), metrics_("coordinator") {}
  ~Server() override {
    Drain(absl::InfinitePast());
    {
      absl::MutexLock lock(&serving_mutex_);
      serving_ = nullptr;
    }
    // If the store's thread is sending messages to workers now, the destructor waits here until
    // that thread has sent them. Later commits of the store find no streams to send to.
    absl::MutexLock lock(&streams_mutex_);
    streams_ = nullptr;
  }

  absl::Status Start();

  int port() const override { return lifecycle_->port(); }
  int http_port() const override { return endpoint_ == nullptr ? 0 : endpoint_->port(); }
  const std::string& address() const override { return lifecycle_->address(); }
  void Drain(absl::Time deadline) override;

 private:
  absl::Status OpenState();
  void ReplaceLostWorkers();
  // `name`: the service's full name, under which the health service lists it.
  void AddService(std::string_view name, std::unique_ptr<grpc::Service> service) {
    services_.emplace_back(std::string(name), std::move(service));
  }
  void AddStreamingService(std::string_view name, StreamingService service) {
    AddService(name, std::move(service.service));
    end_streams_.push_back(std::move(service.end_streams));
    if (service.join_threads) join_threads_.push_back(std::move(service.join_threads));
  }
  void StoreFailed(const absl::Status& status);
  absl::Status DefineMesh();
  UnreadableRecords FindUnreadable() const;
  absl::Status KeepMeshes();
  void MeshesChanged(const std::vector<DefinitionStore::Event>& events);
  void MembershipChanged(const MembershipEvent& event);
  void RanksMoved(const MembershipEvent& event);
  void TellOfWorker(const MembershipEvent& event, WorkerChange::Kind kind);
  void WriteRanks(const std::string& mesh_id, const MeshRanks& ranks);
  // Tries again to write ranks that the store refused.
  void WriteRanksAgain();
  void SessionEnded(const EndedSession& session);

  const CoordinatorOptions options_;
  std::atomic<bool> draining_ = false;
  std::atomic<absl::Time> draining_since_ = absl::InfiniteFuture();
  rpc::Metrics metrics_;

  // Each of these members depends only on members above it. Members are destroyed in reverse order.
  RealClock clock_;
  ClusterChanges changes_{&clock_};
  absl::Mutex serving_mutex_;
  // Points to lifecycle_ while lifecycle_ exists. The store's thread uses this pointer.
  rpc::ServerLifecycle* serving_ ABSL_GUARDED_BY(serving_mutex_) = nullptr;
  absl::Mutex streams_mutex_;
  // Points to worker_streams_ while worker_streams_ and replicas_ exist. The store's thread passes
  // drops of arrays to worker_streams_ through this pointer. streams_mutex_ is never held for long,
  // because messages to workers are only queued.
  WorkerStreams* streams_ ABSL_GUARDED_BY(streams_mutex_) = nullptr;
  absl::Mutex unwritten_mutex_;
  // Meshes whose ranks the store refused to write.
  std::set<std::string> unwritten_ ABSL_GUARDED_BY(unwritten_mutex_);
  Alarm write_again_{&clock_, [this] { WriteRanksAgain(); }};
  std::unique_ptr<Store> store_;
  std::unique_ptr<ArrayRegistry> registry_;
  std::unique_ptr<DefinitionStore> definition_store_;
  std::unique_ptr<Membership> membership_;
  std::unique_ptr<ArrayCache> cache_;
  Recovery recovery_{&clock_, options_.return_grace};
  FlightLog flight_log_;
  LinkTable link_table_;
  std::unique_ptr<StepWatch> step_watch_;
  std::unique_ptr<SessionTable> sessions_;
  std::unique_ptr<OperationTable> operations_;
  std::unique_ptr<Transfers> transfers_;
  std::unique_ptr<Replicas> replicas_;  // as repairs_
  std::unique_ptr<Repairs> repairs_;    // outlives worker_streams_, whose thread calls it
  std::unique_ptr<WorkerStreams> worker_streams_;
  std::unique_ptr<Saves> saves_;
  std::unique_ptr<Sequencer> sequencer_;
  std::unique_ptr<WorkerCalls> worker_calls_;  // for lost_ranks_
  std::unique_ptr<LostRanks> lost_ranks_;      // null: an operator replaces lost workers
  Planner planner_{options_.plans};
  std::string token_key_digest_;
  MeshGate mesh_gate_;  // before mesh_watch_, whose thread uses it
  std::unique_ptr<WatchHandle> mesh_watch_;
  std::vector<std::pair<std::string, std::unique_ptr<grpc::Service>>> services_;  // by full name
  std::vector<std::function<void()>> end_streams_;
  std::vector<std::function<void()>> join_threads_;  // see StreamingService
  std::unique_ptr<rpc::ServerLifecycle> lifecycle_;
  std::unique_ptr<rpc::MetricsEndpoint> endpoint_;
};

absl::Status Server::OpenState() {
  SHARDMESH_FAILPOINT("coordinator.open_state");
  const rpc::Histogram commit_seconds = metrics_.AddHistogram(
      "shardmesh_store_commit_seconds",
      "Time from a commit to the durable state until it is acknowledged, in seconds.");
  LocalStoreOptions local{.retention = {.bytes = static_cast<size_t>(options_.history_bytes),
                                        .time = options_.history_time},
                          .history = DefinitionHistory(),
                          .on_failure = [this](const absl::Status& status) { StoreFailed(status); },
                          .on_committed =
                              [commit_seconds](absl::Duration time) {
                                commit_seconds.Observe(absl::ToDoubleSeconds(time));
                              }};
  if (options_.data_dir.empty()) {
    store_ = CreateMemoryStore(std::move(local));
  } else {
    SHARDMESH_ASSIGN_OR_RETURN(store_, OpenSqliteStore({.folder = options_.data_dir,
                                                        .quota_bytes = options_.store_quota_bytes,
                                                        .lock_timeout = options_.lock_timeout,
                                                        .local = std::move(local)}));
  }
  SHARDMESH_ASSIGN_OR_RETURN(
      registry_, ArrayRegistry::Open(
                     store_.get(), &clock_,
                     [this](const std::string& mesh_id, const std::vector<std::string>& ids) {
                       absl::ReaderMutexLock lock(&streams_mutex_);
                       if (streams_ != nullptr) streams_->Drop(mesh_id, ids);
                     },
                     options_.unnamed_grace));
  SHARDMESH_ASSIGN_OR_RETURN(definition_store_,
                             DefinitionStore::Open(store_.get(), &clock_, &registry_->requests(),
                                                   options_.min_sharding_size));
  registry_->requests().SetLimits(options_.requests);
  registry_->SetChanges(&changes_);
  const CoordinatorLimits& limits = options_.limits;
  registry_->SetMaxNames(limits.max_names);
  definition_store_->SetLimits(
      {.max_meshes = limits.max_meshes, .max_definitions = limits.max_definitions});
  const int64_t term = registry_->term();

  MembershipOptions membership = options_.membership;
  membership.first_epoch = term * kEpochsPerTerm;
  membership_ = std::make_unique<Membership>(&clock_, membership);
  cache_ = std::make_unique<ArrayCache>(
      registry_.get(), membership_.get(),
      [this](const std::string& mesh_id, const std::vector<std::string>& ids) {
        absl::ReaderMutexLock lock(&streams_mutex_);
        if (streams_ != nullptr) streams_->Drop(mesh_id, ids);
      });
  registry_->SetCacheListener([this] {
    absl::ReaderMutexLock lock(&streams_mutex_);
    if (streams_ != nullptr) cache_->Trim();
  });
  sessions_ = std::make_unique<SessionTable>(
      &clock_, [this](const EndedSession& session) { SessionEnded(session); }, options_.sessions);
  const std::string token_key = RandomBytes(rpc::kTokenKeyBytes);
  token_key_digest_ = rpc::TokenKeyDigest(token_key);
  const auto joined = [this](std::string_view identity, uint64_t attachment) {
    recovery_.Heard(identity);
    if (!options_.no_repair) repairs_->WorkerJoined(identity, attachment);
    replicas_->Look(/*is_chance=*/true);
    cache_->Trim();
  };
  worker_streams_ = std::make_unique<WorkerStreams>(
      membership_.get(), registry_.get(), definition_store_.get(),
      WorkerStreamsOptions{
          .cluster_id = registry_->cluster_id(),
          .term = term,
          .token_key = token_key,
          .build_version = std::string(BuildVersion()),
          .ask_endpoint = ProbeEndpoints(options_.credentials),
          .flight_log = &flight_log_,
          .link_table = &link_table_,
          .clock = &clock_,
          .recovery = &recovery_,
          .joined = joined,
          .tile_staged =
              [this](std::string_view transfer_id, std::string_view identity, int64_t size_bytes) {
                transfers_->TileStaged(transfer_id, identity, size_bytes);
                replicas_->TileArriving(transfer_id, identity, size_bytes);
              },
          .tiles_arriving =
              [this](std::string_view transfer_id, std::string_view identity, int64_t bytes) {
                transfers_->TilesArriving(transfer_id, identity, bytes);
                if (!options_.no_repair) repairs_->TilesArriving(transfer_id, bytes);
                replicas_->TileArriving(transfer_id, identity, bytes);
              },
          .damaged =
              [this] {
                if (!options_.no_repair) repairs_->LookAgain();
              },
          .free_memory = [this](
                             std::string_view identity, int64_t need_bytes,
                             bool on_disk) { return cache_->Free(identity, need_bytes, on_disk); },
          .hello_timeout = limits.hello_timeout,
          .inventory_timeout = limits.inventory_timeout,
          .max_inventory_tiles = limits.max_inventory_tiles,
          .max_inventories = MaxInventories(limits)});
  {
    absl::MutexLock lock(&streams_mutex_);
    streams_ = worker_streams_.get();
  }
  registry_->SetVerdictListener(
      [this](const std::string& identity, const InventoryVerdict& verdict) {
        absl::ReaderMutexLock lock(&streams_mutex_);
        if (streams_ != nullptr) streams_->SendVerdict(identity, verdict);
      });
  const auto ask = [this](const std::set<std::string>& identities) {
    absl::ReaderMutexLock lock(&streams_mutex_);
    if (streams_ != nullptr) streams_->AskForHeartbeats(identities);
  };
  step_watch_ = std::make_unique<StepWatch>(&clock_, membership_.get(), &flight_log_, ask);
  Sequencer::Options sequencer{
      .term = term, .last_sequence = term * kSequencesPerTerm, .max_live = limits.max_live_work};
  sequencer.explain = [this](const WorkRef& work, const std::vector<Participant>& waiting_for) {
    return step_watch_->Explain(work, waiting_for);
  };
  sequencer.ask_before = StepWatch::kAskBefore;
  sequencer.ask = [this](const std::set<std::string>& identities) {
    step_watch_->Ask({.waiting_for = identities});
  };
  sequencer_ = std::make_unique<Sequencer>(&clock_, worker_streams_.get(), std::move(sequencer));
  operations_ = std::make_unique<OperationTable>(&clock_, sessions_.get());
  transfers_ = std::make_unique<Transfers>(&clock_, registry_.get(), sessions_.get(),
                                           sequencer_.get(), operations_.get());
  transfers_->SetAsk(StepWatch::kAskBefore,
                     [this](const OperationWorkers& workers) { step_watch_->Ask(workers); });
  repairs_ = std::make_unique<Repairs>(RepairParts{.clock = &clock_,
                                                   .membership = membership_.get(),
                                                   .registry = registry_.get(),
                                                   .operations = operations_.get(),
                                                   .sequencer = sequencer_.get(),
                                                   .endpoints = worker_streams_.get(),
                                                   .fill = worker_streams_.get(),
                                                   .transfers = transfers_.get(),
                                                   .cache = cache_.get(),
                                                   .token_key = token_key,
                                                   .term = term});
  recovery_.SetRepairs(
      [this](std::string_view array_id) {
        // Without repairs, none is about to begin.
        return options_.no_repair ? std::nullopt : repairs_->Find(array_id);
      },
      [this] { return repairs_->totals(); });
  replicas_ = std::make_unique<Replicas>(ReplicaParts{.clock = &clock_,
                                                      .membership = membership_.get(),
                                                      .registry = registry_.get(),
                                                      .definitions = definition_store_.get(),
                                                      .operations = operations_.get(),
                                                      .sequencer = sequencer_.get(),
                                                      .endpoints = worker_streams_.get(),
                                                      .fill = worker_streams_.get(),
                                                      .transfers = transfers_.get(),
                                                      .cache = cache_.get(),
                                                      .encode = EncodeMesh,
                                                      .token_key = token_key,
                                                      .term = term});
  registry_->SetReplicaListener([this] {
    absl::ReaderMutexLock lock(&streams_mutex_);
    if (streams_ != nullptr) replicas_->Look(/*is_chance=*/false);
  });
  recovery_.SetReplicas([this](const Array& array) { return replicas_->Describe(array); },
                        [this] { return replicas_->totals(); });
  if (options_.replace_lost_after != absl::InfiniteDuration()) ReplaceLostWorkers();
  membership_->AddListener([this](const MembershipEvent& event) { MembershipChanged(event); });

  const CoordinatorParts context{.clock = &clock_,
                                 .definition_store = definition_store_.get(),
                                 .membership = membership_.get(),
                                 .hub = worker_streams_.get(),
                                 .fill = worker_streams_.get(),
                                 .digests = worker_streams_.get(),
                                 .registry = registry_.get(),
                                 .cache = cache_.get(),
                                 .sessions = sessions_.get(),
                                 .transfers = transfers_.get(),
                                 .operations = operations_.get(),
                                 .links = &link_table_,
                                 .recovery = &recovery_,
                                 .preferred_algorithms = options_.preferred_algorithms,
                                 .step_memory = options_.steps,
                                 .max_put_streams_per_caller = options_.max_put_streams_per_caller,
                                 .move_memory_bytes = options_.move_memory_bytes,
                                 .token_key = token_key,
                                 .term = term};
  for (QuestionService& questions :
       MakeQuestionServices({.definition_store = definition_store_.get(),
       .registry = registry_.get(),
       .metrics = &metrics_})) {
    AddService(std::move(questions.name), std::move(questions.service));
  }
  AddService("shardmesh.v1.SessionService", MakeSessionService(sessions_.get(), registry_.get()));
  AddStreamingService(
      "shardmesh.v1.ArrayService",
      MakeArrayService(context, StepPartsOf(context, &planner_, sequencer_.get(), &metrics_)));
  AddStreamingService("shardmesh.v1.ComputeService",
                      MakeComputeService(context, &planner_, sequencer_.get(), &metrics_));
  const WatchLimits watches{.max_watches = limits.max_watches,
                            .max_watches_per_caller = limits.max_watches_per_caller};
  AddStreamingService("shardmesh.v1.ClusterService",
                      MakeClusterService(context,
                                         {.cluster_id = registry_->cluster_id(),
                                          .build_version = std::string(BuildVersion()),
                                          .is_draining = [this] { return draining_.load(); },
                                          .recovery = &recovery_,
                                          .flight_log = &flight_log_,
                                          .step_watch = step_watch_.get(),
                                          .unreadable = FindUnreadable(),
                                          .membership = membership_.get(),
                                          .definition_store = definition_store_.get(),
                                          .hub = worker_streams_.get(),
                                          .live = [this] { return sequencer_->Live(); },
                                          .lacks_spare =
                                              [this](std::string_view identity) {
                                                return lost_ranks_ != nullptr &&
                                                       lost_ranks_->LacksSpare(identity);
                                              }},
                                         &changes_, watches));
  AddStreamingService(
      "shardmesh.v1.CatalogService",
      MakeCatalogService(definition_store_.get(), registry_.get(), &mesh_gate_, watches));
  AddStreamingService("shardmesh.v1.OperationService",
                      MakeOperationService(context, step_watch_.get()));
  saves_ = std::make_unique<Saves>(Saves::Parts{.registry = registry_.get(),
                                                .sessions = sessions_.get(),
                                                .membership = membership_.get(),
                                                .recovery = &recovery_,
                                                .operations = operations_.get(),
                                                .access = worker_streams_.get(),
                                                .cluster_id = registry_->cluster_id(),
                                                .store = store_.get(),
                                                .has_repairs = !options_.no_repair});
  AddStreamingService("shardmesh.v1.SaveService",
                      MakeSaveService(&clock_, saves_.get(), sessions_.get(), step_watch_.get()));
  AddStreamingService("shardmesh.v1.AdminService",
                      MakeAdminService(context, store_.get(), options_.data_dir));
  AddStreamingService(
      "shardmesh.internal.v1.AttachService",
      MakeAttachService(worker_streams_.get(), sequencer_.get(), options_.credentials));
  return absl::OkStatus();
}

void Server::ReplaceLostWorkers() {
  worker_calls_ = std::make_unique<WorkerCalls>(&clock_, membership_.get(), definition_store_.get(),
                                                registry_.get(), &recovery_,
                                                [this] { return sequencer_->Live(); });
  lost_ranks_ = std::make_unique<LostRanks>(
      LostRanksParts{
          .clock = &clock_,
          .membership = membership_.get(),
          .recovery = &recovery_,
          .is_ready =
              [this](std::string_view identity) { return worker_streams_->IsReady(identity); },
          .replace =
              [this](const std::string& identity, const std::string& replacement,
                     LostRanksParts::Done done) {
                worker_calls_->ReplaceWorker(identity, replacement, std::move(done));
              }},
      LostRanks::Options{.after = options_.replace_lost_after});
}

// Returns the records that the store, the registry and the definition store could not read.
UnreadableRecords Server::FindUnreadable() const {
  UnreadableRecords unreadable{.count = store_->stats().unreadable_records};
  const auto name = [&unreadable](const std::string& key) {
    if (unreadable.keys.size() == Store::kNamedUnreadable) return;
    unreadable.keys.push_back(absl::CEscape(key));
  };
  for (const std::string& key : store_->UnreadableKeys()) name(key);
  for (const std::string& key : registry_->left_out()) name(key);
  for (const std::string& key : definition_store_->undecoded()) name(key);
  unreadable.count +=
      std::ssize(registry_->left_out()) + std::ssize(definition_store_->undecoded());
  return unreadable;
}

// Called when the store failed. Makes health probes fail at once. Afterwards the store ends the
// process.
void Server::StoreFailed(const absl::Status& status) {
  {
    absl::MutexLock lock(&serving_mutex_);
    if (serving_ != nullptr) serving_->Fail();
  }
  LogError("the durable state failed", {{"folder", options_.data_dir}, {"error", status}});
}

absl::Status Server::DefineMesh() {
  if (!options_.mesh.has_value()) {
    return absl::OkStatus();
  }
  const std::shared_ptr<const Definitions> state = definition_store_->shared_state();
  if (const auto existing = state->Find(DefinitionKind::kMesh, kDefaultMesh); existing.ok()) {
    const Mesh& mesh = std::get<MeshDefinition>((*existing)->value).mesh;
    if (mesh == *options_.mesh) {
      return absl::OkStatus();
    }
    // Only the first version comes from --mesh. A client has resized or updated a later one.
    if ((*existing)->version > 1) {
      LogInfo("the mesh has another shape than --mesh says, since it was changed",
              {{"mesh", kDefaultMesh}, {"shape", mesh.ToString()}});
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        StrCat("the mesh \"", kDefaultMesh, "\" in ", options_.data_dir, " is ", mesh.ToString(),
               ", not ", options_.mesh->ToString(), "; start with --mesh ", mesh.ToString(),
               ", or with another data folder"));
  }
  absl::Status created;
  absl::Notification done;
  definition_store_->Create({.request_id = "", .name = std::string(kDefaultMesh)},
                            EncodeMesh({.mesh = *options_.mesh, .workers = {}}),
                            [&](absl::StatusOr<std::shared_ptr<const Definition>> definition) {
                              created = definition.status();
                              done.Notify();
                            });
  done.WaitForNotification();
  return created;
}

// Adds the catalog's meshes to the membership, now and after each later change.
absl::Status Server::KeepMeshes() {
  const std::shared_ptr<const Definitions> state = definition_store_->shared_state();
  std::set<std::string, std::less<>> identities;
  for (const auto& [name, definition] : state->all(DefinitionKind::kMesh)) {
    const auto& mesh = std::get<MeshDefinition>(definition->value);
    const std::vector<std::string>& workers = WorkersOf(*definition);
    SHARDMESH_RETURN_IF_ERROR(membership_->AddMesh(name, mesh.mesh.size(), workers));
    identities.insert(workers.begin(), workers.end());
  }
  recovery_.Begin(std::move(identities));
  const Revision added = store_->revision();
  mesh_gate_.Applied(added);
  SHARDMESH_ASSIGN_OR_RETURN(
      mesh_watch_,
      definition_store_->Watch(
          {DefinitionKind::kMesh}, added + 1,
          [this](const std::vector<DefinitionStore::Event>& events) { MeshesChanged(events); }));
  return absl::OkStatus();
}

void Server::MeshesChanged(const std::vector<DefinitionStore::Event>& events) {
  for (const DefinitionStore::Event& event : events) {
    const std::shared_ptr<const MembershipView> view = membership_->view();
    const MeshRanks* ranks = view->FindMesh(event.name);
    std::shared_ptr<const Definition> decoded;
    const MeshDefinition* mesh = nullptr;
    if (event.record != nullptr) {
      const auto definition = definition_store_->Read(event);
      if (!definition.ok()) {
        LogError("a change of a mesh was not applied",
                 {{"mesh", event.name}, {"error", definition.status()}});
        continue;
      }
      decoded = *definition;
      mesh = &std::get<MeshDefinition>(decoded->value);
      // The membership already has these ranks, because this coordinator assigned them. The event
      // only reports that the store has them too.
      if (ranks != nullptr && ranks->size == mesh->mesh.size() &&
          ranks->identities == WorkersOf(*decoded)) {
        continue;
      }
    }
    // If an event only assigns ranks, the definition's own revision is older than the event's
    // revision.
    const bool is_assignment = decoded != nullptr && decoded->revision != event.revision;
    const bool is_moved = is_assignment && ranks != nullptr && !ranks->identities.empty();
    absl::Status changed = is_moved ? membership_->SetRanks(event.name, WorkersOf(*decoded))
                           : ranks == nullptr ? absl::OkStatus()
                                              : membership_->RemoveMesh(event.name);
    if (mesh != nullptr && !is_moved) {
      changed.Update(membership_->AddMesh(event.name, mesh->mesh.size(), WorkersOf(*decoded)));
    }
    if (!changed.ok()) {
      LogError("a change of a mesh was not applied", {{"mesh", event.name}, {"error", changed}});
    }
  }
  worker_streams_->MembershipChanged();  // members need at least the new revisions of the meshes
  if (!events.empty()) mesh_gate_.Applied(events.back().revision);
}

void Server::WriteRanks(const std::string& mesh_id, const MeshRanks& ranks) {
  SHARDMESH_PASSES("coordinator.write_ranks");
  const std::shared_ptr<const Definitions> state = definition_store_->shared_state();
  const auto definition = state->Find(DefinitionKind::kMesh, mesh_id);
  if (!definition.ok()) {
    return;
  }
  // The definition already has ranks, from a client or an earlier write: keep them.
  if (!WorkersOf(**definition).empty()) {
    return;
  }
  definition_store_->Assign(
      mesh_id, ranks.identities,
      [this, mesh_id](absl::StatusOr<std::shared_ptr<const Definition>> written) {
        if (written.ok()) {
          return;
        }
        if (ReasonOf(written.status()) != Reason::kVersionMismatch) {
          LogError("the ranks of a mesh could not be stored, will retry",
                   {{"mesh", mesh_id}, {"error", written.status()}});
        }
        absl::MutexLock lock(&unwritten_mutex_);
        unwritten_.insert(mesh_id);
        write_again_.SetNoLaterThan(clock_.Now() + kWriteAgainAfter);
      });
}

void Server::WriteRanksAgain() {
  std::set<std::string> mesh_ids;
  {
    absl::MutexLock lock(&unwritten_mutex_);
    mesh_ids.swap(unwritten_);
  }
  const std::shared_ptr<const MembershipView> view = membership_->view();
  for (const std::string& mesh_id : mesh_ids) {
    // After the store refused the ranks, a client may have deleted the mesh, or defined it again
    // without ranks.
    const MeshRanks* ranks = view->FindMesh(mesh_id);
    if (ranks != nullptr && !ranks->identities.empty()) {
      WriteRanks(mesh_id, *ranks);
    }
  }
}

// Called when ranks of a mesh have moved to other workers. The former workers' tiles no longer
// count for these ranks. The new workers attach again and report their own tiles of the mesh, and
// so do former workers that are attached.
void Server::RanksMoved(const MembershipEvent& event) {
  const std::shared_ptr<const MembershipView> view = membership_->view();
  recovery_.MeshesChanged(*view);
  for (size_t rank = 0; rank < event.mesh->identities.size(); ++rank) {
    const std::string& former = event.former->identities[rank];
    const std::string& identity = event.mesh->identities[rank];
    if (identity == former) continue;
    if (const WorkerStatus* worker = view->FindWorker(former); worker != nullptr) {
      registry_->TilesLost(event.mesh_id, static_cast<int64_t>(rank), worker->attachment);
    }
    worker_streams_->AttachAnew(identity, event.mesh_id);
    worker_streams_->AttachAnew(former, event.mesh_id);
  }
}

// Reports the new state of a worker to the clients that watch the cluster.
void Server::TellOfWorker(const MembershipEvent& event, WorkerChange::Kind kind) {
  if (!changes_.is_watched()) return;
  const bool is_loss = kind == WorkerChange::Kind::kLost;
  changes_.Add(WorkerChange{.kind = kind,
                            .identity = event.identity,
                            .incarnation = event.worker->info.incarnation,
                            .epoch = event.epoch,
                            .reason = is_loss ? event.worker->lost_because : std::string()});
}

void Server::MembershipChanged(const MembershipEvent& event) {
  using Kind = MembershipEvent::Kind;
  switch (event.kind) {
    case Kind::kAttached:
      flight_log_.Attached(event.identity, event.worker->info.incarnation);
      sequencer_->WorkerAttached(event.identity, event.epoch);
      cache_->WorkerAttached(event.worker->info);
      TellOfWorker(event, WorkerChange::Kind::kAttached);
      // An operator's drain of a worker process outlives the stream of that process: the worker
      // attaches again in the draining state.
      if (event.worker->state == WorkerState::kDraining) {
        TellOfWorker(event, WorkerChange::Kind::kDraining);
      }
      break;
    case Kind::kLost: {
      const std::string& reason = event.worker->lost_because;
      LogWarning("worker lost", {{"identity", event.identity}, {"reason", reason}});
      flight_log_.Lost(event.identity);
      link_table_.Lost(event.identity);
      if (event.worker->info.durable) recovery_.Lost(event.identity);
      worker_streams_->WorkerLost(event.identity, event.worker->attachment);
      sequencer_->WorkerLost(event.identity, event.epoch, reason);
      for (const auto& [mesh_id, rank] : membership_->RanksOf(event.identity)) {
        registry_->TilesLost(mesh_id, rank, event.worker->attachment, event.epoch);
      }
      TellOfWorker(event, WorkerChange::Kind::kLost);
      break;
    }
    case Kind::kRanksAssigned:
      WriteRanks(event.mesh_id, *event.mesh);
      break;
    case Kind::kRanksMoved:
      RanksMoved(event);
      break;
    case Kind::kMeshRemoved:
      recovery_.MeshesChanged(*membership_->view());
      break;
    case Kind::kDrainChanged:
      repairs_->LookAgain();
      replicas_->Look(/*is_chance=*/true);
      TellOfWorker(event, event.worker->state == WorkerState::kDraining
                              ? WorkerChange::Kind::kDraining
                              : WorkerChange::Kind::kResumed);
      break;
    case Kind::kForgotten:
      TellOfWorker(event, WorkerChange::Kind::kForgotten);
      break;
    case Kind::kMeshAdded:
      break;
  }
  worker_streams_->MembershipChanged();
  if (lost_ranks_ != nullptr) lost_ranks_->MembershipChanged();
}

void Server::SessionEnded(const EndedSession& session) {
  // All clients can read why an operation ended, but a session's full id gives access to the
  // session. Show only its first characters.
  const std::string shown_id = session.id.substr(0, kShownIdCharacters);
  const std::string_view how = session.end == SessionEnd::kExpired ? "expired" : "was closed";
  const absl::Status reason = absl::CancelledError(StrCat("its session ", shown_id, " ", how));
  for (const std::string& id : session.transfers) {
    // Puts and operations of other kinds have different ids: each call ignores the other's ids. An
    // error means that the transfer or operation is already being committed. In that case it
    // commits.
    transfers_->Abort(id, reason).IgnoreError();
    operations_->CancelFor(id, reason).IgnoreError();
  }
  registry_->Unpin(session.arrays);
}

absl::Status Server::Start() {
  SHARDMESH_RETURN_IF_ERROR(
      rpc::CheckOwnName(options_.credentials, rpc::ExpectedPeer::Coordinator()));
  SHARDMESH_RETURN_IF_ERROR(OpenState());
  SHARDMESH_RETURN_IF_ERROR(DefineMesh());
  SHARDMESH_RETURN_IF_ERROR(KeepMeshes());
  ExportState(&metrics_, {.store = store_.get(),
                          .registry = registry_.get(),
                          .membership = membership_.get(),
                          .worker_streams = worker_streams_.get(),
                          .sessions = sessions_.get(),
                          .sequencer = sequencer_.get(),
                          .transfers = transfers_.get(),
                          .recovery = &recovery_,
                          .lost_ranks = lost_ranks_.get(),
                          .draining_since = [this] { return draining_since_.load(); }});
  rpc::ExportValidity(options_.credentials, metrics_);
  std::vector<rpc::NamedService> services;
  for (const auto& [name, service] : services_) {
    services.push_back({name, service.get()});
  }
  rpc::ServerOptions server;
  server.address = options_.listen_address;
  server.credentials = options_.credentials;
  server.insecure = options_.insecure;
  server.metrics = &metrics_;
  server.max_streams = static_cast<int>(options_.limits.max_connection_calls);
  server.max_connections = options_.limits.max_connections;
  server.memory_quota_bytes = options_.limits.rpc_memory_bytes;
  server.on_drain = [this] {
    for (const auto& end : end_streams_) {
      end();
    }
  };
  SHARDMESH_ASSIGN_OR_RETURN(lifecycle_, rpc::ServerLifecycle::Start(server, services));
  {
    absl::MutexLock lock(&serving_mutex_);
    serving_ = lifecycle_.get();
  }
  if (!options_.http_address.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(endpoint_, rpc::MetricsEndpoint::Start(
                                              metrics_, options_.http_address, options_.credentials,
                                              options_.insecure || options_.http_plaintext));
  }
  if (endpoint_ != nullptr) {
    LogInfo("metrics served", {{"port", endpoint_->port()}});
  }
  lifecycle_->SetReady(true);
  LogInfo("coordinator serves", {{"address", lifecycle_->address()},
                                 {"cluster", registry_->cluster_id()},
                                 {"term", registry_->term()},
                                 {"token_key_digest", token_key_digest_}});
  return absl::OkStatus();
}

void Server::Drain(absl::Time deadline) {
  if (draining_.exchange(true)) {
    return;
  }
  draining_since_ = clock_.Now();
  const auto end = SteadyDeadline::At(deadline);
  if (lost_ranks_ != nullptr) lost_ranks_->Stop();
  if (repairs_ != nullptr) repairs_->Stop();
  if (replicas_ != nullptr) replicas_->Stop();
  if (lifecycle_ != nullptr) {
    lifecycle_->SetReady(false);
    // Steps and transfers end first, while workers are attached and clients can still get the
    // results.
    const absl::Duration to_tell = std::clamp(end.left() / 4, absl::ZeroDuration(), kTimeToTell);
    if (const int64_t aborted = sequencer_->Drain(end.wall() - to_tell); aborted > 0) {
      LogWarning("the grace ended before all steps and transfers did", {{"aborted", aborted}});
    }
    lifecycle_->Drain(end.wall());
    // Resizes go on for a moment after their last call, and use the sequencer until their end.
    for (const auto& join : join_threads_) join();
  }
  mesh_gate_.Open();  // no call waits for an answer when the endpoint ends
  endpoint_.reset();
  // From now on no lease, heartbeat or deadline expires. Destroying the sequencer ends live work.
  clock_.Stop();
  mesh_watch_.reset();
  sequencer_.reset();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    CoordinatorOptions options) {
  auto server = std::make_unique<Server>(std::move(options));
  SHARDMESH_RETURN_IF_ERROR(server->Start());
  return server;
}

}  // namespace shardmesh::server
