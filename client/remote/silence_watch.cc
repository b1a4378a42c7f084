// Looks at all streams at intervals, while there are any.
#include "client/remote/silence_watch.h"

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "process/thread_pool.h"

namespace shardmesh::client {
namespace {

// How often the watch looks at the streams.
constexpr absl::Duration kSilenceTick = absl::Milliseconds(100);

}  // namespace

void SilenceWatch::Stream::Begin() {
  if (patience_ == absl::InfiniteDuration()) return;
  absl::MutexLock lock(&watch_.mutex_);
  watch_.streams_.insert(this);
  if (watch_.thread_.joinable()) return;
  absl::StatusOr<std::thread> thread = StartThread([watch = &watch_] { watch->Watch(); });
  if (thread.ok()) watch_.thread_ = *std::move(thread);
}

void SilenceWatch::Stream::End() {
  absl::MutexLock lock(&watch_.mutex_);
  watch_.streams_.erase(this);
  const auto is_unused = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(watch_.mutex_) {
    return !watch_.left_.contains(this);
  };
  watch_.mutex_.Await(absl::Condition(&is_unused));
}

SilenceWatch::~SilenceWatch() {
  std::thread thread;
  {
    absl::MutexLock lock(&mutex_);
    is_over_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void SilenceWatch::Watch() {
  const auto is_due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return is_over_ || !streams_.empty();
  };
  for (;;) {
    std::vector<Stream*> left;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&is_due));
      if (mutex_.AwaitWithTimeout(absl::Condition(&is_over_), kSilenceTick)) return;
      for (Stream* const stream : streams_) {
        if (Look(stream)) left.push_back(stream);
      }
      for (Stream* const stream : left) streams_.erase(stream);
      left_.insert(left.begin(), left.end());
    }
    if (left.empty()) continue;
    for (Stream* const stream : left) stream->cancellation_.Cancel();
    absl::MutexLock lock(&mutex_);
    left_.clear();
  }
}

bool SilenceWatch::Look(Stream* stream) {
  const bool is_taking = stream->is_taking_;  // read first: EndTaking changes it last
  const int64_t pieces = stream->pieces_;
  if (is_taking || pieces != stream->seen_pieces_) {
    stream->seen_pieces_ = pieces;
    stream->silent_for_ = absl::ZeroDuration();
    return false;
  }
  stream->silent_for_ += kSilenceTick;
  if (stream->silent_for_ < stream->patience_) return false;
  stream->is_left_ = true;
  return true;
}

}  // namespace shardmesh::client
