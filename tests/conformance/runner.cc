// Reads the files, asks, compares and prints.
#include "tests/conformance/runner.h"

#include <algorithm>
#include <exception>
#include <fstream>
#include <iomanip>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/testing/golden.h"

namespace shardmesh::conformance {
namespace {

constexpr size_t kMaxPrintedBytes = 4096;  // of a line, and of each answer

std::string Cut(const std::string& text) {
  if (text.size() <= kMaxPrintedBytes) return text;
  size_t end = kMaxPrintedBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return StrCat(text.substr(0, end), "... (", text.size(), " bytes)");
}

absl::StatusOr<std::vector<std::filesystem::path>> FilesIn(const std::filesystem::path& folder) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(folder, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return absl::NotFoundError(StrCat("no such folder: ", folder.string()));
  }
  if (!std::filesystem::is_directory(status)) {
    return absl::FailedPreconditionError(
        StrCat(folder.string(), " is no folder; give the folder that has the *.jsonl files"));
  }
  std::vector<std::filesystem::path> files;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".jsonl") files.push_back(entry->path());
  }
  if (error) {
    return absl::FailedPreconditionError(
        StrCat("cannot list ", folder.string(), ": ", error.message()));
  }
  if (files.empty()) {
    return absl::FailedPreconditionError(StrCat(folder.string(), " has no *.jsonl file"));
  }
  std::sort(files.begin(), files.end());
  return files;
}

class FileRun {
 public:
  FileRun(const std::filesystem::path& path, const Questions& questions, std::ostream& failures,
          RunResult* result)
      : path_(path), questions_(questions), failures_(failures), result_(*result) {
    counts_.file = path.filename().string();
  }

  FileCounts Run() {
    // A folder by such a name opens, and fails when it is read.
    std::ifstream in(path_);
    std::string line;
    while (std::getline(in, line)) {
      ++line_number_;
      if (line.find_first_not_of(" \t\r") != std::string::npos) AskLine(line);
    }
    if (!in.eof()) {
      ++counts_.failed;
      failures_ << path_.string() << ": cannot be read\n";
    }
    return std::move(counts_);
  }

 private:
  // Whatever is thrown comes from a line of another form than its function has.
  void AskLine(const std::string& line) {
    try {
      Ask(line, test::ParseGolden(line));
    } catch (const std::exception& exception) {
      ++counts_.failed;
      failures_ << path_.string() << ":" << line_number_ << ": malformed: " << exception.what()
                << "\n  line     " << Cut(line) << "\n";
    }
  }

  void Ask(const std::string& line, const test::Golden& golden) {
    const auto ask = questions_.find(golden.fn);
    if (ask == questions_.end()) {
      ++counts_.unknown_function;
      ++result_.unknown_functions[golden.fn];
      return;
    }
    const absl::StatusOr<Json> answer = ask->second(golden.input);
    if (test::Agrees(golden, answer)) {
      ++counts_.passed;
    } else if (golden.expect.has_value() &&
               ReasonOf(answer.status()) == Reason::kUnsupportedPattern) {
      ++counts_.unsupported_pattern;
      result_.unsupported_patterns.push_back(golden.id);
    } else {
      ++counts_.failed;
      failures_ << path_.string() << ":" << line_number_ << ": " << golden.id << "\n  line     "
                << Cut(line) << "\n  expected " << Cut(test::ExpectedText(golden))
                << "\n  got      " << Cut(test::AnswerText(answer)) << "\n";
    }
  }

  const std::filesystem::path& path_;
  const Questions& questions_;
  std::ostream& failures_;
  RunResult& result_;
  FileCounts counts_;
  int64_t line_number_ = 0;
};

}  // namespace

FileCounts RunResult::Total() const {
  FileCounts total{.file = "total"};
  for (const FileCounts& file : files) {
    total.passed += file.passed;
    total.failed += file.failed;
    total.unknown_function += file.unknown_function;
    total.unsupported_pattern += file.unsupported_pattern;
  }
  return total;
}

bool RunResult::Succeeded() const {
  const FileCounts total = Total();
  return total.failed == 0 && total.passed > 0;
}

absl::StatusOr<RunResult> RunFolder(const std::filesystem::path& folder, const Questions& questions,
                                    std::ostream& failures) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::filesystem::path> files, FilesIn(folder));
  RunResult result;
  for (const std::filesystem::path& file : files) {
    result.files.push_back(FileRun(file, questions, failures, &result).Run());
  }
  return result;
}

void PrintCounts(const RunResult& result, std::ostream& out) {
  std::vector<FileCounts> rows = result.files;
  rows.push_back(result.Total());
  size_t width = 0;
  for (const FileCounts& row : rows) width = std::max(width, row.file.size());
  const auto cell = [&out](const auto& value) { out << std::right << std::setw(13) << value; };
  out << std::left << std::setw(static_cast<int>(width)) << "";
  for (const std::string_view title : {"passed", "failed", "unsupported"}) cell(title);
  out << "\n";
  for (const FileCounts& row : rows) {
    out << std::left << std::setw(static_cast<int>(width)) << row.file;
    for (const int64_t count : {row.passed, row.failed, row.unsupported()}) cell(count);
    out << "\n";
  }
  const FileCounts& total = rows.back();
  if (total.unsupported() > 0) {
    out << "unsupported: " << total.unsupported_pattern << " with a pattern that is not supported, "
        << total.unknown_function << " of functions that nobody answers";
    std::string_view separator = ": ";
    for (const auto& [function, count] : result.unknown_functions) {
      out << std::exchange(separator, ", ") << function << " (" << count << ")";
    }
    out << "\n";
  }
}

void PrintUnsupported(const RunResult& result, std::ostream& out) {
  for (const auto& [function, count] : result.unknown_functions) {
    out << "function " << function << ": " << count << (count == 1 ? " line\n" : " lines\n");
  }
  for (const std::string& id : result.unsupported_patterns) out << "pattern " << id << "\n";
}

}  // namespace shardmesh::conformance
