// Trees of tensors as JSON.
#include "tensor/tree_file.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "process/json_error.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype_promotion.h"

namespace shardmesh {
namespace {

using Json = nlohmann::json;

// Returns a name as error messages show it: quoted, escaped and shortened. Names from a file can be
// of any length and contain any bytes.
std::string Quoted(std::string_view name) {
  constexpr size_t kLongest = 200;
  const bool cut = name.size() > kLongest;
  return StrCat("\"", absl::Utf8SafeCHexEscape(ToAbsl(name.substr(0, kLongest))), cut ? "..." : "",
                "\"");
}

// The tensors read so far, and their names.
struct Tree {
  std::vector<TreeFileTensor> tensors;
  absl::flat_hash_set<std::string> names;
};

// Parses the JSON as a stream: it builds no document, and detects repeated keys.
class TreeReader final : public nlohmann::json_sax<Json> {
 public:
  // If `is_line`, the text is one tensor, and its name is one of its keys.
  TreeReader(bool is_line, Tree* tree) : is_line_(is_line), tree_(tree) {}

  // Returns the error that stopped parsing, else OK. The message does not name the text's source.
  const absl::Status& status() const { return status_; }

  bool boolean(bool value) override { return Unexpected(value ? "true" : "false"); }
  bool number_float(double, const std::string& text) override { return Unexpected(text); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool number_integer(int64_t value) override {
    return Unexpected(StrCat("the negative number ", value));
  }

  bool null() override {
    switch (place_) {
      case Place::kEntries:
        return AddEntry(AxisValue::None());
      case Place::kObject:
        if (!objects_.empty() && (key_ == "dtype" || key_ == "axes" || key_ == "spec")) {
          objects_.back().is_tensor = true;
          return true;
        }
        break;
      default:
        break;
    }
    return Unexpected("null");
  }

  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::kShape) {
      return Unexpected(StrCat("the number ", value));
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail(Reason::kInvalidShape,
                  StrCat("shape has ", value, ", which is more than 63 bits hold"),
                  {{fact::kValue, value}});
    }
    Shape& shape = objects_.back().tensor.shape;
    if (static_cast<int64_t>(shape.size()) == kMaxRank) {
      return Fail(Reason::kInvalidShape, StrCat("shape has more than ", kMaxRank, " dimensions"),
                  {{fact::kLimit, kMaxRank}});
    }
    shape.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(std::string& value) override {
    switch (place_) {
      case Place::kEntries:
        return AddEntry(AxisValue::Name(value));
      case Place::kEntry:
        if (static_cast<int64_t>(entry_.size()) == kMaxMeshAxes) {
          return Fail(Reason::kLimitExceeded,
                      StrCat("an entry of ", key_, " has more than ", kMaxMeshAxes, " names"),
                      {{fact::kField, key_}, {fact::kLimit, kMaxMeshAxes}});
        }
        entry_.push_back(AxisValue::Name(value));
        return true;
      case Place::kObject:
        if (!objects_.empty() && key_ == "dtype") {
          objects_.back().is_tensor = true;
          absl::StatusOr<Dtype> dtype = ParseDtypeOfAnyForm(value);
          if (!dtype.ok()) {
            return Fail(dtype.status(), StrCat("dtype ", ToStd(dtype.status().message())));
          }
          objects_.back().tensor.dtype = *dtype;
          return true;
        }
        if (is_line_ && !objects_.empty() && key_ == "name") {
          objects_.back().is_tensor = true;
          return Extend(value);
        }
        break;
      case Place::kShape:
        break;
    }
    return Unexpected(StrCat("the text ", Quoted(value)));
  }

  bool start_object(size_t) override {
    if (place_ != Place::kObject) {
      return Unexpected("an object");
    }
    if (!objects_.empty()) {
      if (is_line_ || objects_.back().is_tensor) {
        return Unexpected("an object");
      }
      objects_.back().has_parts = true;
    }
    if (objects_.size() == kMaxTreeDepth) {
      return Fail(Reason::kBadFile, StrCat("parts nest more than ", kMaxTreeDepth, " deep"));
    }
    const size_t prefix_bytes = name_.size();
    if (!objects_.empty() && !Extend(key_)) {
      return false;
    }
    objects_.emplace_back().prefix_bytes = prefix_bytes;
    return true;
  }

