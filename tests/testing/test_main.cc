// main of every test program: provides a folder for the tests' files, testing::TempDir(), and
// removes it at the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  std::string folder = testing::TempDir() + "shardmesh-test-XXXXXX";
  // gtest reads this at each TempDir().
  if (mkdtemp(folder.data()) == nullptr || setenv("TEST_TMPDIR", (folder + "/").c_str(), 1) != 0) {
    std::perror(folder.c_str());
    return 1;
  }
  const int result = RUN_ALL_TESTS();
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return result;
}
