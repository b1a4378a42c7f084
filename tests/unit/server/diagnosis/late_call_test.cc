// A call asks its workers while its time runs out, and names those that do not answer.
#include "server/diagnosis/late_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class LateCallTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int64_t rank = 0; rank < 2; ++rank) {
      const std::string identity = StrCat("worker-", rank);
      const auto attachment = members_.Attach({.identity = identity,
                                               .incarnation = 1,
                                               .build_version = "1",
                                               .endpoints = {"127.0.0.1:1"},
                                               .host = "host",
                                               .answers_clock = true});
      ASSERT_THAT(attachment, IsOk());
      attachments_[rank] = *attachment;
      log_.Attached(identity, 1);
    }
  }
  std::unique_ptr<LateCall> NewCall() {
    return std::make_unique<LateCall>(
        &clock_, &watch_, "the save", [this] { return workers_; },
        [this](const absl::Status& late) { late_ = late; });
  }

  test::FakeClock clock_;
  Membership members_{&clock_, {.lost_after = absl::Hours(1)}};
  FlightLog log_;
  std::vector<std::set<std::string>> asked_;
  StepWatch watch_{&clock_, &members_, &log_, [this](const std::set<std::string>& identities) {
                     asked_.push_back(identities);
                   }};
  std::map<int64_t, uint64_t> attachments_;
  OperationWorkers workers_;
  std::optional<absl::Status> late_;
};

TEST_F(LateCallTest, AsksWhileItsTimeRunsOutAndNamesTheWorkerThatDoesNotAnswer) {
  const std::unique_ptr<LateCall> call = NewCall();
  workers_ = {.waiting_for = {"worker-0"}};
  call->Start(clock_.Now() + absl::Seconds(1));
  clock_.Advance(absl::Milliseconds(699));
  EXPECT_THAT(asked_, IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_THAT(asked_, ElementsAre(ElementsAre("worker-0")));
  // Meanwhile the call comes to wait for another worker, which is asked then.
  clock_.Advance(absl::Milliseconds(50));
  EXPECT_THAT(members_.Heartbeat(attachments_[0], 0), IsOk());
  workers_ = {.waiting_for = {"worker-0", "worker-1"}};
  clock_.Advance(absl::Milliseconds(50));
  EXPECT_THAT(asked_, ElementsAre(ElementsAre("worker-0"), ElementsAre("worker-1")));
  clock_.Advance(absl::Milliseconds(199));
  EXPECT_FALSE(late_.has_value());
  clock_.Advance(absl::Milliseconds(1));
  ASSERT_TRUE(late_.has_value());
  EXPECT_THAT(*late_, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(std::string(late_->message()), HasSubstr("the save has not ended"));
  EXPECT_EQ(FactOf(*late_, fact::kIdentity), "worker-1");
  late_.reset();
  clock_.Advance(absl::Minutes(1));
  EXPECT_FALSE(late_.has_value()) << "it gives up once";
}

TEST_F(LateCallTest, OneThatBeginsLateAsksAtOnce) {
  const std::unique_ptr<LateCall> call = NewCall();
  workers_ = {.taking_part = {"worker-0", "worker-1"}};
  call->Start(clock_.Now() + absl::Milliseconds(150));
  clock_.Advance(absl::ZeroDuration());
  EXPECT_THAT(asked_, ElementsAre(ElementsAre("worker-0", "worker-1")));
}

TEST_F(LateCallTest, OneWithoutADeadlineOrThatHasEndedNeverGivesUp) {
  std::unique_ptr<LateCall> call = NewCall();
  call->Start(absl::InfiniteFuture());
  clock_.Advance(absl::Minutes(30));
  EXPECT_THAT(asked_, IsEmpty());
  call = NewCall();
  call->Start(clock_.Now() + absl::Seconds(1));
  call = nullptr;
  clock_.Advance(absl::Minutes(1));
  EXPECT_FALSE(late_.has_value());
}

TEST_F(LateCallTest, ItsCallbackMayDestroyIt) {
  std::unique_ptr<LateCall> call;
  call = std::make_unique<LateCall>(
      &clock_, &watch_, "the save", [this] { return workers_; },
      [this, &call](const absl::Status& late) {
        call = nullptr;
        late_ = late;
      });
  call->Start(clock_.Now() + absl::Seconds(1));
  clock_.Advance(absl::Seconds(2));
  EXPECT_TRUE(late_.has_value());
}

}  // namespace
}  // namespace shardmesh::server
