// The first message of a worker, and the checks that decide whether this coordinator accepts it.
#ifndef SHARDMESH_SERVER_ATTACH_WORKER_HELLO_H_
#define SHARDMESH_SERVER_ATTACH_WORKER_HELLO_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "program/measured_rates.h"

namespace shardmesh::server {

// A worker's claims about itself, unchecked. See Hello in attach_service.proto.
struct WorkerHello {
  std::string cluster_id;
  std::string identity;
  uint64_t incarnation = 0;
  std::string build_version;
  std::string build_revision;
  int32_t min_protocol = 0;
  int32_t max_protocol = 0;
  std::vector<std::string> features;
  std::vector<std::string> endpoints;
  std::optional<int32_t> exchange_port = std::nullopt;
  std::string nonce;
  int64_t memory_bytes = 0;
  MeasuredKernels kernels = {};
  bool durable = false;
  int64_t cache_bytes = 0;
  int64_t term = 0;
  int64_t pid = 0;
  std::string boot_id;
  std::string data_identity;
};

// Checks all fields of the hello except the identity, which the caller has checked with
// rpc::CheckIdentity.
//   INVALID_ARGUMENT (BAD_FIELD)             a field is out of its range.
//   FAILED_PRECONDITION (PROTOCOL_MISMATCH)  worker and coordinator share no protocol version.
//   FAILED_PRECONDITION (CLUSTER_MISMATCH)   the worker holds data of another cluster.
//   FAILED_PRECONDITION (IDENTITY_MISMATCH)  the worker's data folder belongs to another worker.
//   ABORTED (STALE_TERM)                     the worker knows a higher term than `term`.
absl::Status CheckHello(const WorkerHello& hello, std::string_view cluster_id, int64_t term);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_WORKER_HELLO_H_
