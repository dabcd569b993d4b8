// SPDX-License-Identifier: Apache-2.0
// In this order: variables that are hidden from srun; the shell scripts that the step runs on each
// host, which start ivy-node or, if the host has none, ask for it and install it; srun's command
// and environment; the parsers of the lines that the scripts and srun print; and the explanation of
// srun's errors (srun_failure()).
#include "launcher/slurm/step.h"

#include <algorithm>

#include "launcher/slurm/nodelist.h"
#include "proto/contract/device_vendor.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

constexpr SlurmVersion kExternalLauncher{23, 11};
constexpr SlurmVersion kOverlap{20, 11};

// Variables that srun would read as options of its own step (srun(1), "input environment
// variables"). Variables that identify the job, the cluster and the controller are kept.
constexpr std::string_view kHidden =
    "SLURM_ACCTG_FREQ SLURM_BCAST* SLURM_COMPRESS SLURM_CONSTRAINT SLURM_CONTAINER* "
    "SLURM_CORE_SPEC SLURM_CPUS_PER_GPU SLURM_CPUS_PER_TASK SLURM_CPU_BIND* SLURM_CPU_FREQ_REQ "
    "SLURM_DEBUG* SLURM_DEPENDENCY SLURM_DISABLE_STATUS SLURM_DIST* SLURM_EPILOG SLURM_EXACT "
    "SLURM_EXCLUSIVE SLURM_EXIT_* SLURM_EXPORT_ENV SLURM_GPUS SLURM_GPUS_PER_* SLURM_GPU_* "
    "SLURM_GRES* SLURM_HINT SLURM_HOSTFILE SLURM_IMMEDIATE SLURM_KILL_BAD_EXIT SLURM_LABELIO "
    "SLURM_MEM_BIND* SLURM_MEM_PER_* SLURM_MPI_TYPE SLURM_MULTI_PROG SLURM_NETWORK "
    "SLURM_NO_KILL SLURM_NPROCS SLURM_NTASKS* SLURM_OPEN_MODE SLURM_OVERCOMMIT SLURM_OVERLAP "
    "SLURM_POWER SLURM_PROFILE SLURM_PROLOG SLURM_REMOTE_CWD SLURM_REQ_SWITCH SLURM_RESV_PORTS "
    "SLURM_SEND_LIBS SLURM_SIGNAL SLURM_SPREAD_JOB SLURM_SRUN_REDUCE_TASK_EXIT_MSG "
    "SLURM_STDERRMODE SLURM_STDINMODE SLURM_STDOUTMODE SLURM_STEP_GRES SLURM_TASK_EPILOG "
    "SLURM_TASK_PROLOG SLURM_TEST_EXEC SLURM_THREADS* SLURM_THREAD_SPEC SLURM_TIMELIMIT "
    "SLURM_TRES_* SLURM_UNBUFFEREDIO SLURM_USE_MIN_NODES SLURM_WAIT* SLURM_WORKING_DIR SRUN_*";

constexpr std::string_view kMarker = "\001ivy:";

