#include "agent/daemon/certificate_authority.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "agent/daemon/certificate_index.h"
#include "proto/trust/agent_certificate.h"
#include "tests/support/leak_guard.h"
#include "tests/support/test_certificates.h"

namespace ivy {
namespace {

using test::kTestDay;

mode_t mode_of(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
}

// A CA of one's own in a directory of one's own; time is what the test says.
class CertificateAuthorityTest : public testing::Test {
 protected:
  CertificateAuthorityPlace place() const { return {config_, "", now_}; }

  Result<std::string> init() const { return ca_init({place(), "blue", 3650}); }

  Result<std::string> cert_host(const std::string& host,
                                const std::vector<std::string>& aliases = {}) const {
    return make_host_certificate({place(), host, aliases, "", directory_ / host, 365});
  }

  Result<std::string> cert_user(const std::string& user, const std::string& out = "") const {
    return make_user_certificate({place(), user, 0, out, 90});
  }

  Result<std::string> renew_host(const std::string& host) const {
    return renew_certificate({place(), host, "", "", 0});
  }

  Result<std::string> revoke_host(const std::string& host) const {
    return revoke_certificates({place(), host, "", ""});
  }

  Result<std::string> revoke_user(const std::string& user) const {
    return revoke_certificates({place(), "", user, ""});
  }

  // As an agent or a launcher that has the CA's files of this moment.
  Result<CertificateIdentity> verify(const std::string& certificate, CertificateRole wanted) const {
    return verify_certificate(
        directory_.read(certificate),
        {directory_.read("config/ca/ca.crt"), directory_.read("config/ca/ca.crl")}, wanted, now_);
  }

  std::string ca(const std::string& file) const { return config_ + "/ca/" + file; }

