// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/master_address.h"

#include <strings.h>

#include <algorithm>
#include <cstring>

#include "proto/os/socket_address.h"

namespace ivy {
namespace {

bool is_ipv6(const std::string& address) { return address.find(':') != std::string::npos; }

// Returns true if both texts are the same address, even if written differently.
bool is_same_address(const std::string& a, const std::string& b) {
  const SocketAddress left = parse_address(a, 0);
  const SocketAddress right = parse_address(b, 0);
  if (!left.is_valid() || left.size != right.size) return a == b;
  return std::memcmp(&left.storage, &right.storage, left.size) == 0;
}

bool has_address(const HostFacts& facts, const std::string& address) {
  if (is_loopback(address)) return true;
  const std::string bare = address.substr(0, address.find('%'));
  return std::any_of(facts.addresses().begin(), facts.addresses().end(),
                     [&](const Address& own) { return is_same_address(own.address(), bare); });
}

bool equal_names(const std::string& a, const std::string& b) {
  return strcasecmp(a.c_str(), b.c_str()) == 0;
}

bool is_name_of(const HostAnswer& host, const std::string& name) {
  return equal_names(name, host.name) || equal_names(name, host.facts.host_name());
}

// Returns "eth0 10.1.0.1" lines for the addresses that another host can use.
std::string address_lines(const HostFacts& facts) {
  std::string lines;
  for (const Address& address : facts.addresses())
    if (!is_unreachable_from_other_hosts(address.address()))
      lines += (lines.empty() ? "" : "\n") + address.interface() + " " + address.address();
  return lines;
}

// Returns another host of the job that has one of these addresses or this name.
const PlannedHost* host_with(const std::string& name, const std::vector<std::string>& addresses,
                             const std::vector<HostAnswer>& answers, const JobPlan& plan) {
  for (std::size_t i = 1; i < plan.hosts.size(); ++i) {
    const HostAnswer& answer = answers[plan.hosts[i].host_index];
    const bool has_one =
        std::any_of(addresses.begin(), addresses.end(), [&](const std::string& address) {
          return !is_loopback(address) && has_address(answer.facts, address);
        });
    if (has_one || is_name_of(answer, name)) return &plan.hosts[i];
  }
  return nullptr;
}

std::vector<std::string> written_addresses(const Options& options) {
  const std::string& name = options.master_addr;
  if (name == "localhost") return {"127.0.0.1"};
  if (parse_address(name.substr(0, name.find('%')), 0).is_valid()) return {name};
  std::vector<std::string> addresses = options.master_addresses;
  // IPv4 first, since every framework can use it.
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const std::string& address) { return !is_ipv6(address); });
  return addresses;
}

void reject_other_host(PlanContext& context, const std::vector<std::string>& addresses) {
  const PlannedHost& first = context.plan.hosts.front();
  const std::string& name = context.options.master_addr;
  Diagnostic problem{.id = "IVY-P022", .what = "--master-addr " + name, .where = first.name};
  problem.fix = "leave out --master-addr: ivyrun chooses an address of " + first.name +
                " and tests it from every host";
  if (const PlannedHost* other = host_with(name, addresses, context.answers, context.plan)) {
    problem.what +=
        " is host " + other->name + ", but rank 0 runs on the first host, " + first.name;
    problem.fix += "\nor list " + other->name + " first: -H " + other->name + ",...";
  } else if (addresses.empty()) {
    problem.what += " has no address";
    problem.cause = context.options.master_addr_error;
  } else {
    problem.what += " is not an address of the first host, " + first.name;
    problem.cause = name == addresses.front() ? "" : name + " is " + addresses.front() + "\n";
    problem.cause += first.name + " has:\n" + address_lines(context.facts(first));
  }
  context.reject(std::move(problem));
}

}  // namespace

bool is_unreachable_from_other_hosts(const std::string& address) {
  return is_loopback(address) || address.starts_with("fe80:");
}

