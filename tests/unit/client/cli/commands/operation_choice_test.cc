// The operation that a number, an id, or the beginning of an id means.
#include "client/cli/commands/operation_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// An operation whose id begins with `digits`.
Operation Op(int64_t number, const std::string& digits, OperationState state) {
  Operation operation;
  operation.number = number;
  operation.operation_id = digits + std::string(32 - digits.size(), 'a');
  operation.kind = OperationKind::kSave;
  operation.state = state;
  return operation;
}

std::string MessageOf(const std::string& text, const std::vector<Operation>& operations) {
  return std::string(ChooseOperation(text, operations).status().message());
}

constexpr OperationState kRunning = OperationState::kRunning;
constexpr OperationState kDone = OperationState::kDone;

int64_t Chosen(const std::string& text, const std::vector<Operation>& operations) {
  const auto chosen = ChooseOperation(text, operations);
  return chosen.ok() ? chosen->number : -1;
}

TEST(OperationChoiceTest, TakesNumbersIdsAndBeginningsOfIds) {
  const std::vector<Operation> operations = {Op(51, "5204", kDone), Op(52, "0a1b", kRunning)};
  EXPECT_EQ(Chosen("51", operations), 51);
  EXPECT_EQ(Chosen("52", operations), 52) << "too short for the beginning of an id";
  EXPECT_EQ(Chosen("5204", operations), 51);
  EXPECT_EQ(Chosen("0a1b", operations), 52);
  EXPECT_EQ(Chosen(operations[1].operation_id, operations), 52);
}

TEST(OperationChoiceTest, TheNumberOfARunningOperationGoesBeforeIds) {
  const std::vector<Operation> operations = {Op(7, "5204", kRunning), Op(5204, "0a1b", kRunning)};
  EXPECT_EQ(Chosen("5204", operations), 5204);
  EXPECT_EQ(Chosen("5204a", operations), 7);
}

// The digits of an ended operation may be those that a running one's id begins with.
TEST(OperationChoiceTest, RefusesATextThatMeansTwoAndNamesBoth) {
  const std::vector<Operation> operations = {Op(7, "5204", kRunning), Op(5204, "0a1b", kDone)};
  EXPECT_EQ(Chosen("5204", operations), -1);
  EXPECT_THAT(MessageOf("5204", operations),
              AllOf(HasSubstr("\"5204\" means 2 operations"),
                    HasSubstr("7 (save, id " + operations[0].operation_id + ")"),
                    HasSubstr("5204 (save, id " + operations[1].operation_id + ")"),
                    HasSubstr("give the whole id of one")));
  EXPECT_THAT(MessageOf("abcd", {Op(1, "abcd1", kDone), Op(2, "abcd2", kDone)}),
              HasSubstr("means 2 operations"));
}

TEST(OperationChoiceTest, ANumberHasNoLeadingZeros) {
  const std::vector<Operation> operations = {Op(123, "ffff", kRunning), Op(4, "0123", kRunning)};
  EXPECT_EQ(Chosen("0123", operations), 4);
}

TEST(OperationChoiceTest, NamesTheRunningOperationsIfThereIsNone) {
  const std::vector<Operation> operations = {Op(1, "aaaa", kDone), Op(2, "bbbb", kRunning)};
  const auto none = ChooseOperation("17", operations);
  EXPECT_THAT(none.status(), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(std::string(none.status().message()),
              AllOf(HasSubstr("there is no operation \"17\""), HasSubstr("running: 2 (save)"),
                    Not(HasSubstr("1 (save)"))));
  EXPECT_THAT(MessageOf("17", {}), HasSubstr("none runs now"));
}

TEST(OperationChoiceTest, SaysHowLongTheBeginningOfAnIdMustBe) {
  const std::vector<Operation> operations = {Op(2, "bbbb", kRunning)};
  EXPECT_THAT(MessageOf("bbb", operations), HasSubstr("; give 4 or more characters of an id"));
  EXPECT_THAT(MessageOf("bbbc", operations), Not(HasSubstr("or more characters")));
}

}  // namespace
}  // namespace shardmesh::client
