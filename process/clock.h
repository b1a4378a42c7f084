// The servers' source of time: the present time, and functions to call later.
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

namespace shardmesh {

// A source of time that never runs backwards, with a queue of functions to call at given times.
// Leases, heartbeats, deadlines and backoff use it, so that a test can advance a FakeClock instead
// of waiting. Use an Alarm rather than CallAt.
//
// Thread-safe.
class Clock {
 public:
  // Identifies one call of CallAt; ordered by time, then by order of registration.
  using TimerId = std::pair<absl::Time, uint64_t>;

  virtual ~Clock() = default;

  virtual absl::Time Now() const = 0;

  // Calls `function` once, at `when` or as soon as possible after it. A time in the past counts as
  // now. The call never happens inside CallAt. All functions of a clock run on one thread, one at a
  // time, in the order of their times. They run without any lock of the clock and must not block.
  virtual TimerId CallAt(absl::Time when, std::function<void()> function) = 0;

  // Returns true if the function will never be called. Returns false if it was called before or is
  // running now; Cancel does not wait for its end. Callable with any lock held.
  virtual bool Cancel(TimerId timer) = 0;
};

// The time of this host: the wall clock at construction, advanced by a steady clock. A step of the
// wall clock therefore expires no leases. The destructor waits for a running function and drops
// the functions that are not due.
class RealClock final : public Clock {
 public:
  RealClock();
  ~RealClock() override;
  RealClock(const RealClock&) = delete;
  RealClock& operator=(const RealClock&) = delete;

  absl::Time Now() const override;
  TimerId CallAt(absl::Time when, std::function<void()> function) override;
  bool Cancel(TimerId timer) override;

  // Waits for a running function; no function is called afterwards. The users of the clock can then
  // be destroyed in any order. Must not be called from a function of the clock. A second call does
  // nothing.
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
  std::thread thread_;  // last: starts when all members above exist
};

// Calls one function at the earliest of the times that were set since the function's last call. Use
// it in an object that has one next deadline.
//
// Any thread can set the time, with any lock held, also from within the function. After the
// destructor returns, the function is not running and is never called again, unless the function
// itself destroys the alarm. Make the alarm the last member of its object. Do not destroy it under
// a lock that the function takes.
//
// Thread-safe.
class Alarm {
 public:
  // `clock` outlives the alarm.
  Alarm(Clock* clock, std::function<void()> function);
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  // Schedules the function at `when`, unless an earlier time is already set. If an earlier time is
  // set, the function runs only at that time. If the function finds nothing due at that time, it
  // must set the alarm again. InfiniteFuture sets nothing.
  void SetNoLaterThan(absl::Time when);

 private:
  // Shared with function calls that the clock has already begun: these can outlive the alarm.
  struct State {
    std::function<void()> function;  // constant

    absl::Mutex mutex;
    bool is_set ABSL_GUARDED_BY(mutex) = false;
    Clock::TimerId timer ABSL_GUARDED_BY(mutex);  // while is_set
    // Number of the latest timer. Earlier timers do not call the function.
    uint64_t setting ABSL_GUARDED_BY(mutex) = 0;
    bool is_running ABSL_GUARDED_BY(mutex) = false;
    std::thread::id runner ABSL_GUARDED_BY(mutex);  // while is_running
    bool stopping ABSL_GUARDED_BY(mutex) = false;
  };
  static void Ring(State& state, uint64_t setting);

  Clock* const clock_;
  const std::shared_ptr<State> state_;
};

// Returns the duration as text for people: `5s`, `1.2s`, `350ms`. Rounds it down to tenths of a
// second; to milliseconds if it is below one second; to microseconds if below one millisecond.
std::string FormatRounded(absl::Duration duration);

// Returns the time that the wall clock will show when `clock` shows `time`, unless the wall clock
// is stepped before. Abseil's waits need wall-clock times. A RealClock starts at the wall clock's
// value and ignores later steps of the wall clock, so the two clocks can differ by any amount. An
// infinite time stays infinite.
inline absl::Time WallTime(const Clock& clock, absl::Time time) {
  return absl::Now() + (time - clock.Now());
}

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_CLOCK_H_
