// Certificates: which are taken, what is said of the others, and the names in them.
#include "rpc/tls/certificate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "absl/time/clock.h"
#include "rpc/tls/peer_name.h"
#include "tests/testing/certificates.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::CertificateFolder;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::shardmesh::test::TestAuthority;
using ::testing::AllOf;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const PeerName kWorker{PeerRole::kWorker, "worker-0"};

TEST(PeerNameTest, ReadsWhatItWrites) {
  for (const PeerRole role : {PeerRole::kCoordinator, PeerRole::kWorker, PeerRole::kClient}) {
    const PeerName name{role, "shardmesh-worker-0.a_b"};
    EXPECT_EQ(ParsePeerName(name.ToUri()), name);
  }
  EXPECT_EQ(kWorker.ToUri(), "spiffe://shardmesh/worker/worker-0");
}

TEST(PeerNameTest, RefusesOtherUris) {
  for (const char* uri :
       {"", "spiffe://shardmesh/", "spiffe://shardmesh/worker", "spiffe://shardmesh/worker/",
        "spiffe://shardmesh/boss/a", "spiffe://shardmesh/Worker/a", "spiffe://other/worker/a",
        "spiffe://shardmesh/worker/a/b", "spiffe://shardmesh/worker/a b",
        "spiffe://shardmesh/worker/.a", "https://shardmesh/worker/a",
        " spiffe://shardmesh/worker/a"}) {
    EXPECT_EQ(ParsePeerName(uri), std::nullopt) << uri;
  }
  EXPECT_EQ(ParsePeerName(StrCat("spiffe://shardmesh/worker/", std::string(64, 'a'))),
            std::nullopt);
}

TEST(PeerNameTest, ExpectationsAreOfARoleAndAnIdentity) {
  const PeerName coordinator{PeerRole::kCoordinator, "any"};
  const PeerName client{PeerRole::kClient, "worker-0"};
  EXPECT_TRUE(ExpectedPeer::Coordinator().Matches(coordinator));
  EXPECT_FALSE(ExpectedPeer::Coordinator().Matches(kWorker));
  EXPECT_TRUE(ExpectedPeer::Worker("worker-0").Matches(kWorker));
  EXPECT_FALSE(ExpectedPeer::Worker("worker-1").Matches(kWorker));
  EXPECT_FALSE(ExpectedPeer::Worker("worker-0").Matches(client));
  EXPECT_TRUE(ExpectedPeer::AnyServer().Matches(kWorker));
  EXPECT_TRUE(ExpectedPeer::AnyServer().Matches(coordinator));
  EXPECT_FALSE(ExpectedPeer::AnyServer().Matches(client));
}

class CertificateTest : public ::testing::Test {
 protected:
  absl::Status Check(const TlsFiles& files, absl::Time now = absl::Now()) const {
    SHARDMESH_ASSIGN_OR_RETURN(const TlsTexts texts, ReadTlsFiles(files));
    return CheckTls(files, texts, now).status();
  }

  const TestAuthority authority_;
  const CertificateFolder folder_;
  const TlsFiles files_ = folder_.Write("w", authority_.Issue(kWorker), authority_.certificate());
};

TEST_F(CertificateTest, TakesWhatItsAuthoritySigned) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TlsTexts texts, ReadTlsFiles(files_));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CertificateFacts facts,
                                 CheckTls(files_, texts, absl::Now()));
  EXPECT_EQ(facts.name, kWorker);
  EXPECT_GT(facts.not_after, absl::Now());
  EXPECT_LE(facts.not_after, absl::Now() + absl::Hours(1));
}

TEST_F(CertificateTest, TakesABundleOfAuthorities) {
  const TestAuthority other;
  folder_.Write("w-ca.crt", other.certificate() + authority_.certificate());
  EXPECT_THAT(Check(files_), IsOk());
}

TEST_F(CertificateTest, NamesAFileThatIsMissing) {
  for (const std::string& path : {files_.certificate, files_.private_key, files_.authorities}) {
    const CertificateFolder other;
    std::filesystem::rename(path, other.Path("kept"));
    const absl::Status status = Check(files_);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound));
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path), HasSubstr("--tls-")));
    std::filesystem::rename(other.Path("kept"), path);
  }
}

// Ends the process if it cannot. Root's capabilities read every file, whatever its mode.
void GiveUpCapabilities() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  const __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capset, &header, none) != 0) {
    std::perror("cannot give up capabilities");
    _exit(1);
  }
}

TEST_F(CertificateTest, NamesAFileThatCannotBeRead) {
  // In a process of its own.
  const auto check = [&] {
    GiveUpCapabilities();
    const absl::Status status = Check(files_);
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    _exit(0);
  };
  EXPECT_EXIT(check(), ExitedWithCode(0), StartsWith("OK"));
  std::filesystem::permissions(files_.private_key, std::filesystem::perms::none);
  EXPECT_EXIT(check(), ExitedWithCode(0),
              AllOf(StartsWith("PERMISSION_DENIED"), HasSubstr(files_.private_key),
                    HasSubstr("readable by the user of this process (uid ")));
}

