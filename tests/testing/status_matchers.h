// Matchers of absl::Status and absl::StatusOr, with the project's reasons.
//
//   EXPECT_THAT(DoIt(), IsOk());
//   EXPECT_THAT(ElementCount({2, 3}), IsOkAndHolds(6));
//   EXPECT_THAT(Tiling::Create(...), StatusIs(absl::StatusCode::kInvalidArgument,
//   Reason::kNotDivisible)); SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Parse("dp=2"));
#ifndef SHARDMESH_TESTS_TESTING_STATUS_MATCHERS_H_
#define SHARDMESH_TESTS_TESTING_STATUS_MATCHERS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

// Fails the test at once unless `expr`, an absl::StatusOr, holds a value, which it assigns to
// `lhs`.
#define SHARDMESH_ASSERT_OK_AND_ASSIGN(lhs, expr) \
  SHARDMESH_ASSERT_OK_AND_ASSIGN_IMPL_(SHARDMESH_CONCAT_(shardmesh_result_, __LINE__), lhs, expr)
#define SHARDMESH_ASSERT_OK_AND_ASSIGN_IMPL_(result, lhs, expr) \
  auto result = (expr);                                         \
  ASSERT_TRUE(result.ok()) << result.status();                  \
  lhs = *std::move(result)

namespace shardmesh::test {

// The status code of most errors about bad input.
inline constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

namespace status_matchers_internal {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

inline std::string Describe(const absl::Status& status) {
  return StrCat("which is ", status.ToString(), " with reason ", ReasonName(ReasonOf(status)));
}

template <typename Value>
class IsOkAndHoldsMatcher {
 public:
  explicit IsOkAndHoldsMatcher(Value value) : value_(std::move(value)) {}

  template <typename T>
  operator ::testing::Matcher<T>() const {  // NOLINT: matchers convert implicitly
    return ::testing::Matcher<T>(new Impl<T>(value_));
  }

 private:
  template <typename T>
  class Impl : public ::testing::MatcherInterface<T> {
   public:
    using Held = typename std::decay_t<T>::value_type;
    explicit Impl(const Value& value) : value_(::testing::SafeMatcherCast<const Held&>(value)) {}

    bool MatchAndExplain(T result, ::testing::MatchResultListener* listener) const override {
      if (!result.ok()) {
        *listener << Describe(result.status());
        return false;
      }
      return value_.MatchAndExplain(*result, listener);
    }
    void DescribeTo(std::ostream* out) const override {
      *out << "is OK and holds a value that ";
      value_.DescribeTo(out);
    }
    void DescribeNegationTo(std::ostream* out) const override {
      *out << "is an error or holds a value that ";
      value_.DescribeNegationTo(out);
    }

   private:
    ::testing::Matcher<const Held&> value_;
  };

  Value value_;
};

}  // namespace status_matchers_internal

MATCHER(IsOk, negation ? "is an error" : "is OK") {
  const absl::Status& status = status_matchers_internal::StatusOf(arg);
  if (!status.ok()) {
    *result_listener << status_matchers_internal::Describe(status);
  }
  return status.ok();
}

MATCHER_P(StatusIs, code, StrCat(negation ? "is not " : "is ", absl::StatusCodeToString(code))) {
  const absl::Status& status = status_matchers_internal::StatusOf(arg);
  *result_listener << status_matchers_internal::Describe(status);
  return status.code() == code;
}

MATCHER_P2(StatusIs, code, reason,
           StrCat(negation ? "is not " : "is ", absl::StatusCodeToString(code), " with reason ",
                  ReasonName(reason))) {
  const absl::Status& status = status_matchers_internal::StatusOf(arg);
  *result_listener << status_matchers_internal::Describe(status);
  return status.code() == code && ReasonOf(status) == reason;
}

// `message` is a matcher of the message.
MATCHER_P3(StatusIs, code, reason, message,
           StrCat(negation ? "is not " : "is ", absl::StatusCodeToString(code), " with reason ",
                  ReasonName(reason), " and a message that ",
                  ::testing::DescribeMatcher<std::string>(message, negation))) {
  const absl::Status& status = status_matchers_internal::StatusOf(arg);
  *result_listener << status_matchers_internal::Describe(status) << " ";
  return status.code() == code && ReasonOf(status) == reason &&
         ::testing::ExplainMatchResult(message, std::string(status.message()), result_listener);
}

// The status has the reason and exactly these facts. The table of facts must allow each of the
// facts for the reason.
//   EXPECT_THAT(status, CarriesFacts(Reason::kRankMismatch, {{fact::kHave, 3}, {fact::kNeed, 2}}));
MATCHER_P2(CarriesExactly, reason, facts,
           StrCat(negation ? "has not the reason " : "has the reason ", ReasonName(reason),
                  " and the facts ", ::testing::PrintToString(facts))) {
  const absl::Status& status = status_matchers_internal::StatusOf(arg);
  const auto have = FactsOf(status);
  *result_listener << status_matchers_internal::Describe(status) << " and the facts "
                   << ::testing::PrintToString(have);
  for (const auto& [key, value] : have) {
    if (!MayHave(reason, FactKey(key))) return false;
  }
  return ReasonOf(status) == reason && have == facts;
}
inline auto CarriesFacts(Reason reason, Facts facts) {
  // Convert the facts to the form in which FactsOf returns them.
  return CarriesExactly(reason, FactsOf(WithFacts(absl::UnknownError(""), facts)));
}

// Matches an absl::StatusOr that holds `value`, which is a value or a matcher.
template <typename Value>
auto IsOkAndHolds(Value value) {
  return status_matchers_internal::IsOkAndHoldsMatcher<Value>(std::move(value));
}

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_STATUS_MATCHERS_H_
