// Questions about linear layers, as a coordinator answers and refuses them.
#include <gmock/gmock.h>

#include <limits>
#include <string>

#include "status/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/resolve_service_fixture.h"

namespace shardmesh::server {
namespace {

using test::IsOk;
using test::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using test::kInvalid;

class ResolveLayersTest : public ResolveServiceTest {
 protected:
  absl::Status Output() {
    return Ask(&compat::v1::CompatService::Stub::ResolveOutputSpec, output_, &result_);
  }
  absl::Status Check() {
    return Ask(&compat::v1::CompatService::Stub::CheckTensorParallel, check_, &checked_);
  }
  absl::Status Describe() {
    return Ask(&compat::v1::CompatService::Stub::DescribeLinearLayer, layer_, &described_);
  }
  absl::Status Promote() {
    return Ask(&compat::v1::CompatService::Stub::PromoteDtypes, promote_, &promoted_);
  }

  compat::v1::ResolveOutputSpecRequest output_;
  compat::v1::ResolveOutputSpecResponse result_;
  compat::v1::CheckTensorParallelRequest check_;
  compat::v1::CheckTensorParallelResponse checked_;
  compat::v1::DescribeLinearLayerRequest layer_;
  compat::v1::DescribeLinearLayerResponse described_;
  compat::v1::PromoteDtypesRequest promote_;
  compat::v1::PromoteDtypesResponse promoted_;
};

TEST_F(ResolveLayersTest, TellsTheSpecOfAProduct) {
  output_.set_kind(compat::v1::ResolveOutputSpecRequest::KIND_MATMUL);
  output_.mutable_lhs()->mutable_spec()->add_dimensions()->set_name("dp");
  output_.mutable_lhs()->mutable_spec()->add_dimensions()->set_name("tp");
  output_.mutable_rhs()->mutable_spec()->add_dimensions()->set_name("tp");
  output_.mutable_rhs()->mutable_spec()->add_dimensions()->set_name("sp");
  ASSERT_THAT(Output(), IsOk());
  ASSERT_EQ(result_.spec().dimensions_size(), 2);
  EXPECT_EQ(result_.spec().dimensions(0).name(), "dp");
  EXPECT_EQ(result_.spec().dimensions(1).name(), "sp");

  // A layer swaps the weight's axes for two dimensions, else cuts the last one alone.
  output_.set_kind(compat::v1::ResolveOutputSpecRequest::KIND_LINEAR);
  output_.mutable_lhs()->set_rank(2);
  ASSERT_THAT(Output(), IsOk());
  EXPECT_EQ(result_.spec().dimensions(0).name(), "sp");
  output_.mutable_lhs()->set_rank(3);
  output_.set_axis_name("model");
  ASSERT_THAT(Output(), IsOk());
  ASSERT_EQ(result_.spec().dimensions_size(), 3);
  EXPECT_EQ(result_.spec().dimensions(2).name(), "model");
}

TEST_F(ResolveLayersTest, KnowsOperandsThatLieOnNoMesh) {
  output_.set_kind(compat::v1::ResolveOutputSpecRequest::KIND_OPERAND);
  output_.mutable_lhs()->set_kind(compat::v1::OperandLayout::KIND_NONE);
  ASSERT_THAT(Output(), IsOk());
  EXPECT_FALSE(result_.has_spec());
  output_.mutable_lhs()->set_kind(compat::v1::OperandLayout::KIND_SINGLE_DEVICE);
  const absl::Status status = Output();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kInvalidSpec));
  EXPECT_EQ(PythonTypeOf(status), "AttributeError");
  EXPECT_EQ(FieldOf(status), "lhs");
}

TEST_F(ResolveLayersTest, RefusesMalformedOperandsByTheirField) {
  EXPECT_EQ(FieldOf(Output()), "kind");
  output_.set_kind(compat::v1::ResolveOutputSpecRequest::KIND_LINEAR);
  for (const int64_t rank : {int64_t{-1}, int64_t{17}, std::numeric_limits<int64_t>::max()}) {
    output_.mutable_lhs()->set_rank(rank);
    EXPECT_THAT(Output(), StatusIs(kInvalid, Reason::kInvalidShape)) << rank;
  }
  output_.mutable_lhs()->set_kind(static_cast<compat::v1::OperandLayout::Kind>(9));
  EXPECT_EQ(FieldOf(Output()), "lhs.kind");
  output_.mutable_lhs()->set_kind(compat::v1::OperandLayout::KIND_NONE);
  output_.mutable_lhs()->mutable_spec();
  EXPECT_EQ(FieldOf(Output()), "lhs.spec");
  output_.clear_lhs();
  output_.mutable_rhs()->mutable_spec()->add_dimensions();
  EXPECT_EQ(FieldOf(Output()), "rhs.spec.dimensions[0].kind");
  output_.set_kind(compat::v1::ResolveOutputSpecRequest::KIND_OPERAND);
  output_.mutable_rhs()->clear_spec();
  EXPECT_EQ(FieldOf(Output()), "rhs");
  output_.set_axis_name(std::string(256, 'x'));
  EXPECT_EQ(FieldOf(Output()), "axis_name");
}

