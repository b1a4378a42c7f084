// StepVerifier: gets operands and results, and compares.
#include "client/inspect/verify_step.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <variant>

#include "client/inspect/reference_ops.h"
#include "program/graph/layer_program.h"
#include "program/product_layout.h"
#include "sharding/shape.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::client {
namespace {

// Counts the elements of one result that are as expected, and those that are not.
class ElementComparison {
 public:
  explicit ElementComparison(std::string what) : result_{.what = std::move(what)} {}

  // `index_of()` gives the element's index, one number for each dimension.
  template <typename IndexOf>
  void Add(double element, BoundedNumber expected, IndexOf index_of) {
    if (!std::isfinite(expected.bound)) {
      ++result_.undetermined;
      return;
    }
    ++result_.checked;
    const bool is_nan = std::isnan(element) && std::isnan(expected.value);
    if (is_nan || element == expected.value) return;
    const double error = std::abs(element - expected.value);
    if (!(error <= expected.bound)) {
      ++result_.outside;
      if (!result_.first_outside.has_value()) {
        result_.first_outside = {.index = index_of(),
                                 .element = element,
                                 .expected = expected.value,
                                 .bound = expected.bound};
      }
    }
    if (std::isfinite(error) && error > result_.largest_error) {
      result_.largest_error = error;
      result_.bound = expected.bound;
    }
  }

  VerifiedResult Result() && { return std::move(result_); }

 private:
  VerifiedResult result_;
};

// Returns the coordinates of an element by its number in row-major order.
std::vector<int64_t> IndexOf(int64_t number, absl::Span<const int64_t> shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t dim = shape.size(); dim-- > 0;) {
    index[dim] = number % shape[dim];
    number /= shape[dim];
  }
  return index;
}

// Whether the elements of the program's only result are those of its first op.
bool IsOneOp(const Program& program) {
  if (program.ops.empty() || program.outputs.size() != 1 || !program.updates.empty() ||
      program.outputs.front() < program.operand_count) {
    return false;
  }
  for (size_t i = 1; i < program.ops.size(); ++i) {
    const auto* const reshard = std::get_if<ReshardOp>(&program.ops[i]);
    if (reshard == nullptr || reshard->input < program.operand_count) return false;
  }
  return true;
}

// Returns the product if the program has nothing else that changes elements.
std::optional<ReferenceProduct> OnlyProductOf(const Program& program) {
  return IsOneOp(program) ? ProductOf(program.ops.front()) : std::nullopt;
}

// Returns the collective if the program has nothing else that changes elements.
std::optional<CollectiveOp> OnlyCollectiveOf(const Program& program) {
  if (!IsOneOp(program)) return std::nullopt;
  const auto* const collective = std::get_if<CollectiveOp>(&program.ops.front());
  return collective == nullptr ? std::nullopt : std::optional(*collective);
}

// Returns the part of an operand that the element of a product at `index` needs: all elements along
// the contracted dimension.
Tile VectorOf(const ProductDims& dims, ProductSide side, const Shape& shape,
              absl::Span<const int64_t> index) {
  Tile tile = Tile::Whole(shape);
  for (size_t dim = 0; dim + 1 < dims.size(); ++dim) {
    const std::optional<size_t> own = dims[dim].On(side);
    if (own.has_value()) tile.ranges[*own] = {index[dim], index[dim] + 1};
  }
  // Dimensions of extent 1 that are broadcast are whole.
  return tile;
}

ContractedVector VectorOf(const BoundedTensor& tensor) { return {tensor.values, tensor.bounds}; }

}  // namespace

std::vector<int64_t> SampleIndices(int64_t total, int64_t count, uint64_t seed) {
  std::vector<int64_t> indices;
  if (count >= total) {
    for (int64_t i = 0; i < total; ++i) indices.push_back(i);
    return indices;
  }
  std::set<int64_t> chosen = {0};
  if (count > 1) chosen.insert(total - 1);
  std::mt19937_64 random(seed);
  while (static_cast<int64_t>(chosen.size()) < count) {
    chosen.insert(static_cast<int64_t>(random() % static_cast<uint64_t>(total)));
  }
  return {chosen.begin(), chosen.end()};
}

VerifiedResult CompareElements(std::string what, const BoundedTensor& elements,
                               const BoundedTensor& expected) {
  ElementComparison comparison(std::move(what));
  for (size_t i = 0; i < elements.size(); ++i) {
    comparison.Add(elements.values[i], {expected.values[i], expected.bound(i) + elements.bound(i)},
                   [&] { return IndexOf(static_cast<int64_t>(i), expected.shape); });
  }
  return std::move(comparison).Result();
}

