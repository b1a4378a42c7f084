// Decodes the questions about linear layers, asks, and encodes the answers.
#include "tests/conformance/linear_subject.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sharding/python_value.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype_promotion.h"
#include "tests/testing/golden.h"

namespace shardmesh::conformance {
namespace {

using ::shardmesh::test::DecodeMesh;
using ::shardmesh::test::DecodeSpec;
using ::shardmesh::test::EncodeSpec;

absl::Status PythonTypeError(std::string_view message) {
  return InvalidArgument(Reason::kBadField, message, "TypeError");
}

// An array's rank, and either its spec or what stands in the place of one: an object without any
// ("none"), an array of NumPy ("numpy"), an array on one device.
absl::StatusOr<ArrayLayout> DecodeArray(const Json& array) {
  ArrayLayout layout;
  layout.rank = array.at("ndim");
  if (array.contains("spec")) {
    layout.kind = ArrayLayout::Kind::kNamed;
    SHARDMESH_ASSIGN_OR_RETURN(layout.spec, DecodeSpec(array.at("spec")));
  } else if (array.at("sharding") == "single_device") {
    layout.kind = ArrayLayout::Kind::kSingleDevice;
  }
  return layout;
}

// null is no spec.
absl::StatusOr<std::optional<PartitionSpec>> DecodeOptionalSpec(const Json& spec) {
  if (spec.is_null()) return std::nullopt;
  return DecodeSpec(spec);
}

Json EncodeOptionalSpec(const std::optional<PartitionSpec>& spec) {
  return spec.has_value() ? EncodeSpec(*spec) : Json();
}

Json EncodeShape(const Shape& shape) { return std::vector<int64_t>(shape.begin(), shape.end()); }

Json EncodeConfig(const TensorParallelConfig& config) {
  Json mesh;
  if (config.mesh.has_value()) {
    mesh = Json::array();
    for (const MeshAxis& axis : config.mesh->axes()) mesh.push_back({axis.name, axis.size});
  }
  return Json{
      {"axis_name", config.axis_name},
      {"mesh", mesh},
      {"reduce_output", config.reduce_output},
      {"reduce_scatter_output", config.reduce_scatter_output},
      {"matmul_method", config.matmul_method.has_value() ? Json(*config.matmul_method) : Json()}};
}

// A boolean is an integer in Python.
bool IsPythonInt(const Json& value) { return value.is_number_integer() || value.is_boolean(); }
int64_t DecodePythonInt(const Json& value) {
  return value.is_boolean() ? (value.get<bool>() ? 1 : 0) : value.get<int64_t>();
}

// One number, or a list or tuple of them. What is neither (a text, which Python takes as the
// sequence of its characters, a number with a fraction, a nested list) fails in the original's
// arithmetic, and is refused here.
absl::Status DecodeOutFeatures(const Json& value, ParallelLinearOptions& options) {
  if (IsPythonInt(value)) {
    options.out_features = DecodePythonInt(value);
    return absl::OkStatus();
  }
  const bool is_tuple = value.is_object() && value.contains("__tuple__");
  const Json& entries = is_tuple ? value.at("__tuple__") : value;
  if (!entries.is_array()) return PythonTypeError("out_features is neither a number nor several");
  std::vector<int64_t> parts;
  for (const Json& entry : entries) {
    if (!IsPythonInt(entry)) return PythonTypeError("a part of out_features is no integer");
    parts.push_back(DecodePythonInt(entry));
  }
  options.out_features = std::move(parts);
  return absl::OkStatus();
}

// A factor or a name. None, too, is accepted on construction and fails when it is applied.
void DecodeScale(const Json& value, ParallelLinearOptions& options) {
  if (value.is_string()) {
    options.scale = value.get<std::string>();
  } else if (value.is_boolean()) {
    options.scale = value.get<bool>() ? 1.0 : 0.0;
  } else if (value.is_number()) {
    options.scale = value.get<double>();
  } else {
    options.scale = "None";
  }
}

absl::StatusOr<ParallelLinearOptions> DecodeLinear(const Json& input) {
  ParallelLinearOptions options;
  const Json& in_features = input.at("in_features");
  if (!IsPythonInt(in_features)) return PythonTypeError("in_features is no integer");
  options.in_features = DecodePythonInt(in_features);
  SHARDMESH_RETURN_IF_ERROR(DecodeOutFeatures(input.at("out_features"), options));
  options.use_bias = input.value("use_bias", true);
  if (input.contains("scale")) DecodeScale(input.at("scale"), options);
  // The class that is constructed; the plain ones have no direction.
  const std::string type = input.value("class", "parallel");
  if (type == "row") options.direction = ParallelDirection::kRow;
  if (type == "column") options.direction = ParallelDirection::kColumn;
  return options;
}

Json EncodeDirection(ParallelDirection direction) {
  switch (direction) {
    case ParallelDirection::kRow:
      return "row";
    case ParallelDirection::kColumn:
      return "column";
    case ParallelDirection::kNone:
      break;
  }
  return nullptr;
}

Json EncodeLayer(const LinearSubject::Layer& layer) {
  const std::optional<Shape>& bias_shape = layer.facts.bias_shape;
  return Json{{"tp_merged", layer.facts.tp_merged},
              {"kernel_shape", EncodeShape(layer.facts.kernel_shape)},
              {"kernel_dtype", std::string(NumpyDtypeName(layer.kernel_dtype))},
              {"bias_shape", bias_shape.has_value() ? EncodeShape(*bias_shape) : Json()},
              {"bias_all_zero", bias_shape.has_value() ? Json(true) : Json()},
              {"scale_factor", layer.facts.scale_factor},
              {"scale_repr", PythonFloatRepr(layer.facts.scale_factor)},
              {"direction", EncodeDirection(layer.facts.direction)}};
}

absl::StatusOr<Dtype> DecodeDtype(const Json& name) {
  return ParseNumpyDtype(name.get<std::string>());
}

}  // namespace

void AddLinearQuestions(std::shared_ptr<const LinearSubject> subject, Questions* questions) {
  (*questions)["get_sharding"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const ArrayLayout array, DecodeArray(input.at("array")));
    SHARDMESH_ASSIGN_OR_RETURN(const std::optional<PartitionSpec> spec, subject->Sharding(array));
    return EncodeOptionalSpec(spec);
  };
  (*questions)["get_output_partition_spec"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const ArrayLayout lhs, DecodeArray(input.at("lhs")));
    SHARDMESH_ASSIGN_OR_RETURN(const ArrayLayout rhs, DecodeArray(input.at("rhs")));
    SHARDMESH_ASSIGN_OR_RETURN(
        const std::optional<PartitionSpec> spec,
        subject->OutputPartitionSpec(lhs, rhs, input.at("axis_name").get<std::string>()));
    return EncodeOptionalSpec(spec);
  };
  (*questions)["get_matmul_output_sharding"] =
      [subject](const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const std::optional<PartitionSpec> lhs,
                               DecodeOptionalSpec(input.at("lhs")));
    SHARDMESH_ASSIGN_OR_RETURN(const std::optional<PartitionSpec> rhs,
                               DecodeOptionalSpec(input.at("rhs")));
    SHARDMESH_ASSIGN_OR_RETURN(const PartitionSpec spec, subject->MatmulOutputSharding(lhs, rhs));
    return EncodeSpec(spec);
  };
  (*questions)["tensor_parallel_config"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    TensorParallelConfig config;
    if (const Json mesh = input.value("mesh", Json()); !mesh.is_null()) {
      SHARDMESH_ASSIGN_OR_RETURN(config.mesh, DecodeMesh(mesh));
    }
    SHARDMESH_ASSIGN_OR_RETURN(const Mesh context, DecodeMesh(input.value("context_mesh", Json())));
    config.axis_name = input.value("axis_name", config.axis_name);
    if (const Json method = input.value("matmul_method", Json()); !method.is_null()) {
      config.matmul_method = method.get<std::string>();
    }
    config.reduce_output = input.value("reduce_output", false);
    config.reduce_scatter_output = input.value("reduce_scatter_output", false);
    SHARDMESH_ASSIGN_OR_RETURN(const TensorParallelConfig checked,
                               subject->CheckConfig(config, context));
    return EncodeConfig(checked);
  };
  (*questions)["parallel_linear"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const ParallelLinearOptions options, DecodeLinear(input));
    SHARDMESH_ASSIGN_OR_RETURN(const Dtype param_dtype,
                               DecodeDtype(input.value("param_dtype", Json("float32"))));
    SHARDMESH_ASSIGN_OR_RETURN(const LinearSubject::Layer layer,
                               subject->MakeLayer(options, param_dtype));
    return EncodeLayer(layer);
  };
  // One type for all, which the original gives once for each array.
  (*questions)["promote_dtype"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    std::vector<Dtype> arrays;
    for (const Json& name : input.at("arrays")) {
      SHARDMESH_ASSIGN_OR_RETURN(const Dtype dtype, DecodeDtype(name));
      arrays.push_back(dtype);
    }
    std::optional<Dtype> dtype;
    if (const Json name = input.value("dtype", Json()); !name.is_null()) {
      SHARDMESH_ASSIGN_OR_RETURN(dtype, DecodeDtype(name));
    }
    SHARDMESH_ASSIGN_OR_RETURN(const Dtype promoted, subject->PromoteDtype(arrays, dtype));
    return std::vector<std::string>(arrays.size(), std::string(NumpyDtypeName(promoted)));
  };
}

}  // namespace shardmesh::conformance
