// Random calls of several clients at once, and the shortest sequence that fails.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "shardmesh/v1/array_service.pb.h"
#include "shardmesh/v1/cluster_service.pb.h"
#include "status/str_cat.h"
#include "tests/model/process_cluster.h"
#include "tests/model/random_client.h"
#include "tests/model/remains.h"
#include "tests/model/runs.h"

namespace shardmesh::model {
namespace {

// Most memory of a process at the end of a run.
constexpr int64_t kMostMemoryBytes = int64_t{1} << 30;
// A longer sequence is only in its file.
constexpr size_t kMostPrinted = 200;

// The calls in the order in which they began.
class Sequence {
 public:
  void Add(const Op& op) {
    absl::MutexLock lock(&mutex_);
    ops_.push_back(op);
  }
  std::vector<Op> ops() const {
    absl::MutexLock lock(&mutex_);
    return ops_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<Op> ops_ ABSL_GUARDED_BY(mutex_);
};

std::optional<std::string> EndedProcess(Cluster& cluster) {
  for (int i = 0; i < cluster.size(); ++i) {
    if (const auto end = cluster.Ended(i); end.has_value()) {
      return StrCat(cluster.NameOf(i), " ", *end, "; its log ends:\n",
                    client::LastLines(cluster.Log(i), 12));
    }
  }
  return std::nullopt;
}

// Nullopt if everything was given back.
std::optional<std::string> CheckEnd(Cluster& cluster,
                                    const std::vector<std::unique_ptr<RandomClient>>& clients) {
  for (const auto& client : clients) {
    if (const absl::Status finished = client->Finish(); !finished.ok()) {
      return std::string(finished.message());
    }
  }
  const Caller caller(cluster.address());
  v1::ListArraysRequest list;
  list.set_prefix("shared/");
  v1::ListArraysResponse listed;
  if (const absl::Status status = caller.Call("ArrayService.ListArrays", list, &listed);
      !status.ok()) {
    return status.ToString();
  }
  for (const v1::Array& array : listed.arrays()) {
    v1::DeleteNameRequest request;
    request.set_request_id("the-end-" + array.name());
    request.set_name(array.name());
    v1::DeleteNameResponse response;
    if (const absl::Status status = caller.Call("ArrayService.DeleteName", request, &response);
        !status.ok()) {
      return status.ToString();
    }
  }
  if (const std::string left = AwaitNothingLeft(caller); !left.empty()) {
    return StrCat("after the last session ", left);
  }
  for (int i = 0; i < cluster.size(); ++i) {
    if (cluster.MemoryBytes(i) > kMostMemoryBytes) {
      return StrCat(cluster.NameOf(i), " has ", cluster.MemoryBytes(i), " bytes of memory");
    }
  }
  return EndedProcess(cluster);
}

Cluster::Options ClusterOptions(const RunOptions& options) {
  Cluster::Options cluster;
  cluster.binary_folder = options.binary_folder;
  cluster.durable_coordinator = true;  // snapshots are of a state on disk
  cluster.files = true;
  return cluster;
}

// How a sequence fails on a fresh cluster; nullopt if it does not.
std::optional<std::string> Replay(const RunOptions& options, const std::vector<Op>& ops,
                                  bool at_once) {
  auto cluster = Cluster::Start(ClusterOptions(options));
  if (!cluster.ok()) return std::string(cluster.status().message());
  SharedNames shared;
  int count = 0;
  for (const Op& op : ops) count = std::max(count, op.client + 1);
  std::vector<std::unique_ptr<RandomClient>> clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(
        std::make_unique<RandomClient>(i, (*cluster)->address(), (*cluster)->files(), &shared));
  }
  absl::Mutex mutex;
  std::optional<std::string> failure;
  const auto run = [&](int client) {
    for (const Op& op : ops) {
      if (client >= 0 && op.client != client) continue;
      const absl::Status status = clients[static_cast<size_t>(op.client)]->Run(op);
      absl::MutexLock lock(&mutex);
      if (!status.ok() && !failure.has_value()) {
        failure = StrCat("client ", op.client, " ", op.method, ": ", ToStd(status.message()));
      }
      if (failure.has_value()) return;
    }
  };
  if (at_once) {
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) threads.emplace_back(run, i);
    for (std::thread& thread : threads) thread.join();
  } else {
    run(-1);
  }
  if (const auto ended = EndedProcess(**cluster); ended.has_value()) return ended;
  return failure.has_value() ? failure : CheckEnd(**cluster, clients);
}

void Print(const std::vector<Op>& ops) {
  for (const Op& op : ops) {
    std::printf("%d %s %llu\n", op.client, op.method.c_str(),
                static_cast<unsigned long long>(op.seed));
  }
}

void Write(const std::string& path, const std::vector<Op>& ops) {
  std::ofstream file(path);
  for (const Op& op : ops) file << op.client << " " << op.method << " " << op.seed << "\n";
}

std::vector<Op> Read(const std::string& path) {
  std::vector<Op> ops;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    Op op;
    if (words >> op.client >> op.method >> op.seed) ops.push_back(op);
  }
  return ops;
}

