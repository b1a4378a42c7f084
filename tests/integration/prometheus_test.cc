// A real Prometheus with the project's own configuration, on a live cluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string>
#include <utility>

#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "client/cli/local/child_process.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/testing/certificates.h"
#include "tests/testing/eventually.h"
#include "tests/testing/http_get.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using Json = nlohmann::json;

// A Prometheus process with deploy/prometheus, but that it scrapes and evaluates five times a
// second and that alerts fire after a second.
class Prometheus {
 public:
  // `targets`: for file_sd_configs, as targets.py prints them. `tls_folder`: as of `up --tls`;
  // empty for plaintext.
  static absl::StatusOr<std::unique_ptr<Prometheus>> Start(const std::string& targets,
                                                           const std::string& tls_folder) {
    std::unique_ptr<Prometheus> prometheus(new Prometheus);
    const std::string& folder = prometheus->folder_;
    std::filesystem::create_directory(folder + "/targets");
    std::ofstream(folder + "/targets/live.json") << targets;
    const std::string shipped = SHARDMESH_SOURCE_DIR "/deploy/prometheus/";
    std::ofstream(folder + "/recording.rules.yml") << ReadFile(shipped + "recording.rules.yml");
    std::ofstream(folder + "/alerts.rules.yml") << std::regex_replace(
        ReadFile(shipped + "alerts.rules.yml"), std::regex(" for: [0-9]+[mh]\n"), " for: 1s\n");
    std::ofstream(folder + "/prometheus.yml") << std::regex_replace(
        ReadFile(shipped + (tls_folder.empty() ? "prometheus.yml" : "prometheus-tls.yml")),
        std::regex("(scrape_interval|scrape_timeout|evaluation_interval): [0-9]+s"), "$1: 500ms");
    if (!tls_folder.empty()) {
      std::filesystem::create_directory_symlink(tls_folder, folder + "/certs");
    }
    client::ProcessOptions options;
    options.command = {"/bin/sh",
                       "-c",
                       "exec prometheus \"$@\"",
                       "prometheus",
                       StrCat("--config.file=", folder, "/prometheus.yml"),
                       StrCat("--storage.tsdb.path=", folder, "/data"),
                       "--web.listen-address=127.0.0.1:0"};
    options.log_path = folder + "/log";
    options.parent_end_signal = SIGKILL;
    SHARDMESH_ASSIGN_OR_RETURN(client::ChildProcess process, client::ChildProcess::Start(options));
    prometheus->process_.emplace(std::move(process));
    const bool listens = Eventually([&] {
      std::smatch found;
      const std::string log = client::ReadLog(folder + "/log");
      if (!std::regex_search(log, found, std::regex("msg=\"Listening on\" address=(\\S+)"))) {
        return false;
      }
      prometheus->address_ = found[1];
      return HttpGet(prometheus->address_, "/-/ready").ok();
    });
    if (!listens) {
      return absl::DeadlineExceededError(
          StrCat("Prometheus does not listen: ", client::ReadLog(folder + "/log")));
    }
    return prometheus;
  }
  ~Prometheus() {
    if (process_.has_value()) {
      client::SendSignal(process_->id(), SIGTERM).IgnoreError();
      if (!client::WaitUntilGone(process_->id(), absl::Now() + absl::Seconds(10))) {
        client::SendSignal(process_->id(), SIGKILL).IgnoreError();
      }
      waitpid(process_->id().pid, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }

  absl::StatusOr<Json> Get(const std::string& path) const {
    SHARDMESH_ASSIGN_OR_RETURN(const std::string body, HttpGet(address_, path));
    return Json::parse(body).at("data");
  }
  // The result of an instant query.
  absl::StatusOr<Json> Query(const std::string& query) const {
    SHARDMESH_ASSIGN_OR_RETURN(const Json data, Get("/api/v1/query?query=" + UrlEncoded(query)));
    return data.at("result");
  }
  // The value of a query's only series; nullopt if there is none, or more.
  std::optional<double> Value(const std::string& query) const {
    const absl::StatusOr<Json> result = Query(query);
    EXPECT_THAT(result, IsOk());
    if (!result.ok() || result->size() != 1) return std::nullopt;
    return std::stod(result->at(0).at("value").at(1).get<std::string>());
  }
  bool IsFiring(const std::string& alert) const {
    const absl::StatusOr<Json> data = Get("/api/v1/alerts");
    EXPECT_THAT(data, IsOk());
    if (!data.ok()) return false;
    for (const Json& active : data->at("alerts")) {
      if (active.at("labels").at("alertname") == alert && active.at("state") == "firing") {
        return true;
      }
    }
    return false;
  }

 private:
  Prometheus() : folder_(MakeTestFolder("prometheus")) {}

  const std::string folder_;
  std::optional<client::ChildProcess> process_;
  std::string address_;
};

class PrometheusTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const ci = std::getenv("CI");
    if (std::system("command -v prometheus >/dev/null") != 0 &&
        (ci == nullptr || ci != std::string("true"))) {
      GTEST_SKIP() << "NOTHING WAS SCRAPED: there is no prometheus; `./dev test` installs it";
    }
  }
  void Start(const std::string& tls_folder = {}) {
    TestCluster::Options options;
    options.mesh = "tp=2";
    options.tls_folder = tls_folder;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start(options));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(prometheus_, Prometheus::Start(Targets(), tls_folder));
  }

  // As docs/metrics.md says.
  std::string Targets() const {
    const CommandResult status = cluster_->Run({"status", "--cluster=test", "--output=json"});
    EXPECT_EQ(status.exit_code, 0) << status.err;
    const std::string file = cluster_->folder() + "/status.json";
    std::ofstream(file) << status.out;
    const std::string command =
        StrCat("python3 ", SHARDMESH_SOURCE_DIR, "/deploy/prometheus/targets.py --cluster live < ",
               file, " > ", file, ".targets");
    EXPECT_EQ(std::system(command.c_str()), 0);
    return ReadFile(file + ".targets");
  }

  std::unique_ptr<TestCluster> cluster_;
  std::unique_ptr<Prometheus> prometheus_;
};

