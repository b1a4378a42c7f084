// The two reactors of calls whose client streams a tree. The reactors pass the messages to a
// TreeCall. They read bytes, not messages, so that a message that does not parse is an error and
// not the end of the tree.
#ifndef SHARDMESH_SERVER_RESOLVE_TREE_REACTOR_H_
#define SHARDMESH_SERVER_RESOLVE_TREE_REACTOR_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "rpc/caller.h"
#include "rpc/codec/status.h"
#include "rpc/stream/finish_once.h"
#include "rpc/stream/message_bytes.h"
#include "server/resolve/background.h"
#include "server/resolve/tree_call.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {

// Parses the messages of a stream from their bytes. Errors contain the message's number. For one
// thread at a time.
class MessageParser {
 public:
  absl::Status Parse(grpc::ByteBuffer* bytes, google::protobuf::Message* to) {
    ++messages_;
    return WithContext(rpc::ParseMessage(bytes, to),
                       StrCat("message ", messages_, " of the stream"));
  }

 private:
  int64_t messages_ = 0;
};

// The reactor of a call that answers each piece, and ends with totals:
//
// clang-format off
//   while (request = read()) { if (call.Take(request, &response) was of tensors) write(response) }
//   call.End(&response); write(response); finish
// clang-format on
//
// A reaction (gRPC callback) answers one piece of at most 1 MiB; a background thread takes pieces
// that need longer. While one piece is answered, the next one is read and parsed. The answer to the
// next piece begins after the previous answer is written. One thread at a time owns the call: it
// answers, writes, or ends the call.
template <typename Request, typename Response>
class TreeBidiReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // `background` outlives the reactor.
  TreeBidiReactor(const grpc::CallbackServerContext& context,
                  std::unique_ptr<TreeCall<Request, Response>> call, Background* background)
      : caller_(rpc::CallerOf(context).name), background_(background), call_(std::move(call)) {
    StartRead(&read_);
  }

  void OnReadDone(bool ok) override {
    absl::Status parsed = ok ? parser_.Parse(&read_, &requests_[current_]) : absl::OkStatus();
    {
      absl::MutexLock lock(&mutex_);
      parsed_ = std::move(parsed);
      (ok ? has_request_ : has_all_) = true;
    }
    Proceed(false);
  }
  void OnWriteDone(bool ok) override {
    // Ends the call: the stream accepts no more answers, or the written answer was the last one,
    // the totals.
    if (!ok || closing_) {
      return end_.End(absl::OkStatus());
    }
    Proceed(true);
  }
  void OnCancel() override { stop_.Cancel(); }
  void OnDone() override { delete this; }

 private:
  // Answers the pieces that were read. Returns when a write or a background thread will continue,
  // when the next piece has not come, or when the call ends. `is_mine`: the calling thread already
  // owns the call. The thread that ends the call stays its owner, so that a later OnReadDone does
  // nothing.
  void Proceed(bool is_mine) {
    while (true) {
      bool at_end = false;
      absl::Status parsed;
      {
        absl::MutexLock lock(&mutex_);
        if (is_busy_ && !is_mine) {
          return;
        }
        is_busy_ = is_mine = has_request_ || has_all_;
        if (!is_mine) {
          return;
        }
        at_end = !std::exchange(has_request_, false);
        parsed = parsed_;
      }
      response_.Clear();
      if (at_end) {
        closing_ = true;
        stop_.Begin();
        const absl::Status status = call_->End(&response_, is_cancelled_);
        return status.ok() ? Write() : Fail(status);
      }
      if (!parsed.ok()) {
        return Fail(parsed);
      }
      const Request& request = requests_[current_];
      current_ = 1 - current_;
      StartRead(&read_);
      if (call_->TakesLong(request)) {
        return TakeInBackground(request);
      }
      if (!Take(request)) {
        return;
      }
    }
  }

  void TakeInBackground(const Request& request) {
    if (!end_.BeginWork().ok()) {
      return;  // never happens: only the owner ends the call
    }
    const bool taken = background_->Run(caller_, [this, &request] {
      if (Take(request)) {
        Proceed(true);
      }
      end_.EndWork(absl::OkStatus());
    });
    if (!taken) {
      end_.EndWork(TooManyWait());
    }
  }

  // Takes one piece. Returns true if the caller should go on with the next piece. Returns false if
  // OnWriteDone will do so, or if the call has ended.
  bool Take(const Request& request) {
    stop_.Begin();
    bool is_tensors = false;
    const absl::Status status = call_->Take(request, is_cancelled_, &response_, &is_tensors);
    if (!status.ok() || is_tensors) {
      status.ok() ? Write() : Fail(status);
      return false;
    }
    return true;
  }

  void Write() {
    written_ = rpc::SerializeMessage(response_);
    StartWrite(&written_);
  }

  void Fail(const absl::Status& status) { end_.End(stop_.Explain(status)); }

  BackgroundStop stop_;
  const std::function<bool()> is_cancelled_ = [this] { return stop_.is_due(); };
  rpc::FinishOnce end_{[this](const absl::Status& status) { Finish(rpc::ToGrpc(status)); }};
  absl::Mutex mutex_;
  bool has_request_ ABSL_GUARDED_BY(mutex_) = false;  // requests_[current_] is read, but not taken
  bool has_all_ ABSL_GUARDED_BY(mutex_) = false;      // the client has sent everything
  bool is_busy_ ABSL_GUARDED_BY(mutex_) = false;      // a thread owns the call
  absl::Status parsed_ ABSL_GUARDED_BY(mutex_);       // result of parsing requests_[current_]
  // No lock: reads follow one another, so only one reaction at a time uses the next two members.
  grpc::ByteBuffer read_;
  MessageParser parser_;
  // Only the owner of the call uses the following members. The exception is requests_[current_]:
  // OnReadDone parses a message into it.
  Request requests_[2];
  int current_ = 0;       // index of the request that is being read
  bool closing_ = false;  // the totals are being made, or are written
  Response response_;
  grpc::ByteBuffer written_;
  const std::string caller_;
  Background* const background_;
  const std::unique_ptr<TreeCall<Request, Response>> call_;
};

