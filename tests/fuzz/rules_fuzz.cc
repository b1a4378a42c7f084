// Fuzzes rules as users write them, in one line and as a file: what is read says the same when it
// is written again, both ways of asking give one answer, and lint counts what matching finds.
//
// The input up to its first line's end is a text of rules, and all of it a file.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "rpc/config.h"
#include "sharding/partition_axis.h"
#include "sharding/rules/pattern_rules.h"
#include "sharding/rules/rule_lint.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/fuzz/fuzz.h"

namespace shardmesh::fuzz {
namespace {

const std::vector<LintTensor>& Tree() {
  static const std::vector<LintTensor>& tree = *new std::vector<LintTensor>{
      {.name = "layers.0.attention.kernel", .shape = Shape{64, 96}},
      {.name = "layers.0.mlp.w1", .shape = Shape{6, 4, 2}},
      {.name = "embed", .shape = Shape{1000, 8}},
      {.name = "norm.scale", .shape = Shape{7}},
      {.name = "a\xc3\xa9\n", .shape = Shape{0, 3}},
      {.name = "step", .shape = Shape{}},
      {.name = "leaf", .shape = std::nullopt},
  };
  return tree;
}

const std::vector<LintMesh>& Meshes() {
  static const std::vector<LintMesh>& meshes = *new std::vector<LintMesh>{
      {.name = "small", .mesh = *Mesh::Parse("dp=2,tp=4")},
      {.name = "wide", .mesh = *Mesh::Parse("dp=3,fsdp=5,tp=128")},
  };
  return meshes;
}

void RequireRefusal(const absl::Status& status) {
  Require(status.code() == absl::StatusCode::kInvalidArgument);
  Require(ReasonOf(status) != Reason::kUnspecified && !status.message().empty());
}

void CheckLint(const RuleSet& rules) {
  static const PartitionAxis& profile = *new PartitionAxis();
  const absl::StatusOr<LintReport> report = LintRules(rules, Tree(), &profile, Meshes());
  Require(report.ok());
  int64_t found = 0;
  for (const int64_t count : report->counts) {
    found += count;
  }
  Require(found >= static_cast<int64_t>(report->findings.size()));
  int64_t unmatched = 0;
  bool is_bad = false;
  for (const LintTensor& tensor : Tree()) {
    const OptionalShape shape =
        tensor.shape.has_value() ? OptionalShape(*tensor.shape) : std::nullopt;
    const absl::Status status = rules.Match(tensor.name, shape).status();
    unmatched += ReasonOf(status) == Reason::kUnmatchedTensor ? 1 : 0;
    is_bad = is_bad || !(status.ok() || ReasonOf(status) == Reason::kUnmatchedTensor);
  }
  Require(is_bad || report->counts[static_cast<size_t>(Finding::Kind::kUnmatched)] == unmatched);
}

bool AreEqual(absl::Span<const Rule> a, absl::Span<const Rule> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Rule& x, const Rule& y) {
    return x.pattern == y.pattern && x.spec == y.spec;
  });
}

// The rules as such a text, a piece each.
std::string TextOf(absl::Span<const Rule> rules) {
  return StrJoin(rules, ",", [](std::string* out, const Rule& rule) {
    StrAppend(out, rule.pattern, "->",
              StrJoin(rule.spec.entries(), ".", [](std::string* axes, const SpecEntry& entry) {
                StrAppend(axes, entry.is_none() ? "" : *entry.axes()[0]);
              }));
  });
}

void CheckText(std::string_view text) {
  const absl::StatusOr<std::vector<Rule>> rules = ParsePatternRules(text);
  if (!rules.ok()) {
    return RequireRefusal(rules.status());
  }
  const absl::StatusOr<std::vector<Rule>> again = ParsePatternRules(TextOf(*rules));
  Require(again.ok() && AreEqual(*again, *rules));

  const PartitionSpec otherwise({SpecEntry::Axis("dp")});
  const absl::StatusOr<PatternRules> checked = PatternRules::Create(text, otherwise, Mesh());
  const absl::StatusOr<PatternRules> exact =
      PatternRules::Create(text, otherwise, Meshes()[0].mesh, Compatibility::kExact);
  if (!exact.ok()) {
    return RequireRefusal(exact.status());
  }
  for (const LintTensor& tensor : Tree()) {
    const absl::StatusOr<PartitionSpec> reached = exact->SpecOf(tensor.name);
    if (!checked.ok()) {
      RequireRefusal(checked.status());
      continue;
    }
    const absl::StatusOr<std::optional<int64_t>> rule = checked->RuleOf(tensor.name);
    Require(rule.ok() && reached.ok());
    Require(*reached ==
            (rule->has_value() ? checked->rules()[static_cast<size_t>(**rule)].spec : otherwise));
  }
  RuleSetOptions options;
  options.defer_pattern_errors = true;
  const absl::StatusOr<RuleSet> rule_set = RuleSet::Create(*rules, options);
  Require(rule_set.ok());
  CheckLint(*rule_set);
}

void CheckFile(std::string_view text) {
  const auto checked = rpc::ParseRules(text, "rules.yaml");
  const auto exact = rpc::ParseRules(text, "rules.yaml", Compatibility::kExact);
  if (checked.ok()) {
    Require(exact.ok());
    CheckLint(checked->rules);
    const auto again = rpc::ParseRules(rpc::FormatRules(*checked), "again.yaml");
    Require(again.ok());
    Require(AreEqual(again->rules.rules(), checked->rules.rules()));
    Require(again->slashes == checked->slashes);
    Require(again->rules.strict() == checked->rules.strict());
  } else {
    RequireRefusal(checked.status());
  }
  if (exact.ok()) {
    CheckLint(exact->rules);
  }
}

}  // namespace

void Check(std::string_view input) {
  CheckText(input.substr(0, input.find('\n')));
  CheckFile(input);
}

}  // namespace shardmesh::fuzz
