// Converts statuses to messages and back. The payloads of statuses are google.rpc details.
#include "rpc/codec/status.h"

#include <grpcpp/support/status.h>

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "rpc/codec/message_subject.h"
#include "rpc/codec/time_codec.h"
#include "shardmesh/v1/spec.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/retry.h"
#include "status/str_cat.h"
#include "status/utf8.h"

namespace shardmesh::rpc {
namespace {

constexpr std::string_view kDomain = "shardmesh";
constexpr std::string_view kPythonTypeKey = "python_type";

// Keys of a status's payloads. They are the type URLs of the payloads' messages.
constexpr absl::string_view kErrorInfoUrl = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr absl::string_view kBadRequestUrl = "type.googleapis.com/google.rpc.BadRequest";

// Limits of details. gRPC limits the trailers of a call to 8 KiB. They contain the message twice,
// and the details in base64, which takes a third more.
constexpr size_t kMaxDetailTextBytes = kMaxStatusMessageBytes / 4;
constexpr size_t kMaxDetailsBytes = 3800;
constexpr int kMaxFieldViolations = 4;
// Maximum number of facts of a detail; no reason has more facts.
constexpr int kMaxMetadata = 8;

// Returns the message in the payload with key `url`; the default message if there is none.
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

// Returns the text of a fact; empty if the status has no such fact.
std::string TextOf(const absl::Status& status, FactKey key) {
  return WireText(FactOf(status, key).value_or(""), kMaxDetailTextBytes);
}

std::string DescriptionOf(const absl::Status& status) {
  return WireText(ToStd(status.message()), kMaxDetailTextBytes);
}

google::rpc::ResourceInfo WireResourceInfo(const absl::Status& status) {
  google::rpc::ResourceInfo resource;
  resource.set_resource_type(
      ReasonOf(status) == Reason::kSessionGone ? "session" : TextOf(status, fact::kKind));
  resource.set_resource_name(TextOf(status, fact::kName));
  resource.set_description(DescriptionOf(status));
  return resource;
}

google::rpc::QuotaFailure WireQuotaFailure(const absl::Status& status) {
  google::rpc::QuotaFailure failure;
  auto* const violation = failure.add_violations();
  for (const FactKey key : {fact::kIdentity, fact::kFile, fact::kField}) {
    if (violation->subject().empty()) violation->set_subject(TextOf(status, key));
  }
  violation->set_description(DescriptionOf(status));
  return failure;
}

google::rpc::PreconditionFailure WirePreconditionFailure(const absl::Status& status) {
  google::rpc::PreconditionFailure failure;
  auto* const violation = failure.add_violations();
  const Reason reason = ReasonOf(status);
  violation->set_type(std::string(ReasonName(reason)));
  if (reason == Reason::kWorkerAttached || reason == Reason::kWorkerServesRank) {
    violation->set_subject(TextOf(status, fact::kIdentity));
  }
  for (const FactKey key : {fact::kMesh, fact::kName, fact::kArray}) {
    if (violation->subject().empty()) violation->set_subject(TextOf(status, key));
  }
  violation->set_description(DescriptionOf(status));
  return failure;
}

// Appends details to a status, as long as the limit of bytes leaves room.
class DetailWriter {
 public:
  explicit DetailWriter(google::rpc::Status* to) : to_(to) {}

  template <typename Message>
  bool Add(const Message& message) {
    google::protobuf::Any detail;
    detail.PackFrom(message);
    const size_t bytes = detail.ByteSizeLong() + kFramingBytes;
    if (used_bytes_ + bytes > kMaxDetailsBytes) return false;
    used_bytes_ += bytes;
    *to_->add_details() = std::move(detail);
    return true;
  }

  // Adds the corrections. If there is no room for all, omits first the fixes and then the
  // corrections, both from the end.
  void AddCorrections(v1::CorrectionFailure failure) {
    const auto last_with_fixes = [&failure] {
      auto* const corrections = failure.mutable_corrections();
      return std::find_if(corrections->rbegin(), corrections->rend(),
                          [](const v1::Correction& each) { return each.fixes_size() > 0; });
    };
    while (!Add(failure)) {
      if (const auto correction = last_with_fixes();
          correction != failure.mutable_corrections()->rend()) {
        correction->mutable_fixes()->RemoveLast();
      } else if (failure.corrections_size() > 0) {
        failure.mutable_corrections()->RemoveLast();
        failure.set_omitted(failure.omitted() + 1);
      } else {
        return;
      }
    }
  }

 private:
  // Size of a detail's tag and length.
  static constexpr size_t kFramingBytes = 4;

