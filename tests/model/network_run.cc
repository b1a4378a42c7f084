// A network that delays, holds, swallows and cuts, and processes that stand still.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "status/str_cat.h"
#include "tests/model/guests.h"
#include "tests/model/load.h"
#include "tests/model/process_cluster.h"
#include "tests/model/runs.h"
#include "tests/testing/proxy.h"

namespace shardmesh::model {
namespace {

using test::Proxy;

constexpr absl::Duration kReadyWithin = absl::Seconds(10);
// For a busy machine; a cluster that takes this long is stuck.
constexpr absl::Duration kReadyAtLast = absl::Seconds(60);
// The time in which a process notices that its connection was cut. Before, it may seem ready.
constexpr absl::Duration kCutIsNoticed = absl::Milliseconds(100);

class NetworkRun {
 public:
  explicit NetworkRun(const RunOptions& options) : options_(options), dice_(options.seed) {}

  int Run() {
    Cluster::Options cluster_options;
    cluster_options.binary_folder = options_.binary_folder;
    cluster_options.durable = true;
    cluster_options.files = true;
    // Workers reach the coordinator through one proxy, clients through another.
    cluster_options.worker_coordinator = [this](const std::string& address) {
      if (workers_ == nullptr) workers_ = *Proxy::Start(address);
      return workers_->address();
    };
    auto cluster = Cluster::Start(cluster_options);
    if (!cluster.ok()) return Failed("the start", cluster.status());
    cluster_ = *std::move(cluster);
    clients_ = *Proxy::Start(cluster_->address());
    Load load(clients_->address(), cluster_->files(), 2, options_.seed);
    Guests guests(clients_->address(), cluster_->files(), 2, options_.is_long ? 10 : 25,
                  options_.seed);
    const absl::Time end = absl::Now() + options_.time;
    int64_t troubles = 0;
    int64_t late = 0;
    for (; absl::Now() < end; ++troubles) {
      load.Resume();
      guests.Resume();
      absl::SleepFor(absl::Milliseconds(50 + dice_.Below(300)));
      const std::string what = Disturb();
      const auto ready = cluster_->WaitUntilReady(kReadyAtLast);
      if (!ready.ok()) return Failed(what, ready.status());
      late += *ready > kReadyWithin ? 1 : 0;
      longest_ = std::max(longest_, *ready);
      const absl::Status paused = guests.Pause();
      if (const absl::Status status = load.Pause(); !status.ok()) return Failed(what, status);
      if (!paused.ok()) return Failed(what, paused);
      if (const absl::Status status = load.Verify(absl::Now() + kReadyWithin); !status.ok()) {
        return Failed(what, status);
      }
      if (const absl::Status status = guests.Check(); !status.ok()) return Failed(what, status);
    }
    std::printf("passed with --seed %llu: %lld troubles; %s; %s; ready again after %s at most\n",
                static_cast<unsigned long long>(options_.seed), static_cast<long long>(troubles),
                load.Summary().c_str(), guests.Summary().c_str(),
                absl::FormatDuration(absl::Trunc(longest_, absl::Milliseconds(1))).c_str());
    if (late * 100 > troubles) {
      std::printf("FAILED: %lld times not all were ready within 10 s\n",
                  static_cast<long long>(late));
      return 1;
    }
    return 0;
  }

 private:
  // Causes a disturbance and ends it; returns its description.
  std::string Disturb() {
    // Beyond five seconds a silent worker is lost, which CI tries less often.
    const int64_t most_ms = dice_.OneIn(options_.is_long ? 3 : 12) ? 7000 : 1500;
    const absl::Duration time = absl::Milliseconds(1 + dice_.Below(most_ms));
    const std::string length = absl::FormatDuration(time);
    if (dice_.OneIn(4)) {
      const int victim = static_cast<int>(dice_.Below(cluster_->size()));
      cluster_->Signal(victim, SIGSTOP).IgnoreError();
      absl::SleepFor(time);
      cluster_->Signal(victim, SIGCONT).IgnoreError();
      return StrCat(cluster_->NameOf(victim), " stood still for ", length);
    }
    std::vector<Proxy*> proxies = {workers_.get(), clients_.get()};
    const int64_t which = dice_.Below(3);
    if (which < 2) proxies = {proxies[static_cast<size_t>(which)]};
    const std::string whose = which == 0   ? "of the workers"
                              : which == 1 ? "of the clients"
                                           : "of workers and clients";
    if (dice_.OneIn(3)) {
      const int64_t bytes = dice_.OneIn(3) ? 0 : 1 + dice_.Below(dice_.OneIn(2) ? 200 : 20'000);
      for (Proxy* proxy : proxies) proxy->CutAfter(bytes);
      absl::SleepFor(absl::Milliseconds(dice_.Below(300)));
      for (Proxy* proxy : proxies) proxy->CutNoMore();
      absl::SleepFor(kCutIsNoticed);
      return StrCat("the connections ", whose, " were cut after ", bytes, " bytes");
    }
    static const auto* const modes =
        new std::vector<std::pair<Proxy::Mode, std::string>>{{Proxy::Mode::kDelay, "late"},
                                                             {Proxy::Mode::kHold, "held"},
                                                             {Proxy::Mode::kSwallow, "swallowed"}};
    const auto& [mode, name] = dice_.Of(*modes);
    const absl::Duration delay = absl::Milliseconds(1 + dice_.Below(400));
    for (Proxy* proxy : proxies) proxy->Set(mode, delay);
    absl::SleepFor(time);
    for (Proxy* proxy : proxies) proxy->Set(Proxy::Mode::kPass);
    absl::SleepFor(kCutIsNoticed);  // senders of swallowed bytes have lost the connection
    return StrCat("for ", length, " the bytes ", whose, " were ", name,
                  mode == Proxy::Mode::kDelay ? " by " + absl::FormatDuration(delay) : "");
  }

  int Failed(const std::string& what, const absl::Status& status) {
    std::printf("FAILED with --seed %llu after this: %s: %s\n",
                static_cast<unsigned long long>(options_.seed), what.c_str(),
                status.ToString().c_str());
    for (int i = 0; cluster_ != nullptr && i < cluster_->size(); ++i) {
      std::printf("--- %s\n%s\n", cluster_->NameOf(i).c_str(),
                  client::LastLines(cluster_->Log(i), 20).c_str());
    }
    return 1;
  }

  const RunOptions options_;
  Dice dice_;
  absl::Duration longest_;
  std::unique_ptr<Proxy> workers_;
  std::unique_ptr<Proxy> clients_;
  std::unique_ptr<Cluster> cluster_;
};

}  // namespace

int RunNetwork(const RunOptions& options) { return NetworkRun(options).Run(); }

}  // namespace shardmesh::model
