// Tests of sharding/layout/fixes.h: what is suggested for each reason, and that all of it works.
#include "sharding/layout/fixes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "status/str_cat.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Kind = Fix::Kind;

SpecEntry One(std::string name) { return SpecEntry::Axis(std::move(name)); }
SpecEntry Several(std::vector<AxisName> names) { return SpecEntry::Axes(std::move(names)); }

// The fixes as text, each `kind correction dim: spec shape | text`.
std::vector<std::string> Fixes(const PartitionSpec& spec, const Shape& shape,
                               std::string_view mesh_text) {
  const absl::StatusOr<Mesh> mesh = Mesh::Parse(mesh_text);
  EXPECT_THAT(mesh, test::IsOk());
  const absl::StatusOr<CorrectionResult> result = Correct(spec, shape, *mesh);
  EXPECT_THAT(result, test::IsOk());
  std::vector<std::string> out;
  for (const Fix& fix : SuggestFixes(spec, shape, *mesh, *result)) {
    const std::string kind = fix.kind == Kind::kAxesSubset   ? "subset"
                             : fix.kind == Kind::kPaddedSize ? "pad"
                                                             : "order";
    out.push_back(StrCat(kind, " ", fix.correction, " ", fix.dim, ": ", fix.spec.ToString(), " ",
                         ShapeToString(fix.shape), " | ", fix.text));
  }
  return out;
}

TEST(FixTest, SuggestsFewerAxesAPaddedSizeAndAnotherOrder) {
  EXPECT_THAT(
      Fixes(PartitionSpec({One("dp"), Several({"fsdp", "tp"})}), {8, 30}, "dp=2,fsdp=2,tp=4"),
      ElementsAre("subset 0 1: P('dp', 'fsdp') (8, 30) | ask for 'fsdp' along dimension 1",
                  "pad 0 1: P('dp', ('fsdp', 'tp')) (8, 32) | pad dimension 1 from 30 to 32",
                  "order 0 0: P(('fsdp', 'tp'), 'dp') (8, 30) | move the axes: ask for "
                  "'fsdp', 'tp' along dimension 0 and 'dp' along dimension 1"));
}

TEST(FixTest, DescribesAxesInWords) {
  EXPECT_EQ(DescribeAxes(PartitionSpec({Several({"fsdp", "tp"}), SpecEntry::None(), One("dp")})),
            "'fsdp', 'tp' along dimension 0 and 'dp' along dimension 2");
  EXPECT_EQ(DescribeAxes(PartitionSpec({SpecEntry::None(), SpecEntry::Unconstrained()})),
            "no axis");
  EXPECT_EQ(DescribeAxes(PartitionSpec()), "no axis");
}

TEST(FixTest, KeepsTheAxesWithTheLargestProduct) {
  const PartitionSpec spec({Several({"a", "b", "c"})});
  // 2 * 3 * 4: of 12 the largest divisors are b and c; of 6, a and b.
  EXPECT_EQ(Fixes(spec, {12}, "a=2,b=3,c=4").front(),
            "subset 0 0: P(('b', 'c')) (12,) | ask for 'b', 'c' along dimension 0");
  EXPECT_EQ(Fixes(spec, {6}, "a=2,b=3,c=4").front(),
            "subset 0 0: P(('a', 'b')) (6,) | ask for 'a', 'b' along dimension 0");
  // Axes of size 1 are kept, and of equals those that stand first.
  EXPECT_EQ(Fixes(spec, {2}, "a=2,b=1,c=2").front(),
            "subset 0 0: P(('a', 'b')) (2,) | ask for 'a', 'b' along dimension 0");
  EXPECT_EQ(Fixes(spec, {5}, "a=2,b=3,c=4").front(),
            "subset 0 0: P() (5,) | ask for no axis along dimension 0");
}

