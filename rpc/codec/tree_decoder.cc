// Decodes a tree from the columns of its messages, and checks the size of stored trees.
#include "rpc/codec/tree_decoder.h"

#include <string>

#include "rpc/codec/array_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "sharding/shape.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

absl::Status CheckColumn(int have, int names, bool may_be_empty, std::string_view column) {
  if (have == names || (may_be_empty && have == 0)) {
    return absl::OkStatus();
  }
  return BadField(column, StrCat("has ", have, " entries for ", names, " names; give ",
                                 may_be_empty ? "none or one a name" : "one a name"));
}

absl::Status CheckTable(size_t have, int more, std::string_view table) {
  if (have + static_cast<size_t>(more) <= TreeDecoder::kMaxTableSize) {
    return absl::OkStatus();
  }
  return WithField(InvalidArgument(Reason::kLimitExceeded,
                                   StrCat("the tree has more than ", TreeDecoder::kMaxTableSize,
                                          " entries here"),
                                   {{fact::kHave, have + static_cast<size_t>(more)},
                                    {fact::kLimit, TreeDecoder::kMaxTableSize}}),
                   table);
}

// Returns the table entry for an index of a column. Index 0 means no entry: null.
template <typename Entry>
absl::StatusOr<const Entry*> Find(const std::deque<Entry>& table, uint32_t index,
                                  std::string_view column, int place) {
  if (index == 0) {
    return nullptr;
  }
  if (index > table.size()) {
    return WithField(InvalidArgument(Reason::kBadField,
                                     StrCat("is ", index, ", and the table has ", table.size(),
                                            " entries so far; write 1 + an index into it, or 0"),
                                     {{fact::kValue, index}}),
                     StrCat(column, "[", place, "]"));
  }
  return &table[index - 1];
}

// Whether this byte begins a UTF-8 character.
bool BeginsCharacter(char c) { return (c & 0xc0) != 0x80; }

// Takes the next bytes of `names` as the name of the tensor at index `place`. The caller has
// checked that `names` as a whole is UTF-8.
absl::StatusOr<std::string_view> TakeName(std::string_view* names, uint32_t size, int place) {
  const auto refuse = [place](Reason reason, std::string_view message, Facts facts = {}) {
    return WithField(InvalidArgument(reason, message, facts), "name_sizes",
                     static_cast<size_t>(place));
  };
  if (size == 0) {
    return refuse(Reason::kBadField, "the name is empty; rules go by the tensor's name");
  }
  if (size > TreeDecoder::kMaxNameBytes) {
    return refuse(Reason::kLimitExceeded,
                  StrCat("the name has ", size, " bytes; at most ", TreeDecoder::kMaxNameBytes,
                         " are allowed"),
                  {{fact::kHave, size}, {fact::kLimit, TreeDecoder::kMaxNameBytes}});
  }
  if (size > names->size()) {
    return refuse(Reason::kBadField,
                  StrCat("is ", size, ", and `names` has only ", names->size(), " bytes left"),
                  {{fact::kValue, size}});
  }
  if (size < names->size() && !BeginsCharacter((*names)[size])) {
    return refuse(Reason::kBadField, "the name ends within a character of UTF-8");
  }
  const std::string_view name = names->substr(0, size);
  names->remove_prefix(size);
  return name;
}

}  // namespace

