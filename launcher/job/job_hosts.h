// SPDX-License-Identifier: Apache-2.0
// A job's hosts: a record of each, which of them take part, and sending to them.
// Thread: the loop's; a heartbeat's thread runs beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/host_session.h"
#include "launcher/job/membership.h"
#include "launcher/options/options.h"
#include "launcher/plan/job_plan.h"
#include "proto/contract/limits.h"
#include "proto/os/heartbeat.h"

namespace ivy {

// The names that tell these hosts apart, in their order: as typed, or "user@name" where hosts share
// a name, or "user@name:port=22" where they share both.
std::vector<std::string> names_shown(const std::vector<Host>& hosts);

// Set while a host's heartbeats say that something there is overdue.
struct HostWait {
  RemoteText what;               // "the file system of /home"; empty: the host waits for nothing.
  std::int64_t since_ns = 0;     // On our clock.
  std::int64_t reported_ns = 0;  // Length of the wait in the last report; 0: not reported yet.
};

struct HostRecord {
  const Host* host = nullptr;  // Points into Options::hosts, which outlives the job.
  std::string shown_name;      // Unique in the job.
  bool on_this_host = false;
  std::unique_ptr<HostSession> session;
  RemoteText doing;  // The present step on the way to it.
  HostWait wait;
  std::int64_t absence_reported_ns = 0;  // Its length in the last report; 0: not reported.
  std::optional<LinkUp> up;
  std::optional<HostFacts> facts;
  std::optional<LinkDown> failure;  // The reason why it never came up.
  RelatedTime clock;                // --doctor: its clock minus ours.
  bool checked = false;
  bool opens_store = false;  // Host 0, between OpenStore and its answer.
  std::string interface;
  bool reported = false;  // Its report of this generation has arrived.
  bool lost = false;
  std::optional<GoneMember> gone;  // --nnodes MIN:MAX: the reason why it takes no part.
  int plan_index = -1;             // In JobPlan::hosts; -1: no workers there.

  const std::string& name() const { return shown_name; }
  bool is_planned() const { return plan_index >= 0; }
  bool is_ready() const { return checked && !opens_store; }
};

class JobHosts {
 public:
  // may_shrink: a job of --nnodes MIN:MAX, which may continue with fewer hosts. options outlives
  // it.
  JobHosts(const Options& options, bool may_shrink);

  auto begin() { return records_.begin(); }
  auto end() { return records_.end(); }
  auto begin() const { return records_.begin(); }
  auto end() const { return records_.end(); }
  std::size_t size() const { return records_.size(); }
  HostRecord& operator[](std::size_t index) { return records_[index]; }
  const HostRecord& operator[](std::size_t index) const { return records_[index]; }

  // False only while a launcher that takes the job over opens its files.
  bool have_sessions() const { return records_.front().session != nullptr; }
  // False: the host has no open session.
  bool send(std::size_t index, const Command& command);
  void send_to_planned(const Command& command);
  // Output bytes that may be under way from one host.
  std::uint64_t window_bytes() const;
  // Grants each host another window: the output in the last one will not be read.
  void grant_window();
  void close_sessions();
  // Sends heartbeats to the hosts while the loop hangs. All sessions exist before it first turns.
  Heartbeat& heartbeat() { return heartbeat_; }

  void take_plan(const JobPlan& plan);
  bool all_reported() const;
  // The hosts' answers, for the plan; a host that is gone has only a name.
  std::vector<HostAnswer> answers() const;

  bool may_shrink() const { return may_shrink_; }
  std::size_t least_members() const;
  std::vector<Member> members() const;
  // "--nnodes 2:4"; "2 of 4 hosts (--nnodes 2:4), without node03 (...)"
  std::string range_text() const;
  std::string members_text() const;
  // True if the job can do without this host: the others that are here or may still come suffice.
  bool can_do_without(std::size_t index) const;
  // The job continues without this host.
  void let_go(std::size_t index, const std::string& step, const RemoteText& reason);

 private:
  void beat(std::chrono::nanoseconds loop_silent);

  const Options& options_;
  const bool may_shrink_;
  std::vector<HostRecord> records_;
  Heartbeat heartbeat_{kLauncherTick, [this](std::chrono::nanoseconds silent) { beat(silent); }};
};

}  // namespace ivy
