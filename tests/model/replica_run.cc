// Arrays with two replicas, whose tiles are in memory only, while workers are killed.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/model/dice.h"
#include "tests/model/process_cluster.h"
#include "tests/model/replica_client.h"
#include "tests/model/runs.h"

namespace shardmesh::model {
namespace {

constexpr absl::Duration kAllReadyWithin = absl::Seconds(60);
// The coordinator notices the end of a worker before the next one of that identity comes.
constexpr absl::Duration kLossIsNoticed = absl::Milliseconds(100);
constexpr int64_t kLongKills = 300;

// Kills a worker, which loses its tiles, and sometimes the coordinator too. `*what` says which. If
// only the worker is gone, the client reads meanwhile.
absl::Status LoseAWorker(Cluster& cluster, ReplicaClient& client, Dice& dice, std::string* what) {
  std::vector<int> victims = {1 + static_cast<int>(dice.Below(cluster.size() - 1))};
  if (dice.OneIn(4)) victims.push_back(0);
  *what = "kill -9 of";
  for (const int victim : victims) {
    StrAppend(what, " ", cluster.NameOf(victim));
    SHARDMESH_RETURN_IF_ERROR(cluster.Kill(victim));
  }
  absl::SleepFor(kLossIsNoticed);
  if (victims.size() == 1) SHARDMESH_RETURN_IF_ERROR(client.VerifyDuringLoss());
  for (const int victim : victims) SHARDMESH_RETURN_IF_ERROR(cluster.Restart(victim));
  return cluster.WaitUntilReady(kAllReadyWithin).status();
}

absl::Status Round(Cluster& cluster, ReplicaClient& client, Dice& dice, std::string* what) {
  for (int64_t changes = 2 + dice.Below(4); changes > 0; --changes) {
    SHARDMESH_RETURN_IF_ERROR(client.Change(dice));
  }
  // A worker that ends during copies takes along only arrays that are not yet there twice.
  if (!dice.OneIn(4)) SHARDMESH_RETURN_IF_ERROR(client.AwaitReplicas());
  SHARDMESH_RETURN_IF_ERROR(client.PrepareForLoss());
  SHARDMESH_RETURN_IF_ERROR(LoseAWorker(cluster, client, dice, what));
  return client.VerifyAfterLoss();
}

}  // namespace

int RunReplicas(const RunOptions& options) {
  Cluster::Options cluster_options;
  cluster_options.binary_folder = options.binary_folder;
  cluster_options.workers = 3;
  cluster_options.durable_coordinator = true;
  cluster_options.files = true;
  // After the coordinator was killed, arrays that only a session held are kept for a second.
  cluster_options.coordinator_flags = {"--unnamed-grace=1s"};
  auto cluster = Cluster::Start(cluster_options);
  if (!cluster.ok()) {
    std::printf("FAILED: %s\n", cluster.status().ToString().c_str());
    return 1;
  }
  ReplicaClient client((*cluster)->address(), (*cluster)->files());
  Dice dice(options.seed);
  std::string what = "the start";
  absl::Status status;
  const int64_t kills = options.is_long ? kLongKills : options.kills;
  for (int64_t kill = 0; kill < kills && status.ok(); ++kill) {
    status = Round(**cluster, client, dice, &what);
  }
  if (status.ok()) status = client.AwaitReplicas();
  if (status.ok()) status = client.CleanUp();
  if (!status.ok()) {
    std::printf("FAILED with --seed %llu, the last kill was: %s: %s\n",
                static_cast<unsigned long long>(options.seed), what.c_str(),
                status.ToString().c_str());
    for (int i = 0; i < (*cluster)->size(); ++i) {
      std::printf("--- %s\n%s\n", (*cluster)->NameOf(i).c_str(),
                  client::LastLines((*cluster)->Log(i), 20).c_str());
    }
    return 1;
  }
  std::printf("passed with --seed %llu: %lld kills; %s\n",
              static_cast<unsigned long long>(options.seed), static_cast<long long>(kills),
              client.Summary().c_str());
  return 0;
}

}  // namespace shardmesh::model
