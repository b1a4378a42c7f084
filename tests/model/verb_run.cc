// Each verb with a kill of each process at each of its phases.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "shardmesh/v1/operation_service.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/model/dice.h"
#include "tests/model/expectations.h"
#include "tests/model/process_cluster.h"
#include "tests/model/remains.h"
#include "tests/model/runs.h"
#include "tests/model/verb.h"

namespace shardmesh::model {
namespace {

constexpr absl::Duration kReadyAgainWithin = absl::Seconds(60);
constexpr absl::Duration kReadableWithin = absl::Seconds(20);
constexpr absl::Duration kVerbTakes = absl::Seconds(60);
constexpr absl::Duration kHitWithin = absl::Seconds(5);
// A process is armed again if it passes the failpoint too early.
constexpr int kMaxArmings = 5;
constexpr absl::Duration kPoll = absl::Milliseconds(2);
constexpr absl::Duration kAttemptDelay = absl::Milliseconds(100);
// The time in which the coordinator notices that a worker has ended.
constexpr absl::Duration kEndIsNoticed = absl::Milliseconds(100);
// The time in which a worker that has attached commits its tiles.
constexpr absl::Duration kCommitTakes = absl::Milliseconds(300);
// How long a session lives without its client. The client that is killed has the short time.
constexpr absl::Duration kShortTtl = absl::Seconds(2);
constexpr absl::Duration kLongTtl = absl::Minutes(10);

constexpr int kCoordinator = 0;
constexpr int kFirstWorker = 1;  // rank 0; it leads saves
constexpr int kLoser = 2;        // the worker whose tiles a repair brings back; kReplacedWorker
constexpr int kSpare = 3;        // kReplacingWorker, which only the cluster with a spare has
constexpr int kClient = -1;

// A phase of a verb: the moment at which a process passes a failpoint.
struct Phase {
  Verb verb;
  const char* title;
  int process;
  const char* failpoint;
  int pass = 1;
};

// The cluster that a verb runs on.
enum class Kind {
  kUsual,       // two workers, files, and a second mesh
  kShort,       // the same with kShortMemory
  kWithASpare,  // no second mesh, whose definition would name its workers, and a third worker
};

Kind KindOf(Verb verb) {
  if (verb == Verb::kUnload) return Kind::kShort;
  return verb == Verb::kReplace ? Kind::kWithASpare : Kind::kUsual;
}

// The failpoints are passed by no other work between the start of their process and the verb.
std::vector<Phase> AllPhases() {
  std::vector<Phase> phases = {
      {Verb::kPut, "begins", kCoordinator, "transfer.begin"},
      {Verb::kPut, "a tile begins", kFirstWorker, "put.open"},
      {Verb::kPut, "bytes move", kFirstWorker, "put.append", 2},
      {Verb::kPut, "the bytes have come", kFirstWorker, "put.finish"},
      {Verb::kPut, "some tiles are there", kCoordinator, "attach.tile_staged", 2},
      // The first tile of a worker is handed over, the second one streamed.
      {Verb::kHandOver, "begins", kCoordinator, "transfer.begin"},
      {Verb::kHandOver, "the memory has come", kFirstWorker, "put.open"},
      {Verb::kHandOver, "the memory is the tile", kFirstWorker, "put.finish"},
      {Verb::kHandOver, "a tile is complete", kFirstWorker, "tiles.finish"},
      {Verb::kHandOver, "some tiles are there", kCoordinator, "attach.tile_staged", 2},
      {Verb::kHandOver, "before its commit", kCoordinator, "transfer.commit_to_registry"},
      {Verb::kHandOver, "the commit reaches a worker", kFirstWorker, "link.end_transfer"},
      {Verb::kHandOver, "a worker commits its tiles", kFirstWorker, "tiles.commit"},
      {Verb::kLoad, "files are checked", kFirstWorker, "fill.check"},
      {Verb::kLoad, "begins", kCoordinator, "transfer.begin"},
      {Verb::kLoad, "the order comes", kFirstWorker, "link.fill_tiles"},
      {Verb::kLoad, "bytes move", kFirstWorker, "fill.read"},
      {Verb::kLoad, "the bytes have come", kFirstWorker, "fill.finish"},
      {Verb::kLoad, "some tiles are there", kCoordinator, "attach.tile_staged", 2},
      {Verb::kReuse, "begins", kCoordinator, "transfer.begin"},
      {Verb::kReuse, "the order comes", kFirstWorker, "link.fill_tiles"},
      {Verb::kReuse, "own bytes are copied", kFirstWorker, "fill.copy"},
      {Verb::kReuse, "bytes of the other worker move", kFirstWorker, "fill.receive"},
      {Verb::kReuse, "the bytes have come", kFirstWorker, "fill.finish"},
      {Verb::kReuse, "some tiles are there", kCoordinator, "attach.tile_staged", 2},
      {Verb::kReuse, "before its commit", kCoordinator, "transfer.commit_to_registry"},
      {Verb::kReuse, "after its commit", kCoordinator, "registry.apply"},
      {Verb::kReuse, "the commit reaches a worker", kFirstWorker, "link.end_transfer"},
      {Verb::kReuse, "a worker commits its tiles", kFirstWorker, "tiles.commit"},
      {Verb::kUnload, "begins", kCoordinator, "transfer.begin"},
      {Verb::kUnload, "the old tile is to leave memory", kFirstWorker, "tiles.unload"},
      {Verb::kUnload, "bytes move", kFirstWorker, "fill.receive"},
      {Verb::kUnload, "the bytes have come", kFirstWorker, "fill.finish"},
      {Verb::kUnload, "some tiles are there", kCoordinator, "attach.tile_staged"},
      {Verb::kUnload, "before its commit", kCoordinator, "transfer.commit_to_registry"},
      {Verb::kUnload, "after its commit", kCoordinator, "registry.apply"},
      {Verb::kUnload, "the old array is released", kCoordinator, "registry.tell_released"},
      {Verb::kUnload, "the commit reaches a worker", kFirstWorker, "link.end_transfer"},
      {Verb::kUnload, "a worker commits its tiles", kFirstWorker, "tiles.commit"},
      {Verb::kReshardDisk, "begins", kCoordinator, "transfer.begin"},
      {Verb::kReshardDisk, "bytes move", kFirstWorker, "fill.receive"},
      {Verb::kReshardDisk, "the bytes have come", kFirstWorker, "fill.finish"},
      {Verb::kReshardDisk, "some tiles are there", kCoordinator, "attach.tile_staged", 2},
      {Verb::kReshardMesh, "begins", kCoordinator, "transfer.begin"},
      {Verb::kReshardMesh, "workers connect", kFirstWorker, "fill.connect"},
      {Verb::kReshardMesh, "bytes move", kFirstWorker, "fill.receive"},
      {Verb::kReshardMesh, "the bytes have come", kFirstWorker, "fill.finish"},
      {Verb::kReshardTree, "the second array begins", kCoordinator, "transfer.begin", 2},
      {Verb::kReshardTree, "bytes of the second array move", kFirstWorker, "link.fill_tiles", 2},
      {Verb::kReshardTree, "an old array is released", kCoordinator, "registry.tell_released"},
      {Verb::kReshardStep, "begins", kFirstWorker, "step.fetch_operands", 2},
      {Verb::kReshardStep, "the bytes have come", kFirstWorker, "step.stage_outputs", 2},
      {Verb::kReshardStep, "some tiles are there", kCoordinator, "attach.step_report", 4},
      {Verb::kReshardStep, "before the workers are told", kCoordinator, "sequencer.decide", 2},
      {Verb::kReshardStep, "after its commit", kFirstWorker, "link.end_step", 2},
      // The client sends four tiles first.
      {Verb::kReplicate, "the first copy begins", kCoordinator, "replicas.begin_transfer"},
      {Verb::kReplicate, "the second copy begins", kCoordinator, "replicas.begin_transfer", 2},
      {Verb::kReplicate, "the order comes", kFirstWorker, "link.fill_tiles"},
      {Verb::kReplicate, "workers connect", kFirstWorker, "fill.connect"},
      {Verb::kReplicate, "bytes move", kFirstWorker, "fill.receive"},
      {Verb::kReplicate, "the bytes have come", kFirstWorker, "fill.finish"},
      {Verb::kReplicate, "some tiles are there", kCoordinator, "attach.tile_staged", 6},
      {Verb::kReplicate, "before its commit", kCoordinator, "replicas.commit"},
      {Verb::kReplicate, "the commit reaches a worker", kFirstWorker, "link.end_transfer", 2},
      {Verb::kRepair, "workers connect", kLoser, "fill.connect"},
      {Verb::kRepair, "bytes move", kLoser, "fill.receive"},
      {Verb::kRepairFile, "bytes move", kLoser, "fill.read"},
      {Verb::kRepairSaved, "bytes move", kLoser, "fill.read"},
      // The mesh of the first replicas and that of the second ones get the other worker.
      {Verb::kReplace, "the first mesh has the worker", kCoordinator, "definitions.publish"},
      {Verb::kReplace, "the second mesh has the worker", kCoordinator, "definitions.publish", 2},
      {Verb::kReplace, "the worker attaches again", kSpare, "link.welcome", 2},
      {Verb::kReplace, "the repair begins", kCoordinator, "repairs.begin_transfer"},
      {Verb::kReplace, "the order comes", kSpare, "link.fill_tiles"},
      {Verb::kReplace, "bytes move", kSpare, "fill.receive"},
      {Verb::kReplace, "the bytes have come", kSpare, "fill.finish"},
      {Verb::kReplace, "before its commit", kCoordinator, "repairs.commit"},
      {Verb::kReplace, "the commit reaches the worker", kSpare, "link.end_transfer"},
      // The first worker keeps its rank.
      {Verb::kResize, "bytes move", kFirstWorker, "fill.receive"},
      {Verb::kGrow, "bytes move to the new worker", kFirstWorker + 1, "fill.receive"},
      {Verb::kGrow, "the new worker has its bytes", kFirstWorker + 1, "fill.finish"},
      {Verb::kShrink, "bytes move", kFirstWorker, "fill.receive"},
      {Verb::kShrink, "workers drop old tiles", kCoordinator, "registry.tell_released"},
  };
  for (const Verb verb : {Verb::kRepair, Verb::kRepairFile, Verb::kRepairSaved}) {
    phases.push_back({verb, "begins", kCoordinator, "repairs.begin_transfer"});
    phases.push_back({verb, "the order comes", kLoser, "link.fill_tiles"});
    phases.push_back({verb, "the bytes have come", kLoser, "fill.finish"});
    phases.push_back({verb, "some tiles are there", kCoordinator, "attach.tile_staged", 2});
    phases.push_back({verb, "before its commit", kCoordinator, "repairs.commit"});
    phases.push_back({verb, "the commit reaches the worker", kLoser, "link.end_transfer"});
  }
  for (const Verb verb : {Verb::kResize, Verb::kGrow, Verb::kShrink}) {
    phases.push_back({verb, "the auxiliary mesh is there", kCoordinator, "resize.mesh_defined"});
    phases.push_back({verb, "the first array leaves", kCoordinator, "transfer.begin"});
    phases.push_back({verb, "the second array leaves", kCoordinator, "transfer.begin", 2});
    phases.push_back({verb, "before the change of the mesh", kCoordinator, "resize.change_mesh"});
    phases.push_back({verb, "after the change of the mesh", kCoordinator, "resize.mesh_changed"});
    phases.push_back({verb, "the first array comes back", kCoordinator, "transfer.begin", 3});
    phases.push_back({verb, "tiles come back", kFirstWorker, "link.fill_tiles", 3});
    phases.push_back({verb, "the second array comes back", kCoordinator, "transfer.begin", 4});
    phases.push_back({verb, "all arrays are back", kCoordinator, "resize.arrays_returned"});
  }
  for (const Verb verb : {Verb::kPut, Verb::kLoad, Verb::kReshardDisk, Verb::kReshardMesh}) {
    phases.push_back({verb, "a tile is complete", kFirstWorker, "tiles.finish"});
    phases.push_back({verb, "its commit is asked for", kCoordinator, "sequencer.commit_transfer"});
    phases.push_back({verb, "before its commit", kCoordinator, "transfer.commit_to_registry"});
    phases.push_back({verb, "while it is written", kCoordinator, "registry.write"});
    phases.push_back({verb, "after its commit", kCoordinator, "registry.apply"});
    phases.push_back({verb, "before the workers are told", kCoordinator, "sequencer.decide"});
    phases.push_back({verb, "before its answer", kCoordinator, "transfer.end"});
    phases.push_back({verb, "the commit reaches a worker", kFirstWorker, "link.end_transfer"});
    phases.push_back({verb, "a worker commits its tiles", kFirstWorker, "tiles.commit"});
  }
  for (const Verb verb : {Verb::kSave, Verb::kOverwrite}) {
    phases.push_back({verb, "begins", kFirstWorker, "save.open"});
    phases.push_back({verb, "the others join", kFirstWorker + 1, "save.check"});
    phases.push_back({verb, "files are made", kFirstWorker, "save.make"});
    phases.push_back({verb, "tiles are written", kFirstWorker + 1, "save.tiles"});
    phases.push_back({verb, "bytes move", kFirstWorker, "save.write", 2});
    phases.push_back({verb, "the folder is open", kCoordinator, "attach.save_answer"});
    phases.push_back({verb, "the files are there", kCoordinator, "attach.save_answer", 4});
    phases.push_back({verb, "some tiles are there", kCoordinator, "attach.save_answer", 5});
    phases.push_back({verb, "most is written", kCoordinator, "attach.save_answer", 8});
    phases.push_back({verb, "it is published", kFirstWorker, "save.publish"});
    phases.push_back({verb, "some files are moved", kFirstWorker, "save.move", 2});
  }
  phases.push_back({Verb::kSave, "before its marker", kFirstWorker, "save.marker"});
  // The folder of a step is exchanged for the new one, marker and all.
  phases.push_back({Verb::kOverwrite, "before the exchange", kFirstWorker, "save.exchange"});
  phases.push_back({Verb::kSave, "after its marker", kFirstWorker, "save.collect"});
  return phases;
}

struct Case {
  Phase phase;
  int victim;
};

std::string NameOf(int process) {
  return process == kClient ? "the client" : Cluster::NameOf(process);
}

std::string TitleOf(const Case& each) {
  for (const auto& [name, verb] : AllVerbs()) {
    if (verb != each.phase.verb) continue;
    return StrCat(name, ", ", each.phase.title, " (", NameOf(each.phase.process), " ",
                  each.phase.failpoint, ":", each.phase.pass, "), kill of ", NameOf(each.victim));
  }
  return "";
}

absl::StatusOr<std::unique_ptr<Cluster>> StartCluster(const RunOptions& run, Kind kind) {
  Cluster::Options options;
  options.binary_folder = run.binary_folder;
  options.durable = true;
  options.files = kind != Kind::kWithASpare;
  options.spares = kind == Kind::kWithASpare ? 1 : 0;
  if (kind == Kind::kShort) options.memory = kShortMemory;
  // After a coordinator was killed, arrays that only a session held are kept for a second.
  options.coordinator_flags = {"--unnamed-grace=1s"};
  // A coordinator that starts again refuses to replace a worker that may come back in this time.
  if (kind == Kind::kWithASpare) options.coordinator_flags.push_back("--return-grace=2s");
  options.worker_flags = {"--quarantine-age=1s"};
  return Cluster::Start(options);
}

// One cluster, on which one case after the other is tried.
class VerbRun {
 public:
  VerbRun(std::unique_ptr<Cluster> cluster, uint64_t seed)
      : cluster_(std::move(cluster)), seed_(seed) {}