TEST_F(PrometheusTest, ScrapesAClusterEvaluatesItsRulesAndFiresWhenAWorkerIsLost) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Eventually([&] { return prometheus_->Value("sum(up)") == 3; }));
  EXPECT_EQ(prometheus_->Value("count(up{job=\"shardmesh-worker\", cluster=\"live\"})"), 2);
  EXPECT_EQ(prometheus_->Value("shardmesh_workers{state=\"ready\"}"), 2);
  EXPECT_FALSE(prometheus_->IsFiring("ShardmeshWorkerLost"));

  const std::vector<float> elements(16 * 16, 1.0f);
  ASSERT_THAT(PutFloats(cluster_->client(), "w", {16, 16}, elements,
                        PartitionSpec({SpecEntry::None(), SpecEntry::Axis("tp")})),
              IsOk());
  const client::Operand weight(client::ArraySelector::ByName("w"));
  // Steps go on until the rates show them.
  const auto step_and = [&](const std::function<bool()>& condition) {
    return Eventually([&] {
      EXPECT_THAT(cluster_->client().compute().Matmul({.lhs = weight, .rhs = weight}), IsOk());
      return condition();
    });
  };
  for (const char* query : {"job_outcome:shardmesh_steps:rate5m{outcome=\"committed\"}",
                            "job:shardmesh_step_duration_seconds:p99_rate5m",
                            "sum(rate(shardmesh_worker_kernel_flops_total[1m]))",
                            "min(instance:shardmesh_worker_store_used:ratio)"}) {
    EXPECT_TRUE(step_and([&] { return prometheus_->Value(query) > 0; }))
        << query << " is " << *prometheus_->Query(query);
  }
  EXPECT_EQ(prometheus_->Value("job:shardmesh_step_failures:ratio_rate5m"), 0);

  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  for (const char* alert : {"ShardmeshWorkerLost", "ShardmeshWorkerDown", "ShardmeshMeshNotReady",
                            "ShardmeshArraysDegraded"}) {
    EXPECT_TRUE(Eventually([&] { return prometheus_->IsFiring(alert); })) << alert;
  }
  for (const char* alert :
       {"ShardmeshCoordinatorDown", "ShardmeshCoordinatorRecovering", "ShardmeshStateNearlyFull",
        "ShardmeshStoreNearlyFull", "ShardmeshVersionsDiffer"}) {
    EXPECT_TRUE(Eventually([&] { return !prometheus_->IsFiring(alert); })) << alert;
  }
}

TEST_F(PrometheusTest, ScrapesAClusterWithTls) {
  const CertificateFolder certificates;
  ASSERT_NO_FATAL_FAILURE(Start(certificates.path()));
  ASSERT_TRUE(Eventually([&] { return prometheus_->Value("sum(up)") == 3; }));
  EXPECT_TRUE(Eventually(
      [&] { return prometheus_->Value("min(instance:shardmesh_certificate_left:ratio)") > 0.9; }));
  EXPECT_FALSE(prometheus_->IsFiring("ShardmeshCertificateExpiring"));
}

TEST_F(PrometheusTest, UnderstandsEveryQueryOfTheDashboard) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Eventually([&] { return prometheus_->Value("sum(up)") == 3; }));
  const Json dashboard =
      Json::parse(ReadFile(SHARDMESH_SOURCE_DIR "/deploy/grafana/shardmesh.json"));
  int asked = 0;
  for (const Json& panel : dashboard.at("panels")) {
    if (!panel.contains("targets")) continue;
    for (const Json& target : panel.at("targets")) {
      const std::string query = absl::StrReplaceAll(
          target.at("expr").get<std::string>(),
          {{"$namespace", ".*"}, {"$cluster", "live|.*"}, {"$__rate_interval", "1m"}});
      EXPECT_THAT(prometheus_->Query(query), IsOk()) << panel.at("title") << ": " << query;
      ++asked;
    }
  }
  EXPECT_GT(asked, 30);
}

}  // namespace
}  // namespace shardmesh::test
