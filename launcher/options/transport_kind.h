// SPDX-License-Identifier: Apache-2.0
// --transport, and the kind of connection to a host: chosen once in links/, and shown to users by
// name. Pure; thread: any.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ivy {

// The values of --transport. kExec: also the names of commands (exec_command.h).
enum class TransportChoice { kAuto, kLocal, kAgent, kSsh, kSlurm, kExec };

// Returns {"auto", kAuto}, {"local", kLocal}, ...
std::vector<std::pair<std::string, TransportChoice>> transport_choices();
std::string transport_name(TransportChoice choice);
// Returns true if the transport reaches hosts outside the allocation in which ivyrun was started.
bool ignores_allocation(TransportChoice choice);
// Returns true if a host's policy (policy.h) may forbid the transport.
bool needs_permission(TransportChoice choice);
// Returns the words by which a policy allows transports, and "join" for torchrun mode.
std::vector<std::string> policy_words();

enum class Transport { kLocal, kSsh, kSshClient, kAgent, kSrun, kJoined, kExec };

// Returns "local", "ssh", "OpenSSH client", "agent", "srun", "own ivyrun" or "exec".
std::string transport_name(Transport transport);
// Returns the default of --lease: how long the workers of a host keep running without a sign of
// life from their launcher. is_attended: a user at a terminal watches the job.
std::chrono::milliseconds default_lease(Transport transport, bool is_attended);
// Returns how long a host that dials back (srun, join) waits for a message of its launcher before
// it connects again: half of the lease, so that the other half remains for that. lease: --lease.
std::chrono::milliseconds dial_back_silence(Transport transport,
                                            std::optional<std::chrono::milliseconds> lease);
// Returns the transport with this name. An unknown name, which another version may have written, is
// kSsh.
Transport transport_named(std::string_view name);

}  // namespace ivy