  absl::Status Try(const Case& each) {
    const Phase& phase = each.phase;
    const uint64_t seed = seed_ * 1000 + ++cases_;
    VerbClient client(phase.verb, seed, cluster_->address(), cluster_->files(), kLongTtl);
    SHARDMESH_RETURN_IF_ERROR(Said("the preparation", Persist([&] { return client.Prepare(); })));
    for (int attempt = 1;; ++attempt) {
      absl::Status armed = Arm(each);
      if (armed.ok()) {
        armed = Said("the preparation", Persist([&] { return client.PrepareInMemory(); }));
      }
      if (!IsHit(phase)) {
        SHARDMESH_RETURN_IF_ERROR(armed);
        break;
      }
      if (attempt == kMaxArmings) return Violation("the preparation passes the failpoint");
      // A worker that dies before it hears of a commit hears of it when it attaches again.
      SHARDMESH_RETURN_IF_ERROR(cluster_->Kill(phase.process));
      SHARDMESH_RETURN_IF_ERROR(cluster_->Restart(phase.process));
      const auto ready = cluster_->WaitUntilReady(kReadyAgainWithin);
      if (!ready.ok()) return Violation(ready.status().ToString());
      absl::SleepFor(attempt * kCommitTakes);
    }

    absl::Status read;
    bool is_done = false;
    SHARDMESH_RETURN_IF_ERROR(
        WhileReading(phase.verb, seed, &read, [&] { return DoAndKill(each, seed, &is_done); }));
    SHARDMESH_RETURN_IF_ERROR(read);

    // A worker that dies loses the tiles that it had in memory only.
    const bool is_lost =
        client.is_in_memory() && each.victim != kCoordinator && each.victim != kClient;
    if (is_lost) {
      SHARDMESH_RETURN_IF_ERROR(Said("another put", Persist([&] { return client.Prepare(); })));
    } else {
      SHARDMESH_RETURN_IF_ERROR(client.Verify(is_done, absl::Now() + kReadableWithin));
    }
    SHARDMESH_RETURN_IF_ERROR(
        Said("the second attempt", Persist([&] { return client.Do(/*is_again=*/true); })));
    SHARDMESH_RETURN_IF_ERROR(client.Verify(/*is_done=*/true, absl::Now() + kReadableWithin));
    // The first attempt of a client that was killed may end only now.
    SHARDMESH_RETURN_IF_ERROR(Said("the end", Persist([&] { return client.CleanUp(); })));
    if (phase.verb == Verb::kReplace) SHARDMESH_RETURN_IF_ERROR(ReplaceBack());
    if (const std::string left = AwaitNothingLeft(Caller(cluster_->address())); !left.empty()) {
      return Violation(StrCat("in the end ", left));
    }
    return TilesOnDisk();
  }

