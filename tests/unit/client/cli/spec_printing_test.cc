// Errors of --strict: all corrections of all tensors, in few lines.
#include "client/cli/spec_printing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "rpc/codec/correction_codec.h"
#include "sharding/correction.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
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

constexpr char kAdvice[] = "\nAsk for such specs, or leave out --strict to accept the corrections";

// Returns a tensor for which `requested` is asked, as its correction leaves it.
CorrectedTensor Corrected(std::string name, Shape shape, const PartitionSpec& requested,
                          const Mesh& mesh) {
  CorrectionResult result = *Correct(requested, shape, mesh);
  return {.name = std::move(name),
          .corrections = std::move(result.corrections),
          .mesh = mesh,
          .effective = std::move(result.effective),
          .shape = std::move(shape)};
}

TEST(WithAllCorrectedTest, HasALineForTensorsWithEqualCorrections) {
  const std::vector<CorrectedTensor> tensors = {{.name = "a", .corrections = {NotDivisible(30)}},
                                                {.name = "b", .corrections = {NotDivisible(7)}},
                                                {.name = "c", .corrections = {NotDivisible(30)}}};
  const absl::Status all = WithAllCorrected(Refusal(), tensors);
  EXPECT_EQ(all.message(),
            StrCat("tensor 'a': refused\n3 specs need corrections:\n"
                   "  a and 1 more: dimension 0: 'tp' dropped, 30 is not divisible by 4\n"
                   "  b: dimension 0: 'tp' dropped, 7 is not divisible by 4",
                   kAdvice));
  EXPECT_EQ(ReasonOf(all), Reason::kNotDivisible);
  EXPECT_TRUE(IsOfStrict(all)) << "programs still read the corrections";
}

TEST(WithAllCorrectedTest, HasTheFixesOfEachGroup) {
  const Mesh mesh = *Mesh::Parse("fsdp=2,tp=4");
  const SpecEntry fsdp = SpecEntry::Axis("fsdp");
  const SpecEntry tp = SpecEntry::Axis("tp");
  const SpecEntry none = SpecEntry::None();
  const absl::Status all =
      WithAllCorrected(Refusal(), {Corrected("a", {30, 7}, PartitionSpec({tp, none}), mesh),
                                   Corrected("b", {30, 9}, PartitionSpec({tp, none}), mesh),
                                   Corrected("c", {30, 6}, PartitionSpec({tp, fsdp}), mesh),
                                   Corrected("d", {9, 8}, PartitionSpec({fsdp, none}), mesh)});
  EXPECT_EQ(all.message(),
            StrCat("tensor 'a': refused\n4 specs need corrections:\n"
                   "  a and 1 more: dimension 0: 'tp' dropped, 30 is not divisible by 4\n"
                   "    fix: spec '()'\n"
                   "    fix: spec 'tp,-', and pad dimension 0 from 30 to 32\n"
                   // Equal corrections, but another spec is asked for and would be kept.
                   "  c: dimension 0: 'tp' dropped, 30 is not divisible by 4\n"
                   "    fix: spec '-,fsdp'\n"
                   "    fix: spec 'tp,fsdp', and pad dimension 0 from 30 to 32\n"
                   "  d: dimension 0: 'fsdp' dropped, 9 is not divisible by 2\n"
                   "    fix: spec '()'\n"
                   "    fix: spec 'fsdp,-', and pad dimension 0 from 9 to 10\n"
                   "    fix: spec '-,fsdp'",
                   kAdvice));
  EXPECT_TRUE(HasAllCorrected(all)) << "no fix of the first tensor stands below the message";
  EXPECT_FALSE(HasAllCorrected(Refusal()));
}

TEST(WithAllCorrectedTest, ListsAnotherOrderOfAxesOnlyForTensorsOfOneShape) {
  const Mesh mesh = *Mesh::Parse("fsdp=2,tp=4");
  const PartitionSpec requested({SpecEntry::Axis("tp"), SpecEntry::None()});
  const CorrectedTensor turned = Corrected("a", {30, 8}, requested, mesh);
  CorrectedTensor same = turned;
  same.name = "b";
  EXPECT_THAT(std::string(WithAllCorrected(Refusal(), {turned, same}).message()),
              HasSubstr("\n    fix: spec '-,tp'"));
  EXPECT_THAT(
      std::string(WithAllCorrected(Refusal(), {turned, Corrected("b", {30, 9}, requested, mesh)})
                      .message()),
      Not(HasSubstr("'-,tp'")));
}

TEST(WithAllCorrectedTest, FindsTheRequestAlsoBeyondTheRank) {
  const Mesh mesh = *Mesh::Parse("fsdp=2,tp=4");
  const PartitionSpec requested({SpecEntry::None(), SpecEntry::Axis("tp")});
  EXPECT_THAT(
      std::string(WithAllCorrected(Refusal(), {Corrected("bias", {8}, requested, mesh)}).message()),
      HasSubstr("\n    fix: spec 'tp'"));
}

TEST(WithAllCorrectedTest, NamesTheOneTensorAndCountsBeyondTenLines) {
  EXPECT_EQ(WithAllCorrected(Refusal(), {}), Refusal());
  const std::vector<CorrectedTensor> one = {{.name = "a", .corrections = {NotDivisible(30)}}};
  EXPECT_THAT(std::string(WithAllCorrected(Refusal(), one).message()),
              HasSubstr("\n1 spec needs corrections:\n  a: dimension 0: "));
  std::vector<CorrectedTensor> many;
  for (int64_t i = 0; i < 15; ++i) {
    many.push_back({.name = StrCat("t", i), .corrections = {NotDivisible(4 * i + 1)}});
  }
  const std::string message(WithAllCorrected(Refusal(), many).message());
  EXPECT_THAT(message, StartsWith("tensor 'a': refused\n15 specs need corrections:\n  t0: "));
  EXPECT_THAT(message, HasSubstr("\n  t9: "));
  EXPECT_THAT(message, Not(HasSubstr("t10")));
  EXPECT_THAT(message, HasSubstr("\n  and 5 more corrections; "));
  EXPECT_THAT(message, EndsWith(StrCat("shows them", kAdvice)));
}

TEST(WithAllCorrectedTest, OnlyCorrectionsAreOfStrict) {
  EXPECT_TRUE(IsOfStrict(Refusal()));
  EXPECT_FALSE(IsOfStrict(absl::OkStatus()));
  EXPECT_FALSE(IsOfStrict(InvalidArgument(Reason::kNotDivisible, "no divisor")));
}

}  // namespace
}  // namespace shardmesh::client