TEST_F(CertificateTest, NamesAFileThatDoesNotRead) {
  struct Case {
    const char* file;
    std::string text;
    const char* said;
  };
  const std::string certificate = authority_.certificate();
  const Case cases[] = {
      {"w.crt", "", "holds no certificate"},
      {"w.crt", "hello", "holds no certificate"},
      {"w.crt", certificate.substr(0, certificate.size() / 2), "damaged"},
      {"w-ca.crt", "", "holds no certificate"},
      {"w-ca.crt", certificate + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
       "its certificate 2 does not read"},
      {"w.key", "", "holds no private key"},
      {"w.key", certificate, "holds no private key"},
      {"w.key",
       "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
       "MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgAAAAAAAAAAAICCAAw\n"
       "DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEAAAAAAAAAAAAAAAAAAAAAAEgZAA\n"
       "-----END ENCRYPTED PRIVATE KEY-----\n",
       "private key"},
  };
  for (const Case& each : cases) {
    folder_.Write("w", authority_.Issue(kWorker), authority_.certificate());
    folder_.Write(each.file, each.text);
    const absl::Status status = Check(files_);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(folder_.Path(each.file)), HasSubstr(each.said)));
  }
}

TEST_F(CertificateTest, RefusesTheKeyOfAnotherCertificate) {
  folder_.Write("w.key", authority_.Issue(kWorker).private_key);
  const absl::Status status = Check(files_);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(files_.private_key), HasSubstr("is not the key of the certificate"),
                    HasSubstr(files_.certificate)));
}

TEST_F(CertificateTest, RefusesWhatIsNotValidNow) {
  const absl::Status expired = Check(files_, absl::Now() + absl::Hours(2));
  EXPECT_THAT(expired, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(std::string(expired.message()),
              AllOf(HasSubstr(files_.certificate), HasSubstr("expired at"), HasSubstr("renew")));
  const absl::Status early = Check(files_, absl::Now() - absl::Hours(2));
  EXPECT_THAT(early, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(std::string(early.message()), HasSubstr("is valid from"));
}

TEST_F(CertificateTest, RefusesWhatAnotherAuthoritySigned) {
  const TestAuthority other;
  folder_.Write("w-ca.crt", other.certificate());
  const absl::Status status = Check(files_);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(files_.certificate), HasSubstr(files_.authorities),
                    HasSubstr("not signed by"), HasSubstr("test authority")));
}

TEST_F(CertificateTest, NamesAnAuthorityInBetweenThatHasExpired) {
  const test::ChainWithExpiredMiddle chain = test::MakeChainWithExpiredMiddle(kWorker);
  const TlsFiles files = folder_.Write("m", chain.pair, chain.authorities);
  const absl::Status status = Check(files);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("\"CN = middle\" (depth 1 of the chain, in " + files.certificate),
                    HasSubstr("expired at"), HasSubstr(" ago; put its renewed")));
}

TEST_F(CertificateTest, TellsWhenAnAuthorityEnds) {
  const absl::Time now = absl::Now();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyPair authority, MakeAuthority(now, now + absl::Hours(1)));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const absl::Time not_after, ReadExpiry(authority.certificate));
  EXPECT_LE(absl::AbsDuration(not_after - now - absl::Hours(1)), absl::Seconds(1));
}

TEST_F(CertificateTest, RefusesACertificateWithoutAName) {
  folder_.Write("w.crt", authority_.certificate());
  const absl::Status status = Check(files_);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
}

TEST_F(CertificateTest, RefusesWhatIsOnlyAPartOfTls) {
  EXPECT_THAT(CheckComplete({}), IsOk());
  EXPECT_THAT(CheckComplete(files_), IsOk());
  const absl::Status status =
      CheckComplete({.certificate = "c", .private_key = {}, .authorities = {}});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--tls-key and --tls-ca are missing"));
}

TEST_F(CertificateTest, AnAuthorityOutlivesWhatItSigns) {
  const absl::Time now = absl::Now();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyPair authority, MakeAuthority(now, now + absl::Hours(1)));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const KeyPair pair,
      MakeCertificate(
          authority,
          {.name = kWorker, .hosts = {}, .not_before = now, .not_after = now + absl::Hours(9)}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CertificateFacts facts, ReadCertificate(pair.certificate));
  EXPECT_LE(facts.not_after, now + absl::Hours(1));
}

TEST_F(CertificateTest, RefusesHostsThatAreNone) {
  const absl::Time now = absl::Now();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyPair authority, MakeAuthority(now, now + absl::Hours(1)));
  for (const char* host : {"", "a,DNS:b", "host:80", "a b", "URI:spiffe://shardmesh/worker/w"}) {
    EXPECT_THAT(MakeCertificate(authority, {.name = kWorker,
                                            .hosts = {host},
                                            .not_before = now,
                                            .not_after = now + absl::Hours(1)})
                    .status(),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField))
        << host;
  }
  EXPECT_THAT(MakeCertificate(authority, {.name = kWorker,
                                          .hosts = {"::1", "10.0.0.7", "*.workers.example"},
                                          .not_before = now,
                                          .not_after = now + absl::Hours(1)})
                  .status(),
              IsOk());
}

}  // namespace
}  // namespace shardmesh::rpc
