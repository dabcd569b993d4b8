// A job of --nnodes MIN:MAX and the hosts that it does without: the fifth part of class Job.
//
//   a host is gone -> its workers' group ends as after a failure -> a new plan without it -> where
//   it was the first one: the store on the new first host, and every host tests its address ->
//   the next generation
//
// A lost host does not come back: its session is closed, its supervisor ends its workers when the
// lease is over, and the store has begun another generation by then.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "launcher/job/job.h"
#include "launcher/screen/control_filter.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/log.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// Margin for the kill loop and for two clocks that are polled every 250 ms.
constexpr milliseconds kLeaseMargin{1'000};

bool is_before_start(JobState state) {
  return state == JobState::kConnecting || state == JobState::kChecking;
}

}  // namespace

std::size_t Job::least_members() const {
  return may_shrink() ? static_cast<std::size_t>(*options_.min_nodes) : hosts_.size();
}

std::vector<Member> Job::members() const {
  std::vector<Member> all;
  for (const HostRecord& host : hosts_)
    all.push_back(host.gone || host.failure || host.lost ? Member::kGone
                  : host.facts                           ? Member::kHere
                                                         : Member::kAwaited);
  return all;
}

std::string Job::range_text() const {
  return "--nnodes " + std::to_string(*options_.min_nodes) + ":" +
         std::to_string(*options_.num_nodes);
}

std::string Job::members_text() const {
  std::vector<GoneMember> gone;
  for (const HostRecord& host : hosts_)
    if (host.gone) gone.push_back(*host.gone);
  const std::vector<Member> all = members();
  const auto here = std::count(all.begin(), all.end(), Member::kHere);
  return members_line(static_cast<std::size_t>(here), all.size(), range_text(), gone);
}

// The options for the next plan: without --master-addr once the first host is gone, and without
// chosen ranks on a restart.
Options Job::planning_options() const {
  Options options = options_;
  options.master_addresses = master_addresses_;
  options.master_addr_error = master_addr_error_;
  if (!may_shrink()) return options;
  if (hosts_.front().gone) options.master_addr.clear();
  if (state_ == JobState::kRestarting) options.show_ranks = ShowRanks{};
  return options;
}

int Job::max_attempts() const {
  return 1 + restarts_.max_restarts() + static_cast<int>(may_be_lost_);
}

// A supervisor may then leave with its own workers; the first host's store is still needed by
// others.
bool Job::is_last_attempt() const {
  return static_cast<int>(generation_) + 1 >= max_attempts() && plan_.hosts.size() == 1;
}

void Job::open_store() {
  const std::size_t first_index = plan_.hosts.front().host_index;
  if (plan_.store_port == 0 || store_host_ == first_index) return;
  const std::uint32_t generation = generation_ + (state_ == JobState::kRestarting ? 1 : 0);
  Command command;
  OpenStore& open = *command.mutable_open_store();
  open.add_addresses(plan_.master_address);
  // On its own host it is also found by a script that says localhost.
  if (plan_.hosts.size() > 1 && plan_.master_address != "127.0.0.1")
    open.add_addresses("127.0.0.1");
  std::set<std::string> peers;
  std::vector<std::vector<std::string>> own(hosts_.size());
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    const HostRecord& host = hosts_[i];
    if (host.plan_index < 0 || plan_.hosts.size() < 2) continue;
    if (host.up && !host.up->peer_address.empty()) peers.insert(host.up->peer_address);
    for (const Address& address : host.facts->addresses())
      if (!address.loopback()) own[i].push_back(address.address());
  }
  for (std::string& peer : peer_addresses(own, first_index)) peers.insert(std::move(peer));
  for (const std::string& peer : peers) open.add_torch_peers(peer);
  // The world size if every host had as many workers as the host with the most.
  std::size_t most_workers = 0;
  for (const PlannedHost& host : plan_.hosts)
    most_workers = std::max(most_workers, host.workers.size());
  open.set_world_size(static_cast<std::uint32_t>(most_workers * hosts_.size()));
  open.set_stall_seconds(static_cast<std::uint32_t>(options_.stall_timeout.count()));
  if (!options_.wal.empty()) {
    const bool is_absolute = options_.wal.starts_with('/');
    open.set_wal_directory(is_absolute ? options_.wal
                                       : options_.working_directory + "/" + options_.wal);
  }
  open.set_generation(generation);
  store_host_ = first_index;
  store_generation_ = generation;
  HostRecord& first = hosts_[first_index];
  first.opens_store = true;
  first.session->send(command);
}

// True if the job can do without this host, which has just gone: the others that are here or may
// still come suffice.
bool Job::host_is_dispensable(std::size_t index) {
  if (!may_shrink() || launcher_end_.reason != LauncherReason::kNone) return false;
  std::vector<Member> all = members();
  all[index] = Member::kGone;
  return decide_members(all, least_members(), false) != MemberDecision::kTooFew;
}

void Job::let_go(std::size_t index, const std::string& step, const RemoteText& reason) {
  HostRecord& host = hosts_[index];
  host.gone = GoneMember{host.name, step, reason};
  host.lost = true;
  host.opens_store = false;
  // A supervisor that lives sees the end of its carrier, and ends.
  host.session->close();
}

