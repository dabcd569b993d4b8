// SPDX-License-Identifier: Apache-2.0
// The hosts of a job: a record of each, which of them take part (membership.h) and with which node
// rank (node_ranks.h), and sending to them. Thread: the loop's, with a heartbeat thread next to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/hosts/host_session.h"
#include "launcher/job/hosts/membership.h"
#include "launcher/job/hosts/node_ranks.h"
#include "launcher/options/options.h"
#include "launcher/plan/job_plan.h"
#include "launcher/screen/summary.h"
#include "proto/contract/limits.h"
#include "proto/os/heartbeat.h"

namespace ivy {

// Returns a distinct name for each host, in their order: the name as typed; "user@name" if hosts
// share a name; "user@name:port=22" if they share both.
std::vector<std::string> display_names(const std::vector<Host>& hosts);

// The wait of a host whose heartbeats report an overdue task.
struct HostWait {
  RemoteText what;            // "the file system of /home"; empty: nothing.
  std::int64_t since_ns = 0;  // On the launcher's clock.
  // Length of the wait in the last message to the user; 0: not reported yet.
  std::int64_t reported_ns = 0;
};

// Everything that is known of a host. `lost`: it, or its supervisor, is unreachable. `excluded`:
// the job continues without it (--nnodes MIN:MAX, --spares).
struct HostRecord {
  const Host* host = nullptr;  // Points into Options::hosts, which outlives the job.
  std::string display_name;    // From display_names().
  bool on_this_host = false;   // Reached over the local transport.
  std::unique_ptr<HostSession> session;
  LinkStep doing;  // The present step of the dial.
  HostWait wait;
  // Length of the silence in the last message to the user; 0: not reported.
  std::int64_t absence_reported_ns = 0;
  std::optional<LinkUp> up;                    // Set when its first link is up.
  std::optional<HostFacts> facts;              // Its answer to Hello.
  std::optional<HostEnvironment> environment;  // --stage-venv
  std::optional<LinkDown> failure;             // Why it never came up.
  RelatedTime clock;                           // --doctor: its clock minus the launcher's.
  bool checked = false;                        // It can connect to the first host, or need not.
  bool opens_store = false;              // It is the first host, and has not answered OpenStore.
  std::string interface;                 // The network interface towards the first host.
  bool reported = false;                 // It has reported that nothing of this generation is left.
  bool lost = false;                     // It, or its supervisor, was lost, or never came up.
  std::optional<ExcludedHost> excluded;  // Set if it takes no part any longer.
  // It has no workers, and its supervisor waits for a Start: it may replace a lost host.
  bool is_spare = false;
  bool was_started = false;  // It has got a Start, so that only StartAgain can follow.
  // --grow: it is being dialled again, and has not answered Hello. It is excluded until then.
  bool is_returning = false;
  int plan_index = -1;  // Its index in JobPlan::hosts; -1: no workers there.

  const std::string& name() const { return display_name; }
  bool is_planned() const { return plan_index >= 0; }
  bool is_ready() const { return checked && !opens_store; }
};

class JobHosts {
 public:
  // may_lose: with --nnodes MIN:MAX the job may continue with fewer hosts, and with --spares with
  // others. options outlives this object.
  JobHosts(const Options& options, bool may_lose);

  auto begin() { return records_.begin(); }
  auto end() { return records_.end(); }
  auto begin() const { return records_.begin(); }
  auto end() const { return records_.end(); }
  std::size_t size() const { return records_.size(); }
  HostRecord& operator[](std::size_t index) { return records_[index]; }
  const HostRecord& operator[](std::size_t index) const { return records_[index]; }

  // False only in a takeover before its files are open.
  bool have_sessions() const { return records_.front().session != nullptr; }
  // Returns false if the host has no open session.
  bool send(std::size_t index, const Command& command);
  // Sends to every host on which the plan places workers.
  void send_to_planned(const Command& command);
  // Returns the output bytes that may be in transit from one host.
  std::uint64_t window_bytes() const;
  // Gives each host credit for another window, because the output of the last one will not be read.
  void grant_window();
  void close_sessions();
  // Sends heartbeats to the hosts while the loop is stuck. Its thread starts when all sessions
  // exist.
  Heartbeat& heartbeat() { return heartbeat_; }

  // Sets plan_index of each host, and keeps the node ranks of the plan.
  void take_plan(const JobPlan& plan);
  // Every host on which the plan places workers can connect to the first one, whose store listens.
  bool are_ready() const;
  // The same for every spare.
  bool have_ready_spares() const;
  // The plan places workers on a host that was excluded since.
  bool plan_is_outdated() const;
  // All hosts have reported or are lost, except for spares.
  bool all_reported() const;
  // Returns the hosts' answers to Hello. An excluded host has only a name.
  std::vector<HostAnswer> answers() const;

  // The hosts by node rank, and how the plan sees them: `hosts` of the options, and the answers.
  const NodeRanks& node_ranks() const { return node_ranks_; }
  std::vector<Host> node_hosts() const;
  std::vector<HostAnswer> node_answers() const;
  // Gives the node ranks of hosts that take no part to spares.
  std::vector<HostReplacement> replace_lost_hosts();
  // The job has spares, though all of them may be in use.
  bool has_spares() const { return has_spares_; }
  // Returns the names of the spares that are left.
  std::vector<std::string> spare_names() const;

  // --nnodes MIN:MAX
  bool may_shrink() const { return may_shrink_; }
  // The job may continue when a host is lost: --nnodes MIN:MAX, --spares.
  bool may_lose_hosts() const { return may_shrink_ || has_spares_; }
  // --grow: hosts take part again that were lost or came too late.
  bool may_grow() const { return may_grow_; }
  // The next plan could place workers on a host that has none.
  bool has_more_hosts() const;
  // Gives a host that is excluded a new session, to be opened.
  void renew_session(std::size_t index, std::unique_ptr<HostSession> session);
  // A host that was excluded has answered, and takes part in the next plan.
  void rejoin(std::size_t index);
  // The number of hosts with which the job can run.
  std::size_t min_members() const;
  std::vector<Member> members() const;
  // Return "--nnodes 2:4", and "2 of 4 hosts (--nnodes 2:4), without node03 (...)".
  std::string range_text() const;
  std::string members_text() const;
  // Returns why the job cannot continue without another host.
  std::string too_few_text() const;
  std::vector<LeftOutHost> left_out() const;
  // True if the job can continue without this host: enough others take part, or may still come up.
  bool can_do_without(std::size_t index) const;
  // The job continues without this host. Sets the name of `why`.
  void exclude(std::size_t index, ExcludedHost why);

 private:
  void beat(std::chrono::nanoseconds loop_silent);
  std::vector<HostStanding> standings() const;

  const Options& options_;
  const bool may_shrink_;
  const bool has_spares_;
  const bool may_grow_;
  std::vector<HostRecord> records_;
  std::mutex sessions_mutex_;  // Guards the sessions against the heartbeat's thread.
  NodeRanks node_ranks_;
  Heartbeat heartbeat_{kLauncherTick, [this](std::chrono::nanoseconds silent) { beat(silent); }};
};

}  // namespace ivy
