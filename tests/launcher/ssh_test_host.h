// SPDX-License-Identifier: Apache-2.0
// A real sshd on a loopback port with its own keys, home directory and configuration, for one test.
// As root it runs in its own mount namespace with empty /tmp and /dev/shm.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace ivy {

class SshTestHost {
 public:
  struct Choices {
    // Options of a tmpfs for the home ("noexec", "size=256k"); empty: none.
    std::string home_mount;
    std::string shm_mount;   // The same for /tmp and /dev/shm; root only.
    std::string sshd_lines;  // More lines of sshd_config.
  };
  SshTestHost();
  ~SshTestHost();
  SshTestHost(const SshTestHost&) = delete;
  SshTestHost& operator=(const SshTestHost&) = delete;

  // Whether shm_mount also holds for /tmp: not where this test's own files lie below it.
  bool covers_tmp() const { return !root_.string().starts_with("/tmp/"); }
  // Starts sshd and waits until it answers. False when it does not.
  bool start(const Choices& choices);
  bool start() { return start(Choices{}); }
  // As if another machine answered at this address.
  bool restart_with_another_key();

  std::uint16_t port() const { return port_; }
  std::filesystem::path home() const { return root_ / "home"; }
  std::filesystem::path root() const { return root_; }
  // Text of an ssh configuration that reaches this host; IVY_SSH_CONFIG names the file.
  void write_config(const std::string& more_lines);
  void write_known_hosts(const std::string& text);
  std::string known_hosts_line() const;
  std::string log() const;
  // Puts an ivy-node (a script of this text) and its bundle below root()/bin and root()/lib.
  // architecture: as `uname -m` prints it.
  void make_bundle(const std::string& node_script, const std::string& architecture = "$(uname -m)");
  std::string node_binary() const { return root_ / "bin/ivy-node"; }
  // Directories of bundles in this host's home cache.
  int bundles_in_home() const;

 private:
  void stop();

  std::filesystem::path root_;
  std::uint16_t port_ = 0;
  pid_t sshd_ = -1;
};

// A real ssh-agent at root()/agent, named by SSH_AUTH_SOCK while this lives.
class SshTestAgent {
 public:
  explicit SshTestAgent(const std::filesystem::path& directory);
  ~SshTestAgent();
  SshTestAgent(const SshTestAgent&) = delete;
  SshTestAgent& operator=(const SshTestAgent&) = delete;

  // Adds `count` keys that no server knows.
  bool add_foreign_keys(int count);
  bool add(const std::filesystem::path& key);
  pid_t pid() const { return pid_; }
  std::string socket() const { return directory_ / "agent"; }

 private:
  const std::filesystem::path directory_;
  pid_t pid_ = -1;
};

// Relay that says what it was told and then echoes. What a link carries does not matter to it.
extern const char* const kEchoNode;

// Runs a shell command; true when it succeeded.
bool shell(const std::string& command);
std::string read_file(const std::filesystem::path& path);

}  // namespace ivy
