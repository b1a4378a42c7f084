// Fills plan_report.html with a plan, and draws its pictures as SVG.
#include "client/cli/report/plan_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "client/cli/report/page_template.h"
#include "client/cli/report/plan_report_page.h"
#include "client/cli/table.h"
#include "sharding/layout/analysis.h"
#include "sharding/tile.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::client {
namespace {

// One colour for each axis of a mesh, in the mesh's order.
constexpr std::array<std::string_view, kMaxMeshAxes> kColors = {
    "#3b76d6", "#e07b28", "#2f9e63", "#c4417f", "#8455c9", "#b08a12", "#1a97ad", "#d14b3a",
    "#6a8f1f", "#4f5fd0", "#a35a2a", "#16866e", "#b34fb3", "#77736b", "#5b8bb0", "#94465e"};

// Returns the page's template, which is parsed only once.
const PageTemplate& Template() {
  static const PageTemplate* const page = new PageTemplate(kPlanReportHtml);
  return *page;
}

// Escapes text for use between tags and in quoted attributes. Control characters, which XML does
// not allow, become U+FFFD.
std::string Escape(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          escaped += c == '\n' || c == '\t' ? " " : "\xEF\xBF\xBD";
        } else {
          escaped.push_back(c);
        }
    }
  }
  return escaped;
}

