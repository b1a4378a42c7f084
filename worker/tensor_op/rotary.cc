// Rotary position embedding: the sines and cosines of a position serve all heads.
#include <vector>

#include "worker/kernel/float_block.h"
#include "worker/kernel/pieces.h"
#include "worker/tensor_op/op_kernels.h"
#include "worker/tensor_op/row_loops.h"

namespace shardmesh::worker {
namespace {

// Elements of a piece. A slow CPU needs 20 ns for an element.
constexpr int64_t kRotaryPiece = 128 * kFloatBlock;

}  // namespace

absl::Status RunKernel(const RotaryOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  if (output.bytes.empty()) return absl::OkStatus();
  const OpInput& input = inputs[0];
  const int64_t sequence = input.shape[1];
  const int64_t heads = input.shape[2];
  const auto features = static_cast<size_t>(input.shape[3]);
  const size_t pairs = features / 2;
  const int64_t head_bytes = input.shape[3] * FloatBytes(input.dtype);
  const bool is_shared = inputs[1].shape.size() == 1;
  const int32_t* const positions = reinterpret_cast<const int32_t*>(inputs[1].bytes.data());
  const float* const frequencies = reinterpret_cast<const float*>(inputs[2].bytes.data());
  const RowLoops& loops = RowLoopsOfCpu();
  const auto rotate = op.is_interleaved ? loops.rotate_neighbours : loops.rotate_halves;

  const auto rotate_tokens = [&](int64_t begin, int64_t end) {
    std::vector<float> sines(pairs);
    std::vector<float> cosines(pairs);
    std::vector<float> values(input.dtype == Dtype::kF32 ? 0 : features);
    for (int64_t token = begin; token < end; ++token) {
      const int32_t position = positions[is_shared ? token % sequence : token];
      loops.angles(position, frequencies, pairs, sines.data(), cosines.data());
      for (int64_t head = token * heads; head < (token + 1) * heads; ++head) {
        const char* const from = input.bytes.data() + head * head_bytes;
        char* const to = output.bytes.data() + head * head_bytes;
        if (input.dtype == Dtype::kF32) {
          rotate(reinterpret_cast<const float*>(from), sines.data(), cosines.data(), pairs,
                 reinterpret_cast<float*>(to));
          continue;
        }
        LoadFloats(input.dtype, from, features, values.data());
        rotate(values.data(), sines.data(), cosines.data(), pairs, values.data());
        StoreFloats(output.dtype, values.data(), features, to);
      }
    }
  };
  return RunPieces(
      input.shape[0] * sequence,
      {.piece = ItemsOfPiece(kRotaryPiece, heads * input.shape[3]), .threads = context.threads},
      context.abort_check, rotate_tokens);
}

}  // namespace shardmesh::worker
