// Questions about profiles and hashes, as a coordinator answers and refuses them.
#include <gmock/gmock.h>

#include <string>

#include "sharding/partition_axis.h"
#include "sharding/profile_hash.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/resolve_service_fixture.h"

namespace shardmesh::server {
namespace {

using test::IsOk;
using test::StatusIs;

using test::kInvalid;

class ResolveProfilesTest : public ResolveServiceTest {
 protected:
  absl::Status Describe() {
    return Ask(&v1::ResolveService::Stub::DescribeProfile, profile_, &description_);
  }
  absl::Status Hash() {
    return Ask(&compat::v1::CompatService::Stub::ComputeHash, hash_, &hashed_);
  }
  v1::PartitionAxis* profile() { return profile_.mutable_profile()->mutable_value(); }

  // The answer about a semantic name.
  const v1::SemanticName& Name(const std::string& name) const {
    for (const v1::SemanticName& each : description_.semantic_names()) {
      if (each.name() == name) {
        return each;
      }
    }
    ADD_FAILURE() << "no " << name;
    return v1::SemanticName::default_instance();
  }

  v1::DescribeProfileRequest profile_;
  v1::DescribeProfileResponse description_;
  compat::v1::ComputeHashRequest hash_;
  compat::v1::ComputeHashResponse hashed_;
};

TEST_F(ResolveProfilesTest, ResolvesWhatIsNotGiven) {
  profile()->mutable_tensor_parallel_axis()->set_name("model");
  profile()->mutable_head_axis()->set_constant(v1::AXIS_CONSTANT_NOT_GIVEN);
  ASSERT_THAT(Describe(), IsOk());
  EXPECT_EQ(description_.profile().head_axis().name(), "model");
  EXPECT_EQ(description_.profile().decode_head_axis().name(), "model");
  EXPECT_EQ(description_.text().rfind("PartitionAxis(", 0), 0U);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PartitionAxis same,
      PartitionAxis::Create({FieldValue{"tensor_parallel_axis", AxisValue::Name("model")}}));
  EXPECT_EQ(description_.fingerprint(), Fingerprint(same));
  EXPECT_EQ(Name("__HEAD__").field(), "head_axis");
  EXPECT_EQ(Name("__HEAD__").generation_field(), "decode_head_axis");
  EXPECT_EQ(Name("__HEAD__").value().name(), "model");
  EXPECT_EQ(Name("_").field(), "");
  EXPECT_EQ(Name("_").value().constant(), v1::AXIS_CONSTANT_NONE);
}

TEST_F(ResolveProfilesTest, RefusesAFieldThatNoRuleResolves) {
  profile()->mutable_attention_dim_axis()->set_constant(v1::AXIS_CONSTANT_NOT_GIVEN);
  const absl::Status status = Describe();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kUnresolvedField));
  EXPECT_EQ(PythonTypeOf(status), "ValueError");
  EXPECT_EQ(FieldOf(status).rfind("profile.value", 0), 0U) << FieldOf(status);
}

TEST_F(ResolveProfilesTest, NamesTheValueThatDoesNotRead) {
  profile()->mutable_head_axis()->mutable_tuple()->add_values();
  const absl::Status status = Describe();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kBadField));
  EXPECT_EQ(FieldOf(status), "profile.value.head_axis.tuple.values[0].kind");
}

TEST_F(ResolveProfilesTest, ShowsWhatRegisteredAxesStandFor) {
  v1::SemanticAxis* const axis = profile()->add_semantic_axes();
  axis->set_name("__IMAGE__");
  axis->mutable_value()->set_name("__BATCH__");
  axis->mutable_generation_value()->set_constant(v1::AXIS_CONSTANT_NONE);
  ASSERT_THAT(Describe(), IsOk());
  EXPECT_EQ(Name("__IMAGE__").field(), "");
  EXPECT_EQ(Name("__IMAGE__").value().tuple().values_size(), 2);
  EXPECT_EQ(Name("__IMAGE__").generation_value().constant(), v1::AXIS_CONSTANT_NONE);
}

TEST_F(ResolveProfilesTest, RefusesAxesThatDoubleWithoutEnd) {
  for (int i = 0; i < 64; ++i) {
    v1::SemanticAxis* const axis = profile()->add_semantic_axes();
    axis->set_name("__A" + std::to_string(i) + "__");
    for (int twice = 0; twice < 2; ++twice) {
      axis->mutable_value()->mutable_tuple()->add_values()->set_name(
          i == 0 ? "tp" : "__A" + std::to_string(i - 1) + "__");
    }
  }
  EXPECT_THAT(Describe(), StatusIs(kInvalid, Reason::kLimitExceeded));
}

