// Counts the facts behind findings in one pass over the tree, then makes the findings from the
// counts.
#include "sharding/rules/rule_lint.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "sharding/correction.h"
#include "sharding/pattern/syntax.h"
#include "sharding/rules/rule_explanation.h"
#include "sharding/spec.h"
#include "sharding/usual_axes.h"
#include "status/python_repr.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// Upper bound on the pairs of overlapping rules that the lint counts separately; it ignores further
// pairs. Real rule sets have hundreds of such pairs. Ten thousand adversarial rules could have
// fifty million.
constexpr size_t kMaxPairs = 1'000'000;
constexpr int64_t kTakersNamed = 3;
constexpr int64_t kNearestNamed = 3;
constexpr size_t kTreesNamed = 3;
constexpr size_t kAxesNamed = 3;

// A profile gives equal answers in both modes of a pair, so the lint resolves only the first mode.
constexpr RuntimeMode kModePairs[2][2] = {{RuntimeMode::kTrain, RuntimeMode::kPrefill},
                                          {RuntimeMode::kAutoregressive, RuntimeMode::kInsert}};

// The tensors for which a fact holds.
struct Tally {
  int64_t count = 0;
  size_t tensor = 0;  // index of the first tensor, or of the worst one (see AddWorst)
  int64_t elements = -1;
  std::vector<Finding::InTree> trees = {};

  // Requires the tensors in order of their trees.
  void Add(int64_t tree) {
    ++count;
    if (trees.empty() || trees.back().tree != tree) {
      trees.push_back({.tree = tree});
    }
    ++trees.back().tensors;
  }
  void AddFirst(size_t index, int64_t tree) {
    if (count == 0) {
      tensor = index;
    }
    Add(tree);
  }
  void AddWorst(size_t index, int64_t tree, int64_t size) {
    Add(tree);
    if (size > elements) {
      elements = size;
      tensor = index;
    }
  }
  friend bool operator==(const Tally&, const Tally&) = default;
};

// Returns the spec that a rule set gives a tensor for a matching rule. Leaves out the parts that
// have no effect, such as trailing nones, so that equal layouts compare equal.
std::vector<SpecEntry> Applied(const RuleSet& rules, int64_t rule, const LintTensor& tensor,
                               int64_t elements) {
  if (rules.strict() && elements < rules.min_size()) {
    return {};
  }
  const absl::Span<const SpecEntry> entries =
      rules.rules()[static_cast<size_t>(rule)].spec.entries();
  size_t size =
      tensor.shape.has_value() ? std::min(entries.size(), tensor.shape->size()) : entries.size();
  while (size > 0 && entries[size - 1].is_none()) {
    --size;
  }
  return {entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(size)};
}

// Returns a text such as `rule 3 'attn/.*kernel'`.
std::string RuleText(const RuleSet& rules, int64_t rule) {
  return StrCat("rule ", rule, " ", QuotePattern(rules.rules()[static_cast<size_t>(rule)].pattern));
}

std::string RuleTexts(const RuleSet& rules, absl::Span<const int64_t> indices) {
  return StrJoin(indices, ", ",
                 [&rules](std::string* out, int64_t rule) { out->append(RuleText(rules, rule)); });
}

std::string Tensors(int64_t count) { return StrCat(count, count == 1 ? " tensor" : " tensors"); }

std::string ReasonText(Reason reason) {
  switch (reason) {
    case Reason::kNotDivisible:
      return "the product of the axes does not divide the dimension";
    case Reason::kRankTruncated:
      return "the spec is longer than the rank, and is cut";
    case Reason::kUnconstrained:
      return "a dimension is left open, and is not partitioned";
    default:
      return std::string(ReasonName(reason));
  }
}

// Returns how a spec is written, for an axis that is more likely a faulty spelling of null or of
// several axes than a name; else an empty string.
std::string SpellingHint(std::string_view axis) {
  for (const std::string_view none : {"none", "null", "nil", "-", "~"}) {
    if (absl::EqualsIgnoreCase(ToAbsl(axis), ToAbsl(none))) return "write null for no axis";
  }
  return axis.find_first_of("+, ") != std::string_view::npos ? "write [a, b] for several axes" : "";
}

