// The facade: sessions, deadlines and transfers around the calls of CoordinatorClient.
#include "client/mesh_client.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "client/remote/coordinator_client.h"
#include "client/remote/session_keeper.h"
#include "client/remote/transfer.h"
#include "client/types/cancellation.h"
#include "process/steady_deadline.h"
#include "rpc/call.h"
#include "rpc/call_memory.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/npy.h"

namespace shardmesh::client {
namespace {

// How long to wait for the coordinator's own account of a transfer that broke off: it takes 5 s at
// most to notice that a worker is lost.
constexpr absl::Duration kVerdictTimeout = absl::Seconds(7);
// How long a broken transfer's abort may take. It is over anyway when the session ends.
constexpr absl::Duration kAbortTimeout = absl::Seconds(2);
// The same after the put's deadline, which the caller counts on.
constexpr absl::Duration kLateAbortTimeout = absl::Milliseconds(500);
// The same for letting go of an array that was read.
constexpr absl::Duration kReleaseTimeout = absl::Seconds(2);

// Whether a stream's error may be but the trace of what the coordinator knows better: that a worker
// is lost, or that the transfer has ended.
bool IsSymptom(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
      return ReasonOf(status) != Reason::kMemoryLimit;
    default:
      return false;
  }
}

// How often an array is asked for whose tiles are not where the coordinator says: workers that are
// lost meanwhile are known to it at once, or within its heartbeat limit of 5 s.
constexpr int kMaxGatherAttempts = 8;

// A call that begins now.
rpc::CallOptions Until(const rpc::SteadyDeadline& deadline) { return {deadline.wall(), {}}; }

struct GatherOutcome {
  absl::StatusOr<GatheredTensor> tensor;
  bool may_have_moved = false;  // the coordinator may answer otherwise now
};

// Whether a download's error may follow from what changed since the coordinator was asked: a worker
// was lost, or another coordinator signs the tokens.
bool MayHaveMoved(const absl::Status& status) {
  const Reason reason = ReasonOf(status);
  return reason == Reason::kArrayDegraded || reason == Reason::kBadToken ||
         reason == Reason::kStaleTerm || reason == Reason::kNotServing ||
         rpc::IsShortOfCallMemory(status) ||
         (absl::IsUnavailable(status) && reason == Reason::kUnspecified);
}

// The error of an array whose workers live, by the coordinator, and are not reached from here.
absl::Status WithoutReach(const absl::Status& status) {
  if (ReasonOf(status) != Reason::kArrayDegraded) {
    return status;
  }
  return absl::UnavailableError(
      StrCat(ToStd(status.message()),
             "; the coordinator has those workers: elements go between this client and the workers "
             "directly, so run it where the workers' addresses are reached"));
}

// The error of a put whose commit got no answer, for want of memory for calls.
absl::Status OutcomeUnknown(const absl::Status& status) {
  return WithReason(
      absl::DeadlineExceededError(StrCat(
          "the coordinator did not answer the put's commit in time (", ToStd(status.message()),
          "): the put may be committed; look before you put again")),
      Reason::kDeadline);
}

// Cancels a transfer's streams as soon as the coordinator says that it failed, so that nobody goes
// on sending to a worker that does not take anything any more.
class TransferWatch {
 public:
  TransferWatch(CoordinatorClient& coordinator, const std::string& transfer_id,
                const rpc::SteadyDeadline& deadline, Cancellation* streams)
      : thread_([this, &coordinator, transfer_id, deadline, streams] {
          const absl::StatusOr<Operation> operation = coordinator.WatchOperation(
              transfer_id, [](const Operation&) { return true; }, &stop_, Until(deadline));
          if (operation.ok() && (operation->state == OperationState::kFailed ||
                                 operation->state == OperationState::kCancelled)) {
            streams->Cancel();
          }
        }) {}
  ~TransferWatch() {
    stop_.Cancel();
    thread_.join();
  }

