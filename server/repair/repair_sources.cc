// A tile comes whole from one holder, so that an error or a wrong checksum belongs to that holder.
#include "server/repair/repair_sources.h"

#include <algorithm>
#include <string_view>

#include "rpc/codec/array_codec.h"
#include "rpc/transfer_token.h"
#include "server/steps/fill_codec.h"
#include "sharding/tile.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/view.h"

namespace shardmesh::server {

namespace {

// Adds the workers of `array` with the tile `tile`, except that of the rank `rank` in the array
// that is repaired (`twin` is null then).
void AddHolders(const Array& array, const Tiling& tiling, const Tile& tile, int64_t rank,
                absl::Span<const RankEndpoint> live, const ArrayPtr& twin,
                std::vector<RepairSource>* sources) {
  const std::vector<int64_t>& missing = array.missing_ranks;
  // Begin after the rank itself, so that the lost ranks of one group turn to different holders. The
  // twin's own tile of the rank is on another host.
  const auto begin = std::find_if(live.begin(), live.end(), [&](const RankEndpoint& each) {
    return twin != nullptr ? each.rank >= rank : each.rank > rank;
  });
  const size_t limit = sources->size() + kMaxRepairHolders;
  const auto add = [&](const RankEndpoint& worker) {
    if ((twin == nullptr && worker.rank == rank) || worker.rank >= tiling.mesh().size() ||
        sources->size() >= limit ||
        std::binary_search(missing.begin(), missing.end(), worker.rank) ||
        tiling.TileOf(worker.rank) != tile) {
      return;
    }
    const std::string_view what =
        twin != nullptr ? "the second replica of rank " : "the replica on rank ";
    sources->push_back({.holder = worker,
                        .twin = twin,
                        .title = StrCat(what, worker.rank, " (", worker.identity, ")")});
  };
  std::for_each(begin, live.end(), add);
  std::for_each(live.begin(), begin, add);
}

}  // namespace

absl::StatusOr<std::vector<RepairSource>> RepairSourcesOf(const Array& array, int64_t rank,
                                                          absl::Span<const RankEndpoint> live,
                                                          const RepairTwin& twin) {
  const ArrayDescriptor& descriptor = array.definition.descriptor;
  std::vector<RepairSource> sources;
  // State goes on at each step: nothing has the content that the lost tile would have now.
  if (!descriptor.spec.unreduced().empty() || array.definition.is_state) return sources;
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, descriptor.Tiling());
  const Tile tile = tiling.TileOf(rank);
  if (twin.array != nullptr) {
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling copied, twin.array->definition.descriptor.Tiling());
    AddHolders(*twin.array, copied, tile, rank, twin.live, twin.array, &sources);
  }
  AddHolders(array, tiling, tile, rank, live, nullptr, &sources);
  // Workers read no tiles from files that begin or end within a byte of the tensor.
  if (!TileRegion::Create(descriptor.dtype, descriptor.shape, tile).ok()) return sources;
  const bool is_companion = twin.array != nullptr && !array.definition.replica_of.empty();
  const Array& loaded = is_companion ? *twin.array : array;
  if (const ArraySource& source = loaded.definition.source; source.file != nullptr) {
    sources.push_back({.file = source, .title = StrCat("the file ", source.file->path)});
  }
  if (loaded.checkpoint.file != nullptr) {
    sources.push_back({.file = loaded.checkpoint,
                       .title = StrCat("the checkpoint ", loaded.checkpoint.file->path)});
  }
  return sources;
}

absl::Status SendRepair(const RepairOrder& order, FillTransport* transport) {
  const std::string array = rpc::ArrayDescriptorBytes(order.array->definition.descriptor);
  const std::string& worker = order.workers[static_cast<size_t>(order.rank)];
  absl::Status sent;
  const auto send = [&](std::string_view message) {
    sent.Update(transport->SendFill(worker, message));
  };
  if (!order.source->holder.has_value()) {
    FillEncoder encoder(order.transfer_id, order.term, nullptr, send);
    encoder.AddFromFile(array, order.rank, order.source->file.file.get(),
                        order.source->file.offset_bytes, order.source->file.conversion);
    encoder.Flush();
    return sent;
  }
  // Without a twin, the array is its own source: the worker finds that it lacks its tile, and turns
  // to the holder.
  const ArrayPtr& twin = order.source->twin;
  const std::string source =
      twin == nullptr ? array : rpc::ArrayDescriptorBytes(twin->definition.descriptor);
  const std::string token = rpc::SignToken({.direction = rpc::TransferDirection::kGet,
                                            .transfer_id = "",
                                            .session_id = "",
                                            .array_descriptor = source,
                                            .term = order.term,
                                            .expire_time = order.expire_time},
                                           order.token_key);
  const auto devices = EncodeFillDevices(
      {*order.source->holder}, twin == nullptr ? order.workers : order.twin_workers, order.workers);
  FillEncoder encoder(order.transfer_id, order.term, &devices, send);
  encoder.AddFromArray(array, order.rank, source, token);
  encoder.Flush();
  return sent;
}

}  // namespace shardmesh::server