TEST(FixTest, DropsAxesThatTheMeshLacks) {
  EXPECT_THAT(Fixes(PartitionSpec({Several({"dp", "none_such"}), One("tp")}), {8, 8}, "dp=2,tp=4"),
              ElementsAre("subset 0 0: P('dp', 'tp') (8, 8) | ask for 'dp' along dimension 0"));
  EXPECT_THAT(Fixes(PartitionSpec({Several({"tp", "none_such"})}), {7}, "dp=2,tp=4"),
              ElementsAre("subset 0 0: P() (7,) | ask for no axis along dimension 0",
                          "pad 0 0: P('tp') (8,) | pad dimension 0 from 7 to 8 and ask for 'tp' "
                          "along it"));
}

TEST(FixTest, AsksForTheAxisThatAMisspeltOneMeans) {
  EXPECT_THAT(
      Fixes(PartitionSpec({One("fspd"), One("tp")}), {384, 1536}, "fsdp=2,tp=2"),
      ElementsAre("subset 0 0: P('fsdp', 'tp') (384, 1536) | ask for 'fsdp' along dimension 0"));
  // Not where the axis is in use or does not divide, nor for an axis that meshes often lack.
  EXPECT_THAT(Fixes(PartitionSpec({One("tpp"), One("tp")}), {4, 4}, "tp=2"),
              ElementsAre("subset 0 0: P(None, 'tp') (4, 4) | ask for no axis along dimension 0"));
  EXPECT_THAT(Fixes(PartitionSpec({One("tpp")}), {3}, "tp=2"),
              ElementsAre("subset 0 0: P() (3,) | ask for no axis along dimension 0"));
  EXPECT_THAT(Fixes(PartitionSpec({One("sp")}), {4}, "tp=2"),
              ElementsAre("subset 0 0: P() (4,) | ask for no axis along dimension 0"));
}

TEST(FixTest, MovesWhatIsBeyondTheRankOrLeavesItOut) {
  EXPECT_THAT(Fixes(PartitionSpec({SpecEntry::None(), One("dp"), One("tp")}), {8, 8}, "dp=2,tp=4"),
              ElementsAre("subset 0 2: P(None, 'dp') (8, 8) | leave out entry 2 of the spec",
                          "order 0 0: P('tp', 'dp') (8, 8) | move the axes: ask for 'tp' "
                          "along dimension 0 and 'dp' along dimension 1"));
}

TEST(FixTest, MovesAsLittleAsItCan) {
  // 'c' divides only dimension 0, where 'a' must make room; 'b' could too, but need not.
  EXPECT_EQ(Fixes(PartitionSpec({One("a"), One("b"), One("c")}), {12, 4, 2}, "a=2,b=4,c=3").back(),
            "order 0 0: P('c', 'b', 'a') (12, 4, 2) | move the axes: ask for 'c' along "
            "dimension 0 and 'b' along dimension 1 and 'a' along dimension 2");
}

TEST(FixTest, MovesOneEntryWhereAnotherFitsNowhere) {
  EXPECT_THAT(Fixes(PartitionSpec({One("a"), One("b"), SpecEntry::None()}), {5, 5, 4}, "a=2,b=3"),
              testing::Contains("order 0 2: P(None, None, 'a') (5, 5, 4) | move the axes: ask for "
                                "'a' along dimension 2"));
}

TEST(FixTest, AsksNothingOfAnOpenDimension) {
  EXPECT_THAT(Fixes(PartitionSpec({SpecEntry::Unconstrained(), One("dp")}), {4, 4}, "dp=2"),
              ElementsAre("subset 0 0: P(None, 'dp') (4, 4) | ask for no axis along dimension 0"));
}

TEST(FixTest, SuggestsNoSizeBeyondWhatAShapeMayHave) {
  const int64_t largest = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(
      Fixes(PartitionSpec({One("dp")}), {largest}, "dp=2"),
      ElementsAre(StrCat("subset 0 0: P() (", largest, ",) | ask for no axis along dimension 0")));
}

