// Compiled with optimisation and without sanitizers: the tests simulate thousands of steps.
#include "tests/unit/program/plan_simulation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client/inspect/bounded_tensor.h"
#include "gtest/gtest.h"
#include "program/fuse/fuse_elementwise.h"
#include "program/fuse/fuse_exchanges.h"
#include "program/move_plan.h"
#include "program/step_plan.h"
#include "program/value_layout.h"
#include "sharding/device_group.h"
#include "sharding/tile.h"
#include "sharding/uneven.h"
#include "tensor/float_convert.h"
#include "tests/unit/program/dense.h"
#include "tests/unit/program/dense_ops.h"
#include "tests/unit/program/plan_examples.h"

namespace shardmesh {

Dense Cut(const Dense& tensor, const Tile& tile, const Tile& origin) {
  Dense part{.shape = tile.shape(), .elements = {}};
  ForEachIndex(part.shape, [&](const Shape& index) {
    Shape at = index;
    for (size_t dim = 0; dim < at.size(); ++dim) {
      at[dim] += tile.ranges[dim].start - origin.ranges[dim].start;
    }
    part.elements.push_back(tensor.elements[Offset(tensor.shape, at)]);
  });
  return part;
}

Dense ScaledColumns(Dense matrix, const Dense& scales, bool is_transposed) {
  const auto row_elements = static_cast<size_t>(matrix.shape[1]);
  for (size_t i = 0; i < matrix.elements.size(); ++i) {
    matrix.elements[i] *= scales.elements[is_transposed ? i / row_elements : i % row_elements];
  }
  return matrix;
}

double Activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kRelu:
      return MapNumber(MapFunction::kRelu, x);
    case Activation::kGelu:
      return MapNumber(MapFunction::kGelu, x);
    case Activation::kGeluTanh:
      return MapNumber(MapFunction::kGeluTanh, x);
    case Activation::kSilu:
      return MapNumber(MapFunction::kSilu, x);
    case Activation::kNone:
      break;
  }
  return x;
}

double RoundedTo(Dtype dtype, double x) {
  switch (dtype) {
    case Dtype::kF64:
      return x;
    case Dtype::kF32:
      return static_cast<double>(F64ToF32(x));
    case Dtype::kBF16:
      return static_cast<double>(BF16ToF32(F64ToBF16(x)));
    case Dtype::kF16:
      return static_cast<double>(F16ToF32(F64ToF16(x)));
    default:
      return std::abs(x) < 0x1p53 ? client::WrapInteger(dtype, x) : 0;
  }
}

Literal LiteralOf(Dtype dtype, const Dense& dense) {
  Literal literal = {.dtype = dtype, .shape = dense.shape, .bytes = {}};
  const auto append = [&](auto element) {
    literal.bytes.append(reinterpret_cast<const char*>(&element), sizeof(element));
  };
  for (const double x : dense.elements) {
    switch (dtype) {
      case Dtype::kF64:
        append(x);
        break;
      case Dtype::kF32:
        append(F64ToF32(x));
        break;
      case Dtype::kBF16:
        append(F64ToBF16(x));
        break;
      case Dtype::kF16:
        append(F64ToF16(x));
        break;
      case Dtype::kI32:
        append(static_cast<int32_t>(x));
        break;
      default:
        append(static_cast<int8_t>(x));
    }
  }
  return literal;
}