  std::string Logs() const {
    std::string text;
    for (int i = 0; i < cluster_->size(); ++i) {
      StrAppend(&text, "--- ", cluster_->NameOf(i), "\n", client::LastLines(cluster_->Log(i), 20),
                "\n");
    }
    return text;
  }

 private:
  static absl::Status Said(std::string_view what, const absl::Status& status) {
    return status.ok() ? status : Violation(StrCat(what, " fails: ", status.ToString()));
  }
  // Repeats what fails only because others have not come back, or have not ended, yet.
  template <typename Call>
  static absl::Status Persist(const Call& call) {
    const absl::Time deadline = absl::Now() + kReadableWithin;
    for (;;) {
      const absl::Status status = call();
      const bool is_transient =
          absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
          absl::IsAborted(status) || ReasonOf(status) == Reason::kSessionGone ||
          ReasonOf(status) == Reason::kMeshIncomplete ||
          ReasonOf(status) == Reason::kArrayDegraded || ReasonOf(status) == Reason::kMeshInUse ||
          // A worker that has started a moment ago may be too slow to take memory.
          ReasonOf(status) == Reason::kNotAvailable ||
          (ReasonOf(status) == Reason::kAlreadyExists && FactOf(status, fact::kKind) == "save");
      if (status.ok() || !is_transient || absl::Now() > deadline) return status;
      absl::SleepFor(kAttemptDelay);
    }
  }

