// Certificates for tests: an authority in memory, and a folder with certificate files that it
// signed.
#ifndef SHARDMESH_TESTS_TESTING_CERTIFICATES_H_
#define SHARDMESH_TESTS_TESTING_CERTIFICATES_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "rpc/tls/certificate.h"
#include "status/str_cat.h"

namespace shardmesh::test {

// Signs every certificate that a test requests, including invalid ones.
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

// A folder below the test's temporary folder; the destructor removes it.
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

// A certificate chain and its root authority. The chain is a certificate, and the certificate of
// the intermediate authority "middle", which signed the first one and expired a day ago.
struct ChainWithExpiredMiddle {
  rpc::KeyPair pair;
  std::string authorities;
};

// Makes such a chain with OpenSSL's command line, in a temporary folder.
inline ChainWithExpiredMiddle MakeChainWithExpiredMiddle(const rpc::PeerName& name) {
  const CertificateFolder folder;
  const std::string new_key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
  const std::string sign =
      "openssl x509 -req -in middle.csr -CA root.crt -CAkey root.key -extfile ext";
  const std::string command =
      StrCat("set -e; cd ", folder.path(), "; exec >log 2>&1; openssl req -x509 ", new_key,
             " -keyout root.key -subj /CN=root -out root.crt; openssl req ", new_key,
             " -keyout middle.key -subj /CN=middle -out middle.csr; echo "
             "basicConstraints=critical,CA:TRUE ",
             ">ext; ", sign, " -days 9 -out valid.crt; ", sign, " -days -1 -out expired.crt");
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  const auto read = [&](const char* file) {
    std::stringstream text;
    text << std::ifstream(folder.Path(file)).rdbuf();
    return text.str();
  };
  // Sign with a valid certificate of the middle; the chain gets its expired one below.
  rpc::KeyPair own = *rpc::MakeCertificate({read("valid.crt"), read("middle.key")},
                                           {.name = name,
                                            .hosts = {},
                                            .not_before = absl::Now() - absl::Hours(1),
                                            .not_after = absl::Now() + absl::Hours(1)});
  own.certificate += read("expired.crt");
  return {.pair = std::move(own), .authorities = read("root.crt")};
}

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_CERTIFICATES_H_
