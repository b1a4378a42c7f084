// Certificate files that change while they are watched, without gRPC.
#include "rpc/tls/certificate_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "rpc/tls/certificate.h"
#include "rpc/tls/peer_name.h"
#include "status/str_cat.h"
#include "tests/testing/certificates.h"
#include "tests/testing/eventually.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::CertificateFolder;
using ::shardmesh::test::Eventually;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::shardmesh::test::TestAuthority;
using ::testing::AllOf;
using ::testing::HasSubstr;

const PeerName kOwnName{PeerRole::kWorker, "worker-0"};

class CertificateWatchTest : public ::testing::Test {
 protected:
  static constexpr absl::Duration kInterval = absl::Milliseconds(5);

  std::string InUse() const { return watch_->state()->texts.certificate; }

  const TestAuthority authority_;
  const CertificateFolder folder_;
  const KeyPair first_ = authority_.Issue(kOwnName);
  const TlsFiles files_ = folder_.Write("w", first_, authority_.certificate());
  std::unique_ptr<CertificateWatch> watch_ = *CertificateWatch::Start(files_, kInterval);
};

TEST_F(CertificateWatchTest, DoesNotStartWithFilesThatCannotBeUsed) {
  const auto start = [](const TlsFiles& files) { return CertificateWatch::Start(files).status(); };
  EXPECT_THAT(start(folder_.FilesOf("nobody")), StatusIs(absl::StatusCode::kNotFound));
  const KeyPair expired =
      authority_.Issue(kOwnName, absl::Now() - absl::Hours(2), absl::Now() - absl::Hours(1));
  EXPECT_THAT(start(folder_.Write("old", expired, authority_.certificate())),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  const KeyPair mixed{.certificate = first_.certificate,
                      .private_key = authority_.Issue(kOwnName).private_key};
  EXPECT_FALSE(start(folder_.Write("mixed", mixed, authority_.certificate())).ok());
  EXPECT_FALSE(start(folder_.Write("alien", first_, TestAuthority().certificate())).ok());
}

TEST_F(CertificateWatchTest, EndsAtOnceHoweverLongItsInterval) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto watch, CertificateWatch::Start(files_, absl::Hours(1)));
  const absl::Time start = absl::Now();
  watch.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST_F(CertificateWatchTest, ThePathsStayAndTheirTextsAndTimesChange) {
  const auto modified = [](const std::string& path) {
    struct stat file = {};
    EXPECT_EQ(stat(path.c_str(), &file), 0);
    return file.st_mtim.tv_sec;
  };
  const std::string pair_path = watch_->pair_path();
  const std::string authorities_path = watch_->authorities_path();
  EXPECT_NE(pair_path, authorities_path);
  EXPECT_EQ(test::ReadFile(authorities_path), authority_.certificate());
  const auto pair_time = modified(pair_path);
  const auto authorities_time = modified(authorities_path);

  const KeyPair second = authority_.Issue(kOwnName);
  folder_.Write("w", second, authority_.certificate());
  ASSERT_TRUE(Eventually([&] { return InUse() == second.certificate; }));
  EXPECT_EQ(watch_->pair_path(), pair_path);
  EXPECT_EQ(watch_->authorities_path(), authorities_path);
  EXPECT_EQ(test::ReadFile(pair_path), second.certificate + "\n" + second.private_key);
  EXPECT_EQ(test::ReadFile(authorities_path), authority_.certificate());
  EXPECT_NE(modified(pair_path), pair_time) << "gRPC sees a change by whole seconds";
  EXPECT_NE(modified(authorities_path), authorities_time);
}

TEST_F(CertificateWatchTest, AuthoritiesAreReplacedAlone) {
  const std::string bundle = TestAuthority().certificate() + authority_.certificate();
  folder_.Write("w-ca.crt", bundle);
  EXPECT_TRUE(Eventually([&] { return watch_->state()->texts.authorities == bundle; }));
  EXPECT_EQ(test::ReadFile(watch_->authorities_path()), bundle);
  EXPECT_EQ(InUse(), first_.certificate);
}

