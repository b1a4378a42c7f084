// Moves between random layouts on different meshes, bit for bit what plain indexing gives, with no
// byte more than the new tiles lack. The parts are those that workers keep and read; the messages
// go from memory to memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/mesh.h"
#include "sharding/tile.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/array_descriptor.h"
#include "tensor/dtype.h"
#include "tensor/view.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/collective/random_layouts.h"
#include "worker/fill/array_parts.h"

// Cases of each seed. Builds with sanitizers, which are slow, set a smaller number.
#ifndef SHARDMESH_MESH_MOVE_CASES
#define SHARDMESH_MESH_MOVE_CASES 2000
#endif

namespace shardmesh::worker {
namespace {

// A move of a tensor from one mesh to another. The two meshes share some workers of a pool.
struct MeshMove {
  RandomTensor tensor;
  ArrayDescriptor from;
  ArrayDescriptor to;
  FillDevices devices;
  bool has_empty_part = false;
  std::string name;
};

MeshMove NextMeshMove(LayoutDice& dice) {
  static constexpr const char* kSources[] = {"a=1",     "a=2",         "a=3",         "a=4",
                                             "a=2,b=2", "a=5",         "a=2,b=3",     "a=7",
                                             "a=8",     "a=2,b=2,c=2", "a=2,b=1,c=3", "a=6"};
  // One in four has axes of the same names.
  static constexpr const char* kDestinations[] = {
      "x=1", "x=2",     "y=3",     "x=4",         "y=2,x=2", "z=5",     "x=3,y=2", "x=6",
      "x=8", "y=2,x=4", "z=4,y=2", "x=2,y=2,z=2", "b=2,a=2", "a=3,b=2", "a=4",     "b=8"};
  constexpr int64_t kPool = 10;
  MeshMove move;
  move.tensor = dice.Tensor();
  const auto lay_out = [&](const char* id, const Mesh& mesh) {
    RandomLayout layout = dice.Layout(mesh, move.tensor);
    move.has_empty_part |= layout.has_empty_part;
    StrAppend(&move.name, " ", mesh.ToString(), " ", layout.ToString());
    return ArrayDescriptor{.array_id = id,
                           .dtype = move.tensor.dtype,
                           .shape = move.tensor.shape,
                           .spec = std::move(layout.spec),
                           .mesh_id = StrCat("mesh-", id),
                           .mesh_revision = 1,
                           .mesh = mesh,
                           .cut_points = std::move(layout.cut_points)};
  };
  move.name = StrCat(DtypeName(move.tensor.dtype), " ", ShapeToString(move.tensor.shape));
  move.from = lay_out("from", dice.OneOf(kSources));
  move.to = lay_out("to", dice.OneOf(kDestinations));
  move.devices.source_ids = dice.Workers(move.from.mesh.size(), kPool);
  move.devices.destination_ids = dice.Workers(move.to.mesh.size(), kPool);
  StrAppend(&move.name, ", workers ", StrJoin(move.devices.source_ids, ","), " -> ",
            StrJoin(move.devices.destination_ids, ","));
  for (DeviceId rank = 0; rank < move.from.mesh.size(); ++rank) {
    const int64_t worker = move.devices.source_ids[static_cast<size_t>(rank)];
    move.devices.sources.push_back(
        {.rank = rank, .identity = StrCat("worker-", worker), .endpoints = {}});
  }
  return move;
}

// The region, relative to the start of `tile`, which contains it.
Tile RelativeTo(const Tile& tile, Tile region) {
  for (size_t dim = 0; dim < region.ranges.size(); ++dim) {
    region.ranges[dim].start -= tile.ranges[dim].start;
    region.ranges[dim].stop -= tile.ranges[dim].start;
  }
  return region;
}

struct MovedTile {
  std::string bytes;
  int64_t kept_bytes = 0;
  int64_t read_bytes = 0;
  int64_t read_elements = 0;
  int64_t parts = 0;  // regions that are read
};

// Makes the new tile of a rank: from the worker's own old tile, and from the tiles of holders, of
// which any may be asked. Each part travels in messages of random sizes.
absl::StatusOr<MovedTile> MoveTile(const MeshMove& move, ArrayPartPlanner& planner, DeviceId rank,
                                   LayoutDice& dice) {
  const RandomTensor& tensor = move.tensor;
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling held_by, move.from.Tiling());
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling wanted_by, move.to.Tiling());
  const Tile wanted = wanted_by.TileOf(rank);
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, move.to.TileSizeBytes(wanted));
  MovedTile moved;
  moved.bytes.assign(static_cast<size_t>(size_bytes), '\x5a');
  SHARDMESH_ASSIGN_OR_RETURN(
      const MutableTensorView to,
      MutableTensorView::Create(tensor.dtype, wanted.shape(), absl::MakeSpan(moved.bytes)));
  SHARDMESH_ASSIGN_OR_RETURN(const ArrayParts parts, planner.Plan(move.from, move.to, rank));
  if (parts.kept.has_value()) {
    const std::string own = TileOfTensor(tensor.bytes, tensor.dtype, tensor.shape, *parts.own_tile);
    SHARDMESH_ASSIGN_OR_RETURN(const TensorView from,
                               TensorView::Create(tensor.dtype, parts.own_tile->shape(), own));
    SHARDMESH_RETURN_IF_ERROR(CopyTile(from, *parts.own_tile, to, wanted, *parts.kept));
    SHARDMESH_ASSIGN_OR_RETURN(moved.kept_bytes, move.from.TileSizeBytes(*parts.kept));
  }
  const int64_t own_worker = move.devices.destination_ids[static_cast<size_t>(rank)];
  for (const ReadPart& part : parts.read) {
    const FillSource& holder = *part.holders[dice.Below(part.holders.size())];
    if (move.devices.source_ids[static_cast<size_t>(holder.rank)] == own_worker) {
      return absl::InternalError(StrCat("rank ", rank, " reads from itself"));
    }
    const Tile held = held_by.TileOf(holder.rank);
    const std::string held_bytes = TileOfTensor(tensor.bytes, tensor.dtype, tensor.shape, held);
    SHARDMESH_ASSIGN_OR_RETURN(const TensorView from,
                               TensorView::Create(tensor.dtype, held.shape(), held_bytes));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t part_bytes, move.from.TileSizeBytes(part.region));
    for (int64_t done = 0; done < part_bytes;) {
      const auto most = static_cast<int64_t>(1 + dice.Below(60));
      std::string message(static_cast<size_t>(std::min(most, part_bytes - done)), '\0');
      SHARDMESH_RETURN_IF_ERROR(
          CopyTileBytes(from, RelativeTo(held, part.region), done, absl::MakeSpan(message)));
      SHARDMESH_RETURN_IF_ERROR(PasteTileBytes(message, RelativeTo(wanted, part.region), done, to));
      done += std::ssize(message);
    }
    moved.read_bytes += part_bytes;
    moved.read_elements += part.region.element_count();
    ++moved.parts;
  }
  return moved;
}

