// Builds the parts of a worker, and destroys them in the opposite order.
#include "worker/worker_server.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "process/clock.h"
#include "process/host_port.h"
#include "process/log.h"
#include "process/random_bytes.h"
#include "process/roots/read_root.h"
#include "process/thread_pool.h"
#include "rpc/codec/field_check.h"
#include "rpc/metrics/certificate_metrics.h"
#include "rpc/metrics/metrics.h"
#include "rpc/metrics/metrics_endpoint.h"
#include "rpc/server_lifecycle.h"
#include "shardmesh/v1/tile_service.grpc.pb.h"
#include "status/byte_text.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/buffer.h"
#include "worker/exchange/peer_links.h"
#include "worker/fill/fill_threads.h"
#include "worker/kernel/matmul.h"
#include "worker/save/save_orders.h"
#include "worker/save/write_root.h"
#include "worker/service/coordinator_link.h"
#include "worker/service/handover_inbox.h"
#include "worker/service/tile_filler.h"
#include "worker/service/tile_gate.h"
#include "worker/service/tile_service.h"
#include "worker/shm/shm_arena.h"
#include "worker/step/flight_recorder.h"
#include "worker/step/step_executor.h"
#include "worker/store/scrubber.h"
#include "worker/store/shard_store.h"
#include "worker/tensor_op/kernel_probe.h"
#include "worker/worker_metrics.h"

namespace shardmesh::worker {
namespace {

// Number of threads for work that waits for disks. Two tiles are synced at a time; more tiles would
// only wait in the disk's queue.
constexpr int kWorkThreads = 2;
constexpr size_t kNonceBytes = 32;

// Returns the host's boot id; empty if the system does not report it.
std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

uint64_t RandomIncarnation() {
  uint64_t incarnation = 0;
  while (incarnation == 0) {
    const std::string bytes = RandomBytes(sizeof(incarnation));
    std::memcpy(&incarnation, bytes.data(), sizeof(incarnation));
  }
  return incarnation;
}

// Returns how many workers compute on the cores of this one.
int WorkersOnOwnCores(const HostPart& part) {
  return part.is_bound ? 1 : static_cast<int>(std::clamp<int64_t>(part.count, 1, 64));
}

// Returns the most bytes that idle buffers of the buffer pool may take.
int64_t MaxIdleBytes(int64_t memory_bytes) { return memory_bytes / 8; }

// The minimum must be enough for a stream's flow-control window (rpc/transport_args.h) and two
// messages of the largest size.
static_assert(kMinRpcMemoryBytes >= (int64_t{8} << 20) + 2 * rpc::kMaxDataMessageBytes);

// Parses an address, which must name a host. `flag` is the name of the flag that has this address,
// for the error message.
absl::StatusOr<HostPort> HostPortOf(std::string_view flag, const std::string& address) {
  if (IsUnixAddress(address)) {
    return WithReason(
        absl::InvalidArgumentError(StrCat("--", flag, "=", address,
                                          ": peers reach a worker at a port of this host, but the "
                                          "value names no host; write HOST:PORT")),
        Reason::kBadField, {{fact::kField, StrCat("--", flag)}, {fact::kValue, address}});
  }
  return ParseHostPort(address);
}

// Returns the address on which this worker listens for peers: the host of --listen, with a separate
// port. The server at this port has only the ExchangeService, so only the poller of the links
// handles its connections.
absl::StatusOr<std::string> ExchangeListen(const WorkerOptions& options) {
  SHARDMESH_ASSIGN_OR_RETURN(HostPort address, HostPortOf("listen", options.listen));
  address.port = static_cast<int>(options.exchange_port);
  return address.ToString();
}

absl::StatusOr<std::vector<std::string>> Endpoints(const WorkerOptions& options,
                                                   const rpc::ServerLifecycle& server) {
  std::vector<std::string> endpoints;
  for (const std::string& address : options.advertise) {
    SHARDMESH_ASSIGN_OR_RETURN(HostPort parsed, HostPortOf("advertise", address));
    if (parsed.port == 0) {
      parsed.port = server.port();
    }
    endpoints.push_back(parsed.ToString());
  }
  if (!endpoints.empty()) {
    return endpoints;
  }
  SHARDMESH_ASSIGN_OR_RETURN(const HostPort bound, ParseHostPort(server.address()));
  if (bound.host == "0.0.0.0" || bound.host == "::") {
    return absl::FailedPreconditionError(StrCat("the worker listens on all addresses (",
                                                options.listen,
                                                "), so peers and clients cannot know which one "
                                                "reaches it; name one with --advertise HOST:0"));
  }
  endpoints.push_back(server.address());
  return endpoints;
}

}  // namespace

int64_t DefaultRpcMemoryBytes(int64_t memory_bytes) {
  // With less memory than kLeast, a few concurrent puts could use all of the memory, and gRPC would
  // cancel the streams of these puts.
  constexpr int64_t kLeast = int64_t{256} << 20;
  constexpr int64_t kMost = int64_t{4} << 30;
  return std::clamp(memory_bytes / 4, kLeast, kMost);
}

class WorkerServer::Impl {
 public:
  explicit Impl(WorkerOptions options)
      : options_(std::move(options)),
        budget_(options_.memory_bytes),
        arena_(options_.transport == Transport::kStream
                   ? nullptr
                   : std::make_shared<ShmArena>("shardmesh-tiles")),
        pool_(BufferPool::Create(&budget_, MaxIdleBytes(options_.memory_bytes), arena_)),
        threads_(options_.threads > 0 ? static_cast<int>(options_.threads)
                                      : options_.part.Threads(share_)),
        kernel_({.threads = threads_, .pool = pool_}) {}

