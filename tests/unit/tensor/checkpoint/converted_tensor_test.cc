// Transposed and converted tiles against plain indexing, bit for bit.
#include "tensor/checkpoint/converted_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tensor/float_convert.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string RandomBytes(size_t size, std::minstd_rand* random) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>((*random)() >> 8);
  return bytes;
}

// The bits of one element, as an integer of up to 8 bytes.
uint64_t BitsAt(const char* bytes, int64_t index, int64_t size) {
  uint64_t bits = 0;
  std::memcpy(&bits, bytes + index * size, static_cast<size_t>(size));
  return bits;
}

float FloatOf(Dtype dtype, uint64_t bits) {
  switch (dtype) {
    case Dtype::kF64:
      return F64ToF32(std::bit_cast<double>(bits));
    case Dtype::kF16:
      return F16ToF32(static_cast<uint16_t>(bits));
    case Dtype::kBF16:
      return BF16ToF32(static_cast<uint16_t>(bits));
    default:
      return std::bit_cast<float>(static_cast<uint32_t>(bits));
  }
}

// One element converted by the functions for one element.
uint64_t Converted(Dtype from, Dtype to, uint64_t bits, float scale) {
  if (from == to) return bits;
  const float value = FloatOf(from, bits);
  switch (to) {
    case Dtype::kF32:
      return std::bit_cast<uint32_t>(value);
    case Dtype::kF16:
      return from == Dtype::kF64 ? F64ToF16(std::bit_cast<double>(bits)) : F32ToF16(value);
    case Dtype::kBF16:
      return from == Dtype::kF64 ? F64ToBF16(std::bit_cast<double>(bits)) : F32ToBF16(value);
    default: {
      const float rounded = std::nearbyintf(value / scale);
      return static_cast<uint8_t>(static_cast<int8_t>(std::clamp(rounded, -127.0f, 127.0f)));
    }
  }
}

// Random finite elements, of magnitudes that differ much.
std::string RandomElements(Dtype dtype, int64_t count, std::minstd_rand* random) {
  const size_t size = static_cast<size_t>(BitsPerElement(dtype) / 8);
  std::string bytes = RandomBytes(static_cast<size_t>(count) * size, random);
  for (int64_t i = 0; i < count; ++i) {
    char* const at = bytes.data() + static_cast<size_t>(i) * size;
    if (IsConvertibleFloat(dtype) && !std::isfinite(FloatOf(dtype, BitsAt(at, 0, size)))) {
      std::memset(at, 0x21, size);
    }
  }
  return bytes;
}

int64_t Below(int64_t bound, std::minstd_rand* random) {
  return static_cast<int64_t>((*random)()) % bound;
}

