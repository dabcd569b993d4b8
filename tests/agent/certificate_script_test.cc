// SPDX-License-Identifier: Apache-2.0
// ivy-agent-cert: each command runs the script, and proto/trust verifies its certificates, as
// agents and launchers do.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "proto/trust/agent_certificate.h"
#include "proto/trust/agent_config.h"
#include "tests/support/test_certificates.h"

namespace ivy {
namespace {

using test::kTestDay;

struct Done {
  int code = -1;
  std::string text;  // Standard output and standard error.
};

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

mode_t mode_of(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
}

class CertificateScriptTest : public testing::Test {
 protected:
  Done run(const std::vector<std::string>& words) const {
    std::string command = "cd " + quoted(directory_.path()) +
                          " && XDG_CONFIG_HOME=" + quoted(directory_ / "config") + " " +
                          quoted(IVY_CERTIFICATE_SCRIPT);
    for (const std::string& word : words) command += " " + quoted(word);
    std::FILE* const pipe = popen((command + " 2>&1 </dev/null").c_str(), "r");
    Done done;
    char part[4096];
    while (const std::size_t size = std::fread(part, 1, sizeof part, pipe))
      done.text.append(part, size);
    const int status = pclose(pipe);
    done.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return done;
  }
  void expect_done(const std::vector<std::string>& words, const std::string& says = "") const {
    const Done done = run(words);
    EXPECT_EQ(done.code, 0) << done.text;
    EXPECT_NE(done.text.find(says), std::string::npos) << done.text;
  }
  void expect_rejected(const std::vector<std::string>& words, int code,
                       const std::string& says) const {
    const Done done = run(words);
    EXPECT_EQ(done.code, code) << done.text;
    EXPECT_TRUE(done.text.starts_with("ivy-agent: error: ")) << done.text;
    EXPECT_NE(done.text.find(says), std::string::npos) << done.text;
  }
  void init() const { expect_done({"ca", "init", "--name", "blue"}, "CA \"blue\" in "); }

  // Verifies with the current files of the CA, as an agent or a launcher does.
  Result<CertificateIdentity> verify(const std::string& certificate, CertificateRole wanted,
                                     std::int64_t now = std::time(nullptr)) const {
    return verify_certificate(directory_.read(certificate),
                              {directory_.read(ca_ + "/ca.crt"), directory_.read(ca_ + "/ca.crl")},
                              wanted, now);
  }
  void expect_revoked(const std::string& certificate, CertificateRole role) const {
    const Result<CertificateIdentity> identity = verify(certificate, role);
    ASSERT_FALSE(identity.ok()) << certificate;
    EXPECT_NE(identity.error().message.find("has been revoked"), std::string::npos)
        << identity.error().message;
  }
  // Copies the CA that version 0.1.0 made.
  void take_old_authority() const {
    std::filesystem::create_directories(directory_ / "config/ivyrun");
    std::filesystem::copy(IVY_OLD_AUTHORITY, directory_ / ca_,
                          std::filesystem::copy_options::recursive);
    // Tabs are written as \\t in this repository.
    std::string index = directory_.read(ca_ + "/issued.txt");
    for (std::size_t at; (at = index.find("\\t")) != std::string::npos;) index.replace(at, 2, "\t");
    directory_.write(ca_ + "/issued.txt", index);
    chmod((directory_ / ca_).c_str(), 0700);
    chmod((directory_ / (ca_ + "/ca.key")).c_str(), 0600);
    chmod((directory_ / (ca_ + "/issued")).c_str(), 0700);
  }

