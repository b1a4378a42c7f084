// Fuzzes the reading of trees: what is accepted keeps the limits, and says the same when it is
// written again line by line.
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>

#include "sharding/shape.h"
#include "status/reason.h"
#include "tensor/tree_file.h"
#include "tests/fuzz/fuzz.h"

namespace shardmesh::fuzz {
namespace {

using Json = nlohmann::json;

Json EntryOf(const AxisValue& value) {
  if (value.is_name()) {
    return value.name();
  }
  if (value.is_none()) {
    return nullptr;
  }
  Json names = Json::array();
  for (const AxisValue& item : value.entries()) {
    names.push_back(EntryOf(item));
  }
  return names;
}

std::string LineOf(const TreeFileTensor& tensor) {
  Json line = {{"name", tensor.name}, {"shape", tensor.shape}};
  if (tensor.dtype.has_value()) {
    line["dtype"] = std::string(DtypeName(*tensor.dtype));
  }
  if (tensor.axes.has_value()) {
    Json& axes = line["axes"] = Json::array();
    for (const AxisValue& axis : *tensor.axes) {
      axes.push_back(EntryOf(axis));
    }
  }
  if (tensor.spec.has_value()) {
    Json& spec = line["spec"] = Json::array();
    for (const SpecEntry& entry : tensor.spec->entries()) {
      spec.push_back(EntryOf(entry.ToAxisValue()));
    }
  }
  return line.dump() + "\n";
}

void CheckTree(const absl::StatusOr<std::vector<TreeFileTensor>>& tree) {
  if (!tree.ok()) {
    Require(tree.status().code() == absl::StatusCode::kInvalidArgument);
    Require(ReasonOf(tree.status()) != Reason::kUnspecified);
    return;
  }
  std::unordered_set<std::string> names;
  std::string lines;
  for (const TreeFileTensor& tensor : *tree) {
    Require(!tensor.name.empty() && tensor.name.size() <= kMaxTreeNameBytes);
    Require(names.insert(tensor.name).second);
    Require(CheckShape(tensor.shape).ok());
    Require(!(tensor.axes.has_value() && tensor.spec.has_value()));
    lines += LineOf(tensor);
  }
  const absl::StatusOr<std::vector<TreeFileTensor>> again = ParseTreeLines("again", lines);
  Require(again.ok() && *again == *tree);
}

}  // namespace

void Check(std::string_view input) {
  CheckTree(ParseTree("tree", input));
  CheckTree(ParseTreeLines("lines", input));
}

}  // namespace shardmesh::fuzz
