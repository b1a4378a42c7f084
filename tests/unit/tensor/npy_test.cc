// .npy files: what NumPy writes is read, what cannot be a tensor is refused.
#include "tensor/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>

#include "process/failpoint.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Version1(std::string_view dictionary) {
  std::string bytes = "\x93NUMPY";
  bytes.append({'\x01', '\x00', static_cast<char>(dictionary.size() & 0xFF),
                static_cast<char>(dictionary.size() >> 8)});
  return bytes + std::string(dictionary);
}

absl::StatusOr<NpyHeader> Parse(const std::string& header, int64_t data_bytes) {
  return ParseNpyHeader("f.npy", header, static_cast<int64_t>(header.size()) + data_bytes);
}

TEST(NpyTest, ReadsWhatNumpyWrites) {
  const std::string header =
      Version1("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NpyHeader npy, Parse(header, 24));
  EXPECT_EQ(npy.dtype, Dtype::kF32);
  EXPECT_THAT(npy.shape, ElementsAre(2, 3));
  EXPECT_EQ(npy.data_offset_bytes, static_cast<int64_t>(header.size()));
}

TEST(NpyTest, ReadsOtherSpellings) {
  const struct {
    const char* dictionary;
    int64_t data_bytes;
    Dtype dtype;
  } cases[] = {
      {"{'descr': '|V2', 'fortran_order': False, 'shape': (3,), }", 6, Dtype::kBF16},
      {"{'descr': '<V2', 'fortran_order': False, 'shape': (3,), }", 6, Dtype::kBF16},
      {"{\"shape\": (5L,), \"fortran_order\": True, \"descr\": \"|u1\"}", 5, Dtype::kU8},
      {"{'descr': '<i8', 'fortran_order': True, 'shape': (1, 3, 1), }", 24, Dtype::kI64},
      {"{'descr': '|b1', 'fortran_order': False, 'shape': (), }", 1, Dtype::kBool},
  };
  for (const auto& c : cases) {
    const auto header = Parse(Version1(c.dictionary), c.data_bytes);
    ASSERT_THAT(header, IsOk()) << c.dictionary;
    EXPECT_EQ(header->dtype, c.dtype) << c.dictionary;
  }
}

TEST(NpyTest, ReadsVersionTwo) {
  const std::string dictionary = "{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }\n";
  std::string header = "\x93NUMPY";
  header.append({'\x02', '\x00', static_cast<char>(dictionary.size()), '\0', '\0', '\0'});
  EXPECT_THAT(Parse(header + dictionary, 4), IsOk());
}

TEST(NpyTest, RefusesMalformedFiles) {
  const struct {
    std::string bytes;
    int64_t data_bytes;
    Reason reason;
    const char* message;
  } cases[] = {
      {"", 0, Reason::kBadFile, "not a .npy file"},
      {"\x93NUMPY", 0, Reason::kBadFile, "not a .npy file"},
      {std::string("\x93NUMPY\x04\x00\x00\x00", 10), 0, Reason::kBadFile, "version 4"},
      {std::string("\x93NUMPY\x01\x00\xFF\x00{}", 12), 0, Reason::kBadFile, "claims 255 bytes"},
      {std::string("\x93NUMPY\x02\x00\xFF\xFF\xFF\xFF{}", 14), 0, Reason::kBadFile, "claims"},
      {Version1("[]"), 0, Reason::kBadFile, "not a dictionary"},
      {Version1("{"), 0, Reason::kBadFile, "malformed"},
      {Version1("{'descr': '<f4'}"), 0, Reason::kBadFile, "lacks"},
      {Version1("{'descr': '<f4', 'descr': '<f4'}"), 0, Reason::kBadFile, "twice"},
      {Version1("{'descr': '<f4', 'fortran_order': 0}"), 0, Reason::kBadFile, "fortran_order"},
      {Version1("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}"), 0, Reason::kBadFile,
       "bad value for shape"},
      {Version1("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}"), 0,
       Reason::kBadFile, "bad value for shape"},
      {Version1("{'descr': '<f4', 'fortran_order': False, 'shape': "
                "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)}"),
       4, Reason::kBadFile, "the array has more than 16 dimensions"},
      {Version1("{'descr': '<f4', 'fortran_order': False, 'shape': "
                "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,-1)}"),
       4, Reason::kBadFile, "bad value for shape"},
      {Version1("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}"), 0,
       Reason::kBadFile, "f.npy"},
      {Version1("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x"), 8, Reason::kBadFile,
       "goes on"},
      {Version1("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"), 7, Reason::kBadFile,
       "takes 8 bytes, but 7 follow"},
      {Version1("{'descr': '>f4', 'fortran_order': False, 'shape': (2,)}"), 8,
       Reason::kUnsupportedDtype, "newbyteorder"},
      {Version1("{'descr': '|O', 'fortran_order': False, 'shape': (2,)}"), 8,
       Reason::kUnsupportedDtype, "'|O'"},
      {Version1("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}"), 8,
       Reason::kUnsupportedDtype, "structured"},
      {Version1("{'descr': '', 'fortran_order': False, 'shape': (2,)}"), 8,
       Reason::kUnsupportedDtype, "cannot be read"},
  };
  for (const auto& c : cases) {
    const auto header = Parse(c.bytes, c.data_bytes);
    EXPECT_THAT(header, StatusIs(absl::StatusCode::kInvalidArgument, c.reason)) << c.bytes;
    EXPECT_THAT(std::string(header.status().message()), HasSubstr(c.message)) << c.bytes;
  }
}

TEST(NpyTest, WhatIsWrittenIsReadBack) {
  const std::string path = testing::TempDir() + "/written.npy";
  const std::string bytes = "0123456789abcdef01234567";
  for (const Dtype dtype : AllDtypes()) {
    const int64_t count = 24 * 8 / BitsPerElement(dtype);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorView tensor,
                                   TensorView::Create(dtype, {count, 1}, bytes));
    if (NpyTypeString(dtype).empty()) {
      EXPECT_THAT(WriteNpy(path, tensor),
                  StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype));
      continue;
    }
    ASSERT_THAT(WriteNpy(path, tensor), IsOk());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const NpyFile file, NpyFile::Open(path));
    EXPECT_EQ(file.View().dtype(), dtype);
    EXPECT_THAT(file.View().shape(), ElementsAre(count, 1));
    EXPECT_EQ(file.View().bytes(), absl::MakeConstSpan(bytes));
    EXPECT_EQ(EncodeNpyHeader(dtype, {count, 1})->size() % 64, 0u);
  }
}

