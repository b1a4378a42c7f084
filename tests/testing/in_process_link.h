// Ranks as threads of one process, connected by links that pass memory; and FaultyLink, a link with
// injected faults.
#ifndef SHARDMESH_TESTS_TESTING_IN_PROCESS_LINK_H_
#define SHARDMESH_TESTS_TESTING_IN_PROCESS_LINK_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sharding/mesh.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/collective/link.h"
#include "worker/collective/mailbox.h"

namespace shardmesh::test {

// Ranks 0 to n-1 of a mesh, rank r served by the worker "worker-r". Messages are cut into pieces of
// a given size and put directly into the receiver's mailbox. Thread-safe; links live as long as
// this.
class InProcessRanks {
 public:
  // If the piece size is not a multiple of an element's size, elements span pieces.
  explicit InProcessRanks(int64_t count, int64_t piece_bytes = int64_t{1} << 20)
      : piece_bytes_(piece_bytes) {
    worker::Mailbox::Options options;
    options.tag_limit_bytes = std::numeric_limits<int64_t>::max();
    options.worker_limit_bytes = std::numeric_limits<int64_t>::max();
    for (DeviceId rank = 0; rank < count; ++rank) {
      identities_.push_back(StrCat("worker-", rank));
      mailboxes_.push_back(std::make_unique<worker::Mailbox>(options));
      links_.push_back(std::make_unique<RankLink>(this, rank));
    }
  }

  int64_t size() const { return static_cast<int64_t>(links_.size()); }
  worker::Link* link(DeviceId rank) { return links_[static_cast<size_t>(rank)].get(); }
  worker::Mailbox& mailbox(DeviceId rank) { return *mailboxes_[static_cast<size_t>(rank)]; }
  const std::string& identity(DeviceId rank) const {
    return identities_[static_cast<size_t>(rank)];
  }

  // Opens the step on every rank.
  absl::Status OpenStep(int64_t step) {
    opened_step_ = step;
    for (auto& mailbox : mailboxes_) {
      SHARDMESH_RETURN_IF_ERROR(mailbox->OpenStep(step, identities_));
    }
    return absl::OkStatus();
  }

