// What Prometheus gets from the processes of a cluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "status/str_cat.h"
#include "tests/testing/http_get.h"
#include "tests/testing/metric_values.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

std::string Scrape(const std::string& address) {
  absl::StatusOr<std::string> text = HttpGet(address, "/metrics");
  EXPECT_THAT(text, IsOk()) << address;
  return text.ok() ? *std::move(text) : "";
}

// A metric as a process serves it, or as docs/metrics.md has it.
struct Metric {
  std::string type;
  std::set<std::string> labels;

  friend bool operator==(const Metric&, const Metric&) = default;
  friend void PrintTo(const Metric& metric, std::ostream* out) {
    *out << metric.type << " {" << StrJoin(metric.labels, ", ") << "}";
  }
};
using MetricsByName = std::map<std::string, Metric>;

// Labels that a histogram's buckets have in addition are left out.
MetricsByName Parse(const std::string& text) {
  MetricsByName metrics;
  std::string name;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words[0] == "#") {
      if (words[1] == "TYPE") {
        name = words[2];
        metrics[name].type = words[3];
      }
      continue;
    }
    const std::string series(line);
    const size_t open = series.find('{');
    if (open == std::string::npos) continue;
    // Values of ours have no quotes and commas within.
    for (const std::string& label : std::vector<std::string>(
             absl::StrSplit(series.substr(open + 1, series.find('}') - open - 1), ','))) {
      const std::string key = label.substr(0, label.find('='));
      if (key != "le") metrics[name].labels.insert(key);
    }
  }
  return metrics;
}

struct Documented {
  MetricsByName always;
  MetricsByName sometimes;  // with TLS
};