Dense Multiply(const Dense& lhs, const Dense& rhs, const Dense* bias, bool transpose_lhs,
               bool transpose_rhs, double scale, Activation activation) {
  const size_t lhs_rank = lhs.shape.size();
  const size_t rhs_rank = rhs.shape.size();
  const size_t lhs_k = transpose_lhs ? lhs_rank - 2 : lhs_rank - 1;
  const size_t rhs_k = transpose_rhs ? rhs_rank - 1 : rhs_rank - 2;
  const size_t rank = lhs_rank == 1 ? 1 : std::max(lhs_rank, rhs_rank);
  Dense result{.shape = Shape(rank, 1), .elements = {}};
  for (size_t dim = 0; dim + 2 < rank; ++dim) {
    for (const Dense* operand : {&lhs, &rhs}) {
      const size_t missing = rank - operand->shape.size();
      if (dim >= missing && operand->shape[dim - missing] != 1) {
        result.shape[dim] = operand->shape[dim - missing];
      }
    }
  }
  if (rank > 1) result.shape[rank - 2] = lhs.shape[transpose_lhs ? lhs_rank - 1 : lhs_rank - 2];
  result.shape[rank - 1] = rhs.shape[transpose_rhs ? rhs_rank - 2 : rhs_rank - 1];
  // The distance between neighbours along the contracted dimension of an operand.
  const auto step_of = [](const Dense& operand, size_t k_dim) {
    size_t step = 1;
    for (size_t dim = k_dim + 1; dim < operand.shape.size(); ++dim) {
      step *= static_cast<size_t>(operand.shape[dim]);
    }
    return step;
  };
  const size_t lhs_step = step_of(lhs, lhs_k);
  const size_t rhs_step = step_of(rhs, rhs_k);
  ForEachIndex(result.shape, [&](const Shape& index) {
    // The place of the first element of an operand in the row or column `line`.
    const auto start = [&](const Dense& operand, size_t k_dim, int64_t line) {
      const size_t operand_rank = operand.shape.size();
      Shape at(operand_rank, 0);
      for (size_t dim = 0; dim + 2 < operand_rank; ++dim) {
        at[dim] = operand.shape[dim] == 1 ? 0 : index[dim + rank - operand_rank];
      }
      if (operand_rank > 1) at[2 * operand_rank - 3 - k_dim] = line;
      return Offset(operand.shape, at);
    };
    double sum = 0;
    size_t lhs_at = start(lhs, lhs_k, rank > 1 ? index[rank - 2] : 0);
    size_t rhs_at = start(rhs, rhs_k, index[rank - 1]);
    for (int64_t k = 0; k < lhs.shape[lhs_k]; ++k) {
      sum += lhs.elements[lhs_at] * rhs.elements[rhs_at];
      lhs_at += lhs_step;
      rhs_at += rhs_step;
    }
    sum =
        scale * sum + (bias == nullptr ? 0 : bias->elements[static_cast<size_t>(index[rank - 1])]);
    result.elements.push_back(Activate(activation, sum));
  });
  return result;
}

Simulation::Simulation(const Plan& plan, const SimulationOptions& options)
    : plan_(plan), options_(options) {
  if (options_.shares_memory) {
    memory_ = MemoryPlanOf(plan);
    state_places_ = StatePlaces(plan);
  }
  tiles_.resize(plan.values.size());
  for (const ValueDescriptor& value : plan.values) {
    tilings_.push_back(*TilingOf(plan, value));
  }
}

void Simulation::SetOperand(ValueIndex index, const Dense& tensor) {
  const Tile whole = Tile::Whole(tensor.shape);
  for (DeviceId device = 0; device < plan_.mesh.size(); ++device) {
    Dense tile = Cut(tensor, tilings_[index].TileOf(device), whole);
    for (const std::string& axis : plan_.values[index].spec.unreduced()) {
      if (plan_.mesh.CoordinateOf(device, *plan_.mesh.FindAxis(axis)) != 0) {
        tile.elements.assign(tile.elements.size(), 0);
      }
    }
    tiles_[index].push_back(std::move(tile));
  }
}

void Simulation::Run() {
  for (const Instruction& instruction : plan_.instructions) {
    if (options_.shares_memory) LoseBefore(instruction.output);
    for (DeviceId device = 0; device < plan_.mesh.size(); ++device) {
      Dense made =
          std::visit([&](const auto& kind) { return Make(kind, instruction.output, device); },
                     instruction.kind);
      ASSERT_EQ(made.shape, tilings_[instruction.output].TileOf(device).shape())
          << instruction.label;
      if (options_.rounds) {
        for (double& x : made.elements) x = RoundedTo(plan_.values[instruction.output].dtype, x);
      }
      tiles_[instruction.output].push_back(std::move(made));
    }
    if (options_.shares_memory) LoseAfter(instruction.output);
  }
}

void Simulation::LoseBefore(ValueIndex output) {
  if (!memory_.places[output].has_value()) return;
  const BlockPlace& place = *memory_.places[output];
  const int64_t end = place.offset_bytes + TileBytes(plan_.mesh, plan_.values[output]);
  if (end == place.offset_bytes) return;
  for (ValueIndex other = plan_.operand_count; other < output; ++other) {
    if (!memory_.places[other].has_value() || place.over == other) continue;
    const int64_t begin = memory_.places[other]->offset_bytes;
    const int64_t size = TileBytes(plan_.mesh, plan_.values[other]);
    if (begin < end && place.offset_bytes < begin + size) Lose(other);
  }
}

