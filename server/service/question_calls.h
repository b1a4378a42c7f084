// The objects that the question services share: a cache of answers, background threads, and a
// counter of corrections.
#ifndef SHARDMESH_SERVER_SERVICE_QUESTION_CALLS_H_
#define SHARDMESH_SERVER_SERVICE_QUESTION_CALLS_H_

#include <google/protobuf/arena.h>
#include <grpcpp/grpcpp.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "rpc/codec/status.h"
#include "rpc/stream/message_bytes.h"
#include "server/resolve/answer_cache.h"
#include "server/resolve/background.h"
#include "server/resolve/resolve_answers.h"
#include "server/service/background_reactor.h"
#include "server/service/question_services.h"
#include "server/service/unary_answer.h"
#include "status/status_macros.h"

namespace shardmesh::server {

// Makes the reactors of calls that ask questions. Thread-safe. Outlives its calls.
class QuestionCalls {
 public:
  explicit QuestionCalls(const QuestionOptions& options)
      : options_(options), counter_(options.metrics) {}

  std::shared_ptr<const Definitions> state() const {
    return options_.definition_store->shared_state();
  }
  const ArrayRegistry* registry() const { return options_.registry; }
  const CorrectionCounter& counter() const { return counter_; }
  Background* background() { return &background_; }
  Background* beginnings() { return &beginnings_; }

  // Answers the request from the cache, or else computes the answer. Computes in the background if
  // `takes_long` (may be null) says that the answer takes too long for a reaction (a gRPC
  // callback).
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Remembered(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer& request, grpc::ByteBuffer* response,
                                       bool (*takes_long)(const Definitions&,
                                                          const Request&) = nullptr) {
    grpc::Slice slice;
    if (!request.TrySingleSlice(&slice).ok() && !request.DumpToSingleSlice(&slice).ok()) {
      return FinishUnary(context, rpc::UnparsedMessage(*Request::descriptor()));
    }
    const Definitions& state = options_.definition_store->state();
    if (const auto known = answers_.Find(MethodOf<Request>(), BytesOf(slice), state.revision());
        known.has_value()) {
      counter_.Count(known->corrections);
      *response = grpc::ByteBuffer(&known->bytes, 1);
      return FinishUnary(context, absl::OkStatus());
    }
    alignas(std::max_align_t) std::array<char, kArenaBlockBytes> block;
    google::protobuf::Arena arena(block.data(), block.size());
    auto* const question = google::protobuf::Arena::CreateMessage<Request>(&arena);
    if (!question->ParseFromArray(slice.begin(), static_cast<int>(slice.size()))) {
      grpc::ByteBuffer malformed(request);
      return FinishUnary(context, rpc::ParseMessage(&malformed, question));  // names the field
    }
    if (takes_long != nullptr && takes_long(state, *question)) {
      return new BackgroundReactor(
          *context,
          [this, shared_state = options_.definition_store->shared_state(), slice,
           kept = std::make_unique<Request>(*question),
           response](const std::function<bool()>& is_cancelled) {
            google::protobuf::Arena own_arena;
            return AnswerAndKeep<Response>(*shared_state, slice, *kept, is_cancelled, &own_arena,
                                           response);
          },
          &background_);
    }
    return FinishUnary(context,
                       AnswerAndKeep<Response>(state, slice, *question, {}, &arena, response));
  }

  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* AtOnce(grpc::CallbackServerContext* context, const Request* request,
                                   Response* response) {
    CorrectionTally corrections;
    return FinishUnary(
        context, Answer({options_.definition_store->state(), corrections}, *request, response));
  }

  // Returns the reactor of a call whose answer may take too long for a reaction; a background
  // thread computes the answer.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* InBackground(const grpc::CallbackServerContext* context,
                                         const Request* request, Response* response) {
    return new BackgroundReactor(
        *context,
        [this, state = options_.definition_store->shared_state(), request,
         response](const std::function<bool()>& is_cancelled) {
          CorrectionTally corrections;
          const absl::Status status =
              Answer({*state, corrections}, *request, response, is_cancelled);
          counter_.Count(corrections);
          return status;
        },
        &background_);
  }

 private:
  // Bytes of stack memory for an ordinary question and its answer.
  static constexpr size_t kArenaBlockBytes = 4096;
  // Bytes of cached answers: some ten thousand ordinary questions.
  static constexpr size_t kRememberedBytes = size_t{32} << 20;

  // Answers a question that is not in the cache, and caches the answer. `request`: the question's
  // bytes.
  template <typename Response, typename Request>
  absl::Status AnswerAndKeep(const Definitions& state, const grpc::Slice& request,
                             const Request& question, const std::function<bool()>& is_cancelled,
                             google::protobuf::Arena* arena, grpc::ByteBuffer* response) {
    auto* const answered = google::protobuf::Arena::CreateMessage<Response>(arena);
    KnownAnswer answer;
    const AnswerContext context = {state, answer.corrections};
    absl::Status status;
    if constexpr (requires { Answer(context, question, answered, is_cancelled); }) {
      status = Answer(context, question, answered, is_cancelled);
    } else {
      status = Answer(context, question, answered);
    }
    counter_.Count(answer.corrections);
    SHARDMESH_RETURN_IF_ERROR(status);
    answer.bytes = grpc::Slice(answered->ByteSizeLong());
    answered->SerializeWithCachedSizesToArray(const_cast<uint8_t*>(answer.bytes.begin()));
    *response = grpc::ByteBuffer(&answer.bytes, 1);
    answers_.Keep(MethodOf<Request>(), BytesOf(request), state.revision(), answer);
    return absl::OkStatus();
  }

  // Returns a number for each request type. No two methods of the services use the same request
  // type, so the number identifies the method in the cache.
  template <typename Request>
  static int MethodOf() {
    static const int method = NextMethod();
    return method;
  }
  static int NextMethod() {
    static std::atomic<int> next{0};
    return next++;
  }
  static std::string_view BytesOf(const grpc::Slice& slice) {
    return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
  }

  const QuestionOptions options_;
  const CorrectionCounter counter_;
  AnswerCache answers_{kRememberedBytes};
  // These two members are last, because their tasks use the members above. Stream headers with
  // rules that take long to compile are processed by `beginnings_`, so that these headers do not
  // wait behind calls that take seconds.
  Background background_{2};
  Background beginnings_{2};
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_QUESTION_CALLS_H_
