// Definitions on the wire: create, get, list, their versions, update, delete, watch.
#include "server/service/catalog_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/log.h"
#include "process/steady_deadline.h"
#include "rpc/call.h"
#include "rpc/caller.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "rpc/stream/outbox.h"
#include "server/resolve/background.h"
#include "server/resolve/resolve_answers.h"
#include "server/service/background_reactor.h"
#include "server/service/caller_count.h"
#include "server/state/request_memory.h"
#include "shardmesh/v1/catalog_service.grpc.pb.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// What of the changes since it began a watcher may leave waiting before it is cut off. Changes from
// before are in the store's history anyway: they do not count.
constexpr size_t kWatchWaitingBytes = size_t{16} << 20;

// Bytes of messages that wait for a watcher's stream; the other changes wait as records that all
// watchers share.
constexpr int64_t kWatchOutboxBytes = int64_t{4} << 20;

// What a watcher that is cut off has for reading why; then its stream is cancelled.
constexpr absl::Duration kCutOffGrace = absl::Seconds(5);

// Bytes from which on a page of a list is full; the entry that fills it has at most as many as a
// transaction of the store, so that the page fits a message.
constexpr size_t kPageBytes = size_t{1} << 20;
static_assert(kPageBytes + kMaxTransactionBytes < rpc::kMaxControlMessageBytes);

v1::EntryKind Encode(DefinitionKind kind) {
  switch (kind) {
    case DefinitionKind::kMesh:
      return v1::ENTRY_KIND_MESH;
    case DefinitionKind::kProfile:
      return v1::ENTRY_KIND_PROFILE;
    case DefinitionKind::kRuleSet:
      return v1::ENTRY_KIND_RULE_SET;
    case DefinitionKind::kLogicalRules:
      return v1::ENTRY_KIND_LOGICAL_RULES;
    case DefinitionKind::kTree:
      return v1::ENTRY_KIND_TREE;
  }
  return v1::ENTRY_KIND_UNSPECIFIED;
}

absl::StatusOr<DefinitionKind> Decode(v1::EntryKind kind) {
  switch (kind) {
    case v1::ENTRY_KIND_MESH:
      return DefinitionKind::kMesh;
    case v1::ENTRY_KIND_PROFILE:
      return DefinitionKind::kProfile;
    case v1::ENTRY_KIND_RULE_SET:
      return DefinitionKind::kRuleSet;
    case v1::ENTRY_KIND_LOGICAL_RULES:
      return DefinitionKind::kLogicalRules;
    case v1::ENTRY_KIND_TREE:
      return DefinitionKind::kTree;
    default:
      return rpc::BadField("kind",
                           "must be a mesh, a profile, a rule set, logical rules or a tree");
  }
}

// Whether a tree's tensors go with it: they can be as large as a message, and few ask for them.
enum class Tensors { kLeftOut, kWithTree };

void Encode(const Definition& definition, Tensors tensors, v1::Entry* to) {
  to->set_name(definition.name);
  const auto* const tree = std::get_if<std::shared_ptr<const StoredTree>>(&definition.value);
  if (tree == nullptr || tensors == Tensors::kWithTree) {
    to->mutable_value()->ParseFromString(definition.wire_value);
  }
  if (tree != nullptr) {
    (*tree)->EncodeSummary(to->mutable_value()->mutable_tree());
  }
  to->set_version(definition.version);
  to->set_revision(definition.revision);
  rpc::Encode(definition.updated, to->mutable_update_time());
}

class WatchReactor;

// What the store has told for one watcher. The store's thread adds to it, the pump takes from it.
struct WatchFeed {
  absl::Mutex mutex;
  // Null once the stream is gone.
  WatchReactor* reactor ABSL_GUARDED_BY(mutex) = nullptr;
  std::deque<std::vector<DefinitionStore::Event>> waiting ABSL_GUARDED_BY(mutex);
  Revision counted_from ABSL_GUARDED_BY(mutex) = 0;
  size_t waiting_bytes ABSL_GUARDED_BY(mutex) = 0;  // of records behind counted_from
  bool is_cut_off ABSL_GUARDED_BY(mutex) = false;
  bool knows_it_is_cut_off ABSL_GUARDED_BY(mutex) = false;

  size_t CountedBytes(const std::vector<DefinitionStore::Event>& events) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    size_t bytes = 0;
    for (const DefinitionStore::Event& event : events) {
      if (event.revision > counted_from && event.record != nullptr) {
        bytes += event.record->size();
      }
    }
    return bytes;
  }
};