// Returns a count with separators, such as `65,536`.
std::string Grouped(int64_t count) {
  std::string digits = StrCat(count);
  for (size_t i = digits.size(), first = count < 0 ? 4 : 3; i > first;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

// Formats a count briefly: `1,024`, `65.5 k`, `2.15 G`. The number has at most five characters.
std::string Short(int64_t count) {
  if (count < 100'000) {
    return Grouped(count);
  }
  double value = static_cast<double>(count);
  size_t unit = 0;
  constexpr std::string_view kUnits = " kMGTPE";
  while (value >= 999.5) {
    value /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.3g %c", value, kUnits[unit]);
}

std::string Percent(double part, double whole) {
  return absl::StrFormat("%.1f %%", whole > 0 ? 100 * part / whole : 0.0);
}

double AsDouble(int64_t count) { return static_cast<double>(count); }

std::string Dimensions(absl::Span<const int64_t> shape) {
  return shape.empty() ? "scalar" : StrJoin(shape, " × ", [](std::string* out, int64_t extent) {
    out->append(Grouped(extent));
  });
}

std::string DtypeText(const std::optional<Dtype>& dtype) {
  return dtype.has_value() ? std::string(DtypeName(*dtype)) : "-";
}

// Tensors that share a row of a table, or a picture.
struct Group {
  std::string name;  // name of the first tensor, or the pattern of all names
  size_t first = 0;
  int64_t tensors = 0;
  int64_t device_bytes = 0;  // bytes of all of these tensors on one device
  int64_t bytes = 0;         // bytes of one copy of each of these tensors
};

class Page {
 public:
  explicit Page(const PlanReport& report)
      : report_(report), mesh_(report.mesh), answer_(report.placement->answer) {}

  absl::StatusOr<std::string> Build() {
    const std::string title = Escape(report_.title);
    const std::string mesh = Escape(mesh_.ToString());
    html_ = page_.Begin("page", {{"title", title}, {"mesh", mesh}, {"style", kPlanReportStyle}});
    Head();
    Specs();
    SHARDMESH_RETURN_IF_ERROR(Pictures());
    Corrections();
    Usages("Most bytes on a device", answer_.report.layout.largest);
    Usages("Most bytes in copies", answer_.report.layout.worst);
    SHARDMESH_RETURN_IF_ERROR(Devices());
    Tensors();
    html_ += page_.End("page", {{"script", kPlanReportScript}});
    return std::move(html_);
  }

 private:
  // Returns an axis as a coloured label.
  std::string Chip(std::string_view axis, std::string_view more = "", bool open = false) const {
    const std::optional<int64_t> index = mesh_.FindAxis(axis);
    const std::string_view color = index.has_value() ? ColorOf(*index) : "#888888";
    return page_.Fill(open ? "open chip" : "chip",
                      {{"color", color}, {"axis", Escape(axis)}, {"more", more}});
  }
  static std::string_view ColorOf(int64_t axis) {
    return kColors[static_cast<size_t>(axis) % kColors.size()];
  }
  std::string SpecChips(const PartitionSpec& spec) const {
    if (spec.empty()) {
      return "<span class=\"none\">replicated</span>";
    }
    std::string text = "<span class=\"none\">(</span>";
    for (size_t i = 0; i < spec.entries().size(); ++i) {
      const SpecEntry& entry = spec.entries()[i];
      StrAppend(&text, i == 0 ? "" : "<span class=\"none\">,</span>");
      if (entry.axes().empty()) {
        StrAppend(&text, "<span class=\"none\">", entry.is_none() ? "–" : "?", "</span>");
      }
      for (const AxisName& axis : entry.axes()) {
        StrAppend(&text, axis.has_value() ? Chip(*axis) : "–", " ");
      }
    }
    StrAppend(&text, "<span class=\"none\">)</span>");
    for (const std::string& axis : spec.unreduced()) {
      StrAppend(&text, " ", Chip(axis, " partial sums", true));
    }
    return text;
  }

  void Card(std::string_view title, std::string_view value, std::string_view more) {
    html_ += page_.Fill("card", {{"title", title}, {"value", value}, {"more", more}});
  }

  void Head() {
    const TreeReport& report = answer_.report;
    const LayoutReport& layout = report.layout;
    const std::string title = Escape(report_.title);
    const std::string tensors = Grouped(layout.tensors);
    const std::string devices = Grouped(mesh_.size());
    const std::string rules =
        report_.rules.empty() ? "" : StrCat(", by the rules ", Escape(report_.rules));
    html_ += page_.Begin(
        "head", {{"title", title}, {"tensors", tensors}, {"devices", devices}, {"rules", rules}});
    for (int64_t axis = 0; axis < mesh_.axis_count(); ++axis) {
      const MeshAxis& each = mesh_.axes()[static_cast<size_t>(axis)];
      StrAppend(&html_, axis == 0 ? "" : "<span class=\"soft\">×</span>",
                page_.Fill("axis", {{"color", ColorOf(axis)},
                                    {"name", Escape(each.name)},
                                    {"size", Grouped(each.size)}}));
    }
    html_ += page_.End("head", {{"devices", devices}});
    html_ += page_.Begin("cards");
    const bool even = layout.least_device_bytes == layout.most_device_bytes;
    Card("A device holds", FormatBytes(layout.most_device_bytes),
         even ? "every device the same"
              : StrCat("at most (device ", layout.most_loaded_device, "); mean ",
                       FormatBytes(static_cast<int64_t>(layout.mean_device_bytes)), ", least ",
                       FormatBytes(layout.least_device_bytes), " (device ",
                       layout.least_loaded_device, ")"));
    Card("One copy of everything", FormatBytes(layout.bytes),
         StrCat(Short(layout.parameters), " parameters"));
    Card("Sharded", Percent(AsDouble(layout.sharded_bytes), AsDouble(layout.bytes)),
         StrCat("of the bytes; ",
                Percent(AsDouble(layout.sharded_parameters), AsDouble(layout.parameters)),
                " of the parameters"));
    Card("Copies", FormatBytes(layout.wasted_bytes),
         StrCat(Percent(AsDouble(layout.wasted_bytes), AsDouble(layout.held_bytes)), " of the ",
                FormatBytes(layout.held_bytes), " on all devices"));
    Card("Corrected",
         StrCat("<span class=\"", report.corrected_tensors == 0 ? "ok" : "warn", "\">",
                Grouped(report.corrected_tensors), "</span>"),
         StrCat("tensors; ", Grouped(report.replicated_tensors), " are whole on every device",
                report.unmatched_tensors == 0
                    ? ""
                    : StrCat("; ", Grouped(report.unmatched_tensors), " have no rule")));
    html_ += page_.End("cards");
    if (const int64_t uncounted = UncountedTensors(*report_.placement); uncounted > 0) {
      html_ += page_.Fill("uncounted", {{"tensors", FormatCount(uncounted, "tensor")}});
    }
  }

  std::string Number(int64_t value, std::string_view text) const {
    return page_.Fill("number", {{"value", StrCat(value)}, {"text", text}});
  }

  void Specs() {
    const LayoutReport& layout = answer_.report.layout;
    if (layout.specs.empty()) {
      return;
    }
    html_ += page_.Begin("specs");
    for (const SpecUsage& usage : layout.specs) {
      const double share =
          layout.bytes > 0 ? 100 * AsDouble(usage.bytes) / AsDouble(layout.bytes) : 0;
      html_ += page_.Fill("spec row",
                          {{"spec", SpecChips(usage.spec)},
                           {"tensors", Number(usage.tensors, Grouped(usage.tensors))},
                           {"parameters", Number(usage.parameters, Short(usage.parameters))},
                           {"copy", Number(usage.bytes, FormatBytes(usage.bytes))},
                           {"bytes", StrCat(usage.bytes)},
                           {"color", FullyReplicated(usage.spec, mesh_) ? "#9aa3b2" : "#3b76d6"},
                           {"share", absl::StrFormat("%.2f", share)}});
    }
    html_ += page_.End("specs");
  }

  // Returns groups of tensors, ordered by their bytes on a device, largest first.
  template <typename KeyOf>
  std::vector<Group> GroupBy(const KeyOf& key_of) const {
    std::vector<Group> groups;
    absl::flat_hash_map<std::string, size_t> known;
    const Placement& placement = *report_.placement;
    for (size_t i = 0; i < placement.tensors.size(); ++i) {
      const auto [place, is_new] = known.try_emplace(key_of(i), groups.size());
      if (is_new) {
        groups.push_back({.name = placement.tensors[i].name, .first = i});
      }
      Group& group = groups[place->second];
      ++group.tensors;
      group.device_bytes += answer_.placements[i].bytes_per_device;
      group.bytes += BytesOf(placement.tensors[i]);
    }
    std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
      return a.device_bytes > b.device_bytes;
    });
    return groups;
  }
  static int64_t BytesOf(const TreeTensor& tensor) {
    const absl::StatusOr<int64_t> elements = ElementCount(tensor.shape);
    const absl::StatusOr<int64_t> bytes = elements.ok() && tensor.dtype.has_value()
                                              ? TileBytes(*elements, BitsPerElement(*tensor.dtype))
                                              : absl::StatusOr<int64_t>(0);
    return bytes.ok() ? *bytes : 0;
  }
  const TreeSpec& SpecOf(size_t tensor) const {
    return answer_.specs[answer_.placements[tensor].spec_index];
  }
  std::vector<Group> GroupByLayout() const {
    return GroupBy([&](size_t i) {
      return StrCat(SpecOf(i).effective.ToString(), "|",
                    StrJoin(report_.placement->tensors[i].shape, "x"));
    });
  }

  absl::Status Pictures() {
    const std::vector<Group> groups = GroupByLayout();
    html_ += page_.Begin("pictures");
    for (size_t i = 0; i < std::min(groups.size(), kMaxPictures); ++i) {
      SHARDMESH_RETURN_IF_ERROR(Picture(groups[i]));
    }
    html_ += page_.End("pictures");
    if (groups.size() > kMaxPictures) {
      html_ += page_.Fill("pictures left out",
                          {{"count", Grouped(AsCount(groups.size() - kMaxPictures))}});
    }
    return absl::OkStatus();
  }
  static int64_t AsCount(size_t count) { return static_cast<int64_t>(count); }

  // The indexes of the mesh axes that cut a dimension into more than one part, major to minor.
  std::vector<int64_t> AxesOf(const Tiling& tiling, int64_t dim) const {
    std::vector<int64_t> axes;
    for (const AxisName& name : tiling.spec().entry(dim).axes()) {
      const std::optional<int64_t> axis = mesh_.FindAxis(*name);
      if (axis.has_value() && mesh_.axes()[static_cast<size_t>(*axis)].size > 1) {
        axes.push_back(*axis);
      }
    }
    return axes;
  }

  // Returns the colour of the cut before part `part` of a dimension. That is the colour of the most
  // major axis whose coordinate changes at the cut.
  std::string_view CutColor(const std::vector<int64_t>& axes, int64_t part) const {
    std::string_view color = "var(--edge)";
    int64_t span = 1;
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      if (part % span == 0) {
        color = ColorOf(*axis);
      }
      span *= mesh_.axes()[static_cast<size_t>(*axis)].size;
    }
    return color;
  }

  // Returns the first device, in mesh order, that holds one tile. The tile has index `part` in
  // dimension `dim`, `other_part` in `other_dim`, and 0 in every other dimension.
  DeviceId HolderOf(const Tiling& tiling, int64_t dim, int64_t part, int64_t other_dim = -1,
                    int64_t other_part = 0) const {
    DeviceId device = 0;
    for (auto [each, left] : {std::pair(dim, part), std::pair(other_dim, other_part)}) {
      if (each < 0) {
        continue;
      }
      const std::vector<int64_t> axes = AxesOf(tiling, each);
      for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
        const int64_t size = mesh_.axes()[static_cast<size_t>(*axis)].size;
        device += left % size * mesh_.stride(*axis);
        left /= size;
      }
    }
    return device;
  }

  // Returns the axes along which a tensor has copies: those that do not cut the tensor.
  std::vector<int64_t> CopyAxesOf(const Tiling& tiling) const {
    std::vector<bool> cuts(static_cast<size_t>(mesh_.axis_count()), false);
    for (int64_t dim = 0; dim < tiling.rank(); ++dim) {
      for (const int64_t axis : AxesOf(tiling, dim)) {
        cuts[static_cast<size_t>(axis)] = true;
      }
    }
    std::vector<int64_t> copies;
    for (int64_t axis = 0; axis < mesh_.axis_count(); ++axis) {
      if (!cuts[static_cast<size_t>(axis)] && mesh_.axes()[static_cast<size_t>(axis)].size > 1) {
        copies.push_back(axis);
      }
    }
    return copies;
  }

  // Returns the label of a tile's cell: the devices that hold the tile, in ascending order. Lists
  // as many devices as fit into a cell of the given size, perhaps none.
  std::string HoldersLabel(const Tiling& tiling, DeviceId first, double x, double y, double width,
                           double height) const {
    constexpr double kDigitWidth = 6.4;  // width of a digit in text of 11 px
    if (height < 14) {
      return "";
    }
    std::string text;
    const auto fits = [&](const std::string& label) {
      return static_cast<double>(label.size()) * kDigitWidth + 4 <= width;
    };
    if (tiling.FullyReplicated() && fits("every device")) {
      text = "every device";
    } else {
      const std::vector<DeviceId> copies = FirstCopies(CopyAxesOf(tiling), 8);
      for (const DeviceId copy : copies) {
        const bool is_last =
            copy == copies.back() && AsCount(copies.size()) == tiling.replica_count();
        const std::string longer = StrCat(text, text.empty() ? "" : ",", first + copy);
        if (!fits(is_last ? longer : StrCat(longer, ",.."))) {
          break;
        }
        text = longer;
        if (is_last) {
          return HolderText(x, y, width, height, text, first == 0);
        }
      }
      if (text.empty()) {
        return "";
      }
      text += ",…";
    }
    return HolderText(x, y, width, height, text, first == 0);
  }
  static std::string HolderText(double x, double y, double width, double height,
                                std::string_view text, bool on_dark) {
    return Text(
        x + width / 2, y + height / 2 + 4, text,
        on_dark ? "class=\"on\" text-anchor=\"middle\"" : "class=\"s\" text-anchor=\"middle\"");
  }

  // How one dimension is drawn: its first parts, a gap for the omitted parts, and its last parts.
  struct Ruler {
    struct Cell {
      int64_t part = 0;  // -1 for the gap
      double begin = 0;  // fraction of the drawn dimension, 0 to 1
      double end = 0;
    };
    std::vector<Cell> cells;
    int64_t left_out = 0;
  };
  static Ruler RulerOf(int64_t parts, size_t most) {
    Ruler ruler;
    const auto count = static_cast<size_t>(parts);
    if (count <= most) {
      for (size_t i = 0; i < count; ++i) {
        ruler.cells.push_back({static_cast<int64_t>(i), static_cast<double>(i) / AsDouble(parts),
                               static_cast<double>(i + 1) / AsDouble(parts)});
      }
      return ruler;
    }
    const size_t tail = 2;
    const size_t head = most - tail - 2;  // the gap takes the space of two parts
    const double width = 1.0 / static_cast<double>(most);
    for (size_t i = 0; i < head; ++i) {
      ruler.cells.push_back({static_cast<int64_t>(i), width * static_cast<double>(i),
                             width * static_cast<double>(i + 1)});
    }
    ruler.cells.push_back(
        {-1, width * static_cast<double>(head), width * static_cast<double>(head + 2)});
    for (size_t i = 0; i < tail; ++i) {
      ruler.cells.push_back({parts - static_cast<int64_t>(tail - i),
                             width * static_cast<double>(head + 2 + i),
                             width * static_cast<double>(head + 3 + i)});
    }
    ruler.left_out = parts - static_cast<int64_t>(head + tail);
    return ruler;
  }

  static std::string Rect(double x, double y, double width, double height, std::string_view more) {
    return absl::StrFormat("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" %s/>", x, y,
                           width, height, ToAbsl(more));
  }
  static std::string Line(double x1, double y1, double x2, double y2, std::string_view color) {
    return absl::StrFormat(
        "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
        "stroke-width=\"1.5\"/>",
        x1, y1, x2, y2, ToAbsl(color));
  }
  static std::string Text(double x, double y, std::string_view text, std::string_view more = "") {
    return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>", x, y, ToAbsl(more),
                           ToAbsl(Escape(text)));
  }

  // Returns text such as `4,096 ÷ 32 = 128`: extent, number of parts, and extent of a part. Returns
  // only the extent if the dimension has one part.
  static std::string CutText(const Tiling& tiling, int64_t dim) {
    const int64_t extent = tiling.shape()[static_cast<size_t>(dim)];
    const int64_t parts = tiling.PartCount(dim);
    return parts == 1 ? Grouped(extent)
                      : StrCat(Grouped(extent), " ÷ ", Grouped(parts), " = ",
                               Grouped(tiling.ShardShape()[static_cast<size_t>(dim)]));
  }

  absl::Status Picture(const Group& group) {
    const TreeTensor& tensor = report_.placement->tensors[group.first];
    const PartitionSpec& spec = SpecOf(group.first).effective;
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, Tiling::Create(mesh_, spec, tensor.shape));
    html_ += page_.Begin(
        "picture",
        {{"shape", Dimensions(tensor.shape)},
         {"spec", SpecChips(spec)},
         {"name", Escape(tensor.name)},
         {"others", group.tensors == 1 ? std::string()
                                       : StrCat(" and ", Grouped(group.tensors - 1),
                                                group.tensors == 2 ? " other" : " others")}});
    // Show the requested spec only if there are corrections. Without corrections, the requested
    // spec differs from the effective spec only in dimensions for which nothing was requested.
    if (const TreeSpec& asked = SpecOf(group.first); !asked.corrections.empty()) {
      html_ += page_.Fill("asked", {{"spec", SpecChips(asked.requested)}});
    }
    Svg(tiling);
    html_ += page_.Begin("facts");
    Facts(tiling, group);
    html_ += page_.End("facts");
    html_ += page_.End("picture");
    return absl::OkStatus();
  }

  static constexpr double kWidth = 360;

  void Svg(const Tiling& tiling) {
    std::string body;
    double height = 0;
    if (tiling.rank() == 0) {
      body = StrCat(Rect(150, 6, 60, 46, "class=\"tile\" rx=\"4\""),
                    Text(180, 33, "scalar", "class=\"on\" text-anchor=\"middle\""));
      height = 58;
    } else if (tiling.rank() == 1) {
      height = Bars(tiling, 0, 30, &body);
    } else {
      height = Grid(tiling, &body);
      if (tiling.rank() > 2) {
        height = Bars(tiling, height + 10, 13, &body);
      }
    }
    StrAppend(&html_,
              absl::StrFormat("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\">", kWidth, height + 4),
              body, "</svg>");
  }

  // Returns the two dimensions that are drawn as a plane: those with the most parts. Of dimensions
  // with equally many parts, takes the later dimensions.
  static std::pair<int64_t, int64_t> PlaneOf(const Tiling& tiling) {
    std::vector<int64_t> dims;
    for (int64_t dim = tiling.rank(); dim-- > 0;) {
      dims.push_back(dim);
    }
    std::stable_sort(dims.begin(), dims.end(), [&](int64_t a, int64_t b) {
      return tiling.PartCount(a) > tiling.PartCount(b);
    });
    return {std::min(dims[0], dims[1]), std::max(dims[0], dims[1])};
  }

  // Draws two dimensions as a plane, and the other dimensions as sheets behind the plane. Returns
  // the y coordinate below the picture.
  double Grid(const Tiling& tiling, std::string* body) const {
    const auto [down, across] = PlaneOf(tiling);
    int64_t sheets = 1;
    for (int64_t dim = 0; dim < tiling.rank(); ++dim) {
      if (dim != down && dim != across) {
        sheets = std::min<int64_t>(sheets * std::max<int64_t>(tiling.PartCount(dim), 1), 1 << 20);
      }
    }
    const double rows = std::max(1.0, AsDouble(tiling.shape()[static_cast<size_t>(down)]));
    const double columns = std::max(1.0, AsDouble(tiling.shape()[static_cast<size_t>(across)]));
    // Height by width of the picture: the square root of rows by columns of the tensor, within
    // bounds.
    const double ratio = std::clamp(std::sqrt(rows / columns), 0.4, 1.6);
    const double width = ratio > 1 ? 190 / ratio + 30 : 220;
    const double height = std::clamp(width * ratio, 90.0, 200.0);
    const double left = 112;
    const double top = tiling.rank() > 2 && sheets > 1 ? 38 : 24;
    for (int64_t sheet = std::min<int64_t>(sheets - 1, 3); sheet > 0; --sheet) {
      const double shift = 5 * AsDouble(sheet);
      body->append(Rect(left + shift, top - shift, width, height, "class=\"back\""));
    }
    const Ruler x = RulerOf(tiling.PartCount(across), 16);
    const Ruler y = RulerOf(tiling.PartCount(down), 12);
    for (const Ruler::Cell& row : y.cells) {
      for (const Ruler::Cell& column : x.cells) {
        const bool is_gap = row.part < 0 || column.part < 0;
        const bool is_first = row.part == 0 && column.part == 0;
        body->append(Rect(left + width * column.begin, top + height * row.begin,
                          width * (column.end - column.begin), height * (row.end - row.begin),
                          is_first ? "class=\"tile\""
                          : is_gap ? "class=\"cell\" fill-opacity=\"0.45\" stroke-dasharray=\"2 2\""
                                   : "class=\"cell\""));
      }
    }
    const std::vector<int64_t> x_axes = AxesOf(tiling, across);
    const std::vector<int64_t> y_axes = AxesOf(tiling, down);
    for (const Ruler::Cell& cell : x.cells) {
      if (cell.part > 0) {
        body->append(Line(left + width * cell.begin, top, left + width * cell.begin, top + height,
                          CutColor(x_axes, cell.part)));
      } else if (cell.part < 0) {
        body->append(Text(left + width * (cell.begin + cell.end) / 2, top + height / 2 + 4, "···",
                          "text-anchor=\"middle\""));
      }
    }
    for (const Ruler::Cell& cell : y.cells) {
      if (cell.part > 0) {
        body->append(Line(left, top + height * cell.begin, left + width, top + height * cell.begin,
                          CutColor(y_axes, cell.part)));
      } else if (cell.part < 0) {
        body->append(Text(left + width / 2, top + height * (cell.begin + cell.end) / 2 + 4, "···",
                          "text-anchor=\"middle\""));
      }
    }
    for (const Ruler::Cell& row : y.cells) {
      for (const Ruler::Cell& column : x.cells) {
        if (row.part >= 0 && column.part >= 0) {
          body->append(HoldersLabel(tiling, HolderOf(tiling, down, row.part, across, column.part),
                                    left + width * column.begin, top + height * row.begin,
                                    width * (column.end - column.begin),
                                    height * (row.end - row.begin)));
        }
      }
    }
    body->append(Text(left + width / 2, top - (sheets > 1 ? 20 : 8),
                      StrCat("dim ", across, ": ", CutText(tiling, across)),
                      "text-anchor=\"middle\""));
    const int64_t parts = tiling.PartCount(down);
    const double middle = top + height / 2 + 4;
    body->append(Text(left - 8, middle - (parts == 1 ? 8 : 16), StrCat("dim ", down),
                      "text-anchor=\"end\""));
    body->append(Text(left - 8, middle + (parts == 1 ? 8 : 0),
                      Grouped(tiling.shape()[static_cast<size_t>(down)]),
                      "text-anchor=\"end\" class=\"s\""));
    if (parts > 1) {
      body->append(Text(left - 8, middle + 15,
                        StrCat("÷ ", Grouped(parts), " = ",
                               Grouped(tiling.ShardShape()[static_cast<size_t>(down)])),
                        "text-anchor=\"end\" class=\"s\""));
    }
    if (sheets > 1) {
      body->append(Text(left + width + 20, top + 4, StrCat("× ", Short(sheets)), "class=\"s\""));
    }
    return top + height + 2;
  }

  // Draws every dimension as a bar, from `top` downwards. Returns the y coordinate below the bars.
  double Bars(const Tiling& tiling, double top, double height, std::string* body) const {
    const double left = 52;
    const double width = 190;
    for (int64_t dim = 0; dim < tiling.rank(); ++dim) {
      const std::vector<int64_t> axes = AxesOf(tiling, dim);
      const Ruler ruler = RulerOf(tiling.PartCount(dim), 24);
      for (const Ruler::Cell& cell : ruler.cells) {
        body->append(Rect(left + width * cell.begin, top, width * (cell.end - cell.begin), height,
                          cell.part == 0  ? "class=\"tile\""
                          : cell.part < 0 ? "class=\"cell\" stroke-dasharray=\"2 2\""
                                          : "class=\"cell\""));
      }
      for (const Ruler::Cell& cell : ruler.cells) {
        if (cell.part > 0) {
          body->append(Line(left + width * cell.begin, top, left + width * cell.begin, top + height,
                            CutColor(axes, cell.part)));
        }
        if (cell.part >= 0 && tiling.rank() == 1) {
          body->append(HoldersLabel(tiling, HolderOf(tiling, dim, cell.part),
                                    left + width * cell.begin, top, width * (cell.end - cell.begin),
                                    height));
        }
      }
      const double baseline = top + height / 2 + 4;
      body->append(Text(left - 6, baseline, StrCat("dim ", dim), "text-anchor=\"end\""));
      body->append(Text(left + width + 6, baseline, CutText(tiling, dim), "class=\"s\""));
      top += height + 5;
    }
    return top;
  }

  // Returns the first devices, at most `most`, of the replica group of device 0, in mesh order.
  std::vector<DeviceId> FirstCopies(const std::vector<int64_t>& axes, size_t most) const {
    std::vector<DeviceId> devices = {0};
    for (auto axis = axes.rbegin(); axis != axes.rend() && devices.size() < most; ++axis) {
      const size_t count = devices.size();
      const int64_t size = mesh_.axes()[static_cast<size_t>(*axis)].size;
      for (int64_t step = 1; step < size && devices.size() < most; ++step) {
        for (size_t i = 0; i < count && devices.size() < most; ++i) {
          devices.push_back(devices[i] + step * mesh_.stride(*axis));
        }
      }
    }
    return devices;
  }

  void Facts(const Tiling& tiling, const Group& group) {
    const TreeTensor& tensor = report_.placement->tensors[group.first];
    if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) {
      StrAppend(&html_, "<li>without elements: there is nothing to cut</li>");
      return;
    }
    for (int64_t dim = 0; dim < tiling.rank(); ++dim) {
      const std::vector<int64_t> axes = AxesOf(tiling, dim);
      if (axes.empty()) {
        continue;
      }
      StrAppend(&html_, "<li>");
      for (const int64_t axis : axes) {
        StrAppend(&html_, axis == axes.front() ? "" : " then ", AxisChip(axis));
      }
      StrAppend(&html_, axes.size() == 1 ? " cuts" : " cut", " dim ", dim, " into ",
                Grouped(tiling.PartCount(dim)), " of ",
                Grouped(tiling.ShardShape()[static_cast<size_t>(dim)]), "</li>");
    }
    const std::vector<int64_t> copies = CopyAxesOf(tiling);
    if (copies.empty()) {
      StrAppend(&html_, "<li>each tile is on one device, without copies</li>");
    } else {
      StrAppend(&html_, "<li>along ");
      for (const int64_t axis : copies) {
        StrAppend(&html_, axis == copies.front() ? "" : " ", AxisChip(axis, true));
      }
      const std::vector<DeviceId> first = FirstCopies(copies, 4);
      StrAppend(&html_, " ", Grouped(tiling.replica_count()), " copies of each tile: devices ",
                StrJoin(first, ", "), tiling.replica_count() > AsCount(first.size()) ? ", …" : "",
                " hold the first</li>");
    }
    StrAppend(&html_, "<li><b>", Dimensions(tiling.ShardShape()), "</b> on a device, ",
              Grouped(tiling.DistinctTileCount()),
              tiling.DistinctTileCount() == 1 ? " tile" : " different tiles");
    if (tensor.dtype.has_value()) {
      StrAppend(&html_, "; ", FormatBytes(answer_.placements[group.first].bytes_per_device),
                group.tensors == 1 ? std::string(" each")
                                   : StrCat(" each, ", FormatBytes(group.device_bytes), " all ",
                                            Grouped(group.tensors)));
    }
    StrAppend(&html_, "</li>");
  }
  std::string AxisChip(int64_t axis, bool open = false) const {
    const MeshAxis& each = mesh_.axes()[static_cast<size_t>(axis)];
    return Chip(each.name, StrCat(" ", Grouped(each.size)), open);
  }

  void Corrections() {
    const std::vector<SpecUse> uses = UsesOfSpecs(*report_.placement);
    bool has_table = false;
    for (size_t i = 0; i < uses.size(); ++i) {
      const TreeSpec& spec = answer_.specs[i];
      if (spec.corrections.empty() || uses[i].tensors == 0) {
        continue;
      }
      if (!std::exchange(has_table, true)) {
        html_ += page_.Begin("corrections");
      }
      const TreeTensor& tensor = report_.placement->tensors[uses[i].first];
      std::string why;
      for (const Correction& correction : spec.corrections) {
        StrAppend(&why, Escape(FormatCorrections({correction}, report_.placement->mesh)), "<br/>");
      }
      std::string fixes;
      for (const Fix& fix : spec.fixes) {
        StrAppend(&fixes, Escape(FormatFix(fix)), "<br/>");
      }
      if (spec.fixes_left_out) {
        fixes += page_.Fill("fixes left out", {});
      }
      html_ += page_.Fill("correction row", {{"requested", SpecChips(spec.requested)},
                                             {"effective", SpecChips(spec.effective)},
                                             {"tensors", Grouped(uses[i].tensors)},
                                             {"why", why},
                                             {"name", Escape(tensor.name)},
                                             {"shape", Dimensions(tensor.shape)},
                                             {"fixes", fixes}});
    }
    if (has_table) {
      html_ += page_.End("corrections");
    }
  }

  void Usages(std::string_view title, const std::vector<TensorUsage>& tensors) {
    if (tensors.empty()) {
      return;
    }
    html_ += page_.Begin("usages", {{"title", title}});
    for (const TensorUsage& tensor : tensors) {
      html_ += page_.Fill(
          "usage row", {{"name", Escape(tensor.name)},
                        {"shape", Dimensions(tensor.shape)},
                        {"spec", SpecChips(tensor.spec)},
                        {"device", Number(tensor.device_bytes, FormatBytes(tensor.device_bytes))},
                        {"copy", Number(tensor.bytes, FormatBytes(tensor.bytes))},
                        {"copies", Number(tensor.wasted_bytes, FormatBytes(tensor.wasted_bytes))}});
    }
    html_ += page_.End("usages");
  }

  absl::Status Devices() {
    if (report_.devices.empty()) {
      return absl::OkStatus();
    }
    const std::vector<Group> groups = GroupByLayout();
    for (const DeviceId device : report_.devices) {
      const MeshCoordinates coordinates = mesh_.CoordinatesOf(device);
      std::string axes;
      for (int64_t axis = 0; axis < mesh_.axis_count(); ++axis) {
        axes += Chip(mesh_.axes()[static_cast<size_t>(axis)].name,
                     StrCat(" ", coordinates[static_cast<size_t>(axis)]));
      }
      html_ += page_.Begin("device", {{"device", Grouped(device)}, {"axes", axes}});
      for (size_t i = 0; i < std::min(groups.size(), kMaxTensorRows); ++i) {
        const TreeTensor& tensor = report_.placement->tensors[groups[i].first];
        const PartitionSpec& spec = SpecOf(groups[i].first).effective;
        SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, Tiling::Create(mesh_, spec, tensor.shape));
        html_ +=
            page_.Fill("device row",
                       {{"name", Escape(tensor.name)},
                        {"others", groups[i].tensors == 1
                                       ? std::string()
                                       : StrCat(" and ", Grouped(groups[i].tensors - 1), " more")},
                        {"shape", Dimensions(tensor.shape)},
                        {"spec", SpecChips(spec)},
                        {"tile", tiling.TileOf(device).ToString()},
                        {"copy", Grouped(tiling.ReplicaIdOf(device))},
                        {"copies", Grouped(tiling.replica_count())}});
      }
      html_ += page_.End("device");
    }
    return absl::OkStatus();
  }

  void Tensors() {
    const Placement& placement = *report_.placement;
    const std::vector<Group> groups = GroupBy([&](size_t i) {
      const TreeTensor& tensor = placement.tensors[i];
      return StrCat(answer_.placements[i].spec_index, "|", DtypeText(tensor.dtype), "|",
                    StrJoin(tensor.shape, "x"), "|", NamePattern(tensor.name));
    });
    html_ += page_.Begin("tensors");
    for (size_t i = 0; i < std::min(groups.size(), kMaxTensorRows); ++i) {
      const Group& group = groups[i];
      const TreeTensor& tensor = placement.tensors[group.first];
      const TreePlacement& placed = answer_.placements[group.first];
      const TreeSpec& spec = SpecOf(group.first);
      html_ += page_.Fill(
          "tensor row",
          {{"name", Escape(group.tensors == 1 ? tensor.name : NamePattern(tensor.name))},
           {"tensors", Number(group.tensors, Grouped(group.tensors))},
           {"dtype", DtypeText(tensor.dtype)},
           {"shape", Dimensions(tensor.shape)},
           {"requested", placed.unmatched ? page_.Fill("no rule", {}) : SpecChips(spec.requested)},
           {"effective", SpecChips(spec.effective)},
           {"rule order", StrCat(placed.rule_index.value_or(-1))},
           {"rule", placed.rule_index.has_value() ? StrCat(*placed.rule_index) : "–"},
           {"each", Number(placed.bytes_per_device, FormatBytes(placed.bytes_per_device))},
           {"together", Number(group.device_bytes, FormatBytes(group.device_bytes))}});
    }
    html_ += page_.End("tensors");
    if (groups.size() > kMaxTensorRows) {
      html_ += page_.Fill("tensors left out",
                          {{"count", Grouped(AsCount(groups.size() - kMaxTensorRows))}});
    }
  }

  const PageTemplate& page_ = Template();
  const PlanReport& report_;
  const Mesh& mesh_;
  const TreeAnswer& answer_;
  std::string html_;
};

}  // namespace

absl::StatusOr<std::string> PlanHtml(const PlanReport& report) { return Page(report).Build(); }

}  // namespace shardmesh::client
