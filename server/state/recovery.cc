// Recovery keeps the awaited workers, and the time at which recovery began or ended.
#include "server/state/recovery.h"

#include <utility>

#include "process/log.h"
#include "rpc/codec/status.h"
#include "status/detail.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {

Recovery::Recovery(const Clock* clock, absl::Duration return_grace)
    : clock_(clock), return_grace_(return_grace), started_(clock->Now()), since_(started_) {}

void Recovery::Begin(std::set<std::string, std::less<>> identities) {
  absl::MutexLock lock(&mutex_);
  awaited_ = std::move(identities);
}

void Recovery::Heard(std::string_view identity) {
  absl::MutexLock lock(&mutex_);
  if (const auto lost = lost_.find(identity); lost != lost_.end()) lost_.erase(lost);
  const auto found = awaited_.find(identity);
  if (found == awaited_.end()) return;
  awaited_.erase(found);
  EndIfComplete();
}

void Recovery::Lost(std::string_view identity) {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  std::erase_if(lost_, [&](const auto& each) { return each.second + return_grace_ <= now; });
  lost_.insert_or_assign(std::string(identity), now);
}

bool Recovery::ComesBack(std::string_view identity) const {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  if (const auto lost = lost_.find(identity); lost != lost_.end()) {
    return now < lost->second + return_grace_;
  }
  return awaited_.contains(identity) && now < started_ + return_grace_;
}

bool Recovery::IsAwaited(std::string_view identity) const {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  return awaited_.contains(identity) && now < started_ + return_grace_;
}

bool Recovery::AwaitsAny() const {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  return !awaited_.empty() && now < started_ + return_grace_;
}

void Recovery::MeshesChanged(const MembershipView& view) {
  absl::MutexLock lock(&mutex_);
  const size_t gone = std::erase_if(awaited_, [&](const std::string& identity) {
    for (const auto& [mesh_id, ranks] : view.meshes) {
      if (ranks->RankOf(identity).has_value()) return false;
    }
    return true;
  });
  if (gone > 0) EndIfComplete();
}

void Recovery::EndIfComplete() {
  if (!awaited_.empty()) return;
  const absl::Time now = clock_->Now();
  const absl::Duration time = now - std::exchange(since_, now);
  LogInfo("recovered: the workers of all ranks have attached", {{"time", time}});
}

std::string Recovery::WaitAdvice() const {
  return StrCat(
      "for at most ", absl::FormatDuration(return_grace_),
      " (--return-grace of the coordinator); try again, and start the workers if they stay away");
}

int64_t Recovery::awaited() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(awaited_.size());
}

absl::Time Recovery::since() const {
  absl::MutexLock lock(&mutex_);
  return since_;
}

absl::Status Recovering(std::string_view message, Facts facts) {
  constexpr absl::Duration kRetryDelay = absl::Milliseconds(200);
  return WithRetryDelay(
      WithReason(absl::UnavailableError(ToAbsl(message)), Reason::kRecovering, facts), kRetryDelay);
}

std::string ArrayRepair::ToString(absl::Time now) const {
  std::string text;
  if (tiles > 0) {
    const std::string_view noun = tiles == 1 ? " tile" : " tiles";
    text = is_due ? StrCat("the repair of ", tiles, noun, " is about to begin")
                  : StrCat("a repair reads ", tiles, noun, " again");
    if (!operation_id.empty()) text += StrCat(" (operation ", operation_id);
    if (time_left.has_value()) {
      text += StrCat(operation_id.empty() ? " (" : ", ", FormatRounded(*time_left), " left");
    }
    if (!operation_id.empty() || time_left.has_value()) text += ")";
  }
  if (failure.empty()) return text;
  if (!text.empty()) text += "; ";
  text += StrCat("a repair failed: ", failure);
  if (next_try != absl::InfiniteFuture()) {
    text +=
        StrCat("; it is tried again ",
               next_try > now ? StrCat("in ", FormatRounded(next_try - now)) : std::string("now"));
  }
  return text;
}

}  // namespace shardmesh::server
