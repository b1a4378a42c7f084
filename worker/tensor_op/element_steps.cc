// Blocks of elements. An input that is broadcast is read as loops of rows, and a block of it is put
// together where its elements do not follow one another.
#include "worker/tensor_op/element_steps.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "worker/kernel/aligned_bytes.h"
#include "worker/kernel/float_block.h"
#include "worker/kernel/pieces.h"
#include "worker/tensor_op/op_kernels.h"

namespace shardmesh::worker {
namespace {

// The elements of a piece of work, if each costs 20 ns on a slow CPU.
constexpr int64_t kElementPiece = 128 * kFloatBlock;
constexpr int64_t kMostPiecesOfTurn = 32;

// A dimension of the result, or several that are merged. A stride of 0 repeats the input.
struct BroadcastLoop {
  int64_t extent = 1;
  int64_t stride = 0;  // in elements of the input
};
using BroadcastLoops = absl::InlinedVector<BroadcastLoop, 6>;

// Returns the loops over an input that is broadcast to `result`, outermost first; at least one.
BroadcastLoops LoopsOver(const Shape& input, const Shape& result) {
  BroadcastLoops loops;  // innermost first
  int64_t step = 1;
  for (size_t i = 0; i < result.size(); ++i) {
    const int64_t extent = i < input.size() ? input[input.size() - 1 - i] : 1;
    const BroadcastLoop loop = {.extent = result[result.size() - 1 - i],
                                .stride = extent == 1 ? 0 : step};
    step *= extent;
    if (loop.extent == 1) continue;
    if (!loops.empty() && loop.stride == loops.back().stride * loops.back().extent) {
      loops.back().extent *= loop.extent;
    } else {
      loops.push_back(loop);
    }
  }
  if (loops.empty()) loops.push_back({});
  std::reverse(loops.begin(), loops.end());
  return loops;
}

template <typename T>
void FillWith(const char* from, int64_t count, char* to) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  std::fill_n(reinterpret_cast<T*>(to), count, value);
}

// Sets `count` elements to one element.
void RepeatElement(const char* from, int64_t element_bytes, int64_t count, char* to) {
  switch (element_bytes) {
    case 1:
      return FillWith<uint8_t>(from, count, to);
    case 2:
      return FillWith<uint16_t>(from, count, to);
    case 4:
      return FillWith<uint32_t>(from, count, to);
    default:
      return FillWith<uint64_t>(from, count, to);
  }
}

// Reads blocks of an input. Immutable, hence safe to share between threads.
class InputBlocks {
 public:
  // Requires an input and a result with elements.
  InputBlocks(const OpInput& input, const Shape& result)
      : data_(input.bytes.data()), element_bytes_(ElementBytes(input.dtype)) {
    const int64_t elements = ElementsOf(input.shape);
    if (elements == ElementsOf(result)) {
      kind_ = Kind::kWhole;
    } else if (elements == 1) {
      kind_ = Kind::kOne;
    } else {
      kind_ = Kind::kRows;
      loops_ = LoopsOver(input.shape, result);
    }
  }

  // The additional time for an element, in units of ElementFunction::cost(). Rows of a few elements
  // cost as much as longer ones.
  int64_t cost() const {
    return kind_ == Kind::kRows && loops_.back().extent < 16 ? kCostOfShortRows : 0;
  }
  // The memory that a thread needs to read blocks.
  int64_t scratch_bytes() const { return kind_ == Kind::kWhole ? 0 : kFloatBlock * element_bytes_; }

  // Prepares the memory of a thread. `scratch` has scratch_bytes().
  void Prepare(char* scratch) const {
    if (kind_ == Kind::kOne) RepeatElement(data_, element_bytes_, kFloatBlock, scratch);
  }

  // Returns the elements for elements [begin, begin + count) of the result; in place, or in
  // `scratch`, which Prepare has prepared. Requires 1 <= count <= kFloatBlock.
  const char* Read(int64_t begin, int64_t count, char* scratch) const {
    if (kind_ == Kind::kWhole) return data_ + begin * element_bytes_;
    if (kind_ == Kind::kOne) return scratch;
    const Run first = RunAt(begin);
    if (!first.is_repeated && first.count >= count) return first.from;
    for (int64_t done = 0; done < count;) {
      const Run run = done == 0 ? first : RunAt(begin + done);
      const int64_t length = std::min(run.count, count - done);
      char* const to = scratch + done * element_bytes_;
      if (run.is_repeated) {
        RepeatElement(run.from, element_bytes_, length, to);
      } else {
        std::memcpy(to, run.from, static_cast<size_t>(length * element_bytes_));
      }
      done += length;
    }
    return scratch;
  }

 private:
  enum class Kind { kWhole, kOne, kRows };
  static constexpr int64_t kCostOfShortRows = 15;

  // Elements of the result that have one element of the input, or elements that follow one another.
  struct Run {
    const char* from = nullptr;
    int64_t count = 0;
    bool is_repeated = false;
  };

  // Returns the run from element `begin` of the result to the end of its row.
  Run RunAt(int64_t begin) const {
    const BroadcastLoop& row = loops_.back();
    const int64_t column = begin % row.extent;
    int64_t rest = begin / row.extent;
    int64_t offset = column * row.stride;
    for (size_t dim = loops_.size() - 1; dim-- > 0;) {
      offset += rest % loops_[dim].extent * loops_[dim].stride;
      rest /= loops_[dim].extent;
    }
    return {.from = data_ + offset * element_bytes_,
            .count = row.extent - column,
            .is_repeated = row.stride == 0};
  }

