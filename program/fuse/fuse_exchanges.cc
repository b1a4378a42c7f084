// Finds the pairs of an exchange and a product, and predicts what one instruction saves.
#include "program/fuse/fuse_exchanges.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "program/fuse/replace_instructions.h"
#include "program/kernel_time.h"
#include "program/plan_forecast.h"
#include "program/product_layout.h"
#include "program/value_layout.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

absl::Status Refused(std::string_view why) {
  return InvalidArgument(Reason::kShapeMismatch,
                         StrCat("an exchange and a product are no one instruction: ", why));
}

ValueIndex IndexOf(const LocalMatmul& matmul, ProductSide side, ValueIndex output) {
  return side == ProductSide::kLhs ? matmul.lhs : side == ProductSide::kRhs ? matmul.rhs : output;
}

// A product, and the dimension of the result along which an exchange splits it.
struct SplitDim {
  ProductDims dims;
  size_t dim = 0;  // in `dims`

  bool is_columns() const { return dim + 2 == dims.size(); }
};

// Returns the dimension of the product that is dimension `dimension` of one of its tensors; an
// error if it is not one of the result.
absl::StatusOr<SplitDim> SplitDimOf(const Plan& plan, const LocalMatmul& matmul, ProductSide side,
                                    int64_t dimension) {
  SHARDMESH_ASSIGN_OR_RETURN(ProductDims dims,
                             ProductDimsOf(plan.values[matmul.lhs].shape, matmul.transpose_lhs,
                                           plan.values[matmul.rhs].shape, matmul.transpose_rhs));
  const auto dim =
      dimension < 0 ? std::nullopt : ProductDimOf(dims, side, static_cast<size_t>(dimension));
  if (!dim.has_value()) return Refused("the product has no such dimension");
  if (!dims[*dim].out.has_value()) return Refused("parts of K would change the order of sums");
  return SplitDim{.dims = std::move(dims), .dim = *dim};
}

// Returns whether each matrix of the product lies in one place, so that no sizes change: the
// dimension is one of batches of a right operand that is no matrix, or of a transposed left one.
bool KeepsMatrices(const Plan& plan, const LocalMatmul& matmul, const SplitDim& split) {
  return split.dim + 3 < split.dims.size() &&
         (matmul.transpose_lhs || plan.values[matmul.rhs].shape.size() > 2);
}

// Returns OK if the kernel computes the elements of parts of the product as those of the whole.
absl::Status CheckSizes(const Plan& plan, const LocalMatmul& matmul, const SplitDim& split,
                        ValueIndex output) {
  const Dtype weights = plan.values[matmul.rhs].dtype;
  if (weights == Dtype::kF16 || weights == Dtype::kI8) {
    return Refused("the number of rows decides the bits of products by F16 and by I8");
  }
  // Rows beside a matrix are apart behind other dimensions. Matrices are multiplied one by one
  // where a batch dimension is divided.
  const Shape out = TileShape(plan.mesh, plan.values[output]);
  int64_t groups = 1;
  const size_t groups_end =
      KeepsMatrices(plan, matmul, split) ? out.size() - 2 : *split.dims[split.dim].out;
  for (size_t dim = 0; dim < groups_end; ++dim) groups = ProductOf(groups, out[dim]);
  const int64_t matrices =
      std::max(ProductsOf(plan, matmul, output), split.is_columns() ? 1 : groups);
  if (matrices > kMostFusedMatrices) return Refused("it has too many matrices");
  const Shape rhs = TileShape(plan.mesh, plan.values[matmul.rhs]);
  const int64_t n = rhs[rhs.size() - (matmul.transpose_rhs ? 2 : 1)];
  const int64_t k = rhs[rhs.size() - (matmul.transpose_rhs ? 1 : 2)];
  if (ProductOf(n, k) > kMostPanelElements) return Refused("the right matrix is too large");
  if (!matmul.transpose_lhs || KeepsMatrices(plan, matmul, split)) return absl::OkStatus();
  const int64_t m = TileShape(plan.mesh, plan.values[matmul.lhs]).back();
  int64_t row_elements = k;
  AddTo(row_elements, n);
  const bool is_small = k <= kMostTransposedK &&
                        ProductOf(m, ProductOf(n, k)) <= kMostTransposedProducts &&
                        ProductOf(m, row_elements) <= kMostPanelElements;
  return is_small ? absl::OkStatus()
                  : Refused("the left operand is transposed, and the product is too large");
}

