// The calls of CatalogClient, over the transport and the session of ClientCore.
#include "client/catalog.h"

#include <iterator>
#include <utility>

#include "client/client_core.h"
#include "process/steady_deadline.h"
#include "status/reason.h"
#include "status/status_macros.h"

namespace shardmesh::client {

absl::StatusOr<Entry> CatalogClient::CreateEntry(const std::string& name, const EntryValue& value,
                                                 bool validate_only) {
  return core_->coordinator().CreateEntry(name, value, validate_only, core_->CallDeadline());
}

absl::StatusOr<Entry> CatalogClient::GetEntry(EntryKind kind, const std::string& name) {
  return core_->coordinator().GetEntry(kind, name, core_->CallDeadline());
}

absl::StatusOr<std::vector<EntryVersion>> CatalogClient::ListEntryVersions(
    EntryKind kind, const std::string& name) {
  return core_->coordinator().ListEntryVersions(kind, name, core_->CallDeadline());
}

absl::StatusOr<std::vector<Entry>> CatalogClient::ListEntries(EntryKind kind,
                                                              const std::string& prefix) {
  const rpc::SteadyDeadline deadline = core_->CallsDeadline();
  std::vector<Entry> entries;
  std::string page_token;
  do {
    SHARDMESH_ASSIGN_OR_RETURN(EntryPage page, core_->coordinator().ListEntries(
                                                   kind, prefix, page_token, Until(deadline)));
    std::move(page.entries.begin(), page.entries.end(), std::back_inserter(entries));
    page_token = std::move(page.next_page_token);
  } while (!page_token.empty());
  return entries;
}

absl::StatusOr<Entry> CatalogClient::UpdateEntry(const std::string& name, const EntryValue& value,
                                                 int64_t expected_version, bool validate_only) {
  return core_->coordinator().UpdateEntry(name, value, expected_version, validate_only,
                                          core_->CallDeadline());
}

absl::StatusOr<int64_t> CatalogClient::DeleteEntry(EntryKind kind, const std::string& name,
                                                   int64_t expected_version, bool validate_only) {
  return core_->coordinator().DeleteEntry(kind, name, expected_version, validate_only,
                                          core_->CallDeadline());
}

absl::Status CatalogClient::Watch(absl::Span<const EntryKind> kinds, int64_t start_revision,
                                  absl::Time until,
                                  const std::function<bool(const CatalogChanges&)>& on_changes) {
  const auto deadline = rpc::SteadyDeadline::At(until);
  const absl::Status status =
      core_->coordinator().Watch(kinds, start_revision, on_changes, Until(deadline));
  // gRPC measures a call's time by the steady clock, and its own error has no reason.
  return absl::IsDeadlineExceeded(status) && ReasonOf(status) == Reason::kUnspecified
             ? absl::OkStatus()
             : status;
}

}  // namespace shardmesh::client
