// Takes in workers, keeps them informed, and passes on what they report.
#include "server/service/attach_service.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "process/failpoint.h"
#include "process/host_port.h"
#include "process/log.h"
#include "rpc/call.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/flight_codec.h"
#include "rpc/codec/link_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "rpc/stream/message_bytes.h"
#include "rpc/stream/outbox.h"
#include "server/service/membership_pages.h"
#include "server/service/streaming_service.h"
#include "shardmesh/v1/attach_service.grpc.pb.h"
#include "shardmesh/v1/tile_service.grpc.pb.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr int32_t kProtocolVersion = 1;
constexpr int kMaxEndpoints = 16;
// Lists of arrays are cut into messages, lest one grow without bound.
constexpr int kIdsPerMessage = 10'000;
// Orders about quarantines that wait for their answers.
constexpr size_t kMaxOrders = 1'000;
// Each with a reason.
constexpr int kAsidePerMessage = 1'000;
// At the first heartbeat after so long a worker is told the coordinator's clock again.
constexpr absl::Duration kClockInterval = absl::Seconds(5);
// A worker that lets this much wait is as good as lost: a few hundred of the largest steps.
constexpr int64_t kOutboxBytes = int64_t{256} << 20;
// What gRPC takes; a message beyond it would end the stream.
constexpr int64_t kMaxMessageBytes = rpc::kMaxControlMessageBytes;
// Ranks, or peers of a rank, that an error names.
constexpr size_t kMostRanksNamed = 16;
// So long after a mesh got other workers, arrays of the mesh before may be released.
constexpr absl::Duration kMovedTime = absl::Minutes(1);
// Streams that are told of a change before others get the lock.
constexpr int kStreamsPerTurn = 64;
// After a change was told, the next waits so long for each worker that was told: about four times
// what telling one costs. When all workers attach, most of the changes are then told together.
constexpr absl::Duration kPausePerWorker = absl::Microseconds(250);
// Plans that a worker is remembered to have; it asks for one that it was wrongly believed to have.
constexpr size_t kMaxPlansKnown = 1024;
// So long after the last inventory, how large it was tells nothing of the next. Workers that were
// refused meanwhile come back sooner.
constexpr absl::Duration kInventoriesForgotten = absl::Seconds(30);
// Lengths of a hello's texts. What is shown of a worker is in every list of them.
constexpr size_t kMaxEndpointBytes = 320;
// Bytes of an identity that nobody has checked, in an error.
constexpr size_t kMaxIdentityShown = 255;
constexpr size_t kMaxHelloTextBytes = 128;
constexpr size_t kMaxClusterIdBytes = 64;
constexpr int kMaxFeatures = 64;
constexpr size_t kMaxFeatureBytes = 64;

using RawOutbox = rpc::Outbox<grpc::ByteBuffer>;

// A message serialised once, for any number of streams.
std::shared_ptr<const grpc::ByteBuffer> Serialise(const v1::AttachResponse& message) {
  return std::make_shared<grpc::ByteBuffer>(rpc::SerializeMessage(message));
}

absl::Status NotServing(std::string_view hint) {
  return rpc::WithRetryDelay(
      WithReason(absl::UnavailableError(StrCat("the coordinator is stopping; ", hint)),
                 Reason::kNotServing),
      absl::Seconds(1));
}

// Asks every endpoint of a hello who answers there; `done` gets those that lead back to the worker,
// in the hello's order. Once one does, the others have kGrace more: a name that stands for an
// address of yesterday, where nobody answers, must not hold the worker up.
class EndpointCheck : public std::enable_shared_from_this<EndpointCheck> {
 public:
  using Done = absl::AnyInvocable<void(std::vector<std::string> verified, std::string failures) &&>;

  // Lives until the last answer; the clock outlives it.
  static void Start(const v1::Hello& hello, const AttachHubOptions& options, Done done) {
    const std::shared_ptr<EndpointCheck> check(
        new EndpointCheck(hello, options.clock, std::move(done)));
    for (size_t i = 0; i < check->probes_.size(); ++i) {
      check->Ask(i, options.credentials, options.verify_timeout);
    }
  }

 private:
  // Enough for a name to be looked up and a handshake, between hosts that are there.
  static constexpr absl::Duration kGrace = absl::Milliseconds(250);

  struct Probe {
    std::string address;
    std::unique_ptr<v1::TileService::Stub> stub;
    grpc::ClientContext context;
    v1::IdentifyRequest request;
    v1::IdentifyResponse response;
    absl::Status status;
  };

  EndpointCheck(const v1::Hello& hello, rpc::Clock* clock, Done done)
      : identity_(hello.identity()),
        incarnation_(hello.incarnation()),
        nonce_(hello.nonce()),
        clock_(clock),
        done_(std::move(done)),
        probes_(static_cast<size_t>(hello.endpoints_size())),
        waiting_(probes_.size()) {
    for (size_t i = 0; i < probes_.size(); ++i) {
      probes_[i].address = hello.endpoints(static_cast<int>(i)).address();
    }
  }

  void Ask(size_t index, const rpc::Credentials& credentials, absl::Duration timeout) {
    Probe& probe = probes_[index];
    auto channel = rpc::CreateChannel(
        probe.address, {.credentials = credentials,
                        .peer = rpc::ExpectedPeer::Worker(identity_),
                        // No delay of an earlier check that failed, nor the address that it found.
                        .own_connection = true});
    if (!channel.ok()) {
      return Answered(index, channel.status());
    }
    probe.stub = v1::TileService::NewStub(*channel);
    rpc::Apply(rpc::CallOptions::Within(timeout), &probe.context);
    probe.stub->async()->Identify(&probe.context, &probe.request, &probe.response,
                                  [self = shared_from_this(), index](const grpc::Status& status) {
                                    self->Answered(index, rpc::FromGrpc(status));
                                  });
  }

  void Answered(size_t index, absl::Status status) {
    Probe& probe = probes_[index];
    if (status.ok() &&
        (probe.response.identity() != identity_ || probe.response.incarnation() != incarnation_ ||
         probe.response.nonce() != nonce_)) {
      status = absl::FailedPreconditionError(
          StrCat("\"", absl::CHexEscape(probe.response.identity().substr(0, kMaxIdentityShown)),
                 "\" answers there, of another incarnation or name"));
    }
    {
      absl::MutexLock lock(&mutex_);
      const bool is_first = status.ok() && !std::exchange(found_, true);
      probe.status = std::move(status);
      if (--waiting_ > 0) {
        if (is_first) {
          clock_->CallAt(clock_->Now() + kGrace, [check = weak_from_this()] {
            if (const auto self = check.lock(); self != nullptr) self->Cancel();
          });
        }
        return;
      }
    }
    std::vector<std::string> verified;
    std::string failures;
    for (const Probe& each : probes_) {
      if (each.status.ok()) {
        verified.push_back(each.address);
      } else {
        StrAppend(&failures, failures.empty() ? "" : "; ", each.address, ": ",
                  ToStd(each.status.message()));
      }
    }
    std::move(done_)(std::move(verified), std::move(failures));
  }

  // Ends what has not answered.
  void Cancel() {
    for (Probe& probe : probes_) probe.context.TryCancel();
  }

  const std::string identity_;
  const uint64_t incarnation_;
  const std::string nonce_;
  rpc::Clock* const clock_;
  Done done_;
  std::vector<Probe> probes_;
  absl::Mutex mutex_;
  size_t waiting_ ABSL_GUARDED_BY(mutex_);
  bool found_ ABSL_GUARDED_BY(mutex_) = false;  // an endpoint that leads back
};

absl::Status CheckLength(std::string_view text, size_t max_bytes, std::string_view field) {
  if (text.size() <= max_bytes) return absl::OkStatus();
  return rpc::BadField(StrCat("hello.", field), StrCat("has a text of ", text.size(),
                                                       " bytes; it must have at most ", max_bytes));
}