  // Restarts the process of the phase so that it ends, or pauses, at the failpoint.
  absl::Status Arm(const Case& each) {
    // The worker is armed when it loses its tiles: see Lose.
    if (IsRepair(each.phase.verb) && each.phase.process == kLoser) return absl::OkStatus();
    SHARDMESH_RETURN_IF_ERROR(cluster_->Kill(each.phase.process));
    SHARDMESH_RETURN_IF_ERROR(cluster_->Restart(each.phase.process, {FailpointOf(each)}));
    const auto ready = cluster_->WaitUntilReady(kReadyAgainWithin);
    return ready.ok() ? absl::OkStatus() : Violation(ready.status().ToString());
  }
  static std::string FailpointOf(const Case& each) {
    const Phase& phase = each.phase;
    return StrCat("--failpoints=", phase.failpoint, "=",
                  each.victim == phase.process ? "crash:" : "delay:", phase.pass);
  }
  // Takes all tiles away from a worker, and starts it again.
  absl::Status Lose(const Case& each) {
    SHARDMESH_RETURN_IF_ERROR(cluster_->Kill(kLoser));
    std::error_code error;
    std::filesystem::remove_all(cluster_->DataFolder(kLoser), error);
    if (error) return absl::InternalError(ToAbsl(StrCat("a folder stays: ", error.message())));
    absl::SleepFor(kEndIsNoticed);
    std::vector<std::string> flags;
    if (each.phase.process == kLoser) flags.push_back(FailpointOf(each));
    return cluster_->Restart(kLoser, flags);
  }
  // Gives the ranks of the spare back to the worker that had them at first.
  absl::Status ReplaceBack() {
    SHARDMESH_RETURN_IF_ERROR(cluster_->Restart(kLoser));
    SHARDMESH_RETURN_IF_ERROR(cluster_->WaitUntilReady(kReadyAgainWithin).status());
    SHARDMESH_RETURN_IF_ERROR(cluster_->KillForLong(kSpare));
    SHARDMESH_RETURN_IF_ERROR(
        Said("the way back",
             ReplaceWorker(Caller(cluster_->address()), kReplacingWorker, kReplacedWorker)));
    SHARDMESH_RETURN_IF_ERROR(cluster_->Restart(kSpare));
    return cluster_->WaitUntilReady(kReadyAgainWithin).status();
  }
  bool IsHit(const Phase& phase) const {
    return absl::StrContains(cluster_->Log(phase.process),
                             StrCat("failpoint ", phase.failpoint, " hit"));
  }

