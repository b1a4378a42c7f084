// Prints a pattern's syntax tree for RE2.
#include "sharding/pattern/printer.h"

#include <utility>

#include "sharding/pattern/character_set.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// Prints a tree for RE2, and records for which texts the printed form is not exact.
class Printer {
 public:
  // Returns false if a set of the tree cannot be printed, or if a part needs backtracking; the
  // output is then unusable.
  bool Print(const PatternNode& node);

  std::string out;
  bool has_final_newline_end = false;
  bool has_character_boundary = false;
  bool has_not_boundary = false;
};

bool Printer::Print(const PatternNode& node) {
  bool printable = true;
  switch (node.kind) {
    case PatternNode::Kind::kSet: {
      const std::optional<std::string> set = PrintSet(node.set);
      out += set.value_or("");
      return set.has_value();
    }
    case PatternNode::Kind::kSequence:
      out += node.group > 0 ? "(" : "";
      for (const PatternNode& child : node.children) {
        const bool group = child.kind == PatternNode::Kind::kAlternation;
        out += group ? "(?:" : "";
        printable &= Print(child);
        out += group ? ")" : "";
      }
      out += node.group > 0 ? ")" : "";
      return printable;
    case PatternNode::Kind::kAlternation:
      for (size_t i = 0; i < node.children.size(); ++i) {
        out += i == 0 ? "" : "|";
        printable &= Print(node.children[i]);
      }
      return printable;
    case PatternNode::Kind::kRepeat: {
      if (node.possessive) return false;
      const bool group = node.children.front().kind != PatternNode::Kind::kSet;
      out += group ? "(?:" : "";
      printable &= Print(node.children.front());
      out += group ? ")" : "";
      if (!node.max.has_value() && node.min <= 1) {
        out += node.min == 0 ? "*" : "+";
      } else if (node.min == 0 && node.max == 1) {
        out += "?";
      } else if (!node.max.has_value()) {
        StrAppend(&out, "{", node.min, ",}");
      } else {
        StrAppend(&out, "{", node.min, ",", *node.max, "}");
      }
      out += node.lazy ? "?" : "";
      return printable;
    }
    case PatternNode::Kind::kLookAround:
    case PatternNode::Kind::kAtomic:
    case PatternNode::Kind::kBackReference:
    case PatternNode::Kind::kConditional:
      return false;
    case PatternNode::Kind::kTextStart:
      out += "\\A";
      return true;
    case PatternNode::Kind::kLineStart:
      out += "(?m:^)";
      return true;
    case PatternNode::Kind::kTextEndOrFinalNewline:
      has_final_newline_end = true;
      out += "\\z";
      return true;
    case PatternNode::Kind::kTextEnd:
      out += "\\z";
      return true;
    case PatternNode::Kind::kLineEnd:
      out += "(?m:$)";
      return true;
    case PatternNode::Kind::kWordBoundary:
      has_character_boundary = true;
      out += "\\b";
      return true;
    case PatternNode::Kind::kAsciiWordBoundary:
      out += "\\b";
      return true;
    case PatternNode::Kind::kNotWordBoundary:
    case PatternNode::Kind::kNotAsciiWordBoundary:
      // RE2's \B also matches between the bytes of one character.
      has_character_boundary = true;
      has_not_boundary = true;
      out += "\\B";
      return true;
  }
  return false;
}

}  // namespace

PrintedPattern PrintPattern(const PatternNode& root) {
  Printer printer;
  PrintedPattern printed;
  if (printer.Print(root)) printed.text = std::move(printer.out);
  printed.newline_matters = printer.has_final_newline_end;
  printed.non_ascii_matters = printer.has_character_boundary;
  printed.emptiness_matters = printer.has_not_boundary;
  return printed;
}

}  // namespace shardmesh
