// Tiles put into and got out of a worker's store, over real streams.
#include "worker/service/tile_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/mutex.h"
#include "process/clock.h"
#include "process/crc32c.h"
#include "process/failpoint.h"
#include "process/pages.h"
#include "process/random_bytes.h"
#include "process/sealed/local_socket.h"
#include "process/sealed/sealed_memory.h"
#include "rpc/call.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/server_lifecycle.h"
#include "rpc/stream/handover.h"
#include "rpc/transfer_token.h"
#include "shardmesh/v1/tile_service.grpc.pb.h"
#include "status/byte_text.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/str_cat.h"
#include "tensor/buffer.h"
#include "tests/testing/eventually.h"
#include "tests/testing/proxy.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/store/reversed_tile.h"
#include "worker/service/handover_inbox.h"
#include "worker/shm/shm_arena.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kMemoryBytes = int64_t{64} << 20;
constexpr int64_t kTerm = 5;
constexpr absl::Duration kTimeout = absl::Seconds(20);
const std::string kKey(rpc::kTokenKeyBytes, 'k');

// Bytes that differ from place to place.
std::string Pattern(int64_t size) {
  std::string bytes(static_cast<size_t>(size), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(i * 31 + i / 251);
  }
  return bytes;
}

// A worker "w1" that serves rank 1 of a mesh x=2. Arrays are F32 of (rows, 256), cut in two by
// rows.
class TileServiceTest : public ::testing::Test {
 protected:
  void Start(const std::string& data_dir = "") {
    auto opened = ShardStore::Open({.pool = pool_, .data_dir = data_dir});
    ASSERT_THAT(opened, IsOk());
    store_ = *std::move(opened);
    ASSERT_THAT(store_->SetClusterId("cluster"), IsOk());
    gate_ = std::make_unique<TileGate>(TileGate::Options{
        .identity = "w1", .store = store_.get(), .clock = &clock_, .staged = [this](const auto& r) {
          absl::MutexLock lock(&mutex_);
          reports_.push_back(r);
          reporter_ = std::this_thread::get_id();
        }});
    work_ = std::make_unique<ThreadPool>(2);
    membership_waits_ = std::make_unique<ThreadPool>(1);
    service_ = MakeTileService({.self = {.identity = "w1", .incarnation = 7, .boot_id = ""},
                                .nonce = "0123456789abcdef",
                                .store = store_.get(),
                                .gate = gate_.get(),
                                .inbox = inbox_.get(),
                                .work = work_.get(),
                                .free_memory = free_memory_,
                                .membership_waits = membership_waits_.get(),
                                .clock = &clock_,
                                .idle_limit = idle_limit_,
                                .membership_wait_limit = news_limit_});
    auto server =
        rpc::ServerLifecycle::Start({.max_message_bytes = rpc::kMaxDataMessageBytes,
                                     .keepalive_interval = keepalive_,
                                     .keepalive_timeout = std::max(keepalive_, absl::Seconds(4)),
                                     .on_drain = nullptr,
                                     .customize = nullptr},
                                    {{v1::TileService::service_full_name(), service_.get()}});
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
    auto channel =
        rpc::CreateChannel(server_->address(), {.max_message_bytes = rpc::kMaxDataMessageBytes});
    ASSERT_THAT(channel, IsOk());
    stub_ = v1::TileService::NewStub(*channel);
  }

  void Serve(const std::string& mesh_id = "m", int64_t revision = 3) {
    auto view = std::make_shared<MembershipView>();
    view->epoch = 1;
    view->meshes.push_back(
        {.mesh_id = mesh_id,
         .revision = revision,
         .mesh = *Mesh::Create({{"x", 2}}),
         .devices = {{.rank = 0, .identity = "w0", .incarnation = 1, .endpoints = {}},
                     {.rank = 1, .identity = "w1", .incarnation = 7, .endpoints = {}}}});
    gate_->Serve({.term = kTerm, .token_key = kKey}, view);
  }

  void TearDown() override {
    if (server_ != nullptr) {
      server_->Drain(absl::Now() + kTimeout);
    }
    membership_waits_.reset();  // first: its tasks push others to work_
    work_.reset();
  }

  static ArrayDescriptor Array(const std::string& id, int64_t rows = 8) {
    return {.array_id = id,
            .dtype = Dtype::kF32,
            .shape = {rows, 256},
            .spec = *PartitionSpec::Create({AxisValue::Name("x")}),
            .mesh_id = "m",
            .mesh_revision = 3,
            .mesh = *Mesh::Create({{"x", 2}}),
            .cut_points = {}};
  }
  static Tile OwnTile(int64_t rows = 8) { return {{{rows / 2, rows}, {0, 256}}}; }
  static int64_t OwnBytes(int64_t rows = 8) { return rows / 2 * 256 * 4; }

  // `descriptor`: the bytes that the token carries, if not those of `array`.
  std::string Token(const ArrayDescriptor& array, rpc::TransferDirection direction,
                    absl::Duration ttl = absl::Minutes(1), int64_t term = kTerm,
                    const std::string& key = kKey,
                    std::optional<std::string> descriptor = std::nullopt) {
    return rpc::SignToken(
        {.direction = direction,
         .transfer_id = "t-" + array.array_id,
         .session_id = "s",
         .array_descriptor = descriptor.value_or(rpc::ArrayDescriptorBytes(array)),
         .term = term,
         .expire_time = clock_.Now() + ttl},
        key);
  }

  // The messages of one put tile, for tests to spoil.
  std::vector<v1::PutTilesRequest> Messages(const ArrayDescriptor& array, const Tile& tile,
                                            const std::string& bytes) {
    std::vector<v1::PutTilesRequest> messages(1);
    v1::TileHeader* header = messages[0].mutable_header();
    header->set_token(Token(array, rpc::TransferDirection::kPut));
    header->set_array_id(array.array_id);
    rpc::Encode(tile, header->mutable_tile());
    header->set_size_bytes(static_cast<int64_t>(bytes.size()));
    header->set_rank(1);
    constexpr size_t kPiece = size_t{1} << 20;
    for (size_t offset = 0; offset == 0 || offset < bytes.size(); offset += kPiece) {
      v1::TilePiece* piece = messages.emplace_back().mutable_piece();
      piece->set_offset_bytes(static_cast<int64_t>(offset));
      piece->set_data(bytes.substr(offset, kPiece));
      piece->set_crc32c(Crc32c(piece->data()));
    }
    messages.back().mutable_piece()->set_tile_crc32c(Crc32c(bytes));
    return messages;
  }

