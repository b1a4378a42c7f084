// Questions that name a version: decoding one that was replaced can take long, and is no work for
// gRPC's threads.
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/resolve/layout_streams.h"
#include "server/resolve/resolve_answers.h"
#include "server/resolve/rule_streams.h"
#include "server/resolve/tree_streams.h"
#include "server/state/definitions.h"
#include "server/store/local_store.h"
#include "shardmesh/store/v1/definition.pb.h"
#include "shardmesh/v1/catalog_service.grpc.pb.h"
#include "status/reason.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/resolve_service_fixture.h"
#include "tests/unit/server/tree_columns.h"

namespace shardmesh::server {
namespace {

using test::IsOk;
using test::StatusIs;

TEST(NamesVersionTest, RulesOfAVersionMayHaveToBeCompiled) {
  v1::RuleSetSelector rules;
  rules.set_name("stored");
  EXPECT_FALSE(SearchesLong(Definitions(), rules));
  rules.set_name("stored@3");
  EXPECT_TRUE(SearchesLong(Definitions(), rules));
}

// Of a call that takes a stored tree, a header that names it and one that names a version of it.
template <typename Request, typename Call>
void ExpectVersionsTakeLong(const Call& call) {
  Request request;
  request.mutable_header()->set_stored_tree("t");
  EXPECT_FALSE(call->TakesLong(request)) << request.GetTypeName();
  request.mutable_header()->set_stored_tree("t@1");
  EXPECT_TRUE(call->TakesLong(request)) << request.GetTypeName();
}

TEST(NamesVersionTest, EveryStreamTakesVersionsOfTreesForLong) {
  const auto state = std::make_shared<const Definitions>();
  const CorrectionCounter counter(nullptr);
  ExpectVersionsTakeLong<v1::ResolveTreeRequest>(MakeResolveTreeCall(state, counter));
  ExpectVersionsTakeLong<v1::AnalyzeLayoutRequest>(MakeAnalyzeLayoutCall(state));
  ExpectVersionsTakeLong<compat::v1::AnalyzeShardingStrategyRequest>(
      MakeShardingStrategyCall(state));
  ExpectVersionsTakeLong<v1::SearchMeshesRequest>(MakeSearchMeshesCall(state));
  ExpectVersionsTakeLong<v1::DiffLayoutsRequest>(MakeDiffLayoutsCall(state));
}

// What LintRules does with versions of trees that a header names. Of each tree there are two: the
// first is written as it is told, the second is of one tensor.
class LintedVersionsTest : public testing::Test {
 protected:
  void Store(const std::string& name, const v1::TreeTensors& first) {
    for (int version = 1; version <= 2; ++version) {
      store::v1::Definition record;
      record.set_version(version);
      record.mutable_update_time()->set_seconds(version);
      *record.mutable_value()->mutable_tree()->mutable_tensors() =
          version == 1 ? first : Columns({{"w", {8}}});
      Transaction transaction;
      transaction.puts.push_back({.key = "tree/" + name, .value = record.SerializeAsString()});
      ASSERT_TRUE(CommitAndWait(*store_, std::move(transaction)).ok());
    }
  }

  // The statuses of the header, and of the end unless there is none.
  std::pair<absl::Status, absl::Status> Lint(const std::vector<std::string>& trees,
                                             const std::function<bool()>& is_cancelled) {
    auto requests = *RequestMemory::Open(store_.get(), &clock_);
    const auto definition_store = *DefinitionStore::Open(store_.get(), &clock_, requests.get());
    const auto call = MakeLintRulesCall(definition_store->shared_state(), nullptr);
    v1::LintRulesRequest request;
    request.mutable_header()->mutable_rule_set()->mutable_value()->add_rules();
    for (const std::string& tree : trees) {
      request.mutable_header()->add_stored_trees(tree);
    }
    bool is_tensors = false;
    const absl::Status taken = call->Take(request, is_cancelled, &response_, &is_tensors);
    return {taken, taken.ok() ? call->End(&response_, is_cancelled) : absl::OkStatus()};
  }

