// Adds up the costs of a plan's collectives, by axes and by links.
#include "program/plan_forecast.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "program/collective_check.h"
#include "program/collective_traffic.h"
#include "program/fuse/fuse_exchanges.h"
#include "program/kernel_time.h"
#include "program/memory_plan.h"
#include "program/move_plan.h"
#include "program/value_layout.h"
#include "sharding/device_group.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"

namespace shardmesh {
namespace {

AxisTraffic& TrafficAlong(const std::vector<std::string>& axes, PlanForecast* forecast) {
  const auto found =
      std::find_if(forecast->traffic.begin(), forecast->traffic.end(),
                   [&axes](const AxisTraffic& traffic) { return traffic.axes == axes; });
  if (found != forecast->traffic.end()) return *found;
  AxisTraffic& added = forecast->traffic.emplace_back();
  added.axes = axes;
  return added;
}

// Returns the tiles of one group, for a collective on equal tiles: all groups have such tiles.
GroupTiles EqualTiles(const Mesh& mesh, const GroupCollective& op, const ValueDescriptor& operand,
                      const ValueDescriptor& result) {
  const auto places = static_cast<size_t>(AxesSize(mesh, op.axes));
  GroupTiles tiles = {.operand_dtype = operand.dtype,
                      .result_dtype = result.dtype,
                      .elements = std::vector<int64_t>(places, TileElements(mesh, operand))};
  if (SplitsTiles(op.kind)) {
    const int64_t extent = TileShape(mesh, result)[static_cast<size_t>(SplitDimension(op))];
    tiles.split_extents.assign(places, extent);
  }
  return tiles;
}

// Returns the tiles of the devices in `group`.
GroupTiles TilesOfGroup(const GroupCollective& op, Dtype operand_dtype, Dtype result_dtype,
                        const Tiling& operand, const Tiling& result,
                        absl::Span<const DeviceId> group) {
  GroupTiles tiles = {.operand_dtype = operand_dtype, .result_dtype = result_dtype, .elements = {}};
  for (const DeviceId device : group) {
    tiles.elements.push_back(operand.TileOf(device).element_count());
    if (SplitsTiles(op.kind)) {
      const auto dim = static_cast<size_t>(SplitDimension(op));
      tiles.split_extents.push_back(result.TileOf(device).ranges[dim].size());
    }
  }
  return tiles;
}

// Returns whether all groups of the collective have tiles of the same sizes.
bool HasEqualTiles(const ValueDescriptor& operand, const ValueDescriptor& result) {
  return operand.cut_points.empty() && result.cut_points.empty();
}

// Sums the bytes of each link over the collectives of a plan. The plan outlives the tally.
class LinkTally {
 public:
  explicit LinkTally(const Plan& plan) : plan_(plan) {}

  void Add(const GroupCollective& op, const ValueDescriptor& operand,
           const ValueDescriptor& result) {
    const int64_t places = AxesSize(plan_.mesh, op.axes);
    if (places == 1) return;
    if (HasEqualTiles(operand, result)) {
      AddEqual(op, operand, result, places);
    } else {
      AddUnequal(op, operand, result, places);
    }
  }

  // `axes` are the result of MoveAxes.
  void AddMove(const ReshardPlan& move, Dtype dtype, const std::vector<std::string>& axes) {
    absl::flat_hash_map<DeviceId, int64_t>& sent = sent_[axes];
    for (DeviceId sender = 0; sender < plan_.mesh.size(); ++sender) {
      const auto links = move.LinksOutOf(sender);
      if (!links.ok()) continue;  // not reached: there are no more links than LinkPairsOf counts
      for (const ReshardLink& link : *links) {
        const int64_t bytes = BytesOf(link.elements, dtype);
        AddTo(bytes_[std::pair(sender, link.destination)], bytes);
        AddTo(sent[sender], bytes);
      }
    }
  }

  // Returns the sums. Call it once, after the last Add or AddMove.
  LinkTrafficSummary Finish() {
    for (const auto& [axes, traffic] : equal_groups_) {
      ForEachGroup(axes, [this, &axes = axes, &traffic = traffic](
                             absl::Span<const DeviceId> group) { AddGroup(axes, traffic, group); });
    }
    LinkTrafficSummary summary;
    summary.link_count = static_cast<int64_t>(bytes_.size());
    std::vector<LinkTraffic>& links = summary.busiest;
    links.reserve(bytes_.size());
    for (const auto& [link, bytes] : bytes_) {
      links.push_back({.sender = link.first, .receiver = link.second, .sent_bytes = bytes});
      AddTo(summary.sent_bytes, bytes);
    }
    const size_t listed = std::min(links.size(), kMostBusiestLinks);
    std::partial_sort(links.begin(), links.begin() + static_cast<std::ptrdiff_t>(listed),
                      links.end(), [](const LinkTraffic& a, const LinkTraffic& b) {
                        return std::tie(b.sent_bytes, a.sender, a.receiver) <
                               std::tie(a.sent_bytes, b.sender, b.receiver);
                      });
    links.resize(listed);
    links.shrink_to_fit();
    return summary;
  }