  bool key(std::string& value) override {
    key_ = value;
    Object& object = objects_.back();
    if (!object.keys.insert(value).second) {
      return Fail(Reason::kBadFile, StrCat("the key ", Quoted(value), " occurs twice"));
    }
    return true;
  }

  bool end_object() override {
    Object object = std::move(objects_.back());
    objects_.pop_back();
    if ((object.is_tensor || is_line_) && !Finish(std::move(object))) {
      return false;
    }
    name_.resize(object.prefix_bytes);
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kEntries) {
      place_ = Place::kEntry;
      entry_.clear();
      return true;
    }
    const bool is_shape = key_ == "shape";
    if (place_ != Place::kObject || objects_.empty() ||
        !(is_shape || key_ == "axes" || key_ == "spec")) {
      return Unexpected("a list");
    }
    Object& object = objects_.back();
    object.is_tensor = true;
    object.has_shape = object.has_shape || is_shape;
    place_ = is_shape ? Place::kShape : Place::kEntries;
    entries_.clear();
    return true;
  }

  bool end_array() override {
    switch (place_) {
      case Place::kEntry:
        place_ = Place::kEntries;
        return AddEntry(key_ == "spec" ? AxisValue::Tuple(std::move(entry_))
                                       : AxisValue::List(std::move(entry_)));
      case Place::kEntries:
        place_ = Place::kObject;
        return FinishEntries();
      default:
        place_ = Place::kObject;
        return true;
    }
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    if (!status_.ok()) {
      return false;
    }
    status_ = InvalidArgument(
        Reason::kBadFile,
        StrCat("it is not JSON in UTF-8, at byte ", position, ": ", JsonErrorText(error.what())),
        {{fact::kPosition, position}});
    return false;
  }

 private:
  enum class Place { kObject, kShape, kEntries, kEntry };

  // A JSON object that is being parsed: a tensor, or an object that contains further objects.
  struct Object {
    size_t prefix_bytes = 0;  // length of name_ outside this object, restored at its end
    absl::flat_hash_set<std::string> keys;
    bool is_tensor = false;
    bool has_parts = false;
    bool has_shape = false;
    TreeFileTensor tensor;
  };

  bool Fail(Reason reason, std::string_view what, Facts facts = {}) {
    status_ = InvalidArgument(
        reason, name_.empty() ? std::string(what) : StrCat(Quoted(name_), ": ", what), facts);
    if (MayHave(reason, fact::kTensor)) {
      status_ = WithFacts(std::move(status_), {{fact::kTensor, name_}});
    }
    return false;
  }
  // Fails with the reason and the facts of `why`, and with the message `what`.
  bool Fail(const absl::Status& why, std::string_view what) {
    Fail(ReasonOf(why), what);
    status_ = WithFactsOf(std::move(status_), why);
    return false;
  }

  bool Unexpected(std::string_view what) {
    constexpr std::string_view kOfLines =
        "; one object a line, such as {\"name\": \"w\", \"shape\": [8, 8]}, goes into a .jsonl "
        "file";
    return Fail(
        Reason::kBadFile,
        objects_.empty()
            ? StrCat(what, " stands where the tree's object should", is_line_ ? "" : kOfLines)
            : StrCat(what, " stands at the key ", Quoted(key_),
                     "; a tensor has shape (a list of sizes), dtype (a name), and axes or "
                     "spec (a list of null, names or lists of names)",
                     is_line_ ? "" : "; every other value is an object with tensors in it",
                     !is_line_ && key_ == "name" ? kOfLines : ""));
  }

  // Appends a key to name_, after a dot. Fails if name_ would be longer than kMaxTreeNameBytes.
  bool Extend(std::string_view part) {
    if (name_.size() + part.size() + 1 > kMaxTreeNameBytes) {
      return Fail(Reason::kLimitExceeded,
                  StrCat("the name goes on to more than ", kMaxTreeNameBytes, " bytes"),
                  {{fact::kLimit, kMaxTreeNameBytes}});
    }
    StrAppend(&name_, name_.empty() ? "" : ".", part);
    return true;
  }

