// Functions of elements, in blocks that fit into the nearest cache. Inputs are broadcast as loops
// of rows: an input that has one element for a row fills a block with it.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "worker/kernel/activation_loops.h"
#include "worker/kernel/float_block.h"
#include "worker/kernel/pieces.h"
#include "worker/tensor_op/map_loops.h"
#include "worker/tensor_op/op_kernels.h"

namespace shardmesh::worker {
namespace {

// A slow CPU needs 20 ns for an element; for one of gelu in F64, 2 us.
constexpr int64_t kMapPiece = 128 * kFloatBlock;
constexpr int64_t kSlowMapPiece = 2 * kFloatBlock;

int64_t MapElementBytes(Dtype dtype) { return BitsPerElement(dtype) / 8; }

std::optional<Activation> ActivationOf(MapFunction function) {
  switch (function) {
    case MapFunction::kRelu:
      return Activation::kRelu;
    case MapFunction::kGelu:
      return Activation::kGelu;
    case MapFunction::kGeluTanh:
      return Activation::kGeluTanh;
    case MapFunction::kSilu:
      return Activation::kSilu;
    default:
      return std::nullopt;
  }
}

// Applies a function of one element to elements of one type.
class UnaryMap {
 public:
  UnaryMap(MapFunction function, Dtype dtype)
      : dtype_(dtype), is_half_(FloatBytes(dtype) == 2), activation_(ActivationOf(function)) {
    if (dtype == Dtype::kF64) activation_.reset();
    loop_ = MapLoop(function, is_half_ ? Dtype::kF32 : dtype);
  }

  // Applies it to at most kFloatBlock elements.
  void Apply(const char* in, int64_t count, char* out) const {
    if (!is_half_ && !activation_.has_value()) {
      loop_(in, count, out);
      return;
    }
    alignas(64) FloatBlock values;
    LoadFloats(dtype_, in, static_cast<size_t>(count), values.data());
    if (activation_.has_value()) {
      ActivationLoop (*activation_)(nullptr, values.data(), static_cast<size_t>(count));
    } else {
      char* const bytes = reinterpret_cast<char*>(values.data());
      loop_(bytes, count, bytes);
    }
    StoreFloats(dtype_, values.data(), static_cast<size_t>(count), out);
  }

 private:
  const Dtype dtype_;
  const bool is_half_;
  std::optional<Activation> activation_;
  MapFn loop_ = nullptr;
};

// Blocks of one input of a function of two. Halves become F32.
class PairInput {
 public:
  PairInput(Dtype dtype, bool repeats) : dtype_(dtype), repeats_(repeats) {}

  // Returns `count` elements from `from` on; if the input repeats its element, a block of it.
  const char* Block(const char* from, int64_t count) {
    const bool is_half = FloatBytes(dtype_) == 2;
    if (!is_half && !repeats_) return from;
    if (is_half) {
      float* const floats = reinterpret_cast<float*>(block_.data());
      LoadFloats(dtype_, from, static_cast<size_t>(repeats_ ? 1 : count), floats);
      if (repeats_) std::fill_n(floats, count, floats[0]);
    } else {
      const auto size = static_cast<size_t>(MapElementBytes(dtype_));
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(block_.data() + static_cast<size_t>(i) * size, from, size);
      }
    }
    return block_.data();
  }