  // Runs body(rank) for each rank, each on its own thread. Returns the results in rank order.
  std::vector<absl::Status> RunOnAll(const std::function<absl::Status(DeviceId)>& body) {
    std::vector<absl::Status> results(links_.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < links_.size(); ++rank) {
      threads.emplace_back([&, rank] { results[rank] = body(static_cast<DeviceId>(rank)); });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

 private:
  class RankLink final : public worker::Link {
   public:
    RankLink(InProcessRanks* ranks, DeviceId rank) : ranks_(ranks), rank_(rank) {}

    DeviceId rank() const override { return rank_; }

    absl::Status Begin(int64_t op, std::string signature) override {
      SHARDMESH_RETURN_IF_ERROR(
          ranks_->mailbox(rank_).Begin(ranks_->opened_step_, op, rank_, signature));
      absl::MutexLock lock(&mutex_);
      op_ = op;
      signature_ = std::move(signature);
      untold_.assign(ranks_->links_.size(), true);
      return absl::OkStatus();
    }

    absl::Status Send(DeviceId peer, const worker::Tag& tag, worker::OwnedBytes message) override {
      if (message.bytes.empty() || peer == rank_ || peer < 0 || peer >= ranks_->size()) {
        return absl::InvalidArgumentError(
            StrCat("rank ", rank_, " sends ", message.bytes.size(), " bytes to rank ", peer));
      }
      std::string signature;
      {
        absl::MutexLock lock(&mutex_);
        if (tag.op() == op_ && untold_[static_cast<size_t>(peer)]) {
          untold_[static_cast<size_t>(peer)] = false;
          signature = signature_;
        }
      }
      const auto message_bytes = static_cast<int64_t>(message.bytes.size());
      for (int64_t offset = 0; offset < message_bytes; offset += ranks_->piece_bytes_) {
        const int64_t size = std::min(ranks_->piece_bytes_, message_bytes - offset);
        SHARDMESH_RETURN_IF_ERROR(ranks_->mailbox(peer).Deliver(
            ranks_->identity(rank_), tag,
            {.offset_bytes = offset,
             .message_bytes = message_bytes,
             .content = {message.bytes.subspan(static_cast<size_t>(offset),
                                               static_cast<size_t>(size)),
                         message.owner},
             .signature = std::exchange(signature, {})}));
      }
      return absl::OkStatus();
    }

    absl::StatusOr<worker::OwnedBytes> Receive(DeviceId peer, const worker::Tag& tag,
                                               int64_t message_bytes,
                                               absl::Time deadline) override {
      return ranks_->mailbox(rank_).Receive(peer, tag, message_bytes, deadline);
    }

    absl::StatusOr<std::optional<worker::OwnedBytes>> TryReceive(DeviceId peer,
                                                                 const worker::Tag& tag,
                                                                 int64_t message_bytes) override {
      return ranks_->mailbox(rank_).TryReceive(peer, tag, message_bytes);
    }

   private:
    InProcessRanks* const ranks_;
    const DeviceId rank_;
    absl::Mutex mutex_;
    int64_t op_ ABSL_GUARDED_BY(mutex_) = -1;
    std::string signature_ ABSL_GUARDED_BY(mutex_);
    std::vector<bool> untold_ ABSL_GUARDED_BY(mutex_);
  };

  const int64_t piece_bytes_;
  int64_t opened_step_ = 0;
  std::vector<std::string> identities_;
  std::vector<std::unique_ptr<worker::Mailbox>> mailboxes_;
  std::vector<std::unique_ptr<RankLink>> links_;
};

// What a FaultyLink does with a message to be sent.
enum class Fault {
  kNone,
  kDrop,   // it is lost
  kDelay,  // the message is held until Release, which sends the last one first
  kCut,    // the connection is broken: this send fails, as do all later sends to that rank
};

// Passes messages on to `base`, with the fault that `decide` returns for each message. `base`
// outlives this object. Thread-safe.
class FaultyLink final : public worker::Link {
 public:
  using Decide = std::function<Fault(DeviceId peer, const worker::Tag& tag)>;

  FaultyLink(worker::Link* base, Decide decide) : base_(base), decide_(std::move(decide)) {}

  DeviceId rank() const override { return base_->rank(); }
  absl::Status Begin(int64_t op, std::string signature) override {
    return base_->Begin(op, std::move(signature));
  }

  absl::Status Send(DeviceId peer, const worker::Tag& tag, worker::OwnedBytes message) override {
    switch (decide_(peer, tag)) {
      case Fault::kNone:
        break;
      case Fault::kDrop:
        return absl::OkStatus();
      case Fault::kDelay: {
        absl::MutexLock lock(&mutex_);
        delayed_.push_back({peer, tag, std::move(message)});
        return absl::OkStatus();
      }
      case Fault::kCut: {
        absl::MutexLock lock(&mutex_);
        cut_.push_back(peer);
        break;
      }
    }
    {
      absl::MutexLock lock(&mutex_);
      if (std::find(cut_.begin(), cut_.end(), peer) != cut_.end()) {
        return absl::UnavailableError(
            StrCat("the connection to rank ", peer, " is cut (", tag.ToString(), ")"));
      }
    }
    return base_->Send(peer, tag, std::move(message));
  }

  absl::StatusOr<worker::OwnedBytes> Receive(DeviceId peer, const worker::Tag& tag,
                                             int64_t message_bytes, absl::Time deadline) override {
    return base_->Receive(peer, tag, message_bytes, deadline);
  }
  absl::StatusOr<std::optional<worker::OwnedBytes>> TryReceive(DeviceId peer,
                                                               const worker::Tag& tag,
                                                               int64_t message_bytes) override {
    return base_->TryReceive(peer, tag, message_bytes);
  }

  // Waits until at least `count` messages are held, and sends all held messages in reverse order.
  // DEADLINE_EXCEEDED if fewer messages are held at the deadline.
  absl::Status Release(size_t count, absl::Time deadline) {
    std::vector<Delayed> released;
    {
      absl::MutexLock lock(&mutex_);
      const auto enough = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return delayed_.size() >= count;
      };
      if (!mutex_.AwaitWithDeadline(absl::Condition(&enough), deadline)) {
        return absl::DeadlineExceededError(
            StrCat(delayed_.size(), " of ", count, " messages were sent"));
      }
      released.swap(delayed_);
    }
    for (size_t i = released.size(); i-- > 0;) {
      SHARDMESH_RETURN_IF_ERROR(
          base_->Send(released[i].peer, released[i].tag, std::move(released[i].message)));
    }
    return absl::OkStatus();
  }

 private:
  struct Delayed {
    DeviceId peer;
    worker::Tag tag;
    worker::OwnedBytes message;
  };

  worker::Link* const base_;
  const Decide decide_;

  absl::Mutex mutex_;
  std::vector<Delayed> delayed_ ABSL_GUARDED_BY(mutex_);
  std::vector<DeviceId> cut_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_IN_PROCESS_LINK_H_