 private:
  Cancellation stop_;
  std::thread thread_;  // last: uses the above
};

// The arrays that the session pins only because somebody reads them. The coordinator says who was
// the first to pin an array; the last of its readers lets go of it. So that nobody lets go of what
// another was just told that it is pinned, no reading begins while some array is let go of, nor the
// other way round. Thread-safe.
class ReadPins {
 public:
  // Around the question to the coordinator that pins. Waits, for the time of one call at most.
  void BeginAsking() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](bool* letting_go) { return !*letting_go; }, &letting_go_));
    ++asking_;
  }
  void EndAsking(const absl::StatusOr<BegunGet>& get) {
    absl::MutexLock lock(&mutex_);
    --asking_;
    if (get.ok()) {
      Reading& reading = readings_[get->array.descriptor.array_id];
      ++reading.readers;
      reading.pinned |= get->pinned;
    }
  }
  // Ends a reading. Returns what is to be let go of now; unless that is nothing, call EndLettingGo
  // afterwards.
  std::vector<std::string> EndReading(const std::string& array_id) {
    absl::MutexLock lock(&mutex_);
    --readings_[array_id].readers;
    std::vector<std::string> idle;
    if (asking_ > 0 || letting_go_) {
      return idle;  // whoever ends later sees to it
    }
    for (auto it = readings_.begin(); it != readings_.end();) {
      const auto current = it++;
      if (current->second.readers == 0) {
        if (current->second.pinned) {
          idle.push_back(current->first);
        }
        readings_.erase(current);
      }
    }
    letting_go_ = !idle.empty();
    return idle;
  }
  void EndLettingGo() {
    absl::MutexLock lock(&mutex_);
    letting_go_ = false;
  }

 private:
  struct Reading {
    int readers = 0;
    bool pinned = false;
  };

  absl::Mutex mutex_;
  int asking_ ABSL_GUARDED_BY(mutex_) = 0;
  bool letting_go_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<std::string, Reading> readings_ ABSL_GUARDED_BY(mutex_);
};

// Programs by the hashes of their plans, those that were compiled last. Thread-safe.
class CompiledPrograms {
 public:
  void Add(const std::string& plan_hash, const Program& program) {
    absl::MutexLock lock(&mutex_);
    if (!programs_.insert_or_assign(plan_hash, program).second) {
      return;
    }
    order_.push_back(plan_hash);
    if (order_.size() > kMaxPrograms) {
      programs_.erase(order_.front());
      order_.pop_front();
    }
  }
  std::optional<Program> Find(const std::string& plan_hash) const {
    absl::MutexLock lock(&mutex_);
    const auto found = programs_.find(plan_hash);
    return found == programs_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  static constexpr size_t kMaxPrograms = 1'000;

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Program> programs_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> order_ ABSL_GUARDED_BY(mutex_);  // as they were compiled
};

}  // namespace

class MeshClient::Impl {
 public:
  Impl(std::unique_ptr<CoordinatorClient> coordinator, const MeshClientOptions& options)
      : options_(options),
        coordinator_(std::move(coordinator)),
        session_(coordinator_.get(), options.session_ttl, options.client_name) {}

  CoordinatorClient& coordinator() { return *coordinator_; }
  CompiledPrograms& programs() { return programs_; }
  rpc::CallOptions CallDeadline() const { return rpc::CallOptions::Within(options_.timeout); }
  // For what takes several calls: each has what is left.
  rpc::SteadyDeadline CallsDeadline() const { return rpc::SteadyDeadline::After(options_.timeout); }
  rpc::SteadyDeadline TransferDeadline() const {
    return rpc::SteadyDeadline::After(options_.transfer_timeout);
  }
  TransferOptions Transfer(const rpc::SteadyDeadline& deadline, ProgressCallback progress) const {
    return {options_.credentials, deadline, std::move(progress)};
  }

  void CloseSession() { session_.Close(); }

  // Calls `call` with the session's id; once more with another session if that one was gone.
  template <typename Call>
  auto InSession(const rpc::SteadyDeadline& deadline, const Call& call)
      -> decltype(call("", rpc::CallOptions())) {
    SHARDMESH_ASSIGN_OR_RETURN(std::string session_id, session_.Get(Until(deadline)));
    auto result = call(session_id, Until(deadline));
    if (ReasonOf(result.status()) != Reason::kSessionGone) {
      return result;
    }
    session_.Forget(session_id);
    SHARDMESH_ASSIGN_OR_RETURN(session_id, session_.Get(Until(deadline)));
    return call(session_id, Until(deadline));
  }

