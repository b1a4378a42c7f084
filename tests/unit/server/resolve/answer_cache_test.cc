// Answers are remembered, forgotten, and never given to another question.
#include "server/resolve/answer_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

std::string Found(AnswerCache& cache, int method, const std::string& request, int64_t revision) {
  const std::optional<KnownAnswer> answer = cache.Find(method, request, revision);
  return answer.has_value() ? std::string(answer->bytes.begin(), answer->bytes.end()) : "nothing";
}

// As for a question that is asked a second time.
void KeepTwice(AnswerCache& cache, int method, const std::string& request, int64_t revision,
               const std::string& answer) {
  for (int i = 0; i < 2; ++i) {
    cache.Keep(method, request, revision, {.bytes = grpc::Slice(answer), .corrections = {}});
  }
}

TEST(AnswerCacheTest, KeepsNoAnswerToAQuestionThatCameOnce) {
  AnswerCache cache(1 << 20);
  cache.Keep(1, "a", 7, {.bytes = grpc::Slice("1a"), .corrections = {}});
  EXPECT_EQ(Found(cache, 1, "a", 7), "nothing");
  cache.Keep(1, "a", 7, {.bytes = grpc::Slice("1a"), .corrections = {}});
  EXPECT_EQ(Found(cache, 1, "a", 7), "1a");
}

TEST(AnswerCacheTest, TellsMethodsAndRequestsApart) {
  AnswerCache cache(1 << 20);
  KeepTwice(cache, 1, "a", 7, "1a");
  KeepTwice(cache, 2, "a", 7, "2a");
  KeepTwice(cache, 257, "a", 7, "257a");
  KeepTwice(cache, 1, "", 7, "1");
  EXPECT_EQ(Found(cache, 1, "a", 7), "1a");
  EXPECT_EQ(Found(cache, 2, "a", 7), "2a");
  EXPECT_EQ(Found(cache, 257, "a", 7), "257a");
  EXPECT_EQ(Found(cache, 1, "", 7), "1");
  EXPECT_EQ(Found(cache, 1, "b", 7), "nothing");
}

TEST(AnswerCacheTest, ForgetsAnswersOfOtherRevisions) {
  AnswerCache cache(1 << 20);
  KeepTwice(cache, 1, "a", 7, "old");
  EXPECT_EQ(Found(cache, 1, "a", 8), "nothing");
  // Who still looks at the definitions before finds nothing, and leaves nothing.
  EXPECT_EQ(Found(cache, 1, "a", 7), "nothing");
  KeepTwice(cache, 1, "a", 7, "late");
  EXPECT_EQ(Found(cache, 1, "a", 8), "nothing");
  KeepTwice(cache, 1, "a", 8, "new");
  EXPECT_EQ(Found(cache, 1, "a", 8), "new");
}

TEST(AnswerCacheTest, KeepsWhatIsAskedForWithinItsBytes) {
  AnswerCache cache(10'000);
  KeepTwice(cache, 1, "often", 1, "kept");
  int found = 0;
  for (int i = 0; i < 1000; ++i) {
    KeepTwice(cache, 1, StrCat("once ", i), 1, "x");
    EXPECT_EQ(Found(cache, 1, "often", 1), "kept") << i;
  }
  for (int i = 0; i < 1000; ++i) {
    found += cache.Find(1, StrCat("once ", i), 1).has_value() ? 1 : 0;
  }
  EXPECT_GT(found, 10);
  EXPECT_LT(found, 10'000 / 100);
}

TEST(AnswerCacheTest, KeepsNoLongAnswers) {
  AnswerCache cache(1 << 20);
  KeepTwice(cache, 1, "a", 1, std::string(AnswerCache::kMaxEntryBytes, 'x'));
  EXPECT_FALSE(cache.Find(1, "a", 1).has_value());
}

}  // namespace
}  // namespace shardmesh::server
