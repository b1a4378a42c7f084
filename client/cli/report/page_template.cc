// Cuts a template into parts, and fills them.
#include "client/cli/report/page_template.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

constexpr std::string_view kContent = "{{content}}";

void Require(bool holds, std::string_view what, std::string_view name) {
  if (holds) return;
  const std::string message = StrCat("page template: ", what, " \"", name, "\"\n");
  std::fputs(message.c_str(), stderr);
  std::abort();
}

std::string Filled(std::string_view text, PageTemplate::Data data) {
  std::string filled;
  while (true) {
    const size_t begin = text.find("{{");
    filled.append(text.substr(0, begin));
    if (begin == std::string_view::npos) return filled;
    const size_t end = text.find("}}", begin);
    Require(end != std::string_view::npos, "no end of the place", text.substr(begin));
    const std::string_view name = text.substr(begin + 2, end - begin - 2);
    const auto* const found = std::find_if(data.begin(), data.end(),
                                           [&](const auto& each) { return each.first == name; });
    Require(found != data.end(), "nothing is given for", name);
    filled.append(found->second);
    text.remove_prefix(end + 2);
  }
}

}  // namespace

PageTemplate::PageTemplate(std::string_view text) {
  std::string* part = nullptr;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.substr(0, 3) == "@@ ") {
      part = &parts_[std::string(line.substr(3))];
      continue;
    }
    if (part == nullptr) continue;
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    const bool has_break = line.size() >= 2 && line.substr(line.size() - 2) == "\\n";
    if (has_break) line.remove_suffix(2);
    part->append(line);
    if (has_break) part->push_back('\n');
  }
}

std::string PageTemplate::Fill(std::string_view part, Data data) const {
  return Filled(Part(part), data);
}

std::string PageTemplate::Begin(std::string_view part, Data data) const {
  const std::string_view text = Part(part);
  const size_t content = text.find(kContent);
  Require(content != std::string_view::npos, "no content in the part", part);
  return Filled(text.substr(0, content), data);
}

std::string PageTemplate::End(std::string_view part, Data data) const {
  const std::string_view text = Part(part);
  const size_t content = text.find(kContent);
  Require(content != std::string_view::npos, "no content in the part", part);
  return Filled(text.substr(content + kContent.size()), data);
}

const std::string& PageTemplate::Part(std::string_view name) const {
  const auto part = parts_.find(name);
  Require(part != parts_.end(), "no part", name);
  return part->second;
}

}  // namespace shardmesh::client