// The elements of the rank's new tile that its worker holds already.
int64_t ElementsHeld(const MeshMove& move, DeviceId rank) {
  const std::vector<int64_t>& sources = move.devices.source_ids;
  const auto own = std::find(sources.begin(), sources.end(),
                             move.devices.destination_ids[static_cast<size_t>(rank)]);
  if (own == sources.end()) return 0;
  const Tile held = move.from.Tiling()->TileOf(own - sources.begin());
  const Tile wanted = move.to.Tiling()->TileOf(rank);
  int64_t elements = 1;
  for (size_t dim = 0; dim < held.ranges.size(); ++dim) {
    const int64_t start = std::max(held.ranges[dim].start, wanted.ranges[dim].start);
    const int64_t stop = std::min(held.ranges[dim].stop, wanted.ranges[dim].stop);
    elements *= std::max<int64_t>(0, stop - start);
  }
  return elements;
}

// Moves all tiles of a case, and compares them.
absl::Status RunMeshMove(const MeshMove& move, LayoutDice& dice) {
  const RandomTensor& tensor = move.tensor;
  ArrayPartPlanner planner(&move.devices);
  for (DeviceId rank = 0; rank < move.to.mesh.size(); ++rank) {
    SHARDMESH_ASSIGN_OR_RETURN(const MovedTile moved, MoveTile(move, planner, rank, dice));
    const Tile wanted = move.to.Tiling()->TileOf(rank);
    EXPECT_TRUE(moved.bytes == TileOfTensor(tensor.bytes, tensor.dtype, tensor.shape, wanted))
        << "rank " << rank << " differs";
    const int64_t held = ElementsHeld(move, rank);
    const int64_t bits = BitsPerElement(tensor.dtype);
    EXPECT_EQ(moved.kept_bytes, (held * bits + 7) / 8) << "rank " << rank;
    EXPECT_EQ(moved.read_elements, wanted.element_count() - held) << "rank " << rank;
    // Each region is padded to whole bytes.
    const int64_t read_bits = moved.read_elements * bits;
    EXPECT_GE(8 * moved.read_bytes, read_bits) << "rank " << rank;
    EXPECT_LE(8 * moved.read_bytes, read_bits + (tensor.is_ragged() ? 7 * moved.parts : 0))
        << "rank " << rank;
  }
  return absl::OkStatus();
}

// 20,000 cases, in builds without sanitizers. FillFromArraysTest has some hundred cases whose bytes
// go over real channels.
class RandomMeshMoveTest : public testing::TestWithParam<uint32_t> {};

TEST_P(RandomMeshMoveTest, EachRankGetsItsTileForTheBytesThatItLacks) {
  constexpr size_t kCases = SHARDMESH_MESH_MOVE_CASES;
  LayoutDice dice(GetParam() + 1000);
  size_t ragged = 0;
  size_t with_empty_parts = 0;
  for (size_t i = 0; i < kCases; ++i) {
    const MeshMove move = NextMeshMove(dice);
    SCOPED_TRACE(StrCat("case ", i, ": ", move.name));
    with_empty_parts += move.has_empty_part ? 1 : 0;
    ragged += move.tensor.is_ragged() ? 1 : 0;
    EXPECT_THAT(RunMeshMove(move, dice), test::IsOk());
  }
  // 3 of 20 types have elements of less than a byte, and one in eight of their tensors is ragged.
  EXPECT_GE(ragged, kCases / 150);
  EXPECT_GE(with_empty_parts, kCases / 12);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomMeshMoveTest, testing::Range(uint32_t{1}, uint32_t{11}));

}  // namespace
}  // namespace shardmesh::worker
