// Tests of sharding/correction.h: the reasons, and that correcting twice changes nothing.
#include "sharding/correction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using ::shardmesh::test::kInvalid;

PartitionSpec Spec(std::vector<SpecEntry> entries) { return PartitionSpec(std::move(entries)); }

Mesh MeshOf(std::string_view text) { return *Mesh::Parse(text); }

TEST(CorrectTest, NamesTheReasonOfEachDroppedDimension) {
  const Mesh mesh = MeshOf("dp=2,tp=4");
  const SpecEntry lacking = SpecEntry::Axes({"tp", "xx"});
  const SpecEntry both = SpecEntry::Axes({"dp", "tp"});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const CorrectionResult result,
      Correct(Spec({lacking, both, SpecEntry::Unconstrained(), SpecEntry::Axis("dp"),
                    SpecEntry::None(), SpecEntry::Axis("tp"), SpecEntry::None()}),
              {8, 12, 3, 6, 5}, mesh));
  EXPECT_EQ(result.effective, Spec({SpecEntry::None(), SpecEntry::None(), SpecEntry::None(),
                                    SpecEntry::Axis("dp"), SpecEntry::None()}));
  EXPECT_THAT(result.corrections,
              ElementsAre(Correction{0, lacking, Reason::kAxisNotInMesh, 1, 2, {"xx"}},
                          Correction{1, both, Reason::kNotDivisible, 12, 8},
                          Correction{2, SpecEntry::Unconstrained(), Reason::kUnconstrained, 0, 0},
                          Correction{5, SpecEntry::Axis("tp"), Reason::kRankTruncated, 5, 7}));
  EXPECT_EQ(result.corrections[1].ToString(),
            "dimension 1: ('dp', 'tp') dropped, 12 is not divisible by 8");
  EXPECT_EQ(result.corrections[0].ToString(),
            "dimension 0: ('tp', 'xx') dropped, the mesh has no axis 'xx'");
  EXPECT_EQ(result.corrections[0].ToString(mesh),
            "dimension 0: ('tp', 'xx') dropped, the mesh dp=2,tp=4 has no axis 'xx'");
}

TEST(CorrectTest, NamesTheAxesOfTheMeshAndTheOneThatWasMeant) {
  const Mesh mesh = MeshOf("dp=2,tp=4");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const CorrectionResult result,
      Correct(Spec({SpecEntry::Axis("tpp"), SpecEntry::Axis("xx")}), {8, 8}, mesh));
  ASSERT_EQ(result.corrections.size(), 2u);
  EXPECT_EQ(
      result.corrections[0].ToString(mesh),
      "dimension 0: 'tpp' dropped, the mesh dp=2,tp=4 has no such axis; did you mean \"tp\"?");
  EXPECT_EQ(result.corrections[1].ToString(mesh),
            "dimension 1: 'xx' dropped, the mesh dp=2,tp=4 has no such axis");
  // The mesh is misspelt.
  const Mesh misspelt = MeshOf("fspd=2,tp=2");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const CorrectionResult usual,
      Correct(Spec({SpecEntry::Axis("fsdp"), SpecEntry::Axis("sp")}), {8, 8}, misspelt));
  EXPECT_THAT(usual.corrections[0].ToString(misspelt),
              testing::HasSubstr("did you mean \"fspd\"?"));
  EXPECT_THAT(usual.corrections[1].ToString(misspelt),
              testing::Not(testing::HasSubstr("did you mean")));
}

TEST(CorrectTest, TakesNoUsualAxisForAMisspeltOne) {
  const Mesh mesh = MeshOf("fsdp=2,tp=4");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CorrectionResult result,
                                 Correct(Spec({SpecEntry::Axis("sp")}), {8}, mesh));
  ASSERT_EQ(result.corrections.size(), 1u);
  EXPECT_EQ(result.corrections[0].ToString(mesh),
            "dimension 0: 'sp' dropped, the mesh fsdp=2,tp=4 has no such axis");
}

