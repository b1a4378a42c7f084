// Definitions on the wire: create, get, list, their versions, update, delete, watch.
#include "server/catalog_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rpc/call.h"
#include "rpc/field_check.h"
#include "rpc/outbox.h"
#include "rpc/status.h"
#include "rpc/time_codec.h"
#include "server/background.h"
#include "server/background_reactor.h"
#include "server/resolve_answers.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"
#include "shardmesh/v1/catalog_service.grpc.pb.h"

namespace shardmesh::server {
namespace {

// What a slow watcher may leave waiting before it is cut off.
constexpr int64_t kWatchOutboxBytes = int64_t{4} << 20;

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

// Watch, written straight:
//   write(confirmation)
//   for (changes of interest from start_revision on) write(changes)   // until the client leaves
class WatchReactor final : public grpc::ServerWriteReactor<v1::WatchResponse> {
 public:
  explicit WatchReactor(StreamSet<WatchReactor>* streams)
      : streams_(streams),
        outbox_(kWatchOutboxBytes, [this](const v1::WatchResponse* m) { StartWrite(m); }) {
    streams_->Add(this);
  }

  void Start(StatePublisher* publisher, const v1::WatchRequest& request) {
    const Revision now = publisher->shared_state()->revision();
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
    auto handle = publisher->Watch(from, [this, kinds = std::move(kinds)](
                                             const std::vector<StatePublisher::Event>& events) {
      auto response = std::make_shared<v1::WatchResponse>();
      for (const StatePublisher::Event& event : events) {
        if (!kinds.empty() && std::find(kinds.begin(), kinds.end(), event.kind) == kinds.end()) {
          continue;
        }
        response->set_revision(event.revision);
        v1::EntryChange* change = response->add_changes();
        change->set_kind(Encode(event.kind));
        change->set_name(event.name);
        if (event.definition != nullptr) {
          Encode(*event.definition, Tensors::kLeftOut, change->mutable_entry());
        }
      }
      if (response->changes_size() > 0) {
        Send(std::move(response));
      }
    });
    if (!handle.ok()) {
      return Close(handle.status());
    }
    absl::MutexLock lock(&mutex_);
    handle_ = *std::move(handle);
  }

  void End() {
    Close(WithReason(absl::UnavailableError("the coordinator is stopping; watch again later"),
                     Reason::kNotServing));
  }

  void OnWriteDone(bool ok) override { outbox_.OnWriteDone(ok); }
  void OnCancel() override { Close(absl::CancelledError("the watcher left")); }
  void OnDone() override {
    streams_->Remove(this);
    delete this;
  }

 private:
  void Send(std::shared_ptr<const v1::WatchResponse> response) {
    const auto size_bytes = static_cast<int64_t>(response->ByteSizeLong());
    if (const absl::Status pushed = outbox_.Push(std::move(response), size_bytes);
        absl::IsResourceExhausted(pushed)) {
      Close(pushed);
    }
  }
  void Close(absl::Status status) {
    outbox_.Close(rpc::Outbox<v1::WatchResponse>::kDrop,
                  [this, status = std::move(status)] { Finish(rpc::ToGrpc(status)); });
  }

  StreamSet<WatchReactor>* const streams_;
  rpc::Outbox<v1::WatchResponse> outbox_;
  absl::Mutex mutex_;
  // Last: its destructor waits for a running callback.
  std::unique_ptr<WatchHandle> handle_ ABSL_GUARDED_BY(mutex_);
};

class CatalogService final : public v1::CatalogService::CallbackService {
 public:
  CatalogService(StatePublisher* publisher, Catalogue* catalogue)
      : publisher_(publisher), catalogue_(catalogue) {}