  google::rpc::Status* to_;
  size_t used_bytes_ = 0;
};

// Adds google.rpc's detail for errors of this reason, which repeats the error's facts.
void AddStandardDetail(const absl::Status& status, DetailWriter* to) {
  switch (ReasonOf(status)) {
    case Reason::kNotFound:
    case Reason::kAlreadyExists:
    case Reason::kSessionGone:
      to->Add(WireResourceInfo(status));
      return;
    case Reason::kMemoryLimit:
    case Reason::kStoreFull:
    case Reason::kLimitExceeded:
    case Reason::kOverloaded:
      to->Add(WireQuotaFailure(status));
      return;
    case Reason::kMeshIncomplete:
    case Reason::kArrayDegraded:
    case Reason::kVersionMismatch:
    case Reason::kMeshInUse:
    case Reason::kMeshMismatch:
    case Reason::kNoMesh:
    case Reason::kWorkerAttached:
    case Reason::kWorkerServesRank:
    case Reason::kRanksDefined:
      to->Add(WirePreconditionFailure(status));
      return;
    default:
      return;
  }
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

std::string WireMessage(const absl::Status& status) {
  std::string message(status.message());
  if (const std::vector<FieldViolation> fields = FieldViolationsOf(status);
      fields.size() == 1 && !fields.front().field.empty() && LacksSubject(message)) {
    message = StrCat(fields.front().field, " ", message);
  }
  return WireText(message, kMaxStatusMessageBytes);
}

void Encode(const absl::Status& status, google::rpc::Status* to) {
  if (status.ok()) {
    return;
  }
  to->set_code(static_cast<int>(status.code()));
  to->set_message(WireMessage(status));
  DetailWriter details(to);
  if (const auto info = WireErrorInfo(status); !info.reason().empty() || !info.metadata().empty()) {
    details.Add(info);
  }
  if (const auto delay = RetryInfoOf(status); delay.has_value()) {
    google::rpc::RetryInfo retry_info;
    Encode(*delay, retry_info.mutable_retry_delay());
    details.Add(retry_info);
  }
  if (const auto bad_request = WireBadRequest(status); bad_request.field_violations_size() > 0) {
    details.Add(bad_request);
  }
  AddStandardDetail(status, &details);
  if (status.GetPayload(kCorrectionFailureUrl).has_value()) {
    details.AddCorrections(PayloadOf<v1::CorrectionFailure>(status, kCorrectionFailureUrl));
  }
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) {
    return grpc::Status::OK;
  }
  google::rpc::Status wire;
  Encode(status, &wire);
  std::string details = wire.details_size() > 0 ? wire.SerializeAsString() : std::string();
  return grpc::Status(static_cast<grpc::StatusCode>(wire.code()), wire.message(),
                      std::move(details));
}

namespace {

absl::Status WithDetails(absl::Status result, const google::rpc::Status& wire) {
  for (const google::protobuf::Any& detail : wire.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad_request;
    google::rpc::RetryInfo retry_info;
    v1::CorrectionFailure corrections;
    if (detail.UnpackTo(&info)) {
      result = WithErrorInfo(std::move(result), std::move(info));
    } else if (detail.UnpackTo(&bad_request)) {
      SetPayload(result, kBadRequestUrl, bad_request);
    } else if (detail.UnpackTo(&retry_info)) {
      if (const auto delay = Decode(retry_info.retry_delay()); delay.ok()) {
        result = WithRetryDelay(std::move(result), *delay);
      }
    } else if (detail.UnpackTo(&corrections)) {
      SetPayload(result, kCorrectionFailureUrl, corrections);
    }
  }
  return result;
}

}  // namespace

absl::Status Decode(const google::rpc::Status& from) {
  // absl::Status would keep an unknown code as it is, so such a code becomes kUnknown.
  constexpr int kLastCode = static_cast<int>(absl::StatusCode::kUnauthenticated);
  const bool is_known = from.code() >= 0 && from.code() <= kLastCode;
  absl::Status result(
      is_known ? static_cast<absl::StatusCode>(from.code()) : absl::StatusCode::kUnknown,
      from.message());
  return result.ok() ? result : WithDetails(std::move(result), from);
}

absl::Status DecodeBounded(const google::rpc::Status& from) {
  const absl::Status result = Decode(from);
  if (result.ok()) return result;
  const absl::Status bounded(result.code(),
                             WireText(ToStd(result.message()), kMaxStatusMessageBytes));
  return WithReason(bounded, ReasonOf(result));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) {
    return absl::OkStatus();
  }
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status wire;
  if (!wire.ParseFromString(status.error_details())) {
    return result;  // The details are no google.rpc.Status. Code and message are still valid.
  }
  return WithDetails(std::move(result), wire);
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
  if (!MayHave(ReasonOf(status), fact::kField)) {
    return status;
  }
  return WithFacts(std::move(status), {{fact::kField, bad_request.field_violations(0).field()}});
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
