// The answers to questions, by topic. Each function decodes a request, calls the algebra, and
// encodes the answer. The services of questions call them; none blocks, or locks for long.
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

// How many corrections of each reason were made.
class CorrectionTally {
 public:
  static constexpr std::array kReasons = {Reason::kNotDivisible, Reason::kAxisNotInMesh,
                                          Reason::kRankTruncated, Reason::kBelowMinSize,
                                          Reason::kUnconstrained};

  // Counts each of the corrections `times` times.
  void Add(const std::vector<Correction>& corrections, int64_t times = 1);

  // Counts by the reason's index in kReasons.
  const std::array<int64_t, kReasons.size()>& counts() const { return counts_; }

 private:
  std::array<int64_t, kReasons.size()> counts_ = {};
};

// The mesh and the profile that the questions of a batch share: each is looked up or decoded when
// the first question needs it, and then kept.
class SharedSelections {
 public:
  // All outlive it.
  SharedSelections(const Definitions& state, const v1::MeshSelector& mesh,
                   const v1::ProfileSelector& profile)
      : state_(state), mesh_(mesh), profile_(profile) {}

  // Return the result of SelectMesh and SelectProfile. Valid as long as this object.
  const absl::StatusOr<Mesh>& mesh(Compatibility compatibility);
  const absl::StatusOr<PartitionAxis>& profile();

 private:
  const Definitions& state_;
  const v1::MeshSelector& mesh_;
  const v1::ProfileSelector& profile_;
  std::map<Compatibility, absl::StatusOr<Mesh>> meshes_;
  std::optional<absl::StatusOr<PartitionAxis>> found_profile_;
};

// The input of an answer, and records of its work. Valid for the call. An answer depends only on
// the request and the state.
struct AnswerContext {
  const Definitions& state;
  CorrectionTally& corrections;
  // For a question of a batch that names no mesh or no profile itself; null: it is asked alone.
  SharedSelections* shared = nullptr;
};

// The answer to one request; `response` is empty before. Errors as in the contract, each with the
// path of the invalid field.

// resolve_specs.cc
absl::Status Answer(const AnswerContext&, const v1::ResolveEffectiveSpecRequest&,
                    v1::ResolveEffectiveSpecResponse*);
absl::Status Answer(const AnswerContext&, const v1::ResolveSpecRequest&, v1::ResolveSpecResponse*);
absl::Status Answer(const AnswerContext&, const v1::ResolveAxesRequest&, v1::ResolveAxesResponse*);
absl::Status Answer(const AnswerContext&, const v1::CorrectSpecRequest&, v1::CorrectSpecResponse*);
absl::Status Answer(const AnswerContext&, const v1::ConstrainArrayRequest&,
                    v1::ConstrainArrayResponse*);
absl::Status Answer(const AnswerContext&, const v1::CompareSpecsRequest&,
                    v1::CompareSpecsResponse*);
// The rules may take long to compile: see CompilesLong. `is_cancelled` (may be null) is called
// meanwhile; true ends it with CANCELLED.
absl::Status Answer(const AnswerContext&, const v1::ExplainTensorRequest&,
                    v1::ExplainTensorResponse*, const std::function<bool()>& is_cancelled = {});
absl::Status Answer(const AnswerContext&, const v1::DescribeTilingRequest&,
                    v1::DescribeTilingResponse*);
absl::Status Answer(const AnswerContext&, const v1::ListPresetsRequest&, v1::ListPresetsResponse*);

// resolve_batches.cc
// Can take a second. `is_cancelled`, called before each item, may be null; true ends it with
// CANCELLED.
absl::Status Answer(const AnswerContext&, const v1::BatchResolveSpecsRequest&,
                    v1::BatchResolveSpecsResponse*, const std::function<bool()>& is_cancelled = {});
absl::Status Answer(const AnswerContext&, const v1::BatchConstrainArraysRequest&,
                    v1::BatchConstrainArraysResponse*,
                    const std::function<bool()>& is_cancelled = {});

// resolve_profiles.cc
absl::Status Answer(const AnswerContext&, const v1::DescribeProfileRequest&,
                    v1::DescribeProfileResponse*);
absl::Status Answer(const AnswerContext&, const compat::v1::ComputeHashRequest&,
                    compat::v1::ComputeHashResponse*);

// resolve_meshes.cc
absl::Status Answer(const AnswerContext&, const v1::DescribeMeshRequest&,
                    v1::DescribeMeshResponse*);
absl::Status Answer(const AnswerContext&, const compat::v1::QueryMeshRequest&,
                    compat::v1::QueryMeshResponse*);
absl::Status Answer(const AnswerContext&, const compat::v1::ListSpecAxesRequest&,
                    compat::v1::ListSpecAxesResponse*);

// resolve_rules.cc
// Can take a second. `is_cancelled`, called regularly, may be null; true ends it with CANCELLED.
absl::Status Answer(const AnswerContext&, const compat::v1::ParsePatternRulesRequest&,
                    compat::v1::ParsePatternRulesResponse*,
                    const std::function<bool()>& is_cancelled = {});
absl::Status Answer(const AnswerContext&, const v1::CheckPatternRequest&, v1::CheckPatternResponse*,
                    const std::function<bool()>& is_cancelled = {});
absl::Status Answer(const AnswerContext&, const v1::RewriteRulesRequest&, v1::RewriteRulesResponse*,
                    const std::function<bool()>& is_cancelled = {});

