// SPDX-License-Identifier: Apache-2.0
// One SSH connection, non-blocking towards the host: every step says whether it is done or must be
// called again when the socket is ready. The only file that knows libssh. libssh reads no
// configuration here: it gets what ssh_settings.h found.
//
// Thread: one at a time. The steps up to the login read files and query the SSH agent, and so run
// on a pool's threads (SshWire); the others never block and run on the loop's.
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

// Private keys read from files, once for all hosts. Thread: any. A file that is missing, protected
// by a passphrase or of a kind that libssh does not know has no key here: the OpenSSH client may
// still use it.
class SshKeys {
 public:
  using Key = std::shared_ptr<ssh_key_struct>;
  Key get(const std::string& path);

 private:
  std::mutex mutex_;  // Held while a file is read: the others wait for the same key.
  std::map<std::string, Key> keys_;
};

enum class SshStep { kDone, kAgain, kFailed };
enum class SshStream { kOutput, kError };

struct SshHostKey {
  // kReplaced: not the key of this job's first login.
  enum class Verdict { kKnown, kUnknown, kChanged, kReplaced, kUnreadable };
  Verdict verdict = Verdict::kUnreadable;
  std::string type;               // The key's type, such as "ED25519".
  std::string fingerprint;        // "SHA256:..." of the host's key.
  std::string algorithms;         // By which it shows a key of this type again.
  std::string known_fingerprint;  // kChanged, kReplaced: the known one: "ED25519 SHA256:..., ...".
};

struct SshRead {
  enum class State { kBytes, kNothing, kEnd, kBroken };
  State state;
  std::size_t count = 0;
};

class SshSession {
 public:
  // Takes over a connected TCP socket. Internal when libssh cannot be set up.
  static Result<std::unique_ptr<SshSession>> make(const SshTarget& target, Descriptor socket);
  ~SshSession();
  SshSession(const SshSession&) = delete;
  SshSession& operator=(const SshSession&) = delete;

  SshStep handshake();
  // True when the far end has said that it is an SSH server.
  bool saw_banner() const;
  SshHostKey host_key();
  // Appends the shown key to the user's known_hosts file.
  Result<void> remember_host_key();
  // Logs in by the target's identities. kFailed: all were refused, or the server hung up.
  SshStep try_identities(SshKeys& keys);
  // Uses this connection to the SSH agent, from open_ssh_agent().
  void set_agent(Descriptor agent);
  // Logs in by the agent's keys. kFailed as above.
  SshStep try_agent();
  SshStep open_channel();
  SshStep execute(const std::string& command);

  SshRead read(char* buffer, std::size_t size, SshStream stream);
  // How many bytes were taken (0: call again when the socket is ready), or -1.
  long write(std::string_view bytes);
  // Bytes that the far end will take now.
  std::size_t write_window() const;
  // True once the server has ended the connection, and no step can succeed.
  bool is_closed() const;
  // True if written bytes wait for room in the socket.
  bool wants_write() const;
  // Writes what waits, if the socket has room: libssh itself does that in its next step only.
  void flush();
  // True once nothing more can come: the exit status is known, or the channel or connection closed.
  bool is_finished() const;
  // Exit status of the remote command, or -1.
  int exit_status() const;
  // Raw text of the last failure.
  std::string error() const;
  // The methods that the server says it accepts ("publickey,password"), for messages.
  std::string accepted_methods() const;
  // Ends the waits of a step that runs on another thread; no step succeeds afterwards. Thread: any.
  void abandon();

 private:
  struct Handles;
  explicit SshSession(const SshTarget& target);
  std::string known_fingerprints() const;
  SshStep try_key();

  const SshTarget target_;
  // Held in the calls that both the loop and the heartbeat's thread make while the command runs.
  mutable std::mutex mutex_;
  std::unique_ptr<Handles> handles_;
  Descriptor watched_socket_;  // Copies of libssh's descriptors, for abandon().
  Descriptor watched_agent_;
  std::atomic<bool> has_agent_ = false;  // watched_agent_ does not change afterwards.
  std::size_t next_identity_ = 0;
  SshKeys::Key key_;
};

}  // namespace ivy
