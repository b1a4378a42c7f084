// Greedy decoding by a model on a cluster.
#ifndef SHARDMESH_CLIENT_MODELS_GENERATE_TOKENS_H_
#define SHARDMESH_CLIENT_MODELS_GENERATE_TOKENS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/mesh_client.h"
#include "client/models/loaded_model.h"
#include "client/types/call_options.h"
#include "client/types/step.h"
#include "client/types/step_observer.h"

namespace shardmesh::client {

struct GenerateOptions {
  int64_t max_new_tokens = 64;  // of each sequence, at least 1
  bool gives_logits = false;
  // Sees each step. May be null. With it, steps run one at a time.
  StepObserver* observer = nullptr;
  // Called after each step with its tokens, one for each sequence. May be null.
  std::function<void(absl::Span<const int32_t> tokens)> on_tokens = nullptr;
};

// The tokens that follow prompts.
struct Generation {
  // The new tokens of each sequence. A sequence ends after max_new_tokens, or after a stop token of
  // the model, which is included.
  std::vector<std::vector<int32_t>> tokens;
  // With gives_logits, those of each step and sequence.
  std::vector<std::vector<std::vector<float>>> logits;
  StepTimings prefill;  // of the step that reads the prompts and gives the first token
  // The time from the first token to the last one, as the client sees it, and the steps in it, each
  // of which gives one token of each sequence.
  absl::Duration decode_time = absl::ZeroDuration();
  int64_t decode_steps = 0;
  StepTimings decode;  // of the last of these steps
};

// Checks what GenerateTokens checks before it asks the cluster: of `model`, the name and the
// configuration. Errors are those of GenerateTokens.
absl::Status CheckPrompts(const LoadedModel& model, absl::Span<const std::vector<int32_t>> prompts,
                          const GenerateOptions& generate_options);

// Generates tokens by a model of the kind LlamaConfig: of each step, the token with the largest
// logit. All prompts, 1 to 256, make one batch. Keys and values of earlier tokens stay on the
// workers, in arrays without a name that are released at the end. Steps follow each other without
// the client; those after a stop token are cancelled. A small result of a step that committed all
// the same may stay until the session ends. The weights are pinned until the function returns.
// `options` limit all calls together.
//
// Errors are INVALID_ARGUMENT: BAD_FIELD for an empty prompt, a token that is not in the
// vocabulary, or a model of another kind; LIMIT_EXCEEDED for a prompt that is, with the new tokens,
// longer than max_positions, for too many prompts, and for prompts or logits of a step that take
// more than kMaxLiteralBytes. Also errors of HoldModel, ArrayClient::PutTensors,
// ComputeClient::Execute, StepStream::Next and the observer.
absl::StatusOr<Generation> GenerateTokens(MeshClient* client, const LoadedModel& model,
                                          absl::Span<const std::vector<int32_t>> prompts,
                                          const GenerateOptions& generate_options = {},
                                          const CallOptions& options = {});

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_MODELS_GENERATE_TOKENS_H_
