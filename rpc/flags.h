// Flags of the servers' command lines: `--name value` or `--name=value`, typed, with a help text.
#ifndef SHARDMESH_RPC_FLAGS_H_
#define SHARDMESH_RPC_FLAGS_H_

#include <cstdint>
#include <functional>
#include <limits>
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

// A worker that is given less memory for tiles than this many bytes does not start.
inline constexpr int64_t kMinWorkerMemoryBytes = int64_t{1} << 20;

// Parses a number of bytes as users write it: `1024`, `64KiB`, `4GiB`, `1.5TB`. Units are B, KiB to
// EiB (powers of 1024) and KB to EB (powers of 1000), in upper or lower case. INVALID_ARGUMENT for
// other text, fractions of a byte, and numbers beyond int64_t.
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
// The value of a target before parsing is the flag's default, which the help text shows. Targets
// must outlive the set. If a flag is repeated, the last value counts. The exception is a flag of
// AddFolders or AddHostPorts, which keeps all values. For one thread.
class FlagSet {
 public:
  // Exit codes of the programs.
  static constexpr int kDone = 0;
  static constexpr int kFailed = 1;
  static constexpr int kWrongUse = 2;

  FlagSet(std::string program, std::string purpose);

  // Adds a flag with a non-empty text. Messages show `placeholder`, such as "HOST:PORT", for the
  // value.
  void AddText(std::string name, std::string placeholder, std::string help, std::string* target);
  // Adds a flag with the absolute path of a folder. The flag may be given several times: each value
  // is appended.
  void AddFolders(std::string name, std::string help, std::vector<std::string>* target);
  // Adds a flag with an address to serve at or to call; see CheckAddress.
  void AddAddress(std::string name, std::string help, std::string* target);
  // Like AddAddress, but without unix sockets: other processes must reach the address at a port.
  // `may_be_empty`: an empty value means no address.
  void AddHostPort(std::string name, std::string help, std::string* target,
                   bool may_be_empty = false);
  // Like AddHostPort for a flag that may be given several times: each value is appended.
  void AddHostPorts(std::string name, std::string help, std::vector<std::string>* target);
  // Adds a flag whose values `set` checks and stores. An error of `set` describes the legal values.
  void AddParsed(std::string name, std::string placeholder, std::string help,
                 std::function<absl::Status(std::string_view value)> set);
  // Adds a flag with a whole number, min <= value <= max.
  void AddInt(std::string name, std::string help, int64_t min, int64_t max, int64_t* target);
  // Adds a flag with a number of bytes, min <= value <= max; see ParseByteSize.
  void AddBytes(std::string name, std::string help, int64_t* target, int64_t min = 1,
                int64_t max = std::numeric_limits<int64_t>::max());
  // Adds a flag with a duration above zero: `5s`, `250ms`, `1m30s`.
  void AddDuration(std::string name, std::string help, absl::Duration* target);
  // Adds a flag that needs no value: `--insecure`, but also `--insecure=false`.
  void AddSwitch(std::string name, std::string help, bool* target);
  // Adds --tls-cert, --tls-key and --tls-ca. Users must give all three flags or none, and must not
  // give them together with the switch whose target is `insecure`.
  void AddTls(TlsFiles* target, const bool* insecure);
  // Adds --log-format and --log-level.
  void AddLog(LogOptions* target);
  // Adds --failpoints, which arms failpoints (see process/failpoint.h), and --list-failpoints. The
  // latter makes ParseMain print their names and end the program.
  void AddFailpoints();

  // Adds a check of several flags together. After Parse has read all flags, it makes the added
  // checks, in the order of the AddCheck calls.
  void AddCheck(std::function<absl::Status()> check) { checks_.push_back(std::move(check)); }

  // Parses the arguments, which do not include the program's own name. Reports only the first of
  // several errors. After an error, the targets of the flags before the faulty argument are set.
  // Targets of later flags may be set or not.
  //
  // INVALID_ARGUMENT (BAD_FIELD): an unknown flag, with the nearest name; a missing or malformed
  // value; an argument that is no flag; flags that exclude each other. CANCELLED: help is
  // requested.
  absl::Status Parse(absl::Span<const char* const> arguments);

  // Parses the arguments of main. Returns nullopt if the program should continue. If it should end,
  // prints the help text on standard output, or the error on standard error, and returns the exit
  // code.
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
  // The error for an argument that is no known flag, with the nearest name.
  absl::Status UnknownArgument(std::string_view argument) const;

  const std::string program_;
  const std::string purpose_;
  std::vector<Flag> flags_;
  std::vector<std::function<absl::Status()>> checks_;  // each checks several flags together
  bool list_failpoints_ = false;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_FLAGS_H_
