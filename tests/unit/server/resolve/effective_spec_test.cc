// ResolveEffectiveSpec answers as ResolveSpec does, without nested messages.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
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

// The mesh axes of each dimension.
using Dimensions = std::vector<std::vector<std::string>>;

Dimensions DimensionsOf(const v1::PartitionSpec& spec) {
  Dimensions dimensions;
  for (const v1::AxisValue& value : spec.dimensions()) {
    std::vector<std::string>& axes = dimensions.emplace_back();
    if (value.has_name()) axes.push_back(value.name());
    for (const v1::AxisValue& axis : value.tuple().values()) axes.push_back(axis.name());
  }
  return dimensions;
}

Dimensions DimensionsOf(const v1::ResolveEffectiveSpecResponse& response) {
  Dimensions dimensions;
  int next = 0;
  for (const int32_t count : response.axis_counts()) {
    std::vector<std::string>& axes = dimensions.emplace_back();
    for (int i = 0; i < count; ++i) axes.push_back(response.axes(next++));
  }
  EXPECT_EQ(next, response.axes_size());
  return dimensions;
}

class EffectiveSpecTest : public ResolveServiceTest {
 protected:
  static v1::ResolveEffectiveSpecRequest Question(const std::vector<std::string>& axes,
                                                  const std::vector<int64_t>& shape) {
    v1::ResolveEffectiveSpecRequest request;
    for (const std::string& axis : axes) request.add_axes(axis);
    for (const int64_t size : shape) request.add_shape(size);
    request.set_mesh("default");
    return request;
  }
  static v1::ResolveSpecRequest Full(const v1::ResolveEffectiveSpecRequest& from) {
    v1::ResolveSpecRequest to;
    for (const std::string& axis : from.axes()) to.add_axes()->set_name(axis);
    to.set_preset(from.preset());
    if (from.has_mode()) to.mutable_mode()->set_name(from.mode());
    *to.mutable_shape()->mutable_sizes() = from.shape();
    if (from.has_profile()) to.mutable_profile()->set_name(from.profile());
    to.mutable_mesh()->set_name(from.mesh());
    to.set_policy(from.policy());
    return to;
  }
  absl::Status Ask(const v1::ResolveEffectiveSpecRequest& request) {
    return ResolveServiceTest::Ask(&v1::ResolveService::Stub::ResolveEffectiveSpec, request,
                                   &effective_);
  }
  void ExpectTheSameAnswer(const v1::ResolveEffectiveSpecRequest& request) {
    SCOPED_TRACE(request.ShortDebugString());
    v1::ResolveSpecResponse full;
    const absl::Status expected =
        ResolveServiceTest::Ask(&v1::ResolveService::Stub::ResolveSpec, Full(request), &full);
    const absl::Status got = Ask(request);
    EXPECT_EQ(got.code(), expected.code());
    EXPECT_EQ(ReasonOf(got), ReasonOf(expected));
    EXPECT_EQ(got.message(), expected.message());
    if (!expected.ok() || !got.ok()) return;
    ++answers_;
    EXPECT_EQ(DimensionsOf(effective_), DimensionsOf(full.effective()));
    std::vector<int32_t> corrected;
    for (const v1::Correction& each : full.corrections()) corrected.push_back(each.dimension());
    EXPECT_THAT(effective_.corrected_dimensions(), testing::ElementsAreArray(corrected));
    EXPECT_THAT(effective_.shard_shape(), testing::ElementsAreArray(full.shard_shape()));
    EXPECT_EQ(effective_.revision(), full.revision());
  }

  v1::ResolveEffectiveSpecResponse effective_;
  int answers_ = 0;
};

TEST_F(EffectiveSpecTest, AnswersAsTheFullQuestionDoes) {
  const std::vector<std::string> axes = {"__BATCH__", "__LENGTH__", "__EMBED__",
                                         "__HEAD__",  "_",          "__KV_HEAD__"};
  for (const std::string& a : axes) {
    for (const std::string& b : axes) {
      for (const std::vector<int64_t>& shape :
           {std::vector<int64_t>{8, 8}, {7, 8}, {8, 0}, {8, 4, 2}, {8}, {}}) {
        for (const char* mode : {"", "__train__", "__autoregressive__"}) {
          v1::ResolveEffectiveSpecRequest request = Question({a, b}, shape);
          if (*mode != '\0') request.set_mode(mode);
          ExpectTheSameAnswer(request);
        }
      }
    }
  }
  EXPECT_GT(answers_, 300);
}

