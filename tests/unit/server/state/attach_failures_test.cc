// What is kept of attempts to attach that failed, and for how long.
#include "server/state/attach_failures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "rpc/codec/status.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::StatusIs;

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1'000);

TEST(AttachFailuresTest, CountsUntilTheWorkerTakesPart) {
  AttachFailures failures;
  failures.Note("w", absl::AbortedError("one"), kStart);
  failures.Note("w", absl::InternalError("two"), kStart + absl::Seconds(1));
  const AttachFailures::Failures noted = failures.Of("w", kStart + absl::Seconds(2));
  EXPECT_EQ(noted.count, 2);
  EXPECT_THAT(noted.last, StatusIs(absl::StatusCode::kInternal));
  EXPECT_EQ(noted.last_time, kStart + absl::Seconds(1));
  EXPECT_EQ(failures.Of("another", kStart).count, 0);
  failures.Forget("w");
  failures.Forget("another");
  EXPECT_EQ(failures.Of("w", kStart).count, 0);
  EXPECT_EQ(failures.size(), 0u);
}

TEST(AttachFailuresTest, NamesTheFieldThatWasWrong) {
  AttachFailures failures;
  failures.Note("w", rpc::BadField("hello.nonce", "has 3 bytes; it must have 16 to 64"), kStart);
  EXPECT_EQ(failures.Of("w", kStart).last,
            absl::InvalidArgumentError("hello.nonce has 3 bytes; it must have 16 to 64"));
}

TEST(AttachFailuresTest, ForgetsWhatWasTheLongestAgoWhereThereIsNoRoom) {
  AttachFailures failures;
  const int most = static_cast<int>(AttachFailures::kMaxKept);
  for (int i = 0; i < most; ++i) {
    failures.Note(StrCat("w", i), absl::AbortedError("no"), kStart + absl::Milliseconds(i));
  }
  const absl::Time later = kStart + absl::Minutes(1);
  failures.Note("w0", absl::AbortedError("again"), later);
  EXPECT_EQ(failures.size(), AttachFailures::kMaxKept);
  for (int i = 0; i < 10; ++i) failures.Note(StrCat("x", i), absl::AbortedError("no"), later);
  EXPECT_EQ(failures.size(), AttachFailures::kMaxKept);
  EXPECT_EQ(failures.Of("w0", later).count, 2) << "it tried again lately";
  EXPECT_EQ(failures.Of("w10", later).count, 0);
  EXPECT_EQ(failures.Of("w11", later).count, 1);
  EXPECT_EQ(failures.Of("x9", later).count, 1);
}

TEST(AttachFailuresTest, ForgetsWhatIsOldAndKeepsNoLongTexts) {
  AttachFailures failures;
  failures.Note("old", absl::AbortedError(std::string(size_t{1} << 20, 'e')), kStart);
  EXPECT_EQ(failures.Of("old", kStart).last.message().size(), AttachFailures::kMaxErrorBytes);
  const absl::Time over = kStart + AttachFailures::kKeptFor;
  EXPECT_EQ(failures.Of("old", over - absl::Seconds(1)).count, 1);
  EXPECT_EQ(failures.Of("old", over).count, 0);
  failures.Note("new", absl::AbortedError("no"), over);
  EXPECT_EQ(failures.size(), 1u);
  failures.Note("old", absl::AbortedError("no"), over);
  EXPECT_EQ(failures.Of("old", over).count, 1) << "it begins anew";
}

}  // namespace
}  // namespace shardmesh::server
