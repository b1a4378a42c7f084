// Flight records: which instruction of a step a rank runs or has run, for the diagnosis of hangs.
#ifndef SHARDMESH_PROGRAM_FLIGHT_RECORD_H_
#define SHARDMESH_PROGRAM_FLIGHT_RECORD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "sharding/mesh.h"

namespace shardmesh {

// One instruction of one step, as one rank ran it or still runs it.
struct FlightRecord {
  struct Peer {
    DeviceId rank = 0;
    absl::Time data_came = absl::InfiniteFuture();  // InfiniteFuture: not yet
  };

  // For an ended instruction: its number, from 0, in the order in which the process's instructions
  // ended.
  int64_t number = 0;
  int64_t step = 0;
  std::string mesh_id = {};
  DeviceId rank = 0;
  int64_t op = 0;         // index of the instruction in the plan; also the op in worker::Tag
  std::string what = {};  // label of the instruction: "op 0 (linear): all-reduce over tp"
  absl::Time started = absl::InfinitePast();
  absl::Time ended = absl::InfiniteFuture();  // InfiniteFuture: still runs
  absl::Status outcome = absl::OkStatus();    // OK while the instruction runs
  std::vector<Peer> peers = {};  // peers whose data the instruction needs; empty for local work
  int64_t omitted_peers = 0;     // number of such peers that `peers` does not list
  // The peer for whose data the instruction waits. After a failure: the last peer for whose data
  // the instruction waited.
  std::optional<DeviceId> waits_for = {};
  // While a change of layout by regions runs: bytes of regions that other ranks have sent so far.
  int64_t received_bytes = 0;

  bool is_running() const { return ended == absl::InfiniteFuture(); }
};

// A step that runs on a worker, and the instruction that it has reached.
struct StepProgress {
  int64_t step = 0;
  absl::Time started = absl::InfinitePast();  // on this worker
  // The running instruction; nullopt before the first instruction and after the last one.
  std::optional<FlightRecord> instruction = {};
};

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_FLIGHT_RECORD_H_
