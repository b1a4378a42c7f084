// Prints the answer about one tensor's spec, as text and as JSON.
#include "client/cli/spec_printing.h"

#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "client/cli/shared_options.h"
#include "client/cli/table.h"
#include "rpc/codec/correction_codec.h"
#include "sharding/layout/fixes.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

std::string_view FixKindName(Fix::Kind kind) {
  switch (kind) {
    case Fix::Kind::kAxesSubset:
      return "axes_subset";
    case Fix::Kind::kPaddedSize:
      return "padded_size";
    case Fix::Kind::kAxisOrder:
      return "axis_order";
  }
  return "fix";
}

std::string_view StepKindName(ExplanationStep::Kind kind) {
  switch (kind) {
    case ExplanationStep::Kind::kSemanticName:
      return "axis";
    case ExplanationStep::Kind::kModeVariant:
      return "mode";
    case ExplanationStep::Kind::kMeshAxes:
      return "mesh axes";
    case ExplanationStep::Kind::kRule:
      return "rule";
    case ExplanationStep::Kind::kCorrection:
      return "correction";
    case ExplanationStep::Kind::kNearMiss:
      return "near miss";
  }
  return "step";
}

// Maximum number of groups of tensors of WithAllCorrected.
constexpr size_t kMostCorrectedLines = 10;
// The end of the message of WithAllCorrected.
constexpr char kAcceptCorrections[] =
    "Ask for such specs, or leave out --strict to accept the corrections";

// Returns the spec that was asked for, from the corrections of it.
PartitionSpec RequestedOf(const CorrectedTensor& tensor) {
  std::vector<SpecEntry> entries(tensor.effective.entries().begin(),
                                 tensor.effective.entries().end());
  for (const Correction& correction : tensor.corrections) {
    if (correction.dim < 0) continue;  // about the whole tensor
    const auto dim = static_cast<size_t>(correction.dim);
    if (dim >= entries.size()) entries.resize(dim + 1, SpecEntry::None());
    entries[dim] = correction.requested;
  }
  return PartitionSpec(std::move(entries),
                       {tensor.effective.unreduced().begin(), tensor.effective.unreduced().end()});
}

// Tensors with equal requests and equal corrections.
struct CorrectedGroup {
  const CorrectedTensor* first = nullptr;
  PartitionSpec requested;
  std::string text;  // of the corrections
  int64_t tensors = 0;
  bool has_one_shape = true;
};

std::vector<CorrectedGroup> GroupsOf(absl::Span<const CorrectedTensor> corrected) {
  std::vector<CorrectedGroup> groups;  // in the order of the tensors
  std::map<std::string, size_t> group_of;
  for (const CorrectedTensor& tensor : corrected) {
    PartitionSpec requested = RequestedOf(tensor);
    std::string text = FormatCorrections(tensor.corrections, tensor.mesh);
    const auto [found, is_new] =
        group_of.try_emplace(StrCat(text, "\n", FormatSpec(requested)), groups.size());
    if (is_new) {
      groups.push_back(
          {.first = &tensor, .requested = std::move(requested), .text = std::move(text)});
    }
    CorrectedGroup& group = groups[found->second];
    ++group.tensors;
    group.has_one_shape = group.has_one_shape && tensor.shape == group.first->shape;
  }
  return groups;
}

// Returns a line for each spec that mends the first correction of the tensors of a group.
std::string FixLinesOf(const CorrectedGroup& group) {
  const CorrectedTensor& first = *group.first;
  if (!first.mesh.has_value()) return "";
  std::string lines;
  for (const Fix& fix :
       SuggestFixes(group.requested, first.shape, *first.mesh,
                    {.effective = first.effective, .corrections = first.corrections})) {
    if (fix.correction != 0) continue;
    // Whether another order fits depends on all extents of a tensor.
    if (fix.kind == Fix::Kind::kAxisOrder && !group.has_one_shape) continue;
    StrAppend(&lines, "\n    fix: spec '", FormatSpec(fix.spec), "'");
    if (fix.kind == Fix::Kind::kPaddedSize) StrAppend(&lines, ", and ", fix.text);
  }
  return lines;
}

}  // namespace

void PrintSpecAnswer(const SpecAnswer& answer, const std::optional<Mesh>& mesh,
                     std::optional<RuntimeMode> mode) {
  std::cout << "requested  " << FormatSpec(answer.requested) << "\n"
            << "effective  " << FormatSpec(answer.effective) << "\n";
  if (answer.shard_shape.has_value()) {
    std::cout << "tile       " << FormatShape(*answer.shard_shape) << "\n";
  }
  PrintCorrections(answer.corrections, answer.fixes, mesh);
  if (!answer.explanation.empty()) {
    std::cout << "\n";
    PrintExplanation(answer, mesh, mode);
  }
}

