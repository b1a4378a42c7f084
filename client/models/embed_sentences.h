// Embeddings of sentences by a model on a cluster.
#ifndef SHARDMESH_CLIENT_MODELS_EMBED_SENTENCES_H_
#define SHARDMESH_CLIENT_MODELS_EMBED_SENTENCES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/mesh_client.h"
#include "client/models/loaded_model.h"
#include "client/types/call_options.h"
#include "client/types/step.h"
#include "client/types/step_observer.h"

namespace shardmesh::client {

struct SentenceEmbeddings {
  // One for each sentence, of hidden_size elements and length 1.
  std::vector<std::vector<float>> embeddings;
  std::vector<StepTimings> steps;  // of at most 64 sentences each
};

// Checks what EmbedSentences checks before it asks the cluster: of `model`, the name and the
// configuration. Errors are those of EmbedSentences.
absl::Status CheckSentences(const LoadedModel& model,
                            absl::Span<const std::vector<int32_t>> sentences);

// Embeds sentences, each a list of tokens, by a model of the kind BertConfig. Special tokens are
// the caller's: a sentence of all-MiniLM-L6-v2 begins with 101 and ends with 102. The weights are
// pinned until the function returns. `options` limit all calls together.
// `observer`, which may be null, sees each step.
//
// Errors are INVALID_ARGUMENT: BAD_FIELD for an empty sentence, a token that is not in the
// vocabulary, or a model of another kind; LIMIT_EXCEEDED for a sentence longer than max_positions.
// Also errors of HoldModel, ComputeClient::Execute and the observer.
absl::StatusOr<SentenceEmbeddings> EmbedSentences(MeshClient* client, const LoadedModel& model,
                                                  absl::Span<const std::vector<int32_t>> sentences,
                                                  const CallOptions& options = {},
                                                  StepObserver* observer = nullptr);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_MODELS_EMBED_SENTENCES_H_
