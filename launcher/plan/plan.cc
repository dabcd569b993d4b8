// SPDX-License-Identifier: Apache-2.0
// make_plan() at the end is the sequence, which the job runs when all hosts have sent their facts:
// place_workers() decides how many workers each host gets and remembers the rule; check_max_slots()
// and limit_slots() apply limits; number_workers() gives out the ranks. With the ranks known,
// plan_checks.cc checks the program, choose_master() picks rank 0's address, and device_plan.cc
// assigns accelerators and cores. Problems become rejections in the PlanContext, so that one run
// reports all of them.
#include "launcher/plan/plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "launcher/plan/device_checks.h"
#include "launcher/plan/device_plan.h"
#include "launcher/plan/jax_variables.h"
#include "launcher/plan/master_address.h"
#include "launcher/plan/mpi_plan.h"
#include "launcher/plan/plan_checks.h"
#include "launcher/plan/plan_context.h"
#include "launcher/plan/topology_order.h"
#include "proto/contract/device_vendor.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// More workers than any host can use; a supervisor accepts no more
// (agent/node/supervisor/generation.cc).
constexpr int kMaxWorkersPerHost = 4096;

// The number of workers that each host offers, and the rule that decided it.
struct Offer {
  std::vector<int> slots;  // One number per host, for the first --nnodes hosts.
  bool bounded = false;    // The user specified these numbers, so -n may not exceed their sum.
  std::string rule;
};

int slots_on(const PerHost& per_host, int accelerators, int cores) {
  switch (per_host.kind) {
    case PerHost::Kind::kNumber:
      return per_host.number;
    case PerHost::Kind::kGpu:
    case PerHost::Kind::kXpu:
      return accelerators;
    case PerHost::Kind::kCpu:
      return std::max(1, cores);
    case PerHost::Kind::kAuto:
      break;
  }
  return std::max(1, accelerators);
}

// --nproc-per-node xpu counts only Intel's accelerators, as torchrun does.
int counted_devices(const PlanContext& context, std::size_t host) {
  const DeviceVendor* const vendor = find_device_vendor(context.facts(host).accelerator_source());
  const bool is_other = context.options.per_host.kind == PerHost::Kind::kXpu &&
                        (vendor == nullptr || !vendor->is_xpu);
  return is_other ? 0 : device_slots(context.options, context.answers, host);
}

std::string kind_name(const PerHost& per_host) {
  switch (per_host.kind) {
    case PerHost::Kind::kNumber:
      return std::to_string(per_host.number);
    case PerHost::Kind::kGpu:
      return "gpu";
    case PerHost::Kind::kXpu:
      return "xpu";
    case PerHost::Kind::kCpu:
      return "cpu";
    case PerHost::Kind::kAuto:
      break;
  }
  return "auto";
}

Offer offer_per_host(PlanContext& context, std::size_t host_count) {
  const PerHost& per_host = context.options.per_host;
  Offer offer;
  offer.bounded = true;
  std::vector<std::string> without;
  std::string reason;
  for (std::size_t i = 0; i < host_count; ++i) {
    const bool is_present = context.answers[i].is_present;
    offer.slots.push_back(is_present ? slots_on(per_host, counted_devices(context, i),
                                                static_cast<int>(context.facts(i).cores()))
                                     : 0);
    if (!is_present || offer.slots.back() > 0) continue;
    without.push_back(context.answers[i].name);
    if (reason.empty()) reason = hiding_reason(context.facts(i));
  }
  offer.rule = "--nproc-per-node " + kind_name(per_host);
  if (!without.empty())
    context.reject({.id = "IVY-P010",
                    .what = offer.rule + ", but no accelerator" +
                            (per_host.kind == PerHost::Kind::kXpu ? " by Intel" : "") +
                            " was found",
                    .where = fold_host_names(without),
                    .cause = reason,
                    .fix = "--nproc-per-node N starts N workers without accelerators"});
  return offer;
}

Offer offer_of(PlanContext& context, std::size_t host_count) {
  const Options& options = context.options;
  if (options.per_host.written) return offer_per_host(context, host_count);
  Offer offer;
  bool any_accelerator = false;
  bool any_hidden = false;
  for (std::size_t i = 0; i < host_count; ++i) {
    const bool is_written = i < options.hosts.size() && options.hosts[i].slots.has_value();
    const int accelerators = device_slots(context.options, context.answers, i);
    offer.bounded = offer.bounded || is_written;
    any_accelerator = any_accelerator || accelerators > 0;
    any_hidden = any_hidden || context.facts(i).device_view().present() > 0;
    const int slots = is_written ? *options.hosts[i].slots : std::max(1, accelerators);
    offer.slots.push_back(context.answers[i].is_present ? slots : 0);
  }
  const int each = options.gpus_per_proc.value_or(1);
  offer.rule = offer.bounded                 ? "slots written for the hosts"
               : any_accelerator && each > 1 ? "one per " + std::to_string(each) + " accelerators"
               : any_accelerator             ? "one per accelerator"
               : any_hidden                  ? "one per host, no accelerators visible"
                                             : "one per host, no accelerators found";
  return offer;
}

