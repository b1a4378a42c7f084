// Tables and values for people in a terminal, and as JSON.
#ifndef SHARDMESH_CLIENT_CLI_TABLE_H_
#define SHARDMESH_CLIENT_CLI_TABLE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/cli/command_line.h"
#include "client/types/array.h"
#include "sharding/correction.h"
#include "sharding/layout/fixes.h"
#include "sharding/mesh.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "status/byte_text.h"

namespace shardmesh::client {

// Rows under a header, each column as wide as its widest cell. Not thread-safe.
class Table {
 public:
  enum class Align { kLeft, kRight };
  // kWide: the column is shown only with --output wide.
  enum class Shown { kAlways, kWide };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
    Shown shown = Shown::kAlways;
  };
  // How tables are printed: whether with headers, and whether with the columns of kWide.
  struct Style {
    bool headers = true;
    bool wide = false;
  };
  // Sets the style of all tables. Call UseStyle before any table is printed.
  static void UseStyle(const Style& style);

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Adds a row with one cell for each column. Cells are escaped by EscapeForTerminal.
  void AddRow(std::vector<std::string> cells);

  // Returns the table's lines. Each line ends in a newline and has no trailing blanks.
  std::string ToString(const Style& style) const;
  // Like ToString(style), with the style that UseStyle set.
  std::string ToString() const;
  // Prints to standard output.
  void Print() const;

 private:
  const std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Escapes two kinds of characters of a UTF-8 text: those that a terminal would obey, and those that
// change the order of the text. Control characters become `\n`, `\x1b` or `\u009b`; marks of the
// text's direction and line separators become `\u202e` and the like. With `keep_lines`, newlines
// stay.
std::string EscapeForTerminal(std::string_view text, bool keep_lines = false);

// Returns a name with its numbers replaced by `*`, such as `layers.*.wq`. A number is replaced only
// at the start of the name, or after `.`, `/` or `_`.
std::string NamePattern(std::string_view name);
// Returns text such as `1.23 ms`, with three digits.
std::string FormatTime(absl::Duration duration);
// Returns text such as `held for 9m12s`: the remaining time for which arrays without names are
// held.
std::string FormatHeld(absl::Duration held_for);
// Returns text such as `1 tensor` or `2 tensors`. The plural of `noun` must be `noun` with an s.
std::string FormatCount(int64_t count, std::string_view noun);
// Returns text such as `in memory` or `on disk`.
std::string_view FormatDurability(Durability durability);
// Returns text such as `8x16`; `scalar` for a scalar. ParseShape reads this text.
std::string FormatShape(absl::Span<const int64_t> shape);
// Returns the spec in the grammar of ParseSpec: `(fsdp,dp),-,tp`; `()` for P().
std::string FormatSpec(const PartitionSpec& spec);
// Returns text such as `dimension 1: ...; dimension 2: ...`; empty if there are no corrections.
// With a mesh, the text lists the mesh's axes and names the axis that the user probably meant.
std::string FormatCorrections(absl::Span<const Correction> corrections,
                              const std::optional<Mesh>& mesh = std::nullopt);
// Returns the fix as text: the change of the request, and the whole changed request, which needs no
// correction: `pad dimension 0 from 30 to 32: spec tp,-, shape 32,8`. Uses the grammar of ParseSpec
// and ParseShape.
std::string FormatFix(const Fix& fix);

// Returns a list with one value for each dimension: null, a name, or a list of names. Unreduced
// axes are left out.
Json SpecJson(const PartitionSpec& spec);
Json CorrectionsJson(absl::Span<const Correction> corrections,
                     const std::optional<Mesh>& mesh = std::nullopt);
Json ShapeJson(absl::Span<const int64_t> shape);
// An array with the start and the stop of each dimension: [[0, 4], [8, 16]].
Json TileJson(const Tile& tile);
// An object with the size of each axis: {"fsdp": 2, "tp": 2}.
Json MeshJson(const Mesh& mesh);
// Returns text such as `2026-01-02T03:04:05.678Z`.
std::string Timestamp(absl::Time time);
// The duration as a number of seconds.
double Seconds(absl::Duration duration);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_TABLE_H_
