// Commands profile show, hash: resolved profiles, and hashes of texts and of objects.
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/table.h"
#include "sharding/python_value.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

Json ProfileJson(const ProfileAnswer& answer) {
  Json fields = Json::object();
  for (size_t i = 0; i < AxisFieldNames().size(); ++i) {
    fields[std::string(AxisFieldNames()[i])] =
        answer.profile.field(static_cast<AxisField>(i)).ToString();
  }
  Json names = Json::array();
  for (const ResolvedName& name : answer.semantic_names) {
    names.push_back(
        {{"name", name.name},
         {"field",
          name.field.has_value() ? Json(std::string(AxisFieldName(*name.field))) : Json(nullptr)},
         {"generation_field", name.generation_field.has_value()
                                  ? Json(std::string(AxisFieldName(*name.generation_field)))
                                  : Json(nullptr)},
         {"value", name.value.ToString()},
         {"generation_value", name.generation_value.ToString()}});
  }
  return {{"fields", std::move(fields)},
          {"semantic_names", std::move(names)},
          {"text", answer.text},
          {"fingerprint", answer.fingerprint},
          {"revision", answer.revision}};
}

void PrintProfile(const ProfileAnswer& answer) {
  Table fields({{"field"}, {"mesh axes"}});
  for (size_t i = 0; i < AxisFieldNames().size(); ++i) {
    fields.AddRow({std::string(AxisFieldNames()[i]),
                   answer.profile.field(static_cast<AxisField>(i)).ToString()});
  }
  fields.Print();
  std::cout << "\n";
  Table names({{"axis"}, {"reads"}, {"mesh axes"}, {"in generation"}});
  for (const ResolvedName& name : answer.semantic_names) {
    names.AddRow({name.name, name.field.has_value() ? std::string(AxisFieldName(*name.field)) : "-",
                  name.value.ToString(), name.generation_value.ToString()});
  }
  names.Print();
  std::cout << "\nfingerprint  " << answer.fingerprint << "\n";
}

absl::StatusOr<ProfileQuestion> QuestionOf(const std::string& profile_text) {
  SHARDMESH_ASSIGN_OR_RETURN(ProfileSelector profile, SelectProfile(profile_text));
  ProfileQuestion question;
  std::visit([&](auto& selected) { question.profile = std::move(selected); }, profile);
  return question;
}

absl::Status RunShow(const Invocation& invocation, const std::string& profile_text) {
  SHARDMESH_ASSIGN_OR_RETURN(const ProfileQuestion question, QuestionOf(profile_text));
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const ProfileAnswer answer,
                             client->layouts().DescribeProfile(question));
  if (invocation.json) {
    invocation.Print(ProfileJson(answer));
  } else {
    PrintProfile(answer);
  }
  return absl::OkStatus();
}

struct HashFlags {
  std::optional<std::string> text;
  std::optional<std::string> attributes;  // JSON
  std::optional<std::string> profile;
  std::optional<std::string> algorithm;
  bool exact = false;
};

// Returns the value that Python's json module gives for this JSON.
PythonValue FromJson(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return PythonValue::Bool(json.get<bool>());
    case Json::value_t::number_integer:
      return PythonValue::Int(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      auto integer = PythonValue::BigInt(StrCat(json.get<uint64_t>()));
      return *std::move(integer);  // cannot fail: the text has only digits
    }
    case Json::value_t::number_float:
      return PythonValue::Float(json.get<double>());
    case Json::value_t::string:
      return PythonValue::String(json.get<std::string>());
    case Json::value_t::array: {
      std::vector<PythonValue> entries;
      for (const Json& entry : json) {
        entries.push_back(FromJson(entry));
      }
      return PythonValue::List(std::move(entries));
    }
    case Json::value_t::object: {
      std::vector<PythonValue::DictItem> items;
      for (const auto& [key, value] : json.items()) {
        items.push_back({PythonValue::String(key), FromJson(value)});
      }
      return PythonValue::Dict(std::move(items));
    }
    default:
      return PythonValue();
  }
}

// Parses a JSON object. Returns the values of the object's attributes, in the order of the text.
absl::StatusOr<std::vector<PythonValue>> ReadAttributes(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return WrongUse(StrCat("--attributes ", text,
                           " is no JSON object; write {\"NAME\": VALUE, ...}, as vars() has them"));
  }
  std::vector<PythonValue> values;
  for (const Json& value : json) {
    values.push_back(FromJson(value));
  }
  return values;
}

absl::Status RunHash(const Invocation& invocation, const HashFlags& flags) {
  if (static_cast<int>(flags.text.has_value()) + static_cast<int>(flags.attributes.has_value()) +
          static_cast<int>(flags.profile.has_value()) !=
      1) {
    return WrongUse("give either a text, --attributes or --profile");
  }
  HashQuestion question;
  question.compatibility = flags.exact ? Compatibility::kExact : Compatibility::kDefault;
  if (flags.text.has_value()) {
    question.subject = *flags.text;
    question.algorithm = flags.algorithm;
  } else if (flags.profile.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(question.subject, QuestionOf(*flags.profile));
  } else {
    SHARDMESH_ASSIGN_OR_RETURN(question.subject, ReadAttributes(*flags.attributes));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const PythonHash hash, client->layouts().ComputeHash(question));
  if (invocation.json) {
    Json printed = {{"algorithm", flags.algorithm.value_or("md5")}, {"hash", hash.digest}};
    if (!flags.text.has_value()) {
      printed["text"] = hash.text;
      printed["value"] = hash.value;
    }
    invocation.Print(printed);
  } else {
    std::cout << hash.digest << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddProfileCommands(CommandLine* line) {
  CLI::App* const profile = line->AddGroup("profile", "Show what profiles resolve to");
  auto selected = std::make_shared<std::string>();
  line->AddCommand(
          "show", "Show a profile's fields, what each logical axis stands for, and its fingerprint",
          [selected](const Invocation& i) { return RunShow(i, *selected); }, profile)
      ->add_option("--profile", *selected,
                   "a profile: YAML file, or name in the catalog (default: no field given)");

  auto flags = std::make_shared<HashFlags>();
  CLI::App* const hash =
      line->AddCommand("hash",
                       "Hash a text, or an object's attributes or a profile as the original hashes "
                       "its own: the digest as a decimal number",
                       [flags](const Invocation& i) { return RunHash(i, *flags); });
  hash->add_option("text", flags->text, "the text");
  CLI::Option* const attributes =
      hash->add_option("--attributes", flags->attributes,
                       "JSON object of the attributes, such as '{\"a\": [1, 2]}'");
  CLI::Option* const profile_option =
      hash->add_option("--profile", flags->profile, "a profile: YAML file, or name in the catalog");
  hash->add_option("--algorithm", flags->algorithm,
                   "as Python's hashlib names it, such as sha256 (default: md5)")
      ->excludes(attributes)
      ->excludes(profile_option);
  hash->add_flag("--exact", flags->exact, "accept only hashlib's names");
}

}  // namespace shardmesh::client