  bool AddEntry(AxisValue entry) {
    if (static_cast<int64_t>(entries_.size()) == kMaxRank) {
      return Fail(Reason::kLimitExceeded, StrCat(key_, " has more than ", kMaxRank, " entries"),
                  {{fact::kField, key_}, {fact::kLimit, kMaxRank}});
    }
    entries_.push_back(std::move(entry));
    return true;
  }

  bool FinishEntries() {
    TreeFileTensor& tensor = objects_.back().tensor;
    if (key_ == "axes") {
      tensor.axes = std::move(entries_);
      return true;
    }
    absl::StatusOr<PartitionSpec> spec = PartitionSpec::Create(entries_);
    if (!spec.ok()) {
      return Fail(spec.status(), ToStd(spec.status().message()));
    }
    tensor.spec = *std::move(spec);
    return true;
  }

  bool Finish(Object object) {
    if (object.has_parts) {
      return Fail(Reason::kBadFile, "has the keys of a tensor, and objects beside them");
    }
    if (name_.empty()) {
      return Fail(
          Reason::kBadFile,
          is_line_ ? "a tensor has no name"
                   : "the file is one tensor without a name; write {\"NAME\": {\"shape\": [...]}}");
    }
    if (!object.has_shape) {
      return Fail(Reason::kBadFile, "has no shape");
    }
    if (object.tensor.axes.has_value() && object.tensor.spec.has_value()) {
      return Fail(Reason::kBadFile, "has both axes and a spec; give one");
    }
    if (const absl::Status status = CheckShape(object.tensor.shape); !status.ok()) {
      return Fail(status, ToStd(status.message()));
    }
    if (!tree_->names.insert(name_).second) {
      return Fail(Reason::kBadFile, "the tensor is listed twice");
    }
    if (tree_->tensors.size() == kMaxTreeTensors) {
      return Fail(Reason::kLimitExceeded,
                  StrCat("the tree has more than ", kMaxTreeTensors, " tensors"),
                  {{fact::kLimit, kMaxTreeTensors}});
    }
    object.tensor.name = name_;
    tree_->tensors.push_back(std::move(object.tensor));
    return true;
  }

  const bool is_line_;
  Tree* const tree_;
  absl::Status status_;
  Place place_ = Place::kObject;
  std::vector<Object> objects_;
  std::string name_;  // keys on the path to the current object, joined by dots
  std::string key_;
  std::vector<AxisValue> entries_;
  std::vector<AxisValue> entry_;
};

absl::Status CheckSize(std::string_view source, std::string_view text) {
  if (static_cast<int64_t>(text.size()) <= kMaxTreeFileBytes) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      Reason::kLimitExceeded,
      StrCat(source, ": ", text.size(), " bytes are over the limit of ", kMaxTreeFileBytes),
      {{fact::kHave, text.size()}, {fact::kLimit, kMaxTreeFileBytes}});
}

// Returns the error with `place`, its position in the text, before its message. Adds `source` as
// the fact `file` if errors of this reason may have that fact.
absl::Status InFile(const absl::Status& status, std::string_view source, std::string_view place) {
  absl::Status placed = WithContext(status, place);
  return MayHave(ReasonOf(status), fact::kFile)
             ? WithFacts(std::move(placed), {{fact::kFile, source}})
             : placed;
}

absl::Status Read(std::string_view text, bool is_line, Tree* tree) {
  TreeReader reader(is_line, tree);
  Json::sax_parse(text.begin(), text.end(), &reader);
  return reader.status();
}

}  // namespace

absl::StatusOr<std::vector<TreeFileTensor>> ParseTree(std::string_view source,
                                                      std::string_view text) {
  SHARDMESH_RETURN_IF_ERROR(CheckSize(source, text));
  Tree tree;
  const absl::Status status = Read(text, /*is_line=*/false, &tree);
  if (!status.ok()) {
    return InFile(status, source, source);
  }
  return std::move(tree.tensors);
}

absl::StatusOr<std::vector<TreeFileTensor>> ParseTreeLines(std::string_view source,
                                                           std::string_view text) {
  SHARDMESH_RETURN_IF_ERROR(CheckSize(source, text));
  Tree tree;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      continue;
    }
    const absl::Status status = Read(line, /*is_line=*/true, &tree);
    if (!status.ok()) {
      return InFile(status, source, StrCat(source, ":", number));
    }
  }
  return std::move(tree.tensors);
}

}  // namespace shardmesh
