// Trees of the catalog over real gRPC: what is kept, what lists leave out, and questions that name
// one instead of streaming it.
#include "server/state/stored_tree.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/v1/catalog_service.grpc.pb.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/resolve_service_fixture.h"
#include "tests/unit/server/tree_columns.h"

namespace shardmesh::server {
namespace {

using test::IsOk;
using test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using test::kInvalid;

v1::RuleSetSelector Rules(const std::vector<std::pair<std::string, std::string>>& rules) {
  v1::RuleSetSelector selector;
  for (const auto& [pattern, axis] : rules) {
    v1::Rule* const rule = selector.mutable_value()->add_rules();
    rule->set_pattern(pattern);
    if (!axis.empty()) {
      rule->mutable_spec()->add_dimensions()->set_name(axis);
    }
  }
  return selector;
}

class StoredTreeTest : public ResolveServiceTest {
 protected:
  using CatalogStub = v1::CatalogService::Stub;

  template <typename Request, typename Response>
  absl::Status AskCatalog(grpc::Status (CatalogStub::*method)(grpc::ClientContext*, const Request&,
                                                              Response*),
                          const Request& request, Response* response) {
    response->Clear();
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
    return rpc::FromGrpc((catalog_.get()->*method)(&context, request, response));
  }

  absl::Status Store(const std::string& name, v1::TreeTensors tensors) {
    v1::CreateEntryRequest request;
    request.set_request_id(StrCat("create-", name, "-", ++requests_));
    request.set_name(name);
    *request.mutable_value()->mutable_tree()->mutable_tensors() = std::move(tensors);
    v1::CreateEntryResponse response;
    const absl::Status status = AskCatalog(&CatalogStub::CreateEntry, request, &response);
    entry_ = response.entry();
    return status;
  }

  // A call with a header and pieces; all that is answered.
  template <typename Response, typename Stream, typename Request>
  static absl::Status Exchange(Stream* stream, Request header,
                               const std::vector<v1::TreeTensors>& pieces,
                               std::vector<Response>* responses) {
    stream->Write(header);
    for (const v1::TreeTensors& piece : pieces) {
      Request request;
      *request.mutable_tensors() = piece;
      stream->Write(request);
    }
    stream->WritesDone();
    responses->clear();
    Response response;
    while (stream->Read(&response)) {
      responses->push_back(response);
    }
    return rpc::FromGrpc(stream->Finish());
  }
  template <typename Stream, typename Request>
  static absl::Status Send(Stream* stream, Request header,
                           const std::vector<v1::TreeTensors>& pieces) {
    stream->Write(header);
    for (const v1::TreeTensors& piece : pieces) {
      Request request;
      *request.mutable_tensors() = piece;
      stream->Write(request);
    }
    stream->WritesDone();
    return rpc::FromGrpc(stream->Finish());
  }

  absl::Status Lint(const v1::LintRulesHeader& header,
                    const std::vector<v1::TreeTensors>& pieces = {}) {
    lint_.Clear();
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
    v1::LintRulesRequest request;
    *request.mutable_header() = header;
    return Send(stub<v1::RuleService::Stub>().LintRules(&context, &lint_).get(), request, pieces);
  }

