// The options of commands that cut tensors into parts of unequal sizes.
#include "client/cli/cut_options.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "client/cli/command_line.h"
#include "client/cli/table.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// Parses a whole number of at least 0.
std::optional<int64_t> ParseCount(std::string_view text) {
  int64_t number = 0;
  // SimpleAtoi would accept blanks and a plus sign.
  const bool is_number = !text.empty() &&
                         text.find_first_not_of("0123456789") == std::string_view::npos &&
                         absl::SimpleAtoi(ToAbsl(text), &number);
  return is_number ? std::optional<int64_t>(number) : std::nullopt;
}

// Parses whole numbers that commas separate; nullopt if one of them is malformed.
std::optional<std::vector<int64_t>> ParseCounts(std::string_view text) {
  std::vector<int64_t> numbers;
  for (const absl::string_view piece : absl::StrSplit(ToAbsl(text), ',')) {
    const std::optional<int64_t> number = ParseCount(ToStd(piece));
    if (!number.has_value()) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

absl::Status NamedTwice(const DimensionCuts& cuts) {
  return WrongUse(StrCat("--cuts names dimension ", cuts.dim,
                         " twice; list all its starts in one: ", cuts.dim, ":100,300"));
}

}  // namespace

absl::StatusOr<DimensionCuts> ParseCuts(std::string_view text) {
  const size_t colon = text.find(':');
  const std::optional<int64_t> dim = ParseCount(text.substr(0, colon));
  const auto starts =
      colon == std::string_view::npos ? std::nullopt : ParseCounts(text.substr(colon + 1));
  if (!dim.has_value() || !starts.has_value()) {
    return WrongUse(StrCat("\"", text,
                           "\" is no dimension with the starts of its parts after the first, as in "
                           "\"0:100,300\""));
  }
  for (size_t i = 1; i < starts->size(); ++i) {
    if ((*starts)[i] < (*starts)[i - 1]) {
      return WrongUse(StrCat("\"", text, "\": the start ", (*starts)[i], " follows ",
                             (*starts)[i - 1], "; starts must not fall"));
    }
  }
  return DimensionCuts{.dim = *dim, .starts = *starts};
}

absl::StatusOr<UnevenCuts> ParseUnevenCuts(std::string_view text) {
  constexpr std::pair<std::string_view, UnevenCuts> kRules[] = {{"equal", UnevenCuts::kEqualOnly},
                                                                {"ceil", UnevenCuts::kCeilChunks},
                                                                {"memory", UnevenCuts::kByMemory},
                                                                {"speed", UnevenCuts::kBySpeed}};
  for (const auto& [name, rule] : kRules) {
    if (text == name) return rule;
  }
  return WrongUse(
      StrCat("\"", text, "\" is none of equal, ceil, memory, speed",
             text == "weights" ? "; give the weights themselves, as --weights 1,2,1" : ""));
}

absl::StatusOr<std::vector<int64_t>> ParseWeights(std::string_view text) {
  const auto weights = ParseCounts(text);
  if (!weights.has_value()) {
    return WrongUse(StrCat("\"", text,
                           "\" is no list of whole numbers from 0, one for each device, as in "
                           "\"1,2,1\""));
  }
  return *weights;
}

void AddCutsOption(CLI::App* app, CutOptions* options) {
  app->add_option_function<std::vector<std::string>>(
         "--cuts",
         [options](const std::vector<std::string>& texts) {
           options->cuts.clear();
           for (const std::string& text : texts) {
             absl::StatusOr<DimensionCuts> cuts = ParseCuts(text);
             if (!cuts.ok()) {
               throw CLI::ValidationError("--cuts", std::string(cuts.status().message()));
             }
             options->cuts.push_back(*std::move(cuts));
           }
         },
         "a dimension, and where its parts after the first start: 0:100,300; may be repeated")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);  // else it would take a file that follows for more cuts
}

void AddUnevenOptions(CLI::App* app, CutOptions* options, std::string_view rules) {
  AddParsedOption(app, "--uneven", &options->uneven, ParseUnevenCuts,
                  StrCat("how to cut dimensions that their axes do not divide: ", rules));
  AddParsedOption(app, "--weights", &options->weights, ParseWeights,
                  "cut in proportion to these weights, one for each device in the order of the "
                  "ranks: 1,2,1; a part has the least weight of its devices");
}

