// Resolves, corrects and counts the tensors of a tree.
#include "server/resolve/tree_resolver.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/time/clock.h"
#include "server/resolve/resolve_answers.h"
#include "sharding/layout/logical_sharding.h"
#include "sharding/mesh_query.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Maximum number of tensors between two checks for cancellation. Matching one tensor against many
// rules makes further checks.
constexpr size_t kTensorsPerCancellationCheck = 8;

constexpr int64_t kNoRuleAsked = -1;
constexpr int64_t kNoRuleMatched = -2;

std::string TextOf(const TreeSpec& spec) {
  std::string text = StrCat(spec.requested.ToString(), "|", spec.effective.ToString());
  for (const Correction& correction : spec.corrections) {
    StrAppend(&text, "|", correction.ToString());
  }
  return text;
}

// Returns an error for a spec that has an axis twice, or that has an axis which the mesh lacks.
absl::Status CheckSuits(const PartitionSpec& spec, const Mesh& mesh) {
  SHARDMESH_RETURN_IF_ERROR(CheckDistinctAxes(spec));
  return CheckAxesInMesh(spec, mesh);
}

}  // namespace

TreeResolver::TreeResolver(TreeQuestion question) : question_(std::move(question)) {
  if (question_.rules.has_value()) {
    finder_.emplace(question_.rules->rules, MatchStrategy::kFastest, absl::GetCurrentTimeNanos);
  }
}

absl::StatusOr<std::unique_ptr<TreeResolver>> TreeResolver::Create(TreeQuestion question) {
  auto resolver = std::unique_ptr<TreeResolver>(new TreeResolver(std::move(question)));
  if (resolver->question_.mesh.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(resolver->analysis_,
                               LayoutAnalysis::Create(*resolver->question_.mesh));
  }
  return resolver;
}

absl::Status TreeResolver::Remember(std::string_view name) {
  const auto [place, is_new] = names_.insert({ToAbsl(name), absl::HashOf(name)});
  if (!is_new) {
    return InvalidArgument(Reason::kBadField, "the tensor is listed twice", {{fact::kValue, name}});
  }
  char* const bytes = static_cast<char*>(name_bytes_.allocate(name.size(), 1));
  std::memcpy(bytes, name.data(), name.size());
  // The key now points to a copy of the same bytes, so its hash and equality do not change.
  const_cast<absl::string_view&>(place->bytes) = absl::string_view(bytes, name.size());
  return absl::OkStatus();
}

absl::StatusOr<TreeSpec> TreeResolver::Request(const TreeTensor& tensor, std::string_view rule_name,
                                               const SourceView& source) const {
  TreeSpec spec;
  if (tensor.spec != nullptr) {
    if (question_.own_specs_must_suit_mesh && question_.mesh.has_value()) {
      SHARDMESH_RETURN_IF_ERROR(CheckSuits(*tensor.spec, *question_.mesh));
    }
    spec.requested = *tensor.spec;
    spec.effective = spec.requested;
  } else if (tensor.axes != nullptr) {
    SHARDMESH_ASSIGN_OR_RETURN(
        spec.requested,
        ResolveSpec(question_.profile,
                    LogicalQuestion{.axes = absl::MakeConstSpan(*tensor.axes),
                                    .mode = question_.mode.value_or(RuntimeMode::kTrain),
                                    .shape = tensor.shape,
                                    .compatibility = question_.compatibility}));
    spec.effective = spec.requested;
  } else if (source.rule >= 0) {
    const RuleSet& rules = question_.rules->rules;
    SHARDMESH_ASSIGN_OR_RETURN(RuleMatch match, rules.Apply(source.rule, rule_name, tensor.shape));
    // The requested spec is the rule's own spec, not the one that Apply fitted to the tensor's rank
    // and size.
    spec.requested = match.corrections.empty()
                         ? match.spec
                         : rules.rules()[static_cast<size_t>(source.rule)].spec;
    spec.effective = std::move(match.spec);
    spec.corrections = std::move(match.corrections);
    // With a mesh, the correction reports repeated axes. The original libraries report repeated
    // axes only when an array is placed, so EXACT skips this check.
    if (!question_.mesh.has_value() && question_.compatibility != Compatibility::kExact) {
      SHARDMESH_RETURN_IF_ERROR(CheckDistinctAxes(spec.effective));
    }
  }
  return spec;
}

absl::StatusOr<TreeResolver::Placed> TreeResolver::Place(TreeSpec spec, const TreeTensor& tensor) {
  Placed placed;
  SHARDMESH_ASSIGN_OR_RETURN(placed.elements, ElementCount(tensor.shape));
  if (question_.mesh.has_value()) {
    const PartSizes sizes =
        question_.uneven == UnevenCuts::kEqualOnly ? PartSizes::kEqual : PartSizes::kAny;
    SHARDMESH_ASSIGN_OR_RETURN(CorrectionResult corrected,
                               Correct(spec.effective, tensor.shape, *question_.mesh, sizes));
    spec.effective = std::move(corrected.effective);
    spec.corrections.insert(spec.corrections.end(), corrected.corrections.begin(),
                            corrected.corrections.end());
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<CutPoints> cuts,
                               CutByRule(question_.uneven, question_.weights, *question_.mesh,
                                         spec.effective, tensor.shape));
    SHARDMESH_ASSIGN_OR_RETURN(
        placed.tiling,
        Tiling::Create(*question_.mesh, spec.effective,
                       Shape(tensor.shape.begin(), tensor.shape.end()), std::move(cuts)));
    placed.fully_replicated = placed.tiling->FullyReplicated();
    SHARDMESH_ASSIGN_OR_RETURN(placed.shard_elements, ElementCount(placed.tiling->ShardShape()));
  }
  placed.corrected = !spec.corrections.empty();
  if (placed.corrected && question_.strict) {
    return RefuseCorrections(spec.requested, tensor.shape, question_.mesh.value_or(Mesh()),
                             {.effective = spec.effective, .corrections = spec.corrections});
  }
  const auto [known, is_new] =
      spec_indexes_.try_emplace(TextOf(spec), static_cast<uint32_t>(specs_.size()));
  if (is_new) {
    spec.shape.assign(tensor.shape.begin(), tensor.shape.end());
    specs_.push_back(std::move(spec));
    uses_.push_back(0);
  }
  placed.spec_index = known->second;
  return placed;
}

