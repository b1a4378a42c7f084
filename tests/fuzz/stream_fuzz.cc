// Fuzzes the calls that stream trees as they arrive: their messages in sequence are answered, or
// refused for a reason, and a call that is cancelled ends.
//
// The first byte picks the call; the second tells after how many questions it is cancelled (0:
// after very many). Then come the messages, each after its length in two bytes, low byte first.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/resolve/layout_streams.h"
#include "server/resolve/rule_streams.h"
#include "server/resolve/tree_streams.h"
#include "server/state/definitions.h"
#include "status/reason.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/quiet_protobuf.h"

namespace shardmesh::fuzz {
namespace {

// What a call asks of one that does not want to wait for ever.
constexpr int64_t kMostQuestions = 2'000;

// The next message of the input, which loses it.
std::string TakeMessage(std::string_view* input) {
  const auto byte = [&input](size_t i) {
    return i < input->size() ? size_t{static_cast<unsigned char>((*input)[i])} : size_t{0};
  };
  const size_t size = byte(0) | byte(1) << 8;
  input->remove_prefix(std::min<size_t>(2, input->size()));
  const std::string message(input->substr(0, size));
  input->remove_prefix(message.size());
  return message;
}

// A refusal says why: what a program can read, and what a person can.
bool IsOver(const absl::Status& status, bool cancelled) {
  Require(status.ok() || !status.message().empty());
  Require(status.ok() || (cancelled && absl::IsCancelled(status)) ||
          ReasonOf(status) != Reason::kUnspecified);
  return !status.ok();
}

template <typename Request, typename Response>
void CheckCall(const std::unique_ptr<server::TreeCall<Request, Response>>& call, int64_t questions,
               std::string_view input) {
  int64_t asked = 0;
  const auto is_cancelled = [&] { return ++asked > questions; };
  Response response;
  while (!input.empty()) {
    Request request;
    if (!request.ParseFromString(TakeMessage(&input))) {
      return;
    }
    response.Clear();
    bool is_tensors = false;
    const absl::Status status = call->Take(request, is_cancelled, &response, &is_tensors);
    if (IsOver(status, asked > questions)) {
      return;
    }
    Require(is_tensors == request.has_tensors());
  }
  response.Clear();
  IsOver(call->End(&response, is_cancelled), asked > questions);
}

}  // namespace

void Check(std::string_view input) {
  if (input.size() < 2) {
    return;
  }
  static const std::shared_ptr<const server::Definitions>& state =
      *new std::shared_ptr<const server::Definitions>(std::make_shared<server::Definitions>());
  static const server::CorrectionCounter& counter = *new server::CorrectionCounter(nullptr);
  const int64_t questions =
      input[1] == 0 ? kMostQuestions : int64_t{static_cast<unsigned char>(input[1])} - 1;
  const std::string_view messages = input.substr(2);
  switch (static_cast<unsigned char>(input[0]) % 6) {
    case 0:
      return CheckCall(server::MakeResolveTreeCall(state, counter), questions, messages);
    case 1:
      return CheckCall(server::MakeLintRulesCall(state, nullptr), questions, messages);
    case 2:
      return CheckCall(server::MakeDiffLayoutsCall(state), questions, messages);
    case 3:
      return CheckCall(server::MakeAnalyzeLayoutCall(state), questions, messages);
    case 4:
      return CheckCall(server::MakeSearchMeshesCall(state), questions, messages);
    default:
      return CheckCall(server::MakeShardingStrategyCall(state), questions, messages);
  }
}

}  // namespace shardmesh::fuzz
