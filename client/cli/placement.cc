// How the tensors of a checkpoint are to lie, as a table.
#include "client/cli/placement.h"

#include <iostream>
#include <string>
#include <utility>

#include "client/cli/table.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::client {

namespace {

// Empty where requested and effective spec are the same.
std::string WhyTheyDiffer(const TreeSpec& spec) {
  if (!spec.corrections.empty()) {
    return FormatCorrections(spec.corrections);
  }
  return FormatSpec(spec.requested) == FormatSpec(spec.effective)
             ? std::string()
             : "nothing was asked for that cuts the tensor";
}

}  // namespace

absl::StatusOr<Placement> AskPlacement(MeshClient* client, const Checkpoint& checkpoint,
                                       TreeQuestion question) {
  Placement placement;
  placement.match_only = question.match_only;
  question.keep_unmatched = true;
  for (const Checkpoint::Entry& entry : checkpoint.tensors()) {
    placement.tensors.push_back({.name = entry.tensor->name,
                                 .shape = entry.tensor->shape,
                                 .dtype = entry.tensor->dtype,
                                 .axes = {}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(placement.answer, client->ResolveTree(question, placement.tensors));
  return placement;
}

absl::Status CheckAllMatched(const Placement& placement) {
  constexpr int64_t kMaxNamed = 5;
  std::vector<std::string> names;
  int64_t unmatched = 0;
  for (size_t i = 0; i < placement.tensors.size(); ++i) {
    if (placement.answer.placements[i].unmatched && ++unmatched <= kMaxNamed) {
      names.push_back(placement.tensors[i].name);
    }
  }
  if (unmatched == 0) {
    return absl::OkStatus();
  }
  const int64_t more = unmatched - static_cast<int64_t>(names.size());
  return InvalidArgument(
      Reason::kUnmatchedTensor,
      StrCat("no rule matches ", unmatched, " of ", FormatCount(placement.tensors.size(), "tensor"),
             ": ", StrJoin(names, ", "), more > 0 ? StrCat(" and ", more, " more") : std::string(),
             "; add rules for them, or a last rule '.*'"));
}

void PrintPlacement(const Placement& placement) {
  Table table({{"tensor"},
               {"dtype"},
               {"shape"},
               {"requested"},
               {"effective"},
               {placement.match_only ? "rule" : "bytes/device", Table::Align::kRight},
               {"why they differ"}});
  for (size_t i = 0; i < placement.tensors.size(); ++i) {
    const TreeTensor& tensor = placement.tensors[i];
    const TreePlacement& placed = placement.answer.placements[i];
    const TreeSpec& spec = placement.answer.specs[placed.spec_index];
    std::vector<std::string> row = {
        tensor.name, tensor.dtype.has_value() ? std::string(DtypeName(*tensor.dtype)) : "-",
        FormatShape(tensor.shape), placed.unmatched ? "" : FormatSpec(spec.requested),
        placed.unmatched ? "" : FormatSpec(spec.effective)};
    if (placement.match_only) {
      row.push_back(placed.unmatched                ? "(no rule)"
                    : placed.rule_index.has_value() ? StrCat(*placed.rule_index)
                                                    : "-");
    } else {
      row.push_back(FormatBytes(placed.bytes_per_device));
    }
    row.push_back(WhyTheyDiffer(spec));
    table.AddRow(std::move(row));
  }
  table.Print();

  const LayoutSummary& summary = placement.answer.summary;
  std::cout << "\n" << FormatCount(placement.tensors.size(), "tensor");
  if (placement.match_only) {
    std::cout << (CheckAllMatched(placement).ok() ? ", all matched\n" : ", not all matched\n");
    return;
  }
  std::cout << ", " << FormatBytes(summary.total_bytes) << "; " << summary.corrected_tensors
            << " corrected, " << summary.replicated_tensors << " replicated\n"
            << (summary.devices == 1
                    ? "The one device holds "
                    : StrCat("Each of the ", FormatCount(summary.devices, "device"), " holds "))
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
        {"effective", SpecJson(spec.effective)},
        {"rule", placed.rule_index.has_value() ? Json(*placed.rule_index) : Json(nullptr)},
        {"unmatched", placed.unmatched},
        {"corrections", CorrectionsJson(spec.corrections)}};
    if (!placement.match_only) {
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