bool HasAxis(const Mesh& mesh, std::string_view name) {
  const absl::Span<const MeshAxis> axes = mesh.axes();
  return std::any_of(axes.begin(), axes.end(),
                     [name](const MeshAxis& axis) { return axis.name == name; });
}

// Stands for "no mesh" in the keys of Linter's maps.
constexpr int64_t kNoMesh = -1;

class Linter {
 public:
  Linter(const RuleSet& rules, absl::Span<const LintTensor> tree, const PartitionAxis* profile,
         absl::Span<const LintMesh> meshes, const LintOptions& options)
      : rules_(rules), tree_(tree), profile_(profile), meshes_(meshes), options_(options) {}

  absl::StatusOr<LintReport> Lint();

 private:
  // The subject of a finding: a rule (rule >= 0), or tensors' own axes in a pair of modes.
  struct Subject {
    int64_t rule = -1;
    int mode_pair = 0;

    friend auto operator<=>(const Subject&, const Subject&) = default;
  };
  using Blame = std::tuple<Subject, int64_t, Reason>;  // the number is a mesh, or kNoMesh

  absl::Status LookAtRules(size_t index, int64_t elements);
  void LookAtAxes(size_t index, int64_t elements);
  // Corrects a spec on every mesh, and counts the corrections.
  void LookAtSpec(const Subject& subject, const PartitionSpec& spec, size_t index,
                  int64_t elements);

  // Returns whether the rule set replicates the tensor without a search, because of its shape.
  bool IsUnaskedScalar(const LintTensor& tensor) const {
    return tensor.axes == nullptr && rules_.ReplicatesUnasked(tensor.shape);
  }
  bool IsCancelled() const { return options_.is_cancelled != nullptr && options_.is_cancelled(); }
  absl::Status Cancelled(size_t tensors) const {
    return absl::CancelledError(
        StrCat("the lint was cancelled after ", tensors, " of ", tree_.size(), " tensors"));
  }
  void Report();
  void ReportTrees();
  void ReportRules();
  void ReportBlames(Finding::Kind kind, const std::map<Blame, Tally>& blames);
  void ReportMisspeltAxes();
  // Returns the hint on an axis that no mesh has, such as `did you mean 'fsdp'?`. Returns an empty
  // string if the axis may be right, for a mesh that was not given.
  std::string MisspeltAxisHint(std::string_view axis) const;
  // Counts the finding. Below max_findings_per_kind, also lists it, with the text that `fill`
  // returns.
  template <typename Fill>
  void Add(Finding finding, const Fill& fill);
  // Returns ` (in tree 'a', tree 'b' and 2 more)`; an empty string if there is only one tree.
  std::string TreesText(const Finding& finding) const;
  // Returns `the mesh lacks the axis 'fsd' (did you mean 'fsdp'?)`.
  std::string AbsentAxesText(Subject subject, int64_t mesh,
                             absl::Span<const RuntimeMode> modes) const;
  std::string MeshName(int64_t mesh) const {
    return mesh == kNoMesh ? "" : meshes_[static_cast<size_t>(mesh)].name;
  }

  const RuleSet& rules_;
  const absl::Span<const LintTensor> tree_;
  const PartitionAxis* const profile_;
  const absl::Span<const LintMesh> meshes_;
  const LintOptions& options_;