  const test::TestDirectory directory_;
  std::string ca_ = "config/ivyrun/ca";
};

TEST_F(CertificateScriptTest, MakesAnAuthorityThatOnlyItsOwnerCanRead) {
  init();
  EXPECT_EQ(mode_of(directory_ / ca_), 0700U);
  EXPECT_EQ(mode_of(directory_ / (ca_ + "/ca.key")), 0600U);
  EXPECT_EQ(mode_of(directory_ / (ca_ + "/ca.crt")), 0644U);
  EXPECT_EQ(mode_of(directory_ / (ca_ + "/ca.crl")), 0644U);
  EXPECT_EQ(mode_of(directory_ / (ca_ + "/issued.txt")), 0600U);
  for (const auto& entry : std::filesystem::directory_iterator(directory_ / ca_))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
  expect_rejected({"ca", "init"}, 1, "a CA is never overwritten");
  // Half of an authority is not usable, but still must not be overwritten.
  ASSERT_EQ(unlink((directory_ / (ca_ + "/ca.key")).c_str()), 0);
  expect_rejected({"ca", "init"}, 1, "ca.crt exists");
}

TEST_F(CertificateScriptTest, WritesTheFilesThatAnAgentNeeds) {
  init();
  expect_done({"cert", "Node7", "node7.lan", "10.0.0.7", "[FE80::7%eth0]", "NODE7",
               "::ffff:10.0.0.8", "--serves", "alice", "--out", "out"},
              "names: node7 node7.lan 10.0.0.7 fe80::7 10.0.0.8");
  const Result<CertificateIdentity> identity = verify("out/host.crt", CertificateRole::kHost);
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(identity->name, "node7");
  EXPECT_EQ(identity->serves, "alice");
  EXPECT_EQ(identity->dns_names, (std::vector<std::string>{"node7", "node7.lan"}));
  EXPECT_EQ(identity->addresses, (std::vector<std::string>{"10.0.0.7", "fe80::7", "10.0.0.8"}));
  EXPECT_NEAR(static_cast<double>(identity->not_before),
              static_cast<double>(std::time(nullptr) - kTestDay), 60);
  EXPECT_NEAR(static_cast<double>(identity->not_after),
              static_cast<double>(std::time(nullptr) + 365 * kTestDay), 60);
  EXPECT_EQ(mode_of(directory_ / "out"), 0700U);
  EXPECT_EQ(mode_of(directory_ / "out/host.key"), 0600U);
  EXPECT_EQ(directory_.read("out/ca.crt"), directory_.read(ca_ + "/ca.crt"));
  EXPECT_EQ(directory_.read("out/ca.crl"), directory_.read(ca_ + "/ca.crl"));
  EXPECT_FALSE(verify("out/host.crt", CertificateRole::kUser).ok());
}

TEST_F(CertificateScriptTest, TakesANumericAddressOrALongNameAsAHost) {
  init();
  const std::string longest = std::string(60, 'a') + "." + std::string(60, 'b') + ".lan";
  for (const std::string& host : {std::string("2001:db8::7"), longest}) {
    expect_done({"cert", host, "--serves-any"}, "serves: any user");
    const Result<CertificateIdentity> identity = verify(host + "/host.crt", CertificateRole::kHost);
    ASSERT_TRUE(identity.ok()) << identity.error().message;
    EXPECT_EQ(identity->name, host);
    EXPECT_TRUE(check_host_name(*identity, host).ok());
  }
}

TEST_F(CertificateScriptTest, WritesAUserConfigurationThatLoads) {
  init();
  expect_done({"cert", "--user", "alice", "--port", "7500"}, "ivyrun finds them there");
  expect_done({"cert", "--user", "alice"});  // The port stays the same until another one is given.
  const Result<std::optional<AgentConfig>> config =
      load_agent_config({{"IVY_AGENT_CONFIG", directory_ / "config/ivyrun/agent.toml"}});
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ((*config)->port, 7500);
  EXPECT_EQ((*config)->key, directory_ / "config/ivyrun/user.key");
  EXPECT_EQ((*config)->revoked, directory_ / "config/ivyrun/ca.crl");
  const Result<CertificateIdentity> identity =
      verify("config/ivyrun/user.crt", CertificateRole::kUser);
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(identity->name, "alice");
  expect_done({"cert", "--user", "bob", "--out", "bob"}, "IVY_AGENT_CONFIG=");
  std::filesystem::rename(directory_ / "bob", directory_ / "home of bob");
  EXPECT_TRUE(
      load_agent_config({{"IVY_AGENT_CONFIG", directory_ / "home of bob/agent.toml"}}).ok());
}

TEST_F(CertificateScriptTest, NeverOverwritesFilesOfOthers) {
  init();
  expect_done({"cert", "--user", "alice"});
  const std::string key = directory_.read("config/ivyrun/user.key");
  expect_rejected({"cert", "--user", "bob"}, 1,
                  "user.crt is the certificate of user/alice, not of user/bob");
  expect_done({"ca", "init", "--ca", "other CA", "--days", "10"});
  expect_rejected({"cert", "--user", "alice", "--ca", "other CA"}, 1,
                  "belongs to another CA than ");
  expect_rejected({"cert", "--user", "alice", "--out", ca_}, 2,
                  "is the directory of the CA itself");
  EXPECT_EQ(directory_.read("config/ivyrun/user.key"), key);
}

TEST_F(CertificateScriptTest, RenewsWithTheNamesAndTheDirectoryOfTheLast) {
  init();
  expect_done(
      {"cert", "node7", "node7.lan", "10.0.0.7", "fe80::7", "--serves", "alice", "--out", "out"});
  const std::string old_key = directory_.read("out/host.key");
  directory_.write("old.crt", directory_.read("out/host.crt"));
  std::filesystem::remove_all(directory_ / "out");  // As if it was moved to the host.
  expect_done({"renew", "NODE7", "--days", "20"}, "host/node7: certificate until");
  const Result<CertificateIdentity> identity = verify("out/host.crt", CertificateRole::kHost);
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(identity->serves, "alice");
  EXPECT_EQ(identity->dns_names, (std::vector<std::string>{"node7", "node7.lan"}));
  EXPECT_EQ(identity->addresses, (std::vector<std::string>{"10.0.0.7", "fe80::7"}));
  EXPECT_NE(directory_.read("out/host.key"), old_key);
  // The old certificate stays valid until it expires, because the new one may reach the host much
  // later.
  EXPECT_TRUE(verify("old.crt", CertificateRole::kHost).ok());
  expect_done({"certs"}, "host/node7   replaced");
}

TEST_F(CertificateScriptTest, LeavesAUsersConfigurationAtARenewal) {
  init();
  expect_done({"cert", "--user", "alice", "--port", "7500"});
  directory_.write("config/ivyrun/agent.toml",
                   "# mine\n" + directory_.read("config/ivyrun/agent.toml"));
  expect_done({"renew", "--user", "alice"}, "user/alice: certificate until");
  EXPECT_TRUE(directory_.read("config/ivyrun/agent.toml").starts_with("# mine\n"));
}

TEST_F(CertificateScriptTest, RevokesAllCertificatesOfAName) {
  init();
  expect_done({"cert", "node7", "--serves", "alice"});
  directory_.write("first.crt", directory_.read("node7/host.crt"));
  expect_done({"renew", "node7"});
  expect_done({"cert", "node8", "--serves", "alice"});
  expect_done({"cert", "--user", "node7"});  // A user and a host with the same name are different.
  expect_done({"revoke", "node7"}, "every host (node8): ca.crl");
  expect_revoked("first.crt", CertificateRole::kHost);
  expect_revoked("node7/host.crt", CertificateRole::kHost);
  EXPECT_TRUE(verify("node8/host.crt", CertificateRole::kHost).ok());
  EXPECT_TRUE(verify("config/ivyrun/user.crt", CertificateRole::kUser).ok());
  expect_rejected({"renew", "node7"}, 1, "so it cannot be renewed");
  expect_done({"cert", "node7", "--serves", "alice"});
  EXPECT_TRUE(verify("node7/host.crt", CertificateRole::kHost).ok());
  expect_done({"revoke", "node7"}, "(already on ");
  // A revoked certificate stays revoked after every later command.
  expect_done({"cert", "node9", "--serves", "alice"});
  expect_revoked("first.crt", CertificateRole::kHost);
  EXPECT_EQ(directory_.read("node9/ca.crl"), directory_.read(ca_ + "/ca.crl"));
}

TEST_F(CertificateScriptTest, RevokesOneCertificateByItsSerial) {
  init();
  expect_done({"cert", "--user", "alice"});
  const std::string first = directory_.read("config/ivyrun/user.crt");
  directory_.write("first.crt", first);
  expect_done({"cert", "--user", "alice"});
  std::string typed = read_certificate(first)->serial;
  for (char& c : typed) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  typed.insert(2, ":");
  expect_done({"revoke", "--serial", typed}, read_certificate(first)->serial);
  expect_revoked("first.crt", CertificateRole::kUser);
  EXPECT_TRUE(verify("config/ivyrun/user.crt", CertificateRole::kUser).ok());
}

TEST_F(CertificateScriptTest, LimitsCertificatesToTheLifetimeOfTheAuthority) {
  expect_done({"ca", "init", "--days", "10"});
  expect_done({"cert", "node1", "--serves", "alice"}, "Its validity is limited to that of the CA");
  const Result<CertificateIdentity> identity = verify("node1/host.crt", CertificateRole::kHost);
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_NEAR(static_cast<double>(identity->not_after),
              static_cast<double>(std::time(nullptr) + 10 * kTestDay), 60);
  expect_done({"certs"}, "the CA expires in ");
}

TEST_F(CertificateScriptTest, WarnsBeforeACertificateExpires) {
  init();
  expect_done({"certs"}, "no certificates");
  expect_done({"cert", "node1", "--serves", "alice"});
  expect_done({"cert", "--user", "alice", "--days", "10"});
  expect_done({"cert", "--user", "bob", "--days", "10", "--out", "bob"});
  expect_done({"revoke", "--user", "bob"});
  const Done table = run({"certs"});
  EXPECT_NE(table.text.find("user/alice expires in "), std::string::npos) << table.text;
  EXPECT_NE(table.text.find(": `ivy-agent renew --user alice`"), std::string::npos) << table.text;
  EXPECT_NE(table.text.find("user/bob     revoked "), std::string::npos) << table.text;
  EXPECT_EQ(table.text.find("user/bob expires"), std::string::npos) << table.text;
  EXPECT_EQ(table.text.find("host/node1 expires"), std::string::npos) << table.text;
}

TEST_F(CertificateScriptTest, RejectsInvalidArgumentsBeforeWritingAnything) {
  init();
  const std::string index = directory_.read(ca_ + "/issued.txt");
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong{
      {{"ca"}, "ca has one verb: init"},
      {{"ca", "init", "--ca", "x", "--name", "a\nb"}, "--name"},
      {{"cert"}, "cert needs a HOST or --user NAME"},
      {{"cert", "node1"}, "--serves USER or --serves-any"},
      {{"cert", "node1", "--serves", "bob", "--serves-any"}, "needs either --serves USER or"},
      {{"cert", "node1", "--user", "alice"}, "only one of them"},
      {{"cert", "--user", "alice", "--serves", "bob"}, "are for the certificate of a host"},
      {{"cert", "--user", "alice", "--port", "70000"}, "is not a port"},
      {{"cert", "--user", "alice", "--days", "3651"}, "--days 3651"},
      {{"cert", "--user", "root/alice"}, "cannot be the name of a user"},
      {{"cert", "--user", "a$(x)"}, "cannot be the name of a user"},
      {{"cert", "--user", "alice", "--out", "a\nb"}, "control characters"},
      {{"cert", "n", "--serves", "a b"}, "cannot be the name of a user"},
      {{"cert", "n", "--serves", "a", "--days", "0"}, "--days 0"},
      {{"cert", "n", "--serves"}, "--serves needs a value"},
      {{"cert", "n", "--sevres", "a"}, "has no flag --sevres"},
      {{"cert", "../node", "--serves", "a"}, "cannot be the name of a host"},
      {{"cert", "a\tvalid", "--serves", "a"}, "\"a?valid\""},
      {{"cert", "node1:22", "--serves", "a"}, "neither a DNS name nor a numeric"},
      {{"cert", "node1", "10.0.0.1:7411", "--serves", "a"}, "neither a DNS name"},
      {{"cert", "no${IFS}de", "--serves", "a"}, "cannot be the name of a host"},
      {{"renew"}, "renew needs a HOST"},
      {{"renew", "n", "m"}, "renew takes one HOST"},
      {{"renew", "n", "--user", "a"}, "only one of them"},
      {{"revoke"}, "revoke needs a HOST"},
      {{"revoke", "n", "--serial", "4f"}, "--serial cannot be used together with a name"},
      {{"revoke", "--serial", "xyz"}, "\"xyz\" is not a serial number"},
      {{"certs", "all"}, "does not take an argument: \"all\""},
      {{"sing"}, "unknown verb \"sing\""}};
  for (const auto& [words, says] : wrong) expect_rejected(words, 2, says);
  std::vector<std::string> many{"cert", "n", "--serves", "a"};
  many.insert(many.end(), 65, "x");
  expect_rejected(many, 2, "more than 64 names");
  expect_rejected({"revoke", "--serial", "4f"}, 1, "serial 4f");
  expect_rejected({"renew", "node9"}, 1, "has not issued a certificate for host/node9");
  expect_rejected({"revoke", "node9"}, 1, "no unexpired certificate of host/node9");
  EXPECT_EQ(directory_.read(ca_ + "/issued.txt"), index);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "n"));
}

