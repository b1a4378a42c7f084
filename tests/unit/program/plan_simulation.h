// Devices that run a plan in plain loops, for tests of plans.
#ifndef SHARDMESH_TESTS_UNIT_PROGRAM_PLAN_SIMULATION_H_
#define SHARDMESH_TESTS_UNIT_PROGRAM_PLAN_SIMULATION_H_

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "program/memory_plan.h"
#include "program/step_plan.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"
#include "tensor/literal.h"
#include "tests/unit/program/dense.h"

namespace shardmesh {

// The part of `tensor` within `tile`; positions are relative to `origin`.
Dense Cut(const Dense& tensor, const Tile& tile, const Tile& origin);

// Returns a matrix [K, N], or [N, K] if it is transposed, times a factor for each of its N columns.
Dense ScaledColumns(Dense matrix, const Dense& scales, bool is_transposed);

double Activate(Activation activation, double x);

// Returns the element of the type that is nearest to `x`. Integers wrap.
double RoundedTo(Dtype dtype, double x);

// Returns the tensor with its elements rounded to the type, which is BOOL, I8, I32 or a float of at
// least 16 bits.
Literal LiteralOf(Dtype dtype, const Dense& dense);

struct SimulationOptions {
  // Whether the elements of each value are rounded to its type. Otherwise they are F64.
  bool rounds = false;
  // Whether values share memory as MemoryPlanOf and StatePlaces say: an instruction makes NaNs of
  // the values in whose memory it makes its result.
  bool shares_memory = false;
};

// Returns activation(scale * lhs * rhs + bias) as PlanBuilder defines it, batches included.
Dense Multiply(const Dense& lhs, const Dense& rhs, const Dense* bias, bool transpose_lhs,
               bool transpose_rhs, double scale, Activation activation);

// All devices of a plan's mesh, each with its tiles of all values.
class Simulation {
 public:
  explicit Simulation(const Plan& plan, const SimulationOptions& options = {});

  // Along unreduced axes the first device holds the tensor, the others hold zeros.
  void SetOperand(ValueIndex index, const Dense& tensor);

  void Run();

  // Returns the whole tensor; nullopt if devices hold different elements for one index. Along
  // unreduced axes, devices must agree as well.
  std::optional<Dense> Assembled(ValueIndex index) const;

  // Every device's tile must agree with `expected`.
  void ExpectOutput(ValueIndex index, const Dense& expected) const;

 private:
  const Dense& TileAt(ValueIndex index, DeviceId device) const;

  // Makes the values lost whose memory the output takes, before and after it is made.
  void LoseBefore(ValueIndex output);
  void LoseAfter(ValueIndex output);
  void Lose(ValueIndex index);

  Dense Make(const LocalMatmul& matmul, ValueIndex, DeviceId device) const;
  Dense Make(const LocalEpilogue& epilogue, ValueIndex, DeviceId device) const;
  // A slice that is not empty must be within the tile that the device holds.
  Dense Make(const LocalSlice& slice, ValueIndex output, DeviceId device) const;
  // Copies the part of `from` that lies within `into`. Both tiles are relative to one tensor.
  static void Paste(const Dense& from, const Tile& from_tile, const Tile& part, const Tile& tile,
                    Dense* into);
  Dense Empty(ValueIndex output, DeviceId device) const;
  Dense Make(const MoveRegions& move, ValueIndex output, DeviceId device) const;
  Dense Make(const GroupCollective& collective, ValueIndex output, DeviceId device) const;

  Dense Make(const LocalCompute& compute, ValueIndex output, DeviceId device) const;
  Dense Make(const GatherMatmul& fused, ValueIndex output, DeviceId device) const;
  Dense Make(const MatmulScatter& fused, ValueIndex output, DeviceId device) const;
  Dense Make(const FusedCompute& fused, ValueIndex output, DeviceId device) const;
  Dense MakeInPlainForm(const Instruction& instruction, DeviceId device) const;

  const Plan& plan_;
  const SimulationOptions options_;
  // Set if values share memory.
  MemoryPlan memory_;
  std::vector<std::optional<ValueIndex>> state_places_;
  std::vector<Tiling> tilings_;
  std::vector<std::vector<Dense>> tiles_;  // [value][device]
};

// Lays a value of a random shape over the axes, with cut points where the parts are unequal.
ValueDescriptor RandomValue(const Mesh& mesh, Shape shape, std::mt19937& random);

// Lays a value over the axes as RandomValue does, but with parts that may be empty: the last parts
// of ceil chunks, or parts between random points. The shape may have fewer indices than parts.
ValueDescriptor RandomValueWithEmptyParts(const Mesh& mesh, Shape shape, std::mt19937& random);

// Returns the number of devices and slices of the plan where the slice is empty and its ranges are
// not within the tile that the device holds.
int EmptySlicesOutside(const Plan& plan);

// Returns the cut points of a value in the form of ReshardOp::part_starts.
std::vector<std::vector<int64_t>> StartsOf(const ValueDescriptor& value);

// Returns the labels of the plan's instructions, without the names of their ops.
std::vector<std::string> LabelsOf(const Plan& plan);

}  // namespace shardmesh

#endif  // SHARDMESH_TESTS_UNIT_PROGRAM_PLAN_SIMULATION_H_
