// The files of saves: which tensors stay in their files, and which part.
#include "server/save/save_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "process/random_bytes.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMib = int64_t{1} << 20;

// Named tensors of one tile, which change as their arrays do in training.
class Tensors {
 public:
  void Put(const std::string& name, int64_t size_bytes) {
    auto array = std::make_shared<Array>();
    array->definition.descriptor = {.array_id = RandomId(),
                                    .dtype = Dtype::kU8,
                                    .shape = {size_bytes},
                                    .spec = PartitionSpec(),
                                    .mesh_id = "m",
                                    .mesh_revision = 0,
                                    .mesh = *Mesh::Parse("x=1"),
                                    .cut_points = {}};
    const TensorToSave tensor{.name = name,
                              .array = std::move(array),
                              .parts = {{.tile = Tile::Whole({size_bytes}),
                                         .identities = {"w"},
                                         .crc32c = static_cast<uint32_t>(random_())}}};
    const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                    [&](const TensorToSave& each) { return each.name == name; });
    if (found == tensors_.end()) {
      tensors_.push_back(tensor);
    } else {
      *found = tensor;
    }
  }
  // Gives all arrays other ids, as another cluster does that has loaded them.
  void Reload() {
    for (TensorToSave& tensor : tensors_) {
      auto array = std::make_shared<Array>(*tensor.array);
      array->definition.descriptor.array_id = RandomId();
      tensor.array = std::move(array);
    }
  }
  // Plans the next checkpoint after the one of the last call. Returns the names of the tensors of
  // each file, and counts the bytes of the files that are not as before.
  std::vector<std::string> Plan(int64_t max_file_bytes) {
    const auto plan =
        PlanSave(tensors_, {.max_file_bytes = max_file_bytes, .cluster_id = "c"}, earlier_);
    EXPECT_THAT(plan, test::IsOk());
    if (!plan.ok()) return {};
    std::vector<std::string> names;
    std::vector<EarlierTensors> files;
    written_bytes_ = 0;
    for (const FileInPlan& file : plan->files) {
      std::string& of_file = names.emplace_back();
      EarlierTensors& digests = files.emplace_back();
      int64_t size_bytes = 0;
      for (const size_t i : file.tensors) {
        const TensorToSave& tensor = plan->tensors[i];
        const ArrayDescriptor& array = tensor.array->definition.descriptor;
        StrAppend(&of_file, of_file.empty() ? "" : " ", tensor.name);
        digests.push_back(
            DigestsOf({.name = tensor.name,
                       .dtype = array.dtype,
                       .shape = array.shape,
                       .size_bytes = plan->places[i].size_bytes,
                       .tiles = {{.tile = tensor.parts[0].tile, .crc32c = tensor.parts[0].crc32c}},
                       .array_id = array.array_id}));
        size_bytes += plan->places[i].size_bytes;
        EXPECT_EQ(plan->files[plan->places[i].file].name, file.name);
      }
      const bool is_kept = std::any_of(earlier_.begin(), earlier_.end(), [&](const auto& each) {
        return std::equal(
            each.begin(), each.end(), digests.begin(), digests.end(),
            [](const TensorDigests& a, const TensorDigests& b) { return a.content == b.content; });
      });
      if (!is_kept) written_bytes_ += size_bytes;
    }
    earlier_ = std::move(files);
    return names;
  }
  int64_t written_bytes() const { return written_bytes_; }

 private:
  std::mt19937 random_{7};
  std::vector<TensorToSave> tensors_;
  std::vector<EarlierTensors> earlier_;
  int64_t written_bytes_ = 0;
};

TEST(SavePlanTest, TensorsThatChangeWithEachStepPartFromThoseThatDoNot) {
  Tensors tensors;
  const std::vector<std::string> all = {"a/embed", "a/moment", "b/moment", "b/weight", "c/embed"};
  for (const std::string& name : all) tensors.Put(name, kMib);
  EXPECT_THAT(tensors.Plan(3 * kMib), ElementsAre("a/embed a/moment b/moment", "b/weight c/embed"));
  for (int step = 2; step <= 4; ++step) {
    for (const char* const name : {"a/moment", "b/moment", "b/weight"}) tensors.Put(name, kMib);
    EXPECT_THAT(tensors.Plan(3 * kMib),
                ElementsAre("a/embed c/embed", "a/moment b/moment b/weight"));
    EXPECT_EQ(tensors.written_bytes(), step == 2 ? 5 * kMib : 3 * kMib);
  }
  tensors.Reload();
  EXPECT_THAT(tensors.Plan(3 * kMib), ElementsAre("a/embed c/embed", "a/moment b/moment b/weight"));
  EXPECT_EQ(tensors.written_bytes(), 0);
}

