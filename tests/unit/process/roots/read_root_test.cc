// Files that callers name: opened below the read roots, and nowhere else.
#include "process/roots/read_root.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "process/failpoint.h"
#include "status/detail.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::CarriesFacts;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

// A folder with a root `root`, and files within and beside it.
class ReadRootsTest : public testing::Test {
 protected:
  ReadRootsTest() {
    folder_ = ::testing::TempDir() + "read_roots_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    folder_ = fs::canonical(folder_).string();
    root_ = folder_ + "/root";
    fs::create_directories(root_ + "/sub");
    fs::create_directories(folder_ + "/rootless");
    Write(root_ + "/a", "inside");
    Write(root_ + "/sub/b", "below");
    Write(folder_ + "/secret", "outside");
    Write(folder_ + "/rootless/a", "beside");
  }
  ~ReadRootsTest() override { fs::remove_all(folder_); }

  static void Write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  ReadRoots Roots(const std::vector<std::string>& folders) {
    absl::StatusOr<ReadRoots> roots = ReadRoots::Open(folders);
    EXPECT_THAT(roots, IsOk());
    return *std::move(roots);
  }
  ReadRoots Root() { return Roots({root_}); }
  // The bytes of the file, or the error.
  static absl::StatusOr<std::string> Read(const ReadRoots& roots, const std::string& path) {
    absl::StatusOr<RootedFile> file = roots.OpenFile(path);
    if (!file.ok()) return file.status();
    std::string bytes(static_cast<size_t>(file->state.size_bytes), '\0');
    EXPECT_EQ(pread(file->descriptor.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    return bytes;
  }

  std::string folder_;
  std::string root_;
};

TEST_F(ReadRootsTest, OpensFilesBelowARoot) {
  const ReadRoots roots = Root();
  EXPECT_EQ(roots.text(), root_);
  for (const std::string& path :
       {root_ + "/a", root_ + "//a", root_ + "/./a", root_ + "/sub/../a"}) {
    EXPECT_THAT(Read(roots, path), IsOk()) << path;
    EXPECT_EQ(Read(roots, path).value_or(""), "inside") << path;
  }
  EXPECT_EQ(Read(roots, root_ + "/sub/b").value_or(""), "below");
}

TEST_F(ReadRootsTest, ReadsARootThatWasRemovedAndMadeAgain) {
  const ReadRoots roots = Root();
  fs::remove_all(root_);
  EXPECT_THAT(Read(roots, root_ + "/a"), StatusIs(absl::StatusCode::kNotFound, Reason::kBadFile));
  fs::create_directories(root_);
  Write(root_ + "/a", "again");
  EXPECT_EQ(Read(roots, root_ + "/a").value_or(""), "again");
}

TEST_F(ReadRootsTest, RefusesEveryFileWithoutARoot) {
  const absl::Status refused = ReadRoots().OpenFile(root_ + "/a").status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoReadRoot));
  EXPECT_THAT(ToStd(refused.message()), HasSubstr("was started without --read-root"));
}

TEST_F(ReadRootsTest, SaysWhichRootsThereAreIfNoneIsAboveTheFile) {
  const ReadRoots roots = Roots({root_, root_ + "/sub"});
  for (const std::string& path :
       {folder_ + "/secret", folder_ + "/rootless/a", folder_, std::string("/etc/passwd")}) {
    const absl::Status refused = roots.OpenFile(path).status();
    EXPECT_THAT(refused, CarriesFacts(Reason::kNoReadRoot,
                                      {{fact::kFile, path},
                                       {fact::kHave, StrCat(root_, ",", root_, "/sub")}}))
        << path;
    EXPECT_THAT(ToStd(refused.message()), HasSubstr("--read-root")) << path;
  }
}

TEST_F(ReadRootsTest, FollowsLinksWithinARootAndNoneOutOfIt) {
  fs::create_symlink("a", root_ + "/near");
  fs::create_symlink("../sub/b", root_ + "/sub/round");
  fs::create_symlink("../secret", root_ + "/out");
  fs::create_symlink(folder_ + "/secret", root_ + "/absolute");
  fs::create_symlink(root_ + "/a", root_ + "/absolute_within");
  fs::create_symlink("..", root_ + "/up");
  const ReadRoots roots = Root();
  EXPECT_EQ(Read(roots, root_ + "/near").value_or(""), "inside");
  EXPECT_EQ(Read(roots, root_ + "/sub/round").value_or(""), "below");
  // The kernel resolves an absolute link from `/` on, so even one that leads back is out.
  for (const std::string& path :
       {root_ + "/out", root_ + "/absolute", root_ + "/absolute_within", root_ + "/up/secret",
        root_ + "/../secret", root_ + "/sub/../../secret", root_ + "/.."}) {
    const absl::Status refused = roots.OpenFile(path).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoReadRoot))
        << path;
    EXPECT_THAT(ToStd(refused.message()), HasSubstr("leads out of the read root " + root_)) << path;
  }
}

TEST_F(ReadRootsTest, ALinkOutOfAnInnerRootMayStayInTheOuterOne) {
  fs::create_symlink("../a", root_ + "/sub/to_a");
  EXPECT_EQ(Read(Roots({root_ + "/sub", root_}), root_ + "/sub/to_a").value_or(""), "inside");
  EXPECT_THAT(Read(Roots({root_ + "/sub"}), root_ + "/sub/to_a"),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoReadRoot));
}

