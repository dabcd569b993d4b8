// The plan in words: one line at the start of a job, and the table of --dry-run.
#include <algorithm>

#include "launcher/plan/device_text.h"
#include "launcher/plan/plan.h"
#include "launcher/report/text_columns.h"
#include "proto/contract/remote_text.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

std::string plural(std::size_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string rank_range(const PlannedHost& host) {
  const int first = host.workers.front().rank;
  const int last = host.workers.back().rank;
  return first == last ? std::to_string(first) : std::to_string(first) + "-" + std::to_string(last);
}

TextRow host_row(const PlannedHost& host, const HostAnswer& answer) {
  const HostFacts& facts = answer.facts;
  const std::string accelerators =
      facts.accelerators() == 0
          ? "-"
          : std::to_string(facts.accelerators()) + " " + facts.accelerator_source();
  return {
      host.name,
      std::to_string(host.node_rank),
      rank_range(host),
      carrier_name(answer.carrier),
      answer.peer_address.empty() ? "-" : answer.peer_address,
      facts.user(),
      std::to_string(facts.cores()),
      accelerators,
      facts.architecture(),
      facts.interpreter().empty() ? "-" : facts.interpreter() + " " + facts.interpreter_version()};
}

// ", by agent"; ", 3 by agent, 1 by ssh" where hosts differ; nothing for this machine alone.
std::string carriers_text(const JobPlan& plan) {
  std::vector<std::pair<Carrier, int>> counts;
  for (const PlannedHost& host : plan.hosts) {
    auto known = std::find_if(counts.begin(), counts.end(),
                              [&](const auto& count) { return count.first == host.carrier; });
    if (known == counts.end()) known = counts.insert(counts.end(), {host.carrier, 0});
    ++known->second;
  }
  if (counts.empty() || (counts.size() == 1 && counts.front().first == Carrier::kLocal)) return "";
  if (counts.size() == 1) return ", by " + carrier_name(counts.front().first);
  std::string text;
  for (const auto& [carrier, count] : counts)
    text += ", " + std::to_string(count) + (carrier == Carrier::kLocal ? " " : " by ") +
            carrier_name(carrier);
  return text;
}

}  // namespace

std::string plan_line(const JobPlan& plan) {
  std::string line = plural(plan.hosts.size(), "host");
  if (plan.same_local_size && !plan.hosts.empty()) {
    line += " x " + std::to_string(plan.hosts.front().workers.size()) + " = ";
  } else {
    line += ", ";
  }
  return line + plural(static_cast<std::size_t>(plan.world_size), "rank") + " (" + plan.rule + ")" +
         carriers_text(plan) + (plan.device_words.empty() ? "" : ", " + plan.device_words);
}

std::string plan_table(const Options& options, const JobPlan& plan,
                       const std::vector<HostAnswer>& answers) {
  std::string out = "plan: " + plan_line(plan) + "\n";
  if (!options.host_source.empty()) out += "hosts from: " + options.host_source + "\n";
  std::vector<TextRow> rows = {{"host", "node", "ranks", "carrier", "address", "user", "cores",
                                "accelerators", "machine", "interpreter"}};
  for (const PlannedHost& host : plan.hosts)
    rows.push_back(host_row(host, answers[host.host_index]));
  out += text_columns(rows);
  out += device_table(plan, answers);
  const PlannedHost& first = plan.hosts.front();
  const std::string address = plan.master_address.find(':') == std::string::npos
                                  ? plan.master_address
                                  : "[" + plan.master_address + "]";
  out += "listens: " + address + ":" + std::to_string(plan.master_port) +
         (plan.store_port == 0
              ? " (MASTER_ADDR and MASTER_PORT: reserved on " + first.name +
                    ", opened by rank 0's framework; nothing else listens)\n"
              : " (the store on " + first.name + ", for torch: MASTER_ADDR and MASTER_PORT)\n");
  if (plan.store_port != 0 && plan.hosts.size() > 1 && plan.master_address != "127.0.0.1")
    out += "         and 127.0.0.1, the same ports\n";
  if (plan.store_port != 0)
    out += "listens: " + address + ":" + std::to_string(plan.store_port) +
           " (the store, for clients that know the job's token)\n";
  if (plan.store_port != 0 && !options.wal.empty())
    out += "log of the store: below " + options.wal + " on " + first.name + "\n";
  for (const PlannedHost& host : plan.hosts) {
    if (host.has_leaf)
      out += "listens: a Unix socket in the job's directory on " + host.name +
             (host.leaf_port == 0 ? ""
                                  : " and 127.0.0.1:" + std::to_string(host.leaf_port) +
                                        ", MASTER_ADDR and MASTER_PORT there (--store-proxy)") +
             ": the store's leaf\n";
  }
  out += "reserved: " + address + ":" + std::to_string(plan.coordinator_port) +
         " (for the coordinator of JAX and Keras, opened by rank 0)\n";
  if (options.max_restarts > 0)
    out += "restarts: at most " + std::to_string(options.max_restarts) +
           ", of all workers, on the same hosts with the same ranks\n";
  if (options.min_nodes)
    out += "hosts: goes on without those that are lost while " +
           std::to_string(*options.min_nodes) + " are left, with ranks numbered anew\n";
  const bool one_command =
      std::all_of(plan.hosts.begin(), plan.hosts.end(), [&](const PlannedHost& host) {
        return worker_arguments(options, answers[host.host_index].facts) == plan.arguments;
      });
  for (const PlannedHost& host : plan.hosts) {
    const std::string where = one_command ? "" : " on " + host.name;
    out += "worker" + where + ": " +
           RemoteText(quoted_arguments(worker_arguments(options, answers[host.host_index].facts)))
               .line() +
           "\n";
    if (one_command) break;
  }
  return out;
}

}  // namespace ivy