void Simulation::LoseAfter(ValueIndex output) {
  if (memory_.places[output].has_value() && memory_.places[output]->over.has_value()) {
    Lose(*memory_.places[output]->over);
  }
  const std::optional<ValueIndex> state = state_places_[output];
  if (!state.has_value()) return;
  for (ValueIndex other = 0; other < output; ++other) {
    if (other == *state || state_places_[other] == state) Lose(other);
  }
}

void Simulation::Lose(ValueIndex index) {
  for (Dense& tile : tiles_[index]) {
    tile.elements.assign(tile.elements.size(), std::numeric_limits<double>::quiet_NaN());
  }
}

std::optional<Dense> Simulation::Assembled(ValueIndex index) const {
  Dense whole{.shape = plan_.values[index].shape, .elements = {}};
  whole.elements.resize(static_cast<size_t>(Count(whole.shape)));
  const Tile all = Tile::Whole(whole.shape);
  for (DeviceId device = 0; device < plan_.mesh.size(); ++device) {
    const Tile tile = tilings_[index].TileOf(device);
    Paste(TileAt(index, device), tile, tile, all, &whole);
  }
  for (DeviceId device = 0; device < plan_.mesh.size(); ++device) {
    const Dense part = Cut(whole, tilings_[index].TileOf(device), all);
    const bool is_equal = std::equal(
        part.elements.begin(), part.elements.end(), TileAt(index, device).elements.begin(),
        [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); });
    if (!is_equal) return std::nullopt;
  }
  return whole;
}

void Simulation::ExpectOutput(ValueIndex index, const Dense& expected) const {
  ASSERT_EQ(plan_.values[index].shape, expected.shape);
  for (DeviceId device = 0; device < plan_.mesh.size(); ++device) {
    const Dense part = Cut(expected, tilings_[index].TileOf(device), Tile::Whole(expected.shape));
    EXPECT_EQ(tiles_[index][static_cast<size_t>(device)].elements, part.elements)
        << "device " << device << " of " << plan_.values[index].spec.ToString();
  }
}

const Dense& Simulation::TileAt(ValueIndex index, DeviceId device) const {
  return tiles_[index][static_cast<size_t>(device)];
}

Dense Simulation::Make(const LocalMatmul& matmul, ValueIndex, DeviceId device) const {
  Dense rhs = TileAt(matmul.rhs, device);
  if (matmul.scales.has_value()) {
    rhs = ScaledColumns(std::move(rhs), TileAt(*matmul.scales, device), matmul.transpose_rhs);
  }
  return Multiply(TileAt(matmul.lhs, device), rhs,
                  matmul.bias.has_value() ? &TileAt(*matmul.bias, device) : nullptr,
                  matmul.transpose_lhs, matmul.transpose_rhs, matmul.scale, matmul.activation);
}

Dense Simulation::Make(const LocalEpilogue& epilogue, ValueIndex, DeviceId device) const {
  Dense result = TileAt(epilogue.input, device);
  for (size_t i = 0; i < result.elements.size(); ++i) {
    if (epilogue.bias.has_value()) {
      const Dense& bias = TileAt(*epilogue.bias, device);
      result.elements[i] += bias.elements[i % bias.elements.size()];
    }
    result.elements[i] = Activate(epilogue.activation, result.elements[i]);
  }
  return result;
}

Dense Simulation::Make(const LocalSlice& slice, ValueIndex output, DeviceId device) const {
  const Tile part = tilings_[output].TileOf(device);
  const Tile held = tilings_[slice.input].TileOf(device);
  if (!part.empty() && Intersect(part, held) != part) {
    ADD_FAILURE() << "device " << device << " holds " << held.ToString() << " and cannot cut out "
                  << part.ToString();
    return Empty(output, device);
  }
  return Cut(TileAt(slice.input, device), part, held);
}

void Simulation::Paste(const Dense& from, const Tile& from_tile, const Tile& part, const Tile& tile,
                       Dense* into) {
  const Dense cut = Cut(from, part, from_tile);
  size_t next = 0;
  ForEachIndex(cut.shape, [&](const Shape& index) {
    Shape at = index;
    for (size_t dim = 0; dim < at.size(); ++dim) {
      at[dim] += part.ranges[dim].start - tile.ranges[dim].start;
    }
    into->elements[Offset(into->shape, at)] = cut.elements[next++];
  });
}