// The rows of docs/metrics.md: name, type, process, labels.
Documented ReadDocs(const std::string& process) {
  Documented documented;
  std::ifstream file(SHARDMESH_SOURCE_DIR "/docs/metrics.md");
  EXPECT_TRUE(file.is_open());
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| `", 0) != 0) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, " | ");
    if (cells.size() < 6) {
      ADD_FAILURE() << "a row with " << cells.size() << " cells: " << line;
      continue;
    }
    const std::string& where = cells[2];
    if (where.find(process) == std::string::npos && where.find("both") == std::string::npos) {
      continue;
    }
    Metric metric{.type = cells[1], .labels = {}};
    if (cells[3] != "–") {
      metric.labels = absl::StrSplit(cells[3], ", ");
    }
    MetricsByName& rows =
        where.find("with TLS") == std::string::npos ? documented.always : documented.sometimes;
    const std::string name = cells[0].substr(3, cells[0].size() - 4);
    EXPECT_TRUE(rows.emplace(name, metric).second) << name << " is listed twice";
  }
  return documented;
}

TEST(MetricsTest, TheDocsListWhatIsServedAndWhatTheyListIsServed) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start());
  const std::vector<std::string> addresses = cluster->metrics_addresses();
  ASSERT_EQ(addresses.size(), 5);
  for (size_t i = 0; i < 2; ++i) {
    const std::string process = i == 0 ? "coordinator" : "worker";
    MetricsByName served = Parse(Scrape(addresses[i]));
    const Documented documented = ReadDocs(process);
    for (const auto& [name, metric] : documented.sometimes) {
      const auto found = served.find(name);
      if (found == served.end()) continue;
      EXPECT_EQ(found->second.type, metric.type) << name;
      served.erase(found);
    }
    EXPECT_THAT(served, ElementsAreArray(documented.always)) << process;
  }
}

TEST(MetricsTest, NamesEndAsTheirTypesDemand) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start());
  for (const std::string& address : cluster->metrics_addresses()) {
    for (const auto& [name, metric] : Parse(Scrape(address))) {
      const bool is_total = name.size() > 6 && name.substr(name.size() - 6) == "_total";
      EXPECT_EQ(is_total, metric.type == "counter") << name;
      if (metric.type == "histogram") {
        EXPECT_THAT(name, HasSubstr("_seconds"));
      }
    }
  }
}

std::map<std::string, double> Values(const std::string& address) {
  absl::StatusOr<std::map<std::string, double>> values = MetricValues(address);
  EXPECT_THAT(values, IsOk()) << address;
  return values.ok() ? *std::move(values) : std::map<std::string, double>();
}

TEST(MetricsTest, WorkIsCountedWhereItIsDone) {
  TestCluster::Options options;
  options.mesh = "tp=2";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start(options));
  const std::vector<std::string> addresses = cluster->metrics_addresses();
  ASSERT_EQ(addresses.size(), 3);
  std::map<std::string, size_t> series;
  for (const std::string& address : addresses) {
    series[address] = Values(address).size();
  }
  const std::vector<float> elements(64 * 64, 1.0f);
  ASSERT_THAT(PutFloats(cluster->client(), "w", {64, 64}, elements,
                        PartitionSpec({SpecEntry::None(), SpecEntry::Axis("tp")})),
              IsOk());
  client::CollectiveCall gather{.input = client::Operand(client::ArraySelector::ByName("w")),
                                .kind = CollectiveKind::kAllGather,
                                .axes = {"tp"},
                                .dimension = 1,
                                .algorithm = CollectiveAlgorithm::kRing};
  for (int i = 0; i < 3; ++i) {
    ASSERT_THAT(cluster->client().compute().Collective(gather), IsOk());
  }
  const client::Operand weight(client::ArraySelector::ByName("w"));
  ASSERT_THAT(cluster->client().compute().Matmul({.lhs = weight, .rhs = weight}), IsOk());
  // Answers that are remembered count too.
  for (int i = 0; i < 3; ++i) {
    ASSERT_THAT(
        cluster->client().layouts().CorrectSpec(
            {.spec = PartitionSpec({SpecEntry::Axis("tp")}), .shape = {3}, .mesh = "default"}),
        IsOk());
  }

  // All series were there before, and work adds none.
  for (const std::string& address : addresses) {
    EXPECT_EQ(Values(address).size(), series[address]) << address;
  }
  auto coordinator = Values(addresses[0]);
  EXPECT_EQ(coordinator["shardmesh_steps_total{outcome=\"committed\"}"], 4);
  EXPECT_EQ(coordinator["shardmesh_step_duration_seconds_count{outcome=\"committed\"}"], 4);
  EXPECT_EQ(coordinator["shardmesh_steps_total{outcome=\"failed\"}"], 0);
  EXPECT_EQ(coordinator["shardmesh_workers{state=\"ready\"}"], 2);
  EXPECT_EQ(coordinator["shardmesh_meshes{state=\"ready\"}"], 1);
  EXPECT_EQ(coordinator["shardmesh_coordinator_state{state=\"serving\"}"], 1);
  EXPECT_EQ(coordinator["shardmesh_names"], 1);
  EXPECT_EQ(coordinator["shardmesh_sessions"], 1);
  EXPECT_EQ(coordinator["shardmesh_arrays{state=\"available\"}"], 5);
  EXPECT_EQ(
      coordinator["shardmesh_rpc_handled_total{code=\"OK\",method=\"ComputeService/Collective\"}"],
      3);
  EXPECT_EQ(coordinator["shardmesh_corrections_total{reason=\"NOT_DIVISIBLE\"}"], 3);
  EXPECT_EQ(coordinator["shardmesh_corrections_total{reason=\"AXIS_NOT_IN_MESH\"}"], 0);
  for (size_t i = 1; i <= 2; ++i) {
    auto worker = Values(addresses[i]);
    const std::string ring = "{algorithm=\"ring\",op=\"all_gather\"}";
    EXPECT_EQ(worker[StrCat("shardmesh_worker_collectives_total", ring)], 3);
    // Half of the matrix each time.
    EXPECT_EQ(worker[StrCat("shardmesh_worker_collective_sent_bytes_total", ring)],
              3 * 64 * 32 * 4);
    EXPECT_GT(worker[StrCat("shardmesh_worker_collective_seconds_total", ring)], 0);
    EXPECT_EQ(worker["shardmesh_worker_steps_total{outcome=\"done\"}"], 4);
    EXPECT_GT(worker["shardmesh_worker_kernel_flops_total"], 0);
    EXPECT_GT(worker["shardmesh_worker_kernel_seconds_total"], 0);
    EXPECT_GT(worker["shardmesh_worker_compiled_kernels_total"], 0);
    EXPECT_GT(worker["shardmesh_worker_store_used_bytes"], 0);
    EXPECT_GT(worker["shardmesh_worker_store_limit_bytes"],
              worker["shardmesh_worker_store_used_bytes"]);
    EXPECT_EQ(worker["shardmesh_worker_ready"], 1);
    EXPECT_EQ(worker["shardmesh_worker_epoch"], coordinator["shardmesh_epoch"]);
    EXPECT_EQ(worker["shardmesh_worker_term"], coordinator["shardmesh_term"]);
  }
}

TEST(MetricsTest, CollectivesUseTheAlgorithmThatTheCoordinatorWasToldToPrefer) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto cluster,
      TestCluster::Start({.mesh = "tp=2",
                          .coordinator_flags = {"--collective-algorithms=all-gather=ring"},
                          .worker_flags = {}}));
  const std::vector<float> elements(64 * 64, 1.0f);
  ASSERT_THAT(PutFloats(cluster->client(), "w", {64, 64}, elements,
                        PartitionSpec({SpecEntry::None(), SpecEntry::Axis("tp")})),
              IsOk());
  const client::Operand weight(client::ArraySelector::ByName("w"));
  client::CollectiveCall gather{
      .input = weight, .kind = CollectiveKind::kAllGather, .axes = {"tp"}, .dimension = 1};
  ASSERT_THAT(cluster->client().compute().Collective(gather), IsOk());
  ASSERT_THAT(cluster->client().compute().Matmul({.lhs = weight, .rhs = weight}), IsOk());
  gather.algorithm = CollectiveAlgorithm::kPairwise;
  ASSERT_THAT(cluster->client().compute().Collective(gather), IsOk());
  auto worker = Values(cluster->metrics_addresses()[1]);
  const auto count = [&](const char* algorithm) {
    return worker[StrCat("shardmesh_worker_collectives_total{algorithm=\"", algorithm,
                         "\",op=\"all_gather\"}")];
  };
  EXPECT_EQ(count("ring"), 2) << "the collective's and the product's";
  EXPECT_EQ(count("pairwise"), 1) << "what a call asks for goes first";
  EXPECT_EQ(count("doubling"), 0);
}

TEST(MetricsTest, ACoordinatorRecoversUntilItsWorkersAreBack) {
  TestCluster::Options options;
  options.mesh = "tp=2";
  options.durable = true;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start(options));
  ASSERT_THAT(cluster->Signal("worker-1", SIGSTOP), IsOk());
  ASSERT_THAT(cluster->Kill("coordinator"), IsOk());
  ASSERT_THAT(cluster->Restart("coordinator"), IsOk());
  // The metrics of a process that was started again are at another port, which its log tells.
  const auto recovering = [&] { return cluster->Run({"status"}).out; };
  EXPECT_THAT(recovering(), HasSubstr(": recovering, "));
  ASSERT_THAT(cluster->Signal("worker-1", SIGCONT), IsOk());
  ASSERT_THAT(cluster->WaitUntilHealthy(), IsOk());
  EXPECT_THAT(recovering(), HasSubstr(": serving, "));
  auto coordinator = Values(cluster->metrics_addresses()[0]);
  EXPECT_EQ(coordinator["shardmesh_coordinator_state{state=\"serving\"}"], 1);
  EXPECT_EQ(coordinator["shardmesh_coordinator_state{state=\"recovering\"}"], 0);
  EXPECT_EQ(coordinator["shardmesh_coordinator_awaited_workers"], 0);
  EXPECT_GT(coordinator["shardmesh_coordinator_state_changed_timestamp_seconds"],
            coordinator["process_start_time_seconds"] - 1);
}

TEST(MetricsTest, PromtoolFindsNothingToObjectTo) {
  const char* const ci = std::getenv("CI");
  if (std::system("command -v promtool >/dev/null") != 0 &&
      (ci == nullptr || ci != std::string("true"))) {
    GTEST_SKIP() << "THE METRICS WERE NOT CHECKED: there is no promtool; `./dev test` installs it";
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start());
  const std::vector<std::string> addresses = cluster->metrics_addresses();
  EXPECT_EQ(addresses.size(), 5);
  const std::string folder = MakeTestFolder("promtool");
  for (const std::string& address : addresses) {
    const std::string text = Scrape(address);
    EXPECT_THAT(text, HasSubstr("shardmesh_build_info{")) << address;
    std::ofstream(folder + "/metrics") << text;
    const std::string command =
        StrCat("promtool check metrics < ", folder, "/metrics > ", folder, "/found 2>&1");
    const int status = std::system(command.c_str());
    std::stringstream found;
    found << std::ifstream(folder + "/found").rdbuf();
    EXPECT_EQ(status, 0) << found.str();
    EXPECT_EQ(found.str(), "");
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace shardmesh::test
