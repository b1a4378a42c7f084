// Tables and values for people in a terminal, and as JSON.
#include "client/cli/table.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <utility>

#include "absl/strings/str_format.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// The number of terminal columns of `text`: the number of its UTF-8 characters.
size_t Width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

// Whether a character is a C1 control character, a mark of the direction of text, or a separator of
// lines or paragraphs.
bool IsUnsafe(char32_t c) {
  return (c >= 0x80 && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f ||
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

// Returns the length in bytes and the value of the first character of `text`, if that character has
// two or three bytes. Otherwise returns 1 and the first byte.
std::pair<size_t, char32_t> FirstCharacter(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto tail = [&](size_t i) { return static_cast<char32_t>(byte(i) & 0x3F); };
  const auto is_tail = [&](size_t i) { return i < text.size() && (byte(i) & 0xC0) == 0x80; };
  if ((byte(0) & 0xE0) == 0xC0 && is_tail(1)) {
    return {2, (static_cast<char32_t>(byte(0) & 0x1F) << 6) | tail(1)};
  }
  if ((byte(0) & 0xF0) == 0xE0 && is_tail(1) && is_tail(2)) {
    return {3, (static_cast<char32_t>(byte(0) & 0x0F) << 12) | (tail(1) << 6) | tail(2)};
  }
  return {1, byte(0)};
}

Json EntryJson(const SpecEntry& entry) {
  if (entry.is_unconstrained()) {
    return "?";
  }
  Json names = Json::array();
  for (const AxisName& axis : entry.axes()) {
    names.push_back(axis.has_value() ? Json(*axis) : Json(nullptr));
  }
  return names.empty() ? Json(nullptr) : names.size() == 1 ? names.front() : names;
}

std::string FormatEntry(const SpecEntry& entry) {
  if (entry.is_unconstrained()) {
    return "?";
  }
  if (entry.is_none()) {
    return "-";
  }
  const std::string names = StrJoin(entry.axes(), ",", [](std::string* out, const AxisName& axis) {
    out->append(axis.value_or("-"));
  });
  return entry.axes().size() == 1 ? names : StrCat("(", names, ")");
}

Table::Style& ProgramStyle() {
  static Table::Style style;
  return style;
}

}  // namespace

void Table::AddRow(std::vector<std::string> cells) {
  for (std::string& cell : cells) {
    cell = EscapeForTerminal(cell);
  }
  rows_.push_back(std::move(cells));
}

void Table::UseStyle(const Style& style) { ProgramStyle() = style; }

std::string Table::ToString() const { return ToString(ProgramStyle()); }

std::string Table::ToString(const Style& style) const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    size_t width = style.headers ? Width(columns_[i].title) : 0;
    for (const std::vector<std::string>& row : rows_) {
      width = std::max(width, Width(row[i]));
    }
    widths.push_back(width);
  }
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    bool is_first = true;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (columns_[i].shown == Shown::kWide && !style.wide) continue;
      const std::string& cell = cell_of(i);
      const std::string padding(widths[i] - Width(cell), ' ');
      line += is_first ? "" : "  ";
      is_first = false;
      line += columns_[i].align == Align::kRight ? padding + cell : cell + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  if (style.headers) {
    add_line([&](size_t i) -> const std::string& { return columns_[i].title; });
  }
  for (const std::vector<std::string>& row : rows_) {
    add_line([&](size_t i) -> const std::string& { return row[i]; });
  }
  return text;
}

void Table::Print() const { std::cout << ToString(); }