TEST_F(ReadRootsTest, RefusesLinksOfProcAndLoops) {
  fs::create_symlink("loop", root_ + "/loop");
  EXPECT_THAT(Root().OpenFile(root_ + "/loop"),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoReadRoot));
  const int open_file = open((folder_ + "/secret").c_str(), O_RDONLY | O_CLOEXEC);
  const ReadRoots proc = Roots({"/proc"});
  EXPECT_THAT(proc.OpenFile(StrCat("/proc/", getpid(), "/fd/", open_file)),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoReadRoot));
  EXPECT_THAT(proc.OpenFile(StrCat("/proc/", getpid(), "/root", folder_, "/secret")),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoReadRoot));
  close(open_file);
}

TEST_F(ReadRootsTest, OpensRegularFilesOnlyAndNeverWaits) {
  ASSERT_EQ(mkfifo((root_ + "/pipe").c_str(), 0600), 0);
  const ReadRoots roots = Root();
  for (const std::string& path : {root_ + "/pipe", root_ + "/sub", root_ + "/sub/"}) {
    const absl::Status refused = roots.OpenFile(path).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile)) << path;
    EXPECT_THAT(ToStd(refused.message()), HasSubstr("name a regular file")) << path;
  }
  EXPECT_THAT(Roots({"/dev"}).OpenFile("/dev/null"),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
}

TEST_F(ReadRootsTest, RefusesPathsThatAreNoneAndNamesMissingFiles) {
  const ReadRoots roots = Root();
  for (const std::string& path :
       {std::string(), std::string("a"), std::string("root/a"), root_ + std::string("/a\0b", 4),
        root_ + "/" + std::string(300, 'x'), root_ + "/" + std::string(5000, 'x')}) {
    EXPECT_THAT(roots.OpenFile(path),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
  }
  for (const std::string& path : {root_ + "/none", root_ + "/none/a", root_ + "/a/b"}) {
    const absl::Status missing = roots.OpenFile(path).status();
    EXPECT_THAT(missing, StatusIs(absl::StatusCode::kNotFound, Reason::kBadFile)) << path;
    EXPECT_EQ(FactOf(missing, fact::kFile), path);
  }
}

TEST_F(ReadRootsTest, SaysWhoMayNotReadAFile) {
  ASSERT_THAT(ArmFailpoints("read_root.open=emfile"), IsOk());
  EXPECT_THAT(Root().OpenFile(root_ + "/a"), StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_THAT(ArmFailpoints("read_root.open=eio"), IsOk());
  EXPECT_THAT(Root().OpenFile(root_ + "/a"), StatusIs(absl::StatusCode::kDataLoss));
  ASSERT_THAT(ArmFailpoints(""), IsOk());
  const ReadRoots roots = Root();
  ASSERT_EQ(chmod((root_ + "/a").c_str(), 0), 0);
  // Root may read every file, so the test becomes another user for a moment.
  const uid_t user = geteuid();
  if (user == 0) {
    ASSERT_EQ(seteuid(65'534), 0);
  }
  const absl::Status refused = roots.OpenFile(root_ + "/a").status();
  const std::string uid = StrCat("uid ", geteuid());
  ASSERT_EQ(seteuid(user), 0);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kPermissionDenied, Reason::kBadFile));
  EXPECT_THAT(ToStd(refused.message()), HasSubstr(uid));
}

TEST_F(ReadRootsTest, ARootMayBeRelativeOrALinkAndAllItsPathsCount) {
  fs::create_symlink(root_, folder_ + "/link");
  const ReadRoots roots = Roots({folder_ + "/link/", folder_ + "/link"});
  EXPECT_EQ(Read(roots, folder_ + "/link/a").value_or(""), "inside");
  EXPECT_EQ(Read(roots, root_ + "/a").value_or(""), "inside");
  const std::string here = fs::current_path().string();
  fs::current_path(folder_);
  const ReadRoots relative = Roots({"root"});
  fs::current_path(here);
  EXPECT_EQ(relative.text(), root_);
  EXPECT_EQ(Read(relative, root_ + "/a").value_or(""), "inside");
  EXPECT_EQ(Read(Roots({"/"}), root_ + "/a").value_or(""), "inside");
}

TEST_F(ReadRootsTest, ARootIsTheFolderThatIsThereNow) {
  const ReadRoots roots = Root();
  fs::rename(root_, folder_ + "/moved");
  fs::create_directories(root_);
  Write(root_ + "/a", "another");
  EXPECT_EQ(Read(roots, root_ + "/a").value_or(""), "another");
}

TEST_F(ReadRootsTest, ARootMustBeAFolder) {
  EXPECT_THAT(ReadRoots::Open({root_ + "/none"}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_FALSE(ReadRoots::Open({root_ + "/a"}).ok());
  EXPECT_FALSE(ReadRoots::Open({std::string()}).ok());
  EXPECT_TRUE(ReadRoots::Open({})->empty());
}

TEST_F(ReadRootsTest, TheStateOfAFileShowsItsChanges) {
  absl::StatusOr<RootedFile> file = Root().OpenFile(root_ + "/a");
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ(file->state.size_bytes, 6);
  EXPECT_EQ(*StateOf(file->descriptor, "a"), file->state);
  usleep(20'000);  // later than the tick of the file system's clock
  Write(root_ + "/a", "INSIDE");
  EXPECT_FALSE(*StateOf(file->descriptor, "a") == file->state);
}

}  // namespace
}  // namespace shardmesh
