// A put that has begun: its transfer, and the data that its client gets about the transfer.
#ifndef SHARDMESH_SERVER_STEPS_BEGUN_PUT_H_
#define SHARDMESH_SERVER_STEPS_BEGUN_PUT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/steps/mesh_endpoints.h"
#include "server/steps/transfers.h"
#include "sharding/correction.h"

namespace shardmesh::server {

// A transfer in the form that its client gets. The transfer holds a shared pointer to `items`,
// which keeps this whole object alive until the transfer has ended.
struct BegunPut {
  std::string transfer_id;  // empty: the put was only validated, and there is no transfer
  std::string session_id;
  absl::Time expire_time;  // when the put's transfer tokens expire
  std::vector<RankEndpoint> devices;
  std::vector<PutItem> items;
  std::vector<std::vector<Correction>> corrections;  // by item
};
using BegunPutPtr = std::shared_ptr<const BegunPut>;

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_BEGUN_PUT_H_
