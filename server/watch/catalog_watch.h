// The streams of clients that watch the catalog.
#ifndef SHARDMESH_SERVER_WATCH_CATALOG_WATCH_H_
#define SHARDMESH_SERVER_WATCH_CATALOG_WATCH_H_

#include <grpcpp/grpcpp.h>

#include <vector>

#include "server/state/definitions.h"
#include "server/watch/watch_pump.h"
#include "server/watch/watch_stream.h"
#include "shardmesh/v1/catalog_service.pb.h"

namespace shardmesh::server {

// Makes and counts the streams of the call Watch. Must outlive the streams. Thread-safe.
class CatalogWatches {
 public:
  CatalogWatches(DefinitionStore* definition_store, const WatchLimits& limits);
  ~CatalogWatches();

  // Opens a stream, which deletes itself when it is done.
  grpc::ServerWriteReactor<v1::WatchResponse>* Open(grpc::CallbackServerContext* context,
                                                    const v1::WatchRequest& request);
  // Ends all present and future streams with UNAVAILABLE (NOT_SERVING).
  void EndAll();

 private:
  class Stream;

  DefinitionStore* const definition_store_;
  WatchCount count_;
  WatchStream<v1::WatchResponse, std::vector<DefinitionStore::Event>>::Streams streams_;
  WatchPump pump_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_WATCH_CATALOG_WATCH_H_
