// BeginPut calls whose client does not go on.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "server/service/array_service.h"
#include "shardmesh/v1/array_service.grpc.pb.h"
#include "status/reason.h"
#include "tests/testing/eventually.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PutStreamTest : public ::testing::Test {
 protected:
  PutStreamTest() {
    CoordinatorParts context;
    context.clock = &clock_;
    context.max_put_streams_per_caller = 2;
    service_ = MakeArrayService(context);
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::ArrayService::NewStub(server_->InProcessChannel({}));
  }
  ~PutStreamTest() override {
    server_->Shutdown(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  }

  using Stream =
      std::unique_ptr<grpc::ClientReaderWriter<v1::BeginPutRequest, v1::BeginPutResponse>>;
  // Returns when the server waits for the first message.
  Stream Begin(grpc::ClientContext* context) {
    const int64_t before = clock_.pending();
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(30)), context);
    Stream stream = stub_->BeginPut(context);
    EXPECT_TRUE(test::Eventually([&] { return clock_.pending() > before; }));
    return stream;
  }

  test::FakeClock clock_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ArrayService::Stub> stub_;
};

TEST_F(PutStreamTest, EndsHalfAMinuteAfterTheLastMessage) {
  grpc::ClientContext context;
  const Stream stream = Begin(&context);
  clock_.Advance(absl::Seconds(29));
  grpc::ClientContext later_context;
  const Stream later = Begin(&later_context);
  clock_.Advance(absl::Seconds(1));
  const absl::Status ended = rpc::FromGrpc(stream->Finish());
  EXPECT_THAT(ended, test::StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(std::string(ended.message()), AllOf(HasSubstr("30s"), HasSubstr("5m")));
  // The other one has more time.
  later->WritesDone();
  EXPECT_THAT(rpc::FromGrpc(later->Finish()),
              test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

}  // namespace
}  // namespace shardmesh::server
