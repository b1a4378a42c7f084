// KeepingFill: keeps the orders to fill tiles and the questions about files that workers would get.
#ifndef SHARDMESH_TESTS_UNIT_SERVER_STEPS_KEEPING_FILL_H_
#define SHARDMESH_TESTS_UNIT_SERVER_STEPS_KEEPING_FILL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "server/steps/fill_transport.h"
#include "shardmesh/internal/v1/fill.pb.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {

// Thread-safe.
class KeepingFill final : public FillTransport {
 public:
  absl::Status CheckCanFill(std::string_view) const override { return can_fill; }
  absl::Status CheckCanConvert(std::string_view) const override {
    return can_fill.ok() ? can_convert : can_fill;
  }
  int64_t CheckFiles(const std::string& identity, std::string_view files,
                     FilesChecked checked) override {
    internal::v1::CheckFiles order;
    EXPECT_TRUE(order.ParseFromString(std::string(files)));
    std::optional<FileVerdict> now;
    int64_t number = 0;
    {
      absl::MutexLock lock(&mutex_);
      if (const auto found = at_once_.find(identity); found != at_once_.end()) {
        now = found->second;
      } else {
        number = ++last_;
        asked_.emplace(number, Question{identity, std::move(order), std::move(checked)});
      }
    }
    if (now.has_value()) std::move(checked)(*now);
    return number;
  }
  void ForgetFileCheck(int64_t number) override {
    decltype(asked_)::node_type forgotten;  // destroyed without the lock
    absl::MutexLock lock(&mutex_);
    forgotten = asked_.extract(number);
  }
  absl::Status SendFillParts(std::string_view identity, std::string_view head,
                             const std::shared_ptr<const std::string>& tail) override {
    {
      absl::MutexLock lock(&mutex_);
      tails_.insert(tail);
      own_bytes_ += head.size();
    }
    return FillTransport::SendFillParts(identity, head, tail);
  }
  // The parts of the messages that workers share, and the bytes of the other parts.
  size_t tails() {
    absl::MutexLock lock(&mutex_);
    return tails_.size();
  }
  size_t own_bytes() {
    absl::MutexLock lock(&mutex_);
    return own_bytes_;
  }
  absl::Status SendFill(std::string_view identity, std::string_view message) override {
    if (identity == unreachable) return WorkerLost(identity);
    internal::v1::FillTiles fill;
    EXPECT_TRUE(fill.ParseFromString(std::string(message)));
    absl::MutexLock lock(&mutex_);
    sent_[std::string(identity)].push_back(std::move(fill));
    return absl::OkStatus();
  }

  // From now on answers the questions to this worker at once.
  void AnswerAtOnce(const std::string& identity, FileVerdict verdict) {
    absl::MutexLock lock(&mutex_);
    at_once_[identity] = std::move(verdict);
  }
  // Answers the oldest question to this worker. False: there is none.
  bool Answer(std::string_view identity, const FileVerdict& verdict) {
    FilesChecked checked;
    {
      absl::MutexLock lock(&mutex_);
      auto found = asked_.begin();
      while (found != asked_.end() && found->second.identity != identity) ++found;
      if (found == asked_.end()) return false;
      checked = std::move(found->second.checked);
      asked_.erase(found);
    }
    std::move(checked)(verdict);
    return true;
  }
  // The questions that wait for answers.
  size_t waiting() const {
    absl::MutexLock lock(&mutex_);
    return asked_.size();
  }
  // The paths in the oldest question that waits.
  std::vector<std::string> paths_asked() const {
    absl::MutexLock lock(&mutex_);
    std::vector<std::string> paths;
    if (asked_.empty()) return paths;
    for (const v1::SourceFile& file : asked_.begin()->second.order.files()) {
      paths.push_back(file.path());
    }
    return paths;
  }
  // The last order to each worker.
  std::map<std::string, internal::v1::FillTiles> last_orders() const {
    absl::MutexLock lock(&mutex_);
    std::map<std::string, internal::v1::FillTiles> last;
    for (const auto& [identity, orders] : sent_) last[identity] = orders.back();
    return last;
  }
  std::vector<internal::v1::FillTiles> sent(const std::string& identity) const {
    absl::MutexLock lock(&mutex_);
    const auto found = sent_.find(identity);
    return found == sent_.end() ? std::vector<internal::v1::FillTiles>() : found->second;
  }

  static absl::Status WorkerLost(std::string_view identity) {
    return WithReason(absl::UnavailableError(StrCat("worker ", identity, " attaches again")),
                      Reason::kWorkerLost);
  }

  absl::Status can_fill;     // set before the first call
  absl::Status can_convert;  // the same
  std::string unreachable;   // the worker to which orders are lost; set before the first call

 private:
  struct Question {
    std::string identity;
    internal::v1::CheckFiles order;
    FilesChecked checked;
  };
  mutable absl::Mutex mutex_;
  int64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, Question> asked_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, FileVerdict> at_once_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<internal::v1::FillTiles>> sent_ ABSL_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<const std::string>> tails_ ABSL_GUARDED_BY(mutex_);
  size_t own_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_TESTS_UNIT_SERVER_STEPS_KEEPING_FILL_H_
