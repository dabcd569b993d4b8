// SPDX-License-Identifier: Apache-2.0
// The remote command and the install script in every login shell that is installed here.
#include "launcher/links/node_upload.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "launcher/links/remote_entry.h"
#include "tests/launcher/ssh_test_host.h"

namespace ivy {
namespace {

struct ShellSession {
  std::string bytes;  // Of the relay.
  std::string failure;
  bool sent_bundle = false;
  bool sent_rest = false;
  std::vector<std::string> moves;  // Progress of the upload.
};

// Acts as a transport: runs `shell -c command` with the given home, answers its requests, closes
// its input once the relay has answered, and returns its output.
ShellSession run_shell(const std::string& shell_name, const std::string& home, NodeUpload& upload,
                       const char* cache_home = nullptr, std::size_t breaks_after = SIZE_MAX) {
  int input[2], output[2];
  if (pipe2(input, O_CLOEXEC) != 0 || pipe2(output, O_CLOEXEC) != 0)
    return {"", "pipe", false, false, {}};
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(input[0], 0);
    dup2(output[1], 1);
    setenv("HOME", home.c_str(), 1);
    unsetenv("XDG_CACHE_HOME");
    if (cache_home != nullptr) setenv("XDG_CACHE_HOME", cache_home, 1);
    if (chdir(home.c_str()) != 0) _exit(126);
    execlp(shell_name.c_str(), shell_name.c_str(), "-c", upload.remote_command().c_str(), nullptr);
    _exit(127);
  }
  close(input[0]);
  close(output[1]);
  // The script may exit before it has read everything.
  std::signal(SIGPIPE, SIG_IGN);
  ShellSession result;
  RemoteEntry entry(OpenRequest{std::string(32, 'c'), 1, false}, "host");
  pollfd ready{output[0], POLLIN, 0};
  char buffer[4096];
  while (poll(&ready, 1, 20'000) == 1) {
    const ssize_t count = read(output[0], buffer, sizeof buffer);
    if (count <= 0) break;
    RemoteEntry::Actions actions =
        entry.feed(std::string_view(buffer, static_cast<std::size_t>(count)));
    if (!entry.needed_architecture().empty())
      actions = entry.provide(upload.bundle(entry.needed_architecture()));
    result.bytes += actions.bytes;
    const std::string progress = actions.progress ? actions.progress->text.line() : "";
    result.sent_bundle |= progress.starts_with("sending");
    result.sent_rest |= progress.starts_with("sending the rest of ivy-node");
    if (actions.failed) {
      result.failure = actions.failed->message.bytes();
      break;  // The remote side waits for more.
    }
    for (std::size_t sent = 0; sent < actions.send.size();) {
      if (sent >= breaks_after) {
        close(std::exchange(input[1], -1));
        break;
      }
      // In pieces, as on a slow connection.
      const std::size_t piece = std::min(actions.send.size() - sent, actions.send.size() / 4 + 1);
      const ssize_t n = write(input[1], actions.send.data() + sent, piece);
      if (n <= 0) break;
      sent += static_cast<std::size_t>(n);
      if (const auto moved = entry.sending(actions.send.size() - sent))
        result.moves.push_back(moved->whole_text().line());
    }
    if (!result.bytes.empty()) close(std::exchange(input[1], -1));
  }
  if (input[1] >= 0) close(input[1]);
  close(output[0]);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  return result;
}

class LoginShells : public testing::TestWithParam<const char*> {
 protected:
  SshTestHost host_;  // For its directories; its sshd is not started.
};

TEST_P(LoginShells, InstallOnceAndRunTheRelay) {
  const std::string shell_name = GetParam();
  if (!shell("command -v " + shell_name + " >/dev/null")) {
    GTEST_SKIP() << shell_name << " is not installed";
  }
  host_.make_bundle(kEchoNode);
  const Result<std::shared_ptr<NodeUpload>> upload = NodeUpload::load(host_.root() / "lib/ivyrun");
  ASSERT_TRUE(upload.ok());
  const std::string opened = "opened: IVYOPEN 1 new " + std::string(32, 'c') + " 1\n";
  const ShellSession first = run_shell(shell_name, host_.home(), **upload);
  EXPECT_EQ(first.failure, "");
  EXPECT_EQ(first.bytes, opened);
  EXPECT_TRUE(first.sent_bundle);
  ASSERT_GE(first.moves.size(), 3u);
  EXPECT_TRUE(first.moves.back().starts_with("sending ivy-node (100 % of ")) << first.moves.back();
  EXPECT_FALSE(first.moves.front().starts_with("sending ivy-node (100 %"));
  const ShellSession second = run_shell(shell_name, host_.home(), **upload);
  EXPECT_EQ(second.failure, "");
  EXPECT_EQ(second.bytes, opened);
  EXPECT_FALSE(second.sent_bundle);
}

INSTANTIATE_TEST_SUITE_P(All, LoginShells,
                         testing::Values("sh", "bash", "dash", "zsh", "csh", "tcsh", "fish",
                                         "ksh"));

class NodeUploadTest : public testing::Test {
 protected:
  // If a home cannot be used, the shared directories are tried; those left empty are removed here.
  void TearDown() override {
    shell("rmdir /tmp/ivyrun-cache-$(id -u) /dev/shm/ivyrun-cache-$(id -u) 2>/dev/null");
  }
  // Removes the bundle that was installed there because the home could not be used.
  static void forget_shared_cache(const NodeUpload& upload) {
    const std::string& command = upload.remote_command();
    const std::string bundle = command.substr(command.find("h=") + 2, 24) + "-*";
    shell("rm -rf /tmp/ivyrun-cache-$(id -u)/" + bundle + " /dev/shm/ivyrun-cache-$(id -u)/" +
          bundle);
  }
  SshTestHost host_;
};

TEST_F(NodeUploadTest, KeepsTheCommandOnOneLineWithoutShellExpansions) {
  host_.make_bundle(kEchoNode);
  const Result<std::shared_ptr<NodeUpload>> upload = NodeUpload::load(host_.root() / "lib/ivyrun");
  ASSERT_TRUE(upload.ok());
  const std::string& command = (*upload)->remote_command();
  EXPECT_EQ(command.find_first_of("!\n"), std::string::npos);
  EXPECT_EQ(std::count(command.begin(), command.end(), '\''), 2);
  EXPECT_EQ(command.find("\\\\"), std::string::npos);
  // C shells once limited a word to 1,024 bytes.
  EXPECT_LT(command.size(), 1024u);
}

TEST_F(NodeUploadTest, NamesAnArchitectureWithoutABundle) {
  host_.make_bundle(kEchoNode);
  const Result<std::shared_ptr<NodeUpload>> upload = NodeUpload::load(host_.root() / "lib/ivyrun");
  ASSERT_TRUE(upload.ok());
  const Result<NodeBundle> bundle = (*upload)->bundle("riscv64");
  ASSERT_FALSE(bundle.ok());
  EXPECT_NE(bundle.error().message.find("the host is riscv64"), std::string::npos);
  EXPECT_NE(bundle.error().fix.find("bundle-riscv64.run"), std::string::npos);
}

TEST_F(NodeUploadTest, DoesNotSendABundleOfAnotherBuild) {
  host_.make_bundle(kEchoNode, "riscv64");
  ASSERT_TRUE(shell("cd " + host_.root().string() +
                    "/lib/ivyrun && echo \"$(cat bundle-riscv64.run.sha256) cafe\" > x && "
                    "mv x bundle-riscv64.run.sha256"));
  const Result<std::shared_ptr<NodeUpload>> upload = NodeUpload::load(host_.root() / "lib/ivyrun");
  ASSERT_TRUE(upload.ok());
  const Result<NodeBundle> bundle = (*upload)->bundle("riscv64");
  ASSERT_FALSE(bundle.ok());
  EXPECT_NE(bundle.error().message.find("bundle-riscv64.run is of build cafe"), std::string::npos)
      << bundle.error().message;
}

// A script named `uname`, first in PATH, sets the architecture of a host.
TEST_F(NodeUploadTest, SendsEachHostTheBundleOfItsArchitecture) {
  for (const char* architecture : {"x86_64", "aarch64"})
    host_.make_bundle("#!/bin/sh\necho " + std::string(architecture) + "\n", architecture);
  const Result<std::shared_ptr<NodeUpload>> upload = NodeUpload::load(host_.root() / "lib/ivyrun");
  ASSERT_TRUE(upload.ok());
  const std::string path = std::getenv("PATH");
  const std::filesystem::path place = host_.root() / "uname";
  std::filesystem::create_directory(place);
  for (const std::string architecture : {"aarch64", "x86_64"}) {
    std::ofstream(place / "uname") << "#!/bin/sh\necho " << architecture << "\n";
    std::filesystem::permissions(place / "uname", std::filesystem::perms{0755});
    setenv("PATH", (place.string() + ":" + path).c_str(), 1);
    for (const bool is_sent : {true, false}) {
      const ShellSession result = run_shell("sh", host_.home(), **upload);
      EXPECT_EQ(result.bytes, architecture + "\n") << result.failure;
      EXPECT_EQ(result.sent_bundle, is_sent);
    }
    setenv("PATH", path.c_str(), 1);
  }
  EXPECT_EQ(host_.bundles_in_home(), 2);
}

TEST_F(NodeUploadTest, IgnoresARelativePathOfTheCache) {
  host_.make_bundle(kEchoNode);
  const Result<std::shared_ptr<NodeUpload>> upload = NodeUpload::load(host_.root() / "lib/ivyrun");
  ASSERT_TRUE(upload.ok());
  for (const char* cache : {"relative", "", "~/cache"}) {
    EXPECT_EQ(run_shell("sh", host_.home(), **upload, cache).failure, "") << cache;
    EXPECT_EQ(host_.bundles_in_home(), 1) << cache;
    EXPECT_FALSE(std::filesystem::exists(host_.home() / "relative"));
  }
  const std::string elsewhere = host_.root() / "cache";
  EXPECT_EQ(run_shell("sh", host_.home(), **upload, elsewhere.c_str()).failure, "");
  EXPECT_TRUE(std::filesystem::is_directory(elsewhere + "/ivyrun"));
}

TEST_F(NodeUploadTest, KeepsABundleThatAnInstallationTruncates) {
  host_.make_bundle(kEchoNode);
  const Result<std::shared_ptr<NodeUpload>> upload = NodeUpload::load(host_.root() / "lib/ivyrun");
  ASSERT_TRUE(upload.ok());
  utsname machine{};
  uname(&machine);
  const Result<NodeBundle> bundle = (*upload)->bundle(machine.machine);
  ASSERT_TRUE(bundle.ok()) << bundle.error().message;
  const std::string before(*bundle->content);
  shell("truncate -s 0 " + host_.root().string() + "/lib/ivyrun/bundle-*.run");
  EXPECT_EQ(*bundle->content, before);
  EXPECT_FALSE(before.empty());
}

TEST_F(NodeUploadTest, FailsWithoutAnyBundle) {
  EXPECT_EQ(NodeUpload::load(host_.root() / "nothing").error().code, Code::kNotFound);
}

TEST_F(NodeUploadTest, DoesNotRunACorruptedBundle) {
  host_.make_bundle(kEchoNode);
  shell("cd " + host_.root().string() +
        "/lib/ivyrun && for f in *.sha256; do sed 's/^7/8/;t;s/^./7/' $f > x && mv x $f; done");
  const Result<std::shared_ptr<NodeUpload>> upload = NodeUpload::load(host_.root() / "lib/ivyrun");
  ASSERT_TRUE(upload.ok());
  const ShellSession result = run_shell("sh", host_.home(), **upload);
  EXPECT_NE(result.failure.find("the received bundle differs from the sent one"), std::string::npos)
      << result.failure;
  EXPECT_EQ(host_.bundles_in_home(), 0);
}

// As when the network breaks during the upload, and the user starts the job again.
TEST_F(NodeUploadTest, ResumesAnInterruptedUpload) {
  // Compresses to about 100 KB, which is more than one pipe holds.
  ASSERT_TRUE(
      shell("head -c 300000 /dev/urandom | base64 -w 0 > " + host_.root().string() + "/noise"));
  std::ifstream noise(host_.root() / "noise");
  host_.make_bundle(std::string(kEchoNode) + "#" +
                    std::string{std::istreambuf_iterator<char>(noise), {}} + "\n");
  const Result<std::shared_ptr<NodeUpload>> upload = NodeUpload::load(host_.root() / "lib/ivyrun");
  ASSERT_TRUE(upload.ok());
  const ShellSession broken = run_shell("sh", host_.home(), **upload, nullptr, 200'000);
  EXPECT_TRUE(broken.bytes.empty()) << broken.bytes;
  EXPECT_EQ(host_.bundles_in_home(), 1) << "only the part";
  const ShellSession again = run_shell("sh", host_.home(), **upload);
  EXPECT_TRUE(again.bytes.starts_with("opened:")) << again.bytes << again.failure;
  EXPECT_TRUE(again.sent_rest);
  EXPECT_EQ(host_.bundles_in_home(), 1) << "only the bundle";
}

TEST_F(NodeUploadTest, RetriesOnceAfterADamagedPart) {
  host_.make_bundle(kEchoNode);
  const Result<std::shared_ptr<NodeUpload>> upload = NodeUpload::load(host_.root() / "lib/ivyrun");
  ASSERT_TRUE(upload.ok());
  ASSERT_TRUE(shell("d=" + host_.home().string() +
                    "/.cache/ivyrun && mkdir -p $d && printf wrong > $d/.part.$(cut -d' ' -f1 " +
                    host_.root().string() + "/lib/ivyrun/*.sha256)-$(uname -n)"));
  const ShellSession result = run_shell("sh", host_.home(), **upload);
  EXPECT_TRUE(result.bytes.starts_with("opened:")) << result.bytes << result.failure;
  forget_shared_cache(**upload);
}

TEST_F(NodeUploadTest, DoesNotSendAHalfCopiedBundle) {
  host_.make_bundle(kEchoNode);
  shell("truncate -s 5000 " + host_.root().string() + "/lib/ivyrun/bundle-*.run");
  const Result<std::shared_ptr<NodeUpload>> upload = NodeUpload::load(host_.root() / "lib/ivyrun");
  ASSERT_TRUE(upload.ok());
  const ShellSession result = run_shell("sh", host_.home(), **upload);
  EXPECT_NE(result.failure.find(" is incomplete: 5000 of "), std::string::npos) << result.failure;
}

TEST_F(NodeUploadTest, ReplacesADamagedBundle) {
  host_.make_bundle(kEchoNode);
  const Result<std::shared_ptr<NodeUpload>> upload = NodeUpload::load(host_.root() / "lib/ivyrun");
  ASSERT_TRUE(upload.ok());
  run_shell("sh", host_.home(), **upload);
  ASSERT_TRUE(shell("rm " + host_.home().string() + "/.cache/ivyrun/*/ivy-node"));
  const ShellSession again = run_shell("sh", host_.home(), **upload);
  EXPECT_EQ(again.failure, "");
  EXPECT_TRUE(again.bytes.starts_with("opened:")) << again.bytes;
}

TEST_F(NodeUploadTest, DoesNotTrustADirectoryThatIsALink) {
  host_.make_bundle(kEchoNode);
  const Result<std::shared_ptr<NodeUpload>> upload = NodeUpload::load(host_.root() / "lib/ivyrun");
  ASSERT_TRUE(upload.ok());
  std::filesystem::create_directories(host_.home() / ".cache");
  std::filesystem::create_directories(host_.home() / "elsewhere");
  std::filesystem::create_directory_symlink(host_.home() / "elsewhere",
                                            host_.home() / ".cache/ivyrun");
  run_shell("sh", host_.home(), **upload);
  EXPECT_TRUE(std::filesystem::is_empty(host_.home() / "elsewhere"));
  forget_shared_cache(**upload);
}

// Another user planted a link before this build was used here for the first time. The command must
// not run the program behind it, and the script that it requests must remove the link.
TEST_F(NodeUploadTest, DoesNotRunAProgramThroughALink) {
  host_.make_bundle(kEchoNode);
  const Result<std::shared_ptr<NodeUpload>> upload = NodeUpload::load(host_.root() / "lib/ivyrun");
  ASSERT_TRUE(upload.ok());
  run_shell("sh", host_.home(), **upload);
  const std::string cache = (host_.home() / ".cache/ivyrun").string();
  const std::string evil = (host_.home() / "evil").string();
  ASSERT_TRUE(shell("cp -r " + cache + " " + evil + " && for d in " + evil +
                    "/*-*; do printf '#!/bin/sh\\nprintf evil\\n' > $d/ivy-node; done"));
  // The program, its directory, the cache itself.
  for (const std::string plant :
       {"for d in $c/*-*; do ln -sf $e/${d##*/}/ivy-node $d/ivy-node; done",
        "for d in $c/*-*; do rm -r $d; ln -s $e/${d##*/} $d; done", "rm -r $c && ln -s $e $c"}) {
    ASSERT_TRUE(shell("c=" + cache + "; e=" + evil + "; " + plant));
    const ShellSession result = run_shell("sh", host_.home(), **upload);
    EXPECT_EQ(result.failure, "") << plant;
    EXPECT_TRUE(result.bytes.starts_with("opened:")) << plant << ": " << result.bytes;
  }
  forget_shared_cache(**upload);
}

TEST_F(NodeUploadTest, MakesACachePrivateBeforeItUsesIt) {
  host_.make_bundle(kEchoNode);
  const Result<std::shared_ptr<NodeUpload>> upload = NodeUpload::load(host_.root() / "lib/ivyrun");
  ASSERT_TRUE(upload.ok());
  run_shell("sh", host_.home(), **upload);
  const std::filesystem::path cache = host_.home() / ".cache/ivyrun";
  std::filesystem::permissions(cache, std::filesystem::perms{0770});
  const ShellSession again = run_shell("sh", host_.home(), **upload);
  EXPECT_TRUE(again.bytes.starts_with("opened:")) << again.bytes;
  EXPECT_FALSE(again.sent_bundle);
  EXPECT_EQ(std::filesystem::status(cache).permissions(), std::filesystem::perms{0700});
}

}  // namespace
}  // namespace ivy
