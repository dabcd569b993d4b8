#include "launcher/links/choice/agents_program.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "launcher/links/choice/carrier.h"

namespace ivy {
namespace {

Host named(const std::string& name, std::uint16_t port = 0) {
  Host host;
  host.name = name;
  host.port = port;
  return host;
}

Host pretended() {
  Host host = named("fake0");
  host.fake = true;
  return host;
}

// An agent.toml, and the files that it names, in a directory that goes away with the test.
class AgentsProgramTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "agents-program-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = std::filesystem::absolute(name);
    std::filesystem::create_directories(directory_ / "ivyrun");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void configure(const std::string& text) {
    for (const char* const name : {"ca.crt", "user.crt", "user.key"}) {
      const std::filesystem::path path = directory_ / "ivyrun" / name;
      std::ofstream(path) << "nothing reads this\n";
      std::filesystem::permissions(path, std::filesystem::perms::owner_read);
    }
    std::ofstream(directory_ / "ivyrun/agent.toml") << text;
  }
  bool wanted(TransportChoice transport, const std::vector<Host>& hosts) const {
    Options options;
    options.transport = transport;
    options.hosts = hosts;
    return may_use_agents(options, {{"XDG_CONFIG_HOME", directory_.string()}});
  }

  std::filesystem::path directory_;
  const std::vector<Host> here_{named("localhost")};
  const std::vector<Host> mixed_{named("localhost"), named("192.0.2.7")};
};

constexpr char kGood[] = "ca = \"ca.crt\"\ncertificate = \"user.crt\"\nkey = \"user.key\"\n";

TEST_F(AgentsProgramTest, AutoNeedsAConfigurationAndAHostElsewhere) {
  EXPECT_FALSE(wanted(TransportChoice::kAuto, here_));
  EXPECT_FALSE(wanted(TransportChoice::kAuto, mixed_));
  configure(kGood);
  EXPECT_FALSE(wanted(TransportChoice::kAuto, here_));
  EXPECT_FALSE(wanted(TransportChoice::kAuto, {pretended(), pretended()}));
  EXPECT_TRUE(wanted(TransportChoice::kAuto, mixed_));
}

TEST_F(AgentsProgramTest, AnSshPortIsNotForAgents) {
  configure(kGood);
  EXPECT_FALSE(wanted(TransportChoice::kAuto, {named("192.0.2.7", 2222)}));
  EXPECT_TRUE(wanted(TransportChoice::kAuto, {named("192.0.2.7", 2222), named("192.0.2.8")}));
}

TEST_F(AgentsProgramTest, AWrongConfigurationIsNone) {
  configure("no such thing");
  EXPECT_FALSE(wanted(TransportChoice::kAuto, mixed_));
}

TEST_F(AgentsProgramTest, TheOtherTransportsDecideByThemselves) {
  EXPECT_TRUE(wanted(TransportChoice::kAgent, here_));
  EXPECT_TRUE(wanted(TransportChoice::kAgent, mixed_));
  configure(kGood);
  EXPECT_FALSE(wanted(TransportChoice::kSsh, mixed_));
  EXPECT_FALSE(wanted(TransportChoice::kLocal, mixed_));
}

}  // namespace
}  // namespace ivy
