// Each failpoint of each program once, under a scripted load.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "status/str_cat.h"
#include "tests/model/durable_client.h"
#include "tests/model/process_cluster.h"
#include "tests/model/runs.h"

namespace shardmesh::model {
namespace {

constexpr absl::Duration kReadyAtLast = absl::Seconds(60);
constexpr absl::Duration kPatience = absl::Seconds(15);
// With --long: most passes of one place that are tried; for system calls all are tried.
constexpr int kMostPasses = 12;
// Without --long one pass is tried, mostly an early one.
constexpr int64_t kLatestPass = 30;

struct Case {
  int process = 0;  // 0: the coordinator, 1: a worker
  std::string name;
  std::string action;
  int pass = 1;
  int last_pass = 1;  // of --long

  bool is_error() const { return action != "crash" && action != "delay"; }
  std::string ToString() const {
    return StrCat(process == 0 ? "coordinator" : "worker", " --failpoints=", name, "=", action, ":",
                  pass);
  }
};

// A failpoint of a program, and its possible actions.
struct Named {
  std::string name;
  std::vector<std::string> actions;

  // Where the system is asked for something: a file, a mapping.
  bool is_system_call() const {
    for (const char* prefix : {"file.", "sqlite.", "memory.", "shm."}) {
      if (absl::StartsWith(name, prefix)) return true;
    }
    return absl::StrContains(name, ".rename_");
  }
};

std::vector<Named> FailpointsOf(const std::string& program) {
  std::vector<Named> names;
  FILE* const pipe = popen((program + " --list-failpoints").c_str(), "r");
  if (pipe == nullptr) return names;
  char line[256];
  while (fgets(line, sizeof(line), pipe) != nullptr) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \n"));
    if (words.size() < 2) continue;
    names.push_back({words[0], absl::StrSplit(words[1], ',')});
  }
  pclose(pipe);
  return names;
}

std::vector<Case> Cases(const RunOptions& options, size_t* distinct) {
  Dice dice(options.seed);
  std::vector<Case> cases;
  std::vector<std::string> known;
  for (const int process : {0, 1}) {
    const std::vector<Named> failpoints = FailpointsOf(
        options.binary_folder + (process == 0 ? "/shardmesh-coordinator" : "/shardmesh-worker"));
    for (const Named& each : failpoints) {
      known.push_back(each.name);
      if (!options.only.empty() && !absl::StrContains(each.name, options.only)) continue;
      for (const std::string& action : each.actions) {
        const int pass =
            options.is_long || dice.OneIn(2) ? 1 : 1 + static_cast<int>(dice.Below(kLatestPass));
        cases.push_back({process, each.name, action, pass,
                         each.is_system_call() && action != "delay"
                             ? std::numeric_limits<int>::max()
                             : kMostPasses});
      }
    }
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  *distinct = known.size();
  // Another order with each seed, so that a run that is cut short tries others.
  for (size_t i = cases.size(); i > 1; --i) {
    std::swap(cases[i - 1], cases[static_cast<size_t>(dice.Below(static_cast<int64_t>(i)))]);
  }
  return cases;
}

// One cluster, on which one case after the other is tried.
class FailpointRun {
 public:
  FailpointRun(std::unique_ptr<Cluster> cluster)
      : cluster_(std::move(cluster)), client_(0, cluster_->address(), cluster_->files()) {
    client_.set_patience(kPatience);
  }

  // Returns whether the failpoint was passed, or the error found.
  absl::StatusOr<bool> Try(const Case& each) {
    const int process = each.process;
    if (const absl::Status killed = cluster_->Kill(process); !killed.ok()) return killed;
    bool is_hit = false;
    const std::string hit = StrCat("failpoint ", each.name, " hit");
    if (const absl::Status started = cluster_->Restart(
            process, {StrCat("--failpoints=", each.name, "=", each.action, ":", each.pass)});
        !started.ok()) {
      return started;
    }
    // A process that ends, as it may, is started again without it.
    const auto revive = [&]() -> absl::Status {
      if (!cluster_->Ended(process).has_value()) return absl::OkStatus();
      is_hit = is_hit || absl::StrContains(cluster_->Log(process), hit);
      if (!is_hit) {
        return absl::InternalError(StrCat(cluster_->NameOf(process), " ", *cluster_->Ended(process),
                                          " without its failpoint:\n",
                                          client::LastLines(cluster_->Log(process), 15)));
      }
      return cluster_->Restart(process);
    };
    const auto await_ready = [&]() -> absl::Status {
      const absl::Time deadline = absl::Now() + kReadyAtLast;
      for (;;) {
        if (const absl::Status revived = revive(); !revived.ok()) return revived;
        const auto ready = cluster_->WaitUntilReady(deadline - absl::Now());
        if (ready.ok()) return absl::OkStatus();
        const bool has_ended = cluster_->Ended(process).has_value();
        if (!has_ended || absl::Now() > deadline) return ready.status();
      }
    };
    if (const absl::Status ready = await_ready(); !ready.ok()) return ready;
    // The process may end at any call of the client.
    const auto while_reviving = [&](absl::FunctionRef<absl::Status()> calls) -> absl::Status {
      absl::Status called;
      std::atomic<bool> is_over = false;
      std::thread client([&] {
        called = calls();
        is_over = true;
      });
      absl::Status revived;
      while (!is_over) {
        absl::SleepFor(absl::Milliseconds(10));
        if (revived.ok()) revived = revive();
      }
      client.join();
      return revived.ok() ? called : revived;
    };
    const auto verify = [&] { return client_.Verify(absl::Now() + absl::Seconds(20)); };
    const auto verify_after_restart = [&]() -> absl::Status {
      if (const absl::Status killed = cluster_->Kill(process); !killed.ok()) return killed;
      if (const absl::Status started = cluster_->Restart(process); !started.ok()) return started;
      if (const absl::Status ready = await_ready(); !ready.ok()) return ready;
      return verify();
    };
    const auto verify_armed = [&]() -> absl::Status {
      if (const absl::Status ready = await_ready(); !ready.ok()) return ready;
      const absl::Status verified = while_reviving(verify);
      is_hit = is_hit || absl::StrContains(cluster_->Log(process), hit);
      // Tiles that a disk does not deliver cannot be read. They must exist after the next start.
      const bool may_miss_tiles = is_hit && process != 0 && each.is_error();
      return verified.ok() || !may_miss_tiles ? verified : verify_after_restart();
    };
    if (const absl::Status verified = verify_armed(); !verified.ok()) return verified;
    if (const absl::Status scripted = while_reviving([&] { return client_.Script(); });
        !scripted.ok()) {
      return scripted;
    }
    if (const absl::Status verified = verify_armed(); !verified.ok()) return verified;
    // One that was not passed must not be passed in the next try.
    if (!is_hit || each.action != "delay") {
      if (const absl::Status again = verify_after_restart(); !again.ok()) return again;
    }
    return is_hit;
  }

  std::string Logs() const {
    std::string text;
    for (int i = 0; i < cluster_->size(); ++i) {
      text +=
          StrCat("--- ", cluster_->NameOf(i), "\n", client::LastLines(cluster_->Log(i), 20), "\n");
    }
    return text;
  }

 private:
  const std::unique_ptr<Cluster> cluster_;
  DurableClient client_;
};

}  // namespace

int RunFailpoints(const RunOptions& options) {
  size_t distinct = 0;
  const std::vector<Case> cases = Cases(options, &distinct);
  constexpr size_t kFewest = 60;
  if (distinct < kFewest) {
    std::printf("FAILED: the programs have %zu failpoints; at least %zu are wanted\n", distinct,
                kFewest);
    return 1;
  }
  Cluster::Options cluster_options;
  cluster_options.binary_folder = options.binary_folder;
  cluster_options.durable = true;
  cluster_options.files = true;
  const absl::Time end = absl::Now() + options.time;
  std::unique_ptr<FailpointRun> run;
  size_t tried = 0;
  size_t hit = 0;
  std::vector<std::string> not_passed;
  for (const Case& each : cases) {
    if (!options.is_long && absl::Now() > end) break;
    Case one = each;
    one.last_pass = options.is_long ? each.last_pass : each.pass;
    for (; one.pass <= one.last_pass; ++one.pass) {
      if (run == nullptr) {
        auto cluster = Cluster::Start(cluster_options);
        if (!cluster.ok()) {
          std::printf("FAILED: %s\n", cluster.status().ToString().c_str());
          return 1;
        }
        run = std::make_unique<FailpointRun>(*std::move(cluster));
      }
      const absl::StatusOr<bool> result = run->Try(one);
      ++tried;
      if (!result.ok()) {
        std::printf("FAILED with --seed %llu at %s: %s\n%s",
                    static_cast<unsigned long long>(options.seed), one.ToString().c_str(),
                    result.status().ToString().c_str(), run->Logs().c_str());
        return 1;
      }
      if (options.is_long && tried % 100 == 0) {
        std::printf("%zu tries of %zu cases so far, the last: %s\n", tried, cases.size(),
                    one.ToString().c_str());
        std::fflush(stdout);
      }
      if (!*result) {
        if (one.pass == 1 && one.action == "crash") not_passed.push_back(one.name);
        break;
      }
      ++hit;
    }
  }
  std::printf("passed with --seed %llu: %zu failpoints; %zu tries, of which %zu were passed\n",
              static_cast<unsigned long long>(options.seed), distinct, tried, hit);
  for (const std::string& name : not_passed) {
    std::printf("the load does not pass %s\n", name.c_str());
  }
  return 0;
}

}  // namespace shardmesh::model