  // Does the verb in a process of its own, kills the victim at the phase, and waits until all
  // processes are ready again. `*is_done`: the client got the answer that it is done.
  absl::Status DoAndKill(const Case& each, uint64_t seed, bool* is_done) {
    std::string name;
    for (const auto& [text, verb] : AllVerbs()) name = verb == each.phase.verb ? text : name;
    if (IsRepair(each.phase.verb)) SHARDMESH_RETURN_IF_ERROR(Lose(each));
    if (each.phase.verb == Verb::kReplace) {
      SHARDMESH_RETURN_IF_ERROR(cluster_->KillForLong(kLoser));
    }
    const std::string log_path = StrCat(cluster_->files(), "/../client.log");
    client::ProcessOptions options;
    options.command = {"/proc/self/exe",
                       "--run=verb",
                       "--verb=" + name,
                       StrCat("--seed=", seed),
                       "--address=" + cluster_->address(),
                       "--files=" + cluster_->files()};
    options.log_path = log_path;
    options.parent_end_signal = SIGKILL;
    SHARDMESH_ASSIGN_OR_RETURN(client::ChildProcess child, client::ChildProcess::Start(options));
    const absl::Time deadline = absl::Now() + kVerbTakes;
    const auto log = [&] { return client::ReadLog(log_path, child.log_offset_bytes()); };
    // Workers hear of a commit after the client does.
    std::optional<absl::Time> give_up;
    while (!IsHit(each.phase)) {
      if (!give_up.has_value() && child.Ended().has_value()) {
        give_up = absl::Now() + kHitWithin;
      }
      if (absl::Now() > give_up.value_or(deadline)) {
        return Violation(StrCat("the verb does not pass the failpoint; its client says: ", log()));
      }
      absl::SleepFor(kPoll);
    }
    if (each.victim == kClient) {
      client::SendSignal(child.id(), SIGKILL).IgnoreError();
    } else {
      SHARDMESH_RETURN_IF_ERROR(cluster_->Kill(each.victim));
      SHARDMESH_RETURN_IF_ERROR(cluster_->Restart(each.victim));
    }
    while (!child.Ended().has_value()) {
      if (absl::Now() > deadline) {
        client::SendSignal(child.id(), SIGKILL).IgnoreError();
        return Violation(StrCat("the client's call does not end: ", log()));
      }
      absl::SleepFor(kPoll);
    }
    *is_done = absl::StrContains(log(), "verb: OK");
    for (const char* const broken : {"verb: INTERNAL", "verb: UNKNOWN"}) {
      if (absl::StrContains(log(), broken)) return Violation(StrCat("the client says: ", log()));
    }
    const auto ready = cluster_->WaitUntilReady(kReadyAgainWithin);
    return ready.ok() ? AwaitOperations() : Violation(ready.status().ToString());
  }

