// SPDX-License-Identifier: Apache-2.0
// identify() at the end leads to identify_rank(), which chooses the source: from_method() if the
// caller or IVY_INIT_METHOD gives an address, otherwise from_environment(), which prefers ivyrun
// (from_ivyrun()) to other launchers (from_other_launchers(); the table is in launchers.h). The
// bootstrap_*() functions decide how ranks of those launchers find each other. agree() compares the
// result with the caller's arguments.
#include "comm/join/identity.h"

#include <limits>

#include "proto/contract/text.h"

namespace ivy::comm {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kFile = "file://";

Result<std::uint32_t> number_of(std::string_view name, const std::string& text) {
  const std::optional<std::uint32_t> value = to_number<std::uint32_t>(text);
  if (value) return *value;
  return Error{Code::kFailedPrecondition,
               std::string(name) + " is \"" + text + "\", which is not a number",
               "start the program with ivyrun, or unset the variable"};
}

Result<std::string> text_of(const EnvironmentLookup& environment, std::string_view name) {
  std::optional<std::string> text = environment(name);
  if (!text || text->empty()) {
    return Error{Code::kFailedPrecondition, "IVY_RANK is set but " + std::string(name) + " is not",
                 "start the program with ivyrun, or unset IVY_RANK"};
  }
  return *text;
}

Result<std::uint32_t> number_of(const EnvironmentLookup& environment, std::string_view name) {
  return number_of(name, IVY_TRY(text_of(environment, name)));
}

// The fields requested from a source: only rank and world size if another source specifies how the
// ranks find each other.
enum class Fields : std::uint8_t { kAll, kRankAndSize };

Result<Identity> from_ivyrun(const EnvironmentLookup& environment, Fields fields) {
  Identity identity;
  identity.source = "ivyrun";
  identity.rank = IVY_TRY(number_of(environment, "IVY_RANK"));
  identity.world_size = IVY_TRY(number_of(environment, "IVY_WORLD_SIZE"));
  identity.settings = "IVY_RANK=" + std::to_string(identity.rank) +
                      ", IVY_WORLD_SIZE=" + std::to_string(identity.world_size);
  if (identity.world_size == 0 || identity.rank >= identity.world_size) {
    return Error{Code::kFailedPrecondition, "IVY_RANK is " + std::to_string(identity.rank) +
                                                " in a world of " +
                                                std::to_string(identity.world_size)};
  }
  if (fields == Fields::kRankAndSize) return identity;
  identity.host_key = environment("IVY_NODE_RANK").value_or("");
  identity.spans_hosts = environment("IVY_NUM_NODES").value_or("1") != "1";
  identity.control_path = environment("IVY_CONTROL").value_or("");
  if (identity.world_size == 1) return identity;
  identity.bootstrap = Bootstrap::kStore;
  const std::optional<std::string> store = environment("IVY_STORE");
  if (!store) {
    return Error{Code::kFailedPrecondition, "this job has no store (IVY_STORE is not set)",
                 "start ivyrun without --no-store"};
  }
  identity.store_address = *store;
  // This rank may reach the store at a different address than other hosts do.
  const std::optional<std::string> first_host = environment("IVY_MASTER_ADDR");
  identity.first_host_address = first_host ? with_port(*first_host, 1) : *store;
  identity.job_id = IVY_TRY(text_of(environment, "IVY_JOB_ID"));
  identity.token_file = IVY_TRY(text_of(environment, "IVY_TOKEN_FILE"));
  identity.attempt.generation =
      IVY_TRY(number_of("IVY_GENERATION", environment("IVY_GENERATION").value_or("0")));
  identity.attempt.incarnation =
      IVY_TRY(number_of("IVY_REJOIN", environment("IVY_REJOIN").value_or("0")));
  return identity;
}

Result<std::uint16_t> port_of(std::string_view name, std::string_view text) {
  const std::optional<std::uint32_t> port = to_number<std::uint32_t>(text);
  if (port && *port > 0 && *port <= std::numeric_limits<std::uint16_t>::max()) {
    return static_cast<std::uint16_t>(*port);
  }
  return Error{Code::kInvalidArgument,
               std::string(name) + ": \"" + std::string(text) + "\" is not a port",
               "ports are 1 to 65535"};
}

// Rank 0 is on MASTER_ADDR. MASTER_PORT itself remains torch's; only its number is used.
Result<void> bootstrap_at_master(const EnvironmentLookup& environment, Identity& identity) {
  const std::string port = value_of(environment, "MASTER_PORT");
  IVY_CHECK(port_of("MASTER_PORT", port));
  identity.bootstrap = Bootstrap::kAddress;
  identity.bootstrap_host = value_of(environment, "MASTER_ADDR");
  identity.bootstrap_port = port_by(identity.bootstrap_key + " at " + port);
  return {};
}

bool has_master(const EnvironmentLookup& environment) {
  return !value_of(environment, "MASTER_ADDR").empty() &&
         !value_of(environment, "MASTER_PORT").empty();
}

Result<void> bootstrap_under_torchrun(const EnvironmentLookup& environment, bool is_one_host,
                                      Identity& identity) {
  identity.bootstrap_key = "torchrun " + value_of(environment, "TORCHELASTIC_RUN_ID") + " " +
                           value_of(environment, "TORCHELASTIC_RESTART_COUNT");
  if (is_one_host) {
    identity.bootstrap = Bootstrap::kHostFile;
    identity.bootstrap_key += " " + value_of(environment, "MASTER_PORT");
    return {};
  }
  if (value_of(environment, "TORCHELASTIC_USE_AGENT_STORE") != "True") {
    return bootstrap_at_master(environment, identity);
  }
  identity.bootstrap = Bootstrap::kTorchStore;
  identity.bootstrap_host = value_of(environment, "MASTER_ADDR");
  identity.bootstrap_port = IVY_TRY(port_of("MASTER_PORT", value_of(environment, "MASTER_PORT")));
  // torchrun sets one of these for its workers; the name changed together with the dialect.
  identity.is_new_torch = environment("TORCH_NCCL_ASYNC_ERROR_HANDLING").has_value() &&
                          !environment("NCCL_ASYNC_ERROR_HANDLING").has_value();
  return {};
}

Result<void> bootstrap_under_mpi(const LauncherClaim& claim, const EnvironmentLookup& environment,
                                 bool is_one_host, Identity& identity) {
  if (!is_one_host) {
    identity.bootstrap_key = claim.key;
    if (has_master(environment)) return bootstrap_at_master(environment, identity);
    const std::string give = claim.key == "openmpi"
                                 ? "-x MASTER_ADDR=HOST_OF_RANK_0 -x MASTER_PORT=29500"
                                 : "-genv MASTER_ADDR HOST_OF_RANK_0 -genv MASTER_PORT 29500";
    return Error{Code::kFailedPrecondition,
                 claim.text() +
                     " does not say which host rank 0 runs on, and not all ranks run on this host",
                 "start with " + give + ", or set IVY_INIT_METHOD=tcp://HOST_OF_RANK_0:PORT"};
  }
  identity.bootstrap = Bootstrap::kHostFile;
  if (claim.key == "mpich") {
    identity.bootstrap_key = claim.key;
    identity.launcher_process = "hydra_pmi_proxy";
    return {};
  }
  const std::string job = value_of(environment, "PMIX_NAMESPACE");
  identity.bootstrap_key =
      claim.key + " " + job + " " + value_of(environment, "OMPI_MCA_orte_hnp_uri");
  if (!job.empty()) return {};
  return Error{Code::kFailedPrecondition,
               claim.text() + " does not identify its job: PMIX_NAMESPACE is not set",
               "start the program with mpirun itself, or set IVY_INIT_METHOD=tcp://HOST:PORT"};
}

Result<void> bootstrap_under_slurm(const EnvironmentLookup& environment, bool is_one_host,
                                   Identity& identity) {
  identity.bootstrap_key = "slurm " + value_of(environment, "SLURM_JOB_ID") + "." +
                           value_of(environment, "SLURM_STEP_ID") + " " +
                           value_of(environment, "SLURM_RESTART_COUNT");
  if (is_one_host) {
    identity.bootstrap = Bootstrap::kHostFile;
    return {};
  }
  if (has_master(environment)) return bootstrap_at_master(environment, identity);
  identity.bootstrap = Bootstrap::kAddress;
  identity.bootstrap_host = first_host(value_of(environment, "SLURM_STEP_NODELIST"));
  identity.bootstrap_port = port_by(identity.bootstrap_key);
  if (!identity.bootstrap_host.empty()) return {};
  return Error{Code::kFailedPrecondition,
               "SLURM_STEP_ID is set but SLURM_STEP_NODELIST is not, so it is not known which "
               "host rank 0 runs on",
               "set MASTER_ADDR and MASTER_PORT, or IVY_INIT_METHOD=tcp://HOST_OF_RANK_0:PORT"};
}

Result<Identity> from_launcher(const LauncherClaim& claim, const EnvironmentLookup& environment,
                               Fields fields) {
  Identity identity;
  identity.source = claim.name;
  identity.settings = claim.settings;
  identity.rank = claim.rank;
  identity.world_size = claim.world_size;
  if (claim.world_size == 1 || fields == Fields::kRankAndSize) return identity;
  identity.spans_hosts = true;  // Local sizes count processes, not ranks that can share memory.
  identity.token_file = value_of(environment, "IVY_TOKEN_FILE");
  const bool is_one_host = claim.local_size == claim.world_size;
  if (claim.key == "torchrun") {
    IVY_CHECK(bootstrap_under_torchrun(environment, is_one_host, identity));
  } else if (claim.key == "slurm") {
    IVY_CHECK(bootstrap_under_slurm(environment, is_one_host, identity));
  } else {
    IVY_CHECK(bootstrap_under_mpi(claim, environment, is_one_host, identity));
  }
  return identity;
}

Error contradiction(const LauncherClaim& first, const LauncherClaim& second) {
  return Error{Code::kFailedPrecondition,
               "the variables of two launchers disagree: " + first.text() + " and " + second.text(),
               "select one with IVY_LAUNCHER=" + first.key + " or IVY_LAUNCHER=" + second.key +
                   ", or unset the other one's variables"};
}

Result<void> check_agreement(const LauncherClaim& chosen,
                             const std::vector<LauncherClaim>& others) {
  for (const LauncherClaim& other : others) {
    if (other.key != chosen.key && !may_both_hold(chosen, other)) {
      return contradiction(chosen, other);
    }
  }
  return {};
}

Result<Identity> from_other_launchers(const EnvironmentLookup& environment,
                                      const std::string& wanted, Fields fields) {
  const LauncherClaims claims = read_launchers(environment, wanted);
  if (claims.complete.empty()) {
    if (!claims.incomplete.empty()) return claims.incomplete.front();
    if (wanted.empty()) return Identity();
    return Error{Code::kFailedPrecondition,
                 "IVY_LAUNCHER is " + wanted + ", but none of that launcher's variables is set",
                 "unset IVY_LAUNCHER"};
  }
  const LauncherClaim* chosen = &claims.complete.front();
  IVY_CHECK(check_agreement(*chosen, claims.complete));
  // srun --mpi=pmi2 sets MPICH's variables, too, but Slurm's own describe the step better.
  for (const LauncherClaim& other : claims.complete) {
    const bool is_same = other.rank == chosen->rank && other.world_size == chosen->world_size;
    if (chosen->key == "mpich" && other.key == "slurm" && is_same) chosen = &other;
  }
  return from_launcher(*chosen, environment, fields);
}

Result<Identity> from_environment(const EnvironmentLookup& environment, Fields fields) {
  const std::string wanted = value_of(environment, "IVY_LAUNCHER");
  if (!wanted.empty() && !is_launcher_key(wanted)) {
    return Error{Code::kFailedPrecondition, "IVY_LAUNCHER is \"" + wanted + "\"",
                 "use ivyrun, torchrun, openmpi, mpich, slurm or none"};
  }
  if (wanted == "none") return Identity();
  const bool is_ivyrun = wanted == "ivyrun" || (wanted.empty() && environment("IVY_RANK"));
  if (!is_ivyrun) return from_other_launchers(environment, wanted, fields);
  Identity identity = IVY_TRY(from_ivyrun(environment, fields));
  if (wanted.empty()) {
    LauncherClaim own;
    own.key = own.name = identity.source;
    own.settings = identity.settings;
    own.rank = identity.rank;
    own.world_size = identity.world_size;
    IVY_CHECK(check_agreement(own, read_launchers(environment, "").complete));
  }
  return identity;
}

Result<void> agree(std::string_view what, const std::optional<std::uint32_t>& passed,
                   std::uint32_t found, const Identity& identity) {
  if (!passed || *passed == found) return {};
  const std::string variables = identity.settings.empty() ? "" : " (" + identity.settings + ")";
  return Error{Code::kFailedPrecondition,
               "the program passed " + std::string(what) + " " + std::to_string(*passed) +
                   ", but " + identity.source + " set " + std::to_string(found) + variables,
               "remove it from the program, or pass tcp://HOST:PORT with both rank and world size"};
}

Error unknown_method(const std::string& method) {
  return Error{Code::kInvalidArgument, "init method \"" + method + "\" is not supported",
               "use env:// (the default), tcp://HOST:PORT, file:///PATH or self://"};
}

// Parses a host with a port: "10.0.0.1:4123", "[fd00::1]:4123" or "node1:4123".
Result<void> take_address(std::string_view text, const std::string& method, Identity& identity) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) {
    return Error{Code::kInvalidArgument, method + " lacks rank 0's host or port",
                 "tcp://HOST:PORT"};
  }
  identity.bootstrap_port = IVY_TRY(port_of(method, text.substr(colon + 1)));
  identity.bootstrap_host = host_of(std::string(text));
  identity.bootstrap = Bootstrap::kAddress;
  return {};
}

