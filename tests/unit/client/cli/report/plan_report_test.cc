// The report of a plan: that it is well-formed, escapes what it shows, and stays small.
#include "client/cli/report/plan_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/grammar.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using test::IsOk;
using ::testing::HasSubstr;
using ::testing::Not;

// What is wrong with the nesting of tags, attributes' quotes and entities; empty if nothing is.
std::string FaultOf(std::string_view html) {
  std::vector<std::string> open;
  for (size_t i = 0; i < html.size(); ++i) {
    if (html[i] == '&') {
      const size_t end = html.find(';', i);
      if (end == std::string_view::npos || end - i > 7) {
        return StrCat("a bare & at ", i);
      }
      continue;
    }
    if (html[i] == '>') {
      return StrCat("a bare > at ", i);
    }
    if (html[i] != '<') {
      continue;
    }
    size_t end = i + 1;
    bool quoted = false;
    for (; end < html.size() && (quoted || html[end] != '>'); ++end) {
      quoted = quoted != (html[end] == '"');
      if (html[end] == '<') {
        return StrCat("a < within a tag at ", end);
      }
    }
    if (end == html.size()) {
      return StrCat("a tag without an end at ", i);
    }
    const std::string_view tag = html.substr(i + 1, end - i - 1);
    i = end;
    if (tag.substr(0, 1) == "!") {
      continue;
    }
    if (tag.substr(0, 1) == "/") {
      if (open.empty() || open.back() != tag.substr(1)) {
        return StrCat("</", tag.substr(1), "> where ", open.empty() ? "nothing" : open.back(),
                      " is open");
      }
      open.pop_back();
      continue;
    }
    const std::string name(tag.substr(0, tag.find_first_of(" /")));
    if (tag.back() == '/') {
      continue;
    }
    open.push_back(name);
    // Style sheets and scripts are text; a script here may have a >, which XML allows.
    if (name == "style" || name == "script") {
      const size_t close = html.find(StrCat("</", name, ">"), i);
      const std::string_view text = html.substr(i + 1, close - i - 1);
      if (text.find_first_of("<&") != std::string_view::npos) {
        return StrCat("a < or & within ", name);
      }
      i = close - 1;
    }
  }
  return open.empty() ? "" : StrCat(open.back(), " stays open");
}

// A placement of tensors, each with its spec.
Placement PlacementOf(const Mesh& mesh, std::vector<TreeTensor> tensors) {
  Placement placement;
  for (TreeTensor& tensor : tensors) {
    placement.answer.placements.push_back(
        {.spec_index = placement.answer.specs.size(), .rule_index = 0, .bytes_per_device = 64});
    TreeSpec& spec = placement.answer.specs.emplace_back();
    spec.requested = *tensor.spec;
    spec.effective = *tensor.spec;
  }
  placement.tensors = std::move(tensors);
  placement.answer.report.devices = mesh.size();
  return placement;
}

std::string HtmlOf(const Mesh& mesh, const Placement& placement,
                   const std::vector<DeviceId>& devices = {}) {
  const auto html = PlanHtml({.title = "a <model> & \"more\"",
                              .rules = "rules'.yaml",
                              .mesh = mesh,
                              .placement = &placement,
                              .devices = devices});
  EXPECT_THAT(html, IsOk());
  return html.ok() ? *html : "";
}

