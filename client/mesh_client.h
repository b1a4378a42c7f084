// MeshClient: everything that a user of a cluster can do, in blocking calls.
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
//   auto loaded = (*client)->LoadCheckpoint("model.safetensors", {.rules = rules});
//   auto tensor = (*client)->Gather(ArraySelector::ByName("encoder.layer.0.output.dense.weight"));
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

  // The cluster.
  absl::StatusOr<ServerVersion> GetVersion();
  // Of all meshes and workers, or of one mesh and the workers that serve it (all workers, as long
  // as nobody does). NOT_FOUND: no such mesh.
  absl::StatusOr<ClusterStatus> GetStatus(const std::string& mesh_id = "");
  // What is wrong with one step, or (0) with all and the workers: who waits for whom, what failed
  // in the last five minutes, and who is to blame.
  absl::StatusOr<Diagnosis> Diagnose(int64_t step = 0);
  // Between the workers of a mesh or, without its name, between all that are attached. NOT_FOUND:
  // no such mesh. FAILED_PRECONDITION: no worker is attached, or a rank of the mesh has none.
  absl::StatusOr<ClusterLinks> ListLinks(const std::string& mesh_id = "");
  // Tiles that workers have put aside, of one or of all that are attached, arrays that are held
  // without a name, and workers that are away. NOT_FOUND: no such worker.
  absl::StatusOr<QuarantineList> ListQuarantine(const std::string& identity = "");
  // Takes an array back into use, or gives one that is held without a name this one. `name` empty:
  // `restored/` and the id. Waits for workers that are expected back. FAILED_PRECONDITION: not
  // every rank has its tile; names those without.
  absl::StatusOr<RestoredArray> RestoreQuarantined(const std::string& array_id,
                                                   const std::string& name = "");
  // Deletes arrays from the quarantine: what was there. Waits for workers that are expected back.
  // FAILED_PRECONDITION: workers of an array's mesh are away; with `even_partly` what the others
  // have is deleted all the same. NOT_FOUND: none was there.
  absl::StatusOr<QuarantineDrop> DropQuarantined(const std::vector<std::string>& array_ids,
                                                 bool even_partly = false);
  // By identity. NOT_FOUND: nothing is known of the worker that the question names.
  absl::StatusOr<std::vector<WorkerFlight>> ListFlightRecords(const FlightQuestion& question = {});

  // Layouts: pure questions, which need no worker.
  absl::StatusOr<SpecAnswer> ResolveSpec(const ResolveSpecQuestion& question);
  absl::StatusOr<SpecAnswer> CorrectSpec(const CorrectSpecQuestion& question);
  absl::StatusOr<std::vector<AxisValue>> ResolveAxes(const ResolveAxesQuestion& question);
  absl::StatusOr<ConstraintAnswer> ConstrainArray(const ConstrainQuestion& question);
  absl::StatusOr<Comparison> CompareSpecs(const CompareQuestion& question);
  absl::StatusOr<TensorExplanation> ExplainTensor(const ExplainQuestion& question);
  absl::StatusOr<TilingAnswer> DescribeTiling(const TilingQuestion& question);
  absl::StatusOr<std::vector<NamedPreset>> ListPresets();
  // UNKNOWN_FIELD (TypeError), before the coordinator is asked, for a field that there is not.
  absl::StatusOr<ProfileAnswer> DescribeProfile(const ProfileQuestion& question);
  // The digest of a text or of an object's attributes, in decimal; of a text without hash()'s
  // value.
  absl::StatusOr<PythonHash> ComputeHash(const HashQuestion& question);
  absl::StatusOr<MeshAnswer> DescribeMesh(const MeshQuestion& question);
  absl::StatusOr<MeshAxesAnswer> QueryMesh(const MeshAxesQuestion& question);
  // The axes that specs name, each once, sorted. At most 10,000 specs.
  absl::StatusOr<std::vector<std::string>> ListSpecAxes(absl::Span<const PartitionSpec> specs);
  // Nullopt: the result has no spec, as an operand is not placed.
  absl::StatusOr<std::optional<PartitionSpec>> ResolveOutputSpec(
      const OutputSpecQuestion& question);
  absl::StatusOr<TensorParallelConfig> CheckTensorParallel(const TensorParallelQuestion& question);
  absl::StatusOr<LinearLayer> DescribeLinearLayer(const LinearLayerQuestion& question);
  // See PromoteDtype. At most 10,000 types.
  absl::StatusOr<Dtype> PromoteDtypes(absl::Span<const Dtype> dtypes,
                                      std::optional<Dtype> dtype = std::nullopt);
  // At most 1,000,000 tensors; here and below none where the question names a stored tree.
  absl::StatusOr<TreeAnswer> ResolveTree(const TreeQuestion& question,
                                         absl::Span<const TreeTensor> tensors);

  // Rules. INVALID_ARGUMENT for a bad or unsupported pattern, with the part that is at fault.
  absl::StatusOr<PatternRulesAnswer> ParsePatternRules(const PatternRulesQuestion& question);
  // In which of the names, at most 10,000 of at most 1,024 bytes, the pattern is found.
  absl::StatusOr<PatternCheck> CheckPattern(const std::string& pattern,
                                            absl::Span<const std::string> names);
  // The rules, which defer pattern errors, without exclusions such as `^(?!.*bias)`.
  // INVALID_ARGUMENT names the rule for which there is no other writing.
  absl::StatusOr<RewriteAnswer> RewriteRules(const rpc::RuleSetDefinition& rules);
  // Over at most 1,000,000 tensors, none with a spec of its own.
  absl::StatusOr<LintAnswer> LintRules(const LintQuestion& question,
                                       absl::Span<const TreeTensor> tensors);
  absl::StatusOr<DiffAnswer> DiffLayouts(const DiffQuestion& question,
                                         absl::Span<const TreeTensor> tensors);

  // Logical names of flax, by the functions of sharding/rules/logical_rules.h, whose errors they
  // have.
  absl::StatusOr<LogicalRules> ComposeLogicalRules(const LogicalRulesSelector& first,
                                                   const LogicalRulesSelector& second);
  absl::StatusOr<SpmdAnswer> ResolveSpmdAxes(const SpmdQuestion& question);
  // Nullopt: the array stays as it is.
  absl::StatusOr<std::optional<PartitionSpec>> ResolveLinenAxes(const LinenQuestion& question);
  // Plans: pure questions too.
  // What must move to turn one layout of an array into another.
  absl::StatusOr<ReshardAnswer> PlanReshard(const ReshardQuestion& question);
  // What a layout comes to. Every tensor brings its spec; at most 1,000,000 of them.
  absl::StatusOr<AnalyzeAnswer> AnalyzeLayout(const AnalyzeQuestion& question,
                                              absl::Span<const TreeTensor> tensors);
  // The best meshes for a tree of at most 1,000,000 tensors, each with its dtype.
  absl::StatusOr<SearchAnswer> SearchMeshes(const SearchQuestion& question,
                                            absl::Span<const TreeTensor> tensors);
  // First the leaves in their order, then the cluster's arrays by name.
  absl::StatusOr<std::vector<ShardingsEntry>> ListShardings(const ShardingsQuestion& question);

  // Definitions. `expected_version`: kAnyVersion, or the version that is replaced or deleted
  // (ABORTED, VERSION_MISMATCH, if it is another). CreateEntry: ALREADY_EXISTS for a taken name.
  // Trees come with their tensors from GetEntry alone, which takes `NAME@VERSION` too, as the
  // selectors of questions do; NOT_FOUND says which versions are kept.
  absl::StatusOr<Entry> CreateEntry(const std::string& name, const EntryValue& value);
  absl::StatusOr<Entry> GetEntry(EntryKind kind, const std::string& name);
  // Those that are kept, the newest first.
  absl::StatusOr<std::vector<EntryVersion>> ListEntryVersions(EntryKind kind,
                                                              const std::string& name);
  absl::StatusOr<std::vector<Entry>> ListEntries(EntryKind kind);
  absl::StatusOr<Entry> UpdateEntry(const std::string& name, const EntryValue& value,
                                    int64_t expected_version = kAnyVersion);
  // Returns the store's revision after it.
  absl::StatusOr<int64_t> DeleteEntry(EntryKind kind, const std::string& name,
                                      int64_t expected_version = kAnyVersion);
  // Reports the changes of entries of `kinds` (none: of all kinds) from `start_revision` on (0:
  // from now on) until `on_changes` returns false or `until` comes; both end the watch with OK.
  // Steps of the wall clock change nothing. OUT_OF_RANGE (COMPACTED): the revision is not kept.
  absl::Status Watch(absl::Span<const EntryKind> kinds, int64_t start_revision, absl::Time until,
                     const std::function<bool(const CatalogChanges&)>& on_changes);

  // Puts tensors onto a mesh: all of them become visible together, or none does. Bytes go straight
  // to the workers, from where they lie. UNAVAILABLE (WORKER_LOST) names the worker that was lost.
  absl::StatusOr<PutResult> PutTensors(absl::Span<const PutTensor> tensors,
                                       const PutOptions& options = {});
  // Puts every tensor of a checkpoint under its name in the file. The path is one of
  // Checkpoint::Open, whose errors come first.
  absl::StatusOr<PutResult> LoadCheckpoint(const Checkpoint& checkpoint,
                                           const PutOptions& options = {});
  absl::StatusOr<PutResult> LoadCheckpoint(const std::string& path, const PutOptions& options = {});

  // Brings a whole tensor back, each tile from a worker that holds it, and checks every checksum.
  // FAILED_PRECONDITION (ARRAY_DEGRADED) if no live worker holds some tile.
  // `progress`: as PutOptions::progress, of the bytes received; begins anew if the gather is tried
  // again.
  absl::StatusOr<GatheredTensor> Gather(const ArraySelector& array,
                                        const ProgressCallback& progress = nullptr);
  // Gathers into a .npy file (see WriteNpy), which appears complete or not at all.
  absl::StatusOr<Array> GatherToNpy(const ArraySelector& array, const std::string& path,
                                    const ProgressCallback& progress = nullptr);

  absl::StatusOr<Array> DescribeArray(const ArraySelector& array);
  // All named arrays whose name begins with `prefix`, by name.
  absl::StatusOr<std::vector<Array>> ListArrays(const std::string& prefix = "");
  // Returns the name's version. expected_version may be kMustNotExist.
  absl::StatusOr<int64_t> MoveName(const std::string& name, const std::string& array_id,
                                   int64_t expected_version = kAnyVersion);
  absl::Status DeleteName(const std::string& name, int64_t expected_version = kAnyVersion);
  // Lets go of arrays that this client's session pins; returns how many it did pin.
  absl::StatusOr<int64_t> ReleaseArrays(absl::Span<const std::string> array_ids);

  // Computation. Every rank takes part; all results are there or none, operands stay untouched.
  absl::StatusOr<CompiledProgram> Compile(const Program& program,
                                          absl::Span<const Operand> operands,
                                          const std::string& mesh_id = "");
  absl::StatusOr<StepResult> Execute(const ExecuteCall& call);
  absl::StatusOr<StepResult> Linear(const LinearCall& call);
  absl::StatusOr<StepResult> Matmul(const MatmulCall& call);
  absl::StatusOr<StepResult> Collective(const CollectiveCall& call);

  // Long operations, by id.
  absl::StatusOr<Operation> GetOperation(const std::string& operation_id);
  // Reports until the operation ends (returned last), `on_progress` returns false, or the client's
  // transfer timeout is over (DEADLINE_EXCEEDED).
  absl::StatusOr<Operation> WatchOperation(
      const std::string& operation_id, const std::function<bool(const Operation&)>& on_progress);
  // `timeout`: for this call, instead of the client's.
  absl::StatusOr<Operation> CancelOperation(const std::string& operation_id,
                                            std::optional<absl::Duration> timeout = std::nullopt);
  // Closes the client's session, as its destructor does, waiting at most two seconds for the
  // answer: what was begun in it ends, and what it kept is let go. A later call opens another.
  void CloseSession();

 private:
  class Impl;
  explicit MeshClient(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_MESH_CLIENT_H_
