// What every store promises, asked of each of them.
#include "server/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "rpc/codec/status.h"
#include "server/store/local_store.h"
#include "server/store/sqlite_store.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::Eventually;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kLimit = absl::Seconds(30);

struct StoreKind {
  std::string name;
  std::function<std::unique_ptr<Store>(LocalStoreOptions)> make;
};

std::string NewFolder() {
  std::string folder = ::testing::TempDir() + "/store_XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

std::ostream& operator<<(std::ostream& out, const StoreKind& kind) { return out << kind.name; }

// Collects what a watch sees as `revision:key=value`, with `-` for deletions.
class Seen {
 public:
  Store::WatchCallback callback() {
    return [this](const std::vector<WatchEvent>& events) {
      absl::MutexLock lock(&mutex_);
      for (const WatchEvent& event : events) {
        seen_.push_back(StrCat(event.revision, ":", event.key, event.value ? "=" : "-",
                               event.value ? *event.value : ""));
      }
    };
  }
  std::vector<std::string> WaitFor(size_t count) {
    absl::MutexLock lock(&mutex_);
    auto enough = [&] {
      mutex_.AssertReaderHeld();
      return seen_.size() >= count;
    };
    mutex_.AwaitWithTimeout(absl::Condition(&enough), kLimit);
    return seen_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::string> seen_ ABSL_GUARDED_BY(mutex_);
};

class StoreTest : public ::testing::TestWithParam<StoreKind> {
 protected:
  absl::StatusOr<Revision> PutOne(const std::string& key, const std::string& value) {
    return CommitAndWait(*store_, {.puts = {{key, value}}});
  }
  absl::StatusOr<Revision> DeleteOne(const std::string& key) {
    return CommitAndWait(*store_, {.deletes = {key}});
  }
  absl::Status CompactTo(Revision revision) {
    absl::Notification done;
    absl::Status result;
    store_->Compact(revision, [&](absl::Status status) {
      result = std::move(status);
      done.Notify();
    });
    done.WaitForNotification();
    return result;
  }
  std::vector<std::string> KeysOf(std::string_view prefix, ListOptions options = {}) {
    const absl::StatusOr<KeyValues> found = store_->List(prefix, options);
    std::vector<std::string> keys;
    if (!found.ok()) return {found.status().ToString()};
    for (const KeyValue& item : found->items) keys.push_back(item.key + "=" + item.value);
    return keys;
  }

  const std::unique_ptr<Store> store_ = GetParam().make({.retention = kRetainAll});
};

TEST_P(StoreTest, StartsEmptyAtRevisionZero) {
  EXPECT_EQ(store_->revision(), 0);
  EXPECT_THAT(store_->Get("a"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(KeysOf(""), IsEmpty());
}

TEST_P(StoreTest, EachCommitThatWritesRaisesTheRevisionByOne) {
  EXPECT_THAT(PutOne("a", "1"), IsOkAndHolds(1));
  EXPECT_THAT(PutOne("b", ""), IsOkAndHolds(2));
  EXPECT_THAT(CommitAndWait(*store_, {.puts = {{"c", "3"}, {"d", "4"}}, .deletes = {"a"}}),
              IsOkAndHolds(3));
  EXPECT_THAT(DeleteOne("not there"), IsOkAndHolds(3));
  EXPECT_EQ(store_->revision(), 3);
  EXPECT_THAT(KeysOf(""), ElementsAre("b=", "c=3", "d=4"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValue found, store_->Get("b"));
  EXPECT_EQ(found.mod_revision, 2);
}

TEST_P(StoreTest, KeepsBytesAsTheyAre) {
  const std::string key = "k/\x01\xff\n";
  const std::string value("\0\xff\0", 3);
  ASSERT_THAT(PutOne(key, value), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValue found, store_->Get(key));
  EXPECT_EQ(found.value, value);
}

TEST_P(StoreTest, ReadsAtEveryRetainedRevision) {
  ASSERT_THAT(PutOne("a", "1"), IsOk());
  ASSERT_THAT(PutOne("a", "2"), IsOk());
  ASSERT_THAT(DeleteOne("a"), IsOk());
  ASSERT_THAT(PutOne("a", "4"), IsOk());
  EXPECT_THAT(KeysOf("", {.at = 1}), ElementsAre("a=1"));
  EXPECT_THAT(KeysOf("", {.at = 2}), ElementsAre("a=2"));
  EXPECT_THAT(KeysOf("", {.at = 3}), IsEmpty());
  EXPECT_THAT(KeysOf(""), ElementsAre("a=4"));
  EXPECT_THAT(store_->Get("a", 3), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_EQ(store_->Get("a", 5).status().code(), absl::StatusCode::kOutOfRange);
}

TEST_P(StoreTest, ListsAPrefixInPages) {
  ASSERT_THAT(
      CommitAndWait(*store_,
                    {.puts = {{"a/1", ""}, {"a/2", ""}, {"a/3", ""}, {"a0", ""}, {"b/1", ""}}}),
      IsOk());
  EXPECT_THAT(KeysOf("a/"), ElementsAre("a/1=", "a/2=", "a/3="));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValues first, store_->List("a/", {.limit = 2}));
  EXPECT_EQ(first.items.size(), 2u);
  EXPECT_TRUE(first.more);
  EXPECT_THAT(KeysOf("a/", {.start_after = first.items.back().key, .limit = 2}),
              ElementsAre("a/3="));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValues exact, store_->List("a/", {.limit = 3}));
  EXPECT_FALSE(exact.more);
}

TEST_P(StoreTest, ComparesBeforeItWrites) {
  ASSERT_THAT(PutOne("a", "1"), IsOk());
  EXPECT_THAT(CommitAndWait(*store_, {.compares = {{"a", 1}, {"b", 0}}, .puts = {{"b", "of 1"}}}),
              IsOkAndHolds(2));
  const absl::StatusOr<Revision> refused =
      CommitAndWait(*store_, {.compares = {{"a", 1}, {"b", 0}}, .puts = {{"a", "never"}}});
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_THAT(refused, test::CarriesFacts(Reason::kVersionMismatch, {{fact::kKind, "record"},
                                                                     {fact::kName, "b"},
                                                                     {fact::kHave, 2},
                                                                     {fact::kNeed, 0}}));
  EXPECT_THAT(refused.status().ToString(), HasSubstr("\"b\" is at revision 2, expected 0"));
  EXPECT_THAT(KeysOf(""), ElementsAre("a=1", "b=of 1"));
  ASSERT_THAT(DeleteOne("a"), IsOk());
  EXPECT_THAT(CommitAndWait(*store_, {.compares = {{"a", 0}}, .puts = {{"a", "anew"}}}), IsOk());
}

TEST_P(StoreTest, RefusesWhatIsOverALimitOrMalformed) {
  const auto refused = [&](Transaction transaction, Reason reason) {
    EXPECT_THAT(CommitAndWait(*store_, std::move(transaction)),
                StatusIs(absl::StatusCode::kInvalidArgument, reason));
  };
  refused({.puts = {{"", "x"}}}, Reason::kBadField);
  refused({.puts = {{std::string("a\0b", 3), "x"}}}, Reason::kBadField);
  refused({.puts = {{std::string(kMaxKeyBytes + 1, 'k'), "x"}}}, Reason::kLimitExceeded);
  refused({.puts = {{"a", "1"}, {"a", "2"}}}, Reason::kBadField);
  refused({.puts = {{"a", "1"}}, .deletes = {"a"}}, Reason::kBadField);
  refused({.puts = {{"a", std::string(kMaxTransactionBytes, 'v')}}}, Reason::kLimitExceeded);
  Transaction many;
  for (size_t i = 0; i <= kMaxTransactionOperations; ++i) many.puts.push_back({StrCat(i), ""});
  refused(many, Reason::kLimitExceeded);
  many.puts.pop_back();
  EXPECT_THAT(CommitAndWait(*store_, many), IsOkAndHolds(1));
}

TEST_P(StoreTest, WatchesFromThePastIntoTheFutureWithoutGap) {
  ASSERT_THAT(PutOne("a/1", "x"), IsOk());
  ASSERT_THAT(PutOne("b/1", "not watched"), IsOk());
  ASSERT_THAT(CommitAndWait(*store_, {.puts = {{"a/2", "y"}}, .deletes = {"a/1"}}), IsOk());
  Seen all;
  Seen late;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto watch_all, store_->Watch({"a/"}, 1, all.callback()));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto watch_late, store_->Watch({"a/"}, 4, late.callback()));
  ASSERT_THAT(PutOne("a/3", "z"), IsOk());
  EXPECT_THAT(all.WaitFor(4), ElementsAre("1:a/1=x", "3:a/2=y", "3:a/1-", "4:a/3=z"));
  EXPECT_THAT(late.WaitFor(1), ElementsAre("4:a/3=z"));
}

TEST_P(StoreTest, AWatchCanStartInTheFuture) {
  Seen seen;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto watch, store_->Watch({""}, 3, seen.callback()));
  for (const char* value : {"1", "2", "3"}) ASSERT_THAT(PutOne("a", value), IsOk());
  EXPECT_THAT(seen.WaitFor(1), ElementsAre("3:a=3"));
}

TEST_P(StoreTest, AWatchEndsWithItsHandle) {
  Seen seen;
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto watch, store_->Watch({""}, 1, seen.callback()));
    ASSERT_THAT(PutOne("a", "1"), IsOk());
    seen.WaitFor(1);
  }
  ASSERT_THAT(PutOne("a", "2"), IsOk());
  EXPECT_THAT(seen.WaitFor(1), ElementsAre("1:a=1"));
}

