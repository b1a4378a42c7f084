// The sums of second replicas below a list of arrays.
#include "client/cli/replica_wait.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "client/types/array.h"
#include "client/types/cluster_status.h"

namespace shardmesh::client {
namespace {

using ::testing::HasSubstr;

Array ArrayWith(int64_t complete, bool by_spec = false) {
  Array array;
  array.size_bytes = 1024;
  array.replicas.emplace();
  array.replicas->wanted = 2;
  array.replicas->complete = complete;
  array.replicas->by_spec = by_spec;
  array.state = ArrayState::kAvailable;
  return array;
}

std::string Printed(const std::vector<Array>& arrays) {
  ::testing::internal::CaptureStdout();
  PrintSecondReplicas(arrays);
  return ::testing::internal::GetCapturedStdout();
}

TEST(PrintSecondReplicasTest, CountsCopiesAndArraysOnOneHost) {
  EXPECT_EQ(Printed({}), "");
  Array shared = ArrayWith(2);
  shared.replicas->shares_host = true;
  EXPECT_EQ(Printed({ArrayWith(2)}), "Second replicas: 1 array has a second copy\n");
  EXPECT_EQ(Printed({ArrayWith(2), shared}),
            "Second replicas: 2 arrays have second copies; both replicas of some tiles of 1 array "
            "are on one host\n");
  EXPECT_EQ(Printed({ArrayWith(2), ArrayWith(2, /*by_spec=*/true)}),
            "Second replicas: 1 array has a second copy, 1 needs none, since the spec alone puts "
            "each tile on two hosts\n");
  EXPECT_EQ(FormatReplicas(*shared.replicas),
            "2 of 2, each tile on two workers; both replicas of some tiles are on one host");
}

TEST(ReplicaSumsTest, CountsOnlyCopiesThatAreThere) {
  ReplicaSums sums;
  EXPECT_EQ(sums.Clause(1024), "");
  sums.Add(ArrayWith(2, /*by_spec=*/true));
  EXPECT_EQ(sums.Clause(1024), "") << "the spec needs no copy";
  sums.Add(ArrayWith(1));
  EXPECT_EQ(sums.Clause(2048), "; 1 second replica is not complete");
  sums.Add(ArrayWith(2));
  EXPECT_EQ(sums.Clause(3072), ", 4.00 KiB with second replicas; 1 second replica is not complete");
  sums.Add(ArrayWith(1));
  EXPECT_THAT(sums.Clause(4096), HasSubstr("; 2 second replicas are not complete"));
  EXPECT_EQ(sums.Advice(), "");
}

TEST(ReplicaSumsTest, SaysWhichDegradedArraysComeBack) {
  ReplicaSums sums;
  Array array = ArrayWith(0);
  array.state = ArrayState::kDegraded;
  sums.Add(array);
  EXPECT_EQ(sums.Advice(), "") << "nobody has some tile";
  array.replicas->complete = 1;
  sums.Add(array);
  EXPECT_THAT(sums.Advice(),
              HasSubstr("1 degraded array has its missing tiles in second replicas: `get` reads"));
}

// An array put with --replicas 2 and the spec () has no second copy, also while a rank is lost.
TEST(ReplicaSumsTest, DoesNotCountReplicasBySpec) {
  ReplicaSums sums;
  Array array = ArrayWith(1, /*by_spec=*/true);
  array.state = ArrayState::kDegraded;
  sums.Add(array);
  EXPECT_EQ(sums.Clause(1024), "");
  EXPECT_EQ(sums.Advice(), "");
}

TEST(WaitingReplicasTest, NamesLostWorkersThatServeRanks) {
  ClusterStatus status;
  const auto add_worker = [&status](const std::string& identity, WorkerState state) {
    WorkerStatus worker;
    worker.identity = identity;
    worker.state = state;
    status.workers.push_back(worker);
  };
  add_worker("a", WorkerState::kReady);
  add_worker("b", WorkerState::kLost);
  add_worker("c", WorkerState::kLost);
  MeshStatus mesh;
  mesh.workers = {"a"};
  status.meshes = {mesh};
  EXPECT_EQ(FormatWaitingReplicas(status), "being copied") << "no copy needs the lost workers";
  mesh.workers = {"a", "b"};
  status.meshes.push_back(mesh);
  EXPECT_EQ(FormatWaitingReplicas(status), "being copied or waiting for b, which is lost");
  mesh.workers = {"c", "a"};
  status.meshes.push_back(mesh);
  EXPECT_EQ(FormatWaitingReplicas(status), "being copied or waiting for b, c, which are lost");
}

}  // namespace
}  // namespace shardmesh::client
