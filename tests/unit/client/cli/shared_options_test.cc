// Options that several commands have: the axes of a spec that a user wrote.
#include "client/cli/shared_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client/cli/command_line.h"
#include "client/cli/grammar.h"
#include "sharding/mesh.h"
#include "sharding/spec.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(CheckAxesOfSpecTest, RefusesAMistypedAxisAndSuggestsTheNearest) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Parse("fsdp=2,tp=2"));
  for (const char* const good : {"fsdp,tp", "-,(fsdp,tp)", "-", "tp"}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const PartitionSpec spec, ParseSpec(good));
    EXPECT_THAT(CheckAxesOfSpec("--to", spec, mesh), IsOk()) << good;
  }
  for (const char* const bad : {"-,fdsp", "(tp,fdsp)"}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const PartitionSpec spec, ParseSpec(bad));
    const absl::Status refused = CheckAxesOfSpec("--to", spec, mesh);
    EXPECT_EQ(ExitCodeOf(refused), kExitWrongUse) << bad;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("--to: the mesh fsdp=2,tp=2 has no axis \"fdsp\""),
                      EndsWith("did you mean \"fsdp\"?"), Not(HasSubstr("--exact"))));
    EXPECT_THAT(std::string(CheckAxesOfSpec("--to", spec, mesh, "--exact").message()),
                EndsWith("? With --exact such an axis is dropped"));
  }
}

}  // namespace
}  // namespace shardmesh::client
