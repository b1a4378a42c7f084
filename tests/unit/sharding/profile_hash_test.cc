// Hashes of profiles: the fingerprint covers everything, the original's hash next to nothing.
#include "sharding/profile_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using test::IsOkAndHolds;

AxisValue Name(std::string name) { return AxisValue::Name(std::move(name)); }

PartitionAxis MakeProfile(const std::vector<FieldValue>& fields,
                          const std::vector<SemanticAxis>& semantic_axes = {}) {
  absl::StatusOr<PartitionAxis> profile = PartitionAxis::Create(fields, semantic_axes);
  EXPECT_TRUE(profile.ok()) << profile.status();
  return profile.ok() ? *profile : PartitionAxis();
}

TEST(FingerprintTest, IsTheSameInEveryProcess) {
  // Stored fingerprints are compared with new ones: another value here needs another version of
  // the text that is hashed.
  EXPECT_EQ(Fingerprint(PartitionAxis()),
            "e8f8fd2cfc40df6245d30e560e4fded0dbc8a3969bcc8959e9c551cb708cd280");
}

TEST(FingerprintTest, IsEqualForProfilesThatAreEqualHoweverTheyWereGiven) {
  const PartitionAxis given = MakeProfile({{"head_axis", Name("tp")},
                                           {"batch_axis", AxisValue::TupleOf({"fsdp", "dp"})},
                                           {"attention_dim_axis", AxisValue::None()}});
  EXPECT_EQ(given, PartitionAxis());
  EXPECT_EQ(Fingerprint(given), Fingerprint(PartitionAxis()));
}

TEST(FingerprintTest, CoversEveryField) {
  std::map<std::string, std::string> seen = {{Fingerprint(PartitionAxis()), "default"}};
  for (const std::string_view field : AxisFieldNames()) {
    for (const AxisValue& value :
         {Name("other"), AxisValue::TupleOf({"other"}), AxisValue::List({Name("other")})}) {
      const std::string what = std::string(field) + " " + value.ToString();
      const auto [it, inserted] =
          seen.emplace(Fingerprint(MakeProfile({{std::string(field), value}})), what);
      EXPECT_TRUE(inserted) << what << " and " << it->second;
    }
  }
}

TEST(FingerprintTest, CoversFurtherSemanticAxes) {
  const SemanticAxis plain{"stage", Name("pp"), std::nullopt};
  const SemanticAxis decoded{"stage", Name("pp"), Name("pp")};
  const SemanticAxis replicated{"stage", Name("pp"), AxisValue::None()};
  const SemanticAxis other{"layer", Name("pp"), std::nullopt};
  const std::vector<std::vector<SemanticAxis>> lists = {
      {}, {plain}, {decoded}, {replicated}, {other}, {plain, other}, {other, plain}};
  std::map<std::string, size_t> seen;
  for (size_t i = 0; i < lists.size(); ++i) {
    EXPECT_TRUE(seen.emplace(Fingerprint(MakeProfile({}, lists[i])), i).second) << i;
  }
}

TEST(FingerprintTest, DoesNotConfuseNamesThatLookLikeItsOwnMarks) {
  const std::vector<AxisValue> values = {
      Name("_"),
      AxisValue::None(),
      Name(""),
      Name("1:a1:b"),
      AxisValue::TupleOf({"a", "b"}),
      AxisValue::TupleOf({"a1:b"}),
      AxisValue::Tuple({AxisValue::TupleOf({"a"}), Name("b")}),
      AxisValue::Tuple({AxisValue::TupleOf({"a", "b"})}),
      AxisValue::Tuple({}),
      AxisValue::List({}),
      AxisValue::Tuple({AxisValue::None()}),
      AxisValue::Tuple({AxisValue::NotGiven()}),
      AxisValue::Unconstrained(),
  };
  std::map<std::string, std::string> seen;
  for (const AxisValue& value : values) {
    const auto [it, inserted] =
        seen.emplace(Fingerprint(MakeProfile({{"vocab_axis", value}})), value.ToString());
    EXPECT_TRUE(inserted) << value.ToString() << " and " << it->second;
  }
}

TEST(FingerprintTest, TellsRandomProfilesApartExactlyIfTheyDiffer) {
  std::mt19937 random(7);
  const auto pick = [&random](int n) {
    return static_cast<int>(random() % static_cast<unsigned>(n));
  };
  const auto value = [&]() -> AxisValue {
    switch (pick(4)) {
      case 0:
        return AxisValue::None();
      case 1:
        return Name(pick(2) == 0 ? "dp" : "tp");
      case 2:
        return AxisValue::TupleOf({"dp", "tp"});
      default:
        return AxisValue::List({Name("dp")});
    }
  };
  std::vector<PartitionAxis> profiles;
  for (int i = 0; i < 120; ++i) {
    std::vector<FieldValue> fields;
    for (const char* const field : {"vocab_axis", "head_axis", "decode_head_axis"}) {
      if (pick(2) == 0) fields.push_back({field, value()});
    }
    profiles.push_back(MakeProfile(fields));
  }
  for (const PartitionAxis& a : profiles) {
    for (const PartitionAxis& b : profiles) {
      ASSERT_EQ(a == b, Fingerprint(a) == Fingerprint(b)) << a.ToString() << b.ToString();
    }
  }
}

TEST(HashProfileTest, IsTheOriginalsWhichSeesListsAlone) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PythonHash nothing, HashFn({}));
  EXPECT_THAT(HashProfile(PartitionAxis()), IsOkAndHolds(nothing));
  EXPECT_THAT(HashProfile(MakeProfile({{"head_axis", AxisValue::TupleOf({"x"})}})),
              IsOkAndHolds(nothing));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PythonHash list,
      HashProfile(MakeProfile({{"head_axis", AxisValue::List({Name("x"), Name("y")})}})));
  // Once as the head's field, once as its decode variant.
  EXPECT_EQ(list.text, "['x', 'y']['x', 'y']");
}

}  // namespace
}  // namespace shardmesh
