// Specs from presets, by default and as the original has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharding/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/resolve_service_fixture.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

using Stub = v1::ResolveService::Stub;

class PresetTest : public ResolveServiceTest {
 protected:
  // A preset that goes by dimension 1, of size 1 here, and the mode "train", which it has no use
  // for.
  PresetTest() {
    request_.set_preset("HiddenStateSharding");
    request_.mutable_mode()->set_name("__train__");
    for (const int64_t size : {8, 1, 8}) {
      request_.mutable_shape()->add_sizes(size);
    }
    auto* fields = request_.mutable_profile()->mutable_inline_();
    fields->mutable_decode_batch_axis()->set_name("ep");
  }

  v1::ResolveSpecRequest request_;
  v1::ResolveSpecResponse response_;
};

TEST_F(PresetTest, RefusesAModeBesideIt) {
  const absl::Status status = Ask(&Stub::ResolveSpec, request_, &response_);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(status.message(), HasSubstr("dimension 1"));
  EXPECT_EQ(FieldOf(status), "mode");
}

TEST_F(PresetTest, IgnoresAModeBesideItAsTheOriginalDoes) {
  request_.set_compatibility(v1::COMPATIBILITY_EXACT);
  ASSERT_THAT(Ask(&Stub::ResolveSpec, request_, &response_), IsOk());
  EXPECT_EQ(response_.requested().dimensions(0).name(), "ep");
}

TEST_F(PresetTest, RefusesAxesBesideIt) {
  request_.clear_mode();
  request_.add_axes()->set_name("__BATCH__");
  const absl::Status status = Ask(&Stub::ResolveSpec, request_, &response_);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(FieldOf(status), "axes");
}

TEST_F(PresetTest, YieldsToAxesAndModeAsInTheOriginal) {
  request_.set_compatibility(v1::COMPATIBILITY_EXACT);
  request_.add_axes()->set_name("__EMBED__");
  ASSERT_THAT(Ask(&Stub::ResolveSpec, request_, &response_), IsOk());
  ASSERT_EQ(response_.requested().dimensions_size(), 1);
  EXPECT_EQ(response_.requested().dimensions(0).name(), "tp");
}

// Without a mode the original has no answer.
TEST_F(PresetTest, TrainsWhereAxesComeWithoutAMode) {
  v1::ResolveSpecRequest request;
  request.add_axes()->set_name("__EMBED__");
  EXPECT_THAT(Ask(&Stub::ResolveSpec, request, &response_), IsOk());
  request.set_compatibility(v1::COMPATIBILITY_EXACT);
  EXPECT_THAT(Ask(&Stub::ResolveSpec, request, &response_),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument));
}

}  // namespace
}  // namespace shardmesh::server
