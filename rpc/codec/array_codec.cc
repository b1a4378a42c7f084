// Decodes arrays and literals with their checks, and encodes them.
#include "rpc/codec/array_codec.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "rpc/codec/field_check.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

struct DtypeRow {
  Dtype dtype;
  v1::Dtype wire;
};

constexpr std::array kDtypes = {
    DtypeRow{Dtype::kBool, v1::DTYPE_BOOL},      DtypeRow{Dtype::kU8, v1::DTYPE_U8},
    DtypeRow{Dtype::kI8, v1::DTYPE_I8},          DtypeRow{Dtype::kU16, v1::DTYPE_U16},
    DtypeRow{Dtype::kI16, v1::DTYPE_I16},        DtypeRow{Dtype::kU32, v1::DTYPE_U32},
    DtypeRow{Dtype::kI32, v1::DTYPE_I32},        DtypeRow{Dtype::kU64, v1::DTYPE_U64},
    DtypeRow{Dtype::kI64, v1::DTYPE_I64},        DtypeRow{Dtype::kF16, v1::DTYPE_F16},
    DtypeRow{Dtype::kBF16, v1::DTYPE_BF16},      DtypeRow{Dtype::kF32, v1::DTYPE_F32},
    DtypeRow{Dtype::kF64, v1::DTYPE_F64},        DtypeRow{Dtype::kF8E4M3Fn, v1::DTYPE_F8_E4M3FN},
    DtypeRow{Dtype::kF8E5M2, v1::DTYPE_F8_E5M2}, DtypeRow{Dtype::kF8E8M0Fnu, v1::DTYPE_F8_E8M0FNU},
    DtypeRow{Dtype::kC64, v1::DTYPE_C64},        DtypeRow{Dtype::kF4, v1::DTYPE_F4},
    DtypeRow{Dtype::kF6E2M3, v1::DTYPE_F6_E2M3}, DtypeRow{Dtype::kF6E3M2, v1::DTYPE_F6_E3M2},
};

void EncodeHead(const Literal& from, v1::Literal* to) {
  to->set_dtype(Encode(from.dtype));
  Encode(from.shape, to->mutable_shape());
}

// Decodes all fields except the literal's bytes, and checks the number of these bytes.
absl::StatusOr<Literal> DecodeHead(const v1::Literal& from) {
  Literal literal;
  auto dtype = Decode(from.dtype());
  if (!dtype.ok()) {
    return WithField(std::move(dtype).status(), "dtype");
  }
  literal.dtype = *dtype;
  auto shape = DecodeShape(from.shape());
  if (!shape.ok()) {
    return WithField(std::move(shape).status(), "shape");
  }
  literal.shape = *std::move(shape);
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(literal.shape));
  auto need = PackedSizeBytes(literal.dtype, elements);
  if (!need.ok()) {
    return WithField(std::move(need).status(), "shape");
  }
  const auto have = static_cast<int64_t>(from.data().size());
  if (have > kMaxLiteralBytes || *need > kMaxLiteralBytes) {
    return WithField(
        InvalidArgument(Reason::kLimitExceeded,
                        StrCat("a literal of ", std::max(have, *need), " bytes; at most ",
                               kMaxLiteralBytes, " travel inline, put it as an array instead"),
                        {{fact::kHave, std::max(have, *need)}, {fact::kLimit, kMaxLiteralBytes}}),
        "data");
  }
  if (have != *need) {
    return BadField("data", StrCat("the literal has ", have, " bytes; ", DtypeName(literal.dtype),
                                   " of shape ", ShapeToString(literal.shape), " needs ", *need));
  }
  return literal;
}

}  // namespace

v1::Dtype Encode(Dtype dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (row.dtype == dtype) {
      return row.wire;
    }
  }
  return v1::DTYPE_UNSPECIFIED;
}

