// Element types of tensors: the table behind their names, sizes and NumPy codes.
#include "tensor/dtype.h"

#include <array>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

struct DtypeFacts {
  Dtype dtype;
  std::string_view name;
  int bits;
  std::string_view npy;
};

// Name, bits and NumPy code of each type, in the order of the enum.
constexpr std::array kFacts = {
    DtypeFacts{Dtype::kBool, "BOOL", 8, "|b1"},      DtypeFacts{Dtype::kF4, "F4", 4, ""},
    DtypeFacts{Dtype::kF6E2M3, "F6_E2M3", 6, ""},    DtypeFacts{Dtype::kF6E3M2, "F6_E3M2", 6, ""},
    DtypeFacts{Dtype::kU8, "U8", 8, "|u1"},          DtypeFacts{Dtype::kI8, "I8", 8, "|i1"},
    DtypeFacts{Dtype::kF8E5M2, "F8_E5M2", 8, ""},    DtypeFacts{Dtype::kF8E4M3Fn, "F8_E4M3", 8, ""},
    DtypeFacts{Dtype::kF8E8M0Fnu, "F8_E8M0", 8, ""}, DtypeFacts{Dtype::kI16, "I16", 16, "<i2"},
    DtypeFacts{Dtype::kU16, "U16", 16, "<u2"},       DtypeFacts{Dtype::kF16, "F16", 16, "<f2"},
    DtypeFacts{Dtype::kBF16, "BF16", 16, "<V2"},     DtypeFacts{Dtype::kI32, "I32", 32, "<i4"},
    DtypeFacts{Dtype::kU32, "U32", 32, "<u4"},       DtypeFacts{Dtype::kF32, "F32", 32, "<f4"},
    DtypeFacts{Dtype::kC64, "C64", 64, "<c8"},       DtypeFacts{Dtype::kF64, "F64", 64, "<f8"},
    DtypeFacts{Dtype::kI64, "I64", 64, "<i8"},       DtypeFacts{Dtype::kU64, "U64", 64, "<u8"},
};

constexpr auto kDtypes = [] {
  std::array<Dtype, kFacts.size()> dtypes{};
  for (size_t i = 0; i < kFacts.size(); ++i) {
    dtypes[i] = kFacts[i].dtype;
  }
  return dtypes;
}();

constexpr bool TableFollowsEnum() {
  for (size_t i = 0; i < kFacts.size(); ++i) {
    if (static_cast<size_t>(kFacts[i].dtype) != i) {
      return false;
    }
  }
  return true;
}
static_assert(TableFollowsEnum());

const DtypeFacts& FactsOf(Dtype dtype) { return kFacts[static_cast<size_t>(dtype)]; }

}  // namespace

absl::Span<const Dtype> AllDtypes() { return kDtypes; }

int BitsPerElement(Dtype dtype) { return FactsOf(dtype).bits; }

std::string_view DtypeName(Dtype dtype) { return FactsOf(dtype).name; }

absl::StatusOr<Dtype> ParseDtype(std::string_view name) {
  for (const DtypeFacts& facts : kFacts) {
    if (facts.name == name) {
      return facts.dtype;
    }
  }
  std::vector<std::string_view> names;
  for (const DtypeFacts& facts : kFacts) names.push_back(facts.name);
  return InvalidArgument(
      Reason::kUnknownDtype,
      StrCat("\"", name, "\" is not an element type; the known ones are ", StrJoin(names, ", "),
             DidYouMean(name, names)),
      {{fact::kDtype, name}, {fact::kNearest, NearestName(name, names).value_or("")}});
}

absl::StatusOr<int64_t> PackedSizeBytes(Dtype dtype, int64_t elements) {
  int64_t bits = 0;
  if (elements < 0 || __builtin_mul_overflow(elements, BitsPerElement(dtype), &bits)) {
    return InvalidArgument(Reason::kInvalidShape,
                           StrCat(elements, " elements of ", DtypeName(dtype),
                                  " is not a size that 63 bits can count in bits"),
                           {{fact::kValue, elements}});
  }
  return bits / 8 + (bits % 8 != 0 ? 1 : 0);
}

absl::StatusOr<int64_t> WholeSizeBytes(Dtype dtype, int64_t elements) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, PackedSizeBytes(dtype, elements));
  if (elements % 8 * BitsPerElement(dtype) % 8 != 0) {
    return InvalidArgument(Reason::kInvalidShape,
                           StrCat(elements, " elements of ", DtypeName(dtype), " (",
                                  BitsPerElement(dtype), " bits each) do not fill whole bytes"),
                           {{fact::kValue, elements}});
  }
  return size_bytes;
}

std::string_view NpyTypeString(Dtype dtype) { return FactsOf(dtype).npy; }

std::ostream& operator<<(std::ostream& out, Dtype dtype) { return out << DtypeName(dtype); }

}  // namespace shardmesh
