// Named places that fail on demand.
#include "process/failpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

namespace shardmesh {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Property;

absl::Status Commit() {
  SHARDMESH_FAILPOINT("test.commit");
  return absl::OkStatus();
}

void Pass() { SHARDMESH_PASSES("test.pass"); }

int Open() { return SHARDMESH_FAILS("test.open") ? -1 : 7; }

TEST(FailpointTest, FailsTheHitThatWasAskedForAndNoOther) {
  ASSERT_TRUE(ArmFailpoints("test.commit=enospc:2").ok());
  EXPECT_TRUE(Commit().ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Commit()));
  EXPECT_TRUE(Commit().ok());
}

TEST(FailpointTest, SetsErrnoForSystemCalls) {
  EXPECT_EQ(Open(), 7);
  ASSERT_TRUE(ArmFailpoints("test.commit=delay:100,test.open=eio").ok());
  EXPECT_EQ(Open(), -1);
  EXPECT_EQ(errno, EIO);
  ASSERT_TRUE(ArmFailpoints("test.open=emfile").ok());
  EXPECT_EQ(Open(), -1);
  EXPECT_EQ(errno, EMFILE);
  EXPECT_EQ(Open(), 7);
}

TEST(FailpointTest, IsListedThoughItWasNeverPassed) {
  EXPECT_THAT(ListFailpoints(), Contains(Property(&Failpoint::name, "test.open")));
  EXPECT_THAT(ListFailpoints(), Contains(Property(&Failpoint::name, "test.never")));
}

TEST(FailpointTest, APlaceThatCannotFailTakesNoError) {
  EXPECT_THAT(ListFailpoints(), Contains(AllOf(Property(&Failpoint::name, "test.pass"),
                                               Property(&Failpoint::fails, false))));
  EXPECT_TRUE(absl::IsInvalidArgument(ArmFailpoints("test.pass=eio")));
  EXPECT_FALSE(IsArmed("test.pass"));
  ASSERT_TRUE(ArmFailpoints("test.pass=delay").ok());
  EXPECT_TRUE(IsArmed("test.p"));
  Pass();
  EXPECT_FALSE(IsArmed("test.p"));
}

absl::Status Never() {
  SHARDMESH_FAILPOINT("test.never");
  return absl::OkStatus();
}

TEST(FailpointTest, CrashEndsTheProcess) {
  EXPECT_EXIT(
      {
        ArmFailpoints("test.never=crash").IgnoreError();
        Never().IgnoreError();
      },
      ::testing::ExitedWithCode(kFailpointExitCode), "failpoint test.never hit");
}

TEST(FailpointTest, RefusesWhatItDoesNotKnow) {
  for (const char* text : {"test.open", "test.open=fly", "test.open=eio:0", "test.open=eio:x",
                           "test.opne=eio", "=eio"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ArmFailpoints(text))) << text;
  }
}

}  // namespace
}  // namespace shardmesh
