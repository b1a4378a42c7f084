// Flags of the servers' command lines: `--name value` or `--name=value`, typed, with a help text.
#ifndef SHARDMESH_RPC_FLAGS_H_
#define SHARDMESH_RPC_FLAGS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "process/log.h"
#include "rpc/tls/certificate.h"

namespace shardmesh::rpc {

// The least memory for tiles with which a worker starts.
inline constexpr int64_t kMinWorkerMemoryBytes = int64_t{1} << 20;

// Parses a number of bytes as users write it: `1024`, `64KiB`, `4GiB`, `1.5TB`. Units are B, KiB to
// EiB (powers of 1024) and KB to EB (powers of 1000), in any case. INVALID_ARGUMENT for other text,
// fractions of a byte, and numbers beyond int64_t.
absl::StatusOr<int64_t> ParseByteSize(std::string_view text);

// The flags of a program, and the targets of their values.
//
// Example:
//   Options options;
//   FlagSet flags("shardmesh-worker", "Serves one device of a mesh.");
//   flags.AddText("identity", "NAME", "stable name of this worker", &options.identity);
//   flags.AddSwitch("insecure", "allow plaintext beyond loopback", &options.insecure);
//   if (const std::optional<int> code = flags.ParseMain(argc, argv); code.has_value()) {
//     return *code;
//   }
//
// A target's value before parsing is the flag's default, which the help text shows. The target must
// outlive the set. If a flag is repeated, the last value counts, except for AddTexts. For one
// thread.
class FlagSet {
 public:
  // Exit codes of programs.
  static constexpr int kDone = 0;
  static constexpr int kFailed = 1;
  static constexpr int kWrongUse = 2;

  FlagSet(std::string program, std::string purpose);

  // A text that is not empty. `placeholder` represents it in messages, such as "HOST:PORT".
  void AddText(std::string name, std::string placeholder, std::string help, std::string* target);
  // May be given several times: each value is appended.
  void AddTexts(std::string name, std::string placeholder, std::string help,
                std::vector<std::string>* target);
  // An address to serve at or to call, see CheckAddress.
  void AddAddress(std::string name, std::string help, std::string* target);
  // Like AddAddress without unix sockets, for addresses that other processes reach at a port.
  // `may_be_empty`: an empty value means no address.
  void AddHostPort(std::string name, std::string help, std::string* target,
                   bool may_be_empty = false);
  // May be given several times: each value is appended.
  void AddHostPorts(std::string name, std::string help, std::vector<std::string>* target);
  // A value that `set` accepts; its error describes the legal values.
  void AddParsed(std::string name, std::string placeholder, std::string help,
                 std::function<absl::Status(std::string_view value)> set);
  // A whole number, min <= value <= max.
  void AddInt(std::string name, std::string help, int64_t min, int64_t max, int64_t* target);
  // See ParseByteSize; at least `min`.
  void AddBytes(std::string name, std::string help, int64_t* target, int64_t min = 1);
  // `5s`, `250ms`, `1m30s`; above zero.
  void AddDuration(std::string name, std::string help, absl::Duration* target);
  // Takes no value: `--insecure`, but also `--insecure=false`.
  void AddSwitch(std::string name, std::string help, bool* target);
  // --tls-cert, --tls-key and --tls-ca: all or none. They exclude `*insecure`, the target of a
  // switch of that name.
  void AddTls(TlsFiles* target, const bool* insecure);
  // --log-format and --log-level.
  void AddLog(LogOptions* target);
  // --failpoints, which arms failpoints (see process/failpoint.h), and --list-failpoints, which
  // makes ParseMain print their names and end the program.
  void AddFailpoints();

  // Adds a check of several flags together. Parse makes these checks in order, after it has parsed
  // all flags.
  void AddCheck(std::function<absl::Status()> check) { checks_.push_back(std::move(check)); }

  // Parses the arguments, without the program's own name. INVALID_ARGUMENT (BAD_FIELD) for an
  // unknown flag, with the nearest name; a missing or malformed value; an argument that is no flag;
  // flags that exclude each other. CANCELLED if help is requested. Reports the first of several
  // errors. Targets before it have their values; those after it may have theirs.
  absl::Status Parse(absl::Span<const char* const> arguments);

  // Parses the arguments of main. Returns nullopt if the program continues, else its exit code,
  // after the help text on standard output or the error on standard error.
  std::optional<int> ParseMain(int argc, const char* const* argv);

  std::string Help() const;

 private:
  using Setter = std::function<absl::Status(std::string_view value)>;
  struct Flag {
    std::string name;  // without the dashes
    std::string placeholder;
    std::string help;
    Setter set;
    bool is_switch = false;
  };

  void Add(Flag flag) { flags_.push_back(std::move(flag)); }
  // The error for an argument that is none of the flags, with the nearest name.
  absl::Status UnknownArgument(std::string_view argument) const;

  const std::string program_;
  const std::string purpose_;
  std::vector<Flag> flags_;
  std::vector<std::function<absl::Status()>> checks_;  // of several flags together
  bool list_failpoints_ = false;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_FLAGS_H_
