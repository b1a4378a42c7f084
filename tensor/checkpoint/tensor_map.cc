// Applies the rules of a map to the tensors of a checkpoint.
#include "tensor/checkpoint/tensor_map.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/tree_file.h"

namespace shardmesh {
namespace {

std::string QuotedTensor(std::string_view name) {
  return StrCat("\"", absl::Utf8SafeCHexEscape(ToAbsl(name.substr(0, 200))), "\"");
}

absl::Status BadMap(std::string_view place, std::string_view file, std::string_view what) {
  return InvalidArgument(Reason::kBadFile, StrCat(place, ": ", what), {{fact::kFile, file}});
}

// Prepends the place of a rule and the tensor's name.
absl::Status AtRule(const absl::Status& status, std::string_view place, std::string_view tensor) {
  return WithContext(status, place.empty() ? StrCat("tensor ", QuotedTensor(tensor))
                                           : StrCat(place, ": tensor ", QuotedTensor(tensor)));
}

std::string ExpectedShape(const std::vector<std::optional<int64_t>>& shape) {
  return StrCat("(",
                StrJoin(shape, ", ",
                        [](std::string* out, const std::optional<int64_t>& extent) {
                          StrAppend(out, extent.has_value() ? StrCat(*extent) : "*");
                        }),
                shape.size() == 1 ? ",)" : ")");
}

// Keeps the scales of one tensor, which are the elements of another.
class ScaleTensor final : public TileProducer {
 public:
  explicit ScaleTensor(std::vector<float> scales)
      : scales_(std::move(scales)), shape_({static_cast<int64_t>(scales_.size())}) {}

  Dtype dtype() const override { return Dtype::kF32; }
  const Shape& shape() const override { return shape_; }
  absl::Status Fill(const Tile& tile, int64_t offset_bytes, absl::Span<char> out) const override {
    SHARDMESH_ASSIGN_OR_RETURN(const TensorView view,
                               TensorView::Create(Dtype::kF32, shape_,
                                                  {reinterpret_cast<const char*>(scales_.data()),
                                                   scales_.size() * sizeof(float)}));
    return CopyTileBytes(view, tile, offset_bytes, out);
  }

 private:
  const std::vector<float> scales_;
  const Shape shape_;
};

}  // namespace

// Maps one tensor after the other.
class MappedCheckpoint::Builder {
 public:
  Builder(MappedCheckpoint* mapped, const MapOptions& options)
      : mapped_(*mapped), options_(options) {}

  absl::Status Map() {
    const std::vector<SourceTensor>& tensors = mapped_.source_->tensors();
    static const TensorMap kNoMap;
    const TensorMap& map = options_.map == nullptr ? kNoMap : *options_.map;
    std::vector<bool> is_used(map.rules.size(), false);
    std::vector<size_t> unmatched;
    SearchBudget budget;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const TensorMapRule* rule = nullptr;
      std::string name = tensors[i].name;
      for (size_t r = 0; r < map.rules.size() && rule == nullptr; ++r) {
        absl::StatusOr<std::optional<std::string>> replaced =
            map.rules[r].replacement.Apply(name, &budget);
        if (!replaced.ok()) return AtRule(replaced.status(), map.rules[r].place, name);
        if (replaced->has_value()) {
          rule = &map.rules[r];
          is_used[r] = true;
          name = **std::move(replaced);
        }
      }
      if (rule == nullptr && map.refuse_unmatched) {
        unmatched.push_back(i);
      } else if (rule != nullptr && rule->skip) {
        mapped_.skipped_.push_back(tensors[i].name);
      } else {
        SHARDMESH_RETURN_IF_ERROR(MapTensor(i, rule, std::move(name)));
      }
    }
    if (!unmatched.empty()) {
      const std::string& first = tensors[unmatched.front()].name;
      return InvalidArgument(
          Reason::kUnmatchedTensor,
          StrCat(map.source, ": no rule matches tensor ", QuotedTensor(first),
                 unmatched.size() > 1 ? StrCat(" nor ", unmatched.size() - 1,
                                               unmatched.size() == 2 ? " other" : " others")
                                      : "",
                 "; add a rule, or write unmatched: keep"),
          {{fact::kTensor, first}});
    }
    if (mapped_.tensors_.empty() && !mapped_.skipped_.empty()) {
      return BadMap(map.source, map.source,
                    StrCat("the map skips all ", mapped_.skipped_.size(), " tensors of ",
                           mapped_.source_->path()));
    }
    for (size_t r = 0; r < map.rules.size(); ++r) {
      if (!is_used[r]) mapped_.unused_rules_.push_back(map.rules[r].place);
    }
    return absl::OkStatus();
  }