  std::unique_ptr<CatalogStub> catalog_ = v1::CatalogService::NewStub(channel());
  int requests_ = 0;
  v1::Entry entry_;
  v1::LintRulesResponse lint_;
};

TEST_F(StoredTreeTest, KeepsATreeAndGivesItsTensorsToWhoGetsIt) {
  v1::TreeTensors tensors = Columns({{"a.kernel", {8, 3}},
                                     {"scale", {}, v1::DTYPE_UNSPECIFIED},
                                     {"b.kernel", {3}, v1::DTYPE_F4}});
  tensors.add_axes_table()->add_axes()->set_name("__EMBED__");
  tensors.add_spec_table()->add_dimensions()->set_name("tp");
  for (const uint32_t index : {0, 0, 1}) {
    tensors.add_axes_indexes(index);
  }
  for (const uint32_t index : {1, 0, 0}) {
    tensors.add_spec_indexes(index);
  }
  ASSERT_THAT(Store("model", tensors), IsOk());
  EXPECT_EQ(entry_.version(), 1);
  EXPECT_FALSE(entry_.value().tree().has_tensors()) << "whoever stores it has them";

  v1::GetEntryRequest get;
  get.set_kind(v1::ENTRY_KIND_TREE);
  get.set_name("model");
  v1::GetEntryResponse got;
  ASSERT_THAT(AskCatalog(&CatalogStub::GetEntry, get, &got), IsOk());
  const v1::StoredTree& tree = got.entry().value().tree();
  EXPECT_EQ(tree.tensors().SerializeAsString(), tensors.SerializeAsString());
  EXPECT_EQ(tree.tensor_count(), 3);
  EXPECT_EQ(tree.parameters(), 24 + 1 + 3);
  EXPECT_EQ(tree.bytes(), 96 + 2) << "three elements of four bits";

  get.set_name("modle");
  const absl::Status status = AskCatalog(&CatalogStub::GetEntry, get, &got);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(std::string(status.message()), HasSubstr("there is no tree named \"modle\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"model\""));
}

TEST_F(StoredTreeTest, AnswersAboutTheVersionThatIsNamed) {
  ASSERT_THAT(Store("model", Columns({{"old.kernel", {8}}, {"bias", {8}}})), IsOk());
  v1::UpdateEntryRequest update;
  update.set_request_id("update");
  update.set_name("model");
  *update.mutable_value()->mutable_tree()->mutable_tensors() = Columns({{"kernel", {8}}});
  v1::UpdateEntryResponse updated;
  ASSERT_THAT(AskCatalog(&CatalogStub::UpdateEntry, update, &updated), IsOk());

  v1::GetEntryRequest get;
  get.set_kind(v1::ENTRY_KIND_TREE);
  get.set_name("model@1");
  v1::GetEntryResponse got;
  ASSERT_THAT(AskCatalog(&CatalogStub::GetEntry, get, &got), IsOk());
  EXPECT_EQ(got.entry().name(), "model");
  EXPECT_EQ(got.entry().version(), 1);
  EXPECT_EQ(got.entry().revision(), entry_.revision());
  EXPECT_EQ(got.entry().value().tree().tensors().names(), "old.kernelbias");
  EXPECT_EQ(got.entry().value().tree().tensor_count(), 2);
  v1::EntryValue put;
  *put.mutable_tree()->mutable_tensors() = got.entry().value().tree().tensors();
  get.set_name("model@3");
  absl::Status status = AskCatalog(&CatalogStub::GetEntry, get, &got);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(std::string(status.message()), HasSubstr("kept are versions 1 to 2"));
  get.set_name("model@");
  status = AskCatalog(&CatalogStub::GetEntry, get, &got);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(FieldOf(status), "name");

  v1::ListEntryVersionsRequest list;
  list.set_kind(v1::ENTRY_KIND_TREE);
  list.set_name("model");
  v1::ListEntryVersionsResponse versions;
  ASSERT_THAT(AskCatalog(&CatalogStub::ListEntryVersions, list, &versions), IsOk());
  ASSERT_EQ(versions.versions_size(), 2);
  EXPECT_EQ(versions.versions(0).version(), 2);
  EXPECT_EQ(versions.versions(0).revision(), updated.entry().revision());
  EXPECT_EQ(versions.versions(1).version(), 1);
  EXPECT_EQ(versions.versions(1).revision(), entry_.revision());
  EXPECT_EQ(versions.versions(1).update_time().seconds(), entry_.update_time().seconds());
  EXPECT_EQ(versions.versions(1).size_bytes(), static_cast<int64_t>(put.ByteSizeLong()));
  EXPECT_GE(versions.revision(), updated.entry().revision());
  list.set_name("modle");
  EXPECT_THAT(AskCatalog(&CatalogStub::ListEntryVersions, list, &versions),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  list.clear_kind();
  EXPECT_THAT(AskCatalog(&CatalogStub::ListEntryVersions, list, &versions),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));

  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
  v1::ResolveTreeRequest resolve;
  resolve.mutable_header()->set_stored_tree("model@1");
  *resolve.mutable_header()->mutable_rule_set() = Rules({{".*", ""}});
  resolve.mutable_header()->mutable_mesh()->set_name("default");
  std::vector<v1::ResolveTreeResponse> resolved;
  ASSERT_THAT(
      Exchange(stub<v1::LayoutService::Stub>().ResolveTree(&context).get(), resolve, {}, &resolved),
      IsOk());
  EXPECT_EQ(resolved[0].placements().spec_indexes_size(), 2);

  // All trees are all names, as they are now; versions beside each other are named apart.
  v1::LintRulesHeader lint;
  *lint.mutable_rule_set() = Rules({{"kernel", ""}});
  lint.set_all_stored_trees(true);
  ASSERT_THAT(Lint(lint), IsOk());
  EXPECT_EQ(lint_.tensors(), 1);
  lint.clear_all_stored_trees();
  lint.add_stored_trees("model");
  lint.add_stored_trees("model@1");
  ASSERT_THAT(Lint(lint), IsOk());
  EXPECT_EQ(lint_.tensors(), 3);
  ASSERT_EQ(lint_.trees_size(), 2);
  EXPECT_EQ(lint_.trees(0).name(), "model");
  EXPECT_EQ(lint_.trees(0).version(), 1);
  EXPECT_EQ(lint_.trees(1).version(), 2);
  ASSERT_EQ(lint_.findings_size(), 1);
  EXPECT_THAT(lint_.findings(0).message(), HasSubstr("tree 'model@1'"));
  lint.add_stored_trees("model@2");
  status = Lint(lint);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(FieldOf(status), "header.stored_trees[2]");
}

TEST_F(StoredTreeTest, LeavesTensorsOutOfListsAndWatches) {
  v1::WatchRequest watch;
  watch.add_kinds(v1::ENTRY_KIND_TREE);
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
  const auto changes = catalog_->Watch(&context, watch);
  v1::WatchResponse change;
  ASSERT_TRUE(changes->Read(&change));
  ASSERT_THAT(Store("b", Columns({{"w", {8}}})), IsOk());
  ASSERT_TRUE(changes->Read(&change));
  EXPECT_EQ(change.changes(0).kind(), v1::ENTRY_KIND_TREE);
  EXPECT_EQ(change.changes(0).entry().value().tree().tensor_count(), 1);
  EXPECT_FALSE(change.changes(0).entry().value().tree().has_tensors());
  context.TryCancel();

  ASSERT_THAT(Store("a", Columns({{"v", {8}}, {"w", {8}}})), IsOk());
  v1::ListEntriesRequest list;
  list.set_kind(v1::ENTRY_KIND_TREE);
  v1::ListEntriesResponse listed;
  ASSERT_THAT(AskCatalog(&CatalogStub::ListEntries, list, &listed), IsOk());
  ASSERT_EQ(listed.entries_size(), 2);
  EXPECT_EQ(listed.entries(0).name(), "a");
  EXPECT_EQ(listed.entries(0).value().tree().tensor_count(), 2);
  EXPECT_FALSE(listed.entries(0).value().tree().has_tensors());
}

TEST_F(StoredTreeTest, EndsAPageOfAListEarlyWhereItsEntriesAreLarge) {
  v1::CreateEntryRequest request;
  v1::CreateEntryResponse response;
  for (int i = 0; i < 6; ++i) {
    request.set_request_id(StrCat("rules-", i));
    request.set_name(StrCat("r", i));
    v1::RuleSet* const rules = request.mutable_value()->mutable_rule_set();
    rules->Clear();
    for (int rule = 0; rule < 300; ++rule) {
      v1::Rule* const added = rules->add_rules();
      added->set_pattern(StrCat("w", rule));
      for (int dimension = 0; dimension < 16; ++dimension) {
        added->mutable_spec()->add_dimensions()->set_name(StrCat(std::string(250, 'x'), dimension));
      }
    }
    ASSERT_THAT(AskCatalog(&CatalogStub::CreateEntry, request, &response), IsOk());
  }
  v1::ListEntriesRequest list;
  list.set_kind(v1::ENTRY_KIND_RULE_SET);
  v1::ListEntriesResponse page;
  std::vector<std::string> names;
  do {
    ASSERT_THAT(AskCatalog(&CatalogStub::ListEntries, list, &page), IsOk());
    EXPECT_LT(page.ByteSizeLong(), size_t{4} << 20);
    for (const v1::Entry& entry : page.entries()) {
      names.push_back(entry.name());
    }
    list.set_page_token(page.next_page_token());
  } while (!page.next_page_token().empty());
  EXPECT_THAT(names, ElementsAre("r0", "r1", "r2", "r3", "r4", "r5"));
}

TEST_F(StoredTreeTest, RefusesTreesThatItCannotKeep) {
  const std::vector<ColumnTensor> two = {{"v", {8}}, {"w", {8}}};
  struct Case {
    std::string what;
    v1::TreeTensors tensors;
    Reason reason;
    std::string field;
    std::string message;
  };
  std::vector<Case> cases = {
      {"no tensors", {}, Reason::kBadField, "", "a tree that is kept has tensors"},
      {"a tensor twice", Columns({{"w", {8}}, {"w", {9}}}), Reason::kBadField, ".name_sizes[1]",
       "listed twice"},
      {"a name of 1,025 bytes", Columns({{std::string(1025, 'x'), {8}}}), Reason::kLimitExceeded,
       ".name_sizes[0]", "1025 bytes"},
      {"an empty name", Columns({{"", {8}}}), Reason::kBadField, ".name_sizes[0]", "empty"},
      {"a negative size", Columns({{"w", {-8}}}), Reason::kInvalidShape, ".sizes", "'w'"},
      {"17 dimensions", Columns({{"w", std::vector<int64_t>(17, 1)}}), Reason::kBadField,
       ".ranks[0]", "17"},
      {"too many elements together",
       Columns({{"v", {INT64_MAX}, v1::DTYPE_F4}, {"w", {1}, v1::DTYPE_F4}}),
       Reason::kLimitExceeded, "", "elements"},
      {"too many bytes", Columns({{"v", {INT64_MAX}}}), Reason::kLimitExceeded, "", "bytes"},
  };
  v1::TreeTensors columns = Columns(two);
  columns.add_ranks(0);
  cases.push_back(
      {"columns of different lengths", columns, Reason::kBadField, ".ranks", "2 names"});
  columns = Columns(two);
  columns.add_spec_indexes(0);
  columns.add_spec_indexes(3);
  cases.push_back(
      {"a spec that is not in the table", columns, Reason::kBadField, ".spec_indexes[1]", "table"});
  std::vector<ColumnTensor> many;
  for (int i = 0; i < 20'000; ++i) {
    many.push_back({StrCat(std::string(50, 'x'), i), {8}});
  }
  cases.push_back({"more than 1 MiB", Columns(many), Reason::kLimitExceeded, "",
                   "give a tree as large as this with each question instead"});
  many.clear();
  for (int i = 0; i < 100'001; ++i) {
    many.push_back({StrCat(i), {}, v1::DTYPE_UNSPECIFIED});
  }
  cases.push_back({"more than 100,000 tensors", Columns(many), Reason::kLimitExceeded, "",
                   "100001 tensors are over the limit"});
  for (const Case& each : cases) {
    const absl::Status status = Store("t", each.tensors);
    EXPECT_THAT(status, StatusIs(kInvalid, each.reason)) << each.what;
    EXPECT_EQ(FieldOf(status), "value.tree.tensors" + each.field) << each.what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(each.message)) << each.what;
  }
}

TEST_F(StoredTreeTest, AnswersAStoredTreeAsOneThatIsStreamed) {
  const v1::TreeTensors tensors = Columns({{"a.kernel", {8, 8}}, {"a.bias", {7}}});
  ASSERT_THAT(Store("model", tensors), IsOk());
  v1::TreeTensors with_spec = Columns({{"a.kernel", {8, 8}}});
  with_spec.add_spec_table()->add_dimensions()->set_name("tp");
  with_spec.add_spec_indexes(1);
  ASSERT_THAT(Store("placed", with_spec), IsOk());
  const auto within = [](grpc::ClientContext* context) {
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), context);
  };

  // Each call asks with a header and pieces, and returns all that is answered as text.
  using Ask = std::function<absl::StatusOr<std::string>(const std::string& stored,
                                                        const std::vector<v1::TreeTensors>&)>;
  struct Call {
    std::string name;
    std::string tree;
    Ask ask;
  };
  const v1::RuleSetSelector rules = Rules({{"kernel", "tp"}, {"", "fsdp"}});
  const auto text_of = [](const auto& responses) {
    std::string text;
    for (auto response : responses) {
      response.clear_revision();
      text += response.SerializeAsString();
    }
    return text;
  };
  const std::vector<Call> calls = {
      {"ResolveTree", "model",
       [&](const std::string& stored, const auto& pieces) -> absl::StatusOr<std::string> {
         grpc::ClientContext context;
         within(&context);
         v1::ResolveTreeRequest request;
         *request.mutable_header()->mutable_rule_set() = rules;
         request.mutable_header()->mutable_mesh()->set_name("default");
         request.mutable_header()->set_stored_tree(stored);
         std::vector<v1::ResolveTreeResponse> responses;
         const absl::Status status =
             Exchange(stub<v1::LayoutService::Stub>().ResolveTree(&context).get(), request, pieces,
                      &responses);
         return status.ok() ? absl::StatusOr<std::string>(text_of(responses)) : status;
       }},
      {"DiffLayouts", "model",
       [&](const std::string& stored, const auto& pieces) -> absl::StatusOr<std::string> {
         grpc::ClientContext context;
         within(&context);
         v1::DiffLayoutsRequest request;
         *request.mutable_header()->mutable_a()->mutable_rule_set() = rules;
         *request.mutable_header()->mutable_b()->mutable_rule_set() = Rules({{"", ""}});
         request.mutable_header()->mutable_a()->mutable_mesh()->set_name("default");
         request.mutable_header()->mutable_b()->mutable_mesh()->set_name("default");
         request.mutable_header()->set_stored_tree(stored);
         std::vector<v1::DiffLayoutsResponse> responses;
         const absl::Status status =
             Exchange(stub<v1::LayoutService::Stub>().DiffLayouts(&context).get(), request, pieces,
                      &responses);
         return status.ok() ? absl::StatusOr<std::string>(text_of(responses)) : status;
       }},
      {"AnalyzeLayout", "placed",
       [&](const std::string& stored, const auto& pieces) -> absl::StatusOr<std::string> {
         grpc::ClientContext context;
         within(&context);
         v1::AnalyzeLayoutRequest request;
         request.mutable_header()->set_stored_tree(stored);
         request.mutable_header()->mutable_mesh()->set_name("default");
         std::vector<v1::AnalyzeLayoutResponse> responses(1);
         const absl::Status status =
             Send(stub<v1::LayoutService::Stub>().AnalyzeLayout(&context, &responses[0]).get(),
                  request, pieces);
         return status.ok() ? absl::StatusOr<std::string>(text_of(responses)) : status;
       }},
      {"SearchMeshes", "model",
       [&](const std::string& stored, const auto& pieces) -> absl::StatusOr<std::string> {
         grpc::ClientContext context;
         within(&context);
         v1::SearchMeshesRequest request;
         *request.mutable_header()->mutable_rule_set() = rules;
         request.mutable_header()->set_devices(8);
         request.mutable_header()->add_axes()->set_name("tp");
         request.mutable_header()->add_axes()->set_name("fsdp");
         request.mutable_header()->set_stored_tree(stored);
         std::vector<v1::SearchMeshesResponse> responses(1);
         const absl::Status status =
             Send(stub<v1::LayoutService::Stub>().SearchMeshes(&context, &responses[0]).get(),
                  request, pieces);
         return status.ok() ? absl::StatusOr<std::string>(text_of(responses)) : status;
       }},
  };
  for (const Call& call : calls) {
    const v1::TreeTensors& given = call.tree == "model" ? tensors : with_spec;
    const absl::StatusOr<std::string> streamed = call.ask("", {given});
    ASSERT_THAT(streamed, IsOk()) << call.name;
    const absl::StatusOr<std::string> stored = call.ask(call.tree, {});
    ASSERT_THAT(stored, IsOk()) << call.name;
    EXPECT_EQ(*stored, *streamed) << call.name;

    absl::Status status = call.ask(call.tree, {given}).status();
    EXPECT_THAT(status, StatusIs(kInvalid, Reason::kBadField)) << call.name;
    EXPECT_EQ(FieldOf(status), "tensors") << call.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("beside header.stored_tree"));
    status = call.ask("modell", {}).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound)) << call.name;
    EXPECT_EQ(FieldOf(status), "header.stored_tree") << call.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"model\"")) << call.name;
  }
}

