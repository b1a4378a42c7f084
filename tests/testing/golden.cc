// Reader and comparer of golden files.
#include "tests/testing/golden.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <utility>

#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/testing/exact_json.h"

namespace shardmesh::test {
namespace {

// Differences beyond these are counted and not printed.
constexpr int64_t kMaxPrinted = 20;

// The members of questions within which Python prints objects, in their order.
constexpr std::string_view kOrderedMembers[] = {"attributes", "text"};

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

std::string TextOf(const Json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace

void ThrowWrongForm(std::string_view message) {
  constexpr int kTypeMustBe = 302;  // the number that the library gives to a value of another type
  throw Json::type_error::create(kTypeMustBe, std::string(message), nullptr);
}

Golden ParseGolden(std::string_view line) {
  const Json parsed = ParseExactJson(line, kOrderedMembers, kMaxGoldenDepth);
  Golden golden{parsed.at("id"), parsed.at("fn"), parsed.at("input"), std::nullopt, ""};
  if (parsed.contains("error") == parsed.contains("expect")) {
    ThrowWrongForm("a case has one of \"expect\" and \"error\"");
  }
  if (parsed.contains("error")) {
    golden.py_type = parsed.at("error").at("py_type");
  } else {
    golden.expect = parsed.at("expect");
  }
  return golden;
}

bool Agrees(const Golden& golden, const absl::StatusOr<Json>& got) {
  return golden.expect.has_value() ? got.ok() && *got == *golden.expect
                                   : !got.ok() && PythonTypeOf(got.status()) == golden.py_type;
}

std::string ExpectedText(const Golden& golden) {
  return golden.expect.has_value() ? TextOf(*golden.expect) : StrCat("error ", golden.py_type);
}

std::string AnswerText(const absl::StatusOr<Json>& got) {
  return got.ok() ? TextOf(*got)
                  : StrCat("error ", PythonTypeOf(got.status()), ": ", got.status().ToString());
}

std::vector<Golden> LoadGoldens(std::string_view file) {
  std::ifstream in = OpenOrDie(file);
  std::vector<Golden> goldens;
  std::string line;
  while (std::getline(in, line)) {
    goldens.push_back(ParseGolden(line));
  }
  return goldens;
}

Json LoadGoldenDocument(std::string_view file) {
  std::ifstream in = OpenOrDie(file);
  return Json::parse(in);
}

void ExpectGoldens(std::string_view file, std::string_view fn, int64_t count, const Answer& answer,
                   int64_t stride) {
  int64_t found = 0;
  int64_t different = 0;
  for (const Golden& golden : LoadGoldens(file)) {
    if (golden.fn != fn) {
      continue;
    }
    if (found++ % stride != 0) continue;
    const absl::StatusOr<Json> got = answer(golden.input);
    if (!Agrees(golden, got) && ++different <= kMaxPrinted) {
      ADD_FAILURE() << golden.id << " " << golden.input << "\n  expected " << ExpectedText(golden)
                    << "\n  got      " << AnswerText(got);
    }
  }
  EXPECT_EQ(different, 0) << "answers about " << fn << " differ, of " << found;
  EXPECT_EQ(found, count) << "questions about " << fn << " in " << file;
}

int64_t DecodeInteger(const Json& value) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX})) {
    ThrowWrongForm(StrCat("a whole number of 64 bits is due, not ", TextOf(value)));
  }
  return value.get<int64_t>();
}

AxisValue DecodeAxisValue(const Json& value, ArrayMeans array_means) {
  const auto decode_entries = [array_means](const Json& entries) {
    // Iterating over a number would give the number itself, for ever.
    if (!entries.is_array()) {
      ThrowWrongForm(StrCat("an axis value is null, a name or an array, not ", TextOf(entries)));
    }
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
  const AxisValue entries = DecodeAxisValue(value);
  if (!entries.is_tuple() && !entries.is_list()) {
    ThrowWrongForm(StrCat("a spec is an array, not ", TextOf(value)));
  }
  return PartitionSpec::Create(entries.entries());
}

absl::StatusOr<Mesh> DecodeMesh(const Json& value) {
  if (value.is_null()) {
    return Mesh();
  }
  std::vector<MeshAxis> axes;
  for (const Json& axis : value.at("axes")) {
    axes.push_back({axis.at(0), DecodeInteger(axis.at(1))});
  }
  if (value.contains("axis_types")) {
    for (size_t i = 0; i < axes.size(); ++i) {
      const auto type = AxisTypeFromName(value.at("axis_types").at(i).get<std::string>());
      if (!type.has_value()) ThrowWrongForm("a type of mesh axes that JAX does not have");
      axes[i].type = *type;
    }
  }
  MeshOptions options;
  options.allow_degenerate = true;
  if (value.contains("device_ids")) {
    for (const Json& id : value.at("device_ids")) {
      options.global_ids.push_back(DecodeInteger(id));
    }
  }
  return Mesh::Create(std::move(axes), std::move(options));
}

Shape DecodeShape(const Json& value) {
  Shape shape;
  for (const Json& extent : value) {
    shape.push_back(DecodeInteger(extent));
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
