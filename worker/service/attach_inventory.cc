// Sends the inventory in pages, and applies the coordinator's decisions to the store's tiles.
#include "worker/service/attach_inventory.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "process/log.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "sharding/tile.h"
#include "status/status_macros.h"
#include "worker/service/attach_message_codec.h"

namespace shardmesh::worker {
namespace {

constexpr int64_t kInventoryPageTiles = 256;
// Bytes that a short text field takes in a message besides its text.
constexpr int64_t kFieldBytes = 2;
// A list of quarantined arrays ends after the array with which the encoded answer exceeds this
// limit.
constexpr size_t kMaxAnswerBytes = size_t{1} << 20;

internal::v1::QuarantineAnswer ListAnswer(const internal::v1::QuarantineOrder& order,
                                          const std::vector<std::string>& ids,
                                          const std::string& identity, const ShardStore& store) {
  internal::v1::QuarantineAnswer answer;
  answer.set_order_id(order.order_id());
  const auto most = static_cast<size_t>(std::clamp(order.max_arrays(), 1, 1000));
  const std::vector<QuarantinedArray> found =
      store.ListQuarantine(ids, order.start_after(), static_cast<int64_t>(most) + 1);
  answer.set_has_more(found.size() > most);
  for (size_t i = 0; i < std::min(most, found.size()); ++i) {
    *answer.add_arrays() = Encode(found[i], identity);
    if (answer.ByteSizeLong() > kMaxAnswerBytes && i + 1 < found.size()) {
      answer.set_has_more(true);
      break;
    }
  }
  return answer;
}

}  // namespace

void SendInventory(ShardStore& store, AttachSink& stream) {
  // The coordinator counts tiles that are not in the inventory as dropped. Therefore wait until the
  // files of dropped tiles are gone.
  store.AwaitFiles();
  internal::v1::AttachRequest request;
  int64_t size_bytes = 0;
  const auto send = [&](bool last) {
    request.mutable_inventory()->set_last(last);
    stream.Send(std::exchange(request, {}));
    size_bytes = 0;
  };
  std::string first_array_id;
  do {
    const ShardStore::InventoryPage page = store.ListInventory(first_array_id, kInventoryPageTiles);
    for (const ShardStore::HeldTile& tile : page.tiles) {
      internal::v1::HeldTile encoded = Encode(tile);
      size_bytes += static_cast<int64_t>(encoded.ByteSizeLong());
      *request.mutable_inventory()->add_tiles() = std::move(encoded);
      if (size_bytes >= kInventoryMessageBytes) {
        send(/*last=*/false);
      }
    }
    first_array_id = page.next_array_id;
  } while (!first_array_id.empty());
  std::string last_aside;
  for (;;) {
    const std::vector<QuarantinedArray> aside =
        store.ListQuarantine({}, last_aside, kInventoryPageTiles);
    if (aside.empty()) break;
    for (const QuarantinedArray& array : aside) {
      request.mutable_inventory()->add_quarantined_array_ids(array.array_id);
      size_bytes += std::ssize(array.array_id) + kFieldBytes;
      if (size_bytes >= kInventoryMessageBytes) {
        send(/*last=*/false);
      }
    }
    last_aside = aside.back().array_id;
  }
  send(/*last=*/true);
}

absl::Status ApplyVerdict(const internal::v1::InventoryVerdict& verdict, ShardStore& store,
                          const Clock& clock) {
  for (const std::string& array_id : verdict.commit_array_ids()) {
    // Commit each array by itself. If an array of the inventory is missing now, the other arrays
    // are still committed.
    if (const absl::Status committed = store.Commit({array_id});
        !committed.ok() && !absl::IsNotFound(committed)) {
      return committed;
    }
  }
  const std::vector<std::string> live(verdict.live_array_ids().begin(),
                                      verdict.live_array_ids().end());
  store.SetLive(live, true, clock.Now());
  const std::vector<std::string> unknown_ids(verdict.unknown_array_ids().begin(),
                                             verdict.unknown_array_ids().end());
  store.SetLive(unknown_ids, false, clock.Now());
  std::vector<ShardStore::Unknown> unknown;
  for (const internal::v1::QuarantineTile& each : verdict.quarantine_tiles()) {
    SHARDMESH_ASSIGN_OR_RETURN(Tile tile, rpc::Decode(each.tile()));
    unknown.push_back({.array_id = each.array_id(),
                       .tile = std::move(tile),
                       .reason = each.reason(),
                       .array_lives = each.array_lives()});
  }
  const int64_t quarantined = store.Quarantine(unknown, clock.Now());
  if (quarantined > 0) {
    const internal::v1::QuarantineTile& first = verdict.quarantine_tiles(0);
    LogWarning(
        "moved tiles into quarantine; `shardmesh admin quarantine list` shows them",
        {{"tiles", quarantined}, {"first_array", first.array_id()}, {"reason", first.reason()}});
  }
  return absl::OkStatus();
}

internal::v1::QuarantineAnswer CarryOut(
    const internal::v1::QuarantineOrder& order, const std::string& identity, ShardStore& store,
    const std::function<void(const std::string& array_id)>& restored) {
  const std::vector<std::string> ids(order.array_ids().begin(), order.array_ids().end());
  if (order.action() == internal::v1::QuarantineOrder::ACTION_LIST) {
    return ListAnswer(order, ids, identity, store);
  }
  internal::v1::QuarantineAnswer answer;
  answer.set_order_id(order.order_id());
  for (const std::string& id : ids) {
    const bool restores = order.action() == internal::v1::QuarantineOrder::ACTION_RESTORE;
    const absl::StatusOr<QuarantinedArray> done =
        restores ? store.RestoreQuarantined(id) : store.DropQuarantined(id);
    if (done.ok()) {
      LogInfo(restores ? "restored an array from the quarantine, as the coordinator asked"
                       : "dropped an array from the quarantine, as the coordinator asked",
              {{"array", id}, {"size_bytes", done->size_bytes()}});
      *answer.add_arrays() = Encode(*done, identity);
      // Report the array also in a separate message: the client that asked may no longer wait for
      // the answer.
      if (restores) restored(id);
    } else if (!absl::IsNotFound(done.status())) {
      rpc::Encode(done.status(), answer.mutable_error());
      break;
    }
  }
  return answer;
}

}  // namespace shardmesh::worker
