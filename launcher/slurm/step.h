// SPDX-License-Identifier: Apache-2.0
// The srun that starts a supervisor on every host of an allocation: its arguments, its environment,
// the script that runs on hosts before ivy-node is there, and the meaning of its output. Pure;
// thread: any. See launcher/links/srun/README.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

struct SlurmVersion {
  int year = 0;
  int month = 0;
  auto operator<=>(const SlurmVersion&) const = default;
};

// Parses "slurm-wlm 22.05.8" or "slurm 23.11.4". Returns nullopt for other text.
std::optional<SlurmVersion> parse_slurm_version(std::string_view text);

struct StepRequest {
  std::optional<SlurmVersion> version;  // If unknown, only options of Slurm 20.11 are used.
  std::vector<std::string> hosts;       // Slurm's names of the hosts.
  bool is_whole_allocation = true;      // These are all hosts of the allocation.
  // --srun-args; after ivyrun's, so they take precedence.
  std::vector<std::string> extra_arguments;
  std::string script;
};

// Returns the whole argv. The step has access to every processor, device and byte of memory that
// the job has on these hosts, but does not reserve them, so that the user's own srun can run
// concurrently.
std::vector<std::string> srun_command(const StepRequest& request);

// Returns the caller's environment for srun. Leaves out variables that srun would read as options
// of this step, and, unless the step consists of this host only, variables that select
// accelerators. LD_LIBRARY_PATH and LD_PRELOAD, which may keep srun itself from starting, are sent
// under other names; step_script() restores them for ivy-node.
Environment srun_environment(const Environment& caller, bool is_single_host);
// Returns true for a variable that is hidden from srun only; workers get it back
// (SLURM_CPUS_PER_TASK and the like).
bool is_hidden_from_srun(std::string_view name);

//
// Standard input is sent to all hosts alike (--input=all). A host of the launcher's architecture
// runs the launcher's own ivy-node if it can see that file, else one that was installed there
// before. Otherwise it requests a bundle, and installs the one that is then sent to all hosts:
//
//   order  { "bundle ARCH BYTES SHA256 SCRIPT_BYTES" script tar  order }
//   answers, on standard output:   \001ivy:need ARCH NODE      \001ivy:fail NODE TEXT

// Returns the script for /bin/sh -c. own_binary: the launcher's path of ivy-node. own_architecture:
// what `uname -m` prints here; some shells read a program of another one as a script. version_line:
// the output of `ivy-node --version`. bundle_name: NodeUpload::name().
std::string step_script(const std::string& own_binary, const std::string& own_architecture,
                        const std::string& version_line, const std::string& bundle_name);
// Returns the text sent before the bundle's bytes. archive_begin: the offset after the program that
// decompresses the rest (links/node_upload.h).
std::string bundle_header(const std::string& architecture, const std::string& sha256,
                          std::size_t bytes, std::size_t archive_begin);
// A host that could not unpack the bundle into one of three directories requests it again.
inline constexpr int kMaxBundlesPerArchitecture = 3;

struct StepAnswer {
  enum class Kind { kNeed, kFail };
  Kind kind = Kind::kNeed;
  std::string architecture;  // Set if kind is kNeed.
  std::string node;
  std::string text;  // Set if kind is kFail.
};
// Parses a line of a host's standard output; std::nullopt if it is not an answer to ivyrun.
std::optional<StepAnswer> parse_step_answer(std::string_view line);

// "srun: error: node[2-3]: tasks 1-2: Exited with exit code 4": these hosts no longer take part.
struct TasksEnded {
  std::vector<std::string> nodes;
  std::string how;  // "Exited with exit code 4"
};
std::optional<TasksEnded> parse_tasks_ended(std::string_view line);
// "ivy-node: node3: TEXT": a message of a host that has not connected yet.
struct HostMessage {
  std::string node;
  std::string text;
};
std::optional<HostMessage> parse_host_message(std::string_view line);
// Returns true if srun keeps retrying: "step creation temporarily disabled, retrying (Requested
// nodes are busy)".
bool is_waiting_for_resources(std::string_view line);
// Explains why srun waits if its own text does not say what to do; empty if it does, for example
// that the job's prolog is still running.
std::string why_srun_waits(std::string_view line);
// Returns true for a line of srun that does not help the user: that this cluster does not bind
// processors, which was not requested, and the advice about munged before the line with the actual
// error.
bool is_srun_noise(std::string_view line);

// Explains why the step could not start or has ended. `stderr_text`: srun's standard error,
// including noise. `ended`: a description of srun's exit. The message contains the relevant line of
// srun, and a fix for known causes.
Error srun_failure(std::string_view stderr_text, const std::string& ended);

}  // namespace ivy
