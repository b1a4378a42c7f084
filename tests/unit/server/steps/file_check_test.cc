// FileCheck: the answers of all workers, and the one error that they make.
#include "server/steps/file_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/steps/keeping_fill.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

absl::Status NoRoot(std::string_view path) {
  return WithReason(absl::FailedPreconditionError(StrCat(path, " is below no read root")),
                    Reason::kNoReadRoot, {{fact::kFile, path}, {fact::kHave, "/srv"}});
}
absl::Status Changed(std::string_view path) {
  return WithReason(absl::FailedPreconditionError(StrCat(path, " has changed")),
                    Reason::kFileChanged,
                    {{fact::kFile, path}, {fact::kHave, "9"}, {fact::kNeed, "8"}});
}
absl::Status Lost(std::string_view identity) {
  return WithRetryDelay(WithReason(absl::UnavailableError("it is not attached"),
                                   Reason::kWorkerLost, {{fact::kIdentity, identity}}),
                        absl::Seconds(1));
}
absl::Status TooOld() {
  return WithReason(absl::FailedPreconditionError("it runs an older build"), Reason::kNotAvailable,
                    {{fact::kField, "source"}});
}

class FileCheckTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> identities, absl::Duration timeout = FileCheck::kTimeout) {
    check_ = FileCheck::Start(
        &fill_, &clock_,
        {.identities = std::move(identities),
         .files = {{.path = "/a", .head_sha256 = std::string(32, 'a')},
                   {.path = "/b", .head_sha256 = std::string(32, 'b')}}},
        [this](absl::Status status) {
          ++ends_;
          status_ = std::move(status);
        },
        timeout);
  }

  test::FakeClock clock_;
  KeepingFill fill_;
  int ends_ = 0;
  std::optional<absl::Status> status_;
  std::shared_ptr<FileCheck> check_;
};

TEST_F(FileCheckTest, EndsOnceAllWorkersCanReadAllFiles) {
  Start({"w0", "w1"});
  EXPECT_EQ(fill_.waiting(), 2u);
  EXPECT_THAT(fill_.paths_asked(), ElementsAre("/a", "/b"));
  EXPECT_TRUE(fill_.Answer("w1", {}));
  EXPECT_EQ(ends_, 0);
  EXPECT_TRUE(fill_.Answer("w0", {}));
  EXPECT_EQ(ends_, 1);
  EXPECT_THAT(*status_, IsOk());
  clock_.Advance(absl::Hours(1));
  check_->Cancel();
  EXPECT_EQ(ends_, 1);
}

TEST_F(FileCheckTest, EndsWithinStartIfAllAnswerAtOnce) {
  fill_.AnswerAtOnce("w0", {});
  fill_.AnswerAtOnce("w1", {.status = NoRoot("/b"), .file = 1});
  Start({"w0", "w1"});
  EXPECT_EQ(ends_, 1);
  EXPECT_THAT(*status_, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoReadRoot));
}

TEST_F(FileCheckTest, AWorkerThatDoesNotConvertIsNotAskedIfTensorsAreToBeConverted) {
  fill_.can_convert = TooOld();
  Start({"w0"});
  EXPECT_EQ(fill_.waiting(), 1u) << "no tensor is to be converted";
  fill_.Answer("w0", {});
  EXPECT_THAT(*status_, IsOk());
  check_ = FileCheck::Start(&fill_, &clock_,
                            {.identities = {"w0", "w1"}, .files = {SourceFile()}, .convert = true},
                            [this](absl::Status status) {
                              ++ends_;
                              status_ = std::move(status);
                            });
  EXPECT_EQ(fill_.waiting(), 0u);
  EXPECT_EQ(ends_, 2);
  EXPECT_THAT(*status_, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNotAvailable));
  EXPECT_THAT(std::string(status_->message()),
              AllOf(HasSubstr("workers \"w0\" and \"w1\""), HasSubstr("--source client")));
}

TEST_F(FileCheckTest, NamesAllWorkersThatLackARoot) {
  Start({"w0", "w1", "w2"});
  fill_.Answer("w2", {.status = NoRoot("/b"), .file = 1});
  fill_.Answer("w1", {});
  EXPECT_EQ(ends_, 0);  // all are asked, so that the error names all
  fill_.Answer("w0", {.status = NoRoot("/b"), .file = 1});
  EXPECT_THAT(*status_, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoReadRoot));
  EXPECT_THAT(std::string(status_->message()),
              AllOf(HasSubstr("workers \"w0\" and \"w2\" cannot read /b"),
                    HasSubstr(", or let the client read the file (--source client)"),
                    Not(HasSubstr("w1"))));
  EXPECT_EQ(FactOf(*status_, fact::kIdentity), "w0,w2");
  EXPECT_EQ(FactOf(*status_, fact::kFile), "/b");
  EXPECT_EQ(FactOf(*status_, fact::kHave), "/srv");
}

