// Checks and pads sequences of tokens.
#include "client/models/token_batch.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

absl::StatusOr<absl::Span<const char>> ElementsOf(const StepOutput& output, Dtype dtype) {
  if (!output.literal.has_value() || output.literal->dtype != dtype) {
    return absl::InternalError(
        StrCat("the answer to a step has no result of ", DtypeName(dtype), " elements"));
  }
  return absl::MakeConstSpan(output.literal->bytes.data(), output.literal->bytes.size());
}

}  // namespace

TokenBatch PadTokens(absl::Span<const std::vector<int32_t>> sequences, int64_t length) {
  const auto size = sequences.size() * static_cast<size_t>(length);
  TokenBatch batch;
  batch.ids.assign(size, 0);
  batch.positions.assign(size, -1);
  batch.mask.assign(size, 0);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const size_t first = i * static_cast<size_t>(length);
    for (size_t token = 0; token < sequences[i].size(); ++token) {
      batch.ids[first + token] = sequences[i][token];
      batch.positions[first + token] = static_cast<int32_t>(token);
      batch.mask[first + token] = 1;
    }
    batch.ends.push_back(static_cast<int32_t>(sequences[i].size()) - 1);
  }
  return batch;
}

int64_t LongestOf(absl::Span<const std::vector<int32_t>> sequences) {
  size_t longest = 0;
  for (const std::vector<int32_t>& sequence : sequences) {
    longest = std::max(longest, sequence.size());
  }
  return static_cast<int64_t>(longest);
}

absl::Status CheckTokens(absl::Span<const std::vector<int32_t>> sequences, int64_t vocabulary_size,
                         int64_t max_positions, int64_t new_tokens) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto length = static_cast<int64_t>(sequences[i].size());
    if (length == 0) {
      return InvalidArgument(Reason::kBadField,
                             StrCat("sequence ", i, " is empty; give at least one token"),
                             {{fact::kField, "tokens"}});
    }
    for (const int32_t token : sequences[i]) {
      if (token >= 0 && token < vocabulary_size) continue;
      return InvalidArgument(Reason::kBadField,
                             StrCat("sequence ", i, " has the token ", token,
                                    "; the model's tokens are 0 to ", vocabulary_size - 1),
                             {{fact::kField, "tokens"}, {fact::kValue, token}});
    }
    // Compared without a sum, which could overflow.
    if (length > max_positions || new_tokens > max_positions - length) {
      return InvalidArgument(
          Reason::kLimitExceeded,
          StrCat("sequence ", i, " has ", length, " tokens",
                 new_tokens > 0 ? StrCat(" and ", new_tokens, " are to follow") : std::string(),
                 "; max_position_embeddings of the model is ", max_positions, ": shorten it",
                 new_tokens > 0 ? ", or ask for fewer new tokens" : ""),
          {{fact::kField, "tokens"}, {fact::kHave, length}, {fact::kLimit, max_positions}});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<float>>> RowsOf(const StepOutput& output) {
  SHARDMESH_ASSIGN_OR_RETURN(const absl::Span<const char> bytes, ElementsOf(output, Dtype::kF32));
  const Shape& shape = output.literal->shape;
  if (shape.size() != 2) return absl::InternalError("the result of a step is no matrix");
  const auto columns = static_cast<size_t>(shape[1]);
  std::vector<std::vector<float>> rows(static_cast<size_t>(shape[0]), std::vector<float>(columns));
  for (size_t row = 0; row < rows.size(); ++row) {
    const size_t row_bytes = columns * sizeof(float);
    std::memcpy(rows[row].data(), bytes.data() + row * row_bytes, row_bytes);
  }
  return rows;
}

absl::StatusOr<std::vector<int32_t>> Int32sOf(const StepOutput& output) {
  SHARDMESH_ASSIGN_OR_RETURN(const absl::Span<const char> bytes, ElementsOf(output, Dtype::kI32));
  std::vector<int32_t> elements(bytes.size() / sizeof(int32_t));
  std::memcpy(elements.data(), bytes.data(), elements.size() * sizeof(int32_t));
  return elements;
}

Literal Int32Literal(int64_t rows, int64_t columns, const std::vector<int32_t>& elements) {
  return Literal{Dtype::kI32,
                 {rows, columns},
                 std::string(reinterpret_cast<const char*>(elements.data()),
                             elements.size() * sizeof(int32_t))};
}

int64_t RowsOfLiteral(int64_t columns) {
  constexpr int64_t kMaxElements = kMaxLiteralBytes / int64_t{sizeof(int32_t)};
  return std::max<int64_t>(1, kMaxElements / std::max<int64_t>(1, columns));
}

int64_t RoundUpLength(int64_t count, int64_t smallest) {
  int64_t length = smallest;
  while (length < count) length *= 2;
  return length;
}

}  // namespace shardmesh::client
