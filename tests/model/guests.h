// Guests: clients that issue every call of the contract while processes are killed.
#ifndef SHARDMESH_TESTS_MODEL_GUESTS_H_
#define SHARDMESH_TESTS_MODEL_GUESTS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tests/model/dice.h"
#include "tests/model/random_client.h"

namespace shardmesh::model {

// While processes are killed, guests make random calls of every method: a call may be refused or
// lost, but ends in time and with no answer that says that something broke. Once all processes are
// ready again, new guests make random calls whose every answer must be the model's: no fault has
// left a method that does not work. Not thread-safe.
class Guests {
 public:
  // Each of `count` guests makes `calls` calls in a Check. `files`: see RandomClient.
  Guests(std::string address, std::string files, int count, int calls, uint64_t seed);
  ~Guests();

  void Resume();
  // Not OK: an answer that no fault explains.
  absl::Status Pause();
  // Removes the remains of guests, then tests the cluster, which must be intact.
  absl::Status Check();
  std::string Summary() const;

 private:
  absl::Status CleanUp();

  const std::string address_;
  const std::string files_;
  const int count_;
  const int calls_;
  Dice dice_;
  std::vector<std::string> methods_;
  SharedNames shared_;
  std::vector<std::thread> threads_;
  std::atomic<bool> is_over_ = true;
  // Number of the next guest. No two guests share a number, since their names contain it. Its first
  // digit stays 1, by which CleanUp recognises the names.
  int next_number_ = 100'000'000;
  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  int64_t under_faults_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t checked_ = 0;
};

}  // namespace shardmesh::model

#endif  // SHARDMESH_TESTS_MODEL_GUESTS_H_