  const test::LeakGuard leaks_;
  const test::TestDirectory directory_;
  const std::string config_ = directory_ / "config";
  std::int64_t now_ = 1'790'000'000;  // 2026-09-21.
};

void expect_error(const Result<std::string>& result, Code code, const std::string& words) {
  ASSERT_FALSE(result.ok()) << *result;
  EXPECT_EQ(static_cast<int>(result.error().code), static_cast<int>(code));
  EXPECT_NE(result.error().message.find(words), std::string::npos) << result.error().message;
  EXPECT_FALSE(result.error().fix.empty()) << result.error().message;
}

void expect_said(const Result<std::string>& result, const std::string& words) {
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_NE(result->find(words), std::string::npos) << *result;
}

TEST_F(CertificateAuthorityTest, IsMadeForItsOwnerAlone) {
  expect_said(init(), "CA \"blue\" in " + config_ + "/ca, until 2036-09-18");
  EXPECT_EQ(mode_of(config_ + "/ca"), 0700U);
  EXPECT_EQ(mode_of(ca("ca.key")), 0600U);
  EXPECT_EQ(mode_of(ca("ca.crt")), 0644U);
  EXPECT_EQ(mode_of(ca("ca.crl")), 0644U);
  EXPECT_EQ(mode_of(ca("issued.txt")), 0600U);
  for (const auto& entry : std::filesystem::directory_iterator(config_ + "/ca"))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
}

TEST_F(CertificateAuthorityTest, IsNeverOverwritten) {
  ASSERT_TRUE(init().ok());
  const std::string key = directory_.read("config/ca/ca.key");
  expect_error(init(), Code::kAlreadyExists, "a CA is never overwritten");
  ASSERT_EQ(unlink(ca("ca.key").c_str()),
            0);  // Half of one is none, but still not ours to replace.
  expect_error(init(), Code::kAlreadyExists, "ca.crt exists");
  EXPECT_FALSE(key.empty());
}

TEST_F(CertificateAuthorityTest, AHostGetsWhatItsAgentNeeds) {
  ASSERT_TRUE(init().ok());
  const Result<std::string> made =
      make_host_certificate({place(),
                             "Node7",
                             {"node7.lan", "10.0.0.7", "[FE80::7%eth0]", "NODE7"},
                             "alice",
                             directory_ / "out",
                             365});
  expect_said(made, "host/node7: certificate until 2027-09-21");
  expect_said(made, "names: node7 node7.lan 10.0.0.7 fe80::7");
  expect_said(made, "serves: alice");
  expect_said(made, "/etc/ivyrun/agent");
  const Result<CertificateIdentity> identity = verify("out/host.crt", CertificateRole::kHost);
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(identity->name, "node7");
  EXPECT_EQ(identity->serves, "alice");
  EXPECT_EQ(identity->dns_names, (std::vector<std::string>{"node7", "node7.lan"}));
  EXPECT_EQ(identity->addresses, (std::vector<std::string>{"10.0.0.7", "fe80::7"}));
  EXPECT_EQ(identity->not_before, now_ - kTestDay);
  EXPECT_EQ(mode_of(directory_ / "out"), 0700U);
  EXPECT_EQ(mode_of(directory_ / "out/host.key"), 0600U);
  EXPECT_EQ(directory_.read("out/ca.crt"), directory_.read("config/ca/ca.crt"));
  EXPECT_EQ(directory_.read("out/ca.crl"), directory_.read("config/ca/ca.crl"));
  EXPECT_FALSE(verify("out/host.crt", CertificateRole::kUser).ok());
}

TEST_F(CertificateAuthorityTest, AHostMayBeANumericAddressOrHaveALongName) {
  ASSERT_TRUE(init().ok());
  const std::string longest = std::string(60, 'a') + "." + std::string(60, 'b') + ".lan";
  for (const std::string& host : {std::string("2001:db8::7"), longest}) {
    const Result<std::string> made = cert_host(host);
    ASSERT_TRUE(made.ok()) << made.error().message;
    const Result<CertificateIdentity> identity = verify(host + "/host.crt", CertificateRole::kHost);
    ASSERT_TRUE(identity.ok()) << identity.error().message;
    EXPECT_EQ(identity->name, host);
    EXPECT_TRUE(check_host_name(*identity, host).ok());
  }
}

TEST_F(CertificateAuthorityTest, AUserGetsAConfigurationThatLoads) {
  ASSERT_TRUE(init().ok());
  expect_said(cert_user("alice"), "ivyrun finds them there");
  const Result<std::optional<AgentConfig>> config =
      load_agent_config({{"IVY_AGENT_CONFIG", config_ + "/agent.toml"}});
  ASSERT_TRUE(config.ok()) << config.error().message;
  ASSERT_TRUE(config->has_value());
  EXPECT_EQ((*config)->port, kDefaultAgentPort);
  EXPECT_EQ((*config)->key, config_ + "/user.key");
  EXPECT_EQ((*config)->revoked, config_ + "/ca.crl");
  const Result<CertificateIdentity> identity = verify("config/user.crt", CertificateRole::kUser);
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(identity->name, "alice");
  EXPECT_EQ(identity->not_after, now_ + 90 * kTestDay);
}

TEST_F(CertificateAuthorityTest, TheFilesMayBeCarriedElsewhere) {
  ASSERT_TRUE(init().ok());
  expect_said(cert_user("bob", directory_ / "bob"), "IVY_AGENT_CONFIG=");
  std::filesystem::rename(directory_ / "bob", directory_ / "home of bob");
  const Result<std::optional<AgentConfig>> config =
      load_agent_config({{"IVY_AGENT_CONFIG", directory_ / "home of bob/agent.toml"}});
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ((*config)->key, directory_ / "home of bob/user.key");
}

TEST_F(CertificateAuthorityTest, ThePortStaysUntilAnotherIsAskedFor) {
  ASSERT_TRUE(init().ok());
  ASSERT_TRUE(make_user_certificate({place(), "alice", 7500, "", 90}).ok());
  ASSERT_TRUE(cert_user("alice").ok());
  EXPECT_NE(directory_.read("config/agent.toml").find("port = 7500\n"), std::string::npos);
  ASSERT_TRUE(make_user_certificate({place(), "alice", 7600, "", 90}).ok());
  EXPECT_NE(directory_.read("config/agent.toml").find("port = 7600\n"), std::string::npos);
}

TEST_F(CertificateAuthorityTest, NobodysFilesAreOverwrittenBySomebodyElses) {
  ASSERT_TRUE(init().ok());
  ASSERT_TRUE(cert_user("alice").ok());
  const std::string key = directory_.read("config/user.key");
  expect_error(cert_user("bob"), Code::kAlreadyExists,
               "user.crt is the certificate of user/alice, not of user/bob");
  const CertificateAuthorityPlace other{config_, directory_ / "other CA", now_};
  ASSERT_TRUE(ca_init({other, "green", 10}).ok());
  expect_error(make_user_certificate({other, "alice", 0, "", 5}), Code::kAlreadyExists,
               "is of another CA than " + (directory_ / "other CA/ca.crt"));
  expect_error(cert_user("alice", config_ + "/ca"), Code::kInvalidArgument,
               "is the directory of the CA itself");
  EXPECT_EQ(directory_.read("config/user.key"), key);
}

TEST_F(CertificateAuthorityTest, RenewalKeepsTheNamesAndThePlace) {
  ASSERT_TRUE(init().ok());
  ASSERT_TRUE(make_host_certificate(
                  {place(), "node7", {"node7.lan", "10.0.0.7"}, "alice", directory_ / "out", 365})
                  .ok());
  const std::string old_key = directory_.read("out/host.key");
  const std::string old_certificate = directory_.read("out/host.crt");
  std::filesystem::remove_all(directory_ / "out");  // Moved to the host.
  now_ += 300 * kTestDay;
  expect_said(renew_host("NODE7"), "host/node7: certificate until 2028-07-17");
  const Result<CertificateIdentity> identity = verify("out/host.crt", CertificateRole::kHost);
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(identity->serves, "alice");
  EXPECT_EQ(identity->dns_names, (std::vector<std::string>{"node7", "node7.lan"}));
  EXPECT_EQ(identity->addresses, (std::vector<std::string>{"10.0.0.7"}));
  EXPECT_NE(directory_.read("out/host.key"), old_key);
  // The old one goes on until it ends: the new one may take its time to the host.
  directory_.write("old.crt", old_certificate);
  EXPECT_TRUE(verify("old.crt", CertificateRole::kHost).ok());
  expect_said(list_certificates({place()}), "replaced");
}

TEST_F(CertificateAuthorityTest, RenewalOfAUserKeepsHerConfiguration) {
  ASSERT_TRUE(init().ok());
  ASSERT_TRUE(make_user_certificate({place(), "alice", 7500, "", 90}).ok());
  const std::string config =
      directory_.write("config/agent.toml", "# mine\n" + directory_.read("config/agent.toml"));
  now_ += 80 * kTestDay;
  expect_said(renew_certificate({place(), "", "alice", "", 0}), "user/alice: certificate until");
  EXPECT_TRUE(directory_.read("config/agent.toml").starts_with("# mine\n"));
  EXPECT_TRUE(load_agent_config({{"IVY_AGENT_CONFIG", config}}).ok());
}

TEST_F(CertificateAuthorityTest, RevokingAHostEndsAllItsCertificates) {
  ASSERT_TRUE(init().ok());
  ASSERT_TRUE(cert_host("node7").ok());
  const std::string first = directory_.read("node7/host.crt");
  ASSERT_TRUE(renew_host("node7").ok());
  ASSERT_TRUE(cert_host("node8").ok());
  const Result<std::string> revoked = revoke_host("node7");
  expect_said(revoked, "revoked: host/node7, serial ");
  expect_said(revoked, "every host (node8): ca.crl");
  directory_.write("first.crt", first);
  for (const char* file : {"first.crt", "node7/host.crt"}) {
    const Result<CertificateIdentity> identity = verify(file, CertificateRole::kHost);
    ASSERT_FALSE(identity.ok()) << file;
    EXPECT_EQ(static_cast<int>(identity.error().code), static_cast<int>(Code::kPermissionDenied));
    EXPECT_NE(identity.error().message.find("revoked"), std::string::npos);
  }
  EXPECT_TRUE(verify("node8/host.crt", CertificateRole::kHost).ok());
  expect_error(renew_host("node7"), Code::kFailedPrecondition, "was revoked on 2026-09-21");
  EXPECT_TRUE(cert_host("node7").ok());
  EXPECT_TRUE(verify("node7/host.crt", CertificateRole::kHost).ok());
  expect_said(revoke_host("node7"), "(already on 2026-09-21)");
}

TEST_F(CertificateAuthorityTest, AUserAndAHostOfOneNameAreTwo) {
  ASSERT_TRUE(init().ok());
  ASSERT_TRUE(cert_host("alice").ok());
  ASSERT_TRUE(cert_user("alice").ok());
  ASSERT_TRUE(revoke_user("alice").ok());
  EXPECT_TRUE(verify("alice/host.crt", CertificateRole::kHost).ok());
  EXPECT_FALSE(verify("config/user.crt", CertificateRole::kUser).ok());
}

TEST_F(CertificateAuthorityTest, OneCertificateIsRevokedByItsSerial) {
  ASSERT_TRUE(init().ok());
  ASSERT_TRUE(cert_user("alice").ok());
  const std::string first = directory_.read("config/user.crt");
  ASSERT_TRUE(cert_user("alice").ok());
  const Result<CertificateIdentity> identity = read_certificate(first);
  ASSERT_TRUE(identity.ok());
  std::string typed = identity->serial;
  for (char& c : typed) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  typed.insert(2, ":");
  expect_said(revoke_certificates({place(), "", "", typed}), identity->serial);
  directory_.write("first.crt", first);
  EXPECT_FALSE(verify("first.crt", CertificateRole::kUser).ok());
  EXPECT_TRUE(verify("config/user.crt", CertificateRole::kUser).ok());
}

TEST_F(CertificateAuthorityTest, ARevokedCertificateStaysRevokedWhateverElseIsDone) {
  ASSERT_TRUE(init().ok());
  ASSERT_TRUE(cert_user("alice").ok());
  ASSERT_TRUE(revoke_user("alice").ok());
  ASSERT_TRUE(cert_host("node1").ok());
  ASSERT_TRUE(revoke_host("node1").ok());
  now_ += 60 * kTestDay;
  ASSERT_TRUE(cert_host("node2").ok());
  const Result<CertificateIdentity> alice = verify("config/user.crt", CertificateRole::kUser);
  ASSERT_FALSE(alice.ok());
  EXPECT_NE(alice.error().message.find("revoked"), std::string::npos);
  EXPECT_EQ(directory_.read("node2/ca.crl"), directory_.read("config/ca/ca.crl"));
}

TEST_F(CertificateAuthorityTest, NoCertificateOutlivesItsCa) {
  ASSERT_TRUE(ca_init({place(), "short", 10}).ok());
  expect_said(cert_host("node1"), "Not longer than the CA itself");
  const Result<CertificateIdentity> identity = verify("node1/host.crt", CertificateRole::kHost);
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(identity->not_after, now_ + 10 * kTestDay);
  expect_said(list_certificates({place()}), "the CA expires in 10 days");
  now_ += 11 * kTestDay;
  expect_error(cert_host("node2"), Code::kFailedPrecondition, "expired 24 hours ago");
}

TEST_F(CertificateAuthorityTest, TheTableWarnsBeforeACertificateExpires) {
  ASSERT_TRUE(init().ok());
  expect_said(list_certificates({place()}), "no certificates");
  ASSERT_TRUE(cert_host("node1").ok());
  ASSERT_TRUE(cert_user("alice").ok());
  ASSERT_TRUE(cert_user("bob", directory_ / "bob").ok());
  ASSERT_TRUE(revoke_user("bob").ok());
  now_ += 80 * kTestDay;
  const Result<std::string> table = list_certificates({place()});
  expect_said(table, "user/alice expires in 10 days (2026-12-20): `ivy-agent renew --user alice`");
  expect_said(table, "user/bob     revoked 2026-09-21  2026-12-20");
  expect_said(table, "host/node1   valid               2027-09-21");
  EXPECT_EQ(table->find("user/bob expires"), std::string::npos);
  EXPECT_EQ(table->find("host/node1 expires"), std::string::npos);
  now_ += 20 * kTestDay;
  expect_said(list_certificates({place()}), "user/alice   expired             2026-12-20");
}

TEST_F(CertificateAuthorityTest, EveryWrongWordIsRefusedBeforeAnythingIsWritten) {
  ASSERT_TRUE(init().ok());
  const std::string index = directory_.read("config/ca/issued.txt");
  expect_error(cert_host("../node"), Code::kInvalidArgument, "cannot be the name of a host");
  expect_error(cert_host("a\tvalid"), Code::kInvalidArgument, "\"a?valid\"");
  expect_error(cert_host("node1:22"), Code::kInvalidArgument, "neither a DNS name nor a numeric");
  expect_error(cert_host("node1", {"10.0.0.1:7411"}), Code::kInvalidArgument, "neither a DNS name");
  expect_error(cert_host("node1", std::vector<std::string>(65, "x")), Code::kInvalidArgument,
               "more than 64 names");
  expect_error(cert_user("root/alice"), Code::kInvalidArgument, "cannot be the name of a user");
  expect_error(cert_user("alice", "a\nb"), Code::kInvalidArgument, "control characters");
  expect_error(make_host_certificate({place(), "n", {}, "a b", directory_ / "n", 365}),
               Code::kInvalidArgument, "cannot be the name of a user");
  expect_error(make_host_certificate({place(), "n", {}, "", directory_ / "n", 0}),
               Code::kInvalidArgument, "--days 0");
  expect_error(make_user_certificate({place(), "a", 0, "", 3651}), Code::kInvalidArgument,
               "--days 3651");
  expect_error(ca_init({{config_, directory_ / "x", now_}, "a\nb", 10}), Code::kInvalidArgument,
               "--name");
  expect_error(renew_certificate({place(), "", "", "", 0}), Code::kInvalidArgument,
               "a host or a user must be named");
  expect_error(renew_certificate({place(), "n", "a", "", 0}), Code::kInvalidArgument,
               "a host or a user must be named");
  expect_error(revoke_certificates({place(), "n", "", "4f"}), Code::kInvalidArgument, "--serial");
  expect_error(revoke_certificates({place(), "", "", "xyz"}), Code::kInvalidArgument,
               "\"xyz\" is not a serial number");
  expect_error(revoke_certificates({place(), "", "", "4f"}), Code::kNotFound, "serial 4f");
  expect_error(renew_host("node9"), Code::kNotFound, "has made no certificate for host/node9");
  expect_error(revoke_host("node9"), Code::kNotFound, "no unexpired certificate of host/node9");
  EXPECT_EQ(directory_.read("config/ca/issued.txt"), index);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "n"));
}

