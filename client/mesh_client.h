// MeshClient: everything that a user of a cluster can do, in blocking calls of five sub-clients.
#ifndef SHARDMESH_CLIENT_MESH_CLIENT_H_
#define SHARDMESH_CLIENT_MESH_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/arrays.h"
#include "client/catalog.h"
#include "client/cluster.h"
#include "client/compute.h"
#include "client/layouts.h"
#include "client/types/array.h"
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
#include "rpc/tls/credentials.h"
#include "tensor/safetensors.h"

namespace shardmesh::client {

class ClientCore;
class CoordinatorClient;

struct MeshClientOptions {
  rpc::Credentials credentials = rpc::Credentials::Insecure();
  // Each call fails with DEADLINE_EXCEEDED after this time, retries included; a computation has
  // this time, and the answer that says who was missing up to a second more.
  absl::Duration timeout = absl::Seconds(30);
  // The same for calls that move tensors: puts, loads and gathers.
  absl::Duration transfer_timeout = absl::Minutes(30);
  // How long arrays without a name outlive a client that has died. 1 s to 1 h.
  absl::Duration session_ttl = absl::Seconds(30);
  // For people who look at the cluster's sessions. At most 255 bytes.
  std::string client_name = "shardmesh";
  // Whether a coordinator that cannot be reached or does not serve is waited for until a call's
  // timeout, also by Connect; otherwise an error within 3 s, but see rpc::ConnectOptions::limit.
  bool await_coordinator = false;
  // Called before each wait after which a call is made again, with the reason, such as that the
  // coordinator recovers. From any thread; quick.
  std::function<void(const absl::Status& why)> on_wait = nullptr;
};

// A connection to a cluster, with a session that is opened when first needed, is renewed in the
// background and ends with the client; then the arrays go that it made without giving them a name.
//
// Errors are the server's own: code, message, reason (ReasonOf) and details as it sent them. A call
// is made again while the coordinator answers that it recovers, or that a worker with what the call
// needs is expected back (UNAVAILABLE with a delay), and time is left; mutations carry an id by
// which the server knows a repetition. A coordinator that cannot be reached is UNAVAILABLE, with
// its address, within the time of MeshClientOptions::await_coordinator.
//
// Example:
//   auto client = MeshClient::Connect("127.0.0.1:7070");
//   auto loaded = (*client)->arrays().LoadCheckpoint("model.safetensors", {.rules = rules});
//   auto tensor = (*client)->arrays().Gather(ArraySelector::ByName("pooler.dense.weight"));
//
// Thread-safe. The destructor closes the session, which takes at most a second if the coordinator
// does not answer; no call may be under way then.
class MeshClient {
 public:
  // Connects to the coordinator at `address`: `host:port`, `[v6]:port` or `unix:/path`.
  // INVALID_ARGUMENT for other text; UNAVAILABLE as above.
  static absl::StatusOr<std::unique_ptr<MeshClient>> Connect(const std::string& address,
                                                             const MeshClientOptions& options = {});
  // A client whose calls `coordinator` makes; credentials of the options are for workers alone.
  static std::unique_ptr<MeshClient> Over(std::unique_ptr<CoordinatorClient> coordinator,
                                          const MeshClientOptions& options = {});
  ~MeshClient();
  MeshClient(const MeshClient&) = delete;
  MeshClient& operator=(const MeshClient&) = delete;

  // The sub-clients live as long as this object.
  LayoutClient& layouts() { return layouts_; }
  CatalogClient& catalog() { return catalog_; }
  ArrayClient& arrays() { return arrays_; }
  ComputeClient& compute() { return compute_; }
  ClusterClient& cluster() { return cluster_; }

  // Closes the client's session, as its destructor does, waiting at most two seconds for the
  // answer: what was begun in it ends, and what it kept is let go. A later call opens another.
  void CloseSession();

