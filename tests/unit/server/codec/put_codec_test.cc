// The answer to BeginPut: assignments and the tokens beside them.
#include "server/codec/put_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "rpc/transfer_token.h"
#include "tests/testing/row_array.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::testing::IsEmpty;

const absl::Time kExpire = absl::FromUnixSeconds(1'800'000'000);
const std::string kKey(rpc::kTokenKeyBytes, 'k');

BegunPutPtr PutOfOne(const std::string& transfer_id) {
  auto put = std::make_shared<BegunPut>();
  put->transfer_id = transfer_id;
  put->session_id = "s";
  put->expire_time = kExpire;
  put->corrections.resize(1);
  put->items.emplace_back().definition.descriptor = test::RowArray("a");
  return put;
}

TEST(PutAnswerTest, ATokenCarriesTheBytesOfItsAssignmentsDescriptor) {
  const BegunPutPtr put = PutOfOne("t");
  PutAnswer answer(7, kKey, put);
  const v1::BeginPutResponse message = answer.Next();
  EXPECT_TRUE(answer.is_at_end());
  ASSERT_EQ(message.assignments_size(), 1);
  const v1::PutAssignment& assignment = message.assignments(0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const rpc::VerifiedToken token,
      rpc::VerifyToken(assignment.token(), kKey, rpc::TransferDirection::kPut,
                       kExpire - absl::Seconds(1)));
  EXPECT_EQ(token.claims.array_descriptor, assignment.array_descriptor().SerializeAsString());
  EXPECT_EQ(token.array, put->items[0].definition.descriptor);
  EXPECT_EQ(token.claims.transfer_id, "t");
  EXPECT_EQ(token.claims.session_id, "s");
  EXPECT_EQ(token.claims.term, 7);
}

TEST(PutAnswerTest, APutThatIsOnlyValidatedGetsNoToken) {
  PutAnswer answer(7, kKey, PutOfOne(""));
  const v1::BeginPutResponse message = answer.Next();
  ASSERT_EQ(message.assignments_size(), 1);
  EXPECT_EQ(message.assignments(0).array_descriptor().array_id(), "a");
  EXPECT_THAT(message.assignments(0).token(), IsEmpty());
}

}  // namespace
}  // namespace shardmesh::server