  // Waits for what a client left behind: a commit that it had asked for goes on without it, all
  // else ends with its session.
  absl::Status AwaitOperations() const {
    const absl::Time deadline = absl::Now() + kReadableWithin;
    for (;;) {
      v1::ListOperationsRequest request;
      v1::ListOperationsResponse response;
      request.add_states(v1::OPERATION_STATE_RUNNING);
      const absl::Status status =
          Caller(cluster_->address()).Call("OperationService.ListOperations", request, &response);
      if (status.ok() && response.operations().empty()) return absl::OkStatus();
      if (absl::Now() > deadline) {
        return Violation(StrCat("an operation does not end: ", status.ToString(), " ",
                                response.ShortDebugString()));
      }
      absl::SleepFor(kAttemptDelay);
    }
  }

  // Reads all names again and again meanwhile. `*read`: what a reader must never see.
  template <typename Call>
  absl::Status WhileReading(Verb verb, uint64_t seed, absl::Status* read, const Call& call) {
    std::atomic<bool> is_over = false;
    std::thread reader([&] {
      VerbClient names(verb, seed, cluster_->address(), cluster_->files(), kShortTtl);
      while (!is_over && read->ok()) {
        if (const absl::Status status = names.Read(); absl::IsInternal(status)) *read = status;
        absl::SleepFor(kPoll);
      }
    });
    const absl::Status status = call();
    is_over = true;
    reader.join();
    return status;
  }

