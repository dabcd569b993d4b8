// SPDX-License-Identifier: Apache-2.0
// One transport of bytes between the launcher and one host's supervisor. Transports are dumb: they
// open a connection to the supervisor's command socket and move bytes. Nothing above this interface
// knows which transport it has.
//
// Thread: the loop's, but for send_alive(). Lifetime: the owner destroys a link only outside its
// handlers (post first); after destruction no handler is called.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/options/transport_kind.h"
#include "proto/contract/remote_text.h"
#include "proto/contract/status.h"

namespace ivy {

// The request to the far end. It is sent on the transport's standard input, never on a command
// line.
struct OpenRequest {
  std::string job_id;
  std::uint32_t host = 0;  // Host number in the job.
  bool reattach = false;   // The supervisor must exist already: never start one.
  // True if a transport to this host was up before, even if it broke before the supervisor
  // answered.
  bool again = false;
};

struct LinkUp {
  Transport transport = Transport::kLocal;
  std::string peer_address;    // Numeric address of the host as we reached it; empty for local.
  std::string local_address;   // Our own numeric address on that connection; empty for local.
  std::string remote_command;  // The command line for the far login shell; empty for local.
  std::string listening;       // Address for hosts that dial back: "10.0.0.1:41234"; usually empty.
};

enum class LinkFailure {
  kUnresolved,      // The name has no address.
  kUnreachable,     // No answer (timeout, no route): the host may be down.
  kRefused,         // The address refuses connections: the host is up.
  kHostKey,         // Unknown, changed or of another type. Never retried.
  kAuthentication,  // No method was accepted. Never retried.
  kBootstrap,  // Logged in, but ivy-node cannot be put there or run (disk, noexec, architecture).
  kNoSuchJob,  // Reattach: no supervisor of this job lives there.
  kBroken,     // It was up (or half up) and ended.
};

struct LinkDown {
  LinkFailure failure = LinkFailure::kBroken;
  RemoteText message;  // One line, with the raw text of what failed.
  std::string fix;     // Advice for the user; may be empty.

  static LinkDown from(LinkFailure failure, const Error& error) {
    return LinkDown{failure, error.message, error.fix};
  }
};

class HostLink {
 public:
  struct Handlers {
    std::function<void(const LinkUp&)> up;        // Called once, when bytes flow both ways.
    std::function<void(std::string_view)> bytes;  // From the supervisor, any cut.
    std::function<void()> drained;                // Everything given to write() has left.
    std::function<void(const LinkDown&)> down;    // Once, last call of all.
    std::function<void(const RemoteText&)>
        progress;  // "ssh: connecting", "sending ivy-node (3 MB)".
    // Again and again while the host answers but does not let us in: what that waits for there.
    std::function<void(const std::string&)> stuck;
  };

  HostLink() = default;
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;
  virtual ~HostLink() = default;
  // Starts to open; the answer is up or down. Called once.
  virtual void open(const OpenRequest& request) = 0;
  // Queues bytes; only after up, and only when drained (or nothing was written yet).
  virtual void write(std::string bytes) = 0;
  // Sends a whole frame that the loop knows nothing of, behind what write() was given, if the
  // transport takes it now; else does nothing. Call it between `up` and close() only. Thread: any.
  virtual void send_alive(std::string_view frame) = 0;
  // Ends the link; `down` is not called for it. The far end sees an end of file.
  virtual void close() = 0;
};

// Passes the events of a link on to its owner, until the link is closed or down.
class LinkReports {
 public:
  explicit LinkReports(HostLink::Handlers handlers) : handlers_(std::move(handlers)) {}

  void close() { is_open_ = false; }
  bool is_open() const { return is_open_; }
  // For another link that takes this one's place.
  const HostLink::Handlers& handlers() const { return handlers_; }

  void up(const LinkUp& up) const {
    if (is_open_) handlers_.up(up);
  }
  void bytes(std::string_view bytes) const {
    if (is_open_) handlers_.bytes(bytes);
  }
  void drained() const {
    if (is_open_) handlers_.drained();
  }
  void progress(const RemoteText& text) const {
    if (is_open_) handlers_.progress(text);
  }
  void stuck(const std::string& what) const {
    if (is_open_ && handlers_.stuck) handlers_.stuck(what);
  }
  void down(const LinkDown& down) {
    if (std::exchange(is_open_, false)) handlers_.down(down);
  }

 private:
  const HostLink::Handlers handlers_;
  bool is_open_ = true;
};

}  // namespace ivy
