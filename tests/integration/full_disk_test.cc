// A coordinator whose disk is full: what makes room goes on, and the coordinator starts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "client/mesh_client.h"
#include "status/str_cat.h"
#include "tests/testing/small_disk.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::testing::HasSubstr;

TEST(FullDiskTest, NamesAreDeletedAndTheCoordinatorStarts) {
  SmallDisk disk(48 << 20);
  SHARDMESH_NEEDS_DISK(disk);
  const std::string rules = MakeTestFolder("rules") + "/rules.yaml";
  {
    std::ofstream file(rules);
    file << "rules:\n";
    for (int i = 0; i < 3000; ++i) {
      file << "- {pattern: 'layers[.]" << i << "[.]attention[.]weight', spec: [tp]}\n";
    }
  }
  const std::string folder = disk.folder() + "/coordinator";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto cluster,
      TestCluster::Start(
          {.mesh = "tp=2", .coordinator_flags = {"--data-dir=" + folder}, .worker_flags = {}}));
  constexpr int kArrays = 6;
  for (int i = 0; i < kArrays; ++i) {
    ASSERT_THAT(PutFloats(cluster->client(), StrCat("d.", i), {4}, {1, 2, 3, 4},
                          PartitionSpec({SpecEntry::Axis("tp")})),
                IsOk());
  }
  const std::string reserve = folder + "/reserve";
  const auto whole = std::filesystem::file_size(reserve);
  ASSERT_NO_FATAL_FAILURE(disk.Fill());

  int accepted = 0;
  int refused = 0;
  while (refused < 3 && accepted < 20) {
    const CommandResult put =
        cluster->Run({"catalog", "put", "rules", StrCat("r", accepted + refused), rules});
    if (put.exit_code == 0) {
      EXPECT_EQ(refused, 0) << "one was refused and a later one was not";
      ++accepted;
    } else {
      EXPECT_THAT(put.err, HasSubstr("STORE_FULL"));
      ++refused;
    }
  }
  EXPECT_LT(accepted, 5) << "others filled the disk";
  EXPECT_EQ(std::filesystem::file_size(reserve), whole);

  for (int i = 0; i < kArrays; ++i) {
    ASSERT_THAT(cluster->Kill("coordinator"), IsOk());
    ASSERT_THAT(cluster->Restart("coordinator"), IsOk()) << i;
    ASSERT_THAT(cluster->WaitUntilHealthy(), IsOk()) << i;
    const CommandResult removed = cluster->Run({"rm", StrCat("d.", i)});
    EXPECT_EQ(removed.exit_code, 0) << removed.err;
    ASSERT_NO_FATAL_FAILURE(disk.Fill());
  }
  disk.MakeRoom();
  const CommandResult put = cluster->Run({"catalog", "put", "rules", "again", rules});
  EXPECT_EQ(put.exit_code, 0) << put.err;
}

}  // namespace
}  // namespace shardmesh::test
