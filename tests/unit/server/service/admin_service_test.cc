// Snapshots over real gRPC, of a store on disk.
#include "server/service/admin_service.h"

#include <grpcpp/grpcpp.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "process/crc32c.h"
#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "server/store/sqlite_store.h"
#include "shardmesh/v1/admin_service.grpc.pb.h"
#include "status/detail.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using test::IsOk;
using test::IsOkAndHolds;
using test::StatusIs;

namespace fs = std::filesystem;

std::string NewFolder() {
  std::string folder = ::testing::TempDir() + "/admin_service_XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

class AdminServiceTest : public testing::Test {
 protected:
  using Stream = std::unique_ptr<grpc::ClientReader<v1::SnapshotResponse>>;

  void Serve(std::unique_ptr<Store> store) {
    store_ = std::move(store);
    CoordinatorParts parts;  // without transfers: no call of this test is about operations
    parts.clock = &clock_;
    service_ = MakeAdminService(parts, store_.get(), folder_);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.service.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::AdminService::NewStub(*rpc::CreateChannel(StrCat("127.0.0.1:", port)));
  }
  ~AdminServiceTest() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    service_.service.reset();
    store_.reset();
    fs::remove_all(folder_);
  }

  Stream Begin(grpc::ClientContext* context) {
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(30)), context);
    return stub_->Snapshot(context, v1::SnapshotRequest());
  }
  // Reads all of a snapshot.
  absl::StatusOr<std::string> Take(v1::SnapshotHeader* header = nullptr) {
    grpc::ClientContext context;
    const Stream stream = Begin(&context);
    std::string bytes;
    for (v1::SnapshotResponse response; stream->Read(&response);) {
      if (response.has_header()) {
        if (header != nullptr) *header = response.header();
        continue;
      }
      const v1::SnapshotPiece& piece = response.piece();
      EXPECT_EQ(piece.offset_bytes(), static_cast<int64_t>(bytes.size()));
      EXPECT_EQ(piece.crc32c(), Crc32c(piece.payload()));
      EXPECT_LE(piece.payload().size(), size_t{1} << 20);
      bytes += piece.payload();
      if (piece.has_whole_crc32c()) {
        EXPECT_EQ(piece.whole_crc32c(), Crc32c(bytes));
      }
    }
    const absl::Status status = rpc::FromGrpc(stream->Finish());
    if (!status.ok()) return status;
    return bytes;
  }
  // More than a stream takes that nobody reads.
  void Fill(Store& store) {
    for (int i = 0; i < 16; ++i) {
      EXPECT_THAT(CommitAndWait(store, {.puts = {{StrCat("key/", i), std::string(1 << 20, 'x')}}}),
                  IsOk());
    }
  }
  int FilesOfSnapshots() {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      count += entry.path().filename().string().rfind(kSnapshotPrefix, 0) == 0 ? 1 : 0;
    }
    return count;
  }

  const std::string folder_ = NewFolder();
  test::FakeClock clock_;
  std::unique_ptr<Store> store_;
  StreamingService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::AdminService::Stub> stub_;
};

TEST_F(AdminServiceTest, SendsACopyThatOpensAsAStore) {
  ASSERT_NO_FATAL_FAILURE(Serve(*OpenSqliteStore({.folder = folder_})));
  Fill(*store_);
  v1::SnapshotHeader header;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string bytes, Take(&header));
  EXPECT_EQ(header.revision(), store_->revision());
  EXPECT_EQ(header.size_bytes(), static_cast<int64_t>(bytes.size()));
  EXPECT_EQ(FilesOfSnapshots(), 0) << "nothing is left behind";

  const std::string copy = NewFolder();
  std::ofstream(copy + "/state.db", std::ios::binary) << bytes;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto opened, OpenSqliteStore({.folder = copy}));
  EXPECT_EQ(opened->revision(), store_->revision());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValues all, opened->List("key/"));
  EXPECT_EQ(all.items.size(), 16u);
}

TEST_F(AdminServiceTest, HasNothingToCopyOfAStateInMemory) {
  ASSERT_NO_FATAL_FAILURE(Serve(CreateMemoryStore()));
  EXPECT_THAT(Take(), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(Take(), StatusIs(absl::StatusCode::kFailedPrecondition)) << "it is not busy";
}

TEST_F(AdminServiceTest, OneWhoDoesNotReadKeepsNobodyElseFromASnapshot) {
  ASSERT_NO_FATAL_FAILURE(Serve(*OpenSqliteStore({.folder = folder_})));
  Fill(*store_);
  grpc::ClientContext context;
  const Stream stuck = Begin(&context);
  v1::SnapshotResponse header;
  ASSERT_TRUE(stuck->Read(&header));
  const auto second = Take();
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
  EXPECT_TRUE(RetryDelayOf(second.status()).has_value());
  EXPECT_TRUE(test::Eventually([&] {
    clock_.Advance(absl::Seconds(31));
    return Take().ok();
  }));
  for (v1::SnapshotResponse rest; stuck->Read(&rest);) {
  }
  EXPECT_FALSE(stuck->Finish().ok());
  EXPECT_EQ(FilesOfSnapshots(), 0);
}

TEST_F(AdminServiceTest, EndsWhenTheCoordinatorStops) {
  ASSERT_NO_FATAL_FAILURE(Serve(*OpenSqliteStore({.folder = folder_})));
  Fill(*store_);
  service_.end_streams();
  const absl::Status ended = Take().status();
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
  EXPECT_TRUE(RetryDelayOf(ended).has_value());
}

}  // namespace
}  // namespace shardmesh::server
