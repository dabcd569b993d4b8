// SPDX-License-Identifier: Apache-2.0
// The hosts that take part in a job of --nnodes MIN:MAX. Each host is in one of three states:
//
//   awaited -> present -> excluded    lost while the job ran, or its supervisor was
//      '-> excluded                   did not come up, or not in time
//
// An excluded host is not used again: another attempt would have to wait for it, and a host that
// returns may soon be lost again. With --grow, a host that answers again is present (../growth.h).
// Pure; thread: any.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launcher/report/verdict.h"
#include "proto/contract/remote_text.h"

namespace ivy {

enum class Member { kAwaited, kPresent, kExcluded };

// Decides whether a job may start, or start again, with the present hosts.
enum class MemberDecision {
  kWait,      // Some hosts are awaited, and have time left.
  kContinue,  // Start with the present hosts; awaited hosts are excluded.
  kTooFew,    // Too few hosts, even with all that are awaited.
};
// min_members: MIN of --nnodes MIN:MAX.
MemberDecision decide_members(const std::vector<Member>& members, std::size_t min_members,
                              bool timed_out);

// Returns the number of hosts that may still be lost; 0 if there are too few already.
std::size_t spare_members(const std::vector<Member>& members, std::size_t min_members);

// Returns the addresses from which the other hosts' workers may connect to the store on
// `store_host`. hosts: each host's addresses without loopback. Two kinds are left out: addresses of
// the store's host, whose workers connect from the address that they dial; and addresses that
// several hosts have, because they identify none: a bridge for containers is 172.17.0.1 on many
// hosts, and unauthenticated peers behind it would pass for the job's. Hosts with equal addresses
// are one machine.
std::vector<std::string> peer_addresses(const std::vector<std::vector<std::string>>& hosts,
                                        std::size_t store_host);

// A host that takes no part, and the reason.
struct ExcludedHost {
  std::string name = {};
  std::string step = {};  // The step at which it failed, such as "connecting"; may be empty.
  RemoteText reason = {};
  std::string fix = {};         // Advice for --doctor; may be empty.
  bool is_about_ports = false;  // The host was reached, but cannot connect to the first host.
  bool may_return = false;      // --grow: its network or its machine was the reason.
};

// Returns "2 of 4 hosts (--nnodes 2:4), without node03 (connecting: no answer in 5 s), node04
// (...)". A reason that several hosts share is printed once.
std::string members_line(std::size_t present, std::size_t all, const std::string& range,
                         const std::vector<ExcludedHost>& excluded);

// A host that was lost in an attempt, and that the job can do without.
struct LostMember {
  std::size_t host = 0;  // Its index in the job.
  LauncherEnd end;       // The job's end, if there is no other reason.
  std::string cause;     // "host node03 was lost: no answer for 10 s"
};
// Returns the causes of all lost hosts in one line.
std::string lost_text(const std::vector<LostMember>& lost);

}  // namespace ivy
