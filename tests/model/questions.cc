// Requests whose answers are known, and random changes to messages.
#include "tests/model/questions.h"

#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <limits>
#include <map>

#include "status/str_cat.h"

namespace shardmesh::model {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Parts that many questions share.
constexpr char kMesh[] =
    R"(mesh { value { axes { name: "fsdp" size: 2 } axes { name: "tp" size: 4 } } })";
constexpr char kSpec[] = R"(spec { dimensions { name: "fsdp" } dimensions { name: "tp" } })";
constexpr char kShape[] = "shape { sizes: 8 sizes: 16 }";
constexpr char kAxes[] = R"(axes { name: "__BATCH__" } axes { name: "__HEAD__" })";
constexpr char kRules[] =
    R"(rule_set { value { rules { pattern: ".*" spec { dimensions { name: "tp" } } } } })";
constexpr char kTensors[] =
    R"(tensors { names: "abc" name_sizes: 1 name_sizes: 2 ranks: 1 ranks: 2 sizes: 8 sizes: 4 sizes: 6
       dtypes: DTYPE_F32 dtypes: DTYPE_BF16 })";
constexpr char kTensorsWithSpecs[] =
    R"(tensors { names: "abc" name_sizes: 1 name_sizes: 2 ranks: 1 ranks: 2 sizes: 8 sizes: 4 sizes: 6
       dtypes: DTYPE_F32 dtypes: DTYPE_BF16 spec_table { dimensions { name: "tp" } }
       spec_indexes: 1 spec_indexes: 1 })";

using Questions = std::map<std::string, std::vector<std::vector<std::string>>, std::less<>>;