 private:
  // Adds the tensor under its new name. `rule` is null if no rule matches it.
  absl::Status MapTensor(size_t index, const TensorMapRule* rule, std::string name) {
    const SourceTensor& from = mapped_.source_->tensors()[index];
    const std::string place = rule == nullptr ? "" : rule->place;
    MappedTensor tensor{.name = std::move(name), .dtype = from.dtype, .source = index};
    tensor.is_renamed = tensor.name != from.name;
    std::vector<size_t> permutation;
    if (rule != nullptr && rule->reverse) {
      permutation.resize(from.shape.size());
      std::iota(permutation.rbegin(), permutation.rend(), 0);
    } else if (rule != nullptr) {
      permutation = rule->permutation;
    }
    absl::StatusOr<Shape> shape = PermutedShape(from.shape, permutation);
    if (!shape.ok()) return AtRule(shape.status(), place, from.name);
    tensor.shape = *std::move(shape);
    tensor.is_transposed = !std::is_sorted(permutation.begin(), permutation.end());
    if (rule != nullptr && rule->shape.has_value()) {
      SHARDMESH_RETURN_IF_ERROR(CheckExpectedShape(from, tensor, *rule));
    }
    if (tensor.is_transposed && BitsPerElement(from.dtype) % 8 != 0) {
      return AtRule(InvalidArgument(Reason::kUnsupportedDtype,
                                    StrCat("elements of ", DtypeName(from.dtype),
                                           " are smaller than a byte and cannot be transposed"),
                                    {{fact::kDtype, DtypeName(from.dtype)}}),
                    place, from.name);
    }
    tensor.conversion.permutation = InFile(from, std::move(permutation));
    SHARDMESH_RETURN_IF_ERROR(SetType(from, rule, &tensor));
    std::optional<MappedTensor> scale;
    if (tensor.conversion.channel.has_value()) {
      scale = tensor;
      scale->name += kScaleSuffix;
      scale->dtype = Dtype::kF32;
      scale->shape = {tensor.shape[*tensor.conversion.channel]};
      scale->is_scale = true;
    }
    SHARDMESH_RETURN_IF_ERROR(Add(from, std::move(tensor), place));
    return scale.has_value() ? Add(from, *std::move(scale), place) : absl::OkStatus();
  }

  static absl::Status CheckExpectedShape(const SourceTensor& from, const MappedTensor& tensor,
                                         const TensorMapRule& rule) {
    bool fits = rule.shape->size() == tensor.shape.size();
    for (size_t dim = 0; fits && dim < tensor.shape.size(); ++dim) {
      fits = (*rule.shape)[dim].value_or(tensor.shape[dim]) == tensor.shape[dim];
    }
    if (fits) return absl::OkStatus();
    return AtRule(
        InvalidArgument(Reason::kShapeMismatch,
                        StrCat(from.shape == tensor.shape
                                   ? "the shape is "
                                   : StrCat("shape ", ShapeToString(from.shape), " becomes "),
                               ShapeToString(tensor.shape), ", but the rule expects ",
                               ExpectedShape(*rule.shape)),
                        {{fact::kHave, ShapeToString(tensor.shape)},
                         {fact::kNeed, ExpectedShape(*rule.shape)}}),
        rule.place, from.name);
  }

  // Returns the permutation from the dimensions of the view in the file; empty if they stay.
  static std::vector<size_t> InFile(const SourceTensor& from, std::vector<size_t> permutation) {
    const size_t rank = from.shape.size();
    if (permutation.empty()) {
      permutation.resize(rank);
      std::iota(permutation.begin(), permutation.end(), size_t{0});
    }
    if (from.is_reversed) {
      for (size_t& dim : permutation) dim = rank - 1 - dim;
    }
    if (std::is_sorted(permutation.begin(), permutation.end())) permutation.clear();
    return permutation;
  }

  absl::Status SetType(const SourceTensor& from, const TensorMapRule* rule, MappedTensor* tensor) {
    const bool by_rule = rule != nullptr && rule->dtype.has_value();
    if (by_rule) {
      tensor->dtype = *rule->dtype;
    } else if (options_.float_dtype.has_value() && IsConvertibleFloat(from.dtype)) {
      tensor->dtype = *options_.float_dtype;
    }
    if (tensor->dtype == from.dtype) return absl::OkStatus();
    const std::string place = rule == nullptr ? "" : rule->place;
    if (!CanConvert(from.dtype, tensor->dtype)) {
      return AtRule(
          InvalidArgument(
              Reason::kUnsupportedDtype,
              StrCat(DtypeName(from.dtype), " cannot be converted to ", DtypeName(tensor->dtype),
                     "; F64, F32, F16 and BF16 can become F32, F16, BF16 and I8"),
              {{fact::kDtype, DtypeName(from.dtype)}}),
          place, from.name);
    }
    tensor->is_converted = true;
    tensor->conversion.dtype = tensor->dtype;
    if (tensor->dtype != Dtype::kI8) return absl::OkStatus();
    const size_t channel = rule == nullptr ? 0 : rule->channel.value_or(0);
    if (channel >= tensor->shape.size()) {
      return AtRule(
          InvalidArgument(Reason::kShapeMismatch,
                          StrCat("channel ", channel, " is no dimension of shape ",
                                 ShapeToString(tensor->shape)),
                          {{fact::kHave, tensor->shape.size()}, {fact::kNeed, channel + 1}}),
          place, from.name);
    }
    if (const absl::Status checked = CheckChannels(tensor->shape, channel); !checked.ok()) {
      return AtRule(checked, place, from.name);
    }
    tensor->conversion.channel = channel;
    return absl::OkStatus();
  }