// resolve_logical.cc
absl::Status Answer(const AnswerContext&, const v1::ComposeLogicalRulesRequest&,
                    v1::ComposeLogicalRulesResponse*);
absl::Status Answer(const AnswerContext&, const v1::ResolveLogicalAxesRequest&,
                    v1::ResolveLogicalAxesResponse*);

// resolve_layers.cc
absl::Status Answer(const AnswerContext&, const compat::v1::ResolveOutputSpecRequest&,
                    compat::v1::ResolveOutputSpecResponse*);
absl::Status Answer(const AnswerContext&, const compat::v1::CheckTensorParallelRequest&,
                    compat::v1::CheckTensorParallelResponse*);
absl::Status Answer(const AnswerContext&, const compat::v1::DescribeLinearLayerRequest&,
                    compat::v1::DescribeLinearLayerResponse*);
absl::Status Answer(const AnswerContext&, const compat::v1::PromoteDtypesRequest&,
                    compat::v1::PromoteDtypesResponse*);

// Defined in resolve_plans.cc. May run as long as the answers above, and is cancelled in the same
// way.
absl::Status Answer(const AnswerContext&, const v1::PlanReshardRequest&, v1::PlanReshardResponse*,
                    const std::function<bool()>& is_cancelled);

// Decodes a field, and names it in the error.
#define SHARDMESH_DECODE(lhs, field, decoded)                   \
  auto lhs##_or = (decoded);                                    \
  if (!lhs##_or.ok()) {                                         \
    return rpc::WithField(std::move(lhs##_or).status(), field); \
  }                                                             \
  auto lhs = *std::move(lhs##_or)

// Return the selected value: inline, or by name. Without either: INVALID_ARGUMENT
// (MISSING_ARGUMENT) for a mesh, the default profile, no logical rules. Names are references:
// errors are those of Definitions::FindReferred.
absl::StatusOr<Mesh> SelectMesh(const Definitions& state, const v1::MeshSelector& selector,
                                Compatibility compatibility);
// The error for a question without a mesh.
absl::Status NoMeshGiven();
// Returns the named mesh with its workers. Errors are those of SelectMesh. An inline mesh has no
// workers.
absl::StatusOr<std::shared_ptr<const MeshDefinition>> FindMesh(const Definitions& state,
                                                               const v1::MeshSelector& selector);
absl::StatusOr<PartitionAxis> SelectProfile(const Definitions& state,
                                            const v1::ProfileSelector& selector);
// Returns the selected rules; nullopt if none are selected. Compiles inline rules, and those of a
// replaced version, for which see CompilesLong. Calls `is_cancelled`, if given, meanwhile; true
// ends it with CANCELLED.
absl::StatusOr<std::optional<RuleSetDefinition>> SelectRules(
    const Definitions& state, const v1::RuleSetSelector& selector, Compatibility compatibility,
    const std::function<bool()>& is_cancelled = {});

// Most instructions of patterns compiled in a reaction, by Pattern::CompileCostBound. It is about
// five milliseconds of work, and enough for more than twenty ordinary rules.
inline constexpr int64_t kMostInstructionsAtOnce = 16'384;

// Return whether compiling may exceed the limit above: for a pattern, for inline rules, and for a
// named version's rules, which may be any.
bool CompilesLong(std::string_view pattern);
bool CompilesLong(const v1::RuleSet& rules);
bool CompilesLong(const v1::RuleSetSelector& selector);

// Null for an empty reference. The error names `stored_tree`.
absl::StatusOr<std::shared_ptr<const StoredTree>> SelectTree(const Definitions& state,
                                                             const std::string& reference);
absl::StatusOr<LogicalRules> SelectLogicalRules(const Definitions& state,
                                                const v1::LogicalRulesSelector& selector);

// Names the field that causes the error of a layout: the mode, the mesh, or `field`, which requests
// the layout.
absl::Status WithLayoutField(absl::Status status, std::string_view field);

// Most devices that a question or an answer may list.
inline constexpr int64_t kMaxListedDevices = 65'536;

// Returns LIMIT_EXCEEDED of `field` if it has more than `limit` of `what`.
absl::Status CheckCount(int64_t count, int64_t limit, std::string_view what,
                        std::string_view field);

// Returns BAD_FIELD of `field[index]` if `device` is not a position of the mesh.
absl::Status CheckDevice(int64_t device, const Mesh& mesh, std::string_view field, int index);

// The first correction as an error, for STRICT, with its fixes in words. All corrections and their
// fixes are attached (rpc::CorrectionsOf).
absl::Status FirstCorrection(const PartitionSpec& requested, absl::Span<const int64_t> shape,
                             const Mesh& mesh, const CorrectionResult& corrected);

// Encodes the corrections, each with its fixes if requested.
void EncodeCorrections(const PartitionSpec& requested, absl::Span<const int64_t> shape,
                       const Mesh& mesh, const CorrectionResult& corrected, bool suggest_fixes,
                       google::protobuf::RepeatedPtrField<v1::Correction>* to);

// Corrections by reason, as a metric. Thread-safe.
class CorrectionCounter {
 public:
  // `metrics` may be null: then nothing is counted.
  explicit CorrectionCounter(rpc::Metrics* metrics);

  void Count(const CorrectionTally& tally) const;

 private:
  std::vector<rpc::Counter> counters_;  // by the place of the reason in the tally
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESOLVE_RESOLVE_ANSWERS_H_