// Removes unnecessary ops, in ever smaller parts, until `deadline`.
std::vector<Op> Minimise(const RunOptions& options, std::vector<Op> ops, bool at_once,
                         absl::Time deadline, std::string* failure) {
  size_t part = std::max<size_t>(1, ops.size() / 2);
  while (absl::Now() < deadline) {
    bool is_shorter = false;
    for (size_t begin = 0; begin < ops.size() && absl::Now() < deadline;) {
      std::vector<Op> rest(ops.begin(), ops.begin() + static_cast<ptrdiff_t>(begin));
      rest.insert(rest.end(),
                  ops.begin() + static_cast<ptrdiff_t>(std::min(begin + part, ops.size())),
                  ops.end());
      if (const auto fails = Replay(options, rest, at_once); fails.has_value()) {
        *failure = *fails;
        ops = std::move(rest);
        is_shorter = true;
      } else {
        begin += part;
      }
    }
    if (part == 1 && !is_shorter) break;
    if (!is_shorter || part > ops.size()) part = std::max<size_t>(1, part / 2);
  }
  return ops;
}

int Report(const RunOptions& options, std::string failure, std::vector<Op> ops) {
  std::printf("FAILED with --seed %llu after %zu calls:\n%s\n",
              static_cast<unsigned long long>(options.seed), ops.size(), failure.c_str());
  const std::string path = StrCat("/tmp/shardmesh-model-", options.seed, ".sequence");
  Write(path, ops);
  std::printf("the sequence is in %s; see it again with --replay %s\n", path.c_str(), path.c_str());
  std::fflush(stdout);
  if (options.minimise <= absl::ZeroDuration()) return 1;
  const absl::Time deadline = absl::Now() + options.minimise;
  bool at_once = false;
  std::optional<std::string> again = Replay(options, ops, at_once);
  for (int i = 0; i < 3 && !again.has_value(); ++i) again = Replay(options, ops, at_once = true);
  if (!again.has_value()) {
    std::printf("the sequence did not fail again: it needs a certain timing\n");
    return 1;
  }
  failure = *again;
  ops = Minimise(options, std::move(ops), at_once, deadline, &failure);
  Write(path, ops);
  std::printf("the shortest that was found fails %s, %zu calls, in %s:\n",
              at_once ? "with all clients at once" : "one call after the other", ops.size(),
              path.c_str());
  if (ops.size() <= kMostPrinted) Print(ops);
  std::printf("%s\n", failure.c_str());
  return 1;
}

// Every rpc of the contract's files must be known, so that a new service is not forgotten.
std::optional<std::string> CheckComplete() {
  for (const std::string& name : RandomClient::MethodsWithoutCaller()) {
    return StrCat(name,
                  " has no caller in tests/model/random_client.cc, nor a valid question in "
                  "tests/model/questions.cc; give it one");
  }
  std::set<std::string> known;
  for (const auto& [name, method] : AllMethods()) known.insert(method->name());
  size_t rpcs = 0;
  for (const std::string& path : ContractFiles()) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
      const std::string rpc = "  rpc ";
      if (line.rfind(rpc, 0) != 0) continue;
      ++rpcs;
      const std::string name = line.substr(rpc.size(), line.find('(') - rpc.size());
      if (known.count(name) == 0) {
        return StrCat(name, " of ", path,
                      " is not among AllMethods in tests/model/contract_caller.cc");
      }
    }
  }
  if (rpcs != AllMethods().size()) {
    return StrCat("the contract has ", rpcs, " calls, AllMethods ", AllMethods().size());
  }
  return std::nullopt;
}

}  // namespace

