// Encodes and sends the orders, one for each worker.
#include "server/reshard/array_fill.h"

#include "rpc/codec/array_codec.h"
#include "server/steps/fill_codec.h"
#include "status/status_macros.h"

namespace shardmesh::server {

absl::Status CheckCanFill(const FillTransport& transport, absl::Span<const std::string> workers) {
  for (const std::string& worker : workers) {
    SHARDMESH_RETURN_IF_ERROR(transport.CheckCanFill(worker));
  }
  return absl::OkStatus();
}

absl::Status SendArrayFill(const ArrayFill& fill, FillTransport* transport) {
  const std::string source = rpc::ArrayDescriptorBytes(*fill.source);
  const std::string target = rpc::ArrayDescriptorBytes(*fill.target);
  const std::string token = SignFillToken(fill, source);
  const internal::v1::FillDevices devices =
      EncodeFillDevices(fill.sources, fill.source_workers, fill.target_workers);
  SharedFill orders(fill.transfer_id, fill.term, &devices);
  orders.AddFromArray(target, source, token);
  orders.UnloadFirst(fill.unloaded_array_ids);
  for (size_t rank = 0; rank < fill.target_workers.size(); ++rank) {
    SHARDMESH_RETURN_IF_ERROR(
        orders.SendTo(fill.target_workers[rank], static_cast<int64_t>(rank), transport));
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::server
