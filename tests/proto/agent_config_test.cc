// SPDX-License-Identifier: Apache-2.0
#include "proto/trust/agent_config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/test_certificates.h"

namespace ivy {
namespace {

using test::TestDirectory;

constexpr const char* kPath = "/home/alice/.config/ivyrun/agent.toml";

TEST(AgentConfigTest, ResolvesRelativePathsAgainstTheFile) {
  const Result<AgentConfig> config = parse_agent_config(
      "# A comment.\nport = 7500\nca = \"ca.crt\"\nrevoked = 'lists/../ca.crl'\n"
      "certificate = \"/etc/user.crt\"\nkey = \"./user.key\"\n",
      kPath);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->port, 7500);
  EXPECT_EQ(config->ca, "/home/alice/.config/ivyrun/ca.crt");
  EXPECT_EQ(config->revoked, "/home/alice/.config/ivyrun/ca.crl");
  EXPECT_EQ(config->certificate, "/etc/user.crt");
  EXPECT_EQ(config->key, "/home/alice/.config/ivyrun/user.key");
}

TEST(AgentConfigTest, AllowsOmittingPortAndList) {
  const Result<AgentConfig> config =
      parse_agent_config("ca = \"a\"\ncertificate = \"b\"\nkey = \"c\"", kPath);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->port, kDefaultAgentPort);
  EXPECT_EQ(config->revoked, "");
}

TEST(AgentConfigTest, NamesTheLineOfAMistake) {
  const std::string files = "ca = \"a\"\ncertificate = \"b\"\nkey = \"c\"\n";
  const struct {
    std::string text;
    std::string message;
    std::string fix;
  } cases[] = {
      {files + "certifcate = \"x\"\n", ":4:1: unknown key \"certifcate\"",
       "did you mean certificate?"},
      {"prot = 7411\n" + files, ":1:1: unknown key \"prot\"", "did you mean port?"},
      {files + "  colour = 1\n", ":4:3: unknown key \"colour\"", "known keys: port, ca"},
      {files + "[agent]\nport = 1\n", ":4:2: unknown key \"agent\"", "known keys:"},
      {"port = \"7411\"\n" + files, ":1:8: port is not a number from 1 to 65535", "port = 7411"},
      {"port = 0\n" + files, ":1:8: port is not a number", ""},
      {"port = 65536\n" + files, ":1:8: port is not a number", ""},
      {"port = 74.11\n" + files, ":1:8: port is not a number", ""},
      {"ca = 7\n", ":1:6: ca is not the path of a file", "in quotes"},
      {"ca = \"\"\n", ":1:6: ca is not the path of a file", ""},
      {"ca = \"~/ca.crt\"\n", ":1:6: ca: \"~\" is not expanded", "the whole path"},
      {"ca = [\"a\", \"b\"]\n", ":1:6: ca is not the path of a file", ""},
      {"ca = \"a\"\nca = \"b\"\n", ":2:", ""},
      {"ca = a\n", ":1:", ""},
      {"ca = \"a\n", ":1:", ""},
      {"\xff\xfe\n", ":1:", ""},
      {"certificate = \"b\"\nkey = \"c\"\n", ": \"ca\" is missing", "add a line ca ="},
      {"ca = \"b\"\nkey = \"c\"\n", ": \"certificate\" is missing", ""},
      {"ca = \"b\"\ncertificate = \"c\"\n", ": \"key\" is missing", ""},
      {"", ": \"ca\" is missing", "ivy-agent cert --user NAME"},
  };
  for (const auto& [text, message, fix] : cases) {
    const Result<AgentConfig> config = parse_agent_config(text, kPath);
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_EQ(static_cast<int>(config.error().code), static_cast<int>(Code::kInvalidArgument));
    EXPECT_TRUE(config.error().message.starts_with(kPath + message)) << config.error().message;
    EXPECT_NE(config.error().fix.find(fix), std::string::npos) << config.error().fix;
  }
}

TEST(AgentConfigTest, FindsTheConfigFile) {
  const struct {
    Environment environment;
    std::string path;
  } cases[] = {
      {{{"IVY_AGENT_CONFIG", "/x/y.toml"}, {"XDG_CONFIG_HOME", "/c"}, {"HOME", "/h"}}, "/x/y.toml"},
      {{{"XDG_CONFIG_HOME", "/c"}, {"HOME", "/h"}}, "/c/ivyrun/agent.toml"},
      {{{"XDG_CONFIG_HOME", "relative"}, {"HOME", "/h"}}, "/h/.config/ivyrun/agent.toml"},
      {{{"XDG_CONFIG_HOME", ""}, {"HOME", "/h"}}, "/h/.config/ivyrun/agent.toml"},
      {{{"IVY_AGENT_CONFIG", ""}, {"HOME", "/h"}}, "/h/.config/ivyrun/agent.toml"},
      {{{"HOME", ""}}, ""},
      {{}, ""},
  };
  for (const auto& [environment, path] : cases) EXPECT_EQ(agent_config_path(environment), path);
}

