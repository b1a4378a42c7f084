// Processes that are killed or stopped at random, and the conditions that must hold after each.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "status/str_cat.h"
#include "tests/model/guests.h"
#include "tests/model/load.h"
#include "tests/model/process_cluster.h"
#include "tests/model/runs.h"

namespace shardmesh::model {
namespace {

constexpr absl::Duration kReadyWithin = absl::Seconds(10);
// On a busy machine a process needs longer to start; one that takes this long is stuck.
constexpr absl::Duration kReadyAtLast = absl::Seconds(60);

std::string Distribution(std::vector<absl::Duration> times) {
  if (times.empty()) return "none";
  std::sort(times.begin(), times.end());
  const auto at = [&](size_t percent) {
    return absl::FormatDuration(
        absl::Trunc(times[(times.size() - 1) * percent / 100], absl::Milliseconds(1)));
  };
  const auto late = std::count_if(times.begin(), times.end(),
                                  [](absl::Duration time) { return time > kReadyWithin; });
  return StrCat("median ", at(50), ", 90 % ", at(90), ", 99 % ", at(99), ", most ", at(100), ", ",
                late, " of ", times.size(), " over 10 s");
}

}  // namespace

int RunFaults(const RunOptions& options) {
  Cluster::Options cluster_options;
  cluster_options.binary_folder = options.binary_folder;
  cluster_options.durable = true;
  cluster_options.files = true;
  auto cluster = Cluster::Start(cluster_options);
  if (!cluster.ok()) {
    std::printf("FAILED: %s\n", cluster.status().ToString().c_str());
    return 1;
  }
  Load load((*cluster)->address(), (*cluster)->files(), 2, options.seed);
  Guests guests((*cluster)->address(), (*cluster)->files(), 2, options.is_long ? 10 : 25,
                options.seed);
  Dice dice(options.seed);
  std::vector<absl::Duration> coordinator_times;
  std::vector<absl::Duration> worker_times;
  const int64_t kills = options.is_long ? 2000 : options.kills;
  const auto failed = [&](int64_t kill, const std::string& what, const std::string& why) {
    std::printf("FAILED with --seed %llu at kill %lld (%s): %s\n",
                static_cast<unsigned long long>(options.seed), static_cast<long long>(kill),
                what.c_str(), why.c_str());
    for (int i = 0; i < (*cluster)->size(); ++i) {
      std::printf("--- %s\n%s\n", (*cluster)->NameOf(i).c_str(),
                  client::LastLines((*cluster)->Log(i), 20).c_str());
    }
    return 1;
  };
  for (int64_t kill = 0; kill < kills; ++kill) {
    load.Resume();
    guests.Resume();
    absl::SleepFor(absl::Milliseconds(50 + dice.Below(450)));
    // By turns the coordinator and a worker; now and then both, or one that stands still first.
    const int victim = kill % 2 == 0 ? 0 : 1 + static_cast<int>(dice.Below((*cluster)->size() - 1));
    const bool also = dice.OneIn(8);
    const bool stands_still = dice.OneIn(5);
    const std::string what = StrCat(stands_still ? "SIGSTOP, " : "", "kill -9 of ",
                                    (*cluster)->NameOf(victim), also ? " and another" : "");
    if (stands_still) {
      (*cluster)->Signal(victim, SIGSTOP).IgnoreError();
      absl::SleepFor(absl::Milliseconds(dice.Below(options.is_long ? 7000 : 1500)));
      if (dice.OneIn(2)) (*cluster)->Signal(victim, SIGCONT).IgnoreError();
    }
    std::vector<int> victims = {victim};
    if (also) victims.push_back((victim + 1) % (*cluster)->size());
    for (const int each : victims) {
      if (const absl::Status killed = (*cluster)->Kill(each); !killed.ok()) {
        return failed(kill, what, killed.ToString());
      }
    }
    for (const int each : victims) {
      if (const absl::Status started = (*cluster)->Restart(each); !started.ok()) {
        return failed(kill, what, started.ToString());
      }
    }
    const auto ready = (*cluster)->WaitUntilReady(kReadyAtLast);
    if (!ready.ok()) return failed(kill, what, ready.status().ToString());
    (victim == 0 ? coordinator_times : worker_times).push_back(*ready);
    const absl::Status paused = guests.Pause();
    if (const absl::Status status = load.Pause(); !status.ok()) {
      return failed(kill, what, status.ToString());
    }
    if (!paused.ok()) return failed(kill, what, paused.ToString());
    if (const absl::Status status = load.Verify(absl::Now() + kReadyWithin); !status.ok()) {
      return failed(kill, what, status.ToString());
    }
    if (const absl::Status status = guests.Check(); !status.ok()) {
      return failed(kill, what, status.ToString());
    }
    if ((kill + 1) % 100 == 0) {
      std::printf("%lld kills; %s; %s\n", static_cast<long long>(kill + 1), load.Summary().c_str(),
                  guests.Summary().c_str());
      std::fflush(stdout);
    }
  }
  std::printf("passed with --seed %llu: %lld kills; %s; %s\n",
              static_cast<unsigned long long>(options.seed), static_cast<long long>(kills),
              load.Summary().c_str(), guests.Summary().c_str());
  std::printf("ready again after a kill of the coordinator: %s\n",
              Distribution(coordinator_times).c_str());
  std::printf("ready again after a kill of a worker: %s\n", Distribution(worker_times).c_str());
  // One kill in a hundred may meet a moment of the machine.
  const auto late = [](const std::vector<absl::Duration>& times) {
    return std::count_if(times.begin(), times.end(),
                         [](absl::Duration time) { return time > kReadyWithin; });
  };
  if ((late(coordinator_times) + late(worker_times)) * 100 > kills) {
    std::printf("FAILED: too many are not ready within 10 s\n");
    return 1;
  }
  return 0;
}

}  // namespace shardmesh::model
