// Tensors to tiles to streams, and back: the bytes of puts and gets, between this process and the
// workers.
#ifndef SHARDMESH_CLIENT_REMOTE_TRANSFER_H_
#define SHARDMESH_CLIENT_REMOTE_TRANSFER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/types/array.h"
#include "client/types/cancellation.h"
#include "process/steady_deadline.h"
#include "rpc/tls/credentials.h"
#include "tensor/array_descriptor.h"
#include "tensor/view.h"

namespace shardmesh::client {

// A rank of the mesh, and the worker that serves it.
struct TransferDevice {
  int32_t rank = 0;
  std::string identity;
  uint64_t incarnation = 0;
  std::vector<std::string> addresses;  // best first
};

// A tensor on its way out: the array that it becomes, what opens it on the workers, its elements.
struct UploadTensor {
  const ArrayDescriptor* array;
  std::string_view token;
  TensorView view;  // of the array's dtype and shape
};

struct TransferOptions {
  rpc::Credentials credentials = rpc::Credentials::Insecure();
  rpc::SteadyDeadline deadline = rpc::SteadyDeadline::After(absl::InfiniteDuration());
  // See PutOptions::progress.
  ProgressCallback progress = nullptr;
};

// Hands every device its tile of every tensor: one stream and one thread a worker, none waiting for
// another. Returns the bytes sent. At the first failure, or when `cancellation` is cancelled, all
// streams end; the error is that of the stream that failed first and names rank and identity of its
// worker. Holds a few MiB for each worker, whatever the tensors' size.
//
// The devices are those of every rank of the tensors' one mesh: INTERNAL otherwise.
absl::StatusOr<int64_t> Upload(absl::Span<const TransferDevice> devices,
                               absl::Span<const UploadTensor> tensors, Cancellation* cancellation,
                               const TransferOptions& options);

// Fills `into`, of the array's dtype and shape, from the workers: each distinct tile comes from one
// device that holds it, the load spread over all; when a worker is lost meanwhile, another holder
// takes its place. Every checksum is checked. `token` opens the array on the workers.
//
// Errors: FAILED_PRECONDITION (ARRAY_DEGRADED), naming the tile, if no device is left that holds
// it; FAILED_PRECONDITION for an array of partial sums; otherwise as a stream's. `into` is then
// partly filled.
absl::Status Download(const ArrayDescriptor& array, std::string_view token,
                      absl::Span<const TransferDevice> devices, const MutableTensorView& into,
                      const TransferOptions& options);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_TRANSFER_H_
