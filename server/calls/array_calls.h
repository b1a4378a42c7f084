// Answers to clients' calls about arrays: describe, list, get, release.
#ifndef SHARDMESH_SERVER_CALLS_ARRAY_CALLS_H_
#define SHARDMESH_SERVER_CALLS_ARRAY_CALLS_H_

#include "absl/status/status.h"
#include "server/attach/coordinator_parts.h"
#include "shardmesh/v1/array_service.pb.h"

namespace shardmesh::server {

// Answer the calls of array_service.proto, which lists their errors. `response` must be empty. None
// of these functions blocks.
absl::Status DescribeArray(const CoordinatorParts& context, const v1::DescribeArrayRequest& request,
                           v1::DescribeArrayResponse* response);
absl::Status ListArrays(const CoordinatorParts& context, const v1::ListArraysRequest& request,
                        v1::ListArraysResponse* response);
// Pins the array for the session. The caller has already checked that the client may use the
// session.
absl::Status BeginGet(const CoordinatorParts& context, const v1::BeginGetRequest& request,
                      v1::BeginGetResponse* response);
// Unpins arrays of the session. The caller has already checked that the client may use it.
absl::Status ReleaseArrays(const CoordinatorParts& context, const v1::ReleaseArraysRequest& request,
                           v1::ReleaseArraysResponse* response);

// Returns the error with which an aborted transfer ends: the client's, or CANCELLED (CANCELLED) if
// the request has none. It is never OK.
absl::Status ErrorOfAbort(const v1::AbortTransferRequest& request);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CALLS_ARRAY_CALLS_H_