  // Asks for the array once and downloads it.
  GatherOutcome Gather(const ArraySelector& array, const ProgressCallback& progress,
                       const rpc::SteadyDeadline& deadline) {
    std::string session;
    read_pins_.BeginAsking();
    absl::StatusOr<BegunGet> begun =
        InSession(deadline, [&](const std::string& session_id, const rpc::CallOptions& call) {
          session = session_id;
          return coordinator_->BeginGet(session_id, array, call);
        });
    read_pins_.EndAsking(begun);
    if (!begun.ok()) return {std::move(begun).status()};
    BegunGet get = *std::move(begun);
    const absl::Cleanup let_go = [&, array_id = get.array.descriptor.array_id] {
      if (const std::vector<std::string> idle = read_pins_.EndReading(array_id); !idle.empty()) {
        coordinator_->ReleaseArrays(session, idle, rpc::CallOptions::Within(kReleaseTimeout))
            .IgnoreError();
        read_pins_.EndLettingGo();
      }
    };
    absl::StatusOr<GatheredTensor> tensor = GatheredTensor::Allocate(std::move(get.array));
    if (!tensor.ok()) return {std::move(tensor)};
    const absl::Status downloaded = Download(tensor->array().descriptor, get.token, get.devices,
                                             tensor->mutable_view(), Transfer(deadline, progress));
    if (downloaded.ok()) return {std::move(tensor)};
    return {downloaded, MayHaveMoved(downloaded)};
  }

  // Puts the tensors once. `*is_taken_back`: it failed while tiles were sent, its commit was not
  // asked for, and the coordinator says that its transfer has ended; hence it changed nothing.
  absl::StatusOr<PutResult> Put(absl::Span<const PutTensor> tensors, const PutOptions& options,
                                const rpc::SteadyDeadline& deadline, bool* is_taken_back);

  void OnWait(const absl::Status& why) const {
    if (options_.on_wait) options_.on_wait(why);
  }

  // Ends a put whose tiles were sent, or whose sending failed with `sent`. `*is_taken_back`: see
  // Put.
  absl::StatusOr<CommittedPut> Conclude(const std::string& session_id,
                                        const std::string& transfer_id, const absl::Status& sent,
                                        const rpc::SteadyDeadline& deadline, bool* is_taken_back) {
    *is_taken_back = false;
    if (sent.ok()) {
      absl::StatusOr<CommittedPut> committed =
          coordinator_->CommitTransfer(session_id, transfer_id, Until(deadline));
      // It was asked until the time was over, and may have committed what it was asked first.
      return rpc::IsShortOfCallMemory(committed.status()) ? OutcomeUnknown(committed.status())
                                                          : std::move(committed);
    }
    const bool may_know_better = IsSymptom(sent);
    if (may_know_better) {
      // The coordinator answers as soon as it knows: with the cause, or even that all is there.
      absl::StatusOr<CommittedPut> verdict = coordinator_->CommitTransfer(
          session_id, transfer_id,
          rpc::CallOptions::Within(std::min(deadline.left(), kVerdictTimeout)));
      if (verdict.ok() || ReasonOf(verdict.status()) == Reason::kWorkerLost) {
        return verdict;
      }
      if (absl::IsCancelled(sent) && !absl::IsDeadlineExceeded(verdict.status())) {
        return rpc::IsShortOfCallMemory(verdict.status()) ? OutcomeUnknown(verdict.status())
                                                          : std::move(verdict);
      }
    }
    const absl::Status aborted = coordinator_->AbortTransfer(
        session_id, transfer_id, ToStd(sent.message()),
        rpc::CallOptions::Within(deadline.is_over() ? kLateAbortTimeout : kAbortTimeout));
    *is_taken_back = aborted.ok() && !may_know_better;
    return sent;
  }

 private:
  const MeshClientOptions options_;
  const std::unique_ptr<CoordinatorClient> coordinator_;
  SessionKeeper session_;
  ReadPins read_pins_;
  CompiledPrograms programs_;
};

MeshClient::MeshClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MeshClient::~MeshClient() = default;