  ~Impl() {
    Drain(absl::InfinitePast());
    // The threads of the scrubber and the filler report on the link, so they end before the link.
    scrubber_.reset();
    if (filler_ != nullptr) filler_->Stop();
    // Destroy each of these members before the members that it calls: the threads of saves ask the
    // executor. The links' streams end on a completion queue of exchange_, so exchange_ must exist
    // until the last stream has ended.
    link_.reset();
    saves_.reset();
    executor_.reset();
    links_.reset();
  }

  absl::Status Start() {
    if (options_.identity.empty()) {
      options_.identity = HostName();
    }
    if (options_.rpc_memory_bytes == 0) {
      options_.rpc_memory_bytes = DefaultRpcMemoryBytes(options_.memory_bytes);
    }
    if (options_.rpc_memory_bytes < kMinRpcMemoryBytes) {
      const auto [have, need] = FormatBytesApart(options_.rpc_memory_bytes, kMinRpcMemoryBytes);
      return WithReason(
          absl::InvalidArgumentError(StrCat("--rpc-memory is ", have,
                                            ", less than one stream of a client may take; give ",
                                            need, " or more")),
          Reason::kBadField,
          {{fact::kField, "--rpc-memory"}, {fact::kValue, options_.rpc_memory_bytes}});
    }
    SHARDMESH_RETURN_IF_ERROR(rpc::CheckIdentity(options_.identity, "identity"));
    SHARDMESH_RETURN_IF_ERROR(
        rpc::CheckOwnName(options_.credentials, rpc::ExpectedPeer::Worker(options_.identity)));
    SHARDMESH_ASSIGN_OR_RETURN(std::string exchange_listen, ExchangeListen(options_));
    SHARDMESH_ASSIGN_OR_RETURN(WriteRoots write_roots, WriteRoots::Create(options_.write_roots));
    const WorkerSelf self{
        .identity = options_.identity, .incarnation = RandomIncarnation(), .boot_id = BootId()};
    const std::string nonce = RandomBytes(kNonceBytes);
    SHARDMESH_ASSIGN_OR_RETURN(read_roots_, ReadRoots::Open(options_.read_roots));
    SHARDMESH_ASSIGN_OR_RETURN(store_, ShardStore::Open({.pool = pool_,
                                                         .data_dir = options_.data_dir,
                                                         .quarantine = options_.quarantine,
                                                         .free_disk = [this](int64_t need_bytes) {
                                                           return memory_requests_.Free(
                                                               need_bytes, /*on_disk=*/true);
                                                         }}));
    LogRecovery();
    LogMisfits();
    const auto free_memory = [this](const absl::Status& refused, int64_t size_bytes) {
      return IsHostShortage(refused) ? FreeHostMemory(size_bytes) : FreeMemory(size_bytes);
    };
    gate_ = std::make_unique<TileGate>(TileGate::Options{
        .identity = self.identity,
        .store = store_.get(),
        .clock = &clock_,
        .staged = [this](const TileReport& report) { link_->ReportTile(report); }});
    filler_ = MakeTileFiller({.identity = self.identity,
                              .store = store_.get(),
                              .gate = gate_.get(),
                              .roots = &read_roots_,
                              .credentials = options_.credentials,
                              .free_memory = free_memory});
    links_ =
        PeerLinks::Create({.self = self,
                           .credentials = options_.credentials,
                           .clock = &clock_,
                           .peers_changed =
                               [this](int64_t epoch, const std::vector<std::string>& unreached) {
                                 link_->ReportPeers(epoch, unreached);
                               },
                           .budget = &budget_,
                           .redial = {},
                           .transport = options_.transport,
                           .frame_checksums = options_.frame_checksums,
                           .arena = arena_,
                           .probe_pool = pool_});
    executor_ = StepExecutor::Start({.identity = self.identity,
                                     .links = links_.get(),
                                     .store = store_.get(),
                                     .pool = pool_,
                                     .free_memory = free_memory,
                                     .kernel = &kernel_,
                                     .weight_budget = &budget_,
                                     .recorder = &recorder_,
                                     .clock = &clock_,
                                     .observer = ObserveSteps(&metrics_)});
    saves_ = std::make_unique<SaveOrders>(
        store_.get(), std::move(write_roots),
        SavePace::Options{.steps_run = [this] { return executor_->runs_steps(); },
                          .workers = static_cast<int>(options_.part.count)});
    StartInbox();
    tiles_ = MakeTileService({.self = self,
                              .nonce = nonce,
                              .store = store_.get(),
                              .gate = gate_.get(),
                              .inbox = inbox_.get(),
                              .work = &work_,
                              .free_memory = free_memory,
                              .membership_waits = &membership_waits_,
                              .clock = &clock_});
    SHARDMESH_ASSIGN_OR_RETURN(
        server_,
        rpc::ServerLifecycle::Start({.address = options_.listen,
                                     .credentials = options_.credentials,
                                     .insecure = options_.insecure,
                                     .max_message_bytes = rpc::kMaxDataMessageBytes,
                                     .memory_quota_bytes = options_.rpc_memory_bytes,
                                     .metrics = &metrics_},
                                    {{v1::TileService::service_full_name(), tiles_.get()}}));
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<std::string> endpoints, Endpoints(options_, *server_));
    SHARDMESH_ASSIGN_OR_RETURN(
        exchange_,
        rpc::ServerLifecycle::Start(
            {.address = std::move(exchange_listen),
             .credentials = options_.credentials,
             .insecure = options_.insecure,
             .max_message_bytes = rpc::kMaxDataMessageBytes,
             .health = false,
             .metrics = &metrics_,
             .on_drain = [this] { links_->Close(); },
             .customize = [this](grpc::ServerBuilder& builder) { links_->Customize(builder); }},
            {{PeerLinks::kServiceName, links_->service()}}));
    LogInfo("peers served", {{"port", exchange_->port()}});
    SHARDMESH_ASSIGN_OR_RETURN(
        link_, CoordinatorLink::Create(
                   {.coordinator = options_.coordinator,
                    .credentials = options_.credentials,
                    .self = self,
                    .nonce = nonce,
                    .endpoints = std::move(endpoints),
                    .exchange_port = exchange_->port(),
                    .threads = threads_,
                    .kernels = MeasureKernels(&kernel_, WorkersOnOwnCores(options_.part)),
                    .overlaps_exchanges = kernel_.KeepsBitsOfRows(Dtype::kF32) &&
                                          kernel_.KeepsBitsOfRows(Dtype::kBF16),
                    .overlaps_parts = kernel_.KeepsBitsOfParts(Dtype::kF32) &&
                                      kernel_.KeepsBitsOfParts(Dtype::kBF16),
                    .data_dir = options_.data_dir,
                    .clock = &clock_,
                    .store = store_.get(),
                    .cache_bytes = std::min(options_.cache_bytes, options_.memory_bytes),
                    .memory = &memory_requests_,
                    .gate = gate_.get(),
                    .links = links_.get(),
                    .executor = executor_.get(),
                    .saves = saves_.get(),
                    .filler = filler_.get(),
                    .recorder = &recorder_,
                    .ready_changed = [this](bool ready) { ReadyChanged(ready); },
                    .failed = [this](const absl::Status& reason) { SetFailure(reason); }}));
    scrubber_ = std::make_unique<Scrubber>(Scrubber::Options{
        .store = store_.get(),
        .clock = &clock_,
        .bytes_per_second = std::max<int64_t>(options_.scrub_bytes_per_second, 1),
        .interval = options_.scrub_interval,
        .damaged = [this](const std::string& array_id,
                          const std::string& reason) { link_->ReportDamaged(array_id, reason); },
        .reread = [this](const std::string& array_id) { link_->ReportRestored(array_id); }});
    ExportState(&metrics_, {.store = store_.get(),
                            .pool = pool_.get(),
                            .links = links_.get(),
                            .filler = filler_.get(),
                            .inbox = inbox_.get(),
                            .scrubber = scrubber_.get(),
                            .kernel = &kernel_,
                            .coordinator = link_.get()});
    rpc::ExportValidity(options_.credentials, metrics_);
    if (!options_.metrics_listen.empty()) {
      SHARDMESH_ASSIGN_OR_RETURN(
          metrics_endpoint_,
          rpc::MetricsEndpoint::Start(metrics_, options_.metrics_listen, options_.credentials,
                                      options_.insecure || options_.http_plaintext));
      LogInfo("metrics served", {{"port", metrics_endpoint_->port()}});
    }
    links_->Start();
    link_->Start();
    if (store_->has_data_dir() && options_.scrub_bytes_per_second > 0) scrubber_->Start();
    return absl::OkStatus();
  }

