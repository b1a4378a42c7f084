// Restores an array from the workers' quarantines.
#include "server/quarantine/quarantine_restore.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "process/log.h"
#include "rpc/codec/status.h"
#include "server/quarantine/order_queue.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace quarantine {
namespace {

// Undoes a restore: makes workers put the tiles that they took out of quarantine into quarantine
// again, with their earlier reason.
void TakeBack(const Restore& restore) {
  if (!restore.staged.has_value()) return;
  const absl::StatusOr<Tiling> tiling = restore.staged->Tiling();
  for (const auto& [rank, identity] : restore.ranks) {
    const v1::QuarantinedArray& held = restore.held.at(identity);
    InventoryVerdict verdict;
    verdict.quarantine.push_back(
        {restore.staged->array_id, tiling->TileOf(rank), held.reason(), held.array_lives()});
    restore.hub->SendVerdict(identity, verdict);
  }
  // This call comes last: Discard moves the remaining restored tiles into quarantine, but does not
  // know their earlier reason.
  restore.context.registry->Discard({restore.staged->array_id});
}

void EndRestore(const RestorePtr& restore, const absl::Status& status) {
  if (!status.ok()) {
    TakeBack(*restore);
    restore->response->Clear();
    return std::move(restore->done)(status);
  }
  if (!restore->request->validate_only()) {
    LogInfo("an array was restored from quarantine",
            {{"array", restore->request->array_id()}, {"name", restore->response->name()}});
  }
  for (const auto& [rank, identity] : restore->ranks) restore->response->add_identities(identity);
  std::move(restore->done)(absl::OkStatus());
}

void CommitRestore(const RestorePtr& restore) {
  if (restore->commit.moves.empty()) return EndRestore(restore, absl::OkStatus());
  restore->context.registry->Commit(std::move(restore->commit),
                                    [restore](const absl::StatusOr<CommitResult>& committed) {
                                      EndRestore(restore, committed.status());
                                    });
}

// The error if no attached worker has tiles of the array in quarantine.
absl::Status NothingToRestore(const Restore& restore, const absl::StatusOr<ArrayPtr>& known,
                              const std::optional<UnnamedArray>& unnamed) {
  const std::string what = StrCat("array ", restore.request->array_id());
  if (known.ok() && (*known)->missing_ranks.empty()) {
    return WithReason(
        absl::AlreadyExistsError(StrCat(what,
                                        " is in use, with all of its tiles; nothing of it is "
                                        "in quarantine")),
        Reason::kAlreadyExists, {{fact::kKind, "array"}});
  }
  if (!known.ok() && unnamed.has_value()) {
    const absl::Status complete = CheckAllThere(restore, unnamed->descriptor);
    if (!complete.ok()) return complete;
  }
  return NotQuarantined(restore.context, *restore.view, what);
}

// The error if workers no longer found all tiles that they had listed just before.
absl::Status Forestalled(const Restore& restore) {
  const std::string& array_id = restore.request->array_id();
  const absl::StatusOr<ArrayPtr> now = restore.context.registry->FindArray(array_id);
  const bool is_back =
      now.ok() && !restore.staged.has_value() &&
      std::none_of(restore.ranks.begin(), restore.ranks.end(), [&](const auto& each) {
        const std::vector<int64_t>& missing = (*now)->missing_ranks;
        return std::binary_search(missing.begin(), missing.end(), each.first);
      });
  if (is_back) return InProgress(array_id);
  return absl::UnavailableError(
      "a worker dropped its tile meanwhile; `shardmesh admin quarantine list` shows the tiles that "
      "are left");
}

void BeginRestore(const RestorePtr& restore) {
  const std::string& array_id = restore->request->array_id();
  const ArrayRegistry& registry = *restore->context.registry;
  const absl::StatusOr<ArrayPtr> known = registry.FindArray(array_id);
  if (known.ok() && (*known)->state == ArrayState::kStaging) {
    return EndRestore(restore, InProgress(array_id));
  }
  const std::optional<UnnamedArray> unnamed = registry.FindUnnamed(array_id);
  const bool needs_name = known.ok() && unnamed.has_value();
  if (restore->held.empty() && !needs_name) {
    return EndRestore(restore, NothingToRestore(*restore, known, unnamed));
  }
  absl::Status chosen;
  if (needs_name) chosen = ChooseName(**known, restore.get());
  if (chosen.ok() && !restore->held.empty()) {
    chosen = known.ok() ? ChooseMissing(*known, restore.get()) : ChooseAll(restore.get());
    // The array gets its name even if no tile in quarantine fits.
    if (needs_name) chosen = absl::OkStatus();
  }
  if (!chosen.ok() || restore->request->validate_only()) return EndRestore(restore, chosen);
  std::deque<Orders::Order> orders;
  for (const auto& [rank, identity] : restore->ranks) {
    orders.push_back(OrderOf(identity, Action::ACTION_RESTORE, {array_id}));
  }
  const auto restored = std::make_shared<size_t>(0);
  Orders::Run(
      restore->context.clock, restore->hub, std::move(orders), /*stop=*/nullptr,
      [restored](const std::string&, const internal::v1::QuarantineAnswer& answer) {
        // Before this answer the worker has reported that the tile is in use again. If the array is
        // live, the tile counts from then on, even if other workers fail.
        if (answer.arrays_size() > 0) ++*restored;
        return true;
      },
      [restore, restored](const absl::Status& status) {
        if (!status.ok()) return EndRestore(restore, status);
        if (*restored < restore->ranks.size()) {
          return EndRestore(restore, Forestalled(*restore));
        }
        CommitRestore(restore);
      });
}

// Asks the live workers which of them have tiles of the array, until all were asked.
void ListForRestore(const RestorePtr& restore) {
  restore->view = restore->context.membership->view();
  std::deque<Orders::Order> orders;
  for (const std::string& identity : TakeUnasked(*restore->view, &restore->asked)) {
    restore->held.erase(identity);
    orders.push_back(OrderOf(identity, Action::ACTION_LIST, {restore->request->array_id()}));
  }
  if (orders.empty()) return BeginRestore(restore);
  Orders::Run(
      restore->context.clock, restore->hub, std::move(orders), restore->stop,
      [restore](const std::string& identity, internal::v1::QuarantineAnswer answer) {
        if (answer.arrays_size() > 0) {
          restore->held[identity] = std::move(*answer.mutable_arrays(0));
        }
        return true;
      },
      [restore](const absl::Status& status) {
        if (!status.ok()) return EndRestore(restore, status);
        ListForRestore(restore);
      });
}

}  // namespace
}  // namespace quarantine

void RestoreQuarantined(const CoordinatorParts& context, QuarantineAccess* hub,
                        const v1::RestoreQuarantinedRequest* request,
                        v1::RestoreQuarantinedResponse* response, const QuarantineStopPtr& stop,
                        QuarantineDone done) {
  using namespace quarantine;  // NOLINT(google-build-using-namespace)
  if (const absl::Status valid = CheckArrayId(request->array_id(), "array_id"); !valid.ok()) {
    return std::move(done)(valid);
  }
  const auto restore = std::make_shared<Restore>(Restore{.context = context,
                                                         .hub = hub,
                                                         .request = request,
                                                         .response = response,
                                                         .stop = stop,
                                                         .done = std::move(done)});
  ListForRestore(restore);
}

}  // namespace shardmesh::server
