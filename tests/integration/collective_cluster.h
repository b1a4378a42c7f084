// A cluster of processes with an array on it, for tests of collectives that do not come to their
// end.
#ifndef SHARDMESH_TESTS_INTEGRATION_COLLECTIVE_CLUSTER_H_
#define SHARDMESH_TESTS_INTEGRATION_COLLECTIVE_CLUSTER_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/mesh_client.h"
#include "sharding/str_cat.h"
#include "tensor/view.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {

// What becomes true sooner or later, on a slow machine too.
inline bool Eventually(const std::function<bool()>& is_so,
                       absl::Duration within = absl::Seconds(60)) {
  const absl::Time deadline = absl::Now() + within;
  while (!is_so()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

// "m" is an 8 x 4 matrix of the numbers 0, 1, 2, ..., whose rows lie over all devices of a mesh of
// four. Workers are lost late, so that it is the steps that tell who is missing.
class CollectiveCluster : public ::testing::Test {
 protected:
  void StartCluster(TestCluster::Options options = {}) {
    options.coordinator_flags.insert(options.coordinator_flags.end(),
                                     {"--heartbeat-interval=200ms", "--lost-after=120s"});
    SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start(options));
    ASSERT_NO_FATAL_FAILURE(PutMatrix());
  }
  void PutMatrix() {
    for (size_t i = 0; i < numbers_.size(); ++i) numbers_[i] = static_cast<float>(i);
    const client::PutTensor tensor{
        .name = "m",
        .view = *TensorView::Create(
            Dtype::kF32, {8, 4},
            {reinterpret_cast<const char*>(numbers_.data()), numbers_.size() * sizeof(float)}),
        .spec = PartitionSpec({SpecEntry::Axes({"fsdp", "tp"})}),
        .cut_points = {}};
    ASSERT_THAT(client().PutTensors({&tensor, 1}), IsOk());
  }

  client::MeshClient& client() { return cluster_->client(); }

  // Sums the four tiles of two rows, every element of which goes from everyone to everyone.
  static client::CollectiveCall Sum() {
    return {.input = client::ArraySelector::ByName("m"),
            .kind = CollectiveKind::kAllReduce,
            .axes = {"fsdp", "tp"},
            .output = {.return_literals = true}};
  }
  std::vector<float> Expected() const {
    std::vector<float> sums(8);
    for (size_t i = 0; i < numbers_.size(); ++i) sums[i % 8] += numbers_[i];
    return sums;
  }
  static std::vector<float> ElementsOf(const client::StepResult& result) {
    const std::string& bytes = result.outputs[0].literal->bytes;
    std::vector<float> elements(bytes.size() / sizeof(float));
    std::memcpy(elements.data(), bytes.data(), bytes.size());
    return elements;
  }
  // The sum, with a time limit of its own.
  std::future<absl::StatusOr<client::StepResult>> SumWithin(absl::Duration timeout) {
    return std::async(std::launch::async, [address = cluster_->address(), timeout] {
      client::MeshClientOptions options;
      options.timeout = timeout;
      auto client = client::MeshClient::Connect(address, options);
      return client.ok() ? (*client)->Collective(Sum())
                         : absl::StatusOr<client::StepResult>(client.status());
    });
  }
  // The next sum is right, as soon as all ranks are there.
  void ExpectSumSoon() {
    absl::StatusOr<client::StepResult> result = absl::UnavailableError("not tried yet");
    EXPECT_TRUE(Eventually([&] {
      result = client().Collective(Sum());
      return result.ok();
    })) << result.status();
    if (result.ok()) {
      EXPECT_EQ(ElementsOf(*result), Expected());
    }
  }

  // A finding that blames this worker; waits for it.
  client::ClusterFinding AwaitBlame(const std::string& identity,
                                    client::ClusterFinding::Kind kind) {
    std::optional<client::ClusterFinding> found;
    std::string verdict;
    EXPECT_TRUE(Eventually([&] {
      const absl::StatusOr<client::Diagnosis> diagnosis = client().Diagnose();
      if (!diagnosis.ok()) return false;
      verdict = diagnosis->verdict;
      for (const client::ClusterFinding& finding : diagnosis->findings) {
        const bool blames =
            std::any_of(finding.culprits.begin(), finding.culprits.end(),
                        [&](const auto& culprit) { return culprit.identity == identity; });
        if (finding.kind == kind && blames) found = finding;
      }
      return found.has_value();
    })) << "the verdict does not blame "
        << identity << ": " << verdict;
    return found.value_or(client::ClusterFinding());
  }

  // The other ranks' records of a step that failed name this worker; waits for their heartbeats.
  void ExpectNamedByTheOthers(const std::string& identity, int64_t step) {
    const auto names_it = [&](const client::WorkerFlight& flight) {
      return std::any_of(flight.records.begin(), flight.records.end(), [&](const auto& record) {
        return record.step == step && !record.outcome.ok() &&
               ToStd(record.outcome.message()).find(identity) != std::string_view::npos;
      });
    };
    std::vector<client::WorkerFlight> flights;
    EXPECT_TRUE(Eventually([&] {
      auto listed = client().ListFlightRecords({.step = step});
      if (!listed.ok()) return false;
      flights = *std::move(listed);
      return std::count_if(flights.begin(), flights.end(), [&](const auto& flight) {
               return flight.identity != identity && names_it(flight);
             }) == 3;
    })) << "the records of step "
        << step << " do not name " << identity;
  }

  // The command says so too.
  void ExpectDoctorNames(const std::string& identity) {
    const CommandResult doctor = cluster_->Run({"doctor"});
    EXPECT_EQ(doctor.exit_code, 1) << doctor.err;
    const std::string verdict = doctor.out.substr(0, doctor.out.find('\n'));
    EXPECT_THAT(verdict, ::testing::HasSubstr(identity));
  }

  std::unique_ptr<TestCluster> cluster_;
  std::vector<float> numbers_ = std::vector<float>(32);
};

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_INTEGRATION_COLLECTIVE_CLUSTER_H_
