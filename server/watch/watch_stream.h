// The stream of a watcher: what the watches of the catalog and of the cluster have in common.
#ifndef SHARDMESH_SERVER_WATCH_WATCH_STREAM_H_
#define SHARDMESH_SERVER_WATCH_WATCH_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "rpc/caller.h"
#include "rpc/codec/status.h"
#include "rpc/stream/outbox.h"
#include "server/watch/caller_count.h"
#include "server/watch/stream_set.h"
#include "server/watch/watch_pump.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {

// Counts and limits the watches of a service. Thread-safe.
class WatchCount {
 public:
  // `what` names the watched thing in messages: "the catalog".
  WatchCount(std::string what, const WatchLimits& limits)
      : what_(std::move(what)),
        max_watches_(limits.max_watches),
        by_caller_(limits.max_watches_per_caller) {}

  // Admits a watch. `watches` is the number of watches including this one. Sets `*place`; the watch
  // counts until `*place` is destroyed. RESOURCE_EXHAUSTED (OVERLOADED): the caller, or all callers
  // together, have too many watches.
  absl::Status Take(int64_t watches, const rpc::Caller& caller,
                    std::optional<CallerCount::Place>* place) {
    if (watches > max_watches_) {
      return TooMany(StrCat("there are ", watches, " watches of ", what_,
                            " with this one, the "
                            "limit is ",
                            max_watches_),
                     max_watches_, "--max-watches");
    }
    std::optional<CallerCount::Place> taken = by_caller_.Take(caller.name);
    if (!taken.has_value()) {
      return TooMany(StrCat("the caller \"", caller.name, "\" has ", by_caller_.max_per_caller(),
                            " watches of ", what_, ", which is the limit"),
                     by_caller_.max_per_caller(), "--max-watches-per-caller");
    }
    place->emplace(*std::move(taken));
    return absl::OkStatus();
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

  const std::string what_;
  const int64_t max_watches_;
  CallerCount by_caller_;
};

// The items that wait for one watcher. The thread that makes a change adds items, and the pump
// removes them.
template <typename Item>
struct ItemFeed final : WatchFeed {
  struct Waiting {
    Item item;
    size_t size_bytes = 0;  // bytes that count against kWatchWaitingBytes
  };
  std::deque<Waiting> waiting ABSL_GUARDED_BY(mutex);
  size_t waiting_bytes ABSL_GUARDED_BY(mutex) = 0;

  // Adds an item. Cuts the watcher off if more than kWatchWaitingBytes wait, unless this is the
  // only waiting item.
  void Add(Item item, size_t size_bytes) {
    absl::MutexLock lock(&mutex);
    if (is_cut_off) return;
    waiting_bytes += size_bytes;
    waiting.push_back({std::move(item), size_bytes});
    if (waiting_bytes > kWatchWaitingBytes && waiting.size() > 1) {
      is_cut_off = true;
      waiting.clear();
    }
  }
};

// Streams items as responses until the client leaves. To begin a watch, the derived class calls
// Admit, and sends or queues a first message. After that, it adds items to feed(), and calls Wake
// of pump() after each item. If more than kWatchWaitingBytes wait for a slow watcher, the watcher
// is cut off. The stream deletes itself.
template <typename Response, typename Item>
class WatchStream : public grpc::ServerWriteReactor<Response>, public WatchSink {
 public:
  using Feed = ItemFeed<Item>;
  using Streams = StreamSet<WatchStream>;

  // StreamSet calls End when the coordinator stops.
  void End() {
    Close(WithRetryDelay(
        WithReason(absl::UnavailableError("the coordinator is stopping; watch again later"),
                   Reason::kNotServing),
        absl::Seconds(1)));
  }

  void Pump() final {
    feed_->mutex.AssertHeld();
    while (!feed_->waiting.empty() && outbox_.queued_bytes() < kWatchOutboxBytes) {
      const typename Feed::Waiting next = std::move(feed_->waiting.front());
      feed_->waiting.pop_front();
      feed_->waiting_bytes -= next.size_bytes;
      auto response = std::make_shared<Response>();
      Encode(next.item, response.get());
      Send(std::move(response));
    }
  }
  void CutOff() final {
    Close(WithReason(absl::ResourceExhaustedError(StrCat("this watch reads too slowly: more than ",
                                                         kWatchWaitingBytes,
                                                         " bytes of changes wait for it; ", hint_)),
                     Reason::kSlowReader, {{fact::kLimit, kWatchWaitingBytes}}));
  }
  void Cancel() final { context_->TryCancel(); }

  void OnWriteDone(bool ok) final {
    // Copy these members first: if the outbox is closed, its OnWriteDone may delete this object.
    const std::shared_ptr<Feed> feed = feed_;
    WatchPump* const pump = pump_;
    outbox_.OnWriteDone(ok);
    pump->Wake(feed);
  }
  void OnCancel() final { Close(absl::CancelledError("the watcher left")); }
  void OnDone() final {
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

 protected:
  // `hint` is text for the error of a cut-off watcher: it says how to continue.
  WatchStream(Streams* streams, WatchPump* pump, grpc::CallbackServerContext* context,
              std::string_view hint)
      : streams_(streams),
        pump_(pump),
        context_(context),
        hint_(hint),
        outbox_(INT64_MAX, [this](const Response* m) { this->StartWrite(m); }) {
    {
      absl::MutexLock lock(&feed_->mutex);
      feed_->sink = this;
    }
    streams_->Add(this);
  }
  ~WatchStream() override = default;

  virtual void Encode(const Item& item, Response* to) = 0;

  // Counts this watch until it ends. If there are too many watches, closes the stream and returns
  // false.
  bool Admit(WatchCount* count) {
    absl::Status status = count->Take(streams_->size(), rpc::CallerOf(*context_), &place_);
    if (!status.ok()) Close(std::move(status));
    return status.ok();
  }
  const std::shared_ptr<Feed>& feed() const { return feed_; }
  WatchPump* pump() const { return pump_; }

  void Send(std::shared_ptr<const Response> response) {
    const auto size_bytes = static_cast<int64_t>(response->ByteSizeLong());
    outbox_.Push(std::move(response), size_bytes).IgnoreError();  // fails if the outbox is closed
  }
  void Close(absl::Status status) {
    outbox_.Close(rpc::Outbox<Response>::kDrop,
                  [this, status = std::move(status)] { this->Finish(rpc::ToGrpc(status)); });
  }

 private:
  // The maximum number of bytes of encoded messages that wait in one stream. Further changes wait
  // in the feed, in a form that all watchers share.
  static constexpr int64_t kWatchOutboxBytes = int64_t{4} << 20;

  Streams* const streams_;
  WatchPump* const pump_;
  grpc::CallbackServerContext* const context_;
  const std::string_view hint_;
  const std::shared_ptr<Feed> feed_ = std::make_shared<Feed>();
  std::optional<CallerCount::Place> place_;  // set by Admit
  rpc::Outbox<Response> outbox_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_WATCH_WATCH_STREAM_H_
