// The notation of values in command-line arguments.
#include "client/cli/grammar.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "client/cli/command_line.h"
#include "rpc/config.h"
#include "rpc/flags.h"
#include "status/nearest_name.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype_promotion.h"

namespace shardmesh::client {
namespace {

std::string_view Strip(std::string_view text) {
  return ToStd(absl::StripAsciiWhitespace(ToAbsl(text)));
}

absl::Status Malformed(std::string_view text, std::string_view why) {
  return WrongUse(StrCat("\"", text, "\" ", why));
}

// Cuts `text` at each `separator` outside parentheses and square brackets.
absl::StatusOr<std::vector<std::string_view>> Split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  std::string closers;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '(' || c == '[') {
      closers.push_back(c == '(' ? ')' : ']');
    } else if (c == ')' || c == ']') {
      if (closers.empty() || closers.back() != c) {
        return Malformed(text, StrCat("closes a \"", std::string(1, c), "\" that is not open"));
      }
      closers.pop_back();
    } else if (c == separator && closers.empty()) {
      pieces.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  if (!closers.empty()) {
    return Malformed(text, StrCat("lacks a closing \"", closers.substr(0, 1), "\""));
  }
  pieces.push_back(text.substr(begin));
  return pieces;
}

// The deepest allowed nesting of parentheses and square brackets. The Python originals nest once.
constexpr int kMaxDepth = 4;

absl::StatusOr<AxisValue> ParseAxisValue(std::string_view text, int depth = 0);

absl::StatusOr<std::vector<AxisValue>> ParseEntries(std::string_view text, char separator,
                                                    int depth) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string_view> pieces, Split(text, separator));
  std::vector<AxisValue> entries;
  for (const std::string_view piece : pieces) {
    // As in Python, a comma may end the list.
    if (Strip(piece).empty() && entries.size() + 1 == pieces.size() && pieces.size() > 1) {
      break;
    }
    SHARDMESH_ASSIGN_OR_RETURN(AxisValue entry, ParseAxisValue(piece, depth));
    entries.push_back(std::move(entry));
  }
  return entries;
}

absl::StatusOr<AxisValue> ParseAxisValue(std::string_view text, int depth) {
  text = Strip(text);
  if (depth > kMaxDepth) {
    return Malformed(text, "nests too deep");
  }
  if (text.empty()) {
    return WrongUse("a dimension is empty; write - for one that is not partitioned");
  }
  if (text == "-" || text == "_" || text == "none" || text == "None") {
    return AxisValue::None();
  }
  if (text == "?") {
    return AxisValue::Unconstrained();
  }
  const std::string_view inside = text.substr(1, text.size() < 2 ? 0 : text.size() - 2);
  if (text.front() == '(' && text.back() == ')') {
    if (Strip(inside).empty()) {
      return AxisValue::None();
    }
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<AxisValue> entries,
                               ParseEntries(inside, ',', depth + 1));
    return AxisValue::Tuple(std::move(entries));
  }
  if (text.front() == '[' && text.back() == ']') {
    if (Strip(inside).empty()) {
      return AxisValue::List({});
    }
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<AxisValue> entries,
                               ParseEntries(inside, ',', depth + 1));
    return AxisValue::List(std::move(entries));
  }
  if (text.find('+') != std::string_view::npos) {
    if (text.ends_with('+')) {
      return Malformed(text, "ends in a + without an axis after it");
    }
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<AxisValue> entries, ParseEntries(text, '+', depth + 1));
    return AxisValue::Tuple(std::move(entries));
  }
  if (text.find_first_of("()[] =\t") != std::string_view::npos) {
    return Malformed(text, "is no axis; write one entry for each dimension, such as fsdp,-,tp");
  }
  return AxisValue::Name(std::string(text));
}

// Returns the value of `known` whose name is `text`.
template <typename T>
absl::StatusOr<T> Named(std::string_view text,
                        const std::vector<std::pair<std::string_view, T>>& known) {
  std::vector<std::string_view> names;
  for (const auto& [name, value] : known) {
    if (text == name) {
      return value;
    }
    names.push_back(name);
  }
  return Malformed(text, StrCat("is none of ", StrJoin(names, ", "), DidYouMean(text, names)));
}