// All but the identity, which is checked before.
absl::Status CheckHello(const v1::Hello& hello, const AttachHubOptions& options) {
  if (hello.incarnation() == 0) {
    return rpc::BadField("hello.incarnation", "is 0; it must be random, new at each start");
  }
  if (hello.endpoints_size() < 1 || hello.endpoints_size() > kMaxEndpoints) {
    return rpc::BadField(
        "hello.endpoints",
        StrCat("has ", hello.endpoints_size(), " entries; a worker names 1 to ", kMaxEndpoints));
  }
  if (hello.exchange_port() < 0 || hello.exchange_port() > 65'535) {
    return rpc::BadField("hello.exchange_port", StrCat("is ", hello.exchange_port(),
                                                       "; a port is from 1 to 65535, and 0 stands "
                                                       "for that of the endpoints"));
  }
  if (hello.nonce().size() < 16 || hello.nonce().size() > 64) {
    return rpc::BadField("hello.nonce",
                         StrCat("has ", hello.nonce().size(), " bytes; it must have 16 to 64"));
  }
  if (hello.capacity().memory_bytes() < 0) {
    return rpc::BadField("hello.capacity.memory_bytes", "is negative");
  }
  SHARDMESH_RETURN_IF_ERROR(CheckLength(hello.cluster_id(), kMaxClusterIdBytes, "cluster_id"));
  SHARDMESH_RETURN_IF_ERROR(CheckLength(hello.boot_id(), kMaxHelloTextBytes, "boot_id"));
  SHARDMESH_RETURN_IF_ERROR(
      CheckLength(hello.build().version(), kMaxHelloTextBytes, "build.version"));
  SHARDMESH_RETURN_IF_ERROR(
      CheckLength(hello.build().revision(), kMaxHelloTextBytes, "build.revision"));
  for (const v1::Endpoint& endpoint : hello.endpoints()) {
    SHARDMESH_RETURN_IF_ERROR(CheckLength(endpoint.address(), kMaxEndpointBytes, "endpoints"));
  }
  if (hello.features_size() > kMaxFeatures) {
    return rpc::BadField("hello.features", StrCat("has ", hello.features_size(),
                                                  " entries; the limit is ", kMaxFeatures));
  }
  for (const std::string& feature : hello.features()) {
    SHARDMESH_RETURN_IF_ERROR(CheckLength(feature, kMaxFeatureBytes, "features"));
  }
  if (hello.protocol().min() > kProtocolVersion || hello.protocol().max() < kProtocolVersion) {
    return WithReason(
        absl::FailedPreconditionError(StrCat("worker \"", hello.identity(), "\" speaks protocol ",
                                             hello.protocol().min(), " to ", hello.protocol().max(),
                                             ", this coordinator ", kProtocolVersion,
                                             "; run builds that have one in common")),
        Reason::kProtocolMismatch);
  }
  if (!hello.cluster_id().empty() && hello.cluster_id() != options.cluster_id) {
    return WithReason(absl::FailedPreconditionError(StrCat(
                          "worker \"", hello.identity(), "\" holds data of cluster ",
                          hello.cluster_id(), ", this is cluster ", options.cluster_id,
                          "; point it to its own coordinator; if that is this one, its state was "
                          "lost: restore a snapshot of it; else give the worker an empty data "
                          "folder")),
                      Reason::kClusterMismatch);
  }
  if (!hello.data_identity().empty() && hello.data_identity() != hello.identity()) {
    return WithReason(
        absl::FailedPreconditionError(StrCat(
            "the data folder of worker \"", hello.identity(), "\" holds the tiles of worker \"",
            absl::CHexEscape(hello.data_identity().substr(0, kMaxIdentityShown)),
            "\"; start it with its own folder, or with --identity "
            "of the folder's worker; to give a "
            "folder away for good, remove its contents")),
        Reason::kIdentityMismatch);
  }
  if (hello.term() > options.term) {
    return WithReason(absl::AbortedError(StrCat("worker \"", hello.identity(), "\" knows term ",
                                                hello.term(), ", this coordinator has term ",
                                                options.term, "; a newer coordinator leads")),
                      Reason::kStaleTerm);
  }
  return absl::OkStatus();
}

// A verdict in messages of bounded size.
template <typename SendMessage>
void Encode(const InventoryVerdict& from, bool last, const SendMessage& send) {
  v1::AttachResponse response;
  v1::InventoryVerdict* to = response.mutable_inventory_verdict();
  const auto send_if_full = [&] {
    if (to->commit_array_ids_size() + to->drop_array_ids_size() + to->live_array_ids_size() +
                to->unknown_array_ids_size() >=
            kIdsPerMessage ||
        to->quarantine_tiles_size() >= kAsidePerMessage) {
      send(response);
      to->Clear();
    }
  };
  for (const std::string& array_id : from.commit) {
    to->add_commit_array_ids(array_id);
    send_if_full();
  }
  for (const std::string& array_id : from.drop) {
    to->add_drop_array_ids(array_id);
    send_if_full();
  }
  // Before anything is put aside, for which the worker may have to make room.
  for (const std::string& array_id : from.live) {
    to->add_live_array_ids(array_id);
    send_if_full();
  }
  for (const std::string& array_id : from.unknown) {
    to->add_unknown_array_ids(array_id);
    send_if_full();
  }
  for (const InventoryVerdict::Aside& aside : from.quarantine) {
    v1::QuarantineTile* tile = to->add_quarantine_tiles();
    tile->set_array_id(aside.array_id);
    rpc::Encode(aside.tile, tile->mutable_tile());
    tile->set_reason(aside.reason);
    tile->set_array_lives(aside.array_lives);
    send_if_full();
  }
  to->set_last(last);
  if (last || to->ByteSizeLong() > 0) send(response);
}

// Of a part of an inventory in memory, nearly.
int64_t SizeOf(const std::vector<InventoryTile>& tiles,
               const google::protobuf::RepeatedPtrField<std::string>& quarantined) {
  constexpr int64_t kBlockBytes = 64;  // one that a tile has on the heap, such as its id
  int64_t bytes = 0;
  for (const InventoryTile& tile : tiles) {
    bytes +=
        static_cast<int64_t>(sizeof(tile)) + (tile.descriptor.has_value() ? 6 : 2) * kBlockBytes;
  }
  return bytes + quarantined.size() * static_cast<int64_t>(sizeof(std::string) + kBlockBytes);
}

void LogVerdict(std::string_view identity, int64_t tiles, const InventoryVerdict& verdict) {
  if (!verdict.drop.empty()) {
    rpc::LogInfo(
        "a worker drops arrays that were released while it was away",
        {{"identity", identity}, {"arrays", verdict.drop.size()}, {"first", verdict.drop.front()}});
  }
  if (!verdict.quarantine.empty()) {
    const InventoryVerdict::Aside& first = verdict.quarantine.front();
    rpc::LogWarning(
        "a worker puts tiles into quarantine; `shardmesh admin quarantine list` shows them",
        {{"identity", identity},
         {"tiles", verdict.quarantine.size()},
         {"of", tiles},
         {"first_array", first.array_id},
         {"reason", first.reason}});
  }
}

class Hub;

// Attach, written straight:
//   hello = read(); endpoints = verify(hello)
//   attachment = membership.Attach(hello, endpoints); write(welcome)
//   inventory = read() ...
//   on the hub's thread for inventories: verdict = registry.TakeInventory(inventory);
//     write(verdict); write(membership)
//   while (report = read()) pass it on
//   membership.Detach(attachment)
// Reads go on one at a time, also while the inventory waits to be taken in, or is: so heartbeats
// are heard. All writes go through the outbox.
class AttachReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  AttachReactor(Hub* hub, grpc::CallbackServerContext* context);

  void Send(std::shared_ptr<const grpc::ByteBuffer> message);
  void Send(const v1::AttachResponse& message) { Send(Serialise(message)); }
  // Ends the stream with this status; of several calls the first one counts.
  void Close(absl::Status status);
  // The same, of a stream whose peer may not read: nothing that waits is sent.
  void Cut(const absl::Status& status);
  void End() { Close(NotServing("attach again later")); }

  const std::string& identity() const { return hello_.identity(); }  // after the hello
  uint64_t attachment() const;                                       // 0 before it is attached
  // Whether the worker has the plan of this hash; of all later calls for it the answer is yes.
  bool LearnPlan(const std::string& plan_hash);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override { outbox_.OnWriteDone(ok); }
  void OnCancel() override { Close(absl::CancelledError("its stream broke")); }
  void OnDone() override;

  // Tiles on these meshes were not judged, since the meshes have no ranks yet.
  void LeftUndecided(std::set<std::string> mesh_ids);
  // One of those meshes that has ranks now; empty: none. Once found, it is none any more.
  std::string TakeDecidable(const MembershipView& view);

  // Takes the inventory in. Called once, on the hub's thread, for a stream that asked for it
  // (AwaitInventory) and does not end before.
  void TakeWholeInventory();

 private:
  // By reads, but for the last two steps, which TakeWholeInventory makes.
  enum class Phase { kHello, kVerifying, kInventory, kTaking, kJudged, kMember };

  void FinishWith(absl::Status status);
  absl::Status Take(const v1::AttachRequest& request);
  absl::Status TakeHello(const v1::Hello& hello);
  void Verified(std::vector<std::string> endpoints, std::string failures);
  void TurnCame(std::vector<std::string> endpoints, const std::string& failures);
  void Admit(std::vector<std::string> endpoints, const std::string& failures);
  absl::Status TakeInventory(uint64_t attachment, const v1::InventoryPage& page);
  absl::Status TakeRestored(uint64_t attachment, const v1::InventoryPage& page);
  // The tiles of a page, as the registry wants them.
  absl::StatusOr<std::vector<InventoryTile>> TilesOf(const v1::InventoryPage& page) const;
  // Keeps the stream from its end while something outside its reactions uses it.
  absl::Status Hold(std::string_view what);
  void Release();
  bool is_closed() const;
  // Counts as a sign of life, with the figures of the last heartbeat.
  absl::Status Beat(uint64_t attachment);
  void SendVerdict(const InventoryVerdict& verdict, bool last);
  absl::Status TakeHeartbeat(uint64_t attachment, const v1::Heartbeat& heartbeat);
  absl::Status TakeTileStaged(const v1::TileStaged& staged);
  absl::Status TakeStepReport(const v1::StepReport& report);

  Hub* const hub_;
  grpc::CallbackServerContext* const context_;
  RawOutbox outbox_;

  // Touched by one reaction at a time: reads follow one another.
  grpc::ByteBuffer read_;
  std::atomic<Phase> phase_ = Phase::kHello;
  v1::Hello hello_;
  std::vector<InventoryTile> inventory_;  // while kTaking, TakeWholeInventory's
  std::vector<std::string> quarantined_;  // likewise
  absl::Time clock_told_;                 // when the worker was last told the time

  mutable absl::Mutex mutex_;
  uint64_t attachment_ ABSL_GUARDED_BY(mutex_) = 0;
  // As the last heartbeat told.
  int64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  QuarantineCount quarantine_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::string> undecided_ ABSL_GUARDED_BY(mutex_);  // see LeftUndecided
  int holds_ ABSL_GUARDED_BY(mutex_) = 0;                    // calls of Hold without their Release
  absl::Status close_status_ ABSL_GUARDED_BY(mutex_);        // of a Close while there are some
  std::string end_reason_ ABSL_GUARDED_BY(mutex_) = "its stream broke";
  absl::flat_hash_set<std::string> plans_ ABSL_GUARDED_BY(mutex_);
};

