#include "launcher/links/ssh/ssh_config_check.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

const SshUser kAda{"/home/ada", "ada"};

SshTarget target(const std::string& config, const SshTyped& typed = {"node1", "", 0}) {
  return ssh_target(typed, {config}, kAda);
}

TEST(SshTarget, WithoutConfigurationIsOpenSshsDefault) {
  const SshTarget plain = target("");
  EXPECT_EQ(plain.client_because, "");
  EXPECT_EQ(plain.host_name, "node1");
  EXPECT_EQ(plain.port, 22);
  EXPECT_EQ(plain.known_hosts, "/home/ada/.ssh/known_hosts");
  ASSERT_EQ(plain.identities.size(), 3u);
  EXPECT_EQ(plain.identities[0], "/home/ada/.ssh/id_ed25519");
  EXPECT_TRUE(plain.may_ask);
}

TEST(SshTarget, DebiansOwnConfigurationNeedsNoClient) {
  const SshTarget debian = target(
      "Host *\n    SendEnv LANG LC_*\n    HashKnownHosts yes\n    GSSAPIAuthentication yes\n");
  EXPECT_EQ(debian.client_because, "");
}

TEST(SshTarget, TheFirstValueWinsAndIdentitiesAddUp) {
  const SshTarget found = target(
      "Host node1\n  HostName 10.0.0.7\n  Port=2222\n  IdentityFile ~/keys/a\n"
      "Host *\n  HostName wrong\n  Port 1\n  User bob\n  IdentityFile \"%d/.ssh/b\"\n");
  EXPECT_EQ(found.host_name, "10.0.0.7");
  EXPECT_EQ(found.port, 2222);
  EXPECT_EQ(found.user, "bob");
  EXPECT_EQ(found.identities, (std::vector<std::string>{"/home/ada/keys/a", "/home/ada/.ssh/b"}));
  EXPECT_EQ(found.client_because, "");
}

TEST(SshTarget, WhatTheUserTypedWins) {
  const SshTarget found = target("User bob\nPort 2222\n", SshTyped{"node1", "carol", 2200});
  EXPECT_EQ(found.user, "carol");
  EXPECT_EQ(found.port, 2200);
}

TEST(SshTarget, OtherHostsSectionsDoNotCount) {
  EXPECT_EQ(target("Host other\n ProxyJump gate\n IdentitiesOnly yes\n").client_because, "");
}

TEST(SshTarget, AnIncludeEndsWithItsFileAndCountsWhereItStands) {
  const std::string inside = "\x02\nHost node1\n  Port 2222\n\x03\n";
  EXPECT_EQ(target(inside + "User bob\n").user, "bob");
  EXPECT_EQ(target(inside).port, 2222);
  EXPECT_EQ(target("Host other\n" + inside + "User bob\n").port, 22);
  EXPECT_EQ(target("Host other\n" + inside + "User bob\n").user, "");
}

struct ClientCase {
  const char* config;
  const char* because;
};
class NeedsClient : public testing::TestWithParam<ClientCase> {};
TEST_P(NeedsClient, WithTheReason) {
  EXPECT_EQ(target(GetParam().config).client_because, GetParam().because);
}
INSTANTIATE_TEST_SUITE_P(
    All, NeedsClient,
    testing::Values(ClientCase{"IdentitiesOnly yes\n", "identitiesonly"},
                    ClientCase{"CertificateFile ~/x-cert.pub\n", "certificatefile"},
                    ClientCase{"HostKeyAlias gate\n", "hostkeyalias"},
                    ClientCase{"ProxyJump a,b\n", "proxyjump"},
                    ClientCase{"ProxyCommand nc %h %p\n", "proxycommand"},
                    ClientCase{"Match host node1\n  User x\n", "Match"},
                    ClientCase{"StrictHostKeyChecking no\n", "StrictHostKeyChecking no"},
                    ClientCase{"StrictHostKeyChecking accept-new\n",
                               "StrictHostKeyChecking accept-new"},
                    ClientCase{"UserKnownHostsFile ~/a ~/b\n", "UserKnownHostsFile"},
                    ClientCase{"IdentityFile ~/.ssh/%h\n", "IdentityFile ~/.ssh/%h"},
                    ClientCase{"Port many\n", "Port"},
                    ClientCase{"SomethingNew on\n", "somethingnew"}));

TEST(SshTarget, SwitchedOffKeywordsNeedNoClient) {
  EXPECT_EQ(target("IdentitiesOnly no\nProxyJump none\nProxyCommand none\n").client_because, "");
}

TEST(Patterns, MatchAsOpenSshDoes) {
  EXPECT_TRUE(matches_ssh_pattern_list("node12.example", "a* node??.example"));
  EXPECT_FALSE(matches_ssh_pattern_list("node1.example", "node??.example"));
  EXPECT_FALSE(matches_ssh_pattern_list("bad.example", "*.example !bad.*"));
  EXPECT_TRUE(matches_ssh_pattern_list("NODE1", "node1"));
  EXPECT_TRUE(matches_ssh_pattern_list("x", "*"));
  EXPECT_FALSE(matches_ssh_pattern_list("x", "!y"));
}

TEST(KnownHosts, AuthoritiesNeedTheClient) {
  EXPECT_TRUE(known_hosts_needs_client("a ssh-rsa x\n@cert-authority * ssh-rsa y\n"));
  EXPECT_TRUE(known_hosts_needs_client("a ssh-rsa x\n \t@revoked * ssh-rsa y"));
  EXPECT_FALSE(known_hosts_needs_client("a ssh-rsa x\n# user@host\n\n  a ssh-rsa @x\n"));
  EXPECT_FALSE(known_hosts_needs_client(""));
}

TEST(KnownHosts, AreReadWhereverOpensshReadsThem) {
  const SshUser user{"/home/alice", "alice"};
  const SshTarget target = ssh_target({"node1", "", 0}, {"UserKnownHostsFile /k\n"}, user);
  EXPECT_EQ(known_hosts_files(target, user),
            (std::vector<std::string>{"/k", "/home/alice/.ssh/known_hosts2",
                                      "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"}));
}

}  // namespace
}  // namespace ivy
