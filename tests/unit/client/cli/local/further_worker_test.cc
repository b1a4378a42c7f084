// The command that starts one more worker of a cluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client/cli/local/cluster_record.h"
#include "client/cli/local/local_cluster.h"

namespace shardmesh::client {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(FurtherWorkerCommandTest, HasTheFlagsOfTheOthersAndAFreeIdentity) {
  ClusterRecord record;
  record.address = "127.0.0.1:43539";
  record.workers = {"worker-0", "worker-1"};
  EXPECT_EQ(FurtherWorkerCommand(record, {}),
            "shardmesh-worker --identity=worker-2 --coordinator=127.0.0.1:43539 "
            "--listen=127.0.0.1:0");
  record.data_folder = "/data";
  record.worker_flags = {"--memory=96MiB", "--read-root=/models"};
  EXPECT_EQ(FurtherWorkerCommand(record, {"worker-2", "worker-4"}),
            "shardmesh-worker --identity=worker-3 --coordinator=127.0.0.1:43539 "
            "--listen=127.0.0.1:0 --data-dir=/data/worker-3 --memory=96MiB --read-root=/models");
  record.tls_folder = "/certificates";
  EXPECT_NE(FurtherWorkerCommand(record, {}).find(" --tls-cert=/certificates/worker-2"),
            std::string::npos);
}

TEST(FurtherWorkerCommandTest, AShellReadsEachWordAsItIs) {
  ClusterRecord record;
  record.address = "127.0.0.1:43539";
  record.data_folder = "/my data";
  record.tls_folder = "/certificates of $USER";
  record.worker_flags = {"--read-root=/it's here", "--label=a;b", "--memory=96MiB"};
  const std::string command = FurtherWorkerCommand(record, {});
  EXPECT_THAT(command, HasSubstr(" '--data-dir=/my data/worker-0' "));
  EXPECT_THAT(command, HasSubstr(" '--tls-cert=/certificates of $USER/worker-0"));
  EXPECT_THAT(command, HasSubstr(" '--tls-key=/certificates of $USER/worker-0"));
  EXPECT_THAT(command, HasSubstr(" '--tls-ca=/certificates of $USER/"));
  EXPECT_THAT(command, EndsWith(R"( '--read-root=/it'\''s here' '--label=a;b' --memory=96MiB)"));
}

}  // namespace
}  // namespace shardmesh::client
