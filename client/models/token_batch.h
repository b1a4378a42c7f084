// Batches of token sequences: checks, and the padding to one length.
#ifndef SHARDMESH_CLIENT_MODELS_TOKEN_BATCH_H_
#define SHARDMESH_CLIENT_MODELS_TOKEN_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/types/step.h"
#include "tensor/literal.h"

namespace shardmesh::client {

// The most sequences of one batch.
inline constexpr int64_t kMaxSequences = 256;

// Sequences padded at their ends to one length: matrices, row-major, one row for each sequence.
struct TokenBatch {
  std::vector<int32_t> ids;        // 0 where there is no token
  std::vector<int32_t> positions;  // 0, 1, ..., and -1 where there is no token
  std::vector<int32_t> mask;       // 1, and 0 where there is no token
  std::vector<int32_t> ends;       // the position of each sequence's last token
};

// Requires that `length` is at least LongestOf(sequences).
TokenBatch PadTokens(absl::Span<const std::vector<int32_t>> sequences, int64_t length);

// Returns the number of tokens of the longest sequence; 0 if there is none.
int64_t LongestOf(absl::Span<const std::vector<int32_t>> sequences);

// Checks that each sequence has a token, that all tokens are below `vocabulary_size`, and that no
// sequence is longer than `max_positions` once `new_tokens` tokens follow it. Errors are
// INVALID_ARGUMENT, with the sequence's place from 0: BAD_FIELD or LIMIT_EXCEEDED.
absl::Status CheckTokens(absl::Span<const std::vector<int32_t>> sequences, int64_t vocabulary_size,
                         int64_t max_positions, int64_t new_tokens);

// Returns the rows of a result that is a matrix of F32, from its literal. INTERNAL: the answer has
// no such literal.
absl::StatusOr<std::vector<std::vector<float>>> RowsOf(const StepOutput& output);

// Returns the elements of a result of I32, from its literal. INTERNAL: the answer has no such
// literal.
absl::StatusOr<std::vector<int32_t>> Int32sOf(const StepOutput& output);

// Returns the literal of a matrix of I32.
Literal Int32Literal(int64_t rows, int64_t columns, const std::vector<int32_t>& elements);

// Returns how many rows of this many elements, of 4 bytes each, one literal can have. At least 1,
// also if a single row is too large.
int64_t RowsOfLiteral(int64_t columns);

// Returns `smallest`, doubled until it is at least `count`. Lengths are rounded up so, so that
// batches of many lengths need few plans.
int64_t RoundUpLength(int64_t count, int64_t smallest);
// The least number of tokens to which sentences and prompts are padded.
inline constexpr int64_t kSmallestLength = 16;

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_MODELS_TOKEN_BATCH_H_
