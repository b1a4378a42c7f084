// The flags of the coordinator and the worker that other tests have no use for: with each of them
// a cluster serves, and each refuses a value that is none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::testing::HasSubstr;

using Flags = std::vector<std::pair<std::string, std::string>>;

// Flags of the coordinator with values other than the default.
const Flags& CoordinatorFlags() {
  static const auto* const flags = new Flags{
      {"--forget-lost-after", "5m"},
      {"--hello-timeout", "9s"},
      {"--history-bytes", "32MiB"},
      {"--history-time", "30m"},
      {"--inventory-timeout", "4m"},
      {"--max-connection-calls", "512"},
      {"--max-inventory-tiles", "1000000"},
      {"--max-live-work", "5000"},
      {"--max-put-streams-per-caller", "32"},
      {"--max-sessions", "5000"},
      {"--max-sessions-per-caller", "500"},
      {"--max-work-per-session", "500"},
      {"--min-sharding-size", "1024"},
      {"--plan-bytes", "33554432"},
      {"--request-answer-bytes", "33554432"},
      {"--request-answer-bytes-per-caller", "4194304"},
      {"--step-answer-bytes", "33554432"},
      {"--step-answer-bytes-per-caller", "8388608"},
      {"--move-memory", "32MiB"},
  };
  return *flags;
}
const Flags& WorkerFlags() {
  static const auto* const flags = new Flags{
      {"--cache-bytes", "8MiB"}, {"--quarantine-age", "24h"}, {"--quarantine-memory", "1MiB"},
      {"--read-root", "/"},      {"--scrub-interval", "1s"},  {"--scrub-rate", "1MiB"},
      {"--write-root", "/tmp"}};
  return *flags;
}

std::vector<std::string> Joined(const Flags& flags) {
  std::vector<std::string> joined;
  for (const auto& [flag, value] : flags) joined.push_back(StrCat(flag, "=", value));
  return joined;
}

TEST(ProgramFlagsTest, AClusterServesWithAllOfThem) {
  TestCluster::Options options;
  options.mesh = "tp=2";
  options.durable = true;
  options.coordinator_flags = Joined(CoordinatorFlags());
  options.worker_flags = Joined(WorkerFlags());
  options.worker_flags.emplace_back("--no-binding");
  options.worker_flags.emplace_back("--frame-checksums");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start(options));
  const std::string path = StrCat(cluster->folder(), "/x.npy");
  ASSERT_THAT(cluster->Run({"make-tensor", "--shape", "4x4", "--out", path}), Succeeded());
  const CommandResult put = cluster->Run({"put", path, "--as", "x", "--spec", "tp,-"});
  EXPECT_EQ(put.exit_code, 0) << put.err;
}

TEST(ProgramFlagsTest, EachRefusesAValueThatIsNone) {
  for (const auto& [program, flags] : {std::pair("shardmesh-coordinator", CoordinatorFlags()),
                                       std::pair("shardmesh-worker", WorkerFlags())}) {
    for (const auto& [flag, value] : flags) {
      const CommandResult result = RunProgram(program, {StrCat(flag, "=none")}, testing::TempDir());
      EXPECT_EQ(result.exit_code, 2) << flag;
      EXPECT_THAT(result.err, HasSubstr(StrCat(flag, ": \"none\""))) << program;
    }
  }
}

TEST(ProgramFlagsTest, ACheckOfAFolderIsPrintedAsJson) {
  TestCluster::Options options;
  options.mesh = "tp=1";
  options.durable = true;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start(options));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string ended, cluster->Terminate("coordinator"));
  const CommandResult result =
      RunProgram("shardmesh-coordinator",
                 {StrCat("--check=", cluster->folder(), "/data/coordinator"), "--check-json"},
                 cluster->folder());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(nlohmann::json::parse(result.out, nullptr, false).is_object()) << result.out;
}

}  // namespace
}  // namespace shardmesh::test
