// Ops on rows: lookups in a table, and updates of a cache.
#include <algorithm>
#include <cstring>

#include "status/status_macros.h"
#include "tensor/copy.h"
#include "worker/kernel/pieces.h"
#include "worker/tensor_op/op_kernels.h"

namespace shardmesh::worker {
namespace {

constexpr int64_t kRowsPieceBytes = int64_t{2} << 20;

const int32_t* Indices(const OpInput& input) {
  return reinterpret_cast<const int32_t*>(input.bytes.data());
}

}  // namespace

absl::Status RunKernel(const EmbeddingOp& /*op*/, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  const OpInput& table = inputs[0];
  const int32_t* const ids = Indices(inputs[1]);
  const int64_t row_bytes = table.shape[1] * (BitsPerElement(table.dtype) / 8);
  const auto size = static_cast<size_t>(row_bytes);
  // A device adds nothing for rows that are in other devices' tiles.
  const IndexRange rows = table.tile.ranges[0];
  const auto look_up = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      char* const to = output.bytes.data() + i * row_bytes;
      if (ids[i] >= rows.start && ids[i] < rows.stop) {
        CopyBytes(to, table.bytes.data() + (ids[i] - rows.start) * row_bytes, size);
      } else if (size > 0) {
        std::memset(to, 0, size);
      }
    }
  };
  return RunPieces(ElementsOf(inputs[1].shape),
                   {.piece = ItemsOfPiece(kRowsPieceBytes, std::max<int64_t>(row_bytes, 64)),
                    .threads = context.threads},
                   context.abort_check, look_up);
}

absl::Status RunKernel(const UpdateRowsOp& /*op*/, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  const OpInput& input = inputs[0];
  const OpInput& update = inputs[1];
  SHARDMESH_RETURN_IF_ERROR(CopyInPieces(input.bytes, output.bytes.data(), context));
  const int64_t rows = input.shape[1];
  const int64_t sequence = update.shape[1];
  const int64_t row_bytes =
      ElementsOf(absl::MakeConstSpan(input.shape).subspan(2)) * (BitsPerElement(input.dtype) / 8);
  const bool is_shared = inputs[2].shape.size() == 1;
  // Rows of one sequence follow each other, so that the last one of equal positions counts.
  for (int64_t b = 0; b < input.shape[0]; ++b) {
    if (b > 0 && context.abort_check) SHARDMESH_RETURN_IF_ERROR(context.abort_check());
    const int32_t* const positions = Indices(inputs[2]) + (is_shared ? 0 : b * sequence);
    for (int64_t s = 0; s < sequence; ++s) {
      if (positions[s] < 0 || positions[s] >= rows) continue;
      CopyBytes(output.bytes.data() + (b * rows + positions[s]) * row_bytes,
                update.bytes.data() + (b * sequence + s) * row_bytes,
                static_cast<size_t>(row_bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::worker
