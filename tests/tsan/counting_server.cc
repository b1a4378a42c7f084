// A server that counts its calls, with or without a lock: proves that
// ThreadSanitizer still sees a race in a handler.
//
//   counting_server unary|bidi racy|locked
//
// Several clients call at once, unary or in bidirectional streams. `racy`
// counts without a lock, in CountWithoutLock, and must be reported; `locked`
// must not be. However the machine schedules the clients, the first handler
// waits for a second one, so that at least these two do race.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "shardmesh/internal/v1/exchange_service.grpc.pb.h"

namespace shardmesh {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr int kClients = 4;
constexpr int kCallsPerClient = 200;
constexpr int kCountsPerCall = 1000;
constexpr absl::Duration kMeetTimeout = absl::Seconds(20);  // of two handlers
constexpr int64_t kExpected = int64_t{kClients} * kCallsPerClient * kCountsPerCall;

class Counter {
 public:
  explicit Counter(bool locked) : locked_(locked) {}

  void CountCall() {
    Meet();
    for (int i = 0; i < kCountsPerCall; ++i) {
      if (locked_) {
        absl::MutexLock lock(&mutex_);
        ++count_;
      } else {
        CountWithoutLock();
      }
    }
  }

  int64_t count() const {
    absl::MutexLock lock(&mutex_);
    return count_;
  }

 private:
  // Returns once two calls have come here. In relaxed order, which orders nothing else: what the
  // two do next is not synchronised by their meeting.
  void Meet() {
    arrived_.fetch_add(1, std::memory_order_relaxed);
    const absl::Time deadline = absl::Now() + kMeetTimeout;
    while (arrived_.load(std::memory_order_relaxed) < 2 && absl::Now() < deadline) {
      std::this_thread::yield();
    }
  }
  // The planted race. Not inlined, so that the report names it.
  [[gnu::noinline]] void CountWithoutLock() ABSL_NO_THREAD_SAFETY_ANALYSIS { ++count_; }

  const bool locked_;
  std::atomic<int> arrived_ = 0;
  mutable absl::Mutex mutex_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

class CountingHealth final : public Health::CallbackService {
 public:
  explicit CountingHealth(Counter* counter) : counter_(counter) {}

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context, const HealthCheckRequest*,
                                  HealthCheckResponse* response) override {
    counter_->CountCall();
    response->set_status(HealthCheckResponse::SERVING);
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  Counter* const counter_;
};

// Counts each message and answers it:
//   while (read()) { count(); write(); }
//   finish(OK)
class CountingStream final : public grpc::ServerBidiReactor<internal::v1::ExchangeRequest,
                                                            internal::v1::ExchangeResponse> {
 public:
  explicit CountingStream(Counter* counter) : counter_(counter) { StartRead(&request_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    counter_->CountCall();
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  Counter* const counter_;
  internal::v1::ExchangeRequest request_;
  internal::v1::ExchangeResponse response_;
};

class CountingExchange final : public internal::v1::ExchangeService::CallbackService {
 public:
  explicit CountingExchange(Counter* counter) : counter_(counter) {}

  grpc::ServerBidiReactor<internal::v1::ExchangeRequest, internal::v1::ExchangeResponse>* Exchange(
      grpc::CallbackServerContext*) override {
    return new CountingStream(counter_);
  }

 private:
  Counter* const counter_;
};

// Says why a call failed; the count alone does not.
void Report(const grpc::Status& status) {
  if (status.ok()) return;
  std::cerr << "call failed: " << status.error_code() << " " << status.error_message() << " "
            << status.error_details() << "\n";
}

// Both wait for the connection: on a busy machine a first try to connect may fail.
void CallUnary(const std::shared_ptr<grpc::Channel>& channel) {
  auto stub = Health::NewStub(channel);
  for (int i = 0; i < kCallsPerClient; ++i) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    HealthCheckResponse response;
    Report(stub->Check(&context, HealthCheckRequest(), &response));
  }
}

void CallBidi(const std::shared_ptr<grpc::Channel>& channel) {
  auto stub = internal::v1::ExchangeService::NewStub(channel);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  auto stream = stub->Exchange(&context);
  internal::v1::ExchangeResponse response;
  for (int i = 0; i < kCallsPerClient && stream->Write({}) && stream->Read(&response); ++i) {
  }
  stream->WritesDone();
  Report(stream->Finish());
}

// Returns what was counted; without a race, exactly kClients *
// kCallsPerClient.
int64_t Run(bool bidi, bool locked) {
  Counter counter(locked);
  CountingHealth health(&counter);
  CountingExchange exchange(&counter);
  int port = 0;
  const auto server = grpc::ServerBuilder()
                          // Otherwise two servers may share the port that they find free.
                          .AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0)
                          .AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port)
                          .RegisterService(&health)
                          .RegisterService(&exchange)
                          .BuildAndStart();
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&] {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL,
                       1);  // a connection for each client
      const auto channel = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                                     grpc::InsecureChannelCredentials(), arguments);
      bidi ? CallBidi(channel) : CallUnary(channel);
    });
  }
  for (auto& client : clients) client.join();
  server->Shutdown();
  return counter.count();
}

int Main(int argc, char** argv) {
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  if (words.size() != 2 || (words[0] != "unary" && words[0] != "bidi") ||
      (words[1] != "racy" && words[1] != "locked")) {
    std::cerr << "usage: counting_server unary|bidi racy|locked\n";
    return 2;
  }
  const bool locked = words[1] == "locked";
  const int64_t count = Run(words[0] == "bidi", locked);
  std::cout << "counted " << count << " of " << kExpected << "\n";
  return locked && count != kExpected ? 1 : 0;
}

}  // namespace
}  // namespace shardmesh

int main(int argc, char** argv) { return shardmesh::Main(argc, argv); }