TEST_F(CertificateWatchTest, FilesWithTheSameTextAreNoChange) {
  const auto before = watch_->state();
  folder_.Write("w", first_, authority_.certificate());
  absl::SleepFor(20 * kInterval);  // nothing is to happen
  EXPECT_EQ(watch_->state(), before);
  const KeyPair second = authority_.Issue(kOwnName);
  folder_.Write("w", second, authority_.certificate());
  EXPECT_TRUE(Eventually([&] { return InUse() == second.certificate; }));
}

TEST_F(CertificateWatchTest, ReadersOfFormerCertificatesKeepThem) {
  const auto before = watch_->state();
  std::ifstream reader(watch_->pair_path(), std::ios::binary);
  const KeyPair second = authority_.Issue(kOwnName);
  folder_.Write("w", second, authority_.certificate());
  ASSERT_TRUE(Eventually([&] { return InUse() == second.certificate; }));
  EXPECT_EQ(before->texts.certificate, first_.certificate);
  EXPECT_EQ(before->facts.name, kOwnName);
  const std::string read{std::istreambuf_iterator<char>(reader), std::istreambuf_iterator<char>()};
  EXPECT_EQ(read, first_.certificate + "\n" + first_.private_key);
}

TEST_F(CertificateWatchTest, TellsWhoseCertificateIsThereInItsPlace) {
  ::testing::internal::CaptureStderr();
  folder_.Write("w", authority_.Issue({PeerRole::kWorker, "worker-1"}), authority_.certificate());
  absl::SleepFor(absl::Seconds(1));  // time for two looks
  watch_.reset();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("w.crt is now the certificate of spiffe://shardmesh/worker/worker-1"),
                    HasSubstr("this process is spiffe://shardmesh/worker/worker-0")));
}

TEST_F(CertificateWatchTest, AHalfWrittenPairIsNotTaken) {
  const KeyPair second = authority_.Issue(kOwnName);
  ::testing::internal::CaptureStderr();
  folder_.Write("w.crt", second.certificate);
  absl::SleepFor(absl::Seconds(1));  // time for two looks, and nothing is to happen
  EXPECT_EQ(InUse(), first_.certificate);
  EXPECT_EQ(test::ReadFile(watch_->pair_path()), first_.certificate + "\n" + first_.private_key);
  folder_.Write("w.key", second.private_key);
  EXPECT_TRUE(Eventually([&] { return InUse() == second.certificate; }));
  EXPECT_EQ(test::ReadFile(watch_->pair_path()), second.certificate + "\n" + second.private_key);
  watch_.reset();  // it tells of what it did when that is done
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr("cannot be used; the previous ones stay in use"),
            HasSubstr("is not the key of the certificate"), HasSubstr("certificates reloaded")));
}

TEST_F(CertificateWatchTest, KeepsWhatItHasWhateverTheFilesBecome) {
  const std::function<void()> damages[] = {
      [&] { folder_.Write("w.key", "no key"); },
      [&] { folder_.Write("w.crt", ""); },
      [&] { std::filesystem::remove(files_.authorities); },
      [&] { folder_.Write("w-ca.crt", TestAuthority().certificate()); },
      [&] {
        folder_.Write(
            "w",
            authority_.Issue(kOwnName, absl::Now() - absl::Hours(2), absl::Now() - absl::Hours(1)),
            authority_.certificate());
      },
      [&] {
        folder_.Write("w", authority_.Issue({PeerRole::kWorker, "worker-1"}),
                      authority_.certificate());
      }};
  for (const auto& damage : damages) {
    damage();
    absl::SleepFor(10 * kInterval);  // nothing is to happen
    EXPECT_EQ(InUse(), first_.certificate);
  }
  const KeyPair good = authority_.Issue(kOwnName);
  folder_.Write("w", good, authority_.certificate());
  EXPECT_TRUE(Eventually([&] { return InUse() == good.certificate; }));
}

