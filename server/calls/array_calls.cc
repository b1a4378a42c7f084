// Answers clients' questions about arrays.
#include "server/calls/array_calls.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "google/protobuf/repeated_ptr_field.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "rpc/transfer_token.h"
#include "server/codec/put_codec.h"
#include "server/resolve/resolve_answers.h"
#include "server/state/array_selection.h"
#include "server/state/array_view_codec.h"
#include "server/state/session_pins.h"
#include "sharding/tile.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Longest validity of a transfer token to read an array. A worker checks the token only when the
// client opens a stream, so open streams go on after the token has expired. A client that needs
// more time starts the read again.
constexpr absl::Duration kGetTimeout = absl::Minutes(5);
// A page of arrays is full once it has this many bytes. The page then stays below a message's limit
// even with its last array.
constexpr int64_t kListBytes = int64_t{1} << 20;
// The maximum number of ranks whose workers a description of an array has.
constexpr int64_t kMaxDescribedRanks = 1'000;
// The first byte of a page token. After kNamedPage, the last name on the page follows. After
// kNamelessPage, the id of the last array follows, which has no name.
constexpr char kNamedPage = 'n';
constexpr char kNamelessPage = 'i';

// A page of arrays that is being filled.
class Page {
 public:
  Page(int64_t max_arrays, const Recovery& recovery, v1::ListArraysResponse* response)
      : max_arrays_(max_arrays), recovery_(recovery), response_(response) {}

  bool is_full() const {
    return response_->arrays_size() >= max_arrays_ || size_bytes_ >= kListBytes;
  }
  void Add(const Array& array, const NameEntry* name) {
    v1::Array* const added = response_->add_arrays();
    Encode(array, name, added);
    EncodeRepair(array, recovery_, added);
    size_bytes_ += static_cast<int64_t>(added->ByteSizeLong());
  }
  const std::string& last_name() const { return response_->arrays().rbegin()->name(); }
  absl::Status End(char kind, const std::string& start_after) {
    response_->set_next_page_token(StrCat(std::string(1, kind), start_after));
    return absl::OkStatus();
  }

 private:
  const int64_t max_arrays_;
  const Recovery& recovery_;
  v1::ListArraysResponse* const response_;
  int64_t size_bytes_ = 0;
};

absl::StatusOr<SelectedArray> Find(const CoordinatorParts& context,
                                   const v1::ArraySelector& selector) {
  SHARDMESH_ASSIGN_OR_RETURN(const ArrayReference reference, Decode(selector));
  return Select(*context.registry, reference, *context.recovery);
}

bool Lacks(const Array& array, int64_t rank) {
  return std::binary_search(array.missing_ranks.begin(), array.missing_ranks.end(), rank);
}

// Returns the array with every rank marked missing that is not among `endpoints`, the reachable
// ranks. The registry may not know yet that the workers of such ranks are lost.
ArrayPtr WithoutAway(const Array& known, const std::vector<RankEndpoint>& endpoints) {
  Array array = known;
  std::set<int64_t> missing;
  for (int64_t rank = 0; rank < array.definition.descriptor.mesh.size(); ++rank) {
    missing.insert(rank);
  }
  for (const RankEndpoint& endpoint : endpoints) {
    if (!Lacks(known, endpoint.rank)) missing.erase(endpoint.rank);
  }
  array.missing_ranks.assign(missing.begin(), missing.end());
  return std::make_shared<const Array>(std::move(array));
}

// Returns the array with only those ranks marked missing that `copy` misses too. Rank by rank, both
// have the same tiles.
ArrayPtr WithCopy(const Array& known, const Array& copy) {
  Array array = known;
  std::erase_if(array.missing_ranks, [&](int64_t rank) { return !Lacks(copy, rank); });
  return std::make_shared<const Array>(std::move(array));
}

// The second copy of an array, and the live workers of its mesh by rank.
struct ReadableCopy {
  ArrayPtr array = nullptr;  // ranks without a live worker are missing; null: there is no copy
  std::vector<RankEndpoint> endpoints = {};
};