const Questions& AllQuestions() {
  static const auto* const questions = new Questions{
      {"ResolveService.ResolveSpec",
       {{StrCat(kAxes)},
        {StrCat(kAxes, kShape, kMesh)},
        {StrCat(kAxes, kShape, kMesh, "explain: true suggest_fixes: true")},
        {StrCat(R"(axes { name: "__BATCH__" } mode { name: "__autoregressive__" })")}}},
      {"ResolveService.ResolveEffectiveSpec",
       {{R"(axes: "__BATCH__" axes: "_" shape: 8 shape: 7 mesh: "default")"},
        {R"(preset: "HiddenStateSharding" shape: 8 shape: 1 shape: 8 mesh: "default")"}}},
      {"ClusterService.ListQuarantine", {{""}}},
      {"ClusterService.DropCache", {{""}}},
      {"ResolveService.ResolveAxes", {{kAxes}}},
      {"ResolveService.CorrectSpec",
       {{StrCat(kSpec, kShape, kMesh)},
        {StrCat(kSpec, "shape { sizes: 7 sizes: 0 } suggest_fixes: true ", kMesh)}}},
      {"ResolveService.ConstrainArray", {{StrCat(kSpec, kShape, kMesh)}}},
      {"ResolveService.BatchResolveSpecs",
       {{StrCat("requests { ", kAxes, kShape, " } requests { } ", kMesh)}}},
      {"ResolveService.BatchConstrainArrays",
       {{StrCat("requests { ", kSpec, kShape, kMesh, " } requests { }")}}},
      {"ResolveService.CompareSpecs",
       {{StrCat("a { } b { dimensions { constant: AXIS_CONSTANT_NONE } } rank: 2 ", kMesh)}}},
      {"ResolveService.ExplainTensor", {{StrCat(R"(name: "a" )", kShape, kRules, kMesh)}}},
      {"LayoutService.ResolveTree",
       {{StrCat("header { ", kRules, kMesh, " }"), kTensors},
        {StrCat("header { ", kRules, " match_only: true }"), kTensors}}},
      {"LayoutService.AnalyzeLayout", {{StrCat("header { ", kMesh, " }"), kTensorsWithSpecs}}},
      {"RuleService.LintRules",
       {{StrCat("header { ", kRules, " meshes { ", R"(value { axes { name: "tp" size: 4 } })",
                " } }"),
         kTensors}}},
      {"LayoutService.DiffLayouts",
       {{StrCat("header { a { ", kRules, kMesh, " } b { ", kRules,
                R"( mesh { value { axes { name: "tp" size: 2 } } } } })"),
         kTensors}}},
      {"LayoutService.SearchMeshes",
       {{StrCat(R"(header { devices: 8 axes { name: "fsdp" } axes { name: "tp" } )", kRules, " }"),
         kTensors}}},
      {"LayoutService.DescribeTiling",
       {{StrCat(kSpec, kShape, kMesh)},
        {StrCat(kSpec, kShape, kMesh,
                "devices: 7 range { ranges { stop: 4 } ranges { start: 3 stop: 9 } } "
                "replica_groups_of: 1")}}},
      {"ReshardService.PlanReshard",
       {{StrCat("source { ", kMesh, kSpec, " } destination { ", kMesh,
                " spec { } } dtype: DTYPE_F32 ", kShape)}}},
      {"ResolveService.DescribeProfile",
       {{""}, {R"(profile { value { tensor_parallel_axis { name: "tp" } } })"}}},
      {"CompatService.ComputeHash",
       {{R"(text: "abc")"},
        {R"(attributes { values { integer: "17" } values { none: true } })"},
        {R"(profile { value { tensor_parallel_axis { name: "tp" } } })"}}},
      {"CompatService.AnalyzeShardingStrategy",
       {{StrCat("header { ", kMesh, " }"), kTensorsWithSpecs}}},
      {"ResolveService.ListPresets", {{""}}},
      {"MeshService.DescribeMesh", {{kMesh}, {R"(text: "fsdp=2,tp=4")"}}},
      {"CompatService.QueryMesh",
       {{StrCat("question: QUESTION_PRESENT axes: \"tp\" ", kMesh)},
        {StrCat("question: QUESTION_SIZE axes: \"tp\" axes: \"fsdp\" ", kMesh)},
        {StrCat("question: QUESTION_GROUPS axes: \"tp\" ", kMesh)}}},
      {"CompatService.ListSpecAxes",
       {{R"(specs { dimensions { name: "tp" } } specs { dimensions { name: "dp" } })"}}},
      {"CompatService.ParsePatternRules", {{R"(text: "a:tp")"}}},
      {"RuleService.CheckPattern", {{R"(pattern: "a.*b$" names: "ab" names: "ba")"}}},
      {"RuleService.RewriteRules",
       {{R"~(rule_set { rules { pattern: "^(?!.*bias)" spec { } } rules { pattern: ".*" spec { } } })~"}}},
      {"RuleService.ComposeLogicalRules",
       {{R"(first { value { rules { name: "a" value { name: "tp" } } } }
            second { value { rules { name: "b" value { constant: AXIS_CONSTANT_NONE } } } })"}}},
      {"RuleService.ResolveLogicalAxes", {{R"(names { name: "a" } flavor: FLAVOR_SPMD
            rules { value { rules { name: "a" value { name: "tp" } } } })"}}},
      {"CompatService.ListShardings",
       {{StrCat(R"(question: QUESTION_SPECS leaves { name: "x" kind: KIND_NONE })")}}},
      {"CompatService.ResolveOutputSpec",
       {{R"(kind: KIND_MATMUL lhs { rank: 2 kind: KIND_NAMED spec { dimensions { name: "tp" } } }
            rhs { rank: 2 kind: KIND_NAMED spec { } } axis_name: "tp")"}}},
      {"CompatService.CheckTensorParallel",
       {{StrCat("config { ", kMesh, R"( axis_name: "tp" matmul_method: "allgather" })")}}},
      {"CompatService.DescribeLinearLayer",
       {{"in_features: 8 out_features: 16 use_bias: true dtype: DTYPE_F32 "
         "direction: PARALLEL_DIRECTION_ROW"}}},
      {"CompatService.PromoteDtypes", {{"dtypes: DTYPE_F32 dtypes: DTYPE_BF16"}}},
  };
  return *questions;
}

std::string RandomText(Dice& dice) {
  static const auto* const texts = new std::vector<std::string>{"",
                                                                "tp",
                                                                "fsdp",
                                                                "dp",
                                                                "batch",
                                                                "default",
                                                                "default@1",
                                                                "default@0",
                                                                "nobody@x",
                                                                "a",
                                                                ".*",
                                                                "(",
                                                                "[^",
                                                                "(?!a)b",
                                                                "a{1000}",
                                                                "((((((((a))))))))",
                                                                "\\1",
                                                                "%",
                                                                "a/b",
                                                                "..",
                                                                "-",
                                                                "@",
                                                                "__train__",
                                                                "__autoregressive__",
                                                                "\xc3\xa9",
                                                                std::string(255, 'n'),
                                                                std::string(256, 'n'),
                                                                std::string(1024, 'n'),
                                                                std::string(1025, 'n'),
                                                                std::string(5000, '('),
                                                                "1",
                                                                "-1",
                                                                "1e400",
                                                                "9223372036854775808",
                                                                "a=b",
                                                                "tp=0",
                                                                "tp=-1",
                                                                "tp=2,tp=2"};
  return dice.Of(*texts);
}

int64_t RandomNumber(Dice& dice) {
  static const auto* const numbers = new std::vector<int64_t>{0,
                                                              1,
                                                              2,
                                                              3,
                                                              4,
                                                              5,
                                                              7,
                                                              8,
                                                              15,
                                                              16,
                                                              17,
                                                              63,
                                                              64,
                                                              255,
                                                              1000,
                                                              1001,
                                                              1024,
                                                              1025,
                                                              10000,
                                                              10001,
                                                              -1,
                                                              -2,
                                                              int64_t{1} << 31,
                                                              (int64_t{1} << 31) + 1,
                                                              std::numeric_limits<int32_t>::max(),
                                                              std::numeric_limits<int32_t>::min(),
                                                              int64_t{1} << 40,
                                                              std::numeric_limits<int64_t>::max(),
                                                              std::numeric_limits<int64_t>::min()};
  return dice.Of(*numbers);
}

template <typename SetOrAdd>
void GiveValue(Dice& dice, const FieldDescriptor* field, SetOrAdd set_or_add) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return set_or_add(static_cast<int32_t>(RandomNumber(dice)));
    case FieldDescriptor::CPPTYPE_INT64:
      return set_or_add(RandomNumber(dice));
    case FieldDescriptor::CPPTYPE_UINT32:
      return set_or_add(static_cast<uint32_t>(RandomNumber(dice)));
    case FieldDescriptor::CPPTYPE_UINT64:
      return set_or_add(static_cast<uint64_t>(RandomNumber(dice)));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return set_or_add(dice.OneIn(3) ? std::numeric_limits<double>::quiet_NaN()
                                      : static_cast<double>(RandomNumber(dice)));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return set_or_add(dice.OneIn(3) ? std::numeric_limits<float>::infinity()
                                      : static_cast<float>(RandomNumber(dice)));
    case FieldDescriptor::CPPTYPE_BOOL:
      return set_or_add(dice.OneIn(2));
    case FieldDescriptor::CPPTYPE_STRING:
      return set_or_add(RandomText(dice));
    default:
      return;
  }
}

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};

void SetField(Dice& dice, Message* message, const FieldDescriptor* field) {
  const Reflection* reflection = message->GetReflection();
  if (field->is_map()) return;
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    Message* const part = field->is_repeated() ? reflection->AddMessage(message, field)
                                               : reflection->MutableMessage(message, field);
    const auto* type = part->GetDescriptor();
    if (type->field_count() > 0) {
      const auto* inner = type->field(static_cast<int>(dice.Below(type->field_count())));
      if (inner->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || dice.OneIn(2)) {
        SetField(dice, part, inner);
      }
    }
    return;
  }
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    const int value = static_cast<int>(dice.Below(field->enum_type()->value_count() + 2)) - 1;
    if (field->is_repeated()) {
      reflection->AddEnumValue(message, field, value);
    } else {
      reflection->SetEnumValue(message, field, value);
    }
    return;
  }
  const bool repeated = field->is_repeated();
  GiveValue(dice, field,
            Overloaded{[&](int32_t v) {
                         repeated ? reflection->AddInt32(message, field, v)
                                  : reflection->SetInt32(message, field, v);
                       },
                       [&](int64_t v) {
                         repeated ? reflection->AddInt64(message, field, v)
                                  : reflection->SetInt64(message, field, v);
                       },
                       [&](uint32_t v) {
                         repeated ? reflection->AddUInt32(message, field, v)
                                  : reflection->SetUInt32(message, field, v);
                       },
                       [&](uint64_t v) {
                         repeated ? reflection->AddUInt64(message, field, v)
                                  : reflection->SetUInt64(message, field, v);
                       },
                       [&](double v) {
                         repeated ? reflection->AddDouble(message, field, v)
                                  : reflection->SetDouble(message, field, v);
                       },
                       [&](float v) {
                         repeated ? reflection->AddFloat(message, field, v)
                                  : reflection->SetFloat(message, field, v);
                       },
                       [&](bool v) {
                         repeated ? reflection->AddBool(message, field, v)
                                  : reflection->SetBool(message, field, v);
                       },
                       [&](const std::string& v) {
                         repeated ? reflection->AddString(message, field, v)
                                  : reflection->SetString(message, field, v);
                       }});
}

// Returns the message itself or one of its submessages.
Message* AnyPart(Dice& dice, Message* message) {
  for (int depth = 0; depth < 8; ++depth) {
    std::vector<const FieldDescriptor*> fields;
    message->GetReflection()->ListFields(*message, &fields);
    std::vector<Message*> parts;
    for (const FieldDescriptor* field : fields) {
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) continue;
      if (field->is_repeated()) {
        const int count = message->GetReflection()->FieldSize(*message, field);
        const int at = static_cast<int>(dice.Below(count));
        parts.push_back(message->GetReflection()->MutableRepeatedMessage(message, field, at));
      } else {
        parts.push_back(message->GetReflection()->MutableMessage(message, field));
      }
    }
    if (parts.empty() || dice.OneIn(3)) return message;
    message = dice.Of(parts);
  }
  return message;
}

}  // namespace

