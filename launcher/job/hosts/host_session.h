// SPDX-License-Identifier: Apache-2.0
// The session with one host's supervisor, over whichever link is up. Opens the first link, redials
// a broken one, replays the frames that the supervisor has not received, and reports when the host
// is lost. A link (HostLink) is one connection, by any transport; the session outlives its links.
//
// Thread: the loop's, except for send_alive(). Lifetime: may be destroyed inside an event of its
// own.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "launcher/job/hosts/host_clock.h"
#include "launcher/job/hosts/host_links.h"
#include "proto/os/heartbeat.h"
#include "proto/wire/job.pb.h"
#include "proto/wire/session.h"

namespace ivy {

enum class HostLoss {
  kHost,        // The host was silent beyond its lease, or did not answer redials.
  kSupervisor,  // The host answers, but its supervisor has exited.
};

struct HostSessionOptions {
  std::uint32_t host = 0;
  // Never redialled: the end of its connection means that the supervisor has exited.
  bool on_this_host = false;
  std::string job_id;
  std::string token;
  // Not 0: this launcher takes over a running job (proto/wire/session.h). The first link
  // reattaches, and the first event is TakenOver.
  std::uint32_t takeover = 0;
  std::uint64_t window_bytes = 0;  // Output bytes that may be in transit from this host.
  // Silence after which the host is lost. Empty: default_lease() of the first link's transport.
  std::optional<std::chrono::milliseconds> lease;
  bool is_attended = false;  // A user watches the job at a terminal, so the usual lease is shorter.
  MakeHostLink make_link;
  Heartbeat* heartbeat = nullptr;  // Notified when the loop runs. Null in tests.
};

// How long a host has been silent or without a connection, and why, as far as is known.
struct HostAbsence {
  std::int64_t ns = 0;
  RemoteText why;                      // The error of the last failed dial; may be empty.
  std::chrono::milliseconds limit{0};  // The host is lost after this time; 0: never.
};

// Receives the events of the sessions, which are numbered by HostSessionOptions::host. Implemented
// by class Job, and by tests.
class HostSessionEvents {
 public:
  // The first link is up. Called once.
  virtual void host_up(std::size_t host, const LinkUp& up) = 0;
  // Events and output of the supervisor, in order.
  virtual void host_event(std::size_t host, const Event& event) = 0;
  virtual void host_output(std::size_t host, const session::OutputChunk& chunk) = 0;
  // The host could not be reached, or its supervisor never answered. The last event of the session.
  virtual void host_failed(std::size_t host, const LinkDown& down) = 0;
  // The host was lost after its first link was up. The last event of the session.
  virtual void host_lost(std::size_t host, HostLoss loss, const RemoteText& why) = 0;
  // The present step of a dial.
  virtual void host_progress(std::size_t host, const LinkStep& step) = 0;
  // input_window() may have grown.
  virtual void host_input_window(std::size_t host) = 0;
  // A heartbeat: the host runs, though a task there may be overdue.
  virtual void host_alive(std::size_t host, const session::Alive& alive) = 0;

 protected:
  ~HostSessionEvents() = default;
};

class HostSession final : private ActiveLinkEvents {
 public:
  HostSession(boost::asio::io_context& loop, HostSessionOptions options, HostSessionEvents& events);
  HostSession(const HostSession&) = delete;
  HostSession& operator=(const HostSession&) = delete;

  // Dials the first link.
  void open();
  void send(const Command& command);
  // Gives the host credit for output bytes that were written or dropped.
  void grant(std::uint64_t bytes);
  // Bytes of standard input that the host will take now.
  std::uint64_t input_window() const { return session_.flow_room(); }
  void send_input(std::string bytes);  // Empty bytes mean the end of the input.
  // Call after telling the host to forget the job: the end of its connection is expected now. Calls
  // on_ended then, or immediately if no link is up; no event follows.
  void expect_end(std::function<void()> on_ended);
  // Call before this process is suspended: tells the host so, in the last message until resume(). A
  // host that is being redialled gets it when it is connected again.
  void pause();
  // True if this process may be suspended: the message has left, or there is no connection for it.
  bool has_paused() const;
  void resume();
  // Sends a heartbeat frame, unless the host must not hear from the launcher now (pause(),
  // expect_end()). Thread: any.
  void send_alive(std::string_view frame) { links_.send_alive(frame); }
  // Time of the last bytes from the host, on the launcher's clock.
  std::int64_t last_received_ns() const { return silence_.last_received_ns(); }
  // The host's lease; 0 before the first link was up.
  std::chrono::milliseconds lease() const { return silence_.lease(); }
  // After host_lost(HostLoss::kHost): the time, on the launcher's clock, at which the host's
  // supervisor gives this launcher up and starts to stop its workers. Assumes that both sides have
  // seen the link break at about the same time; a host that sees it later waits longer.
  std::int64_t given_up_ns() const { return given_up_ns_; }
  HostAbsence absence();
  // Closes the session without waiting. No event follows.
  void close();
  bool is_open() const { return state_ == State::kUp || state_ == State::kRedialing; }
  // Converts a time of the host's clock.
  RelatedTime relate(std::uint64_t host_ns);
  // Converts a time of the launcher's clock to the host's.
  std::int64_t host_time(std::int64_t at_ns) const;

 private:
  // kRedialing: the link broke. kEnding: after expect_end(). kOver: closed.
  enum class State { kDialing, kUp, kRedialing, kEnding, kOver };

  void dial();
  void active_link_up(const LinkUp& up) override;
  void active_link_bytes(std::string_view bytes) override;
  void active_link_drained() override { pump(); }
  void active_link_broken(const LinkDown& down) override;
  void dial_failed(const LinkDown& down) override;
  void dial_progress(const LinkStep& step) override { events_.host_progress(options_.host, step); }
  void dial_stuck(const std::string& what) override;
  void on_frame(const session::Frame& frame);
  void on_attached(const session::Frame& frame);
  void redial_failed(const LinkDown& down);
  void tick();
  void schedule_tick();
  void pump();
  void queue_pause();
  void fail(const LinkDown& down);
  void lose(HostLoss loss, const RemoteText& message);

  boost::asio::io_context& loop_;
  const HostSessionOptions options_;
  HostSessionEvents& events_;
  State state_ = State::kDialing;
  session::Session session_;
  HostLinks links_;            // The links under this session.
  bool pausing_ = false;       // Pause was queued, or will be when the host is connected again...
  bool paused_ = false;        // ...and was sent: any later frame would revoke it.
  bool was_up_ = false;        // A link has been up.
  bool was_attached_ = false;  // The supervisor has answered at least once.
  int early_losses_ = 0;       // Links that broke before its first answer.
  HostSilence silence_;
  std::int64_t link_lost_ns_ = 0;
  std::int64_t given_up_ns_ = 0;
  RemoteText last_failure_;  // The error of the last failed dial or broken link.
  bool is_refused_ = false;  // The last redial was refused: the host is up, but no process listens.
  bool was_stuck_ = false;   // dial_stuck() was called during this redial.
  std::function<void()> on_ended_;  // Set by expect_end().
  boost::asio::steady_timer tick_timer_;
  boost::asio::steady_timer redial_timer_;
  HostClock clock_;
  std::int64_t attach_sent_ns_ = 0;
  // Expires if an event destroys this object.
  std::shared_ptr<void> alive_ = std::make_shared<int>(0);
};

}  // namespace ivy
