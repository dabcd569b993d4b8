// SPDX-License-Identifier: Apache-2.0
// The session with one host's supervisor, over whichever link is up: opens the first link, redials
// a broken one, replays the frames that the peer did not get, and reports when the host is lost.
//
// Thread: the loop's, but for send_alive(). Lifetime: it may be destroyed inside an event
// of its own.
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

#include "launcher/job/host_clock.h"
#include "launcher/job/host_transports.h"
#include "proto/os/heartbeat.h"
#include "proto/wire/job.pb.h"
#include "proto/wire/link.h"

namespace ivy {

enum class HostLoss {
  kHost,        // Silence beyond the lease, or no answer to redials.
  kSupervisor,  // The host answers, but its supervisor has exited.
};

struct HostSessionOptions {
  std::uint32_t host = 0;
  bool on_this_host = false;  // No redial: its end of file is final.
  std::string job_id;
  std::string token;
  // Not 0: the job runs already and this launcher takes it over (proto/wire/link.h); the first link
  // reattaches, and the first event is TakenOver.
  std::uint32_t takeover = 0;
  std::uint64_t window_bytes = 0;  // Output bytes that may be under way from this host.
  // Silence beyond it is a loss. Empty: usual_lease() of the first link's transport.
  std::optional<std::chrono::milliseconds> lease;
  bool is_attended = false;  // A user sits at the terminal.
  MakeHostLink make_link;
  Heartbeat* heartbeat = nullptr;  // Notified when the loop runs. Null in tests.
};

// How long a host has been silent, or without a connection, and why as far as is known.
struct HostAbsence {
  std::int64_t ns = 0;
  RemoteText why;                      // The last failed dial; may be empty.
  std::chrono::milliseconds limit{0};  // Given up after this time; 0: never.
};

// The owner of the sessions, which are numbered as HostSessionOptions::host says. Class Job, and
// tests.
class HostSessionEvents {
 public:
  // Once: the first link is up.
  virtual void host_up(std::size_t host, const LinkUp& up) = 0;
  virtual void host_event(std::size_t host, const Event& event) = 0;
  virtual void host_output(std::size_t host, const link::OutputChunk& chunk) = 0;
  // It never came up. Final.
  virtual void host_failed(std::size_t host, const LinkDown& down) = 0;
  // It was up before. Final.
  virtual void host_lost(std::size_t host, HostLoss loss, const RemoteText& why) = 0;
  // The present step on the way to the host.
  virtual void host_progress(std::size_t host, const RemoteText& step) = 0;
  // input_room() may have grown.
  virtual void host_input_room(std::size_t host) = 0;
  // The host runs, though something may hang there.
  virtual void host_alive(std::size_t host, const link::Alive& alive) = 0;

 protected:
  ~HostSessionEvents() = default;
};

class HostSession final : private HostTransportEvents {
 public:
  HostSession(boost::asio::io_context& loop, HostSessionOptions options, HostSessionEvents& events);
  HostSession(const HostSession&) = delete;
  HostSession& operator=(const HostSession&) = delete;

  void open();
  void send(const Command& command);
  // Output bytes that have been disposed of: the host may send as many more.
  void grant(std::uint64_t bytes);
  // Bytes of standard input that the host will take now.
  std::uint64_t input_room() const { return session_.flow_room(); }
  void send_input(std::string bytes);  // Empty bytes are the end of the input.
  // Call after telling the host to forget the job: its end of file is expected now. Calls `over`
  // then (immediately if no link is up), and sends no more events.
  void expect_end(std::function<void()> over);
  // Call before we are suspended: tells the host so, as our last message until resume(). A host
  // that is being redialled receives it when it is connected again.
  void pause();
  // True once we may be suspended: the message has left, or no connection could carry it.
  bool has_paused() const;
  void resume();
  // Passes on a heartbeat of another thread than the loop's, unless the host must not hear us now.
  // Thread: any.
  void send_alive(std::string_view frame) { transports_.send_alive(frame); }
  // When the host was last heard, on our clock.
  std::int64_t last_heard_ns() const { return silence_.last_heard_ns(); }
  // The lease that the host was given; 0: no link was up yet.
  std::chrono::milliseconds lease() const { return silence_.lease(); }
  HostAbsence absence();
  // Closes the session without waiting; no event follows.
  void close();
  bool is_open() const { return state_ == State::kUp || state_ == State::kRedialing; }
  RelatedTime relate(std::uint64_t host_ns);

 private:
  enum class State { kDialing, kUp, kRedialing, kEnding, kOver };

  void dial();
  void transport_up(const LinkUp& up) override;
  void transport_bytes(std::string_view bytes) override;
  void transport_drained() override { pump(); }
  void transport_broken(const LinkDown& down) override;
  void dial_failed(const LinkDown& down) override;
  void dial_progress(const RemoteText& step) override {
    events_.host_progress(options_.host, step);
  }
  void dial_stuck(const std::string& what) override;
  void on_frame(const link::Frame& frame);
  void on_attached(const link::Frame& frame);
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
  link::Session session_;
  HostTransports transports_;
  bool pausing_ = false;  // Pause is queued, or will be when the host is there again...
  bool paused_ = false;   // ...and has left: any later frame would take it back.
  bool was_up_ = false;
  bool was_attached_ = false;  // Its supervisor has answered at least once.
  int early_losses_ = 0;       // Links that were up and broke before it had.
  HostSilence silence_;
  std::int64_t transport_lost_ns_ = 0;
  RemoteText last_failure_;
  bool is_refused_ = false;  // The last redial reached the host, where nothing listens now.
  bool was_stuck_ = false;   // During this redial; has been reported.
  std::function<void()> over_;
  boost::asio::steady_timer tick_timer_;
  boost::asio::steady_timer redial_timer_;
  HostClock clock_;
  std::int64_t attach_sent_ns_ = 0;
  std::shared_ptr<void> alive_ = std::make_shared<int>(0);  // Expires if an event destroys us.
};

}  // namespace ivy
