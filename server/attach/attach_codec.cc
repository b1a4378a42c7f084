// Encodes messages to workers, and decodes their reports.
#include "server/attach/attach_codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "rpc/codec/array_codec.h"
#include "rpc/codec/flight_codec.h"
#include "rpc/codec/link_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/time_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Maximum number of array ids in one message. It bounds the message's size.
constexpr int kIdsPerMessage = 10'000;
// Maximum number of quarantined tiles in one message. It is lower than kIdsPerMessage, because each
// tile carries a text with its reason.
constexpr int kAsidePerMessage = 1'000;

// Maximum number of bytes in front of a field's content: a tag of at most 5 bytes and a length of
// at most 10 bytes.
constexpr size_t kMostFieldHeadBytes = 15;

// Appends the tag and the length of a field that is bytes or a message.
void AppendFieldHead(int number, size_t size, std::string* to) {
  using ::google::protobuf::internal::WireFormatLite;
  using ::google::protobuf::io::CodedOutputStream;
  std::array<uint8_t, kMostFieldHeadBytes> head = {};
  uint8_t* end = CodedOutputStream::WriteVarint32ToArray(
      WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED), head.data());
  end = CodedOutputStream::WriteVarint64ToArray(size, end);
  to->append(head.data(), end);
}

absl::StatusOr<RankReportDetail> DecodeDetail(const internal::v1::StepReport& from) {
  RankReportDetail detail;
  SHARDMESH_ASSIGN_OR_RETURN(detail.kernel, rpc::Decode(from.kernel_time()));
  SHARDMESH_ASSIGN_OR_RETURN(detail.collective, rpc::Decode(from.collective_time()));
  detail.sent_bytes = from.sent_bytes();
  SHARDMESH_ASSIGN_OR_RETURN(detail.queued, rpc::Decode(from.queue_time()));
  for (const internal::v1::StagedOutput& output : from.outputs()) {
    detail.tile_bytes.emplace(output.array_id(), output.data());
  }
  if (from.has_trace()) {
    SHARDMESH_ASSIGN_OR_RETURN(detail.trace, rpc::Decode(from.trace()));
  }
  return detail;
}

static_assert(internal::v1::KernelCost::Kind_MAX == kProductKinds + kKernelCosts,
              "the kinds have the order of ProductKind and then of KernelCost, from 1 on");

MeasuredKernels DecodeKernels(const internal::v1::WorkerCapacity& from) {
  MeasuredKernels kernels = {.f32_flops_per_second = from.f32_flops_per_second()};
  for (const internal::v1::KernelCost& cost : from.kernel_costs()) {
    const int number = cost.kind();
    if (number < 1 || number > internal::v1::KernelCost::Kind_MAX) continue;  // of a newer build
    const auto kind = static_cast<size_t>(number - 1);
    if (kind >= kProductKinds) {
      kernels.costs.seconds[kind - kProductKinds] = cost.seconds();
      continue;
    }
    const auto rows = std::find(kProductRows.begin(), kProductRows.end(), cost.rows());
    if (rows == kProductRows.end()) continue;
    kernels.costs.products[kind][static_cast<size_t>(rows - kProductRows.begin())] = cost.seconds();
  }
  return kernels;
}

}  // namespace

WorkerMessage EncodeMessage(const internal::v1::AttachResponse& message) {
  return std::make_shared<const std::string>(message.SerializeAsString());
}

WorkerMessage EncodeWelcome(const WorkerWelcome& from) {
  internal::v1::AttachResponse response;
  internal::v1::Welcome* to = response.mutable_welcome();
  to->set_cluster_id(std::string(from.cluster_id));
  to->set_term(from.term);
  to->set_protocol(from.protocol);
  rpc::Encode(from.heartbeat_interval, to->mutable_heartbeat_interval());
  rpc::Encode(from.lost_after, to->mutable_heartbeat_limit());
  to->set_token_key(std::string(from.token_key));
  to->mutable_build()->set_version(std::string(from.build_version));
  rpc::Encode(from.now, to->mutable_coordinator_time());
  return EncodeMessage(response);
}

