// Watches of the catalog over gRPC: where they can begin, and who is cut off.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "process/clock.h"
#include "rpc/codec/status.h"
#include "server/service/catalog_service.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "server/store/local_store.h"
#include "shardmesh/store/v1/definition.pb.h"
#include "shardmesh/v1/catalog_service.grpc.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;

class CatalogWatchTest : public ::testing::Test {
 protected:
  CatalogWatchTest() {
    registry_ = *ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {});
    definition_store_ = *DefinitionStore::Open(store_.get(), &clock_, &registry_->requests());
    service_ = MakeCatalogService(definition_store_.get(), registry_.get(), /*gate=*/nullptr);
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.service.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::CatalogService::NewStub(server_->InProcessChannel({}));
  }
  ~CatalogWatchTest() override {
    service_.end_streams();
    server_->Shutdown(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  }

  // Defines a mesh, or a new version of it.
  void Define(const std::string& name, int size, bool is_new) {
    v1::EntryValue value;
    v1::MeshAxis* const axis = value.mutable_mesh()->mutable_mesh()->add_axes();
    axis->set_name("x");
    axis->set_size(size);
    absl::Notification done;
    const auto callback = [&](const auto& definition) {
      EXPECT_THAT(definition, IsOk());
      done.Notify();
    };
    DefinitionStore::Change change{.request_id = "", .name = name};
    if (is_new) {
      definition_store_->Create(std::move(change), value.SerializeAsString(), callback);
    } else {
      definition_store_->Update(std::move(change), value.SerializeAsString(), callback);
    }
    done.WaitForNotification();
  }
  void WriteOther(int commits) {
    for (int i = 0; i < commits; ++i) {
      ASSERT_THAT(CommitAndWait(*store_, {.puts = {{"name/x", StrCat(i)}}}), IsOk());
    }
  }
  int64_t ListRevision() {
    grpc::ClientContext context;
    v1::ListEntriesRequest request;
    request.set_kind(v1::ENTRY_KIND_MESH);
    v1::ListEntriesResponse response;
    EXPECT_TRUE(stub_->ListEntries(&context, request, &response).ok());
    return response.revision();
  }

  RealClock clock_;
  std::unique_ptr<Store> store_ =
      CreateMemoryStore({.retention = {.bytes = 1000}, .history = DefinitionHistory()});
  std::unique_ptr<ArrayRegistry> registry_;
  std::unique_ptr<DefinitionStore> definition_store_;
  StreamingService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::CatalogService::Stub> stub_;
};

TEST_F(CatalogWatchTest, BeginsAtTheRevisionOfAListHoweverManyOtherCommitsThereWere) {
  Define("t", 1, true);
  WriteOther(2000);
  for (const bool from_list : {true, false}) {
    grpc::ClientContext context;
    v1::WatchRequest request;
    if (from_list) request.set_start_revision(ListRevision() + 1);
    const auto stream = stub_->Watch(&context, request);
    v1::WatchResponse response;
    ASSERT_TRUE(stream->Read(&response)) << stream->Finish().error_message();
    EXPECT_GE(response.revision(), 2000);
    Define("t", 2, false);
    response.Clear();
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.changes(0).name(), "t");
    EXPECT_EQ(response.changes(0).entry().value().mesh().mesh().axes(0).size(), 2);
    context.TryCancel();
    static_cast<void>(stream->Finish());
  }
}

TEST_F(CatalogWatchTest, TellsOfARecordThatItCannotReadWithoutItsValue) {
  Define("t", 1, true);
  ASSERT_THAT(CommitAndWait(*store_, {.puts = {{"mesh/odd", "\xff\xff"}}}), IsOk());
  grpc::ClientContext context;
  v1::WatchRequest request;
  request.set_start_revision(1);
  request.add_kinds(v1::ENTRY_KIND_MESH);
  const auto stream = stub_->Watch(&context, request);
  v1::WatchResponse response;
  // The confirmation, and two changes.
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.changes(0).name(), "odd");
  EXPECT_TRUE(response.changes(0).has_entry()) << "it was not deleted";
  EXPECT_FALSE(response.changes(0).entry().has_value());
  context.TryCancel();
  static_cast<void>(stream->Finish());
}

TEST_F(CatalogWatchTest, EndsWithTheCoordinatorAndSaysWhenToTryAgain) {
  grpc::ClientContext context;
  const auto stream = stub_->Watch(&context, {});
  v1::WatchResponse response;
  ASSERT_TRUE(stream->Read(&response));
  service_.end_streams();
  EXPECT_FALSE(stream->Read(&response));
  const absl::Status ended = rpc::FromGrpc(stream->Finish());
  EXPECT_THAT(ended, test::StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
  EXPECT_TRUE(RetryDelayOf(ended).has_value());
}

TEST_F(CatalogWatchTest, AWatcherThatDoesNotReadIsCutOff) {
  grpc::ClientContext context;
  const auto stream = stub_->Watch(&context, {});
  v1::WatchResponse response;
  ASSERT_TRUE(stream->Read(&response));
  grpc::ClientContext reading_context;
  const auto reading = stub_->Watch(&reading_context, {});
  ASSERT_TRUE(reading->Read(&response));
  store::v1::Definition record;
  record.set_version(1);
  for (int i = 0; i < 10'000; ++i) {
    record.mutable_value()->mutable_rule_set()->add_rules()->set_pattern(std::string(100, 'p'));
  }
  const std::string value = record.SerializeAsString();
  for (int i = 0; i < 40; ++i) {
    ASSERT_THAT(CommitAndWait(*store_, {.puts = {{"rule_set/r", value}}}), IsOk());
    ASSERT_TRUE(reading->Read(&response))
        << "one that reads goes on: " << rpc::FromGrpc(reading->Finish());
  }
  const absl::Time start = absl::Now();
  while (stream->Read(&response)) {
  }
  const grpc::Status ended = stream->Finish();
  if (ended.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
    EXPECT_THAT(rpc::FromGrpc(ended),
                test::CarriesFacts(Reason::kSlowReader, {{fact::kLimit, 16 << 20}}));
  }
  EXPECT_THAT(ended.error_code(),
              ::testing::AnyOf(grpc::StatusCode::RESOURCE_EXHAUSTED, grpc::StatusCode::CANCELLED));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  reading_context.TryCancel();
  static_cast<void>(reading->Finish());
}

}  // namespace
}  // namespace shardmesh::server