  // No file of a tile is left in the workers' folders.
  absl::Status TilesOnDisk() const {
    const absl::Time deadline = absl::Now() + kReadableWithin;
    std::string left;
    do {
      left.clear();
      for (int i = kFirstWorker; i < cluster_->size(); ++i) {
        const std::string folder = cluster_->DataFolder(i);
        std::error_code gone;
        for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, gone)) {
          std::error_code error;
          if (entry.is_regular_file(error) && entry.file_size(error) >= kTileBytes) {
            left = entry.path().string();
          }
        }
      }
      if (left.empty()) return absl::OkStatus();
      absl::SleepFor(kAttemptDelay);
    } while (absl::Now() < deadline);
    return Violation(StrCat("in the end there is the file ", left));
  }
  // The smallest tile of a verb has more bytes than any other file of a worker.
  static constexpr uintmax_t kTileBytes = 4096;

  const std::unique_ptr<Cluster> cluster_;
  const uint64_t seed_;
  uint64_t cases_ = 0;
};

}  // namespace

int RunVerbs(const RunOptions& options) {
  std::vector<Case> cases;
  for (const Phase& phase : AllPhases()) {
    // In a replacement kLoser is dead already, so the spare is killed instead.
    const int last = KindOf(phase.verb) == Kind::kWithASpare ? kSpare : kFirstWorker + 1;
    for (const int victim : {kClient, kCoordinator, kFirstWorker, last}) {
      cases.push_back({phase, victim});
    }
  }
  Dice dice(options.seed);
  for (size_t i = cases.size(); i > 1; --i) {
    std::swap(cases[i - 1], cases[static_cast<size_t>(dice.Below(static_cast<int64_t>(i)))]);
  }
  // Without --long only a part is tried: of each verb as many cases.
  std::vector<Case> ordered;
  while (!cases.empty()) {
    std::set<Verb> taken;
    std::vector<Case> rest;
    for (const Case& each : cases) {
      if (taken.insert(each.phase.verb).second) {
        ordered.push_back(each);
      } else {
        rest.push_back(each);
      }
    }
    cases = std::move(rest);
  }
  std::map<Kind, std::unique_ptr<VerbRun>> runs;  // each starts with its first case
  const absl::Time end = absl::Now() + options.time;
  size_t tried = 0;
  for (const Case& each : ordered) {
    const std::string title = TitleOf(each);
    if (!options.only.empty() && !absl::StrContains(title, options.only)) continue;
    if (!options.is_long && absl::Now() > end) break;
    std::unique_ptr<VerbRun>& run = runs[KindOf(each.phase.verb)];
    if (run == nullptr) {
      auto cluster = StartCluster(options, KindOf(each.phase.verb));
      if (!cluster.ok()) {
        std::printf("FAILED: %s\n", cluster.status().ToString().c_str());
        return 1;
      }
      run = std::make_unique<VerbRun>(*std::move(cluster), options.seed);
    }
    const absl::Time begin = absl::Now();
    const absl::Status status = run->Try(each);
    ++tried;
    if (!status.ok()) {
      std::printf("FAILED with --seed %llu at %s: %s\n%s",
                  static_cast<unsigned long long>(options.seed), title.c_str(),
                  status.ToString().c_str(), run->Logs().c_str());
      return 1;
    }
    if (options.is_long) {
      std::printf(
          "%s: %s\n", title.c_str(),
          absl::FormatDuration(absl::Trunc(absl::Now() - begin, absl::Milliseconds(1))).c_str());
      std::fflush(stdout);
    }
  }
  std::printf("passed with --seed %llu: %zu of %zu kills\n",
              static_cast<unsigned long long>(options.seed), tried, ordered.size());
  return 0;
}

int RunVerb(const RunOptions& options) {
  for (const auto& [name, verb] : AllVerbs()) {
    if (name != options.verb) continue;
    VerbClient client(verb, options.seed, options.address, options.files, kShortTtl);
    const absl::Status status = client.Do(/*is_again=*/false);
    std::printf("verb: %s\n", status.ToString().c_str());
    return status.ok() ? 0 : 1;
  }
  std::fprintf(stderr, "model: there is no verb \"%s\"\n", options.verb.c_str());
  return 2;
}

}  // namespace shardmesh::model
