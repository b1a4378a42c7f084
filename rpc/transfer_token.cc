// Signs and verifies transfer tokens.
#include "rpc/transfer_token.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/time_codec.h"
#include "sharding/digest.h"
#include "shardmesh/internal/v1/transfer_token.pb.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

namespace wire = shardmesh::internal::v1;

std::string_view Verb(TransferDirection direction) {
  return direction == TransferDirection::kPut ? "put" : "get";
}

absl::Status Unauthenticated(std::string_view message) {
  return WithReason(
      absl::UnauthenticatedError(StrCat(message, "; begin a transfer to get a token")),
      Reason::kBadToken);
}

absl::Status Denied(std::string_view message, const ArrayDescriptor& array) {
  return WithReason(absl::PermissionDeniedError(ToAbsl(message)), Reason::kBadToken,
                    {{fact::kArray, array.array_id}});
}

}  // namespace

std::string TokenKeyDigest(std::string_view key) {
  constexpr size_t kBytes = 16;
  return absl::BytesToHexString(Sha256(key).substr(0, kBytes));
}

std::string SignToken(const TransferClaims& claims, std::string_view key) {
  wire::TransferClaims message;
  message.set_direction(claims.direction == TransferDirection::kPut ? wire::TRANSFER_DIRECTION_PUT
                                                                    : wire::TRANSFER_DIRECTION_GET);
  message.set_transfer_id(claims.transfer_id);
  message.set_session_id(claims.session_id);
  message.set_array_descriptor(claims.array_descriptor);
  message.set_term(claims.term);
  Encode(claims.expire_time, message.mutable_expire_time());

  wire::TransferToken token;
  token.set_claims(message.SerializeAsString());
  token.set_signature(HmacSha256(key, token.claims()));
  return token.SerializeAsString();
}

absl::StatusOr<VerifiedToken> VerifyToken(std::string_view token, std::string_view key,
                                          TransferDirection direction, absl::Time now) {
  if (token.empty()) {
    return Unauthenticated("the transfer token is missing");
  }
  wire::TransferToken signed_claims;
  wire::TransferClaims message;
  if (!signed_claims.ParseFromString(std::string(token))) {
    return Unauthenticated("the transfer token is malformed");
  }
  if (!EqualInConstantTime(signed_claims.signature(), HmacSha256(key, signed_claims.claims()))) {
    return Unauthenticated(
        "the transfer token was not signed by this cluster's coordinator since its last start");
  }
  if (!message.ParseFromString(signed_claims.claims()) ||
      (message.direction() != wire::TRANSFER_DIRECTION_PUT &&
       message.direction() != wire::TRANSFER_DIRECTION_GET)) {
    return Unauthenticated("the transfer token is malformed");
  }
  auto array = ParseArrayDescriptorBytes(message.array_descriptor());
  if (!array.ok()) {
    return Unauthenticated(StrCat("the array descriptor of the transfer token is malformed: ",
                                  array.status().message()));
  }
  auto expire_time = Decode(message.expire_time());
  if (!expire_time.ok()) {
    return Unauthenticated("the transfer token is malformed");
  }
  VerifiedToken verified{.claims = {}, .array = *std::move(array)};
  TransferClaims& claims = verified.claims;
  claims.direction = message.direction() == wire::TRANSFER_DIRECTION_PUT ? TransferDirection::kPut
                                                                         : TransferDirection::kGet;
  claims.transfer_id = std::move(*message.mutable_transfer_id());
  claims.session_id = std::move(*message.mutable_session_id());
  claims.array_descriptor = std::move(*message.mutable_array_descriptor());
  claims.term = message.term();
  claims.expire_time = *expire_time;
  if (claims.direction != direction) {
    return Denied(StrCat("the transfer token is for a ", Verb(claims.direction), ", not for a ",
                         Verb(direction)),
                  verified.array);
  }
  if (now >= claims.expire_time) {
    return Denied(
        StrCat("the transfer token expired ",
               absl::FormatDuration(absl::Trunc(now - claims.expire_time, absl::Milliseconds(1))),
               " ago; begin the transfer anew"),
        verified.array);
  }
  return verified;
}

}  // namespace shardmesh::rpc