  void Drain(absl::Time deadline) {
    {
      absl::MutexLock lock(&mutex_);
      if (std::exchange(drained_, true)) {
        return;
      }
    }
    if (server_ == nullptr) {
      return;
    }
    server_->SetReady(false);
    // Leave waits until the coordinator no longer needs this worker. Steps and transfers that have
    // begun continue during this time.
    if (link_ != nullptr) {
      link_->Leave("it is draining", deadline);
    }
    gate_->Drain();
    filler_->Suspend();
    // Drain the peers' server first: no step is left, so this takes no time. Only clients' puts and
    // gets still run, on server_.
    if (exchange_ != nullptr) exchange_->Drain(deadline);
    server_->Drain(deadline);
    metrics_endpoint_.reset();
  }

  const std::string& identity() const { return options_.identity; }
  const std::string& address() const { return server_->address(); }
  int metrics_port() const { return metrics_endpoint_ == nullptr ? 0 : metrics_endpoint_->port(); }
  bool ready() const { return server_->ready(); }
  std::optional<absl::Status> failure() const {
    absl::MutexLock lock(&mutex_);
    return failure_;
  }

 private:
  // A draining worker does not become ready again, even if it reaches all peers.
  void ReadyChanged(bool ready) {
    absl::MutexLock lock(&mutex_);
    if (!drained_) server_->SetReady(ready);
  }

