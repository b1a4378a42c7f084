// Cases about logical axis rules, from JSON and back.
//
// What only Python can express stays here: a string where a sequence of names is due (its
// characters are the names), None for names or rules, a rule whose value is a number, and the
// variable in which each thread of flax keeps its rules.
#include "tests/conformance/logical_subject.h"

#include <string>
#include <string_view>
#include <utility>

#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/testing/golden.h"

namespace shardmesh::conformance {
namespace {

using Subject = std::shared_ptr<const LogicalSubject>;

// A number as the value of a rule is no axis, but flax compares and hands it on. It travels as a
// name that no case has, and comes back as the number.
constexpr std::string_view kNumberPrefix = "\x01number:";

AxisValue DecodeMeshAxes(const Json& value) {
  return value.is_number() ? AxisValue::Name(StrCat(kNumberPrefix, value.dump()))
                           : test::DecodeAxisValue(value);
}

Json EncodeMeshAxes(const AxisValue& value) {
  const std::string_view name = value.name();
  return name.substr(0, kNumberPrefix.size()) == kNumberPrefix
             ? Json::parse(name.substr(kNumberPrefix.size()))
             : test::EncodeAxisValue(value);
}

// None for rules is no rules.
LogicalRules DecodeRules(const Json& value) {
  LogicalRules rules;
  for (const Json& rule : value) {
    rules.push_back({rule.at(0), DecodeMeshAxes(rule.at(1))});
  }
  return rules;
}

Json EncodeRules(const LogicalRules& rules) {
  Json encoded = Json::array();
  for (const LogicalRule& rule : rules) {
    encoded.push_back({rule.name, EncodeMeshAxes(rule.mesh_axes)});
  }
  return encoded;
}

absl::StatusOr<std::vector<AxisValue>> DecodeNames(const Json& value) {
  std::vector<AxisValue> names;
  if (value.is_null()) {
    return InvalidArgument(Reason::kMissingArgument, "None is no sequence of names", "TypeError");
  }
  if (value.is_string()) {
    for (const char c : value.get<std::string>()) {
      names.push_back(AxisValue::Name(std::string(1, c)));
    }
    return names;
  }
  for (const Json& name : value) {
    names.push_back(test::DecodeAxisValue(name));
  }
  return names;
}

absl::StatusOr<Json> AskCompositeRules(const LogicalSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(
      const LogicalRules rules,
      subject.CompositeRules(DecodeRules(input.at("rule1")), DecodeRules(input.at("rule2"))));
  return EncodeRules(rules);
}

absl::StatusOr<Json> AskFromShardingRules(const LogicalSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto names, DecodeNames(input.at("sharding")));
  SHARDMESH_ASSIGN_OR_RETURN(const auto values,
                             subject.ApplyLogicalRules(names, DecodeRules(input.at("rules"))));
  Json encoded = Json::array();
  for (const AxisValue& value : values) {
    encoded.push_back(EncodeMeshAxes(value));
  }
  return encoded;
}

absl::StatusOr<Json> AskGetPspec(const LogicalSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto names, DecodeNames(input.at("sharding")));
  SHARDMESH_ASSIGN_OR_RETURN(const PartitionSpec spec,
                             subject.ResolveLogicalSpec(names, DecodeRules(input.at("rules")),
                                                        DecodeRules(input.at("context_rules"))));
  return test::EncodeSpec(spec);
}

absl::StatusOr<Json> AskShardValue(const LogicalSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto names, DecodeNames(input.at("names")));
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, test::DecodeMesh(input.at("mesh")));
  SHARDMESH_ASSIGN_OR_RETURN(const ShardValueDecision decision,
                             subject.ResolveShardValue(names, DecodeRules(input.at("rules")), mesh,
                                                       DecodeRules(input.at("context_rules"))));
  constexpr const char* kActions[] = {"none", "constrain", "reshard"};
  return Json{{"action", kActions[static_cast<size_t>(decision.action)]},
              {"spec", test::EncodeSpec(decision.spec)}};
}

using LinenMethod = absl::StatusOr<std::optional<PartitionSpec>> (LogicalSubject::*)(
    const std::vector<AxisValue>& names, const LogicalRules& rules, RulesFallback fallback) const;