// -n without other numbers: distributes blocks over the hosts; the first hosts get the remainder.
void spread_blocks(int workers, Offer& offer) {
  const int hosts = static_cast<int>(offer.slots.size());
  for (int i = 0; i < hosts; ++i)
    offer.slots[static_cast<std::size_t>(i)] = workers / hosts + (i < workers % hosts ? 1 : 0);
  offer.rule = "-n " + std::to_string(workers);
}

// Returns "node01:8 node02:8"; truncates long lists, because the sum is shown too.
std::string slots_text(const PlanContext& context, const Offer& offer) {
  constexpr std::size_t kShown = 16;
  std::string text;
  for (std::size_t i = 0; i < offer.slots.size() && i < kShown; ++i)
    text += (i == 0 ? "" : " ") + context.answers[i].name + ":" + std::to_string(offer.slots[i]);
  if (offer.slots.size() > kShown)
    text += " and " + std::to_string(offer.slots.size() - kShown) + " more";
  return text;
}

// -n in addition to written slots: takes the first N of them.
void take_first(PlanContext& context, int workers, Offer& offer) {
  long total = 0;
  for (const int slots : offer.slots) total += slots;
  if (workers > total) {
    context.reject(
        {.id = "IVY-P001",
         .what = "-n " + std::to_string(workers) + " exceeds the " +
                 counted(static_cast<std::size_t>(total), "slot") + " of the hosts (" +
                 slots_text(context, offer) + ")",
         .fix = "-n " + std::to_string(total) +
                "\nor list more hosts, or give them more slots (-H host:slots)" +
                "\nor use --nproc-per-node N, which starts N on each host regardless of its slots",
         .exit_code = kExitUsage});
    return;
  }
  int left = workers;
  for (int& slots : offer.slots) {
    slots = std::min(slots, left);
    left -= slots;
  }
  offer.rule = "-n " + std::to_string(workers) + ", " + offer.rule;
}

std::string more_hosts_advice(const Options& options, std::size_t wanted) {
  const std::string count = std::to_string(wanted);
  if (options.allocation) return "allocate more hosts: sbatch or salloc -N " + count;
  std::string advice = "name the hosts: -H host1,host2,...";
  // torchrun's nodes number themselves at the endpoint; ours need a number.
  const std::string node_0 = options.rdzv_endpoint.substr(0, options.rdzv_endpoint.rfind(':'));
  if (!node_0.empty())
    advice = "on each node: --nnodes " + count + " --node-rank R --master-addr " + node_0 +
             ", with R=0 on " + node_0 + "\nor on one of them: -H " + node_0 + ",host2,...";
  return advice;
}

Offer place_workers(PlanContext& context) {
  const Options& options = context.options;
  std::size_t host_count = context.answers.size();
  if (options.num_nodes) {
    const auto wanted = static_cast<std::size_t>(*options.num_nodes);
    // With MIN:MAX, fewer hosts than MAX are accepted here; the job enforces MIN.
    if (wanted > host_count && !options.min_nodes) {
      std::vector<std::string> names;
      for (const HostAnswer& answer : context.answers) names.push_back(answer.name);
      context.reject(
          {.id = "IVY-P002",
           .what = "--nnodes " + std::to_string(wanted) + " needs " + counted(wanted, "host") +
                   ", but only " + std::to_string(host_count) +
                   (host_count == 1 ? " is available (" : " are available (") +
                   fold_host_names(names) + ")",
           .fix = more_hosts_advice(options, wanted) + "\n--nnodes " + std::to_string(host_count),
           .exit_code = kExitUsage});
    }
    host_count = std::min(wanted, host_count);
  }
  Offer offer = offer_of(context, host_count);
  if (options.num_proc && !offer.bounded) spread_blocks(*options.num_proc, offer);
  if (options.num_proc && offer.bounded) take_first(context, *options.num_proc, offer);
  for (std::size_t i = 0; i < offer.slots.size(); ++i)
    if (context.answers[i].is_present && context.answers[i].workers)
      offer.slots[i] = *context.answers[i].workers;
  return offer;
}