 private:
  const Dtype dtype_;
  const bool repeats_;
  alignas(64) std::array<char, static_cast<size_t>(kFloatBlock) * 8> block_;
};

// The loops of a broadcast: dimensions of the result, merged where both inputs allow, outermost
// first. A stride of 0 repeats an input.
struct BroadcastDimension {
  int64_t extent = 1;
  std::array<int64_t, 2> strides = {};  // in elements, of each input
};
using BroadcastDimensions = absl::InlinedVector<BroadcastDimension, 6>;

BroadcastDimensions BroadcastLoops(const Shape& result, OpInputs inputs) {
  BroadcastDimensions loops;  // innermost first
  std::array<int64_t, 2> steps = {1, 1};
  for (size_t i = 0; i < result.size(); ++i) {
    BroadcastDimension loop = {.extent = result[result.size() - 1 - i], .strides = {}};
    for (size_t input = 0; input < 2; ++input) {
      const Shape& shape = inputs[input].shape;
      const int64_t extent = i < shape.size() ? shape[shape.size() - 1 - i] : 1;
      loop.strides[input] = extent == 1 ? 0 : steps[input];
      steps[input] *= extent;
    }
    if (loop.extent == 1) continue;
    if (!loops.empty()) {
      BroadcastDimension& inner = loops.back();
      const auto continues = [&](size_t input) {
        return loop.strides[input] == inner.strides[input] * inner.extent;
      };
      if (continues(0) && continues(1)) {
        inner.extent *= loop.extent;
        continue;
      }
    }
    loops.push_back(loop);
  }
  if (loops.empty()) loops.push_back({.extent = 1, .strides = {1, 1}});
  std::reverse(loops.begin(), loops.end());
  return loops;
}

absl::Status RunUnary(const MapOp& op, const OpInput& input, const OpOutput& output,
                      const OpContext& context) {
  const UnaryMap map(op.function, input.dtype);
  const int64_t size = MapElementBytes(input.dtype);
  const bool is_slow = input.dtype == Dtype::kF64 && op.function == MapFunction::kGelu;
  return RunPieces(ElementsOf(output.shape),
                   {.piece = is_slow ? kSlowMapPiece : kMapPiece, .threads = context.threads},
                   context.abort_check, [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; i += kFloatBlock) {
                       map.Apply(input.bytes.data() + i * size, std::min(kFloatBlock, end - i),
                                 output.bytes.data() + i * size);
                     }
                   });
}

// Applies `loop` to one block of both inputs.
void ApplyPair(CombineFn loop, Dtype dtype, const char* left, const char* right, int64_t count,
               char* out) {
  if (FloatBytes(dtype) != 2) {
    loop(left, right, count, out);
    return;
  }
  alignas(64) FloatBlock values;
  loop(left, right, count, reinterpret_cast<char*>(values.data()));
  StoreFloats(dtype, values.data(), static_cast<size_t>(count), out);
}

}  // namespace

absl::Status RunKernel(const MapOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  if (inputs.size() == 1) return RunUnary(op, inputs[0], output, context);
  const Dtype dtype = output.dtype;
  const int64_t size = MapElementBytes(dtype);
  const CombineFn loop = PairLoop(op.function, FloatBytes(dtype) == 2 ? Dtype::kF32 : dtype);
  const BroadcastDimensions loops = BroadcastLoops(output.shape, inputs);
  const BroadcastDimension& row = loops.back();
  const auto run = [&](int64_t begin, int64_t end) {
    PairInput left(dtype, row.strides[0] == 0);
    PairInput right(dtype, row.strides[1] == 0);
    for (int64_t i = begin; i < end;) {
      int64_t rest = i / row.extent;
      const int64_t column = i % row.extent;
      std::array<int64_t, 2> offsets = {column * row.strides[0], column * row.strides[1]};
      for (size_t dim = loops.size() - 1; dim-- > 0;) {
        const int64_t index = rest % loops[dim].extent;
        rest /= loops[dim].extent;
        for (size_t input = 0; input < 2; ++input) {
          offsets[input] += index * loops[dim].strides[input];
        }
      }
      const int64_t count = std::min({kFloatBlock, row.extent - column, end - i});
      ApplyPair(loop, dtype, left.Block(inputs[0].bytes.data() + offsets[0] * size, count),
                right.Block(inputs[1].bytes.data() + offsets[1] * size, count), count,
                output.bytes.data() + i * size);
      i += count;
    }
  };
  // Rows of a few elements cost as much as longer ones.
  const int64_t piece = row.extent < 16 ? kMapPiece / 16 : kMapPiece;
  return RunPieces(ElementsOf(output.shape), {.piece = piece, .threads = context.threads},
                   context.abort_check, run);
}

}  // namespace shardmesh::worker
