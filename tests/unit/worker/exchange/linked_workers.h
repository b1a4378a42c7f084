// Workers of one process that are linked over real gRPC on loopback.
#ifndef SHARDMESH_TESTS_UNIT_WORKER_EXCHANGE_LINKED_WORKERS_H_
#define SHARDMESH_TESTS_UNIT_WORKER_EXCHANGE_LINKED_WORKERS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "rpc/server_lifecycle.h"
#include "rpc/stream/frame.h"
#include "sharding/mesh.h"
#include "status/str_cat.h"
#include "tensor/buffer.h"
#include "worker/exchange/membership_view.h"
#include "worker/exchange/peer_links.h"
#include "worker/shm/shm_arena.h"

namespace shardmesh::test {

// One worker: its links and the server that they are reached at.
class LinkedWorker {
 public:
  LinkedWorker(std::string identity, uint64_t incarnation, Clock* clock, int64_t tag_limit_bytes,
               std::string cluster_id, worker::Transport transport, bool measures = false,
               int64_t link_limit_bytes = int64_t{16} << 20, bool frame_checksums = false)
      : memory_(std::make_shared<Memory>(transport)) {
    worker::PeerLinks::Options options;
    options.self = {
        .identity = std::move(identity), .incarnation = incarnation, .boot_id = "this host"};
    options.transport = transport;
    options.frame_checksums = frame_checksums;
    options.arena = memory_->arena;
    if (measures) options.probe_pool = pool();
    options.clock = clock;
    options.tag_limit_bytes = tag_limit_bytes;
    options.link_limit_bytes = link_limit_bytes;
    options.budget = &memory_->budget;
    options.redial = {.initial_delay = absl::Milliseconds(10),
                      .max_delay = absl::Milliseconds(100)};
    options.peers_changed = [this](int64_t epoch, const std::vector<std::string>& unreached) {
      absl::MutexLock lock(&mutex_);
      epoch_ = epoch;
      unreached_ = unreached;
    };
    device_.identity = options.self.identity;
    device_.incarnation = incarnation;
    links_ = worker::PeerLinks::Create(std::move(options));
    links_->SetClusterId(std::move(cluster_id));
    rpc::ServerOptions server;
    server.max_message_bytes = rpc::kMaxFrameBytes;
    server.health = false;
    server.customize = [this](grpc::ServerBuilder& builder) { links_->Customize(builder); };
    server.on_drain = [this] { links_->Close(); };
    server_ = *rpc::ServerLifecycle::Start(server,
                                           {{worker::PeerLinks::kServiceName, links_->service()}});
    links_->Start();
    device_.endpoints = {server_->address()};
  }
  ~LinkedWorker() {
    server_->Drain(absl::Now() + absl::Seconds(5));
    links_.reset();
  }

  worker::PeerLinks& links() { return *links_; }
  // For what is to be sent: what the peers can read, if memory is shared. Outlives the worker; to
  // be kept for as long as there are buffers of it.
  std::shared_ptr<BufferPool> pool() const { return {memory_, memory_->pool.get()}; }
  // Its rank is to be filled in.
  const worker::MeshDevice& device() const { return device_; }

  // Whether all peers of the epoch are reached before the deadline.
  bool AwaitReached(int64_t epoch, absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return epoch_ == epoch && unreached_.empty();
    };
    return mutex_.AwaitWithDeadline(absl::Condition(&reached), deadline);
  }
  // Whether exactly these peers are not reached, before the deadline.
  bool AwaitUnreached(const std::vector<std::string>& peers, absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    const auto lost = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return unreached_ == peers; };
    return mutex_.AwaitWithDeadline(absl::Condition(&lost), deadline);
  }

 private:
  struct Memory {
    explicit Memory(worker::Transport transport)
        : arena(transport == worker::Transport::kStream
                    ? nullptr
                    : std::make_shared<worker::ShmArena>("shardmesh-test")),
          pool(BufferPool::Create(&budget, 0, arena)) {}

    MemoryBudget budget{int64_t{1} << 30};
    const std::shared_ptr<worker::ShmArena> arena;
    const std::shared_ptr<BufferPool> pool;
  };

  const std::shared_ptr<Memory> memory_;
  worker::MeshDevice device_;
  std::unique_ptr<worker::PeerLinks> links_;
  std::unique_ptr<rpc::ServerLifecycle> server_;
  absl::Mutex mutex_;
  int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> unreached_ ABSL_GUARDED_BY(mutex_);
};

// The workers worker-0 ... of the mesh "default", worker-r serving rank r.
class LinkedWorkers {
 public:
  explicit LinkedWorkers(const std::string& mesh, int64_t tag_limit_bytes = int64_t{4} << 20,
                         worker::Transport transport = worker::Transport::kStream,
                         bool measures = false, int64_t link_limit_bytes = int64_t{16} << 20,
                         bool frame_checksums = false)
      : mesh_(*Mesh::Parse(mesh)) {
    for (DeviceId rank = 0; rank < mesh_.size(); ++rank) {
      workers_.push_back(std::make_unique<LinkedWorker>(
          StrCat("worker-", rank), 100 + rank, &clock_, tag_limit_bytes, "cluster", transport,
          measures, link_limit_bytes, frame_checksums));
    }
  }

  RealClock& clock() { return clock_; }
  const Mesh& mesh() const { return mesh_; }
  int64_t size() const { return mesh_.size(); }
  worker::PeerLinks& links(DeviceId rank) { return workers_[static_cast<size_t>(rank)]->links(); }
  // A message of that rank, where its peers can read it.
  worker::OwnedBytes Own(DeviceId rank, std::string_view bytes) {
    auto buffer = std::make_shared<Buffer>(
        *worker(rank).pool()->Allocate(static_cast<int64_t>(bytes.size()), "a message"));
    std::copy(bytes.begin(), bytes.end(), buffer->data());
    return {buffer->bytes(), buffer};
  }
  LinkedWorker& worker(DeviceId rank) { return *workers_[static_cast<size_t>(rank)]; }

  worker::MembershipView View(int64_t epoch) const {
    worker::MembershipView view{.epoch = epoch, .term = 1, .meshes = {}};
    worker::MeshMembers members{.mesh_id = "default", .revision = 1, .mesh = mesh_, .devices = {}};
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      if (workers_[rank] == nullptr) continue;
      members.devices.push_back(workers_[rank]->device());
      members.devices.back().rank = static_cast<DeviceId>(rank);
    }
    view.meshes.push_back(std::move(members));
    return view;
  }
  // Tells all workers the present membership and waits until all have reached one another.
  bool Connect(int64_t epoch) {
    const worker::MembershipView view = View(epoch);
    for (auto& worker : workers_) worker->links().SetMembership(view);
    for (auto& worker : workers_) {
      if (!worker->AwaitReached(epoch, absl::Now() + absl::Seconds(20))) return false;
    }
    return true;
  }
  // The worker's process is gone.
  void Kill(DeviceId rank) { workers_[static_cast<size_t>(rank)].reset(); }

 private:
  RealClock clock_;
  const Mesh mesh_;
  std::vector<std::unique_ptr<LinkedWorker>> workers_;
};

// For tests that run over both ways.
inline std::string TransportName(const ::testing::TestParamInfo<worker::Transport>& tested) {
  return tested.param == worker::Transport::kStream ? "Stream" : "SharedMemory";
}

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_UNIT_WORKER_EXCHANGE_LINKED_WORKERS_H_
