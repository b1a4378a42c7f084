// Hellos that are refused, and why.
#include "server/attach/worker_hello.h"

#include <cmath>
#include <functional>

#include "gtest/gtest.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

WorkerHello Hello() {
  WorkerHello hello;
  hello.identity = "a";
  hello.incarnation = 1;
  hello.min_protocol = 1;
  hello.max_protocol = 2;
  hello.endpoints = {"10.0.0.1:1"};
  hello.nonce = std::string(16, 'n');
  hello.term = 7;
  return hello;
}

TEST(WorkerHelloTest, TakesAHelloOfThisClusterAndOfAWorkerWithoutOne) {
  WorkerHello hello = Hello();
  EXPECT_THAT(CheckHello(hello, "c", 7), IsOk());
  hello.cluster_id = "c";
  hello.data_identity = "a";
  EXPECT_THAT(CheckHello(hello, "c", 7), IsOk());
}

TEST(WorkerHelloTest, RefusesWhatDoesNotFit) {
  const struct {
    const char* name;
    std::function<void(WorkerHello*)> change;
    absl::StatusCode code;
    Reason reason;
  } cases[] = {
      {"no incarnation", [](auto* h) { h->incarnation = 0; }, absl::StatusCode::kInvalidArgument,
       Reason::kBadField},
      {"no endpoint", [](auto* h) { h->endpoints.clear(); }, absl::StatusCode::kInvalidArgument,
       Reason::kBadField},
      {"17 endpoints", [](auto* h) { h->endpoints.assign(17, "x:1"); },
       absl::StatusCode::kInvalidArgument, Reason::kBadField},
      {"a long endpoint", [](auto* h) { h->endpoints[0].assign(321, 'x'); },
       absl::StatusCode::kInvalidArgument, Reason::kBadField},
      {"no port", [](auto* h) { h->exchange_port = 65'536; }, absl::StatusCode::kInvalidArgument,
       Reason::kBadField},
      {"the port 0", [](auto* h) { h->exchange_port = 0; }, absl::StatusCode::kInvalidArgument,
       Reason::kBadField},
      {"a short nonce", [](auto* h) { h->nonce = "n"; }, absl::StatusCode::kInvalidArgument,
       Reason::kBadField},
      {"a negative capacity", [](auto* h) { h->memory_bytes = -1; },
       absl::StatusCode::kInvalidArgument, Reason::kBadField},
      {"a negative cache", [](auto* h) { h->cache_bytes = -1; }, absl::StatusCode::kInvalidArgument,
       Reason::kBadField},
      {"a negative speed", [](auto* h) { h->kernels.f32_flops_per_second = -1; },
       absl::StatusCode::kInvalidArgument, Reason::kBadField},
      {"a speed that is no number", [](auto* h) { h->kernels.f32_flops_per_second = std::nan(""); },
       absl::StatusCode::kInvalidArgument, Reason::kBadField},
      {"a negative cost", [](auto* h) { h->kernels.costs[KernelCost::kProductStart] = -1; },
       absl::StatusCode::kInvalidArgument, Reason::kBadField},
      {"a cost of more than a second",
       [](auto* h) { h->kernels.costs[KernelCost::kReadByte] = 1.5; },
       absl::StatusCode::kInvalidArgument, Reason::kBadField},
      {"a negative cost of products", [](auto* h) { h->kernels.costs[ProductKind::kF16][4] = -1; },
       absl::StatusCode::kInvalidArgument, Reason::kBadField},
      {"a cost that is no number",
       [](auto* h) { h->kernels.costs[KernelCost::kProductStart] = std::nan(""); },
       absl::StatusCode::kInvalidArgument, Reason::kBadField},
      {"65 features", [](auto* h) { h->features.assign(65, "f"); },
       absl::StatusCode::kInvalidArgument, Reason::kBadField},
      {"a newer protocol", [](auto* h) { h->min_protocol = 2; },
       absl::StatusCode::kFailedPrecondition, Reason::kProtocolMismatch},
      {"an older protocol", [](auto* h) { h->min_protocol = h->max_protocol = 0; },
       absl::StatusCode::kFailedPrecondition, Reason::kProtocolMismatch},
      {"another cluster", [](auto* h) { h->cluster_id = "d"; },
       absl::StatusCode::kFailedPrecondition, Reason::kClusterMismatch},
      {"another worker's data", [](auto* h) { h->data_identity = "b"; },
       absl::StatusCode::kFailedPrecondition, Reason::kIdentityMismatch},
      {"a newer coordinator", [](auto* h) { h->term = 8; }, absl::StatusCode::kAborted,
       Reason::kStaleTerm},
  };
  for (const auto& each : cases) {
    WorkerHello hello = Hello();
    each.change(&hello);
    EXPECT_THAT(CheckHello(hello, "c", 7), StatusIs(each.code, each.reason)) << each.name;
  }
  const auto refusal = [](const auto& change) {
    WorkerHello hello = Hello();
    change(&hello);
    return CheckHello(hello, "c", 7);
  };
  const std::string own = Hello().identity;
  EXPECT_THAT(refusal([](auto* h) { h->min_protocol = h->max_protocol = 0; }),
              test::CarriesFacts(Reason::kProtocolMismatch,
                                 {{fact::kIdentity, own}, {fact::kHave, 0}, {fact::kNeed, 1}}));
  EXPECT_THAT(refusal([](auto* h) { h->cluster_id = "d"; }),
              test::CarriesFacts(Reason::kClusterMismatch,
                                 {{fact::kIdentity, own}, {fact::kHave, "d"}, {fact::kNeed, "c"}}));
  EXPECT_THAT(
      refusal([](auto* h) { h->data_identity = "b"; }),
      test::CarriesFacts(Reason::kIdentityMismatch, {{fact::kHave, "b"}, {fact::kNeed, own}}));
  EXPECT_THAT(refusal([](auto* h) { h->term = 8; }),
              test::CarriesFacts(Reason::kStaleTerm, {{fact::kHave, 7}, {fact::kNeed, 8}}));
  EXPECT_NE(std::string(refusal([](auto* h) { h->term = 8; }).message())
                .find("an older copy of its data folder; put such a copy back with --restore"),
            std::string::npos);
}

}  // namespace
}  // namespace shardmesh::server