TEST_F(CertificateScriptTest, ExplainsHowToMakeAnAuthority) {
  expect_rejected({"cert", "node1", "--serves", "a"}, 1, "there is no certificate authority in");
  expect_rejected({"certs"}, 1, "`ivy-agent ca init`");
}

TEST_F(CertificateScriptTest, DoesNotUseAnAuthorityThatOthersCouldTouch) {
  init();
  ASSERT_EQ(chmod((directory_ / (ca_ + "/ca.key")).c_str(), 0640), 0);
  expect_rejected({"cert", "node1", "--serves", "a"}, 1, "is open to other users");
  ASSERT_EQ(chmod((directory_ / (ca_ + "/ca.key")).c_str(), 0600), 0);
  ASSERT_EQ(chmod((directory_ / ca_).c_str(), 0755), 0);
  expect_rejected({"cert", "node1", "--serves", "a"}, 1, "is open to other users (mode 0755)");
  ASSERT_EQ(chmod((directory_ / ca_).c_str(), 0700), 0);
  std::filesystem::create_directory(directory_ / "shared");
  ASSERT_EQ(chmod((directory_ / "shared").c_str(), 0777), 0);
  expect_rejected({"cert", "--user", "alice", "--out", "shared"}, 1,
                  "can be changed by other users (mode 0777)");
  expect_done({"cert", "node1", "--serves", "a"});
}

