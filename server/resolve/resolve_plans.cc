// Answers about the data that moves between two layouts of an array.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "rpc/call.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/layout_codec.h"
#include "server/resolve/resolve_answers.h"
#include "sharding/layout/analysis.h"
#include "sharding/reshard/plan.h"
#include "sharding/tile.h"
#include "status/fact_keys.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr int64_t kMaxListedRegions = 65'536;
// Bytes of the answer's message that are kept free for fields whose sizes CheckRoom does not count.
constexpr size_t kSpareMessageBytes = size_t{64} << 10;

absl::Status OverLimit(std::string_view message, int64_t limit) {
  return WithReason(absl::ResourceExhaustedError(ToAbsl(message)), Reason::kLimitExceeded,
                    {{fact::kLimit, limit}});
}

absl::StatusOr<Tiling> DecodeLayout(const Definitions& state, const v1::ArrayLayout& from,
                                    const Shape& shape, Compatibility compatibility) {
  SHARDMESH_DECODE(spec, "spec", rpc::Decode(from.spec()));
  SHARDMESH_DECODE(mesh, "mesh", SelectMesh(state, from.mesh(), compatibility));
  return Tiling::Create(mesh, spec, shape);
}

absl::Status CheckDevices(const google::protobuf::RepeatedField<int64_t>& devices, const Mesh& mesh,
                          std::string_view field) {
  if (devices.size() > kMaxListedDevices) {
    return rpc::WithField(
        InvalidArgument(
            Reason::kLimitExceeded,
            StrCat(devices.size(), " devices are over the limit of ", kMaxListedDevices),
            {{fact::kHave, devices.size()}, {fact::kLimit, kMaxListedDevices}}),
        field);
  }
  for (int i = 0; i < devices.size(); ++i) {
    if (devices[i] < 0 || devices[i] >= mesh.size()) {
      return rpc::WithField(InvalidArgument(Reason::kBadField,
                                            StrCat("device ", devices[i], " is not one of the ",
                                                   mesh.size(), " of ", mesh.ToString()),
                                            {{fact::kValue, devices[i]}}),
                            field, static_cast<size_t>(i));
    }
  }
  return absl::OkStatus();
}

// Writes the content of one answer, and checks the answer's limits.
class ReshardWriter {
 public:
  ReshardWriter(const ReshardPlan& plan, int bits_per_element, bool omit_regions,
                const std::function<bool()>& is_cancelled, v1::PlanReshardResponse* response)
      : plan_(plan),
        bits_(bits_per_element),
        omit_regions_(omit_regions),
        is_cancelled_(is_cancelled),
        response_(response) {}