TEST_P(StoreTest, AWatchCanEndItselfAndCommit) {
  std::unique_ptr<WatchHandle> watch;
  absl::Mutex mutex;
  absl::Notification committed;
  {
    absl::MutexLock lock(&mutex);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        watch, store_->Watch({"a"}, 1, [&](const std::vector<WatchEvent>&) {
          absl::MutexLock inner(&mutex);
          watch.reset();
          store_->Commit({.puts = {{"b", "from the watch"}}},
                         [&](absl::StatusOr<Revision>) { committed.Notify(); });
        }));
  }
  ASSERT_THAT(CommitAndWait(*store_, {.puts = {{"a", "1"}}}), IsOk());
  ASSERT_TRUE(committed.WaitForNotificationWithTimeout(kLimit));
  EXPECT_THAT(KeysOf("b"), ElementsAre("b=from the watch"));
}

TEST_P(StoreTest, CompactionForgetsWhatWasSupersededAndNothingElse) {
  ASSERT_THAT(PutOne("a", "1"), IsOk());
  ASSERT_THAT(PutOne("b", "2"), IsOk());
  ASSERT_THAT(PutOne("a", "3"), IsOk());
  ASSERT_THAT(DeleteOne("b"), IsOk());
  ASSERT_THAT(PutOne("a", "5"), IsOk());
  EXPECT_EQ(CompactTo(6).code(), absl::StatusCode::kOutOfRange);
  ASSERT_THAT(CompactTo(4), IsOk());
  EXPECT_EQ(store_->compacted_revision(), 4);
  EXPECT_EQ(store_->revision(), 5);
  EXPECT_THAT(store_->Get("a", 3), StatusIs(absl::StatusCode::kOutOfRange, Reason::kCompacted));
  EXPECT_THAT(store_->Get("a", 3),
              test::CarriesFacts(Reason::kCompacted, {{fact::kHave, 3}, {fact::kNeed, 4}}));
  EXPECT_THAT(KeysOf("", {.at = 4}), ElementsAre("a=3"));
  EXPECT_THAT(KeysOf(""), ElementsAre("a=5"));
  Seen seen;
  EXPECT_THAT(store_->Watch({""}, 4, seen.callback()).status(),
              StatusIs(absl::StatusCode::kOutOfRange, Reason::kCompacted));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto watch, store_->Watch({""}, 5, seen.callback()));
  EXPECT_THAT(seen.WaitFor(1), ElementsAre("5:a=5"));
}

