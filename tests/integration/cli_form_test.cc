// The forms of answers about a cluster, and commands that repeat themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "client/cli/local/child_process.h"
#include "status/str_cat.h"
#include "tests/integration/cli_fixture.h"
#include "tests/testing/read_file.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(ClusterCommandTest, ListsNamesAndAllColumns) {
  EXPECT_EQ(cluster_->Run({"status", "-o", "name"}).out,
            "worker-0\nworker-1\nworker-2\nworker-3\n");
  const std::string file = Path("v.npy");
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "8x4", "--out", file}), Succeeded());
  for (int i = 0; i < 2; ++i) {
    const CommandResult kept =
        cluster_->Run({"collective", "scatter", file, "--axes", "fsdp,tp", "--as", "forms.a"});
    ASSERT_EQ(kept.exit_code, 0) << kept.err;
  }
  EXPECT_EQ(cluster_->Run({"ls", "forms", "-oname"}).out, "forms.a\n");
  const std::string table = cluster_->Run({"ls", "forms"}).out;
  EXPECT_THAT(table,
              AllOf(HasSubstr("name "), HasSubstr("1 array, 128 B"), Not(HasSubstr("requested"))));
  EXPECT_THAT(cluster_->Run({"ls", "forms", "--output=wide"}).out,
              AllOf(HasSubstr("requested"), HasSubstr("where"), HasSubstr("memory")));
  const std::string rows = cluster_->Run({"ls", "forms", "--no-headers"}).out;
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 1) << rows;
  EXPECT_THAT(rows, ::testing::StartsWith("forms.a"));

  // A version by its name.
  const nlohmann::json arrays =
      nlohmann::json::parse(cluster_->Run({"ls", "forms", "-o", "json"}).out);
  const auto version = arrays[0]["version"].get<int64_t>();
  const CommandResult described = cluster_->Run({"describe", StrCat("forms.a@", version)});
  EXPECT_THAT(described.out, HasSubstr(StrCat("forms.a version ", version))) << described.err;
  const CommandResult absent = cluster_->Run({"describe", StrCat("forms.a@", version + 1000)});
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_THAT(absent.err, HasSubstr("NOT_FOUND"));
}

TEST_F(ClusterCommandTest, WatchesUntilAnInterrupt) {
  const std::string out = Path("watched");
  client::ProcessOptions options;
  options.command = {"/bin/sh",
                     "-c",
                     StrCat("export XDG_RUNTIME_DIR=\"$1\" XDG_CONFIG_HOME=\"$1\"; exec \"$0\" "
                            "--watch ls --interval 50ms --address \"$2\" > ",
                            out),
                     SHARDMESH_BINARY_DIR "/shardmesh",
                     cluster_->folder(),
                     cluster_->address()};
  options.log_path = Path("watch.log");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ChildProcess process,
                                 client::ChildProcess::Start(options));
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  const std::string three = "0 arrays, 0 B\n\n0 arrays, 0 B\n\n0 arrays, 0 B\n";
  while (ReadFile(out).find(three) == std::string::npos && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_THAT(ReadFile(out), HasSubstr(three)) << client::ReadLog(options.log_path);
  ASSERT_THAT(client::SendSignal(process.id(), SIGINT), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(process.id(), absl::Now() + absl::Seconds(5)));
  int state = 0;
  waitpid(process.id().pid, &state, 0);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << state;
}

}  // namespace
}  // namespace shardmesh::test
