// Gathers into memory, files and folders: every piece size, slices, element types and failures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client_core.h"
#include "client/mesh_client.h"
#include "client/remote/transfer.h"
#include "client/remote/worker_connections.h"
#include "process/failpoint.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tensor/npy.h"
#include "tensor/safetensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/client/small_cluster.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using test::SmallCoordinator;
using test::SmallWorker;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

class GatherTest : public ::testing::Test {
 protected:
  GatherTest() {
    std::vector<SmallWorker*> workers;
    for (auto& worker : workers_) {
      worker = std::make_unique<SmallWorker>();
      workers.push_back(worker.get());
    }
    coordinator_ = std::make_unique<SmallCoordinator>(*Mesh::Parse("dp=2,tp=2"), workers);
    client_ = *MeshClient::Connect(coordinator_->address(), {.session_ttl = absl::Seconds(60)});
    folder_ = ::testing::TempDir() + "/gather_test_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }
  ~GatherTest() override { fs::remove_all(folder_); }

  // Puts a tensor whose bytes all differ from their neighbours', and returns its bytes.
  std::string Put(const std::string& name, Dtype dtype, const Shape& shape,
                  const PartitionSpec& spec) {
    int64_t elements = 1;
    for (const int64_t size : shape) elements *= size;
    std::string bytes(static_cast<size_t>(*PackedSizeBytes(dtype, elements)), '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 + i / 251);
    const PutTensor tensor{
        .name = name, .view = *TensorView::Create(dtype, shape, bytes), .spec = spec};
    EXPECT_THAT(client_->arrays().PutTensors({tensor}), IsOk());
    return bytes;
  }
  static PartitionSpec Both() {
    return PartitionSpec({SpecEntry::Axis("dp"), SpecEntry::Axis("tp")});
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::vector<std::string> Files(const std::string& path) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  static std::string Bytes(absl::Span<const char> bytes) { return {bytes.data(), bytes.size()}; }

  std::string folder_;
  std::unique_ptr<SmallWorker> workers_[4];
  std::unique_ptr<SmallCoordinator> coordinator_;
  std::unique_ptr<MeshClient> client_;
};

// Appends the pieces, and notes the largest one.
struct Collector {
  TensorSink sink() {
    return {.begin =
                [this](const Array&, const Tile& tile) {
                  part = tile;
                  return absl::OkStatus();
                },
            .append =
                [this](absl::Span<const char> piece) {
                  bytes.append(piece.data(), piece.size());
                  largest = std::max(largest, static_cast<int64_t>(piece.size()));
                  return absl::OkStatus();
                }};
  }
  std::string bytes;
  int64_t largest = 0;
  std::optional<Tile> part;
};

TEST_F(GatherTest, PiecesOfAnySizeAreTheTensorInOrder) {
  const std::string bytes = Put("a", Dtype::kF32, {8, 12}, Both());
  for (const int64_t piece_bytes : {1, 4, 7, 24, 47, 48, 49, 96, 383, 384, 1 << 20}) {
    Collector collector;
    ASSERT_THAT(client_->arrays().GatherTo(ArraySelector::ByName("a"), collector.sink(),
                                           {.piece_bytes = piece_bytes}),
                IsOk());
    EXPECT_EQ(collector.bytes, bytes) << piece_bytes;
    EXPECT_LE(collector.largest, std::max<int64_t>(piece_bytes, 4));
    EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
  }
}

TEST_F(GatherTest, ASliceAtEveryBoundaryIsTheCutOfTheWhole) {
  const std::string bytes = Put("a", Dtype::kU8, {6, 8}, Both());
  for (int64_t r0 = 0; r0 < 6; ++r0) {
    for (int64_t r1 = r0 + 1; r1 <= 6; ++r1) {
      for (const auto& [c0, c1] : std::vector<std::pair<int64_t, int64_t>>{
               {0, 8}, {0, 4}, {4, 8}, {3, 5}, {7, 8}, {1, 4}}) {
        std::string cut;
        for (int64_t r = r0; r < r1; ++r) {
          cut += bytes.substr(static_cast<size_t>(8 * r + c0), static_cast<size_t>(c1 - c0));
        }
        const ArraySlice slice = {{r0, r1}, {c0, c1}};
        std::string memory(cut.size(), '\0');
        const auto view =
            *MutableTensorView::Create(Dtype::kU8, {r1 - r0, c1 - c0}, absl::MakeSpan(memory));
        ASSERT_THAT(
            client_->arrays().GatherInto(ArraySelector::ByName("a"), view, {.slice = slice}),
            IsOk());
        ASSERT_EQ(memory, cut) << r0 << ":" << r1 << "," << c0 << ":" << c1;
        Collector collector;
        ASSERT_THAT(client_->arrays().GatherTo(ArraySelector::ByName("a"), collector.sink(),
                                               {.slice = slice, .piece_bytes = 5}),
                    IsOk());
        ASSERT_EQ(collector.bytes, cut);
      }
    }
  }
  const std::pair<ArraySlice, std::string> kWrong[] = {
      {{{2, 2}, {}}, "the range 2:2 of dimension 0 has no index"},
      {{{4, 2}, {}}, "the range 4:2 of dimension 0 has no index"},
      {{{}, {8, 8}}, "the range 8:8 of dimension 1 is not in the array"},
      {{{}, {8}}, "the range 8: of dimension 1 is not in the array"},
      {{{0, 7}, {}}, "this dimension has the indexes 0 to 5; write a range within 0:6"},
      {{{-1, 2}, {}}, "the range -1:2 of dimension 0 is not in the array"},
      {{{0, 4}}, "the slice has 1 range, the array 2 dimensions; write 0:4,:"}};
  for (const auto& [slice, message] : kWrong) {
    Collector collector;
    const absl::Status refused =
        client_->arrays()
            .GatherTo(ArraySelector::ByName("a"), collector.sink(), {.slice = slice})
            .status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
    EXPECT_THAT(std::string(refused.message()), HasSubstr(message));
    EXPECT_FALSE(collector.part.has_value());
  }
}

TEST_F(GatherTest, MemoryMustFitTheTensor) {
  Put("a", Dtype::kF32, {8, 12}, Both());
  std::string memory(8 * 12 * 4, '\0');
  const auto gather = [&](Dtype dtype, const Shape& shape) {
    return client_->arrays()
        .GatherInto(ArraySelector::ByName("a"),
                    *MutableTensorView::Create(dtype, shape, absl::MakeSpan(memory)))
        .status();
  };
  EXPECT_THAT(gather(Dtype::kF32, {8, 12}), IsOk());
  EXPECT_THAT(gather(Dtype::kF32, {12, 8}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch));
  EXPECT_THAT(gather(Dtype::kI32, {8, 12}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch));
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
}

// The copy of the tile of each rank is on the worker of the next rank.
TEST_F(GatherTest, AWorkerThatIsLostBetweenPiecesIsReplacedByTheSecondCopy) {
  const std::string bytes = Put("a", Dtype::kF32, {8, 12}, Both());
  ArrayDescriptor copied = client_->arrays().DescribeArray(ArraySelector::ByName("a"))->descriptor;
  const std::string array_id = copied.array_id;
  copied.array_id = "copy";
  std::vector<TransferDevice> next = coordinator_->devices();
  std::rotate(next.begin(), next.begin() + 1, next.end());
  v1::SecondCopy copy;
  copy.set_array_id("copy");
  copy.set_token(test::GetToken("copy"));
  for (size_t rank = 0; rank < next.size(); ++rank) {
    next[rank].rank = static_cast<int32_t>(rank);
    v1::DeviceEndpoint& device = *copy.add_devices();
    device.set_rank(next[rank].rank);
    device.set_identity(next[rank].identity);
    device.add_endpoints()->set_address(next[rank].addresses[0]);
  }
  Cancellation streams;
  ASSERT_THAT(Upload(next,
                     {{&copied, test::PutToken("copy"),
                       *TensorView::Create(copied.dtype, copied.shape, bytes)}},
                     &streams, {.deadline = SteadyDeadline::After(absl::Seconds(60))}),
              IsOk());
  coordinator_->OfferSecondCopy(copy);

  Collector collector;
  TensorSink sink = collector.sink();
  sink.append = [&, append = sink.append](absl::Span<const char> piece) {
    if (collector.bytes.empty()) workers_[3]->Stop();
    return append(piece);
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const Array gathered,
      client_->arrays().GatherTo(ArraySelector::ByName("a"), sink, {.piece_bytes = 48}));
  EXPECT_EQ(collector.bytes, bytes);
  EXPECT_EQ(gathered.descriptor.array_id, array_id) << "and not the copy";
  EXPECT_EQ(coordinator_->answered_gets(), 1) << "without another question";

  // Slices of one element in each tile, and a file.
  for (const auto& [row, column] : {std::pair(1, 2), std::pair(1, 9), std::pair(6, 2), {6, 9}}) {
    const auto element = client_->arrays().Gather(ArraySelector::ByName("a"),
                                                  ArraySlice{{row, row + 1}, {column, column + 1}});
    ASSERT_THAT(element, IsOk());
    EXPECT_EQ(Bytes(element->view().bytes()),
              bytes.substr(static_cast<size_t>(4 * (12 * row + column)), 4));
  }
  ASSERT_THAT(client_->arrays().GatherToSafetensors(
                  std::vector<FileTensor>{{.name = "a", .array = ArraySelector::ByName("a")}},
                  Path("a.safetensors")),
              IsOk());
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
}

TEST_F(GatherTest, AnErrorOfTheSinkEndsTheGather) {
  Put("a", Dtype::kF32, {8, 12}, Both());
  int pieces = 0;
  const TensorSink sink{.begin = [](const Array&, const Tile&) { return absl::OkStatus(); },
                        .append =
                            [&pieces](absl::Span<const char>) {
                              return ++pieces < 3
                                         ? absl::OkStatus()
                                         : absl::ResourceExhaustedError("the disk is full");
                            }};
  EXPECT_THAT(client_->arrays().GatherTo(ArraySelector::ByName("a"), sink, {.piece_bytes = 48}),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(pieces, 3);
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
}

TEST_F(GatherTest, TheProgressOfPiecesIsThatOfTheWhole) {
  Put("a", Dtype::kU8, {64, 64}, Both());
  int64_t last = 0;
  Collector collector;
  ASSERT_THAT(client_->arrays().GatherTo(ArraySelector::ByName("a"), collector.sink(),
                                         {.progress =
                                              [&last](int64_t done, int64_t total) {
                                                EXPECT_EQ(total, 64 * 64);
                                                EXPECT_GE(done, last);
                                                last = done;
                                              },
                                          .piece_bytes = 1000}),
              IsOk());
  EXPECT_EQ(last, 64 * 64);
}

TEST_F(GatherTest, TilesAndSlicesThatBeginWithinAByteHaveTheirElements) {
  // Tiles of 3 x 5 elements: no row of a tile and no tile fills whole bytes.
  for (const Dtype dtype : {Dtype::kF4, Dtype::kF6E3M2}) {
    const std::string name(DtypeName(dtype));
    const std::string bytes = Put(name, dtype, {6, 10}, Both());
    const int64_t bits = BitsPerElement(dtype);
    for (int64_t r0 = 0; r0 < 6; ++r0) {
      for (int64_t r1 = r0 + 1; r1 <= 6; ++r1) {
        for (const auto& [c0, c1] : std::vector<std::pair<int64_t, int64_t>>{
                 {0, 10}, {0, 5}, {5, 10}, {3, 7}, {9, 10}, {1, 4}, {4, 10}}) {
          const int64_t columns = c1 - c0;
          const int64_t count = (r1 - r0) * columns;
          std::string cut(static_cast<size_t>((count * bits + 7) / 8), '\0');
          for (int64_t bit = 0; bit < count * bits; ++bit) {
            const int64_t element = bit / bits;
            const int64_t from =
                ((r0 + element / columns) * 10 + c0 + element % columns) * bits + bit % bits;
            const int value = bytes[static_cast<size_t>(from / 8)] >> (from % 8) & 1;
            char& byte = cut[static_cast<size_t>(bit / 8)];
            byte = static_cast<char>(byte | value << (bit % 8));
          }
          SCOPED_TRACE(StrCat(name, " ", r0, ":", r1, ",", c0, ":", c1));
          const ArraySlice slice = {{r0, r1}, {c0, c1}};
          std::string memory(cut.size(), '\x5a');
          const auto view =
              *MutableTensorView::Create(dtype, {r1 - r0, columns}, absl::MakeSpan(memory));
          ASSERT_THAT(
              client_->arrays().GatherInto(ArraySelector::ByName(name), view, {.slice = slice}),
              IsOk());
          ASSERT_EQ(memory, cut);
          Collector collector;
          ASSERT_THAT(client_->arrays().GatherTo(ArraySelector::ByName(name), collector.sink(),
                                                 {.slice = slice, .piece_bytes = 2}),
                      IsOk());
          ASSERT_EQ(collector.bytes, cut);
        }
      }
    }
  }
}

TEST_F(GatherTest, SafetensorsKeepEveryElementType) {
  std::vector<FileTensor> tensors;
  std::vector<std::string> bytes;
  const std::vector<Dtype> dtypes = {Dtype::kBF16, Dtype::kF8E4M3Fn, Dtype::kF8E5M2, Dtype::kF4,
                                     Dtype::kF16,  Dtype::kI64,      Dtype::kBool};
  for (const Dtype dtype : dtypes) {
    const std::string name(DtypeName(dtype));
    bytes.push_back(Put(name, dtype, {8, 16}, Both()));
    tensors.push_back({.name = name, .array = ArraySelector::ByName(name)});
  }
  tensors.push_back(
      {.name = "cut", .array = ArraySelector::ByName("BF16"), .slice = ArraySlice{{1, 2}, {}}});
  ASSERT_THAT(client_->arrays().GatherToSafetensors(tensors, Path("all.safetensors")), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file,
                                 SafetensorsFile::Open(Path("all.safetensors")));
  ASSERT_EQ(file.header().tensors().size(), tensors.size());
  for (size_t i = 0; i < dtypes.size(); ++i) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorView view, file.View(tensors[i].name));
    EXPECT_EQ(view.dtype(), dtypes[i]);
    EXPECT_EQ(Bytes(view.bytes()), bytes[i]) << tensors[i].name;
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorView cut, file.View("cut"));
  EXPECT_EQ(Bytes(cut.bytes()), bytes[0].substr(32, 32));
  EXPECT_EQ(Files(folder_).size(), 1u);
  tensors.push_back(tensors.front());
  EXPECT_THAT(client_->arrays().GatherToSafetensors(tensors, Path("twice.safetensors")),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
  // NumPy has no type for these.
  const absl::Status untyped =
      client_->arrays().GatherToNpy(ArraySelector::ByName("F8_E4M3"), Path("x.npy")).status();
  EXPECT_THAT(untyped, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype));
  EXPECT_THAT(std::string(untyped.message()), HasSubstr("write a .safetensors file instead"));
  EXPECT_EQ(Files(folder_).size(), 1u);
}

TEST_F(GatherTest, AllTensorsOfAFileAreOfOneMoment) {
  const std::string a = Put("a", Dtype::kU8, {4, 16}, Both());
  Put("b", Dtype::kU8, {4, 16}, Both());
  const std::string c = Put("c", Dtype::kU8, {8, 16}, Both());
  const std::vector<FileTensor> tensors = {{.name = "a", .array = ArraySelector::ByName("a")},
                                           {.name = "b", .array = ArraySelector::ByName("b")}};
  // "b" becomes another array when "a" is pinned, and its old array goes.
  coordinator_->BeforeNextGet([this] { coordinator_->MoveName("b", "c"); });
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const std::vector<Array> arrays,
      client_->arrays().GatherToSafetensors(tensors, Path("all.safetensors")));
  ASSERT_EQ(arrays.size(), 2);
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file,
                                 SafetensorsFile::Open(Path("all.safetensors")));
  EXPECT_EQ(Bytes(file.View("a")->bytes()), a);
  EXPECT_EQ(Bytes(file.View("b")->bytes()), c);
}

