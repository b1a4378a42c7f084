// Calls whose client streams a tree: a header, then tensors. What is done with them is a class of
// its own for each call; the two reactors here feed it.
#ifndef SHARDMESH_SERVER_TREE_REACTOR_H_
#define SHARDMESH_SERVER_TREE_REACTOR_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "rpc/status.h"
#include "rpc/tree_decoder.h"
#include "server/background.h"
#include "server/stored_tree.h"
#include "sharding/reason.h"
#include "sharding/str_cat.h"

namespace shardmesh::server {

// The refusal of tensors that are streamed though the header's `field` names stored ones.
inline absl::Status TensorsBesideStoredTree(std::string_view field) {
  return rpc::BadField("tensors", StrCat("are given beside ", field, "; give one of both"));
}

// Takes the messages of one stream in their order. `Work` has
//   absl::Status Begin(const Header&);
//   absl::Status Add(absl::Span<const TreeTensor>, const std::function<bool()>& is_cancelled, ...);
//   absl::Status End(Response*, const std::function<bool()>& is_cancelled);
// The errors of the first two are about the header and the tensors. It may also have
//   const StoredTree* stored_tree() const;
// which is the tree that the header names, or null; it lives as long as the work. Such a tree is
// added as one piece with the header, and no other may follow.
template <typename Work, typename Request>
class TreeFeeder {
 public:
  explicit TreeFeeder(Work work) : work_(std::move(work)) {}

  // Takes a message; `add` are further arguments of Work::Add. `is_tensors` tells whether tensors
  // came with it: as the message, or by a header that names a stored tree.
  template <typename... Args>
  absl::Status Take(const Request& request, const std::function<bool()>& is_cancelled,
                    bool* is_tensors, Args... args) {
    *is_tensors = request.piece_case() == Request::kTensors;
    switch (request.piece_case()) {
      case Request::kHeader:
        if (has_begun_) {
          return rpc::BadField("header", "comes a second time; it is the first message alone");
        }
        has_begun_ = true;
        if (absl::Status status = work_.Begin(request.header()); !status.ok()) {
          return rpc::WithField(std::move(status), "header");
        }
        if (stored_tree() == nullptr) {
          return absl::OkStatus();
        }
        *is_tensors = true;
        return work_.Add(stored_tree()->tensors(), is_cancelled, args...);
      case Request::kTensors: {
        if (!has_begun_) {
          return NoHeader();
        }
        if (stored_tree() != nullptr) {
          return TensorsBesideStoredTree("header.stored_tree");
        }
        const auto tensors = decoder_.Decode(request.tensors());
        if (!tensors.ok()) {
          return rpc::WithField(tensors.status(), "tensors");
        }
        return work_.Add(*tensors, is_cancelled, args...);
      }
      case Request::PIECE_NOT_SET:
        break;
    }
    return rpc::BadField("piece", "is neither a header nor tensors");
  }

  // The client has sent everything.
  template <typename Response>
  absl::Status End(Response* response, const std::function<bool()>& is_cancelled) {
    return has_begun_ ? work_.End(response, is_cancelled) : NoHeader();
  }

 private:
  const StoredTree* stored_tree() const {
    if constexpr (requires { work_.stored_tree(); }) {
      return work_.stored_tree();
    } else {
      return nullptr;
    }
  }
  static absl::Status NoHeader() {
    return rpc::BadField("header", "is missing; it must be the first message");
  }

  Work work_;
  rpc::TreeDecoder decoder_;
  bool has_begun_ = false;
};

// A call that answers each piece, and closes with totals:
//   while (request = read()) { if (feeder.Take(request, &response) was tensors) write(response) }
//   feeder.End(&response); write(response); finish
// A reaction answers one piece of at most 1 MiB. The next piece is read, and taken out of its
// bytes, while one is answered; a piece is answered when the answer before it is written.
template <typename Work, typename Request, typename Response>
class TreeBidiReactor final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  explicit TreeBidiReactor(Work work) : feeder_(std::move(work)) { this->StartRead(&requests_[0]); }

