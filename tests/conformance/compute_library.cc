// The library's products and linear layers, on devices simulated in this process.
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "status/status_macros.h"
#include "tests/conformance/compute_subject.h"
#include "tests/unit/program/plan_simulation.h"

namespace shardmesh::conformance {
namespace {

class ComputeLibrary final : public ComputeSubject {
 public:
  absl::StatusOr<Result> Run(const Program& program, absl::Span<const Tensor> operands,
                             const Mesh& mesh) const override {
    std::vector<ValueDescriptor> values;
    for (const Tensor& operand : operands) values.push_back(operand.value);
    SHARDMESH_ASSIGN_OR_RETURN(
        const Plan plan,
        PlanProgram(program, values, {.mesh_id = "m", .mesh_revision = 1, .mesh = mesh}));
    Simulation simulation(plan);
    for (size_t i = 0; i < operands.size(); ++i) {
      simulation.SetOperand(static_cast<ValueIndex>(i),
                            {.shape = operands[i].value.shape, .elements = operands[i].elements});
    }
    simulation.Run();
    const ValueIndex output = plan.outputs.front();
    std::optional<Dense> whole = simulation.Assembled(output);
    if (!whole.has_value()) {
      return absl::InternalError("the devices hold different elements of the result");
    }
    SHARDMESH_ASSIGN_OR_RETURN(Tiling tiling, TilingOf(plan, plan.values[output]));
    return Result{.shape = std::move(whole->shape),
                  .elements = std::move(whole->elements),
                  .tiling = std::move(tiling)};
  }
};

}  // namespace

std::shared_ptr<const ComputeSubject> LibraryCompute() {
  return std::make_shared<ComputeLibrary>();
}

}  // namespace shardmesh::conformance