  absl::StatusOr<v1::PutTilesResponse> Put(const std::vector<v1::PutTilesRequest>& messages) {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(kTimeout), &context);
    v1::PutTilesResponse response;
    auto stream = stub_->PutTiles(&context, &response);
    for (const v1::PutTilesRequest& message : messages) {
      if (!stream->Write(message)) {
        break;
      }
    }
    stream->WritesDone();
    const absl::Status status = rpc::FromGrpc(stream->Finish());
    if (!status.ok()) {
      return status;
    }
    return response;
  }
  absl::StatusOr<v1::PutTilesResponse> PutGood(const std::string& id, int64_t rows = 8) {
    return Put(Messages(Array(id, rows), OwnTile(rows), Pattern(OwnBytes(rows))));
  }

  // Starts with an inbox, to which this test is connected.
  void StartWithInbox(const std::string& data_dir = "") {
    auto inbox = HandoverInbox::Start();
    ASSERT_THAT(inbox, IsOk());
    inbox_ = *std::move(inbox);
    ASSERT_NO_FATAL_FAILURE(Start(data_dir));
    auto connected = ConnectLocally(inbox_->socket());
    ASSERT_THAT(connected, IsOk());
    giver_ = *std::move(connected);
    Serve();
  }
  static FileDescriptor Seal(const std::string& bytes) {
    SealedMemoryWriter writer = *SealedMemoryWriter::Create(static_cast<int64_t>(bytes.size()));
    EXPECT_THAT(writer.Append(bytes), IsOk());
    auto sealed = std::move(writer).Seal();
    EXPECT_THAT(sealed, IsOk());
    return *std::move(sealed);
  }
  // Hands the memory over, and returns the header that names it.
  v1::PutTilesRequest HandOver(const ArrayDescriptor& array, const Tile& tile,
                               const std::string& bytes, const FileDescriptor& memory) {
    v1::PutTilesRequest message = Messages(array, tile, bytes)[0];
    const std::string id = RandomBytes(rpc::kHandoverIdBytes);
    EXPECT_THAT(SendDescriptors(giver_.get(), id, {memory.get()}), IsOk());
    pollfd readable = {giver_.get(), POLLIN, 0};
    EXPECT_EQ(poll(&readable, 1, 60'000), 1);
    const auto answer = ReceiveDescriptors(giver_.get());
    EXPECT_THAT(answer, IsOk());
    if (answer.ok()) {
      EXPECT_EQ(answer->text, rpc::kHandoverKept);
    }
    message.mutable_header()->mutable_sealed_memory()->set_id(id);
    message.mutable_header()->mutable_sealed_memory()->set_crc32c(Crc32c(bytes));
    return message;
  }

  struct Got {
    std::vector<v1::TileOpening> openings;
    std::string bytes;
  };
  absl::StatusOr<Got> Get(const ArrayDescriptor& array, std::optional<Tile> range,
                          std::optional<std::string> token = std::nullopt) {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(kTimeout), &context);
    v1::GetTilesRequest request;
    v1::TileSelector* selector = request.add_tiles();
    selector->set_array_id(array.array_id);
    selector->set_token(token.value_or(Token(array, rpc::TransferDirection::kGet)));
    if (range.has_value()) {
      rpc::Encode(*range, selector->mutable_tile());
    }
    auto stream = stub_->GetTiles(&context, request);
    Got got;
    v1::GetTilesResponse response;
    uint32_t tile_crc32c = 0;
    while (stream->Read(&response)) {
      if (response.has_opening()) {
        got.openings.push_back(response.opening());
        continue;
      }
      EXPECT_EQ(response.piece().offset_bytes(), static_cast<int64_t>(got.bytes.size()));
      EXPECT_EQ(response.piece().crc32c(), Crc32c(response.piece().data()));
      EXPECT_LE(response.piece().data().size(), size_t{1} << 20);
      got.bytes += response.piece().data();
      tile_crc32c = response.piece().tile_crc32c();
    }
    const absl::Status status = rpc::FromGrpc(stream->Finish());
    if (!status.ok()) {
      return status;
    }
    EXPECT_EQ(tile_crc32c, Crc32c(got.bytes));
    return got;
  }

  // Waits until the store holds no more than that: what a broken stream held is freed a little
  // later.
  bool UsedBytesFallTo(int64_t bytes) {
    const absl::Time deadline = absl::Now() + kTimeout;
    while (absl::Now() < deadline) {
      pool_->Trim();
      if (store_->used_bytes() <= bytes) {
        return true;
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  }

  std::vector<TileReport> reports() {
    absl::MutexLock lock(&mutex_);
    return reports_;
  }

  RealClock clock_;
  std::function<bool(const absl::Status& refused, int64_t size_bytes)> free_memory_;
  absl::Duration idle_limit_ = kTimeout;
  absl::Duration keepalive_ = kTimeout;
  absl::Duration news_limit_ = absl::Milliseconds(100);
  MemoryBudget budget_{kMemoryBytes};
  MemoryBudget large_budget_{2 * kMemoryBytes};
  std::shared_ptr<BufferPool> pool_ = BufferPool::Create(&budget_, 0);
  std::unique_ptr<ShardStore> store_;
  std::unique_ptr<TileGate> gate_;
  std::unique_ptr<HandoverInbox> inbox_;  // null unless the test hands memory over
  FileDescriptor giver_;
  std::unique_ptr<ThreadPool> work_;
  std::unique_ptr<ThreadPool> membership_waits_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<rpc::ServerLifecycle> server_;
  std::unique_ptr<v1::TileService::Stub> stub_;
  absl::Mutex mutex_;
  std::vector<TileReport> reports_ ABSL_GUARDED_BY(mutex_);
  std::thread::id reporter_ ABSL_GUARDED_BY(mutex_);  // the thread of the last report
};

TEST_F(TileServiceTest, TokensExpireByTheCoordinatorsClockHoweverFarItIsApart) {
  Start();
  Serve();
  for (const absl::Duration ahead : {absl::Hours(1), absl::Hours(-1)}) {
    gate_->SetCoordinatorTime(clock_.Now() + ahead);
    const auto open = [&](absl::Duration ttl) {
      const ArrayDescriptor array = Array(ttl > absl::ZeroDuration() ? "valid" : "expired");
      return gate_
          ->Open({.token = Token(array, rpc::TransferDirection::kPut, ahead + ttl),
                  .array_id = array.array_id,
                  .tile = OwnTile(),
                  .size_bytes = OwnBytes(),
                  .rank = 1})
          .status();
    };
    const auto find = [&](absl::Duration ttl) {
      const ArrayDescriptor array = Array("none");
      return gate_
          ->Find(Token(array, rpc::TransferDirection::kGet, ahead + ttl), array.array_id,
                 std::nullopt)
          .status();
    };
    const auto expired = StatusIs(absl::StatusCode::kPermissionDenied, Reason::kBadToken);
    EXPECT_THAT(open(absl::Seconds(5)), IsOk());
    EXPECT_THAT(open(absl::Seconds(-5)), expired);
    EXPECT_THAT(find(absl::Seconds(5)), StatusIs(absl::StatusCode::kNotFound));
    EXPECT_THAT(find(absl::Seconds(-5)), expired);
  }
}

TEST_F(TileServiceTest, StagesReportsCommitsAndGivesBackTiles) {
  Start();
  Serve();
  // The second one is large: it takes several pieces.
  std::vector<v1::PutTilesRequest> messages = Messages(Array("a"), OwnTile(), Pattern(OwnBytes()));
  const int64_t rows = 16384;
  const std::string large = Pattern(OwnBytes(rows));
  for (const v1::PutTilesRequest& message : Messages(Array("b", rows), OwnTile(rows), large)) {
    messages.push_back(message);
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const v1::PutTilesResponse response, Put(messages));
  EXPECT_EQ(response.tiles(), 2);
  EXPECT_EQ(response.size_bytes(), OwnBytes() + OwnBytes(rows));
  EXPECT_EQ(response.durability(), v1::DURABILITY_MEMORY);

  ASSERT_THAT(reports(), SizeIs(2));
  EXPECT_EQ(reports()[0].transfer_id, "t-a");
  EXPECT_EQ(reports()[0].rank, 1);
  EXPECT_EQ(reports()[0].term, kTerm);
  EXPECT_EQ(reports()[1].crc32c, Crc32c(large));

  EXPECT_THAT(gate_->EndTransfer("t-a", true), IsOk());
  EXPECT_THAT(gate_->EndTransfer("t-b", true), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Got got, Get(Array("b", rows), std::nullopt));
  EXPECT_THAT(got.openings, SizeIs(1));
  EXPECT_TRUE(got.bytes == large);
}

// The coordinator signs a token to read for committed arrays alone, and its client may be here
// first.
TEST_F(TileServiceTest, BelievesATokenToReadBeforeItHearsOfTheCommit) {
  Start();
  Serve();
  ASSERT_THAT(PutGood("a"), IsOk());
  EXPECT_THAT(Get(Array("a"), std::nullopt), IsOk());
  EXPECT_THAT(gate_->EndTransfer("t-a", false), IsOk());
  EXPECT_THAT(Get(Array("a"), std::nullopt), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(TileServiceTest, KeepsTilesOnDiskBeforeItSaysSo) {
  Start(testing::TempDir() + "tile_service_disk");
  Serve();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const v1::PutTilesResponse response, PutGood("a"));
  EXPECT_EQ(response.durability(), v1::DURABILITY_DISK);
  ASSERT_THAT(reports(), SizeIs(1));
  EXPECT_TRUE(reports()[0].durable);
}

TEST_F(TileServiceTest, GivesOutRangesOfATile) {
  Start();
  Serve();
  ASSERT_THAT(PutGood("a"), IsOk());
  ASSERT_THAT(gate_->EndTransfer("t-a", true), IsOk());
  const std::string bytes = Pattern(OwnBytes());
  // Rows [5,7) of the array are rows [1,3) of the tile: one run.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Got rows, Get(Array("a"), Tile{{{5, 7}, {0, 256}}}));
  EXPECT_EQ(rows.bytes, bytes.substr(1024, 2048));
  // Columns [1,3) of two rows are two runs.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Got columns, Get(Array("a"), Tile{{{5, 7}, {1, 3}}}));
  EXPECT_EQ(columns.bytes, bytes.substr(1024 + 4, 8) + bytes.substr(2048 + 4, 8));
  EXPECT_THAT(Get(Array("a"), Tile{{{3, 5}, {0, 256}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
}

TEST_F(TileServiceTest, RefusesPutsWithoutARightfulToken) {
  Start();
  Serve();
  const ArrayDescriptor array = Array("a");
  const std::vector<v1::PutTilesRequest> good = Messages(array, OwnTile(), Pattern(OwnBytes()));
  struct Case {
    std::string token;
    absl::StatusCode code;
    Reason reason;
  };
  const std::vector<Case> cases = {
      {"", absl::StatusCode::kUnauthenticated, Reason::kBadToken},
      {"made up", absl::StatusCode::kUnauthenticated, Reason::kBadToken},
      {Token(array, rpc::TransferDirection::kGet), absl::StatusCode::kPermissionDenied,
       Reason::kBadToken},
      {Token(array, rpc::TransferDirection::kPut, -absl::Seconds(1)),
       absl::StatusCode::kPermissionDenied, Reason::kBadToken},
      {Token(Array("b"), rpc::TransferDirection::kPut), absl::StatusCode::kPermissionDenied,
       Reason::kBadToken},
      {Token(array, rpc::TransferDirection::kPut, absl::Minutes(1), kTerm - 1),
       absl::StatusCode::kAborted, Reason::kStaleTerm},
  };
  for (const Case& each : cases) {
    std::vector<v1::PutTilesRequest> messages = good;
    messages[0].mutable_header()->set_token(each.token);
    const auto put = Put(messages);
    EXPECT_THAT(put, StatusIs(each.code, each.reason));
  }
  EXPECT_THAT(Get(array, std::nullopt, ""),
              StatusIs(absl::StatusCode::kUnauthenticated, Reason::kBadToken));
  EXPECT_THAT(Get(array, std::nullopt, Token(Array("b"), rpc::TransferDirection::kGet)),
              StatusIs(absl::StatusCode::kPermissionDenied, Reason::kBadToken));
  EXPECT_THAT(reports(), SizeIs(0));
  EXPECT_EQ(store_->used_bytes(), 0);
}

TEST_F(TileServiceTest, KeepsTheDescriptorInTheBytesOfTheToken) {
  std::string folder = testing::TempDir() + "tile_service_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  Start(folder);
  Serve();
  const ArrayDescriptor array = Array("a");
  // The field with number 100, which is unknown. At the front: an encoder would write it last.
  const std::string descriptor = "\xa0\x06\x2a" + rpc::ArrayDescriptorBytes(array);
  std::vector<v1::PutTilesRequest> messages = Messages(array, OwnTile(), Pattern(OwnBytes()));
  messages[0].mutable_header()->set_token(
      Token(array, rpc::TransferDirection::kPut, absl::Minutes(1), kTerm, kKey, descriptor));
  ASSERT_THAT(Put(messages), IsOk());
  ASSERT_THAT(gate_->EndTransfer("t-a", true), IsOk());
  const auto kept = [this] { return (*store_->FindAll("a")).front()->description(); };
  ASSERT_THAT(store_->FindAll("a"), IsOk());
  EXPECT_EQ(kept().array_descriptor, descriptor);
  TearDown();
  server_.reset();
  service_.reset();
  gate_.reset();
  store_.reset();
  Start(folder);  // from the files
  ASSERT_THAT(store_->FindAll("a"), IsOk());
  EXPECT_EQ(kept().array_descriptor, descriptor);
}

TEST_F(TileServiceTest, RefusesASignedTokenWithAMalformedDescriptor) {
  Start();
  Serve();
  const ArrayDescriptor array = Array("a");
  std::vector<v1::PutTilesRequest> messages = Messages(array, OwnTile(), Pattern(OwnBytes()));
  messages[0].mutable_header()->set_token(
      Token(array, rpc::TransferDirection::kPut, absl::Minutes(1), kTerm, kKey, "\xff"));
  const absl::Status refused = Put(messages).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnauthenticated, Reason::kBadToken));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("no v1.ArrayDescriptor"));
  EXPECT_THAT(reports(), SizeIs(0));
  EXPECT_EQ(store_->used_bytes(), 0);
}

TEST_F(TileServiceTest, RefusesTilesThatAreNotItsOwn) {
  Start();
  Serve();
  const std::string bytes = Pattern(OwnBytes());
  const auto bad_tile = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile);
  EXPECT_THAT(Put(Messages(Array("a"), Tile{{{0, 4}, {0, 256}}}, bytes)), bad_tile);

  std::vector<v1::PutTilesRequest> other_rank =
      Messages(Array("a"), Tile{{{0, 4}, {0, 256}}}, bytes);
  other_rank[0].mutable_header()->set_rank(0);
  EXPECT_THAT(Put(other_rank), bad_tile);

  std::vector<v1::PutTilesRequest> other_size = Messages(Array("a"), OwnTile(), bytes);
  other_size[0].mutable_header()->set_size_bytes(OwnBytes() + 4);
  EXPECT_THAT(Put(other_size), bad_tile);

  ArrayDescriptor other_mesh = Array("a");
  other_mesh.mesh_id = "other";
  EXPECT_THAT(Put(Messages(other_mesh, OwnTile(), bytes)), bad_tile);
  ArrayDescriptor other_revision = Array("a");
  other_revision.mesh_revision = 4;
  EXPECT_THAT(Put(Messages(other_revision, OwnTile(), bytes)), bad_tile);
  EXPECT_EQ(store_->used_bytes(), 0);
}

TEST_F(TileServiceTest, ATileThatComesBeforeTheWordOfItsMeshWaitsForIt) {
  news_limit_ = kTimeout;
  Start();
  Serve();
  const std::string bytes = Pattern(OwnBytes());
  const auto put = [&](const std::string& mesh_id, int64_t revision) {
    ArrayDescriptor array = Array(StrCat("a", revision));
    array.mesh_id = mesh_id;
    array.mesh_revision = revision;
    return std::async(std::launch::async, [this, messages = Messages(array, OwnTile(), bytes)] {
      return Put(messages).status();
    });
  };
  std::future<absl::Status> newer = put("m", 4);
  EXPECT_EQ(newer.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  Serve("m", 4);
  EXPECT_THAT(newer.get(), IsOk());
  std::future<absl::Status> new_mesh = put("n", 5);
  EXPECT_EQ(new_mesh.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  Serve("n", 5);
  EXPECT_THAT(new_mesh.get(), IsOk());
  EXPECT_EQ(store_->used_bytes(), 2 * OwnBytes());

  std::future<absl::Status> in_vain = put("n", 6);
  EXPECT_EQ(in_vain.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  gate_->Suspend();
  EXPECT_THAT(in_vain.get(), StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
}

TEST_F(TileServiceTest, RefusesWhatIsOverTheMemoryLimitBeforeTakingAnyOfIt) {
  Start();
  Serve();
  const int64_t rows = 2 * kMemoryBytes / 1024 + 1024;
  v1::PutTilesRequest header = Messages(Array("a", rows), OwnTile(rows), "")[0];
  header.mutable_header()->set_size_bytes(OwnBytes(rows));
  const auto put = Put({header});
  EXPECT_THAT(put, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_THAT(std::string(put.status().message()), HasSubstr(FormatBytes(kMemoryBytes)));
  EXPECT_EQ(store_->used_bytes(), 0);
}

TEST_F(TileServiceTest, RefusesPiecesThatDoNotAddUpAndDropsTheTile) {
  Start();
  Serve();
  const int64_t rows = 4096;  // two pieces
  const auto good = Messages(Array("a", rows), OwnTile(rows), Pattern(OwnBytes(rows)));
  ASSERT_THAT(good, SizeIs(3));
  const auto bad_tile = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile);
  const auto mismatch = StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch);

  auto corrupted = good;
  (*corrupted[1].mutable_piece()->mutable_data())[100] ^= 1;
  EXPECT_THAT(Put(corrupted), mismatch);
  auto wrong_tile_crc = good;
  wrong_tile_crc[2].mutable_piece()->set_tile_crc32c(1);
  EXPECT_THAT(Put(wrong_tile_crc), mismatch);
  EXPECT_THAT(Put({good[0], good[2]}), bad_tile);           // a gap
  EXPECT_THAT(Put({good[0], good[1]}), bad_tile);           // cut off
  EXPECT_THAT(Put({good[0], good[1], good[1]}), bad_tile);  // twice
  EXPECT_THAT(Put({good[1]}), bad_tile);                    // no header
  EXPECT_THAT(Put({good[0], good[0]}), bad_tile);           // a header within a tile
  auto no_tile_crc = good;
  no_tile_crc[2].mutable_piece()->clear_tile_crc32c();
  EXPECT_THAT(Put(no_tile_crc), bad_tile);
  EXPECT_TRUE(UsedBytesFallTo(0));
  EXPECT_THAT(reports(), SizeIs(0));
  EXPECT_THAT(Put(good), IsOk());  // nothing stands in the way of the next try
}

TEST_F(TileServiceTest, DropsTheTileOfABrokenStreamAndKeepsThoseBefore) {
  Start();
  Serve();
  const int64_t rows = 4096;
  const auto whole = Messages(Array("a"), OwnTile(), Pattern(OwnBytes()));
  const auto cut = Messages(Array("b", rows), OwnTile(rows), Pattern(OwnBytes(rows)));
  {
    grpc::ClientContext context;
    v1::PutTilesResponse response;
    auto stream = stub_->PutTiles(&context, &response);
    for (const auto& message : {whole[0], whole[1], cut[0], cut[1]}) {
      ASSERT_TRUE(stream->Write(message));
    }
    const absl::Time deadline = absl::Now() + kTimeout;
    while (store_->used_bytes() < OwnBytes(rows) && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(UsedBytesFallTo(OwnBytes()));
  EXPECT_THAT(reports(), SizeIs(1));
  EXPECT_THAT(gate_->EndTransfer("t-a", true), IsOk());
  EXPECT_THAT(Get(Array("a"), std::nullopt), IsOk());
}

// A host that takes its time for large blocks.
class SlowBlocks final : public BlockSource {
 public:
  char* Allocate(size_t capacity_bytes) override {
    if (capacity_bytes >= kLargeTileBytes) {
      absl::MutexLock lock(&mutex_);
      ++waiting_;
      mutex_.Await(absl::Condition(&goes_on_));
    }
    return static_cast<char*>(std::aligned_alloc(Buffer::kAlignment, capacity_bytes));
  }
  void Free(char* data, size_t) override { std::free(data); }

  bool AwaitWaiting(int count) {
    const auto are_there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return waiting_ >= count; };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&are_there), kTimeout);
  }
  void GoOn() {
    absl::MutexLock lock(&mutex_);
    goes_on_ = true;
  }

 private:
  absl::Mutex mutex_;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  bool goes_on_ ABSL_GUARDED_BY(mutex_) = false;
};

// Its host is cut off in the middle of a tile: nothing says that the connection is gone.
TEST_F(TileServiceTest, GivesBackTheTileOfAClientThatAnswersNoPing) {
  idle_limit_ = absl::Hours(1);
  keepalive_ = absl::Seconds(1);
  Start();
  Serve();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto network, test::Proxy::Start(server_->address()));
  const auto stub = v1::TileService::NewStub(
      *rpc::CreateChannel(network->address(), {.max_message_bytes = rpc::kMaxDataMessageBytes}));
  grpc::ClientContext context;
  v1::PutTilesResponse response;
  const auto stream = stub->PutTiles(&context, &response);
  const int64_t rows = 16384;
  const auto messages = Messages(Array("a", rows), OwnTile(rows), Pattern(OwnBytes(rows)));
  for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(stream->Write(messages[i]));
  ASSERT_TRUE(test::Eventually([&] { return store_->used_bytes() >= OwnBytes(rows); }));
  network->Set(test::Proxy::Mode::kSwallow);
  EXPECT_TRUE(UsedBytesFallTo(0));
  context.TryCancel();
  EXPECT_FALSE(stream->Finish().ok());
}

TEST_F(TileServiceTest, OthersAreAnsweredWhileTheMemoryOfLargeTilesIsMadeReady) {
  const auto blocks = std::make_shared<SlowBlocks>();
  pool_ = BufferPool::Create(&budget_, 0, blocks);
  idle_limit_ = absl::Seconds(2);  // does not count meanwhile
  Start();
  Serve();
  constexpr int64_t kRows = 2 * kLargeTileBytes / 1024;
  const std::string bytes = Pattern(OwnBytes(kRows));
  // Enough to take every thread that reactions have on a small host.
  std::vector<std::future<absl::StatusOr<v1::PutTilesResponse>>> puts;
  for (const char* id : {"a", "b", "c"}) {
    puts.push_back(std::async(std::launch::async, [&, id] {
      return Put(Messages(Array(id, kRows), OwnTile(kRows), bytes));
    }));
  }
  const absl::Cleanup go_on = [&] { blocks->GoOn(); };
  EXPECT_TRUE(blocks->AwaitWaiting(2));
  for (const absl::Time end = absl::Now() + absl::Seconds(3); absl::Now() < end;) {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(5)), &context);
    v1::IdentifyResponse response;
    ASSERT_TRUE(stub_->Identify(&context, {}, &response).ok());
    absl::SleepFor(absl::Milliseconds(100));
  }
  blocks->GoOn();
  for (auto& put : puts) EXPECT_THAT(put.get(), IsOk());
}

TEST_F(TileServiceTest, EndsAPutThatStandsStillAndDropsItsTile) {
  idle_limit_ = absl::Milliseconds(100);
  Start();
  Serve();
  const int64_t rows = 4096;
  const auto cut = Messages(Array("b", rows), OwnTile(rows), Pattern(OwnBytes(rows)));
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(kTimeout), &context);
  v1::PutTilesResponse response;
  auto stream = stub_->PutTiles(&context, &response);
  stream->Write(cut[0]);
  stream->Write(cut[1]);                                        // on a slow machine too late
  const absl::Status status = rpc::FromGrpc(stream->Finish());  // without a WritesDone
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(std::string(status.message()), HasSubstr("100ms"));
  EXPECT_TRUE(UsedBytesFallTo(0));
}

TEST_F(TileServiceTest, ServesATileThatTheStoreHoldsInAnotherForm) {
  Start();
  Serve();
  ASSERT_THAT(PutGood("a"), IsOk());
  ASSERT_THAT(gate_->EndTransfer("t-a", true), IsOk());
  std::string plain;
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr tile, store_->Find("a", OwnTile()));
    plain.assign(tile->bytes().data(), tile->bytes().size());
  }
  ASSERT_THAT(store_->HoldAs("a", OwnTile(),
                             std::make_shared<test::ReversedTile>(
                                 plain, *budget_.Reserve(OwnBytes(), "a form"))),
              IsOk());
  // It needs no memory for the bytes.
  const auto others = budget_.Reserve(budget_.limit_bytes() - budget_.used_bytes(), "others");
  ASSERT_THAT(others, IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Got whole, Get(Array("a"), std::nullopt));
  EXPECT_EQ(whole.bytes, plain);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Got rows, Get(Array("a"), Tile{{{5, 7}, {0, 256}}}));
  EXPECT_EQ(rows.bytes, plain.substr(1024, 2048));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Got columns, Get(Array("a"), Tile{{{5, 7}, {1, 3}}}));
  EXPECT_EQ(columns.bytes, plain.substr(1024 + 4, 8) + plain.substr(2048 + 4, 8));
}

