// Endpoints that lead back, that do not, and that do not answer.
#include "server/attach/endpoint_check.h"

#include <optional>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"

namespace shardmesh::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class EndpointCheckTest : public testing::Test {
 protected:
  struct Question {
    absl::AnyInvocable<void(absl::StatusOr<EndpointAnswer>) &&> answered;
    int cancels = 0;
  };

  void Start(std::vector<std::string> endpoints) {
    WorkerHello hello;
    hello.identity = "a";
    hello.incarnation = 4;
    hello.nonce = "nonce";
    hello.endpoints = std::move(endpoints);
    questions_.resize(hello.endpoints.size());
    EndpointCheck::Start(
        hello, &clock_,
        [this](const std::string&, const std::string& identity, absl::Duration timeout,
               auto answered) -> std::function<void()> {
          EXPECT_EQ(identity, "a");
          EXPECT_EQ(timeout, absl::Seconds(3));
          const size_t index = asked_++;
          questions_[index].answered = std::move(answered);
          return [this, index] { ++questions_[index].cancels; };
        },
        absl::Seconds(3),
        [this](std::vector<std::string> verified, std::string failures) {
          EXPECT_FALSE(verified_.has_value()) << "done twice";
          verified_ = std::move(verified);
          failures_ = std::move(failures);
        });
  }
  void Answer(size_t index, absl::StatusOr<EndpointAnswer> answer) {
    auto answered = std::move(questions_[index].answered);
    std::move(answered)(std::move(answer));
  }
  static EndpointAnswer Right() { return {.identity = "a", .incarnation = 4, .nonce = "nonce"}; }

  test::FakeClock clock_;
  std::vector<Question> questions_;
  size_t asked_ = 0;
  std::optional<std::vector<std::string>> verified_;
  std::string failures_;
};

TEST_F(EndpointCheckTest, KeepsTheOrderOfTheHello) {
  Start({"x", "y", "z"});
  Answer(2, Right());
  Answer(1, absl::UnavailableError("refused"));
  EXPECT_FALSE(verified_.has_value()) << "one endpoint has not answered";
  Answer(0, Right());
  ASSERT_TRUE(verified_.has_value());
  EXPECT_THAT(*verified_, ElementsAre("x", "z"));
  EXPECT_EQ(failures_, "y: refused");
}

TEST_F(EndpointCheckTest, RefusesAnotherIncarnationNameOrNonce) {
  Start({"x", "y", "z"});
  Answer(0, EndpointAnswer{.identity = "b\n", .incarnation = 4, .nonce = "nonce"});
  Answer(1, EndpointAnswer{.identity = "a", .incarnation = 5, .nonce = "nonce"});
  Answer(2, EndpointAnswer{.identity = "a", .incarnation = 4, .nonce = "other"});
  ASSERT_TRUE(verified_.has_value());
  EXPECT_THAT(*verified_, IsEmpty());
  EXPECT_THAT(failures_, AllOf(HasSubstr("x: worker \"b\\n\" answers there"), HasSubstr("; y: "),
                               HasSubstr("; z: ")));
}

TEST_F(EndpointCheckTest, OnceOneEndpointLeadsBackTheOthersHaveTheGrace) {
  Start({"x", "y"});
  clock_.Advance(absl::Seconds(1));
  Answer(0, Right());
  clock_.Advance(EndpointCheck::kGrace - absl::Milliseconds(1));
  EXPECT_EQ(questions_[1].cancels, 0);
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(questions_[1].cancels, 1);
  Answer(1, absl::CancelledError("too late"));
  ASSERT_TRUE(verified_.has_value());
  EXPECT_THAT(*verified_, ElementsAre("x"));
}

TEST_F(EndpointCheckTest, AWrongAnswerShortensNothing) {
  Start({"x", "y"});
  Answer(0, absl::UnavailableError("refused"));
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(questions_[1].cancels, 0);
  Answer(1, Right());
  EXPECT_THAT(*verified_, ElementsAre("y"));
  EXPECT_EQ(clock_.pending(), 0);
}

}  // namespace
}  // namespace shardmesh::server
