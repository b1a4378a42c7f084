// A plan as one HTML page.
#include "client/cli/commands/plan_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
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

constexpr std::string_view kStyle = R"css(
:root{--bg:#f6f7f9;--card:#fff;--ink:#1c2330;--soft:#5c6678;--line:#dfe3ea;--cell:#edf1f7;--edge:#a9b4c4;--tile:#1c2330}
@media(prefers-color-scheme:dark){:root{--bg:#12151b;--card:#1b2029;--ink:#e8ebf1;--soft:#9aa5b7;--line:#2e3542;--cell:#272e3a;--edge:#566276;--tile:#f2f4f8}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:14px/1.45 system-ui,sans-serif}
main{max-width:1240px;margin:0 auto;padding:28px 24px 60px}
h1{font-size:24px;margin:0 0 2px}h2{font-size:17px;margin:34px 0 10px}h3{font-size:14px;margin:0;font-weight:600}
p{margin:4px 0}.soft{color:var(--soft)}.mono,td,code{font-variant-numeric:tabular-nums}
.mono,code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:12.5px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(180px,1fr));gap:12px;margin-top:18px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px;overflow:hidden}
.cards b{display:block;font-size:22px;font-weight:650;margin:2px 0}
.axes{display:flex;flex-wrap:wrap;gap:8px;align-items:center;margin:10px 0}
.chip{display:inline-block;border-radius:5px;padding:1px 7px;color:#fff;font-size:12.5px;font-weight:600;white-space:nowrap}
.open{background:none;border:1.5px dashed;padding:0 6px}
.none{color:var(--soft);padding:0 4px}
.big{font-size:15px;padding:5px 12px;border-radius:8px}
.bar{height:12px;border-radius:6px;background:var(--cell);overflow:hidden;display:flex;min-width:60px}
.bar i{display:block;height:100%}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:10px}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:6px 12px;border-bottom:1px solid var(--line);vertical-align:top;white-space:nowrap}
tr:last-child td{border-bottom:0}
th{font-size:12px;color:var(--soft);font-weight:600}
th.r,td.r{text-align:right}td.wrap{white-space:normal;min-width:260px}
table.sortable th{cursor:pointer}table.sortable th:hover{color:var(--ink)}
.pictures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(375px,100%),1fr));gap:14px}
svg{display:block;width:100%;height:auto;margin:10px 0 6px}
svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg .s{fill:var(--soft);font-size:11px}
svg .cell{fill:var(--cell);stroke:var(--edge);stroke-width:.6}svg .tile{fill:var(--tile)}
svg .back{fill:var(--card);stroke:var(--edge);stroke-width:.8}
svg .on{fill:var(--card);font-weight:700;font-size:11px}
.facts{font-size:12.5px;margin:0;padding:0;list-style:none}.facts li{margin:2px 0}
.warn{color:#c2571b}.ok{color:#2f9e63}
input{font:inherit;padding:6px 10px;border:1px solid var(--line);border-radius:8px;background:var(--card);color:var(--ink);width:320px;max-width:100%;margin-bottom:8px}
details summary{cursor:pointer}
footer{margin-top:40px;font-size:12px}
)css";

// Sorting and filtering of tables; the page is complete without it. No less-than sign and no
// ampersand, so that it stands in XML as it is.
constexpr std::string_view kScript = R"js(
document.querySelectorAll('table.sortable').forEach(function(table){
  table.querySelectorAll('th').forEach(function(head,column){
    var up=false;
    head.addEventListener('click',function(){
      var body=table.tBodies[0],rows=Array.from(body.rows);up=!up;
      var key=function(row){var cell=row.cells[column];return cell.dataset.v===undefined?cell.textContent:Number(cell.dataset.v);};
      rows.sort(function(a,b){var x=key(a),y=key(b),order=typeof x==='number'?x-y:String(x).localeCompare(String(y));return up?order:-order;});
      rows.forEach(function(row){body.appendChild(row);});
    });
  });
});
var filter=document.getElementById('filter');
if(filter){filter.addEventListener('input',function(){
  var wanted=filter.value.toLowerCase();
  document.querySelectorAll('#tensors tbody tr').forEach(function(row){row.hidden=!row.textContent.toLowerCase().includes(wanted);});
});}
)js";

