// Promotion of element types. The table is JAX 0.9.0.1's, with 64-bit types off.
#include "tensor/dtype_promotion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using test::IsOkAndHolds;
using test::StatusIs;

using test::kInvalid;

std::vector<Dtype> Dtypes(std::string_view names) {
  std::vector<Dtype> dtypes;
  for (const absl::string_view name : absl::StrSplit(ToAbsl(names), ' ')) {
    const absl::StatusOr<Dtype> dtype = ParseNumpyDtype(ToStd(name));
    EXPECT_TRUE(dtype.ok()) << dtype.status();
    if (dtype.ok()) dtypes.push_back(*dtype);
  }
  return dtypes;
}

TEST(NumpyDtypeTest, EveryNameLeadsBackToItsType) {
  for (const Dtype dtype : AllDtypes()) {
    EXPECT_THAT(ParseNumpyDtype(NumpyDtypeName(dtype)), IsOkAndHolds(dtype));
  }
  const absl::StatusOr<Dtype> unknown = ParseNumpyDtype("float31");
  EXPECT_THAT(unknown, StatusIs(kInvalid, Reason::kUnknownDtype));
  EXPECT_EQ(PythonTypeOf(unknown.status()), "TypeError");
  EXPECT_THAT(unknown.status().ToString(), testing::HasSubstr("did you mean \"float32\"?"));
}

TEST(NumpyDtypeTest, ANameOfAnyFormLeadsToItsType) {
  for (const Dtype dtype : AllDtypes()) {
    EXPECT_THAT(ParseDtypeOfAnyForm(DtypeName(dtype)), IsOkAndHolds(dtype));
    EXPECT_THAT(ParseDtypeOfAnyForm(NumpyDtypeName(dtype)), IsOkAndHolds(dtype));
  }
  const absl::StatusOr<Dtype> unknown = ParseDtypeOfAnyForm("float31");
  EXPECT_THAT(unknown, StatusIs(kInvalid, Reason::kUnknownDtype));
  EXPECT_THAT(unknown.status().ToString(), testing::HasSubstr("F32 (float32), "));
  const absl::StatusOr<Dtype> widthless = ParseDtypeOfAnyForm("float");
  EXPECT_THAT(widthless, StatusIs(kInvalid, Reason::kUnknownDtype));
  EXPECT_THAT(widthless.status().ToString(),
              testing::HasSubstr("write \"float32\" or \"float64\""));
  EXPECT_THAT(unknown.status().ToString(), testing::HasSubstr("did you mean \"float32\"?"));
}