TEST_F(GatherTest, TheArraysOfAFileStayPinnedUntilAllAreRead) {
  std::vector<FileTensor> tensors;
  for (const char* const name : {"a", "b", "c"}) {
    Put(name, Dtype::kU8, {4, 16}, Both());
    tensors.push_back({.name = name, .array = ArraySelector::ByName(name)});
  }
  size_t fewest = 3;
  const auto progress = [&](int64_t, int64_t) {
    fewest = std::min(fewest, coordinator_->pinned_arrays().size());
  };
  EXPECT_THAT(client_->arrays().GatherToFolder(tensors, Path("model"), 64, progress), IsOk());
  EXPECT_EQ(fewest, 3);
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
  // After an error too.
  EXPECT_FALSE(client_->arrays().GatherToSafetensors(tensors, Path("none/x.safetensors")).ok());
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
  tensors.push_back({.name = "missing", .array = ArraySelector::ByName("missing")});
  EXPECT_THAT(client_->arrays().GatherToFolder(tensors, Path("other"), 64),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
}

TEST_F(GatherTest, ANameThatMeansAnotherArrayPinsNothing) {
  const std::string a = Put("a", Dtype::kU8, {4, 16}, Both());
  const std::string c = Put("c", Dtype::kU8, {8, 16}, Both());
  const std::vector<FileTensor> tensors = {{.name = "a", .array = ArraySelector::ByName("a")}};
  const auto gathered = [&]() -> std::string {
    const absl::Status status =
        client_->arrays().GatherToSafetensors(tensors, Path("a.safetensors")).status();
    EXPECT_THAT(status, IsOk());
    if (!status.ok()) return "";
    return Bytes(SafetensorsFile::Open(Path("a.safetensors"))->View("a")->bytes());
  };
  // The name moves after the array was found. Another name keeps the array.
  coordinator_->MoveName("kept", "a");
  coordinator_->BeforeNextGet([this] { coordinator_->MoveName("a", "c"); });
  EXPECT_EQ(gathered(), a);
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
  // The array goes with its name: the newer one is read.
  coordinator_->MoveName("a", "kept");
  coordinator_->MoveName("kept", "c");
  coordinator_->BeforeNextGet([this] { coordinator_->MoveName("a", "c"); });
  EXPECT_EQ(gathered(), c);
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
}

// Asks for the array as a read does. The request pins it.
void BeginReading(ReadPins& pins, const std::string& array_id) {
  pins.BeginAsking();
  BegunGet get;
  get.array.descriptor.array_id = array_id;
  get.pinned = true;
  EXPECT_THAT(pins.EndAsking(get), IsEmpty());
}

TEST(ReadPinsTest, TheEndOfAReleaseTakesTheArraysOfReadsThatEndedMeanwhile) {
  ReadPins pins;
  for (const std::string id : {"a", "b", "c"}) BeginReading(pins, id);
  EXPECT_THAT(pins.EndReading({"a"}), ElementsAre("a"));
  EXPECT_THAT(pins.EndReading({"b"}), IsEmpty()) << "the release of a is in progress";
  EXPECT_THAT(pins.EndLettingGo(), ElementsAre("b"));
  EXPECT_THAT(pins.EndLettingGo(), IsEmpty());
  EXPECT_THAT(pins.EndReading({"c"}), ElementsAre("c"));
}

TEST(ReadPinsTest, AFailedRequestTakesTheArraysOfReadsThatEndedMeanwhile) {
  ReadPins pins;
  BeginReading(pins, "a");
  pins.BeginAsking();
  pins.BeginAsking();
  EXPECT_THAT(pins.EndReading({"a"}), IsEmpty()) << "a request may rely on the pin";
  EXPECT_THAT(pins.EndAsking(absl::NotFoundError("no b")), IsEmpty()) << "so may the other one";
  EXPECT_THAT(pins.EndAsking(absl::NotFoundError("no c")), ElementsAre("a"));
  EXPECT_THAT(pins.EndLettingGo(), IsEmpty());
}

TEST_F(GatherTest, AFolderIsSplitBySizeAndReadAsACheckpoint) {
  std::vector<FileTensor> tensors;
  std::vector<std::string> bytes;
  for (const int64_t rows : {2, 4, 2, 16, 2, 2}) {
    const std::string name = StrCat("w", tensors.size());
    bytes.push_back(Put(name, Dtype::kU8, {rows, 16}, Both()));
    tensors.push_back({.name = name, .array = ArraySelector::ByName(name)});
  }
  // 96 bytes, then 32, then 256 for the tensor that is larger than a file, and 64.
  const auto gathered = client_->arrays().GatherToFolder(tensors, Path("model/"), 96);
  ASSERT_THAT(gathered, IsOk());
  EXPECT_EQ(Files(Path("model")),
            (std::vector<std::string>{
                "model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors",
                "model.safetensors.index.json"}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(Path("model")));
  ASSERT_EQ(checkpoint.tensors().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Checkpoint::Entry* const entry = checkpoint.Find(tensors[i].name);
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(Bytes(checkpoint.View(*entry).bytes()), bytes[i]);
  }
  // Not over what is there, but into an empty folder.
  EXPECT_THAT(client_->arrays().GatherToFolder(tensors, Path("model"), 96),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  fs::create_directory(Path("empty"));
  ASSERT_THAT(client_->arrays().GatherToFolder(tensors, Path("empty"), 1 << 20), IsOk());
  EXPECT_EQ(Files(Path("empty")), std::vector<std::string>{"model.safetensors"});
  EXPECT_EQ(Files(folder_), (std::vector<std::string>{"empty", "model"}));
}

TEST_F(GatherTest, ASliceOfSeveralArraysThatDoesNotFitNamesTheArray) {
  Put("a", Dtype::kU8, {16, 16}, Both());
  Put("b", Dtype::kU8, {8, 16}, Both());
  const ArraySlice slice = {{0, 12}, {}};
  const std::vector<FileTensor> tensors = {
      {.name = "a", .array = ArraySelector::ByName("a"), .slice = slice},
      {.name = "b", .array = ArraySelector::ByName("b"), .slice = slice}};
  const absl::Status refused =
      client_->arrays().GatherToSafetensors(tensors, Path("x.safetensors")).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("\"b\": the range 0:12 of dimension 0 is not in the array"));
}

// A folder of several files is refused before the first of them is written.
TEST_F(GatherTest, AFileWithoutPaddingNamesTheTensorThatDoesNotFillItsLastByte) {
  Put("a", Dtype::kU8, {16, 16}, Both());
  Put("b", Dtype::kF4, {6, 10}, Both());
  std::vector<FileTensor> tensors = {
      {.name = "a", .array = ArraySelector::ByName("a"), .slice = std::nullopt},
      {.name = "b", .array = ArraySelector::ByName("b"), .slice = ArraySlice{{0, 1}, {0, 5}}}};
  int64_t done = 0;
  const auto progress = [&done](int64_t bytes, int64_t) { done = std::max(done, bytes); };
  const absl::Status refused =
      client_->arrays().GatherToFolder(tensors, Path("model"), 64, progress).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidShape));
  EXPECT_THAT(std::string(refused.message()),
              ::testing::AllOf(HasSubstr("cannot hold \"b\""), HasSubstr("5 elements of F4")));
  EXPECT_EQ(done, 0);
  tensors[1].slice = ArraySlice{{0, 1}, {0, 6}};
  EXPECT_THAT(client_->arrays().GatherToFolder(tensors, Path("model"), 64), IsOk());
}

