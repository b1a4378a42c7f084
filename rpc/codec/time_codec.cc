// Converts protobuf's times, in which seconds and nanoseconds are separate fields.
#include "rpc/codec/time_codec.h"

#include <algorithm>
#include <cstdint>

#include "rpc/codec/status.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

constexpr int64_t kNanosPerSecond = 1'000'000'000;
// Ranges of seconds: of a Duration (10,000 years), and of a Timestamp (years 1 to 9999).
constexpr int64_t kMaxDurationSeconds = 315'576'000'000;
constexpr int64_t kMinTimestampSeconds = -62'135'596'800;
constexpr int64_t kMaxTimestampSeconds = 253'402'300'799;

}  // namespace

void Encode(absl::Duration from, google::protobuf::Duration* to) {
  const absl::Duration limit = absl::Seconds(kMaxDurationSeconds);
  absl::Duration rest = std::clamp(from, -limit, limit);
  to->set_seconds(absl::IDivDuration(rest, absl::Seconds(1), &rest));
  to->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
}

void Encode(absl::Time from, google::protobuf::Timestamp* to) {
  const absl::Time in_range =
      std::clamp(from, absl::FromUnixSeconds(kMinTimestampSeconds),
                 absl::FromUnixSeconds(kMaxTimestampSeconds) + absl::Nanoseconds(999'999'999));
  const int64_t seconds = absl::ToUnixSeconds(in_range);  // rounds down
  to->set_seconds(seconds);
  to->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(in_range - absl::FromUnixSeconds(seconds))));
}

absl::StatusOr<absl::Duration> Decode(const google::protobuf::Duration& from) {
  if (from.seconds() < -kMaxDurationSeconds || from.seconds() > kMaxDurationSeconds) {
    return BadField("seconds", StrCat("a duration of ", from.seconds(),
                                      " s is over the limit of 10,000 years"));
  }
  const bool signs_differ =
      (from.seconds() > 0 && from.nanos() < 0) || (from.seconds() < 0 && from.nanos() > 0);
  if (signs_differ || from.nanos() <= -kNanosPerSecond || from.nanos() >= kNanosPerSecond) {
    return BadField("nanos", StrCat("a duration of ", from.seconds(), " s and ", from.nanos(),
                                    " ns; the nanoseconds must be less than a second and of the "
                                    "same sign as the seconds"));
  }
  return absl::Seconds(from.seconds()) + absl::Nanoseconds(from.nanos());
}

absl::StatusOr<absl::Time> Decode(const google::protobuf::Timestamp& from) {
  if (from.seconds() < kMinTimestampSeconds || from.seconds() > kMaxTimestampSeconds) {
    return BadField("seconds", StrCat("a time of ", from.seconds(),
                                      " s since 1970 is not in the years 1 to 9999"));
  }
  if (from.nanos() < 0 || from.nanos() >= kNanosPerSecond) {
    return BadField("nanos",
                    StrCat(from.nanos(), " ns; a time has 0 to 999,999,999 beside its seconds"));
  }
  return absl::FromUnixSeconds(from.seconds()) + absl::Nanoseconds(from.nanos());
}

}  // namespace shardmesh::rpc
