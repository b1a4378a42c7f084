// All waits of Abseil use a per-thread semaphore. This file replaces it by a semaphore on the
// steady clock.
//
// Abseil defines the two functions below as weak symbols, so that a program may replace them. The
// definitions here match the Abseil version in Debian 12; check them before you use another
// version.
#include "process/steady_waits.h"

#include <dlfcn.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "absl/base/config.h"
#include "absl/base/internal/thread_identity.h"
#include "absl/synchronization/internal/create_thread_identity.h"
#include "absl/synchronization/internal/kernel_timeout.h"
#include "absl/synchronization/internal/per_thread_sem.h"

// ThreadSanitizer's interposers (tests/testing/tsan_grpc.cc) expect Abseil's own functions.
#if !defined(ABSL_HAVE_THREAD_SANITIZER) && ABSL_LTS_RELEASE_VERSION == 20220623
#define SHARDMESH_HAS_STEADY_WAITS 1
#endif

namespace shardmesh {

void UseSteadyWaits() {}

#ifndef SHARDMESH_HAS_STEADY_WAITS

bool WaitsAreSteady() { return false; }

#else

namespace {

using absl::base_internal::ThreadIdentity;

constexpr int64_t kSecond = 1'000'000'000;

int64_t Nanoseconds(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }

int64_t Now(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return Nanoseconds(time);
}

// Returns the thread's semaphore count: the posts that no wait has consumed yet. It uses the memory
// that Abseil reserves for its own count, which also starts at 0. Once a second, Abseil may wake a
// thread that sleeps on this memory. That is harmless: the thread finds the count 0 and sleeps
// again.
std::atomic<int32_t>& CountOf(ThreadIdentity* identity) {
  return *reinterpret_cast<std::atomic<int32_t>*>(identity->waiter_state.data);
}

bool Take(std::atomic<int32_t>& count) {
  int32_t seen = count.load(std::memory_order_relaxed);
  while (seen != 0) {
    if (count.compare_exchange_weak(seen, seen - 1, std::memory_order_acquire,
                                    std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

}  // namespace

#endif

}  // namespace shardmesh

#ifdef SHARDMESH_HAS_STEADY_WAITS

extern "C" {

__attribute__((visibility("default"), used)) void ABSL_INTERNAL_C_SYMBOL(
    AbslInternalPerThreadSemPost)(absl::base_internal::ThreadIdentity* identity) {
  std::atomic<int32_t>& count = shardmesh::CountOf(identity);
  if (count.fetch_add(1, std::memory_order_release) == 0) {
    syscall(SYS_futex, &count, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1);
  }
}

__attribute__((visibility("default"), used)) bool ABSL_INTERNAL_C_SYMBOL(
    AbslInternalPerThreadSemWait)(absl::synchronization_internal::KernelTimeout timeout) {
  using shardmesh::kSecond;
  absl::base_internal::ThreadIdentity* const identity =
      absl::synchronization_internal::GetOrCreateCurrentThreadIdentity();
  std::atomic<int32_t>& count = shardmesh::CountOf(identity);
  // Abseil reads these fields to find idle threads.
  const int ticker = identity->ticker.load(std::memory_order_relaxed);
  identity->wait_start.store(ticker != 0 ? ticker : 1, std::memory_order_relaxed);
  identity->is_idle.store(false, std::memory_order_relaxed);
  std::atomic<int>* const blocked = identity->blocked_count_ptr;
  if (blocked != nullptr) blocked->fetch_add(1, std::memory_order_relaxed);

  const bool has_end = timeout.has_timeout();
  int64_t end = 0;
  if (has_end) {
    const int64_t left =
        shardmesh::Nanoseconds(timeout.MakeAbsTimespec()) - shardmesh::Now(CLOCK_REALTIME);
    end = shardmesh::Now(CLOCK_MONOTONIC) + left;
  }
  bool taken = shardmesh::Take(count);
  while (!taken) {
    timespec wait = {};
    if (has_end) {
      const int64_t left = end - shardmesh::Now(CLOCK_MONOTONIC);
      if (left <= 0) break;
      wait = {.tv_sec = left / kSecond, .tv_nsec = left % kSecond};
    }
    // A relative futex timeout uses the monotonic clock.
    syscall(SYS_futex, &count, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 0, has_end ? &wait : nullptr);
    taken = shardmesh::Take(count);
  }

  if (blocked != nullptr) blocked->fetch_sub(1, std::memory_order_relaxed);
  identity->is_idle.store(false, std::memory_order_relaxed);
  identity->wait_start.store(0, std::memory_order_relaxed);
  return taken;
}

}  // extern "C"

namespace shardmesh {

bool WaitsAreSteady() {
  // Look up the definition that the dynamic linker chose for this process.
#define SHARDMESH_NAME_OF(x) #x
#define SHARDMESH_NAME(x) SHARDMESH_NAME_OF(x)
  void* const found =
      dlsym(RTLD_DEFAULT, SHARDMESH_NAME(ABSL_INTERNAL_C_SYMBOL(AbslInternalPerThreadSemWait)));
  return found == reinterpret_cast<void*>(&ABSL_INTERNAL_C_SYMBOL(AbslInternalPerThreadSemWait));
}

}  // namespace shardmesh

#endif
