// What Prometheus gets from the processes of a cluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "sharding/str_cat.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

// Runs a command of bash; what it printed, and last its exit status in brackets.
std::string Bash(const std::string& command) {
  FILE* const pipe = popen(StrCat("bash -o pipefail -c '", command, "' 2>&1").c_str(), "r");
  std::string printed;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    printed.push_back(static_cast<char>(c));
  }
  return StrCat(printed, "[", pclose(pipe), "]");
}

std::string Scrape(const std::string& address) {
  const size_t colon = address.rfind(':');
  return StrCat("exec 3<>/dev/tcp/", address.substr(0, colon), "/", address.substr(colon + 1),
                R"( && printf "GET /metrics HTTP/1.0\r\n\r\n" >&3 && sed "1,/^\r$/d" <&3)");
}

TEST(MetricsTest, PromtoolFindsNothingToObjectTo) {
  const char* const ci = std::getenv("CI");
  if (Bash("command -v promtool >/dev/null") != "[0]" &&
      (ci == nullptr || ci != std::string("true"))) {
    GTEST_SKIP() << "THE METRICS WERE NOT CHECKED: there is no promtool; `./dev test` installs it";
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start());
  const std::vector<std::string> addresses = cluster->metrics_addresses();
  EXPECT_EQ(addresses.size(), 5);
  for (const std::string& address : addresses) {
    EXPECT_THAT(Bash(Scrape(address)), ::testing::HasSubstr("shardmesh_build_info{")) << address;
    EXPECT_EQ(Bash(Scrape(address) + " | promtool check metrics"), "[0]") << address;
  }
}

}  // namespace
}  // namespace shardmesh::test
