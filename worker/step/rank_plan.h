// One rank's part in a plan: everything that all runs of the plan on this rank have in common.
#ifndef SHARDMESH_WORKER_STEP_RANK_PLAN_H_
#define SHARDMESH_WORKER_STEP_RANK_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "program/memory_plan.h"
#include "program/step_plan.h"
#include "sharding/device_group.h"
#include "sharding/mesh.h"
#include "sharding/reshard/plan.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"
#include "worker/collective/combiner.h"
#include "worker/kernel/epilogue.h"
#include "worker/kernel/matmul.h"
#include "worker/step/tile_products.h"

namespace shardmesh::worker {

// The rank's tile of a value of the plan.
struct RankValue {
  Dtype dtype = Dtype::kF32;
  Tile tile = {};          // indices in the whole tensor
  Shape shape = {};        // of the tile
  int64_t size_bytes = 0;  // of the tile
  // Index of the value in the plan's outputs, if it is one of them. The memory of an output belongs
  // to a staged tile.
  std::optional<size_t> output = std::nullopt;
  // Only for a temporary: its place in the step's block (MemoryPlan). Unset if the temporary has
  // memory of its own: because its tile is not as large as the one that it would be made over, or
  // because it or that one is of an update.
  std::optional<BlockPlace> place = std::nullopt;
  // Only for an operand: the result that the rank can make in the operand's memory if the operand
  // is donated (ResultOverOperand, and both tiles have the same size).
  std::optional<ValueIndex> result_over = std::nullopt;
  // Only for an operand that is state: the index of its update in Plan.updates.
  std::optional<size_t> update = std::nullopt;
  // Whether the value becomes the content of state when the step commits. Its memory then belongs
  // to the update, unless it is an output too and is not made in the memory of state.
  bool is_update = false;
  // Only for the result of an UpdateRowsOp that can be made in the memory of state (StatePlaces):
  // the op's input, which is the operand, or another such result.
  std::optional<ValueIndex> over_state = std::nullopt;
  // Only for an operand that the plan uses only as the right matrix of products, all of which take
  // weights with this packing.
  std::optional<Packing> packing = std::nullopt;
};

// The part of one place of a group in a tile, and its size.
struct PlacePart {
  Tile tile = {};  // relative to the rank's tile
  int64_t size_bytes = 0;
};

// The constants of an instruction on this rank. Fields that the kind of the instruction does not
// need are empty.
struct RankInstruction {
  // The values whose last use is this instruction. Their memory can be freed after it.
  std::vector<ValueIndex> ends = {};

  // Collectives and moves have the ranks that take part, those from which this rank receives, and
  // the description of the op for Link::Begin.
  std::optional<DeviceGroup> group = std::nullopt;
  std::vector<DeviceId> sources = {};
  std::string signature = {};
  std::optional<ReshardPlan> move = std::nullopt;  // only for moves
  Combiner combiner = {};                          // only for reductions
  // The parts of the input's tile that go to each place of the group, and the parts of the output's
  // tile that come from each place.
  std::vector<PlacePart> sends = {};
  std::vector<PlacePart> receives = {};
  std::vector<int64_t> receive_bytes = {};  // PlacePart::size_bytes of `receives`
  // Only for permutes: the place to which each place sends, if any.
  std::vector<std::optional<int64_t>> targets = {};

  // Only for fused instructions: how the places divide the product. `sends` or `receives` are then
  // the parts of the product, or of its gathered operand.
  std::optional<SplitProduct> split = std::nullopt;

  // Products have the spec of one product of two matrices, the loops over the matrices of the
  // tiles, and the size of one matrix in each tile.
  MatmulSpec matmul = {};
  ProductLoops loops = {};
  int64_t lhs_matrix_bytes = 0;
  int64_t rhs_matrix_bytes = 0;
  int64_t out_matrix_bytes = 0;
  EpilogueSpec epilogue = {};  // only for epilogues
  // Tensor ops, fused or not, have the values that they read (InputsOf), and an estimate of their
  // operations.
  std::vector<ValueIndex> inputs = {};
  int64_t flops = 0;
};

// Immutable, hence safe to share between the threads of all steps that run the plan.
class RankPlan {
 public:
  // `plan` outlives the result and is one that CheckPlan accepts; `rank` is a rank of its mesh.
  // Returns errors of Tiling::Create, MovePlan and CombinerFor for plans that a worker cannot run;
  // the message names the op.
  static absl::StatusOr<RankPlan> Create(const Plan& plan, DeviceId rank);

  const Plan& plan() const { return *plan_; }
  DeviceId rank() const { return rank_; }
  const RankValue& value(ValueIndex index) const { return values_[index]; }
  // The size of the block for temporaries, and the first and the last instruction that use it.
  const MemoryPlan& memory() const { return memory_; }
  // The constants of plan().instructions[index].
  const RankInstruction& instruction(size_t index) const { return instructions_[index]; }

 private:
  RankPlan(const Plan& plan, DeviceId rank) : plan_(&plan), rank_(rank) {}

  const Plan* plan_;
  DeviceId rank_;
  MemoryPlan memory_;
  std::vector<RankValue> values_;
  std::vector<RankInstruction> instructions_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_RANK_PLAN_H_