TEST_F(TileServiceTest, EndsAGetThatNobodyReads) {
  idle_limit_ = absl::Seconds(2);  // long enough for the put
  Start();
  Serve();
  const int64_t rows = 32768;  // 16 MiB: more than the transport takes on its own
  ASSERT_THAT(PutGood("a", rows), IsOk());
  ASSERT_THAT(gate_->EndTransfer("t-a", true), IsOk());
  const Tile own = OwnTile(rows);
  std::weak_ptr<const StoredTile> tile = *store_->Find("a", own);
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(kTimeout), &context);
  v1::GetTilesRequest request;
  v1::TileSelector* selector = request.add_tiles();
  selector->set_array_id("a");
  selector->set_token(Token(Array("a", rows), rpc::TransferDirection::kGet));
  auto stream = stub_->GetTiles(&context, request);
  v1::GetTilesResponse response;
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_THAT(store_->Release({"a"}), IsOk());
  const absl::Time deadline = absl::Now() + kTimeout;
  while (!tile.expired() && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_TRUE(tile.expired());
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(TileServiceTest, AReportedTileOutlivesTheLossOfTheCoordinator) {
  Start();
  Serve();
  const auto whole = Messages(Array("a"), OwnTile(), Pattern(OwnBytes()));
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(kTimeout), &context);
  v1::PutTilesResponse response;
  auto stream = stub_->PutTiles(&context, &response);
  ASSERT_TRUE(stream->Write(whole[0]));
  ASSERT_TRUE(stream->Write(whole[1]));
  const absl::Time deadline = absl::Now() + kTimeout;
  while (reports().empty() && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  gate_->Suspend();  // the stream of the put is still open
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(store_->FindStaged("a", OwnTile()).ok());
}

constexpr int64_t kSealedRows = 4'096;  // 2 MiB for each rank

TEST_F(TileServiceTest, TakesTilesAsSealedMemoryBesideTilesInPieces) {
  ASSERT_NO_FATAL_FAILURE(StartWithInbox());
  const std::string bytes = Pattern(OwnBytes(kSealedRows));
  std::vector<v1::PutTilesRequest> messages = Messages(Array("a"), OwnTile(), Pattern(OwnBytes()));
  messages.push_back(HandOver(Array("b", kSealedRows), OwnTile(kSealedRows), bytes, Seal(bytes)));
  for (auto& message : Messages(Array("c"), OwnTile(), Pattern(OwnBytes()))) {
    messages.push_back(message);
  }
  messages.push_back(HandOver(Array("d", kSealedRows), OwnTile(kSealedRows), bytes, Seal(bytes)));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const v1::PutTilesResponse response, Put(messages));
  EXPECT_EQ(response.tiles(), 4);
  EXPECT_EQ(response.size_bytes(), 2 * OwnBytes() + 2 * OwnBytes(kSealedRows));
  EXPECT_EQ(store_->used_bytes(), response.size_bytes())
      << "sealed memory counts like other memory";
  EXPECT_EQ(inbox_->counters().staged_bytes, 2 * OwnBytes(kSealedRows));
  EXPECT_EQ(inbox_->counters().kept, 0);
  ASSERT_THAT(reports(), SizeIs(4));
  EXPECT_EQ(reports()[1].crc32c, Crc32c(bytes));
  EXPECT_EQ(reports()[1].size_bytes, OwnBytes(kSealedRows));
  giver_.Close();  // the client has ended; the tiles stay
  for (const char* id : {"b", "d"}) {
    ASSERT_THAT(gate_->EndTransfer(StrCat("t-", id), true), IsOk());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Got got, Get(Array(id, kSealedRows), std::nullopt));
    EXPECT_TRUE(got.bytes == bytes);
    EXPECT_EQ(store_->TakeMemory(id, OwnTile(kSealedRows)), nullptr) << "nobody writes to it";
  }
  ASSERT_THAT(gate_->EndTransfer("t-a", false), IsOk());
  ASSERT_THAT(gate_->EndTransfer("t-c", false), IsOk());
  ASSERT_THAT(store_->Release({"b", "d"}), IsOk());
  EXPECT_TRUE(UsedBytesFallTo(0));
}