TEST(ConvertedTensorTest, EveryPieceOfEveryTileIsWhatPlainIndexingGives) {
  constexpr Dtype kTypes[] = {Dtype::kF64, Dtype::kF32, Dtype::kF16,      Dtype::kBF16,
                              Dtype::kU8,  Dtype::kC64, Dtype::kF8E4M3Fn, Dtype::kI8};
  std::minstd_rand random(7);
  int quantised = 0;
  for (int round = 0; round < 3'000; ++round) {
    const size_t rank = static_cast<size_t>(Below(5, &random));
    Shape shape;
    for (size_t dim = 0; dim < rank; ++dim) {
      shape.push_back(Below(20, &random) == 0 ? 0 : 1 + Below(rank < 3 ? 300 : 9, &random));
    }
    const int64_t elements = *ElementCount(shape);
    const Dtype from = kTypes[Below(std::size(kTypes), &random)];
    Conversion conversion;
    conversion.dtype = kTypes[Below(std::size(kTypes), &random)];
    if (!CanConvert(from, *conversion.dtype)) conversion.dtype = from;
    conversion.permutation.resize(rank);
    std::iota(conversion.permutation.begin(), conversion.permutation.end(), size_t{0});
    std::shuffle(conversion.permutation.begin(), conversion.permutation.end(), random);

    // At an odd address, as in files.
    const std::string bytes = "x" + RandomElements(from, elements, &random);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const TensorView source,
        TensorView::Create(from, shape, absl::MakeConstSpan(bytes).subspan(1)));
    std::vector<float> scales;
    if (*conversion.dtype == Dtype::kI8 && from != Dtype::kI8) {
      if (rank == 0) continue;
      conversion.channel = static_cast<size_t>(Below(static_cast<int64_t>(rank), &random));
      SHARDMESH_ASSERT_OK_AND_ASSIGN(
          scales, ChannelScales(source, conversion.permutation[*conversion.channel]));
      ++quantised;
    }
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto tensor,
                                   ConvertedTensor::Create(source, conversion, scales));
    Tile tile;
    for (size_t dim = 0; dim < rank; ++dim) {
      const int64_t extent = shape[conversion.permutation[dim]];
      ASSERT_EQ(tensor->shape()[dim], extent);
      const int64_t start = Below(extent + 1, &random);
      tile.ranges.push_back({start, start + Below(extent - start + 1, &random)});
    }
    // The expected elements of the tile.
    const int64_t to_bytes = BitsPerElement(tensor->dtype()) / 8;
    const int64_t count = tile.element_count();
    std::string expected;
    std::vector<int64_t> index(rank, 0);
    for (int64_t i = 0; i < count; ++i) {
      int64_t place = 0;
      std::vector<int64_t> in_source(rank);
      for (size_t dim = 0; dim < rank; ++dim) {
        in_source[conversion.permutation[dim]] = tile.ranges[dim].start + index[dim];
      }
      for (size_t dim = 0; dim < rank; ++dim) place = place * shape[dim] + in_source[dim];
      const float scale = conversion.channel.has_value()
                              ? scales[static_cast<size_t>(tile.ranges[*conversion.channel].start +
                                                           index[*conversion.channel])]
                              : 1;
      const uint64_t bits =
          Converted(from, tensor->dtype(),
                    BitsAt(source.bytes().data(), place, BitsPerElement(from) / 8), scale);
      for (int64_t byte = 0; byte < to_bytes; ++byte) {
        expected.push_back(static_cast<char>(bits >> (8 * byte)));
      }
      for (size_t dim = rank; dim-- > 0;) {
        if (++index[dim] < tile.ranges[dim].size()) break;
        index[dim] = 0;
      }
    }
    // In pieces of random sizes.
    std::string filled(expected.size(), '\0');
    for (int64_t begin = 0; begin < count || begin == 0;) {
      const int64_t end = std::min(count, begin + 1 + Below(std::max<int64_t>(count, 1), &random));
      ASSERT_THAT(tensor->Fill(tile, begin * to_bytes,
                               absl::MakeSpan(filled).subspan(
                                   static_cast<size_t>(begin * to_bytes),
                                   static_cast<size_t>((end - begin) * to_bytes))),
                  IsOk());
      begin = std::max<int64_t>(end, 1);
    }
    ASSERT_TRUE(filled == expected)
        << "round " << round << ": " << DtypeName(from) << " " << ShapeToString(shape) << " to "
        << DtypeName(tensor->dtype()) << ", tile " << tile.ToString();
  }
  EXPECT_GT(quantised, 100);
}

TEST(ConvertedTensorTest, ScalesAreTheLargestMagnitudeOfAChannelBy127) {
  const float values[] = {1, -254, 0, 0, 3e-45f, -1e-45f};
  const absl::Span<const char> bytes(reinterpret_cast<const char*>(values), sizeof(values));
  const TensorView by_rows = *TensorView::Create(Dtype::kF32, {3, 2}, bytes);
  EXPECT_THAT(*ChannelScales(by_rows, 0), ElementsAre(2.0f, 1.0f, 0x1p-149f));
  EXPECT_THAT(*ChannelScales(by_rows, 1), ElementsAre(1.0f / 127, 2.0f));
  const TensorView empty = *TensorView::Create(Dtype::kF32, {3, 0}, {});
  EXPECT_THAT(*ChannelScales(empty, 0), ElementsAre(1, 1, 1));
  EXPECT_THAT(*ChannelScales(empty, 1), ElementsAre());
  const TensorView endless = *TensorView::Create(Dtype::kF32, {int64_t{1} << 50, 0}, {});
  EXPECT_THAT(*ChannelScales(endless, 1), ElementsAre());
  // A header of a few bytes must not ask for any amount of memory.
  EXPECT_THAT(ChannelScales(endless, 0), StatusIs(kInvalid, Reason::kShapeMismatch));
  const TensorView many = *TensorView::Create(Dtype::kF32, {kMaxEmptyChannels, 0}, {});
  EXPECT_EQ(ChannelScales(many, 0)->size(), static_cast<size_t>(kMaxEmptyChannels));
  // Extents whose product is no number.
  for (const Shape& shape : {Shape{0, int64_t{1} << 40, int64_t{1} << 40},
                             Shape{int64_t{1} << 40, 3, 0, int64_t{1} << 40},
                             Shape{int64_t{1} << 40, int64_t{1} << 40, 0}}) {
    const TensorView vast = *TensorView::Create(Dtype::kF32, shape, {});
    const size_t channel = shape[1] == 3 ? 1 : shape[0] == 0 ? 0 : 2;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(std::vector<float> scales, ChannelScales(vast, channel));
    EXPECT_EQ(scales, std::vector<float>(static_cast<size_t>(shape[channel]), 1.0f));
    Conversion conversion{.dtype = Dtype::kI8, .channel = shape.size() - 1 - channel};
    for (size_t dim = shape.size(); dim-- > 0;) conversion.permutation.push_back(dim);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto nothing,
                                   ConvertedTensor::Create(vast, conversion, std::move(scales)));
    EXPECT_THAT(nothing->Fill(Tile::Whole(nothing->shape()), 0, {}), IsOk());
  }

  // The smallest numbers keep their values.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto tensor, ConvertedTensor::Create(by_rows, {.dtype = Dtype::kI8, .channel = 0},
                                                 *ChannelScales(by_rows, 0)));
  std::vector<int8_t> quantised(6);
  ASSERT_THAT(
      tensor->Fill(Tile::Whole(tensor->shape()), 0, {reinterpret_cast<char*>(quantised.data()), 6}),
      IsOk());
  EXPECT_THAT(quantised, ElementsAre(0, -127, 0, 0, 2, -1));  // 1 / 2 rounds to even
}

