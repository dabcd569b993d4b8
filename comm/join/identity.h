// SPDX-License-Identifier: Apache-2.0
// This process's rank, the source that assigned it, and the way in which the ranks find each other.
// Pure: takes the environment and the caller's arguments, returns a value. Thread: any.
//
// Sources, the most specific first: the arguments of ivy_init, ivyrun's IVY_*, the launchers of
// launchers.h; without any, a world of one. Two sources that contradict each other are an error;
// IVY_LAUNCHER=KEY selects one of those in the environment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "comm/join/launchers.h"
#include "proto/contract/status.h"

namespace ivy::comm {

// How the ranks find each other.
enum class Bootstrap : std::uint8_t {
  kAlone,       // There is only one rank.
  kStore,       // The job's store, which ivyrun serves: address, job and token file are known.
  kAddress,     // Rank 0 serves a store at bootstrap_host:bootstrap_port.
  kFile,        // Rank 0 serves one anywhere, and writes where into the file bootstrap_path.
  kHostFile,    // The same with a private file of this host, named by bootstrap_key.
  kTorchStore,  // The same through torchrun's own TCPStore at bootstrap_host:bootstrap_port.
};

struct Identity {
  std::string source = "a world of one";  // "ivyrun", "torchrun", ...: in messages.
  std::string said;                       // "RANK=1, WORLD_SIZE=4"; empty: no source.
  Bootstrap bootstrap = Bootstrap::kAlone;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  // True if ranks may be on other hosts; otherwise nothing listens for them.
  bool spans_hosts = false;

  // The following fields are set with Bootstrap::kStore.
  std::string host_key;  // Equal for ranks that may share memory.
  std::string store_address;
  std::string first_host_address;  // With a port, which means nothing; empty: as store_address.
  std::string job_id;
  std::string token_file;  // Also for kAddress; empty: no secret.
  // Both are 0 at first: how many times all ranks were started again, and this one alone
  // (IVY_REJOIN).
  struct Attempt {
    std::uint32_t generation = 0;
    std::uint32_t incarnation = 0;
  } attempt;
  std::string control_path;  // The supervisor's control socket; empty: none.

  // For the other ways to meet.
  std::string bootstrap_host;
  std::uint16_t bootstrap_port = 0;
  std::string bootstrap_path;
  std::string bootstrap_key;
  // The job has no name in the environment: it is the process of this name above us that makes
  // bootstrap_key unique.
  std::string launcher_process;
  bool is_new_torch = false;  // kTorchStore: it uses the dialect of torch 2.2 and later.
};

// The arguments of ivy_init.
struct IdentityRequest {
  std::string init_method;  // Empty: IVY_INIT_METHOD, or "env://" if that is not set.
  std::optional<std::uint32_t> rank;
  std::optional<std::uint32_t> world_size;
};

// FailedPrecondition: two sources disagree (names both), or one is incomplete (names the variable).
// InvalidArgument: what the caller said makes no sense.
Result<Identity> identify(const IdentityRequest& request, const EnvironmentLookup& environment);

// The source for messages: "torchrun (RANK=1, WORLD_SIZE=4)".
std::string source_text(const Identity& identity);

// A port below those that the kernel gives away, by a text that all ranks know.
std::uint16_t port_by(std::string_view key);

}  // namespace ivy::comm
