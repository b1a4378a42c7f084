// Moves between random layouts, bit for bit what plain indexing gives, with the bytes that the
// reshard plans promise; and moves whose ranks come late, stop or do not read. Ranks are threads.
#include "worker/collective/region_move.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "program/move_plan.h"
#include "program/plan_check.h"
#include "program/plan_forecast.h"
#include "program/step_plan.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/in_process_link.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/collective/collective_data.h"
#include "tests/unit/worker/collective/counting_link.h"
#include "tests/unit/worker/collective/random_layouts.h"

// Cases of each seed. Builds with sanitizers, which are slow, set a smaller number.
#ifndef SHARDMESH_MOVE_CASES
#define SHARDMESH_MOVE_CASES 1300
#endif

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::InProcessRanks;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kMaxRanks = 8;

// A move between two layouts on a mesh of at most kMaxRanks devices.
struct MoveCase {
  Mesh mesh;
  ValueDescriptor from;
  ValueDescriptor to;
  int64_t piece_bytes = 1;
  int64_t window_bytes = 1;
  std::string tensor = {};
  std::optional<ReshardPlan> plan = {};
  std::string name = {};
};

// A random move, and what is known about it before it runs.
struct RandomMoveCase {
  MoveCase move;
  bool is_ragged = false;       // see RandomTensor
  bool has_empty_part = false;  // see RandomLayout
};

RandomMoveCase NextMove(LayoutDice& dice) {
  static constexpr const char* kMeshes[] = {
      "a=1", "a=2", "a=3",     "a=4",     "a=2,b=2",     "a=5",         "a=2,b=3", "a=3,b=2",
      "a=7", "a=8", "a=2,b=4", "a=4,b=2", "a=2,b=2,c=2", "a=2,b=1,c=3", "a=6"};
  RandomMoveCase next;
  MoveCase& c = next.move;
  c.mesh = dice.OneOf(kMeshes);
  RandomTensor tensor = dice.Tensor();
  const RandomLayout from = dice.Layout(c.mesh, tensor);
  const RandomLayout to = dice.Layout(c.mesh, tensor);
  c.from = {.dtype = tensor.dtype,
            .shape = tensor.shape,
            .spec = from.spec,
            .cut_points = from.cut_points};
  c.to = c.from;
  c.to.spec = to.spec;
  c.to.cut_points = to.cut_points;
  c.piece_bytes = 1 + static_cast<int64_t>(dice.Below(60));
  c.window_bytes = c.mesh.size() * c.piece_bytes * static_cast<int64_t>(1 + dice.Below(3));
  c.name = StrCat(c.mesh.ToString(), " ", DtypeName(tensor.dtype), " ", ShapeToString(tensor.shape),
                  " ", from.ToString(), " -> ", to.ToString());
  next.is_ragged = tensor.is_ragged();
  next.has_empty_part = from.has_empty_part || to.has_empty_part;
  c.tensor = std::move(tensor.bytes);
  c.plan = *MovePlan(c.mesh, c.from, c.to);
  return next;
}

// Runs the case on one rank, and returns the new tile. Adds the bytes of the pieces that came.
absl::StatusOr<std::string> RunCase(const MoveCase& c, Link* link, int64_t op,
                                    std::atomic<int64_t>* received_bytes = nullptr) {
  const DeviceId rank = link->rank();
  SHARDMESH_RETURN_IF_ERROR(link->Begin(op, MoveSignature(*c.plan, "a tensor")));
  const auto old_tile = std::make_shared<const std::string>(
      TileOfTensor(c.tensor, c.from.dtype, c.from.shape, c.plan->from().TileOf(rank)));
  std::string new_tile(
      static_cast<size_t>(*PackedSizeBytes(c.to.dtype, c.plan->to().TileOf(rank).element_count())),
      '\x5a');
  const DeviceGroup group = GroupOf(c.mesh.size(), rank);
  CollectiveCall call = CallOf(link, group);
  call.op = op;
  if (received_bytes != nullptr) {
    call.piece_received = [received_bytes](int64_t bytes) { *received_bytes += bytes; };
  }
  SHARDMESH_RETURN_IF_ERROR(
      RunRegionMove(call, {.plan = &*c.plan,
                           .dtype = c.from.dtype,
                           .from = {{old_tile->data(), old_tile->size()}, old_tile},
                           .to = absl::MakeSpan(new_tile),
                           .piece_bytes = c.piece_bytes,
                           .window_bytes = c.window_bytes}));
  return new_tile;
}

