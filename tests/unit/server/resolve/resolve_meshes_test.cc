// Questions about meshes and their axes, as a coordinator answers and refuses them.
#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "status/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/resolve_service_fixture.h"

namespace shardmesh::server {
namespace {

using test::IsOk;
using test::StatusIs;
using ::testing::ElementsAre;

using test::kInvalid;

class ResolveMeshesTest : public ResolveServiceTest {
 protected:
  absl::Status Describe() {
    return Ask(&v1::MeshService::Stub::DescribeMesh, describe_, &described_);
  }
  // Of the mesh given before.
  absl::Status Query(compat::v1::QueryMeshRequest::Question question,
                     const std::vector<std::string>& axes,
                     const std::vector<int64_t>& devices = {}) {
    query_.set_question(question);
    query_.mutable_axes()->Assign(axes.begin(), axes.end());
    query_.mutable_devices()->Assign(devices.begin(), devices.end());
    return Ask(&compat::v1::CompatService::Stub::QueryMesh, query_, &answer_);
  }
  static void SetAxes(const std::vector<std::pair<std::string, int64_t>>& axes, v1::Mesh* to) {
    to->Clear();
    for (const auto& [name, size] : axes) {
      v1::MeshAxis* const axis = to->add_axes();
      axis->set_name(name);
      axis->set_size(size);
    }
  }
  void SetQueried(const std::vector<std::pair<std::string, int64_t>>& axes) {
    SetAxes(axes, query_.mutable_mesh()->mutable_value());
  }

  v1::DescribeMeshRequest describe_;
  v1::DescribeMeshResponse described_;
  compat::v1::QueryMeshRequest query_;
  compat::v1::QueryMeshResponse answer_;
};

TEST_F(ResolveMeshesTest, ReadsTextAndInfersASize) {
  describe_.set_text("dp=-1,tp=4:explicit");
  describe_.set_device_count(32);
  ASSERT_THAT(Describe(), IsOk());
  EXPECT_EQ(described_.text(), "dp=8,tp=4:explicit");
  EXPECT_EQ(described_.size(), 32);
  EXPECT_EQ(described_.mesh().axes(1).type(), v1::AXIS_TYPE_EXPLICIT);
}

TEST_F(ResolveMeshesTest, DescribesTheMeshOfTheCatalog) {
  describe_.mutable_mesh()->set_name("default");
  ASSERT_THAT(Describe(), IsOk());
  EXPECT_EQ(described_.text(), "fsdp=2,tp=2");
  describe_.set_device_count(5);
  const absl::Status status = Describe();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kMeshSizeMismatch));
  EXPECT_EQ(FieldOf(status), "device_count");
}

TEST_F(ResolveMeshesTest, TakesTheMeshesOfJaxWhereTheyAreAskedFor) {
  v1::Mesh* const mesh = describe_.mutable_mesh()->mutable_value();
  SetAxes({{"a", 2}, {"", 3}, {"a", 4}}, mesh);
  EXPECT_EQ(FieldOf(Describe()), "mesh.value.axes");
  describe_.set_compatibility(v1::COMPATIBILITY_EXACT);
  ASSERT_THAT(Describe(), IsOk());
  EXPECT_EQ(described_.size(), 12);
  ASSERT_EQ(described_.mesh().axes_size(), 2);

  SetAxes({{"a", 0}, {"b", int64_t{1} << 62}}, mesh);
  ASSERT_THAT(Describe(), IsOk());
  EXPECT_EQ(described_.size(), 0);
  describe_.set_required(true);
  const absl::Status status = Describe();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoMesh));
  EXPECT_EQ(PythonTypeOf(status), "AssertionError");
}

