// Converts statuses to and from the wire; their payloads are google.rpc details.
#include "rpc/codec/status.h"

#include <grpcpp/support/status.h>

#include <utility>

#include "absl/strings/cord.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "rpc/codec/message_subject.h"
#include "rpc/codec/time_codec.h"
#include "status/detail.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "status/utf8.h"

namespace shardmesh::rpc {
namespace {

constexpr std::string_view kDomain = "shardmesh";
constexpr std::string_view kPythonTypeKey = "python_type";

// The keys of payloads are the type URLs of their messages.
constexpr absl::string_view kErrorInfoUrl = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr absl::string_view kBadRequestUrl = "type.googleapis.com/google.rpc.BadRequest";

// Together with kMaxStatusMessageBytes this keeps the trailers below gRPC's 8 KiB.
constexpr size_t kMaxDetailTextBytes = kMaxStatusMessageBytes / 4;
constexpr int kMaxFieldViolations = 4;
constexpr int kMaxMetadata = 4;

// Returns the message in the payload `url`; the default message if there is none.
template <typename Message>
Message PayloadOf(const absl::Status& status, absl::string_view url) {
  Message message;
  if (const auto payload = status.GetPayload(url); payload.has_value()) {
    message.ParseFromString(std::string(*payload));
  }
  return message;
}

template <typename Message>
void SetPayload(absl::Status& status, absl::string_view url, const Message& message) {
  status.SetPayload(url, absl::Cord(message.SerializeAsString()));
}

// Returns valid UTF-8 of at most `limit` bytes; an ellipsis replaces the cut part.
std::string WireText(std::string_view text, size_t limit) {
  std::string clean(text);
  if (!DecodeUtf8(clean).has_value()) {
    for (char& c : clean) {
      c = static_cast<unsigned char>(c) < 0x80 ? c : '?';
    }
  }
  if (clean.size() <= limit) {
    return clean;
  }
  size_t end = limit - 3;
  while (end > 0 && (static_cast<unsigned char>(clean[end]) & 0xC0) == 0x80) {
    --end;
  }
  return clean.substr(0, end) + "...";
}

google::rpc::ErrorInfo WireErrorInfo(const absl::Status& status) {
  auto info = PayloadOf<google::rpc::ErrorInfo>(status, kErrorInfoUrl);
  if (const Reason reason = ReasonOf(status); reason != Reason::kUnspecified) {
    info.set_reason(std::string(ReasonName(reason)));
  }
  google::rpc::ErrorInfo cut;
  cut.set_reason(WireText(info.reason(), kMaxDetailTextBytes));
  cut.set_domain(std::string(kDomain));
  for (const auto& [key, value] : FactsOf(status)) {
    if (cut.metadata().size() < kMaxMetadata) {
      (*cut.mutable_metadata())[WireText(key, kMaxDetailTextBytes)] =
          WireText(value, kMaxDetailTextBytes);
    }
  }
  if (const std::string python_type = PythonTypeOf(status); !python_type.empty()) {
    (*cut.mutable_metadata())[std::string(kPythonTypeKey)] =
        WireText(python_type, kMaxDetailTextBytes);
  }
  return cut;
}

google::rpc::BadRequest WireBadRequest(const absl::Status& status) {
  google::rpc::BadRequest cut;
  for (const FieldViolation& violation : FieldViolationsOf(status)) {
    if (cut.field_violations_size() < kMaxFieldViolations) {
      auto* added = cut.add_field_violations();
      added->set_field(WireText(violation.field, kMaxDetailTextBytes));
      added->set_description(WireText(violation.description, kMaxDetailTextBytes));
    }
  }
  return cut;
}

absl::Status WithErrorInfo(absl::Status status, google::rpc::ErrorInfo info) {
  if (info.domain() != kDomain) {
    return status;
  }
  for (const auto& [key, value] : info.metadata()) {
    status = key == kPythonTypeKey ? WithPythonType(std::move(status), value)
                                   : WithFact(std::move(status), key, value);
  }
  info.clear_metadata();
  if (const auto reason = ReasonFromName(info.reason());
      reason.has_value() && *reason != Reason::kUnspecified) {
    status = WithReason(std::move(status), *reason);
    info.clear_reason();
  }
  if (!info.reason().empty()) {
    SetPayload(status, kErrorInfoUrl, info);
  }
  return status;
}

}  // namespace

std::string WireMessage(const absl::Status& status) {
  std::string message(status.message());
  if (const std::vector<FieldViolation> fields = FieldViolationsOf(status);
      fields.size() == 1 && !fields.front().field.empty() && LacksSubject(message)) {
    message = StrCat(fields.front().field, " ", message);
  }
  return WireText(message, kMaxStatusMessageBytes);
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) {
    return grpc::Status::OK;
  }
  google::rpc::Status wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(WireMessage(status));
  if (const auto info = WireErrorInfo(status); !info.reason().empty() || !info.metadata().empty()) {
    wire.add_details()->PackFrom(info);
  }
  if (const auto bad_request = WireBadRequest(status); bad_request.field_violations_size() > 0) {
    wire.add_details()->PackFrom(bad_request);
  }
  if (const auto delay = RetryDelayOf(status); delay.has_value()) {
    google::rpc::RetryInfo retry_info;
    Encode(*delay, retry_info.mutable_retry_delay());
    wire.add_details()->PackFrom(retry_info);
  }
  std::string details = wire.details_size() > 0 ? wire.SerializeAsString() : std::string();
  return grpc::Status(static_cast<grpc::StatusCode>(wire.code()), wire.message(),
                      std::move(details));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) {
    return absl::OkStatus();
  }
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status wire;
  if (!wire.ParseFromString(status.error_details())) {
    return result;  // The details have another type; code and message are still valid.
  }
  for (const google::protobuf::Any& detail : wire.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad_request;
    google::rpc::RetryInfo retry_info;
    if (detail.UnpackTo(&info)) {
      result = WithErrorInfo(std::move(result), std::move(info));
    } else if (detail.UnpackTo(&bad_request)) {
      SetPayload(result, kBadRequestUrl, bad_request);
    } else if (detail.UnpackTo(&retry_info)) {
      if (const auto delay = Decode(retry_info.retry_delay()); delay.ok()) {
        result = WithRetryDelay(std::move(result), *delay);
      }
    }
  }
  return result;
}

