// CombinerFor: selects the functions for widening, combining and finishing by element type.
#include "worker/step/combiners.h"

#include <vector>

#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/kernel/reduce.h"

namespace shardmesh::worker {

absl::StatusOr<Combiner> CombinerFor(Reduction reduction, Dtype operand, Dtype result,
                                     int64_t ranks) {
  SHARDMESH_ASSIGN_OR_RETURN(const Dtype partial, PartialDtype(operand));
  SHARDMESH_ASSIGN_OR_RETURN(const Dtype result_partial, PartialDtype(result));
  if (operand != result && (operand != Dtype::kF32 || result_partial != Dtype::kF32)) {
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat("a reduction of ", DtypeName(operand), " does not give ", DtypeName(result),
               "; reduce to the same type, or from F32 to "
               "F16 or BF16"),
        {{fact::kDtype, DtypeName(operand)}});
  }

  Combiner combiner;
  combiner.operand_bytes = BitsPerElement(operand) / 8;
  combiner.partial_bytes = BitsPerElement(partial) / 8;
  combiner.result_bytes = BitsPerElement(result) / 8;
  SHARDMESH_ASSIGN_OR_RETURN(combiner.combine, CombineFunction(reduction, partial));
  if (operand != partial) {
    SHARDMESH_ASSIGN_OR_RETURN(combiner.widen, ConvertFunction(operand, partial));
  }
  if (result != partial) {
    SHARDMESH_ASSIGN_OR_RETURN(combiner.finish, ConvertFunction(partial, result));
  }
  if (reduction == Reduction::kMean) {
    SHARDMESH_ASSIGN_OR_RETURN(const ScaleFn scale, ScaleFunction(partial));
    const double factor = 1.0 / static_cast<double>(ranks);
    if (result == partial) {
      combiner.finish = [scale, factor](const char* partials, int64_t count, char* results) {
        scale(partials, factor, count, results);
      };
    } else {
      combiner.finish = [scale, factor, round = combiner.finish, size = combiner.partial_bytes](
                            const char* partials, int64_t count, char* results) {
        std::vector<char> means(static_cast<size_t>(count * size));
        scale(partials, factor, count, means.data());
        round(means.data(), count, results);
      };
    }
  }
  return combiner;
}

}  // namespace shardmesh::worker
