// Encodes Python values, and decodes them within limits.
#include "rpc/codec/python_codec.h"

#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "rpc/codec/status.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

void Encode(const PythonValue& from, compat::v1::PythonValue* to) {
  switch (from.kind()) {
    case PythonValue::Kind::kNone:
      to->set_none(true);
      return;
    case PythonValue::Kind::kBool:
      to->set_boolean(from.text() == "True");
      return;
    case PythonValue::Kind::kInt:
      to->set_integer(from.text());
      return;
    case PythonValue::Kind::kFloat: {
      // Exact: Python prints a float such that parsing the text gives the same number.
      double number = 0;
      (void)absl::SimpleAtod(from.text(), &number);
      to->set_number(number);
      return;
    }
    case PythonValue::Kind::kString:
      to->set_text(from.text());
      return;
    case PythonValue::Kind::kList:
      rpc::Encode(from.entries(), to->mutable_list());
      return;
    case PythonValue::Kind::kTuple:
      rpc::Encode(from.entries(), to->mutable_tuple());
      return;
    case PythonValue::Kind::kDict: {
      compat::v1::PythonDict* const dict = to->mutable_dict();
      for (size_t i = 0; i < from.entries().size(); i += 2) {
        compat::v1::PythonEntry* const entry = dict->add_entries();
        Encode(from.entries()[i], entry->mutable_key());
        Encode(from.entries()[i + 1], entry->mutable_value());
      }
      return;
    }
  }
}

// The values and bytes that a decoder may still accept.
struct Budget {
  int64_t values = kMaxPythonValues;
  int64_t bytes = kMaxHashedBytes;
};

absl::Status Take(int64_t count, int64_t limit, std::string_view what, int64_t& left) {
  left -= count;
  if (left >= 0) {
    return absl::OkStatus();
  }
  return InvalidArgument(Reason::kLimitExceeded,
                         StrCat("there are more than ", limit, " ", what, " in all"),
                         {{fact::kLimit, limit}});
}

absl::StatusOr<PythonValue> DecodeValue(const compat::v1::PythonValue& from, int depth,
                                        Budget& budget);

absl::StatusOr<std::vector<PythonValue>> DecodeValues(const compat::v1::PythonValues& from,
                                                      int depth, Budget& budget) {
  SHARDMESH_RETURN_IF_ERROR(Take(from.values_size(), kMaxPythonValues, "values", budget.values));
  std::vector<PythonValue> values;
  values.reserve(static_cast<size_t>(from.values_size()));
  for (int i = 0; i < from.values_size(); ++i) {
    auto value = DecodeValue(from.values(i), depth, budget);
    if (!value.ok()) {
      return WithField(std::move(value).status(), "values", static_cast<size_t>(i));
    }
    values.push_back(*std::move(value));
  }
  return values;
}

absl::StatusOr<PythonValue> DecodeDict(const compat::v1::PythonDict& from, int depth,
                                       Budget& budget) {
  SHARDMESH_RETURN_IF_ERROR(
      Take(2 * int64_t{from.entries_size()}, kMaxPythonValues, "values", budget.values));
  std::vector<PythonValue::DictItem> items;
  items.reserve(static_cast<size_t>(from.entries_size()));
  for (int i = 0; i < from.entries_size(); ++i) {
    auto key = DecodeValue(from.entries(i).key(), depth, budget);
    if (!key.ok()) {
      return WithField(WithField(std::move(key).status(), "key"), "entries",
                       static_cast<size_t>(i));
    }
    auto value = DecodeValue(from.entries(i).value(), depth, budget);
    if (!value.ok()) {
      return WithField(WithField(std::move(value).status(), "value"), "entries",
                       static_cast<size_t>(i));
    }
    items.emplace_back(*std::move(key), *std::move(value));
  }
  return PythonValue::Dict(std::move(items));
}

absl::Status CheckDepth(int depth) {
  if (depth < kMaxPythonDepth) {
    return absl::OkStatus();
  }
  return InvalidArgument(Reason::kLimitExceeded,
                         StrCat("lists, tuples and dicts nest deeper than ", kMaxPythonDepth),
                         {{fact::kLimit, kMaxPythonDepth}});
}

absl::StatusOr<PythonValue> DecodeValue(const compat::v1::PythonValue& from, int depth,
                                        Budget& budget) {
  switch (from.kind_case()) {
    case compat::v1::PythonValue::kNone:
      return PythonValue();
    case compat::v1::PythonValue::kBoolean:
      return PythonValue::Bool(from.boolean());
    case compat::v1::PythonValue::kInteger: {
      const auto size = static_cast<int64_t>(from.integer().size());
      absl::Status status = Take(size, kMaxHashedBytes, "bytes of text", budget.bytes);
      if (!status.ok()) {
        return WithField(std::move(status), "integer");
      }
      auto value = PythonValue::BigInt(from.integer());
      return value.ok() ? std::move(value) : WithField(std::move(value).status(), "integer");
    }
    case compat::v1::PythonValue::kNumber:
      return PythonValue::Float(from.number());
    case compat::v1::PythonValue::kText: {
      const auto size = static_cast<int64_t>(from.text().size());
      absl::Status status = Take(size, kMaxHashedBytes, "bytes of text", budget.bytes);
      if (!status.ok()) {
        return WithField(std::move(status), "text");
      }
      return PythonValue::String(from.text());
    }
    case compat::v1::PythonValue::kList:
    case compat::v1::PythonValue::kTuple: {
      const bool is_list = from.kind_case() == compat::v1::PythonValue::kList;
      const std::string_view field = is_list ? "list" : "tuple";
      if (absl::Status status = CheckDepth(depth); !status.ok()) {
        return WithField(std::move(status), field);
      }
      auto values = DecodeValues(is_list ? from.list() : from.tuple(), depth + 1, budget);
      if (!values.ok()) {
        return WithField(std::move(values).status(), field);
      }
      return is_list ? PythonValue::List(*std::move(values))
                     : PythonValue::Tuple(*std::move(values));
    }
    case compat::v1::PythonValue::kDict: {
      if (absl::Status status = CheckDepth(depth); !status.ok()) {
        return WithField(std::move(status), "dict");
      }
      auto dict = DecodeDict(from.dict(), depth + 1, budget);
      return dict.ok() ? std::move(dict) : WithField(std::move(dict).status(), "dict");
    }
    case compat::v1::PythonValue::KIND_NOT_SET:
      break;
  }
  return BadField("kind", "a value is empty; set none for None");
}

}  // namespace

void Encode(absl::Span<const PythonValue> from, compat::v1::PythonValues* to) {
  for (const PythonValue& value : from) {
    Encode(value, to->add_values());
  }
}

absl::StatusOr<std::vector<PythonValue>> Decode(const compat::v1::PythonValues& from) {
  Budget budget;
  return DecodeValues(from, /*depth=*/0, budget);
}

}  // namespace shardmesh::rpc