// Text as it stands between tags and in quoted attributes. Control characters, which XML does not
// allow, become U+FFFD.
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

// `65,536`.
std::string Grouped(int64_t count) {
  std::string digits = StrCat(count);
  for (size_t i = digits.size(), first = count < 0 ? 4 : 3; i > first;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

// `1,024`, `65.5 k`, `2.15 G`: at most five characters of a number.
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

// Tensors that a row or a picture stands for.
struct Group {
  std::string name;  // of the first, or their pattern
  size_t first = 0;
  int64_t tensors = 0;
  int64_t device_bytes = 0;  // together
  int64_t bytes = 0;         // one copy of each
};

class Page {
 public:
  explicit Page(const PlanReport& report)
      : report_(report), mesh_(report.mesh), answer_(report.placement->answer) {}

  absl::StatusOr<std::string> Build() {
    StrAppend(&html_,
              "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\"><head>"
              "<meta charset=\"utf-8\"/><meta name=\"viewport\" content=\"width=device-width, "
              "initial-scale=1\"/><title>",
              Escape(report_.title), " on ", Escape(mesh_.ToString()), "</title><style>", kStyle,
              "</style></head><body><main>\n");
    Head();
    Specs();
    SHARDMESH_RETURN_IF_ERROR(Pictures());
    Corrections();
    Usages("Most bytes on a device", answer_.report.layout.largest);
    Usages("Most bytes in copies", answer_.report.layout.worst);
    SHARDMESH_RETURN_IF_ERROR(Devices());
    Tensors();
    StrAppend(
        &html_, "<footer class=\"soft\">Made by shardmesh plan. Sizes in units of 1000; ",
        "numbers in pictures are devices; what device 0 holds is dark.</footer></main><script>",
        kScript, "</script></body></html>\n");
    return std::move(html_);
  }

 private:
  // Axes as coloured chips.
  std::string Chip(std::string_view axis, std::string_view more = "", bool open = false) const {
    const std::optional<int64_t> index = mesh_.FindAxis(axis);
    const std::string_view color = index.has_value() ? ColorOf(*index) : "#888888";
    return StrCat("<span class=\"chip", open ? " open" : "", "\" style=\"",
                  open ? "color:" : "background:", color, "\">", Escape(axis), more, "</span>");
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
    StrAppend(&html_, "<div class=\"card\"><span class=\"soft\">", title, "</span><b>", value,
              "</b><span class=\"soft\">", more, "</span></div>");
  }

  void Head() {
    const TreeReport& report = answer_.report;
    const LayoutReport& layout = report.layout;
    StrAppend(&html_, "<h1>", Escape(report_.title), "</h1><p class=\"soft\">",
              Grouped(layout.tensors), " tensors on ", Grouped(mesh_.size()), " devices",
              report_.rules.empty() ? "" : StrCat(", by the rules ", Escape(report_.rules)),
              "</p><div class=\"axes\">");
    for (int64_t axis = 0; axis < mesh_.axis_count(); ++axis) {
      const MeshAxis& each = mesh_.axes()[static_cast<size_t>(axis)];
      StrAppend(&html_, axis == 0 ? "" : "<span class=\"soft\">×</span>",
                "<span class=\"chip big\" style=\"background:", ColorOf(axis), "\">",
                Escape(each.name), " ", Grouped(each.size), "</span>");
    }
    StrAppend(&html_, "<span class=\"soft\">= ", Grouped(mesh_.size()),
              " devices; neighbours lie along the last axis</span></div><div class=\"cards\">");
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
    StrAppend(&html_, "</div>\n");
    if (const int64_t uncounted = UncountedTensors(*report_.placement); uncounted > 0) {
      StrAppend(&html_, "<p class=\"warn\">", FormatCount(uncounted, "tensor"),
                " without a dtype: in no number of bytes here.</p>\n");
    }
  }

  void BeginTable(std::string_view heads, bool sortable = false, std::string_view id = "") {
    StrAppend(&html_, "<div class=\"scroll\"><table", sortable ? " class=\"sortable\"" : "",
              id.empty() ? "" : StrCat(" id=\"", id, "\""), "><thead><tr>", heads,
              "</tr></thead><tbody>\n");
  }
  void EndTable() { StrAppend(&html_, "</tbody></table></div>\n"); }
  static std::string Number(int64_t value, std::string_view text) {
    return StrCat("<td class=\"r\" data-v=\"", value, "\">", text, "</td>");
  }

  void Specs() {
    const LayoutReport& layout = answer_.report.layout;
    if (layout.specs.empty()) {
      return;
    }
    StrAppend(&html_, "<h2>Specs</h2>");
    BeginTable(
        "<th>spec: which axes cut each dimension</th><th class=\"r\">tensors</th>"
        "<th class=\"r\">parameters</th><th class=\"r\">one copy</th><th>share of the bytes</th>",
        true);
    for (const SpecUsage& usage : layout.specs) {
      const double share =
          layout.bytes > 0 ? 100 * AsDouble(usage.bytes) / AsDouble(layout.bytes) : 0;
      StrAppend(&html_, "<tr><td>", SpecChips(usage.spec), "</td>",
                Number(usage.tensors, Grouped(usage.tensors)),
                Number(usage.parameters, Short(usage.parameters)),
                Number(usage.bytes, FormatBytes(usage.bytes)), "<td data-v=\"", usage.bytes,
                "\"><div class=\"bar\"><i style=\"background:",
                FullyReplicated(usage.spec, mesh_) ? "#9aa3b2" : "#3b76d6",
                ";width:", absl::StrFormat("%.2f", share), "%\"></i></div></td></tr>\n");
    }
    EndTable();
  }

  // Groups of tensors, the largest on a device first.
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
    StrAppend(&html_, "<h2>How tensors lie on the mesh</h2><p class=\"soft\">One picture for each ",
              "spec and shape, the most bytes on a device first. The numbers are the devices that ",
              "hold a tile, as far as there is room; dark: what device 0 holds. ",
              "A line has the colour of the axis that cuts there.</p><div class=\"pictures\">\n");
    for (size_t i = 0; i < std::min(groups.size(), kMaxPictures); ++i) {
      SHARDMESH_RETURN_IF_ERROR(Picture(groups[i]));
    }
    StrAppend(&html_, "</div>");
    if (groups.size() > kMaxPictures) {
      StrAppend(&html_, "<p class=\"soft\">", Grouped(AsCount(groups.size() - kMaxPictures)),
                " more, of fewer bytes, are left out.</p>\n");
    }
    return absl::OkStatus();
  }
  static int64_t AsCount(size_t count) { return static_cast<int64_t>(count); }

  // The axes that cut a dimension into more than one part, major to minor, by their index.
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

  // The colour of the cut before part `part` of a dimension: of the most major axis that steps on.
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

  // The device of the least number that holds the tile at the part `part` of `dim`, and of
  // `other_dim`; at the first part of every other dimension.
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

  // The axes that cut nothing of a tensor: along them there are copies.
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

  // The devices that hold a tile, from the first of them on, in a cell of that size; as many as
  // there is room for, which may be none.
  std::string HoldersLabel(const Tiling& tiling, DeviceId first, double x, double y, double width,
                           double height) const {
    constexpr double kDigitWidth = 6.4;  // of 11 pixels' text
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

  // How one dimension is drawn: some parts at its beginning, a gap, the last ones.
  struct Ruler {
    struct Cell {
      int64_t part = 0;  // -1: the gap
      double begin = 0;  // 0 to 1
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
    const size_t head = most - tail - 2;  // the gap has the room of two
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

  // `4,096 ÷ 32`.
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
    StrAppend(&html_, "<div class=\"card\"><h3>", Dimensions(tensor.shape), " &#160; ",
              SpecChips(spec), "</h3><p class=\"soft\"><span class=\"mono\">", Escape(tensor.name),
              "</span>",
              group.tensors == 1 ? ""
                                 : StrCat(" and ", Grouped(group.tensors - 1),
                                          group.tensors == 2 ? " other" : " others"),
              "</p>");
    // Without a correction they differ in the dimensions that nothing was asked for at most.
    if (const TreeSpec& asked = SpecOf(group.first); !asked.corrections.empty()) {
      StrAppend(&html_, "<p class=\"warn\">asked for ", SpecChips(asked.requested), "</p>");
    }
    Svg(tiling);
    Facts(tiling, group);
    StrAppend(&html_, "</div>\n");
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

  // The two dimensions that are drawn as a plane: those of the most parts, later ones first.
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

  // Two dimensions as a plane, the others as sheets behind it. Returns where the picture ends.
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
    // The picture keeps the tensor's proportions, within bounds.
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

  // Every dimension as a bar, from `top` on. Returns where the bars end.
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

  // The first few devices of device 0's replica group, in mesh order.
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
    StrAppend(&html_, "<ul class=\"facts\">");
    if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) {
      StrAppend(&html_, "<li>without elements: there is nothing to cut</li></ul>");
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
    StrAppend(&html_, "</li></ul>");
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
        StrAppend(&html_, "<h2>Corrections</h2><p class=\"soft\">What was asked for and does not ",
                  "fit, and what would.</p>");
        BeginTable(
            "<th>asked for</th><th>given</th><th class=\"r\">tensors</th><th>why</th>"
            "<th>fixes</th>");
      }
      const TreeTensor& tensor = report_.placement->tensors[uses[i].first];
      StrAppend(&html_, "<tr><td>", SpecChips(spec.requested), "</td><td>",
                SpecChips(spec.effective), "</td><td class=\"r\">", Grouped(uses[i].tensors),
                "</td><td class=\"wrap\">");
      for (const Correction& correction : spec.corrections) {
        StrAppend(&html_, Escape(FormatCorrections({correction}, report_.placement->mesh)),
                  "<br/>");
      }
      StrAppend(&html_, "<span class=\"soft\">such as <span class=\"mono\">", Escape(tensor.name),
                "</span> ", Dimensions(tensor.shape), "</span></td><td class=\"wrap\">");
      for (const Fix& fix : spec.fixes) {
        StrAppend(&html_, Escape(FormatFix(fix)), "<br/>");
      }
      if (spec.fixes_left_out) {
        StrAppend(&html_, "<span class=\"soft\">too many for one plan</span>");
      }
      StrAppend(&html_, "</td></tr>\n");
    }
    if (has_table) {
      EndTable();
    }
  }

  void Usages(std::string_view title, const std::vector<TensorUsage>& tensors) {
    if (tensors.empty()) {
      return;
    }
    StrAppend(&html_, "<h2>", title, "</h2>");
    BeginTable(
        "<th>tensor</th><th>shape</th><th>spec</th><th class=\"r\">on a device</th>"
        "<th class=\"r\">one copy</th><th class=\"r\">in copies</th>",
        true);
    for (const TensorUsage& tensor : tensors) {
      StrAppend(&html_, "<tr><td class=\"mono\">", Escape(tensor.name), "</td><td>",
                Dimensions(tensor.shape), "</td><td>", SpecChips(tensor.spec), "</td>",
                Number(tensor.device_bytes, FormatBytes(tensor.device_bytes)),
                Number(tensor.bytes, FormatBytes(tensor.bytes)),
                Number(tensor.wasted_bytes, FormatBytes(tensor.wasted_bytes)), "</tr>\n");
    }
    EndTable();
  }

  absl::Status Devices() {
    if (report_.devices.empty()) {
      return absl::OkStatus();
    }
    const std::vector<Group> groups = GroupByLayout();
    for (const DeviceId device : report_.devices) {
      const MeshCoordinates coordinates = mesh_.CoordinatesOf(device);
      StrAppend(&html_, "<h2>Device ", Grouped(device), "</h2><div class=\"axes\">");
      for (int64_t axis = 0; axis < mesh_.axis_count(); ++axis) {
        StrAppend(&html_, Chip(mesh_.axes()[static_cast<size_t>(axis)].name,
                               StrCat(" ", coordinates[static_cast<size_t>(axis)])));
      }
      StrAppend(&html_, "</div>");
      BeginTable(
          "<th>tensors</th><th>shape</th><th>spec</th><th>what it holds</th>"
          "<th class=\"r\">which copy</th>");
      for (size_t i = 0; i < std::min(groups.size(), kMaxTensorRows); ++i) {
        const TreeTensor& tensor = report_.placement->tensors[groups[i].first];
        const PartitionSpec& spec = SpecOf(groups[i].first).effective;
        SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, Tiling::Create(mesh_, spec, tensor.shape));
        StrAppend(
            &html_, "<tr><td class=\"mono\">", Escape(tensor.name),
            groups[i].tensors == 1 ? "" : StrCat(" and ", Grouped(groups[i].tensors - 1), " more"),
            "</td><td>", Dimensions(tensor.shape), "</td><td>", SpecChips(spec),
            "</td><td class=\"mono\">", tiling.TileOf(device).ToString(), "</td><td class=\"r\">",
            Grouped(tiling.ReplicaIdOf(device)), " of ", Grouped(tiling.replica_count()),
            "</td></tr>\n");
      }
      EndTable();
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
    StrAppend(
        &html_, "<h2>Tensors</h2><p class=\"soft\">",
        "Tensors that lie alike and whose names differ in numbers alone share a row. Click a ",
        "head to sort.</p><input id=\"filter\" placeholder=\"filter\"/>");
    BeginTable(
        "<th>tensor</th><th class=\"r\">how many</th><th>dtype</th><th>shape</th><th>asked for</th>"
        "<th>given</th><th class=\"r\">rule</th><th class=\"r\">on a device, each</th>"
        "<th class=\"r\">together</th>",
        true, "tensors");
    for (size_t i = 0; i < std::min(groups.size(), kMaxTensorRows); ++i) {
      const Group& group = groups[i];
      const TreeTensor& tensor = placement.tensors[group.first];
      const TreePlacement& placed = answer_.placements[group.first];
      const TreeSpec& spec = SpecOf(group.first);
      StrAppend(
          &html_, "<tr><td class=\"mono\">",
          Escape(group.tensors == 1 ? tensor.name : NamePattern(tensor.name)), "</td>",
          Number(group.tensors, Grouped(group.tensors)), "<td>", DtypeText(tensor.dtype),
          "</td><td>", Dimensions(tensor.shape), "</td><td>",
          placed.unmatched ? "<span class=\"warn\">no rule</span>" : SpecChips(spec.requested),
          "</td><td>", SpecChips(spec.effective), "</td><td class=\"r\" data-v=\"",
          placed.rule_index.value_or(-1), "\">",
          placed.rule_index.has_value() ? StrCat(*placed.rule_index) : "–", "</td>",
          Number(placed.bytes_per_device, FormatBytes(placed.bytes_per_device)),
          Number(group.device_bytes, FormatBytes(group.device_bytes)), "</tr>\n");
    }
    EndTable();
    if (groups.size() > kMaxTensorRows) {
      StrAppend(&html_, "<p class=\"soft\">", Grouped(AsCount(groups.size() - kMaxTensorRows)),
                " more rows, of fewer bytes, are left out.</p>\n");
    }
  }

  const PlanReport& report_;
  const Mesh& mesh_;
  const TreeAnswer& answer_;
  std::string html_;
};

}  // namespace

absl::StatusOr<std::string> PlanHtml(const PlanReport& report) { return Page(report).Build(); }

}  // namespace shardmesh::client
