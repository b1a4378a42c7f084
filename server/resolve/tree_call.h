// Processes a tree (names, shapes and element types of a model's tensors) that a client streams: a
// header, then the tensors.
#ifndef SHARDMESH_SERVER_RESOLVE_TREE_CALL_H_
#define SHARDMESH_SERVER_RESOLVE_TREE_CALL_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rpc/codec/status.h"
#include "rpc/codec/tree_decoder.h"
#include "server/resolve/tree_resolver.h"
#include "server/state/definitions.h"
#include "server/state/stored_tree.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {

// The error for a stream that sends tensors although its header names a stored tree. `field`: the
// field of the header that names the tree. The caller adds the field `tensors` to the error.
inline absl::Status TensorsBesideStoredTree(std::string_view field) {
  return InvalidArgument(Reason::kBadField,
                         StrCat("tensors are given beside ", field, "; give one of both"));
}

// Processes the messages of one stream in order; the reactors of tree_reactor.h call it. For one
// thread at a time.
template <typename Request, typename Response>
class TreeCall {
 public:
  virtual ~TreeCall() = default;

  // Whether Take would take too long for a reaction (a gRPC callback). `request`: the next message.
  virtual bool TakesLong(const Request& request) const = 0;

  // Takes a message. Sets `*is_tensors` if tensors came with the message: in the message itself, or
  // by a header that names a stored tree. A call that answers each piece fills `*response`, which
  // must be empty before. Errors: those of the RPC, and CANCELLED soon after `is_cancelled` returns
  // true. After an error the object must not be used.
  virtual absl::Status Take(const Request& request, const std::function<bool()>& is_cancelled,
                            Response* response, bool* is_tensors) = 0;

  // Called when the client has sent everything. Fills the empty `*response` with the last or only
  // answer.
  virtual absl::Status End(Response* response, const std::function<bool()>& is_cancelled) = 0;
};

// Implements a TreeCall by a class `Work`, which must have:
//
// clang-format off
//   absl::Status Begin(const Header&, const std::function<bool()>& is_cancelled);
//   absl::Status Add(absl::Span<const TreeTensor>, const std::function<bool()>& is_cancelled);
//     or, if it answers each piece, the same with a third argument, Response*;
//   absl::Status End(Response*, const std::function<bool()>& is_cancelled);
// clang-format on
//
// Errors of Begin concern the header, those of Add the tensors. `Work` may also have:
//
// clang-format off
//   bool BeginsLong(const Header&) const;
//   bool AddsLong() const;
//   const StoredTree* stored_tree() const;
// clang-format on
//
// BeginsLong returns whether Begin takes too long for a reaction, including Add of a stored tree. A
// header that names a version of a stored tree always takes too long. AddsLong returns whether Add
// of any piece may take too long for a reaction; it is called after Begin. stored_tree() returns
// the tree that the header names, or null. The tree must live as long as `Work`. All tensors of the
// stored tree are added with the header, and no other piece may follow.
template <typename Work, typename Request, typename Response>
class TreeFeeder final : public TreeCall<Request, Response> {
 public:
  explicit TreeFeeder(Work work) : work_(std::move(work)) {}

  bool TakesLong(const Request& request) const override {
    if (has_begun_) {
      if constexpr (requires { work_.AddsLong(); }) {
        return work_.AddsLong();
      } else {
        return false;
      }
    }
    if constexpr (requires { request.header().stored_tree(); }) {
      if (NamesVersion(request.header().stored_tree())) {
        return true;
      }
    }
    if constexpr (requires { work_.BeginsLong(request.header()); }) {
      return work_.BeginsLong(request.header());
    } else {
      return false;
    }
  }

  absl::Status Take(const Request& request, const std::function<bool()>& is_cancelled,
                    Response* response, bool* is_tensors) override {
    *is_tensors = request.piece_case() == Request::kTensors;
    switch (request.piece_case()) {
      case Request::kHeader:
        if (has_begun_) {
          return rpc::BadField("header", "comes a second time; it is the first message alone");
        }
        has_begun_ = true;
        if (absl::Status status = work_.Begin(request.header(), is_cancelled); !status.ok()) {
          return rpc::WithField(std::move(status), "header");
        }
        if (stored_tree() == nullptr) {
          return absl::OkStatus();
        }
        *is_tensors = true;
        return About("header.stored_tree", Add(stored_tree()->tensors(), is_cancelled, response));
      case Request::kTensors: {
        if (!has_begun_) {
          return NoHeader();
        }
        if (stored_tree() != nullptr) {
          return About("tensors", TensorsBesideStoredTree("header.stored_tree"));
        }
        const size_t bytes = request.tensors().ByteSizeLong();
        if (bytes > kMaxPieceBytes) {
          return rpc::WithField(
              InvalidArgument(
                  Reason::kLimitExceeded,
                  StrCat("have ", bytes, " bytes; send at most ", kMaxPieceBytes, " at a time"),
                  {{fact::kHave, bytes}, {fact::kLimit, kMaxPieceBytes}}),
              "tensors");
        }
        const auto tensors = decoder_.Decode(request.tensors());
        if (!tensors.ok()) {
          return About("tensors", tensors.status());
        }
        return About("tensors", Add(*tensors, is_cancelled, response));
      }
      case Request::PIECE_NOT_SET:
        break;
    }
    return rpc::BadField("piece", "is neither a header nor tensors");
  }

  absl::Status End(Response* response, const std::function<bool()>& is_cancelled) override {
    return has_begun_ ? work_.End(response, is_cancelled) : NoHeader();
  }

 private:
  static constexpr size_t kMaxPieceBytes = size_t{1} << 20;

  const StoredTree* stored_tree() const {
    if constexpr (requires { work_.stored_tree(); }) {
      return work_.stored_tree();
    } else {
      return nullptr;
    }
  }
  absl::Status Add(absl::Span<const TreeTensor> tensors, const std::function<bool()>& is_cancelled,
                   Response* response) {
    if constexpr (requires { work_.Add(tensors, is_cancelled, response); }) {
      return work_.Add(tensors, is_cancelled, response);
    } else {
      return work_.Add(tensors, is_cancelled);
    }
  }
  static absl::Status About(std::string_view field, const absl::Status& status) {
    return absl::IsInvalidArgument(status) ? rpc::WithField(status, field) : status;
  }
  static absl::Status NoHeader() {
    return rpc::BadField("header", "is missing; it must be the first message");
  }

  Work work_;
  rpc::TreeDecoder decoder_;
  bool has_begun_ = false;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESOLVE_TREE_CALL_H_
