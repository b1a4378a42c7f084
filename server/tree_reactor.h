// Calls whose client streams a tree: the two reactors that feed a TreeCall.
#ifndef SHARDMESH_SERVER_TREE_REACTOR_H_
#define SHARDMESH_SERVER_TREE_REACTOR_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "rpc/status.h"
#include "server/background.h"
#include "server/tree_call.h"

namespace shardmesh::server {

// A call that answers each piece, and closes with totals:
//   while (request = read()) { if (call.Take(request, &response) was of tensors) write(response) }
//   call.End(&response); write(response); finish
// A reaction answers one piece of at most 1 MiB. The next piece is read, and taken out of its
// bytes, while one is answered; a piece is answered when the answer before it is written.
template <typename Request, typename Response>
class TreeBidiReactor final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  explicit TreeBidiReactor(std::unique_ptr<TreeCall<Request, Response>> call)
      : call_(std::move(call)) {
    this->StartRead(&requests_[0]);
  }

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
        const absl::Status status = call_->End(&response_, is_cancelled_);
        return status.ok() ? this->StartWrite(&response_) : Fail(status);
      }
      const Request& request = requests_[current_];
      current_ = 1 - current_;
      this->StartRead(&requests_[current_]);
      bool is_tensors = false;
      const absl::Status status = call_->Take(request, is_cancelled_, &response_, &is_tensors);
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
  const std::unique_ptr<TreeCall<Request, Response>> call_;
};

// A call that answers once, after the whole tree:
//   while (request = read()) call.Take(request)
//   on a thread of its own: call.End(&response); finish(response)
template <typename Request, typename Response>
class TreeReadReactor final : public grpc::ServerReadReactor<Request> {
 public:
  TreeReadReactor(std::unique_ptr<TreeCall<Request, Response>> call, Response* response,
                  Background* background)
      : response_(response), background_(background), call_(std::move(call)) {
    this->StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      const bool taken = background_->Run([this] {
        this->Finish(rpc::ToGrpc(is_cancelled_() ? absl::CancelledError("cancelled while it waited")
                                                 : call_->End(response_, is_cancelled_)));
      });
      if (!taken) {
        this->Finish(rpc::ToGrpc(TooManyWait()));
      }
      return;
    }
    bool is_tensors = false;
    const absl::Status status = call_->Take(request_, is_cancelled_, response_, &is_tensors);
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
  const std::unique_ptr<TreeCall<Request, Response>> call_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_TREE_REACTOR_H_
