// Parses command lines against the flags of a program.
#include "rpc/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "process/failpoint.h"
#include "process/host_port.h"
#include "status/byte_text.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

constexpr std::string_view kHelpFlag = "help";

absl::Status WrongUse(std::string_view message) {
  return WithReason(absl::InvalidArgumentError(ToAbsl(message)), Reason::kBadField);
}

absl::Status BadValue(std::string_view value, std::string_view expected) {
  return WrongUse(StrCat("\"", value, "\" is not ", expected));
}

// Refuses an address without a host and port: other processes must be able to reach it.
absl::Status CheckHostPort(std::string_view value) {
  if (IsUnixAddress(value)) {
    return WrongUse(StrCat("\"", value,
                           "\" names no port, and others need one to reach this process; write ",
                           "HOST:PORT or [IPV6]:PORT"));
  }
  return ParseHostPort(value).status();
}

// The error for an empty value, which comes from an unset variable of a script.
absl::Status EmptyValue(std::string_view placeholder) {
  return WrongUse(StrCat("is empty; give ", placeholder, ", or leave the flag out"));
}

std::string WithDefault(std::string help, std::string_view value) {
  return value.empty() ? help : StrCat(help, " (default ", value, ")");
}

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr Unit kUnits[] = {{"", 1},
                           {"b", 1},
                           {"kib", 1024.0},
                           {"mib", 1024.0 * 1024},
                           {"gib", 1024.0 * 1024 * 1024},
                           {"tib", 1024.0 * 1024 * 1024 * 1024},
                           {"pib", 1024.0 * 1024 * 1024 * 1024 * 1024},
                           {"eib", 1024.0 * 1024 * 1024 * 1024 * 1024 * 1024},
                           {"kb", 1e3},
                           {"mb", 1e6},
                           {"gb", 1e9},
                           {"tb", 1e12},
                           {"pb", 1e15},
                           {"eb", 1e18}};

// Returns the text for a wrong command line: the error, and a reference to --help.
std::string WrongUseText(std::string_view program, const absl::Status& status) {
  return StrCat(program, ": ", ToStd(status.message()), "\n`", program,
                " --help` lists the flags\n");
}

// Returns the arguments in reverse order, as CLI11 takes them. For `--name=`, CLI11 would take the
// next argument as the value. To prevent that, the empty value becomes a separate argument.
std::vector<std::string> InReverse(absl::Span<const char* const> arguments) {
  std::vector<std::string> reversed;
  for (auto argument = arguments.rbegin(); argument != arguments.rend(); ++argument) {
    const std::string_view text = *argument;
    const bool is_empty_value = text.starts_with("--") && text.find('=') + 1 == text.size();
    if (is_empty_value) reversed.emplace_back();
    reversed.emplace_back(text.substr(0, text.size() - (is_empty_value ? 1 : 0)));
  }
  return reversed;
}

}  // namespace

absl::StatusOr<int64_t> ParseByteSize(std::string_view text) {
  constexpr std::string_view kExpected = "a number of bytes such as 1024, 64KiB, 4GiB or 24GB";
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string unit_name = absl::AsciiStrToLower(ToAbsl(text.substr(digits)));
  double number = 0;
  // Pass only digits and a point to SimpleAtod, which would also accept "inf" and exponents.
  if (digits == 0 || !absl::SimpleAtod(ToAbsl(text.substr(0, digits)), &number)) {
    return BadValue(text, kExpected);
  }
  for (const Unit& unit : kUnits) {
    if (unit.name != unit_name) {
      continue;
    }
    int64_t whole = 0;
    if (unit.bytes == 1 && absl::SimpleAtoi(ToAbsl(text.substr(0, digits)), &whole)) {
      return whole;  // exact: a double would round numbers above 2^53
    }
    const double bytes = number * unit.bytes;
    if (bytes != std::floor(bytes)) {
      return BadValue(text, "a whole number of bytes");
    }
    if (bytes >= static_cast<double>(std::numeric_limits<int64_t>::max())) {
      return BadValue(text, "a number of bytes below 8 EiB");
    }
    return static_cast<int64_t>(bytes);
  }
  return BadValue(text, kExpected);
}

