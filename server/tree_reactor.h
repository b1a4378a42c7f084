// Calls whose client streams a tree: a header, then tensors. What is done with them is a class of
// its own for each call; the two reactors here feed it. They take and give bytes: a message that
// does not parse is an error, and not the end of the tree.
#ifndef SHARDMESH_SERVER_TREE_REACTOR_H_
#define SHARDMESH_SERVER_TREE_REACTOR_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "rpc/message_bytes.h"
#include "rpc/status.h"
#include "server/background.h"
#include "server/tree_decoder.h"
#include "sharding/reason.h"
#include "sharding/str_cat.h"

namespace shardmesh::server {

// Takes the messages of one stream in their order. `Work` has
//   absl::Status Begin(const Header&);
//   absl::Status Add(absl::Span<const TreeTensor>, const std::function<bool()>& is_cancelled, ...);
//   absl::Status End(Response*, const std::function<bool()>& is_cancelled);
// The errors of the first two are about the header and the tensors.
template <typename Work, typename Request>
class TreeFeeder {
 public:
  explicit TreeFeeder(Work work) : work_(std::move(work)) {}

  // Takes a message out of its bytes. One call at a time, which may run beside one of Take.
  absl::Status Parse(grpc::ByteBuffer* bytes, Request* to) {
    ++parsed_;
    return WithContext(rpc::ParseMessage(bytes, to), StrCat("message ", parsed_, " of the stream"));
  }

  // Takes a message; `add` are further arguments of Work::Add. `is_tensors` tells what it was.
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
        return rpc::WithField(work_.Begin(request.header()), "header");
      case Request::kTensors: {
        if (!has_begun_) {
          return NoHeader();
        }
        const auto tensors = decoder_.Decode(request.tensors());
        if (!tensors.ok()) {
          return rpc::WithField(tensors.status(), "tensors");
        }
        return AboutTensors(work_.Add(*tensors, is_cancelled, args...));
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
  // The message says which tensor it is, and what of it.
  static absl::Status AboutTensors(absl::Status status) {
    return absl::IsInvalidArgument(status) && rpc::FieldViolationsOf(status).empty()
               ? rpc::WithField(std::move(status), "tensors")
               : status;
  }
  static absl::Status NoHeader() {
    return rpc::BadField("header", "is missing; it must be the first message");
  }

  Work work_;
  TreeDecoder decoder_;
  bool has_begun_ = false;
  int64_t parsed_ = 0;  // messages, well or not
};

// A call that answers each piece, and closes with totals:
//   while (request = read()) { if (feeder.Take(request, &response) was tensors) write(response) }
//   feeder.End(&response); write(response); finish
// A reaction answers one piece of at most 1 MiB. The next piece is read, and taken out of its
// bytes, while one is answered; a piece is answered when the answer before it is written.
template <typename Work, typename Request, typename Response>
class TreeBidiReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit TreeBidiReactor(Work work) : feeder_(std::move(work)) { StartRead(&read_); }

  void OnReadDone(bool ok) override {
    const absl::Status parsed = ok ? feeder_.Parse(&read_, &requests_[current_]) : absl::OkStatus();
    {
      absl::MutexLock lock(&mutex_);
      parsed_ = parsed;
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
      absl::Status parsed;
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
          parsed = parsed_;
        } else {
          at_end = closing_ = true;
        }
      }
      if (finishes) {
        return Finish(grpc::Status::OK);
      }
      response_.Clear();
      if (at_end) {
        const absl::Status status = feeder_.End(&response_, is_cancelled_);
        return status.ok() ? Write() : Fail(status);
      }
      if (!parsed.ok()) {
        return Fail(parsed);
      }
      const Request& request = requests_[current_];
      current_ = 1 - current_;
      StartRead(&read_);
      bool is_tensors = false;
      const absl::Status status = feeder_.Take(request, is_cancelled_, &is_tensors, &response_);
      if (!status.ok()) {
        return Fail(status);
      }
      if (is_tensors) {
        return Write();
      }
      absl::MutexLock lock(&mutex_);
      is_busy_ = false;
    }
  }

  void Write() {
    written_ = rpc::SerializeMessage(response_);
    StartWrite(&written_);
  }

  void Fail(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      finished_ = true;
    }
    Finish(rpc::ToGrpc(status));
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
  absl::Status parsed_ ABSL_GUARDED_BY(mutex_);  // how requests_[current_] came out of its bytes
  // Touched by the read under way: reads follow one another.
  grpc::ByteBuffer read_;
  // Touched by who has set is_busy_, but for requests_[current_] while it is read.
  Request requests_[2];
  int current_ = 0;  // that which is read
  Response response_;
  grpc::ByteBuffer written_;
  TreeFeeder<Work, Request> feeder_;
};

// A call that answers once, after the whole tree:
//   while (request = read()) feeder.Take(request)
//   on a thread of its own: feeder.End(&response); finish(response)
// `response` is the call's own.
template <typename Work, typename Request, typename Response>
class TreeReadReactor final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  TreeReadReactor(Work work, grpc::ByteBuffer* response, Background* background)
      : response_(response), background_(background), feeder_(std::move(work)) {
    StartRead(&read_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      if (!background_->Run([this] { End(); })) {
        Finish(rpc::ToGrpc(TooManyWait()));
      }
      return;
    }
    absl::Status status = feeder_.Parse(&read_, &request_);
    if (status.ok()) {
      bool is_tensors = false;
      status = feeder_.Take(request_, is_cancelled_, &is_tensors);
    }
    status.ok() ? StartRead(&read_) : Finish(rpc::ToGrpc(status));
  }
  void OnCancel() override { cancelled_.store(true, std::memory_order_relaxed); }
  void OnDone() override { delete this; }

 private:
  void End() {
    Response response;
    const absl::Status status = feeder_.End(&response, is_cancelled_);
    if (status.ok()) {
      *response_ = rpc::SerializeMessage(response);
    }
    Finish(rpc::ToGrpc(status));
  }

  std::atomic<bool> cancelled_ = false;
  const std::function<bool()> is_cancelled_ = [this] {
    return cancelled_.load(std::memory_order_relaxed);
  };
  grpc::ByteBuffer* const response_;
  Background* const background_;
  grpc::ByteBuffer read_;
  Request request_;
  TreeFeeder<Work, Request> feeder_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_TREE_REACTOR_H_
