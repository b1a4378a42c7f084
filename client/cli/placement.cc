// The planned layouts of a tree's tensors, as tables.
#include "client/cli/placement.h"

#include <algorithm>
#include <iostream>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/cli/shared_options.h"
#include "client/cli/spec_printing.h"
#include "client/cli/table.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::client {

namespace {

// Returns why the effective spec differs from the requested spec. Returns an empty text if the two
// specs differ at most in entries `none`.
std::string WhyTheyDiffer(const TreeSpec& spec, const std::optional<Mesh>& mesh) {
  const bool asks_for_axes = std::any_of(
      spec.requested.entries().begin(), spec.requested.entries().end(),
      [](const SpecEntry& entry) { return entry.is_unconstrained() || !entry.is_none(); });
  if (!spec.corrections.empty()) {
    return FormatCorrections(spec.corrections, mesh);
  }
  return spec.effective.empty() && asks_for_axes ? "no axis was asked for that cuts the tensor"
                                                 : std::string();
}

void PrintUsages(std::string_view title, const std::vector<TensorUsage>& tensors) {
  if (tensors.empty()) {
    return;
  }
  std::cout << "\n" << title << "\n";
  Table table({{"tensor"},
               {"shape"},
               {"spec"},
               {"bytes/device", Table::Align::kRight},
               {"one copy", Table::Align::kRight},
               {"in copies", Table::Align::kRight}});
  for (const TensorUsage& tensor : tensors) {
    table.AddRow({tensor.name, FormatShape(tensor.shape), FormatSpec(tensor.spec),
                  FormatBytes(tensor.device_bytes), FormatBytes(tensor.bytes),
                  FormatBytes(tensor.wasted_bytes)});
  }
  table.Print();
}

void PrintTensors(const Placement& placement) {
  std::vector<Table::Column> columns = {{"tensor"}, {"dtype"}, {"shape"}};
  if (placement.match_only) {
    // The question asked only for the specs that the rules give. Such an answer has no effective
    // specs.
    columns.insert(columns.end(), {{"spec"}, {"rule (from 0)", Table::Align::kRight}, {"remark"}});
  } else {
    columns.insert(columns.end(), {{"requested"},
                                   {"effective"},
                                   {"bytes/device", Table::Align::kRight},
                                   {"why they differ"}});
  }
  Table table(std::move(columns));
  for (size_t i = 0; i < placement.tensors.size(); ++i) {
    const TreeTensor& tensor = placement.tensors[i];
    const TreePlacement& placed = placement.answer.placements[i];
    const TreeSpec& spec = placement.answer.specs[placed.spec_index];
    std::vector<std::string> row = {
        tensor.name, tensor.dtype.has_value() ? std::string(DtypeName(*tensor.dtype)) : "-",
        FormatShape(tensor.shape)};
    if (!placement.match_only) {
      row.push_back(placed.unmatched ? "" : FormatSpec(spec.requested));
    }
    row.push_back(placed.unmatched ? "" : FormatSpec(spec.effective));
    if (placement.match_only) {
      row.push_back(placed.unmatched                ? "(no rule)"
                    : placed.rule_index.has_value() ? StrCat(*placed.rule_index)
                                                    : "-");
    } else {
      row.push_back(FormatBytes(placed.bytes_per_device));
    }
    row.push_back(WhyTheyDiffer(spec, placement.mesh));
    table.AddRow(std::move(row));
  }
  table.Print();
  std::cout << "\n";
}

// Prints each corrected spec with its corrections, its fixes and the number of its tensors.
void PrintCorrections(const Placement& placement) {
  const std::vector<SpecUse> uses = UsesOfSpecs(placement);
  bool has_title = false;
  for (size_t i = 0; i < uses.size(); ++i) {
    const TreeSpec& spec = placement.answer.specs[i];
    if (spec.corrections.empty() || uses[i].tensors == 0) {
      continue;
    }
    std::cout << (std::exchange(has_title, true) ? "" : "\nCorrections\n")
              << FormatSpec(spec.requested) << " to " << FormatSpec(spec.effective) << ": "
              << FormatCount(uses[i].tensors, "tensor") << ", as "
              << placement.tensors[uses[i].first].name << " "
              << FormatShape(placement.tensors[uses[i].first].shape) << "\n";
    for (size_t j = 0; j < spec.corrections.size(); ++j) {
      std::cout << "  " << FormatCorrections({spec.corrections[j]}, placement.mesh) << "\n";
      for (const Fix& fix : spec.fixes) {
        if (fix.correction == static_cast<int64_t>(j)) {
          std::cout << "    fix: " << FormatFix(fix) << "\n";
        }
      }
    }
    if (spec.fixes_left_out) {
      std::cout
          << "    fixes: too many for one plan; ask 'shardmesh resolve --spec' about this one\n";
    }
  }
}

// See MeshOfCorrections.
std::optional<Mesh> MeshOfAnswer(MeshClient* client, const MeshSelector& selector,
                                 const TreeAnswer& answer) {
  for (const TreeSpec& spec : answer.specs) {
    std::optional<Mesh> mesh = MeshOfCorrections(client, selector, spec.corrections);
    if (mesh.has_value()) return mesh;
  }
  return std::nullopt;
}

// Returns the tensors that a strict question about them refuses; empty if that cannot be asked.
std::vector<CorrectedTensor> CorrectedTensors(MeshClient* client, TreeQuestion question,
                                              const std::vector<TreeTensor>& tensors) {
  question.strict = false;
  question.suggest_fixes = false;
  const absl::StatusOr<TreeAnswer> answer = client->layouts().ResolveTree(question, tensors);
  std::vector<CorrectedTensor> corrected;
  if (!answer.ok()) return corrected;
  // Without the mesh, the error lists no fixes.
  const absl::StatusOr<Mesh> fetched = FetchMesh(client, question.mesh);
  const std::optional<Mesh> mesh = fetched.ok() ? std::optional(*fetched) : std::nullopt;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TreeSpec& spec = answer->specs[answer->placements[i].spec_index];
    if (spec.corrections.empty()) continue;
    corrected.push_back({.name = tensors[i].name,
                         .corrections = spec.corrections,
                         .mesh = mesh,
                         .effective = spec.effective,
                         .shape = tensors[i].shape});
  }
  return corrected;
}

}  // namespace

