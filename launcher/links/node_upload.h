// SPDX-License-Identifier: Apache-2.0
// How ivy-node gets to a host that has none of this build: the constant command that every login
// shell is given, the script that installs, and the bundle that is sent. See "Remote command" in
// launcher/links/README.md.
// Thread: any. load() and bundle() read files, and so may block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "proto/contract/status.h"

namespace ivy {

// The files sent to one host, for one directory there: a tar compressed with zstd, preceded by a
// program that decompresses it (unpack/unpack_main.c).
struct NodeBundle {
  std::string sha256;          // 64 hexadecimal digits, of all.
  std::string archive_sha256;  // The same of the archive alone.
  std::size_t archive_begin = 0;
  std::size_t bytes = 0;
  // Read, not mapped: an installation may cut the file off while it is sent.
  std::shared_ptr<const std::string> content;

  // For who can decompress it.
  std::string_view archive() const { return std::string_view(*content).substr(archive_begin); }
};

// "42 % of 5 MiB, 1.3 MB/s"; without the rate in the first half second.
class UploadProgress {
 public:
  // done: bytes that the host already had.
  UploadProgress(std::size_t done, std::size_t total);
  // Empty: nothing new to say.
  std::string moved_to(std::size_t done);

 private:
  std::size_t begin_;
  std::size_t total_;
  std::int64_t started_ns_;
  std::size_t told_percent_;
};

class NodeUpload {
 public:
  // directory: where bundle-ARCH.run and bundle-ARCH.run.sha256 lie. Reads only the small files.
  // NotFound when there is none.
  static Result<std::shared_ptr<NodeUpload>> load(const std::string& directory);

  // One line for any login shell (sh, csh, fish, zsh): no user data, the same for every host. It
  // runs the relay of this build, or asks for the install script.
  const std::string& remote_command() const { return remote_command_; }
  // The same for a host whose copy did not run: puts the bundle there anew.
  const std::string& repairing_command() const { return repairing_command_; }
  const std::string& directory() const { return directory_; }
  // The hash in the name of the bundle's directory on every host.
  const std::string& name() const { return name_; }
  // The bundle for `uname -m`'s answer. FailedPrecondition names the architecture that we lack,
  // DataLoss a file that is cut off.
  // The file is read once; other callers wait for that.
  Result<NodeBundle> bundle(const std::string& architecture);
  // Returns the answer to `need`: a length line and a script for /bin/sh, which requests the bundle
  // with `send BYTES`, reusing data that a broken connection has left there.
  static std::string install_script(const NodeBundle& bundle);

 private:
  NodeUpload(std::string directory, std::map<std::string, NodeBundle> by_architecture);

  const std::string directory_;
  std::mutex mutex_;  // Guards the contents, which are read when they are first asked for.
  std::map<std::string, NodeBundle> by_architecture_;
  const std::string name_;
  std::string remote_command_;
  std::string repairing_command_;
};

}  // namespace ivy