absl::StatusOr<StepVerifier> StepVerifier::Create(MeshClient* client, const Program& program,
                                                  absl::Span<const Operand> operands,
                                                  const VerifyOptions& verify_options,
                                                  const CallOptions& options) {
  StepVerifier verifier;
  verifier.client_ = client;
  verifier.verify_options_ = verify_options;
  SHARDMESH_RETURN_IF_ERROR(verifier.Find(operands, options));
  SHARDMESH_ASSIGN_OR_RETURN(const Program fixed, ProgramOfTypes(program, verifier.types_));
  SHARDMESH_RETURN_IF_ERROR(verifier.Prepare(fixed, options));
  return verifier;
}

absl::StatusOr<StepVerifier> StepVerifier::CreateForLayer(MeshClient* client,
                                                          const LinearLayerCall& call,
                                                          const VerifyOptions& verify_options,
                                                          const CallOptions& options) {
  StepVerifier verifier;
  verifier.client_ = client;
  verifier.verify_options_ = verify_options;
  std::vector<Operand> operands;
  for (const Operand* const operand : call.operands()) operands.push_back(*operand);
  SHARDMESH_RETURN_IF_ERROR(verifier.Find(operands, options));
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, verifier.MeshOfStep(options));
  std::vector<ValueDescriptor> described;
  for (const KnownOperand& known : verifier.known_) described.push_back(known.described);
  LayerCall layer = call.layer;
  layer.options.layer.use_bias = !call.biases.empty();
  layer.options.has_scales = !call.scales.empty();
  SHARDMESH_ASSIGN_OR_RETURN(const Program program, ProgramOfLayer(layer, described, mesh));
  SHARDMESH_RETURN_IF_ERROR(verifier.Prepare(program, options));
  return verifier;
}

absl::Status StepVerifier::Find(absl::Span<const Operand> operands, const CallOptions& options) {
  for (const Operand& operand : operands) {
    SHARDMESH_ASSIGN_OR_RETURN(KnownOperand known, FindOperandOf(client_, operand, options));
    operands_.push_back(known.operand);
    types_.push_back({known.described.dtype, known.described.shape});
    known_.push_back(std::move(known));
  }
  return absl::OkStatus();
}

absl::StatusOr<Mesh> StepVerifier::MeshOfStep(const CallOptions& options) const {
  for (const KnownOperand& known : known_) {
    if (known.mesh.has_value()) return *known.mesh;
  }
  MeshQuestion question;
  const std::string& mesh_id = verify_options_.mesh_id;
  question.mesh = MeshSelector(mesh_id.empty() ? std::string("default") : mesh_id);
  SHARDMESH_ASSIGN_OR_RETURN(const MeshAnswer answer,
                             client_->layouts().DescribeMesh(question, options));
  return answer.mesh;
}

absl::Status StepVerifier::Prepare(const Program& program, const CallOptions& options) {
  program_ = program;
  if (const auto collective = OnlyCollectiveOf(program);
      collective.has_value() && collective->input < known_.size()) {
    return PrepareCollective(*collective, options);
  }
  SHARDMESH_ASSIGN_OR_RETURN(types_, TypesOfValues(program, types_));
  product_ = OnlyProductOf(program);
  // Rows of a donated operand cannot be got after the step.
  const bool is_donated = std::any_of(operands_.begin(), operands_.end(),
                                      [](const Operand& operand) { return operand.donate; });
  if (is_donated) product_.reset();
  if (product_.has_value()) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(CheckReferenceSize(program, types_));
  for (const KnownOperand& known : known_) {
    SHARDMESH_ASSIGN_OR_RETURN(elements_.emplace_back(), ElementsOf(client_, known, options));
  }
  return absl::OkStatus();
}

