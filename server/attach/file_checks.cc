// Encodes the questions, and passes on the answers.
#include "server/attach/file_checks.h"

#include <optional>
#include <utility>

#include "server/attach/attach_codec.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {

absl::StatusOr<int64_t> FileChecks::Send(WorkerStream* stream, std::string_view files,
                                         FilesChecked* checked) {
  const std::optional<int64_t> number =
      table_.Register(stream, checked, kMaxChecks,
                      [files](int64_t order_id) { return EncodeCheckFiles(order_id, files); });
  if (number.has_value()) return *number;
  return WithRetryDelay(
      WithReason(absl::ResourceExhaustedError(
                     StrCat(kMaxChecks, " questions about files wait for workers, of at most ",
                            kMaxChecks, "; put again later")),
                 Reason::kOverloaded, {{fact::kHave, kMaxChecks}, {fact::kLimit, kMaxChecks}}),
      absl::Seconds(1));
}

void FileChecks::Answer(const WorkerStream* stream, int64_t number, const FileVerdict& verdict) {
  std::optional<FilesChecked> checked = table_.Take(stream, number);
  if (checked.has_value()) (*std::move(checked))(verdict);
}

}  // namespace shardmesh::server
