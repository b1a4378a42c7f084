// Calls that take long, made by many at once, and an ordinary one beside them.
#ifndef SHARDMESH_TESTS_UNIT_SERVER_BUSY_CALLERS_H_
#define SHARDMESH_TESTS_UNIT_SERVER_BUSY_CALLERS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "rpc/call.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/resolve_service_fixture.h"

namespace shardmesh::server {

class BusyCallersTest : public ResolveServiceTest {
 protected:
  using Ends = std::function<void(grpc::ClientContext*)>;

  // While callers on threads of their own ask what takes long, an ordinary question is answered
  // over and over before the first of them is.
  void ExpectOthersAreAnswered(const Ends& ask) {
    constexpr int kCallers = 20;  // more than gRPC's (at most 16) and the background's threads
    constexpr int kAnswers = 50;
    std::atomic<int> ended = 0;
    std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
    std::vector<std::thread> callers;
    for (int i = 0; i < kCallers; ++i) {
      contexts.push_back(std::make_unique<grpc::ClientContext>());
      rpc::Apply(rpc::CallOptions::Within(absl::Seconds(60)), contexts.back().get());
      callers.emplace_back([&ask, &ended, context = contexts.back().get()] {
        ask(context);
        ++ended;
      });
    }
    int answered = 0;
    absl::Status status;
    v1::ListPresetsResponse presets;
    while (status.ok() && ended.load() == 0 && answered < kAnswers) {
      status = Ask(&v1::ResolveService::Stub::ListPresets, v1::ListPresetsRequest(), &presets);
      answered += ended.load() == 0 ? 1 : 0;
      absl::SleepFor(absl::Milliseconds(2));  // so that the others' requests arrive meanwhile
    }
    EXPECT_THAT(status, test::IsOk());
    EXPECT_EQ(answered, kAnswers);
    for (const auto& context : contexts) {
      context->TryCancel();
    }
    for (std::thread& caller : callers) {
      caller.join();
    }
  }
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_TESTS_UNIT_SERVER_BUSY_CALLERS_H_