TEST(SavePlanTest, TensorsThatComeOrGoLeaveTheOtherFilesAsTheyWere) {
  Tensors tensors;
  for (const char* const name : {"a", "b", "d"}) tensors.Put(name, kMib);
  EXPECT_THAT(tensors.Plan(2 * kMib), ElementsAre("a b", "d"));
  tensors.Put("c", kMib);
  EXPECT_THAT(tensors.Plan(2 * kMib), ElementsAre("a b", "c", "d"));
  EXPECT_EQ(tensors.written_bytes(), kMib);
}

TEST(SavePlanTest, AFewUnchangedBytesStayWithTheChangedOnes) {
  Tensors tensors;
  tensors.Put("a", kMinApartBytes - 1);
  tensors.Put("b", kMib);
  EXPECT_THAT(tensors.Plan(2 * kMib), ElementsAre("a b"));
  tensors.Put("b", kMib);
  EXPECT_THAT(tensors.Plan(2 * kMib), ElementsAre("a b"));
}

// One tensor after the other changes, each in a step of its own.
TEST(SavePlanTest, FilesDoNotGetMoreAndMore) {
  Tensors tensors;
  constexpr int kTensors = 400;
  for (int i = 0; i < kTensors; ++i) tensors.Put(StrCat("t", 1'000 + i), kMib);
  EXPECT_EQ(tensors.Plan(64 * kMib).size(), 7);
  int64_t written_bytes = 0;
  std::mt19937 random(3);
  for (int step = 0; step < 300; ++step) {
    tensors.Put(StrCat("t", 1'000 + static_cast<int>(random() % kTensors)), kMib);
    EXPECT_LE(tensors.Plan(64 * kMib).size(), 50) << step;
    written_bytes += tensors.written_bytes();
  }
  // Without a plan by the earlier checkpoint, each step writes the 64 MiB around its tensor.
  EXPECT_LT(written_bytes, 300 * 60 * kMib);
}

TEST(SavePlanTest, RefusesTilesThatShareBytesOfTheFile) {
  const auto plan_of = [](const Shape& shape, std::vector<Tile> tiles) {
    auto array = std::make_shared<Array>();
    array->definition.descriptor = {.array_id = "a",
                                    .dtype = Dtype::kF4,
                                    .shape = shape,
                                    .spec = PartitionSpec(),
                                    .mesh_id = "m",
                                    .mesh_revision = 0,
                                    .mesh = *Mesh::Parse("x=2"),
                                    .cut_points = {}};
    TensorToSave tensor{.name = "w", .array = std::move(array), .parts = {}};
    for (Tile& tile : tiles) {
      tensor.parts.push_back({.tile = std::move(tile), .identities = {"w"}, .crc32c = 0});
    }
    return PlanSave({tensor}, {.max_file_bytes = kMib, .cluster_id = "c"}, {}).status();
  };
  EXPECT_THAT(plan_of({4, 8}, {{{{0, 4}, {0, 4}}}, {{{0, 4}, {4, 8}}}}), test::IsOk());
  const absl::Status refused = plan_of({4, 6}, {{{{0, 4}, {0, 3}}}, {{{0, 4}, {3, 6}}}});
  EXPECT_THAT(refused,
              test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype));
  EXPECT_THAT(std::string(refused.message()),
              testing::HasSubstr("its tile [0,4)x[0,3) begins or ends within a byte"));
  // Another layout does not help.
  const absl::Status ragged = plan_of({3}, {{{{0, 3}}}});
  EXPECT_THAT(ragged,
              test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype));
  EXPECT_THAT(std::string(ragged.message()),
              testing::AllOf(testing::HasSubstr("\"w\" has 3 F4 elements of 4 bits"),
                             testing::Not(testing::HasSubstr("reshard"))));
}

TEST(SavePlanTest, TheDefaultOfStepsIsASixteenthWithinBounds) {
  EXPECT_EQ(StepFileBytes(0), 16 * kMib);
  EXPECT_EQ(StepFileBytes(256 * kMib), 16 * kMib);
  EXPECT_EQ(StepFileBytes(1'024 * kMib), 64 * kMib);
  EXPECT_EQ(StepFileBytes(100 * 1'024 * kMib), 256 * kMib);
  EXPECT_EQ(StepFileBytes(4 * 1'024 * 1'024 * kMib), 1'024 * kMib);
}

}  // namespace
}  // namespace shardmesh::server