// Parses an end of a range of a slice; nullopt if it is no whole number from 0.
std::optional<int64_t> ParseIndex(std::string_view text) {
  int64_t index = 0;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.empty() || !std::all_of(text.begin(), text.end(), is_digit) ||
      !absl::SimpleAtoi(ToAbsl(text), &index)) {
    return std::nullopt;
  }
  return index;
}

// Parses the range of one dimension. Errors name this range and the whole slice.
absl::StatusOr<SliceRange> ParseSliceRange(std::string_view slice, std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return Malformed(slice, StrCat("is no slice: ", why));
  };
  const auto colons = std::count(text.begin(), text.end(), ':');
  if (colons > 1) {
    return refuse(StrCat("\"", text, "\" has a step; a range START:STOP takes each index in it"));
  }
  if (text.find('-') != std::string_view::npos) {
    return refuse(StrCat("\"", text, "\" has a number below 0; indexes count from 0, and none ",
                         "counts from the end (`shardmesh describe NAME` shows the shape)"));
  }
  if (const std::optional<int64_t> index = ParseIndex(text); index.has_value() && colons == 0) {
    const bool has_next = *index < std::numeric_limits<int64_t>::max();
    return refuse(StrCat("\"", text, "\" is one index; write a range, ", *index, ":",
                         has_next ? StrCat(*index + 1) : std::string(),
                         ", which keeps the dimension"));
  }
  const std::string_view start = Strip(text.substr(0, text.find(':')));
  const std::string_view stop = colons == 1 ? Strip(text.substr(text.find(':') + 1)) : "";
  SliceRange range;
  if (!stop.empty()) range.stop = ParseIndex(stop);
  if (colons == 0 || (!start.empty() && !ParseIndex(start).has_value()) ||
      (!stop.empty() && !range.stop.has_value())) {
    return refuse(StrCat("\"", text, "\" is no range; for each dimension write START:STOP, ",
                         "START:, :STOP, or : for all of it, as in 0:16,:"));
  }
  range.start = ParseIndex(start).value_or(0);
  return range;
}

}  // namespace

absl::StatusOr<Shape> ParseShape(std::string_view text) {
  Shape shape;
  if (Strip(text).empty() || Strip(text) == "scalar") {
    return shape;
  }
  for (const absl::string_view piece : absl::StrSplit(ToAbsl(text), absl::ByAnyChar(",x"))) {
    int64_t extent = 0;
    if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(piece), &extent)) {
      return Malformed(text, "is no shape; write extents as 30522,384 or 30522x384");
    }
    shape.push_back(extent);
  }
  if (const absl::Status status = CheckShape(shape); !status.ok()) {
    return WrongUse(ToStd(status.message()));
  }
  return shape;
}

absl::StatusOr<ArraySlice> ParseSlice(std::string_view text) {
  ArraySlice slice;
  if (Strip(text).empty()) {
    return slice;
  }
  for (const absl::string_view piece : absl::StrSplit(ToAbsl(text), ',')) {
    SHARDMESH_ASSIGN_OR_RETURN(slice.emplace_back(), ParseSliceRange(text, Strip(ToStd(piece))));
  }
  return slice;
}

std::string RefuseStandardOutput(const std::string& path) {
  return path == "-" ? "this is not written to standard output; name a file, such as ./-" : "";
}

absl::StatusOr<std::string> ParseNpyPath(std::string_view text, std::string_view command,
                                         bool or_output) {
  if (!or_output) {
    if (std::string refusal = RefuseStandardOutput(std::string(text)); !refusal.empty()) {
      return WrongUse(refusal);
    }
  }
  std::filesystem::path path(text);
  if (!path.has_extension() || path.extension() == ".npy") {
    return std::string(text);
  }
  const std::string npy = path.replace_extension(".npy").string();
  if (!or_output) return WrongUse(StrCat(command, " writes .npy files; name it ", npy));
  return WrongUse(StrCat(command, " writes .npy and .safetensors files; name it ", npy, " or ",
                         path.replace_extension(".safetensors").string(),
                         ", or - for standard output"));
}