TEST(FixTest, UsesNoAxisTwice) {
  // Padding would bring 'tp' back beside the other one.
  EXPECT_THAT(Fixes(PartitionSpec({One("tp"), One("tp")}), {3, 4}, "tp=2"),
              ElementsAre("subset 0 0: P(None, 'tp') (3, 4) | ask for no axis along dimension 0"));
}

TEST(FixTest, HasNothingForWhatIsRightOrWithoutAMesh) {
  EXPECT_THAT(Fixes(PartitionSpec({One("tp")}), {4}, "tp=2"), IsEmpty());
  EXPECT_THAT(SuggestFixes(PartitionSpec({One("tp")}), {}, Mesh(), {}), IsEmpty());
}

TEST(FixTest, EveryFixOfARandomLayoutLeavesNothingToCorrect) {
  std::mt19937 random(20260109);
  const auto below = [&random](int64_t bound) {
    return std::uniform_int_distribution<int64_t>(0, bound - 1)(random);
  };
  constexpr int64_t kSizes[] = {1, 2, 2, 3, 4, 5, 8};
  const std::string kNames[] = {"a", "b", "c", "d", "e"};
  int64_t padded = 0;
  int64_t reordered = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<MeshAxis> axes;
    for (int64_t i = 0; i <= below(4); ++i) {
      axes.push_back({kNames[i], kSizes[below(7)]});
    }
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create(axes));
    Shape shape;
    for (int64_t i = 0; i < below(5); ++i) {
      shape.push_back(below(12) == 0 ? 0 : (1 + below(40)) * (1 + below(3)));
    }
    // Mostly distinct names, one of which the mesh lacks.
    std::vector<std::string> names(std::begin(kNames), std::end(kNames));
    std::shuffle(names.begin(), names.end(), random);
    std::vector<SpecEntry> entries;
    for (int64_t i = 0; i < below(6); ++i) {
      std::vector<AxisName> entry;
      for (int64_t k = 0; k < below(4) && !names.empty(); ++k) {
        entry.push_back(names.back());
        if (below(10) != 0) {
          names.pop_back();
        }
      }
      entries.push_back(below(15) == 0 ? SpecEntry::Unconstrained() : Several(std::move(entry)));
    }
    const PartitionSpec spec(std::move(entries));
    const absl::StatusOr<CorrectionResult> result = Correct(spec, shape, mesh);
    if (!result.ok()) {
      continue;
    }
    const std::vector<Fix> fixes = SuggestFixes(spec, shape, mesh, *result);
    std::set<std::string> requests;
    std::set<int64_t> padded_corrections;
    for (const Fix& fix : fixes) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const CorrectionResult again,
                                     Correct(fix.spec, fix.shape, mesh));
      EXPECT_THAT(again.corrections, IsEmpty()) << spec.ToString() << " " << fix.text;
      EXPECT_EQ(again.effective, fix.spec);
      EXPECT_TRUE(requests.insert(fix.spec.ToString() + ShapeToString(fix.shape)).second)
          << spec.ToString() << " " << fix.text;
      ASSERT_LT(fix.correction, static_cast<int64_t>(result->corrections.size()));
      if (fix.kind == Kind::kPaddedSize) {
        padded_corrections.insert(fix.correction);
      }
      reordered += fix.kind == Kind::kAxisOrder;
    }
    const std::vector<std::string> used = result->effective.AxisNames();
    for (size_t i = 0; i < result->corrections.size(); ++i) {
      const Correction& correction = result->corrections[i];
      PartitionSpec both({Several({used.begin(), used.end()}), correction.requested});
      if (correction.reason == Reason::kNotDivisible && both.DuplicateAxes().empty()) {
        EXPECT_EQ(padded_corrections.count(static_cast<int64_t>(i)), 1)
            << spec.ToString() << " on " << ShapeToString(shape);
        ++padded;
      }
    }
  }
  EXPECT_GT(padded, 1000);
  EXPECT_GT(reordered, 1000);
}

}  // namespace
}  // namespace shardmesh
