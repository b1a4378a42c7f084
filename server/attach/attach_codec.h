// Converts the messages of attach streams between protobuf and the coordinator's types.
#ifndef SHARDMESH_SERVER_ATTACH_ATTACH_CODEC_H_
#define SHARDMESH_SERVER_ATTACH_ATTACH_CODEC_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "program/measured_rates.h"
#include "server/attach/worker_hello.h"
#include "server/attach/worker_message.h"
#include "server/content/digest_transport.h"
#include "server/diagnosis/flight_log.h"
#include "server/state/array_registry.h"
#include "server/steps/fill_transport.h"
#include "server/steps/sequencer.h"

namespace shardmesh::internal::v1 {
class AttachResponse;
class FilesChecked;
class FillFailed;
class Heartbeat;
class Hello;
class InventoryPage;
class StepReport;
class TileStaged;
class TilesDigested;
}  // namespace shardmesh::internal::v1

namespace shardmesh::server {

// The functions below encode messages to workers.

WorkerMessage EncodeMessage(const internal::v1::AttachResponse& message);

// The answer to an accepted hello.
struct WorkerWelcome {
  std::string_view cluster_id;
  int64_t term = 0;
  int32_t protocol = 0;  // the protocol version of all further messages
  absl::Duration heartbeat_interval;
  absl::Duration lost_after;
  std::string_view token_key;
  std::string_view build_version;
  absl::Time now;
};
WorkerMessage EncodeWelcome(const WorkerWelcome& welcome);
WorkerMessage EncodeClock(absl::Time now);
WorkerMessage EncodeMemoryAnswer(int64_t order_id, int64_t freed_bytes);
// Splits a verdict on an inventory (the list of a worker's tiles) into messages of bounded size. An
// empty verdict gives one message if `last` is true, and no message if not.
std::vector<WorkerMessage> EncodeVerdict(const InventoryVerdict& verdict, bool last);
// Splits the order to drop these arrays into messages of bounded size.
std::vector<WorkerMessage> EncodeDrops(const std::vector<std::string>& array_ids);

// The message that starts a step. Serialises only the step's number, epoch and term. The bytes of
// the step itself are already encoded and are appended unchanged.
WorkerMessage EncodeStart(const WorkNumber& number, const EncodedStep& step, bool with_plan);
// The message that ends a step or transfer. OK commits; an error aborts.
WorkerMessage EncodeEnd(const WorkRef& work, const absl::Status& status);
WorkerMessage EncodeEndTransfer(const std::string& transfer_id, const absl::Status& status);

// The question whether a worker can read files. `files`: from EncodeFiles (fill_codec.h), appended
// unchanged.
WorkerMessage EncodeCheckFiles(int64_t number, std::string_view files);
// The question for digests of the worker's tiles.
WorkerMessage EncodeDigestTiles(int64_t number, const std::vector<WantedDigest>& tiles);
// The order to fill tiles. `fill_tiles`: a message of FillEncoder, appended unchanged.
// `tail_bytes`: size of a tail of the order that follows the message.
WorkerMessage EncodeFill(std::string_view fill_tiles, size_t tail_bytes = 0);

// The functions below decode messages from workers.

WorkerHello DecodeHello(const internal::v1::Hello& from);
// Decodes the tiles of a page. `find_unknown` returns the indices of tiles whose arrays the
// registry does not know. Only the tiles with these indices get their array's descriptor, if it can
// be decoded. INVALID_ARGUMENT (BAD_FIELD): a tile cannot be decoded.
absl::StatusOr<std::vector<InventoryTile>> DecodeTiles(
    const internal::v1::InventoryPage& page,
    absl::FunctionRef<std::vector<size_t>(const std::vector<InventoryTile>&)> find_unknown);
// Returns the id of the mesh of each tile's array; an empty id if the array's descriptor cannot be
// parsed.
std::vector<std::string> DecodeMeshIds(const internal::v1::InventoryPage& page);
// Decodes the running and ended instructions of a heartbeat. A heartbeat without a time counts as
// sent at `now`. INVALID_ARGUMENT (BAD_FIELD): a field cannot be decoded.
absl::StatusOr<FlightLog::Heartbeat> DecodeFlight(const internal::v1::Heartbeat& from,
                                                  absl::Time now);
// Decodes the measured links of a heartbeat and adds `shift` to their times. INVALID_ARGUMENT
// (BAD_FIELD): a link cannot be decoded.
absl::StatusOr<std::vector<MeasuredLink>> DecodeLinks(const internal::v1::Heartbeat& from,
                                                      absl::Duration shift);
RankReport DecodeStaged(std::string_view identity, const internal::v1::TileStaged& from);
// Decodes a rank's report that it could not fill a tile. A report without an error counts as
// INTERNAL.
RankReport DecodeFillFailed(std::string_view identity, const internal::v1::FillFailed& from);
FileVerdict DecodeVerdict(const internal::v1::FilesChecked& from);
DigestTransport::Digests DecodeDigests(const internal::v1::TilesDigested& from);
// Decodes a rank's report on a step. A report of success that cannot be decoded counts as a
// failure: INTERNAL.
RankReport DecodeReport(std::string_view identity, const internal::v1::StepReport& from);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_ATTACH_CODEC_H_
