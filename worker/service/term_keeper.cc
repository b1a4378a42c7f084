// TermKeeper: compares terms, and keeps the newest known term in a file.
#include "worker/service/term_keeper.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/types/span.h"
#include "process/failpoint.h"
#include "process/file.h"
#include "process/log.h"
#include "rpc/transfer_token.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

constexpr char kTermFile[] = "term";
// Longest content of the file: a number, optionally a blank and a digest, and the end of the line.
constexpr int64_t kMaxTermFileBytes = 64;

absl::StatusOr<KnownTerm> ReadTerm(const std::string& path) {
  absl::StatusOr<InputFile> file = OpenInputFile(path);
  if (absl::IsNotFound(file.status())) {
    return KnownTerm();
  }
  SHARDMESH_RETURN_IF_ERROR(file.status());
  std::string text(static_cast<size_t>(std::min(file->size_bytes, kMaxTermFileBytes)), '\0');
  SHARDMESH_RETURN_IF_ERROR(ReadExactly(*file, path, 0, absl::MakeSpan(text)));
  absl::StripTrailingAsciiWhitespace(&text);
  KnownTerm term;
  const size_t blank = text.find(' ');
  const bool has_number = absl::SimpleAtoi(text.substr(0, blank), &term.number) && term.number >= 0;
  if (blank != std::string::npos) term.token_key_digest = text.substr(blank + 1);
  if (!has_number || (blank != std::string::npos &&
                      (term.token_key_digest.size() != rpc::TokenKeyDigest("").size() ||
                       !std::all_of(term.token_key_digest.begin(), term.token_key_digest.end(),
                                    absl::ascii_isxdigit)))) {
    return WithReason(absl::DataLossError(StrCat(path,
                                                 " is damaged: it holds no term of a coordinator; "
                                                 "remove it if no older coordinator runs")),
                      Reason::kBadFile, {{fact::kFile, path}});
  }
  return term;
}

absl::Status WriteTerm(const std::string& path, const KnownTerm& term) {
  SHARDMESH_FAILPOINT("link.write_term");
  SHARDMESH_ASSIGN_OR_RETURN(AtomicFileWriter file, AtomicFileWriter::Create(path));
  SHARDMESH_RETURN_IF_ERROR(file.Append(StrCat(term.number, " ", term.token_key_digest)));
  return file.Finish();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TermKeeper>> TermKeeper::Open(const std::string& data_dir) {
  std::string path;
  KnownTerm kept;
  if (!data_dir.empty()) {
    path = StrCat(data_dir, "/", kTermFile);
    SHARDMESH_ASSIGN_OR_RETURN(kept, ReadTerm(path));
  }
  return std::unique_ptr<TermKeeper>(new TermKeeper(std::move(path), std::move(kept)));
}

TermKeeper::TermKeeper(std::string path, KnownTerm kept)
    : path_(std::move(path)), kept_(kept), known_(std::move(kept)) {}

KnownTerm TermKeeper::known() const {
  absl::MutexLock lock(&mutex_);
  return known_;
}

absl::Status TermKeeper::Follow(const KnownTerm& begun, std::string_view peer) {
  absl::MutexLock lock(&mutex_);
  SHARDMESH_RETURN_IF_ERROR(CheckTerm(begun, peer));
  known_ = begun;
  return absl::OkStatus();
}

absl::Status TermKeeper::CheckTerm(const KnownTerm& begun, std::string_view peer) const {
  if (begun.number < known_.number) {
    return WithReason(
        absl::AbortedError(StrCat("the coordinator is of term ", begun.number,
                                  ", this worker has heard of ", known_.number,
                                  ": a newer coordinator leads, or this one runs on an older copy "
                                  "of its data folder; put such a copy back with --restore")),
        Reason::kStaleTerm, {{fact::kHave, begun.number}, {fact::kNeed, known_.number}});
  }
  if (begun.number > known_.number || known_.token_key_digest.empty() ||
      known_.token_key_digest == begun.token_key_digest) {
    return absl::OkStatus();
  }
  return WithReason(
      absl::AbortedError(StrCat(
          "two coordinators have begun term ", begun.number, ": this one at ", peer,
          " (its log says token_key_digest=", begun.token_key_digest,
          "), and the one that this worker followed (token_key_digest=", known_.token_key_digest,
          "). They run on copies of one data folder, or an older copy was put back. Stop the one "
          "that is not to lead; if this one is to lead, start it again: it then begins a higher "
          "term, which workers follow")),
      Reason::kStaleTerm, {{fact::kHave, begun.number}});
}

absl::Status TermKeeper::Keep() {
  const KnownTerm term = known();
  if (path_.empty() || term == kept_) {
    return absl::OkStatus();
  }
  const absl::Status written = WriteTerm(path_, term);
  if (written.ok()) {
    kept_ = term;
    is_late_ = false;
    return absl::OkStatus();
  }
  // If the disk is full, the worker serves although the term is not in the file. If the worker did
  // not serve, no client could delete the data that fills the disk.
  if (!absl::IsResourceExhausted(written)) {
    return written;
  }
  if (!std::exchange(is_late_, true)) {
    LogWarning(
        "the coordinator's term could not be stored yet, make room on the disk: until it is "
        "stored, this worker may follow an older coordinator after a restart",
        {{"term", term.number}, {"error", written}});
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::worker
