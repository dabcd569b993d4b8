// SPDX-License-Identifier: Apache-2.0
// A real sshd on a loopback port with separate keys, home directory and configuration, for one
// test. If it runs as root, it has a separate mount namespace with an empty /tmp and /dev/shm.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace ivy {

class SshTestHost {
 public:
  struct Choices {
    // Mount options of a tmpfs for the home ("noexec", "size=256k"); empty: no tmpfs.
    std::string home_mount;
    std::string shm_mount;   // The same for /tmp and /dev/shm; root only.
    std::string sshd_lines;  // More lines of sshd_config.
  };
  SshTestHost();
  ~SshTestHost();
  SshTestHost(const SshTestHost&) = delete;
  SshTestHost& operator=(const SshTestHost&) = delete;

  // Returns true if shm_mount also applies to /tmp, which needs the test's own files elsewhere.
  bool covers_tmp() const { return !root_.string().starts_with("/tmp/"); }
  // Starts sshd and waits until it answers. Returns false if it does not.
  bool start(const Choices& choices);
  bool start() { return start(Choices{}); }
  // Restarts as if another machine answered at this address.
  bool restart_with_another_key();

  std::uint16_t port() const { return port_; }
  std::filesystem::path home() const { return root_ / "home"; }
  std::filesystem::path root() const { return root_; }
  // Writes an ssh configuration that reaches this host; IVY_SSH_CONFIG names the file.
  void write_config(const std::string& more_lines);
  void write_known_hosts(const std::string& text);
  std::string known_hosts_line() const;
  std::string log() const;
  // Makes an ivy-node (a script of this text) and its bundle below root()/bin and root()/lib.
  // `architecture`: as `uname -m` prints it.
  void make_bundle(const std::string& node_script, const std::string& architecture = "$(uname -m)");
  std::string node_binary() const { return root_ / "bin/ivy-node"; }
  // Number of bundle directories in this host's home cache.
  int bundles_in_home() const;

 private:
  void stop();

  std::filesystem::path root_;
  std::uint16_t port_ = 0;
  pid_t sshd_ = -1;
};

// A real ssh-agent at root()/agent. SSH_AUTH_SOCK names it while this object exists.
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

// A relay that prints its order and then echoes. A link does not interpret the relay's bytes.
extern const char* const kEchoNode;

// Runs a shell command; returns true if it succeeded.
bool shell(const std::string& command);
std::string read_file(const std::filesystem::path& path);

}  // namespace ivy
