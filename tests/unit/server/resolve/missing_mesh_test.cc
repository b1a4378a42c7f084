// Questions that need a mesh, and are asked without one.
#include <gtest/gtest.h>

#include "gmock/gmock.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/resolve_service_fixture.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

// The coordinator has a mesh "default", which no question means by leaving its mesh out.
class MissingMeshTest : public ResolveServiceTest {
 protected:
  static void ExpectRefused(const absl::Status& status, const std::string& field) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument));
    EXPECT_EQ(FieldOf(status), field);
    EXPECT_THAT(status.ToString(), HasSubstr("name one of the catalog"));
  }
  template <typename Stub, typename Request, typename Response>
  void ExpectRefusal(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                     const Request& request, const std::string& field = "mesh") {
    Response response;
    ExpectRefused(Ask(method, request, &response), field);
  }
  absl::Status Resolve(const v1::ResolveTreeRequest& request) {
    grpc::ClientContext context;
    const auto stream = stub<v1::LayoutService::Stub>().ResolveTree(&context);
    stream->Write(request);
    stream->WritesDone();
    v1::ResolveTreeResponse response;
    while (stream->Read(&response)) {
    }
    return rpc::FromGrpc(stream->Finish());
  }
};

TEST_F(MissingMeshTest, IsRefusedInQuestionsOfSpecs) {
  v1::ResolveSpecRequest resolve;
  resolve.set_preset("HiddenStateSharding");
  for (int i = 0; i < 3; ++i) resolve.mutable_shape()->add_sizes(8);
  ExpectRefusal(&v1::ResolveService::Stub::ResolveSpec, resolve);
  v1::CorrectSpecRequest correct;
  correct.mutable_shape()->add_sizes(8);
  ExpectRefusal(&v1::ResolveService::Stub::CorrectSpec, correct);
  v1::ConstrainArrayRequest constrain;
  constrain.mutable_shape()->add_sizes(8);
  ExpectRefusal(&v1::ResolveService::Stub::ConstrainArray, constrain);
  ExpectRefusal(&v1::ResolveService::Stub::CompareSpecs, v1::CompareSpecsRequest());
  v1::ExplainTensorRequest explain;
  explain.set_name("w");
  explain.mutable_shape()->add_sizes(8);
  ExpectRefusal(&v1::ResolveService::Stub::ExplainTensor, explain);
  v1::DescribeTilingRequest tiling;
  tiling.mutable_shape()->add_sizes(8);
  ExpectRefusal(&v1::LayoutService::Stub::DescribeTiling, tiling);
}

TEST_F(MissingMeshTest, IsRefusedInQuestionsOfMeshes) {
  v1::DescribeMeshRequest describe;
  describe.mutable_mesh();
  ExpectRefusal(&v1::MeshService::Stub::DescribeMesh, describe);
  ExpectRefusal(&compat::v1::CompatService::Stub::QueryMesh, compat::v1::QueryMeshRequest());
}

TEST_F(MissingMeshTest, IsRefusedInQuestionsOfTrees) {
  v1::ResolveTreeRequest tree;
  tree.mutable_header()->mutable_rule_set()->mutable_value()->add_rules();
  ExpectRefused(Resolve(tree), "header.mesh");
  v1::AnalyzeLayoutRequest analyze;
  analyze.mutable_header();
  grpc::ClientContext context;
  v1::AnalyzeLayoutResponse response;
  const auto stream = stub<v1::LayoutService::Stub>().AnalyzeLayout(&context, &response);
  stream->Write(analyze);
  stream->WritesDone();
  ExpectRefused(rpc::FromGrpc(stream->Finish()), "header.mesh");
}

// The answer does not depend on a mesh.
TEST_F(MissingMeshTest, IsNoErrorWhereNoneIsNeeded) {
  v1::ResolveSpecRequest request;
  request.add_axes()->set_name("__BATCH__");
  v1::ResolveSpecResponse response;
  EXPECT_THAT(Ask(&v1::ResolveService::Stub::ResolveSpec, request, &response), test::IsOk());
}

}  // namespace
}  // namespace shardmesh::server
