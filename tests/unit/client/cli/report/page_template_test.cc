// PageTemplate: parts, places and line breaks.
#include "client/cli/report/page_template.h"

#include <gtest/gtest.h>

#include <string>

namespace shardmesh::client {
namespace {

constexpr char kText[] = R"(<!-- Before the first part nothing counts: {{name}} -->
@@ row
<tr>
  <td>{{name}}</td>
    <td>{{value}} of {{value}}</td>
</tr>\n
@@ table of rows
<table>\n
  {{content}}
</table {{end}}>
@@ empty
)";

TEST(PageTemplateTest, LeavesOutLineBreaksAndIndentationThatAreNotAskedFor) {
  const PageTemplate page(kText);
  EXPECT_EQ(page.Fill("row", {{"name", "wq"}, {"value", "7"}}),
            "<tr><td>wq</td><td>7 of 7</td></tr>\n");
  EXPECT_EQ(page.Fill("empty", {}), "");
}

TEST(PageTemplateTest, FillsWhatComesBeforeTheContentAndAfterIt) {
  const PageTemplate page(kText);
  EXPECT_EQ(page.Begin("table of rows"), "<table>\n");
  EXPECT_EQ(page.End("table of rows", {{"end", "id=\"x\""}}), "</table id=\"x\">");
}

TEST(PageTemplateTest, PutsDataInAsItIs) {
  const PageTemplate page(kText);
  EXPECT_EQ(page.Fill("row", {{"name", "{{value}}\n  <b>"}, {"value", std::string("7")}}),
            "<tr><td>{{value}}\n  <b></td><td>7 of 7</td></tr>\n");
}

TEST(PageTemplateDeathTest, NamesThePlaceThatIsNotFilledAndThePartThatIsNotThere) {
  const PageTemplate page(kText);
  EXPECT_DEATH(page.Fill("row", {{"name", "wq"}}), "nothing is given for \"value\"");
  EXPECT_DEATH(page.Fill("rows", {}), "no part \"rows\"");
}

}  // namespace
}  // namespace shardmesh::client
