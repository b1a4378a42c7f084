// Reader and comparer of golden files.
#include "tests/testing/golden.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <utility>

#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

namespace shardmesh::test {
namespace {

// Differences beyond these are counted and not printed.
constexpr int64_t kMaxPrinted = 20;

std::string PathOf(std::string_view file) {
  return StrCat(SHARDMESH_SOURCE_DIR, "/tests/data/goldens/", file);
}

std::ifstream OpenOrDie(std::string_view file) {
  std::ifstream in(PathOf(file));
  if (!in) {
    std::cerr << "cannot read the golden file " << PathOf(file) << std::endl;
    std::abort();
  }
  return in;
}

// Empty if `got` is what `golden` expects, else both in words.
std::string Difference(const Golden& golden, const absl::StatusOr<Json>& got) {
  const std::string wanted =
      golden.expect.has_value() ? golden.expect->dump() : StrCat("error ", golden.py_type);
  const std::string given =
      got.ok() ? got->dump()
               : StrCat("error ", PythonTypeOf(got.status()), ": ", got.status().ToString());
  const bool same = golden.expect.has_value()
                        ? got.ok() && *got == *golden.expect
                        : !got.ok() && PythonTypeOf(got.status()) == golden.py_type;
  return same ? "" : StrCat("\n  expected ", wanted, "\n  got      ", given);
}

}  // namespace

std::vector<Golden> LoadGoldens(std::string_view file) {
  std::ifstream in = OpenOrDie(file);
  std::vector<Golden> goldens;
  std::string line;
  while (std::getline(in, line)) {
    const Json parsed = Json::parse(line);
    Golden golden{parsed.at("id"), parsed.at("fn"), parsed.at("input"), std::nullopt, ""};
    if (parsed.contains("error")) {
      golden.py_type = parsed.at("error").at("py_type");
    } else {
      golden.expect = parsed.at("expect");
    }
    goldens.push_back(std::move(golden));
  }
  return goldens;
}

Json LoadGoldenDocument(std::string_view file) {
  std::ifstream in = OpenOrDie(file);
  return Json::parse(in);
}

void ExpectGoldens(std::string_view file, std::string_view fn, int64_t count,
                   const Answer& answer) {
  int64_t asked = 0;
  int64_t different = 0;
  for (const Golden& golden : LoadGoldens(file)) {
    if (golden.fn != fn) {
      continue;
    }
    ++asked;
    const std::string difference = Difference(golden, answer(golden.input));
    if (!difference.empty() && ++different <= kMaxPrinted) {
      ADD_FAILURE() << golden.id << " " << golden.input << difference;
    }
  }
  EXPECT_EQ(different, 0) << "answers about " << fn << " differ, of " << asked;
  EXPECT_EQ(asked, count) << "questions about " << fn << " in " << file;
}

AxisValue DecodeAxisValue(const Json& value, ArrayMeans array_means) {
  const auto decode_entries = [array_means](const Json& entries) {
    std::vector<AxisValue> decoded;
    for (const Json& entry : entries) {
      decoded.push_back(DecodeAxisValue(entry, array_means));
    }
    return decoded;
  };
  if (value.is_null()) {
    return AxisValue::None();
  }
  if (value == "__NOT_GIVEN__") {
    return AxisValue::NotGiven();
  }
  if (value == "__UNCONSTRAINED__") {
    return AxisValue::Unconstrained();
  }
  if (value.is_string()) {
    return AxisValue::Name(value);
  }
  if (value.is_object()) {
    return value.contains("__tuple__") ? AxisValue::Tuple(decode_entries(value.at("__tuple__")))
                                       : AxisValue::List(decode_entries(value.at("__list__")));
  }
  return array_means == ArrayMeans::kTuple ? AxisValue::Tuple(decode_entries(value))
                                           : AxisValue::List(decode_entries(value));
}

absl::StatusOr<PartitionSpec> DecodeSpec(const Json& value) {
  return PartitionSpec::Create(DecodeAxisValue(value).entries());
}

absl::StatusOr<Mesh> DecodeMesh(const Json& value) {
  if (value.is_null()) {
    return Mesh();
  }
  std::vector<MeshAxis> axes;
  for (const Json& axis : value.at("axes")) {
    axes.push_back({axis.at(0), axis.at(1)});
  }
  if (value.contains("axis_types")) {
    for (size_t i = 0; i < axes.size(); ++i) {
      axes[i].type = AxisTypeFromName(value.at("axis_types").at(i).get<std::string>()).value();
    }
  }
  MeshOptions options;
  options.allow_degenerate = true;
  if (value.contains("device_ids")) {
    options.global_ids = value.at("device_ids").get<std::vector<int64_t>>();
  }
  return Mesh::Create(std::move(axes), std::move(options));
}

Shape DecodeShape(const Json& value) {
  Shape shape;
  for (const Json& extent : value) {
    shape.push_back(extent);
  }
  return shape;
}

Json EncodeAxisValue(const AxisValue& value) {
  switch (value.kind()) {
    case AxisValue::Kind::kNotGiven:
      return "__NOT_GIVEN__";
    case AxisValue::Kind::kUnconstrained:
      return "__UNCONSTRAINED__";
    case AxisValue::Kind::kNone:
      return nullptr;
    case AxisValue::Kind::kName:
      return value.name();
    case AxisValue::Kind::kTuple:
    case AxisValue::Kind::kList:
      break;
  }
  Json entries = Json::array();
  for (const AxisValue& entry : value.entries()) {
    entries.push_back(EncodeAxisValue(entry));
  }
  return entries;
}

Json EncodeSpec(const PartitionSpec& spec) {
  Json entries = Json::array();
  for (const SpecEntry& entry : spec.entries()) {
    entries.push_back(EncodeAxisValue(entry.ToAxisValue()));
  }
  return entries;
}

}  // namespace shardmesh::test
