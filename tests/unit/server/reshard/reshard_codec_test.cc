// Requests of Reshard as the coordinator takes them, and the parts of its answers.
#include "server/codec/reshard_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

const absl::Time kNow = absl::FromUnixSeconds(1'000);

v1::ReshardRequest Request() {
  v1::ReshardRequest request;
  request.set_request_id("r");
  request.set_session_id("s");
  request.mutable_array()->set_name("w");
  rpc::Encode(PartitionSpec({SpecEntry::Axis("x")}), request.mutable_spec());
  return request;
}
absl::StatusOr<ReshardCall> Decoded(const v1::ReshardRequest& request) {
  return Decode(std::make_shared<const v1::ReshardRequest>(request), kNow);
}

TEST(ReshardCodecTest, ARequestIsTakenWhole) {
  v1::ReshardRequest request = Request();
  request.mutable_mesh()->set_name("n");
  request.set_name("v");
  request.mutable_precondition()->set_must_not_exist(true);
  request.set_release_source(true);
  request.set_policy(v1::CORRECTION_POLICY_STRICT);
  request.mutable_timeout()->set_seconds(5);
  v1::CutPoints* const cut = request.add_cut_points();
  cut->set_dimension(0);
  cut->add_starts(3);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ReshardCall call, Decoded(request));
  EXPECT_EQ(call.request_id, "r");
  EXPECT_EQ(call.session_id, "s");
  ASSERT_TRUE(call.array.has_value());
  EXPECT_EQ(call.array->name, "w");
  EXPECT_EQ(call.mesh_id, "n");
  EXPECT_EQ(call.spec, PartitionSpec({SpecEntry::Axis("x")}));
  EXPECT_EQ(call.name, "v");
  EXPECT_EQ(call.expected_version, 0);
  EXPECT_TRUE(call.release_source);
  EXPECT_TRUE(call.strict);
  EXPECT_FALSE(call.validate_only);
  EXPECT_EQ(call.deadline, kNow + absl::Seconds(5));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<CutPoints> cuts, call.cut_points({8}));
  EXPECT_EQ(cuts, (std::vector<CutPoints>{{0, 3, 8}}));
  EXPECT_FALSE(call.cut_points({2}).ok());
}

TEST(ReshardCodecTest, ARuleForUnevenCutsIsTakenWithItsWeights) {
  EXPECT_EQ(Decoded(Request())->uneven, UnevenCuts::kEqualOnly);
  v1::ReshardRequest request = Request();
  request.set_prefix("t/");
  request.set_uneven(v1::UNEVEN_CUTS_BY_WEIGHTS);
  request.add_weights(1);
  request.add_weights(3);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ReshardCall call, Decoded(request));
  EXPECT_EQ(call.uneven, UnevenCuts::kByWeights);
  EXPECT_EQ(call.weights, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(call.cut_points, nullptr);
  const auto field_of = [](const v1::ReshardRequest& wrong) {
    const absl::Status refused = Decoded(wrong).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
    const auto violations = rpc::FieldViolationsOf(refused);
    return violations.empty() ? std::string() : violations.front().field;
  };
  request.set_uneven(v1::UNEVEN_CUTS_CEIL_CHUNKS);
  EXPECT_EQ(field_of(request), "weights");
  request.clear_weights();
  EXPECT_THAT(Decoded(request), IsOk());
  request.add_cut_points()->add_starts(3);
  EXPECT_EQ(field_of(request), "cut_points");
  request.set_uneven(static_cast<v1::UnevenCuts>(77));
  request.clear_cut_points();
  EXPECT_EQ(field_of(request), "uneven");
}

TEST(ReshardCodecTest, APrefixMayBeEmptyAndTheTimeUnlimited) {
  v1::ReshardRequest request = Request();
  request.set_prefix("");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ReshardCall call, Decoded(request));
  EXPECT_FALSE(call.array.has_value());
  EXPECT_EQ(call.prefix, "");
  EXPECT_EQ(call.deadline, absl::InfiniteFuture());
}

TEST(ReshardCodecTest, DifferentRequestsHaveDifferentFingerprints) {
  v1::ReshardRequest other = Request();
  other.set_release_source(true);
  EXPECT_NE(Decoded(Request())->fingerprint, Decoded(other)->fingerprint);
  EXPECT_EQ(Decoded(Request())->fingerprint, Decoded(Request())->fingerprint);
}

