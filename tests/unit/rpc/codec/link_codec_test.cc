// Measured links over the wire: whole, or refused.
#include "rpc/codec/link_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::StatusIs;

MeasuredLink Link() {
  return {.peer = "worker-1",
          .peer_incarnation = 7,
          .shares_memory = true,
          .latency = absl::Nanoseconds(430),
          .bytes_per_second = 1.25e10,
          .measured = absl::FromUnixMillis(1234567)};
}

TEST(LinkCodecTest, BringsALinkOverWhole) {
  for (const bool shares_memory : {false, true}) {
    MeasuredLink link = Link();
    link.shares_memory = shares_memory;
    v1::MeasuredLink wire;
    Encode(link, &wire);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const MeasuredLink decoded, Decode(wire));
    EXPECT_EQ(decoded, link);
  }
}

TEST(LinkCodecTest, RefusesFiguresThatCannotBe) {
  const std::vector<std::function<void(v1::MeasuredLink&)>> changes = {
      [](auto& wire) { wire.clear_transport(); },
      [](auto& wire) { wire.set_transport(static_cast<v1::LinkTransport>(3)); },
      [](auto& wire) { wire.mutable_latency()->set_nanos(-1); },
      [](auto& wire) { wire.mutable_measure_time()->set_nanos(-1); },
      [](auto& wire) { wire.set_bytes_per_second(0); },
      [](auto& wire) { wire.set_bytes_per_second(-1); },
      [](auto& wire) { wire.set_bytes_per_second(std::numeric_limits<double>::infinity()); },
      [](auto& wire) { wire.set_bytes_per_second(std::numeric_limits<double>::quiet_NaN()); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    v1::MeasuredLink wire;
    Encode(Link(), &wire);
    changes[i](wire);
    EXPECT_THAT(Decode(wire), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField)) << i;
  }
}

}  // namespace
}  // namespace shardmesh::rpc
