// SPDX-License-Identifier: Apache-2.0
// A link: one connection between the launcher and one host's supervisor, made by one transport
// (local, ssh, agent, srun, exec, join). A link opens a connection to the supervisor's command
// socket and moves bytes, without interpreting them. The code above this interface does not know
// which transport a link uses.
//
// Thread: the loop's, except for send_alive(). Lifetime: the owner outlives its links until it has
// closed them. It destroys a link only outside of that link's events (post first).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/links/link_step.h"
#include "launcher/options/transport_kind.h"
#include "proto/contract/remote_text.h"
#include "proto/contract/status.h"

namespace ivy {

// Identifies the supervisor to connect to. It is sent on the link's input, never on a command line.
struct OpenRequest {
  std::string job_id;
  std::uint32_t host = 0;  // Index of the host in the job.
  bool reattach = false;   // The supervisor must exist already: do not start one.
  // A link to this host was up before, even if it broke before the supervisor had answered.
  bool again = false;
};

// A link that is up.
struct LinkUp {
  Transport transport = Transport::kLocal;
  std::string peer_address;   // Numeric address of the host, as it was reached; empty for local.
  std::string local_address;  // This machine's numeric address on that connection; empty for local.
  std::string remote_command;  // The command line for the login shell there; empty for local.
  // The address to which hosts dial back, such as "10.0.0.1:41234"; else empty.
  std::string listening;
  std::string own_command = {};  // The command line run on this machine by kExec; else empty.
};

enum class LinkFailure {
  kUnresolved,      // The name has no address.
  kUnreachable,     // No answer (timeout, no route): the host may be down.
  kRefused,         // The address refuses connections, so the host is up.
  kHostKey,         // The host's key is unknown, has changed or is of another type. Never retried.
  kAuthentication,  // The server accepted no method of authentication. Never retried.
  // The login worked, but ivy-node cannot be stored or run there (disk, noexec, architecture).
  kBootstrap,
  kNoSuchJob,    // Reattach: the host has no supervisor of this job.
  kStaging,      // The files of --stage could not be stored there.
  kEnvironment,  // The environment of --stage-venv cannot be used there. Never retried.
  kBroken,       // The link broke after it was up, or while it was being opened.
};

// A link that is closed, or could not be opened.
struct LinkDown {
  LinkFailure failure = LinkFailure::kBroken;
  RemoteText message;  // One line, with the original text of the failure.
  std::string fix;     // Advice for the user; may be empty.

  static LinkDown from(LinkFailure failure, const Error& error) {
    return LinkDown{failure, error.message, error.fix};
  }
};

class HostLink;

// Implemented by the owner of links: HostLinks (launcher/job/hosts/host_links.h), or a link that
// carries its bytes over another one. Nothing is called for a link that was closed.
class HostLinkEvents {
 public:
  // Called once: bytes flow both ways from now on.
  virtual void link_up(HostLink& link, const LinkUp& up) = 0;
  // Bytes from the supervisor, in pieces of any size.
  virtual void link_bytes(HostLink& link, std::string_view bytes) = 0;
  // Everything given to write() has left.
  virtual void link_drained(HostLink& link) = 0;
  // The last event of a link, and the only one if it was never up, except for progress.
  virtual void link_down(HostLink& link, const LinkDown& down) = 0;
  // The present step of opening.
  virtual void link_progress(HostLink& link, const LinkStep& step) = 0;
  // The host answers, but the link has to wait there for `what`. Repeated until the wait is over.
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
  // Starts to open the link; link_up() or link_down() follows, but not from within this call.
  // Called once.
  virtual void open(const OpenRequest& request) = 0;
  // Sends bytes. Call only after link_up(), and only if everything written before has left.
  virtual void write(std::string bytes) = 0;
  // Sends a heartbeat frame while the loop hangs, after the bytes given to write(), if the
  // connection takes all of them immediately; otherwise drops the frame. Call only between
  // link_up() and close(). Thread: any.
  virtual void send_alive(std::string_view frame) = 0;
  // Closes the link without an event. The other end sees the end of the connection.
  virtual void close() = 0;
};

// Passes a link's events on to its owner, until the link is closed or down.
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
  void progress(const LinkStep& step) const {
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
