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

constexpr std::string_view kElastic =
    "--nnodes MIN:MAX with all hosts named by -H; it counts hosts, --nproc-per-node their workers";

// A flag of another launcher that is missing here; `instead` says what to use.
constexpr OptionEntry refused(std::string_view name, std::string_view aliases,
                              std::string_view instead) {
  return {name, aliases, "", kDiagnosis, kRefused, kOurs, instead};
}

// A switch of another launcher that changes nothing here, with a note.
constexpr OptionEntry ignored(std::string_view name, std::string_view aliases,
                              std::string_view note) {
  return {name, aliases, "", kDiagnosis, kIgnored, kOurs, note};
}

// A flag of torchrun's that changes nothing here, and the name of its value.
constexpr OptionEntry torchruns(std::string_view name, std::string_view value,
                                std::string_view note) {
  return {name, "", value, kDiagnosis, kIgnored, kTorchrun, note};
}

constexpr OptionEntry kTable[] = {
    // clang-format off
    {"hosts", "-H --host -host", "LIST", kPlacement, kHonoured, kOurs,
     "hosts in rank order: 'h1:4,user@h2,node[01-08],[::1]:2' (brackets in quotes: shells read them too); "
     "@FILE reads a hostfile"},
    {"hostfile", "-hostfile --machinefile -machinefile --deepspeed-hostfile", "FILE", kPlacement,
     kHonoured, kOurs, "hosts from a file: one `host[:slots]` or `host slots=N` per line"},
    {"num-proc", "-n -np --np --num-processes --ntasks", "N", kPlacement, kHonoured, kOurs,
     "number of workers in all"},
    {"nproc-per-node", "--npernode -npernode --ppn -ppn --ntasks-per-node --num-gpus "
     "--slots-per-host", "N|auto|gpu|xpu|cpu", kPlacement, kHonoured, kTorchrun,
     "workers on each host (default: the slots written for it, else its accelerators, else 1)"},
    {"nnodes", "--num-nodes --num-machines --nodes", "N|MIN:MAX", kPlacement, kHonoured, kTorchrun,
     "use the first N hosts; MIN:MAX: start with MIN or more of the first MAX when the others do not "
     "come up in --start-timeout, and go on without hosts that are lost"},
    {"fake-hosts", "", "N", kPlacement, kHonoured, kOurs,
     "pretend that this machine is N hosts (for trying things out)"},
    refused("-N", "-N", "mpirun and srun mean different things by -N: use --nnodes N or --nproc-per-node N"),
    {"include", "", "HOSTS", kPlacement, kHonoured, kOurs,
     "of the hosts take these alone: 'node[01-08],node17', or some places (accelerators) of them as DeepSpeed writes "
     "it: 'h1@h2:0,2'"},
    {"exclude", "", "HOSTS", kPlacement, kHonoured, kOurs,
     "leave these hosts out, or these places of them: 'h2@h3:1'"},
    {"map-by", "-map-by", "host|nvlink|switch", kPlacement, kHonoured, kOurs,
     "rank order: `host` as in -H (default); `nvlink`: hosts of one NVLink domain follow each other; `switch`: hosts "
     "behind one network switch (SLURM_TOPOLOGY_ADDR), and accelerators behind one PCI switch; --dry-run shows it"},
    refused("rank-by", "-rank-by --bynode -bynode --byslot -byslot --bycore -bycore",
     "ranks fill the hosts in the order of -H; ppr:N:node is --nproc-per-node N; see --map-by"),
    {"bind-to", "-bind-to --numa-binding --cpu-bind --bind-cores-to-rank=core --enable-cpu-affinity=numa",
     "KIND", kPlacement, kHonoured, kOurs,
     "run workers on some processors only: core (an even share of the cores, its own), l3, numa, socket "
     "(all of one), none; default: near its accelerators where it has any, else none"},
    {"report-bindings", "-report-bindings", "", kPlacement, kHonoured, kOurs,
     "say for each rank which processors it runs on"},
    {"visible", "--virtual-local-rank=own", "all|own", kPlacement, kHonoured, kOurs,
     "accelerators visible to a worker: `all` on its host (it uses index LOCAL_RANK; default for torch and jax) "
     "or only its `own` (LOCAL_RANK is 0; default for the other backends and with --gpus-per-proc)"},
    {"gpus-per-proc", "-gpus-per-proc --gpus-per-task --gpus-per-process --devices-per-proc", "K", kPlacement, kHonoured,
     kOurs, "accelerators of each worker (default 1); without -n a host gets as many workers as it has room for"},
    {"cpu-devices", "", "K", kPlacement, kHonoured, kOurs,
     "JAX: each worker sees K devices, made of its host's CPU, and no others (for trying things out)"},
    ignored("nooversubscribe", "-nooversubscribe", "workers share accelerators and places only where --oversubscribe "
     "says so"),
    {"oversubscribe", "-oversubscribe", "", kPlacement, kHonoured, kOurs,
     "let workers share accelerators where --visible own, --gpus-per-proc or --nproc-per-node gpu asks for "
     "more than there are"},
    {"device-env", "", "NAME", kPlacement, kHonoured, kOurs,
     "put a worker's accelerators into this variable too, for vendors that ivyrun does not know, such as "
     "ASCEND_RT_VISIBLE_DEVICES; may be repeated"},
    refused("gpu-bind", "", "--visible own shows each worker its own accelerators, --gpus-per-proc K gives it "
     "several"),
    refused("rankfile", "-rankfile --rf -rf", "the order of -H or of the hostfile is the order of ranks"),
    refused("wal", "--store-wal", "the store keeps nothing on disk: --max-restarts N starts the job again, with a new store, if it is lost"),
    refused("store-proxy", "", "workers speak to the store itself: leave it out"),
    refused("gpu-ids", "", "set CUDA_VISIBLE_DEVICES with -x"),
    refused("workers", "--num-workers --nprocs --ranks --processes --gpus",
     "-n N starts N workers in all, --nproc-per-node N starts N on each host"),
    refused("gres", "--gpus-per-node -G", "the accelerators of a host are found: --nproc-per-node N starts N workers "
     "on each, --gpus-per-proc K gives K to each worker"),
    refused("world-size", "--rank --local-rank", "every worker is given its rank and the world size: -n N starts N "
     "workers in all"),
    refused("nodelist", "-w --nodefile", "-H h1,h2,... or --hostfile FILE names the hosts"),
    refused("-f", "-f", "--hostfile FILE reads the hosts from a file"),
    refused("partition", "--account -A --qos --reservation --constraint -C --job-name -J --mem --exclusive --jobid",
     "hosts are allocated with sbatch or salloc; call ivyrun inside"),
    refused("cpus-per-task", "-c --num-cpu-threads-per-process",
     "--bind-to core gives each worker an even share of the cores; -x OMP_NUM_THREADS=N limits threads"),
    ignored("use-hwthread-cpus", "-use-hwthread-cpus", "workers keep the cores that ivyrun was given"),

    {"module", "-m", "", kCommand, kHonoured, kTorchrun,
     "the program is a Python module, as for python -m"},
    {"no-python", "", "", kCommand, kHonoured, kTorchrun,
     "run the program itself even if its name ends in .py"},
    {"python", "", "PATH", kCommand, kHonoured, kOurs,
     "interpreter for scripts and modules (default: the caller's)"},
    {"wdir", "-wdir --chdir --cwd --workdir --working-dir --working-directory", "DIR", kCommand, kHonoured, kOurs,
     "working directory on every host (default: this one)"},
    {"export", "-x", "K[=V]", kCommand, kHonoured, kOurs,
     "give workers a variable; K* passes all that begin with K; may be repeated"},
    {"env-file", "", "FILE", kCommand, kHonoured, kOurs,
     "give workers the variables of a file: NAME, NAME=VALUE, NAME='VALUE' or NAME=\"VALUE\" per "
     "line, `export` and # comments allowed; may be repeated"},
    {"env", "--genvall=all -genvall=all -envall=all --envall=all -genvnone=none -envnone=none", "safe|all|none", kCommand,
     kHonoured, kOurs,
     "the caller's variables: on other hosts those that frameworks read (safe, the default); all of them there too; none: "
     "workers have what a login has, and what -x and --env-file give"},
    {"wrap", "", "COMMAND", kCommand, kHonoured, kOurs,
     "put COMMAND in front of each worker's program, such as --wrap 'nsys profile -o trace.%r' or 'numactl -l'; "
     "placeholders as in --output"},
    {"wrap-ranks", "", "RANKS", kCommand, kHonoured, kOurs,
     "with --wrap: in front of these ranks alone, such as 0,8 or first-per-host"},
    {"activate", "", "VENV|conda:NAME", kCommand, kHonoured, kOurs,
     "run workers in this virtual environment, whose python, PATH and variables they get"},
    {"stdin", "", "0|all|none", kCommand, kHonoured, kOurs,
     "which rank reads standard input (default 0); all: each rank reads the whole of it"},
    {"role", "", "NAME=COMMAND", kCommand, kHonoured, kTorchrun,
     "run COMMAND too, on every host (NAME@first: on the first one, NAME@others), until the program ends; may be "
     "repeated (docs/apps.md)"},
    torchruns("run-path", "", "the script is run by the interpreter as is"),
    torchruns("start-method", "METHOD", "workers are separate programs"),
    ignored("no-local-rank", "", "no --local_rank argument is ever added"),
    refused("pass-local-rank", "--use-env", "read LOCAL_RANK in the script"),
    {"backend", "-B -backend", "NAME", kCommand, kHonoured, kOurs,
     "what the workers use: torch (default), jax, tensorflow, numpy, cupy, paddle, horovod, mlx, lightgbm, mpi; it "
     "decides --visible, and some read variables of their own (docs/frameworks.md); mpi: every worker has to join the MPI world (docs/mpi.md); without it a worker may"},
    {"allow-singletons", "", "", kCommand, kHonoured, kOurs,
     "start Horovod's programs without -B horovod, or MPI programs as worlds of one: "
     "each is alone, rank 0 of 1; without this flag they are an error with more than one worker"},
    refused("genv", "-genv -env", "use -x NAME=VALUE"),
    refused("genvlist", "-genvlist -envlist", "use -x NAME for each"),
    refused("stage", "--fetch --preload-files --preload-binary --copy --sbcast --bcast",
            "programs and data are at the same path on every host: a shared directory, or rsync -a DIR/ HOST:DIR/ before"),
    refused("module-load", "--modules", "load modules where you type ivyrun: PATH, LD_LIBRARY_PATH and MODULE* reach every host"),
    refused("profile", "--profiler", "--wrap 'nsys profile -o trace.%r', with --wrap-ranks for some ranks alone"),
    refused("pty", "-pty", "workers have no terminal: --label and --raw say how their output is shown on yours"),
    refused("container", "--container-image", "give the container as the program: ivyrun ... apptainer exec --nv IMAGE python3 train.py (docs/launching.md)"),
    {"app", "", "NAME", kCommand, kHonoured, kOurs,
     "run what the program needs beside it: ray, dask, xgboost, ps-lite, tf-ps, vllm, sglang (docs/apps.md); jax-service: JAX's "
     "coordination service in a process of its own on the first host instead of rank 0 (docs/frameworks.md)"},
    {"app-args", "", "WORDS", kCommand, kHonoured, kOurs,
     "further arguments of the app's own programs, such as --app-args '--num-cpus 4'; may be repeated"},
    {"tf-roles", "", "TYPE[:N],...", kCommand, kHonoured, kOurs,
     "-B tensorflow: which task of TF_CONFIG each rank is, in rank order, such as chief,ps:2,worker (default: worker)"},
    refused("app-file", "-configfile", "start a script that looks at RANK and runs what this rank should"),
    refused("mca", "-mca --gmca --prtemca --pmixmca --omca",
     "Open MPI's parameters can be given as variables: -x OMPI_MCA_name=value"),
    refused("prefix", "-prefix", "nothing has to be installed on the hosts"),
    refused("mixed-precision", "--deepspeed --dynamo-backend --use-fsdp --use-deepspeed --tpu --cpu "
     "--gradient-accumulation-steps --deepspeed-config-file --zero-stage",
     "training flags belong to the script or into ACCELERATE_* variables"),
    refused("config-file", "", "--config FILE reads flags in TOML, and every flag has a variable, such as IVY_HOSTS; "
     "of accelerate's file num_processes is -n, and the machines are named by -H"),
    refused("gloo", "--timeline-filename --fusion-threshold-mb --cycle-time-ms --cache-capacity --autotune --mpi-args "
     "--jsrun",
     "Horovod reads its own variables: -x HOROVOD_...=VALUE"),
    refused("mpi", "", "programs that are started through PMI need mpirun or srun"),
    refused("-D", "-D", "--wdir DIR names the working directory"),
    ignored("multi-gpu", "", "one worker per accelerator is the default"),

    {"label", "-l=rank --tag-output=rank -tag-output=rank --label-io=rank -prepend-rank=rank",
     "KIND", kOutput, kHonoured, kOurs,
     "auto (default), none, rank, host, or a template of %r rank, %R padded, %h host, %l local "
     "rank, %s stream, %a attempt, %j job, %%; -l alone: rank"},
    {"timestamps", "--timestamp-output -timestamp-output --prefix-output-with-timestamp", "",
     kOutput,
     kHonoured, kOurs, "put the time before each line"},
    {"show-ranks", "", "RANKS", kOutput, kHonoured, kOurs,
     "ranks shown on the console: 0,8-15, first-per-host, or failed: only what a rank that fails has printed last "
     "(files get everything)"},
    {"local-ranks-filter", "", "RANKS", kOutput, kHonoured, kTorchrun,
     "local ranks shown on the console"},
    {"log-dir", "--enable-each-rank-log", "DIR", kOutput, kHonoured, kTorchrun,
     "write each rank's output to files below DIR"},
    {"output", "-o", "PATTERN", kOutput, kHonoured, kOurs,
     "write each rank's output to a file of this name too, such as 'logs/%h-%r.log': %j job, %r or %t rank, %h host, "
     "%n number of the host, %l local rank, %a attempt; %s out or err, else both streams share it; %4r pads"},
    {"log-to", "", "head|node|both", kOutput, kHonoured, kOurs,
     "where these files are written (default: head)"},
    {"redirects", "-r", "0..3|MAP", kOutput, kHonoured, kTorchrun,
     "these streams go to the files of --log-dir and --output alone: 1 standard output, 2 standard error, 3 "
     "both; MAP: of these local ranks, such as 0:3,1:2"},
    {"tee", "-t", "0..3|MAP", kOutput, kHonoured, kTorchrun,
     "these streams go to the console too, whatever --redirects says"},
    {"dedup", "", "", kOutput, kHonoured, kOurs,
     "lines that several ranks print alike within a tenth of a second are shown once, with their ranks in the label: "
     "[0-7] (files get everything)"},
    {"raw", "", "", kOutput, kHonoured, kOurs, "pass terminal escape sequences through unchanged"},
    {"color", "--colour", "auto|always|never", kOutput, kHonoured, kOurs,
     "colour labels (default: on terminals)"},
    {"console-overflow", "", "block|drop", kOutput, kHonoured, kOurs,
     "when nobody reads: make workers wait, or lose console lines (default: block)"},
    {"name", "", "NAME", kOutput, kHonoured, kOurs,
     "what you call the job: `ivyctl logs NAME`; it stands in lists, events and attempt.json too"},
    {"events", "", "FILE|fd:N|-", kOutput, kHonoured, kOurs,
     "append what happens as JSON lines: plan, start, first_output, exit, restart, verdict (docs/machine-output.md)"},
    {"metrics-file", "", "FILE", kOutput, kHonoured, kOurs,
     "keep the state of the job in FILE for Prometheus (node_exporter's textfile collector), replaced every 15 s"},
    {"page", "", "FILE", kOutput, kHonoured, kOurs,
     "keep a page for browsers in FILE: what each rank does and uses, and how the job ended; replaced every 5 s"},
    {"summary", "", "auto|off|json", kOutput, kHonoured, kOurs,
     "what is said of the end of the job: words where something is to be said (auto), nothing, or one JSON line, "
     "the last on standard error"},
    {"quiet", "-q", "", kOutput, kHonoured, kOurs, "say nothing but errors"},
    {"verbose", "-v", "", kOutput, kHonoured, kOurs, "say more; -vv for debugging"},
    refused("output-filename", "-output-filename -outfile-pattern",
            "use --output 'DIR/%r.%s' (%h host, %r rank, %s out or err), or --log-dir DIR"),
    refused("error", "-e --merge-stderr-to-stdout", "--output 'run-%r.%s' keeps both streams of every rank apart, "
     "--label names them on the console"),
    {"log-line-prefix-template", "", "", kOutput, kRefused, kTorchrun,
     "use --label with a template, such as --label '%r %h'"},
    ignored("unbuffered", "-u", "output is shown as it comes"),
    torchruns("event-log-handler", "NAME", "there is no such handler here"),
    torchruns("logs-specs", "NAME", "use --log-dir and --label"),

    {"start-timeout", "", "TIME", kLifecycle, kHonoured, kOurs,
     "how long hosts may take to come up (default 120s)"},
    {"timeout", "-timeout", "TIME", kLifecycle, kHonoured, kOurs,
     "stop the job after TIME, such as 90, 30m, 1h30m or 01:30:00"},
    {"shutdown-timeout", "--term-timeout --workers-stop-timeout", "TIME", kLifecycle, kHonoured,
     kTorchrun,
     "from the first signal to KILL (default: 5s after a failure, 30s when asked to stop). Ctrl-C "
     "sends INT first and TERM a second later, anything else TERM at once"},
    {"lease", "", "TIME", kLifecycle, kHonoured, kOurs,
     "stop workers when ivyrun has been unreachable for TIME (default: 10s, 60s in batch)"},
    {"max-restarts", "", "N", kLifecycle, kHonoured, kTorchrun,
     "when a worker fails, start all of them again, at most N times (default 0; lost hosts of "
     "--nnodes MIN:MAX do not count); with --on-failure replace: replace N workers in all (default 3)"},
    {"on-failure", "", "restart|shrink|replace", kLifecycle, kHonoured, kOurs,
     "when a worker fails: end all of them, and start them again as --max-restarts allows (restart, the "
     "default); let the others go on without it (shrink), or start it again alone (replace). The program "
     "has to repair its groups itself"},
    {"min-workers", "", "N", kLifecycle, kHonoured, kOurs,
     "with --on-failure shrink: end the job when fewer than N workers are left (default 1)"},
    torchruns("monitor-interval", "S", "the kernel reports a worker's end at once"),
    ignored("kill-on-bad-exit", "-K", "the first failure always ends the job"),
    refused("time", "", "--timeout TIME, such as 30m, ends the job"),
    refused("restart-policy", "", "--max-restarts N starts all workers again when one fails"),
    refused("reset-limit", "--elastic-timeout --blacklist-cooldown-range",
     "--max-restarts N limits restarts, --start-timeout the wait for hosts"),
    refused("min-np", "--max-np --min-num-proc --max-num-proc --host-discovery-script --host-discovery --min-elastic-nodes --max-elastic-nodes", kElastic),
    torchruns("signals-to-handle", "LIST", "TERM, INT, HUP and QUIT stop the job and its workers, USR1 and USR2 are "
     "forwarded"),
    {"stop-before-end", "", "TIME", kLifecycle, kHonoured, kOurs,
     "in a Slurm job: TIME before it ends send --preempt-signal to the ranks, once; exit code 75 when "
     "they have ended"},
    {"preempt-signal", "", "SIGNAL", kLifecycle, kHonoured, kOurs,
     "which signal tells the ranks that the Slurm job is about to end (default TERM)"},
    {"requeue", "", "", kLifecycle, kHonoured, kOurs,
     "put the Slurm job back into the queue when its end has stopped it (exit code 75)"},
    {"stall-timeout", "--stall-check", "TIME", kLifecycle, kHonoured, kOurs,
     "say where the ranks are and whom they wait for, once nothing has moved for TIME"},
    {"on-stall", "", "report|stop", kLifecycle, kHonoured, kOurs,
     "with --stall-timeout: say it and let the job be (report, the default), or stop the workers then, too: "
     "--max-restarts N starts them again, else the exit code is 123"},
    {"no-python-hook", "", "", kLifecycle, kHonoured, kOurs,
     "put no sitecustomize on the workers' PYTHONPATH: `ivyctl stack` then needs py-spy or gdb and "
     "knows no flight record of torch's Gloo, "
     "a script that sets MASTER_PORT itself needs --no-store, and JAX needs -B jax to find its rank"},
    {"nccl-profiler", "", "WHAT", kLifecycle, kHonoured, kOurs,
     "what NCCL tells `ivyctl why` and `ivyctl stack` about its collectives: off, calls (default) or "
     "kernels, which adds what the GPU does and costs more"},
    {"detach", "", "", kLifecycle, kHonoured, kOurs,
     "go into the background once all workers run: their output goes to the files of --log-dir "
     "(default ./ivyrun-JOB), ivyctl follows and stops the job"},

    {"iface", "--network-interface --network-interfaces", "NAME", kNetwork, kHonoured, kOurs,
     "interface whose addresses workers use (default: by route)"},
    {"master-addr", "--master-address --main-process-ip", "ADDRESS", kNetwork, kHonoured, kTorchrun,
     "MASTER_ADDR of the workers: an address or a name of the first host (default: chosen and "
     "tested)"},
    {"master-port", "--main-process-port", "PORT", kNetwork, kHonoured, kTorchrun,
     "MASTER_PORT of the workers (default: reserved on the first host)"},
    {"port-range", "", "A-B", kNetwork, kHonoured, kOurs, "ports that may be used, for firewalls"},
    {"no-store", "", "", kNetwork, kHonoured, kOurs,
     "do not start ivyrun's store; let rank 0's framework listen on MASTER_PORT"},
    {"transport", "--launcher", "auto|local|agent|ssh|slurm", kNetwork, kHonoured, kOurs,
     "how hosts are reached (default auto: inside a Slurm allocation by a srun step, elsewhere by "
     "their agents, else by ssh)"},
    {"ssh-port", "", "PORT", kNetwork, kHonoured, kOurs, "port of SSH where none is written"},
    {"ssh-command", "", "COMMAND", kNetwork, kHonoured, kOurs,
     "use this OpenSSH client instead of the built-in one"},
    {"ssh-args", "--launcher-args", "ARGS", kNetwork, kHonoured, kOurs,
     "arguments for the OpenSSH client"},
    {"srun-args", "", "ARGS", kNetwork, kHonoured, kOurs,
     "arguments for the srun that starts the hosts of a Slurm allocation"},
    {"fanout", "", "N", kNetwork, kHonoured, kOurs, "SSH handshakes at the same time (default 64)"},
    {"node-rank", "--machine-rank", "R", kNetwork, kHonoured, kTorchrun,
     "with --nnodes N and without -H: start only this node's part of a job whose other nodes are started "
     "elsewhere. Node 0 waits for the others at --master-port (default 29500), they dial --master-addr"},
    {"join-secret-file", "", "FILE", kNetwork, kHonoured, kOurs,
     "with --node-rank: a secret that all nodes have (at least 16 bytes; or IVY_JOIN_SECRET in the "
     "environment); without one whoever reaches node 0's port may join"},
    torchruns("standalone", "", "ivyrun picks address and port"),
    {"rdzv-backend", "", "NAME", kNetwork, kHonoured, kTorchrun,
     "only static and c10d, which change nothing"},
    torchruns("rdzv-endpoint", "HOST:PORT", "ivyrun picks address and port; --master-addr and --master-port "
     "override"),
    {"rdzv-id", "", "ID", kNetwork, kHonoured, kTorchrun,
     "with --node-rank: nodes of another id do not belong to this job"},
    torchruns("rdzv-conf", "CONF", "--start-timeout bounds the wait for hosts, --lease the silence of one"),
    torchruns("local-addr", "ADDRESS", "addresses are tested; --iface chooses the interface"),
    refused("no-ssh", "", "ivyrun is started once, not on every host: -H host0,host1,... with all hosts in rank "
     "order"),
    ignored("no-ssh-check", "", "there is no separate check"),
    ignored("force-multi", "", "one host and many are started alike"),
    ignored("same-network", "", "addresses are tested"),
    ignored("allow-run-as-root", "-allow-run-as-root", ""),
    refused("-p", "-p", "--ssh-port PORT is the port of SSH; a partition is chosen with sbatch or salloc"),
    refused("-i", "-i", "--ssh-args '-i FILE' gives ssh a key, --stdin 0|all|none chooses who reads standard input"),
    refused("ssh-key", "--identity-file --ssh-identity-file",
     "--ssh-args '-i FILE' gives ssh a key; better: IdentityFile in ~/.ssh/config"),
    refused("user", "--ssh-user --username", "write it before the host: -H user@host"),

    {"dry-run", "--donotlaunch", "", kDiagnosis, kHonoured, kOurs,
     "connect, check and print the plan, but start nothing; --dry-run=json: as an object for programs", "json"},
    {"config", "", "FILE|none", kDiagnosis, kHonoured, kOurs,
     "defaults of flags from this file, before ~/.config/ivyrun/config.toml and /etc/ivyrun/config.toml; `none` reads "
     "no file (`ivyctl config --origin` shows where values come from)"},
    {"help", "-h", "", kDiagnosis, kHonoured, kOurs,
     "the flags of every day; --help all: every flag; --help TOPIC: placement, program, output, endings, "
     "network, diagnosis, or one flag", "TOPIC"},
    {"version", "-V", "", kDiagnosis, kHonoured, kOurs, "the version; with -v also the build"},
    {"display", "--display-map=map -display-map=map --display-allocation=map", "map|bindings|map,bindings", kDiagnosis,
     kHonoured, kOurs, "before the workers start, say the plan as --dry-run shows it (map), or what --report-bindings says"},
    refused("display-topo", "", "--report-bindings says which processors each rank has; lstopo shows those of a host"),
    refused("check-build", "", "use --version -v"),
    {"doctor", "--network-check --preflight", "", kDiagnosis, kHonoured, kOurs,
     "check the hosts and say what is wrong with each and what to do, but start nothing; no program is needed; exit code 1 "
     "when a check has failed; --doctor=json: as an object for programs", "json"},
    {"check-module", "", "NAME", kDiagnosis, kHonoured, kOurs,
     "with --doctor: a Python module that the workers need, such as torch"},
    {"healthy-hostfile", "", "FILE", kDiagnosis, kHonoured, kOurs,
     "with --doctor: write the hosts on which no check has failed into FILE, for --hostfile"},
    {"explain-env", "", "", kDiagnosis, kHonoured, kOurs,
     "as --dry-run, but print the variables of the workers: who reads each, and why it has its value"},
    refused("get-stack-traces", "-get-stack-traces", "`ivyctl stack` shows where the ranks are, --stall-timeout TIME "
     "says it when nothing moves"),
    refused("debug", "-debug", "-vv shows what ivyrun does"),
    // clang-format on
};

