// Decodes questions about products and linear layers, asks, and encodes the answers.
#include "tests/conformance/compute_subject.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "program/graph/linear_layer.h"
#include "program/program.h"
#include "program/step_plan.h"
#include "sharding/digest.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"
#include "tensor/dtype_promotion.h"
#include "tensor/float_convert.h"
#include "tests/testing/golden.h"

namespace shardmesh::conformance {
namespace {

using ::shardmesh::test::DecodeInteger;
using ::shardmesh::test::DecodeMesh;
using ::shardmesh::test::DecodeShape;
using ::shardmesh::test::DecodeSpec;

// Element (i, j) of a filled matrix is ((i p + j q) mod m) - s.
struct Fill {
  int64_t p, q, m, s;
};

constexpr Fill kKernelFill = {5, 2, 13, 6};
constexpr Fill kBiasFill = {0, 1, 5, 2};
constexpr Fill kInputFill = {7, 3, 11, 5};
constexpr Fill kOtherWeightFill = {3, 1, 7, 3};

// The fills of the operands of products, by name.
Fill FillByName(const std::string& name) {
  if (name == "a") return kInputFill;
  if (name == "b") return kKernelFill;
  if (name == "c") return kOtherWeightFill;
  if (name == "d") return {11, 13, 17, 8};
  test::ThrowWrongForm(StrCat("no fill is called ", name));
}

int64_t CountOf(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

// Returns the elements of a filled tensor, seen as the rows of its last dimension.
std::vector<double> Filled(const Shape& shape, const Fill& fill) {
  std::vector<double> elements;
  const int64_t columns = shape.empty() ? 1 : shape.back();
  const int64_t count = CountOf(shape);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t value = (i / columns * fill.p + i % columns * fill.q) % fill.m - fill.s;
    elements.push_back(static_cast<double>(value));
  }
  return elements;
}

// The elements of an unsigned type are at least 0, as JAX converts numbers.
void ConvertTo(Dtype dtype, std::vector<double>* elements) {
  const bool is_unsigned =
      dtype == Dtype::kU8 || dtype == Dtype::kU16 || dtype == Dtype::kU32 || dtype == Dtype::kU64;
  if (!is_unsigned) return;
  for (double& element : *elements) element = std::max(element, 0.0);
}

// Rounds a result once, as kernels do. Never returns -0.
float Rounded(double value, Dtype dtype) {
  float rounded = F64ToF32(value);
  if (dtype == Dtype::kBF16) rounded = BF16ToF32(F64ToBF16(value));
  if (dtype == Dtype::kF16) rounded = F16ToF32(F64ToF16(value));
  return rounded == 0 ? 0.0F : rounded;
}

std::vector<float> Rounded(const std::vector<double>& elements, Dtype dtype) {
  std::vector<float> rounded;
  for (const double element : elements) rounded.push_back(Rounded(element, dtype));
  return rounded;
}

// The SHA-256 of the elements as little-endian numbers of 32 bits, in hexadecimal digits.
std::string HashOf(const std::vector<float>& elements) {
  std::string bytes(elements.size() * sizeof(float), '\0');
  if (!elements.empty()) std::memcpy(bytes.data(), elements.data(), bytes.size());
  return std::string(absl::BytesToHexString(Sha256(bytes)));
}

// Refuses products and meshes that are too large for a question.
absl::Status CheckSize(const Shape& m_k_n, const Mesh& mesh) {
  constexpr int64_t kMostProducts = int64_t{1} << 26;
  constexpr int64_t kMostDevices = 64;
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t products, ElementCount(m_k_n));
  const int64_t largest = *std::max_element(m_k_n.begin(), m_k_n.end());
  if (products <= kMostProducts && largest <= kMostProducts && mesh.size() <= kMostDevices) {
    return absl::OkStatus();
  }
  return InvalidArgument(Reason::kLimitExceeded,
                         StrCat("a product of ", ShapeToString(m_k_n), " on ", mesh.size(),
                                " devices is too large to simulate"));
}

// matmul. ----------------------------------------------------------------------------------------

Json EncodeTiles(const Tiling& tiling) {
  Json tiles = Json::array();
  for (DeviceId device = 0; device < tiling.mesh().size(); ++device) {
    Json ranges = Json::array();
    for (const IndexRange& range : tiling.TileOf(device).ranges) {
      ranges.push_back({range.start, range.stop});
    }
    tiles.push_back(std::move(ranges));
  }
  return tiles;
}

Json EncodeProduct(const std::vector<float>& elements, const Tiling& tiling) {
  const auto rows = static_cast<size_t>(tiling.shape()[0]);
  const auto columns = static_cast<size_t>(tiling.shape()[1]);
  Json corner = Json::array();
  double sum = 0;
  double largest = 0;
  for (const float element : elements) {
    sum += static_cast<double>(element);
    largest = std::max(largest, std::abs(static_cast<double>(element)));
  }
  if (!elements.empty()) {
    const size_t last_row = (rows - 1) * columns;
    for (const size_t at : {size_t{0}, columns - 1, last_row, last_row + columns - 1}) {
      corner.push_back(elements[at]);
    }
  }
  return Json{{"sha256", HashOf(elements)},  {"sum", sum},
              {"corner", std::move(corner)}, {"shape", {rows, columns}},
              {"max_abs", largest},          {"out_tiles", EncodeTiles(tiling)}};
}

absl::StatusOr<Json> AnswerMatmul(const ComputeSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
  const int64_t m = DecodeInteger(input.at("M"));
  const int64_t k = DecodeInteger(input.at("K"));
  const int64_t n = DecodeInteger(input.at("N"));
  SHARDMESH_RETURN_IF_ERROR(CheckSize({m, k, n}, mesh));
  SHARDMESH_ASSIGN_OR_RETURN(const Dtype dtype,
                             ParseNumpyDtype(input.at("dtype").get<std::string>()));
  SHARDMESH_ASSIGN_OR_RETURN(const Dtype out_dtype,
                             ParseNumpyDtype(input.at("out_dtype").get<std::string>()));
  if (dtype != out_dtype && (dtype != Dtype::kBF16 || out_dtype != Dtype::kF32)) {
    return InvalidArgument(Reason::kUnsupportedDtype,
                           StrCat("no product of ", DtypeName(dtype), " has the type ",
                                  DtypeName(out_dtype), "; BF16 can have BF16 and F32"));
  }
  // A product of BF16 to F32 takes its operands as F32, which has every number of BF16.
  std::vector<ComputeSubject::Tensor> operands = {
      {.value = {.dtype = out_dtype, .shape = {m, k}, .spec = {}},
       .elements = Filled({m, k}, FillByName(input.at("lhs_fill").get<std::string>()))},
      {.value = {.dtype = out_dtype, .shape = {k, n}, .spec = {}},
       .elements = Filled({k, n}, FillByName(input.at("rhs_fill").get<std::string>()))}};
  SHARDMESH_ASSIGN_OR_RETURN(operands[0].value.spec, DecodeSpec(input.at("lhs_spec")));
  SHARDMESH_ASSIGN_OR_RETURN(operands[1].value.spec, DecodeSpec(input.at("rhs_spec")));
  SHARDMESH_ASSIGN_OR_RETURN(PartitionSpec out_spec, DecodeSpec(input.at("out_spec")));
  for (const ComputeSubject::Tensor& operand : operands) {
    SHARDMESH_RETURN_IF_ERROR(
        Tiling::Create(mesh, operand.value.spec, operand.value.shape).status());
  }
  SHARDMESH_RETURN_IF_ERROR(Tiling::Create(mesh, out_spec, {m, n}).status());
  const Program program = {
      .operand_count = 2,
      .ops = {MatmulOp{.lhs = 0, .rhs = 1}, ReshardOp{.input = 2, .spec = std::move(out_spec)}},
      .outputs = {3}};
  SHARDMESH_ASSIGN_OR_RETURN(const ComputeSubject::Result result,
                             subject.Run(program, operands, mesh));
  return EncodeProduct(Rounded(result.elements, out_dtype), result.tiling);
}

// linear_forward. --------------------------------------------------------------------------------

// Returns the transpose of a matrix of `columns` columns.
std::vector<double> Transposed(const std::vector<double>& matrix, int64_t columns) {
  std::vector<double> result;
  const auto width = static_cast<size_t>(columns);
  for (size_t column = 0; column < width; ++column) {
    for (size_t at = column; at < matrix.size(); at += width) result.push_back(matrix[at]);
  }
  return result;
}

struct LinearCase {
  LinearLayerOptions options;
  ValueDescriptor input;
  std::optional<ValueDescriptor> weight;  // in place of the layer's kernel, as (in, out)
};

absl::StatusOr<std::optional<Dtype>> DecodeOptionalDtype(const Json& input, const char* field) {
  const Json name = input.value(field, Json());
  if (name.is_null()) return std::nullopt;
  SHARDMESH_ASSIGN_OR_RETURN(const Dtype dtype, ParseNumpyDtype(name.get<std::string>()));
  return dtype;
}

absl::StatusOr<LinearCase> DecodeCase(const Json& input) {
  LinearCase decoded;
  ParallelLinearOptions& layer = decoded.options.layer;
  layer.in_features = DecodeInteger(input.at("in_features"));
  const int64_t out_features = DecodeInteger(input.at("out_features"));
  layer.out_features = out_features;
  layer.use_bias = input.at("use_bias").get<bool>();
  if (input.contains("scale")) layer.scale = input.at("scale").get<double>();
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<Dtype> param_dtype,
                             DecodeOptionalDtype(input, "param_dtype"));
  decoded.options.param_dtype = param_dtype.value_or(Dtype::kF32);
  SHARDMESH_ASSIGN_OR_RETURN(decoded.options.dtype, DecodeOptionalDtype(input, "dtype"));
  decoded.input.shape = DecodeShape(input.at("input_shape"));
  SHARDMESH_ASSIGN_OR_RETURN(decoded.input.dtype,
                             ParseNumpyDtype(input.at("input_dtype").get<std::string>()));
  int64_t columns = out_features;
  if (input.contains("w")) {
    const Json& w = input.at("w");
    columns = DecodeInteger(w.at("out"));
    decoded.weight = ValueDescriptor{.shape = {layer.in_features, columns}, .spec = {}};
    SHARDMESH_ASSIGN_OR_RETURN(decoded.weight->dtype,
                               ParseNumpyDtype(w.at("dtype").get<std::string>()));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(decoded.input.shape));
  for (const int64_t out : {out_features, columns}) {
    SHARDMESH_RETURN_IF_ERROR(CheckSize({elements, layer.in_features, out}, Mesh()));
  }
  return decoded;
}

