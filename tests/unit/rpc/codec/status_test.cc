// What crosses the wire of a status, and what must be the same on both sides of it.
#include "rpc/codec/status.h"

#include <gmock/gmock.h>
#include <grpcpp/support/status.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "rpc/codec/correction_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "sharding/correction.h"
#include "sharding/layout/fixes.h"
#include "sharding/mesh.h"
#include "sharding/spec.h"
#include "shardmesh/v1/error.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/retry.h"
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

// The detail of a type, or its default where there is none.
template <typename Message>
Message DetailOf(const absl::Status& status) {
  google::rpc::Status wire;
  EXPECT_TRUE(wire.ParseFromString(ToGrpc(status).error_details()));
  Message message;
  for (const auto& detail : wire.details()) {
    if (detail.UnpackTo(&message)) break;
  }
  return message;
}

TEST(StatusTest, FactsFillTheStandardDetails) {
  const auto resource = DetailOf<google::rpc::ResourceInfo>(
      WithReason(absl::NotFoundError("no mesh"), Reason::kNotFound,
                 {{fact::kKind, "mesh"}, {fact::kName, "m"}}));
  EXPECT_EQ(resource.resource_type(), "mesh");
  EXPECT_EQ(resource.resource_name(), "m");
  EXPECT_EQ(resource.description(), "no mesh");
  const auto quota = DetailOf<google::rpc::QuotaFailure>(
      WithReason(absl::ResourceExhaustedError("full"), Reason::kMemoryLimit,
                 {{fact::kIdentity, "w-1"}, {fact::kHave, 1}, {fact::kNeed, 2}}));
  ASSERT_EQ(quota.violations_size(), 1);
  EXPECT_EQ(quota.violations(0).subject(), "w-1");
  EXPECT_EQ(quota.violations(0).description(), "full");
  const auto precondition = DetailOf<google::rpc::PreconditionFailure>(
      WithReason(absl::FailedPreconditionError("rank 1 is missing"), Reason::kMeshIncomplete,
                 {{fact::kMesh, "m"}, {fact::kRank, 1}}));
  ASSERT_EQ(precondition.violations_size(), 1);
  EXPECT_EQ(precondition.violations(0).type(), "MESH_INCOMPLETE");
  EXPECT_EQ(precondition.violations(0).subject(), "m");
  EXPECT_EQ(precondition.violations(0).description(), "rank 1 is missing");
}

TEST(StatusTest, EveryReasonHasTheRetryInfoOfTheTable) {
  const auto has_retry_info = [](const absl::Status& status) {
    google::rpc::Status wire;
    EXPECT_TRUE(wire.ParseFromString(ToGrpc(status).error_details()));
    return std::any_of(wire.details().begin(), wire.details().end(), [](const auto& detail) {
      return detail.template Is<google::rpc::RetryInfo>();
    });
  };
  for (int i = 1; i <= static_cast<int>(Reason::kLast); ++i) {
    const auto reason = static_cast<Reason>(i);
    const absl::Status status = WithReason(absl::UnavailableError("m"), reason);
    const std::optional<absl::Duration> delay = RetryRuleOf(reason).delay;
    EXPECT_EQ(has_retry_info(status), delay.has_value()) << ReasonName(reason);
    EXPECT_EQ(RetryDelayOf(RoundTrip(status)), delay) << ReasonName(reason);
    EXPECT_EQ(RetryDelayOf(RoundTrip(WithRetryDelay(status, absl::Minutes(1)))), absl::Minutes(1))
        << ReasonName(reason);
    EXPECT_FALSE(has_retry_info(WithoutRetry(status))) << ReasonName(reason);
    google::rpc::Status embedded;
    Encode(status, &embedded);
    EXPECT_EQ(RetryDelayOf(Decode(embedded)), delay) << ReasonName(reason);
  }
}

TEST(StatusTest, PreconditionsNameWhatTheyAreAbout) {
  const auto subject = [](Reason reason, Facts facts) {
    const auto failure = DetailOf<google::rpc::PreconditionFailure>(
        WithReason(absl::FailedPreconditionError("m"), reason, facts));
    EXPECT_EQ(failure.violations_size(), 1) << ReasonName(reason);
    if (failure.violations_size() == 0) return std::string("none");
    EXPECT_EQ(failure.violations(0).type(), ReasonName(reason));
    EXPECT_EQ(failure.violations(0).description(), "m");
    return failure.violations(0).subject();
  };
  EXPECT_EQ(subject(Reason::kWorkerAttached, {{fact::kIdentity, "w-1"}}), "w-1");
  EXPECT_EQ(subject(Reason::kWorkerServesRank, {{fact::kIdentity, "w-1"}, {fact::kMesh, "m-1"}}),
            "w-1");
  EXPECT_EQ(subject(Reason::kRanksDefined, {{fact::kIdentity, "w-1"}, {fact::kMesh, "m-1"}}),
            "m-1");
  EXPECT_EQ(subject(Reason::kNoMesh, {}), "");
}

