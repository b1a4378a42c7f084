// The speed of the link between two workers, measured by one of them.
#ifndef SHARDMESH_PROGRAM_MEASURED_LINK_H_
#define SHARDMESH_PROGRAM_MEASURED_LINK_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace shardmesh {

struct MeasuredLink {
  std::string peer = {};  // identity of the other worker
  uint64_t peer_incarnation = 0;
  bool shares_memory = false;  // if false, data goes over the stream between the two workers
  // Half the time of a round trip in which each worker sends 8 bytes and waits for the peer's 8
  // bytes.
  absl::Duration latency = absl::ZeroDuration();
  // The rate in each direction while both workers send a large message and copy the message that
  // they receive. Finite, above 0.
  double bytes_per_second = 1;
  absl::Time measured = absl::InfinitePast();

  friend bool operator==(const MeasuredLink&, const MeasuredLink&) = default;
};

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_MEASURED_LINK_H_