void Job::start_time_is_up() {
  const bool is_connecting = state_ == JobState::kConnecting;
  std::vector<Member> all = members();
  const auto is_late = [&](const HostRecord& host) {
    return !host.gone && (is_connecting ? !host.facts : !host.checked || host.opens_store);
  };
  for (std::size_t index = 0; index < hosts_.size(); ++index)
    if (is_late(hosts_[index])) all[index] = Member::kGone;
  const bool suffices =
      may_shrink() && decide_members(all, least_members(), true) == MemberDecision::kGoOn;
  if (!suffices) return hosts_did_not_come_up("in time");
  const std::string limit = " in --start-timeout";
  for (std::size_t index = 0; index < hosts_.size(); ++index) {
    HostRecord& host = hosts_[index];
    if (!is_late(host)) continue;
    const RemoteText doing = host.up ? RemoteText("waiting for its answer") : host.doing;
    let_go(index, "",
           (is_connecting ? "still at: " + doing : RemoteText("did not check its way")) + limit);
  }
  if (is_connecting) return check_greeted();
  apply(JobEvent::kMemberLost);
}

bool Job::lose_member(std::size_t index, const LauncherEnd& end, const std::string& cause) {
  if (!may_shrink() || state_ == JobState::kKilling || state_ == JobState::kDone) return false;
  HostRecord& host = hosts_[index];
  host.gone = GoneMember{host.name, "", end.diagnostic.cause};
  host.lost = true;
  host.opens_store = false;
  if (!host_is_dispensable(index)) return false;
  host.session->close();
  if (is_before_start(state_)) {
    boost::asio::post(loop_, [this] {
      if (state_ == JobState::kConnecting) return check_greeted();
      apply(JobEvent::kMemberLost);
    });
    return true;
  }
  const bool all_ended_well =
      state_ == JobState::kConfirming &&
      std::all_of(workers_.begin(), workers_.end(),
                  [](const WorkerRecord& worker) { return worker.end.status.success(); });
  if (all_ended_well) {
    // The work is done; only the proof is missing that nothing else is left there.
    unclean_.push_back(cause + ", after its workers had ended; what they have started may live on");
    boost::asio::post(loop_, [this] { check_reported(); });
    return true;
  }
  lost_members_.push_back({index, end, cause});
  output_->say("ivyrun: " + cause + "\n");
  // A host may be found lost while something is sent to all of them.
  boost::asio::post(loop_, [this] {
    apply(JobEvent::kMemberLost);
    check_reported();
  });
  return true;
}

bool Job::cannot_reach(std::size_t index, const RemoteText& error) {
  const bool is_first = index == plan_.hosts.front().host_index;
  if (is_first || !host_is_dispensable(index)) return false;
  let_go(index, "reaching " + plan_.hosts.front().name + " at " + plan_.master_address, error);
  boost::asio::post(loop_, [this] { apply(JobEvent::kMemberLost); });
  return true;
}

// The workers of a host that fell silent live until its lease and their grace are over: what they
// write to shared files must not meet the next attempt's.
milliseconds Job::pause_for_lost(milliseconds pause) const {
  for (const LostMember& lost : lost_members_) {
    if (lost.end.reason != LauncherReason::kHostLost) continue;
    const std::int64_t silent_ns = monotonic_ns() - hosts_[lost.host].session->last_heard_ns();
    const milliseconds silent(silent_ns / 1'000'000);
    pause = std::max(pause, lease() + grace(kGraceAfterFailure) + kLeaseMargin - silent);
  }
  return pause;
}

// Why the hosts that are left cannot run the group again, or empty.
std::string Job::missing_for_restart() const {
  if (may_shrink()) {
    const bool suffices = decide_members(members(), least_members(), true) == MemberDecision::kGoOn;
    return suffices ? "" : members_text() + ": less than are needed";
  }
  for (const HostRecord& host : hosts_)
    if (host.plan_index >= 0 && host.lost) return "host " + host.name + " is gone";
  return "";
}

bool Job::plan_again() {
  const std::size_t first_before = plan_.hosts.front().host_index;
  const JobPlan before = plan_;
  if (!make_the_plan()) return false;
  plan_is_new_ = true;
  output_->say("ivyrun: going on with " + members_text() + "\n");
  if (!options_.quiet) output_->say("ivyrun: " + plan_line(plan_) + "\n");
  if (plan_.hosts.front().host_index == first_before) {
    plan_.master_address = before.master_address;
    plan_.master_port = before.master_port;
    plan_.coordinator_port = before.coordinator_port;
    plan_.store_port = before.store_port;
    return true;
  }
  open_store();
  ask_for_checks();
  return true;
}

// The hosts have proved that no worker is left that could still write to the store. No worker may
// start before it has forgotten what the last ones wrote.
void Job::begin_store() {
  const std::size_t first = plan_.hosts.front().host_index;
  if (store_host_ == first && store_generation_ == generation_ + 1) return;
  store_host_ = first;
  store_generation_ = generation_ + 1;
  store_begins_ = true;
  Command command;
  command.mutable_begin_generation()->set_generation(generation_ + 1);
  hosts_[first].session->send(command);
}

void Job::start_new_plan() {
  const std::vector<HostAnswer> all = answers();
  const Result<EnvironmentInputs> inputs = environment_inputs(all);
  if (!inputs.ok()) return refuse_input(inputs.error());
  std::vector<Command> commands;
  for (const PlannedHost& planned : plan_.hosts) {
    Result<HostPlan> plan = make_host_plan(*inputs, planned);
    if (!plan.ok()) return refuse_input(plan.error());
    Command& command = commands.emplace_back(start_again());
    *command.mutable_start_again()->mutable_plan() = std::move(plan).value();
  }
  for (std::size_t index = 0; index < commands.size(); ++index)
    hosts_[plan_.hosts[index].host_index].session->send(commands[index]);
}

// The job ends, and not because of these: what is not known about them has to be said.
void Job::lose_what_is_left() {
  for (const LostMember& lost : std::exchange(lost_members_, {}))
    unclean_.push_back(lost.cause + "; nobody knows whether its workers have ended");
}

}  // namespace ivy
