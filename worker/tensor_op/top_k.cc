// The largest elements of rows. Elements become 64-bit keys, of which the larger one comes first.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "worker/kernel/float_block.h"
#include "worker/kernel/pieces.h"
#include "worker/tensor_op/op_kernels.h"

namespace shardmesh::worker {
namespace {

// Elements of a piece. A slow CPU needs 20 ns for an element.
constexpr int64_t kTopKPiece = 128 * kFloatBlock;

// Equal numbers have equal keys, zeros of both signs too. A NaN has the largest key.
int64_t KeyOf(double value) {
  if (value != value) return std::numeric_limits<int64_t>::max();
  const auto bits = std::bit_cast<int64_t>(value + 0.0);
  return bits < 0 ? bits ^ std::numeric_limits<int64_t>::max() : bits;
}

void LoadKeys(Dtype dtype, const char* from, std::vector<int64_t>& keys) {
  const int64_t size = BitsPerElement(dtype) / 8;
  const auto count = static_cast<int64_t>(keys.size());
  for (int64_t i = 0; i < count; i += kFloatBlock) {
    const auto block = static_cast<size_t>(std::min(kFloatBlock, count - i));
    int64_t* const to = keys.data() + i;
    if (IsFloat(dtype)) {
      WideBlock<double> values;
      LoadDoubles(dtype, from + i * size, block, values.data());
      std::transform(values.begin(), values.begin() + block, to, KeyOf);
    } else {
      WideBlock<uint64_t> values;
      LoadIntegers(dtype, from + i * size, block, values.data());
      std::transform(values.begin(), values.begin() + block, to,
                     [](uint64_t value) { return static_cast<int64_t>(value); });
    }
  }
}

// Sets the first `count` of `order` to the indices of the largest keys.
void OrderByKey(const std::vector<int64_t>& keys, int64_t count, std::vector<int32_t>& order) {
  if (count == 1) {
    order[0] = static_cast<int32_t>(std::max_element(keys.begin(), keys.end()) - keys.begin());
    return;
  }
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [&keys](int32_t a, int32_t b) {
                      const int64_t left = keys[static_cast<size_t>(a)];
                      const int64_t right = keys[static_cast<size_t>(b)];
                      return left != right ? left > right : a < b;
                    });
}

}  // namespace

absl::Status RunKernel(const TopKOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  if (output.bytes.empty()) return absl::OkStatus();
  const OpInput& input = inputs[0];
  const int64_t extent = input.shape.back();
  const int64_t size = BitsPerElement(input.dtype) / 8;
  const auto find = [&](int64_t begin, int64_t end) {
    std::vector<int64_t> keys(static_cast<size_t>(extent));
    std::vector<int32_t> order(op.count == 1 ? 1 : keys.size());
    for (int64_t row = begin; row < end; ++row) {
      const char* const from = input.bytes.data() + row * extent * size;
      LoadKeys(input.dtype, from, keys);
      OrderByKey(keys, op.count, order);
      char* const to = output.bytes.data() +
                       row * op.count * (op.gives_indices ? int64_t{sizeof(int32_t)} : size);
      if (op.gives_indices) {
        std::memcpy(to, order.data(), static_cast<size_t>(op.count) * sizeof(int32_t));
        continue;
      }
      for (int64_t i = 0; i < op.count; ++i) {
        std::memcpy(to + i * size, from + order[static_cast<size_t>(i)] * size,
                    static_cast<size_t>(size));
      }
    }
  };
  return RunPieces(ElementsOf(input.shape) / extent,
                   {.piece = ItemsOfPiece(kTopKPiece, extent), .threads = context.threads},
                   context.abort_check, find);
}

}  // namespace shardmesh::worker