TEST_P(StoreTest, TheRevisionOutlivesTheLastKey) {
  ASSERT_THAT(PutOne("a", "1"), IsOk());
  ASSERT_THAT(DeleteOne("a"), IsOk());
  ASSERT_THAT(CompactTo(2), IsOk());
  EXPECT_THAT(PutOne("a", "3"), IsOkAndHolds(3));
}

TEST_P(StoreTest, CompareAndSetByManyThreadsLosesNoUpdate) {
  constexpr int kThreads = 8;
  constexpr int kIncrements = 50;
  ASSERT_THAT(PutOne("counter", "0"), IsOk());
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int done = 0; done < kIncrements;) {
        const absl::StatusOr<KeyValue> now = store_->Get("counter");
        ASSERT_THAT(now, IsOk());
        const absl::StatusOr<Revision> result = CommitAndWait(
            *store_, {.compares = {{"counter", now->mod_revision}},
                      .puts = {{"counter", absl::StrCat(std::stoi(now->value) + 1)}}});
        if (result.ok()) {
          ++done;
        } else {
          ASSERT_EQ(result.status().code(), absl::StatusCode::kAborted);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(KeysOf("counter"), ElementsAre(StrCat("counter=", kThreads * kIncrements)));
  EXPECT_EQ(store_->revision(), kThreads * kIncrements + 1);
}

TEST_P(StoreTest, AListSeesACommitWholeOrNotAtAll) {
  absl::Notification stop;
  std::thread reader([&] {
    while (!stop.HasBeenNotified()) {
      const absl::StatusOr<KeyValues> both = store_->List("pair/");
      ASSERT_THAT(both, IsOk());
      if (both->items.empty()) continue;
      ASSERT_EQ(both->items.size(), 2u);
      ASSERT_EQ(both->items[0].value, both->items[1].value);
    }
  });
  for (int i = 0; i < 200; ++i) {
    ASSERT_THAT(CommitAndWait(*store_, {.puts = {{"pair/a", StrCat(i)}, {"pair/b", StrCat(i)}}}),
                IsOk());
  }
  stop.Notify();
  reader.join();
}

TEST_P(StoreTest, WhatFindsTooMuchWaitingForTheDiskIsRefusedAndTheRestIsCommitted) {
  constexpr int64_t kMostCommits = 65'536;
  constexpr int64_t kMostBytes = int64_t{64} << 20;
  const std::string megabyte(size_t{1} << 20, 'v');
  // The value is as large as the bound of bytes needs, or nothing.
  for (const auto& [most, value] : {std::pair(kMostCommits, std::string("v")),
                                    std::pair(kMostBytes / (int64_t{1} << 20) - 1, megabyte)}) {
    SCOPED_TRACE(StrCat(value.size(), " bytes each"));
    absl::Notification disk;
    absl::Notification is_busy;
    store_->Commit({.puts = {{"first", "1"}}}, [&](const absl::StatusOr<Revision>&) {
      is_busy.Notify();
      disk.WaitForNotification();
    });
    is_busy.WaitForNotification();
    absl::Mutex mutex;
    int64_t committed = 0;
    int64_t refused = 0;
    absl::Status why;
    const auto commit = [&] {
      store_->Commit({.puts = {{"key", value}}}, [&](const absl::StatusOr<Revision>& revision) {
        absl::MutexLock lock(&mutex);
        ++(revision.ok() ? committed : refused);
        why.Update(revision.status());
      });
    };
    for (int64_t i = 0; i < most; ++i) commit();
    // Too many, or too large by the bytes of the keys.
    commit();
    commit();
    disk.Notify();
    const auto all = [&] {
      mutex.AssertReaderHeld();
      return committed + refused == most + 2;
    };
    absl::MutexLock lock(&mutex);
    ASSERT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&all), kLimit));
    EXPECT_GE(committed, most);
    EXPECT_GE(refused, 1);
    EXPECT_THAT(why, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
    EXPECT_THAT(std::string(why.message()), HasSubstr("wait for the disk"));
  }
}