  // Asks for memory in which a buffer of `size_bytes` fits. Returns whether some was freed.
  bool FreeMemory(int64_t size_bytes) {
    // The pool rounds sizes up, by less than a quarter.
    const int64_t left_bytes = budget_.limit_bytes() - budget_.used_bytes();
    // The memory is free when the last reader of a dropped tile is done.
    const auto has_room = [&] {
      return budget_.limit_bytes() - budget_.used_bytes() + pool_->idle_bytes() >= size_bytes;
    };
    // By the time of the answer, drops that were ordered earlier are done too.
    if (!memory_requests_.Free(std::max<int64_t>(size_bytes + size_bytes / 4 - left_bytes, 1))) {
      return has_room();
    }
    for (int i = 0; i < 100 && !has_room(); ++i) absl::SleepFor(absl::Milliseconds(5));
    return true;
  }

  // Gives memory back to the host, of which `size_bytes` are short although the budget allows them:
  // idle buffers, then cached arrays that the coordinator chooses. Returns whether there was some.
  bool FreeHostMemory(int64_t size_bytes) {
    const int64_t idle_bytes = pool_->idle_bytes();
    pool_->Trim();
    if (idle_bytes >= size_bytes) return true;
    const int64_t used_bytes = budget_.used_bytes();
    const bool was_freed = memory_requests_.Free(size_bytes - idle_bytes);
    // The last reader of a dropped tile returns its memory, which becomes an idle buffer first.
    const auto is_back = [&] { return budget_.used_bytes() - pool_->idle_bytes() < used_bytes; };
    for (int i = 0; was_freed && i < 100 && !is_back(); ++i) absl::SleepFor(absl::Milliseconds(5));
    pool_->Trim();
    return was_freed || idle_bytes > 0;
  }