  test::FakeClock clock_;
  std::unique_ptr<server::Store> store_ = CreateMemoryStore({.history = DefinitionHistory()});
  v1::LintRulesResponse response_;
};

constexpr auto kNever = [] { return false; };

TEST_F(LintedVersionsTest, AreDecodedAtTheEndAndOneAtATime) {
  v1::TreeTensors broken = Columns({{"w", {8}}});
  broken.add_name_sizes(1);
  Store("z", broken);
  auto [taken, ended] = Lint({"z@2", "z@1"}, kNever);
  EXPECT_THAT(taken, IsOk()) << "nothing is decoded yet";
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
  EXPECT_EQ(rpc::FieldViolationsOf(ended).front().field, "header.stored_trees[1]");

  v1::TreeTensors large;
  for (int i = 0; i < 100'000; ++i) {
    const std::string name = std::to_string(i);
    large.mutable_names()->append(name);
    large.add_name_sizes(static_cast<uint32_t>(name.size()));
    large.add_ranks(0);
  }
  std::vector<std::string> trees = {"z@1"};
  for (int i = 0; i < 11; ++i) {
    Store("large" + std::to_string(i), large);
    trees.push_back("large" + std::to_string(i) + "@1");
  }
  std::tie(taken, ended) = Lint(trees, kNever);
  EXPECT_THAT(taken, IsOk());
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded))
      << "what comes behind the millionth tensor is not decoded";
  EXPECT_THAT(Lint({"large0@1", "large0@1"}, kNever).first,
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));

  int asked = 0;
  std::tie(taken, ended) = Lint(trees, [&asked] { return ++asked > 2; });
  EXPECT_TRUE(absl::IsCancelled(ended)) << ended;
  EXPECT_LE(asked, 5) << "is noticed between two trees";
}

TEST_F(LintedVersionsTest, GoByTheirTensorsAxes) {
  v1::TreeTensors with_axes = Columns({{"a", {8}}, {"b", {8}}, {"c", {8}}});
  with_axes.add_axes_table()->add_axes()->set_name("nosuch");
  with_axes.add_axes_table()->add_axes()->set_name("__EMBED__");
  for (const uint32_t index : {2, 1, 2}) {
    with_axes.add_axes_indexes(index);
  }
  Store("t", with_axes);
  const auto [taken, ended] = Lint({"t@1"}, kNever);
  EXPECT_THAT(taken, IsOk());
  EXPECT_THAT(ended, IsOk());
  bool has_bad_axes = false;
  for (const v1::LintFinding& finding : response_.findings()) {
    has_bad_axes = has_bad_axes ||
                   (finding.kind() == v1::LintFinding::KIND_BAD_AXES && finding.tensor() == "b");
  }
  EXPECT_TRUE(has_bad_axes) << response_.DebugString();
}

class OlderVersionsTest : public ResolveServiceTest {
 protected:
  // Stores rules of one pattern under a name, each time as its next version.
  void Store(const std::string& name, const std::string& pattern) {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(60)), &context);
    v1::EntryValue value;
    value.mutable_rule_set()->add_rules()->set_pattern(pattern);
    value.mutable_rule_set()->add_rules();
    if (versions_++ == 0) {
      v1::CreateEntryRequest request;
      request.set_request_id("create");
      request.set_name(name);
      *request.mutable_value() = value;
      v1::CreateEntryResponse response;
      ASSERT_THAT(rpc::FromGrpc(catalog_->CreateEntry(&context, request, &response)), IsOk());
    } else {
      v1::UpdateEntryRequest request;
      request.set_request_id("update" + std::to_string(versions_));
      request.set_name(name);
      *request.mutable_value() = value;
      v1::UpdateEntryResponse response;
      ASSERT_THAT(rpc::FromGrpc(catalog_->UpdateEntry(&context, request, &response)), IsOk());
    }
  }

  std::unique_ptr<v1::CatalogService::Stub> catalog_ = v1::CatalogService::NewStub(channel());
  int versions_ = 0;
};

TEST_F(OlderVersionsTest, AreWhatQuestionsAndGetsOfThemAnswer) {
  Store("r", "bias");
  Store("r", "kernel");
  for (const auto& [name, rule] : {std::pair("r@1", 1), {"r@2", 0}, {"r", 0}, {"r@1", 1}}) {
    v1::ExplainTensorRequest request;
    request.set_name("kernel");
    request.mutable_shape()->add_sizes(8);
    request.mutable_rule_set()->set_name(name);
    request.mutable_mesh()->set_name("default");
    v1::ExplainTensorResponse response;
    EXPECT_THAT(Ask(&v1::ResolveService::Stub::ExplainTensor, request, &response), IsOk());
    EXPECT_EQ(response.rule_index(), rule) << name;

    v1::GetEntryRequest get;
    get.set_kind(v1::ENTRY_KIND_RULE_SET);
    get.set_name(name);
    v1::GetEntryResponse got;
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
    EXPECT_THAT(rpc::FromGrpc(catalog_->GetEntry(&context, get, &got)), IsOk());
    EXPECT_EQ(got.entry().value().rule_set().rules(0).pattern(), rule == 0 ? "kernel" : "bias");
  }
}

}  // namespace
}  // namespace shardmesh::server
