// A cluster of processes with an array on it, for tests of collectives that do not come to their
// end.
#ifndef SHARDMESH_TESTS_INTEGRATION_COLLECTIVE_CLUSTER_H_
#define SHARDMESH_TESTS_INTEGRATION_COLLECTIVE_CLUSTER_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/mesh_client.h"
#include "program/program.h"
#include "sharding/mesh.h"
#include "sharding/mesh_definition.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {

// "m" is an 8 x 4 matrix of the numbers 0, 1, 2, ..., whose rows lie over all devices of a mesh of
// four. Workers are lost late, so that it is the steps that tell who is missing.
class CollectiveCluster : public ::testing::Test {
 protected:
  // Beyond a deadline.
  static constexpr absl::Duration kNamedWithin = absl::Seconds(2);

  void StartCluster(TestCluster::Options options = {}) {
    options.coordinator_flags.insert(options.coordinator_flags.end(),
                                     {"--heartbeat-interval=200ms", "--lost-after=120s"});
    // A worker that computes leaves time to the others.
    options.worker_flags.push_back("--threads=1");
    SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start(options));
    ASSERT_NO_FATAL_FAILURE(PutMatrix());
  }
  void PutMatrix() {
    std::iota(numbers_.begin(), numbers_.end(), 0.0F);
    ASSERT_THAT(PutFloats(client(), "m", {8, 4}, numbers_,
                          PartitionSpec({SpecEntry::Axes({"fsdp", "tp"})})),
                IsOk());
  }

  client::MeshClient& client() { return cluster_->client(); }

  // Sums the tiles of an array, every element of which goes from everyone to everyone.
  static client::CollectiveCall SumOf(const std::string& name, std::vector<std::string> axes) {
    return {.input = client::ArraySelector::ByName(name),
            .kind = CollectiveKind::kAllReduce,
            .axes = std::move(axes),
            .output = {.return_literals = true}};
  }
  static client::CollectiveCall Sum() { return SumOf("m", {"fsdp", "tp"}); }
  std::vector<float> Expected() const {
    std::vector<float> sums(8);
    for (size_t i = 0; i < numbers_.size(); ++i) sums[i % 8] += numbers_[i];
    return sums;
  }
  static std::vector<float> ElementsOf(const client::StepResult& result) {
    return FloatsOf(result.outputs[0].literal->bytes);
  }
  // A call of a client with a time limit of its own.
  template <typename Call>
  auto Within(absl::Duration timeout, Call call) {
    return std::async(std::launch::async, [address = cluster_->address(), timeout, call] {
      client::MeshClientOptions options;
      options.timeout = timeout;
      const auto client = client::MeshClient::Connect(address, options);
      EXPECT_THAT(client, IsOk());
      return call(**client);
    });
  }
  std::future<absl::StatusOr<client::StepResult>> SumWithin(
      absl::Duration timeout, const client::CollectiveCall& call = Sum()) {
    return Within(timeout,
                  [call](client::MeshClient& client) { return client.compute().Collective(call); });
  }

  // A mesh x=N over these workers.
  void DefineMesh(const std::string& name, const std::vector<std::string>& workers) {
    ASSERT_THAT(client().catalog().CreateEntry(
                    name, MeshDefinition{.mesh = *Mesh::Parse(StrCat("x=", workers.size())),
                                         .workers = workers}),
                IsOk());
  }

  // Gives a worker steps of its own, of more matrix products than it can do in this time, after
  // which they are aborted; as many as it runs side by side, so that others wait. Returns the last
  // one when the worker is at all of them.
  std::future<absl::StatusOr<client::StepResult>> KeepBusy(const std::string& identity,
                                                           absl::Duration duration) {
    constexpr int64_t kSide = 1024;
    // A worker's threads for steps; that for the lowest step alone stays free.
    constexpr int kStepsSideBySide = 4;
    const std::string mesh = StrCat("only-", identity);
    DefineMesh(mesh, {identity});
    for (int i = 0; i < kStepsSideBySide; ++i) {
      EXPECT_THAT(PutFloats(client(), StrCat(mesh, "-", i), {kSide, kSide},
                            std::vector<float>(kSide * kSide), PartitionSpec(), mesh),
                  IsOk());
    }
    constexpr ValueIndex kProducts = 1023;
    Program products{.operand_count = 1, .ops = {}, .outputs = {kProducts}};
    for (ValueIndex last = 0; last < kProducts; ++last) {
      products.ops.emplace_back(MatmulOp{.lhs = last, .rhs = 0});
    }
    std::future<absl::StatusOr<client::StepResult>> last;
    for (int i = 0; i < kStepsSideBySide; ++i) {
      if (last.valid()) kept_busy_.push_back(std::move(last));
      last = Within(duration, [products, name = StrCat(mesh, "-", i)](client::MeshClient& client) {
        return client.compute().Execute(
            {.work = products, .operands = {client::ArraySelector::ByName(name)}});
      });
    }
    EXPECT_TRUE(Eventually([&] {
      const auto flights = client().cluster().ListFlightRecords({.identity = identity});
      if (!flights.ok()) return false;
      std::set<int64_t> steps;
      for (const auto& record : flights->front().records) steps.insert(record.step);
      return steps.size() >= kStepsSideBySide;
    })) << identity
        << " does not begin the steps";
    return last;
  }

  // A rank comes so much late into a collective, which waits, and says meanwhile for whom.
  void ExpectALateRankIsNamedAndWaitedFor(absl::Duration late) {
    auto busy = KeepBusy("worker-2", late);
    auto sum = SumWithin(late + absl::Minutes(1));
    AwaitBlame("worker-2", client::ClusterFinding::Kind::kStuck,
               "ranks 0, 1 and 3 wait in \"op 0 (collective): all-reduce over fsdp,tp\" for rank 2 "
               "(worker-2), which is still in step");
    ExpectDoctorNames("worker-2");
    EXPECT_EQ(busy.wait_for(std::chrono::seconds(0)), std::future_status::timeout)
        << "all this was while it was busy";
    const auto result = sum.get();
    ASSERT_THAT(result, IsOk());
    EXPECT_EQ(ElementsOf(*result), Expected());
    EXPECT_THAT(busy.get(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  }

  // The next sum is right, as soon as all ranks are there.
  void ExpectSumSoon() {
    absl::StatusOr<client::StepResult> result = absl::UnavailableError("not tried yet");
    EXPECT_TRUE(Eventually([&] {
      result = client().compute().Collective(Sum());
      return result.ok();
    })) << result.status();
    if (result.ok()) {
      EXPECT_EQ(ElementsOf(*result), Expected());
    }
  }

  // A finding that blames this worker, and says this; waits for it.
  client::ClusterFinding AwaitBlame(const std::string& identity, client::ClusterFinding::Kind kind,
                                    const std::string& says = "") {
    std::optional<client::ClusterFinding> found;
    std::set<std::string> summaries;
    EXPECT_TRUE(Eventually([&] {
      const absl::StatusOr<client::Diagnosis> diagnosis = client().cluster().Diagnose();
      if (!diagnosis.ok()) return false;
      for (const client::ClusterFinding& finding : diagnosis->findings) {
        summaries.insert(finding.summary);
        const bool blames =
            std::any_of(finding.culprits.begin(), finding.culprits.end(),
                        [&](const auto& culprit) { return culprit.identity == identity; });
        const bool says_so = finding.summary.find(says) != std::string::npos;
        if (finding.kind == kind && blames && says_so) found = finding;
      }
      return found.has_value();
    })) << "no finding blames "
        << identity << "; all that were seen: " << ::testing::PrintToString(summaries);
    return found.value_or(client::ClusterFinding());
  }

  // The other ranks' records of the sum in a step that failed name this worker, and ended before
  // `limit`; waits for the heartbeats that bring them.
  void ExpectNamedByTheOthers(const std::string& identity, int64_t step, absl::Time limit) {
    const auto names_it = [&](const FlightRecord& record) {
      return record.step == step && !record.outcome.ok() &&
             ToStd(record.outcome.message()).find(identity) != std::string_view::npos;
    };
    std::map<std::string, FlightRecord> named_by;
    EXPECT_TRUE(Eventually([&] {
      const auto flights = client().cluster().ListFlightRecords({.step = step});
      if (!flights.ok()) return false;
      named_by.clear();
      for (const client::WorkerFlight& flight : *flights) {
        const auto record = std::find_if(flight.records.begin(), flight.records.end(), names_it);
        if (flight.identity != identity && record != flight.records.end()) {
          named_by[flight.identity] = *record;
        }
      }
      return named_by.size() == 3;
    })) << "the records of step "
        << step << " do not name " << identity;
    for (const auto& [other, record] : named_by) {
      EXPECT_EQ(record.what, "op 0 (collective): all-reduce over fsdp,tp") << other;
      EXPECT_LT(record.ended, limit) << other << " waited too long for " << identity;
    }
  }

  // The command says so too.
  void ExpectDoctorNames(const std::string& identity) {
    const CommandResult doctor = cluster_->Run({"doctor"});
    EXPECT_EQ(doctor.exit_code, 1) << doctor.err;
    const std::string verdict = doctor.out.substr(0, doctor.out.find('\n'));
    EXPECT_THAT(verdict, ::testing::HasSubstr(identity));
  }

  std::unique_ptr<TestCluster> cluster_;
  std::vector<std::future<absl::StatusOr<client::StepResult>>> kept_busy_;
  std::vector<float> numbers_ = std::vector<float>(32);
};

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_INTEGRATION_COLLECTIVE_CLUSTER_H_