// Peers on the host read its tiles in place, those that clients handed over too.
TEST_F(TileServiceTest, SealedMemoryBecomesASegmentThatPeersRead) {
  const auto arena = std::make_shared<ShmArena>("test");
  pool_ = BufferPool::Create(&budget_, 0, arena);
  ASSERT_NO_FATAL_FAILURE(StartWithInbox());
  const std::string bytes = Pattern(OwnBytes(kSealedRows));
  ASSERT_THAT(Put({HandOver(Array("a", kSealedRows), OwnTile(kSealedRows), bytes, Seal(bytes))}),
              IsOk());
  ASSERT_THAT(gate_->EndTransfer("t-a", true), IsOk());
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr stored,
                                   store_->Find("a", OwnTile(kSealedRows)));
    EXPECT_TRUE(arena->Locate(stored->bytes().data(), stored->bytes().size()).has_value());
  }
  ASSERT_THAT(store_->Release({"a"}), IsOk());
  EXPECT_TRUE(UsedBytesFallTo(0));
}

// The memory of a tile that is streamed is filled as it comes.
TEST_F(TileServiceTest, AStreamedTileBecomesASegmentThatPeersRead) {
  const auto arena = std::make_shared<ShmArena>("test");
  pool_ = BufferPool::Create(&budget_, 0, arena);
  Start();
  Serve();
  const int64_t rows = 16'386;  // several pieces, the last one of less than a page
  const std::string bytes = Pattern(OwnBytes(rows));
  ASSERT_THAT(PutGood("a", rows), IsOk());
  EXPECT_EQ(reports()[0].crc32c, Crc32c(bytes));
  ASSERT_THAT(gate_->EndTransfer("t-a", true), IsOk());
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr stored, store_->Find("a", OwnTile(rows)));
    EXPECT_TRUE(stored->bytes() == absl::MakeConstSpan(bytes));
    EXPECT_TRUE(arena->Locate(stored->bytes().data(), stored->bytes().size()).has_value());
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Got got, Get(Array("a", rows), std::nullopt));
  EXPECT_TRUE(got.bytes == bytes);
  // Nobody else has the memory: a step may write to it.
  const std::shared_ptr<Buffer> taken = store_->TakeMemory("a", OwnTile(rows));
  ASSERT_NE(taken, nullptr);
  taken->data()[0] = 'y';
}

