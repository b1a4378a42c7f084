// What every question about layouts refuses: each malformed field by its path and its reason, as
// the contract says.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/resolve_service_fixture.h"

namespace shardmesh::server {
namespace {

using test::IsOk;
using test::StatusIs;
using ::testing::HasSubstr;

using test::kInvalid;
constexpr int64_t kHuge = int64_t{1} << 62;

v1::MeshAxis* AddAxis(const std::string& name, int64_t size, v1::MeshSelector* to) {
  v1::MeshAxis* const axis = to->mutable_value()->add_axes();
  axis->set_name(name);
  axis->set_size(size);
  return axis;
}

// One malformed request for each row; `spoil` is given one that is answered.
template <typename Request>
struct Refusal {
  std::string field;
  Reason reason;
  std::function<void(Request*)> spoil;
  std::string text = "";  // of the message
};

class ResolveLimitsTest : public ResolveServiceTest {
 protected:
  template <typename Stub, typename Request, typename Response>
  void ExpectRefused(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                     const Request& good, const std::vector<Refusal<Request>>& refusals) {
    Response response;
    EXPECT_THAT(Ask(method, good, &response), IsOk()) << good.GetTypeName();
    for (const Refusal<Request>& refusal : refusals) {
      Request request = good;
      refusal.spoil(&request);
      const absl::Status status = Ask(method, request, &response);
      EXPECT_THAT(status, StatusIs(kInvalid, refusal.reason))
          << good.GetTypeName() << " " << refusal.field;
      EXPECT_EQ(FieldOf(status), refusal.field) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(refusal.text));
    }
  }

  // The status of a streamed tree: a header, and messages of tensors.
  template <typename Stub, typename Request, typename Response>
  absl::Status Send(std::unique_ptr<grpc::ClientReaderWriter<Request, Response>> (Stub::*method)(
                        grpc::ClientContext*),
                    const std::vector<Request>& messages) {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(60)), &context);
    const auto stream = (stub<Stub>().*method)(&context);
    Response response;
    for (const Request& message : messages) {
      if (!stream->Write(message) || (message.has_tensors() && !stream->Read(&response))) {
        break;
      }
    }
    stream->WritesDone();
    while (stream->Read(&response)) {
    }
    return rpc::FromGrpc(stream->Finish());
  }
  template <typename Stub, typename Request, typename Response>
  absl::Status Send(
      std::unique_ptr<grpc::ClientWriter<Request>> (Stub::*method)(grpc::ClientContext*, Response*),
      const std::vector<Request>& messages) {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(60)), &context);
    Response response;
    const auto stream = (stub<Stub>().*method)(&context, &response);
    for (const Request& message : messages) {
      if (!stream->Write(message)) {
        break;
      }
    }
    stream->WritesDone();
    return rpc::FromGrpc(stream->Finish());
  }
};

// What is refused of every mesh, in a selector that is the field `field`.
template <typename Request>
std::vector<Refusal<Request>> OfMesh(const std::string& field,
                                     std::function<v1::MeshSelector*(Request*)> mesh) {
  const std::string axes = field + ".value.axes";
  return {
      {axes, Reason::kDuplicateAxis,
       [=](Request* r) { AddAxis("tp", 2, mesh(r)), AddAxis("tp", 2, mesh(r)); }},
      {axes, Reason::kInvalidMesh, [=](Request* r) { AddAxis("", 2, mesh(r)); }},
      {axes, Reason::kInvalidMesh, [=](Request* r) { AddAxis("tp", 0, mesh(r)); }},
      {axes, Reason::kInvalidMesh, [=](Request* r) { AddAxis("tp", -3, mesh(r)); }},
      {axes, Reason::kLimitExceeded,
       [=](Request* r) { AddAxis("a", kHuge, mesh(r)), AddAxis("b", kHuge, mesh(r)); }},
      {axes, Reason::kLimitExceeded,
       [=](Request* r) { AddAxis(std::string(256, 'a'), 2, mesh(r)); }},
      {axes, Reason::kLimitExceeded,
       [=](Request* r) {
         for (int i = 0; i < 17; ++i) {
           AddAxis(std::to_string(i), 1, mesh(r));
         }
       }},
  };
}

