// Messages of the attach stream to the worker's values and back. spec_codec.h states the rules for
// all codecs.
#ifndef SHARDMESH_WORKER_SERVICE_ATTACH_MESSAGE_CODEC_H_
#define SHARDMESH_WORKER_SERVICE_ATTACH_MESSAGE_CODEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "program/flight_record.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "worker/exchange/membership_view.h"
#include "worker/service/tile_gate.h"
#include "worker/step/step_executor.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// The fields of a worker's Hello. The encoder adds the version and the protocols of the build.
struct WorkerHello {
  WorkerSelf self = {};
  std::string cluster_id = {};     // of the store; empty: none yet
  std::string data_identity = {};  // of the data folder; empty: none yet
  std::vector<std::string> endpoints = {};
  std::optional<int> exchange_port = {};
  std::string nonce = {};
  int64_t memory_bytes = 0;
  int threads = 0;
  bool durable = false;
  int64_t pid = 0;
  int64_t term = 0;  // the newest known one
};

internal::v1::AttachRequest Encode(const WorkerHello& from);
internal::v1::AttachRequest Encode(const TileReport& from);
// The error and the blamed peer only of a failed step.
internal::v1::AttachRequest Encode(StepResult from);
internal::v1::HeldTile Encode(const ShardStore::HeldTile& from);
// `identity`: this worker's. A descriptor that cannot be parsed leaves only the array's id.
v1::QuarantinedArray Encode(const QuarantinedArray& from, const std::string& identity);

// Limit for the encoded records of instructions in one heartbeat.
inline constexpr int64_t kMaxHeartbeatRecordBytes = int64_t{32} << 10;
// Adds the last records that fit.
void EncodeRecords(const std::vector<FlightRecord>& from, internal::v1::Heartbeat* to);

// Leaves the outputs in `from` if it fails. INVALID_ARGUMENT for a malformed field.
absl::StatusOr<StepOrder> Decode(internal::v1::RunStep& from);

// Returns the mesh of a step's results; empty if it has none.
std::string MeshIdOf(const StepOrder& order);
// The same for a step that cannot be decoded; also empty if its first result cannot be parsed.
std::string MeshIdOf(const internal::v1::RunStep& step);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_ATTACH_MESSAGE_CODEC_H_