Result<void> take_method(const std::string& method, Identity& identity) {
  const std::string_view text = method;
  if (text.starts_with(kTcp)) return take_address(text.substr(kTcp.size()), method, identity);
  if (!text.starts_with(kFile)) return unknown_method(method);
  identity.bootstrap_path = text.substr(kFile.size());
  identity.bootstrap = Bootstrap::kFile;
  if (identity.bootstrap_path.starts_with('/')) return {};
  return Error{Code::kInvalidArgument, method + " is not an absolute path", "file:///home/me/meet"};
}

// tcp:// and file:// specify the address. The rank comes from the caller, or else from the
// environment.
Result<Identity> from_method(const IdentityRequest& request, const std::string& method,
                             const EnvironmentLookup& environment) {
  Identity identity;
  if (request.rank && request.world_size) {
    identity.source = "the program";
    identity.settings = "rank=" + std::to_string(*request.rank) +
                        ", world_size=" + std::to_string(*request.world_size);
    identity.rank = *request.rank;
    identity.world_size = *request.world_size;
    if (identity.rank >= identity.world_size) {
      return Error{Code::kInvalidArgument,
                   "rank " + std::to_string(identity.rank) + " in a world of " +
                       std::to_string(identity.world_size),
                   "ranks are counted from 0"};
    }
  } else {
    const Identity found = IVY_TRY(from_environment(environment, Fields::kRankAndSize));
    if (found.settings.empty()) {
      return Error{Code::kFailedPrecondition,
                   method + " needs rank and world size, but no launcher provides them",
                   "pass rank= and world_size= as well"};
    }
    IVY_CHECK(agree("rank", request.rank, found.rank, found));
    IVY_CHECK(agree("world size", request.world_size, found.world_size, found));
    identity.source = found.source;
    identity.settings = found.settings;
    identity.rank = found.rank;
    identity.world_size = found.world_size;
  }
  identity.token_file = value_of(environment, "IVY_TOKEN_FILE");
  identity.spans_hosts = true;
  IVY_CHECK(take_method(method, identity));
  if (identity.world_size == 1) identity.bootstrap = Bootstrap::kSingle;
  return identity;
}

