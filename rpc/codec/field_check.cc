// Checks of names, ids and numbers.
#include "rpc/codec/field_check.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "rpc/codec/status.h"
#include "sharding/axis_value.h"
#include "sharding/shape.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "status/utf8.h"

namespace shardmesh::rpc {
namespace {

constexpr int64_t kDefaultPageSize = 100;
constexpr int64_t kMaxPageSize = 1000;

absl::Status CheckLength(std::string_view value, size_t limit, std::string_view field) {
  if (value.empty()) {
    return BadField(field, StrCat(field, " is empty; it needs 1 to ", limit, " bytes"));
  }
  if (value.size() > limit) {
    return WithField(
        InvalidArgument(Reason::kLimitExceeded,
                        StrCat(field, " has ", value.size(), " bytes, ", limit,
                               " are allowed: ", PythonRepr(value.substr(0, 60)), "..."),
                        {{fact::kHave, value.size()}, {fact::kLimit, limit}}),
        field);
  }
  return absl::OkStatus();
}

// Requires 1 to `limit` characters: letters, digits and those of `punctuation`.
absl::Status CheckIdentifier(std::string_view value, size_t limit, std::string_view punctuation,
                             std::string_view field) {
  if (absl::Status status = CheckLength(value, limit, field); !status.ok()) {
    return status;
  }
  const auto is_allowed = [&](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           punctuation.find(c) != std::string_view::npos;
  };
  const auto bad = std::find_if_not(value.begin(), value.end(), is_allowed);
  if (bad == value.end()) {
    return absl::OkStatus();
  }
  return BadField(
      field, StrCat(field, " ", PythonRepr(value), " has ", PythonRepr(std::string_view(&*bad, 1)),
                    "; allowed are letters, digits and ", punctuation));
}

absl::Status CheckText(std::string_view value, size_t limit, std::string_view field) {
  if (absl::Status status = CheckLength(value, limit, field); !status.ok()) {
    return status;
  }
  if (!DecodeUtf8(value).has_value()) {
    return BadField(field, StrCat(field, " is not UTF-8: ", PythonRepr(value)));
  }
  const auto is_control = [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); };
  if (std::any_of(value.begin(), value.end(), is_control)) {
    return BadField(field, StrCat(field, " ", PythonRepr(value), " has control characters"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckEntryName(std::string_view name, std::string_view field) {
  return CheckIdentifier(name, 255, "._-", field);
}

absl::Status CheckArrayName(std::string_view name, std::string_view field) {
  return CheckText(name, 1024, field);
}

absl::Status CheckArrayId(std::string_view id, std::string_view field) {
  return CheckIdentifier(id, 64, "_-", field);
}

absl::Status CheckRequestId(std::string_view id, std::string_view field) {
  return CheckText(id, 64, field);
}

absl::Status CheckIdentity(std::string_view identity, std::string_view field) {
  return CheckText(identity, 255, field);
}

absl::StatusOr<int64_t> CheckDimension(int32_t dimension, std::string_view field) {
  if (dimension < 0 || dimension >= kMaxRank) {
    return BadField(field, StrCat(field, " ", dimension, " is not from 0 to ", kMaxRank - 1));
  }
  return dimension;
}

absl::Status CheckFinite(float value, std::string_view field) {
  return std::isfinite(value) ? absl::OkStatus()
                              : BadField(field, StrCat(field, " ", value, " is not finite"));
}

absl::StatusOr<int64_t> CheckPageSize(int64_t page_size, std::string_view field) {
  if (page_size < 0) {
    return BadField(field, StrCat(field, " is ", page_size, "; it must not be negative"));
  }
  return page_size == 0 ? kDefaultPageSize : std::min(page_size, kMaxPageSize);
}

}  // namespace shardmesh::rpc