TEST_F(CertificateAuthorityTest, WithoutACaEveryVerbSaysHowToMakeOne) {
  const CertificateAuthorityPlace nowhere{"", "", now_};
  expect_error(cert_host("node1"), Code::kNotFound, "there is no certificate authority in");
  expect_error(list_certificates({place()}), Code::kNotFound, config_ + "/ca");
  expect_error(ca_init({nowhere, "", 10}), Code::kInvalidArgument, "neither HOME nor");
}

TEST_F(CertificateAuthorityTest, ACaThatOthersCouldTouchIsNotUsed) {
  ASSERT_TRUE(init().ok());
  ASSERT_EQ(chmod(ca("ca.key").c_str(), 0640), 0);
  expect_error(cert_host("node1"), Code::kPermissionDenied, "is open to other users");
  ASSERT_EQ(chmod(ca("ca.key").c_str(), 0600), 0);
  ASSERT_EQ(chmod((config_ + "/ca").c_str(), 0755), 0);
  expect_error(cert_host("node1"), Code::kPermissionDenied, "is open to other users (mode 0755)");
  ASSERT_EQ(chmod((config_ + "/ca").c_str(), 0700), 0);
  std::filesystem::create_directory(directory_ / "shared");
  ASSERT_EQ(chmod((directory_ / "shared").c_str(), 0777), 0);
  expect_error(cert_user("alice", directory_ / "shared"), Code::kPermissionDenied,
               "can be changed by other users (mode 0777)");
  EXPECT_TRUE(cert_host("node1").ok());
}

