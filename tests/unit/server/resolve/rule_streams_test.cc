// Rules looked through, and layouts compared, over real gRPC and trees that come in pieces.
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/v1/catalog_service.grpc.pb.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/resolve_service_fixture.h"
#include "tests/unit/server/tree_columns.h"

namespace shardmesh::server {
namespace {

using test::IsOk;
using test::StatusIs;
using ::testing::HasSubstr;

using test::kInvalid;

void AddRule(const std::string& pattern, const std::vector<std::string>& axes,
             v1::RuleSetSelector* to) {
  v1::Rule* const rule = to->mutable_value()->add_rules();
  rule->set_pattern(pattern);
  for (const std::string& axis : axes) {
    rule->mutable_spec()->add_dimensions()->set_name(axis);
  }
}

void AddAxis(const std::string& name, int64_t size, v1::Mesh* to) {
  v1::MeshAxis* const axis = to->add_axes();
  axis->set_name(name);
  axis->set_size(size);
}

class RuleStreamsTest : public ResolveServiceTest {
 protected:
  // A piece of the tree for each list.
  absl::Status Lint(const v1::LintRulesHeader& header, const std::vector<v1::TreeTensors>& pieces) {
    lint_.Clear();
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
    const auto stream = stub<v1::RuleService::Stub>().LintRules(&context, &lint_);
    v1::LintRulesRequest request;
    *request.mutable_header() = header;
    stream->Write(request);
    for (const v1::TreeTensors& piece : pieces) {
      *request.mutable_tensors() = piece;
      stream->Write(request);
    }
    stream->WritesDone();
    return rpc::FromGrpc(stream->Finish());
  }
  // Collects the changes, by name; the table of specs, and the last message.
  absl::Status Diff(const v1::DiffLayoutsHeader& header,
                    const std::vector<v1::TreeTensors>& pieces) {
    changes_.clear();
    specs_.clear();
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
    const auto stream = stub<v1::LayoutService::Stub>().DiffLayouts(&context);
    v1::DiffLayoutsRequest request;
    *request.mutable_header() = header;
    stream->Write(request);
    for (const v1::TreeTensors& piece : pieces) {
      *request.mutable_tensors() = piece;
      stream->Write(request);
      if (!Read(stream.get())) {
        break;
      }
    }
    stream->WritesDone();
    while (Read(stream.get())) {
    }
    return rpc::FromGrpc(stream->Finish());
  }

  v1::LintRulesResponse lint_;
  v1::DiffLayoutsResponse diff_;
  std::map<std::string, v1::TensorChange> changes_;
  std::vector<v1::PartitionSpec> specs_;

