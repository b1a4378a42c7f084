// The workers of second replicas.
#include "server/steps/auxiliary_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "sharding/mesh.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> WorkersFor(const std::vector<std::string>& hosts) {
  std::vector<std::string> identities;
  for (size_t i = 0; i < hosts.size(); ++i) identities.push_back("w" + std::to_string(i));
  return ReplicaWorkers(identities, hosts);
}

int SharedHosts(const std::vector<std::string>& hosts) {
  std::vector<std::string> identities;
  for (size_t i = 0; i < hosts.size(); ++i) identities.push_back("w" + std::to_string(i));
  const std::vector<std::string> workers = ReplicaWorkers(identities, hosts);
  EXPECT_TRUE(AreDisplaced(identities, workers)) << ::testing::PrintToString(workers);
  int shared = 0;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto copy = static_cast<size_t>(std::stoi(workers[rank].substr(1)));
    shared += hosts[rank] == hosts[copy] ? 1 : 0;
  }
  return shared;
}

TEST(ReplicaMeshTest, ARankHasItsSecondReplicaOnAnotherHostWhereThatIsPossible) {
  EXPECT_THAT(WorkersFor({"a", "a", "a"}), ElementsAre("w1", "w2", "w0"));
  EXPECT_THAT(WorkersFor({"a", "b"}), ElementsAre("w1", "w0"));
  EXPECT_EQ(SharedHosts({"a", "a", "b", "b"}), 0);
  EXPECT_EQ(SharedHosts({"a", "b", "a", "b"}), 0);
  EXPECT_EQ(SharedHosts({"c", "a", "b", "a"}), 0);
  EXPECT_EQ(SharedHosts({"a", "b", "b", "c", "c", "c"}), 0);
  EXPECT_EQ(SharedHosts({"a", "b", "c", "d", "e"}), 0);
  // A host with more than half of the workers keeps as few as it must.
  EXPECT_EQ(SharedHosts({"a", "a", "a", "b"}), 2);
  EXPECT_EQ(SharedHosts({"b", "a", "a", "c", "a"}), 1);
}

TEST(ReplicaMeshTest, OnlyTheSameWorkersAtOtherRanksAreDisplaced) {
  const std::vector<std::string> workers = {"w0", "w1", "w2"};
  const auto are_displaced = [&](std::vector<std::string> others) {
    return AreDisplaced(workers, others);
  };
  EXPECT_TRUE(are_displaced({"w2", "w0", "w1"}));
  EXPECT_FALSE(are_displaced({"w0", "w2", "w1"}));
  EXPECT_FALSE(are_displaced({"w1", "w2", "w3"}));
  EXPECT_FALSE(are_displaced({"w1", "w0"}));
  EXPECT_FALSE(are_displaced({}));
}

TEST(ReplicaMeshTest, ASpecReplicatesOnHostsAndNotOnlyOnWorkers) {
  const Mesh mesh = *Mesh::Parse("dp=2,tp=2");
  const auto is_replicated = [&](const PartitionSpec& spec, const std::vector<std::string>& hosts) {
    return IsReplicatedBySpec(*Tiling::Create(mesh, spec, {8}), hosts);
  };
  const PartitionSpec over_dp({SpecEntry::Axis("dp")});
  const PartitionSpec over_tp({SpecEntry::Axis("tp")});
  const PartitionSpec over_both({SpecEntry::Axes({"dp", "tp"})});
  const std::vector<std::string> by_dp = {"a", "a", "b", "b"};
  EXPECT_FALSE(is_replicated(over_dp, by_dp)) << "the two holders of each tile share a host";
  EXPECT_TRUE(is_replicated(over_tp, by_dp));
  EXPECT_TRUE(is_replicated(PartitionSpec({SpecEntry()}), by_dp));
  EXPECT_FALSE(is_replicated(over_both, by_dp));
  EXPECT_TRUE(is_replicated(over_dp, {"a", "a", "a", "a"})) << "two workers are all there is";
  EXPECT_FALSE(is_replicated(over_dp, {"a", "a", "b", "c"}));
}

TEST(ReplicaMeshTest, TheNameOfTheMeshIsFoundInThatOfItsAuxiliaryMesh) {
  Definition mesh;
  mesh.name = "train.replicas-1";
  mesh.uid = "0123456789abcdef";
  EXPECT_EQ(ReplicaMeshName(mesh), "train.replicas-1.replicas-0123456789ab");
  EXPECT_EQ(ReplicatedMeshOf(ReplicaMeshName(mesh)), "train.replicas-1");
  for (const char* other : {"", "train", "train.replicas-1", "a.replicas-0123456789AB",
                            "a.replicas-0123456789abc", "a.resize-0123456789ab"}) {
    EXPECT_EQ(ReplicatedMeshOf(other), "") << other;
  }
}

}  // namespace
}  // namespace shardmesh::server