WorkerMessage EncodeMemoryAnswer(int64_t order_id, int64_t freed_bytes) {
  internal::v1::AttachResponse response;
  response.mutable_memory_answer()->set_order_id(order_id);
  response.mutable_memory_answer()->set_freed_bytes(freed_bytes);
  return EncodeMessage(response);
}

WorkerMessage EncodeClock(absl::Time now) {
  internal::v1::AttachResponse response;
  rpc::Encode(now, response.mutable_clock()->mutable_time());
  return EncodeMessage(response);
}

std::vector<WorkerMessage> EncodeVerdict(const InventoryVerdict& verdict, bool last) {
  std::vector<WorkerMessage> messages;
  internal::v1::AttachResponse response;
  internal::v1::InventoryVerdict* to = response.mutable_inventory_verdict();
  const auto flush_if_full = [&] {
    if (to->commit_array_ids_size() + to->drop_array_ids_size() + to->live_array_ids_size() +
                to->unknown_array_ids_size() >=
            kIdsPerMessage ||
        to->quarantine_tiles_size() >= kAsidePerMessage) {
      messages.push_back(EncodeMessage(response));
      to->Clear();
    }
  };
  for (const std::string& array_id : verdict.commit) {
    to->add_commit_array_ids(array_id);
    flush_if_full();
  }
  for (const std::string& array_id : verdict.drop) {
    to->add_drop_array_ids(array_id);
    flush_if_full();
  }
  // The live arrays go before the quarantined tiles: the worker may have to make room for a live
  // array first.
  for (const std::string& array_id : verdict.live) {
    to->add_live_array_ids(array_id);
    flush_if_full();
  }
  for (const std::string& array_id : verdict.unknown) {
    to->add_unknown_array_ids(array_id);
    flush_if_full();
  }
  for (const InventoryVerdict::Aside& aside : verdict.quarantine) {
    internal::v1::QuarantineTile* tile = to->add_quarantine_tiles();
    tile->set_array_id(aside.array_id);
    rpc::Encode(aside.tile, tile->mutable_tile());
    tile->set_reason(aside.reason);
    tile->set_array_lives(aside.array_lives);
    flush_if_full();
  }
  to->set_last(last);
  if (last || to->ByteSizeLong() > 0) messages.push_back(EncodeMessage(response));
  return messages;
}

std::vector<WorkerMessage> EncodeDrops(const std::vector<std::string>& array_ids) {
  std::vector<WorkerMessage> messages;
  constexpr size_t kPiece = kIdsPerMessage;
  for (size_t first = 0; first < array_ids.size(); first += kPiece) {
    internal::v1::AttachResponse message;
    const size_t end = std::min(array_ids.size(), first + kPiece);
    for (size_t i = first; i < end; ++i) {
      message.mutable_drop_arrays()->add_array_ids(array_ids[i]);
    }
    messages.push_back(EncodeMessage(message));
  }
  return messages;
}

WorkerMessage EncodeStart(const WorkNumber& number, const EncodedStep& step, bool with_plan) {
  internal::v1::RunStep numbers;
  numbers.set_sequence(number.sequence);
  numbers.set_epoch(number.epoch);
  numbers.set_term(number.term);
  std::string head = numbers.SerializeAsString();
  std::string_view plan_bytes;
  if (with_plan) {
    plan_bytes = *step.plan;
    AppendFieldHead(internal::v1::RunStep::kPlanFieldNumber, plan_bytes.size(), &head);
  }
  const size_t size = head.size() + plan_bytes.size() + step.rest.size();
  auto message = std::make_shared<std::string>();
  message->reserve(kMostFieldHeadBytes + size);
  AppendFieldHead(internal::v1::AttachResponse::kRunStepFieldNumber, size, message.get());
  message->append(head).append(plan_bytes).append(step.rest);
  return message;
}

WorkerMessage EncodeEnd(const WorkRef& work, const absl::Status& status) {
  if (!work.transfer_id.empty()) return EncodeEndTransfer(work.transfer_id, status);
  internal::v1::AttachResponse response;
  internal::v1::EndStep* end = response.mutable_end_step();
  end->set_sequence(work.sequence);
  end->set_commit(status.ok());
  if (!status.ok()) rpc::Encode(status, end->mutable_error());
  return EncodeMessage(response);
}