TEST_F(CertificateWatchTest, SaysOnceThatNewFilesCannotBeUsedThoughTheReasonTellsTheTime) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto watch,
                                 CertificateWatch::Start(files_, absl::Milliseconds(200)));
  ::testing::internal::CaptureStderr();
  folder_.Write(
      "w", authority_.Issue(kOwnName, absl::Now() - absl::Hours(2), absl::Now() - absl::Hours(1)),
      authority_.certificate());
  absl::SleepFor(
      absl::Seconds(2));  // of several looks two tell of it: the fixture's watch, and this
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::string line =
      StrCat("the previous ones stay in use error=\"FAILED_PRECONDITION: ", files_.certificate,
             " expired");
  size_t told = 0;  // of watches of earlier tests nothing counts, which live as long as the process
  for (size_t at = 0; (at = log.find(line, at)) != std::string::npos; ++at) {
    ++told;
  }
  EXPECT_EQ(told, 2u) << log;
}

TEST_F(CertificateWatchTest, SaysThatTheCertificateInUseHasExpired) {
  ::testing::internal::CaptureStderr();
  const absl::Time start = absl::Now();
  const TlsFiles files = folder_.Write(
      "short", authority_.Issue(kOwnName, start - absl::Hours(1), start + absl::Seconds(4)),
      authority_.certificate());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto watch, CertificateWatch::Start(files, kInterval));
  EXPECT_TRUE(Eventually([&] { return absl::Now() > watch->state()->facts.not_after; }));
  // Once the watch uses this certificate, it has checked the time after the other one expired.
  const KeyPair next = authority_.Issue(kOwnName);
  folder_.Write("short", next, authority_.certificate());
  EXPECT_TRUE(Eventually([&] { return watch->state()->texts.certificate == next.certificate; }));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("the certificate in use has expired"), HasSubstr("short.crt")));
}

// As the kubelet updates a mounted secret: the files are links into a folder that is a link itself,
// which is swapped.
TEST_F(CertificateWatchTest, FollowsALinkThatIsSwapped) {
  const CertificateFolder mount;
  const auto place = [&](const std::string& name, const KeyPair& pair) {
    std::filesystem::create_directory(mount.Path(name));
    mount.Write(name + "/w", pair, authority_.certificate());
    std::filesystem::create_symlink(name, mount.Path("..data_tmp"));
    std::filesystem::rename(mount.Path("..data_tmp"), mount.Path("..data"));
  };
  place("..one", first_);
  for (const char* file : {"w.crt", "w.key", "w-ca.crt"}) {
    std::filesystem::create_symlink(StrCat("..data/", file), mount.Path(file));
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto watch,
                                 CertificateWatch::Start(mount.FilesOf("w"), kInterval));
  const KeyPair second = authority_.Issue(kOwnName);
  place("..two", second);
  std::filesystem::remove_all(mount.Path("..one"));
  EXPECT_TRUE(Eventually([&] { return watch->state()->texts.certificate == second.certificate; }));
}

TEST_F(CertificateWatchTest, ReadersSeeCertificateAndKeyThatBelongTogether) {
  std::atomic<bool> done = false;
  std::thread reader([&] {
    while (!done) {
      const std::string text = test::ReadFile(watch_->pair_path());
      const TlsTexts texts{text, text, authority_.certificate()};
      EXPECT_THAT(CheckTls(files_, texts, absl::Now()).status(), IsOk());
    }
  });
  for (int i = 0; i < 10; ++i) {
    const KeyPair next = authority_.Issue(kOwnName);
    folder_.Write("w", next, authority_.certificate());
    EXPECT_TRUE(Eventually([&] { return InUse() == next.certificate; }));
  }
  done = true;
  reader.join();
}

}  // namespace
}  // namespace shardmesh::rpc
