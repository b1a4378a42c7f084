// Values in Python's words. The expected texts are CPython 3.11's.
#include "sharding/python_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using test::StatusIs;

TEST(PythonFloatReprTest, WritesTheFewestDigits) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::pair<double, const char*> cases[] = {
      {0.0, "0.0"},
      {-0.0, "-0.0"},
      {1.0, "1.0"},
      {-1.5, "-1.5"},
      {0.1, "0.1"},
      {100.0, "100.0"},
      {0.0001, "0.0001"},
      {0.00012345, "0.00012345"},
      {0.00001, "1e-05"},
      {1.25e-7, "1.25e-07"},
      {12345678.9, "12345678.9"},
      {1e15, "1000000000000000.0"},
      {9999999999999998.0, "9999999999999998.0"},
      {1e16, "1e+16"},
      {1.5e16, "1.5e+16"},
      {1e22, "1e+22"},
      {5e-324, "5e-324"},
      {1.7976931348623157e308, "1.7976931348623157e+308"},
      {1.0 / 3, "0.3333333333333333"},
      {kInfinity, "inf"},
      {-kInfinity, "-inf"},
      {std::nan(""), "nan"},
  };
  for (const auto& [value, expected] : cases) EXPECT_EQ(PythonFloatRepr(value), expected);
}

TEST(PythonFloatReprTest, ReadsBackAsTheSameNumber) {
  std::mt19937_64 random(20240611);
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t bits = random();
    double value = 0;
    static_assert(sizeof(bits) == sizeof(value));
    std::memcpy(&value, &bits, sizeof(value));
    if (!std::isfinite(value)) continue;
    double read = 0;
    ASSERT_TRUE(absl::SimpleAtod(PythonFloatRepr(value), &read)) << value;
    ASSERT_EQ(read, value);
  }
}

TEST(PythonValueTest, WritesContainersAsReprDoes) {
  const PythonValue nested = PythonValue::Dict({
      {PythonValue::String("b"), PythonValue::Int(1)},
      {PythonValue::String("a"),
       PythonValue::List({PythonValue(), PythonValue::Bool(true),
                          PythonValue::Tuple({PythonValue::Int(1)}), PythonValue::Dict({}),
                          PythonValue::Tuple({})})},
      {PythonValue::Int(-7), PythonValue::Float(-0.5)},
  });
  EXPECT_EQ(nested.Str(), "{'b': 1, 'a': [None, True, (1,), {}, ()], -7: -0.5}");
  EXPECT_EQ(PythonValue::List({PythonValue::String("it's"), PythonValue::String("a\nb")}).Str(),
            "[\"it's\", 'a\\nb']");
  EXPECT_EQ(PythonValue::String("it's").Str(), "it's");
  EXPECT_EQ(PythonValue::String("it's").Repr(), "\"it's\"");
  EXPECT_EQ(PythonValue::Bool(false).Str(), "False");
}

TEST(PythonValueTest, HoldsIntegersOfAnySize) {
  const std::pair<const char*, const char*> cases[] = {
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {"-18446744073709551616", "-18446744073709551616"},
      {"007", "7"},
      {"-0", "0"},
      {"000", "0"},
  };
  for (const auto& [digits, expected] : cases) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const PythonValue value, PythonValue::BigInt(digits));
    EXPECT_EQ(value.Str(), expected);
  }
  for (const char* const text : {"", "-", "1.0", "+1", "1e3", " 1", "--1"}) {
    EXPECT_THAT(PythonValue::BigInt(text),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField))
        << text;
  }
}

TEST(HashFnTest, CountsNumbersListsAndDictionariesAlone) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PythonHash hash,
      HashFn({PythonValue::Int(1), PythonValue::String("x"), PythonValue(),
              PythonValue::Tuple({PythonValue::Int(2)}), PythonValue::Bool(true),
              PythonValue::List({PythonValue::String("y")}), PythonValue::Float(1),
              PythonValue::Dict({})}));
  EXPECT_EQ(hash.text, "1True['y']1.0{}");
}

TEST(HashFnTest, ReducesTheDigestAsPythonDoes) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PythonHash empty, HashFn({}));
  EXPECT_EQ(empty, (PythonHash{"", "281949768489412648962353822266799178366", 751098818652394202}));
}

}  // namespace
}  // namespace shardmesh