absl::StatusOr<std::unique_ptr<MeshClient>> MeshClient::Connect(const std::string& address,
                                                                const MeshClientOptions& options) {
  const auto deadline = rpc::SteadyDeadline::After(options.timeout);
  const RetryOptions retries{options.await_coordinator, options.on_wait};
  rpc::Backoff backoff({.max_delay = absl::Milliseconds(500)});
  absl::StatusOr<std::unique_ptr<CoordinatorClient>> connected;
  for (;;) {
    // Each attempt resolves the name anew, since the coordinator's address may have changed.
    connected = CoordinatorClient::Connect(address, options.credentials, deadline.left(), retries);
    if (!options.await_coordinator || !absl::IsUnavailable(connected.status())) break;
    const absl::Duration delay = backoff.NextDelay(connected.status());
    if (delay >= deadline.left()) break;
    if (options.on_wait) options.on_wait(connected.status());
    absl::SleepFor(delay);
  }
  SHARDMESH_ASSIGN_OR_RETURN(std::unique_ptr<CoordinatorClient> coordinator, std::move(connected));
  return Over(std::move(coordinator), options);
}

std::unique_ptr<MeshClient> MeshClient::Over(std::unique_ptr<CoordinatorClient> coordinator,
                                             const MeshClientOptions& options) {
  return std::unique_ptr<MeshClient>(
      new MeshClient(std::make_unique<Impl>(std::move(coordinator), options)));
}

absl::StatusOr<ServerVersion> MeshClient::GetVersion() {
  return impl_->coordinator().GetVersion(impl_->CallDeadline());
}

absl::StatusOr<ClusterStatus> MeshClient::GetStatus(const std::string& mesh_id) {
  return impl_->coordinator().GetStatus(mesh_id, impl_->CallDeadline());
}

absl::StatusOr<Diagnosis> MeshClient::Diagnose(int64_t step) {
  return impl_->coordinator().Diagnose(step, impl_->CallDeadline());
}

absl::StatusOr<ClusterLinks> MeshClient::ListLinks(const std::string& mesh_id) {
  return impl_->coordinator().ListLinks(mesh_id, impl_->CallDeadline());
}

absl::StatusOr<QuarantineList> MeshClient::ListQuarantine(const std::string& identity) {
  return impl_->coordinator().ListQuarantine(identity, impl_->CallDeadline());
}

absl::StatusOr<RestoredArray> MeshClient::RestoreQuarantined(const std::string& array_id,
                                                             const std::string& name) {
  return impl_->coordinator().RestoreQuarantined(array_id, name, impl_->CallDeadline());
}

absl::StatusOr<QuarantineDrop> MeshClient::DropQuarantined(
    const std::vector<std::string>& array_ids, bool even_partly) {
  return impl_->coordinator().DropQuarantined(array_ids, even_partly, impl_->CallDeadline());
}

absl::StatusOr<std::vector<WorkerFlight>> MeshClient::ListFlightRecords(
    const FlightQuestion& question) {
  return impl_->coordinator().ListFlightRecords(question, impl_->CallDeadline());
}

absl::StatusOr<SpecAnswer> MeshClient::ResolveSpec(const ResolveSpecQuestion& question) {
  return impl_->coordinator().ResolveSpec(question, impl_->CallDeadline());
}

absl::StatusOr<SpecAnswer> MeshClient::CorrectSpec(const CorrectSpecQuestion& question) {
  return impl_->coordinator().CorrectSpec(question, impl_->CallDeadline());
}

absl::StatusOr<std::vector<AxisValue>> MeshClient::ResolveAxes(
    const ResolveAxesQuestion& question) {
  return impl_->coordinator().ResolveAxes(question, impl_->CallDeadline());
}

absl::StatusOr<ConstraintAnswer> MeshClient::ConstrainArray(const ConstrainQuestion& question) {
  return impl_->coordinator().ConstrainArray(question, impl_->CallDeadline());
}

absl::StatusOr<Comparison> MeshClient::CompareSpecs(const CompareQuestion& question) {
  return impl_->coordinator().CompareSpecs(question, impl_->CallDeadline());
}

absl::StatusOr<TensorExplanation> MeshClient::ExplainTensor(const ExplainQuestion& question) {
  return impl_->coordinator().ExplainTensor(question, impl_->CallDeadline());
}

absl::StatusOr<TilingAnswer> MeshClient::DescribeTiling(const TilingQuestion& question) {
  return impl_->coordinator().DescribeTiling(question, impl_->CallDeadline());
}

absl::StatusOr<std::vector<NamedPreset>> MeshClient::ListPresets() {
  return impl_->coordinator().ListPresets(impl_->CallDeadline());
}

