// Reads YAML into the types of sharding/ and tensor/checkpoint.
#include "rpc/config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <initializer_list>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/spec_codec.h"
#include "sharding/pattern/replacement.h"
#include "sharding/shape.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "status/utf8.h"
#include "tensor/dtype.h"
#include "tensor/dtype_promotion.h"

namespace shardmesh::rpc {
namespace {

// Maximum numbers of entries of three lists in a file. The maximum of semantic axes is that of the
// wire contract. The maxima of workers and of ordered devices are far above the lists that people
// write by hand.
constexpr int64_t kMaxSemanticAxes = 256;
constexpr int64_t kMaxWorkers = 65'536;
constexpr int64_t kMaxOrderedDevices = 65'536;

// The checks that all kinds of files share. Every error contains the file's name and the position.
class File {
 public:
  explicit File(std::string_view name) : name_(name) {}

  absl::Status Bad(const YAML::Mark& mark, std::string_view message) const {
    return At(mark, InvalidArgument(Reason::kBadFile, message));
  }

  // Prepends the position to the message. Keeps the code, the reason and the Python exception
  // class.
  absl::Status At(const YAML::Mark& mark, const absl::Status& status) const {
    const std::string place =
        mark.is_null() ? name_ : StrCat(name_, ":", mark.line + 1, ":", mark.column + 1);
    absl::Status placed(status.code(), StrCat(place, ": ", ToStd(status.message())));
    status.ForEachPayload(
        [&](absl::string_view url, const absl::Cord& payload) { placed.SetPayload(url, payload); });
    return MayHave(ReasonOf(status), fact::kFile)
               ? WithFacts(std::move(placed), {{fact::kFile, name_}})
               : placed;
  }

