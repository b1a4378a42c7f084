// Tests of sharding/axis_value.h.
#include "sharding/axis_value.h"
#include "status/python_repr.h"

#include <gtest/gtest.h>

namespace shardmesh {
namespace {

TEST(AxisValueTest, WritesItselfAsPythonDoes) {
  const AxisValue tp = AxisValue::Name("tp");
  struct Case {
    AxisValue value;
    const char* text;
  };
  const std::vector<Case> cases = {
      {AxisValue(), "NOT_GIVEN"},
      {AxisValue::None(), "None"},
      {AxisValue::Unconstrained(), "UNCONSTRAINED"},
      {tp, "'tp'"},
      {AxisValue::Tuple({}), "()"},
      {AxisValue::Tuple({tp}), "('tp',)"},
      {AxisValue::TupleOf({"fsdp", "dp"}), "('fsdp', 'dp')"},
      {AxisValue::List({tp, AxisValue::None()}), "['tp', None]"},
      {AxisValue::List({AxisValue::Tuple({tp, AxisValue::List({})})}), "[('tp', [])]"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(c.value.ToString(), c.text);
  }
}

TEST(AxisValueTest, ComparesKindsAndEntries) {
  const AxisValue tp = AxisValue::Name("tp");
  EXPECT_EQ(AxisValue::Tuple({tp}), AxisValue::Tuple({tp}));
  EXPECT_FALSE(AxisValue::Tuple({tp}) == AxisValue::List({tp}));
  EXPECT_FALSE(AxisValue::None() == AxisValue::NotGiven());
  EXPECT_FALSE(AxisValue::Name("") == AxisValue::None());
}

TEST(PythonReprTest, ChoosesQuotesAndEscapesAsPythonDoes) {
  EXPECT_EQ(PythonRepr("it's"), "\"it's\"");
  EXPECT_EQ(PythonRepr("\"'"), "'\"\\''");
  EXPECT_EQ(PythonRepr("a\\b\n\t\r\x01\x7f"), "'a\\\\b\\n\\t\\r\\x01\\x7f'");
  EXPECT_EQ(PythonRepr("\xc3\xa9"), "'\xc3\xa9'");
}

}  // namespace
}  // namespace shardmesh
