// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/batch_hosts.h"

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/options/hosts.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

struct Scheduler {
  std::string_view name;
  std::string_view job;    // The variable with the job's id.
  std::string_view file;   // The variable that names a file: a line per host or per slot.
  std::string_view list;   // The variable with "host slots host slots ..."; empty if there is none.
  std::string_view count;  // The variable with the number of hosts; empty if there is none.
};

constexpr Scheduler kSchedulers[] = {
    {"PBS job", "PBS_JOBID", "PBS_NODEFILE", "", "PBS_NUM_NODES"},
    {"LSF job", "LSB_JOBID", "LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS", ""},
    // Other programs may set JOB_ID, too.
    {"Grid Engine job", "JOB_ID", "PE_HOSTFILE", "", "NHOSTS"},
};

// An empty variable counts as unset.
const std::string* find(const Environment& environment, std::string_view name) {
  const std::string* value = name.empty() ? nullptr : find_variable(environment, name);
  return value == nullptr || value->empty() ? nullptr : value;
}

Error bad(const Scheduler& scheduler, const std::string& what) {
  return Error{
      Code::kInvalidArgument, what,
      "list the hosts with -H host1,host2,..., or use only this one with --transport local\n"
      "or, if no " +
          std::string(scheduler.name) + " should be used: env -u " + std::string(scheduler.job) +
          " ivyrun ..."};
}

// Returns the first word of each line, or every second word of a list.
std::vector<std::string> first_words(std::string_view text, char end, int step) {
  std::vector<std::string> words;
  for (int at = 0; !text.empty(); ++at) {
    std::string_view line = take_part(text, end);
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == line.npos) {
      --at;
      continue;
    }
    line.remove_prefix(begin);
    if (at % step == 0) words.emplace_back(line.substr(0, line.find_first_of(" \t\r")));
  }
  return words;
}

Result<BatchHosts> read_hosts(const Scheduler& scheduler, const Environment& environment,
                              AllocationInputs& inputs) {
  const std::string* const path = find(environment, scheduler.file);
  const std::string origin(path != nullptr ? scheduler.file : scheduler.list);
  const std::string& value = *find(environment, origin);
  std::vector<std::string> words;
  if (path != nullptr) {
    const Result<std::string> content = inputs.file(*path);
    if (!content.ok()) return bad(scheduler, origin + ": " + content.error().message);
    words = first_words(*content, '\n', 1);
  } else {
    words = first_words(value, ' ', 2);
  }
  BatchHosts found{std::string(scheduler.name) + " " + *find(environment, scheduler.job), {}};
  Result<std::vector<std::string>> hosts = distinct_hosts(words, origin + "=" + value);
  if (!hosts.ok()) return bad(scheduler, hosts.error().message);
  if (hosts->empty()) return bad(scheduler, origin + "=" + value + " lists no hosts");
  found.hosts = std::move(hosts).value();
  return found;
}

// Returns an error for a job of several hosts whose variables do not list them, as on its other
// hosts: it would become a job of this host alone.
Result<void> has_one_host(const Scheduler& scheduler, const Environment& environment) {
  const std::string* const count = find(environment, scheduler.count);
  if (count == nullptr || to_number<int>(*count).value_or(1) <= 1) return {};
  return bad(scheduler, std::string(scheduler.count) + "=" + *count + ", but " +
                            std::string(scheduler.file) + " is not set");
}

// -- Flux

constexpr const char* kGetHosts = "flux getattr hostlist";

Error unknown_hosts(const std::string& what) {
  return Error{
      Code::kInvalidArgument, "the hosts of the Flux instance are not known: " + what,
      "list the hosts with -H host1,host2,..., or use only this one with --transport local\n"
      "or, if the instance is not meant: env -u FLUX_URI ivyrun ..."};
}

std::string first_line_of(const std::string& text) {
  return text.substr(0, text.find_first_of("\r\n"));
}

}  // namespace

Result<std::vector<std::string>> distinct_hosts(const std::vector<std::string>& words,
                                                const std::string& origin) {
  std::vector<std::string> hosts;
  std::set<std::string> seen;
  for (const std::string& word : words)
    for (const Host& host : IVY_TRY(parse_host_list(word, origin)))
      if (seen.insert(host.name).second) hosts.push_back(host.name);
  return hosts;
}

Result<std::optional<BatchHosts>> read_batch_hosts(const Environment& environment,
                                                   AllocationInputs& inputs) {
  for (const Scheduler& scheduler : kSchedulers) {
    if (find(environment, scheduler.job) == nullptr) continue;
    if (find(environment, scheduler.file) == nullptr &&
        find(environment, scheduler.list) == nullptr) {
      IVY_CHECK(has_one_host(scheduler, environment));
      continue;
    }
    Result<BatchHosts> found = read_hosts(scheduler, environment, inputs);
    if (!found.ok()) return found.error();
    return std::optional<BatchHosts>(std::move(found).value());
  }
  return std::optional<BatchHosts>();
}

// Flux removes the variable from the environment of an instance's shell or script.
bool is_flux_task(const Environment& environment) {
  return find_variable(environment, "FLUX_JOB_ID") != nullptr;
}

Result<std::optional<BatchHosts>> read_flux_hosts(const Environment& environment,
                                                  AllocationInputs& inputs) {
  const std::string* const uri = find_variable(environment, "FLUX_URI");
  const bool is_inside = uri != nullptr && !uri->empty() && !is_flux_task(environment);
  if (!is_inside) return std::optional<BatchHosts>();
  const Result<std::string> list = inputs.program({"flux", "getattr", "hostlist"});
  if (!list.ok()) return unknown_hosts(list.error().message);
  const std::string text = first_line_of(*list);
  if (text.empty()) return unknown_hosts(std::string(kGetHosts) + " printed nothing");
  Result<std::vector<std::string>> hosts = distinct_hosts({text}, kGetHosts);
  if (!hosts.ok()) return unknown_hosts(hosts.error().message);
  if (hosts->size() > 1) {
    const Result<std::string> owner = inputs.program({"flux", "getattr", "security.owner"});
    if (owner.ok() && first_line_of(*owner) != std::to_string(inputs.user_id()))
      return std::optional<BatchHosts>();
  }
  return std::optional<BatchHosts>(BatchHosts{"the Flux instance", std::move(hosts).value()});
}

}  // namespace ivy
