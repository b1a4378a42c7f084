// Reads the metrics of a process as numbers.
#ifndef SHARDMESH_TESTS_TESTING_METRIC_VALUES_H_
#define SHARDMESH_TESTS_TESTING_METRIC_VALUES_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace shardmesh::test {

// Returns the values of the time series that the process at HOST:PORT serves, by series, such as
// `shardmesh_workers{state="ready"}`. Errors of HttpGet.
absl::StatusOr<std::map<std::string, double>> MetricValues(const std::string& address);

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_METRIC_VALUES_H_
