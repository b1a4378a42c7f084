// Matches or resolves, corrects and counts the tensors of a tree.
#include "server/tree_resolver.h"

#include <utility>

#include "absl/time/clock.h"
#include "sharding/logical_sharding.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"
#include "sharding/tile.h"

namespace shardmesh::server {
namespace {

std::string TextOf(const TreeSpec& spec) {
  std::string text = StrCat(spec.requested.ToString(), "|", spec.effective.ToString());
  for (const Correction& correction : spec.corrections) {
    StrAppend(&text, "|", correction.ToString());
  }
  return text;
}

// The shape as rules see it: scalars have one.
std::vector<NamedShape> ForRules(absl::Span<const TreeTensor> tensors,
                                 const std::vector<std::string>& names) {
  std::vector<NamedShape> shapes;
  shapes.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    shapes.push_back({.name = names[i], .shape = absl::MakeConstSpan(tensors[i].shape)});
  }
  return shapes;
}

}  // namespace

absl::StatusOr<PartitionSpec> TreeResolver::ResolveAxes(const TreeTensor& tensor) const {
  return ResolveSpec(question_.profile,
                     LogicalQuestion{.axes = absl::MakeConstSpan(tensor.axes),
                                     .mode = question_.mode.value_or(RuntimeMode::kTrain),
                                     .shape = absl::MakeConstSpan(tensor.shape),
                                     .compatibility = question_.compatibility});
}

absl::StatusOr<TreeResolver::Placed> TreeResolver::Place(TreeSpec spec, const Shape& shape) {
  Placed placed;
  if (question_.mesh.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(CorrectionResult corrected,
                               Correct(spec.effective, shape, *question_.mesh));
    spec.effective = std::move(corrected.effective);
    spec.corrections.insert(spec.corrections.end(), corrected.corrections.begin(),
                            corrected.corrections.end());
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling,
                               Tiling::Create(*question_.mesh, spec.effective, shape));
    placed.fully_replicated = tiling.FullyReplicated();
    SHARDMESH_ASSIGN_OR_RETURN(placed.shard_elements, ElementCount(tiling.ShardShape()));
  }
  placed.corrected = !spec.corrections.empty();
  if (placed.corrected && question_.strict) {
    const Correction& first = spec.corrections.front();
    return InvalidArgument(first.reason, first.ToString());
  }
  const auto [known, is_new] =
      spec_indexes_.try_emplace(TextOf(spec), static_cast<uint32_t>(specs_.size()));
  if (is_new) {
    specs_.push_back(std::move(spec));
  }
  placed.spec_index = known->second;
  return placed;
}

absl::Status TreeResolver::Count(const TreeTensor& tensor, const Placed& placed,
                                 TreePlacement* placement) {
  ++summary_.tensors;
  summary_.corrected_tensors += placed.corrected ? 1 : 0;
  summary_.replicated_tensors += placed.fully_replicated ? 1 : 0;
  if (!question_.mesh.has_value() || !tensor.dtype.has_value()) {
    return absl::OkStatus();
  }
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(tensor.shape));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, PackedSizeBytes(*tensor.dtype, elements));
  SHARDMESH_ASSIGN_OR_RETURN(placement->bytes_per_device,
                             PackedSizeBytes(*tensor.dtype, placed.shard_elements));
  summary_.devices = question_.mesh->size();
  summary_.total_bytes += bytes;
  // Corrected specs cut every dimension into equal parts: each device holds the same.
  summary_.min_bytes_per_device += placement->bytes_per_device;
  summary_.max_bytes_per_device += placement->bytes_per_device;
  summary_.replicated_bytes += placement->bytes_per_device * question_.mesh->size() - bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TreePlacement>> TreeResolver::Add(
    absl::Span<const TreeTensor> tensors, const std::function<bool()>& is_cancelled) {
  if (summary_.tensors + static_cast<int64_t>(tensors.size()) > kMaxTensors) {
    return WithReason(
        absl::ResourceExhaustedError(StrCat("the tree has more than ", kMaxTensors, " tensors")),
        Reason::kLimitExceeded);
  }
  std::vector<std::string> rule_names;
  std::vector<TreeTensor> by_rule;
  for (const TreeTensor& tensor : tensors) {
    if (!names_.insert(std::string(tensor.name)).second) {
      return InvalidArgument(Reason::kBadField,
                             StrCat("tensor ", PythonRepr(tensor.name), " is listed twice"));
    }
    if (!tensor.axes.empty()) {
      continue;
    }
    if (!question_.rules.has_value()) {
      return InvalidArgument(Reason::kMissingArgument,
                             StrCat("tensor \"", tensor.name,
                                    "\" has neither axes nor rules; give a rule set or its axes"));
    }
    rule_names.push_back(rpc::NameForRules(*question_.rules, tensor.name));
    by_rule.push_back(tensor);
  }
  std::vector<RuleMatch> matches;
  if (!by_rule.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(
        matches, question_.rules->rules.MatchTree(ForRules(by_rule, rule_names),
                                                  {.strategy = MatchStrategy::kFastest,
                                                   .cost_reading = absl::GetCurrentTimeNanos,
                                                   .is_cancelled = is_cancelled,
                                                   .keep_unmatched = question_.keep_unmatched}));
  }

  const absl::Span<const Rule> rule_specs =
      question_.rules.has_value() ? question_.rules->rules.rules() : absl::Span<const Rule>();
  std::vector<TreePlacement> placements;
  placements.reserve(tensors.size());
  auto match = matches.begin();
  for (const TreeTensor& tensor : tensors) {
    TreePlacement placement;
    absl::StatusOr<Placed> placed = Placed{};
    if (tensor.axes.empty()) {
      placement.rule = match->rule;
      placement.unmatched = match->unmatched;
      const RuleAndShape key{.rule = match->rule.value_or(-1), .shape = tensor.shape};
      if (const auto known = placed_by_rule_.find(key); known != placed_by_rule_.end()) {
        placed = known->second;
      } else {
        // What a rule asks for is not yet fitted to the tensor's rank and size.
        const bool fitted = !match->corrections.empty();
        placed =
            Place(TreeSpec{.requested = fitted ? rule_specs[static_cast<size_t>(*match->rule)].spec
                                               : match->spec,
                           .effective = match->spec,
                           .corrections = std::move(match->corrections)},
                  tensor.shape);
        if (placed.ok()) {
          placed_by_rule_.emplace(key, *placed);
        }
      }
      ++match;
    } else {
      absl::StatusOr<PartitionSpec> requested = ResolveAxes(tensor);
      placed =
          requested.ok()
              ? Place(TreeSpec{.requested = *requested, .effective = *requested, .corrections = {}},
                      tensor.shape)
              : requested.status();
    }
    absl::Status status = placed.status();
    if (status.ok()) {
      placement.spec_index = placed->spec_index;
      status = Count(tensor, *placed, &placement);
    }
    if (!status.ok()) {
      return WithContext(status, StrCat("tensor ", PythonRepr(tensor.name)));
    }
    placements.push_back(placement);
  }
  return placements;
}

}  // namespace shardmesh::server
