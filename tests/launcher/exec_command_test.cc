// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/exec_command.h"

#include <gtest/gtest.h>

#include "launcher/options/options.h"

namespace ivy {
namespace {

using Words = std::vector<std::string>;

Options parsed(Words words) {
  words.push_back("x");
  const Result<ParsedCommandLine> line = parse_command_line(words, {});
  EXPECT_TRUE(line.ok()) << line.error().message;
  return line.ok() ? line->options : Options{};
}

std::string refusal(Words words) {
  words.push_back("x");
  const Result<ParsedCommandLine> line = parse_command_line(words, {});
  if (!line.ok()) return line.error().message + " / " + line.error().fix;
  const Result<void> hosts =
      check_exec_hosts(line->options.exec_command, line->options.ssh_port, line->options.hosts);
  return hosts.ok() ? "accepted" : hosts.error().message + " / " + hosts.error().fix;
}

Words words_for_first(const Options& options) {
  return words_for_host(options.exec_command, options.ssh_port, options.hosts.front());
}

TEST(ExecCommand, IsSplitLikeAShellDoesAndFilledInPerHost) {
  const Options options = parsed(
      {"--exec", "ssh -p{port} \"-o User={user}\" 'a b' {host}.{host}", "-H", "al@n1:port=2"});
  EXPECT_EQ(options.transport, TransportChoice::kExec);
  EXPECT_EQ(words_for_first(options),
            (Words{"ssh", "-p2", "-o User=al", "a b", "n1.n1", "/bin/sh"}));
}

TEST(ExecCommand, TakesTheDefaultPort) {
  const Options options = parsed({"--exec", "rsh {host} {port}", "--ssh-port", "22", "-H", "a"});
  EXPECT_EQ(words_for_first(options), (Words{"rsh", "a", "22", "/bin/sh"}));
}

TEST(ExecCommand, LeavesOtherBracesAlone) {
  const Options options = parsed({"--exec", "a {} {hosts} {{host}} {", "-H", "n1"});
  EXPECT_EQ(words_for_first(options), (Words{"a", "{}", "{hosts}", "{n1}", "{", "/bin/sh"}));
}

TEST(ExecCommand, HasNamesForKubectlDockerAndPodman) {
  for (const char* const name : {"kubectl", "docker", "podman"}) {
    const Options options = parsed({"--transport", name, "-H", "c1"});
    EXPECT_EQ(options.transport, TransportChoice::kExec);
    Words words = {name, "exec", "-i", "c1"};
    if (words.front() == "kubectl") words.push_back("--");
    words.push_back("/bin/sh");
    EXPECT_EQ(words_for_first(options), words);
  }
}

TEST(ExecCommand, RejectsWhatCannotWork) {
  EXPECT_EQ(
      refusal({"--exec", "docker exec -i c1", "-H", "c1"}),
      "--exec: \"docker exec -i c1\" does not contain {host} / write {host} where the command "
      "expects the host's name, such as 'kubectl exec -i {host} --'");
  EXPECT_EQ(refusal({"--exec", "a '{host}", "-H", "c1"}), "--exec: a quote is not closed / ");
  EXPECT_EQ(
      refusal({"--transport", "exec", "-H", "a"}),
      "--transport exec needs --exec COMMAND / --exec 'kubectl exec -i {host} -c trainer --', "
      "for example");
  EXPECT_EQ(refusal({"--exec", "a {host}", "--transport", "ssh", "-H", "a"}),
            "--exec and --transport ssh cannot be used together / use only one of them");
  EXPECT_EQ(refusal({"--exec", "a {host}", "--transport", "docker", "-H", "a"}),
            "--exec and --transport docker cannot be used together / use only one of them");
  EXPECT_TRUE(
      refusal({"--transport", "dokcer", "-H", "a"})
          .starts_with("--transport: \"dokcer\" is not one of auto, local, agent, ssh, slurm, "
                       "exec, docker, kubectl, podman / "));
  EXPECT_EQ(refusal({"--exec", "a {host}", "--transport", "exec", "-H", "a"}), "accepted");
}

TEST(ExecCommand, RejectsHostsThatDoNotFit) {
  EXPECT_EQ(refusal({"--transport", "docker"}),
            "no hosts are given for the command docker exec -i {host} / name them: -H NAME,NAME or "
            "--hostfile FILE; for this machine use --transport local");
  EXPECT_EQ(refusal({"--transport", "docker", "-H", "root@c1"}),
            "-H: root@c1: the command docker exec -i {host} has no {user} / write {user} in the "
            "command, or only the host's name");
  EXPECT_EQ(refusal({"--transport", "docker", "-H", "c1:port=22"}),
            "-H: port 22 of c1: the command docker exec -i {host} has no {port} / write {port} in "
            "the command, or leave the port out");
  EXPECT_EQ(refusal({"--exec", "a {user} {host}", "-H", "b@c,c1"}),
            "-H: c1 has no user for {user} in the command a {user} {host} / write USER@c1");
  EXPECT_EQ(refusal({"--exec", "a {port} {host}", "-H", "c1"}),
            "-H: c1 has no port for {port} in the command a {port} {host} / write c1:port=N, or "
            "--ssh-port N");
  EXPECT_EQ(refusal({"--transport", "docker", "--fake-hosts", "2"}), "accepted");
}

}  // namespace
}  // namespace ivy
