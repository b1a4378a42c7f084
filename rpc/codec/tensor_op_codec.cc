// Decodes ops on tensors with their checks, and encodes them.
#include "rpc/codec/tensor_op_codec.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "google/protobuf/repeated_field.h"
#include "program/graph/symbolic_program.h"
#include "program/program.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/enum_codec.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/plan_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "sharding/shape.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

static_assert(static_cast<int>(MapFunction::kSilu) + 1 == v1::MAP_FUNCTION_SILU);
static_assert(static_cast<int>(NormKind::kL2) + 1 == v1::NORM_KIND_L2);

absl::Status ExceedsLimit(std::string_view field, int64_t have, int64_t limit,
                          std::string_view what) {
  return WithField(InvalidArgument(Reason::kLimitExceeded,
                                   StrCat(have, " ", what, "; at most ", limit, " are allowed"),
                                   {{fact::kHave, have}, {fact::kLimit, limit}}),
                   field);
}

// Requires at most kMaxRank dimensions.
template <typename Repeated>
absl::StatusOr<std::vector<int64_t>> DecodeDimensions(const Repeated& from,
                                                      std::string_view field) {
  if (from.size() > kMaxRank) return ExceedsLimit(field, from.size(), kMaxRank, "dimensions");
  return std::vector<int64_t>(from.begin(), from.end());
}

template <typename Repeated>
absl::StatusOr<std::vector<ValueIndex>> DecodeInputs(const Repeated& from) {
  if (from.size() > static_cast<int>(kMaxProgramSize)) {
    return ExceedsLimit("inputs", from.size(), kMaxProgramSize, "inputs");
  }
  return std::vector<ValueIndex>(from.begin(), from.end());
}

template <typename Repeated>
void AddDimensions(absl::Span<const int64_t> from, Repeated* to) {
  for (const int64_t dimension : from) to->Add(static_cast<int32_t>(dimension));
}

using RepeatedNumbers = google::protobuf::RepeatedPtrField<v1::SymbolicNumber>;

void AddNumbers(absl::Span<const SymbolicNumber> from, RepeatedNumbers* to) {
  for (const SymbolicNumber& number : from) Encode(number, to->Add());
}

// Requires numbers that replace different entries of a list of `size` entries.
absl::StatusOr<std::vector<SymbolicNumber>> DecodeNumbers(const RepeatedNumbers& from, size_t size,
                                                          std::string_view field) {
  std::vector<SymbolicNumber> numbers;
  for (const v1::SymbolicNumber& number : from) numbers.push_back(Decode(number));
  absl::Status error = CheckSymbolicNumbers(numbers, size);
  if (!error.ok()) return WithField(std::move(error), field);
  return numbers;
}

bool HasIndex(absl::Span<const SymbolicNumber> numbers, size_t index) {
  return std::any_of(numbers.begin(), numbers.end(), [index](const SymbolicNumber& number) {
    return number.index == static_cast<int64_t>(index);
  });
}

// --- Each function below encodes or decodes one kind of op.

void EncodeTo(const MapOp& from, v1::TensorOp* to) {
  v1::MapOp* const map = to->mutable_map();
  map->set_function(Encode(from.function));
  map->mutable_inputs()->Add(from.inputs.begin(), from.inputs.end());
}

absl::StatusOr<TensorOp> DecodeFrom(const v1::MapOp& from) {
  MapOp op;
  SHARDMESH_ASSIGN_OR_RETURN(op.function, Decode(from.function()));
  const size_t count = InputCountOf(op.function);
  if (from.inputs_size() != static_cast<int>(count)) {
    return BadField("inputs", StrCat(from.inputs_size(), " inputs; ", MapFunctionName(op.function),
                                     " has ", count));
  }
  op.inputs.assign(from.inputs().begin(), from.inputs().end());
  return op;
}

void EncodeTo(const ConvertOp& from, v1::TensorOp* to) {
  to->mutable_convert()->set_input(from.input);
  to->mutable_convert()->set_dtype(Encode(from.dtype));
}