  // Requires a mapping whose keys are all known and distinct.
  absl::Status CheckMap(const YAML::Node& node, std::string_view what,
                        absl::Span<const std::string_view> keys) const {
    if (!node.IsMap()) {
      return Bad(node.Mark(),
                 StrCat(what, " must be a mapping with the keys ", StrJoin(keys, ", ")));
    }
    absl::flat_hash_set<std::string> seen;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) {
        return Bad(entry.first.Mark(), StrCat("a key of ", what, " must be a word"));
      }
      const std::string& key = entry.first.Scalar();
      if (std::find(keys.begin(), keys.end(), std::string_view(key)) == keys.end()) {
        const std::string nearest = DidYouMean(key, keys);
        return Bad(
            entry.first.Mark(),
            StrCat("unknown key \"", key, "\" in ", what,
                   nearest.empty() ? StrCat("; the keys are ", StrJoin(keys, ", ")) : nearest));
      }
      if (!seen.insert(key).second) {
        return Bad(entry.first.Mark(), StrCat("key \"", key, "\" occurs twice in ", what));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Text(const YAML::Node& node, std::string_view what) const {
    if (!node.IsScalar()) {
      return Bad(node.Mark(), StrCat(what, " must be a text"));
    }
    return node.Scalar();
  }

  absl::StatusOr<int64_t> Integer(const YAML::Node& node, std::string_view what) const {
    int64_t value = 0;
    if (!node.IsScalar() || IsQuoted(node) || !absl::SimpleAtoi(node.Scalar(), &value)) {
      return Bad(node.Mark(), StrCat(what, " must be a whole number"));
    }
    return value;
  }

  absl::StatusOr<bool> Bool(const YAML::Node& node, std::string_view what) const {
    if (node.IsScalar() && !IsQuoted(node) &&
        (node.Scalar() == "true" || node.Scalar() == "false")) {
      return node.Scalar() == "true";
    }
    return Bad(node.Mark(), StrCat(what, " must be true or false"));
  }

  absl::Status CheckCount(const YAML::Node& sequence, std::string_view what, int64_t limit) const {
    const auto have = static_cast<int64_t>(sequence.size());
    if (have <= limit) {
      return absl::OkStatus();
    }
    return At(sequence.Mark(),
              InvalidArgument(Reason::kLimitExceeded,
                              StrCat(have, " ", what, "; at most ", limit, " are allowed"),
                              {{fact::kHave, have}, {fact::kLimit, limit}}));
  }

  // Reads null, a name, or a sequence of these, which means a tuple.
  absl::StatusOr<AxisValue> Axes(const YAML::Node& node, std::string_view what,
                                 int depth = 0) const {
    if (node.IsNull()) {
      return AxisValue::None();
    }
    if (node.IsScalar()) {
      return AxisValue::Name(node.Scalar());
    }
    if (!node.IsSequence() || depth >= kMaxAxisDepth) {
      return Bad(node.Mark(), StrCat(what,
                                     " must be null, an axis name, or a sequence of these, such as "
                                     "[fsdp, tp]"));
    }
    SHARDMESH_RETURN_IF_ERROR(CheckCount(node, "axes of a dimension", kMaxMeshAxes));
    std::vector<AxisValue> entries;
    for (const YAML::Node& entry : node) {
      SHARDMESH_ASSIGN_OR_RETURN(AxisValue value, Axes(entry, what, depth + 1));
      entries.push_back(std::move(value));
    }
    return AxisValue::Tuple(std::move(entries));
  }

  absl::StatusOr<PartitionSpec> Spec(const YAML::Node& node) const {
    if (!node.IsSequence()) {
      return Bad(node.Mark(),
                 "spec must be a sequence with one entry per dimension, such as [fsdp, [tp, sp], "
                 "null]; [] replicates");
    }
    SHARDMESH_RETURN_IF_ERROR(CheckCount(node, "dimensions in a spec", kMaxRank));
    std::vector<AxisValue> entries;
    for (const YAML::Node& entry : node) {
      SHARDMESH_ASSIGN_OR_RETURN(AxisValue value, Axes(entry, "an entry of spec"));
      entries.push_back(std::move(value));
    }
    auto spec = PartitionSpec::Create(entries);
    return spec.ok() ? std::move(spec) : At(node.Mark(), spec.status());
  }

 private:
  static constexpr int kMaxAxisDepth = 1;  // a tuple within a tuple has no meaning

  static bool IsQuoted(const YAML::Node& node) { return node.Tag() == "!"; }

  const std::string name_;
};

// Whether YAML forbids the character. Between double quotes, such a character can be escaped.
bool IsForbidden(char c) {
  return static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n' && c != '\r';
}

// Loads the document. yaml-cpp bounds the depth of nesting. Callers must count the values that they
// read, because an alias can multiply the values.
absl::StatusOr<YAML::Node> Load(const File& file, std::string_view text) {
  if (static_cast<int64_t>(text.size()) > kMaxConfigBytes) {
    return file.At(
        YAML::Mark::null_mark(),
        InvalidArgument(Reason::kLimitExceeded,
                        StrCat("more than ", kMaxConfigBytes, " bytes, which is the most allowed"),
                        {{fact::kHave, text.size()}, {fact::kLimit, kMaxConfigBytes}}));
  }
  if (!DecodeUtf8(text).has_value()) {
    return file.At(YAML::Mark::null_mark(), InvalidArgument(Reason::kBadFile, "it is not UTF-8"));
  }
  // YAML forbids these characters, but yaml-cpp accepts them.
  const auto control = std::find_if(text.begin(), text.end(), IsForbidden);
  if (control != text.end()) {
    return file.At(YAML::Mark::null_mark(),
                   InvalidArgument(Reason::kBadFile,
                                   StrCat("byte ", std::distance(text.begin(), control),
                                          " is the control character ", static_cast<int>(*control),
                                          ", which YAML does not have; in a pattern write \\x and "
                                          "two digits"),
                                   {{fact::kPosition, std::distance(text.begin(), control)}}));
  }
  return YAML::Load(std::string(text));
}

// Advice for an error of yaml-cpp about an escape between double quotes, such as "\2".
std::string_view QuotingHint(std::string_view error) {
  return error.find("escape") != std::string_view::npos
             ? "; write patterns and replacements between single quotes"
             : "";
}

// Runs a parser of yaml-cpp, and converts its exceptions to a status.
template <typename Parse>
auto WithoutExceptions(const File& file, const Parse& parse) -> decltype(parse()) {
  try {
    return parse();
  } catch (const YAML::Exception& e) {
    return file.Bad(e.mark, StrCat("not YAML: ", e.msg, QuotingHint(e.msg)));
  }
}

absl::StatusOr<Rule> ParseRule(const File& file, const YAML::Node& node) {
  constexpr std::array<std::string_view, 2> kKeys = {"pattern", "spec"};
  SHARDMESH_RETURN_IF_ERROR(file.CheckMap(node, "a rule", kKeys));
  for (const std::string_view key : kKeys) {
    if (!node[std::string(key)]) {
      return file.Bad(node.Mark(), StrCat("a rule without ", key));
    }
  }
  Rule rule;
  SHARDMESH_ASSIGN_OR_RETURN(rule.pattern, file.Text(node["pattern"], "pattern"));
  SHARDMESH_ASSIGN_OR_RETURN(rule.spec, file.Spec(node["spec"]));
  return rule;
}

absl::StatusOr<RuleSetDefinition> ParseRulesNode(const File& file, std::string_view text,
                                                 Compatibility compatibility) {
  constexpr std::array<std::string_view, 4> kKeys = {"rules", "min_size", "strict", "separator"};
  SHARDMESH_ASSIGN_OR_RETURN(const YAML::Node root, Load(file, text));
  if (root.IsMap() && root["logical_axis_rules"]) {
    return file.Bad(
        root.Mark(),
        "this is a file of logical rules; `shardmesh logical resolve` takes it. Rules by "
        "the names of tensors are a sequence of {pattern, spec} under the key rules");
  }
  if (root.IsMap() && root["tensors"] && !root["rules"]) {
    return file.Bad(root.Mark(),
                    "this is a map of names; give it with --map. A rules file has a sequence of "
                    "{pattern, spec} under the key rules");
  }
  SHARDMESH_RETURN_IF_ERROR(file.CheckMap(root, "a rules file", kKeys));
  if (!root["rules"] || !root["rules"].IsSequence()) {
    return file.Bad(root.Mark(), "a rules file needs rules, a sequence of {pattern, spec}");
  }
  SHARDMESH_RETURN_IF_ERROR(file.CheckCount(root["rules"], "rules", RuleSet::kMaxRules));
  std::vector<Rule> rules;
  for (const YAML::Node& node : root["rules"]) {
    SHARDMESH_ASSIGN_OR_RETURN(Rule rule, ParseRule(file, node));
    rules.push_back(std::move(rule));
  }
  RuleSetOptions options;
  options.defer_pattern_errors = compatibility == Compatibility::kExact;
  for (size_t i = 0; i < rules.size() && !options.defer_pattern_errors; ++i) {
    if (absl::Status status = Pattern::Create(rules[i].pattern).status(); !status.ok()) {
      return file.At(root["rules"][i]["pattern"].Mark(), std::move(status));
    }
  }
  if (const YAML::Node min_size = root["min_size"]; min_size && min_size.IsNull()) {
    options.min_size = std::nullopt;
  } else if (min_size) {
    SHARDMESH_ASSIGN_OR_RETURN(options.min_size, file.Integer(min_size, "min_size"));
    if (*options.min_size < 0) {
      return file.Bad(min_size.Mark(),
                      StrCat("min_size is ", *options.min_size, "; it must be at least 0"));
    }
  }
  if (root["strict"]) {
    SHARDMESH_ASSIGN_OR_RETURN(options.strict, file.Bool(root["strict"], "strict"));
  }
  std::string separator = ".";
  if (root["separator"]) {
    SHARDMESH_ASSIGN_OR_RETURN(separator, file.Text(root["separator"], "separator"));
    if (separator != "." && separator != "/") {
      return file.Bad(root["separator"].Mark(),
                      StrCat("separator \"", separator, "\" is not known; use \".\" or \"/\""));
    }
  }
  auto rule_set = RuleSet::Create(std::move(rules), options);
  if (!rule_set.ok()) {
    return file.At(root["rules"].Mark(), rule_set.status());
  }
  return RuleSetDefinition{*std::move(rule_set), separator == "/",
                           /*default_min_size=*/!options.min_size.has_value()};
}

// Reads flax's form of logical rules: [[batch, data], [heads, [tensor, sequence]], [mlp, null]].
// MaxText's files have such a list under logical_axis_rules, among other keys.
absl::StatusOr<LogicalRules> ParseLogicalPairs(const File& file, const YAML::Node& list) {
  SHARDMESH_RETURN_IF_ERROR(file.CheckCount(list, "logical rules", kMaxLogicalRules));
  LogicalRules rules;
  for (const YAML::Node& node : list) {
    if (!node.IsSequence() || node.size() != 2) {
      return file.Bad(node.Mark(), "a logical rule in a list must be a pair, [NAME, AXES]");
    }
    LogicalRule& rule = rules.emplace_back();
    SHARDMESH_ASSIGN_OR_RETURN(rule.name, file.Text(node[0], "the name of a logical rule"));
    SHARDMESH_ASSIGN_OR_RETURN(rule.mesh_axes, file.Axes(node[1], "the axes of a logical rule"));
  }
  return rules;
}

absl::StatusOr<LogicalRules> ParseLogicalRulesNode(const File& file, std::string_view text) {
  constexpr std::array<std::string_view, 2> kKeys = {"rules", "logical_axis_rules"};
  constexpr std::array<std::string_view, 2> kRuleKeys = {"name", "axes"};
  SHARDMESH_ASSIGN_OR_RETURN(const YAML::Node root, Load(file, text));
  if (root.IsSequence()) return ParseLogicalPairs(file, root);
  if (root.IsMap() && root["logical_axis_rules"] && root["logical_axis_rules"].IsSequence()) {
    return ParseLogicalPairs(file, root["logical_axis_rules"]);
  }
  SHARDMESH_RETURN_IF_ERROR(file.CheckMap(root, "a file of logical rules", kKeys));
  if (!root["rules"] || !root["rules"].IsSequence()) {
    return file.Bad(root.Mark(), "a file of logical rules needs a list of rules");
  }
  SHARDMESH_RETURN_IF_ERROR(file.CheckCount(root["rules"], "logical rules", kMaxLogicalRules));
  LogicalRules rules;
  for (const YAML::Node& node : root["rules"]) {
    SHARDMESH_RETURN_IF_ERROR(file.CheckMap(node, "a logical rule", kRuleKeys));
    if (!node["name"] || !node["axes"]) {
      return file.Bad(node.Mark(), "a logical rule needs name and axes");
    }
    LogicalRule& rule = rules.emplace_back();
    SHARDMESH_ASSIGN_OR_RETURN(rule.name, file.Text(node["name"], "name"));
    SHARDMESH_ASSIGN_OR_RETURN(rule.mesh_axes, file.Axes(node["axes"], "axes"));
  }
  return rules;
}

absl::StatusOr<SemanticAxis> ParseSemanticAxis(const File& file, const YAML::Node& node) {
  constexpr std::array<std::string_view, 3> kKeys = {"name", "value", "generation_value"};
  SHARDMESH_RETURN_IF_ERROR(file.CheckMap(node, "a semantic axis", kKeys));
  if (!node["name"] || !node["value"]) {
    return file.Bad(node.Mark(), "a semantic axis needs name and value");
  }
  SemanticAxis axis;
  SHARDMESH_ASSIGN_OR_RETURN(axis.name, file.Text(node["name"], "name"));
  SHARDMESH_ASSIGN_OR_RETURN(axis.value, file.Axes(node["value"], "value"));
  if (node["generation_value"]) {
    SHARDMESH_ASSIGN_OR_RETURN(axis.generation_value,
                               file.Axes(node["generation_value"], "generation_value"));
  }
  return axis;
}

absl::StatusOr<PartitionAxis> ParseProfileNode(const File& file, std::string_view text) {
  constexpr std::string_view kSemanticAxes = "semantic_axes";
  SHARDMESH_ASSIGN_OR_RETURN(const YAML::Node root, Load(file, text));
  std::vector<std::string_view> keys(AxisFieldNames().begin(), AxisFieldNames().end());
  keys.push_back(kSemanticAxes);
  if (root.IsNull()) {
    return PartitionAxis();
  }
  SHARDMESH_RETURN_IF_ERROR(file.CheckMap(root, "a profile file", keys));
  std::vector<FieldValue> fields;
  std::vector<SemanticAxis> axes;
  for (const auto& entry : root) {
    const std::string& key = entry.first.Scalar();
    if (key != kSemanticAxes) {
      SHARDMESH_ASSIGN_OR_RETURN(AxisValue value, file.Axes(entry.second, key));
      fields.push_back({key, std::move(value)});
      continue;
    }
    if (!entry.second.IsSequence()) {
      return file.Bad(entry.second.Mark(),
                      "semantic_axes must be a sequence of {name, value, generation_value}");
    }
    SHARDMESH_RETURN_IF_ERROR(file.CheckCount(entry.second, kSemanticAxes, kMaxSemanticAxes));
    for (const YAML::Node& node : entry.second) {
      SHARDMESH_ASSIGN_OR_RETURN(SemanticAxis axis, ParseSemanticAxis(file, node));
      axes.push_back(std::move(axis));
    }
  }
  auto profile = PartitionAxis::Create(fields, axes);
  return profile.ok() ? std::move(profile) : file.At(root.Mark(), profile.status());
}

absl::StatusOr<MeshDefinition> ParseMeshNode(const File& file, std::string_view text,
                                             std::optional<int64_t> device_count) {
  constexpr std::array<std::string_view, 3> kKeys = {"axes", "workers", "devices"};
  constexpr std::array<std::string_view, 3> kAxisKeys = {"name", "size", "type"};
  SHARDMESH_ASSIGN_OR_RETURN(const YAML::Node root, Load(file, text));
  SHARDMESH_RETURN_IF_ERROR(file.CheckMap(root, "a mesh file", kKeys));
  if (!root["axes"] || !root["axes"].IsSequence()) {
    return file.Bad(root.Mark(), "a mesh file needs axes, a sequence of {name, size}");
  }
  SHARDMESH_RETURN_IF_ERROR(file.CheckCount(root["axes"], "axes of a mesh", kMaxMeshAxes));
  std::vector<MeshAxis> axes;
  for (const YAML::Node& node : root["axes"]) {
    SHARDMESH_RETURN_IF_ERROR(file.CheckMap(node, "an axis", kAxisKeys));
    if (!node["name"] || !node["size"]) {
      return file.Bad(node.Mark(), "an axis needs name and size");
    }
    MeshAxis axis;
    SHARDMESH_ASSIGN_OR_RETURN(axis.name, file.Text(node["name"], "name"));
    SHARDMESH_ASSIGN_OR_RETURN(axis.size, file.Integer(node["size"], "size"));
    if (node["type"]) {
      SHARDMESH_ASSIGN_OR_RETURN(const std::string type, file.Text(node["type"], "type"));
      const std::optional<AxisType> known = AxisTypeFromName(type);
      if (!known.has_value()) {
        constexpr std::array<std::string_view, 3> kTypes = {"auto", "explicit", "manual"};
        return file.Bad(node["type"].Mark(),
                        StrCat("type \"", type, "\" is not known; use ", StrJoin(kTypes, ", "),
                               DidYouMean(type, kTypes)));
      }
      axis.type = *known;
    }
    axes.push_back(std::move(axis));
  }
  MeshDefinition definition;
  if (const YAML::Node workers = root["workers"]) {
    if (!workers.IsSequence()) {
      return file.Bad(workers.Mark(), "workers must be a sequence of identities, by rank");
    }
    SHARDMESH_RETURN_IF_ERROR(file.CheckCount(workers, "workers", kMaxWorkers));
    absl::flat_hash_set<std::string> seen;
    for (const YAML::Node& node : workers) {
      SHARDMESH_ASSIGN_OR_RETURN(std::string worker, file.Text(node, "a worker's identity"));
      if (const absl::Status status = CheckIdentity(worker, "a worker's identity"); !status.ok()) {
        return file.At(node.Mark(), status);
      }
      if (!seen.insert(worker).second) {
        return file.Bad(node.Mark(), StrCat("worker \"", worker, "\" serves two ranks"));
      }
      definition.workers.push_back(std::move(worker));
    }
    if (!definition.workers.empty()) {
      device_count = static_cast<int64_t>(definition.workers.size());
    }
  }
  MeshOptions options;
  options.device_count = device_count;
  if (const YAML::Node devices = root["devices"]) {
    if (!devices.IsSequence() || devices.size() == 0) {
      return file.Bad(devices.Mark(),
                      "devices must be a sequence of the devices' numbers, by position");
    }
    SHARDMESH_RETURN_IF_ERROR(file.CheckCount(devices, "devices of a mesh", kMaxOrderedDevices));
    for (const YAML::Node& node : devices) {
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t device, file.Integer(node, "a device"));
      options.global_ids.push_back(device);
    }
    if (!device_count.has_value()) {
      options.device_count = static_cast<int64_t>(options.global_ids.size());
    }
  }
  auto mesh = Mesh::Create(std::move(axes), std::move(options));
  if (!mesh.ok()) {
    return file.At(root["axes"].Mark(), mesh.status());
  }
  definition.mesh = *std::move(mesh);
  return definition;
}

// Reads the permutation of a map's rule: `true` or `reverse`, `false`, or a list such as [1, 0].
absl::Status ParseTranspose(const File& file, const YAML::Node& node, TensorMapRule* rule) {
  if (!node.IsSequence()) {
    if (!node.IsScalar() || (node.Scalar() != "true" && node.Scalar() != "false")) {
      return file.Bad(
          node.Mark(),
          "transpose must be true, which reverses the dimensions, false, or the order of "
          "the dimensions, such as [1, 0]");
    }
    SHARDMESH_ASSIGN_OR_RETURN(rule->reverse, file.Bool(node, "transpose"));
    return absl::OkStatus();
  }
  SHARDMESH_RETURN_IF_ERROR(file.CheckCount(node, "dimensions of transpose", kMaxRank));
  absl::flat_hash_set<int64_t> seen;
  for (const YAML::Node& entry : node) {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t dim, file.Integer(entry, "a dimension of transpose"));
    if (dim < 0 || dim >= static_cast<int64_t>(node.size()) || !seen.insert(dim).second) {
      return file.Bad(entry.Mark(), StrCat("transpose must name each of its ", node.size(),
                                           " dimensions once, from 0; ", dim,
                                           seen.contains(dim) ? " occurs twice" : " is none"));
    }
    rule->permutation.push_back(static_cast<size_t>(dim));
  }
  return absl::OkStatus();
}

// Reads the element type of a map's rule, and the channels of I8.
absl::Status ParseMapDtype(const File& file, const YAML::Node& node, TensorMapRule* rule) {
  const YAML::Node dtype = node["dtype"];
  const YAML::Node channel = node["channel"];
  if (dtype) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::string name, file.Text(dtype, "dtype"));
    const absl::StatusOr<Dtype> known = ParseDtypeOfAnyForm(name);
    if (!known.ok()) return file.At(dtype.Mark(), known.status());
    if (!CanConvert(Dtype::kF64, *known) || *known == Dtype::kF64) {
      return file.At(dtype.Mark(),
                     InvalidArgument(Reason::kUnsupportedDtype,
                                     StrCat("tensors cannot be converted to ", DtypeName(*known),
                                            "; dtype is one of F32, F16, BF16 and I8"),
                                     {{fact::kDtype, DtypeName(*known)}}));
    }
    rule->dtype = *known;
  }
  const bool is_quantised = rule->dtype == Dtype::kI8;
  if (is_quantised != channel.IsDefined()) {
    return file.Bad((channel ? channel : dtype).Mark(),
                    is_quantised ? "dtype I8 needs channel: the dimension of the loaded tensor of "
                                   "which each index gets a scale, such as 0"
                                 : "channel is for dtype I8 alone");
  }
  if (channel) {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t dim, file.Integer(channel, "channel"));
    if (dim < 0 || dim >= kMaxRank) {
      return file.Bad(channel.Mark(),
                      StrCat("channel ", dim, " is no dimension; it is 0 to ", kMaxRank - 1));
    }
    rule->channel = static_cast<size_t>(dim);
  }
  return absl::OkStatus();
}

