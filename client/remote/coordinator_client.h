// CoordinatorClient: one blocking method for each call that a client makes to the coordinator.
#ifndef SHARDMESH_CLIENT_REMOTE_COORDINATOR_CLIENT_H_
#define SHARDMESH_CLIENT_REMOTE_COORDINATOR_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/remote/transfer.h"
#include "client/types/array.h"
#include "client/types/cancellation.h"
#include "client/types/catalog.h"
#include "client/types/cluster.h"
#include "client/types/layer_questions.h"
#include "client/types/layout_questions.h"
#include "client/types/logical_questions.h"
#include "client/types/mesh_questions.h"
#include "client/types/plan_questions.h"
#include "client/types/profile_questions.h"
#include "client/types/rule_questions.h"
#include "client/types/step.h"
#include "rpc/call.h"
#include "rpc/tls/credentials.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace shardmesh::client {

// An opened session.
struct OpenedSession {
  std::string session_id;
  absl::Duration ttl = absl::ZeroDuration();
};

// A started put, with the destinations of its tiles.
struct BegunPut {
  struct Assignment {
    ArrayDescriptor array;
    std::string token;
    std::vector<Correction> corrections;
  };
  std::string transfer_id;
  std::vector<TransferDevice> devices;
  std::vector<Assignment> assignments;  // in the order of the tensors
  absl::Time expire_time = absl::InfiniteFuture();
  // The open call of BeginPut. If it ends before the commit, for example with this process, the
  // coordinator aborts the transfer at once.
  std::shared_ptr<void> hold;
};

// A committed put.
struct CommittedPut {
  std::vector<std::string> array_ids;
  int64_t revision = 0;
  Durability durability = Durability::kUnknown;
  absl::Duration transfer_time = absl::ZeroDuration();
};

// A started get, with the sources of its tiles.
struct BegunGet {
  Array array;
  std::vector<TransferDevice> devices;
  std::string token;
  bool pinned = false;  // pinned by this call; false if the session already pinned it
};

// How calls are retried.
struct RetryOptions {
  // See MeshClientOptions.
  bool await_coordinator = false;
  std::function<void(const absl::Status& why)> on_wait = nullptr;
};

// One page of a list; the last page has an empty token.
struct EntryPage {
  std::vector<Entry> entries;
  std::string next_page_token;
};
struct ArrayPage {
  std::vector<Array> arrays;
  std::string next_page_token;
};

// Errors are the server's own, complete; if the connection failed, the address is prepended.
//
// Unary calls, those that stream a tree, and the start of a put are retried until their deadline.
// All of them are idempotent; mutations carry a request_id of their own. Retries go on while the
// coordinator answers with a retry delay, as it does while it recovers. If the coordinator is
// unreachable or does not serve, there are a few attempts within a second; with
// RetryOptions::await_coordinator, attempts go on until the deadline. Thread-safe.
class CoordinatorClient {
 public:
  // Connects. INVALID_ARGUMENT for text that is no address. UNAVAILABLE, with the address, after at
  // most 3 s. If one address of the host does not answer and another accepts, the limit is
  // `timeout`.
  static absl::StatusOr<std::unique_ptr<CoordinatorClient>> Connect(
      const std::string& address, const rpc::Credentials& credentials,
      absl::Duration timeout = rpc::kConnectTimeout, const RetryOptions& retries = {});
  // Asks over a channel to a server of this process, which outlives the client. It has no address,
  // and is never connected to again.
  static std::unique_ptr<CoordinatorClient> InProcess(const std::shared_ptr<grpc::Channel>& channel,
                                                      const RetryOptions& retries = {});
  ~CoordinatorClient();
  CoordinatorClient(const CoordinatorClient&) = delete;
  CoordinatorClient& operator=(const CoordinatorClient&) = delete;

  using Options = rpc::CallOptions;

  // ClusterService.
  absl::StatusOr<ServerVersion> GetVersion(const Options& options);
  // Returns the status of one mesh and its workers, or (empty) of all; joins the pages.
  absl::StatusOr<ClusterStatus> GetStatus(const std::string& mesh_id, const Options& options);
  absl::StatusOr<std::vector<WorkerFlight>> ListFlightRecords(const FlightQuestion& question,
                                                              const Options& options);
  absl::StatusOr<Diagnosis> Diagnose(int64_t step, const Options& options);
  absl::StatusOr<ClusterLinks> ListLinks(const std::string& mesh_id, const Options& options);
  // Joins all pages.
  absl::StatusOr<QuarantineList> ListQuarantine(const std::string& identity,
                                                const Options& options);
  absl::StatusOr<RestoredArray> RestoreQuarantined(const std::string& array_id,
                                                   const std::string& name, const Options& options);
  absl::StatusOr<DrainedWorker> DrainWorker(const std::string& identity, bool resume,
                                            const Options& options);
  absl::Status ForgetWorker(const std::string& identity, const Options& options);
  absl::StatusOr<ReplacedWorker> ReplaceWorker(const std::string& identity,
                                               const std::string& replacement,
                                               const Options& options);
  // Calls `on_change` with each event until it returns false or `cancellation`, which may be null,
  // is cancelled: OK.
  absl::Status WatchCluster(const std::vector<ClusterSubject>& subjects,
                            const std::function<bool(const ClusterChange&)>& on_change,
                            Cancellation* cancellation, const Options& options);
  absl::StatusOr<QuarantineDrop> DropQuarantined(const std::vector<std::string>& array_ids,
                                                 bool even_partly, const Options& options);

