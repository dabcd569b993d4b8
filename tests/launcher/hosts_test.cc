// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/hosts.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "launcher/job/hosts/job_hosts.h"

namespace ivy {
namespace {

// Returns the given parts of "user@name:slots/port" for each host, separated by blanks.
std::string shown(const std::vector<Host>& hosts) {
  std::string out;
  for (const Host& host : hosts) {
    if (!out.empty()) out += ' ';
    if (!host.user.empty()) out += host.user + "@";
    out += host.name;
    if (host.slots) out += ":" + std::to_string(*host.slots);
    if (host.port != 0) out += "/" + std::to_string(host.port);
  }
  return out;
}

std::string parsed(const std::string& text) {
  const Result<std::vector<Host>> hosts = parse_host_list(text, "-H");
  return hosts.ok() ? shown(hosts.value()) : "error " + hosts.error().message;
}

std::string parsed_file(const std::string& text) {
  const Result<std::vector<Host>> hosts = parse_hostfile(text, "hosts.txt");
  return hosts.ok() ? shown(hosts.value()) : "error " + hosts.error().message;
}

TEST(HostListTest, ReadsEveryForm) {
  const std::pair<const char*, const char*> cases[] = {
      {"a", "a"},
      {"a,b", "a b"},
      {" a , b:2 ", "a b:2"},
      {"h1:4", "h1:4"},
      {"user@h2", "user@h2"},
      {"user@h2:3", "user@h2:3"},
      {"me@corp.example@h", "me@corp.example@h"},
      {"a:22:4", "a:4/22"},
      {"a:port=2222", "a/2222"},
      {"a:4:port=2222", "a:4/2222"},
      {"a:port=2222:4", "a:4/2222"},
      {"127.0.0.1:2", "127.0.0.1:2"},
      {"[::1]", "::1"},
      {"[::1]:2", "::1:2"},
      {"u@[fe80::1%eth0]:2:port=22", "u@fe80::1%eth0:2/22"},
      {"fe80::1:2", "fe80::1:2"},
      {"::1,a", "::1 a"},
      {"node[01-03]", "node01 node02 node03"},
      {"node[01-02,10]:8", "node01:8 node02:8 node10:8"},
      {"n[9-11]", "n9 n10 n11"},
      {"n[09-11]", "n09 n10 n11"},
      {"n[99-100]", "n99 n100"},
      {"n[001-003,7]", "n001 n002 n003 n7"},
      {"n[1-2].example.org", "n1.example.org n2.example.org"},
      {"c[1-2]r[1-2]", "c1r1 c1r2 c2r1 c2r2"},
      {"u@n[1-2]:4,x", "u@n1:4 u@n2:4 x"},
      {"localhost:2,localhost:2", "localhost:4"},
      {"a,b,a", "a:2 b"},
      {"a:4,a", "a:5"},
      {"a,a:port=23", "a a/23"},
      {"u@a,v@a", "u@a v@a"},
  };
  for (const auto& [text, hosts] : cases) EXPECT_EQ(parsed(text), hosts) << text;
}

TEST(HostListTest, ErrorsNameTheColumnAndTheText) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "error -H, column 1: the list of hosts is empty"},
      {"a,,b", "error -H, column 3: empty host name before \",\""},
      {"a,", "error -H, column 3: empty host name after \",\""},
      {",a", "error -H, column 1: empty host name before \",\""},
      {"a:x", "error -H, column 3: \"x\" is not a number of slots (1 to 8192)"},
      {"a:0", "error -H, column 3: \"0\" is not a number of slots (1 to 8192)"},
      {"a:-1", "error -H, column 3: \"-1\" is not a number of slots (1 to 8192)"},
      {"a:+1", "error -H, column 3: \"+1\" is not a number of slots (1 to 8192)"},
      {"a:99999999999", "error -H, column 3: \"99999999999\" is not a number of slots (1 to 8192)"},
      {"a:", "error -H, column 3: \"\" is not a number of slots (1 to 8192)"},
      {"a:port=0", "error -H, column 8: \"0\" is not a port (1 to 65535)"},
      {"a:99999:2", "error -H, column 3: \"99999\" is not a port (1 to 65535)"},
      {"a:1:2:3", "error -H, column 2: \":1:2:3\" has too many numbers"},
      {":4", "error -H, column 1: a host name is missing"},
      {"@a", "error -H, column 1: \"\" is not a user name"},
      {"-o@a", "error -H, column 1: \"-o\" is not a user name"},
      {"b,-oProxyCommand=x", "error -H, column 3: \"-oProxyCommand=x\" is not a host name"},
      {"a b", "error -H, column 1: \"a b\" is not a host name"},
      {"a;b", "error -H, column 1: \"a;b\" is not a host name"},
      {"x,n[3-1]", "error -H, column 5: \"3-1\" is a descending range"},
      {"n[1-]", "error -H, column 3: \"1-\" is not a number or a range low-high"},
      {"n[1-2-3]", "error -H, column 3: \"1-2-3\" is not a number or a range low-high"},
      {"n[1,,2]", "error -H, column 5: \"\" is not a number or a range low-high"},
      {"n[]", "error -H, column 3: \"\" is not a number or a range low-high"},
      {"n[a]", "error -H, column 3: \"a\" is not a number or a range low-high"},
      {"n[1-2", "error -H, column 2: \"n[1-2\" has an unmatched bracket"},
      {"n1]", "error -H, column 3: \"n1]\" has an unmatched bracket"},
      {"n[[1]]", "error -H, column 2: \"n[[1]]\" has an unmatched bracket"},
      {"[1-4]", "error -H, column 1: \"[1-4]\" has no host name before the bracket"},
      {"[::zz]", "error -H, column 2: \"::zz\" is not an IPv6 address"},
      {"n[1-9999999]", "error -H, column 3: \"1-9999999\" expands to more than 4096 hosts"},
      {"n[1-100]r[1-100]",
       "error -H, column 1: \"n[1-100]r[1-100]\" expands to more than 4096 hosts"},
      {"n[1-4096],m", "error -H: 4097 hosts, but the limit is 4096"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(parsed(text), message) << text;
}

TEST(HostListTest, RejectsBlanksInsteadOfCommas) {
  EXPECT_EQ(parse_host_list("a b", "-H").error().fix, "separate hosts with commas");
  EXPECT_NE(parse_host_list("a;b", "-H").error().fix.find("letters"), std::string::npos);
}

TEST(HostListTest, LimitsTheNumberOfHosts) {
  EXPECT_NE(parsed(std::string(kMaxHostListBytes + 1, 'a')).find("longer than"), std::string::npos);
  EXPECT_EQ(parse_host_list("n[1-4096]", "-H")->size(), kMaxHosts);
}

TEST(HostListTest, KeepsItsOrigin) {
  EXPECT_EQ(parse_host_list("a", "-H").value()[0].origin, "-H");
  EXPECT_EQ(parse_hostfile("\na\n", "f").value()[0].origin, "f:2");
}

TEST(HostListTest, SurvivesRandomText) {
  std::mt19937 random(7);
  const std::string alphabet = "ab01[]-,:@.=% \n#\xff";
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (std::size_t i = random() % 24; i > 0; --i) text += alphabet[random() % alphabet.size()];
    for (const auto& hosts : {parse_host_list(text, "-H"), parse_hostfile(text, "f")}) {
      if (!hosts.ok()) continue;
      for (const Host& host : hosts.value()) {
        EXPECT_TRUE(is_safe_host_name(host.name)) << text;
        EXPECT_FALSE(host.user.starts_with('-')) << text;
      }
    }
  }
}

