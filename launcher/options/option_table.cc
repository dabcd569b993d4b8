// SPDX-License-Identifier: Apache-2.0
// The table itself comes first and is most of the file: one row per flag, grouped as in the help.
// rejected(), ignored() and torchruns() make the rows of other launchers' flags. find_option() and
// nearest_option() search the table.
#include "launcher/options/option_table.h"

#include <algorithm>
#include <vector>

#include "proto/contract/edit_distance.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

using enum OptionGroup;
using enum OptionKind;
using enum OptionOrigin;

// Another launcher's flag that does not exist here; `instead` names the alternative.
constexpr OptionEntry rejected(std::string_view name, std::string_view aliases,
                               std::string_view instead) {
  return {name, aliases, "", kDiagnosis, kRejected, kIvyrun, instead};
}

// Another launcher's switch that has no effect here, with a note.
constexpr OptionEntry ignored(std::string_view name, std::string_view aliases,
                              std::string_view note) {
  return {name, aliases, "", kDiagnosis, kIgnored, kIvyrun, note};
}

// A flag of torchrun that has no effect here, with the name of its value.
constexpr OptionEntry torchruns(std::string_view name, std::string_view value,
                                std::string_view note) {
  return {name, "", value, kDiagnosis, kIgnored, kTorchrun, note};
}