// What is refused of every shape of a tensor, the field `field`.
template <typename Request>
std::vector<Refusal<Request>> OfShape(const std::string& field,
                                      std::function<v1::TensorShape*(Request*)> shape) {
  return {
      {field, Reason::kInvalidShape, [=](Request* r) { shape(r)->set_sizes(0, -1); }, "-1"},
      {field, Reason::kInvalidShape, [=](Request* r) { shape(r)->mutable_sizes()->Resize(17, 1); }},
      {field, Reason::kInvalidShape,
       [=](Request* r) {
         shape(r)->clear_sizes();
         for (int i = 0; i < 3; ++i) {
           shape(r)->add_sizes(kHuge);
         }
       }},
  };
}

// What is refused of every spec, the field `field`.
template <typename Request>
std::vector<Refusal<Request>> OfSpec(const std::string& field,
                                     std::function<v1::PartitionSpec*(Request*)> spec) {
  return {
      {field + ".dimensions", Reason::kLimitExceeded,
       [=](Request* r) {
         for (int i = 0; i < 17; ++i) {
           spec(r)->add_dimensions()->set_name("a");
         }
       }},
      {field + ".dimensions[0].name", Reason::kLimitExceeded,
       [=](Request* r) {
         spec(r)->clear_dimensions();
         spec(r)->add_dimensions()->set_name(std::string(256, 'a'));
       }},
      {field + ".dimensions[0].kind", Reason::kBadField,
       [=](Request* r) {
         spec(r)->clear_dimensions();
         spec(r)->add_dimensions();
       }},
  };
}

template <typename Request>
std::vector<Refusal<Request>> Joined(std::vector<std::vector<Refusal<Request>>> lists) {
  std::vector<Refusal<Request>> all;
  for (std::vector<Refusal<Request>>& list : lists) {
    all.insert(all.end(), std::make_move_iterator(list.begin()),
               std::make_move_iterator(list.end()));
  }
  return all;
}

TEST_F(ResolveLimitsTest, OfResolveSpec) {
  using Request = v1::ResolveSpecRequest;
  Request good;
  good.mutable_mesh()->set_name("default");
  good.add_axes()->set_name("__BATCH__");
  good.add_axes()->set_name("__HEAD__");
  good.mutable_shape()->add_sizes(8);
  good.mutable_shape()->add_sizes(8);
  ExpectRefused(
      &v1::ResolveService::Stub::ResolveSpec, good,
      Joined<Request>({
          OfMesh<Request>("mesh", [](Request* r) { return r->mutable_mesh(); }),
          OfShape<Request>("shape.sizes", [](Request* r) { return r->mutable_shape(); }),
          {
              {"axes", Reason::kUnknownAxis,
               [](Request* r) { r->mutable_axes(1)->set_name("__HEADS__"); },
               "did you mean \"__HEAD__\"?"},
              {"axes", Reason::kDuplicateAxis,
               [](Request* r) { r->mutable_axes(0)->set_name("__HEAD__"); }, "'tp'"},
              {"axes[0].name", Reason::kLimitExceeded,
               [](Request* r) { r->mutable_axes(0)->set_name(std::string(256, 'a')); }},
              {"axes[1].kind", Reason::kBadField, [](Request* r) { r->mutable_axes(1)->Clear(); }},
              {"axes", Reason::kLimitExceeded,
               [](Request* r) {
                 for (int i = 0; i < 15; ++i) {
                   r->add_axes()->set_constant(v1::AXIS_CONSTANT_NONE);
                 }
               }},
              {"axes", Reason::kNotDivisible,
               [](Request* r) {
                 r->mutable_axes(0)->set_constant(v1::AXIS_CONSTANT_NONE);
                 r->mutable_shape()->set_sizes(1, 7);
                 r->set_policy(v1::CORRECTION_POLICY_STRICT);
               },
               "to mend it"},
              {"mode.name", Reason::kUnknownMode,
               [](Request* r) { r->mutable_mode()->set_name("__trian__"); }, "__train__"},
              {"mode", Reason::kInvalidDimension,
               [](Request* r) { r->mutable_mode()->set_dimension(2); }},
              {"mode", Reason::kInvalidDimension,
               [](Request* r) { r->mutable_mode()->set_dimension(INT32_MIN); }},
              {"mode", Reason::kMissingArgument,
               [](Request* r) {
                 r->mutable_mode()->set_dimension(0);
                 r->clear_shape();
               }},
              {"preset", Reason::kUnknownPreset,
               [](Request* r) {
                 r->clear_axes();
                 r->set_preset("HiddenStateSharding_");
               },
               "did you mean"},
              {"axes", Reason::kBadField, [](Request* r) { r->set_preset("HiddenStateSharding"); }},
              {"policy", Reason::kBadField,
               [](Request* r) { r->set_policy(static_cast<v1::CorrectionPolicy>(9)); }},
              {"compatibility", Reason::kBadField,
               [](Request* r) { r->set_compatibility(static_cast<v1::Compatibility>(9)); }},
              {"profile.value.batch_axis.name", Reason::kLimitExceeded,
               [](Request* r) {
                 r->mutable_profile()->mutable_value()->mutable_batch_axis()->set_name(
                     std::string(256, 'a'));
               }},
          },
      }));
}

