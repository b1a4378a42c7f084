// Converts between messages of the attach stream and the worker's types. spec_codec.h states the
// rules for all codecs.
#ifndef SHARDMESH_WORKER_SERVICE_ATTACH_MESSAGE_CODEC_H_
#define SHARDMESH_WORKER_SERVICE_ATTACH_MESSAGE_CODEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "program/flight_record.h"
#include "program/measured_rates.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "worker/exchange/membership_view.h"
#include "worker/service/tile_gate.h"
#include "worker/step/step_executor.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// The fields of a worker's Hello. Encode adds the version and the protocols of this build.
struct WorkerHello {
  WorkerSelf self = {};
  std::string cluster_id = {};     // empty if the store has none yet
  std::string data_identity = {};  // the worker to which the data folder belongs; empty if none yet
  std::vector<std::string> endpoints = {};
  std::optional<int> exchange_port = {};
  std::string nonce = {};
  int64_t memory_bytes = 0;
  int threads = 0;
  MeasuredKernels kernels = {};
  bool overlaps_exchanges = false;  // runs plans for which OverlapsExchanges is true
  bool overlaps_parts = false;      // runs plans for which OverlapsParts is true
  bool durable = false;
  int64_t cache_bytes = 0;  // memory that tiles of released arrays may take
  int64_t pid = 0;
  int64_t term = 0;  // the newest term that the worker knows
};

internal::v1::AttachRequest Encode(const WorkerHello& from);
internal::v1::AttachRequest Encode(const TileReport& from);
// Encodes the error and the blamed peer only if the step failed.
internal::v1::AttachRequest Encode(StepResult from);
internal::v1::HeldTile Encode(const ShardStore::HeldTile& from);
// `identity` is the identity of this worker. If the array's descriptor cannot be parsed, the
// descriptor in the result has only the array's id.
v1::QuarantinedArray Encode(const QuarantinedArray& from, const std::string& identity);

// The maximum number of bytes of encoded instruction records in one heartbeat.
inline constexpr int64_t kMaxHeartbeatRecordBytes = int64_t{32} << 10;
// Adds the newest of the records, in the order of `from`: as many as fit into
// kMaxHeartbeatRecordBytes.
void EncodeRecords(const std::vector<FlightRecord>& from, internal::v1::Heartbeat* to);

// Decodes an order to run a step, and moves the outputs out of `from`. After an error, `from` still
// has the outputs. INVALID_ARGUMENT for a malformed field.
absl::StatusOr<StepOrder> Decode(internal::v1::RunStep& from);

// Returns the id of the mesh on which a step's results lie; empty if the step has no results.
std::string MeshIdOf(const StepOrder& order);
// Returns the id of the mesh on which the results of an undecoded step lie. Empty if the step has
// no results, or if its first result cannot be parsed.
std::string MeshIdOf(const internal::v1::RunStep& step);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_ATTACH_MESSAGE_CODEC_H_