  // SessionService.
  absl::StatusOr<OpenedSession> OpenSession(absl::Duration ttl, const std::string& client_name,
                                            const Options& options);
  // Returns the remaining time to live.
  absl::StatusOr<absl::Duration> RenewSession(const std::string& session_id,
                                              const Options& options);
  absl::Status CloseSession(const std::string& session_id, const Options& options);
  // Joins all pages.
  absl::StatusOr<std::vector<OpenSessionInfo>> ListSessions(const Options& options);

  // The services of questions.
  absl::StatusOr<SpecAnswer> ResolveSpec(const ResolveSpecQuestion& question,
                                         const Options& options);
  absl::StatusOr<std::vector<absl::StatusOr<SpecAnswer>>> BatchResolveSpecs(
      absl::Span<const ResolveSpecQuestion> questions, const Options& options);
  absl::StatusOr<SpecAnswer> CorrectSpec(const CorrectSpecQuestion& question,
                                         const Options& options);
  absl::StatusOr<std::vector<AxisValue>> ResolveAxes(const ResolveAxesQuestion& question,
                                                     const Options& options);
  absl::StatusOr<ConstraintAnswer> ConstrainArray(const ConstrainQuestion& question,
                                                  const Options& options);
  absl::StatusOr<std::vector<absl::StatusOr<ConstraintAnswer>>> BatchConstrainArrays(
      absl::Span<const ConstrainQuestion> questions, const Options& options);
  absl::StatusOr<Comparison> CompareSpecs(const CompareQuestion& question, const Options& options);
  absl::StatusOr<TensorExplanation> ExplainTensor(const ExplainQuestion& question,
                                                  const Options& options);
  absl::StatusOr<TilingAnswer> DescribeTiling(const TilingQuestion& question,
                                              const Options& options);
  absl::StatusOr<std::vector<NamedPreset>> ListPresets(const Options& options);
  absl::StatusOr<ProfileAnswer> DescribeProfile(const ProfileQuestion& question,
                                                const Options& options);
  absl::StatusOr<PythonHash> ComputeHash(const HashQuestion& question, const Options& options);
  absl::StatusOr<MeshAnswer> DescribeMesh(const MeshQuestion& question, const Options& options);
  absl::StatusOr<MeshAxesAnswer> QueryMesh(const MeshAxesQuestion& question,
                                           const Options& options);
  absl::StatusOr<std::vector<std::string>> ListSpecAxes(absl::Span<const PartitionSpec> specs,
                                                        const Options& options);
  absl::StatusOr<std::optional<PartitionSpec>> ResolveOutputSpec(const OutputSpecQuestion& question,
                                                                 const Options& options);
  absl::StatusOr<TensorParallelConfig> CheckTensorParallel(const TensorParallelQuestion& question,
                                                           const Options& options);
  absl::StatusOr<LinearLayer> DescribeLinearLayer(const LinearLayerQuestion& question,
                                                  const Options& options);
  absl::StatusOr<Dtype> PromoteDtypes(absl::Span<const Dtype> dtypes, std::optional<Dtype> dtype,
                                      const Options& options);
  absl::StatusOr<TreeAnswer> ResolveTree(const TreeQuestion& question,
                                         absl::Span<const TreeTensor> tensors,
                                         const Options& options);
  absl::StatusOr<PatternRulesAnswer> ParsePatternRules(const PatternRulesQuestion& question,
                                                       const Options& options);
  absl::StatusOr<PatternCheck> CheckPattern(const std::string& pattern,
                                            absl::Span<const std::string> names,
                                            const Options& options);
  absl::StatusOr<RewriteAnswer> RewriteRules(const rpc::RuleSetDefinition& rules,
                                             const Options& options);
  absl::StatusOr<LintAnswer> LintRules(const LintQuestion& question,
                                       absl::Span<const TreeTensor> tensors,
                                       const Options& options);
  absl::StatusOr<DiffAnswer> DiffLayouts(const DiffQuestion& question,
                                         absl::Span<const TreeTensor> tensors,
                                         const Options& options);
  absl::StatusOr<LogicalRules> ComposeLogicalRules(const LogicalRulesSelector& first,
                                                   const LogicalRulesSelector& second,
                                                   const Options& options);
  absl::StatusOr<SpmdAnswer> ResolveSpmdAxes(const SpmdQuestion& question, const Options& options);
  absl::StatusOr<std::optional<PartitionSpec>> ResolveLinenAxes(const LinenQuestion& question,
                                                                const Options& options);
  absl::StatusOr<ReshardAnswer> PlanReshard(const ReshardQuestion& question,
                                            const Options& options);
  absl::StatusOr<AnalyzeAnswer> AnalyzeLayout(const AnalyzeQuestion& question,
                                              absl::Span<const TreeTensor> tensors,
                                              const Options& options);
  absl::StatusOr<SearchAnswer> SearchMeshes(const SearchQuestion& question,
                                            absl::Span<const TreeTensor> tensors,
                                            const Options& options);
  absl::StatusOr<std::vector<ShardingsEntry>> ListShardings(const ShardingsQuestion& question,
                                                            const Options& options);