TEST_F(ResolveLimitsTest, OfResolveAxes) {
  using Request = v1::ResolveAxesRequest;
  Request good;
  good.add_axes()->set_name("__HEAD__");
  ExpectRefused(
      &v1::ResolveService::Stub::ResolveAxes, good,
      {
          {"axes", Reason::kUnknownAxis,
           [](Request* r) { r->mutable_axes(0)->set_name("__HEAT__"); },
           "did you mean \"__HEAD__\"?"},
          {"axes", Reason::kUnknownAxis, [](Request* r) { r->mutable_axes(0)->set_name(""); }},
          {"mode.dimension", Reason::kBadField,
           [](Request* r) { r->mutable_mode()->set_dimension(0); }},
      });
}

TEST_F(ResolveLimitsTest, OfCorrectSpec) {
  using Request = v1::CorrectSpecRequest;
  Request good;
  good.mutable_mesh()->set_name("default");
  good.mutable_spec()->add_dimensions()->set_name("tp");
  good.mutable_shape()->add_sizes(8);
  ExpectRefused(&v1::ResolveService::Stub::CorrectSpec, good,
                Joined<Request>({
                    OfMesh<Request>("mesh", [](Request* r) { return r->mutable_mesh(); }),
                    OfShape<Request>("shape.sizes", [](Request* r) { return r->mutable_shape(); }),
                    OfSpec<Request>("spec", [](Request* r) { return r->mutable_spec(); }),
                    {
                        {"shape", Reason::kBadField, [](Request* r) { r->clear_shape(); }},
                        {"spec", Reason::kDuplicateAxis,
                         [](Request* r) {
                           r->mutable_shape()->add_sizes(8);
                           r->mutable_spec()->add_dimensions()->set_name("tp");
                         },
                         "'tp'"},
                        {"spec.unreduced_axes[0]", Reason::kDuplicateAxis,
                         [](Request* r) { r->mutable_spec()->add_unreduced_axes("tp"); }},
                        {"spec", Reason::kNotDivisible,
                         [](Request* r) {
                           r->mutable_shape()->set_sizes(0, 9);
                           r->set_policy(v1::CORRECTION_POLICY_STRICT);
                         },
                         "to mend it"},
                    },
                }));
}

TEST_F(ResolveLimitsTest, OfConstrainArray) {
  using Request = v1::ConstrainArrayRequest;
  Request good;
  good.mutable_mesh()->set_name("default");
  good.mutable_spec()->add_dimensions()->set_name("tp");
  good.mutable_shape()->add_sizes(8);
  const auto ask_axes = [](Request* r, const std::string& name) {
    r->mutable_axes()->add_axes()->set_name(name);
  };
  ExpectRefused(
      &v1::ResolveService::Stub::ConstrainArray, good,
      Joined<Request>({
          OfMesh<Request>("mesh", [](Request* r) { return r->mutable_mesh(); }),
          OfShape<Request>("shape.sizes", [](Request* r) { return r->mutable_shape(); }),
          OfSpec<Request>("spec", [](Request* r) { return r->mutable_spec(); }),
          {
              {"layout", Reason::kBadField, [](Request* r) { r->clear_layout(); }},
              {"axes", Reason::kUnknownAxis, [=](Request* r) { ask_axes(r, "__HEADS__"); },
               "did you mean \"__HEAD__\"?"},
              {"axes.axes[0].name", Reason::kLimitExceeded,
               [=](Request* r) { ask_axes(r, std::string(256, 'a')); }},
              {"preset", Reason::kUnknownPreset, [](Request* r) { r->set_preset("Hidden"); }},
              {"preset", Reason::kBadField, [](Request* r) { r->set_preset(""); }},
              {"mode", Reason::kInvalidDimension,
               [=](Request* r) {
                 ask_axes(r, "__HEAD__");
                 r->mutable_mode()->set_dimension(1);
               }},
          },
      }));
}