// Returns the number of a group that is written as other languages do, such as `1` of `$1`; an
// empty text if there is none.
std::string DollarGroup(std::string_view replacement) {
  for (size_t dollar = replacement.find('$'); dollar != std::string_view::npos;
       dollar = replacement.find('$', dollar + 1)) {
    size_t end = dollar + 1;
    while (end < replacement.size() && replacement[end] >= '0' && replacement[end] <= '9') ++end;
    if (end > dollar + 1) return std::string(replacement.substr(dollar + 1, end - dollar - 1));
  }
  return "";
}

absl::StatusOr<TensorMapRule> ParseMapRule(const File& file, const YAML::Node& node,
                                           std::string_view name) {
  constexpr std::array<std::string_view, 7> kKeys = {"pattern", "replace", "transpose", "dtype",
                                                     "channel", "shape",   "skip"};
  SHARDMESH_RETURN_IF_ERROR(file.CheckMap(node, "a rule of a map", kKeys));
  if (!node["pattern"]) {
    return file.Bad(node.Mark(), "a rule of a map without pattern");
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::string pattern, file.Text(node["pattern"], "pattern"));
  if (const absl::Status status = Pattern::Create(pattern).status(); !status.ok()) {
    return file.At(node["pattern"].Mark(), status);
  }
  std::string replacement = R"(\g<0>)";
  if (node["replace"]) {
    SHARDMESH_ASSIGN_OR_RETURN(replacement, file.Text(node["replace"], "replace"));
    if (const std::string group = DollarGroup(replacement); !group.empty()) {
      return file.Bad(node["replace"].Mark(),
                      StrCat("replace has $", group, "; the text of a group is written \\", group,
                             ", between single quotes: replace: '\\", group, "'"));
    }
  }
  absl::StatusOr<PatternReplacement> replace = PatternReplacement::Create(pattern, replacement);
  if (!replace.ok()) {
    return file.At((node["replace"] ? node["replace"] : node["pattern"]).Mark(), replace.status());
  }
  TensorMapRule rule{*std::move(replace)};
  rule.place = StrCat(name, ":", node.Mark().line + 1, ":", node.Mark().column + 1);
  if (node["skip"]) {
    SHARDMESH_ASSIGN_OR_RETURN(rule.skip, file.Bool(node["skip"], "skip"));
  }
  if (rule.skip && node.size() > 2) {
    return file.Bad(node["skip"].Mark(), "a rule with skip: true has no other key but pattern");
  }
  if (node["transpose"]) {
    SHARDMESH_RETURN_IF_ERROR(ParseTranspose(file, node["transpose"], &rule));
  }
  SHARDMESH_RETURN_IF_ERROR(ParseMapDtype(file, node, &rule));
  if (const YAML::Node shape = node["shape"]) {
    if (!shape.IsSequence()) {
      return file.Bad(shape.Mark(),
                      "shape must be a sequence of the loaded tensor's extents, with null for any, "
                      "such as [null, 768]");
    }
    SHARDMESH_RETURN_IF_ERROR(file.CheckCount(shape, "dimensions of shape", kMaxRank));
    std::vector<std::optional<int64_t>>& extents = rule.shape.emplace();
    for (const YAML::Node& entry : shape) {
      if (entry.IsNull()) {
        extents.push_back(std::nullopt);
        continue;
      }
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t extent, file.Integer(entry, "an extent of shape"));
      if (extent < 0) {
        return file.Bad(entry.Mark(),
                        StrCat("an extent of shape is ", extent, "; it is at least 0"));
      }
      extents.push_back(extent);
    }
    if (!rule.permutation.empty() && rule.permutation.size() != extents.size()) {
      return file.Bad(shape.Mark(),
                      StrCat("shape has ", extents.size(), " dimensions, but transpose has ",
                             rule.permutation.size()));
    }
  }
  return rule;
}

