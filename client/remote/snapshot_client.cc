// Receives, checks and saves a snapshot.
#include "client/remote/snapshot_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "process/crc32c.h"
#include "process/file.h"
#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "rpc/connect.h"
#include "shardmesh/v1/admin_service.grpc.pb.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// The snapshot's bytes received so far; checks each piece and writes it to the file.
class Snapshot {
 public:
  explicit Snapshot(AtomicFileWriter file) : file_(std::move(file)) {}

  absl::Status Add(const v1::SnapshotResponse& response) {
    if (response.has_header()) {
      saved_ = {response.header().revision(), response.header().size_bytes()};
      return absl::OkStatus();
    }
    const v1::SnapshotPiece& piece = response.piece();
    const std::string where = StrCat("the piece at byte ", received_);
    if (piece.offset_bytes() != received_) return Damaged(where, piece.offset_bytes(), received_);
    if (const uint32_t crc = Crc32c(piece.payload()); crc != piece.crc32c()) {
      return Damaged(where, absl::Hex(crc, absl::kZeroPad8),
                     absl::Hex(piece.crc32c(), absl::kZeroPad8));
    }
    received_ += static_cast<int64_t>(piece.payload().size());
    whole_ = ExtendCrc32c(whole_, piece.payload());
    if (piece.has_whole_crc32c()) stated_ = piece.whole_crc32c();
    return file_.Append(piece.payload());
  }

  absl::StatusOr<SavedSnapshot> Finish() {
    const std::string what = StrCat(received_, " of ", saved_.size_bytes, " bytes came");
    if (received_ != saved_.size_bytes) return Damaged(what, received_, saved_.size_bytes);
    if (stated_ != whole_) {
      return Damaged(what, absl::Hex(whole_, absl::kZeroPad8),
                     stated_.has_value() ? StrCat(absl::Hex(*stated_, absl::kZeroPad8)) : "");
    }
    SHARDMESH_RETURN_IF_ERROR(file_.Finish());
    return saved_;
  }

 private:
  // `have` and `need` are offsets, sizes or checksums.
  template <typename Have, typename Need>
  static absl::Status Damaged(std::string_view what, const Have& have, const Need& need) {
    return WithReason(
        absl::DataLossError(StrCat("the snapshot came damaged: ", what, "; try again")),
        Reason::kChecksumMismatch, {{fact::kHave, have}, {fact::kNeed, need}});
  }

  AtomicFileWriter file_;
  SavedSnapshot saved_;
  int64_t received_ = 0;
  uint32_t whole_ = 0;
  std::optional<uint32_t> stated_;  // checksum of all bytes, from the last piece
};

}  // namespace

absl::StatusOr<SavedSnapshot> SaveSnapshot(const std::string& address,
                                           const rpc::Credentials& credentials,
                                           const std::string& path, absl::Duration timeout) {
  const rpc::CallOptions call = rpc::CallOptions::Within(timeout);
  const rpc::ChannelOptions options{
      .credentials = credentials, .peer = rpc::ExpectedPeer::Coordinator(), .own_connection = true};
  SHARDMESH_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                             rpc::CreateChannel(address, options));
  SHARDMESH_RETURN_IF_ERROR(rpc::WaitForConnected(
      *channel, address,
      rpc::ConnectOptions{.timeout = std::min(rpc::kConnectTimeout, timeout), .limit = timeout},
      options));
  // Only the owner may read the file: it contains all records.
  SHARDMESH_ASSIGN_OR_RETURN(AtomicFileWriter file, AtomicFileWriter::Create(path, 0600));
  Snapshot snapshot(std::move(file));
  grpc::ClientContext context;
  rpc::Apply(call, &context);
  const auto stub = v1::AdminService::NewStub(channel);
  const auto stream = stub->Snapshot(&context, v1::SnapshotRequest());
  absl::Status status;
  for (v1::SnapshotResponse response; status.ok() && stream->Read(&response);) {
    status = snapshot.Add(response);
  }
  if (!status.ok()) {
    context.TryCancel();
    stream->Finish();
    return status;
  }
  if (absl::Status outcome = rpc::OutcomeOf(stream->Finish()); !outcome.ok()) {
    return WithContext(outcome, StrCat("snapshot of ", address));
  }
  return snapshot.Finish();
}

}  // namespace shardmesh::client
