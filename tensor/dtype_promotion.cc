// JAX's lattice of element types.
#include "tensor/dtype_promotion.h"

#include <algorithm>
#include <string>
#include <vector>

#include "sharding/axis_value.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// Families of types. Within a family, except kNarrowFloat, a type promotes to the wider types.
enum class Family {
  kBool,
  kUnsigned,
  kSigned,
  kNarrowFloat,  // of at most 8 bits: promotes only to itself
  kFloat,
  kComplex,
  kForeign,  // not a JAX type
};

Family FamilyOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBool:
      return Family::kBool;
    case Dtype::kU8:
    case Dtype::kU16:
    case Dtype::kU32:
    case Dtype::kU64:
      return Family::kUnsigned;
    case Dtype::kI8:
    case Dtype::kI16:
    case Dtype::kI32:
    case Dtype::kI64:
      return Family::kSigned;
    case Dtype::kF4:
    case Dtype::kF8E5M2:
    case Dtype::kF8E4M3Fn:
    case Dtype::kF8E8M0Fnu:
      return Family::kNarrowFloat;
    case Dtype::kF16:
    case Dtype::kBF16:
    case Dtype::kF32:
    case Dtype::kF64:
      return Family::kFloat;
    case Dtype::kC64:
      return Family::kComplex;
    case Dtype::kF6E2M3:
    case Dtype::kF6E3M2:
      break;
  }
  return Family::kForeign;
}

absl::Status Unsupported(Dtype dtype, std::string_view message, std::string_view python_type) {
  return InvalidArgument(Reason::kUnsupportedDtype, message,
                         {{fact::kDtype, NumpyDtypeName(dtype)}}, python_type);
}

absl::Status Foreign(Dtype dtype) {
  return Unsupported(
      dtype, StrCat(NumpyDtypeName(dtype), " is no element type of JAX; convert the array first"),
      "TypeError");
}

Dtype SignedOfBits(int bits) {
  switch (bits) {
    case 8:
      return Dtype::kI8;
    case 16:
      return Dtype::kI16;
    default:
      // The next type in JAX's lattice is int64, whose CanonicalDtype is int32.
      return Dtype::kI32;
  }
}

// Returns the least type to which both types promote. Requires two canonical types, each bool or
// integer.
Dtype CommonInteger(Dtype a, Dtype b) {
  if (FamilyOf(a) == Family::kBool) return b;
  if (FamilyOf(b) == Family::kBool) return a;
  const bool a_is_wider = BitsPerElement(a) >= BitsPerElement(b);
  if (FamilyOf(a) == FamilyOf(b)) return a_is_wider ? a : b;
  const Dtype without_sign = FamilyOf(a) == Family::kUnsigned ? a : b;
  const Dtype with_sign = FamilyOf(a) == Family::kUnsigned ? b : a;
  return SignedOfBits(std::max(2 * BitsPerElement(without_sign), BitsPerElement(with_sign)));
}

// Returns the least type to which both types promote. Requires two canonical inexact types.
// UNSUPPORTED_DTYPE if the types differ and one is a kNarrowFloat.
absl::StatusOr<Dtype> CommonInexact(Dtype a, Dtype b) {
  if (a == b) return a;
  for (const Dtype narrow : {a, b}) {
    if (FamilyOf(narrow) == Family::kNarrowFloat) {
      return Unsupported(narrow,
                         StrCat(NumpyDtypeName(a), " and ", NumpyDtypeName(b),
                                " have no common element type, as ", NumpyDtypeName(narrow),
                                " converts to no other by itself; convert one of the arrays, or "
                                "give the dtype"),
                         "TypePromotionError");
    }
  }
  if (FamilyOf(a) == Family::kComplex || FamilyOf(b) == Family::kComplex) return Dtype::kC64;
  return Dtype::kF32;
}

}  // namespace

std::string_view NumpyDtypeName(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBool:
      return "bool";
    case Dtype::kF4:
      return "float4_e2m1fn";
    case Dtype::kF6E2M3:
      return "float6_e2m3fn";
    case Dtype::kF6E3M2:
      return "float6_e3m2fn";
    case Dtype::kU8:
      return "uint8";
    case Dtype::kI8:
      return "int8";
    case Dtype::kF8E5M2:
      return "float8_e5m2";
    case Dtype::kF8E4M3Fn:
      return "float8_e4m3fn";
    case Dtype::kF8E8M0Fnu:
      return "float8_e8m0fnu";
    case Dtype::kI16:
      return "int16";
    case Dtype::kU16:
      return "uint16";
    case Dtype::kF16:
      return "float16";
    case Dtype::kBF16:
      return "bfloat16";
    case Dtype::kI32:
      return "int32";
    case Dtype::kU32:
      return "uint32";
    case Dtype::kF32:
      return "float32";
    case Dtype::kC64:
      return "complex64";
    case Dtype::kF64:
      return "float64";
    case Dtype::kI64:
      return "int64";
    case Dtype::kU64:
      return "uint64";
  }
  return "";
}

