// Prints trees of values as JSON and YAML.
#include "client/cli/output_form.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <utility>

#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

constexpr std::array kForms = {
    std::pair("table", OutputForm::kTable), std::pair("wide", OutputForm::kWide),
    std::pair("json", OutputForm::kJson), std::pair("yaml", OutputForm::kYaml),
    std::pair("name", OutputForm::kName)};

// Whether the text needs no quotes in YAML: parsers of YAML 1.1 and of YAML 1.2 read it as the same
// text.
bool IsPlainText(const std::string& text) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto is_plain = [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '/' || c == '-';
  };
  if (text.empty() || !is_letter(text.front()) ||
      !std::all_of(text.begin(), text.end(), is_plain)) {
    return false;
  }
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  constexpr std::array kOtherValues = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"};
  return std::find(kOtherValues.begin(), kOtherValues.end(), lower) == kOtherValues.end();
}

std::string ToJson(const Json& tree, int indent) {
  return tree.dump(indent, ' ', false, Json::error_handler_t::replace);
}

void EmitText(YAML::Emitter* out, const std::string& text) {
  if (!IsPlainText(text)) *out << YAML::DoubleQuoted;
  *out << text;
}

void Emit(YAML::Emitter* out, const Json& tree) {
  if (tree.is_object()) {
    // An empty map needs the flow style `{}`: in block style, nothing would be written, which means
    // null.
    if (tree.empty()) *out << YAML::Flow;
    *out << YAML::BeginMap;
    for (const auto& [key, value] : tree.items()) {
      *out << YAML::Key;
      EmitText(out, key);
      *out << YAML::Value;
      Emit(out, value);
    }
    *out << YAML::EndMap;
  } else if (tree.is_array()) {
    const bool is_flat = std::none_of(tree.begin(), tree.end(),
                                      [](const Json& item) { return item.is_structured(); });
    if (is_flat) *out << YAML::Flow;
    *out << YAML::BeginSeq;
    for (const Json& item : tree) Emit(out, item);
    *out << YAML::EndSeq;
  } else if (tree.is_string()) {
    EmitText(out, tree.get<std::string>());
  } else if (tree.is_null()) {
    *out << YAML::Null;
  } else {
    *out << ToJson(tree, -1);  // numbers and booleans look the same in JSON and YAML
  }
}

}  // namespace

std::vector<std::string> OutputFormNames() {
  std::vector<std::string> names;
  for (const auto& [name, form] : kForms) names.emplace_back(name);
  return names;
}

std::optional<OutputForm> FindOutputForm(std::string_view name) {
  for (const auto& [known, form] : kForms) {
    if (name == known) return form;
  }
  return std::nullopt;
}

bool IsTree(OutputForm form) { return form == OutputForm::kJson || form == OutputForm::kYaml; }

std::string ToYaml(const Json& tree) {
  YAML::Emitter out;
  out.SetNullFormat(YAML::LowerNull);
  Emit(&out, tree);
  return StrCat(std::string_view(out.c_str(), out.size()), "\n");
}

std::string TreeText(const Json& tree, OutputForm form) {
  return form == OutputForm::kYaml ? ToYaml(tree) : ToJson(tree, 2) + "\n";
}

std::string TreeLine(const Json& tree, OutputForm form) {
  return form == OutputForm::kYaml ? ToYaml(tree) : ToJson(tree, -1) + "\n";
}

void PrintTree(const Json& tree, OutputForm form) { std::cout << TreeText(tree, form); }

void PrintNames(const std::vector<std::string>& names) {
  for (const std::string& name : names) std::cout << name << "\n";
}

}  // namespace shardmesh::client