TEST_F(GatherTest, MakesTheFoldersAboveAFolderAndLeavesNoneAfterAnError) {
  const std::vector<FileTensor> tensors = {{.name = "w", .array = ArraySelector::ByName("w")}};
  Put("w", Dtype::kU8, {16, 16}, Both());
  fs::create_directory(Path("there"));
  ASSERT_THAT(ArmFailpoints("file.create=eio"), IsOk());
  EXPECT_FALSE(client_->arrays().GatherToFolder(tensors, Path("there/a/b/model"), 1 << 20).ok());
  EXPECT_EQ(Files(folder_), std::vector<std::string>{"there"});
  EXPECT_EQ(Files(Path("there")), std::vector<std::string>{});
  ASSERT_THAT(client_->arrays().GatherToFolder(tensors, Path("there/a/b/model"), 1 << 20), IsOk());
  EXPECT_EQ(Files(Path("there/a/b")), std::vector<std::string>{"model"});
  EXPECT_THAT(Checkpoint::Open(Path("there/a/b/model")), IsOk());
  std::ofstream(Path("file")).close();
  EXPECT_FALSE(client_->arrays().GatherToFolder(tensors, Path("file/a/model"), 1 << 20).ok());
}

TEST_F(GatherTest, AFolderThatCannotBeMadeLeavesNoneAboveIt) {
  const std::vector<FileTensor> tensors = {{.name = "w", .array = ArraySelector::ByName("w")}};
  Put("w", Dtype::kU8, {16, 16}, Both());
  // The folder could have this name, but not the longer one that it has until it is finished.
  const std::string name(250, 'n');
  EXPECT_FALSE(client_->arrays().GatherToFolder(tensors, Path("a/b/" + name), 1 << 20).ok());
  EXPECT_THAT(Files(folder_), IsEmpty());
}

