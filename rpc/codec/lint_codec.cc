// Converts findings about rules between messages and the types of sharding/.
#include "rpc/codec/lint_codec.h"

#include <optional>
#include <utility>

#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "sharding/mode.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {

// The wire's enum has the same kinds in the same order; its 0 means "not set".
static_assert(static_cast<int>(Finding::Kind::kBadPattern) + 1 ==
              v1::LintFinding::KIND_BAD_PATTERN);
static_assert(static_cast<int>(Finding::Kind::kMisspeltAxis) + 1 ==
              v1::LintFinding::KIND_MISSPELT_AXIS);
static_assert(v1::LintFinding::Kind_MAX == kFindingKindCount);

v1::LintFinding::Kind Encode(Finding::Kind kind) {
  return static_cast<v1::LintFinding::Kind>(static_cast<int>(kind) + 1);
}

void Encode(const Finding& from, v1::LintFinding* to) {
  to->set_kind(Encode(from.kind));
  for (const int64_t rule : from.rules) {
    to->add_rules(static_cast<int32_t>(rule));
  }
  to->set_tensor(from.tensor);
  to->set_tensors(from.count);
  to->set_mesh(from.mesh);
  for (const RuntimeMode mode : from.modes) {
    to->add_modes(std::string(RuntimeModeName(mode)));
  }
  if (from.reason != Reason::kUnspecified) {
    to->set_reason(Encode(from.reason));
  }
  for (const Finding::InTree& in : from.trees) {
    to->add_trees(static_cast<int32_t>(in.tree));
    to->add_tree_tensors(in.tensors);
  }
  to->set_message(from.text);
}

absl::StatusOr<Finding::Kind> Decode(v1::LintFinding::Kind from) {
  if (from < v1::LintFinding::KIND_BAD_PATTERN || from > v1::LintFinding::Kind_MAX) {
    return BadField("kind", "is no kind of finding that is known here");
  }
  return static_cast<Finding::Kind>(static_cast<int>(from) - 1);
}

absl::StatusOr<Finding> Decode(const v1::LintFinding& from) {
  Finding finding;
  auto kind = Decode(from.kind());
  if (!kind.ok()) {
    return std::move(kind).status();
  }
  finding.kind = *kind;
  finding.rules.assign(from.rules().begin(), from.rules().end());
  finding.tensor = from.tensor();
  finding.count = from.tensors();
  finding.mesh = from.mesh();
  for (int i = 0; i < from.modes_size(); ++i) {
    const auto mode = Mode::Parse(from.modes(i));
    const auto runtime_mode =
        mode.ok() ? mode->Resolve(std::nullopt) : absl::StatusOr<RuntimeMode>(mode.status());
    if (!runtime_mode.ok()) {
      return WithField(runtime_mode.status(), "modes", static_cast<size_t>(i));
    }
    finding.modes.push_back(*runtime_mode);
  }
  finding.reason = Decode(from.reason());
  if (from.trees_size() != from.tree_tensors_size()) {
    return BadField("tree_tensors", StrCat("has ", from.tree_tensors_size(), " entries for ",
                                           from.trees_size(), " trees"));
  }
  for (int i = 0; i < from.trees_size(); ++i) {
    finding.trees.push_back({.tree = from.trees(i), .tensors = from.tree_tensors(i)});
  }
  finding.text = from.message();
  return finding;
}

}  // namespace shardmesh::rpc
