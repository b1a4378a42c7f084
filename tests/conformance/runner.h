// Asks every recorded case of a folder and counts which answers are the recorded ones.
#ifndef SHARDMESH_TESTS_CONFORMANCE_RUNNER_H_
#define SHARDMESH_TESTS_CONFORMANCE_RUNNER_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/conformance/question.h"

namespace shardmesh::conformance {

// How the cases of one file went; each is counted once.
struct FileCounts {
  std::string file;  // its name within the folder
  int64_t passed = 0;
  int64_t failed = 0;  // also lines that are no case, or whose input has another form than known
  // Of functions that no question is known for.
  int64_t unknown_function = 0;
  // Answered with UNSUPPORTED_PATTERN where the original has a value.
  int64_t unsupported_pattern = 0;

  int64_t unsupported() const { return unknown_function + unsupported_pattern; }
};

struct RunResult {
  std::vector<FileCounts> files;  // by name
  // Lines by the functions that no question is known for.
  std::map<std::string, int64_t> unknown_functions;
  // Ids of the cases counted as FileCounts::unsupported_pattern, in their order.
  std::vector<std::string> unsupported_patterns;

  // The sums over all files, `file` being "total".
  FileCounts Total() const;
  // Whether nothing failed, and something passed.
  bool Succeeded() const;
};

// Asks every line of every `*.jsonl` file directly in `folder`, the files in the order of their
// names, each line as its `fn` says. Values must be equal; an expected error must be an error with
// the same Python class. Writes each line that fails to `failures`, cut to a few KiB, with both
// answers. Blank lines are skipped.
//
// No content of a file ends the program: what cannot be read fails by itself. Errors: NOT_FOUND
// and FAILED_PRECONDITION for a folder that is not there, is none, cannot be listed, or has no
// `*.jsonl` file.
absl::StatusOr<RunResult> RunFolder(const std::filesystem::path& folder, const Questions& questions,
                                    std::ostream& failures);

// A table of counts by file, and what is unsupported, by function.
void PrintCounts(const RunResult& result, std::ostream& out);

// One line for each unknown function (`function matmul: 272 lines`), in alphabetical order, and one
// for each case of an unsupported pattern (`pattern regex_search/dialect/0361`), in theirs.
void PrintUnsupported(const RunResult& result, std::ostream& out);

}  // namespace shardmesh::conformance

#endif  // SHARDMESH_TESTS_CONFORMANCE_RUNNER_H_