FlagSet::FlagSet(std::string program, std::string purpose)
    : program_(std::move(program)), purpose_(std::move(purpose)) {}

void FlagSet::AddText(std::string name, std::string placeholder, std::string help,
                      std::string* target) {
  Add({.name = std::move(name),
       .placeholder = placeholder,
       .help = WithDefault(std::move(help), *target),
       .set = [target, placeholder](std::string_view value) -> absl::Status {
         if (value.empty()) return EmptyValue(placeholder);
         *target = std::string(value);
         return absl::OkStatus();
       }});
}

void FlagSet::AddFolders(std::string name, std::string help, std::vector<std::string>* target) {
  AddParsed(std::move(name), "DIR", std::move(help),
            [target](std::string_view value) -> absl::Status {
              if (!value.starts_with('/')) return BadValue(value, "an absolute path");
              target->emplace_back(value);
              return absl::OkStatus();
            });
}

void FlagSet::AddAddress(std::string name, std::string help, std::string* target) {
  AddParsed(std::move(name), "HOST:PORT", WithDefault(std::move(help), *target),
            [target](std::string_view value) -> absl::Status {
              SHARDMESH_RETURN_IF_ERROR(CheckAddress(value));
              *target = std::string(value);
              return absl::OkStatus();
            });
}

void FlagSet::AddHostPort(std::string name, std::string help, std::string* target,
                          bool may_be_empty) {
  AddParsed(std::move(name), "HOST:PORT", WithDefault(std::move(help), *target),
            [target, may_be_empty](std::string_view value) -> absl::Status {
              if (!value.empty() || !may_be_empty) {
                SHARDMESH_RETURN_IF_ERROR(CheckHostPort(value));
              }
              *target = std::string(value);
              return absl::OkStatus();
            });
}

void FlagSet::AddHostPorts(std::string name, std::string help, std::vector<std::string>* target) {
  AddParsed(std::move(name), "HOST:PORT", std::move(help),
            [target](std::string_view value) -> absl::Status {
              SHARDMESH_RETURN_IF_ERROR(CheckHostPort(value));
              target->emplace_back(value);
              return absl::OkStatus();
            });
}

void FlagSet::AddParsed(std::string name, std::string placeholder, std::string help,
                        std::function<absl::Status(std::string_view)> set) {
  Add({.name = std::move(name),
       .placeholder = std::move(placeholder),
       .help = std::move(help),
       .set = std::move(set)});
}

void FlagSet::AddInt(std::string name, std::string help, int64_t min, int64_t max,
                     int64_t* target) {
  StrAppend(&help, " (default ", *target, ")");
  Add({.name = std::move(name),
       .placeholder = "N",
       .help = std::move(help),
       .set = [min, max, target](std::string_view value) -> absl::Status {
         int64_t number = 0;
         if (!absl::SimpleAtoi(ToAbsl(value), &number) || number < min || number > max) {
           return BadValue(value, StrCat("a whole number from ", min, " to ", max));
         }
         *target = number;
         return absl::OkStatus();
       }});
}

void FlagSet::AddBytes(std::string name, std::string help, int64_t* target, int64_t min,
                       int64_t max) {
  if (*target > 0) {
    StrAppend(&help, " (default ", *target, ")");
  }
  Add({.name = std::move(name),
       .placeholder = "SIZE",
       .help = std::move(help),
       .set = [target, min, max](std::string_view value) -> absl::Status {
         SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, ParseByteSize(value));
         if (bytes > max) {
           return WrongUse(
               StrCat("\"", value, "\" is too much; give ", FormatBytes(max), " or less"));
         }
         if (bytes < min) {
           return WrongUse(
               StrCat("\"", value, "\" is too little; give ", FormatBytes(min), " or more"));
         }
         *target = bytes;
         return absl::OkStatus();
       }});
}