absl::StatusOr<Tile> ParseTile(std::string_view text) {
  Tile tile;
  if (Strip(text).empty()) {
    return tile;
  }
  for (const absl::string_view piece : absl::StrSplit(ToAbsl(text), ',')) {
    const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(piece, ':');
    IndexRange range;
    if (!absl::SimpleAtoi(ends.first, &range.start) ||
        !absl::SimpleAtoi(ends.second, &range.stop)) {
      return Malformed(text,
                       "is no range; write START:STOP for each dimension, such as 0:16,0:384");
    }
    if (range.start < 0 || range.stop < range.start) {
      return Malformed(text,
                       StrCat("has the range ", ToStd(piece), ", which does not rise from 0"));
    }
    tile.ranges.push_back(range);
  }
  return tile;
}

absl::StatusOr<std::vector<AxisValue>> ParseAxes(std::string_view text) {
  text = Strip(text);
  if (text.empty() || text == "()") {
    return std::vector<AxisValue>();
  }
  return ParseEntries(text, ',', 0);
}

absl::StatusOr<PartitionSpec> ParseSpec(std::string_view text) {
  constexpr std::string_view kUnreduced = " unreduced ";
  const size_t end = text.find(kUnreduced);
  std::vector<std::string> unreduced;
  if (end != std::string_view::npos) {
    for (const absl::string_view piece :
         absl::StrSplit(ToAbsl(text.substr(end + kUnreduced.size())), ',')) {
      const std::string_view axis = Strip(ToStd(piece));
      if (axis.empty()) return Malformed(text, "names an empty unreduced axis");
      unreduced.emplace_back(axis);
    }
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<AxisValue> entries, ParseAxes(text.substr(0, end)));
  absl::StatusOr<PartitionSpec> spec = PartitionSpec::Create(entries, std::move(unreduced));
  if (!spec.ok()) {
    return WrongUse(ToStd(spec.status().message()));
  }
  return spec;
}

bool IsArrayId(std::string_view text) {
  constexpr size_t kDigits = 32;
  return text.size() == 1 + kDigits && text.front() == '@' &&
         text.find_first_not_of("0123456789abcdef", 1) == std::string_view::npos;
}

std::string RefuseNameWithAt(const std::string& name) {
  if (IsArrayId(name)) return StrCat("\"", name, "\" is the id of an array, not a name");
  if (name.find('@') == std::string::npos) return "";
  return StrCat("\"", name,
                "\" has an @, which stands before a version where a name is read, as in NAME@3; "
                "choose a name without @");
}

absl::StatusOr<ArraySelector> ParseArrayName(std::string_view text) {
  if (IsArrayId(text)) return ArraySelector::ById(std::string(text.substr(1)));
  const size_t at = text.rfind('@');
  if (at == std::string_view::npos) return ArraySelector::ByName(std::string(text));
  int64_t version = 0;
  if (at == 0 || !absl::SimpleAtoi(ToAbsl(text.substr(at + 1)), &version) || version < 1) {
    return at == 0 ? Malformed(text,
                               "is no NAME@VERSION, and no @ID, whose id is the 32 digits that "
                               "`shardmesh ls --unnamed` shows")
                   : Malformed(text, StrCat("is no NAME@VERSION, whose version is a number from "
                                            "1; if ",
                                            text, " is the name, write ", text, "@VERSION"));
  }
  return ArraySelector::ByName(std::string(text.substr(0, at)), version);
}

std::string FormatArray(const ArraySelector& array) {
  return array.name.empty() ? StrCat("@", array.array_id) : array.name;
}

absl::StatusOr<int64_t> ParseSize(std::string_view text) {
  const std::string_view stripped = Strip(text);
  const size_t digits = std::min(stripped.find_first_not_of("0123456789."), stripped.size());
  const std::string_view unit = Strip(stripped.substr(digits));
  if (!unit.empty() && !absl::ascii_isalpha(static_cast<unsigned char>(unit.front()))) {
    return Malformed(text, "is no number of bytes such as 1024, 64KiB, 4GiB or 24GB");
  }
  const std::string joined = StrCat(stripped.substr(0, digits), unit);
  absl::StatusOr<int64_t> bytes = rpc::ParseByteSize(joined);
  if (bytes.ok()) return bytes;
  // ParseByteSize refuses fractions of a byte, but tables print rounded sizes such as `86.7 MiB`:
  // round to a whole number of bytes.
  const absl::StatusOr<int64_t> unit_bytes = rpc::ParseByteSize(StrCat("1", unit));
  double number = 0;
  if (!unit_bytes.ok() || *unit_bytes == 1 ||
      !absl::SimpleAtod(ToAbsl(stripped.substr(0, digits)), &number)) {
    return WrongUse(ToStd(bytes.status().message()));
  }
  const double rounded = std::round(number * static_cast<double>(*unit_bytes));
  if (rounded >= static_cast<double>(std::numeric_limits<int64_t>::max())) {
    return WrongUse(ToStd(bytes.status().message()));
  }
  return static_cast<int64_t>(rounded);
}

