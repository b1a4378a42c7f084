// Drops arrays from workers' quarantines, and arrays that are held without a name.
#include "server/quarantine/quarantine_drop.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "process/log.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "server/quarantine/order_queue.h"
#include "server/state/array_view_codec.h"
#include "sharding/tile.h"
#include "shardmesh/internal/v1/attach_service.pb.h"

namespace shardmesh::server {
namespace quarantine {
namespace {

constexpr int kMaxIds = 1'000;

// The response has at most so many bytes of parts of arrays without names. Otherwise 1,000 arrays
// on thousands of workers could make it larger than a message may be, after they are deleted.
constexpr int64_t kMaxUnnamedBytes = int64_t{512} << 10;

// Adds the parts of an array that is held without a name to the response, by worker, until it has
// kMaxUnnamedBytes of such parts.
void AddParts(const UnnamedArray& unnamed, const MembershipView& view, Drop* drop) {
  const ArrayDescriptor& descriptor = unnamed.descriptor;
  const MeshRanks* const ranks = view.FindMesh(descriptor.mesh_id);
  const absl::StatusOr<Tiling> tiling = descriptor.Tiling();
  if (ranks == nullptr || !tiling.ok()) return;
  std::map<std::string_view, v1::QuarantinedArray*> parts;
  for (int64_t rank = 0; rank < std::min(descriptor.mesh.size(), std::ssize(ranks->identities));
       ++rank) {
    if (std::binary_search(unnamed.missing_ranks.begin(), unnamed.missing_ranks.end(), rank)) {
      continue;
    }
    const std::string& identity = ranks->identities[static_cast<size_t>(rank)];
    v1::QuarantinedArray*& part = parts[identity];
    if (drop->unnamed_bytes >= kMaxUnnamedBytes) return;
    if (part == nullptr) {
      part = drop->response->add_arrays();
      part->set_identity(identity);
      rpc::Encode(descriptor, part->mutable_array());
      part->set_reason("it was held without a name");
      rpc::Encode(drop->context.clock->Now(), part->mutable_quarantine_time());
      part->set_committed(true);
      part->set_durability(server::Encode(unnamed.durability));
      drop->unnamed_bytes += static_cast<int64_t>(part->ByteSizeLong());
    }
    v1::QuarantinedTile* const tile = part->add_tiles();
    const Tile held = tiling->TileOf(static_cast<DeviceId>(rank));
    rpc::Encode(held, tile->mutable_tile());
    tile->set_size_bytes(descriptor.TileSizeBytes(held).value_or(0));
    drop->unnamed_bytes += static_cast<int64_t>(tile->ByteSizeLong());
  }
}

void EndDrop(const DropPtr& drop, const absl::Status& status) {
  if (!drop->dropped.empty()) {
    LogInfo("arrays were dropped from quarantine, as a client asked",
            {{"parts", drop->dropped.size()}, {"of", drop->listed.size()}});
  }
  if (!drop->released.empty()) {
    LogInfo("arrays without a name were released, as a client asked",
            {{"arrays", drop->released.size()}});
  }
  if (!status.ok()) {
    drop->response->Clear();
    return std::move(drop->done)(status);
  }
  for (const auto& [identity, worker] : drop->unreached) {
    Encode(identity, worker, drop->response->add_unreached());
  }
  std::move(drop->done)(absl::OkStatus());
}

void DropListed(const DropPtr& drop) {
  std::map<std::string, std::vector<std::string>> ids;  // by worker
  for (const auto& [part, mesh_id] : drop->listed) ids[part.identity].push_back(part.array_id);
  std::deque<Orders::Order> orders;
  for (const auto& [identity, its_ids] : ids) {
    orders.push_back(OrderOf(identity, Action::ACTION_DROP, its_ids));
  }
  Orders::Run(
      drop->context.clock, drop->hub, std::move(orders), drop->stop,
      [drop](const std::string& identity, internal::v1::QuarantineAnswer answer) {
        drop->answered.insert(identity);
        // The worker has dropped its tiles. If the worker was listed as unreached, it has attached
        // since.
        if (!answer.has_error() && drop->failed.count(identity) == 0) {
          drop->unreached.erase(identity);
        }
        for (v1::QuarantinedArray& array : *answer.mutable_arrays()) {
          drop->dropped.insert({identity, array.array().array_id()});
          *drop->response->add_arrays() = std::move(array);
        }
        return true;
      },
      [drop](const absl::Status& status) {
        if (absl::IsCancelled(status)) return EndDrop(drop, status);
        if (!status.ok()) return EndDrop(drop, DescribeDrop(*drop, status));
        EndDrop(drop, drop->dropped.empty() && !drop->failed.empty() ? AllFailed(*drop) : status);
      },
      [drop](const std::string& identity, const absl::Status& why) {
        return GoOnWithout(identity, why, drop.get());
      });
}

void ListForDrop(const DropPtr& drop);

// Asks the workers that attached since the last round. If there are none, checks the drop and then
// drops the tiles.
void ListUnasked(const DropPtr& drop) {
  const std::shared_ptr<const MembershipView> view = drop->context.membership->view();
  for (const std::string& identity : TakeUnasked(*view, &drop->asked)) {
    const auto is_its = [&](const auto& each) { return each.first.identity == identity; };
    std::erase_if(drop->listed, is_its);
    std::erase_if(drop->described, is_its);
    drop->failed.erase(identity);
    drop->unreached.erase(identity);
    drop->unlisted[identity] = "";
  }
  if (!drop->unlisted.empty()) return ListForDrop(drop);
  if (const absl::Status checked = CheckDrop(*view, drop.get()); !checked.ok()) {
    return EndDrop(drop, checked);
  }
  if (drop->request->validate_only()) {
    for (const UnnamedArray& unnamed : drop->unnamed) {
      AddParts(unnamed, *view, drop.get());
    }
    for (auto& [part, array] : drop->described) {
      *drop->response->add_arrays() = std::move(array);
    }
    return EndDrop(drop, absl::OkStatus());
  }
  for (const UnnamedArray& unnamed : drop->unnamed) {
    const std::string& array_id = unnamed.descriptor.array_id;
    if (!drop->context.registry->ReleaseUnnamed(array_id)) {
      return EndDrop(drop, DescribeDrop(*drop, InUse(*drop, array_id)));
    }
    drop->released.push_back(array_id);
    AddParts(unnamed, *view, drop.get());
  }
  DropListed(drop);
}

// Asks each worker with an incomplete list for the next page of its list, until all lists are
// complete.
void ListForDrop(const DropPtr& drop) {
  const std::vector<std::string> ids(drop->request->array_ids().begin(),
                                     drop->request->array_ids().end());
  std::deque<Orders::Order> orders;
  for (const auto& [identity, start_after] : std::exchange(drop->unlisted, {})) {
    Orders::Order& order = orders.emplace_back(OrderOf(identity, Action::ACTION_LIST, ids));
    order.order.set_start_after(start_after);
  }
  Orders::Run(
      drop->context.clock, drop->hub, std::move(orders), drop->stop,
      [drop](const std::string& identity, const internal::v1::QuarantineAnswer& answer) {
        for (const v1::QuarantinedArray& array : answer.arrays()) {
          const Part part{identity, array.array().array_id()};
          drop->listed[part] = array.array().mesh_id();
          if (drop->request->validate_only()) drop->described[part] = array;
        }
        if (answer.has_more() && answer.arrays_size() > 0) {
          drop->unlisted[identity] = answer.arrays(answer.arrays_size() - 1).array().array_id();
        }
        return true;
      },
      [drop](const absl::Status& status) {
        if (!status.ok()) return EndDrop(drop, status);
        if (!drop->unlisted.empty()) return ListForDrop(drop);
        ListUnasked(drop);
      },
      [drop](const std::string& identity, const absl::Status& why) {
        return GoOnWithout(identity, why, drop.get());
      });
}

}  // namespace
}  // namespace quarantine

void DropQuarantined(const CoordinatorParts& context, QuarantineAccess* hub,
                     const v1::DropQuarantinedRequest* request,
                     v1::DropQuarantinedResponse* response, const QuarantineStopPtr& stop,
                     QuarantineDone done) {
  using namespace quarantine;  // NOLINT(google-build-using-namespace)
  if (request->array_ids_size() < 1 || request->array_ids_size() > kMaxIds) {
    return std::move(done)(rpc::BadField(
        "array_ids", StrCat("has ", request->array_ids_size(), " ids; name 1 to ", kMaxIds)));
  }
  for (const std::string& id : request->array_ids()) {
    if (const absl::Status valid = CheckArrayId(id, "array_ids"); !valid.ok()) {
      return std::move(done)(valid);
    }
  }
  const auto drop = std::make_shared<Drop>(Drop{.context = context,
                                                .hub = hub,
                                                .request = request,
                                                .response = response,
                                                .stop = stop,
                                                .done = std::move(done)});
  ListUnasked(drop);
}

}  // namespace shardmesh::server
