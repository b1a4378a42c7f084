// The process metrics that Prometheus' client libraries have, under the same names.
#ifndef SHARDMESH_RPC_METRICS_PROCESS_METRICS_H_
#define SHARDMESH_RPC_METRICS_PROCESS_METRICS_H_

#include "rpc/metrics/metrics.h"

namespace shardmesh::rpc {

// Adds process_cpu_seconds_total, process_open_fds, process_max_fds, process_resident_memory_bytes,
// process_virtual_memory_bytes and process_start_time_seconds of this process, read from /proc at
// each scrape. If a value cannot be read, its series keeps the last value.
void AddProcessMetrics(Metrics* metrics);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_METRICS_PROCESS_METRICS_H_
