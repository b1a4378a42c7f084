// RequestMemory: its limits, what it deletes from the store, and requests that come at once.
#include "server/state/request_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/store/local_store.h"
#include "status/str_cat.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::testing::SizeIs;

class RequestMemoryTest : public ::testing::Test {
 protected:
  // A change with this request id and an answer of so many bytes.
  void Do(const std::string& key, size_t bytes = 8) {
    ASSERT_THAT(memory_->Begin(key, "f"), IsOk());
    Transaction transaction;
    memory_->AddTo(&transaction, key, std::string(bytes, 'x'));
    const absl::StatusOr<Revision> revision = CommitAndWait(*store_, std::move(transaction));
    ASSERT_THAT(revision, IsOk());
    memory_->Finish(key, *revision);
    clock_.Advance(absl::Milliseconds(1));
  }
  bool Knows(const std::string& key) const { return memory_->Find(key).has_value(); }
  // The answers in the store, after all deletes before.
  std::vector<KeyValue> Stored() {
    EXPECT_THAT(CommitAndWait(*store_, {}), IsOk());
    return store_->List("request/")->items;
  }

  test::FakeClock clock_;
  const std::unique_ptr<Store> store_ = CreateMemoryStore();
  const std::unique_ptr<RequestMemory> memory_ = *RequestMemory::Open(store_.get(), &clock_);
};

TEST_F(RequestMemoryTest, ACallerOverItsBytesForgetsItsOwnOldestAnswers) {
  memory_->SetLimits({.max_bytes_per_caller = 20'000});
  Do("bob/m/0");
  for (int i = 0; i < 10; ++i) Do(StrCat("ada/m/", i), 4'000);
  EXPECT_FALSE(Knows("ada/m/0"));
  EXPECT_TRUE(Knows("ada/m/9"));
  EXPECT_TRUE(Knows("bob/m/0"));
  EXPECT_THAT(Stored(), SizeIs(testing::Le(5)));
}

TEST_F(RequestMemoryTest, OverTheBytesOfAllTheOldestAnswersGo) {
  memory_->SetLimits({.max_bytes = 20'000});
  Do("bob/m/0");
  for (int i = 0; i < 10; ++i) Do(StrCat("caller", i, "/m/0"), 4'000);
  EXPECT_FALSE(Knows("bob/m/0"));
  EXPECT_FALSE(Knows("caller0/m/0"));
  EXPECT_TRUE(Knows("caller9/m/0"));
  EXPECT_THAT(Stored(), SizeIs(testing::Le(4)));
}

TEST_F(RequestMemoryTest, TheNewestAnswerStaysHoweverLongItIs) {
  memory_->SetLimits({.max_bytes_per_caller = 1'000, .max_bytes = 1'000});
  Do("ada/m/0", 4'000);
  EXPECT_TRUE(Knows("ada/m/0"));
  Do("ada/m/1", 4'000);
  EXPECT_FALSE(Knows("ada/m/0"));
  EXPECT_TRUE(Knows("ada/m/1"));
}

TEST_F(RequestMemoryTest, ExpiredAnswersAreDeletedWithoutAnotherRequest) {
  for (int i = 0; i < 250; ++i) Do(StrCat("ada/m/", i));
  clock_.Advance(RequestMemory::kRememberFor - absl::Milliseconds(150));
  EXPECT_THAT(Stored(), SizeIs(149));  // the first one was 250 ms before
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(Stored(), SizeIs(0));
}

TEST_F(RequestMemoryTest, OfRequestsThatComeAtOnceOneIsTheFirstAndAllGetItsAnswer) {
  std::atomic<int> firsts = 0;
  std::atomic<int> answers = 0;
  const auto ask = [&] {
    while (true) {
      const auto begun = memory_->Begin("ada/m/r", "f");
      if (absl::IsAborted(begun.status())) {
        std::this_thread::yield();
        continue;
      }
      ASSERT_THAT(begun, IsOk());
      if (begun->has_value()) {
        EXPECT_EQ((*begun)->bytes, "the answer");
        ++answers;
        return;
      }
      ++firsts;
      Transaction transaction;
      memory_->AddTo(&transaction, "ada/m/r", "the answer");
      const auto revision = CommitAndWait(*store_, std::move(transaction));
      ASSERT_THAT(revision, IsOk());
      memory_->Finish("ada/m/r", *revision);
      return;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back(ask);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(firsts, 1);
  EXPECT_EQ(answers, 7);
}

}  // namespace
}  // namespace shardmesh::server