TEST(NpyTest, AnErrorNamesTheFileThatWasAskedFor) {
  const std::string bytes(4, 'b');
  const TensorView tensor = *TensorView::Create(Dtype::kU8, {4}, bytes);
  const std::string nowhere = ::testing::TempDir() + "nowhere/a.npy";
  EXPECT_EQ(WriteNpy(nowhere, tensor).message(),
            "cannot create " + nowhere + ": No such file or directory; make its folder first");
  const std::string folder = ::testing::TempDir();
  EXPECT_EQ(WriteNpy(folder, tensor).message(),
            "cannot write " + folder + ": Is a directory; name a file in it");
}

TEST(NpyTest, ADeviceOrPipeIsNotReplacedByAFile) {
  const std::string bytes(4, 'b');
  const TensorView tensor = *TensorView::Create(Dtype::kU8, {4}, bytes);
  const std::string pipe = ::testing::TempDir() + "pipe.npy";
  const std::string link = ::testing::TempDir() + "link_to_pipe.npy";
  std::filesystem::remove(pipe);
  std::filesystem::remove(link);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink(pipe, link);
  for (const std::string& path : {pipe, link}) {
    const absl::Status status = WriteNpy(path, tensor);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
    EXPECT_EQ(status.message(), "cannot write " + path +
                                    ": it is a device, a pipe or a socket, which a file would "
                                    "replace; name a regular file");
  }
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_TRUE(std::filesystem::is_symlink(link));
}

TEST(NpyTest, TheFileThatALinkLeadsToIsReplacedAndTheLinkStays) {
  const std::string bytes(4, 'b');
  const TensorView tensor = *TensorView::Create(Dtype::kU8, {4}, bytes);
  const std::string file = ::testing::TempDir() + "linked.npy";
  const std::string link = ::testing::TempDir() + "link.npy";
  std::filesystem::remove(link);
  std::ofstream(file) << "before";
  std::filesystem::create_symlink("linked.npy", link);
  ASSERT_THAT(WriteNpy(link, tensor), IsOk());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NpyFile written, NpyFile::Open(file));
  EXPECT_EQ(written.View().bytes(), absl::MakeConstSpan(bytes));
}