  int64_t asked_ = 0;           // number of tensors that rules decide
  std::vector<Tally> matched_;  // for each rule, the tensors whose names contain its pattern
  std::vector<Tally> won_;      // for each rule, the tensors that the rule decides
  struct Pair {
    int64_t count = 0;  // number of tensors that the first rule decides and the second also matches
    Tally differing;    // the tensors among these for which the two rules' specs differ
  };
  absl::flat_hash_map<std::pair<int64_t, int64_t>, Pair> pairs_;
  // For each rule, the tensors for whose names its search takes too many steps.
  struct Slow {
    Tally tensors;
    std::string text;  // the error for the first tensor
  };
  std::map<int64_t, Slow> given_up_;
  std::vector<Tally> unmatched_;  // one for each name that no rule matches
  absl::flat_hash_map<std::string_view, size_t> unmatched_names_;
  std::map<Blame, Tally> bad_axes_;
  std::map<Reason, std::string> bad_axes_errors_;  // the first error of each reason
  std::map<Blame, Tally> duplicates_;
  std::map<Blame, Tally> corrected_;
  // For each subject and mesh: the axes that the mesh lacks, in order of appearance.
  std::map<std::pair<Subject, int64_t>, std::vector<std::string>> absent_axes_;
  // For each rule and each axis of it that a mesh lacks: the tensors that the rule decides.
  std::map<std::pair<int64_t, std::string>, Tally> lacking_;
  LintReport report_;
  SearchBudget budget_;  // for all tensors
};

absl::StatusOr<LintReport> Linter::Lint() {
  matched_.resize(rules_.rules().size());
  won_.resize(rules_.rules().size());
  report_.trees.resize(std::max<size_t>(1, options_.trees.size()));
  for (size_t i = 0; i < tree_.size(); ++i) {
    if (IsCancelled()) {
      return Cancelled(i);
    }
    const LintTensor& tensor = tree_[i];
    int64_t elements = 0;
    if (tensor.shape.has_value()) {
      const absl::StatusOr<int64_t> count = ElementCount(*tensor.shape);
      if (!count.ok()) {
        return WithContext(count.status(), StrCat("tensor ", PythonRepr(tensor.name)));
      }
      elements = *count;
    }
    SHARDMESH_RETURN_IF_ERROR(LookAtRules(i, elements));
    LookAtAxes(i, elements);
    LintTreeReport& tree = report_.trees[static_cast<size_t>(tensor.tree)];
    ++tree.tensors;
    tree.scalars += IsUnaskedScalar(tensor) ? 1 : 0;
  }
  Report();
  if (IsCancelled()) {
    return Cancelled(tree_.size());
  }
  return std::move(report_);
}

absl::Status Linter::LookAtRules(size_t index, int64_t elements) {
  const LintTensor& tensor = tree_[index];
  if (tensor.axes != nullptr || IsUnaskedScalar(tensor)) {
    return absl::OkStatus();
  }
  ++asked_;
  const RulesOfName rules = rules_.MatchingRules(tensor.name, options_.is_cancelled, &budget_);
  const std::vector<int64_t>& matching = rules.matching;
  for (const RulesOfName::GivenUp& given_up : rules.given_up) {
    const auto [slow, is_new] = given_up_.try_emplace(given_up.rule);
    if (is_new) {
      slow->second.text = ToStd(given_up.status.message());
    }
    slow->second.tensors.AddFirst(index, tensor.tree);
  }
  for (const int64_t rule : matching) {
    matched_[static_cast<size_t>(rule)].AddFirst(index, tensor.tree);
  }
  if (matching.empty() && !rules.given_up.empty()) {
    return absl::OkStatus();  // a rule may match it
  }
  if (matching.empty()) {
    const auto [known, is_new] = unmatched_names_.try_emplace(tensor.name, unmatched_.size());
    if (is_new) {
      unmatched_.emplace_back();
    }
    unmatched_[known->second].AddFirst(index, tensor.tree);
    return absl::OkStatus();
  }
  const int64_t winner = matching.front();
  won_[static_cast<size_t>(winner)].AddFirst(index, tensor.tree);
  const std::vector<SpecEntry> applied = Applied(rules_, winner, tensor, elements);
  for (size_t i = 1; i < matching.size(); ++i) {
    const std::pair<int64_t, int64_t> key(winner, matching[i]);
    auto pair = pairs_.find(key);
    if (pair == pairs_.end()) {
      if (pairs_.size() >= kMaxPairs) {
        continue;
      }
      pair = pairs_.emplace(key, Pair{}).first;
    }
    ++pair->second.count;
    if (Applied(rules_, matching[i], tensor, elements) != applied) {
      pair->second.differing.AddFirst(index, tensor.tree);
    }
  }

  const PartitionSpec& spec = rules_.rules()[static_cast<size_t>(winner)].spec;
  const bool below_min_size = rules_.strict() && elements < rules_.min_size();
  if (below_min_size || !tensor.shape.has_value()) {
    return absl::OkStatus();
  }
  const Subject subject{.rule = winner};
  const size_t rank = tensor.shape->size();
  const absl::Span<const SpecEntry> entries = spec.entries();
  if (std::any_of(entries.begin() + static_cast<std::ptrdiff_t>(std::min(entries.size(), rank)),
                  entries.end(), [](const SpecEntry& entry) { return !entry.is_none(); })) {
    corrected_[{subject, kNoMesh, Reason::kRankTruncated}].AddWorst(index, tensor.tree, elements);
  }
  LookAtSpec(subject, spec, index, elements);
  return absl::OkStatus();
}

