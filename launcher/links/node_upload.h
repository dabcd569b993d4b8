// How ivy-node gets to a host that has none of this build: the constant command that every login
// shell is given, the script that installs, and the bundle that is sent. See "Remote command" in
// launcher/links/README.md.
// Thread: the loop's.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "proto/contract/status.h"

namespace ivy {

// What is sent to one host: a tar of the files that live in one directory there.
struct NodeBundle {
  std::string sha256;  // 64 hexadecimal digits, of the tar.
  // Read, not mapped: an installation may cut the file off while it is sent.
  std::shared_ptr<const std::string> tar;
};

class NodeUpload {
 public:
  // directory: where bundle-ARCH.tar and bundle-ARCH.tar.sha256 lie. Reads only the small files.
  // NotFound when there is none.
  static Result<NodeUpload> load(const std::string& directory);

  // One line for any login shell (sh, csh, fish, zsh): no user data, the same for every host. It
  // runs the relay of this build, or asks for the install script.
  const std::string& remote_command() const { return remote_command_; }
  // The hash in the name of the bundle's directory on every host.
  const std::string& name() const { return name_; }
  // The bundle for `uname -m`'s answer. FailedPrecondition names the architecture that we lack.
  Result<NodeBundle> bundle(const std::string& architecture);
  // The answer to `need`: a length line and a script for /bin/sh, which asks for the bundle by
  // `send`.
  static std::string install_script(const NodeBundle& bundle);

 private:
  NodeUpload(std::string directory, std::map<std::string, std::string> sha256_by_architecture);

  std::string directory_;
  std::map<std::string, std::string> sha256_by_architecture_;
  std::map<std::string, NodeBundle> loaded_;
  std::string name_;
  std::string remote_command_;
};

}  // namespace ivy