absl::StatusOr<absl::Span<const TreeTensor>> TreeDecoder::Decode(const v1::TreeTensors& from) {
  SHARDMESH_RETURN_IF_ERROR(CheckTable(axes_.size(), from.axes_table_size(), "axes_table"));
  for (int i = 0; i < from.axes_table_size(); ++i) {
    auto axes = DecodeAxes(from.axes_table(i).axes());
    if (!axes.ok()) {
      return WithField(WithField(axes.status(), "axes"), "axes_table", static_cast<size_t>(i));
    }
    axes_.push_back(*std::move(axes));
  }
  SHARDMESH_RETURN_IF_ERROR(CheckTable(specs_.size(), from.spec_table_size(), "spec_table"));
  for (int i = 0; i < from.spec_table_size(); ++i) {
    auto spec = rpc::Decode(from.spec_table(i));
    if (!spec.ok()) {
      return WithField(spec.status(), "spec_table", static_cast<size_t>(i));
    }
    specs_.push_back(*std::move(spec));
  }

  const int count = from.name_sizes_size();
  SHARDMESH_RETURN_IF_ERROR(CheckColumn(from.ranks_size(), count, false, "ranks"));
  SHARDMESH_RETURN_IF_ERROR(CheckColumn(from.dtypes_size(), count, true, "dtypes"));
  SHARDMESH_RETURN_IF_ERROR(CheckColumn(from.axes_indexes_size(), count, true, "axes_indexes"));
  SHARDMESH_RETURN_IF_ERROR(CheckColumn(from.spec_indexes_size(), count, true, "spec_indexes"));

  tensors_.clear();
  std::string_view names = from.names();
  tensors_.reserve(static_cast<size_t>(count));
  absl::Span<const int64_t> sizes(from.sizes().data(), static_cast<size_t>(from.sizes_size()));
  for (int i = 0; i < count; ++i) {
    const auto place = static_cast<size_t>(i);
    TreeTensor& tensor = tensors_.emplace_back();
    SHARDMESH_ASSIGN_OR_RETURN(tensor.name, TakeName(&names, from.name_sizes(i), i));
    const uint32_t rank = from.ranks(i);
    if (rank > kMaxRank || rank > sizes.size()) {
      return WithField(
          InvalidArgument(
              Reason::kBadField,
              rank > kMaxRank
                  ? StrCat("is ", rank, "; tensors have at most ", kMaxRank, " dimensions")
                  : StrCat("is ", rank, ", and `sizes` has only ", sizes.size(), " entries left"),
              {{fact::kValue, rank}}),
          "ranks", place);
    }
    tensor.shape = sizes.first(rank);
    sizes.remove_prefix(rank);
    if (const absl::Status status = CheckShape(tensor.shape); !status.ok()) {
      return WithField(WithContext(status, StrCat("tensor ", PythonRepr(tensor.name))), "sizes");
    }
    if (from.dtypes_size() != 0 && from.dtypes(i) != v1::DTYPE_UNSPECIFIED) {
      auto dtype = rpc::Decode(from.dtypes(i));
      if (!dtype.ok()) {
        return WithField(dtype.status(), "dtypes", place);
      }
      tensor.dtype = *dtype;
    }
    if (from.axes_indexes_size() != 0) {
      SHARDMESH_ASSIGN_OR_RETURN(tensor.axes, Find(axes_, from.axes_indexes(i), "axes_indexes", i));
    }
    if (from.spec_indexes_size() != 0) {
      SHARDMESH_ASSIGN_OR_RETURN(tensor.spec,
                                 Find(specs_, from.spec_indexes(i), "spec_indexes", i));
    }
    if (tensor.axes != nullptr && tensor.spec != nullptr) {
      return WithField(
          InvalidArgument(Reason::kBadField,
                          "gives the tensor a spec, and axes_indexes gives it axes; give one"),
          "spec_indexes", place);
    }
  }
  if (!names.empty()) {
    return BadField("names",
                    StrCat("has ", names.size(), " bytes more than the name_sizes ask for"));
  }
  if (!sizes.empty()) {
    return BadField("sizes", StrCat("has ", sizes.size(), " entries more than the ranks ask for"));
  }
  return absl::MakeConstSpan(tensors_);
}

absl::Status CheckStoredTreeSize(const v1::TreeTensors& tensors) {
  if (tensors.name_sizes().empty()) {
    return BadField("tensors", "is empty; a tree that is kept has tensors");
  }
  constexpr std::string_view kInstead = "; give a tree as large as this with each question instead";
  if (tensors.name_sizes_size() > kMaxStoredTreeTensors) {
    return WithField(
        InvalidArgument(
            Reason::kLimitExceeded,
            StrCat(tensors.name_sizes_size(), " tensors are over the limit of ",
                   kMaxStoredTreeTensors, kInstead),
            {{fact::kHave, tensors.name_sizes_size()}, {fact::kLimit, kMaxStoredTreeTensors}}),
        "tensors");
  }
  const auto bytes = static_cast<int64_t>(tensors.ByteSizeLong());
  if (bytes > kMaxStoredTreeBytes) {
    return WithField(
        InvalidArgument(Reason::kLimitExceeded,
                        StrCat("names and shapes take ", bytes, " bytes, over the limit of ",
                               kMaxStoredTreeBytes, kInstead),
                        {{fact::kHave, bytes}, {fact::kLimit, kMaxStoredTreeBytes}}),
        "tensors");
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::rpc