absl::StatusOr<TensorOp> DecodeFrom(const v1::ConvertOp& from) {
  const absl::StatusOr<Dtype> dtype = Decode(from.dtype());
  if (!dtype.ok()) return WithField(dtype.status(), "dtype");
  return ConvertOp{.input = from.input(), .dtype = *dtype};
}

void EncodeTo(const NormOp& from, v1::TensorOp* to) {
  v1::NormOp* const norm = to->mutable_norm();
  norm->set_kind(Encode(from.kind));
  norm->set_input(from.input);
  if (from.weight.has_value()) norm->set_weight(*from.weight);
  if (from.bias.has_value()) norm->set_bias(*from.bias);
  norm->set_epsilon(from.epsilon);
}

absl::StatusOr<TensorOp> DecodeFrom(const v1::NormOp& from) {
  NormOp op = {.input = from.input(), .epsilon = from.epsilon()};
  SHARDMESH_ASSIGN_OR_RETURN(op.kind, Decode(from.kind()));
  if (from.has_weight()) op.weight = from.weight();
  if (from.has_bias()) op.bias = from.bias();
  SHARDMESH_RETURN_IF_ERROR(CheckFinite(op.epsilon, "epsilon"));
  if (op.epsilon < 0) {
    return BadField("epsilon", StrCat("epsilon ", op.epsilon, " is negative; it is at least 0"));
  }
  return op;
}

void EncodeTo(const SoftmaxOp& from, v1::TensorOp* to) {
  v1::SoftmaxOp* const softmax = to->mutable_softmax();
  softmax->set_input(from.input);
  if (from.mask.has_value()) softmax->set_mask(*from.mask);
  softmax->set_scale(from.scale);
}

absl::StatusOr<TensorOp> DecodeFrom(const v1::SoftmaxOp& from) {
  SoftmaxOp op = {.input = from.input(), .scale = from.has_scale() ? from.scale() : 1};
  if (from.has_mask()) op.mask = from.mask();
  SHARDMESH_RETURN_IF_ERROR(CheckFinite(op.scale, "scale"));
  return op;
}

void EncodeTo(const ReduceOp& from, v1::TensorOp* to) {
  v1::ReduceOp* const reduce = to->mutable_reduce();
  reduce->set_input(from.input);
  reduce->set_reduction(Encode(from.reduction));
  AddDimensions(from.dimensions, reduce->mutable_dimensions());
  reduce->set_keep_dimensions(from.keeps_dimensions);
}

absl::StatusOr<TensorOp> DecodeFrom(const v1::ReduceOp& from) {
  ReduceOp op = {
      .input = from.input(), .dimensions = {}, .keeps_dimensions = from.keep_dimensions()};
  SHARDMESH_ASSIGN_OR_RETURN(op.reduction, Decode(from.reduction()));
  SHARDMESH_ASSIGN_OR_RETURN(op.dimensions, DecodeDimensions(from.dimensions(), "dimensions"));
  if (op.dimensions.empty()) return BadField("dimensions", "a reduction needs a dimension");
  for (int i = 0; i < from.dimensions_size(); ++i) {
    SHARDMESH_RETURN_IF_ERROR(
        CheckDimension(from.dimensions(i), StrCat("dimensions[", i, "]")).status());
    if (i > 0 && from.dimensions(i) <= from.dimensions(i - 1)) {
      return BadField("dimensions", StrCat("dimension ", from.dimensions(i), " follows ",
                                           from.dimensions(i - 1), "; dimensions must rise"));
    }
  }
  return op;
}

void EncodeTo(const RotaryOp& from, v1::TensorOp* to) {
  v1::RotaryOp* const rotary = to->mutable_rotary();
  rotary->set_input(from.input);
  rotary->set_positions(from.positions);
  rotary->set_frequencies(from.frequencies);
  rotary->set_interleaved(from.is_interleaved);
}

absl::StatusOr<TensorOp> DecodeFrom(const v1::RotaryOp& from) {
  return RotaryOp{.input = from.input(),
                  .positions = from.positions(),
                  .frequencies = from.frequencies(),
                  .is_interleaved = from.interleaved()};
}