// How a layer is run: whole, if there is no config.
struct LinearLayout {
  std::string_view name;
  ParallelDirection direction = ParallelDirection::kNone;
  WeightLayout weight_layout = WeightLayout::kInOut;
  std::optional<TensorParallelConfig> parallel = std::nullopt;
};

std::vector<LinearLayout> ParallelLayouts() {
  TensorParallelConfig gather;
  gather.matmul_method = "ALL_GATHER";
  TensorParallelConfig scatter;
  scatter.matmul_method = "REDUCE_SCATTER";
  TensorParallelConfig reduced;
  reduced.reduce_output = true;
  TensorParallelConfig kept;
  kept.reduce_scatter_output = true;
  using Direction = ParallelDirection;
  return {{"column, gathered", Direction::kColumn, WeightLayout::kInOut, gather},
          {"column, kept in parts", Direction::kColumn, WeightLayout::kOutIn, kept},
          {"row, scattered", Direction::kRow, WeightLayout::kOutIn, scatter},
          {"row, reduced", Direction::kRow, WeightLayout::kInOut, reduced}};
}

// Whether two devices can share the layer in this layout.
bool Divides(const LinearCase& layer, const LinearLayout& layout) {
  const bool in_divides = layer.options.layer.in_features % 2 == 0;
  const int64_t out = std::get<int64_t>(layer.options.layer.out_features);
  const int64_t columns = layer.weight.has_value() ? layer.weight->shape[1] : out;
  const bool out_divides = out % 2 == 0 && columns % 2 == 0;
  return (in_divides || layout.direction != ParallelDirection::kRow) &&
         (out_divides || layout.name == "row, reduced");
}

