// SPDX-License-Identifier: Apache-2.0
// `ivy-node drill`: causes the faults of --drill that concern a host (proto/wire/drill.proto). The
// supervisor starts it (supervisor/host_task.h) and copies its standard input and output from and
// to the launcher.
//
// It leaves nothing behind. A fault is undone after its time, when the input ends (the supervisor
// has exited, the job has ended), and on SIGTERM, which the kernel sends it when the supervisor
// dies and the warden before it kills everything. If it is killed itself, the kernel frees a full
// disk, because the file has no name, and rules of the firewall expire by themselves. A slow
// interface would remain slow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ivy {

// The name of its process (PR_SET_NAME), by which the warden finds it.
inline constexpr char kDrillTaskName[] = "ivy-drill";

// Returns the exit code.
int run_drill();

namespace drill {

using Words = std::vector<std::string>;

// Returns the rules that drop all packets except those of loopback, as arguments of iptables(8):
// `action` is "-I" or "-D". They expire at `until` ("2026-11-30T19:00:00", UTC) unless it is empty.
// `mark` tells them from rules of other drills.
std::vector<Words> cut_rules(const std::string& program, const std::string& action,
                             const std::string& until, const std::string& mark);
// Returns the command that makes an interface slow, as arguments of tc(8). rate: "10mbit" or empty.
Words slow_command(const std::string& program, const std::string& interface,
                   const std::string& rate, std::uint32_t delay_ms);

}  // namespace drill
}  // namespace ivy
