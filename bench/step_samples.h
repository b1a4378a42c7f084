// Times of steps of a running cluster, for benchmarks.
#ifndef SHARDMESH_BENCH_STEP_SAMPLES_H_
#define SHARDMESH_BENCH_STEP_SAMPLES_H_

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/mesh_client.h"
#include "tensor/tensor_elements.h"

namespace shardmesh::bench {

// Ends the program if there is an error.
inline void OrExit(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << program_invocation_short_name << ": " << status << "\n";
  std::exit(1);
}
template <typename T>
T OrExit(absl::StatusOr<T> value) {
  OrExit(value.status());
  return *std::move(value);
}

// Returns the value below which this part of the values lies. Requires a value, and 0 <= part <= 1.
inline double QuantileOf(std::vector<double> values, double part) {
  const auto at =
      std::min(static_cast<size_t>(part * static_cast<double>(values.size())), values.size() - 1);
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at), values.end());
  return values[at];
}
inline double MedianOf(std::vector<double> values) { return QuantileOf(std::move(values), 0.5); }

// Returns an array of the cluster with these elements, which the client's session holds.
inline client::ArraySelector PutUnnamed(client::MeshClient& mesh, TensorElements elements,
                                        PartitionSpec spec, bool is_zeros = false) {
  const client::PutTensor tensor{.name = "",
                                 .view = std::move(elements),
                                 .spec = std::move(spec),
                                 .cut_points = {},
                                 .is_zeros = is_zeros};
  client::PutOptions options;
  options.reuse = false;
  return client::ArraySelector::ById(
      OrExit(mesh.arrays().PutTensors({&tensor, 1}, options)).arrays[0].descriptor.array_id);
}

// Releases the results of a step.
inline void Release(client::MeshClient& mesh, const client::StepResult& step) {
  std::vector<std::string> ids;
  for (const client::StepOutput& output : step.outputs) {
    ids.push_back(output.array.descriptor.array_id);
  }
  if (!ids.empty()) (void)OrExit(mesh.arrays().ReleaseArrays(ids));
}

// The seconds of several runs of one step: as the client sees the call, as the step reports them,
// and as they were predicted.
class StepSamples {
 public:
  void Add(absl::Duration call, const client::StepTimings& timings) {
    calls_.push_back(absl::ToDoubleSeconds(call));
    totals_.push_back(absl::ToDoubleSeconds(timings.total));
    kernels_.push_back(absl::ToDoubleSeconds(timings.kernel));
    collectives_.push_back(absl::ToDoubleSeconds(timings.collective));
    last_ = timings;
  }

  // Medians, unless the names say otherwise. Requires a sample.
  nlohmann::json Json() const {
    nlohmann::json json = {{"call_s", MedianOf(calls_)},
                           {"call_p10_s", QuantileOf(calls_, 0.1)},
                           {"call_p90_s", QuantileOf(calls_, 0.9)},
                           {"total_s", MedianOf(totals_)},
                           {"kernel_s", MedianOf(kernels_)},
                           {"collective_s", MedianOf(collectives_)},
                           {"sent_bytes", last_.sent_bytes},
                           {"samples", calls_.size()}};
    if (!last_.predicted.has_value()) return json;
    const client::StepPrediction& predicted = *last_.predicted;
    nlohmann::json& of_plan = json["predicted"];
    of_plan["peak_bytes"] = predicted.peak_bytes;
    if (predicted.kernel.has_value()) {
      of_plan["kernel_s"] = absl::ToDoubleSeconds(*predicted.kernel);
    }
    if (predicted.collective.has_value()) {
      of_plan["collective_s"] = absl::ToDoubleSeconds(*predicted.collective);
    }
    if (predicted.overhead.has_value()) {
      of_plan["overhead_s"] = absl::ToDoubleSeconds(*predicted.overhead);
    }
    if (predicted.sent_bytes.has_value()) of_plan["sent_bytes"] = *predicted.sent_bytes;
    return json;
  }

 private:
  std::vector<double> calls_;
  std::vector<double> totals_;
  std::vector<double> kernels_;
  std::vector<double> collectives_;
  client::StepTimings last_;
};

// Runs a step several times, and then so many times more that are counted. Releases its results.
inline StepSamples RunSteps(client::MeshClient& mesh, client::ExecuteCall call, int64_t warm_runs,
                            int64_t runs) {
  StepSamples samples;
  for (int64_t run = -warm_runs; run < runs; ++run) {
    const absl::Time begin = absl::Now();
    const client::StepResult step = OrExit(mesh.compute().Execute(call));
    const absl::Duration time = absl::Now() - begin;
    Release(mesh, step);
    if (run >= 0) samples.Add(time, step.timings);
  }
  return samples;
}

}  // namespace shardmesh::bench

#endif  // SHARDMESH_BENCH_STEP_SAMPLES_H_