TEST_F(CertificateAuthorityTest, ADamagedCaIsNamedAndNotGuessed) {
  ASSERT_TRUE(init().ok());
  const std::string index = directory_.read("config/ca/issued.txt");
  directory_.write("config/ca/issued.txt", index + "4f\tuser\talice\t1\n");
  expect_error(cert_host("node1"), Code::kFailedPrecondition, "issued.txt:2: not a line");
  directory_.write("config/ca/issued.txt", index);
  const std::string key = directory_.read("config/ca/ca.key");
  directory_.write("config/ca/ca.key", "x");
  expect_error(cert_host("node1"), Code::kFailedPrecondition, "the CA's key is damaged");
  directory_.write("config/ca/ca.key", test::TestAuthority().texts().key_pem);
  expect_error(cert_host("node1"), Code::kFailedPrecondition, "do not belong together");
  directory_.write("config/ca/ca.key", key);
  EXPECT_TRUE(cert_host("node1").ok());
}

TEST_F(CertificateAuthorityTest, AFullPlaceLeavesTheOldFilesWhole) {
  ASSERT_TRUE(init().ok());
  ASSERT_TRUE(cert_host("node1").ok());
  const std::string key = directory_.read("node1/host.key");
  // A directory where the last file belongs: everything before it has been written by then.
  std::filesystem::create_directory(directory_ / "node1/.host.crt." + std::to_string(getpid()) +
                                    ".new");
  EXPECT_FALSE(renew_host("node1").ok());
  EXPECT_EQ(directory_.read("node1/host.key"), key);
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ / "node1"))
    files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, 4U);
}

