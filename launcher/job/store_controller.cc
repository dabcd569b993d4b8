// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/store_controller.h"

#include <algorithm>
#include <set>
#include <utility>

#include "proto/os/clock.h"

namespace ivy {
namespace {

std::string fix_for(Code code, const std::string& host, const NetworkOptions& network) {
  switch (code) {
    case Code::kNotFound:
      return "use --master-addr with an address that " + host + " has, or leave it out";
    case Code::kAlreadyExists:
      if (network.port_low != network.port_high)
        return "use a --port-range with more free ports on " + host;
      return network.port_high == 0
                 ? "start the job again; it then gets another port"
                 : "use --master-port with a port that is free on " + host + ", or leave it out";
    default:
      return "use --no-store: rank 0's framework then listens on MASTER_PORT";
  }
}

}  // namespace

void StoreController::open_on_first_host() {
  const JobPlan& plan = job_.plan;
  const std::size_t first = plan.hosts.front().host_index;
  if (plan.store_port == 0 || host_ == first) return;
  const bool is_restarting = job_.phase.state() == JobState::kRestarting;
  const std::uint32_t generation = job_.generation + (is_restarting ? 1 : 0);
  // The store of an earlier first host will not answer any longer, so it is no longer awaited.
  is_beginning_ = false;
  job_.hosts[first].opens_store = true;
  send_to_first_host(generation, open_command(generation));
}

void StoreController::admit(const HostRecord& host) {
  if (!host_ || job_.plan.store_port == 0) return;
  Command command;
  OpenStore& open = *command.mutable_open_store();
  if (!host.up->peer_address.empty()) open.add_torch_peers(host.up->peer_address);
  for (const Address& address : host.facts->addresses())
    if (!address.loopback()) open.add_torch_peers(address.address());
  job_.hosts.send(*host_, command);
}

Command StoreController::open_command(std::uint32_t generation) const {
  const JobPlan& plan = job_.plan;
  Command command;
  OpenStore& open = *command.mutable_open_store();
  open.add_addresses(plan.master_address);
  // A script on the store's own host may also connect to localhost.
  if (plan.hosts.size() > 1 && plan.master_address != "127.0.0.1") open.add_addresses("127.0.0.1");
  std::set<std::string> peers;
  std::vector<std::vector<std::string>> addresses_of(job_.hosts.size());
  for (std::size_t index = 0; index < addresses_of.size() && plan.hosts.size() > 1; ++index) {
    const HostRecord& host = job_.hosts[index];
    if (!host.is_planned() && !host.is_spare) continue;
    if (host.up && !host.up->peer_address.empty()) peers.insert(host.up->peer_address);
    for (const Address& address : host.facts->addresses())
      if (!address.loopback()) addresses_of[index].push_back(address.address());
  }
  for (std::string& peer : peer_addresses(addresses_of, plan.hosts.front().host_index))
    peers.insert(std::move(peer));
  for (const std::string& peer : peers) open.add_torch_peers(peer);
  // An upper bound, for the limits of the store: as if every host had as many workers as the host
  // with the most.
  std::size_t max_workers = 0;
  for (const PlannedHost& host : plan.hosts)
    max_workers = std::max(max_workers, host.workers.size());
  open.set_world_size(static_cast<std::uint32_t>(max_workers * job_.hosts.size()));
  open.set_stall_seconds(static_cast<std::uint32_t>(job_.options.stall_timeout.count()));
  open.set_generation(generation);
  return command;
}

void StoreController::send_to_first_host(std::uint32_t generation, const Command& command) {
  host_ = job_.plan.hosts.front().host_index;
  generation_ = generation;
  job_.hosts.send(*host_, command);
}

std::string StoreController::host_name() const { return job_.hosts[host_.value_or(0)].name(); }

bool StoreController::opened(std::size_t index, const StoreOpened& opened) {
  HostRecord& host = job_.hosts[index];
  host.opens_store = false;
  if (opened.error().empty()) return true;
  job_.reject(
      {Diagnostic{.id = "IVY-H011",
                  .what = "the job's store cannot listen",
                  .where = host.name() + ", " + job_.plan.master_address,
                  .cause = opened.error(),
                  .fix = fix_for(static_cast<Code>(opened.code()), host.name(), job_.options),
                  .exit_code = kExitRejected}},
      LauncherReason::kRejected);
  return false;
}

void StoreController::lost(std::size_t index, const StoreLost& lost) {
  if (index != host_) return;  // It was the store of an earlier first host.
  host_.reset();
  const JobState state = job_.phase.state();
  // Between two attempts the store is idle, so a new one replaces it.
  if (state == JobState::kRestarting) return open_on_first_host();
  const bool all_succeeded =
      state == JobState::kConfirming &&
      std::all_of(job_.workers.begin(), job_.workers.end(),
                  [](const WorkerRecord& worker) { return worker.end.status.is_success(); });
  if (state == JobState::kDone || all_succeeded) return;
  const std::string& name = job_.hosts[index].name();
  LauncherEnd end;
  end.reason = LauncherReason::kStoreLost;
  end.at_ns = monotonic_ns();
  end.diagnostic = {.id = "IVY-R008",
                    .what = "the job's store on host " + name + " was lost",
                    .where = name,
                    .cause = RemoteText(lost.why()).lines(),
                    .fix =
                        "the kernel log of the host may show what killed it;\n"
                        "use --no-store to run without it: rank 0's framework then listens on "
                        "MASTER_PORT",
                    .exit_code = kExitHostLost};
  if (!job_.has_reason()) job_.print(end.diagnostic.what + ": " + RemoteText(lost.why()).line());
  job_.workers.attempt_ends(std::move(end));
  if (job_.max_restarts == 0 || is_before_start(state)) job_.take_attempt_end_as_reason();
  // A store is lost like its host: the job ends, or the group starts again.
  job_.phase.apply(JobEvent::kHostLost);
}

void StoreController::begin_generation(std::uint32_t generation) {
  open_on_first_host();
  // A store that was opened just now has begun this generation with its opening.
  if (host_ == job_.plan.hosts.front().host_index && generation_ == generation) return;
  is_beginning_ = true;
  Command command;
  command.mutable_begin_generation()->set_generation(generation);
  send_to_first_host(generation, command);
}

void StoreController::begun(const GenerationBegun& begun) {
  if (begun.generation() == job_.generation + 1) is_beginning_ = false;
}

void StoreController::take_over() {
  host_ = job_.plan.hosts.front().host_index;
  generation_ = job_.generation;
}

}  // namespace ivy