void Linter::LookAtAxes(size_t index, int64_t elements) {
  const LintTensor& tensor = tree_[index];
  if (profile_ == nullptr || tensor.axes == nullptr) {
    return;
  }
  for (int mode_pair = 0; mode_pair < 2; ++mode_pair) {
    const Subject subject{.rule = -1, .mode_pair = mode_pair};
    const absl::StatusOr<PartitionSpec> spec =
        profile_->ResolveSpec(*tensor.axes, kModePairs[mode_pair][0], options_.compatibility);
    if (!spec.ok()) {
      const Blame blame = {subject, kNoMesh, ReasonOf(spec.status())};
      bad_axes_[blame].AddFirst(index, tensor.tree);
      bad_axes_errors_.try_emplace(ReasonOf(spec.status()), ToStd(spec.status().message()));
    } else {
      LookAtSpec(subject, *spec, index, elements);
    }
  }
}

void Linter::LookAtSpec(const Subject& subject, const PartitionSpec& spec, size_t index,
                        int64_t elements) {
  const std::optional<Shape>& shape = tree_[index].shape;
  const int64_t tree = tree_[index].tree;
  if (meshes_.empty() || !shape.has_value()) {
    if (!spec.DuplicateAxes().empty()) {
      duplicates_[{subject, kNoMesh, Reason::kUnspecified}].AddFirst(index, tree);
    }
    return;
  }
  std::vector<std::string> lacking;
  for (size_t mesh = 0; mesh < meshes_.size(); ++mesh) {
    const auto mesh_key = static_cast<int64_t>(mesh);
    const absl::StatusOr<CorrectionResult> result = Correct(spec, *shape, meshes_[mesh].mesh);
    if (!result.ok()) {
      if (ReasonOf(result.status()) == Reason::kDuplicateAxis) {
        duplicates_[{subject, mesh_key, Reason::kUnspecified}].AddFirst(index, tree);
      }
      continue;
    }
    std::vector<Reason> seen;
    for (const Correction& correction : result->corrections) {
      // Skip the cut of a rule's surplus entries: it does not depend on the mesh, and LookAtRules
      // counts it.
      const bool counted = subject.rule >= 0 && correction.reason == Reason::kRankTruncated;
      if (!counted && std::find(seen.begin(), seen.end(), correction.reason) == seen.end()) {
        seen.push_back(correction.reason);
        corrected_[{subject, mesh_key, correction.reason}].AddWorst(index, tree, elements);
      }
      for (const std::string& axis : correction.absent_axes) {
        std::vector<std::string>& absent = absent_axes_[{subject, mesh_key}];
        if (std::find(absent.begin(), absent.end(), axis) == absent.end()) absent.push_back(axis);
        if (std::find(lacking.begin(), lacking.end(), axis) == lacking.end()) {
          lacking.push_back(axis);
        }
      }
    }
  }
  if (subject.rule < 0) return;
  for (const std::string& axis : lacking) lacking_[{subject.rule, axis}].AddFirst(index, tree);
}

