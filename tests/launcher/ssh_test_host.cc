// SPDX-License-Identifier: Apache-2.0
#include "tests/launcher/ssh_test_host.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace ivy {

const char* const kEchoNode =
    "#!/bin/sh\n"
    "case $1 in\n"
    "--version) echo 'ivy-node of a test' ;;\n"
    "relay) read -r line; printf 'opened: %s\\n' \"$line\"; exec cat ;;\n"
    "esac\n";

bool shell(const std::string& command) { return std::system(command.c_str()) == 0; }

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

namespace {

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

std::uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

bool answers(std::uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  const bool ok = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return ok;
}

std::string user_name() {
  return geteuid() == 0 ? "root" : std::getenv("USER") != nullptr ? std::getenv("USER") : "";
}

}  // namespace

SshTestHost::SshTestHost() {
  char name[] = "ssh-host-XXXXXX";
  root_ = std::filesystem::absolute(mkdtemp(name));
  std::filesystem::create_directories(home());
  shell("ssh-keygen -q -t ed25519 -N '' -f " + (root_ / "host_key").string());
  shell("ssh-keygen -q -t ed25519 -N '' -f " + (root_ / "user_key").string());
  port_ = free_port();
  write_known_hosts(known_hosts_line());
  write_config("");
  unsetenv("SSH_AUTH_SOCK");
  setenv("IVY_SSH_CONFIG", (root_ / "ssh_config").c_str(), 1);
}

SshTestHost::~SshTestHost() {
  unsetenv("IVY_SSH_CONFIG");
  stop();
  std::error_code ignored;
  std::filesystem::remove_all(root_, ignored);
}

void SshTestHost::stop() {
  if (sshd_ <= 0) return;
  // Its sessions are in its process group too, except those that made another one; these end with
  // their connections.
  kill(-sshd_, SIGKILL);
  waitpid(sshd_, nullptr, 0);
  sshd_ = -1;
}

bool SshTestHost::restart_with_another_key() {
  stop();
  std::filesystem::remove(root_ / "host_key");
  return shell("ssh-keygen -q -t ed25519 -N '' -f " + (root_ / "host_key").string() +
               " < /dev/null > /dev/null") &&
         start();
}

bool SshTestHost::start(const Choices& choices) {
  const std::string config = root_ / "sshd_config";
  std::ofstream(config) << "Port " << port_ << "\nListenAddress 127.0.0.1\nHostKey "
                        << (root_ / "host_key").string() << "\nPidFile none\nAuthorizedKeysFile "
                        << (root_ / "user_key.pub").string()
                        << "\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
                        << "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
                        << "SetEnv HOME=" << home().string() << "\n"
                        << choices.sshd_lines << "\n";
  std::string command = "exec /usr/sbin/sshd -D -e -f " + config;
  if (geteuid() == 0) {
    mkdir("/run/sshd", 0755);
    const std::string room = choices.shm_mount.empty() ? "size=64m" : choices.shm_mount;
    std::string mounts = "mount -t tmpfs -o mode=1777," + room + " tmpfs /dev/shm && ";
    // /tmp is only covered if the test's own files are not below it.
    if (covers_tmp()) {
      mounts += "mount -t tmpfs -o mode=1777," + room + " tmpfs /tmp && ";
    }
    if (!choices.home_mount.empty()) {
      mounts += "mount -t tmpfs -o " + choices.home_mount + " tmpfs " + home().string() + " && ";
    }
    command = "exec unshare -m sh -c '" + mounts + command + "'";
  }
  const std::string log_path = root_ / "sshd.log";
  sshd_ = fork();
  if (sshd_ == 0) {
    setpgid(0, 0);
    const int log_fd = open(log_path.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    dup2(log_fd, 1);
    dup2(log_fd, 2);
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!answers(port_)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::string SshTestHost::known_hosts_line() const {
  return "[127.0.0.1]:" + std::to_string(port_) + " " + read_file(root_ / "host_key.pub");
}

void SshTestHost::write_known_hosts(const std::string& text) {
  std::ofstream(root_ / "known_hosts") << text;
}

void SshTestHost::write_config(const std::string& more_lines) {
  std::ofstream(root_ / "ssh_config")
      << more_lines << "\nHost *\n  Port " << port_ << "\n  User " << user_name()
      << "\n  IdentityFile " << (root_ / "user_key").string() << "\n  UserKnownHostsFile "
      << (root_ / "known_hosts").string() << "\n";
}

std::string SshTestHost::log() const { return read_file(root_ / "sshd.log"); }

void SshTestHost::make_bundle(const std::string& node_script, const std::string& architecture) {
  std::filesystem::create_directories(root_ / "bin");
  std::filesystem::create_directories(root_ / "lib/ivyrun");
  std::ofstream(root_ / "bin/ivy-node") << node_script;
  chmod(node_binary().c_str(), 0755);
  shell("cd " + root_.string() + " && cmake -DOUT=$PWD/lib/ivyrun/bundle-" + architecture +
        ".run -DFILES=bin/ivy-node " IVY_MAKE_BUNDLE);
}

int SshTestHost::bundles_in_home() const {
  std::error_code error;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(home() / ".cache/ivyrun", error)) {
    (void)entry;
    ++count;
  }
  return count;
}

SshTestAgent::SshTestAgent(const std::filesystem::path& directory) : directory_(directory) {
  pid_ = fork();
  if (pid_ == 0) {
    const int null = open("/dev/null", O_RDWR);
    dup2(null, 1);
    execlp("ssh-agent", "ssh-agent", "-D", "-a", socket().c_str(), nullptr);
    _exit(127);
  }
  for (int i = 0; i < 1000 && access(socket().c_str(), W_OK) != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  setenv("SSH_AUTH_SOCK", socket().c_str(), 1);
}

SshTestAgent::~SshTestAgent() {
  unsetenv("SSH_AUTH_SOCK");
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

bool SshTestAgent::add_foreign_keys(int count) {
  for (int i = 0; i < count; ++i) {
    const std::string key = directory_ / ("foreign_key" + std::to_string(i));
    if (!shell("ssh-keygen -q -t ed25519 -N '' -f " + key) || !add(key)) return false;
  }
  return true;
}

bool SshTestAgent::add(const std::filesystem::path& key) {
  return shell("ssh-add -q " + key.string());
}

}  // namespace ivy
