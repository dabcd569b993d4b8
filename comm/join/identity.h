// SPDX-License-Identifier: Apache-2.0
// This process's rank, the source that assigned it, and the way in which the ranks find each other.
// Pure: takes the environment and the caller's arguments, and returns a value. Thread: any.
//
// Sources, the most specific first, are the arguments of ivy_init, ivyrun's IVY_*, and the
// launchers of launchers.h. Without any of them, the process is a world of one. Two sources that
// contradict each other are an error; IVY_LAUNCHER=KEY selects one of those in the environment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "comm/join/launchers.h"
#include "proto/contract/status.h"

namespace ivy::comm {

// How the ranks find each other.
enum class Bootstrap : std::uint8_t {
  kSingle,   // There is only one rank.
  kStore,    // The job's store from ivyrun, whose address, job and token file are known.
  kAddress,  // Rank 0 serves a store at bootstrap_host:bootstrap_port.
  kFile,     // Rank 0 serves a store anywhere, and writes its address into the file bootstrap_path.
  kHostFile,  // As kFile, with a private file of this host that is named by bootstrap_key.
  // Rank 0 serves a store anywhere, and writes its address into torchrun's own TCPStore at
  // bootstrap_host:bootstrap_port.
  kTorchStore,
};

struct Identity {
  std::string source = "a world of one";  // For messages: "ivyrun", "torchrun", ...
  std::string settings;                   // "RANK=1, WORLD_SIZE=4"; empty without a source.
  Bootstrap bootstrap = Bootstrap::kSingle;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  // Whether ranks may be on other hosts. If not, no listener is opened for them.
  bool spans_hosts = false;

  // For Bootstrap::kStore:
  std::string host_key;  // Equal for ranks that may share memory.
  std::string store_address;
  std::string first_host_address;  // With a port, which is not used; if empty, as store_address.
  std::string job_id;
  std::string token_file;  // Also for kAddress; empty if there is no secret.
  // Number of times that all ranks were restarted, and that this one alone was (IVY_REJOIN). Both
  // are initially 0.
  struct Attempt {
    std::uint32_t generation = 0;
    std::uint32_t incarnation = 0;
  } attempt;
  std::string control_path;  // The supervisor's control socket, or empty.

  // For the other kinds of bootstrap:
  std::string bootstrap_host;
  std::uint16_t bootstrap_port = 0;
  std::string bootstrap_path;
  std::string bootstrap_key;
  // The job has no name in the environment. The ancestor process with this name makes bootstrap_key
  // unique.
  std::string launcher_process;
  // With kTorchStore: the store uses the dialect of torch 2.2 and later.
  bool is_new_torch = false;
};

// The arguments of ivy_init.
struct IdentityRequest {
  std::string init_method;  // If empty, IVY_INIT_METHOD, or "env://" if that is not set.
  std::optional<std::uint32_t> rank;
  std::optional<std::uint32_t> world_size;
};

// Fails with FailedPrecondition if two sources disagree (the text names both) or one is incomplete
// (the text names the variable), and with InvalidArgument if the caller's arguments are invalid.
Result<Identity> identify(const IdentityRequest& request, const EnvironmentLookup& environment);

// Formats the source for messages: "torchrun (RANK=1, WORLD_SIZE=4)".
std::string source_text(const Identity& identity);

// Derives a port, below those that the kernel assigns, from a text that all ranks know.
std::uint16_t port_by(std::string_view key);

}  // namespace ivy::comm
