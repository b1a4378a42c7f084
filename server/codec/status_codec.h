// Encodes workers, their flight records and findings for answers to people.
#ifndef SHARDMESH_SERVER_CODEC_STATUS_CODEC_H_
#define SHARDMESH_SERVER_CODEC_STATUS_CODEC_H_

#include <cstdint>

#include "absl/time/time.h"
#include "server/diagnosis/flight_log.h"
#include "server/diagnosis/step_watch.h"
#include "server/state/attach_failures.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"
#include "shardmesh/v1/cluster_service.pb.h"

namespace shardmesh::server {

// `is_ready`: the worker reaches all its peers.
v1::WorkerState EncodeState(const WorkerStatus& worker, bool is_ready);
// The encoded ages are those at time `now`.
void Encode(const WorkerStatus& from, bool is_ready, const AttachFailures::Failures& failed,
            absl::Time now, v1::WorkerStatus* to);
// Sets `repairs` unless there is nothing to repair.
void EncodeRepairs(const RepairTotals& from, v1::GetStatusResponse* to);
// Sets `replicas` unless no array waits for one.
void EncodeReplicas(const ReplicaTotals& from, v1::GetStatusResponse* to);
// Culprits beyond the first 256 are left out.
void Encode(const Finding& from, v1::Finding* to);
// Adds the worker's last flight records, at most `max_bytes` together, and the number of omitted
// records.
void EncodeLast(const WorkerFlight& flight, int64_t max_bytes, v1::WorkerFlight* to);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CODEC_STATUS_CODEC_H_