std::string Linter::MisspeltAxisHint(std::string_view axis) const {
  // An axis of another given mesh is right, and a mesh often lacks a usual axis.
  if (std::find(std::begin(kUsualAxes), std::end(kUsualAxes), axis) != std::end(kUsualAxes) ||
      std::any_of(meshes_.begin(), meshes_.end(),
                  [axis](const LintMesh& mesh) { return HasAxis(mesh.mesh, axis); })) {
    return "";
  }
  if (std::string hint = SpellingHint(axis); !hint.empty()) return hint;
  for (const LintMesh& mesh : meshes_) {
    const std::string nearest = mesh.mesh.NearestAxis(axis);
    // Names of two letters, such as `cp` and `tp`, are near one another without being misspelt.
    if (!nearest.empty() &&
        (axis.size() > 2 || absl::EqualsIgnoreCase(ToAbsl(axis), ToAbsl(nearest)))) {
      return StrCat("did you mean ", PythonRepr(nearest), "?");
    }
  }
  return "";
}

void Linter::ReportMisspeltAxes() {
  for (const auto& [key, tally] : lacking_) {
    const auto& [rule, axis] = key;
    const std::string hint = MisspeltAxisHint(axis);
    if (hint.empty()) continue;
    Add({.kind = Finding::Kind::kMisspeltAxis,
         .rules = {rule},
         .tensor = tree_[tally.tensor].name,
         .reason = Reason::kAxisNotInMesh,
         .count = tally.count,
         .trees = tally.trees},
        [&](const Finding& listed) {
          return StrCat(RuleText(rules_, listed.rules.front()), ": no mesh has the axis ",
                        PythonRepr(axis), "; ", hint);
        });
  }
}

std::string Linter::AbsentAxesText(Subject subject, int64_t mesh,
                                   absl::Span<const RuntimeMode> modes) const {
  std::vector<std::string> axes;
  const auto add_axes = [&] {
    const auto found = absent_axes_.find({subject, mesh});
    if (found == absent_axes_.end()) return;
    for (const std::string& axis : found->second) {
      if (std::find(axes.begin(), axes.end(), axis) == axes.end()) axes.push_back(axis);
    }
  };
  add_axes();
  if (std::find(modes.begin(), modes.end(), kModePairs[1][0]) != modes.end()) {
    subject.mode_pair = 1;  // add the axes of the second pair, which the finding includes
    add_axes();
  }
  if (axes.empty()) return "the mesh lacks an axis";  // only a none within a tuple is absent
  const size_t named = std::min(axes.size(), kAxesNamed);
  std::string text = axes.size() == 1 ? "the mesh lacks the axis " : "the mesh lacks the axes ";
  for (size_t i = 0; i < named; ++i) {
    StrAppend(&text, i == 0 ? "" : ", ", PythonRepr(axes[i]));
    // A usual axis that the mesh lacks is not a misspelling of another usual axis: suggest nothing.
    if (std::find(std::begin(kUsualAxes), std::end(kUsualAxes), axes[i]) != std::end(kUsualAxes)) {
      continue;
    }
    const std::string nearest = meshes_[static_cast<size_t>(mesh)].mesh.NearestAxis(axes[i]);
    if (!nearest.empty()) StrAppend(&text, " (did you mean ", PythonRepr(nearest), "?)");
  }
  if (axes.size() > named) StrAppend(&text, " and ", axes.size() - named, " more");
  return text;
}

template <typename Fill>
void Linter::Add(Finding finding, const Fill& fill) {
  int64_t& count = report_.counts[static_cast<size_t>(finding.kind)];
  // Make only the texts of listed findings: a text names the nearest rules, which are slow to find.
  if (count++ < options_.max_findings_per_kind && !IsCancelled()) {
    finding.text = StrCat(fill(finding), TreesText(finding));
    report_.findings.push_back(std::move(finding));
  }
}