  // The calls of the sub-clients under their former names, for callers that have not moved.
  absl::StatusOr<SpecAnswer> ResolveSpec(const ResolveSpecQuestion& question) {
    return layouts_.ResolveSpec(question);
  }
  absl::StatusOr<SpecAnswer> CorrectSpec(const CorrectSpecQuestion& question) {
    return layouts_.CorrectSpec(question);
  }
  absl::StatusOr<std::vector<AxisValue>> ResolveAxes(const ResolveAxesQuestion& question) {
    return layouts_.ResolveAxes(question);
  }
  absl::StatusOr<ConstraintAnswer> ConstrainArray(const ConstrainQuestion& question) {
    return layouts_.ConstrainArray(question);
  }
  absl::StatusOr<Comparison> CompareSpecs(const CompareQuestion& question) {
    return layouts_.CompareSpecs(question);
  }
  absl::StatusOr<TensorExplanation> ExplainTensor(const ExplainQuestion& question) {
    return layouts_.ExplainTensor(question);
  }
  absl::StatusOr<TilingAnswer> DescribeTiling(const TilingQuestion& question) {
    return layouts_.DescribeTiling(question);
  }
  absl::StatusOr<std::vector<NamedPreset>> ListPresets() { return layouts_.ListPresets(); }
  absl::StatusOr<ProfileAnswer> DescribeProfile(const ProfileQuestion& question) {
    return layouts_.DescribeProfile(question);
  }
  absl::StatusOr<PythonHash> ComputeHash(const HashQuestion& question) {
    return layouts_.ComputeHash(question);
  }
  absl::StatusOr<MeshAnswer> DescribeMesh(const MeshQuestion& question) {
    return layouts_.DescribeMesh(question);
  }
  absl::StatusOr<MeshAxesAnswer> QueryMesh(const MeshAxesQuestion& question) {
    return layouts_.QueryMesh(question);
  }
  absl::StatusOr<std::vector<std::string>> ListSpecAxes(absl::Span<const PartitionSpec> specs) {
    return layouts_.ListSpecAxes(specs);
  }
  absl::StatusOr<std::optional<PartitionSpec>> ResolveOutputSpec(
      const OutputSpecQuestion& question) {
    return layouts_.ResolveOutputSpec(question);
  }
  absl::StatusOr<TensorParallelConfig> CheckTensorParallel(const TensorParallelQuestion& question) {
    return layouts_.CheckTensorParallel(question);
  }
  absl::StatusOr<LinearLayer> DescribeLinearLayer(const LinearLayerQuestion& question) {
    return layouts_.DescribeLinearLayer(question);
  }
  absl::StatusOr<Dtype> PromoteDtypes(absl::Span<const Dtype> dtypes,
                                      std::optional<Dtype> dtype = std::nullopt) {
    return layouts_.PromoteDtypes(dtypes, dtype);
  }
  absl::StatusOr<TreeAnswer> ResolveTree(const TreeQuestion& question,
                                         absl::Span<const TreeTensor> tensors) {
    return layouts_.ResolveTree(question, tensors);
  }
  absl::StatusOr<PatternRulesAnswer> ParsePatternRules(const PatternRulesQuestion& question) {
    return layouts_.ParsePatternRules(question);
  }
  absl::StatusOr<PatternCheck> CheckPattern(const std::string& pattern,
                                            absl::Span<const std::string> names) {
    return layouts_.CheckPattern(pattern, names);
  }
  absl::StatusOr<RewriteAnswer> RewriteRules(const rpc::RuleSetDefinition& rules) {
    return layouts_.RewriteRules(rules);
  }
  absl::StatusOr<LintAnswer> LintRules(const LintQuestion& question,
                                       absl::Span<const TreeTensor> tensors) {
    return layouts_.LintRules(question, tensors);
  }
  absl::StatusOr<DiffAnswer> DiffLayouts(const DiffQuestion& question,
                                         absl::Span<const TreeTensor> tensors) {
    return layouts_.DiffLayouts(question, tensors);
  }
  absl::StatusOr<LogicalRules> ComposeLogicalRules(const LogicalRulesSelector& first,
                                                   const LogicalRulesSelector& second) {
    return layouts_.ComposeLogicalRules(first, second);
  }
  absl::StatusOr<SpmdAnswer> ResolveSpmdAxes(const SpmdQuestion& question) {
    return layouts_.ResolveSpmdAxes(question);
  }
  absl::StatusOr<std::optional<PartitionSpec>> ResolveLinenAxes(const LinenQuestion& question) {
    return layouts_.ResolveLinenAxes(question);
  }
  absl::StatusOr<ReshardAnswer> PlanReshard(const ReshardQuestion& question) {
    return layouts_.PlanReshard(question);
  }
  absl::StatusOr<AnalyzeAnswer> AnalyzeLayout(const AnalyzeQuestion& question,
                                              absl::Span<const TreeTensor> tensors) {
    return layouts_.AnalyzeLayout(question, tensors);
  }
  absl::StatusOr<SearchAnswer> SearchMeshes(const SearchQuestion& question,
                                            absl::Span<const TreeTensor> tensors) {
    return layouts_.SearchMeshes(question, tensors);
  }
  absl::StatusOr<std::vector<ShardingsEntry>> ListShardings(const ShardingsQuestion& question) {
    return layouts_.ListShardings(question);
  }
  absl::StatusOr<Entry> CreateEntry(const std::string& name, const EntryValue& value) {
    return catalog_.CreateEntry(name, value);
  }
  absl::StatusOr<Entry> GetEntry(EntryKind kind, const std::string& name) {
    return catalog_.GetEntry(kind, name);
  }
  absl::StatusOr<std::vector<EntryVersion>> ListEntryVersions(EntryKind kind,
                                                              const std::string& name) {
    return catalog_.ListEntryVersions(kind, name);
  }
  absl::StatusOr<std::vector<Entry>> ListEntries(EntryKind kind) {
    return catalog_.ListEntries(kind);
  }
  absl::StatusOr<Entry> UpdateEntry(const std::string& name, const EntryValue& value,
                                    int64_t expected_version = kAnyVersion) {
    return catalog_.UpdateEntry(name, value, expected_version);
  }
  absl::StatusOr<int64_t> DeleteEntry(EntryKind kind, const std::string& name,
                                      int64_t expected_version = kAnyVersion) {
    return catalog_.DeleteEntry(kind, name, expected_version);
  }
  absl::Status Watch(absl::Span<const EntryKind> kinds, int64_t start_revision, absl::Time until,
                     const std::function<bool(const CatalogChanges&)>& on_changes) {
    return catalog_.Watch(kinds, start_revision, until, on_changes);
  }
  absl::StatusOr<PutResult> PutTensors(absl::Span<const PutTensor> tensors,
                                       const PutOptions& options = {}) {
    return arrays_.PutTensors(tensors, options);
  }
  absl::StatusOr<PutResult> LoadCheckpoint(const Checkpoint& checkpoint,
                                           const PutOptions& options = {}) {
    return arrays_.LoadCheckpoint(checkpoint, options);
  }
  absl::StatusOr<PutResult> LoadCheckpoint(const std::string& path,
                                           const PutOptions& options = {}) {
    return arrays_.LoadCheckpoint(path, options);
  }
  absl::StatusOr<GatheredTensor> Gather(const ArraySelector& array) {
    return arrays_.Gather(array);
  }
  absl::StatusOr<Array> GatherToNpy(const ArraySelector& array, const std::string& path) {
    return arrays_.GatherToNpy(array, path);
  }
  absl::StatusOr<Array> DescribeArray(const ArraySelector& array) {
    return arrays_.DescribeArray(array);
  }
  absl::StatusOr<std::vector<Array>> ListArrays(const std::string& prefix = "") {
    return arrays_.ListArrays(prefix);
  }
  absl::StatusOr<int64_t> MoveName(const std::string& name, const std::string& array_id,
                                   int64_t expected_version = kAnyVersion) {
    return arrays_.MoveName(name, array_id, expected_version);
  }
  absl::Status DeleteName(const std::string& name, int64_t expected_version = kAnyVersion) {
    return arrays_.DeleteName(name, expected_version);
  }
  absl::StatusOr<int64_t> ReleaseArrays(absl::Span<const std::string> array_ids) {
    return arrays_.ReleaseArrays(array_ids);
  }
  absl::StatusOr<CompiledProgram> Compile(const Program& program,
                                          absl::Span<const Operand> operands,
                                          const std::string& mesh_id = "") {
    return compute_.Compile(program, operands, mesh_id);
  }
  absl::StatusOr<StepResult> Execute(const ExecuteCall& call) { return compute_.Execute(call); }
  absl::StatusOr<StepResult> Linear(const LinearCall& call) { return compute_.Linear(call); }
  absl::StatusOr<StepResult> Matmul(const MatmulCall& call) { return compute_.Matmul(call); }
  absl::StatusOr<StepResult> Collective(const CollectiveCall& call) {
    return compute_.Collective(call);
  }
  absl::StatusOr<ServerVersion> GetVersion() { return cluster_.GetVersion(); }
  absl::StatusOr<ClusterStatus> GetStatus(const std::string& mesh_id = "") {
    return cluster_.GetStatus(mesh_id);
  }
  absl::StatusOr<Diagnosis> Diagnose(int64_t step = 0) { return cluster_.Diagnose(step); }
  absl::StatusOr<ClusterLinks> ListLinks(const std::string& mesh_id = "") {
    return cluster_.ListLinks(mesh_id);
  }
  absl::StatusOr<QuarantineList> ListQuarantine(const std::string& identity = "") {
    return cluster_.ListQuarantine(identity);
  }
  absl::StatusOr<RestoredArray> RestoreQuarantined(const std::string& array_id,
                                                   const std::string& name = "") {
    return cluster_.RestoreQuarantined(array_id, name);
  }
  absl::StatusOr<QuarantineDrop> DropQuarantined(const std::vector<std::string>& array_ids,
                                                 bool even_partly = false) {
    return cluster_.DropQuarantined(array_ids, even_partly);
  }
  absl::StatusOr<std::vector<WorkerFlight>> ListFlightRecords(const FlightQuestion& question = {}) {
    return cluster_.ListFlightRecords(question);
  }
  absl::StatusOr<Operation> GetOperation(const std::string& operation_id) {
    return cluster_.GetOperation(operation_id);
  }
  absl::StatusOr<Operation> WatchOperation(
      const std::string& operation_id, const std::function<bool(const Operation&)>& on_progress) {
    return cluster_.WatchOperation(operation_id, on_progress);
  }
  absl::StatusOr<Operation> CancelOperation(const std::string& operation_id,
                                            std::optional<absl::Duration> timeout = std::nullopt) {
    return cluster_.CancelOperation(operation_id, timeout);
  }

 private:
  explicit MeshClient(std::unique_ptr<ClientCore> core);

  const std::unique_ptr<ClientCore> core_;  // first: the others use it
  LayoutClient layouts_;
  CatalogClient catalog_;
  ArrayClient arrays_;
  ComputeClient compute_;
  ClusterClient cluster_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_MESH_CLIENT_H_