absl::StatusOr<ProfileAnswer> MeshClient::DescribeProfile(const ProfileQuestion& question) {
  return impl_->coordinator().DescribeProfile(question, impl_->CallDeadline());
}

absl::StatusOr<PythonHash> MeshClient::ComputeHash(const HashQuestion& question) {
  return impl_->coordinator().ComputeHash(question, impl_->CallDeadline());
}

absl::StatusOr<MeshAnswer> MeshClient::DescribeMesh(const MeshQuestion& question) {
  return impl_->coordinator().DescribeMesh(question, impl_->CallDeadline());
}

absl::StatusOr<MeshAxesAnswer> MeshClient::QueryMesh(const MeshAxesQuestion& question) {
  return impl_->coordinator().QueryMesh(question, impl_->CallDeadline());
}

absl::StatusOr<std::vector<std::string>> MeshClient::ListSpecAxes(
    absl::Span<const PartitionSpec> specs) {
  return impl_->coordinator().ListSpecAxes(specs, impl_->CallDeadline());
}

absl::StatusOr<std::optional<PartitionSpec>> MeshClient::ResolveOutputSpec(
    const OutputSpecQuestion& question) {
  return impl_->coordinator().ResolveOutputSpec(question, impl_->CallDeadline());
}

absl::StatusOr<TensorParallelConfig> MeshClient::CheckTensorParallel(
    const TensorParallelQuestion& question) {
  return impl_->coordinator().CheckTensorParallel(question, impl_->CallDeadline());
}

absl::StatusOr<LinearLayer> MeshClient::DescribeLinearLayer(const LinearLayerQuestion& question) {
  return impl_->coordinator().DescribeLinearLayer(question, impl_->CallDeadline());
}

absl::StatusOr<Dtype> MeshClient::PromoteDtypes(absl::Span<const Dtype> dtypes,
                                                std::optional<Dtype> dtype) {
  return impl_->coordinator().PromoteDtypes(dtypes, dtype, impl_->CallDeadline());
}

absl::StatusOr<TreeAnswer> MeshClient::ResolveTree(const TreeQuestion& question,
                                                   absl::Span<const TreeTensor> tensors) {
  return impl_->coordinator().ResolveTree(question, tensors, impl_->CallDeadline());
}

absl::StatusOr<PatternRulesAnswer> MeshClient::ParsePatternRules(
    const PatternRulesQuestion& question) {
  return impl_->coordinator().ParsePatternRules(question, impl_->CallDeadline());
}

absl::StatusOr<PatternCheck> MeshClient::CheckPattern(const std::string& pattern,
                                                      absl::Span<const std::string> names) {
  return impl_->coordinator().CheckPattern(pattern, names, impl_->CallDeadline());
}

absl::StatusOr<RewriteAnswer> MeshClient::RewriteRules(const rpc::RuleSetDefinition& rules) {
  return impl_->coordinator().RewriteRules(rules, impl_->CallDeadline());
}

absl::StatusOr<LintAnswer> MeshClient::LintRules(const LintQuestion& question,
                                                 absl::Span<const TreeTensor> tensors) {
  return impl_->coordinator().LintRules(question, tensors, impl_->CallDeadline());
}

absl::StatusOr<DiffAnswer> MeshClient::DiffLayouts(const DiffQuestion& question,
                                                   absl::Span<const TreeTensor> tensors) {
  return impl_->coordinator().DiffLayouts(question, tensors, impl_->CallDeadline());
}

absl::StatusOr<LogicalRules> MeshClient::ComposeLogicalRules(const LogicalRulesSelector& first,
                                                             const LogicalRulesSelector& second) {
  return impl_->coordinator().ComposeLogicalRules(first, second, impl_->CallDeadline());
}

absl::StatusOr<SpmdAnswer> MeshClient::ResolveSpmdAxes(const SpmdQuestion& question) {
  return impl_->coordinator().ResolveSpmdAxes(question, impl_->CallDeadline());
}

absl::StatusOr<std::optional<PartitionSpec>> MeshClient::ResolveLinenAxes(
    const LinenQuestion& question) {
  return impl_->coordinator().ResolveLinenAxes(question, impl_->CallDeadline());
}

absl::StatusOr<ReshardAnswer> MeshClient::PlanReshard(const ReshardQuestion& question) {
  return impl_->coordinator().PlanReshard(question, impl_->CallDeadline());
}

