// Answers a batch of questions of one kind. Each question is independent of the others.
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
// Maximum number of bytes of results in the answer to a batch. Messages have at most 4 MiB, and one
// result has a few KiB.
constexpr int64_t kMaxResultBytes = int64_t{3} << 20;

template <typename Request, typename Response>
absl::Status AnswerBatch(const AnswerContext& context, const Request& batch, Response* response,
                         const std::function<bool()>& is_cancelled) {
  SHARDMESH_RETURN_IF_ERROR(CheckCount(batch.requests_size(), kMaxItems, "questions", "requests"));
  response->set_revision(context.state.revision());
  SharedSelections shared(context.state, batch.mesh(), batch.profile());
  const AnswerContext of_batch = {context.state, context.corrections, &shared};
  int64_t bytes = 0;
  for (const auto& question : batch.requests()) {
    if (is_cancelled && is_cancelled()) {
      return WithReason(absl::CancelledError("the caller left"), Reason::kCancelled);
    }
    auto* const result = response->add_results();
    const absl::Status status = Answer(of_batch, question, result->mutable_response());
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

const absl::StatusOr<Mesh>& SharedSelections::mesh(Compatibility compatibility) {
  const auto found = meshes_.find(compatibility);
  if (found != meshes_.end()) return found->second;
  return meshes_.emplace(compatibility, SelectMesh(state_, mesh_, compatibility)).first->second;
}

const absl::StatusOr<PartitionAxis>& SharedSelections::profile() {
  if (!found_profile_.has_value()) found_profile_.emplace(SelectProfile(state_, profile_));
  return *found_profile_;
}

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
