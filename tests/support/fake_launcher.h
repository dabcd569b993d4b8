// SPDX-License-Identifier: Apache-2.0
// A launcher for tests: starts a real ivy-node, runs the session with it over a socketpair, grants
// credit as the test decides, and records everything that it receives. Thread: the test's.
// Lifetime: the destructor fails the test if anything that it started still exists.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/node/supervisor/supervisor.h"
#include "proto/wire/job.pb.h"
#include "proto/wire/session.h"

namespace ivy::test {

// Rank and stream (1 standard output, 2 standard error).
using StreamKey = std::pair<std::uint32_t, int>;

class FakeLauncher {
 public:
  // The process between this launcher and the supervisor.
  enum class Way {
    kDirect,  // node_pid() is the warden; the supervisor has our socket's other end.
    kRelay,   // node_pid() is a relay, whose standard input and output are our socket's other end.
  };
  struct Options {
    Way way = Way::kDirect;
    LinkPeer peer = LinkPeer::kLauncher;
    std::uint64_t window_bytes = 1u << 20;
    std::uint32_t lease_ms = 60'000;
    std::uint32_t grace_ms = 1'000;
    std::string build = {};  // If empty, the supervisor's.
  };

  // Starts ivy-node and attaches.
  explicit FakeLauncher(const Options& options);
  FakeLauncher() : FakeLauncher(Options{}) {}
  // Kills remaining processes, and fails the test if a process or the directory of the job remains.
  ~FakeLauncher();
  FakeLauncher(const FakeLauncher&) = delete;
  FakeLauncher& operator=(const FakeLauncher&) = delete;

  // ---- commands ----
  void send(const Command& command);
  // Returns a Hello for /bin/sh in "/", which the caller may change before sending it.
  Hello hello() const;
  // Sends the Hello and waits for the answer.
  HostFacts send_hello(const Hello& hello);
  HostFacts send_hello() { return send_hello(hello()); }
  // Returns a plan of `count` workers, with ranks from 0, that run /bin/sh -c SCRIPT; $RANK is the
  // rank.
  HostPlan shell_plan(int count, const std::string& script) const;
  void start(const HostPlan& plan);
  void stop(std::uint32_t grace_ms);
  void send_signal(int signal, std::initializer_list<std::uint32_t> ranks = {});
  void send_input(std::string bytes);
  void finish();

  // ---- link ----
  // Closes our end, so that the supervisor sees a hang-up.
  void hang_up();
  // Closes only our direction, as a relay does for a launcher that has exited.
  void half_close();
  // Connects through the command socket, like a relay for a launcher that redials.
  void reattach();
  // Returns a second descriptor of our end, which keeps the link open; the caller must close
  // it.
  int copy_of_link() const;
  // Stops heartbeats; bytes are still read.
  void stop_responding() { is_silent_ = true; }
  void resume_sending() { is_silent_ = false; }
  // Stops reading, and thereby acknowledging.
  void stop_reading() { is_reading_ = false; }
  void read_again() { is_reading_ = true; }
  // Stops reading and granting credit until resume_granting().
  void stop_granting() { is_granting_ = false; }
  void resume_granting();
  // From now on counts and grants output without keeping it.
  void keep_no_output() { is_keeping_output_ = false; }

  // ---- received events ----
  // Serves the link until the condition holds. Returns false on a timeout.
  bool wait(const std::function<bool()>& condition,
            std::chrono::milliseconds deadline = std::chrono::seconds(10));
  // Serves the link for a while.
  void serve(std::chrono::milliseconds duration);
  // Waits for ivy-node to exit. Returns its exit code, or std::nullopt on a timeout.
  std::optional<int> wait_for_node(std::chrono::milliseconds deadline = std::chrono::seconds(10));
  bool link_ended() const { return fd_ < 0; }

  const std::vector<Event>& events() const { return events_; }
  const Exited* exited(std::uint32_t rank) const;
  const Started* started(std::uint32_t rank) const;
  const StartFailed* start_failed(std::uint32_t rank) const;
  const Report* report() const;
  std::size_t exits() const;
  std::string output(std::uint32_t rank, int stream = 1) const;
  bool output_ended(std::uint32_t rank, int stream = 1) const;
  std::uint64_t output_bytes() const { return output_bytes_; }
  // Returns true if the supervisor has acknowledged every command and every byte of input.
  bool everything_acknowledged() const { return session_.all_acknowledged(); }
  // The text of a rejected Attach.
  const std::string& rejection() const { return rejection_; }

  const std::string& job_id() const { return job_id_; }
  const std::string& token() const { return token_; }
  pid_t node_pid() const { return node_pid_; }
  // Returns the supervisor, found by its parent.
  pid_t supervisor_pid() const;
  // Returns the state letter in /proc/PID/stat of a started worker; empty if it has exited.
  std::string worker_state(std::uint32_t rank) const;
  // Returns the running processes with the job's id in their environment.
  std::vector<pid_t> job_processes() const;

 private:
  void spawn_node(int link_fd);
  void attach(int fd);
  void serve_once(std::chrono::milliseconds longest);
  void read_some();
  void write_some();
  void take(const session::Frame& frame);
  void drop_link();

  const Options options_;
  std::string job_id_;
  std::string token_;
  session::Session session_;
  int fd_ = -1;
  pid_t node_pid_ = -1;
  std::string out_;
  std::chrono::steady_clock::time_point next_heartbeat_;
  bool is_silent_ = false;
  bool is_reading_ = true;
  bool is_granting_ = true;
  bool is_keeping_output_ = true;
  std::uint64_t ungranted_bytes_ = 0;
  std::uint64_t output_bytes_ = 0;
  std::vector<Event> events_;
  std::uint32_t generation_ = 0;  // The generation of the last output.
  std::map<StreamKey, std::string> output_;
  std::set<StreamKey> ended_;
  std::string rejection_;
};

}  // namespace ivy::test
