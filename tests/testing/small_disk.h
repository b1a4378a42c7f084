// A disk of a few MiB that a test can fill; nothing remains after the test.
#ifndef SHARDMESH_TESTS_TESTING_SMALL_DISK_H_
#define SHARDMESH_TESTS_TESTING_SMALL_DISK_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "status/str_cat.h"

namespace shardmesh::test {

// A private tmpfs. The thread that makes it, and all threads and processes that it starts later,
// are in a private mount namespace. The disk therefore vanishes when these threads and processes
// have ended, in whatever way. Needs root.
class SmallDisk {
 public:
  explicit SmallDisk(int64_t bytes) {
    folder_ = ::testing::TempDir() + "/small_disk_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    is_mounted_ = unshare(CLONE_NEWNS) == 0 &&
                  mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                  mount("tmpfs", folder_.c_str(), "tmpfs", MS_NODEV | MS_NOSUID,
                        StrCat("size=", bytes).c_str()) == 0;
    if (!is_mounted_) error_ = strerror(errno);
  }
  ~SmallDisk() {
    if (is_mounted_) umount2(folder_.c_str(), MNT_DETACH);
    std::error_code ignored;
    std::filesystem::remove(folder_, ignored);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  // Returns the reason why the disk could not be made; empty if it exists.
  const std::string& error() const { return error_; }
  const std::string& folder() const { return folder_; }

  int64_t free_bytes() const {
    struct statvfs disk;
    return statvfs(folder_.c_str(), &disk) == 0
               ? static_cast<int64_t>(disk.f_bavail * disk.f_frsize)
               : -1;
  }
  // Fills all free space.
  void Fill() {
    const std::string path = folder_ + "/others";
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    const std::string page(4096, 'x');
    while (write(fd, page.data(), page.size()) > 0) {
    }
    EXPECT_EQ(errno, ENOSPC);
    close(fd);
    EXPECT_LT(free_bytes(), std::ssize(page));
  }
  // Frees this much of the space that Fill has filled.
  void FreeBytes(int64_t bytes) {
    const std::string path = folder_ + "/others";
    const auto size_bytes = static_cast<int64_t>(std::filesystem::file_size(path));
    std::filesystem::resize_file(path,
                                 static_cast<uintmax_t>(std::max<int64_t>(0, size_bytes - bytes)));
  }
  // Lets nobody write onto the disk any more, not even root.
  void MakeReadOnly() {
    EXPECT_EQ(mount(nullptr, folder_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  }
  // Frees the space that Fill has filled.
  void MakeRoom() { std::filesystem::remove(folder_ + "/others"); }

 private:
  std::string folder_;
  std::string error_;
  bool is_mounted_ = false;
};

// Skips the test if the disk could not be made. In CI, the test fails instead.
#define SHARDMESH_NEEDS_DISK(disk)                                                               \
  if (!(disk).error().empty()) {                                                                 \
    const char* const ci = std::getenv("CI");                                                    \
    const std::string why =                                                                      \
        "NO DISK WAS FILLED: this user cannot mount a tmpfs, run it as root: " + (disk).error(); \
    if (ci != nullptr && std::string(ci) == "true") FAIL() << why;                               \
    GTEST_SKIP() << why;                                                                         \
  }                                                                                              \
  static_assert(true)

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_SMALL_DISK_H_