  // Returns the bytes that one device sends along these axes, for the device that sends most. Call
  // it after Finish.
  int64_t MostSentAlong(const std::vector<std::string>& axes) const {
    int64_t most = 0;
    if (const auto found = sent_.find(axes); found != sent_.end()) {
      for (const auto& [device, bytes] : found->second) most = std::max(most, bytes);
    }
    return most;
  }

 private:
  // Adds the traffic by place, not by link: all groups along the same axes have the same traffic.
  // Finish adds it to the links of every group.
  void AddEqual(const GroupCollective& op, const ValueDescriptor& operand,
                const ValueDescriptor& result, int64_t places) {
    PlaceTraffic& traffic = equal_groups_.try_emplace(op.axes, places).first->second;
    AddCollectiveTraffic(op, EqualTiles(plan_.mesh, op, operand, result), &traffic);
  }

  void AddUnequal(const GroupCollective& op, const ValueDescriptor& operand,
                  const ValueDescriptor& result, int64_t places) {
    const Tiling operand_tiling = *TilingOf(plan_, operand);
    const Tiling result_tiling = *TilingOf(plan_, result);
    ForEachGroup(op.axes, [&](absl::Span<const DeviceId> group) {
      PlaceTraffic traffic(places);
      AddCollectiveTraffic(
          op, TilesOfGroup(op, operand.dtype, result.dtype, operand_tiling, result_tiling, group),
          &traffic);
      AddGroup(op.axes, traffic, group);
    });
  }

  // Calls fn(devices) for each group along the axes.
  template <typename Fn>
  void ForEachGroup(const std::vector<std::string>& axes, Fn fn) const {
    const Mesh& mesh = plan_.mesh;
    const DeviceGroup first = *DeviceGroup::Create(mesh, axes, 0);
    std::vector<int64_t> numbers;
    for (const std::string& axis : axes) numbers.push_back(*mesh.FindAxis(axis));
    std::vector<DeviceId> group(first.devices().size());
    for (DeviceId device = 0; device < mesh.size(); ++device) {
      const bool is_first = std::all_of(numbers.begin(), numbers.end(), [&](int64_t axis) {
        return mesh.CoordinateOf(device, axis) == 0;
      });
      if (!is_first) continue;
      std::transform(first.devices().begin(), first.devices().end(), group.begin(),
                     [device](DeviceId member) { return device + member; });
      fn(absl::MakeConstSpan(group));
    }
  }

  void AddGroup(const std::vector<std::string>& axes, const PlaceTraffic& traffic,
                absl::Span<const DeviceId> group) {
    absl::flat_hash_map<DeviceId, int64_t>& sent = sent_[axes];
    for (size_t sender = 0; sender < group.size(); ++sender) {
      for (size_t receiver = 0; receiver < group.size(); ++receiver) {
        const int64_t bytes =
            traffic.BytesBetween(static_cast<int64_t>(sender), static_cast<int64_t>(receiver));
        if (bytes == 0) continue;
        AddTo(bytes_[std::pair(group[sender], group[receiver])], bytes);
        AddTo(sent[group[sender]], bytes);
      }
    }
  }

