// Plans, totals of layouts, searches and layouts of held arrays over real gRPC: the answers, and
// the field's path in each refusal.
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "server/coordinator_server.h"
#include "shardmesh/compat/v1/compat_service.grpc.pb.h"
#include "shardmesh/v1/layout_service.grpc.pb.h"
#include "shardmesh/v1/reshard_service.grpc.pb.h"
#include "shardmesh/v1/resolve_service.grpc.pb.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using test::IsOk;
using test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void SetMesh(v1::MeshSelector* to, const std::vector<std::pair<std::string, int64_t>>& axes) {
  for (const auto& [name, size] : axes) {
    v1::MeshAxis* axis = to->mutable_value()->add_axes();
    axis->set_name(name);
    axis->set_size(size);
  }
}

// An empty name is no axis.
void SetSpec(v1::PartitionSpec* to, const std::vector<std::string>& axes) {
  for (const std::string& axis : axes) {
    if (axis.empty()) {
      to->add_dimensions()->set_constant(v1::AXIS_CONSTANT_NONE);
    } else {
      to->add_dimensions()->set_name(axis);
    }
  }
}

class ResolvePlansTest : public testing::Test {
 protected:
  ResolvePlansTest() {
    CoordinatorOptions options;
    options.listen_address = "127.0.0.1:0";
    options.http_address = "";
    options.mesh = *Mesh::Parse("fsdp=2,tp=2");
    server_ = *CoordinatorServer::Start(std::move(options));
    const auto channel = *rpc::CreateChannel(server_->address());
    layouts_ = v1::LayoutService::NewStub(channel);
    reshards_ = v1::ReshardService::NewStub(channel);
    compat_ = compat::v1::CompatService::NewStub(channel);
  }
  ~ResolvePlansTest() override { server_->Drain(absl::Now() + absl::Seconds(5)); }

  absl::StatusOr<v1::PlanReshardResponse> PlanReshard(const v1::PlanReshardRequest& request) {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(30)), &context);
    v1::PlanReshardResponse response;
    const absl::Status status = rpc::FromGrpc(reshards_->PlanReshard(&context, request, &response));
    return status.ok() ? absl::StatusOr<v1::PlanReshardResponse>(response) : status;
  }

  // Sends the messages of a tree in their order.
  template <typename Response, typename Request>
  absl::StatusOr<Response> Stream(std::unique_ptr<grpc::ClientWriter<Request>> (
                                      v1::LayoutService::Stub::*method)(grpc::ClientContext*,
                                                                        Response*),
                                  const std::vector<Request>& requests) {
    return Stream(layouts_.get(), method, requests);
  }
  template <typename Stub, typename Response, typename Request>
  static absl::StatusOr<Response> Stream(
      Stub* stub,
      std::unique_ptr<grpc::ClientWriter<Request>> (Stub::*method)(grpc::ClientContext*, Response*),
      const std::vector<Request>& requests) {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(30)), &context);
    Response response;
    const auto stream = (stub->*method)(&context, &response);
    for (const Request& request : requests) {
      if (!stream->Write(request)) {
        break;
      }
    }
    stream->WritesDone();
    const absl::Status status = rpc::FromGrpc(stream->Finish());
    return status.ok() ? absl::StatusOr<Response>(response) : status;
  }

  absl::StatusOr<std::vector<compat::v1::LeafSharding>> ListShardings(
      const compat::v1::ListShardingsRequest& request) {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(30)), &context);
    const auto stream = compat_->ListShardings(&context, request);
    std::vector<compat::v1::LeafSharding> all;
    compat::v1::ListShardingsResponse response;
    while (stream->Read(&response)) {
      all.insert(all.end(), response.shardings().begin(), response.shardings().end());
    }
    const absl::Status status = rpc::FromGrpc(stream->Finish());
    return status.ok() ? absl::StatusOr<std::vector<compat::v1::LeafSharding>>(all) : status;
  }

  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<v1::LayoutService::Stub> layouts_;
  std::unique_ptr<v1::ReshardService::Stub> reshards_;
  std::unique_ptr<compat::v1::CompatService::Stub> compat_;
};

// The fields that an error names.
std::vector<std::string> FieldsOf(const absl::Status& status) {
  std::vector<std::string> fields;
  for (const rpc::FieldViolation& violation : rpc::FieldViolationsOf(status)) {
    fields.push_back(violation.field);
  }
  return fields;
}