int RunRandom(const RunOptions& options) {
  if (const auto incomplete = CheckComplete(); incomplete.has_value()) {
    std::printf("FAILED: %s\n", incomplete->c_str());
    return 1;
  }
  if (!options.replay.empty()) {
    const std::vector<Op> ops = Read(options.replay);
    if (ops.empty()) {
      std::printf("FAILED: there are no calls in %s\n", options.replay.c_str());
      return 1;
    }
    std::optional<std::string> failure = Replay(options, ops, /*at_once=*/false);
    for (int i = 0; i < 3 && !failure.has_value(); ++i) failure = Replay(options, ops, true);
    std::printf("%s\n", failure.has_value() ? StrCat("FAILED: ", *failure).c_str() : "it passes");
    return failure.has_value() ? 1 : 0;
  }
  auto cluster = Cluster::Start(ClusterOptions(options));
  if (!cluster.ok()) {
    std::printf("FAILED: %s\n", cluster.status().ToString().c_str());
    return 1;
  }
  std::vector<std::string> methods;
  for (const auto& [name, method] : AllMethods()) {
    for (int i = 0; i < RandomClient::WeightOf(name); ++i) methods.push_back(name);
  }
  SharedNames shared;
  Sequence sequence;
  absl::Mutex mutex;
  std::optional<std::string> failure;
  std::atomic<bool> is_over = false;
  std::vector<std::unique_ptr<RandomClient>> clients;
  for (int i = 0; i < options.clients; ++i) {
    clients.push_back(
        std::make_unique<RandomClient>(i, (*cluster)->address(), (*cluster)->files(), &shared));
  }
  std::map<std::string, int64_t> calls;
  std::vector<std::thread> threads;
  for (int i = 0; i < options.clients; ++i) {
    threads.emplace_back([&, i] {
      Dice dice(options.seed * 1000003 + static_cast<uint64_t>(i));
      while (!is_over) {
        const Op op{i, dice.Of(methods), dice.Next()};
        sequence.Add(op);
        const absl::Status status = clients[static_cast<size_t>(i)]->Run(op);
        absl::MutexLock lock(&mutex);
        ++calls[op.method];
        if (!status.ok()) {
          if (!failure.has_value()) {
            failure =
                StrCat("client ", i, " ", op.method, " ", op.seed, ": ", ToStd(status.message()));
          }
          is_over = true;
        }
      }
    });
  }
  const absl::Time end = absl::Now() + options.time;
  while (!is_over && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(50));
    for (int i = 0; i < (*cluster)->size(); ++i) {
      if ((*cluster)->Ended(i).has_value()) is_over = true;
    }
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  // A process that ended is the cause of its clients' errors.
  if (auto ended = EndedProcess(**cluster); ended.has_value()) failure = ended;
  if (!failure.has_value()) failure = CheckEnd(**cluster, clients);
  int64_t all = 0;
  for (const auto& [name, count] : calls) all += count;
  if (failure.has_value()) {
    cluster->reset();
    return Report(options, *failure, sequence.ops());
  }
  for (const auto& [name, method] : AllMethods()) {
    if (calls[name] == 0 && options.time >= absl::Seconds(10)) {
      std::printf("FAILED: %s was never called in %lld calls\n", name.c_str(),
                  static_cast<long long>(all));
      return 1;
    }
  }
  std::printf("passed with --seed %llu: %lld calls of %zu methods by %lld clients\n",
              static_cast<unsigned long long>(options.seed), static_cast<long long>(all),
              AllMethods().size(), static_cast<long long>(options.clients));
  return 0;
}

}  // namespace shardmesh::model