TEST(HostListTest, DistinguishesHostsByName) {
  using Names = std::vector<std::string>;
  const std::pair<const char*, Names> cases[] = {
      {"a,b", {"a", "b"}},
      {"root@a,b", {"a", "b"}},
      {"root@localhost,localhost", {"root@localhost", "localhost"}},
      {"me@a,you@a,you@b", {"me@a", "you@a", "b"}},
      {"a:port=22,a:port=23,a", {"a:port=22", "a:port=23", "a"}},
      {"me@a:port=22,me@a,a", {"me@a:port=22", "me@a", "a"}},
  };
  for (const auto& [text, names] : cases) {
    const Result<std::vector<Host>> hosts = parse_host_list(text, "-H");
    ASSERT_TRUE(hosts.ok()) << hosts.error().message;
    EXPECT_EQ(display_names(hosts.value()), names) << text;
  }
}

TEST(HostfileTest, ReadsEveryDialect) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\nb\n", "a b"},
      {"a", "a"},
      {"a:4\nb:2\n", "a:4 b:2"},
      {"a slots=4\nb slots=2 max_slots=8\n", "a:4 b:2"},
      {"a gpus=4 port=2222 user=me\n", "me@a:4/2222"},
      {"# comment\n\n  a slots=4  # eight later\r\n\tb\r\n", "a:4 b"},
      {"a\na\na\nb\n", "a:3 b"},
      {"a slots=2 max_slots=2\na slots=2\n", "a:4"},
      {"node[01-03] slots=8\n", "node01:8 node02:8 node03:8"},
      {"a,b slots=2\n", "a:2 b:2"},
      {"user@a:2\n[::1]:3\n", "user@a:2 ::1:3"},
      {"u@a:2 slots=2 user=u gpus=2\n", "u@a:2"},
      {"\xEF\xBB\xBF"
       "a\n",
       "a"},
  };
  for (const auto& [text, hosts] : cases) EXPECT_EQ(parsed_file(text), hosts) << text;
}