TEST_F(ResolveLimitsTest, OfCompareSpecs) {
  using Request = v1::CompareSpecsRequest;
  Request good;
  good.mutable_mesh()->set_name("default");
  good.mutable_a()->add_dimensions()->set_name("tp");
  good.set_rank(1);
  ExpectRefused(&v1::ResolveService::Stub::CompareSpecs, good,
                Joined<Request>({
                    OfMesh<Request>("mesh", [](Request* r) { return r->mutable_mesh(); }),
                    OfSpec<Request>("b", [](Request* r) { return r->mutable_b(); }),
                    {
                        {"rank", Reason::kBadField, [](Request* r) { r->set_rank(-1); }},
                        {"rank", Reason::kBadField, [](Request* r) { r->set_rank(17); }},
                        {"a", Reason::kRankMismatch, [](Request* r) { r->set_rank(0); }},
                        {"b", Reason::kAxisNotInMesh,
                         [](Request* r) { r->mutable_b()->add_dimensions()->set_name("no"); }},
                    },
                }));
}

TEST_F(ResolveLimitsTest, OfExplainTensor) {
  using Request = v1::ExplainTensorRequest;
  Request good;
  good.mutable_mesh()->set_name("default");
  good.set_name("kernel");
  good.mutable_shape()->add_sizes(8);
  v1::Rule* const rule = good.mutable_rule_set()->mutable_value()->add_rules();
  rule->set_pattern("kernel");
  rule->mutable_spec()->add_dimensions()->set_name("tp");
  const auto first_rule = [](Request* r) {
    return r->mutable_rule_set()->mutable_value()->mutable_rules(0);
  };
  ExpectRefused(
      &v1::ResolveService::Stub::ExplainTensor, good,
      Joined<Request>({
          OfMesh<Request>("mesh", [](Request* r) { return r->mutable_mesh(); }),
          OfShape<Request>("shape.sizes", [](Request* r) { return r->mutable_shape(); }),
          OfSpec<Request>("rule_set.value.rules[0].spec",
                          [=](Request* r) { return first_rule(r)->mutable_spec(); }),
          {
              {"name", Reason::kBadField, [](Request* r) { r->clear_name(); }},
              {"name", Reason::kLimitExceeded,
               [](Request* r) { r->set_name(std::string(1025, 'a')); }},
              {"name", Reason::kUnmatchedTensor, [](Request* r) { r->set_name("kernal"); }},
              {"rule_set", Reason::kBadField, [](Request* r) { r->clear_rule_set(); }},
              {"rule_set.value.rules", Reason::kBadPattern,
               [=](Request* r) { first_rule(r)->set_pattern("("); }},
              {"rule_set.value.rules", Reason::kUnsupportedPattern,
               [=](Request* r) { first_rule(r)->set_pattern("\\N{SPACE}"); }},
              {"rule_set.value.rules", Reason::kLimitExceeded,
               [=](Request* r) { first_rule(r)->set_pattern(std::string(4097, 'a')); }},
              {"rule_set.value.rules", Reason::kLimitExceeded,
               [](Request* r) {
                 for (int i = 0; i < 10'000; ++i) {
                   r->mutable_rule_set()->mutable_value()->add_rules();
                 }
               }},
              {"rule_set.value.min_size", Reason::kBadField,
               [](Request* r) { r->mutable_rule_set()->mutable_value()->set_min_size(-1); }},
              {"rule_set", Reason::kDuplicateAxis,
               [=](Request* r) {
                 first_rule(r)->mutable_spec()->add_dimensions()->set_name("tp");
                 r->mutable_shape()->add_sizes(8);
               }},
              {"axes", Reason::kUnknownAxis,
               [](Request* r) { r->mutable_axes()->add_axes()->set_name("__HEADS__"); },
               "did you mean \"__HEAD__\"?"},
          },
      }));
}

