// Checks and padding of token sequences.
#include "client/models/token_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Sequences = std::vector<std::vector<int32_t>>;

TEST(TokenBatchTest, PadsSequencesAtTheirEnds) {
  const Sequences sequences = {{7, 8, 9}, {5}};
  EXPECT_EQ(LongestOf(sequences), 3);
  EXPECT_EQ(LongestOf({}), 0);
  const TokenBatch batch = PadTokens(sequences, 4);
  EXPECT_THAT(batch.ids, ElementsAre(7, 8, 9, 0, 5, 0, 0, 0));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, -1, 0, -1, -1, -1));
  EXPECT_THAT(batch.mask, ElementsAre(1, 1, 1, 0, 1, 0, 0, 0));
  EXPECT_THAT(batch.ends, ElementsAre(2, 0));
}

TEST(TokenBatchTest, ChecksTokensAndLengths) {
  EXPECT_THAT(CheckTokens(Sequences{{0, 9}, {9}}, 10, 4, 2), IsOk());
  EXPECT_THAT(CheckTokens(Sequences{{1}, {}}, 10, 4, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField,
                       HasSubstr("sequence 1 is empty")));
  EXPECT_THAT(CheckTokens(Sequences{{1, 10}}, 10, 4, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField,
                       HasSubstr("sequence 0 has the token 10; the model's tokens are 0 to 9")));
  EXPECT_THAT(CheckTokens(Sequences{{-1}}, 10, 4, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(
      CheckTokens(Sequences{{1, 1}}, 10, 4, 3),
      StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded,
               HasSubstr("sequence 0 has 2 tokens and 3 are to follow; "
                         "max_position_embeddings of the model is 4: shorten it, or ask for "
                         "fewer new tokens")));
  EXPECT_THAT(CheckTokens(Sequences{{1}}, 10, 4, INT64_MAX),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
}

TEST(TokenBatchTest, RoundsLengthsUp) {
  EXPECT_EQ(RoundUpLength(1, 16), 16);
  EXPECT_EQ(RoundUpLength(16, 16), 16);
  EXPECT_EQ(RoundUpLength(17, 16), 32);
  EXPECT_EQ(RoundUpLength(100, 64), 128);
}

TEST(TokenBatchTest, CountsTheRowsOfALiteral) {
  EXPECT_EQ(RowsOfLiteral(1), 262144);
  EXPECT_EQ(RowsOfLiteral(8192), 32);
  EXPECT_EQ(RowsOfLiteral(8193), 31);
  EXPECT_EQ(RowsOfLiteral(262145), 1);
  EXPECT_EQ(RowsOfLiteral(0), 262144);
}

TEST(TokenBatchTest, ReadsLiteralsOfResults) {
  StepOutput output;
  EXPECT_THAT(Int32sOf(output).status(), StatusIs(absl::StatusCode::kInternal));
  output.literal = Int32Literal(2, 1, {5, -6});
  EXPECT_THAT(*Int32sOf(output), ElementsAre(5, -6));
  EXPECT_THAT(RowsOf(output).status(), StatusIs(absl::StatusCode::kInternal));
  const float elements[] = {1, 2, 3, 4, 5, 6};
  output.literal = Literal{
      Dtype::kF32, {2, 3}, std::string(reinterpret_cast<const char*>(elements), sizeof(elements))};
  EXPECT_THAT(*RowsOf(output), ElementsAre(ElementsAre(1, 2, 3), ElementsAre(4, 5, 6)));
}

}  // namespace
}  // namespace shardmesh::client