  const Plan& plan_;
  // Traffic of the collectives on equal tiles, summed for each list of axes. All groups along the
  // same axes have the same traffic, so one entry describes each of these groups.
  std::map<std::vector<std::string>, PlaceTraffic> equal_groups_;
  // Bytes of each link, by sender and receiver. Has only links that carry bytes.
  absl::flat_hash_map<std::pair<DeviceId, DeviceId>, int64_t> bytes_;
  // Bytes that each device sends, by the axes of the collectives.
  std::map<std::vector<std::string>, absl::flat_hash_map<DeviceId, int64_t>> sent_;
};

}  // namespace

CollectiveLoad LoadOf(const Mesh& mesh, const ValueDescriptor& operand,
                      const std::vector<std::string>& axes) {
  return {.ranks = AxesSize(mesh, axes),
          .bytes = TileBytes(mesh, operand),
          .partial_bytes = BytesOf(TileElements(mesh, operand), PartialSumType(operand.dtype))};
}

int64_t LinkPairsOf(const Plan& plan) {
  int64_t pairs = 0;
  std::set<std::vector<std::string>> counted;  // lists of axes
  for (const Instruction& instruction : plan.instructions) {
    if (const auto* const move = std::get_if<MoveRegions>(&instruction.kind); move != nullptr) {
      const int64_t tiles = TilingOf(plan, plan.values[move->input])->DistinctTileCount();
      AddTo(pairs, ProductOf(plan.mesh.size(), tiles));
    }
    const std::optional<Exchange> exchange = ExchangeOf(plan, instruction);
    if (!exchange.has_value()) continue;
    const GroupCollective* const op = exchange->op;
    const int64_t places = AxesSize(plan.mesh, op->axes);
    if (places == 1) continue;
    const int64_t all_groups = ProductOf(plan.mesh.size(), places - 1);
    const ValueDescriptor& operand = *exchange->operand;
    const ValueDescriptor& result = *exchange->result;
    if (HasEqualTiles(operand, result)) {
      AddTo(pairs, ProductOf(places, places - 1));
      if (counted.insert(op->axes).second) AddTo(pairs, all_groups);
    } else {
      AddTo(pairs, all_groups);
      AddTo(pairs,
            ProductOf(plan.mesh.size(), std::ssize(operand.shape) + std::ssize(result.shape)));
    }
  }
  return pairs;
}

namespace {

// Returns the forecast without its peak. It has traffic by link for at most `most_link_pairs`.
PlanForecast ForecastWithoutPeak(const Plan& plan, const LinkCost& links,
                                 const KernelRates& kernels, int64_t most_link_pairs) {
  PlanForecast forecast;
  std::optional<LinkTally> tally;
  if (LinkPairsOf(plan) <= most_link_pairs) tally.emplace(plan);
  const auto add = [&](const std::vector<std::string>& axes, const CollectiveCost& cost,
                       double seconds) {
    AxisTraffic& traffic = TrafficAlong(axes, &forecast);
    ++traffic.collectives;
    AddTo(traffic.sent_bytes, cost.sent_bytes);
    traffic.seconds += seconds;
    forecast.exchange_seconds += seconds;
  };
  for (const Instruction& instruction : plan.instructions) {
    const ValueDescriptor& output = plan.values[instruction.output];
    forecast.kernel_seconds += KernelSeconds(plan, instruction, kernels);
    if (const auto exchange = ExchangeOf(plan, instruction); exchange.has_value()) {
      const GroupCollective& op = *exchange->op;
      add(op.axes, CostOf(op.kind, op.algorithm, LoadOf(plan.mesh, *exchange->operand, op.axes)),
          ExchangeSeconds(plan, instruction, links, kernels));
      if (tally.has_value()) tally->Add(op, *exchange->operand, *exchange->result);
    }
    if (const auto* const op = std::get_if<MoveRegions>(&instruction.kind); op != nullptr) {
      const ReshardPlan move = *MovePlan(plan.mesh, plan.values[op->input], output);
      const CollectiveCost cost = CostOfMove(move, output.dtype);
      add(MoveAxes(move), cost, PredictedSeconds(cost, links));
      if (tally.has_value()) tally->AddMove(move, output.dtype, MoveAxes(move));
    }
  }
  if (tally.has_value()) {
    forecast.link_traffic = tally->Finish();
    for (AxisTraffic& traffic : forecast.traffic) {
      traffic.sent_bytes = tally->MostSentAlong(traffic.axes);
    }
  }
  return forecast;
}

}  // namespace

PlanForecast ForecastOf(const Plan& plan, const LinkCost& links, const KernelRates& kernels) {
  PlanForecast forecast = ForecastWithoutPeak(plan, links, kernels, kMostLinkPairs);
  forecast.peak_bytes = PeakBytesOf(plan);
  return forecast;
}

StepForecast StepForecastOf(const Plan& plan, const LinkCost& links, const KernelRates& kernels) {
  const PlanForecast forecast = ForecastWithoutPeak(plan, links, kernels, kMostStepLinkPairs);
  StepForecast of_step = {.kernel_seconds = forecast.kernel_seconds,
                          .exchange_seconds = forecast.exchange_seconds};
  if (forecast.link_traffic.has_value()) of_step.sent_bytes = forecast.link_traffic->sent_bytes;
  return of_step;
}

}  // namespace shardmesh
