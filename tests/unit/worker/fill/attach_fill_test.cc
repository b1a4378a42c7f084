// Orders of a coordinator to fill tiles, from the attach stream to the store and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "process/clock.h"
#include "process/crc32c.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/source_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "status/detail.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/fill/source_files.h"
#include "tests/unit/worker/service/attach_fixture.h"
#include "worker/fill/fill_threads.h"
#include "worker/service/attach_fill_codec.h"
#include "worker/service/attach_handler.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::Eventually;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::SourceFolder;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A worker that has joined a cluster, and fills tiles.
class AttachFillTest : public AttachFixture<RealClock> {
 protected:
  AttachFillTest() {
    filler_ = MakeTileFiller(
        {.identity = "w1", .store = store_.get(), .gate = gate_.get(), .roots = &folder_.roots()});
    MakeHandler(filler_.get());
    Attach(/*heartbeat=*/absl::Seconds(1000));
  }
  ~AttachFillTest() override {
    filler_->Stop();
    handler_.reset();
  }

  // Rows of four bytes, cut in two.
  static ArrayDescriptor Rows(const std::string& id) {
    return {.array_id = id,
            .dtype = Dtype::kU8,
            .shape = {2, 4},
            .spec = *PartitionSpec::Create({AxisValue::Name("x")}),
            .mesh_id = "m",
            .mesh_revision = 2,
            .mesh = *Mesh::Parse("x=2"),
            .cut_points = {}};
  }
  static Message Fill(const std::string& transfer_id, const std::vector<std::string>& ids,
                      const SourceFile& file) {
    Message message;
    internal::v1::FillTiles* fill = message.mutable_fill_tiles();
    fill->set_transfer_id(transfer_id);
    fill->set_term(3);
    rpc::Encode(file, fill->add_files());
    for (const std::string& id : ids) {
      internal::v1::FillTile* tile = fill->add_tiles();
      tile->set_array_descriptor(rpc::ArrayDescriptorBytes(Rows(id)));
      tile->set_rank(1);
      tile->mutable_file()->set_offset_bytes(2);
    }
    return message;
  }
  std::vector<internal::v1::AttachRequest> Await(size_t count) {
    EXPECT_TRUE(Eventually([&] { return stream_->count() >= count; }));
    return stream_->Take();
  }

  SourceFolder folder_;
  std::unique_ptr<TileFiller> filler_;
};

TEST_F(AttachFillTest, APutFromAFileIsCheckedFilledAndCommitted) {
  const SourceFile file = folder_.Write("m", "h:rank0own1", 2);
  Message check;
  check.mutable_check_files()->set_order_id(1);
  rpc::Encode(file, check.mutable_check_files()->add_files());
  EXPECT_THAT(Take(check), IsOk());
  std::vector<internal::v1::AttachRequest> messages = Await(1);
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].files_checked().order_id(), 1);
  EXPECT_FALSE(messages[0].files_checked().has_error());

  EXPECT_THAT(Take(Fill("t", {"a", "b"}, file)), IsOk());
  messages = Await(2);
  ASSERT_THAT(messages, SizeIs(2));
  for (const internal::v1::AttachRequest& message : messages) {
    const internal::v1::TileStaged& staged = message.tile_staged();
    EXPECT_EQ(staged.transfer_id(), "t");
    EXPECT_EQ(staged.rank(), 1);
    EXPECT_EQ(staged.term(), 3);
    EXPECT_EQ(staged.size_bytes(), 4);
    EXPECT_EQ(staged.crc32c(), Crc32c(std::string("0own")));
  }
  Message end;
  end.mutable_end_transfer()->set_transfer_id("t");
  end.mutable_end_transfer()->set_commit(true);
  EXPECT_THAT(Take(end), IsOk());
  const auto stored = store_->Find("a", {{{1, 2}, {0, 4}}});
  ASSERT_THAT(stored, IsOk());
  EXPECT_EQ(std::string((*stored)->bytes().begin(), (*stored)->bytes().end()), "0own");
}

