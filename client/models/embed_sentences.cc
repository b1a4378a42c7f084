// Runs the graph of an encoder on batches of sentences.
#include "client/models/embed_sentences.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "client/held_arrays.h"
#include "client/models/bert_model.h"
#include "client/models/time_limit.h"
#include "client/models/token_batch.h"
#include "client/types/graph_bindings.h"
#include "status/status_macros.h"

namespace shardmesh::client {
namespace {

// More sentences gain no speed.
constexpr size_t kMaxSentencesOfStep = 64;

// Returns the number of tokens to which these sentences are padded.
int64_t PaddedLength(absl::Span<const std::vector<int32_t>> sentences, const BertConfig& config) {
  const int64_t longest = LongestOf(sentences);
  return std::max(longest, std::min(RoundUpLength(longest, kSmallestLength), config.max_positions));
}

// Returns how many of the first sentences one step takes: their tokens, and their embeddings, must
// fit into literals.
size_t SentencesOfStep(absl::Span<const std::vector<int32_t>> sentences, const BertConfig& config) {
  const auto candidates = sentences.subspan(0, kMaxSentencesOfStep);
  const int64_t columns = std::max(PaddedLength(candidates, config), config.hidden_size);
  return std::min(candidates.size(), static_cast<size_t>(RowsOfLiteral(columns)));
}

// Adds what a step has computed to `result`.
absl::Status TakeEmbeddings(const Graph& graph, const StepResult& step, const TimeLimit& limit,
                            StepObserver* observer, SentenceEmbeddings& result) {
  if (observer != nullptr) {
    SHARDMESH_RETURN_IF_ERROR(observer->AfterStep(step, StepOptions(limit.Next())));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const StepOutput* const output, FindOutput(graph, step, "embedding"));
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<std::vector<float>> rows, RowsOf(*output));
  for (std::vector<float>& row : rows) result.embeddings.push_back(std::move(row));
  result.steps.push_back(step.timings);
  return absl::OkStatus();
}

// Releases the arrays of the step's outputs, also after an error, and when the time is over. The
// session would release them at its end, too: an error here changes no result.
void ReleaseOutputs(MeshClient* client, const StepResult& step, CallOptions options) {
  options.cancellation = nullptr;
  options.timeout = std::nullopt;
  std::vector<std::string> ids;
  for (const StepOutput& output : step.outputs) ids.push_back(output.array.descriptor.array_id);
  client->arrays().ReleaseArrays(ids, options).IgnoreError();
}

// Runs one step, and adds its embeddings to `result`.
absl::Status EmbedBatch(MeshClient* client, const LoadedModel& model, const BertConfig& config,
                        absl::Span<const std::vector<int32_t>> sentences, const TimeLimit& limit,
                        StepObserver* observer, SentenceEmbeddings& result) {
  const int64_t length = PaddedLength(sentences, config);
  const auto count = static_cast<int64_t>(sentences.size());
  SHARDMESH_ASSIGN_OR_RETURN(const Graph graph, BertEmbedding(config, count, length, model.types));
  const TokenBatch batch = PadTokens(sentences, length);
  GraphBindings bindings{.operands = model.weights, .return_literals = true};
  bindings.operands.emplace("ids", Int32Literal(count, length, batch.ids));
  bindings.operands.emplace("mask", Int32Literal(count, length, batch.mask));
  bindings.mesh_id = model.mesh_id;
  SHARDMESH_ASSIGN_OR_RETURN(const ExecuteCall call, BindGraph(graph, bindings));
  if (observer != nullptr) {
    SHARDMESH_RETURN_IF_ERROR(
        observer->BeforeStep(graph.program, call.operands, StepOptions(limit.Next())));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const StepResult step,
                             client->compute().Execute(call, StepOptions(limit.Next())));
  const absl::Status taken = TakeEmbeddings(graph, step, limit, observer, result);
  ReleaseOutputs(client, step, limit.Next());
  return taken;
}

}  // namespace

absl::Status CheckSentences(const LoadedModel& model,
                            absl::Span<const std::vector<int32_t>> sentences) {
  SHARDMESH_ASSIGN_OR_RETURN(const BertConfig config, BertConfigOf(model));
  return CheckTokens(sentences, config.vocabulary_size, config.max_positions, 0);
}

absl::StatusOr<SentenceEmbeddings> EmbedSentences(MeshClient* client, const LoadedModel& model,
                                                  absl::Span<const std::vector<int32_t>> sentences,
                                                  const CallOptions& options,
                                                  StepObserver* observer) {
  SHARDMESH_RETURN_IF_ERROR(CheckSentences(model, sentences));
  SHARDMESH_ASSIGN_OR_RETURN(const BertConfig config, BertConfigOf(model));
  const TimeLimit limit(options);
  SHARDMESH_ASSIGN_OR_RETURN(const HeldArrays held, HoldModel(client, model, limit.Next()));
  SentenceEmbeddings result;
  while (!sentences.empty()) {
    const size_t count = SentencesOfStep(sentences, config);
    SHARDMESH_RETURN_IF_ERROR(
        EmbedBatch(client, model, config, sentences.subspan(0, count), limit, observer, result));
    sentences.remove_prefix(count);
  }
  return result;
}

}  // namespace shardmesh::client
