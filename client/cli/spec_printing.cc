// The answer about one tensor's spec, as text and as JSON.
#include "client/cli/spec_printing.h"

#include <iostream>
#include <string>
#include <string_view>
#include <utility>

#include "client/cli/table.h"
#include "sharding/str_cat.h"

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

}  // namespace

void PrintSpecAnswer(const SpecAnswer& answer) {
  std::cout << "requested  " << FormatSpec(answer.requested) << "\n"
            << "effective  " << FormatSpec(answer.effective) << "\n";
  if (answer.shard_shape.has_value()) {
    std::cout << "tile       " << FormatShape(*answer.shard_shape) << "\n";
  }
  for (size_t i = 0; i < answer.corrections.size(); ++i) {
    std::cout << "corrected  " << answer.corrections[i].ToString() << "\n";
    for (const Fix& fix : answer.fixes) {
      if (fix.correction == static_cast<int64_t>(i)) {
        std::cout << "           fix: " << FormatFix(fix) << "\n";
      }
    }
  }
  if (!answer.explanation.empty()) {
    Table table({{"dimension", Table::Align::kRight}, {"step"}, {"of"}, {"gives"}});
    for (const ExplanationStep& step : answer.explanation) {
      table.AddRow({step.dim < 0 ? "all" : StrCat(step.dim), std::string(StepKindName(step.kind)),
                    step.subject, step.result});
    }
    std::cout << "\n";
    table.Print();
  }
}

Json SpecAnswerJson(const SpecAnswer& answer) {
  Json json = {{"requested", SpecJson(answer.requested)},
               {"effective", SpecJson(answer.effective)},
               {"corrections", CorrectionsJson(answer.corrections)},
               {"fixes", FixesJson(answer.fixes)},
               {"shard_shape",
                answer.shard_shape.has_value() ? ShapeJson(*answer.shard_shape) : Json(nullptr)},
               {"revision", answer.revision}};
  if (!answer.explanation.empty()) {
    Json steps = Json::array();
    for (const ExplanationStep& step : answer.explanation) {
      steps.push_back({{"dimension", step.dim},
                       {"step", std::string(StepKindName(step.kind))},
                       {"subject", step.subject},
                       {"result", step.result}});
    }
    json["explanation"] = std::move(steps);
  }
  return json;
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

}  // namespace shardmesh::client
