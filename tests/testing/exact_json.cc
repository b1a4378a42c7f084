// A builder of JSON values on nlohmann's event interface.
#include "tests/testing/exact_json.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace shardmesh::test {
namespace {

using Json = nlohmann::json;

class ExactBuilder {
 public:
  ExactBuilder(absl::Span<const std::string_view> ordered, int max_depth)
      : ordered_(ordered), max_depth_(static_cast<size_t>(max_depth)) {}

  Json Take() { return std::move(root_); }

  // The events, named and typed as nlohmann's interface demands.
  bool null() { return Add(nullptr); }
  bool boolean(bool value) { return Add(value); }
  bool number_integer(Json::number_integer_t value) { return Add(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return Add(value); }
  bool number_float(Json::number_float_t value, const std::string& text) {
    const bool is_integer = text.find_first_not_of("-0123456789") == std::string::npos;
    return is_integer ? Add(Json{{"__int__", text}}) : Add(value);
  }
  bool string(std::string& value) { return Add(std::move(value)); }
  bool binary(Json::binary_t& value) { return Add(std::move(value)); }
  bool start_object(size_t) {
    Open(Json::object());
    if (open_.back().keeps_order) open_.back().value = Json::array();
    return true;
  }
  bool start_array(size_t) {
    Open(Json::array());
    return true;
  }
  bool key(std::string& name) {
    open_.back().key = std::move(name);
    return true;
  }
  bool end_object() {
    Json value = std::move(open_.back().value);
    const bool keeps_order = open_.back().keeps_order;
    open_.pop_back();
    return keeps_order ? Add(Json{{"__dict__", std::move(value)}}) : Add(std::move(value));
  }
  bool end_array() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return Add(std::move(value));
  }
  template <typename Exception>
  [[noreturn]] bool parse_error(size_t, const std::string&, const Exception& error) {
    throw error;
  }

 private:
  struct Container {
    Json value;
    std::string key;  // of the member to come
    bool is_object;
    bool keeps_order;  // in this object, and in objects within it
  };

  void Open(Json empty) {
    if (open_.size() >= max_depth_) {
      constexpr int kTypeMustBe = 302;  // nlohmann's number for a value of another form
      throw Json::type_error::create(
          kTypeMustBe, "values are nested deeper than " + std::to_string(max_depth_) + " levels",
          nullptr);
    }
    const bool keeps_order =
        !open_.empty() &&
        (open_.back().keeps_order ||
         (open_.back().is_object &&
          std::find(ordered_.begin(), ordered_.end(), open_.back().key) != ordered_.end()));
    const bool is_object = empty.is_object();
    open_.push_back({std::move(empty), "", is_object, keeps_order});
  }

  bool Add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Container& container = open_.back(); !container.is_object) {
      container.value.push_back(std::move(value));
    } else if (container.keeps_order) {
      container.value.push_back(Json::array({std::move(container.key), std::move(value)}));
    } else {
      container.value[std::move(container.key)] = std::move(value);
    }
    return true;
  }

  const absl::Span<const std::string_view> ordered_;
  const size_t max_depth_;
  Json root_;
  std::vector<Container> open_;
};

}  // namespace

nlohmann::json ParseExactJson(std::string_view text, absl::Span<const std::string_view> ordered,
                              int max_depth) {
  ExactBuilder builder(ordered, max_depth);
  Json::sax_parse(text, &builder);
  return builder.Take();
}

}  // namespace shardmesh::test