absl::StatusOr<TensorMap> ParseTensorMapNode(const File& file, std::string_view text,
                                             std::string_view name) {
  constexpr std::array<std::string_view, 2> kKeys = {"tensors", "unmatched"};
  SHARDMESH_ASSIGN_OR_RETURN(const YAML::Node root, Load(file, text));
  if (root.IsMap() && root["rules"] && !root["tensors"]) {
    return file.Bad(root.Mark(),
                    "this is a rules file; give it with --rules. A map of names has a sequence of "
                    "{pattern, replace} under the key tensors");
  }
  SHARDMESH_RETURN_IF_ERROR(file.CheckMap(root, "a map of names", kKeys));
  if (!root["tensors"] || !root["tensors"].IsSequence()) {
    return file.Bad(root.Mark(), "a map of names needs tensors, a sequence of {pattern, replace}");
  }
  SHARDMESH_RETURN_IF_ERROR(file.CheckCount(root["tensors"], "rules of a map", kMaxMapRules));
  TensorMap map;
  map.source = std::string(name);
  for (const YAML::Node& node : root["tensors"]) {
    SHARDMESH_ASSIGN_OR_RETURN(TensorMapRule rule, ParseMapRule(file, node, name));
    map.rules.push_back(std::move(rule));
  }
  if (const YAML::Node unmatched = root["unmatched"]) {
    constexpr std::array<std::string_view, 2> kChoices = {"keep", "error"};
    SHARDMESH_ASSIGN_OR_RETURN(const std::string choice, file.Text(unmatched, "unmatched"));
    if (choice != "keep" && choice != "error") {
      return file.Bad(unmatched.Mark(), StrCat("unmatched is keep or error, not \"", choice, "\"",
                                               DidYouMean(choice, kChoices)));
    }
    map.refuse_unmatched = choice == "error";
  }
  return map;
}