TEST_F(CertificateAuthorityTest, VerbsAtOnceTakeTurns) {
  ASSERT_TRUE(init().ok());
  constexpr int kProcesses = 6;
  constexpr int kEach = 3;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid != 0) continue;
    bool fine = true;
    for (int i = 0; i < kEach; ++i) {
      fine = cert_host("node" + std::to_string(process) + "-" + std::to_string(i)).ok() && fine;
    }
    _exit(fine ? 0 : 1);
  }
  for (int process = 0; process < kProcesses; ++process) {
    int status = -1;
    ASSERT_GT(wait(&status), 0);
    EXPECT_EQ(status, 0);
  }
  const Result<std::vector<IssuedCertificate>> issued =
      parse_index(directory_.read("config/ca/issued.txt"), "issued.txt");
  ASSERT_TRUE(issued.ok()) << issued.error().message;
  std::set<std::string> serials;
  for (const IssuedCertificate& one : *issued) serials.insert(one.serial);
  EXPECT_EQ(serials.size(), static_cast<std::size_t>(kProcesses * kEach));
}

TEST_F(CertificateAuthorityTest, OpensslAgrees) {
  if (std::system("openssl version >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "the openssl command is not installed";
  }
  now_ = std::time(nullptr);
  ASSERT_TRUE(init().ok());
  ASSERT_TRUE(cert_host("node1", {"10.0.0.1"}).ok());
  ASSERT_TRUE(cert_user("alice").ok());
  ASSERT_TRUE(revoke_user("alice").ok());
  const auto openssl = [](const std::string& arguments) {
    return std::system(("openssl " + arguments + " >/dev/null 2>&1").c_str()) == 0;
  };
  const std::string verify =
      "verify -x509_strict -crl_check -CAfile " + ca("ca.crt") + " -CRLfile " + ca("ca.crl") + " ";
  EXPECT_TRUE(openssl("verify -x509_strict -CAfile " + ca("ca.crt") + " " + config_ + "/user.crt"));
  EXPECT_FALSE(openssl(verify + config_ + "/user.crt"));
  EXPECT_TRUE(openssl(verify + "-purpose sslserver -verify_hostname node1 " +
                      (directory_ / "node1/host.crt")));
  EXPECT_TRUE(openssl(verify + "-verify_ip 10.0.0.1 " + (directory_ / "node1/host.crt")));
  EXPECT_TRUE(openssl("crl -noout -verify -CAfile " + ca("ca.crt") + " -in " + ca("ca.crl")));
}

TEST(CertificateIndexTest, IsReadBackAsItWasWritten) {
  const std::vector<IssuedCertificate> issued{
      {"4f02", CertificateRole::kHost, "node1", 1'800'000'000, 0, "/a dir/node1"},
      {"77b0", CertificateRole::kUser, "alice", 1'800'000'001, 1'790'000'000, "/home/alice"},
      {"0a", CertificateRole::kHost, "::1", 0, 0, "/"}};
  const Result<std::vector<IssuedCertificate>> read = parse_index(index_text(issued), "x");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, issued);
  EXPECT_EQ(newest_of(*read, CertificateRole::kUser, "node1"), nullptr);
}

TEST(CertificateIndexTest, EveryOtherLineIsAnError) {
  const std::string good = "4f02\thost\tnode1\t1800000000\tvalid\t/a\n";
  ASSERT_TRUE(parse_index(good, "x").ok());
  for (const std::string line :
       {"\n", "4f02\n", "4F02\thost\tnode1\t1\tvalid\t/a\n", "\thost\tnode1\t1\tvalid\t/a\n",
        "4f02\tagent\tnode1\t1\tvalid\t/a\n", "4f02\thost\tno de\t1\tvalid\t/a\n",
        "4f02\thost\tnode1\tsoon\tvalid\t/a\n", "4f02\thost\tnode1\t-1\tvalid\t/a\n",
        "4f02\thost\tnode1\t1\trevoked\t/a\n", "4f02\thost\tnode1\t1\t0\t/a\n",
        "4f02\thost\tnode1\t1\tvalid\n", "4f02\thost\tnode1\t1\tvalid\t/a\tmore\n",
        "4f02\thost\tnode1\t1\tvalid\t/cut off"}) {
    const Result<std::vector<IssuedCertificate>> read = parse_index(good + line, "dir/issued.txt");
    ASSERT_FALSE(read.ok()) << line;
    EXPECT_TRUE(read.error().message.starts_with("dir/issued.txt:2: ")) << read.error().message;
  }
}

}  // namespace
}  // namespace ivy