TEST_F(TileServiceTest, AHostWithoutMemoryForAPieceEndsThePutAndDropsItsTile) {
  if (HasHugeSharedPages()) GTEST_SKIP() << "this host gives shared memory huge pages";
  pool_ = BufferPool::Create(&budget_, 0, std::make_shared<ShmArena>("test"));
  Start();
  Serve();
  const int64_t rows = 8'192;
  ASSERT_THAT(ArmFailpoints("shm.write=enospc:2"), IsOk());
  const absl::Status refused = PutGood("a", rows).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the host refuses memory for bytes"));
  EXPECT_TRUE(UsedBytesFallTo(0));
  EXPECT_THAT(reports(), SizeIs(0));
  EXPECT_THAT(PutGood("a", rows), IsOk());
}

TEST_F(TileServiceTest, AHostWithoutMemoryForAPieceGetsThatOfTheCache) {
  if (HasHugeSharedPages()) GTEST_SKIP() << "this host gives shared memory huge pages";
  pool_ = BufferPool::Create(&budget_, 0, std::make_shared<ShmArena>("test"));
  std::vector<int64_t> asked_bytes;
  bool has_cache = true;
  free_memory_ = [&](const absl::Status& refused, int64_t size_bytes) {
    EXPECT_TRUE(IsHostShortage(refused)) << refused;
    asked_bytes.push_back(size_bytes);
    return has_cache;
  };
  Start();
  Serve();
  const int64_t rows = 8'192;  // four pieces
  for (const int piece : {2, 4}) {
    const std::string id = StrCat("a", piece);
    ASSERT_THAT(ArmFailpoints(StrCat("shm.write=enospc:", piece)), IsOk());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const v1::PutTilesResponse response, PutGood(id, rows));
    EXPECT_EQ(response.size_bytes(), OwnBytes(rows));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr stored,
                                   store_->FindStaged(id, OwnTile(rows)));
    EXPECT_TRUE(stored->bytes() == absl::MakeConstSpan(Pattern(OwnBytes(rows))));
  }
  EXPECT_THAT(asked_bytes, ElementsAre(int64_t{3} << 20, int64_t{1} << 20))
      << "what the tiles lacked";
  has_cache = false;
  ASSERT_THAT(ArmFailpoints("shm.write=enospc:2"), IsOk());
  EXPECT_THAT(PutGood("b", rows),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_TRUE(UsedBytesFallTo(2 * OwnBytes(rows)));
}