  absl::Status Add(const SourceTensor& from, MappedTensor tensor, std::string_view place) {
    const std::string_view where =
        place.empty() ? std::string_view(mapped_.source_->path()) : place;
    if (tensor.name.empty() || tensor.name.size() > kMaxTreeNameBytes) {
      return BadMap(
          where, where,
          StrCat("the name of tensor ", QuotedTensor(from.name), " becomes ",
                 tensor.name.empty() ? "empty" : StrCat(tensor.name.size(), " bytes long"),
                 "; a name has 1 to ", kMaxTreeNameBytes, " bytes"));
    }
    const auto [found, is_new] = taken_.emplace(tensor.name, mapped_.tensors_.size());
    if (!is_new) {
      const MappedTensor& other = mapped_.tensors_[found->second];
      const auto origin = [&](const MappedTensor& each, std::string_view source) {
        return StrCat(each.is_scale ? "the scales of " : "", QuotedTensor(source));
      };
      return BadMap(
          where, where,
          StrCat(origin(other, mapped_.SourceOf(other).name), " and ", origin(tensor, from.name),
                 " both get the name ", QuotedTensor(tensor.name)));
    }
    // Cannot fail: the source's size was checked, and no result is larger than 8 times the source.
    const absl::StatusOr<int64_t> elements = ElementCount(tensor.shape);
    SHARDMESH_RETURN_IF_ERROR(elements.status());
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, WholeSizeBytes(tensor.dtype, *elements));
    mapped_.size_bytes_ += bytes;
    mapped_.tensors_.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  MappedCheckpoint& mapped_;
  const MapOptions& options_;
  absl::flat_hash_map<std::string, size_t> taken_;  // index in tensors_ by new name
};

absl::StatusOr<MappedCheckpoint> MappedCheckpoint::Create(
    std::shared_ptr<const TensorSource> source, const MapOptions& options) {
  MappedCheckpoint mapped(std::move(source));
  SHARDMESH_RETURN_IF_ERROR(Builder(&mapped, options).Map());
  return mapped;
}

std::string MappedCheckpoint::ConversionOf(const MappedTensor& tensor) const {
  if (IsPlain(tensor)) return "";
  const TensorView& from = SourceOf(tensor).view;
  const Conversion& conversion = tensor.conversion;
  return StrCat(ConversionText(from.dtype(), from.shape(), conversion.permutation,
                               conversion.dtype.value_or(from.dtype()), conversion.channel),
                tensor.is_scale ? ", scales" : "");
}

std::optional<SourceConversion> MappedCheckpoint::ReadAs(const MappedTensor& tensor) const {
  if (IsPlain(tensor)) return std::nullopt;
  return SourceConversion{.dtype = SourceOf(tensor).dtype,
                          .permutation = tensor.conversion.permutation};
}

absl::StatusOr<std::vector<TensorElements>> MappedCheckpoint::Elements() const {
  SHARDMESH_RETURN_IF_ERROR(source_->CheckIntegrity());
  std::vector<TensorElements> elements;
  elements.reserve(tensors_.size());
  std::vector<float> scales;  // of the tensor before, for the scale tensor that follows it
  for (const MappedTensor& tensor : tensors_) {
    const SourceTensor& from = SourceOf(tensor);
    if (tensor.is_scale) {
      elements.emplace_back(std::make_shared<const ScaleTensor>(std::move(scales)));
      continue;
    }
    if (IsPlain(tensor)) {
      elements.emplace_back(from.view);
      continue;
    }
    if (tensor.conversion.channel.has_value()) {
      const std::vector<size_t>& permutation = tensor.conversion.permutation;
      const size_t channel = *tensor.conversion.channel;
      absl::StatusOr<std::vector<float>> computed =
          ChannelScales(from.view, permutation.empty() ? channel : permutation[channel]);
      if (!computed.ok()) {
        return AtRule(computed.status(), source_->path(), from.name);
      }
      scales = *std::move(computed);
    }
    absl::StatusOr<std::shared_ptr<const ConvertedTensor>> converted =
        ConvertedTensor::Create(from.view, tensor.conversion, scales);
    if (!converted.ok()) return AtRule(converted.status(), source_->path(), from.name);
    elements.emplace_back(std::shared_ptr<const TileProducer>(*std::move(converted)));
  }
  return elements;
}

}  // namespace shardmesh