  absl::Status Totals() {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(plan_.to().shape()));
    SHARDMESH_ASSIGN_OR_RETURN(const ReshardTotals totals, plan_.Totals(is_cancelled_));
    response_->set_pattern(rpc::Encode(plan_.pattern()));
    for (const ReshardStep& step : plan_.steps()) {
      rpc::Encode(step, response_->add_steps());
    }
    response_->set_noop(totals.noop);
    response_->set_elements(elements);
    response_->set_total_kept_elements(totals.kept);
    response_->set_total_needed_elements(totals.need);
    response_->set_max_needed_elements(totals.max_need);
    response_->set_receivers(totals.receivers);
    response_->set_links(totals.links);
    response_->set_mean_sent_bytes(totals.mean_sent * bits_ / 8);
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t needed_bytes, TileBytes(totals.need, bits_));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t max_needed_bytes, TileBytes(totals.max_need, bits_));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t max_link_bytes, TileBytes(totals.max_link, bits_));
    response_->set_total_needed_bytes(needed_bytes);
    response_->set_max_needed_bytes(max_needed_bytes);
    response_->set_max_link_bytes(max_link_bytes);
    if (totals.max_sent.has_value()) {
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t max_sent_bytes, TileBytes(*totals.max_sent, bits_));
      response_->set_max_sent_bytes(max_sent_bytes);
    }
    return absl::OkStatus();
  }

  absl::Status Device(DeviceId device) {
    const DeviceReshard part = plan_.DeviceOf(device);
    v1::ReshardDevice* to = response_->add_devices();
    to->set_device(device);
    if (part.src.has_value()) {
      rpc::Encode(*part.src, to->mutable_source_tile());
    }
    rpc::Encode(part.dst, to->mutable_destination_tile());
    to->set_kept_elements(part.kept);
    to->set_needed_elements(part.need);
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t needed_bytes, TileBytes(part.need, bits_));
    to->set_needed_bytes(needed_bytes);
    if (!omit_regions_) {
      SHARDMESH_RETURN_IF_ERROR(CheckRegions(part.region_count));
      SHARDMESH_ASSIGN_OR_RETURN(const std::vector<FetchRegion> regions, plan_.RegionsOf(device));
      for (const FetchRegion& region : regions) {
        SHARDMESH_RETURN_IF_ERROR(
            Link(region.source, device, region.tile, region.elements, to->add_regions()));
      }
      listed_regions_ += part.region_count;
    }
    return CheckRoom(*to);
  }

  absl::Status Source(DeviceId source) {
    SHARDMESH_RETURN_IF_ERROR(CheckWalk(source));
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<ReshardLink> links,
                               plan_.LinksOutOf(source, kMaxListedRegions - listed_links_));
    for (const ReshardLink& link : links) {
      v1::ReshardLink* to = response_->add_sent();
      SHARDMESH_RETURN_IF_ERROR(Link(link.source, link.destination, link.tile, link.elements, to));
      SHARDMESH_RETURN_IF_ERROR(CheckRoom(*to));
    }
    listed_links_ += static_cast<int64_t>(links.size());
    return absl::OkStatus();
  }

 private:
  absl::Status Link(DeviceId source, DeviceId destination, const Tile& tile, int64_t elements,
                    v1::ReshardLink* to) const {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, TileBytes(elements, bits_));
    to->set_source(source);
    to->set_destination(destination);
    rpc::Encode(tile, to->mutable_tile());
    to->set_bytes(bytes);
    return absl::OkStatus();
  }

  absl::Status CheckRegions(int64_t more) const {
    if (listed_regions_ + more <= kMaxListedRegions) {
      return absl::OkStatus();
    }
    return OverLimit(StrCat("the devices asked for receive more than ", kMaxListedRegions,
                            " regions; ask for fewer devices, or omit the regions"),
                     kMaxListedRegions);
  }

  // Returns an error if the answer, extended by `part`, would no longer fit into one message.
  template <typename Part>
  absl::Status CheckRoom(const Part& part) {
    if (is_cancelled_ != nullptr && is_cancelled_()) {
      return absl::CancelledError("cancelled");
    }
    bytes_ += part.ByteSizeLong() + 8;
    if (bytes_ + kSpareMessageBytes <= static_cast<size_t>(rpc::kMaxControlMessageBytes)) {
      return absl::OkStatus();
    }
    return OverLimit(StrCat("the answer does not fit a message of ", rpc::kMaxControlMessageBytes,
                            " bytes; ask for fewer devices, or omit the regions"),
                     rpc::kMaxControlMessageBytes);
  }

  // Bounds the work of LinksOutOf, summed over all sources. The work for a source is the number of
  // devices whose tiles overlap its tile.
  absl::Status CheckWalk(DeviceId source) {
    const Tile tile = plan_.from().TileOf(source);
    const Tiling& to = plan_.to();
    int64_t count = to.replica_count();
    for (int64_t dim = 0; dim < to.rank(); ++dim) {
      const IndexRange& held = tile.ranges[static_cast<size_t>(dim)];
      const int64_t part_size = std::max<int64_t>(to.PartRange(dim, 0).size(), 1);
      // An estimate if parts are unequal.
      const int64_t parts = held.size() == 0
                                ? 0
                                : std::min(to.PartCount(dim), (held.stop - 1) / part_size -
                                                                  held.start / part_size + 1);
      if (__builtin_mul_overflow(count, parts, &count)) {
        count = ReshardPlan::kMaxWalk;
      }
    }
    walked_ += std::min(count, ReshardPlan::kMaxWalk);
    if (walked_ <= ReshardPlan::kMaxWalk) {
      return absl::OkStatus();
    }
    return OverLimit(StrCat("what the sources asked for hold is wanted by more than ",
                            ReshardPlan::kMaxWalk, " devices; ask for fewer sources"),
                     ReshardPlan::kMaxWalk);
  }

  const ReshardPlan& plan_;
  const int bits_;
  const bool omit_regions_;
  const std::function<bool()>& is_cancelled_;
  v1::PlanReshardResponse* const response_;
  int64_t listed_regions_ = 0;
  int64_t listed_links_ = 0;
  int64_t walked_ = 0;
  size_t bytes_ = 0;
};

}  // namespace

absl::Status Answer(const AnswerContext& context, const v1::PlanReshardRequest& request,
                    v1::PlanReshardResponse* response, const std::function<bool()>& is_cancelled) {
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  SHARDMESH_DECODE(shape, "shape.sizes", rpc::DecodeShape(request.shape().sizes()));
  SHARDMESH_DECODE(dtype, "dtype", rpc::Decode(request.dtype()));
  SHARDMESH_DECODE(from, "source",
                   DecodeLayout(context.state, request.source(), shape, compatibility));
  SHARDMESH_DECODE(to, "destination",
                   DecodeLayout(context.state, request.destination(), shape, compatibility));
  SHARDMESH_RETURN_IF_ERROR(CheckDevices(request.devices(), to.mesh(), "devices"));
  SHARDMESH_RETURN_IF_ERROR(CheckDevices(request.sources(), from.mesh(), "sources"));
  SHARDMESH_DECODE(plan, "destination", ReshardPlan::Create(from, to));
  ReshardWriter writer(plan, BitsPerElement(dtype), request.omit_regions(), is_cancelled, response);
  SHARDMESH_RETURN_IF_ERROR(writer.Totals());
  for (const DeviceId device : request.devices()) {
    const absl::Status status = writer.Device(device);
    if (!status.ok()) {
      return rpc::WithField(status, "devices");
    }
  }
  for (const DeviceId source : request.sources()) {
    const absl::Status status = writer.Source(source);
    if (!status.ok()) {
      return rpc::WithField(status, "sources");
    }
  }
  response->set_revision(context.state.revision());
  return absl::OkStatus();
}

}  // namespace shardmesh::server