TEST_F(TileServiceTest, APieceOfALargeTileDoesNotTakeMemoryForAllOthersFromTheCache) {
  if (HasHugeSharedPages()) GTEST_SKIP() << "this host gives shared memory huge pages";
  pool_ = BufferPool::Create(&large_budget_, 0, std::make_shared<ShmArena>("test"));
  std::vector<int64_t> asked_bytes;
  free_memory_ = [&](const absl::Status&, int64_t size_bytes) {
    asked_bytes.push_back(size_bytes);
    return true;
  };
  Start();
  Serve();
  const int64_t rows = 2 * 80 * 1'024;  // 80 pieces
  ASSERT_THAT(ArmFailpoints("shm.write=enospc:2"), IsOk());
  EXPECT_THAT(PutGood("a", rows), IsOk());
  EXPECT_THAT(asked_bytes, ElementsAre(int64_t{64} << 20)) << "79 MiB are missing";
}

TEST_F(TileServiceTest, WritesSealedMemoryToDiskAsItDoesOtherTiles) {
  std::string folder = ::testing::TempDir() + "/sealed.XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const absl::Cleanup remove = [&] { std::filesystem::remove_all(folder); };
  ASSERT_NO_FATAL_FAILURE(StartWithInbox(folder));
  const std::string bytes = Pattern(OwnBytes(kSealedRows));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const v1::PutTilesResponse response,
      Put({HandOver(Array("a", kSealedRows), OwnTile(kSealedRows), bytes, Seal(bytes))}));
  EXPECT_EQ(response.durability(), v1::DURABILITY_DISK);
  ASSERT_THAT(gate_->EndTransfer("t-a", true), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr stored,
                                 store_->Find("a", OwnTile(kSealedRows)));
  store_->AwaitFiles();
  EXPECT_THAT(store_->CheckFile(stored->description(), stored->crc32c(), int64_t{1} << 20,
                                [](int64_t) { return absl::OkStatus(); }),
              IsOk());
}