class AttachService final
    : public v1::AttachService::WithRawCallbackMethod_Attach<v1::AttachService::Service> {
 public:
  explicit AttachService(Hub* hub) : hub_(hub) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Attach(
      grpc::CallbackServerContext* context) override {
    return new AttachReactor(hub_, context);
  }

 private:
  Hub* const hub_;
};

class Hub final : public AttachHub {
 public:
  using Admit = absl::AnyInvocable<void() &&>;

  Hub(Membership* membership, ArrayRegistry* registry, const DefinitionStore* definition_store,
      AttachHubOptions options)
      : membership_(membership),
        registry_(registry),
        definition_store_(definition_store),
        options_(std::move(options)),
        service_(this),
        pages_(options_.term),
        teller_([this] { TellOfMembership(); }),
        taker_([this] { TakeInventories(); }),
        overdue_(options_.clock, [this] { CutOverdue(); }) {}

  grpc::Service* service() override { return &service_; }
  void SetSequencer(Sequencer* sequencer) override { sequencer_ = sequencer; }
  void SetTileListener(TileListener listener) override { tile_listener_ = std::move(listener); }

  ~Hub() override {
    {
      absl::MutexLock lock(&mutex_);
      ending_ = true;
    }
    teller_.join();
    taker_.join();
  }

  bool IsReady(std::string_view identity) const override {
    const int64_t epoch = membership_->view()->epoch;
    absl::MutexLock lock(&mutex_);
    const auto found = members_.find(identity);
    return found != members_.end() && found->second.peers_epoch == epoch &&
           found->second.unreached.empty();
  }

  absl::Status CheckReady(std::string_view mesh_id) const override {
    if (stopping_) return NotServing("ask again soon");
    const std::shared_ptr<const MembershipView> view = membership_->view();
    const MeshRanks* ranks = view->FindMesh(mesh_id);
    if (const absl::Status complete = view->CheckComplete(mesh_id); !complete.ok()) {
      return ranks == nullptr ? complete : ComesBack(*view, *ranks, complete);
    }
    // Ranks that were just given are written into the definition, which then has a new revision.
    const std::shared_ptr<const Definitions> state = definition_store_->shared_state();
    SHARDMESH_ASSIGN_OR_RETURN(const auto definition, state->Find(DefinitionKind::kMesh, mesh_id));
    if (std::get<rpc::MeshDefinition>(definition->value).workers != ranks->identities) {
      return Recovering(StrCat("the mesh \"", mesh_id,
                               "\" is not ready: its ranks are being given "
                               "out; try again"));
    }
    std::vector<std::string> missing;
    bool is_passing = true;
    absl::MutexLock lock(&mutex_);
    if (const auto told = told_state_ == nullptr
                              ? absl::StatusOr<std::shared_ptr<const Definition>>(nullptr)
                              : told_state_->Find(DefinitionKind::kMesh, mesh_id);
        !told.ok() || *told != definition || told_view_->FindMesh(mesh_id) != ranks) {
      return Recovering(StrCat("the mesh \"", mesh_id,
                               "\" is not ready: its workers are being told of it; try again"));
    }
    for (size_t rank = 0; rank < ranks->identities.size(); ++rank) {
      const std::string& identity = ranks->identities[rank];
      const WorkerStatus& worker = *view->FindWorker(identity);
      const bool is_draining = worker.state == WorkerState::kDraining;
      const std::string why =
          is_draining ? "is draining" : FindUnmet(identity, *ranks, view->epoch);
      if (why.empty()) continue;
      // One that is alive and no member yet brings its inventory, or is cut when that is overdue.
      is_passing =
          is_passing && (is_draining ? worker.info.durable
                                     : !members_.contains(identity) || MayMeetSoon(*view, *ranks));
      if (missing.size() == kMostRanksNamed) {
        missing.push_back("and others");
        break;
      }
      missing.push_back(StrCat("rank ", rank, " (worker \"", identity, "\" ", why, ")"));
    }
    if (missing.empty()) return absl::OkStatus();
    const std::string why = StrJoin(missing, ", ");
    return is_passing ? Recovering(StrCat("the mesh \"", mesh_id, "\" is not ready yet: ", why,
                                          "; try again"))
                      : NotReady(mesh_id, why);
  }

  // `incomplete`, or RECOVERING where all the ranks that are missing are expected back.
  absl::Status ComesBack(const MembershipView& view, const MeshRanks& ranks,
                         const absl::Status& incomplete) const {
    const std::vector<int64_t> missing = view.MissingRanks(ranks);
    std::vector<std::string> names;
    for (const int64_t rank : missing) {
      if (!options_.recovery->ComesBack(ranks.identities[static_cast<size_t>(rank)])) {
        return incomplete;
      }
      if (names.size() < kMostRanksNamed) names.push_back(view.DescribeRank(ranks, rank));
    }
    if (missing.empty()) return incomplete;
    if (missing.size() > names.size()) {
      names.push_back(StrCat(missing.size() - names.size(), " more"));
    }
    return Recovering(StrCat("mesh \"", ranks.mesh_id, "\" waits for ", StrJoin(names, ", "),
                             " to come back; try again"));
  }