// One thread that makes messages of changes, so that no commit waits for it. Thread-safe.
class WatchPump {
 public:
  WatchPump() : thread_([this] { Run(); }) {}
  ~WatchPump() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    thread_.join();
  }

  // Something waits in the feed, or there is room for it in the stream.
  void Wake(std::shared_ptr<WatchFeed> feed) {
    absl::MutexLock lock(&mutex_);
    due_.push_back(std::move(feed));
  }

 private:
  void Run();

  absl::Mutex mutex_;
  std::deque<std::shared_ptr<WatchFeed>> due_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Of the thread alone: streams that are cancelled then if they are still there.
  std::deque<std::pair<rpc::SteadyDeadline, std::shared_ptr<WatchFeed>>> cut_off_;
  std::thread thread_;  // last
};

// Watch, written straight:
//   write(confirmation)
//   for (changes of interest from start_revision on) write(changes)   // until the client leaves
class WatchReactor final : public grpc::ServerWriteReactor<v1::WatchResponse> {
 public:
  WatchReactor(StreamSet<WatchReactor>* streams, WatchPump* pump,
               const DefinitionStore* definition_store, grpc::CallbackServerContext* context)
      : streams_(streams),
        pump_(pump),
        definition_store_(definition_store),
        context_(context),
        outbox_(INT64_MAX, [this](const v1::WatchResponse* m) { StartWrite(m); }) {
    {
      absl::MutexLock lock(&feed_->mutex);
      feed_->reactor = this;
    }
    streams_->Add(this);
  }

