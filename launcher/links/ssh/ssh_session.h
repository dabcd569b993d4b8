// SPDX-License-Identifier: Apache-2.0
// One SSH connection: the only file that uses libssh. It is non-blocking towards the host: each
// step reports whether it is done or must be called again when the socket is ready. libssh reads no
// configuration; it gets what ssh_settings.h has found.
//
// Thread: one at a time. The steps up to the login read files and query the SSH agent, so SshWire
// runs the steps on a pool. Reading and writing never block, and run on the loop.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "launcher/links/ssh/ssh_settings.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

struct ssh_session_struct;
struct ssh_channel_struct;
struct ssh_key_struct;

namespace ivy {

// Private keys that were read from files, once for all hosts. A file that is missing, protected by
// a passphrase or of a kind that libssh does not know gives no key; the OpenSSH client may still
// use it. Thread: any.
class SshKeys {
 public:
  using Key = std::shared_ptr<ssh_key_struct>;
  Key get(const std::string& path);

 private:
  std::mutex mutex_;  // Held while a file is read: other callers wait for the same key.
  std::map<std::string, Key> keys_;
};

// kAgain: call the step again when the socket is ready.
enum class SshStep { kDone, kAgain, kFailed };
// The two outputs of the remote command.
enum class SshStream { kOutput, kError };

// The key that the host has shown, and the result of comparing it.
struct SshHostKey {
  // kReplaced: it differs from the key of this job's first login.
  enum class Verdict { kKnown, kUnknown, kChanged, kReplaced, kUnreadable };
  Verdict verdict = Verdict::kUnreadable;
  std::string type;         // The key's type, such as "ED25519".
  std::string fingerprint;  // The key's fingerprint: "SHA256:...".
  std::string algorithms;   // The algorithms with which the host can show a key of this type again.
  // For kChanged and kReplaced, the known keys: "ED25519 SHA256:..., ...".
  std::string known_fingerprint;
};

struct SshRead {
  enum class State { kBytes, kNothing, kEnd, kBroken };
  State state;
  std::size_t count = 0;
};

class SshSession {
 public:
  // Takes over a connected TCP socket. Internal: libssh cannot be set up.
  static Result<std::unique_ptr<SshSession>> make(const SshTarget& target, Descriptor socket);
  ~SshSession();
  SshSession(const SshSession&) = delete;
  SshSession& operator=(const SshSession&) = delete;

  SshStep handshake();
  // True once the far end has identified itself as an SSH server.
  bool saw_banner() const;
  SshHostKey host_key();
  // Appends the host's key to the user's known_hosts file.
  Result<void> remember_host_key();
  // Logs in with the target's identities. kFailed: all were rejected, or the server closed the
  // connection.
  SshStep try_identities(SshKeys& keys);
  // Takes over a connection to the SSH agent, from open_ssh_agent().
  void set_agent(Descriptor agent);
  // Logs in with the agent's keys. kFailed: all were rejected, or the server closed the connection.
  SshStep try_agent();
  SshStep open_channel();
  SshStep execute(const std::string& command);

  SshRead read(char* buffer, std::size_t size, SshStream stream);
  // Returns the number of bytes taken, or -1. 0: call again when the socket is ready.
  long write(std::string_view bytes);
  // Returns how many bytes the far end will take now.
  std::size_t write_window() const;
  // True once the server has closed the connection: no step can succeed.
  bool is_closed() const;
  // True if written bytes wait for room in the socket.
  bool wants_write() const;
  // Writes those bytes as far as the socket has room. Otherwise libssh does so only in its next
  // step.
  void flush();
  // True once nothing more can arrive: the exit status is known, or the channel or the connection
  // was closed.
  bool is_finished() const;
  // Returns the exit status of the remote command, or -1.
  int exit_status() const;
  // Returns the original text of the last failure.
  std::string error() const;
  // Returns the methods that the server accepts ("publickey,password"), for messages.
  std::string accepted_methods() const;
  // Makes a step that runs on another thread return; no step succeeds afterwards. Thread: any.
  void abandon();

 private:
  struct Handles;
  explicit SshSession(const SshTarget& target);
  std::string known_fingerprints() const;
  SshStep try_key();

  const SshTarget target_;
  // Held in calls that the loop and the heartbeat thread may make at the same time, while the
  // command runs.
  mutable std::mutex mutex_;
  std::unique_ptr<Handles> handles_;
  Descriptor watched_socket_;  // Copies of libssh's descriptors, which abandon() shuts down.
  Descriptor watched_agent_;
  std::atomic<bool> has_agent_ = false;  // watched_agent_ is set, and does not change again.
  std::size_t next_identity_ = 0;        // The next identity to try.
  SshKeys::Key key_;                     // The key that is being tried.
};

}  // namespace ivy