  // Whether some worker of the mesh attached, or lost sight of another one, so lately that all may
  // still be finding one another. A worker that pauses is missed by its peers first.
  bool MayMeetSoon(const MembershipView& view, const MeshRanks& ranks) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    constexpr absl::Duration kTimeToMeet = absl::Seconds(5);
    const absl::Time lately = options_.clock->Now() - kTimeToMeet;
    for (const std::string& identity : ranks.identities) {
      const WorkerStatus* const worker = view.FindWorker(identity);
      if (worker != nullptr && worker->attached > lately) return true;
      const auto member = members_.find(identity);
      if (member == members_.end()) continue;
      for (const auto& [peer, since] : member->second.unreached) {
        if (since > lately && ranks.RankOf(peer).has_value()) return true;
      }
    }
    return false;
  }

  static absl::Status NotReady(std::string_view mesh_id, std::string_view why) {
    return rpc::WithRetryDelay(WithReason(absl::FailedPreconditionError(StrCat(
                                              "the mesh \"", mesh_id, "\" is not ready: ", why)),
                                          Reason::kMeshIncomplete),
                               absl::Milliseconds(200));
  }

  absl::StatusOr<std::vector<RankEndpoint>> Endpoints(std::string_view mesh_id) const override {
    const std::shared_ptr<const MembershipView> view = membership_->view();
    const MeshRanks* ranks = view->FindMesh(mesh_id);
    if (ranks == nullptr) {
      return WithReason(absl::NotFoundError(StrCat("there is no mesh named \"", mesh_id, "\"")),
                        Reason::kNotFound);
    }
    std::vector<RankEndpoint> result;
    for (size_t rank = 0; rank < ranks->identities.size(); ++rank) {
      if (view->IsAlive(ranks->identities[rank])) {
        const WorkerInfo& info = view->FindWorker(ranks->identities[rank])->info;
        result.push_back({.rank = static_cast<int64_t>(rank),
                          .identity = info.identity,
                          .incarnation = info.incarnation,
                          .endpoints = info.endpoints});
      }
    }
    return result;
  }

  AttachFailures::Failures FailedAttachesOf(std::string_view identity) const override {
    const absl::Time now = options_.clock->Now();
    absl::MutexLock lock(&mutex_);
    return failed_attaches_.Of(identity, now);
  }

  void Drop(const std::string& mesh_id, const std::vector<std::string>& array_ids) override {
    const std::shared_ptr<const MembershipView> view = membership_->view();
    const MeshRanks* const ranks = view->FindMesh(mesh_id);
    constexpr size_t kPiece = kIdsPerMessage;
    for (size_t first = 0; first < array_ids.size(); first += kPiece) {
      v1::AttachResponse message;
      const size_t end = std::min(array_ids.size(), first + kPiece);
      for (size_t i = first; i < end; ++i) {
        message.mutable_drop_arrays()->add_array_ids(array_ids[i]);
      }
      const auto bytes = Serialise(message);
      absl::MutexLock lock(&mutex_);
      if (ranks != nullptr && told_view_ != nullptr && told_view_->FindMesh(mesh_id) == ranks &&
          !moved_.contains(mesh_id)) {
        for (const std::string& identity : ranks->identities) {
          if (AttachReactor* stream = StreamOf(identity); stream != nullptr) stream->Send(bytes);
        }
      } else {  // the mesh is gone or has moved since, and these may be arrays of the one before
        for (const auto& [identity, member] : members_) member.stream->Send(bytes);
      }
      for (AttachReactor* stream : arriving_) {
        stream->Send(bytes);
      }
    }
  }

  void SendVerdict(const std::string& identity, const InventoryVerdict& verdict) override {
    LogVerdict(identity, 0, verdict);
    absl::MutexLock lock(&mutex_);
    const auto send = [&](AttachReactor* stream) {
      Encode(verdict, /*last=*/false,
             [stream](const v1::AttachResponse& message) { stream->Send(message); });
    };
    if (AttachReactor* stream = StreamOf(identity); stream != nullptr) send(stream);
    for (AttachReactor* stream : arriving_) {
      if (stream->identity() == identity) send(stream);
    }
  }

  int64_t OrderQuarantine(const std::string& identity, v1::QuarantineOrder order,
                          QuarantineAnswered answered) override {
    absl::Status refused;
    {
      absl::MutexLock lock(&mutex_);
      AttachReactor* const stream = StreamOf(identity);
      if (stream == nullptr) {
        refused = NotAttached(identity);
      } else if (orders_.size() >= kMaxOrders) {
        refused = rpc::WithRetryDelay(
            WithReason(
                absl::ResourceExhaustedError(StrCat(
                    orders_.size(), " questions about quarantines wait for workers, of at most ",
                    kMaxOrders, "; ask again later")),
                Reason::kLimitExceeded),
            absl::Seconds(1));
      } else {
        order.set_order_id(++last_order_);
        orders_.emplace(last_order_, Order{.stream = stream, .answered = std::move(answered)});
        v1::AttachResponse message;
        *message.mutable_quarantine_order() = std::move(order);
        stream->Send(message);
        return last_order_;
      }
    }
    std::move(answered)(std::move(refused));
    return 0;
  }
  void ForgetQuarantineOrder(int64_t number) override {
    // What waits for the answer goes without the lock.
    decltype(orders_)::node_type forgotten;
    absl::MutexLock lock(&mutex_);
    forgotten = orders_.extract(number);
  }

  void MembershipChanged() override {
    absl::MutexLock lock(&mutex_);
    changed_ = true;
  }

  void WorkerLost(std::string_view identity, uint64_t attachment) override {
    absl::MutexLock lock(&mutex_);
    const absl::Status lost = WithReason(
        absl::UnavailableError("this attachment has ended; attach again"), Reason::kStaleEpoch);
    // From here on it takes nothing; Leave takes it out when it has ended.
    if (const auto found = members_.find(identity);
        found != members_.end() && found->second.stream->attachment() == attachment) {
      found->second.stream->Cut(lost);
    }
    // Of one that brings its inventory, or whose inventory is taken in.
    for (const auto& [stream, awaited] : attaching_) {
      if (stream->attachment() == attachment) stream->Cut(lost);
    }
  }

  void EndStreams() override {
    stopping_ = true;
    streams_.EndAll();
  }

  // StepTransport.
  void Start(const WorkRef& work, const std::shared_ptr<const std::string>& message) override {
    v1::AttachResponse response;
    v1::RunStep* step = response.mutable_run_step();
    step->ParseFromString(*message);
    step->set_sequence(work.sequence);
    step->set_epoch(work.epoch);
    step->set_term(work.term);
    const auto with_plan = Serialise(response);
    step->clear_plan();
    const auto without_plan = Serialise(response);

    absl::MutexLock lock(&mutex_);
    started_.emplace(work.sequence, with_plan);
    bool all_know = true;
    for (const Participant& participant : work.participants) {
      if (AttachReactor* stream = StreamOf(participant.identity); stream != nullptr) {
        all_know &= stream->LearnPlan(step->plan_hash());
      }
    }
    for (const Participant& participant : work.participants) {
      if (AttachReactor* stream = StreamOf(participant.identity); stream != nullptr) {
        stream->Send(all_know ? without_plan : with_plan);
      }
    }
  }
  void Commit(const WorkRef& work) override { End(work, absl::OkStatus()); }
  void Abort(const WorkRef& work, const absl::Status& reason) override {
    if (work.transfer_id.empty() && !absl::IsCancelled(reason)) {
      options_.flight_log->StepFailed(
          {.work = work, .failed = options_.clock->Now(), .status = reason});
    }
    End(work, reason);
  }

  // From the streams.
  const AttachHubOptions& options() const { return options_; }
  Membership& membership() { return *membership_; }
  ArrayRegistry& registry() { return *registry_; }
  const DefinitionStore& definition_store() const { return *definition_store_; }
  Sequencer& sequencer() { return *sequencer_; }
  StreamSet<AttachReactor>& streams() { return streams_; }
  bool is_stopping() const { return stopping_; }
  void TileStaged(std::string_view transfer_id, int64_t size_bytes) {
    if (tile_listener_) {
      tile_listener_(transfer_id, size_bytes);
    }
  }

  // The stream has so long to come to its next phase, and is cut then.
  void ExpectWithin(AttachReactor* stream, absl::Duration time, std::string_view what) {
    const absl::Time deadline = options_.clock->Now() + time;
    {
      absl::MutexLock lock(&mutex_);
      attaching_.insert_or_assign(
          stream, Awaited{.deadline = deadline, .time = time, .what = std::string(what)});
    }
    overdue_.SetNoLaterThan(deadline);
  }
  // What was expected last has come.
  void ExpectNothing(AttachReactor* stream) {
    absl::MutexLock lock(&mutex_);
    attaching_.erase(stream);
  }
  // Calls `admit` once the stream may bring its inventory: now, or when fewer others do. Until then
  // the stream stays; it leaves its place by Join or Leave.
  void AwaitTurn(AttachReactor* stream, Admit admit) {
    const absl::Time now = options_.clock->Now();
    {
      absl::MutexLock lock(&mutex_);
      if (bringing_.empty() && now - inventories_ended_ >= kInventoriesForgotten) {
        largest_inventory_ = 0;
      }
      if (!HasTurn()) {
        queue_.emplace_back(stream, std::move(admit));
        return;
      }
      bringing_.try_emplace(stream);
    }
    std::move(admit)();
  }
  // The stream has brought so many bytes more. RESOURCE_EXHAUSTED, with a retry delay: they are not
  // kept, since too many wait to be taken in; the first that found it so goes on.
  absl::Status KeepInventory(AttachReactor* stream, int64_t bytes) {
    absl::MutexLock lock(&mutex_);
    const auto found = bringing_.find(stream);
    if (found == bringing_.end()) return absl::OkStatus();  // it has ended
    if (kept_bytes_ + bytes > options_.max_inventory_bytes && beyond_ != stream) {
      if (beyond_ != nullptr) {
        return rpc::WithRetryDelay(
            WithReason(absl::ResourceExhaustedError(StrCat("inventories of ", kept_bytes_,
                                                           " bytes wait to be taken in, the "
                                                           "limit is ",
                                                           options_.max_inventory_bytes,
                                                           "; attach again, and wait for a turn")),
                       Reason::kLimitExceeded),
            absl::Seconds(1));
      }
      beyond_ = stream;
    }
    found->second.bytes += bytes;
    kept_bytes_ += bytes;
    largest_inventory_ = std::max(largest_inventory_, found->second.bytes);
    return absl::OkStatus();
  }
  // The stream has brought its whole inventory and is held: it is taken in on a thread of the
  // hub's, one after the other. There is no deadline for that.
  void AwaitInventory(AttachReactor* stream) {
    absl::MutexLock lock(&mutex_);
    if (const auto found = attaching_.find(stream); found != attaching_.end()) {
      found->second.deadline = absl::InfiniteFuture();
    }
    if (const auto found = bringing_.find(stream); found != bringing_.end()) {
      found->second.is_whole = true;
    }
    inventories_.push_back(stream);
  }
  // Before the verdict on the worker's inventory: what is dropped from then on it hears of.
  void Arrive(AttachReactor* stream) {
    absl::MutexLock lock(&mutex_);
    arriving_.insert(stream);
  }
  void TilesDropped(std::string_view identity, const v1::TilesDropped& dropped) {
    const std::vector<std::string> ids(dropped.array_ids().begin(), dropped.array_ids().end());
    const std::shared_ptr<const MembershipView> view = membership_->view();
    registry_->TilesDropped(ids, [&](std::string_view mesh_id) {
      const MeshRanks* ranks = view->FindMesh(mesh_id);
      return ranks == nullptr ? std::nullopt : ranks->RankOf(identity);
    });
  }
  // The stream's worker takes part from now on; it is told who is alive.
  void Join(AttachReactor* stream) {
    const absl::Time now = options_.clock->Now();
    std::vector<Order> unanswered;
    std::vector<Admit> next;
    {
      absl::MutexLock lock(&mutex_);
      next = EndTurn(stream, now);
      arriving_.erase(stream);
      failed_attaches_.Forget(stream->identity());
      attaching_.erase(stream);
      Member& member = members_[stream->identity()];
      if (member.stream != nullptr) {
        // The same process over another stream. What was on its way on the one before is lost.
        unanswered = TakeOrdersOf(member.stream);
        member.stream->Cut(
            WithReason(absl::UnavailableError("the worker has attached over another stream since"),
                       Reason::kStaleEpoch));
      }
      member = Member{.stream = stream};
      changed_ = true;
    }
    for (Admit& admit : next) std::move(admit)();
    for (Order& order : unanswered) std::move(order.answered)(NotAttached(stream->identity()));
  }
  // The worker did not attach. Its identity is checked, and that it may bear it. Of one that the
  // membership does not know nobody asks: nothing is kept.
  void AttachFailed(const std::string& identity, const absl::Status& status) {
    if (membership_->view()->FindWorker(identity) == nullptr) return;
    const absl::Time now = options_.clock->Now();
    absl::MutexLock lock(&mutex_);
    failed_attaches_.Note(identity, status, now);
  }
  void Leave(AttachReactor* stream) {
    const absl::Time now = options_.clock->Now();
    std::vector<Order> unanswered;
    std::vector<Admit> next;
    {
      absl::MutexLock lock(&mutex_);
      next = EndTurn(stream, now);
      attaching_.erase(stream);
      arriving_.erase(stream);
      if (const auto found = members_.find(stream->identity());
          found != members_.end() && found->second.stream == stream) {
        members_.erase(found);
      }
      unanswered = TakeOrdersOf(stream);
    }
    for (Admit& admit : next) std::move(admit)();
    for (Order& order : unanswered) std::move(order.answered)(NotAttached(stream->identity()));
  }
  void TakeQuarantineAnswer(AttachReactor* stream, const v1::QuarantineAnswer& answer) {
    QuarantineAnswered answered;
    {
      absl::MutexLock lock(&mutex_);
      const auto found = orders_.find(answer.order_id());
      if (found == orders_.end() || found->second.stream != stream) return;
      answered = std::move(found->second.answered);
      orders_.erase(found);
    }
    std::move(answered)(answer);
  }
  // The worker gets no further work; its stream ends when what it has is done.
  void ForgetStream(AttachReactor* stream) {
    membership_->Drain(stream->identity(), true).IgnoreError();  // it may be lost already
    sequencer_->WorkerLeaves(stream->identity(), [this, stream, identity = stream->identity()] {
      absl::MutexLock lock(&mutex_);
      // Unless that stream has ended by itself.
      if (const auto found = members_.find(identity);
          found != members_.end() && found->second.stream == stream) {
        stream->Close(absl::CancelledError("it left"));
      }
    });
  }
  void TakePeersReport(AttachReactor* stream, const v1::PeersReport& report) {
    absl::MutexLock lock(&mutex_);
    const auto found = members_.find(stream->identity());
    if (found != members_.end() && found->second.stream == stream) {
      const absl::Time now = options_.clock->Now();
      std::map<std::string, absl::Time, std::less<>> unreached;
      for (const std::string& peer : report.unreached()) {
        const auto before = found->second.unreached.find(peer);
        unreached.emplace(peer, before == found->second.unreached.end() ? now : before->second);
      }
      found->second.peers_epoch = report.epoch();
      found->second.unreached = std::move(unreached);
      options_.flight_log->PeersReported(stream->identity(),
                                         {report.unreached().begin(), report.unreached().end()});
    }
  }
  void SendPlan(AttachReactor* stream, int64_t sequence) {
    absl::MutexLock lock(&mutex_);
    if (const auto found = started_.find(sequence); found != started_.end()) {
      stream->Send(found->second);
    }
  }

 private:
  struct Order {
    AttachReactor* stream;  // to which it was sent
    QuarantineAnswered answered;
  };
  // A stream that brings its inventory, or has brought it and waits for it to be taken in.
  struct Bringing {
    int64_t bytes = 0;
    bool is_whole = false;
  };
  // Whether one more stream may bring its inventory now. How large it is nobody knows: as large as
  // the largest of late.
  bool HasTurn() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    if (bringing_.empty()) return true;
    if (std::ssize(bringing_) >= options_.max_inventories) return false;
    int64_t expected = largest_inventory_;
    for (const auto& [stream, brought] : bringing_) {
      expected += brought.is_whole ? brought.bytes : std::max(brought.bytes, largest_inventory_);
    }
    return expected <= options_.max_inventory_bytes;
  }
  // The stream's inventory is taken in, or never will be. Returns who comes next, to be called
  // without the lock.
  std::vector<Admit> EndTurn(AttachReactor* stream, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<Admit> admitted;
    const auto ended = bringing_.find(stream);
    if (ended == bringing_.end()) return admitted;
    kept_bytes_ -= ended->second.bytes;
    bringing_.erase(ended);
    inventories_ended_ = now;
    if (beyond_ == stream) beyond_ = nullptr;
    while (!queue_.empty() && HasTurn()) {
      auto [next, admit] = std::move(queue_.front());
      queue_.pop_front();
      bringing_.try_emplace(next);
      admitted.push_back(std::move(admit));
    }
    return admitted;
  }
  // The orders that were sent over this stream and not answered.
  std::vector<Order> TakeOrdersOf(AttachReactor* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<Order> taken;
    for (auto order = orders_.begin(); order != orders_.end();) {
      const auto next = std::next(order);
      if (order->second.stream == stream) {
        taken.push_back(std::move(order->second));
        orders_.erase(order);
      }
      order = next;
    }
    return taken;
  }
  static absl::Status NotAttached(std::string_view identity) {
    return rpc::WithRetryDelay(
        WithReason(absl::UnavailableError(StrCat("worker \"", identity, "\" is not attached")),
                   Reason::kWorkerLost),
        absl::Seconds(1));
  }

  struct Member {
    AttachReactor* stream = nullptr;
    bool told = false;         // it has a snapshot, and each change since
    int64_t peers_epoch = -1;  // of its last report on its peers
    // The peers of that report, each with the time from which on it was reported.
    std::map<std::string, absl::Time, std::less<>> unreached = {};
  };

  // What keeps a worker from a step with these: `does not reach "worker-2"`; empty if nothing.
  // Peers that it does not reach but that serve other meshes alone are no hindrance.
  std::string FindUnmet(std::string_view identity, const MeshRanks& mesh, int64_t epoch) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    const auto found = members_.find(identity);
    if (found == members_.end() || found->second.peers_epoch != epoch) {
      return "has not reached its peers yet";
    }
    std::vector<std::string> apart;
    for (const auto& [peer, since] : found->second.unreached) {
      if (!mesh.RankOf(peer).has_value()) continue;
      if (apart.size() == kMostRanksNamed) {
        apart.push_back("others");
        break;
      }
      apart.push_back(StrCat("\"", peer, "\""));
    }
    return apart.empty() ? "" : StrCat("does not reach ", StrJoin(apart, ", "));
  }

  AttachReactor* StreamOf(std::string_view identity) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = members_.find(identity);
    return found == members_.end() ? nullptr : found->second.stream;
  }

  void End(const WorkRef& work, const absl::Status& status) {
    v1::AttachResponse response;
    if (work.transfer_id.empty()) {
      v1::EndStep* end = response.mutable_end_step();
      end->set_sequence(work.sequence);
      end->set_commit(status.ok());
      if (!status.ok()) {
        rpc::Encode(status, end->mutable_error());
      }
    } else {
      v1::EndTransfer* end = response.mutable_end_transfer();
      end->set_transfer_id(work.transfer_id);
      end->set_commit(status.ok());
      if (!status.ok()) {
        rpc::Encode(status, end->mutable_error());
      }
    }
    const auto bytes = Serialise(response);
    absl::MutexLock lock(&mutex_);
    started_.erase(work.sequence);
    for (const Participant& participant : work.participants) {
      if (AttachReactor* stream = StreamOf(participant.identity); stream != nullptr) {
        stream->Send(bytes);
      }
    }
  }

  // What a stream is to bring, and until when.
  struct Awaited {
    absl::Time deadline;
    absl::Duration time;
    std::string what;
  };

  // The thread that takes in inventories. It ends when none waits: the streams of those that wait
  // end after that.
  void TakeInventories() {
    const auto is_due = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return !inventories_.empty() || ending_;
    };
    for (;;) {
      AttachReactor* stream = nullptr;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(&is_due));
        if (inventories_.empty()) return;
        stream = inventories_.front();
        inventories_.pop_front();
      }
      stream->TakeWholeInventory();
    }
  }

  // The thread that tells workers who is alive. Changes that come while it is at work are told
  // together: when all workers attach at once, most are told of by the hundred.
  void TellOfMembership() {
    std::shared_ptr<const MembershipView> before;  // what was told last
    for (;;) {
      {
        const auto is_due = [this]()
                                ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return changed_ || ending_; };
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(&is_due));
        if (ending_) return;
        changed_ = false;
      }
      const std::shared_ptr<const Definitions> state = definition_store_->shared_state();
      const std::shared_ptr<const MembershipView> view = membership_->view();
      EndUndecided(*view);
      const bool has_change = pages_.Update(view, state);
      std::vector<std::string> moved;  // meshes that others served
      if (before != nullptr) {
        for (const auto& [mesh_id, ranks] : before->meshes) {
          if (!ranks->identities.empty() && view->FindMesh(mesh_id) != ranks.get()) {
            moved.push_back(mesh_id);
          }
        }
      }
      std::optional<std::string> last;  // who was told last
      while (TellSome(*view, has_change, &last)) {
      }
      const absl::Time now = options_.clock->Now();
      absl::MutexLock lock(&mutex_);
      std::erase_if(moved_, [&](const auto& each) { return each.second + kMovedTime <= now; });
      for (std::string& mesh_id : moved) moved_.insert_or_assign(std::move(mesh_id), now);
      told_view_ = view;
      told_state_ = state;
      before = view;
      if (has_change) {
        mutex_.AwaitWithTimeout(absl::Condition(&ending_),
                                kPausePerWorker * static_cast<double>(members_.size()));
      }
    }
  }

  // Streams of workers whose tiles could not be judged for want of their mesh's ranks, which are
  // given now. They attach again at once, and bring their inventories anew. Steps on other meshes
  // that they serve end for that. It happens after a repair that lost the ranks, and where a mesh
  // is defined that the state does not know and workers have tiles on, as after a restore of an
  // older snapshot.
  void EndUndecided(const MembershipView& view) {
    absl::MutexLock lock(&mutex_);
    for (const auto& [identity, member] : members_) {
      const std::string mesh_id = member.stream->TakeDecidable(view);
      if (mesh_id.empty()) continue;
      rpc::LogInfo(
          "a mesh has its ranks now: a worker with tiles on it is to bring its inventory "
          "anew",
          {{"identity", identity}, {"mesh", mesh_id}});
      member.stream->Close(
          WithReason(absl::UnavailableError(StrCat("mesh \"", mesh_id,
                                                   "\" has its ranks now; attach again, so "
                                                   "that the tiles on it are judged")),
                     Reason::kNotServing));
    }
  }

  // Tells the next few after `*last` what is in `view`; false: there are no more. Their pages are
  // chosen without the lock, which heartbeats and steps need.
  bool TellSome(const MembershipView& view, bool has_change, std::optional<std::string>* last) {
    struct Told {
      std::string identity;
      uint64_t attachment = 0;
      bool by_change = false;
      std::vector<MembershipPages::Page> pages = {};
    };
    std::vector<Told> turn;
    bool are_there_more = false;
    {
      absl::MutexLock lock(&mutex_);
      auto next = last->has_value() ? members_.upper_bound(**last) : members_.begin();
      for (; next != members_.end() && std::ssize(turn) < kStreamsPerTurn; ++next) {
        *last = next->first;
        const auto& [identity, member] = *next;
        if (member.told && !has_change) continue;
        const uint64_t attachment = member.stream->attachment();
        // A snapshot has the worker itself. One that attached after the view was made has asked to
        // be told, and is told of the next.
        const WorkerStatus* const worker = view.FindWorker(identity);
        if (!member.told && (worker == nullptr || worker->attachment != attachment)) continue;
        turn.push_back({.identity = identity, .attachment = attachment, .by_change = member.told});
      }
      are_there_more = next != members_.end();
    }
    for (Told& each : turn) {
      each.pages =
          each.by_change ? pages_.ChangeFor(each.identity) : pages_.SnapshotFor(each.identity);
    }
    absl::MutexLock lock(&mutex_);
    for (const Told& each : turn) {
      const auto found = members_.find(each.identity);
      // One that left, or came anew meanwhile: the latter has asked to be told.
      if (found == members_.end() || found->second.stream->attachment() != each.attachment) {
        continue;
      }
      for (const MembershipPages::Page& page : each.pages) found->second.stream->Send(page);
      found->second.told = true;
    }
    return are_there_more;
  }

  void CutOverdue() {
    const absl::Time now = options_.clock->Now();
    absl::Time next = absl::InfiniteFuture();
    absl::MutexLock lock(&mutex_);
    for (auto it = attaching_.begin(); it != attaching_.end();) {
      const Awaited& awaited = it->second;
      if (awaited.deadline > now) {
        next = std::min(next, awaited.deadline);
        ++it;
        continue;
      }
      it->first->Cut(WithReason(
          absl::DeadlineExceededError(StrCat("the stream did not bring its ", awaited.what,
                                             " within ", rpc::FormatRounded(awaited.time))),
          Reason::kDeadline));
      attaching_.erase(it++);
    }
    overdue_.SetNoLaterThan(next);
  }

  Membership* const membership_;
  ArrayRegistry* const registry_;
  const DefinitionStore* const definition_store_;
  const AttachHubOptions options_;
  Sequencer* sequencer_ = nullptr;  // set before workers attach, as is the listener
  TileListener tile_listener_;
  AttachService service_;
  StreamSet<AttachReactor> streams_;
  std::atomic<bool> stopping_ = false;  // streams end because the coordinator does
  MembershipPages pages_;               // of the teller's thread

  mutable absl::Mutex mutex_;
  std::map<std::string, Member, std::less<>> members_ ABSL_GUARDED_BY(mutex_);
  std::set<AttachReactor*> arriving_ ABSL_GUARDED_BY(mutex_);  // between Arrive and Join
  AttachFailures failed_attaches_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Order> orders_ ABSL_GUARDED_BY(mutex_);  // that were not answered, by id
  int64_t last_order_ ABSL_GUARDED_BY(mutex_) = 0;
  // Live steps, as they are sent to a worker that lacks the plan.
  absl::flat_hash_map<int64_t, std::shared_ptr<const grpc::ByteBuffer>> started_
      ABSL_GUARDED_BY(mutex_);
  // Streams that are no members yet, and what they are to bring next.
  absl::flat_hash_map<AttachReactor*, Awaited> attaching_ ABSL_GUARDED_BY(mutex_);
  // Streams that bring their inventories, and those that wait until fewer do, in order.
  absl::flat_hash_map<AttachReactor*, Bringing> bringing_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::pair<AttachReactor*, Admit>> queue_ ABSL_GUARDED_BY(mutex_);
  int64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;         // of bringing_, all together
  int64_t largest_inventory_ ABSL_GUARDED_BY(mutex_) = 0;  // of late
  // When the last of bringing_ ended so far.
  absl::Time inventories_ended_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // Which of bringing_ goes on beyond max_inventory_bytes; null: none has come to that.
  AttachReactor* beyond_ ABSL_GUARDED_BY(mutex_) = nullptr;
  // Streams whose inventories are to be taken in; each is held.
  std::deque<AttachReactor*> inventories_ ABSL_GUARDED_BY(mutex_);
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;  // somebody may have to be told of something
  // What all members were told of; null before the first.
  std::shared_ptr<const MembershipView> told_view_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Definitions> told_state_ ABSL_GUARDED_BY(mutex_);
  // Meshes that others served a moment ago, and when their members were told.
  std::map<std::string, absl::Time, std::less<>> moved_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread teller_;
  std::thread taker_;
  rpc::Alarm overdue_;  // last: its destructor waits for CutOverdue
};

