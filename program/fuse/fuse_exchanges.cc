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
#include "program/value_layout.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// Returns OK if the parts of the exchange are rows of the product that follow one another in each
// tile. `whole` is the operand or the result of the product that the exchange joins or splits.
absl::Status CheckParts(const Plan& plan, const GroupCollective& op, const LocalMatmul& matmul,
                        const ValueDescriptor& whole) {
  const auto refuse = [](std::string_view why) {
    return InvalidArgument(Reason::kShapeMismatch,
                           StrCat("an exchange and a product are no one instruction: ", why));
  };
  if (op.algorithm != CollectiveAlgorithm::kPairwise) return refuse("it is not pairwise");
  if (matmul.transpose_lhs) return refuse("the left operand is transposed");
  const Dtype weights = plan.values[matmul.rhs].dtype;
  if (weights == Dtype::kF16 || weights == Dtype::kI8) {
    return refuse("the number of rows decides the bits of products by F16 and by I8");
  }
  if (plan.values[matmul.rhs].shape.size() != 2) return refuse("the right operand is no matrix");
  const Shape tile = TileShape(plan.mesh, whole);
  const auto dim = static_cast<size_t>(op.dimension);
  if (dim + 1 >= tile.size()) return refuse("its parts are no rows");
  const bool is_contiguous = std::all_of(tile.begin(), tile.begin() + op.dimension,
                                         [](int64_t extent) { return extent <= 1; });
  return is_contiguous ? absl::OkStatus() : refuse("the rows of its parts are apart");
}

absl::Status CheckPair(const Plan& plan, const GroupCollective& gather, const LocalMatmul& matmul,
                       const ValueDescriptor& gathered) {
  if (gather.kind != CollectiveKind::kAllGather) {
    return InvalidArgument(Reason::kShapeMismatch, "the exchange is no all-gather");
  }
  return CheckParts(plan, gather, matmul, gathered);
}

absl::Status CheckPair(const Plan& plan, const LocalMatmul& matmul, const GroupCollective& scatter,
                       const ValueDescriptor& product) {
  if (scatter.kind != CollectiveKind::kReduceScatter || scatter.reduction != Reduction::kSum) {
    return InvalidArgument(Reason::kShapeMismatch, "the exchange is no reduce-scatter of sums");
  }
  if (matmul.bias.has_value() || matmul.activation != Activation::kNone) {
    return InvalidArgument(Reason::kShapeMismatch,
                           "the product has a bias or an activation before its sum");
  }
  return CheckParts(plan, scatter, matmul, product);
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
    reads_.assign(plan_.values.size(), 0);
    reader_.assign(plan_.values.size(), 0);
    for (size_t i = first; i < plan_.instructions.size(); ++i) {
      for (const ValueIndex input : InputsOf(plan_.instructions[i])) {
        ++reads_[input];
        reader_[input] = i;
      }
    }
    for (const ValueIndex output : plan_.outputs) ++reads_[output];
    for (const StateUpdate& update : plan_.updates) ++reads_[update.value];
  }

  // Returns the pair of an instruction and the exchange before or after it, whichever saves more;
  // nullopt if neither saves enough, or if the instruction is no product.
  std::optional<FusedPair> PairOf(size_t index) const {
    const auto* const matmul = std::get_if<LocalMatmul>(&plan_.instructions[index].kind);
    if (matmul == nullptr) return std::nullopt;
    std::optional<FusedPair> best = WithGatherBefore(index, *matmul);
    std::optional<FusedPair> after = WithScatterAfter(index, *matmul);
    const auto saved = [](const std::optional<FusedPair>& pair) {
      return pair.has_value() ? pair->saved_seconds : 0;
    };
    if (saved(after) > saved(best)) best = std::move(after);
    return saved(best) > 0 ? best : std::nullopt;
  }

 private:
  std::optional<FusedPair> WithGatherBefore(size_t index, const LocalMatmul& matmul) const {
    if (matmul.lhs < first_value_ || reads_[matmul.lhs] != 1) return std::nullopt;
    const size_t maker = matmul.lhs - plan_.operand_count;
    const auto* const gather = std::get_if<GroupCollective>(&plan_.instructions[maker].kind);
    const ValueDescriptor& gathered = plan_.values[matmul.lhs];
    if (gather == nullptr || !CheckPair(plan_, *gather, matmul, gathered).ok()) {
      return std::nullopt;
    }
    GatherMatmul fused = {.gather = *gather, .gathered = gathered, .matmul = matmul};
    fused.matmul.lhs = gather->input;
    return Pair(std::move(fused), maker, index,
                StrCat(plan_.instructions[maker].label, ", multiplied as it arrives"));
  }

  std::optional<FusedPair> WithScatterAfter(size_t index, const LocalMatmul& matmul) const {
    const ValueIndex made = plan_.instructions[index].output;
    if (reads_[made] != 1 || IsOutput(made)) return std::nullopt;
    const size_t reader = reader_[made];
    const auto* const scatter = std::get_if<GroupCollective>(&plan_.instructions[reader].kind);
    const ValueDescriptor& product = plan_.values[made];
    if (scatter == nullptr || !CheckPair(plan_, matmul, *scatter, product).ok()) {
      return std::nullopt;
    }
    MatmulScatter fused = {.matmul = matmul, .product = product, .scatter = *scatter};
    fused.scatter.input = matmul.lhs;
    return Pair(std::move(fused), index, reader,
                StrCat(plan_.instructions[reader].label, ", sent as it is multiplied"));
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
  std::vector<int> reads_;      // by value: instructions and outputs that read it
  std::vector<size_t> reader_;  // by value: the last instruction that reads it
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
  // The order of InputsOf.
  matmul.lhs = gather != nullptr ? between : 0;
  matmul.rhs = 1;
  ValueIndex next = 2;
  if (matmul.bias.has_value()) matmul.bias = next++;
  if (matmul.scales.has_value()) matmul.scales = next;
  collective.input = gather != nullptr ? 0 : between;
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

absl::Status CheckFusible(const Plan& pair) {
  const Instruction& first = pair.instructions.front();
  const Instruction& second = pair.instructions.back();
  const ValueDescriptor& between = pair.values[first.output];
  if (const auto* const matmul = std::get_if<LocalMatmul>(&first.kind); matmul != nullptr) {
    return CheckPair(pair, *matmul, std::get<GroupCollective>(second.kind), between);
  }
  return CheckPair(pair, std::get<GroupCollective>(first.kind), std::get<LocalMatmul>(second.kind),
                   between);
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
  if (const auto* const fused = std::get_if<MatmulScatter>(&instruction.kind); fused != nullptr) {
    return TileBytes(plan.mesh, fused->product);
  }
  const auto* const fused = std::get_if<GatherMatmul>(&instruction.kind);
  if (fused == nullptr) return 0;
  const int64_t row_bytes =
      BytesOf(TileShape(plan.mesh, fused->gathered).back(), fused->gathered.dtype);
  if (row_bytes == 0) return 0;
  const int64_t peers = AxesSize(plan.mesh, fused->gather.axes) - 1;
  return std::min(ProductOf(peers, ProductOf(RowsAtOnce(row_bytes), row_bytes)),
                  TileBytes(plan.mesh, fused->gathered));
}

}  // namespace shardmesh
