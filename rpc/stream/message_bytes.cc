// Parses with generated code, and searches for the fault only if that fails.
#include "rpc/stream/message_bytes.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "rpc/codec/status.h"
#include "status/str_cat.h"
#include "status/utf8.h"

namespace shardmesh::rpc {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Maximum number of levels of nested messages; protobuf refuses deeper nesting.
constexpr int kMaxDepth = 100;
// Maximum number of bytes of a string that an error shows.
constexpr size_t kShownBytes = 16;

std::string Joined(const grpc::ByteBuffer& bytes) {
  std::string joined;
  std::vector<grpc::Slice> slices;
  if (bytes.Dump(&slices).ok()) {
    for (const grpc::Slice& slice : slices) {
      joined.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
  }
  return joined;
}

// Returns the offset of the first byte that is not UTF-8.
size_t FirstBadByte(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const size_t size = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (!DecodeUtf8(text.substr(at, size)).has_value()) {
      break;
    }
    at += size;
  }
  return at;
}

// Returns the first fault that makes the bytes malformed; nullopt if none is found.
std::optional<FieldViolation> FindFault(CodedInputStream* from, const Descriptor& type,
                                        const std::string& path, int depth);

// Like FindFault, for one field whose tag was read. `path`: the path of this field.
std::optional<FieldViolation> FindFaultInField(CodedInputStream* from, uint32_t tag,
                                               const FieldDescriptor* field,
                                               const std::string& path, int depth) {
  const bool has_length =
      WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
  if (field == nullptr || !has_length ||
      (field->type() != FieldDescriptor::TYPE_STRING &&
       field->type() != FieldDescriptor::TYPE_MESSAGE)) {
    return WireFormatLite::SkipField(from, tag)
               ? std::nullopt
               : std::optional(
                     FieldViolation{path, "ends too early, or is not encoded as a field"});
  }
  uint32_t length = 0;
  constexpr auto kMaxLength = static_cast<uint32_t>(std::numeric_limits<int32_t>::max());
  if (!from->ReadVarint32(&length) || length > kMaxLength ||
      static_cast<int64_t>(length) > from->BytesUntilLimit()) {
    return FieldViolation{path, "says that it is longer than the message"};
  }
  if (field->type() == FieldDescriptor::TYPE_STRING) {
    std::string text;
    from->ReadString(&text, static_cast<int>(length));
    if (DecodeUtf8(text).has_value()) {
      return std::nullopt;
    }
    const size_t at = FirstBadByte(text);
    return FieldViolation{
        path, StrCat("is not UTF-8 from its byte ", at, " on: ", "\"",
                     absl::CHexEscape(absl::string_view(text).substr(at, kShownBytes)), "\"")};
  }
  const CodedInputStream::Limit limit = from->PushLimit(static_cast<int>(length));
  auto fault = FindFault(from, *field->message_type(), path, depth + 1);
  from->PopLimit(limit);
  return fault;
}

std::optional<FieldViolation> FindFault(CodedInputStream* from, const Descriptor& type,
                                        const std::string& path, int depth) {
  if (depth > kMaxDepth) {
    return FieldViolation{path, StrCat("nests more than ", kMaxDepth, " messages")};
  }
  std::map<int, int> counts;  // elements seen of each repeated field, by the field's number
  while (from->BytesUntilLimit() > 0) {
    const uint32_t tag = from->ReadTag();
    const int number = WireFormatLite::GetTagFieldNumber(tag);
    if (number == 0 || WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_END_GROUP) {
      return FieldViolation{path, "has bytes that are no field of a message"};
    }
    const FieldDescriptor* field = type.FindFieldByNumber(number);
    std::string inner = path;
    if (field != nullptr) {
      inner = StrCat(path, path.empty() ? "" : ".", field->name());
      if (field->is_repeated()) {
        inner = StrCat(inner, "[", counts[number]++, "]");
      }
    }
    if (auto fault = FindFaultInField(from, tag, field, inner, depth); fault.has_value()) {
      return fault;
    }
  }
  return std::nullopt;
}

}  // namespace

absl::Status ParseMessage(grpc::ByteBuffer* from, google::protobuf::Message* to) {
  bool parsed = false;
  {
    grpc::ProtoBufferReader reader(from);
    parsed = reader.status().ok() && to->ParseFromZeroCopyStream(&reader);
  }
  if (parsed) {
    from->Clear();
    return absl::OkStatus();
  }
  const std::string bytes = Joined(*from);
  from->Clear();
  const Descriptor& type = *to->GetDescriptor();
  CodedInputStream stream(reinterpret_cast<const uint8_t*>(bytes.data()),
                          static_cast<int>(bytes.size()));
  stream.PushLimit(static_cast<int>(bytes.size()));
  const auto fault = FindFault(&stream, type, "", 0);
  if (!fault.has_value() || fault->field.empty()) {
    return UnparsedMessage(type);
  }
  return BadField(fault->field, fault->description);
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  grpc::ByteBuffer bytes;
  bool owned = false;
  grpc::SerializationTraits<google::protobuf::Message>::Serialize(message, &bytes, &owned);
  return bytes;
}

absl::Status UnparsedMessage(const Descriptor& type) {
  return BadField("message", StrCat("is no valid ", type.full_name(),
                                    ": its bytes do not parse, or a string in it is not UTF-8"));
}

}  // namespace shardmesh::rpc