// Returns whether the fused instruction is one of rows that follow one another in each tile.
bool IsOfRows(const Plan& plan, const LocalMatmul& matmul, ProductSide side, int64_t dimension,
              const ValueDescriptor& whole) {
  const Shape tile = TileShape(plan.mesh, whole);
  return side != ProductSide::kRhs && !matmul.transpose_lhs &&
         plan.values[matmul.rhs].shape.size() == 2 &&
         static_cast<size_t>(dimension) + 1 < tile.size() &&
         std::all_of(tile.begin(), tile.begin() + dimension,
                     [](int64_t extent) { return extent <= 1; });
}

// Returns a number of rows that no product of a device has less of, but for products without rows.
int64_t FewestRows(const Plan& plan, const LocalMatmul& matmul, ValueIndex output) {
  const ValueDescriptor& out = plan.values[output];
  const Shape tile = TileShape(plan.mesh, out);
  const size_t columns = tile.size() - 1;
  int64_t rows = 1;
  // The matrices of a transposed left operand are multiplied one by one.
  for (size_t dim = matmul.transpose_lhs ? columns - 1 : 0; dim < columns; ++dim) {
    int64_t fewest = tile[dim];
    if (IsCut(out, dim)) {
      const CutPoints& points = out.cut_points[dim];
      for (size_t i = 1; i < points.size(); ++i) {
        const int64_t extent = points[i] - points[i - 1];
        if (extent > 0) fewest = std::min(fewest, extent);
      }
    }
    rows = ProductOf(rows, fewest);
  }
  return rows;
}

// Returns OK if the exchange joins or splits a dimension of the result, in parts that the kernel
// computes as the whole. `side` is the tensor of the product that it joins or splits, and `output`
// the product's result.
absl::Status CheckParts(const Plan& plan, const GroupCollective& op, const LocalMatmul& matmul,
                        ProductSide side, ValueIndex output) {
  if (op.algorithm != CollectiveAlgorithm::kPairwise) return Refused("it is not pairwise");
  SHARDMESH_ASSIGN_OR_RETURN(const SplitDim split, SplitDimOf(plan, matmul, side, op.dimension));
  if (side == ProductSide::kOut && split.is_columns() &&
      FewestRows(plan, matmul, output) < kFewestRowsOfScatteredColumns) {
    return Refused("its rows are few");
  }
  return CheckSizes(plan, matmul, split, output);
}

// Checks an all-gather that makes one operand of the product.
absl::Status CheckGather(const Plan& plan, const GroupCollective& gather, const LocalMatmul& matmul,
                         ProductSide side, ValueIndex output) {
  if (gather.kind != CollectiveKind::kAllGather) {
    return InvalidArgument(Reason::kShapeMismatch, "the exchange is no all-gather");
  }
  return CheckParts(plan, gather, matmul, side, output);
}

// Checks a reduce-scatter of the product's result, which is `output`.
absl::Status CheckScatter(const Plan& plan, const LocalMatmul& matmul,
                          const GroupCollective& scatter, ValueIndex output) {
  if (scatter.kind != CollectiveKind::kReduceScatter || scatter.reduction != Reduction::kSum) {
    return InvalidArgument(Reason::kShapeMismatch, "the exchange is no reduce-scatter of sums");
  }
  if (matmul.bias.has_value() || matmul.activation != Activation::kNone) {
    return InvalidArgument(Reason::kShapeMismatch,
                           "the product has a bias or an activation before its sum");
  }
  return CheckParts(plan, scatter, matmul, ProductSide::kOut, output);
}

// The two instructions of a fused one as a plan, and the side of the product that is exchanged.
struct PlainPair {
  const GroupCollective& exchange;
  const LocalMatmul& matmul;
  ProductSide side;
  ValueIndex product;  // the result of the product
};

PlainPair PlainPairOf(const Plan& pair) {
  const Instruction& first = pair.instructions.front();
  const Instruction& second = pair.instructions.back();
  if (const auto* const matmul = std::get_if<LocalMatmul>(&first.kind); matmul != nullptr) {
    return {std::get<GroupCollective>(second.kind), *matmul, ProductSide::kOut, first.output};
  }
  const auto& matmul = std::get<LocalMatmul>(second.kind);
  return {std::get<GroupCollective>(first.kind), matmul,
          matmul.rhs == first.output ? ProductSide::kRhs : ProductSide::kLhs, second.output};
}

// One instruction that can take the place of two.
struct FusedPair {
  Instruction fused;
  size_t earlier = 0;  // the indices of the two
  size_t later = 0;
  double saved_seconds = 0;
};