  void SetFailure(const absl::Status& reason) {
    absl::MutexLock lock(&mutex_);
    failure_ = reason;
  }

  void LogRecovery() const {
    const RecoveryReport& report = store_->recovery_report();
    for (const RecoveryProblem& problem : report.problems) {
      LogWarning(
          "a tile could not be read back",
          {{"path", problem.path}, {"moved_to", problem.moved_to}, {"error", problem.status}});
    }
    if (store_->has_data_dir()) {
      LogInfo("tiles read back", {{"data_dir", options_.data_dir},
                                  {"committed", report.committed_tiles},
                                  {"staged", report.staged_tiles},
                                  {"quarantined", report.quarantined_tiles},
                                  {"size_bytes", report.size_bytes}});
    }
  }

  // Lets clients on this host hand over memory, unless this worker shares none.
  void StartInbox() {
    if (options_.transport == Transport::kStream) return;
    auto inbox = HandoverInbox::Start();
    if (inbox.ok()) {
      inbox_ = *std::move(inbox);
    } else {
      LogWarning("clients on this host cannot hand over memory", {{"error", inbox.status()}});
    }
  }

  void LogMisfits() const {
    const std::vector<std::string> misfits = share_.MisfitsOf(options_.memory_bytes, threads_);
    if (misfits.empty()) return;
    LogWarning("the settings ask for more than this process may use",
               {{"identity", options_.identity}, {"error", StrJoin(misfits, "; ")}});
  }

  WorkerOptions options_;
  const HostShare share_ = HostShare::OfThisProcess();

  // Each member uses only members declared before it, and is destroyed before the members that it
  // uses.
  RealClock clock_;
  rpc::Metrics metrics_{"worker"};
  MemoryBudget budget_;
  const std::shared_ptr<ShmArena> arena_;  // null: the memory is private to this process
  const std::shared_ptr<BufferPool> pool_;
  const int threads_;  // number of threads for kernels
  MatmulKernel kernel_;
  FlightRecorder recorder_;
  MemoryRequests memory_requests_;
  std::unique_ptr<ShardStore> store_;
  std::unique_ptr<TileGate> gate_;
  ReadRoots read_roots_;
  std::unique_ptr<TileFiller> filler_;
  ThreadPool work_{kWorkThreads};
  ThreadPool membership_waits_{1};
  std::unique_ptr<PeerLinks> links_;
  std::unique_ptr<StepExecutor> executor_;
  std::unique_ptr<SaveOrders> saves_;
  std::unique_ptr<HandoverInbox> inbox_;  // null: tiles come as streams only
  std::unique_ptr<grpc::Service> tiles_;
  std::unique_ptr<rpc::ServerLifecycle> server_;
  std::unique_ptr<rpc::ServerLifecycle> exchange_;  // the server for the peers' links
  std::unique_ptr<CoordinatorLink> link_;
  std::unique_ptr<Scrubber> scrubber_;
  std::unique_ptr<rpc::MetricsEndpoint> metrics_endpoint_;

  mutable absl::Mutex mutex_;
  bool drained_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> failure_ ABSL_GUARDED_BY(mutex_);
};

WorkerServer::WorkerServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WorkerServer::~WorkerServer() = default;

absl::StatusOr<std::unique_ptr<WorkerServer>> WorkerServer::Start(WorkerOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  SHARDMESH_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<WorkerServer>(new WorkerServer(std::move(impl)));
}

const std::string& WorkerServer::identity() const { return impl_->identity(); }
const std::string& WorkerServer::address() const { return impl_->address(); }
int WorkerServer::metrics_port() const { return impl_->metrics_port(); }
bool WorkerServer::ready() const { return impl_->ready(); }
std::optional<absl::Status> WorkerServer::failure() const { return impl_->failure(); }
void WorkerServer::Drain(absl::Time deadline) { impl_->Drain(deadline); }

}  // namespace shardmesh::worker