absl::StatusOr<Json> AskLinen(const LogicalSubject& subject, LinenMethod method,
                              const Json& input) {
  // names=None: no constraint is asked for, and linen returns the array unchanged.
  if (input.at("names").is_null()) {
    return nullptr;
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto names, DecodeNames(input.at("names")));
  const auto name = input.at("fallback").get<std::string>();
  const auto fallback = RulesFallbackFromName(name);
  if (!fallback.has_value()) {
    test::ThrowWrongForm("fallback " + PythonRepr(name) + " is none that flax has");
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<PartitionSpec> spec,
                             (subject.*method)(names, DecodeRules(input.at("rules")), *fallback));
  return spec.has_value() ? test::EncodeSpec(*spec) : Json(nullptr);
}

// The rules in force, as a request that carries them sees them.
absl::StatusOr<Json> InForce(const LogicalSubject& subject, const LogicalRules& rules) {
  SHARDMESH_ASSIGN_OR_RETURN(const LogicalRules seen, subject.CompositeRules(rules, {}));
  return EncodeRules(seen);
}

// What one thread of flax has in force, and what the contexts that it is in will put back.
class RulesOfThread {
 public:
  const LogicalRules& rules() const { return rules_; }
  void Set(LogicalRules rules) { rules_ = std::move(rules); }
  void Enter(LogicalRules rules) { outer_.push_back(std::exchange(rules_, std::move(rules))); }
  void Exit() {
    rules_ = std::move(outer_.back());
    outer_.pop_back();
  }

 private:
  LogicalRules rules_;
  std::vector<LogicalRules> outer_;
};

absl::StatusOr<Json> AskContext(const LogicalSubject& subject, const Json& input) {
  RulesOfThread thread;
  Json seen = Json::array();
  for (const Json& step : input.at("steps")) {
    const std::string what = step.at(0);
    if (what == "get") {
      SHARDMESH_ASSIGN_OR_RETURN(Json rules, InForce(subject, thread.rules()));
      seen.push_back(std::move(rules));
    } else if (what == "set") {
      thread.Set(DecodeRules(step.at(1)));
    } else if (what == "enter") {
      thread.Enter(DecodeRules(step.at(1)));
    } else {
      // Leaving by an exception ("raise") puts the rules back as "exit" does.
      thread.Exit();
    }
  }
  return seen;
}

absl::StatusOr<Json> AskThreads(const LogicalSubject& subject, const Json& input) {
  RulesOfThread main_thread;
  RulesOfThread other_thread;
  main_thread.Set(DecodeRules(input.at("main_rules")));
  SHARDMESH_ASSIGN_OR_RETURN(const Json other_before, InForce(subject, other_thread.rules()));
  other_thread.Set(DecodeRules(input.at("other_rules")));
  SHARDMESH_ASSIGN_OR_RETURN(const Json other_after, InForce(subject, other_thread.rules()));
  SHARDMESH_ASSIGN_OR_RETURN(const Json in_main, InForce(subject, main_thread.rules()));
  return Json{{"other_before", other_before}, {"other_after", other_after}, {"main", in_main}};
}

}  // namespace

void AddLogicalQuestions(std::shared_ptr<const LogicalSubject> subject, Questions* questions) {
  const auto add = [&](std::string name, auto ask) {
    (*questions)[std::move(name)] = [subject, ask](const Json& input) {
      return ask(*subject, input);
    };
  };
  add("composite_rules", AskCompositeRules);
  add("from_sharding_rules", AskFromShardingRules);
  add("get_pspec", AskGetPspec);
  add("logical_axis_rules", AskContext);
  add("logical_axis_rules_threads", AskThreads);
  add("shard_value", AskShardValue);
  add("logical_to_mesh_axes", [](const LogicalSubject& asked, const Json& input) {
    return AskLinen(asked, &LogicalSubject::ResolveLogicalAxes, input);
  });
  add("with_logical_constraint", [](const LogicalSubject& asked, const Json& input) {
    return AskLinen(asked, &LogicalSubject::ResolveLogicalConstraint, input);
  });
}

}  // namespace shardmesh::conformance