absl::StatusOr<TreePlacement> TreeResolver::Answer(const TreeTensor& tensor,
                                                   const std::function<bool()>& is_cancelled) {
  SHARDMESH_RETURN_IF_ERROR(Remember(tensor.name));
  SourceView source = {.given = tensor.spec != nullptr ? static_cast<const void*>(tensor.spec)
                                                       : static_cast<const void*>(tensor.axes),
                       .rule = kNoRuleAsked,
                       .shape = tensor.shape};
  std::string_view rule_name = tensor.name;
  if (source.given == nullptr) {
    if (!question_.rules.has_value()) {
      return InvalidArgument(
          Reason::kMissingArgument,
          "there are neither axes nor a spec nor rules; give a rule set, or axes "
          "or a spec with the tensor",
          {{fact::kField, "rules"}});
    }
    if (question_.rules->slashes) {
      rule_name_.assign(tensor.name);
      std::replace(rule_name_.begin(), rule_name_.end(), '.', '/');
      rule_name = rule_name_;
    }
    if (!question_.rules->rules.ReplicatesUnasked(tensor.shape)) {
      SHARDMESH_ASSIGN_OR_RETURN(const std::optional<int64_t> rule,
                                 finder_->Find(rule_name, is_cancelled));
      if (!rule.has_value() && !question_.keep_unmatched) {
        return question_.rules->rules.UnmatchedError(rule_name);
      }
      source.rule = rule.value_or(kNoRuleMatched);
    }
  }
  auto known = placed_.find(source);
  if (known == placed_.end()) {
    SHARDMESH_ASSIGN_OR_RETURN(TreeSpec spec, Request(tensor, rule_name, source));
    SHARDMESH_ASSIGN_OR_RETURN(Placed placed, Place(std::move(spec), tensor));
    known = placed_
                .emplace(Source{source.given, source.rule,
                                Shape(tensor.shape.begin(), tensor.shape.end())},
                         std::move(placed))
                .first;
  }
  const Placed& placed = known->second;
  TreePlacement placement = {.spec_index = placed.spec_index,
                             .unmatched = source.rule == kNoRuleMatched};
  if (source.rule >= 0) {
    placement.rule = source.rule;
  }
  if (placed.tiling.has_value() && tensor.dtype.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(placement.bytes_per_device,
                               TileBytes(placed.shard_elements, BitsPerElement(*tensor.dtype)));
    SHARDMESH_RETURN_IF_ERROR(
        analysis_->Add(tensor.name, *placed.tiling, BitsPerElement(*tensor.dtype)));
  }
  ++uses_[placed.spec_index];
  ++counts_.tensors;
  if (__builtin_add_overflow(counts_.parameters, placed.elements, &counts_.parameters)) {
    return WithReason(absl::ResourceExhaustedError("the tree has more than 2^63 - 1 elements"),
                      Reason::kLimitExceeded,
                      {{fact::kLimit, std::numeric_limits<int64_t>::max()}});
  }
  counts_.sharded_parameters += placed.fully_replicated ? 0 : placed.elements;
  counts_.corrected += placed.corrected ? 1 : 0;
  counts_.replicated += placed.fully_replicated ? 1 : 0;
  counts_.unmatched += placement.unmatched ? 1 : 0;
  return placement;
}

absl::StatusOr<std::vector<TreePlacement>> TreeResolver::Add(
    absl::Span<const TreeTensor> tensors, const std::function<bool()>& is_cancelled) {
  if (counts_.tensors + static_cast<int64_t>(tensors.size()) > kMaxTensors) {
    return WithReason(
        absl::ResourceExhaustedError(StrCat("the tree has more than ", kMaxTensors, " tensors")),
        Reason::kLimitExceeded, {{fact::kLimit, kMaxTensors}});
  }
  std::vector<TreePlacement> placements;
  placements.reserve(tensors.size());
  for (const TreeTensor& tensor : tensors) {
    if (placements.size() % kTensorsPerCancellationCheck == 0 && is_cancelled != nullptr &&
        is_cancelled()) {
      return absl::CancelledError(
          StrCat("cancelled after ", counts_.tensors, " tensors of the tree"));
    }
    absl::StatusOr<TreePlacement> placement = Answer(tensor, is_cancelled);
    if (!placement.ok()) {
      return WithContext(placement.status(), StrCat("tensor ", PythonRepr(tensor.name)));
    }
    placements.push_back(*placement);
  }
  return placements;
}

}  // namespace shardmesh::server