TEST_F(ResolveProfilesTest, RefusesAnAnswerThatWouldNotFitAMessage) {
  // One axis of 256 long names, and 255 axes that stand for the same.
  for (int i = 0; i < 256; ++i) {
    v1::SemanticAxis* const axis = profile()->add_semantic_axes();
    axis->set_name("__A" + std::to_string(i) + "__");
    if (i > 0) {
      axis->mutable_value()->set_name("__A0__");
      continue;
    }
    for (int entry = 0; entry < 256; ++entry) {
      axis->mutable_value()->mutable_tuple()->add_values()->set_name(std::string(255, 'x'));
    }
  }
  const absl::Status status = Describe();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_EQ(FieldOf(status), "profile.value.semantic_axes");
}

TEST_F(ResolveProfilesTest, HashesATextOfUpToOneMebibyte) {
  hash_.set_text("");
  ASSERT_THAT(Hash(), IsOk());
  EXPECT_EQ(hashed_.hash(), "281949768489412648962353822266799178366");
  hash_.set_text(std::string(1 << 20, 'x'));
  hash_.set_algorithm("sha256");
  EXPECT_THAT(Hash(), IsOk());
  hash_.mutable_text()->push_back('x');
  const absl::Status status = Hash();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_EQ(FieldOf(status), "text");
}

TEST_F(ResolveProfilesTest, KnowsTheAlgorithmsThatTheCompatibilityHas) {
  hash_.set_text("x");
  hash_.set_algorithm("sha512_256");
  EXPECT_THAT(Hash(), IsOk());
  hash_.set_compatibility(v1::COMPATIBILITY_EXACT);
  const absl::Status status = Hash();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kBadField));
  EXPECT_EQ(FieldOf(status), "algorithm");
  EXPECT_EQ(PythonTypeOf(status), "ValueError");
}

TEST_F(ResolveProfilesTest, HashesTheAttributesThatTheOriginalCounts) {
  compat::v1::PythonValues* const attributes = hash_.mutable_attributes();
  attributes->add_values()->set_text("left out");
  attributes->add_values()->set_number(1);
  compat::v1::PythonEntry* const entry = attributes->add_values()->mutable_dict()->add_entries();
  entry->mutable_key()->set_text("a");
  entry->mutable_value()->mutable_list()->add_values()->set_boolean(true);
  attributes->add_values()->set_integer("-7");
  ASSERT_THAT(Hash(), IsOk());
  EXPECT_EQ(hashed_.text(), "1.0{'a': [True]}-7");
  EXPECT_NE(hashed_.python_hash_value(), 0);
}

TEST_F(ResolveProfilesTest, RefusesMalformedAttributesByTheirPath) {
  compat::v1::PythonValues* const attributes = hash_.mutable_attributes();
  attributes->add_values()->mutable_list()->add_values()->set_integer("0x10");
  absl::Status status = Hash();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kBadField));
  EXPECT_EQ(FieldOf(status), "attributes.values[0].list.values[0].integer");

  attributes->Clear();
  attributes->add_values();
  status = Hash();
  EXPECT_EQ(FieldOf(status), "attributes.values[0].kind");

  attributes->Clear();
  compat::v1::PythonValue* deepest = attributes->add_values();
  for (int i = 0; i < 17; ++i) {
    deepest = deepest->mutable_list()->add_values();
  }
  deepest->set_none(true);
  EXPECT_THAT(Hash(), StatusIs(kInvalid, Reason::kLimitExceeded));

  attributes->Clear();
  for (int i = 0; i <= 65'536; ++i) {
    attributes->add_values()->set_none(true);
  }
  EXPECT_THAT(Hash(), StatusIs(kInvalid, Reason::kLimitExceeded));

  // Each byte is written as four, so that the text grows over the limit.
  attributes->Clear();
  attributes->add_values()->mutable_list()->add_values()->set_text(std::string(1 << 19, '\x01'));
  status = Hash();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_EQ(FieldOf(status), "attributes");
}

TEST_F(ResolveProfilesTest, RefusesAHashOfNothingAndAnAlgorithmForAttributes) {
  EXPECT_EQ(FieldOf(Hash()), "subject");
  hash_.mutable_attributes();
  EXPECT_THAT(Hash(), IsOk());
  hash_.set_algorithm("md5");
  EXPECT_EQ(FieldOf(Hash()), "algorithm");
  hash_.mutable_profile();
  EXPECT_EQ(FieldOf(Hash()), "algorithm");
}

TEST_F(ResolveProfilesTest, HashesAProfileAsTheOriginalDoes) {
  hash_.mutable_profile()->mutable_value()->mutable_tensor_parallel_axis()->set_name("model");
  ASSERT_THAT(Hash(), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PartitionAxis profile,
      PartitionAxis::Create({FieldValue{"tensor_parallel_axis", AxisValue::Name("model")}}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PythonHash hash, HashProfile(profile));
  EXPECT_EQ(hashed_.hash(), hash.digest);
  EXPECT_EQ(hashed_.text(), hash.text);
  EXPECT_EQ(hashed_.python_hash_value(), hash.value);

  hash_.mutable_profile()->set_name("nosuchprofile");
  EXPECT_THAT(Hash(), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

}  // namespace
}  // namespace shardmesh::server
