// profile show, hash: what profiles resolve to, and hashes of texts.
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/cli/command_line.h"
#include "client/cli/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/table.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

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
          {"python_hash", answer.hash.digest},
          {"python_hash_text", answer.hash.text},
          {"python_hash_value", answer.hash.value},
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
  std::cout << "\nfingerprint  " << answer.fingerprint << "\npython hash  " << answer.hash.digest
            << "\n";
}

absl::Status RunShow(const Invocation& invocation, const std::string& profile_text) {
  SHARDMESH_ASSIGN_OR_RETURN(ProfileSelector profile, SelectProfile(profile_text));
  ProfileQuestion question;
  std::visit([&](auto& selected) { question.profile = std::move(selected); }, profile);
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(const ProfileAnswer answer, client->DescribeProfile(question));
  if (invocation.json) {
    PrintJson(ProfileJson(answer));
  } else {
    PrintProfile(answer);
  }
  return absl::OkStatus();
}

struct HashFlags {
  std::string text;
  std::string algorithm = "md5";
  bool exact = false;
};

absl::Status RunHash(const Invocation& invocation, const HashFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(
      const PythonHash hash,
      client->ComputeHash(
          {.subject = flags.text,
           .algorithm = flags.algorithm,
           .compatibility = flags.exact ? Compatibility::kExact : Compatibility::kDefault}));
  if (invocation.json) {
    PrintJson({{"algorithm", flags.algorithm}, {"hash", hash.digest}});
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
          "show", "Show a profile's fields, what each logical axis stands for, and its hashes",
          [selected](const Invocation& i) { return RunShow(i, *selected); }, profile)
      ->add_option("--profile", *selected,
                   "a profile: YAML file, or name in the catalog (default: no field given)");

  auto flags = std::make_shared<HashFlags>();
  CLI::App* const hash =
      line->AddCommand("hash", "Hash a text: the digest as a decimal number",
                       [flags](const Invocation& i) { return RunHash(i, *flags); });
  hash->add_option("text", flags->text, "the text")->required();
  hash->add_option("--algorithm", flags->algorithm,
                   "as Python's hashlib names it, such as sha256 (default: md5)");
  hash->add_flag("--exact", flags->exact, "know hashlib's names alone");
}

}  // namespace shardmesh::client
