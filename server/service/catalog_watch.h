// The watches of the catalog.
#ifndef SHARDMESH_SERVER_SERVICE_CATALOG_WATCH_H_
#define SHARDMESH_SERVER_SERVICE_CATALOG_WATCH_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>

#include "server/service/caller_count.h"
#include "server/service/catalog_service.h"
#include "server/service/streaming_service.h"
#include "server/service/watch_pump.h"
#include "server/state/definitions.h"
#include "shardmesh/v1/catalog_service.pb.h"

namespace shardmesh::server {

// Makes the streams of Watch, and counts them. Outlives the streams. Thread-safe.
class CatalogWatches {
 public:
  CatalogWatches(DefinitionStore* definition_store, const WatchLimits& limits);
  ~CatalogWatches();

  // The stream deletes itself.
  grpc::ServerWriteReactor<v1::WatchResponse>* Open(grpc::CallbackServerContext* context,
                                                    const v1::WatchRequest& request);
  // Ends all streams with UNAVAILABLE (NOT_SERVING), now and from now on.
  void EndAll();

 private:
  class Stream;

  DefinitionStore* const definition_store_;
  const int64_t max_watches_;
  CallerCount by_caller_;
  StreamSet<Stream> streams_;
  WatchPump pump_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_CATALOG_WATCH_H_
