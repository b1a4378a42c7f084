// Rule sets that take long to compile, put into the catalog: gRPC's threads go on answering.
#include <atomic>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/resolve/resolve_answers.h"
#include "shardmesh/v1/catalog_service.grpc.pb.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/busy_callers.h"

namespace shardmesh::server {
namespace {

using test::IsOk;

class LongChangesTest : public BusyCallersTest {
 protected:
  // Rules of which each takes some tens of milliseconds.
  static v1::CreateEntryRequest Creation(const std::string& name, int rules) {
    v1::CreateEntryRequest request;
    request.set_request_id("create-" + name);
    request.set_name(name);
    for (int i = 0; i < rules; ++i) {
      request.mutable_value()->mutable_rule_set()->add_rules()->set_pattern(R"(\w{100}\b)");
    }
    return request;
  }

  std::unique_ptr<v1::CatalogService::Stub> catalog_ = v1::CatalogService::NewStub(channel());
};

TEST_F(LongChangesTest, CompilingTheirRulesHoldsUpNobodyElse) {
  std::atomic<int> callers = 0;
  ExpectOthersAreAnswered([&](grpc::ClientContext* context) {
    v1::CreateEntryResponse response;
    catalog_->CreateEntry(context, Creation("r" + std::to_string(++callers), 60), &response);
  });
}

TEST_F(LongChangesTest, TheyAreMadeAsOthersAre) {
  v1::CreateEntryRequest create = Creation("r", 2);
  ASSERT_TRUE(CompilesLong(create.value().rule_set()));
  for (int i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(60)), &context);
    v1::CreateEntryResponse response;
    EXPECT_THAT(rpc::FromGrpc(catalog_->CreateEntry(&context, create, &response)), IsOk());
    EXPECT_EQ(response.entry().version(), 1) << "also when it is repeated";
  }
  v1::UpdateEntryRequest update;
  update.set_request_id("update");
  update.set_name("r");
  *update.mutable_value() = create.value();
  {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(60)), &context);
    v1::UpdateEntryResponse response;
    EXPECT_THAT(rpc::FromGrpc(catalog_->UpdateEntry(&context, update, &response)), IsOk());
    EXPECT_EQ(response.entry().version(), 2);
  }
  update.set_request_id("bad");
  update.mutable_value()->mutable_rule_set()->add_rules()->set_pattern("(");
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(absl::Seconds(60)), &context);
  v1::UpdateEntryResponse response;
  const absl::Status status = rpc::FromGrpc(catalog_->UpdateEntry(&context, update, &response));
  EXPECT_THAT(status, test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadPattern));
  EXPECT_EQ(FieldOf(status), "value.rule_set.rules");
}

}  // namespace
}  // namespace shardmesh::server
