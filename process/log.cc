// Formats log lines as text or as JSON, and writes them through spdlog.
#include "process/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cmath>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/time/clock.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

std::atomic<LogLevel> least_level{LogLevel::kInfo};
std::atomic<LogFormat> line_format{LogFormat::kText};

std::string_view LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
    case LogLevel::kOff:
      return "off";
  }
  return "unknown";
}

// Returns the spdlog logger for standard error. It writes each complete line in one piece.
spdlog::logger& Sink() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>("shardmesh",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%v");
    made->set_level(spdlog::level::trace);
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}

// Returns `text` as a JSON string in quotes. Bytes that are not UTF-8 become U+FFFD.
std::string Quote(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x80) {
      const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc2 ? 2 : 1;
      bool whole = length > 1 && byte < 0xf5 && i + length <= text.size();
      for (size_t k = 1; whole && k < length; ++k) {
        whole = (static_cast<unsigned char>(text[i + k]) & 0xc0) == 0x80;
      }
      if (whole) {
        out.append(text.substr(i, length));
        i += length;
      } else {
        out.append("\xef\xbf\xbd");
        ++i;
      }
      continue;
    }
    if (byte == '"' || byte == '\\') {
      out.push_back('\\');
      out.push_back(text[i]);
    } else if (byte == '\n') {
      out.append("\\n");
    } else if (byte == '\t') {
      out.append("\\t");
    } else if (byte < 0x20 || byte == 0x7f) {
      out.append("\\u00");
      out.push_back(kHex[byte >> 4]);
      out.push_back(kHex[byte & 15]);
    } else {
      out.push_back(text[i]);
    }
    ++i;
  }
  out.push_back('"');
  return out;
}

bool NeedsQuotes(std::string_view text) {
  if (text.empty()) return true;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte >= 0x7f || byte == '"' || byte == '\\' || byte == '=') return true;
  }
  return false;
}

std::string TextLine(std::string_view time, LogLevel level, std::string_view message,
                     std::initializer_list<LogField> fields) {
  const std::string quoted = Quote(message);
  std::string line = StrCat(time, " ", absl::AsciiStrToUpper(ToAbsl(LevelName(level))), " ",
                            std::string_view(quoted).substr(1, quoted.size() - 2));
  for (const LogField& field : fields) {
    StrAppend(&line, " ", field.key(), "=",
              NeedsQuotes(field.value()) ? Quote(field.value()) : field.value());
  }
  return line;
}

std::string JsonLine(std::string_view time, LogLevel level, std::string_view message,
                     std::initializer_list<LogField> fields) {
  std::string line = StrCat("{\"time\":\"", time, "\",\"level\":\"", LevelName(level),
                            "\",\"message\":", Quote(message));
  for (const LogField& field : fields) {
    StrAppend(&line, ",", Quote(field.key()), ":",
              field.is_text() ? Quote(field.value()) : field.value());
  }
  line.push_back('}');
  return line;
}

void Write(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (!LogEnabled(level)) return;
  const std::string time =
      absl::FormatTime("%Y-%m-%d%ET%H:%M:%E6SZ", absl::Now(), absl::UTCTimeZone());
  const std::string line = line_format.load(std::memory_order_relaxed) == LogFormat::kJson
                               ? JsonLine(time, level, message, fields)
                               : TextLine(time, level, message, fields);
  Sink().log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace

absl::StatusOr<LogLevel> ParseLogLevel(std::string_view text) {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError, LogLevel::kOff}) {
    if (text == LevelName(level)) return level;
  }
  return WithReason(
      absl::InvalidArgumentError(StrCat("\"", text,
                                        "\" is not a log level; use debug, info, warning, error "
                                        "or off")),
      Reason::kBadField, {{fact::kValue, text}});
}

void ConfigureLog(const LogOptions& options) {
  least_level.store(options.level, std::memory_order_relaxed);
  line_format.store(options.format, std::memory_order_relaxed);
}

bool LogEnabled(LogLevel level) {
  return level >= least_level.load(std::memory_order_relaxed) && level != LogLevel::kOff;
}

LogField::LogField(std::string_view key, double value)
    : key_(key), value_(absl::StrCat(value)), is_text_(!std::isfinite(value)) {}

void LogDebug(std::string_view message, std::initializer_list<LogField> fields) {
  Write(LogLevel::kDebug, message, fields);
}

void LogInfo(std::string_view message, std::initializer_list<LogField> fields) {
  Write(LogLevel::kInfo, message, fields);
}

void LogWarning(std::string_view message, std::initializer_list<LogField> fields) {
  Write(LogLevel::kWarning, message, fields);
}

void LogError(std::string_view message, std::initializer_list<LogField> fields) {
  Write(LogLevel::kError, message, fields);
}

}  // namespace shardmesh