TEST(HostfileTest, ErrorsNameLineAndColumn) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "error hosts.txt: the file lists no hosts"},
      {"# nothing\n\n", "error hosts.txt: the file lists no hosts"},
      {"a\nb slots=x\n", "error hosts.txt:2:9: \"x\" is not a number of slots (1 to 8192)"},
      {"a slots=2\u00a0\n",
       "error hosts.txt:1:9: \"2<U+00A0>\" is not a number of slots (1 to 8192)"},
      {"a\n  b cores=4\n", "error hosts.txt:2:5: unknown key \"cores\""},
      {"h:1 slots=2\n",
       "error hosts.txt:1:5: \"slots=2\" contradicts slots=1, given earlier for h"},
      {"h slots=2 gpus=4\n",
       "error hosts.txt:1:11: \"gpus=4\" contradicts slots=2, given earlier for h"},
      {"a\nu@h user=v\n",
       "error hosts.txt:2:5: \"user=v\" contradicts user=u, given earlier for h"},
      {"h:port=22 port=23\n",
       "error hosts.txt:1:11: \"port=23\" contradicts port=22, given earlier for h"},
      {"a 4\nb 2\n", "a:4 b:2"},
      {"a:1 4\n", "error hosts.txt:1:5: \"4\" is not key=value"},
      {"a slots=3 max_slots=2\n", "error hosts.txt:1:1: a: slots=3 is more than max_slots=2"},
      {"a:2 binding=user:1\n",
       "error hosts.txt:1:5: \"binding\" is a keyword of MPICH's host files that ivyrun does not "
       "support"},
      {"a addr=10.0.0.1\n",
       "error hosts.txt:1:3: a host cannot have an address in addition to its name"},
      {"a user=-x\n", "error hosts.txt:1:8: \"-x\" is not a user name"},
      {"a\n\nn[2-1]\n", "error hosts.txt:3:3: \"2-1\" is a descending range"},
      {"a max_slots=no\n", "error hosts.txt:1:13: \"no\" is not a number of slots (1 to 8192)"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(parsed_file(text), message) << text;
}

TEST(HostfileTest, AcceptsAPbsFileWithMoreLinesThanHosts) {
  std::string text;
  for (int host = 0; host < 100; ++host)
    for (int slot = 0; slot < 96; ++slot) text += "n" + std::to_string(host) + "\n";
  const Result<std::vector<Host>> hosts = parse_hostfile(text, "hosts.txt");
  ASSERT_TRUE(hosts.ok());
  EXPECT_EQ(hosts->size(), 100u);
  EXPECT_EQ(hosts.value()[99].slots, 96);
}

