// Tests of sharding/spec.h: normalisation, names, equivalence, text.
#include "sharding/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using ::shardmesh::test::kInvalid;

TEST(SpecEntryTest, NormalisesAsTheConstructorDoes) {
  const AxisValue none = AxisValue::None();
  const AxisValue a = AxisValue::Name("a");
  const AxisValue b = AxisValue::Name("b");
  struct Case {
    AxisValue value;
    SpecEntry entry;
  };
  const std::vector<Case> cases = {
      {none, SpecEntry::None()},
      {a, SpecEntry::Axis("a")},
      {AxisValue::Name(""), SpecEntry::None()},
      {AxisValue::Tuple({}), SpecEntry::None()},
      {AxisValue::Tuple({none}), SpecEntry::None()},
      {AxisValue::Tuple({a}), SpecEntry::Axis("a")},
      {AxisValue::List({a}), SpecEntry::Axis("a")},
      {AxisValue::Tuple({a, b}), SpecEntry::Axes({"a", "b"})},
      {AxisValue::Tuple({a, none}), SpecEntry::Axes({"a", std::nullopt})},
      {AxisValue::Unconstrained(), SpecEntry::Unconstrained()},
      {AxisValue::Tuple({AxisValue::Unconstrained()}), SpecEntry::Unconstrained()},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(SpecEntry::Create(c.value), IsOkAndHolds(c.entry)) << c.value.ToString();
  }
}

TEST(SpecEntryTest, RefusesWhatPartitionsNothing) {
  const AxisValue a = AxisValue::Name("a");
  for (const AxisValue& value :
       {AxisValue::NotGiven(), AxisValue::Tuple({AxisValue::Tuple({a})}),
        AxisValue::Tuple({a, AxisValue::List({})}), AxisValue::Tuple({a, AxisValue::NotGiven()}),
        AxisValue::Tuple({a, AxisValue::Unconstrained()})}) {
    const auto entry = SpecEntry::Create(value);
    EXPECT_THAT(entry, StatusIs(kInvalid, Reason::kInvalidSpec)) << value.ToString();
    EXPECT_EQ(PythonTypeOf(entry.status()), "ValueError");
  }
}

TEST(PartitionSpecTest, NamesTheDimensionThatIsRefused) {
  const auto spec = PartitionSpec::Create({AxisValue::None(), AxisValue::NotGiven()});
  EXPECT_THAT(std::string(spec.status().message()), ::testing::HasSubstr("dimension 1: "));
}

TEST(PartitionSpecTest, DistinguishesLengths) {
  EXPECT_NE(PartitionSpec(), PartitionSpec({SpecEntry::None(), SpecEntry::None()}));
}

TEST(PartitionSpecTest, WritesItself) {
  EXPECT_EQ(PartitionSpec().ToString(), "P()");
  EXPECT_EQ(PartitionSpec({SpecEntry::Axis("dp"), SpecEntry::Axes({"fsdp", "tp"}),
                           SpecEntry::None(), SpecEntry::Unconstrained()})
                .ToString(),
            "P('dp', ('fsdp', 'tp'), None, UNCONSTRAINED)");
  EXPECT_EQ(PartitionSpec({SpecEntry::Axis("dp")}, {"tp", "sp", "tp"}).ToString(),
            "P('dp', unreduced={'sp', 'tp'})");
}

TEST(PartitionSpecTest, ListsNamesAndRepeats) {
  const PartitionSpec spec({SpecEntry::Axes({"b", "a"}), SpecEntry::Axes({"c", std::nullopt, "a"})},
                           {"c"});
  EXPECT_THAT(spec.AxisNames(), ElementsAre("b", "a", "c"));
  EXPECT_THAT(spec.DuplicateAxes(), ElementsAre("a", "c"));
  EXPECT_THAT(CheckDistinctAxes(spec), StatusIs(kInvalid, Reason::kDuplicateAxis));
  EXPECT_EQ(PythonTypeOf(CheckDistinctAxes(spec)), "DuplicateSpecError");
  EXPECT_THAT(PartitionSpec({SpecEntry::Axis("a")}, {"b"}).DuplicateAxes(), IsEmpty());
  EXPECT_THAT(CheckDistinctAxes(PartitionSpec()), IsOk());
}

// As NamedSharding of JAX 0.9.0.1 on dp=2,tp=4.
TEST(PartitionSpecTest, TakesNoneAmongTheAxesOfADimensionForAnAxisAsJaxDoes) {
  const SpecEntry dp_none = SpecEntry::Axes({"dp", std::nullopt});
  const SpecEntry two_nones = SpecEntry::Axes({std::nullopt, std::nullopt});
  const SpecEntry none_tp = SpecEntry::Axes({std::nullopt, "tp"});
  struct Case {
    PartitionSpec spec;
    std::string distinct;  // the class of the error; empty for none
    std::string in_mesh;
  };
  const Case kCases[] = {
      {PartitionSpec({two_nones}), "DuplicateSpecError", "ValueError"},
      {PartitionSpec({dp_none, none_tp}), "DuplicateSpecError", "ValueError"},
      {PartitionSpec({dp_none}), "", "ValueError"},
      {PartitionSpec({dp_none, SpecEntry::None()}), "", "ValueError"},
      {PartitionSpec({SpecEntry::Axes({std::nullopt}), SpecEntry::None()}), "", ""},
      {PartitionSpec({SpecEntry::Unconstrained(), SpecEntry::Unconstrained()}), "", ""},
      {PartitionSpec({SpecEntry::Axis("nope")}), "", "ValueError"},
      {PartitionSpec({}, {"nope"}), "", "ValueError"},
  };
  const Mesh mesh = *Mesh::Parse("dp=2,tp=4");
  for (const Case& c : kCases) {
    const absl::Status distinct = CheckDistinctAxes(c.spec);
    const absl::Status in_mesh = CheckAxesInMesh(c.spec, mesh);
    EXPECT_EQ(distinct.ok() ? "" : PythonTypeOf(distinct), c.distinct) << c.spec.ToString();
    EXPECT_EQ(in_mesh.ok() ? "" : PythonTypeOf(in_mesh), c.in_mesh) << c.spec.ToString();
  }
}

TEST(PartitionSpecTest, HasNoneBeyondItsEntries) {
  EXPECT_TRUE(PartitionSpec({SpecEntry::Axis("a")}).entry(7).is_none());
}

TEST(EquivalentTest, LooksAtUnreducedAxesOfMoreThanOneDevice) {
  const Mesh mesh = *Mesh::Parse("dp=2,tp=1");
  EXPECT_TRUE(Equivalent(PartitionSpec({}, {"tp"}), PartitionSpec(), mesh, 2));
  EXPECT_FALSE(Equivalent(PartitionSpec({}, {"dp"}), PartitionSpec(), mesh, 2));
}

}  // namespace
}  // namespace shardmesh
