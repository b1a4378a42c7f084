// A cluster's products and linear layers, on its workers.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "sharding/mesh_definition.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"
#include "tensor/float_convert.h"
#include "tensor/view.h"
#include "tests/conformance/compute_subject.h"

namespace shardmesh::conformance {
namespace {

// Encodes elements as F32 or BF16.
std::string BytesOf(const std::vector<double>& elements, Dtype dtype) {
  std::string bytes;
  for (const double element : elements) {
    if (dtype == Dtype::kBF16) {
      const uint16_t bits = F64ToBF16(element);
      bytes.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
    } else {
      const float number = F64ToF32(element);
      bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
    }
  }
  return bytes;
}

std::vector<double> ElementsOf(absl::Span<const char> bytes, Dtype dtype) {
  std::vector<double> elements;
  const size_t step = dtype == Dtype::kBF16 ? sizeof(uint16_t) : sizeof(float);
  for (size_t at = 0; at + step <= bytes.size(); at += step) {
    float number = 0;
    if (dtype == Dtype::kBF16) {
      uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + at, sizeof(bits));
      number = BF16ToF32(bits);
    } else {
      std::memcpy(&number, bytes.data() + at, sizeof(number));
    }
    elements.push_back(static_cast<double>(number));
  }
  return elements;
}

class ComputeWire final : public ComputeSubject {
 public:
  ComputeWire(client::MeshClient& client, std::vector<std::string> workers)
      : client_(client), workers_(std::move(workers)) {}

  absl::StatusOr<Result> Run(const Program& program, absl::Span<const Tensor> operands,
                             const Mesh& mesh) const override {
    SHARDMESH_ASSIGN_OR_RETURN(const std::string mesh_name, NameOf(mesh));
    std::vector<std::string> made;
    client::ExecuteCall call{.work = program, .operands = {}, .mesh_id = mesh_name};
    for (const Tensor& operand : operands) {
      SHARDMESH_ASSIGN_OR_RETURN(made.emplace_back(), Put(operand, mesh_name));
      call.operands.emplace_back(client::ArraySelector::ById(made.back()));
    }
    SHARDMESH_ASSIGN_OR_RETURN(const client::StepResult step, client_.compute().Execute(call));
    return Fetch(step, std::move(made));
  }

  absl::StatusOr<Result> RunLinear(const LayerCall& layer, absl::Span<const Tensor> operands,
                                   const Mesh& mesh) const override {
    SHARDMESH_ASSIGN_OR_RETURN(const std::string mesh_name, NameOf(mesh));
    std::vector<std::string> made;
    std::vector<client::Operand> arrays;
    for (const Tensor& operand : operands) {
      SHARDMESH_ASSIGN_OR_RETURN(made.emplace_back(), Put(operand, mesh_name));
      arrays.emplace_back(client::ArraySelector::ById(made.back()));
    }
    client::LinearLayerCall call{.input = arrays.at(0), .weights = {arrays.at(1)}, .layer = layer};
    if (arrays.size() > 2) call.biases = {arrays[2]};
    SHARDMESH_ASSIGN_OR_RETURN(const client::StepResult step, client_.compute().LinearLayer(call));
    return Fetch(step, std::move(made));
  }

 private:
  // Returns the result of a step of one output. Releases it, and the arrays `made`.
  absl::StatusOr<Result> Fetch(const client::StepResult& step,
                               std::vector<std::string> made) const {
    const ArrayDescriptor& array = step.outputs.at(0).array.descriptor;
    made.push_back(array.array_id);
    SHARDMESH_ASSIGN_OR_RETURN(Tiling tiling, array.Tiling());
    SHARDMESH_ASSIGN_OR_RETURN(
        const client::GatheredTensor gathered,
        client_.arrays().Gather(client::ArraySelector::ById(array.array_id)));
    Result result{.shape = array.shape,
                  .elements = ElementsOf(gathered.view().bytes(), array.dtype),
                  .tiling = std::move(tiling)};
    SHARDMESH_RETURN_IF_ERROR(client_.arrays().ReleaseArrays(made).status());
    return result;
  }

  // Returns the name of a mesh of the cluster with these axes. Makes the mesh if it is new.
  absl::StatusOr<std::string> NameOf(const Mesh& mesh) const {
    std::string& name = names_[mesh.ToString()];
    if (!name.empty()) return name;
    if (mesh.size() > static_cast<int64_t>(workers_.size())) {
      return InvalidArgument(Reason::kMeshSizeMismatch,
                             StrCat("the mesh ", mesh.ToString(), " needs ", mesh.size(),
                                    " workers; the cluster has ", workers_.size()));
    }
    const std::string wanted = StrCat("conformance-", names_.size());
    const auto end = workers_.begin() + static_cast<std::ptrdiff_t>(mesh.size());
    const MeshDefinition definition = {.mesh = mesh, .workers = {workers_.begin(), end}};
    SHARDMESH_RETURN_IF_ERROR(client_.catalog().CreateEntry(wanted, definition).status());
    name = wanted;
    return name;
  }

  // Puts a tensor without a name. Returns the array's id.
  absl::StatusOr<std::string> Put(const Tensor& tensor, const std::string& mesh) const {
    const std::string bytes = BytesOf(tensor.elements, tensor.value.dtype);
    SHARDMESH_ASSIGN_OR_RETURN(const TensorView view,
                               TensorView::Create(tensor.value.dtype, tensor.value.shape, bytes));
    const client::PutTensor put{
        .name = "", .view = view, .spec = tensor.value.spec, .cut_points = tensor.value.cut_points};
    SHARDMESH_ASSIGN_OR_RETURN(const client::PutResult result,
                               client_.arrays().PutTensors({&put, 1}, {.mesh = mesh}));
    return result.arrays.at(0).descriptor.array_id;
  }

  client::MeshClient& client_;
  const std::vector<std::string> workers_;
  mutable std::map<std::string, std::string> names_;  // of meshes, by their axes
};

}  // namespace

std::shared_ptr<const ComputeSubject> WireCompute(client::MeshClient& client,
                                                  std::vector<std::string> workers) {
  return std::make_shared<ComputeWire>(client, std::move(workers));
}

}  // namespace shardmesh::conformance