absl::Status WithField(absl::Status status, std::string_view field) {
  if (status.ok()) {
    return status;
  }
  auto bad_request = PayloadOf<google::rpc::BadRequest>(status, kBadRequestUrl);
  if (bad_request.field_violations().empty()) {
    auto* violation = bad_request.add_field_violations();
    violation->set_field(std::string(field));
    violation->set_description(WireText(ToStd(status.message()), kMaxStatusMessageBytes));
  } else {
    for (auto& violation : *bad_request.mutable_field_violations()) {
      const std::string_view inner = violation.field();
      const bool is_index = !inner.empty() && inner[0] == '[';
      violation.set_field(StrCat(field, is_index ? "" : ".", inner));
    }
  }
  SetPayload(status, kBadRequestUrl, bad_request);
  return status;
}

absl::Status WithField(absl::Status status, std::string_view field, size_t index) {
  return status.ok() ? status : WithField(std::move(status), StrCat(field, "[", index, "]"));
}

std::vector<FieldViolation> FieldViolationsOf(const absl::Status& status) {
  std::vector<FieldViolation> violations;
  const auto bad_request = PayloadOf<google::rpc::BadRequest>(status, kBadRequestUrl);
  for (const auto& violation : bad_request.field_violations()) {
    violations.push_back({violation.field(), violation.description()});
  }
  return violations;
}

absl::Status BadField(std::string_view field, std::string_view message) {
  return WithField(WithReason(absl::InvalidArgumentError(ToAbsl(message)), Reason::kBadField),
                   field);
}

}  // namespace shardmesh::rpc
