// Measures a duration, independently of changes of the wall clock.
#ifndef SHARDMESH_CLIENT_CLI_STOPWATCH_H_
#define SHARDMESH_CLIENT_CLI_STOPWATCH_H_

#include <chrono>

#include "absl/time/time.h"

namespace shardmesh::client {

class Stopwatch {
 public:
  // The time since the construction of this object.
  absl::Duration time() const {
    return absl::FromChrono(std::chrono::steady_clock::now() - start_);
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_STOPWATCH_H_
