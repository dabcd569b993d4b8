// SPDX-License-Identifier: Apache-2.0
// The table (kVariables) is most of the file: one row per variable or prefix, with the software
// that reads it and the rule for it. env_rule() searches it. The functions at the end are the
// operations on Environment, a list of variables.
#include "proto/contract/env.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "proto/contract/device_vendor.h"

namespace ivy {
namespace {

using enum EnvRule;

// The first matching entry applies, so names precede the prefixes that contain them.
constexpr EnvEntry kVariables[] = {
    // Set by ivyrun: the worker's identity.
    {"RANK", kSet, "torch, accelerate, HF Trainer, DeepSpeed, Megatron, Lightning"},
    {"LOCAL_RANK", kSet, "torch, accelerate, HF Trainer, DeepSpeed, Megatron, Lightning"},
    {"WORLD_SIZE", kSet, "torch, accelerate, HF Trainer, DeepSpeed, Megatron, Lightning"},
    {"LOCAL_WORLD_SIZE", kSet, "torch"},
    {"GROUP_RANK", kSet, "torch, Lightning"},
    {"GROUP_WORLD_SIZE", kSet, "torch"},
    {"NODE_RANK", kSet, "Lightning"},
    {"ROLE_RANK", kSet, "torch"},
    {"ROLE_NAME", kSet, "torch"},
    {"ROLE_WORLD_SIZE", kSet, "torch"},
    {"PWD", kSet, "shells, and programs that open files by relative paths"},
    {"MASTER_ADDR", kSet, "torch"},
    {"MASTER_PORT", kSet, "torch"},
    {"TORCHELASTIC_RUN_ID", kSet, "torch, Lightning"},
    {"TORCHELASTIC_RESTART_COUNT", kSet, "torch"},
    {"TORCHELASTIC_MAX_RESTARTS", kSet, "torch"},
    {"TORCHELASTIC_USE_AGENT_STORE", kSet, "torch"},
    {"TORCHELASTIC_ERROR_FILE", kSet, "torch's record decorator"},
    {"IVY_RANK", kSet, "libivycomm"},
    {"IVY_WORLD_SIZE", kSet, "libivycomm"},
    {"IVY_LOCAL_RANK", kSet, "libivycomm"},
    {"IVY_LOCAL_WORLD_SIZE", kSet, "libivycomm"},
    {"IVY_NODE_RANK", kSet, "libivycomm"},
    {"IVY_NUM_NODES", kSet, "libivycomm"},
    {"IVY_JOB_ID", kSet, "libivycomm"},
    {"IVY_GENERATION", kSet, "libivycomm"},
    {"IVY_REJOIN", kSet, "libivycomm"},
    {"IVY_TOKEN_FILE", kSet, "libivycomm"},
    {"IVY_STORE", kSet, "libivycomm"},
    {"IVY_MASTER_ADDR", kSet,
     "libivycomm: the first host; ranks listen on the interface that reaches it"},
    {"IVY_MASTER_PORT", kSet,
     "ivyrun's Python hook: the original MASTER_PORT, even if the script changes it"},
    {"IVY_CONTROL", kSet, "libivycomm: the supervisor's control socket"},
    {"IVY_DEVICE_ORDINAL", kSet, "scripts: the argument of set_device(), or several, such as 0,1"},
    {"IVY_DEVICE_UUID", kSet, "scripts: UUID of that accelerator, regardless of masks"},
    {"IVY_DEVICE_BDF", kSet, "scripts: its PCI address"},
    {"IVY_STACK_FILE", kSet, "ivyrun's Python hook: file for the stacks of a hung worker"},
    {"IVY_INIT_TIMEOUT", kSet,
     "ivyrun's Python hook: seconds until it reports ranks that did not call JAX's initialize()"},
    {"IVY_ALLOW_SINGLETONS", kSet,
     "ivyrun's Python hook: MPI and Horovod may run as worlds of one (--allow-singletons)"},
    {"IVY_DRILL_HOLD_MS", kSet,
     "ivyrun's Python hook: how long SIGURG makes it hold the interpreter lock (--drill)"},
    {"IVY_MPI", kSet, "ivyrun's Python hook: pid of the process that has joined the MPI world"},
    {"IVY_MPI_PLACE", kSet, "ivyrun's Python hook: which PMI_* and PMIX_* belong to this job"},
    {"IVY_ROLE_*", kSet, "scripts: address and port of a --role server"},
    {"IVY_HOST_INDEX", kSet, "ivy-node: finds this host's processes of the job"},
    {"JAX_COORDINATOR_ADDRESS", kSet, "JAX"},
    {"JAX_LOCAL_DEVICE_IDS", kSet, "JAX"},
    {"KERAS_DISTRIBUTION_JOB_ADDRESSES", kSet, "Keras"},
    {"KERAS_DISTRIBUTION_NUM_PROCESSES", kSet, "Keras"},
    {"KERAS_DISTRIBUTION_PROCESS_ID", kSet, "Keras"},
    {"CROSS_RANK", kSet, "DeepSpeed: as set by its own launcher"},
    {"CROSS_SIZE", kSet, "DeepSpeed: as set by its own launcher"},
    {"LOCAL_SIZE", kSet, "DeepSpeed: as set by its own launcher"},
    {"PJRT_LOCAL_PROCESS_RANK", kSet, "torch_xla"},
    {"CUPYX_DISTRIBUTED_HOST", kSet, "cupyx.distributed"},
    {"CUPYX_DISTRIBUTED_PORT", kSet, "cupyx.distributed"},
    {"IVY_MACHINES", kSet, "scripts: LightGBM's parameter machines (-B lightgbm)"},
    {"IVY_LISTEN_PORT", kSet, "scripts: LightGBM's parameter local_listen_port (-B lightgbm)"},
    // Slurm's names for the same values, set only inside an allocation. JAX and Lightning trust
    // them.
    {"SLURM_PROCID", kSet, "JAX, Lightning, MPI libraries"},
    {"SLURM_LOCALID", kSet, "JAX, Lightning"},
    {"SLURM_NODEID", kSet, "Lightning"},
    {"SLURM_NNODES", kSet, "scripts, MPI libraries"},
    {"SLURM_GTIDS", kSet, "MPI libraries"},
    {"SLURM_NTASKS", kSet, "JAX, Lightning"},
    {"SLURM_NPROCS", kSet, "MPI libraries"},
    {"SLURM_NTASKS_PER_NODE", kSet, "Lightning"},
    {"SLURM_TASKS_PER_NODE", kSet, "MPI libraries"},
    {"SLURM_STEP_NODELIST", kSet, "JAX"},
    {"SLURM_STEP_NUM_NODES", kSet, "MPI libraries"},
    {"SLURM_STEP_NUM_TASKS", kSet, "MPI libraries"},
    {"SLURM_STEP_TASKS_PER_NODE", kSet, "MPI libraries"},

    // A user's settings of libivycomm.
    {"IVY_KERNELS", kAllow, "libivycomm: limits the instruction set of its kernels"},
    {"IVY_TCP_STREAMS", kAllow, "libivycomm: connections between two hosts' ranks"},
    {"IVY_LIBRARY", kInherit, "the Python package: path of libivycomm"},
    {"IVY_NCCL_LIB", kInherit, "libivycomm: path of NCCL"},
    {"IVY_CUDA_LIB", kInherit, "libivycomm: path of the GPU driver's library"},
    {"IVY_NCCL_PROFILER", kAllow, "ivyrun's NCCL profiler plug-in: what to record"},
    {"IVY_NCCL_*", kAllow, "libivycomm: settings for NCCL"},
    {"IVY_DEVICE_*", kAllow,
     "libivycomm: checks of GPU operations between ranks, and how many may run ahead"},
    {"IVY_PMIX_LIB", kInherit, "ivy-pmix: path of libpmix"},
    {"IVY_OVERSUBSCRIBE", kAllow, "libivycomm: 1 if ranks share GPUs deliberately"},

    // Removed: ranks and internal state of another launcher.
    {"IVY_*", kScrub, "ivyrun (defaults of its flags), or an outer ivyrun"},
    {"TORCHELASTIC_*", kScrub, "an outer torchrun"},
    // Open MPI's variables of an outer job. With -B jax --no-python-hook, ivyrun sets variables of
    // these names for its workers.
    {"OMPI_COMM_WORLD_*", kScrub, "Open MPI's ranks, JAX"},
    {"OMPI_UNIVERSE_SIZE", kScrub, "Open MPI's ranks"},
    {"OMPI_APP_CTX_NUM_PROCS", kScrub, "Open MPI's ranks"},
    {"OMPI_FIRST_RANKS", kScrub, "Open MPI's ranks"},
    {"OMPI_NUM_APP_CTX", kScrub, "Open MPI's ranks"},
    {"OMPI_FILE_LOCATION", kScrub, "Open MPI's launcher"},
    {"OMPI_COMMAND", kScrub, "Open MPI's launcher"},
    {"OMPI_ARGV", kScrub, "Open MPI's launcher"},
    {"OMPI_MCA_orte_hnp_uri", kScrub,
     "Open MPI's launcher; JAX, to detect that Open MPI started it"},
    {"OMPI_MCA_orte*", kScrub, "Open MPI's launcher"},
    {"OMPI_MCA_ess*", kScrub, "Open MPI's launcher"},
    {"OMPI_MCA_plm_slurm_args", kScrub, "Open MPI's launcher, set by sbatch"},
    {"PRTE_MCA_plm_slurm_args", kScrub, "PRRTE, set by sbatch"},
    {"PRTE_LAUNCHED", kScrub, "PRRTE"},
    {"PMIX_*", kScrub, "a PMIx server"},
    {"PMI_*", kScrub, "a PMI server"},
    {"PMI2_*", kScrub, "a PMI-2 server"},
    {"HYDI_CONTROL_FD", kScrub, "Hydra"},
    {"HYDRA_BOOTSTRAP", kScrub, "Hydra, set by sbatch"},
    {"HYDRA_LAUNCHER_EXTRA_ARGS", kScrub, "Hydra, set by sbatch"},
    {"I_MPI_HYDRA_BOOTSTRAP*", kScrub, "Intel MPI, set by sbatch"},
    {"MPI_LOCALRANKID", kScrub, "Hydra's ranks"},
    {"MPI_LOCALNRANKS", kScrub, "Hydra's ranks"},
    {"MV2_COMM_*", kScrub, "MVAPICH2's ranks"},
    {"PALS_*", kScrub, "PALS"},
    {"JSM_*", kScrub, "jsrun"},
    {"FLUX_TASK_*", kScrub, "Flux's ranks"},
    {"FLUX_JOB_SIZE", kScrub, "Flux's ranks"},
    {"SLURM_TASK_PID", kScrub, "Slurm's ranks"},
    {"HOROVOD_RANK", kScrub, "Horovod's ranks"},
    {"HOROVOD_SIZE", kScrub, "Horovod's ranks"},
    {"HOROVOD_LOCAL_RANK", kScrub, "Horovod's ranks"},
    {"HOROVOD_LOCAL_SIZE", kScrub, "Horovod's ranks"},
    {"HOROVOD_CROSS_RANK", kScrub, "Horovod's ranks"},
    {"HOROVOD_CROSS_SIZE", kScrub, "Horovod's ranks"},
    {"HOROVOD_HOSTNAME", kScrub, "Horovod's ranks"},
    {"HOROVOD_CONTROLLER", kScrub, "Horovod: how its ranks find each other"},
    {"HOROVOD_CPU_OPERATIONS", kScrub, "Horovod: how its ranks reduce on the CPU"},
    {"HOROVOD_GLOO_RENDEZVOUS_*", kScrub, "Horovod: where its ranks find each other"},
    {"PADDLE_TRAINER*", kScrub, "Paddle's ranks"},
    {"PADDLE_CURRENT_ENDPOINT", kScrub, "Paddle's ranks"},
    {"PADDLE_MASTER", kScrub, "Paddle's ranks: address of their rendezvous"},
    {"PADDLE_GLOBAL_*", kScrub, "Paddle's ranks"},
    {"PADDLE_LOCAL_RANK", kScrub, "Paddle's ranks"},
    {"PADDLE_RANK_IN_NODE", kScrub, "Paddle's ranks"},
    {"PADDLE_NNODES", kScrub, "Paddle's ranks"},
    {"MLX_RANK", kScrub, "MLX"},
    {"MLX_WORLD_SIZE", kScrub, "MLX: its NCCL backend"},
    {"MLX_HOSTFILE", kScrub, "MLX: where the ranks of its ring listen"},
    {"DMLC_TRACKER_*", kScrub, "XGBoost: where its tracker listens"},
    {"DMLC_TASK_ID", kScrub, "XGBoost: its rank"},
    {"DMLC_*", kScrub, "XGBoost: its roles"},
    {"RAY_ADDRESS", kInherit, "Ray: ray.init() without arguments"},
    {"DASK_SCHEDULER_ADDRESS", kInherit, "Dask: Client() without arguments"},
    {"OPENAI_BASE_URL", kInherit, "OpenAI's client and compatible ones: the server"},
    {"OPENAI_API_KEY", kInherit, "OpenAI's client and compatible ones"},
    {"NOTIFY_SOCKET", kScrub, "systemd, for another process"},
    {"WATCHDOG_*", kScrub, "systemd, for another process"},
    {"LISTEN_*", kScrub, "systemd, for another process"},
    {"JOURNAL_STREAM", kScrub, "systemd, for another process"},
    {"INVOCATION_ID", kScrub, "systemd, for another process"},
    {"SYSTEMD_EXEC_PID", kScrub, "systemd, for another process"},
    {"MANAGERPID", kScrub, "systemd, for another process"},

    // Not passed to other hosts: they apply to this host or login only, and are wrong or private
    // elsewhere.
    {"TPU_VISIBLE_*", kInherit, "TPU: devices of this host"},
    {"TPU_PROCESS_*", kInherit, "TPU: processes of this host"},
    {"TF_CONFIG", kInherit, "TensorFlow, Keras: one task of a cluster"},
    {"SSH_AUTH_SOCK", kInherit, "this login's ssh agent; unset for workers on other hosts"},
    {"SSH_CLIENT", kInherit, "this login; unset for workers on other hosts"},
    {"SSH_CONNECTION", kInherit, "this login; unset for workers on other hosts"},
    {"SSH_*", kInherit, "this login"},
    {"SLURM_*", kInherit, "Slurm: this allocation"},
    {"DISPLAY", kInherit, "X: this screen"},
    {"XDG_*", kInherit, "this login"},

    // Passed to other hosts.
    {"PATH", kAllow, "every program"},
    {"LD_LIBRARY_PATH", kAllow, "the dynamic linker"},
    {"LIBRARY_PATH", kAllow, "compilers (torch extensions, Triton)"},
    {"CPATH", kAllow, "compilers (torch extensions, Triton)"},
    {"PYTHON*", kAllow, "Python"},
    {"VIRTUAL_ENV*", kAllow, "Python virtual environments"},
    {"CONDA*", kAllow, "Conda"},
    {"MODULE*", kAllow, "environment modules"},
    {"LOADEDMODULES", kAllow, "environment modules"},
    {"LMOD_*", kAllow, "Lmod"},
    {"LANG", kAllow, "locale"},
    {"LANGUAGE", kAllow, "locale"},
    {"LC_*", kAllow, "locale"},
    {"TZ", kAllow, "local time"},
    // Not passed if the value contains a password or applies to this host only
    // (worker_environment.cc).
    {"http_proxy", kAllow, "downloads"},
    {"https_proxy", kAllow, "downloads"},
    {"ftp_proxy", kAllow, "downloads"},
    {"all_proxy", kAllow, "downloads"},
    {"no_proxy", kAllow, "downloads: hosts to reach without a proxy"},
    {"HTTP_PROXY", kAllow, "downloads"},
    {"HTTPS_PROXY", kAllow, "downloads"},
    {"FTP_PROXY", kAllow, "downloads"},
    {"ALL_PROXY", kAllow, "downloads"},
    {"NO_PROXY", kAllow, "downloads: hosts to reach without a proxy"},
    {"NO_COLOR", kAllow, "programs that colour their output"},
    {"FORCE_COLOR", kAllow, "programs that colour their output"},
    {"NCCL_RAS_ADDR", kAllow, "NCCL: address of its health service, for `ncclras -h`"},
    {"NCCL_DEBUG_FILE", kAllow,
     "NCCL: file for its warnings; in the job's directory, unless NCCL_DEBUG is set"},
    {"NCCL_PROFILER_PLUGIN", kAllow, "NCCL: the plug-in that records its operations"},
    {"NCCL_*", kAllow, "NCCL"},
    {"RCCL_*", kAllow, "RCCL"},
    {"UCX_*", kAllow, "UCX"},
    {"UCC_*", kAllow, "UCC"},
    {"FI_*", kAllow, "libfabric"},
    {"IBV_*", kAllow, "RDMA verbs"},
    {"RDMAV_*", kAllow, "RDMA verbs"},
    {"MLX5_*", kAllow, "RDMA verbs"},
    {"GLOO_*", kAllow, "Gloo"},
    {"TP_SOCKET_IFNAME", kAllow, "TensorPipe"},
    {"OMPI_MCA_*", kAllow, "Open MPI"},
    {"MPICH_*", kAllow, "MPICH"},
    {"HOROVOD_*", kAllow, "Horovod"},
    {"CUDA_*", kAllow, "CUDA"},
    {"CUDNN_*", kAllow, "cuDNN"},
    {"CUBLAS*", kAllow, "cuBLAS"},
    {"NVIDIA_*", kAllow, "NVIDIA libraries"},
    {"NVTE_*", kAllow, "Transformer Engine"},
    {"HSA_*", kAllow, "ROCm"},
    {"ROCM_*", kAllow, "ROCm"},
    {"MIOPEN_*", kAllow, "ROCm"},
    {"TORCH_FR_BUFFER_SIZE", kAllow, "torch: number of collectives that its flight recorder keeps"},
    {"TORCH_FR_DUMP_ON_TIMEOUT", kAllow, "torch: whether its watchdog writes the flight record"},
    {"TORCH_FR_DUMP_TEMP_FILE", kAllow, "torch: path of the flight record"},
    {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", kAllow, "torch before 2.10: the same"},
    {"TORCH*", kAllow, "torch"},
    {"PYTORCH_*", kAllow, "torch"},
    {"TRITON_*", kAllow, "Triton"},
    {"ACCELERATE_*", kAllow, "accelerate"},
    {"FSDP_*", kAllow, "accelerate"},
    {"DEEPSPEED_*", kAllow, "DeepSpeed"},
    {"DS_*", kAllow, "DeepSpeed"},
    {"HF_*", kAllow, "Hugging Face"},
    {"HUGGINGFACE_*", kAllow, "Hugging Face"},
    {"TRANSFORMERS_*", kAllow, "Hugging Face"},
    {"TOKENIZERS_*", kAllow, "Hugging Face"},
    {"WANDB_*", kAllow, "Weights & Biases"},
    {"MLFLOW_*", kAllow, "MLflow"},
    {"XLA_FLAGS", kAllow, "XLA (JAX, TensorFlow)"},
    {"XLA_*", kAllow, "XLA"},
    {"JAX_ENABLE_PREEMPTION_SERVICE", kAllow,
     "JAX: survives SIGTERM and notifies all its processes"},
    {"JAX_PLATFORMS", kAllow, "JAX: platforms to use"},
    {"JAX_*", kAllow, "JAX"},
    {"PJRT_*", kAllow, "PJRT"},
    {"LIBTPU_*", kAllow, "TPU"},
    {"TPU_*", kAllow, "TPU"},
    {"TF_*", kAllow, "TensorFlow"},
    {"KERAS_*", kAllow, "Keras"},
    {"MLX_*", kAllow, "MLX"},
    {"PADDLE_*", kAllow, "Paddle"},
    {"FLAGS_*", kAllow, "Paddle"},
    {"DASK_*", kAllow, "Dask"},
    {"RAY_*", kAllow, "Ray"},
    {"VLLM_*", kAllow, "vLLM"},
    {"SGLANG_*", kAllow, "SGLang"},
    {"OMP_*", kAllow, "OpenMP"},
    {"GOMP_*", kAllow, "OpenMP (GCC)"},
    {"KMP_*", kAllow, "OpenMP (Intel, LLVM)"},
    {"MKL_*", kAllow, "MKL"},
    {"OPENBLAS_*", kAllow, "OpenBLAS"},
    {"NUMEXPR_*", kAllow, "NumExpr"},
};

// The rows grouped by their first character, in the table's order within a group. A start looks up
// a hundred names, each of which can match only few rows.
struct RowsByFirst {
  std::array<const EnvEntry*, std::size(kVariables)> rows{};
  std::array<std::size_t, 129> begins{};  // Entries of character c: begins[c] to begins[c + 1].
};

constexpr RowsByFirst kByFirst = [] {
  RowsByFirst sorted;
  std::size_t count = 0;
  for (std::size_t c = 0; c + 1 < sorted.begins.size(); ++c) {
    for (const EnvEntry& entry : kVariables)
      if (entry.pattern.front() == static_cast<char>(c)) sorted.rows[count++] = &entry;
    sorted.begins[c + 1] = count;
  }
  return sorted;
}();
static_assert(kByFirst.begins.back() == std::size(kVariables));

std::span<const EnvEntry* const> rows_that_begin_with(char first) {
  const auto c = static_cast<unsigned char>(first);
  if (c + 1u >= kByFirst.begins.size()) return {};
  return {&kByFirst.rows[0] + kByFirst.begins[c], &kByFirst.rows[0] + kByFirst.begins[c + 1]};
}

bool is_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_'; }

}  // namespace

std::span<const EnvEntry> env_table() {
  // Masks precede all other rows: each applies to one host, whatever a prefix below says.
  static const std::vector<EnvEntry> all = [] {
    std::vector<EnvEntry> rows;
    for (const DeviceVendor& vendor : device_vendors())
      for (const std::string_view mask : {vendor.mask, vendor.lower_mask, vendor.other_mask})
        if (!mask.empty()) rows.push_back({mask, kInherit, "accelerators of this host"});
    rows.insert(rows.end(), std::begin(kVariables), std::end(kVariables));
    return rows;
  }();
  return all;
}

EnvRule env_rule(std::string_view name) {
  if (name.empty() || selects_devices(name)) return kInherit;
  for (const EnvEntry* const entry : rows_that_begin_with(name.front()))
    if (env_pattern_matches(entry->pattern, name)) return entry->rule;
  return kInherit;
}

bool is_env_name(std::string_view name) {
  if (name.empty() || !is_letter(name.front())) return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

Environment environment_of(char* const* environment_block) {
  Environment environment;
  for (; environment_block != nullptr && *environment_block != nullptr; ++environment_block) {
    const std::string_view entry = *environment_block;
    const std::size_t equals = entry.find('=');
    // "=C:=..." has no name; some shells leave such entries.
    if (equals == std::string_view::npos || equals == 0) continue;
    environment.push_back(
        EnvVariable{std::string(entry.substr(0, equals)), std::string(entry.substr(equals + 1))});
  }
  return environment;
}

void set_variable(Environment& environment, std::string name, std::string value) {
  for (EnvVariable& variable : environment) {
    if (variable.name != name) continue;
    variable.value = std::move(value);
    return;
  }
  environment.push_back(EnvVariable{std::move(name), std::move(value)});
}

void unset_variable(Environment& environment, std::string_view name) {
  std::erase_if(environment, [&](const EnvVariable& variable) { return variable.name == name; });
}

const std::string* find_variable(const Environment& environment, std::string_view name) {
  for (const EnvVariable& variable : environment)
    if (variable.name == name) return &variable.value;
  return nullptr;
}

}  // namespace ivy