 private:
  template <typename Stream>
  bool Read(Stream* stream) {
    if (!stream->Read(&diff_)) {
      return false;
    }
    specs_.insert(specs_.end(), diff_.specs().begin(), diff_.specs().end());
    for (const v1::TensorChange& change : diff_.changes()) {
      changes_[change.name()] = change;
    }
    return true;
  }
};

TEST_F(RuleStreamsTest, LooksThroughRulesOnEveryMeshOfTheCatalog) {
  const auto catalog = v1::CatalogService::NewStub(channel());
  v1::CreateEntryRequest create;
  create.set_request_id("create");
  create.set_name("wide");
  AddAxis("tp", 16, create.mutable_value()->mutable_mesh()->mutable_mesh());
  grpc::ClientContext context;
  v1::CreateEntryResponse created;
  ASSERT_TRUE(catalog->CreateEntry(&context, create, &created).ok());

  v1::LintRulesHeader header;
  AddRule("kernel", {"tp"}, header.mutable_rule_set());
  AddRule("mlp.kernel", {"fsdp"}, header.mutable_rule_set());
  AddRule("\\N{SPACE}", {}, header.mutable_rule_set());
  AddRule("scale", {}, header.mutable_rule_set());
  const std::vector<v1::TreeTensors> tree = {Columns({{"mlp.kernel", {8, 8}}}),
                                             Columns({{"attn.kernel", {16, 8}}, {"bias", {8}}})};
  ASSERT_THAT(Lint(header, tree), IsOk());
  EXPECT_EQ(lint_.tensors(), 3);
  EXPECT_EQ(lint_.meshes(), 2) << "default, wide";
  std::vector<std::string> found;
  for (const v1::LintFinding& finding : lint_.findings()) {
    found.push_back(v1::LintFinding::Kind_Name(finding.kind()) + " " + finding.mesh());
  }
  EXPECT_THAT(found, testing::ElementsAre("KIND_BAD_PATTERN ", "KIND_DEAD ", "KIND_SHADOWED ",
                                          "KIND_UNMATCHED ", "KIND_CORRECTED wide"));
  EXPECT_EQ(lint_.findings(0).reason(), v1::REASON_UNSUPPORTED_PATTERN);
  EXPECT_EQ(lint_.findings(4).tensor(), "mlp.kernel") << "16 does not divide 8";
  EXPECT_EQ(lint_.counts_size(), 5);

  header.add_meshes()->set_name("default");
  ASSERT_THAT(Lint(header, tree), IsOk());
  EXPECT_EQ(lint_.meshes(), 1);
  EXPECT_EQ(lint_.findings_size(), 4);
}

TEST_F(RuleStreamsTest, ListsNoMoreFindingsThanAskedForAndCountsTheRest) {
  v1::LintRulesHeader header;
  header.set_max_findings(3);
  AddRule("none such", {}, header.mutable_rule_set());
  std::vector<ColumnTensor> tensors;
  for (int i = 0; i < 600; ++i) {
    tensors.push_back({std::string(1000, 'x') + std::to_string(i), {8}});
  }
  ASSERT_THAT(Lint(header, {Columns(tensors)}), IsOk());
  EXPECT_EQ(lint_.findings_size(), 4) << "one rule is dead";
  EXPECT_EQ(lint_.counts(1).findings(), 600);
  header.set_max_findings(1000);
  ASSERT_THAT(Lint(header, {Columns(tensors)}), IsOk());
  EXPECT_LT(lint_.findings_size(), 300) << "no more than 256 KiB of a kind";
  EXPECT_GT(lint_.findings_size(), 50);
}

TEST_F(RuleStreamsTest, RefusesToLookThroughWhatIsMalformed) {
  v1::LintRulesHeader header;
  const std::vector<v1::TreeTensors> tree = {Columns({{"kernel", {8}}})};
  absl::Status status = Lint(header, tree);
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kBadField));
  EXPECT_EQ(FieldOf(status), "header.rule_set");

  AddRule("", {}, header.mutable_rule_set());
  header.set_max_findings(1001);
  EXPECT_EQ(FieldOf(Lint(header, tree)), "header.max_findings");
  header.set_max_findings(0);
  header.add_meshes()->set_name("default");
  header.add_meshes()->mutable_value();
  status = Lint(header, tree);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoMesh));
  EXPECT_EQ(FieldOf(status), "header.meshes[1]");
  for (int i = 0; i < 256; ++i) {
    header.add_meshes();
  }
  EXPECT_EQ(FieldOf(Lint(header, tree)), "header.meshes");
  header.clear_meshes();
  header.add_meshes();
  status = Lint(header, tree);
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kMissingArgument));
  EXPECT_EQ(FieldOf(status), "header.meshes[0]");
  header.clear_meshes();

  EXPECT_THAT(Lint(header, {tree[0], tree[0]}), StatusIs(kInvalid, Reason::kBadField));
  EXPECT_THAT(Lint(header, {tree[0], Columns({{"kernel", {9}}})}), IsOk())
      << "another model's tensor";
  v1::TreeTensors with_spec = tree[0];
  with_spec.add_spec_table();
  with_spec.add_spec_indexes(1);
  EXPECT_EQ(FieldOf(Lint(header, {with_spec})), "tensors.spec_indexes");
}