TEST(NpyTest, TheFileThatALinkLeadsToIsMadeAndTheLinkStays) {
  const std::string bytes(4, 'b');
  const TensorView tensor = *TensorView::Create(Dtype::kU8, {4}, bytes);
  const std::string folder = ::testing::TempDir() + "made_by_link/";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder + "inner");
  std::filesystem::create_symlink("inner/second.npy", folder + "first.npy");
  std::filesystem::create_symlink(folder + "made.npy", folder + "inner/second.npy");
  ASSERT_THAT(WriteNpy(folder + "first.npy", tensor), IsOk());
  EXPECT_TRUE(std::filesystem::is_symlink(folder + "first.npy"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder + "inner/second.npy"));
  EXPECT_FALSE(std::filesystem::is_symlink(folder + "made.npy"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NpyFile made, NpyFile::Open(folder + "made.npy"));
  EXPECT_EQ(made.View().bytes(), absl::MakeConstSpan(bytes));

  const std::string nowhere = folder + "nowhere.npy";
  std::filesystem::create_symlink("no_folder/a.npy", nowhere);
  EXPECT_EQ(WriteNpy(nowhere, tensor).message(),
            "cannot create " + folder +
                "no_folder/a.npy: No such file or directory; make its folder first");
  EXPECT_TRUE(std::filesystem::is_symlink(nowhere));
}

TEST(NpyTest, RefusesALoopOfLinks) {
  const std::string bytes(4, 'b');
  const TensorView tensor = *TensorView::Create(Dtype::kU8, {4}, bytes);
  const std::string a = ::testing::TempDir() + "loop_a.npy";
  const std::string b = ::testing::TempDir() + "loop_b.npy";
  std::filesystem::remove(a);
  std::filesystem::remove(b);
  std::filesystem::create_symlink(b, a);
  std::filesystem::create_symlink("loop_a.npy", b);
  EXPECT_EQ(WriteNpy(a, tensor).message(),
            "cannot follow the link " + a +
                ": Too many levels of symbolic links; name another file, or remove the links");
  EXPECT_TRUE(std::filesystem::is_symlink(a));
  EXPECT_TRUE(std::filesystem::is_symlink(b));
}

TEST(NpyTest, TurnsFortranOrderRound) {
  // numpy.asfortranarray(numpy.arange(24, dtype='<i2').reshape(2, 3, 4))
  std::string data = Version1("{'descr': '<i2', 'fortran_order': True, 'shape': (2, 3, 4)}");
  for (int k = 0; k < 4; ++k) {
    for (int j = 0; j < 3; ++j) {
      for (int i = 0; i < 2; ++i) {
        data.append({static_cast<char>(12 * i + 4 * j + k), '\0'});
      }
    }
  }
  const std::string path = ::testing::TempDir() + "fortran.npy";
  std::ofstream(path, std::ios::binary) << data;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NpyFile file, NpyFile::Open(path));
  EXPECT_THAT(file.View().shape(), ElementsAre(2, 3, 4));
  for (int n = 0; n < 24; ++n) {
    EXPECT_EQ(file.View().bytes()[static_cast<size_t>(2 * n)], n);
  }
  for (const bool is_mapped : {true, false}) {
    ASSERT_THAT(ArmFailpoints("npy.reorder=eio"), IsOk());
    const absl::Status refused =
        (is_mapped ? NpyFile::Open(path) : NpyFile::Read(path, {data.begin(), data.end()}))
            .status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
    EXPECT_THAT(refused.message(), HasSubstr("no memory for a reordered copy of 48 B"));
  }
  std::ostringstream out;
  ASSERT_THAT(WriteNpy(out, file.View()), IsOk());
  ASSERT_THAT(WriteNpy(path, file.View()), IsOk());
  std::ifstream written(path, std::ios::binary);
  EXPECT_EQ(out.str(), std::string(std::istreambuf_iterator<char>(written), {}));
}

}  // namespace
}  // namespace shardmesh
