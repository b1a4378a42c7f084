// Files that appear complete or not at all.
#include "process/file.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::StatusIs;

TEST(AtomicFileWriterTest, RefusesAnEmptyPathAndLeavesNothing) {
  const absl::Status status = AtomicFileWriter::Create("").status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
  EXPECT_EQ(status.message(), "the path of the file to write is empty; name a file");
  const std::string of_this_process = StrCat(".", getpid(), ".");
  for (const auto& entry : std::filesystem::directory_iterator(".")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(of_this_process)) << entry.path();
  }
}

}  // namespace
}  // namespace shardmesh