absl::StatusOr<Dtype> ParseNumpyDtype(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Dtype dtype : AllDtypes()) {
    if (NumpyDtypeName(dtype) == name) return dtype;
    known.push_back(NumpyDtypeName(dtype));
  }
  return InvalidArgument(
      Reason::kUnknownDtype,
      StrCat(PythonRepr(name), " is no element type", DidYouMean(name, known), "; there are ",
             StrJoin(known, ", ")),
      {{fact::kDtype, name}, {fact::kNearest, NearestName(name, known).value_or("")}}, "TypeError");
}

absl::StatusOr<Dtype> ParseDtypeOfAnyForm(std::string_view name) {
  // A tree can contain a million names. Build the list of known names only for an unknown name.
  for (const Dtype dtype : AllDtypes()) {
    if (name == DtypeName(dtype) || name == NumpyDtypeName(dtype)) return dtype;
  }
  std::vector<std::string_view> known;
  std::vector<std::string> pairs;
  for (const Dtype dtype : AllDtypes()) {
    known.push_back(DtypeName(dtype));
    known.push_back(NumpyDtypeName(dtype));
    pairs.push_back(StrCat(DtypeName(dtype), " (", NumpyDtypeName(dtype), ")"));
  }
  // Python's `float` has 64 bits, and PyTorch's 32: the name means no single type.
  if (name == "float") {
    return InvalidArgument(Reason::kUnknownDtype,
                           "\"float\" is not an element type; write \"float32\" or \"float64\"",
                           {{fact::kDtype, name}});
  }
  return InvalidArgument(
      Reason::kUnknownDtype,
      StrCat("\"", name, "\" is not an element type; the known ones, with their NumPy names, are ",
             StrJoin(pairs, ", "), DidYouMean(name, known)),
      {{fact::kDtype, name}, {fact::kNearest, NearestName(name, known).value_or("")}});
}

bool IsInexact(Dtype dtype) {
  switch (FamilyOf(dtype)) {
    case Family::kNarrowFloat:
    case Family::kFloat:
    case Family::kComplex:
      return true;
    case Family::kBool:
    case Family::kUnsigned:
    case Family::kSigned:
    case Family::kForeign:
      break;
  }
  return false;
}

Dtype CanonicalDtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
      return Dtype::kF32;
    case Dtype::kI64:
      return Dtype::kI32;
    case Dtype::kU64:
      return Dtype::kU32;
    default:
      return dtype;
  }
}

absl::StatusOr<Dtype> ResultDtype(absl::Span<const Dtype> dtypes) {
  if (dtypes.empty()) {
    return InvalidArgument(Reason::kMissingArgument,
                           "no element types are given to combine; give at least one",
                           {{fact::kField, "dtypes"}});
  }
  std::optional<Dtype> integer;
  std::optional<Dtype> inexact;
  for (const Dtype given : dtypes) {
    if (FamilyOf(given) == Family::kForeign) return Foreign(given);
  }
  for (const Dtype given : dtypes) {
    const Dtype dtype = CanonicalDtype(given);
    if (!IsInexact(dtype)) {
      integer = integer.has_value() ? CommonInteger(*integer, dtype) : dtype;
    } else if (inexact.has_value()) {
      SHARDMESH_ASSIGN_OR_RETURN(inexact, CommonInexact(*inexact, dtype));
    } else {
      inexact = dtype;
    }
  }
  return inexact.has_value() ? *inexact : *integer;
}

absl::StatusOr<Dtype> PromoteDtype(absl::Span<const Dtype> arrays, std::optional<Dtype> dtype) {
  if (dtype.has_value()) {
    if (!IsInexact(*dtype)) {
      return Unsupported(*dtype,
                         StrCat("the dtype must hold fractions, and ", NumpyDtypeName(*dtype),
                                " does not; give one such as float32"),
                         "ValueError");
    }
    return CanonicalDtype(*dtype);
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Dtype common, ResultDtype(arrays));
  return IsInexact(common) ? common : Dtype::kF32;
}

absl::StatusOr<Dtype> ParameterDtype(Dtype dtype) {
  if (FamilyOf(dtype) == Family::kForeign) return Foreign(dtype);
  // The Python originals draw initial weights at random, and cannot do so in a type whose elements
  // are smaller than a byte.
  if (dtype == Dtype::kF4) {
    return Unsupported(dtype, "float4_e2m1fn is too narrow to draw weights in; give a wider dtype",
                       "TypeError");
  }
  if (!IsInexact(dtype)) {
    return Unsupported(dtype,
                       StrCat("weights must hold fractions, and ", NumpyDtypeName(dtype),
                              " does not; give a dtype such as float32"),
                       "ValueError");
  }
  return CanonicalDtype(dtype);
}

}  // namespace shardmesh
