// Answers what clients ask about arrays.
#include "server/service/array_calls.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "rpc/codec/field_check.h"
#include "rpc/codec/time_codec.h"
#include "rpc/transfer_token.h"
#include "server/codec/put_codec.h"
#include "server/state/array_selection.h"
#include "server/state/array_view_codec.h"
#include "server/state/session_pins.h"
#include "status/status_macros.h"

namespace shardmesh::server {
namespace {

// How long streams may be opened with a token to read an array, at most; those that are open go on.
// A client that needs longer begins again.
constexpr absl::Duration kGetTimeout = absl::Minutes(5);
// Bytes from which on a page of arrays is full, so that it stays below a message's limit with the
// last array.
constexpr int64_t kListBytes = int64_t{2} << 20;

absl::StatusOr<SelectedArray> Find(const CoordinatorParts& context,
                                   const v1::ArraySelector& selector) {
  SHARDMESH_ASSIGN_OR_RETURN(const ArrayReference reference, Decode(selector));
  return Select(*context.registry, reference);
}

}  // namespace

absl::Status DescribeArray(const CoordinatorParts& context, const v1::DescribeArrayRequest& request,
                           v1::DescribeArrayResponse* response) {
  SHARDMESH_ASSIGN_OR_RETURN(const SelectedArray selected, Find(context, request.array()));
  Encode(*selected.array, &selected.name, response->mutable_array());
  return absl::OkStatus();
}

absl::Status ListArrays(const CoordinatorParts& context, const v1::ListArraysRequest& request,
                        v1::ListArraysResponse* response) {
  const absl::StatusOr<int64_t> page_size = rpc::CheckPageSize(request.page_size(), "page_size");
  if (!page_size.ok()) {
    return page_size.status();
  }
  response->set_revision(context.definition_store->settled_revision());
  // A page's token is the last name on it.
  const std::vector<ArrayRegistry::NamedArray> named =
      context.registry->ListNames(request.prefix(), request.page_token(), *page_size + 1);
  int64_t size_bytes = 0;
  for (const ArrayRegistry::NamedArray& each : named) {
    if (response->arrays_size() == *page_size || size_bytes >= kListBytes) {
      response->set_next_page_token(response->arrays(response->arrays_size() - 1).name());
      break;
    }
    v1::Array* const added = response->add_arrays();
    Encode(*each.array, &each.name, added);
    size_bytes += static_cast<int64_t>(added->ByteSizeLong());
  }
  return absl::OkStatus();
}

absl::Status BeginGet(const CoordinatorParts& context, const v1::BeginGetRequest& request,
                      v1::BeginGetResponse* response) {
  SHARDMESH_ASSIGN_OR_RETURN(const SelectedArray selected, Find(context, request.array()));
  const ArrayDescriptor& descriptor = selected.array->definition.descriptor;
  SHARDMESH_RETURN_IF_ERROR(
      CheckReadable(selected, *context.membership->view(), *context.recovery));
  SHARDMESH_ASSIGN_OR_RETURN(
      const bool pinned, PinForSession(*context.registry, *context.sessions, request.session_id(),
                                       descriptor.array_id));
  response->set_pinned(pinned);
  Encode(*selected.array, &selected.name, response->mutable_array());
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<RankEndpoint> endpoints,
                             context.hub->Endpoints(descriptor.mesh_id));
  const std::vector<int64_t>& missing = selected.array->missing_ranks;
  for (const RankEndpoint& endpoint : endpoints) {
    if (std::find(missing.begin(), missing.end(), endpoint.rank) == missing.end()) {
      Encode(endpoint, response->add_devices());
    }
  }
  // A renewal does not reach tokens that are out: none outlives the lease that it was made in.
  SHARDMESH_ASSIGN_OR_RETURN(const Session session, context.sessions->Get(request.session_id()));
  const rpc::TransferClaims claims{
      .direction = rpc::TransferDirection::kGet,
      .transfer_id = "",
      .session_id = request.session_id(),
      .array = descriptor,
      .term = context.term,
      .expire_time = std::min(context.clock->Now() + kGetTimeout, session.expires)};
  response->set_token(rpc::SignToken(claims, context.token_key));
  rpc::Encode(claims.expire_time, response->mutable_expire_time());
  return absl::OkStatus();
}

}  // namespace shardmesh::server