TEST(ResultDtypeTest, IsJaxs) {
  const std::pair<const char*, const char*> cases[] = {
      {"bool bool", "bool"},
      {"bool uint8", "uint8"},
      {"bool int8", "int8"},
      {"bool int16", "int16"},
      {"bool uint16", "uint16"},
      {"bool int32", "int32"},
      {"bool uint32", "uint32"},
      {"bool int64", "int32"},
      {"bool uint64", "uint32"},
      {"uint8 uint8", "uint8"},
      {"uint8 int8", "int16"},
      {"uint8 int16", "int16"},
      {"uint8 uint16", "uint16"},
      {"uint8 int32", "int32"},
      {"uint8 uint32", "uint32"},
      {"uint8 int64", "int32"},
      {"uint8 uint64", "uint32"},
      {"int8 int8", "int8"},
      {"int8 int16", "int16"},
      {"int8 uint16", "int32"},
      {"int8 int32", "int32"},
      {"int8 uint32", "int32"},
      {"int8 int64", "int32"},
      {"int8 uint64", "int32"},
      {"int16 int16", "int16"},
      {"int16 uint16", "int32"},
      {"int16 int32", "int32"},
      {"int16 uint32", "int32"},
      {"int16 int64", "int32"},
      {"int16 uint64", "int32"},
      {"uint16 uint16", "uint16"},
      {"uint16 int32", "int32"},
      {"uint16 uint32", "uint32"},
      {"uint16 int64", "int32"},
      {"uint16 uint64", "uint32"},
      {"int32 int32", "int32"},
      {"int32 uint32", "int32"},
      {"int32 int64", "int32"},
      {"int32 uint64", "int32"},
      {"uint32 uint32", "uint32"},
      {"uint32 int64", "int32"},
      {"uint32 uint64", "uint32"},
      {"int64 int64", "int32"},
      {"int64 uint64", "int32"},
      {"uint64 uint64", "uint32"},
      {"float4_e2m1fn float4_e2m1fn", "float4_e2m1fn"},
      {"float4_e2m1fn float8_e4m3fn", "TypePromotionError"},
      {"float4_e2m1fn float16", "TypePromotionError"},
      {"float4_e2m1fn bfloat16", "TypePromotionError"},
      {"float4_e2m1fn float32", "TypePromotionError"},
      {"float4_e2m1fn complex64", "TypePromotionError"},
      {"float4_e2m1fn float64", "TypePromotionError"},
      {"float8_e4m3fn float8_e4m3fn", "float8_e4m3fn"},
      {"float8_e4m3fn float16", "TypePromotionError"},
      {"float8_e4m3fn bfloat16", "TypePromotionError"},
      {"float8_e4m3fn float32", "TypePromotionError"},
      {"float8_e4m3fn complex64", "TypePromotionError"},
      {"float8_e4m3fn float64", "TypePromotionError"},
      {"float16 float16", "float16"},
      {"float16 bfloat16", "float32"},
      {"float16 float32", "float32"},
      {"float16 complex64", "complex64"},
      {"float16 float64", "float32"},
      {"bfloat16 bfloat16", "bfloat16"},
      {"bfloat16 float32", "float32"},
      {"bfloat16 complex64", "complex64"},
      {"bfloat16 float64", "float32"},
      {"float32 float32", "float32"},
      {"float32 complex64", "complex64"},
      {"float32 float64", "float32"},
      {"complex64 complex64", "complex64"},
      {"complex64 float64", "complex64"},
      {"float64 float64", "float32"},
      {"bool float16", "float16"},
      {"int8 bfloat16", "bfloat16"},
      {"uint64 float16", "float16"},
      {"int64 float8_e5m2", "float8_e5m2"},
      {"uint16 complex64", "complex64"},
      {"int32 float64", "float32"},
      {"float6_e2m3fn float32", "TypeError"},
      {"float6_e3m2fn float6_e3m2fn", "TypeError"},
      {"int32 uint8 uint16 bool", "int32"},
      {"float32 int8 int64 int64", "float32"},
      {"int64 complex64 uint64", "complex64"},
      {"float8_e8m0fnu bfloat16 float16", "TypePromotionError"},
      {"int64 float32 bool uint64", "float32"},
      {"complex64 uint8 uint16 uint8 float16", "complex64"},
      {"float16 float32 float8_e4m3fn int16 float8_e5m2", "TypePromotionError"},
      {"uint8 int64 bfloat16 bool", "bfloat16"},
      {"int32 int8 float32", "float32"},
      {"uint32 float32 bfloat16", "float32"},
      {"bool float8_e5m2 complex64 uint16 float8_e8m0fnu", "TypePromotionError"},
      {"uint32 uint64 uint8", "uint32"},
      {"int8 bfloat16 uint16 bool", "bfloat16"},
      {"uint64 int8 uint32 float8_e5m2", "float8_e5m2"},
      {"int8 complex64 uint32", "complex64"},
      {"bfloat16 complex64 int16 uint64", "complex64"},
      {"int8 int64 int8 uint8", "int32"},
      {"complex64 int32 float16 uint8", "complex64"},
      {"float32 uint16 float8_e5m2", "TypePromotionError"},
      {"int32 complex64 uint32 float8_e5m2", "TypePromotionError"},
      {"uint8 int32 float8_e4m3fn", "float8_e4m3fn"},
      {"int32 int8 int64", "int32"},
      {"bfloat16 complex64 float8_e5m2 float8_e8m0fnu", "TypePromotionError"},
      {"float16 float8_e4m3fn uint8 int8", "TypePromotionError"},
  };
  for (const auto& [dtypes, expected] : cases) {
    const absl::StatusOr<Dtype> result = ResultDtype(Dtypes(dtypes));
    EXPECT_EQ(result.ok() ? std::string(NumpyDtypeName(*result)) : PythonTypeOf(result.status()),
              expected)
        << dtypes;
    EXPECT_TRUE(result.ok() || ReasonOf(result.status()) == Reason::kUnsupportedDtype);
  }
}