TEST_F(ResolveLayersTest, ChecksSettingsAgainstTheMeshAround) {
  ASSERT_THAT(Check(), IsOk());
  EXPECT_EQ(checked_.config().axis_name(), "tp");
  EXPECT_FALSE(checked_.has_mesh());

  check_.mutable_config()->set_matmul_method("");
  absl::Status status = Check();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoMesh));
  EXPECT_EQ(PythonTypeOf(status), "AssertionError");

  check_.mutable_context_mesh()->set_name("default");
  ASSERT_THAT(Check(), IsOk());
  EXPECT_EQ(checked_.mesh().axes_size(), 2);
  EXPECT_TRUE(checked_.config().has_matmul_method());

  check_.mutable_config()->set_axis_name("model");
  status = Check();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kAxisNotInMesh));
  EXPECT_EQ(FieldOf(status), "config");
  check_.mutable_config()->mutable_mesh()->set_name("nowhere");
  EXPECT_THAT(Check(), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  check_.mutable_config()->mutable_mesh()->mutable_value()->add_axes();
  EXPECT_EQ(FieldOf(Check()), "config.mesh.value.axes");
}

TEST_F(ResolveLayersTest, DescribesMergedLayers) {
  layer_.set_in_features(16);
  layer_.add_out_features(64);
  layer_.add_out_features(32);
  layer_.set_use_bias(true);
  layer_.set_rule("fan_in");
  layer_.set_direction(compat::v1::PARALLEL_DIRECTION_COLUMN);
  ASSERT_THAT(Describe(), IsOk());
  EXPECT_THAT(described_.kernel_shape(), ElementsAre(16, 96));
  EXPECT_THAT(described_.bias_shape(), ElementsAre(96));
  EXPECT_EQ(described_.merged_layers(), 2);
  EXPECT_EQ(described_.scale_factor(), 0.25);
  EXPECT_EQ(described_.dtype(), v1::DTYPE_F32);
  EXPECT_EQ(described_.direction(), compat::v1::PARALLEL_DIRECTION_COLUMN);

  layer_.set_compatibility(v1::COMPATIBILITY_EXACT);
  const absl::Status status = Describe();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kInvalidShape));
  EXPECT_EQ(PythonTypeOf(status), "TypeError");
}

TEST_F(ResolveLayersTest, TellsOneNumberFromASequenceOfOne) {
  layer_.set_in_features(4);
  layer_.add_out_features(8);
  layer_.set_compatibility(v1::COMPATIBILITY_EXACT);
  ASSERT_THAT(Describe(), IsOk());
  EXPECT_THAT(described_.bias_shape(), IsEmpty());
  layer_.set_merged(true);
  EXPECT_THAT(Describe(), StatusIs(kInvalid, Reason::kInvalidShape));
  layer_.clear_compatibility();
  EXPECT_THAT(Describe(), IsOk());
}

TEST_F(ResolveLayersTest, RefusesWhatMakesNoLayer) {
  layer_.set_in_features(std::numeric_limits<int64_t>::max());
  layer_.add_out_features(std::numeric_limits<int64_t>::max());
  EXPECT_THAT(Describe(), StatusIs(kInvalid, Reason::kInvalidShape));
  layer_.add_out_features(std::numeric_limits<int64_t>::max());
  EXPECT_THAT(Describe(), StatusIs(kInvalid, Reason::kInvalidShape));
  layer_.set_in_features(4);
  layer_.clear_out_features();
  EXPECT_THAT(Describe(), StatusIs(kInvalid, Reason::kInvalidShape));
  layer_.add_out_features(8);
  layer_.set_dtype(v1::DTYPE_I32);
  EXPECT_EQ(FieldOf(Describe()), "dtype");
  layer_.set_dtype(static_cast<v1::Dtype>(60));
  EXPECT_EQ(FieldOf(Describe()), "dtype");
  layer_.set_direction(static_cast<compat::v1::ParallelDirection>(3));
  EXPECT_EQ(FieldOf(Describe()), "direction");
  layer_.set_rule(std::string(256, 'x'));
  EXPECT_EQ(FieldOf(Describe()), "rule");
  layer_.mutable_out_features()->Resize(10'001, 1);
  EXPECT_EQ(FieldOf(Describe()), "out_features");
}

TEST_F(ResolveLayersTest, PromotesElementTypes) {
  promote_.add_dtypes(v1::DTYPE_BF16);
  promote_.add_dtypes(v1::DTYPE_F16);
  ASSERT_THAT(Promote(), IsOk());
  EXPECT_EQ(promoted_.dtype(), v1::DTYPE_F32);
  promote_.set_dtype(v1::DTYPE_BF16);
  ASSERT_THAT(Promote(), IsOk());
  EXPECT_EQ(promoted_.dtype(), v1::DTYPE_BF16);
  promote_.set_dtype(v1::DTYPE_I32);
  absl::Status status = Promote();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kUnsupportedDtype));
  EXPECT_EQ(FieldOf(status), "dtype");

  promote_.clear_dtype();
  promote_.add_dtypes(v1::DTYPE_F8_E4M3FN);
  status = Promote();
  EXPECT_EQ(PythonTypeOf(status), "TypePromotionError");
  EXPECT_EQ(FieldOf(status), "dtypes");
  promote_.add_dtypes(static_cast<v1::Dtype>(60));
  EXPECT_EQ(FieldOf(Promote()), "dtypes[3]");
  promote_.clear_dtypes();
  promote_.set_dtype(static_cast<v1::Dtype>(60));
  EXPECT_EQ(FieldOf(Promote()), "dtype");
  promote_.clear_dtype();
  EXPECT_THAT(Promote(), StatusIs(kInvalid, Reason::kMissingArgument));
  promote_.mutable_dtypes()->Resize(10'001, v1::DTYPE_F32);
  EXPECT_THAT(Promote(), StatusIs(kInvalid, Reason::kLimitExceeded));
}

}  // namespace
}  // namespace shardmesh::server
