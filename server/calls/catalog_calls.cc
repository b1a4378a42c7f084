// Answers clients' questions about definitions.
#include "server/calls/catalog_calls.h"

#include <algorithm>
#include <cstdint>

#include "rpc/call.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/status.h"
#include "server/codec/catalog_codec.h"
#include "server/steps/auxiliary_mesh.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// A page of a list is full once it has this many bytes.
constexpr size_t kPageBytes = size_t{1} << 20;
// The maximum number of bytes of a page with several entries. An entry that would exceed the limit
// begins the next page.
constexpr size_t kMostPageBytes = size_t{3} << 20;
// A single entry always fits a message: the definition, and the workers of a mesh, were each stored
// in one transaction of at most kMaxTransactionBytes. The rest of the entry is at most this large.
constexpr size_t kMostOfRestBytes = size_t{64} << 10;
static_assert(2 * kMaxTransactionBytes + kMostOfRestBytes < rpc::kMaxControlMessageBytes);
static_assert(kMostPageBytes + kMostOfRestBytes < rpc::kMaxControlMessageBytes);

}  // namespace

absl::Status GetEntry(const DefinitionStore& definition_store, const v1::GetEntryRequest& request,
                      const std::function<bool()>& is_cancelled, v1::GetEntryResponse* response) {
  SHARDMESH_ASSIGN_OR_RETURN(const DefinitionKind kind, Decode(request.kind()));
  const auto definition =
      definition_store.shared_state()->FindReferred(kind, request.name(), is_cancelled);
  if (!definition.ok()) {
    return rpc::WithField(definition.status(), "name");
  }
  Encode(**definition, Tensors::kWithTree, response->mutable_entry());
  return absl::OkStatus();
}

absl::Status ListEntryVersions(const DefinitionStore& definition_store,
                               const v1::ListEntryVersionsRequest& request,
                               v1::ListEntryVersionsResponse* response) {
  SHARDMESH_ASSIGN_OR_RETURN(const DefinitionKind kind, Decode(request.kind()));
  const Revision settled = definition_store.settled_revision();
  const Definitions& state = definition_store.state();
  const auto versions = state.Versions(kind, request.name());
  if (!versions.ok()) {
    return rpc::WithField(versions.status(), "name");
  }
  for (const Definitions::Version& version : *versions) {
    Encode(version, response->add_versions());
  }
  response->set_revision(std::max(settled, state.revision()));
  return absl::OkStatus();
}

absl::Status ListEntries(const DefinitionStore& definition_store,
                         const v1::ListEntriesRequest& request, v1::ListEntriesResponse* response) {
  SHARDMESH_ASSIGN_OR_RETURN(const DefinitionKind kind, Decode(request.kind()));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t page_size,
                             rpc::CheckPageSize(request.page_size(), "page_size"));
  const Revision settled = definition_store.settled_revision();
  const Definitions& state = definition_store.state();
  const Definitions::ByName& definitions = state.all(kind);
  const std::string& prefix = request.prefix();
  // The page token is the last name on the previous page.
  auto next = request.page_token() < prefix ? definitions.lower_bound(prefix)
                                            : definitions.upper_bound(request.page_token());
  const auto is_left = [&] {
    return next != definitions.end() && next->first.compare(0, prefix.size(), prefix) == 0;
  };
  size_t bytes = 0;
  for (; is_left() && response->entries_size() < page_size && bytes < kPageBytes; ++next) {
    v1::Entry* const entry = response->add_entries();
    Encode(*next->second, Tensors::kLeftOut, entry);
    bytes += entry->ByteSizeLong();
    if (bytes > kMostPageBytes && response->entries_size() > 1) {
      response->mutable_entries()->RemoveLast();
      break;
    }
  }
  if (is_left()) {
    response->set_next_page_token(response->entries(response->entries_size() - 1).name());
  }
  response->set_revision(std::max(settled, state.revision()));
  return absl::OkStatus();
}

absl::Status CheckNewMeshName(std::string_view name) {
  const auto is_auxiliary = [name](std::string_view purpose, std::string_view ending) {
    return rpc::BadField(
        "name", StrCat("is \"", name, "\", a name of auxiliary meshes ", purpose,
                       ", which the coordinator makes and deletes itself; choose a name that does "
                       "not end in \"",
                       ending, "\" and 12 hexadecimal digits"));
  };
  if (!ReplicatedMeshOf(name).empty()) return is_auxiliary("for second replicas", ".replicas-");
  if (!ResizedMeshOf(name).empty()) return is_auxiliary("for resizes", kResizeMeshMark);
  return absl::OkStatus();
}

}  // namespace shardmesh::server
