// Measures round trips over one plain gRPC stream between two processes: a lower bound for the time
// of a message between workers. Each side has a completion queue, polled by the thread that waits.
//
// clang-format off
//   stream_ping_bench [--sizes BYTES,...] [--ops OP,...]        messages of at most 64 KiB
// clang-format on
//
// Prints lines in the format of bench/collective_bench.cc, for the op "ping".
#include <grpcpp/channel.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/mutex_checks.h"
#include "rpc/poll_strategy.h"

namespace shardmesh {
namespace {

constexpr int64_t kMaxBytes = 65'536;
constexpr int kCalls = 2'000;

[[noreturn]] void Fail(const char* message) {
  std::fprintf(stderr, "stream_ping_bench: %s\n", message);
  std::exit(1);
}

enum Operation : intptr_t { kOpen = 1, kRead, kWrite };
void* TagOf(Operation operation) { return reinterpret_cast<void*>(operation); }

// Waits until all of these operations have ended; returns false if one of them failed. Requires
// that the caller has started each of them.
bool Await(grpc::CompletionQueue& queue, std::vector<Operation> operations) {
  while (!operations.empty()) {
    void* tag = nullptr;
    bool ok = false;
    if (queue.AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC)) !=
        grpc::CompletionQueue::GOT_EVENT) {
      sched_yield();
      continue;
    }
    if (!ok) return false;
    std::erase_if(operations, [tag](Operation each) { return TagOf(each) == tag; });
  }
  return true;
}

// Echoes the messages of one stream until it ends.
void Answer(int port_pipe) {
  grpc::ServerBuilder builder;
  grpc::AsyncGenericService service;
  builder.RegisterAsyncGenericService(&service);
  const std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (write(port_pipe, &port, sizeof(port)) != sizeof(port)) Fail("no pipe");
  grpc::GenericServerContext context;
  grpc::GenericServerAsyncReaderWriter stream(&context);
  service.RequestCall(&context, &stream, queue.get(), queue.get(), TagOf(kOpen));
  Await(*queue, {kOpen});
  grpc::ByteBuffer message;
  stream.Read(&message, TagOf(kRead));
  bool is_open = Await(*queue, {kRead});
  while (is_open) {
    stream.Write(message, TagOf(kWrite));
    stream.Read(&message, TagOf(kRead));
    is_open = Await(*queue, {kRead, kWrite});
  }
  _exit(0);
}

void Measure(grpc::GenericClientAsyncReaderWriter& stream, grpc::CompletionQueue& queue,
             int64_t bytes) {
  const grpc::Slice slice(std::string(static_cast<size_t>(bytes), 'x'));
  const grpc::ByteBuffer message(&slice, 1);
  std::vector<double> microseconds;
  for (int i = 0; i < kCalls + kCalls / 10; ++i) {
    const absl::Time start = absl::Now();
    grpc::ByteBuffer answer;
    stream.Read(&answer, TagOf(kRead));
    stream.Write(message, TagOf(kWrite));
    if (!Await(queue, {kRead, kWrite})) Fail("the stream broke");
    if (answer.Length() != static_cast<size_t>(bytes)) Fail("a wrong answer");
    if (i >= kCalls / 10) {
      microseconds.push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
    }
  }
  double mean = 0;
  for (const double each : microseconds) mean += each / kCalls;
  std::sort(microseconds.begin(), microseconds.end());
  std::printf("%s\n", nlohmann::json{{"system", "grpc"},
                                     {"op", "ping"},
                                     {"algorithm", "stream"},
                                     {"ranks", 2},
                                     {"bytes", bytes},
                                     {"calls", kCalls},
                                     {"p50_us", microseconds[kCalls / 2]},
                                     {"p99_us", microseconds[kCalls * 99 / 100]},
                                     {"mean_us", mean}}
                          .dump()
                          .c_str());
}

int Main(int argc, char** argv) {
  std::vector<std::string> sizes = {"8", "1024", "65536"};
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]) == "--sizes") sizes = absl::StrSplit(argv[i + 1], ',');
  }
  rpc::PollOwnConnections();
  SkipMutexChecks();
  int port_pipe[2];
  if (pipe(port_pipe) != 0) Fail("no pipe");
  const pid_t child = fork();
  if (child == 0) Answer(port_pipe[1]);
  int port = 0;
  if (read(port_pipe[0], &port, sizeof(port)) != sizeof(port)) Fail("no server");
  {
    grpc::CompletionQueue queue;
    grpc::ClientContext context;
    grpc::GenericStub stub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                               grpc::InsecureChannelCredentials()));
    const auto stream = stub.PrepareCall(&context, "/shardmesh.bench/Ping", &queue);
    stream->StartCall(TagOf(kOpen));
    if (!Await(queue, {kOpen})) Fail("the stream does not open");
    for (const std::string& size : sizes) {
      int64_t bytes = 0;
      if (!absl::SimpleAtoi(size, &bytes) || bytes < 1) Fail("--sizes: no number");
      if (bytes <= kMaxBytes) Measure(*stream, queue, bytes);
    }
    context.TryCancel();
    grpc::Status status;
    stream->Finish(&status, TagOf(kOpen));
    Await(queue, {kOpen});
    queue.Shutdown();
  }
  int status = 0;
  waitpid(child, &status, 0);
  return 0;
}

}  // namespace
}  // namespace shardmesh

int main(int argc, char** argv) { return shardmesh::Main(argc, argv); }