TEST_P(StoreTest, CallsBackForEverythingItAcceptedBeforeItEnds) {
  auto store = GetParam().make({});
  absl::Mutex mutex;
  std::vector<Revision> revisions;
  for (int i = 0; i < 100; ++i) {
    store->Commit({.puts = {{StrCat(i), ""}}}, [&](absl::StatusOr<Revision> revision) {
      absl::MutexLock lock(&mutex);
      revisions.push_back(revision.value_or(-1));
    });
  }
  store.reset();
  absl::MutexLock lock(&mutex);
  ASSERT_EQ(revisions.size(), 100u);
  for (size_t i = 0; i < revisions.size(); ++i) {
    EXPECT_EQ(revisions[i], static_cast<Revision>(i + 1));
  }
}

TEST_P(StoreTest, SaysWhenToTryAgainWhereTooMuchWaits) {
  constexpr int kCommits = 70;  // of 1 MiB each; 64 may wait
  absl::Notification go_on;
  store_->Commit({.puts = {{"first", ""}}},
                 [&](const absl::StatusOr<Revision>&) { go_on.WaitForNotification(); });
  absl::Mutex mutex;
  std::vector<absl::Status> results;
  for (int i = 0; i < kCommits; ++i) {
    store_->Commit({.puts = {{"a", std::string(1 << 20, 'v')}}},
                   [&](const absl::StatusOr<Revision>& revision) {
                     absl::MutexLock lock(&mutex);
                     results.push_back(revision.status());
                   });
  }
  go_on.Notify();
  absl::MutexLock lock(&mutex);
  const auto have_all = [&] {
    mutex.AssertReaderHeld();
    return results.size() == kCommits;
  };
  ASSERT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&have_all), kLimit));
  EXPECT_THAT(results.front(), IsOk());
  const absl::Status& refused = results.back();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
  EXPECT_EQ(RetryDelayOf(refused), absl::Seconds(1));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at most 65536 of 67108864 bytes may"));
}