std::string EscapeForTerminal(std::string_view text, bool keep_lines) {
  std::string escaped;
  while (!text.empty()) {
    const auto [length, character] = FirstCharacter(text);
    if (character == '\n') {
      escaped += keep_lines ? "\n" : "\\n";
    } else if (character == '\t') {
      escaped += "\\t";
    } else if (character < 0x20 || character == 0x7f) {
      absl::StrAppendFormat(&escaped, "\\x%02x", static_cast<uint32_t>(character));
    } else if (length > 1 && IsUnsafe(character)) {
      absl::StrAppendFormat(&escaped, "\\u%04x", static_cast<uint32_t>(character));
    } else {
      escaped += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return escaped;
}

std::string NamePattern(std::string_view name) {
  std::string pattern;
  bool in_number = false;
  for (const char c : name) {
    const bool is_digit = c >= '0' && c <= '9';
    // Replace only a number that follows `.`, `/` or `_` or begins the name: the 2 of `w2` stays.
    const bool begins = is_digit && !in_number &&
                        (pattern.empty() || pattern.back() == '.' || pattern.back() == '/' ||
                         pattern.back() == '_');
    if (begins) {
      pattern.push_back('*');
    }
    in_number = is_digit && (begins || in_number);
    if (!in_number) {
      pattern.push_back(c);
    }
  }
  return pattern;
}

std::string FormatTime(absl::Duration duration) {
  const double seconds = absl::ToDoubleSeconds(duration);
  if (seconds < 1e-3) {
    return StrCat(FormatThreeDigits(seconds * 1e6), " us");
  }
  if (seconds < 1) {
    return StrCat(FormatThreeDigits(seconds * 1e3), " ms");
  }
  return seconds < 100 ? StrCat(FormatThreeDigits(seconds), " s")
                       : absl::FormatDuration(absl::Trunc(duration, absl::Seconds(1)));
}

std::string FormatHeld(absl::Duration held_for) {
  return held_for == absl::InfiniteDuration() ? "held until unreadable records are set aside"
                                              : StrCat("held for ", FormatTime(held_for));
}

std::string FormatCount(int64_t count, std::string_view noun) {
  return StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string_view FormatDurability(Durability durability) {
  switch (durability) {
    case Durability::kMemory:
      return "in memory";
    case Durability::kDisk:
      return "on disk";
    case Durability::kUnknown:
      break;
  }
  return "of unknown durability";
}

std::string FormatShape(absl::Span<const int64_t> shape) {
  return shape.empty() ? "scalar" : StrJoin(shape, "x");
}

std::string FormatSpec(const PartitionSpec& spec) {
  std::string text =
      spec.empty() ? "()"
                   : StrJoin(spec.entries(), ",", [](std::string* out, const SpecEntry& entry) {
                       out->append(FormatEntry(entry));
                     });
  if (!spec.unreduced().empty()) {
    StrAppend(&text, " unreduced ", StrJoin(spec.unreduced(), ","));
  }
  return text;
}

std::string FormatCorrections(absl::Span<const Correction> corrections,
                              const std::optional<Mesh>& mesh) {
  return StrJoin(corrections, "; ", [&](std::string* out, const Correction& correction) {
    out->append(mesh.has_value() ? correction.ToString(*mesh) : correction.ToString());
  });
}

std::string FormatFix(const Fix& fix) {
  switch (fix.kind) {
    case Fix::Kind::kAxisOrder:  // its text has the spec in words
      return StrCat("move the axes: spec ", FormatSpec(fix.spec));
    case Fix::Kind::kPaddedSize:
      return StrCat(fix.text, ": spec ", FormatSpec(fix.spec), ", shape ", StrJoin(fix.shape, ","));
    case Fix::Kind::kAxesSubset:
      break;
  }
  return StrCat(fix.text, ": spec ", FormatSpec(fix.spec));
}

Json SpecJson(const PartitionSpec& spec) {
  Json entries = Json::array();
  for (const SpecEntry& entry : spec.entries()) {
    entries.push_back(EntryJson(entry));
  }
  return entries;
}

Json CorrectionsJson(absl::Span<const Correction> corrections, const std::optional<Mesh>& mesh) {
  Json list = Json::array();
  for (const Correction& correction : corrections) {
    const bool has_figures = correction.reason != Reason::kUnconstrained;
    list.push_back({{"dimension", correction.dim < 0 ? Json() : Json(correction.dim)},
                    {"requested", EntryJson(correction.requested)},
                    {"reason", std::string(ReasonName(correction.reason))},
                    {"have", has_figures ? Json(correction.have) : Json()},
                    {"need", has_figures ? Json(correction.need) : Json()},
                    {"text", FormatCorrections({correction}, mesh)}});
  }
  return list;
}

Json ShapeJson(absl::Span<const int64_t> shape) {
  Json extents = Json::array();
  for (const int64_t extent : shape) {
    extents.push_back(extent);
  }
  return extents;
}

Json TileJson(const Tile& tile) {
  Json ranges = Json::array();
  for (const IndexRange& range : tile.ranges) {
    ranges.push_back({range.start, range.stop});
  }
  return ranges;
}

Json MeshJson(const Mesh& mesh) {
  Json axes = Json::object();
  for (const MeshAxis& axis : mesh.axes()) {
    axes[axis.name] = axis.size;
  }
  return axes;
}

std::string Timestamp(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
}

double Seconds(absl::Duration duration) { return absl::ToDoubleSeconds(duration); }

}  // namespace shardmesh::client
