// NumPy's .npy files: a header that is a Python dictionary, and the elements.
#include "tensor/npy.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "process/failpoint.h"
#include "status/byte_text.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kAlignment = 64;
// Upper bound on a header's size, far above the size of real headers. Files with a larger header
// are refused, although the format allows 4 GiB from version 2 on.
constexpr size_t kMaxHeaderBytes = size_t{1} << 20;

absl::Status BadFile(std::string_view source, std::string_view what) {
  return InvalidArgument(Reason::kBadFile, StrCat(source, ": ", what), {{fact::kFile, source}});
}

std::string Escaped(std::string_view text) { return absl::CHexEscape(ToAbsl(text.substr(0, 100))); }

// Parses the Python literals that occur in headers.
class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : rest_(text) {}

  // Consumes `token` if it is next, after spaces.
  bool Take(std::string_view token) {
    SkipSpaces();
    if (rest_.substr(0, token.size()) != token) {
      return false;
    }
    rest_.remove_prefix(token.size());
    return true;
  }

  bool AtEnd() {
    SkipSpaces();
    return rest_.empty();
  }

  // Parses a quoted text without escapes.
  std::optional<std::string_view> Text() {
    SkipSpaces();
    if (rest_.empty() || (rest_.front() != '\'' && rest_.front() != '"')) {
      return std::nullopt;
    }
    const size_t end = rest_.find(rest_.front(), 1);
    if (end == std::string_view::npos) {
      return std::nullopt;
    }
    const std::string_view text = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return text;
  }

  std::optional<bool> Boolean() {
    if (Take("True")) {
      return true;
    }
    if (Take("False")) {
      return false;
    }
    return std::nullopt;
  }

  // Parses a tuple of non-negative integers. `L` may follow an integer, as Python 2 wrote it.
  bool Tuple(Shape* shape) {
    if (!Take("(")) {
      return false;
    }
    while (!Take(")")) {
      SkipSpaces();
      const size_t digits = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
      int64_t number = 0;
      if (static_cast<int64_t>(shape->size()) == kMaxRank ||
          !absl::SimpleAtoi(ToAbsl(rest_.substr(0, digits)), &number)) {
        return false;
      }
      rest_.remove_prefix(digits);
      Take("L");
      shape->push_back(number);
      if (!Take(",")) {
        return Take(")");
      }
    }
    return true;
  }

  std::string_view rest() const { return rest_; }

 private:
  void SkipSpaces() {
    while (!rest_.empty() && absl::ascii_isspace(static_cast<unsigned char>(rest_.front()))) {
      rest_.remove_prefix(1);
    }
  }

  std::string_view rest_;
};

struct Dictionary {
  std::optional<std::string_view> type;
  std::optional<bool> fortran_order;
  bool has_shape = false;
  Shape shape;
};

absl::StatusOr<Dictionary> ReadDictionary(std::string_view source, std::string_view text) {
  LiteralReader reader(text);
  Dictionary dictionary;
  if (!reader.Take("{")) {
    return BadFile(source, StrCat("the header is not a dictionary but ", Escaped(text)));
  }
  while (!reader.Take("}")) {
    const std::optional<std::string_view> key = reader.Text();
    if (!key.has_value() || !reader.Take(":")) {
      return BadFile(source, StrCat("the header is malformed at ", Escaped(reader.rest())));
    }
    const std::string_view before = reader.rest();
    bool read = false;
    if (*key == "descr" && !dictionary.type.has_value()) {
      if (reader.Take("[")) {
        return InvalidArgument(Reason::kUnsupportedDtype,
                               StrCat(source,
                                      ": structured elements are no tensor; save one "
                                      "field of the array"),
                               {{fact::kDtype, "structured"}});
      }
      read = (dictionary.type = reader.Text()).has_value();
    } else if (*key == "fortran_order" && !dictionary.fortran_order.has_value()) {
      read = (dictionary.fortran_order = reader.Boolean()).has_value();
    } else if (*key == "shape" && !dictionary.has_shape) {
      read = dictionary.has_shape = reader.Tuple(&dictionary.shape);
    } else {
      return BadFile(
          source, StrCat("the header has the key \"", Escaped(*key), "\" twice, or it is unknown"));
    }
    if (*key == "shape" && static_cast<int64_t>(dictionary.shape.size()) == kMaxRank && !read) {
      return BadFile(source, StrCat("the array has more than ", kMaxRank,
                                    " dimensions, the most that a tensor may have; reshape it"));
    }
    if (!read) {
      return BadFile(source,
                     StrCat("the header has a bad value for ", *key, ": ", Escaped(before)));
    }
    if (!reader.Take(",")) {
      if (!reader.Take("}")) {
        return BadFile(source, StrCat("the header is malformed at ", Escaped(reader.rest())));
      }
      break;
    }
  }
  if (!reader.AtEnd()) {
    return BadFile(source, StrCat("the header goes on after its end: ", Escaped(reader.rest())));
  }
  if (!dictionary.type.has_value() || !dictionary.fortran_order.has_value() ||
      !dictionary.has_shape) {
    return BadFile(source, "the header lacks descr, fortran_order or shape");
  }
  return dictionary;
}