TEST_F(GatherTest, TheFoldersAboveAFolderAreOnDiskWithIt) {
  const std::vector<FileTensor> tensors = {{.name = "w", .array = ArraySelector::ByName("w")}};
  Put("w", Dtype::kU8, {16, 16}, Both());
  // The syncs of the folder for its file, of the folder itself, of those in which "b" and "a" are
  // new, and last of "b", in which the folder gets its name.
  for (int sync = 1; sync <= 5; ++sync) {
    const std::string first = StrCat("a", sync);
    ASSERT_THAT(ArmFailpoints(StrCat("file.sync_folder=eio:", sync)), IsOk());
    EXPECT_FALSE(client_->arrays().GatherToFolder(tensors, Path(first + "/b/model"), 1 << 20).ok())
        << sync;
    EXPECT_EQ(fs::exists(Path(first)), sync == 5) << sync;
  }
  ASSERT_THAT(ArmFailpoints("file.sync_folder=eio:6"), IsOk());
  EXPECT_THAT(client_->arrays().GatherToFolder(tensors, Path("a/b/model"), 1 << 20), IsOk());
  // The sixth sync is the first one of the next folder.
  EXPECT_FALSE(client_->arrays().GatherToFolder(tensors, Path("next"), 1 << 20).ok());
  EXPECT_THAT(client_->arrays().GatherToFolder(tensors, Path("next"), 1 << 20), IsOk());
}

