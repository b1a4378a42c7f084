// Maps of checkpoints: names, shapes and types that come out, and each mistake.
#include "tensor/checkpoint/tensor_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tensor/float_convert.h"
#include "tensor/safetensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/zip_text.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::kInvalid;
using ::shardmesh::test::NpyText;
using ::shardmesh::test::StatusIs;
using ::shardmesh::test::ZipText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Floats(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TensorMapRule Rule(const std::string& pattern, const std::string& replacement = R"(\g<0>)") {
  TensorMapRule rule{*PatternReplacement::Create(pattern, replacement)};
  rule.place = "map.yaml:" + pattern;
  return rule;
}

class TensorMapTest : public testing::Test {
 protected:
  TensorMapTest() {
    std::ofstream(path_, std::ios::binary) << ZipText({
        {.name = "layer.0.weight.npy",
         .data = NpyText("<f4", "(2, 3)", Floats({1, 2, 3, 4, 5, 6}))},
        {.name = "layer.0.bias.npy", .data = NpyText("<f4", "(2,)", Floats({7, 8}))},
        {.name = "ids.npy", .data = NpyText("|u1", "(3,)", "abc")},
        {.name = "fortran.npy",
         .data = NpyText("<f4", "(2, 3)", Floats({1, 4, 2, 5, 3, 6}), /*fortran_order=*/true)},
    });
    source_ = std::make_shared<const TensorSource>(*TensorSource::Open(path_));
  }
  ~TensorMapTest() override { std::filesystem::remove(path_); }

  absl::StatusOr<MappedCheckpoint> Map(std::vector<TensorMapRule> rules,
                                       std::optional<Dtype> float_dtype = std::nullopt,
                                       bool refuse_unmatched = false) {
    map_ = {"map.yaml", std::move(rules), refuse_unmatched};
    return MappedCheckpoint::Create(source_, {.map = &map_, .float_dtype = float_dtype});
  }

  static std::vector<std::string> Names(const MappedCheckpoint& mapped) {
    std::vector<std::string> names;
    for (const MappedTensor& tensor : mapped.tensors()) names.push_back(tensor.name);
    return names;
  }
  static std::string BytesOf(const TensorElements& elements) {
    if (elements.view() != nullptr) {
      const absl::Span<const char> bytes = elements.view()->bytes();
      return std::string(bytes.data(), bytes.size());
    }
    std::string bytes(
        static_cast<size_t>(*PackedSizeBytes(elements.dtype(), *ElementCount(elements.shape()))),
        '\0');
    EXPECT_THAT(elements.producer()->Fill(Tile::Whole(elements.shape()), 0, absl::MakeSpan(bytes)),
                IsOk());
    return bytes;
  }

  const std::string path_ = testing::TempDir() + "/tensor_map_test." +
                            testing::UnitTest::GetInstance()->current_test_info()->name();
  std::shared_ptr<const TensorSource> source_;
  TensorMap map_;
};

TEST_F(TensorMapTest, WithoutAMapTensorsAreKept) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const MappedCheckpoint mapped, MappedCheckpoint::Create(source_));
  EXPECT_THAT(Names(mapped), ElementsAre("layer.0.weight", "layer.0.bias", "ids", "fortran"));
  EXPECT_EQ(mapped.size_bytes(), source_->size_bytes());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<TensorElements> elements, mapped.Elements());
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(MappedCheckpoint::IsPlain(mapped.tensors()[i]));
    ASSERT_NE(elements[i].view(), nullptr);
    EXPECT_EQ(elements[i].view()->bytes().data(), source_->tensors()[i].view.bytes().data());
  }
  // A tensor in Fortran order is turned on its way, and counts as unchanged.
  EXPECT_FALSE(MappedCheckpoint::IsPlain(mapped.tensors()[3]));
  EXPECT_FALSE(mapped.tensors()[3].is_transposed);
  EXPECT_EQ(elements[3].shape(), (Shape{2, 3}));
  EXPECT_EQ(BytesOf(elements[3]), Floats({1, 2, 3, 4, 5, 6}));
}