  grpc::ServerUnaryReactor* CreateEntry(grpc::CallbackServerContext* context,
                                        const v1::CreateEntryRequest* request,
                                        v1::CreateEntryResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (const absl::Status checked = rpc::CheckRequestId(request->request_id(), "request_id");
        !checked.ok()) {
      reactor->Finish(rpc::ToGrpc(checked));
      return reactor;
    }
    Decoding(context, request->value(), reactor, [=, this](const IsCancelled& is_cancelled) {
      publisher_->Create({.request_id = request->request_id(), .name = request->name()},
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
    const bool is_mesh = request->value().has_mesh();
    if (checked.ok() && is_mesh) {
      checked = catalogue_->BeginMeshChange(request->name());
    }
    if (!checked.ok()) {
      reactor->Finish(rpc::ToGrpc(checked));
      return reactor;
    }
    Decoding(context, request->value(), reactor, [=, this](const IsCancelled& is_cancelled) {
      publisher_->Update({.request_id = request->request_id(),
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
    const bool is_mesh = kind.ok() && *kind == DefinitionKind::kMesh;
    if (checked.ok() && is_mesh) {
      checked = catalogue_->BeginMeshChange(request->name());
    }
    if (!checked.ok()) {
      reactor->Finish(rpc::ToGrpc(checked));
      return reactor;
    }
    publisher_->Delete({.request_id = request->request_id(),
                        .name = request->name(),
                        .expected_version = request->expected_version()},
                       *kind,
                       EndingChange(is_mesh, request->name(),
                                    [reactor, response](
                                        absl::StatusOr<std::shared_ptr<const Definition>> deleted) {
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

  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(grpc::CallbackServerContext*,
                                                     const v1::WatchRequest* request) override {
    auto* reactor = new WatchReactor(&watches_);
    reactor->Start(publisher_, *request);
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
    const bool taken = background_.Run([context, change = std::move(change)] {
      change([context] { return context->IsCancelled(); });
    });
    if (!taken) {
      reactor->Finish(rpc::ToGrpc(TooManyWait()));
    }
  }

  template <typename Response>
  static StatePublisher::Callback Answer(grpc::ServerUnaryReactor* reactor, Response* response) {
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
        publisher_->shared_state()->FindReferred(kind, request.name(), is_cancelled);
    if (!definition.ok()) {
      return rpc::WithField(definition.status(), "name");
    }
    Encode(**definition, Tensors::kWithTree, response->mutable_entry());
    return absl::OkStatus();
  }

  absl::Status ListVersions(const v1::ListEntryVersionsRequest& request,
                            v1::ListEntryVersionsResponse* response) const {
    SHARDMESH_ASSIGN_OR_RETURN(const DefinitionKind kind, Decode(request.kind()));
    const ClusterState& state = publisher_->state();
    const auto versions = state.Versions(kind, request.name());
    if (!versions.ok()) {
      return rpc::WithField(versions.status(), "name");
    }
    for (const ClusterState::Version& version : *versions) {
      v1::EntryVersion* const to = response->add_versions();
      to->set_version(version.version);
      to->set_revision(version.revision);
      rpc::Encode(version.updated, to->mutable_update_time());
      to->set_size_bytes(version.size_bytes);
    }
    response->set_revision(state.revision());
    return absl::OkStatus();
  }

  absl::Status List(const v1::ListEntriesRequest& request,
                    v1::ListEntriesResponse* response) const {
    SHARDMESH_ASSIGN_OR_RETURN(const DefinitionKind kind, Decode(request.kind()));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t page_size,
                               rpc::CheckPageSize(request.page_size(), "page_size"));
    const ClusterState& state = publisher_->state();
    const ClusterState::Definitions& definitions = state.all(kind);
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
    response->set_revision(state.revision());
    return absl::OkStatus();
  }

  // Where a mesh was changed, or was to be: arrays may be staged on it again.
  StatePublisher::Callback EndingChange(bool is_mesh, const std::string& mesh_id,
                                        StatePublisher::Callback callback) {
    if (!is_mesh) return callback;
    return [this, mesh_id, callback = std::move(callback)](
               absl::StatusOr<std::shared_ptr<const Definition>> changed) mutable {
      catalogue_->EndMeshChange(mesh_id,
                                changed.ok() ? std::optional((*changed)->revision) : std::nullopt);
      std::move(callback)(std::move(changed));
    };
  }

  StatePublisher* const publisher_;
  Catalogue* const catalogue_;
  StreamSet<WatchReactor> watches_;
  Background background_{2};  // last: its tasks use the above
};

}  // namespace

StreamingService MakeCatalogService(StatePublisher* publisher, Catalogue* catalogue) {
  auto service = std::make_unique<CatalogService>(publisher, catalogue);
  CatalogService* const raw = service.get();
  return {.service = std::move(service), .end_streams = [raw] { raw->EndWatches(); }};
}

}  // namespace shardmesh::server