absl::StatusOr<Dtype> DtypeOf(std::string_view source, std::string_view type) {
  // The first character of a NumPy type is its byte order, or '|' if the type has none.
  for (const Dtype dtype : AllDtypes()) {
    const std::string_view known = NpyTypeString(dtype);
    if (!known.empty() && !type.empty() && type.substr(1) == known.substr(1) &&
        (type.front() == '<' ||
         (type.front() == '|' && (known.front() == '|' || dtype == Dtype::kBF16)))) {
      return dtype;
    }
  }
  const std::string_view remedy = !type.empty() && type.front() == '>'
                                      ? "convert it with a.astype(a.dtype.newbyteorder('<'))"
                                      : "convert it with a.astype() to a type such as float32";
  return InvalidArgument(
      Reason::kUnsupportedDtype,
      StrCat(source, ": elements of NumPy type '", Escaped(type), "' cannot be read; ", remedy),
      {{fact::kDtype, Escaped(type)}});
}

// Reorders elements from Fortran order (the first index varies fastest) to C order.
std::vector<char> ToRowMajor(absl::Span<const char> from, const Shape& shape,
                             size_t element_bytes) {
  std::vector<char> to(from.size());
  // The distance of adjacent elements in `from` along each dimension.
  std::vector<size_t> strides(shape.size());
  size_t stride = element_bytes;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    strides[dim] = stride;
    stride *= static_cast<size_t>(shape[dim]);
  }
  std::vector<int64_t> index(shape.size(), 0);
  size_t source = 0;
  for (size_t target = 0; target < to.size(); target += element_bytes) {
    std::memcpy(&to[target], &from[source], element_bytes);
    for (size_t dim = shape.size(); dim-- > 0;) {
      source += strides[dim];
      if (++index[dim] < shape[dim]) break;
      source -= strides[dim] * static_cast<size_t>(shape[dim]);
      index[dim] = 0;
    }
  }
  return to;
}

}  // namespace

absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view source, absl::Span<const char> bytes,
                                         int64_t file_size_bytes) {
  const std::string_view file(bytes.data(), bytes.size());
  if (file.substr(0, kMagic.size()) != kMagic || file.size() < kMagic.size() + 4) {
    return BadFile(source, "this is not a .npy file: it does not begin with \\x93NUMPY");
  }
  const int version = static_cast<unsigned char>(file[kMagic.size()]);
  if (version < 1 || version > 3) {
    return BadFile(source, StrCat("version ", version, " of the .npy format is not known"));
  }
  const size_t length_bytes = version == 1 ? 2 : 4;
  const size_t start = kMagic.size() + 2 + length_bytes;
  size_t header_bytes = 0;
  for (size_t i = 0; i < length_bytes && start <= file.size(); ++i) {
    header_bytes |= size_t{static_cast<unsigned char>(file[kMagic.size() + 2 + i])} << (8 * i);
  }
  if (start > file.size() || header_bytes > file.size() - start || header_bytes > kMaxHeaderBytes) {
    return BadFile(source, StrCat("the header claims ", header_bytes, " bytes of a file of ",
                                  file_size_bytes, ": the file is cut off or damaged"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Dictionary dictionary,
                             ReadDictionary(source, file.substr(start, header_bytes)));
  NpyHeader header;
  header.shape = dictionary.shape;
  header.data_offset_bytes = static_cast<int64_t>(start + header_bytes);
  SHARDMESH_ASSIGN_OR_RETURN(header.dtype, DtypeOf(source, *dictionary.type));
  header.fortran_order =
      *dictionary.fortran_order &&
      std::count_if(header.shape.begin(), header.shape.end(), [](int64_t n) { return n > 1; }) > 1;
  const absl::StatusOr<int64_t> elements = ElementCount(header.shape);
  const absl::StatusOr<int64_t> need_bytes =
      elements.ok() ? PackedSizeBytes(header.dtype, *elements) : elements.status();
  if (!need_bytes.ok()) {
    return BadFile(source, ToStd(need_bytes.status().message()));
  }
  const int64_t have_bytes = file_size_bytes - header.data_offset_bytes;
  if (*need_bytes != have_bytes) {
    return BadFile(
        source, StrCat(DtypeName(header.dtype), " of shape ", ShapeToString(header.shape),
                       " takes ", *need_bytes, " bytes, but ", have_bytes, " follow the header"));
  }
  return header;
}

absl::StatusOr<NpyFile> NpyFile::Open(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path));
  SHARDMESH_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Map(file, path));
  SHARDMESH_ASSIGN_OR_RETURN(NpyFile npy, Create(path, std::move(mapped)));
  const auto head_bytes = static_cast<size_t>(npy.header_.data_offset_bytes);
  SHARDMESH_ASSIGN_OR_RETURN(npy.state_,
                             IdentifyFile(file, path, BytesOf(npy.content_).first(head_bytes)));
  return npy;
}

