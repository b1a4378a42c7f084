// How the tensors of a checkpoint are to lie, as a table.
#include "client/cli/placement.h"

#include <iostream>
#include <string>
#include <utility>

#include "client/cli/table.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::client {

absl::StatusOr<Placement> AskPlacement(MeshClient* client, const Checkpoint& checkpoint,
                                       const TreeQuestion& question) {
  Placement placement;
  placement.match_only = question.match_only;
  for (const Checkpoint::Entry& entry : checkpoint.tensors()) {
    placement.tensors.push_back({.name = entry.tensor->name,
                                 .shape = entry.tensor->shape,
                                 .dtype = entry.tensor->dtype,
                                 .axes = {}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(placement.answer, client->ResolveTree(question, placement.tensors));
  return placement;
}

void PrintPlacement(const Placement& placement) {
  std::vector<Table::Column> columns = {
      {"tensor"}, {"dtype"}, {"shape"}, {placement.match_only ? "spec" : "requested"}};
  if (placement.match_only) {
    columns.push_back({"rule", Table::Align::kRight});
  } else {
    columns.push_back({"effective"});
    columns.push_back({"bytes/device", Table::Align::kRight});
  }
  columns.push_back({"why they differ"});
  Table table(std::move(columns));
  for (size_t i = 0; i < placement.tensors.size(); ++i) {
    const TreeTensor& tensor = placement.tensors[i];
    const TreePlacement& placed = placement.answer.placements[i];
    const TreeSpec& spec = placement.answer.specs[placed.spec_index];
    std::vector<std::string> row = {
        tensor.name, tensor.dtype.has_value() ? std::string(DtypeName(*tensor.dtype)) : "-",
        FormatShape(tensor.shape), FormatSpec(spec.requested)};
    if (placement.match_only) {
      row.push_back(placed.rule_index.has_value() ? StrCat(*placed.rule_index) : "-");
    } else {
      row.push_back(FormatSpec(spec.effective));
      row.push_back(FormatBytes(placed.bytes_per_device));
    }
    row.push_back(FormatCorrections(spec.corrections));
    table.AddRow(std::move(row));
  }
  table.Print();

  const LayoutSummary& summary = placement.answer.summary;
  std::cout << "\n" << placement.tensors.size() << " tensors";
  if (placement.match_only) {
    std::cout << ", all matched\n";
    return;
  }
  std::cout << ", " << FormatBytes(summary.total_bytes) << "; " << summary.corrected_tensors
            << " corrected, " << summary.replicated_tensors << " replicated\n"
            << "Each of the " << summary.devices << " devices holds "
            << FormatBytes(summary.max_bytes_per_device);
  if (summary.min_bytes_per_device != summary.max_bytes_per_device) {
    std::cout << " at most, " << FormatBytes(summary.min_bytes_per_device) << " at least";
  }
  std::cout << "; copies take " << FormatBytes(summary.replicated_bytes)
            << " beyond one of each element\n";
}

Json PlacementJson(const Placement& placement) {
  Json tensors = Json::array();
  for (size_t i = 0; i < placement.tensors.size(); ++i) {
    const TreeTensor& tensor = placement.tensors[i];
    const TreePlacement& placed = placement.answer.placements[i];
    const TreeSpec& spec = placement.answer.specs[placed.spec_index];
    Json entry = {
        {"name", tensor.name},
        {"dtype",
         tensor.dtype.has_value() ? Json(std::string(DtypeName(*tensor.dtype))) : Json(nullptr)},
        {"shape", ShapeJson(tensor.shape)},
        {"requested", SpecJson(spec.requested)},
        {"rule", placed.rule_index.has_value() ? Json(*placed.rule_index) : Json(nullptr)},
        {"corrections", CorrectionsJson(spec.corrections)}};
    if (!placement.match_only) {
      entry["effective"] = SpecJson(spec.effective);
      entry["bytes_per_device"] = placed.bytes_per_device;
    }
    tensors.push_back(std::move(entry));
  }
  Json json = {{"tensors", std::move(tensors)}};
  if (!placement.match_only) {
    const LayoutSummary& summary = placement.answer.summary;
    json["summary"] = {{"tensors", summary.tensors},
                       {"total_bytes", summary.total_bytes},
                       {"devices", summary.devices},
                       {"min_bytes_per_device", summary.min_bytes_per_device},
                       {"max_bytes_per_device", summary.max_bytes_per_device},
                       {"replicated_bytes", summary.replicated_bytes},
                       {"replicated_tensors", summary.replicated_tensors},
                       {"corrected_tensors", summary.corrected_tensors}};
  }
  json["revision"] = placement.answer.revision;
  return json;
}

}  // namespace shardmesh::client