TEST_F(RuleStreamsTest, LooksThroughRulesOverSeveralTreesOfARequestByThemselves) {
  v1::LintRulesHeader header;
  AddRule("kernel", {"tp"}, header.mutable_rule_set());
  AddRule("gate", {"tp"}, header.mutable_rule_set());
  AddRule("bias", {}, header.mutable_rule_set());
  const auto add_tree = [&header](const std::string& name, int64_t tensors) {
    v1::LintGivenTree* const tree = header.add_given_trees();
    tree->set_name(name);
    tree->set_tensors(tensors);
  };
  add_tree("bert.json", 3);
  add_tree("moe.json", 2);
  // Pieces need not end where trees do.
  const std::vector<v1::TreeTensors> pieces = {Columns({{"kernel", {8}}, {"step", {}}}),
                                               Columns({{"embedding", {8}}, {"kernel", {8}}}),
                                               Columns({{"gate", {8}}})};
  ASSERT_THAT(Lint(header, pieces), IsOk());
  ASSERT_EQ(lint_.trees_size(), 2);
  EXPECT_EQ(lint_.trees(0).name(), "bert.json");
  EXPECT_EQ(lint_.trees(0).source(), v1::LintTree::SOURCE_REQUEST);
  EXPECT_EQ(lint_.trees(0).tensors(), 3);
  EXPECT_EQ(lint_.trees(0).scalars(), 1);
  EXPECT_EQ(lint_.trees(0).dead_rules(), 2);
  EXPECT_EQ(lint_.trees(0).unmatched_tensors(), 1);
  EXPECT_EQ(lint_.trees(1).name(), "moe.json");
  EXPECT_EQ(lint_.trees(1).tensors(), 2);
  EXPECT_EQ(lint_.trees(1).scalars(), 0);
  EXPECT_EQ(lint_.trees(1).dead_rules(), 1);
  ASSERT_EQ(lint_.findings_size(), 2) << "one rule is dead in both";
  EXPECT_EQ(lint_.findings(0).kind(), v1::LintFinding::KIND_DEAD);
  EXPECT_EQ(lint_.findings(0).rules(0), 2);
  EXPECT_EQ(lint_.findings(1).kind(), v1::LintFinding::KIND_UNMATCHED);
  EXPECT_THAT(lint_.findings(1).trees(), testing::ElementsAre(0));
  EXPECT_THAT(lint_.findings(1).message(), HasSubstr("(in tree 'bert.json')"));

  absl::Status status = Lint(header, {pieces[0]});
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kBadField));
  EXPECT_EQ(FieldOf(status), "header.given_trees");
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("announces 3 tensors of 'bert.json', tree 1 of 2; 2 of them came, 2 in all: "
                "send the others, or lower its `tensors`"));
  EXPECT_THAT(
      std::string(Lint(header, {pieces[0], pieces[1]}).message()),
      HasSubstr("announces 2 tensors of 'moe.json', tree 2 of 2; 1 of them came, 4 in all"));
  status = Lint(header, {pieces[0], pieces[1], pieces[2], pieces[2]});
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kBadField));
  EXPECT_EQ(FieldOf(status), "tensors");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("tensor 'gate' comes after the 5 that header.given_trees announces; raise "
                        "`tensors` of its tree, or leave it out"));
  EXPECT_THAT(Lint(header, {pieces[0], pieces[1], Columns({{"kernel", {9}}})}),
              StatusIs(kInvalid, Reason::kBadField))
      << "twice in a tree";
  add_tree("bert.json", 1);
  EXPECT_EQ(FieldOf(Lint(header, pieces)), "header.given_trees[2].name");
  header.mutable_given_trees(2)->set_name("");
  EXPECT_EQ(FieldOf(Lint(header, pieces)), "header.given_trees[2].name");
  header.mutable_given_trees(2)->set_name("third");
  header.mutable_given_trees(2)->set_tensors(0);
  EXPECT_EQ(FieldOf(Lint(header, pieces)), "header.given_trees[2].tensors");
  header.set_all_stored_trees(true);
  EXPECT_EQ(FieldOf(Lint(header, {})), "header.given_trees");
  header.set_all_stored_trees(false);
  header.clear_given_trees();
  for (int i = 0; i <= 1'000; ++i) {
    add_tree(std::to_string(i), 1);
  }
  EXPECT_THAT(Lint(header, {}), StatusIs(kInvalid, Reason::kLimitExceeded));
}

