// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/config_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "launcher/options/options.h"
#include "launcher/options/policy.h"
#include "launcher/options/toml_file.h"

namespace ivy {
namespace {

class ConfigFiles : public ::testing::Test {
 protected:
  ConfigFiles() {
    char name[] = "/tmp/ivy_config_XXXXXX";
    folder_ = mkdtemp(name);
    places_.system = folder_ + "/system.toml";
    places_.user = folder_ + "/user.toml";
    places_.policy = folder_ + "/policy.toml";
  }
  ~ConfigFiles() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }

  // Returns for instance "num-proc=4 <- IVY_NUM_PROC" for each setting that is not from the command
  // line.
  Result<std::vector<std::string>> settings(const std::vector<std::string>& words,
                                            const Environment& environment = {}) {
    Scanned scanned = IVY_TRY(scan_command_line(words));
    IVY_CHECK(add_defaults(environment, scanned));
    IVY_CHECK(add_config_files(places_, scanned));
    std::vector<std::string> lines;
    for (const Setting& setting : scanned.settings) {
      if (setting.origin.empty()) continue;
      std::string origin = setting.origin;
      if (origin.starts_with(folder_)) origin = origin.substr(folder_.size() + 1);
      lines.push_back(std::string(setting.entry->name) + "=" + setting.value + " <- " + origin);
    }
    return lines;
  }

  Error error(const std::vector<std::string>& words = {"x"}) {
    const auto found = settings(words);
    EXPECT_FALSE(found.ok());
    return found.ok() ? Error{} : found.error();
  }