// The reactor of a call that answers once, after the whole tree:
//
// clang-format off
//   while (request = read()) call.Take(request), on a background thread if that takes long
//   on a background thread: call.End(&response); finish(response)
// clang-format on
//
// gRPC's call owns `response`. FinishOnce is not needed, because one reaction or one task runs at a
// time. The last act of each is to start the next read, to add the next task, or to finish.
template <typename Request, typename Response>
class TreeReadReactor final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  TreeReadReactor(const grpc::CallbackServerContext& context,
                  std::unique_ptr<TreeCall<Request, Response>> call, grpc::ByteBuffer* response,
                  Background* background)
      : response_(response),
        caller_(rpc::CallerOf(context).name),
        background_(background),
        call_(std::move(call)) {
    StartRead(&read_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      if (!background_->Run(caller_, [this] { End(); })) {
        Finish(rpc::ToGrpc(TooManyWait()));
      }
      return;
    }
    const absl::Status parsed = parser_.Parse(&read_, &request_);
    if (!parsed.ok()) {
      Finish(rpc::ToGrpc(parsed));
    } else if (!call_->TakesLong(request_)) {
      Take();
    } else if (!background_->Run(caller_, [this] { Take(); })) {
      Finish(rpc::ToGrpc(TooManyWait()));
    }
  }
  void OnCancel() override { stop_.Cancel(); }
  void OnDone() override { delete this; }

 private:
  void Take() {
    stop_.Begin();
    bool is_tensors = false;
    const absl::Status status = call_->Take(request_, is_cancelled_, &answer_, &is_tensors);
    status.ok() ? StartRead(&read_) : Finish(rpc::ToGrpc(status));
  }

  void End() {
    stop_.Begin();
    const absl::Status status = is_cancelled_() ? absl::CancelledError("cancelled while it waited")
                                                : call_->End(&answer_, is_cancelled_);
    if (status.ok()) {
      *response_ = rpc::SerializeMessage(answer_);
    }
    Finish(rpc::ToGrpc(stop_.Explain(status)));
  }

  BackgroundStop stop_;
  const std::function<bool()> is_cancelled_ = [this] { return stop_.is_due(); };
  grpc::ByteBuffer* const response_;
  const std::string caller_;
  Background* const background_;
  // No lock: only one reaction at a time uses the following members, because the reads and the end
  // of the call follow one another.
  grpc::ByteBuffer read_;
  MessageParser parser_;
  Response answer_;
  Request request_;
  const std::unique_ptr<TreeCall<Request, Response>> call_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESOLVE_TREE_REACTOR_H_
