// Derives the tiles, groups, signatures and parts of one rank from the plan of all ranks.
#include "worker/step/rank_plan.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "program/collective_check.h"
#include "program/collective_choice.h"
#include "program/kernel_time.h"
#include "program/move_plan.h"
#include "program/value_layout.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/collective/collectives.h"
#include "worker/collective/region_move.h"
#include "worker/step/combiners.h"

namespace shardmesh::worker {
namespace {

// Returns the product that the instruction computes; null if it computes none, or if the right
// operand is gathered.
const LocalMatmul* ProductByOwnRhs(const Instruction& instruction) {
  if (const auto* const gather = std::get_if<GatherMatmul>(&instruction.kind)) {
    return gather->gathers_rhs ? nullptr : &gather->matmul;
  }
  if (const auto* const scatter = std::get_if<MatmulScatter>(&instruction.kind)) {
    return &scatter->matmul;
  }
  return std::get_if<LocalMatmul>(&instruction.kind);
}

// Returns a description of a value; the description is the same on every rank of a group. If all
// tiles have one shape, it has that shape, like `F32[2,3]`. If not, it lists the extents of all
// parts, like `F32[3+4,3]`.
std::string DescribeTiles(Dtype dtype, const Tiling& tiling) {
  if (tiling.has_equal_tiles()) {
    return StrCat(DtypeName(dtype), "[", StrJoin(tiling.ShardShape(), ","), "]");
  }
  std::vector<std::string> extents;
  for (int64_t dim = 0; dim < tiling.rank(); ++dim) {
    std::vector<int64_t> parts;
    for (int64_t part = 0; part < tiling.PartCount(dim); ++part) {
      const IndexRange range = tiling.PartRange(dim, part);
      parts.push_back(range.stop - range.start);
    }
    extents.push_back(StrJoin(parts, "+"));
  }
  return StrCat(DtypeName(dtype), "[", StrJoin(extents, ","), "]");
}

// Returns the parts of a tile that belong to the devices of a group, by their places. `parts`
// divides the tile along a dimension among the group's places, in their order.
absl::StatusOr<std::vector<PlacePart>> PartsOf(const RankValue& value, int64_t dimension,
                                               const DeviceGroup& group, const Tiling& parts) {
  const auto dim = static_cast<size_t>(dimension);
  std::vector<PlacePart> result;
  const int64_t begin = parts.TileOf(group.device_at(0)).ranges[dim].start;
  for (int64_t place = 0; place < group.size(); ++place) {
    const IndexRange range = parts.TileOf(group.device_at(place)).ranges[dim];
    PlacePart part{.tile = Tile::Whole(value.shape)};
    part.tile.ranges[dim] = {range.start - begin, range.stop - begin};
    SHARDMESH_ASSIGN_OR_RETURN(part.size_bytes,
                               PackedSizeBytes(value.dtype, part.tile.element_count()));
    result.push_back(std::move(part));
  }
  return result;
}

// Returns the extent of each part along a dimension.
std::vector<int64_t> ExtentsOf(const std::vector<PlacePart>& parts, int64_t dimension) {
  std::vector<int64_t> extents;
  for (const PlacePart& part : parts) {
    const IndexRange& range = part.tile.ranges[static_cast<size_t>(dimension)];
    extents.push_back(range.stop - range.start);
  }
  return extents;
}

// Derives the values and the instructions of a RankPlan.
class RankPlanner {
 public:
  RankPlanner(const Plan& plan, const MemoryPlan& memory, DeviceId rank,
              std::vector<RankValue>* values, std::vector<RankInstruction>* instructions)
      : plan_(plan), memory_(memory), rank_(rank), values_(*values), instructions_(*instructions) {}

  absl::Status Run() {
    SHARDMESH_RETURN_IF_ERROR(AddValues());
    AddEnds();
    AddUpdates();
    for (size_t i = 0; i < plan_.instructions.size(); ++i) {
      if (const absl::Status added = AddInstruction(i); !added.ok()) {
        return WithContext(added, plan_.instructions[i].label);
      }
    }
    AddPackings();
    return absl::OkStatus();
  }

