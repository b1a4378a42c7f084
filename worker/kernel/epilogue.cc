// Bias and activation, computed in blocks of a row that fit into the nearest cache.
#include "worker/kernel/epilogue.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string_view>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/kernel/activation_loops.h"
#include "worker/kernel/float_block.h"
#include "worker/kernel/pieces.h"

namespace shardmesh::worker {
namespace {

// Elements of a piece, the work that a thread takes at a time. It takes longer to compute than it
// takes to start a thread. A slow CPU needs 20 ns for an element.
constexpr int64_t kPiece = 256 * kFloatBlock;

absl::Status CheckMemory(std::string_view name, Dtype dtype, int64_t elements, size_t size_bytes) {
  if (FloatBytes(dtype) == 0) {
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat(name, " of an epilogue is ", DtypeName(dtype), "; it can be F32, BF16 or F16"),
        {{fact::kDtype, DtypeName(dtype)}, {fact::kOp, "epilogue"}});
  }
  if (static_cast<int64_t>(size_bytes) != elements * FloatBytes(dtype)) {
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat(name, " of an epilogue has ", size_bytes, " bytes where ", elements, " elements of ",
               DtypeName(dtype), " are ", elements * FloatBytes(dtype)),
        {{fact::kHave, size_bytes},
         {fact::kNeed, elements * FloatBytes(dtype)},
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
    const auto count =
        static_cast<size_t>(std::min({kFloatBlock, row_end - element, end - element}));
    LoadFloats(spec.in_dtype, in + element * FloatBytes(spec.in_dtype), count, values.data());
    if (spec.has_bias) {
      LoadFloats(spec.bias_dtype, bias + column * FloatBytes(spec.bias_dtype), count,
                 offsets.data());
    }
    activate(spec.has_bias ? offsets.data() : nullptr, values.data(), count);
    StoreFloats(spec.out_dtype, values.data(), count, out + element * FloatBytes(spec.out_dtype));
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

  return RunPieces(elements, {.piece = kPiece, .threads = threads}, abort_check,
                   [&](int64_t begin, int64_t end) {
                     ApplyToRange(spec, in.data(), bias.data(), begin, end, out.data());
                   });
}

}  // namespace shardmesh::worker