TEST_F(TensorMapTest, RenamesTransposesConvertsAndSkips) {
  TensorMapRule kernel = Rule(R"(layer\.(\d+)\.weight$)", R"(layers/\1/kernel)");
  kernel.reverse = true;
  kernel.shape = {{std::nullopt, 2}};
  TensorMapRule bias = Rule("bias");
  bias.dtype = Dtype::kBF16;
  TensorMapRule skip = Rule("^ids$");
  skip.skip = true;
  TensorMapRule fortran = Rule("fortran");
  fortran.permutation = {1, 0};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const MappedCheckpoint mapped,
                                 Map({kernel, bias, skip, fortran, Rule("none"), Rule("ids")}));
  EXPECT_THAT(Names(mapped), ElementsAre("layers/0/kernel", "layer.0.bias", "fortran"));
  EXPECT_THAT(mapped.skipped(), ElementsAre("ids"));
  EXPECT_THAT(mapped.unused_rules(), ElementsAre("map.yaml:none", "map.yaml:ids"));
  EXPECT_EQ(mapped.size_bytes(), 24 + 4 + 24);
  const std::vector<MappedTensor>& tensors = mapped.tensors();
  EXPECT_EQ(tensors[0].shape, (Shape{3, 2}));
  EXPECT_TRUE(tensors[0].is_renamed && tensors[0].is_transposed && !tensors[0].is_converted);
  EXPECT_EQ(tensors[1].dtype, Dtype::kBF16);
  EXPECT_TRUE(!tensors[1].is_renamed && !tensors[1].is_transposed && tensors[1].is_converted);
  // Reversed in the file and by the rule: the bytes of the file as they are.
  EXPECT_TRUE(MappedCheckpoint::IsPlain(tensors[2]) && tensors[2].is_transposed);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<TensorElements> elements, mapped.Elements());
  EXPECT_EQ(BytesOf(elements[0]), Floats({1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(BytesOf(elements[1]), std::string("\xE0\x40\x00\x41", 4));
  EXPECT_EQ(BytesOf(elements[2]), Floats({1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(elements[2].shape(), (Shape{3, 2}));
}

TEST_F(TensorMapTest, TheFirstRuleThatMatchesDecides) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const MappedCheckpoint mapped,
      Map({Rule("weight", "first"), Rule("layer", "second"), Rule("first", "third")}));
  EXPECT_THAT(Names(mapped), ElementsAre("layer.0.first", "second.0.bias", "ids", "fortran"));
}

TEST_F(TensorMapTest, ConvertsFloatsWhereNoRuleNamesAType) {
  TensorMapRule keep = Rule("bias");
  keep.dtype = Dtype::kF32;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const MappedCheckpoint mapped, Map({keep}, Dtype::kF16));
  std::vector<Dtype> types;
  for (const MappedTensor& tensor : mapped.tensors()) types.push_back(tensor.dtype);
  EXPECT_THAT(types, ElementsAre(Dtype::kF16, Dtype::kF32, Dtype::kU8, Dtype::kF16));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<TensorElements> elements, mapped.Elements());
  std::string halves;
  for (const float value : {1, 2, 3, 4, 5, 6}) {
    const uint16_t half = F32ToF16(value);
    halves.append({static_cast<char>(half & 0xFF), static_cast<char>(half >> 8)});
  }
  EXPECT_EQ(BytesOf(elements[0]), halves);
  EXPECT_EQ(BytesOf(elements[3]), halves);
}

TEST_F(TensorMapTest, I8HasItsScalesBesideIt) {
  TensorMapRule rows = Rule("weight");
  rows.dtype = Dtype::kI8;
  rows.channel = 0;
  TensorMapRule columns = Rule("fortran", "t");  // channel 0 of the transposed tensor
  columns.dtype = Dtype::kI8;
  columns.channel = 0;
  columns.reverse = true;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const MappedCheckpoint mapped, Map({rows, columns}));
  EXPECT_THAT(Names(mapped), ElementsAre("layer.0.weight", "layer.0.weight.scale", "layer.0.bias",
                                         "ids", "t", "t.scale"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<TensorElements> elements, mapped.Elements());
  EXPECT_EQ(elements[1].shape(), (Shape{2}));
  EXPECT_EQ(BytesOf(elements[1]), Floats({3.0f / 127, 6.0f / 127}));
  EXPECT_EQ(BytesOf(elements[0]), std::string({42, 85, 127, 85, 106, 127}));
  EXPECT_EQ(elements[5].shape(), (Shape{3}));
  EXPECT_EQ(BytesOf(elements[5]), Floats({4.0f / 127, 5.0f / 127, 6.0f / 127}));
  EXPECT_EQ(BytesOf(elements[4]), std::string({32, 127, 51, 127, 64, 127}));
}

TEST_F(TensorMapTest, RefusesEachMistakeBeforeAnythingIsLoaded) {
  const auto with = [](TensorMapRule rule, const auto& change) {
    change(&rule);
    return std::vector<TensorMapRule>{rule};
  };
  using R = TensorMapRule;
  TensorMapRule quantise = Rule("weight", "w");
  quantise.dtype = Dtype::kI8;
  quantise.channel = 1;
  const struct {
    std::vector<TensorMapRule> rules;
    Reason reason;
    const char* message;
  } cases[] = {
      {{Rule("^layer.*$", "same")},
       Reason::kBadFile,
       R"(map.yaml:^layer.*$: "layer.0.weight" and "layer.0.bias" both get the name "same")"},
      {{quantise, Rule("bias", "w.scale")},
       Reason::kBadFile,
       R"(the scales of "layer.0.weight" and "layer.0.bias" both get the name "layer.0.w.scale")"},
      {{Rule("^.*bias$", "")}, Reason::kBadFile, "becomes empty"},
      {{Rule("bias", std::string(1100, 'x'))}, Reason::kBadFile, "bytes long"},
      {with(Rule("bias"),
            [](R* r) {
              r->permutation = {1, 0};
            }),
       Reason::kShapeMismatch,
       R"(map.yaml:bias: tensor "layer.0.bias": the permutation [1, 0] does not fit shape (2,))"},
      {with(Rule("weight"),
            [](R* r) {
              r->shape = {{2, 2}};
            }),
       Reason::kShapeMismatch, "the shape is (2, 3), but the rule expects (2, 2)"},
      {with(Rule("weight"), [](R* r) { r->shape.emplace(1, std::nullopt); }),
       Reason::kShapeMismatch, "but the rule expects (*,)"},
      {with(Rule("ids"), [](R* r) { r->dtype = Dtype::kBF16; }), Reason::kUnsupportedDtype,
       R"(tensor "ids": U8 cannot be converted to BF16)"},
      {with(Rule("bias"),
            [](R* r) {
              r->dtype = Dtype::kI8;
              r->channel = 1;
            }),
       Reason::kShapeMismatch, "channel 1 is no dimension of shape (2,)"},
      {with(Rule(""), [](R* r) { r->skip = true; }), Reason::kBadFile,
       "the map skips all 4 tensors"},
  };
  for (const auto& c : cases) {
    const absl::StatusOr<MappedCheckpoint> mapped = Map(c.rules);
    EXPECT_THAT(mapped, StatusIs(kInvalid, c.reason)) << c.message;
    EXPECT_THAT(mapped.status().message(), HasSubstr(c.message));
  }
}

TEST_F(TensorMapTest, MakesFewScalesOfATensorWithoutElements) {
  const std::string path = ::testing::TempDir() + "empty_channels.safetensors";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(path, {{"w", Dtype::kF32, {int64_t{8'589'934'592}, 0}}}, {}));
  ASSERT_THAT(writer.Finish(), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(TensorSource opened, TensorSource::Open(path));
  const auto source = std::make_shared<const TensorSource>(std::move(opened));
  TensorMapRule rule = Rule("w", "w");
  rule.dtype = Dtype::kI8;
  TensorMap map = {"map.yaml", {rule}, false};
  const auto refused = MappedCheckpoint::Create(source, {.map = &map});
  EXPECT_THAT(refused, StatusIs(kInvalid, Reason::kShapeMismatch));
  EXPECT_THAT(refused.status().message(), HasSubstr("8589934592 scales"));
  map.rules[0].channel = 1;
  EXPECT_THAT(MappedCheckpoint::Create(source, {.map = &map}), IsOk());
}

TEST_F(TensorMapTest, CountsTheTensorsThatNoRuleMatches) {
  const auto mapped = Map({Rule("layer")}, std::nullopt, /*refuse_unmatched=*/true);
  EXPECT_THAT(mapped, StatusIs(kInvalid, Reason::kUnmatchedTensor));
  EXPECT_THAT(mapped.status().message(),
              HasSubstr(R"(map.yaml: no rule matches tensor "ids" nor 1 other;)"));
  EXPECT_THAT(Map({Rule("")}, std::nullopt, true), IsOk());
}

TEST_F(TensorMapTest, NamesTheTensorThatCannotBeQuantised) {
  const std::string nan = Floats({1, std::bit_cast<float>(0x7FC00000)});
  std::ofstream(path_, std::ios::binary)
      << ZipText({{.name = "w.npy", .data = NpyText("<f4", "(2,)", nan)}});
  source_ = std::make_shared<const TensorSource>(*TensorSource::Open(path_));
  TensorMapRule rule = Rule("w");
  rule.dtype = Dtype::kI8;
  rule.channel = 0;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const MappedCheckpoint mapped, Map({rule}));
  const absl::Status status = mapped.Elements().status();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kUnsupportedDtype));
  EXPECT_THAT(status.message(), HasSubstr(R"(tensor "w": index 1 of dimension 0 has a NaN)"));
}

TEST_F(TensorMapTest, ChecksTheChecksumsBeforeItGivesElements) {
  std::ofstream(path_, std::ios::binary)
      << ZipText({{.name = "w.npy", .data = NpyText("|u1", "(1,)", "x"), .crc32 = 1}});
  source_ = std::make_shared<const TensorSource>(*TensorSource::Open(path_));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const MappedCheckpoint mapped, MappedCheckpoint::Create(source_));
  EXPECT_THAT(mapped.Elements(), StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
}

}  // namespace
}  // namespace shardmesh