AttachReactor::AttachReactor(Hub* hub, grpc::CallbackServerContext* context)
    : hub_(hub),
      context_(context),
      outbox_(kOutboxBytes, [this](const grpc::ByteBuffer* m) { StartWrite(m); }) {
  hub_->ExpectWithin(this, hub_->options().hello_timeout, "hello");
  hub_->streams().Add(this);
  StartRead(&read_);
}

void AttachReactor::Send(std::shared_ptr<const grpc::ByteBuffer> message) {
  const auto size_bytes = static_cast<int64_t>(message->Length());
  if (size_bytes > kMaxMessageBytes) {
    // gRPC would end the stream for it. What makes long messages checks their length before.
    rpc::LogError("a message to a worker is too long, and was not sent",
                  {{"identity", hello_.identity()},
                   {"size_bytes", size_bytes},
                   {"limit_bytes", kMaxMessageBytes}});
    return;
  }
  if (const absl::Status pushed = outbox_.Push(std::move(message), size_bytes);
      absl::IsResourceExhausted(pushed)) {
    Cut(pushed);
  }
}

void AttachReactor::Cut(const absl::Status& status) {
  Close(status);
  // It does not read: what waits will not leave, and neither would a status. The write under way
  // fails, the outbox then drops what waits, and the stream ends as Close has it.
  context_->TryCancel();
}

