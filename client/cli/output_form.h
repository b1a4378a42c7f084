// The forms in which a command prints its answer: --output.
#ifndef SHARDMESH_CLIENT_CLI_OUTPUT_FORM_H_
#define SHARDMESH_CLIENT_CLI_OUTPUT_FORM_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardmesh::client {

// JSON whose keys stay in the order in which they were written.
using Json = nlohmann::ordered_json;

// kWide: tables with all their columns. kName: only names, one per line.
enum class OutputForm { kTable, kWide, kJson, kYaml, kName };

// The names of the forms: `table`, `wide`, `json`, `yaml`, `name`.
std::vector<std::string> OutputFormNames();
std::optional<OutputForm> FindOutputForm(std::string_view name);
// Whether the form prints the answer as a tree of values: kJson and kYaml.
bool IsTree(OutputForm form);

// Returns the tree as YAML text, which ends in a newline. A YAML parser reads the same values:
// texts that look like numbers, booleans or null are quoted.
std::string ToYaml(const Json& tree);
// Returns the tree as text: YAML, or indented JSON. Requires IsTree(form).
std::string TreeText(const Json& tree, OutputForm form);
// Like TreeText, but JSON is one line.
std::string TreeLine(const Json& tree, OutputForm form);
// Writes TreeText to standard output.
void PrintTree(const Json& tree, OutputForm form);
// Writes names to standard output, one per line.
void PrintNames(const std::vector<std::string>& names);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_OUTPUT_FORM_H_
