// Time as it comes into the servers: the present, and functions to be called later.
#ifndef SHARDMESH_RPC_CLOCK_H_
#define SHARDMESH_RPC_CLOCK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace shardmesh::rpc {

// A source of time that never runs backwards, with a queue of functions to call at given times.
// Leases, heartbeats, deadlines and backoff take their time from here, so that a test can turn the
// hands of a FakeClock instead of waiting. Use an Alarm rather than CallAt.
//
// Thread-safe.
class Clock {
 public:
  // Names one call of CallAt; ordered by time, then by order of registration.
  using TimerId = std::pair<absl::Time, uint64_t>;

  virtual ~Clock() = default;

  virtual absl::Time Now() const = 0;

  // Calls `function` once, at `when` or as soon as possible after it (a time in the past counts as
  // now), never from within CallAt. All functions of a clock run on one thread, one at a time, in
  // the order of their times; they hold no lock of the clock and must not block.
  virtual TimerId CallAt(absl::Time when, std::function<void()> function) = 0;

  // Once Cancel has returned the function is not running and never will run again, unless Cancel is
  // called from within that very function. So do not hold a lock that the function takes. True if
  // it was prevented from running.
  virtual bool Cancel(TimerId timer) = 0;
};

// The time of this host: the wall clock's when constructed, and from there a steady clock's, so
// that an adjusted wall clock expires no leases. The destructor waits for a running function and
// drops those that are not due.
class RealClock final : public Clock {
 public:
  RealClock();
  ~RealClock() override;
  RealClock(const RealClock&) = delete;
  RealClock& operator=(const RealClock&) = delete;

  absl::Time Now() const override;
  TimerId CallAt(absl::Time when, std::function<void()> function) override;
  bool Cancel(TimerId timer) override;

 private:
  void Run();

  const absl::Time wall_start_;
  const int64_t steady_start_ns_;

  absl::Mutex mutex_;
  std::map<TimerId, std::function<void()>> timers_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  TimerId running_ ABSL_GUARDED_BY(mutex_);
  bool is_running_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::CondVar changed_;
  std::thread thread_;  // last: starts when everything above is there
};

// One function that is called at the time last set, for an object with a next deadline of its own.
// The time can be set from anywhere, the function itself included; a time already set later than
// the new one is replaced by it, one that is set earlier stays: the function then finds nothing to
// do, and sets the next. Destroy it before what the function touches, and without holding a lock
// that the function takes.
//
// Thread-safe.
class Alarm {
 public:
  // `clock` outlives the alarm.
  Alarm(Clock* clock, std::function<void()> function);
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  // Makes the function run no later than `when`. InfiniteFuture sets nothing.
  void SetNoLaterThan(absl::Time when);

 private:
  void Ring();

  Clock* const clock_;
  const std::function<void()> function_;

  absl::Mutex mutex_;
  Clock::TimerId timer_ ABSL_GUARDED_BY(mutex_);
  bool is_set_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CLOCK_H_