TEST_F(ResolveLimitsTest, OfDescribeTiling) {
  using Request = v1::DescribeTilingRequest;
  Request good;
  good.mutable_mesh()->set_name("default");
  good.mutable_spec()->add_dimensions()->set_name("tp");
  good.mutable_shape()->add_sizes(8);
  const auto add_range = [](Request* r, int64_t start, int64_t stop) {
    v1::IndexRange* const range = r->mutable_range()->add_ranges();
    range->set_start(start);
    range->set_stop(stop);
  };
  ExpectRefused(
      &v1::LayoutService::Stub::DescribeTiling, good,
      Joined<Request>({
          OfMesh<Request>("mesh", [](Request* r) { return r->mutable_mesh(); }),
          OfShape<Request>("shape.sizes", [](Request* r) { return r->mutable_shape(); }),
          OfSpec<Request>("spec", [](Request* r) { return r->mutable_spec(); }),
          {
              {"spec", Reason::kNotDivisible,
               [](Request* r) { r->mutable_shape()->set_sizes(0, 7); }},
              {"spec", Reason::kRankMismatch,
               [](Request* r) { r->mutable_shape()->clear_sizes(); }},
              {"spec", Reason::kAxisNotInMesh,
               [](Request* r) { r->mutable_spec()->mutable_dimensions(0)->set_name("no"); }},
              {"spec", Reason::kDuplicateAxis,
               [](Request* r) {
                 r->mutable_spec()->add_dimensions()->set_name("tp");
                 r->mutable_shape()->add_sizes(8);
               }},
              {"devices[1]", Reason::kBadField,
               [](Request* r) { r->add_devices(3), r->add_devices(4); }},
              {"replica_groups_of[0]", Reason::kBadField,
               [](Request* r) { r->add_replica_groups_of(-1); }},
              {"devices", Reason::kLimitExceeded,
               [](Request* r) { r->mutable_devices()->Resize(65'537, 0); }},
              {"cut_points[0]", Reason::kInvalidCutPoints,
               [](Request* r) { r->add_cut_points()->add_starts(9); }},
              {"cut_points[0]", Reason::kInvalidCutPoints,
               [](Request* r) { r->add_cut_points()->set_dimension(1); }},
              {"cut_points", Reason::kBadField,
               [](Request* r) {
                 r->add_cut_points()->add_starts(1);
                 r->set_uneven(v1::UNEVEN_CUTS_CEIL_CHUNKS);
               }},
              {"uneven", Reason::kBadField,
               [](Request* r) { r->set_uneven(v1::UNEVEN_CUTS_BY_MEMORY); }},
              {"uneven", Reason::kBadField,
               [](Request* r) { r->set_uneven(v1::UNEVEN_CUTS_BY_SPEED); }},
              {"weights", Reason::kBadField, [](Request* r) { r->add_weights(1); }},
              {"weights", Reason::kInvalidCutPoints,
               [](Request* r) { r->set_uneven(v1::UNEVEN_CUTS_BY_WEIGHTS); }},
              {"range", Reason::kBadField, [](Request* r) { r->mutable_range(); }},
              {"range", Reason::kBadField, [=](Request* r) { add_range(r, 0, 9); }},
              {"range.ranges[0]", Reason::kBadTile, [=](Request* r) { add_range(r, 3, 2); }},
              {"range.ranges[0]", Reason::kBadTile, [=](Request* r) { add_range(r, -1, 2); }},
              {"range", Reason::kLimitExceeded,
               [](Request* r) {
                 r->mutable_spec()->clear_dimensions();
                 r->mutable_shape()->clear_sizes();
                 r->mutable_range();
                 AddAxis("dp", int64_t{1} << 31, r->mutable_mesh());
               },
               "holders"},
          },
      }));
}

TEST_F(ResolveLimitsTest, OfPlanReshard) {
  using Request = v1::PlanReshardRequest;
  Request good;
  good.mutable_source()->mutable_mesh()->set_name("default");
  good.mutable_destination()->mutable_mesh()->set_name("default");
  good.mutable_shape()->add_sizes(8);
  good.mutable_source()->mutable_spec()->add_dimensions()->set_name("tp");
  good.mutable_destination()->mutable_spec();
  good.set_dtype(v1::DTYPE_F32);
  ExpectRefused(
      &v1::ReshardService::Stub::PlanReshard, good,
      Joined<Request>({
          OfMesh<Request>("source.mesh",
                          [](Request* r) { return r->mutable_source()->mutable_mesh(); }),
          OfMesh<Request>("destination.mesh",
                          [](Request* r) { return r->mutable_destination()->mutable_mesh(); }),
          OfShape<Request>("shape.sizes", [](Request* r) { return r->mutable_shape(); }),
          OfSpec<Request>("source.spec",
                          [](Request* r) { return r->mutable_source()->mutable_spec(); }),
          {
              {"dtype", Reason::kUnknownDtype, [](Request* r) { r->clear_dtype(); }},
              {"dtype", Reason::kUnknownDtype,
               [](Request* r) { r->set_dtype(static_cast<v1::Dtype>(99)); }},
          },
      }));
}

TEST_F(ResolveLimitsTest, OfElementTypes) {
  using Request = compat::v1::PromoteDtypesRequest;
  Request good;
  good.add_dtypes(v1::DTYPE_F32);
  ExpectRefused(&compat::v1::CompatService::Stub::PromoteDtypes, good,
                {
                    {"dtypes[1]", Reason::kUnknownDtype,
                     [](Request* r) { r->add_dtypes(static_cast<v1::Dtype>(99)); }},
                    {"dtype", Reason::kUnknownDtype,
                     [](Request* r) { r->set_dtype(static_cast<v1::Dtype>(99)); }},
                });
}

TEST_F(ResolveLimitsTest, MeshesThatJaxTakesAreTakenUnderExact) {
  v1::CorrectSpecRequest request;
  request.mutable_mesh()->set_name("default");
  request.set_compatibility(v1::COMPATIBILITY_EXACT);
  request.mutable_spec()->add_dimensions()->set_name("tp");
  request.mutable_shape()->add_sizes(8);
  AddAxis("tp", 4, request.mutable_mesh());
  AddAxis("", 2, request.mutable_mesh());
  AddAxis("tp", 2, request.mutable_mesh());
  v1::CorrectSpecResponse response;
  EXPECT_THAT(Ask(&v1::ResolveService::Stub::CorrectSpec, request, &response), IsOk());
  EXPECT_EQ(response.shard_shape(0), 4) << "the last size counts, as in a dict";
}

TEST_F(ResolveLimitsTest, WithoutModeOrWithTwoKindsOfAxesAreAnsweredAsTheCompatibilityHasIt) {
  v1::ResolveSpecRequest request;
  request.mutable_mesh()->set_name("default");
  v1::ResolveSpecResponse response;
  request.add_axes()->set_name("__HEAD__");
  EXPECT_THAT(Ask(&v1::ResolveService::Stub::ResolveSpec, request, &response), IsOk());
  request.set_compatibility(v1::COMPATIBILITY_EXACT);
  absl::Status status = Ask(&v1::ResolveService::Stub::ResolveSpec, request, &response);
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kMissingArgument));
  EXPECT_EQ(FieldOf(status), "mode");

  request.mutable_mode()->set_name("__train__");
  request.set_preset("HiddenStateSharding");
  EXPECT_THAT(Ask(&v1::ResolveService::Stub::ResolveSpec, request, &response), IsOk());
  ASSERT_EQ(response.requested().dimensions_size(), 1) << "the axes win";
  EXPECT_EQ(response.requested().dimensions(0).name(), "tp");
  request.clear_compatibility();
  status = Ask(&v1::ResolveService::Stub::ResolveSpec, request, &response);
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kBadField));
  EXPECT_EQ(FieldOf(status), "axes");
}

