// Serves the watches of the catalog.
#include "server/service/catalog_watch.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rpc/caller.h"
#include "rpc/codec/status.h"
#include "rpc/stream/outbox.h"
#include "server/codec/catalog_codec.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// The bytes of changes that may wait for one watcher before it is cut off. Changes from before the
// watch began do not count: the store's history has them.
constexpr size_t kWatchWaitingBytes = size_t{16} << 20;

// Bytes of messages that wait for a watcher's stream; the other changes wait as records that all
// watchers share.
constexpr int64_t kWatchOutboxBytes = int64_t{4} << 20;

}  // namespace

// Watch, written straight:
//   write(confirmation)
//   for (changes of interest from start_revision on) write(changes)   // until the client leaves
class CatalogWatches::Stream final : public grpc::ServerWriteReactor<v1::WatchResponse>,
                                     public WatchSink {
 public:
  Stream(StreamSet<Stream>* streams, WatchPump* pump, DefinitionStore* definition_store,
         grpc::CallbackServerContext* context)
      : streams_(streams),
        pump_(pump),
        definition_store_(definition_store),
        context_(context),
        outbox_(INT64_MAX, [this](const v1::WatchResponse* m) { StartWrite(m); }) {
    {
      absl::MutexLock lock(&feed_->mutex);
      feed_->sink = this;
    }
    streams_->Add(this);
  }

  // The watch counts in `by_caller` until it ends.
  void Start(int64_t max_watches, CallerCount* by_caller, const v1::WatchRequest& request) {
    if (const int64_t watches = streams_->size(); watches > max_watches) {
      return Close(TooMany(StrCat("there are ", watches,
                                  " watches of the catalog with this one, the "
                                  "limit is ",
                                  max_watches),
                           max_watches, "--max-watches"));
    }
    const rpc::Caller caller = rpc::CallerOf(*context_);
    std::optional<CallerCount::Place> place = by_caller->Take(caller.name);
    if (!place.has_value()) {
      return Close(
          TooMany(StrCat("the caller \"", caller.name, "\" has ", by_caller->max_per_caller(),
                         " watches of the catalog, which is the limit"),
                  by_caller->max_per_caller(), "--max-watches-per-caller"));
    }
    place_.emplace(*std::move(place));
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
    auto confirmation = std::make_shared<v1::WatchResponse>();
    confirmation->set_revision(now);
    Send(std::move(confirmation));
    {
      absl::MutexLock lock(&feed_->mutex);
      feed_->counted_from = now;
    }
    auto handle = definition_store_->Watch(
        kinds, from,
        [feed = feed_, pump = pump_](const std::vector<DefinitionStore::Event>& events) {
          {
            absl::MutexLock lock(&feed->mutex);
            if (feed->is_cut_off) {
              return;
            }
            feed->waiting_bytes += feed->CountedBytes(events);
            feed->waiting.push_back(events);
            if (feed->waiting_bytes > kWatchWaitingBytes && feed->waiting.size() > 1) {
              feed->is_cut_off = true;
              feed->waiting.clear();
            }
          }
          pump->Wake(feed);
        });
    if (!handle.ok()) {
      return Close(handle.status());
    }
    absl::MutexLock lock(&mutex_);
    handle_ = *std::move(handle);
  }

  void Pump(WatchFeed& feed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(feed.mutex) override {
    while (!feed.waiting.empty() && outbox_.queued_bytes() < kWatchOutboxBytes) {
      const std::vector<DefinitionStore::Event> events = std::move(feed.waiting.front());
      feed.waiting.pop_front();
      feed.waiting_bytes -= feed.CountedBytes(events);
      auto response = std::make_shared<v1::WatchResponse>();
      for (const DefinitionStore::Event& event : events) {
        response->set_revision(event.revision);
        Encode(event, *definition_store_, response->add_changes());
      }
      Send(std::move(response));
    }
  }
  void CutOff() override {
    Close(WithReason(
        absl::ResourceExhaustedError(
            StrCat("this watch reads too slowly: more than ", kWatchWaitingBytes,
                   " bytes of changes wait for it; list, and watch from the revision of the list "
                   "plus 1")),
        Reason::kSlowReader, {{fact::kLimit, kWatchWaitingBytes}}));
  }
  void Cancel() override { context_->TryCancel(); }

  void End() {
    Close(WithRetryDelay(
        WithReason(absl::UnavailableError("the coordinator is stopping; watch again later"),
                   Reason::kNotServing),
        absl::Seconds(1)));
  }

  void OnWriteDone(bool ok) override {
    // Once the outbox is closed this object may be gone.
    const std::shared_ptr<WatchFeed> feed = feed_;
    WatchPump* const pump = pump_;
    outbox_.OnWriteDone(ok);
    pump->Wake(feed);
  }
  void OnCancel() override { Close(absl::CancelledError("the watcher left")); }
  void OnDone() override {
    {
      absl::MutexLock lock(&feed_->mutex);
      feed_->sink = nullptr;
      feed_->is_cut_off = true;
      feed_->waiting.clear();
    }
    place_.reset();
    streams_->Remove(this);
    delete this;
  }

 private:
  static absl::Status TooMany(std::string_view what, int64_t limit, std::string_view flag) {
    return WithRetryDelay(
        WithReason(
            absl::ResourceExhaustedError(StrCat(
                what, "; retry when one has ended, or start the coordinator with more ", flag)),
            Reason::kOverloaded, {{fact::kLimit, limit}}),
        absl::Seconds(1));
  }

  void Send(std::shared_ptr<const v1::WatchResponse> response) {
    const auto size_bytes = static_cast<int64_t>(response->ByteSizeLong());
    outbox_.Push(std::move(response), size_bytes).IgnoreError();  // refused: it is closed
  }
  void Close(absl::Status status) {
    outbox_.Close(rpc::Outbox<v1::WatchResponse>::kDrop,
                  [this, status = std::move(status)] { Finish(rpc::ToGrpc(status)); });
  }

  StreamSet<Stream>* const streams_;
  WatchPump* const pump_;
  DefinitionStore* const definition_store_;
  grpc::CallbackServerContext* const context_;
  const std::shared_ptr<WatchFeed> feed_ = std::make_shared<WatchFeed>();
  std::optional<CallerCount::Place> place_;  // once it is let in
  rpc::Outbox<v1::WatchResponse> outbox_;
  absl::Mutex mutex_;
  // Last: its destructor waits for a running callback.
  std::unique_ptr<WatchHandle> handle_ ABSL_GUARDED_BY(mutex_);
};

CatalogWatches::CatalogWatches(DefinitionStore* definition_store, const WatchLimits& limits)
    : definition_store_(definition_store),
      max_watches_(limits.max_watches),
      by_caller_(limits.max_watches_per_caller) {}

CatalogWatches::~CatalogWatches() = default;

grpc::ServerWriteReactor<v1::WatchResponse>* CatalogWatches::Open(
    grpc::CallbackServerContext* context, const v1::WatchRequest& request) {
  auto* stream = new Stream(&streams_, &pump_, definition_store_, context);
  stream->Start(max_watches_, &by_caller_, request);
  return stream;
}

void CatalogWatches::EndAll() { streams_.EndAll(); }

}  // namespace shardmesh::server