absl::Status StepVerifier::PrepareCollective(const CollectiveOp& op, const CallOptions& options) {
  const KnownOperand& known = known_[op.input];
  SHARDMESH_ASSIGN_OR_RETURN(Mesh mesh, MeshOfStep(options));
  SHARDMESH_RETURN_IF_ERROR(CheckCollectiveSize(op, mesh, known.described));
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<BoundedTensorPtr> sums,
                             PartialSumsOf(client_, known, options));
  input_ =
      LaidOutTensor{.mesh = std::move(mesh), .layout = known.described, .sums = std::move(sums)};
  collective_ = op;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<VerifiedResult>> StepVerifier::VerifyCollective(
    const StepResult& result, const CallOptions& options) const {
  const ArrayDescriptor& out = result.outputs.front().array.descriptor;
  LaidOutTensor input = input_;
  input.mesh = out.mesh;  // that of a literal is known now
  SHARDMESH_ASSIGN_OR_RETURN(LaidOutTensor expected, ReferenceCollective(*collective_, input));
  if (expected.layout.shape != out.shape || expected.layout.dtype != out.dtype) {
    return absl::DataLossError(
        StrCat("output 0 is ", DtypeName(out.dtype), " ", ShapeToString(out.shape),
               "; the collective of ", ShapeToString(input.layout.shape), " gives ",
               DtypeName(expected.layout.dtype), " ", ShapeToString(expected.layout.shape)));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<BoundedTensorPtr> sums,
                             PartialSumsOf(client_, KnownArray(out), options));
  std::vector<VerifiedResult> verified;
  if (sums.size() != expected.sums.size()) {
    // A change of layout after the collective has added up partial sums, or some of them.
    verified.push_back(CompareElements("output 0", *RoundedSumOf(sums), *SumOf(expected.sums)));
    return verified;
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    verified.push_back(
        CompareElements(sums.size() == 1 ? "output 0" : StrCat("partial sum ", i, " of output 0"),
                        *sums[i], *expected.sums[i]));
  }
  return verified;
}

absl::StatusOr<VerifiedResult> StepVerifier::VerifyProduct(const StepResult& result,
                                                           const CallOptions& options) const {
  const ReferenceProduct& product = *product_;
  const Shape& lhs_shape = types_[product.lhs].shape;
  const Shape& rhs_shape = types_[product.rhs].shape;
  SHARDMESH_ASSIGN_OR_RETURN(
      const ProductDims dims,
      ProductDimsOf(lhs_shape, product.transpose_lhs, rhs_shape, product.transpose_rhs));
  const ArrayDescriptor& out = result.outputs.front().array.descriptor;
  const bool is_contracted = dims.back().extent > 0;
  ProductEnd end = {.scale = product.scale, .activation = product.activation, .dtype = out.dtype};
  BoundedTensorPtr bias;
  if (product.bias.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(bias, ElementsOf(client_, known_[*product.bias], options));
  }
  BoundedTensorPtr scales;
  if (product.scales.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(scales, ElementsOf(client_, known_[*product.scales], options));
  }
  const int64_t columns = out.shape.back();
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t count, ElementCount(out.shape));
  const int64_t rows = columns == 0 ? 0 : count / columns;
  // About as many rows as columns, and more of one where there are few of the other.
  const auto divided = [](int64_t a, int64_t b) { return b == 0 ? 0 : (a + b - 1) / b; };
  const int64_t samples = std::max<int64_t>(verify_options_.samples, 1);
  const auto side = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(samples))));
  const int64_t sampled_columns = std::min(columns, divided(samples, std::min(rows, side)));
  const std::vector<int64_t> sampled =
      SampleIndices(rows, std::min(rows, divided(samples, sampled_columns)), verify_options_.seed);
  const std::vector<int64_t> column_indices =
      SampleIndices(columns, sampled_columns, verify_options_.seed + 1);

  const BoundedTensorPtr nothing = std::make_shared<const BoundedTensor>();
  // Columns of the right operand, by their tiles: as many as the memory for whole programs holds.
  std::map<std::string, BoundedTensorPtr> vectors;
  const auto most_vectors =
      static_cast<size_t>(kMaxReferenceElements / std::max<int64_t>(dims.back().extent, 1) + 1);
  const auto vector = [&](ProductSide of,
                          absl::Span<const int64_t> index) -> absl::StatusOr<BoundedTensorPtr> {
    const bool is_lhs = of == ProductSide::kLhs;
    if (!is_contracted) return nothing;
    const Tile tile = VectorOf(dims, of, is_lhs ? lhs_shape : rhs_shape, index);
    if (is_lhs) return ElementsOf(client_, known_[product.lhs], options, tile);
    if (vectors.size() >= most_vectors) vectors.clear();
    BoundedTensorPtr& known = vectors[tile.ToString()];
    if (known == nullptr) {
      SHARDMESH_ASSIGN_OR_RETURN(known, ElementsOf(client_, known_[product.rhs], options, tile));
    }
    return known;
  };
  ElementComparison comparison("output 0");
  for (const int64_t row : sampled) {
    std::vector<int64_t> index = IndexOf(row * columns, out.shape);
    Tile out_row = Tile::Whole(out.shape);
    for (size_t dim = 0; dim + 1 < index.size(); ++dim) {
      out_row.ranges[dim] = {index[dim], index[dim] + 1};
    }
    SHARDMESH_ASSIGN_OR_RETURN(const BoundedTensorPtr elements,
                               ResultElementsOf(client_, out, options, out_row));
    SHARDMESH_ASSIGN_OR_RETURN(const BoundedTensorPtr lhs, vector(ProductSide::kLhs, index));
    for (const int64_t column : column_indices) {
      index.back() = column;
      SHARDMESH_ASSIGN_OR_RETURN(const BoundedTensorPtr rhs, vector(ProductSide::kRhs, index));
      const auto place = static_cast<size_t>(column);
      BoundedNumber added;
      if (bias != nullptr) added = {bias->values[place], bias->bound(place)};
      if (scales != nullptr) end.factor = {scales->values[place], scales->bound(place)};
      BoundedNumber expected = ProductElement(VectorOf(*lhs), VectorOf(*rhs), added, end);
      expected.bound += elements->bound(place);
      comparison.Add(elements->values[place], expected, [&] { return index; });
    }
  }
  return std::move(comparison).Result();
}

