// Reads YAML into the types of sharding/. The only file that uses yaml-cpp.
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
#include "sharding/shape.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "status/utf8.h"

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

// Runs a parser of yaml-cpp, and converts its exceptions to a status.
template <typename Parse>
auto WithoutExceptions(const File& file, const Parse& parse) -> decltype(parse()) {
  try {
    return parse();
  } catch (const YAML::Exception& e) {
    return file.Bad(e.mark, StrCat("not YAML: ", e.msg));
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
      return file.At(root["rules"][i]["pattern"].Mark(), WithRewriteHint(std::move(status), rules));
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
