// Scripts that let shells complete the program's commands, options and values.
#include "client/cli/completion.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/strings/str_replace.h"
#include "client/cli/help_formatter.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

std::string PathOf(const CLI::App* app) {
  return app->get_parent() == nullptr ? app->get_name()
                                      : StrCat(PathOf(app->get_parent()), " ", app->get_name());
}

void ForEach(const CLI::App* app, const std::function<void(const CLI::App*)>& visit) {
  visit(app);
  for (const CLI::App* command : app->get_subcommands({})) ForEach(command, visit);
}

std::vector<std::string> NamesOf(const CLI::Option* option) {
  std::vector<std::string> names;
  for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  return names;
}

std::vector<const CLI::Option*> OptionsOf(const CLI::App* app) {
  return app->get_options([](const CLI::Option* option) { return option->nonpositional(); });
}

std::vector<const CLI::Option*> OperandsOf(const CLI::App* app) {
  return app->get_options([](const CLI::Option* option) { return option->get_positional(); });
}

bool TakesValue(const CLI::Option* option) { return option->get_items_expected_max() > 0; }
bool TakesSeveral(const CLI::Option* option) {
  return option->get_items_expected_max() >= CLI::detail::expected_max_vector_size;
}

// Returns the command of this program that lists the values of an operand, which only the cluster
// knows; empty: there is none. An operand OPERATION is the id of an operation. A command that shows
// an operation takes ended ones too.
std::string ListingOf(const CLI::App* app, const CLI::Option* operand) {
  if (operand->get_name(/*positional=*/true) != "OPERATION") return "";
  return StrCat("ops ls --output=name --deadline=2s",
                app->get_name() == "show" ? "" : " --state=running");
}

constexpr char kBashHead[] =
    R"(# bash completion of shardmesh; written by `shardmesh completion bash`.
declare -gA _shardmesh_commands=() _shardmesh_options=() _shardmesh_valued=() _shardmesh_values=()
declare -gA _shardmesh_listings=()
)";

// The function that completes a word. Bash splits words at each `=`, `:` and `@`; the function
// therefore joins the text after such a character to the word before it.
constexpr char kBashTail[] = R"(
_shardmesh() {
  local cur="${COMP_WORDS[COMP_CWORD]}" path=shardmesh option='' prefix='' word words=''
  local -i i place=1
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${COMP_WORDS[i]}"
    if [[ "$word" == [=:@] ]]; then
      [[ -n "$option" ]] || i+=1
    elif [[ -n "$option" ]]; then
      option=''
    elif [[ "$word" == -* ]]; then
      if [[ " ${_shardmesh_valued[$path]:-} ${_shardmesh_valued[shardmesh]:-} " == *" $word "* ]]; then
        option="$word"
      fi
    elif [[ " ${_shardmesh_commands[$path]:-} " == *" $word "* ]]; then
      path+=" $word"
    else
      place+=1
    fi
  done
  [[ "$cur" != '=' ]] || cur=''
  if [[ "$cur" == --*=* ]]; then
    option="${cur%%=*}"
    prefix="$option="
    cur="${cur#*=}"
  fi
  if [[ -n "$option" ]]; then
    words="${_shardmesh_values["$path|$option"]:-${_shardmesh_values["shardmesh|$option"]:-}}"
  elif [[ "$cur" == -* ]]; then
    words="${_shardmesh_options[$path]:-} ${_shardmesh_options[shardmesh]:-}"
  elif [[ -n "${_shardmesh_commands[$path]:-}" ]]; then
    ((place > 1)) || words="${_shardmesh_commands[$path]}"
  else
    words="${_shardmesh_values["$path|$place"]:-}"
    local listing="${_shardmesh_listings["$path|$place"]:-${_shardmesh_listings["$path|*"]:-}}"
    # Several words: the command's name and its flags.
    [[ -z "$listing" ]] || words=$("${COMP_WORDS[0]}" $listing 2>/dev/null)
  fi
  COMPREPLY=()
  while IFS='' read -r word; do
    COMPREPLY+=("$prefix$word")
  done < <(compgen -W "$words" -- "$cur")
}
complete -o bashdefault -o default -F _shardmesh shardmesh
)";

std::string BashEntry(std::string_view array, std::string_view key,
                      const std::vector<std::string>& words) {
  return words.empty()
             ? std::string()
             : StrCat("_shardmesh_", array, "['", key, "']='", StrJoin(words, " "), "'\n");
}

