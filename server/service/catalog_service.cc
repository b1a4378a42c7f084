// The methods of CatalogService: create, get, list, list versions, update, delete, watch.
#include "server/service/catalog_service.h"

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "rpc/caller.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/status.h"
#include "server/calls/catalog_calls.h"
#include "server/codec/catalog_codec.h"
#include "server/resolve/background.h"
#include "server/resolve/resolve_answers.h"
#include "server/service/background_reactor.h"
#include "server/service/unary_answer.h"
#include "server/state/array_view_codec.h"
#include "server/state/request_index.h"
#include "server/watch/catalog_watch.h"
#include "shardmesh/v1/catalog_service.grpc.pb.h"

namespace shardmesh::server {
namespace {

class CatalogService final : public v1::CatalogService::CallbackService {
 public:
  CatalogService(DefinitionStore* definition_store, ArrayRegistry* registry, MeshGate* gate,
                 const WatchLimits& limits)
      : definition_store_(definition_store),
        registry_(registry),
        gate_(gate),
        watches_(definition_store, limits) {}

  grpc::ServerUnaryReactor* CreateEntry(grpc::CallbackServerContext* context,
                                        const v1::CreateEntryRequest* request,
                                        v1::CreateEntryResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    absl::Status checked = rpc::CheckRequestId(request->request_id(), "request_id");
    if (request->value().has_mesh()) checked.Update(CheckNewMeshName(request->name()));
    if (!checked.ok()) {
      reactor->Finish(rpc::ToGrpc(checked));
      return reactor;
    }
    const std::string key = KeyOf(*context, "CreateEntry", *request);
    Decoding(context, request->value(), reactor, [=, this](const IsCancelled& is_cancelled) {
      definition_store_->Create(
          {.request_id = key, .name = request->name(), .validate_only = request->validate_only()},
          request->value().SerializeAsString(),
          AfterMembership(GateOf(request->value().has_mesh()), Answer(reactor, response)),
          is_cancelled);
    });
    return reactor;
  }

  grpc::ServerUnaryReactor* UpdateEntry(grpc::CallbackServerContext* context,
                                        const v1::UpdateEntryRequest* request,
                                        v1::UpdateEntryResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    absl::Status checked = rpc::CheckRequestId(request->request_id(), "request_id");
    const std::string key = KeyOf(*context, "UpdateEntry", *request);
    const auto expected = Decode(request->precondition(), /*must_exist=*/true);
    checked.Update(expected.status());
    const bool is_mesh = request->value().has_mesh() && !definition_store_->Remembers(key);
    if (checked.ok() && is_mesh) {
      checked = BeginChange(*request);
    }
    if (!checked.ok()) {
      reactor->Finish(rpc::ToGrpc(checked));
      return reactor;
    }
    Decoding(context, request->value(), reactor, [=, this](const IsCancelled& is_cancelled) {
      definition_store_->Update({.request_id = key,
                                 .name = request->name(),
                                 .expected_version = *expected,
                                 .validate_only = request->validate_only()},
                                request->value().SerializeAsString(),
                                EndingChange(is_mesh && !request->validate_only(), request->name(),
                                             AfterMembership(GateOf(request->value().has_mesh()),
                                                             Answer(reactor, response))),
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
    const std::string key = KeyOf(*context, "DeleteEntry", *request);
    const auto expected = Decode(request->precondition(), /*must_exist=*/true);
    checked.Update(expected.status());
    const bool is_mesh =
        kind.ok() && *kind == DefinitionKind::kMesh && !definition_store_->Remembers(key);
    if (checked.ok() && is_mesh) {
      checked = BeginChange(*request);
    }
    if (!checked.ok()) {
      reactor->Finish(rpc::ToGrpc(checked));
      return reactor;
    }
    definition_store_->Delete(
        {.request_id = key,
         .name = request->name(),
         .expected_version = *expected,
         .validate_only = request->validate_only()},
        *kind,
        EndingChange(
            is_mesh && !request->validate_only(), request->name(),
            AfterMembership(GateOf(*kind == DefinitionKind::kMesh),
                            [reactor, request, response](
                                const absl::StatusOr<std::shared_ptr<const Definition>>& deleted) {
                              if (deleted.ok() && !request->validate_only()) {
                                response->set_revision((*deleted)->revision);
                              }
                              reactor->Finish(rpc::ToGrpc(deleted.status()));
                            })));
    return reactor;
  }

  grpc::ServerUnaryReactor* GetEntry(grpc::CallbackServerContext* context,
                                     const v1::GetEntryRequest* request,
                                     v1::GetEntryResponse* response) override {
    if (NamesVersion(request->name())) {
      return new BackgroundReactor(
          *context,
          [this, request, response](const std::function<bool()>& is_cancelled) {
            return server::GetEntry(*definition_store_, *request, is_cancelled, response);
          },
          &background_);
    }
    return FinishUnary(context, server::GetEntry(*definition_store_, *request, {}, response));
  }

  grpc::ServerUnaryReactor* ListEntries(grpc::CallbackServerContext* context,
                                        const v1::ListEntriesRequest* request,
                                        v1::ListEntriesResponse* response) override {
    return FinishUnary(context, server::ListEntries(*definition_store_, *request, response));
  }

  grpc::ServerUnaryReactor* ListEntryVersions(grpc::CallbackServerContext* context,
                                              const v1::ListEntryVersionsRequest* request,
                                              v1::ListEntryVersionsResponse* response) override {
    return FinishUnary(context, server::ListEntryVersions(*definition_store_, *request, response));
  }

  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(grpc::CallbackServerContext* context,
                                                     const v1::WatchRequest* request) override {
    return watches_.Open(context, *request);
  }

  void EndWatches() { watches_.EndAll(); }

 private:
  using IsCancelled = std::function<bool()>;

  // Decodes `value`, then makes the change. Runs on a thread of the background if decoding takes
  // too long for a reaction (a gRPC callback).
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

  // Returns the key under which the answer is remembered; empty if the request only validates.
  template <typename Request>
  static std::string KeyOf(const grpc::CallbackServerContext& context, std::string_view method,
                           const Request& request) {
    return request.validate_only()
               ? std::string()
               : RequestKey(rpc::CallerOf(context).name, method, request.request_id());
  }

  // Checks that the mesh may be changed. Unless the request only validates, also prevents arrays
  // from being staged on the mesh until the change ends.
  template <typename Request>
  absl::Status BeginChange(const Request& request) {
    return request.validate_only() ? registry_->CheckMeshChange(request.name())
                                   : registry_->BeginMeshChange(request.name());
  }

  // Wraps the callback of a change: when the change has ended or failed, arrays may be staged on
  // the mesh again.
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

  MeshGate* GateOf(bool is_mesh) const { return is_mesh ? gate_ : nullptr; }

  DefinitionStore* const definition_store_;
  ArrayRegistry* const registry_;
  MeshGate* const gate_;
  CatalogWatches watches_;
  Background background_{2};  // last: its tasks use the members above
};

}  // namespace

StreamingService MakeCatalogService(DefinitionStore* definition_store, ArrayRegistry* registry,
                                    MeshGate* gate, const WatchLimits& limits) {
  auto service = std::make_unique<CatalogService>(definition_store, registry, gate, limits);
  CatalogService* const raw = service.get();
  return {.service = std::move(service), .end_streams = [raw] { raw->EndWatches(); }};
}

}  // namespace shardmesh::server