// step_script() sets p, m, v, h and lost before this script: the launcher's ivy-node, its
// architecture and version, the name of the bundle, and the failures of earlier installations.
constexpr std::string_view kScript = R"script(
a=$(uname -m); u=$(id -u)
k=$XDG_CACHE_HOME w=
case $k in /*) ;; *) k=$HOME/.cache ;; esac
dial() {
  [ -z "${IVY_LD_LIBRARY_PATH-}" ] || export LD_LIBRARY_PATH="$IVY_LD_LIBRARY_PATH"
  [ -z "${IVY_LD_PRELOAD-}" ] || export LD_PRELOAD="$IVY_LD_PRELOAD"
  unset IVY_LD_LIBRARY_PATH IVY_LD_PRELOAD
  exec "$1" dial
}
if [ "$m" = "$a" ] && [ -x "$p" ] && [ "$("$p" --version 2>/dev/null)" = "$v" ]; then dial "$p"; fi
for b in "$k/ivyrun" "/tmp/ivyrun-cache-$u" "/dev/shm/ivyrun-cache-$u"; do
  d=$b/$h-$a f=$b/$h-$a/ivy-node
  if [ -x "$f" ] && [ -O "$b" ] && [ -O "$d" ] && [ -O "$f" ]; then
    if [ -h "$b" ] || [ -h "$d" ] || [ -h "$f" ]; then continue; fi
    l= z=; { read -r l; read -r z; } 2> /dev/null < "$d/sizes"
    [ "$z" ] && [ "$(cd "$d" && echo $(LC_ALL=C wc -c $l 2> /dev/null < /dev/null))" = "$z" ] || { w=1; continue; }
    case $(ls -ld "$b") in drwx--[-S]--[-T]*) dial "$f" ;; esac
  fi
done
need() { printf '\001ivy:need %s %s\n' "$a" "${SLURMD_NODENAME:-$(uname -n)}"; }
skip() { while read -r l; do [ "$l" = end ] && return; done; exit 1; }
need; skip; tried=
while read -r w m n s c; do
  [ "$w" = bundle ] || exit 1
  if [ "$m" = "$a" ]; then eval "$(head -c "$c")"; else head -c "$((c + n))" > /dev/null; fi
  skip
done
)script";

// Uses z, and a, h, k, lost, n, s, tried, u and w of the script above. Reads the bundle exactly
// once, whether or not it can be installed. Does not try a directory again in which the
// installation failed. Rejects a directory that belongs to another user or is a link, and one in
// which programs may not be executed.
constexpr std::string_view kInstallScript = R"script(
umask 077
why= t=
x() { why="$why$b: $1; "; [ -z "$t" ] || rm -rf "$t"; t=; }
for b in "$k/ivyrun" "/tmp/ivyrun-cache-$u" "/dev/shm/ivyrun-cache-$u"; do
  case " $tried " in *" $b "*) continue ;; esac
  d=$b/$h-$a t=
  e=$(mkdir -p "$b" 2>&1) || { x "$e"; continue; }
  if [ -h "$b" ] || [ ! -O "$b" ]; then x 'belongs to another user'; continue; fi
  e=$(chmod 700 "$b" 2>&1) || { x "$e"; continue; }
  if [ -h "$d" ] || [ -h "$d/ivy-node" ] || { [ -e "$d/ivy-node" ] && [ ! -O "$d/ivy-node" ]; } || { [ -e "$d" ] && [ ! -O "$d" ]; }; then
    e=$(rm -rf "$d" 2>&1) || { x "$e"; continue; }
  fi
  e=$(mktemp -d "$b/.new.XXXXXX" 2>&1) || { x "$e"; continue; }
  t=$e
  e=$({ printf '#!/bin/sh\nexit 0\n' | cat > "$t/try" && chmod 700 "$t/try"; } 2>&1) || { x "$e"; continue; }
  e=$("$t/try" 2>&1) || { x "programs may not run there (${e##*: })"; continue; }
  break
done
if [ -z "$t" ]; then
  head -c "$n" > /dev/null
  printf '\001ivy:fail %s %s\n' "${SLURMD_NODENAME:-$(uname -n)}" "$(printf %s "$lost${why%; }" | tr '\n' ' ')"
  exit 4
fi
e=$(head -c "$n" | { cat > "$t/bundle"; r=$?; cat > /dev/null; exit "$r"; } 2>&1) || x "$e"
if [ -n "$t" ]; then
  e=$(sha256sum < "$t/bundle" 2>&1)
  [ "${e%% *}" = "$s" ] || x "the received bundle differs from the sent one ($e)"
fi
if [ -n "$t" ]; then mkdir "$t/in" && chmod 700 "$t/bundle" && e=$(cd "$t/in" && ../bundle "$z" < ../bundle 2>&1 | tar -xof - 2>&1) || x "$(cat "$t/bundle" 2>&1 > "$t/more") $e"; fi
if [ -n "$t" ]; then e=$("$t/in/ivy-node" --version 2>&1) || x "ivy-node does not run: $e"; fi
if [ -n "$t" ]; then
  sync "$t"/in/* 2> /dev/null
  [ -z "$w" ] || mv "$d" "$t/old" 2> /dev/null
  [ -d "$d" ] || mv "$t/in" "$d" 2> /dev/null
  rm -rf "$d/in"
  [ -x "$d/ivy-node" ] || mv -f "$t"/in/* "$d/" 2> /dev/null
  rm -rf "$t"; t=
  if [ -x "$d/ivy-node" ]; then dial "$d/ivy-node"; fi
fi
tried="$tried $b" lost="$lost$why"
need
)script";

bool is_one_of(std::string_view patterns, std::string_view name) {
  const std::vector<std::string_view> words = words_of(patterns);
  return std::any_of(words.begin(), words.end(), [name](std::string_view pattern) {
    return env_pattern_matches(pattern, name);
  });
}

std::optional<std::string_view> behind(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return std::nullopt;
  return text.substr(prefix.size());
}

// srun's last error is usually a consequence of the first one.
std::string_view error_line_in(std::string_view stderr_text) {
  std::string_view error_line;
  while (!stderr_text.empty()) {
    const std::string_view line = take_part(stderr_text, '\n');
    const bool is_blank = line.find_first_not_of(" \t\r") == std::string_view::npos;
    if (is_blank || is_srun_noise(line) || parse_tasks_ended(line)) continue;
    const bool is_error = line.find("error:") != std::string_view::npos ||
                          line.find("fatal:") != std::string_view::npos ||
                          line.find("CANCELLED") != std::string_view::npos ||
                          line.find("unrecognized option") != std::string_view::npos ||
                          line.starts_with("ivy-node:");
    if (is_error) return line;
    if (error_line.empty()) error_line = line;
  }
  return error_line;
}

struct KnownFailure {
  std::string_view words;
  const char* fix;
};
constexpr KnownFailure kKnownFailures[] = {
    {"unrecognized option",
     "check --srun-args; srun --help lists the options of this version of Slurm"},
    {"nvalid job id", "the allocation has ended: start ivyrun inside a new sbatch or salloc"},
    {"already complete", "the allocation has ended: start ivyrun inside a new sbatch or salloc"},
    {"CANCELLED", "the step or the whole job was cancelled (scancel, time limit, preemption)"},
    {"equired node not available",
     "scontrol show node shows why; a new sbatch or salloc would get other hosts"},
    {"odes are busy", "another step uses the hosts: stop it, or start it with srun --overlap"},
    {"emory", "another step uses the memory: start it with srun --overlap or a smaller --mem"},
    {"unge", "munged must run on this host (systemctl status munge), with the cluster's key"},
    {"ontact slurm controller", "ask the cluster's administrator: slurmctld does not answer"},
};

}  // namespace

std::optional<SlurmVersion> parse_slurm_version(std::string_view text) {
  const std::size_t begin = text.find_first_of("0123456789");
  if (begin == std::string_view::npos) return std::nullopt;
  text = text.substr(begin);
  text = text.substr(0, text.find_first_not_of("0123456789."));
  const std::optional<int> year = to_number<int>(take_part(text, '.'));
  const std::optional<int> month = to_number<int>(take_part(text, '.'));
  if (!year || !month) return std::nullopt;
  return SlurmVersion{*year, *month};
}

std::vector<std::string> srun_command(const StepRequest& request) {
  std::vector<std::string> words = {"srun"};
  if (request.version && *request.version >= kExternalLauncher) {
    words.emplace_back("--external-launcher");
  } else if (!request.version || *request.version >= kOverlap) {
    // Before 20.11, steps shared resources by default.
    words.insert(words.end(), {"--overlap", "--whole", "--mem=0"});
  }
  const std::string count = std::to_string(request.hosts.size());
  words.insert(words.end(), {"--nodes=" + count, "--ntasks=" + count, "--ntasks-per-node=1"});
  if (!request.is_whole_allocation) words.push_back("--nodelist=" + nodelist_text(request.hosts));
  for (const char* const word : {"--mpi=none", "--cpu-bind=none",
                                 // ivyrun decides what the exit of one host means, not Slurm.
                                 "--kill-on-bad-exit=0", "--wait=0", "--no-kill", "--input=all",
                                 "--export=ALL", "--chdir=/", "--job-name=ivyrun"}) {
    words.emplace_back(word);
  }
  words.insert(words.end(), request.extra_arguments.begin(), request.extra_arguments.end());
  words.insert(words.end(), {"/bin/sh", "-c", request.script});
  return words;
}

bool is_hidden_from_srun(std::string_view name) { return is_one_of(kHidden, name); }

Environment srun_environment(const Environment& caller, bool is_single_host) {
  Environment kept;
  for (const EnvVariable& variable : caller) {
    if (is_hidden_from_srun(variable.name)) continue;
    // Slurm sets these on each node; a node that it does not manage would get this node's.
    if (!is_single_host && selects_devices(variable.name)) continue;
    const bool is_for_workers = variable.name == "LD_LIBRARY_PATH" || variable.name == "LD_PRELOAD";
    kept.push_back({(is_for_workers ? "IVY_" : "") + variable.name, variable.value});
  }
  return kept;
}

std::string step_script(const std::string& own_binary, const std::string& own_architecture,
                        const std::string& version_line, const std::string& bundle_name) {
  return "p=" + quoted_word(own_binary) + " m=" + quoted_word(own_architecture) +
         " v=" + quoted_word(version_line) + " h=" + quoted_word(bundle_name) +
         " lost=" + std::string(kScript);
}

std::string bundle_header(const std::string& architecture, const std::string& sha256,
                          std::size_t bytes, std::size_t archive_begin) {
  const std::string script = "z=" + std::to_string(archive_begin) + std::string(kInstallScript);
  return "bundle " + architecture + " " + std::to_string(bytes) + " " + sha256 + " " +
         std::to_string(script.size()) + "\n" + script;
}

std::optional<StepAnswer> parse_step_answer(std::string_view line) {
  const std::size_t marker = line.find(kMarker);
  if (marker == std::string_view::npos) return std::nullopt;
  line = line.substr(marker + kMarker.size());
  StepAnswer answer;
  if (auto rest = behind(line, "need ")) {
    answer.architecture = take_part(*rest, ' ');
    answer.node = *rest;
  } else if (auto failed = behind(line, "fail ")) {
    answer.kind = StepAnswer::Kind::kFail;
    answer.node = take_part(*failed, ' ');
    answer.text = *failed;
  } else {
    return std::nullopt;
  }
  const bool is_whole = answer.kind == StepAnswer::Kind::kFail || !answer.architecture.empty();
  if (answer.node.empty() || !is_whole) return std::nullopt;
  return answer;
}

std::optional<TasksEnded> parse_tasks_ended(std::string_view line) {
  std::optional<std::string_view> rest = behind(line, "srun: error: ");
  if (!rest) rest = behind(line, "srun: ");
  if (!rest) return std::nullopt;
  const std::size_t colon = rest->find(": task");
  if (colon == std::string_view::npos) return std::nullopt;
  const Result<std::vector<std::string>> nodes = parse_nodelist(rest->substr(0, colon));
  if (!nodes.ok()) return std::nullopt;
  const std::string_view tail = rest->substr(colon + 2);
  const std::size_t how = tail.find(": ");
  if (how == std::string_view::npos) return std::nullopt;
  return TasksEnded{*nodes, std::string(tail.substr(how + 2))};
}

std::optional<HostMessage> parse_host_message(std::string_view line) {
  const std::optional<std::string_view> rest = behind(line, "ivy-node: ");
  const std::size_t colon = rest ? rest->find(": ") : std::string_view::npos;
  if (colon == std::string_view::npos) return std::nullopt;
  return HostMessage{std::string(rest->substr(0, colon)), std::string(rest->substr(colon + 2))};
}

bool is_waiting_for_resources(std::string_view line) {
  return line.find("step creation temporarily disabled") != std::string_view::npos ||
         line.find("step creation still disabled") != std::string_view::npos;
}

std::string why_srun_waits(std::string_view line) {
  const bool is_held = line.find("odes are busy") != std::string_view::npos;
  return is_held ? "another step of this Slurm job uses the resources that it needs (start that "
                   "step with "
                   "srun --overlap)"
                 : "";
}

bool is_srun_noise(std::string_view line) {
  return line.find("lacks support for cpu binding") != std::string_view::npos ||
         // Printed before the line with the reason.
         line.find("If munged is up, restart with") != std::string_view::npos;
}

Error srun_failure(std::string_view stderr_text, const std::string& ended) {
  const std::string_view error_line = error_line_in(stderr_text);
  Error error{Code::kUnavailable, "srun " + ended, ""};
  if (!error_line.empty()) error.message += ": " + std::string(error_line);
  for (const KnownFailure& known : kKnownFailures) {
    if (error_line.find(known.words) == std::string_view::npos) continue;
    error.fix = known.fix;
    break;
  }
  return error;
}

}  // namespace ivy
