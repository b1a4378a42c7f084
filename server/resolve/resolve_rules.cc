// Answers about rules: parsing a line of text, patterns, and rewriting rules without exclusions.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/tree_decoder.h"
#include "server/resolve/resolve_answers.h"
#include "sharding/pattern/pattern.h"
#include "sharding/rules/exclusion.h"
#include "sharding/rules/pattern_rules.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr size_t kMaxTextBytes = size_t{64} << 10;
constexpr int kMaxSearchedNames = 10'000;
// Maximum number of bytes of the rules in an answer. A spec that many patterns share is written
// once for each pattern, so an answer can be much longer than its request.
constexpr size_t kMaxRulesBytes = size_t{2} << 20;

absl::Status LimitExceeded(std::string_view field, std::string_view message, Facts facts) {
  return rpc::WithField(InvalidArgument(Reason::kLimitExceeded, message, facts), field);
}

// Checks the length of a name on which a pattern is tried. The name may be empty.
absl::Status CheckSearchedName(std::string_view name, std::string_view field) {
  return name.size() <= rpc::TreeDecoder::kMaxNameBytes
             ? absl::OkStatus()
             : LimitExceeded(
                   field,
                   StrCat("the name has ", name.size(), " bytes; at most ",
                          rpc::TreeDecoder::kMaxNameBytes, " are allowed"),
                   {{fact::kHave, name.size()}, {fact::kLimit, rpc::TreeDecoder::kMaxNameBytes}});
}

absl::Status EncodeRules(absl::Span<const Rule> from, std::string_view field,
                         google::protobuf::RepeatedPtrField<v1::Rule>* to) {
  size_t bytes = 0;
  for (const Rule& rule : from) {
    v1::Rule* const added = to->Add();
    added->set_pattern(rule.pattern);
    rpc::Encode(rule.spec, added->mutable_spec());
    if ((bytes += added->ByteSizeLong()) > kMaxRulesBytes) {
      return LimitExceeded(field,
                           StrCat("the ", from.size(), " rules come to more than ", kMaxRulesBytes,
                                  " bytes; ask for fewer at a time"),
                           {{fact::kLimit, kMaxRulesBytes}});
    }
  }
  return absl::OkStatus();
}

// Returns the mesh of the request, or an arbitrary mesh if the request has none. The original
// library requires a mesh, also for rules that do not depend on the mesh.
absl::StatusOr<Mesh> MeshForText(const AnswerContext& context,
                                 const compat::v1::ParsePatternRulesRequest& request,
                                 Compatibility compatibility) {
  return request.has_mesh() ? SelectMesh(context.state, request.mesh(), compatibility)
                            : Mesh::Parse("any=1");
}

}  // namespace

absl::Status Answer(const AnswerContext& context,
                    const compat::v1::ParsePatternRulesRequest& request,
                    compat::v1::ParsePatternRulesResponse* response,
                    const std::function<bool()>& is_cancelled) {
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  SHARDMESH_DECODE(default_spec, "default_spec", rpc::Decode(request.default_spec()));
  SHARDMESH_DECODE(mesh, "mesh", MeshForText(context, request, compatibility));
  if (request.text().size() > kMaxTextBytes) {
    return LimitExceeded("text",
                         StrCat("the rules' text has ", request.text().size(), " bytes; at most ",
                                kMaxTextBytes, " are allowed, store a rule set instead"),
                         {{fact::kHave, request.text().size()}, {fact::kLimit, kMaxTextBytes}});
  }
  SHARDMESH_RETURN_IF_ERROR(CheckSearchedName(request.name(), "name"));
  auto rules = PatternRules::Create(request.text(), std::move(default_spec), mesh, compatibility,
                                    is_cancelled);
  if (!rules.ok()) {
    const bool is_about_mesh = ReasonOf(rules.status()) == Reason::kNoMesh;
    return rpc::WithField(std::move(rules).status(), is_about_mesh ? "mesh" : "text");
  }
  SHARDMESH_RETURN_IF_ERROR(EncodeRules(rules->rules(), "text", response->mutable_rules()));
  if (request.has_name()) {
    SHARDMESH_DECODE(rule, "text", rules->RuleOf(request.name(), is_cancelled));
    if (rule.has_value()) {
      response->set_rule_index(static_cast<int32_t>(*rule));
    }
    rpc::Encode(
        rule.has_value() ? rules->rules()[static_cast<size_t>(*rule)].spec : rules->default_spec(),
        response->mutable_spec());
  }
  return absl::OkStatus();
}

absl::Status Answer(const AnswerContext&, const v1::CheckPatternRequest& request,
                    v1::CheckPatternResponse* response, const std::function<bool()>& is_cancelled) {
  if (request.names_size() > kMaxSearchedNames) {
    return LimitExceeded(
        "names",
        StrCat(request.names_size(), " names; at most ", kMaxSearchedNames, " are allowed"),
        {{fact::kHave, request.names_size()}, {fact::kLimit, kMaxSearchedNames}});
  }
  for (int i = 0; i < request.names_size(); ++i) {
    SHARDMESH_RETURN_IF_ERROR(CheckSearchedName(request.names(i), StrCat("names[", i, "]")));
  }
  SHARDMESH_DECODE(pattern, "pattern", Pattern::Create(request.pattern()));
  response->mutable_found()->Reserve(request.names_size());
  SearchBudget budget;
  for (const std::string& name : request.names()) {
    if (is_cancelled != nullptr && is_cancelled()) {
      return absl::CancelledError("cancelled while names were searched");
    }
    SHARDMESH_DECODE(found, "pattern", pattern.Search(name, &budget));
    response->add_found(found);
  }
  response->set_re2_pattern(pattern.re2_text().value_or(""));
  return absl::OkStatus();
}

absl::Status Answer(const AnswerContext& context, const v1::RewriteRulesRequest& request,
                    v1::RewriteRulesResponse* response, const std::function<bool()>& is_cancelled) {
  // The rewrite checks the patterns, so this function does not.
  SHARDMESH_DECODE(given, "rule_set",
                   rpc::Decode(request.rule_set(), Compatibility::kExact,
                               context.state.min_sharding_size(), is_cancelled));
  auto rewritten = RewriteExclusions(given.rules.rules(), is_cancelled);
  if (!rewritten.ok()) {
    return rpc::WithField(rpc::WithField(std::move(rewritten).status(), "rules"), "rule_set");
  }
  v1::RuleSet* const rules = response->mutable_rule_set();
  if (request.rule_set().has_min_size()) {
    rules->set_min_size(request.rule_set().min_size());
  }
  if (request.rule_set().has_strict()) {
    rules->set_strict(request.rule_set().strict());
  }
  rules->set_separator(request.rule_set().separator());
  rules->set_use_min_sharding_size(request.rule_set().use_min_sharding_size());
  SHARDMESH_RETURN_IF_ERROR(
      EncodeRules(rewritten->rules, "rule_set.rules", rules->mutable_rules()));
  for (const int64_t origin : rewritten->origins) {
    response->add_origins(static_cast<int32_t>(origin));
  }
  response->set_changed(rewritten->changed);
  return absl::OkStatus();
}

}  // namespace shardmesh::server
