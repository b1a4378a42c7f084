// A coordinator with simulated workers that hold no tiles and compute nothing, for tests of the
// messages between them.
#ifndef SHARDMESH_TESTS_UNIT_SERVER_HOLLOW_FIXTURE_H_
#define SHARDMESH_TESTS_UNIT_SERVER_HOLLOW_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rpc/call.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "server/coordinator_server.h"
#include "shardmesh/internal/v1/attach_service.grpc.pb.h"
#include "shardmesh/v1/array_service.grpc.pb.h"
#include "shardmesh/v1/catalog_service.grpc.pb.h"
#include "shardmesh/v1/cluster_service.grpc.pb.h"
#include "shardmesh/v1/compute_service.grpc.pb.h"
#include "shardmesh/v1/session_service.grpc.pb.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/hollow_workers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::test {

inline constexpr absl::Duration kTimeout = absl::Seconds(60);

class HollowFixture : public testing::Test {
 protected:
  using CoordinatorLimits = server::CoordinatorLimits;

  ~HollowFixture() override { Stop(); }

  void Stop() {
    workers_.reset();
    if (coordinator_ != nullptr) coordinator_->Drain(absl::Now() + absl::Seconds(5));
    coordinator_.reset();
  }

  // Starts a coordinator with this mesh as "default", or with no mesh if `mesh` is empty. `adjust`
  // may change its options.
  void StartCoordinator(const std::string& mesh, const CoordinatorLimits& limits = {},
                        const std::function<void(server::CoordinatorOptions*)>& adjust = nullptr) {
    server::CoordinatorOptions options;
    options.listen_address = "127.0.0.1:0";
    options.http_address = "";
    if (!mesh.empty()) options.mesh = *Mesh::Parse(mesh);
    options.limits = limits;
    if (adjust) adjust(&options);
    auto started = server::CoordinatorServer::Start(std::move(options));
    ASSERT_TRUE(started.ok()) << started.status();
    coordinator_ = *std::move(started);
    channel_ = *rpc::CreateChannel(coordinator_->address());
  }
  // Starts workers and records the messages that they get; see Heard.
  void Begin(HollowWorkers::Options options) {
    options.coordinator = coordinator_->address();
    options.heard = [this](int64_t index, const internal::v1::AttachResponse& message) {
      Hear(index, message);
    };
    auto workers = HollowWorkers::Start(options);
    ASSERT_TRUE(workers.ok()) << workers.status();
    workers_ = *std::move(workers);
    answering_ = workers_.get();
  }
  void StartWorkers(int64_t count) {
    Begin({.count = count});
    ASSERT_TRUE(workers_->AwaitMembers(count, kTimeout)) << workers_->totals().last_end;
  }