TEST_P(StoreTest, KeepsNoMoreBytesOfHistoryThanItMay) {
  constexpr size_t kBytes = 100'000;
  const auto store = GetParam().make({.retention = {.bytes = kBytes}});
  for (int i = 0; i < 100; ++i) {
    ASSERT_THAT(CommitAndWait(*store, {.puts = {{"a", std::string(5000, 'v')}}}), IsOk());
  }
  EXPECT_TRUE(Eventually([&] { return store->stats().history_bytes <= int64_t{kBytes}; }));
  EXPECT_GT(store->stats().history_bytes, int64_t{kBytes / 4}) << "what may stay, stays";
  EXPECT_GE(store->compacted_revision(), 80);
  EXPECT_LE(store->compacted_revision(), store->settled_revision());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValue a, store->Get("a"));
  EXPECT_EQ(a.mod_revision, 100);
}

TEST_P(StoreTest, ForgetsHistoryWhenItsTimeIsOver) {
  const auto store = GetParam().make({.retention = {.time = absl::Milliseconds(50)}});
  ASSERT_THAT(CommitAndWait(*store, {.puts = {{"a", "1"}, {"b", "1"}}}), IsOk());
  ASSERT_THAT(CommitAndWait(*store, {.puts = {{"a", "2"}}, .deletes = {"b"}}), IsOk());
  EXPECT_TRUE(Eventually([&] { return store->stats().history_bytes == 0; }))
      << "though nobody writes";
  EXPECT_EQ(store->compacted_revision(), 2);
  EXPECT_THAT(store->Get("a"), IsOk());
}