uint64_t AttachReactor::attachment() const {
  absl::MutexLock lock(&mutex_);
  return attachment_;
}

void AttachReactor::Close(absl::Status status) {
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) {
      return;
    }
    closed_ = true;
    if (attachment_ != 0 && !absl::IsCancelled(status)) {
      end_reason_ = std::string(status.message());
    }
    if (holds_ > 0) {
      close_status_ = std::move(status);
      return;  // Release closes.
    }
  }
  FinishWith(std::move(status));
}

absl::Status AttachReactor::Hold(std::string_view what) {
  absl::MutexLock lock(&mutex_);
  // Once the reaction that is under way returns, nothing keeps a closed stream.
  if (closed_) return absl::CancelledError(StrCat("it was closed before ", what));
  ++holds_;
  return absl::OkStatus();
}

void AttachReactor::Release() {
  std::optional<absl::Status> closed;
  {
    absl::MutexLock lock(&mutex_);
    if (--holds_ > 0) return;
    if (closed_) closed = std::move(close_status_);
  }
  // Until holds_ was 0 nobody finished the stream; from there on this may be gone.
  if (closed.has_value()) FinishWith(*std::move(closed));
}

bool AttachReactor::is_closed() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

void AttachReactor::FinishWith(absl::Status status) {
  outbox_.Close(RawOutbox::kFlush,
                [this, status = std::move(status)] { Finish(rpc::ToGrpc(status)); });
}

void AttachReactor::LeftUndecided(std::set<std::string> mesh_ids) {
  absl::MutexLock lock(&mutex_);
  undecided_.merge(mesh_ids);
}

std::string AttachReactor::TakeDecidable(const MembershipView& view) {
  absl::MutexLock lock(&mutex_);
  for (const std::string& mesh_id : undecided_) {
    const MeshRanks* const ranks = view.FindMesh(mesh_id);
    if (ranks == nullptr || ranks->identities.empty()) continue;
    std::string found = mesh_id;
    undecided_.clear();  // the stream ends for it
    return found;
  }
  return "";
}

bool AttachReactor::LearnPlan(const std::string& plan_hash) {
  absl::MutexLock lock(&mutex_);
  if (plans_.size() >= kMaxPlansKnown) plans_.clear();
  return !plans_.insert(plan_hash).second;
}

void AttachReactor::OnReadDone(bool ok) {
  if (!ok) {
    return Close(absl::CancelledError("its stream broke"));
  }
  v1::AttachRequest request;
  if (const absl::Status parsed = rpc::ParseMessage(&read_, &request); !parsed.ok()) {
    return Close(parsed);
  }
  // While endpoints are verified nothing is read: Verified, perhaps on another thread already, goes
  // on.
  const bool is_hello = phase_ == Phase::kHello;
  if (const absl::Status taken = Take(request); !taken.ok()) {
    return Close(taken);
  }
  if (!is_hello) {
    StartRead(&read_);
  }
}

void AttachReactor::OnDone() {
  hub_->Leave(this);
  uint64_t attachment = 0;
  std::string reason;
  {
    absl::MutexLock lock(&mutex_);
    attachment = attachment_;
    reason = end_reason_;
  }
  // A worker that is sent away because the coordinator stops is not missing: its tiles are there
  // when both meet again, and who still asks hears of the stop.
  if (attachment != 0 && !hub_->is_stopping()) {
    hub_->membership().Detach(attachment, std::move(reason));
  }
  hub_->streams().Remove(this);
  delete this;
}