TEST_F(GatherTest, ALinkToAnEmptyFolderStaysAndLeadsToTheFiles) {
  const std::vector<FileTensor> tensors = {{.name = "w", .array = ArraySelector::ByName("w")}};
  Put("w", Dtype::kU8, {16, 16}, Both());
  fs::create_directories(Path("inner/target"));
  fs::create_directory_symlink("inner/target", Path("link"));
  ASSERT_THAT(client_->arrays().GatherToFolder(tensors, Path("link/"), 1 << 20), IsOk());
  EXPECT_THAT(Checkpoint::Open(Path("link")), IsOk());
  EXPECT_TRUE(fs::is_symlink(Path("link")));
  EXPECT_EQ(Files(Path("inner")), std::vector<std::string>{"target"});
  fs::create_directory(Path("dots"));
  ASSERT_THAT(client_->arrays().GatherToFolder(tensors, Path("dots/."), 1 << 20), IsOk());
  EXPECT_EQ(Files(Path("dots")), std::vector<std::string>{"model.safetensors"});
}

TEST_F(GatherTest, ABadTargetIsFoundBeforeAnythingIsRead) {
  const std::vector<FileTensor> tensors = {{.name = "w", .array = ArraySelector::ByName("w")}};
  Put("w", Dtype::kU8, {16, 16}, Both());
  std::ofstream(Path("file")).close();  // empty
  fs::create_symlink("file", Path("link"));
  fs::create_symlink("loop", Path("loop"));
  fs::create_symlink("nothing", Path("dangling"));
  const std::vector<std::string> before = Files(folder_);
  const auto gets = [this] {
    int64_t sum = 0;
    for (const auto& worker : workers_) sum += worker->gets();
    return sum;
  };
  const int64_t gets_before = gets();
  for (const std::string name : {"file", "link"}) {
    EXPECT_THAT(client_->arrays().GatherToFolder(tensors, Path(name), 1 << 20),
                StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists))
        << name;
  }
  for (const std::string name : {"loop", "dangling"}) {
    EXPECT_THAT(client_->arrays().GatherToFolder(tensors, Path(name), 1 << 20),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile))
        << name;
  }
  EXPECT_FALSE(client_->arrays().GatherToFolder(tensors, Path("file/new"), 1 << 20).ok());
  EXPECT_THAT(client_->arrays().GatherToFolder(tensors, "", 1 << 20),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
  EXPECT_EQ(gets(), gets_before);
  EXPECT_EQ(Files(folder_), before);
}

