// SPDX-License-Identifier: Apache-2.0
// The names of this machine, and the socket of its agent.
#include "launcher/links/this_host.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "launcher/links/agent_identity.h"

namespace ivy {
namespace {

TEST(ThisHost, FindsItsNamesInAHostsFile) {
  std::map<std::string, int> asked;
  const auto is_own = [&](const std::string& address) {
    ++asked[address];
    return address == "10.0.0.1" || address == "fe80::1%eth0";
  };
  const std::set<std::string> names = own_names(
      "127.0.0.1 localhost\n10.0.0.1\tNode1.cluster node1 # node9\n#10.0.0.1 node8\n\n"
      "10.0.0.2 node2 node1x\n10.0.0.1 alias\nfe80::1%eth0 link\n10.0.0.1",
      is_own);
  EXPECT_EQ(names, (std::set<std::string>{"alias", "link", "node1", "node1.cluster"}));
  EXPECT_EQ(asked["10.0.0.1"], 1);
}

TEST(AgentSocket, IsNotUsedInADirectoryOfOthers) {
  char made[] = "/tmp/ivy-agent-XXXXXX";
  ASSERT_NE(mkdtemp(made), nullptr);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(made);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{AF_UNIX, "agent"};
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  // The mode of the socket does not show who could have placed it there.
  chmod("agent", 0700);
  for (const std::string& path : {std::string("agent"), std::string(made) + "/agent"}) {
    const Environment environment{{"IVY_AGENT_SOCKET", path}};
    chmod(made, 0777);
    EXPECT_FALSE(find_agent_socket(environment).ok()) << path;
    chmod(made, 0700);
    EXPECT_TRUE(find_agent_socket(environment).ok()) << path;
  }
  std::filesystem::current_path(before);
  std::filesystem::remove_all(made);
  close(listener);
}

}  // namespace
}  // namespace ivy
