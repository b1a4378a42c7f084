// How tensors of files become those that are loaded: shapes, types and the text about it.
#include "tensor/source_conversion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const auto kNoFit = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch);
const auto kNoType = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype);

TEST(SourceConversionTest, TheShapeInTheFileIsPermutedToThatOfTheTensor) {
  const SourceConversion conversion{.dtype = Dtype::kF32, .permutation = {2, 0, 1}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Shape in_file,
                                 ShapeInFile(conversion, Dtype::kBF16, {7, 8, 9}));
  EXPECT_THAT(in_file, ElementsAre(8, 9, 7));
  EXPECT_EQ(*PermutedShape(in_file, conversion.permutation), (Shape{7, 8, 9}));
  EXPECT_THAT(InversePermutation(conversion.permutation), ElementsAre(1, 2, 0));
  EXPECT_EQ(*ShapeInFile({.dtype = Dtype::kU8}, Dtype::kU8, {7, 8}), (Shape{7, 8}));
}

TEST(SourceConversionTest, RefusesWhatNoReaderOfAFileCanDo) {
  EXPECT_THAT(ShapeInFile({.dtype = Dtype::kF32, .permutation = {0}}, Dtype::kF32, {2, 3}), kNoFit);
  EXPECT_THAT(ShapeInFile({.dtype = Dtype::kF32, .permutation = {1, 1}}, Dtype::kF32, {2, 3}),
              kNoFit);
  EXPECT_THAT(ShapeInFile({.dtype = Dtype::kF32, .permutation = {0, 2}}, Dtype::kF32, {2, 3}),
              kNoFit);
  EXPECT_THAT(ShapeInFile({.dtype = Dtype::kI32}, Dtype::kF32, {2}), kNoType);
  EXPECT_THAT(ShapeInFile({.dtype = Dtype::kF32}, Dtype::kF64, {2}), kNoType);
  EXPECT_THAT(ShapeInFile({.dtype = Dtype::kF32}, Dtype::kI8, {2}), kNoType) << "needs scales";
  EXPECT_THAT(ShapeInFile({.dtype = Dtype::kF4, .permutation = {1, 0}}, Dtype::kF4, {2, 2}),
              kNoType);
}

TEST(SourceConversionTest, TellsTheBytesOfTheFileFromOthers) {
  EXPECT_TRUE(IsIdentity({.dtype = Dtype::kF32}, Dtype::kF32));
  EXPECT_TRUE(IsIdentity({.dtype = Dtype::kF32, .permutation = {0, 1}}, Dtype::kF32));
  EXPECT_FALSE(IsIdentity({.dtype = Dtype::kF32, .permutation = {1, 0}}, Dtype::kF32));
  EXPECT_FALSE(IsIdentity({.dtype = Dtype::kF32}, Dtype::kF16));
}

// Origins of arrays that are in a store have this text.
TEST(SourceConversionTest, TheTextIsThatOfTheArraysOfEarlierBuilds) {
  EXPECT_EQ(ConversionText(SourceConversion{.dtype = Dtype::kF32, .permutation = {1, 0}},
                           Dtype::kBF16, {3, 2}),
            ConversionText(Dtype::kF32, {2, 3}, {1, 0}, Dtype::kBF16));
  EXPECT_EQ(ConversionText(Dtype::kF32, {2, 3}, {1, 0}, Dtype::kBF16),
            "1 F32 (2, 3) permuted 1,0 to BF16 by channel none");
  EXPECT_EQ(ConversionText(Dtype::kF32, {2, 3}, {}, Dtype::kI8, 1),
            "1 F32 (2, 3) permuted  to I8 by channel 1");
  EXPECT_THAT(ConversionText(std::nullopt, Dtype::kF32, {2}), IsEmpty());
}

}  // namespace
}  // namespace shardmesh
