// Write roots: which folders a process opens and creates, and which ways out are refused.
#include "worker/save/write_root.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "process/failpoint.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

class WriteRootTest : public testing::Test {
 protected:
  WriteRootTest()
      : base_(StrCat(testing::TempDir(), "/write_root_",
                     testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(base_);
    std::filesystem::create_directories(base_ + "/root");
    std::filesystem::create_directories(base_ + "/outside");
  }
  ~WriteRootTest() override { std::filesystem::remove_all(base_); }

  WriteRoots Roots() const {
    auto roots = WriteRoots::Create({base_ + "/root"});
    EXPECT_THAT(roots, IsOk());
    return roots.value_or(WriteRoots());
  }

  const std::string base_;
};

TEST_F(WriteRootTest, CreatesMissingFoldersBelowTheRoot) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RootedFolder made,
                                 Roots().OpenFolder(base_ + "/root/a/b", true));
  EXPECT_EQ(made.new_levels, 2);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RootedFolder found,
                                 Roots().OpenFolder(base_ + "/root/a/b/", true));
  EXPECT_EQ(found.new_levels, 0);
  EXPECT_TRUE(std::filesystem::is_directory(base_ + "/root/a/b"));
}

TEST_F(WriteRootTest, SyncsTheFoldersAboveNewOnesAndLeavesNoneAfterAnError) {
  const std::string path = base_ + "/root/a/b/c";
  for (const char* const failpoint :
       {"write_root.sync=eio", "write_root.sync=eio:3", "write_root.create=enospc:2",
        "write_root.open=emfile:2", "write_root.open=eio:7"}) {
    ASSERT_THAT(ArmFailpoints(failpoint), IsOk());
    EXPECT_FALSE(Roots().OpenFolder(path, true).ok()) << failpoint;
    EXPECT_TRUE(std::filesystem::is_empty(base_ + "/root")) << failpoint;
  }
  std::filesystem::create_directories(base_ + "/root/a");
  ASSERT_THAT(ArmFailpoints("write_root.create=enospc:3"), IsOk());
  EXPECT_THAT(Roots().OpenFolder(path, true),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
  EXPECT_TRUE(std::filesystem::is_empty(base_ + "/root/a"));
  EXPECT_THAT(Roots().OpenFolder(path, true), IsOk());
  // Folders that are there already need no sync.
  ASSERT_THAT(ArmFailpoints("write_root.sync=eio"), IsOk());
  EXPECT_THAT(Roots().OpenFolder(path, true), IsOk());
  EXPECT_FALSE(Roots().OpenFolder(path + "/d", true).ok());
}

TEST_F(WriteRootTest, OpensTheRootItself) {
  EXPECT_THAT(Roots().OpenFolder(base_ + "/root", false), IsOk());
  EXPECT_THAT(Roots().OpenFolder(base_ + "/root/", true), IsOk());
}

TEST_F(WriteRootTest, DoesNotCreateAFolderUnlessAsked) {
  EXPECT_THAT(Roots().OpenFolder(base_ + "/root/a", false), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(WriteRootTest, RefusesFoldersThatAreUnderNoRoot) {
  for (const std::string& path :
       {base_ + "/outside", base_, base_ + "/rootless", std::string("/"), std::string("relative"),
        std::string(), std::string(5000, '/') + base_, base_ + "/root/" + std::string(1, '\0')}) {
    EXPECT_THAT(Roots().OpenFolder(path, true),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField))
        << path;
  }
  EXPECT_THAT(Roots().OpenFolder(base_ + "/outside", true).status().message(),
              AllOf(HasSubstr("write roots"), HasSubstr(base_ + "/root")));
  EXPECT_THAT(WriteRoots().OpenFolder(base_, true).status().message(),
              HasSubstr("--write-root FOLDER, above the folder to save into (a cluster that "
                        "`shardmesh up` started: `shardmesh down`, then `shardmesh up --write-root "
                        "FOLDER` with the other flags as before)"));
}

TEST_F(WriteRootTest, RefusesPathsAndLinksThatLeadOutOfTheRoot) {
  std::filesystem::create_symlink(base_ + "/outside", base_ + "/root/link");
  std::filesystem::create_symlink("../outside", base_ + "/root/up");
  for (const char* const path : {"/root/link", "/root/up", "/root/link/x", "/root/up/x",
                                 "/root/../outside", "/root/a/../../outside"}) {
    EXPECT_THAT(Roots().OpenFolder(base_ + path, true),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField))
        << path;
    EXPECT_FALSE(Roots().OpenFolder(base_ + path, false).ok()) << path;
  }
  EXPECT_TRUE(std::filesystem::is_empty(base_ + "/outside"));
}

TEST_F(WriteRootTest, FollowsLinksThatStayWithinTheRoot) {
  std::filesystem::create_directories(base_ + "/root/real");
  std::filesystem::create_symlink("real", base_ + "/root/link");
  EXPECT_THAT(Roots().OpenFolder(base_ + "/root/link/x", true), IsOk());
  EXPECT_TRUE(std::filesystem::is_directory(base_ + "/root/real/x"));
}

TEST_F(WriteRootTest, KnowsARootByItsLinkAndByItsRealPath) {
  std::filesystem::create_symlink("root", base_ + "/link");
  const std::string real = std::filesystem::canonical(base_ + "/root").string();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const WriteRoots by_link, WriteRoots::Create({base_ + "/link"}));
  EXPECT_THAT(by_link.OpenFolder(base_ + "/link/a", true), IsOk());
  EXPECT_THAT(by_link.OpenFolder(real + "/a", false), IsOk());
  EXPECT_THAT(by_link.OpenFolder(base_ + "/outside", false),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST_F(WriteRootTest, SaysThatAnAbsoluteLinkIsNotFollowedEvenWithinTheRoot) {
  std::filesystem::create_directories(base_ + "/root/real");
  std::filesystem::create_symlink(base_ + "/root/real", base_ + "/root/link");
  EXPECT_THAT(Roots().OpenFolder(base_ + "/root/link", false).status().message(),
              HasSubstr("is not followed"));
}

TEST_F(WriteRootTest, RefusesRootsThatAreNoFolders) {
  for (const std::string& path : {base_ + "/missing", std::string("tmp"), std::string()}) {
    EXPECT_THAT(WriteRoots::Create({path}),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField))
        << path;
  }
}

TEST_F(WriteRootTest, OpensFilesOnlyBeneathTheFolder) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RootedFolder folder,
                                 Roots().OpenFolder(base_ + "/root", false));
  EXPECT_THAT(OpenBeneath(folder.descriptor, "root", "new", O_RDWR | O_CREAT, 0644), IsOk());
  EXPECT_THAT(OpenBeneath(folder.descriptor, "root", "../outside/new", O_RDWR | O_CREAT, 0644),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_TRUE(std::filesystem::is_empty(base_ + "/outside"));
}

}  // namespace
}  // namespace shardmesh::worker