TEST_F(FileCheckTest, AChangedFileMattersMoreThanAMissingRoot) {
  Start({"w0", "w1", "w2", "w3"});
  fill_.Answer("w0", {.status = NoRoot("/a"), .file = 0});
  fill_.Answer("w1", {.status = Lost("w1")});
  fill_.Answer("w2", {.status = Changed("/a"), .file = 0});
  fill_.Answer("w3", {.status = TooOld()});
  EXPECT_THAT(*status_, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
  EXPECT_THAT(
      std::string(status_->message()),
      AllOf(HasSubstr("worker \"w2\" cannot read /a: /a has changed"), Not(HasSubstr("--source"))));
  EXPECT_EQ(FactOf(*status_, fact::kNeed), "8");
}

TEST_F(FileCheckTest, AMissingFileIsAFailedPreconditionWithTheWorkersReason) {
  Start({"w0"});
  fill_.Answer("w0", {.status = WithReason(absl::NotFoundError("there is no file /a"),
                                           Reason::kBadFile, {{fact::kFile, "/a"}}),
                      .file = 0});
  EXPECT_THAT(*status_, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kBadFile));
  EXPECT_THAT(std::string(status_->message()), HasSubstr("there is no file /a"));
}

TEST_F(FileCheckTest, AnOldWorkerIsNamedWithTheWayAround) {
  Start({"w0", "w1"});
  fill_.Answer("w0", {});
  fill_.Answer("w1", {.status = TooOld()});
  EXPECT_THAT(*status_, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNotAvailable));
  EXPECT_THAT(std::string(status_->message()),
              AllOf(HasSubstr("\"w1\" cannot read the files"), HasSubstr("--source client")));
}

TEST_F(FileCheckTest, ALostWorkerMakesAPutThatMayBeRepeated) {
  Start({"w0", "w1"});
  fill_.Answer("w0", {});
  fill_.Answer("w1", {.status = Lost("w1")});
  EXPECT_THAT(*status_, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_EQ(RetryDelayOf(*status_), absl::Seconds(1));
  EXPECT_EQ(FactOf(*status_, fact::kIdentity), "w1");
}

TEST_F(FileCheckTest, NamesTheWorkersThatDoNotAnswerInTime) {
  Start({"w0", "w1", "w2"});
  fill_.Answer("w1", {});
  clock_.Advance(FileCheck::kTimeout - absl::Seconds(1));
  EXPECT_EQ(ends_, 0);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(ends_, 1);
  EXPECT_THAT(*status_, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_EQ(FactOf(*status_, fact::kIdentity), "w0,w2");
  EXPECT_EQ(fill_.waiting(), 0u);  // late answers are not waited for
}

TEST_F(FileCheckTest, WaitsNoLongerThanItsCall) {
  for (const absl::Duration timeout : {absl::Seconds(3), absl::ZeroDuration(), -absl::Seconds(1)}) {
    ends_ = 0;
    Start({"w0", "w1"}, timeout);
    fill_.Answer("w0", {});
    clock_.Advance(std::max(timeout, absl::ZeroDuration()));
    EXPECT_EQ(ends_, 1) << timeout;
    EXPECT_THAT(*status_, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
    EXPECT_THAT(std::string(status_->message()),
                AllOf(HasSubstr("worker \"w1\""),
                      HasSubstr(timeout > absl::ZeroDuration()
                                    ? "no answer came within 3s, all the time that the call had "
                                      "left; give it more time"
                                    : "the call had no time left to wait for an answer"),
                      Not(HasSubstr("disk"))));
    EXPECT_EQ(FactOf(*status_, fact::kIdentity), "w1");
  }
  ends_ = 0;
  Start({"w0"}, absl::InfiniteDuration());
  clock_.Advance(FileCheck::kTimeout);
  EXPECT_EQ(ends_, 1);
}

TEST_F(FileCheckTest, ACancelledCheckForgetsItsQuestions) {
  Start({"w0", "w1"});
  check_->Cancel();
  EXPECT_EQ(ends_, 1);
  EXPECT_THAT(*status_, StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_EQ(fill_.waiting(), 0u);
  EXPECT_FALSE(fill_.Answer("w0", {}));
}

TEST_F(FileCheckTest, AWrongIndexOfAFileDoesNoHarm) {
  Start({"w0"});
  fill_.Answer("w0", {.status = NoRoot("/a"), .file = 1'000});
  EXPECT_THAT(*status_, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoReadRoot));
}

TEST(CannotReadTest, ListsAtMostEightWorkers) {
  std::vector<FileRefusal> refusals;
  for (int i = 0; i < 20; ++i) {
    refusals.push_back({.identity = StrCat("w", 10 + i), .status = NoRoot("/a"), .path = "/a"});
  }
  const std::string message(CannotRead(refusals).message());
  EXPECT_THAT(message, AllOf(HasSubstr("\"w17\" and 12 more"), Not(HasSubstr("w18"))));
}

}  // namespace
}  // namespace shardmesh::server