std::string Linter::TreesText(const Finding& finding) const {
  if (options_.trees.size() < 2 || finding.trees.empty()) {
    return "";
  }
  if (finding.trees.size() == options_.trees.size()) {
    return StrCat(" (in all ", finding.trees.size(), " trees)");
  }
  const size_t named = std::min(finding.trees.size(), kTreesNamed);
  std::vector<std::string_view> names;
  for (const Finding::InTree& in : absl::MakeConstSpan(finding.trees).first(named)) {
    names.push_back(options_.trees[static_cast<size_t>(in.tree)]);
  }
  const size_t more = finding.trees.size() - named;
  return StrCat(" (in ", StrJoin(names, ", "),
                more == 0 ? std::string() : StrCat(" and ", more, " more"), ")");
}

void Linter::ReportTrees() {
  int64_t usable = 0;
  std::vector<int64_t> matching(report_.trees.size());
  std::vector<int64_t> deciding(report_.trees.size());
  for (size_t rule = 0; rule < matched_.size(); ++rule) {
    const bool is_given_up = given_up_.contains(static_cast<int64_t>(rule));
    usable += rules_.PatternStatus(static_cast<int64_t>(rule)).ok() && !is_given_up ? 1 : 0;
    if (is_given_up) {
      continue;  // neither dead nor shadowed: some searches did not end
    }
    for (const Finding::InTree& in : matched_[rule].trees) {
      ++matching[static_cast<size_t>(in.tree)];
    }
    for (const Finding::InTree& in : won_[rule].trees) {
      ++deciding[static_cast<size_t>(in.tree)];
    }
  }
  for (size_t tree = 0; tree < report_.trees.size(); ++tree) {
    report_.trees[tree].dead_rules = usable - matching[tree];
    report_.trees[tree].shadowed_rules = matching[tree] - deciding[tree];
  }
  for (const Tally& tally : unmatched_) {
    for (const Finding::InTree& in : tally.trees) {
      report_.trees[static_cast<size_t>(in.tree)].unmatched_tensors += in.tensors;
    }
  }
}