void PrintCorrections(const std::vector<Correction>& corrections, const std::vector<Fix>& fixes,
                      const std::optional<Mesh>& mesh) {
  for (size_t i = 0; i < corrections.size(); ++i) {
    std::cout << "corrected  " << FormatCorrections({corrections[i]}, mesh) << "\n";
    for (const Fix& fix : fixes) {
      if (fix.correction == static_cast<int64_t>(i)) {
        std::cout << "           fix: " << FormatFix(fix) << "\n";
      }
    }
  }
}

void PrintExplanation(const SpecAnswer& answer, const std::optional<Mesh>& mesh,
                      std::optional<RuntimeMode> mode) {
  Table table({{"dimension", Table::Align::kRight}, {"step"}, {"of"}, {"gives"}});
  for (const ExplanationStep& step : answer.explanation) {
    std::string kind(StepKindName(step.kind));
    if (step.kind == ExplanationStep::Kind::kModeVariant && mode.has_value()) {
      StrAppend(&kind, " ", RuntimeModeName(*mode));
    }
    // If a correction drops all axes of a dimension, show the text of the correction instead of the
    // step's result, which is only `None`.
    std::string result = step.result;
    for (const Correction& correction : answer.corrections) {
      if (step.kind == ExplanationStep::Kind::kCorrection && step.dim >= 0 &&
          correction.dim == step.dim && step.result == SpecEntry::None().ToString()) {
        result = FormatCorrections({correction}, mesh);
      }
    }
    table.AddRow({step.dim < 0 ? "all" : StrCat(step.dim), std::move(kind), step.subject,
                  std::move(result)});
  }
  table.Print();
}

Json SpecAnswerJson(const SpecAnswer& answer, const std::optional<Mesh>& mesh,
                    std::optional<RuntimeMode> mode) {
  Json json = {{"requested", SpecJson(answer.requested)},
               {"effective", SpecJson(answer.effective)},
               {"corrections", CorrectionsJson(answer.corrections, mesh)},
               {"fixes", FixesJson(answer.fixes)},
               {"shard_shape",
                answer.shard_shape.has_value() ? ShapeJson(*answer.shard_shape) : Json(nullptr)},
               {"revision", answer.revision}};
  if (mode.has_value()) {
    json["mode"] = std::string(RuntimeModeName(*mode));
  }
  if (!answer.explanation.empty()) {
    json["explanation"] = ExplanationJson(answer.explanation);
  }
  return json;
}

Json ExplanationJson(const std::vector<ExplanationStep>& steps) {
  Json list = Json::array();
  for (const ExplanationStep& step : steps) {
    list.push_back({{"dimension", step.dim},
                    {"step", std::string(StepKindName(step.kind))},
                    {"subject", step.subject},
                    {"result", step.result}});
  }
  return list;
}

Json FixesJson(const std::vector<Fix>& fixes) {
  Json list = Json::array();
  for (const Fix& fix : fixes) {
    list.push_back({{"kind", std::string(FixKindName(fix.kind))},
                    {"correction", fix.correction},
                    {"spec", SpecJson(fix.spec)},
                    {"shape", ShapeJson(fix.shape)},
                    {"text", fix.text}});
  }
  return list;
}

bool IsOfStrict(const absl::Status& status) {
  return !rpc::CorrectionsOf(status).corrections.empty();
}

absl::Status WithAllCorrected(const absl::Status& refusal,
                              absl::Span<const CorrectedTensor> corrected) {
  if (refusal.ok() || corrected.empty()) return refusal;
  const std::vector<CorrectedGroup> groups = GroupsOf(corrected);
  std::string message =
      StrCat(ToStd(refusal.message()), "\n", FormatCount(corrected.size(), "spec"),
             corrected.size() == 1 ? " needs" : " need", " corrections:");
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i == kMostCorrectedLines) {
      StrAppend(&message, "\n  and ", groups.size() - i, " more corrections; `shardmesh plan` or ",
                "--validate-only without --strict shows them");
      break;
    }
    const CorrectedGroup& group = groups[i];
    StrAppend(&message, "\n  ", group.first->name,
              group.tensors > 1 ? StrCat(" and ", group.tensors - 1, " more") : std::string(), ": ",
              group.text, FixLinesOf(group));
  }
  StrAppend(&message, "\n", kAcceptCorrections);
  return WithMessage(refusal, message);
}

bool HasAllCorrected(const absl::Status& status) {
  return ToStd(status.message()).ends_with(kAcceptCorrections);
}

}  // namespace shardmesh::client
