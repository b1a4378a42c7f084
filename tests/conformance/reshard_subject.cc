// From the cases' JSON to questions about reshards, and back.
#include "tests/conformance/reshard_subject.h"

#include <map>
#include <string>
#include <utility>

#include "status/status_macros.h"
#include "tests/testing/golden.h"

namespace shardmesh::conformance {
namespace {

using ::shardmesh::test::DecodeMesh;
using ::shardmesh::test::DecodeShape;
using ::shardmesh::test::DecodeSpec;

// The cases name element types as numpy does.
int64_t BitsOf(const std::string& dtype) {
  static const auto* const bits = new std::map<std::string, int64_t>{
      {"bool", 8},          {"int8", 8},       {"uint8", 8},    {"int16", 16},  {"uint16", 16},
      {"int32", 32},        {"uint32", 32},    {"int64", 64},   {"uint64", 64}, {"float16", 16},
      {"bfloat16", 16},     {"float32", 32},   {"float64", 64}, {"int4", 4},    {"uint4", 4},
      {"float8_e4m3fn", 8}, {"float8_e5m2", 8}};
  const auto it = bits->find(dtype);
  // As for any input of another form.
  return it != bits->end() ? it->second : Json(dtype).get<int64_t>();
}

Json EncodeTile(const Tile& tile) {
  Json ranges = Json::array();
  for (const IndexRange& range : tile.ranges) {
    ranges.push_back({range.start, range.stop});
  }
  return ranges;
}

}  // namespace

void AddReshardQuestions(std::shared_ptr<const ReshardSubject> subject, Questions* questions) {
  (*questions)["reshard"] = [subject =
                                 std::move(subject)](const Json& input) -> absl::StatusOr<Json> {
    ReshardQuestion question;
    SHARDMESH_ASSIGN_OR_RETURN(question.from_mesh, DecodeMesh(input.at("mesh")));
    question.to_mesh = question.from_mesh;
    if (input.contains("to_mesh")) {
      SHARDMESH_ASSIGN_OR_RETURN(question.to_mesh, DecodeMesh(input.at("to_mesh")));
    }
    SHARDMESH_ASSIGN_OR_RETURN(question.from, DecodeSpec(input.at("from")));
    SHARDMESH_ASSIGN_OR_RETURN(question.to, DecodeSpec(input.at("to")));
    question.shape = DecodeShape(input.at("shape"));
    question.bits_per_element = BitsOf(input.at("dtype"));
    SHARDMESH_ASSIGN_OR_RETURN(const ReshardAnswer answer, subject->Reshard(question));
    Json devices = Json::array();
    for (size_t position = 0; position < answer.devices.size(); ++position) {
      const DeviceReshard& device = answer.devices[position];
      devices.push_back({{"device", question.to_mesh.GlobalIdOf(static_cast<DeviceId>(position))},
                         {"src", device.src.has_value() ? EncodeTile(*device.src) : Json(nullptr)},
                         {"dst", EncodeTile(device.dst)},
                         {"kept", device.kept},
                         {"need", device.need}});
    }
    return Json{{"devices", std::move(devices)},         {"total_need", answer.need},
                {"total_need_bytes", answer.need_bytes}, {"max_need", answer.max_need},
                {"global_elements", answer.elements},    {"noop", answer.noop}};
  };
}

}  // namespace shardmesh::conformance
