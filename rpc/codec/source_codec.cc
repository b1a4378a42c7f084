// Checks and decodes files and ranges of files.
#include "rpc/codec/source_codec.h"

#include <utility>

#include "rpc/codec/array_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "sharding/shape.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

constexpr size_t kDigestBytes = 32;
// Maximum number of bytes of a path in an error.
constexpr size_t kPathShown = 256;

absl::Status OverLimit(std::string_view field, std::string_view message, int64_t have,
                       int64_t limit) {
  return WithField(WithReason(absl::InvalidArgumentError(ToAbsl(message)), Reason::kLimitExceeded,
                              {{fact::kHave, have}, {fact::kLimit, limit}}),
                   field);
}

absl::Status CheckPath(const std::string& path) {
  if (path.size() > SourceFile::kMaxPathBytes) {
    return OverLimit(
        "path",
        StrCat("has ", path.size(), " bytes; a path has at most ", SourceFile::kMaxPathBytes),
        static_cast<int64_t>(path.size()), static_cast<int64_t>(SourceFile::kMaxPathBytes));
  }
  if (!path.starts_with('/')) {
    return BadField("path", StrCat("is ", PythonRepr(WireText(path, kPathShown)),
                                   "; workers read absolute paths, which begin with /"));
  }
  if (path.find('\0') != std::string::npos) {
    return BadField("path", "contains a zero byte; no file has such a path");
  }
  return absl::OkStatus();
}

}  // namespace

void Encode(const SourceFile& from, v1::SourceFile* to) {
  to->set_path(from.path);
  to->set_size_bytes(from.size_bytes);
  if (from.modify_time != absl::InfinitePast()) {
    Encode(from.modify_time, to->mutable_modify_time());
  }
  to->set_head_sha256(from.head_sha256);
  to->set_head_bytes(from.head_bytes);
  if (from.change_time != absl::InfinitePast()) {
    Encode(from.change_time, to->mutable_change_time());
  }
  to->set_inode(from.inode);
}

absl::StatusOr<SourceFile> Decode(const v1::SourceFile& from, bool needs_time) {
  if (const absl::Status checked = CheckPath(from.path()); !checked.ok()) return checked;
  if (from.size_bytes() < 0) {
    return BadField("size_bytes", StrCat("is ", from.size_bytes(), "; a size is at least 0"));
  }
  if (!from.has_modify_time() && needs_time) {
    return BadField("modify_time", "is not set; send the time at which the file last changed");
  }
  absl::StatusOr<absl::Time> modify_time = absl::InfinitePast();
  if (from.has_modify_time()) modify_time = Decode(from.modify_time());
  if (!modify_time.ok()) return WithField(modify_time.status(), "modify_time");
  if (from.head_sha256().size() != kDigestBytes) {
    return BadField("head_sha256", StrCat("has ", from.head_sha256().size(),
                                          " bytes; a SHA-256 has ", kDigestBytes));
  }
  if (from.head_bytes() > SourceFile::kMaxHeadBytes) {
    return OverLimit("head_bytes",
                     StrCat("is ", from.head_bytes(), "; the digest covers at most ",
                            SourceFile::kMaxHeadBytes, " bytes"),
                     from.head_bytes(), SourceFile::kMaxHeadBytes);
  }
  if (from.head_bytes() < 0 || from.head_bytes() > from.size_bytes()) {
    return BadField("head_bytes", StrCat("is ", from.head_bytes(), " in a file of ",
                                         from.size_bytes(), " bytes"));
  }
  SourceFile file{.path = from.path(),
                  .size_bytes = from.size_bytes(),
                  .modify_time = *modify_time,
                  .head_sha256 = from.head_sha256(),
                  .head_bytes = from.head_bytes(),
                  .inode = from.inode()};
  if (from.has_change_time()) {
    const auto change_time = Decode(from.change_time());
    if (!change_time.ok()) return WithField(change_time.status(), "change_time");
    file.change_time = *change_time;
  }
  return file;
}

void Encode(const FileRange& from, v1::FileRange* to) {
  to->set_file(static_cast<uint32_t>(from.file));
  to->set_offset_bytes(from.offset_bytes);
}

absl::StatusOr<FileRange> Decode(const v1::FileRange& from) {
  if (from.offset_bytes() < 0) {
    return BadField("offset_bytes",
                    StrCat("is ", from.offset_bytes(), "; an offset is at least 0"));
  }
  return FileRange{.file = from.file(), .offset_bytes = from.offset_bytes()};
}

void Encode(const SourceConversion& from, v1::SourceConversion* to) {
  to->set_dtype(Encode(from.dtype));
  for (const size_t dim : from.permutation) to->add_permutation(static_cast<uint32_t>(dim));
}

absl::StatusOr<SourceConversion> Decode(const v1::SourceConversion& from) {
  const absl::StatusOr<Dtype> dtype = Decode(from.dtype());
  if (!dtype.ok()) return WithField(dtype.status(), "dtype");
  if (from.permutation_size() > kMaxRank) {
    return OverLimit(
        "permutation",
        StrCat("has ", from.permutation_size(), " dimensions; a tensor has at most ", kMaxRank),
        from.permutation_size(), kMaxRank);
  }
  return SourceConversion{.dtype = *dtype,
                          .permutation = {from.permutation().begin(), from.permutation().end()}};
}

void Encode(const FileRange& from, v1::ConvertedRange* to) {
  Encode(from, to->mutable_range());
  Encode(*from.conversion, to->mutable_conversion());
}

absl::StatusOr<FileRange> Decode(const v1::ConvertedRange& from) {
  absl::StatusOr<FileRange> range = Decode(from.range());
  if (!range.ok()) return WithField(range.status(), "range");
  absl::StatusOr<SourceConversion> conversion = Decode(from.conversion());
  if (!conversion.ok()) return WithField(conversion.status(), "conversion");
  range->conversion = *std::move(conversion);
  return range;
}

}  // namespace shardmesh::rpc
