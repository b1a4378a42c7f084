// From recorded calls about rules to questions, and back to what the originals return.
#include "tests/conformance/rules_subject.h"

#include <utility>

#include "status/status_macros.h"
#include "tests/testing/golden.h"
#include "tests/testing/golden_tree.h"

namespace shardmesh::conformance {
namespace {

using ::shardmesh::test::DecodeMesh;
using ::shardmesh::test::DecodeSpec;
using ::shardmesh::test::DecodeTree;
using ::shardmesh::test::EncodeSpec;
using ::shardmesh::test::TreeLeaf;

absl::StatusOr<Json> MatchPartitionRules(const RulesSubject& subject, const Json& input) {
  std::optional<int64_t> min_size = 0;
  if (input.contains("min_size")) {
    min_size = input.at("min_size").is_null()
                   ? std::nullopt
                   : std::optional<int64_t>(test::DecodeInteger(input.at("min_size")));
  }
  std::vector<Rule> rules;
  for (const Json& rule : input.at("rules")) {
    SHARDMESH_ASSIGN_OR_RETURN(PartitionSpec spec, DecodeSpec(rule.at(1)));
    rules.push_back({rule.at(0).get<std::string>(), std::move(spec)});
  }
  const std::vector<TreeLeaf> leaves = DecodeTree(input);
  SHARDMESH_ASSIGN_OR_RETURN(
      const std::vector<PartitionSpec> specs,
      subject.MatchTree(rules, min_size, input.value("strict", true), leaves));
  Json out = Json::array();
  for (size_t i = 0; i < specs.size(); ++i) {
    out.push_back({leaves[i].name, EncodeSpec(specs[i])});
  }
  return out;
}

absl::StatusOr<Json> SpecByPatternText(const RulesSubject& subject, const Json& input) {
  PartitionSpec default_spec;  // as None means
  if (input.contains("default_spec") && !input.at("default_spec").is_null()) {
    SHARDMESH_ASSIGN_OR_RETURN(default_spec, DecodeSpec(input.at("default_spec")));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
  SHARDMESH_ASSIGN_OR_RETURN(
      const PartitionSpec spec,
      subject.SpecByPatternText(input.at("pattern").get<std::string>(),
                                input.at("name").get<std::string>(), default_spec, mesh));
  return EncodeSpec(spec);
}

absl::StatusOr<Json> Search(const RulesSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(
      const bool found,
      subject.Search(input.at("pattern").get<std::string>(), input.at("name").get<std::string>()));
  return Json(found);
}

}  // namespace

void AddRulesQuestions(std::shared_ptr<const RulesSubject> subject, Questions* questions) {
  (*questions)["match_partition_rules"] = [subject](const Json& input) {
    return MatchPartitionRules(*subject, input);
  };
  (*questions)["create_pattern_based_partition_spec"] = [subject](const Json& input) {
    return SpecByPatternText(*subject, input);
  };
  (*questions)["re_search"] = [subject](const Json& input) { return Search(*subject, input); };
}

}  // namespace shardmesh::conformance
