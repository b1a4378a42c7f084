// Reads Prometheus' text format.
#include "tests/testing/metric_values.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/testing/http_get.h"

namespace shardmesh::test {

absl::StatusOr<std::map<std::string, double>> MetricValues(const std::string& address) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string text, HttpGet(address, "/metrics"));
  std::map<std::string, double> values;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    double value = 0;
    if (space == absl::string_view::npos || !absl::SimpleAtod(line.substr(space + 1), &value)) {
      return absl::DataLossError(
          StrCat(address, " serves a line that is no metric: ", ToStd(line)));
    }
    values[std::string(line.substr(0, space))] = value;
  }
  return values;
}

}  // namespace shardmesh::test