TEST(ConvertedTensorTest, RefusesToQuantiseWhatIsNotFinite) {
  const double values[] = {1, 2, 3, 1e300};
  const absl::Span<const char> bytes(reinterpret_cast<const char*>(values), sizeof(values));
  const auto large = ChannelScales(*TensorView::Create(Dtype::kF64, {2, 2}, bytes), 0);
  EXPECT_THAT(large, StatusIs(kInvalid, Reason::kUnsupportedDtype));
  EXPECT_THAT(large.status().message(),
              HasSubstr("index 1 of dimension 0 has a value that is inf"));
  const float nan[] = {1, std::numeric_limits<float>::quiet_NaN()};
  const absl::Span<const char> nan_bytes(reinterpret_cast<const char*>(nan), sizeof(nan));
  EXPECT_THAT(
      ChannelScales(*TensorView::Create(Dtype::kF32, {1, 2}, nan_bytes), 1).status().message(),
      HasSubstr("index 1 of dimension 1 has a NaN"));
}

TEST(ConvertedTensorTest, RefusesWhatDoesNotFit) {
  const std::string bytes(24, 'x');
  const TensorView view = *TensorView::Create(Dtype::kF32, {2, 3}, bytes);
  EXPECT_THAT(ConvertedTensor::Create(view, {.permutation = {0}}),
              StatusIs(kInvalid, Reason::kShapeMismatch));
  EXPECT_THAT(ConvertedTensor::Create(view, {.permutation = {1, 1}}),
              StatusIs(kInvalid, Reason::kShapeMismatch));
  EXPECT_THAT(ConvertedTensor::Create(view, {.permutation = {0, 2}}),
              StatusIs(kInvalid, Reason::kShapeMismatch));
  EXPECT_THAT(ConvertedTensor::Create(view, {.dtype = Dtype::kI32}),
              StatusIs(kInvalid, Reason::kUnsupportedDtype));
  EXPECT_THAT(ConvertedTensor::Create(view, {.dtype = Dtype::kF64}),
              StatusIs(kInvalid, Reason::kUnsupportedDtype));
  EXPECT_THAT(ConvertedTensor::Create(view, {.dtype = Dtype::kI8, .channel = 1}, {1, 1}),
              StatusIs(kInvalid, Reason::kShapeMismatch));
  const TensorView packed = *TensorView::Create(Dtype::kF4, {6, 8}, bytes);
  EXPECT_THAT(ConvertedTensor::Create(packed, {.permutation = {1, 0}}),
              StatusIs(kInvalid, Reason::kUnsupportedDtype));

  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto tensor,
                                 ConvertedTensor::Create(view, {.permutation = {1, 0}}));
  std::string out(24, '\0');
  const auto fill = [&](const Tile& tile, int64_t offset, size_t size) {
    return tensor->Fill(tile, offset, absl::MakeSpan(out.data(), size));
  };
  const Tile whole = Tile::Whole(tensor->shape());
  EXPECT_THAT(fill(whole, 0, 24), IsOk());
  EXPECT_THAT(fill(whole, 24, 0), IsOk());
  for (const auto& [offset, size] : {std::pair{4, 24}, {-4, 4}, {2, 4}, {0, 6}}) {
    EXPECT_THAT(fill(whole, offset, static_cast<size_t>(size)),
                StatusIs(kInvalid, Reason::kBadTile));
  }
  EXPECT_THAT(fill(Tile::Whole({2, 3}), 0, 4), StatusIs(kInvalid, Reason::kBadTile));
}

}  // namespace
}  // namespace shardmesh