// In containers, processes often have the number 1, and one that was killed left its folder.
TEST_F(GatherTest, TakesNoTemporaryFolderOfAnother) {
  const std::vector<FileTensor> tensors = {{.name = "w", .array = ArraySelector::ByName("w")}};
  Put("w", Dtype::kU8, {16, 16}, Both());
  std::vector<std::string> names = {"model"};
  for (int i = 0; i < 200; ++i) {
    names.push_back(StrCat("model.", getpid(), ".", i, ".partial"));
    fs::create_directory(Path(names.back()));
  }
  ASSERT_THAT(client_->arrays().GatherToFolder(tensors, Path("model"), 1 << 20), IsOk());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(Files(folder_), names);
  for (size_t i = 1; i < names.size(); ++i) EXPECT_TRUE(fs::is_empty(Path(names[i])));
}

TEST_F(GatherTest, AFullDiskLeavesNothing) {
  std::vector<FileTensor> tensors;
  for (const std::string name : {"a", "b", "c"}) {
    Put(name, Dtype::kU8, {16, 16}, Both());
    tensors.push_back({.name = name, .array = ArraySelector::ByName(name)});
  }
  for (const int hit : {1, 2, 3, 4, 6}) {
    ASSERT_THAT(ArmFailpoints(StrCat("file.write=enospc:", hit)), IsOk());
    EXPECT_THAT(client_->arrays().GatherToFolder(tensors, Path("model"), 256),
                StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull))
        << hit;
    EXPECT_THAT(Files(folder_), IsEmpty()) << hit;
  }
  ASSERT_THAT(ArmFailpoints("file.write=enospc:2"), IsOk());
  EXPECT_THAT(client_->arrays().GatherToNpy(ArraySelector::ByName("a"), Path("a.npy")),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
  EXPECT_THAT(Files(folder_), IsEmpty());
  EXPECT_THAT(client_->arrays().GatherToFolder(tensors, Path("model"), 256), IsOk());
}

