// Encodes workers, their flight records and findings for answers to people.
#ifndef SHARDMESH_SERVER_CODEC_STATUS_CODEC_H_
#define SHARDMESH_SERVER_CODEC_STATUS_CODEC_H_

#include <cstdint>

#include "absl/time/time.h"
#include "server/state/attach_failures.h"
#include "server/state/membership.h"
#include "server/steps/flight_log.h"
#include "server/steps/step_watch.h"
#include "shardmesh/v1/cluster_service.pb.h"

namespace shardmesh::server {

// `is_ready`: the worker reaches all its peers.
v1::WorkerState EncodeState(const WorkerStatus& worker, bool is_ready);
// The encoded ages are those at time `now`.
void Encode(const WorkerStatus& from, bool is_ready, const AttachFailures::Failures& failed,
            absl::Time now, v1::WorkerStatus* to);
// Culprits beyond the first 256 are left out.
void Encode(const Finding& from, v1::Finding* to);
// Adds the worker's last flight records, at most `max_bytes` together, and the number of omitted
// records.
void EncodeLast(const WorkerFlight& flight, int64_t max_bytes, v1::WorkerFlight* to);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CODEC_STATUS_CODEC_H_
