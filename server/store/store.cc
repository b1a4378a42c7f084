// Code shared by all stores: the check of a transaction, and CommitAndWait.
#include "server/store/store.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/notification.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

absl::Status CheckKey(const std::string& key) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    const absl::Status refused = absl::InvalidArgumentError(
        StrCat("a key has ", key.size(), " bytes; it must have 1 to ", kMaxKeyBytes));
    return key.empty() ? WithReason(refused, Reason::kBadField)
                       : WithReason(refused, Reason::kLimitExceeded,
                                    {{fact::kHave, key.size()}, {fact::kLimit, kMaxKeyBytes}});
  }
  if (key.find('\0') != std::string::npos) {
    return WithReason(absl::InvalidArgumentError("a key holds a NUL byte"), Reason::kBadField);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTransaction(const Transaction& transaction) {
  const size_t operations =
      transaction.compares.size() + transaction.puts.size() + transaction.deletes.size();
  if (operations > kMaxTransactionOperations) {
    return WithReason(absl::InvalidArgumentError(StrCat("a transaction of ", operations,
                                                        " operations is over the limit of ",
                                                        kMaxTransactionOperations, "; split it")),
                      Reason::kLimitExceeded,
                      {{fact::kHave, operations}, {fact::kLimit, kMaxTransactionOperations}});
  }
  size_t bytes = 0;
  absl::flat_hash_set<absl::string_view> written;
  for (const Compare& compare : transaction.compares) {
    SHARDMESH_RETURN_IF_ERROR(CheckKey(compare.key));
    bytes += compare.key.size();
  }
  const auto check_write = [&](const std::string& key) -> absl::Status {
    SHARDMESH_RETURN_IF_ERROR(CheckKey(key));
    if (!written.insert(key).second) {
      return WithReason(
          absl::InvalidArgumentError(StrCat("a transaction writes \"", key, "\" twice")),
          Reason::kBadField, {{fact::kValue, key}});
    }
    return absl::OkStatus();
  };
  for (const Put& put : transaction.puts) {
    SHARDMESH_RETURN_IF_ERROR(check_write(put.key));
    bytes += put.key.size() + put.value.size();
  }
  for (const std::string& key : transaction.deletes) {
    SHARDMESH_RETURN_IF_ERROR(check_write(key));
    bytes += key.size();
  }
  if (bytes > kMaxTransactionBytes) {
    return WithReason(absl::InvalidArgumentError(StrCat("a transaction of ", bytes,
                                                        " bytes is over the limit of ",
                                                        kMaxTransactionBytes, "; split it")),
                      Reason::kLimitExceeded,
                      {{fact::kHave, bytes}, {fact::kLimit, kMaxTransactionBytes}});
  }
  return absl::OkStatus();
}

absl::StatusOr<Revision> CommitAndWait(Store& store, Transaction transaction) {
  absl::Notification done;
  absl::StatusOr<Revision> result;
  store.Commit(std::move(transaction), [&](absl::StatusOr<Revision> revision) {
    result = std::move(revision);
    done.Notify();
  });
  done.WaitForNotification();
  return result;
}

}  // namespace shardmesh::server