  // The watch counts in `by_caller` until it ends.
  void Start(DefinitionStore* definition_store, int64_t max_watches, CallerCount* by_caller,
             const v1::WatchRequest& request) {
    if (const int64_t watches = streams_->size(); watches > max_watches) {
      return Close(TooMany(StrCat("there are ", watches,
                                  " watches of the catalog with this one, the "
                                  "limit is ",
                                  max_watches),
                           "--max-watches"));
    }
    const rpc::Caller caller = rpc::CallerOf(*context_);
    std::optional<CallerCount::Place> place = by_caller->Take(caller.name);
    if (!place.has_value()) {
      return Close(
          TooMany(StrCat("the caller \"", caller.name, "\" has ", by_caller->max_per_caller(),
                         " watches of the catalog, which is the limit"),
                  "--max-watches-per-caller"));
    }
    place_.emplace(*std::move(place));
    const Revision settled = definition_store->settled_revision();
    const Revision now = std::max(settled, definition_store->shared_state()->revision());
    const Revision from = request.start_revision() == 0 ? now + 1 : request.start_revision();
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
    auto handle = definition_store->Watch(
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

  // For the pump, which holds the feed's mutex: writes what there is room for.
  void Pump(WatchFeed& feed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(feed.mutex) {
    while (!feed.waiting.empty() && outbox_.queued_bytes() < kWatchOutboxBytes) {
      const std::vector<DefinitionStore::Event> events = std::move(feed.waiting.front());
      feed.waiting.pop_front();
      feed.waiting_bytes -= feed.CountedBytes(events);
      auto response = std::make_shared<v1::WatchResponse>();
      for (const DefinitionStore::Event& event : events) {
        response->set_revision(event.revision);
        Encode(event, response->add_changes());
      }
      Send(std::move(response));
    }
  }
  // The same: it reads too slowly.
  void CutOff() {
    Close(WithReason(
        absl::ResourceExhaustedError(
            StrCat("this watch reads too slowly: more than ", kWatchWaitingBytes,
                   " bytes of changes wait for it; list, and watch from the revision of the list "
                   "plus 1")),
        Reason::kSlowReader));
  }
  void Cancel() { context_->TryCancel(); }

  void End() {
    Close(rpc::WithRetryDelay(
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
      feed_->reactor = nullptr;
      feed_->is_cut_off = true;
      feed_->waiting.clear();
    }
    place_.reset();
    streams_->Remove(this);
    delete this;
  }

 private:
  static absl::Status TooMany(std::string_view what, std::string_view flag) {
    return rpc::WithRetryDelay(
        WithReason(
            absl::ResourceExhaustedError(StrCat(
                what, "; retry when one has ended, or start the coordinator with more ", flag)),
            Reason::kLimitExceeded),
        absl::Seconds(1));
  }

  void Encode(const DefinitionStore::Event& event, v1::EntryChange* change) const {
    change->set_kind(server::Encode(event.kind));
    change->set_name(event.name);
    if (event.record == nullptr) {
      return;
    }
    const auto definition = definition_store_->Describe(event);
    if (definition.ok()) {
      server::Encode(**definition, Tensors::kLeftOut, change->mutable_entry());
      return;
    }
    // Without a value: the watcher learns that it changed, and reads it anew if it has to.
    rpc::LogWarning(
        "a change of a definition cannot be read, and is told without its value",
        {{"name", event.name}, {"revision", event.revision}, {"error", definition.status()}});
    change->mutable_entry()->set_name(event.name);
    change->mutable_entry()->set_revision(event.revision);
  }
  void Send(std::shared_ptr<const v1::WatchResponse> response) {
    const auto size_bytes = static_cast<int64_t>(response->ByteSizeLong());
    outbox_.Push(std::move(response), size_bytes).IgnoreError();  // refused: it is closed
  }
  void Close(absl::Status status) {
    outbox_.Close(rpc::Outbox<v1::WatchResponse>::kDrop,
                  [this, status = std::move(status)] { Finish(rpc::ToGrpc(status)); });
  }

  StreamSet<WatchReactor>* const streams_;
  WatchPump* const pump_;
  const DefinitionStore* const definition_store_;
  grpc::CallbackServerContext* const context_;
  const std::shared_ptr<WatchFeed> feed_ = std::make_shared<WatchFeed>();
  std::optional<CallerCount::Place> place_;  // once it is let in
  rpc::Outbox<v1::WatchResponse> outbox_;
  absl::Mutex mutex_;
  // Last: its destructor waits for a running callback.
  std::unique_ptr<WatchHandle> handle_ ABSL_GUARDED_BY(mutex_);
};

void WatchPump::Run() {
  const auto has_work = [this] {
    mutex_.AssertReaderHeld();
    return stopping_ || !due_.empty();
  };
  while (true) {
    std::deque<std::shared_ptr<WatchFeed>> due;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&has_work), cut_off_.empty()
                                                              ? absl::InfiniteDuration()
                                                              : cut_off_.front().first.left());
      if (stopping_) {
        return;
      }
      due.swap(due_);
    }
    for (const std::shared_ptr<WatchFeed>& feed : due) {
      absl::MutexLock lock(&feed->mutex);
      if (feed->reactor == nullptr || feed->knows_it_is_cut_off) {
        continue;
      }
      if (!feed->is_cut_off) {
        feed->reactor->Pump(*feed);
        continue;
      }
      feed->reactor->CutOff();
      feed->knows_it_is_cut_off = true;
      cut_off_.emplace_back(rpc::SteadyDeadline::After(kCutOffGrace), feed);
    }
    while (!cut_off_.empty() && cut_off_.front().first.is_over()) {
      const std::shared_ptr<WatchFeed> feed = std::move(cut_off_.front().second);
      cut_off_.pop_front();
      absl::MutexLock lock(&feed->mutex);
      if (feed->reactor != nullptr) {
        feed->reactor->Cancel();
      }
    }
  }
}

class CatalogService final : public v1::CatalogService::CallbackService {
 public:
  CatalogService(DefinitionStore* definition_store, ArrayRegistry* registry,
                 const WatchLimits& limits)
      : definition_store_(definition_store),
        registry_(registry),
        max_watches_(limits.max_watches),
        watches_by_caller_(limits.max_watches_per_caller) {}

  grpc::ServerUnaryReactor* CreateEntry(grpc::CallbackServerContext* context,
                                        const v1::CreateEntryRequest* request,
                                        v1::CreateEntryResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (const absl::Status checked = rpc::CheckRequestId(request->request_id(), "request_id");
        !checked.ok()) {
      reactor->Finish(rpc::ToGrpc(checked));
      return reactor;
    }
    const std::string key =
        RequestKey(rpc::CallerOf(*context).name, "CreateEntry", request->request_id());
    Decoding(context, request->value(), reactor, [=, this](const IsCancelled& is_cancelled) {
      definition_store_->Create({.request_id = key, .name = request->name()},
                                request->value().SerializeAsString(), Answer(reactor, response),
                                is_cancelled);
    });
    return reactor;
  }

