// The names in a folder, and errors before and midway.
#include "process/folders/folder_entries.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "process/failpoint.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;

TEST(FolderEntriesTest, ListsAllNamesSortedAndNeverAPartOfThem) {
  const std::string folder = ::testing::TempDir() + "folder_entries";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder + "/b");
  std::ofstream(folder + "/c") << "x";
  std::ofstream(folder + "/.a") << "x";
  const FileDescriptor opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int round = 0; round < 2; ++round) {
    EXPECT_THAT(ListFolder(folder), IsOkAndHolds(ElementsAre(".a", "b", "c")));
    EXPECT_THAT(ListFolder(opened, folder), IsOkAndHolds(ElementsAre(".a", "b", "c")));
  }
  for (const char* const failpoint :
       {"folder.read=eio", "folder.read=eio:2", "folder.read=eio:4"}) {
    ASSERT_THAT(ArmFailpoints(failpoint), IsOk());
    EXPECT_THAT(ListFolder(folder), StatusIs(absl::StatusCode::kDataLoss)) << failpoint;
  }
  EXPECT_THAT(ListFolder(folder + "/none"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(ListFolder(folder + "/c"), StatusIs(absl::StatusCode::kFailedPrecondition));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace shardmesh
