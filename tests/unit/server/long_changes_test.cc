// Rule sets that take long to compile, put into the catalog: gRPC's threads go on answering.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/resolve_answers.h"
#include "sharding/reason.h"
#include "shardmesh/v1/catalog_service.grpc.pb.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/resolve_service_fixture.h"

namespace shardmesh::server {
namespace {

using test::IsOk;

class LongChangesTest : public ResolveServiceTest {
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
  constexpr int kCallers = 8;  // more than gRPC's and the background's threads
  constexpr int kAnswers = 50;
  std::atomic<int> ended = 0;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(60)), contexts.back().get());
    callers.emplace_back([this, i, &ended, context = contexts.back().get()] {
      v1::CreateEntryResponse response;
      catalog_->CreateEntry(context, Creation("r" + std::to_string(i), 60), &response);
      ++ended;
    });
  }
  int answered = 0;
  absl::Status status;
  v1::ListPresetsResponse presets;
  while (status.ok() && ended.load() == 0 && answered < kAnswers) {
    status = Ask(&Stub::ListPresets, v1::ListPresetsRequest(), &presets);
    answered += ended.load() == 0 ? 1 : 0;
    absl::SleepFor(absl::Milliseconds(2));  // so that the others' requests arrive meanwhile
  }
  EXPECT_THAT(status, IsOk());
  EXPECT_EQ(answered, kAnswers);
  for (const auto& context : contexts) {
    context->TryCancel();
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
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
