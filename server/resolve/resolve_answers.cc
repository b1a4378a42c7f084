// Shared parts of the answers to questions: selectors, corrections and their fixes.
#include "server/resolve/resolve_answers.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "rpc/codec/correction_codec.h"
#include "sharding/layout/fixes.h"
#include "sharding/pattern/pattern.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Maximum number of corrections that the message of an error has. Programs read all of them from
// the error's details.
constexpr size_t kMostCorrectionsInMessage = 4;

}  // namespace

absl::Status NoMeshGiven() {
  // There is no default mesh: the answer for an unintended mesh would look right.
  return InvalidArgument(Reason::kMissingArgument,
                         "no mesh is given; name one of the catalog (`default` is what a cluster "
                         "starts with), or give one by value",
                         {{fact::kField, "mesh"}});
}

absl::StatusOr<Mesh> SelectMesh(const Definitions& state, const v1::MeshSelector& selector,
                                Compatibility compatibility) {
  if (selector.has_value()) {
    auto mesh = rpc::Decode(selector.value(), std::nullopt, compatibility);
    return mesh.ok() ? mesh : rpc::WithField(mesh.status(), "value");
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto mesh, FindMesh(state, selector));
  return mesh->mesh;
}

absl::StatusOr<std::shared_ptr<const MeshDefinition>> FindMesh(const Definitions& state,
                                                               const v1::MeshSelector& selector) {
  if (!selector.has_name()) return NoMeshGiven();
  SHARDMESH_DECODE(mesh, "name", state.FindMesh(selector.name()));
  return mesh;
}

absl::StatusOr<PartitionAxis> SelectProfile(const Definitions& state,
                                            const v1::ProfileSelector& selector) {
  switch (selector.profile_case()) {
    case v1::ProfileSelector::kValue: {
      auto profile = rpc::Decode(selector.value());
      return profile.ok() ? profile : rpc::WithField(profile.status(), "value");
    }
    case v1::ProfileSelector::kName: {
      SHARDMESH_DECODE(profile, "name", state.FindProfile(selector.name()));
      return *profile;
    }
    case v1::ProfileSelector::PROFILE_NOT_SET:
      break;
  }
  static const PartitionAxis* const kDefaults = new PartitionAxis();
  return *kDefaults;
}

absl::StatusOr<std::optional<RuleSetDefinition>> SelectRules(
    const Definitions& state, const v1::RuleSetSelector& selector, Compatibility compatibility,
    const std::function<bool()>& is_cancelled) {
  switch (selector.rule_set_case()) {
    case v1::RuleSetSelector::kName: {
      SHARDMESH_DECODE(rules, "name", state.FindRuleSet(selector.name(), is_cancelled));
      return *rules;
    }
    case v1::RuleSetSelector::kValue: {
      SHARDMESH_DECODE(
          rules, "value",
          rpc::Decode(selector.value(), compatibility, state.min_sharding_size(), is_cancelled));
      return std::optional<RuleSetDefinition>(std::move(rules));
    }
    case v1::RuleSetSelector::RULE_SET_NOT_SET:
      break;
  }
  return std::nullopt;
}

bool CompilesLong(std::string_view pattern) {
  return Pattern::CompileCostBound(pattern) > kMostInstructionsAtOnce;
}

bool CompilesLong(const v1::RuleSet& rules) {
  int64_t bound = 0;
  for (const v1::Rule& rule : rules.rules()) {
    bound += Pattern::CompileCostBound(rule.pattern());
    if (bound > kMostInstructionsAtOnce) {
      return true;
    }
  }
  return false;
}

bool SearchesLong(std::string_view pattern) {
  return CompilesLong(pattern) || Pattern::MayBacktrack(pattern);
}

bool SearchesLong(const Definitions& state, const v1::RuleSetSelector& selector) {
  if (NamesVersion(selector.name())) {
    return true;
  }
  if (selector.rule_set_case() == v1::RuleSetSelector::kName) {
    const auto stored = state.FindRuleSet(selector.name());
    return stored.ok() && (*stored)->rules.backtracks();
  }
  const auto& rules = selector.value().rules();
  return CompilesLong(selector.value()) ||
         std::any_of(rules.begin(), rules.end(),
                     [](const v1::Rule& rule) { return Pattern::MayBacktrack(rule.pattern()); });
}

absl::StatusOr<std::shared_ptr<const StoredTree>> SelectTree(const Definitions& state,
                                                             const std::string& reference) {
  if (reference.empty()) {
    return nullptr;
  }
  auto tree = state.FindTree(reference);
  return tree.ok() ? tree : rpc::WithField(tree.status(), "stored_tree");
}

absl::Status WithLayoutField(absl::Status status, std::string_view field) {
  switch (ReasonOf(status)) {
    case Reason::kInvalidDimension:
    case Reason::kMissingArgument:
      return rpc::WithField(std::move(status), "mode");
    case Reason::kNoMesh:
      return rpc::WithField(std::move(status), "mesh");
    default:
      return rpc::WithField(std::move(status), field);
  }
}

