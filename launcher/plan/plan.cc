#include "launcher/plan/plan.h"

#include <algorithm>
#include <functional>

#include "launcher/plan/device_checks.h"
#include "launcher/plan/device_plan.h"
#include "launcher/plan/master_address.h"
#include "launcher/plan/plan_checks.h"
#include "proto/contract/exit_code.h"

namespace ivy {
namespace {

// More workers than any host has use for; a supervisor takes no more
// (agent/node/supervisor/supervisor.cc).
constexpr int kMaxWorkersPerHost = 4096;

// How many workers each host offers, and which rule said so.
struct Offer {
  std::vector<int> places;  // Per answer.
  bool bounded = false;     // -n may not ask for more: the user wrote the number of places.
  std::string rule;
};

struct Planner {
  const Options& options;
  const std::vector<HostAnswer>& answers;
  std::vector<Diagnostic>& refusals;

  const HostFacts& facts(std::size_t index) const { return answers[index].facts; }
  void refuse(std::string id, int exit_code, std::string what, std::string where, std::string cause,
              std::string fix) {
    refusals.push_back(Diagnostic{Severity::kError, std::move(id), std::move(what),
                                  std::move(where), std::move(cause), std::move(fix), exit_code});
  }
};

std::string plural(std::size_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

Offer offer_per_host(Planner& planner, std::size_t host_count) {
  const PerHost& per_host = planner.options.per_host;
  Offer offer;
  offer.bounded = true;
  std::vector<std::string> without;
  std::string reason;
  for (std::size_t i = 0; i < host_count; ++i) {
    if (!planner.answers[i].is_here) {
      offer.places.push_back(0);
      continue;
    }
    const int accelerators = device_places(planner.options, planner.answers, i);
    switch (per_host.kind) {
      case PerHost::Kind::kNumber:
        offer.places.push_back(per_host.number);
        break;
      case PerHost::Kind::kAuto:
        offer.places.push_back(std::max(1, accelerators));
        break;
      case PerHost::Kind::kGpu:
        offer.places.push_back(accelerators);
        break;
      case PerHost::Kind::kCpu:
        offer.places.push_back(std::max(1, static_cast<int>(planner.facts(i).cores())));
        break;
    }
    if (offer.places.back() > 0) continue;
    without.push_back(planner.answers[i].name);
    if (reason.empty()) reason = hiding_reason(planner.facts(i));
  }
  offer.rule = "--nproc-per-node ";
  offer.rule += per_host.kind == PerHost::Kind::kNumber ? std::to_string(per_host.number)
                : per_host.kind == PerHost::Kind::kGpu  ? "gpu"
                : per_host.kind == PerHost::Kind::kCpu  ? "cpu"
                                                        : "auto";
  if (!without.empty())
    planner.refuse("IVY-P010", kExitRefused, "--nproc-per-node gpu, but no accelerator was found",
                   fold_host_names(without), reason,
                   "--nproc-per-node N starts N workers without accelerators");
  return offer;
}

Offer offer_of(Planner& planner, std::size_t host_count) {
  const Options& options = planner.options;
  if (options.per_host.written) return offer_per_host(planner, host_count);
  Offer offer;
  bool any_accelerator = false;
  bool any_hidden = false;
  for (std::size_t i = 0; i < host_count; ++i) {
    const bool is_written = i < options.hosts.size() && options.hosts[i].slots.has_value();
    const int accelerators = device_places(planner.options, planner.answers, i);
    offer.bounded = offer.bounded || is_written;
    any_accelerator = any_accelerator || accelerators > 0;
    any_hidden = any_hidden || planner.facts(i).device_view().present() > 0;
    const int places = is_written ? *options.hosts[i].slots : std::max(1, accelerators);
    offer.places.push_back(planner.answers[i].is_here ? places : 0);
  }
  const int each = options.gpus_per_proc.value_or(1);
  offer.rule = offer.bounded                 ? "slots written for the hosts"
               : any_accelerator && each > 1 ? "one per " + std::to_string(each) + " accelerators"
               : any_accelerator             ? "one per accelerator"
               : any_hidden                  ? "one per host, no accelerators visible"
                                             : "one per host, no accelerators found";
  return offer;
}

// -n alone: blocks over the hosts, the first take the rest.
void spread_blocks(int workers, Offer& offer) {
  const int hosts = static_cast<int>(offer.places.size());
  for (int i = 0; i < hosts; ++i)
    offer.places[static_cast<std::size_t>(i)] = workers / hosts + (i < workers % hosts ? 1 : 0);
  offer.rule = "-n " + std::to_string(workers);
}

// "node01:8 node02:8"; long lists are cut, since the sum says the rest.
std::string places_text(const Planner& planner, const Offer& offer) {
  constexpr std::size_t kShown = 16;
  std::string text;
  for (std::size_t i = 0; i < offer.places.size() && i < kShown; ++i)
    text += (i == 0 ? "" : " ") + planner.answers[i].name + ":" + std::to_string(offer.places[i]);
  if (offer.places.size() > kShown)
    text += " and " + std::to_string(offer.places.size() - kShown) + " more";
  return text;
}

// -n on top of written places: the first N of them.
void take_first(Planner& planner, int workers, Offer& offer) {
  long total = 0;
  for (const int places : offer.places) total += places;
  if (workers > total) {
    planner.refuse("IVY-P001", kExitUsage,
                   "asked for " + std::to_string(workers) + " processes, hosts offer " +
                       std::to_string(total) + " (" + places_text(planner, offer) + ")",
                   "", "",
                   "-n " + std::to_string(total) +
                       "\nor more hosts, or more slots for them (-H host:slots)" +
                       "\nor --nproc-per-node N, which starts N on each host whatever its slots");
    return;
  }
  int left = workers;
  for (int& places : offer.places) {
    places = std::min(places, left);
    left -= places;
  }
  offer.rule = "-n " + std::to_string(workers) + ", " + offer.rule;
}

Offer place_workers(Planner& planner) {
  const Options& options = planner.options;
  std::size_t host_count = planner.answers.size();
  if (options.num_nodes) {
    const auto wanted = static_cast<std::size_t>(*options.num_nodes);
    // With MIN:MAX fewer hosts than MAX are fine here; the job enforces MIN.
    if (wanted > host_count && !options.min_nodes) {
      std::vector<std::string> names;
      for (const HostAnswer& answer : planner.answers) names.push_back(answer.name);
      planner.refuse(
          "IVY-P002", kExitUsage,
          "asked for " + plural(wanted, "host") + ", " + std::to_string(host_count) +
              (host_count == 1 ? " is given (" : " are given (") + fold_host_names(names) + ")",
          "", "",
          std::string(options.allocation
                          ? "allocate more hosts: sbatch or salloc -N " + std::to_string(wanted)
                          : "name the hosts: -H host1,host2,...") +
              "\n--nnodes " + std::to_string(host_count));
    }
    host_count = std::min(wanted, host_count);
  }
  Offer offer = offer_of(planner, host_count);
  if (options.num_proc && !offer.bounded) spread_blocks(*options.num_proc, offer);
  if (options.num_proc && offer.bounded) take_first(planner, *options.num_proc, offer);
  return offer;
}

// Refused hosts keep as many workers as they may have, so that the plan stays small.
void limit_places(Planner& planner, Offer& offer) {
  std::vector<std::string> names;
  int most = 0;
  for (std::size_t i = 0; i < offer.places.size(); ++i) {
    if (offer.places[i] <= kMaxWorkersPerHost) continue;
    names.push_back(planner.answers[i].name);
    most = std::max(most, offer.places[i]);
    offer.places[i] = kMaxWorkersPerHost;
  }
  if (names.empty()) return;
  planner.refuse("IVY-P015", kExitUsage,
                 "asked for " + std::to_string(most) + " processes on one host, at most " +
                     std::to_string(kMaxWorkersPerHost) + " are possible",
                 fold_host_names(names), "", "fewer processes, or more hosts for them");
}

// Refuses more workers than a hostfile's max_slots allows, whichever option asked for them.
void check_max_slots(Planner& planner, const Offer& offer) {
  const std::vector<Host>& hosts = planner.options.hosts;
  for (std::size_t i = 0; i < offer.places.size() && i < hosts.size(); ++i) {
    if (!hosts[i].max_slots || offer.places[i] <= *hosts[i].max_slots) continue;
    planner.refuse("IVY-P001", kExitUsage,
                   "asked for " + std::to_string(offer.places[i]) +
                       (offer.places[i] == 1 ? " process on " : " processes on ") +
                       planner.answers[i].name + ", which takes " +
                       std::to_string(*hosts[i].max_slots),
                   hosts[i].origin, "max_slots=" + std::to_string(*hosts[i].max_slots),
                   "fewer processes (-n, --nproc-per-node), or another max_slots there");
  }
}

void number_workers(const Planner& planner, const Offer& offer, JobPlan& plan) {
  for (std::size_t i = 0; i < offer.places.size(); ++i) {
    if (offer.places[i] == 0) continue;
    PlannedHost host;
    host.name = planner.answers[i].name;
    host.carrier = planner.answers[i].carrier;
    host.node_rank = static_cast<int>(plan.hosts.size());
    host.host_index = i;
    for (int local = 0; local < offer.places[i]; ++local) {
      host.workers.emplace_back();
      host.workers.back().rank = plan.world_size++;
      host.workers.back().local_rank = local;
    }
    plan.hosts.push_back(std::move(host));
    const std::size_t first = plan.hosts.front().workers.size();
    plan.same_local_size = plan.same_local_size && plan.hosts.back().workers.size() == first;
  }
}

bool is_link_local(const std::string& address) {
  return address.starts_with("fe80:") || address.starts_with("169.254.");
}

// IPv4 before IPv6, since every framework can use it; never a link-local address.
const Address* best_address(const HostFacts& facts,
                            const std::function<bool(const Address&)>& fits) {
  const Address* best = nullptr;
  for (const Address& address : facts.addresses()) {
    if (!fits(address) || is_link_local(address.address())) continue;
    const bool is_ipv4 = address.address().find(':') == std::string::npos;
    if (best == nullptr || (is_ipv4 && best->address().find(':') != std::string::npos))
      best = &address;
  }
  return best;
}

std::string interface_address(Planner& planner, const PlannedHost& first) {
  const Options& options = planner.options;
  const HostFacts& facts = planner.facts(first.host_index);
  const Address* address =
      best_address(facts, [&](const Address& a) { return a.interface() == options.interface; });
  if (address != nullptr) return address->address();
  std::string known;
  for (const Address& other : facts.addresses())
    known += (known.empty() ? "" : "\n") + other.interface() + " " + other.address();
  planner.refuse("IVY-P013", kExitRefused, "no usable address on interface " + options.interface,
                 first.name, known, "--iface with one of these names");
  return {};
}

std::string choose_master_address(Planner& planner, const JobPlan& plan) {
  const Options& options = planner.options;
  const PlannedHost& first = plan.hosts.front();
  if (!options.master_addr.empty()) {
    WrittenMaster written = written_master(options, planner.answers, plan);
    if (written.refusal) planner.refusals.push_back(*std::move(written.refusal));
    if (written.refusal || !written.address.empty()) return written.address;
  }
  if (!options.interface.empty()) return interface_address(planner, first);
  const auto remote = std::find_if(plan.hosts.begin(), plan.hosts.end(), [](const PlannedHost& h) {
    return h.carrier != Carrier::kLocal;
  });
  if (remote == plan.hosts.end()) return "127.0.0.1";
  const HostAnswer& answer = planner.answers[first.host_index];
  // This very host, by its own agent's Unix socket.
  if (plan.hosts.size() == 1 && first.carrier == Carrier::kAgent && answer.peer_address.empty())
    return "127.0.0.1";
  const std::string& reached = first.carrier == Carrier::kLocal
                                   ? planner.answers[remote->host_index].local_address
                                   : answer.peer_address;
  const bool is_usable =
      !is_unreachable_elsewhere(reached) || is_one_machine(planner.answers, plan);
  if (!reached.empty() && is_usable) return reached;
  // Through a jump host or the OpenSSH client the launcher may not know an address; through a
  // forwarded port it is our own loopback.
  const Address* address =
      best_address(answer.facts, [](const Address& a) { return !a.loopback(); });
  if (address != nullptr) return address->address();
  planner.refuse("IVY-P014", kExitRefused, "no address of the first host is known", first.name, "",
                 "--master-addr ADDRESS, as the other hosts reach it");
  return {};
}

void choose_master(Planner& planner, JobPlan& plan) {
  plan.master_address = choose_master_address(planner, plan);
  if (std::optional<Diagnostic> refusal = check_master(planner.options, planner.answers, plan))
    planner.refusals.push_back(*std::move(refusal));
  const PlannedHost& first = plan.hosts.front();
  const HostFacts& facts = planner.facts(first.host_index);
  plan.master_port = static_cast<std::uint16_t>(facts.reserved_port());
  plan.coordinator_port = static_cast<std::uint16_t>(facts.coordinator_port());
  if (!planner.options.no_store) plan.store_port = static_cast<std::uint16_t>(facts.store_port());
  if (plan.master_port == 0)
    planner.refuse("IVY-P009", kExitRefused, "no port could be reserved for MASTER_PORT",
                   first.name, facts.reserved_port_error(),
                   "another --port-range or --master-port");
}

void choose_leaves(Planner& planner, JobPlan& plan) {
  if (plan.store_port == 0 || plan.hosts.size() < 2) return;
  for (PlannedHost& host : plan.hosts) {
    host.has_leaf = host.workers.size() > 1;
    if (!host.has_leaf || !planner.options.store_proxy) continue;
    const HostFacts& facts = planner.facts(host.host_index);
    host.leaf_port = static_cast<std::uint16_t>(facts.leaf_port());
    if (host.leaf_port == 0)
      planner.refuse("IVY-P009", kExitRefused, "no port could be reserved for --store-proxy",
                     host.name, facts.reserved_port_error(), "another --port-range");
  }
}

}  // namespace

std::vector<std::string> worker_arguments(const Options& options, const HostFacts& facts) {
  IVY_ASSERT(!options.command.empty());
  std::vector<std::string> arguments;
  if (options.program_kind == ProgramKind::kModule) {
    arguments = {facts.interpreter(), "-u", "-m", options.command.front()};
  } else if (facts.program_is_script()) {
    arguments = {facts.interpreter(), "-u", facts.program_path()};
  } else {
    arguments = {facts.program_path()};
  }
  arguments.insert(arguments.end(), options.command.begin() + 1, options.command.end());
  return arguments;
}

const PlannedHost& JobPlan::host_of_rank(int rank) const {
  const auto after = std::upper_bound(
      hosts.begin(), hosts.end(), rank,
      [](int wanted, const PlannedHost& host) { return wanted < host.workers.front().rank; });
  IVY_ASSERT(after != hosts.begin() && rank < world_size);
  return *(after - 1);
}

Result<JobPlan> make_plan(const Options& options, const std::string& job_id,
                          const std::vector<HostAnswer>& answers,
                          std::vector<Diagnostic>& refusals) {
  IVY_ASSERT(!answers.empty() && !options.command.empty());
  Planner planner{options, answers, refusals};
  JobPlan plan;
  plan.job_id = job_id;
  plan.program = options.command.front();
  Offer offer = place_workers(planner);
  check_max_slots(planner, offer);
  limit_places(planner, offer);
  plan.rule = offer.rule;
  if (options.allocation) plan.rule += "; hosts of " + options.allocation->name();
  number_workers(planner, offer, plan);
  if (!plan.hosts.empty()) {
    plan.arguments = worker_arguments(options, planner.facts(plan.hosts.front().host_index));
    check_plan(options, answers, plan, refusals);
    choose_master(planner, plan);
    choose_leaves(planner, plan);
    check_allocated_devices(options, answers, plan, refusals);
    plan_devices(options, answers, plan, refusals);
  }
  return plan;
}

}  // namespace ivy
