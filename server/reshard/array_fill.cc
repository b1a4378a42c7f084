// Encodes and sends the orders, one for each worker.
#include "server/reshard/array_fill.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "rpc/codec/array_codec.h"
#include "server/steps/fill_codec.h"
#include "sharding/tile.h"
#include "status/status_macros.h"

namespace shardmesh::server {

absl::Status CheckCanFill(const FillTransport& transport, absl::Span<const std::string> workers) {
  for (const std::string& worker : workers) {
    SHARDMESH_RETURN_IF_ERROR(transport.CheckCanFill(worker));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RankEndpoint>> SourcesOfMissing(const ArrayDescriptor& array,
                                                           absl::Span<const RankEndpoint> sources,
                                                           absl::Span<const RankEndpoint> second) {
  std::vector<RankEndpoint> wanted;
  const int64_t size = array.mesh.size();
  if (std::ssize(sources) == size) return wanted;
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, array.Tiling());
  std::vector<bool> have(static_cast<size_t>(tiling.DistinctTileCount()), false);
  for (const RankEndpoint& source : sources) {
    if (source.rank < size) have[static_cast<size_t>(tiling.TileNumberOf(source.rank))] = true;
  }
  std::copy_if(
      second.begin(), second.end(), std::back_inserter(wanted), [&](const RankEndpoint& each) {
        return each.rank < size && !have[static_cast<size_t>(tiling.TileNumberOf(each.rank))];
      });
  return wanted;
}

absl::Status SendArrayFill(const ArrayFill& fill, FillTransport* transport) {
  const std::string source = rpc::ArrayDescriptorBytes(*fill.source);
  const std::string target = rpc::ArrayDescriptorBytes(*fill.target);
  internal::v1::FillDevices devices =
      EncodeFillDevices(fill.sources, fill.source_workers, fill.target_workers);
  SecondSource second;
  std::string second_token;
  if (!fill.second_sources.empty()) {
    const ArrayDescriptor& companion = fill.second->definition.descriptor;
    AddSecondSources(fill.second_sources, &devices);
    second_token = SignFillToken(fill, rpc::ArrayDescriptorBytes(companion));
    second = {.array_id = companion.array_id, .token = second_token};
  }
  SharedFill orders(fill.transfer_id, fill.term, &devices);
  orders.AddFromArray(target, source, SignFillToken(fill, source), second);
  orders.UnloadFirst(fill.unloaded_array_ids);
  orders.LimitMemory(fill.move_memory_bytes);
  for (size_t rank = 0; rank < fill.target_workers.size(); ++rank) {
    SHARDMESH_RETURN_IF_ERROR(
        orders.SendTo(fill.target_workers[rank], static_cast<int64_t>(rank), transport));
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::server