TEST(CommandHostsTest, HaveTheGrammarOfAHostfile) {
  const auto hosts = parse_command_hosts("# pool a\nn1 slots=2\r\n\nn[2-3]:4\nn1\n");
  ASSERT_TRUE(hosts.ok()) << hosts.error().message;
  ASSERT_EQ(hosts->size(), 3u);
  EXPECT_EQ(hosts->front().slots, 3);
  EXPECT_EQ(hosts->front().origin, "--hosts-from:2");
  EXPECT_EQ(parse_command_hosts("n1\nn2 slots=x\n").error().message,
            "--hosts-from:2:10: \"x\" is not a number of slots (1 to 8192)");
  for (const char* nothing : {"", "\n\n", "# none\n"})
    EXPECT_EQ(parse_command_hosts(nothing).error().message,
              "--hosts-from: the command printed no hosts");
}

TEST(CommandHostsTest, ErrorsHaveAFix) {
  const std::string example = "let the command print one host per line, such as \"node01 slots=8\"";
  for (const char* output : {"", "n1 slots=x\n", "n1 port=0\n", "-@n1\n", ":4\n"})
    EXPECT_EQ(parse_command_hosts(output).error().fix, example) << output;
  // The parser's own advice is more precise.
  EXPECT_EQ(parse_command_hosts("n1 gpu=2\n").error().fix,
            "known keys: slots, gpus, max_slots, port, user");
}

TEST(FakeHostsTest, AreNumbered) {
  const std::vector<Host> hosts = fake_hosts(2);
  EXPECT_EQ(shown(hosts), "fake0 fake1");
  EXPECT_EQ(hosts[1].fake, 1);
}

TEST(FoldTest, WritesRangesShortly) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, ""},
      {{"a"}, "a"},
      {{"node1"}, "node1"},
      {{"node01", "node02", "node03", "node07"}, "node[01-03,07]"},
      {{"n9", "n10", "n11"}, "n[9-11]"},
      {{"n09", "n10", "n11"}, "n[09-11]"},
      {{"n3", "n1", "n2", "n2"}, "n[1-3]"},
      {{"b", "a1", "a2", "b"}, "b,a[1-2]"},
      {{"n1.x", "n2.x", "n1.y"}, "n[1-2].x,n1.y"},
      {{"10.0.0.1", "10.0.0.2"}, "10.0.0.[1-2]"},
      {{"::1", "::2"}, "::1,::2"},
      {{"1", "2"}, "1,2"},
  };
  for (const auto& [names, text] : cases) EXPECT_EQ(fold_host_names(names), text);
}

TEST(FoldTest, CanBeReadBack) {
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    std::set<std::string> names;
    for (std::size_t i = 1 + random() % 12; i > 0; --i) {
      std::string digits = std::to_string(random() % 120);
      if (random() % 2 == 0 && digits.size() < 3) digits.insert(0, 3 - digits.size(), '0');
      names.insert(std::string(1, "nx"[random() % 2]) + digits + (random() % 3 == 0 ? "-ib" : ""));
    }
    const std::string text = fold_host_names({names.begin(), names.end()});
    const Result<std::vector<Host>> hosts = parse_host_list(text, "-H");
    ASSERT_TRUE(hosts.ok()) << text;
    std::set<std::string> back;
    for (const Host& host : hosts.value()) back.insert(host.name);
    EXPECT_EQ(back, names) << text;
  }
}

TEST(SafeNameTest, RejectsNamesThatSshOrAShellCouldMisread) {
  for (const char* good : {"a", "node-01.example.org", "10.0.0.1", "::1", "fe80::1%eth0", "a_b"})
    EXPECT_TRUE(is_safe_host_name(good)) << good;
  for (const char* bad : {"", "-a", "a b", "a;b", "$(x)", "a/b", "a\n", "a@b", "[::1]"})
    EXPECT_FALSE(is_safe_host_name(bad)) << bad;
}

TEST(HostfileTest, IsWrittenAsItIsRead) {
  const std::string text = "a\nb slots=4 max_slots=8 port=2222 user=ann\n[::1] slots=2\n";
  EXPECT_EQ(hostfile_text(parse_hostfile(text, "f").value()), text);
}

}  // namespace
}  // namespace ivy
