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
  return Select(*context.registry, reference);
}

// Returns the array with every rank marked missing that is not among `endpoints`, the reachable
// ranks. The registry may not know yet that the workers of such ranks are lost.
SelectedArray WithoutAway(const SelectedArray& selected,
                          const std::vector<RankEndpoint>& endpoints) {
  Array array = *selected.array;
  std::set<int64_t> missing;
  for (int64_t rank = 0; rank < array.definition.descriptor.mesh.size(); ++rank) {
    missing.insert(rank);
  }
  for (const RankEndpoint& endpoint : endpoints) {
    if (!std::binary_search(array.missing_ranks.begin(), array.missing_ranks.end(),
                            endpoint.rank)) {
      missing.erase(endpoint.rank);
    }
  }
  array.missing_ranks.assign(missing.begin(), missing.end());
  return {.array = std::make_shared<const Array>(std::move(array)), .name = selected.name};
}

}  // namespace

absl::Status DescribeArray(const CoordinatorParts& context, const v1::DescribeArrayRequest& request,
                           v1::DescribeArrayResponse* response) {
  SHARDMESH_ASSIGN_OR_RETURN(const SelectedArray selected, Find(context, request.array()));
  Encode(*selected.array, &selected.name, response->mutable_array());
  EncodeRepair(*selected.array, *context.recovery, response->mutable_array());
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
  std::vector<OwnedTile> tiles;
  if (request.has_slice() || !selected.array->missing_ranks.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(
        tiles, FindHolders(request.has_slice() ? WithoutAway(selected, endpoints) : selected, part,
                           *context.membership->view(), *context.recovery));
  }
  Encode(*selected.array, &selected.name, response->mutable_array());
  const std::vector<int64_t>& missing = selected.array->missing_ranks;
  std::set<int64_t> holders;  // ranks that hold tiles of the slice
  for (const OwnedTile& tile : tiles) {
    if (!request.has_slice()) break;
    v1::HeldTile* const held = response->add_tiles();
    rpc::Encode(tile.tile, held->mutable_tile());
    for (const DeviceId device : tile.devices) {
      held->add_ranks(static_cast<int32_t>(device));
      holders.insert(device);
    }
  }
  for (const RankEndpoint& endpoint : endpoints) {
    if (std::binary_search(missing.begin(), missing.end(), endpoint.rank)) continue;
    if (request.has_slice() && !holders.contains(endpoint.rank)) continue;
    Encode(endpoint, response->add_devices());
  }
  // The transfer token expires no later than the session's lease as it is now. A later lease
  // renewal does not extend the token.
  SHARDMESH_ASSIGN_OR_RETURN(const Session session, context.sessions->Get(request.session_id()));
  const rpc::TransferClaims claims{
      .direction = rpc::TransferDirection::kGet,
      .transfer_id = "",
      .session_id = request.session_id(),
      .array_descriptor = response->array().array_descriptor().SerializeAsString(),
      .term = context.term,
      .expire_time = std::min(context.clock->Now() + kGetTimeout, session.expires)};
  response->set_token(rpc::SignToken(claims, context.token_key));
  rpc::Encode(claims.expire_time, response->mutable_expire_time());
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

}  // namespace shardmesh::server