constexpr OptionEntry kTable[] = {
    // clang-format off
    {"hosts", "-H --host -host", "LIST", kPlacement, kHonoured, kIvyrun,
     "hosts in rank order: 'h1:4,user@h2,node[01-08],[::1]:2' (quote the brackets, or your shell expands them); "
     "@FILE reads a hostfile"},
    {"hostfile", "-hostfile --machinefile -machinefile --deepspeed-hostfile", "FILE", kPlacement,
     kHonoured, kIvyrun, "hosts from a file (- is standard input): one `host[:slots]` or `host slots=N` per line"},
    {"hosts-from", "", "COMMAND", kPlacement, kHonoured, kIvyrun,
     "hosts from the output of a shell command, written as in a hostfile; it may take 60 s, and runs again before a "
     "restart"},
    {"num-proc", "-n -np --np --num-processes --ntasks", "N", kPlacement, kHonoured, kIvyrun,
     "number of workers in total"},
    {"nproc-per-node", "--npernode -npernode --ppn -ppn --ntasks-per-node --num-gpus "
     "--slots-per-host", "N|auto|gpu|xpu|cpu", kPlacement, kHonoured, kTorchrun,
     "workers on each host (default: the slots written for it, else one per GPU, else 1)"},
    {"nnodes", "--num-nodes --num-machines --nodes", "N|MIN:MAX", kPlacement, kHonoured, kTorchrun,
     "use the first N hosts; MIN:MAX: start with at least MIN of the first MAX if the others do not come up "
     "within --start-timeout, and continue without hosts that are lost"},
    {"spares", "", "K", kPlacement, kHonoured, kIvyrun,
     "keep the last K hosts ready without workers: if a host is lost, one of them takes its ranks, and --nnodes N "
     "--spares K uses N+K hosts"},
    {"pick", "", "first|healthiest", kPlacement, kHonoured, kIvyrun,
     "if there are more hosts than --nnodes: use the first ones (the default), or the first ones that come up, with the "
     "others as spares"},
    {"grow", "", "TIME", kPlacement, kHonoured, kIvyrun,
     "with --nnodes MIN:MAX: connect again to hosts that are missing, and restart the workers with those that come up, "
     "at the next failure or at most once every TIME (--preempt-signal is sent first, if given)"},
    {"fake-hosts", "", "N", kPlacement, kHonoured, kIvyrun,
     "simulate N hosts on this machine, for testing"},
    rejected("-N", "-N", "-N means different things to mpirun and srun: use --nnodes N or --nproc-per-node N"),
    {"include", "", "HOSTS", kPlacement, kHonoured, kIvyrun,
     "use only these hosts: 'node[01-08],node17', or only some slots (GPUs) of them, in DeepSpeed's form: 'h1@h2:0,2'"},
    {"exclude", "", "HOSTS", kPlacement, kHonoured, kIvyrun,
     "leave out these hosts, or these slots of them: 'h2@h3:1'"},
    {"map-by", "-map-by", "host|nvlink|switch", kPlacement, kHonoured, kIvyrun,
     "rank order: `host` as in -H (default); `nvlink`: hosts of one NVLink domain follow each other; `switch`: hosts "
     "behind one network switch (SLURM_TOPOLOGY_ADDR), and accelerators behind one PCI switch; --dry-run shows it"},
    {"bind-to", "-bind-to --numa-binding --cpu-bind --bind-cores-to-rank=core --enable-cpu-affinity=numa",
     "core|l3|numa|socket|none", kPlacement, kHonoured, kIvyrun,
     "pin workers to CPU cores: core (an equal share of the cores for each), l3, numa or socket (all cores of one), "
     "none; default: near its GPUs if it has any, else none"},
    {"report-bindings", "-report-bindings", "", kPlacement, kHonoured, kIvyrun,
     "report the cores that each rank is pinned to"},
    {"visible", "--virtual-local-rank=own", "all|own", kPlacement, kHonoured, kIvyrun,
     "which GPUs a worker sees: `all` of its host's (select by LOCAL_RANK; default for torch and jax) or only its "
     "`own` (always device 0; default for the other backends and with --gpus-per-proc)"},
    {"gpus-per-proc", "-gpus-per-proc --gpus-per-task --gpus-per-process --devices-per-proc", "K", kPlacement, kHonoured,
     kIvyrun, "GPUs of each worker (default 1); without -n, each host runs as many workers as its GPUs allow"},
    {"cpu-devices", "", "K", kPlacement, kHonoured, kIvyrun,
     "JAX: give each worker K simulated CPU devices and no others, for testing"},
    {"oversubscribe", "-oversubscribe", "", kPlacement, kHonoured, kIvyrun,
     "let workers share GPUs if --visible own, --gpus-per-proc or --nproc-per-node gpu needs more GPUs than exist"},
    {"device-env", "", "NAME", kPlacement, kHonoured, kIvyrun,
     "also set this variable to a worker's devices, for vendors that ivyrun does not know, such as "
     "ASCEND_RT_VISIBLE_DEVICES; may be repeated"},
    rejected("wal", "--store-wal", "the store keeps nothing on disk; use --max-restarts N to restart the job with a new store if the store is lost"),
    rejected("store-proxy", "", "leave it out: workers connect to the store directly"),
    ignored("use-env", "", "LOCAL_RANK is always set"),
    {"mpi", "", "", kDiagnosis, kIgnored, kIvyrun, "MPI programs find each other through PMI or PMIx (docs/mpi.md)", "KIND"},
    rejected("page", "", "use `ivyctl top` to see the ranks, or --metrics-file FILE for Prometheus"),
    rejected("workers", "--num-workers --nprocs --ranks --processes --gpus",
            "use -n N for N workers in total, or --nproc-per-node N for N on each host"),
    rejected("gres", "--gpus-per-node -G", "ivyrun finds the GPUs of a host itself: use --nproc-per-node N for N workers on each "
            "host, or --gpus-per-proc K for K GPUs per worker"),
    rejected("world-size", "--rank --local-rank", "ivyrun sets rank and world size for every worker; use -n N for N "
            "workers"),
    rejected("nodelist", "-w --nodefile", "use -H h1,h2,... or --hostfile FILE"),
    rejected("-f", "-f", "use --hostfile FILE"),
    rejected("partition", "-p --account -A --qos --job-name -J --mem --exclusive",
            "allocate hosts with sbatch or salloc and run ivyrun inside; for an SSH port use --ssh-port PORT"),
    rejected("cpus-per-task", "-c --num-cpu-threads-per-process",
     "use --bind-to core for an equal share of the cores per worker, or -x OMP_NUM_THREADS=N to limit threads; for Python "
     "code: ivyrun ... python3 -c CODE"),

    {"module", "-m", "", kCommand, kHonoured, kTorchrun,
     "the program is a Python module, as in python -m"},
    {"no-python", "", "", kCommand, kHonoured, kTorchrun,
     "run the program directly even if its name ends in .py"},
    {"python", "", "PATH", kCommand, kHonoured, kIvyrun,
     "Python for scripts and modules (default: IVY_PYTHON, the active environment, python3)"},
    {"wdir", "-wdir --chdir --cwd --workdir --working-dir --working-directory", "DIR", kCommand, kHonoured, kIvyrun,
     "working directory on every host (default: this one)"},
    {"stage", "", "", kCommand, kHonoured, kIvyrun,
     "send your files to the hosts, and run in the copy: the git work tree, or the program's directory; "
     "--stage=DIR[:PATTERNS]: this directory, only '*.py,conf', or all but '!data' (docs/no-shared-files.md)",
     "DIR[:PATTERNS]"},
    {"stage-to", "", "DIR", kCommand, kHonoured, kIvyrun,
     "with --stage: where hosts keep the files, on their local disk (default: ~/.cache/ivyrun/stage); workers of this "
     "machine then run in a copy, too"},
    {"stage-limit", "", "SIZE", kCommand, kHonoured, kIvyrun,
     "with --stage: reject more than this (default 2G)"},
    {"stage-venv", "", "", kCommand, kHonoured, kIvyrun,
     "--stage, and also send the active Python environment (venv, uv, conda); =uv: each host creates it from uv.lock "
     "instead", "uv"},
    {"export", "-x", "K[=V]", kCommand, kHonoured, kIvyrun,
     "set a variable for the workers; K* passes all variables that start with K; may be repeated"},
    {"env-file", "", "FILE", kCommand, kHonoured, kIvyrun,
     "set the variables of a file for the workers: NAME, NAME=VALUE, NAME='VALUE' or NAME=\"VALUE\" per "
     "line, `export` and # comments allowed; may be repeated"},
    {"env", "--genvall=all -genvall=all -envall=all --envall=all -genvnone=none -envnone=none", "safe|all|none", kCommand,
     kHonoured, kIvyrun,
     "which of your variables workers on other hosts get: those that frameworks read (safe, the default), or all; "
     "none: workers get a login environment plus -x and --env-file"},
    {"rlimit", "-rlimit", "NAME=VALUE", kCommand, kHonoured, kIvyrun,
     "soft limit of the workers, such as nofile=65536, stack=unlimited or core=0 (default: core, fsize, nofile and stack "
     "are those of this shell on every host; the others are as, cpu, data, memlock, nproc, rss); may be repeated"},
    {"wrap", "", "COMMAND", kCommand, kHonoured, kIvyrun,
     "run each worker under COMMAND, such as 'nsys profile -o trace.%r' or 'numactl -l'; placeholders as in --output"},
    {"wrap-ranks", "", "RANKS", kCommand, kHonoured, kIvyrun,
     "with --wrap: only for these ranks, such as 0,8 or first-per-host"},
    {"activate", "", "VENV|conda:NAME", kCommand, kHonoured, kIvyrun,
     "run workers in this virtual environment, with its python, PATH and variables"},
    {"preload", "", "MODULES", kCommand, kHonoured, kIvyrun,
     "import these Python modules once per host, such as torch,transformers, and fork the workers of each attempt from "
     "that process, so that a restart imports nothing (docs/warm-workers.md)"},
    {"stdin", "", "RANK|all|none", kCommand, kHonoured, kIvyrun,
     "the rank that reads standard input (default 0); all: every rank gets a full copy"},
    {"role", "", "NAME=COMMAND", kCommand, kHonoured, kTorchrun,
     "also run COMMAND on every host (NAME@first: on the first one, NAME@others: on the others) until the program "
     "exits; may be repeated (docs/apps.md)"},
    {"backend", "-B -backend", "torch|jax|tensorflow|numpy|cupy|paddle|horovod|mlx|lightgbm|mpi", kCommand, kHonoured, kIvyrun,
     "framework of the workers: torch (default), jax, tensorflow, numpy, cupy, paddle, horovod, mlx, lightgbm, mpi; it "
     "decides --visible, and some read variables of their own (docs/frameworks.md); mpi: every worker has to join the MPI world (docs/mpi.md); without it a worker may"},
    {"allow-singletons", "", "", kCommand, kHonoured, kIvyrun,
     "start Horovod's programs without -B horovod, or MPI programs as worlds of one: "
     "each worker is rank 0 of 1; without this flag, that is an error if there is more than one worker"},
    rejected("genv", "-genv -env -genvlist -envlist", "use -x NAME=VALUE, or -x NAME for a variable that is set here"),
    {"container", "--container-image", "IMAGE", kCommand, kHonoured, kIvyrun,
     "run the workers of each host in one container of this image: a name as for podman and docker, or a .sif or .sqsh "
     "file (docs/containers.md)"},
    {"container-runtime", "", "podman|apptainer|enroot|docker", kCommand, kHonoured, kIvyrun,
     "the program that runs the containers (default: the first of these that a host has)"},
    {"container-mount", "", "SOURCE:TARGET[:ro]", kCommand, kHonoured, kIvyrun,
     "show a directory or file of the host in the container, in addition to the working directory; may be repeated"},
    {"container-args", "", "ARGS", kCommand, kHonoured, kIvyrun,
     "more arguments for the runtime's run command, such as '--hostname trainer'"},
    {"app", "", "NAME|FILE", kCommand, kHonoured, kIvyrun,
     "also run the servers that the program needs: dask, ray, sglang, tf-ps, vllm, xgboost, or those of a TOML file "
     "(docs/apps.md); jax-service: JAX's coordination service in a separate process on the first host"},
    {"app-args", "", "WORDS", kCommand, kHonoured, kIvyrun,
     "additional arguments for the app's servers, such as --app-args '--num-cpus 4'; may be repeated"},
    {"tf-roles", "", "TYPE[:N],...", kCommand, kHonoured, kIvyrun,
     "-B tensorflow: the TF_CONFIG task of each rank, in rank order, such as chief,ps:2,worker (default: worker)"},
    rejected("mca", "-mca", "pass Open MPI's parameters as variables: --mca NAME VALUE is -x OMPI_MCA_NAME=VALUE"),
    rejected("mixed-precision", "--use-fsdp --use-deepspeed --deepspeed --dynamo-backend",
            "pass training options to the script, or set ACCELERATE_* variables"),
    rejected("config-file", "", "use --config FILE for flags in TOML; instead of num_processes in accelerate's file use -n, and "
            "for machines use -H"),
    ignored("multi-gpu", "", "one worker per accelerator is the default"),

    {"label", "-l=rank --tag-output=rank -tag-output=rank --label-io=rank -prepend-rank=rank",
     "auto|none|rank|host|TEMPLATE", kOutput, kHonoured, kIvyrun,
     "label of each output line: auto (default), none, rank, host, or a template of %r rank, %R padded, %h host, %l local "
     "rank, %s stream, %a attempt, %j job, %%; -l alone: rank"},
    {"timestamps", "--timestamp-output -timestamp-output --prefix-output-with-timestamp", "",
     kOutput,
     kHonoured, kIvyrun, "put the time before each line"},
    {"show-ranks", "", "RANKS", kOutput, kHonoured, kIvyrun,
     "ranks shown on the console: 0,8-15, first-per-host, or failed: show only the last output of a rank that fails "
     "(log files always get everything)"},
    {"local-ranks-filter", "", "RANKS", kOutput, kHonoured, kTorchrun,
     "local ranks shown on the console"},
    {"log-dir", "--enable-each-rank-log", "DIR", kOutput, kHonoured, kTorchrun,
     "write each rank's output to files below DIR"},
    {"output", "-o", "PATTERN", kOutput, kHonoured, kIvyrun,
     "also write each rank's output to a file of this name, such as 'logs/%h-%r.log': %j job, %r or %t rank, %h host, "
     "%n number of the host, %l local rank, %a attempt; %s out or err, else both streams share it; %4r pads"},
    {"log-to", "", "head|node|both", kOutput, kHonoured, kIvyrun,
     "where these files are written (default: head)"},
    {"redirects", "-r", "0..3|MAP", kOutput, kHonoured, kTorchrun,
     "send these streams only to the files of --log-dir and --output: 1 standard output, 2 standard error, 3 both; "
     "MAP: for these local ranks, such as 0:3,1:2"},
    {"tee", "-t", "0..3|MAP", kOutput, kHonoured, kTorchrun,
     "also show these streams on the console, despite --redirects"},
    {"dedup", "", "", kOutput, kHonoured, kIvyrun,
     "show equal lines of several ranks once, with their ranks in the label: [0-7] (default on a terminal; "
     "--dedup=false turns it off; log files get everything)"},
    {"raw", "", "", kOutput, kHonoured, kIvyrun, "pass terminal escape sequences through unchanged"},
    {"color", "--colour", "auto|always|never", kOutput, kHonoured, kIvyrun,
     "colour labels (default: on terminals)"},
    {"console-overflow", "", "block|drop", kOutput, kHonoured, kIvyrun,
     "if the console is not read: make workers wait, or drop lines (default: block)"},
    {"name", "", "NAME", kOutput, kHonoured, kIvyrun,
     "name of the job, for `ivyctl logs NAME`; also used in `ivyctl ps`, events and attempt.json"},
    {"events", "", "FILE|fd:N|-", kOutput, kHonoured, kIvyrun,
     "append events as JSON lines: plan, start, first_output, exit, restart, verdict (docs/machine-output.md)"},
    {"metrics-file", "", "FILE", kOutput, kHonoured, kIvyrun,
     "write metrics of the job to FILE for Prometheus (node_exporter's textfile collector) every 15 s"},
    {"summary", "", "auto|off|json", kOutput, kHonoured, kIvyrun,
     "end-of-job summary: text if there is something to report (auto), none (off), or one JSON line as the last line "
     "of standard error"},
    {"quiet", "-q", "", kOutput, kHonoured, kIvyrun, "print only errors"},
    {"verbose", "-v", "", kOutput, kHonoured, kIvyrun, "print more; -vv for debugging"},
    {"fetch", "", "PATTERN[:DIR]", kOutput, kHonoured, kIvyrun,
     "when the workers have exited, also after a failure, copy files of every host, such as 'out/*.pt' or 'ckpt/**', into "
     "DIR/HOST (default: fetched); with {rank} or {local_rank} in PATTERN into DIR/rankNNNNN; may be repeated"},
    {"fetch-limit", "", "SIZE", kOutput, kHonoured, kIvyrun,
     "fetch nothing if the files of all hosts together are larger, such as 500M or 2T (default 10G)"},
    {"fetch-timeout", "", "TIME", kOutput, kHonoured, kIvyrun,
     "give up files that have not been fetched after TIME (default 1h)"},
    rejected("output-filename", "-output-filename",
            "use --output 'DIR/%r.%s' (%h host, %r rank, %s out or err), or --log-dir DIR"),
    rejected("error", "-e", "use --output 'run-%r.%s' to write both streams of every rank to separate files"),
    ignored("unbuffered", "-u", "output is shown immediately"),

    {"start-timeout", "", "TIME", kLifecycle, kHonoured, kIvyrun,
     "time limit for reaching all hosts (default 120s)"},
    {"timeout", "-timeout", "TIME", kLifecycle, kHonoured, kIvyrun,
     "stop the job after TIME, such as 90, 30m, 1h30m or 01:30:00; 0: never"},
    {"shutdown-timeout", "--term-timeout --workers-stop-timeout", "TIME", kLifecycle, kHonoured,
     kTorchrun,
     "time from the first signal to SIGKILL (default: 5s after a failure, 30s if you stop the job). Ctrl-C sends "
     "SIGINT and SIGTERM one second later; any other stop sends SIGTERM immediately"},
    {"check", "", "COMMAND", kLifecycle, kHonoured, kIvyrun,
     "before the start and each restart, run this shell command on every host, which fails unless it exits with 0; "
     "unix:PATH: query a gRPC health service; default: only disk and /dev/shm; may be repeated (docs/check-hosts.md)"},
    {"check-timeout", "", "TIME", kLifecycle, kHonoured, kIvyrun,
     "a host fails whose checks take longer than TIME together (default 60s)"},
    {"expect-gpus", "", "N", kLifecycle, kHonoured, kIvyrun,
     "before the start and each restart: a host fails that does not have exactly N usable GPUs"},
    {"check-load", "", "", kLifecycle, kHonoured, kIvyrun,
     "before the start and each restart, measure arithmetic and network: a host fails below 0.7 x the median of all"},
    {"lease", "", "TIME", kLifecycle, kHonoured, kIvyrun,
     "stop the workers if they hear nothing from ivyrun for TIME (default: 10s, 60s in batch); if the connection "
     "was closed, they wait 60s for another one"},
    {"max-restarts", "", "N", kLifecycle, kHonoured, kTorchrun,
     "if a worker fails, restart all of them, at most N times (default 0; lost hosts of --nnodes MIN:MAX do not "
     "count); with --on-failure replace: replace at most N workers (default 3)"},
    {"restart-on", "", "LIST", kLifecycle, kHonoured, kIvyrun,
     "restart only after these causes, separated by commas: exit codes (7, 1-127), exit, signal, SIGSEGV, oom, xid, "
     "xid:79, host-lost, store-lost, stall, /REGEX/ (in the failing rank's last standard error)"},
    {"never-restart", "", "LIST", kLifecycle, kHonoured, kIvyrun,
     "never restart after these causes, even if --restart-on has them"},
    {"condemn-on", "", "LIST", kLifecycle, kHonoured, kIvyrun,
     "after these causes (as for --restart-on), restart without the host of the rank that failed first, if "
     "--spares or --nnodes MIN:MAX allows that; else a warning names it"},
    {"progress-match", "", "REGEX", kLifecycle, kHonoured, kIvyrun,
     "measure progress by the step that ranks print, the first group of REGEX ('step (\\d+)'): three attempts in a row "
     "that do not exceed the step of earlier ones end the job with exit code 93"},
    {"progress-file", "", "PATTERN", kLifecycle, kHonoured, kIvyrun,
     "measure progress by a file on rank 0's host, such as 'ckpt/*.pt': the newest file that matches, or the number in "
     "it, must be newer or larger than before; else as --progress-match"},
    {"on-failure", "", "restart|shrink|replace", kLifecycle, kHonoured, kIvyrun,
     "if a worker fails: stop all workers and restart them as --max-restarts allows (restart, the default), "
     "continue without it (shrink), or restart only it (replace); with shrink and replace the program repairs "
     "its groups itself"},
    {"min-workers", "", "N", kLifecycle, kHonoured, kIvyrun,
     "with --on-failure shrink: stop the job if fewer than N workers are left (default 1)"},
    torchruns("monitor-interval", "S", "the kernel reports a worker's exit immediately"),
    ignored("kill-on-bad-exit", "-K", "the first failure always stops the job"),
    rejected("time", "", "use --timeout TIME, such as 30m"),
    {"stop-before-end", "", "TIME", kLifecycle, kHonoured, kIvyrun,
     "in a Slurm job: send --preempt-signal to the ranks once, TIME before the job ends; exit code 75 after they exit. "
     "In a pod: its terminationGracePeriodSeconds (default 30s)"},
    {"preempt-signal", "", "SIGNAL", kLifecycle, kHonoured, kIvyrun,
     "signal that warns the ranks of the end of the Slurm job, of the pod, or of a host (default TERM)"},
    {"watch-notices", "", "auto|aws|gcp|azure|slurm|none", kLifecycle, kHonoured, kIvyrun,
     "notices of hosts that will be stopped: each host polls the metadata service of its cloud, ivyrun asks Slurm for "
     "drained nodes (default auto: the cloud that a host is in; Slurm, if the job can act on it)"},
    {"notice-time", "", "TIME", kLifecycle, kHonoured, kIvyrun,
     "time for the ranks to save their state after a notice without a deadline, or after a TERM to a host's supervisor "
     "(default 25s, at most 10m; 0: a TERM stops at once)"},
    {"requeue", "", "", kLifecycle, kHonoured, kIvyrun,
     "requeue the Slurm job if its time limit stopped it (exit code 75)"},
    {"stall-timeout", "--stall-check", "TIME", kLifecycle, kHonoured, kIvyrun,
     "after TIME without progress, report where the ranks are and which ranks they wait for"},
    {"on-stall", "", "report|stop", kLifecycle, kHonoured, kIvyrun,
     "with --stall-timeout: only report (the default), or also stop the workers: --max-restarts N restarts them, else "
     "the exit code is 123"},
    {"exit-timeout", "", "TIME", kLifecycle, kHonoured, kIvyrun,
     "stop the job (exit code 123) if a rank has exited with 0 and the ranks that are left make no progress for TIME: no "
     "output, and every one of them stays in the same place"},
    {"linger", "", "TIME", kLifecycle, kHonoured, kIvyrun,
     "if the job succeeds, wait up to TIME for processes that ranks leave behind, such as an uploader (default 0: stop "
     "them)"},
    {"no-python-hook", "", "", kLifecycle, kHonoured, kIvyrun,
     "do not put ivyrun's sitecustomize on the workers' PYTHONPATH: `ivyctl stack` then needs py-spy or gdb and has no "
     "flight record of torch, a script that sets MASTER_PORT itself needs --no-store, and JAX needs -B jax"},
    {"nccl-profiler", "", "WHAT", kLifecycle, kHonoured, kIvyrun,
     "what NCCL reports to `ivyctl why` and `ivyctl stack`: off, calls (default) or kernels, which adds GPU activity "
     "and costs more"},
    {"detach", "", "", kLifecycle, kHonoured, kIvyrun,
     "continue in the background once all workers run: output goes to the files of --log-dir (default ./ivyrun-JOB); "
     "use ivyctl to follow and stop the job"},

    {"iface", "--network-interface --network-interfaces", "NAME", kNetwork, kHonoured, kIvyrun,
     "network interface that workers use (default: by route)"},
    {"master-addr", "--master-address --main-process-ip", "ADDRESS", kNetwork, kHonoured, kTorchrun,
     "MASTER_ADDR of the workers: an address or a name of the first host (default: chosen and "
     "tested)"},
    {"master-port", "--main-process-port", "PORT", kNetwork, kHonoured, kTorchrun,
     "MASTER_PORT of the workers (default: reserved on the first host)"},
    {"port-range", "", "A-B", kNetwork, kHonoured, kIvyrun, "use only these ports, for firewalls"},
    {"no-store", "", "", kNetwork, kHonoured, kIvyrun,
     "do not start ivyrun's store; let rank 0's framework listen on MASTER_PORT"},
    {"transport", "--launcher", "auto|local|agent|ssh|slurm|exec|kubectl|docker|podman", kNetwork, kHonoured, kIvyrun,
     "how to reach the hosts (default auto: srun inside a Slurm allocation, else their agents, else ssh); kubectl, docker, "
     "podman: `exec` of these programs; exec: by --exec"},
    {"exec", "", "COMMAND", kNetwork, kHonoured, kIvyrun,
     "reach each host by this command, which has to start a shell there: 'kubectl exec -i {host} -c trainer --'. A config "
     "file can name commands for --transport (docs/exec.md)"},
    {"ssh-port", "", "PORT", kNetwork, kHonoured, kIvyrun, "SSH port of hosts for which none is given"},
    {"ssh-command", "", "COMMAND", kNetwork, kHonoured, kIvyrun,
     "use this OpenSSH client instead of the built-in one"},
    {"ssh-args", "--launcher-args", "ARGS", kNetwork, kHonoured, kIvyrun,
     "arguments for the OpenSSH client"},
    {"srun-args", "", "ARGS", kNetwork, kHonoured, kIvyrun,
     "arguments for the srun that starts the hosts of a Slurm allocation"},
    {"fanout", "", "N", kNetwork, kHonoured, kIvyrun, "SSH handshakes at the same time (default 64)"},
    {"node-rank", "--machine-rank", "R", kNetwork, kHonoured, kTorchrun,
     "with --nnodes N and without -H: start only this node's part of a job whose other nodes are started "
     "elsewhere. Node 0 listens at --master-port (default 29500); the others connect to --master-addr. Pods of an "
     "Indexed Job need neither"},
    {"join-secret-file", "", "FILE", kNetwork, kHonoured, kIvyrun,
     "with --node-rank: a secret of at least 16 bytes, the same on all nodes (or IVY_JOIN_SECRET); without one, anyone "
     "who can reach node 0's port can join"},
    torchruns("standalone", "", "ivyrun chooses address and port"),
    {"rdzv-backend", "", "NAME", kNetwork, kHonoured, kTorchrun,
     "static or c10d; has no effect"},
    {"rdzv-endpoint", "", "HOST:PORT", kNetwork, kHonoured, kTorchrun,
     "has no effect: ivyrun chooses address and port; to start one ivyrun per node, use --node-rank R --master-addr HOST"},
    {"rdzv-id", "", "ID", kNetwork, kHonoured, kTorchrun,
     "with --node-rank: only nodes with the same id join this job"},
    torchruns("rdzv-conf", "CONF", "use --start-timeout to limit the wait for hosts, --lease to limit the silence of one"),
    torchruns("local-addr", "ADDRESS", "ivyrun tests addresses itself; use --iface to choose the interface"),
    ignored("allow-run-as-root", "-allow-run-as-root", ""),
    rejected("-i", "-i --ssh-identity-file", "for an ssh key use IdentityFile in ~/.ssh/config or --ssh-args '-i FILE'; for input use --stdin RANK|all|none to choose the ranks that "
     "read it"),

    {"dry-run", "--donotlaunch", "", kDiagnosis, kHonoured, kIvyrun,
     "connect, check and print the plan, but start nothing; --dry-run=json: as an object for programs", "json"},
    {"config", "", "FILE|none", kDiagnosis, kHonoured, kIvyrun,
     "defaults of flags from this file, before ~/.config/ivyrun/config.toml and /etc/ivyrun/config.toml; `none` reads "
     "no file (`ivyctl config --origin` shows where values come from)"},
    {"help", "-h", "", kDiagnosis, kHonoured, kIvyrun,
     "common flags; --help all: every flag; --help TOPIC: placement, program, output, endings, network, "
     "diagnosis, or one flag", "TOPIC"},
    {"version", "-V", "", kDiagnosis, kHonoured, kIvyrun, "the version; with -v also the build"},
    {"display", "--display-map=map -display-map=map --display-allocation=map", "map|bindings|map,bindings", kDiagnosis,
     kHonoured, kIvyrun, "before the workers start, print the plan of --dry-run (map), or the report of --report-bindings"},
    {"doctor", "--network-check --preflight", "", kDiagnosis, kHonoured, kIvyrun,
     "check the hosts and report problems and fixes, but start nothing; needs no program; exit code 1 if a check failed; "
     "--doctor=json: as an object for programs", "json"},
    {"check-module", "", "NAME", kDiagnosis, kHonoured, kIvyrun,
     "with --doctor: a Python module that the workers need, such as torch"},
    {"healthy-hostfile", "", "FILE", kDiagnosis, kHonoured, kIvyrun,
     "with --doctor: write the hosts that passed all checks to FILE, for --hostfile"},
    {"drill", "", "FAULTS", kDiagnosis, kHonoured, kIvyrun,
     "inject faults into this job and report at its end what became of them: kill, stop, segfault, hold-gil, cut, slow, "
     "full-disk, kill-supervisor, notice, drain; 'kill every=15s ranks=any seed=7'; may be repeated (docs/drills.md)"},
    {"explain-env", "", "", kDiagnosis, kHonoured, kIvyrun,
     "like --dry-run, but print the workers' variables: who reads each, and where its value comes from"},
    // clang-format on
};