// Writes a text. If the text has characters that YAML forbids, writes the text in double quotes,
// where yaml-cpp escapes such characters. If not, writes the text in the form `otherwise`.
void WriteText(const std::string& text, YAML::EMITTER_MANIP otherwise, YAML::Emitter* out) {
  *out << (std::any_of(text.begin(), text.end(), IsForbidden) ? YAML::DoubleQuoted : otherwise)
       << text;
}

// Writes axes in the form that File::Axes reads.
void WriteAxes(const AxisValue& axes, YAML::Emitter* out) {
  if (axes.is_name()) {
    WriteText(axes.name(), YAML::Auto, out);
  } else if (axes.is_tuple()) {
    *out << YAML::Flow << YAML::BeginSeq;
    for (const AxisValue& entry : axes.entries()) {
      WriteAxes(entry, out);
    }
    *out << YAML::EndSeq;
  } else {
    *out << YAML::Null;
  }
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const auto failed = [&](int error) {
    return absl::ErrnoToStatus(error, StrCat("cannot read ", path));
  };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return failed(errno);
  }
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  struct stat info;
  if (fstat(fd, &info) != 0) {
    return failed(errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(StrCat(path, " is no regular file"));
  }
  // Reads one byte more than allowed, to detect a file that is too long.
  std::string text(static_cast<size_t>(kMaxConfigBytes) + 1, '\0');
  size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t count = read(fd, text.data() + filled, text.size() - filled);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return failed(errno);
    }
    if (count == 0) {
      break;
    }
    filled += static_cast<size_t>(count);
  }
  text.resize(filled);
  return text;
}