absl::StatusOr<Placement> AskPlacement(MeshClient* client, std::vector<TreeTensor> tensors,
                                       TreeQuestion question) {
  Placement placement;
  placement.match_only = question.match_only;
  question.keep_unmatched = true;
  placement.tensors = std::move(tensors);
  absl::StatusOr<TreeAnswer> answer = client->layouts().ResolveTree(question, placement.tensors);
  if (question.strict && IsOfStrict(answer.status())) {
    return WithAllCorrected(answer.status(), CorrectedTensors(client, question, placement.tensors));
  }
  SHARDMESH_ASSIGN_OR_RETURN(placement.answer, std::move(answer));
  placement.mesh = MeshOfAnswer(client, question.mesh, placement.answer);
  return placement;
}

std::vector<SpecUse> UsesOfSpecs(const Placement& placement) {
  std::vector<SpecUse> uses(placement.answer.specs.size());
  for (size_t i = 0; i < placement.tensors.size(); ++i) {
    SpecUse& use = uses[placement.answer.placements[i].spec_index];
    use.first = use.tensors++ == 0 ? i : use.first;
  }
  return uses;
}

int64_t UncountedTensors(const Placement& placement) {
  return std::count_if(placement.tensors.begin(), placement.tensors.end(),
                       [](const TreeTensor& tensor) { return !tensor.dtype.has_value(); });
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
             "; add rules for them, or a last rule '.*'"),
      {{fact::kTensor, names.empty() ? std::string() : names.front()}});
}

void PrintPlacement(const Placement& placement, bool with_tensors) {
  if (with_tensors) {
    PrintTensors(placement);
  }
  const TreeReport& report = placement.answer.report;
  const LayoutReport& layout = report.layout;
  std::cout << FormatCount(placement.tensors.size(), "tensor");
  if (placement.match_only) {
    std::cout << (CheckAllMatched(placement).ok() ? ", all matched\n" : ", not all matched\n");
    return;
  }
  std::cout << ", " << FormatBytes(layout.bytes) << "; " << report.corrected_tensors
            << " corrected, " << report.replicated_tensors << " replicated\n"
            << (report.devices == 1
                    ? "The one device holds "
                    : StrCat("Each of the ", FormatCount(report.devices, "device"), " holds "))
            << FormatBytes(layout.most_device_bytes);
  if (layout.least_device_bytes != layout.most_device_bytes) {
    std::cout << " at most, " << FormatBytes(layout.least_device_bytes) << " at least";
  }
  std::cout << "; copies take " << FormatBytes(layout.wasted_bytes)
            << " beyond one of each element\n";
  if (const int64_t uncounted = UncountedTensors(placement); uncounted > 0) {
    const auto first =
        std::find_if(placement.tensors.begin(), placement.tensors.end(),
                     [](const TreeTensor& tensor) { return !tensor.dtype.has_value(); });
    std::cout << "Not counted in bytes, because they have no dtype: "
              << FormatCount(uncounted, "tensor") << ", such as " << first->name << "\n";
  }
}