TEST_F(GatherTest, AnArrayThatIsGoneIsNamedAndNothingIsLeft) {
  Put("a", Dtype::kU8, {16, 16}, Both());
  EXPECT_THAT(client_->arrays().GatherToFolder(
                  std::vector<FileTensor>{{.name = "a", .array = ArraySelector::ByName("a")},
                                          {.name = "b", .array = ArraySelector::ByName("b")}},
                  Path("model"), 256),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Files(folder_), IsEmpty());
}

TEST_F(GatherTest, KeepsAConnectionForTheSameProcessOfAWorkerOnly) {
  WorkerConnections connections;
  const auto connect = [&] {
    return *WorkerClient::Connect("w", {workers_[0]->address()}, rpc::Credentials::Insecure(),
                                  absl::Now() + absl::Seconds(10));
  };
  EXPECT_EQ(connections.Take("w", 1), nullptr);
  auto first = connect();
  const WorkerClient* const raw = first.get();
  connections.Keep("w", 1, std::move(first));
  EXPECT_EQ(connections.Take("w", 2), nullptr);
  EXPECT_EQ(connections.Take("v", 1), nullptr);
  EXPECT_EQ(connections.Take("w", 1).get(), raw);
  EXPECT_EQ(connections.Take("w", 1), nullptr);
  for (size_t i = 0; i < WorkerConnections::kMaxIdle + 2; ++i) {
    connections.Keep("w", i, connect());
  }
  EXPECT_EQ(connections.size(), WorkerConnections::kMaxIdle);
  EXPECT_EQ(connections.Take("w", 1), nullptr);
}

TEST_F(GatherTest, ASliceAfterAMoveOfTheNameIsOfTheNewArray) {
  const std::string old_bytes = Put("a", Dtype::kU8, {6, 8}, Both());
  const ArraySlice slice = {{0, 2}, {}};
  ASSERT_THAT(client_->arrays().Gather(ArraySelector::ByName("a"), slice), IsOk());
  // The client remembers the place of the slice. In a new array it lies elsewhere, or nowhere.
  for (const Shape& shape : std::vector<Shape>{{2, 4}, {8, 16}, {6, 8}}) {
    const std::string bytes = Put("a", Dtype::kU8, shape, Both());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const GatheredTensor cut,
                                   client_->arrays().Gather(ArraySelector::ByName("a"), slice));
    EXPECT_EQ(Bytes(cut.view().bytes()), bytes.substr(0, static_cast<size_t>(2 * shape[1])));
  }
}

}  // namespace
}  // namespace shardmesh::client
