// A coordinator's answers about reshards.
#include <numeric>
#include <utility>

#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"
#include "tests/conformance/reshard_subject.h"

namespace shardmesh::conformance {
namespace {

// A request names an element type; any of that width counts the same bytes.
absl::StatusOr<Dtype> DtypeOfWidth(int64_t bits) {
  for (const Dtype dtype : AllDtypes()) {
    if (BitsPerElement(dtype) == bits) {
      return dtype;
    }
  }
  return InvalidArgument(Reason::kUnknownDtype, StrCat("no element type has ", bits, " bits"));
}

class ReshardWire final : public ReshardSubject {
 public:
  explicit ReshardWire(client::MeshClient& client) : client_(client) {}

  absl::StatusOr<ReshardAnswer> Reshard(const ReshardQuestion& question) const override {
    client::ReshardQuestion asked = {.from_mesh = question.from_mesh,
                                     .from = question.from,
                                     .to_mesh = question.to_mesh,
                                     .to = question.to,
                                     .shape = question.shape,
                                     .omit_regions = true,
                                     .compatibility = Compatibility::kExact};
    SHARDMESH_ASSIGN_OR_RETURN(asked.dtype, DtypeOfWidth(question.bits_per_element));
    asked.devices.resize(static_cast<size_t>(question.to_mesh.size()));
    std::iota(asked.devices.begin(), asked.devices.end(), DeviceId{0});
    SHARDMESH_ASSIGN_OR_RETURN(client::ReshardAnswer plan, client_.layouts().PlanReshard(asked));
    ReshardAnswer answer;
    for (client::ReshardDevice& device : plan.devices) {
      answer.devices.push_back(std::move(device.part));
    }
    answer.elements = plan.elements;
    answer.need = plan.totals.need;
    answer.need_bytes = plan.total_needed_bytes;
    answer.max_need = plan.totals.max_need;
    answer.noop = plan.totals.noop;
    return answer;
  }

 private:
  client::MeshClient& client_;
};

}  // namespace

std::shared_ptr<const ReshardSubject> WireReshard(client::MeshClient& client) {
  return std::make_shared<ReshardWire>(client);
}

}  // namespace shardmesh::conformance