TEST(PlanReportTest, IsWellFormedForTensorsOfEveryRank) {
  const Mesh mesh = *Mesh::Parse("dp=64,fsdp=32,tp=32");
  const Shape extents = {65'536, 2048, 32, 32, 2048, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1};
  std::vector<TreeTensor> tensors;
  for (size_t rank = 0; rank <= extents.size(); ++rank) {
    for (const char* text : {"()", "tp", "tp,fsdp", "dp+fsdp,-,tp", "?,-,-,fsdp,tp+dp"}) {
      PartitionSpec spec = *ParseSpec(text);
      if (static_cast<size_t>(spec.size()) <= rank) {
        tensors.push_back({.name = StrCat("rank.", rank, ".", text),
                           .shape = {extents.begin(), extents.begin() + static_cast<int64_t>(rank)},
                           .dtype = Dtype::kF32,
                           .spec = std::move(spec)});
      }
    }
  }
  tensors.push_back({.name = "vector", .shape = {4096}, .spec = *ParseSpec("fsdp+tp")});
  tensors.push_back({.name = "empty", .shape = {0, 64}, .spec = *ParseSpec("tp,fsdp")});
  const std::string html = HtmlOf(mesh, PlacementOf(mesh, std::move(tensors)), {0, 65'535});
  EXPECT_EQ(FaultOf(html), "");
  EXPECT_THAT(html, HasSubstr("Device 65,535"));
  for (const char* loaded : {"src=", "href=", "url(", "@import"}) {
    EXPECT_THAT(html, Not(HasSubstr(loaded)));
  }
}

TEST(PlanReportTest, NumbersTheDevicesThatHoldATile) {
  const Mesh mesh = *Mesh::Parse("dp=2,tp=2");
  const auto label = [](std::string_view text) { return StrCat(">", text, "</text>"); };
  const std::string cut = HtmlOf(
      mesh, PlacementOf(mesh, {{.name = "w", .shape = {8, 8}, .spec = *ParseSpec("tp,dp")}}));
  for (const char* device : {"0", "1", "2", "3"}) {
    EXPECT_THAT(cut, HasSubstr(label(device)));
  }
  const std::string copied =
      HtmlOf(mesh, PlacementOf(mesh, {{.name = "w", .shape = {8}, .spec = *ParseSpec("tp")}}));
  EXPECT_THAT(copied, HasSubstr(label("0,2")));
  EXPECT_THAT(copied, HasSubstr(label("1,3")));
  const std::string whole =
      HtmlOf(mesh, PlacementOf(mesh, {{.name = "w", .shape = {8, 8}, .spec = PartitionSpec()}}));
  EXPECT_THAT(whole, HasSubstr(label("every device")));
}

TEST(PlanReportTest, SaysThatThereIsNothingToCutAndNothingToCount) {
  const Mesh mesh = *Mesh::Parse("tp=2");
  const std::string html = HtmlOf(
      mesh, PlacementOf(mesh, {{.name = "empty", .shape = {0, 8}, .spec = *ParseSpec("tp")}}));
  EXPECT_THAT(html, HasSubstr("without elements: there is nothing to cut"));
  EXPECT_THAT(html, HasSubstr("1 tensor without a dtype"));
}

TEST(PlanReportTest, EscapesWhatItShows) {
  const Mesh mesh = *Mesh::Create({{"<b>&\"'", 2}});
  Placement placement = PlacementOf(mesh, {{.name = "<script>alert(\"1\")</script>\x01 & 'x'",
                                            .shape = {4},
                                            .spec = PartitionSpec({SpecEntry::Axis("<b>&\"'")})}});
  TreeSpec& spec = placement.answer.specs[0];
  spec.corrections.push_back({.dim = 0,
                              .requested = SpecEntry::Axis("</td>"),
                              .reason = Reason::kAxisNotInMesh,
                              .have = 0,
                              .need = 1,
                              .absent_axes = {"</td>"}});
  spec.fixes.emplace_back().text = "<fix>";
  placement.answer.report.layout.worst.push_back(
      {.name = "<i>worst", .shape = {4}, .spec = spec.effective});
  placement.answer.report.layout.specs.push_back({.spec = spec.effective, .tensors = 1});
  const std::string html = HtmlOf(mesh, placement, {1});
  EXPECT_EQ(FaultOf(html), "");
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(&quot;1&quot;)"));
  for (const char* raw : {"<script>alert", "<b>&", "<i>worst", "<fix>", "'</td>'", "\x01"}) {
    EXPECT_THAT(html, Not(HasSubstr(raw)));
  }
}

TEST(PlanReportTest, StaysSmallAndQuickOnAManyDevicesAndTensors) {
  const Mesh mesh = *Mesh::Parse("a=32768,b=65536");
  const PartitionSpec cut = *ParseSpec("a,b");
  std::vector<TreeTensor> tensors;
  for (int i = 0; i < 20'000; ++i) {
    tensors.push_back({.name = StrCat("layers.", i, ".w"),
                       .shape = {32'768, 65'536},
                       .dtype = Dtype::kBF16,
                       .spec = i % 2 == 0 ? cut : PartitionSpec()});
  }
  Placement placement = PlacementOf(mesh, std::move(tensors));
  // As the server answers: distinct specs once.
  for (size_t i = 0; i < placement.answer.placements.size(); ++i) {
    placement.answer.placements[i].spec_index = i % 2;
  }
  const absl::Time start = absl::Now();
  const std::string html = HtmlOf(mesh, placement, {mesh.size() - 1});
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_LT(html.size(), size_t{200'000});
  EXPECT_THAT(html, HasSubstr("layers.*.w"));
}

}  // namespace
}  // namespace shardmesh::client