TEST(StatusTest, ASessionThatIsGoneIsAResource) {
  const auto resource = DetailOf<google::rpc::ResourceInfo>(WithReason(
      absl::NotFoundError("session s is gone"), Reason::kSessionGone, {{fact::kName, "s"}}));
  EXPECT_EQ(resource.resource_type(), "session");
  EXPECT_EQ(resource.resource_name(), "s");
  EXPECT_EQ(resource.description(), "session s is gone");
}

TEST(StatusTest, TheFieldIsAlsoAFactWhereTheReasonHasOne) {
  const absl::Status bad = WithField(BadField("axes", "must be empty"), "q");
  EXPECT_EQ(FactOf(RoundTrip(bad), fact::kField), "q.axes");
  EXPECT_EQ(FactOf(WithField(InvalidArgument(Reason::kNotDivisible, "m"), "q"), fact::kField),
            std::nullopt);
}

TEST(StatusTest, CorrectionsAndTheirFixesCrossTheWire) {
  const Mesh mesh = *Mesh::Parse("dp=2,tp=4");
  const PartitionSpec spec({SpecEntry::Axis("tp"), SpecEntry::Axis("dp")});
  const Shape shape = {30, 7};
  const CorrectionResult corrected = *Correct(spec, shape, mesh);
  const std::vector<Fix> fixes = SuggestFixes(spec, shape, mesh, corrected);
  const absl::Status status = RoundTrip(WithCorrections(
      InvalidArgument(corrected.corrections[0].reason, "m"), corrected.corrections, fixes, mesh));
  const CorrectionFailure failure = CorrectionsOf(status);
  EXPECT_EQ(failure.corrections, corrected.corrections);
  ASSERT_EQ(failure.fixes.size(), fixes.size());
  ASSERT_FALSE(fixes.empty());
  EXPECT_EQ(failure.fixes[0].text, fixes[0].text);
  EXPECT_EQ(failure.fixes[0].spec, fixes[0].spec);
  EXPECT_EQ(failure.omitted, 0);
  EXPECT_EQ(FactOf(status, fact::kNeed), "4");
  EXPECT_TRUE(CorrectionsOf(InvalidArgument(Reason::kNotDivisible, "m")).corrections.empty());
}

TEST(StatusTest, CorrectionsWithoutRoomAreCounted) {
  const Mesh mesh = *Mesh::Parse("tp=4");
  const std::vector<Correction> many(200, {.dim = 0,
                                           .requested = SpecEntry::Axis("tp"),
                                           .reason = Reason::kNotDivisible,
                                           .have = 30,
                                           .need = 4});
  const absl::Status status = WithCorrections(
      InvalidArgument(Reason::kNotDivisible, std::string(5'000, 'x')), many, {}, mesh);
  const grpc::Status wire = ToGrpc(status);
  EXPECT_LT(wire.error_message().size() + wire.error_details().size() * 4 / 3, 8000u);
  const CorrectionFailure failure = CorrectionsOf(FromGrpc(wire));
  EXPECT_FALSE(failure.corrections.empty());
  EXPECT_EQ(std::ssize(failure.corrections) + failure.omitted, 200);
}

TEST(StatusTest, AnEmbeddedStatusKeepsItsDetails) {
  google::rpc::Status wire;
  Encode(WithReason(absl::NotFoundError("gone"), Reason::kSessionGone, {{fact::kName, "s"}}),
         &wire);
  const absl::Status back = Decode(wire);
  EXPECT_EQ(back.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(back), Reason::kSessionGone);
  EXPECT_EQ(FactOf(back, fact::kName), "s");
  wire.set_code(99);
  EXPECT_EQ(Decode(wire).code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(Decode(google::rpc::Status()), absl::OkStatus());
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
      WithReason(absl::UnavailableError("rank 1 is lost"), Reason::kWorkerLost,
                 {{fact::kRank, 1}, {fact::kIdentity, "w-1"}});
  internal::v1::WorkerError wire;
  Encode(status, &wire);
  EXPECT_EQ(Decode(wire), status);
  EXPECT_EQ(Decode(internal::v1::WorkerError()), absl::OkStatus());
  wire.set_code(99);
  EXPECT_EQ(Decode(wire).code(), absl::StatusCode::kUnknown);
}

}  // namespace
}  // namespace shardmesh::rpc