// The spellings of one entry: "--name" first, then its aliases as they stand in the table.
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

// "--Nproc_per_node" and "-nproc-per-node" as "nproc-per-node".
std::string bare_name(std::string_view typed) {
  const std::size_t begin = std::min(typed.find_first_not_of('-'), typed.size());
  return lower_case(normalised(typed.substr(begin)));
}

}  // namespace

std::span<const OptionEntry> option_table() { return kTable; }

std::optional<OptionSpelling> find_option(std::string_view typed) {
  const std::string wanted = normalised(typed);
  for (const OptionEntry& entry : kTable) {
    if (entry.name.front() != '-' && wanted == "--" + std::string(entry.name))
      return OptionSpelling{&entry, {}};
    std::string_view rest = entry.aliases;
    while (!rest.empty()) {
      std::string_view alias = take_part(rest, ' ');
      if (take_part(alias, '=') == wanted) return OptionSpelling{&entry, alias};
    }
  }
  return std::nullopt;
}

std::string nearest_option(std::string_view typed) {
  // A name longer than any of ours by half is not a slip of the fingers.
  constexpr std::size_t kMaxTypedBytes = 64;
  // A letter alone says nothing about a name.
  if (typed.size() > kMaxTypedBytes || typed.size() <= 2) return {};
  const std::string wanted = bare_name(typed);
  const std::size_t limit = wanted.size() <= 4 ? 1 : std::max<std::size_t>(2, wanted.size() / 4);
  std::string best;
  std::size_t best_distance = limit + 1;
  std::string longer;  // The first name that begins as what was typed: "--nproc".
  for (const OptionEntry& entry : kTable) {
    if (entry.kind != kHonoured) continue;
    for (const std::string& spelling : spellings(entry)) {
      const std::string known = spelling.substr(0, spelling.find('='));
      // Letters are too near to each other to suggest one for another.
      if (known.size() == 2) continue;
      const std::string name = bare_name(known);
      const bool is_canonical = name == entry.name;
      if (longer.empty() && is_canonical && wanted.size() >= 3 && name.starts_with(wanted))
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
