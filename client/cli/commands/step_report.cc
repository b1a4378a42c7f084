// Formats the times and predictions of steps.
#include "client/cli/commands/step_report.h"

#include <vector>

#include "client/cli/table.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

Json PredictionJson(const StepPrediction& predicted) {
  Json json = {{"peak_bytes", predicted.peak_bytes}};
  if (predicted.kernel.has_value()) json["kernel_s"] = Seconds(*predicted.kernel);
  if (predicted.collective.has_value()) json["collective_s"] = Seconds(*predicted.collective);
  if (predicted.sent_bytes.has_value()) json["sent_bytes"] = *predicted.sent_bytes;
  return json;
}

}  // namespace

Json TimingsJson(const StepTimings& timings) {
  Json json = {{"total_s", Seconds(timings.total)},
               {"kernel_s", Seconds(timings.kernel)},
               {"collective_s", Seconds(timings.collective)},
               {"sent_bytes", timings.sent_bytes}};
  if (timings.predicted.has_value()) json["predicted"] = PredictionJson(*timings.predicted);
  return json;
}

std::string FormatTimings(const StepTimings& timings) {
  return StrCat("took ", FormatTime(timings.total), ": kernels ", FormatTime(timings.kernel),
                ", collectives ", FormatTime(timings.collective), ", ",
                FormatBytes(timings.sent_bytes), " between workers");
}

std::string FormatPrediction(const StepPrediction& predicted) {
  std::vector<std::string> parts;
  if (predicted.kernel.has_value()) {
    parts.push_back(StrCat("kernels ", FormatTime(*predicted.kernel)));
  }
  if (predicted.collective.has_value()) {
    parts.push_back(StrCat("collectives ", FormatTime(*predicted.collective)));
  }
  if (predicted.sent_bytes.has_value()) {
    parts.push_back(StrCat(FormatBytes(*predicted.sent_bytes), " between workers"));
  }
  parts.push_back(StrCat("peak ", FormatBytes(predicted.peak_bytes), " on a device"));
  return StrJoin(parts, ", ");
}

}  // namespace shardmesh::client