// Finds the pairs among the instructions of a plan from number `first` on. Arguments outlive it.
class PairFinder {
 public:
  PairFinder(const Plan& plan, size_t first, const LinkCost& links, const KernelRates& kernels)
      : plan_(plan), first_value_(plan.operand_count + first), links_(links), kernels_(kernels) {
    // The planner asks for each layout of each product: earlier values must take no time.
    reads_.assign(plan_.values.size() - first_value_, 0);
    reader_.assign(reads_.size(), 0);
    for (size_t i = first; i < plan_.instructions.size(); ++i) {
      for (const ValueIndex input : InputsOf(plan_.instructions[i])) {
        if (input < first_value_) continue;
        ++reads_[input - first_value_];
        reader_[input - first_value_] = i;
      }
    }
    const auto add_read = [this](ValueIndex value) {
      if (value >= first_value_) ++reads_[value - first_value_];
    };
    for (const ValueIndex output : plan_.outputs) add_read(output);
    for (const StateUpdate& update : plan_.updates) add_read(update.value);
  }

  // Returns the pair of an instruction and an exchange before or after it, whichever saves most;
  // nullopt if none saves enough, or if the instruction is no product.
  std::optional<FusedPair> PairOf(size_t index) const {
    const auto* const matmul = std::get_if<LocalMatmul>(&plan_.instructions[index].kind);
    if (matmul == nullptr) return std::nullopt;
    std::optional<FusedPair> best;
    const auto saved = [](const std::optional<FusedPair>& pair) {
      return pair.has_value() ? pair->saved_seconds : 0;
    };
    for (std::optional<FusedPair> pair :
         {WithGatherBefore(index, *matmul, ProductSide::kLhs),
          WithGatherBefore(index, *matmul, ProductSide::kRhs), WithScatterAfter(index, *matmul)}) {
      if (saved(pair) > saved(best)) best = std::move(pair);
    }
    return best;
  }

 private:
  std::optional<FusedPair> WithGatherBefore(size_t index, const LocalMatmul& matmul,
                                            ProductSide side) const {
    const ValueIndex operand = IndexOf(matmul, side, 0);
    if (operand < first_value_ || reads_[operand - first_value_] != 1) return std::nullopt;
    const size_t maker = operand - plan_.operand_count;
    const auto* const gather = std::get_if<GroupCollective>(&plan_.instructions[maker].kind);
    const ValueIndex output = plan_.instructions[index].output;
    if (gather == nullptr || !CheckGather(plan_, *gather, matmul, side, output).ok() ||
        !MayRun(*gather, matmul, side, output)) {
      return std::nullopt;
    }
    GatherMatmul fused = {.gather = *gather,
                          .gathered = plan_.values[operand],
                          .matmul = matmul,
                          .gathers_rhs = side == ProductSide::kRhs};
    (fused.gathers_rhs ? fused.matmul.rhs : fused.matmul.lhs) = gather->input;
    return Pair(std::move(fused), maker, index,
                StrCat(plan_.instructions[maker].label, ", multiplied as it arrives"));
  }

  std::optional<FusedPair> WithScatterAfter(size_t index, const LocalMatmul& matmul) const {
    const ValueIndex made = plan_.instructions[index].output;
    if (reads_[made - first_value_] != 1 || IsOutput(made)) return std::nullopt;
    const size_t reader = reader_[made - first_value_];
    const auto* const scatter = std::get_if<GroupCollective>(&plan_.instructions[reader].kind);
    if (scatter == nullptr || !CheckScatter(plan_, matmul, *scatter, made).ok() ||
        !MayRun(*scatter, matmul, ProductSide::kOut, made)) {
      return std::nullopt;
    }
    MatmulScatter fused = {.matmul = matmul, .product = plan_.values[made], .scatter = *scatter};
    fused.scatter.input = matmul.lhs;
    return Pair(std::move(fused), index, reader,
                StrCat(plan_.instructions[reader].label, ", sent as it is multiplied"));
  }

  // Returns whether the workers run the fused instruction.
  bool MayRun(const GroupCollective& op, const LocalMatmul& matmul, ProductSide side,
              ValueIndex output) const {
    return kernels_.may_overlap_parts ||
           IsOfRows(plan_, matmul, side, op.dimension, plan_.values[IndexOf(matmul, side, output)]);
  }

  // Returns whether the value is a result of the step: an output, or the content of an operand.
  bool IsOutput(ValueIndex value) const {
    return std::find(plan_.outputs.begin(), plan_.outputs.end(), value) != plan_.outputs.end() ||
           std::any_of(plan_.updates.begin(), plan_.updates.end(),
                       [value](const StateUpdate& update) { return update.value == value; });
  }