void FlagSet::AddDuration(std::string name, std::string help, absl::Duration* target) {
  StrAppend(&help, " (default ", absl::FormatDuration(*target), ")");
  Add({.name = std::move(name),
       .placeholder = "DURATION",
       .help = std::move(help),
       .set = [target](std::string_view value) -> absl::Status {
         absl::Duration duration;
         if (!absl::ParseDuration(ToAbsl(value), &duration) || duration <= absl::ZeroDuration()) {
           return BadValue(value, "a duration above zero such as 5s or 250ms");
         }
         *target = duration;
         return absl::OkStatus();
       }});
}

void FlagSet::AddSwitch(std::string name, std::string help, bool* target) {
  Add({.name = std::move(name),
       .placeholder = "",
       .help = std::move(help),
       .set = [target](std::string_view value) -> absl::Status {
         if (value != "true" && value != "false") {
           return BadValue(value, "true or false");
         }
         *target = value == "true";
         return absl::OkStatus();
       },
       .is_switch = true});
}

void FlagSet::AddTls(TlsFiles* target, const bool* insecure) {
  AddText("tls-cert", "FILE",
          "this process's certificate (PEM); together with --tls-key and --tls-ca it turns on "
          "mutual TLS for every connection",
          &target->certificate);
  AddText("tls-key", "FILE", "the certificate's key (PEM)", &target->private_key);
  AddText("tls-ca", "FILE", "the authorities that sign the certificates of peers (PEM)",
          &target->authorities);
  checks_.emplace_back([target, insecure] {
    return *insecure && !target->empty()
               ? WrongUse(
                     "--insecure is for plaintext and does not go with --tls-cert, --tls-key and "
                     "--tls-ca; for metrics in plaintext say --http-plaintext")
               : CheckComplete(*target);
  });
}

void FlagSet::AddLog(LogOptions* target) {
  Add({.name = "log-format",
       .placeholder = "FORMAT",
       .help = "how logs are written to standard error: text or json (default text)",
       .set = [target](std::string_view value) -> absl::Status {
         if (value != "text" && value != "json") {
           return BadValue(value, "text or json");
         }
         target->format = value == "json" ? LogFormat::kJson : LogFormat::kText;
         return absl::OkStatus();
       }});
  Add({.name = "log-level",
       .placeholder = "LEVEL",
       .help = "lowest level that is logged: debug, info, warning, error or off (default info)",
       .set = [target](std::string_view value) -> absl::Status {
         SHARDMESH_ASSIGN_OR_RETURN(target->level, ParseLogLevel(value));
         return absl::OkStatus();
       }});
}

void FlagSet::AddFailpoints() {
  Add({.name = "failpoints",
       .placeholder = "NAME=ACTION[:N],...",
       .help = "for tests: fail at the N-th pass of a named place; ACTION is eio, enospc, "
               "emfile, crash or delay",
       .set = [](std::string_view value) { return ArmFailpoints(value); }});
  AddSwitch("list-failpoints", "for tests: print the failpoints with their actions and exit",
            &list_failpoints_);
}

absl::Status FlagSet::UnknownArgument(std::string_view argument) const {
  if (argument.size() < 3 || !argument.starts_with("--")) {
    return WrongUse(StrCat("\"", argument, "\" is no flag; flags start with --"));
  }
  const std::string_view name = argument.substr(2, argument.find('=', 2) - 2);
  std::vector<std::string_view> known = {kHelpFlag};
  for (const Flag& flag : flags_) known.push_back(flag.name);
  const std::optional<std::string_view> nearest = NearestName(name, known);
  return WrongUse(StrCat("there is no flag --", name,
                         nearest.has_value() ? StrCat("; did you mean --", *nearest, "?") : ""));
}