absl::StatusOr<AnalyzeAnswer> MeshClient::AnalyzeLayout(const AnalyzeQuestion& question,
                                                        absl::Span<const TreeTensor> tensors) {
  return impl_->coordinator().AnalyzeLayout(question, tensors, impl_->CallDeadline());
}

absl::StatusOr<SearchAnswer> MeshClient::SearchMeshes(const SearchQuestion& question,
                                                      absl::Span<const TreeTensor> tensors) {
  return impl_->coordinator().SearchMeshes(question, tensors, impl_->CallDeadline());
}

absl::StatusOr<std::vector<ShardingsEntry>> MeshClient::ListShardings(
    const ShardingsQuestion& question) {
  return impl_->coordinator().ListShardings(question, impl_->CallDeadline());
}

absl::StatusOr<Entry> MeshClient::CreateEntry(const std::string& name, const EntryValue& value) {
  return impl_->coordinator().CreateEntry(name, value, impl_->CallDeadline());
}

absl::StatusOr<Entry> MeshClient::GetEntry(EntryKind kind, const std::string& name) {
  return impl_->coordinator().GetEntry(kind, name, impl_->CallDeadline());
}

absl::StatusOr<std::vector<EntryVersion>> MeshClient::ListEntryVersions(EntryKind kind,
                                                                        const std::string& name) {
  return impl_->coordinator().ListEntryVersions(kind, name, impl_->CallDeadline());
}

absl::StatusOr<std::vector<Entry>> MeshClient::ListEntries(EntryKind kind) {
  const rpc::SteadyDeadline deadline = impl_->CallsDeadline();
  std::vector<Entry> entries;
  std::string page_token;
  do {
    SHARDMESH_ASSIGN_OR_RETURN(EntryPage page,
                               impl_->coordinator().ListEntries(kind, page_token, Until(deadline)));
    std::move(page.entries.begin(), page.entries.end(), std::back_inserter(entries));
    page_token = std::move(page.next_page_token);
  } while (!page_token.empty());
  return entries;
}

absl::StatusOr<Entry> MeshClient::UpdateEntry(const std::string& name, const EntryValue& value,
                                              int64_t expected_version) {
  return impl_->coordinator().UpdateEntry(name, value, expected_version, impl_->CallDeadline());
}

absl::StatusOr<int64_t> MeshClient::DeleteEntry(EntryKind kind, const std::string& name,
                                                int64_t expected_version) {
  return impl_->coordinator().DeleteEntry(kind, name, expected_version, impl_->CallDeadline());
}

absl::Status MeshClient::Watch(absl::Span<const EntryKind> kinds, int64_t start_revision,
                               absl::Time until,
                               const std::function<bool(const CatalogChanges&)>& on_changes) {
  const auto deadline = rpc::SteadyDeadline::At(until);
  const absl::Status status =
      impl_->coordinator().Watch(kinds, start_revision, on_changes, Until(deadline));
  // gRPC measures a call's time by the steady clock, and its own error has no reason.
  return absl::IsDeadlineExceeded(status) && ReasonOf(status) == Reason::kUnspecified
             ? absl::OkStatus()
             : status;
}

absl::StatusOr<PutResult> MeshClient::PutTensors(absl::Span<const PutTensor> tensors,
                                                 const PutOptions& options) {
  const rpc::SteadyDeadline deadline = impl_->TransferDeadline();
  rpc::Backoff backoff({.initial_delay = absl::Milliseconds(200), .max_delay = absl::Seconds(5)});
  for (;;) {
    bool is_taken_back = false;
    absl::StatusOr<PutResult> result = impl_->Put(tensors, options, deadline, &is_taken_back);
    // One that releases what it replaces has done so when it began.
    if (!is_taken_back || !rpc::IsShortOfCallMemory(result.status()) || options.release_first) {
      return result;
    }
    const absl::Duration delay = backoff.NextDelay(result.status());
    if (delay >= deadline.left()) {
      return result;
    }
    impl_->OnWait(result.status());
    absl::SleepFor(delay);
  }
}

