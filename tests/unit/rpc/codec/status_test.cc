// What crosses the wire of a status, and what must be the same on both sides of it.
#include "rpc/codec/status.h"

#include <gmock/gmock.h>
#include <grpcpp/support/status.h>
#include <gtest/gtest.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "shardmesh/v1/error.pb.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::SizeIs;

absl::Status RoundTrip(const absl::Status& status) { return FromGrpc(ToGrpc(status)); }

TEST(StatusTest, OkStaysOk) { EXPECT_EQ(RoundTrip(absl::OkStatus()), absl::OkStatus()); }

TEST(StatusTest, EveryCodeAndMessageCrossesTheWire) {
  for (int code = 1; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "größe 3, \"wq\"\n");
    EXPECT_EQ(RoundTrip(status), status);
  }
}

TEST(StatusTest, EverythingAttachedCrossesTheWire) {
  absl::Status status = WithReason(absl::InvalidArgumentError("bad"), Reason::kDuplicateAxis);
  status = WithPythonType(status, "DuplicateSpecError");
  status = WithField(status, "dimensions", 1);
  status = WithField(status, "spec");
  status = WithRetryDelay(status, absl::Milliseconds(1500));
  status = WithFact(status, "rank", "3");
  const absl::Status back = RoundTrip(status);
  EXPECT_EQ(ReasonOf(back), Reason::kDuplicateAxis);
  EXPECT_EQ(PythonTypeOf(back), "DuplicateSpecError");
  EXPECT_THAT(FieldViolationsOf(back), ElementsAre(FieldViolation{"spec.dimensions[1]", "bad"}));
  EXPECT_EQ(RetryDelayOf(back), absl::Milliseconds(1500));
  EXPECT_EQ(FactOf(back, "rank"), "3");
  EXPECT_EQ(FactOf(back, "python_type"), std::nullopt);
  EXPECT_EQ(RoundTrip(back), back);
}

TEST(StatusTest, ErrorInfoHasTheFormThatOtherClientsRead) {
  const absl::Status status =
      InvalidArgument(Reason::kNotDivisible, "30 is not divisible by 4", "ValueError");
  google::rpc::Status wire;
  ASSERT_TRUE(wire.ParseFromString(ToGrpc(status).error_details()));
  EXPECT_EQ(wire.code(), 3);
  EXPECT_EQ(wire.message(), "30 is not divisible by 4");
  ASSERT_EQ(wire.details_size(), 1);
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(wire.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "NOT_DIVISIBLE");
  EXPECT_EQ(info.domain(), "shardmesh");
  EXPECT_EQ(info.metadata().at("python_type"), "ValueError");
}

TEST(StatusTest, AReasonOfANewerBuildIsPassedOn) {
  google::rpc::ErrorInfo info;
  info.set_domain("shardmesh");
  info.set_reason("FROM_THE_FUTURE");
  google::rpc::Status wire;
  wire.add_details()->PackFrom(info);
  const grpc::Status newer(grpc::StatusCode::ABORTED, "m", wire.SerializeAsString());
  const absl::Status status = FromGrpc(newer);
  EXPECT_EQ(ReasonOf(status), Reason::kUnspecified);
  google::rpc::Status again;
  ASSERT_TRUE(again.ParseFromString(ToGrpc(status).error_details()));
  ASSERT_EQ(again.details_size(), 1);
  ASSERT_TRUE(again.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "FROM_THE_FUTURE");
}

TEST(StatusTest, DetailsThatAreNotOursOnlyLoseThemselves) {
  const grpc::Status strange(grpc::StatusCode::NOT_FOUND, "m", "\xff\xff");
  EXPECT_EQ(FromGrpc(strange), absl::NotFoundError("m"));
}