absl::Status AttachReactor::Take(const v1::AttachRequest& request) {
  using Message = v1::AttachRequest;
  if (phase_ == Phase::kHello) {
    if (request.message_case() != Message::kHello) {
      return rpc::BadField("hello", "is missing; it must be the first message");
    }
    return TakeHello(request.hello());
  }
  uint64_t attachment = 0;
  {
    absl::MutexLock lock(&mutex_);
    attachment = attachment_;
  }
  switch (request.message_case()) {
    case Message::kHello:
      return rpc::BadField("hello", "comes a second time");
    case Message::kInventory:
      if (phase_ == Phase::kInventory) return TakeInventory(attachment, request.inventory());
      if (phase_ == Phase::kTaking) {
        return rpc::BadField("inventory", "comes after its last page, and before the verdict");
      }
      return TakeRestored(attachment, request.inventory());
    case Message::kHeartbeat:
      return TakeHeartbeat(attachment, request.heartbeat());
    case Message::kTileStaged:
      return TakeTileStaged(request.tile_staged());
    case Message::kStepReport:
      return TakeStepReport(request.step_report());
    case Message::kPeers:
      hub_->TakePeersReport(this, request.peers());
      return absl::OkStatus();
    case Message::kTilesDropped:
      hub_->TilesDropped(identity(), request.tiles_dropped());
      return absl::OkStatus();
    case Message::kQuarantineAnswer:
      hub_->TakeQuarantineAnswer(this, request.quarantine_answer());
      return absl::OkStatus();
    case Message::kLeaving: {
      {
        absl::MutexLock lock(&mutex_);
        end_reason_ = StrCat("it left: ", request.leaving().reason());
      }
      if (phase_ != Phase::kMember) return absl::CancelledError("it left before it took part");
      hub_->ForgetStream(this);
      return absl::OkStatus();
    }
    case Message::MESSAGE_NOT_SET:
      break;  // of a newer worker: not for us
  }
  return absl::OkStatus();
}

absl::Status AttachReactor::TakeHello(const v1::Hello& hello) {
  SHARDMESH_FAILPOINT("attach.hello");
  SHARDMESH_RETURN_IF_ERROR(rpc::CheckIdentity(hello.identity(), "hello.identity"));
  if (const absl::Status caller = rpc::CheckCaller(hub_->options().credentials, *context_,
                                                   {rpc::PeerRole::kWorker, hello.identity()});
      !caller.ok()) {
    rpc::LogWarning("attach refused", {{"identity", hello.identity()}, {"error", caller}});
    return caller;
  }
  if (const absl::Status checked = CheckHello(hello, hub_->options()); !checked.ok()) {
    hub_->AttachFailed(hello.identity(), checked);
    return checked;
  }
  hello_ = hello;
  phase_ = Phase::kVerifying;
  hub_->ExpectNothing(this);  // the check of its endpoints ends by itself
  SHARDMESH_RETURN_IF_ERROR(Hold("its endpoints were asked"));
  EndpointCheck::Start(hello_, hub_->options(),
                       [this](std::vector<std::string> endpoints, std::string failures) {
                         Verified(std::move(endpoints), std::move(failures));
                       });
  return absl::OkStatus();
}

void AttachReactor::Verified(std::vector<std::string> endpoints, std::string failures) {
  if (endpoints.empty()) return TurnCame({}, failures);  // it brings no inventory
  hub_->AwaitTurn(
      this, [this, endpoints = std::move(endpoints), failures = std::move(failures)]() mutable {
        TurnCame(std::move(endpoints), failures);
      });
}

void AttachReactor::TurnCame(std::vector<std::string> endpoints, const std::string& failures) {
  Admit(std::move(endpoints), failures);
  Release();
}

void AttachReactor::Admit(std::vector<std::string> endpoints, const std::string& failures) {
  SHARDMESH_PASSES("attach.admit");
  if (is_closed()) return;
  if (endpoints.empty()) {
    const absl::Status unverified =
        WithReason(absl::FailedPreconditionError(StrCat(
                       "no endpoint of worker \"", hello_.identity(),
                       "\" leads back to it; advertise an address that the coordinator reaches (",
                       failures, ")")),
                   Reason::kEndpointUnverified);
    hub_->AttachFailed(hello_.identity(), unverified);
    return Close(unverified);
  }
  WorkerInfo info;
  info.identity = hello_.identity();
  info.incarnation = hello_.incarnation();
  info.build_version = hello_.build().version();
  info.endpoints = std::move(endpoints);
  info.exchange_port = hello_.exchange_port();
  info.pid = hello_.pid();
  info.host = hello_.boot_id();
  info.capacity_bytes = hello_.capacity().memory_bytes();
  info.durable = hello_.capacity().durable();
  const absl::StatusOr<uint64_t> attachment = hub_->membership().Attach(std::move(info));
  if (!attachment.ok()) {
    hub_->AttachFailed(hello_.identity(), attachment.status());
    return Close(attachment.status());
  }
  {
    absl::MutexLock lock(&mutex_);
    attachment_ = *attachment;
  }
  rpc::LogInfo("worker attached", {{"identity", hello_.identity()}, {"pid", hello_.pid()}});

  const MembershipOptions& timing = hub_->membership().options();
  v1::AttachResponse response;
  v1::Welcome* welcome = response.mutable_welcome();
  welcome->set_cluster_id(hub_->options().cluster_id);
  welcome->set_term(hub_->options().term);
  welcome->set_protocol(kProtocolVersion);
  rpc::Encode(timing.heartbeat_interval, welcome->mutable_heartbeat_interval());
  rpc::Encode(timing.lost_after, welcome->mutable_heartbeat_limit());
  welcome->set_token_key(hub_->options().token_key);
  welcome->mutable_build()->set_version(hub_->options().build_version);
  clock_told_ = hub_->options().clock->Now();
  rpc::Encode(clock_told_, welcome->mutable_coordinator_time());
  Send(response);
  hub_->ExpectWithin(this, hub_->options().inventory_timeout, "whole inventory");
  phase_ = Phase::kInventory;
  StartRead(&read_);
  SHARDMESH_PASSES("attach.admitted");
}

absl::Status AttachReactor::TakeInventory(uint64_t attachment, const v1::InventoryPage& page) {
  SHARDMESH_FAILPOINT("attach.inventory");
  // A page is a sign of life: heartbeats queue behind those that the worker has sent at once.
  SHARDMESH_RETURN_IF_ERROR(Beat(attachment));
  const int64_t all_tiles = std::ssize(inventory_) + page.tiles_size() + std::ssize(quarantined_) +
                            page.quarantined_array_ids_size();
  if (all_tiles > hub_->options().max_inventory_tiles) {
    return WithReason(
        absl::ResourceExhaustedError(
            StrCat("worker \"", hello_.identity(), "\" brings ", all_tiles,
                   " tiles and more, the limit is ", hub_->options().max_inventory_tiles,
                   "; release arrays, or start the coordinator with more --max-inventory-tiles")),
        Reason::kLimitExceeded);
  }
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<InventoryTile> tiles, TilesOf(page));
  SHARDMESH_RETURN_IF_ERROR(hub_->KeepInventory(this, SizeOf(tiles, page.quarantined_array_ids())));
  inventory_.insert(inventory_.end(), std::make_move_iterator(tiles.begin()),
                    std::make_move_iterator(tiles.end()));
  quarantined_.insert(quarantined_.end(), page.quarantined_array_ids().begin(),
                      page.quarantined_array_ids().end());
  if (!page.last()) {
    return absl::OkStatus();
  }
  SHARDMESH_RETURN_IF_ERROR(Hold("its inventory was taken in"));
  phase_ = Phase::kTaking;
  hub_->AwaitInventory(this);
  return absl::OkStatus();
}

namespace {

// Removes the descriptors of partial sums whose mesh is not at the array's revision any more, so
// that they are not adopted. Ranks can hold different values for the same place of a partial sum:
// only the revision tells which rank had which. For other arrays the place is enough.
void LeaveDoubtfulSums(const Definitions& state, std::vector<InventoryTile>* tiles) {
  std::map<std::string, Revision> revisions;  // 0: there is no such mesh
  for (InventoryTile& tile : *tiles) {
    if (!tile.descriptor.has_value() || tile.descriptor->spec.unreduced().empty()) continue;
    const auto [found, is_new] = revisions.try_emplace(tile.descriptor->mesh_id, 0);
    if (is_new) {
      const auto mesh = state.Find(DefinitionKind::kMesh, tile.descriptor->mesh_id);
      if (mesh.ok()) found->second = (*mesh)->revision;
    }
    if (found->second != tile.descriptor->mesh_revision) tile.descriptor.reset();
  }
}

}  // namespace

