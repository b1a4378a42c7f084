// Load: clients that change and read a cluster all the time.
#ifndef SHARDMESH_TESTS_MODEL_LOAD_H_
#define SHARDMESH_TESTS_MODEL_LOAD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/model/dice.h"
#include "tests/model/durable_client.h"

namespace shardmesh::model {

// Clients that work until they are paused.
class Load {
 public:
  Load(const std::string& address, const std::string& files, int clients, uint64_t seed) {
    for (int i = 0; i < clients; ++i) {
      clients_.push_back(std::make_unique<DurableClient>(i, address, files));
      seeds_.emplace_back(seed * 7919 + static_cast<uint64_t>(i));
    }
  }

  ~Load() { Pause().IgnoreError(); }

  void Resume() {
    {
      absl::MutexLock lock(&mutex_);
      is_paused_ = false;
    }
    for (size_t i = 0; i < clients_.size(); ++i) {
      threads_.emplace_back([this, i] {
        while (!is_paused()) {
          const absl::Status status = clients_[i]->Step(seeds_[i]);
          absl::MutexLock lock(&mutex_);
          if (!status.ok() && failure_.ok()) failure_ = status;
          if (!failure_.ok()) return;
        }
      });
    }
  }
  // Each client has the answer of its last call, or no longer waits for it.
  absl::Status Pause() {
    {
      absl::MutexLock lock(&mutex_);
      is_paused_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    absl::MutexLock lock(&mutex_);
    return failure_;
  }
  absl::Status Verify(absl::Time deadline) {
    for (auto& client : clients_) SHARDMESH_RETURN_IF_ERROR(client->Verify(deadline));
    return absl::OkStatus();
  }
  std::string Summary() const {
    int64_t acknowledged = 0;
    int64_t without = 0;
    for (const auto& client : clients_) {
      acknowledged += client->acknowledged();
      without += client->without_answer();
    }
    return StrCat(acknowledged, " changes acknowledged, ", without, " without an answer");
  }

 private:
  bool is_paused() const {
    absl::MutexLock lock(&mutex_);
    return is_paused_;
  }

  std::vector<std::unique_ptr<DurableClient>> clients_;
  std::vector<Dice> seeds_;
  std::vector<std::thread> threads_;
  mutable absl::Mutex mutex_;
  bool is_paused_ ABSL_GUARDED_BY(mutex_) = true;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::model

#endif  // SHARDMESH_TESTS_MODEL_LOAD_H_