absl::Status FlagSet::Parse(absl::Span<const char* const> arguments) {
  CLI::App app;
  app.set_help_flag();  // FlagSet writes the help text itself
  app.allow_extras();   // FlagSet reports unknown flags itself
  absl::Status ended;
  // CLI11 calls `set` as soon as it has the flag's value. An error of `set` ends the parsing.
  const auto add = [&app, &ended](const std::string& names, bool is_switch, Setter set) {
    CLI::Option* const option =
        app.add_option(names, [&ended, set = std::move(set)](const CLI::results_t& values) {
          ended = set(values.front());
          return ended.ok();
        });
    option->trigger_on_parse();
    if (is_switch) option->expected(0);
  };
  try {
    for (const Flag& flag : flags_) {
      const std::string name = StrCat("--", flag.name);
      add(name, flag.is_switch,
          [&flag, name](std::string_view value) { return WithContext(flag.set(value), name); });
    }
    add(StrCat("-h,--", kHelpFlag), /*is_switch=*/true,
        [](std::string_view) { return absl::CancelledError("help was asked for"); });
    app.parse(InReverse(arguments));
  } catch (const CLI::ArgumentMismatch&) {
    // The last argument is a flag without its value. CLI11 names the flag only in its message, so
    // find it here.
    for (const Flag& flag : flags_) {
      if (StrCat("--", flag.name) == arguments.back()) {
        ended = WrongUse(
            StrCat("--", flag.name, " needs a value: --", flag.name, " ", flag.placeholder));
      }
    }
  } catch (const CLI::Error& error) {
    if (ended.ok()) ended = WrongUse(error.what());
  }
  // The parsing ended at an error. If an unknown argument came before that error, report the
  // unknown argument.
  if (const std::vector<std::string> unknown = app.remaining(); !unknown.empty()) {
    return UnknownArgument(unknown.front());
  }
  SHARDMESH_RETURN_IF_ERROR(ended);
  for (const auto& check : checks_) {
    SHARDMESH_RETURN_IF_ERROR(check());
  }
  return absl::OkStatus();
}

std::optional<int> FlagSet::ParseMain(int argc, const char* const* argv) {
  const size_t count = argc > 0 ? static_cast<size_t>(argc) - 1 : 0;
  const absl::Status parsed = Parse(absl::MakeConstSpan(argv + (argc > 0 ? 1 : 0), count));
  if (parsed.ok() && list_failpoints_) {
    for (const Failpoint* failpoint : ListFailpoints()) {
      std::printf("%s %s\n", std::string(failpoint->name()).c_str(),
                  failpoint->fails() ? "eio,enospc,emfile,crash,delay" : "crash,delay");
    }
    return kDone;
  }
  if (parsed.ok()) {
    return std::nullopt;
  }
  if (absl::IsCancelled(parsed)) {
    std::fputs(Help().c_str(), stdout);
    return kDone;
  }
  std::fputs(WrongUseText(program_, parsed).c_str(), stderr);
  return kWrongUse;
}

std::string FlagSet::Help() const {
  std::vector<std::pair<std::string, std::string_view>> rows;
  for (const Flag& flag : flags_) {
    rows.emplace_back(StrCat("--", flag.name, flag.is_switch ? "" : " ", flag.placeholder),
                      flag.help);
  }
  rows.emplace_back(StrCat("--", kHelpFlag), "print this help");
  size_t width = 0;
  for (const auto& [left, help] : rows) {
    width = std::max(width, left.size());
  }
  std::string text = StrCat("usage: ", program_, " [FLAG...]\n\n", purpose_, "\n\n");
  for (const auto& [left, help] : rows) {
    StrAppend(&text, "  ", left, std::string(width - left.size() + 2, ' '), help, "\n");
  }
  return text;
}

}  // namespace shardmesh::rpc
