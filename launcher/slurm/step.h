// SPDX-License-Identifier: Apache-2.0
// The one srun that starts a supervisor on every host of an allocation: its words, its environment,
// what its hosts run before there is an ivy-node, and what its own words mean. Pure; thread: any.
// See "The srun step" in launcher/links/README.md.
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

// Parses "slurm-wlm 22.05.8" or "slurm 23.11.4". Returns nothing for other text.
std::optional<SlurmVersion> parse_slurm_version(std::string_view text);

struct StepRequest {
  std::optional<SlurmVersion> version;  // Unknown: options that every Slurm since 20.11 has.
  std::vector<std::string> hosts;       // By the names that Slurm has for them.
  bool is_whole_allocation = true;      // These are all of the allocation's.
  std::vector<std::string> more_words;  // --srun-args; after ivyrun's, so they win.
  std::string script;
};

// The whole argv. The step takes every processor, device and byte of memory that the job has on
// these hosts and counts as using none, so that the user's own srun runs beside it.
std::vector<std::string> srun_command(const StepRequest& request);

// Returns the caller's environment for srun: without variables that it would read as options of
// this step, and, unless the step has this host alone, without those that select accelerators.
// LD_LIBRARY_PATH and LD_PRELOAD, which may keep srun itself from starting, travel under other
// names; step_script() restores them for ivy-node.
Environment srun_environment(const Environment& caller, bool is_here_alone);
// Left out for srun's sake alone: workers get it back (SLURM_CPUS_PER_TASK and the like).
bool is_hidden_from_srun(std::string_view name);

//
// Standard input goes to all hosts alike (--input=all). A host runs the launcher's own ivy-node
// where it sees that file, else one that was put there before; else it asks, and takes from its
// input what is then sent to all:
//
//   order  { "bundle ARCH BYTES SHA256 SCRIPT_BYTES" script tar  order }
//   answers, on standard output:   \001ivy:need ARCH NODE      \001ivy:fail NODE TEXT

// For /bin/sh -c. own_binary: the launcher's path of ivy-node. version_line: what its --version
// prints. bundle_name: NodeUpload::name().
std::string step_script(const std::string& own_binary, const std::string& version_line,
                        const std::string& bundle_name);
// The text sent before the bundle's own bytes.
// archive_begin: behind the program that decompresses the rest (links/node_upload.h).
std::string bundle_header(const std::string& architecture, const std::string& sha256,
                          std::size_t bytes, std::size_t archive_begin);
// A host that could not put the bundle into one of three directories asks for it again.
inline constexpr int kMostBundlesOfAKind = 3;

struct StepAnswer {
  enum class Kind { kNeed, kFail };
  Kind kind = Kind::kNeed;
  std::string architecture;  // Set where kind is kNeed.
  std::string node;
  std::string text;  // Set where kind is kFail.
};
// A line of a host's standard output; nothing when it is not ours.
std::optional<StepAnswer> parse_step_answer(std::string_view line);

// "srun: error: node[2-3]: tasks 1-2: Exited with exit code 4": these hosts take part no more.
struct TasksEnded {
  std::vector<std::string> nodes;
  std::string how;  // "Exited with exit code 4"
};
std::optional<TasksEnded> parse_tasks_ended(std::string_view line);
// "ivy-node: node3: TEXT": a message of a host that has not connected yet.
struct HostWords {
  std::string node;
  std::string text;  // Set where kind is kFail.
};
std::optional<HostWords> parse_host_words(std::string_view line);
// True if srun keeps retrying: "step creation temporarily disabled, retrying (Requested nodes are
// busy)".
bool is_waiting_for_resources(std::string_view line);
// Why, in our words where its own do not say what to do; empty: they say enough, as that the job's
// prolog still runs.
std::string why_srun_waits(std::string_view line);
// True for a line of srun's that helps no user: that this cluster binds no processors, which was
// not asked for, and the advice about munged in front of the line that tells the error.
bool is_srun_noise(std::string_view line);

// Explains why the step could not start or has ended. `said`: srun's standard error, noise
// included. `ended`: how srun exited, in words. The message contains the relevant line of srun; the
// fix covers known causes.
Error srun_failure(std::string_view said, const std::string& ended);

}  // namespace ivy
