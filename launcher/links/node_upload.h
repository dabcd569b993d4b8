// SPDX-License-Identifier: Apache-2.0
// Brings ivy-node to a host that does not have this build. There are three parts:
//  - the *remote command*: one constant line for every login shell. It starts the relay of this
//    build, or asks for the install script;
//  - the *install script*: stores the bundle on the host and starts the relay;
//  - the *bundle*: the files themselves, one bundle for each architecture.
//
// "Remote command" and "Bundles" in launcher/links/README.md describe them in full. Thread: any.
// load() and bundle() read files, and so may block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/links/link_step.h"
#include "proto/contract/status.h"

namespace ivy {

// The files for hosts of one architecture: a tar that is compressed with zstd (the archive), after
// a program that decompresses it (unpack/unpack_main.c), because hosts need not have zstd.
struct NodeBundle {
  std::string sha256;             // SHA-256 of program and archive, as 64 hexadecimal digits.
  std::string archive_sha256;     // SHA-256 of the archive only.
  std::size_t archive_begin = 0;  // Size of the program, at which the archive starts.
  std::size_t bytes = 0;          // Size of program and archive.
  std::string build;              // The build_name() of its programs; empty in tests.
  // A copy in memory. The file is not mapped, because an installation may truncate it during the
  // transfer.
  std::shared_ptr<const std::string> content;

  // Returns the archive without the program, for receivers that can decompress it.
  std::string_view archive() const { return std::string_view(*content).substr(archive_begin); }
};

// Measures the progress of a transfer.
class UploadProgress {
 public:
  // done: bytes that the host had before the transfer. total: bytes of the bundle.
  UploadProgress(std::size_t done, std::size_t total);
  // Returns the state after `done` bytes; none if the percentage has not changed since the last
  // call.
  std::optional<UploadState> moved_to(std::size_t done);

 private:
  std::size_t begin_;
  std::size_t total_;
  std::int64_t started_ns_;
  std::size_t last_percent_;  // The percentage of the last state.
};

// The bundles of this build, and the commands that install them.
class NodeUpload {
 public:
  // Finds the bundles in `directory`. Reads only the small files bundle-ARCH.run.sha256, which
  // describe bundle-ARCH.run. NotFound: there are none.
  static Result<std::shared_ptr<NodeUpload>> load(const std::string& directory);

  // Returns the remote command: one line for any login shell (sh, csh, fish, zsh), which contains
  // nothing of the user and is the same for every host.
  const std::string& remote_command() const { return remote_command_; }
  // Returns the remote command for a host whose copy of ivy-node did not run: it installs the
  // bundle again.
  const std::string& repairing_command() const { return repairing_command_; }
  // The directory of the bundles on this machine.
  const std::string& directory() const { return directory_; }
  // Returns the name of this build on hosts, a hash of all bundles. Directories on hosts are called
  // NAME-ARCH.
  const std::string& name() const { return name_; }
  // Returns the bundle for a host on which `uname -m` prints this architecture. FailedPrecondition:
  // this machine has no bundle for it, or the one of another build, whose ivy-node this launcher
  // cannot command. DataLoss: the file is truncated. Reads the file once; concurrent callers wait
  // for that.
  Result<NodeBundle> bundle(const std::string& architecture);
  // Returns the reply to the marker `need`: a line with the script's length, and the script for
  // /bin/sh. The script requests the bundle with the marker `send BYTES`, where BYTES are already
  // there from a connection that broke.
  static std::string install_script(const NodeBundle& bundle);

 private:
  NodeUpload(std::string directory, std::map<std::string, NodeBundle> by_architecture);

  const std::string directory_;
  std::mutex mutex_;  // Guards the contents of the bundles, which are read on first use.
  std::map<std::string, NodeBundle> by_architecture_;
  const std::string name_;
  std::string remote_command_;
  std::string repairing_command_;
};

}  // namespace ivy