  template <typename Kind>
  FusedPair Pair(Kind kind, size_t earlier, size_t later, std::string label) const {
    FusedPair pair = {.fused = {.output = plan_.instructions[later].output,
                                .kind = std::move(kind),
                                .label = std::move(label)},
                      .earlier = earlier,
                      .later = later};
    const auto seconds_of = [&](const Instruction& instruction) {
      return KernelSeconds(plan_, instruction, kernels_) +
             ExchangeSeconds(plan_, instruction, links_, kernels_);
    };
    const double plain =
        seconds_of(plan_.instructions[earlier]) + seconds_of(plan_.instructions[later]);
    const double saved = plain - seconds_of(pair.fused);
    const bool is_enough = saved >= kLeastSavedSeconds && saved >= kLeastSavedPart * plain;
    pair.saved_seconds = is_enough ? saved : 0;
    return pair;
  }

  const Plan& plan_;
  const size_t first_value_;  // the value that the first of the instructions makes
  const LinkCost& links_;
  const KernelRates& kernels_;
  // By value, from first_value_ on.
  std::vector<int> reads_;      // instructions and outputs that read it
  std::vector<size_t> reader_;  // the last instruction that reads it
};

}  // namespace

Plan FuseExchanges(Plan plan, const LinkCost& links, const KernelRates& kernels) {
  const PairFinder finder(plan, 0, links, kernels);
  InstructionChanges changes(plan.instructions.size());
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    std::optional<FusedPair> pair = finder.PairOf(i);
    if (!pair.has_value()) continue;
    changes.is_left_out[pair->earlier] = true;
    changes.replaced[pair->later] = std::move(pair->fused);
  }
  return WithChanges(std::move(plan), std::move(changes));
}

double SecondsSavedByFusing(const Plan& plan, size_t first, const LinkCost& links,
                            const KernelRates& kernels) {
  const PairFinder finder(plan, first, links, kernels);
  double saved = 0;
  for (size_t i = first; i < plan.instructions.size(); ++i) {
    if (const auto pair = finder.PairOf(i); pair.has_value()) saved += pair->saved_seconds;
  }
  return saved;
}

std::optional<Plan> PlainFormOf(const Plan& plan, const Instruction& instruction) {
  const auto* const gather = std::get_if<GatherMatmul>(&instruction.kind);
  const auto* const scatter = std::get_if<MatmulScatter>(&instruction.kind);
  if (gather == nullptr && scatter == nullptr) return std::nullopt;
  Plan pair = {.mesh_id = plan.mesh_id,
               .mesh_revision = plan.mesh_revision,
               .mesh = plan.mesh,
               .values = {},
               .operand_count = 0,
               .instructions = {},
               .outputs = {},
               .updates = {},
               .cost = {}};
  for (const ValueIndex input : InputsOf(instruction)) pair.values.push_back(plan.values[input]);
  pair.operand_count = static_cast<uint32_t>(pair.values.size());
  LocalMatmul matmul = gather != nullptr ? gather->matmul : scatter->matmul;
  GroupCollective collective = gather != nullptr ? gather->gather : scatter->scatter;
  const ValueIndex between = pair.operand_count;
  const ValueIndex result = between + 1;
  const bool gathers_rhs = gather != nullptr && gather->gathers_rhs;
  // The order of InputsOf.
  matmul.lhs = gather != nullptr && !gathers_rhs ? between : 0;
  matmul.rhs = gathers_rhs ? between : 1;
  ValueIndex next = 2;
  if (matmul.bias.has_value()) matmul.bias = next++;
  if (matmul.scales.has_value()) matmul.scales = next;
  collective.input = gather == nullptr ? between : gathers_rhs ? 1 : 0;
  pair.values.push_back(gather != nullptr ? gather->gathered : scatter->product);
  pair.values.push_back(plan.values[instruction.output]);
  Instruction product = {.output = 0, .kind = std::move(matmul), .label = instruction.label};
  Instruction exchange = {.output = 0, .kind = std::move(collective), .label = instruction.label};
  if (gather != nullptr) std::swap(product, exchange);  // now `product` is the first of the two
  product.output = between;
  exchange.output = result;
  pair.instructions = {std::move(product), std::move(exchange)};
  pair.outputs = {result};
  return pair;
}