Dense Simulation::Empty(ValueIndex output, DeviceId device) const {
  Dense empty{.shape = tilings_[output].TileOf(device).shape(), .elements = {}};
  empty.elements.assign(static_cast<size_t>(Count(empty.shape)), -1e9);
  return empty;
}

Dense Simulation::Make(const MoveRegions& move, ValueIndex output, DeviceId device) const {
  const ReshardPlan plan = *MovePlan(plan_.mesh, plan_.values[move.input], plan_.values[output]);
  const Tile tile = tilings_[output].TileOf(device);
  const auto held_by = [&](DeviceId each) { return tilings_[move.input].TileOf(each); };
  Dense result = Empty(output, device);
  if (const auto kept = Intersect(held_by(device), tile); kept.has_value()) {
    Paste(TileAt(move.input, device), held_by(device), *kept, tile, &result);
  }
  const std::vector<FetchRegion> regions = *plan.RegionsOf(device);
  for (const FetchRegion& region : regions) {
    Paste(TileAt(move.input, region.source), held_by(region.source), region.tile, tile, &result);
  }
  return result;
}

Dense Simulation::Make(const GroupCollective& collective, ValueIndex output,
                       DeviceId device) const {
  const DeviceGroup group = *DeviceGroup::Create(plan_.mesh, collective.axes, device);
  const Tiling& in = tilings_[collective.input];
  if (collective.kind == CollectiveKind::kAllGather) {
    Dense result = Empty(output, device);
    for (const DeviceId member : group.devices()) {
      Paste(TileAt(collective.input, member), in.TileOf(member), in.TileOf(member),
            tilings_[output].TileOf(device), &result);
    }
    return result;
  }
  Dense result = TileAt(collective.input, device);
  for (size_t i = 0; i < result.elements.size(); ++i) {
    result.elements[i] = 0;
    for (const DeviceId member : group.devices()) {
      result.elements[i] += TileAt(collective.input, member).elements[i];
    }
  }
  return Cut(result, tilings_[output].TileOf(device), in.TileOf(device));
}

Dense Simulation::Make(const LocalCompute& compute, ValueIndex output, DeviceId device) const {
  std::vector<Dense> inputs;
  int64_t first_row = 0;
  for (const ValueIndex input : InputsOf(compute.op)) inputs.push_back(TileAt(input, device));
  if (const auto* const embedding = std::get_if<EmbeddingOp>(&compute.op)) {
    first_row = tilings_[embedding->table].TileOf(device).ranges[0].start;
  }
  return ComputeDense(compute.op, inputs, tilings_[output].TileOf(device), first_row);
}

Dense Simulation::Make(const GatherMatmul& fused, ValueIndex output, DeviceId device) const {
  return MakeInPlainForm({.output = output, .kind = fused, .label = "plain form"}, device);
}

Dense Simulation::Make(const MatmulScatter& fused, ValueIndex output, DeviceId device) const {
  return MakeInPlainForm({.output = output, .kind = fused, .label = "plain form"}, device);
}

Dense Simulation::Make(const FusedCompute& fused, ValueIndex output, DeviceId device) const {
  const Plan separate = *PlainFormOf(plan_, fused, output);
  Simulation plain(separate);
  for (size_t i = 0; i < fused.inputs.size(); ++i) plain.tiles_[i] = tiles_[fused.inputs[i]];
  plain.Run();
  return plain.TileAt(separate.outputs.front(), device);
}

Dense Simulation::MakeInPlainForm(const Instruction& instruction, DeviceId device) const {
  const Plan pair = *PlainFormOf(plan_, instruction);
  Simulation plain(pair, {.rounds = options_.rounds});
  size_t operand = 0;
  for (const ValueIndex input : InputsOf(instruction)) plain.tiles_[operand++] = tiles_[input];
  plain.Run();
  return plain.TileAt(pair.outputs.front(), device);
}

