// The numbers of a progress bar, and where it shows nothing.
#include "client/cli/progress_bar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardmesh::client {
namespace {

TEST(ProgressBarTest, SaysBytesRateAndTimeLeft) {
  EXPECT_EQ(FormatByteProgress(1 << 30, int64_t{4} << 30, absl::Seconds(2)),
            "25%  1.00 GiB of 4.00 GiB, 512 MiB/s, 6.00 s left");
  EXPECT_EQ(FormatByteProgress(0, 1024, absl::Seconds(2)), "0%  0 B of 1.00 KiB, 0 B/s");
  EXPECT_EQ(FormatByteProgress(1024, 1024, absl::Seconds(1)),
            "100%  1.00 KiB of 1.00 KiB, 1.00 KiB/s");
  EXPECT_EQ(FormatByteProgress(0, 0, absl::ZeroDuration()), "100%  0 B of 0 B");
}

TEST(ProgressBarTest, SaysCountAndTimeLeft) {
  EXPECT_EQ(FormatCountProgress(2, 5, absl::Seconds(2)), "40%  2 of 5, 3.00 s left");
  EXPECT_EQ(FormatCountProgress(5, 5, absl::Seconds(2)), "100%  5 of 5");
}

TEST(ProgressBarTest, ShowsNothingInTheFirstSecond) {
  ::testing::internal::CaptureStderr();
  {
    ProgressBar bar("loading", /*quiet=*/false);
    bar.Show(1, 2);
    bar.ShowCount(1, 2);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace shardmesh::client