TEST_F(ResolveMeshesTest, RefusesMalformedMeshesByTheirField) {
  EXPECT_EQ(FieldOf(Describe()), "source");
  describe_.set_text("dp=2,tp");
  EXPECT_EQ(FieldOf(Describe()), "text");
  describe_.set_text(std::string(8193, ' '));
  EXPECT_THAT(Describe(), StatusIs(kInvalid, Reason::kLimitExceeded));
  describe_.set_text("dp=99999999999,tp=99999999999");
  EXPECT_THAT(Describe(), StatusIs(kInvalid, Reason::kLimitExceeded));
  describe_.mutable_mesh()->set_name("nowhere");
  EXPECT_THAT(Describe(), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  describe_.mutable_mesh()->mutable_value()->add_device_ids(3);
  EXPECT_EQ(FieldOf(Describe()), "mesh.value.axes");
}

TEST_F(ResolveMeshesTest, AnswersAboutAxes) {
  SetQueried({{"dp", 2}, {"tp", 4}});
  ASSERT_THAT(Query(compat::v1::QueryMeshRequest::QUESTION_PRESENT, {"tp", "pp"}), IsOk());
  EXPECT_FALSE(answer_.present());
  EXPECT_THAT(answer_.absent_axes(), ElementsAre("pp"));
  ASSERT_THAT(Query(compat::v1::QueryMeshRequest::QUESTION_SIZE, {"tp", "tp"}), IsOk());
  EXPECT_EQ(answer_.size(), 16);
  ASSERT_THAT(Query(compat::v1::QueryMeshRequest::QUESTION_INDEX, {"tp", "dp"}), IsOk());
  EXPECT_THAT(answer_.indexes(), ElementsAre(0, 2, 4, 6, 1, 3, 5, 7));
  ASSERT_THAT(Query(compat::v1::QueryMeshRequest::QUESTION_INDEX, {"tp"}, {6, 1}), IsOk());
  EXPECT_THAT(answer_.indexes(), ElementsAre(2, 1));
  ASSERT_THAT(Query(compat::v1::QueryMeshRequest::QUESTION_GROUPS, {"dp"}), IsOk());
  ASSERT_EQ(answer_.groups_size(), 4);
  EXPECT_THAT(answer_.groups(1).devices(), ElementsAre(1, 5));
  ASSERT_THAT(Query(compat::v1::QueryMeshRequest::QUESTION_GROUPS, {"tp"}, {5}), IsOk());
  ASSERT_EQ(answer_.groups_size(), 1);
  EXPECT_THAT(answer_.groups(0).devices(), ElementsAre(4, 5, 6, 7));
  ASSERT_THAT(Query(compat::v1::QueryMeshRequest::QUESTION_SUBMESH, {"tp"}, {5}), IsOk());
  EXPECT_THAT(answer_.submesh().device_ids(), ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(answer_.submesh().axes(0).size(), 4);
}

TEST_F(ResolveMeshesTest, TellsAnAbsentAxisInTheClassOfTheOriginal) {
  query_.mutable_mesh()->set_name("default");
  absl::Status status = Query(compat::v1::QueryMeshRequest::QUESTION_SIZE, {"pp"});
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kAxisNotInMesh));
  EXPECT_EQ(PythonTypeOf(status), "KeyError");
  EXPECT_EQ(FieldOf(status), "axes");
  status = Query(compat::v1::QueryMeshRequest::QUESTION_MAPPED_SIZE, {"pp"});
  EXPECT_EQ(PythonTypeOf(status), "NameError");
  status = Query(compat::v1::QueryMeshRequest::QUESTION_INDEX, {"pp"});
  EXPECT_EQ(PythonTypeOf(status), "NameError");
}

TEST_F(ResolveMeshesTest, RefusesWhatIsNoQuestion) {
  query_.mutable_mesh()->set_name("default");
  EXPECT_EQ(FieldOf(Query(compat::v1::QueryMeshRequest::QUESTION_UNSPECIFIED, {"tp"})), "question");
  EXPECT_EQ(FieldOf(Query(static_cast<compat::v1::QueryMeshRequest::Question>(77), {"tp"})),
            "question");
  EXPECT_EQ(FieldOf(Query(compat::v1::QueryMeshRequest::QUESTION_SIZE, {"tp"}, {0})), "devices");
  EXPECT_EQ(FieldOf(Query(compat::v1::QueryMeshRequest::QUESTION_INDEX, {"tp"}, {0, 4})),
            "devices[1]");
  EXPECT_EQ(FieldOf(Query(compat::v1::QueryMeshRequest::QUESTION_INDEX, {"tp"}, {-1})),
            "devices[0]");
  EXPECT_EQ(FieldOf(Query(compat::v1::QueryMeshRequest::QUESTION_SUBMESH, {"tp"}, {0, 1})),
            "devices");
  EXPECT_EQ(FieldOf(Query(compat::v1::QueryMeshRequest::QUESTION_SUBMESH, {})), "axes");
  EXPECT_THAT(Query(compat::v1::QueryMeshRequest::QUESTION_GROUPS, {"tp", "tp"}),
              StatusIs(kInvalid, Reason::kDuplicateAxis));
  EXPECT_THAT(
      Query(compat::v1::QueryMeshRequest::QUESTION_SIZE, std::vector<std::string>(65, "tp")),
      StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_EQ(
      FieldOf(Query(compat::v1::QueryMeshRequest::QUESTION_SIZE, {"tp", std::string(256, 'x')})),
      "axes[1]");
  query_.mutable_mesh()->mutable_value();
  EXPECT_THAT(Query(compat::v1::QueryMeshRequest::QUESTION_SUBMESH, {"tp"}),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoMesh));
}