// The copy lives as long as the array `array_id`, so a pin of that array holds both.
ReadableCopy FindSecondCopy(const CoordinatorParts& context, const std::string& array_id) {
  const ArrayPtr twin = context.registry->FindTwin(array_id);
  // The array that a companion copies may be released before the companion.
  if (twin == nullptr || twin->definition.replica_of != array_id) return {};
  auto endpoints = context.hub->Endpoints(twin->definition.descriptor.mesh_id);
  if (!endpoints.ok()) return {};  // the mesh of the copies is going
  return {.array = WithoutAway(*twin, *endpoints), .endpoints = *std::move(endpoints)};
}

// Whether the worker's heartbeat is so late that the worker may hang.
bool MayHang(const CoordinatorParts& context, const MembershipView& view,
             const std::string& identity) {
  constexpr int kLateIntervals = 2;
  const WorkerStatus* const worker = view.FindWorker(identity);
  const absl::Duration limit = kLateIntervals * context.membership->options().heartbeat_interval;
  return worker != nullptr && context.clock->Now() - worker->last_heartbeat() > limit;
}

// Returns the array with those ranks marked missing whose workers may hang, if the worker that has
// the rank's tile in `copy` does not. Clients then read these tiles from the copy, and need not
// find out by themselves.
ArrayPtr WithoutHanging(const CoordinatorParts& context, const ArrayPtr& known,
                        const std::vector<RankEndpoint>& endpoints, const ReadableCopy& copy) {
  const std::shared_ptr<const MembershipView> view = context.membership->view();
  std::set<int64_t> hanging;
  for (const RankEndpoint& endpoint : endpoints) {
    if (!Lacks(*known, endpoint.rank) && MayHang(context, *view, endpoint.identity)) {
      hanging.insert(endpoint.rank);
    }
  }
  if (hanging.empty()) return known;
  Array array = *known;
  for (const RankEndpoint& endpoint : copy.endpoints) {
    if (!hanging.contains(endpoint.rank) || Lacks(*copy.array, endpoint.rank)) continue;
    if (!MayHang(context, *view, endpoint.identity)) array.missing_ranks.push_back(endpoint.rank);
  }
  std::sort(array.missing_ranks.begin(), array.missing_ranks.end());
  return std::make_shared<const Array>(std::move(array));
}

// The tiles to read.
struct ReadTiles {
  bool is_slice = false;
  std::vector<OwnedTile> tiles = {};  // of a slice; each with the ranks that have it in some copy
  std::set<int64_t> holders = {};     // the ranks of `tiles`
};

// Adds the worker of each rank of the array, also of those that lack their tile.
void EncodeRanks(const Array& array, const MembershipView& view,
                 google::protobuf::RepeatedPtrField<v1::TileHolder>* holders) {
  const ArrayDescriptor& descriptor = array.definition.descriptor;
  const MeshRanks* const ranks = view.FindMesh(descriptor.mesh_id);
  const int64_t end = std::min(descriptor.mesh.size(), kMaxDescribedRanks);
  for (int64_t rank = 0; rank < end; ++rank) {
    v1::TileHolder* const holder = holders->Add();
    holder->set_rank(static_cast<int32_t>(rank));
    if (ranks != nullptr && rank < std::ssize(ranks->identities)) {
      holder->set_identity(ranks->identities[static_cast<size_t>(rank)]);
    }
    holder->set_present(!Lacks(array, rank));
  }
}

// Adds the workers that have tiles of `array`, which may be the second copy.
void EncodeHolders(const Array& array, const std::vector<RankEndpoint>& endpoints,
                   const ReadTiles& read,
                   google::protobuf::RepeatedPtrField<v1::DeviceEndpoint>* devices) {
  for (const RankEndpoint& endpoint : endpoints) {
    if (Lacks(array, endpoint.rank)) continue;
    if (read.is_slice && !read.holders.contains(endpoint.rank)) continue;
    Encode(endpoint, devices->Add());
  }
}

}  // namespace