struct LinearResult {
  Shape shape;
  Dtype dtype = Dtype::kF32;
  std::vector<float> elements;

  friend bool operator==(const LinearResult&, const LinearResult&) = default;
};

absl::StatusOr<LinearResult> RunLayer(const ComputeSubject& subject, const LinearCase& layer,
                                      const LinearLayout& layout, const Mesh& mesh) {
  LinearLayerOptions options = layer.options;
  options.layer.direction = layout.direction;
  options.weight_layout = layout.weight_layout;
  options.parallel = layout.parallel;
  std::optional<ValueDescriptor> weight = layer.weight;
  const bool is_out_in = layout.weight_layout == WeightLayout::kOutIn;
  if (weight.has_value() && is_out_in) std::swap(weight->shape[0], weight->shape[1]);
  SHARDMESH_ASSIGN_OR_RETURN(const LinearLayerProgram lowered,
                             LowerLinearLayer(options, layer.input, weight, mesh));
  std::vector<ComputeSubject::Tensor> operands;
  for (const ValueDescriptor& value : lowered.operands) {
    operands.push_back({.value = value, .elements = {}});
  }
  operands[0].elements = Filled(layer.input.shape, kInputFill);
  ConvertTo(layer.input.dtype, &operands[0].elements);
  Shape kernel_shape = lowered.operands[1].shape;
  if (is_out_in) std::swap(kernel_shape[0], kernel_shape[1]);
  operands[1].elements = Filled(kernel_shape, weight.has_value() ? kOtherWeightFill : kKernelFill);
  if (is_out_in) operands[1].elements = Transposed(operands[1].elements, kernel_shape[1]);
  if (options.layer.use_bias) {
    operands[2].elements = Filled(lowered.operands[2].shape, kBiasFill);
  }
  SHARDMESH_ASSIGN_OR_RETURN(const ComputeSubject::Result result,
                             subject.Run(lowered.program, operands, lowered.mesh));
  return LinearResult{.shape = result.shape,
                      .dtype = lowered.dtype,
                      .elements = Rounded(result.elements, lowered.dtype)};
}