v1::PlanReshardRequest AllToAll() {
  v1::PlanReshardRequest request;
  SetMesh(request.mutable_source()->mutable_mesh(), {{"tp", 4}});
  SetMesh(request.mutable_destination()->mutable_mesh(), {{"tp", 4}});
  SetSpec(request.mutable_source()->mutable_spec(), {"tp"});
  SetSpec(request.mutable_destination()->mutable_spec(), {"", "tp"});
  request.mutable_shape()->add_sizes(8);
  request.mutable_shape()->add_sizes(8);
  request.set_dtype(v1::DTYPE_F32);
  return request;
}

TEST_F(ResolvePlansTest, PlansAReshardWithItsRegionsAndLinks) {
  v1::PlanReshardRequest request = AllToAll();
  request.add_devices(2);
  request.add_sources(1);
  const auto response = PlanReshard(request);
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->pattern(), v1::RESHARD_PATTERN_ALL_TO_ALL);
  ASSERT_EQ(response->steps_size(), 1);
  EXPECT_EQ(response->steps(0).from_dimension(), 0);
  EXPECT_EQ(response->steps(0).to_dimension(), 1);
  EXPECT_FALSE(response->noop());
  EXPECT_EQ(response->elements(), 64);
  EXPECT_EQ(response->total_needed_elements(), 48);
  EXPECT_EQ(response->total_needed_bytes(), 192);
  EXPECT_EQ(response->total_kept_elements(), 16);
  EXPECT_EQ(response->max_needed_bytes(), 48);
  EXPECT_EQ(response->max_link_bytes(), 16);
  EXPECT_EQ(response->links(), 12);
  EXPECT_EQ(response->mean_sent_bytes(), 48);
  EXPECT_EQ(response->max_sent_bytes(), 48);
  ASSERT_EQ(response->devices_size(), 1);
  EXPECT_EQ(response->devices(0).regions_size(), 3);
  EXPECT_EQ(response->devices(0).needed_bytes(), 48);
  ASSERT_EQ(response->sent_size(), 3);
  EXPECT_EQ(response->sent(0).source(), 1);
  EXPECT_EQ(response->sent(0).destination(), 0);

  request.set_omit_regions(true);
  EXPECT_EQ(PlanReshard(request)->devices(0).regions_size(), 0);
}