absl::StatusOr<PutResult> MeshClient::Impl::Put(absl::Span<const PutTensor> tensors,
                                                const PutOptions& options,
                                                const rpc::SteadyDeadline& deadline,
                                                bool* is_taken_back) {
  *is_taken_back = false;
  std::string session;
  SHARDMESH_ASSIGN_OR_RETURN(BegunPut put, InSession(deadline, [&](const std::string& session_id,
                                                                   const rpc::CallOptions& call) {
                               session = session_id;
                               return coordinator_->BeginPut(session_id, tensors, options, call);
                             }));

  if (options.on_begun) {
    options.on_begun(put.transfer_id);
  }
  std::vector<UploadTensor> uploads;
  uploads.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    uploads.push_back({&put.assignments[i].array, put.assignments[i].token, tensors[i].view});
  }
  const absl::StatusOr<int64_t> sent = [&] {
    Cancellation streams;
    const TransferWatch watch(*coordinator_, put.transfer_id, deadline, &streams);
    return Upload(put.devices, uploads, &streams, Transfer(deadline, options.progress));
  }();
  SHARDMESH_ASSIGN_OR_RETURN(
      CommittedPut committed,
      Conclude(session, put.transfer_id, sent.status(), deadline, is_taken_back));

  PutResult result;
  result.arrays.reserve(put.assignments.size());
  for (BegunPut::Assignment& assignment : put.assignments) {
    result.arrays.push_back({std::move(assignment.array), std::move(assignment.corrections)});
  }
  result.revision = committed.revision;
  result.durability = committed.durability;
  result.sent_bytes = sent.value_or(0);
  result.transfer_time = committed.transfer_time;
  return result;
}

absl::StatusOr<PutResult> MeshClient::LoadCheckpoint(const Checkpoint& checkpoint,
                                                     const PutOptions& options) {
  std::vector<PutTensor> tensors;
  tensors.reserve(checkpoint.tensors().size());
  for (const Checkpoint::Entry& entry : checkpoint.tensors()) {
    tensors.push_back({.name = entry.tensor->name, .view = checkpoint.View(entry)});
  }
  return PutTensors(tensors, options);
}

absl::StatusOr<PutResult> MeshClient::LoadCheckpoint(const std::string& path,
                                                     const PutOptions& options) {
  SHARDMESH_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(path));
  return LoadCheckpoint(checkpoint, options);
}

absl::StatusOr<GatheredTensor> MeshClient::Gather(const ArraySelector& array,
                                                  const ProgressCallback& progress) {
  const rpc::SteadyDeadline deadline = impl_->TransferDeadline();
  rpc::Backoff backoff({.max_delay = absl::Seconds(1)});
  for (int attempt = 1;; ++attempt) {
    GatherOutcome outcome = impl_->Gather(array, progress, deadline);
    if (outcome.tensor.ok() || !outcome.may_have_moved) {
      return std::move(outcome.tensor);
    }
    // The tiles were not where the coordinator said: it knows by now, or soon, why.
    const absl::Duration delay = backoff.NextDelay(outcome.tensor.status());
    if (attempt == kMaxGatherAttempts || delay >= deadline.left()) {
      return WithoutReach(std::move(outcome.tensor).status());
    }
    impl_->OnWait(outcome.tensor.status());
    absl::SleepFor(delay);
  }
}

absl::StatusOr<Array> MeshClient::GatherToNpy(const ArraySelector& array, const std::string& path,
                                              const ProgressCallback& progress) {
  SHARDMESH_ASSIGN_OR_RETURN(const GatheredTensor tensor, Gather(array, progress));
  SHARDMESH_RETURN_IF_ERROR(WriteNpy(path, tensor.view()));
  return tensor.array();
}

absl::StatusOr<Array> MeshClient::DescribeArray(const ArraySelector& array) {
  return impl_->coordinator().DescribeArray(array, impl_->CallDeadline());
}

absl::StatusOr<std::vector<Array>> MeshClient::ListArrays(const std::string& prefix) {
  const rpc::SteadyDeadline deadline = impl_->CallsDeadline();
  std::vector<Array> arrays;
  std::string page_token;
  do {
    SHARDMESH_ASSIGN_OR_RETURN(
        ArrayPage page, impl_->coordinator().ListArrays(prefix, page_token, Until(deadline)));
    std::move(page.arrays.begin(), page.arrays.end(), std::back_inserter(arrays));
    page_token = std::move(page.next_page_token);
  } while (!page_token.empty());
  return arrays;
}

