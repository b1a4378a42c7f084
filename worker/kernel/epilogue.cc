// Bias and activation, computed in blocks of a row that fit into the nearest cache.
#include "worker/kernel/epilogue.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string_view>

#include "process/thread_pool.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/float_convert.h"
#include "worker/kernel/activation_loops.h"

namespace shardmesh::worker {
namespace {

constexpr int64_t kBlock = 512;
// Elements of a piece, the work that a thread takes at a time. It takes longer to compute than it
// takes to start a thread.
constexpr int64_t kPiece = 256 * kBlock;
// The number of pieces for each thread between two calls of the abort check. A slow CPU needs 20 ns
// for an element.
constexpr int64_t kPiecesOfTurn = 32;

using FloatBlock = std::array<float, kBlock>;
using HalfBlock = std::array<uint16_t, kBlock>;

void LoadBlock(Dtype dtype, const char* from, size_t count, FloatBlock& block) {
  if (dtype == Dtype::kF32) {
    std::memcpy(block.data(), from, count * sizeof(float));
    return;
  }
  HalfBlock halves;
  std::memcpy(halves.data(), from, count * sizeof(uint16_t));
  const auto in = absl::MakeConstSpan(halves.data(), count);
  const auto out = absl::MakeSpan(block.data(), count);
  dtype == Dtype::kBF16 ? ConvertBF16ToF32(in, out) : ConvertF16ToF32(in, out);
}

void StoreBlock(Dtype dtype, const FloatBlock& block, size_t count, char* to) {
  if (dtype == Dtype::kF32) {
    std::memcpy(to, block.data(), count * sizeof(float));
    return;
  }
  HalfBlock halves;
  const auto in = absl::MakeConstSpan(block.data(), count);
  const auto out = absl::MakeSpan(halves.data(), count);
  dtype == Dtype::kBF16 ? ConvertF32ToBF16(in, out) : ConvertF32ToF16(in, out);
  std::memcpy(to, halves.data(), count * sizeof(uint16_t));
}

// Returns the size of an element in bytes for the types that an epilogue takes; 0 for other types.
int64_t ElementBytes(Dtype dtype) {
  if (dtype == Dtype::kF32) return 4;
  return dtype == Dtype::kBF16 || dtype == Dtype::kF16 ? 2 : 0;
}

absl::Status CheckMemory(std::string_view name, Dtype dtype, int64_t elements, size_t size_bytes) {
  if (ElementBytes(dtype) == 0) {
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat(name, " of an epilogue is ", DtypeName(dtype), "; it can be F32, BF16 or F16"),
        {{fact::kDtype, DtypeName(dtype)}, {fact::kOp, "epilogue"}});
  }
  if (static_cast<int64_t>(size_bytes) != elements * ElementBytes(dtype)) {
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat(name, " of an epilogue has ", size_bytes, " bytes where ", elements, " elements of ",
               DtypeName(dtype), " are ", elements * ElementBytes(dtype)),
        {{fact::kHave, size_bytes},
         {fact::kNeed, elements * ElementBytes(dtype)},
         {fact::kOp, "epilogue"}});
  }
  return absl::OkStatus();
}

// Computes the elements [begin, end) of the result.
void ApplyToRange(const EpilogueSpec& spec, const char* in, const char* bias, int64_t begin,
                  int64_t end, char* out) {
  const ActivationFn activate = ActivationLoop(spec.activation);
  alignas(64) FloatBlock values;
  alignas(64) FloatBlock offsets;
  for (int64_t element = begin; element < end;) {
    // Without a bias the ends of rows do not matter.
    const int64_t column = spec.has_bias ? element % spec.columns : 0;
    const int64_t row_end = spec.has_bias ? element + spec.columns - column : end;
    const auto count = static_cast<size_t>(std::min({kBlock, row_end - element, end - element}));
    LoadBlock(spec.in_dtype, in + element * ElementBytes(spec.in_dtype), count, values);
    if (spec.has_bias) {
      LoadBlock(spec.bias_dtype, bias + column * ElementBytes(spec.bias_dtype), count, offsets);
    }
    activate(spec.has_bias ? offsets.data() : nullptr, values.data(), count);
    StoreBlock(spec.out_dtype, values, count, out + element * ElementBytes(spec.out_dtype));
    element += static_cast<int64_t>(count);
  }
}

}  // namespace

absl::Status ApplyEpilogue(const EpilogueSpec& spec, absl::Span<const char> in,
                           absl::Span<const char> bias, absl::Span<char> out, int threads,
                           const std::function<absl::Status()>& abort_check) {
  if (spec.rows < 0 || spec.columns < 0 ||
      (spec.columns > 0 && spec.rows > std::numeric_limits<int64_t>::max() / 4 / spec.columns)) {
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat("an epilogue of ", spec.rows, " rows and ", spec.columns, " columns"),
        {{fact::kHave, StrCat(spec.rows, ",", spec.columns)}, {fact::kOp, "epilogue"}});
  }
  const int64_t elements = spec.rows * spec.columns;
  SHARDMESH_RETURN_IF_ERROR(CheckMemory("input", spec.in_dtype, elements, in.size()));
  SHARDMESH_RETURN_IF_ERROR(CheckMemory("output", spec.out_dtype, elements, out.size()));
  SHARDMESH_RETURN_IF_ERROR(CheckMemory("bias", spec.has_bias ? spec.bias_dtype : Dtype::kF32,
                                        spec.has_bias ? spec.columns : 0, bias.size()));

  const int64_t pieces = (elements + kPiece - 1) / kPiece;
  const int64_t most_threads = std::max(threads, 1);
  for (int64_t first = 0; first < pieces; first += most_threads * kPiecesOfTurn) {
    if (abort_check && first > 0) SHARDMESH_RETURN_IF_ERROR(abort_check());
    const int64_t count = std::min(most_threads * kPiecesOfTurn, pieces - first);
    RunOnThreads(static_cast<size_t>(count), static_cast<size_t>(most_threads), [&](size_t i) {
      const int64_t begin = (first + static_cast<int64_t>(i)) * kPiece;
      ApplyToRange(spec, in.data(), bias.data(), begin, std::min(begin + kPiece, elements),
                   out.data());
    });
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::worker
