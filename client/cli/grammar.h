// The notation of values in command-line arguments: shapes, axes, specs, and names or inline
// values.
#ifndef SHARDMESH_CLIENT_CLI_GRAMMAR_H_
#define SHARDMESH_CLIENT_CLI_GRAMMAR_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/types/array.h"
#include "client/types/catalog_entries.h"
#include "client/types/layer_questions.h"
#include "client/types/layout_questions.h"
#include "client/types/logical_questions.h"
#include "client/types/mesh_questions.h"
#include "client/types/step.h"
#include "sharding/axis_value.h"
#include "sharding/compatibility.h"
#include "sharding/mode.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"

namespace shardmesh::client {

// Parses a shape: `30522,384` or, as in tables, `30522x384`; empty or `scalar` for a scalar. Also
// returns the errors of CheckShape.
absl::StatusOr<Shape> ParseShape(std::string_view text);

// Parses a slice of an array, such as `0:16,:`: a range START:STOP, START:, :STOP or : for each
// dimension. A range without a start begins at 0, and a range without an end reaches to the end of
// the dimension. Blanks around numbers are ignored. Single indexes, steps, and indexes that count
// from the end are errors. Checks only the syntax, not the bounds.
absl::StatusOr<ArraySlice> ParseSlice(std::string_view text);

// A check for CLI::Option, for commands that can write only files. Returns an error for `-`, by
// which other commands mean standard output; otherwise an empty string.
std::string RefuseStandardOutput(const std::string& path);

// Parses the path that `command` writes: a .npy file, or a path without an extension, such as
// /dev/null. With `or_output`, `-` means standard output; without `or_output`, `-` is an error.
absl::StatusOr<std::string> ParseNpyPath(std::string_view text, std::string_view command,
                                         bool or_output = false);

// Parses a tile: a half-open range for each dimension, such as `0:16,0:384`. An empty text is the
// tile of a scalar.
absl::StatusOr<Tile> ParseTile(std::string_view text);

// Parses a spec: one value per dimension, separated by commas; blanks are ignored:
//   NAME            one axis
//   -  _  none      not partitioned
//   A+B  (A,B)      several axes, major to minor
//   ?               left open
// `()` or an empty text means a spec without dimensions, P(). Example: `(fsdp,dp),-,tp` is
// P(('fsdp', 'dp'), None, 'tp'). The axes of a partial sum follow, after the word `unreduced`.
// Example: `dp,- unreduced tp`.
absl::StatusOr<PartitionSpec> ParseSpec(std::string_view text);

// Parses logical axes in the grammar of ParseSpec, in which `[A,B]` also means a composite axis.
absl::StatusOr<std::vector<AxisValue>> ParseAxes(std::string_view text);

// Whether the text has the form `@ID`, which names an array by its id of 32 hexadecimal digits.
bool IsArrayId(std::string_view text);
// A check for CLI::Option: returns an error for the name of a new array that has an @, because
// commands would read `@ID` as an id, and what follows an @ as a version. Otherwise returns an
// empty string.
std::string RefuseNameWithAt(const std::string& name);
// Parses `NAME`, `NAME@VERSION` for a version other than the current one, or `@ID`. If the name
// itself contains an @, the version is required.
absl::StatusOr<ArraySelector> ParseArrayName(std::string_view text);
// Formats the selected array in the notation of ParseArrayName, without a version.
std::string FormatArray(const ArraySelector& array);

// Parses a number of bytes in the notation of rpc::ParseByteSize or of tables, such as `86.7 MiB`.
// Rounds to a whole byte.
absl::StatusOr<int64_t> ParseSize(std::string_view text);

// Parses an element type by its name in safetensors (`F32`) or NumPy (`float32`).
absl::StatusOr<Dtype> ParseElementType(std::string_view text);

// Parses a mode: its name, with or without the underscores around the name, or the number of a
// dimension. With kExact, any other text is also a mode: see Mode::Parse.
absl::StatusOr<Mode> ParseMode(std::string_view text,
                               Compatibility compatibility = Compatibility::kDefault);

// Selects a mesh. Text with an equals sign is the axes of the mesh, such as `fsdp=2,tp=2`. Other
// text is the path of a file to read if that file exists, or if the text has a slash or ends in
// .yaml, .yml or .json. Any other text is the name of a mesh in the catalog. Empty text selects the
// mesh named "default".
//
// Errors are those of rpc/config.h; axes that form no valid mesh are a usage error. In a mesh given
// by axes or in a file, one size may be -1 if `device_count` determines it. With kExact, axes may
// form any mesh that JAX accepts.
absl::StatusOr<MeshSelector> SelectMesh(std::string_view text,
                                        std::optional<int64_t> device_count = std::nullopt,
                                        Compatibility compatibility = Compatibility::kDefault);
// Selects a profile by a file's path or a name in the catalog, as SelectMesh does. Empty text
// selects no profile.
absl::StatusOr<ProfileSelector> SelectProfile(std::string_view text);
// Selects rules by a file's path or a name in the catalog, as SelectMesh does. Empty text selects
// no rules. With kExact, the rules of a file may have faulty patterns.
absl::StatusOr<RuleSetSelector> SelectRules(std::string_view text,
                                            Compatibility compatibility = Compatibility::kDefault);
// Selects logical rules by a file's path or a name in the catalog, as SelectMesh does. Empty text
// selects no rules.
absl::StatusOr<LogicalRulesSelector> SelectLogicalRules(std::string_view text);
// Whether SelectMesh interprets `text` as the axes of a mesh: `text` has an equals sign.
bool LooksLikeAxes(std::string_view text);
// Whether the functions above interpret `text` as the path of a file. Requires that `text` does not
// look like the axes of a mesh.
bool LooksLikePath(std::string_view text);

// Returns a check for CLI::Option: the text must be a whole number of at least `min` that fits
// int64_t. The check returns the error, or an empty string.
std::function<std::string(const std::string&)> WholeNumberFrom(int64_t min);

// Each of the functions below parses the value of an option of a command, mostly of computations,
// such as `gelu` or `reduce-scatter`.
absl::StatusOr<Activation> ParseActivation(std::string_view text);
absl::StatusOr<WeightLayout> ParseWeightLayout(std::string_view text);
// Also accepts `send`, which means a permute of one pair.
absl::StatusOr<CollectiveKind> ParseCollectiveKind(std::string_view text);
absl::StatusOr<CollectiveAlgorithm> ParseCollectiveAlgorithm(std::string_view text);
absl::StatusOr<CollectiveOrder> ParseCollectiveOrder(std::string_view text);
// Parses a pair: `0:1` sends from place 0 of the device group to place 1.
absl::StatusOr<PermutePair> ParsePermutePair(std::string_view text);
absl::StatusOr<Reduction> ParseReduction(std::string_view text);
absl::StatusOr<EntryKind> ParseEntryKind(std::string_view text);
// Parses the name of a question, such as `mapped-size` or `matmul`.
absl::StatusOr<MeshAxesQuestion::Kind> ParseMeshAxesKind(std::string_view text);
absl::StatusOr<OutputSpecQuestion::Kind> ParseOutputKind(std::string_view text);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_GRAMMAR_H_
