// Answers to questions about layouts, by topic. Each function decodes a request, calls the
// functions of sharding/, and encodes the answer. The question services call these functions. None
// of these functions blocks or holds a lock for long.
#ifndef SHARDMESH_SERVER_RESOLVE_RESOLVE_ANSWERS_H_
#define SHARDMESH_SERVER_RESOLVE_RESOLVE_ANSWERS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/metrics/metrics.h"
#include "server/state/definitions.h"
#include "sharding/compatibility.h"
#include "sharding/correction.h"
#include "sharding/mesh.h"
#include "sharding/partition_axis.h"
#include "sharding/rules/logical_rules.h"
#include "shardmesh/compat/v1/compat_service.pb.h"
#include "shardmesh/v1/layout_service.pb.h"
#include "shardmesh/v1/mesh_service.pb.h"
#include "shardmesh/v1/reshard_service.pb.h"
#include "shardmesh/v1/resolve_service.pb.h"
#include "shardmesh/v1/rule_service.pb.h"
#include "status/reason.h"

namespace shardmesh::server {

// Counts corrections by their reason.
class CorrectionTally {
 public:
  static constexpr std::array kReasons = {Reason::kNotDivisible, Reason::kAxisNotInMesh,
                                          Reason::kRankTruncated, Reason::kBelowMinSize,
                                          Reason::kUnconstrained};

  // For each correction, adds `times` to the count of the correction's reason.
  void Add(const std::vector<Correction>& corrections, int64_t times = 1);

  // The counts, by the index of the reason in kReasons.
  const std::array<int64_t, kReasons.size()>& counts() const { return counts_; }

 private:
  std::array<int64_t, kReasons.size()> counts_ = {};
};

// The mesh and the profile that the questions of a batch share. Mesh and profile are looked up or
// decoded when the first question needs them, and kept for later questions.
class SharedSelections {
 public:
  // All arguments outlive this object.
  SharedSelections(const Definitions& state, const v1::MeshSelector& mesh,
                   const v1::ProfileSelector& profile)
      : state_(state), mesh_(mesh), profile_(profile) {}

  // Return the results of SelectMesh and SelectProfile. The references are valid as long as this
  // object.
  const absl::StatusOr<Mesh>& mesh(Compatibility compatibility);
  const absl::StatusOr<PartitionAxis>& profile();