TEST_F(StoredTreeTest, LooksThroughRulesOverStoredTrees) {
  ASSERT_THAT(Store("bert", Columns({{"attn.kernel", {8}}, {"bias", {8}}})), IsOk());
  v1::TreeTensors moe = Columns({{"gate.kernel", {7}}, {"bias", {8}}, {"placed", {8}}});
  moe.add_spec_table()->add_dimensions()->set_name("tp");
  for (const uint32_t index : {0, 0, 1}) {
    moe.add_spec_indexes(index);
  }
  ASSERT_THAT(Store("moe", moe), IsOk());

  v1::LintRulesHeader header;
  *header.mutable_rule_set() =
      Rules({{"attn", "tp"}, {"gate", "tp"}, {"kernel", ""}, {"nosuch", ""}});
  header.set_all_stored_trees(true);
  header.set_held_prefix("");
  ASSERT_THAT(Lint(header), IsOk());
  std::vector<std::string> found;
  for (const v1::LintFinding& finding : lint_.findings()) {
    std::string text = v1::LintFinding::Kind_Name(finding.kind());
    for (const int64_t rule : finding.rules()) {
      StrAppend(&text, " ", rule);
    }
    for (int i = 0; i < finding.trees_size(); ++i) {
      StrAppend(&text, " ", lint_.trees(finding.trees(i)).name(), ":", finding.tree_tensors(i));
    }
    found.push_back(text);
  }
  EXPECT_THAT(found, ElementsAre("KIND_DEAD 3", "KIND_SHADOWED 2 0 1 bert:1 moe:1",
                                 "KIND_UNMATCHED bert:1 moe:1", "KIND_CORRECTED 1 moe:1"));
  ASSERT_EQ(lint_.trees_size(), 2) << "the cluster holds nothing";
  EXPECT_EQ(lint_.tensors(), 4);
  const v1::LintTree& tree = lint_.trees(1);
  EXPECT_EQ(tree.source(), v1::LintTree::SOURCE_CATALOG);
  EXPECT_EQ(tree.name(), "moe");
  EXPECT_EQ(tree.version(), 1);
  EXPECT_EQ(tree.tensors(), 2);
  EXPECT_EQ(tree.own_specs(), 1);
  EXPECT_EQ(tree.dead_rules(), 2) << "attn and nosuch";
  EXPECT_EQ(tree.shadowed_rules(), 1);
  EXPECT_EQ(tree.unmatched_tensors(), 1);

  header.set_all_stored_trees(false);
  header.add_stored_trees("bert");
  ASSERT_THAT(Lint(header), IsOk());
  ASSERT_EQ(lint_.trees_size(), 1);
  EXPECT_EQ(lint_.trees(0).dead_rules(), 2) << "gate and nosuch";
  EXPECT_EQ(lint_.findings(0).rules(0), 1) << "one tree: what is dead there is dead";

  absl::Status status = Lint(header, {Columns({{"w", {8}}})});
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kBadField));
  EXPECT_EQ(FieldOf(status), "tensors");
  header.add_stored_trees("bert");
  EXPECT_EQ(FieldOf(Lint(header)), "header.stored_trees[1]") << "twice";
  header.set_stored_trees(1, "bart");
  status = Lint(header);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_EQ(FieldOf(status), "header.stored_trees[1]");
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"bert\""));
  header.set_all_stored_trees(true);
  EXPECT_EQ(FieldOf(Lint(header)), "header.stored_trees");
  header.clear_stored_trees();
  status = Lint(header, {Columns({{"w", {8}}})});
  EXPECT_EQ(FieldOf(status), "tensors");
  EXPECT_THAT(std::string(status.message()), HasSubstr("header.all_stored_trees"));
}

}  // namespace
}  // namespace shardmesh::server
