// The command that starts one more worker of a cluster.
#include <gtest/gtest.h>

#include "client/cli/local/cluster_record.h"
#include "client/cli/local/local_cluster.h"

namespace shardmesh::client {
namespace {

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

}  // namespace
}  // namespace shardmesh::client