  // CatalogService.
  absl::StatusOr<Entry> CreateEntry(const std::string& name, const EntryValue& value,
                                    bool validate_only, const Options& options);
  absl::StatusOr<Entry> GetEntry(EntryKind kind, const std::string& name, const Options& options);
  absl::StatusOr<std::vector<EntryVersion>> ListEntryVersions(EntryKind kind,
                                                              const std::string& name,
                                                              const Options& options);
  absl::StatusOr<EntryPage> ListEntries(EntryKind kind, const std::string& prefix,
                                        const std::string& page_token, const Options& options);
  absl::StatusOr<Entry> UpdateEntry(const std::string& name, const EntryValue& value,
                                    int64_t expected_version, bool validate_only,
                                    const Options& options);
  absl::StatusOr<int64_t> DeleteEntry(EntryKind kind, const std::string& name,
                                      int64_t expected_version, bool validate_only,
                                      const Options& options);
  // Runs until the deadline (DEADLINE_EXCEEDED) or until `on_changes` returns false (OK).
  absl::Status Watch(absl::Span<const EntryKind> kinds, int64_t start_revision,
                     const std::function<bool(const CatalogChanges&)>& on_changes,
                     const Options& options);

  // ArrayService.
  absl::StatusOr<BegunPut> BeginPut(const std::string& session_id,
                                    absl::Span<const PutTensor> tensors,
                                    const PutOptions& put_options, const Options& options);
  // `session_id`: of the session that began the transfer.
  absl::StatusOr<CommittedPut> CommitTransfer(const std::string& session_id,
                                              const std::string& transfer_id,
                                              const Options& options);
  absl::Status AbortTransfer(const std::string& session_id, const std::string& transfer_id,
                             std::string_view reason, const Options& options);
  absl::StatusOr<BegunGet> BeginGet(const std::string& session_id, const ArraySelector& array,
                                    const std::optional<Tile>& part, const Options& options);
  absl::StatusOr<Array> DescribeArray(const ArraySelector& array, const Options& options);
  absl::StatusOr<ArrayPage> ListArrays(const std::string& prefix, bool include_unnamed,
                                       const std::string& page_token, const Options& options);
  absl::StatusOr<int64_t> MoveName(const std::string& name, const std::string& array_id,
                                   int64_t expected_version, const Options& options);
  absl::Status DeleteName(const std::string& name, int64_t expected_version,
                          const Options& options);
  absl::StatusOr<int64_t> ReleaseArrays(const std::string& session_id,
                                        absl::Span<const std::string> array_ids,
                                        const Options& options);

  // ComputeService.
  absl::StatusOr<CompiledProgram> Compile(const Program& program,
                                          absl::Span<const Operand> operands,
                                          const std::string& mesh_id, const Options& options);
  absl::StatusOr<StepResult> Execute(const std::string& session_id, const ExecuteCall& call,
                                     const Options& options);
  absl::StatusOr<StepResult> Linear(const std::string& session_id, const LinearCall& call,
                                    const Options& options);
  absl::StatusOr<StepResult> Matmul(const std::string& session_id, const MatmulCall& call,
                                    const Options& options);
  absl::StatusOr<StepResult> Collective(const std::string& session_id, const CollectiveCall& call,
                                        const Options& options);

  // OperationService. ListOperations joins all pages; no states: all.
  absl::StatusOr<std::vector<Operation>> ListOperations(const std::vector<OperationState>& states,
                                                        const Options& options);
  absl::StatusOr<Operation> GetOperation(const std::string& operation_id, const Options& options);
  // Runs until the operation has ended or `on_progress` returns false; returns the last reported
  // state. CANCELLED after `cancellation`, which may be null.
  absl::StatusOr<Operation> WatchOperation(const std::string& operation_id,
                                           const std::function<bool(const Operation&)>& on_progress,
                                           Cancellation* cancellation, const Options& options);
  // `session_id`: of the session that began the operation.
  absl::StatusOr<Operation> CancelOperation(const std::string& session_id,
                                            const std::string& operation_id,
                                            const Options& options);

 private:
  struct Connection;
  explicit CoordinatorClient(std::unique_ptr<Connection> connection);

  const std::unique_ptr<Connection> connection_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_COORDINATOR_CLIENT_H_