// Returns the spellings of one entry: "--name" first, then its aliases in the order of the table.
std::vector<std::string> spellings(const OptionEntry& entry) {
  std::vector<std::string> all;
  if (entry.name.front() != '-') all.push_back("--" + std::string(entry.name));
  for (const std::string_view alias : words_of(entry.aliases)) all.emplace_back(alias);
  return all;
}

std::string normalised(std::string_view typed) {
  std::string text(typed);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

// Returns "nproc-per-node" for "--Nproc_per_node" and "-nproc-per-node".
std::string bare_name(std::string_view typed) {
  const std::size_t begin = std::min(typed.find_first_not_of('-'), typed.size());
  return lower_case(normalised(typed.substr(begin)));
}

}  // namespace

std::span<const OptionEntry> option_table() { return kTable; }

std::optional<OptionSpelling> find_option(std::string_view typed) {
  const std::string wanted = normalised(typed);
  const std::string_view bare =
      wanted.starts_with("--") ? std::string_view(wanted).substr(2) : std::string_view();
  for (const OptionEntry& entry : kTable) {
    if (entry.name.front() != '-' && entry.name == bare) return OptionSpelling{&entry, {}};
    std::string_view rest = entry.aliases;
    while (!rest.empty()) {
      std::string_view alias = take_part(rest, ' ');
      if (take_part(alias, '=') == wanted) return OptionSpelling{&entry, alias};
    }
  }
  return std::nullopt;
}