  std::string folder_;
  ConfigPaths places_;
};

using Lines = std::vector<std::string>;

TEST_F(ConfigFiles, AreOptional) { EXPECT_EQ(*settings({"x"}), Lines{}); }

TEST_F(ConfigFiles, YieldToArgumentsAndVariables) {
  write("system.toml", "num-proc = 2\nlabel = \"host\"\nquiet = true\nverbose = true\n");
  write("user.toml", "# mine\nnum_proc = 3\nquiet = false\ntimeout = \"30m\"\n");
  const std::string named = write("named.toml", "timeout = \"1h\"\n");
  EXPECT_EQ(*settings({"x"}),
            (Lines{"num-proc=3 <- user.toml:2", "timeout=30m <- user.toml:4",
                   "label=host <- system.toml:2", "verbose=true <- system.toml:4"}));
  EXPECT_EQ(*settings({"-n", "5", "--config", named, "x"}, {{"IVY_LABEL", "none"}}),
            (Lines{"label=none <- IVY_LABEL", "timeout=1h <- named.toml:1",
                   "verbose=true <- system.toml:4"}));
  EXPECT_EQ(*settings({"--config", "none", "x"}), Lines{});
  EXPECT_EQ(*settings({"--verbose=false", "-n2", "-l", "--timeout", "3", "x"}), Lines{});
}

TEST_F(ConfigFiles, StopAtTheFirstSourceOfHosts) {
  write("system.toml", "hostfile = \"/etc/hosts.ivy\"\n");
  write("user.toml", "hosts = [\"a:2\", \"b\"]\n");
  EXPECT_EQ(*settings({"x"}), (Lines{"hosts=a:2 <- user.toml:1", "hosts=b <- user.toml:1"}));
  EXPECT_EQ(*settings({"--fake-hosts", "2", "x"}), Lines{});
}

TEST_F(ConfigFiles, NameTheLineOfAMistake) {
  struct Mistake {
    std::string text, message, fix;
  };
  const Mistake mistakes[] = {
      {"nproc-per-nod = 8\n", ":1: unknown key \"nproc-per-nod\"", "did you mean nproc-per-node?"},
      {"\n\nfrobnicate = 1\n", ":3: unknown key \"frobnicate\"", ""},
      {"help = true\n", ":1: help is not allowed in a config file", ""},
      {"quiet = 1\n", ":1: quiet is a switch: write true or false", "ivyrun --help quiet"},
      {"num-proc = true\n", ":1: num-proc is not a switch: it takes N", ""},
      {"num-proc = [1, 2]\n", ":1: num-proc is not a list: it takes one value", ""},
      {"num-proc = \"\"\n", ":1: num-proc is empty", ""},
      {"[output]\nlabel = \"host\"\n", ":1:2: unexpected table \"output\"", ""},
      {"timeout = 1979-05-27\n", ":1:11: timeout has a value of a type that no flag takes", ""},
      {"num-proc 4\n", ":1:10: ", ""},
  };
  for (const Mistake& mistake : mistakes) {
    write("user.toml", mistake.text);
    const Error found = error();
    EXPECT_NE(found.message.find("user.toml" + mistake.message), std::string::npos)
        << found.message;
    EXPECT_TRUE(mistake.fix.empty() || found.fix == mistake.fix) << found.fix;
  }
  EXPECT_NE(error({"--config", folder_ + "/none.toml", "x"}).message.find("does not exist"),
            std::string::npos);
  EXPECT_NE(error({"--config", folder_, "x"}).message.find("is not a regular file"),
            std::string::npos);
}

TEST_F(ConfigFiles, NameTransports) {
  write("system.toml", "[transports]\ntrainer = \"old {host}\"\nlxc = \"lxc exec {host} --\"\n");
  write("user.toml", "quiet = true\n\n[transports]\ntrainer = \"kubectl exec -i {host} --\"\n");
  Scanned scanned = *scan_command_line({"x"});
  ASSERT_TRUE(add_config_files(places_, scanned).ok());
  Lines lines;
  for (const NamedCommand& transport : scanned.transports)
    lines.push_back(transport.name + "=" + transport.text + " <- " +
                    transport.origin.substr(folder_.size() + 1));
  EXPECT_EQ(lines, (Lines{"trainer=kubectl exec -i {host} -- <- user.toml:4",
                          "trainer=old {host} <- system.toml:2",
                          "lxc=lxc exec {host} -- <- system.toml:3"}));
}

TEST_F(ConfigFiles, RejectWrongTransports) {
  struct Mistake {
    std::string text, message, fix;
  };
  const Mistake mistakes[] = {
      {"x = \"docker exec -i\"", ":2: x: \"docker exec -i\" does not contain {host}",
       "write {host}"},
      {"x = \"'{host}\"", ":2: x: a quote is not closed", ""},
      {"quiet = true", ":2: quiet is not the command of a transport", "flags come before"},
      {"ssh = \"rsh {host}\"", ":2: ssh is a transport of ivyrun", "choose another name"},
      {"\"a b\" = \"a {host}\"", ":2: \"a b\" is not a name", ""},
      {"\"\" = \"a {host}\"", ":2: \"\" is not a name", ""},
      {"[transports.x]", ":2:", ""},
  };
  for (const Mistake& mistake : mistakes) {
    write("user.toml", "[transports]\n" + mistake.text + "\n");
    const Error found = error();
    EXPECT_NE(found.message.find("user.toml" + mistake.message), std::string::npos)
        << found.message;
    EXPECT_TRUE(found.fix.starts_with(mistake.fix)) << found.fix;
  }
}

// --transport and --exec belong together.
TEST_F(ConfigFiles, DoNotMixTransportsOfTwoSources) {
  write("user.toml", "exec = \"docker exec -i {host}\"\n");
  EXPECT_EQ(*settings({"x"}), Lines{"exec=docker exec -i {host} <- user.toml:1"});
  EXPECT_EQ(*settings({"--transport", "ssh", "x"}), Lines{});
  write("user.toml", "transport = \"ssh\"\n");
  EXPECT_EQ(*settings({"--exec", "a {host}", "x"}), Lines{});
}

TEST(ConfigPaths, FollowXdg) {
  EXPECT_EQ(config_paths({{"HOME", "/h"}}).user, "/h/.config/ivyrun/config.toml");
  EXPECT_EQ(config_paths({{"HOME", "/h"}, {"XDG_CONFIG_HOME", "/c"}}).user,
            "/c/ivyrun/config.toml");
  EXPECT_EQ(config_paths({}).user, "");
}

Result<Options> under(const std::string& policy, const std::vector<std::string>& words) {
  const Scanned scanned = IVY_TRY(scan_command_line(words));
  Options options = IVY_TRY(parse_command_line(words, {})).options;
  IVY_CHECK(apply_policy(IVY_TRY(parse_policy(policy, "p.toml")), scanned, options));
  return options;
}

std::string rejection(const std::string& policy, const std::vector<std::string>& words) {
  const Result<Options> options = under(policy, words);
  return options.ok() ? "allowed" : options.error().message + " / " + options.error().fix;
}

TEST(Policy, ForbidsTheNamedFlags) {
  EXPECT_EQ(rejection("forbid = [\"ssh-command\"]\n", {"--ssh-command", "ssh", "x"}),
            "the policy of this host (p.toml:1) forbids --ssh-command / leave it out, or ask the "
            "administrator of this host");
  EXPECT_EQ(rejection("forbid = [\"detach\"]\n", {"x"}), "allowed");
  EXPECT_EQ(rejection("transports = [\"agent\"]\n", {"--transport", "ssh", "x"}),
            "the policy of this host (p.toml) forbids --transport ssh / it allows agent");
  EXPECT_EQ(rejection("transports = [\"ssh\"]\n", {"--transport", "docker", "x"}),
            "the policy of this host (p.toml) forbids --transport exec / it allows ssh");
  EXPECT_EQ(rejection("transports = [\"exec\"]\n", {"--exec", "a {host}", "x"}), "allowed");
  EXPECT_EQ(rejection("transports = []\n", {"--nnodes", "2", "--node-rank", "0", "x"}),
            "the policy of this host (p.toml) forbids --node-rank / it allows no other hosts");
  EXPECT_EQ(rejection("interfaces = [\"ib0\", \"ib1\"]\n", {"--iface", "eth0", "x"}),
            "the policy of this host (p.toml) forbids --iface eth0 / it allows ib0, ib1");
  EXPECT_EQ(rejection("ports = \"7000-7100\"\n", {"--master-port", "29500", "x"}),
            "the policy of this host (p.toml) forbids port 29500 / it allows 7000-7100");
}

TEST(Policy, SetsTheDecidedValues) {
  const Options options = *under(
      "transports = [\"ssh\"]\ninterfaces = [\"ib0\", \"ib1\"]\nports = \"7000-7100\"\n", {"x"});
  EXPECT_EQ(options.interface, "ib0");
  EXPECT_EQ(options.port_low, 7000);
  EXPECT_EQ(options.port_high, 7100);
  EXPECT_FALSE(options.no_ssh);
  EXPECT_TRUE(options.no_agents);
  EXPECT_TRUE(options.no_slurm);
  EXPECT_EQ((*under("interfaces = [\"ib0\", \"ib1\"]\n", {"--iface", "ib1", "x"})).interface,
            "ib1");
}

TEST(Policy, NamesTheLineOfAMistake) {
  EXPECT_EQ(parse_policy("transport = []\n", "p").error().message,
            "p:1: unknown key \"transport\"");
  EXPECT_EQ(parse_policy("transport = []\n", "p").error().fix, "did you mean transports?");
  EXPECT_EQ(parse_policy("transports = [\"rsh\"]\n", "p").error().message,
            "p:1: \"rsh\" is not a transport");
  EXPECT_EQ(parse_policy("transports = [\"local\"]\n", "p").error().fix,
            "the transports are agent, ssh, slurm, exec, join");
  EXPECT_TRUE(parse_policy("transports = [\"slurm\", \"join\"]\n", "p").ok());
  EXPECT_EQ(parse_policy("forbid = [\"xx\"]\n", "p").error().message,
            "p:1: \"xx\" is not a flag of ivyrun");
  EXPECT_FALSE(parse_policy("ports = 0\n", "p").ok());
}

TEST_F(ConfigFiles, RejectAPolicyNotOwnedByRoot) {
  EXPECT_FALSE(read_policy(places_.policy)->has_value());
  write("policy.toml", "ports = \"7000-7100\"\n");
  if (geteuid() != 0) {
    EXPECT_EQ(read_policy(places_.policy).error().code, Code::kPermissionDenied);
    return;
  }
  EXPECT_TRUE(read_policy(places_.policy)->has_value());
  chmod(places_.policy.c_str(), 0666);
  EXPECT_EQ(read_policy(places_.policy).error().code, Code::kPermissionDenied);
}

}  // namespace
}  // namespace ivy
