// What clients ask about the tiles that workers have put aside: list, restore, drop.
#ifndef SHARDMESH_SERVER_QUARANTINE_CALLS_H_
#define SHARDMESH_SERVER_QUARANTINE_CALLS_H_

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/array_service.h"

namespace shardmesh::v1 {
class DropQuarantinedRequest;
class DropQuarantinedResponse;
class ListQuarantineRequest;
class ListQuarantineResponse;
class RestoreQuarantinedRequest;
class RestoreQuarantinedResponse;
}  // namespace shardmesh::v1

namespace shardmesh::server {

// Asks the attached workers, one after the other. Request and response outlive the call of `done`,
// which comes once, on any thread; the errors are in cluster_service.proto. What `context` names
// and the hub outlive it too.
using QuarantineDone = absl::AnyInvocable<void(const absl::Status&) &&>;

void ListQuarantine(const ArrayContext& context, AttachHub* hub,
                    const v1::ListQuarantineRequest* request, v1::ListQuarantineResponse* response,
                    QuarantineDone done);
void RestoreQuarantined(const ArrayContext& context, AttachHub* hub,
                        const v1::RestoreQuarantinedRequest* request,
                        v1::RestoreQuarantinedResponse* response, QuarantineDone done);
void DropQuarantined(const ArrayContext& context, AttachHub* hub,
                     const v1::DropQuarantinedRequest* request,
                     v1::DropQuarantinedResponse* response, QuarantineDone done);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_QUARANTINE_CALLS_H_