absl::StatusOr<Dtype> ParseElementType(std::string_view text) { return ParseDtypeOfAnyForm(text); }

absl::StatusOr<Mode> ParseMode(std::string_view text, Compatibility compatibility) {
  int64_t dimension = 0;
  if (absl::SimpleAtoi(ToAbsl(text), &dimension)) {
    return Mode::OfDimension(dimension);
  }
  const std::string name = text.starts_with('_') ? std::string(text) : StrCat("__", text, "__");
  absl::StatusOr<Mode> mode = Mode::Parse(name, compatibility);
  if (!mode.ok()) {
    // Parse the text that the user typed, so that the message repeats this text, and not the name
    // with added underscores.
    return WrongUse(ToStd(Mode::Parse(text, compatibility).status().message()));
  }
  return mode;
}

bool LooksLikePath(std::string_view text) {
  return text.find('/') != std::string_view::npos || text.ends_with(".yaml") ||
         text.ends_with(".yml") || text.ends_with(".json") ||
         access(std::string(text).c_str(), F_OK) == 0;
}

bool LooksLikeAxes(std::string_view text) { return text.find('=') != std::string_view::npos; }

absl::StatusOr<MeshSelector> SelectMesh(std::string_view text, std::optional<int64_t> device_count,
                                        Compatibility compatibility) {
  if (text.empty()) {
    return MeshSelector(std::string("default"));
  }
  if (LooksLikeAxes(text)) {
    MeshOptions options;
    options.device_count = device_count;
    options.allow_degenerate = compatibility == Compatibility::kExact;
    absl::StatusOr<Mesh> mesh = Mesh::Parse(text, std::move(options));
    if (!mesh.ok()) {
      return WrongUse(ToStd(mesh.status().message()));
    }
    return *std::move(mesh);
  }
  if (LooksLikePath(text)) {
    SHARDMESH_ASSIGN_OR_RETURN(MeshDefinition definition,
                               rpc::LoadMesh(std::string(text), device_count));
    return std::move(definition.mesh);
  }
  return std::string(text);
}

absl::StatusOr<ProfileSelector> SelectProfile(std::string_view text) {
  if (text.empty()) {
    return ProfileSelector();
  }
  if (LooksLikePath(text)) {
    return rpc::LoadProfile(std::string(text));
  }
  return std::string(text);
}

absl::StatusOr<RuleSetSelector> SelectRules(std::string_view text, Compatibility compatibility) {
  if (text.empty()) {
    return RuleSetSelector();
  }
  if (LooksLikePath(text)) {
    return rpc::LoadRules(std::string(text), compatibility);
  }
  return std::string(text);
}

absl::StatusOr<LogicalRulesSelector> SelectLogicalRules(std::string_view text) {
  if (text.empty()) {
    return LogicalRulesSelector();
  }
  if (LooksLikePath(text)) {
    return rpc::LoadLogicalRules(std::string(text));
  }
  return std::string(text);
}

std::function<std::string(const std::string&)> WholeNumberFrom(int64_t min) {
  return [min](const std::string& text) {
    int64_t number = 0;
    // SimpleAtoi would accept blanks and a plus sign.
    const bool is_number = text.find_first_not_of("-0123456789") == std::string::npos &&
                           absl::SimpleAtoi(text, &number);
    return is_number && number >= min ? std::string()
                                      : StrCat("\"", text, "\" is not a whole number from ", min);
  };
}

absl::StatusOr<Activation> ParseActivation(std::string_view text) {
  return Named<Activation>(text, {{"none", Activation::kNone},
                                  {"relu", Activation::kRelu},
                                  {"gelu", Activation::kGelu},
                                  {"gelu-tanh", Activation::kGeluTanh},
                                  {"silu", Activation::kSilu}});
}

