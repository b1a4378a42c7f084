// Calls whose client streams a tree: a header, then tensors. What is done with them is a class of
// its own for each call; the two reactors here feed it.
#ifndef SHARDMESH_SERVER_TREE_REACTOR_H_
#define SHARDMESH_SERVER_TREE_REACTOR_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "rpc/status.h"
#include "server/background.h"
#include "server/tree_decoder.h"
#include "sharding/reason.h"

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
  static absl::Status NoHeader() {
    return rpc::BadField("header", "is missing; it must be the first message");
  }

  Work work_;
  TreeDecoder decoder_;
  bool has_begun_ = false;
};

// A call that answers each piece, and closes with totals:
//   while (request = read()) { if (feeder.Take(request, &response) was tensors) write(response) }
//   feeder.End(&response); write(response); finish
// A reaction answers one piece of at most 1 MiB.
template <typename Work, typename Request, typename Response>
class TreeBidiReactor final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  explicit TreeBidiReactor(Work work) : feeder_(std::move(work)) { this->StartRead(&request_); }

  void OnReadDone(bool ok) override {
    response_.Clear();
    if (!ok) {
      const absl::Status status = feeder_.End(&response_, is_cancelled_);
      if (!status.ok()) {
        return this->Finish(rpc::ToGrpc(status));
      }
      closing_ = true;
      return this->StartWrite(&response_);
    }
    bool is_tensors = false;
    const absl::Status status = feeder_.Take(request_, is_cancelled_, &is_tensors, &response_);
    if (!status.ok()) {
      this->Finish(rpc::ToGrpc(status));
    } else if (is_tensors) {
      this->StartWrite(&response_);
    } else {
      this->StartRead(&request_);
    }
  }
  void OnWriteDone(bool ok) override {
    if (closing_ || !ok) {
      return this->Finish(grpc::Status::OK);
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
  // Reads and writes alternate: one reaction at a time touches these.
  Request request_;
  Response response_;
  TreeFeeder<Work, Request> feeder_;
  bool closing_ = false;
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