std::string nearest_option(std::string_view typed) {
  // A text that is much longer than every known name is not a typing error.
  constexpr std::size_t kMaxTypedBytes = 64;
  // A single letter does not resemble any name.
  if (typed.size() > kMaxTypedBytes || typed.size() <= 2) return {};
  const std::string wanted = bare_name(typed);
  const std::size_t limit = wanted.size() <= 4 ? 1 : std::max<std::size_t>(2, wanted.size() / 4);
  std::string best;
  std::size_t best_distance = limit + 1;
  std::string longer;  // The first name that starts with the typed text: "--nproc".
  for (const OptionEntry& entry : kTable) {
    if (entry.kind != kHonoured) continue;
    for (const std::string& spelling : spellings(entry)) {
      const std::string known = spelling.substr(0, spelling.find('='));
      // Single letters are too similar to suggest one for another.
      if (known.size() == 2) continue;
      const std::string name = bare_name(known);
      const bool is_canonical = name == entry.name;
      if (longer.empty() && is_canonical && wanted.size() >= 3 && name.starts_with(wanted))
        longer = known;
      // "--nprc": one typing error in the first word of a name.
      const std::string_view head = std::string_view(name).substr(0, name.find('-'));
      if (longer.empty() && is_canonical && wanted.size() >= 4 && edit_distance(wanted, head) == 1)
        longer = known;
      const std::size_t distance = edit_distance(wanted, name);
      if (distance >= best_distance) continue;
      best_distance = distance;
      best = known;
    }
  }
  return best_distance > 1 && !longer.empty() ? longer : best;
}

}  // namespace ivy
