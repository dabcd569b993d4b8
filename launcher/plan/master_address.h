// The address that workers get as MASTER_ADDR, where the user gave it: --master-addr as an address
// or a name, and whether every host can use what was chosen. Pure; thread: any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/plan/job_plan.h"

namespace ivy {

// The value of --master-addr. Both empty: it names the first host itself, whose address is then
// chosen as without the flag.
struct WrittenMaster {
  std::string address = {};  // Numeric, on the first host.
  std::optional<Diagnostic> refusal = {};
};

// The first host must have the address, since the job's store listens there. With --no-store rank
// 0's framework does, which may be reached by an address that the host itself does not know: then
// only another host of the job is refused. plan.hosts is final.
WrittenMaster written_master(const Options& options, const std::vector<HostAnswer>& answers,
                             const JobPlan& plan);

// A loopback address leads every host to itself, and the check of addresses succeeds there: so
// does a link-local IPv6 address, whose scope is a name of each host's own. (Link-local IPv4 is
// routed as any other address, and is checked as such.) Pretended hosts are one machine.
bool is_unreachable_elsewhere(const std::string& address);
bool is_one_machine(const std::vector<HostAnswer>& answers, const JobPlan& plan);

// Checks that every host can use plan.master_address. Nothing: all can.
std::optional<Diagnostic> check_master(const Options& options,
                                       const std::vector<HostAnswer>& answers, const JobPlan& plan);

}  // namespace ivy