WorkerMessage EncodeEndTransfer(const std::string& transfer_id, const absl::Status& status) {
  internal::v1::AttachResponse response;
  internal::v1::EndTransfer* end = response.mutable_end_transfer();
  end->set_transfer_id(transfer_id);
  end->set_commit(status.ok());
  if (!status.ok()) rpc::Encode(status, end->mutable_error());
  return EncodeMessage(response);
}

WorkerMessage EncodeCheckFiles(int64_t number, std::string_view files) {
  internal::v1::CheckFiles head;
  head.set_order_id(number);
  const std::string head_bytes = head.SerializeAsString();
  auto message = std::make_shared<std::string>();
  AppendFieldHead(internal::v1::AttachResponse::kCheckFilesFieldNumber,
                  head_bytes.size() + files.size(), message.get());
  message->append(head_bytes).append(files);
  return message;
}

WorkerMessage EncodeDigestTiles(int64_t number, const std::vector<WantedDigest>& tiles) {
  internal::v1::AttachResponse message;
  internal::v1::DigestTiles& order = *message.mutable_digest_tiles();
  order.set_order_id(number);
  for (const WantedDigest& wanted : tiles) {
    internal::v1::WantedDigest& to = *order.add_tiles();
    to.set_array_id(wanted.array_id);
    rpc::Encode(wanted.tile, to.mutable_tile());
  }
  return EncodeMessage(message);
}

WorkerMessage EncodeFill(std::string_view fill_tiles, size_t tail_bytes) {
  auto message = std::make_shared<std::string>();
  message->reserve(kMostFieldHeadBytes + fill_tiles.size());
  AppendFieldHead(internal::v1::AttachResponse::kFillTilesFieldNumber,
                  fill_tiles.size() + tail_bytes, message.get());
  message->append(fill_tiles);
  return message;
}

WorkerHello DecodeHello(const internal::v1::Hello& from) {
  WorkerHello hello{.cluster_id = from.cluster_id(),
                    .identity = from.identity(),
                    .incarnation = from.incarnation(),
                    .build_version = from.build().version(),
                    .build_revision = from.build().revision(),
                    .min_protocol = from.protocol().min(),
                    .max_protocol = from.protocol().max(),
                    .features = {from.features().begin(), from.features().end()},
                    .endpoints = {},
                    .exchange_port = from.has_exchange_port()
                                         ? std::optional<int32_t>(from.exchange_port())
                                         : std::nullopt,
                    .nonce = from.nonce(),
                    .memory_bytes = from.capacity().memory_bytes(),
                    .kernels = DecodeKernels(from.capacity()),
                    .durable = from.capacity().durable(),
                    .cache_bytes = from.capacity().cache_bytes(),
                    .term = from.term(),
                    .pid = from.pid(),
                    .boot_id = from.boot_id(),
                    .data_identity = from.data_identity()};
  for (const v1::Endpoint& endpoint : from.endpoints()) {
    hello.endpoints.push_back(endpoint.address());
  }
  return hello;
}

absl::StatusOr<std::vector<InventoryTile>> DecodeTiles(
    const internal::v1::InventoryPage& page,
    absl::FunctionRef<std::vector<size_t>(const std::vector<InventoryTile>&)> find_unknown) {
  std::vector<InventoryTile> tiles;
  tiles.reserve(static_cast<size_t>(page.tiles_size()));
  for (const internal::v1::HeldTile& held : page.tiles()) {
    InventoryTile& tile = tiles.emplace_back();
    tile.array_id = held.array_id();
    SHARDMESH_ASSIGN_OR_RETURN(tile.tile, rpc::Decode(held.tile()));
    tile.crc32c = held.crc32c();
    tile.committed = held.committed();
    tile.of_step = !tile.committed && held.of_step();
    tile.on_disk = held.durability() == v1::DURABILITY_DISK;
    tile.state_step = held.state_step();
  }
  for (const size_t unknown : find_unknown(tiles)) {
    // The registry does not adopt an array whose descriptor cannot be decoded.
    absl::StatusOr<ArrayDescriptor> array =
        rpc::ParseArrayDescriptorBytes(page.tiles(static_cast<int>(unknown)).array_descriptor());
    if (array.ok() && array->array_id == tiles[unknown].array_id) {
      tiles[unknown].descriptor = *std::move(array);
    }
  }
  return tiles;
}