TEST_F(ResolveLimitsTest, NamesThatDoNotExistAreNotFoundWhereTheyStand) {
  v1::ResolveSpecRequest request;
  request.mutable_mesh()->set_name("default");
  request.mutable_shape()->add_sizes(8);
  v1::ResolveSpecResponse response;
  request.mutable_mesh()->set_name("defualt");
  absl::Status status = Ask(&v1::ResolveService::Stub::ResolveSpec, request, &response);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_EQ(FieldOf(status), "mesh.name");
  EXPECT_THAT(std::string(status.message()), HasSubstr("default"));
  request.clear_mesh();
  request.mutable_profile()->set_name("none");
  status = Ask(&v1::ResolveService::Stub::ResolveSpec, request, &response);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_EQ(FieldOf(status), "profile.name");
}

// A tree of one tensor, `name` of `shape`, in F32.
v1::TreeTensors Tree(const std::string& name, const std::vector<int64_t>& shape) {
  v1::TreeTensors tensors;
  tensors.set_names(name);
  tensors.add_name_sizes(static_cast<uint32_t>(name.size()));
  tensors.add_ranks(static_cast<uint32_t>(shape.size()));
  tensors.mutable_sizes()->Add(shape.begin(), shape.end());
  tensors.add_dtypes(v1::DTYPE_F32);
  return tensors;
}