TEST_F(AttachFillTest, ATileIsMadeFromTheTransposedTensorOfAFile) {
  const SourceFile file = folder_.Write("m", "h:aAbBcCdD", 2);  // rows of the columns
  Message order = Fill("t", {"a"}, file);
  internal::v1::FillTile& tile = *order.mutable_fill_tiles()->mutable_tiles(0);
  internal::v1::ConvertedFileSource& source = *tile.mutable_converted_file();
  source.mutable_file()->set_offset_bytes(2);
  source.mutable_conversion()->set_dtype(v1::DTYPE_U8);
  source.mutable_conversion()->add_permutation(1);
  source.mutable_conversion()->add_permutation(0);
  EXPECT_THAT(Take(order), IsOk());
  std::vector<internal::v1::AttachRequest> messages = Await(1);
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].tile_staged().crc32c(), Crc32c(std::string("ABCD")));
  // A conversion that does not fit the array is refused in words.
  source.mutable_conversion()->add_permutation(2);
  order.mutable_fill_tiles()->set_transfer_id("other");
  tile.set_array_descriptor(rpc::ArrayDescriptorBytes(Rows("b")));
  EXPECT_THAT(Take(order), IsOk());
  messages = Await(1);
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(ReasonOf(rpc::Decode(messages[0].fill_failed().error())), Reason::kShapeMismatch);
  source.mutable_conversion()->set_dtype(v1::DTYPE_UNSPECIFIED);
  order.mutable_fill_tiles()->set_transfer_id("third");
  EXPECT_THAT(Take(order), IsOk());
  messages = Await(1);
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(ReasonOf(rpc::Decode(messages[0].fill_failed().error())), Reason::kUnknownDtype);
}

TEST_F(AttachFillTest, AFailureIsReportedOnceAndAnAbortLeavesNothing) {
  SourceFile file = folder_.Write("m", "h:rank0own1", 2);
  file.head_sha256[0] ^= 1;
  EXPECT_THAT(Take(Fill("t", {"a", "b", "c"}, file)), IsOk());
  const std::vector<internal::v1::AttachRequest> messages = Await(1);
  filler_->Suspend();
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].fill_failed().transfer_id(), "t");
  EXPECT_EQ(messages[0].fill_failed().rank(), 1);
  const absl::Status error = rpc::Decode(messages[0].fill_failed().error());
  EXPECT_EQ(ReasonOf(error), Reason::kFileChanged);
  EXPECT_EQ(FactOf(error, fact::kFile), file.path);
  EXPECT_EQ(FactOf(error, fact::kIdentity), "w1");
  Message end;
  end.mutable_end_transfer()->set_transfer_id("t");
  EXPECT_THAT(Take(end), IsOk());
  // Orders after the end of the transfer are refused.
  EXPECT_THAT(Take(Fill("t", {"d"}, folder_.Write("m", "h:rank0own1", 2))), IsOk());
  const std::vector<internal::v1::AttachRequest> late = Await(1);
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_EQ(ReasonOf(rpc::Decode(late[0].fill_failed().error())), Reason::kStaleTerm);
  filler_->Stop();
  EXPECT_THAT(store_->ListInventory("", 100).tiles, IsEmpty());
  EXPECT_THAT(stream_->Take(), IsEmpty());
}

TEST(AttachFillCodecTest, AnOrderNamesTheCompanionOfItsSource) {
  internal::v1::FillTiles from;
  internal::v1::FillTile* const tile = from.add_tiles();
  tile->mutable_array()->set_token("token");
  tile->mutable_array()->set_second_array_id("companion");
  tile->mutable_array()->set_second_token("second token");
  from.mutable_devices()->add_sources()->set_identity("w0");
  v1::DeviceEndpoint* const second = from.mutable_devices()->add_second_sources();
  second->set_rank(1);
  second->set_identity("w1");
  second->add_endpoints()->set_address("here:1");
  const std::variant<FillOrder, FillFailure> decoded = Decode(std::move(from));
  const FillOrder* const order = std::get_if<FillOrder>(&decoded);
  ASSERT_NE(order, nullptr);
  const auto& source = std::get<FillFromArray>(order->tiles[0].source);
  EXPECT_EQ(source.token, "token");
  EXPECT_EQ(source.second_array_id, "companion");
  EXPECT_EQ(source.second_token, "second token");
  ASSERT_THAT(order->devices->sources, SizeIs(1));
  ASSERT_THAT(order->devices->second_sources, SizeIs(1));
  const FillSource& worker = order->devices->second_sources[0];
  EXPECT_EQ(worker.rank, 1);
  EXPECT_EQ(worker.identity, "w1");
  EXPECT_THAT(worker.endpoints, ::testing::ElementsAre("here:1"));
}

}  // namespace
}  // namespace shardmesh::worker