void PrintReport(const Placement& placement) {
  const TreeReport& report = placement.answer.report;
  const LayoutReport& layout = report.layout;
  if (UncountedTensors(placement) == static_cast<int64_t>(placement.tensors.size())) {
    PrintCorrections(placement);  // no tensor has a dtype, so there are no bytes to print
    return;
  }
  const auto percent = [](double part, double whole) {
    return absl::StrFormat("%.1f %%", whole > 0 ? 100 * part / whole : 0.0);
  };
  const auto as_double = [](int64_t count) { return static_cast<double>(count); };
  std::cout << "\nPer device  least " << FormatBytes(layout.least_device_bytes) << " (device "
            << layout.least_loaded_device << "), mean "
            << FormatBytes(static_cast<int64_t>(layout.mean_device_bytes)) << ", most "
            << FormatBytes(layout.most_device_bytes) << " (device " << layout.most_loaded_device
            << "); balance " << absl::StrFormat("%.3f", layout.balance_score) << "\n"
            << "Sharded     "
            << percent(as_double(layout.sharded_parameters), as_double(layout.parameters))
            << " of the parameters, "
            << percent(as_double(layout.sharded_bytes), as_double(layout.bytes))
            << " of the bytes\n"
            << "Copies      " << FormatBytes(layout.wasted_bytes) << ", "
            << percent(as_double(layout.wasted_bytes), as_double(layout.held_bytes)) << " of the "
            << FormatBytes(layout.held_bytes) << " on all devices\n";

  std::cout << "\nSpecs\n";
  Table specs({{"spec"},
               {"tensors", Table::Align::kRight},
               {"parameters", Table::Align::kRight},
               {"size", Table::Align::kRight}});
  for (const SpecUsage& usage : layout.specs) {
    specs.AddRow({FormatSpec(usage.spec), StrCat(usage.tensors), StrCat(usage.parameters),
                  FormatBytes(usage.bytes)});
  }
  specs.Print();
  PrintUsages("Most bytes on a device", layout.largest);
  PrintUsages("Most bytes in copies", layout.worst);
  PrintCorrections(placement);
}

Json ReportJson(const TreeReport& report) {
  const auto usages = [](const std::vector<TensorUsage>& tensors) {
    Json list = Json::array();
    for (const TensorUsage& tensor : tensors) {
      list.push_back({{"name", tensor.name},
                      {"shape", ShapeJson(tensor.shape)},
                      {"spec", SpecJson(tensor.spec)},
                      {"bytes", tensor.bytes},
                      {"bytes_per_device", tensor.device_bytes},
                      {"wasted_bytes", tensor.wasted_bytes}});
    }
    return list;
  };
  const LayoutReport& layout = report.layout;
  Json specs = Json::array();
  for (const SpecUsage& usage : layout.specs) {
    specs.push_back({{"spec", SpecJson(usage.spec)},
                     {"tensors", usage.tensors},
                     {"parameters", usage.parameters},
                     {"bytes", usage.bytes}});
  }
  return {{"tensors", layout.tensors},
          {"parameters", layout.parameters},
          {"sharded_parameters", layout.sharded_parameters},
          {"total_bytes", layout.bytes},
          {"sharded_bytes", layout.sharded_bytes},
          {"wasted_bytes", layout.wasted_bytes},
          {"devices", report.devices},
          {"min_bytes_per_device", layout.least_device_bytes},
          {"mean_bytes_per_device", layout.mean_device_bytes},
          {"max_bytes_per_device", layout.most_device_bytes},
          {"balance_score", layout.balance_score},
          {"corrected_tensors", report.corrected_tensors},
          {"replicated_tensors", report.replicated_tensors},
          {"unmatched_tensors", report.unmatched_tensors},
          {"specs", std::move(specs)},
          {"worst", usages(layout.worst)},
          {"largest", usages(layout.largest)}};
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
        {"corrections", CorrectionsJson(spec.corrections, placement.mesh)}};
    if (!spec.fixes.empty()) {
      entry["fixes"] = FixesJson(spec.fixes);
    }
    if (spec.fixes_left_out) {
      entry["fixes_left_out"] = true;
    }
    if (!placement.match_only) {
      entry["bytes_per_device"] = placed.bytes_per_device;
    }
    tensors.push_back(std::move(entry));
  }
  Json json = {{"tensors", std::move(tensors)}};
  if (!placement.match_only) {
    json["summary"] = ReportJson(placement.answer.report);
    json["summary"]["tensors_without_dtype"] = UncountedTensors(placement);
  }
  json["revision"] = placement.answer.revision;
  return json;
}

}  // namespace shardmesh::client
