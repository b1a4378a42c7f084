// The options of commands that cut tensors into parts of unequal sizes, and the texts of cut
// points.
#ifndef SHARDMESH_CLIENT_CLI_CUT_OPTIONS_H_
#define SHARDMESH_CLIENT_CLI_CUT_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cli/output_form.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "sharding/uneven.h"
#include "tensor/array_descriptor.h"

namespace shardmesh::client {

// The starts of all parts of one dimension except the first part, which starts at 0.
struct DimensionCuts {
  int64_t dim = 0;
  std::vector<int64_t> starts;

  friend bool operator==(const DimensionCuts&, const DimensionCuts&) = default;
};

// Parses cuts such as `0:100,300`: dimension 0 has the parts [0,100), [100,300) and the rest.
// Starts must not fall. Two equal starts in a row make an empty part.
absl::StatusOr<DimensionCuts> ParseCuts(std::string_view text);
// Parses a rule by its name: equal, ceil, memory, speed.
absl::StatusOr<UnevenCuts> ParseUnevenCuts(std::string_view text);
// Parses the weights of a mesh's devices, such as `1,2,1`: whole numbers from 0.
absl::StatusOr<std::vector<int64_t>> ParseWeights(std::string_view text);

// The values of --cuts, --uneven and --weights.
struct CutOptions {
  std::vector<DimensionCuts> cuts;
  std::optional<UnevenCuts> uneven;
  std::optional<std::vector<int64_t>> weights;

  bool is_given() const { return !cuts.empty() || uneven.has_value() || weights.has_value(); }
  // The rule that --uneven and --weights select.
  UnevenCuts rule() const {
    return weights.has_value() ? UnevenCuts::kByWeights : uneven.value_or(UnevenCuts::kEqualOnly);
  }
};

// Adds --cuts, which may be repeated. `options` outlives the app.
void AddCutsOption(CLI::App* app, CutOptions* options);
// The rules that a command takes which moves tensors onto a mesh and corrects their specs.
inline constexpr std::string_view kUnevenRules =
    "ceil (parts of ceil(extent/parts)), memory or speed (in proportion to the workers'), equal "
    "(drop such axes)";
// Adds --uneven and --weights. `rules` lists the rules that the command takes, in the help.
void AddUnevenOptions(CLI::App* app, CutOptions* options, std::string_view rules);
// Returns a wrong-use error if the options contradict one another.
absl::Status CheckCutOptions(const CutOptions& options);
// Returns the cut points of a tensor of this shape by --cuts, as Tiling::Create takes them; no
// lists without --cuts. The error, about a dimension or a start that the tensor does not have, is
// wrong use.
absl::StatusOr<std::vector<CutPoints>> CutPointsFor(const CutOptions& options, const Shape& shape);
// Returns the cut points by --cuts for arrays of different shapes, as ReshardOptions takes them:
// the last point of a dimension stands for the end of the array's own dimension. The error, about a
// dimension that is named twice or that no array has, is wrong use.
absl::StatusOr<std::vector<CutPoints>> CutPointsForAll(const CutOptions& options);

// Returns cut points in the notation of ParseCuts, such as `0:3,6 1:5`; `-` if all parts are equal.
std::string FormatCutPoints(absl::Span<const CutPoints> cut_points);
// Returns one list for each dimension: its points, or no points if its parts are equal. Returns an
// empty list if the parts of all dimensions are equal.
Json CutPointsJson(absl::Span<const CutPoints> cut_points);

// Returns the ranks that hold no element of an array that has some, such as ranks of weight 0;
// rising. Only an array with cut points has such ranks.
std::vector<int64_t> EmptyRanks(const ArrayDescriptor& array);
// Returns a sentence such as `Rank 1 holds nothing of w: its part is empty`; empty without ranks.
// `what` names the array.
std::string NoteOnEmptyRanks(absl::Span<const int64_t> ranks, std::string_view what);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_CUT_OPTIONS_H_
