// The speed of the link between two workers, as one of them measured it.
#ifndef SHARDMESH_PROGRAM_MEASURED_LINK_H_
#define SHARDMESH_PROGRAM_MEASURED_LINK_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace shardmesh {

struct MeasuredLink {
  std::string peer = {};  // identity of the other worker
  uint64_t peer_incarnation = 0;
  bool shares_memory = false;  // otherwise data goes over the stream
  // Half of a round trip in which both send 8 bytes and wait for the other's bytes.
  absl::Duration latency = absl::ZeroDuration();
  // The rate in each direction, while both ends send a large message and copy the received one.
  // Finite, above 0.
  double bytes_per_second = 1;
  absl::Time measured = absl::InfinitePast();

  friend bool operator==(const MeasuredLink&, const MeasuredLink&) = default;
};

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_MEASURED_LINK_H_
