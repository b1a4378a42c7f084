// Finds the streams of downloads that receive nothing for too long, and cancels them.
#ifndef SHARDMESH_CLIENT_REMOTE_SILENCE_WATCH_H_
#define SHARDMESH_CLIENT_REMOTE_SILENCE_WATCH_H_

#include <atomic>
#include <cstdint>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/types/cancellation.h"

namespace shardmesh::client {

// Watches the streams of any number of downloads with one thread, which starts with the first
// stream that needs it. If the host allows no more threads, downloads wait for silent workers.
// Thread-safe. The streams must end before the watch is destroyed.
//
// Time in which this process itself was stopped counts as one tick of 100 ms. Time in which the
// client takes received bytes, such as that of a progress callback, does not count.
class SilenceWatch {
 public:
  // The stream of one worker. Its own thread calls Begin, Received, BeginTaking, EndTaking and End.
  // The other methods are thread-safe.
  class Stream {
   public:
    // `watch` outlives the stream. InfiniteDuration: the watch does not cancel the stream.
    Stream(SilenceWatch* watch, absl::Duration patience) : watch_(*watch), patience_(patience) {}
    ~Stream() { End(); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    // The calls of the stream. Cancelled once the stream was silent for longer than its patience.
    Cancellation* cancellation() { return &cancellation_; }
    // From now on the stream counts as silent, until End.
    void Begin();
    // A sign of life of the worker.
    void Received() { ++pieces_; }
    // The client takes received bytes between these two calls, and reads no more meanwhile.
    void BeginTaking() {
      Received();
      is_taking_ = true;
    }
    void EndTaking() {
      Received();
      is_taking_ = false;
    }
    // Waits until the watch no longer uses the stream.
    void End();
    // Whether the watch cancelled the stream.
    bool is_left() const { return is_left_; }

   private:
    friend class SilenceWatch;

    SilenceWatch& watch_;
    const absl::Duration patience_;
    Cancellation cancellation_;
    std::atomic<bool> is_taking_ = false;
    std::atomic<int64_t> pieces_ = 0;
    std::atomic<bool> is_left_ = false;
    // Only the thread of the watch uses these members. The first look counts no silence.
    int64_t seen_pieces_ = -1;
    absl::Duration silent_for_ = absl::ZeroDuration();
  };

  SilenceWatch() = default;
  ~SilenceWatch();
  SilenceWatch(const SilenceWatch&) = delete;
  SilenceWatch& operator=(const SilenceWatch&) = delete;

 private:
  void Watch();
  // Returns whether the stream was silent for longer than its patience.
  static bool Look(Stream* stream);

  absl::Mutex mutex_;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<Stream*> streams_ ABSL_GUARDED_BY(mutex_);  // that have begun
  // The thread cancels these without the lock. They no longer belong to streams_.
  absl::flat_hash_set<Stream*> left_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_SILENCE_WATCH_H_
