// Certificates for tests: an authority in memory, and files that it signs, in a folder of the test.
#ifndef SHARDMESH_TESTS_TESTING_CERTIFICATES_H_
#define SHARDMESH_TESTS_TESTING_CERTIFICATES_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "rpc/certificate.h"
#include "sharding/str_cat.h"

namespace shardmesh::test {

// Signs what a test asks for, also what nobody should take.
class TestAuthority {
 public:
  TestAuthority() : pair_(*rpc::MakeAuthority(absl::Now(), absl::Now() + absl::Hours(24))) {}

  const std::string& certificate() const { return pair_.certificate; }
  rpc::KeyPair Issue(const rpc::PeerName& name,
                     absl::Time not_before = absl::Now() - absl::Hours(1),
                     absl::Time not_after = absl::Now() + absl::Hours(1)) const {
    return *rpc::MakeCertificate(
        pair_,
        {.name = name, .hosts = {"localhost"}, .not_before = not_before, .not_after = not_after});
  }

 private:
  const rpc::KeyPair pair_;
};

// A folder below the test's own temporary one, removed in the end.
class CertificateFolder {
 public:
  CertificateFolder() : path_(StrCat(::testing::TempDir(), "shardmesh-tls-XXXXXX")) {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  ~CertificateFolder() { std::filesystem::remove_all(path_); }
  CertificateFolder(const CertificateFolder&) = delete;
  CertificateFolder& operator=(const CertificateFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string Path(const std::string& file) const { return path_ + "/" + file; }
  // As a whole.
  void Write(const std::string& file, const std::string& text) const {
    std::ofstream(Path(file + ".new"), std::ios::binary) << text;
    std::filesystem::rename(Path(file + ".new"), Path(file));
  }
  // The three files of one process: STEM.crt, STEM.key and STEM-ca.crt.
  rpc::TlsFiles FilesOf(const std::string& stem) const {
    return {.certificate = Path(stem + ".crt"),
            .private_key = Path(stem + ".key"),
            .authorities = Path(stem + "-ca.crt")};
  }
  rpc::TlsFiles Write(const std::string& stem, const rpc::KeyPair& pair,
                      const std::string& authorities) const {
    Write(stem + "-ca.crt", authorities);
    Write(stem + ".key", pair.private_key);
    Write(stem + ".crt", pair.certificate);
    return FilesOf(stem);
  }

 private:
  std::string path_;
};

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_CERTIFICATES_H_