void EncodeTo(const EmbeddingOp& from, v1::TensorOp* to) {
  to->mutable_embedding()->set_table(from.table);
  to->mutable_embedding()->set_ids(from.ids);
}

absl::StatusOr<TensorOp> DecodeFrom(const v1::EmbeddingOp& from) {
  return EmbeddingOp{.table = from.table(), .ids = from.ids()};
}

void EncodeTo(const AttentionOp& from, v1::TensorOp* to) {
  v1::AttentionOp* const attention = to->mutable_attention();
  attention->set_query(from.query);
  attention->set_keys(from.keys);
  attention->set_values(from.values);
  if (from.positions.has_value()) attention->set_positions(*from.positions);
  if (from.mask.has_value()) attention->set_mask(*from.mask);
  attention->set_scale(from.scale);
}

absl::StatusOr<TensorOp> DecodeFrom(const v1::AttentionOp& from) {
  AttentionOp op = {.query = from.query(),
                    .keys = from.keys(),
                    .values = from.values(),
                    .scale = from.has_scale() ? from.scale() : 1};
  if (from.has_positions()) op.positions = from.positions();
  if (from.has_mask()) op.mask = from.mask();
  SHARDMESH_RETURN_IF_ERROR(CheckFinite(op.scale, "scale"));
  return op;
}

void EncodeTo(const TopKOp& from, v1::TensorOp* to) {
  v1::TopKOp* const top_k = to->mutable_top_k();
  top_k->set_input(from.input);
  top_k->set_count(from.count);
  top_k->set_indices(from.gives_indices);
  top_k->set_drop_dimension(from.drops_dimension);
}

absl::StatusOr<TensorOp> DecodeFrom(const v1::TopKOp& from) {
  if (from.count() < 1) {
    return BadField("count", StrCat("count ", from.count(), "; it is at least 1"));
  }
  if (from.drop_dimension() && from.count() != 1) {
    return BadField("drop_dimension", StrCat("is set with count ", from.count(),
                                             "; only a result of count 1 can lack the dimension"));
  }
  return TopKOp{.input = from.input(),
                .count = from.count(),
                .gives_indices = from.indices(),
                .drops_dimension = from.drop_dimension()};
}

void EncodeTo(const ReshapeOp& from, v1::TensorOp* to) {
  to->mutable_reshape()->set_input(from.input);
  Encode(from.shape, to->mutable_reshape()->mutable_shape());
  AddNumbers(from.symbolic_shape, to->mutable_reshape()->mutable_symbolic_shape());
}

absl::StatusOr<TensorOp> DecodeFrom(const v1::ReshapeOp& from) {
  absl::StatusOr<Shape> shape = DecodeShape(from.shape());
  if (!shape.ok()) return WithField(std::move(shape).status(), "shape");
  ReshapeOp op = {.input = from.input(), .shape = *std::move(shape)};
  SHARDMESH_ASSIGN_OR_RETURN(
      op.symbolic_shape, DecodeNumbers(from.symbolic_shape(), op.shape.size(), "symbolic_shape"));
  return op;
}

void EncodeTo(const TransposeOp& from, v1::TensorOp* to) {
  to->mutable_transpose()->set_input(from.input);
  AddDimensions(from.permutation, to->mutable_transpose()->mutable_permutation());
}

absl::StatusOr<TensorOp> DecodeFrom(const v1::TransposeOp& from) {
  TransposeOp op = {.input = from.input(), .permutation = {}};
  SHARDMESH_ASSIGN_OR_RETURN(op.permutation, DecodeDimensions(from.permutation(), "permutation"));
  std::vector<bool> has(op.permutation.size(), false);
  for (const int64_t dimension : op.permutation) {
    const bool is_new = dimension >= 0 && dimension < static_cast<int64_t>(has.size()) &&
                        !has[static_cast<size_t>(dimension)];
    if (!is_new) {
      return BadField("permutation", StrCat("[", StrJoin(op.permutation, ","),
                                            "] does not have each dimension from 0 to ",
                                            static_cast<int64_t>(has.size()) - 1, " once"));
    }
    has[static_cast<size_t>(dimension)] = true;
  }
  return op;
}