void AttachReactor::TakeWholeInventory() {
  if (!is_closed()) {
    hub_->Arrive(this);
    const uint64_t attachment = this->attachment();
    // Before the view, which then has them all.
    const std::vector<ServedRank> serves = hub_->membership().RanksOf(identity());
    const std::shared_ptr<const MembershipView> view = hub_->membership().view();
    const std::shared_ptr<const Definitions> state = hub_->definition_store().shared_state();
    const auto mesh_of = [&](std::string_view mesh_id) {
      InventoryMesh mesh;
      if (const MeshRanks* const ranks = view->FindMesh(mesh_id); ranks != nullptr) {
        mesh.rank = ranks->RankOf(identity());
        mesh.identities = ranks->identities;
      }
      if (const auto definition = state->FindMesh(mesh_id); definition.ok()) {
        mesh.mesh = &(*definition)->mesh;
      }
      return mesh;
    };
    std::set<std::string> undecided;
    std::map<std::string, InventoryMesh, std::less<>> others;
    Inventory inventory{.identity = identity(),
                        .attachment = attachment,
                        .meshes = {},
                        .tiles = std::exchange(inventory_, {}),
                        .quarantined = std::exchange(quarantined_, {}),
                        // Asked for each tile, under the registry's lock.
                        .other_mesh = [&](std::string_view mesh_id) {
                          auto found = others.find(mesh_id);
                          if (found == others.end()) {
                            InventoryMesh mesh = mesh_of(mesh_id);
                            // The mesh got its ranks after `serves` was read.
                            if (mesh.rank.has_value()) mesh = {.mesh = mesh.mesh};
                            if (mesh.identities.empty()) undecided.emplace(mesh_id);
                            found = others.emplace(mesh_id, mesh).first;
                          }
                          return found->second;
                        }};
    // Every mesh that the worker serves, so that arrays that it lacks are known to lack it.
    for (const ServedRank& served : serves) {
      inventory.meshes.emplace(served.mesh_id, mesh_of(served.mesh_id));
    }
    LeaveDoubtfulSums(*state, &inventory.tiles);
    const InventoryVerdict verdict = hub_->registry().TakeInventory(inventory);
    LogVerdict(identity(), static_cast<int64_t>(inventory.tiles.size()), verdict);
    LeftUndecided(std::move(undecided));
    // Not of one that was lost meanwhile: its tiles were not counted.
    if (const absl::Status alive = Beat(attachment); !alive.ok()) {
      Close(alive);
    } else if (!is_closed()) {
      phase_ = Phase::kJudged;
      SendVerdict(verdict, /*last=*/true);
      hub_->Join(this);
      phase_ = Phase::kMember;
      if (hub_->options().joined) {
        hub_->options().joined(identity());
      }
    }
  }
  Release();
}

absl::Status AttachReactor::Beat(uint64_t attachment) {
  int64_t used_bytes = 0;
  QuarantineCount quarantine;
  {
    absl::MutexLock lock(&mutex_);
    used_bytes = used_bytes_;
    quarantine = quarantine_;
  }
  return hub_->membership().Heartbeat(attachment, used_bytes, quarantine);
}

absl::StatusOr<std::vector<InventoryTile>> AttachReactor::TilesOf(
    const v1::InventoryPage& page) const {
  std::vector<InventoryTile> tiles;
  tiles.reserve(static_cast<size_t>(page.tiles_size()));
  for (const v1::HeldTile& held : page.tiles()) {
    InventoryTile& tile = tiles.emplace_back();
    tile.array_id = held.array().array_id();
    SHARDMESH_ASSIGN_OR_RETURN(tile.tile, rpc::Decode(held.tile()));
    tile.crc32c = held.crc32c();
    tile.committed = held.committed();
    tile.on_disk = held.durability() == v1::DURABILITY_DISK;
  }
  for (const size_t unknown : hub_->registry().FindUnknown(tiles)) {
    // What cannot be read is not adopted.
    if (absl::StatusOr<ArrayDescriptor> array =
            rpc::Decode(page.tiles(static_cast<int>(unknown)).array());
        array.ok()) {
      tiles[unknown].descriptor = *std::move(array);
    }
  }
  return tiles;
}

absl::Status AttachReactor::TakeRestored(uint64_t attachment, const v1::InventoryPage& page) {
  const std::shared_ptr<const MembershipView> view = hub_->membership().view();
  const std::shared_ptr<const Definitions> state = hub_->definition_store().shared_state();
  Inventory restored{
      .identity = hello_.identity(), .attachment = attachment, .meshes = {}, .tiles = {}};
  SHARDMESH_ASSIGN_OR_RETURN(restored.tiles, TilesOf(page));
  LeaveDoubtfulSums(*state, &restored.tiles);
  std::set<std::string> undecided;
  for (const v1::HeldTile& held : page.tiles()) {
    const std::string& mesh_id = held.array().mesh_id();
    const MeshRanks* const ranks = view->FindMesh(mesh_id);
    if (ranks == nullptr || ranks->identities.empty()) {
      undecided.insert(mesh_id);
      continue;
    }
    const auto [found, is_new] = restored.meshes.try_emplace(mesh_id);
    if (!is_new) continue;
    found->second.rank = ranks->RankOf(hello_.identity());
    found->second.identities = ranks->identities;
    if (const auto definition = state->FindMesh(mesh_id); definition.ok()) {
      found->second.mesh = &(*definition)->mesh;
    }
  }
  const InventoryVerdict verdict = hub_->registry().TakeRestored(restored);
  LogVerdict(hello_.identity(), std::ssize(restored.tiles), verdict);
  SendVerdict(verdict, /*last=*/false);
  if (!undecided.empty()) {
    LeftUndecided(std::move(undecided));
    hub_->MembershipChanged();  // they may have got their ranks meanwhile
  }
  return absl::OkStatus();
}

void AttachReactor::SendVerdict(const InventoryVerdict& verdict, bool last) {
  Encode(verdict, last, [this](const v1::AttachResponse& response) { Send(response); });
}

absl::Status AttachReactor::TakeHeartbeat(uint64_t attachment, const v1::Heartbeat& heartbeat) {
  SHARDMESH_FAILPOINT("attach.heartbeat");
  {
    absl::MutexLock lock(&mutex_);
    used_bytes_ = heartbeat.used_bytes();
    quarantine_ = {.arrays = heartbeat.quarantined_arrays(),
                   .size_bytes = heartbeat.quarantined_bytes()};
  }
  SHARDMESH_RETURN_IF_ERROR(Beat(attachment));
  const absl::Time now = hub_->options().clock->Now();
  if (now - clock_told_ >= kClockInterval) {
    clock_told_ = now;
    v1::AttachResponse response;
    rpc::Encode(now, response.mutable_clock()->mutable_time());
    Send(response);
  }
  FlightLog::Heartbeat heard{.sent = now};
  if (heartbeat.has_send_time()) {
    SHARDMESH_ASSIGN_OR_RETURN(heard.sent, rpc::Decode(heartbeat.send_time()));
  }
  for (const v1::StepProgress& running : heartbeat.progress()) {
    SHARDMESH_ASSIGN_OR_RETURN(heard.progress.emplace_back(), rpc::Decode(running));
  }
  for (const v1::FlightRecord& record : heartbeat.records()) {
    SHARDMESH_ASSIGN_OR_RETURN(heard.records.emplace_back(), rpc::Decode(record));
  }
  if (heartbeat.has_links()) {
    std::vector<rpc::MeasuredLink> links;
    for (const v1::MeasuredLink& link : heartbeat.links().links()) {
      SHARDMESH_ASSIGN_OR_RETURN(links.emplace_back(), rpc::Decode(link));
      links.back().measured += now - heard.sent;
    }
    hub_->options().link_table->Reported(hello_.identity(), hello_.incarnation(), std::move(links));
  }
  hub_->options().flight_log->Heard(hello_.identity(), hello_.incarnation(), std::move(heard), now);
  return absl::OkStatus();
}

absl::Status AttachReactor::TakeTileStaged(const v1::TileStaged& staged) {
  SHARDMESH_FAILPOINT("attach.tile_staged");
  RankReport report;
  report.identity = hello_.identity();
  report.rank = staged.rank();
  report.tiles.push_back({.array_id = staged.array_id(),
                          .crc32c = staged.crc32c(),
                          .size_bytes = staged.size_bytes(),
                          .on_disk = staged.durability() == v1::DURABILITY_DISK});
  hub_->TileStaged(staged.transfer_id(), staged.size_bytes());
  const absl::Status reported =
      hub_->sequencer().ReportTransfer(staged.transfer_id(), staged.term(), std::move(report));
  if (!reported.ok()) {
    // It came too late: the tile is to go, as those that were staged in time have.
    v1::AttachResponse response;
    v1::EndTransfer* end = response.mutable_end_transfer();
    end->set_transfer_id(staged.transfer_id());
    rpc::Encode(reported, end->mutable_error());
    Send(response);
  }
  return absl::OkStatus();
}

absl::Status AttachReactor::TakeStepReport(const v1::StepReport& report) {
  SHARDMESH_FAILPOINT("attach.step_report");
  if (report.outcome() == v1::StepReport::OUTCOME_NEED_PLAN) {
    hub_->SendPlan(this, report.sequence());
    return absl::OkStatus();
  }
  RankReport result;
  result.identity = hello_.identity();
  result.rank = report.rank();
  result.done = true;
  if (report.outcome() != v1::StepReport::OUTCOME_DONE) {
    result.blamed_identity = report.blamed_identity();
    result.status = rpc::Decode(report.error());
    if (result.status.ok()) {
      result.status = absl::InternalError("the worker names no error");
    }
  }
  for (const v1::StagedOutput& output : report.outputs()) {
    result.tiles.push_back({.array_id = output.array_id(),
                            .crc32c = output.crc32c(),
                            .size_bytes = output.size_bytes()});
  }
  result.detail = report.SerializeAsString();
  const absl::Status reported = hub_->sequencer().ReportStep(report.sequence(), report.epoch(),
                                                             report.term(), std::move(result));
  if (!reported.ok()) {
    rpc::LogDebug("report of a step that has ended",
                  {{"identity", hello_.identity()}, {"sequence", report.sequence()}});
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<AttachHub> AttachHub::Create(Membership* membership, ArrayRegistry* registry,
                                             const DefinitionStore* definition_store,
                                             AttachHubOptions options) {
  return std::make_unique<Hub>(membership, registry, definition_store, std::move(options));
}

}  // namespace shardmesh::server