absl::Status DescribeArray(const CoordinatorParts& context, const v1::DescribeArrayRequest& request,
                           v1::DescribeArrayResponse* response) {
  SHARDMESH_ASSIGN_OR_RETURN(const SelectedArray selected, Find(context, request.array()));
  Encode(*selected.array, &selected.name, response->mutable_array());
  EncodeRepair(*selected.array, *context.recovery, response->mutable_array());
  if (!request.include_holders()) return absl::OkStatus();
  const std::shared_ptr<const MembershipView> view = context.membership->view();
  const std::string& array_id = selected.array->definition.descriptor.array_id;
  EncodeRanks(*selected.array, *view, response->mutable_holders());
  // For a companion, the twin is the array that it copies.
  const ArrayPtr twin = context.registry->FindTwin(array_id);
  if (twin != nullptr && twin->definition.replica_of == array_id) {
    EncodeRanks(*twin, *view, response->mutable_second_holders());
  }
  return absl::OkStatus();
}

absl::Status ListArrays(const CoordinatorParts& context, const v1::ListArraysRequest& request,
                        v1::ListArraysResponse* response) {
  const absl::StatusOr<int64_t> page_size = rpc::CheckPageSize(request.page_size(), "page_size");
  if (!page_size.ok()) {
    return page_size.status();
  }
  if (request.include_unnamed() && !request.prefix().empty()) {
    return rpc::BadField("include_unnamed",
                         "is set together with a prefix, but an array without a name matches no "
                         "prefix; leave one out");
  }
  response->set_revision(context.definition_store->settled_revision());
  const std::string& token = request.page_token();
  if (!token.empty() && token.front() != kNamedPage &&
      (token.front() != kNamelessPage || !request.include_unnamed())) {
    return rpc::BadField("page_token", "is not of a page of this list; begin anew without it");
  }
  const std::string_view start_after = std::string_view(token).substr(token.empty() ? 0 : 1);
  Page page(*page_size, *context.recovery, response);
  if (token.empty() || token.front() == kNamedPage) {
    for (const ArrayRegistry::NamedArray& each :
         context.registry->ListNames(request.prefix(), start_after, *page_size + 1)) {
      if (page.is_full()) {
        return page.End(kNamedPage, page.last_name());
      }
      page.Add(*each.array, &each.name);
    }
  }
  if (!request.include_unnamed()) {
    return absl::OkStatus();
  }
  std::string last(token.empty() || token.front() == kNamedPage ? "" : start_after);
  if (page.is_full()) {
    return page.End(kNamelessPage, last);
  }
  const ArrayRegistry::Nameless nameless =
      context.registry->ListNameless(last, *page_size - response->arrays_size());
  for (const ArrayPtr& array : nameless.arrays) {
    if (page.is_full()) {
      return page.End(kNamelessPage, last);
    }
    last = array->definition.descriptor.array_id;
    page.Add(*array, nullptr);
  }
  return nameless.next_start_after.empty() ? absl::OkStatus()
                                           : page.End(kNamelessPage, nameless.next_start_after);
}