absl::StatusOr<Dtype> Decode(v1::Dtype dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (row.wire == dtype) {
      return row.dtype;
    }
  }
  return InvalidArgument(
      Reason::kUnknownDtype,
      dtype == v1::DTYPE_UNSPECIFIED
          ? std::string("no element type is set")
          : StrCat("element type ", static_cast<int>(dtype), " is not known"),
      {{fact::kDtype,
        dtype == v1::DTYPE_UNSPECIFIED ? std::string() : StrCat(static_cast<int>(dtype))}});
}

void Encode(const ArrayDescriptor& from, v1::ArrayDescriptor* to) {
  to->set_array_id(from.array_id);
  to->set_dtype(Encode(from.dtype));
  Encode(from.shape, to->mutable_shape());
  Encode(from.spec, to->mutable_spec());
  to->set_mesh_id(from.mesh_id);
  to->set_mesh_revision(from.mesh_revision);
  Encode(from.mesh, to->mutable_mesh());
  Encode(from.cut_points, to->mutable_cut_points());
}

absl::StatusOr<ArrayDescriptor> Decode(const v1::ArrayDescriptor& from) {
  SHARDMESH_RETURN_IF_ERROR(CheckArrayId(from.array_id(), "array_id"));
  SHARDMESH_RETURN_IF_ERROR(CheckEntryName(from.mesh_id(), "mesh_id"));
  ArrayDescriptor array;
  array.array_id = from.array_id();
  array.mesh_id = from.mesh_id();
  array.mesh_revision = from.mesh_revision();
  auto dtype = Decode(from.dtype());
  if (!dtype.ok()) {
    return WithField(std::move(dtype).status(), "dtype");
  }
  array.dtype = *dtype;
  auto shape = DecodeShape(from.shape());
  if (!shape.ok()) {
    return WithField(std::move(shape).status(), "shape");
  }
  array.shape = *std::move(shape);
  auto spec = Decode(from.spec());
  if (!spec.ok()) {
    return WithField(std::move(spec).status(), "spec");
  }
  array.spec = *std::move(spec);
  auto mesh = Decode(from.mesh());
  if (!mesh.ok()) {
    return WithField(std::move(mesh).status(), "mesh");
  }
  array.mesh = *std::move(mesh);
  if (array.mesh.empty()) {
    return BadField("mesh", "an array lies on a mesh, and this one names no axes");
  }
  SHARDMESH_ASSIGN_OR_RETURN(array.cut_points, DecodeCutPoints(from.cut_points(), array.shape));
  if (auto tiling = array.Tiling(); !tiling.ok()) {
    const bool cuts = ReasonOf(tiling.status()) == Reason::kInvalidCutPoints;
    return WithField(std::move(tiling).status(), cuts ? "cut_points" : "spec");
  }
  if (auto size = array.SizeBytes(); !size.ok()) {
    return WithField(std::move(size).status(), "shape");
  }
  return array;
}

std::string ArrayDescriptorBytes(const ArrayDescriptor& array) {
  v1::ArrayDescriptor message;
  Encode(array, &message);
  return message.SerializeAsString();
}

absl::StatusOr<ArrayDescriptor> ParseArrayDescriptorBytes(std::string_view bytes) {
  v1::ArrayDescriptor message;
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return BadField("array_descriptor",
                    StrCat("the ", bytes.size(), " bytes are no v1.ArrayDescriptor"));
  }
  return Decode(message);
}

void Encode(const Literal& from, v1::Literal* to) {
  EncodeHead(from, to);
  to->set_data(from.bytes);
}

void Encode(Literal&& from, v1::Literal* to) {
  EncodeHead(from, to);
  to->set_data(std::move(from.bytes));
}

absl::StatusOr<Literal> Decode(const v1::Literal& from) {
  SHARDMESH_ASSIGN_OR_RETURN(Literal literal, DecodeHead(from));
  literal.bytes = from.data();
  return literal;
}

absl::StatusOr<Literal> Decode(v1::Literal&& from) {
  SHARDMESH_ASSIGN_OR_RETURN(Literal literal, DecodeHead(from));
  literal.bytes = std::move(*from.mutable_data());
  return literal;
}

}  // namespace shardmesh::rpc