 private:
  const Definitions& state_;
  const v1::MeshSelector& mesh_;
  const v1::ProfileSelector& profile_;
  std::map<Compatibility, absl::StatusOr<Mesh>> meshes_;
  std::optional<absl::StatusOr<PartitionAxis>> found_profile_;
};

// The input of an answer besides the request, and a tally of the corrections made for the answer.
// Valid during the call. An answer depends only on the request and on `state`.
struct AnswerContext {
  const Definitions& state;
  CorrectionTally& corrections;
  // In a batch: the mesh and the profile for a question that names no mesh or profile itself. Null
  // outside a batch.
  SharedSelections* shared = nullptr;
};

// Each overload answers one request and fills `response`, which must be empty. Errors are those of
// the contract (proto/), with the path of the invalid field.

// Defined in resolve_specs.cc.
absl::Status Answer(const AnswerContext&, const v1::ResolveEffectiveSpecRequest&,
                    v1::ResolveEffectiveSpecResponse*);
absl::Status Answer(const AnswerContext&, const v1::ResolveSpecRequest&, v1::ResolveSpecResponse*);
absl::Status Answer(const AnswerContext&, const v1::ResolveAxesRequest&, v1::ResolveAxesResponse*);
absl::Status Answer(const AnswerContext&, const v1::CorrectSpecRequest&, v1::CorrectSpecResponse*);
absl::Status Answer(const AnswerContext&, const v1::ConstrainArrayRequest&,
                    v1::ConstrainArrayResponse*);
absl::Status Answer(const AnswerContext&, const v1::CompareSpecsRequest&,
                    v1::CompareSpecsResponse*);
// The answer may have to compile or search rules for long: see SearchesLong. It calls
// `is_cancelled` (may be null) meanwhile. If `is_cancelled` returns true, the answer ends with
// CANCELLED.
absl::Status Answer(const AnswerContext&, const v1::ExplainTensorRequest&,
                    v1::ExplainTensorResponse*, const std::function<bool()>& is_cancelled = {});
absl::Status Answer(const AnswerContext&, const v1::DescribeTilingRequest&,
                    v1::DescribeTilingResponse*);
absl::Status Answer(const AnswerContext&, const v1::ListPresetsRequest&, v1::ListPresetsResponse*);

// Defined in resolve_batches.cc.
//
// The answer may take a second. It calls `is_cancelled` (may be null) before each item of the
// batch. If `is_cancelled` returns true, the answer ends with CANCELLED.
absl::Status Answer(const AnswerContext&, const v1::BatchResolveSpecsRequest&,
                    v1::BatchResolveSpecsResponse*, const std::function<bool()>& is_cancelled = {});
absl::Status Answer(const AnswerContext&, const v1::BatchConstrainArraysRequest&,
                    v1::BatchConstrainArraysResponse*,
                    const std::function<bool()>& is_cancelled = {});

// Defined in resolve_profiles.cc.
absl::Status Answer(const AnswerContext&, const v1::DescribeProfileRequest&,
                    v1::DescribeProfileResponse*);
absl::Status Answer(const AnswerContext&, const compat::v1::ComputeHashRequest&,
                    compat::v1::ComputeHashResponse*);

// Defined in resolve_meshes.cc.
absl::Status Answer(const AnswerContext&, const v1::DescribeMeshRequest&,
                    v1::DescribeMeshResponse*);
absl::Status Answer(const AnswerContext&, const compat::v1::QueryMeshRequest&,
                    compat::v1::QueryMeshResponse*);
absl::Status Answer(const AnswerContext&, const compat::v1::ListSpecAxesRequest&,
                    compat::v1::ListSpecAxesResponse*);

// Defined in resolve_rules.cc.
//
// The answer may take a second. It calls `is_cancelled` (may be null) regularly. If `is_cancelled`
// returns true, the answer ends with CANCELLED.
absl::Status Answer(const AnswerContext&, const compat::v1::ParsePatternRulesRequest&,
                    compat::v1::ParsePatternRulesResponse*,
                    const std::function<bool()>& is_cancelled = {});
absl::Status Answer(const AnswerContext&, const v1::CheckPatternRequest&, v1::CheckPatternResponse*,
                    const std::function<bool()>& is_cancelled = {});
absl::Status Answer(const AnswerContext&, const v1::RewriteRulesRequest&, v1::RewriteRulesResponse*,
                    const std::function<bool()>& is_cancelled = {});

// Defined in resolve_logical.cc.
absl::Status Answer(const AnswerContext&, const v1::ComposeLogicalRulesRequest&,
                    v1::ComposeLogicalRulesResponse*);
absl::Status Answer(const AnswerContext&, const v1::ResolveLogicalAxesRequest&,
                    v1::ResolveLogicalAxesResponse*);

// Defined in resolve_layers.cc.
absl::Status Answer(const AnswerContext&, const compat::v1::ResolveOutputSpecRequest&,
                    compat::v1::ResolveOutputSpecResponse*);
absl::Status Answer(const AnswerContext&, const compat::v1::CheckTensorParallelRequest&,
                    compat::v1::CheckTensorParallelResponse*);
absl::Status Answer(const AnswerContext&, const compat::v1::DescribeLinearLayerRequest&,
                    compat::v1::DescribeLinearLayerResponse*);
absl::Status Answer(const AnswerContext&, const compat::v1::PromoteDtypesRequest&,
                    compat::v1::PromoteDtypesResponse*);

// Defined in resolve_plans.cc.
//
// The answer may take a second. It calls `is_cancelled` regularly. If `is_cancelled` returns true,
// the answer ends with CANCELLED.
absl::Status Answer(const AnswerContext&, const v1::PlanReshardRequest&, v1::PlanReshardResponse*,
                    const std::function<bool()>& is_cancelled);

// Declares the variable `lhs` and sets it to a decoded field of the request. If decoding failed,
// returns the error with the field's name.
#define SHARDMESH_DECODE(lhs, field, decoded)                   \
  auto lhs##_or = (decoded);                                    \
  if (!lhs##_or.ok()) {                                         \
    return rpc::WithField(std::move(lhs##_or).status(), field); \
  }                                                             \
  auto lhs = *std::move(lhs##_or)

// Return the selected value, which the request gives inline or by name. If the request gives
// neither, the result is:
//   - for a mesh: INVALID_ARGUMENT (MISSING_ARGUMENT);
//   - for a profile: the default profile;
//   - for logical rules: no rules.
// Errors for names are those of Definitions::FindReferred.
absl::StatusOr<Mesh> SelectMesh(const Definitions& state, const v1::MeshSelector& selector,
                                Compatibility compatibility);
// Returns the error for a question without a mesh.
absl::Status NoMeshGiven();
// Returns the named mesh with its workers. Errors are those of SelectMesh. An inline mesh has no
// workers.
absl::StatusOr<std::shared_ptr<const MeshDefinition>> FindMesh(const Definitions& state,
                                                               const v1::MeshSelector& selector);
absl::StatusOr<PartitionAxis> SelectProfile(const Definitions& state,
                                            const v1::ProfileSelector& selector);
// Returns the selected rules; nullopt if none are selected. Compiles inline rules and the rules of
// a replaced version, which may take long: see CompilesLong. Calls `is_cancelled`, if given, while
// it compiles. If `is_cancelled` returns true, the result is CANCELLED.
absl::StatusOr<std::optional<RuleSetDefinition>> SelectRules(
    const Definitions& state, const v1::RuleSetSelector& selector, Compatibility compatibility,
    const std::function<bool()>& is_cancelled = {});

// Maximum number of instructions of patterns that a reaction (gRPC callback) may compile, as
// counted by Pattern::CompileCostBound. Compiling this many instructions takes about five
// milliseconds. The limit allows more than twenty ordinary rules.
inline constexpr int64_t kMostInstructionsAtOnce = 16'384;

// Return whether compiling may exceed kMostInstructionsAtOnce: compiling the pattern, or the rules.
bool CompilesLong(std::string_view pattern);
bool CompilesLong(const v1::RuleSet& rules);

// Return whether compiling and searching may take too long for a reaction (gRPC callback). That is
// so if compiling does (CompilesLong), and if a pattern may need backtracking. A selector that
// names a version of a rule set always counts as long, because that version may have any rules.
// `pattern`: one pattern, or a text with several.
bool SearchesLong(std::string_view pattern);
bool SearchesLong(const Definitions& state, const v1::RuleSetSelector& selector);

// Returns the stored tree; null for an empty reference. Errors name the field `stored_tree`.
absl::StatusOr<std::shared_ptr<const StoredTree>> SelectTree(const Definitions& state,
                                                             const std::string& reference);
absl::StatusOr<LogicalRules> SelectLogicalRules(const Definitions& state,
                                                const v1::LogicalRulesSelector& selector);

// Adds to the error of a layout the path of the request's field that caused the error. That is the
// field of the mode or of the mesh, or `field`, which requests the layout.
absl::Status WithLayoutField(absl::Status status, std::string_view field);

// Maximum number of devices that a question or an answer may list.
inline constexpr int64_t kMaxListedDevices = 65'536;

// Returns LIMIT_EXCEEDED, with `field`, if `count` exceeds `limit`. `what` names the counted
// things.
absl::Status CheckCount(int64_t count, int64_t limit, std::string_view what,
                        std::string_view field);

// Returns BAD_FIELD, with `field[index]`, if `device` is not a device of the mesh.
absl::Status CheckDevice(int64_t device, const Mesh& mesh, std::string_view field, int index);

// Returns the error of a question under which corrections are errors. Its reason is that of the
// first correction. Its message has the first few corrections and the fixes of the first one. The
// error also carries all corrections and their fixes, for rpc::CorrectionsOf.
absl::Status RefuseCorrections(const PartitionSpec& requested, absl::Span<const int64_t> shape,
                               const Mesh& mesh, const CorrectionResult& corrected);

// Encodes the corrections, each with its fixes if `suggest_fixes` is true.
void EncodeCorrections(const PartitionSpec& requested, absl::Span<const int64_t> shape,
                       const Mesh& mesh, const CorrectionResult& corrected, bool suggest_fixes,
                       google::protobuf::RepeatedPtrField<v1::Correction>* to);

// A metric: the number of corrections by reason. Thread-safe.
class CorrectionCounter {
 public:
  // Null `metrics`: nothing is counted.
  explicit CorrectionCounter(rpc::Metrics* metrics);

  void Count(const CorrectionTally& tally) const;

 private:
  std::vector<rpc::Counter> counters_;  // by index in CorrectionTally::kReasons
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESOLVE_RESOLVE_ANSWERS_H_