TEST_F(RuleStreamsTest, WorksOutFixesForEachShapeOfASpec) {
  const std::vector<v1::TreeTensors> pieces = {
      Columns({{"a", {6, 9}}, {"b", {4, 4}}, {"c", {6, 9}}}),
      Columns({{"d", {6, 15}}, {"e", {8, 8}}, {"f", {8, 15}}})};
  for (const bool suggest_fixes : {true, false}) {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
    const auto stream = stub<v1::LayoutService::Stub>().ResolveTree(&context);
    v1::ResolveTreeRequest request;
    AddRule("", {"fsdp", "pp"}, request.mutable_header()->mutable_rule_set());
    request.mutable_header()->set_suggest_fixes(suggest_fixes);
    request.mutable_header()->mutable_mesh()->set_name("default");
    stream->Write(request);
    std::vector<v1::TreeSpec> specs;
    std::vector<uint32_t> indexes;
    v1::ResolveTreeResponse response;
    for (const v1::TreeTensors& piece : pieces) {
      *request.mutable_tensors() = piece;
      stream->Write(request);
      ASSERT_TRUE(stream->Read(&response));
      specs.insert(specs.end(), response.specs().begin(), response.specs().end());
      indexes.insert(indexes.end(), response.placements().spec_indexes().begin(),
                     response.placements().spec_indexes().end());
    }
    stream->WritesDone();
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.report().corrected_tensors(), 6);
    EXPECT_THAT(rpc::FromGrpc(stream->Finish()), IsOk());
    if (!suggest_fixes) {
      EXPECT_EQ(specs.size(), 1u);
      EXPECT_THAT(indexes, testing::Each(0u));
      continue;
    }
    EXPECT_THAT(indexes, testing::ElementsAre(0, 1, 0, 2, 3, 4));
    ASSERT_EQ(specs.size(), 5u);
    const std::vector<std::vector<int64_t>> shapes = {{6, 9}, {4, 4}, {6, 15}, {8, 8}, {8, 15}};
    for (size_t i = 0; i < shapes.size(); ++i) {
      ASSERT_EQ(specs[i].corrections_size(), 1);
      ASSERT_GT(specs[i].corrections(0).fixes_size(), 0);
      EXPECT_THAT(specs[i].corrections(0).fixes(0).shape(), testing::ElementsAreArray(shapes[i]));
    }
  }
}

TEST_F(RuleStreamsTest, LeavesFixesOutOnceThereAreTooMany) {
  constexpr int kTensors = 20'000;
  std::vector<ColumnTensor> tensors;
  for (int i = 0; i < kTensors; ++i) {
    tensors.push_back({std::to_string(i), {4, i + 1}});
  }
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(absl::Seconds(30)), &context);
  const auto stream = stub<v1::LayoutService::Stub>().ResolveTree(&context);
  v1::ResolveTreeRequest request;
  AddRule("", {"pp"}, request.mutable_header()->mutable_rule_set());
  request.mutable_header()->set_suggest_fixes(true);
  request.mutable_header()->mutable_mesh()->set_name("default");
  stream->Write(request);
  *request.mutable_tensors() = Columns(tensors);
  stream->Write(request);
  v1::ResolveTreeResponse response;
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_EQ(response.placements().spec_indexes_size(), kTensors);
  const v1::TreeSpec& last =
      response.specs(static_cast<int>(response.placements().spec_indexes(kTensors - 1)));
  EXPECT_TRUE(last.fixes_left_out());
  EXPECT_EQ(last.corrections_size(), 1) << "what was corrected is told all the same";
  EXPECT_EQ(response.placements().spec_indexes(kTensors - 2),
            response.placements().spec_indexes(kTensors - 1));
  EXPECT_GT(response.specs(0).corrections(0).fixes_size(), 0);
  EXPECT_LT(response.ByteSizeLong(), size_t{3} << 20);
  stream->WritesDone();
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.report().corrected_tensors(), kTensors);
  EXPECT_THAT(rpc::FromGrpc(stream->Finish()), IsOk());
}

