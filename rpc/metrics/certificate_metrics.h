// Metrics of the certificate that a process uses.
#ifndef SHARDMESH_RPC_METRICS_CERTIFICATE_METRICS_H_
#define SHARDMESH_RPC_METRICS_CERTIFICATE_METRICS_H_

#include "rpc/metrics/metrics.h"
#include "rpc/tls/credentials.h"

namespace shardmesh::rpc {

// Exports the times from which and until which the current certificate is valid:
// shardmesh_certificate_not_before_timestamp_seconds and
// shardmesh_certificate_expiry_timestamp_seconds. Exports nothing for plaintext.
void ExportValidity(const Credentials& credentials, Metrics& metrics);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_METRICS_CERTIFICATE_METRICS_H_
