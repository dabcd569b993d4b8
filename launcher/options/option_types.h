// SPDX-License-Identifier: Apache-2.0
// Types of the flags' values: enumerations, and the small structs of --nproc_per_node,
// --show-ranks, --transport, --redirects and --tee. Pure; thread: any.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ivy {

// --container-mount SOURCE:TARGET[:ro]; both are absolute.
struct MountChoice {
  std::string source;
  std::string target;
  bool read_only = false;
  bool operator==(const MountChoice&) const = default;
};

enum class ProgramKind { kAuto, kScript, kModule, kExecutable };
enum class ColorChoice { kAuto, kAlways, kNever };
enum class LogLocation { kHead, kNode, kBoth };
enum class OverflowChoice { kBlock, kDrop };
// --visible: the accelerators of its host that a worker sees. kAuto: as its framework expects.
enum class VisibleChoice { kAuto, kAll, kOwn };
// --backend: the workers' framework.
enum class Profile {
  kTorch,
  kJax,
  kTensorflow,
  kNumpy,
  kCupy,
  kPaddle,
  kMpi,
  kMlx,
  kLightgbm,
  kHorovod
};
// --app: program that runs in addition to the workers.
enum class App { kNone, kJaxService, kRoles };
// --env: the caller's variables that workers get. kListed: on other hosts, only variables that
// frameworks read.
enum class EnvChoice { kListed, kAll, kNone };
// --summary: report at the end of a job.
enum class SummaryChoice { kAuto, kOff, kJson };
// --on-failure: action if a worker fails.
enum class OnFailure { kRestart, kShrink, kReplace };
// --on-stall: action if there was no progress for --stall-timeout.
enum class OnStall { kReport, kStop };
// --pick: the hosts that get ranks if there are more than needed.
enum class PickChoice { kFirst, kHealthiest };

// --watch-notices: who announces that hosts will be stopped. kAuto: each host's own cloud, and
// Slurm.
enum class WatchNotices { kAuto, kAws, kGcp, kAzure, kSlurm, kNone };
// --map-by: the property by which consecutive ranks are close to each other.
enum class MapChoice { kHost, kNvlink, kSwitch };
// --bind-to. kAuto: near the worker's accelerators, if it has any.
enum class BindChoice { kAuto, kNone, kCore, kL3, kNuma, kSocket };

// --rlimit: a soft limit of the workers.
struct RequestedLimit {
  int resource = 0;         // RLIMIT_NOFILE
  std::uint64_t value = 0;  // kUnlimited of resource_limit.h: no limit.
};

// Workers per host: a number, or a word that is resolved by facts about the host.
struct PerHost {
  enum class Kind { kNumber, kAuto, kGpu, kXpu, kCpu };
  Kind kind = Kind::kAuto;
  int number = 0;
  bool written = false;  // --nproc_per_node was given.
};

// The ranks that reach the console: a list, or every rank.
struct ShowRanks {
  bool all = true;
  bool first_per_host = false;
  bool failed = false;  // Only failed ranks, after they have failed.
  bool local = false;   // The numbers are local ranks (--local-ranks-filter).
  std::vector<int> ranks;

  bool includes(int rank, int local_rank) const {
    if (all) return true;
    if (failed) return false;
    if (first_per_host) return local_rank == 0;
    return std::find(ranks.begin(), ranks.end(), local ? local_rank : rank) != ranks.end();
  }
};

// The ranks that read ivyrun's standard input.
struct InputChoice {
  enum class Kind { kNone, kRank, kAll };
  Kind kind = Kind::kRank;
  int rank = 0;

  bool gives(int to_rank) const {
    return kind == Kind::kAll || (kind == Kind::kRank && rank == to_rank);
  }
};

// A command that reaches hosts, under a name that --transport accepts (exec_command.h).
struct NamedCommand {
  std::string name;
  std::string text;    // As for --exec.
  std::string origin;  // Where it was defined: "/etc/ivyrun/config.toml:3"; empty for ivyrun's own.
};

// torchrun's --redirects and --tee: streams as bits, 1 standard output, 2 standard error, for every
// worker of a host or by local rank (0 for a rank that is not listed).
struct StreamChoice {
  int everywhere = 0;
  std::map<int, int> by_local_rank;

  int of(int local_rank) const {
    const auto found = by_local_rank.find(local_rank);
    return found == by_local_rank.end() ? everywhere : found->second;
  }
  bool has_any() const {
    return everywhere != 0 || std::any_of(by_local_rank.begin(), by_local_rank.end(),
                                          [](const auto& entry) { return entry.second != 0; });
  }
};

}  // namespace ivy
