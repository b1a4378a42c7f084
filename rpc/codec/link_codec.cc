// Encodes and decodes measured links.
#include "rpc/codec/link_codec.h"

#include <cmath>

#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {

void Encode(const MeasuredLink& from, v1::MeasuredLink* to) {
  to->set_peer_identity(from.peer);
  to->set_peer_incarnation(from.peer_incarnation);
  to->set_transport(from.shares_memory ? v1::LINK_TRANSPORT_SHARED_MEMORY
                                       : v1::LINK_TRANSPORT_STREAM);
  Encode(from.latency, to->mutable_latency());
  to->set_bytes_per_second(from.bytes_per_second);
  Encode(from.measured, to->mutable_measure_time());
}

absl::StatusOr<MeasuredLink> Decode(const v1::MeasuredLink& from) {
  MeasuredLink to{.peer = from.peer_identity(), .peer_incarnation = from.peer_incarnation()};
  switch (from.transport()) {
    case v1::LINK_TRANSPORT_STREAM:
      break;
    case v1::LINK_TRANSPORT_SHARED_MEMORY:
      to.shares_memory = true;
      break;
    default:
      return BadField("transport", StrCat("is ", static_cast<int>(from.transport()),
                                          "; it is a stream (1) or shared memory (2)"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(to.latency, Decode(from.latency()));
  if (to.latency < absl::ZeroDuration()) return BadField("latency", "is negative");
  if (!std::isfinite(from.bytes_per_second()) || from.bytes_per_second() <= 0) {
    return BadField("bytes_per_second",
                    StrCat("is ", from.bytes_per_second(), "; it must be above 0 and finite"));
  }
  to.bytes_per_second = from.bytes_per_second();
  SHARDMESH_ASSIGN_OR_RETURN(to.measured, Decode(from.measure_time()));
  return to;
}

}  // namespace shardmesh::rpc
