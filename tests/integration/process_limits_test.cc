// What callers can use up of a process: its file descriptors, and its memory by messages that grow.
#include <google/protobuf/empty.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/support/sync_stream.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "client/remote/health.h"
#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "rpc/stream/message_bytes.h"
#include "rpc/tls/dial.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::testing::HasSubstr;

constexpr int kMaxDescriptors = 96;

// A program whose hard limit of descriptors is kMaxDescriptors.
class ProcessLimitsTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = MakeTestFolder("process_limits");
    client::ProcessOptions options;
    std::string flags = " --listen=127.0.0.1:0";
    if (GetParam() == std::string("shardmesh-worker")) {
      flags += " --coordinator=127.0.0.1:1 --identity=w --memory=1MiB --transport=stream";
    } else {
      flags += " --http-listen=";
    }
    options.command = {"/bin/sh", "-c",
                       StrCat("ulimit -n ", kMaxDescriptors, " && exec ", SHARDMESH_BINARY_DIR, "/",
                              GetParam(), flags)};
    options.log_path = folder_ + "/log";
    options.parent_end_signal = SIGKILL;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(process_, client::ChildProcess::Start(options));
    const std::regex listening("listening on (\\S+)\n");
    ASSERT_TRUE(Eventually([&] {
      const std::string log = Log();
      std::smatch match;
      if (std::regex_search(log, match, listening)) address_ = match[1];
      return !address_.empty();
    })) << Log();
  }
  void TearDown() override {
    if (process_.has_value()) {
      client::SendSignal(process_->id(), SIGKILL).IgnoreError();
      client::WaitUntilGone(process_->id(), absl::Now() + absl::Seconds(10));
      process_->Ended();
    }
    std::filesystem::remove_all(folder_);
  }
  std::string Log() const { return client::ReadLog(process_->log_path()); }
  absl::StatusOr<bool> IsAlive() const {
    return client::IsServing(address_, "live", rpc::Credentials::Insecure(),
                             absl::Now() + absl::Seconds(2));
  }

  std::string folder_;
  std::optional<client::ChildProcess> process_;
  std::string address_;
};

TEST_P(ProcessLimitsTest, ServesAgainWhenThereAreSome) {
  EXPECT_THAT(IsAlive(), IsOkAndHolds(true));
  {
    std::vector<FileDescriptor> idle;
    for (int i = 0; i < 3 * kMaxDescriptors; ++i) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(idle.emplace_back(),
                                     rpc::Dial(address_, absl::Now() + absl::Seconds(10)));
    }
    EXPECT_TRUE(Eventually([&] {
      return Log().find("connections are refused") != std::string::npos;
    })) << Log();
    EXPECT_THAT(Log(), HasSubstr("file descriptors"));
  }
  EXPECT_TRUE(Eventually([&] { return IsAlive().value_or(false); })) << IsAlive().status() << "\n"
                                                                     << Log();
  EXPECT_THAT(Log(), HasSubstr("connections are accepted again"));
}

// The most memory that a process had so far.
int64_t PeakKib(pid_t pid) {
  std::ifstream status(StrCat("/proc/", pid, "/status"));
  std::string word;
  int64_t value = 0;
  while (status >> word) {
    if (word == "VmHWM:") status >> value;
  }
  return value;
}

// Sends one message of 40 MiB, which is 40 kB when compressed, to any method.
absl::Status SendCompressed(const std::string& address, const std::string& path) {
  using Bytes = grpc::ByteBuffer;
  google::protobuf::Empty message;
  message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(
      15'000, std::string(size_t{40} << 20, '\0'));
  const std::shared_ptr<grpc::Channel> channel =
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(absl::Seconds(30)), &context);
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  const grpc::internal::RpcMethod method(path.c_str(), grpc::internal::RpcMethod::BIDI_STREAMING,
                                         channel);
  const std::unique_ptr<grpc::ClientReaderWriter<Bytes, Bytes>> stream(
      grpc::internal::ClientReaderWriterFactory<Bytes, Bytes>::Create(channel.get(), method,
                                                                      &context));
  stream->Write(rpc::SerializeMessage(message));
  stream->WritesDone();
  Bytes answer;
  while (stream->Read(&answer)) {
  }
  return rpc::FromGrpc(stream->Finish());
}

TEST_P(ProcessLimitsTest, RefusesCompressedMessagesWithoutInflatingThem) {
  EXPECT_THAT(IsAlive(), IsOkAndHolds(true));
  const int64_t before = PeakKib(process_->id().pid);
  const bool is_worker = GetParam() == std::string("shardmesh-worker");
  const std::vector<std::string> methods =
      is_worker ? std::vector<std::string>{"v1.TileService/Identify", "v1.TileService/PutTiles",
                                           "v1.TileService/GetTiles"}
                : std::vector<std::string>{
                      "v1.SessionService/OpenSession", "v1.ResolveService/ResolveSpec",
                      "v1.LayoutService/ResolveTree", "internal.v1.AttachService/Attach"};
  for (const std::string& method : methods) {
    const absl::Status refused = SendCompressed(address_, StrCat("/shardmesh.", method));
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnimplemented)) << method;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("gzip")) << method;
  }
  EXPECT_LT(PeakKib(process_->id().pid) - before, 20 << 10);
  EXPECT_THAT(IsAlive(), IsOkAndHolds(true));
}

INSTANTIATE_TEST_SUITE_P(Programs, ProcessLimitsTest,
                         ::testing::Values("shardmesh-coordinator", "shardmesh-worker"),
                         [](const auto& tested) {
                           return std::string(tested.param) == "shardmesh-worker" ? "Worker"
                                                                                  : "Coordinator";
                         });

}  // namespace
}  // namespace shardmesh::test