  Kind kind_ = Kind::kWhole;
  const char* data_;
  int64_t element_bytes_;
  BroadcastLoops loops_;
};

// The memory of a thread: a block for each input that is put together, and blocks for the results
// of steps. A result has its block until the last step that reads it.
struct ScratchLayout {
  std::vector<int64_t> inputs;   // offset in bytes, by input
  std::vector<int64_t> results;  // offset in bytes, by step; not set for the last step
  int64_t size_bytes = 0;
};

ScratchLayout LayOutScratch(absl::Span<const ElementStep> steps,
                            absl::Span<const InputBlocks> inputs) {
  // Blocks at the same offset of two pages would delay each other's reads and writes.
  constexpr int64_t kGapBytes = 64;
  ScratchLayout layout;
  const auto add = [&layout](int64_t size_bytes) {
    const int64_t offset = layout.size_bytes;
    if (size_bytes > 0) layout.size_bytes += (size_bytes + 63) / 64 * 64 + kGapBytes;
    return offset;
  };
  for (const InputBlocks& input : inputs) layout.inputs.push_back(add(input.scratch_bytes()));
  std::vector<size_t> last_reader(inputs.size() + steps.size(), 0);
  int64_t widest = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    last_reader[steps[i].left] = i;
    last_reader[steps[i].right] = i;
    widest = std::max(widest, ElementBytes(steps[i].function.result()));
  }
  layout.results.assign(steps.size(), 0);
  std::vector<int64_t> unused;
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    const auto release = [&](size_t number) {
      if (number >= inputs.size() && last_reader[number] == i) {
        unused.push_back(layout.results[number - inputs.size()]);
      }
    };
    release(steps[i].left);
    if (steps[i].right != steps[i].left) release(steps[i].right);
    if (unused.empty()) unused.push_back(add(kFloatBlock * widest));
    layout.results[i] = unused.back();
    unused.pop_back();
  }
  return layout;
}

// Returns pieces of about the work of kElementPiece elements that cost 1 each.
PieceOptions PiecesOf(int64_t cost, int threads) {
  const int64_t elements = std::max(kElementPiece / cost, kFloatBlock);
  const int64_t piece = elements / kFloatBlock * kFloatBlock;
  return {.piece = piece,
          .threads = threads,
          .pieces_of_turn = std::clamp(kMostPiecesOfTurn * kElementPiece / (piece * cost),
                                       int64_t{1}, kMostPiecesOfTurn)};
}

}  // namespace

absl::Status RunElementSteps(absl::Span<const ElementStep> steps, absl::Span<const OpInput> inputs,
                             const OpOutput& output, const OpContext& context) {
  const int64_t elements = ElementsOf(output.shape);
  if (elements == 0) return absl::OkStatus();
  int64_t cost = 0;
  for (const ElementStep& step : steps) cost += step.function.cost();
  absl::InlinedVector<InputBlocks, 4> readers;
  for (const OpInput& input : inputs) {
    readers.emplace_back(input, output.shape);
    cost += readers.back().cost();
  }
  const ScratchLayout layout = LayOutScratch(steps, readers);
  const int64_t out_bytes = ElementBytes(output.dtype);
  const auto run = [&](int64_t begin, int64_t end) {
    const AlignedBytes scratch = AllocateAligned(static_cast<size_t>(layout.size_bytes));
    for (size_t i = 0; i < readers.size(); ++i) {
      readers[i].Prepare(scratch.get() + layout.inputs[i]);
    }
    absl::InlinedVector<const char*, 8> blocks(readers.size() + steps.size(), nullptr);
    for (int64_t at = begin; at < end; at += kFloatBlock) {
      const int64_t count = std::min(kFloatBlock, end - at);
      for (size_t i = 0; i < readers.size(); ++i) {
        blocks[i] = readers[i].Read(at, count, scratch.get() + layout.inputs[i]);
      }
      for (size_t i = 0; i < steps.size(); ++i) {
        const bool is_last = i + 1 == steps.size();
        char* const to =
            is_last ? output.bytes.data() + at * out_bytes : scratch.get() + layout.results[i];
        steps[i].function.Apply(blocks[steps[i].left], blocks[steps[i].right], count, to);
        blocks[readers.size() + i] = to;
      }
    }
  };
  return RunPieces(elements, PiecesOf(cost, context.threads), context.abort_check, run);
}

absl::Status RunKernel(const MapOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  const ElementStep step = {
      .function = ElementFunction(op, inputs[0].dtype), .left = 0, .right = inputs.size() - 1};
  return RunElementSteps({&step, 1}, inputs, output, context);
}

absl::Status RunKernel(const ConvertOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  if (inputs[0].dtype == op.dtype) {
    return CopyInPieces(inputs[0].bytes, output.bytes.data(), context);
  }
  const ElementStep step = {.function = ElementFunction(op, inputs[0].dtype)};
  return RunElementSteps({&step, 1}, inputs, output, context);
}

}  // namespace shardmesh::worker
