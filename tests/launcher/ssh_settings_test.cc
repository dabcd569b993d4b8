// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/ssh/ssh_settings.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

const SshUser kAda{"/home/ada", "ada"};

// The output of OpenSSH 9.2 without a configuration, shortened.
const SshSettings kDefaults = parse_ssh_settings(
    "host localhost\nuser ada\nhostname localhost\nport 22\n"
    "stricthostkeychecking ask\npubkeyauthentication true\n"
    "gssapiauthentication no\nupdatehostkeys true\nidentitiesonly no\n"
    "identityfile ~/.ssh/id_rsa\nidentityfile ~/.ssh/id_ed25519\n"
    "userknownhostsfile /home/ada/.ssh/known_hosts /home/ada/.ssh/known_hosts2\n");

// The defaults, overridden by these lines.
SshTarget target(const std::string& lines, const std::string& typed = "node1") {
  SshSettings settings = kDefaults;
  settings["host"] = settings["hostname"] = {typed};
  for (const auto& [keyword, values] : parse_ssh_settings(lines)) settings[keyword] = values;
  return ssh_target(typed, settings, kDefaults, kAda);
}

TEST(SshTarget, IsOpenSshsDefaultWithoutConfiguration) {
  for (const SshTarget& plain : {target(""), ssh_target("node1", {}, {}, kAda)}) {
    EXPECT_EQ(plain.client_because, "");
    EXPECT_EQ(plain.host_name, "node1");
    EXPECT_EQ(plain.user, "");
    EXPECT_EQ(plain.port, 22);
    EXPECT_EQ(plain.known_hosts, "/home/ada/.ssh/known_hosts");
    ASSERT_EQ(plain.identities.size(), 3u);
    EXPECT_EQ(plain.identities[0], "/home/ada/.ssh/id_ed25519");
    EXPECT_TRUE(plain.may_prompt);
    EXPECT_TRUE(plain.pubkey);
  }
}

TEST(SshTarget, UsesTheOptionsThatLibsshSupports) {
  const SshTarget found = target(
      "hostname 10.0.0.7\nport 2222\nuser bob\nidentityfile ~/keys/a\nidentityfile %d/.ssh/b\n"
      "identityagent /run/agent\nuserknownhostsfile /k\nstricthostkeychecking true\n"
      "pubkeyauthentication no\n");
  EXPECT_EQ(found.client_because, "");
  EXPECT_EQ(found.host_name, "10.0.0.7");
  EXPECT_EQ(found.port, 2222);
  EXPECT_EQ(found.user, "bob");
  EXPECT_EQ(found.identities, (std::vector<std::string>{"/home/ada/keys/a", "/home/ada/.ssh/b"}));
  EXPECT_EQ(found.identity_agent, "/run/agent");
  EXPECT_EQ(found.known_hosts, "/k");
  EXPECT_FALSE(found.may_prompt);
  EXPECT_FALSE(found.pubkey);
}

TEST(SshTarget, KeepsTheNameAsTyped) {
  EXPECT_EQ(target("hostname node1\n", "Node1").host_name, "Node1");
}

TEST(SshTarget, NeedsNoClientForHarmlessSettings) {
  EXPECT_EQ(target("gssapiauthentication yes\nupdatehostkeys false\nsendenv LANG\n"
                   "proxycommand none\nidentitiesonly no\n")
                .client_because,
            "");
}

TEST(SshTarget, OverridesOptionsThatReplaceTheCommand) {
  const SshTarget found = target("remotecommand tmux new -A\nsessiontype none\nrequesttty force\n");
  EXPECT_EQ(found.client_because, "");
  EXPECT_EQ(found.client_options,
            (std::vector<std::string>{"RemoteCommand=none", "SessionType=default"}));
  EXPECT_TRUE(target("").client_options.empty());
}

struct ClientCase {
  const char* lines;
  const char* because;
};
class NeedsClient : public testing::TestWithParam<ClientCase> {};
TEST_P(NeedsClient, WithTheReason) {
  EXPECT_EQ(target(GetParam().lines).client_because, GetParam().because);
}
INSTANTIATE_TEST_SUITE_P(
    All, NeedsClient,
    testing::Values(ClientCase{"identitiesonly yes\n", "identitiesonly"},
                    ClientCase{"certificatefile ~/x-cert.pub\n", "certificatefile"},
                    ClientCase{"hostkeyalias gate\n", "hostkeyalias"},
                    ClientCase{"proxyjump a,b\n", "proxyjump"},
                    ClientCase{"proxycommand nc %h %p\n", "proxycommand"},
                    ClientCase{"stricthostkeychecking false\n", "StrictHostKeyChecking"},
                    ClientCase{"stricthostkeychecking accept-new\n", "StrictHostKeyChecking"},
                    ClientCase{"userknownhostsfile /a /b\n", "UserKnownHostsFile"},
                    ClientCase{"identityfile ~/.ssh/%h\n", "IdentityFile ~/.ssh/%h"},
                    ClientCase{"somethingnew on\n", "somethingnew"}));

TEST(MayConfigure, IsFalseForConfigurationsOfDistributions) {
  const auto nothing = [](const std::string&) { return true; };
  const auto something = [](const std::string&) { return false; };
  const std::string debian =
      "# a comment\n\nInclude /etc/ssh/ssh_config.d/*.conf\nHost *\n    SendEnv LANG LC_*\n"
      "    HashKnownHosts yes\n    GSSAPIAuthentication yes\n#   Port 22\n";
  EXPECT_FALSE(may_configure("", nothing));
  EXPECT_FALSE(may_configure(debian, nothing));
  EXPECT_TRUE(may_configure(debian, something)) << "an included file may contain any option";
  EXPECT_TRUE(may_configure("Host node1\n", nothing));
  EXPECT_TRUE(may_configure("Port=2222\n", nothing));
  EXPECT_TRUE(may_configure("Include /a /b\n", nothing));
}

TEST(KnownHosts, NeedTheClientForAuthorities) {
  EXPECT_TRUE(known_hosts_needs_client("a ssh-rsa x\n@cert-authority * ssh-rsa y\n"));
  EXPECT_TRUE(known_hosts_needs_client("a ssh-rsa x\n \t@revoked * ssh-rsa y"));
  EXPECT_FALSE(known_hosts_needs_client("a ssh-rsa x\n# user@host\n\n  a ssh-rsa @x\n"));
  EXPECT_FALSE(known_hosts_needs_client(""));
}

TEST(KnownHosts, AreReadFromEveryFileOfOpenssh) {
  EXPECT_EQ(known_hosts_files(target("userknownhostsfile /k\n"), kAda),
            (std::vector<std::string>{"/k", "/home/ada/.ssh/known_hosts2",
                                      "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"}));
}

}  // namespace
}  // namespace ivy