TEST_F(TileServiceTest, RefusesSealedMemoryThatIsNotTheTile) {
  ASSERT_NO_FATAL_FAILURE(StartWithInbox());
  const ArrayDescriptor array = Array("a", kSealedRows);
  const Tile own = OwnTile(kSealedRows);
  const std::string bytes = Pattern(OwnBytes(kSealedRows));
  const auto bad_tile = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile);
  const auto put = [&](const FileDescriptor& memory,
                       const std::function<void(v1::TileHeader*)>& spoil = nullptr) {
    v1::PutTilesRequest message = HandOver(array, own, bytes, memory);
    if (spoil != nullptr) spoil(message.mutable_header());
    return Put({message}).status();
  };

  FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), OwnBytes(kSealedRows)), 0);
  absl::Status refused = put(unsealed);
  EXPECT_THAT(refused, bad_tile);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("lacks the seals"));
  EXPECT_EQ(FactOf(refused, fact::kArray), "a");

  refused = put(Seal(bytes.substr(1)));
  EXPECT_THAT(refused, bad_tile);
  EXPECT_EQ(FactOf(refused, fact::kHave), StrCat(bytes.size() - 1));
  EXPECT_EQ(FactOf(refused, fact::kNeed), StrCat(bytes.size()));

  std::string other = bytes;
  other[4'711] ^= 1;
  EXPECT_THAT(put(Seal(other)), StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));

  EXPECT_THAT(put(Seal(bytes), [](v1::TileHeader* header) { header->set_token("forged"); }),
              StatusIs(absl::StatusCode::kUnauthenticated, Reason::kBadToken));
  EXPECT_THAT(put(Seal(bytes), [](v1::TileHeader* header) { header->set_rank(0); }), bad_tile);
  EXPECT_THAT(put(Seal(bytes), [](v1::TileHeader* header) { header->set_size_bytes(7); }),
              bad_tile);
  refused = put(Seal(bytes), [](v1::TileHeader* header) {
    header->mutable_sealed_memory()->set_id(std::string(rpc::kHandoverIdBytes, 'x'));
  });
  EXPECT_THAT(refused, bad_tile);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("nobody has handed over"));

  EXPECT_TRUE(UsedBytesFallTo(0));
  EXPECT_THAT(reports(), SizeIs(0));
  EXPECT_THAT(put(Seal(bytes)), IsOk()) << "none of it is in the way of the right one";
}