// Returns `defined` if it keeps the limits of the wire contract, because the definitions of a file
// are sent in messages. If not, returns the decoder's error, with the file's name.
template <typename Message, typename Defined, typename... DecodeArgs>
absl::StatusOr<Defined> Sendable(const File& file, absl::StatusOr<Defined> defined,
                                 DecodeArgs... arguments) {
  if (!defined.ok()) {
    return defined;
  }
  Message message;
  Encode(*defined, &message);
  if (const absl::Status status = Decode(message, arguments...).status(); !status.ok()) {
    return file.At(YAML::Mark::null_mark(), status);
  }
  return defined;
}

}  // namespace

absl::StatusOr<RuleSetDefinition> ParseRules(std::string_view text, std::string_view name,
                                             Compatibility compatibility) {
  const File file(name);
  return Sendable<v1::RuleSet>(
      file, WithoutExceptions(file, [&] { return ParseRulesNode(file, text, compatibility); }),
      compatibility);
}

absl::StatusOr<PartitionAxis> ParseProfile(std::string_view text, std::string_view name) {
  const File file(name);
  return Sendable<v1::PartitionAxis>(
      file, WithoutExceptions(file, [&] { return ParseProfileNode(file, text); }));
}

absl::StatusOr<MeshDefinition> ParseMesh(std::string_view text, std::string_view name,
                                         std::optional<int64_t> device_count) {
  const File file(name);
  return Sendable<v1::MeshDefinition>(
      file, WithoutExceptions(file, [&] { return ParseMeshNode(file, text, device_count); }));
}