struct TreeRefusal {
  std::string field;
  Reason reason;
  std::function<void(v1::TreeTensors*)> spoil;
};

const std::vector<TreeRefusal>& TreeRefusals() {
  using T = v1::TreeTensors;
  static const auto* const refusals = new std::vector<TreeRefusal>{
      {"tensors.name_sizes[0]", Reason::kBadField, [](T* t) { t->set_name_sizes(0, 0); }},
      {"tensors.name_sizes[0]", Reason::kBadField, [](T* t) { t->set_name_sizes(0, 9); }},
      {"tensors.name_sizes[0]", Reason::kLimitExceeded,
       [](T* t) { *t = Tree(std::string(1025, 'a'), {8}); }},
      {"tensors.names", Reason::kBadField, [](T* t) { t->mutable_names()->append("b"); }},
      {"tensors.ranks", Reason::kBadField, [](T* t) { t->add_ranks(0); }},
      {"tensors.ranks[0]", Reason::kBadField,
       [](T* t) { *t = Tree("w", std::vector<int64_t>(17, 1)); }},
      {"tensors.ranks[0]", Reason::kBadField, [](T* t) { t->set_ranks(0, 2); }},
      {"tensors.sizes", Reason::kBadField, [](T* t) { t->add_sizes(1); }},
      {"tensors.sizes", Reason::kInvalidShape, [](T* t) { t->set_sizes(0, -8); }},
      {"tensors.sizes", Reason::kInvalidShape,
       [](T* t) {
         *t = Tree("w", {kHuge, kHuge, kHuge});
       }},
      {"tensors.dtypes[0]", Reason::kUnknownDtype,
       [](T* t) { t->set_dtypes(0, static_cast<v1::Dtype>(99)); }},
      {"tensors.dtypes", Reason::kBadField, [](T* t) { t->add_dtypes(v1::DTYPE_F32); }},
      {"tensors.axes_indexes[0]", Reason::kBadField, [](T* t) { t->add_axes_indexes(1); }},
      {"tensors.spec_indexes[0]", Reason::kBadField, [](T* t) { t->add_spec_indexes(1); }},
      {"tensors.spec_indexes[0]", Reason::kBadField,
       [](T* t) {
         t->add_axes_table();
         t->add_spec_table();
         t->add_axes_indexes(1);
         t->add_spec_indexes(1);
       }},
      {"tensors.axes_table[0].axes[0].kind", Reason::kBadField,
       [](T* t) { t->add_axes_table()->add_axes(); }},
      {"tensors.spec_table[0].dimensions[0].kind", Reason::kBadField,
       [](T* t) { t->add_spec_table()->add_dimensions(); }},
      {"tensors", Reason::kLimitExceeded,
       [](T* t) {
         for (int i = 0; i < 1100; ++i) {
           const std::string name = std::to_string(i) + std::string(1000, 'a');
           t->mutable_names()->append(name);
           t->add_name_sizes(static_cast<uint32_t>(name.size()));
           t->add_ranks(0);
           t->add_dtypes(v1::DTYPE_F32);
         }
       }},
  };
  return *refusals;
}