void EncodeTo(const SliceOp& from, v1::TensorOp* to) {
  v1::SliceOp* const slice = to->mutable_slice();
  slice->set_input(from.input);
  slice->mutable_starts()->Add(from.starts.begin(), from.starts.end());
  slice->mutable_limits()->Add(from.limits.begin(), from.limits.end());
  slice->mutable_steps()->Add(from.steps.begin(), from.steps.end());
  AddNumbers(from.symbolic_starts, slice->mutable_symbolic_starts());
  AddNumbers(from.symbolic_limits, slice->mutable_symbolic_limits());
}

absl::StatusOr<TensorOp> DecodeFrom(const v1::SliceOp& from) {
  SliceOp op = {.input = from.input(), .starts = {}, .limits = {}};
  SHARDMESH_ASSIGN_OR_RETURN(op.starts, DecodeDimensions(from.starts(), "starts"));
  SHARDMESH_ASSIGN_OR_RETURN(op.limits, DecodeDimensions(from.limits(), "limits"));
  SHARDMESH_ASSIGN_OR_RETURN(op.steps, DecodeDimensions(from.steps(), "steps"));
  if (op.limits.size() != op.starts.size()) {
    return BadField("limits", StrCat(op.limits.size(), " limits and ", op.starts.size(),
                                     " starts; each dimension has one of both"));
  }
  if (!op.steps.empty() && op.steps.size() != op.starts.size()) {
    return BadField("steps", StrCat(op.steps.size(), " steps and ", op.starts.size(),
                                    " starts; give one for each dimension, or none"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(
      op.symbolic_starts,
      DecodeNumbers(from.symbolic_starts(), op.starts.size(), "symbolic_starts"));
  SHARDMESH_ASSIGN_OR_RETURN(
      op.symbolic_limits,
      DecodeNumbers(from.symbolic_limits(), op.limits.size(), "symbolic_limits"));
  for (size_t dim = 0; dim < op.starts.size(); ++dim) {
    const bool has_symbolic_start = HasIndex(op.symbolic_starts, dim);
    if (op.starts[dim] < 0 && !has_symbolic_start) {
      return BadField(StrCat("starts[", dim, "]"),
                      StrCat("start ", op.starts[dim], " is negative"));
    }
    if (op.limits[dim] < op.starts[dim] && !has_symbolic_start &&
        !HasIndex(op.symbolic_limits, dim)) {
      return BadField(StrCat("limits[", dim, "]"),
                      StrCat("limit ", op.limits[dim], " is below the start ", op.starts[dim]));
    }
    if (!op.steps.empty() && op.steps[dim] < 1) {
      return BadField(StrCat("steps[", dim, "]"),
                      StrCat("step ", op.steps[dim], "; it is at least 1"));
    }
  }
  return op;
}

void EncodeTo(const ConcatenateOp& from, v1::TensorOp* to) {
  v1::ConcatenateOp* const concatenate = to->mutable_concatenate();
  concatenate->mutable_inputs()->Add(from.inputs.begin(), from.inputs.end());
  concatenate->set_dimension(static_cast<int32_t>(from.dimension));
}

absl::StatusOr<TensorOp> DecodeFrom(const v1::ConcatenateOp& from) {
  ConcatenateOp op;
  SHARDMESH_ASSIGN_OR_RETURN(op.inputs, DecodeInputs(from.inputs()));
  if (op.inputs.empty()) return BadField("inputs", "nothing to join; give at least one input");
  SHARDMESH_ASSIGN_OR_RETURN(op.dimension, CheckDimension(from.dimension(), "dimension"));
  return op;
}

void EncodeTo(const UpdateRowsOp& from, v1::TensorOp* to) {
  v1::UpdateRowsOp* const update = to->mutable_update_rows();
  update->set_input(from.input);
  update->set_update(from.update);
  update->set_positions(from.positions);
}

absl::StatusOr<TensorOp> DecodeFrom(const v1::UpdateRowsOp& from) {
  return UpdateRowsOp{
      .input = from.input(), .update = from.update(), .positions = from.positions()};
}

void EncodeTo(const ConstantOp& from, v1::TensorOp* to) {
  Encode(from.value, to->mutable_constant()->mutable_value());
}

absl::StatusOr<TensorOp> DecodeFrom(const v1::ConstantOp& from) {
  const auto size_bytes = static_cast<int64_t>(from.value().data().size());
  if (size_bytes > kMaxConstantBytes) {
    return ExceedsLimit("value", size_bytes, kMaxConstantBytes,
                        "bytes in a constant, instead of in an operand");
  }
  absl::StatusOr<Literal> value = Decode(from.value());
  if (!value.ok()) return WithField(std::move(value).status(), "value");
  return ConstantOp{*std::move(value)};
}

}  // namespace

void Encode(const SymbolicNumber& from, v1::SymbolicNumber* to) {
  to->set_index(static_cast<int32_t>(from.index));
  to->set_factor(from.factor);
  to->set_offset(from.offset);
}

SymbolicNumber Decode(const v1::SymbolicNumber& from) {
  return {.index = from.index(),
          .factor = from.has_factor() ? from.factor() : 1,
          .offset = from.offset()};
}

v1::MapFunction Encode(MapFunction from) { return EncodeEnum<v1::MapFunction>(from); }

absl::StatusOr<MapFunction> Decode(v1::MapFunction from) {
  return DecodeEnum<MapFunction>(from, v1::MapFunction_IsValid(from), "function");
}

v1::NormKind Encode(NormKind from) { return EncodeEnum<v1::NormKind>(from); }

absl::StatusOr<NormKind> Decode(v1::NormKind from) {
  return DecodeEnum<NormKind>(from, v1::NormKind_IsValid(from), "kind");
}

void Encode(const TensorOp& from, v1::TensorOp* to) {
  std::visit([to](const auto& kind) { EncodeTo(kind, to); }, from);
}

absl::StatusOr<TensorOp> Decode(const v1::TensorOp& from) {
  const auto at = [](std::string_view field, absl::StatusOr<TensorOp> op) {
    return op.ok() ? std::move(op) : WithField(std::move(op).status(), field);
  };
  switch (from.op_case()) {
    case v1::TensorOp::kMap:
      return at("map", DecodeFrom(from.map()));
    case v1::TensorOp::kConvert:
      return at("convert", DecodeFrom(from.convert()));
    case v1::TensorOp::kNorm:
      return at("norm", DecodeFrom(from.norm()));
    case v1::TensorOp::kSoftmax:
      return at("softmax", DecodeFrom(from.softmax()));
    case v1::TensorOp::kReduce:
      return at("reduce", DecodeFrom(from.reduce()));
    case v1::TensorOp::kRotary:
      return at("rotary", DecodeFrom(from.rotary()));
    case v1::TensorOp::kEmbedding:
      return at("embedding", DecodeFrom(from.embedding()));
    case v1::TensorOp::kAttention:
      return at("attention", DecodeFrom(from.attention()));
    case v1::TensorOp::kTopK:
      return at("top_k", DecodeFrom(from.top_k()));
    case v1::TensorOp::kReshape:
      return at("reshape", DecodeFrom(from.reshape()));
    case v1::TensorOp::kTranspose:
      return at("transpose", DecodeFrom(from.transpose()));
    case v1::TensorOp::kSlice:
      return at("slice", DecodeFrom(from.slice()));
    case v1::TensorOp::kConcatenate:
      return at("concatenate", DecodeFrom(from.concatenate()));
    case v1::TensorOp::kUpdateRows:
      return at("update_rows", DecodeFrom(from.update_rows()));
    case v1::TensorOp::kConstant:
      return at("constant", DecodeFrom(from.constant()));
    case v1::TensorOp::OP_NOT_SET:
      break;
  }
  return BadField("op", "an op on tensors is empty, or of a newer build; set one case of TensorOp");
}

}  // namespace shardmesh::rpc