  template <typename Service, typename Request, typename Response>
  absl::Status Call(grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&,
                                                          Response*),
                    const Request& request, Response* response,
                    grpc::ClientContext* context = nullptr) {
    const auto stub = Service::NewStub(channel_);
    grpc::ClientContext own;
    if (context == nullptr) context = &own;
    rpc::Apply(rpc::CallOptions::Within(kTimeout), context);
    return rpc::FromGrpc((stub.get()->*method)(context, request, response));
  }
  absl::Status CreateMesh(const std::string& name, int64_t size) {
    v1::CreateEntryRequest request;
    request.set_request_id(StrCat("create-", ++requests_));
    request.set_name(name);
    v1::MeshAxis* axis = request.mutable_value()->mutable_mesh()->mutable_mesh()->add_axes();
    axis->set_name("x");
    axis->set_size(size);
    return CreateEntry(request);
  }
  absl::Status CreateEntry(const v1::CreateEntryRequest& request) {
    v1::CreateEntryResponse response;
    return Call<v1::CatalogService>(&v1::CatalogService::Stub::CreateEntry, request, &response);
  }
  absl::StatusOr<v1::GetStatusResponse> Status(const v1::GetStatusRequest& request = {}) {
    v1::GetStatusResponse response;
    const absl::Status status =
        Call<v1::ClusterService>(&v1::ClusterService::Stub::GetStatus, request, &response);
    if (!status.ok()) return status;
    return response;
  }
  // Waits until every worker has received the newest epoch and the mesh is complete; returns
  // whether that happened.
  bool AwaitQuiet(const std::string& mesh_id) {
    return Eventually([&] {
      v1::GetStatusRequest request;
      request.set_mesh_id(mesh_id);
      const auto status = Status(request);
      return status.ok() && status->meshes_size() == 1 && status->meshes(0).complete() &&
             workers_->totals().lowest_epoch == status->epoch();
    });
  }

  // Opens a session; returns its id.
  std::string OpenSession(absl::Duration ttl = absl::Hours(1)) {
    v1::OpenSessionRequest request;
    request.set_request_id(StrCat("session-", ++requests_));
    rpc::Encode(ttl, request.mutable_ttl());
    v1::OpenSessionResponse response;
    EXPECT_THAT(
        Call<v1::SessionService>(&v1::SessionService::Stub::OpenSession, request, &response),
        IsOk());
    return response.session_id();
  }
  // Returns a request to multiply two 2 x 2 matrices. Both are literals on a mesh; if `array_id` is
  // given, the left one is that array.
  v1::ExecuteRequest Product(const std::string& session_id, const std::string& mesh_id,
                             const std::string& array_id = "") {
    v1::ExecuteRequest request;
    request.set_request_id(StrCat("step-", ++requests_));
    request.set_session_id(session_id);
    v1::Program* const program = request.mutable_program();
    program->set_operand_count(2);
    program->add_ops()->mutable_matmul()->set_lhs(0);
    program->mutable_ops(0)->mutable_matmul()->set_rhs(1);
    program->add_outputs(2);
    for (int i = 0; i < 2; ++i) {
      v1::Operand* const operand = request.add_operands();
      if (i == 0 && !array_id.empty()) {
        operand->mutable_array()->set_array_id(array_id);
        continue;
      }
      operand->mutable_literal()->set_dtype(v1::DTYPE_F32);
      operand->mutable_literal()->add_shape(2);
      operand->mutable_literal()->add_shape(2);
      operand->mutable_literal()->set_data(std::string(16, '\0'));
    }
    if (array_id.empty()) request.set_mesh_id(mesh_id);
    return request;
  }
  absl::StatusOr<v1::ExecuteResponse> Execute(const v1::ExecuteRequest& request,
                                              grpc::ClientContext* context = nullptr) {
    v1::ExecuteResponse response;
    const absl::Status status =
        Call<v1::ComputeService>(&v1::ComputeService::Stub::Execute, request, &response, context);
    if (!status.ok()) return status;
    return response;
  }
  // Makes an array without a name, which the session pins; returns its id.
  std::string MakeArray(const std::string& session_id, const std::string& mesh_id) {
    const auto made = Execute(Product(session_id, mesh_id));
    EXPECT_THAT(made, IsOk());
    return made.ok() ? made->outputs(0).array().array_descriptor().array_id() : "";
  }
  absl::StatusOr<v1::BeginGetResponse> BeginGet(const std::string& session_id,
                                                const std::string& array_id) {
    v1::BeginGetRequest request;
    request.set_session_id(session_id);
    request.mutable_array()->set_array_id(array_id);
    v1::BeginGetResponse response;
    const absl::Status status =
        Call<v1::ArrayService>(&v1::ArrayService::Stub::BeginGet, request, &response);
    if (!status.ok()) return status;
    return response;
  }
  absl::Status Release(const std::string& session_id, const std::string& array_id) {
    v1::ReleaseArraysRequest request;
    request.set_session_id(session_id);
    request.add_array_ids(array_id);
    v1::ReleaseArraysResponse response;
    return Call<v1::ArrayService>(&v1::ArrayService::Stub::ReleaseArrays, request, &response);
  }

  // Returns the messages to worker `index` for which `is_one` is true.
  std::vector<internal::v1::AttachResponse> Heard(
      int64_t index, const std::function<bool(const internal::v1::AttachResponse&)>& is_one) {
    std::vector<internal::v1::AttachResponse> found;
    absl::MutexLock lock(&mutex_);
    for (const auto& [whose, message] : heard_) {
      if (whose == index && is_one(message)) found.push_back(message);
    }
    return found;
  }
  // Sets whether workers report each step as done.
  void AnswerSteps(bool answer) { answers_steps_ = answer; }
  // Reports a step as done in the name of worker `index`, which serves `rank`.
  void ReportDone(int64_t index, const internal::v1::RunStep& step, int64_t rank) {
    internal::v1::AttachRequest request;
    internal::v1::StepReport* const report = request.mutable_step_report();
    report->set_sequence(step.sequence());
    report->set_epoch(step.epoch());
    report->set_term(step.term());
    report->set_rank(static_cast<int32_t>(rank));
    report->set_outcome(internal::v1::StepReport::OUTCOME_DONE);
    for (const std::string& output : step.outputs()) {
      internal::v1::StagedOutput* const staged = report->add_outputs();
      staged->set_array_id(rpc::ParseArrayDescriptorBytes(output)->array_id);
      staged->set_size_bytes(16);
    }
    answering_.load()->Send(index, request);
  }

  std::unique_ptr<server::CoordinatorServer> coordinator_;
  std::shared_ptr<grpc::Channel> channel_;

 private:
  // Records a message to a worker, and answers a step if asked to. A worker's index is its rank,
  // because ranks are assigned in the order of identities.
  void Hear(int64_t index, const internal::v1::AttachResponse& message) {
    if (message.has_membership()) return;
    {
      absl::MutexLock lock(&mutex_);
      heard_.emplace_back(index, message);
    }
    if (message.has_run_step() && answers_steps_) ReportDone(index, message.run_step(), index);
  }

  absl::Mutex mutex_;
  std::vector<std::pair<int64_t, internal::v1::AttachResponse>> heard_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> answers_steps_ = true;
  std::atomic<int64_t> requests_ = 0;
  std::atomic<HollowWorkers*> answering_ = nullptr;

 protected:
  std::unique_ptr<HollowWorkers> workers_;  // declared last: its destructor waits for calls of Hear
};

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_UNIT_SERVER_HOLLOW_FIXTURE_H_
