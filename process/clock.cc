// The real clock's timer thread, and alarms over any clock.
#include "process/clock.h"

#include <algorithm>
#include <chrono>

#include "absl/time/clock.h"
#include "process/steady_waits.h"

namespace shardmesh {
namespace {

int64_t SteadyNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Longest sleep before the thread reads the steady clock again. A wait can take longer or shorter
// than requested if the host slept, or in a build with Abseil's own waits (steady_waits.h).
constexpr absl::Duration kLongestWait = absl::Milliseconds(500);

}  // namespace

RealClock::RealClock()
    : wall_start_(absl::Now()), steady_start_ns_(SteadyNanoseconds()), thread_([this] { Run(); }) {
  UseSteadyWaits();
}

RealClock::~RealClock() { Stop(); }

void RealClock::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::Time RealClock::Now() const {
  return wall_start_ + absl::Nanoseconds(SteadyNanoseconds() - steady_start_ns_);
}

Clock::TimerId RealClock::CallAt(absl::Time when, std::function<void()> function) {
  absl::MutexLock lock(&mutex_);
  const TimerId id(when, next_id_++);
  timers_.emplace(id, std::move(function));
  if (timers_.begin()->first == id) changed_.SignalAll();
  return id;
}

bool RealClock::Cancel(TimerId timer) {
  absl::MutexLock lock(&mutex_);
  return timers_.erase(timer) > 0;
}

void RealClock::Run() {
  absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    if (timers_.empty()) {
      changed_.Wait(&mutex_);
      continue;
    }
    const absl::Duration wait = timers_.begin()->first.first - Now();
    if (wait > absl::ZeroDuration()) {
      changed_.WaitWithTimeout(&mutex_, std::min(wait, kLongestWait));
      continue;
    }
    std::function<void()> function = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    mutex_.Unlock();
    function();
    function = nullptr;
    mutex_.Lock();
  }
}

Alarm::Alarm(Clock* clock, std::function<void()> function)
    : clock_(clock), state_(std::make_shared<State>()) {
  state_->function = std::move(function);
}

Alarm::~Alarm() {
  State& state = *state_;
  absl::MutexLock lock(&state.mutex);
  state.stopping = true;
  if (state.is_set) clock_->Cancel(state.timer);
  if (state.is_running && state.runner == std::this_thread::get_id()) return;
  auto idle = [&state] {
    state.mutex.AssertReaderHeld();
    return !state.is_running;
  };
  state.mutex.Await(absl::Condition(&idle));
}

void Alarm::SetNoLaterThan(absl::Time when) {
  if (when == absl::InfiniteFuture()) return;
  State& state = *state_;
  absl::MutexLock lock(&state.mutex);
  if (state.stopping || (state.is_set && state.timer.first <= when)) return;
  if (state.is_set) clock_->Cancel(state.timer);
  state.is_set = true;
  state.timer =
      clock_->CallAt(when, [keep = state_, setting = ++state.setting] { Ring(*keep, setting); });
}

void Alarm::Ring(State& state, uint64_t setting) {
  absl::MutexLock lock(&state.mutex);
  if (state.stopping || setting != state.setting) return;
  state.is_set = false;
  state.is_running = true;
  state.runner = std::this_thread::get_id();
  state.mutex.Unlock();
  state.function();
  state.mutex.Lock();
  state.is_running = false;
}

std::string FormatRounded(absl::Duration duration) {
  const absl::Duration unit = duration < absl::Milliseconds(1) ? absl::Microseconds(1)
                              : duration < absl::Seconds(1)    ? absl::Milliseconds(1)
                                                               : absl::Milliseconds(100);
  return absl::FormatDuration(absl::Trunc(duration, unit));
}

}  // namespace shardmesh