void Linter::ReportRules() {
  const auto rule_count = static_cast<int64_t>(rules_.rules().size());
  for (int64_t rule = 0; rule < rule_count; ++rule) {
    const absl::Status status = rules_.PatternStatus(rule);
    if (!status.ok()) {
      Add({.kind = Finding::Kind::kBadPattern, .rules = {rule}, .reason = ReasonOf(status)},
          [&](const Finding&) { return std::string(status.message()); });
    }
    if (const auto slow = given_up_.find(rule); slow != given_up_.end()) {
      const Tally& tensors = slow->second.tensors;
      Add({.kind = Finding::Kind::kBadPattern,
           .rules = {rule},
           .tensor = tree_[tensors.tensor].name,
           .reason = Reason::kLimitExceeded,
           .count = tensors.count,
           .trees = tensors.trees},
          [&](const Finding& finding) { return slow->second.text + TreesText(finding); });
    }
  }
  for (int64_t rule = 0; rule < rule_count; ++rule) {
    if (matched_[static_cast<size_t>(rule)].count == 0 && rules_.PatternStatus(rule).ok() &&
        !given_up_.contains(rule)) {
      Add({.kind = Finding::Kind::kDead, .rules = {rule}}, [&](const Finding&) {
        return StrCat(RuleText(rules_, rule), " matches none of ", Tensors(asked_), " that ",
                      asked_ == 1 ? "goes" : "go", " by rules",
                      options_.trees.size() < 2 ? std::string()
                                                : StrCat(", of ", options_.trees.size(), " trees"));
      });
    }
  }

  // Order the pairs by their second rule, then by their first: the pairs of a shadowed rule are
  // then adjacent.
  std::vector<std::pair<std::pair<int64_t, int64_t>, const Pair*>> pairs;
  pairs.reserve(pairs_.size());
  for (const auto& [key, pair] : pairs_) {
    pairs.emplace_back(std::pair(key.second, key.first), &pair);
  }
  std::sort(pairs.begin(), pairs.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  auto next = pairs.begin();
  for (int64_t rule = 0; rule < rule_count; ++rule) {
    const auto first = std::find_if(next, pairs.end(),
                                    [rule](const auto& pair) { return pair.first.first >= rule; });
    next = std::find_if(first, pairs.end(),
                        [rule](const auto& pair) { return pair.first.first > rule; });
    const Tally& matched = matched_[static_cast<size_t>(rule)];
    if (matched.count == 0 || won_[static_cast<size_t>(rule)].count > 0 ||
        given_up_.contains(rule)) {
      continue;
    }
    std::vector<std::pair<int64_t, int64_t>> takers;  // (negated count, rule)
    for (auto pair = first; pair != next; ++pair) {
      takers.emplace_back(-pair->second->count, pair->first.second);
    }
    std::sort(takers.begin(), takers.end());
    Finding finding{.kind = Finding::Kind::kShadowed,
                    .rules = {rule},
                    .tensor = tree_[matched.tensor].name,
                    .count = matched.count,
                    .trees = matched.trees};
    for (const auto& [count, taker] : takers) {
      if (static_cast<int64_t>(finding.rules.size()) <= kTakersNamed) {
        finding.rules.push_back(taker);
      }
    }
    Add(std::move(finding), [&](const Finding& listed) {
      return StrCat(
          RuleText(rules_, rule), " decides nothing: ",
          matched.count == 1 ? "the one tensor" : StrCat("all ", matched.count, " tensors"),
          " that it matches ", matched.count == 1 ? "goes" : "go", " to ",
          RuleTexts(rules_, absl::MakeConstSpan(listed.rules).subspan(1)));
    });
  }

  std::sort(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.second, a.first.first) < std::pair(b.first.second, b.first.first);
  });
  for (const auto& [key, pair] : pairs) {
    const int64_t later = key.first;
    const int64_t earlier = key.second;
    if (pair->differing.count == 0 || pair->count == won_[static_cast<size_t>(earlier)].count ||
        won_[static_cast<size_t>(later)].count == 0) {
      continue;
    }
    Add({.kind = Finding::Kind::kConflicting,
         .rules = {earlier, later},
         .tensor = tree_[pair->differing.tensor].name,
         .count = pair->differing.count,
         .trees = pair->differing.trees},
        [&](const Finding& listed) {
          const absl::Span<const Rule> rules = rules_.rules();
          return StrCat(RuleText(rules_, earlier), " and ", RuleText(rules_, later), " both match ",
                        Tensors(listed.count), ", such as ", PythonRepr(listed.tensor),
                        ", and only the order of the two makes the spec ",
                        rules[static_cast<size_t>(earlier)].spec.ToString(), " instead of ",
                        rules[static_cast<size_t>(later)].spec.ToString());
        });
  }

  for (const Tally& tally : unmatched_) {
    Add({.kind = Finding::Kind::kUnmatched,
         .tensor = tree_[tally.tensor].name,
         .count = tally.count,
         .trees = tally.trees},
        [&](const Finding& listed) {
          const std::vector<int64_t> nearest =
              NearestRules(rules_.rules(), listed.tensor, kNearestNamed);
          return StrCat("no rule matches ", PythonRepr(listed.tensor),
                        nearest.empty() ? "" : "; nearest: ", RuleTexts(rules_, nearest));
        });
  }
}