absl::Status CheckCount(int64_t count, int64_t limit, std::string_view what,
                        std::string_view field) {
  if (count <= limit) {
    return absl::OkStatus();
  }
  return rpc::WithField(InvalidArgument(Reason::kLimitExceeded,
                                        StrCat(count, " ", what, " are over the limit of ", limit),
                                        {{fact::kHave, count}, {fact::kLimit, limit}}),
                        field);
}

absl::Status CheckDevice(int64_t device, const Mesh& mesh, std::string_view field, int index) {
  if (device >= 0 && device < mesh.size()) {
    return absl::OkStatus();
  }
  return rpc::WithField(InvalidArgument(Reason::kBadField,
                                        StrCat("device ", device, " is not one of the ",
                                               mesh.size(), " of ", mesh.ToString()),
                                        {{fact::kValue, device}}),
                        field, static_cast<size_t>(index));
}

absl::StatusOr<LogicalRules> SelectLogicalRules(const Definitions& state,
                                                const v1::LogicalRulesSelector& selector) {
  switch (selector.logical_rules_case()) {
    case v1::LogicalRulesSelector::kName: {
      SHARDMESH_DECODE(rules, "name", state.FindLogicalRules(selector.name()));
      return *rules;
    }
    case v1::LogicalRulesSelector::kValue: {
      SHARDMESH_DECODE(rules, "value", rpc::Decode(selector.value()));
      return rules;
    }
    case v1::LogicalRulesSelector::LOGICAL_RULES_NOT_SET:
      break;
  }
  return LogicalRules();
}

absl::Status RefuseCorrections(const PartitionSpec& requested, absl::Span<const int64_t> shape,
                               const Mesh& mesh, const CorrectionResult& corrected) {
  const Correction& first = corrected.corrections.front();
  const bool is_only = corrected.corrections.size() == 1;
  const std::vector<Fix> suggested = SuggestFixes(requested, shape, mesh, corrected);
  std::vector<std::string> fixes;
  for (const Fix& fix : suggested) {
    if (fix.correction != 0) continue;
    // The text of the fix covers only this correction, but for a new order. Its spec covers all.
    if (is_only || fix.kind == Fix::Kind::kAxisOrder) {
      fixes.push_back(fix.text);
    } else if (fix.kind == Fix::Kind::kPaddedSize) {
      fixes.push_back(StrCat(fix.text, " and ask for ", DescribeAxes(fix.spec)));
    } else {
      fixes.push_back(StrCat("ask for ", DescribeAxes(fix.spec)));
    }
  }
  std::string message = StrJoinFirst(kMostCorrectionsInMessage, corrected.corrections, "; ",
                                     [&mesh](std::string* out, const Correction& correction) {
                                       out->append(correction.ToString(mesh));
                                     });
  if (!fixes.empty()) {
    StrAppend(&message, "; to mend ", is_only ? "it" : "them", ", ", StrJoin(fixes, ", or "));
  }
  return rpc::WithCorrections(InvalidArgument(first.reason, message), corrected.corrections,
                              suggested, mesh);
}

void EncodeCorrections(const PartitionSpec& requested, absl::Span<const int64_t> shape,
                       const Mesh& mesh, const CorrectionResult& corrected, bool suggest_fixes,
                       google::protobuf::RepeatedPtrField<v1::Correction>* to) {
  for (const Correction& correction : corrected.corrections) {
    v1::Correction* const added = to->Add();
    rpc::Encode(correction, added);
    added->set_message(correction.ToString(mesh));
  }
  if (suggest_fixes && !corrected.corrections.empty()) {
    for (const Fix& fix : SuggestFixes(requested, shape, mesh, corrected)) {
      rpc::Encode(fix, to->Mutable(static_cast<int>(fix.correction))->add_fixes());
    }
  }
}

void CorrectionTally::Add(const std::vector<Correction>& corrections, int64_t times) {
  for (const Correction& correction : corrections) {
    const auto reason = std::find(kReasons.begin(), kReasons.end(), correction.reason);
    if (reason != kReasons.end()) {
      counts_[static_cast<size_t>(std::distance(kReasons.begin(), reason))] += times;
    }
  }
}

CorrectionCounter::CorrectionCounter(rpc::Metrics* metrics) {
  if (metrics == nullptr) {
    return;
  }
  for (const Reason reason : CorrectionTally::kReasons) {
    counters_.push_back(metrics->AddCounter("shardmesh_corrections_total",
                                            "Changes made to requested specs so that they fit.",
                                            {{"reason", std::string(ReasonName(reason))}}));
  }
}

void CorrectionCounter::Count(const CorrectionTally& tally) const {
  for (size_t i = 0; i < counters_.size(); ++i) {
    if (tally.counts()[i] != 0) {
      counters_[i].Add(static_cast<double>(tally.counts()[i]));
    }
  }
}

}  // namespace shardmesh::server