// Rejected hosts keep the maximum number of workers, so that the plan remains small.
void limit_slots(PlanContext& context, Offer& offer) {
  std::vector<std::string> names;
  int largest = 0;
  for (std::size_t i = 0; i < offer.slots.size(); ++i) {
    if (offer.slots[i] <= kMaxWorkersPerHost) continue;
    names.push_back(context.answers[i].name);
    largest = std::max(largest, offer.slots[i]);
    offer.slots[i] = kMaxWorkersPerHost;
  }
  if (names.empty()) return;
  context.reject({.id = "IVY-P015",
                  .what = "requested " + std::to_string(largest) +
                          " processes on one host, but at most " +
                          std::to_string(kMaxWorkersPerHost) + " are possible",
                  .where = fold_host_names(names),
                  .fix = "start fewer processes or use more hosts",
                  .exit_code = kExitUsage});
}

// Rejects more workers than a hostfile's max_slots allows, whatever option requested them.
void check_max_slots(PlanContext& context, const Offer& offer) {
  const std::vector<Host>& hosts = context.options.hosts;
  for (std::size_t i = 0; i < offer.slots.size() && i < hosts.size(); ++i) {
    if (!hosts[i].max_slots || offer.slots[i] <= *hosts[i].max_slots) continue;
    context.reject({.id = "IVY-P001",
                    .what = "requested " + std::to_string(offer.slots[i]) +
                            (offer.slots[i] == 1 ? " process on " : " processes on ") +
                            context.answers[i].name + ", which allows only " +
                            std::to_string(*hosts[i].max_slots),
                    .where = hosts[i].origin,
                    .cause = "max_slots=" + std::to_string(*hosts[i].max_slots),
                    .fix = "start fewer processes (-n, --nproc-per-node), or raise max_slots there",
                    .exit_code = kExitUsage});
  }
}

