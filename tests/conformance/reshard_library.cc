// The library as the subject of questions about reshards.
#include "sharding/layout/analysis.h"
#include "sharding/tile.h"
#include "status/status_macros.h"
#include "tests/conformance/reshard_subject.h"

namespace shardmesh::conformance {
namespace {

class ReshardLibrary final : public ReshardSubject {
 public:
  absl::StatusOr<ReshardAnswer> Reshard(const ReshardQuestion& question) const override {
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling from,
                               Tiling::Create(question.from_mesh, question.from, question.shape));
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling to,
                               Tiling::Create(question.to_mesh, question.to, question.shape));
    SHARDMESH_ASSIGN_OR_RETURN(const ReshardPlan plan, ReshardPlan::Create(from, to));
    SHARDMESH_ASSIGN_OR_RETURN(const ReshardTotals totals, plan.Totals());
    ReshardAnswer answer;
    for (DeviceId device = 0; device < question.to_mesh.size(); ++device) {
      answer.devices.push_back(plan.DeviceOf(device));
    }
    SHARDMESH_ASSIGN_OR_RETURN(answer.elements, ElementCount(question.shape));
    SHARDMESH_ASSIGN_OR_RETURN(answer.need_bytes,
                               TileBytes(totals.need, question.bits_per_element));
    answer.need = totals.need;
    answer.max_need = totals.max_need;
    answer.noop = totals.noop;
    return answer;
  }
};

}  // namespace

std::shared_ptr<const ReshardSubject> LibraryReshard() {
  return std::make_shared<ReshardLibrary>();
}

}  // namespace shardmesh::conformance
