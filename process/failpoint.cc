// Failpoints: named places in the code where a test makes an operation fail.
#include "process/failpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "process/file.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// Returns all failpoints. One thread fills the list while static objects are constructed; the list
// never changes afterwards, so it needs no lock.
std::vector<Failpoint*>& Registry() {
  static auto* const registry = new std::vector<Failpoint*>();
  return *registry;
}

absl::Status Malformed(std::string_view part, std::string_view why) {
  return InvalidArgument(
      Reason::kBadField,
      StrCat("failpoint \"", part, "\" ", why,
             "; write NAME=ACTION[:N] with the action eio, enospc, emfile, crash or delay"),
      {{fact::kValue, part}});
}

}  // namespace

Failpoint::Failpoint(const char* name, bool fails) : name_(name), fails_(fails) {
  Registry().push_back(this);
}

int Failpoint::Hit() {
  if (hits_left_.fetch_sub(1, std::memory_order_acq_rel) != 1) {
    return 0;
  }
  armed_.store(false, std::memory_order_relaxed);
  std::fprintf(stderr, "failpoint %s hit\n", name_);
  std::fflush(stderr);
  switch (action_.load(std::memory_order_acquire)) {
    case Action::kEio:
      return EIO;
    case Action::kEnospc:
      return ENOSPC;
    case Action::kEmfile:
      return EMFILE;
    case Action::kCrash:
      _exit(kFailpointExitCode);
    case Action::kDelay:
      std::this_thread::sleep_for(std::chrono::milliseconds(kFailpointDelayMilliseconds));
      return 0;
  }
  return 0;
}

absl::Status Failpoint::HitAsStatus() {
  const int error = Hit();
  return error == 0 ? absl::OkStatus() : FileError("pass failpoint", name_, error);
}

bool Failpoint::HitAsErrno() {
  const int error = Hit();
  if (error != 0) {
    errno = error;
  }
  return error != 0;
}

absl::Status ArmFailpoints(std::string_view text) {
  for (const absl::string_view each : absl::StrSplit(ToAbsl(text), ',', absl::SkipEmpty())) {
    const std::string_view part = ToStd(each);
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      return Malformed(part, "has no action");
    }
    const std::string_view name = part.substr(0, equals);
    std::string_view action = part.substr(equals + 1);
    int64_t hit = 1;
    if (const size_t colon = action.find(':'); colon != std::string_view::npos) {
      if (!absl::SimpleAtoi(ToAbsl(action.substr(colon + 1)), &hit) || hit < 1) {
        return Malformed(part, "has no positive number after the colon");
      }
      action = action.substr(0, colon);
    }
    const auto found = std::find_if(Registry().begin(), Registry().end(),
                                    [&](const Failpoint* known) { return known->name() == name; });
    if (found == Registry().end()) {
      std::vector<std::string_view> names;
      for (const Failpoint* known : ListFailpoints()) names.push_back(known->name());
      return Malformed(part, StrCat("is not in this program", DidYouMean(name, names)));
    }
    Failpoint& failpoint = **found;
    if (action == "eio") {
      failpoint.action_ = Failpoint::Action::kEio;
    } else if (action == "enospc") {
      failpoint.action_ = Failpoint::Action::kEnospc;
    } else if (action == "emfile") {
      failpoint.action_ = Failpoint::Action::kEmfile;
    } else if (action == "crash") {
      failpoint.action_ = Failpoint::Action::kCrash;
    } else if (action == "delay") {
      failpoint.action_ = Failpoint::Action::kDelay;
    } else {
      return Malformed(part, StrCat("has the unknown action \"", action, "\""));
    }
    if (!failpoint.fails_ && action != "crash" && action != "delay") {
      return Malformed(part, "is a place that cannot fail: it takes crash and delay only");
    }
    failpoint.hits_left_.store(hit, std::memory_order_relaxed);
    failpoint.armed_.store(true, std::memory_order_release);
  }
  return absl::OkStatus();
}

bool IsArmed(std::string_view prefix) {
  return std::any_of(Registry().begin(), Registry().end(), [&](const Failpoint* failpoint) {
    return failpoint->armed() && failpoint->name().substr(0, prefix.size()) == prefix;
  });
}

std::vector<const Failpoint*> ListFailpoints() {
  std::vector<const Failpoint*> sorted(Registry().begin(), Registry().end());
  std::sort(sorted.begin(), sorted.end(),
            [](const Failpoint* a, const Failpoint* b) { return a->name() < b->name(); });
  return sorted;
}

}  // namespace shardmesh
