// Time as it comes into the servers: the present, and functions to be called later.
#ifndef SHARDMESH_PROCESS_CLOCK_H_
#define SHARDMESH_PROCESS_CLOCK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
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

  // True if the function will now never be called; false if it was called before, or is being
  // called at this moment, which is not waited for. Callable with any lock held.
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

  // Waits for a running function; none is called from here on. What uses the clock can then be
  // taken apart in any order. Not from a function of the clock. A second call does nothing.
  void Stop();

 private:
  void Run();

  const absl::Time wall_start_;
  const int64_t steady_start_ns_;

  absl::Mutex mutex_;
  std::map<TimerId, std::function<void()>> timers_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::CondVar changed_;
  std::thread thread_;  // last: starts when everything above is there
};

// One function that is called at the time last set, for an object with a next deadline of its own.
// The time can be set from anywhere, the function itself included, with any lock held. Once the
// destructor has returned the function is not running and will not be called again (unless it is
// the function itself that destroys the alarm): make the alarm an object's last member, and do not
// destroy it under a lock that the function takes.
//
// Thread-safe.
class Alarm {
 public:
  // `clock` outlives the alarm.
  Alarm(Clock* clock, std::function<void()> function);
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  // Has the function called at `when`, unless an earlier time is set: it will then find nothing to
  // do yet, and set the alarm again. InfiniteFuture sets nothing.
  void SetNoLaterThan(absl::Time when);

 private:
  // Outlives the alarm in calls that the clock has already begun.
  struct State {
    std::function<void()> function;  // constant

    absl::Mutex mutex;
    bool is_set ABSL_GUARDED_BY(mutex) = false;
    Clock::TimerId timer ABSL_GUARDED_BY(mutex);  // while is_set
    uint64_t setting ABSL_GUARDED_BY(mutex) = 0;  // counts timers; only the last one counts
    bool is_running ABSL_GUARDED_BY(mutex) = false;
    std::thread::id runner ABSL_GUARDED_BY(mutex);  // while is_running
    bool stopping ABSL_GUARDED_BY(mutex) = false;
  };
  static void Ring(State& state, uint64_t setting);

  Clock* const clock_;
  const std::shared_ptr<State> state_;
};

// For people: `5s`, `1.2s`, `350ms`; cut to tenths of a second, below one second to milliseconds.
std::string FormatRounded(absl::Duration duration);

// What the wall clock will show when `clock` shows `time`, if nobody steps it until then. For waits
// of Abseil's, which take times of the wall clock: a RealClock goes on from the wall clock's time
// of its own start, and may be far from it by now. An infinite time stays so.
inline absl::Time WallTime(const Clock& clock, absl::Time time) {
  return absl::Now() + (time - clock.Now());
}

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_PROCESS_CLOCK_H_