  grpc::ServerUnaryReactor* UpdateEntry(grpc::CallbackServerContext* context,
                                        const v1::UpdateEntryRequest* request,
                                        v1::UpdateEntryResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    absl::Status checked = rpc::CheckRequestId(request->request_id(), "request_id");
    const std::string key =
        RequestKey(rpc::CallerOf(*context).name, "UpdateEntry", request->request_id());
    const bool is_mesh = request->value().has_mesh() && !definition_store_->Remembers(key);
    if (checked.ok() && is_mesh) {
      checked = registry_->BeginMeshChange(request->name());
    }
    if (!checked.ok()) {
      reactor->Finish(rpc::ToGrpc(checked));
      return reactor;
    }
    Decoding(context, request->value(), reactor, [=, this](const IsCancelled& is_cancelled) {
      definition_store_->Update({.request_id = key,
                                 .name = request->name(),
                                 .expected_version = request->expected_version()},
                                request->value().SerializeAsString(),
                                EndingChange(is_mesh, request->name(), Answer(reactor, response)),
                                is_cancelled);
    });
    return reactor;
  }

  grpc::ServerUnaryReactor* DeleteEntry(grpc::CallbackServerContext* context,
                                        const v1::DeleteEntryRequest* request,
                                        v1::DeleteEntryResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const auto kind = Decode(request->kind());
    absl::Status checked =
        kind.ok() ? rpc::CheckRequestId(request->request_id(), "request_id") : kind.status();
    const std::string key =
        RequestKey(rpc::CallerOf(*context).name, "DeleteEntry", request->request_id());
    const bool is_mesh =
        kind.ok() && *kind == DefinitionKind::kMesh && !definition_store_->Remembers(key);
    if (checked.ok() && is_mesh) {
      checked = registry_->BeginMeshChange(request->name());
    }
    if (!checked.ok()) {
      reactor->Finish(rpc::ToGrpc(checked));
      return reactor;
    }
    definition_store_->Delete(
        {.request_id = key,
         .name = request->name(),
         .expected_version = request->expected_version()},
        *kind,
        EndingChange(
            is_mesh, request->name(),
            [reactor, response](absl::StatusOr<std::shared_ptr<const Definition>> deleted) {
              if (deleted.ok()) {
                response->set_revision((*deleted)->revision);
              }
              reactor->Finish(rpc::ToGrpc(deleted.status()));
            }));
    return reactor;
  }

  grpc::ServerUnaryReactor* GetEntry(grpc::CallbackServerContext* context,
                                     const v1::GetEntryRequest* request,
                                     v1::GetEntryResponse* response) override {
    if (NamesVersion(request->name())) {
      return new BackgroundReactor(
          *context,
          [this, request, response](const std::function<bool()>& is_cancelled) {
            return Get(*request, is_cancelled, response);
          },
          &background_);
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpc(Get(*request, {}, response)));
    return reactor;
  }

  grpc::ServerUnaryReactor* ListEntries(grpc::CallbackServerContext* context,
                                        const v1::ListEntriesRequest* request,
                                        v1::ListEntriesResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpc(List(*request, response)));
    return reactor;
  }

