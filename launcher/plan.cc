#include "launcher/plan.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>

#include "proto/exit_code.h"

namespace ivy {
namespace {

// Linux refuses a longer argument or variable (MAX_ARG_STRLEN, with its final NUL).
constexpr std::size_t kMaxStringBytes = (128u << 10) - 1;

// How many workers each host offers, and which rule said so.
struct Offer {
  std::vector<int> places;  // Per answer.
  bool bounded = false;     // -n may not ask for more: somebody wrote the number of places.
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

bool is_fake(const Options& options, std::size_t index) {
  return index < options.hosts.size() && options.hosts[index].fake.has_value();
}

// Pretended hosts divide the machine's accelerators; the first take the rest. Where there are fewer
// accelerators than hosts, every host has all of them: they are shared.
int accelerators_of(const Planner& planner, std::size_t index) {
  const int all = static_cast<int>(planner.facts(index).accelerators());
  if (!is_fake(planner.options, index)) return all;
  const int hosts = static_cast<int>(planner.answers.size());
  if (all < hosts) return all > 0 ? 1 : 0;
  return all / hosts + (static_cast<int>(index) < all % hosts ? 1 : 0);
}

// ---- Places -----------------------------------------------------------------------------------

Offer offer_per_host(Planner& planner, std::size_t host_count) {
  const PerHost& per_host = planner.options.per_host;
  Offer offer;
  offer.bounded = true;
  std::vector<std::string> without;
  for (std::size_t i = 0; i < host_count; ++i) {
    const int accelerators = accelerators_of(planner, i);
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
    if (offer.places.back() == 0) without.push_back(planner.answers[i].name);
  }
  offer.rule = "--nproc-per-node ";
  offer.rule += per_host.kind == PerHost::Kind::kNumber ? std::to_string(per_host.number)
                : per_host.kind == PerHost::Kind::kGpu  ? "gpu"
                : per_host.kind == PerHost::Kind::kCpu  ? "cpu"
                                                        : "auto";
  if (!without.empty())
    planner.refuse("IVY-P010", kExitRefused, "--nproc-per-node gpu, but no accelerator was found",
                   fold_host_names(without), "",
                   "--nproc-per-node N starts N workers without accelerators");
  return offer;
}

Offer offer_of(Planner& planner, std::size_t host_count) {
  const Options& options = planner.options;
  if (options.per_host.written) return offer_per_host(planner, host_count);
  Offer offer;
  bool any_accelerator = false;
  for (std::size_t i = 0; i < host_count; ++i) {
    const bool is_written = i < options.hosts.size() && options.hosts[i].slots.has_value();
    const int accelerators = accelerators_of(planner, i);
    offer.bounded = offer.bounded || is_written;
    any_accelerator = any_accelerator || accelerators > 0;
    offer.places.push_back(is_written ? *options.hosts[i].slots : std::max(1, accelerators));
  }
  offer.rule = offer.bounded     ? "slots written for the hosts"
               : any_accelerator ? "one per accelerator"
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
                   "-n " + std::to_string(total) + "\nor more hosts, or more slots for them");
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
    if (wanted > host_count) {
      std::vector<std::string> names;
      for (const HostAnswer& answer : planner.answers) names.push_back(answer.name);
      planner.refuse(
          "IVY-P002", kExitUsage,
          "asked for " + plural(wanted, "host") + ", " + std::to_string(host_count) +
              (host_count == 1 ? " is given (" : " are given (") + fold_host_names(names) + ")",
          "", "", "name the hosts: -H host1,host2,...\n--nnodes " + std::to_string(host_count));
    }
    host_count = std::min(wanted, host_count);
  }
  Offer offer = offer_of(planner, host_count);
  if (options.num_proc && !offer.bounded) spread_blocks(*options.num_proc, offer);
  if (options.num_proc && offer.bounded) take_first(planner, *options.num_proc, offer);
  return offer;
}

void number_workers(const Planner& planner, const Offer& offer, JobPlan& plan) {
  for (std::size_t i = 0; i < offer.places.size(); ++i) {
    if (offer.places[i] == 0) continue;
    PlannedHost host;
    host.name = planner.answers[i].name;
    host.carrier = planner.answers[i].carrier;
    host.node_rank = static_cast<int>(plan.hosts.size());
    host.host_index = i;
    for (int local = 0; local < offer.places[i]; ++local)
      host.workers.push_back(PlannedWorker{plan.world_size++, local});
    plan.hosts.push_back(std::move(host));
    const std::size_t first = plan.hosts.front().workers.size();
    plan.same_local_size = plan.same_local_size && plan.hosts.back().workers.size() == first;
  }
}

// ---- What every host said about the program ---------------------------------------------------

// The hosts that said the same thing, for one message about all of them.
using Sayings = std::map<std::string, std::vector<std::string>>;

Sayings sayings(const JobPlan& plan, const Planner& planner,
                const std::function<std::string(const HostFacts&)>& say) {
  Sayings result;
  for (const PlannedHost& host : plan.hosts) {
    const std::string said = say(planner.facts(host.host_index));
    if (!said.empty()) result[said].push_back(host.name);
  }
  return result;
}

void check_directory(Planner& planner, const JobPlan& plan) {
  const Sayings said = sayings(
      plan, planner, [](const HostFacts& facts) { return facts.working_directory_error(); });
  for (const auto& [error, names] : said)
    planner.refuse("IVY-P003", kExitRefused, "the working directory cannot be entered",
                   fold_host_names(names), error, "make it there, or name another one: --wdir DIR");
}

void check_program(Planner& planner, const JobPlan& plan) {
  const Sayings said = sayings(plan, planner, [](const HostFacts& facts) {
    // A relative program is missing wherever its directory is: that has been said.
    return facts.working_directory_error().empty() ? facts.program_error() : std::string();
  });
  for (const auto& [error, names] : said) {
    const auto host =
        std::find_if(plan.hosts.begin(), plan.hosts.end(),
                     [&, first = names.front()](const PlannedHost& h) { return h.name == first; });
    const HostFacts& facts = planner.facts(host->host_index);
    const std::string where = fold_host_names(names);
    if (facts.program_errno() == ENOENT || facts.program_errno() == ENOTDIR) {
      planner.refuse("IVY-P004", kExitNotFound, "program not found: " + plan.program, where, error,
                     "write a path that exists on every host");
      continue;
    }
    planner.refuse(
        "IVY-P005", kExitNotExecutable, "program cannot be run: " + plan.program, where, error,
        facts.program_errno() == EISDIR ? "name a program or a script in it"
                                        : "chmod +x, or put its interpreter in front of it");
  }
}

void check_interpreter(Planner& planner, JobPlan& plan) {
  const Sayings missing =
      sayings(plan, planner, [](const HostFacts& facts) { return facts.interpreter_error(); });
  for (const auto& [error, names] : missing)
    planner.refuse("IVY-P006", kExitNotFound, "no interpreter for " + plan.program,
                   fold_host_names(names), error,
                   "install Python there, or name the interpreter: --python PATH");
  const Sayings versions =
      sayings(plan, planner, [](const HostFacts& facts) { return facts.interpreter_version(); });
  if (versions.size() < 2) return;
  std::string cause;
  for (const auto& [version, names] : versions)
    cause += (cause.empty() ? "" : "\n") + version + " on " + fold_host_names(names);
  plan.warnings.push_back(Diagnostic{Severity::kWarning, "IVY-P008",
                                     "hosts have different versions of the interpreter", "", cause,
                                     "--python PATH names one that is equal everywhere", 0});
}

// The text that most hosts have counts as right; among equals, the first host's.
void check_script(Planner& planner, const JobPlan& plan) {
  const Sayings hashes =
      sayings(plan, planner, [](const HostFacts& facts) { return facts.program_sha256(); });
  if (hashes.size() < 2) return;
  std::string right = planner.facts(plan.hosts.front().host_index).program_sha256();
  for (const auto& [hash, names] : hashes)
    if (!hashes.contains(right) || names.size() > hashes.at(right).size()) right = hash;
  std::vector<std::string> others;
  for (const PlannedHost& host : plan.hosts) {
    const std::string& hash = planner.facts(host.host_index).program_sha256();
    if (!hash.empty() && hash != right) others.push_back(host.name);
  }
  const std::string& name = plan.program;
  planner.refuse("IVY-P007", kExitRefused,
                 name.substr(name.rfind('/') + 1) + " differs on " + fold_host_names(others),
                 planner.facts(plan.hosts.front().host_index).program_path(),
                 "its content is not that of " + fold_host_names(hashes.at(right)),
                 "copy the same file to every host, or use a shared directory");
}

void check_arguments(Planner& planner, const JobPlan& plan) {
  for (std::size_t i = 0; i < plan.arguments.size(); ++i) {
    if (plan.arguments[i].size() <= kMaxStringBytes) continue;
    planner.refuse("IVY-P012", kExitRefused,
                   "argument " + std::to_string(i) + " has " +
                       std::to_string(plan.arguments[i].size()) + " bytes, Linux allows " +
                       std::to_string(kMaxStringBytes),
                   "", plan.arguments[i].substr(0, 60) + "...", "put it into a file");
  }
}

void warn_shared_accelerators(const Planner& planner, JobPlan& plan) {
  std::vector<std::string> names;
  for (const PlannedHost& host : plan.hosts) {
    const int accelerators = accelerators_of(planner, host.host_index);
    if (accelerators > 0 && host.workers.size() > static_cast<std::size_t>(accelerators))
      names.push_back(host.name);
  }
  if (names.empty()) return;
  plan.warnings.push_back(
      Diagnostic{Severity::kWarning, "IVY-P011", "more workers than accelerators: they are shared",
                 fold_host_names(names), "", "--nproc-per-node gpu starts one for each", 0});
}

// ---- Where rank 0 is reached --------------------------------------------------------------------

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
  if (!options.master_addr.empty()) return options.master_addr;
  if (!options.interface.empty()) return interface_address(planner, first);
  const auto remote = std::find_if(plan.hosts.begin(), plan.hosts.end(),
                                   [](const PlannedHost& h) { return h.carrier != "local"; });
  if (remote == plan.hosts.end()) return "127.0.0.1";
  const HostAnswer& answer = planner.answers[first.host_index];
  const std::string& reached = first.carrier == "local"
                                   ? planner.answers[remote->host_index].local_address
                                   : answer.peer_address;
  if (!reached.empty()) return reached;
  // Through a jump host or the OpenSSH client the launcher may not know an address.
  const Address* address =
      best_address(answer.facts, [](const Address& a) { return !a.loopback(); });
  if (address != nullptr) return address->address();
  planner.refuse("IVY-P014", kExitRefused, "no address of the first host is known", first.name, "",
                 "--master-addr ADDRESS, as the other hosts reach it");
  return {};
}

void choose_master(Planner& planner, JobPlan& plan) {
  plan.master_address = choose_master_address(planner, plan);
  const PlannedHost& first = plan.hosts.front();
  const HostFacts& facts = planner.facts(first.host_index);
  plan.master_port = static_cast<std::uint16_t>(facts.reserved_port());
  if (plan.master_port == 0)
    planner.refuse("IVY-P009", kExitRefused, "no port could be reserved for MASTER_PORT",
                   first.name, facts.reserved_port_error(),
                   "another --port-range or --master-port");
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
  const Offer offer = place_workers(planner);
  plan.rule = offer.rule;
  number_workers(planner, offer, plan);
  if (!plan.hosts.empty()) {
    plan.arguments = worker_arguments(options, planner.facts(plan.hosts.front().host_index));
    check_directory(planner, plan);
    check_program(planner, plan);
    check_interpreter(planner, plan);
    check_script(planner, plan);
    check_arguments(planner, plan);
    choose_master(planner, plan);
    warn_shared_accelerators(planner, plan);
  }
  return plan;
}

}  // namespace ivy
