// Limits of a hello's fields, and the checks of a hello against this cluster.
#include "server/attach/worker_hello.h"

#include "absl/strings/escaping.h"
#include "absl/types/span.h"
#include "rpc/codec/status.h"
#include "rpc/contract.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr size_t kMaxEndpoints = 16;
// Limits of a hello's texts and lists. Lists of workers show most of these texts to clients.
constexpr size_t kMaxEndpointBytes = 320;
constexpr size_t kMaxTextBytes = 128;
constexpr size_t kMaxClusterIdBytes = 64;
constexpr size_t kMaxFeatures = 64;
// A bound for the speed of a worker, so that the sum of many workers' speeds in MFLOP/s fits int64.
constexpr double kMaxFlopsPerSecond = 1e18;
constexpr double kMaxKernelCost = 1;  // seconds for one unit
constexpr size_t kMaxFeatureBytes = 64;
// Maximum number of bytes that an error shows of an identity that nobody has checked.
constexpr size_t kMaxIdentityShown = 255;

absl::Status CheckLength(std::string_view text, size_t max_bytes, std::string_view field) {
  if (text.size() <= max_bytes) return absl::OkStatus();
  return rpc::BadField(StrCat("hello.", field), StrCat("has a text of ", text.size(),
                                                       " bytes; it must have at most ", max_bytes));
}

absl::Status CheckCosts(absl::Span<const double> costs) {
  for (const double seconds : costs) {
    // Also refuses a value that is not a number.
    if (seconds >= 0 && seconds <= kMaxKernelCost) continue;
    return rpc::BadField("hello.capacity.kernel_costs",
                         StrCat("has a cost of ", seconds, " s; it must be 0 to ", kMaxKernelCost));
  }
  return absl::OkStatus();
}

absl::Status CheckFields(const WorkerHello& hello) {
  if (hello.incarnation == 0) {
    return rpc::BadField("hello.incarnation", "is 0; it must be random, new at each start");
  }
  if (hello.endpoints.empty() || hello.endpoints.size() > kMaxEndpoints) {
    return rpc::BadField(
        "hello.endpoints",
        StrCat("has ", hello.endpoints.size(), " entries; a worker names 1 to ", kMaxEndpoints));
  }
  if (const auto port = hello.exchange_port; port.has_value() && (*port < 1 || *port > 65'535)) {
    return rpc::BadField("hello.exchange_port",
                         StrCat("is ", *port,
                                "; a port is from 1 to 65535; leave it unset for "
                                "that of the endpoints"));
  }
  if (hello.nonce.size() < 16 || hello.nonce.size() > 64) {
    return rpc::BadField("hello.nonce",
                         StrCat("has ", hello.nonce.size(), " bytes; it must have 16 to 64"));
  }
  if (hello.memory_bytes < 0) {
    return rpc::BadField("hello.capacity.memory_bytes", "is negative");
  }
  if (hello.cache_bytes < 0) {
    return rpc::BadField("hello.capacity.cache_bytes", "is negative");
  }
  // Also refuses a value that is not a number.
  const double flops = hello.kernels.f32_flops_per_second;
  if (!(flops >= 0 && flops <= kMaxFlopsPerSecond)) {
    return rpc::BadField("hello.capacity.f32_flops_per_second",
                         StrCat("is ", flops, "; it must be 0 to ", kMaxFlopsPerSecond));
  }
  SHARDMESH_RETURN_IF_ERROR(CheckCosts(hello.kernels.costs.seconds));
  for (const ProductCosts& costs : hello.kernels.costs.products) {
    SHARDMESH_RETURN_IF_ERROR(CheckCosts(costs));
  }
  SHARDMESH_RETURN_IF_ERROR(CheckLength(hello.cluster_id, kMaxClusterIdBytes, "cluster_id"));
  SHARDMESH_RETURN_IF_ERROR(CheckLength(hello.boot_id, kMaxTextBytes, "boot_id"));
  SHARDMESH_RETURN_IF_ERROR(CheckLength(hello.build_version, kMaxTextBytes, "build.version"));
  SHARDMESH_RETURN_IF_ERROR(CheckLength(hello.build_revision, kMaxTextBytes, "build.revision"));
  for (const std::string& address : hello.endpoints) {
    SHARDMESH_RETURN_IF_ERROR(CheckLength(address, kMaxEndpointBytes, "endpoints"));
  }
  if (hello.features.size() > kMaxFeatures) {
    return rpc::BadField("hello.features", StrCat("has ", hello.features.size(),
                                                  " entries; the limit is ", kMaxFeatures));
  }
  for (const std::string& feature : hello.features) {
    SHARDMESH_RETURN_IF_ERROR(CheckLength(feature, kMaxFeatureBytes, "features"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckHello(const WorkerHello& hello, std::string_view cluster_id, int64_t term) {
  SHARDMESH_RETURN_IF_ERROR(CheckFields(hello));
  if (!rpc::CommonProtocol(hello.min_protocol, hello.max_protocol).has_value()) {
    return WithReason(absl::FailedPreconditionError(StrCat(
                          "worker \"", hello.identity, "\" speaks protocol ", hello.min_protocol,
                          " to ", hello.max_protocol, ", this coordinator ", rpc::kOldestProtocol,
                          " to ", rpc::kNewestProtocol, "; run builds that have one in common")),
                      Reason::kProtocolMismatch,
                      {{fact::kIdentity, hello.identity},
                       {fact::kHave, hello.max_protocol},
                       {fact::kNeed, rpc::kNewestProtocol}});
  }
  if (!hello.cluster_id.empty() && hello.cluster_id != cluster_id) {
    return WithReason(
        absl::FailedPreconditionError(
            StrCat("worker \"", hello.identity, "\" holds data of cluster ", hello.cluster_id,
                   ", this is cluster ", cluster_id,
                   "; if the worker is of another cluster, point it to that cluster's coordinator; "
                   "if it is of this one, the coordinator's state was lost: restore a snapshot of "
                   "it; to use the worker here without its data, give it an empty data folder")),
        Reason::kClusterMismatch,
        {{fact::kIdentity, hello.identity},
         {fact::kHave, hello.cluster_id},
         {fact::kNeed, cluster_id}});
  }
  if (!hello.data_identity.empty() && hello.data_identity != hello.identity) {
    return WithReason(
        absl::FailedPreconditionError(StrCat(
            "the data folder of worker \"", hello.identity, "\" holds the tiles of worker \"",
            absl::CHexEscape(hello.data_identity.substr(0, kMaxIdentityShown)),
            "\"; start it with its own folder, or with --identity "
            "of the folder's worker; to give a "
            "folder away for good, remove its contents")),
        Reason::kIdentityMismatch,
        {{fact::kHave, hello.data_identity}, {fact::kNeed, hello.identity}});
  }
  if (hello.term > term) {
    return WithReason(absl::AbortedError(StrCat(
                          "worker \"", hello.identity, "\" knows term ", hello.term,
                          ", this coordinator has term ", term,
                          "; a newer coordinator leads, or this one runs on an older copy of "
                          "its data folder; put such a copy back with --restore")),
                      Reason::kStaleTerm, {{fact::kHave, term}, {fact::kNeed, hello.term}});
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::server