// Escapes text for use within single quotes and within the brackets of zsh's function _arguments.
std::string ZshText(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"\\", "\\\\"}, {"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string ZshValues(const CLI::Option* option, std::string_view listing = {}) {
  if (!listing.empty()) {
    return StrCat("{compadd -- ${(f)\"$(shardmesh ", listing, " 2>/dev/null)\"}}");
  }
  const std::vector<std::string> values = ValuesOf(option);
  return values.empty() ? "_files" : StrCat("(", StrJoin(values, " "), ")");
}

// Returns the arguments that zsh's function _arguments needs for the options and operands of `app`.
std::string ZshOptions(const CLI::App* app) {
  std::string text;
  for (const CLI::Option* option : OptionsOf(app)) {
    const std::vector<std::string> names = NamesOf(option);
    for (const std::string& name : names) {
      const std::string_view equals = !TakesValue(option) ? "" : name.starts_with("--") ? "=" : "+";
      StrAppend(&text, " \\\n    '(", StrJoin(names, " "), ")", name, equals, "[",
                ZshText(option->get_description()), "]",
                TakesValue(option) ? StrCat(":value:", ZshValues(option)) : "", "'");
    }
  }
  return text;
}

std::string ZshFunctionName(const CLI::App* app) {
  return StrCat("_", absl::StrReplaceAll(PathOf(app), {{" ", "_"}}));
}

std::string ZshFunction(const CLI::App* app) {
  std::string text = StrCat("\n", ZshFunctionName(app), "() {\n");
  const std::string options = app->get_parent() == nullptr
                                  ? std::string(" \\\n    $_shardmesh_common")
                                  : StrCat(" \\\n    $_shardmesh_common", ZshOptions(app));
  const std::vector<const CLI::App*> commands = app->get_subcommands({});
  if (commands.empty()) {
    StrAppend(&text, "  _arguments -s", options);
    int place = 0;
    for (const CLI::Option* operand : OperandsOf(app)) {
      StrAppend(&text, " \\\n    '", TakesSeveral(operand) ? "*" : StrCat(++place), ":",
                ZshText(operand->get_name(true)), ":", ZshValues(operand, ListingOf(app, operand)),
                "'");
    }
    return text + "\n}\n";
  }
  StrAppend(&text, "  local context state line\n  typeset -A opt_args\n  local -a commands=(");
  for (const CLI::App* command : commands) {
    StrAppend(&text, "\n    '", command->get_name(), ":", ZshText(command->get_description()), "'");
  }
  StrAppend(&text, ")\n  _arguments -C -s", options,
            " \\\n    '1: :->command' \\\n    '*:: :->arguments'\n  case $state in\n"
            "    command) _describe command commands ;;\n    arguments)\n      case $line[1] in\n");
  for (const CLI::App* command : commands) {
    StrAppend(&text, "        ", command->get_name(), ") ", ZshFunctionName(command), " ;;\n");
  }
  return text + "      esac ;;\n  esac\n}\n";
}

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  std::string text = kBashHead;
  ForEach(&app, [&](const CLI::App* each) {
    const std::string path = PathOf(each);
    std::vector<std::string> commands;
    for (const CLI::App* command : each->get_subcommands({})) {
      commands.push_back(command->get_name());
    }
    std::vector<std::string> options;
    std::vector<std::string> valued;
    std::string values;
    for (const CLI::Option* option : OptionsOf(each)) {
      for (const std::string& name : NamesOf(option)) {
        options.push_back(name);
        if (TakesValue(option)) valued.push_back(name);
        StrAppend(&values, BashEntry("values", StrCat(path, "|", name), ValuesOf(option)));
      }
    }
    int place = 0;
    for (const CLI::Option* operand : OperandsOf(each)) {
      StrAppend(&values, BashEntry("values", StrCat(path, "|", ++place), ValuesOf(operand)));
      const std::string listing = ListingOf(each, operand);
      if (listing.empty()) continue;
      const std::string key = TakesSeveral(operand) ? "*" : StrCat(place);
      StrAppend(&values, BashEntry("listings", StrCat(path, "|", key), {listing}));
    }
    StrAppend(&text, BashEntry("commands", path, commands), BashEntry("options", path, options),
              BashEntry("valued", path, valued), values);
  });
  return text + kBashTail;
}

std::string ZshCompletion(const CLI::App& app) {
  std::string text = StrCat(
      "#compdef shardmesh\n# zsh completion of shardmesh; written by `shardmesh completion zsh`.\n"
      "typeset -ga _shardmesh_common=(",
      absl::StrReplaceAll(ZshOptions(&app), {{" \\\n", "\n"}}), ")\n");
  ForEach(&app, [&](const CLI::App* each) { StrAppend(&text, ZshFunction(each)); });
  return text + "\n_shardmesh \"$@\"\n";
}

}  // namespace shardmesh::client
