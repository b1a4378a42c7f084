// Conversions of elements, through blocks of the widest type of their kind.
#include <algorithm>

#include "worker/kernel/float_block.h"
#include "worker/kernel/pieces.h"
#include "worker/tensor_op/op_kernels.h"

namespace shardmesh::worker {
namespace {

// A slow CPU needs 20 ns for an element.
constexpr int64_t kConvertPiece = 128 * kFloatBlock;

void ConvertBlock(Dtype from_type, const char* from, size_t count, Dtype to_type, char* to) {
  if (FloatBytes(from_type) > 0 && FloatBytes(to_type) > 0) {
    FloatBlock floats;
    LoadFloats(from_type, from, count, floats.data());
    StoreFloats(to_type, floats.data(), count, to);
  } else if (IsFloat(from_type)) {
    WideBlock<double> values;
    LoadDoubles(from_type, from, count, values.data());
    StoreDoubles(to_type, values.data(), count, to);
  } else {
    WideBlock<uint64_t> values;
    LoadIntegers(from_type, from, count, values.data());
    StoreIntegers(to_type, from_type != Dtype::kU64, values.data(), count, to);
  }
}

}  // namespace

absl::Status RunKernel(const ConvertOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  const OpInput& input = inputs[0];
  if (input.dtype == op.dtype) return CopyInPieces(input.bytes, output.bytes.data(), context);
  const int64_t from_bytes = BitsPerElement(input.dtype) / 8;
  const int64_t to_bytes = BitsPerElement(op.dtype) / 8;
  return RunPieces(ElementsOf(output.shape), {.piece = kConvertPiece, .threads = context.threads},
                   context.abort_check, [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; i += kFloatBlock) {
                       ConvertBlock(input.dtype, input.bytes.data() + i * from_bytes,
                                    static_cast<size_t>(std::min(kFloatBlock, end - i)), op.dtype,
                                    output.bytes.data() + i * to_bytes);
                     }
                   });
}

}  // namespace shardmesh::worker