  void OnReadDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      (ok ? has_request_ : has_all_) = true;
    }
    Proceed();
  }
  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      is_busy_ = false;
      is_broken_ = is_broken_ || !ok;
    }
    Proceed();
  }
  void OnCancel() override { cancelled_.store(true, std::memory_order_relaxed); }
  void OnDone() override { delete this; }

 private:
  // Answers what is there to be answered, unless that is being done.
  void Proceed() {
    while (true) {
      bool at_end = false;
      bool finishes = false;
      {
        absl::MutexLock lock(&mutex_);
        if (is_busy_ || finished_ || (!has_request_ && !has_all_ && !closing_ && !is_broken_)) {
          return;
        }
        is_busy_ = true;
        if (closing_ || is_broken_) {
          finished_ = finishes = true;
        } else if (has_request_) {
          has_request_ = false;
        } else {
          at_end = closing_ = true;
        }
      }
      if (finishes) {
        return this->Finish(grpc::Status::OK);
      }
      response_.Clear();
      if (at_end) {
        const absl::Status status = feeder_.End(&response_, is_cancelled_);
        return status.ok() ? this->StartWrite(&response_) : Fail(status);
      }
      const Request& request = requests_[current_];
      current_ = 1 - current_;
      this->StartRead(&requests_[current_]);
      bool is_tensors = false;
      const absl::Status status = feeder_.Take(request, is_cancelled_, &is_tensors, &response_);
      if (!status.ok()) {
        return Fail(status);
      }
      if (is_tensors) {
        return this->StartWrite(&response_);
      }
      absl::MutexLock lock(&mutex_);
      is_busy_ = false;
    }
  }

  void Fail(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      finished_ = true;
    }
    this->Finish(rpc::ToGrpc(status));
  }

  std::atomic<bool> cancelled_ = false;
  const std::function<bool()> is_cancelled_ = [this] {
    return cancelled_.load(std::memory_order_relaxed);
  };
  absl::Mutex mutex_;
  bool has_request_ ABSL_GUARDED_BY(mutex_) = false;  // requests_[current_] is read and not taken
  bool has_all_ ABSL_GUARDED_BY(mutex_) = false;      // there are no more
  bool is_busy_ ABSL_GUARDED_BY(mutex_) = false;      // somebody answers or writes
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;    // answers cannot be written any more
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;      // the totals are written
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Touched by who has set is_busy_.
  Request requests_[2];
  int current_ = 0;  // that which is read
  Response response_;
  TreeFeeder<Work, Request> feeder_;
};

// A call that answers once, after the whole tree:
//   while (request = read()) feeder.Take(request)
//   on a thread of its own: feeder.End(&response); finish(response)
template <typename Work, typename Request, typename Response>
class TreeReadReactor final : public grpc::ServerReadReactor<Request> {
 public:
  TreeReadReactor(Work work, Response* response, Background* background)
      : response_(response), background_(background), feeder_(std::move(work)) {
    this->StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      const bool taken = background_->Run(
          [this] { this->Finish(rpc::ToGrpc(feeder_.End(response_, is_cancelled_))); });
      if (!taken) {
        this->Finish(rpc::ToGrpc(TooManyWait()));
      }
      return;
    }
    bool is_tensors = false;
    const absl::Status status = feeder_.Take(request_, is_cancelled_, &is_tensors);
    if (!status.ok()) {
      return this->Finish(rpc::ToGrpc(status));
    }
    this->StartRead(&request_);
  }
  void OnCancel() override { cancelled_.store(true, std::memory_order_relaxed); }
  void OnDone() override { delete this; }

 private:
  std::atomic<bool> cancelled_ = false;
  const std::function<bool()> is_cancelled_ = [this] {
    return cancelled_.load(std::memory_order_relaxed);
  };
  Response* const response_;
  Background* const background_;
  Request request_;
  TreeFeeder<Work, Request> feeder_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_TREE_REACTOR_H_