// 13,000 cases, in builds without sanitizers. RandomMeshMoveTest has 20,000 cases between different
// meshes. Each rank runs all cases one after the other, as ops of one step, and does not wait for
// the other ranks but for their data: some ranks are cases ahead.
class RandomMoveTest : public testing::TestWithParam<uint32_t> {};

TEST_P(RandomMoveTest, EachRankGetsItsTileForTheBytesOfThePlan) {
  constexpr size_t kCases = SHARDMESH_MOVE_CASES;
  LayoutDice dice(GetParam());
  std::vector<RandomMoveCase> cases;
  for (size_t i = 0; i < kCases; ++i) cases.push_back(NextMove(dice));
  InProcessRanks world(kMaxRanks, /*piece_bytes=*/13);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  std::vector<std::atomic<int64_t>> sent_bytes(kCases);
  std::vector<std::atomic<int64_t>> received_bytes(kCases);
  const auto outcomes = world.RunOnAll([&](DeviceId rank) -> absl::Status {
    for (size_t i = 0; i < kCases; ++i) {
      const MoveCase& c = cases[i].move;
      if (rank >= c.mesh.size()) continue;
      CountingLink link(world.link(rank), kMaxRanks);
      const auto tile = RunCase(c, &link, static_cast<int64_t>(i), &received_bytes[i]);
      if (!tile.ok()) return WithContext(tile.status(), StrCat("case ", i, ": ", c.name));
      sent_bytes[i] += link.total_bytes();
      if (*tile != TileOfTensor(c.tensor, c.to.dtype, c.to.shape, c.plan->to().TileOf(rank))) {
        return absl::InternalError(StrCat("case ", i, ", rank ", rank, " differs: ", c.name));
      }
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(outcomes, Each(IsOk()));
  size_t ragged = 0;
  size_t with_empty_parts = 0;
  for (size_t i = 0; i < kCases; ++i) {
    const MoveCase& c = cases[i].move;
    with_empty_parts += cases[i].has_empty_part ? 1 : 0;
    ragged += cases[i].is_ragged ? 1 : 0;
    EXPECT_EQ(sent_bytes[i], *MoveBytes(*c.plan, c.from.dtype, *c.plan->Totals())) << c.name;
    if (!cases[i].is_ragged) {
      EXPECT_EQ(sent_bytes[i], c.plan->Totals()->need * BitsPerElement(c.from.dtype) / 8) << c.name;
    }
    EXPECT_EQ(received_bytes[i], sent_bytes[i]) << c.name;
  }
  // 3 of 20 types have elements of less than a byte, and one in eight of their tensors is ragged.
  EXPECT_GE(ragged, kCases / 150);
  EXPECT_GE(with_empty_parts, kCases / 12);
  for (DeviceId rank = 0; rank < kMaxRanks; ++rank) {
    EXPECT_EQ(world.mailbox(rank).held_bytes(), 0) << "something was sent to nobody";
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomMoveTest, testing::Range(uint32_t{1}, uint32_t{11}));

// Rows to columns on two ranks: each sends half of its tile, which is no run of it.
MoveCase RowsToColumns(int64_t extent, int64_t piece_bytes, int64_t window_bytes) {
  MoveCase c;
  c.mesh = *Mesh::Parse("a=2");
  c.from = {.dtype = Dtype::kU8,
            .shape = {extent, extent},
            .spec = PartitionSpec({SpecEntry::Axis("a"), SpecEntry::None()})};
  c.to = c.from;
  c.to.spec = PartitionSpec({SpecEntry::None(), SpecEntry::Axis("a")});
  c.plan = *MovePlan(c.mesh, c.from, c.to);
  c.piece_bytes = piece_bytes;
  c.window_bytes = window_bytes;
  c.tensor.assign(static_cast<size_t>(extent * extent), 'x');
  for (size_t i = 0; i < c.tensor.size(); ++i) c.tensor[i] = static_cast<char>(i * 31 % 127);
  return c;
}

absl::Status RunAndCompare(const MoveCase& c, Link* link) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string tile, RunCase(c, link, 0));
  const Tile wanted = c.plan->to().TileOf(link->rank());
  if (tile == TileOfTensor(c.tensor, c.to.dtype, c.to.shape, wanted)) return absl::OkStatus();
  return absl::InternalError("the tile differs");
}

TEST(RegionMoveTest, RanksThatComeLateInAnyOrderGetTheirTiles) {
  for (const DeviceId late : {0, 1}) {
    const MoveCase c = RowsToColumns(256, /*piece_bytes=*/64, /*window_bytes=*/128);
    InProcessRanks world(2);
    ASSERT_THAT(world.OpenStep(1), IsOk());
    const auto outcomes = world.RunOnAll([&](DeviceId rank) {
      if (rank == late) absl::SleepFor(absl::Milliseconds(50));
      return RunAndCompare(c, world.link(rank));
    });
    EXPECT_THAT(outcomes, Each(IsOk()));
  }
}

// Keeps messages, like a peer that does not read, until it is told to pass them on.
class KeepingLink final : public Link {
 public:
  explicit KeepingLink(Link* base) : base_(base) {}

  // Returns the bytes of the messages that it holds.
  int64_t held_bytes() {
    absl::MutexLock lock(&mutex_);
    int64_t bytes = 0;
    for (const Kept& kept : kept_) bytes += SizeOf(kept.message);
    return bytes;
  }
  absl::Status PassOn() {
    std::vector<Kept> kept;
    {
      absl::MutexLock lock(&mutex_);
      kept.swap(kept_);
    }
    for (Kept& each : kept) {
      SHARDMESH_RETURN_IF_ERROR(base_->Send(each.peer, each.tag, std::move(each.message)));
    }
    return absl::OkStatus();
  }

  DeviceId rank() const override { return base_->rank(); }
  absl::Status Begin(int64_t op, std::string signature) override {
    return base_->Begin(op, std::move(signature));
  }
  absl::Status Send(DeviceId peer, const Tag& tag, OwnedBytes message) override {
    absl::MutexLock lock(&mutex_);
    kept_.push_back({peer, tag, std::move(message)});
    return absl::OkStatus();
  }
  absl::StatusOr<OwnedBytes> Receive(DeviceId peer, const Tag& tag, int64_t message_bytes,
                                     absl::Time deadline) override {
    return base_->Receive(peer, tag, message_bytes, deadline);
  }

 private:
  struct Kept {
    DeviceId peer;
    Tag tag;
    OwnedBytes message;
  };

  Link* const base_;
  absl::Mutex mutex_;
  std::vector<Kept> kept_ ABSL_GUARDED_BY(mutex_);
};

TEST(RegionMoveTest, CopiesThatWaitForTheirReceiverStayWithinTheWindow) {
  // 128 rows of 128 bytes to send, in pieces of 64 bytes.
  const MoveCase c = RowsToColumns(256, /*piece_bytes=*/64, /*window_bytes=*/192);
  InProcessRanks world(2);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  KeepingLink slow(world.link(0));
  std::atomic<bool> done = false;
  int64_t most_held = 0;
  std::thread reader([&] {
    while (!done) {
      most_held = std::max(most_held, slow.held_bytes());
      EXPECT_THAT(slow.PassOn(), IsOk());
      absl::SleepFor(absl::Microseconds(50));
    }
    EXPECT_THAT(slow.PassOn(), IsOk());
  });
  const auto outcomes = world.RunOnAll([&](DeviceId rank) {
    const absl::Status status =
        RunAndCompare(c, rank == 0 ? static_cast<Link*>(&slow) : world.link(1));
    if (rank == 0) done = true;
    return status;
  });
  reader.join();
  EXPECT_THAT(outcomes, Each(IsOk()));
  EXPECT_GT(most_held, 0);
  EXPECT_LE(most_held, 192);
}

// Columns to other columns: only rank 0 sends, and only rank 1 receives.
MoveCase OneSends() {
  MoveCase c = RowsToColumns(64, /*piece_bytes=*/8, /*window_bytes=*/16);
  c.from.spec = PartitionSpec({SpecEntry::None(), SpecEntry::Axis("a")});
  c.from.cut_points = {{}, {0, 63, 64}};
  c.to.cut_points = {{}, {0, 5, 64}};
  c.plan = *MovePlan(c.mesh, c.from, c.to);
  return c;
}

TEST(RegionMoveTest, ARankWithLittleMemoryForCopiesWaitsForItsReceivers) {
  const MoveCase c = RowsToColumns(256, /*piece_bytes=*/64, /*window_bytes=*/1 << 20);
  InProcessRanks world(2);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  const auto outcomes = world.RunOnAll([&](DeviceId rank) -> absl::Status {
    // Memory for two pieces, which returns with their last owner.
    const auto left = std::make_shared<std::atomic<int>>(2);
    const DeviceGroup group = GroupOf(2, rank);
    CollectiveCall call = CallOf(world.link(rank), group);
    call.scratch = [left](int64_t size_bytes) -> absl::StatusOr<OwnedMutableBytes> {
      if (left->fetch_sub(1) <= 0) {
        left->fetch_add(1);
        return absl::ResourceExhaustedError("no memory");
      }
      const std::shared_ptr<char[]> bytes(new char[static_cast<size_t>(size_bytes)],
                                          [left](const char* memory) {
                                            delete[] memory;
                                            left->fetch_add(1);
                                          });
      return OwnedMutableBytes{{bytes.get(), static_cast<size_t>(size_bytes)}, bytes};
    };
    const std::string old_tile =
        TileOfTensor(c.tensor, c.from.dtype, c.from.shape, c.plan->from().TileOf(rank));
    std::string new_tile(256 * 128, 'n');
    SHARDMESH_RETURN_IF_ERROR(RunRegionMove(call, {.plan = &*c.plan,
                                                   .dtype = Dtype::kU8,
                                                   .from = {{old_tile.data(), old_tile.size()}, {}},
                                                   .to = absl::MakeSpan(new_tile),
                                                   .piece_bytes = c.piece_bytes,
                                                   .window_bytes = c.window_bytes}));
    return new_tile == TileOfTensor(c.tensor, c.to.dtype, c.to.shape, c.plan->to().TileOf(rank))
               ? absl::OkStatus()
               : absl::InternalError("the tile differs");
  });
  EXPECT_THAT(outcomes, Each(IsOk()));
}

TEST(RegionMoveTest, ARankWithoutMemoryForCopiesSaysSo) {
  const MoveCase c = OneSends();
  InProcessRanks world(2);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  const DeviceGroup group = GroupOf(2, 0);
  CollectiveCall call = CallOf(world.link(0), group);
  call.scratch = [](int64_t) { return absl::ResourceExhaustedError("no memory"); };
  const std::string old_tile(64 * 63, 'o');
  std::string new_tile(64 * 5, 'n');
  EXPECT_THAT(RunRegionMove(call, {.plan = &*c.plan,
                                   .dtype = Dtype::kU8,
                                   .from = {{old_tile.data(), old_tile.size()}, nullptr},
                                   .to = absl::MakeSpan(new_tile),
                                   .piece_bytes = c.piece_bytes,
                                   .window_bytes = c.window_bytes}),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(RegionMoveTest, ARankThatOnlySendsWaitsForItsReceiverAndSaysForWhom) {
  const MoveCase c = OneSends();
  InProcessRanks world(2);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  KeepingLink deaf(world.link(0));
  const DeviceGroup group = GroupOf(2, 0);
  CollectiveCall call = CallOf(&deaf, group);
  std::vector<DeviceId> waited;
  call.waits_for = [&](DeviceId peer) { waited.push_back(peer); };
  call.deadline = absl::Now() + absl::Milliseconds(30);
  const std::string old_tile =
      TileOfTensor(c.tensor, c.from.dtype, c.from.shape, c.plan->from().TileOf(0));
  std::string new_tile(64 * 5, '\0');
  const RegionMove move = {.plan = &*c.plan,
                           .dtype = Dtype::kU8,
                           .from = {{old_tile.data(), old_tile.size()}, nullptr},
                           .to = absl::MakeSpan(new_tile),
                           .piece_bytes = c.piece_bytes,
                           .window_bytes = c.window_bytes};
  const absl::Status late = RunRegionMove(call, move);
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(std::string(late.message()), HasSubstr("waited for rank 1 to read"));
  ASSERT_FALSE(waited.empty());
  EXPECT_THAT(waited, Each(1));
  EXPECT_EQ(deaf.held_bytes(), 16) << "two pieces, which is the window";
}

TEST(RegionMoveTest, AnAbortReachesARankThatWaitsForRoomAndOneThatWaitsForData) {
  const MoveCase c = RowsToColumns(256, /*piece_bytes=*/64, /*window_bytes=*/64);
  InProcessRanks world(2);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  KeepingLink deaf(world.link(0));
  const absl::Status aborted = absl::CancelledError("the step was aborted");
  std::atomic<int> checks = 0;
  const auto outcomes = world.RunOnAll([&](DeviceId rank) -> absl::Status {
    Link* const link = rank == 0 ? static_cast<Link*>(&deaf) : world.link(1);
    const DeviceGroup group = GroupOf(2, rank);
    CollectiveCall call = CallOf(link, group);
    call.check = [&] {
      if (++checks < 3) return absl::OkStatus();
      for (DeviceId each : {0, 1}) world.mailbox(each).Abort(1, aborted);
      return aborted;
    };
    std::string old_tile(256 * 128, 'o');
    std::string new_tile(256 * 128, 'n');
    return RunRegionMove(call, {.plan = &*c.plan,
                                .dtype = Dtype::kU8,
                                .from = {{old_tile.data(), old_tile.size()}, nullptr},
                                .to = absl::MakeSpan(new_tile),
                                .piece_bytes = c.piece_bytes,
                                .window_bytes = c.window_bytes});
  });
  EXPECT_THAT(outcomes, Each(StatusIs(absl::StatusCode::kCancelled)));
}

TEST(RegionMoveTest, TilesOfAnotherSizeAreRefused) {
  const MoveCase c = RowsToColumns(16, 64, 128);
  InProcessRanks world(2);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  const DeviceGroup group = GroupOf(2, 0);
  std::string tile(16 * 8 - 1, 'x');
  EXPECT_THAT(
      RunRegionMove(CallOf(world.link(0), group), {.plan = &*c.plan,
                                                   .dtype = Dtype::kU8,
                                                   .from = {{tile.data(), tile.size()}, nullptr},
                                                   .to = absl::MakeSpan(tile)}),
      StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(RegionMoveTest, SignaturesTellMovesApart) {
  const MoveCase c = OneSends();
  EXPECT_EQ(MoveSignature(*c.plan, "U8[64,64]"),
            "move of U8[64,64] from P(None, 'a') cut at ; 63 to P(None, 'a') cut at ; 5");
  MoveCase other = c;
  other.to.cut_points = {{}, {0, 6, 64}};
  EXPECT_NE(MoveSignature(*c.plan, "U8[64,64]"),
            MoveSignature(*MovePlan(other.mesh, other.from, other.to), "U8[64,64]"));
}

}  // namespace
}  // namespace shardmesh::worker