absl::StatusOr<std::vector<VerifiedResult>> StepVerifier::Verify(const StepResult& result,
                                                                 const CallOptions& options) const {
  if (result.outputs.size() != program_.outputs.size()) {
    return absl::DataLossError(StrCat("the step has ", result.outputs.size(),
                                      " results, and its program has ", program_.outputs.size()));
  }
  if (collective_.has_value()) return VerifyCollective(result, options);
  for (size_t i = 0; i < program_.outputs.size(); ++i) {
    const ArrayDescriptor& have = result.outputs[i].array.descriptor;
    const TensorType& need = types_[program_.outputs[i]];
    if (have.dtype == need.dtype && have.shape == need.shape) continue;
    return absl::DataLossError(StrCat("output ", i, " is ", DtypeName(have.dtype), " ",
                                      ShapeToString(have.shape), "; the program gives ",
                                      DtypeName(need.dtype), " ", ShapeToString(need.shape)));
  }
  std::vector<VerifiedResult> verified;
  if (product_.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(verified.emplace_back(), VerifyProduct(result, options));
    return verified;
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<BoundedTensorPtr> values,
                             ReferenceValues(program_, types_, elements_));
  for (size_t i = 0; i < program_.outputs.size(); ++i) {
    SHARDMESH_ASSIGN_OR_RETURN(
        const BoundedTensorPtr elements,
        ResultElementsOf(client_, result.outputs[i].array.descriptor, options));
    verified.push_back(
        CompareElements(StrCat("output ", i), *elements, *values[program_.outputs[i]]));
  }
  for (const StateUpdate& update : program_.updates) {
    SHARDMESH_ASSIGN_OR_RETURN(const BoundedTensorPtr elements,
                               ElementsOf(client_, known_[update.operand], options));
    verified.push_back(CompareElements(StrCat("the new elements of operand ", update.operand),
                                       *elements, *values[update.value]));
  }
  return verified;
}

absl::Status CheckVerified(absl::Span<const VerifiedResult> results) {
  int64_t checked = 0;
  int64_t undetermined = 0;
  for (const VerifiedResult& result : results) {
    checked += result.checked;
    undetermined += result.undetermined;
  }
  if (checked == 0 && undetermined > 0) {
    return WithReason(absl::UnimplementedError(
                          StrCat("nothing was verified: no bound is known for the errors of ",
                                 undetermined, " elements, which are all that there are; ",
                                 "verify a smaller part of the program, such as one layer")),
                      Reason::kNotAvailable);
  }
  for (const VerifiedResult& result : results) {
    if (!result.first_outside.has_value()) continue;
    const VerifiedResult::Element& element = *result.first_outside;
    return absl::DataLossError(
        StrCat("element [", StrJoin(element.index, ", "), "] of ", result.what, " is ",
               element.element, "; a recomputation in F64 gives ", element.expected,
               ", and the bound of the error is ", element.bound, "; ", result.outside, " of ",
               result.checked, " compared elements are beyond their bounds"));
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::client
