// Errors of --strict: all corrections of all tensors, in few lines.
#include "client/cli/spec_printing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rpc/codec/correction_codec.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Correction NotDivisible(int64_t have) {
  return {.dim = 0,
          .requested = SpecEntry::Axis("tp"),
          .reason = Reason::kNotDivisible,
          .have = have,
          .need = 4};
}

absl::Status Refusal() {
  return rpc::WithCorrections(InvalidArgument(Reason::kNotDivisible, "tensor 'a': refused"),
                              {NotDivisible(30)}, {}, *Mesh::Parse("tp=4"));
}

TEST(WithAllCorrectedTest, HasALineForTensorsWithEqualCorrections) {
  const std::vector<CorrectedTensor> tensors = {{.name = "a", .corrections = {NotDivisible(30)}},
                                                {.name = "b", .corrections = {NotDivisible(7)}},
                                                {.name = "c", .corrections = {NotDivisible(30)}}};
  const absl::Status all = WithAllCorrected(Refusal(), tensors);
  EXPECT_EQ(all.message(),
            "tensor 'a': refused\n3 specs need corrections:\n"
            "  a and 1 more: dimension 0: 'tp' dropped, 30 is not divisible by 4\n"
            "  b: dimension 0: 'tp' dropped, 7 is not divisible by 4");
  EXPECT_EQ(ReasonOf(all), Reason::kNotDivisible);
  EXPECT_TRUE(IsOfStrict(all)) << "programs still read the corrections";
}

TEST(WithAllCorrectedTest, LeavesOneTensorAloneAndCountsBeyondTenLines) {
  const std::vector<CorrectedTensor> one = {{.name = "a", .corrections = {NotDivisible(30)}}};
  EXPECT_EQ(WithAllCorrected(Refusal(), one), Refusal());
  std::vector<CorrectedTensor> many;
  for (int64_t i = 0; i < 15; ++i) {
    many.push_back({.name = StrCat("t", i), .corrections = {NotDivisible(4 * i + 1)}});
  }
  const std::string message(WithAllCorrected(Refusal(), many).message());
  EXPECT_THAT(message, StartsWith("tensor 'a': refused\n15 specs need corrections:\n  t0: "));
  EXPECT_THAT(message, HasSubstr("\n  t9: "));
  EXPECT_THAT(message, Not(HasSubstr("t10")));
  EXPECT_THAT(message, HasSubstr("\n  and 5 more corrections; "));
  EXPECT_THAT(message, EndsWith("shows them"));
}

TEST(WithAllCorrectedTest, OnlyCorrectionsAreOfStrict) {
  EXPECT_TRUE(IsOfStrict(Refusal()));
  EXPECT_FALSE(IsOfStrict(absl::OkStatus()));
  EXPECT_FALSE(IsOfStrict(InvalidArgument(Reason::kNotDivisible, "no divisor")));
}

}  // namespace
}  // namespace shardmesh::client