TEST(ReshardCodecTest, LongAnswersAreCutIntoMessages) {
  constexpr int kRanks = 60'000;
  constexpr int kArrays = 3'000;
  v1::ReshardResponse left;
  left.set_array_count(kArrays);
  for (int i = 0; i < kRanks; ++i) {
    v1::ReshardMemory* const memory = left.add_memory();
    memory->set_rank(i);
    memory->set_identity(std::string(80, 'w'));
  }
  for (int i = 0; i < kArrays; ++i) left.add_arrays()->set_name(std::string(900, 'n'));
  left.set_done_bytes(5);
  left.set_revision(7);
  int ranks = 0;
  int arrays = 0;
  for (bool has_more = true; has_more;) {
    v1::ReshardResponse message;
    message.Swap(&left);
    has_more = MoveExcess(&message, &left);
    EXPECT_LT(message.ByteSizeLong(), size_t{3} << 20);
    EXPECT_EQ(message.array_count(), ranks == 0 ? kArrays : 0);
    for (const v1::ReshardMemory& memory : message.memory()) EXPECT_EQ(memory.rank(), ranks++);
    if (ranks < kRanks) {
      EXPECT_EQ(message.arrays_size(), 0);
    }
    arrays += message.arrays_size();
    EXPECT_EQ(message.done_bytes(), 5);
    EXPECT_EQ(message.revision(), has_more ? 0 : 7);
  }
  EXPECT_EQ(ranks, kRanks);
  EXPECT_EQ(arrays, kArrays);
}

TEST(ReshardCodecTest, TheListOfMemoryOfALargeMeshIsInTheFirstMessage) {
  v1::ReshardResponse message;
  for (int i = 0; i < 4'096; ++i) message.add_memory()->set_identity(std::string(200, 'w'));
  v1::ReshardResponse rest;
  EXPECT_FALSE(MoveExcess(&message, &rest));
  EXPECT_EQ(message.memory_size(), 4'096);
}

TEST(ReshardCodecTest, MalformedFieldsAreNamed) {
  const struct Case {
    std::string field;
    std::function<void(v1::ReshardRequest&)> spoil;
  } kCases[] = {
      {"array", [](v1::ReshardRequest& r) { r.clear_source(); }},
      {"mesh", [](v1::ReshardRequest& r) { r.mutable_mesh()->mutable_value(); }},
      {"preset", [](v1::ReshardRequest& r) { r.set_preset(""); }},
      {"name", [](v1::ReshardRequest& r) { r.set_name("a\nb"); }},
      {"precondition.version",
       [](v1::ReshardRequest& r) { r.mutable_precondition()->set_version(0); }},
      {"policy", [](v1::ReshardRequest& r) { r.set_policy(v1::CorrectionPolicy(77)); }},
      {"timeout.nanos",
       [](v1::ReshardRequest& r) { r.mutable_timeout()->set_nanos(-1'000'000'001); }},
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.field);
    v1::ReshardRequest request = Request();
    c.spoil(request);
    const absl::Status refused = Decoded(request).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument));
    const auto violations = rpc::FieldViolationsOf(refused);
    ASSERT_EQ(violations.size(), 1u);
    EXPECT_EQ(violations[0].field, c.field);
  }
}

TEST(ReshardCodecTest, TheSumsOfPartialSumsAreSetOnlyIfThereAreAny) {
  ReshardedArray array{.name = "w", .moved_bytes = 64};
  v1::ReshardedArray plain;
  Encode(array, &plain);
  EXPECT_EQ(plain.summed_bytes(), 0);
  EXPECT_FALSE(plain.has_sums_spec());
  array.summed_bytes = 32;
  array.sums_spec = PartitionSpec({SpecEntry::Axis("x")});
  v1::ReshardedArray summed;
  Encode(array, &summed);
  EXPECT_EQ(summed.moved_bytes(), 64);
  EXPECT_EQ(summed.summed_bytes(), 32);
  ASSERT_EQ(summed.sums_spec().dimensions_size(), 1);
}

}  // namespace
}  // namespace shardmesh::server
