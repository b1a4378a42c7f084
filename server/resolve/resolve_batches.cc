// Answers to many questions of one kind in a call, each independent of the others.
#include <cstdint>
#include <functional>

#include "rpc/codec/status.h"
#include "server/resolve/resolve_answers.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr int kMaxItems = 10'000;
// Bytes of results in a message of at most 4 MiB. An item's answer has at most a few KiB.
constexpr int64_t kMaxResultBytes = int64_t{3} << 20;

bool NeedsProfile(const v1::ResolveSpecRequest&) { return true; }
// A spec needs no profile: it is already the answer.
bool NeedsProfile(const v1::ConstrainArrayRequest& question) {
  return question.layout_case() != v1::ConstrainArrayRequest::kSpec;
}

template <typename Request, typename Response>
absl::Status AnswerBatch(const AnswerContext& context, const Request& batch, Response* response,
                         const std::function<bool()>& is_cancelled) {
  SHARDMESH_RETURN_IF_ERROR(CheckCount(batch.requests_size(), kMaxItems, "questions", "requests"));
  response->set_revision(context.state.revision());
  int64_t bytes = 0;
  for (const auto& item : batch.requests()) {
    if (is_cancelled && is_cancelled()) {
      return WithReason(absl::CancelledError("the caller left"), Reason::kCancelled);
    }
    auto question = item;
    if (question.mesh().ByteSizeLong() == 0) *question.mutable_mesh() = batch.mesh();
    if (NeedsProfile(question) && question.profile().ByteSizeLong() == 0) {
      *question.mutable_profile() = batch.profile();
    }
    auto* const result = response->add_results();
    const absl::Status status = Answer(context, question, result->mutable_response());
    if (!status.ok()) rpc::Encode(status, result->mutable_error());
    bytes += static_cast<int64_t>(result->ByteSizeLong());
    if (bytes > kMaxResultBytes) {
      return rpc::WithField(
          InvalidArgument(
              Reason::kLimitExceeded,
              StrCat("the results of the first ", response->results_size(), " of ",
                     batch.requests_size(), " questions have ", bytes, " bytes, the limit is ",
                     kMaxResultBytes, "; send fewer a call, or ask for no explanation"),
              {{fact::kHave, bytes}, {fact::kLimit, kMaxResultBytes}}),
          "requests");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Answer(const AnswerContext& context, const v1::BatchResolveSpecsRequest& request,
                    v1::BatchResolveSpecsResponse* response,
                    const std::function<bool()>& is_cancelled) {
  return AnswerBatch(context, request, response, is_cancelled);
}

absl::Status Answer(const AnswerContext& context, const v1::BatchConstrainArraysRequest& request,
                    v1::BatchConstrainArraysResponse* response,
                    const std::function<bool()>& is_cancelled) {
  return AnswerBatch(context, request, response, is_cancelled);
}

}  // namespace shardmesh::server