  grpc::ServerUnaryReactor* ListEntryVersions(grpc::CallbackServerContext* context,
                                              const v1::ListEntryVersionsRequest* request,
                                              v1::ListEntryVersionsResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpc(ListVersions(*request, response)));
    return reactor;
  }

  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(grpc::CallbackServerContext* context,
                                                     const v1::WatchRequest* request) override {
    auto* reactor = new WatchReactor(&watches_, &pump_, definition_store_, context);
    reactor->Start(definition_store_, max_watches_, &watches_by_caller_, *request);
    return reactor;
  }

  void EndWatches() { watches_.EndAll(); }

 private:
  using IsCancelled = std::function<bool()>;

  // Makes a change that decodes `value` first: on a thread of the background if that takes too long
  // for a reaction.
  template <typename Change>
  void Decoding(const grpc::CallbackServerContext* context, const v1::EntryValue& value,
                grpc::ServerUnaryReactor* reactor, Change change) {
    if (!CompilesLong(value.rule_set())) {
      return change(IsCancelled());
    }
    const bool taken =
        background_.Run(rpc::CallerOf(*context).name, [context, change = std::move(change)] {
          BackgroundStop stop;
          stop.Begin();
          change([context, &stop] { return context->IsCancelled() || stop.is_due(); });
        });
    if (!taken) {
      reactor->Finish(rpc::ToGrpc(TooManyWait()));
    }
  }

  template <typename Response>
  static DefinitionStore::Callback Answer(grpc::ServerUnaryReactor* reactor, Response* response) {
    return [reactor, response](absl::StatusOr<std::shared_ptr<const Definition>> definition) {
      if (definition.ok()) {
        Encode(**definition, Tensors::kLeftOut, response->mutable_entry());
      }
      reactor->Finish(rpc::ToGrpc(definition.status()));
    };
  }

  absl::Status Get(const v1::GetEntryRequest& request, const std::function<bool()>& is_cancelled,
                   v1::GetEntryResponse* response) const {
    SHARDMESH_ASSIGN_OR_RETURN(const DefinitionKind kind, Decode(request.kind()));
    const auto definition =
        definition_store_->shared_state()->FindReferred(kind, request.name(), is_cancelled);
    if (!definition.ok()) {
      return rpc::WithField(definition.status(), "name");
    }
    Encode(**definition, Tensors::kWithTree, response->mutable_entry());
    return absl::OkStatus();
  }

  absl::Status ListVersions(const v1::ListEntryVersionsRequest& request,
                            v1::ListEntryVersionsResponse* response) const {
    SHARDMESH_ASSIGN_OR_RETURN(const DefinitionKind kind, Decode(request.kind()));
    const Revision settled = definition_store_->settled_revision();
    const Definitions& state = definition_store_->state();
    const auto versions = state.Versions(kind, request.name());
    if (!versions.ok()) {
      return rpc::WithField(versions.status(), "name");
    }
    for (const Definitions::Version& version : *versions) {
      v1::EntryVersion* const to = response->add_versions();
      to->set_version(version.version);
      to->set_revision(version.revision);
      rpc::Encode(version.updated, to->mutable_update_time());
      to->set_size_bytes(version.size_bytes);
    }
    response->set_revision(std::max(settled, state.revision()));
    return absl::OkStatus();
  }

  absl::Status List(const v1::ListEntriesRequest& request,
                    v1::ListEntriesResponse* response) const {
    SHARDMESH_ASSIGN_OR_RETURN(const DefinitionKind kind, Decode(request.kind()));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t page_size,
                               rpc::CheckPageSize(request.page_size(), "page_size"));
    const Revision settled = definition_store_->settled_revision();
    const Definitions& state = definition_store_->state();
    const Definitions::ByName& definitions = state.all(kind);
    // A page's token is the last name on it.
    auto next = request.page_token().empty() ? definitions.begin()
                                             : definitions.upper_bound(request.page_token());
    size_t bytes = 0;
    for (; next != definitions.end() && response->entries_size() < page_size && bytes < kPageBytes;
         ++next) {
      v1::Entry* const entry = response->add_entries();
      Encode(*next->second, Tensors::kLeftOut, entry);
      bytes += entry->ByteSizeLong();
    }
    if (next != definitions.end()) {
      response->set_next_page_token(response->entries(response->entries_size() - 1).name());
    }
    response->set_revision(std::max(settled, state.revision()));
    return absl::OkStatus();
  }

  // Where a mesh was changed, or was to be: arrays may be staged on it again.
  DefinitionStore::Callback EndingChange(bool is_mesh, const std::string& mesh_id,
                                         DefinitionStore::Callback callback) {
    if (!is_mesh) return callback;
    return [this, mesh_id, callback = std::move(callback)](
               absl::StatusOr<std::shared_ptr<const Definition>> changed) mutable {
      registry_->EndMeshChange(mesh_id,
                               changed.ok() ? std::optional((*changed)->revision) : std::nullopt);
      std::move(callback)(std::move(changed));
    };
  }

  DefinitionStore* const definition_store_;
  ArrayRegistry* const registry_;
  const int64_t max_watches_;
  CallerCount watches_by_caller_;
  StreamSet<WatchReactor> watches_;
  WatchPump pump_;
  Background background_{2};  // last: its tasks use the above
};

}  // namespace

StreamingService MakeCatalogService(DefinitionStore* definition_store, ArrayRegistry* registry,
                                    const WatchLimits& limits) {
  auto service = std::make_unique<CatalogService>(definition_store, registry, limits);
  CatalogService* const raw = service.get();
  return {.service = std::move(service), .end_streams = [raw] { raw->EndWatches(); }};
}

}  // namespace shardmesh::server