TEST_F(TileServiceTest, ATileInSealedMemoryIsCompleteAndItsIdIsOfOneTile) {
  ASSERT_NO_FATAL_FAILURE(StartWithInbox());
  const std::string bytes = Pattern(OwnBytes(kSealedRows));
  const auto bad_tile = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile);
  std::vector<v1::PutTilesRequest> messages =
      Messages(Array("a", kSealedRows), OwnTile(kSealedRows), bytes);
  messages[0] = HandOver(Array("a", kSealedRows), OwnTile(kSealedRows), bytes, Seal(bytes));
  EXPECT_THAT(Put(messages), bad_tile) << "pieces of a complete tile";
  v1::PutTilesRequest again = messages[0];
  again.mutable_header()->set_array_id("b");
  again.mutable_header()->set_token(Token(Array("b", kSealedRows), rpc::TransferDirection::kPut));
  EXPECT_THAT(Put({again}), bad_tile) << "the id of another tile";
}

TEST_F(TileServiceTest, SealedMemoryCountsAgainstTheLimitBeforeItIsTaken) {
  ASSERT_NO_FATAL_FAILURE(StartWithInbox());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const Buffer used, pool_->Allocate(kMemoryBytes - OwnBytes(kSealedRows) + 4096, "a test"));
  const std::string bytes = Pattern(OwnBytes(kSealedRows));
  const absl::Status refused =
      Put({HandOver(Array("a", kSealedRows), OwnTile(kSealedRows), bytes, Seal(bytes))}).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(FactOf(refused, fact::kNeed), StrCat(bytes.size()));
}

TEST_F(TileServiceTest, AWorkerWithoutAnInboxNamesNoSocketAndTakesNoMemory) {
  Start();
  Serve();
  v1::PutTilesRequest message = Messages(Array("a"), OwnTile(), Pattern(OwnBytes()))[0];
  message.mutable_header()->mutable_sealed_memory()->set_id(
      std::string(rpc::kHandoverIdBytes, 'x'));
  const absl::Status refused = Put({message}).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("send the tile in pieces"));
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(kTimeout), &context);
  v1::IdentifyResponse response;
  ASSERT_TRUE(stub_->Identify(&context, {}, &response).ok());
  EXPECT_EQ(response.handover_socket(), "");
}

// The client is gone between its memory and its header: nothing of either is left.
TEST_F(TileServiceTest, NothingIsLeftOfAClientThatDiesBetweenMemoryAndHeader) {
  ASSERT_NO_FATAL_FAILURE(StartWithInbox());
  const std::string bytes = Pattern(OwnBytes(kSealedRows));
  const v1::PutTilesRequest message =
      HandOver(Array("a", kSealedRows), OwnTile(kSealedRows), bytes, Seal(bytes));
  giver_.Close();
  ASSERT_TRUE(test::Eventually([&] { return inbox_->counters().kept == 0; }));
  EXPECT_THAT(Put({message}), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  EXPECT_EQ(store_->used_bytes(), 0);
}

// The token of a put may come before the worker knows the mesh: the memory waits with it.
TEST_F(TileServiceTest, SealedMemoryWaitsForTheMeshOfItsTile) {
  news_limit_ = kTimeout;
  ASSERT_NO_FATAL_FAILURE(StartWithInbox());
  Serve("other");
  const std::string bytes = Pattern(OwnBytes(kSealedRows));
  const v1::PutTilesRequest message =
      HandOver(Array("a", kSealedRows), OwnTile(kSealedRows), bytes, Seal(bytes));
  auto put = std::async(std::launch::async, [&] { return Put({message}); });
  EXPECT_TRUE(test::Eventually([&] { return inbox_->counters().kept == 0; }));
  Serve();
  EXPECT_THAT(put.get(), IsOk());
  // Other puts wait for the thread that waits for meshes: it reads no tile.
  std::promise<std::thread::id> waiter;
  membership_waits_->Push([&] { waiter.set_value(std::this_thread::get_id()); });
  const std::thread::id waits_for_meshes = waiter.get_future().get();
  absl::MutexLock lock(&mutex_);
  EXPECT_NE(reporter_, waits_for_meshes);
}

TEST_F(TileServiceTest, ServesOnlyWhileAttached) {
  Start();
  const auto not_serving = StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing);
  const auto early = PutGood("a");
  EXPECT_THAT(early, not_serving);
  EXPECT_TRUE(RetryDelayOf(early.status()).has_value());
  EXPECT_TRUE(FactOf(early.status(), fact::kIdentity).has_value());
  EXPECT_THAT(Get(Array("a"), std::nullopt), not_serving);

  Serve();
  ASSERT_THAT(PutGood("a"), IsOk());
  ASSERT_THAT(gate_->EndTransfer("t-a", true), IsOk());
  gate_->Suspend();
  EXPECT_THAT(PutGood("b"), not_serving);
  EXPECT_THAT(Get(Array("a"), std::nullopt), IsOk());
  // The next coordinator has told clients of itself before it tells this worker.
  const std::string of_the_next = Token(Array("a"), rpc::TransferDirection::kGet, absl::Minutes(1),
                                        kTerm + 1, std::string(rpc::kTokenKeyBytes, 'n'));
  EXPECT_THAT(Get(Array("a"), std::nullopt, of_the_next), not_serving);

  Serve();
  ASSERT_THAT(PutGood("b"), IsOk());
  gate_->Drain();
  EXPECT_THAT(PutGood("c"), not_serving);
  EXPECT_THAT(Get(Array("a"), std::nullopt), not_serving);
}

TEST_F(TileServiceTest, RefusesTilesOfATransferThatHasEnded) {
  Start();
  Serve();
  ASSERT_THAT(PutGood("a"), IsOk());
  ASSERT_THAT(gate_->EndTransfer("t-a", false), IsOk());
  EXPECT_THAT(PutGood("a"), StatusIs(absl::StatusCode::kAborted));
  EXPECT_TRUE(UsedBytesFallTo(0));
}

TEST_F(TileServiceTest, SaysWhoItIsBeforeItServes) {
  Start();
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(kTimeout), &context);
  v1::IdentifyResponse response;
  ASSERT_TRUE(stub_->Identify(&context, {}, &response).ok());
  EXPECT_EQ(response.identity(), "w1");
  EXPECT_EQ(response.incarnation(), 7u);
  EXPECT_EQ(response.nonce(), "0123456789abcdef");
  EXPECT_EQ(response.cluster_id(), "cluster");
}

}  // namespace
}  // namespace shardmesh::worker