std::vector<std::string> DecodeMeshIds(const internal::v1::InventoryPage& page) {
  std::vector<std::string> mesh_ids;
  for (const internal::v1::HeldTile& held : page.tiles()) {
    v1::ArrayDescriptor array;
    mesh_ids.push_back(array.ParseFromString(held.array_descriptor()) ? array.mesh_id() : "");
  }
  return mesh_ids;
}

absl::StatusOr<FlightLog::Heartbeat> DecodeFlight(const internal::v1::Heartbeat& from,
                                                  absl::Time now) {
  FlightLog::Heartbeat heartbeat{.sent = now};
  if (from.has_send_time()) {
    SHARDMESH_ASSIGN_OR_RETURN(heartbeat.sent, rpc::Decode(from.send_time()));
  }
  for (int i = 0; i < from.progress_size(); ++i) {
    StepProgress& running = heartbeat.progress.emplace_back();
    SHARDMESH_ASSIGN_OR_RETURN(running, rpc::Decode(from.progress(i)));
    if (running.instruction.has_value() && i < from.received_bytes_size()) {
      running.instruction->received_bytes = std::max<int64_t>(0, from.received_bytes(i));
    }
  }
  for (const v1::FlightRecord& record : from.records()) {
    SHARDMESH_ASSIGN_OR_RETURN(heartbeat.records.emplace_back(), rpc::Decode(record));
  }
  return heartbeat;
}

absl::StatusOr<std::vector<MeasuredLink>> DecodeLinks(const internal::v1::Heartbeat& from,
                                                      absl::Duration shift) {
  std::vector<MeasuredLink> links;
  for (const v1::MeasuredLink& link : from.links().links()) {
    SHARDMESH_ASSIGN_OR_RETURN(links.emplace_back(), rpc::Decode(link));
    links.back().measured += shift;
  }
  return links;
}

RankReport DecodeStaged(std::string_view identity, const internal::v1::TileStaged& from) {
  RankReport report;
  report.identity = std::string(identity);
  report.rank = from.rank();
  report.tiles.push_back({.array_id = from.array_id(),
                          .crc32c = from.crc32c(),
                          .size_bytes = from.size_bytes(),
                          .on_disk = from.durability() == v1::DURABILITY_DISK});
  return report;
}

RankReport DecodeFillFailed(std::string_view identity, const internal::v1::FillFailed& from) {
  RankReport report;
  report.identity = std::string(identity);
  report.rank = from.rank();
  report.status = rpc::Decode(from.error());
  if (report.status.ok()) report.status = absl::InternalError("the worker names no error");
  return report;
}

FileVerdict DecodeVerdict(const internal::v1::FilesChecked& from) {
  return {.status = rpc::Decode(from.error()), .file = from.file()};
}

DigestTransport::Digests DecodeDigests(const internal::v1::TilesDigested& from) {
  return {from.tile_sha256().begin(), from.tile_sha256().end()};
}

RankReport DecodeReport(std::string_view identity, const internal::v1::StepReport& from) {
  RankReport report;
  report.identity = std::string(identity);
  report.rank = from.rank();
  report.done = true;
  if (from.outcome() != internal::v1::StepReport::OUTCOME_DONE) {
    report.blamed_identity = from.blamed_identity();
    report.status = rpc::Decode(from.error());
    if (report.status.ok()) {
      report.status = absl::InternalError("the worker names no error");
    }
    return report;
  }
  absl::StatusOr<RankReportDetail> detail = DecodeDetail(from);
  if (!detail.ok()) {
    report.status =
        absl::InternalError(StrCat("its report cannot be read: ", detail.status().message()));
    return report;
  }
  report.detail = *std::move(detail);
  for (const internal::v1::StagedOutput& output : from.outputs()) {
    report.tiles.push_back({.array_id = output.array_id(),
                            .crc32c = output.crc32c(),
                            .size_bytes = output.size_bytes()});
  }
  return report;
}

}  // namespace shardmesh::server