bool is_one_machine(const std::vector<HostAnswer>& answers, const JobPlan& plan) {
  const HostFacts& first = answers[plan.hosts.front().host_index].facts;
  return std::all_of(plan.hosts.begin(), plan.hosts.end(), [&](const PlannedHost& host) {
    const HostFacts& facts = answers[host.host_index].facts;
    return facts.boot_id() == first.boot_id() &&
           std::equal(facts.addresses().begin(), facts.addresses().end(), first.addresses().begin(),
                      first.addresses().end(), [](const Address& a, const Address& b) {
                        return a.address() == b.address();
                      });
  });
}

std::optional<std::string> written_master(PlanContext& context) {
  const Options& options = context.options;
  const HostAnswer& first = context.answers[context.plan.hosts.front().host_index];
  const std::vector<std::string> addresses = written_addresses(options);
  const bool is_numeric = !addresses.empty() && addresses.front() == options.master_addr;
  const bool is_single = is_one_machine(context.answers, context.plan);
  for (const std::string& address : addresses) {
    // On many machines the own name resolves to a loopback address, which the user did not request.
    const bool is_asked = is_single || is_numeric || options.master_addr == "localhost" ||
                          !is_unreachable_from_other_hosts(address);
    if (is_asked && has_address(first.facts, address)) return address;
  }
  if (is_name_of(first, options.master_addr)) return std::nullopt;
  const bool is_on_other_host =
      host_with(options.master_addr, addresses, context.answers, context.plan) != nullptr;
  if (options.no_store && !addresses.empty() && !is_on_other_host) return addresses.front();
  reject_other_host(context, addresses);
  return "";
}

bool owns_address(const HostFacts& facts, const std::string& address) {
  return facts.addresses().empty() || has_address(facts, address);
}

const PlannedHost* other_owner(const std::vector<HostAnswer>& answers, const JobPlan& plan,
                               const std::string& address) {
  if (is_loopback(address)) return nullptr;
  const HostFacts& first = answers[plan.hosts.front().host_index].facts;
  for (const PlannedHost& host : plan.hosts) {
    const HostFacts& facts = answers[host.host_index].facts;
    if (facts.boot_id() != first.boot_id() && has_address(facts, address)) return &host;
  }
  return nullptr;
}

void check_master(PlanContext& context) {
  const JobPlan& plan = context.plan;
  // The check between hosts cannot detect this: such a host reaches itself.
  if (const PlannedHost* other = other_owner(context.answers, plan, plan.master_address)) {
    const std::string& first = plan.hosts.front().name;
    context.reject(
        {.id = "IVY-P023",
         .what = "MASTER_ADDR would be " + plan.master_address + ", which " + other->name +
                 " also has: its workers could not reach " + first,
         .where = other->name,
         .cause = first + " has:\n" + address_lines(context.facts(plan.hosts.front())),
         .fix = "use --master-addr ADDRESS or --iface NAME of a network that all hosts share,\n"
                "or neither: ivyrun chooses an address and tests it from every host"});
    return;
  }
  if (!is_unreachable_from_other_hosts(plan.master_address) ||
      is_one_machine(context.answers, plan))
    return;
  const PlannedHost& first = plan.hosts.front();
  const std::string lines = address_lines(context.facts(first));
  const Options& options = context.options;
  const std::string where = !options.master_addr.empty() ? "--master-addr " + options.master_addr
                            : !options.interface.empty() ? "--iface " + options.interface
                                                         : first.name;
  context.reject(
      {.id = "IVY-P023",
       .what = "MASTER_ADDR would be " + plan.master_address +
               ", at which other hosts cannot reach " + first.name,
       .where = where,
       .cause = lines.empty() ? "" : first.name + " has:\n" + lines,
       .fix = "use --iface NAME or --master-addr ADDRESS of a network that all hosts share,\n"
              "or neither: ivyrun chooses an address and tests it from every host"});
}

}  // namespace ivy
