// Threads of two clients, each with collectives under way.
#include "tests/integration/opposite_orders.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/mesh_client.h"
#include "status/status_macros.h"

namespace shardmesh::test {
namespace {

constexpr int kThreadsOfAClient = 3;

}  // namespace

absl::StatusOr<int64_t> RunInOppositeOrders(const std::string& address, absl::Duration duration) {
  const std::vector<std::vector<std::string>> groups = {{"fsdp"}, {"tp"}, {"fsdp", "tp"}};
  std::vector<std::unique_ptr<client::MeshClient>> clients;
  for (int i = 0; i < 2; ++i) {
    SHARDMESH_ASSIGN_OR_RETURN(clients.emplace_back(), client::MeshClient::Connect(address));
  }
  const absl::Time end = absl::Now() + duration;
  absl::Mutex mutex;
  absl::Status failure;
  int64_t done = 0;
  const auto run = [&](client::MeshClient& client, bool backwards, size_t first) {
    for (size_t i = first; absl::Now() < end; ++i) {
      const size_t place = i % groups.size();
      const absl::Status status =
          client.compute()
              .Collective({.input = client::ArraySelector::ByName("m"),
                           .kind = CollectiveKind::kAllReduce,
                           .axes = groups[backwards ? groups.size() - 1 - place : place]})
              .status();
      absl::MutexLock lock(&mutex);
      failure.Update(status);
      ++done;
      if (!failure.ok()) return;
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < clients.size(); ++i) {
    for (size_t thread = 0; thread < kThreadsOfAClient; ++thread) {
      threads.emplace_back([&, i, thread] { run(*clients[i], i == 1, thread); });
    }
  }
  for (std::thread& thread : threads) thread.join();
  SHARDMESH_RETURN_IF_ERROR(failure);
  return done;
}

}  // namespace shardmesh::test
