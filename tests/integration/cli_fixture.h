// Fixtures for tests of the command line, without a cluster and against a cluster.
#ifndef SHARDMESH_TESTS_INTEGRATION_CLI_FIXTURE_H_
#define SHARDMESH_TESTS_INTEGRATION_CLI_FIXTURE_H_

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/local/child_process.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {

inline constexpr char kRules[] = SHARDMESH_SOURCE_DIR "/docs/examples/bert.yaml";

inline std::string WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// Returns the text of a safetensors file with this header and `data_bytes` bytes of data. `length`
// is the header's declared length; by default the true length.
inline std::string Safetensors(const std::string& header, size_t data_bytes, int64_t length = -1) {
  const uint64_t declared = length < 0 ? header.size() : static_cast<uint64_t>(length);
  std::string text(sizeof(declared), '\0');
  std::memcpy(text.data(), &declared, sizeof(declared));
  return text + header + std::string(data_bytes, 'x');
}

// Returns a socket bound to a free port of the loopback address; `text` gets its address.
inline int BindLoopback(std::string* text) {
  const int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(socket_fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  *text = StrCat("127.0.0.1:", ntohs(address.sin_port));
  return socket_fd;
}

// A fixture for tests without a cluster of their own; tests may start clusters with `up`.
class CommandLineTest : public ::testing::Test {
 protected:
  ~CommandLineTest() override { std::filesystem::remove_all(folder_); }

  CommandResult Run(const std::vector<std::string>& arguments) const {
    return RunShardmesh(arguments, folder_);
  }

  // Returns the pid of a process in the output of `up --output json`.
  static pid_t PidOf(const nlohmann::json& cluster, const std::string& identity) {
    for (const nlohmann::json& process : cluster["processes"]) {
      if (process["identity"] == identity) {
        return process["pid"].get<pid_t>();
      }
    }
    ADD_FAILURE() << "no " << identity << " in " << cluster;
    return -1;
  }
  static void Kill(const nlohmann::json& cluster, const std::string& identity) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ProcessId id,
                                   client::IdentifyProcess(PidOf(cluster, identity)));
    ASSERT_THAT(client::SendSignal(id, SIGKILL), IsOk());
    ASSERT_TRUE(client::WaitUntilGone(id, absl::Now() + absl::Seconds(10)));
  }

  // The folder of a cluster's record, by the cluster's name.
  std::string RecordFolder(const std::string& name) const { return folder_ + "/shardmesh/" + name; }

  const std::string folder_ = MakeTestFolder("records");
};

// A fixture for tests against one cluster.
class ClusterCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start());
    checkpoint_ = cluster_->folder() + "/model.safetensors";
    ASSERT_THAT(cluster_->Run({"make-checkpoint", "--out", checkpoint_}), Succeeded());
  }

  // The cluster's arrays and definitions, as JSON text.
  std::string Contents() const {
    return cluster_->Run({"ls", "--output=json"}).out +
           cluster_->Run({"catalog", "ls", "--output=json"}).out;
  }

  struct Refused {
    std::string what;
    std::vector<std::string> arguments;
    std::string error;
  };
  // Expects that each command fails with its error, and that the commands do not change the
  // cluster.
  void ExpectRefused(const std::vector<Refused>& cases) const {
    const std::string before = Contents();
    for (const Refused& c : cases) {
      SCOPED_TRACE(c.what);
      const CommandResult result = cluster_->Run(c.arguments);
      EXPECT_EQ(result.exit_code, 1);
      EXPECT_THAT(result.err, ::testing::HasSubstr(c.error));
      EXPECT_THAT(result.out, ::testing::IsEmpty());
    }
    EXPECT_EQ(Contents(), before);
  }

  std::string Path(const std::string& name) const { return cluster_->folder() + "/" + name; }

  std::unique_ptr<TestCluster> cluster_;
  std::string checkpoint_;
};

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_INTEGRATION_CLI_FIXTURE_H_
