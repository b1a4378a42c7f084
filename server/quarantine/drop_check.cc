// Checks a drop before it begins, and describes a drop that failed.
#include <iterator>
#include <optional>
#include <vector>

#include "rpc/codec/status.h"
#include "server/quarantine/quarantine_drop.h"
#include "server/state/array_registry.h"
#include "server/state/recovery.h"
#include "server/state/session.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/retry.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server::quarantine {

bool GoOnWithout(const std::string& identity, const absl::Status& why, Drop* drop) {
  drop->failed[identity] = why;
  if (!drop->request->even_partly()) return false;
  AwayWorker& worker = drop->unreached[identity];
  worker.why = std::string(ToStd(why.message()));
  worker.comes_back = drop->context.recovery->ComesBack(identity);
  return true;
}

absl::Status DescribeDrop(const Drop& drop, const absl::Status& error) {
  std::vector<std::string> dropped = drop.released;
  std::vector<std::string> perhaps;
  std::vector<std::string> left;
  for (const auto& [part, mesh_id] : drop.listed) {
    const bool is_dropped = drop.dropped.count(part) > 0;
    const bool is_open =
        drop.failed.count(part.identity) > 0 && drop.answered.count(part.identity) == 0;
    (is_dropped ? dropped : is_open ? perhaps : left).push_back(part.ToString());
  }
  std::string text(ToStd(error.message()));
  if (!dropped.empty()) {
    StrAppend(&text, "; dropped for good: ", FirstOf(dropped));
  } else {
    StrAppend(&text, "; nothing was dropped", perhaps.empty() ? "" : " for certain");
  }
  if (!perhaps.empty()) StrAppend(&text, "; perhaps dropped: ", FirstOf(perhaps));
  if (!left.empty()) StrAppend(&text, "; not dropped: ", FirstOf(left));
  Reason reason = ReasonOf(error);
  if (reason == Reason::kUnspecified && absl::IsUnavailable(error)) reason = Reason::kWorkerLost;
  const absl::Status described = WithFactsOf(absl::Status(error.code(), ToAbsl(text)), error);
  // The caller must read what was dropped before it repeats the call, so the error allows no
  // automatic retry.
  return reason == Reason::kUnspecified ? described : WithoutRetry(WithReason(described, reason));
}

absl::Status AllFailed(const Drop& drop) {
  const absl::Status& first = drop.failed.begin()->second;
  std::string text(ToStd(first.message()));
  std::vector<std::string> others;
  for (auto each = std::next(drop.failed.begin()); each != drop.failed.end(); ++each) {
    others.push_back(StrCat(each->first, " (", ToStd(each->second.message()), ")"));
  }
  if (!others.empty()) StrAppend(&text, "; failed too: ", FirstOf(others));
  const absl::Status all = WithFactsOf(absl::Status(first.code(), ToAbsl(text)), first);
  const Reason reason = ReasonOf(first);
  return DescribeDrop(drop, reason == Reason::kUnspecified ? all : WithReason(all, reason));
}

absl::Status InUse(const Drop& drop, const std::string& array_id) {
  constexpr size_t kMaxShown = 8;
  const CoordinatorParts& context = drop.context;
  const std::optional<UnnamedArray> unnamed = context.registry->FindUnnamed(array_id);
  std::string text = StrCat("array ", array_id, " is in use without a name, held ");
  const std::vector<SessionInfo> holders = context.sessions->ListHolders(array_id, kMaxShown);
  if (!holders.empty()) {
    StrAppend(&text, "by ", DescribeSessions(holders),
              "; nothing was dropped; end that client, or release the array there (`shardmesh "
              "admin sessions` shows the sessions)");
  } else if (unnamed.has_value() && unnamed->until == absl::InfiniteFuture()) {
    StrAppend(&text, HeldFor(context, *unnamed),
              "; nothing was dropped; drop it when it is in quarantine");
  } else {
    StrAppend(&text, "by a call in progress; nothing was dropped; try again when it has ended");
  }
  return absl::FailedPreconditionError(text);
}

namespace {

// Finds the arrays of the request that are held without a name. FAILED_PRECONDITION: one of them is
// in use, or a session holds an array that no worker has in quarantine.
absl::Status FindUnnamed(Drop* drop, std::set<std::string>* absent,
                         std::set<std::string>* mesh_ids) {
  const CoordinatorParts& context = drop->context;
  drop->unnamed.clear();
  for (const std::string& id : drop->request->array_ids()) {
    std::optional<UnnamedArray> unnamed = context.registry->FindUnnamed(id);
    if (unnamed.has_value()) {
      if (!context.registry->CanReleaseUnnamed(id)) return InUse(*drop, id);
      absent->erase(id);
      mesh_ids->insert(unnamed->descriptor.mesh_id);
      drop->unnamed.push_back(*std::move(unnamed));
    } else if (absent->contains(id) && !context.registry->HasName(id) &&
               !context.sessions->ListHolders(id, 1).empty()) {
      return InUse(*drop, id);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDrop(const MembershipView& view, Drop* drop) {
  const CoordinatorParts& context = drop->context;
  std::set<std::string> absent(drop->request->array_ids().begin(),
                               drop->request->array_ids().end());
  std::set<std::string> mesh_ids;
  for (const auto& [part, mesh_id] : drop->listed) {
    absent.erase(part.array_id);
    mesh_ids.insert(mesh_id);
  }
  SHARDMESH_RETURN_IF_ERROR(FindUnnamed(drop, &absent, &mesh_ids));
  if (!absent.empty() || mesh_ids.count("") > 0) mesh_ids.clear();
  const AwayWorkers away = FindAway(context, view, mesh_ids);
  if (drop->request->even_partly()) {
    for (const auto& [identity, worker] : away) drop->unreached[identity] = worker;
    if (!drop->listed.empty() || !drop->unnamed.empty()) return absl::OkStatus();
    if (!drop->failed.empty() && !AnyComesBack(away)) return AllFailed(*drop);
  }
  if (drop->listed.empty() && drop->unnamed.empty()) {
    return NotQuarantined(context, view,
                          drop->request->array_ids_size() == 1
                              ? StrCat("array ", drop->request->array_ids(0))
                              : std::string("any of these arrays"));
  }
  if (away.empty()) return absl::OkStatus();
  if (AllComeBack(away)) {
    return Recovering(StrCat("parts of the arrays may be with ", Describe(away),
                             ", expected back; nothing was dropped; try again"),
                      {{fact::kIdentity, IdentitiesOf(away)}});
  }
  return WithRetryDelay(
      WithReason(absl::FailedPreconditionError(
                     StrCat("parts of the arrays may be with ", Describe(away),
                            "; nothing was dropped; start those workers, or drop what the others "
                            "have (--even-partly)")),
                 Reason::kMeshIncomplete, {{fact::kIdentity, IdentitiesOf(away)}}),
      absl::Seconds(1));
}

}  // namespace shardmesh::server::quarantine
