// Fuzzes the reading of frames: where the generated code reads them too, it reads the same, and
// written anew they are the same.
#include "rpc/stream/frame.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "google/protobuf/io/coded_stream.h"
#include "process/crc32c.h"
#include "shardmesh/internal/v1/exchange_service.pb.h"
#include "tests/fuzz/byte_buffer.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/quiet_protobuf.h"

namespace shardmesh::fuzz {
namespace {

// `rest` behind its checksum.
std::string Seal(std::string_view rest) {
  std::string bytes = {'\x0d', 0, 0, 0, 0};
  google::protobuf::io::CodedOutputStream::WriteLittleEndian32ToArray(
      Crc32c({rest.data(), rest.size()}), reinterpret_cast<uint8_t*>(bytes.data() + 1));
  return bytes.append(rest);
}

std::string PayloadOf(const rpc::Frame& frame) {
  std::string bytes;
  for (const grpc::Slice& slice : frame.payload) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

}  // namespace

// The first byte says in slices of which size the rest arrives, whether it gets a checksum, and
// whether its payload must have one.
void Check(std::string_view input) {
  const uint8_t how = input.empty() ? 0 : static_cast<uint8_t>(input.front());
  const std::string_view rest = input.substr(std::min<size_t>(1, input.size()));
  const std::string bytes = how % 2 == 0 ? Seal(rest) : std::string(rest);
  const auto least = how % 4 < 2 ? rpc::PayloadChecksum::kNone : rpc::PayloadChecksum::kCrc32c;
  const absl::StatusOr<rpc::Frame> frame = rpc::ReadFrame(BufferOf(bytes, how / 4 + 1), least);
  if (!frame.ok()) {
    return;
  }
  const std::string payload = PayloadOf(*frame);
  Require(frame->payload_bytes() == static_cast<int64_t>(payload.size()));
  // Only protobuf's skipping of unknown fields, which we use, forgives what its parsing does not.
  internal::v1::ExchangeRequest generated;
  Require(
      !generated.ParseFromString(bytes) ||
      (generated.payload() == payload && generated.offset_bytes() == frame->header.offset_bytes));

  const absl::Span<const char> pieces[] = {payload};
  for (const auto checksum : {rpc::PayloadChecksum::kCrc32c, rpc::PayloadChecksum::kNone}) {
    const auto written = rpc::WriteFrame(frame->header, pieces, nullptr, checksum);
    Require(written.ok());
    const absl::StatusOr<rpc::Frame> again = rpc::ReadFrame(*written, checksum);
    Require(again.ok() && again->header == frame->header && PayloadOf(*again) == payload);
  }
}

}  // namespace shardmesh::fuzz