namespace {

// The axes and the number of parts of each dimension of a random layout.
struct RandomAxes {
  std::vector<std::vector<std::string>> dims;
  std::vector<int64_t> parts;
};

// Gives each axis to a dimension, or to none. Unless parts may be empty, no dimension gets more
// parts than it has indices.
RandomAxes AxesFor(const Mesh& mesh, const Shape& shape, bool parts_may_be_empty,
                   std::mt19937& random) {
  RandomAxes layout{.dims = std::vector<std::vector<std::string>>(shape.size()),
                    .parts = std::vector<int64_t>(shape.size(), 1)};
  std::vector<MeshAxis> axes(mesh.axes().begin(), mesh.axes().end());
  std::shuffle(axes.begin(), axes.end(), random);
  for (const MeshAxis& axis : axes) {
    const size_t dim = random() % (shape.size() + 1);
    if (dim == shape.size()) continue;
    if (!parts_may_be_empty && shape[dim] < layout.parts[dim] * axis.size) continue;
    layout.dims[dim].push_back(axis.name);
    layout.parts[dim] *= axis.size;
  }
  return layout;
}

// Returns cut points of parts that are not empty. Requires parts <= extent.
CutPoints PointsOfFullParts(int64_t extent, int64_t parts, std::mt19937& random) {
  std::vector<int64_t> inner(static_cast<size_t>(extent - 1));
  std::iota(inner.begin(), inner.end(), 1);
  std::shuffle(inner.begin(), inner.end(), random);
  inner.resize(static_cast<size_t>(parts - 1));
  inner.push_back(0);
  inner.push_back(extent);
  std::sort(inner.begin(), inner.end());
  return inner;
}

// Returns cut points of parts that may be empty.
CutPoints PointsOfAnyParts(int64_t extent, int64_t parts, std::mt19937& random) {
  if (random() % 2 == 0) return CeilChunks(extent, parts);
  CutPoints points = {0, extent};
  for (int64_t i = 1; i < parts; ++i) {
    points.push_back(static_cast<int64_t>(random() % (static_cast<size_t>(extent) + 1)));
  }
  std::sort(points.begin(), points.end());
  return points;
}

}  // namespace

ValueDescriptor RandomValue(const Mesh& mesh, Shape shape, std::mt19937& random) {
  RandomAxes layout = AxesFor(mesh, shape, /*parts_may_be_empty=*/false, random);
  std::vector<CutPoints> points(shape.size());
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] % layout.parts[dim] == 0 && random() % 2 == 0) continue;
    points[dim] = PointsOfFullParts(shape[dim], layout.parts[dim], random);
  }
  return CutValue(std::move(shape), Spec(std::move(layout.dims)),
                  WithoutEqualParts(std::move(points)));
}

ValueDescriptor RandomValueWithEmptyParts(const Mesh& mesh, Shape shape, std::mt19937& random) {
  RandomAxes layout = AxesFor(mesh, shape, /*parts_may_be_empty=*/true, random);
  std::vector<CutPoints> points(shape.size());
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    points[dim] = PointsOfAnyParts(shape[dim], layout.parts[dim], random);
  }
  return CutValue(std::move(shape), Spec(std::move(layout.dims)),
                  WithoutEqualParts(std::move(points)));
}

int EmptySlicesOutside(const Plan& plan) {
  int count = 0;
  for (const Instruction& instruction : plan.instructions) {
    const auto* slice = std::get_if<LocalSlice>(&instruction.kind);
    if (slice == nullptr) continue;
    const Tiling from = *TilingOf(plan, plan.values[slice->input]);
    const Tiling to = *TilingOf(plan, plan.values[instruction.output]);
    for (DeviceId device = 0; device < plan.mesh.size(); ++device) {
      const Tile held = from.TileOf(device);
      const Tile part = to.TileOf(device);
      const bool is_within =
          std::equal(part.ranges.begin(), part.ranges.end(), held.ranges.begin(),
                     [](const IndexRange& inner, const IndexRange& outer) {
                       return outer.start <= inner.start && inner.stop <= outer.stop;
                     });
      if (part.empty() && !is_within) ++count;
    }
  }
  return count;
}

std::vector<std::vector<int64_t>> StartsOf(const ValueDescriptor& value) {
  std::vector<std::vector<int64_t>> starts;
  for (const CutPoints& points : value.cut_points) {
    starts.emplace_back();
    if (!points.empty()) starts.back().assign(points.begin() + 1, points.end() - 1);
  }
  return starts;
}

std::vector<std::string> LabelsOf(const Plan& plan) {
  std::vector<std::string> labels;
  for (const Instruction& instruction : plan.instructions) {
    labels.push_back(instruction.label.substr(instruction.label.find(':') + 2));
  }
  return labels;
}

}  // namespace shardmesh