absl::Status CheckFusible(const Plan& plan) {
  const PlainPair pair = PlainPairOf(plan);
  return pair.side == ProductSide::kOut
             ? CheckScatter(plan, pair.matmul, pair.exchange, pair.product)
             : CheckGather(plan, pair.exchange, pair.matmul, pair.side, pair.product);
}

bool OverlapsParts(const Plan& plan) {
  return std::any_of(
      plan.instructions.begin(), plan.instructions.end(), [&plan](const Instruction& instruction) {
        const std::optional<Plan> plain = PlainFormOf(plan, instruction);
        if (!plain.has_value()) return false;
        const PlainPair pair = PlainPairOf(*plain);
        return !IsOfRows(*plain, pair.matmul, pair.side, pair.exchange.dimension,
                         plain->values[IndexOf(pair.matmul, pair.side, pair.product)]);
      });
}

std::optional<Exchange> ExchangeOf(const Plan& plan, const Instruction& instruction) {
  const ValueDescriptor* const output = &plan.values[instruction.output];
  if (const auto* const op = std::get_if<GroupCollective>(&instruction.kind); op != nullptr) {
    return Exchange{.op = op, .operand = &plan.values[op->input], .result = output};
  }
  if (const auto* const fused = std::get_if<GatherMatmul>(&instruction.kind); fused != nullptr) {
    return Exchange{.op = &fused->gather,
                    .operand = &plan.values[fused->gather.input],
                    .result = &fused->gathered};
  }
  if (const auto* const fused = std::get_if<MatmulScatter>(&instruction.kind); fused != nullptr) {
    return Exchange{.op = &fused->scatter, .operand = &fused->product, .result = output};
  }
  return std::nullopt;
}

double ExchangeSeconds(const Plan& plan, const Instruction& instruction, const LinkCost& links,
                       const KernelRates& kernels) {
  const std::optional<Exchange> exchange = ExchangeOf(plan, instruction);
  if (!exchange.has_value()) return 0;
  const GroupCollective& op = *exchange->op;
  const CollectiveLoad load = LoadOf(plan.mesh, *exchange->operand, op.axes);
  const double seconds = PredictedSeconds(CostOf(op.kind, op.algorithm, load), links);
  if (std::holds_alternative<GroupCollective>(instruction.kind)) return seconds;
  // Both run at the same time, but for one part of the shorter one: the first message cannot leave
  // before its rows are multiplied, and the last rows cannot be multiplied before they arrive.
  const double kernel = KernelSeconds(plan, instruction, kernels);
  const double first_part = std::min(seconds, kernel) / static_cast<double>(load.ranks);
  return std::max(seconds, kernel) + first_part - kernel;
}

int64_t RowsAtOnce(int64_t row_bytes) {
  return std::max(kRowsAtOnce, (kBytesAtOnce + row_bytes - 1) / row_bytes);
}

int64_t FusedCopiesBytes(const Plan& plan, const Instruction& instruction) {
  const std::optional<Plan> plain = PlainFormOf(plan, instruction);
  if (!plain.has_value()) return 0;
  const PlainPair pair = PlainPairOf(*plain);
  const auto bytes_of = [&plain](ValueIndex value) {
    return TileBytes(plain->mesh, plain->values[value]);
  };
  const absl::StatusOr<SplitDim> split =
      SplitDimOf(*plain, pair.matmul, pair.side, pair.exchange.dimension);
  const bool is_columns = split.ok() && split->is_columns();
  if (pair.side == ProductSide::kOut) {
    int64_t bytes = bytes_of(pair.product);
    if (is_columns) AddTo(bytes, bytes_of(pair.matmul.rhs));
    if (pair.matmul.transpose_lhs) AddTo(bytes, bytes_of(pair.matmul.lhs));
    return bytes;
  }
  const ValueIndex gathered = IndexOf(pair.matmul, pair.side, pair.product);
  const bool is_one_by_one =
      pair.side == ProductSide::kRhs ? pair.matmul.transpose_rhs : !pair.matmul.transpose_lhs;
  int64_t bytes = bytes_of(gathered);
  if (is_one_by_one) {
    const int64_t row_bytes = BytesOf(TileShape(plain->mesh, plain->values[gathered]).back(),
                                      plain->values[gathered].dtype);
    const int64_t peers = AxesSize(plain->mesh, pair.exchange.axes) - 1;
    const int64_t at_once = row_bytes == 0 ? 0 : ProductOf(RowsAtOnce(row_bytes), row_bytes);
    bytes = std::min(ProductOf(peers, at_once), bytes);
  }
  if (is_columns) AddTo(bytes, bytes_of(pair.product));
  return bytes;
}

}  // namespace shardmesh