TEST_F(ResolveLimitsTest, OfTreesInEveryStream) {
  v1::ResolveTreeRequest tree;
  tree.mutable_header()->mutable_mesh()->set_name("default");
  v1::Rule* const rule = tree.mutable_header()->mutable_rule_set()->mutable_value()->add_rules();
  rule->mutable_spec()->add_dimensions()->set_name("tp");
  v1::LintRulesRequest lint;
  *lint.mutable_header()->mutable_rule_set() = tree.header().rule_set();
  v1::DiffLayoutsRequest diff;
  diff.mutable_header()->mutable_a()->mutable_mesh()->set_name("default");
  diff.mutable_header()->mutable_b()->mutable_mesh()->set_name("default");
  *diff.mutable_header()->mutable_a()->mutable_rule_set() = tree.header().rule_set();
  *diff.mutable_header()->mutable_b()->mutable_rule_set() = tree.header().rule_set();
  v1::SearchMeshesRequest search;
  search.mutable_header()->set_devices(4);
  search.mutable_header()->add_axes()->set_name("tp");
  *search.mutable_header()->mutable_rule_set() = tree.header().rule_set();
  v1::AnalyzeLayoutRequest analyze;
  analyze.mutable_header()->mutable_mesh()->set_name("default");
  const auto send = [this](auto method, auto header, const v1::TreeTensors& tensors) {
    auto piece = header;
    *piece.mutable_tensors() = tensors;
    return Send(method, std::vector{header, piece});
  };
  for (const TreeRefusal& refusal : TreeRefusals()) {
    v1::TreeTensors tensors = Tree("w", {8});
    refusal.spoil(&tensors);
    for (const absl::Status& status :
         {send(&v1::LayoutService::Stub::ResolveTree, tree, tensors),
          send(&v1::RuleService::Stub::LintRules, lint, tensors),
          send(&v1::LayoutService::Stub::DiffLayouts, diff, tensors),
          send(&v1::LayoutService::Stub::SearchMeshes, search, tensors),
          send(&v1::LayoutService::Stub::AnalyzeLayout, analyze, tensors)}) {
      EXPECT_THAT(status, StatusIs(kInvalid, refusal.reason)) << refusal.field;
      EXPECT_EQ(FieldOf(status), refusal.field) << status;
    }
  }
}

TEST_F(ResolveLimitsTest, OfTensorsInATree) {
  using Request = v1::ResolveTreeRequest;
  Request header;
  header.mutable_header()->mutable_mesh()->set_name("default");
  v1::Rule* const rule = header.mutable_header()->mutable_rule_set()->mutable_value()->add_rules();
  rule->set_pattern("w");
  rule->mutable_spec()->add_dimensions()->set_name("tp");
  rule->mutable_spec()->add_dimensions()->set_name("tp");
  const auto send = [&](std::vector<v1::TreeTensors> trees) {
    std::vector<Request> messages = {header};
    for (v1::TreeTensors& tree : trees) {
      *messages.emplace_back().mutable_tensors() = std::move(tree);
    }
    return Send(&v1::LayoutService::Stub::ResolveTree, messages);
  };
  v1::TreeTensors unknown = Tree("w", {8});
  unknown.add_axes_table()->add_axes()->set_name("__HEADS__");
  unknown.add_axes_indexes(1);
  struct Case {
    std::vector<v1::TreeTensors> trees;
    Reason reason;
    std::string text;
  };
  for (const Case& c : {Case{{Tree("w", {8}), Tree("w", {8})}, Reason::kBadField, "listed twice"},
                        Case{{Tree("w", {8, 8})}, Reason::kDuplicateAxis, "'tp'"},
                        Case{{Tree("v", {8})}, Reason::kUnmatchedTensor, "tensor 'v'"},
                        Case{{unknown}, Reason::kUnknownAxis, "did you mean \"__HEAD__\"?"}}) {
    const absl::Status status = send(c.trees);
    EXPECT_THAT(status, StatusIs(kInvalid, c.reason)) << c.text;
    EXPECT_EQ(FieldOf(status), "tensors");
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.text));
  }
}

TEST_F(ResolveLimitsTest, OfTreesOfMoreThanAMillionTensors) {
  v1::ResolveTreeRequest header;
  header.mutable_header()->mutable_mesh()->set_name("default");
  header.mutable_header()->mutable_rule_set()->mutable_value()->add_rules();
  std::vector<v1::ResolveTreeRequest> messages = {header};
  for (int begin = 0; begin <= 1'000'000; begin += 50'000) {
    v1::TreeTensors* const tensors = messages.emplace_back().mutable_tensors();
    for (int i = begin; i < std::min(begin + 50'000, 1'000'001); ++i) {
      const std::string name = std::to_string(i);
      tensors->mutable_names()->append(name);
      tensors->add_name_sizes(static_cast<uint32_t>(name.size()));
      tensors->add_ranks(0);
    }
  }
  EXPECT_THAT(Send(&v1::LayoutService::Stub::ResolveTree, messages),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  messages.pop_back();
  EXPECT_THAT(Send(&v1::LayoutService::Stub::ResolveTree, messages), IsOk());
}

}  // namespace
}  // namespace shardmesh::server
