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

// The least memory for tiles that a worker is started with.
inline constexpr int64_t kMinWorkerMemoryBytes = int64_t{1} << 20;

// A number of bytes as users write it: `1024`, `64KiB`, `4GiB`, `1.5TB`. Units are B, KiB to TiB
// (powers of 1024) and KB to TB (of 1000), in any case. INVALID_ARGUMENT for other text, fractions
// of a byte, and what does not fit int64_t.
absl::StatusOr<int64_t> ParseByteSize(std::string_view text);

// The flags that a program knows, and where their values go.
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
// A target keeps its value as the default, which the help text names, until its flag is given; it
// outlives the set. Of a flag given twice the last value counts, but for AddTexts. For one thread.
class FlagSet {
 public:
  // Exit codes of programs.
  static constexpr int kDone = 0;
  static constexpr int kFailed = 1;
  static constexpr int kWrongUse = 2;

  FlagSet(std::string program, std::string purpose);

  // `placeholder` stands for the value in the help text, such as "HOST:PORT".
  void AddText(std::string name, std::string placeholder, std::string help, std::string* target);
  // May be given several times: each value is appended.
  void AddTexts(std::string name, std::string placeholder, std::string help,
                std::vector<std::string>* target);
  // Where to serve or whom to call, see CheckAddress.
  void AddAddress(std::string name, std::string help, std::string* target);
  // The same without unix sockets, for what others reach at a port. `may_be_empty`: for nowhere.
  void AddHostPort(std::string name, std::string help, std::string* target,
                   bool may_be_empty = false);
  // May be given several times: each value is appended.
  void AddHostPorts(std::string name, std::string help, std::vector<std::string>* target);
  // What `set` takes; its error says what the value is not.
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
  // --tls-cert, --tls-key and --tls-ca: all or none, and then not `*insecure`, the target of a
  // switch of that name.
  void AddTls(TlsFiles* target, const bool* insecure);
  // --log-format and --log-level.
  void AddLog(LogOptions* target);
  // --failpoints, which arms them (see process/failpoint.h), and --list-failpoints, which prints
  // their names; ParseMain then ends the program.
  void AddFailpoints();

  // Adds a check of several flags together. Parse makes the checks in their order once it has read
  // all flags.
  void AddCheck(std::function<absl::Status()> check) { checks_.push_back(std::move(check)); }

  // Reads the arguments, the program's own name not among them. INVALID_ARGUMENT (BAD_FIELD) for an
  // unknown flag, naming the nearest; a value that is missing or does not read; an argument that is
  // no flag; flags that do not go together. CANCELLED if help is asked for. Targets before the
  // error have their values.
  absl::Status Parse(absl::Span<const char* const> arguments);

  // What main does with its arguments: nullopt to go on, otherwise the code to exit with, after the
  // help text on standard output or the error on standard error.
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
  absl::StatusOr<const Flag*> Find(std::string_view name) const;

  const std::string program_;
  const std::string purpose_;
  std::vector<Flag> flags_;
  std::vector<std::function<absl::Status()>> checks_;  // of several flags together
  bool list_failpoints_ = false;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_FLAGS_H_
