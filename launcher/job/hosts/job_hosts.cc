// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/hosts/job_hosts.h"

#include <algorithm>
#include <map>
#include <utility>

#include "proto/os/clock.h"

namespace ivy {
namespace {

// Output bytes in transit from all hosts together, and the limits for one host: enough for 200 MB/s
// on a fast network, little enough that 64 hosts fit into the launcher's memory budget.
constexpr std::uint64_t kWindowOfAllHosts = 16u << 20;
constexpr std::uint64_t kMaxWindow = 4u << 20;
constexpr std::uint64_t kMinWindow = 128u << 10;

}  // namespace

std::vector<std::string> display_names(const std::vector<Host>& hosts) {
  const auto with_user = [](const Host& host) {
    return host.user.empty() ? host.name : host.user + "@" + host.name;
  };
  std::map<std::string, int> named;
  std::map<std::string, int> of_user;
  for (const Host& host : hosts) {
    ++named[host.name];
    ++of_user[with_user(host)];
  }
  std::vector<std::string> names;
  for (const Host& host : hosts) {
    std::string& name = names.emplace_back(named[host.name] > 1 ? with_user(host) : host.name);
    if (of_user[with_user(host)] > 1 && host.port != 0)
      name += ":port=" + std::to_string(host.port);
  }
  return names;
}

JobHosts::JobHosts(const Options& options, bool may_lose)
    : options_(options),
      may_shrink_(may_lose && options.min_nodes),
      has_spares_(may_lose && options.spares > 0),
      may_grow_(may_lose && options.grow),
      records_(options.hosts.size()),
      node_ranks_(options.hosts.size() - static_cast<std::size_t>(options.spares)) {
  const std::vector<std::string> names = display_names(options.hosts);
  for (std::size_t index = 0; index < size(); ++index) {
    records_[index].host = &options.hosts[index];
    records_[index].display_name = names[index];
  }
}

bool JobHosts::send(std::size_t index, const Command& command) {
  HostSession* const session = records_[index].session.get();
  if (session == nullptr || !session->is_open()) return false;
  session->send(command);
  return true;
}

void JobHosts::send_to_planned(const Command& command) {
  for (std::size_t index = 0; index < size(); ++index)
    if (records_[index].is_planned()) send(index, command);
}

std::uint64_t JobHosts::window_bytes() const {
  return std::clamp(kWindowOfAllHosts / size(), kMinWindow, kMaxWindow);
}

void JobHosts::grant_window() {
  for (HostRecord& host : records_)
    if (host.session->is_open()) host.session->grant(window_bytes());
}

// Called by the heartbeat thread. While the loop runs, its ticks send heartbeats. A link that would
// have to wait is skipped, so that one host cannot keep the others from hearing the launcher.
void JobHosts::beat(std::chrono::nanoseconds loop_silent) {
  if (loop_silent <= kHeartbeat) return;
  const session::Alive alive{static_cast<std::uint64_t>(loop_silent.count()), 0, ""};
  const std::string frame = session::alive_frame(alive, static_cast<std::uint64_t>(monotonic_ns()));
  const std::lock_guard<std::mutex> lock(sessions_mutex_);
  for (const HostRecord& host : records_) host.session->send_alive(frame);
}

void JobHosts::close_sessions() {
  for (HostRecord& host : records_)
    if (host.session) host.session->close();
}

void JobHosts::take_plan(const JobPlan& plan) {
  for (HostRecord& host : records_) host.plan_index = -1;
  for (std::size_t index = 0; index < plan.hosts.size(); ++index)
    records_[plan.hosts[index].host_index].plan_index = static_cast<int>(index);
  if (!has_spares_ && !may_grow_) return;
  for (HostRecord& host : records_)
    host.is_spare = !host.is_planned() && !host.lost && !host.excluded && !host.was_started;
  std::vector<std::size_t> hosts;
  std::vector<int> workers;
  for (const PlannedHost& host : plan.hosts) {
    hosts.push_back(host.host_index);
    workers.push_back(static_cast<int>(host.workers.size()));
  }
  node_ranks_.set_workers(hosts, workers, standings());
}

bool JobHosts::are_ready() const {
  return std::all_of(begin(), end(),
                     [](const HostRecord& host) { return !host.is_planned() || host.is_ready(); });
}

bool JobHosts::have_ready_spares() const {
  return std::all_of(begin(), end(),
                     [](const HostRecord& host) { return !host.is_spare || host.is_ready(); });
}

bool JobHosts::plan_is_outdated() const {
  return std::any_of(begin(), end(), [](const HostRecord& host) {
    return host.is_planned() && host.excluded.has_value();
  });
}

bool JobHosts::all_reported() const {
  return std::all_of(begin(), end(), [](const HostRecord& host) {
    return host.reported || host.lost || host.is_spare;
  });
}

std::vector<HostAnswer> JobHosts::answers() const {
  std::vector<HostAnswer> all;
  for (const HostRecord& host : records_) {
    HostAnswer& answer = all.emplace_back();
    answer.name = host.name();
    answer.is_present = !host.excluded;
    if (host.excluded) continue;
    answer.transport = host.up->transport;
    answer.peer_address = host.up->peer_address;
    answer.local_address = host.up->local_address;
    answer.facts = *host.facts;
    answer.environment = host.environment;
  }
  return all;
}

std::vector<Host> JobHosts::node_hosts() const {
  std::vector<Host> hosts;
  for (const std::size_t index : node_ranks_.hosts()) hosts.push_back(*records_[index].host);
  return hosts;
}

std::vector<HostAnswer> JobHosts::node_answers() const {
  const std::vector<HostAnswer> all = answers();
  std::vector<HostAnswer> by_node;
  for (const std::size_t index : node_ranks_.hosts()) {
    by_node.push_back(all[index]);
    by_node.back().workers = node_ranks_.workers(by_node.size() - 1);
  }
  return by_node;
}

std::vector<HostStanding> JobHosts::standings() const {
  std::vector<HostStanding> all;
  for (const HostRecord& host : records_) {
    HostStanding& standing = all.emplace_back();
    standing.is_usable = host.facts && !host.excluded && !host.lost;
    if (!host.facts) continue;
    standing.network_switch = host.facts->topology_address();
    if (host.facts->devices_size() > 0) standing.nvlink_domain = host.facts->devices(0).fabric();
  }
  return all;
}

std::vector<HostReplacement> JobHosts::replace_lost_hosts() {
  if (!has_spares_ && !may_grow_) return {};
  const bool is_first = std::none_of(
      begin(), end(), [](const HostRecord& host) { return host.is_planned() || host.was_started; });
  if (is_first && options_.pick == PickChoice::kHealthiest) node_ranks_.choose_usable(standings());
  return node_ranks_.replace_unusable(standings());
}

bool JobHosts::has_more_hosts() const {
  std::size_t planned = 0;
  bool has_spare = false;
  for (const HostRecord& host : records_) {
    planned += host.is_planned() && !host.excluded && !host.lost ? 1 : 0;
    has_spare |= host.is_spare;
  }
  return has_spare && planned < node_ranks_.size();
}

void JobHosts::renew_session(std::size_t index, std::unique_ptr<HostSession> session) {
  HostRecord& host = records_[index];
  {
    const std::lock_guard<std::mutex> lock(sessions_mutex_);
    std::swap(host.session, session);
  }
  host.doing = {};
  host.wait = {};
  host.failure.reset();
  host.absence_reported_ns = 0;
  host.is_returning = true;
}

void JobHosts::rejoin(std::size_t index) {
  HostRecord& host = records_[index];
  host.is_returning = host.lost = host.reported = host.was_started = host.checked = false;
  host.excluded.reset();
  host.plan_index = -1;
  host.is_spare = true;
  node_ranks_.put_last(index);
}

std::vector<std::string> JobHosts::spare_names() const {
  std::vector<std::string> names;
  for (const HostRecord& host : records_)
    if (host.is_spare) names.push_back(host.name());
  return names;
}

std::size_t JobHosts::min_members() const {
  return may_shrink_ ? static_cast<std::size_t>(*options_.min_nodes) : node_ranks_.size();
}

std::vector<Member> JobHosts::members() const {
  std::vector<Member> all;
  for (const HostRecord& host : records_)
    all.push_back(host.excluded || host.failure || host.lost ? Member::kExcluded
                  : host.facts                               ? Member::kPresent
                                                             : Member::kAwaited);
  return all;
}

std::string JobHosts::range_text() const {
  const std::string nodes = std::to_string(node_ranks_.size());
  const std::string range = options_.min_nodes ? std::to_string(*options_.min_nodes) + ":" +
                                                     std::to_string(*options_.num_nodes)
                                               : nodes;
  return "--nnodes " + range + (has_spares_ ? " --spares " + std::to_string(options_.spares) : "");
}

std::string JobHosts::members_text() const {
  std::vector<ExcludedHost> excluded;
  for (const HostRecord& host : records_)
    if (host.excluded) excluded.push_back(*host.excluded);
  const std::vector<Member> all = members();
  const auto present = std::count(all.begin(), all.end(), Member::kPresent);
  return members_line(static_cast<std::size_t>(present), all.size(), range_text(), excluded);
}

std::string JobHosts::too_few_text() const {
  if (may_shrink_) return members_text() + ": too few";
  return "no spare is left: " + members_text();
}

std::vector<LeftOutHost> JobHosts::left_out() const {
  std::vector<LeftOutHost> hosts;
  for (const HostRecord& host : records_)
    if (host.excluded)
      hosts.push_back(
          {host.name(), (host.excluded->step.empty() ? "" : host.excluded->step + ": ") +
                            host.excluded->reason.line()});
  return hosts;
}

bool JobHosts::can_do_without(std::size_t index) const {
  if (!may_lose_hosts()) return false;
  std::vector<Member> all = members();
  all[index] = Member::kExcluded;
  return decide_members(all, min_members(), false) != MemberDecision::kTooFew;
}

void JobHosts::exclude(std::size_t index, ExcludedHost why) {
  HostRecord& host = records_[index];
  why.name = host.name();
  host.excluded = std::move(why);
  host.lost = true;
  host.is_spare = false;
  host.opens_store = false;
  // If its supervisor runs, it detects the closed connection and exits.
  host.session->close();
}

}  // namespace ivy