absl::StatusOr<LogicalRules> ParseLogicalRules(std::string_view text, std::string_view name) {
  const File file(name);
  return Sendable<v1::LogicalRules>(
      file, WithoutExceptions(file, [&] { return ParseLogicalRulesNode(file, text); }));
}

absl::StatusOr<TensorMap> ParseTensorMap(std::string_view text, std::string_view name) {
  const File file(name);
  return WithoutExceptions(file, [&] { return ParseTensorMapNode(file, text, name); });
}

absl::StatusOr<TensorMap> LoadTensorMap(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseTensorMap(text, path);
}

absl::StatusOr<LogicalRules> LoadLogicalRules(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseLogicalRules(text, path);
}

absl::StatusOr<RuleSetDefinition> LoadRules(const std::string& path, Compatibility compatibility) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseRules(text, path, compatibility);
}

absl::StatusOr<PartitionAxis> LoadProfile(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseProfile(text, path);
}

absl::StatusOr<MeshDefinition> LoadMesh(const std::string& path,
                                        std::optional<int64_t> device_count) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseMesh(text, path, device_count);
}

std::string FormatRules(const RuleSetDefinition& definition) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  if (definition.default_min_size) {
    out << YAML::Key << "min_size" << YAML::Value << YAML::Null;
  } else if (definition.rules.min_size() != 0) {
    out << YAML::Key << "min_size" << YAML::Value << definition.rules.min_size();
  }
  if (!definition.rules.strict()) {
    out << YAML::Key << "strict" << YAML::Value << false;
  }
  if (definition.slashes) {
    out << YAML::Key << "separator" << YAML::Value << "/";
  }
  out << YAML::Key << "rules" << YAML::Value << YAML::BeginSeq;
  for (const Rule& rule : definition.rules.rules()) {
    out << YAML::Flow << YAML::BeginMap << YAML::Key << "pattern" << YAML::Value;
    WriteText(rule.pattern, YAML::SingleQuoted, &out);
    out << YAML::Key << "spec" << YAML::Value << YAML::Flow << YAML::BeginSeq;
    for (const SpecEntry& entry : rule.spec.entries()) {
      WriteAxes(entry.ToAxisValue(), &out);
    }
    out << YAML::EndSeq << YAML::EndMap;
  }
  out << YAML::EndSeq << YAML::EndMap;
  return StrCat(out.c_str(), "\n");
}

}  // namespace shardmesh::rpc
