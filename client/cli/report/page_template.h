// The parts of a page, with placeholders for data.
//
//   @@ row
//   <tr>
//     <td>{{name}}</td>
//   </tr>\n
//
//   PageTemplate(text).Fill("row", {{"name", "wq"}})   // "<tr><td>wq</td></tr>", and a line break
//
// A part begins after a line `@@ NAME` and extends to the next line that begins with `@@`. Line
// breaks and indentation are removed; `\n` at the end of a line stands for a line break. Data is
// inserted unchanged: the caller must escape it.
#ifndef SHARDMESH_CLIENT_CLI_REPORT_PAGE_TEMPLATE_H_
#define SHARDMESH_CLIENT_CLI_REPORT_PAGE_TEMPLATE_H_

#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace shardmesh::client {

// Immutable, so threads can share it. Requires that every part and placeholder that a caller names
// exists, and that the caller fills every placeholder. A violation is a bug of the program. Such a
// bug ends the program with a message that has the name of the part or placeholder.
class PageTemplate {
 public:
  using Data = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  explicit PageTemplate(std::string_view text);

  // Returns a part, with each `{{name}}` replaced by its data.
  std::string Fill(std::string_view part, Data data) const;
  // Like Fill, for a part with the placeholder {{content}}: Begin returns the text before that
  // placeholder, End the text after it.
  std::string Begin(std::string_view part, Data data = {}) const;
  std::string End(std::string_view part, Data data = {}) const;

 private:
  const std::string& Part(std::string_view name) const;

  std::map<std::string, std::string, std::less<>> parts_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_REPORT_PAGE_TEMPLATE_H_