TEST_P(StoreTest, KeepsNothingOfKeysWithoutHistory) {
  const auto store = GetParam().make(
      {.retention = kRetainAll, .history = {.prefixes = {"kept/"}, .others_have_none = true}});
  const auto put = [&](const std::string& key, const std::string& value) {
    EXPECT_THAT(CommitAndWait(*store, {.puts = {{key, value}}}), IsOk());
  };
  put("kept/a", "1");
  put("other", std::string(100'000, '1'));
  const int64_t live_bytes = store->stats().live_bytes;
  for (int i = 0; i < 20; ++i) put("other", std::string(100'000, '2'));
  EXPECT_EQ(store->stats().live_bytes, live_bytes);
  EXPECT_EQ(store->stats().history_bytes, 0);
  EXPECT_THAT(store->Get("other", 2), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  ASSERT_THAT(CommitAndWait(*store, {.puts = {{"x", "1"}}, .deletes = {"other"}}),
              IsOkAndHolds(23));
  ASSERT_THAT(CommitAndWait(*store, {.deletes = {"x"}}), IsOkAndHolds(24));
  EXPECT_EQ(store->revision(), 24) << "a deletion is a commit, though it leaves nothing";
  EXPECT_EQ(store->stats().history_bytes, 0);
  EXPECT_EQ(store->compacted_revision(), 0) << "what is watched has lost nothing";
  put("other", "again");
  Seen seen;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto watch, store->Watch({"kept/"}, 1, seen.callback()));
  EXPECT_THAT(seen.WaitFor(1), ElementsAre("1:kept/a=1"));
}

TEST_P(StoreTest, AWatchOfSeveralPrefixesSeesTheirChangesInOrder) {
  Seen seen;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto watch, store_->Watch({"a/", "c/"}, 1, seen.callback()));
  ASSERT_THAT(PutOne("c/1", "x"), IsOk());
  ASSERT_THAT(PutOne("b/1", "not watched"), IsOk());
  ASSERT_THAT(PutOne("a/1", "y"), IsOk());
  EXPECT_THAT(seen.WaitFor(2), ElementsAre("1:c/1=x", "3:a/1=y"));
}

// The values of a key's history, the newest first, or the error.
std::vector<std::string> HistoryOf(const Store& store, std::string_view key, Revision at = 0) {
  const absl::StatusOr<std::vector<KeptValue>> history = store.History(key, at);
  if (!history.ok()) return {history.status().ToString(absl::StatusToStringMode::kWithNoExtraData)};
  std::vector<std::string> values;
  for (const KeptValue& kept : *history) {
    values.push_back(StrCat(kept.mod_revision, ":", *kept.value));
  }
  return values;
}

TEST_P(StoreTest, KeepsWhatKeysOfSomePrefixesWereSinceTheyWereMade) {
  const auto store = GetParam().make(
      {.retention = kRetainAll, .history = {.prefixes = {"kept/", "too/"}, .values = 3}});
  const auto put = [&](const std::string& key, const std::string& value) {
    EXPECT_THAT(CommitAndWait(*store, {.puts = {{key, value}}}), IsOk());
  };
  for (const char* value : {"a", "b", "c", "d"}) {
    put("kept/x", value);  // revisions 1 to 4
  }
  put("other/x", "a");
  put("other/x", "b");
  EXPECT_THAT(HistoryOf(*store, "kept/x"), ElementsAre("4:d", "3:c", "2:b"));
  EXPECT_THAT(HistoryOf(*store, "kept/x", 2), ElementsAre("2:b", "1:a"));
  EXPECT_THAT(HistoryOf(*store, "other/x"), ElementsAre("6:b"));
  EXPECT_THAT(store->History("kept/none"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store->History("kept/x", 7), StatusIs(absl::StatusCode::kOutOfRange));

  // What was before a deletion was something else.
  ASSERT_THAT(CommitAndWait(*store, {.deletes = {"kept/x"}}), IsOk());
  EXPECT_THAT(store->History("kept/x"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(HistoryOf(*store, "kept/x", 4), ElementsAre("4:d", "3:c", "2:b"));
  put("kept/x", "e");
  EXPECT_THAT(HistoryOf(*store, "kept/x"), ElementsAre("8:e"));
}

TEST_P(StoreTest, KeepsNoMoreBytesOfHistoryThanAllowed) {
  const auto store = GetParam().make(
      {.retention = kRetainAll, .history = {.prefixes = {"kept/"}, .values = 10, .bytes = 5}});
  for (const char* value : {"a", "bb", "cccc", "dd", "e", "ffffffff"}) {
    ASSERT_THAT(CommitAndWait(*store, {.puts = {{"kept/x", value}}}), IsOk());
  }
  EXPECT_THAT(HistoryOf(*store, "kept/x"), ElementsAre("6:ffffffff", "5:e", "4:dd"))
      << "the current value is kept whatever its size";
}

TEST_P(StoreTest, CompactionLeavesTheHistoryThatIsKept) {
  constexpr int kRuns = 5;
  std::mt19937 random(20);
  for (int run = 0; run < kRuns; ++run) {
    const LocalStoreOptions options = {
        .retention = kRetainAll,
        .history = {.prefixes = {"kept/"}, .values = 4, .bytes = size_t{12}}};
    const auto compacted = GetParam().make(options);
    const auto whole = CreateMemoryStore(options);
    for (int step = 0; step < 60; ++step) {
      const std::string key = StrCat("kept/", random() % 3);
      const std::string value(random() % 6, static_cast<char>('a' + step % 26));
      Transaction change = {.puts = {{key, value}}};
      if (random() % 8 == 0) change = {.deletes = {key}};
      ASSERT_THAT(CommitAndWait(*whole, change), IsOk());
      ASSERT_THAT(CommitAndWait(*compacted, std::move(change)), IsOk());
      if (random() % 5 != 0) continue;
      const Revision oldest = compacted->compacted_revision();
      const Revision to =
          oldest + static_cast<Revision>(random() % (compacted->revision() - oldest + 1));
      absl::Notification done;
      compacted->Compact(to, [&](const absl::Status& status) {
        EXPECT_THAT(status, IsOk());
        done.Notify();
      });
      done.WaitForNotification();
      for (const char* each : {"kept/0", "kept/1", "kept/2"}) {
        EXPECT_EQ(HistoryOf(*compacted, each), HistoryOf(*whole, each)) << run << " " << step;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, StoreTest,
                         ::testing::Values(StoreKind{"Memory", &CreateMemoryStore},
                                           StoreKind{"Sqlite",
                                                     [](LocalStoreOptions options) {
                                                       auto store =
                                                           OpenSqliteStore({.folder = NewFolder(),
                                                                            .local = options});
                                                       EXPECT_THAT(store, IsOk());
                                                       return *std::move(store);
                                                     }}),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace shardmesh::server