absl::Status TryBeginGet(const CoordinatorParts& context, const v1::BeginGetRequest& request,
                         v1::BeginGetResponse* response) {
  SHARDMESH_ASSIGN_OR_RETURN(const SelectedArray selected, Find(context, request.array()));
  const ArrayDescriptor& descriptor = selected.array->definition.descriptor;
  Tile part = Tile::Whole(descriptor.shape);
  if (request.has_slice()) {
    auto slice = rpc::Decode(request.slice());
    if (!slice.ok()) {
      return rpc::WithField(slice.status(), "slice");
    }
    if (const absl::Status within = CheckSlice(*slice, descriptor); !within.ok()) {
      return rpc::WithField(within, "slice");
    }
    part = *std::move(slice);
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<RankEndpoint> endpoints,
                             context.hub->Endpoints(descriptor.mesh_id));
  const ReadableCopy copy =
      request.accept_second_copy() ? FindSecondCopy(context, descriptor.array_id) : ReadableCopy();
  const ArrayPtr present =
      request.has_slice() ? WithoutAway(*selected.array, endpoints) : selected.array;
  ReadTiles read{.is_slice = request.has_slice()};
  if (read.is_slice || !present->missing_ranks.empty()) {
    const ArrayPtr held = copy.array == nullptr ? present : WithCopy(*present, *copy.array);
    // The error says what the second copy has, except to a client that reads the copy already.
    const SelectedArray readable{
        .array = held,
        .name = selected.name,
        .companion = request.accept_second_copy() ? nullptr : selected.companion,
        .label = selected.label};
    SHARDMESH_ASSIGN_OR_RETURN(
        std::vector<OwnedTile> tiles,
        FindHolders(readable, part, *context.membership->view(), *context.recovery,
                    /*awaits_repair=*/true));
    if (read.is_slice) read.tiles = std::move(tiles);
  }
  const ArrayPtr offered =
      copy.array == nullptr ? present : WithoutHanging(context, present, endpoints, copy);
  Encode(*selected.array, &selected.name, response->mutable_array());
  for (const OwnedTile& tile : read.tiles) {
    v1::HeldTile* const held = response->add_tiles();
    rpc::Encode(tile.tile, held->mutable_tile());
    for (const DeviceId device : tile.devices) {
      read.holders.insert(device);
      const auto rank = static_cast<int32_t>(device);
      if (!Lacks(*offered, device)) held->add_ranks(rank);
      if (copy.array != nullptr && !Lacks(*copy.array, device)) held->add_second_copy_ranks(rank);
    }
  }
  EncodeHolders(*offered, endpoints, read, response->mutable_devices());
  // The transfer tokens expire no later than the session's lease as it is now. A later lease
  // renewal does not extend the tokens.
  SHARDMESH_ASSIGN_OR_RETURN(const Session session, context.sessions->Get(request.session_id()));
  const absl::Time expire_time = std::min(context.clock->Now() + kGetTimeout, session.expires);
  const auto token_of = [&](std::string array_descriptor) {
    return rpc::SignToken({.direction = rpc::TransferDirection::kGet,
                           .transfer_id = "",
                           .session_id = request.session_id(),
                           .array_descriptor = std::move(array_descriptor),
                           .term = context.term,
                           .expire_time = expire_time},
                          context.token_key);
  };
  response->set_token(token_of(response->array().array_descriptor().SerializeAsString()));
  rpc::Encode(expire_time, response->mutable_expire_time());
  if (copy.array != nullptr) {
    const ArrayDescriptor& copied = copy.array->definition.descriptor;
    v1::SecondCopy* const second = response->mutable_second_copy();
    second->set_array_id(copied.array_id);
    EncodeHolders(*copy.array, copy.endpoints, read, second->mutable_devices());
    second->set_token(token_of(rpc::ArrayDescriptorBytes(copied)));
  }
  // Pin last: after an error the client does not know that it has to release the array.
  SHARDMESH_ASSIGN_OR_RETURN(
      const bool pinned, PinForSession(*context.registry, *context.sessions, request.session_id(),
                                       descriptor.array_id));
  response->set_pinned(pinned);
  return absl::OkStatus();
}

absl::Status BeginGet(const CoordinatorParts& context, const v1::BeginGetRequest& request,
                      v1::BeginGetResponse* response) {
  for (int attempt = 1;; ++attempt) {
    response->Clear();
    const absl::Status status = TryBeginGet(context, request, response);
    // The array of a name may be replaced and released before the session pins it.
    if (ReasonOf(status) != Reason::kNotFound || attempt == kMaxSelections ||
        !request.array().has_name() || !Find(context, request.array()).ok()) {
      return status;
    }
  }
}

absl::Status ReleaseArrays(const CoordinatorParts& context, const v1::ReleaseArraysRequest& request,
                           v1::ReleaseArraysResponse* response) {
  constexpr int kMaxReleased = 10'000;
  SHARDMESH_RETURN_IF_ERROR(
      CheckCount(request.array_ids_size(), kMaxReleased, "arrays", "array_ids"));
  response->set_released(static_cast<int32_t>(UnpinForSession(
      *context.registry, *context.sessions, request.session_id(),
      std::vector<std::string>(request.array_ids().begin(), request.array_ids().end()))));
  return absl::OkStatus();
}

absl::Status ErrorOfAbort(const v1::AbortTransferRequest& request) {
  const absl::Status error = rpc::DecodeBounded(request.error());
  if (!error.ok() && !absl::IsCancelled(error)) return error;
  return WithReason(
      absl::CancelledError(StrCat("the client aborted the transfer: ",
                                  rpc::WireText(request.reason(), rpc::kMaxStatusMessageBytes))),
      Reason::kCancelled);
}

}  // namespace shardmesh::server