void Linter::ReportBlames(Finding::Kind kind, const std::map<Blame, Tally>& blames) {
  const auto add = [&](const Blame& blame, const Tally& tally, std::vector<RuntimeMode> modes) {
    const auto& [subject, mesh, reason] = blame;
    Finding finding{.kind = kind,
                    .tensor = tree_[tally.tensor].name,
                    .modes = std::move(modes),
                    .mesh = MeshName(mesh),
                    .reason = reason,
                    .count = tally.count,
                    .trees = tally.trees};
    if (subject.rule >= 0) {
      finding.rules = {subject.rule};
    }
    Add(std::move(finding), [&](const Finding& listed) {
      const std::string who =
          subject.rule >= 0 ? RuleText(rules_, subject.rule)
                            : StrCat("axes in ", StrJoin(listed.modes, ", ",
                                                         [](std::string* out, RuntimeMode mode) {
                                                           out->append(RuntimeModeName(mode));
                                                         }));
      const std::string where =
          listed.mesh.empty() ? "" : StrCat(" on mesh ", PythonRepr(listed.mesh));
      const std::string what =
          kind == Finding::Kind::kBadAxes
              ? StrCat("do not resolve (", bad_axes_errors_.at(reason), ")")
          : kind == Finding::Kind::kDuplicateAxis ? std::string("an axis is used twice")
          : reason == Reason::kAxisNotInMesh      ? AbsentAxesText(subject, mesh, listed.modes)
                                                  : ReasonText(reason);
      return StrCat(who, where, ": ", what, ", for ", Tensors(tally.count),
                    kind == Finding::Kind::kCorrected ? ", the largest " : ", the first ",
                    PythonRepr(listed.tensor));
    });
  };
  const std::vector<RuntimeMode> all = {kModePairs[0][0], kModePairs[0][1], kModePairs[1][0],
                                        kModePairs[1][1]};
  for (const auto& [blame, tally] : blames) {
    const auto& [subject, mesh, reason] = blame;
    if (subject.rule >= 0) {
      add(blame, tally, {});
    }
  }
  // Report facts about axes in the order of meshes. Report a fact that holds in all modes only
  // once.
  std::map<std::pair<int64_t, Reason>, std::vector<std::pair<Blame, Tally>>> by_mesh;
  for (const auto& [blame, tally] : blames) {
    const auto& [subject, mesh, reason] = blame;
    if (subject.rule < 0) {
      by_mesh[{mesh, reason}].emplace_back(blame, tally);
    }
  }
  for (const auto& [key, pairs] : by_mesh) {
    if (pairs.size() == 2 && pairs[0].second == pairs[1].second) {
      add(pairs[0].first, pairs[0].second, all);
      continue;
    }
    for (const auto& [blame, tally] : pairs) {
      const auto& modes = kModePairs[std::get<Subject>(blame).mode_pair];
      add(blame, tally, {modes[0], modes[1]});
    }
  }
}

void Linter::Report() {
  ReportTrees();
  ReportRules();
  ReportBlames(Finding::Kind::kBadAxes, bad_axes_);
  ReportBlames(Finding::Kind::kDuplicateAxis, duplicates_);
  ReportBlames(Finding::Kind::kCorrected, corrected_);
  ReportMisspeltAxes();
}

}  // namespace

std::string_view FindingKindName(Finding::Kind kind) {
  switch (kind) {
    case Finding::Kind::kBadPattern:
      return "BAD_PATTERN";
    case Finding::Kind::kDead:
      return "DEAD";
    case Finding::Kind::kShadowed:
      return "SHADOWED";
    case Finding::Kind::kConflicting:
      return "CONFLICTING";
    case Finding::Kind::kUnmatched:
      return "UNMATCHED";
    case Finding::Kind::kBadAxes:
      return "BAD_AXES";
    case Finding::Kind::kDuplicateAxis:
      return "DUPLICATE_AXIS";
    case Finding::Kind::kCorrected:
      return "CORRECTED";
    case Finding::Kind::kMisspeltAxis:
      return "MISSPELT_AXIS";
  }
  return "UNKNOWN";
}

absl::StatusOr<LintReport> LintRules(const RuleSet& rule_set, absl::Span<const LintTensor> tree,
                                     const PartitionAxis* profile,
                                     absl::Span<const LintMesh> meshes,
                                     const LintOptions& options) {
  return Linter(rule_set, tree, profile, meshes, options).Lint();
}

}  // namespace shardmesh
