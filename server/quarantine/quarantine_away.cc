// Finds and describes workers that are not attached and may have tiles in quarantine.
#include "server/quarantine/quarantine_away.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "rpc/codec/status.h"
#include "rpc/codec/worker_error_codec.h"
#include "server/state/recovery.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server::quarantine {

namespace {

constexpr size_t kMaxArrayIdBytes = 64;
constexpr size_t kMaxUnreachedReason = 1024;
// Maximum number of workers, and of parts of arrays, that an error names.
constexpr size_t kMostNamed = 8;

}  // namespace

std::vector<std::string> AliveWorkers(const MembershipView& view) {
  std::vector<std::string> identities;
  for (const auto& [identity, worker] : view.workers) {
    if (view.IsAlive(identity)) identities.push_back(identity);
  }
  return identities;
}

std::vector<std::string> TakeUnasked(const MembershipView& view, AskedWorkers* asked) {
  std::vector<std::string> unasked;
  for (std::string& identity : AliveWorkers(view)) {
    const uint64_t attachment = view.FindWorker(identity)->attachment;
    if (std::exchange((*asked)[identity], attachment) == attachment) continue;
    unasked.push_back(std::move(identity));
  }
  return unasked;
}

std::string FirstOf(const std::vector<std::string>& names) {
  return StrJoinFirst(kMostNamed, names, ", ");
}

AwayWorkers FindAway(const CoordinatorParts& context, const MembershipView& view,
                     const std::set<std::string>& mesh_ids) {
  const bool takes_all =
      mesh_ids.empty() || std::any_of(mesh_ids.begin(), mesh_ids.end(), [&](const auto& mesh_id) {
        const MeshRanks* const mesh = view.FindMesh(mesh_id);
        return mesh == nullptr || mesh->identities.empty();
      });
  AwayWorkers away;
  for (const auto& [mesh_id, mesh] : view.meshes) {
    if (!takes_all && mesh_ids.count(mesh_id) == 0) continue;
    for (const int64_t rank : view.MissingRanks(*mesh)) {
      const std::string& identity = mesh->identities[static_cast<size_t>(rank)];
      AwayWorker& worker = away[identity];
      worker.ranks.push_back(StrCat("rank ", rank, " of mesh \"", mesh_id, "\""));
      const WorkerStatus* const known = view.FindWorker(identity);
      worker.why =
          known == nullptr ? "not attached since the coordinator started" : known->lost_because;
      worker.comes_back = context.recovery->ComesBack(identity);
    }
  }
  return away;
}

std::string Describe(const AwayWorkers& away) {
  std::vector<std::string> names;
  for (const auto& [identity, worker] : away) {
    names.push_back(StrCat(identity, " (", FirstOf(worker.ranks), ": ", worker.why, ")"));
  }
  return FirstOf(names);
}

bool AnyComesBack(const AwayWorkers& away) {
  return std::any_of(away.begin(), away.end(),
                     [](const auto& each) { return each.second.comes_back; });
}
bool AllComeBack(const AwayWorkers& away) {
  return std::all_of(away.begin(), away.end(),
                     [](const auto& each) { return each.second.comes_back; });
}

void Encode(const std::string& identity, const AwayWorker& worker, v1::UnreachedWorker* to) {
  to->set_identity(identity);
  std::string reason = StrCat(FirstOf(worker.ranks), worker.ranks.empty() ? "" : ": ", worker.why);
  if (size_t end = kMaxUnreachedReason; reason.size() > end) {
    while (end > 0 && (static_cast<uint8_t>(reason[end]) & 0xC0) == 0x80)
      --end;  // whole characters
    reason.resize(end);
  }
  to->set_reason(std::move(reason));
  to->set_expected_back(worker.comes_back);
}

std::string IdentitiesOf(const AwayWorkers& away) {
  return StrJoin(away, ",", [](std::string* out, const auto& worker) { *out += worker.first; });
}

absl::Status NotQuarantined(const CoordinatorParts& context, const MembershipView& view,
                            std::string_view what) {
  const AwayWorkers away = FindAway(context, view, {});
  if (AnyComesBack(away)) {
    return Recovering(StrCat("no attached worker has ", what, " in its quarantine, and ",
                             Describe(away), " may come back with it; try again"),
                      {{fact::kIdentity, IdentitiesOf(away)}});
  }
  return WithReason(
      absl::NotFoundError(StrCat("no attached worker has ", what, " in its quarantine",
                                 away.empty() ? "" : StrCat("; not attached are ", Describe(away)),
                                 "; `shardmesh admin quarantine list` shows what there is")),
      Reason::kNotFound, {{fact::kKind, "array"}});
}

std::string HeldFor(const CoordinatorParts& context, const UnnamedArray& array) {
  return array.until == absl::InfiniteFuture()
             ? "until the records of the state that cannot be read are set aside"
             : StrCat("for ", FormatRounded(array.until - context.clock->Now()));
}

absl::Status CheckArrayId(const std::string& array_id, std::string_view field) {
  if (!array_id.empty() && array_id.size() <= kMaxArrayIdBytes) return absl::OkStatus();
  return rpc::BadField(
      field, StrCat("has ", array_id.size(), " bytes; an array's id has 1 to ", kMaxArrayIdBytes));
}

}  // namespace shardmesh::server::quarantine