absl::StatusOr<NpyFile> NpyFile::Read(std::string_view source, std::vector<char> bytes) {
  return Create(source, std::move(bytes));
}

absl::StatusOr<NpyFile> NpyFile::Create(std::string_view source, Content content) {
  const absl::Span<const char> bytes = BytesOf(content);
  SHARDMESH_ASSIGN_OR_RETURN(NpyHeader header,
                             ParseNpyHeader(source, bytes, static_cast<int64_t>(bytes.size())));
  NpyFile npy(std::move(header), std::move(content));
  if (npy.header_.fortran_order) {
    const absl::Span<const char> elements =
        BytesOf(npy.content_).subspan(static_cast<size_t>(npy.header_.data_offset_bytes));
    try {
      if (SHARDMESH_FAILS("npy.reorder")) throw std::bad_alloc();
      npy.turned_ = ToRowMajor(elements, npy.header_.shape,
                               static_cast<size_t>(BitsPerElement(npy.header_.dtype)) / 8);
    } catch (const std::bad_alloc&) {
      return WithReason(absl::ResourceExhaustedError(
                            StrCat(source, ": this host has no memory for a reordered copy of ",
                                   FormatBytes(static_cast<int64_t>(elements.size())),
                                   "; write the file in C order, with numpy.ascontiguousarray")),
                        Reason::kMemoryLimit, {{fact::kNeed, elements.size()}});
    }
  }
  return npy;
}

absl::Span<const char> NpyFile::BytesOf(const Content& content) {
  const auto* const mapped = std::get_if<MappedFile>(&content);
  return mapped != nullptr ? mapped->bytes()
                           : absl::MakeConstSpan(std::get<std::vector<char>>(content));
}

TensorView NpyFile::View() const {
  if (header_.fortran_order) {
    return *TensorView::Create(header_.dtype, header_.shape, turned_);
  }
  // TensorView::Create cannot fail: the header was checked against the file.
  return *TensorView::Create(
      header_.dtype, header_.shape,
      BytesOf(content_).subspan(static_cast<size_t>(header_.data_offset_bytes)));
}

absl::StatusOr<std::string> EncodeNpyHeader(Dtype dtype, absl::Span<const int64_t> shape) {
  SHARDMESH_RETURN_IF_ERROR(CheckShape(shape));
  const std::string_view type = NpyTypeString(dtype);
  if (type.empty()) {
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat("NumPy has no type for ", DtypeName(dtype), "; write a .safetensors file instead"),
        {{fact::kDtype, DtypeName(dtype)}});
  }
  std::string dictionary = StrCat(
      "{'descr': '", type, "', 'fortran_order': False, 'shape': ", ShapeToString(shape), ", }");
  // Pad with spaces, so that the newline ends the header at a multiple of kAlignment.
  const size_t start = kMagic.size() + 4;
  const size_t used = (start + dictionary.size() + 1) % kAlignment;
  dictionary.append((kAlignment - used) % kAlignment, ' ');
  dictionary.push_back('\n');
  std::string header(kMagic);
  header.append({'\x01', '\x00', static_cast<char>(dictionary.size() & 0xFF),
                 static_cast<char>(dictionary.size() >> 8)});
  return header + dictionary;
}

absl::Status WriteNpy(const std::string& path, const TensorView& tensor) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string header,
                             EncodeNpyHeader(tensor.dtype(), tensor.shape()));
  SHARDMESH_ASSIGN_OR_RETURN(AtomicFileWriter file, AtomicFileWriter::Create(path));
  SHARDMESH_RETURN_IF_ERROR(file.Append(header));
  SHARDMESH_RETURN_IF_ERROR(file.Append(tensor.bytes()));
  return file.Finish();
}

absl::Status WriteNpy(std::ostream& out, const TensorView& tensor) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string header,
                             EncodeNpyHeader(tensor.dtype(), tensor.shape()));
  out << header;
  out.write(tensor.bytes().data(), static_cast<std::streamsize>(tensor.bytes().size()));
  out.flush();
  return out ? absl::OkStatus()
             : WithReason(absl::DataLossError(
                              "the output cannot be written: it was closed, or its disk is full"),
                          Reason::kBadFile);
}

}  // namespace shardmesh