TEST_F(CertificateScriptTest, NamesTheDamagedFile) {
  init();
  const std::string index = directory_.read(ca_ + "/issued.txt");
  for (const std::string line :
       {"\n", "4f02\n", "4F02\thost\tnode1\t1\tvalid\t/a\n", "4f02\tagent\tnode1\t1\tvalid\t/a\n",
        "4f02\thost\tno de\t1\tvalid\t/a\n", "4f02\thost\tnode1\tsoon\tvalid\t/a\n",
        "4f02\thost\tnode1\t1\t0\t/a\n", "4f02\thost\tnode1\t1\tvalid\n",
        "4f02\thost\tnode1\t1\tvalid\t/a\tmore\n", "4f02\thost\tnode1\t1\tvalid\t/cut"}) {
    directory_.write(ca_ + "/issued.txt", index + line);
    expect_rejected({"cert", "node1", "--serves", "a"}, 1, "issued.txt:2: not a line");
  }
  directory_.write(ca_ + "/issued.txt", index);
  const std::string key = directory_.read(ca_ + "/ca.key");
  directory_.write(ca_ + "/ca.key", "x");
  expect_rejected({"cert", "node1", "--serves", "a"}, 1, "the CA's key is damaged");
  directory_.write(ca_ + "/ca.key", test::TestAuthority().texts().key_pem);
  expect_rejected({"cert", "node1", "--serves", "a"}, 1, "do not belong together");
  directory_.write(ca_ + "/ca.key", key);
  expect_done({"cert", "node1", "--serves", "a"});
}