TEST(StatusTest, TheLargestStatusFitsATrailer) {
  const std::string huge(100'000, 'x');
  absl::Status status = InvalidArgument(Reason::kUnmatchedTensor, huge, huge);
  for (int i = 0; i < 100; ++i) {
    status = WithFact(status, StrCat("key", i), huge);
  }
  const grpc::Status wire = ToGrpc(WithField(status, huge));
  EXPECT_THAT(wire.error_message(), SizeIs(kMaxStatusMessageBytes));
  EXPECT_THAT(wire.error_message(), EndsWith("..."));
  EXPECT_LT(wire.error_message().size() + wire.error_details().size() * 4 / 3, 8000u);
}

TEST(StatusTest, CutsMessagesAtCharactersAndReplacesWhatIsNotUtf8) {
  std::string text;
  while (text.size() < 2 * kMaxStatusMessageBytes) {
    text += "ä";
  }
  EXPECT_THAT(ToGrpc(absl::InternalError(text)).error_message(), EndsWith("ä..."));
  EXPECT_EQ(ToGrpc(absl::InternalError("a\xff")).error_message(), "a?");
}

TEST(StatusTest, FieldsOfRepeatedEntriesJoinWithoutADot) {
  const absl::Status inner = WithField(absl::InvalidArgumentError("m"), "", 2);
  EXPECT_EQ(FieldViolationsOf(WithField(inner, "axes"))[0].field, "axes[2]");
}

TEST(StatusTest, OnTheWireAMessageNamesTheFieldThatItIsAbout) {
  const absl::Status nested =
      WithField(BadField("axes", "must be empty where a preset is given"), "q");
  EXPECT_EQ(ToGrpc(nested).error_message(), "q.axes must be empty where a preset is given");
  EXPECT_EQ(FromGrpc(ToGrpc(nested)).message(), ToGrpc(nested).error_message());
  // Sent on, it is not named twice; what has a subject keeps it.
  EXPECT_EQ(ToGrpc(FromGrpc(ToGrpc(nested))).error_message(), ToGrpc(nested).error_message());
  EXPECT_EQ(ToGrpc(BadField("shape", "dimension 1 is 0")).error_message(), "dimension 1 is 0");
  EXPECT_EQ(ToGrpc(absl::InternalError("is broken")).error_message(), "is broken");
}

TEST(StatusTest, OkGetsNothingAttached) {
  EXPECT_EQ(WithField(absl::OkStatus(), "f"), absl::OkStatus());
  EXPECT_EQ(WithRetryDelay(absl::OkStatus(), absl::Seconds(1)), absl::OkStatus());
  EXPECT_EQ(WithFact(absl::OkStatus(), "k", "v"), absl::OkStatus());
}

TEST(ReasonTest, EveryReasonHasTheSameNameOnTheWire) {
  for (int i = 0; i <= static_cast<int>(Reason::kLast); ++i) {
    const auto reason = static_cast<Reason>(i);
    const v1::Reason wire = Encode(reason);
    EXPECT_EQ(v1::Reason_Name(wire), StrCat("REASON_", ReasonName(reason)));
    EXPECT_EQ(Decode(wire), reason);
  }
}

TEST(ReasonTest, EveryWireReasonIsKnown) {
  const auto* values = v1::Reason_descriptor();
  for (int i = 0; i < values->value_count(); ++i) {
    const std::string name = values->value(i)->name().substr(std::string("REASON_").size());
    EXPECT_TRUE(ReasonFromName(name).has_value()) << name;
  }
}

TEST(WorkerErrorTest, CodeMessageAndReasonCrossTheWire) {
  const absl::Status status =
      WithReason(absl::UnavailableError("rank 1 is lost"), Reason::kWorkerLost);
  v1::WorkerError wire;
  Encode(status, &wire);
  EXPECT_EQ(Decode(wire), status);
  EXPECT_EQ(Decode(v1::WorkerError()), absl::OkStatus());
  wire.set_code(99);
  EXPECT_EQ(Decode(wire).code(), absl::StatusCode::kUnknown);
}

}  // namespace
}  // namespace shardmesh::rpc