std::vector<std::vector<std::string>> ValidQuestions(std::string_view method) {
  const auto found = AllQuestions().find(method);
  if (found == AllQuestions().end()) return {};
  return found->second;
}

std::vector<std::string> RefusedRequests(std::string_view method) {
  static const auto* const requests =
      new std::map<std::string, std::vector<std::string>, std::less<>>{
          {"ClusterService.RestoreQuarantined",
           {R"(array_id: "nosucharray")", "", R"(array_id: "a b" name: "x")"}},
          {"ClusterService.DropQuarantined", {R"(array_ids: "nosucharray")", ""}},
          {"ArrayService.ResizeMesh",
           {R"(session_id: "nosuchsession" mesh: "nosuchmesh" shape: "dp=2")", "",
            R"(session_id: "nosuchsession" mesh: "default" shape: "dp=two" validate_only: true)"}},
          {"ClusterService.DrainWorker", {R"(identity: "nosuchworker")", ""}},
          {"ClusterService.ForgetWorker", {R"(identity: "nosuchworker")", ""}},
          {"ClusterService.ReplaceWorker",
           {R"(identity: "nosuchworker" replacement: "nosuchworker")",
            R"(identity: "nosuchworker" replacement: "other")", ""}},
      };
  const auto found = requests->find(method);
  return found == requests->end() ? std::vector<std::string>() : found->second;
}

void Mutate(Dice& dice, Message* message) {
  const int64_t changes = 1 + dice.Below(3);
  for (int64_t i = 0; i < changes; ++i) {
    Message* const part = AnyPart(dice, message);
    const auto* type = part->GetDescriptor();
    if (type->field_count() == 0) continue;
    const FieldDescriptor* field = type->field(static_cast<int>(dice.Below(type->field_count())));
    const Reflection* reflection = part->GetReflection();
    if (dice.OneIn(4)) {
      reflection->ClearField(part, field);
    } else if (field->is_repeated() && dice.OneIn(4)) {
      // Around the usual limit of 16.
      const int64_t count = 15 + dice.Below(4);
      for (int64_t n = 0; n < count; ++n) SetField(dice, part, field);
    } else {
      SetField(dice, part, field);
    }
  }
}

}  // namespace shardmesh::model