absl::StatusOr<int64_t> MeshClient::MoveName(const std::string& name, const std::string& array_id,
                                             int64_t expected_version) {
  return impl_->coordinator().MoveName(name, array_id, expected_version, impl_->CallDeadline());
}

absl::Status MeshClient::DeleteName(const std::string& name, int64_t expected_version) {
  return impl_->coordinator().DeleteName(name, expected_version, impl_->CallDeadline());
}

absl::StatusOr<int64_t> MeshClient::ReleaseArrays(absl::Span<const std::string> array_ids) {
  const rpc::SteadyDeadline deadline = impl_->CallsDeadline();
  return impl_->InSession(
      deadline, [&](const std::string& session_id, const rpc::CallOptions& options) {
        return impl_->coordinator().ReleaseArrays(session_id, array_ids, options);
      });
}

absl::StatusOr<CompiledProgram> MeshClient::Compile(const Program& program,
                                                    absl::Span<const Operand> operands,
                                                    const std::string& mesh_id) {
  absl::StatusOr<CompiledProgram> compiled =
      impl_->coordinator().Compile(program, operands, mesh_id, impl_->CallDeadline());
  if (compiled.ok()) {
    impl_->programs().Add(compiled->plan_hash, program);
  }
  return compiled;
}

absl::StatusOr<StepResult> MeshClient::Execute(const ExecuteCall& call) {
  const rpc::SteadyDeadline deadline = impl_->CallsDeadline();
  return impl_->InSession(
      deadline, [&](const std::string& session_id, const rpc::CallOptions& options) {
        absl::StatusOr<StepResult> result = impl_->coordinator().Execute(session_id, call, options);
        const std::string* const hash = std::get_if<std::string>(&call.work);
        if (hash == nullptr || ReasonOf(result.status()) != Reason::kNotFound) {
          return result;
        }
        // The coordinator has forgotten the plan, as one that was restarted has forgotten all.
        std::optional<Program> program = impl_->programs().Find(*hash);
        if (!program.has_value()) {
          return result;
        }
        ExecuteCall again = call;
        again.work = *std::move(program);
        return impl_->coordinator().Execute(session_id, again, Until(deadline));
      });
}

absl::StatusOr<StepResult> MeshClient::Linear(const LinearCall& call) {
  const rpc::SteadyDeadline deadline = impl_->CallsDeadline();
  return impl_->InSession(deadline,
                          [&](const std::string& session_id, const rpc::CallOptions& options) {
                            return impl_->coordinator().Linear(session_id, call, options);
                          });
}

absl::StatusOr<StepResult> MeshClient::Matmul(const MatmulCall& call) {
  const rpc::SteadyDeadline deadline = impl_->CallsDeadline();
  return impl_->InSession(deadline,
                          [&](const std::string& session_id, const rpc::CallOptions& options) {
                            return impl_->coordinator().Matmul(session_id, call, options);
                          });
}

absl::StatusOr<StepResult> MeshClient::Collective(const CollectiveCall& call) {
  const rpc::SteadyDeadline deadline = impl_->CallsDeadline();
  return impl_->InSession(deadline,
                          [&](const std::string& session_id, const rpc::CallOptions& options) {
                            return impl_->coordinator().Collective(session_id, call, options);
                          });
}

absl::StatusOr<Operation> MeshClient::GetOperation(const std::string& operation_id) {
  return impl_->coordinator().GetOperation(operation_id, impl_->CallDeadline());
}

absl::StatusOr<Operation> MeshClient::WatchOperation(
    const std::string& operation_id, const std::function<bool(const Operation&)>& on_progress) {
  return impl_->coordinator().WatchOperation(operation_id, on_progress, nullptr,
                                             Until(impl_->TransferDeadline()));
}

void MeshClient::CloseSession() { impl_->CloseSession(); }

absl::StatusOr<Operation> MeshClient::CancelOperation(const std::string& operation_id,
                                                      std::optional<absl::Duration> timeout) {
  const rpc::SteadyDeadline deadline =
      timeout.has_value() ? rpc::SteadyDeadline::After(*timeout) : impl_->CallsDeadline();
  return impl_->InSession(
      deadline, [&](const std::string& session_id, const rpc::CallOptions& options) {
        return impl_->coordinator().CancelOperation(session_id, operation_id, options);
      });
}

}  // namespace shardmesh::client
