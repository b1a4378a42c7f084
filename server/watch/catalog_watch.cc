// Serves the watches of the catalog.
#include "server/watch/catalog_watch.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rpc/codec/status.h"
#include "server/codec/catalog_codec.h"

namespace shardmesh::server {
namespace {

using Events = std::vector<DefinitionStore::Event>;

// Returns the bytes of the records after revision `counted_from`. The store's history holds earlier
// records anyway, so they do not count against the watcher's limit.
size_t CountedBytes(const Events& events, Revision counted_from) {
  size_t bytes = 0;
  for (const DefinitionStore::Event& event : events) {
    if (event.revision > counted_from && event.record != nullptr) bytes += event.record->size();
  }
  return bytes;
}

}  // namespace

// Watch as synchronous pseudocode:
//   write(confirmation)
//   for (changes of interest from start_revision on) write(changes)   // until the client leaves
class CatalogWatches::Stream final : public WatchStream<v1::WatchResponse, Events> {
 public:
  Stream(Streams* streams, WatchPump* pump, DefinitionStore* definition_store,
         grpc::CallbackServerContext* context)
      : WatchStream(streams, pump, context, "list, and watch from the revision of the list plus 1"),
        definition_store_(definition_store) {}

  void Start(WatchCount* count, const v1::WatchRequest& request) {
    const Revision settled = definition_store_->settled_revision();
    const Revision now = std::max(settled, definition_store_->shared_state()->revision());
    const Revision from = request.has_start_revision() ? request.start_revision() : now + 1;
    if (from < 1) {
      return Close(
          rpc::BadField("start_revision", "is below 1; leave it unset for changes from now on"));
    }
    std::vector<DefinitionKind> kinds;
    for (const int kind : request.kinds()) {
      const auto decoded = Decode(static_cast<v1::EntryKind>(kind));
      if (!decoded.ok()) {
        return Close(decoded.status());
      }
      kinds.push_back(*decoded);
    }
    // Admit last: a refused request must not count as a watch.
    if (!Admit(count)) return;
    auto confirmation = std::make_shared<v1::WatchResponse>();
    confirmation->set_revision(now);
    Send(std::move(confirmation));
    auto handle = definition_store_->Watch(
        kinds, from, [feed = feed(), pump = pump(), now](const Events& events) {
          feed->Add(events, CountedBytes(events, now));
          pump->Wake(feed);
        });
    if (!handle.ok()) {
      return Close(handle.status());
    }
    absl::MutexLock lock(&mutex_);
    handle_ = *std::move(handle);
  }

 private:
  void Encode(const Events& events, v1::WatchResponse* to) override {
    for (const DefinitionStore::Event& event : events) {
      to->set_revision(event.revision);
      server::Encode(event, *definition_store_, to->add_changes());
    }
  }

  DefinitionStore* const definition_store_;
  absl::Mutex mutex_;
  // Last: its destructor waits for a running callback, which may use the other members.
  std::unique_ptr<WatchHandle> handle_ ABSL_GUARDED_BY(mutex_);
};

CatalogWatches::CatalogWatches(DefinitionStore* definition_store, const WatchLimits& limits)
    : definition_store_(definition_store), count_("the catalog", limits) {}

CatalogWatches::~CatalogWatches() = default;

grpc::ServerWriteReactor<v1::WatchResponse>* CatalogWatches::Open(
    grpc::CallbackServerContext* context, const v1::WatchRequest& request) {
  auto* stream = new Stream(&streams_, &pump_, definition_store_, context);
  stream->Start(&count_, request);
  return stream;
}

void CatalogWatches::EndAll() { streams_.EndAll(); }

}  // namespace shardmesh::server