absl::StatusOr<WeightLayout> ParseWeightLayout(std::string_view text) {
  return Named<WeightLayout>(text,
                             {{"out-in", WeightLayout::kOutIn}, {"in-out", WeightLayout::kInOut}});
}

absl::StatusOr<CollectiveKind> ParseCollectiveKind(std::string_view text) {
  return Named<CollectiveKind>(text, {{"all-reduce", CollectiveKind::kAllReduce},
                                      {"all-gather", CollectiveKind::kAllGather},
                                      {"reduce-scatter", CollectiveKind::kReduceScatter},
                                      {"all-to-all", CollectiveKind::kAllToAll},
                                      {"broadcast", CollectiveKind::kBroadcast},
                                      {"reduce", CollectiveKind::kReduce},
                                      {"gather", CollectiveKind::kGather},
                                      {"scatter", CollectiveKind::kScatter},
                                      {"permute", CollectiveKind::kPermute},
                                      {"send", CollectiveKind::kPermute},
                                      {"barrier", CollectiveKind::kBarrier}});
}

absl::StatusOr<CollectiveAlgorithm> ParseCollectiveAlgorithm(std::string_view text) {
  return Named<CollectiveAlgorithm>(text, {{"auto", CollectiveAlgorithm::kAuto},
                                           {"pairwise", CollectiveAlgorithm::kPairwise},
                                           {"direct", CollectiveAlgorithm::kDirect},
                                           {"doubling", CollectiveAlgorithm::kDoubling},
                                           {"halving", CollectiveAlgorithm::kHalving},
                                           {"ring", CollectiveAlgorithm::kRing},
                                           {"binomial", CollectiveAlgorithm::kBinomial},
                                           {"chain", CollectiveAlgorithm::kChain}});
}

absl::StatusOr<CollectiveOrder> ParseCollectiveOrder(std::string_view text) {
  return Named<CollectiveOrder>(text, {{"reproducible", CollectiveOrder::kReproducible},
                                       {"fastest", CollectiveOrder::kFastest}});
}

absl::StatusOr<PermutePair> ParsePermutePair(std::string_view text) {
  const std::pair<std::string, std::string> ends =
      absl::StrSplit(ToAbsl(text), absl::MaxSplits(':', 1));
  PermutePair pair;
  if (!absl::SimpleAtoi(ends.first, &pair.source) || !absl::SimpleAtoi(ends.second, &pair.target) ||
      pair.source < 0 || pair.target < 0) {
    return Malformed(text, "is no pair of places, as in \"0:1\"");
  }
  return pair;
}

absl::StatusOr<Reduction> ParseReduction(std::string_view text) {
  return Named<Reduction>(text, {{"sum", Reduction::kSum},
                                 {"product", Reduction::kProduct},
                                 {"min", Reduction::kMin},
                                 {"max", Reduction::kMax},
                                 {"mean", Reduction::kMean}});
}

absl::StatusOr<EntryKind> ParseEntryKind(std::string_view text) {
  return Named<EntryKind>(text, {{"mesh", EntryKind::kMesh},
                                 {"profile", EntryKind::kProfile},
                                 {"rules", EntryKind::kRuleSet},
                                 {"logical", EntryKind::kLogicalRules},
                                 {"tree", EntryKind::kTree}});
}

absl::StatusOr<MeshAxesQuestion::Kind> ParseMeshAxesKind(std::string_view text) {
  using Kind = MeshAxesQuestion::Kind;
  return Named<Kind>(text, {{"present", Kind::kPresent},
                            {"size", Kind::kSize},
                            {"mapped-size", Kind::kMappedSize},
                            {"index", Kind::kIndex},
                            {"groups", Kind::kGroups},
                            {"submesh", Kind::kSubmesh}});
}

absl::StatusOr<OutputSpecQuestion::Kind> ParseOutputKind(std::string_view text) {
  using Kind = OutputSpecQuestion::Kind;
  return Named<Kind>(
      text, {{"matmul", Kind::kMatmul}, {"linear", Kind::kLinear}, {"operand", Kind::kOperand}});
}

}  // namespace shardmesh::client