absl::StatusOr<Json> AnswerLinearForward(const ComputeSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const LinearCase layer, DecodeCase(input));
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh one, Mesh::Parse("tp=1"));
  SHARDMESH_ASSIGN_OR_RETURN(const LinearResult whole,
                             RunLayer(subject, layer, {.name = "whole"}, one));
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh two, Mesh::Parse("tp=2"));
  for (const LinearLayout& layout : ParallelLayouts()) {
    if (!Divides(layer, layout)) continue;
    absl::StatusOr<LinearResult> parallel = RunLayer(subject, layer, layout, two);
    if (!parallel.ok()) return WithContext(parallel.status(), layout.name);
    if (*parallel != whole) {
      return absl::InternalError(StrCat("the result differs over two devices: ", layout.name));
    }
  }
  constexpr size_t kMostValues = 64;
  const auto end = static_cast<std::ptrdiff_t>(std::min(whole.elements.size(), kMostValues));
  return Json{{"shape", std::vector<int64_t>(whole.shape.begin(), whole.shape.end())},
              {"dtype", std::string(NumpyDtypeName(whole.dtype))},
              {"sha256", HashOf(whole.elements)},
              {"values", std::vector<float>(whole.elements.begin(), whole.elements.begin() + end)}};
}

}  // namespace

void AddComputeQuestions(std::shared_ptr<const ComputeSubject> subject, Questions* questions) {
  (*questions)["matmul"] = [subject](const Json& input) { return AnswerMatmul(*subject, input); };
  (*questions)["linear_forward"] = [subject](const Json& input) {
    return AnswerLinearForward(*subject, input);
  };
}

}  // namespace shardmesh::conformance