TEST(AgentConfigTest, ReadsThePortOfTheAgent) {
  using Paths = std::vector<std::string>;
  EXPECT_EQ(agent_socket_paths({{"IVY_AGENT_SOCKET", "/s"}, {"XDG_RUNTIME_DIR", "/r"}}, "alice", 7),
            Paths{"/s"});
  EXPECT_EQ(
      agent_socket_paths({{"XDG_RUNTIME_DIR", "/r"}}, "alice", 7),
      (Paths{"/run/ivyrun-alice/agent.sock", "/r/ivyrun/agent.sock", "/tmp/ivyrun-7/agent.sock"}));
  EXPECT_EQ(agent_socket_paths({{"XDG_RUNTIME_DIR", "r"}}, "", 7),
            Paths{"/tmp/ivyrun-7/agent.sock"});
}

class AgentConfigFileTest : public testing::Test {
 protected:
  Environment at(const std::string& path) const { return {{"IVY_AGENT_CONFIG", path}}; }

  std::string write_all() const {
    directory_.write("ca.crt", "x");
    directory_.write("user.crt", "x");
    directory_.write("user.key", "x");
    return directory_.write("agent.toml",
                            "ca = \"ca.crt\"\ncertificate = \"user.crt\"\nkey = \"user.key\"\n");
  }

  const TestDirectory directory_;
};

TEST_F(AgentConfigFileTest, LoadsAbsolutePaths) {
  const Result<std::optional<AgentConfig>> config = load_agent_config(at(write_all()));
  ASSERT_TRUE(config.ok()) << config.error().message;
  ASSERT_TRUE(config->has_value());
  EXPECT_EQ((*config)->key, directory_ / "user.key");
}

TEST_F(AgentConfigFileTest, ReturnsNoAgentsWithoutAFileUnlessItWasNamed) {
  const Result<std::optional<AgentConfig>> none = load_agent_config({{"HOME", directory_.path()}});
  ASSERT_TRUE(none.ok()) << none.error().message;
  EXPECT_FALSE(none->has_value());
  EXPECT_TRUE(load_agent_config({}).ok());
  const Result<std::optional<AgentConfig>> named = load_agent_config(at(directory_ / "x.toml"));
  ASSERT_FALSE(named.ok());
  EXPECT_EQ(static_cast<int>(named.error().code), static_cast<int>(Code::kNotFound));
  EXPECT_NE(named.error().message.find(directory_ / "x.toml"), std::string::npos);
}

TEST_F(AgentConfigFileTest, NamesAMissingFile) {
  for (const char* file : {"ca.crt", "user.crt", "user.key"}) {
    const std::string path = write_all();
    ASSERT_EQ(unlink((directory_ / file).c_str()), 0);
    const Result<std::optional<AgentConfig>> config = load_agent_config(at(path));
    ASSERT_FALSE(config.ok()) << file;
    EXPECT_NE(config.error().message.find((directory_ / file) + ": No such file"),
              std::string::npos)
        << config.error().message;
  }
}

TEST_F(AgentConfigFileTest, RejectsAKeyThatOthersCanRead) {
  const std::string path = write_all();
  const struct {
    mode_t mode;
    bool fits;
  } cases[] = {{0600, true}, {0400, true}, {0640, false}, {0604, false}, {0644, false}};
  for (const auto& [mode, fits] : cases) {
    ASSERT_EQ(chmod((directory_ / "user.key").c_str(), mode), 0);
    const Result<std::optional<AgentConfig>> config = load_agent_config(at(path));
    ASSERT_EQ(config.ok(), fits) << std::oct << mode;
    if (fits) continue;
    EXPECT_EQ(static_cast<int>(config.error().code), static_cast<int>(Code::kPermissionDenied));
    EXPECT_NE(config.error().fix.find("chmod 600 " + (directory_ / "user.key")), std::string::npos);
  }
}

TEST_F(AgentConfigFileTest, ReadsOnlySmallRegularFiles) {
  const std::string huge = directory_.write("huge.toml", std::string(64 * 1024 + 1, '#'));
  EXPECT_FALSE(load_agent_config(at(huge)).ok());
  EXPECT_FALSE(load_agent_config(at(directory_.path())).ok());
  ASSERT_EQ(mkfifo((directory_ / "fifo").c_str(), 0600), 0);
  const Result<std::optional<AgentConfig>> fifo = load_agent_config(at(directory_ / "fifo"));
  ASSERT_FALSE(fifo.ok());
  EXPECT_NE(fifo.error().message.find("is not a file"), std::string::npos);
}

}  // namespace
}  // namespace ivy