TEST_F(RuleStreamsTest, TellsWhichTensorsLieOtherwise) {
  v1::DiffLayoutsHeader header;
  header.mutable_a()->mutable_mesh()->set_name("default");
  header.mutable_b()->mutable_mesh()->set_name("default");
  AddRule("kernel", {"tp"}, header.mutable_a()->mutable_rule_set());
  AddRule("", {}, header.mutable_a()->mutable_rule_set());
  AddRule("", {}, header.mutable_b()->mutable_rule_set());
  header.mutable_budget()->set_max_increase_bytes(10);
  ASSERT_THAT(Diff(header, {Columns({{"a.kernel", {8, 8}}, {"a.bias", {8}}}),
                            Columns({{"b.kernel", {12}, v1::DTYPE_F4}})}),
              IsOk());
  ASSERT_EQ(changes_.size(), 2u);
  const v1::TensorChange& change = changes_["a.kernel"];
  ASSERT_EQ(specs_.size(), 3u) << "each spec is sent once: P('tp', None), P('tp') and P()";
  EXPECT_EQ(specs_[change.a_spec()].dimensions(0).name(), "tp");
  EXPECT_EQ(specs_[change.b_spec()].dimensions_size(), 0);
  EXPECT_EQ(change.a_bytes_per_device(), 128);
  EXPECT_EQ(change.b_bytes_per_device(), 256);
  EXPECT_TRUE(change.tiles_changed());
  EXPECT_EQ(changes_["b.kernel"].a_bytes_per_device(), 3) << "six elements of four bits";
  EXPECT_EQ(diff_.a().most_device_bytes(), 128 + 32 + 3);
  EXPECT_EQ(diff_.b().most_device_bytes(), 256 + 32 + 6);
  EXPECT_FALSE(diff_.within_budget());
  EXPECT_THAT(diff_.budget_message(), HasSubstr("131 more"));

  header.mutable_budget()->set_max_increase_bytes(128);
  ASSERT_THAT(Diff(header, {Columns({{"a.kernel", {8, 8}}})}), IsOk());
  EXPECT_TRUE(diff_.within_budget());
  header.mutable_budget()->set_max_bytes_per_device(255);
  ASSERT_THAT(Diff(header, {Columns({{"a.kernel", {8, 8}}})}), IsOk());
  EXPECT_FALSE(diff_.within_budget());
}

TEST_F(RuleStreamsTest, ComparesMeshesToo) {
  v1::DiffLayoutsHeader header;
  header.mutable_a()->mutable_mesh()->set_name("default");
  header.mutable_b()->mutable_mesh()->set_name("default");
  AddRule("", {"tp"}, header.mutable_a()->mutable_rule_set());
  *header.mutable_b()->mutable_rule_set() = header.a().rule_set();
  AddAxis("tp", 4, header.mutable_b()->mutable_mesh()->mutable_value());
  ASSERT_THAT(Diff(header, {Columns({{"kernel", {8}}, {"odd", {2}}})}), IsOk());
  EXPECT_EQ(changes_["kernel"].b_bytes_per_device(), 8);
  EXPECT_FALSE(changes_["kernel"].spec_changed());
  EXPECT_TRUE(changes_["odd"].spec_changed()) << "4 does not divide 2";
}

TEST_F(RuleStreamsTest, RefusesToCompareWhatIsMalformed) {
  v1::DiffLayoutsHeader header;
  header.mutable_a()->mutable_mesh()->set_name("default");
  header.mutable_b()->mutable_mesh()->set_name("default");
  const std::vector<v1::TreeTensors> tree = {Columns({{"kernel", {8}}})};
  AddRule("kernel", {"tp"}, header.mutable_a()->mutable_rule_set());
  AddRule("bias", {"tp"}, header.mutable_b()->mutable_rule_set());
  absl::Status status = Diff(header, tree);
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kUnmatchedTensor));
  EXPECT_THAT(std::string(status.message()), HasSubstr("layout B: tensor 'kernel'"));
  header.mutable_b()->mutable_rule_set()->mutable_value()->mutable_rules(0)->set_pattern("(");
  status = Diff(header, tree);
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kBadPattern));
  EXPECT_EQ(FieldOf(status), "header.b.rule_set.value.rules");

  header.mutable_b()->mutable_rule_set()->mutable_value()->mutable_rules(0)->set_pattern("");
  EXPECT_THAT(Diff(header, {tree[0], tree[0]}), StatusIs(kInvalid, Reason::kBadField));
  header.mutable_b()->mutable_mesh()->mutable_value();
  EXPECT_THAT(Diff(header, tree), StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoMesh));
  header.mutable_b()->clear_mesh();
  status = Diff(header, tree);
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kMissingArgument));
  EXPECT_EQ(FieldOf(status), "header.b.mesh");
  header.mutable_b()->mutable_mesh()->set_name("default");
  header.mutable_budget()->set_max_increase_ratio(-0.1);
  EXPECT_EQ(FieldOf(Diff(header, tree)), "header.budget.max_increase_ratio");
  header.mutable_budget()->set_max_increase_bytes(-1);
  EXPECT_EQ(FieldOf(Diff(header, tree)), "header.budget.max_increase_bytes");
  header.mutable_budget()->set_max_bytes_per_device(-1);
  EXPECT_EQ(FieldOf(Diff(header, tree)), "header.budget.max_bytes_per_device");
}

}  // namespace
}  // namespace shardmesh::server