TEST(CorrectTest, ReportsNothingWhereNothingWasAskedFor) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const CorrectionResult result,
      Correct(Spec({SpecEntry::None(), SpecEntry::None()}), {3}, MeshOf("dp=2")));
  EXPECT_EQ(result.effective, PartitionSpec());
  EXPECT_THAT(result.corrections, IsEmpty());
}

TEST(CorrectTest, RefusesAnAxisThatStillOccursTwice) {
  const Mesh mesh = MeshOf("dp=2,tp=4");
  EXPECT_THAT(Correct(Spec({SpecEntry::Axis("dp"), SpecEntry::Axis("dp")}), {4, 4}, mesh),
              StatusIs(kInvalid, Reason::kDuplicateAxis));
  EXPECT_THAT(Correct(Spec({SpecEntry::Axis("dp"), SpecEntry::Axis("dp")}), {4, 3}, mesh), IsOk());
}

// The original corrects into a spec made anew, which takes the name '' for no axis.
TEST(CorrectTest, KeepsNoAxisOfTheEmptyNameAlone) {
  MeshOptions options;
  options.allow_degenerate = true;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create({{"", 2}, {"a", 2}}, options));
  const PartitionSpec alone({SpecEntry::Axes({""}), SpecEntry::Axis("a")});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CorrectionResult without, Correct(alone, {16, 8}, mesh));
  EXPECT_EQ(without.effective, PartitionSpec({SpecEntry::None(), SpecEntry::Axis("a")}));
  const PartitionSpec among({SpecEntry::Axes({"", "a"}), SpecEntry::None()});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CorrectionResult with, Correct(among, {16, 8}, mesh));
  EXPECT_EQ(with.effective, among);
}

TEST(CorrectTest, KeepsUnreducedAxes) {
  const PartitionSpec spec({SpecEntry::Axis("dp")}, {"tp"});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CorrectionResult result,
                                 Correct(spec, {3}, MeshOf("dp=2,tp=4")));
  EXPECT_EQ(result.effective, PartitionSpec({}, {"tp"}));
}

TEST(CorrectTest, NeedsAMesh) {
  EXPECT_THAT(Correct(PartitionSpec(), {4}, Mesh()),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoMesh));
}

TEST(CorrectTest, SurvivesAProductOfSizesBeyond64Bits) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Parse("dp=2147483648"));
  const SpecEntry entry = SpecEntry::Axes({"dp", "dp", "dp", "dp"});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CorrectionResult result, Correct(Spec({entry}), {8}, mesh));
  EXPECT_THAT(result.corrections, ElementsAre(Correction{0, entry, Reason::kNotDivisible, 8,
                                                         std::numeric_limits<int64_t>::max()}));
}

TEST(CorrectTest, ChangesNothingTheSecondTime) {
  const Mesh mesh = MeshOf("dp=2,fsdp=3,tp=1,sp=4");
  const std::vector<std::string> names = {"dp", "fsdp", "tp", "sp", "xx"};
  std::mt19937 random(20240601);
  const auto below = [&random](size_t n) { return random() % n; };
  int corrected = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<SpecEntry> entries;
    for (size_t i = below(5); i > 0; --i) {
      std::vector<AxisName> axes;
      for (size_t j = below(3); j > 0; --j) {
        axes.emplace_back(names[below(names.size())]);
      }
      entries.push_back(SpecEntry::Axes(std::move(axes)));
    }
    Shape shape;
    for (size_t i = below(5); i > 0; --i) {
      shape.push_back(static_cast<int64_t>(below(25)));
    }
    const auto once = Correct(Spec(entries), shape, mesh);
    if (!once.ok()) {
      ASSERT_EQ(ReasonOf(once.status()), Reason::kDuplicateAxis) << once.status();
      continue;
    }
    ++corrected;
    const auto twice = Correct(once->effective, shape, mesh);
    ASSERT_THAT(twice, IsOk());
    ASSERT_EQ(twice->effective, once->effective);
    ASSERT_THAT(twice->corrections, IsEmpty());
  }
  EXPECT_GT(corrected, 2500);
}

}  // namespace
}  // namespace shardmesh