void number_workers(PlanContext& context, const Offer& offer, JobPlan& plan) {
  for (const std::size_t i : host_order(context)) {
    if (i >= offer.slots.size() || offer.slots[i] == 0) continue;
    PlannedHost host;
    host.name = context.answers[i].name;
    host.transport = context.answers[i].transport;
    host.node_rank = static_cast<int>(plan.hosts.size());
    host.host_index = i;
    for (int local = 0; local < offer.slots[i]; ++local) {
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

// Prefers IPv4 to IPv6, since every framework can use it; never returns a link-local address.
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

std::string interface_address(PlanContext& context, const PlannedHost& first) {
  const Options& options = context.options;
  const HostFacts& facts = context.facts(first.host_index);
  const Address* address =
      best_address(facts, [&](const Address& a) { return a.interface() == options.interface; });
  if (address != nullptr) return address->address();
  std::string known;
  for (const Address& other : facts.addresses())
    known += (known.empty() ? "" : "\n") + other.interface() + " " + other.address();
  context.reject({.id = "IVY-P013",
                  .what = "no usable address on interface " + options.interface,
                  .where = first.name,
                  .cause = known,
                  .fix = "use --iface with one of these names"});
  return {};
}

std::string choose_master_address(PlanContext& context, const JobPlan& plan) {
  const Options& options = context.options;
  const PlannedHost& first = plan.hosts.front();
  if (!options.master_addr.empty()) {
    if (std::optional<std::string> written = written_master(context)) return *std::move(written);
  }
  if (!options.interface.empty()) return interface_address(context, first);
  const auto remote = std::find_if(plan.hosts.begin(), plan.hosts.end(), [](const PlannedHost& h) {
    return h.transport != Transport::kLocal;
  });
  if (remote == plan.hosts.end()) return "127.0.0.1";
  const HostAnswer& answer = context.answers[first.host_index];
  // This host itself, through its agent's Unix socket.
  if (plan.hosts.size() == 1 && first.transport == Transport::kAgent && answer.peer_address.empty())
    return "127.0.0.1";
  const std::string& reached = first.transport == Transport::kLocal
                                   ? context.answers[remote->host_index].local_address
                                   : answer.peer_address;
  const bool is_usable =
      owns_address(answer.facts, reached) &&
      (!is_unreachable_from_other_hosts(reached) || is_one_machine(context.answers, plan));
  if (!reached.empty() && is_usable) return reached;
  // Through a jump host or the OpenSSH client, the launcher may not know an address; through a
  // forwarded port, the address belongs to a gateway or is our own loopback.
  const Address* address = best_address(answer.facts, [&](const Address& a) {
    return !a.loopback() && other_owner(context.answers, plan, a.address()) == nullptr;
  });
  if (address != nullptr) return address->address();
  context.reject({.id = "IVY-P014",
                  .what = "the first host has no known address",
                  .where = first.name,
                  .fix = "use --master-addr ADDRESS, at which the other hosts can reach it"});
  return {};
}

bool have_same_devices(const HostFacts& a, const HostFacts& b) {
  if (a.devices().empty() || b.devices().empty()) return true;
  return std::any_of(a.devices().begin(), a.devices().end(), [&](const Accelerator& device) {
    return std::any_of(b.devices().begin(), b.devices().end(), [&](const Accelerator& other) {
      return device.uuid() == other.uuid() && device.mask_entry() == other.mask_entry();
    });
  });
}

// Rejects two entries of -H that lead to the same machine, because each would count its devices
// from 0. Simulated hosts, two users of one machine and nodes of torchrun mode are separate on
// purpose, and so are containers that share the machine's network but have separate devices.
void check_same_machine(PlanContext& context) {
  const Options& options = context.options;
  std::map<std::string, const PlannedHost*> machines;
  for (const PlannedHost& host : context.plan.hosts) {
    const HostFacts& facts = context.facts(host);
    const bool is_fake =
        host.host_index < options.hosts.size() && options.hosts[host.host_index].fake;
    if (is_fake || options.node_rank || facts.boot_id().empty()) continue;
    std::string machine = facts.boot_id() + " " + facts.host_name() + " " + facts.user();
    for (const Address& address : facts.addresses()) machine += " " + address.address();
    const auto [known, is_new] = machines.try_emplace(machine, &host);
    if (is_new || !have_same_devices(context.facts(*known->second), facts)) continue;
    const std::string& first = known->second->name;
    context.reject({.id = "IVY-P038",
                    .what = first + " and " + host.name + " are the same machine",
                    .where = host.name,
                    .cause = "their ranks would share its devices",
                    .fix = "list it only once, with its slots: -H " + first +
                           ":2\nto simulate two hosts use --fake-hosts 2"});
  }
}

void choose_master(PlanContext& context, JobPlan& plan) {
  plan.master_address = choose_master_address(context, plan);
  check_master(context);
  const PlannedHost& first = plan.hosts.front();
  const HostFacts& facts = context.facts(first.host_index);
  plan.master_port = static_cast<std::uint16_t>(facts.reserved_port());
  plan.coordinator_port = static_cast<std::uint16_t>(facts.coordinator_port());
  if (!context.options.no_store) plan.store_port = static_cast<std::uint16_t>(facts.store_port());
  if (plan.master_port == 0)
    context.reject({.id = "IVY-P009",
                    .what = "no port could be reserved for MASTER_PORT",
                    .where = first.name,
                    .cause = facts.reserved_port_error(),
                    .fix = "use another --port-range or --master-port"});
}

}  // namespace

const PlannedHost& JobPlan::host_of_rank(int rank) const {
  const auto after = std::upper_bound(
      hosts.begin(), hosts.end(), rank,
      [](int wanted, const PlannedHost& host) { return wanted < host.workers.front().rank; });
  IVY_ASSERT(after != hosts.begin() && rank < world_size);
  return *(after - 1);
}

Result<JobPlan> make_plan(const Options& options, const std::string& job_id,
                          const std::vector<HostAnswer>& answers,
                          std::vector<Diagnostic>& rejections) {
  IVY_ASSERT(!answers.empty() && !options.command.empty());
  JobPlan plan;
  PlanContext context{options, answers, plan, rejections};
  plan.job_id = job_id;
  plan.program = options.command.front();
  plan.map_by = options.map_by;
  Offer offer = place_workers(context);
  check_max_slots(context, offer);
  limit_slots(context, offer);
  plan.rule = offer.rule;
  if (options.map_by != MapChoice::kHost)
    plan.rule += options.map_by == MapChoice::kNvlink ? ", by NVLink domain" : ", by switch";
  if (options.allocation) plan.rule += "; hosts of " + options.allocation->name();
  if (!options.batch_job.empty()) plan.rule += "; hosts of " + options.batch_job;
  number_workers(context, offer, plan);
  if (!plan.hosts.empty()) {
    plan.arguments = worker_arguments(options, context.facts(plan.hosts.front().host_index));
    check_plan(context);
    check_same_machine(context);
    plan_mpi(context);
    check_preload(context);
    choose_master(context, plan);
    check_jax_service(context);
    check_allocated_devices(context);
    plan_devices(context);
  }
  return plan;
}

}  // namespace ivy
