// Structured logs on standard error: a message for people, fields for machines.
#ifndef SHARDMESH_PROCESS_LOG_H_
#define SHARDMESH_PROCESS_LOG_H_

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace shardmesh {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Parses `debug`, `info`, `warning`, `error` or `off`. Returns INVALID_ARGUMENT, which lists these
// levels, for other text.
absl::StatusOr<LogLevel> ParseLogLevel(std::string_view text);

enum class LogFormat {
  // clang-format off
  // 2026-01-31T12:00:00.000000Z INFO worker attached identity=worker-0 rank=3
  kText,
  // {"time":"...","level":"info","message":"worker attached","identity":"worker-0","rank":3}
  kJson,
  // clang-format on
};

struct LogOptions {
  LogLevel level = LogLevel::kInfo;  // the least severe level that is written
  LogFormat format = LogFormat::kText;
};

// Sets how this process logs. Before the first call the default options apply. Thread-safe.
void ConfigureLog(const LogOptions& options);

// Returns whether a line of this level is written. Ask before you build costly fields.
// Thread-safe.
bool LogEnabled(LogLevel level);

// One key with its value. Keys are identifiers in snake_case. One concept has one key everywhere
// (`identity`, `rank`, `step`, `epoch`, `array`, `error`). A value is never a token, a key or
// tensor data.
class LogField {
 public:
  LogField(std::string_view key, std::string_view value)
      : key_(key), value_(value), is_text_(true) {}
  LogField(std::string_view key, const char* value) : LogField(key, std::string_view(value)) {}
  LogField(std::string_view key, const std::string& value)
      : LogField(key, std::string_view(value)) {}
  LogField(std::string_view key, bool value) : key_(key), value_(value ? "true" : "false") {}
  template <std::integral T>
  LogField(std::string_view key, T value) : key_(key), value_(absl::StrCat(value)) {}
  LogField(std::string_view key, double value);
  // Formatted as `1.5s`.
  LogField(std::string_view key, absl::Duration value)
      : key_(key), value_(absl::FormatDuration(value)), is_text_(true) {}
  // Formatted as `NOT_FOUND: no array "wq"`, without payloads.
  LogField(std::string_view key, const absl::Status& value)
      : key_(key),
        value_(value.ToString(absl::StatusToStringMode::kWithNoExtraData)),
        is_text_(true) {}

  const std::string& key() const { return key_; }
  const std::string& value() const { return value_; }
  // Returns whether JSON output quotes the value. JSON output does not quote numbers and booleans.
  bool is_text() const { return is_text_; }

 private:
  std::string key_;
  std::string value_;
  bool is_text_ = false;
};

// Writes one line: LogInfo("worker attached", {{"identity", identity}, {"rank", rank}}). The output
// is always one line of valid UTF-8; control characters in the message and the values are escaped.
// Thread-safe: lines of several threads do not mix. Blocks if standard error does.
void LogDebug(std::string_view message, std::initializer_list<LogField> fields = {});
void LogInfo(std::string_view message, std::initializer_list<LogField> fields = {});
void LogWarning(std::string_view message, std::initializer_list<LogField> fields = {});
void LogError(std::string_view message, std::initializer_list<LogField> fields = {});

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_LOG_H_