TEST_F(ResolvePlansTest, RefusesReshardsByTheFieldAtFault) {
  struct Case {
    std::string field;
    std::function<void(v1::PlanReshardRequest*)> spoil;
  };
  const Case kCases[] = {
      {"shape.sizes", [](auto* r) { r->mutable_shape()->set_sizes(0, -8); }},
      {"dtype", [](auto* r) { r->clear_dtype(); }},
      {"source", [](auto* r) { r->mutable_shape()->set_sizes(0, 7); }},
      {"destination", [](auto* r) { r->mutable_shape()->set_sizes(1, 7); }},
      {"source.mesh.name", [](auto* r) { r->mutable_source()->mutable_mesh()->set_name("nope"); }},
      {"destination.mesh.value.axes",
       [](auto* r) {
         r->mutable_destination()->mutable_mesh()->mutable_value()->mutable_axes(0)->set_size(-3);
       }},
      {"devices[1]", [](auto* r) { r->add_devices(0), r->add_devices(4); }},
      {"sources[0]", [](auto* r) { r->add_sources(-1); }},
      {"devices", [](auto* r) { r->mutable_devices()->Resize(65'537, 0); }},
      {"compatibility", [](auto* r) { r->set_compatibility(static_cast<v1::Compatibility>(77)); }},
  };
  for (const Case& c : kCases) {
    v1::PlanReshardRequest request = AllToAll();
    c.spoil(&request);
    const absl::Status status = PlanReshard(request).status();
    EXPECT_FALSE(status.ok()) << c.field;
    EXPECT_NE(status.code(), absl::StatusCode::kInternal) << c.field;
    EXPECT_THAT(FieldsOf(status), ElementsAre(c.field)) << status;
  }
}

TEST_F(ResolvePlansTest, RefusesAnAnswerThatFitsNoMessage) {
  v1::PlanReshardRequest request;
  SetMesh(request.mutable_source()->mutable_mesh(), {{"a", 32'768}});
  SetMesh(request.mutable_destination()->mutable_mesh(), {{"a", 32'768}});
  SetSpec(request.mutable_source()->mutable_spec(), {"a"});
  SetSpec(request.mutable_destination()->mutable_spec(), {"", "a"});
  request.mutable_shape()->add_sizes(32'768);
  request.mutable_shape()->add_sizes(32'768);
  request.set_dtype(v1::DTYPE_F32);
  for (int64_t device = 0; device < 3; ++device) {
    request.add_devices(device);
  }
  EXPECT_THAT(PlanReshard(request).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  request.set_omit_regions(true);
  EXPECT_THAT(PlanReshard(request), IsOk());
  for (int64_t source = 0; source < 2000; ++source) {
    request.add_sources(source);
  }
  EXPECT_THAT(PlanReshard(request).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
}

// A tensor of F32 with a spec of its own.
void AddTensor(v1::TreeTensors* to, const std::string& name, const std::vector<int64_t>& shape,
               const std::vector<std::string>& spec) {
  to->mutable_names()->append(name);
  to->add_name_sizes(static_cast<uint32_t>(std::string_view(name).size()));
  to->add_ranks(static_cast<uint32_t>(shape.size()));
  to->mutable_sizes()->Add(shape.begin(), shape.end());
  to->add_dtypes(v1::DTYPE_F32);
  SetSpec(to->add_spec_table(), spec);
  to->add_spec_indexes(static_cast<uint32_t>(to->spec_table_size()));
}

TEST_F(ResolvePlansTest, SumsUpALayout) {
  std::vector<v1::AnalyzeLayoutRequest> requests(2);
  SetMesh(requests[0].mutable_header()->mutable_mesh(), {{"tp", 4}});
  AddTensor(requests[1].mutable_tensors(), "w", {8, 8}, {"tp"});
  AddTensor(requests[1].mutable_tensors(), "b", {8}, {});
  const auto response = Stream(&v1::LayoutService::Stub::AnalyzeLayout, requests);
  ASSERT_THAT(response, IsOk());
  const v1::LayoutReport& report = response->report();
  EXPECT_EQ(report.tensors(), 2);
  EXPECT_EQ(report.parameters(), 72);
  EXPECT_EQ(report.sharded_parameters(), 64);
  EXPECT_EQ(report.most_device_bytes(), 96);
  EXPECT_EQ(report.held_bytes(), 384);
  EXPECT_EQ(report.wasted_bytes(), 96);
  EXPECT_EQ(report.balance_score(), 1);
  EXPECT_EQ(report.devices(), 4);
  EXPECT_EQ(report.replicated_tensors(), 1);
}

TEST_F(ResolvePlansTest, CountsParametersAsTheOriginalDoes) {
  std::vector<compat::v1::AnalyzeShardingStrategyRequest> requests(2);
  SetMesh(requests[0].mutable_header()->mutable_mesh(), {{"tp", 4}});
  AddTensor(requests[1].mutable_tensors(), "w", {7, 8}, {"tp"});
  AddTensor(requests[1].mutable_tensors(), "b", {8}, {});
  const auto ask = [&] {
    return Stream(compat_.get(), &compat::v1::CompatService::Stub::AnalyzeShardingStrategy,
                  requests);
  };
  const auto response = ask();
  ASSERT_THAT(response, IsOk()) << "specs that do not fit are not refused";
  EXPECT_EQ(response->total_parameters().value(), 64);
  EXPECT_FALSE(response->total_parameters().is_float());
  EXPECT_EQ(response->sharded_parameters().value(), 56);
  EXPECT_FALSE(response->sharded_parameters().is_float());
  EXPECT_EQ(response->balance_score(), 0);

  // Python takes the size of a scalar for a float.
  AddTensor(requests[1].mutable_tensors(), "scalar", {}, {});
  const auto with_scalar = ask();
  ASSERT_THAT(with_scalar, IsOk());
  EXPECT_EQ(with_scalar->total_parameters().value(), 65);
  EXPECT_TRUE(with_scalar->total_parameters().is_float());
  EXPECT_FALSE(with_scalar->sharded_parameters().is_float());

  AddTensor(requests[1].mutable_tensors(), "unknown", {8}, {"dp"});
  EXPECT_THAT(ask().status(), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kAxisNotInMesh));
  requests[1].mutable_tensors()->set_spec_indexes(0, 0);
  EXPECT_THAT(ask().status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument));
}

TEST_F(ResolvePlansTest, RefusesLayoutsThatDoNotFit) {
  std::vector<v1::AnalyzeLayoutRequest> requests(2);
  SetMesh(requests[0].mutable_header()->mutable_mesh(), {{"tp", 4}});
  AddTensor(requests[1].mutable_tensors(), "w", {7, 8}, {"tp"});
  absl::Status status = Stream(&v1::LayoutService::Stub::AnalyzeLayout, requests).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kNotDivisible));
  EXPECT_THAT(std::string(status.message()), HasSubstr("'w'"));

  requests[1].Clear();
  AddTensor(requests[1].mutable_tensors(), "w", {8}, {"tp"});
  AddTensor(requests[1].mutable_tensors(), "w", {8}, {"tp"});
  status = Stream(&v1::LayoutService::Stub::AnalyzeLayout, requests).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(std::string(status.message()), HasSubstr("listed twice"));

  requests[1].mutable_tensors()->set_spec_indexes(0, 0);
  EXPECT_THAT(Stream(&v1::LayoutService::Stub::AnalyzeLayout, requests).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument));
}

std::vector<v1::SearchMeshesRequest> Search() {
  std::vector<v1::SearchMeshesRequest> requests(2);
  v1::SearchMeshesHeader* header = requests[0].mutable_header();
  header->set_devices(8);
  header->add_axes()->set_name("dp");
  header->add_axes()->set_name("tp");
  AddTensor(requests[1].mutable_tensors(), "w", {16, 16}, {"tp"});
  return requests;
}

TEST_F(ResolvePlansTest, RanksTheMeshesOfSomeDevices) {
  std::vector<v1::SearchMeshesRequest> requests = Search();
  auto response = Stream(&v1::LayoutService::Stub::SearchMeshes, requests);
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->evaluated(), 4);
  EXPECT_EQ(response->fitting(), 4);
  ASSERT_EQ(response->meshes_size(), 4);
  EXPECT_EQ(response->meshes(0).mesh().axes(1).name(), "tp");
  EXPECT_EQ(response->meshes(0).mesh().axes(1).size(), 8);
  EXPECT_EQ(response->meshes(0).device_bytes(), 128);

  requests[0].mutable_header()->mutable_axes(1)->set_max_size(2);
  requests[0].mutable_header()->set_device_memory_bytes(600);
  requests[0].mutable_header()->set_max_results(1);
  response = Stream(&v1::LayoutService::Stub::SearchMeshes, requests);
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->evaluated(), 2);
  EXPECT_EQ(response->fitting(), 1);
  ASSERT_EQ(response->meshes_size(), 1);
  EXPECT_EQ(response->meshes(0).mesh().axes(1).size(), 2);
}

TEST_F(ResolvePlansTest, RefusesSearchesByTheFieldAtFault) {
  using Header = v1::SearchMeshesHeader;
  struct Case {
    std::string field;
    std::function<void(Header*)> spoil;
  };
  const Case kCases[] = {
      {"header.devices", [](Header* h) { h->set_devices(0); }},
      {"header.devices", [](Header* h) { h->set_devices((int64_t{1} << 31) + 1); }},
      {"header.axes", [](Header* h) { h->clear_axes(); }},
      {"header.axes[0].name", [](Header* h) { h->mutable_axes(0)->set_name(""); }},
      {"header.axes[1].min_size", [](Header* h) { h->mutable_axes(1)->set_min_size(0); }},
      {"header.axes[1].max_size", [](Header* h) { h->mutable_axes(1)->set_max_size(0); }},
      {"header.axes[1].max_size",
       [](Header* h) { h->mutable_axes(1)->set_min_size(4), h->mutable_axes(1)->set_max_size(2); }},
      {"header.device_memory_bytes", [](Header* h) { h->set_device_memory_bytes(-1); }},
      {"header.max_results", [](Header* h) { h->set_max_results(1001); }},
      {"header.ranking[0]", [](Header* h) { h->add_ranking(Header::CRITERION_UNSPECIFIED); }},
      {"header.ranking[1]",
       [](Header* h) {
         h->add_ranking(Header::CRITERION_FIT), h->add_ranking(Header::CRITERION_FIT);
       }},
  };
  for (const Case& c : kCases) {
    std::vector<v1::SearchMeshesRequest> requests = Search();
    c.spoil(requests[0].mutable_header());
    const absl::Status status = Stream(&v1::LayoutService::Stub::SearchMeshes, requests).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field;
    EXPECT_THAT(FieldsOf(status), ElementsAre(c.field)) << status;
  }
}

TEST_F(ResolvePlansTest, RefusesSearchesThatAreTooLargeOrMissWhatTheyNeed) {
  std::vector<v1::SearchMeshesRequest> requests = Search();
  requests[0].mutable_header()->set_devices(int64_t{1} << 31);
  for (int i = 0; i < 14; ++i) {
    requests[0].mutable_header()->add_axes()->set_name("a" + std::to_string(i));
  }
  EXPECT_EQ(ReasonOf(Stream(&v1::LayoutService::Stub::SearchMeshes, requests).status()),
            Reason::kLimitExceeded);

  requests = Search();
  requests[0].mutable_header()->mutable_axes(1)->set_name("dp");
  EXPECT_EQ(ReasonOf(Stream(&v1::LayoutService::Stub::SearchMeshes, requests).status()),
            Reason::kDuplicateAxis);

  requests = Search();
  requests[1].mutable_tensors()->clear_dtypes();
  EXPECT_EQ(ReasonOf(Stream(&v1::LayoutService::Stub::SearchMeshes, requests).status()),
            Reason::kMissingArgument);
}

TEST_F(ResolvePlansTest, ListsTheLayoutsOfLeaves) {
  compat::v1::ListShardingsRequest request;
  compat::v1::ArrayLeaf* sharded = request.add_leaves();
  sharded->set_name("w");
  sharded->set_kind(compat::v1::ArrayLeaf::KIND_SHARDED);
  sharded->mutable_mesh()->add_axes()->set_name("tp");
  sharded->mutable_mesh()->mutable_axes(0)->set_size(4);
  SetSpec(sharded->mutable_spec(), {"tp"});
  compat::v1::ArrayLeaf* bare = request.add_leaves();
  bare->set_name("b");
  bare->set_kind(compat::v1::ArrayLeaf::KIND_SPEC_ONLY);
  SetSpec(bare->mutable_spec(), {"fsdp"});
  request.set_prefix("");  // there are no arrays

  auto all = ListShardings(request);
  ASSERT_THAT(all, IsOk());
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ((*all)[0].mesh().axes(0).size(), 4);
  EXPECT_FALSE((*all)[1].has_spec());

  request.mutable_mesh()->set_name("default");
  request.set_question(compat::v1::ListShardingsRequest::QUESTION_LAYOUTS_ON_MESH);
  all = ListShardings(request);
  ASSERT_THAT(all, IsOk());
  EXPECT_EQ((*all)[1].mesh().axes_size(), 2) << "the default mesh";

  request.set_question(compat::v1::ListShardingsRequest::QUESTION_SPECS);
  EXPECT_EQ(ReasonOf(ListShardings(request).status()), Reason::kInvalidSpec);
}

TEST_F(ResolvePlansTest, RefusesLeavesByTheFieldAtFault) {
  compat::v1::ListShardingsRequest request;
  request.add_leaves();
  EXPECT_THAT(FieldsOf(ListShardings(request).status()), ElementsAre("leaves[0].kind"));
  request.mutable_leaves(0)->set_kind(compat::v1::ArrayLeaf::KIND_SHARDED);
  EXPECT_THAT(FieldsOf(ListShardings(request).status()), ElementsAre("leaves[0].mesh"));
  request.mutable_leaves(0)->set_kind(compat::v1::ArrayLeaf::KIND_SPEC_ONLY);
  EXPECT_THAT(FieldsOf(ListShardings(request).status()), ElementsAre("leaves[0].spec"));
  request.mutable_leaves(0)->set_kind(compat::v1::ArrayLeaf::KIND_NONE);
  request.mutable_leaves(0)->set_name(std::string(1025, 'n'));
  EXPECT_THAT(FieldsOf(ListShardings(request).status()), ElementsAre("leaves[0].name"));
  request.clear_leaves();
  request.set_prefix(std::string(1025, 'n'));
  EXPECT_THAT(FieldsOf(ListShardings(request).status()), ElementsAre("prefix"));
}

// All leaves come, in messages of bounded size.
TEST_F(ResolvePlansTest, ListsManyLeavesInSeveralMessages) {
  compat::v1::ListShardingsRequest request;
  for (int i = 0; i < 20'000; ++i) {
    compat::v1::ArrayLeaf* leaf = request.add_leaves();
    leaf->set_name("layers." + std::to_string(i) + ".kernel");
    leaf->set_kind(compat::v1::ArrayLeaf::KIND_SPEC_ONLY);
    SetSpec(leaf->mutable_spec(), {"fsdp", "tp"});
  }
  request.mutable_mesh()->set_name("default");
  request.set_question(compat::v1::ListShardingsRequest::QUESTION_LAYOUTS_ON_MESH);
  const auto all = ListShardings(request);
  ASSERT_THAT(all, IsOk());
  ASSERT_EQ(all->size(), 20'000u);
  EXPECT_EQ(all->back().name(), "layers.19999.kernel");
}

}  // namespace
}  // namespace shardmesh::server