absl::Status CheckCutOptions(const CutOptions& options) {
  if (options.uneven.has_value() && options.weights.has_value()) {
    return WrongUse("--weights is a rule of its own; give --uneven or --weights, not both");
  }
  if (!options.cuts.empty() && options.rule() != UnevenCuts::kEqualOnly) {
    return WrongUse(StrCat("--cuts says where to cut; give --cuts or ",
                           options.weights.has_value() ? "--weights" : "--uneven", ", not both"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CutPoints>> CutPointsFor(const CutOptions& options, const Shape& shape) {
  std::vector<CutPoints> cut_points(options.cuts.empty() ? 0 : shape.size());
  for (const DimensionCuts& cuts : options.cuts) {
    if (cuts.dim >= static_cast<int64_t>(shape.size())) {
      return WrongUse(StrCat("--cuts ", cuts.dim, ":", StrJoin(cuts.starts, ","), ": the tensor ",
                             FormatShape(shape), " has ", FormatCount(shape.size(), "dimension"),
                             ", counted from 0"));
    }
    const int64_t extent = shape[static_cast<size_t>(cuts.dim)];
    CutPoints& points = cut_points[static_cast<size_t>(cuts.dim)];
    if (!points.empty()) return NamedTwice(cuts);
    if (cuts.starts.back() > extent) {
      return WrongUse(StrCat("--cuts ", cuts.dim, ":", StrJoin(cuts.starts, ","),
                             ": a part cannot start at ", cuts.starts.back(), "; dimension ",
                             cuts.dim, " of the tensor ", FormatShape(shape), " ends at ", extent));
    }
    points.push_back(0);
    points.insert(points.end(), cuts.starts.begin(), cuts.starts.end());
    points.push_back(extent);
  }
  return cut_points;
}

absl::StatusOr<std::vector<CutPoints>> CutPointsForAll(const CutOptions& options) {
  std::vector<CutPoints> cut_points;
  for (const DimensionCuts& cuts : options.cuts) {
    if (cuts.dim >= kMaxRank) {
      return WrongUse(StrCat("--cuts ", cuts.dim, ":", StrJoin(cuts.starts, ","),
                             ": an array has at most ", kMaxRank, " dimensions, counted from 0"));
    }
    const auto dim = static_cast<size_t>(cuts.dim);
    if (dim >= cut_points.size()) cut_points.resize(dim + 1);
    if (!cut_points[dim].empty()) return NamedTwice(cuts);
    cut_points[dim] = cuts.starts;
    cut_points[dim].insert(cut_points[dim].begin(), 0);
    cut_points[dim].push_back(cuts.starts.back());
  }
  return cut_points;
}

std::string FormatCutPoints(absl::Span<const CutPoints> cut_points) {
  std::vector<std::string> texts;
  for (size_t dim = 0; dim < cut_points.size(); ++dim) {
    const CutPoints& points = cut_points[dim];
    if (points.size() < 2) continue;
    const auto starts = absl::MakeConstSpan(points).subspan(1, points.size() - 2);
    texts.push_back(StrCat(dim, ":", StrJoin(starts, ",")));
  }
  return texts.empty() ? "-" : StrJoin(texts, " ");
}

Json CutPointsJson(absl::Span<const CutPoints> cut_points) {
  Json json = Json::array();
  for (const CutPoints& points : cut_points) {
    json.push_back(points);
  }
  return json;
}

std::vector<int64_t> EmptyRanks(const ArrayDescriptor& array) {
  std::vector<int64_t> ranks;
  if (array.cut_points.empty()) return ranks;
  const absl::StatusOr<Tiling> tiling = array.Tiling();
  if (!tiling.ok() || Tile::Whole(array.shape).empty()) return ranks;
  for (int64_t rank = 0; rank < array.mesh.size(); ++rank) {
    if (tiling->TileOf(rank).empty()) ranks.push_back(rank);
  }
  return ranks;
}

std::string NoteOnEmptyRanks(absl::Span<const int64_t> ranks, std::string_view what) {
  constexpr size_t kMostShown = 8;
  if (ranks.empty()) return "";
  const bool is_one = ranks.size() == 1;
  return StrCat(is_one ? "Rank " : "Ranks ", StrJoinFirst(kMostShown, ranks, ", "),
                is_one ? " holds" : " hold", " nothing of ", what,
                is_one ? ": its part is empty" : ": their parts are empty");
}

}  // namespace shardmesh::client