TEST_F(ResolveMeshesTest, ListsNoMoreThanTheLimit) {
  SetQueried({{"dp", 1 << 15}, {"tp", 1 << 15}});
  for (const auto question : {compat::v1::QueryMeshRequest::QUESTION_INDEX,
                              compat::v1::QueryMeshRequest::QUESTION_GROUPS}) {
    EXPECT_THAT(Query(question, {"tp"}), StatusIs(kInvalid, Reason::kLimitExceeded));
  }
  EXPECT_THAT(Query(compat::v1::QueryMeshRequest::QUESTION_SUBMESH, {"dp", "tp"}),
              StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_THAT(Query(compat::v1::QueryMeshRequest::QUESTION_GROUPS, {"tp"}, {0, 1, 2}),
              StatusIs(kInvalid, Reason::kLimitExceeded));
  ASSERT_THAT(Query(compat::v1::QueryMeshRequest::QUESTION_GROUPS, {"tp"}, {0, 1}), IsOk());
  EXPECT_EQ(answer_.groups(1).devices_size(), 1 << 15);
  ASSERT_THAT(Query(compat::v1::QueryMeshRequest::QUESTION_SIZE, {"dp", "tp", "dp", "tp"}), IsOk());
  EXPECT_EQ(answer_.size(), int64_t{1} << 60);
  EXPECT_THAT(Query(compat::v1::QueryMeshRequest::QUESTION_SIZE, {"dp", "tp", "dp", "tp", "tp"}),
              StatusIs(kInvalid, Reason::kLimitExceeded));
}

TEST_F(ResolveMeshesTest, ListsTheAxesOfSpecs) {
  compat::v1::ListSpecAxesRequest request;
  compat::v1::ListSpecAxesResponse response;
  v1::PartitionSpec* spec = request.add_specs();
  spec->add_dimensions()->set_name("tp");
  spec->add_dimensions()->set_constant(v1::AXIS_CONSTANT_NONE);
  spec->add_dimensions()->mutable_tuple()->add_values()->set_name("dp");
  request.add_specs()->add_dimensions()->set_name("tp");
  ASSERT_THAT(Ask(&compat::v1::CompatService::Stub::ListSpecAxes, request, &response), IsOk());
  EXPECT_THAT(response.axes(), ElementsAre("dp", "tp"));

  request.add_specs()->add_dimensions();
  EXPECT_EQ(FieldOf(Ask(&compat::v1::CompatService::Stub::ListSpecAxes, request, &response)),
            "specs[2].dimensions[0].kind");
  request.clear_specs();
  for (int i = 0; i < 10'001; ++i) {
    request.add_specs();
  }
  EXPECT_THAT(Ask(&compat::v1::CompatService::Stub::ListSpecAxes, request, &response),
              StatusIs(kInvalid, Reason::kLimitExceeded));
  request.clear_specs();
  for (int i = 0; i < 257; ++i) {
    v1::AxisValueList* const tuple = request.add_specs()->add_dimensions()->mutable_tuple();
    for (int axis = 0; axis < 256; ++axis) {
      tuple->add_values()->set_name("x");
    }
  }
  EXPECT_THAT(Ask(&compat::v1::CompatService::Stub::ListSpecAxes, request, &response),
              StatusIs(kInvalid, Reason::kLimitExceeded));
}

// Both requests are the first of their files: answers are remembered by the request's type.
TEST_F(ResolveMeshesTest, EqualBytesOfTwoCallsAreTwoQuestions) {
  v1::DescribeMeshRequest describe;
  v1::MeshAxis* const axis = describe.mutable_mesh()->mutable_value()->add_axes();
  axis->set_name("tp");
  axis->set_size(2);
  v1::ResolveSpecRequest resolve;
  ASSERT_TRUE(resolve.ParseFromString(describe.SerializeAsString()));
  ASSERT_EQ(resolve.axes_size(), 1);
  for (int i = 0; i < 2; ++i) {
    v1::DescribeMeshResponse described;
    EXPECT_THAT(Ask(&v1::MeshService::Stub::DescribeMesh, describe, &described), IsOk());
    v1::ResolveSpecResponse resolved;
    EXPECT_FALSE(Ask(&v1::ResolveService::Stub::ResolveSpec, resolve, &resolved).ok())
        << "no axis has such a name";
  }
}

}  // namespace
}  // namespace shardmesh::server