TEST_F(EffectiveSpecTest, TakesPresetsAndTheStrictPolicy) {
  v1::ListPresetsResponse presets;
  ASSERT_THAT(ResolveServiceTest::Ask(&v1::ResolveService::Stub::ListPresets,
                                      v1::ListPresetsRequest(), &presets),
              IsOk());
  for (const v1::AxisPreset& preset : presets.presets()) {
    v1::ResolveEffectiveSpecRequest request =
        Question({}, std::vector<int64_t>(static_cast<size_t>(preset.axes_size()), 6));
    request.set_preset(preset.name());
    ExpectTheSameAnswer(request);
    request.set_policy(v1::CORRECTION_POLICY_STRICT);
    ExpectTheSameAnswer(request);
  }
  EXPECT_GT(answers_, 5);
}

TEST_F(EffectiveSpecTest, SaysWhichDimensionsWereCorrected) {
  ASSERT_THAT(Ask(Question({"__BATCH__", "__LENGTH__", "__EMBED__"}, {32, 128, 7})), IsOk());
  EXPECT_THAT(effective_.corrected_dimensions(), ElementsAre(0, 1, 2)) << "no dp, no sp, 7 / 2";
  EXPECT_THAT(effective_.axis_counts(), IsEmpty()) << "P()";
  EXPECT_THAT(effective_.shard_shape(), ElementsAre(32, 128, 7));
  ASSERT_THAT(Ask(Question({"_", "__HEAD__"}, {3, 8})), IsOk());
  EXPECT_THAT(effective_.corrected_dimensions(), IsEmpty());
  EXPECT_THAT(effective_.axes(), ElementsAre("tp"));
  EXPECT_THAT(effective_.axis_counts(), ElementsAre(0, 1));
  EXPECT_THAT(effective_.shard_shape(), ElementsAre(3, 4));
}

TEST_F(EffectiveSpecTest, NamesTheFieldThatIsWrong) {
  struct Case {
    std::function<void(v1::ResolveEffectiveSpecRequest*)> spoil;
    Reason reason;
    std::string field;
  };
  using Request = v1::ResolveEffectiveSpecRequest;
  const std::vector<Case> cases = {
      {[](Request* r) { r->clear_mesh(); }, Reason::kMissingArgument, "mesh"},
      {[](Request* r) { r->set_mesh("defualt"); }, Reason::kNotFound, "mesh"},
      {[](Request* r) { r->set_profile("none"); }, Reason::kNotFound, "profile"},
      {[](Request* r) { r->set_mode("__trian__"); }, Reason::kUnknownMode, "mode"},
      {[](Request* r) { r->set_axes(0, "__HEADS__"); }, Reason::kUnknownAxis, "axes"},
      {[](Request* r) { r->set_axes(0, std::string(256, 'a')); }, Reason::kLimitExceeded,
       "axes[0]"},
      {[](Request* r) {
         for (int i = 0; i < 16; ++i) r->add_axes("_");
       },
       Reason::kLimitExceeded, "axes"},
      {[](Request* r) { r->set_shape(0, -1); }, Reason::kInvalidShape, "shape"},
      {[](Request* r) { r->set_preset("HiddenStateSharding"); }, Reason::kBadField, "axes"},
      {[](Request* r) { r->set_policy(static_cast<v1::CorrectionPolicy>(9)); }, Reason::kBadField,
       "policy"},
  };
  for (const Case& each : cases) {
    Request request = Question({"__HEAD__"}, {8});
    each.spoil(&request);
    const absl::Status status = Ask(request);
    EXPECT_EQ(status.code(),
              each.reason == Reason::kNotFound ? absl::StatusCode::kNotFound : kInvalid)
        << status;
    EXPECT_EQ(ReasonOf(status), each.reason) << status;
    EXPECT_EQ(FieldOf(status), each.field) << status;
  }
}

}  // namespace
}  // namespace shardmesh::server