TEST(ResultDtypeTest, DoesNotDependOnTheOrder) {
  for (const Dtype a : AllDtypes()) {
    for (const Dtype b : AllDtypes()) {
      const absl::StatusOr<Dtype> there = ResultDtype({a, b});
      const absl::StatusOr<Dtype> back = ResultDtype({b, a});
      ASSERT_EQ(there.ok(), back.ok()) << a << " " << b;
      if (!there.ok()) continue;
      EXPECT_EQ(*there, *back) << a << " " << b;
      EXPECT_EQ(CanonicalDtype(*there), *there) << a << " " << b;
      EXPECT_THAT(ResultDtype({*there, a, b}), IsOkAndHolds(*there)) << a << " " << b;
    }
  }
}

TEST(ResultDtypeTest, RefusesNoTypes) {
  EXPECT_THAT(ResultDtype({}), StatusIs(kInvalid, Reason::kMissingArgument));
}

TEST(PromoteDtypeTest, GivesAtLeastF32ToWhatHoldsNoFractions) {
  EXPECT_THAT(PromoteDtype({Dtype::kI8, Dtype::kBool}), IsOkAndHolds(Dtype::kF32));
  EXPECT_THAT(PromoteDtype({Dtype::kU64}), IsOkAndHolds(Dtype::kF32));
  EXPECT_THAT(PromoteDtype({Dtype::kBF16, Dtype::kI32}), IsOkAndHolds(Dtype::kBF16));
  EXPECT_THAT(PromoteDtype({Dtype::kF8E4M3Fn, Dtype::kI32}), IsOkAndHolds(Dtype::kF8E4M3Fn));
}

TEST(PromoteDtypeTest, TakesTheGivenTypeIfItHoldsFractions) {
  EXPECT_THAT(PromoteDtype({Dtype::kF32}, Dtype::kBF16), IsOkAndHolds(Dtype::kBF16));
  EXPECT_THAT(PromoteDtype({Dtype::kF16}, Dtype::kF64), IsOkAndHolds(Dtype::kF32));
  EXPECT_THAT(PromoteDtype({}, Dtype::kC64), IsOkAndHolds(Dtype::kC64));
  // Types that have no common one can still be cast to it.
  EXPECT_THAT(PromoteDtype({Dtype::kF8E4M3Fn, Dtype::kF32}, Dtype::kF32),
              IsOkAndHolds(Dtype::kF32));
  for (const Dtype dtype : {Dtype::kI32, Dtype::kBool, Dtype::kF6E2M3}) {
    const absl::StatusOr<Dtype> refused = PromoteDtype({Dtype::kF32}, dtype);
    EXPECT_THAT(refused, StatusIs(kInvalid, Reason::kUnsupportedDtype)) << dtype;
    EXPECT_EQ(PythonTypeOf(refused.status()), "ValueError") << dtype;
  }
}

TEST(ParameterDtypeTest, TakesWhatWeightsCanBeDrawnIn) {
  EXPECT_THAT(ParameterDtype(Dtype::kBF16), IsOkAndHolds(Dtype::kBF16));
  EXPECT_THAT(ParameterDtype(Dtype::kF64), IsOkAndHolds(Dtype::kF32));
  EXPECT_THAT(ParameterDtype(Dtype::kF8E8M0Fnu), IsOkAndHolds(Dtype::kF8E8M0Fnu));
  EXPECT_EQ(PythonTypeOf(ParameterDtype(Dtype::kI32).status()), "ValueError");
  EXPECT_EQ(PythonTypeOf(ParameterDtype(Dtype::kF4).status()), "TypeError");
  EXPECT_EQ(PythonTypeOf(ParameterDtype(Dtype::kF6E3M2).status()), "TypeError");
}

}  // namespace
}  // namespace shardmesh