Result<Identity> identify_rank(const IdentityRequest& request,
                               const EnvironmentLookup& environment) {
  std::string method = request.init_method;
  if (method.empty()) method = value_of(environment, "IVY_INIT_METHOD");
  const bool wants_environment = method.empty() || method == "env://";
  if (!wants_environment && method != "self://") {
    return from_method(request, method, environment);
  }
  Identity identity;
  if (wants_environment) identity = IVY_TRY(from_environment(environment, Fields::kAll));
  if (wants_environment && identity.settings.empty() && request.world_size.value_or(1) > 1) {
    return Error{Code::kFailedPrecondition,
                 "the program passed world size " + std::to_string(*request.world_size) +
                     ", but the address of the other ranks is not known",
                 "pass tcp://HOST:PORT or file:///PATH as well, or start it with a launcher"};
  }
  IVY_CHECK(agree("rank", request.rank, identity.rank, identity));
  IVY_CHECK(agree("world size", request.world_size, identity.world_size, identity));
  return identity;
}

}  // namespace

Result<Identity> identify(const IdentityRequest& request, const EnvironmentLookup& environment) {
  if (!value_of(environment, "IVY_TUNING_FILE").empty()) {
    return Error{Code::kInvalidArgument,
                 "IVY_TUNING_FILE is set, but tuning tables are no longer supported",
                 "unset it: the built-in table is always used"};
  }
  return identify_rank(request, environment);
}

std::string source_text(const Identity& identity) {
  return identity.settings.empty() ? identity.source
                                   : identity.source + " (" + identity.settings + ")";
}

std::uint16_t port_by(std::string_view key) {
  // FNV-1a. Ports 20000 to 31999 are neither in the kernel's range, unless the administrator has
  // moved that, nor used by most services.
  std::uint32_t hash = 2166136261U;
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return static_cast<std::uint16_t>(20000 + hash % 12000);
}

}  // namespace ivy::comm