TEST_F(CertificateScriptTest, RunsCommandsOfOneAuthorityInTurn) {
  init();
  constexpr int kProcesses = 6;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) _exit(run({"cert", "node" + std::to_string(process), "--serves", "a"}).code);
  }
  for (int process = 0; process < kProcesses; ++process) {
    int status = -1;
    ASSERT_GT(wait(&status), 0);
    EXPECT_EQ(status, 0);
  }
  std::istringstream lines(directory_.read(ca_ + "/issued.txt"));
  std::set<std::string> serials;
  for (std::string line; std::getline(lines, line);)
    if (!line.starts_with("#")) serials.insert(line.substr(0, line.find('\t')));
  EXPECT_EQ(serials.size(), static_cast<std::size_t>(kProcesses));
}

TEST_F(CertificateScriptTest, ContinuesWithAnAuthorityOfVersion010) {
  take_old_authority();
  // A time at which the fixture's certificates are valid, independent of today's date.
  const std::int64_t then = 1'800'000'000;
  const auto old = [&](const char* name, CertificateRole role) {
    return verify(ca_ + "/" + name, role, then);
  };
  EXPECT_TRUE(old("host.crt", CertificateRole::kHost).ok());
  EXPECT_TRUE(old("alice.crt", CertificateRole::kUser).ok());
  EXPECT_FALSE(old("bob.crt", CertificateRole::kUser).ok());
  expect_done({"cert", "node2", "--serves", "alice"});
  expect_done({"renew", "node1", "--out", "node1"}, "names: node1 10.0.0.1");
  EXPECT_TRUE(verify("node1/host.crt", CertificateRole::kHost).ok());
  expect_done({"revoke", "--user", "alice"});
  for (const char* name : {"alice.crt", "bob.crt"})
    expect_revoked(ca_ + "/" + name, CertificateRole::kUser);
  EXPECT_TRUE(old("host.crt", CertificateRole::kHost).ok());
}

}  // namespace
}  // namespace ivy
