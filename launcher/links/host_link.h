// SPDX-License-Identifier: Apache-2.0
// One transport of bytes between the launcher and one host's supervisor. Transports are dumb: they
// open a connection to the supervisor's command socket and move bytes. Nothing above this interface
// knows which transport it has.
//
// Thread: the loop's, but for send_alive(). Lifetime: the owner outlives its links until it has
// closed them, and destroys a link only outside of that link's events (post first).
#pragma once

#include <cstdint>
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

class HostLink;

// The owner of links: the transports of a host's session (launcher/job/host_transports.h), and a
// link that carries its bytes over another one. Nothing is called for a link that was closed.
class HostLinkEvents {
 public:
  // Once: bytes flow both ways.
  virtual void link_up(HostLink& link, const LinkUp& up) = 0;
  // From the supervisor, in pieces of any size.
  virtual void link_bytes(HostLink& link, std::string_view bytes) = 0;
  // Everything given to write() has left.
  virtual void link_drained(HostLink& link) = 0;
  // The last call, and the only one if the link never came up.
  virtual void link_down(HostLink& link, const LinkDown& down) = 0;
  // The present step: "ssh: connecting", "sending ivy-node (3 MB)".
  virtual void link_progress(HostLink& link, const RemoteText& step) = 0;
  // The host answers but keeps the link waiting for this. Repeated until the wait is over.
  virtual void link_stuck(HostLink& link, const std::string& what) = 0;

 protected:
  ~HostLinkEvents() = default;
};

class HostLink {
 public:
  HostLink() = default;
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;
  virtual ~HostLink() = default;
  // Starts to open; the answer is link_up() or link_down(), later. Called once.
  virtual void open(const OpenRequest& request) = 0;
  // Queues bytes; only after link_up(), and only when drained (or nothing was written yet).
  virtual void write(std::string bytes) = 0;
  // Sends a whole frame that the loop knows nothing of, after the bytes given to write(), if the
  // transport takes it now; else does nothing. Call it between link_up() and close() only.
  // Thread: any.
  virtual void send_alive(std::string_view frame) = 0;
  // Ends the link without an event. The far end sees an end of file.
  virtual void close() = 0;
};

// Passes the events of a link on to its owner, until the link is closed or down.
class LinkReports {
 public:
  LinkReports(HostLink& link, HostLinkEvents& owner) : link_(link), owner_(owner) {}

  void close() { is_open_ = false; }
  bool is_open() const { return is_open_; }

  void up(const LinkUp& up) const {
    if (is_open_) owner_.link_up(link_, up);
  }
  void bytes(std::string_view bytes) const {
    if (is_open_) owner_.link_bytes(link_, bytes);
  }
  void drained() const {
    if (is_open_) owner_.link_drained(link_);
  }
  void progress(const RemoteText& step) const {
    if (is_open_) owner_.link_progress(link_, step);
  }
  void stuck(const std::string& what) const {
    if (is_open_) owner_.link_stuck(link_, what);
  }
  void down(const LinkDown& down) {
    if (std::exchange(is_open_, false)) owner_.link_down(link_, down);
  }

 private:
  HostLink& link_;
  HostLinkEvents& owner_;
  bool is_open_ = true;
};

}  // namespace ivy