 private:
  absl::Status AddValues() {
    values_.reserve(plan_.values.size());
    for (const ValueDescriptor& described : plan_.values) {
      SHARDMESH_ASSIGN_OR_RETURN(Tiling tiling, TilingOf(plan_, described));
      SHARDMESH_ASSIGN_OR_RETURN(RankValue value, ValueOf(described.dtype, tiling));
      values_.push_back(std::move(value));
      tilings_.push_back(std::move(tiling));
    }
    for (size_t i = 0; i < plan_.outputs.size(); ++i) {
      std::optional<size_t>& output = values_[plan_.outputs[i]].output;
      if (!output.has_value()) output = i;
    }
    for (ValueIndex i = 0; i < values_.size(); ++i) {
      const std::optional<BlockPlace>& place = memory_.places[i];
      const bool fits =
          place.has_value() &&
          (!place->over.has_value() || values_[*place->over].size_bytes == values_[i].size_bytes);
      if (fits) values_[i].place = place;
    }
    const std::vector<std::optional<ValueIndex>> results = ResultsOverOperands(plan_);
    for (ValueIndex operand = 0; operand < results.size(); ++operand) {
      const std::optional<ValueIndex> result = results[operand];
      if (result.has_value() && values_[*result].size_bytes == values_[operand].size_bytes) {
        values_[operand].result_over = result;
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<RankValue> ValueOf(Dtype dtype, const Tiling& tiling) const {
    RankValue value{.dtype = dtype, .tile = tiling.TileOf(rank_)};
    value.shape = value.tile.shape();
    SHARDMESH_ASSIGN_OR_RETURN(value.size_bytes,
                               PackedSizeBytes(value.dtype, value.tile.element_count()));
    return value;
  }

  void AddEnds() {
    instructions_.resize(plan_.instructions.size());
    std::vector<size_t> last_use(values_.size(), instructions_.size());
    for (size_t i = 0; i < instructions_.size(); ++i) {
      last_use[plan_.instructions[i].output] = i;
      for (const ValueIndex input : InputsOf(plan_.instructions[i])) last_use[input] = i;
    }
    for (ValueIndex value = 0; value < values_.size(); ++value) {
      if (last_use[value] < instructions_.size()) {
        instructions_[last_use[value]].ends.push_back(value);
      }
    }
  }

  void AddUpdates() {
    if (plan_.updates.empty()) return;
    for (size_t i = 0; i < plan_.updates.size(); ++i) {
      values_[plan_.updates[i].operand].update = i;
      values_[plan_.updates[i].value].is_update = true;
    }
    const std::vector<std::optional<ValueIndex>> places = StatePlaces(plan_);
    for (const Instruction& instruction : plan_.instructions) {
      if (!places[instruction.output].has_value()) continue;
      values_[instruction.output].over_state =
          std::get<UpdateRowsOp>(std::get<LocalCompute>(instruction.kind).op).input;
    }
    // The memory of updates is kept until the commit, so nothing is made over it.
    const auto is_kept = [](const RankValue& value) {
      return value.is_update || value.over_state.has_value();
    };
    for (RankValue& value : values_) {
      if (!value.place.has_value()) continue;
      const std::optional<ValueIndex> over = value.place->over;
      if (is_kept(value) || (over.has_value() && is_kept(values_[*over]))) value.place.reset();
    }
  }

  // Sets RankValue::packing.
  void AddPackings() {
    std::vector<bool> is_used_plain(values_.size(), false);
    for (const ValueIndex output : plan_.outputs) is_used_plain[output] = true;
    for (const StateUpdate& update : plan_.updates) is_used_plain[update.operand] = true;
    for (size_t i = 0; i < instructions_.size(); ++i) {
      const LocalMatmul* const matmul = ProductByOwnRhs(plan_.instructions[i]);
      for (const ValueIndex input : InputsOf(plan_.instructions[i])) {
        std::optional<Packing>& known = values_[input].packing;
        const Packing packing = PackingOf(instructions_[i].matmul);
        const bool is_packed = matmul != nullptr && instructions_[i].loops.is_one_rhs &&
                               matmul->rhs == input && matmul->lhs != input &&
                               matmul->bias != input && matmul->scales != input &&
                               known.value_or(packing) == packing;
        if (is_packed) {
          known = packing;
        } else {
          is_used_plain[input] = true;
        }
      }
    }
    for (ValueIndex i = 0; i < values_.size(); ++i) {
      if (is_used_plain[i] || i >= plan_.operand_count) values_[i].packing = std::nullopt;
    }
  }

  absl::Status AddInstruction(size_t index) {
    const Instruction& instruction = plan_.instructions[index];
    return std::visit(
        [&](const auto& kind) { return Prepare(kind, instruction.output, &instructions_[index]); },
        instruction.kind);
  }

  // Each Prepare sets the constants of one kind of instruction.
  absl::Status Prepare(const LocalMatmul& matmul, ValueIndex output, RankInstruction* to) const {
    return SetProduct(matmul, values_[matmul.lhs], values_[matmul.rhs], values_[output], to);
  }

  static TileProduct TilesOf(const LocalMatmul& matmul, const RankValue& lhs, const RankValue& rhs,
                             const RankValue& out) {
    return {.lhs = lhs.shape,
            .rhs = rhs.shape,
            .out = out.shape,
            .transpose_lhs = matmul.transpose_lhs,
            .transpose_rhs = matmul.transpose_rhs};
  }

  // Sets the constants of a product with these operands and this result.
  absl::Status SetProduct(const LocalMatmul& matmul, const RankValue& lhs, const RankValue& rhs,
                          const RankValue& out, RankInstruction* to) const {
    to->loops = LoopsOf(TilesOf(matmul, lhs, rhs, out));
    const ProductLoops& loops = to->loops;
    if (loops.products > 0) {
      SHARDMESH_ASSIGN_OR_RETURN(to->lhs_matrix_bytes,
                                 PackedSizeBytes(lhs.dtype, loops.m * loops.k));
      SHARDMESH_ASSIGN_OR_RETURN(to->rhs_matrix_bytes,
                                 PackedSizeBytes(rhs.dtype, loops.k * loops.n));
      SHARDMESH_ASSIGN_OR_RETURN(to->out_matrix_bytes,
                                 PackedSizeBytes(out.dtype, loops.m * loops.n));
    }
    to->matmul = {.m = loops.m,
                  .n = loops.n,
                  .k = loops.k,
                  .lhs_dtype = lhs.dtype,
                  .rhs_dtype = rhs.dtype,
                  .out_dtype = out.dtype,
                  .transpose_lhs = matmul.transpose_lhs,
                  .transpose_rhs = matmul.transpose_rhs,
                  .has_bias = matmul.bias.has_value(),
                  .has_scales = matmul.scales.has_value(),
                  .scale = matmul.scale,
                  .activation = matmul.activation};
    if (matmul.bias.has_value()) to->matmul.bias_dtype = values_[*matmul.bias].dtype;
    return absl::OkStatus();
  }

  absl::Status Prepare(const LocalEpilogue& epilogue, ValueIndex output,
                       RankInstruction* to) const {
    const RankValue& out = values_[output];
    const int64_t columns = out.shape.empty() ? 1 : out.shape.back();
    to->epilogue = {.rows = columns == 0 ? 0 : out.tile.element_count() / columns,
                    .columns = columns,
                    .in_dtype = values_[epilogue.input].dtype,
                    .out_dtype = out.dtype,
                    .has_bias = epilogue.bias.has_value(),
                    .activation = epilogue.activation};
    if (epilogue.bias.has_value()) to->epilogue.bias_dtype = values_[*epilogue.bias].dtype;
    return absl::OkStatus();
  }

  absl::Status Prepare(const LocalSlice& /*slice*/, ValueIndex /*output*/,
                       RankInstruction* /*to*/) const {
    return absl::OkStatus();
  }

  absl::Status Prepare(const GroupCollective& collective, ValueIndex output,
                       RankInstruction* to) const {
    return SetExchange(collective, {values_[collective.input], tilings_[collective.input]},
                       {values_[output], tilings_[output]}, to);
  }

  absl::Status Prepare(const GatherMatmul& fused, ValueIndex output, RankInstruction* to) const {
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, TilingOf(plan_, fused.gathered));
    SHARDMESH_ASSIGN_OR_RETURN(const RankValue gathered, ValueOf(fused.gathered.dtype, tiling));
    const ValueIndex input = fused.gather.input;
    SHARDMESH_RETURN_IF_ERROR(
        SetExchange(fused.gather, {values_[input], tilings_[input]}, {gathered, tiling}, to));
    const LocalMatmul& matmul = fused.matmul;
    const RankValue& lhs = fused.gathers_rhs ? values_[matmul.lhs] : gathered;
    const RankValue& rhs = fused.gathers_rhs ? gathered : values_[matmul.rhs];
    const int64_t dimension = fused.gather.dimension;
    to->split = SplitOf(TilesOf(matmul, lhs, rhs, values_[output]),
                        fused.gathers_rhs ? ProductSide::kRhs : ProductSide::kLhs, dimension,
                        ExtentsOf(to->receives, dimension));
    return SetProduct(matmul, lhs, rhs, values_[output], to);
  }

  absl::Status Prepare(const MatmulScatter& fused, ValueIndex output, RankInstruction* to) const {
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, TilingOf(plan_, fused.product));
    SHARDMESH_ASSIGN_OR_RETURN(const RankValue product, ValueOf(fused.product.dtype, tiling));
    SHARDMESH_RETURN_IF_ERROR(
        SetExchange(fused.scatter, {product, tiling}, {values_[output], tilings_[output]}, to));
    const RankValue& lhs = values_[fused.matmul.lhs];
    const RankValue& rhs = values_[fused.matmul.rhs];
    const int64_t dimension = fused.scatter.dimension;
    to->split = SplitOf(TilesOf(fused.matmul, lhs, rhs, product), ProductSide::kOut, dimension,
                        ExtentsOf(to->sends, dimension));
    return SetProduct(fused.matmul, lhs, rhs, product, to);
  }

  // A value on this rank, and on all ranks.
  struct TiledValue {
    const RankValue& value;
    const Tiling& tiling;
  };

  // Sets the constants of a collective with this operand and this result.
  absl::Status SetExchange(const GroupCollective& collective, const TiledValue& operand,
                           const TiledValue& result, RankInstruction* to) const {
    const RankValue& in = operand.value;
    const RankValue& out = result.value;
    SHARDMESH_ASSIGN_OR_RETURN(to->group, DeviceGroup::Create(plan_.mesh, collective.axes, rank_));
    const DeviceGroup& group = *to->group;
    for (const int64_t place : PlacesHeard(collective, group)) {
      to->sources.push_back(group.device_at(place));
    }
    to->signature = SignatureOf(collective, group.size(), DescribeTiles(in.dtype, operand.tiling),
                                DescribeTiles(out.dtype, result.tiling));
    if (IsReduction(collective.kind)) {
      SHARDMESH_ASSIGN_OR_RETURN(
          to->combiner, CombinerFor(collective.reduction, in.dtype, out.dtype, group.size()));
    }
    // Only the root of a scatter splits its tile.
    if (SplitsTiles(collective.kind) &&
        (collective.kind != CollectiveKind::kScatter || group.place() == collective.root)) {
      SHARDMESH_ASSIGN_OR_RETURN(to->sends,
                                 PartsOf(in, SplitDimension(collective), group, result.tiling));
    }
    if (JoinsTiles(collective.kind)) {
      SHARDMESH_ASSIGN_OR_RETURN(to->receives,
                                 PartsOf(out, collective.dimension, group, operand.tiling));
      for (const PlacePart& part : to->receives) to->receive_bytes.push_back(part.size_bytes);
    }
    if (collective.kind == CollectiveKind::kPermute) {
      to->targets.resize(static_cast<size_t>(group.size()));
      for (const PermutePair& pair : collective.permutation) {
        to->targets[static_cast<size_t>(pair.source)] = pair.target;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Prepare(const LocalCompute& compute, ValueIndex output, RankInstruction* to) const {
    to->inputs = InputsOf(compute.op);
    to->flops = std::max(FlopsOf(plan_, compute, output), values_[output].tile.element_count());
    return absl::OkStatus();
  }

  absl::Status Prepare(const FusedCompute& fused, ValueIndex output, RankInstruction* to) const {
    to->inputs = fused.inputs;
    to->flops = values_[output].tile.element_count() * static_cast<int64_t>(fused.ops.size());
    return absl::OkStatus();
  }

  absl::Status Prepare(const MoveRegions& move, ValueIndex output, RankInstruction* to) const {
    Axes axes;
    for (const MeshAxis& axis : plan_.mesh.axes()) axes.push_back(axis.name);
    SHARDMESH_ASSIGN_OR_RETURN(to->group, DeviceGroup::Create(plan_.mesh, axes, rank_));
    SHARDMESH_ASSIGN_OR_RETURN(
        to->move, MovePlan(plan_.mesh, plan_.values[move.input], plan_.values[output]));
    SHARDMESH_ASSIGN_OR_RETURN(to->sources, MoveSources(*to->move, rank_));
    const ValueDescriptor& in = plan_.values[move.input];
    to->signature =
        MoveSignature(*to->move, StrCat(DtypeName(in.dtype), "[", StrJoin(in.shape, ","), "]"));
    return absl::OkStatus();
  }

  const Plan& plan_;
  const MemoryPlan& memory_;
  const DeviceId rank_;
  std::vector<RankValue>& values_;
  std::vector<RankInstruction>& instructions_;
  std::vector<Tiling> tilings_;  // by value
};

}  // namespace

absl::StatusOr<RankPlan> RankPlan::Create(const Plan& plan, DeviceId rank) {
  RankPlan result(plan, rank);
  result.memory_ = MemoryPlanOf(plan);
  RankPlanner planner(plan, result.memory_, rank, &result.values_, &result.instructions_);
  SHARDMESH_RETURN_IF_ERROR(planner.Run());
  return result;
}

}  // namespace shardmesh::worker
